//! The compiled types of every application, in memory.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::job::AppId;
use crate::job_types::definition::JobType;
use crate::settings::Invalid;

/// A stored type, or why this server cannot use it: another version of it has stored what it does not know. A
/// dispatch of that name is refused, since without its declared keys it would not be unique.
pub type Loaded = Result<Arc<JobType>, Invalid>;

/// The types of one application as they were at one version. It never changes.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Goes up with every change; 0 where none has ever been declared.
    version: i64,
    types: HashMap<Box<str>, Loaded>,
}

impl Snapshot {
    pub fn new(version: i64, types: impl IntoIterator<Item = (Box<str>, Loaded)>) -> Snapshot {
        Snapshot {
            version,
            types: types.into_iter().collect(),
        }
    }

    pub fn version(&self) -> i64 {
        self.version
    }

    /// What is declared for a job name, if anything is.
    pub fn get(&self, name: &str) -> Result<Option<&JobType>, Invalid> {
        match self.types.get(name) {
            None => Ok(None),
            Some(Ok(kind)) => Ok(Some(kind)),
            Some(Err(invalid)) => Err(invalid.clone()),
        }
    }

    pub fn declares(&self, name: &str) -> bool {
        self.types.contains_key(name)
    }

    /// The type as it is compiled already, for a later snapshot that has the same.
    pub fn compiled(&self, name: &str) -> Option<&Arc<JobType>> {
        self.types.get(name)?.as_ref().ok()
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
    use crate::settings::InvalidKind;

    #[test]
    fn an_older_snapshot_never_replaces_a_newer_one() {
        let (registry, app) = (Registry::default(), AppId(1));
        let kind = Ok(Arc::new(JobType::compile("a", &Definition::default()).unwrap()));
        let unknown = Err(Invalid::new(InvalidKind::Selector, "", "unknown"));
        assert_eq!(registry.of(app).version(), 0);
        let before = registry.of(app);
        registry.swap(app, Snapshot::new(2, [("a".into(), kind), ("c".into(), unknown)]));
        registry.swap(app, Snapshot::new(1, []));
        assert_eq!(registry.of(app).version(), 2);
        let now = registry.of(app);
        assert!(matches!(now.get("a"), Ok(Some(kind)) if kind.name() == "a"));
        assert!(matches!(now.get("b"), Ok(None)) && now.get("c").is_err());
        assert!(!before.declares("a") && !registry.of(AppId(2)).declares("a") && now.declares("c"));
    }
}
