//! The steps that histories are made of: what one answer claims to have happened at one instant.

use uuid::Uuid;

use crate::model::State;
use crate::plan::Ask;
use crate::record::{Call, Micros};
use crate::words::{Grant, Heard, Receipt, Span, View};

/// Something that happened at one instant between two others, if the answer is true.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// The number of the request that it belongs to; `None` for what was found at the end.
    pub(crate) record: Option<u32>,
    pub(crate) step: Step,
    pub(crate) called: Micros,
    pub(crate) returned: Micros,
    /// When its clock was read.
    pub(crate) at: Span,
    /// When the server may have acted by itself before it: up to the answer, since what a decision looks at is
    /// looked at after its clock.
    pub(crate) until_now: Span,
    /// It may never have happened.
    pub(crate) optional: bool,
    /// A part that came before it.
    pub(crate) after: Option<usize>,
}

/// What a dispatch did, or did not.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    Created(Receipt),
    /// Nobody heard the receipt. The job is there.
    Stored(Uuid),
    Reused(Receipt),
    Linked(Receipt),
    /// Nobody heard it.
    MayHaveLinked,
    Conflict(Option<Uuid>, Vec<String>),
    Composition(Uuid, Uuid),
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Dispatches of one transaction that write, and those that meet what it wrote, in their order.
    Dispatch(Vec<(Ask, Said)>),
    /// What a dispatch would be answered with.
    Preview(Ask, PreviewSaid),
    HoldsWindow(Ask, Uuid),
    HoldsActive(Ask, Uuid),
    Reserve(Vec<(Uuid, Grant)>),
    /// Whatever a reserve with this id was given before is given out again.
    Renew(Grant),
    Call(Uuid, Uuid, Call, Heard),
    /// `false`: it was too late.
    Cancel(Uuid, bool, bool),
    Retry(Uuid),
    ActiveKeyHeld(Uuid),
    IsLive(Uuid),
    IsGone(Uuid),
    Delete(Uuid),
    Reset(u8, Option<Uuid>, Option<Uuid>),
    /// Nobody heard it.
    MayHaveReset(u8, Option<Uuid>),
    View(Uuid, View),
    ActiveHeldBy(u8, Option<Uuid>),
    WindowHeldBy(u8, Option<(Uuid, Micros)>),
    /// The row of a window key at the end.
    WindowRow(u8, Option<(Uuid, Micros)>),
}

#[derive(Clone, Debug)]
pub(crate) enum PreviewSaid {
    WouldCreate,
    Other(Said),
}

impl Step {
    /// The jobs whose lives bear on it.
    pub(crate) fn touches(&self, state: &State) -> Vec<Uuid> {
        let mut jobs = Vec::new();
        let mut keys = |active: Option<u8>, slot: Option<u8>| {
            jobs.extend(state.holder(active).map(|job| job.id));
            jobs.extend(
                slot.and_then(|slot| state.windows[usize::from(slot)].as_ref())
                    .map(|held| held.job),
            );
        };
        match self {
            Step::Dispatch(items) => items.iter().for_each(|(ask, _)| keys(ask.active, ask.slot)),
            Step::Preview(ask, _) | Step::HoldsWindow(ask, _) | Step::HoldsActive(ask, _) => {
                keys(ask.active, ask.slot);
            }
            Step::ActiveHeldBy(key, _) => keys(Some(*key), None),
            Step::WindowHeldBy(slot, _) | Step::WindowRow(slot, _) => keys(None, Some(*slot)),
            Step::Reset(slot, ..) | Step::MayHaveReset(slot, _) => keys(None, Some(*slot)),
            Step::Reserve(grants) => jobs.extend(grants.iter().map(|(id, _)| *id)),
            Step::Renew(grant) => {
                let again = state
                    .jobs
                    .iter()
                    .filter(|job| job.was_reserved_by(grant.reserve_id.as_deref()));
                jobs.extend(again.map(|job| job.id));
            }
            Step::Retry(id) | Step::ActiveKeyHeld(id) => {
                jobs.push(*id);
                let active = state.job(*id).and_then(|job| job.active());
                jobs.extend(state.holder(active).map(|job| job.id));
            }
            Step::Call(id, ..)
            | Step::Cancel(id, ..)
            | Step::IsLive(id)
            | Step::IsGone(id)
            | Step::Delete(id)
            | Step::View(id, _) => jobs.push(*id),
        }
        jobs.sort_unstable();
        jobs.dedup();
        jobs
    }

    /// Whether it changes nothing, whatever the state.
    pub(crate) fn only_looks(&self) -> bool {
        let looks = |said: &Said| match said {
            Said::Reused(_) | Said::Conflict(..) | Said::Composition(..) => true,
            Said::Created(_) | Said::Stored(_) | Said::Linked(_) | Said::MayHaveLinked => false,
        };
        match self {
            Step::Dispatch(items) => items.iter().all(|(_, said)| looks(said)),
            Step::Call(.., heard) => *heard == Heard::LeaseLost,
            Step::Cancel(.., done) => !done,
            Step::Reset(.., held) => held.is_none(),
            Step::Preview(..)
            | Step::HoldsWindow(..)
            | Step::HoldsActive(..)
            | Step::ActiveKeyHeld(_)
            | Step::IsLive(_)
            | Step::IsGone(_)
            | Step::View(..)
            | Step::ActiveHeldBy(..)
            | Step::WindowHeldBy(..)
            | Step::WindowRow(..) => true,
            Step::Reserve(_) | Step::Renew(_) | Step::Retry(_) | Step::Delete(_) | Step::MayHaveReset(..) => false,
        }
    }

    /// The state after it, if it is possible at an instant of `now`.
    pub(crate) fn take(&self, state: &State, now: Span) -> Option<State> {
        let mut next = state.clone();
        let possible = match self {
            Step::Dispatch(items) => items.iter().all(|(ask, said)| dispatch(&mut next, ask, said, now)),
            Step::Preview(ask, PreviewSaid::WouldCreate) => {
                state.is_free(ask.slot, now) && state.holder(ask.active).is_none()
            }
            Step::Preview(ask, PreviewSaid::Other(said)) => {
                // What it would write is not written.
                dispatch(&mut state.clone(), ask, said, now)
            }
            Step::HoldsWindow(ask, holder) => state.may_hold(ask, *holder, now),
            Step::HoldsActive(ask, holder) => state.holder(ask.active).is_some_and(|job| job.id == *holder),
            Step::Reserve(grants) => grants.iter().all(|(id, grant)| next.reserve(*id, grant, now)),
            Step::Renew(grant) => {
                let ids: Vec<Uuid> = state.jobs.iter().map(|job| job.id).collect();
                for id in ids {
                    next.reserve(id, grant, now);
                }
                true
            }
            Step::Call(id, token, call, heard) => next.call(*id, *token, *call, heard, now),
            Step::Cancel(id, force, done) => next.cancel(*id, *force, now) == Some(*done),
            Step::Retry(id) => next.run_again(*id, now),
            Step::ActiveKeyHeld(id) => state.job(*id).is_some_and(|job| {
                !job.gone && !job.is_live() && state.holder(job.active()).is_some_and(|holder| holder.id != *id)
            }),
            Step::IsLive(id) => state.job(*id).is_some_and(|job| !job.gone && job.is_live()),
            Step::IsGone(id) => state.job(*id).is_some_and(|job| job.gone),
            Step::Delete(id) => next.delete(*id),
            Step::Reset(slot, job, Some(held)) => next.reset(*slot, *job, now) == Some(*held),
            Step::Reset(slot, job, None) => state.may_spare(*slot, *job, now),
            Step::MayHaveReset(slot, job) => next.reset(*slot, *job, now).is_some(),
            Step::View(id, view) => state.job(*id).is_some_and(|job| job.shows(view)),
            Step::ActiveHeldBy(key, holder) => state.holder(Some(*key)).map(|job| job.id) == *holder,
            Step::WindowHeldBy(slot, None) => state.is_free(Some(*slot), now),
            Step::WindowHeldBy(slot, Some((holder, until))) => state
                .held(Some(*slot), now)
                .is_some_and(|held| held.job == *holder && held.until.holds(*until)),
            Step::WindowRow(slot, None) => state.is_free(Some(*slot), now),
            Step::WindowRow(slot, Some((holder, until))) => state.windows[usize::from(*slot)]
                .as_ref()
                .is_some_and(|held| held.job == *holder && held.until.holds(*until)),
        };
        possible.then_some(next)
    }
}

fn dispatch(state: &mut State, ask: &Ask, said: &Said, now: Span) -> bool {
    match said {
        Said::Created(receipt) => {
            let until = ask.slot.map(|_| now.0 + ask.window_ms() * 1_000);
            state.create(ask, receipt.job, now)
                && receipt.until == until
                && !receipt.linked
                && receipt.differs.is_none()
                && state.is_told(ask, receipt, Some(crate::words::Phase::Pending))
        }
        Said::Stored(id) => state.create(ask, *id, now),
        Said::Reused(receipt) => state.may_reuse(ask, receipt, now),
        Said::Linked(receipt) => {
            let until = now.0 + ask.window_ms() * 1_000;
            // Its phase was looked up a moment before; that the job was still live is sure.
            let phase = receipt.phase.filter(|phase| phase.is_live());
            receipt.matched.as_deref() == Some("active")
                && receipt.linked
                && receipt.until == Some(until)
                && phase.is_some()
                && state.link(ask, now) == Some(receipt.job)
                && state.is_told(ask, receipt, phase)
        }
        Said::MayHaveLinked => state.link(ask, now).is_some(),
        Said::Conflict(holder, differs) => state.may_conflict(ask, *holder, differs, now),
        Said::Composition(window, active) => {
            state.may_hold(ask, *window, now) && state.holder(ask.active).is_some_and(|job| job.id == *active)
        }
    }
}
