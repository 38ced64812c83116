//! Rows as the statements give them, and how they become domain values.

use sqlx::FromRow;
use uuid::Uuid;

use crate::duration::Millis;
use crate::job::{Backoff, Instant, JobId, Policy, Retry, State};
use crate::store::Error;
use crate::store::holders::HeldKey;
use crate::uniqueness::decide::{HeldJob, JobNow};
use crate::uniqueness::fingerprint::Fingerprint;
use crate::uniqueness::key::KeyDigest;

pub(super) fn state(text: &str) -> Result<State, Error> {
    let inconsistent = |_| Error::Inconsistent {
        table: "jobs",
        column: "state",
        problem: format!("unknown state {text:?}"),
    };
    text.parse().map_err(inconsistent)
}

pub(super) fn millis(value: i64, column: &'static str) -> Result<Millis, Error> {
    let inconsistent = |_| Error::Inconsistent {
        table: "jobs",
        column,
        problem: format!("{value} is no duration"),
    };
    Ok(Millis(value.try_into().map_err(inconsistent)?))
}

#[derive(FromRow)]
pub(super) struct PolicyRow {
    max_attempts: i32,
    backoff: String,
    backoff_initial_ms: i64,
    backoff_factor: f64,
    backoff_max_ms: i64,
    backoff_jitter: bool,
    timeout_ms: Option<i64>,
}

impl PolicyRow {
    pub(super) fn policy(self) -> Result<Policy, Error> {
        let PolicyRow {
            max_attempts,
            backoff,
            backoff_initial_ms,
            backoff_factor,
            backoff_max_ms,
            backoff_jitter,
            timeout_ms,
        } = self;
        let backoff = [Backoff::Fixed, Backoff::Exponential]
            .into_iter()
            .find(|kind| kind.as_str() == backoff);
        let unknown = || Error::Inconsistent {
            table: "jobs",
            column: "backoff",
            problem: "unknown kind".into(),
        };
        Ok(Policy {
            retry: Retry {
                max_attempts,
                backoff: backoff.ok_or_else(unknown)?,
                initial: millis(backoff_initial_ms, "backoff_initial_ms")?,
                factor: backoff_factor,
                max: millis(backoff_max_ms, "backoff_max_ms")?,
                jitter: backoff_jitter,
            },
            timeout: timeout_ms.map(|value| millis(value, "timeout_ms")).transpose()?,
        })
    }
}

/// A key of `look_up`, with the policy of its job where that is still there.
#[derive(FromRow)]
pub(super) struct HolderRow {
    pub(super) app_id: i64,
    digest: Uuid,
    pub(super) dimension: String,
    pub(super) name: String,
    pub(super) scope: String,
    pub(super) key: String,
    job_id: Uuid,
    since: Instant,
    expires_at: Option<Instant>,
    fingerprint: Option<Vec<u8>>,
    job_dispatched_at: Instant,
    job_active_key: Option<String>,
    state: Option<String>,
    max_attempts: Option<i32>,
    backoff: Option<String>,
    backoff_initial_ms: Option<i64>,
    backoff_factor: Option<f64>,
    backoff_max_ms: Option<i64>,
    backoff_jitter: Option<bool>,
    timeout_ms: Option<i64>,
    pub(super) seen_at: Instant,
}

impl HolderRow {
    pub(super) fn digest(&self) -> KeyDigest {
        KeyDigest(self.digest.into_bytes())
    }

    pub(super) fn held(self) -> Result<HeldKey, Error> {
        let policy = (|| {
            Some(PolicyRow {
                max_attempts: self.max_attempts?,
                backoff: self.backoff?,
                backoff_initial_ms: self.backoff_initial_ms?,
                backoff_factor: self.backoff_factor?,
                backoff_max_ms: self.backoff_max_ms?,
                backoff_jitter: self.backoff_jitter?,
                timeout_ms: self.timeout_ms,
            })
        })();
        let now = match (self.state, policy) {
            (Some(text), Some(policy)) => Some(JobNow {
                state: state(&text)?,
                policy: policy.policy()?,
            }),
            _ => None,
        };
        Ok(HeldKey {
            job: HeldJob {
                id: JobId(self.job_id),
                created_by_item: None,
                dispatched_at: self.job_dispatched_at,
                active_key: self.job_active_key.map(Into::into),
                now,
            },
            since: self.since,
            window: match (self.expires_at, self.fingerprint) {
                (Some(expires_at), Some(bytes)) => Some((expires_at, Fingerprint::from_bytes(&bytes))),
                _ => None,
            },
        })
    }
}

/// A job of `full_jobs` or `list`.
#[derive(FromRow)]
pub(super) struct JobRow {
    pub(super) job_id: Uuid,
    pub(super) name: String,
    pub(super) queue: String,
    pub(super) priority: i16,
    state: String,
    pub(super) payload: String,
    pub(super) metadata: Option<String>,
    pub(super) resource_keys: Option<Vec<String>>,
    pub(super) active_key: Option<String>,
    pub(super) window_digest: Option<Uuid>,
    pub(super) parent_job_id: Option<Uuid>,
    pub(super) parent_attempt: Option<i32>,
    #[sqlx(flatten)]
    pub(super) policy: PolicyRow,
    pub(super) retention_ms: i64,
    pub(super) attempt: i32,
    pub(super) cancel_requested: bool,
    pub(super) dispatched_at: Instant,
    pub(super) run_at: Instant,
    pub(super) started_at: Option<Instant>,
    pub(super) finished_at: Option<Instant>,
    pub(super) result: Option<String>,
    pub(super) error: Option<String>,
}

impl JobRow {
    pub(super) fn state(&self) -> Result<State, Error> {
        state(&self.state)
    }
}

/// A job of `full_jobs`.
#[derive(FromRow)]
pub(super) struct FullJobRow {
    #[sqlx(flatten)]
    pub(super) job: JobRow,
    pub(super) worker: Option<String>,
    pub(super) reserved_at: Option<Instant>,
    pub(super) attempt_finished_at: Option<Instant>,
    pub(super) attempt_error: Option<String>,
    pub(super) lease_token: Option<Uuid>,
    pub(super) lease_expires_at: Option<Instant>,
}
