//! `runs.retrieve`, `runs.cancel` and `runs.replay`.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use crate::dispatch::prepare::Request;
use crate::http::auth::{Admin, Dispatch, Read};
use crate::http::extract::{OPTIONAL, SMALL};
use crate::http::problem::Code;
use crate::http::{App, JsonBody};
use crate::job::{AppId, Retry};
use crate::life::{Call, Refused};
use crate::settings::RetryRequest;
use crate::store::{FullJob, JobView};
use crate::trigger_dev::options::{BATCH_MEMBER, ReplayBody};
use crate::trigger_dev::refusal::{Caller, Json, Refusal, RequestKey, RunId, run_not_found};
use crate::trigger_dev::run::{IdBody, RetrievedBody, metadata_of};
use crate::trigger_dev::trigger::{dispatched, found_by};
use crate::uniqueness::decide::Match;
use crate::work;

/// How many ancestors of a run are looked up.
const ANCESTORS_MAX: usize = 32;

/// Shows a run.
pub(super) async fn retrieve(
    State(app): State<App>,
    Caller(by): Caller<Read>,
    RunId(id): RunId,
) -> Result<Response, Refusal> {
    let full = app.store.job(by.app, id).await?.ok_or_else(run_not_found)?;
    let ancestors = ancestors(&app, by.app, &full).await?;
    let run = RetrievedBody::of(full, &ancestors, app.dispatcher.clock().now())?;
    Ok(JsonBody(run).into_response())
}

/// From the parent of a job upwards, as far as they are still there.
async fn ancestors(app: &App, id: AppId, full: &FullJob) -> Result<Vec<FullJob>, Refusal> {
    let mut ancestors = Vec::new();
    let mut next = full.job.parent;
    while let Some(parent) = next.filter(|_| ancestors.len() < ANCESTORS_MAX) {
        let Some(full) = app.store.job(id, parent.job_id).await? else {
            break;
        };
        next = full.job.parent;
        ancestors.push(full);
    }
    Ok(ancestors)
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

/// Cancels a run, or asks its worker to. One that has ended is left as it is.
pub(super) async fn cancel(
    State(app): State<App>,
    Caller(by): Caller<Admin>,
    RunId(id): RunId,
    Json(Nothing {}): Json<Nothing, SMALL>,
) -> Result<Response, Refusal> {
    match app.calls.call(by.app, id, Call::Cancel { force: false }).await {
        Ok(_) | Err(work::Failure::Refused(Refused::Finished(_))) => Ok(JsonBody(IdBody::from(id)).into_response()),
        Err(failure) => Err(failure.into()),
    }
}

/// Starts a new run with the payload and options of another.
pub(super) async fn replay(
    State(app): State<App>,
    Caller(by): Caller<Dispatch>,
    RunId(id): RunId,
    RequestKey(key): RequestKey,
    Json(body): Json<ReplayBody, OPTIONAL>,
) -> Result<Response, Refusal> {
    if !by.reads() {
        let detail = "this needs a token with the rights \"dispatch\" and \"read\" (or \"admin\")";
        return Err(Refusal::new(Code::Forbidden, detail));
    }
    let full = app.store.job(by.app, id).await?.ok_or_else(run_not_found)?;
    let has_key = body.has_key();
    let mut request = again(&app, by.app, &full.job)?;
    body.apply(&mut request, key.clone())?;
    let receipt = dispatched(&app, by.app, request).await?;
    match receipt.matched {
        Some(Match::Active) => Err(Refusal::new(
            Code::ActiveKeyHeld,
            format!(
                "run {} is live and has this run's active key: wait for it to end, or cancel it",
                receipt.job_id
            ),
        )),
        Some(Match::Window | Match::Both) if !has_key && !found_by(&receipt, key.as_deref()) => {
            let detail = format!(
                "the window key that the task declares still leads to run {}: reset it, and replay then",
                receipt.job_id
            );
            Err(Refusal::new(Code::UniquenessConflict, detail))
        }
        None | Some(Match::Window | Match::Both) => Ok(JsonBody(IdBody::from(receipt.job_id)).into_response()),
    }
}

/// The dispatch that asks for the same job once more, from now on and without a parent.
fn again(app: &App, id: AppId, job: &JobView) -> Result<Request, Refusal> {
    let Retry {
        max_attempts,
        backoff,
        initial,
        factor,
        max,
        jitter,
    } = job.policy.retry;
    let mut metadata = metadata_of(job)?;
    metadata.remove(BATCH_MEMBER);
    let types = app.types.of(id);
    let declared = types.compiled(&job.name);
    // A declared key is made of the payload, which may be another one.
    let declares_active = declared.is_some_and(|kind| kind.definition().unique_while_active.is_some());
    Ok(Request {
        name: job.name.clone(),
        payload: Some(job.payload.as_str().into()),
        queue: Some(job.queue.clone()),
        priority: Some(job.priority.into()),
        active_key: job.active_key.clone().filter(|_| !declares_active),
        resource_keys: job.resource_keys.clone(),
        metadata: metadata.into_iter().collect(),
        retry: RetryRequest {
            max_attempts: Some(max_attempts.into()),
            backoff: Some(backoff.as_str().into()),
            initial: Some(initial.to_string()),
            factor: Some(factor),
            max: Some(max.to_string()),
            jitter: Some(jitter),
        },
        timeout: job.policy.timeout.map(|timeout| timeout.to_string()),
        retention: Some(job.retention.to_string()),
        ..Request::default()
    })
}
