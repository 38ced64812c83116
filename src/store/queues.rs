//! Queues and resource scopes: what is in them, and what an operator may set.

use std::collections::BTreeMap;

use sqlx::Row;

use crate::job::AppId;
use crate::store::{Error, Store, statements};

/// A queue as its readers see it.
#[derive(Clone, PartialEq, Debug)]
pub struct QueueView {
    pub queue: String,
    pub paused: bool,
    /// Jobs by the name of their state.
    pub counts: BTreeMap<String, i64>,
    /// For how long the oldest job that is due and in line has waited.
    pub oldest_pending_seconds: Option<f64>,
}

/// A resource scope as its readers see it.
#[derive(Clone, PartialEq, Debug)]
pub struct ScopeView {
    pub scope: String,
    /// `None`: none is set, which means 1.
    pub capacity: Option<i32>,
    /// Leased jobs by key, for the 1,000 keys with the most.
    pub in_use: BTreeMap<String, i64>,
}

impl Store {
    /// Applications by number, with application and environment: at most `limit` of them.
    pub async fn namespaces(&self, limit: u32) -> Result<Vec<(AppId, String, String)>, Error> {
        let rows = sqlx::query(statements::NAMESPACES)
            .bind(i64::from(limit))
            .fetch_all(&self.general)
            .await?;
        let namespace = |row: &sqlx::postgres::PgRow| {
            Ok((
                AppId(row.try_get("app_id")?),
                row.try_get("application")?,
                row.try_get("environment")?,
            ))
        };
        rows.iter().map(namespace).collect()
    }

    pub async fn queues(&self, app: AppId) -> Result<Vec<QueueView>, Error> {
        let rows = sqlx::query(statements::QUEUES)
            .bind(app.0)
            .fetch_all(&self.general)
            .await?;
        let view = |row: &sqlx::postgres::PgRow| {
            Ok(QueueView {
                queue: row.try_get("queue")?,
                paused: row.try_get("paused")?,
                counts: numbers(row.try_get("counts")?)?,
                oldest_pending_seconds: row.try_get("oldest_pending_seconds")?,
            })
        };
        rows.iter().map(view).collect()
    }

    pub async fn pause(&self, app: AppId, queue: &str) -> Result<(), Error> {
        sqlx::query(statements::PAUSE_QUEUE)
            .bind(app.0)
            .bind(queue)
            .execute(&self.general)
            .await
            .map_err(Error::of_commit)?;
        Ok(())
    }

    pub async fn resume(&self, app: AppId, queue: &str) -> Result<(), Error> {
        sqlx::query(statements::RESUME_QUEUE)
            .bind(app.0)
            .bind(queue)
            .execute(&self.general)
            .await
            .map_err(Error::of_commit)?;
        Ok(())
    }

    /// Sets a capacity. Gives whether none was set before.
    pub async fn set_scope(&self, app: AppId, scope: &str, capacity: i32) -> Result<bool, Error> {
        let set = sqlx::query(statements::SET_SCOPE)
            .bind(app.0)
            .bind(scope)
            .bind(capacity);
        let set = set.fetch_one(&self.general).await.map_err(Error::of_commit)?;
        Ok(set.try_get("created")?)
    }

    /// The scopes that have a capacity or are in use; only `scope`, if one is given.
    pub async fn scopes(&self, app: AppId, scope: Option<&str>) -> Result<Vec<ScopeView>, Error> {
        let rows = sqlx::query(statements::SCOPES)
            .bind(app.0)
            .bind(scope)
            .fetch_all(&self.general)
            .await?;
        let view = |row: &sqlx::postgres::PgRow| {
            Ok(ScopeView {
                scope: row.try_get("scope")?,
                capacity: row.try_get("capacity")?,
                in_use: numbers(row.try_get("in_use")?)?,
            })
        };
        rows.iter().map(view).collect()
    }

    /// Whether there was a capacity to delete.
    pub async fn delete_scope(&self, app: AppId, scope: &str) -> Result<bool, Error> {
        let done = sqlx::query(statements::DELETE_SCOPE)
            .bind(app.0)
            .bind(scope)
            .execute(&self.general)
            .await
            .map_err(Error::of_commit)?;
        Ok(done.rows_affected() > 0)
    }
}

/// An object of whole numbers, which the statement itself has made.
fn numbers(text: &str) -> Result<BTreeMap<String, i64>, Error> {
    let inconsistent = |error: serde_json::Error| Error::Inconsistent {
        table: "queue_counts",
        column: "jobs",
        problem: error.to_string(),
    };
    serde_json::from_str(text).map_err(inconsistent)
}
