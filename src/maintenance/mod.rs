//! What goes on without being asked: leases that run out, sweeps, news between servers.
//!
//! Every server does all of it and none leads: each step is small, looks again under locks, and may be done by
//! several servers at once or by none for a while.

mod measure;
mod news;
mod steps;

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::store::{Error, Store};
use crate::wakeups::Wakeups;
use crate::work::{Calls, poll_awaited};

/// An attempt is ended within two seconds of its end; this leaves time for the ending.
const LEASES: Duration = Duration::from_millis(500);
const BLOCKED: Duration = Duration::from_secs(1);
const FINISHED_JOBS: Duration = Duration::from_secs(2);
const WINDOW_KEYS: Duration = Duration::from_secs(1);
const RESOURCE_KEYS: Duration = Duration::from_secs(10);
const QUEUE_COUNTS: Duration = Duration::from_secs(10);
/// More often than metrics are commonly collected, and seldom enough to cost nothing.
const QUEUE_METRICS: Duration = Duration::from_secs(10);

/// Starts everything. It ends when `stop` is cancelled.
pub fn start(store: &Store, wakeups: &Wakeups, calls: &Calls, stop: &CancellationToken, tasks: &TaskTracker) {
    let upkeep = Upkeep {
        stop: stop.clone(),
        tasks: tasks.clone(),
    };
    let (leases, ends) = (store.clone(), calls.clone());
    upkeep.every("expire leases", LEASES, move || {
        steps::expire_leases(leases.clone(), ends.clone())
    });
    let (blocked, woken) = (store.clone(), wakeups.clone());
    upkeep.every("unblock jobs", BLOCKED, move || {
        steps::unblock_jobs(blocked.clone(), woken.clone())
    });
    let finished = store.clone();
    upkeep.every("sweep finished jobs", FINISHED_JOBS, move || {
        steps::sweep_jobs(finished.clone())
    });
    let (keys, sweep) = (store.clone(), steps::PageSweep::default());
    upkeep.every("sweep window keys", WINDOW_KEYS, move || {
        sweep.clone().keys(keys.clone())
    });
    let (resources, sweep) = (store.clone(), steps::PageSweep::default());
    upkeep.every("sweep resource keys", RESOURCE_KEYS, move || {
        sweep.clone().resources(resources.clone())
    });
    let counts = store.clone();
    upkeep.every("fold queue counts", QUEUE_COUNTS, move || {
        steps::fold_counts(counts.clone())
    });
    let (queues, shown) = (store.clone(), measure::Shown::default());
    upkeep.every("measure queues", QUEUE_METRICS, move || {
        shown.clone().queues(queues.clone())
    });
    upkeep.run(poll_awaited(store.clone(), wakeups.clone()));
    upkeep.run(news::say(store.clone(), wakeups.clone()));
    upkeep.run(news::hear(store.clone(), wakeups.clone()));
}

struct Upkeep {
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Upkeep {
    /// Takes a step now and then. Servers that were started together drift apart: each pause is a little different.
    fn every<F, S>(&self, name: &'static str, period: Duration, step: F)
    where
        F: Fn() -> S + Send + 'static,
        S: Future<Output = Result<(), Error>> + Send + 'static,
    {
        self.run(async move {
            loop {
                tokio::time::sleep(period.mul_f64(rand::random_range(0.8..1.1))).await;
                let taken = step().await;
                if let Err(error) = taken {
                    tracing::warn!(%error, step = name, "maintenance did not succeed and is tried again later");
                }
            }
        });
    }

    fn run(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = work => {}
                () = stop.cancelled() => {}
            }
        });
    }
}
