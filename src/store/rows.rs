//! Rows as the statements give them, and how they become domain values.

use sqlx::FromRow;
use uuid::Uuid;

use crate::duration::Millis;
use crate::job::{Backoff, Instant, JobId, Policy, Retry, State};
use crate::store::Error;
use crate::store::holders::HeldKey;
use crate::store::jobs::{AttemptView, FullJob, JobWindowKey};
use crate::uniqueness::decide::{HeldJob, JobNow};
use crate::uniqueness::fingerprint::Fingerprint;
use crate::uniqueness::key::{KeyDigest, Scope};

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

/// A job of `full_jobs` or `reserve`.
#[derive(FromRow)]
pub(super) struct FullJobRow {
    #[sqlx(flatten)]
    job: JobRow,
    worker: Option<String>,
    reserved_at: Option<Instant>,
    attempt_finished_at: Option<Instant>,
    attempt_error: Option<String>,
    lease_token: Option<Uuid>,
    lease_expires_at: Option<Instant>,
    #[sqlx(flatten)]
    windows: WindowArrays,
    #[sqlx(flatten)]
    past: PastArrays,
}

/// The window keys of one job: one member of each array for each key, null where there is none.
#[derive(FromRow)]
struct WindowArrays {
    window_scopes: Option<Vec<String>>,
    window_keys: Option<Vec<String>>,
    window_ends: Option<Vec<Instant>>,
}

/// The attempts of one job before the last, likewise.
#[derive(FromRow)]
struct PastArrays {
    past_attempts: Option<Vec<i32>>,
    past_workers: Option<Vec<Option<String>>>,
    past_reserved: Option<Vec<Instant>>,
    past_started: Option<Vec<Option<Instant>>>,
    past_finished: Option<Vec<Instant>>,
    past_errors: Option<Vec<Option<String>>>,
}

impl WindowArrays {
    fn keys(self) -> Vec<JobWindowKey> {
        let columns = self.window_ends.into_iter().flatten();
        let columns = columns.zip(self.window_scopes.into_iter().flatten());
        let columns = columns.zip(self.window_keys.into_iter().flatten());
        let mut keys: Vec<JobWindowKey> = columns
            .map(|((expires_at, scope), key)| JobWindowKey {
                key,
                scope: Scope::name_of(&scope).to_owned(),
                expires_at,
            })
            .collect();
        keys.sort_unstable_by(|a, b| (a.expires_at, &a.scope, &a.key).cmp(&(b.expires_at, &b.scope, &b.key)));
        keys
    }
}

impl PastArrays {
    fn attempts(self) -> Vec<AttemptView> {
        let numbers = self.past_attempts.into_iter().flatten();
        let columns = numbers.zip(self.past_workers.into_iter().flatten());
        let columns = columns.zip(self.past_reserved.into_iter().flatten());
        let columns = columns.zip(self.past_started.into_iter().flatten());
        let columns = columns.zip(self.past_finished.into_iter().flatten());
        let columns = columns.zip(self.past_errors.into_iter().flatten());
        columns
            .map(
                |(((((attempt, worker), reserved_at), started_at), finished_at), error)| AttemptView {
                    attempt,
                    worker,
                    reserved_at,
                    started_at,
                    finished_at: Some(finished_at),
                    error,
                },
            )
            .collect()
    }
}

impl FullJobRow {
    pub(super) fn full(self) -> Result<FullJob, Error> {
        let FullJobRow {
            job,
            worker,
            reserved_at,
            attempt_finished_at,
            attempt_error,
            lease_token,
            lease_expires_at,
            windows,
            past,
        } = self;
        let last = reserved_at.map(|reserved_at| AttemptView {
            attempt: job.attempt,
            worker,
            reserved_at,
            started_at: job.started_at,
            finished_at: attempt_finished_at,
            error: attempt_error,
        });
        let mut attempts = past.attempts();
        attempts.extend(last);
        attempts.sort_by_key(|attempt| attempt.reserved_at);
        Ok(FullJob {
            job: job.try_into()?,
            window_keys: windows.keys(),
            attempts,
            lease: lease_token.zip(lease_expires_at),
        })
    }
}

/// A job that `reserve` has just given out, with the attempt that its row showed until then.
#[derive(FromRow)]
pub(super) struct ReservedRow {
    pub(super) place: i32,
    #[sqlx(flatten)]
    full: FullJobRow,
    before_attempt: i32,
    before_worker: Option<String>,
    before_reserved_at: Option<Instant>,
    before_started_at: Option<Instant>,
    before_finished_at: Option<Instant>,
    before_error: Option<String>,
}

impl ReservedRow {
    pub(super) fn full(self) -> Result<FullJob, Error> {
        let before = self.before_reserved_at.map(|reserved_at| AttemptView {
            attempt: self.before_attempt,
            worker: self.before_worker,
            reserved_at,
            started_at: self.before_started_at,
            finished_at: self.before_finished_at,
            error: self.before_error,
        });
        let mut full = self.full.full()?;
        full.attempts.extend(before);
        full.attempts.sort_by_key(|attempt| attempt.reserved_at);
        Ok(full)
    }
}
