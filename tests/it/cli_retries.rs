//! When the command line sends a request again, against a server that fails as it is told to.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::Cli;

const RECEIPT: &str = r#"{"job_id":"0193a5c4-9f3e-7c11-8000-4a1f6c7d2e90","name":"a","disposition":"created","duplicate_match":null,"state":"pending"}"#;

/// How the next request is met. When all are used up, with a receipt.
#[derive(Clone, Copy)]
enum Fate {
    /// Read, and the connection closed without a word.
    Hangup,
    /// 503 with this outcome and a second of `Retry-After`.
    Unavailable(&'static str),
    Html(u16),
}

/// A server with these fates; counts the requests that it has read.
async fn server(fates: &[Fate]) -> (Cli, Arc<Mutex<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let cli = Cli::new(&format!("http://{}", listener.local_addr().unwrap()));
    let (count, fates) = (Arc::new(Mutex::new(0)), fates.to_vec());
    let counted = count.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            read_request(&mut stream).await;
            let number = {
                let mut count = counted.lock().unwrap();
                *count += 1;
                *count - 1
            };
            let (status, kind, body) = match fates.get(number) {
                Some(Fate::Hangup) => continue,
                Some(Fate::Unavailable(outcome)) => (
                    503,
                    "application/problem+json",
                    format!(r#"{{"code":"overloaded","detail":"busy","outcome":"{outcome}"}}"#),
                ),
                Some(Fate::Html(status)) => (*status, "text/html", "<h1>Oh</h1>".into()),
                None => (201, "application/json", RECEIPT.to_owned()),
            };
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nretry-after: 1\r\nconnection: close\r\n\r\n"
            );
            let _ = stream.write_all((head + &body).as_bytes()).await;
        }
    });
    (cli, count)
}

async fn read_request(stream: &mut TcpStream) {
    let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut buffer).await.unwrap_or(0);
        read.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&read).to_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if count == 0 || body.len() >= length.map_or(0, |length| length.parse::<usize>().unwrap()) {
            return;
        }
    }
}

const PLAIN: &[&str] = &["dispatch", "a"];
const KEYED: &[&str] = &["dispatch", "a", "--window-key", "k", "--window", "1d"];
const ACTIVE: &[&str] = &["dispatch", "a", "--active-key", "k"];
const RELEASED: &[&str] = &[
    "dispatch",
    "a",
    "--window-key",
    "k",
    "--window",
    "1d",
    "--release-on",
    "succeeded",
];

async fn check(fates: &[Fate], args: &[&str], code: i32, requests: usize) -> String {
    let (cli, count) = server(fates).await;
    let ran = cli.run(args, code).await;
    assert_eq!(*count.lock().unwrap(), requests, "requests of {args:?}: {ran:?}");
    ran.stderr
}

#[tokio::test]
async fn what_may_have_been_done_is_repeated_only_under_a_window_key() {
    for args in [PLAIN, ACTIVE, RELEASED] {
        let said = check(&[Fate::Hangup], args, 5, 1).await;
        assert!(said.contains("may have been done"), "{said}");
        check(&[Fate::Unavailable("unknown")], args, 5, 1).await;
        check(&[Fate::Html(502)], args, 5, 1).await;
    }
    check(
        &[Fate::Hangup, Fate::Unavailable("unknown"), Fate::Html(502)],
        KEYED,
        0,
        4,
    )
    .await;
}

#[tokio::test]
async fn what_was_surely_not_done_is_always_repeated_when_the_server_says() {
    let began = Instant::now();
    check(&[Fate::Unavailable("none")], PLAIN, 0, 2).await;
    assert!(began.elapsed() >= Duration::from_secs(1), "Retry-After is honoured");
    check(
        &[Fate::Unavailable("none")],
        &["dispatch", "a", "--retry-for", "0s"],
        5,
        1,
    )
    .await;
}

#[tokio::test]
async fn what_is_no_server_of_ours_is_told_apart() {
    let said = check(&[Fate::Html(404)], KEYED, 1, 1).await;
    assert!(said.contains("does not look like"), "{said}");
    check(&[Fate::Html(302)], KEYED, 1, 1).await;
    check(&[Fate::Html(200)], KEYED, 1, 1).await;
}

#[tokio::test]
async fn a_server_that_comes_back_in_time_is_met() {
    // A port that nobody listens on, until somebody does.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let cli = Cli::new(&format!("http://{address}"));
    let refused = cli.run(&["jobs", "list", "--retry-for", "0s"], 5).await;
    assert!(refused.stderr.contains("no server answers"), "{refused:?}");
    let running = tokio::spawn(async move { cli.run(PLAIN, 0).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let listener = TcpListener::bind(address).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    read_request(&mut stream).await;
    let head = "HTTP/1.1 201 X\r\ncontent-type: application/json\r\ncontent-length: ";
    let answer = format!("{head}{}\r\n\r\n{RECEIPT}", RECEIPT.len());
    stream.write_all(answer.as_bytes()).await.unwrap();
    assert!(running.await.unwrap().stdout.starts_with("created"));
}
