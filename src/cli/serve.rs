//! `solejob serve`, and the settings that it shares with `dev`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::cli::{Error, job_types};
use crate::config::{Access, Config, JobTypes, Secret, Tls};
use crate::dispatch;
use crate::duration::{self, Millis};
use crate::http;
use crate::store;
use crate::work;

#[derive(clap::Args)]
pub(super) struct Serve {
    /// A TOML file of settings: these options, with `_` for `-`. Flags and variables win over it
    #[arg(long = "config", env = "SOLEJOB_CONFIG", value_name = "FILE")]
    config_file: Option<PathBuf>,
    /// Where to listen
    #[arg(long, env = "SOLEJOB_LISTEN", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// PostgreSQL to use, such as postgres://user:password@host/database
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: String,
    /// Bring the database to this version's schema first
    #[arg(long, env = "SOLEJOB_MIGRATE", action = clap::ArgAction::SetTrue, value_parser = clap::builder::BoolishValueParser::new())]
    migrate: bool,
    /// Let everybody in, without tokens; refused unless the server listens on loopback
    #[arg(long, env = "SOLEJOB_ANONYMOUS", action = clap::ArgAction::SetTrue, value_parser = clap::builder::BoolishValueParser::new())]
    anonymous: bool,
    /// A token that exists from the start, with all rights for application `default`, environment `prod`
    #[arg(long, env = "SOLEJOB_BOOTSTRAP_TOKEN", hide_env_values = true)]
    bootstrap_token: Option<String>,
    /// Speak TLS: a PEM file with the server's certificate, and behind it those that lead to the authority
    #[arg(long, env = "SOLEJOB_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, as PEM and not encrypted. SIGHUP reads both files again
    #[arg(long, env = "SOLEJOB_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    #[command(flatten)]
    limits: CommonArgs,
}

/// What `serve` and `dev` have in common: what is declared at the start, and limits, each with its default and unit.
#[derive(clap::Args)]
pub(super) struct CommonArgs {
    /// A TOML file of job types to declare at the start, in place of what is stored for their names
    #[arg(long, env = "SOLEJOB_JOB_TYPES", value_name = "FILE", value_parser = job_types::read)]
    job_types: Option<JobTypes>,
    /// Bytes of a payload at most
    #[arg(long, env = "SOLEJOB_PAYLOAD_BYTES", default_value_t = http::Limits::default().payload_bytes, value_parser = within(1_024, 64 << 20))]
    payload_bytes: usize,
    /// Dispatches in a batch at most
    #[arg(long, env = "SOLEJOB_BATCH_ITEMS", default_value_t = http::Limits::default().batch_items, value_parser = within(1, 10_000))]
    batch_items: usize,
    /// Bytes of a batch at most
    #[arg(long, env = "SOLEJOB_BATCH_BYTES", default_value_t = http::Limits::default().batch_bytes, value_parser = within(1_024, 256 << 20))]
    batch_bytes: usize,
    /// Transactions of dispatches at once
    #[arg(long, env = "SOLEJOB_GROUPS_IN_FLIGHT", default_value_t = dispatch::Limits::default().groups_in_flight, value_parser = clap::value_parser!(u32).range(1..=64))]
    groups_in_flight: u32,
    /// Dispatches in a transaction at most, unless one batch has more
    #[arg(long, env = "SOLEJOB_GROUP_ITEMS", default_value_t = dispatch::Limits::default().group_items, value_parser = within(1, 10_000))]
    group_items: usize,
    /// Singles and batches that may wait; one more is answered `overloaded`
    #[arg(long, env = "SOLEJOB_QUEUE_UNITS", default_value_t = dispatch::Limits::default().queue_units, value_parser = within(1, 1 << 20))]
    queue_units: usize,
    /// Bytes of dispatches that may wait; more is answered `overloaded`
    #[arg(long, env = "SOLEJOB_QUEUE_BYTES", default_value_t = dispatch::Limits::default().queue_bytes, value_parser = within(1 << 20, 64 << 30))]
    queue_bytes: usize,
    /// Transactions at once that give jobs to workers, and as many that end them
    #[arg(long, env = "SOLEJOB_WORK_IN_FLIGHT", default_value_t = work::Limits::default().in_flight, value_parser = clap::value_parser!(u32).range(1..=64))]
    work_in_flight: u32,
    /// Workers that may wait for jobs; one more is answered `overloaded`
    #[arg(long, env = "SOLEJOB_WORKERS_WAITING", default_value_t = work::Limits::default().waiting, value_parser = within(1, 1 << 20))]
    workers_waiting: usize,
    /// Database connections beside those of the dispatches
    #[arg(long, env = "SOLEJOB_CONNECTIONS", default_value_t = store::Limits::default().connections, value_parser = clap::value_parser!(u32).range(2..=1_000))]
    connections: u32,
    /// Give /metrics on this address too, over plain HTTP and without a token
    #[arg(long, env = "SOLEJOB_METRICS_LISTEN", value_name = "ADDRESS")]
    metrics_listen: Option<SocketAddr>,
    /// Connections of clients at once; one more is answered `overloaded`
    #[arg(long, env = "SOLEJOB_HTTP_CONNECTIONS", default_value_t = http::Limits::default().connections, value_parser = within(1, 1 << 20))]
    http_connections: usize,
    /// How long a client may keep silent in the middle of a request or an answer, or between two requests
    #[arg(long, env = "SOLEJOB_CLIENT_PATIENCE", default_value = "30s", value_parser = duration)]
    client_patience: Duration,
    /// How long to go on after the signal to stop, while /readyz says that it will: for balancers that look there
    #[arg(long, env = "SOLEJOB_DRAIN_DELAY", default_value = "0s", value_parser = duration)]
    drain_delay: Duration,
    /// How long requests have to finish when the server stops
    #[arg(long, env = "SOLEJOB_SHUTDOWN_GRACE", default_value = "25s", value_parser = duration)]
    shutdown_grace: Duration,
    /// How long to wait at the start for a database that does not answer
    #[arg(long, env = "SOLEJOB_DATABASE_WAIT", default_value = "30s", value_parser = duration)]
    database_wait: Duration,
}

fn within(least: u64, most: u64) -> impl clap::builder::TypedValueParser<Value = usize> {
    use clap::builder::TypedValueParser as _;
    clap::value_parser!(u64).range(least..=most).map(|value| value as usize)
}

fn duration(text: &str) -> Result<Duration, duration::ParseError> {
    duration::parse(text).map(|Millis(millis)| Duration::from_millis(millis))
}

impl Serve {
    pub(super) fn config(self) -> Result<Config, Error> {
        let Serve {
            // It has been read with the flags.
            config_file: _,
            listen,
            database_url,
            migrate,
            anonymous,
            bootstrap_token,
            tls_cert,
            tls_key,
            limits,
        } = self;
        let access = match (anonymous, bootstrap_token) {
            (true, Some(_)) => {
                return Err(Error::Usage("give --anonymous or a bootstrap token, not both".into()));
            }
            (true, None) => anybody(),
            (false, bootstrap) => Access::Tokens {
                bootstrap: bootstrap.map(Secret),
            },
        };
        // Of flags, clap asks for both.
        if tls_cert.is_some() != tls_key.is_some() {
            return Err(Error::Usage("give both tls_cert and tls_key, or neither".into()));
        }
        let tls = tls_cert.zip(tls_key).map(|(certificate, key)| Tls { certificate, key });
        Ok(Config {
            tls,
            ..limits.config(database_url, listen, access, migrate)
        })
    }
}

fn anybody() -> Access {
    Access::Anonymous {
        application: "default".into(),
        environment: "dev".into(),
    }
}

impl CommonArgs {
    /// The settings of `dev`: open, and migrated first.
    pub(super) fn dev(self, database_url: String, listen: SocketAddr) -> Config {
        self.config(database_url, listen, anybody(), true)
    }

    fn config(self, database_url: String, listen: SocketAddr, access: Access, migrate: bool) -> Config {
        let CommonArgs {
            job_types,
            payload_bytes,
            batch_items,
            batch_bytes,
            groups_in_flight,
            group_items,
            queue_units,
            queue_bytes,
            work_in_flight,
            workers_waiting,
            connections,
            metrics_listen,
            http_connections,
            client_patience,
            drain_delay,
            shutdown_grace,
            database_wait,
        } = self;
        Config {
            database_url,
            listen,
            metrics_listen,
            access,
            tls: None,
            migrate,
            job_types,
            http: http::Limits {
                payload_bytes,
                batch_items,
                batch_bytes,
                patience: client_patience,
                connections: http_connections,
            },
            dispatch: dispatch::Limits {
                groups_in_flight,
                group_items,
                queue_units,
                queue_bytes,
                ..dispatch::Limits::default()
            },
            work: work::Limits {
                in_flight: work_in_flight,
                waiting: workers_waiting,
            },
            store: store::Limits {
                groups_in_flight,
                work_in_flight,
                connections,
                ..store::Limits::default()
            },
            drain_delay,
            shutdown_grace,
            database_wait,
        }
    }
}
