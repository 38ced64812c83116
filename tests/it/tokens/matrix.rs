//! Which right opens which operation, and that one application never reaches another's jobs and keys.

use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use serde_json::{Value, json};

use super::ends::made;
use super::{BOOTSTRAP, app, id_of};
use crate::support::{App, Call, Client};

/// One row for each operation under `/v1`: the right that it needs (beside `admin`, which opens
/// everything), the body of a call that gets past it, and the status that it then has.
const TABLE: &[(&str, &str, &str, u16)] = &[
    ("dispatch", "dispatch", r#"{"name": "n"}"#, 201),
    ("dispatchBatch", "dispatch", r#"{"jobs": [{"name": "n"}]}"#, 200),
    ("preview", "dispatch", r#"{"name": "n"}"#, 200),
    ("listJobs", "read", "", 200),
    ("getJob", "read", "", 200),
    ("getKey", "read", "", 200),
    ("listQueues", "read", "", 200),
    ("listResourceScopes", "read", "", 200),
    ("getResourceScope", "read", "", 200),
    ("listJobTypes", "read", "", 200),
    ("getJobType", "read", "", 200),
    ("evaluateJobType", "read", "{}", 200),
    ("reserve", "work", r#"{"queues": ["nothing"]}"#, 200),
    ("startJob", "work", LEASE, 409),
    ("heartbeat", "work", LEASE, 409),
    ("succeedJob", "work", LEASE, 409),
    ("failJob", "work", LEASE, 409),
    ("releaseJob", "work", LEASE, 409),
    (
        "finishJobs",
        "work",
        r#"{"jobs": [{"job_id": "x", "lease_token": "x", "outcome": "release"}]}"#,
        200,
    ),
    ("cancelJob", "admin", "", 200),
    ("retryJob", "admin", "", 200),
    ("deleteJob", "admin", "", 200),
    ("resetKey", "admin", r#"{"name": "n", "window_key": "w"}"#, 200),
    ("pauseQueue", "admin", "", 200),
    ("resumeQueue", "admin", "", 200),
    ("putJobType", "admin", r#"{"queue": "q"}"#, 200),
    ("deleteJobType", "admin", "", 200),
    ("putResourceScope", "admin", r#"{"capacity": 3}"#, 200),
    ("deleteResourceScope", "admin", "", 200),
];

/// Of a job that nobody has leased: past the right, the call is refused.
const LEASE: &str = r#"{"lease_token": "0b2f1f0e-5b7e-4a57-9d3a-6f0b4f6f3d11"}"#;

const RIGHTS: [&str; 4] = ["dispatch", "read", "work", "admin"];

struct Operation {
    id: String,
    method: Method,
    path: String,
}

/// Every operation under `/v1` that the server describes.
async fn operations(client: &Client) -> Vec<Operation> {
    let document = client.get("/openapi.json", 200).await;
    let paths = document.at("/paths").as_object().expect("paths");
    let mut operations = Vec::new();
    for (path, methods) in paths.iter().filter(|(path, _)| path.starts_with("/v1/")) {
        for (method, operation) in methods.as_object().expect("methods") {
            operations.push(Operation {
                id: operation["operationId"].as_str().expect("an operationId").to_owned(),
                method: method.to_uppercase().parse().expect("a method"),
                path: path.clone(),
            });
        }
    }
    operations
}

/// What is stored of jobs and keys.
async fn stored(app: &App) -> Vec<String> {
    let sql = "select format('%s %s', job_id, state) as line from jobs
               union all select format('%s %s', digest, job_id) from job_keys
               union all select p::text from paused_queues as p
               union all select t::text from job_types as t
               union all select s::text from resource_scopes as s order by line";
    sqlx::query_scalar(sql).fetch_all(app.sql()).await.unwrap()
}

#[tokio::test]
async fn each_right_opens_what_the_table_says() {
    let app = app().await;
    let admin = app.with_token(&app.token("shop", "prod", &["admin"]).await);
    let mut clients = vec![("none", app.client(0).clone())];
    let all = app.token("shop", "prod", &RIGHTS).await;
    let (most, last) = all.split_at(all.len() - 1);
    let mistyped = format!("{most}{}", if last == "x" { "y" } else { "x" });
    clients.push(("none, for it is mistyped", app.with_token(&mistyped)));
    // Neither was ever used, so no server knows it by heart.
    for (kind, sql) in [
        (
            "none, for it has expired",
            "update tokens set expires_at = clock_timestamp() where token_id = $1",
        ),
        (
            "none, for it was revoked",
            "update tokens set revoked_at = clock_timestamp() where token_id = $1",
        ),
    ] {
        let token = app.token("shop", "prod", &RIGHTS).await;
        let changed = sqlx::query(sql).bind(id_of(&token)).execute(app.sql()).await.unwrap();
        assert_eq!(changed.rows_affected(), 1, "{kind}");
        clients.push((kind, app.with_token(&token)));
    }
    let elsewhere = made(&app, &["--right", "work", "--queues", "elsewhere,far"]).await;
    clients.push(("work elsewhere", app.with_token(&elsewhere)));
    for right in RIGHTS {
        clients.push((right, app.with_token(&app.token("shop", "prod", &[right]).await)));
    }
    let operations = operations(&app).await;
    for (id, ..) in TABLE {
        let described = operations.iter().any(|operation| operation.id == *id);
        assert!(
            described,
            "the table has a row for {id}, which the server does not have"
        );
    }
    for Operation { id, method, path } in &operations {
        let row = TABLE.iter().find(|(name, ..)| name == id);
        let Some((_, needed, body, status)) = row else {
            panic!("{method} {path} ({id}) has no row in the table of rights");
        };
        for (right, client) in &clients {
            let job = admin.post("/v1/jobs", &json!({"name": "n"}), 201).await;
            admin
                .put("/v1/resource-scopes/taken", &json!({"capacity": 2}), 200..=201)
                .await;
            admin.put("/v1/job-types/typed", &json!({}), 200..=201).await;
            if ["deleteJob", "retryJob"].contains(&id.as_str()) {
                admin
                    .post_nothing(&format!("/v1/jobs/{}/cancel", job.job_id()), 200)
                    .await;
            }
            let path = path
                .replace("{queue}", "nothing")
                .replace("{name}", "typed")
                .replace("{scope}", "taken");
            let mut path = path.replace("{job_id}", job.job_id());
            if path == "/v1/keys" {
                path.push_str("?name=n&window_key=w");
            }
            let mut headers = HeaderMap::new();
            let body = Some(body.as_bytes().to_vec()).filter(|body| !body.is_empty());
            if body.is_some() {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            }
            let before = stored(&app).await;
            let method = method.clone();
            let answer = client
                .send(Call {
                    method,
                    path,
                    headers,
                    body,
                })
                .await
                .unwrap();
            match *right {
                kind if kind.starts_with("none") => answer.assert_problem(401, &["unauthorized"]),
                "work elsewhere" if *needed == "work" && id != "reserve" => {
                    assert_eq!(answer.status, *status, "{id} with {right}: {}", answer.text);
                    continue;
                }
                "work elsewhere" if id == "reserve" => {
                    answer.assert_problem(403, &["forbidden"]);
                    assert_eq!(answer.str("/pointer"), "/queues", "{}", answer.text);
                }
                right if right == *needed || right == "admin" => {
                    assert_eq!(answer.status, *status, "{id} with {right}: {}", answer.text);
                    continue;
                }
                _ => {
                    answer.assert_problem(403, &["forbidden"]);
                    assert!(
                        answer.str("/detail").contains(needed),
                        "{id}: the right that is missing is not named: {}",
                        answer.text
                    );
                }
            }
            assert_eq!(
                stored(&app).await,
                before,
                "{id} with {right} was refused and did something"
            );
        }
    }
    app.finish().await;
}

/// A worker reads the jobs that it has leased; of others it is not even told whether they are there.
#[tokio::test]
async fn a_worker_reads_what_it_has_leased() {
    let app = app().await;
    let admin = app.with_token(&app.token("shop", "prod", &["admin"]).await);
    let stranger = app.with_token(&app.token("bank", "prod", &["admin"]).await);
    let [worker, other] = [
        app.with_token(&app.token("shop", "prod", &["work"]).await),
        app.with_token(&app.token("shop", "prod", &["work"]).await),
    ];
    let leased = admin.post("/v1/jobs", &json!({"name": "leased"}), 201).await;
    let reserved = worker.post("/v1/worker/reserve", &json!({}), 200).await;
    assert_eq!(reserved.at("/jobs/0/job_id"), leased.job_id(), "{}", reserved.text);
    let waiting = admin.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    let theirs = stranger.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    let path = |id: &str| format!("/v1/jobs/{id}");
    worker.get(&path(leased.job_id()), 200).await;
    let nowhere = worker.get(&path("0193a5c4-9f3e-7c11-8000-4a1f6c7d2e90"), 403).await;
    nowhere.assert_problem(403, &["forbidden"]);
    for (client, id) in [
        (&other, leased.job_id()),
        (&worker, waiting.job_id()),
        (&worker, theirs.job_id()),
    ] {
        assert_eq!(client.get(&path(id), 403).await.text, nowhere.text);
    }
    // Nor does the stranger's lease token help with a job of another application.
    let succeed = format!("/v1/worker/{}/succeed", leased.job_id());
    let token = json!({"lease_token": reserved.at("/jobs/0/lease/token")});
    stranger
        .post(&succeed, &token, 404)
        .await
        .assert_problem(404, &["job_not_found"]);
    worker.post(&succeed, &token, 200).await;
    app.finish().await;
}

#[tokio::test]
async fn several_rights_open_what_each_of_them_opens() {
    let app = app().await;
    let client = app.with_token(&app.token("shop", "prod", &["dispatch", "read"]).await);
    let job = client.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    client.get(&format!("/v1/jobs/{}", job.job_id()), 200).await;
    client
        .post_nothing(&format!("/v1/jobs/{}/cancel", job.job_id()), 403)
        .await;
    app.finish().await;
}

/// The same requests by three applications: one, another, and the first one's other environment.
async fn strangers(app: &App) -> (Client, [Client; 2]) {
    let owner = app.token("shop", "prod", &["admin"]).await;
    let (other, staging) = (
        app.token("bank", "prod", &["admin"]).await,
        app.token("shop", "staging", &["admin"]).await,
    );
    (
        app.with_token(&owner),
        [app.with_token(&other), app.with_token(&staging)],
    )
}

#[tokio::test]
async fn another_applications_job_is_not_there() {
    let app = app().await;
    let (owner, strangers) = strangers(&app).await;
    let job = owner.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    let (path, cancel) = (
        format!("/v1/jobs/{}", job.job_id()),
        format!("/v1/jobs/{}/cancel", job.job_id()),
    );
    // A job that never was: the answers must not differ, or they would tell that there is one.
    let nowhere = "/v1/jobs/0193a5c4-9f3e-7c11-8000-4a1f6c7d2e90";
    for state in ["pending", "cancelled"] {
        for stranger in strangers.iter().chain([&app.with_token(BOOTSTRAP)]) {
            let answers = [
                (stranger.get(&path, 404).await, stranger.get(nowhere, 404).await),
                (stranger.delete(&path, 404).await, stranger.delete(nowhere, 404).await),
                (
                    stranger.post_nothing(&cancel, 404).await,
                    stranger.post_nothing(&format!("{nowhere}/cancel"), 404).await,
                ),
                (
                    stranger.post(&cancel, &json!({"force": true}), 404).await,
                    stranger
                        .post(&format!("{nowhere}/cancel"), &json!({"force": true}), 404)
                        .await,
                ),
            ];
            for (strange, missing) in answers {
                strange.assert_problem(404, &["job_not_found"]);
                assert_eq!(strange.text, missing.text);
            }
            let child = json!({"name": "n", "parent": {"job_id": job.job_id(), "attempt": 1}});
            let answer = stranger.post("/v1/jobs", &child, 422).await;
            answer.assert_problem(422, &["idempotency_scope_invalid"]);
        }
        assert_eq!(owner.get(&path, 200).await.at("/state"), state);
        owner.post_nothing(&cancel, 200).await;
    }
    owner.delete(&path, 200).await;
    app.finish().await;
}

#[tokio::test]
async fn the_same_key_in_two_applications_makes_two_jobs() {
    let app = app().await;
    let (owner, strangers) = strangers(&app).await;
    let clients = [&owner, &strangers[0], &strangers[1]];
    let keys = json!({"active_key": "a", "window_key": "w", "window": "1h"});
    let body = json!({"name": "n", "payload": {"customer": 7}, "metadata": {"m": "1"}, "uniqueness": keys});
    let mut jobs: Vec<String> = Vec::new();
    for client in clients {
        // Nobody's preview knows of the others' jobs.
        let preview = client.post("/v1/jobs/preview", &body, 200).await;
        assert_eq!(preview.at("/disposition"), "created", "{}", preview.text);
        let created = client.post("/v1/jobs", &body, 201).await;
        assert!(!jobs.iter().any(|job| job == created.job_id()));
        jobs.push(created.job_id().to_owned());
    }
    let differing = json!({"name": "n", "uniqueness": keys});
    for (client, job) in clients.iter().zip(&jobs) {
        assert_eq!(client.post("/v1/jobs", &body, 200).await.job_id(), job);
        // A conflict names the application's own job.
        let conflict = client.post("/v1/jobs", &differing, 409).await;
        conflict.assert_problem(409, &["uniqueness_conflict"]);
        assert_eq!(conflict.at("/conflicting_job_id"), job.as_str());
        for query in ["active_key=a", "window_key=w"] {
            let held = client.get(&format!("/v1/keys?name=n&{query}"), 200).await;
            assert_eq!(held.at("/job_id"), job.as_str(), "{query}");
        }
        for query in ["", "name=n", "active_key=a", "metadata.m=1", "state=pending", "limit=1"] {
            let list = client.get(&format!("/v1/jobs?{query}"), 200).await;
            let shown = list.at("/jobs").as_array().unwrap().iter();
            let shown = shown.map(|job| &job["job_id"]).collect::<Vec<_>>();
            assert_eq!(shown, [job.as_str()], "{query}: {}", list.text);
            assert_eq!(list.at("/next_cursor"), &Value::Null, "{query}");
        }
    }

    // A reset, also one that names the job, stays within the application that asks for it.
    let [first, second] = &strangers;
    let reset = json!({"name": "n", "window_key": "w"});
    first
        .post(
            "/v1/keys/reset",
            &json!({"name": "n", "window_key": "w", "job_id": jobs[0]}),
            200,
        )
        .await;
    let released = first.post("/v1/keys/reset", &reset, 200).await;
    assert_eq!(released.at("/job_id"), jobs[1].as_str());
    for (client, held) in [(&owner, true), (first, false), (second, true)] {
        let holder = client.get("/v1/keys?name=n&window_key=w", 200).await;
        assert_eq!(holder.at("/held"), held, "{}", holder.text);
    }
    // Cancelling one's job frees one's own active key alone.
    second.post_nothing(&format!("/v1/jobs/{}/cancel", jobs[2]), 200).await;
    for (client, held) in [(&owner, true), (first, true), (second, false)] {
        let holder = client.get("/v1/keys?name=n&active_key=a", 200).await;
        assert_eq!(holder.at("/held"), held, "{}", holder.text);
    }
    app.finish().await;
}

#[tokio::test]
async fn a_cursor_of_another_application_shows_ones_own_jobs() {
    let app = app().await;
    let (owner, [stranger, _]) = strangers(&app).await;
    stranger.post("/v1/jobs", &json!({"name": "theirs"}), 201).await;
    for _ in 0..3 {
        owner.post("/v1/jobs", &json!({"name": "ours"}), 201).await;
    }
    let page = owner.get("/v1/jobs?limit=1", 200).await;
    let list = stranger
        .get(&format!("/v1/jobs?cursor={}", page.str("/next_cursor")), 200)
        .await;
    let names = list.at("/jobs").as_array().unwrap().iter();
    assert_eq!(names.map(|job| &job["name"]).collect::<Vec<_>>(), ["theirs"]);
    app.finish().await;
}
