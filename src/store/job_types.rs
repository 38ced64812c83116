//! Job types as they are stored.
//!
//! They change in a transaction that holds the gate alone. Every dispatch transaction holds it shared, from before it
//! reads the version of its application's types to its end: so each dispatch comes wholly before a change, or after
//! it and knows. That makes a change wait for the dispatches that are being stored, which takes milliseconds, and
//! costs the dispatches nothing.

use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::job::{AppId, Instant};
use crate::job_types::definition::Definition;
use crate::store::{Error, Store, statements};
use crate::uniqueness::locks::LockSet;

/// What is declared for one name.
#[derive(Clone, PartialEq, Debug)]
pub struct StoredType {
    pub name: String,
    pub definition: Definition,
    pub updated_at: Instant,
}

/// What a declaration did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Declared {
    /// Types that were not declared like this before.
    pub changed: i64,
    /// Some name had no type.
    pub created: bool,
}

impl Store {
    /// The types of an application, and their version, as of one instant. Version 0 if there is no such application.
    pub async fn job_types(&self, app: AppId) -> Result<(i64, Vec<StoredType>), Error> {
        let rows = self.type_rows(app, None).await?;
        let version = rows.first().map(|row| row.try_get("types_version")).transpose()?;
        let types: Result<Vec<Option<StoredType>>, Error> = rows.iter().map(stored).collect();
        Ok((version.unwrap_or(0), types?.into_iter().flatten().collect()))
    }

    pub async fn job_type(&self, app: AppId, name: &str) -> Result<Option<StoredType>, Error> {
        let rows = self.type_rows(app, Some(name)).await?;
        rows.first().map_or(Ok(None), stored)
    }

    async fn type_rows(&self, app: AppId, name: Option<&str>) -> Result<Vec<PgRow>, Error> {
        let rows = sqlx::query(statements::JOB_TYPES).bind(app.0).bind(name);
        Ok(rows.fetch_all(&self.general).await?)
    }

    /// The version of an application's types, or those of all applications. Where none is given it is 0.
    pub async fn types_versions(&self, app: Option<AppId>) -> Result<Vec<(AppId, i64)>, Error> {
        let rows = sqlx::query(statements::TYPES_VERSIONS)
            .bind(app.map(|app| app.0))
            .fetch_all(&self.general)
            .await?;
        let version = |row: &PgRow| Ok((AppId(row.try_get("app_id")?), row.try_get("types_version")?));
        rows.iter().map(version).collect()
    }

    /// Declares types in place of what was declared for their names, each name given once.
    pub async fn declare(&self, app: AppId, types: &[(String, Definition)]) -> Result<Declared, Error> {
        let mut locked = self.begin(&LockSet::All).await?.lock(&LockSet::All, &[]).await?;
        let (names, definitions): (Vec<&str>, Vec<String>) = types
            .iter()
            .map(|(name, definition)| (name.as_str(), text_of(definition)))
            .unzip();
        let row = sqlx::query(statements::SAVE_JOB_TYPES)
            .bind(app.0)
            .bind(names)
            .bind(definitions)
            .bind(locked.decided_at())
            .fetch_one(&mut *locked.tx)
            .await?;
        locked.commit().await?;
        Ok(Declared {
            changed: row.try_get("changed")?,
            created: row.try_get("created")?,
        })
    }

    /// Whether there was such a type to delete.
    pub async fn delete_job_type(&self, app: AppId, name: &str) -> Result<bool, Error> {
        let mut locked = self.begin(&LockSet::All).await?.lock(&LockSet::All, &[]).await?;
        let row = sqlx::query(statements::DELETE_JOB_TYPE)
            .bind(app.0)
            .bind(name)
            .fetch_one(&mut *locked.tx)
            .await?;
        locked.commit().await?;
        Ok(row.try_get("deleted")?)
    }
}

/// The type of a row; `None` where the application has none.
fn stored(row: &PgRow) -> Result<Option<StoredType>, Error> {
    let Some(name) = row.try_get("name")? else {
        return Ok(None);
    };
    let text: &str = row.try_get("definition")?;
    // A member that is not known here was written by a later version. It is not dropped in silence, since it may make
    // dispatches unique.
    let definition = serde_json::from_str(text).map_err(|error| Error::Inconsistent {
        table: "job_types",
        column: "definition",
        problem: error.to_string(),
    })?;
    Ok(Some(StoredType {
        name,
        definition,
        updated_at: row.try_get("updated_at")?,
    }))
}

fn text_of(definition: &Definition) -> String {
    // Numbers and texts alone: nothing of it can fail.
    serde_json::to_string(definition).unwrap_or_default()
}
