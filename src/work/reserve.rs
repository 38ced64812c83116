//! Reserving: workers that look at the same queues wait in one line, and one transaction at a time serves it.
//!
//! A line costs the database one look when somebody joins it, when there is news of its queues, when a job comes
//! due, and once a second; never one for each worker that waits.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::{counter, gauge, histogram};
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::duration::Millis;
use crate::job::{AppId, JobId};
use crate::life::Call;
use crate::store::{Class, FullJob, Shape, Store, Wish};
use crate::wakeups::Wakeups;
use crate::work::calls::{Calls, Failure};

/// A lost notification costs at most this.
const POLL: Duration = Duration::from_secs(1);

/// How many jobs one transaction gives out, unless a single worker asks for more.
const GROUP_JOBS: usize = 500;

/// How many workers one transaction serves.
const GROUP_WORKERS: usize = 128;

#[derive(Clone, Debug)]
pub struct Limits {
    /// Transactions that give jobs out at once.
    pub in_flight: u32,
    /// Workers that may wait; one more is refused as overloaded.
    pub waiting: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            in_flight: 2,
            waiting: 20_000,
        }
    }
}

/// A worker's request for jobs.
#[derive(Clone, Debug)]
pub struct Request {
    pub shape: Shape,
    pub wish: Wish,
    /// How long to wait for the first job.
    pub wait: Duration,
}

struct Waiting {
    wish: Wish,
    until: Instant,
    answer: oneshot::Sender<Result<Vec<FullJob>, Failure>>,
}

/// Workers with one shape.
#[derive(Default)]
struct Line {
    waiting: Mutex<VecDeque<Waiting>>,
    joined: Notify,
}

impl Line {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Shared {
    store: Store,
    wakeups: Wakeups,
    calls: Calls,
    lines: Mutex<HashMap<Shape, Arc<Line>>>,
    /// Transactions that may run at once, over all lines.
    in_flight: Semaphore,
    places: Arc<Semaphore>,
    stopping: CancellationToken,
    tasks: TaskTracker,
}

/// The one way to a job for a worker.
#[derive(Clone)]
pub struct Reserver(Arc<Shared>);

impl std::fmt::Debug for Reserver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reserver")
    }
}

impl Reserver {
    /// When `stopping` is cancelled, workers that wait are answered with no jobs.
    pub fn new(
        store: Store,
        wakeups: Wakeups,
        calls: Calls,
        limits: &Limits,
        stopping: CancellationToken,
        tasks: TaskTracker,
    ) -> Reserver {
        Reserver(Arc::new(Shared {
            store,
            wakeups,
            calls,
            lines: Mutex::default(),
            in_flight: Semaphore::new(limits.in_flight as usize),
            places: Arc::new(Semaphore::new(limits.waiting)),
            stopping,
            tasks,
        }))
    }

    /// Jobs for a worker: as soon as there is one, or none when the wait is over. If the future is dropped
    /// before it gives them, the jobs are given back.
    pub async fn reserve(&self, request: Request) -> Result<Vec<FullJob>, Failure> {
        let _place = Arc::clone(&self.0.places)
            .try_acquire_owned()
            .map_err(|_| Failure::Overloaded)?;
        let Request { shape, wish, wait } = request;
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting {
            wish,
            until: Instant::now() + wait,
            answer,
        };
        self.join(shape, waiting);
        answered.await.unwrap_or_else(|_| Err(Failure::died()))
    }

    /// Gives back jobs whose worker did not get them.
    pub fn give_back(&self, app: AppId, leases: Vec<(JobId, Uuid)>) {
        self.0.give_back(app, leases);
    }

    fn join(&self, shape: Shape, waiting: Waiting) {
        // The lines stay locked until the worker stands in one: a line that is empty may be taken away.
        let mut lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let line = lines.entry(shape.clone()).or_insert_with(|| {
            let line = Arc::new(Line::default());
            let (shared, served) = (Arc::clone(&self.0), Arc::clone(&line));
            self.0.tasks.spawn(async move {
                loop {
                    // In a task of its own: after a panic, those who still stand in the line are served again.
                    let (shared, shape, served) = (Arc::clone(&shared), shape.clone(), Arc::clone(&served));
                    match tokio::spawn(async move { shared.serve(shape, served).await }).await {
                        Ok(()) => break,
                        Err(panic) => tracing::error!(%panic, "a look for jobs was lost in a panic"),
                    }
                }
            });
            line
        });
        line.waiting().push_back(waiting);
        line.joined.notify_one();
    }
}

/// What a look at the database led to.
enum Looked {
    /// Everybody who was served got what they asked for: there may be more.
    Full,
    /// The line of jobs is empty, until this long from now if that is known.
    Empty(Option<Duration>),
}

impl Shared {
    /// Serves a line until nobody stands in it.
    async fn serve(&self, shape: Shape, line: Arc<Line>) {
        let watch = self.wakeups.watch_queues(shape.app, &shape.queues);
        gauge!("solejob_reserve_lines").increment(1.0);
        loop {
            let looked = self.look(&shape, &line).await;
            self.dismiss(&line);
            let Some(first_end) = self.leave_if_empty(&shape, &line) else {
                break;
            };
            let Looked::Empty(next_due) = looked else { continue };
            let mut pause = POLL.min(first_end.saturating_duration_since(Instant::now()));
            if let Some(due) = next_due {
                pause = pause.min(due);
            }
            tokio::select! {
                () = watch.woken() => {}
                () = line.joined.notified() => {}
                () = tokio::time::sleep(pause) => {}
                () = self.stopping.cancelled() => {}
            }
        }
        gauge!("solejob_reserve_lines").decrement(1.0);
    }

    /// Takes the line away if nobody stands in it; else, when the first of its workers has waited long enough.
    fn leave_if_empty(&self, shape: &Shape, line: &Line) -> Option<Instant> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let first_end = line.waiting().iter().map(|waiting| waiting.until).min();
        if first_end.is_none() {
            lines.remove(shape);
        }
        first_end
    }

    /// One transaction for the head of the line.
    async fn look(&self, shape: &Shape, line: &Line) -> Looked {
        let group = take_group(&mut line.waiting());
        if group.is_empty() {
            return Looked::Empty(None);
        }
        let wishes: Vec<Wish> = group.iter().map(|waiting| waiting.wish.clone()).collect();
        let wanted: usize = wishes.iter().map(|wish| wish.jobs).sum();
        match self.reserve(shape, &wishes).await {
            Ok((jobs, next_due)) => {
                let given: usize = jobs.iter().map(Vec::len).sum();
                histogram!("solejob_reserve_group_size").record(group.len() as f64);
                counter!("solejob_jobs_reserved_total").increment(given as u64);
                let mut unserved = Vec::new();
                for (waiting, jobs) in group.into_iter().zip(jobs) {
                    if jobs.is_empty() {
                        unserved.push(waiting);
                    } else if let Err(Ok(jobs)) = waiting.answer.send(Ok(jobs)) {
                        let leases = jobs.iter().filter_map(|full| Some((full.job.id, full.lease?.0)));
                        self.give_back(shape.app, leases.collect());
                    }
                }
                let mut line = line.waiting();
                unserved.into_iter().rev().for_each(|waiting| line.push_front(waiting));
                if given >= wanted {
                    Looked::Full
                } else {
                    Looked::Empty(next_due)
                }
            }
            Err(failure) => {
                for waiting in group {
                    let _gone = waiting.answer.send(Err(failure.clone()));
                }
                Looked::Full
            }
        }
    }

    async fn reserve(&self, shape: &Shape, wishes: &[Wish]) -> Result<(Vec<Vec<FullJob>>, Option<Duration>), Failure> {
        let _permit = self.in_flight.acquire().await;
        for _ in 0..ATTEMPTS {
            match self.store.reserve(shape, wishes).await {
                Ok(reserved) => {
                    let next_due = reserved.next_due.map(|Millis(millis)| Duration::from_millis(millis));
                    return Ok((reserved.jobs, next_due));
                }
                Err(error) if error.class() == Class::Again => {
                    tracing::debug!(%error, "a reserve is tried again");
                }
                Err(error) => {
                    tracing::error!(%error, "jobs could not be reserved");
                    return Err(Failure::of(&error));
                }
            }
        }
        Err(Failure::Unavailable(
            "other transactions came in between, again and again".into(),
        ))
    }

    /// Answers those who have waited long enough, those who have hung up, and when the server stops everybody.
    fn dismiss(&self, line: &Line) {
        let now = Instant::now();
        let stopping = self.stopping.is_cancelled();
        let mut waiting = line.waiting();
        for worker in std::mem::take(&mut *waiting) {
            if stopping || worker.until <= now {
                let _gone = worker.answer.send(Ok(Vec::new()));
            } else if !worker.answer.is_closed() {
                waiting.push_back(worker);
            }
        }
    }

    fn give_back(&self, app: AppId, leases: Vec<(JobId, Uuid)>) {
        let held = leases.into_iter().map(|(job, token)| (job, Call::Release { token }));
        let held: Vec<(JobId, Call)> = held.collect();
        let calls = self.calls.clone();
        counter!("solejob_jobs_given_back_total").increment(held.len() as u64);
        self.tasks.spawn(async move {
            for (job, call) in held {
                // If it cannot be given back now, it comes back when its lease is over.
                let _expires = calls.call(app, job, call).await;
            }
        });
    }
}

/// How often a reserve is tried again when another transaction came in between.
const ATTEMPTS: u32 = 10;

/// The head of the line, less those who have hung up.
fn take_group(waiting: &mut VecDeque<Waiting>) -> Vec<Waiting> {
    let (mut group, mut jobs) = (Vec::new(), 0);
    while let Some(next) = waiting.pop_front() {
        if next.answer.is_closed() {
            continue;
        }
        if !group.is_empty() && (group.len() == GROUP_WORKERS || jobs + next.wish.jobs > GROUP_JOBS) {
            waiting.push_front(next);
            break;
        }
        jobs += next.wish.jobs;
        group.push(next);
    }
    group
}
