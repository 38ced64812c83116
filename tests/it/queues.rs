//! `GET /v1/queues` costs the same however many jobs there are: it is asked every few seconds by people and monitors.

use std::time::Duration;

use serde_json::json;
use solejob::store::{SETTINGS, STATEMENTS};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection, Row};

use crate::support::{App, Options, eventually, eventually_within};

const JOBS: i64 = 100_000;

/// Jobs as an import leaves them behind: every second one has finished.
const FILL: &str = "
    insert into jobs (app_id, job_id, name, queue, priority, state, ready, payload, max_attempts, backoff,
        backoff_initial_ms, backoff_factor, backoff_max_ms, backoff_jitter, retention_ms, dispatched_at, run_at,
        finished_at, delete_after)
    select (select app_id from applications), md5('job' || n)::uuid, 'n', 'q' || n % 4, n % 3,
        (case when n % 2 = 0 then 'pending' else 'succeeded' end)::job_state, n % 2 = 0, '{}', 10, 'exponential', 1000, 2,
        3600000, true, 604800000, now(), now() - n * interval '1 ms', case when n % 2 = 1 then now() end,
        case when n % 2 = 1 then now() + interval '7 days' end
    from generate_series($1::bigint, $2::bigint) as n";

const COUNT: &str = "
    insert into queue_counts (app_id, queue, state, jobs)
    select app_id, queue, state, count(*) from jobs group by app_id, queue, state";

/// How many pages one look takes.
async fn pages(connection: &mut PgConnection, app: i64) -> i64 {
    let (_, sql) = STATEMENTS
        .iter()
        .find(|(name, _)| *name == "queues.sql")
        .expect("it has this name");
    let explain = format!(
        "explain (analyze, buffers, format text) {}",
        sql.replace("$1", &app.to_string())
    );
    let lines = sqlx::raw_sql(AssertSqlSafe(explain))
        .fetch_all(connection)
        .await
        .unwrap();
    let lines: Vec<String> = lines.iter().map(|row| row.get(0)).collect();
    let first = lines.iter().find(|line| line.contains("Buffers: shared"));
    let words = first.expect("buffers are told").split([' ', '=']).collect::<Vec<_>>();
    let of = |what: &str| {
        let place = words.iter().position(|word| *word == what);
        place.map_or(0, |place| words[place + 1].parse::<i64>().expect("a number"))
    };
    of("hit") + of("read")
}

#[tokio::test]
async fn a_look_at_the_queues_costs_the_same_with_many_jobs() {
    let app = App::start().await;
    let options: PgConnectOptions = app.database_url().parse().unwrap();
    let mut connection = PgConnection::connect_with(&options.options(SETTINGS)).await.unwrap();
    let id: i64 = sqlx::query_scalar("select app_id from applications")
        .fetch_one(app.sql())
        .await
        .unwrap();
    let mut costs = Vec::new();
    for (from, to) in [(1, 1_000), (1_001, JOBS)] {
        sqlx::query(FILL).bind(from).bind(to).execute(app.sql()).await.unwrap();
        sqlx::raw_sql("truncate queue_counts").execute(app.sql()).await.unwrap();
        sqlx::query(COUNT).execute(app.sql()).await.unwrap();
        sqlx::raw_sql("vacuum analyze").execute(app.sql()).await.unwrap();
        costs.push(pages(&mut connection, id).await);
    }
    let [few, many] = costs[..] else { panic!("two looks") };
    println!("{few} pages with 1,000 jobs, {many} with {JOBS}");
    // Indexes are a level deeper.
    assert!(many <= 2 * few + 50, "{few} pages with 1,000 jobs, {many} with {JOBS}");

    // And it is right.
    let queues = app.get("/v1/queues", 200).await;
    for queue in queues.at("/queues").as_array().unwrap() {
        let counts = &queue["counts"];
        let all = ["pending", "succeeded"].map(|state| counts[state].as_i64().unwrap_or(0));
        assert_eq!(all.iter().sum::<i64>(), JOBS / 4, "{queue}");
        assert!(
            queue["oldest_pending_seconds"].as_f64().is_none_or(|age| age > 0.0),
            "{queue}"
        );
    }
    // The changes of jobs that are dispatched add up, and are folded into one number.
    for _ in 0..20 {
        app.post("/v1/jobs", &serde_json::json!({"name": "n", "queue": "q0"}), 201)
            .await;
    }
    eventually("the changes to be folded", async || {
        let rows: i64 =
            sqlx::query_scalar("select count(*) from queue_counts where queue = 'q0' and state = 'pending'")
                .fetch_one(app.sql())
                .await
                .unwrap();
        if rows == 1 { Ok(()) } else { Err(format!("{rows} rows")) }
    })
    .await;
    app.finish().await;
}

/// They are of the database: a server that took no dispatch shows them as well.
#[tokio::test]
async fn every_server_shows_how_long_and_how_old_the_queues_are() {
    let app = App::with(Options::default().servers(2)).await;
    app.post("/v1/jobs", &json!({"name": "n", "queue": "slow"}), 201).await;
    app.post("/v1/jobs", &json!({"name": "n", "queue": "slow", "delay": "1h"}), 201)
        .await;
    app.post_nothing("/v1/queues/slow/pause", 200).await;
    let place = r#"application="default",environment="dev",queue="slow""#;
    let other = app.client(1);
    eventually_within(Duration::from_secs(30), "the queue to be measured", async || {
        let text = other.get("/metrics", 200).await.text;
        let value = |name: &str, more: &str| {
            let series = format!("{name}{{{place}{more}}} ");
            text.lines()
                .find_map(|line| line.strip_prefix(&series)?.parse::<f64>().ok())
        };
        let age = value("solejob_queue_oldest_pending_seconds", "");
        let right = value("solejob_queue_jobs", r#",state="pending""#) == Some(2.0)
            && value("solejob_queue_jobs", r#",state="running""#) == Some(0.0)
            && value("solejob_queue_paused", "") == Some(1.0)
            && age.is_some_and(|age| age > 0.0 && age < 60.0);
        if right { Ok(()) } else { Err(text) }
    })
    .await;
    app.finish().await;
}
