//! A connection on which nobody waits for ever.
//!
//! Packets that go nowhere are reported by nobody: an answer that is lost with them would be waited for as long as the
//! kernel tries, a quarter of an hour. So each statement has a deadline on this side too, a little behind the one that
//! PostgreSQL has for it. A connection that lets it pass is lost: it is closed, and nothing is asked on it again.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::Stream;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use sqlx::postgres::{PgConnectOptions, PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{Connection as _, Describe, Either, Execute, Executor, PgConnection, Postgres, SqlStr};
use tokio::time::{Instant, Sleep, sleep_until, timeout, timeout_at};

use crate::store::session;

/// However late it is, an answer is waited for so long: what was begun just in time is not given up at once.
const LEAST: Duration = Duration::from_secs(2);

type Answer = Result<Either<PgQueryResult, PgRow>, sqlx::Error>;

/// A connection to PostgreSQL. Statements are executed on `&mut Connection`.
#[derive(Debug)]
pub(super) struct Connection {
    raw: PgConnection,
    commit: &'static str,
    state: State,
}

const COMMIT: &str = "COMMIT";

/// Where a commit waits for a standby. Cut short by `statement_timeout`, PostgreSQL would end the wait, and say that the
/// commit succeeded although no standby has it. So it waits for as long as it takes, and we for as long as we do.
const PATIENT_COMMIT: &str = "set local statement_timeout = 0; commit";

/// What is known of a connection, and how long its answers are waited for.
#[derive(Debug)]
struct State {
    patience: Duration,
    until: Option<Instant>,
    /// A statement was sent, and its answer has not been read to its end.
    asked: bool,
    in_transaction: bool,
    /// It is dead, or as good as dead.
    lost: bool,
}

impl Connection {
    pub(super) async fn open(options: &PgConnectOptions, patience: Duration) -> Result<Connection, sqlx::Error> {
        let mut raw = PgConnection::connect_with(options).await?;
        let replicated = session::set(&mut raw).await?;
        Ok(Connection {
            raw,
            commit: if replicated { PATIENT_COMMIT } else { COMMIT },
            state: State {
                patience,
                until: None,
                asked: false,
                in_transaction: false,
                lost: false,
            },
        })
    }

    /// Answers are not waited for much longer than until then.
    pub(super) fn set_until(&mut self, until: Option<Instant>) {
        self.state.until = until;
    }

    /// Whether what is committed here waits for a standby. A statement by itself would not be patient enough for that.
    pub(super) fn waits_for_standby(&self) -> bool {
        self.commit != COMMIT
    }

    pub(super) fn is_lost(&self) -> bool {
        self.state.lost
    }

    /// Whether the next statement would find it as if it were new.
    pub(super) fn is_clean(&self) -> bool {
        let State {
            asked,
            in_transaction,
            lost,
            ..
        } = self.state;
        !asked && !in_transaction && !lost
    }

    /// Begins a transaction, with a statement that says how.
    pub(super) async fn begin(&mut self, begin: &'static str) -> Result<(), sqlx::Error> {
        // Before it is known: what fails behind a BEGIN leaves a transaction too.
        self.state.in_transaction = true;
        self.execute(begin).await.map(drop)
    }

    pub(super) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        self.execute(self.commit).await?;
        self.state.in_transaction = false;
        Ok(())
    }

    /// Undoes what was begun, and reads what is still to be read. Whether it is clean now.
    pub(super) async fn clean(&mut self) -> bool {
        self.state.until = None;
        if self.state.in_transaction {
            if self.state.asked {
                // Closed, PostgreSQL gives up what it is doing within a second; else it would keep its locks for longer.
                self.state.lost = true;
            } else if self.execute("ROLLBACK").await.is_ok() {
                self.state.in_transaction = false;
            }
        } else {
            self.lives().await;
        }
        self.is_clean()
    }

    /// Whether somebody answers at the other end.
    pub(super) async fn lives(&mut self) -> bool {
        let Connection { raw, state, .. } = self;
        state.answer(raw.ping()).await.is_ok()
    }

    /// Takes leave, and does not wait for long until it is heard.
    pub(super) async fn close(self) {
        let _best_effort = timeout(self.state.patience, self.raw.close()).await;
    }
}

impl State {
    fn deadline(&self) -> Instant {
        let now = Instant::now();
        let patience = now + self.patience;
        self.until
            .map_or(patience, |until| until.max(now + LEAST).min(patience))
    }

    async fn answer<T>(&mut self, asked: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, sqlx::Error> {
        self.asked = true;
        let answer = timeout_at(self.deadline(), asked).await;
        let answer = answer.unwrap_or_else(|_| Err(no_answer()));
        self.asked = false;
        if let Err(error) = &answer {
            self.note(error);
        }
        answer
    }

    fn note(&mut self, error: &sqlx::Error) {
        self.lost |= is_of_the_connection(error);
    }
}

/// Whether nothing more can be asked on the connection that met the error.
pub(super) fn is_of_the_connection(error: &sqlx::Error) -> bool {
    match error {
        // PostgreSQL ended the session.
        sqlx::Error::Database(error) => error
            .code()
            .is_some_and(|code| code.starts_with("57P") || code.starts_with("08")),
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => true,
        _ => false,
    }
}

fn no_answer() -> sqlx::Error {
    let why = "PostgreSQL has not answered in time: the connection is given up";
    sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, why))
}

/// Rows as they come.
struct Answers<'a> {
    rows: BoxStream<'a, Answer>,
    late: Pin<Box<Sleep>>,
    state: &'a mut State,
}

impl Stream for Answers<'_> {
    type Item = Answer;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        let answer = match self.rows.as_mut().poll_next(context) {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                ready!(self.late.as_mut().poll(context));
                Some(Err(no_answer()))
            }
        };
        match &answer {
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                self.state.asked = false;
                self.state.note(error);
            }
            None => self.state.asked = false,
        }
        Poll::Ready(answer)
    }
}

impl<'c> Executor<'c> for &'c mut Connection {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Answer>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let Connection { raw, state, .. } = self;
        state.asked = true;
        Box::pin(Answers {
            rows: raw.fetch_many(query),
            late: Box::pin(sleep_until(state.deadline())),
            state,
        })
    }

    fn fetch_all<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Vec<PgRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let Connection { raw, state, .. } = self;
        Box::pin(state.answer(raw.fetch_all(query)))
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let Connection { raw, state, .. } = self;
        Box::pin(state.answer(raw.fetch_optional(query)))
    }

    fn execute<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<PgQueryResult, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let Connection { raw, state, .. } = self;
        Box::pin(state.answer(raw.execute(query)))
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'c: 'e,
    {
        let Connection { raw, state, .. } = self;
        Box::pin(state.answer(raw.prepare_with(sql, parameters)))
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, sqlx::Error>>
    where
        'c: 'e,
    {
        let Connection { raw, state, .. } = self;
        Box::pin(state.answer(raw.describe(sql)))
    }
}
