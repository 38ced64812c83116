//! `POST /v1/worker/reserve`: workers get jobs.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::duration::Millis;
use crate::http::App;
use crate::http::auth::{By, Work};
use crate::http::examples;
use crate::http::extract::{SMALL, Wire};
use crate::http::problem::{self, Code, Problem, answers};
use crate::http::wire::JobBody;
use crate::job::{AppId, JobId};
use crate::settings::{duration_of, is_name};
use crate::store::{Error, FullJob, Shape, Wish};
use crate::work::Request;

const LEASE_DEFAULT: Millis = Millis(30_000);
const LEASE_MIN: Millis = Millis(1_000);
const LEASE_MAX: Millis = Millis(24 * 3_600_000);
const WAIT_MAX: Millis = Millis(60_000);
const MAX_JOBS: i64 = 1_000;
const QUEUES_MAX: usize = 100;
const NAMES_MAX: usize = 1_000;
const LABEL_BYTES_MAX: usize = 256;

answers!(ReserveProblems: InvalidJson, InvalidRequest, InvalidDuration, InvalidPayload, Unauthorized, Forbidden,
    PayloadTooLarge, UnsupportedMediaType, Internal, Overloaded, StoreUnavailable, ShuttingDown);

/// What a worker can do.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = Reserve)]
pub struct ReserveBody {
    /// Where to look; `default` where none is given.
    #[schema(example = json!(["default"]), min_items = 1, max_items = 100)]
    queues: Option<Vec<String>>,
    /// Job names to take; any where none is given.
    #[schema(min_items = 1, max_items = 1000)]
    names: Option<Vec<String>>,
    /// Who asks, for people: at most 256 bytes without control characters.
    #[schema(example = "host-1", min_length = 1, max_length = 256)]
    worker: Option<String>,
    /// How many jobs to take at most: 1 where nothing is given.
    #[schema(minimum = 1, maximum = 1000)]
    max_jobs: Option<i64>,
    /// For how long the jobs are the worker's without a heartbeat: a duration from 1s to 24 hours, `30s` where
    /// none is given.
    #[schema(example = "30s")]
    lease: Option<String>,
    /// How long to wait for a job: a duration up to 60s; not at all where none is given.
    #[schema(example = "20s")]
    wait: Option<String>,
    /// Makes the request safe to repeat: while its leases live, the same jobs come back, with new tokens.
    #[schema(min_length = 1, max_length = 256)]
    reserve_id: Option<String>,
}

/// Jobs for a worker.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = Reservation)]
pub struct ReservationBody {
    jobs: Vec<LeasedJobBody>,
}

/// A job and the right to it.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = LeasedJob)]
pub struct LeasedJobBody {
    #[serde(flatten)]
    job: JobBody,
    lease: LeaseBody,
}

/// The right to a job, for a time.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = Lease)]
pub struct LeaseBody {
    /// Proves the lease in every call. Nobody else sees it.
    token: Uuid,
    expires_at: DateTime<Utc>,
}

/// Reserve jobs
///
/// By priority, then start time, then order of dispatch. Waits for the first job if asked to. Each job that is
/// given out counts an attempt.
#[utoipa::path(
    post, path = "/v1/worker/reserve", operation_id = "reserve", tag = "workers",
    request_body(content = Option<ReserveBody>, example = json!({
        "queues": ["default"], "worker": "host-1", "max_jobs": 10, "lease": "30s", "wait": "20s"
    })),
    responses((status = 200, description = "The jobs, or none", body = ReservationBody,
        example = json!(examples::reservation())), ReserveProblems)
)]
pub(super) async fn reserve(
    State(app): State<App>,
    by: By<Work>,
    Wire(body): Wire<ReserveBody, SMALL>,
) -> Result<Response, Problem> {
    let request = request(by.app, by.caller.token_id.clone(), body)?;
    if let Some(allowed) = &by.caller.queues {
        within(allowed, &request.shape.queues)?;
    }
    let jobs = app.reserver.reserve(request).await?;
    let leases: Vec<(JobId, Uuid)> = jobs
        .iter()
        .filter_map(|full| full.lease.map(|(token, _)| (full.job.id, token)))
        .collect();
    let body = jobs.into_iter().map(leased).collect::<Result<_, _>>()?;
    let text = serde_json::to_vec(&ReservationBody { jobs: body })
        .map_err(|error| problem::internal().because(error.to_string()))?;
    let unheard = Unheard {
        reserver: app.reserver.clone(),
        app: by.app,
        leases,
        text: Some(text.into()),
    };
    let json = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, json)], Body::new(unheard)).into_response())
}

fn leased(full: FullJob) -> Result<LeasedJobBody, Error> {
    let missing = || Error::Inconsistent {
        table: "jobs",
        column: "lease_token",
        problem: "a job that was just reserved has no lease".into(),
    };
    let (token, expires_at) = full.lease.ok_or_else(missing)?;
    Ok(LeasedJobBody {
        job: JobBody::whole(full)?,
        lease: LeaseBody { token, expires_at },
    })
}

/// An answer whose jobs are given back if nobody takes it.
struct Unheard {
    reserver: crate::work::Reserver,
    app: AppId,
    leases: Vec<(JobId, Uuid)>,
    text: Option<Bytes>,
}

impl HttpBody for Unheard {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        self.leases.clear();
        Poll::Ready(self.text.take().map(|text| Ok(http_body::Frame::data(text))))
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        let leases = std::mem::take(&mut self.leases);
        if !leases.is_empty() {
            self.reserver.give_back(self.app, leases);
        }
    }
}

/// Refuses queues that are not the token's: a worker that silently looked at fewer would seem to be idle.
fn within(allowed: &[String], queues: &[String]) -> Result<(), Problem> {
    let Some(other) = queues.iter().find(|queue| !allowed.contains(queue)) else {
        return Ok(());
    };
    let allowed = allowed.join(", ");
    let detail = format!("this token may not reserve in the queue \"{other}\", only in these: {allowed}");
    Err(Problem::new(Code::Forbidden, detail).at("/queues"))
}

fn request(app: AppId, token_id: Option<String>, body: ReserveBody) -> Result<Request, Problem> {
    let ReserveBody {
        queues,
        names,
        worker,
        max_jobs,
        lease,
        wait,
        reserve_id,
    } = body;
    let queues = sorted_names("queues", queues.unwrap_or_else(|| vec!["default".into()]), QUEUES_MAX)?;
    let names = names.map(|names| sorted_names("names", names, NAMES_MAX)).transpose()?;
    let invalid = |pointer: &str, detail: &str| Problem::new(Code::InvalidRequest, detail).at(pointer);
    for (pointer, label) in [("/worker", &worker), ("/reserve_id", &reserve_id)] {
        let fits = |label: &String| (1..=LABEL_BYTES_MAX).contains(&label.len()) && !label.contains(char::is_control);
        if label.as_ref().is_some_and(|label| !fits(label)) {
            return Err(invalid(pointer, "this is 1 to 256 bytes without control characters"));
        }
    }
    let jobs = match max_jobs {
        None => 1,
        Some(jobs @ 1..=MAX_JOBS) => jobs as usize,
        Some(_) => return Err(invalid("/max_jobs", "max_jobs is a whole number from 1 to 1000")),
    };
    let lease = lease_of(lease)?;
    let wait = wait
        .map(|text| duration_of("/wait", &text, Millis(0), WAIT_MAX))
        .transpose()?;
    Ok(Request {
        shape: Shape { app, queues, names },
        wish: Wish {
            worker,
            jobs,
            lease,
            reserve_id,
            token_id,
        },
        wait: Duration::from_millis(wait.map_or(0, |Millis(millis)| millis)),
    })
}

pub(super) fn lease_of(lease: Option<String>) -> Result<Millis, Problem> {
    match lease {
        None => Ok(LEASE_DEFAULT),
        Some(text) => Ok(duration_of("/lease", &text, LEASE_MIN, LEASE_MAX)?),
    }
}

/// Sorted and without doubles, so that workers that look at the same queues stand in one line.
fn sorted_names(member: &str, mut names: Vec<String>, most: usize) -> Result<Vec<String>, Problem> {
    let invalid = |pointer: String, detail: String| Problem::new(Code::InvalidRequest, detail).at(pointer);
    if names.is_empty() || names.len() > most {
        return Err(invalid(
            format!("/{member}"),
            format!("{member} has 1 to {most} members"),
        ));
    }
    if let Some(index) = names.iter().position(|name| !is_name(name)) {
        let detail = "a queue or job name is 1 to 128 of A-Z a-z 0-9 . _ : -";
        return Err(invalid(format!("/{member}/{index}"), detail.into()));
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}
