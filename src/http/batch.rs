//! `POST /v1/jobs/batch`: many dispatches in one transaction.

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::dispatch::prepare::Request;
use crate::dispatch::{Failure, PreparedUnit};
use crate::http::auth::{By, Dispatch};
use crate::http::dispatch::unit;
use crate::http::examples;
use crate::http::extract::{self, BATCH, Checked, Room};
use crate::http::idempotency::IdempotencyKey;
use crate::http::problem::{self, Code, Problem, ProblemBody, answers};
use crate::http::receipt::{Disposition, ReceiptBody};
use crate::http::wire::DispatchBody;
use crate::http::{App, JsonBody};
use crate::job::AppId;
use crate::json::{self, MAX_DEPTH};
use crate::uniqueness::holders::UnitOutcome;

/// How many invalid items one answer names.
const ERRORS_MAX: usize = 100;

/// An item may nest as deep as the same dispatch by itself: it lies in an object and an array.
const BATCH_DEPTH: usize = MAX_DEPTH + 2;

answers!(BatchProblems: InvalidJson, InvalidRequest, InvalidKey, InvalidWindow, InvalidDuration, InvalidPayload,
    Unauthorized, Forbidden, UniquenessConflict, UniquenessCompositionConflict, PayloadTooLarge, BatchTooLarge,
    UnsupportedMediaType, UniquenessRequired, UniquenessKeyMismatch, KeySelectorFailed, IdempotencyScopeInvalid,
    Internal, Overloaded, StoreUnavailable, ShuttingDown);

/// Many dispatches, in order.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = Batch)]
pub struct BatchBody<'a> {
    #[serde(borrow)]
    #[schema(value_type = Vec<DispatchBody>, min_items = 1)]
    jobs: Vec<&'a RawValue>,
    /// Whether a conflicting item leaves the others standing. An invalid item fails the batch either way.
    continue_on_conflict: Option<bool>,
}

/// One result for each item, in input order.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = BatchReceipt)]
pub struct BatchReceiptBody {
    results: Vec<ItemResult>,
    created: usize,
    reused: usize,
    conflicts: usize,
}

/// What became of an item: a receipt, or with `continue_on_conflict` the conflict.
#[derive(Serialize, ToSchema, Debug)]
pub struct ItemResult {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<ReceiptBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ProblemBody>,
}

/// Dispatch many jobs
///
/// Items act as if they were dispatched one after another, in one transaction: a later item that matches an
/// earlier one is reused. One that is invalid fails the batch before anything is written.
#[utoipa::path(
    post, path = "/v1/jobs/batch", operation_id = "dispatchBatch", tag = "dispatch",
    params(("Idempotency-Key" = Option<String>, Header, description = "Gives each item without a window key of its own the \
        idempotency key `KEY/INDEX`")),
    request_body(content = BatchBody, example = json!({
        "jobs": [
            {"name": "place-order", "payload": {"order": 42}, "uniqueness": {"active_key": "order:42"}},
            {"name": "place-order", "payload": {"order": 42}, "uniqueness": {"active_key": "order:42"}}
        ],
        "continue_on_conflict": false
    })),
    responses(
        (status = 200, description = "One result for each item", body = BatchReceiptBody, example = json!(examples::batch())),
        BatchProblems,
    )
)]
pub(super) async fn batch(
    State(app): State<App>,
    by: By<Dispatch>,
    _: Room,
    key: IdempotencyKey,
    Checked(bytes): Checked<BATCH>,
) -> Result<Response, Problem> {
    let unit = read(&app, by.app, &key, bytes).await?;
    let decided = app.dispatcher.dispatch(unit).await.map_err(|failure| match failure {
        Failure::Invalid(faults) => invalid_items(faults.into_iter().map(|(i, invalid)| (i, invalid.into())).collect()),
        failure => failure.into(),
    });
    match decided? {
        UnitOutcome::Refused { index, refusal } => Err(Problem::refused(&refusal, false).with_index(index)),
        UnitOutcome::Applied(results) => {
            let mut body = BatchReceiptBody {
                results: Vec::new(),
                created: 0,
                reused: 0,
                conflicts: 0,
            };
            for (index, result) in mutant!(
                "batch_out_of_order": results.into_iter().rev().collect::<Vec<_>>(), else results
            )
            .into_iter()
            .enumerate()
            {
                let item = match result.map(ReceiptBody::from) {
                    Ok(receipt) => {
                        match receipt.disposition() {
                            Disposition::Created => body.created += 1,
                            Disposition::Reused => body.reused += 1,
                        }
                        ItemResult {
                            index,
                            receipt: Some(receipt),
                            error: None,
                        }
                    }
                    Err(refusal) => {
                        body.conflicts += 1;
                        let error = Problem::refused(&refusal, true).with_index(index).into_body();
                        ItemResult {
                            index,
                            receipt: None,
                            error: Some(error),
                        }
                    }
                };
                body.results.push(item);
            }
            Ok(JsonBody(body).into_response())
        }
    }
}

async fn read(app: &App, id: AppId, key: &IdempotencyKey, bytes: Bytes) -> Result<PreparedUnit, Problem> {
    let (understood, continue_on_conflict) = requests(app, key, &bytes)?;
    // The dispatches own what they need: 16 MiB of text need not wait for the database.
    drop(bytes);
    let (mut requests, mut places, mut faults) = (Vec::with_capacity(understood.len()), Vec::new(), Vec::new());
    for (index, request) in understood.into_iter().enumerate() {
        match request {
            Ok(request) => {
                requests.push(request);
                places.push(index);
            }
            Err(problem) => faults.push((index, problem)),
        }
    }
    match unit(app, id, requests, continue_on_conflict).await? {
        Ok(unit) if faults.is_empty() => return Ok(unit),
        Ok(_) => {}
        Err(invalid) => faults.extend(
            invalid
                .into_iter()
                .map(|(place, invalid)| (places[place], invalid.into())),
        ),
    }
    Err(invalid_items(faults))
}

/// What is wrong with which items: the code is that of the lowest.
fn invalid_items(mut faults: Vec<(usize, Problem)>) -> Problem {
    faults.sort_by_key(|(index, _)| *index);
    let Some(code) = faults.first().map(|(_, problem)| problem.code()) else {
        return problem::internal();
    };
    let errors = faults.into_iter().take(ERRORS_MAX);
    Problem::of_items(code, errors.map(|(index, problem)| problem.into_item(index)).collect())
}

/// The items of a batch, each understood or with what is wrong with it, and whether conflicts stop it.
fn requests(app: &App, key: &IdempotencyKey, bytes: &[u8]) -> Result<(Vec<Result<Request, Problem>>, bool), Problem> {
    // A fault that lies in one item is that item's: the items are then checked one by one to name each.
    let by_item = match json::check(bytes, BATCH_DEPTH) {
        Ok(_) => false,
        Err(fault) => match (fault.kind, fault.pointer.strip_prefix("/jobs/")) {
            (json::FaultKind::DuplicateKey | json::FaultKind::Surrogate, Some(_)) => true,
            _ => extract::check(bytes, BATCH_DEPTH).map(|_| false)?,
        },
    };
    let BatchBody {
        jobs,
        continue_on_conflict,
    } = extract::parse(bytes)?;
    if jobs.is_empty() {
        return Err(Problem::new(Code::InvalidRequest, "a batch has at least one job").at("/jobs"));
    }
    if jobs.len() > app.limits.batch_items {
        let most = app.limits.batch_items;
        let detail = format!(
            "a batch has at most {most} jobs and this one has {}: send it in parts",
            jobs.len()
        );
        return Err(Problem::new(Code::BatchTooLarge, detail).at("/jobs"));
    }
    let understand = |(index, item): (usize, &RawValue)| -> Result<Request, Problem> {
        if by_item {
            extract::check(item.get().as_bytes(), MAX_DEPTH)?;
        }
        let body: DispatchBody = extract::parse(item.get().as_bytes())?;
        let mut request = Request::from(body);
        key.give_item(index, &mut request);
        Ok(request)
    };
    let requests: Vec<_> = jobs.into_iter().enumerate().map(understand).collect();
    if by_item && requests.iter().all(Result::is_ok) {
        // No item was at fault after all: a fault behind the first one is the body's.
        extract::check(bytes, BATCH_DEPTH)?;
    }
    Ok((requests, continue_on_conflict.unwrap_or(false)))
}
