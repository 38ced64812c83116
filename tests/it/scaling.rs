//! What docs/scaling.md and docs/operations.md say of the schema: each application's rows could lie anywhere, and the
//! tables that change most are vacuumed before it is felt.

use std::collections::BTreeSet;

use regex::Regex;
use solejob::store::STATEMENTS;
use sqlx::AssertSqlSafe;

use crate::support::App;

/// Tables with rows of applications. The others are small and are looked up by other things.
const WHOLE: &[&str] = &["applications", "tokens", "_sqlx_migrations"];

/// Statements that go through the rows of all applications, and why each may. None is part of a request.
const ACROSS: &[(&str, &str)] = &[
    ("examine_rules.sql", "`solejob doctor` looks at the whole database"),
    ("expired_leases.sql", "the clock ends leases, whosesoever they are"),
    ("fold_counts.sql", "a sweep"),
    ("sweep_keys.sql", "a sweep, by pages"),
    ("sweep_resources.sql", "a sweep, by pages"),
    (
        "unblock_missed.sql",
        "a look each second, from one resource key to the next",
    ),
];

async fn tables(app: &App) -> BTreeSet<String> {
    let sql = "select c.relname::text from pg_class as c
               join pg_attribute as a on a.attrelid = c.oid and a.attname = 'app_id' and not a.attisdropped
               where c.relkind in ('r', 'p') and c.relnamespace = 'public'::regnamespace";
    let all: Vec<String> = sqlx::query_scalar(sql).fetch_all(app.sql()).await.unwrap();
    all.into_iter()
        .filter(|table| !WHOLE.contains(&table.as_str()))
        .collect()
}

#[tokio::test]
async fn every_unique_index_holds_the_application() {
    let app = App::start().await;
    let sql = "select t.relname || '.' || i.relname from pg_index as x
               join pg_class as i on i.oid = x.indexrelid
               join pg_class as t on t.oid = x.indrelid
               left join pg_attribute as a on a.attrelid = t.oid and a.attnum = x.indkey[0]
               where x.indisunique and t.relnamespace = 'public'::regnamespace
                 and a.attname is distinct from 'app_id' and not t.relname = any($1)";
    let others: Vec<String> = sqlx::query_scalar(sql).bind(WHOLE).fetch_all(app.sql()).await.unwrap();
    assert_eq!(others, Vec::<String>::new(), "these do not begin with app_id");
    let sql = "select conrelid::regclass::text || ' refers to ' || confrelid::regclass::text from pg_constraint
               where contype = 'f' and connamespace = 'public'::regnamespace
                 and not confrelid::regclass::text = any($1)
                 and not exists (select from pg_attribute as a
                                 where a.attrelid = conrelid and a.attnum = any(conkey) and a.attname = 'app_id')";
    let others: Vec<String> = sqlx::query_scalar(sql).bind(WHOLE).fetch_all(app.sql()).await.unwrap();
    assert_eq!(
        others,
        Vec::<String>::new(),
        "these lead from one application to another"
    );
    assert!(tables(&app).await.len() >= 9);
    app.finish().await;
}

/// Tables that a statement reads or changes and for which it does not say whose rows.
fn without_application(sql: &str, tables: &BTreeSet<String>) -> Vec<String> {
    let lines = sql.lines().filter(|line| !line.trim_start().starts_with("--"));
    let sql = lines.collect::<Vec<_>>().join(" ");
    let used = Regex::new(r"(?:from|join|update|into|using) ([a-z_]+)(?: as ([a-z_]+))?").unwrap();
    let mut found = Vec::new();
    for used in used.captures_iter(&sql) {
        let table = &used[1];
        if !tables.contains(table) {
            continue;
        }
        let alias = used.get(2).map_or(table, |alias| alias.as_str());
        // By a value, by another row of the same application, or with the application among what is inserted.
        let its = format!(r"(?:\b{alias}\.|[^.\w])app_id");
        let named = format!(
            r"{its} (?:= |in \(|= any)|{its}, [^()]*\) (?:= |in )|= {alias}\.app_id\b|into {table} \(\s*app_id\b"
        );
        if !Regex::new(&named).unwrap().is_match(&sql) {
            found.push(table.to_owned());
        }
    }
    found
}

#[tokio::test]
async fn every_statement_of_a_request_names_the_application() {
    let app = App::start().await;
    let tables = tables(&app).await;
    let across: BTreeSet<&str> = ACROSS.iter().map(|(name, _)| *name).collect();
    let mut seen = BTreeSet::new();
    for (name, sql) in STATEMENTS {
        let without = without_application(sql, &tables);
        if across.contains(name) {
            seen.insert(*name);
        } else {
            assert_eq!(
                without,
                Vec::<String>::new(),
                "{name} does not say whose rows of these it means"
            );
        }
    }
    assert_eq!(seen, across, "there is no such statement");
    app.finish().await;
}

#[test]
fn a_statement_that_names_no_application_is_seen() {
    let tables = BTreeSet::from(["jobs".to_owned(), "job_keys".to_owned()]);
    for (sql, without) in [
        ("select job_id from jobs where app_id = $1", vec![]),
        ("select job_id from jobs where job_id = $1", vec!["jobs"]),
        (
            "-- where app_id = $1\ndelete from jobs where state = 'failed'",
            vec!["jobs"],
        ),
        (
            "select from jobs as j join job_keys as k on k.job_id = j.job_id where j.app_id = 1",
            vec!["job_keys"],
        ),
        (
            "select from jobs as j join job_keys as k on k.app_id = j.app_id",
            vec![],
        ),
        ("insert into jobs (app_id, job_id) values ($1, $2)", vec![]),
        ("insert into jobs (job_id) values ($1)", vec!["jobs"]),
    ] {
        assert_eq!(without_application(sql, &tables), without, "{sql}");
    }
}

/// The statements of a document, with values for what stands behind `\\set`.
fn statements_of(document: &str) -> Vec<String> {
    let set = Regex::new(r"(?m)^\\set (\w+) (.+)$").unwrap();
    let blocks = document.split("```sql\n").skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap_or_default());
    let filled = blocks.map(|block| {
        let mut sql = set.replace_all(block, "").into_owned();
        for found in set.captures_iter(block) {
            let value = found[2].trim_matches('\'');
            sql = sql.replace(&format!(":'{}'", &found[1]), &format!("'{value}'"));
        }
        sql
    });
    filled.collect()
}

#[tokio::test]
async fn every_statement_of_the_operator_works() {
    let app = App::start().await;
    let documents = [
        include_str!("../../docs/operations.md"),
        include_str!("../../docs/database.md"),
    ];
    let mut run = 0;
    for sql in documents.iter().flat_map(|document| statements_of(document)) {
        run += 1;
        if let Err(error) = sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(app.sql()).await {
            panic!("{error}:\n{sql}");
        }
    }
    assert!(run >= 14, "only {run} were found");
    app.finish().await;
}

/// How many dead rows each table may have before it is vacuumed, beside a share of its live ones.
#[tokio::test]
async fn tables_that_change_much_are_vacuumed_early() {
    let app = App::start().await;
    for (table, share_max) in [
        ("jobs", 0.02),
        ("job_keys", 0.02),
        ("job_attempts", 0.05),
        ("queue_counts", 0.0),
        ("resource_holds", 0.0),
        ("resource_keys", 0.02),
    ] {
        let sql = "select option_value::float8 from pg_class, pg_options_to_table(reloptions)
                   where oid = $1::regclass and option_name = 'autovacuum_vacuum_scale_factor'";
        let share: Option<f64> = sqlx::query_scalar(sql)
            .bind(table)
            .fetch_optional(app.sql())
            .await
            .unwrap();
        assert!(share.is_some_and(|share| share <= share_max), "{table}: {share:?}");
    }
    app.finish().await;
}
