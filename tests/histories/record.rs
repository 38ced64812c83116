//! What was asked, when, and what was answered.

use serde_json::Value;
use uuid::Uuid;

use crate::plan::Ask;

/// Microseconds since 1970 on the database's clock.
pub(crate) type Micros = i64;

/// Later than anything in a run.
pub(crate) const NEVER: Micros = i64::MAX / 4;

/// A call that a worker makes with the token of its lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    Start,
    Heartbeat { lease_ms: i64 },
    Succeed,
    Fail { retry: bool, retry_in_ms: Option<i64> },
    Release,
}

/// One request, whole.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Op {
    Dispatch(Ask),
    Preview(Ask),
    Batch {
        items: Vec<Ask>,
        go_on: bool,
    },
    /// The worker's name says which request it was: every attempt that is stored bears it.
    Reserve {
        max: u8,
        lease_ms: i64,
        reserve_id: Option<String>,
    },
    Call {
        job: Uuid,
        token: Uuid,
        call: Call,
    },
    Finish(Vec<(Uuid, Uuid, Call)>),
    Cancel {
        job: Uuid,
        force: bool,
    },
    Retry {
        job: Uuid,
    },
    Reset {
        slot: u8,
        job: Option<Uuid>,
    },
    Delete {
        job: Uuid,
    },
    ReadJob {
        job: Uuid,
    },
    ReadActive {
        key: u8,
    },
    ReadWindow {
        slot: u8,
    },
    /// A retry that somebody writes into the tables by hand, without any lock.
    Intrude {
        job: Uuid,
    },
}

impl Op {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Op::Dispatch(_) => "dispatch",
            Op::Preview(_) => "preview",
            Op::Batch { .. } => "batch",
            Op::Reserve { .. } => "reserve",
            Op::Call { call, .. } => match call {
                Call::Start => "start",
                Call::Heartbeat { .. } => "heartbeat",
                Call::Succeed => "succeed",
                Call::Fail { .. } => "fail",
                Call::Release => "release",
            },
            Op::Finish(_) => "finish",
            Op::Cancel { .. } => "cancel",
            Op::Retry { .. } => "retry",
            Op::Reset { .. } => "reset",
            Op::Delete { .. } => "delete",
            Op::ReadJob { .. } => "read job",
            Op::ReadActive { .. } | Op::ReadWindow { .. } => "read key",
            Op::Intrude { .. } => "intrude",
        }
    }

    pub(crate) const KINDS: [&'static str; 17] = [
        "dispatch",
        "preview",
        "batch",
        "reserve",
        "start",
        "heartbeat",
        "succeed",
        "fail",
        "release",
        "finish",
        "cancel",
        "retry",
        "reset",
        "delete",
        "read job",
        "read key",
        "intrude",
    ];
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Outcome {
    /// Whatever it says, it was said to be what happened.
    Answered { status: u16, body: Value },
    /// Nothing was done, and somebody said so.
    Nothing(String),
    /// It may have been done, or be done later.
    Unknown(String),
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Record {
    /// Unique in its group.
    pub(crate) number: u32,
    pub(crate) client: usize,
    pub(crate) server: usize,
    pub(crate) op: Op,
    pub(crate) called: Micros,
    /// [`NEVER`] where the outcome is unknown.
    pub(crate) returned: Micros,
    pub(crate) outcome: Outcome,
}

/// A group of keys with everything that was done to them, by the order of the calls.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) group: u64,
    pub(crate) records: Vec<Record>,
}

impl History {
    pub(crate) fn label(group: u64, number: u32) -> String {
        format!("w{group}.{number}")
    }
}
