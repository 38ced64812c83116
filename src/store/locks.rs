//! The way into a dispatch transaction: begin, lock, and what only who holds the locks may do.

use sqlx::Row;
use uuid::Uuid;

use crate::job::{AppId, Instant, JobId};
use crate::store::pool::Transaction;
use crate::store::{Error, Store, statements};
use crate::uniqueness::key::KeyDigest;
use crate::uniqueness::locks::LockSet;

/// READ COMMITTED is written out: under REPEATABLE READ the lock statement itself would fix what the look-up
/// sees, before the wait. The gate comes with the BEGIN to save a round trip; its number is [`locks::GATE`].
///
/// [`locks::GATE`]: crate::uniqueness::locks::GATE
const BEGIN_SHARED: &str =
    "begin isolation level read committed; select pg_advisory_xact_lock_shared(3819039144699723632)";
const BEGIN_ALONE: &str = "begin isolation level read committed; select pg_advisory_xact_lock(3819039144699723632)";

/// A transaction that holds the gate, and no key yet.
#[derive(Debug)]
pub struct Begun {
    tx: Transaction,
}

/// A transaction that holds the locks of its keys. Reading who holds them and writing are its methods.
#[derive(Debug)]
pub struct Locked {
    pub(super) tx: Transaction,
    /// The one instant of this transaction, read after the locks.
    decided_at: Instant,
    /// Of the applications that were asked for, in their order.
    types_versions: Vec<i64>,
}

/// Proof that a transaction is stored. Without it no receipt leaves.
#[derive(Debug)]
pub struct Committed(());

impl Store {
    /// Begins a dispatch transaction: alone if its locks are [`LockSet::All`], else beside others.
    pub async fn begin(&self, locks: &LockSet) -> Result<Begun, Error> {
        let begin = match locks {
            LockSet::Each(_) => mutant!(
                "look_up_from_before_the_locks":
                    "begin isolation level repeatable read; select pg_advisory_xact_lock_shared(3819039144699723632)",
                else BEGIN_SHARED
            ),
            LockSet::All => BEGIN_ALONE,
        };
        let tx = self.dispatch.begin_with(begin).await?;
        Ok(Begun { tx })
    }

    /// Whether a transaction whose COMMIT got no answer is stored, once it is certain to be over: `nonce` is
    /// a lock that it held, and what it wrote is one job or one key.
    pub async fn settle(&self, nonce: i64, written: Written) -> Result<bool, Error> {
        let locks = LockSet::Each(vec![nonce]);
        let mut locked = self.begin(&locks).await?.lock(&locks, &[]).await?;
        let Written { app, job, key, since } = written;
        let row = sqlx::query(statements::SETTLE)
            .bind(app.0)
            .bind(job.0)
            .bind(key.map(|digest| Uuid::from_bytes(digest.0)))
            .bind(since)
            .fetch_one(&mut *locked.tx)
            .await?;
        Ok(row.try_get("stored")?)
    }
}

/// Something that a transaction writes, by which it is recognised.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    pub app: AppId,
    pub job: JobId,
    pub key: Option<KeyDigest>,
    pub since: Instant,
}

impl Begun {
    /// Takes the locks, in their order, and then reads the clock; and the versions of the job types of `apps`, which
    /// stay what they are until this transaction ends.
    pub async fn lock(mut self, locks: &LockSet, apps: &[AppId]) -> Result<Locked, Error> {
        let ids: &[i64] = match locks {
            LockSet::Each(ids) => mutant!("no_locks": &[], else ids),
            LockSet::All => &[],
        };
        let row = sqlx::query(statements::LOCK_KEYS)
            .bind(ids)
            .bind(apps.iter().map(|app| app.0).collect::<Vec<i64>>())
            .fetch_one(&mut *self.tx)
            .await?;
        Ok(Locked {
            tx: self.tx,
            decided_at: mutant!(
                "clock_of_the_server": std::time::SystemTime::now().into(), else row.try_get("decided_at")?
            ),
            types_versions: row.try_get("types_versions")?,
        })
    }
}

impl Locked {
    pub fn decided_at(&self) -> Instant {
        self.decided_at
    }

    /// The versions of the job types of the applications that were asked for, in their order.
    pub fn types_versions(&self) -> &[i64] {
        &self.types_versions
    }

    /// Ends the transaction. On [`Error::Unanswered`] it may be stored all the same.
    pub async fn commit(self) -> Result<Committed, Error> {
        self.tx.commit().await.map_err(Error::of_commit)?;
        Ok(Committed(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uniqueness::locks::GATE;

    #[test]
    fn the_gate_is_the_one_that_the_lock_sets_speak_of() {
        assert!(BEGIN_SHARED.ends_with(&format!("pg_advisory_xact_lock_shared({GATE})")));
        assert!(BEGIN_ALONE.ends_with(&format!("pg_advisory_xact_lock({GATE})")));
    }
}
