//! How fast it is, in units of one bare single-row INSERT a transaction (`baseline.sql`, `insert.sql`) by pgbench on
//! the same PostgreSQL, in alternation. Started by `scripts/bench`; it asserts answers and never times.
//!
//! Needs `DATABASE_URL` (an empty database that may be filled), `SOLEJOB_BIN` (the server's binary), `PGBENCH`.

mod cpu;
mod dispatching;
mod load;
mod overload;
mod place;
mod report;
mod waking;
mod working;

use std::time::Duration;

use clap::Parser;

use dispatching::Keys;
use load::{Failed, Sample, Span};
use place::{Database, Server};
use report::{HEAD, Report, Round, Row};
use waking::By;

#[derive(Parser)]
struct Args {
    /// Only rows whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// How often each row is measured, in alternation with its unit
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of each sample
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Jobs that wait when workers begin
    #[arg(long, default_value_t = 60_000)]
    waiting: usize,
    /// Also the row with so many finished jobs and open window keys, which takes a while to fill
    #[arg(long)]
    large: Option<u64>,
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
    #[arg(long, env = "SOLEJOB_BIN", default_value = "target/release/solejob")]
    binary: String,
    #[arg(long, env, default_value = "pgbench")]
    pgbench: String,
    /// Put the table into docs/performance.md
    #[arg(long)]
    write: bool,
    /// Given by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

/// What a row does.
#[derive(Clone, Copy)]
enum Load {
    Singles(usize, Keys),
    Batches(usize, usize),
    Refused(usize),
    Workers(usize, usize),
    /// The same behind a thousand jobs whose resource key has no room.
    WorkersBehindBlocked(usize, usize),
    /// Singles beside workers that wait in vain.
    BesideIdle(usize, usize),
    /// Two servers on one database.
    TwoServers(usize),
    /// With so many finished jobs and window keys.
    Large(usize),
}

/// What a row is measured against.
#[derive(Clone, Copy)]
enum Unit {
    /// pgbench with so many clients.
    Inserts(usize),
    Own(Load),
}

const ROWS: &[(&str, Load, Unit)] = &[
    (
        "dispatch, both keys, 256 connections",
        Load::Singles(256, Keys::Unique),
        Unit::Inserts(256),
    ),
    (
        "dispatch, both keys, 64 connections",
        Load::Singles(64, Keys::Unique),
        Unit::Inserts(64),
    ),
    (
        "dispatch, both keys, 8 connections",
        Load::Singles(8, Keys::Unique),
        Unit::Inserts(8),
    ),
    (
        "batches of 1,000, both keys, 4 connections",
        Load::Batches(4, 1_000),
        Unit::Inserts(4),
    ),
    (
        "hot active key, 256 connections",
        Load::Singles(256, Keys::HotActive),
        Unit::Inserts(64),
    ),
    (
        "hot active key against no-op",
        Load::Singles(256, Keys::HotActive),
        Unit::Own(Load::Refused(256)),
    ),
    (
        "hot window key, 256 connections",
        Load::Singles(256, Keys::HotWindow),
        Unit::Inserts(64),
    ),
    (
        "hot window key against no-op",
        Load::Singles(256, Keys::HotWindow),
        Unit::Own(Load::Refused(256)),
    ),
    (
        "half reused, 256 connections",
        Load::Singles(256, Keys::Half),
        Unit::Inserts(256),
    ),
    (
        "workers, batches of 50, 16 workers",
        Load::Workers(16, 50),
        Unit::Inserts(16),
    ),
    (
        "workers, one by one, 64 workers",
        Load::Workers(64, 1),
        Unit::Inserts(64),
    ),
    (
        "workers behind 1,000 blocked jobs, batches of 50",
        Load::WorkersBehindBlocked(16, 50),
        Unit::Own(Load::Workers(16, 50)),
    ),
    (
        "dispatch beside 10,000 waiting workers",
        Load::BesideIdle(64, 10_000),
        Unit::Own(Load::Singles(64, Keys::Unique)),
    ),
    (
        "two servers, 128 connections each",
        Load::TwoServers(128),
        Unit::Own(Load::Singles(256, Keys::Unique)),
    ),
];

struct Bench {
    database: Database,
    servers: Vec<Server>,
    span: Span,
    waiting: usize,
    large: u64,
}

impl Bench {
    async fn measure(&self, load: Load) -> Result<Sample, Failed> {
        self.database.clear().await?;
        let all: Vec<_> = self
            .servers
            .iter()
            .map(|server| (server.address, server.pid()))
            .collect();
        let (one, first) = (&all[..1], all[0]);
        match load {
            Load::Singles(connections, keys) => dispatching::singles(one, connections, keys, self.span).await,
            Load::Batches(connections, items) => dispatching::batches(first, connections, items, self.span).await,
            Load::Refused(connections) => dispatching::refused(first, connections, self.span).await,
            Load::Workers(workers, batch) => {
                working::fill(first.0, self.waiting, None, 0).await?;
                self.database.run("analyze jobs; checkpoint").await?;
                working::work(first, workers, batch, self.span).await
            }
            Load::WorkersBehindBlocked(workers, batch) => {
                self.database
                    .run("insert into resource_scopes select app_id, 'bench', 1 from applications")
                    .await?;
                working::fill(first.0, 1_000, Some("bench:1"), 9).await?;
                working::fill(first.0, self.waiting, None, 0).await?;
                self.database.run("analyze jobs; checkpoint").await?;
                working::work(first, workers, batch, self.span).await
            }
            Load::BesideIdle(connections, workers) => {
                let idle = working::idle(first.0, workers).await?;
                let sample = dispatching::singles(one, connections, Keys::Unique, self.span).await;
                drop(idle);
                sample
            }
            Load::TwoServers(connections) => dispatching::singles(&all, connections, Keys::Unique, self.span).await,
            Load::Large(connections) => {
                self.database.fill_old(self.large).await?;
                dispatching::singles(one, connections, Keys::Unique, self.span).await
            }
        }
    }

    async fn waking(&self, report: &mut Report) -> Result<(), Failed> {
        self.database.clear().await?;
        let (one, other) = (self.servers[0].address, self.servers[1].address);
        report.line("| a waiting worker gets a job | p50 ms | p99 ms | most ms |\n| --- | --- | --- | --- |");
        for by in [By::Dispatch, By::StartTime, By::Resource] {
            for (at, worker) in [("the same server", one), ("another server", other)] {
                let waits = waking::waits(by, one, worker).await?;
                let at_share = |share: usize| waits[(waits.len() * share / 100).min(waits.len() - 1)];
                let what = format!("{by:?} at {at}");
                let [p50, p99, most] = [50, 99, 100].map(at_share);
                report.line(&format!("| {what} | {p50:.1} | {p99:.1} | {most:.1} |"));
            }
        }
        report.line("");
        Ok(())
    }

    /// The same, with the average size of groups.
    async fn measure_groups(&self, load: Load) -> Result<Sample, Failed> {
        let server = self.servers[0].address;
        let before = load::groups(server).await?;
        let mut sample = self.measure(load).await?;
        let after = load::groups(server).await?;
        for ((size, before), after) in sample.groups.iter_mut().zip(before).zip(after) {
            *size = (after.0 - before.0) / (after.1 - before.1).max(1.0);
        }
        Ok(sample)
    }

    async fn round(&self, load: Load, unit: Unit) -> Result<Round, Failed> {
        let unit = match unit {
            Unit::Inserts(clients) => self.database.inserts(clients, self.span.measured.as_secs()).await?,
            Unit::Own(load) => self.measure(load).await?.per_second,
        };
        Ok(Round {
            ours: self.measure_groups(load).await?,
            unit,
        })
    }
}

/// One thread for all connections: the client must not take more of the machine than it has to.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    let args = Args::parse();
    let Some(url) = args.database_url else {
        println!("left out: start it with scripts/bench");
        return Ok(());
    };
    let start = |arguments: &[&str]| Server::start(&args.binary, &url, arguments);
    let servers = vec![start(&[])?, start(&[])?];
    let small = start(&overload::ARGUMENTS)?;
    let bench = Bench {
        database: Database::open(url.clone(), args.pgbench).await?,
        servers,
        span: Span {
            warm: Duration::from_millis(500),
            measured: Duration::from_secs(args.seconds),
        },
        waiting: args.waiting,
        large: args.large.unwrap_or(0),
    };
    let mut report = Report::default();
    if "waking".contains(&args.only) {
        bench.waking(&mut report).await?;
    }
    if "overload".contains(&args.only) {
        bench.database.clear().await?;
        report.line(overload::HEAD);
        let overload = overload::overload((small.address, small.pid()), bench.span).await?;
        overload.lines(bench.span).iter().for_each(|line| report.line(line));
        report.line("");
    }
    drop(small);
    let large = (
        "dispatch into large tables",
        Load::Large(256),
        Unit::Own(Load::Singles(256, Keys::Unique)),
    );
    report.line(HEAD);
    let rows = ROWS.iter().chain(args.large.is_some().then_some(&large));
    for (what, load, unit) in rows.filter(|(what, ..)| what.contains(&args.only)) {
        let against = match unit {
            Unit::Inserts(clients) => format!("pgbench, {clients} clients"),
            Unit::Own(_) => "ourselves".to_owned(),
        };
        let mut rounds = Vec::new();
        for _ in 0..args.rounds {
            rounds.push(bench.round(*load, *unit).await?);
        }
        report.line(&Row { what, against, rounds }.line());
    }
    if args.write {
        report.write()?;
    }
    Ok(())
}
