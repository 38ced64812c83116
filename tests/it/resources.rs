//! Resource keys under load: the capacity is never exceeded, and nobody starves for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{App, Options, eventually};

const WORKERS: usize = 32;
const JOBS: usize = 400;
const KEYS: usize = 4;

async fn batch(app: &App, count: usize, item: impl Fn(usize) -> Value) -> Vec<String> {
    let mut ids = Vec::new();
    for from in (0..count).step_by(500) {
        let items: Vec<Value> = (from..count.min(from + 500)).map(&item).collect();
        let answer = app.post("/v1/jobs/batch", &json!({"jobs": items}), 200).await;
        let results = answer.at("/results").as_array().expect("results");
        ids.extend(
            results
                .iter()
                .map(|result| result["receipt"]["job_id"].as_str().expect("an id").to_owned()),
        );
    }
    ids
}

/// The most holders of one resource key at one instant, by what the database holds.
async fn most_holders(app: &App, scope: &str) -> i64 {
    let sql = "select coalesce(max(jobs), 0) from (
        select count(*) as jobs from resource_holds where resource like $1 || ':%' group by resource) as held";
    sqlx::query_scalar(sql)
        .bind(scope)
        .fetch_one(app.sql())
        .await
        .expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_capacity_is_never_exceeded() {
    let app = App::with(Options::default().servers(2)).await;
    let set = |scope: &str, capacity: u32| (format!("/v1/resource-scopes/{scope}"), json!({"capacity": capacity}));
    let (path, body) = set("three", 3);
    app.put(&path, &body, 201).await;
    // Every job wants one key of a scope of capacity 1 and one of capacity 3, in either order.
    batch(&app, JOBS, |number| {
        let (one, three) = (
            format!("one:{}", number % (2 * KEYS)),
            format!("three:{}", number % KEYS),
        );
        let keys = if number % 3 == 0 {
            json!([three, one])
        } else {
            json!([one, three])
        };
        json!({"name": "n", "priority": number % 5, "resource_keys": keys})
    })
    .await;
    let done = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        let (client, done) = (app.client(worker % 2).clone(), done.clone());
        workers.spawn(async move {
            let mut intervals = Vec::new();
            while done.load(Ordering::Relaxed) < JOBS {
                assert!(
                    began.elapsed() < Duration::from_secs(60),
                    "the jobs are not done in a minute"
                );
                for job in client.reserve(json!({"max_jobs": 2, "wait": "500ms"})).await {
                    // From the answer to the call that ends it, the lease was there for certain.
                    let from = Instant::now();
                    client.work(&job, "start", json!({})).await;
                    let until = Instant::now();
                    let ended = client.work(&job, "succeed", json!({})).await;
                    assert_eq!(ended.status, 200, "{}", ended.text);
                    done.fetch_add(1, Ordering::Relaxed);
                    let keys = job.job["resource_keys"].as_array().expect("keys").clone();
                    intervals.extend(
                        keys.into_iter()
                            .map(|key| (key.as_str().expect("a key").to_owned(), from, until)),
                    );
                }
            }
            intervals
        });
    }
    let watched = AtomicBool::new(true);
    let watch = async {
        let mut looks = 0;
        while watched.load(Ordering::Relaxed) {
            let (one, three) = (most_holders(&app, "one").await, most_holders(&app, "three").await);
            assert!(one <= 1 && three <= 3, "{one} and {three} holders of one resource key");
            looks += 1;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        looks
    };
    let work = async {
        let mut intervals = Vec::new();
        while let Some(worker) = workers.join_next().await {
            intervals.extend(worker.expect("it does not panic"));
        }
        watched.store(false, Ordering::Relaxed);
        intervals
    };
    let (looks, intervals) = tokio::join!(watch, work);
    assert!(looks > 20, "only {looks} looks at the holds");
    assert_eq!(intervals.len(), 2 * JOBS, "two keys for each job");
    let mut most = 0;
    for (key, at, _) in &intervals {
        let at_once = intervals
            .iter()
            .filter(|(other, from, until)| other == key && from <= at && at < until)
            .count();
        assert!(
            at_once <= if key.starts_with("one:") { 1 } else { 3 },
            "{at_once} at once hold {key}"
        );
        most = most.max(at_once);
    }
    println!(
        "{JOBS} jobs in {:?}, {looks} looks, at most {most} at once",
        began.elapsed()
    );
    app.finish().await;
}

#[tokio::test]
async fn a_thousand_blocked_jobs_starve_nobody() {
    let app = App::start().await;
    let blocked = batch(
        &app,
        1_001,
        |_| json!({"name": "n", "priority": 9, "resource_keys": ["account:1"]}),
    )
    .await;
    let free = batch(&app, 20, |_| json!({"name": "n"})).await;
    let first = app.reserve(json!({"max_jobs": 1})).await;
    assert_eq!(first[0].id, blocked[0]);
    let began = Instant::now();
    let others = app.reserve(json!({"max_jobs": 20})).await;
    println!("20 jobs from behind 1,000 that are blocked: {:?}", began.elapsed());
    assert_eq!(
        others.iter().map(|job| &job.id).collect::<Vec<_>>(),
        free.iter().collect::<Vec<_>>()
    );
    // They were looked at once, and left the line.
    let in_line: i64 = sqlx::query_scalar("select count(*) from jobs where ready")
        .fetch_one(app.sql())
        .await
        .unwrap();
    assert_eq!(in_line, 0);
    // One after another they come as the resource is given back, each once.
    let mut job = first[0].clone();
    for next in &blocked[1..20] {
        app.work(&job, "succeed", json!({})).await;
        let mut jobs = app.reserve(json!({"max_jobs": 5, "wait": "5s"})).await;
        assert_eq!(jobs.len(), 1);
        job = jobs.remove(0);
        assert_eq!(&job.id, next, "the first that waits is the next");
    }
    app.finish().await;
}

#[tokio::test]
async fn resource_keys_that_nobody_needs_are_forgotten() {
    let app = App::start().await;
    batch(
        &app,
        50,
        |number| json!({"name": "n", "resource_keys": [format!("order:{number}")]}),
    )
    .await;
    let jobs = app.reserve(json!({"max_jobs": 50})).await;
    assert_eq!(jobs.len(), 50);
    for job in &jobs[1..] {
        app.work(job, "succeed", json!({})).await;
    }
    eventually("the rows of idle resource keys to be swept", async || {
        let rows: Vec<String> = sqlx::query_scalar("select resource from resource_keys")
            .fetch_all(app.sql())
            .await
            .expect("rows");
        let kept = jobs[0].job["resource_keys"][0].as_str().expect("a key");
        if rows == [kept] {
            Ok(())
        } else {
            Err(format!("{} rows", rows.len()))
        }
    })
    .await;
    app.finish().await;
}
