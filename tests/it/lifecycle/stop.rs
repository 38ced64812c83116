//! The end of a server: what was begun is finished, in time.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{App, Gate, Server, eventually, solejob};

/// For a busy machine.
const AND_SOME: Duration = Duration::from_secs(2);

/// A server beside the application's own, with so much time to end in.
async fn server(app: &App, grace: &str) -> Server {
    let mut command = solejob(app.database_url());
    command.args([
        "serve",
        "--anonymous",
        "--listen",
        "127.0.0.1:0",
        "--shutdown-grace",
        grace,
    ]);
    Server::start(command).await
}

fn address(server: &Server) -> String {
    server
        .base
        .trim_start_matches("http://")
        .trim_end_matches('/')
        .to_owned()
}

async fn logged(server: &Server, text: &str) {
    eventually(text, async || {
        let log = server.log.text();
        if log.contains(text) { Ok(()) } else { Err(log) }
    })
    .await;
}

/// Sends what there is of a request, and not its end.
async fn begin(server: &Server, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address(server)).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

const POST: &str = "POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";

async fn post(server: &Server, body: &str) -> TcpStream {
    begin(server, &format!("{POST}content-length: {}\r\n\r\n{body}", body.len())).await
}

/// An upload of which the server has read a part, and waits for the rest.
async fn upload(server: &Server, body: &str, part: usize) -> TcpStream {
    let length = body.len();
    let head = format!("{POST}content-length: {length}\r\nexpect: 100-continue\r\n\r\n");
    let mut stream = begin(server, &head).await;
    let mut leave = [0; 25];
    stream.read_exact(&mut leave).await.unwrap();
    assert_eq!(&leave, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(&body.as_bytes()[..part]).await.unwrap();
    stream
}

/// The status and the text of the answer, until the server closes the connection.
async fn answer(mut stream: TcpStream) -> (String, String) {
    let mut text = String::new();
    stream
        .read_to_string(&mut text)
        .await
        .expect("an answer, and then the end");
    let status = text.split(' ').nth(1).unwrap_or_default().to_owned();
    (status, text)
}

#[tokio::test]
async fn what_was_begun_is_answered_and_nothing_new_is_taken() {
    let app = App::start().await;
    let mut server = server(&app, "20s").await;
    let gate = Gate::close(&app).await;
    let dispatch = r#"{"name": "n", "uniqueness": {"active_key": "a"}}"#;
    let in_flight = post(&server, dispatch).await;
    gate.more_waiting_than(0).await;
    // Taken on, and not read to the end.
    let other = r#"{"name": "n", "uniqueness": {"active_key": "b"}}"#;
    let mut half = upload(&server, other, 10).await;
    let mut idle = begin(&server, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let mut healthy = [0; 12];
    idle.read_exact(&mut healthy).await.unwrap();
    assert_eq!(&healthy, b"HTTP/1.1 200");

    server.ask_to_stop();
    logged(&server, "stopping: no new connections").await;
    eventually("new connections to be refused", async || {
        match TcpStream::connect(address(&server)).await {
            Ok(_) => Err("one was taken"),
            Err(_) => Ok(()),
        }
    })
    .await;
    // A connection without a request is closed.
    answer(idle).await;

    half.write_all(&other.as_bytes()[10..]).await.unwrap();
    gate.open().await;
    for stream in [in_flight, half] {
        let (status, text) = answer(stream).await;
        assert_eq!(status, "201", "{text}");
    }
    let began = Instant::now();
    assert_eq!(server.stop().await.code(), Some(0));
    assert!(
        began.elapsed() < AND_SOME,
        "nothing was left to wait for, and it took {:?}",
        began.elapsed()
    );
    assert!(server.log.text().contains("stopped"));
    let jobs: i64 = sqlx::query_scalar("select count(*) from jobs")
        .fetch_one(app.sql())
        .await
        .unwrap();
    assert_eq!(jobs, 2);
    app.finish().await;
}

/// Balancers that look at `/readyz` have the drain delay to send requests elsewhere; those that come all the same are
/// served.
#[tokio::test]
async fn a_server_that_drains_is_not_ready_and_serves_on() {
    let app = App::start().await;
    let mut command = solejob(app.database_url());
    command.args(["serve", "--anonymous", "--listen", "127.0.0.1:0", "--drain-delay", "4s"]);
    let mut server = Server::start(command).await;
    let client = crate::support::Client::new(&server.base);
    client.get("/readyz", 200).await;

    let began = Instant::now();
    server.ask_to_stop();
    eventually("readiness to end", async || {
        let answer = client.get("/readyz", [200, 503]).await;
        if answer.status == 503 { Ok(()) } else { Err(answer.text) }
    })
    .await;
    client.get("/readyz", 503).await.assert_problem(503, &["shutting_down"]);
    client.get("/healthz", 200).await;
    // A connection of its own.
    let new = crate::support::Client::new(&server.base);
    new.post("/v1/jobs", &json!({"name": "late"}), 201).await;
    // A worker waits on, and gets what comes.
    let reserve = json!({"names": ["later"], "wait": "20s"});
    let waiting = tokio::spawn(async move { new.post("/v1/worker/reserve", &reserve, 200).await });
    client.post("/v1/jobs", &json!({"name": "later"}), 201).await;
    assert_eq!(waiting.await.unwrap().at("/jobs/0/name"), "later");
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "this machine is too busy to tell"
    );

    assert_eq!(server.stop().await.code(), Some(0));
    assert!(began.elapsed() >= Duration::from_secs(4), "the drain was cut short");
    app.finish().await;
}

#[tokio::test]
async fn a_stalled_upload_does_not_hold_the_end_up() {
    let app = App::start().await;
    let mut server = server(&app, "3s").await;
    let body = r#"{"name": "stalled"}"#;
    let mut stalled = upload(&server, body, 5).await;
    let silent = TcpStream::connect(address(&server)).await.unwrap();
    let in_head = begin(&server, "POST /v1/jobs HTT").await;
    let client = crate::support::Client::new(&server.base);
    client.post("/v1/jobs", &json!({"name": "n"}), 201).await;

    let began = Instant::now();
    server.ask_to_stop();
    logged(&server, "cut off").await;
    assert!(
        began.elapsed() >= Duration::from_millis(2_400),
        "uploads have their time"
    );
    assert_eq!(server.stop().await.code(), Some(0));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(3) + AND_SOME, "it took {took:?}");
    assert!(
        !server.log.text().contains("transactions did not finish"),
        "there were none"
    );
    // The upload came to nothing.
    let _ = stalled.write_all(&body.as_bytes()[5..]).await;
    drop((silent, in_head));
    let names: Vec<String> = sqlx::query_scalar("select name from jobs")
        .fetch_all(app.sql())
        .await
        .unwrap();
    assert_eq!(names, ["n"]);
    app.finish().await;
}

/// A dispatch that comes when the dispatcher has closed is refused; one that is being decided for too
/// long is cut off, and leaves nothing.
#[tokio::test]
async fn a_transaction_that_takes_too_long_is_cut_off() {
    let app = App::start().await;
    let mut server = server(&app, "5s").await;
    let gate = Gate::close(&app).await;
    let body = r#"{"name": "n", "uniqueness": {"active_key": "a"}}"#;
    let in_flight = post(&server, body).await;
    gate.more_waiting_than(0).await;
    let mut late = upload(&server, body, 5).await;

    let began = Instant::now();
    server.ask_to_stop();
    logged(&server, "requests did not finish in time").await;
    late.write_all(&body.as_bytes()[5..]).await.unwrap();
    let (status, text) = answer(late).await;
    assert!(status == "503" && text.contains(r#""shutting_down""#), "{text}");
    assert!(
        text.contains("\"none\"") && text.to_lowercase().contains("retry-after"),
        "{text}"
    );

    assert_eq!(server.stop().await.code(), Some(0));
    assert!(server.log.text().contains("transactions did not finish in time"));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5) + AND_SOME, "it took {took:?}");
    drop(in_flight);
    // PostgreSQL notices that nobody waits any more, before the lock is free.
    eventually("the session to be gone", async || match gate.waiting().await {
        0 => Ok(()),
        waiting => Err(format!("{waiting} wait")),
    })
    .await;
    gate.open().await;
    let jobs: i64 = sqlx::query_scalar("select count(*) from jobs")
        .fetch_one(app.sql())
        .await
        .unwrap();
    assert_eq!(jobs, 0);
    app.finish().await;
}
