//! How soon a worker that waits gets a job.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::load::{Connection, Failed};

/// So many jobs, one after another.
const JOBS: usize = 100;

/// The worker stands in line by then.
const SETTLE: Duration = Duration::from_millis(30);

/// What makes a job ready.
#[derive(Clone, Copy, Debug)]
pub enum By {
    /// Its dispatch; counted from the answer that says so.
    Dispatch,
    /// Its start time; counted from then by how late the worker has it.
    StartTime,
    /// The end of the job that held its resource key.
    Resource,
}

/// Milliseconds, sorted: from what makes a job ready, at one server, to the worker's answer, from another or the same.
pub async fn waits(by: By, dispatcher: SocketAddr, worker: SocketAddr) -> Result<Vec<f64>, Failed> {
    let mut posts = Connection::open(dispatcher).await?;
    let mut waits = Vec::new();
    for number in 0..JOBS {
        // A queue of its own: a job of an earlier round whose lease is over must not come in between.
        let queue = format!("waking-{by:?}-{worker}-{number}").replace(':', "-");
        let reserve = json!({"queues": [queue], "wait": "20s", "lease": "1h"}).to_string();
        let mut holder = None;
        if let By::Resource = by {
            // The first job holds the key, and the second is found to be blocked.
            for _ in 0..2 {
                let job = json!({"name": "wake", "queue": queue, "resource_keys": [format!("wake:{queue}")]});
                posts.post("/v1/jobs", job.to_string(), 201).await?;
            }
            let now = json!({"queues": [queue], "lease": "1h"}).to_string();
            let first: Value = serde_json::from_slice(&posts.post("/v1/worker/reserve", now.clone(), 200).await?)?;
            let second: Value = serde_json::from_slice(&posts.post("/v1/worker/reserve", now, 200).await?)?;
            if second["jobs"] != json!([]) {
                return Err("a resource key was held twice".into());
            }
            holder = Some(first["jobs"][0].clone());
        }
        let waiting = tokio::spawn(async move {
            let answer = Connection::open(worker)
                .await?
                .post("/v1/worker/reserve", reserve, 200)
                .await?;
            let answered = Instant::now();
            let jobs: Value = serde_json::from_slice(&answer)?;
            match jobs["jobs"].as_array().map(Vec::len) {
                Some(1) => Ok::<Instant, Failed>(answered),
                _ => Err(format!("no job came: {jobs}").into()),
            }
        });
        tokio::time::sleep(SETTLE).await;
        let ready = match (by, holder) {
            (By::Resource, Some(job)) => {
                let path = format!("/v1/worker/{}/succeed", job["job_id"].as_str().unwrap_or_default());
                let end = json!({"lease_token": job["lease"]["token"]});
                posts.post(&path, end.to_string(), 200).await?;
                Instant::now()
            }
            (By::StartTime, _) => {
                const DELAY: Duration = Duration::from_millis(200);
                let before = Instant::now();
                let job = json!({"name": "wake", "queue": queue, "delay": "200ms"});
                posts.post("/v1/jobs", job.to_string(), 201).await?;
                // It was stored between the two: the wait is told too long rather than too short.
                before + DELAY
            }
            _ => {
                posts
                    .post("/v1/jobs", json!({"name": "wake", "queue": queue}).to_string(), 201)
                    .await?;
                Instant::now()
            }
        };
        let answered = waiting.await??;
        // A worker may have its answer before who dispatched has theirs.
        waits.push(answered.saturating_duration_since(ready).as_secs_f64() * 1_000.0);
    }
    waits.sort_by(f64::total_cmp);
    Ok(waits)
}
