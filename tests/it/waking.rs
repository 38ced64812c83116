//! Workers that wait: what wakes them, how soon, and what their waiting costs the database.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::task::JoinSet;

use crate::support::{App, Leased, Options, eventually};

/// With news between servers working; the promise is 50 ms, a busy machine is given more.
const SOON: Duration = Duration::from_secs(1);

async fn two_servers() -> App {
    App::with(Options::default().servers(2)).await
}

/// A worker that waits at the first server; it is known to stand in line when this returns.
async fn waiting(app: &App, wish: Value) -> JoinHandle<(Vec<Leased>, Instant)> {
    let looks = app.counter("solejob_reserve_group_size_count").await;
    let client = app.client(0).clone();
    let worker = tokio::spawn(async move { (client.reserve(wish).await, Instant::now()) });
    eventually("the worker to be looked at", async || {
        let now = app.counter("solejob_reserve_group_size_count").await;
        if now > looks {
            Ok(())
        } else {
            Err(format!("{now} looks"))
        }
    })
    .await;
    worker
}

/// Waits for the worker's one job; gives how long after `since` it had it.
async fn woken(what: &str, worker: JoinHandle<(Vec<Leased>, Instant)>, since: Instant, most: Duration) -> Leased {
    let (mut jobs, at) = worker.await.expect("it does not panic");
    let latency = at.saturating_duration_since(since);
    println!("woken {what} after {latency:?}");
    assert_eq!(jobs.len(), 1, "{what}: {} jobs", jobs.len());
    assert!(latency < most, "woken {what} only after {latency:?}");
    jobs.remove(0)
}

#[tokio::test]
async fn whatever_brings_a_job_in_line_wakes_a_worker() {
    let app = two_servers().await;
    let wait = || json!({"wait": "20s", "lease": "60s"});
    for _ in 0..5 {
        let worker = waiting(&app, wait()).await;
        let since = Instant::now();
        app.client(1).post("/v1/jobs", &json!({"name": "n"}), 201).await;
        woken("by a dispatch on the other server", worker, since, SOON).await;
    }

    app.client(1)
        .post("/v1/jobs", &json!({"name": "n", "delay": "1500ms"}), 201)
        .await;
    let due = Instant::now() + Duration::from_millis(1_500);
    let worker = waiting(&app, wait()).await;
    let job = woken("by a start time", worker, due, SOON).await;

    // A retry, told on the other server.
    let worker = waiting(&app, wait()).await;
    let failed = app.client(1).work(&job, "fail", json!({"retry_in": "700ms"})).await;
    assert_eq!(failed.at("/state"), "retrying");
    let due = Instant::now() + Duration::from_millis(700);
    let job = woken("by the end of a backoff", worker, due, SOON).await;
    assert_eq!(job.attempt, 2);

    for keys in [json!(["account:1"]), json!(["account:1"])] {
        app.post("/v1/jobs", &json!({"name": "n", "resource_keys": keys}), 201)
            .await;
    }
    let holder = app.reserve(json!({"max_jobs": 5, "lease": "60s"})).await;
    assert_eq!(holder.len(), 1, "the second is blocked");
    let worker = waiting(&app, wait()).await;
    let since = Instant::now();
    app.client(1).work(&holder[0], "succeed", json!({})).await;
    woken("by a resource that was given back", worker, since, SOON).await;

    app.post_nothing("/v1/queues/default/pause", 200).await;
    app.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    let worker = waiting(&app, wait()).await;
    let since = Instant::now();
    app.client(1).post_nothing("/v1/queues/default/resume", 200).await;
    woken("by a queue that was resumed", worker, since, SOON).await;

    let worker = waiting(&app, wait()).await;
    let since = Instant::now();
    app.client(1).work(&job, "release", json!({})).await;
    let job = woken("by a job that was given back", worker, since, SOON).await;

    app.work(&job, "succeed", json!({})).await;
    let worker = waiting(&app, wait()).await;
    let since = Instant::now();
    app.client(1)
        .post_nothing(&format!("/v1/jobs/{}/retry", job.id), 200)
        .await;
    woken("by a retry by hand", worker, since, SOON).await;
    app.finish().await;
}

#[tokio::test]
async fn a_lost_notification_costs_about_a_second() {
    let app = two_servers().await;
    let worker = waiting(&app, json!({"wait": "20s"})).await;
    // Those who listen are cut off, and nothing that is said in the meantime reaches anybody.
    let ended: i64 = sqlx::query_scalar(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity
         where datname = current_database() and query ilike 'listen%'",
    )
    .fetch_one(app.sql())
    .await
    .unwrap();
    assert!(ended >= 2, "{ended} sessions listened");
    let since = Instant::now();
    app.client(1).post("/v1/jobs", &json!({"name": "n"}), 201).await;
    woken("without news", worker, since, Duration::from_secs(3)).await;

    eventually("the servers to listen again", async || {
        let listening: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen%'",
        )
        .fetch_one(app.sql())
        .await
        .expect("a count");
        if listening >= 2 {
            Ok(())
        } else {
            Err(format!("{listening} listen"))
        }
    })
    .await;
    let worker = waiting(&app, json!({"wait": "20s"})).await;
    let since = Instant::now();
    app.client(1).post("/v1/jobs", &json!({"name": "n"}), 201).await;
    woken("by news that are heard again", worker, since, SOON).await;
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_workers_and_one_job_are_no_herd() {
    const WORKERS: usize = 2_000;
    let app = App::start().await;
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let client = app.client(0).clone();
        workers.spawn(async move { client.reserve(json!({"wait": "25s"})).await });
    }
    let line = async || {
        let metrics = app.get("/metrics", 200).await.text;
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix("solejob_reserve_waiting "));
        line.map_or(0.0, |number| number.parse::<f64>().expect("a number"))
    };
    eventually("all to wait", async || {
        let waiting = line().await;
        if waiting >= WORKERS as f64 {
            Ok(())
        } else {
            Err(format!("{waiting} wait"))
        }
    })
    .await;

    // Two seconds of idle waiting: a look or so each second for all of them together.
    let looks = app.counter("solejob_reserve_group_size_count").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let idle = app.counter("solejob_reserve_group_size_count").await - looks;
    let looks = looks + idle;
    app.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    let first = loop {
        let jobs = workers.join_next().await.expect("workers").expect("no panic");
        if !jobs.is_empty() {
            break jobs;
        }
    };
    assert_eq!(first.len(), 1);
    let waking = app.counter("solejob_reserve_group_size_count").await - looks;
    println!("{WORKERS} workers: {idle} looks in two idle seconds, {waking} for one job");
    assert!(idle <= 6, "{idle} looks in two idle seconds");
    assert!(waking <= 10, "{waking} looks for one job");
    assert_eq!(
        app.counter("solejob_jobs_reserved_total").await,
        1,
        "exactly one gets it"
    );
    workers.abort_all();
    app.finish().await;
}

/// Sends a reserve by hand, so that the connection can be cut.
async fn ask_and_wait(app: &App, wish: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(app.address())
        .await
        .expect("the server takes connections");
    let body = wish.to_string();
    let head = format!(
        "POST /v1/worker/reserve HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream
        .write_all(format!("{head}{body}").as_bytes())
        .await
        .expect("a fresh connection");
    stream
}

#[tokio::test]
async fn a_worker_that_hangs_up_loses_no_job() {
    let app = App::start().await;
    let queue = |number: usize| format!("q-{number}");
    // It hangs up while it waits: the job goes to the next one, as a first attempt.
    for number in 0..20 {
        let looks = app.counter("solejob_reserve_group_size_count").await;
        let stream = ask_and_wait(&app, &json!({"queues": [queue(number)], "wait": "30s", "lease": "10m"})).await;
        eventually("the worker to be looked at", async || {
            let now = app.counter("solejob_reserve_group_size_count").await;
            if now > looks { Ok(()) } else { Err("not yet") }
        })
        .await;
        if number % 2 == 0 {
            stream.set_zero_linger().expect("a socket");
        }
        drop(stream);
        app.post("/v1/jobs", &json!({"name": "n", "queue": queue(number)}), 201)
            .await;
        let jobs = app.reserve(json!({"queues": [queue(number)], "wait": "5s"})).await;
        assert_eq!(jobs.len(), 1, "the job of a worker that had hung up is lost");
        assert_eq!(jobs[0].attempt, 1, "its attempt counted");
    }
    app.finish().await;
}

#[tokio::test]
async fn a_worker_that_hangs_up_under_its_reserve_loses_no_job() {
    let app = App::start().await;
    app.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    // The reserve is held in the middle of its transaction, and its worker hangs up meanwhile.
    let mut session = crate::support::Session::open(&app).await;
    session
        .run("begin; lock table queue_counts in access exclusive mode")
        .await;
    let stream = ask_and_wait(&app, &json!({"lease": "10m"})).await;
    session.until_blocking(1).await;
    stream.set_zero_linger().expect("a socket");
    drop(stream);
    // The server reads the end of the connection at once; nothing shows when it has. The next request on another
    // connection is answered after it.
    app.get("/healthz", 200).await;
    session.run("commit").await;
    let jobs = app.reserve(json!({"wait": "5s"})).await;
    assert_eq!(jobs.len(), 1, "the job is leased to nobody");
    assert_eq!(jobs[0].attempt, 1);
    assert_eq!(app.counter("solejob_jobs_given_back_total").await, 1);
    app.finish().await;
}

#[tokio::test]
async fn workers_that_do_not_wait_are_served_though_many_come_at_once() {
    const WORKERS: usize = 30;
    let app = App::start().await;
    for _ in 0..6 {
        let jobs: Vec<Value> = (0..500).map(|_| json!({"name": "n"})).collect();
        app.post("/v1/jobs/batch", &json!({"jobs": jobs}), 200).await;
    }
    // They gather while the first look is held up.
    let mut session = crate::support::Session::open(&app).await;
    session
        .run("begin; lock table queue_counts in access exclusive mode")
        .await;
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let client = app.client(0).clone();
        workers.spawn(async move { client.reserve(json!({"max_jobs": 100})).await.len() });
    }
    session.until_blocking(1).await;
    session.run("commit").await;
    let given = workers.join_all().await;
    assert_eq!(given, vec![100; WORKERS], "there was enough for all");
    app.finish().await;
}
