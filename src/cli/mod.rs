//! The command line: the one place that reads flags and the environment.

mod dispatch;
mod doctor;
mod import;
mod job_types;
mod jobs;
mod keys;
mod lines;
mod object;
mod parent;
mod queues;
mod remote;
mod serve;
mod settings_file;
mod tokens;
mod work;

use std::ffi::OsString;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::client;
use crate::embedded::{self, Cluster};
use crate::http;
use crate::server;
use crate::store;
use crate::telemetry::{self, LogFormat};

/// An HTTP server that takes job dispatches and never creates the same job twice.
#[derive(Parser)]
#[command(name = "solejob", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// What is logged: a level (error, warn, info, debug, trace), or a list of target=level
    #[arg(long, global = true, env = "SOLEJOB_LOG", default_value = "info,sqlx=warn")]
    log: String,
    /// How it is logged [default: text for dev, json for serve]
    #[arg(long, global = true, env = "SOLEJOB_LOG_FORMAT")]
    log_format: Option<Format>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    Json,
    Text,
}

#[derive(Subcommand)]
enum Command {
    /// Run everything on this machine, with a PostgreSQL of its own: loopback only, no tokens
    Dev(Dev),
    /// Run a server in production
    Serve(serve::Serve),
    /// Bring the database to this version's schema
    Migrate {
        /// PostgreSQL to migrate, such as postgres://user:password@host/database
        #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
        database_url: String,
    },
    /// Examine a database: says what is wrong and what to do. Exits with 0 if nothing is, 1 for warnings, 2 for faults
    Doctor(doctor::Doctor),
    /// Make, list and revoke tokens
    #[command(subcommand)]
    Token(tokens::Token),
    /// Run a command for each job of a queue
    Work(Box<work::Work>),
    /// Ask for a job, or for those of a file
    Dispatch(Box<dispatch::Dispatch>),
    /// List, show, cancel, retry, delete jobs, and wait for them
    #[command(subcommand)]
    Jobs(jobs::Jobs),
    /// Show queues, pause and resume them
    Queues(queues::Queues),
    /// Say who holds a key, and free it
    #[command(subcommand)]
    Keys(keys::Keys),
    /// Print the description of the API (OpenAPI 3.1)
    Openapi,
    /// Ask a server on this machine whether it is ready: exits with 0 if it is
    Healthcheck {
        /// Where the server listens; it is asked on loopback
        #[arg(long, env = "SOLEJOB_LISTEN", default_value = "127.0.0.1:8080")]
        listen: SocketAddr,
        /// The certificate that the server was given, if it was: it is then asked over TLS
        #[arg(long, env = "SOLEJOB_TLS_CERT", value_name = "FILE")]
        tls_cert: Option<PathBuf>,
    },
    /// Run a command with a PostgreSQL of its own, named in its DATABASE_URL
    WithPostgres {
        #[command(flatten)]
        postgres: Postgres,
        /// Do not wait for the disk: much faster, and a crash of the machine may lose everything. For tests
        #[arg(long)]
        not_durable: bool,
        /// A setting of PostgreSQL, such as shared_buffers=1GB; may be given again
        #[arg(long, value_name = "NAME=VALUE", value_parser = pg_setting)]
        pg_setting: Vec<(String, String)>,
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

#[derive(clap::Args)]
struct Dev {
    /// Where to listen, on loopback
    #[arg(long, env = "SOLEJOB_LISTEN", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    #[command(flatten)]
    postgres: Postgres,
    /// Use this PostgreSQL and start none
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
    #[command(flatten)]
    limits: serve::CommonArgs,
}

/// The private PostgreSQL.
#[derive(clap::Args)]
struct Postgres {
    /// Where its data is kept [default: /var/lib/solejob for root, else ~/.local/share/solejob]
    #[arg(long, env = "SOLEJOB_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Where PostgreSQL's programs are [default: where distributions put them]
    #[arg(long, env = "PG_BIN_DIR")]
    pg_bin_dir: Option<PathBuf>,
    /// Whom PostgreSQL runs as when this is started by root, whom it refuses
    #[arg(long, env = "SOLEJOB_PG_USER", default_value = "postgres")]
    pg_user: String,
}

impl Postgres {
    fn settings(self) -> Result<embedded::Settings, embedded::Error> {
        let data_dir = match self.data_dir {
            Some(data_dir) => data_dir,
            None => {
                let variable = |name: &str| std::env::var_os(name);
                embedded::default_data_dir(variable("XDG_DATA_HOME").as_deref(), variable("HOME").as_deref())?
            }
        };
        let mut settings = embedded::Settings::new(data_dir);
        settings.bin_dir = self.pg_bin_dir;
        settings.search_path = std::env::var_os("PATH");
        settings.run_as = Some(self.pg_user);
        Ok(settings)
    }
}

/// What ends a command with a message.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Embedded(#[from] embedded::Error),
    #[error(transparent)]
    Server(#[from] server::Error),
    #[error("the database cannot be used: {0}")]
    Store(#[from] store::Error),
    #[error("metrics cannot be counted: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
    #[error("the server is not ready: {0}")]
    NotReady(String),
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Client(#[from] client::Error),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Runs the command that the arguments name. What it gives is the process's exit code: 0 done, 1 failed,
/// 2 wrong usage, 78 something of the machine is missing; `with-postgres` gives its command's; those that call a server
/// say theirs in `--help`.
pub async fn run() -> ExitCode {
    let Cli {
        command,
        log,
        log_format,
    } = match settings_file::read() {
        Ok(cli) => cli,
        Err(fault) => {
            let _no_terminal = writeln!(std::io::stderr(), "solejob: {fault}");
            return ExitCode::from(2);
        }
    };
    let format = match (log_format, &command) {
        (Some(Format::Json), _) | (None, Command::Serve(_)) => LogFormat::Json,
        (Some(Format::Text), _) | (None, _) => LogFormat::Text,
    };
    telemetry::log(format, &log);
    match execute(command).await {
        Ok(code) => code,
        Err(error) => {
            if matches!(&error, Error::Io(error) if error.kind() == std::io::ErrorKind::BrokenPipe) {
                // Whoever read the output, `head` perhaps, has seen enough.
                return ExitCode::SUCCESS;
            }
            let _no_terminal = writeln!(std::io::stderr(), "solejob: {error}");
            match error {
                Error::Embedded(_) => ExitCode::from(78),
                Error::Usage(_) | Error::Server(server::Error::Config(_) | server::Error::Tls(_)) => ExitCode::from(2),
                Error::Client(error) => ExitCode::from(remote::exit_code(&error)),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

async fn execute(command: Command) -> Result<ExitCode, Error> {
    match command {
        Command::Dev(dev) => dev.run().await?,
        Command::Serve(serve) => {
            let config = serve.config()?;
            let orders = server::Orders {
                stop: stop_on_signal(),
                reload: reload_on_signal(),
            };
            server::run(config, telemetry::metrics()?, orders).await?;
        }
        Command::Migrate { database_url } => {
            store::migrate(&database_url).await?;
            tracing::info!("the database has this version's schema");
        }
        Command::Doctor(doctor) => return doctor.run().await,
        Command::Token(token) => token.run().await?,
        Command::Work(work) => return work.run().await,
        Command::Dispatch(dispatch) => return dispatch.run().await,
        Command::Jobs(jobs) => return jobs.run().await,
        Command::Queues(queues) => return queues.run().await,
        Command::Keys(keys) => return keys.run().await,
        Command::Openapi => std::io::stdout().write_all(http::openapi::text().as_bytes())?,
        Command::Healthcheck { listen, tls_cert } => healthcheck(listen, tls_cert.is_some()).await?,
        Command::WithPostgres {
            postgres,
            not_durable,
            pg_setting,
            command,
        } => {
            let mut settings = postgres.settings()?;
            settings.durable = !not_durable;
            settings.options = pg_setting;
            let status = embedded::run_with(&settings, "solejob", &command).await?;
            let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
            return Ok(ExitCode::from(code));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn pg_setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a setting is NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Dev {
    async fn run(self) -> Result<(), Error> {
        let stop = stop_on_signal();
        if !self.listen.ip().is_loopback() {
            let text = format!(
                "dev asks for no tokens and listens on loopback only, not on {}: see `solejob serve`",
                self.listen
            );
            return Err(Error::Usage(text));
        }
        let metrics = telemetry::metrics()?;
        let Dev {
            listen,
            postgres,
            database_url,
            limits,
        } = self;
        match database_url {
            Some(url) => Ok(server::run(limits.dev(url, listen), metrics, orders(stop)).await?),
            None => {
                let settings = postgres.settings()?;
                let cluster = tokio::select! {
                    started = Cluster::start(&settings) => started?,
                    () = stop.cancelled() => return Ok(()),
                };
                let outcome = Dev::serve_on(&cluster, limits, listen, metrics, stop).await;
                // After the server, which may still have something to store.
                cluster.stop().await?;
                outcome
            }
        }
    }

    async fn serve_on(
        cluster: &Cluster,
        limits: serve::CommonArgs,
        listen: SocketAddr,
        metrics: metrics_exporter_prometheus::PrometheusHandle,
        stop: CancellationToken,
    ) -> Result<(), Error> {
        cluster.ensure_database("solejob").await?;
        let config = limits.dev(cluster.url("solejob"), listen);
        tokio::select! {
            served = server::run(config, metrics, orders(stop)) => Ok(served?),
            error = cluster.exited() => Err(error.into()),
        }
    }
}

/// Cancelled by the first SIGTERM or SIGINT. The second ends the process at once.
fn stop_on_signal() -> CancellationToken {
    use tokio::signal::unix::{SignalKind, signal};
    let stop = CancellationToken::new();
    let cancel = stop.clone();
    tokio::spawn(async move {
        let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
        else {
            tracing::error!("signals cannot be heard: stop this process with SIGKILL");
            return;
        };
        for _ in 0..2 {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if cancel.is_cancelled() {
                tracing::warn!("a second signal: leaving at once");
                std::process::exit(1);
            }
            cancel.cancel();
        }
    });
    stop
}

/// Told by each SIGHUP, which would end the process if nobody heard it.
fn reload_on_signal() -> Arc<Notify> {
    use tokio::signal::unix::{SignalKind, signal};
    let reload = Arc::new(Notify::new());
    match signal(SignalKind::hangup()) {
        Ok(mut hangup) => {
            let notify = reload.clone();
            tokio::spawn(async move {
                while hangup.recv().await.is_some() {
                    notify.notify_one();
                }
            });
        }
        Err(error) => tracing::error!(%error, "SIGHUP cannot be heard: restart the server for a new certificate"),
    }
    reload
}

/// The orders to a server that has no files to read again.
fn orders(stop: CancellationToken) -> server::Orders {
    server::Orders {
        stop,
        ..server::Orders::default()
    }
}

async fn healthcheck(listen: SocketAddr, over_tls: bool) -> Result<(), Error> {
    let address = if listen.ip().is_unspecified() {
        (Ipv4Addr::LOCALHOST, listen.port()).into()
    } else {
        listen
    };
    match client::readiness(address, over_tls).await {
        Ok(200) => Ok(()),
        Ok(status) => Err(Error::NotReady(format!("/readyz answers {status}"))),
        Err(error) => Err(Error::NotReady(error.to_string())),
    }
}
