//! What has to be done now and then: small steps that any server may take, each safe beside all others.

use sqlx::Row;

use crate::job::{AppId, JobId};
use crate::store::connection::Connection;
use crate::store::lives::Counts;
use crate::store::rows::state;
use crate::store::{Error, Store, statements};

/// Sweeps that only one server at a time does. The numbers are advisory locks: "solejob" and one byte.
#[repr(i64)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sweep {
    Jobs = 0x736f_6c65_6a6f_6201,
    Keys = 0x736f_6c65_6a6f_6202,
    Counts = 0x736f_6c65_6a6f_6203,
    Resources = 0x736f_6c65_6a6f_6204,
}

impl Store {
    /// Jobs whose lease or timeout is over, at most `limit`. Whoever ends them looks again, under their locks.
    pub async fn expired_leases(&self, limit: u32) -> Result<Vec<(AppId, JobId)>, Error> {
        let rows = sqlx::query(statements::EXPIRED_LEASES)
            .bind(i64::from(limit))
            .fetch_all(&self.general)
            .await?;
        let place = |row: &sqlx::postgres::PgRow| Ok((AppId(row.try_get("app_id")?), JobId(row.try_get("job_id")?)));
        rows.iter().map(place).collect()
    }

    /// Puts jobs in line that wait for a resource key which has room. Gives the queues they are in.
    pub async fn unblock_missed(&self) -> Result<Vec<(AppId, String)>, Error> {
        let rows = sqlx::query(statements::UNBLOCK_MISSED).fetch_all(&self.general).await?;
        let place = |row: &sqlx::postgres::PgRow| Ok((AppId(row.try_get("app_id")?), row.try_get("queue")?));
        rows.iter().map(place).collect()
    }

    /// Forgets finished jobs whose retention is over, at most `limit` of each application. Gives how many.
    pub async fn sweep_jobs(&self, limit: u32) -> Result<usize, Error> {
        let mut tx = self.general.begin_with("begin isolation level read committed").await?;
        if !alone(&mut tx, Sweep::Jobs).await? {
            return Ok(0);
        }
        let apps = sqlx::query("select app_id from applications")
            .fetch_all(&mut *tx)
            .await?;
        let apps = apps
            .iter()
            .map(|row| row.try_get("app_id"))
            .collect::<Result<Vec<i64>, _>>()?;
        let rows = sqlx::query(statements::SWEEP_JOBS)
            .bind(apps)
            .bind(i64::from(limit))
            .fetch_all(&mut *tx)
            .await?;
        if mutant!("retention_drops_window_keys": true, else false) {
            let drop = "delete from job_keys as k where dimension = 'window' and not exists (
                            select from jobs as j where j.app_id = k.app_id and j.job_id = k.job_id)";
            sqlx::query(drop).execute(&mut *tx).await?;
        }
        let mut counts = Counts::default();
        for row in &rows {
            let was: &str = row.try_get("state")?;
            counts.moved(
                AppId(row.try_get("app_id")?),
                row.try_get("queue")?,
                Some(state(was)?),
                None,
            );
        }
        counts.write(&mut tx).await?;
        tx.commit().await?;
        Ok(rows.len())
    }

    /// Forgets window keys that are over, in `pages` pages of the table from page `from` on. Gives how many,
    /// and the page to go on from: 0 when the table has been gone through.
    pub async fn sweep_keys(&self, from: i64, pages: i64) -> Result<(u64, i64), Error> {
        let size = "select pg_relation_size('job_keys') / current_setting('block_size')::bigint as pages";
        self.sweep_pages(Sweep::Keys, size, statements::SWEEP_KEYS, from, pages)
            .await
    }

    /// Forgets resource keys that nobody holds or waits for, likewise.
    pub async fn sweep_resources(&self, from: i64, pages: i64) -> Result<(u64, i64), Error> {
        let size = "select pg_relation_size('resource_keys') / current_setting('block_size')::bigint as pages";
        self.sweep_pages(Sweep::Resources, size, statements::SWEEP_RESOURCES, from, pages)
            .await
    }

    async fn sweep_pages(
        &self,
        sweep: Sweep,
        size: &'static str,
        statement: &'static str,
        from: i64,
        pages: i64,
    ) -> Result<(u64, i64), Error> {
        let mut tx = self.general.begin_with("begin isolation level read committed").await?;
        if !alone(&mut tx, sweep).await? {
            return Ok((0, from));
        }
        let end: i64 = sqlx::query(size).fetch_one(&mut *tx).await?.try_get("pages")?;
        let swept = sqlx::query(statement)
            .bind(from)
            .bind(from + pages)
            .execute(&mut *tx)
            .await?
            .rows_affected();
        tx.commit().await?;
        Ok((swept, if from + pages < end { from + pages } else { 0 }))
    }

    /// Adds up the changes of queue counts.
    pub async fn fold_counts(&self) -> Result<(), Error> {
        let mut tx = self.general.begin_with("begin isolation level read committed").await?;
        if alone(&mut tx, Sweep::Counts).await? {
            sqlx::query(statements::FOLD_COUNTS).execute(&mut *tx).await?;
            tx.commit().await?;
        }
        Ok(())
    }
}

/// Whether no other server is at the same sweep. The lock goes with the transaction.
async fn alone(tx: &mut Connection, sweep: Sweep) -> Result<bool, Error> {
    let row = sqlx::query("select pg_try_advisory_xact_lock($1) as taken")
        .bind(sweep as i64)
        .fetch_one(tx)
        .await?;
    Ok(row.try_get("taken")?)
}
