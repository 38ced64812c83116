//! The machines: a PostgreSQL of the run's own, and server processes, each behind a proxy.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use solejob::embedded::{Cluster, Settings};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Executor as _, PgPool};

use crate::proxy::Proxy;
use crate::server::{Server, solejob};

/// Small, so that it can be filled.
const OPTIONS: [(&str, &str); 4] = [
    ("max_connections", "90"),
    ("max_locks_per_transaction", "16"),
    ("log_min_messages", "warning"),
    ("log_min_error_statement", "panic"),
];

/// The default grace is 25 seconds.
const STOPS_WITHIN: Duration = Duration::from_secs(30);

/// A PostgreSQL that may be crashed: nobody else uses it.
pub(crate) struct Postgres {
    settings: Settings,
    directory: PathBuf,
    cluster: tokio::sync::Mutex<Option<Cluster>>,
}

impl Postgres {
    pub(crate) async fn start() -> Postgres {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("solejob-histories-{}-{number}", std::process::id()));
        fs::create_dir(&directory).expect("a new directory");
        // Under root PostgreSQL runs as another user, who has to get in.
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("it is ours");
        let mut settings = Settings::new(directory.join("data"));
        settings.bin_dir = std::env::var_os("PG_BIN_DIR").map(PathBuf::from);
        settings.search_path = std::env::var_os("PATH");
        settings.run_as = std::env::var_os("SOLEJOB_PG_USER").and_then(|user| user.into_string().ok());
        settings.options = OPTIONS
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec();
        // Processes are killed and machines are not: what was written stays.
        settings.durable = false;
        let cluster = Cluster::start(&settings).await.expect("a private PostgreSQL");
        Postgres {
            settings,
            directory,
            cluster: tokio::sync::Mutex::new(Some(cluster)),
        }
    }

    pub(crate) async fn database(&self, name: &str) -> String {
        let cluster = self.cluster.lock().await;
        let cluster = cluster.as_ref().expect("it runs");
        cluster.ensure_database(name).await.expect("a database can be made");
        cluster.url(name)
    }

    /// Ends PostgreSQL without warning, and starts it again.
    pub(crate) async fn crash(&self, signal: Signal) {
        let mut cluster = self.cluster.lock().await;
        let pid = fs::read_to_string(self.settings.data_dir.join("pg/postmaster.pid")).expect("it runs");
        let pid = pid
            .lines()
            .next()
            .and_then(|line| line.trim().parse().ok())
            .and_then(Pid::from_raw);
        kill_process(pid.expect("a process id"), signal).expect("it is ours");
        if let Some(cluster) = cluster.take() {
            let _it_has_ended = cluster.stop().await;
        }
        *cluster = Some(Cluster::start(&self.settings).await.expect("it recovers"));
    }

    /// How often a constraint had to do what the locks are for.
    pub(crate) fn constraint_hits(&self) -> usize {
        let log = fs::read_to_string(self.settings.data_dir.join("postgres.log")).unwrap_or_default();
        log.matches("duplicate key value violates unique constraint \"job_keys_pkey\"")
            .count()
    }

    pub(crate) async fn stop(self) {
        if let Some(cluster) = self.cluster.lock().await.take() {
            cluster.stop().await.expect("it stops");
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // One that still runs ends without its files.
        let _left_for_later = fs::remove_dir_all(&self.directory);
    }
}

/// Where a server can be reached, if it can.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    pub(crate) base: String,
    pub(crate) http: reqwest::Client,
}

/// One database with its servers.
pub(crate) struct Stage {
    pub(crate) postgres: Arc<Postgres>,
    pub(crate) url: String,
    pub(crate) pool: PgPool,
    pub(crate) proxies: Vec<Proxy>,
    servers: Vec<tokio::sync::Mutex<Option<Server>>>,
    doors: Mutex<Vec<Option<Door>>>,
    /// Of servers that have ended.
    logs: Mutex<String>,
    /// Which server lives how far off.
    shifted: (usize, i64),
    library: Option<PathBuf>,
    mutant: Option<String>,
    intruded_upon: AtomicBool,
    lost_answers: AtomicUsize,
    hang_ups: AtomicUsize,
}

impl Stage {
    pub(crate) async fn set(
        postgres: &Arc<Postgres>,
        seed: u64,
        count: usize,
        library: Option<PathBuf>,
        mutant: Option<String>,
    ) -> Stage {
        let url = postgres.database(&format!("histories_{seed:x}")).await;
        let migrated = solejob(&url)
            .arg("migrate")
            .output()
            .expect("the built binary can be run");
        let said = String::from_utf8_lossy(&migrated.stderr).into_owned();
        assert!(migrated.status.success(), "`solejob migrate` failed:\n{said}");
        let pool = PgPoolOptions::new()
            .max_connections(6)
            .acquire_timeout(Duration::from_secs(30));
        let pool = pool.connect(&url).await.expect("the database is there");
        pool.execute(AssertSqlSafe(crate::dump::HARNESS))
            .await
            .expect("the migrated database has its tables");
        let mut proxies = Vec::new();
        for _ in 0..count {
            proxies.push(Proxy::before(&url).await);
        }
        let stage = Stage {
            postgres: postgres.clone(),
            url,
            pool,
            proxies,
            servers: (0..count).map(|_| tokio::sync::Mutex::new(None)).collect(),
            doors: Mutex::new(vec![None; count]),
            logs: Mutex::default(),
            shifted: (seed as usize % count, if seed & 8 == 0 { 3_600 } else { -3_600 }),
            library,
            mutant,
            intruded_upon: AtomicBool::new(false),
            lost_answers: AtomicUsize::new(0),
            hang_ups: AtomicUsize::new(0),
        };
        for number in 0..count {
            stage.start(number).await;
        }
        stage
    }

    pub(crate) fn count(&self) -> usize {
        self.servers.len()
    }

    /// From now on somebody writes without locks, now and then.
    pub(crate) fn intrude(&self) {
        self.intruded_upon.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_intruded_upon(&self) -> bool {
        self.intruded_upon.load(Ordering::SeqCst)
    }

    pub(crate) fn count_lost_answer(&self) {
        self.lost_answers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_hang_up(&self) {
        self.hang_ups.fetch_add(1, Ordering::Relaxed);
    }

    /// Answers that were lost, and clients that hung up.
    pub(crate) fn unheard(&self) -> (usize, usize) {
        (
            self.lost_answers.load(Ordering::Relaxed),
            self.hang_ups.load(Ordering::Relaxed),
        )
    }

    fn command(&self, number: usize) -> Command {
        let mut command = solejob(&self.proxies[number].url(&self.url));
        command.args(["serve", "--listen", "127.0.0.1:0", "--anonymous", "--connections", "5"]);
        if let (Some(library), true) = (&self.library, self.shifted.0 == number) {
            command
                .env("LD_PRELOAD", library)
                .env("CLOCK_SHIFT_SECONDS", self.shifted.1.to_string());
        }
        if let Some(mutant) = &self.mutant {
            command.env("SOLEJOB_MUTANT", mutant);
        }
        command
    }

    pub(crate) async fn start(&self, number: usize) {
        let server = Server::start(self.command(number)).await;
        // None of its connections is kept longer than the server lives.
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(12));
        let door = Door {
            base: server.base.trim_end_matches('/').to_owned(),
            http: http.build().expect("building a client cannot fail"),
        };
        *self.servers[number].lock().await = Some(server);
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(door);
    }

    pub(crate) fn door(&self, number: usize) -> Option<Door> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)[number].clone()
    }

    fn close_door(&self, number: usize) {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)[number] = None;
    }

    pub(crate) async fn kill(&self, number: usize) {
        if let Some(mut server) = self.servers[number].lock().await.take() {
            server.kill();
            self.keep_log(number, &server);
        }
        self.close_door(number);
    }

    /// SIGTERM, and waits for its end. Meanwhile clients may go on asking it.
    pub(crate) async fn stop(&self, number: usize) {
        if let Some(mut server) = self.servers[number].lock().await.take() {
            server.ask_to_stop();
            let give_up = Instant::now() + STOPS_WITHIN;
            while let Ok(None) = server.child.try_wait() {
                assert!(
                    Instant::now() < give_up,
                    "a server has not ended {STOPS_WITHIN:?} after SIGTERM"
                );
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            self.keep_log(number, &server);
        }
        self.close_door(number);
    }

    pub(crate) async fn signal(&self, number: usize, signal: Signal) {
        if let Some(server) = self.servers[number].lock().await.as_ref() {
            let _ = kill_process(Pid::from_child(&server.child), signal);
        }
    }

    fn keep_log(&self, number: usize, server: &Server) {
        let log = server.log.text();
        assert!(
            !log.contains("panicked at"),
            "a server panicked:\n{}",
            server.log.tail(40)
        );
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        log.lines()
            .for_each(|line| *logs += &format!("server {number}: {line}\n"));
    }

    /// What servers that have ended had to say.
    pub(crate) fn logs(&self) -> String {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) async fn log(&self, number: usize) -> String {
        let server = self.servers[number].lock().await;
        server.as_ref().map(|server| server.log.text()).unwrap_or_default()
    }

    /// Whether the server that is to live an hour off does so, by the times in its log.
    pub(crate) async fn clock_is_shifted(&self, now: i64) -> bool {
        let log = self.log(self.shifted.0).await;
        let first: Option<serde_json::Value> = log.lines().find_map(|line| serde_json::from_str(line).ok());
        let said = first.and_then(|line| {
            let instant = chrono::DateTime::parse_from_rfc3339(line["timestamp"].as_str()?).ok()?;
            Some(instant.timestamp() - now / 1_000_000)
        });
        said.is_some_and(|shift| (shift - self.shifted.1).abs() < 600)
    }
}
