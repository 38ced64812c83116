//! Every problem is provoked over HTTP, and is one that the operation declares; and the other way round:
//! what an operation declares can happen.

use std::collections::BTreeSet;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use serde_json::json;
use solejob::http::problem::Code;

use super::described::{Described, Operation};
use super::requests::{REQUESTS, TWO_KEYS};
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
    let path = path.replace("{queue}", "nothing").replace("{scope}", "nothing");
    let mut path = path.replace("{name}", "nothing");
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
    let declared = json!({"unique_while_active": {"key": "payload"}});
    client.put("/v1/job-types/typed", &declared, 201).await;
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
        let mut call = call(&operation, &path, "application/json", &body);
        if body == TWO_KEYS {
            call.headers
                .insert("idempotency-key", HeaderValue::from_static("another"));
        }
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
            for (id, path) in [("dispatch", "/v1/jobs"), ("preview", "/v1/jobs/preview")] {
                let operation = provoked.described.operation(id);
                let mut call = call(
                    &operation,
                    path,
                    "application/json",
                    r#"{"name": "n", "idempotency_key": "a"}"#,
                );
                call.headers.insert("idempotency-key", HeaderValue::from_static("b"));
                provoked.note(&operation, "uniqueness_key_mismatch", &client.send(call).await.unwrap());
            }
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
                let about = || log.lines().filter(|line| line.contains(id)).collect::<String>();
                line.map(drop)
                    .ok_or_else(|| format!("no such line for {}: {}", operation.id, about()))
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
