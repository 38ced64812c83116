//! What a dispatch would do now: the same decision on what is there, and nothing written.

use crate::dispatch::group;
use crate::dispatch::unit::PreparedUnit;
use crate::job::JobIds;
use crate::store::{Error, Store};
use crate::uniqueness::decide::Decision;
use crate::uniqueness::holders::UnitOutcome;

/// Decides a unit without locks. A receipt without a match names a job that does not exist.
pub async fn preview(store: &Store, unit: &PreparedUnit) -> Result<UnitOutcome, Error> {
    let mut look = store.look(&group::asked(std::slice::from_ref(unit))).await?;
    let mut ids = JobIds::new(look.now, 0);
    Ok(look
        .holders
        .apply(0, &group::unit(unit), look.now, &mut ids, &mut Vec::new()))
}

/// Which items of a unit name a parent that is not there and would create a job. One whose key is held is
/// answered all the same.
pub async fn orphans(store: &Store, unit: &PreparedUnit) -> Result<Vec<usize>, Error> {
    if unit.items.iter().all(|item| !item.orphan) {
        return Ok(Vec::new());
    }
    let look = store.look(&group::asked(std::slice::from_ref(unit))).await?;
    let creates = |ask| matches!(look.holders.decide(unit.app, ask, look.now), Decision::Create);
    let orphans = unit
        .items
        .iter()
        .enumerate()
        .filter(|(_, item)| item.orphan && creates(&item.ask));
    Ok(orphans.map(|(index, _)| index).collect())
}
