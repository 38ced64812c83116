//! Errors of the database, sorted once.

use sqlx::error::{DatabaseError, ErrorKind};

use crate::store::connection::is_of_the_connection;

/// What became of what was asked, and what may be done about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Another transaction came in between. Nothing was done; doing it again is right.
    Again,
    /// The shared lock table is full. Nothing was done; doing it again with a single lock is right.
    LockTableFull,
    /// The database cannot be reached or does not take writes. Nothing was done.
    Unavailable,
    /// The database refused the data, or something is wrong with the server. Nothing was done.
    Refused,
}

/// An error of the store. Its text is for the log and never for a client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("database: {0}")]
    Database(#[from] sqlx::Error),
    #[error("migration: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    #[error(
        "migration {version} failed: {error}; nothing of it is stored: mend what stands here, and run `solejob migrate` \
         again"
    )]
    Migration { version: i64, error: sqlx::Error },
    /// A row that this server cannot have written.
    #[error("table {table}, column {column}: {problem}")]
    Inconsistent {
        table: &'static str,
        column: &'static str,
        problem: String,
    },
    /// A compare-and-set met another holder than the one that was seen.
    #[error("another transaction changed a row that was seen")]
    Overtaken,
    /// The database is none that this server can work with.
    #[error("{0}")]
    Unfit(String),
    /// The connection was lost after COMMIT was sent: what the transaction wrote may be stored.
    #[error("a commit got no answer: {0}")]
    Unanswered(sqlx::Error),
}

impl Error {
    pub fn class(&self) -> Class {
        match self {
            Error::Overtaken => Class::Again,
            Error::Unanswered(_) => Class::Unavailable,
            Error::Inconsistent { .. } | Error::Unfit(_) | Error::Migrate(_) | Error::Migration { .. } => {
                Class::Refused
            }
            Error::Database(error) => match error {
                sqlx::Error::Database(error) => class_of(error.as_ref()),
                sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::Protocol(_)
                | sqlx::Error::PoolTimedOut
                | sqlx::Error::PoolClosed
                | sqlx::Error::BeginFailed
                | sqlx::Error::WorkerCrashed => Class::Unavailable,
                _ => Class::Refused,
            },
        }
    }

    /// Whether the database could not be used just now, and certainly did nothing: trying again may help.
    pub fn nothing_was_done(&self) -> bool {
        self.class() == Class::Unavailable && !matches!(self, Error::Unanswered(_))
    }

    /// The error of a COMMIT, or of a statement that changes something by itself.
    pub(super) fn of_commit(error: sqlx::Error) -> Error {
        // The session was ended: before it committed, or after.
        if is_of_the_connection(&error) {
            Error::Unanswered(error)
        } else {
            Error::Database(error)
        }
    }
}

/// By SQLSTATE (PostgreSQL documentation, appendix A).
fn class_of(error: &dyn DatabaseError) -> Class {
    let code = error.code().unwrap_or_default();
    match &*code {
        // serialization_failure, deadlock_detected
        "40001" | "40P01" => Class::Again,
        // out_of_memory with this hint means the lock table; see max_locks_per_transaction
        "53200" => Class::LockTableFull,
        // lock_not_available, query_canceled, read_only_sql_transaction
        "55P03" | "57014" | "25006" => Class::Unavailable,
        _ if error.kind() == ErrorKind::UniqueViolation => Class::Again,
        // connection_exception, insufficient_resources, operator_intervention, system_error
        _ if ["08", "53", "57", "58"].iter().any(|class| code.starts_with(class)) => Class::Unavailable,
        _ => Class::Refused,
    }
}
