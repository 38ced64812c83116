//! Every statement fits the schema, and reaches its rows by an index: also with a plan that was made while
//! the tables were empty, since plans are kept.

use serde_json::json;
use solejob::store::{SETTINGS, STATEMENTS};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, Connection, Row};

use crate::support::App;

/// What every dispatch, every look at jobs and keys, and every end of a job goes through.
const HOT: &[&str] = &[
    "caller.sql",
    "lock_keys.sql",
    "look_up.sql",
    "hold_linked.sql",
    "write.sql",
    "take_over.sql",
    "settle.sql",
    "settle_alone.sql",
    "attempts.sql",
    "promote_due.sql",
    "reserve.sql",
    "pick.sql",
    "left.sql",
    "lease_jobs.sql",
    "block_jobs.sql",
    "renew_leases.sql",
    "unblock.sql",
    "job_states.sql",
    "full_jobs.sql",
    "list.sql",
    "lock_lives.sql",
    "write_lives.sql",
    "reset_key.sql",
    "delete_job.sql",
];

/// A connection as the servers'.
async fn connection(app: &App) -> PgConnection {
    let options: PgConnectOptions = app.database_url().parse().unwrap();
    PgConnection::connect_with(&options.options(SETTINGS)).await.unwrap()
}

/// Prepares a statement in PostgreSQL itself, and gives the number of its parameters.
async fn prepare(connection: &mut PgConnection, sql: &str) -> Result<usize, sqlx::Error> {
    let prepare = format!("deallocate all; prepare it as {sql}");
    sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut *connection).await?;
    let count = "select cardinality(parameter_types) from pg_prepared_statements where name = 'it'";
    let row = sqlx::raw_sql(count).fetch_one(connection).await?;
    Ok(row.get::<i32, _>(0).try_into().unwrap())
}

/// The plan for whatever the parameters may be.
async fn generic_plan(connection: &mut PgConnection, sql: &str) -> Result<String, sqlx::Error> {
    let parameters = prepare(connection, sql).await?;
    let arguments = match parameters {
        0 => String::new(),
        count => format!("({})", vec!["null"; count].join(", ")),
    };
    let explain = AssertSqlSafe(format!("explain (costs off) execute it{arguments}"));
    let lines = sqlx::raw_sql(explain).fetch_all(connection).await?;
    let lines = lines.iter().map(|row| row.get::<String, _>(0));
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// What in a plan costs more the more rows there are.
fn faults(plan: &str) -> Vec<&str> {
    let lines = plan.lines().map(str::trim).collect::<Vec<_>>();
    let mut faults = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let scan = line.trim_start_matches("->  ");
        let sequential = scan.starts_with("Seq Scan on") || scan.starts_with("Parallel Seq Scan on");
        let joined_whole = scan.starts_with("Hash Join") || scan.starts_with("Merge Join");
        // An index that is entered by the application alone leads to all of its rows.
        let condition = lines.get(number + 1).and_then(|line| line.strip_prefix("Index Cond: "));
        let indexed = ["Index Scan", "Index Only Scan", "Bitmap Index Scan"]
            .iter()
            .any(|kind| scan.starts_with(kind));
        let by_application = indexed && condition.is_none_or(|condition| !condition.contains(" AND "));
        let small = scan.contains(" on applications") || scan.contains(" on tokens");
        if sequential || joined_whole || by_application && !small {
            faults.push(*line);
        }
    }
    faults
}

#[tokio::test]
async fn every_statement_fits_the_schema() {
    let app = App::start().await;
    let mut connection = connection(&app).await;
    assert!(STATEMENTS.len() >= 20, "where are they?");
    for (name, sql) in STATEMENTS {
        let prepared = prepare(&mut connection, sql).await;
        let parameters = prepared.unwrap_or_else(|error| panic!("{name}: {error}"));
        let highest = (1..=99).rev().find(|number| {
            let parameter = format!("${number}");
            sql.match_indices(&parameter)
                .any(|(at, found)| !sql[at + found.len()..].starts_with(|c: char| c.is_ascii_digit()))
        });
        assert_eq!(parameters, highest.unwrap_or(0), "{name}: a parameter is not used");
        let title = format!("-- solejob {}: ", name.trim_end_matches(".sql"));
        assert!(sql.starts_with(&title), "{name} does not begin with `{title}`");
    }
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/sql")).unwrap();
    let unknown = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|file| !STATEMENTS.iter().any(|(name, _)| name == file));
    assert_eq!(
        unknown.collect::<Vec<_>>(),
        Vec::<String>::new(),
        "files that are no statement"
    );
    // A statement that does not fit is seen.
    for wrong in [
        "select no_such_column from jobs",
        "select $1 + $2 from no_such_table",
        "selekt",
    ] {
        assert!(prepare(&mut connection, wrong).await.is_err(), "{wrong}");
    }
    app.finish().await;
}

#[tokio::test]
async fn hot_statements_reach_their_rows_by_an_index() {
    let app = App::start().await;
    let mut connection = connection(&app).await;
    // Empty and never analysed, then with rows and statistics: neither may make the difference.
    let mut found = Vec::new();
    for filled in [false, true] {
        if filled {
            let item = |number: usize| {
                let keys =
                    json!({"active_key": format!("a{number}"), "window_key": format!("w{number}"), "window": "1h"});
                json!({"name": "n", "uniqueness": keys})
            };
            let batch = json!({"jobs": (0..500).map(item).collect::<Vec<_>>()});
            app.post("/v1/jobs/batch", &batch, 200).await;
            sqlx::raw_sql("analyze").execute(&mut connection).await.unwrap();
        }
        for name in HOT {
            let (_, sql) = STATEMENTS
                .iter()
                .find(|(other, _)| other == name)
                .expect("it has this name");
            let plan = generic_plan(&mut connection, sql).await;
            let plan = plan.unwrap_or_else(|error| panic!("{name}: {error}"));
            let faults = faults(&plan);
            if !faults.is_empty() {
                found.push(format!("{name}, filled {filled}: {faults:?} in\n{plan}\n"));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    app.finish().await;
}

/// What waits for its time is found by its time: not by looking at all that wait.
#[tokio::test]
async fn a_time_that_has_come_is_found_by_an_index() {
    let app = App::start().await;
    let mut connection = connection(&app).await;
    for (statement, condition) in [
        ("promote_due.sql", "run_at <= statement_timestamp()"),
        ("queues.sql", "run_at <= statement_timestamp()"),
        ("sweep_jobs.sql", "delete_after <= statement_timestamp()"),
    ] {
        let (_, sql) = STATEMENTS.iter().find(|(name, _)| *name == statement).unwrap();
        let plan = generic_plan(&mut connection, sql).await.unwrap();
        let found = plan
            .lines()
            .any(|line| line.contains("Index Cond: ") && line.contains(condition));
        assert!(found, "{statement}: no index condition on the time in\n{plan}");
    }
    app.finish().await;
}

/// The same through the servers' own eyes: their connections have these settings, whatever the role's are.
#[tokio::test]
async fn plans_that_scan_are_seen() {
    let app = App::start().await;
    let mut plain = PgConnection::connect(app.database_url()).await.unwrap();
    sqlx::raw_sql("set plan_cache_mode = force_generic_plan")
        .execute(&mut plain)
        .await
        .unwrap();
    for (sql, fault) in [
        ("select from jobs where name = $1", "Seq Scan on jobs"),
        ("select from job_keys where key = $1", "Seq Scan on job_keys"),
    ] {
        let plan = generic_plan(&mut plain, sql).await.unwrap();
        assert_eq!(faults(&plan), [fault], "{plan}");
    }
    let mut connection = connection(&app).await;
    let whole = "select from job_keys where app_id = $1 and job_id = $2";
    let plan = generic_plan(&mut connection, whole).await.unwrap();
    assert!(!faults(&plan).is_empty(), "all keys of an application:\n{plan}");
    let one = "select from job_keys where app_id = $1 and digest = $2";
    let plan = generic_plan(&mut connection, one).await.unwrap();
    assert!(faults(&plan).is_empty(), "{plan}");
    app.finish().await;
}

#[tokio::test]
async fn a_job_with_many_linked_keys_frees_exactly_those_that_say_so() {
    let app = App::start().await;
    let ask = async |window: &str, release_on: &[&str], status: u16| {
        let keys = json!({"active_key": "a", "window_key": window, "window": "1h", "release_on": release_on});
        let answer = app
            .post("/v1/jobs", &json!({"name": "n", "uniqueness": keys}), status)
            .await;
        answer.job_id().to_owned()
    };
    let job = ask("own", &["cancelled"], 201).await;
    ask("stays", &["failed"], 200).await;
    ask("goes", &["succeeded", "cancelled"], 200).await;
    // Its time is over, and the same job is asked for with it again: now it is a key that was linked.
    app.expire_window("n", "own").await;
    ask("own", &["cancelled"], 200).await;

    let keys = app.get(&format!("/v1/jobs/{job}"), 200).await;
    let mut keys: Vec<_> = keys
        .at("/window_keys")
        .as_array()
        .unwrap()
        .iter()
        .map(|key| key["key"].clone())
        .collect();
    keys.sort_by_key(|key| key.to_string());
    assert_eq!(keys, ["goes", "own", "stays"], "each key once");

    app.post_nothing(&format!("/v1/jobs/{job}/cancel"), 200).await;
    let held = async |query: &str| {
        let holder = app.get(&format!("/v1/keys?name=n&{query}"), 200).await;
        holder.at("/held").as_bool().unwrap()
    };
    assert!(!held("active_key=a").await);
    for (key, stays) in [("own", false), ("stays", true), ("goes", false)] {
        assert_eq!(held(&format!("window_key={key}")).await, stays, "{key}");
    }
    app.finish().await;
}
