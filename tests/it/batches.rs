//! Batches: of the largest size from many clients at once, and against a model.

mod model;
mod property;

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{Answer, App, Options, Session, Stock};

const CLIENTS: usize = 16;
const LARGEST: usize = 1000;

fn items(of: &str) -> Vec<Value> {
    let item = |n: usize| {
        let keys = json!({"active_key": format!("{of}-{n}"), "window_key": format!("{of}-{n}"), "window": "1h"});
        json!({"name": "batch", "payload": {"n": n}, "uniqueness": keys})
    };
    (0..LARGEST).map(item).collect()
}

/// Sixteen maximum batches at once over two servers. What each client sends is its own choice.
async fn sixteen_at_once(app: &App, batch: impl Fn(usize) -> Vec<Value>) -> Vec<Answer> {
    let mut calls = JoinSet::new();
    for number in 0..CLIENTS {
        let (client, body) = (app.client(number % 2).clone(), json!({"jobs": batch(number)}));
        calls.spawn(async move { client.post("/v1/jobs/batch", &body, 200).await });
    }
    calls.join_all().await
}

async fn assert_no_lock_trouble(app: &App) {
    // The statistics of a session are reported when it is idle, at the latest after some seconds.
    let sql = "select deadlocks from pg_stat_database where datname = current_database()";
    let deadlocks: i64 = sqlx::query_scalar(sql).fetch_one(app.sql()).await.expect("a count");
    assert_eq!(deadlocks, 0, "PostgreSQL had to break a deadlock");
    let log = app.log();
    for trouble in [
        "53200",
        "max_locks_per_transaction",
        "out of shared memory",
        "40P01",
        "deadlock detected",
    ] {
        assert!(!log.contains(trouble), "the server's log holds `{trouble}`:\n{log}");
    }
}

async fn stored_jobs(app: &App) -> i64 {
    sqlx::query_scalar("select count(*) from jobs")
        .fetch_one(app.sql())
        .await
        .expect("a count")
}

#[tokio::test]
async fn largest_batches_at_once_fit_a_stock_postgres() {
    let stock = Stock::start().await;
    opposite_orders(&stock).await;
    different_keys(&stock).await;
    stock.stop().await;
}

/// Half of the clients send the keys backwards: no deadlock, no double.
async fn opposite_orders(stock: &Stock) {
    let app = App::with(Options::default().servers(2).on(&stock.cluster)).await;
    let forwards = items("same");
    let backwards = forwards.iter().rev().cloned().collect::<Vec<_>>();
    let batch = |number: usize| {
        if number % 4 < 2 {
            forwards.clone()
        } else {
            backwards.clone()
        }
    };
    let answers = sixteen_at_once(&app, batch).await;
    let created: u64 = answers.iter().filter_map(|answer| answer.at("/created").as_u64()).sum();
    assert_eq!(created, LARGEST as u64, "each key is created once");
    let reused: u64 = answers.iter().filter_map(|answer| answer.at("/reused").as_u64()).sum();
    assert_eq!(reused, ((CLIENTS - 1) * LARGEST) as u64);
    assert_eq!(stored_jobs(&app).await, LARGEST as i64);
    assert_no_lock_trouble(&app).await;
    app.finish().await;
}

/// 32,000 keys, five times what the lock table holds.
async fn different_keys(stock: &Stock) {
    let app = App::with(Options::default().servers(2).on(&stock.cluster)).await;
    let answers = sixteen_at_once(&app, |number| items(&number.to_string())).await;
    assert!(answers.iter().all(|answer| answer.at("/created") == LARGEST));
    assert_eq!(stored_jobs(&app).await, (CLIENTS * LARGEST) as i64);
    assert_no_lock_trouble(&app).await;
    app.finish().await;
}

/// One group that waits may hold up its own items, and nobody else for long.
#[tokio::test]
async fn a_batch_that_waits_for_a_key_does_not_lock_out_its_neighbours() {
    let app = App::start().await;
    let held = json!({"name": "batch", "uniqueness": {"active_key": "held"}});
    app.post("/v1/jobs", &held, 201).await;
    let mut session = Session::open(&app).await;
    // A link needs the job's row, which this session holds.
    session.run("begin; select from jobs for update").await;
    let linking = json!({"jobs": [{
        "name": "batch", "uniqueness": {"active_key": "held", "window_key": "w", "window": "1h"},
    }]});
    let client = app.client(0).clone();
    let waiting = tokio::spawn(async move { client.post("/v1/jobs/batch", &linking, 200).await });
    session.until_blocking(1).await;
    // Dispatches without keys share no lock with it, whatever locks are made of.
    for number in 0..20 {
        let other = json!({"name": format!("other-{number}")});
        let call = app.post("/v1/jobs", &other, 201);
        tokio::time::timeout(Duration::from_secs(15), call)
            .await
            .expect("served beside one that waits");
    }
    session.run("commit").await;
    let answer = waiting.await.unwrap();
    assert_eq!(answer.at("/results/0/receipt/window/linked"), true, "{}", answer.text);
    app.finish().await;
}

#[tokio::test]
async fn one_item_too_many_is_refused() {
    let app = App::start().await;
    let mut jobs = items("k");
    app.post("/v1/jobs/batch", &json!({"jobs": jobs}), 200).await;
    jobs.push(json!({"name": "batch"}));
    let answer = app.post("/v1/jobs/batch", &json!({"jobs": jobs}), 413).await;
    answer.assert_problem(413, &["batch_too_large"]);
    assert_eq!(stored_jobs(&app).await, LARGEST as i64);
    app.finish().await;
}

#[tokio::test]
async fn a_hundred_faults_are_listed_and_no_more() {
    let app = App::start().await;
    let mut jobs = items("k");
    for job in jobs.iter_mut().skip(3) {
        job["name"] = json!("not a name");
    }
    jobs[900]["uniqueness"]["active_key"] = json!("");
    let answer = app.post("/v1/jobs/batch", &json!({"jobs": jobs}), 400).await;
    answer.assert_problem(400, &["invalid_request"]);
    let errors = answer.at("/errors").as_array().unwrap();
    assert_eq!(errors.len(), 100);
    for (number, error) in errors.iter().enumerate() {
        assert_eq!(error["index"], number + 3);
        assert_eq!(error["code"], "invalid_request");
        assert!(
            error["pointer"]
                .as_str()
                .is_some_and(|pointer| pointer.ends_with("/name")),
            "{error}"
        );
        assert!(
            error["detail"].as_str().is_some_and(|detail| !detail.is_empty()),
            "{error}"
        );
    }
    assert_eq!(stored_jobs(&app).await, 0);
    app.finish().await;
}

/// A batch of one takes the same decisions as a dispatch; receipts agree but for the clock.
#[tokio::test]
async fn a_batch_of_one_answers_as_a_dispatch_does() {
    let app = App::start().await;
    let body = |keys: &str| {
        let keys = json!({"active_key": keys, "window_key": keys, "window": "1h"});
        json!({"name": "one", "payload": [1.0], "timeout": "5m", "uniqueness": keys})
    };
    let single = app.post("/v1/jobs", &body("single"), 201).await;
    let batch = app.post("/v1/jobs/batch", &json!({"jobs": [body("batch")]}), 200).await;
    let (single, batch) = (single.at(""), batch.at("/results/0/receipt"));
    let names = |receipt: &Value| receipt.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(single), names(batch));
    for member in [
        "name",
        "disposition",
        "duplicate_match",
        "policy_drift",
        "drift",
        "state",
        "job_available",
    ] {
        assert_eq!(single[member], batch[member], "{member}");
    }
    app.finish().await;
}
