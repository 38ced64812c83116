//! The only room that knows PostgreSQL.
//!
//! A dispatch goes through [`Store::write_alone`], or through [`Store::begin`], [`Begun::lock`], [`Locked`] and
//! [`Committed`]: each step is a value that only the step before it can make, so that nobody writes by what was read
//! without locks, or hands out a receipt before the commit.

mod again;
mod alone;
mod connection;
mod error;
mod examine;
mod holders;
mod job_types;
mod jobs;
mod keys;
mod lives;
mod locks;
mod pool;
mod queues;
mod reserve;
mod room;
mod rows;
mod schema;
mod session;
mod statements;
mod tokens;
mod upkeep;
mod wakeup;
mod write;

use std::time::{Duration, Instant};

use tokio::time::timeout;

pub use again::Again;
pub use alone::{Alone, Lost, Settled};
use connection::Connection;
pub use error::{Class, Error};
pub use examine::Found;
pub use holders::{Asked, HeldKey, Look};
pub use job_types::{Declared, StoredType};
pub use jobs::{AttemptView, Deleted, FullJob, JobView, JobWindowKey, ListFilter};
pub use keys::{KeyHolder, Reset};
pub use lives::{Changed, Lives, LockedJob};
pub use locks::{Begun, Committed, Locked, Written};
use pool::{Pool, Terms};
pub use queues::{QueueView, ScopeView};
pub use reserve::{After, Known, Reserved, Shape, Wish};
pub use schema::migrate;
pub use session::SETTINGS;
pub use statements::STATEMENTS;
pub use tokens::{Caller, NewToken, TokenHash, TokenView};
pub use wakeup::News;
pub use write::{Conditions, Creation, Writes};

/// Limits of the store, with the reason for each default.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Transactions of the dispatcher at once; more than two lost on two cores.
    pub groups_in_flight: u32,
    /// Transactions at once that give jobs out, and as many that end them.
    pub work_in_flight: u32,
    /// Connections for everything else, so that a flood of dispatches never starves a look.
    pub connections: u32,
    /// How long a request waits for a connection before it is answered `store_unavailable`.
    pub acquire: Duration,
    /// How long PostgreSQL has to answer a statement: a little more than `statement_timeout`, so that only a connection
    /// on which answers are lost is given up for it.
    pub answer: Duration,
}

impl Limits {
    /// Connections to PostgreSQL, all together.
    pub fn connections_in_all(&self) -> u32 {
        self.groups_in_flight + 1 + 2 * self.work_in_flight + self.connections
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            groups_in_flight: 2,
            work_in_flight: 2,
            connections: 8,
            acquire: Duration::from_secs(3),
            answer: Duration::from_secs(12),
        }
    }
}

/// The door to the database.
#[derive(Clone, Debug)]
pub struct Store {
    /// For groups of dispatches alone.
    dispatch: Pool,
    /// For workers: leases must not run out because everybody dispatches.
    work: Pool,
    /// For everything else.
    general: Pool,
    /// Locks that one transaction may take one by one.
    locks_each: usize,
}

impl Store {
    /// Connects to `url` and makes sure that the database is one that this server can work with.
    pub async fn connect(url: &str, limits: &Limits) -> Result<Store, Error> {
        let options = session::options(url)?;
        let pool = |most, untested| {
            let Limits { acquire, answer, .. } = *limits;
            let terms = Terms {
                most,
                untested,
                acquire,
                answer,
            };
            Pool::new(options.clone(), terms)
        };
        // Not by way of a pool, which says of a database that it cannot reach only that it has waited.
        let first = timeout(3 * limits.acquire, async {
            session::check(&options).await?;
            Ok::<_, Error>(Connection::open(&options, limits.answer).await?)
        });
        let mut first = first.await.map_err(|_| sqlx::Error::PoolTimedOut)??;
        let locks_each = schema::check(&mut first).await?;
        for warning in schema::warnings(&mut first, limits.connections_in_all()).await? {
            tracing::warn!("{warning}");
        }
        first.close().await;
        Ok(Store {
            // One connection more than there are groups: a commit whose outcome is unknown is settled on it. A write that
            // is sent to nobody might have been sent to somebody, so an idle connection is asked first whether it lives:
            // a busy server spares the question, and an idle one has the time.
            dispatch: pool(limits.groups_in_flight + 1, Duration::from_millis(1)),
            // Tried anew as well, for the most part.
            work: pool(2 * limits.work_in_flight, Duration::from_secs(1)),
            // Less the one that hears news.
            general: pool(limits.connections.saturating_sub(1).max(1), Duration::ZERO),
            locks_each,
        })
    }

    /// The same store for somebody who has until then: a statement that PostgreSQL has not answered by then is given up,
    /// and its connection with it. What is begun late all the same has a moment.
    pub fn until(&self, deadline: Instant) -> Store {
        Store {
            dispatch: self.dispatch.until(deadline),
            work: self.work.until(deadline),
            general: self.general.until(deadline),
            locks_each: self.locks_each,
        }
    }

    /// The most advisory locks that a transaction takes one by one.
    pub fn locks_each(&self) -> usize {
        self.locks_each
    }

    /// Whether the database answers and has the schema of this server.
    pub async fn ready(&self) -> Result<(), Error> {
        schema::check(&mut *self.general.acquire().await?).await.map(drop)
    }

    pub async fn close(&self) {
        self.dispatch.close().await;
        self.work.close().await;
        self.general.close().await;
    }
}
