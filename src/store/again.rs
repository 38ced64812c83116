//! Running a finished job again: the one change of a life that claims a key.

use sqlx::Row;
use uuid::Uuid;

use crate::job::{AppId, JobId, State};
use crate::store::jobs::FullJob;
use crate::store::lives::{Changed, LockedJob};
use crate::store::{Error, Lives, Store, statements};
use crate::uniqueness::key::KeyDigest;
use crate::uniqueness::locks::LockSet;

/// What became of a retry by hand.
#[derive(Clone, PartialEq, Debug)]
pub enum Again {
    /// It is pending again, as shown, and waits in its queue.
    Done {
        queue: String,
        job: Box<FullJob>,
    },
    /// It has not finished.
    Live(State),
    /// Another live job has its active key.
    ActiveKeyHeld,
    NotFound,
}

impl Store {
    /// Makes a finished job pending now, if its active key is free.
    pub async fn run_again(&self, app: AppId, id: JobId, nonce: i64) -> Result<Again, Error> {
        // The key before the row, as everywhere: the digest never changes once the job is there.
        let row = sqlx::query("select active_digest from jobs where app_id = $1 and job_id = $2")
            .bind(app.0)
            .bind(id.0)
            .fetch_optional(&self.general)
            .await?;
        let Some(row) = row else { return Ok(Again::NotFound) };
        let digest: Option<Uuid> = row.try_get("active_digest")?;
        let keys = digest.iter().map(|digest| (app, KeyDigest(digest.into_bytes())));
        let locks = LockSet::new(keys, nonce, self.locks_each());
        let locked = self.begin(&locks).await?.lock(&locks, &[]).await?;
        let (mut lives, mut jobs, now) = Lives::lock(locked.tx, &[(app, id)]).await?;
        let Some(job) = jobs.first_mut() else {
            return Ok(Again::NotFound);
        };
        let before = job.life.state;
        if before.is_live() {
            return Ok(Again::Live(before));
        }
        if digest.is_some() && !mutant!("retry_without_its_key": true, else lives.claim_again(job, now).await?) {
            return Ok(Again::ActiveKeyHeld);
        }
        let past = job.life.run_again(now);
        let job = &*job;
        lives
            .write(
                &[Changed {
                    before,
                    leased_before: false,
                    job,
                    past,
                }],
                now,
            )
            .await?;
        // Shown before it is stored: a look that fails later would make an answer of something that is done.
        let Some(shown) = lives.full_jobs(app, &[id]).await?.remove(&id) else {
            return Ok(Again::NotFound);
        };
        lives.commit().await?;
        Ok(Again::Done {
            queue: job.queue.clone(),
            job: Box::new(shown),
        })
    }
}

impl Lives {
    /// Claims the active key of a job that has finished. Whether it was free.
    async fn claim_again(&mut self, job: &LockedJob, now: crate::job::Instant) -> Result<bool, Error> {
        let claim = sqlx::query(statements::CLAIM_AGAIN)
            .bind(job.app.0)
            .bind(job.id.0)
            .bind(now);
        Ok(claim.execute(&mut *self.tx).await?.rows_affected() == 1)
    }
}
