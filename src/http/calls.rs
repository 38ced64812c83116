//! `/v1/worker/{job_id}/…` and `/v1/worker/finish`: workers say that they are alive, and how it ended.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::dispatch::prepare::job_id_of;
use crate::duration::Millis;
use crate::http::auth::{By, Work};
use crate::http::examples;
use crate::http::extract::{BATCH, Id, SINGLE, SMALL, Wire, job_not_found};
use crate::http::object::{object, objects};
use crate::http::problem::{self, Code, Problem, ProblemBody, answers};
use crate::http::wire::{JobBody, StateBody};
use crate::http::worker::lease_of;
use crate::http::{App, JsonBody};
use crate::job::{AppId, JobId};
use crate::life::{Call, Lease};
use crate::settings::duration_of;
use crate::work::Answer;

const RETRY_IN_MAX: Millis = Millis(3_650 * 24 * 3_600_000);
const RESULT_BYTES_MAX: usize = 1 << 20;
const ERROR_BYTES_MAX: usize = 64 << 10;
const FINISH_MAX: usize = 1_000;

answers!(CallProblems: InvalidJson, InvalidRequest, InvalidPayload, Unauthorized, Forbidden, JobNotFound, LeaseLost,
    PayloadTooLarge, UnsupportedMediaType, Internal, Overloaded, StoreUnavailable, ShuttingDown);
answers!(TimedCallProblems: InvalidJson, InvalidRequest, InvalidDuration, InvalidPayload, Unauthorized, Forbidden,
    JobNotFound, LeaseLost, PayloadTooLarge, UnsupportedMediaType, Internal, Overloaded, StoreUnavailable,
    ShuttingDown);
// What goes wrong with one job is in its result.
answers!(FinishProblems: InvalidJson, InvalidRequest, InvalidDuration, InvalidPayload, Unauthorized, Forbidden,
    PayloadTooLarge, BatchTooLarge, UnsupportedMediaType, Internal, StoreUnavailable);

/// A call that needs nothing but the lease.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = LeaseCall)]
pub struct TokenBody {
    /// The token of the job's lease.
    #[schema(value_type = Uuid)]
    lease_token: String,
}

/// A sign of life.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = Heartbeat)]
pub struct HeartbeatBody {
    #[schema(value_type = Uuid)]
    lease_token: String,
    /// For how long from now: a duration from 1s to 24 hours, `30s` where none is given. It never shortens the lease.
    #[schema(example = "30s")]
    lease: Option<String>,
}

/// That it worked.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = Succeed)]
pub struct SucceedBody {
    #[schema(value_type = Uuid)]
    lease_token: String,
    /// Any JSON value of at most 1 MiB, given back to the letter.
    #[serde(default)]
    #[schema(value_type = serde_json::Value)]
    result: Option<Box<RawValue>>,
}

/// That it did not.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = Fail)]
pub struct FailBody {
    #[schema(value_type = Uuid)]
    lease_token: String,
    #[serde(default, deserialize_with = "object")]
    error: Option<ErrorBody>,
    /// Whether another attempt may be made, as far as there are some left. True where nothing is given.
    retry: Option<bool>,
    /// How long to wait before it, in place of the job's backoff: a duration up to 3650 days.
    #[schema(example = "30s")]
    retry_in: Option<String>,
}

/// What went wrong: at most 64 KiB in all.
#[derive(Serialize, Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = JobError)]
pub struct ErrorBody {
    #[schema(example = "connection refused")]
    message: String,
    #[serde(rename = "type")]
    #[schema(example = "ConnectionError")]
    kind: Option<String>,
    /// Any JSON value, given back to the letter.
    #[serde(default)]
    #[schema(value_type = serde_json::Value)]
    details: Option<Box<RawValue>>,
}

/// Start a job
///
/// Optional before an end. Its timeout counts from here.
#[utoipa::path(
    post, path = "/v1/worker/{job_id}/start", operation_id = "startJob", tag = "workers",
    params(("job_id" = Uuid, Path, description = "The job's id")),
    request_body(content = TokenBody, example = json!({"lease_token": "0b2f1f0e-5b7e-4a57-9d3a-6f0b4f6f3d11"})),
    responses((status = 200, description = "The job as it is now", body = JobBody, example = json!(examples::job())), CallProblems)
)]
pub(super) async fn start(
    State(app): State<App>,
    by: By<Work>,
    Id(id): Id,
    Wire(TokenBody { lease_token }): Wire<TokenBody, SMALL>,
) -> Result<Response, Problem> {
    call(
        &app,
        by.app,
        id,
        Call::Start {
            token: token(&lease_token)?,
        },
    )
    .await
}

/// How long the lease lasts now.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = Beat)]
pub struct BeatBody {
    expires_at: DateTime<Utc>,
    /// Whether the worker is to stop, and let go of the job.
    cancel_requested: bool,
}

/// Keep a job
#[utoipa::path(
    post, path = "/v1/worker/{job_id}/heartbeat", operation_id = "heartbeat", tag = "workers",
    params(("job_id" = Uuid, Path, description = "The job's id")),
    request_body(content = HeartbeatBody, example = json!({
        "lease_token": "0b2f1f0e-5b7e-4a57-9d3a-6f0b4f6f3d11", "lease": "30s"
    })),
    responses((status = 200, description = "The lease as it is now", body = BeatBody,
        example = json!({"expires_at": "2027-01-01T09:00:30.123456Z", "cancel_requested": false})), TimedCallProblems)
)]
pub(super) async fn heartbeat(
    State(app): State<App>,
    by: By<Work>,
    Id(id): Id,
    Wire(HeartbeatBody { lease_token, lease }): Wire<HeartbeatBody, SMALL>,
) -> Result<Response, Problem> {
    let heartbeat = Call::Heartbeat {
        token: token(&lease_token)?,
        lease: lease_of(lease)?,
    };
    let Answer {
        lease,
        cancel_requested,
        ..
    } = app.calls.call(by.app, id, heartbeat).await?;
    let Lease { expires_at, .. } = lease.ok_or_else(problem::internal)?;
    Ok(JsonBody(BeatBody {
        expires_at,
        cancel_requested,
    })
    .into_response())
}

/// Say that a job succeeded
#[utoipa::path(
    post, path = "/v1/worker/{job_id}/succeed", operation_id = "succeedJob", tag = "workers",
    params(("job_id" = Uuid, Path, description = "The job's id")),
    request_body(content = SucceedBody, example = json!({
        "lease_token": "0b2f1f0e-5b7e-4a57-9d3a-6f0b4f6f3d11", "result": {"invoice": 7}
    })),
    responses((status = 200, description = "The job as it is now", body = JobBody, example = json!(examples::job())), CallProblems)
)]
pub(super) async fn succeed(
    State(app): State<App>,
    by: By<Work>,
    Id(id): Id,
    Wire(SucceedBody { lease_token, result }): Wire<SucceedBody, SINGLE>,
) -> Result<Response, Problem> {
    call(
        &app,
        by.app,
        id,
        Call::Succeed {
            token: token(&lease_token)?,
            result: result_of(result)?,
        },
    )
    .await
}

/// Say that a job failed
///
/// It is tried again after its backoff, as far as attempts are left.
#[utoipa::path(
    post, path = "/v1/worker/{job_id}/fail", operation_id = "failJob", tag = "workers",
    params(("job_id" = Uuid, Path, description = "The job's id")),
    request_body(content = FailBody, example = json!({
        "lease_token": "0b2f1f0e-5b7e-4a57-9d3a-6f0b4f6f3d11",
        "error": {"message": "connection refused", "type": "ConnectionError"}, "retry_in": "30s"
    })),
    responses((status = 200, description = "The job as it is now", body = JobBody, example = json!(examples::job())), TimedCallProblems)
)]
pub(super) async fn fail(
    State(app): State<App>,
    by: By<Work>,
    Id(id): Id,
    Wire(body): Wire<FailBody, SINGLE>,
) -> Result<Response, Problem> {
    call(&app, by.app, id, fail_of(body)?).await
}

/// Give a job back
///
/// As if it had not been reserved: the attempt does not count.
#[utoipa::path(
    post, path = "/v1/worker/{job_id}/release", operation_id = "releaseJob", tag = "workers",
    params(("job_id" = Uuid, Path, description = "The job's id")),
    request_body(content = TokenBody, example = json!({"lease_token": "0b2f1f0e-5b7e-4a57-9d3a-6f0b4f6f3d11"})),
    responses((status = 200, description = "The job as it is now", body = JobBody, example = json!(examples::job())), CallProblems)
)]
pub(super) async fn release(
    State(app): State<App>,
    by: By<Work>,
    Id(id): Id,
    Wire(TokenBody { lease_token }): Wire<TokenBody, SMALL>,
) -> Result<Response, Problem> {
    call(
        &app,
        by.app,
        id,
        Call::Release {
            token: token(&lease_token)?,
        },
    )
    .await
}

async fn call(app: &App, id: AppId, job: JobId, call: Call) -> Result<Response, Problem> {
    let full = app.calls.call_and_show(id, job, call).await?;
    Ok(JsonBody(JobBody::whole(full)?).into_response())
}

/// What is no token is nobody's.
fn token(text: &str) -> Result<Uuid, Problem> {
    Uuid::try_parse(text).map_err(|_| problem::lease_lost())
}

fn result_of(result: Option<Box<RawValue>>) -> Result<Option<Box<str>>, Problem> {
    let result: Option<Box<str>> = result.map(Into::into);
    match &result {
        Some(text) if text.len() > RESULT_BYTES_MAX => {
            let detail = format!("a result has at most 1 MiB and this one has {} bytes", text.len());
            Err(Problem::new(Code::PayloadTooLarge, detail).at("/result"))
        }
        _ => Ok(result),
    }
}

fn fail_of(
    FailBody {
        lease_token,
        error,
        retry,
        retry_in,
    }: FailBody,
) -> Result<Call, Problem> {
    let retry_in = retry_in
        .map(|text| duration_of("/retry_in", &text, Millis(0), RETRY_IN_MAX))
        .transpose()?;
    let error = error.unwrap_or_else(|| ErrorBody {
        message: "the worker gave no error".into(),
        kind: None,
        details: None,
    });
    let text = serde_json::to_string(&error).map_err(|error| problem::internal().because(error.to_string()))?;
    if text.len() > ERROR_BYTES_MAX {
        let detail = format!("an error has at most 64 KiB and this one has {} bytes", text.len());
        return Err(Problem::new(Code::PayloadTooLarge, detail).at("/error"));
    }
    let retry = retry.unwrap_or(true);
    Ok(Call::Fail {
        token: token(&lease_token)?,
        error: Some(text.into()),
        retry,
        retry_in,
    })
}

/// Jobs that have ended.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = Finish)]
pub struct FinishBody {
    #[schema(min_items = 1, max_items = 1000)]
    #[serde(deserialize_with = "objects")]
    jobs: Vec<FinishItemBody>,
}

/// How one job ended.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = FinishItem)]
pub struct FinishItemBody {
    /// What is no job's id is answered in the result, as `job_not_found`.
    #[schema(example = "0193a5c4-9f3e-7c11-8000-4a1f6c7d2e90")]
    job_id: String,
    /// What is no token is answered in the result, as `lease_lost`.
    #[schema(example = "0b2f1f0e-5b7e-4a57-9d3a-6f0b4f6f3d11")]
    lease_token: String,
    outcome: OutcomeBody,
    /// With `succeed`.
    #[serde(default)]
    #[schema(value_type = serde_json::Value)]
    result: Option<Box<RawValue>>,
    /// With `fail`.
    #[serde(default, deserialize_with = "object")]
    error: Option<ErrorBody>,
    /// With `fail`.
    retry: Option<bool>,
    /// With `fail`.
    #[schema(example = "30s")]
    retry_in: Option<String>,
}

#[derive(Deserialize, ToSchema, Debug)]
#[serde(rename_all = "snake_case")]
#[schema(as = Outcome)]
pub enum OutcomeBody {
    Succeed,
    Fail,
    Release,
}

/// One result for each job, in input order.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = FinishReceipt)]
pub struct FinishReceiptBody {
    results: Vec<FinishResultBody>,
}

/// The job's state now, or why the call changed nothing.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = FinishResult)]
pub struct FinishResultBody {
    job_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<StateBody>)]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ProblemBody>,
}

/// Finish many jobs
///
/// Each by itself: one that is lost does not keep the others from ending.
#[utoipa::path(
    post, path = "/v1/worker/finish", operation_id = "finishJobs", tag = "workers",
    request_body(content = FinishBody, example = json!({"jobs": [
        {"job_id": "0193a5c4-9f3e-7c11-8000-4a1f6c7d2e90", "lease_token": "0b2f1f0e-5b7e-4a57-9d3a-6f0b4f6f3d11",
         "outcome": "succeed", "result": {"invoice": 7}}
    ]})),
    responses((status = 200, description = "One result for each job", body = FinishReceiptBody, example = json!({"results": [
        {"job_id": "0193a5c4-9f3e-7c11-8000-4a1f6c7d2e90", "state": "succeeded"}]})), FinishProblems)
)]
pub(super) async fn finish(
    State(app): State<App>,
    by: By<Work>,
    Wire(FinishBody { jobs }): Wire<FinishBody, BATCH>,
) -> Result<Response, Problem> {
    if !(1..=FINISH_MAX).contains(&jobs.len()) {
        let detail = format!("1 to {FINISH_MAX} jobs are finished at once, not {}", jobs.len());
        return Err(Problem::new(Code::InvalidRequest, detail).at("/jobs"));
    }
    let items = jobs.into_iter().enumerate().map(|(index, item)| {
        let below = |problem: Problem| problem.below(&format!("/jobs/{index}"));
        finish_of(item).map_err(below)
    });
    let items: Vec<(String, Ending)> = items.collect::<Result<_, _>>()?;
    // All are begun before the first is waited for, so that one transaction ends them.
    let begin = |(job_id, item): (String, Ending)| {
        let promise = item.map(|(job, call)| app.calls.begin(by.app, job, call));
        (job_id, promise)
    };
    let begun: Vec<_> = items.into_iter().map(begin).collect();
    let mut results: Vec<FinishResultBody> = Vec::with_capacity(begun.len());
    for (job_id, promise) in begun {
        let ended = match promise {
            Ok(promise) => promise.kept().await.map_err(Problem::from),
            Err(problem) => Err(problem),
        };
        let (state, error) = match ended {
            Ok(Answer { state, .. }) => (Some(state.as_str()), None),
            Err(problem) => (None, Some(problem.into_body())),
        };
        results.push(FinishResultBody { job_id, state, error });
    }
    Ok(JsonBody(FinishReceiptBody { results }).into_response())
}

/// A call that ends a job, or why it cannot be one.
type Ending = Result<(JobId, Call), Problem>;

/// The outer error is of a request that is wrong; the inner one is this job's alone.
fn finish_of(item: FinishItemBody) -> Result<(String, Ending), Problem> {
    let FinishItemBody {
        job_id,
        lease_token,
        outcome,
        result,
        error,
        retry,
        retry_in,
    } = item;
    let given = [
        ("/result", result.is_some(), matches!(outcome, OutcomeBody::Succeed)),
        ("/error", error.is_some(), matches!(outcome, OutcomeBody::Fail)),
        ("/retry", retry.is_some(), matches!(outcome, OutcomeBody::Fail)),
        ("/retry_in", retry_in.is_some(), matches!(outcome, OutcomeBody::Fail)),
    ];
    if let Some((pointer, ..)) = given.into_iter().find(|(_, given, belongs)| *given && !belongs) {
        let detail = "this member does not go with this outcome: it would be ignored in silence";
        return Err(Problem::new(Code::InvalidRequest, detail).at(pointer));
    }
    let result = result_of(result)?;
    let call = match outcome {
        OutcomeBody::Succeed => token(&lease_token).map(|token| Call::Succeed { token, result }),
        OutcomeBody::Release => token(&lease_token).map(|token| Call::Release { token }),
        OutcomeBody::Fail => match fail_of(FailBody {
            lease_token,
            error,
            retry,
            retry_in,
        }) {
            Err(problem) if problem.code() != Code::LeaseLost => return Err(problem),
            call => call,
        },
    };
    let item = match job_id_of(&job_id) {
        None => Err(job_not_found()),
        Some(id) => call.map(|call| (id, call)),
    };
    Ok((job_id, item))
}
