//! The transaction of a dispatch: its clock, its isolation, whatever the role's settings are.

use chrono::{DateTime, Utc};
use serde_json::json;
use solejob::job::AppId;
use solejob::store::STATEMENTS;
use solejob::uniqueness::decide::AskedKey;
use solejob::uniqueness::key::{Key, KeyText, Scope};
use solejob::uniqueness::locks::LockSet;
use sqlx::{Connection, PgConnection};

use crate::support::{Answer, App, Options, Session, eventually};

fn instant(answer: &Answer, pointer: &str) -> DateTime<Utc> {
    let text = answer.str(pointer);
    assert!(text.ends_with('Z'), "{pointer} is in UTC: {text}");
    text.parse().unwrap()
}

async fn clock(app: &App) -> DateTime<Utc> {
    sqlx::query_scalar("select clock_timestamp()")
        .fetch_one(app.sql())
        .await
        .unwrap()
}

/// The advisory lock of a key of the application that an anonymous server acts for.
async fn lock_of(app: &App, key: Key) -> i64 {
    let application = sqlx::query_scalar("select app_id from applications")
        .fetch_one(app.sql())
        .await
        .unwrap();
    let nonce = 7;
    let digest = AskedKey::new(key).digest;
    match LockSet::new([(AppId(application), digest)].into_iter(), nonce, 100) {
        LockSet::Each(ids) => {
            let ids = ids.into_iter().filter(|id| *id != nonce).collect::<Vec<_>>();
            assert_eq!(ids.len(), 1);
            ids[0]
        }
        LockSet::All => panic!("one key is not too many"),
    }
}

/// A session that holds the lock of a key.
async fn hold(app: &App, key: Key) -> Session {
    let lock = lock_of(app, key).await;
    let mut session = Session::open(app).await;
    session
        .run(&format!("begin; select pg_advisory_xact_lock({lock})"))
        .await;
    session
}

fn text(key: &str) -> KeyText {
    KeyText::parse(key).unwrap()
}

#[tokio::test]
async fn the_clock_is_read_once_the_locks_are_held() {
    let app = App::start().await;
    for (key, uniqueness) in [
        (Key::active("n", text("a")), json!({"active_key": "a"})),
        (
            Key::window("n", Scope::Global, text("w")),
            json!({"window_key": "w", "window": "1h"}),
        ),
    ] {
        let mut holder = hold(&app, key).await;
        let (client, body) = (app.client(0).clone(), json!({"name": "n", "uniqueness": uniqueness}));
        let call = tokio::spawn(async move { client.post("/v1/jobs", &body, 201).await });
        holder.until_blocking(1).await;
        // Another key waits for nobody.
        app.post(
            "/v1/jobs",
            &json!({"name": "n", "uniqueness": {"active_key": "other"}}),
            200..=201,
        )
        .await;
        let released = clock(&app).await;
        holder.run("rollback").await;
        let receipt = call.await.unwrap();
        let decided = instant(&receipt, "/decided_at");
        assert!(
            decided >= released,
            "decided at {decided}, and the key was free from {released}"
        );
        assert_eq!(instant(&receipt, "/dispatched_at"), decided);
        if receipt.at("/window").is_object() {
            let window = instant(&receipt, "/window/expires_at") - decided;
            assert_eq!(window.num_microseconds(), Some(3_600_000_000));
        }
    }
    app.finish().await;
}

/// Between the clock of a dispatch and its look the window of its key may end. It was decided within the window all the
/// same, so the row must still be there.
#[tokio::test]
async fn a_window_that_ends_before_the_look_still_answers_for_its_time() {
    let app = App::start().await;
    let body = json!({"name": "n", "uniqueness": {"window_key": "w", "window": "1500ms"}});
    let first = app.post("/v1/jobs", &body, 201).await;
    // Beside something that is to be created, it is decided under the lock of its key.
    let mut owner = hold(&app, Key::window("n", Scope::Global, text("w"))).await;
    let (client, again) = (app.client(0).clone(), json!({"jobs": [body, {"name": "other"}]}));
    let call = tokio::spawn(async move { client.post("/v1/jobs/batch", &again, 200).await });
    owner.until_blocking(1).await;
    let mut holder = Session::open(&app).await;
    holder.run("begin; lock table job_keys").await;
    owner.run("rollback").await;
    eventually("the dispatch to be about to look", async || {
        let looks = "select count(*) from pg_stat_activity where datname = current_database()
                     and wait_event_type = 'Lock' and query like '-- solejob look_up:%'";
        match sqlx::query_scalar::<_, i64>(looks).fetch_one(app.sql()).await.unwrap() {
            0 => Err("it is not"),
            _ => Ok(()),
        }
    })
    .await;
    let end = instant(&first, "/window/expires_at");
    eventually("the window to end", async || {
        let now = clock(&app).await;
        if now > end { Ok(()) } else { Err(format!("it is {now}")) }
    })
    .await;
    // The sweep comes by, as any server's may.
    let (_, sweep) = STATEMENTS.iter().find(|(file, _)| *file == "sweep_keys.sql").unwrap();
    holder.run(&sweep.replace("$1", "0").replace("$2", "1000000")).await;
    holder.run("commit").await;
    let second = call.await.unwrap();
    let decided = instant(&second, "/results/0/receipt/decided_at");
    assert!(
        decided < end,
        "it was to be decided within the window, not at {decided}"
    );
    let receipt = second.at("/results/0/receipt");
    assert_eq!(receipt["duplicate_match"], "window", "{}", second.text);
    assert_eq!(receipt["job_id"], first.job_id());
    app.post("/v1/jobs", &body, 201).await;
    app.finish().await;
}

/// Waiters for one key, on both servers, each of which must see what the one before it stored.
async fn assert_waiters_see(app: &App, round: usize) {
    let key = format!("k-{round}");
    let mut holder = hold(app, Key::active("n", text(&key))).await;
    let body = json!({"name": "n", "uniqueness": {"active_key": key}});
    let calls = [0, 1].map(|server| {
        let (client, body) = (app.client(server).clone(), body.clone());
        tokio::spawn(async move { client.post("/v1/jobs", &body, 200..=201).await })
    });
    holder.until_blocking(2).await;
    holder.run("rollback").await;
    let [first, second] = calls;
    let answers = [first.await.unwrap(), second.await.unwrap()];
    assert_eq!(answers[0].job_id(), answers[1].job_id());
    let created = answers.iter().filter(|answer| answer.status == 201).count();
    assert_eq!(created, 1);
}

/// Under REPEATABLE READ the lock statement would fix what is seen, before the wait. The constraint would
/// then save the day, at the price of deciding anew: so that must not have happened.
#[tokio::test]
async fn settings_of_the_role_change_no_decision() {
    let mut app = App::with(Options::default().servers(2)).await;
    for setting in [
        "default_transaction_isolation = 'repeatable read'",
        "default_transaction_read_only = off",
        "TimeZone = 'Asia/Tokyo'",
        "DateStyle = 'German'",
    ] {
        let sql = format!(
            "do $$ begin execute format('alter role %I in database %I set {setting}', \
                           current_user, current_database()); end $$",
            setting = setting.replace('\'', "''")
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
            .execute(app.sql())
            .await
            .unwrap();
    }
    let mut session = PgConnection::connect(app.database_url()).await.unwrap();
    let row = "select current_setting('transaction_isolation') || ', ' || current_setting('TimeZone')";
    let row: String = sqlx::query_scalar(row).fetch_one(&mut session).await.unwrap();
    assert_eq!(row, "repeatable read, UTC", "sqlx itself sets the time zone");
    session.close().await.unwrap();
    for server in [0, 1] {
        app.replace_server(server).await;
    }

    for round in 0..20 {
        assert_waiters_see(&app, round).await;
    }
    for server in [0, 1] {
        let metrics = app.client(server).get("/metrics", 200).await.text;
        assert!(
            !metrics.contains("reason=\"overtaken\""),
            "the locks did not suffice:\n{metrics}"
        );
    }

    let before = clock(&app).await;
    let body = json!({"name": "n", "run_at": "2030-01-01T00:00:00+02:00",
                      "uniqueness": {"window_key": "w", "window": "60s"}});
    let receipt = app.post("/v1/jobs", &body, 201).await;
    let decided = instant(&receipt, "/decided_at");
    assert!(
        before <= decided && decided <= clock(&app).await,
        "{decided} is not now"
    );
    let job = app.get(&format!("/v1/jobs/{}", receipt.job_id()), 200).await;
    assert_eq!(
        instant(&job, "/run_at"),
        "2029-12-31T22:00:00Z".parse::<DateTime<Utc>>().unwrap()
    );
    assert_eq!(instant(&job, "/dispatched_at"), decided);
    app.finish().await;
}
