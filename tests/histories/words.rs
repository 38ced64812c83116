//! What the model is told: instants, phases of a job, and what answers say.

use uuid::Uuid;

use crate::record::{Micros, NEVER};

/// From the earliest to the latest that an instant may be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Span(pub(crate) Micros, pub(crate) Micros);

impl Span {
    pub(crate) fn at(instant: Micros) -> Span {
        Span(instant, instant)
    }

    pub(crate) fn later(self, micros: Micros) -> Span {
        Span(self.0 + micros, (self.1 + micros).min(NEVER))
    }

    pub(crate) fn holds(self, instant: Micros) -> bool {
        self.0 <= instant && instant <= self.1
    }

    /// Whether an instant of this may have come by one of `now`.
    pub(crate) fn may_be_over(self, now: Span) -> bool {
        self.0 <= now.1
    }

    pub(crate) fn may_be_ahead(self, now: Span) -> bool {
        self.1 > now.0
    }

    pub(crate) fn earlier_of(self, other: Option<Span>) -> Span {
        other.map_or(self, |other| Span(self.0.min(other.0), self.1.min(other.1)))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Phase {
    Pending,
    Reserved,
    Running,
    Retrying,
    Succeeded,
    Failed,
    Cancelled,
}

impl Phase {
    pub(crate) fn of(text: &str) -> Option<Phase> {
        Some(match text {
            "pending" => Phase::Pending,
            "reserved" => Phase::Reserved,
            "running" => Phase::Running,
            "retrying" => Phase::Retrying,
            "succeeded" => Phase::Succeeded,
            "failed" => Phase::Failed,
            "cancelled" => Phase::Cancelled,
            _ => return None,
        })
    }

    pub(crate) fn is_live(self) -> bool {
        self < Phase::Succeeded
    }

    /// As `release_on` counts it.
    pub(crate) fn bit(self) -> u8 {
        match self {
            Phase::Succeeded => 1,
            Phase::Failed => 2,
            Phase::Cancelled => 4,
            Phase::Pending | Phase::Reserved | Phase::Running | Phase::Retrying => 0,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum End {
    Succeed,
    Fail,
    Release,
    ReleaseCancelled,
    /// The server's, or an operator's.
    Other,
}

/// What a receipt says, in the model's words.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Receipt {
    pub(crate) job: Uuid,
    pub(crate) matched: Option<String>,
    pub(crate) phase: Option<Phase>,
    pub(crate) available: bool,
    pub(crate) dispatched: Micros,
    pub(crate) active: Option<u8>,
    pub(crate) until: Option<Micros>,
    pub(crate) linked: bool,
    pub(crate) drift: Vec<String>,
    pub(crate) differs: Option<Vec<String>>,
}

/// What a call of a worker was answered with.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Heard {
    Accepted,
    /// A heartbeat: until when the lease lasts, and whether the job is to be cancelled.
    Beat(Micros, bool),
    LeaseLost,
    /// Nothing was heard: it was carried out, or had nothing to do.
    Nothing,
}

/// A job given out.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Grant {
    pub(crate) token: Uuid,
    /// Its length.
    pub(crate) lease: Micros,
    pub(crate) until: Option<Micros>,
    pub(crate) attempt: Option<i32>,
    pub(crate) reserve_id: Option<String>,
    pub(crate) unheard: bool,
    /// It can only be one that was given out before.
    pub(crate) renewed: bool,
}

/// A job as a reader sees it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct View {
    pub(crate) phase: Phase,
    pub(crate) attempt: i32,
    pub(crate) cancel: bool,
    pub(crate) active: Option<u8>,
    pub(crate) payload: Option<u8>,
}
