//! What a token carries beside its rights: an end, a list of queues, a name.

use serde_json::json;

use super::{HEARD, app, id_of, refused};
use crate::support::{App, eventually_within, solejob};

/// A token for shop, prod, made with these arguments.
pub(super) async fn made(app: &App, args: &[&str]) -> String {
    let mut all = vec!["token", "create", "--application", "shop", "--environment", "prod"];
    all.extend(args);
    app.command_output(&all).await.trim().to_owned()
}

/// The moment is the database's, and comes while a server knows the token by heart.
#[tokio::test]
async fn a_token_ends_at_its_time() {
    let app = app().await;
    let token = made(&app, &["--rights", "read", "--expires-in", "90d"]).await;
    let lasting = made(&app, &["--rights", "read"]).await;
    let sql = "select expires_at - created_at = interval '90 days' from tokens where token_id = $1";
    let is_ninety_days: Option<bool> = sqlx::query_scalar(sql)
        .bind(id_of(&token))
        .fetch_one(app.sql())
        .await
        .unwrap();
    assert_eq!(is_ninety_days, Some(true));
    let client = app.with_token(&token);
    client.get("/v1/jobs", 200).await;

    let sql = "update tokens set expires_at = clock_timestamp() where token_id = $1";
    sqlx::query(sql).bind(id_of(&token)).execute(app.sql()).await.unwrap();
    eventually_within(HEARD, "an expired token to be refused", async || {
        match client.get("/v1/jobs", [200, 401]).await.status {
            401 => Ok(()),
            status => Err(format!("it still gets {status}")),
        }
    })
    .await;
    app.with_token(&lasting).get("/v1/jobs", 200).await;
    app.finish().await;
}

#[tokio::test]
async fn a_token_for_some_queues_reserves_in_no_other() {
    let app = app().await;
    let admin = app.with_token(&app.token("shop", "prod", &["admin"]).await);
    let mail = admin
        .post("/v1/jobs", &json!({"name": "n", "queue": "mail"}), 201)
        .await;
    admin
        .post("/v1/jobs", &json!({"name": "n", "queue": "bills"}), 201)
        .await;
    admin.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    let worker = app.with_token(&made(&app, &["--right", "work", "--queues", "mail,post"]).await);

    // Without queues the request means `default`, which is not one of its own either.
    for body in [
        json!({"queues": ["bills"], "max_jobs": 10}),
        json!({"queues": ["mail", "bills"], "max_jobs": 10}),
        json!({"queues": ["mai"]}),
        json!({}),
    ] {
        let answer = worker.post("/v1/worker/reserve", &body, 403).await;
        answer.assert_problem(403, &["forbidden"]);
        assert!(answer.str("/detail").contains("mail, post"), "{}", answer.text);
    }
    let sql = "select count(*) from jobs where state <> 'pending'";
    let touched: i64 = sqlx::query_scalar(sql).fetch_one(app.sql()).await.unwrap();
    assert_eq!(touched, 0, "a reserve that was refused gave jobs out");

    let body = json!({"queues": ["post", "mail"], "max_jobs": 10});
    let reserved = worker.post("/v1/worker/reserve", &body, 200).await;
    assert_eq!(
        reserved.at("/jobs").as_array().map(Vec::len),
        Some(1),
        "{}",
        reserved.text
    );
    assert_eq!(reserved.at("/jobs/0/job_id"), mail.job_id());
    // The lease is proof enough for the rest.
    let token = json!({"lease_token": reserved.at("/jobs/0/lease/token")});
    worker
        .post(&format!("/v1/worker/{}/succeed", mail.job_id()), &token, 200)
        .await;
    app.finish().await;
}

/// To change a token, its successor is made first: both are valid until the first is revoked.
#[tokio::test]
async fn two_tokens_with_the_same_name_are_valid_at_once() {
    let app = app().await;
    let args = ["--rights", "dispatch,read", "--name", "the shop", "--expires-in", "1h"];
    let [first, second] = [made(&app, &args).await, made(&app, &args).await];
    let job = app
        .with_token(&first)
        .post("/v1/jobs", &json!({"name": "n"}), 201)
        .await;
    app.with_token(&second)
        .get(&format!("/v1/jobs/{}", job.job_id()), 200)
        .await;
    let list = app.command_output(&["token", "list"]).await;
    for token in [&first, &second] {
        let line = list.lines().find(|line| line.starts_with(id_of(token)));
        let line = line.unwrap_or_else(|| panic!("{} is not in\n{list}", id_of(token)));
        assert!(
            line.contains(" dispatch,read ") && line.ends_with(" the shop"),
            "{line}"
        );
        assert!(!list.contains(token.as_str()), "the list shows a secret");
    }
    app.finish().await;
}

#[tokio::test]
async fn what_no_token_can_carry_is_refused_with_a_reason() {
    let app = app().await;
    for (args, hint) in [
        (["--right", "work", "--expires-in", "0s"], "1s to 3650d"),
        (["--right", "work", "--expires-in", "3651d"], "1s to 3650d"),
        (["--right", "work", "--expires-in", "soon"], "duration"),
        (["--right", "read", "--queues", "mail"], "--right work"),
        (["--right", "work", "--queues", "mail,"], "1 to 128"),
        (["--right", "work", "--queues", "two words"], "1 to 128"),
        (["--right", "work", "--name", ""], "1 to 128"),
        (["--right", "work", "--name", "a\nb"], "control"),
    ] {
        let mut command = solejob(app.database_url());
        command.args(["token", "create", "--application", "shop", "--environment", "prod"]);
        command.args(args);
        let said = String::from_utf8(refused(command).await.stderr).unwrap();
        assert!(said.contains(hint), "{args:?}: {said}");
    }
    let sql = "select count(*) from tokens where token_id <> 'bootstrap'";
    let kept: i64 = sqlx::query_scalar(sql).fetch_one(app.sql()).await.unwrap();
    assert_eq!(kept, 0);
    app.finish().await;
}
