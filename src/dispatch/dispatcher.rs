//! Group commit: dispatches wait in one bounded queue, and each transaction takes what is there.
//!
//! An idle server adds no wait, since a group of one leaves at once; a busy one pays for one commit, one lock
//! statement, one look-up and one write a group. A client that hangs up cancels nothing: the transaction
//! belongs to a task of the dispatcher.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::dispatch::clock::DatabaseClock;
use crate::dispatch::group::{self, Group};
use crate::dispatch::types::Types;
use crate::dispatch::unit::PreparedUnit;
use crate::settings::Invalid;
use crate::store::Store;
use crate::uniqueness::holders::UnitOutcome;
use crate::wakeups::Wakeups;

/// How much waits, and how much goes into one transaction.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Transactions at once. More than two lost on two cores: their groups are smaller.
    pub groups_in_flight: u32,
    /// Dispatches in a group, unless a single batch has more.
    pub group_items: usize,
    /// Payload bytes in a group, unless a single unit has more.
    pub group_bytes: usize,
    /// Singles and batches that wait; one more is refused as `overloaded`.
    pub queue_units: usize,
    /// Payload bytes that wait or are being written; more is refused as `overloaded`.
    pub queue_bytes: usize,
    /// After this long without a database, a group is answered `store_unavailable`.
    pub deadline: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            groups_in_flight: 2,
            group_items: 128,
            group_bytes: 4 << 20,
            queue_units: 4_096,
            queue_bytes: 128 << 20,
            deadline: Duration::from_secs(8),
        }
    }
}

/// Whether anything of a failed dispatch may be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    None,
    Unknown,
}

/// Why a dispatch got no decision.
///
/// The text is the cause, for the log and never for a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    Overloaded,
    ShuttingDown,
    Unavailable(Outcome, Arc<str>),
    /// A fault of the server: nothing is stored.
    Internal(Arc<str>),
    /// A job type was changed behind the preparation, and by the new one these items are invalid.
    Invalid(Vec<(usize, Invalid)>),
}

/// What items with these many bytes of payload count in the queue: each has other members too.
pub fn counted(payload_bytes: usize, items: usize) -> usize {
    payload_bytes + items * 1_024
}

/// A unit that waits for its group, and for whom.
#[derive(Debug)]
pub(super) struct Waiting {
    unit: PreparedUnit,
    caller: Caller,
    bytes: usize,
}

/// Who waits for a unit.
#[derive(Debug)]
pub(super) struct Caller {
    answer: oneshot::Sender<Result<UnitOutcome, Failure>>,
    /// Given back when the unit has been answered.
    _room: OwnedSemaphorePermit,
}

impl Caller {
    pub(super) fn answer(self, result: Result<UnitOutcome, Failure>) {
        group::count(&result);
        // Who hung up does not hear it. The job is there all the same.
        let _gone = self.answer.send(result);
    }
}

/// Permits are kibibytes: a semaphore counts to 2^29 on every platform.
const ROOM_UNIT: usize = 1_024;

/// The one way to a dispatch.
#[derive(Clone, Debug)]
pub struct Dispatcher {
    queue: mpsc::Sender<Waiting>,
    room: Arc<Semaphore>,
    clock: Arc<DatabaseClock>,
    closed: CancellationToken,
}

impl Dispatcher {
    /// Starts the dispatcher's tasks on `tasks`. They end once it is [closed](Dispatcher::close) and the queue is
    /// empty.
    pub fn start(
        store: Store,
        types: Types,
        clock: Arc<DatabaseClock>,
        wakeups: Wakeups,
        limits: &Limits,
        tasks: &TaskTracker,
    ) -> Dispatcher {
        let (queue, waiting) = mpsc::channel(limits.queue_units);
        let shared = Arc::new(group::Runner {
            locks: Semaphore::new(store.locks_each()),
            store,
            types,
            clock: Arc::clone(&clock),
            wakeups,
            deadline: limits.deadline,
            looks_first: AtomicBool::new(false),
        });
        let closed = CancellationToken::new();
        let source = Arc::new(Mutex::new(Source {
            waiting,
            next: None,
            closed: closed.clone(),
        }));
        for _ in 0..limits.groups_in_flight {
            let (shared, source, limits) = (Arc::clone(&shared), Arc::clone(&source), limits.clone());
            tasks.spawn(async move {
                loop {
                    // Held while a group gathers, so that one task at a time does.
                    let group = source.lock().await.gather(&limits).await;
                    if group.units.is_empty() {
                        break;
                    }
                    // In a task of its own, so that a panic costs one group and not the dispatcher.
                    let shared = Arc::clone(&shared);
                    if let Err(panic) = tokio::spawn(async move { shared.run(group).await }).await {
                        tracing::error!(%panic, "a group of dispatches was lost in a panic");
                    }
                }
            });
        }
        let room = Arc::new(Semaphore::new(limits.queue_bytes / ROOM_UNIT));
        Dispatcher {
            queue,
            room,
            clock,
            closed,
        }
    }

    pub fn clock(&self) -> &DatabaseClock {
        &self.clock
    }

    /// Takes nothing more, from whoever still has a clone. What waits is decided.
    pub fn close(&self) {
        self.closed.cancel();
    }

    /// Decides a unit. Dropping the future gives up the answer, never the transaction.
    pub async fn dispatch(&self, unit: PreparedUnit) -> Result<UnitOutcome, Failure> {
        let answered = match self.take_in(unit) {
            Ok(answered) => answered,
            Err(failure) => {
                let turned_away = Err(failure);
                group::count(&turned_away);
                return turned_away;
            }
        };
        // A task that died in a panic leaves it open whether the group was stored.
        let died = |_| Err(Failure::Unavailable(Outcome::Unknown, "its group's task died".into()));
        answered.await.unwrap_or_else(died)
    }

    /// Whether there is any room: where there is none, a unit need not even be prepared.
    pub fn has_room(&self) -> Result<(), Failure> {
        if self.queue.capacity() > 0 && self.room.available_permits() > 0 {
            return Ok(());
        }
        let turned_away = Err(Failure::Overloaded);
        group::count(&turned_away);
        turned_away.map(drop)
    }

    /// Puts a unit in the queue, if there is room.
    fn take_in(&self, unit: PreparedUnit) -> Result<oneshot::Receiver<Result<UnitOutcome, Failure>>, Failure> {
        let bytes = unit.bytes();
        let room = u32::try_from(bytes.div_ceil(ROOM_UNIT)).map_err(|_| Failure::Overloaded)?;
        let room = Arc::clone(&self.room)
            .try_acquire_many_owned(room)
            .map_err(|_| Failure::Overloaded)?;
        let (answer, answered) = oneshot::channel();
        self.queue
            .try_send(Waiting {
                unit,
                caller: Caller { answer, _room: room },
                bytes,
            })
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => Failure::Overloaded,
                mpsc::error::TrySendError::Closed(_) => Failure::ShuttingDown,
            })?;
        Ok(answered)
    }
}

/// Where groups come from.
struct Source {
    waiting: mpsc::Receiver<Waiting>,
    /// Taken from the queue, and too large for the group that was being gathered.
    next: Option<Waiting>,
    closed: CancellationToken,
}

impl Source {
    /// The next unit; nothing when no more will come.
    async fn first(&mut self) -> Option<Waiting> {
        tokio::select! {
            first = self.waiting.recv() => return first,
            () = self.closed.cancelled() => self.waiting.close(),
        }
        self.waiting.recv().await
    }

    /// The next group, as soon as there is one; empty when no more will come.
    async fn gather(&mut self, limits: &Limits) -> Group {
        let first = match self.next.take() {
            Some(first) => first,
            None => match self.first().await {
                Some(first) => first,
                None => return Group::default(),
            },
        };
        // Whoever is about to post gets the chance to: measured, this fills groups and costs no wait.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        let (mut items, mut bytes) = (first.unit.items.len(), first.bytes);
        let mut group = Group::default();
        group.push(first.unit, first.caller);
        while items < limits.group_items && bytes < limits.group_bytes {
            let Ok(waiting) = self.waiting.try_recv() else { break };
            items += waiting.unit.items.len();
            bytes += waiting.bytes;
            if items > limits.group_items || bytes > limits.group_bytes {
                self.next = Some(waiting);
                break;
            }
            group.push(waiting.unit, waiting.caller);
        }
        group
    }
}
