//! The life of a job as a pure state machine: what a call of a worker, of an operator or of the clock makes of it.

use uuid::Uuid;

use crate::duration::Millis;
use crate::job::{FinalState, Instant, Policy, State};
use crate::retry;

/// The right of a worker to a job, for a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    pub token: Uuid,
    pub expires_at: Instant,
    /// Where the attempt's timeout ends it, heartbeats or not.
    pub ends_at: Option<Instant>,
}

impl Lease {
    /// The first instant at which the lease is no longer one.
    pub fn over_at(&self) -> Instant {
        self.ends_at
            .map_or(self.expires_at, |ends_at| ends_at.min(self.expires_at))
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttemptEnd {
    Succeed,
    Fail,
    Release,
    LeaseExpired,
    Timeout,
    /// Its worker let go of a job that was to be cancelled.
    ReleaseCancelled,
    /// The job was taken from it.
    Cancel,
}

impl AttemptEnd {
    pub const ALL: [AttemptEnd; 7] = [
        AttemptEnd::Succeed,
        AttemptEnd::Fail,
        AttemptEnd::Release,
        AttemptEnd::LeaseExpired,
        AttemptEnd::Timeout,
        AttemptEnd::ReleaseCancelled,
        AttemptEnd::Cancel,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            AttemptEnd::Succeed => "succeed",
            AttemptEnd::Fail => "fail",
            AttemptEnd::Release => "release",
            AttemptEnd::LeaseExpired => "lease_expired",
            AttemptEnd::Timeout => "timeout",
            AttemptEnd::ReleaseCancelled => "release_cancelled",
            AttemptEnd::Cancel => "cancel",
        }
    }
}

/// The last attempt of a job.
#[derive(Clone, PartialEq, Debug)]
pub struct Attempt {
    pub worker: Option<String>,
    pub reserved_at: Instant,
    pub started_at: Option<Instant>,
    pub finished_at: Option<Instant>,
    /// JSON text.
    pub error: Option<Box<str>>,
    /// By which lease it ran and how it ended, once it has.
    pub ended: Option<(Uuid, AttemptEnd)>,
}

/// The part of a job that its life changes.
#[derive(Clone, PartialEq, Debug)]
pub struct Life {
    pub state: State,
    pub attempt: i32,
    /// The attempt after which a failure is final.
    pub attempt_limit: i32,
    pub policy: Policy,
    pub retention: Millis,
    pub run_at: Instant,
    pub lease: Option<Lease>,
    /// `None` before the first attempt, and after one was given back.
    pub last: Option<Attempt>,
    pub cancel_requested: bool,
    /// JSON text.
    pub result: Option<Box<str>>,
    /// JSON text.
    pub error: Option<Box<str>>,
    pub finished_at: Option<Instant>,
}

/// A call on the life of a job.
#[derive(Clone, PartialEq, Debug)]
pub enum Call {
    Start {
        token: Uuid,
    },
    Heartbeat {
        token: Uuid,
        lease: Millis,
    },
    Succeed {
        token: Uuid,
        result: Option<Box<str>>,
    },
    Fail {
        token: Uuid,
        error: Option<Box<str>>,
        retry: bool,
        retry_in: Option<Millis>,
    },
    Release {
        token: Uuid,
    },
    /// The clock: ends an attempt whose lease or time is over.
    Expire,
    Cancel {
        force: bool,
    },
}

impl Call {
    /// The attempt end that this call leads to, and by which token: a repeated one is recognised by them.
    pub fn ending(&self) -> Option<(Uuid, AttemptEnd)> {
        match self {
            Call::Succeed { token, .. } => Some((*token, AttemptEnd::Succeed)),
            Call::Fail { token, .. } => Some((*token, AttemptEnd::Fail)),
            Call::Release { token } => Some((*token, AttemptEnd::Release)),
            Call::Start { .. } | Call::Heartbeat { .. } | Call::Expire | Call::Cancel { .. } => None,
        }
    }
}

/// Why a call changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The token is not the job's current one, or its lease is over.
    LeaseLost,
    /// A cancel of a job that has succeeded or failed.
    Finished(State),
}

/// What a call did.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Effect {
    /// Nothing to write: the call had its effect before, or there was nothing to do.
    pub unchanged: bool,
    /// An attempt that has to be kept apart, since the job's row no longer shows it.
    pub past: Option<(Uuid, i32, Attempt)>,
}

impl Life {
    /// Whether the job waits for a worker or for its time.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Pending | State::Retrying)
    }

    /// When a finished job may be forgotten.
    pub fn delete_after(&self) -> Option<Instant> {
        self.finished_at.map(|at| at + millis(self.retention))
    }

    /// Carries out a call at `now`, read after the job was locked. `spread` (from 0 up to 1) spreads retries.
    pub fn call(&mut self, call: &Call, now: Instant, spread: f64) -> Result<Effect, Refused> {
        match call {
            Call::Start { token } => {
                self.lease_of(*token, now)?;
                if self.state == State::Running {
                    return Ok(Effect {
                        unchanged: true,
                        ..Effect::default()
                    });
                }
                self.state = State::Running;
                let ends_at = self.policy.timeout.map(|timeout| now + millis(timeout));
                if let (Some(lease), Some(last)) = (&mut self.lease, &mut self.last) {
                    lease.ends_at = ends_at;
                    last.started_at = Some(now);
                }
                Ok(Effect::default())
            }
            Call::Heartbeat { token, lease } => {
                let held = self.lease_of(*token, now)?;
                let expires_at = (now + millis(*lease)).max(held.expires_at);
                self.lease = Some(Lease { expires_at, ..held });
                Ok(Effect::default())
            }
            Call::Succeed { token, result } => {
                if self.ended_so(*token, AttemptEnd::Succeed) {
                    return Ok(Effect {
                        unchanged: true,
                        ..Effect::default()
                    });
                }
                self.lease_of(*token, now)?;
                self.end_attempt(AttemptEnd::Succeed, None, now);
                self.result.clone_from(result);
                self.error = None;
                self.finish(FinalState::Succeeded, now);
                Ok(Effect::default())
            }
            Call::Fail {
                token,
                error,
                retry,
                retry_in,
            } => {
                if self.ended_so(*token, AttemptEnd::Fail) {
                    return Ok(Effect {
                        unchanged: true,
                        ..Effect::default()
                    });
                }
                self.lease_of(*token, now)?;
                self.end_attempt(AttemptEnd::Fail, error.clone(), now);
                self.failed(*retry, *retry_in, now, spread);
                Ok(Effect::default())
            }
            Call::Release { token } => {
                if self.ended_so(*token, AttemptEnd::ReleaseCancelled) {
                    return Ok(Effect {
                        unchanged: true,
                        ..Effect::default()
                    });
                }
                self.lease_of(*token, now)?;
                if self.cancel_requested {
                    self.end_attempt(AttemptEnd::ReleaseCancelled, None, now);
                    self.finish(FinalState::Cancelled, now);
                    return Ok(Effect::default());
                }
                self.end_attempt(AttemptEnd::Release, None, now);
                let past = self.last.take().map(|last| (*token, self.attempt, last));
                // The attempt is given back: as if it had never begun.
                self.attempt -= 1;
                // The same as before it: pending when dispatched or retried by hand, retrying after a failure.
                self.state = if self.attempt == self.attempt_limit.saturating_sub(self.policy.retry.max_attempts) {
                    State::Pending
                } else {
                    State::Retrying
                };
                Ok(Effect {
                    past,
                    ..Effect::default()
                })
            }
            Call::Expire => self.expire(now, spread),
            Call::Cancel { force } => self.cancel(*force, now),
        }
    }

    /// Makes a finished job pending now, with its history and as many attempts more as its policy gives. What
    /// its row no longer shows of its last attempt is given back.
    pub fn run_again(&mut self, now: Instant) -> Option<(Uuid, i32, Attempt)> {
        let past = self
            .last
            .take()
            .and_then(|last| last.ended.map(|(token, _)| (token, self.attempt, last.clone())));
        self.state = State::Pending;
        self.attempt_limit = self.attempt.saturating_add(self.policy.retry.max_attempts);
        self.run_at = now;
        self.cancel_requested = false;
        self.result = None;
        self.error = None;
        self.finished_at = None;
        past
    }

    fn expire(&mut self, now: Instant, spread: f64) -> Result<Effect, Refused> {
        let Some(lease) = self
            .lease
            .filter(|lease| mutant!("sweep_without_a_second_look": true, else now >= lease.over_at()))
        else {
            return Ok(Effect {
                unchanged: true,
                ..Effect::default()
            });
        };
        let timeout = lease.ends_at.is_some_and(|ends_at| ends_at <= lease.expires_at);
        let (end, error) = if timeout {
            (
                AttemptEnd::Timeout,
                r#"{"message":"the attempt ran longer than the job's timeout","type":"timeout","details":null}"#,
            )
        } else {
            let error = r#"{"message":"the lease ran out without a heartbeat","type":"lease_expired","details":null}"#;
            (AttemptEnd::LeaseExpired, error)
        };
        self.end_attempt(end, Some(error.into()), now);
        self.failed(true, None, now, spread);
        Ok(Effect::default())
    }

    fn cancel(&mut self, force: bool, now: Instant) -> Result<Effect, Refused> {
        match self.state {
            State::Cancelled => Ok(Effect {
                unchanged: true,
                ..Effect::default()
            }),
            State::Succeeded | State::Failed => Err(Refused::Finished(self.state)),
            State::Reserved | State::Running if !force => {
                let unchanged = self.cancel_requested;
                self.cancel_requested = true;
                Ok(Effect {
                    unchanged,
                    ..Effect::default()
                })
            }
            State::Pending | State::Retrying | State::Reserved | State::Running => {
                self.cancel_requested = true;
                if self.lease.is_some() {
                    self.end_attempt(AttemptEnd::Cancel, None, now);
                }
                self.finish(FinalState::Cancelled, now);
                Ok(Effect::default())
            }
        }
    }

    /// The lease, if `token` is its own and it is not over, swept or not.
    fn lease_of(&self, token: Uuid, now: Instant) -> Result<Lease, Refused> {
        self.lease
            .filter(|lease| mutant!("any_token": true, else lease.token == token))
            .filter(|lease| mutant!("leases_without_end": true, else now < lease.over_at()))
            .ok_or(Refused::LeaseLost)
    }

    /// Whether the same call ended the last attempt before: its answer may have been lost.
    fn ended_so(&self, token: Uuid, end: AttemptEnd) -> bool {
        self.last.as_ref().is_some_and(|last| last.ended == Some((token, end)))
    }

    fn end_attempt(&mut self, end: AttemptEnd, error: Option<Box<str>>, now: Instant) {
        let lease = self.lease.take();
        if let Some(last) = &mut self.last {
            last.finished_at = Some(now);
            last.error = error;
            last.ended = lease.map(|lease| (lease.token, end));
        }
    }

    /// What follows on an attempt that failed.
    fn failed(&mut self, retry: bool, retry_in: Option<Millis>, now: Instant, spread: f64) {
        self.error = self.last.as_ref().and_then(|last| last.error.clone());
        if mutant!("cancel_forgotten": false, else self.cancel_requested) {
            self.finish(FinalState::Cancelled, now);
        } else if !retry || self.attempt >= self.attempt_limit {
            self.finish(FinalState::Failed, now);
        } else {
            let wait = retry_in.unwrap_or_else(|| retry::wait(&self.policy.retry, self.attempt, spread));
            self.state = State::Retrying;
            self.run_at = now + mutant!("retry_at_once": chrono::Duration::zero(), else millis(wait));
        }
    }

    fn finish(&mut self, end: FinalState, now: Instant) {
        self.state = match end {
            FinalState::Succeeded => State::Succeeded,
            FinalState::Failed => State::Failed,
            FinalState::Cancelled => State::Cancelled,
        };
        self.finished_at = Some(now);
    }
}

fn millis(Millis(millis): Millis) -> chrono::Duration {
    chrono::Duration::milliseconds(i64::try_from(millis).unwrap_or(i64::MAX / 2))
}
