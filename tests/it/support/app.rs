//! An application under test: server processes on a database of their own.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::OwnedSemaphorePermit;

use super::cli::Cli;
use super::client::Client;
use super::database::{Cluster, DELETED_JOBS, Database};
use super::invariants;
use super::server::{Server, solejob};

/// How an application is started. The default: one anonymous server on the run's PostgreSQL.
#[derive(Clone, Default)]
pub(crate) struct Options {
    more_servers: usize,
    tokens: bool,
    empty: bool,
    args: Vec<String>,
    env: Vec<(String, String)>,
    settings: Vec<(String, String)>,
    cluster: Option<Arc<Cluster>>,
}

impl Options {
    /// This many server processes on the one database.
    pub(crate) fn servers(mut self, count: usize) -> Self {
        self.more_servers = count - 1;
        self
    }

    /// Tokens are needed, and this is the bootstrap token (all rights for `default`, `prod`).
    pub(crate) fn bootstrap_token(mut self, token: &str) -> Self {
        self.tokens = true;
        self.env("SOLEJOB_BOOTSTRAP_TOKEN", token)
    }

    /// The servers find an empty database and migrate it themselves.
    pub(crate) fn empty_database(mut self) -> Self {
        self.empty = true;
        self.arg("--migrate")
    }

    pub(crate) fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A PostgreSQL setting that every session on the database starts with. The value is written as SQL.
    pub(crate) fn database_setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Another PostgreSQL than the run's.
    pub(crate) fn on(mut self, cluster: &Arc<Cluster>) -> Self {
        self.cluster = Some(cluster.clone());
        self
    }
}

/// Server processes, their database, and clients for them. As a [`Client`] it is its first server's.
///
/// A test ends with [`App::finish`], which checks the invariants of the data.
pub(crate) struct App {
    servers: Vec<Server>,
    clients: Vec<Client>,
    database: Database,
    pool: PgPool,
    finished: bool,
    options: Options,
    _room: OwnedSemaphorePermit,
}

impl App {
    pub(crate) async fn start() -> Self {
        App::with(Options::default()).await
    }

    pub(crate) async fn with(options: Options) -> Self {
        let cluster = match &options.cluster {
            Some(cluster) => cluster.clone(),
            None => Cluster::shared().await,
        };
        let count = options.more_servers + 1;
        let room = cluster.room_for(count).await;
        let database = cluster.create(!options.empty).await;
        for (name, value) in &options.settings {
            database.set(name, value).await;
        }
        let pool = PgPoolOptions::new()
            .max_connections(4)
            .acquire_timeout(Duration::from_secs(20));
        let pool = pool
            .connect_lazy(database.url.as_str())
            .expect("the URL was used before");
        let (servers, clients) = (Vec::new(), Vec::new());
        let mut app = App {
            servers,
            clients,
            database,
            pool,
            finished: false,
            options,
            _room: room,
        };
        // All at once: servers that start together on an empty database must get along.
        let starts = (0..count).map(|_| tokio::spawn(Server::start(app.command())));
        for start in starts.collect::<Vec<_>>() {
            match start.await {
                Ok(server) => app.servers.push(server),
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
        if app.options.empty {
            sqlx::raw_sql(DELETED_JOBS)
                .execute(&app.pool)
                .await
                .expect("the servers have migrated the database");
        }
        app.clients = app.servers.iter().map(|server| Client::new(&server.base)).collect();
        app
    }

    /// A client of the server with this number.
    pub(crate) fn client(&self, number: usize) -> &Client {
        &self.clients[number]
    }

    /// A user of the command line who calls the first server.
    pub(crate) fn cli(&self) -> Cli {
        Cli::new(&format!("http://{}", self.address()))
    }

    /// A pool on the application's database, to look behind the answers.
    pub(crate) fn sql(&self) -> &PgPool {
        &self.pool
    }

    pub(crate) fn database_url(&self) -> &str {
        self.database.url.as_str()
    }

    /// Everything that the servers logged so far.
    pub(crate) fn log(&self) -> String {
        self.servers.iter().map(|server| server.log.text()).collect()
    }

    /// The sum of a counter over its labels and all servers; a counter that was never moved is zero.
    pub(crate) async fn counter(&self, name: &str) -> u64 {
        let mut sum = 0;
        for client in &self.clients {
            let metrics = client.get("/metrics", 200).await.text;
            let series = metrics.lines().filter(|line| {
                let rest = line.strip_prefix(name);
                rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
            });
            let values = series.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
            sum += values.sum::<u64>();
        }
        sum
    }

    /// Runs another command of the binary on this database; gives its stdout.
    pub(crate) async fn command_output(&self, args: &[&str]) -> String {
        let mut command = solejob(self.database_url());
        command.args(args);
        let output = tokio::task::spawn_blocking(move || command.output())
            .await
            .expect("the thread ends");
        let output = output.expect("the built binary can be run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "`solejob {}` failed:\n{said}", args.join(" "));
        String::from_utf8(output.stdout).expect("stdout is UTF-8")
    }

    /// Makes a token for (application, environment).
    pub(crate) async fn token(&self, application: &str, environment: &str, rights: &[&str]) -> String {
        let mut args = vec![
            "token",
            "create",
            "--application",
            application,
            "--environment",
            environment,
        ];
        for right in rights {
            args.extend(["--right", right]);
        }
        self.command_output(&args).await.trim().to_owned()
    }

    /// Kills a server outright and starts another in its place.
    pub(crate) async fn replace_server(&mut self, number: usize) {
        self.servers[number].kill();
        self.servers[number] = Server::start(self.command()).await;
        self.clients[number] = Client::new(&self.servers[number].base);
    }

    /// SIGTERM to all servers; whoever asks for it looks at what they still do.
    pub(crate) fn ask_servers_to_stop(&mut self) {
        self.servers.iter_mut().for_each(Server::ask_to_stop);
    }

    pub(crate) async fn assert_servers_end(&mut self) {
        for server in &mut self.servers {
            let status = server.stop().await;
            assert!(status.success(), "the server ended with {status} after SIGTERM");
        }
    }

    /// Ends the window of a key, as if its time had passed.
    pub(crate) async fn expire_window(&self, name: &str, key: &str) {
        let sql = "update job_keys set expires_at = clock_timestamp()
                   where dimension = 'window' and name = $1 and key = $2";
        let done = sqlx::query(sql)
            .bind(name)
            .bind(key)
            .execute(&self.pool)
            .await
            .expect("an update");
        assert_eq!(done.rows_affected(), 1, "there is no window key {key} of {name}");
    }

    /// Checks the invariants of the data as they are now.
    pub(crate) async fn check(&self) {
        invariants::check(&self.pool).await;
    }

    /// Checks the invariants, ends the servers gracefully and drops the database.
    pub(crate) async fn finish(mut self) {
        invariants::check(&self.pool).await;
        self.assert_servers_end().await;
        let log = self.log();
        assert!(!log.contains("panicked at"), "a server panicked:\n{log}");
        self.pool.close().await;
        self.finished = true;
    }

    fn command(&self) -> std::process::Command {
        let mut command = solejob(self.database_url());
        command.args(["serve", "--listen", "127.0.0.1:0"]);
        if !self.options.tokens {
            command.arg("--anonymous");
        }
        command.args(&self.options.args);
        command.envs(self.options.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

impl Deref for App {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client(0)
    }
}

impl Drop for App {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (number, server) in self.servers.iter().enumerate() {
                eprintln!("--- the last lines of server {number}:\n{}", server.log.tail(40));
            }
        }
        self.servers.clear();
        self.database.drop_now();
        if !self.finished && !std::thread::panicking() {
            panic!("this test never called App::finish, so nothing checked its data");
        }
    }
}
