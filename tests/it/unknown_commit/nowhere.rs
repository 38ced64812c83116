//! Packets that go nowhere, and nobody says so: a server gives up waiting by itself, says what is true, and goes on as
//! soon as there is a way again. What was there before stays silent for good.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use tokio::task::JoinSet;

use super::{Behind, operations};
use crate::support::Answer;

/// A server begins nothing anew after eight seconds. What was begun before has moments more, and so has the look for a
/// lost commit.
const GIVEN_UP: Duration = Duration::from_secs(20);

/// Nobody who comes later is held up by what is lost for longer than PostgreSQL holds an abandoned transaction.
const SOON: Duration = Duration::from_secs(8);

fn assert_outcome(answer: &Answer, outcome: &str) {
    answer.assert_problem(503, &["store_unavailable"]);
    assert_eq!(answer.at("/outcome"), outcome, "{}", answer.text);
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert!(answer.took < GIVEN_UP, "it took {:?}", answer.took);
}

/// Its transaction holds the key in PostgreSQL, which hears of no end.
#[tokio::test]
async fn a_dispatch_whose_packets_go_nowhere_is_given_up() {
    let behind = Behind::start().await;
    let body = json!({"name": "n", "uniqueness": {"active_key": "a"}});
    behind.proxy.darken_at("write", false);
    let (client, lost) = (behind.client.clone(), body.clone());
    let lost = tokio::spawn(async move { client.post("/v1/jobs", &lost, 503).await });
    behind.proxy.until_dark().await;
    // By way of another server: it waits for the key until PostgreSQL gives the transaction up.
    let other = behind.app.post("/v1/jobs", &body, 201).await;
    assert!(other.took < SOON, "it took {:?}", other.took);
    assert_outcome(&lost.await.unwrap(), "none");
    assert_eq!(behind.jobs().await, 1);

    behind.proxy.lighten();
    let again = behind.client.post("/v1/jobs", &body, 200).await;
    assert_eq!(again.job_id(), other.job_id());
    assert!(again.took < SOON, "it took {:?}", again.took);
    behind.finish().await;
}

#[tokio::test]
async fn a_commit_whose_packets_go_nowhere_is_settled_when_there_is_a_way_again() {
    let behind = Behind::start().await;
    for (number, delivered) in [true, false].into_iter().enumerate() {
        let key = format!("w{number}");
        let body = json!({"name": "n", "uniqueness": {"window_key": key, "window": "1h"}});
        behind.proxy.darken_at("commit", delivered);
        let (client, call) = (behind.client.clone(), body.clone());
        let call = tokio::spawn(async move { client.post("/v1/jobs", &call, [200, 201, 503]).await });
        behind.proxy.until_dark().await;
        behind.proxy.lighten();
        let answer = call.await.unwrap();
        let stored = number as i64 + i64::from(delivered);
        assert_eq!(behind.jobs().await, stored, "delivered: {delivered}, {}", answer.text);
        if delivered {
            assert_eq!(answer.status, 201, "{}", answer.text);
            behind.assert_true(&answer).await;
        } else {
            // It is certain, and there is no time left to do it again.
            assert_outcome(&answer, "none");
        }
        let again = behind.client.post("/v1/jobs", &body, [200, 201]).await;
        assert_eq!(again.status, if delivered { 200 } else { 201 }, "{}", again.text);
        assert!(again.took < SOON, "it took {:?}", again.took);
    }
    behind.finish().await;
}

#[tokio::test]
async fn a_commit_whose_packets_go_nowhere_for_good_is_unknown() {
    let behind = Behind::start().await;
    let body = json!({"name": "n", "uniqueness": {"window_key": "w", "window": "1h"}});
    behind.proxy.darken_at("commit", true);
    let answer = behind.client.post("/v1/jobs", &body, 503).await;
    assert_outcome(&answer, "unknown");
    assert_eq!(behind.jobs().await, 1, "it was stored");
    behind.proxy.lighten();
    let again = behind.client.post("/v1/jobs", &body, 200).await;
    behind.assert_true(&again).await;
    behind.finish().await;
}

/// It gave jobs out, and nobody heard which.
#[tokio::test]
async fn a_reserve_whose_packets_go_nowhere_is_unknown() {
    let behind = Behind::start().await;
    let job = behind.client.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    behind.proxy.darken_at("reserve", true);
    let wish = json!({"lease": "10s"});
    let answer = behind.client.post("/v1/worker/reserve", &wish, 503).await;
    assert_outcome(&answer, "unknown");
    behind.proxy.lighten();
    // It comes back when its lease is over.
    let wish = json!({"lease": "10s", "wait": "20s"});
    let given = behind.client.post("/v1/worker/reserve", &wish, 200).await;
    assert_eq!(given.str("/jobs/0/job_id"), job.job_id());
    assert_eq!(given.at("/jobs/0/attempt"), 2);
    behind.finish().await;
}

/// Whatever a server does when its database vanishes: all of it is answered, and all of it works again at once when there
/// is a way.
#[tokio::test]
async fn a_database_that_packets_do_not_reach_is_said_to_be_gone() {
    let behind = Behind::start().await;
    let job = behind.client.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    let held = behind.client.reserve(json!({"lease": "60s"})).await.remove(0);
    let calls = || {
        let heartbeat = format!("/v1/worker/{}/heartbeat", held.id);
        let heartbeat = (Method::POST, heartbeat, Some(json!({"lease_token": held.token})));
        let reserve = json!({});
        let reserve = (Method::POST, "/v1/worker/reserve".to_owned(), Some(reserve));
        operations(job.job_id()).into_iter().chain([heartbeat, reserve])
    };
    // Connections of every pool are there, and have just been used.
    for (method, path, body) in calls() {
        match (method, body) {
            (Method::POST, Some(body)) => behind.client.post(&path, &body, 200..=499).await,
            (_, _) => behind.client.get(&path, 200..=499).await,
        };
    }
    let jobs = behind.jobs().await;
    behind.proxy.darken();
    let mut answers = JoinSet::new();
    for (method, path, body) in calls() {
        let client = behind.client.clone();
        answers.spawn(async move {
            let answer = match (method, body) {
                (Method::POST, Some(body)) => client.post(&path, &body, 503).await,
                (_, _) => client.get(&path, 503).await,
            };
            (path, answer)
        });
    }
    for (path, answer) in answers.join_all().await {
        answer.assert_problem(503, &["store_unavailable"]);
        assert!(answer.took < GIVEN_UP, "{path}: it took {:?}", answer.took);
        // Nothing was delivered. Of a reserve that was sent nobody here can know that.
        if path != "/v1/worker/reserve" {
            assert_eq!(answer.at("/outcome"), "none", "{path}: {}", answer.text);
        }
    }
    behind.client.get("/healthz", 200).await;
    assert_eq!(behind.jobs().await, jobs, "nothing was done");

    behind.proxy.lighten();
    let began = Instant::now();
    for (method, path, body) in calls() {
        match (method, body) {
            (Method::POST, Some(body)) => behind.client.post(&path, &body, 200..=499).await,
            (_, _) => behind.client.get(&path, 200..=499).await,
        };
    }
    behind.client.get("/readyz", 200).await;
    assert!(began.elapsed() < SOON, "it took {:?}", began.elapsed());
    behind.finish().await;
}
