//! What workers get through: reserve and finish of jobs that do nothing, next to what the same PostgreSQL does with
//! single-row inserts of as many clients. Started by `scripts/bench-workers`; it asserts nothing about time.
//!
//! Needs `DATABASE_URL` (an empty database that may be filled), `SOLEJOB_URL` (a server on it) and `pgbench`.

use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

const WAITING: usize = 20_000;
const BLOCKED: usize = 1_000;
const LONGEST: Duration = Duration::from_secs(60);

type Failed = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone)]
struct Server {
    http: reqwest::Client,
    base: String,
}

impl Server {
    async fn post(&self, path: &str, body: Value) -> Result<Value, Failed> {
        let request = self.http.post(format!("{}{path}", self.base));
        let request = request
            .header("content-type", "application/json")
            .body(body.to_string());
        let answer = request.send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        if !status.is_success() {
            return Err(format!("{path}: {status}: {text}").into());
        }
        Ok(serde_json::from_str(&text)?)
    }

    async fn fill(&self, queue: &str, count: usize, resource: Option<&str>, priority: i32) -> Result<(), Failed> {
        for _ in (0..count).step_by(1_000) {
            let job = json!({"name": "no-op", "queue": queue, "priority": priority, "resource_keys": resource.map(|key| [key])});
            self.post("/v1/jobs/batch", json!({"jobs": vec![job; count.min(1_000)]}))
                .await?;
        }
        Ok(())
    }

    /// Jobs that were reserved and finished in a second.
    async fn rate(&self, queue: &str, workers: usize, batch: usize, jobs: usize) -> Result<f64, Failed> {
        let done = Arc::new(AtomicUsize::new(0));
        let began = Instant::now();
        let mut running = JoinSet::new();
        for _ in 0..workers {
            let (server, done, queue) = (self.clone(), done.clone(), queue.to_owned());
            running.spawn(async move {
                while done.load(Ordering::Relaxed) < jobs && began.elapsed() < LONGEST {
                    let wish = json!({"queues": [queue], "max_jobs": batch, "lease": "5m"});
                    let reserved = server.post("/v1/worker/reserve", wish).await?;
                    let reserved = reserved["jobs"].as_array().cloned().unwrap_or_default();
                    if reserved.is_empty() {
                        break;
                    }
                    done.fetch_add(reserved.len(), Ordering::Relaxed);
                    if batch == 1 {
                        let path = format!("/v1/worker/{}/succeed", reserved[0]["job_id"].as_str().unwrap_or_default());
                        server.post(&path, json!({"lease_token": reserved[0]["lease"]["token"]})).await?;
                    } else {
                        let end = |job: &Value| {
                            json!({"job_id": job["job_id"], "lease_token": job["lease"]["token"], "outcome": "succeed"})
                        };
                        let ends: Vec<Value> = reserved.iter().map(end).collect();
                        server.post("/v1/worker/finish", json!({"jobs": ends})).await?;
                    }
                }
                Ok::<(), Failed>(())
            });
        }
        while let Some(worker) = running.join_next().await {
            worker??;
        }
        Ok(done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64())
    }
}

/// Transactions in a second of pgbench that insert one row each.
fn inserts(database: &str, clients: usize) -> Result<f64, Failed> {
    let script = std::env::temp_dir().join(format!("solejob-bench-{}.sql", std::process::id()));
    std::fs::File::create(&script)?.write_all(b"insert into bench_insert (payload) values ('{}');\n")?;
    let output = Command::new(std::env::var_os("PGBENCH").unwrap_or_else(|| "pgbench".into()))
        .args([
            "-n",
            "-M",
            "prepared",
            "-T",
            "5",
            "-j",
            "2",
            "-c",
            &clients.to_string(),
            "-f",
        ])
        .arg(&script)
        .arg(database)
        .output()?;
    std::fs::remove_file(&script)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let tps = text.lines().find_map(|line| line.strip_prefix("tps = "));
    let tps = tps.and_then(|rest| rest.split(' ').next()).ok_or_else(|| {
        format!(
            "pgbench said no number: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        )
    })?;
    Ok(tps.parse()?)
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let given = |name| std::env::var_os(name).and_then(|value| value.into_string().ok());
    let Some((database, base)) = given("DATABASE_URL").zip(given("SOLEJOB_URL")) else {
        println!("left out: start it with scripts/bench-workers");
        return Ok(());
    };
    let server = Server {
        http: reqwest::Client::builder().no_proxy().build()?,
        base,
    };
    println!("{:>44} {:>8} {:>8} {:>6}", "", "jobs/s", "insert/s", "ratio");
    for (what, workers, batch, jobs) in [
        ("batches of 50, 16 workers", 16, 50, WAITING),
        ("one by one, 64 workers", 64, 1, 10_000),
    ] {
        let insert = inserts(&database, workers)?;
        for (with, blocked) in [("", 0), (", 1,000 blocked in front", BLOCKED)] {
            let queue = format!("q-{workers}-{blocked}");
            if blocked > 0 {
                server.fill(&queue, blocked, Some("bench:1"), 9).await?;
            }
            server.fill(&queue, WAITING, None, 0).await?;
            let rate = server.rate(&queue, workers, batch, jobs).await?;
            println!(
                "{:>44} {rate:>8.0} {insert:>8.0} {:>6.2}",
                format!("{what}{with}"),
                rate / insert
            );
        }
    }
    Ok(())
}
