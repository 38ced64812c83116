//! Fifty callers at once over two server processes on one database: one dispatch, one job.
//!
//! Half of the rounds gather the callers before a held table, so that both servers look at the keys in
//! the same instant; the other half lets them come as they do.

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{Answer, App, Gate, Options, Session};

/// Counts transactions that were decided anew, as after a constraint fired.
const RETRIES: &str = "solejob_dispatch_retries_total";
const CALLERS: usize = 50;
const ROUNDS: usize = 100;
/// Rounds of the rarer races, each of which needs some preparation.
const FEWER_ROUNDS: usize = 25;

async fn two_servers() -> App {
    App::with(Options::default().servers(2)).await
}

/// Sends the body from all callers at once, half of them to each server.
async fn all_at_once(app: &App, path: &'static str, body: &Value, gated: bool) -> Vec<Answer> {
    let mut calls = JoinSet::new();
    let mut send = |server: usize| {
        for _ in 0..CALLERS / 2 {
            let (client, body) = (app.client(server).clone(), body.clone());
            calls.spawn(async move { client.post(path, &body, 200..=299).await });
        }
    };
    if gated {
        let gate = Gate::close(app).await;
        send(0);
        let waiting = gate.more_waiting_than(0).await;
        send(1);
        gate.more_waiting_than(waiting).await;
        gate.open().await;
    } else {
        send(0);
        send(1);
    }
    calls.join_all().await
}

/// One job id in all answers, created by exactly one of them. Gives the id.
fn one_created(receipts: &[&Value]) -> String {
    let created = receipts
        .iter()
        .filter(|receipt| receipt["disposition"] == "created")
        .count();
    assert_eq!(created, 1, "{created} answers say that they created a job");
    let reused = receipts
        .iter()
        .filter(|receipt| receipt["disposition"] == "reused")
        .count();
    assert_eq!(reused, receipts.len() - 1);
    let id = receipts[0]["job_id"].as_str().expect("a receipt names its job");
    assert!(
        receipts.iter().all(|receipt| receipt["job_id"] == id),
        "the answers name more than one job"
    );
    id.to_owned()
}

fn receipts(answers: &[Answer]) -> Vec<&Value> {
    answers.iter().map(|answer| answer.at("")).collect()
}

/// A hundred rounds of fresh keys.
async fn rounds_of(uniqueness: impl Fn(usize) -> Value, reused_as: &str) {
    let app = two_servers().await;
    for round in 0..ROUNDS {
        let body = json!({"name": "race", "payload": round, "uniqueness": uniqueness(round)});
        let answers = all_at_once(&app, "/v1/jobs", &body, round % 2 == 0).await;
        one_created(&receipts(&answers));
        for answer in &answers {
            let created = answer.at("/disposition") == "created";
            assert_eq!(answer.status, if created { 201 } else { 200 }, "{}", answer.text);
            let expected = if created { Value::Null } else { json!(reused_as) };
            assert_eq!(answer.at("/duplicate_match"), &expected, "{}", answer.text);
        }
    }
    let jobs: i64 = sqlx::query_scalar("select count(*) from jobs")
        .fetch_one(app.sql())
        .await
        .expect("a count");
    assert_eq!(jobs, ROUNDS as i64, "one job for each round");
    assert_eq!(
        app.counter(RETRIES).await,
        0,
        "the locks keep dispatches from meeting in a constraint"
    );
    assert!(app.counter("solejob_dispatches_total").await >= (ROUNDS * CALLERS) as u64);
    app.finish().await;
}

#[tokio::test]
async fn one_active_key_makes_one_job() {
    rounds_of(|round| json!({"active_key": format!("k-{round}")}), "active").await;
}

#[tokio::test]
async fn one_window_key_makes_one_job() {
    rounds_of(
        |round| json!({"window_key": format!("k-{round}"), "window": "1h"}),
        "window",
    )
    .await;
}

#[tokio::test]
async fn both_keys_make_one_job() {
    let keys = |round| json!({"active_key": format!("a-{round}"), "window_key": format!("w-{round}"), "window": "1h"});
    rounds_of(keys, "both").await;
}

#[tokio::test]
async fn the_same_batch_from_everywhere_makes_one_job_for_each_key() {
    let app = two_servers().await;
    for round in 0..ROUNDS {
        let item = |key: usize| {
            let (active, window) = (format!("a-{round}-{key}"), format!("w-{round}-{key}"));
            match key % 3 {
                0 => json!({"name": "race", "uniqueness": {"active_key": active}}),
                1 => json!({"name": "race", "uniqueness": {"window_key": window, "window": "1h"}}),
                _ => {
                    json!({"name": "race", "uniqueness": {"active_key": active, "window_key": window, "window": "1h"}})
                }
            }
        };
        let body = json!({"jobs": (0..6).map(item).collect::<Vec<_>>()});
        let answers = all_at_once(&app, "/v1/jobs/batch", &body, round % 2 == 0).await;
        let created: u64 = answers.iter().filter_map(|answer| answer.at("/created").as_u64()).sum();
        assert_eq!(created, 6, "each key is created once, by one of the batches");
        for key in 0..6 {
            let pointer = format!("/results/{key}/receipt");
            one_created(&answers.iter().map(|answer| answer.at(&pointer)).collect::<Vec<_>>());
        }
    }
    app.finish().await;
}

#[tokio::test]
async fn an_expired_window_key_is_taken_over_once() {
    let app = two_servers().await;
    for round in 0..FEWER_ROUNDS {
        let key = format!("k-{round}");
        let body = json!({"name": "race", "uniqueness": {"window_key": key, "window": "1h"}});
        let old = app.post("/v1/jobs", &body, 201).await.job_id().to_owned();
        app.expire_window("race", &key).await;
        let answers = all_at_once(&app, "/v1/jobs", &body, round % 2 == 0).await;
        assert_ne!(one_created(&receipts(&answers)), old, "the key's time is over");
    }
    app.finish().await;
}

#[tokio::test]
async fn a_window_key_is_reset_while_it_is_asked_for() {
    let app = two_servers().await;
    for round in 0..FEWER_ROUNDS {
        let key = format!("k-{round}");
        let body = json!({"name": "race", "uniqueness": {"window_key": key, "window": "1h"}});
        let old = app.post("/v1/jobs", &body, 201).await.job_id().to_owned();
        let reset = json!({"name": "race", "window_key": key, "job_id": old});
        let client = app.client(1).clone();
        let reset = tokio::spawn(async move { client.post("/v1/keys/reset", &reset, 200).await });
        let answers = all_at_once(&app, "/v1/jobs", &body, round % 2 == 0).await;
        assert_eq!(reset.await.unwrap().at("/released"), true, "the old job held the key");
        // Some came before the reset. Those after it have one new job between them.
        let (before, after): (Vec<_>, Vec<_>) = receipts(&answers).into_iter().partition(|r| r["job_id"] == old);
        assert!(before.iter().all(|receipt| receipt["disposition"] == "reused"));
        if !after.is_empty() {
            one_created(&after);
        }
    }
    app.finish().await;
}

#[tokio::test]
async fn the_active_key_of_a_job_that_is_being_cancelled_goes_to_one_other() {
    let app = two_servers().await;
    for round in 0..FEWER_ROUNDS {
        // Both keys: the window key of a dispatch that finds the job still live is linked to it.
        let body = |window: &str| {
            let keys = json!({"active_key": format!("a-{round}"), "window_key": window, "window": "1h"});
            json!({"name": "race", "uniqueness": keys})
        };
        let old = app
            .post("/v1/jobs", &body(&format!("first-{round}")), 201)
            .await
            .job_id()
            .to_owned();
        let (client, path) = (app.client(1).clone(), format!("/v1/jobs/{old}/cancel"));
        let cancel = tokio::spawn(async move { client.post(&path, &json!({}), 200).await });
        let answers = all_at_once(&app, "/v1/jobs", &body(&format!("w-{round}")), round % 2 == 0).await;
        assert_eq!(cancel.await.unwrap().at("/state"), "cancelled");
        // Whoever linked the window key to the old job decided for all.
        let all = receipts(&answers);
        let id = all[0]["job_id"].as_str().unwrap();
        assert!(
            all.iter().all(|receipt| receipt["job_id"] == id),
            "one window key, more than one job"
        );
        let created = all.iter().filter(|receipt| receipt["disposition"] == "created").count();
        assert_eq!(created, usize::from(id != old));
        let next = app
            .post(
                "/v1/jobs",
                &json!({"name": "race", "uniqueness": {"active_key": format!("a-{round}")}}),
                200..=201,
            )
            .await;
        assert_ne!(next.job_id(), old, "a cancelled job holds no active key");
        assert_eq!(next.status == 201, id == old);
    }
    app.finish().await;
}

/// A dispatch whose key a session outside the server is just inserting, without any lock: the locks
/// cannot help, so the constraint must, and the client must not notice.
struct Intruder {
    app: App,
    session: Session,
    old: String,
    body: Value,
}

impl Intruder {
    /// The key row of a job that there was once, inserted anew and not yet committed.
    async fn with(uniqueness: Value) -> Self {
        let app = two_servers().await;
        let body = json!({"name": "race", "uniqueness": uniqueness});
        let old = app.post("/v1/jobs", &body, 201).await.job_id().to_owned();
        let mut session = Session::open(&app).await;
        session
            .run("create table harness.keys as table job_keys; delete from job_keys")
            .await;
        session
            .run("create table harness.jobs as table jobs; delete from jobs")
            .await;
        session
            .run("begin; insert into jobs table harness.jobs; insert into job_keys table harness.keys")
            .await;
        Intruder {
            app,
            session,
            old,
            body,
        }
    }

    /// Sends the request, waits until it waits for the intruder, ends that one so, and gives the answer.
    async fn meet(&mut self, path: &'static str, body: Value, end: &str) -> Answer {
        let client = self.app.client(0).clone();
        let call = tokio::spawn(async move { client.post(path, &body, 200..=201).await });
        self.session.until_blocking(1).await;
        self.session.run(end).await;
        call.await.expect("the dispatch is answered with success")
    }
}

#[tokio::test]
async fn a_key_that_appears_behind_the_locks_is_reused() {
    for (uniqueness, matched) in [
        (json!({"active_key": "k"}), "active"),
        (json!({"window_key": "k", "window": "1h"}), "window"),
        (json!({"active_key": "k", "window_key": "k", "window": "1h"}), "both"),
    ] {
        let mut intruder = Intruder::with(uniqueness).await;
        let answer = intruder.meet("/v1/jobs", intruder.body.clone(), "commit").await;
        assert_eq!(answer.at("/disposition"), "reused", "{}", answer.text);
        assert_eq!(answer.at("/duplicate_match"), matched);
        assert_eq!(answer.job_id(), intruder.old);
        assert!(
            intruder.app.counter(RETRIES).await >= 1,
            "nobody counted that it was decided anew"
        );
        intruder.app.finish().await;
    }
}

#[tokio::test]
async fn a_batch_decides_anew_when_a_key_appears_behind_the_locks() {
    let mut intruder = Intruder::with(json!({"active_key": "k"})).await;
    let batch =
        json!({"jobs": [{"name": "other"}, intruder.body, {"name": "other", "uniqueness": {"active_key": "k"}}]});
    let answer = intruder.meet("/v1/jobs/batch", batch, "commit").await;
    assert_eq!(answer.at("/created"), 2, "{}", answer.text);
    assert_eq!(answer.at("/results/1/receipt/disposition"), "reused");
    assert_eq!(answer.at("/results/1/receipt/job_id"), &json!(intruder.old));
    intruder.app.finish().await;
}

#[tokio::test]
async fn a_key_that_never_came_to_be_is_created() {
    for uniqueness in [json!({"active_key": "k"}), json!({"window_key": "k", "window": "1h"})] {
        let mut intruder = Intruder::with(uniqueness).await;
        // Its job is not there after all, and is no longer counted.
        let end = "rollback; insert into queue_counts (app_id, queue, state, jobs)
            select app_id, queue, state, -1 from harness.jobs";
        let answer = intruder.meet("/v1/jobs", intruder.body.clone(), end).await;
        assert_eq!(answer.at("/disposition"), "created", "{}", answer.text);
        assert_ne!(answer.job_id(), intruder.old);
        intruder.app.finish().await;
    }
}

/// The clock is read after the locks: a window that ended during the wait for them is over, though it
/// was not yet when the transaction began.
#[tokio::test]
async fn a_window_that_ends_during_the_wait_is_over() {
    let app = App::start().await;
    let body = json!({"name": "race", "uniqueness": {"window_key": "k", "window": "1h"}});
    let send = || {
        let (client, body) = (app.client(0).clone(), body.clone());
        tokio::spawn(async move { client.post("/v1/jobs", &body, 201).await })
    };
    // Stopped where it claims its key, a dispatch shows which locks belong to it.
    let mut session = Session::open(&app).await;
    let stop = "
        create function harness.stop() returns trigger language plpgsql as $$
        begin
            perform pg_advisory_xact_lock_shared(42);
            return new;
        end $$;
        create trigger stop before insert on job_keys for each row execute function harness.stop();";
    session.run(stop).await;
    session.run("begin; select pg_advisory_xact_lock(42)").await;
    let first = send();
    session.until_blocking(1).await;
    let sql = "select (classid::bigint << 32) | objid::bigint from pg_locks where locktype = 'advisory' and granted
               and database = (select oid from pg_database where datname = current_database()) and objsubid = 1
               and objid <> 42";
    let locks: Vec<i64> = sqlx::query_scalar(sql).fetch_all(app.sql()).await.unwrap();
    assert!(!locks.is_empty(), "a dispatch with a key holds no advisory lock");
    session.run("commit").await;
    let old = first.await.unwrap().job_id().to_owned();

    session
        .run("create table harness.keys as table job_keys; delete from job_keys; begin")
        .await;
    for lock in locks {
        session.run(&format!("select pg_advisory_xact_lock({lock})")).await;
    }
    let second = send();
    session.until_blocking(1).await;
    let ended =
        "update harness.keys set expires_at = clock_timestamp(); insert into job_keys table harness.keys; commit";
    session.run(ended).await;
    let answer = second.await.unwrap();
    assert_eq!(answer.at("/disposition"), "created", "{}", answer.text);
    assert_ne!(answer.job_id(), old);
    app.finish().await;
}
