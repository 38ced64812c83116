//! What a dispatch would do now: the same decision on what is there, and nothing written.

use crate::dispatch::dispatcher::PreparedUnit;
use crate::dispatch::group;
use crate::job::JobIds;
use crate::store::{Asked, Error, Store};
use crate::uniqueness::holders::UnitOutcome;

/// Decides a unit without locks. A receipt without a match names a job that does not exist.
pub async fn preview(store: &Store, unit: &PreparedUnit) -> Result<UnitOutcome, Error> {
    let mut asked = Asked::default();
    for item in &unit.items {
        item.ask.active.iter().for_each(|key| asked.insert(unit.app, key));
        item.ask
            .window
            .iter()
            .for_each(|window| asked.insert(unit.app, &window.key));
    }
    let mut look = store.look(&asked).await?;
    let mut ids = JobIds::new(look.now, 0);
    Ok(look
        .holders
        .apply(0, &group::unit(unit), look.now, &mut ids, &mut Vec::new()))
}
