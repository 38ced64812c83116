//! Nobody is told that nothing was done while something was: not when the change is stored and the look for its answer
//! fails, and not when a statement that stores by itself gets no answer.

use serde_json::json;

use super::Behind;
use crate::support::{App, Call, Session, eventually};

/// What the answer shows is read in the transaction that makes the change. Read behind it, it could fail behind it.
#[tokio::test]
async fn a_retry_that_cannot_be_shown_is_not_made() {
    let app = App::start().await;
    let job = app.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    let path = format!("/v1/jobs/{}", job.job_id());
    app.post_nothing(&format!("{path}/cancel"), 200).await;
    // A job without keys is retried without this table, and shown with it.
    let mut session = Session::open(&app).await;
    session.run("begin; lock table job_keys").await;
    let answer = app.post_nothing(&format!("{path}/retry"), 503).await;
    assert_eq!(answer.at("/outcome"), "none", "{}", answer.text);
    session.run("rollback").await;
    let after = app.get(&path, 200).await;
    assert_eq!(
        after.at("/state"),
        "cancelled",
        "nothing was to be done: {}",
        after.text
    );
    app.post_nothing(&format!("{path}/retry"), 200).await;
    app.finish().await;
}

#[tokio::test]
async fn a_dispatch_that_is_stored_gets_its_receipt_though_the_wait_for_its_job_fails() {
    let behind = Behind::start().await;
    let mut call = Call::json("/v1/jobs", json!({"name": "n"}).to_string());
    call.headers.insert("prefer", "wait=2".parse().unwrap());
    let client = behind.client.clone();
    let waiting = tokio::spawn(async move { client.send(call).await.unwrap() });
    eventually("the job to be stored", async || match behind.jobs().await {
        1 => Ok(()),
        jobs => Err(format!("there are {jobs}")),
    })
    .await;
    behind.proxy.go_away().await;
    let answer = waiting.await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text);
    assert_eq!(answer.header("preference-applied"), None);
    behind.assert_true(&answer).await;
    behind.proxy.come_back();
    behind.finish().await;
}

#[tokio::test]
async fn a_change_of_one_statement_whose_answer_is_lost_may_have_been_made() {
    let behind = Behind::start().await;
    let calls = [
        ("/v1/queues/q/pause", "paused_queues"),
        ("/v1/queues/q/resume", "paused_queues"),
        ("/v1/resource-scopes/s", "resource_scopes"),
    ];
    for (path, table) in calls {
        let mut session = Session::open(&behind.app).await;
        session.run(&format!("begin; lock table {table}")).await;
        let client = behind.client.clone();
        let call = tokio::spawn(async move {
            match path {
                "/v1/resource-scopes/s" => client.put(path, &json!({"capacity": 2}), 503).await,
                _ => client.post_nothing(path, 503).await,
            }
        });
        session.until_blocking(1).await;
        behind.proxy.restart().await;
        let answer = call.await.unwrap();
        answer.assert_problem(503, &["store_unavailable"]);
        assert_eq!(answer.at("/outcome"), "unknown", "{path}: {}", answer.text);
        session.run("rollback").await;
    }
    behind.finish().await;
}

/// One statement gives jobs out and commits; another one says how long to wait for more.
#[tokio::test]
async fn jobs_that_were_given_out_are_told_of_though_the_look_behind_them_fails() {
    let behind = Behind::start().await;
    for statement in ["left", "promote_due"] {
        behind.client.post("/v1/jobs", &json!({"name": "n"}), 201).await;
        // There is one job, and two are asked for: so it looks for what is left.
        behind.proxy.cut_at(statement);
        let before = behind.proxy.met();
        let jobs = behind.client.reserve(json!({"max_jobs": 2, "lease": "60s"})).await;
        assert_eq!(jobs.len(), 1, "cut at {statement}");
        assert_eq!(jobs[0].attempt, 1, "cut at {statement}");
        assert_eq!(behind.proxy.met(), before + 1, "{statement} was not executed");
        let end = behind.client.work(&jobs[0], "succeed", json!({})).await;
        assert_eq!(end.status, 200, "{}", end.text);
    }
    behind.finish().await;
}
