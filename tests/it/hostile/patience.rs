//! Clients that keep silent in the middle of something: they are given up, and those who wait for their turn are not.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{App, Options};

/// What the server of these tests has, and how much later a busy machine may notice.
const PATIENCE: &str = "1s";
const BY_THEN: Duration = Duration::from_secs(15);

async fn impatient() -> App {
    App::with(Options::default().arg("--client-patience").arg(PATIENCE)).await
}

async fn connect(app: &App) -> TcpStream {
    TcpStream::connect(app.address()).await.unwrap()
}

/// All that comes until the server hangs up.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let ended = tokio::time::timeout(BY_THEN, stream.read_to_end(&mut bytes)).await;
    // A reset is as good an end as any.
    let _how = ended.expect("the server never hung up");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn silent_connections_and_half_a_head_are_given_up() {
    let app = impatient().await;
    for begun in ["", "POST /v1/jobs HT", "GET /healthz HTTP/1.1\r\nhost: x\r\nx-a: "] {
        let mut stream = connect(&app).await;
        stream.write_all(begun.as_bytes()).await.unwrap();
        let said = rest(&mut stream).await;
        assert!(!said.contains("200 OK"), "{begun:?} was answered {said}");
    }
    app.finish().await;
}

#[tokio::test]
async fn a_body_that_stalls_is_given_up_and_makes_no_job() {
    let app = impatient().await;
    let mut stream = connect(&app).await;
    let body = json!({"name": "n", "payload": "x".repeat(100_000)}).to_string();
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&body.as_bytes()[..50_000]).await.unwrap();
    let said = rest(&mut stream).await;
    assert!(said.starts_with("HTTP/1.1 400 "), "{said}");
    assert!(said.contains("did not go on for 1s"), "{said}");
    assert_eq!(app.get("/v1/jobs", 200).await.at("/jobs"), &json!([]));
    app.finish().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answers_is_given_up() {
    let app = impatient().await;
    let job = app
        .post("/v1/jobs", &json!({"name": "n", "payload": "x".repeat(1_000_000)}), 201)
        .await;
    let ask = format!("GET /v1/jobs/{} HTTP/1.1\r\nhost: x\r\n\r\n", job.job_id());
    let mut stream = connect(&app).await;
    // More than any buffer between the two holds.
    stream.write_all(ask.repeat(40).as_bytes()).await.unwrap();
    // The last answer that fits is written, the next one is not; a client that asks again later hears of it.
    let give_up = Instant::now() + BY_THEN;
    while stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .is_ok()
    {
        assert!(Instant::now() < give_up, "the server still holds the connection");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let answers = rest(&mut stream).await.matches("HTTP/1.1 200 OK").count();
    assert!(
        answers < 40,
        "all {answers} answers were written to a client that did not read"
    );
    app.finish().await;
}

#[tokio::test]
async fn a_worker_that_waits_is_not_silent() {
    let app = impatient().await;
    let wish = json!({"wait": "3s"});
    let began = Instant::now();
    let answer = app.post("/v1/worker/reserve", &wish, 200).await;
    assert_eq!(answer.at("/jobs"), &json!([]));
    assert!(began.elapsed() >= Duration::from_secs(3), "it was answered early");
    // Nor is a body that comes slowly, and keeps coming.
    let mut stream = connect(&app).await;
    let body = json!({"name": "slow"}).to_string();
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    for byte in body.as_bytes().chunks(6) {
        tokio::time::sleep(Duration::from_millis(600)).await;
        stream.write_all(byte).await.unwrap();
    }
    let said = rest(&mut stream).await;
    assert!(said.starts_with("HTTP/1.1 201 "), "{said}");
    app.finish().await;
}
