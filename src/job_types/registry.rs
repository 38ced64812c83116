//! The compiled types of every application, in memory.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::job::AppId;
use crate::job_types::definition::JobType;

/// The types of one application as they were at one version. It never changes.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Goes up with every change; 0 where none has ever been declared.
    version: i64,
    types: HashMap<Box<str>, Arc<JobType>>,
}

impl Snapshot {
    pub fn new(version: i64, types: impl IntoIterator<Item = Arc<JobType>>) -> Snapshot {
        Snapshot {
            version,
            types: types.into_iter().map(|kind| (kind.name().into(), kind)).collect(),
        }
    }

    pub fn version(&self) -> i64 {
        self.version
    }

    pub fn get(&self, name: &str) -> Option<&Arc<JobType>> {
        self.types.get(name)
    }
}

/// The latest snapshot of every application. A clone is another handle to the same.
#[derive(Clone, Debug, Default)]
pub struct Registry(Arc<RwLock<HashMap<AppId, Arc<Snapshot>>>>);

impl Registry {
    /// The types of an application; none, at version 0, where nothing has been loaded. Whether that is so is for the
    /// dispatch transaction to find out.
    pub fn of(&self, app: AppId) -> Arc<Snapshot> {
        // A lock that a panic left behind guards nothing half done: a snapshot is swapped in whole.
        let snapshots = self.0.read().unwrap_or_else(PoisonError::into_inner);
        snapshots.get(&app).cloned().unwrap_or_default()
    }

    /// Swaps a snapshot in, unless there is a newer one: loads can overtake each other.
    pub fn swap(&self, app: AppId, snapshot: Snapshot) {
        let mut snapshots = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let current = snapshots.entry(app).or_default();
        if current.version <= snapshot.version {
            *current = Arc::new(snapshot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_types::definition::Definition;

    #[test]
    fn an_older_snapshot_never_replaces_a_newer_one() {
        let (registry, app) = (Registry::default(), AppId(1));
        let kind = Arc::new(JobType::compile("a", &Definition::default()).unwrap());
        assert_eq!(registry.of(app).version(), 0);
        let before = registry.of(app);
        registry.swap(app, Snapshot::new(2, [kind]));
        registry.swap(app, Snapshot::new(1, []));
        assert_eq!(registry.of(app).version(), 2);
        assert!(registry.of(app).get("a").is_some() && registry.of(app).get("b").is_none());
        assert!(before.get("a").is_none() && registry.of(AppId(2)).get("a").is_none());
    }
}
