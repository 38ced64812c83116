//! What a decided dispatch is answered with.

use crate::job::{Instant, JobId, State};
use crate::uniqueness::decide::{AskedWindow, HeldJob, Match, WindowHolder};
use crate::uniqueness::fingerprint::Part;
use crate::uniqueness::key::Scope;

/// The answer to a dispatch that was not refused.
#[derive(Clone, PartialEq, Debug)]
pub struct Receipt {
    pub job_id: JobId,
    pub name: Box<str>,
    /// `None`: created.
    pub matched: Option<Match>,
    pub drift: Vec<&'static str>,
    /// As the decision saw it; `None` when the key outlived the job.
    pub state: Option<State>,
    pub dispatched_at: Instant,
    pub decided_at: Instant,
    pub active_key: Option<Box<str>>,
    pub window: Option<WindowReceipt>,
    pub mismatch: Option<Vec<Part>>,
}

/// The window key of a receipt.
#[derive(Clone, PartialEq, Debug)]
pub struct WindowReceipt {
    pub key: Box<str>,
    pub scope: Box<str>,
    pub expires_at: Instant,
    /// This dispatch tied the key to a job that was there.
    pub linked: bool,
}

impl WindowReceipt {
    /// A window that begins with this dispatch.
    pub(super) fn begun(asked: &AskedWindow, decided_at: Instant, linked: bool) -> WindowReceipt {
        WindowReceipt::of(asked, asked.window.end(decided_at), linked)
    }

    /// A window that began earlier. It keeps its end.
    pub(super) fn held(asked: &AskedWindow, holder: &WindowHolder) -> WindowReceipt {
        WindowReceipt::of(asked, holder.expires_at, false)
    }

    fn of(asked: &AskedWindow, expires_at: Instant, linked: bool) -> WindowReceipt {
        let key = &asked.key.key;
        WindowReceipt {
            key: key.text.as_str().into(),
            scope: Scope::name_of(&key.scope).into(),
            expires_at,
            linked,
        }
    }
}

/// Why a dispatch was refused, when every part of it was right.
#[derive(Clone, PartialEq, Debug)]
pub enum Refusal {
    /// The window key is held by another request.
    Conflict { job: JobRef, differs: Vec<Part> },
    /// The two keys lead to two jobs.
    CompositionConflict { window: JobRef, active: JobRef },
}

/// A job as a refusal names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobRef {
    pub id: JobId,
    /// The item of the same batch that created it.
    pub created_by_item: Option<usize>,
}

impl JobRef {
    pub(super) fn of(job: &HeldJob) -> JobRef {
        JobRef {
            id: job.id,
            created_by_item: job.created_by_item,
        }
    }
}
