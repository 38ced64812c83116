//! Every problem is provoked over HTTP, and is one that the operation declares; and the other way round:
//! what an operation declares can happen.

use std::collections::BTreeSet;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use serde_json::json;
use solejob::http::problem::Code;

use super::described::{Described, Operation};
use crate::support::{Answer, App, Call, Client, Options, Session, eventually};

const BOOTSTRAP: &str = "bootstrap-0123456789abcdef";

/// Problems that other files provoke, since they need a server in a bad state.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("overloaded", "tests/it/overload.rs", include_str!("../overload.rs")),
    (
        "shutting_down",
        "tests/it/lifecycle/stop.rs",
        include_str!("../lifecycle/stop.rs"),
    ),
];

/// Operation, code, path and body. `{pending}` and `{done}` are jobs in that state, `{before}` was
/// one whose active key another one has now.
const REQUESTS: &[(&str, &str, &str, &str)] = &[
    (
        "dispatch",
        "invalid_key",
        "/v1/jobs",
        r#"{"name": "n", "uniqueness": {"active_key": ""}}"#,
    ),
    (
        "dispatch",
        "invalid_window",
        "/v1/jobs",
        r#"{"name": "n", "uniqueness": {"window_key": "k"}}"#,
    ),
    (
        "dispatch",
        "invalid_duration",
        "/v1/jobs",
        r#"{"name": "n", "delay": "soon"}"#,
    ),
    (
        "dispatch",
        "payload_too_large",
        "/v1/jobs",
        r#"{"name": "n", "payload": "{2000}"}"#,
    ),
    (
        "dispatch",
        "uniqueness_conflict",
        "/v1/jobs",
        r#"{"name": "n", "uniqueness": {"window_key": "w", "window": "1h"}}"#,
    ),
    ("dispatch", "uniqueness_composition_conflict", "/v1/jobs", COMPOSED),
    ("dispatch", "idempotency_scope_invalid", "/v1/jobs", ORPHAN),
    (
        "preview",
        "invalid_key",
        "/v1/jobs/preview",
        r#"{"name": "n", "uniqueness": {"active_key": ""}}"#,
    ),
    (
        "preview",
        "invalid_window",
        "/v1/jobs/preview",
        r#"{"name": "n", "uniqueness": {"window_key": "k"}}"#,
    ),
    (
        "preview",
        "invalid_duration",
        "/v1/jobs/preview",
        r#"{"name": "n", "delay": "soon"}"#,
    ),
    (
        "preview",
        "uniqueness_conflict",
        "/v1/jobs/preview",
        r#"{"name": "n", "uniqueness": {"window_key": "w", "window": "1h"}}"#,
    ),
    (
        "preview",
        "uniqueness_composition_conflict",
        "/v1/jobs/preview",
        COMPOSED,
    ),
    ("preview", "idempotency_scope_invalid", "/v1/jobs/preview", ORPHAN),
    (
        "dispatchBatch",
        "invalid_key",
        "/v1/jobs/batch",
        r#"{"jobs": [{"name": "n", "uniqueness": {"active_key": ""}}]}"#,
    ),
    (
        "dispatchBatch",
        "invalid_window",
        "/v1/jobs/batch",
        r#"{"jobs": [{"name": "n", "uniqueness": {"window_key": "k"}}]}"#,
    ),
    (
        "dispatchBatch",
        "invalid_duration",
        "/v1/jobs/batch",
        r#"{"jobs": [{"name": "n", "timeout": "P1M"}]}"#,
    ),
    (
        "dispatchBatch",
        "invalid_payload",
        "/v1/jobs/batch",
        r#"{"jobs": [{"name": "n", "payload": {"a": 1, "a": 2}}]}"#,
    ),
    (
        "dispatchBatch",
        "payload_too_large",
        "/v1/jobs/batch",
        r#"{"jobs": [{"name": "n", "payload": "{2000}"}]}"#,
    ),
    (
        "dispatchBatch",
        "batch_too_large",
        "/v1/jobs/batch",
        r#"{"jobs": [{"name": "n"}, {"name": "n"}, {"name": "n"}]}"#,
    ),
    (
        "dispatchBatch",
        "uniqueness_conflict",
        "/v1/jobs/batch",
        r#"{"jobs": [{"name": "n", "uniqueness": {"window_key": "w", "window": "1h"}}]}"#,
    ),
    (
        "dispatchBatch",
        "uniqueness_composition_conflict",
        "/v1/jobs/batch",
        BATCH_COMPOSED,
    ),
    (
        "dispatchBatch",
        "idempotency_scope_invalid",
        "/v1/jobs/batch",
        BATCH_ORPHAN,
    ),
    ("listJobs", "invalid_request", "/v1/jobs?limit=0", ""),
    ("listJobs", "invalid_request", "/v1/jobs?nmae=x", ""),
    ("listJobs", "invalid_key", "/v1/jobs?active_key=", ""),
    ("listJobs", "invalid_cursor", "/v1/jobs?cursor=x", ""),
    ("getJob", "job_not_found", "/v1/jobs/nothing", ""),
    ("cancelJob", "job_not_found", "/v1/jobs/nothing/cancel", "{}"),
    ("cancelJob", "job_finished", "/v1/jobs/{done}/cancel", "{}"),
    ("deleteJob", "job_not_found", "/v1/jobs/nothing", ""),
    ("deleteJob", "job_not_finished", "/v1/jobs/{pending}", ""),
    ("getKey", "invalid_request", "/v1/keys?name=n", ""),
    ("getKey", "invalid_key", "/v1/keys?name=n&active_key=%00", ""),
    ("resetKey", "invalid_request", "/v1/keys/reset", r#"{"name": "n"}"#),
    (
        "resetKey",
        "invalid_key",
        "/v1/keys/reset",
        r#"{"name": "n", "window_key": ""}"#,
    ),
    ("retryJob", "job_not_found", "/v1/jobs/nothing/retry", "{}"),
    ("retryJob", "job_not_finished", "/v1/jobs/{pending}/retry", "{}"),
    ("retryJob", "active_key_held", "/v1/jobs/{before}/retry", "{}"),
    (
        "reserve",
        "invalid_duration",
        "/v1/worker/reserve",
        r#"{"queues": ["q"], "wait": "P1M"}"#,
    ),
    ("startJob", "job_not_found", "/v1/worker/nothing/start", LEASE),
    ("startJob", "lease_lost", "/v1/worker/{pending}/start", LEASE),
    ("heartbeat", "job_not_found", "/v1/worker/nothing/heartbeat", LEASE),
    ("heartbeat", "lease_lost", "/v1/worker/{pending}/heartbeat", LEASE),
    (
        "heartbeat",
        "invalid_duration",
        "/v1/worker/{pending}/heartbeat",
        r#"{"lease_token": "0b2f1f0e-5b7e-4a57-9d3a-6f0b4f6f3d11", "lease": "soon"}"#,
    ),
    ("succeedJob", "job_not_found", "/v1/worker/nothing/succeed", LEASE),
    ("succeedJob", "lease_lost", "/v1/worker/{pending}/succeed", LEASE),
    ("failJob", "job_not_found", "/v1/worker/nothing/fail", LEASE),
    ("failJob", "lease_lost", "/v1/worker/{pending}/fail", LEASE),
    (
        "failJob",
        "invalid_duration",
        "/v1/worker/{pending}/fail",
        r#"{"lease_token": "0b2f1f0e-5b7e-4a57-9d3a-6f0b4f6f3d11", "retry_in": "soon"}"#,
    ),
    ("releaseJob", "job_not_found", "/v1/worker/nothing/release", LEASE),
    ("releaseJob", "lease_lost", "/v1/worker/{pending}/release", LEASE),
    (
        "finishJobs",
        "invalid_duration",
        "/v1/worker/finish",
        r#"{"jobs": [{"job_id": "x", "lease_token": "x", "outcome": "fail", "retry_in": "soon"}]}"#,
    ),
    (
        "finishJobs",
        "payload_too_large",
        "/v1/worker/finish",
        r#"{"jobs": [{"job_id": "x", "lease_token": "x", "outcome": "fail", "error": {"message": "{70000}"}}]}"#,
    ),
    ("getResourceScope", "invalid_request", "/v1/resource-scopes/a%20b", ""),
    (
        "getResourceScope",
        "resource_scope_not_found",
        "/v1/resource-scopes/nothing",
        "",
    ),
    (
        "deleteResourceScope",
        "invalid_request",
        "/v1/resource-scopes/a%20b",
        "",
    ),
    (
        "deleteResourceScope",
        "resource_scope_not_found",
        "/v1/resource-scopes/nothing",
        "",
    ),
    ("errorPage", "not_found", "/errors/nothing", ""),
];

const LEASE: &str = r#"{"lease_token": "0b2f1f0e-5b7e-4a57-9d3a-6f0b4f6f3d11"}"#;
const ORPHAN: &str = r#"{"name": "n", "parent": {"job_id": "0193a5c4-9f3e-7c11-8000-4a1f6c7d2e90"}}"#;
const BATCH_ORPHAN: &str = r#"{"jobs": [{"name": "n", "parent": {"job_id": "0193a5c4-9f3e-7c11-8000-4a1f6c7d2e90"}}]}"#;
const COMPOSED: &str =
    r#"{"name": "n", "uniqueness": {"active_key": "a", "window_key": "b", "window": "1h", "on_mismatch": "reuse"}}"#;
const BATCH_COMPOSED: &str = r#"{"jobs": [{"name": "n", "uniqueness": {"active_key": "a", "window_key": "b", "window": "1h", "on_mismatch": "reuse"}}]}"#;

/// What any operation with a body answers to these: code, content type, body.
const BODIES: &[(&str, &str, &str)] = &[
    ("invalid_json", "application/json", "{"),
    ("invalid_request", "application/json", r#"{"unknown": 1}"#),
    ("invalid_payload", "application/json", r#"{"a": 1, "a": 2}"#),
    ("unsupported_media_type", "text/plain", "{}"),
];

/// A request to an operation that would be served if all were well.
fn call(operation: &Operation, path: &str, kind: &'static str, body: &str) -> Call {
    let mut headers = HeaderMap::new();
    let posts = operation.value.get("requestBody").is_some();
    if posts {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    Call {
        method: operation.method.parse().unwrap(),
        path: path.to_owned(),
        headers,
        body: posts.then(|| body.as_bytes().to_vec()),
    }
}

/// The same with its described example as body, or nothing.
fn plain(operation: &Operation, job: &str) -> Call {
    let path = operation.path.replace("{job_id}", job).replace("{code}", "nothing");
    let mut path = path.replace("{queue}", "nothing").replace("{scope}", "nothing");
    if path == "/v1/keys" {
        path.push_str("?name=n&window_key=w");
    }
    let example = &operation.value["requestBody"]["content"]["application/json"]["example"];
    call(operation, &path, "application/json", &example.to_string())
}

/// Which problems each operation was seen to answer with.
struct Provoked {
    described: Described,
    seen: BTreeSet<(String, String)>,
    faults: Vec<String>,
}

impl Provoked {
    fn note(&mut self, operation: &Operation, code: &str, answer: &Answer) {
        let id = &operation.id;
        let given = answer.at("/code").as_str().unwrap_or("no problem");
        if given != code {
            let text = &answer.text;
            self.faults
                .push(format!("{id}: wanted {code}, got {given} ({}): {text}", answer.status));
            return;
        }
        answer.assert_problem(answer.status, &[code]);
        if answer.status == 503 {
            assert_eq!(answer.header("retry-after"), Some("1"), "{}", answer.text);
            assert_eq!(answer.at("/outcome"), "none", "{}", answer.text);
        }
        if let Err(fault) = self.described.judge(operation, answer) {
            self.faults.push(format!("{id}: {fault}: {}", answer.text));
        }
        self.seen.insert((id.clone(), code.to_owned()));
    }
}

/// Jobs in the states that the requests need.
async fn jobs(client: &Client) -> [String; 3] {
    let job = async |body| client.post("/v1/jobs", &body, 201).await.job_id().to_owned();
    let pending = job(json!({"name": "n", "uniqueness": {"active_key": "a"}})).await;
    let window = json!({"window_key": "w", "window": "1h"});
    job(json!({"name": "n", "payload": "another", "uniqueness": window})).await;
    job(json!({"name": "n", "uniqueness": {"window_key": "b", "window": "1h"}})).await;
    let done = job(json!({"name": "done"})).await;
    let reserved = client
        .post("/v1/worker/reserve", &json!({"names": ["done"]}), 200)
        .await;
    let token = reserved.at("/jobs/0/lease/token").clone();
    let succeed = format!("/v1/worker/{done}/succeed");
    client.post(&succeed, &json!({"lease_token": token}), 200).await;
    let before = job(json!({"name": "n", "uniqueness": {"active_key": "again"}})).await;
    client.post_nothing(&format!("/v1/jobs/{before}/cancel"), 200).await;
    job(json!({"name": "n", "uniqueness": {"active_key": "again"}})).await;
    [pending, done, before]
}

#[tokio::test]
async fn every_problem_is_provoked_and_declared() {
    let options = Options::default()
        .bootstrap_token(BOOTSTRAP)
        .arg("--payload-bytes=1024")
        .arg("--batch-bytes=2097152")
        .arg("--batch-items=2");
    let app = App::with(options).await;
    let client = app.with_token(BOOTSTRAP);
    let mut provoked = Provoked {
        described: Described::by(&app).await,
        seen: BTreeSet::new(),
        faults: Vec::new(),
    };
    let operations = provoked.described.operations();
    let [pending, done, before] = jobs(&client).await;

    for (id, code, path, body) in REQUESTS {
        let operation = provoked.described.operation(id);
        let path = path
            .replace("{pending}", &pending)
            .replace("{done}", &done)
            .replace("{before}", &before);
        let body = body
            .replace("{2000}", &"x".repeat(2_000))
            .replace("{70000}", &"x".repeat(70_000));
        let call = call(&operation, &path, "application/json", &body);
        provoked.note(&operation, code, &client.send(call).await.unwrap());
    }
    let (worker, dispatcher) = (
        app.with_token(&app.token("default", "prod", &["work"]).await),
        app.with_token(&app.token("default", "prod", &["dispatch"]).await),
    );
    for operation in &operations {
        let secured = operation.value["security"] != json!([{}]);
        if secured {
            let answer = app.client(0).send(plain(operation, &pending)).await.unwrap();
            provoked.note(operation, "unauthorized", &answer);
        }
        if secured && operation.id != "metrics" {
            let powerless = if operation.value["tags"] == json!(["dispatch"]) {
                &worker
            } else {
                &dispatcher
            };
            let answer = powerless.send(plain(operation, &pending)).await.unwrap();
            provoked.note(operation, "forbidden", &answer);
        }
        if operation.value.get("requestBody").is_some() {
            let path = plain(operation, &pending).path;
            for (code, kind, body) in BODIES {
                let answer = client.send(call(operation, &path, kind, body)).await.unwrap();
                provoked.note(operation, code, &answer);
            }
            let code = match &*operation.id {
                "dispatchBatch" | "finishJobs" => "batch_too_large",
                _ => "payload_too_large",
            };
            let large = call(operation, &path, "application/json", &" ".repeat(3 << 20));
            provoked.note(operation, code, &client.send(large).await.unwrap());
        }
    }
    // Beside every operation.
    app.get("/nothing", 404).await.assert_problem(404, &["not_found"]);
    app.delete("/healthz", 405)
        .await
        .assert_problem(405, &["method_not_allowed"]);

    unavailable(&app, &client, &operations, &pending, &mut provoked).await;
    broken(&app, &client, &operations, &pending, &mut provoked).await;
    complete(&operations, &mut provoked);
    assert!(provoked.faults.is_empty(), "{}", provoked.faults.join("\n"));
    app.finish().await;
}

async fn tables(app: &App) -> Vec<String> {
    let sql = "select table_name::text from information_schema.tables where table_schema = 'public'";
    let tables: Vec<String> = sqlx::query_scalar(sql)
        .fetch_all(app.sql())
        .await
        .expect("the database answers");
    assert!(tables.len() >= 5, "{tables:?}");
    tables
}

/// Declared since every operation may, and not to be provoked from here.
fn never(operation: &Operation, code: &str) -> bool {
    let never = [
        // Whatever goes wrong with a job is in its result: only a panic would fail the call.
        ("finishJobs", "internal"),
    ];
    never.contains(&(operation.id.as_str(), code))
}

/// A database that does not answer in time.
async fn unavailable(app: &App, client: &Client, operations: &[Operation], job: &str, provoked: &mut Provoked) {
    let fresh = app.with_token(&app.token("default", "prod", &["work"]).await);
    let mut session = Session::open(app).await;
    let tables = tables(app).await.join(", ");
    session
        .run(&format!("begin; lock table {tables} in access exclusive mode"))
        .await;
    let mut calls = Vec::new();
    for operation in operations {
        if operation.problems().contains(&"store_unavailable".to_owned()) {
            // These need the database for a token that was not seen before, and for nothing else that would
            // fail as a whole.
            let by_token = ["metrics", "finishJobs"].contains(&operation.id.as_str());
            let client = if by_token { &fresh } else { client }.clone();
            let call = plain(operation, job);
            calls.push((operation, tokio::spawn(async move { client.send(call).await })));
        }
    }
    for (operation, call) in calls {
        provoked.note(operation, "store_unavailable", &call.await.unwrap().unwrap());
    }
    session.run("rollback").await;
}

/// A database that refuses what nobody should have asked of it.
async fn broken(app: &App, client: &Client, operations: &[Operation], job: &str, provoked: &mut Provoked) {
    let needed_for_tokens = ["tokens", "applications"];
    let mut tables = tables(app).await;
    tables.retain(|table| !needed_for_tokens.contains(&table.as_str()));
    let rename = |from: &str, to: &str| {
        let one = |table: &String| format!("alter table {from}{table} rename to {to}{table};");
        sqlx::AssertSqlSafe(tables.iter().map(one).collect::<String>())
    };
    sqlx::raw_sql(rename("", "lost_")).execute(app.sql()).await.unwrap();
    for operation in operations {
        if operation.problems().contains(&"internal".to_owned()) && !never(operation, "internal") {
            let answer = client.send(plain(operation, job)).await.unwrap();
            provoked.note(operation, "internal", &answer);
            // The cause is for the log, and must not leave the server.
            assert!(!answer.text.contains("relation"), "{}", answer.text);
            let id = answer.header("x-request-id").unwrap();
            eventually("the cause in the log, in one line with the request's id", async || {
                let log = app.log();
                let line = log
                    .lines()
                    .find(|line| line.contains(id) && line.contains("does not exist"));
                line.map(drop).ok_or(format!("no such line for {}", operation.id))
            })
            .await;
        }
    }
    sqlx::raw_sql(rename("lost_", "")).execute(app.sql()).await.unwrap();
}

/// Every code, and every declaration, was met or is met elsewhere.
fn complete(operations: &[Operation], provoked: &mut Provoked) {
    let elsewhere = |code: &str| ELSEWHERE.iter().find(|(other, ..)| *other == code);
    for (code, file, text) in ELSEWHERE {
        assert!(text.contains(&format!("\"{code}\"")), "{file} does not speak of {code}");
    }
    for operation in operations {
        for code in operation.problems() {
            let seen = provoked.seen.contains(&(operation.id.clone(), code.clone()));
            if !seen && elsewhere(&code).is_none() && !never(operation, &code) {
                provoked
                    .faults
                    .push(format!("{}: {code} is declared and never met", operation.id));
            }
        }
    }
    let beside = ["not_found", "method_not_allowed"];
    for code in Code::ALL.iter().map(|code| code.as_str()) {
        let seen = provoked.seen.iter().any(|(_, seen)| seen == code);
        if !seen && !beside.contains(&code) && elsewhere(code).is_none() {
            provoked
                .faults
                .push(format!("{code} is in the table of problems and no test meets it"));
        }
    }
}
