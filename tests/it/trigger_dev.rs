//! The wire of Trigger.dev's clients.

mod hostile;
mod rules;
mod sdk;

use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use crate::support::{Answer, Call, Client, Status};

/// A batch's items, one on each line.
fn ndjson(path: &str, lines: impl Into<Vec<u8>>) -> Call {
    let mut call = Call::json(path, lines);
    call.headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"))]);
    call
}

async fn trigger(client: &Client, task: &str, body: &Value, expected: impl Status) -> Answer {
    client
        .post(&format!("/api/v1/tasks/{task}/trigger"), body, expected)
        .await
}

/// Triggers as the SDK does, with the key that a request keeps while it is sent again.
async fn trigger_keyed(client: &Client, task: &str, body: &Value, key: &str) -> Answer {
    let mut call = Call::json(&format!("/api/v1/tasks/{task}/trigger"), body.to_string());
    let name = HeaderName::from_static("x-trigger-request-idempotency-key");
    call.headers.insert(name, key.parse().expect("a header"));
    client.send(call).await.expect("an answer")
}

async fn batch(client: &Client, body: &Value) -> String {
    client.post("/api/v3/batches", body, 200).await.str("/id").to_owned()
}

async fn items(client: &Client, batch: &str, items: &[Value]) -> Answer {
    let lines: String = items.iter().map(|item| format!("{item}\n")).collect();
    let call = ndjson(&format!("/api/v3/batches/{batch}/items"), lines);
    client.send(call).await.expect("an answer")
}

/// Checks that this is an error as the SDK reads it.
#[track_caller]
fn assert_refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{}", answer.text);
    assert_eq!(
        answer.header("content-type"),
        Some("application/json"),
        "{}",
        answer.text
    );
    assert_eq!(answer.str("/code"), code, "{}", answer.text);
    assert!(!answer.str("/error").is_empty(), "{}", answer.text);
    if status < 500 {
        assert_eq!(
            answer.header("x-should-retry"),
            Some("false"),
            "the SDK would send it again"
        );
    }
}

/// How many jobs there are.
async fn jobs(client: &Client) -> usize {
    let listed = client.get("/v1/jobs?limit=200", 200).await;
    listed.at("/jobs").as_array().map_or(0, Vec::len)
}

fn item(index: usize, payload: impl Into<Value>) -> Value {
    json!({"index": index, "task": "t", "payload": payload.into()})
}

const METHODS: [Method; 5] = [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::PATCH];
