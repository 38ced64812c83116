//! The schema: migrated by a command of its own, only checked by a server.

use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::{Connection as _, PgConnection, Row};
use tokio::time::timeout;

use crate::store::connection::Connection;
use crate::store::{Error, session};

static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// Fewer locks than this leave too little to work with.
const LOCKS_EACH_MIN: usize = 64;

/// "solejob migrate", as a lock number of its own.
const MIGRATION_LOCK: i64 = 0x736f_6c65_6d69_6772;

/// How long a database may take to let a migration in.
const CONNECT: Duration = Duration::from_secs(10);

/// While a migration waits for a table, everybody who needs that table waits behind it: for less than they have time.
const LOCK_TIMEOUT: &str = "2s";

/// So it gives way for a while, and tries again.
const LOCK_PAUSE: Duration = Duration::from_secs(2);
const LOCK_TRIES: u32 = 30;

/// Brings the database to this server's schema, alone: others that migrate wait for it.
///
/// On a connection of its own that is closed at the end, so that nothing of a failed migration is left. The
/// lock is tried in a loop and not waited for: a waiting session would hold up `create index concurrently`.
pub async fn migrate(url: &str) -> Result<(), Error> {
    let options = session::options(url)?;
    let connected = timeout(CONNECT, async {
        session::check(&options).await?;
        let mut connection = PgConnection::connect_with(&options).await?;
        session::set(&mut connection).await?;
        Ok::<_, Error>(connection)
    });
    let mut connection = connected.await.map_err(|_| sqlx::Error::PoolTimedOut)??;
    for (name, value) in [("statement_timeout", "0"), ("lock_timeout", LOCK_TIMEOUT)] {
        session::set_one(&mut connection, name, value).await?;
    }
    loop {
        let row = sqlx::query("select pg_try_advisory_lock($1) as taken")
            .bind(MIGRATION_LOCK)
            .fetch_one(&mut connection)
            .await?;
        if row.try_get("taken")? {
            break;
        }
        tracing::info!("another process is migrating this database: waiting for it");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut migrator = Migrator::with_migrations(MIGRATIONS.iter().cloned().collect());
    // What a later version has applied is no concern of this one, whose servers may go on beside it.
    migrator.set_locking(false).set_ignore_missing(true);
    let mut tries = 1..=LOCK_TRIES;
    let outcome = loop {
        match migrator.run(&mut connection).await {
            Err(error) if waited_in_vain(&error) && tries.next().is_some() => {
                tracing::warn!(%error, "a migration waits for somebody who uses its tables: trying again");
                tokio::time::sleep(LOCK_PAUSE).await;
            }
            outcome => break outcome,
        }
    };
    connection.close().await?;
    outcome.map_err(|error| match error {
        MigrateError::ExecuteMigration(error, version) => Error::Migration { version, error },
        error => error.into(),
    })
}

/// Whether a migration gave way to those who use its tables.
fn waited_in_vain(error: &MigrateError) -> bool {
    match error {
        MigrateError::ExecuteMigration(sqlx::Error::Database(error), _) => {
            error.code().is_some_and(|code| code == "55P03")
        }
        _ => false,
    }
}

/// What is asked of a database before it is used. Gives the number of locks that one transaction may take.
pub(super) async fn check(connection: &mut Connection) -> Result<usize, Error> {
    let row = sqlx::query(
        "select to_regclass('_sqlx_migrations') is not null as migrated, pg_is_in_recovery() as standby,
            current_setting('server_encoding') as encoding, current_setting('server_version_num')::int as version,
            current_setting('max_locks_per_transaction')::bigint
                * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint)
                as lock_slots",
    )
    .fetch_one(&mut *connection)
    .await?;
    let unfit = |problem: String| Err(Error::Unfit(problem));
    let version: i32 = row.try_get("version")?;
    if version < 150_000 {
        return unfit(format!(
            "PostgreSQL {} is too old: 15 or newer is needed",
            version / 10_000
        ));
    }
    let encoding: String = row.try_get("encoding")?;
    if encoding != "UTF8" {
        return unfit(format!(
            "{encoding} cannot hold every payload: create the database with UTF8"
        ));
    }
    if row.try_get("standby")? {
        return unfit("this is a standby: connect to the primary".into());
    }
    let applied: Vec<i64> = if row.try_get("migrated")? {
        let row = sqlx::query("select array(select version from _sqlx_migrations where success) as versions");
        row.fetch_one(connection).await?.try_get("versions")?
    } else {
        Vec::new()
    };
    // Each of them, and not only the newest: a branch may be merged whose number is lower than that.
    let missing = MIGRATIONS.iter().map(|migration| migration.version);
    if let Some(missing) = missing.filter(|version| !applied.contains(version)).max() {
        let newest = applied.iter().max().unwrap_or(&0);
        let problem = format!("the schema has version {newest} and this server needs {missing}: run `solejob migrate`");
        return unfit(problem);
    }
    // A newer schema only adds: servers of the version before go on while others are replaced.
    // A third of the table: three servers with a transaction of the most locks each, and the rest for tables.
    let slots: i64 = row.try_get("lock_slots")?;
    Ok(usize::try_from(slots / 3).unwrap_or(usize::MAX).max(LOCKS_EACH_MIN))
}

/// What an operator should know of the settings of a database that can be worked with.
pub(super) async fn warnings(connection: &mut Connection, connections: u32) -> Result<Vec<String>, Error> {
    let row = sqlx::query(
        "select current_setting('synchronous_commit') = 'off' as forgetful,
            current_setting('fsync') = 'off' or current_setting('full_page_writes') = 'off' as unsafe,
            current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
                - (select count(*) from pg_stat_activity
                   where backend_type = 'client backend' and pid <> pg_backend_pid()) as room",
    )
    .fetch_one(connection)
    .await?;
    let mut warnings = Vec::new();
    if row.try_get("forgetful")? {
        warnings.push(
            "synchronous_commit is off: a crash of PostgreSQL loses jobs whose receipts were given; set it to on"
                .to_owned(),
        );
    }
    if row.try_get("unsafe")? {
        warnings.push(
            "fsync or full_page_writes is off: a crash of the machine can destroy the database; set both to on"
                .to_owned(),
        );
    }
    let room: i64 = row.try_get("room")?;
    if room < i64::from(connections) {
        warnings.push(format!(
            "this server opens up to {connections} connections and PostgreSQL has room for {room}: raise \
             max_connections, or lower --connections"
        ));
    }
    Ok(warnings)
}
