//! Wire types that several routes share: a dispatch and a job.

use chrono::{DateTime, Utc};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::dispatch::WindowRequest;
use crate::dispatch::prepare::Request;
use crate::http::object::object;
use crate::job::{Policy, Retry};
use crate::settings::RetryRequest;
use crate::store::{AttemptView, Error, FullJob, JobView, JobWindowKey};

/// A dispatch: a job that is asked for.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = Dispatch)]
pub struct DispatchBody {
    /// The job's name: 1 to 128 of `A-Z a-z 0-9 . _ : -`.
    #[schema(example = "place-order", pattern = "^[A-Za-z0-9._:-]{1,128}$")]
    name: String,
    /// Any JSON value, given back to the letter.
    #[serde(default)]
    #[schema(value_type = serde_json::Value)]
    payload: Option<Box<RawValue>>,
    /// 1 to 128 of `A-Z a-z 0-9 . _ : -`; `default` where none is given.
    #[schema(example = "default", pattern = "^[A-Za-z0-9._:-]{1,128}$")]
    queue: Option<String>,
    /// Higher first.
    #[schema(minimum = -32768, maximum = 32767)]
    priority: Option<i64>,
    /// How long to wait before the job may start: a duration up to 3650 days. Not beside `run_at`.
    #[schema(example = "5m")]
    delay: Option<String>,
    /// When the job may start, by RFC 3339, up to 10 years ahead; the past means now. Not beside `delay`.
    #[schema(value_type = Option<DateTime<Utc>>)]
    run_at: Option<String>,
    #[serde(default, deserialize_with = "object")]
    uniqueness: Option<UniquenessBody>,
    /// A window key by another spelling, held for 30 days where no `idempotency_key_ttl` is given. Not beside a
    /// `window_key`.
    #[schema(example = "req-1", min_length = 1, max_length = 512)]
    idempotency_key: Option<String>,
    /// How long the idempotency key is held: a duration from 1ms to 3650 days.
    #[schema(example = "30d")]
    idempotency_key_ttl: Option<String>,
    /// Within what it is held: this `parent` job (`run`, the default with a parent), this attempt of it
    /// (`attempt`), or everything (`global`, the default without).
    #[schema(value_type = Option<ScopeBody>)]
    idempotency_key_scope: Option<String>,
    /// At most 16 of `SCOPE:KEY`.
    #[schema(max_items = 16)]
    resource_keys: Option<Vec<String>>,
    /// Strings by name: at most 64, names of 1 to 128 bytes, values of at most 1024, no control characters.
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    metadata: Option<Members>,
    #[serde(default, deserialize_with = "object")]
    parent: Option<ParentBody>,
    #[serde(default, deserialize_with = "object")]
    retry: Option<RetryBody>,
    /// How long an attempt may run: a duration from 1ms to 30 days. None: as long as its lease is kept.
    #[schema(example = "5m")]
    timeout: Option<String>,
    /// How long the job is kept after it finished: a duration up to 3650 days; `7d` where none is given.
    #[schema(example = "7d")]
    retention: Option<String>,
}

/// The keys of a dispatch, and what they do.
#[derive(Deserialize, ToSchema, Debug, Default)]
#[serde(deny_unknown_fields)]
#[schema(as = Uniqueness)]
pub struct UniquenessBody {
    /// "Is one of these already queued or running?" 1 to 512 bytes without control characters.
    #[schema(example = "welcome:7", min_length = 1, max_length = 512)]
    active_key: Option<String>,
    /// "Did I already ask for exactly this?" 1 to 512 bytes without control characters. Needs a `window`.
    #[schema(example = "req-1", min_length = 1, max_length = 512)]
    window_key: Option<String>,
    /// How long the window key is held: a duration from 1ms to 3650 days.
    #[schema(example = "1h")]
    window: Option<String>,
    /// What to do when another request holds the window key: `conflict` (the default) or `reuse`.
    #[schema(value_type = Option<OnMismatchBody>)]
    on_mismatch: Option<String>,
    /// Final states of the job that free the window key early. Where none are given: none for a `window_key`,
    /// `failed` for an `idempotency_key`.
    #[schema(value_type = Option<Vec<FinalStateBody>>)]
    release_on: Option<Vec<String>>,
}

/// For the document alone: the texts themselves are read by the use case, which says more when they are wrong.
#[derive(ToSchema)]
#[schema(as = OnMismatch, rename_all = "snake_case")]
#[expect(dead_code, reason = "it describes a string")]
pub enum OnMismatchBody {
    Conflict,
    Reuse,
}

#[derive(ToSchema)]
#[schema(as = FinalState, rename_all = "snake_case")]
#[expect(dead_code, reason = "it describes a string")]
pub enum FinalStateBody {
    Succeeded,
    Failed,
    Cancelled,
}

#[derive(ToSchema)]
#[schema(as = Backoff, rename_all = "snake_case")]
#[expect(dead_code, reason = "it describes a string")]
pub enum BackoffBody {
    Fixed,
    Exponential,
}

/// The job that asked for this one.
#[derive(Serialize, Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = Parent)]
pub struct ParentBody {
    #[schema(value_type = Uuid)]
    job_id: String,
    #[schema(minimum = 1)]
    attempt: Option<i64>,
}

impl ParentBody {
    pub fn parts(self) -> (String, Option<i64>) {
        (self.job_id, self.attempt)
    }
}

/// Within what a window key is held.
#[derive(ToSchema)]
#[schema(as = Scope, rename_all = "snake_case")]
#[expect(dead_code, reason = "it describes a string")]
pub enum ScopeBody {
    Run,
    Attempt,
    Global,
}

/// When a failed attempt is tried again.
#[derive(Deserialize, ToSchema, Debug, Default)]
#[serde(deny_unknown_fields)]
#[schema(as = RetrySettings)]
pub struct RetryBody {
    #[schema(minimum = 1, maximum = 1000, example = 10)]
    max_attempts: Option<i64>,
    #[schema(value_type = Option<BackoffBody>)]
    backoff: Option<String>,
    /// The wait before the second attempt: a duration up to 7 days.
    #[schema(example = "1s")]
    initial: Option<String>,
    /// By how much each wait is longer than the one before.
    #[schema(minimum = 1, maximum = 100, example = 2)]
    factor: Option<f64>,
    /// The longest wait: a duration up to 7 days.
    #[schema(example = "1h")]
    max: Option<String>,
    /// Whether waits are spread at random, so that retries do not come all at once.
    jitter: Option<bool>,
}

impl From<RetryBody> for RetryRequest {
    fn from(body: RetryBody) -> RetryRequest {
        let RetryBody {
            max_attempts,
            backoff,
            initial,
            factor,
            max,
            jitter,
        } = body;
        RetryRequest {
            max_attempts,
            backoff,
            initial,
            factor,
            max,
            jitter,
        }
    }
}

impl From<DispatchBody> for Request {
    fn from(body: DispatchBody) -> Request {
        let DispatchBody {
            name,
            payload,
            queue,
            priority,
            delay,
            run_at,
            uniqueness,
            idempotency_key,
            idempotency_key_ttl: ttl,
            idempotency_key_scope: scope,
            resource_keys,
            metadata,
            parent,
            retry,
            timeout,
            retention,
        } = body;
        let UniquenessBody {
            active_key,
            window_key,
            window,
            on_mismatch,
            release_on,
        } = uniqueness.unwrap_or_default();
        Request {
            name,
            payload: payload.map(|text| Box::<str>::from(text).into()),
            queue,
            priority,
            delay,
            run_at,
            active_key,
            window: WindowRequest {
                window_key,
                window,
                idempotency_key,
                ttl,
                scope,
                otherwise: None,
            },
            on_mismatch,
            release_on,
            resource_keys: resource_keys.unwrap_or_default(),
            metadata: metadata.map(Members::into_pairs).unwrap_or_default(),
            parent: parent.map(ParentBody::parts),
            retry: retry.map(Into::into).unwrap_or_default(),
            timeout,
            retention,
        }
    }
}

/// Strings by name, in the order in which they came. That no name comes twice is checked before.
#[derive(Debug)]
pub struct Members(Vec<(String, String)>);

impl Members {
    pub fn into_pairs(self) -> Vec<(String, String)> {
        self.0
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Members, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Members;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Pairs)
    }
}

/// The state of a job.
#[derive(ToSchema)]
#[schema(as = State, rename_all = "snake_case")]
#[expect(dead_code, reason = "it describes a string")]
pub enum StateBody {
    Pending,
    Reserved,
    Running,
    Retrying,
    Succeeded,
    Failed,
    Cancelled,
}

/// The retry settings of a job.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = Retry)]
pub struct RetryView {
    max_attempts: i32,
    #[schema(value_type = BackoffBody)]
    backoff: &'static str,
    #[schema(example = "1s")]
    initial: String,
    #[serde(serialize_with = "shortest")]
    #[schema(example = 2)]
    factor: f64,
    #[schema(example = "1h")]
    max: String,
    jitter: bool,
}

/// A whole number is written as one: `2`, not `2.0`.
fn shortest<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.fract() == 0.0 {
        serializer.serialize_i64(*value as i64)
    } else {
        serializer.serialize_f64(*value)
    }
}

impl From<Retry> for RetryView {
    fn from(
        Retry {
            max_attempts,
            backoff,
            initial,
            factor,
            max,
            jitter,
        }: Retry,
    ) -> RetryView {
        RetryView {
            max_attempts,
            backoff: backoff.as_str(),
            initial: initial.to_string(),
            factor,
            max: max.to_string(),
            jitter,
        }
    }
}

/// A job.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = Job)]
pub struct JobBody {
    job_id: Uuid,
    #[schema(example = "place-order")]
    name: String,
    #[schema(example = "default")]
    queue: String,
    priority: i16,
    #[schema(value_type = StateBody)]
    state: &'static str,
    /// As it was posted, to the letter.
    #[schema(value_type = serde_json::Value)]
    payload: Box<RawValue>,
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    metadata: Box<RawValue>,
    resource_keys: Vec<String>,
    #[schema(example = "welcome:7")]
    active_key: Option<String>,
    /// The window keys that still lead to it. Not in a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    window_keys: Option<Vec<WindowKeyBody>>,
    parent: Option<ParentBody>,
    dispatched_at: DateTime<Utc>,
    run_at: DateTime<Utc>,
    started_at: Option<DateTime<Utc>>,
    finished_at: Option<DateTime<Utc>>,
    /// How often it has been reserved.
    attempt: i32,
    max_attempts: i32,
    retry: RetryView,
    #[schema(example = "5m")]
    timeout: Option<String>,
    #[schema(example = "7d")]
    retention: String,
    cancel_requested: bool,
    /// What has been tried, oldest first. Not in a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<Vec<AttemptBody>>,
    /// What the worker gave, to the letter; null until the job has succeeded.
    #[schema(value_type = serde_json::Value)]
    result: Option<Box<RawValue>>,
    /// The last attempt's error; null unless it failed.
    #[schema(value_type = Option<crate::http::calls::ErrorBody>)]
    error: Option<Box<RawValue>>,
}

/// A window key that leads to a job.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = WindowKey)]
pub struct WindowKeyBody {
    key: String,
    #[schema(example = "global")]
    scope: String,
    expires_at: DateTime<Utc>,
}

/// What was tried.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = Attempt)]
pub struct AttemptBody {
    attempt: i32,
    #[schema(example = "host-1")]
    worker: Option<String>,
    reserved_at: DateTime<Utc>,
    started_at: Option<DateTime<Utc>>,
    finished_at: Option<DateTime<Utc>>,
    #[schema(value_type = Option<crate::http::calls::ErrorBody>)]
    error: Option<Box<RawValue>>,
}

impl JobBody {
    /// A job with everything about it.
    pub fn whole(full: FullJob) -> Result<JobBody, Error> {
        let FullJob {
            job,
            window_keys,
            attempts,
            lease: _,
        } = full;
        let mut body = JobBody::listed(job)?;
        let key = |JobWindowKey { key, scope, expires_at }| WindowKeyBody { key, scope, expires_at };
        body.window_keys = Some(window_keys.into_iter().map(key).collect());
        let attempt = |view: AttemptView| {
            let AttemptView {
                attempt,
                worker,
                reserved_at,
                started_at,
                finished_at,
                error,
            } = view;
            let error = error.map(|text| raw("attempt_error", text)).transpose()?;
            Ok(AttemptBody {
                attempt,
                worker,
                reserved_at,
                started_at,
                finished_at,
                error,
            })
        };
        body.attempts = Some(attempts.into_iter().map(attempt).collect::<Result<_, Error>>()?);
        Ok(body)
    }

    /// A job as a list shows it.
    pub fn listed(job: JobView) -> Result<JobBody, Error> {
        let Policy { retry, timeout } = job.policy;
        Ok(JobBody {
            job_id: job.id.0,
            name: job.name,
            queue: job.queue,
            priority: job.priority,
            state: job.state.as_str(),
            payload: raw("payload", job.payload)?,
            metadata: raw("metadata", job.metadata.unwrap_or_else(|| "{}".into()))?,
            resource_keys: job.resource_keys,
            active_key: job.active_key,
            window_keys: None,
            parent: job.parent.map(|parent| ParentBody {
                job_id: parent.job_id.to_string(),
                attempt: parent.attempt.map(i64::from),
            }),
            dispatched_at: job.dispatched_at,
            run_at: job.run_at,
            started_at: job.started_at,
            finished_at: job.finished_at,
            attempt: job.attempt,
            max_attempts: retry.max_attempts,
            retry: retry.into(),
            timeout: timeout.map(|timeout| timeout.to_string()),
            retention: job.retention.to_string(),
            cancel_requested: job.cancel_requested,
            attempts: None,
            result: job.result.map(|text| raw("result", text)).transpose()?,
            error: job.error.map(|text| raw("error", text)).transpose()?,
        })
    }
}

/// JSON text as it is stored.
fn raw(column: &'static str, text: String) -> Result<Box<RawValue>, Error> {
    let inconsistent = |error: serde_json::Error| Error::Inconsistent {
        table: "jobs",
        column,
        problem: format!("is no JSON: {error}"),
    };
    RawValue::from_string(text).map_err(inconsistent)
}
