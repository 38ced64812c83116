//! The rules of deciding, in a few dozen lines. Written from the specification alone; it shares no
//! code with the server and knows neither time nor SQL.

use std::collections::HashMap;

/// A dispatch, made of small numbers so that its keys often meet others.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Item {
    pub(super) name: u8,
    pub(super) active: Option<u8>,
    pub(super) window: Option<u8>,
    pub(super) payload: Option<u8>,
    /// Left out and the default's value are two requests.
    pub(super) priority: Option<u8>,
    /// Policy: no part of the request.
    pub(super) max_attempts: Option<u32>,
    pub(super) reuse_on_mismatch: bool,
    pub(super) release_on_cancelled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum State {
    Pending,
    Cancelled,
    Deleted,
}

#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) name: u8,
    pub(super) active: Option<u8>,
    pub(super) state: State,
    max_attempts: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) job: usize,
    set_by: Item,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    Created {
        job: usize,
    },
    Reused {
        job: usize,
        matched: &'static str,
        differs: Vec<&'static str>,
        drift: bool,
        linked: bool,
    },
    Conflict {
        job: usize,
        differs: Vec<&'static str>,
    },
    Composition {
        window: usize,
        active: usize,
    },
}

impl Outcome {
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Outcome::Conflict { .. } | Outcome::Composition { .. })
    }
}

#[derive(Clone, Default)]
pub(super) struct Model {
    pub(super) jobs: Vec<Job>,
    pub(super) windows: HashMap<(u8, u8), Window>,
}

impl Model {
    pub(super) fn holder(&self, name: u8, active: u8) -> Option<usize> {
        let holds = |job: &Job| job.name == name && job.active == Some(active) && job.state == State::Pending;
        self.jobs.iter().position(holds)
    }

    pub(super) fn dispatch(&mut self, item: &Item) -> Outcome {
        let active = item.active.and_then(|key| self.holder(item.name, key));
        let held = item.window.and_then(|key| self.windows.get(&(item.name, key)));
        if let Some(held) = held {
            let (job, differs) = (held.job, differs(&held.set_by, item));
            if !differs.is_empty() && !item.reuse_on_mismatch {
                return Outcome::Conflict { job, differs };
            }
            if let Some(active) = active.filter(|active| *active != job) {
                return Outcome::Composition { window: job, active };
            }
            let matched = if active.is_some() { "both" } else { "window" };
            return Outcome::Reused {
                job,
                matched,
                differs,
                drift: self.drifts(job, item),
                linked: false,
            };
        }
        if let Some(job) = active {
            let drift = self.drifts(job, item);
            return Outcome::Reused {
                job,
                matched: "active",
                differs: Vec::new(),
                drift,
                linked: self.set(item, job),
            };
        }
        let job = self.jobs.len();
        let max_attempts = item.max_attempts.unwrap_or(10);
        self.jobs.push(Job {
            name: item.name,
            active: item.active,
            state: State::Pending,
            max_attempts,
        });
        self.set(item, job);
        Outcome::Created { job }
    }

    /// All items, or, if one conflicts and the batch may not go on, none.
    pub(super) fn batch(&mut self, items: &[Item], continue_on_conflict: bool) -> Vec<Outcome> {
        let before = self.clone();
        let mut outcomes = Vec::new();
        for item in items {
            outcomes.push(self.dispatch(item));
            if !continue_on_conflict && outcomes[outcomes.len() - 1].is_conflict() {
                *self = before;
                break;
            }
        }
        outcomes
    }

    pub(super) fn cancel(&mut self, job: usize) {
        if self.jobs[job].state == State::Pending {
            self.jobs[job].state = State::Cancelled;
            self.windows
                .retain(|_, held| held.job != job || !held.set_by.release_on_cancelled);
        }
    }

    fn set(&mut self, item: &Item, job: usize) -> bool {
        let window = item.window.map(|key| {
            self.windows.insert(
                (item.name, key),
                Window {
                    job,
                    set_by: item.clone(),
                },
            )
        });
        window.is_some()
    }

    fn drifts(&self, job: usize, item: &Item) -> bool {
        let job = &self.jobs[job];
        job.state != State::Deleted && job.max_attempts != item.max_attempts.unwrap_or(10)
    }
}

fn differs(before: &Item, now: &Item) -> Vec<&'static str> {
    let parts = [
        ("active_key", before.active != now.active),
        ("payload", before.payload != now.payload),
        ("priority", before.priority != now.priority),
    ];
    parts
        .into_iter()
        .filter(|(_, differs)| *differs)
        .map(|(part, _)| part)
        .collect()
}
