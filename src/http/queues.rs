//! Queues: what is in them, and whether they give out jobs.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::auth::{Admin, By, Read};
use crate::http::extract::{PathName, SMALL, Wire};
use crate::http::problem::{Problem, answers};
use crate::http::{App, JsonBody};
use crate::job;
use crate::store::QueueView;
use crate::wakeups::News;

answers!(ListProblems: Unauthorized, Forbidden, Internal, StoreUnavailable);
answers!(PauseProblems: InvalidJson, InvalidRequest, InvalidPayload, Unauthorized, Forbidden, PayloadTooLarge,
    UnsupportedMediaType, Internal, StoreUnavailable);

/// Every queue that has jobs, or is paused.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = QueueList)]
pub struct QueueListBody {
    queues: Vec<QueueBody>,
}

/// A queue.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = Queue)]
pub struct QueueBody {
    #[schema(example = "default")]
    queue: String,
    /// Whether it gives out no jobs. It takes dispatches all the same.
    paused: bool,
    /// Jobs by state, for every state.
    counts: BTreeMap<String, i64>,
    /// For how many seconds the oldest job that is due has waited; null when none is.
    oldest_pending_seconds: Option<f64>,
}

/// List queues
#[utoipa::path(
    get, path = "/v1/queues", operation_id = "listQueues", tag = "queues",
    responses((status = 200, description = "Every queue that has jobs, or is paused", body = QueueListBody,
        example = json!({"queues": [{"queue": "default", "paused": false, "counts": {"pending": 3, "reserved": 0,
            "running": 1, "retrying": 0, "succeeded": 120, "failed": 2, "cancelled": 0},
            "oldest_pending_seconds": 0.25}]})), ListProblems)
)]
pub(super) async fn list(State(app): State<App>, by: By<Read>) -> Result<Response, Problem> {
    let queues = app.store.queues(by.app).await?.into_iter().map(|view| {
        let QueueView {
            queue,
            paused,
            counts,
            oldest_pending_seconds,
        } = view;
        let count = |state: job::State| {
            (
                state.as_str().to_owned(),
                counts.get(state.as_str()).copied().unwrap_or(0),
            )
        };
        QueueBody {
            queue,
            paused,
            counts: job::State::ALL.into_iter().map(count).collect(),
            oldest_pending_seconds,
        }
    });
    Ok(JsonBody(QueueListBody {
        queues: queues.collect(),
    })
    .into_response())
}

/// Nothing is asked.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = Nothing)]
pub struct NothingBody {}

/// Whether a queue is paused.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = QueuePause)]
pub struct PauseBody {
    #[schema(example = "default")]
    queue: String,
    paused: bool,
}

/// Pause a queue
///
/// It takes dispatches and gives out no jobs until it is resumed. Jobs that workers have go on.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/pause", operation_id = "pauseQueue", tag = "queues",
    params(("queue" = String, Path, pattern = "^[A-Za-z0-9._:-]{1,128}$", description = "The queue's name")),
    request_body(content = Option<NothingBody>, example = json!({})),
    responses((status = 200, description = "It is paused", body = PauseBody,
        example = json!({"queue": "default", "paused": true})), PauseProblems)
)]
pub(super) async fn pause(
    State(app): State<App>,
    by: By<Admin>,
    PathName(queue): PathName,
    Wire(NothingBody {}): Wire<NothingBody, SMALL>,
) -> Result<Response, Problem> {
    app.store.pause(by.app, &queue).await?;
    Ok(JsonBody(PauseBody { queue, paused: true }).into_response())
}

/// Resume a queue
#[utoipa::path(
    post, path = "/v1/queues/{queue}/resume", operation_id = "resumeQueue", tag = "queues",
    params(("queue" = String, Path, pattern = "^[A-Za-z0-9._:-]{1,128}$", description = "The queue's name")),
    request_body(content = Option<NothingBody>, example = json!({})),
    responses((status = 200, description = "It gives out jobs", body = PauseBody,
        example = json!({"queue": "default", "paused": false})), PauseProblems)
)]
pub(super) async fn resume(
    State(app): State<App>,
    by: By<Admin>,
    PathName(queue): PathName,
    Wire(NothingBody {}): Wire<NothingBody, SMALL>,
) -> Result<Response, Problem> {
    app.store.resume(by.app, &queue).await?;
    app.wakeups.tell([News::Queue(by.app, queue.clone())]);
    Ok(JsonBody(PauseBody { queue, paused: false }).into_response())
}
