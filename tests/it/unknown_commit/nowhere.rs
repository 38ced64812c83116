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

/// Makes the job whose active key is `a`, and lets the server meet that key: a link to it takes a transaction then.
async fn hold(behind: &Behind) -> String {
    let body = json!({"name": "n", "uniqueness": {"active_key": "a"}});
    let job = behind.client.post("/v1/jobs", &body, 201).await.job_id().to_owned();
    behind.client.post("/v1/jobs", &body, 200).await;
    job
}

/// Its transaction holds the key in PostgreSQL, which hears of no end.
#[tokio::test]
async fn a_dispatch_whose_packets_go_nowhere_is_given_up() {
    let behind = Behind::start().await;
    let job = hold(&behind).await;
    let body = json!({"name": "n", "uniqueness": {"active_key": "a", "window_key": "w", "window": "1h"}});
    behind.proxy.darken_at("write", false);
    let (client, lost) = (behind.client.clone(), body.clone());
    let lost = tokio::spawn(async move { client.post("/v1/jobs", &lost, 503).await });
    behind.proxy.until_dark().await;
    // By way of another server: it waits for the key until PostgreSQL gives the transaction up.
    let other = behind.app.post("/v1/jobs", &body, 200).await;
    assert!(other.took < SOON, "it took {:?}", other.took);
    assert_eq!(other.at("/window/linked"), true, "{}", other.text);
    assert_outcome(&lost.await.unwrap(), "none");
    assert_eq!(behind.jobs().await, 1);

    behind.proxy.lighten();
    let again = behind.client.post("/v1/jobs", &body, 200).await;
    assert_eq!(again.job_id(), job);
    assert_eq!(again.at("/duplicate_match"), "both");
    assert!(again.took < SOON, "it took {:?}", again.took);
    behind.finish().await;
}

#[tokio::test]
async fn a_commit_whose_packets_go_nowhere_is_settled_when_there_is_a_way_again() {
    let behind = Behind::start().await;
    let job = hold(&behind).await;
    for (number, delivered) in [true, false].into_iter().enumerate() {
        let key = format!("w{number}");
        let body = json!({"name": "n", "uniqueness": {"active_key": "a", "window_key": key, "window": "1h"}});
        let answer = lose(&behind, &body, "commit", delivered).await;
        let key = format!("/v1/keys?name=n&window_key={key}");
        let held = behind.app.get(&key, 200).await.at("/held") == true;
        // Certain in any case. What was not delivered is done again, if there is time left.
        if delivered || held {
            assert_eq!(answer.status, 200, "delivered: {delivered}, {}", answer.text);
            assert_eq!(answer.job_id(), job);
            assert!(held, "delivered: {delivered}, {}", answer.text);
        } else {
            assert_outcome(&answer, "none");
        }
        let again = behind.client.post("/v1/jobs", &body, 200).await;
        assert_eq!(again.at("/duplicate_match"), if held { "both" } else { "active" });
        assert!(again.took < SOON, "it took {:?}", again.took);
    }
    behind.finish().await;
}

/// A dispatch that is lost where this is executed, and its answer when there is a way again.
async fn lose(behind: &Behind, body: &serde_json::Value, at: &'static str, delivered: bool) -> Answer {
    behind.proxy.darken_at(at, delivered);
    let (client, body) = (behind.client.clone(), body.clone());
    let call = tokio::spawn(async move { client.post("/v1/jobs", &body, [200, 201, 503]).await });
    behind.proxy.until_dark().await;
    behind.proxy.lighten();
    call.await.unwrap()
}

/// A write that is a transaction of its own: whether PostgreSQL got it or not, there is one job in the end.
#[tokio::test]
async fn a_write_whose_packets_go_nowhere_is_settled_when_there_is_a_way_again() {
    let behind = Behind::start().await;
    for (number, delivered) in [true, false].into_iter().enumerate() {
        for uniqueness in [json!({}), json!({"window_key": format!("w{number}"), "window": "1h"})] {
            let body = json!({"name": "n", "uniqueness": uniqueness});
            let before = behind.jobs().await;
            let answer = lose(&behind, &body, "write", delivered).await;
            assert_eq!(answer.status, 201, "delivered: {delivered}, {}", answer.text);
            assert!(answer.took < GIVEN_UP, "it took {:?}", answer.took);
            assert_eq!(
                behind.jobs().await,
                before + 1,
                "delivered: {delivered}, {}",
                answer.text
            );
            behind.assert_true(&answer).await;
        }
    }
    behind.finish().await;
}

#[tokio::test]
async fn a_commit_whose_packets_go_nowhere_for_good_is_unknown() {
    let behind = Behind::start().await;
    let body = json!({"name": "n", "uniqueness": {"window_key": "w", "window": "1h"}});
    behind.proxy.darken_at("write", true);
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
