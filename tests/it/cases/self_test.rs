//! The runner against a tiny server of canned answers: a case that does not hold must fail.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::run_case;
use crate::support::Client;

/// Answers by path: `/echo` gives back what came, `/count` a number that grows, `/slow` takes 200 ms.
async fn canned() -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let counter = Arc::new(Mutex::new(0));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, counter.clone()));
        }
    });
    Client::new(&format!("http://{address}"))
}

async fn serve(stream: TcpStream, counter: Arc<Mutex<u64>>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Some(path) = line.split(' ').nth(1).map(str::to_owned) else {
            return Ok(());
        };
        let mut headers = HashMap::new();
        loop {
            let mut header = String::new();
            stream.read_line(&mut header).await?;
            let Some((name, value)) = header.trim().split_once(": ") else {
                break;
            };
            headers.insert(name.to_lowercase(), value.to_owned());
        }
        let length = headers
            .get("content-length")
            .and_then(|length| length.parse().ok())
            .unwrap_or(0);
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let (status, text) = match path.as_str() {
            "/echo" => (200, String::from_utf8_lossy(&body).into_owned()),
            "/type" => (200, json!({"type": headers.get("content-type")}).to_string()),
            "/path/%C3%A9%23" => (200, json!({"seen": path}).to_string()),
            "/hex" => (200, json!({"bytes": body}).to_string()),
            "/huge" => (200, r#"{"n": 1e400, "m": 1.0}"#.to_owned()),
            "/text" => (200, "no JSON".to_owned()),
            "/count" => {
                let mut counter = counter.lock().expect("nobody panics with it");
                *counter += 1;
                (200, json!({"n": *counter, "first": *counter == 1}).to_string())
            }
            "/slow" => {
                tokio::time::sleep(Duration::from_millis(200)).await;
                (200, "{}".to_owned())
            }
            _ => (404, json!({"code": "not_found"}).to_string()),
        };
        let head = format!(
            "HTTP/1.1 {status} X\r\nx-seen: {}\r\ncontent-length: {}\r\n\r\n",
            headers.len(),
            text.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(text.as_bytes()).await?;
    }
}

async fn outcome(steps: Value) -> Result<(), String> {
    run_case(&canned().await, &json!({"name": "self-test", "steps": steps})).await
}

#[tokio::test]
async fn cases_that_hold_pass() {
    let hold = [
        json!([{"get": "/nothing", "expect": {"status": 404, "json": {"code": "not_found"}}}]),
        json!([{"get": "/nothing", "expect": {"status": [200, 404]}}]),
        json!([
            {"post": "/echo", "json": {"a": [1, 2]}, "save": {"two": "/a/-1"}},
            {"post": "/echo", "json": {"b": "${two}", "c": "<${two}>"}, "expect": {"json": {"b": 2, "c": "<2>"}}}
        ]),
        json!([{"post": "/echo", "raw": "{\"x\": \"${ab:3}\"}", "expect": {"json": {"x": "ababab"}}}]),
        json!([{"post": "/hex", "raw_hex": "00ff", "expect": {"json": {"bytes": [0, 255]}}}]),
        json!([{"post": "/type", "raw": "", "headers": {"Content-Type": "text/plain"},
                "expect": {"json": {"type": "text/plain"}}}]),
        json!([{"post": "/type", "json": 1, "headers": {"Content-Type": null}, "expect": {"json": {"type": null}}}]),
        json!([{"get": "/path/é#", "expect": {"json": {"seen": {"$any": true}}, "headers": {"X-Seen": {"$re": "^.$"}}}}]),
        json!([{"get": "/huge", "expect": {"json": {"n": {"$raw": "1e400"}, "m": {"$raw": "1.0"}}}}]),
        json!([{"get": "/text", "expect": {"json": {"$absent": true}}}]),
        json!([{"get": "/slow", "at_least_ms": 150, "within_ms": 20000}]),
        json!([{"eventually_ms": 20000, "step": {"get": "/count", "expect": {"json": {"n": 3}}}}]),
        json!([
            {"parallel": 5, "step": {"get": "/count"}, "count": [{"pointer": "/first", "value": true, "is": 1}]},
            {"parallel": [{"post": "/echo", "json": {"i": "${i}"}}, {"post": "/echo", "json": {"i": "${i}"}}],
             "count": [{"pointer": "/i", "value": 1, "is": 1}], "save": {"i": "/i"}},
            {"post": "/echo", "json": {"i": "${i}"}, "expect": {"json": {"i": 0}}},
            {"parallel": 3, "step": {"post": "/echo", "json": {"same": 1}}, "same": ["/same"]}
        ]),
        json!([{"sleep_ms": 1}]),
    ];
    for steps in hold {
        assert_eq!(outcome(steps.clone()).await, Ok(()), "{steps}");
    }
}

#[tokio::test]
async fn cases_that_do_not_hold_fail() {
    let broken = [
        json!([]),
        json!([{"get": "/nothing"}]),
        json!([{"get": "/nothing", "expect": {"status": 200}}]),
        json!([{"get": "/nothing", "expect": {"status": [200, 201]}}]),
        json!([{"get": "/nothing", "expect": {"status": 404, "json": {"code": "other"}}}]),
        json!([{"post": "/echo", "json": {"a": 1}, "expect": {"headers": {"X-Other": {"$any": true}}}}]),
        json!([{"post": "/echo", "json": {"a": 1}, "save": {"b": "/b"}}]),
        json!([{"get": "/huge", "expect": {"json": {"n": {"$raw": "1E400"}}}}]),
        json!([{"get": "/huge", "expect": {"json": {"m": {"$raw": "1.00"}}}}]),
        json!([{"get": "/text", "expect": {"json": {"a": 1}}}]),
        json!([{"get": "/slow", "within_ms": 100}]),
        json!([{"get": "/huge", "at_least_ms": 10000}]),
        json!([{"eventually_ms": 100, "step": {"get": "/count", "expect": {"json": {"n": 0}}}}]),
        json!([{"parallel": 5, "step": {"get": "/count"}, "count": [{"pointer": "/first", "value": true, "is": 2}]}]),
        json!([{"parallel": 5, "step": {"get": "/count"}, "same": ["/n"]}]),
        json!([{"parallel": 2, "step": {"get": "/nothing"}}]),
        json!([{"get": "/echo", "expects": {"status": 200}}]),
        json!([{"head": "/echo"}]),
        json!([{"post": "/hex", "raw_hex": "0g"}]),
        json!([{"sleep_ms": 1}, {"get": "/nothing"}]),
    ];
    for steps in broken {
        assert!(outcome(steps.clone()).await.is_err(), "{steps}");
    }
}
