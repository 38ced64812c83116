//! Connections of clients: there is room for so many, and neither those beyond nor a lack of files end a server.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;
use tokio::net::TcpStream;

use crate::support::{App, Client, Options, Server, eventually, solejob};

/// Longer than anybody is turned away for who says nothing.
const SOON: Duration = Duration::from_secs(15);

async fn silent(address: &str, count: usize) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..count {
        streams.push(TcpStream::connect(address).await.unwrap());
    }
    streams
}

async fn served(client: &Client) {
    eventually("room for a connection", async || {
        let call = crate::support::Call {
            method: reqwest::Method::GET,
            path: "/healthz".into(),
            headers: Default::default(),
            body: None,
        };
        match client.send(call).await {
            Ok(answer) if answer.status == 200 => Ok(()),
            Ok(answer) => Err(answer.text),
            Err(error) => Err(error),
        }
    })
    .await;
}

#[tokio::test]
async fn a_connection_too_many_is_answered_at_once() {
    let app = App::with(Options::default().arg("--http-connections=4")).await;
    // They say nothing, and are there all the same.
    let held = silent(&app.address(), 4).await;
    let refused = app.get("/healthz", 503).await;
    refused.assert_problem(503, &["overloaded"]);
    assert_eq!(refused.at("/outcome"), "none", "{}", refused.text);
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert!(refused.took < SOON, "it took {:?}", refused.took);
    // Whatever is asked for: it is heard although nobody reads what comes with it.
    let large = json!({"name": "n", "payload": "x".repeat(500_000)});
    app.post("/v1/jobs", &large, 503)
        .await
        .assert_problem(503, &["overloaded"]);
    // More of them than are turned away at a time: each of those goes in the end, and who comes behind them is heard.
    let crowd = silent(&app.address(), 300).await;
    let refused = app.get("/healthz", 503).await;
    assert!(refused.took < SOON, "it took {:?}", refused.took);
    drop((held, crowd));
    served(&app).await;
    let metrics = app.get("/metrics", 200).await.text;
    assert!(metrics.contains("solejob_http_connections 1\n"), "{metrics}");
    assert!(app.counter("solejob_http_connections_turned_away_total").await >= 303);
    app.post("/v1/jobs", &large, 201).await;
    app.finish().await;
}

#[tokio::test]
async fn a_server_out_of_files_goes_on_when_there_are_some() {
    let app = App::start().await;
    let plain = solejob(app.database_url());
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "ulimit -n 360 && exec \"$0\" serve --anonymous --listen 127.0.0.1:0",
    ]);
    command.arg(plain.get_program());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut server = Server::start(command).await;
    let client = Client::new(&server.base);
    // 360, less 256 that may be turned away, 64 for itself, and 15 for the database.
    let log = server.log.text();
    assert!(
        log.contains("takes fewer connections") && log.contains("\"possible\":25"),
        "{log}"
    );
    let held = silent(&client.address(), 25).await;
    client.get("/healthz", 503).await.assert_problem(503, &["overloaded"]);
    drop(held);
    served(&client).await;

    // As if something else had taken the rest.
    let files = |current| {
        let limit = Rlimit {
            current: Some(current),
            maximum: Some(360),
        };
        prlimit(Some(Pid::from_child(&server.child)), Resource::Nofile, limit).unwrap();
    };
    files(5);
    let began = Instant::now();
    let failures = || server.log.text().matches("no connection can be taken").count();
    let mend = async {
        eventually("the server to be out of files", async || match failures() {
            2.. => Ok(()),
            _ => Err("it is not"),
        })
        .await;
        assert!(failures() as f32 <= began.elapsed().as_secs_f32() + 2.0, "it spins");
        files(360);
    };
    let waiting = Client::new(&server.base);
    tokio::join!(served(&waiting), mend);
    assert!(server.stop().await.success());
    app.finish().await;
}
