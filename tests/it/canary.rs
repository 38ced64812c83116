//! What clients send in confidence turns up in no log line and in no metric: each secret here is a text that is
//! looked for everywhere afterwards.

use serde_json::{Value, json};

use crate::support::{App, Client, Options, eventually};

const BOOTSTRAP: &str = "canary-bootstrap-0123456789";

/// Everything that is sent begins like this, and nothing else does.
const CANARY: &str = "canary-";

/// Who may see the metrics may be another network than who may dispatch.
#[tokio::test]
async fn metrics_have_a_listener_of_their_own_that_asks_for_no_token() {
    let options = Options::default().bootstrap_token(BOOTSTRAP);
    let app = App::with(options.arg("--metrics-listen=127.0.0.1:0")).await;
    app.get("/metrics", 401).await;
    app.get("/healthz", 200).await;
    let address = eventually("the listener for metrics to be announced", async || {
        let log = app.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut announced = lines.filter(|line| line["message"] == "serving metrics");
        announced
            .find_map(|line| Some(line["address"].as_str()?.to_owned()))
            .ok_or(log)
    })
    .await;
    let prometheus = Client::new(&format!("http://{address}"));
    let metrics = prometheus.get("/metrics", 200).await.text;
    assert!(
        metrics.contains(r#"solejob_http_requests_total{method="GET",route="/healthz",status="200"} 1"#),
        "{metrics}"
    );
    prometheus.get("/healthz", 404).await;
    prometheus.post("/v1/jobs", &json!({"name": "n"}), 404).await;
    app.finish().await;
}

#[tokio::test]
async fn no_payload_key_or_token_gets_into_logs_or_metrics() {
    let options = Options::default().servers(2).bootstrap_token(BOOTSTRAP);
    let app = App::with(options.env("SOLEJOB_LOG", "debug")).await;
    let clients = [0, 1].map(|number| app.client(number).with_token(BOOTSTRAP));
    let one = &clients[0];
    let job = json!({
        "name": "n", "payload": {"canary-member": "canary-payload"}, "metadata": {"canary-label": "canary-value"},
        "resource_keys": ["r:canary-resource"],
        "uniqueness": {"active_key": "canary-active", "window_key": "canary-window", "window": "1h"},
    });
    for client in &clients {
        let _either = client.post("/v1/jobs", &job, [201, 200]).await;
    }
    // Conflicts, refusals and what cannot be read.
    let mut other = job.clone();
    other["payload"] = json!("canary-other");
    one.post("/v1/jobs", &other, 409).await;
    one.post("/v1/jobs/batch", &json!({"jobs": [job, other]}), 409).await;
    one.post("/v1/jobs/preview", &job, 200).await;
    one.post("/v1/jobs", &json!({"name": "n", "canary-unknown": "canary-text"}), 400)
        .await;
    one.post(
        "/v1/jobs",
        &json!({"name": "n", "uniqueness": {"active_key": "canary-\u{7}"}}),
        400,
    )
    .await;
    one.post_raw("/v1/jobs", "{\"name\": \"n\", \"payload\": canary-bad}", 400)
        .await;
    one.get("/v1/keys?name=n&window_key=canary-window", 200).await;
    one.get("/v1/jobs?metadata.canary-label=canary-value", 200).await;
    one.get("/canary-path?canary-query=1", 404).await;
    app.client(1)
        .with_token("canary-wrong-token-000")
        .get("/v1/jobs", 401)
        .await;
    // A type whose selector fails, and says on what.
    let declared = json!({"unique_while_active": {"key": "payload.id"}});
    one.put("/v1/job-types/typed", &declared, [200, 201]).await;
    one.post(
        "/v1/jobs",
        &json!({"name": "typed", "payload": {"id": {"canary": "canary-id"}}}),
        422,
    )
    .await;
    // PostgreSQL shows a row that it refuses in the error's details.
    let refuse = "alter table jobs add constraint refused check (name <> 'refused')";
    sqlx::raw_sql(refuse).execute(app.sql()).await.unwrap();
    one.post(
        "/v1/jobs",
        &json!({"name": "refused", "payload": "canary-refused"}),
        500,
    )
    .await;
    // The worker's side.
    let reserve = json!({"queues": ["default"], "worker": "canary-worker", "reserve_id": "canary-reserve"});
    let lease = clients[1].post("/v1/worker/reserve", &reserve, 200).await;
    let (id, token) = (lease.str("/jobs/0/job_id"), lease.str("/jobs/0/lease/token"));
    let error = json!({"message": "canary-message", "type": "canary-type", "details": {"a": "canary-details"}});
    let fail = json!({"lease_token": token, "error": error, "retry": true, "retry_in": "0s"});
    one.post(&format!("/v1/worker/{id}/fail"), &fail, 200).await;
    one.post(
        &format!("/v1/worker/{id}/heartbeat"),
        &json!({"lease_token": token}),
        409,
    )
    .await;
    let lease = one.post("/v1/worker/reserve", &reserve, 200).await;
    let again = lease.str("/jobs/0/lease/token");
    let succeed = json!({"lease_token": again, "result": {"a": "canary-result"}});
    one.post(&format!("/v1/worker/{id}/succeed"), &succeed, 200).await;
    one.post(
        "/v1/keys/reset",
        &json!({"name": "n", "window_key": "canary-window"}),
        200,
    )
    .await;

    let metrics = [
        one.get("/metrics", 200).await.text,
        clients[1].get("/metrics", 200).await.text,
    ]
    .concat();
    let log = app.log();
    for line in log.lines() {
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("no JSON: {error}: {line}"));
    }
    // It would be easy to keep silent.
    assert!(
        log.contains("request served") && log.contains("request failed"),
        "{log}"
    );
    assert!(metrics.contains("solejob_dispatches_total"));
    for secret in [CANARY, token, again] {
        for (what, text) in [("log", &log), ("metrics", &metrics)] {
            let line = text.lines().find(|line| line.contains(secret));
            assert_eq!(line, None, "{secret} is in the {what}");
        }
    }
    sqlx::raw_sql("alter table jobs drop constraint refused")
        .execute(app.sql())
        .await
        .unwrap();
    app.finish().await;
}
