//! `POST /v1/jobs` and `POST /v1/jobs/preview`: one dispatch.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::dispatch::prepare::{self, Prepared, Request};
use crate::dispatch::{Draft, Failure, Parents, PreparedUnit, prepare_unit, preview as preview_unit};
use crate::http::auth::{By, Dispatch};
use crate::http::examples;
use crate::http::extract::{Room, SINGLE, Wire};
use crate::http::idempotency::IdempotencyKey;
use crate::http::prefer::PreferWait;
use crate::http::problem::{self, Problem, answers};
use crate::http::receipt::{Disposition, ReceiptBody};
use crate::http::wire::{DispatchBody, JobBody, RetryView};
use crate::http::{App, JsonBody};
use crate::job::{AppId, JobId};
use crate::settings::Invalid;
use crate::uniqueness::holders::UnitOutcome;
use crate::uniqueness::receipt::Receipt;

answers!(DispatchProblems: InvalidJson, InvalidRequest, InvalidKey, InvalidWindow, InvalidDuration, InvalidPayload,
    Unauthorized, Forbidden, UniquenessConflict, UniquenessCompositionConflict, PayloadTooLarge, UnsupportedMediaType,
    UniquenessRequired, UniquenessKeyMismatch, KeySelectorFailed, IdempotencyScopeInvalid, Internal, Overloaded, StoreUnavailable, ShuttingDown);
// It waits in no queue.
answers!(PreviewProblems: InvalidJson, InvalidRequest, InvalidKey, InvalidWindow, InvalidDuration, InvalidPayload,
    Unauthorized, Forbidden, UniquenessConflict, UniquenessCompositionConflict, PayloadTooLarge, UnsupportedMediaType,
    UniquenessRequired, UniquenessKeyMismatch, KeySelectorFailed, IdempotencyScopeInvalid, Internal, StoreUnavailable);

/// Dispatch a job
///
/// Creates the job, or gives back the one that a key of the dispatch leads to. Answered once it is stored.
#[utoipa::path(
    post, path = "/v1/jobs", operation_id = "dispatch", tag = "dispatch",
    params(("Idempotency-Key" = Option<String>, Header, description = "An idempotency key, quoted or bare"),
        ("Prefer" = Option<String>, Header, description = "`wait=N`: answer when the job has finished, or after N seconds, at most 60")),
    request_body(content = DispatchBody, example = json!({
        "name": "place-order", "payload": {"order": 42},
        "uniqueness": {"active_key": "order:42", "window_key": "req-1", "window": "24h"}
    })),
    responses(
        (status = 201, description = "The job was created", body = DispatchedBody,
            headers(("Location" = String, description = "The job: `/v1/jobs/ID`")), example = json!(examples::created())),
        (status = 200, description = "A job that was there is reused", body = DispatchedBody,
            headers(("Location" = String, description = "The job: `/v1/jobs/ID`")), example = json!(examples::reused())),
        DispatchProblems,
    )
)]
pub(super) async fn dispatch(
    State(app): State<App>,
    by: By<Dispatch>,
    prefer: PreferWait,
    key: IdempotencyKey,
    _: Room,
    Wire(body): Wire<DispatchBody, SINGLE>,
) -> Result<Response, Problem> {
    let unit = single(&app, by.app, key, body).await?;
    let receipt = only(app.dispatcher.dispatch(unit).await?)?;
    let location = format!("/v1/jobs/{}", receipt.job_id);
    let job = match prefer {
        // The dispatch is stored: its receipt goes out, whatever becomes of the wait. In a box, as whatever is rare here:
        // the room for it would be set aside and cleared for every dispatch.
        PreferWait(Some(wait)) if by.reads() => {
            let waited = Box::pin(waited(&app, by.app, receipt.job_id, wait));
            waited.await.unwrap_or_default()
        }
        _ => None,
    };
    let receipt = ReceiptBody::from(receipt);
    let status = match receipt.disposition() {
        Disposition::Created => StatusCode::CREATED,
        Disposition::Reused => StatusCode::OK,
    };
    let location = [(header::LOCATION, location)];
    Ok(match job {
        // The same members; serde is slow where one struct is flattened into another.
        None => (status, location, JsonBody(receipt)).into_response(),
        Some(job) => {
            let job = Some(job);
            prefer.applied((status, location, JsonBody(DispatchedBody { receipt, job })).into_response())
        }
    })
}

/// The job, once it has finished or the wait is over. `None` when it is no longer there.
async fn waited(app: &App, id: AppId, job: JobId, wait: Duration) -> Result<Option<JobBody>, Problem> {
    app.finished(id, job, wait).await?;
    Ok(app.store.job(id, job).await?.map(JobBody::whole).transpose()?)
}

/// A receipt, with the job if it was waited for.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = Dispatched)]
pub struct DispatchedBody {
    #[serde(flatten)]
    receipt: ReceiptBody,
    /// With `Prefer: wait=N`: the job as it was when it had finished, or when the wait was over.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<JobBody>,
}

/// What a dispatch would do, and what it means once defaults are filled in.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = Preview)]
pub struct PreviewBody {
    #[serde(flatten)]
    receipt: ReceiptBody,
    resolved: Resolved,
}

/// The settings that the dispatch leads to.
#[derive(Serialize, ToSchema, Debug)]
pub struct Resolved {
    #[schema(example = "welcome:7")]
    active_key: Option<String>,
    #[schema(example = "req-1")]
    window_key: Option<String>,
    #[schema(example = "default")]
    queue: String,
    priority: i16,
    retry: RetryView,
    #[schema(example = "5m")]
    timeout: Option<String>,
    #[schema(example = "7d")]
    retention: String,
}

impl From<&Prepared> for Resolved {
    fn from(Prepared { ask, job, orphan: _ }: &Prepared) -> Resolved {
        Resolved {
            active_key: ask.active.as_ref().map(|key| key.key.text.as_str().into()),
            window_key: ask.window.as_ref().map(|window| window.key.key.text.as_str().into()),
            queue: job.queue.clone(),
            priority: job.priority,
            retry: job.policy.retry.into(),
            timeout: job.policy.timeout.map(|timeout| timeout.to_string()),
            retention: job.retention.to_string(),
        }
    }
}

/// Preview a dispatch
///
/// Answers what the same dispatch would do now, and writes nothing. Another dispatch may come before it.
#[utoipa::path(
    post, path = "/v1/jobs/preview", operation_id = "preview", tag = "dispatch",
    params(("Idempotency-Key" = Option<String>, Header, description = "An idempotency key, quoted or bare")),
    request_body(content = DispatchBody, example = json!({
        "name": "place-order", "uniqueness": {"active_key": "order:42"}
    })),
    responses(
        (status = 200, description = "The receipt it would get", body = PreviewBody, example = json!(examples::preview())),
        PreviewProblems,
    )
)]
pub(super) async fn preview(
    State(app): State<App>,
    by: By<Dispatch>,
    key: IdempotencyKey,
    Wire(body): Wire<DispatchBody, SINGLE>,
) -> Result<Response, Problem> {
    // No transaction tells it whether the types have changed.
    app.types.newer(by.app, app.types.of(by.app).version()).await?;
    let unit = single(&app, by.app, key, body).await?;
    let receipt = only(preview_unit(&app.store, &unit).await?)?;
    let resolved = unit.items.first().map(Resolved::from).ok_or_else(problem::internal)?;
    let receipt = ReceiptBody::from(receipt).previewed();
    Ok(JsonBody(PreviewBody { receipt, resolved }).into_response())
}

async fn single(app: &App, id: AppId, key: IdempotencyKey, body: DispatchBody) -> Result<PreparedUnit, Problem> {
    let mut request = Request::from(body);
    key.give(&mut request)?;
    let faults = match unit(app, id, vec![request], false).await? {
        Ok(unit) => return Ok(unit),
        Err(faults) => faults,
    };
    Err(Failure::Invalid(faults).into())
}

/// Prepares dispatches, or says of each that is invalid what is wrong with it.
pub async fn unit(
    app: &App,
    id: AppId,
    requests: Vec<Request>,
    continue_on_conflict: bool,
) -> Result<Result<PreparedUnit, Vec<(usize, Invalid)>>, Problem> {
    let draft = Draft {
        app: id,
        parents: parents(app, id, requests.iter()).await?,
        requests,
        continue_on_conflict,
        payload_bytes_max: app.limits.payload_bytes,
    };
    Ok(prepare_unit(&app.store, &app.types, app.dispatcher.clock(), draft).await?)
}

/// The parents that dispatches name. What is no id is left to the preparation, which says so.
async fn parents<'a>(app: &App, id: AppId, requests: impl Iterator<Item = &'a Request>) -> Result<Parents, Problem> {
    let named = requests.filter_map(|request| prepare::job_id_of(&request.parent.as_ref()?.0));
    let named: BTreeSet<JobId> = named.collect();
    if named.is_empty() {
        return Ok(Parents::default());
    }
    let named: Vec<JobId> = named.into_iter().collect();
    Ok(Parents(Box::pin(app.store.attempts(id, &named)).await?))
}

/// The one result of a unit of one.
pub fn only(outcome: UnitOutcome) -> Result<Receipt, Problem> {
    match outcome {
        UnitOutcome::Applied(mut results) => {
            let result = results.pop().ok_or_else(problem::internal)?;
            result.map_err(|refusal| Problem::refused(&refusal, true))
        }
        UnitOutcome::Refused { refusal, .. } => Err(Problem::refused(&refusal, true)),
    }
}
