//! The job types that this server decides by: loaded at the start, and again when another version is stored.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::job::AppId;
use crate::job_types::definition::{Definition, JobType};
use crate::job_types::registry::{Loaded, Registry, Snapshot};
use crate::store::{Error, Store, StoredType};

/// How often the stored versions are looked at unasked. A dispatch never depends on it; it spares the first one after
/// a change the second preparation.
const POLL: Duration = Duration::from_secs(2);

/// The job types of every application, as far as this server knows them. A clone is another handle to the same.
#[derive(Clone, Debug)]
pub struct Types {
    store: Store,
    registry: Registry,
}

impl Types {
    /// Loads the types of all applications.
    pub async fn load(store: Store) -> Result<Types, Error> {
        let types = Types {
            store,
            registry: Registry::default(),
        };
        types.refresh_all().await?;
        Ok(types)
    }

    /// What this server knows of an application: perhaps no longer what is stored.
    pub fn of(&self, app: AppId) -> Arc<Snapshot> {
        self.registry.of(app)
    }

    /// The types as they are stored, if that is in another version than this one.
    pub async fn newer(&self, app: AppId, than: i64) -> Result<Option<Arc<Snapshot>>, Error> {
        let versions = self.store.types_versions(Some(app)).await?;
        let stored = versions.first().map_or(0, |(_, version)| *version);
        if stored == than {
            return Ok(None);
        }
        self.refresh(app).await.map(Some)
    }

    /// Loads the types of an application anew.
    pub async fn refresh(&self, app: AppId) -> Result<Arc<Snapshot>, Error> {
        let (version, stored) = self.store.job_types(app).await?;
        let known = self.registry.of(app);
        let (mut types, mut changed) = (Vec::with_capacity(stored.len()), Vec::new());
        for StoredType { name, definition, .. } in stored {
            match known.compiled(&name).filter(|kind| *kind.definition() == definition) {
                Some(kind) => types.push((name.into_boxed_str(), Ok(Arc::clone(kind)))),
                None => changed.push((name, definition)),
            }
        }
        if !changed.is_empty() {
            // Compiling waits for a thread: not in a task that others wait for.
            let compiled = tokio::task::spawn_blocking(|| changed.into_iter().map(compile).collect::<Vec<_>>());
            // Without them all, the names that are missing would seem to declare nothing.
            types.extend(compiled.await.map_err(|error| Error::Inconsistent {
                table: "job_types",
                column: "definition",
                problem: error.to_string(),
            })?);
        }
        self.registry.swap(app, Snapshot::new(version, types));
        Ok(self.registry.of(app))
    }

    /// Loads anew what is stored in another version.
    pub async fn refresh_all(&self) -> Result<(), Error> {
        for (app, version) in self.store.types_versions(None).await? {
            if self.registry.of(app).version() != version {
                self.refresh(app).await?;
            }
        }
        Ok(())
    }

    /// Looks for changes until `stop`.
    pub fn keep_fresh(&self, stop: &CancellationToken, tasks: &TaskTracker) {
        let (types, stop) = (self.clone(), stop.clone());
        tasks.spawn(async move {
            while stop.run_until_cancelled(tokio::time::sleep(POLL)).await.is_some() {
                if let Err(error) = types.refresh_all().await {
                    tracing::debug!(%error, "job types cannot be looked at: trying again");
                }
            }
        });
    }
}

fn compile((name, definition): (String, Definition)) -> (Box<str>, Loaded) {
    let compiled = JobType::compile(&name, &definition).map(Arc::new).inspect_err(|invalid| {
        tracing::error!(%name, detail = %invalid.detail, "a stored job type cannot be used: its dispatches are refused");
    });
    (name.into_boxed_str(), compiled)
}
