//! Calls on the lives of jobs, grouped: one transaction locks, decides and writes for all that wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::{counter, histogram};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::job::{AppId, JobId, State};
use crate::life::{AttemptEnd, Call, Effect, Lease, Refused};
use crate::store::{Changed, Class, Error, FullJob, Lives, LockedJob, Store};
use crate::wakeups::{News, Wakeups};

/// Calls in one transaction at most.
const GROUP_CALLS: usize = 256;

/// Calls that may wait; one more is refused as overloaded.
const QUEUE_CALLS: usize = 16_384;

/// How often a group is tried again when another transaction came in between.
const ATTEMPTS: u32 = 10;

/// For so long a database that cannot be reached is tried again.
pub(super) const DEADLINE: Duration = Duration::from_secs(8);

/// The pause before that.
pub(super) const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// What a call led to.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    pub state: State,
    pub lease: Option<Lease>,
    pub cancel_requested: bool,
    /// The job as the call left it, if it was asked for.
    pub job: Option<FullJob>,
}

/// Why a call did not. The texts are causes, for the log and never for a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    NotFound,
    Refused(Refused),
    Overloaded,
    ShuttingDown,
    /// It was not carried out.
    Unavailable(Arc<str>),
    /// Whether it was carried out is unknown: it may be repeated.
    Unknown(Arc<str>),
    Internal(Arc<str>),
}

impl Failure {
    /// What the database did not do.
    pub(super) fn of(error: &Error) -> Failure {
        let cause = error.to_string().into();
        match (error, error.class()) {
            (Error::Unanswered(_), _) => mutant!(
                "unknown_said_to_be_nothing": Failure::Unavailable(cause), else Failure::Unknown(cause)
            ),
            (_, Class::Refused) => Failure::Internal(cause),
            (_, Class::Again | Class::LockTableFull | Class::Unavailable) => Failure::Unavailable(cause),
        }
    }

    /// The task that was to answer is gone.
    pub(super) fn died() -> Failure {
        Failure::Unknown("the task that was to answer died".into())
    }
}

struct Waiting {
    app: AppId,
    job: JobId,
    call: Call,
    show: bool,
    answer: oneshot::Sender<Result<Answer, Failure>>,
}

/// The one way to change the life of a job that is there.
#[derive(Clone, Debug)]
pub struct Calls {
    queue: mpsc::Sender<Waiting>,
    closed: CancellationToken,
}

struct Runner {
    store: Store,
    wakeups: Wakeups,
}

impl Calls {
    /// Starts `in_flight` tasks that end once it is [closed](Calls::close) and the queue is empty.
    pub fn start(store: Store, wakeups: Wakeups, in_flight: u32, tasks: &TaskTracker) -> Calls {
        let (queue, waiting) = mpsc::channel(QUEUE_CALLS);
        let waiting = Arc::new(Mutex::new(waiting));
        let closed = CancellationToken::new();
        let runner = Arc::new(Runner { store, wakeups });
        for _ in 0..in_flight {
            let (runner, waiting, closed) = (Arc::clone(&runner), Arc::clone(&waiting), closed.clone());
            tasks.spawn(async move {
                loop {
                    let group = gather(&mut *waiting.lock().await, &closed).await;
                    if group.is_empty() {
                        break;
                    }
                    // In a task of its own, so that a panic costs one group and not the worker protocol.
                    let runner = Arc::clone(&runner);
                    if let Err(panic) = tokio::spawn(async move { runner.run(group).await }).await {
                        tracing::error!(%panic, "a group of calls was lost in a panic");
                    }
                }
            });
        }
        Calls { queue, closed }
    }

    /// Takes nothing more, from whoever still has a clone. What waits is carried out.
    pub fn close(&self) {
        self.closed.cancel();
    }

    /// Carries out a call. Dropping the future gives up the answer, never the call.
    pub async fn call(&self, app: AppId, job: JobId, call: Call) -> Result<Answer, Failure> {
        self.carry_out(app, job, call, false).await
    }

    /// The same, and shows the job as the call left it.
    pub async fn call_and_show(&self, app: AppId, job: JobId, call: Call) -> Result<FullJob, Failure> {
        let answer = self.carry_out(app, job, call, true).await?;
        answer
            .job
            .ok_or_else(|| Failure::Internal("a call left no job behind".into()))
    }

    /// Begins to carry out a call, so that several may go together; whatever becomes of the promise, it is carried out.
    pub fn begin(&self, app: AppId, job: JobId, call: Call) -> Promise {
        Promise(self.enqueue(app, job, call, false))
    }

    async fn carry_out(&self, app: AppId, job: JobId, call: Call, show: bool) -> Result<Answer, Failure> {
        Promise(self.enqueue(app, job, call, show)).kept().await
    }

    fn enqueue(&self, app: AppId, job: JobId, call: Call, show: bool) -> Begun {
        let (answer, answered) = oneshot::channel();
        self.queue
            .try_send(Waiting {
                app,
                job,
                call,
                show,
                answer,
            })
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => Failure::Overloaded,
                mpsc::error::TrySendError::Closed(_) => Failure::ShuttingDown,
            })?;
        Ok(answered)
    }
}

type Begun = Result<oneshot::Receiver<Result<Answer, Failure>>, Failure>;

/// The answer to a call that was begun.
#[derive(Debug)]
pub struct Promise(Begun);

impl Promise {
    pub async fn kept(self) -> Result<Answer, Failure> {
        self.0?.await.unwrap_or_else(|_| Err(Failure::died()))
    }
}

async fn gather(waiting: &mut mpsc::Receiver<Waiting>, closed: &CancellationToken) -> Vec<Waiting> {
    let first = tokio::select! {
        first = waiting.recv() => first,
        () = closed.cancelled() => {
            waiting.close();
            waiting.recv().await
        }
    };
    let Some(first) = first else {
        return Vec::new();
    };
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    let mut group = vec![first];
    while group.len() < GROUP_CALLS {
        let Ok(next) = waiting.try_recv() else { break };
        group.push(next);
    }
    group
}

impl Runner {
    async fn run(&self, group: Vec<Waiting>) {
        histogram!("solejob_call_group_size").record(group.len() as f64);
        let mut results = self.decide(&group).await;
        for waiting in group.into_iter().rev() {
            let result = match &mut results {
                Ok(results) => results.pop().unwrap_or_else(|| Err(no_result())),
                Err(failure) => Err(failure.clone()),
            };
            // Who hung up does not hear it. The call is carried out all the same, and may be repeated.
            let _gone = waiting.answer.send(result);
        }
    }

    async fn decide(&self, group: &[Waiting]) -> Result<Vec<Result<Answer, Failure>>, Failure> {
        let deadline = Instant::now() + DEADLINE;
        for attempt in 1.. {
            match self.attempt(group, deadline).await {
                Ok((results, news)) => {
                    self.wakeups.tell(news);
                    return Ok(results);
                }
                Err(error) if error.class() == Class::Again && attempt < ATTEMPTS => {
                    counter!("solejob_call_retries_total").increment(1);
                    tracing::debug!(%error, attempt, "a group of calls is tried again");
                }
                Err(error) if error.nothing_was_done() && Instant::now() < deadline => {
                    counter!("solejob_call_retries_total").increment(1);
                    tokio::time::sleep(RECONNECT_PAUSE).await;
                }
                Err(error) => {
                    tracing::error!(%error, calls = group.len(), "calls on jobs were not carried out");
                    return Err(Failure::of(&error));
                }
            }
        }
        Err(no_result())
    }

    async fn attempt(
        &self,
        group: &[Waiting],
        deadline: Instant,
    ) -> Result<(Vec<Result<Answer, Failure>>, Vec<News>), Error> {
        let places: BTreeSet<(AppId, JobId)> = group.iter().map(|waiting| (waiting.app, waiting.job)).collect();
        let places: Vec<(AppId, JobId)> = places.into_iter().collect();
        let (mut lives, locked, now) = self.store.until(deadline).lock_lives(&places).await?;
        let mut jobs: BTreeMap<(AppId, JobId), Touched> = locked
            .into_iter()
            .map(|job| ((job.app, job.id), Touched::new(job)))
            .collect();

        let mut results: Vec<Result<Answer, Failure>> = Vec::with_capacity(group.len());
        for waiting in group {
            let Some(job) = jobs.get_mut(&(waiting.app, waiting.job)) else {
                results.push(Err(Failure::NotFound));
                continue;
            };
            let called = job.job.life.call(&waiting.call, now, rand::random());
            results.push(called.map(|effect| job.note(effect)).map_err(Failure::Refused));
        }

        let changes: Vec<Changed<'_>> = jobs.values().filter(|job| job.changed).map(Touched::change).collect();
        let woken = lives.write(&changes, now).await?;
        self.answer_repeats(&mut lives, group, &jobs, &mut results).await?;
        show(&mut lives, group, &mut results).await?;
        lives.commit().await?;

        let mut news: Vec<News> = woken.into_iter().map(|(app, queue)| News::Queue(app, queue)).collect();
        for change in &changes {
            let job = change.job;
            if job.life.is_waiting() {
                news.push(News::Queue(job.app, job.queue.clone()));
            } else if !job.life.state.is_live() && change.before.is_live() {
                count_end(job);
                news.push(News::Finished(job.app, job.id));
            }
        }
        Ok((results, news))
    }

    /// A call that ended an attempt before, and comes again because its answer was lost, is answered with the
    /// job as it is now.
    async fn answer_repeats(
        &self,
        lives: &mut Lives,
        group: &[Waiting],
        jobs: &BTreeMap<(AppId, JobId), Touched>,
        results: &mut [Result<Answer, Failure>],
    ) -> Result<(), Error> {
        let lost = |result: &Result<_, _>| *result == Err(Failure::Refused(Refused::LeaseLost));
        let asked: Vec<(AppId, JobId, Uuid)> = group
            .iter()
            .zip(&*results)
            .filter(|(_, result)| lost(result))
            .filter_map(|(waiting, _)| Some((waiting.app, waiting.job, waiting.call.ending()?.0)))
            .collect();
        let ends: BTreeMap<(AppId, JobId, Uuid), AttemptEnd> = lives
            .past_ends(&asked)
            .await?
            .into_iter()
            .map(|(app, id, token, end)| ((app, id, token), end))
            .collect();
        for (waiting, result) in group.iter().zip(results) {
            let Some((token, end)) = waiting.call.ending().filter(|_| lost(result)) else {
                continue;
            };
            let before = ends.get(&(waiting.app, waiting.job, token));
            let released = end == AttemptEnd::Release && before == Some(&AttemptEnd::ReleaseCancelled);
            if (before == Some(&end) || released)
                && let Some(job) = jobs.get(&(waiting.app, waiting.job))
            {
                *result = Ok(job.answer());
            }
        }
        Ok(())
    }
}

/// Adds the jobs to the answers that show them: in the same transaction, since a moment later a job may be gone.
async fn show(lives: &mut Lives, group: &[Waiting], results: &mut [Result<Answer, Failure>]) -> Result<(), Error> {
    let mut shown: BTreeMap<AppId, Vec<JobId>> = BTreeMap::new();
    for (waiting, result) in group.iter().zip(&*results) {
        if waiting.show && result.is_ok() {
            shown.entry(waiting.app).or_default().push(waiting.job);
        }
    }
    for (app, ids) in shown {
        let jobs = lives.full_jobs(app, &ids).await?;
        for (waiting, result) in group.iter().zip(&mut *results) {
            if let Ok(answer) = result
                && waiting.show
                && waiting.app == app
            {
                answer.job = jobs.get(&waiting.job).cloned();
            }
        }
    }
    Ok(())
}

/// A job that calls of one group have touched.
struct Touched {
    before: State,
    leased_before: bool,
    job: LockedJob,
    past: Option<(Uuid, i32, crate::life::Attempt)>,
    changed: bool,
}

impl Touched {
    fn new(job: LockedJob) -> Touched {
        Touched {
            before: job.life.state,
            leased_before: job.life.lease.is_some(),
            job,
            past: None,
            changed: false,
        }
    }

    fn note(&mut self, effect: Effect) -> Answer {
        self.changed |= !effect.unchanged;
        // Only a release keeps an attempt apart, and a job that was released has no lease for a second one.
        self.past = effect.past.or(self.past.take());
        self.answer()
    }

    fn answer(&self) -> Answer {
        let life = &self.job.life;
        Answer {
            state: life.state,
            lease: life.lease,
            cancel_requested: life.cancel_requested,
            job: None,
        }
    }

    fn change(&self) -> Changed<'_> {
        Changed {
            before: self.before,
            leased_before: self.leased_before,
            job: &self.job,
            past: self.past.clone(),
        }
    }
}

/// Every call has one result: this is a fault of the code.
fn no_result() -> Failure {
    Failure::Internal("a call of the group has no result".into())
}

fn count_end(job: &LockedJob) {
    counter!("solejob_jobs_finished_total", "state" => job.life.state.as_str()).increment(1);
}
