//! Ten times the clients that it has room for, who come again as soon as they are told to: what still gets done
//! meanwhile, how long a worker's heartbeat takes, and how soon everything is as before.
//!
//! Clients that do not wait at all would be measured instead: on a machine that they share with the server, each refusal
//! costs about as much at their end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hyper::Method;

use crate::dispatching::{self, Keys};
use crate::load::{Connection, Failed, Sample, Span, Tally, measure};

/// The queue of the server that is measured: room for the clients of the peak, and not for ten times as many.
pub const ARGUMENTS: [&str; 2] = ["--queue-units", "64"];

const CLIENTS: usize = 64;
const TIMES: usize = 10;

/// What `Retry-After` says, and how far clients spread around it.
const PAUSE: Duration = Duration::from_secs(1);
const SPREAD: std::ops::Range<f64> = 0.5..1.5;

/// How often the worker beats.
const BEAT: Duration = Duration::from_millis(20);

/// An answer that takes no longer is one of a server that has nothing to do.
const IDLE: Duration = Duration::from_millis(50);

pub struct Overload {
    pub peak: Sample,
    /// Only what was stored counts.
    pub good: Sample,
    pub refused: u64,
    pub beats: Vec<Duration>,
    pub recovery: Duration,
}

pub const HEAD: &str = "| clients | stored a second | of the peak | p50 / p99 ms | refused a second | heartbeat p50 / p99 ms | as before after |\n\
    | --- | --- | --- | --- | --- | --- | --- |";

impl Overload {
    pub fn lines(&self, span: Span) -> [String; 2] {
        let beat = |share: usize| {
            let at = self.beats.len() * share / 100;
            let beat = self.beats.get(at.min(self.beats.len().saturating_sub(1)));
            beat.map_or(f64::NAN, |beat| beat.as_secs_f64() * 1_000.0)
        };
        let Overload { peak, good, .. } = self;
        let all = CLIENTS * TIMES;
        [
            format!(
                "| {CLIENTS} | {:.0} | 1 | {:.1} / {:.1} | 0 | | |",
                peak.per_second, peak.p50, peak.p99
            ),
            format!(
                "| {all} | {:.0} | **{:.2}** | {:.1} / {:.1} | {:.0} | {:.1} / {:.1} | {:.1} s |",
                good.per_second,
                good.per_second / peak.per_second,
                good.p50,
                good.p99,
                self.refused as f64 / (span.measured + span.warm).as_secs_f64(),
                beat(50),
                beat(99),
                self.recovery.as_secs_f64(),
            ),
        ]
    }
}

pub async fn overload(server: (SocketAddr, u32), span: Span) -> Result<Overload, Failed> {
    let peak = dispatching::singles(&[server], CLIENTS, Keys::Unique, span).await?;
    let (address, pid) = server;
    let mut worker = Worker::open(address).await?;
    let tally = Arc::new(Tally::default());
    let refused = Arc::new(AtomicU64::new(0));
    let mut callers = Vec::new();
    for _ in 0..CLIENTS * TIMES {
        let (mut connection, tally, refused) = (
            Connection::open(address).await?,
            Arc::clone(&tally),
            Arc::clone(&refused),
        );
        callers.push(async move {
            while !tally.over() {
                let began = Instant::now();
                let (status, answer) = connection
                    .request(Method::POST, "/v1/jobs", dispatching::unique())
                    .await?;
                match status.as_u16() {
                    201 => tally.note(began, 1),
                    503 if answer.windows(10).any(|part| part == b"overloaded") => {
                        refused.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(PAUSE.mul_f64(rand::random_range(SPREAD))).await;
                    }
                    _ => return Err(format!("{status}: {}", String::from_utf8_lossy(&answer)).into()),
                }
            }
            Ok(())
        });
    }
    let pids = [pid];
    let (good, beats) = tokio::join!(measure(span, &pids, Arc::clone(&tally), callers), async {
        let mut beats = Vec::new();
        while !tally.over() {
            beats.push(worker.beat().await?);
            tokio::time::sleep(BEAT).await;
        }
        Ok::<_, Failed>(beats)
    });
    let (good, mut beats) = (good?, beats?);
    beats.sort_unstable();
    let over = Instant::now();
    let mut connection = Connection::open(address).await?;
    loop {
        let began = Instant::now();
        let (status, _) = connection
            .request(Method::POST, "/v1/jobs", dispatching::unique())
            .await?;
        if status.as_u16() == 201 && began.elapsed() < IDLE {
            break;
        }
    }
    Ok(Overload {
        peak,
        good,
        refused: refused.load(Ordering::Relaxed),
        beats,
        recovery: over.elapsed(),
    })
}

/// A worker that has a job.
struct Worker {
    connection: Connection,
    path: String,
    body: String,
}

impl Worker {
    async fn open(address: SocketAddr) -> Result<Worker, Failed> {
        let mut connection = Connection::open(address).await?;
        let wish = r#"{"max_jobs":1,"lease":"10m"}"#;
        let reserved = connection.post("/v1/worker/reserve", wish.into(), 200).await?;
        let reserved: serde_json::Value = serde_json::from_slice(&reserved)?;
        let job = &reserved["jobs"][0];
        let id = job["job_id"].as_str().ok_or("no job to hold")?;
        Ok(Worker {
            connection,
            path: format!("/v1/worker/{id}/heartbeat"),
            body: serde_json::json!({"lease_token": job["lease"]["token"]}).to_string(),
        })
    }

    async fn beat(&mut self) -> Result<Duration, Failed> {
        let began = Instant::now();
        self.connection.post(&self.path, self.body.clone(), 200).await?;
        Ok(began.elapsed())
    }
}
