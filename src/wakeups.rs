//! Who waits for what in this process, and what other servers are to be told.
//!
//! News are hints: whoever waits looks at the database when woken, and now and then without.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use uuid::Uuid;

use crate::job::{AppId, JobId};

/// What happened.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum News {
    /// A job of this queue is in line, or will be at another time than was known.
    Queue(AppId, String),
    /// This job has finished.
    Finished(AppId, JobId),
}

impl News {
    /// One line, for other servers. Queue names hold no white space.
    pub fn to_line(&self) -> String {
        match self {
            News::Queue(AppId(app), queue) => format!("q {app} {queue}"),
            News::Finished(AppId(app), JobId(id)) => format!("f {app} {id}"),
        }
    }

    pub fn from_line(line: &str) -> Option<News> {
        let mut words = line.split(' ');
        let (kind, app, what) = (words.next()?, AppId(words.next()?.parse().ok()?), words.next()?);
        match kind {
            "q" => Some(News::Queue(app, what.to_owned())),
            "f" => Some(News::Finished(app, JobId(Uuid::try_parse(what).ok()?))),
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    queues: HashMap<(AppId, String), Vec<Arc<Notify>>>,
    jobs: HashMap<(AppId, JobId), Vec<Arc<Notify>>>,
    unsaid: BTreeSet<News>,
}

/// The meeting point of those who wait and those who bring news.
#[derive(Clone, Debug, Default)]
pub struct Wakeups {
    state: Arc<Mutex<State>>,
    /// Woken when there is something to tell other servers.
    to_say: Arc<Notify>,
}

impl Wakeups {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here is left half done by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells everybody: who waits here, and soon the other servers.
    pub fn tell(&self, news: impl IntoIterator<Item = News>) {
        let mut state = self.state();
        let mut said = false;
        for news in news {
            state.wake(&news);
            // Other servers' waiters for a job look for it themselves: only those for queues hear of it.
            if let News::Queue(..) = news {
                said |= state.unsaid.insert(news);
            }
        }
        drop(state);
        if said {
            self.to_say.notify_one();
        }
    }

    /// News from another server.
    pub fn hear(&self, news: &News) {
        self.state().wake(news);
    }

    /// Something may have been missed: everybody looks.
    pub fn wake_all(&self) {
        let state = self.state();
        state
            .queues
            .values()
            .chain(state.jobs.values())
            .flatten()
            .for_each(|waiter| waiter.notify_one());
    }

    /// What other servers have not been told yet, once there is something.
    pub async fn unsaid(&self) -> Vec<News> {
        loop {
            let unsaid = std::mem::take(&mut self.state().unsaid);
            if !unsaid.is_empty() {
                return unsaid.into_iter().collect();
            }
            self.to_say.notified().await;
        }
    }

    /// Woken by news of any of these queues, for as long as it is kept.
    pub fn watch_queues(&self, app: AppId, queues: &[String]) -> Watch {
        let notify = Arc::new(Notify::new());
        let mut state = self.state();
        for queue in queues {
            state
                .queues
                .entry((app, queue.clone()))
                .or_default()
                .push(Arc::clone(&notify));
        }
        Watch {
            wakeups: self.clone(),
            notify,
            queues: queues.iter().map(|queue| (app, queue.clone())).collect(),
            job: None,
        }
    }

    /// Woken when this job finishes here, for as long as it is kept.
    pub fn watch_job(&self, app: AppId, job: JobId) -> Watch {
        let notify = Arc::new(Notify::new());
        self.state()
            .jobs
            .entry((app, job))
            .or_default()
            .push(Arc::clone(&notify));
        Watch {
            wakeups: self.clone(),
            notify,
            queues: Vec::new(),
            job: Some((app, job)),
        }
    }

    /// The jobs that somebody waits for.
    pub fn watched_jobs(&self) -> Vec<(AppId, JobId)> {
        self.state().jobs.keys().copied().collect()
    }
}

impl State {
    fn wake(&self, news: &News) {
        let waiters = match news {
            News::Queue(app, queue) => self.queues.get(&(*app, queue.clone())),
            News::Finished(app, job) => self.jobs.get(&(*app, *job)),
        };
        // A permit is kept for a waiter that is just looking at the database.
        waiters.into_iter().flatten().for_each(|waiter| waiter.notify_one());
    }
}

/// A place among those who wait, given up when dropped.
#[derive(Debug)]
pub struct Watch {
    wakeups: Wakeups,
    notify: Arc<Notify>,
    queues: Vec<(AppId, String)>,
    job: Option<(AppId, JobId)>,
}

impl Watch {
    /// The next news since the last call; news that came in between are not lost.
    pub async fn woken(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = self.wakeups.state();
        for place in &self.queues {
            leave(&mut state.queues, place, &self.notify);
        }
        if let Some(place) = &self.job {
            leave(&mut state.jobs, place, &self.notify);
        }
    }
}

fn leave<K: std::hash::Hash + Eq>(places: &mut HashMap<K, Vec<Arc<Notify>>>, place: &K, notify: &Arc<Notify>) {
    if let Some(waiters) = places.get_mut(place) {
        waiters.retain(|waiter| !Arc::ptr_eq(waiter, notify));
        if waiters.is_empty() {
            places.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_read_as_they_are_written() {
        for news in [
            News::Queue(AppId(7), "a:b".into()),
            News::Finished(AppId(-1), JobId(Uuid::from_u128(9))),
        ] {
            assert_eq!(News::from_line(&news.to_line()), Some(news));
        }
        for line in ["", "q", "q x y", "q 1", "f 1 x", "z 1 a"] {
            assert_eq!(News::from_line(line), None, "{line}");
        }
    }

    #[tokio::test]
    async fn news_that_come_before_the_wait_are_not_lost_and_places_are_given_up() {
        let wakeups = Wakeups::default();
        let watch = wakeups.watch_queues(AppId(1), &["a".into(), "b".into()]);
        wakeups.tell([News::Queue(AppId(1), "b".into()), News::Queue(AppId(2), "a".into())]);
        watch.woken().await;
        assert_eq!(wakeups.unsaid().await.len(), 2);
        drop(watch);
        assert!(wakeups.state().queues.is_empty());
        let watch = wakeups.watch_job(AppId(1), JobId(Uuid::nil()));
        wakeups.tell([News::Finished(AppId(1), JobId(Uuid::nil()))]);
        watch.woken().await;
        drop(watch);
        assert!(wakeups.watched_jobs().is_empty());
    }
}
