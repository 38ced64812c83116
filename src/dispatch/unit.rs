//! A dispatch, or a batch, that has passed preparation; and how it passes it once more.

use std::sync::Arc;

use crate::dispatch::clock::DatabaseClock;
use crate::dispatch::dispatcher::{Failure, counted};
use crate::dispatch::prepare::{Prepared, Request, Surroundings, prepare, unknown_parent};
use crate::dispatch::preview::orphans;
use crate::dispatch::types::Types;
use crate::dispatch::window::Parents;
use crate::job::AppId;
use crate::job_types::registry::Snapshot;
use crate::settings::Invalid;
use crate::store::{Error, Store};
use crate::uniqueness::holders::UnitOutcome;

/// One dispatch, or a batch, that has passed preparation.
#[derive(Debug)]
pub struct PreparedUnit {
    pub app: AppId,
    pub items: Vec<Prepared>,
    pub continue_on_conflict: bool,
    /// What the items were prepared from, and with.
    requests: Vec<Request>,
    parents: Parents,
    payload_bytes_max: usize,
    types_version: i64,
    /// By a later version of the types these items are invalid. There are no `items` then: it decides nothing.
    faults: Faults,
}

/// Dispatches that are still to be prepared: one, or a batch.
#[derive(Debug)]
pub struct Draft {
    pub app: AppId,
    pub requests: Vec<Request>,
    pub continue_on_conflict: bool,
    pub parents: Parents,
    pub payload_bytes_max: usize,
}

/// What is wrong with which item.
pub type Faults = Vec<(usize, Invalid)>;

/// Prepares every item, or says of each one that is invalid what is wrong with it. That is never said by a job type that
/// has been changed: those that the server knows are compared with the stored ones first.
pub async fn prepare_unit(
    store: &Store,
    types: &Types,
    clock: &DatabaseClock,
    draft: Draft,
) -> Result<Result<PreparedUnit, Faults>, Error> {
    let snapshot = types.of(draft.app);
    let mut unit = PreparedUnit::of(draft);
    unit.prepare_again(&snapshot, clock);
    if unit.faults.is_empty() && unit.items.iter().all(|item| !item.orphan) {
        return Ok(Ok(unit));
    }
    // In a box: the room for what asks the database would be set aside for every dispatch.
    Box::pin(prepare_with_care(store, types, clock, snapshot, unit)).await
}

/// The rest of it for a unit that something may be wrong with.
async fn prepare_with_care(
    store: &Store,
    types: &Types,
    clock: &DatabaseClock,
    mut snapshot: Arc<Snapshot>,
    mut unit: PreparedUnit,
) -> Result<Result<PreparedUnit, Faults>, Error> {
    loop {
        let declared = |(index, _): &(usize, Invalid)| snapshot.declares(&unit.requests[*index].name);
        let mut by_types = unit.faults.iter().any(declared);
        if unit.faults.is_empty() && unit.refuse_orphans(store).await? {
            by_types = true;
        }
        if unit.faults.is_empty() {
            return Ok(Ok(unit));
        }
        let newer = if by_types {
            types.newer(unit.app, snapshot.version()).await?
        } else {
            None
        };
        match newer {
            Some(newer) => snapshot = newer,
            None => return Ok(Err(unit.faults)),
        }
        unit.prepare_again(&snapshot, clock);
    }
}

impl PreparedUnit {
    /// Nothing of it is prepared yet.
    fn of(draft: Draft) -> PreparedUnit {
        let Draft {
            app,
            requests,
            continue_on_conflict,
            parents,
            payload_bytes_max,
        } = draft;
        PreparedUnit {
            app,
            items: Vec::new(),
            continue_on_conflict,
            requests,
            parents,
            payload_bytes_max,
            types_version: 0,
            faults: Vec::new(),
        }
    }

    /// The version of its application's job types that it was prepared by.
    pub(super) fn types_version(&self) -> i64 {
        self.types_version
    }

    /// Prepares it by other types.
    pub(super) fn prepare_again(&mut self, types: &Snapshot, clock: &DatabaseClock) {
        let surroundings = Surroundings {
            payload_bytes_max: self.payload_bytes_max,
            now: clock.now(),
            parents: &self.parents,
            types,
        };
        self.types_version = types.version();
        (self.items, self.faults) = match prepare_all(&self.requests, &surroundings) {
            Ok(items) => (items, Vec::new()),
            Err(faults) => (Vec::new(), faults),
        };
    }

    /// Takes it out of what is decided if an item would create a job whose parent is not there. Whether that is so.
    pub(super) async fn refuse_orphans(&mut self, store: &Store) -> Result<bool, Error> {
        let orphans = orphans(store, self).await?;
        if orphans.is_empty() {
            return Ok(false);
        }
        self.items.clear();
        self.faults = orphans.into_iter().map(|index| (index, unknown_parent())).collect();
        Ok(true)
    }

    /// What became of it, once its group has been decided.
    pub(super) fn result(&mut self, outcome: UnitOutcome) -> Result<UnitOutcome, Failure> {
        if self.faults.is_empty() {
            Ok(outcome)
        } else {
            Err(Failure::Invalid(std::mem::take(&mut self.faults)))
        }
    }

    pub(super) fn bytes(&self) -> usize {
        counted(
            self.items.iter().map(|item| item.job.payload.len()).sum(),
            self.items.len(),
        )
    }
}

fn prepare_all(requests: &[Request], surroundings: &Surroundings<'_>) -> Result<Vec<Prepared>, Faults> {
    let (mut items, mut faults) = (Vec::with_capacity(requests.len()), Vec::new());
    for (index, request) in requests.iter().enumerate() {
        match prepare(request, surroundings) {
            Ok(item) => items.push(item),
            Err(invalid) => faults.push((index, invalid)),
        }
    }
    if faults.is_empty() { Ok(items) } else { Err(faults) }
}
