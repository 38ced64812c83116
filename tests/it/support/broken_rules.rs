//! The invariants would be worth nothing if they could not be broken.

use serde_json::json;

use super::App;
use super::invariants::{RULES, SOON, broken};

#[tokio::test]
async fn each_rule_sees_its_fault() {
    let app = App::start().await;
    let body = json!({"name": "n", "uniqueness": {"active_key": "a", "window_key": "w", "window": "1h"}});
    app.post("/v1/jobs", &body, 201).await;
    app.post(
        "/v1/jobs",
        &json!({"name": "n", "uniqueness": {"active_key": "b"}}),
        201,
    )
    .await;
    // The schema would refuse some of the faults: here it is the rules that are tested.
    let unchecked = "do $$ declare it record; begin
        for it in select conname, conrelid::regclass as relation from pg_constraint
            where contype = 'c' and conrelid in ('jobs'::regclass, 'job_keys'::regclass)
        loop execute format('alter table %s drop constraint %I', it.relation, it.conname); end loop; end $$";
    sqlx::raw_sql(unchecked).execute(app.sql()).await.unwrap();
    let faults = [
        (
            "finished and finished_at",
            "update jobs set finished_at = dispatched_at where active_key = 'a'",
        ),
        ("share an active key", "update jobs set active_key = 'a', name = 'n'"),
        (
            "exactly its active key",
            "update jobs set active_key = null, active_digest = null",
        ),
        ("has no row", "delete from job_keys where dimension = 'active'"),
        (
            "finished, gone or another one",
            "update jobs set state = 'cancelled', ready = false, finished_at = dispatched_at, delete_after = dispatched_at where active_key = 'a'",
        ),
        (
            "was never stored",
            "update job_keys set job_id = '00000000-0000-7000-8000-000000000000' where dimension = 'window'",
        ),
        (
            "remembers its job wrongly",
            "update job_keys set job_dispatched_at = '2000-01-01Z' where dimension = 'window'",
        ),
        (
            "two rows hold",
            "insert into job_keys select app_id, gen_random_uuid(), dimension, name, scope, key, job_id, since,
             expires_at, fingerprint, release_on, linked, job_dispatched_at, job_active_key from job_keys",
        ),
        (
            "leased and lease_token",
            "update jobs set lease_token = gen_random_uuid() where active_key = 'a'",
        ),
        (
            "held by a job that is not leased",
            "insert into resource_holds select app_id, 'r:1', job_id from jobs where active_key = 'a'",
        ),
        (
            "does not hold its resource",
            "update jobs set state = 'reserved', ready = false, lease_token = gen_random_uuid(),
             resource_keys = '{r:1}' where active_key = 'a'",
        ),
        (
            "counts of a queue",
            "update jobs set queue = 'elsewhere' where active_key = 'a'",
        ),
        (
            "in line is not due",
            "update jobs set run_at = '2100-01-01Z' where active_key = 'a'",
        ),
        (
            "not numbered from one",
            "update jobs set attempt = 1 where active_key = 'a'",
        ),
    ];
    for (rule, fault) in faults {
        let backup = "create table harness.jobs as table jobs; create table harness.keys as table job_keys";
        sqlx::raw_sql(backup).execute(app.sql()).await.unwrap();
        sqlx::raw_sql(fault).execute(app.sql()).await.unwrap();
        let found = broken(app.sql(), RULES).await.unwrap();
        assert!(
            found.contains(rule),
            "`{fault}` was not seen as `{rule}`, but as:\n{found}"
        );
        let restore = "delete from job_keys; delete from jobs;
                       insert into jobs table harness.jobs; insert into job_keys table harness.keys;
                       delete from resource_holds;
                       drop table harness.jobs, harness.keys";
        sqlx::raw_sql(restore).execute(app.sql()).await.unwrap();
        assert_eq!(broken(app.sql(), RULES).await.unwrap(), "");
    }
    // A job deleted on purpose may be outlived by its window key.
    sqlx::raw_sql("delete from job_keys where dimension = 'active'; delete from jobs; delete from queue_counts")
        .execute(app.sql())
        .await
        .unwrap();
    assert_eq!(broken(app.sql(), RULES).await.unwrap(), "");

    let mut session = super::Session::open(&app).await;
    session.run("begin; select pg_advisory_xact_lock(1)").await;
    let found = broken(app.sql(), SOON).await.unwrap();
    assert!(found.contains("an advisory lock is left"), "{found}");
    assert!(found.contains("a session sits in an open transaction"), "{found}");
    session.run("rollback").await;
    app.finish().await;
}

#[tokio::test]
#[should_panic(expected = "this test never called App::finish")]
async fn a_test_that_forgets_to_finish_fails() {
    drop(App::start().await);
}
