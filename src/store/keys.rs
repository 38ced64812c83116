//! Keys by themselves: who holds one, and freeing one.

use sqlx::Row;
use uuid::Uuid;

use crate::job::{AppId, Instant, JobId, State};
use crate::store::holders::Asked;
use crate::store::{Error, Store, statements};
use crate::uniqueness::decide::AskedKey;
use crate::uniqueness::key::Dimension;
use crate::uniqueness::locks::LockSet;
use crate::uniqueness::window::is_over;

/// Who holds a key.
#[derive(Clone, PartialEq, Debug)]
pub struct KeyHolder {
    pub job: JobId,
    /// `None` when the key outlived the job.
    pub state: Option<State>,
    pub since: Instant,
    /// `None`: until the job ends.
    pub expires_at: Option<Instant>,
}

/// What became of a reset: the job that held the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reset(pub Option<JobId>);

impl Store {
    /// Who holds `key` at this moment.
    pub async fn holder(&self, app: AppId, key: &AskedKey) -> Result<Option<KeyHolder>, Error> {
        let mut asked = Asked::default();
        asked.insert(app, key);
        let look = self.look(&asked).await?;
        Ok(match key.key.dimension {
            Dimension::Active => look.holders.active(app, key.digest).map(|job| KeyHolder {
                job: job.id,
                state: job.now.as_ref().map(|now| now.state),
                since: job.dispatched_at,
                expires_at: None,
            }),
            Dimension::Window => look
                .holders
                .window(app, key.digest)
                .filter(|holder| !is_over(holder.expires_at, look.now))
                .map(|holder| KeyHolder {
                    job: holder.job.id,
                    state: holder.job.now.as_ref().map(|now| now.state),
                    since: holder.since,
                    expires_at: Some(holder.expires_at),
                }),
        })
    }

    /// Frees a window key now, if `job` (or anybody, where none is given) holds it. Takes the key's lock, so
    /// that it comes before or after a dispatch and never in its middle.
    pub async fn reset(&self, app: AppId, key: &AskedKey, job: Option<JobId>, nonce: i64) -> Result<Reset, Error> {
        let locks = LockSet::new(std::iter::once((app, key.digest)), nonce, self.locks_each());
        let mut locked = self.begin(&locks).await?.lock(&locks, &[]).await?;
        let row = sqlx::query(statements::RESET_KEY)
            .bind(app.0)
            .bind(Uuid::from_bytes(key.digest.0))
            .bind(mutant!("reset_of_anybodys_key": None, else job.map(|id| id.0)))
            .fetch_optional(&mut *locked.tx)
            .await?;
        let released = row.map(|row| row.try_get("job_id").map(JobId)).transpose()?;
        locked.commit().await?;
        Ok(Reset(released))
    }
}
