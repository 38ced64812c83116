//! Servers as processes: how they start together, on settings of somebody else's, and how they end.

use serde_json::json;

use crate::support::{App, Gate, Options};

#[tokio::test]
async fn servers_that_start_at_once_on_an_empty_database_migrate_it_once() {
    let app = App::with(Options::default().servers(3).empty_database()).await;
    for number in 0..3 {
        app.client(number).get("/readyz", 200).await;
        app.client(number).post("/v1/jobs", &json!({"name": "n"}), 201).await;
    }
    app.finish().await;
}

/// Instants are instants, whatever time zone and style the database's sessions begin with.
#[tokio::test]
async fn settings_of_the_role_shift_no_instant() {
    let options = Options::default()
        .database_setting("TimeZone", "'Asia/Tokyo'")
        .database_setting("DateStyle", "'German, DMY'")
        .database_setting("IntervalStyle", "'sql_standard'")
        .database_setting("default_transaction_isolation", "'serializable'")
        .database_setting("bytea_output", "'escape'")
        .database_setting("search_path", "nowhere, public");
    let app = App::with(options).await;
    let body = json!({"name": "n", "run_at": "2030-01-01T00:00:00+02:00",
                      "uniqueness": {"window_key": "w", "window": "60s"}});
    let receipt = app.post("/v1/jobs", &body, 201).await;
    let job = app.get(&format!("/v1/jobs/{}", receipt.job_id()), 200).await;
    assert!(job.str("/run_at").starts_with("2029-12-31T22:00:00"), "{}", job.text);
    let instant = |text: &str| chrono::DateTime::parse_from_rfc3339(text).unwrap();
    let window = instant(receipt.str("/window/expires_at")) - instant(receipt.str("/dispatched_at"));
    assert_eq!(window.num_milliseconds(), 60_000);
    assert_eq!(app.post("/v1/jobs", &body, 200).await.job_id(), receipt.job_id());
    app.finish().await;
}

/// SIGTERM ends a server after the answers that it owes.
#[tokio::test]
async fn what_is_in_flight_is_answered_before_the_end() {
    let mut app = App::with(Options::default().servers(2)).await;
    let gate = Gate::close(&app).await;
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..20 {
        let client = app.client(number % 2).clone();
        let body = json!({"name": "n", "uniqueness": {"active_key": format!("k{number}")}});
        calls.spawn(async move { client.post("/v1/jobs", &body, 201).await });
    }
    gate.more_waiting_than(1).await;
    app.ask_servers_to_stop();
    gate.open().await;
    for answer in calls.join_all().await {
        assert_eq!(answer.at("/disposition"), "created");
    }
    app.assert_servers_end().await;
    app.finish().await;
}
