//! What a session is: one backend for as long as the connection lasts, with our settings. A pooler may say otherwise.

use std::sync::LazyLock;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _};

use crate::store::Error;

/// Settings of every session. They go with the connection, since a pool may give any of them out.
pub const SETTINGS: [(&str, &str); 16] = [
    // Decisions read what was committed before each statement; a default of the role must not change that.
    ("default_transaction_isolation", "read committed"),
    ("timezone", "UTC"),
    ("jit", "off"),
    // A statement over unnest($1) is otherwise planned anew at each call.
    ("plan_cache_mode", "force_generic_plan"),
    ("statement_timeout", "10s"),
    ("lock_timeout", "5s"),
    // A server that froze inside a transaction, or that packets no longer reach, must not keep its locks: for less than
    // the others' deadline.
    ("idle_in_transaction_session_timeout", "5s"),
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

/// How often a pooler gets the chance to show that it is one that mixes sessions up. Others use it too, so that it may
/// fail to once.
const CHANCES: usize = 10;

/// What a connection is opened with. Only what every pooler knows: most refuse start-up options, so the settings are set
/// by a statement, and the digits of floats are of no interest to us.
pub(super) fn options(url: &str) -> Result<PgConnectOptions, Error> {
    let options: PgConnectOptions = url.parse()?;
    // A name in the URL tells several servers apart.
    let name = options.get_application_name().unwrap_or("solejob").to_owned();
    Ok(options.application_name(&name).extra_float_digits(None))
}

/// Gives a new session its settings. Whether its commits wait for a standby.
pub(super) async fn set(session: &mut PgConnection) -> Result<bool, sqlx::Error> {
    static SET: LazyLock<String> = LazyLock::new(|| {
        let set = SETTINGS.map(|(name, value)| format!("set {name} = '{value}'; "));
        let replicated = "select current_setting('synchronous_standby_names') <> '' as replicated";
        set.concat() + replicated
    });
    session.fetch_one(SET.as_str()).await?.try_get("replicated")
}

/// Gives a session another value for one setting.
pub(super) async fn set_one(
    session: &mut PgConnection,
    name: &'static str,
    value: &'static str,
) -> Result<(), sqlx::Error> {
    let set = AssertSqlSafe(format!("set {name} = '{value}'"));
    session.execute(set).await.map(drop)
}

/// Refuses a pooler that gives one backend to several clients in turn: settings would be lost or meet others, statements
/// that one client has prepared would be another's, and a lock of a session would be nobody's.
pub(super) async fn check(options: &PgConnectOptions) -> Result<(), Error> {
    let mut one = PgConnection::connect_with(options).await?;
    let mut other = PgConnection::connect_with(options).await?;
    let own = backend(&mut one).await?;
    for _ in 0..CHANCES {
        // Statement by statement, a pooler refuses even that.
        let begun = other.execute("begin").await;
        if let Err(sqlx::Error::Database(error)) = begun {
            return Err(mixed_up(&format!(" ({error})")));
        }
        begun?;
        // While one backend is in a transaction of the other's, the first one must still have its own.
        let (others, still) = (backend(&mut other).await?, backend(&mut one).await?);
        if others == own || still != own {
            return Err(mixed_up(""));
        }
        other.execute("rollback").await?;
    }
    one.close().await?;
    other.close().await?;
    Ok(())
}

fn mixed_up(why: &str) -> Error {
    Error::Unfit(format!(
        "between this server and PostgreSQL is a pooler that gives one session to several clients in turn{why}: set \
         pool_mode = session for this database (PgBouncer), or connect to PostgreSQL itself"
    ))
}

/// The process in PostgreSQL that answers. Asked by a statement that is not prepared.
async fn backend(session: &mut PgConnection) -> Result<i32, sqlx::Error> {
    session
        .fetch_one("select pg_backend_pid() as pid")
        .await?
        .try_get("pid")
}
