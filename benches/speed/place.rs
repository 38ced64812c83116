//! Where it is measured: a PostgreSQL that is given, servers on it, and pgbench beside them.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool};

use crate::load::Failed;

const BASELINE: &str = include_str!("../baseline.sql");
const INSERT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/insert.sql");

/// A running server.
pub struct Server {
    process: Child,
    pub address: SocketAddr,
}

impl Server {
    pub fn start(binary: &str, database: &str, arguments: &[&str]) -> Result<Server, Failed> {
        let mut process = Command::new(binary)
            .args(["serve", "--anonymous", "--migrate", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .env("DATABASE_URL", database)
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().ok_or("the server has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let address = line
            .trim()
            .rsplit_once("http://")
            .ok_or_else(|| format!("the server said {line:?}"))?
            .1;
        Ok(Server {
            process,
            address: address.parse()?,
        })
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _gone = self.process.wait();
    }
}

pub struct Database {
    url: String,
    pool: PgPool,
    pgbench: String,
}

impl Database {
    pub async fn open(url: String, pgbench: String) -> Result<Database, Failed> {
        let pool = PgPoolOptions::new().max_connections(1).connect(&url).await?;
        Ok(Database { url, pool, pgbench })
    }

    pub async fn run(&self, statements: &str) -> Result<(), Failed> {
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// No jobs, no keys, and nothing that is still to be written from before.
    pub async fn clear(&self) -> Result<(), Failed> {
        self.run(
            "truncate jobs, job_keys, job_attempts, resource_scopes, resource_keys, resource_holds, paused_queues, \
             queue_counts; checkpoint",
        )
        .await
    }

    /// Single-row inserts in a second, one in a transaction, by this many clients.
    pub async fn inserts(&self, clients: usize, seconds: u64) -> Result<f64, Failed> {
        self.run(BASELINE).await?;
        self.run("checkpoint").await?;
        let output = tokio::process::Command::new(&self.pgbench)
            .args([
                "-n",
                "-M",
                "prepared",
                "-j",
                "2",
                "-T",
                &seconds.to_string(),
                "-c",
                &clients.to_string(),
            ])
            .args(["-f", INSERT, &self.url])
            .output()
            .await?;
        let text = String::from_utf8_lossy(&output.stdout);
        let rate = text.lines().find_map(|line| line.strip_prefix("tps = "));
        let rate = rate.and_then(|rest| rest.split(' ').next());
        let errors = String::from_utf8_lossy(&output.stderr);
        Ok(rate
            .ok_or_else(|| format!("pgbench said no number: {text}{errors}"))?
            .parse()?)
    }

    /// So many jobs that have finished, each with an open window key.
    pub async fn fill_old(&self, jobs: u64) -> Result<(), Failed> {
        self.run(&format!(
            "insert into jobs (app_id, job_id, name, queue, priority, state, payload, active_key, window_digest, \
                 max_attempts, backoff, backoff_initial_ms, backoff_factor, backoff_max_ms, backoff_jitter, \
                 retention_ms, dispatched_at, run_at, finished_at, delete_after, active_digest) \
             select a.app_id, md5('job' || n)::uuid, 'place-order', 'default', 0, 'succeeded', '{{}}', 'order:' || n, \
                 md5('window' || n)::uuid, 10, 'exponential', 1000, 2, 3600000, true, 604800000, now(), now(), now(), \
                 now() + interval '7 days', md5('active' || n)::uuid \
             from generate_series(1, {jobs}) as n, (select app_id from applications order by app_id limit 1) as a; \
             insert into job_keys (app_id, digest, dimension, name, scope, key, job_id, since, expires_at, fingerprint, \
                 release_on, linked, job_dispatched_at) \
             select app_id, window_digest, 'window', name, '', active_key, job_id, now(), now() + interval '1 day', \
                 sha256(payload::bytea), 0, false, now() from jobs; \
             analyze; checkpoint"
        ))
        .await
    }
}
