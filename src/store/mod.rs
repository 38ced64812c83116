//! The only room that knows PostgreSQL.
//!
//! A dispatch goes through [`Store::begin`], [`Begun::lock`], [`Locked`] and [`Committed`]: each step is a
//! value that only the step before it can make, so that nobody reads holders without their locks or hands
//! out a receipt before the commit.

mod again;
mod error;
mod holders;
mod job_types;
mod jobs;
mod keys;
mod lives;
mod locks;
mod queues;
mod reserve;
mod room;
mod rows;
mod schema;
mod statements;
mod tokens;
mod upkeep;
mod wakeup;
mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection as _, PgConnection, PgPool};

pub use again::Again;
pub use error::{Class, Error};
pub use holders::{Asked, HeldKey, Look};
pub use job_types::{Declared, StoredType};
pub use jobs::{AttemptView, Deleted, FullJob, JobView, JobWindowKey, ListFilter};
pub use keys::{KeyHolder, Reset};
pub use lives::{Changed, Lives, LockedJob};
pub use locks::{Begun, Committed, Locked, Written};
pub use queues::{QueueView, ScopeView};
pub use reserve::{After, Known, Reserved, Shape, Wish};
pub use schema::migrate;
pub use statements::STATEMENTS;
pub use tokens::{Caller, NewToken, TokenHash, TokenView};
pub use wakeup::News;
pub use write::{Creation, Writes};

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
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            groups_in_flight: 2,
            work_in_flight: 2,
            connections: 8,
            acquire: Duration::from_secs(3),
        }
    }
}

/// The door to the database.
#[derive(Clone, Debug)]
pub struct Store {
    /// For groups of dispatches alone.
    dispatch: PgPool,
    /// For workers: leases must not run out because everybody dispatches.
    work: PgPool,
    /// For everything else.
    general: PgPool,
    /// Locks that one transaction may take one by one.
    locks_each: usize,
    /// So many of the connections in `dispatch` are to be replaced before they are used.
    suspects: Arc<AtomicU32>,
}

/// Settings of every connection. They go with the connection, since a pool may give any of them out.
pub const SETTINGS: [(&str, &str); 16] = [
    // Decisions read what was committed before each statement; a default of the role must not change that.
    ("default_transaction_isolation", "read committed"),
    ("timezone", "UTC"),
    ("jit", "off"),
    // A statement over unnest($1) is otherwise planned anew at each call.
    ("plan_cache_mode", "force_generic_plan"),
    ("statement_timeout", "10s"),
    ("lock_timeout", "5s"),
    // A server that froze inside a transaction must not keep its locks.
    ("idle_in_transaction_session_timeout", "10s"),
    // A server that died while it waited for a lock must not keep its place.
    ("client_connection_check_interval", "1s"),
    // One that packets no longer reach must not keep its locks either. Sockets of the machine itself take no notice.
    ("tcp_keepalives_idle", "10"),
    ("tcp_keepalives_interval", "5"),
    ("tcp_keepalives_count", "3"),
    ("tcp_user_timeout", "20s"),
    // Rows are looked up by an index, always: a plan made while the tables were empty must not scan them once
    // they are not.
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
];

/// After this long without use a connection may have died unnoticed.
const IDLE_UNTESTED: Duration = Duration::from_secs(1);

impl Store {
    /// Connects to `url` and makes sure that the database is one that this server can work with.
    pub async fn connect(url: &str, limits: &Limits) -> Result<Store, Error> {
        let options = options(url)?;
        let pool = |connections: u32| {
            PgPoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(limits.acquire)
        };
        // One connection more than there are groups: a commit whose outcome is unknown is settled on it.
        let dispatch = pool(limits.groups_in_flight + 1);
        // Tried anew where a connection turns out to be dead, so none is asked before.
        let suspects = Arc::new(AtomicU32::new(0));
        let spent = Arc::clone(&suspects);
        let dispatch = dispatch.test_before_acquire(false).before_acquire(move |_, _| {
            let suspected = spent.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            Box::pin(async move { Ok(suspected.is_err()) })
        });
        let dispatch = dispatch.connect_lazy_with(options.clone());
        let work = tested_when_idle(pool(2 * limits.work_in_flight)).connect_lazy_with(options.clone());
        let general = pool(limits.connections).connect_lazy_with(options.clone());
        // Not by way of the pool, which says of a database that it cannot reach only that it has waited.
        let first = tokio::time::timeout(limits.acquire, PgConnection::connect_with(&options));
        let mut first = first.await.map_err(|_| sqlx::Error::PoolTimedOut)??;
        let locks_each = schema::check(&mut first).await?;
        let connections = limits.groups_in_flight + 1 + 2 * limits.work_in_flight + limits.connections;
        for warning in schema::warnings(&mut first, connections).await? {
            tracing::warn!("{warning}");
        }
        first.close().await?;
        Ok(Store {
            dispatch,
            work,
            general,
            locks_each,
            suspects,
        })
    }

    /// A transaction of `dispatch` failed at its first lock, behind its BEGIN: sqlx takes it for one that has not
    /// begun, and gives the connection back as it is. Which one that is cannot be told, so all that are idle go.
    fn suspect(&self) {
        let most = self.dispatch.options().get_max_connections();
        self.suspects.fetch_max(most, Ordering::Relaxed);
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

/// Connections that have just been used are given out as they are, which saves a round trip; one that was idle is asked
/// first whether it lives. For who tries again where a connection turns out to be dead.
fn tested_when_idle(pool: PgPoolOptions) -> PgPoolOptions {
    pool.test_before_acquire(false).before_acquire(|connection, meta| {
        Box::pin(async move { Ok(meta.idle_for < IDLE_UNTESTED || connection.ping().await.is_ok()) })
    })
}

fn options(url: &str) -> Result<PgConnectOptions, Error> {
    let options: PgConnectOptions = url.parse()?;
    // A name in the URL tells several servers apart.
    let name = options.get_application_name().unwrap_or("solejob").to_owned();
    Ok(options.application_name(&name).options(SETTINGS))
}
