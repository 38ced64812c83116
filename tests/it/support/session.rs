//! Sessions beside the servers': they hold what the servers need, so that a race can be arranged.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Executor, PgPool};

use super::App;
use super::wait::eventually;

/// A database session of the test's own.
pub(crate) struct Session {
    connection: PgConnection,
    pid: i32,
    watch: PgPool,
}

impl Session {
    pub(crate) async fn open(app: &App) -> Self {
        let mut connection = PgConnection::connect(app.database_url())
            .await
            .expect("one more connection");
        let pid = sqlx::query_scalar("select pg_backend_pid()")
            .fetch_one(&mut connection)
            .await
            .expect("a number");
        Session {
            connection,
            pid,
            watch: app.sql().clone(),
        }
    }

    /// Runs statements, one after another.
    pub(crate) async fn run(&mut self, sql: &str) {
        let done = self.connection.execute(AssertSqlSafe(sql.to_owned())).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Waits until this many other sessions wait for this one.
    pub(crate) async fn until_blocking(&self, sessions: i64) {
        eventually("sessions that wait for this one", async || {
            let sql = "select count(*) from pg_stat_activity
                       where datname = current_database() and $1 = any(pg_blocking_pids(pid))";
            let waiting: i64 = sqlx::query_scalar(sql)
                .bind(self.pid)
                .fetch_one(&self.watch)
                .await
                .expect("a count");
            if waiting >= sessions {
                Ok(())
            } else {
                Err(format!("{waiting} of {sessions} wait"))
            }
        })
        .await;
    }
}

/// Holds the table of keys, so that dispatches gather before it and are then let go together.
pub(crate) struct Gate(Session);

impl Gate {
    pub(crate) async fn close(app: &App) -> Self {
        let mut session = Session::open(app).await;
        session.run("begin; lock table job_keys in access exclusive mode").await;
        Gate(session)
    }

    /// Waits until more sessions than this stand before the gate, or behind one that does; gives their number.
    pub(crate) async fn more_waiting_than(&self, sessions: i64) -> i64 {
        eventually("sessions to wait at the gate", async || {
            let waiting = self.waiting().await;
            if waiting > sessions {
                Ok(waiting)
            } else {
                Err(format!("{waiting} wait"))
            }
        })
        .await
    }

    /// How many sessions stand before the gate, or behind one that does. Servers that look after the keys
    /// of their own accord do not count.
    pub(crate) async fn waiting(&self) -> i64 {
        let sql = "select count(*) from pg_stat_activity
                   where datname = current_database() and wait_event_type = 'Lock'
                       and query ~ '-- solejob (lock_keys|look_up|write|reset_key|lock_lives|write_lives):'";
        sqlx::query_scalar(sql).fetch_one(&self.0.watch).await.expect("a count")
    }

    /// Lets all through.
    pub(crate) async fn open(mut self) {
        self.0.run("commit").await;
    }
}
