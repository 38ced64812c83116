//! A receipt on the wire.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::http::wire::StateBody;
use crate::job::State;
use crate::uniqueness::decide::Match;
use crate::uniqueness::receipt::{Receipt, WindowReceipt};

/// What a dispatch led to.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = Receipt)]
pub struct ReceiptBody {
    /// Null only in a preview of a dispatch that would create.
    job_id: Option<Uuid>,
    #[schema(value_type = String, example = "place-order")]
    name: Box<str>,
    #[schema(example = "created")]
    disposition: Disposition,
    /// Which key led to the job; null when it was created.
    duplicate_match: Option<DuplicateMatch>,
    /// Whether the job's retry or timeout settings differ from those of this dispatch. The job keeps its own.
    policy_drift: bool,
    /// The settings that differ.
    #[schema(value_type = Vec<String>)]
    drift: Vec<&'static str>,
    /// As the decision saw it; null when the key outlived the job.
    #[schema(value_type = Option<StateBody>)]
    state: Option<&'static str>,
    /// Whether the job is still stored.
    job_available: bool,
    /// When the job was first dispatched.
    dispatched_at: DateTime<Utc>,
    /// The database's time of this decision.
    decided_at: DateTime<Utc>,
    /// The job's.
    #[schema(value_type = Option<String>, example = "welcome:7")]
    active_key: Option<Box<str>>,
    window: Option<WindowBody>,
    /// True when the job is reused though the request differs (`on_mismatch: reuse`).
    #[serde(skip_serializing_if = "Option::is_none")]
    request_mismatch: Option<bool>,
    /// With `request_mismatch`: which parts differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    differs: Option<Vec<&'static str>>,
}

#[derive(Clone, Copy, Serialize, ToSchema, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Disposition {
    Created,
    Reused,
}

#[derive(Serialize, ToSchema, Debug)]
#[serde(rename_all = "snake_case")]
pub enum DuplicateMatch {
    Active,
    Window,
    Both,
}

/// The window key of a receipt.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = ReceiptWindow)]
pub struct WindowBody {
    #[schema(value_type = String, example = "req-1")]
    key: Box<str>,
    #[schema(value_type = String, example = "global")]
    scope: Box<str>,
    /// The first instant at which the key is free. It never moves.
    expires_at: DateTime<Utc>,
    /// Whether this dispatch tied the key to a job that was there.
    linked: bool,
}

impl ReceiptBody {
    pub fn disposition(&self) -> Disposition {
        self.disposition
    }

    /// As the receipt of a preview: a job that would be created has no id yet.
    pub fn previewed(mut self) -> ReceiptBody {
        if matches!(self.disposition, Disposition::Created) {
            self.job_id = None;
        }
        self
    }
}

impl From<Receipt> for ReceiptBody {
    fn from(receipt: Receipt) -> ReceiptBody {
        let Receipt {
            job_id,
            name,
            matched,
            drift,
            state,
            dispatched_at,
            decided_at,
            active_key,
            window,
            mismatch,
        } = receipt;
        ReceiptBody {
            job_id: Some(job_id.0),
            name,
            disposition: if matched.is_none() {
                Disposition::Created
            } else {
                Disposition::Reused
            },
            duplicate_match: matched.map(|matched| match matched {
                Match::Active => DuplicateMatch::Active,
                Match::Window => DuplicateMatch::Window,
                Match::Both => DuplicateMatch::Both,
            }),
            policy_drift: !drift.is_empty(),
            drift,
            state: state.map(State::as_str),
            job_available: state.is_some(),
            dispatched_at,
            decided_at,
            active_key,
            window: window.map(
                |WindowReceipt {
                     key,
                     scope,
                     expires_at,
                     linked,
                 }| WindowBody {
                    key,
                    scope,
                    expires_at,
                    linked,
                },
            ),
            request_mismatch: mismatch.as_ref().map(|_| true),
            differs: mismatch.map(|parts| parts.iter().map(|part| part.as_str()).collect()),
        }
    }
}
