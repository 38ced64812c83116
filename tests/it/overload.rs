//! More than the server takes is refused at once, and whoever was taken in is served.

use std::time::Duration;

use serde_json::{Value, json};
use solejob::uniqueness::locks::GATE;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::{Answer, App, Gate, Options, Session};

/// A refusal waits for nothing that is held here: it comes long before a lock would time out.
const AT_ONCE: Duration = Duration::from_secs(3);

fn assert_overloaded(answer: &Answer) {
    answer.assert_problem(503, &["overloaded"]);
    assert_eq!(answer.at("/outcome"), "none", "{}", answer.text);
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert!(answer.took < AT_ONCE, "it took {:?}", answer.took);
}

/// Sends the bodies at once while the gate is shut, and gives the answers of those that were refused;
/// the others wait.
async fn crowd(app: &App, path: &'static str, bodies: Vec<Value>, waiting: usize) -> JoinSet<Answer> {
    let refused = bodies.len() - waiting;
    let mut calls = JoinSet::new();
    for body in bodies {
        let client = app.client(0).clone();
        calls.spawn(async move { client.post(path, &body, [200, 201, 503]).await });
    }
    for _ in 0..refused {
        assert_overloaded(&calls.join_next().await.unwrap().unwrap());
    }
    calls
}

async fn jobs(app: &App) -> i64 {
    sqlx::query_scalar("select count(*) from jobs")
        .fetch_one(app.sql())
        .await
        .unwrap()
}

#[tokio::test]
async fn more_than_may_wait_is_refused() {
    let options = Options::default().arg("--queue-units=1").arg("--groups-in-flight=1");
    let app = App::with(options).await;
    let body = |key: String| json!({"name": "n", "uniqueness": {"active_key": key}});
    for path in ["/v1/jobs", "/v1/jobs/batch"] {
        let body = |key: usize| match path {
            "/v1/jobs" => body(format!("{path} {key}")),
            _ => json!({"jobs": [body(format!("{path} {key}")), body(format!("{path} {key} too"))]}),
        };
        let each = if path == "/v1/jobs" { 1 } else { 2 };
        let before = jobs(&app).await;
        let gate = Gate::close(&app).await;
        // The first is being decided, so that what comes next has to wait: one of them, and no more.
        let (client, first) = (app.client(0).clone(), body(0));
        let first = tokio::spawn(async move { client.post(path, &first, 200..=201).await });
        gate.more_waiting_than(0).await;
        let mut waiting = crowd(&app, path, (1..=20).map(body).collect(), 1).await;
        // What needs no place in the queue is served all the same.
        app.get("/healthz", 200).await;
        app.get("/v1/jobs", 200).await;
        gate.open().await;
        first.await.unwrap();
        let last = waiting.join_next().await.unwrap().unwrap();
        assert!(last.status < 300, "{}", last.text);
        assert_eq!(jobs(&app).await, before + 2 * each, "what was refused was not done");
        // And now there is room again.
        app.post(path, &body(21), 200..=201).await;
    }
    let metrics = app.get("/metrics", 200).await.text;
    let counted = "solejob_dispatches_total{outcome=\"turned_away\"} 38";
    assert!(metrics.contains(counted), "{metrics}");
    app.finish().await;
}

#[tokio::test]
async fn more_bytes_than_may_wait_are_refused() {
    let options = Options::default()
        .arg("--queue-bytes=1048576")
        .arg("--payload-bytes=524288")
        .arg("--batch-bytes=524288")
        .arg("--batch-items=100");
    let app = App::with(options).await;
    let large = |key: usize| json!({"name": "n", "payload": "x".repeat(400_000 + key)});
    let gate = Gate::close(&app).await;
    let mut waiting = JoinSet::new();
    let client = app.client(0).clone();
    let first = json!({"name": "n", "payload": "x".repeat(400_000), "uniqueness": {"active_key": "first"}});
    waiting.spawn(async move { client.post("/v1/jobs", &first, 201).await });
    gate.more_waiting_than(0).await;
    // Two of these fit into a mebibyte, and the first is one of them.
    let mut second = crowd(&app, "/v1/jobs", (1..=8).map(large).collect(), 1).await;
    // Small ones do.
    let client = app.client(0).clone();
    waiting.spawn(async move { client.post("/v1/jobs", &json!({"name": "small"}), 201).await });
    gate.open().await;
    waiting.join_all().await;
    assert_eq!(second.join_next().await.unwrap().unwrap().status, 201);
    assert_eq!(jobs(&app).await, 3);
    app.post("/v1/jobs", &large(9), 201).await;
    app.finish().await;
}

/// Work that was begun is finished: what frees room is shed last.
#[tokio::test]
async fn heartbeats_and_finishes_go_through_while_dispatches_are_refused() {
    let app = App::with(Options::default().arg("--queue-units=1").arg("--groups-in-flight=1")).await;
    for active_key in ["first", "second", "third"] {
        let body = json!({"name": "n", "uniqueness": {"active_key": active_key}});
        app.post("/v1/jobs", &body, 201).await;
    }
    let held = app.reserve(json!({"max_jobs": 2, "lease": "60s"})).await;
    assert_eq!(held.len(), 2);
    // No dispatch gets past the gate that all of them take, and nobody else takes it.
    let mut gate = Session::open(&app).await;
    gate.run(&format!("begin; select pg_advisory_xact_lock({GATE})")).await;
    let client = app.client(0).clone();
    let first = tokio::spawn(async move { client.post("/v1/jobs", &json!({"name": "n"}), 201).await });
    gate.until_blocking(1).await;
    let second = crowd(&app, "/v1/jobs", vec![json!({"name": "n"}); 20], 1).await;

    // Not even a body is waited for.
    let mut early = TcpStream::connect(app.address()).await.unwrap();
    let head = "POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n";
    early.write_all(head.as_bytes()).await.unwrap();
    let mut said = vec![0; 4_096];
    let count = tokio::time::timeout(AT_ONCE, early.read(&mut said)).await;
    let said = String::from_utf8_lossy(&said[..count.expect("it is answered at once").unwrap()]).into_owned();
    assert!(
        said.starts_with("HTTP/1.1 503 ") && said.contains("\"overloaded\""),
        "{said}"
    );

    let begun = app.work(&held[0], "start", json!({})).await;
    let beat = app.work(&held[0], "heartbeat", json!({"lease": "60s"})).await;
    let done = app.work(&held[0], "succeed", json!({})).await;
    let failed = app.work(&held[1], "fail", json!({"error": {"message": "no"}})).await;
    let more = app.post("/v1/worker/reserve", &json!({}), 200).await;
    for answer in [&begun, &beat, &done, &failed, &more] {
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert!(answer.took < AT_ONCE, "it took {:?}", answer.took);
    }
    assert_eq!(more.at("/jobs").as_array().unwrap().len(), 1);
    assert_overloaded(&app.post("/v1/jobs", &json!({"name": "n"}), 503).await);
    gate.run("rollback").await;
    first.await.unwrap();
    assert_eq!(second.join_all().await[0].status, 201);
    app.finish().await;
}

#[tokio::test]
async fn a_queue_that_never_takes_the_largest_batch_is_refused_at_the_start() {
    let mut command = crate::support::solejob("postgres://nobody@127.0.0.1:9/none");
    command.args(["serve", "--anonymous", "--queue-bytes=1048576"]);
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("--queue-bytes"), "{said}");
}
