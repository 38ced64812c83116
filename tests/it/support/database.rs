//! Databases: one template for the whole run, migrated once by the product itself, and a copy of it
//! for each test.
//!
//! A run marks its databases with a number and holds an advisory lock of that number for as long as it
//! lives. What a killed run left behind is thus known, and dropped by the next one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use reqwest::Url;
use sqlx::postgres::{PgConnection, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, PgPool};
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, OnceCell, OwnedSemaphorePermit, Semaphore};

use super::server::solejob;

/// Each test has a runtime of its own, which ends with it. What outlives a test runs here.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .worker_threads(1)
        .enable_all()
        .thread_name("databases")
        .build()
        .expect("a runtime can be built")
});
static SHARED: OnceCell<Arc<Cluster>> = OnceCell::const_new();

/// Connections that a server process and the test's own pool may open together.
const CONNECTIONS_PER_SERVER: u32 = 25;
/// Left for the administration of the suite and for whoever looks in with psql.
const CONNECTIONS_SPARED: u32 = 10;
const LOCK_CLASS: i64 = 0x0050_1e10 << 32;

/// A table of the harness in every database: window keys may outlive their jobs, so the invariants
/// need to know which jobs there once were.
pub(super) const DELETED_JOBS: &str = "
    create schema harness;
    create table harness.deleted_jobs (app_id bigint not null, job_id uuid not null, primary key (app_id, job_id));
    create function harness.remember() returns trigger language plpgsql security definer as $$
    begin
        insert into harness.deleted_jobs values (old.app_id, old.job_id) on conflict do nothing;
        return null;
    end $$;
    create trigger remember after delete on public.jobs for each row execute function harness.remember();";

/// A PostgreSQL server that the tests may create databases on.
pub(crate) struct Cluster {
    url: Url,
    admin: PgPool,
    prefix: String,
    template: String,
    next: AtomicU32,
    room: Arc<Semaphore>,
    /// Holds the lock that says that this run is alive.
    _alive: Mutex<PgConnection>,
}

/// The URL of the same server, another database.
pub(crate) fn database_url(url: &Url, database: &str) -> Url {
    let mut url = url.clone();
    let kept = url
        .query_pairs()
        .filter(|(name, _)| name != "dbname")
        .map(|(n, v)| (n.into_owned(), v.into_owned()));
    let kept = kept.collect::<Vec<_>>();
    url.set_path(database);
    url.set_query(None);
    if !kept.is_empty() {
        url.query_pairs_mut().extend_pairs(kept);
    }
    url
}

impl Cluster {
    /// The PostgreSQL that `DATABASE_URL` names.
    pub(crate) async fn shared() -> Arc<Self> {
        let cluster = SHARED.get_or_init(|| async {
            let url = std::env::var_os("DATABASE_URL").and_then(|url| url.into_string().ok());
            let url = url.expect("these tests need a PostgreSQL: run scripts/test, or set DATABASE_URL");
            Cluster::open(&url).await
        });
        cluster.await.clone()
    }

    pub(crate) async fn open(url: &str) -> Arc<Self> {
        let url = url.parse::<Url>().expect("DATABASE_URL is a URL");
        on_runtime(async move {
            let admin = PgPoolOptions::new()
                .max_connections(4)
                .acquire_timeout(Duration::from_secs(60));
            let admin = admin
                .connect(url.as_str())
                .await
                .expect("DATABASE_URL leads to a PostgreSQL");
            let mut alive = PgConnection::connect(url.as_str()).await.expect("a second connection");
            let run = rand::random::<u32>();
            sqlx::query("select pg_advisory_lock($1)")
                .bind(LOCK_CLASS | i64::from(run))
                .execute(&mut alive)
                .await
                .expect("a fresh lock");
            drop_leftovers(&mut alive, run).await;
            let prefix = format!("solejob_it_{run:08x}");
            let template = format!("{prefix}_template");
            make_template(&admin, &url, &template).await;
            let most: String = sqlx::query_scalar("show max_connections")
                .fetch_one(&admin)
                .await
                .expect("a setting");
            let most: u32 = most.parse().expect("a number");
            let room = (most.saturating_sub(CONNECTIONS_SPARED) / CONNECTIONS_PER_SERVER).max(2);
            let room = Arc::new(Semaphore::new(room as usize));
            Arc::new(Cluster {
                url,
                admin,
                prefix,
                template,
                next: AtomicU32::new(0),
                room,
                _alive: Mutex::new(alive),
            })
        })
        .await
    }

    /// Waits until this many more servers fit on the PostgreSQL's connections.
    pub(crate) async fn room_for(&self, servers: usize) -> OwnedSemaphorePermit {
        let servers = u32::try_from(servers).expect("a few servers");
        self.room
            .clone()
            .acquire_many_owned(servers)
            .await
            .expect("the semaphore is never closed")
    }

    /// A fresh database: migrated, or empty.
    pub(crate) async fn create(self: &Arc<Self>, migrated: bool) -> Database {
        let name = format!("{}_{}", self.prefix, self.next.fetch_add(1, Ordering::Relaxed));
        let template = if migrated { &self.template } else { "template0" };
        self.execute(format!("create database {name} template {template}"))
            .await;
        Database {
            url: database_url(&self.url, &name),
            name,
            cluster: self.clone(),
        }
    }

    pub(crate) async fn setting(&self, name: &str) -> String {
        let (admin, sql) = (self.admin.clone(), format!("show {name}"));
        on_runtime(async move {
            sqlx::query_scalar(AssertSqlSafe(sql))
                .fetch_one(&admin)
                .await
                .expect("a setting")
        })
        .await
    }

    async fn execute(&self, sql: String) {
        let admin = self.admin.clone();
        on_runtime(async move {
            let done = admin.execute(AssertSqlSafe(sql.clone())).await;
            done.unwrap_or_else(|error| panic!("{sql}: {error}"))
        })
        .await;
    }
}

/// A database of one test.
pub(crate) struct Database {
    pub(crate) url: Url,
    name: String,
    cluster: Arc<Cluster>,
}

impl Database {
    /// A setting that every later session on this database starts with. The value is written as SQL.
    pub(crate) async fn set(&self, setting: &str, value: &str) {
        self.cluster
            .execute(format!("alter database {} set {setting} to {value}", self.name))
            .await;
    }

    /// Drops the database in the background of a test that may be panicking; waits for it.
    pub(crate) fn drop_now(&self) {
        let (admin, name) = (self.cluster.admin.clone(), self.name.clone());
        let (done, waited) = std::sync::mpsc::channel();
        RUNTIME.spawn(async move {
            let sql = format!("drop database if exists {name} with (force)");
            if let Err(error) = admin.execute(AssertSqlSafe(sql)).await {
                eprintln!("{name} could not be dropped: {error}");
            }
            let _ = done.send(());
        });
        let _ = waited.recv_timeout(Duration::from_secs(30));
    }
}

async fn on_runtime<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    RUNTIME
        .spawn(work)
        .await
        .expect("the administration of databases works")
}

/// The template's tables come from `solejob migrate`, so that the suite tests what an operator runs.
async fn make_template(admin: &PgPool, url: &Url, template: &str) {
    let sql = format!("create database {template} template template0");
    admin
        .execute(AssertSqlSafe(sql))
        .await
        .expect("DATABASE_URL names a role that may create databases");
    let url = database_url(url, template);
    let mut command = solejob(url.as_str());
    command.arg("migrate");
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .expect("the thread ends");
    let output = output.expect("the built binary can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "`solejob migrate` failed with {}:\n{said}",
        output.status
    );
    let mut session = PgConnection::connect(url.as_str())
        .await
        .expect("the template is there");
    session
        .execute(DELETED_JOBS)
        .await
        .expect("the migrated template has a table of jobs");
    session.close().await.expect("nobody may be connected to a template");
}

/// Drops the databases of runs that are no more.
async fn drop_leftovers(session: &mut PgConnection, run: u32) {
    let names = sqlx::query_scalar("select datname from pg_database where datname like 'solejob\\_it\\_%'");
    let names: Vec<String> = names.fetch_all(&mut *session).await.expect("a list of databases");
    for name in names {
        let owner = name.strip_prefix("solejob_it_").and_then(|rest| rest.get(..8));
        let Some(owner) = owner
            .and_then(|owner| u32::from_str_radix(owner, 16).ok())
            .filter(|owner| *owner != run)
        else {
            continue;
        };
        let lock = LOCK_CLASS | i64::from(owner);
        let gone: bool = sqlx::query_scalar("select pg_try_advisory_lock($1)")
            .bind(lock)
            .fetch_one(&mut *session)
            .await
            .expect("a try");
        if gone {
            let _ = session
                .execute(AssertSqlSafe(format!("drop database if exists {name} with (force)")))
                .await;
            let unlock = sqlx::query("select pg_advisory_unlock($1)").bind(lock);
            unlock.execute(&mut *session).await.expect("the lock just taken");
        }
    }
}

mod tests {
    use super::database_url;

    #[test]
    fn a_url_keeps_all_but_its_database() {
        let other = |url: &str| database_url(&url.parse().unwrap(), "other").to_string();
        assert_eq!(
            other("postgres://u:p@localhost:5433/postgres"),
            "postgres://u:p@localhost:5433/other"
        );
        assert_eq!(
            other("postgres:///x?host=%2Fvar%2Frun&user=u&dbname=x"),
            "postgres:///other?host=%2Fvar%2Frun&user=u"
        );
        assert_eq!(other("postgres://localhost"), "postgres://localhost/other");
    }
}
