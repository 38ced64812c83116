//! A look at everything, for whoever asks what is wrong: `solejob doctor`.

use std::time::Duration;

use sqlx::Row;

use crate::store::{Error, Store, schema, statements};

/// Something that was found, by the name that the statement gives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    pub rule: String,
    pub times: i64,
    /// At most five of them, in words.
    pub examples: Vec<String>,
}

impl Store {
    /// Rules that the data break, and what stands in the way. A transaction is long when it is open for `long`.
    pub async fn examine(&self, long: Duration) -> Result<Vec<Found>, Error> {
        let rows = sqlx::query(statements::EXAMINE_RULES)
            .bind(long.as_secs_f64())
            .fetch_all(&self.general)
            .await?;
        let found = |row: &sqlx::postgres::PgRow| {
            Ok(Found {
                rule: row.try_get("rule")?,
                times: row.try_get("times")?,
                examples: row.try_get("examples")?,
            })
        };
        rows.iter().map(found).collect()
    }

    /// What should be set otherwise in PostgreSQL, for a server that opens so many connections.
    pub async fn examine_settings(&self, connections: u32) -> Result<Vec<String>, Error> {
        schema::warnings(&mut *self.general.acquire().await?, connections).await
    }
}
