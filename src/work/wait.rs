//! Waiting for a job to finish, wherever it does.

use std::time::Duration;

use metrics::gauge;
use tokio::time::Instant;

use crate::job::{AppId, JobId};
use crate::store::{Error, Store};
use crate::wakeups::{News, Wakeups};

/// How often jobs that somebody waits for are looked at, all in one statement: they may finish on another server.
const POLL: Duration = Duration::from_millis(200);

/// Waits for jobs.
#[derive(Clone, Debug)]
pub struct Waits {
    store: Store,
    wakeups: Wakeups,
}

impl Waits {
    pub fn new(store: Store, wakeups: Wakeups) -> Waits {
        Waits { store, wakeups }
    }

    /// Returns when the job has finished, is gone, or the time is over. True if it has finished or is gone.
    pub async fn finished(&self, app: AppId, job: JobId, time: Duration) -> Result<bool, Error> {
        let watch = self.wakeups.watch_job(app, job);
        let _awaited = Awaited::one();
        let end = Instant::now() + time;
        loop {
            let states = self.store.job_states(&[(app, job)]).await?;
            if states.get(&(app, job)).is_none_or(|state| !state.is_live()) {
                return Ok(true);
            }
            if tokio::time::timeout_at(end, watch.woken()).await.is_err() {
                return Ok(false);
            }
        }
    }
}

/// Somebody who waits, for as long as this is kept.
struct Awaited;

impl Awaited {
    fn one() -> Awaited {
        gauge!("solejob_jobs_awaited").increment(1.0);
        Awaited
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        gauge!("solejob_jobs_awaited").decrement(1.0);
    }
}

/// Looks at the jobs that somebody waits for, for ever: those that have finished elsewhere wake their waiters.
pub async fn poll_awaited(store: Store, wakeups: Wakeups) {
    loop {
        tokio::time::sleep(POLL).await;
        let awaited = wakeups.watched_jobs();
        if awaited.is_empty() {
            continue;
        }
        match store.job_states(&awaited).await {
            Ok(states) => {
                let over = awaited
                    .into_iter()
                    .filter(|job| states.get(job).is_none_or(|state| !state.is_live()));
                over.for_each(|(app, job)| wakeups.hear(&News::Finished(app, job)));
            }
            Err(error) => tracing::warn!(%error, "jobs that are waited for could not be looked at"),
        }
    }
}
