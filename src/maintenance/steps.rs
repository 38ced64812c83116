//! The steps of maintenance, each of which can be taken by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use metrics::counter;
use tokio::task::JoinSet;

use crate::life::Call;
use crate::store::{Error, Store};
use crate::wakeups::{News, Wakeups};
use crate::work::Calls;

/// Leases that are ended in one step. What is left is next.
const LEASES_BATCH: u32 = 500;

/// Jobs that one transaction forgets.
const JOBS_BATCH: u32 = 1_000;

/// Pages of a table that one step goes through: 8 MiB.
const PAGES: i64 = 1_024;

/// Ends attempts whose lease or timeout is over. Another server may be at the same ones: each is looked at again
/// under its lock.
pub(super) async fn expire_leases(store: Store, calls: Calls) -> Result<(), Error> {
    loop {
        let over = store.expired_leases(LEASES_BATCH).await?;
        let mut ending = JoinSet::new();
        for (app, job) in &over {
            let (calls, app, job) = (calls.clone(), *app, *job);
            // Together, so that one transaction ends many.
            ending.spawn(async move { calls.call(app, job, Call::Expire).await });
        }
        let mut ended = 0;
        while let Some(result) = ending.join_next().await {
            ended += u32::from(matches!(result, Ok(Ok(_))));
        }
        counter!("solejob_leases_expired_total").increment(u64::from(ended));
        if over.len() < LEASES_BATCH as usize || ended == 0 {
            return Ok(());
        }
    }
}

pub(super) async fn unblock_jobs(store: Store, wakeups: Wakeups) -> Result<(), Error> {
    let queues = store.unblock_missed().await?;
    wakeups.tell(queues.into_iter().map(|(app, queue)| News::Queue(app, queue)));
    Ok(())
}

pub(super) async fn sweep_jobs(store: Store) -> Result<(), Error> {
    loop {
        let swept = store.sweep_jobs(JOBS_BATCH).await?;
        counter!("solejob_jobs_swept_total").increment(swept as u64);
        if swept < JOBS_BATCH as usize {
            return Ok(());
        }
    }
}

/// How far a sweep through the pages of a table has come.
#[derive(Clone, Debug, Default)]
pub(super) struct PageSweep(Arc<AtomicI64>);

impl PageSweep {
    pub(super) async fn resources(self, store: Store) -> Result<(), Error> {
        let (_, next) = store.sweep_resources(self.0.load(Ordering::Relaxed), PAGES).await?;
        self.0.store(next, Ordering::Relaxed);
        Ok(())
    }

    pub(super) async fn keys(self, store: Store) -> Result<(), Error> {
        let (swept, next) = store.sweep_keys(self.0.load(Ordering::Relaxed), PAGES).await?;
        self.0.store(next, Ordering::Relaxed);
        counter!("solejob_window_keys_swept_total").increment(swept);
        Ok(())
    }
}

pub(super) async fn fold_counts(store: Store) -> Result<(), Error> {
    store.fold_counts().await
}
