//! Servers and workers that die under load: no job is lost, none is stuck, none is done by a stale token.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::Rng;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{App, Client, Leased, Options, eventually_within, leased};

const JOBS: usize = 300;
const WORKERS: usize = 24;
const KILLS: usize = 4;

/// What the workers saw, by job and attempt. A later attempt of the same number may follow a release alone.
#[derive(Default)]
struct Seen {
    /// Tokens with which an end was accepted.
    ended: HashMap<(String, i64), Vec<String>>,
    /// Zombies that were let in late.
    late: Vec<String>,
    succeeded: HashMap<String, usize>,
    zombies: usize,
    refused: usize,
}

/// Works until told to stop. Now and then it dies with its jobs, or sleeps past its lease and finishes then.
async fn work(clients: [Arc<Mutex<Client>>; 2], seen: Arc<Mutex<Seen>>, over: Arc<AtomicBool>) {
    while !over.load(Ordering::Relaxed) {
        let client = clients[rand::rng().random_range(0..2)]
            .lock()
            .expect("no panic")
            .clone();
        let wish = json!({"max_jobs": 3, "lease": "1s", "wait": "300ms"});
        let Some(answer) = client.try_post("/v1/worker/reserve", &wish).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        if answer.status != 200 {
            continue;
        }
        let jobs = leased(&answer);
        let fate: u32 = rand::rng().random_range(0..10);
        if fate == 0 {
            // Killed: nobody hears of it again.
            continue;
        }
        let zombie = fate == 1 && !jobs.is_empty();
        if zombie {
            tokio::time::sleep(Duration::from_millis(1_400)).await;
        }
        for job in jobs {
            finish(&client, &job, zombie, &seen).await;
        }
    }
}

async fn finish(client: &Client, job: &Leased, zombie: bool, seen: &Mutex<Seen>) {
    let call = if zombie || rand::rng().random_bool(0.8) {
        "succeed"
    } else {
        "fail"
    };
    let path = format!("/v1/worker/{}/{call}", job.id);
    let mut body = json!({"lease_token": job.token});
    if call == "fail" {
        body["retry_in"] = json!("0s");
    }
    let Some(answer) = client.try_post(&path, &body).await else {
        return;
    };
    let mut seen = seen.lock().expect("no panic");
    seen.zombies += usize::from(zombie);
    match answer.status {
        200 => {
            if zombie {
                seen.late.push(job.id.clone());
            }
            let ended = seen.ended.entry((job.id.clone(), job.attempt)).or_default();
            ended.push(job.token.clone());
            if call == "succeed" {
                *seen.succeeded.entry(job.id.clone()).or_default() += 1;
            }
        }
        409 => seen.refused += 1,
        other => panic!("{call}: {other}: {}", answer.text),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_servers_and_workers_lose_no_job_and_finish_none_twice() {
    let mut app = App::with(Options::default().servers(2)).await;
    let item = |number: usize| {
        let keys = json!({"active_key": format!("k-{number}")});
        json!({"name": "n", "payload": number, "uniqueness": keys,
            "retry": {"max_attempts": 1000, "initial": "0s", "jitter": false}})
    };
    let jobs: Vec<Value> = (0..JOBS).map(item).collect();
    app.post("/v1/jobs/batch", &json!({"jobs": jobs}), 200).await;

    let clients = [0, 1].map(|number| Arc::new(Mutex::new(app.client(number).clone())));
    let (seen, over) = (Arc::new(Mutex::new(Seen::default())), Arc::new(AtomicBool::new(false)));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(work(clients.clone(), seen.clone(), over.clone()));
    }
    for kill in 0..KILLS {
        tokio::time::sleep(Duration::from_millis(300)).await;
        app.replace_server(kill % 2).await;
        *clients[kill % 2].lock().expect("no panic") = app.client(kill % 2).clone();
    }
    eventually_within(Duration::from_secs(60), "every job to succeed", async || {
        let left: i64 = sqlx::query_scalar("select count(*) from jobs where state <> 'succeeded'")
            .fetch_one(app.sql())
            .await
            .expect("a count");
        if left == 0 {
            Ok(())
        } else {
            Err(format!("{left} are not"))
        }
    })
    .await;
    over.store(true, Ordering::Relaxed);
    while let Some(worker) = workers.join_next().await {
        worker.expect("it does not panic");
    }

    let seen = std::mem::take(&mut *seen.lock().expect("no panic"));
    assert!(
        seen.zombies > 0 && seen.refused > 0,
        "{} zombies, {} refused",
        seen.zombies,
        seen.refused
    );
    assert_eq!(seen.late, Vec::<String>::new(), "a token was accepted after its lease");
    for ((job, attempt), tokens) in &seen.ended {
        assert_eq!(tokens.len(), 1, "attempt {attempt} of {job} was ended by {tokens:?}");
    }
    assert!(
        seen.succeeded.values().all(|times| *times == 1),
        "a job succeeded twice"
    );
    // Attempts as the jobs say them: one that succeeded, the last; all others have failed, each with its error.
    let wrong: Vec<String> = sqlx::query_scalar(
        "select format('%s attempt %s of %s by %s', a.job_id, a.attempt, j.attempt, a.ended_by) from jobs j
         join lateral (
             select job_id, attempt, ended_by from job_attempts x
                 where x.app_id = j.app_id and x.job_id = j.job_id and x.ended_by <> 'release'
             union all select j.job_id, j.attempt, j.ended_by
         ) a on true
         where (a.ended_by = 'succeed') <> (a.attempt = j.attempt)",
    )
    .fetch_all(app.sql())
    .await
    .unwrap();
    assert_eq!(wrong, Vec::<String>::new());
    let (jobs, keys): (i64, i64) = sqlx::query_as(
        "select (select count(*) from jobs), (select count(*) from job_keys where dimension = 'active')",
    )
    .fetch_one(app.sql())
    .await
    .unwrap();
    assert_eq!(
        (jobs, keys),
        (JOBS as i64, 0),
        "jobs, and active keys that are still held"
    );
    println!(
        "{} ends, {} zombies, {} refused",
        seen.ended.len(),
        seen.zombies,
        seen.refused
    );
    drop(seen);
    app.finish().await;
}
