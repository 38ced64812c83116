//! Nouns that every room shares: ids, states, policies. Nothing here acts.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::duration::Millis;

/// An instant of the database's clock. No other clock decides anything.
pub type Instant = DateTime<Utc>;

/// The id of one (application, environment), by which every row is found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct AppId(pub i64);

/// The id of a job: a UUIDv7 whose time is the database's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct JobId(pub Uuid);

impl JobId {
    /// How many ids one [`JobIds`] can make; a transaction never needs more.
    const SEQUENCE_BITS: u32 = 20;

    /// What of it does not depend on the instant: its last 16 hexadecimal digits.
    pub fn tail(self) -> String {
        format!("{:016x}", self.0.as_u64_pair().1)
    }

    /// The least id that a decision at this instant, or later, can give.
    pub fn least_at(decided_at: Instant) -> JobId {
        JobIds::new(decided_at, 0).next_id()
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// Makes the ids of the jobs that one transaction creates.
///
/// They ascend in the order of the calls, so that ids order the items of a batch; between transactions
/// the instant of the decision orders them, to the microsecond.
#[derive(Debug)]
pub struct JobIds {
    millis: u64,
    /// Microseconds within the millisecond, scaled to the 12 bits that RFC 9562 (6.2, method 3) gives them.
    fraction: u64,
    sequence: u64,
    random: u64,
}

impl JobIds {
    /// `random` tells apart the transactions of one microsecond; its lower 42 bits are used.
    pub fn new(decided_at: Instant, random: u64) -> JobIds {
        let micros = decided_at.timestamp_micros().max(0).unsigned_abs();
        JobIds {
            millis: micros / 1000,
            fraction: (micros % 1000) * 4096 / 1000,
            sequence: 0,
            random,
        }
    }

    /// The next id.
    ///
    /// # Panics
    /// After 2^20 ids, a hundred times what a group can hold.
    pub fn next_id(&mut self) -> JobId {
        assert!(
            self.sequence < 1 << JobId::SEQUENCE_BITS,
            "a transaction creates fewer jobs than that"
        );
        let high = (self.millis << 16) | 0x7000 | self.fraction;
        let low = (0b10 << 62) | (self.sequence << 42) | (self.random & ((1 << 42) - 1));
        self.sequence += 1;
        JobId(Uuid::from_u64_pair(high, low))
    }
}

/// Where a job is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    Pending,
    Reserved,
    Running,
    Retrying,
    Succeeded,
    Failed,
    Cancelled,
}

impl State {
    pub const ALL: [State; 7] = [
        State::Pending,
        State::Reserved,
        State::Running,
        State::Retrying,
        State::Succeeded,
        State::Failed,
        State::Cancelled,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Reserved => "reserved",
            State::Running => "running",
            State::Retrying => "retrying",
            State::Succeeded => "succeeded",
            State::Failed => "failed",
            State::Cancelled => "cancelled",
        }
    }

    /// A live job holds its active key.
    pub const fn is_live(self) -> bool {
        self.final_state().is_none()
    }

    pub const fn final_state(self) -> Option<FinalState> {
        match self {
            State::Pending | State::Reserved | State::Running | State::Retrying => None,
            State::Succeeded => Some(FinalState::Succeeded),
            State::Failed => Some(FinalState::Failed),
            State::Cancelled => Some(FinalState::Cancelled),
        }
    }

    /// Whether a worker has the job in its hands.
    pub const fn is_leased(self) -> bool {
        matches!(self, State::Reserved | State::Running)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a job state")]
pub struct UnknownState;

impl FromStr for State {
    type Err = UnknownState;

    fn from_str(text: &str) -> Result<State, UnknownState> {
        State::ALL
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or(UnknownState)
    }
}

/// How a job can end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FinalState {
    Succeeded,
    Failed,
    Cancelled,
}

impl FinalState {
    pub const ALL: [FinalState; 3] = [FinalState::Succeeded, FinalState::Failed, FinalState::Cancelled];

    pub const fn as_str(self) -> &'static str {
        match self {
            FinalState::Succeeded => State::Succeeded.as_str(),
            FinalState::Failed => State::Failed.as_str(),
            FinalState::Cancelled => State::Cancelled.as_str(),
        }
    }
}

/// A set of final states, as `release_on` names them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FinalStates(u8);

impl FinalStates {
    pub const NONE: FinalStates = FinalStates(0);

    const fn bit(state: FinalState) -> u8 {
        match state {
            FinalState::Succeeded => 1,
            FinalState::Failed => 2,
            FinalState::Cancelled => 4,
        }
    }

    pub fn insert(&mut self, state: FinalState) {
        self.0 |= FinalStates::bit(state);
    }

    /// The form that is stored: bits that add up.
    pub const fn bits(self) -> u8 {
        self.0
    }

    pub const fn of(state: FinalState) -> FinalStates {
        FinalStates(FinalStates::bit(state))
    }
}

/// How the wait before the next attempt grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backoff {
    Fixed,
    Exponential,
}

impl Backoff {
    pub const fn as_str(self) -> &'static str {
        match self {
            Backoff::Fixed => "fixed",
            Backoff::Exponential => "exponential",
        }
    }
}

/// When a failed attempt is tried again.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Retry {
    pub max_attempts: i32,
    pub backoff: Backoff,
    pub initial: Millis,
    pub factor: f64,
    pub max: Millis,
    pub jitter: bool,
}

impl Retry {
    pub const DEFAULT: Retry = Retry {
        max_attempts: 10,
        backoff: Backoff::Exponential,
        initial: Millis(1_000),
        factor: 2.0,
        max: Millis(3_600_000),
        jitter: true,
    };
}

/// What may differ between two dispatches of one request without their being different requests.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Policy {
    pub retry: Retry,
    pub timeout: Option<Millis>,
}

impl Policy {
    /// The members in which `self`, the job's policy, differs from what was asked for.
    pub fn drift(&self, asked: &Policy) -> Vec<&'static str> {
        let Policy {
            retry:
                Retry {
                    max_attempts,
                    backoff,
                    initial,
                    factor,
                    max,
                    jitter,
                },
            timeout,
        } = self;
        let other = &asked.retry;
        let members = [
            ("retry.max_attempts", *max_attempts != other.max_attempts),
            ("retry.backoff", *backoff != other.backoff),
            ("retry.initial", *initial != other.initial),
            ("retry.factor", *factor != other.factor),
            ("retry.max", *max != other.max),
            ("retry.jitter", *jitter != other.jitter),
            ("timeout", *timeout != asked.timeout),
        ];
        members
            .into_iter()
            .filter_map(|(member, differs)| differs.then_some(member))
            .collect()
    }
}

/// When a job may start, as it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    Now,
    Delay(Millis),
    At(Instant),
}

impl Start {
    /// The instant that this means for a dispatch decided at `decided_at`. The past means now.
    pub fn resolve(self, decided_at: Instant) -> Instant {
        match self {
            Start::Now => decided_at,
            Start::Delay(delay) => decided_at + chrono::Duration::milliseconds(delay.0.min(i64::MAX as u64) as i64),
            Start::At(at) => at.max(decided_at),
        }
    }
}

/// The job, and the attempt of it, that asked for this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parent {
    pub job_id: JobId,
    pub attempt: Option<i32>,
}

/// Everything that a job is created from.
#[derive(Clone, PartialEq, Debug)]
pub struct NewJob {
    pub name: String,
    pub queue: String,
    pub priority: i16,
    /// JSON text, as posted.
    pub payload: Arc<str>,
    pub metadata: Vec<(String, String)>,
    pub resource_keys: Vec<String>,
    pub start: Start,
    pub policy: Policy,
    pub retention: Millis,
    pub parent: Option<Parent>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instant(micros: i64) -> Instant {
        DateTime::from_timestamp_micros(micros).unwrap()
    }

    #[test]
    fn ids_are_version_7_and_ascend_within_a_transaction_and_with_the_clock() {
        let mut early = JobIds::new(instant(1_700_000_000_000_001), u64::MAX);
        let mut late = JobIds::new(instant(1_700_000_000_000_002), 0);
        let ids = [early.next_id(), early.next_id(), early.next_id(), late.next_id()];
        assert!(
            ids.is_sorted() && ids.iter().all(|id| id.0.get_version_num() == 7),
            "{ids:?}"
        );
        assert_eq!(ids[0].0.get_timestamp().unwrap().to_unix().0, 1_700_000_000);
        assert_eq!(ids[0].0.get_variant(), uuid::Variant::RFC4122);
        assert!(
            JobId::least_at(instant(1_700_000_000_000_001)) <= ids[0]
                && ids[2] < JobId::least_at(instant(1_700_000_000_000_002))
        );
        assert_eq!(ids[2].0.simple().to_string()[16..], ids[2].tail());
    }

    #[test]
    fn states_are_read_as_they_are_written_and_are_live_or_final() {
        for state in State::ALL {
            assert_eq!(state.as_str().parse(), Ok(state));
            assert_eq!(state.is_live(), state.final_state().is_none());
        }
        assert_eq!("done".parse::<State>(), Err(UnknownState));
        assert_eq!(State::ALL.iter().filter(|state| state.is_live()).count(), 4);
    }

    #[test]
    fn drift_names_each_member_that_differs() {
        let job = Policy {
            retry: Retry::DEFAULT,
            timeout: None,
        };
        assert_eq!(job.drift(&job), Vec::<&str>::new());
        let asked = Policy {
            retry: Retry {
                max_attempts: 1,
                backoff: Backoff::Fixed,
                initial: Millis(0),
                factor: 3.0,
                max: Millis(1),
                jitter: false,
            },
            timeout: Some(Millis(1)),
        };
        let all = [
            "retry.max_attempts",
            "retry.backoff",
            "retry.initial",
            "retry.factor",
            "retry.max",
            "retry.jitter",
            "timeout",
        ];
        assert_eq!(job.drift(&asked), all);
    }

    #[test]
    fn a_start_in_the_past_means_now() {
        let now = instant(1_000_000);
        assert_eq!(Start::Now.resolve(now), now);
        assert_eq!(Start::At(instant(0)).resolve(now), now);
        assert_eq!(Start::At(instant(2_000_000)).resolve(now), instant(2_000_000));
        assert_eq!(Start::Delay(Millis(5)).resolve(now), instant(1_005_000));
    }
}
