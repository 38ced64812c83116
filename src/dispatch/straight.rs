//! The straight way of a group: one statement for all that is new, and one look for all that is not.
//!
//! Most dispatches ask for keys that nobody holds, and most others for keys that answer them as they are. Neither has to
//! wait for a lock. What is left goes through [`Runner::run_locked`], and so does whatever is not as it was expected.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use metrics::{counter, histogram};

use crate::dispatch::dispatcher::{Failure, Outcome};
use crate::dispatch::group::{Group, RECONNECT_PAUSE, Runner, asked, queues, unit, writes};
use crate::dispatch::unit::PreparedUnit;
use crate::job::{self, AppId, JobIds};
use crate::store::{Alone, Class, Conditions, Error, Look, Lost, Settled};
use crate::uniqueness::holders::{Change, Holders, Standing, Unit, UnitOutcome};
use crate::uniqueness::locks::LockSet;

/// A write that has not begun by then does nothing. Once its connection is lost it is waited for so long.
const BEGINS_WITHIN: Duration = Duration::from_secs(1);

/// How far the database's clock may have been ahead of ours when a write was sent. Only a search begins that much earlier.
const CLOCKS_DIFFER: Duration = Duration::from_secs(60);

/// What became of a group that was written without a look.
enum Written {
    All,
    /// Nothing of it is: somebody holds a key.
    Held(Group),
    /// Nothing of it is.
    Nothing(Group),
}

impl Runner {
    /// Runs a group and answers everybody in it.
    pub(super) async fn run(&self, mut group: Group) {
        histogram!("solejob_dispatch_group_size").record(group.units.len() as f64);
        let deadline = Instant::now() + self.deadline;
        let mut rest = Group::default();
        let mut looked = self.looks_first.load(Ordering::Relaxed);
        if looked {
            group = self.answer_what_is_there(group, &mut rest, deadline).await;
        }
        while !group.units.is_empty() {
            match self.write_all(group, deadline).await {
                Written::All => break,
                Written::Held(held) if !looked => {
                    looked = true;
                    self.looks_first.store(true, Ordering::Relaxed);
                    group = self.answer_what_is_there(held, &mut rest, deadline).await;
                }
                Written::Held(left) | Written::Nothing(left) => {
                    rest.append(left);
                    break;
                }
            }
        }
        if !rest.units.is_empty() {
            counter!("solejob_dispatches_locked_total").increment(rest.units.len() as u64);
            self.run_locked(rest, deadline).await;
        }
    }

    /// Answers those whose keys are held, so that they write nothing. Gives back those whose keys are nobody's; `rest` gets
    /// all others.
    ///
    /// No lock is needed: one statement saw all keys of a unit at one moment, and at that moment its answer was true.
    async fn answer_what_is_there(&self, group: Group, rest: &mut Group, deadline: Instant) -> Group {
        let mut fresh = Group::default();
        let asked = asked(&group.units);
        let apps: Vec<AppId> = versions(&group.units).into_keys().collect();
        let look = self.store.until(deadline).look_for_group(&asked, &apps).await;
        let Look {
            mut holders,
            now,
            types_versions,
        } = match look {
            Ok(look) => look,
            Err(error) => {
                tracing::debug!(%error, "a group cannot be looked up: it is decided under its locks");
                rest.append(group);
                return fresh;
            }
        };
        self.clock.set(now);
        let stored: BTreeMap<AppId, i64> = apps.into_iter().zip(types_versions).collect();
        let mut answered = 0;
        for (prepared, caller) in group.units.into_iter().zip(group.callers) {
            let pure = unit(&prepared);
            let standing = match stored.get(&prepared.app) == Some(&prepared.types_version()) {
                true => holders.standing(&pure, now),
                false => Standing::Mixed,
            };
            match standing {
                Standing::Answered => {
                    // It changes nothing, so there is no id to make and nothing to write.
                    let (mut ids, mut none) = (JobIds::new(now, 0), Vec::new());
                    let outcome = holders.apply(0, &pure, now, &mut ids, &mut none);
                    caller.answer(Ok(outcome));
                    answered += 1;
                }
                Standing::Fresh => fresh.push(prepared, caller),
                Standing::Mixed => rest.push(prepared, caller),
            }
        }
        if answered == 0 && rest.units.is_empty() {
            // The look told nothing: the next group does without.
            self.looks_first.store(false, Ordering::Relaxed);
        }
        fresh
    }

    /// Decides units as though nobody held any of their keys, and writes them provided that it is so.
    async fn write_all(&self, group: Group, deadline: Instant) -> Written {
        let versions = versions(&group.units);
        if group
            .units
            .iter()
            .any(|unit| versions.get(&unit.app) != Some(&unit.types_version()))
        {
            return Written::Nothing(group);
        }
        let nonce: i64 = rand::random();
        let random: u64 = rand::random();
        let locks = LockSet::new(asked(&group.units).places(), nonce, self.store.locks_each());
        let LockSet::Each(ids) = &locks else {
            return Written::Nothing(group);
        };
        let _share = self.share(&locks).await;

        let began = Instant::now();
        let sent_at = self.clock.now();
        let pure: Vec<Unit<'_>> = group.units.iter().map(unit).collect();
        let (_, changes) = decided(&pure, sent_at, random);
        let mut writes = writes(&group.units, changes);
        let news = queues(&writes);
        let Some(witness) = writes.creations.first().map(|creation| (creation.app, creation.id)) else {
            return Written::Nothing(group);
        };
        let types_versions: Vec<(AppId, i64)> = versions.into_iter().collect();
        let conditions = Conditions {
            locks: ids,
            not_after: sent_at + BEGINS_WITHIN,
            types_versions: &types_versions,
        };
        let written = match self.store.until(deadline).write_alone(&mut writes, &conditions).await {
            Err(lost @ Error::Unanswered(_)) => {
                let (app, job) = witness;
                let unanswered = Lost {
                    nonce,
                    app,
                    job,
                    not_before: sent_at - CLOCKS_DIFFER,
                    not_after: conditions.not_after,
                };
                match self.settle_alone(&unanswered, deadline, &lost).await {
                    Ok(written) => written,
                    Err(error) => {
                        tracing::error!(%error, units = group.units.len(), "whether a group is stored stays unknown");
                        let cause = error.to_string().into();
                        let unknown = Failure::Unavailable(Outcome::Unknown, cause);
                        group
                            .callers
                            .into_iter()
                            .for_each(|caller| caller.answer(Err(unknown.clone())));
                        return Written::All;
                    }
                }
            }
            Err(error) => {
                // Nothing is stored. What to make of the error is known where locks are taken.
                if error.class() == Class::Again {
                    counter!("solejob_dispatch_retries_total", "reason" => "overtaken").increment(1);
                }
                tracing::debug!(%error, "a group could not be written at once: it is decided under its locks");
                Alone::Refused
            }
            Ok(written) => written,
        };
        let decided_at = match written {
            Alone::Stored(decided_at) => decided_at,
            Alone::Held => return Written::Held(group),
            Alone::Refused => return Written::Nothing(group),
        };
        self.clock.set(decided_at);
        // Other servers hear of it after the commit, and never through it.
        self.wakeups.tell(news);
        histogram!("solejob_dispatch_commit_seconds").record(began.elapsed().as_secs_f64());
        let (outcomes, _) = decided(&pure, decided_at, random);
        for (caller, outcome) in group.callers.into_iter().zip(outcomes) {
            caller.answer(Ok(outcome));
        }
        Written::All
    }

    /// What became of a write whose answer was lost, asked until the deadline.
    async fn settle_alone(&self, lost: &Lost, deadline: Instant, cause: &Error) -> Result<Alone, Error> {
        counter!("solejob_commits_unknown_total").increment(1);
        tracing::warn!(error = %cause, job_tail = lost.job.tail(), "a write got no answer: looking whether it is stored");
        loop {
            let settled = mutant!(
                "straight_write_forgotten": Ok(Settled::NotStored), else self.store.until(deadline).settle_alone(lost).await
            );
            match settled {
                Ok(Settled::Stored(decided_at)) => return Ok(Alone::Stored(decided_at)),
                Ok(Settled::NotStored) => return Ok(Alone::Refused),
                Err(error) if error.class() == Class::Refused || Instant::now() >= deadline => return Err(error),
                Ok(Settled::Open) | Err(_) => tokio::time::sleep(RECONNECT_PAUSE).await,
            }
        }
    }
}

/// What becomes of units whose keys nobody holds, if it is decided at `now`: but for instants and ids, the same at any time.
fn decided<'a>(units: &[Unit<'a>], now: job::Instant, random: u64) -> (Vec<UnitOutcome>, Vec<Change<'a>>) {
    let (mut holders, mut ids, mut changes) = (Holders::default(), JobIds::new(now, random), Vec::new());
    let outcomes = units.iter().enumerate();
    let outcomes = outcomes.map(|(place, unit)| holders.apply(place, unit, now, &mut ids, &mut changes));
    (outcomes.collect(), changes)
}

/// The versions of job types that units were prepared by: of several for one application, one.
fn versions(units: &[PreparedUnit]) -> BTreeMap<AppId, i64> {
    units.iter().map(|unit| (unit.app, unit.types_version())).collect()
}
