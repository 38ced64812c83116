//! The rules of one group of keys, one step after another. Written from the specification alone: it shares no code with
//! the server, and knows neither SQL nor HTTP.
//!
//! Time is not part of the order. Each step has a span in which its clock was read, and each instant that the model
//! remembers is a span too; a step is possible if some instants within the spans make it so.

use uuid::Uuid;

use crate::plan::{Ask, SLOTS};
use crate::record::{Call, Micros};
use crate::words::{End, Grant, Heard, Phase, Receipt, Span, View};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Lease {
    pub(crate) token: Uuid,
    until: Span,
    ends: Option<Span>,
    reserve_id: Option<String>,
    /// Whoever asked may not have heard of it: the server may give the job back.
    unheard: bool,
}

impl Lease {
    fn over(&self) -> Span {
        self.until.earlier_of(self.ends)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Job {
    pub(crate) id: Uuid,
    active: Option<u8>,
    payload: u8,
    max_attempts: i32,
    timeout: Option<Micros>,
    retention: Micros,
    dispatched: Micros,
    pub(crate) phase: Phase,
    pub(crate) attempt: i32,
    limit: i32,
    run_at: Span,
    lease: Option<Lease>,
    cancel: bool,
    finished: Span,
    ends: Vec<(Uuid, End)>,
    pub(crate) gone: bool,
}

/// What a request is recognised by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Print {
    payload: u8,
    delay: Option<u32>,
    active: Option<u8>,
}

impl Print {
    fn of(ask: &Ask) -> Print {
        Print {
            payload: ask.payload,
            delay: ask.delay_ms,
            active: ask.active,
        }
    }

    fn differs(&self, other: &Print) -> Vec<&'static str> {
        let parts = [
            ("payload", self.payload != other.payload),
            ("start", self.delay != other.delay),
            ("active_key", self.active != other.active),
        ];
        parts
            .into_iter()
            .filter_map(|(part, differs)| differs.then_some(part))
            .collect()
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Window {
    pub(crate) job: Uuid,
    pub(crate) until: Span,
    print: Print,
    release_on: u8,
    linked: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct State {
    pub(crate) jobs: Vec<Job>,
    pub(crate) windows: [Option<Window>; SLOTS],
}

impl State {
    pub(crate) fn job(&self, id: Uuid) -> Option<&Job> {
        self.jobs.iter().find(|job| job.id == id)
    }

    pub(crate) fn job_mut(&mut self, id: Uuid) -> Option<&mut Job> {
        self.jobs.iter_mut().find(|job| job.id == id)
    }

    /// The live job with an active key.
    pub(crate) fn holder(&self, active: Option<u8>) -> Option<&Job> {
        active?;
        self.jobs.iter().find(|job| job.active == active && job.phase.is_live())
    }

    /// What a window key holds, over or not.
    fn window(&self, slot: Option<u8>) -> Option<&Window> {
        self.windows[usize::from(slot?)].as_ref()
    }

    /// The same, if it may not be over.
    pub(crate) fn held(&self, slot: Option<u8>, now: Span) -> Option<&Window> {
        self.window(slot).filter(|window| window.until.may_be_ahead(now))
    }

    /// Whether a window key may be free.
    pub(crate) fn is_free(&self, slot: Option<u8>, now: Span) -> bool {
        self.window(slot).is_none_or(|window| window.until.may_be_over(now))
    }

    pub(crate) fn create(&mut self, ask: &Ask, id: Uuid, now: Span) -> bool {
        if !self.is_free(ask.slot, now) || self.holder(ask.active).is_some() || self.job(id).is_some() {
            return false;
        }
        let delay = Micros::from(ask.delay_ms.unwrap_or(0)) * 1_000;
        let job = Job {
            id,
            active: ask.active,
            payload: ask.payload,
            max_attempts: ask.max_attempts,
            timeout: ask.timeout_ms.map(|millis| Micros::from(millis) * 1_000),
            retention: ask.retention_ms() * 1_000,
            dispatched: now.0,
            phase: Phase::Pending,
            attempt: 0,
            limit: ask.max_attempts,
            run_at: now.later(delay),
            lease: None,
            cancel: false,
            finished: Span(0, 0),
            ends: Vec::new(),
            gone: false,
        };
        let place = self.jobs.partition_point(|other| other.id < id);
        self.jobs.insert(place, job);
        self.claim(ask, id, now, false);
        true
    }

    fn claim(&mut self, ask: &Ask, job: Uuid, now: Span, linked: bool) {
        if let Some(slot) = ask.slot {
            self.windows[usize::from(slot)] = Some(Window {
                job,
                until: now.later(ask.window_ms() * 1_000),
                print: Print::of(ask),
                release_on: ask.release_on,
                linked,
            });
        }
    }

    /// Ties the window key to the live job with the active key.
    pub(crate) fn link(&mut self, ask: &Ask, now: Span) -> Option<Uuid> {
        let job = self.holder(ask.active).map(|job| job.id)?;
        if ask.slot.is_none() || !self.is_free(ask.slot, now) {
            return None;
        }
        self.claim(ask, job, now, true);
        Some(job)
    }

    /// Whether a dispatch that writes nothing may be answered so.
    pub(crate) fn may_reuse(&self, ask: &Ask, said: &Receipt, now: Span) -> bool {
        let active = self.holder(ask.active);
        match (said.matched.as_deref(), active) {
            (Some("active"), Some(job)) => {
                job.id == said.job
                    && ask.slot.is_none()
                    && said.differs.is_none()
                    && self.is_told(ask, said, Some(job.phase))
            }
            (Some(matched @ ("window" | "both")), active) => {
                let Some(window) = self.held(ask.slot, now) else {
                    return false;
                };
                let differs = window.print.differs(&Print::of(ask));
                let mismatch = match &said.differs {
                    None => differs.is_empty(),
                    Some(said) => ask.reuse_on_mismatch && same(said, &differs) && !differs.is_empty(),
                };
                let both = match active {
                    None => matched == "window",
                    Some(job) => matched == "both" && job.id == window.job,
                };
                let mut phase = self.job(window.job).filter(|job| !job.gone).map(|job| job.phase);
                // Who is answered by a link of its own transaction has looked at the job a moment before: it was live
                // and stays so, and may have moved on.
                let live = |phase: Option<Phase>| phase.is_some_and(Phase::is_live);
                if window.linked && live(phase) && live(said.phase) {
                    phase = said.phase;
                }
                window.job == said.job
                    && mismatch
                    && both
                    && said.until.is_some_and(|until| window.until.holds(until))
                    && !said.linked
                    && self.is_told(ask, said, phase)
            }
            _ => false,
        }
    }

    /// Whether what is said of the job is so. A phase that is not asked about may be any.
    pub(crate) fn is_told(&self, ask: &Ask, said: &Receipt, phase: Option<Phase>) -> bool {
        let Some(job) = self.job(said.job) else { return false };
        let mut drift = Vec::new();
        if !job.gone && job.max_attempts != ask.max_attempts {
            drift.push("retry.max_attempts");
        }
        if !job.gone && job.timeout != ask.timeout_ms.map(|millis| Micros::from(millis) * 1_000) {
            drift.push("timeout");
        }
        said.phase == phase
            && said.available == phase.is_some()
            && said.dispatched == job.dispatched
            && said.active == job.active
            && same(&said.drift, &drift)
    }

    /// Whether a window key may be held by a request that differs so.
    pub(crate) fn may_conflict(&self, ask: &Ask, holder: Option<Uuid>, differs: &[String], now: Span) -> bool {
        self.held(ask.slot, now).is_some_and(|window| {
            let parts = window.print.differs(&Print::of(ask));
            !parts.is_empty()
                && same(differs, &parts)
                && !ask.reuse_on_mismatch
                && holder.is_none_or(|holder| holder == window.job)
        })
    }

    /// Whether a window key may be held by this job, for a request that would be taken for the same.
    pub(crate) fn may_hold(&self, ask: &Ask, holder: Uuid, now: Span) -> bool {
        self.held(ask.slot, now).is_some_and(|window| {
            window.job == holder && (ask.reuse_on_mismatch || window.print.differs(&Print::of(ask)).is_empty())
        })
    }

    pub(crate) fn reset(&mut self, slot: u8, job: Option<Uuid>, now: Span) -> Option<Uuid> {
        let held = self.held(Some(slot), now)?.job;
        if job.is_some_and(|job| job != held) {
            return None;
        }
        self.windows[usize::from(slot)] = None;
        Some(held)
    }

    /// Whether a reset may find nothing to free.
    pub(crate) fn may_spare(&self, slot: u8, job: Option<Uuid>, now: Span) -> bool {
        self.is_free(Some(slot), now)
            || self
                .window(Some(slot))
                .is_some_and(|held| job.is_some_and(|job| job != held.job))
    }

    /// Gives a job out. `lease` is its length, or when it ends, where that is known.
    pub(crate) fn reserve(&mut self, id: Uuid, grant: &Grant, now: Span) -> bool {
        let Some(job) = self.job_mut(id).filter(|job| !job.gone) else {
            return false;
        };
        let until = grant.until.map_or(now.later(grant.lease), Span::at);
        if let Some(lease) = &mut job.lease {
            // The same again, with a new token.
            let again = grant.reserve_id.is_some() && lease.reserve_id == grant.reserve_id;
            let fits = again && lease.over().may_be_ahead(now) && grant.attempt.is_none_or(|said| said == job.attempt);
            if fits {
                lease.token = grant.token;
                lease.until = until;
                lease.unheard = grant.unheard;
            }
            return fits;
        }
        let waits = matches!(job.phase, Phase::Pending | Phase::Retrying) && job.run_at.may_be_over(now);
        if !waits || grant.renewed || grant.attempt.is_some_and(|said| said != job.attempt + 1) {
            return false;
        }
        job.phase = Phase::Reserved;
        job.attempt += 1;
        job.lease = Some(Lease {
            token: grant.token,
            until,
            ends: job.timeout.map(|timeout| now.later(timeout)),
            reserve_id: grant.reserve_id.clone(),
            unheard: grant.unheard,
        });
        true
    }

    /// A worker's call. `None`: it cannot have been answered so.
    pub(crate) fn call(&mut self, id: Uuid, token: Uuid, call: Call, heard: &Heard, now: Span) -> bool {
        let Some(job) = self.job_mut(id).filter(|job| !job.gone) else {
            return false;
        };
        let end = match call {
            Call::Start | Call::Heartbeat { .. } => None,
            Call::Succeed => Some(End::Succeed),
            Call::Fail { .. } => Some(End::Fail),
            Call::Release => Some(End::Release),
        };
        let before = |end: End| job.ends.contains(&(token, end));
        let repeated = end.is_some_and(|end| before(end) || (end == End::Release && before(End::ReleaseCancelled)));
        if repeated {
            return *heard != Heard::LeaseLost;
        }
        let lease = job.lease.clone().filter(|lease| lease.token == token);
        if *heard == Heard::LeaseLost {
            return lease.is_none_or(|lease| lease.over().may_be_over(now));
        }
        let Some(lease) = lease.filter(|lease| lease.over().may_be_ahead(now)) else {
            return false;
        };
        match call {
            Call::Start if job.phase == Phase::Running => {}
            Call::Start => {
                job.phase = Phase::Running;
                let ends = job.timeout.map(|timeout| now.later(timeout));
                job.lease = Some(Lease { ends, ..lease });
            }
            Call::Heartbeat { lease_ms } => {
                let asked = now.later(lease_ms * 1_000);
                let until = Span(asked.0.max(lease.until.0), asked.1.max(lease.until.1));
                let until = match heard {
                    Heard::Beat(said, cancel) if until.holds(*said) && *cancel == job.cancel => Span::at(*said),
                    Heard::Beat(..) => return false,
                    _ => until,
                };
                job.lease = Some(Lease { until, ..lease });
            }
            Call::Succeed => {
                job.end(token, End::Succeed);
                self.finish(id, Phase::Succeeded, now);
            }
            Call::Fail { retry, retry_in_ms } => {
                job.end(token, End::Fail);
                self.failed(id, retry, retry_in_ms.unwrap_or(BACKOFF_MS), now);
            }
            Call::Release => self.release(id, now),
        }
        true
    }

    fn release(&mut self, id: Uuid, now: Span) {
        let Some(job) = self.job_mut(id) else { return };
        let Some(token) = job.lease.as_ref().map(|lease| lease.token) else {
            return;
        };
        if job.cancel {
            job.end(token, End::ReleaseCancelled);
            self.finish(id, Phase::Cancelled, now);
            return;
        }
        job.end(token, End::Release);
        job.attempt -= 1;
        let first = job.attempt == job.limit - job.max_attempts;
        job.phase = if first { Phase::Pending } else { Phase::Retrying };
    }

    fn failed(&mut self, id: Uuid, retry: bool, wait_ms: Micros, now: Span) {
        let Some(job) = self.job_mut(id) else { return };
        if job.cancel {
            self.finish(id, Phase::Cancelled, now);
        } else if !retry || job.attempt >= job.limit {
            self.finish(id, Phase::Failed, now);
        } else {
            job.phase = Phase::Retrying;
            job.run_at = now.later(wait_ms * 1_000);
        }
    }

    fn finish(&mut self, id: Uuid, phase: Phase, now: Span) {
        if let Some(job) = self.job_mut(id) {
            job.phase = phase;
            job.finished = now;
        }
        for window in &mut self.windows {
            if window
                .as_ref()
                .is_some_and(|held| held.job == id && held.release_on & phase.bit() != 0)
            {
                *window = None;
            }
        }
    }

    /// `Some(true)`: done or done before; `Some(false)`: too late; `None`: no such job.
    pub(crate) fn cancel(&mut self, id: Uuid, force: bool, now: Span) -> Option<bool> {
        let job = self.job_mut(id).filter(|job| !job.gone)?;
        match job.phase {
            Phase::Cancelled => {}
            Phase::Succeeded | Phase::Failed => return Some(false),
            Phase::Reserved | Phase::Running if !force => job.cancel = true,
            Phase::Pending | Phase::Retrying | Phase::Reserved | Phase::Running => {
                job.cancel = true;
                if let Some(token) = job.lease.as_ref().map(|lease| lease.token) {
                    job.end(token, End::Other);
                }
                self.finish(id, Phase::Cancelled, now);
            }
        }
        Some(true)
    }

    /// A finished job is made pending, if its active key is free.
    pub(crate) fn run_again(&mut self, id: Uuid, now: Span) -> bool {
        let free = self.job(id).is_some_and(|job| self.holder(job.active).is_none());
        let Some(job) = self.job_mut(id) else { return false };
        if job.gone || job.phase.is_live() || !free {
            return false;
        }
        job.phase = Phase::Pending;
        job.limit = job.attempt + job.max_attempts;
        job.run_at = now;
        job.cancel = false;
        true
    }

    pub(crate) fn delete(&mut self, id: Uuid) -> bool {
        let finished = self.job_mut(id).filter(|job| !job.gone && !job.phase.is_live());
        finished.map(|job| job.gone = true).is_some()
    }

    /// All that may have become of a job by itself until `now`, this state included.
    pub(crate) fn by_itself(&self, id: Uuid, now: Span) -> Vec<State> {
        let mut all = vec![self.clone()];
        let mut next = 0;
        while next < all.len() {
            let state = all[next].clone();
            next += 1;
            let Some(job) = state.job(id).filter(|job| !job.gone) else {
                continue;
            };
            let mut add = |change: &dyn Fn(&mut State)| {
                let mut changed = state.clone();
                change(&mut changed);
                if !all.contains(&changed) {
                    all.push(changed);
                }
            };
            if let Some(lease) = &job.lease {
                let over = lease.over();
                if over.may_be_over(now) {
                    let token = lease.token;
                    add(&|state| {
                        state.job_mut(id).into_iter().for_each(|job| job.end(token, End::Other));
                        state.failed(id, true, BACKOFF_MS, Span(over.0, now.1));
                    });
                }
                if lease.unheard {
                    add(&|state| state.release(id, now));
                }
            }
            if !job.phase.is_live() && job.finished.later(job.retention).may_be_over(now) {
                add(&|state| state.job_mut(id).into_iter().for_each(|job| job.gone = true));
            }
        }
        all
    }
}

/// All jobs of a run wait so long before they are tried again.
pub(crate) const BACKOFF_MS: Micros = 120;

impl Job {
    fn end(&mut self, token: Uuid, end: End) {
        self.lease = None;
        self.ends.push((token, end));
    }

    pub(crate) fn is_live(&self) -> bool {
        self.phase.is_live()
    }

    pub(crate) fn was_reserved_by(&self, reserve_id: Option<&str>) -> bool {
        self.lease
            .as_ref()
            .is_some_and(|lease| lease.reserve_id.as_deref() == reserve_id)
    }

    pub(crate) fn active(&self) -> Option<u8> {
        self.active
    }

    /// Whether a reader may see this of it.
    pub(crate) fn shows(&self, view: &View) -> bool {
        let &View {
            phase,
            attempt,
            cancel,
            active,
            payload,
        } = view;
        !self.gone
            && (self.phase, self.attempt, self.cancel) == (phase, attempt, cancel)
            && self.active == active
            && payload.is_none_or(|payload| payload == self.payload)
    }
}

fn same(said: &[String], parts: &[&str]) -> bool {
    said.len() == parts.len() && parts.iter().all(|part| said.iter().any(|said| said == part))
}
