//! Reserving: workers that look at the same queues wait in one line, and one transaction at a time serves it.
//!
//! A line costs the database one look when somebody joins it, when there is news of its queues, when a job comes
//! due, and once a second; never one for each worker that waits.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::{counter, gauge, histogram};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::duration::Millis;
use crate::job::{AppId, JobId};
use crate::life::Call;
use crate::store::{After, Class, FullJob, Known, Reserved, Shape, Store, Wish};
use crate::wakeups::{News, Wakeups};
use crate::work::calls::{Calls, DEADLINE, Failure, RECONNECT_PAUSE};

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

/// Those whose time has come get in line this often at least, while there is always somebody to serve.
const PROMOTE: Duration = Duration::from_millis(20);

/// After a look that passed over jobs which somebody else had locked, the next one comes this soon.
const PASSED_OVER: Duration = Duration::from_millis(20);

/// For how much longer than they asked for workers wait for jobs that somebody else has locked.
const PATIENCE: Duration = Duration::from_millis(100);

struct Waiting {
    wish: Wish,
    until: Instant,
    /// It names a reserve that may have been answered before, which nobody has looked for yet.
    may_repeat: bool,
    answer: oneshot::Sender<Result<Given, Failure>>,
}

/// Jobs on their way to a worker. Dropped before it has them, they are given back.
struct Given {
    home: Home,
    app: AppId,
    jobs: Vec<FullJob>,
}

impl Drop for Given {
    fn drop(&mut self) {
        let leases = self.jobs.iter().filter_map(|full| Some((full.job.id, full.lease?.0)));
        let leases: Vec<(JobId, Uuid)> = leases.collect();
        if !leases.is_empty() {
            self.home.give_back(self.app, leases);
        }
    }
}

/// Where jobs are given back.
#[derive(Clone)]
struct Home {
    calls: Calls,
    tasks: TaskTracker,
}

impl Home {
    fn give_back(&self, app: AppId, leases: Vec<(JobId, Uuid)>) {
        let calls = self.calls.clone();
        counter!("solejob_jobs_given_back_total").increment(leases.len() as u64);
        self.tasks.spawn(async move {
            let mut releases = JoinSet::new();
            for (job, token) in leases {
                let calls = calls.clone();
                // If it cannot be given back now, it comes back when its lease is over.
                releases.spawn(async move { calls.call(app, job, Call::Release { token }).await });
            }
            releases.join_all().await;
        });
    }
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
    home: Home,
    lines: Mutex<HashMap<Shape, Arc<Line>>>,
    /// Transactions that may run at once, over all lines.
    in_flight: Semaphore,
    places: Arc<Semaphore>,
    stopping: CancellationToken,
}

/// A place among the workers that wait.
struct Place {
    _permit: OwnedSemaphorePermit,
}

impl Place {
    fn take(places: &Arc<Semaphore>) -> Result<Place, Failure> {
        let place = Arc::clone(places)
            .try_acquire_owned()
            .map_err(|_| Failure::Overloaded)?;
        gauge!("solejob_reserve_waiting").increment(1.0);
        Ok(Place { _permit: place })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        gauge!("solejob_reserve_waiting").decrement(1.0);
    }
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
            home: Home { calls, tasks },
            lines: Mutex::default(),
            in_flight: Semaphore::new(limits.in_flight as usize),
            places: Arc::new(Semaphore::new(limits.waiting)),
            stopping,
        }))
    }

    /// Jobs for a worker: as soon as there is one, or none when the wait is over. If the future is dropped
    /// before it gives them, the jobs are given back.
    pub async fn reserve(&self, request: Request) -> Result<Vec<FullJob>, Failure> {
        let _place = Place::take(&self.0.places)?;
        let Request { shape, wish, wait } = request;
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting {
            may_repeat: wish.reserve_id.is_some(),
            wish,
            until: Instant::now() + wait,
            answer,
        };
        self.join(shape, waiting);
        let mut given = answered.await.unwrap_or_else(|_| Err(Failure::died()))?;
        Ok(std::mem::take(&mut given.jobs))
    }

    /// Gives back jobs whose worker did not get them.
    pub fn give_back(&self, app: AppId, leases: Vec<(JobId, Uuid)>) {
        self.0.home.give_back(app, leases);
    }

    fn join(&self, shape: Shape, waiting: Waiting) {
        // The lines stay locked until the worker stands in one: a line that is empty may be taken away.
        let mut lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let line = lines.entry(shape.clone()).or_insert_with(|| {
            let line = Arc::new(Line::default());
            let (shared, served) = (Arc::clone(&self.0), Arc::clone(&line));
            self.0.home.tasks.spawn(async move {
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

/// What the looks of a line have shown until now.
#[derive(Default)]
struct Seen {
    promoted: Option<Instant>,
    resources: bool,
}

impl Seen {
    /// For the next look, which promotes if that is due.
    fn known(&mut self) -> Known {
        let now = Instant::now();
        let promoted = self.promoted.is_some_and(|last| now < last + PROMOTE);
        if !promoted {
            self.promoted = Some(now);
        }
        Known {
            promoted,
            resources: self.resources,
        }
    }
}

/// What a look at the database led to.
enum Looked {
    /// There may be more jobs for those who have not been served.
    More,
    /// There are more, but somebody else had them locked.
    PassedOver,
    /// There are no more, until this long from now if that is known.
    Empty(Option<Duration>),
}

impl Shared {
    /// Serves a line until nobody stands in it.
    async fn serve(&self, shape: Shape, line: Arc<Line>) {
        let watch = self.wakeups.watch_queues(shape.app, &shape.queues);
        gauge!("solejob_reserve_lines").increment(1.0);
        let mut seen = Seen::default();
        loop {
            let looked = self.look(&shape, &line, &mut seen).await;
            let patience = match looked {
                Looked::More => None,
                Looked::PassedOver => Some(PATIENCE),
                Looked::Empty(_) => Some(Duration::ZERO),
            };
            self.dismiss(&line, patience);
            let Some(first_end) = self.leave_if_empty(&shape, &line) else {
                break;
            };
            if line.waiting().iter().any(|waiting| waiting.may_repeat) {
                continue;
            }
            let pause = match looked {
                Looked::More => continue,
                Looked::PassedOver => PASSED_OVER,
                Looked::Empty(next_due) => {
                    let until_end = first_end.saturating_duration_since(Instant::now());
                    POLL.min(until_end).min(next_due.unwrap_or(POLL))
                }
            };
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
    async fn look(&self, shape: &Shape, line: &Line, seen: &mut Seen) -> Looked {
        let group = take_group(&mut line.waiting());
        if group.is_empty() {
            return Looked::Empty(None);
        }
        let wishes: Vec<Wish> = group.iter().map(|waiting| waiting.wish.clone()).collect();
        match self.reserve(shape, &wishes, seen).await {
            Ok(Reserved {
                jobs,
                after,
                woken,
                resources,
            }) => {
                seen.resources = resources;
                let others = woken.into_iter().filter(|queue| !shape.queues.contains(queue));
                self.wakeups.tell(others.map(|queue| News::Queue(shape.app, queue)));
                let given: usize = jobs.iter().map(Vec::len).sum();
                histogram!("solejob_reserve_group_size").record(group.len() as f64);
                counter!("solejob_jobs_reserved_total").increment(given as u64);
                let mut unserved = Vec::new();
                for (mut waiting, jobs) in group.into_iter().zip(jobs) {
                    if jobs.is_empty() {
                        waiting.may_repeat = false;
                        unserved.push(waiting);
                        continue;
                    }
                    let home = self.home.clone();
                    let given = Given {
                        home,
                        app: shape.app,
                        jobs,
                    };
                    // Who has hung up, now or before they look, gives them back by dropping them.
                    let _gone = waiting.answer.send(Ok(given));
                }
                let mut line = line.waiting();
                unserved.into_iter().rev().for_each(|waiting| line.push_front(waiting));
                match after {
                    After::More => Looked::More,
                    After::PassedOver => Looked::PassedOver,
                    After::Empty { next_due } => {
                        Looked::Empty(next_due.map(|Millis(millis)| Duration::from_millis(millis)))
                    }
                }
            }
            Err(failure) => {
                for waiting in group {
                    let _gone = waiting.answer.send(Err(failure.clone()));
                }
                Looked::More
            }
        }
    }

    async fn reserve(&self, shape: &Shape, wishes: &[Wish], seen: &mut Seen) -> Result<Reserved, Failure> {
        let _permit = self.in_flight.acquire().await;
        let deadline = Instant::now() + DEADLINE;
        for attempt in 1.. {
            let store = self.store.until(deadline.into_std());
            match store.reserve(shape, wishes, seen.known()).await {
                Ok(reserved) => return Ok(reserved),
                Err(error) if error.class() == Class::Again && attempt < ATTEMPTS => {
                    tracing::debug!(%error, "a reserve is tried again");
                }
                Err(error)
                    if error.nothing_was_done() && Instant::now() < deadline && !self.stopping.is_cancelled() =>
                {
                    tokio::time::sleep(RECONNECT_PAUSE).await;
                }
                Err(error) => {
                    tracing::error!(%error, "jobs could not be reserved");
                    return Err(Failure::of(&error));
                }
            }
        }
        Err(Failure::Internal("a reserve has no result".into()))
    }

    /// Answers those who have waited long enough, if it is known that there is nothing for them, with this much
    /// patience, and when the server stops everybody. Those who have hung up leave.
    fn dismiss(&self, line: &Line, patience: Option<Duration>) {
        let now = Instant::now();
        let stopping = self.stopping.is_cancelled();
        let mut waiting = line.waiting();
        for worker in std::mem::take(&mut *waiting) {
            let over = patience.is_some_and(|patience| worker.until + patience <= now);
            if stopping || (over && !worker.may_repeat) {
                let nothing = Given {
                    home: self.home.clone(),
                    app: AppId(0),
                    jobs: Vec::new(),
                };
                let _gone = worker.answer.send(Ok(nothing));
            } else if !worker.answer.is_closed() {
                waiting.push_back(worker);
            }
        }
    }
}

/// How often a reserve is tried again when another transaction came in between.
const ATTEMPTS: u32 = 10;

/// The head of the line, less those who have hung up. Whoever may repeat a reserve comes first: what they ask for
/// is no job of the line. Of several with one reserve id the first goes alone, and the next gets its jobs.
fn take_group(waiting: &mut VecDeque<Waiting>) -> Vec<Waiting> {
    waiting.make_contiguous().sort_by_key(|waiting| !waiting.may_repeat);
    let (mut group, mut twins, mut jobs) = (Vec::<Waiting>::new(), Vec::new(), 0);
    while let Some(next) = waiting.pop_front() {
        if next.answer.is_closed() {
            continue;
        }
        if !group.is_empty() && (group.len() == GROUP_WORKERS || jobs + next.wish.jobs > GROUP_JOBS) {
            waiting.push_front(next);
            break;
        }
        let id = &next.wish.reserve_id;
        if id.is_some() && group.iter().any(|waiting| waiting.wish.reserve_id == *id) {
            twins.push(next);
            continue;
        }
        jobs += next.wish.jobs;
        group.push(next);
    }
    twins.into_iter().rev().for_each(|twin| waiting.push_front(twin));
    group
}
