//! Loads of workers whose jobs do nothing.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde::Deserialize;
use serde_json::json;
use tokio::task::JoinSet;

use crate::load::{Connection, Failed, Sample, Span, Tally, measure};

#[derive(Deserialize)]
struct Reservation {
    jobs: Vec<Leased>,
}

#[derive(Deserialize)]
struct Leased {
    job_id: String,
    lease: Lease,
}

#[derive(Deserialize)]
struct Lease {
    token: String,
}

#[derive(Deserialize)]
struct Finished {
    results: Vec<End>,
}

#[derive(Deserialize)]
struct End {
    state: Option<String>,
}

#[derive(Deserialize)]
struct Job {
    state: String,
}

/// Jobs that wait in the default queue, all alike.
pub async fn fill(address: SocketAddr, jobs: usize, resource: Option<&str>, priority: i16) -> Result<(), Failed> {
    let mut connection = Connection::open(address).await?;
    let job = json!({"name": "no-op", "priority": priority, "resource_keys": resource.map(|key| [key])});
    let mut left = jobs;
    while left > 0 {
        let now = left.min(1_000);
        let body = json!({"jobs": vec![&job; now]}).to_string();
        connection.post("/v1/jobs/batch", body, 200).await?;
        left -= now;
    }
    Ok(())
}

/// Workers that reserve and finish, this many jobs at a time; counted in jobs.
pub async fn work(
    (address, pid): (SocketAddr, u32),
    workers: usize,
    batch: usize,
    span: Span,
) -> Result<Sample, Failed> {
    let tally = Arc::new(Tally::default());
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let mut running = Vec::new();
    for worker in 0..workers {
        let (mut connection, tally, seen) = (Connection::open(address).await?, Arc::clone(&tally), Arc::clone(&seen));
        running.push(async move {
            let wish = json!({"queues": ["default"], "worker": format!("worker-{worker}"), "max_jobs": batch, "lease": "5m"});
            let wish = wish.to_string();
            while !tally.over() {
                let began = Instant::now();
                let answer = connection.post("/v1/worker/reserve", wish.clone(), 200).await?;
                let Reservation { jobs } = serde_json::from_slice(&answer)?;
                if jobs.is_empty() {
                    return Err("no jobs are left: fill in more for a sample of this length".into());
                }
                for job in &jobs {
                    if !seen.lock().expect("no holder panics").insert(job.job_id.clone()) {
                        return Err(format!("{} was given out twice", job.job_id).into());
                    }
                }
                if batch == 1 {
                    let path = format!("/v1/worker/{}/succeed", jobs[0].job_id);
                    let end = json!({"lease_token": jobs[0].lease.token}).to_string();
                    let job: Job = serde_json::from_slice(&connection.post(&path, end, 200).await?)?;
                    if job.state != "succeeded" {
                        return Err(format!("a job is {} after its end", job.state).into());
                    }
                } else {
                    let end = |job: &Leased| {
                        json!({"job_id": job.job_id, "lease_token": job.lease.token, "outcome": "succeed"})
                    };
                    let ends: Vec<_> = jobs.iter().map(end).collect();
                    let answer = connection.post("/v1/worker/finish", json!({"jobs": ends}).to_string(), 200).await?;
                    let Finished { results } = serde_json::from_slice(&answer)?;
                    let ended = results.iter().filter(|end| end.state.as_deref() == Some("succeeded")).count();
                    if ended != jobs.len() {
                        return Err(format!("{ended} of {} jobs were finished", jobs.len()).into());
                    }
                }
                tally.note(began, jobs.len());
            }
            Ok(())
        });
    }
    measure(span, &[pid], tally, running).await
}

/// Workers that wait in vain, each on a connection of its own, for as long as this is kept.
pub async fn idle(address: SocketAddr, workers: usize) -> Result<JoinSet<Result<(), Failed>>, Failed> {
    let mut waiting = JoinSet::new();
    for _ in 0..workers {
        let mut connection = Connection::open(address).await?;
        waiting.spawn(async move {
            loop {
                connection
                    .post(
                        "/v1/worker/reserve",
                        r#"{"queues":["nothing-here"],"wait":"60s"}"#.into(),
                        200,
                    )
                    .await?;
            }
        });
    }
    Ok(waiting)
}
