//! Tokens: who is let in, what each right opens, and that no secret is kept or told.

mod ends;
mod matrix;

use std::process::Output;
use std::time::Duration;

use reqwest::Method;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::support::{Answer, App, Call, Client, Options, Server, eventually_within, solejob};

const BOOTSTRAP: &str = "bootstrap-0123456789abcdef";
/// A revocation is heard within 5 seconds; the rest is for a busy machine.
const HEARD: Duration = Duration::from_secs(7);

async fn app() -> App {
    App::with(Options::default().bootstrap_token(BOOTSTRAP)).await
}

/// A request with these `Authorization` headers, and no others.
async fn authorized(client: &Client, path: &str, values: &[&[u8]]) -> Answer {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(AUTHORIZATION, HeaderValue::from_bytes(value).expect("a header"));
    }
    let call = Call {
        method: Method::GET,
        path: path.to_owned(),
        headers,
        body: None,
    };
    client.send(call).await.expect("an answer")
}

/// Runs a command that is to fail.
async fn refused(mut command: std::process::Command) -> Output {
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap();
    let output = output.expect("the built binary can be run");
    assert!(!output.status.success(), "it was not refused: {output:?}");
    output
}

/// `solejob serve` with these arguments, on a database that is never reached.
async fn refused_to_serve(args: &[&str], env: &[(&str, &str)]) -> String {
    let mut command = solejob("postgres://nobody@127.0.0.1:9/none");
    command.args(["serve", "--database-wait", "0s"]).args(args);
    command.envs(env.iter().copied());
    let output = refused(command).await;
    String::from_utf8(output.stderr).expect("stderr is UTF-8")
}

/// The id of a token: what stands before its secret.
fn id_of(token: &str) -> &str {
    let end = "sole_".len() + 8;
    assert_eq!(&token[end..=end], "_", "an id of eight digits, then the secret");
    &token[..end]
}

#[tokio::test]
async fn the_bootstrap_token_opens_everything() {
    let app = app().await;
    let client = app.with_token(BOOTSTRAP);
    let job = client.post("/v1/jobs", &json!({"name": "first"}), 201).await;
    client.get(&format!("/v1/jobs/{}", job.job_id()), 200).await;
    client
        .post_nothing(&format!("/v1/jobs/{}/cancel", job.job_id()), 200)
        .await;
    client.delete(&format!("/v1/jobs/{}", job.job_id()), 200).await;

    // It acts for application `default`, environment `prod`, like any other token made for that.
    let visible = client.post("/v1/jobs", &json!({"name": "second"}), 201).await;
    let same = app.with_token(&app.token("default", "prod", &["read"]).await);
    same.get(&format!("/v1/jobs/{}", visible.job_id()), 200).await;
    app.finish().await;
}

#[tokio::test]
async fn nobody_enters_without_a_valid_token() {
    let app = app().await;
    let token = app.token("shop", "prod", &["read"]).await;
    let bearer = |token: &str| format!("Bearer {token}").into_bytes();
    let (right, wrong) = (bearer(&token), bearer(&token.replace("sole_", "sole-")));
    let mut last_letter = token.clone();
    let last = last_letter.pop();
    last_letter.push(if last == Some('A') { 'B' } else { 'A' });

    let accepted = authorized(&app, "/v1/jobs", &[&right]).await;
    assert_eq!(accepted.status, 200, "{}", accepted.text);
    // The scheme's name has no case (RFC 9110, section 11.1).
    let lower = format!("bearer {token}");
    assert_eq!(authorized(&app, "/v1/jobs", &[lower.as_bytes()]).await.status, 200);

    let long = bearer(&"x".repeat(10_000));
    let malformed: &[&[&[u8]]] = &[
        &[],
        &[b""],
        &[b"Bearer"],
        &[b"Bearer "],
        &[token.as_bytes()],
        &[b"Basic dXNlcjpwYXNz"],
        &[&wrong],
        &[&bearer(id_of(&token))],
        &[&bearer(&last_letter)],
        &[&bearer(&format!("{token}x"))],
        &[&bearer(&format!("{token} {token}"))],
        &[&bearer(&token.to_uppercase())],
        &[&long],
        &[b"Bearer \xff\xfe"],
        // Two headers, even if both are right: which of them counts would be anybody's guess.
        &[&right, &right],
        &[&right, &wrong],
        &[&wrong, &right],
    ];
    for values in malformed {
        for path in ["/v1/jobs", "/v1/keys?name=x&active_key=y", "/metrics"] {
            let answer = authorized(&app, path, values).await;
            answer.assert_problem(401, &["unauthorized"]);
            assert_eq!(
                answer.header("www-authenticate"),
                Some("Bearer"),
                "{path} with {values:?}"
            );
            assert!(
                !answer.text.contains(&token),
                "the answer repeats a token: {}",
                answer.text
            );
        }
    }
    // Before anything of the request is read: who is nobody learns nothing about what would be valid.
    let body = Call::json("/v1/jobs", "{");
    let answer = app.client(0).send(body).await.unwrap();
    answer.assert_problem(401, &["unauthorized"]);
    app.finish().await;
}

#[tokio::test]
async fn health_is_open_and_metrics_are_not() {
    let app = app().await;
    for path in [
        "/healthz",
        "/readyz",
        "/openapi.json",
        "/errors/unauthorized",
        "/docs/",
        "/docs/swagger-ui.css",
    ] {
        assert_eq!(authorized(&app, path, &[]).await.status, 200, "{path}");
        // A token that is wrong closes nothing that is open.
        assert_eq!(authorized(&app, path, &[b"Bearer wrong"]).await.status, 200, "{path}");
    }
    for right in ["dispatch", "read", "work", "admin"] {
        let client = app.with_token(&app.token("shop", "prod", &[right]).await);
        let metrics = client.get("/metrics", 200).await;
        assert!(metrics.text.contains("solejob_http_requests_total"), "{}", metrics.text);
    }
    app.finish().await;
}

#[tokio::test]
async fn tokens_are_listed_and_revoked() {
    let app = app().await;
    let (kept, revoked) = (
        app.token("shop", "prod", &["read"]).await,
        app.token("shop", "staging", &["dispatch", "read"]).await,
    );
    assert_ne!(id_of(&kept), id_of(&revoked));
    let list = app.command_output(&["token", "list"]).await;
    let line = |list: &str, id: &str| {
        let line = list.lines().find(|line| line.starts_with(id)).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{id} is not in the list:\n{list}"))
    };
    let words = line(&list, id_of(&revoked));
    let words = words.split_whitespace().collect::<Vec<_>>();
    assert_eq!(words[1..4], ["shop", "staging", "dispatch,read"]);
    assert_eq!(words[5], "-", "not revoked: {list}");
    assert!(list.lines().any(|line| line.starts_with("bootstrap ")), "{list}");
    for secret in [&kept, &revoked] {
        assert!(!list.contains(secret.as_str()), "the list shows a secret");
    }

    // Both were used before, so the server knows them by heart.
    app.with_token(&kept).get("/v1/jobs", 200).await;
    app.with_token(&revoked).get("/v1/jobs", 200).await;
    app.command_output(&["token", "revoke", id_of(&revoked)]).await;
    let client = app.with_token(&revoked);
    eventually_within(HEARD, "a revoked token to be refused", async || {
        match client.get("/v1/jobs", [200, 401]).await.status {
            401 => Ok(()),
            status => Err(format!("it still gets {status}")),
        }
    })
    .await;
    app.with_token(&kept).get("/v1/jobs", 200).await;
    let list = app.command_output(&["token", "list"]).await;
    let revoked_at = |id: &str| line(&list, id).split_whitespace().nth(5).map(str::to_owned);
    assert_ne!(revoked_at(id_of(&revoked)).as_deref(), Some("-"), "revoked: {list}");
    assert_eq!(revoked_at(id_of(&kept)).as_deref(), Some("-"), "not revoked: {list}");

    // There is nothing to revoke twice, and nothing where there is no token.
    for id in [id_of(&revoked), "sole_00000000"] {
        let mut command = solejob(app.database_url());
        command.args(["token", "revoke", id]);
        let said = String::from_utf8(refused(command).await.stderr).unwrap();
        assert!(said.contains(id), "the message names the token: {said}");
    }
    let mut command = solejob(app.database_url());
    command.args(["token", "create", "--application", "shop", "--environment", "prod"]);
    let said = String::from_utf8(refused(command).await.stderr).unwrap();
    assert!(said.contains("--right"), "a token without a right is none: {said}");
    app.finish().await;
}

/// Everything in the database, as text; bytes in hexadecimal.
async fn dump(app: &App) -> String {
    let tables = "select table_name::text from information_schema.tables where table_schema = 'public'";
    let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(app.sql()).await.unwrap();
    assert!(tables.contains(&"tokens".to_owned()), "{tables:?}");
    let mut dump = String::new();
    for table in tables {
        let rows = sqlx::AssertSqlSafe(format!("select t::text from {table} as t"));
        let rows: Vec<String> = sqlx::query_scalar(rows).fetch_all(app.sql()).await.unwrap();
        dump.push_str(&rows.join("\n"));
    }
    dump
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn secrets_are_neither_kept_nor_logged() {
    for level in ["debug", "trace"] {
        let options = Options::default().bootstrap_token(BOOTSTRAP).arg("--log").arg(level);
        let app = App::with(options).await;
        let token = app.token("shop", "prod", &["dispatch", "read"]).await;
        for client in [app.with_token(&token), app.with_token(BOOTSTRAP)] {
            let keys = json!({"active_key": "a", "window_key": "w", "window": "1h"});
            client
                .post("/v1/jobs", &json!({"name": "n", "uniqueness": keys}), 201)
                .await;
            client.get("/v1/jobs", 200).await;
            client.get("/metrics", 200).await;
        }
        app.with_token(&token).delete("/v1/jobs/x", 403).await;
        let wrong = "sole_deadbeef_not-a-token-but-somebody-may-have-mistyped-one";
        app.with_token(wrong).get("/v1/jobs", 401).await;

        let (dump, log) = (dump(&app).await, app.log());
        assert!(log.contains("request served"), "the log is not at its level:\n{log}");
        for secret in [token.as_str(), BOOTSTRAP, wrong] {
            assert!(!log.contains(secret), "the log at {level} holds a secret:\n{log}");
            assert!(!dump.contains(secret), "the database holds a secret:\n{dump}");
            assert!(
                !dump.contains(&hex(secret.as_bytes())),
                "the database holds a secret:\n{dump}"
            );
        }
        let random = token.strip_prefix(id_of(&token)).unwrap();
        assert!(!dump.contains(random) && !log.contains(random), "the random part alone");
        // What is kept is the hash, so the searches above looked in the right place.
        for secret in [token.as_str(), BOOTSTRAP] {
            let hash = hex(&Sha256::digest(secret));
            assert!(dump.contains(&hash), "no hash {hash} in\n{dump}");
            assert!(!log.contains(&hash), "the log at {level} holds a hash");
        }
        app.finish().await;
    }
}

#[tokio::test]
async fn a_new_bootstrap_token_replaces_the_old_one() {
    let app = app().await;
    app.with_token(BOOTSTRAP).get("/v1/jobs", 200).await;
    let job = app
        .with_token(BOOTSTRAP)
        .post("/v1/jobs", &json!({"name": "old"}), 201)
        .await;

    let next = "bootstrap-fedcba9876543210";
    let mut command = solejob(app.database_url());
    command.args(["serve", "--listen", "127.0.0.1:0"]);
    command.env("SOLEJOB_BOOTSTRAP_TOKEN", next);
    let mut restarted = Server::start(command).await;
    let client = Client::new(&restarted.base);
    client.with_token(BOOTSTRAP).get("/v1/jobs", 401).await;
    client
        .with_token(next)
        .get(&format!("/v1/jobs/{}", job.job_id()), 200)
        .await;
    // The server that still runs hears of it as of a revocation.
    let old = app.with_token(BOOTSTRAP);
    eventually_within(HEARD, "the old token to be refused", async || {
        match old.get("/v1/jobs", [200, 401]).await.status {
            401 => Ok(()),
            status => Err(format!("it still gets {status}")),
        }
    })
    .await;
    app.with_token(next).get("/v1/jobs", 200).await;
    assert!(restarted.stop().await.success());
    app.finish().await;
}

#[tokio::test]
async fn a_server_that_would_be_open_to_everybody_is_refused() {
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let said = refused_to_serve(&["--anonymous", "--listen", listen], &[]).await;
        for word in ["--anonymous", listen, "127.0.0.1", "tokens"] {
            assert!(said.contains(word), "`{word}` is missing in: {said}");
        }
    }
    let both = refused_to_serve(&["--anonymous"], &[("SOLEJOB_BOOTSTRAP_TOKEN", BOOTSTRAP)]).await;
    assert!(both.contains("not both"), "{both}");
}

#[tokio::test]
async fn a_bootstrap_token_that_is_too_weak_is_refused() {
    for (token, hint) in [
        ("", "16"),
        ("hunter2", "16"),
        ("0123456789abcde", "16"),
        ("0123456789 abcdef", "printable"),
    ] {
        let said = refused_to_serve(&[], &[("SOLEJOB_BOOTSTRAP_TOKEN", token)]).await;
        assert!(
            said.contains("SOLEJOB_BOOTSTRAP_TOKEN") && said.contains(hint),
            "{said}"
        );
        assert!(
            token.is_empty() || !said.contains(token),
            "the message tells it: {said}"
        );
    }
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
