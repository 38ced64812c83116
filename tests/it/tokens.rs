//! Tokens: who may ask for what, and that nobody sees another application's jobs or keys.

use serde_json::{Value, json};

use crate::support::{App, Client, Options};

const BOOTSTRAP: &str = "bootstrap-0123456789abcdef0123456789";

async fn guarded() -> App {
    App::with(Options::default().bootstrap_token(BOOTSTRAP)).await
}

fn both_keys(payload: u32) -> Value {
    json!({"name": "n", "payload": payload, "uniqueness": {"active_key": "a", "window_key": "w", "window": "1h"}})
}

#[tokio::test]
async fn nobody_gets_in_without_a_token() {
    let app = guarded().await;
    let strangers = [
        app.client(0).clone(),
        app.with_token("wrong"),
        app.with_token(&BOOTSTRAP[1..]),
    ];
    for stranger in &strangers {
        stranger
            .post("/v1/jobs", &json!({"name": "n"}), 401)
            .await
            .assert_problem(401, &["unauthorized"]);
        stranger
            .post("/v1/jobs/batch", &json!({"jobs": [{"name": "n"}]}), 401)
            .await;
        stranger.post("/v1/jobs/preview", &json!({"name": "n"}), 401).await;
        stranger
            .get("/v1/jobs", 401)
            .await
            .assert_problem(401, &["unauthorized"]);
        stranger.get("/v1/keys?name=n&active_key=a", 401).await;
        stranger.get("/metrics", 401).await;
    }
    for open in ["/healthz", "/readyz", "/openapi.json", "/errors/unauthorized"] {
        app.get(open, 200).await;
    }
    let jobs: i64 = sqlx::query_scalar("select count(*) from jobs")
        .fetch_one(app.sql())
        .await
        .unwrap();
    assert_eq!(jobs, 0);
    app.with_token(BOOTSTRAP)
        .post("/v1/jobs", &json!({"name": "n"}), 201)
        .await;
    app.with_token(BOOTSTRAP).get("/metrics", 200).await;
    app.finish().await;
}

/// What a token with these rights is answered where the right is `dispatch`, `read` and `admin`.
async fn assert_rights(app: &App, client: &Client, may: [bool; 3]) {
    let admin = app.with_token(BOOTSTRAP);
    let job = admin
        .post("/v1/jobs", &json!({"name": "n"}), 201)
        .await
        .job_id()
        .to_owned();
    let status = |may: bool, yes: u16| if may { yes } else { 403 };
    let [dispatch, read, all] = may;
    client
        .post("/v1/jobs", &json!({"name": "n"}), status(dispatch, 201))
        .await;
    client
        .post(
            "/v1/jobs/batch",
            &json!({"jobs": [{"name": "n"}]}),
            status(dispatch, 200),
        )
        .await;
    client
        .post("/v1/jobs/preview", &json!({"name": "n"}), status(dispatch, 200))
        .await;
    client.get("/v1/jobs", status(read, 200)).await;
    client.get(&format!("/v1/jobs/{job}"), status(read, 200)).await;
    client.get("/v1/keys?name=n&active_key=a", status(read, 200)).await;
    client
        .post(
            "/v1/keys/reset",
            &json!({"name": "n", "window_key": "w"}),
            status(all, 200),
        )
        .await;
    let cancelled = client
        .post(&format!("/v1/jobs/{job}/cancel"), &json!({}), status(all, 200))
        .await;
    if all {
        client.delete(&format!("/v1/jobs/{job}"), [200, 204]).await;
    } else {
        cancelled.assert_problem(403, &["forbidden"]);
        client.delete(&format!("/v1/jobs/{job}"), 403).await;
    }
}

#[tokio::test]
async fn a_token_opens_what_its_rights_say() {
    let app = guarded().await;
    for (rights, may) in [
        (&["dispatch"][..], [true, false, false]),
        (&["read"], [false, true, false]),
        (&["dispatch", "read"], [true, true, false]),
        (&["work"], [false, false, false]),
        (&["admin"], [true, true, true]),
    ] {
        let token = app.token("default", "prod", rights).await;
        assert_rights(&app, &app.with_token(&token), may).await;
    }
    app.finish().await;
}

#[tokio::test]
async fn applications_and_environments_are_invisible_to_each_other() {
    let app = guarded().await;
    let mut clients = Vec::new();
    for (application, environment) in [("shop", "prod"), ("shop", "test"), ("blog", "prod")] {
        clients.push(app.with_token(&app.token(application, environment, &["admin"]).await));
    }
    // The same keys with other payloads: three jobs, no conflict.
    let mut jobs = Vec::new();
    for (payload, client) in (0..).zip(&clients) {
        jobs.push(
            client
                .post("/v1/jobs", &both_keys(payload), 201)
                .await
                .job_id()
                .to_owned(),
        );
    }
    for (own, client) in clients.iter().enumerate() {
        let again = client
            .post("/v1/jobs", &both_keys(u32::try_from(own).unwrap()), 200)
            .await;
        assert_eq!(again.job_id(), jobs[own]);
        assert_eq!(
            client.get("/v1/jobs", 200).await.at("/jobs").as_array().map(Vec::len),
            Some(1)
        );
        for (other, job) in jobs.iter().enumerate().filter(|(other, _)| *other != own) {
            for answer in [
                client.get(&format!("/v1/jobs/{job}"), 404).await,
                client.post(&format!("/v1/jobs/{job}/cancel"), &json!({}), 404).await,
                client.delete(&format!("/v1/jobs/{job}"), 404).await,
            ] {
                answer.assert_problem(404, &["job_not_found"]);
            }
            let conflict = client
                .post("/v1/jobs", &both_keys(u32::try_from(other).unwrap()), 409)
                .await;
            assert_eq!(
                conflict.at("/conflicting_job_id"),
                &json!(jobs[own]),
                "a stranger's job is named"
            );
        }
    }
    // Resetting one's own key frees nobody else's.
    clients[0]
        .post("/v1/keys/reset", &json!({"name": "n", "window_key": "w"}), 200)
        .await;
    for client in &clients[1..] {
        assert_eq!(client.get("/v1/keys?name=n&window_key=w", 200).await.at("/held"), true);
    }
    app.finish().await;
}

#[tokio::test]
async fn the_secret_of_a_token_is_nowhere_in_the_database() {
    let app = guarded().await;
    let token = app.token("default", "prod", &["read"]).await;
    app.with_token(&token).get("/v1/jobs", 200).await;
    let rows: Vec<String> = sqlx::query_scalar("select t::text from tokens t")
        .fetch_all(app.sql())
        .await
        .unwrap();
    assert!(!rows.is_empty());
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    for row in &rows {
        for secret in [&token, BOOTSTRAP] {
            // The part behind the token's id, if it has one, is the secret.
            let secret = secret.rsplit(['_', '.']).next().expect("some text");
            assert!(
                !row.contains(secret) && !row.contains(&hex(secret)),
                "a secret is stored: {row}"
            );
        }
    }
    assert!(!app.log().contains(&token), "a token is in the log");
    app.finish().await;
}

/// A server for which nobody asked for a token is for this machine alone.
#[tokio::test]
async fn an_anonymous_server_acts_for_one_application() {
    let app = App::start().await;
    app.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    let sql = "select application || '/' || environment from applications join jobs using (app_id)";
    let acts_for: String = sqlx::query_scalar(sql).fetch_one(app.sql()).await.unwrap();
    assert_eq!(acts_for, "default/dev");
    app.finish().await;
}
