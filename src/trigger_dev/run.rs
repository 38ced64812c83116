//! A job as the SDK sees it: a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::http::problem;
use crate::job::{Instant, JobId, State};
use crate::store::{FullJob, JobView};
use crate::trigger_dev::batch::is_item_key;
use crate::trigger_dev::options::{BATCH_MEMBER, TAG_PREFIX};
use crate::trigger_dev::refusal::{REQUEST_KEY_PREFIX, Refusal};

/// The statuses of a run that a job can have.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum Status {
    Delayed,
    Queued,
    Dequeued,
    Executing,
    Completed,
    Failed,
    Canceled,
}

impl Status {
    /// What state a job has with this status, and of a pending one whether its time is still to come.
    pub(super) fn states(self) -> (&'static [State], Option<bool>) {
        match self {
            Status::Delayed => (&[State::Pending], Some(true)),
            Status::Queued => (&[State::Pending, State::Retrying], Some(false)),
            Status::Dequeued => (&[State::Reserved], None),
            Status::Executing => (&[State::Running], None),
            Status::Completed => (&[State::Succeeded], None),
            Status::Failed => (&[State::Failed], None),
            Status::Canceled => (&[State::Cancelled], None),
        }
    }

    fn of(job: &JobView, now: Instant) -> Status {
        match job.state {
            State::Pending if job.run_at > now => Status::Delayed,
            State::Pending | State::Retrying => Status::Queued,
            State::Reserved => Status::Dequeued,
            State::Running => Status::Executing,
            State::Succeeded => Status::Completed,
            State::Failed => Status::Failed,
            State::Cancelled => Status::Canceled,
        }
    }
}

/// The members that every view of a run has.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunBody {
    id: String,
    status: Status,
    task_identifier: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<String>,
    is_queued: bool,
    is_executing: bool,
    is_waiting: bool,
    is_completed: bool,
    is_success: bool,
    is_failed: bool,
    is_cancelled: bool,
    is_test: bool,
    created_at: Instant,
    /// The last thing that is known to have happened to it.
    updated_at: Instant,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<Instant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<Instant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delayed_until: Option<Instant>,
    tags: Vec<String>,
    /// Nothing is charged here.
    cost_in_cents: f64,
    base_cost_in_cents: f64,
    /// From the start of the last attempt to its end.
    duration_ms: i64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

/// A run in a list.
#[derive(Serialize)]
pub(super) struct ListedBody {
    #[serde(flatten)]
    run: RunBody,
    env: EnvironmentBody,
}

#[derive(Clone, Serialize)]
pub(super) struct EnvironmentBody {
    pub(super) id: String,
    pub(super) name: String,
}

/// A run beside others: an ancestor, or the run itself.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RelatedBody {
    #[serde(flatten)]
    run: RunBody,
    /// How many ancestors it has that are still there.
    depth: usize,
    trigger_function: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch_id: Option<String>,
}

/// A run with everything about it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RetrievedBody {
    #[serde(flatten)]
    run: RelatedBody,
    payload: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorBody>,
    related_runs: RelatedRuns,
    attempt_count: i32,
}

#[derive(Serialize)]
struct RelatedRuns {
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<RelatedBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<RelatedBody>,
}

#[derive(Serialize)]
struct ErrorBody {
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

/// The error of an attempt as it is stored.
#[derive(Deserialize)]
struct StoredError {
    message: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
}

/// Text that was JSON when it was stored.
fn raw(text: String) -> Result<Box<RawValue>, Refusal> {
    RawValue::from_string(text).map_err(|error| Refusal::from(problem::internal().because(error.to_string())))
}

/// The metadata of a job: strings by name.
pub(super) fn metadata_of(job: &JobView) -> Result<BTreeMap<String, String>, Refusal> {
    let text = job.metadata.as_deref().unwrap_or("{}");
    serde_json::from_str(text).map_err(|error| Refusal::from(problem::internal().because(error.to_string())))
}

impl RunBody {
    fn of(job: &JobView, key: Option<String>, now: Instant) -> Result<(RunBody, Option<String>), Refusal> {
        let mut metadata = metadata_of(job)?;
        let batch = metadata.remove(BATCH_MEMBER);
        let is_tag = |name: &String| name.starts_with(TAG_PREFIX);
        let tags = metadata.keys().filter(|name| is_tag(name));
        let tags = tags.map(|name| name[TAG_PREFIX.len()..].to_owned()).collect();
        metadata.retain(|name, _| !is_tag(name));
        let status = Status::of(job, now);
        let ran = job.started_at.zip(job.finished_at);
        let last = [Some(job.dispatched_at), job.started_at, job.finished_at];
        let run = RunBody {
            id: job.id.to_string(),
            status,
            task_identifier: job.name.clone(),
            idempotency_key: key,
            is_queued: matches!(status, Status::Delayed | Status::Queued),
            is_executing: matches!(status, Status::Dequeued | Status::Executing),
            is_waiting: false,
            is_completed: !job.state.is_live(),
            is_success: status == Status::Completed,
            is_failed: status == Status::Failed,
            is_cancelled: status == Status::Canceled,
            is_test: false,
            created_at: job.dispatched_at,
            updated_at: last.into_iter().flatten().max().unwrap_or(job.dispatched_at),
            started_at: job.started_at,
            finished_at: job.finished_at,
            delayed_until: (job.state == State::Pending && job.run_at > job.dispatched_at).then_some(job.run_at),
            tags,
            cost_in_cents: 0.0,
            base_cost_in_cents: 0.0,
            duration_ms: ran.map_or(0, |(started, finished)| (finished - started).num_milliseconds().max(0)),
            metadata,
        };
        Ok((run, batch))
    }
}

impl ListedBody {
    pub(super) fn of(job: &JobView, env: EnvironmentBody, now: Instant) -> Result<ListedBody, Refusal> {
        let (run, _batch) = RunBody::of(job, None, now)?;
        Ok(ListedBody { run, env })
    }
}

impl RelatedBody {
    fn of(full: &FullJob, depth: usize, now: Instant) -> Result<RelatedBody, Refusal> {
        // Keys that no client has chosen are not shown.
        let chosen = |key: &&str| !key.starts_with(REQUEST_KEY_PREFIX) && !is_item_key(key);
        let key = full.window_keys.iter().map(|key| key.key.as_str()).find(chosen);
        let (run, batch_id) = RunBody::of(&full.job, key.map(Into::into), now)?;
        Ok(RelatedBody {
            run,
            depth,
            trigger_function: if batch_id.is_some() { "batchTrigger" } else { "trigger" },
            batch_id,
        })
    }
}

impl RetrievedBody {
    /// `ancestors`: from its parent up to the last one that is still there.
    pub(super) fn of(full: FullJob, ancestors: &[FullJob], now: Instant) -> Result<RetrievedBody, Refusal> {
        let depth = ancestors.len();
        let run = RelatedBody::of(&full, depth, now)?;
        let related = |ancestor: Option<&FullJob>, depth: usize| {
            ancestor.map(|full| RelatedBody::of(full, depth, now)).transpose()
        };
        let related_runs = RelatedRuns {
            root: related(ancestors.last(), 0)?,
            parent: related(ancestors.first(), depth.saturating_sub(1))?,
        };
        let JobView {
            payload,
            result,
            error,
            attempt,
            ..
        } = full.job;
        let error = error.map(|text| match serde_json::from_str(&text) {
            Ok(StoredError { message, kind }) => ErrorBody {
                message: message.unwrap_or_default(),
                name: kind,
            },
            Err(_) => ErrorBody {
                message: text,
                name: None,
            },
        });
        Ok(RetrievedBody {
            run,
            payload: raw(payload)?,
            output: result.map(raw).transpose()?,
            error,
            related_runs,
            attempt_count: attempt,
        })
    }
}

/// What is answered where only the run's id is told.
#[derive(Serialize)]
pub(super) struct IdBody {
    pub(super) id: String,
}

impl From<JobId> for IdBody {
    fn from(id: JobId) -> IdBody {
        IdBody { id: id.to_string() }
    }
}
