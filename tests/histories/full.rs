//! A lock table that somebody else has filled, down to the last lock.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::faults::fill_lock_table;
use crate::stage::{Postgres, Stage};

/// Longer than a handful of attempts takes, and shorter than a server's patience with its database.
const FULL: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_lock_table_makes_dispatches_wait_and_fails_none() {
    let postgres = Arc::new(Postgres::start().await);
    let stage = Arc::new(Stage::set(&postgres, 0, 1, None, None).await);
    let door = stage.door(0).expect("it was started");
    let filling = stage.clone();
    let full = tokio::spawn(async move { fill_lock_table(&filling, FULL).await });
    let mut answers = Vec::new();
    while !full.is_finished() {
        let body = json!({"name": "n", "uniqueness": {"active_key": format!("k{}", answers.len())}});
        let request = door.http.post(format!("{}/v1/jobs", door.base));
        let request = request
            .header("content-type", "application/json")
            .body(body.to_string());
        answers.push(request.send().await.expect("the server is there").status().as_u16());
    }
    assert!(full.await.expect("no panic"), "the table was not full");
    assert!(
        !answers.is_empty() && answers.iter().all(|status| *status == 201),
        "{answers:?}"
    );
    let retries = door
        .http
        .get(format!("{}/metrics", door.base))
        .send()
        .await
        .expect("metrics");
    let retries = retries.text().await.expect("text");
    assert!(
        retries.contains("reason=\"lock_table_full\""),
        "no dispatch met the full table"
    );
    stage.stop(0).await;
    stage.pool.close().await;
    drop(stage);
    Arc::into_inner(postgres).expect("the stage is gone").stop().await;
}
