//! Requests that lie about themselves, byte by byte.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{BOUND, assert_alive, stored_jobs};
use crate::support::App;

/// What a client does when it has written everything.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    EndSending,
    Wait,
}

/// Writes the bytes, and reads all that comes back until the server closes.
///
/// The server may answer and close before it has read everything; that is no failure.
async fn exchange(app: &App, pieces: impl IntoIterator<Item = Vec<u8>>, then: Then, what: &str) -> String {
    let stream = TcpStream::connect(app.address())
        .await
        .expect("the server takes connections");
    let (mut reading, mut writing) = stream.into_split();
    let pieces = pieces.into_iter();
    let writer = async move {
        for piece in pieces {
            if writing.write_all(&piece).await.is_err() {
                return;
            }
        }
        if then == Then::EndSending {
            let _ = writing.shutdown().await;
        }
        // Kept open: whether the server closes is up to it.
        tokio::time::sleep(BOUND).await;
    };
    let reader = async {
        let mut answer = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match reading.read(&mut buffer).await {
                Ok(0) => break,
                Ok(count) => answer.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => panic!("{what}: {error}"),
            }
        }
        String::from_utf8_lossy(&answer).into_owned()
    };
    let both = async {
        tokio::select! {
            answer = reader => Some(answer),
            () = async { writer.await; std::future::pending().await } => None,
        }
    };
    let answer = timeout(BOUND, both).await.ok().flatten();
    answer.unwrap_or_else(|| panic!("{what}: the server neither answered nor closed within {BOUND:?}"))
}

fn request(headers: &str, body: &str) -> Vec<u8> {
    format!("POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}\r\n{body}").into_bytes()
}

/// The statuses of all answers in what came back.
fn statuses(answer: &str) -> Vec<&str> {
    answer
        .split("HTTP/1.1 ")
        .skip(1)
        .filter_map(|answer| answer.get(..3))
        .collect()
}

#[tokio::test]
async fn a_length_that_lies_creates_nothing() {
    let app = App::start().await;
    let body = r#"{"name":"x"}"#;
    let lies = [
        ("a length beyond the body", request("content-length: 1000\r\n", body)),
        ("a length within the body", request("content-length: 5\r\n", body)),
        ("no body at all", request("content-length: 12\r\n", "")),
        ("a negative length", request("content-length: -1\r\n", body)),
        ("a length in words", request("content-length: many\r\n", body)),
        ("a length with a sign", request("content-length: +12\r\n", body)),
        (
            "a length beyond any",
            request("content-length: 99999999999999999999999\r\n", body),
        ),
        (
            "two lengths",
            request("content-length: 5\r\ncontent-length: 12\r\n", body),
        ),
        ("an unknown coding", request("transfer-encoding: gzip\r\n", body)),
        (
            "a chunk of no size",
            request("transfer-encoding: chunked\r\n", "x\r\n{\"name\":\"x\"}\r\n0\r\n\r\n"),
        ),
        (
            "a chunk that ends early",
            request("transfer-encoding: chunked\r\n", "ff\r\n{\"name\":\"x\"}"),
        ),
        (
            "chunks without an end",
            request("transfer-encoding: chunked\r\n", "c\r\n{\"name\":\"x\"}\r\n"),
        ),
        (
            "a chunk beyond any",
            request("transfer-encoding: chunked\r\n", "fffffffffffffffff\r\n{}\r\n0\r\n\r\n"),
        ),
    ];
    for (what, bytes) in lies {
        let answer = exchange(&app, [bytes], Then::EndSending, what).await;
        assert!(
            statuses(&answer).iter().all(|status| status.starts_with('4')),
            "{what}: {answer}"
        );
        assert_eq!(stored_jobs(&app).await, 0, "{what}");
    }
    assert_alive(&app).await;
    app.finish().await;
}

#[tokio::test]
async fn chunks_are_as_good_as_a_length() {
    let app = App::start().await;
    let body = "5\r\n{\"nam\r\n7\r\ne\":\"x\"}\r\n0\r\n\r\n";
    let answer = exchange(
        &app,
        [request("transfer-encoding: chunked\r\nconnection: close\r\n", body)],
        Then::Wait,
        "chunks",
    )
    .await;
    assert_eq!(statuses(&answer), ["201"], "{answer}");
    app.finish().await;
}

/// Chunks of blanks, as a beginning and a chunk to repeat.
fn blanks(path: &str) -> (Vec<u8>, Vec<u8>) {
    let headers = "host: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\nconnection: close";
    let head = format!("POST {path} HTTP/1.1\r\n{headers}\r\n\r\n").into_bytes();
    (
        head,
        [b"10000\r\n".to_vec(), vec![b' '; 0x10000], b"\r\n".to_vec()].concat(),
    )
}

#[tokio::test]
async fn twenty_megabytes_without_a_length_are_too_large() {
    let app = App::start().await;
    for path in ["/v1/jobs", "/v1/jobs/batch", "/v1/jobs/preview"] {
        let (head, chunk) = blanks(path);
        let end = std::iter::once(b"0\r\n\r\n".to_vec());
        let pieces = std::iter::once(head).chain(std::iter::repeat_n(chunk, 320)).chain(end);
        let answer = exchange(&app, pieces, Then::Wait, path).await;
        assert_eq!(statuses(&answer), ["413"], "{path}: {answer}");
        assert!(answer.contains("application/problem+json"), "{path}: {answer}");
        assert!(answer.contains("too_large"), "{path}: {answer}");
    }
    assert_eq!(stored_jobs(&app).await, 0);
    assert_alive(&app).await;
    app.finish().await;
}

/// Whoever never stops is cut off; whether the answer still reaches him is his affair.
#[tokio::test]
async fn a_body_without_an_end_is_cut_off() {
    let app = App::start().await;
    for path in ["/v1/jobs", "/v1/jobs/batch"] {
        let (head, chunk) = blanks(path);
        let answer = exchange(
            &app,
            std::iter::once(head).chain(std::iter::repeat(chunk)),
            Then::Wait,
            path,
        )
        .await;
        assert!(
            statuses(&answer).iter().all(|status| *status == "413"),
            "{path}: {answer}"
        );
    }
    assert_alive(&app).await;
    app.finish().await;
}

#[tokio::test]
async fn heads_that_are_none_end_the_connection() {
    let app = App::start().await;
    let long = "x".repeat(1 << 20);
    let heads = [
        (
            "no HTTP",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(),
        ),
        ("nothing", Vec::new()),
        ("half a line", b"POST /v1/jo".to_vec()),
        ("no version", b"POST /v1/jobs\r\n\r\n".to_vec()),
        (
            "a header without a colon",
            b"POST /v1/jobs HTTP/1.1\r\nhost\r\n\r\n".to_vec(),
        ),
        (
            "a NUL in a header",
            b"GET /v1/jobs HTTP/1.1\r\nhost: a\0b\r\n\r\n".to_vec(),
        ),
        (
            "a long path",
            format!("GET /{long} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").into_bytes(),
        ),
        (
            "a long header",
            format!("GET /v1/jobs HTTP/1.1\r\nhost: x\r\nx: {long}\r\n\r\n").into_bytes(),
        ),
        (
            "many headers",
            format!("GET /v1/jobs HTTP/1.1\r\nhost: x\r\n{}\r\n", "x: y\r\n".repeat(10_000)).into_bytes(),
        ),
    ];
    for (what, bytes) in heads {
        let answer = exchange(&app, [bytes], Then::EndSending, what).await;
        assert!(
            statuses(&answer).iter().all(|status| status.starts_with('4')),
            "{what}: {answer}"
        );
    }
    assert_alive(&app).await;
    app.finish().await;
}

/// A hundred clients that begin a request and then fall silent keep nobody out.
#[tokio::test]
async fn silent_clients_keep_nobody_out() {
    let app = App::start().await;
    let mut silent = Vec::new();
    for number in 0..100 {
        let mut stream = TcpStream::connect(app.address()).await.unwrap();
        let bytes = request("content-length: 1000000\r\n", r#"{"name":"#);
        let part = if number % 2 == 0 { bytes.len() } else { 20 };
        stream.write_all(&bytes[..part]).await.unwrap();
        silent.push(stream);
    }
    timeout(Duration::from_secs(10), assert_alive(&app))
        .await
        .expect("an answer beside the silent ones");
    drop(silent);
    app.finish().await;
}
