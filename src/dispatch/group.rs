//! A group under its locks: lock, look up, decide, write, commit, answer; and again, where another transaction came in
//! between.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use metrics::{counter, histogram};
use tokio::sync::Semaphore;

use crate::dispatch::clock::DatabaseClock;
use crate::dispatch::dispatcher::{Caller, Failure, Outcome};
use crate::dispatch::types::Types;
use crate::dispatch::unit::PreparedUnit;
use crate::job::{AppId, JobIds};
use crate::store::{Asked, Class, Committed, Creation, Error, Store, Writes, Written};
use crate::uniqueness::decide::Match;
use crate::uniqueness::holders::{Change, Position, Unit, UnitOutcome};
use crate::uniqueness::locks::LockSet;
use crate::uniqueness::receipt::Refusal;
use crate::wakeups::{News, Wakeups};

/// How often a group is decided anew before it is given up as a fault: each time another transaction won, so
/// this many losses in a row are no accident.
const ATTEMPTS: u32 = 10;

/// The pause before a database that could not be reached is tried again.
pub(super) const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// What every group needs.
#[derive(Debug)]
pub(super) struct Runner {
    pub(super) store: Store,
    pub(super) types: Types,
    /// Locks that this server's transactions may hold together: its share of the database's lock table.
    pub(super) locks: Semaphore,
    pub(super) clock: Arc<DatabaseClock>,
    pub(super) wakeups: Wakeups,
    pub(super) deadline: Duration,
    /// Whether keys of late were held, so that it pays to look before a group is written.
    pub(super) looks_first: AtomicBool,
}

/// How an attempt failed.
enum Failed {
    /// Nothing is stored.
    Before(Error),
    /// Nothing was decided: some unit was prepared by other job types than are stored, in these versions.
    Stale(BTreeMap<AppId, i64>),
    /// The COMMIT was sent and its answer never came.
    Committing(Error, Option<Written>, Vec<UnitOutcome>),
}

/// Units that are decided together, and who waits for each.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) units: Vec<PreparedUnit>,
    pub(super) callers: Vec<Caller>,
}

impl Group {
    pub(super) fn push(&mut self, unit: PreparedUnit, caller: Caller) {
        self.units.push(unit);
        self.callers.push(caller);
    }

    pub(super) fn append(&mut self, mut other: Group) {
        self.units.append(&mut other.units);
        self.callers.append(&mut other.callers);
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Before(error)
    }
}

impl Runner {
    /// Decides a group under the locks of its keys, and answers everybody in it.
    pub(super) async fn run_locked(&self, group: Group, deadline: Instant) {
        let Group { mut units, callers } = group;
        let mut results = self.decide(&mut units, deadline).await;
        if units.len() > 1 && matches!(results, Err(Failure::Internal(_))) {
            // Whatever the database did not take, it is one unit's: it must not fail its neighbours.
            counter!("solejob_dispatch_groups_split_total").increment(1);
            for (mut unit, caller) in units.into_iter().zip(callers) {
                let decided = self.decide(std::slice::from_mut(&mut unit), deadline).await;
                caller.answer(decided.and_then(|mut one| unit.result(one.pop().ok_or_else(no_result)?)));
            }
            return;
        }
        for (caller, unit) in callers.into_iter().zip(&mut units).rev() {
            caller.answer(match &mut results {
                Ok(outcomes) => outcomes.pop().ok_or_else(no_result).and_then(|one| unit.result(one)),
                Err(failure) => Err(failure.clone()),
            });
        }
    }

    /// Decides and stores `units` in one transaction, as often as it takes.
    async fn decide(&self, units: &mut [PreparedUnit], deadline: Instant) -> Result<Vec<UnitOutcome>, Failure> {
        let mut locks_each = self.store.locks_each();
        for attempt in 1.. {
            let nonce: i64 = rand::random();
            let (error, unknown) = match self.attempt(units, nonce, locks_each, deadline).await {
                Ok((outcomes, _committed)) => return Ok(outcomes),
                Err(Failed::Before(error)) => (error, false),
                Err(Failed::Stale(versions)) => match self.prepare_again(units, &versions).await {
                    Ok(()) if Instant::now() < deadline => {
                        counter!("solejob_dispatch_retries_total", "reason" => "stale_types").increment(1);
                        continue;
                    }
                    Ok(()) => {
                        let cause = "its job types have changed each time that it was prepared";
                        return Err(Failure::Unavailable(Outcome::None, cause.into()));
                    }
                    Err(error) => (error, false),
                },
                Err(Failed::Committing(error, None, outcomes)) => {
                    // It wrote nothing: what it read under its locks was true, whatever became of the commit.
                    tracing::warn!(%error, "a commit that had nothing to write was lost");
                    return Ok(outcomes);
                }
                Err(Failed::Committing(error, Some(written), outcomes)) => {
                    match mutant!(
                        "receipt_without_commit": Ok(true),
                        else mutant!(
                            "blind_retry_of_a_commit": Ok(false),
                            else self.settle(nonce, written, deadline, &error).await
                        )
                    ) {
                        Ok(true) => return Ok(outcomes),
                        Ok(false) => (error, false),
                        Err(error) => (error, true),
                    }
                }
            };
            if unknown {
                tracing::error!(%error, units = units.len(), "whether a group is stored stays unknown");
                return Err(Failure::Unavailable(Outcome::Unknown, error.to_string().into()));
            }
            let reason = match error.class() {
                Class::Again if attempt < ATTEMPTS => "overtaken",
                Class::LockTableFull if Instant::now() < deadline => {
                    // Once with the gate alone. Where there is no room for that either, somebody else fills the table.
                    if locks_each == 0 {
                        tokio::time::sleep(RECONNECT_PAUSE).await;
                    }
                    locks_each = 0;
                    "lock_table_full"
                }
                Class::Unavailable if Instant::now() < deadline => {
                    tokio::time::sleep(RECONNECT_PAUSE).await;
                    "unavailable"
                }
                Class::Unavailable | Class::LockTableFull => {
                    tracing::error!(%error, units = units.len(), "the database is unavailable: nothing is stored");
                    return Err(Failure::Unavailable(Outcome::None, error.to_string().into()));
                }
                Class::Again | Class::Refused => {
                    tracing::error!(%error, units = units.len(), attempt, "the database refused a group: nothing is stored");
                    return Err(Failure::Internal(error.to_string().into()));
                }
            };
            counter!("solejob_dispatch_retries_total", "reason" => reason).increment(1);
            tracing::debug!(%error, attempt, "a group is decided anew");
        }
        Err(no_result())
    }

    /// Whether a transaction whose commit got no answer is stored, asked until the deadline.
    async fn settle(&self, nonce: i64, written: Written, deadline: Instant, lost: &Error) -> Result<bool, Error> {
        counter!("solejob_commits_unknown_total").increment(1);
        tracing::warn!(error = %lost, job_id = %written.job, "a commit got no answer: looking whether it is stored");
        loop {
            match self.store.until(deadline).settle(nonce, written).await {
                Err(error) if error.class() != Class::Refused && Instant::now() < deadline => {
                    tokio::time::sleep(RECONNECT_PAUSE).await;
                }
                settled => return settled,
            }
        }
    }

    async fn attempt(
        &self,
        units: &[PreparedUnit],
        nonce: i64,
        locks_each: usize,
        deadline: Instant,
    ) -> Result<(Vec<UnitOutcome>, Committed), Failed> {
        let asked = asked(units);
        let locks = LockSet::new(asked.places(), nonce, locks_each);
        let _share = self.share(&locks).await;

        let apps: BTreeSet<AppId> = units.iter().map(|unit| unit.app).collect();
        let apps: Vec<AppId> = apps.into_iter().collect();
        let begun = self.store.until(deadline).begin(&locks).await?;
        let mut locked = begun.lock(&locks, &apps).await?;
        let decided_at = locked.decided_at();
        self.clock.set(decided_at);
        let versions: BTreeMap<AppId, i64> = apps.into_iter().zip(locked.types_versions().iter().copied()).collect();
        if units.iter().any(|unit| is_stale(unit, &versions)) {
            return Err(Failed::Stale(versions));
        }
        let mut holders = locked.look_up(&asked).await?;

        let mut ids = JobIds::new(decided_at, rand::random());
        let mut changes = Vec::new();
        let pure: Vec<Unit<'_>> = units.iter().map(unit).collect();
        let outcomes = pure.iter().enumerate();
        let outcomes: Vec<UnitOutcome> = outcomes
            .map(|(place, unit)| holders.apply(place, unit, decided_at, &mut ids, &mut changes))
            .collect();

        let mut writes = writes(units, changes);
        let witness = writes.witness(decided_at);
        if !writes.is_empty() {
            locked.write(&mut writes).await?;
        }
        let began = Instant::now();
        match locked.commit().await {
            Ok(committed) => {
                // Other servers hear of it after the commit, and never through it.
                self.wakeups.tell(queues(&writes));
                histogram!("solejob_dispatch_commit_seconds").record(began.elapsed().as_secs_f64());
                Ok((outcomes, committed))
            }
            Err(error @ Error::Unanswered(_)) => Err(Failed::Committing(error, witness, outcomes)),
            Err(error) => Err(Failed::Before(error)),
        }
    }

    /// Prepares those units again whose job types have changed. One that is invalid by the new ones stays in its place,
    /// without items.
    async fn prepare_again(&self, units: &mut [PreparedUnit], versions: &BTreeMap<AppId, i64>) -> Result<(), Error> {
        let stale = units.iter().filter(|unit| is_stale(unit, versions));
        let apps: BTreeSet<AppId> = stale.map(|unit| unit.app).collect();
        for app in apps {
            let types = self.types.refresh(app).await?;
            for unit in units.iter_mut().filter(|unit| unit.app == app) {
                unit.prepare_again(&types, &self.clock);
                // Other keys may be held by nobody: an item without its parent creates no job.
                unit.refuse_orphans(&self.store).await?;
            }
        }
        Ok(())
    }

    /// This transaction's share of the lock table, given back when it ends.
    pub(super) async fn share(&self, locks: &LockSet) -> Option<tokio::sync::SemaphorePermit<'_>> {
        let wanted = match locks {
            LockSet::Each(ids) => ids.len().min(self.store.locks_each()),
            LockSet::All => 1,
        };
        // It is never closed.
        self.locks
            .acquire_many(u32::try_from(wanted).unwrap_or(u32::MAX))
            .await
            .ok()
    }
}

fn is_stale(unit: &PreparedUnit, versions: &BTreeMap<AppId, i64>) -> bool {
    versions.get(&unit.app) != Some(&unit.types_version())
}

/// Every unit has one result: this is a fault of the code.
pub(super) fn no_result() -> Failure {
    Failure::Internal("a unit of the group has no result".into())
}

/// Every key that the units ask for, once.
pub(super) fn asked(units: &[PreparedUnit]) -> Asked<'_> {
    let mut asked = Asked::default();
    for unit in units {
        for item in &unit.items {
            item.ask.active.iter().for_each(|key| asked.insert(unit.app, key));
            item.ask
                .window
                .iter()
                .for_each(|window| asked.insert(unit.app, &window.key));
        }
    }
    asked
}

pub(super) fn unit(unit: &PreparedUnit) -> Unit<'_> {
    Unit {
        app: unit.app,
        items: unit
            .items
            .iter()
            .map(|item| (item.job.name.as_str(), &item.ask))
            .collect(),
        continue_on_conflict: unit.continue_on_conflict,
    }
}

pub(super) fn writes<'a>(units: &'a [PreparedUnit], changes: Vec<Change<'a>>) -> Writes<'a> {
    let mut writes = Writes::default();
    for change in changes {
        match change {
            Change::Create {
                app,
                item: Position { unit, item },
                id,
            } => {
                let item = &units[unit].items[item];
                let window = item.ask.window.as_ref().map(|window| &window.key);
                writes.creations.push(Creation {
                    app,
                    id,
                    job: &item.job,
                    active: item.ask.active.as_ref(),
                    window,
                });
            }
            Change::ClaimActive { app, job, key } => writes.claim_active(app, job, key),
            Change::ClaimWindow {
                app,
                job,
                asked,
                expires_at,
                over,
                linked,
            } => {
                writes.claim_window(app, job, asked, expires_at, over, linked);
            }
        }
    }
    writes
}

/// The queues in which jobs are new.
pub(super) fn queues(writes: &Writes<'_>) -> BTreeSet<News> {
    let news = |creation: &Creation<'_>| News::Queue(creation.app, creation.job.queue.clone());
    writes.creations.iter().map(news).collect()
}

/// `solejob_dispatches_total`: every dispatch by what became of it.
pub(super) fn count(result: &Result<UnitOutcome, Failure>) {
    let add = |outcome: &'static str| counter!("solejob_dispatches_total", "outcome" => outcome).increment(1);
    match result {
        Ok(UnitOutcome::Applied(results)) => {
            for result in results {
                add(match result {
                    Ok(receipt) => match receipt.matched {
                        None => "created",
                        Some(Match::Active) => "reused_active",
                        Some(Match::Window) => "reused_window",
                        Some(Match::Both) => "reused_both",
                    },
                    Err(refusal) => refused(refusal),
                });
            }
        }
        Ok(UnitOutcome::Refused { refusal, .. }) => add(refused(refusal)),
        Err(Failure::Overloaded | Failure::ShuttingDown) => add("turned_away"),
        Err(Failure::Unavailable(Outcome::None, _)) => add("unavailable"),
        Err(Failure::Unavailable(Outcome::Unknown, _)) => add("unknown"),
        Err(Failure::Internal(_)) => add("internal"),
        Err(Failure::Invalid(_)) => add("invalid"),
    }
}

fn refused(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Conflict { .. } => "conflict",
        Refusal::CompositionConflict { .. } => "composition_conflict",
    }
}
