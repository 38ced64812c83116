//! Connections that are lent out, and come back clean or not at all.
//!
//! sqlx has a pool, which asks each connection that comes back whether it lives, and waits for the answer without end:
//! of one that packets no longer reach it would never be rid. Nor does it know whether a BEGIN that failed has begun.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt as _, TryStreamExt as _};
use sqlx::postgres::{PgConnectOptions, PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{Describe, Either, Execute, Executor, Postgres, SqlStr};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use crate::store::connection::Connection;

/// A connection that is asked whether it lives has so long to say so.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// After so long a connection is replaced: PostgreSQL keeps more and more for it.
const LIFETIME: Duration = Duration::from_secs(30 * 60);

/// One that nobody has needed for so long is closed.
const UNUSED: Duration = Duration::from_secs(10 * 60);

/// The pause before a database that takes no connection just now is asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// How a pool lends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Connections at most.
    pub(super) most: u32,
    /// One that has lain idle for longer is asked whether it lives before it is lent again.
    pub(super) untested: Duration,
    /// How long a connection is waited for.
    pub(super) acquire: Duration,
    /// How long the answer to a statement is waited for.
    pub(super) answer: Duration,
}

/// Lends connections to one at a time each.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
    until: Option<Instant>,
}

#[derive(Debug)]
struct Shared {
    options: PgConnectOptions,
    terms: Terms,
    room: Arc<Semaphore>,
    kept: Mutex<Kept>,
    closed: AtomicBool,
}

/// What lies idle.
#[derive(Debug, Default)]
struct Kept {
    /// The last one to be given back is in front.
    idle: VecDeque<Idle>,
    /// When a connection was last lost: those that lay idle then may be lost too.
    doubted: Option<Instant>,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    born: Instant,
    since: Instant,
}

/// A connection that goes back to its pool when it is dropped.
#[derive(Debug)]
pub(super) struct Lent {
    /// There until it goes back.
    connection: Option<Connection>,
    born: Instant,
    shared: Arc<Shared>,
    place: Option<OwnedSemaphorePermit>,
}

/// A transaction, undone when it is dropped.
#[derive(Debug)]
pub(super) struct Transaction(Lent);

impl Pool {
    /// A pool that opens its connections when they are needed.
    pub(super) fn new(options: PgConnectOptions, terms: Terms) -> Pool {
        Pool {
            shared: Arc::new(Shared {
                options,
                terms,
                room: Arc::new(Semaphore::new(terms.most as usize)),
                kept: Mutex::default(),
                closed: AtomicBool::new(false),
            }),
            until: None,
        }
    }

    /// The same pool for somebody who waits for answers until then at most.
    pub(super) fn until(&self, until: std::time::Instant) -> Pool {
        Pool {
            shared: Arc::clone(&self.shared),
            until: Some(until.into()),
        }
    }

    pub(super) fn terms(&self) -> Terms {
        self.shared.terms
    }

    pub(super) fn options(&self) -> &PgConnectOptions {
        &self.shared.options
    }

    pub(super) async fn acquire(&self) -> Result<Lent, sqlx::Error> {
        let lent = timeout(self.shared.terms.acquire, self.take()).await;
        lent.unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    async fn take(&self) -> Result<Lent, sqlx::Error> {
        let shared = &self.shared;
        let place = Arc::clone(&shared.room).acquire_owned().await;
        let place = place.map_err(|_| sqlx::Error::PoolClosed)?;
        if shared.closed.load(Ordering::Relaxed) {
            return Err(sqlx::Error::PoolClosed);
        }
        let (mut connection, born) = loop {
            let Some((mut idle, tested)) = shared.pop() else {
                break (shared.connect().await?, Instant::now());
            };
            if tested || shared.lives(&mut idle.connection).await {
                break (idle.connection, idle.born);
            }
        };
        connection.set_until(self.until);
        Ok(Lent {
            connection: Some(connection),
            born,
            shared: Arc::clone(shared),
            place: Some(place),
        })
    }

    /// Begins a transaction, with a statement that says how.
    pub(super) async fn begin_with(&self, begin: &'static str) -> Result<Transaction, sqlx::Error> {
        let mut lent = self.acquire().await?;
        lent.begin(begin).await?;
        Ok(Transaction(lent))
    }

    /// Lends no more, and waits until everything that is lent has come back.
    pub(super) async fn close(&self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        let _all = self.shared.room.acquire_many(self.shared.terms.most).await;
        self.shared.room.close();
        let idle = std::mem::take(&mut self.shared.kept().idle);
        for Idle { connection, .. } in idle {
            connection.close().await;
        }
    }
}

impl Shared {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that lies idle, and whether it may be lent as it is.
    fn pop(&self) -> Option<(Idle, bool)> {
        let mut kept = self.kept();
        let idle = kept.idle.pop_front()?;
        let doubted = kept.doubted.is_some_and(|doubted| idle.since <= doubted);
        let tested = !doubted && idle.since.elapsed() <= self.terms.untested;
        Some((idle, tested))
    }

    /// Whether an idle connection lives. One that keeps silent stands for all that have to be asked: they are given up
    /// with it, since to ask each of them would take too long.
    async fn lives(&self, connection: &mut Connection) -> bool {
        match timeout(SIGN_OF_LIFE, connection.lives()).await {
            Ok(lives) => lives,
            Err(_) => {
                let now = Instant::now();
                self.kept().idle.retain(|idle| now - idle.since <= SIGN_OF_LIFE);
                false
            }
        }
    }

    /// Opens a connection, as soon as the database takes one.
    async fn connect(&self) -> Result<Connection, sqlx::Error> {
        loop {
            match Connection::open(&self.options, self.terms.answer).await {
                Err(error) if may_pass(&error) => sleep(PAUSE).await,
                opened => return opened,
            }
        }
    }

    /// Keeps a connection for the next one who needs it.
    fn keep(&self, connection: Connection, born: Instant) {
        let since = Instant::now();
        if self.closed.load(Ordering::Relaxed) || since - born > LIFETIME {
            return;
        }
        let mut kept = self.kept();
        kept.idle.push_front(Idle {
            connection,
            born,
            since,
        });
        if kept.idle.back().is_some_and(|last| since - last.since > UNUSED) {
            kept.idle.pop_back();
        }
    }

    /// Takes a connection back, which the place goes with.
    fn take_back(self: Arc<Self>, mut connection: Connection, born: Instant, place: Option<OwnedSemaphorePermit>) {
        if connection.is_clean() {
            self.keep(connection, born);
        } else if connection.is_lost() {
            self.kept().doubted = Some(Instant::now());
        } else if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                if connection.clean().await {
                    self.keep(connection, born);
                } else {
                    self.kept().doubted = Some(Instant::now());
                }
                drop(place);
            });
        }
    }
}

/// Whether the database may take a connection a moment later.
fn may_pass(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        // too_many_connections, cannot_connect_now
        sqlx::Error::Database(error) => error.code().is_some_and(|code| code == "53300" || code == "57P03"),
        _ => false,
    }
}

impl Deref for Lent {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        match &self.connection {
            Some(connection) => connection,
            None => unreachable!("it is there until it goes back"),
        }
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Connection {
        match &mut self.connection {
            Some(connection) => connection,
            None => unreachable!("it is there until it goes back"),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            Arc::clone(&self.shared).take_back(connection, self.born, self.place.take());
        }
    }
}

impl Transaction {
    pub(super) async fn commit(mut self) -> Result<(), sqlx::Error> {
        self.0.commit().await
    }
}

impl Deref for Transaction {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.0
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.0
    }
}

/// A statement by itself, on any connection.
impl<'p> Executor<'p> for &Pool {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let pool = self.clone();
        let all = async move {
            let mut lent = pool.acquire().await?;
            lent.fetch_many(query).try_collect::<Vec<_>>().await
        };
        stream::once(all)
            .map_ok(|all| stream::iter(all.into_iter().map(Ok)))
            .try_flatten()
            .boxed()
    }

    fn fetch_all<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Vec<PgRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let pool = self.clone();
        Box::pin(async move { pool.acquire().await?.fetch_all(query).await })
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let pool = self.clone();
        Box::pin(async move { pool.acquire().await?.fetch_optional(query).await })
    }

    fn execute<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<PgQueryResult, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let pool = self.clone();
        Box::pin(async move { pool.acquire().await?.execute(query).await })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'p: 'e,
    {
        let pool = self.clone();
        Box::pin(async move { pool.acquire().await?.prepare_with(sql, parameters).await })
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, sqlx::Error>>
    where
        'p: 'e,
    {
        let pool = self.clone();
        Box::pin(async move { pool.acquire().await?.describe(sql).await })
    }
}
