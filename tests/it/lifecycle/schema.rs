//! The schema: made by `solejob migrate`, checked by a server, at the start and for as long as it runs.

use std::process::Output;

use serde_json::json;

use crate::support::{App, Options, solejob};

/// Puts the tables of the application aside, so that the database looks as if it were new.
pub(super) const EMPTY: &str = "alter schema public rename to aside; create schema public";
pub(super) const AGAIN: &str = "drop schema public cascade; alter schema aside rename to public";

pub(super) async fn run(app: &App, sql: &'static str) {
    sqlx::raw_sql(sql).execute(app.sql()).await.unwrap();
}

async fn solejob_says(app: &App, args: &[&str]) -> (Output, String) {
    let mut command = solejob(app.database_url());
    command.args(args);
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .unwrap();
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    (output, said)
}

/// What `solejob` says that ends with a message.
pub(super) async fn refusal(app: &App, args: &[&str]) -> String {
    let (output, said) = solejob_says(app, args).await;
    assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
    said
}

pub(super) const SERVE: [&str; 4] = ["serve", "--anonymous", "--listen", "127.0.0.1:0"];

#[tokio::test]
async fn a_server_wants_its_own_schema() {
    let app = App::start().await;
    run(&app, EMPTY).await;
    for args in [&SERVE[..], &["token", "list"]] {
        let said = refusal(&app, args).await;
        assert!(said.contains("run `solejob migrate`"), "{said}");
        assert!(!said.contains("(database)"), "the message is for people: {said}");
    }
    app.command_output(&["migrate"]).await;
    // A newer schema only adds: servers of the version before go on while others are replaced.
    run(
        &app,
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
         select version + 1000, description, success, checksum, execution_time from _sqlx_migrations",
    )
    .await;
    app.get("/readyz", 200).await;
    app.command_output(&["token", "list"]).await;
    run(&app, AGAIN).await;
    app.finish().await;
}

#[tokio::test]
async fn readiness_follows_the_schema() {
    let app = App::start().await;
    app.get("/readyz", 200).await;
    for (broken, mended) in [
        (EMPTY, AGAIN),
        (
            "update _sqlx_migrations set version = -version",
            "update _sqlx_migrations set version = -version",
        ),
        // One in the middle, though later ones have run: two branches may have taken their numbers in the other order.
        (
            "update _sqlx_migrations set version = 1004 where version = 4",
            "update _sqlx_migrations set version = 4 where version = 1004",
        ),
        (
            "update _sqlx_migrations set success = false",
            "update _sqlx_migrations set success = true",
        ),
        (
            "alter table _sqlx_migrations rename to aside",
            "alter table aside rename to _sqlx_migrations",
        ),
    ] {
        run(&app, broken).await;
        let answer = app.get("/readyz", 503).await;
        answer.assert_problem(503, &["store_unavailable"]);
        assert_eq!(answer.header("retry-after"), Some("1"));
        app.get("/healthz", 200).await;
        run(&app, mended).await;
        app.get("/readyz", 200).await;
    }
    app.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    app.finish().await;
}

pub(super) async fn schema(app: &App) -> Vec<String> {
    let sql = "select format('%s.%s %s', table_name, column_name, data_type) as line
               from information_schema.columns where table_schema = 'public'
               union all select indexdef from pg_indexes where schemaname = 'public'
               union all select format('version %s', version) from _sqlx_migrations order by line";
    sqlx::query_scalar(sql).fetch_all(app.sql()).await.unwrap()
}

#[tokio::test]
async fn a_database_is_migrated_once_by_whoever_comes() {
    let app = App::start().await;
    let expected = schema(&app).await;
    run(&app, EMPTY).await;
    let (first, second, third) = tokio::join!(
        solejob_says(&app, &["migrate"]),
        solejob_says(&app, &["migrate"]),
        solejob_says(&app, &["migrate"]),
    );
    for (output, said) in [first, second, third] {
        assert!(output.status.success(), "{said}");
    }
    assert_eq!(schema(&app).await, expected);
    // Again, with something in it: nothing happens.
    app.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    for _ in 0..2 {
        app.command_output(&["migrate"]).await;
    }
    assert_eq!(schema(&app).await, expected);
    let jobs: i64 = sqlx::query_scalar("select count(*) from jobs")
        .fetch_one(app.sql())
        .await
        .unwrap();
    assert_eq!(jobs, 1);
    run(&app, AGAIN).await;
    app.finish().await;
}

/// A database that is not there yet is waited for, and one that never comes is not waited for forever.
#[tokio::test]
async fn a_database_that_does_not_answer_is_waited_for() {
    let mut command = solejob("postgres://nobody@127.0.0.1:9/none");
    command.args(SERVE).args(["--database-wait", "2s"]);
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("does not answer: trying again"), "{said}");
    assert!(
        said.contains("the database cannot be used") && said.contains("refused"),
        "{said}"
    );
}

/// It works all the same: whoever chose such settings may know what they do.
#[tokio::test]
async fn a_database_that_may_lose_what_it_stored_is_warned_about() {
    let few = App::start().await;
    let log = few.log();
    assert!(!log.contains("synchronous_commit is off"), "{log}");
    assert!(!log.contains("raise max_connections"), "{log}");
    let off: bool =
        sqlx::query_scalar("select current_setting('fsync') = 'off' or current_setting('full_page_writes') = 'off'")
            .fetch_one(few.sql())
            .await
            .unwrap();
    assert_eq!(
        log.contains("a crash of the machine can destroy the database"),
        off,
        "{log}"
    );
    few.finish().await;

    let options = Options::default().database_setting("synchronous_commit", "off");
    let many = App::with(options.arg("--connections").arg("1000")).await;
    let log = many.log();
    assert!(log.contains("synchronous_commit is off"), "{log}");
    assert!(log.contains("raise max_connections"), "{log}");
    many.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    many.finish().await;
}
