//! A standby that has to confirm commits, and does not.

use serde_json::json;

use crate::support::{App, Options, Stock, eventually};

async fn standbys(app: &App, names: &'static str) {
    // Not within a transaction, and so one by one.
    for sql in [names, "select pg_reload_conf()"] {
        sqlx::raw_sql(sql).execute(app.sql()).await.unwrap();
    }
}

#[tokio::test]
async fn a_commit_that_no_standby_confirms_gets_no_receipt() {
    let stock = Stock::apart("standby-postgres").await;
    let app = App::with(Options::default().on(&stock.cluster)).await;
    let job = app.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    let held = app.reserve(json!({"lease": "60s"})).await.remove(0);
    assert_eq!(held.id, job.job_id());
    standbys(&app, "alter system set synchronous_standby_names = 'nobody'").await;
    eventually("the setting to be known", async || {
        let sql = "select current_setting('synchronous_standby_names')";
        let known: String = sqlx::query_scalar(sql).fetch_one(app.sql()).await.unwrap();
        if known == "nobody" { Ok(()) } else { Err(known) }
    })
    .await;
    // Only new connections know of it.
    let end = "select pg_terminate_backend(pid) from pg_stat_activity
               where datname = current_database() and application_name = 'solejob'";
    sqlx::raw_sql(end).execute(app.sql()).await.unwrap();

    let body = json!({"name": "n", "uniqueness": {"window_key": "w", "window": "1h"}});
    let (client, end) = (app.client(0).clone(), held.clone());
    let end = tokio::spawn(async move {
        let path = format!("/v1/worker/{}/succeed", end.id);
        client.post(&path, &json!({"lease_token": end.token}), 503).await
    });
    for answer in [app.post("/v1/jobs", &body, 503).await, end.await.unwrap()] {
        answer.assert_problem(503, &["store_unavailable"]);
        assert_eq!(answer.at("/outcome"), "unknown", "{}", answer.text);
    }
    // The commits still wait: nobody can see what they store.
    let jobs: i64 = sqlx::query_scalar("select count(*) from jobs")
        .fetch_one(app.sql())
        .await
        .unwrap();
    assert_eq!(jobs, 1);

    standbys(&app, "alter system reset synchronous_standby_names").await;
    let again = app.post("/v1/jobs", &body, 200).await;
    assert_eq!(again.at("/duplicate_match"), "window", "it was stored in the end");
    let done = app.work(&held, "succeed", json!({})).await;
    assert_eq!(done.status, 200, "{}", done.text);
    app.finish().await;
    stock.stop().await;
}
