//! The clock of the database jumps. What is stored then lies in its future, or longer ago than it was: the same as if
//! every stored instant had moved, which is what is done here.

use serde_json::json;

use crate::support::{App, eventually};

/// Moves every instant of every table.
const MOVE: &str = "
    do $$
    declare t record;
    begin
        for t in select c.table_name, string_agg(format('%1$I = %1$I + interval ''DISTANCE''', c.column_name), ', ') as moved
                 from information_schema.columns as c
                 join information_schema.tables as b using (table_schema, table_name)
                 where c.table_schema = 'public' and c.data_type = 'timestamp with time zone'
                     and b.table_type = 'BASE TABLE' and c.table_name <> '_sqlx_migrations'
                 group by c.table_name
        loop
            execute format('update %I set %s', t.table_name, t.moved);
        end loop;
    end $$";

async fn jump(app: &App, distance: &str) {
    let sql = sqlx::AssertSqlSafe(MOVE.replace("DISTANCE", distance));
    sqlx::raw_sql(sql).execute(app.sql()).await.unwrap();
}

#[tokio::test]
async fn a_clock_that_jumps_makes_no_second_job_and_takes_no_stale_token() {
    // As if it had gone back by ten minutes, and as if it had gone on by as much.
    for (distance, back) in [("10 minutes", true), ("-10 minutes", false)] {
        let app = App::start().await;
        let keyed = |key: &str| {
            json!({"name": "n", "uniqueness": {"active_key": key, "window_key": key, "window": "1h"},
                   "retention": "1d", "retry": {"max_attempts": 5, "backoff": "fixed", "initial": "1s"}})
        };
        let held = app.post("/v1/jobs", &keyed("held"), 201).await;
        let token = app.reserve(json!({"lease": "60s"})).await.remove(0);
        app.work(&token, "start", json!({})).await;
        let done = app.post("/v1/jobs", &keyed("done"), 201).await;
        let ended = app.reserve(json!({"lease": "60s"})).await.remove(0);
        app.work(&ended, "succeed", json!({})).await;
        let waiting = app.post("/v1/jobs", &keyed("waiting"), 201).await;

        jump(&app, distance).await;
        for (key, job) in [("held", &held), ("done", &done), ("waiting", &waiting)] {
            let again = app.post("/v1/jobs", &keyed(key), 200).await;
            assert_eq!(again.job_id(), job.job_id(), "{distance}: {key}");
        }
        // A repeated end is still known, and does nothing.
        assert_eq!(app.work(&ended, "succeed", json!({})).await.status, 200);
        let beat = app.work(&token, "heartbeat", json!({})).await;
        let mut workers = vec![];
        if back {
            // It has its job for longer than it was told.
            assert_eq!(beat.status, 200, "{}", beat.text);
            workers.push(token.clone());
        } else {
            // It has lost it earlier than it was told, and cannot end it any more.
            beat.assert_problem(409, &["lease_lost"]);
            let late = app.work(&token, "succeed", json!({})).await;
            late.assert_problem(409, &["lease_lost"]);
        }
        // What waits is given out: what is in line stays there, whatever time it is.
        let expected = if back { 1 } else { 2 };
        let mut given = Vec::new();
        eventually("jobs to be given out", async || {
            given.extend(app.reserve(json!({"max_jobs": 9, "lease": "60s", "wait": "2s"})).await);
            match given.len() {
                count if count == expected => Ok(()),
                count => Err(format!("{count} of {expected} were given out")),
            }
        })
        .await;
        workers.extend(given);
        for worker in &workers {
            let end = app.work(worker, "succeed", json!({})).await;
            assert_eq!(end.status, 200, "{distance}: {}", end.text);
        }
        let listed = app.get("/v1/jobs", 200).await;
        let jobs = listed.at("/jobs").as_array().unwrap();
        assert_eq!(jobs.len(), 3, "{}", listed.text);
        assert!(jobs.iter().all(|job| job["state"] == "succeeded"), "{}", listed.text);
        // Run again, cancelled, forgotten: nothing minds instants that have no order.
        let path = format!("/v1/jobs/{}", done.job_id());
        app.post_nothing(&format!("{path}/retry"), 200).await;
        app.post_nothing(&format!("{path}/cancel"), 200).await;
        app.delete(&path, 200..=299).await;
        app.get("/v1/queues", 200).await;
        app.finish().await;
    }
}
