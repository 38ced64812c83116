//! `POST /v1/jobs` and `POST /v1/jobs/preview`: one dispatch.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::dispatch::prepare::{self, Prepared};
use crate::dispatch::{PreparedUnit, preview as preview_unit};
use crate::http::auth::{By, Dispatch};
use crate::http::examples;
use crate::http::extract::{SINGLE, Wire};
use crate::http::prefer::PreferWait;
use crate::http::problem::{self, Code, Problem, answers};
use crate::http::wire::{DispatchBody, Disposition, JobBody, ReceiptBody, RetryView};
use crate::http::{App, JsonBody};
use crate::job::{AppId, JobId};
use crate::uniqueness::holders::UnitOutcome;
use crate::uniqueness::receipt::Receipt;

answers!(DispatchProblems: InvalidJson, InvalidRequest, InvalidKey, InvalidWindow, InvalidDuration, InvalidPayload,
    Unauthorized, Forbidden, UniquenessConflict, UniquenessCompositionConflict, PayloadTooLarge, UnsupportedMediaType,
    IdempotencyScopeInvalid, Internal, Overloaded, StoreUnavailable, ShuttingDown);
// It waits in no queue.
answers!(PreviewProblems: InvalidJson, InvalidRequest, InvalidKey, InvalidWindow, InvalidDuration, InvalidPayload,
    Unauthorized, Forbidden, UniquenessConflict, UniquenessCompositionConflict, PayloadTooLarge, UnsupportedMediaType,
    IdempotencyScopeInvalid, Internal, StoreUnavailable);

/// Dispatch a job
///
/// Creates the job, or gives back the one that a key of the dispatch leads to. Answered once it is stored.
#[utoipa::path(
    post, path = "/v1/jobs", operation_id = "dispatch", tag = "dispatch",
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
    headers: HeaderMap,
    Wire(body): Wire<DispatchBody, SINGLE>,
) -> Result<Response, Problem> {
    let unit = single(&app, by.app, &headers, body).await?;
    let receipt = only(app.dispatcher.dispatch(unit).await?)?;
    let location = format!("/v1/jobs/{}", receipt.job_id);
    let job = match prefer {
        PreferWait(Some(wait)) if by.reads => waited(&app, by.app, receipt.job_id, wait).await?,
        _ => None,
    };
    let body = DispatchedBody {
        receipt: receipt.into(),
        job,
    };
    let status = match body.receipt.disposition() {
        Disposition::Created => StatusCode::CREATED,
        Disposition::Reused => StatusCode::OK,
    };
    let waited = body.job.is_some();
    let response = (status, [(header::LOCATION, location)], JsonBody(body)).into_response();
    Ok(if waited { prefer.applied(response) } else { response })
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
    fn from(Prepared { ask, job }: &Prepared) -> Resolved {
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
    headers: HeaderMap,
    Wire(body): Wire<DispatchBody, SINGLE>,
) -> Result<Response, Problem> {
    let unit = single(&app, by.app, &headers, body).await?;
    let receipt = only(preview_unit(&app.store, &unit).await?)?;
    let resolved = unit.items.first().map(Resolved::from).ok_or_else(problem::internal)?;
    let receipt = ReceiptBody::from(receipt).previewed();
    Ok(JsonBody(PreviewBody { receipt, resolved }).into_response())
}

async fn single(app: &App, id: AppId, headers: &HeaderMap, body: DispatchBody) -> Result<PreparedUnit, Problem> {
    refuse_idempotency_key(headers)?;
    let item = prepare::prepare(body.into(), app.limits.payload_bytes, app.dispatcher.clock().now())?;
    if let Some(parent) = item.job.parent
        && !app.store.job_exists(id, parent.job_id).await?
    {
        return Err(prepare::unknown_parent().into());
    }
    Ok(PreparedUnit {
        app: id,
        items: vec![item],
        continue_on_conflict: false,
    })
}

/// A header that would make the dispatch unique must not be ignored in silence.
pub(super) fn refuse_idempotency_key(headers: &HeaderMap) -> Result<(), Problem> {
    if headers.contains_key("idempotency-key") {
        let detail = "this version does not take the header Idempotency-Key: give uniqueness.window_key and \
                      uniqueness.window instead";
        return Err(Problem::new(Code::InvalidRequest, detail));
    }
    Ok(())
}

/// The one result of a unit of one.
fn only(outcome: UnitOutcome) -> Result<Receipt, Problem> {
    match outcome {
        UnitOutcome::Applied(mut results) => {
            let result = results.pop().ok_or_else(problem::internal)?;
            result.map_err(|refusal| Problem::refused(&refusal, true))
        }
        UnitOutcome::Refused { refusal, .. } => Err(Problem::refused(&refusal, true)),
    }
}
