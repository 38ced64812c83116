//! Clients that hang up: whatever they had asked for is done whole or not at all, and nobody else
//! notices.

use std::time::Duration;

use rand::Rng;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::{App, Call, eventually};

const DISPATCHES: usize = 1000;
const AT_ONCE: usize = 40;

/// Sends a dispatch and cuts the connection after a while, answered or not.
async fn cut(address: String, body: String, after: Duration) {
    let mut stream = TcpStream::connect(address).await.expect("the server takes connections");
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    // The server may be gone before we are; then there is nothing to cut.
    let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
    tokio::time::sleep(after).await;
    // Not a polite end: what the server still writes meets a reset.
    let _ = stream.set_zero_linger();
}

#[tokio::test]
async fn a_thousand_cut_connections_leave_nothing_behind() {
    let app = App::start().await;
    let mut calls = JoinSet::new();
    for number in 0..DISPATCHES {
        // Every key is asked for twice, so that creating, reusing and linking are all cut somewhere.
        let key = number / 2;
        let keys = json!({"active_key": format!("a-{key}"), "window_key": format!("w-{key}"), "window": "1h"});
        let body = json!({"name": "cut", "payload": {"key": key}, "uniqueness": keys}).to_string();
        let after = Duration::from_micros(rand::rng().random_range(0..20_000));
        calls.spawn(cut(app.address(), body, after));
        if calls.len() >= AT_ONCE {
            calls
                .join_next()
                .await
                .expect("one of many")
                .expect("it does not panic");
        }
    }
    calls.join_all().await;

    // What was taken in is still being done: wait until the number of jobs stands still and nobody works.
    let mut seen = -1;
    eventually("the servers to finish what they took in", async || {
        let busy: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity
             where datname = current_database() and pid <> pg_backend_pid() and state <> 'idle'",
        )
        .fetch_one(app.sql())
        .await
        .expect("a count");
        let jobs: i64 = sqlx::query_scalar("select count(*) from jobs")
            .fetch_one(app.sql())
            .await
            .expect("a count");
        let settled = jobs == std::mem::replace(&mut seen, jobs) && busy == 0;
        if settled {
            Ok(())
        } else {
            Err(format!("{busy} sessions at work, {jobs} jobs"))
        }
    })
    .await;
    assert!(seen > 0, "not one of a thousand dispatches was taken in");

    // Every job is whole: with its payload, and with both of its keys.
    let torn: Vec<String> = sqlx::query_scalar(
        "select format('%s %s', job_id, payload) from jobs j
         where payload::jsonb ->> 'key' is distinct from substr(active_key, 3)
            or (select count(*) from job_keys k where k.app_id = j.app_id and k.job_id = j.job_id) <> 2",
    )
    .fetch_all(app.sql())
    .await
    .unwrap();
    assert!(torn.is_empty(), "torn jobs: {torn:?}");

    // Whoever asks again gets the job there is, or the one that never was.
    for key in 0..DISPATCHES / 2 {
        let keys = json!({"active_key": format!("a-{key}"), "window_key": format!("w-{key}"), "window": "1h"});
        let body = json!({"name": "cut", "payload": {"key": key}, "uniqueness": keys});
        let answer = app.post("/v1/jobs", &body, 200..=201).await;
        app.get(&format!("/v1/jobs/{}", answer.job_id()), 200).await;
    }
    let jobs: i64 = sqlx::query_scalar("select count(*) from jobs")
        .fetch_one(app.sql())
        .await
        .unwrap();
    assert_eq!(jobs, (DISPATCHES / 2) as i64, "one job for each key");
    app.finish().await;
}

/// The same for a server that is killed outright: no key without its job, no job without its key, and
/// no answer that was given is taken back.
#[tokio::test]
async fn a_killed_server_takes_no_answer_back() {
    let mut app = App::start().await;
    for round in 0..10 {
        let mut calls = JoinSet::new();
        for number in 0..AT_ONCE {
            let (client, key) = (app.client(0).clone(), format!("k-{round}-{number}"));
            calls.spawn(async move {
                let keys = json!({"active_key": key, "window_key": key, "window": "1h"});
                let body = json!({"name": "killed", "uniqueness": keys}).to_string().into_bytes();
                let call = Call::json("/v1/jobs", body);
                let answer = client.send(call).await.ok().filter(|answer| answer.status == 201);
                (key, answer.map(|answer| answer.job_id().to_owned()))
            });
        }
        tokio::time::sleep(Duration::from_millis(rand::rng().random_range(0..30))).await;
        app.replace_server(0).await;
        for (key, acknowledged) in calls.join_all().await {
            let keys = json!({"active_key": key, "window_key": key, "window": "1h"});
            let answer = app
                .post("/v1/jobs", &json!({"name": "killed", "uniqueness": keys}), 200..=201)
                .await;
            if let Some(id) = acknowledged {
                assert_eq!(answer.job_id(), id, "a job that was acknowledged is gone");
            }
        }
    }
    app.finish().await;
}
