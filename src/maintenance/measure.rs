//! Metrics of what is in the database and not in this process: how long the queues are, and how old.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use metrics::gauge;

use crate::store::{Error, Store};

/// Whoever names a queue makes series: so many queues are shown, in the order of applications and names. Eight series
/// each, on every server.
const QUEUES_MAX: usize = 200;
const APPLICATIONS_MAX: u32 = 200;

const STATES: [&str; 4] = ["pending", "reserved", "running", "retrying"];

/// Application, environment, queue.
type Place = (String, String, String);

/// The queues that were shown before: one that is gone has to show zero, and not what it had last.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown(Arc<Mutex<BTreeSet<Place>>>);

impl Shown {
    /// Every server measures, and gives the same: each can be asked alone.
    pub(super) async fn queues(self, store: Store) -> Result<(), Error> {
        let mut now = BTreeSet::new();
        let mut left_out = 0;
        for (app, application, environment) in store.namespaces(APPLICATIONS_MAX).await? {
            for queue in store.queues(app).await? {
                if now.len() == QUEUES_MAX {
                    left_out += 1;
                    continue;
                }
                let place = (application.clone(), environment.clone(), queue.queue);
                for state in STATES {
                    jobs(&place, state, queue.counts.get(state).copied().unwrap_or(0));
                }
                age(&place, queue.oldest_pending_seconds.unwrap_or(0.0));
                paused(&place, queue.paused);
                now.insert(place);
            }
        }
        gauge!("solejob_queues_not_shown").set(f64::from(left_out));
        let mut before = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in before.difference(&now) {
            STATES.iter().for_each(|state| jobs(gone, state, 0));
            age(gone, 0.0);
            paused(gone, false);
        }
        *before = now;
        Ok(())
    }
}

fn labels((application, environment, queue): &Place) -> [(&'static str, String); 3] {
    [
        ("application", application.clone()),
        ("environment", environment.clone()),
        ("queue", queue.clone()),
    ]
}

fn jobs(place: &Place, state: &'static str, jobs: i64) {
    let [application, environment, queue] = labels(place);
    let labels = [application, environment, queue, ("state", state.to_owned())];
    gauge!("solejob_queue_jobs", &labels).set(jobs as f64);
}

fn age(place: &Place, seconds: f64) {
    gauge!("solejob_queue_oldest_pending_seconds", &labels(place)).set(seconds);
}

fn paused(place: &Place, paused: bool) {
    gauge!("solejob_queue_paused", &labels(place)).set(f64::from(u8::from(paused)));
}
