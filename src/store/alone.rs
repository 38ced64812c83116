//! Writing a group with one statement, which is its own transaction: for dispatches whose keys nobody holds.
//!
//! It takes the same locks as everybody, but waits for none, and what it expects is compared with what is there by the
//! statement itself. If anything is otherwise it writes nothing, and the group goes the way of [`Store::begin`].

use sqlx::Row;

use crate::job::{AppId, Instant, JobId};
use crate::store::write::{Begin, bound};
use crate::store::{Conditions, Error, Store, Writes, statements};
use crate::uniqueness::locks::LockSet;

/// What became of a write that does not wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alone {
    /// It is stored, all of it, as of this instant.
    Stored(Instant),
    /// Nothing is: somebody holds a key, perhaps not for long.
    Held,
    /// Nothing is: somebody has a lock, or job types have changed, or it came too late, or a standby has to have it.
    Refused,
}

/// How a write is recognised whose answer was lost.
#[derive(Clone, Copy, Debug)]
pub struct Lost {
    /// A lock that it takes and nobody else.
    pub nonce: i64,
    pub app: AppId,
    /// The id of one of its jobs, but for the instant.
    pub job: JobId,
    /// It was sent when the clock had come this far at least.
    pub not_before: Instant,
    /// It does nothing from then on.
    pub not_after: Instant,
}

/// What can be said of such a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    Stored(Instant),
    NotStored,
    /// It may still be on its way to the database.
    Open,
}

impl Store {
    /// Writes what is decided if nobody holds any of the keys, provided that it is so. On [`Error::Unanswered`] it may be
    /// stored, and is to be [settled](Store::settle_alone).
    pub async fn write_alone(&self, writes: &mut Writes<'_>, conditions: &Conditions<'_>) -> Result<Alone, Error> {
        writes.sort();
        let claims = writes.fresh_claims();
        // Where none can be had nothing has been sent: no doubt about the outcome then.
        let mut connection = self.dispatch.acquire().await?;
        if connection.waits_for_standby() {
            return Ok(Alone::Refused);
        }
        let row = bound(&Begin::Alone(conditions), &writes.creations, &claims, &writes.created())
            .fetch_one(&mut *connection)
            .await
            .map_err(Error::of_commit)?;
        Ok(match row.try_get("decided_at")? {
            Some(decided_at) => Alone::Stored(decided_at),
            None if row.try_get("by_somebody")? => Alone::Held,
            None => Alone::Refused,
        })
    }

    /// What became of a write whose answer was lost.
    ///
    /// Whoever has its nonce's lock meets one of three cases: it is over, and can be seen; it has not begun, and will find
    /// the lock taken or, later, its time over; or it never comes.
    pub async fn settle_alone(&self, lost: &Lost) -> Result<Settled, Error> {
        let locks = LockSet::Each(vec![lost.nonce]);
        let mut locked = self.begin(&locks).await?.lock(&locks, &[]).await?;
        let row = sqlx::query(statements::SETTLE_ALONE)
            .bind(lost.app.0)
            .bind(JobId::least_at(lost.not_before).0)
            .bind(JobId::least_at(lost.not_after).0)
            .bind(format!("{:.4}-{:.12}", lost.job.tail(), &lost.job.tail()[4..]))
            .fetch_optional(&mut *locked.tx)
            .await?;
        Ok(match row {
            Some(row) => Settled::Stored(row.try_get("dispatched_at")?),
            None if locked.decided_at() >= lost.not_after => Settled::NotStored,
            None => Settled::Open,
        })
    }
}
