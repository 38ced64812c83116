//! Migrations that meet somebody: a fault, a long reader, a kill, servers of another version.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::schema::{AGAIN, EMPTY, SERVE, refusal, run, schema};
use crate::support::{App, Session, eventually, solejob};

/// In the way of the third migration, behind a statement of it that succeeds.
const OBSTACLE: &str = "create table job_types (obstacle int)";

async fn versions(app: &App) -> Vec<i64> {
    let sql = "select version from _sqlx_migrations order by version";
    sqlx::query_scalar(sql).fetch_all(app.sql()).await.unwrap()
}

/// A database whose third migration has failed.
async fn stuck() -> (App, Vec<String>) {
    let app = App::start().await;
    let expected = schema(&app).await;
    run(&app, EMPTY).await;
    run(&app, OBSTACLE).await;
    for _ in 0..2 {
        let said = refusal(&app, &["migrate"]).await;
        assert!(
            said.contains("migration 3 failed") && said.contains("job_types"),
            "{said}"
        );
        assert!(said.contains("run `solejob migrate` again"), "{said}");
    }
    assert_eq!(versions(&app).await, [1, 2]);
    (app, expected)
}

#[tokio::test]
async fn a_migration_that_fails_leaves_nothing_and_can_be_run_again() {
    let (app, expected) = stuck().await;
    let added = "select count(*) from information_schema.columns
                 where table_schema = 'public' and column_name = 'types_version'";
    let added: i64 = sqlx::query_scalar(added).fetch_one(app.sql()).await.unwrap();
    assert_eq!(added, 0, "the statement before the one that failed was undone");
    let said = refusal(&app, &SERVE).await;
    assert!(said.contains("run `solejob migrate`"), "{said}");
    run(&app, "drop table job_types").await;
    app.command_output(&["migrate"]).await;
    assert_eq!(schema(&app).await, expected);
    run(&app, AGAIN).await;
    app.finish().await;
}

/// A reader that takes long is in the way of a migration, and the migration of everybody who comes then.
#[tokio::test]
async fn a_migration_that_waits_holds_nobody_up_for_long_and_may_be_killed() {
    let (app, expected) = stuck().await;
    run(&app, "drop table job_types").await;
    let mut reader = Session::open(&app).await;
    reader.run("begin; select count(*) from applications").await;
    for kill in [true, false] {
        let mut command = solejob(app.database_url());
        command.arg("migrate");
        let mut migration = command.spawn().unwrap();
        reader.until_blocking(1).await;
        let began = Instant::now();
        let count: i64 = sqlx::query_scalar("select count(*) from applications")
            .fetch_one(app.sql())
            .await
            .unwrap();
        assert_eq!(count, 0);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(5), "another reader waited for {took:?}");
        assert_eq!(versions(&app).await, [1, 2]);
        if kill {
            migration.kill().unwrap();
            migration.wait().unwrap();
        } else {
            // It has given way, and comes again.
            reader.until_blocking(1).await;
            reader.run("rollback").await;
            eventually("the migration to end", async || match migration.try_wait().unwrap() {
                Some(status) if status.success() => Ok(()),
                other => Err(format!("{other:?}")),
            })
            .await;
        }
    }
    assert_eq!(schema(&app).await, expected);
    run(&app, AGAIN).await;
    app.finish().await;
}

/// What a later version adds, as far as the rule for migrations lets it.
const LATER: &str = "
    do $$
    declare t text;
    begin
        for t in select table_name from information_schema.tables
                 where table_schema = 'public' and table_type = 'BASE TABLE' and table_name not like '\\_%'
        loop
            execute format('alter table %I add column later text, add column counted bigint not null default 0', t);
        end loop;
    end $$;
    create table later (app_id bigint primary key);
    insert into _sqlx_migrations (version, description, success, checksum, execution_time)
        select 9000, 'later', true, 'x', 1";

#[tokio::test]
async fn servers_of_the_version_before_go_on() {
    let mut app = App::start().await;
    let unlike = |number: usize| {
        let (active, window) = (format!("a{number}"), format!("w{number}"));
        json!({"name": "n", "metadata": {"a": "b"}, "resource_keys": ["r:1"],
               "uniqueness": {"active_key": active, "window_key": window, "window": "1h"}})
    };
    for round in 0..3 {
        match round {
            // It has prepared its statements by now.
            1 => run(&app, LATER).await,
            // One that starts then, and is told to migrate.
            2 => {
                app.command_output(&["migrate"]).await;
                app.replace_server(0).await;
            }
            _ => {}
        }
        let job = app.post("/v1/jobs", &unlike(round), 201).await;
        app.post("/v1/jobs", &unlike(round), 200).await;
        app.put("/v1/job-types/t", &json!({"priority": round}), 200..=201).await;
        app.post("/v1/jobs", &json!({"name": "t"}), 201).await;
        app.post("/v1/jobs/batch", &json!({"jobs": [{"name": "b"}, {"name": "b"}]}), 200)
            .await;
        app.get("/v1/jobs", 200).await;
        app.get("/v1/queues", 200).await;
        app.get(&format!("/v1/keys?name=n&window_key=w{round}"), 200).await;
        app.put("/v1/resource-scopes/r", &json!({"capacity": 2}), 200..=201)
            .await;
        let wish = json!({"max_jobs": 9, "lease": "60s", "reserve_id": format!("x{round}")});
        let first = app.reserve(wish.clone()).await;
        // As if the answer had been lost.
        let given = app.reserve(wish).await;
        assert_eq!((first.len(), given.len()), (4, 4), "round {round}");
        app.work(&given[0], "start", json!({})).await;
        for held in &given {
            let answer = app.work(held, "succeed", json!({"result": 1})).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
        }
        app.post_nothing(&format!("/v1/jobs/{}/retry", job.job_id()), 200).await;
        app.post_nothing(&format!("/v1/jobs/{}/cancel", job.job_id()), 200)
            .await;
        app.delete(&format!("/v1/jobs/{}", job.job_id()), [200, 204]).await;
        app.get("/readyz", 200).await;
    }
    app.finish().await;
}

/// Statements of a file, without comments.
fn statements(text: &str) -> Vec<String> {
    let mut statements = vec![String::new()];
    let mut quoted = false;
    for line in text.lines() {
        let code = if quoted {
            line
        } else {
            line.split("--").next().unwrap_or_default()
        };
        let mut parts = code.split("$$").peekable();
        while let Some(part) = parts.next() {
            if quoted {
                statements.last_mut().unwrap().push_str("body ");
            } else {
                let mut pieces = part.split(';');
                statements
                    .last_mut()
                    .unwrap()
                    .push_str(pieces.next().unwrap_or_default());
                statements.extend(pieces.map(str::to_owned));
            }
            quoted ^= parts.peek().is_some();
        }
        statements.last_mut().unwrap().push(' ');
    }
    let words = |text: &String| text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    statements.iter().map(words).filter(|text| !text.is_empty()).collect()
}

/// Whether servers of the version before can go on although a statement has run.
fn only_adds(statement: &str) -> bool {
    let begins = [
        "create table ",
        "create index ",
        "create function ",
        "comment on ",
        "insert into ",
    ];
    if begins.iter().any(|begin| statement.starts_with(begin)) {
        return true;
    }
    let Some(changes) = statement.strip_prefix("alter table ") else {
        return false;
    };
    let changes = changes.split_once(' ').map_or("", |(_, changes)| changes);
    // When a table is vacuumed is nobody's business but PostgreSQL's.
    if let Some(settings) = changes.strip_prefix("set (") {
        let mut settings = settings.trim_end_matches([')', ' ']).split(',');
        return settings.all(|setting| setting.trim().starts_with("autovacuum_"));
    }
    // A comma within a type or a default would cut it up, and so be refused: better than the other way round.
    changes.split(',').map(str::trim).all(|change| {
        change.starts_with("add column ") && (!change.contains(" not null") || change.contains(" default "))
    })
}

#[test]
fn later_migrations_only_add() {
    for (text, adds) in [
        (
            "alter table a add column b text, add column c int not null default 0;",
            true,
        ),
        (
            "create function f() returns int as $$ select 1; drop table a; $$; comment on x is 'y';",
            true,
        ),
        (
            "alter table a set (autovacuum_enabled = on, autovacuum_vacuum_threshold = 1);",
            true,
        ),
        ("alter table a set (autovacuum_enabled = on, fillfactor = 10);", false),
        ("alter table a add column b text not null;", false),
        ("-- create table\ndrop table a;", false),
        ("create index i on a (b); alter table a drop column b", false),
        ("create unique index i on a (b)", false),
        ("alter table a add constraint c check (b > 0)", false),
        ("update a set b = 1", false),
    ] {
        assert_eq!(
            statements(text).iter().all(|statement| only_adds(statement)),
            adds,
            "{text}"
        );
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.as_str() < "0004" {
            continue;
        }
        for statement in statements(&std::fs::read_to_string(&path).unwrap()) {
            assert!(
                only_adds(&statement),
                "{name}: servers of the version before may not go on after `{statement}`: see CONTRIBUTING.md"
            );
        }
    }
}
