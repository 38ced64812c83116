//! Units of dispatches folded over an in-memory view of who holds their keys.
//!
//! A single dispatch is a unit of one; a batch is a unit whose items act one after another, each seeing what
//! the ones before it did. A unit is applied whole or not at all.

use std::collections::HashMap;

use crate::job::{AppId, Instant, JobId, JobIds, State};
use crate::uniqueness::decide::{Ask, AskedKey, AskedWindow, Decision, HeldJob, JobNow, Match, WindowHolder, decide};
use crate::uniqueness::fingerprint::Part;
use crate::uniqueness::key::KeyDigest;
use crate::uniqueness::receipt::{JobRef, Receipt, Refusal, WindowReceipt};

/// Dispatches of one application that are applied together or not at all.
#[derive(Debug)]
pub struct Unit<'a> {
    pub app: AppId,
    /// The job name and what is asked of uniqueness, item by item.
    pub items: Vec<(&'a str, &'a Ask)>,
    /// A refused item does not stop the others.
    pub continue_on_conflict: bool,
}

/// What became of a unit.
#[derive(Clone, PartialEq, Debug)]
pub enum UnitOutcome {
    /// One result for each item, in input order.
    Applied(Vec<Result<Receipt, Refusal>>),
    /// Nothing is written, because of the item at `index`.
    Refused { index: usize, refusal: Refusal },
}

/// Something that a transaction has to write.
#[derive(Clone, PartialEq, Debug)]
pub enum Change<'a> {
    Create {
        app: AppId,
        item: Position,
        id: JobId,
    },
    ClaimActive {
        app: AppId,
        job: HeldJob,
        key: &'a AskedKey,
    },
    ClaimWindow {
        app: AppId,
        job: HeldJob,
        asked: &'a AskedWindow,
        expires_at: Instant,
        over: Option<Seen>,
        linked: bool,
    },
}

/// Which item of which unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    pub unit: usize,
    pub item: usize,
}

/// The holder that a claim takes over, as it was seen: the claim is void if it is another by now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    pub job: JobId,
    pub expires_at: Instant,
}

/// What has been read without locks is worth to a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// All of its items are answered by what is there, and write nothing: true when it was read.
    Answered,
    /// None of its keys has a row.
    Fresh,
    /// Something has to be written that depends on what is there.
    Mixed,
}

type Place = (AppId, KeyDigest);

/// Who holds the keys that a transaction has locked and looked up.
#[derive(Debug, Default)]
pub struct Holders {
    active: HashMap<Place, HeldJob>,
    window: HashMap<Place, WindowHolder>,
}

impl Holders {
    pub fn insert_active(&mut self, app: AppId, digest: KeyDigest, job: HeldJob) {
        self.active.insert((app, digest), job);
    }

    pub fn insert_window(&mut self, app: AppId, digest: KeyDigest, holder: WindowHolder) {
        self.window.insert((app, digest), holder);
    }

    pub fn active(&self, app: AppId, digest: KeyDigest) -> Option<&HeldJob> {
        self.active.get(&(app, digest))
    }

    pub fn window(&self, app: AppId, digest: KeyDigest) -> Option<&WindowHolder> {
        self.window.get(&(app, digest))
    }

    /// What one dispatch would meet now. Changes nothing.
    pub fn decide<'h>(&'h self, app: AppId, ask: &Ask, now: Instant) -> Decision<'h> {
        decide(ask, self.window_of(app, ask), self.active_of(app, ask), now)
    }

    /// What a unit would meet now, as far as it matters to how it is decided.
    pub fn standing(&self, unit: &Unit<'_>, now: Instant) -> Standing {
        let fresh = |ask: &Ask| self.window_of(unit.app, ask).is_none() && self.active_of(unit.app, ask).is_none();
        let answered = |ask: &Ask| match self.decide(unit.app, ask, now) {
            Decision::Create => false,
            // A window key that was asked for and has not answered is to be linked.
            Decision::Reuse { window, .. } => window.is_some() || ask.window.is_none(),
            Decision::Conflict { .. } | Decision::CompositionConflict { .. } => true,
        };
        if unit.items.iter().all(|(_, ask)| fresh(ask)) {
            Standing::Fresh
        } else if unit.items.iter().all(|(_, ask)| answered(ask)) {
            Standing::Answered
        } else {
            Standing::Mixed
        }
    }

    fn window_of(&self, app: AppId, ask: &Ask) -> Option<&WindowHolder> {
        ask.window.as_ref().and_then(|asked| self.window(app, asked.key.digest))
    }

    fn active_of(&self, app: AppId, ask: &Ask) -> Option<&HeldJob> {
        ask.active.as_ref().and_then(|key| self.active(app, key.digest))
    }

    /// Applies a unit: its outcome, and what has to be written for it. A refused unit leaves no trace.
    pub fn apply<'a>(
        &mut self,
        place: usize,
        unit: &Unit<'a>,
        now: Instant,
        ids: &mut JobIds,
        changes: &mut Vec<Change<'a>>,
    ) -> UnitOutcome {
        let before = changes.len();
        let mut journal = Journal::default();
        let mut results = Vec::with_capacity(unit.items.len());
        for index in 0..unit.items.len() {
            let position = Position {
                unit: place,
                item: index,
            };
            match self.apply_item(position, unit, now, ids, changes, &mut journal) {
                Err(refusal) if !unit.continue_on_conflict => {
                    journal.undo(self);
                    changes.truncate(before);
                    return UnitOutcome::Refused { index, refusal };
                }
                result => results.push(result),
            }
        }
        journal.keep(self);
        UnitOutcome::Applied(results)
    }

    fn apply_item<'a>(
        &mut self,
        position: Position,
        unit: &Unit<'a>,
        now: Instant,
        ids: &mut JobIds,
        changes: &mut Vec<Change<'a>>,
        journal: &mut Journal,
    ) -> Result<Receipt, Refusal> {
        let (app, (name, ask)) = (unit.app, unit.items[position.item]);
        match self.decide(app, ask, now) {
            Decision::Create => {
                let job = HeldJob {
                    id: ids.next_id(),
                    created_by_item: Some(position.item),
                    dispatched_at: now,
                    active_key: ask.active.as_ref().map(|asked| asked.key.text.as_str().into()),
                    now: Some(JobNow {
                        state: State::Pending,
                        policy: ask.policy,
                    }),
                };
                changes.push(Change::Create {
                    app,
                    item: position,
                    id: job.id,
                });
                let receipt = created(name, ask, &job, now);
                if let Some(key) = &ask.active {
                    let place = (app, key.digest);
                    journal.active.push((place, self.active.insert(place, job.clone())));
                    changes.push(Change::ClaimActive {
                        app,
                        job: job.clone(),
                        key,
                    });
                }
                if let Some(asked) = &ask.window {
                    changes.push(self.claim_window(app, job, asked, now, false, journal));
                }
                Ok(receipt)
            }
            Decision::Reuse {
                job,
                matched,
                window,
                mismatch,
                drift,
            } => {
                let receipt = reused(name, ask, job, matched, window, mismatch, drift, now);
                if let (Some(asked), None) = (&ask.window, window) {
                    let job = job.clone();
                    changes.push(self.claim_window(app, job, asked, now, true, journal));
                }
                Ok(receipt)
            }
            Decision::Conflict { job, differs } => Err(Refusal::Conflict {
                job: JobRef::of(job),
                differs,
            }),
            Decision::CompositionConflict { window, active } => Err(Refusal::CompositionConflict {
                window: JobRef::of(window),
                active: JobRef::of(active),
            }),
        }
    }

    fn claim_window<'a>(
        &mut self,
        app: AppId,
        job: HeldJob,
        asked: &'a AskedWindow,
        now: Instant,
        linked: bool,
        journal: &mut Journal,
    ) -> Change<'a> {
        let expires_at = asked.window.end(now);
        let holder = WindowHolder {
            job: job.clone(),
            since: now,
            expires_at,
            fingerprint: asked.fingerprint.clone(),
        };
        let place = (app, asked.key.digest);
        let old = self.window.insert(place, holder);
        let over = old.as_ref().map(|old| Seen {
            job: old.job.id,
            expires_at: old.expires_at,
        });
        journal.window.push((place, old));
        Change::ClaimWindow {
            app,
            job,
            asked,
            expires_at,
            over,
            linked,
        }
    }
}

/// The receipt of a dispatch that creates `job`.
fn created(name: &str, ask: &Ask, job: &HeldJob, now: Instant) -> Receipt {
    Receipt {
        job_id: job.id,
        name: name.into(),
        matched: None,
        drift: Vec::new(),
        state: Some(State::Pending),
        dispatched_at: now,
        decided_at: now,
        active_key: job.active_key.clone(),
        window: ask.window.as_ref().map(|asked| WindowReceipt::begun(asked, now, false)),
        mismatch: None,
    }
}

/// The receipt of a dispatch that is answered with `job`, by the window `window` or by its active key.
#[expect(
    clippy::too_many_arguments,
    reason = "they are the parts of one decision, taken apart where it is matched"
)]
fn reused(
    name: &str,
    ask: &Ask,
    job: &HeldJob,
    matched: Match,
    window: Option<&WindowHolder>,
    mismatch: Option<Vec<Part>>,
    drift: Vec<&'static str>,
    now: Instant,
) -> Receipt {
    Receipt {
        job_id: job.id,
        name: name.into(),
        matched: Some(matched),
        drift,
        state: job.now.as_ref().map(|job| job.state),
        dispatched_at: job.dispatched_at,
        decided_at: now,
        active_key: job.active_key.clone(),
        window: ask.window.as_ref().map(|asked| match window {
            Some(holder) => WindowReceipt::held(asked, holder),
            None => WindowReceipt::begun(asked, now, true),
        }),
        mismatch,
    }
}

/// What a unit has changed in the view so far, oldest first, with what was there before.
#[derive(Default)]
struct Journal {
    active: Vec<(Place, Option<HeldJob>)>,
    window: Vec<(Place, Option<WindowHolder>)>,
}

impl Journal {
    fn undo(self, holders: &mut Holders) {
        for (place, old) in self.active.into_iter().rev() {
            restore(&mut holders.active, place, old);
        }
        for (place, old) in self.window.into_iter().rev() {
            restore(&mut holders.window, place, old);
        }
    }

    /// The unit stands: to the units behind it, its jobs are jobs like any other.
    fn keep(self, holders: &mut Holders) {
        for (place, _) in self.active {
            holders.active.entry(place).and_modify(|job| job.created_by_item = None);
        }
        for (place, _) in self.window {
            holders
                .window
                .entry(place)
                .and_modify(|holder| holder.job.created_by_item = None);
        }
    }
}

fn restore<T>(map: &mut HashMap<Place, T>, place: Place, old: Option<T>) {
    match old {
        Some(old) => map.insert(place, old),
        None => map.remove(&place),
    };
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::job::{FinalStates, Policy, Retry};
    use crate::uniqueness::decide::OnMismatch;
    use crate::uniqueness::fingerprint::{Asked, Fingerprint};
    use crate::uniqueness::key::{Key, KeyText, Scope};
    use crate::uniqueness::window::Window;

    const APP: AppId = AppId(1);

    fn at(second: i64) -> Instant {
        DateTime::from_timestamp(second, 0).unwrap()
    }

    fn ask(active: Option<&str>, window: Option<&str>) -> Ask {
        let text = |text: &str| KeyText::parse(text).unwrap();
        let window = window.map(|key| Key::window("n", Scope::Global, text(key)));
        Ask {
            active: active.map(|key| AskedKey::new(Key::active("n", text(key)))),
            window: window.map(|key| AskedWindow {
                fingerprint: Fingerprint::new(&key, &Asked::default()),
                key: AskedKey::new(key),
                window: Window::parse("10s").unwrap(),
                on_mismatch: OnMismatch::Conflict,
                release_on: FinalStates::NONE,
            }),
            policy: Policy {
                retry: Retry::DEFAULT,
                timeout: None,
            },
        }
    }

    /// `a` is the active key of a job, and `w` a window key of it that is held until second 10.
    fn held() -> Holders {
        let mut holders = Holders::default();
        let ask = ask(Some("a"), Some("w"));
        let unit = Unit {
            app: APP,
            items: vec![("n", &ask)],
            continue_on_conflict: false,
        };
        holders.apply(0, &unit, at(0), &mut JobIds::new(at(0), 0), &mut Vec::new());
        holders
    }

    #[test]
    fn only_what_writes_nothing_is_answered_without_locks_and_only_what_nobody_holds_is_fresh() {
        use Standing::{Answered, Fresh, Mixed};
        type Keys<'a> = (Option<&'a str>, Option<&'a str>);
        let cases: Vec<(Vec<Keys<'_>>, i64, Standing)> = vec![
            (vec![(None, None)], 5, Fresh),
            (vec![(Some("b"), Some("v"))], 5, Fresh),
            (vec![(Some("a"), None)], 5, Answered),
            (vec![(None, Some("w"))], 5, Answered),
            (vec![(Some("a"), Some("w")), (Some("a"), None)], 5, Answered),
            // A conflict is an answer as well.
            (vec![(Some("b"), Some("w"))], 5, Answered),
            // A new window key is to be linked, one that is over is to be taken over, and a new job is to be made.
            (vec![(Some("a"), Some("v"))], 5, Mixed),
            (vec![(None, Some("w"))], 10, Mixed),
            (vec![(Some("a"), None), (Some("b"), None)], 5, Mixed),
        ];
        for (keys, second, expected) in cases {
            let asks: Vec<Ask> = keys.iter().map(|(active, window)| ask(*active, *window)).collect();
            let unit = Unit {
                app: APP,
                items: asks.iter().map(|ask| ("n", ask)).collect(),
                continue_on_conflict: true,
            };
            let mut holders = held();
            assert_eq!(holders.standing(&unit, at(second)), expected, "{keys:?}");
            let mut changes = Vec::new();
            holders.apply(0, &unit, at(second), &mut JobIds::new(at(second), 0), &mut changes);
            assert_eq!(changes.is_empty(), expected == Answered, "{keys:?}");
        }
        let both = ask(Some("a"), Some("w"));
        let elsewhere = Unit {
            app: AppId(2),
            items: vec![("n", &both)],
            continue_on_conflict: false,
        };
        assert_eq!(held().standing(&elsewhere, at(5)), Fresh);
    }
}
