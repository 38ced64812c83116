//! Commits whose answer is lost, and a database that goes away: a dispatch makes one job all the same, and
//! whatever is answered is true.

mod nowhere;
mod proxy;
mod slow;
mod told;

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use self::proxy::{Fault, Proxy};
use crate::support::{Answer, App, Client, Options, Server, solejob};

/// A server gives up on its database after eight seconds; a last attempt may have begun just before.
const GIVEN_UP: Duration = Duration::from_secs(12);

/// A server behind a proxy. Beside it the application has a server that is not, which knows the truth.
pub(crate) struct Behind {
    pub(crate) app: App,
    pub(crate) proxy: Proxy,
    server: Server,
    pub(crate) client: Client,
}

impl Behind {
    pub(crate) async fn start() -> Self {
        let app = App::with(Options::default()).await;
        let proxy = Proxy::before(app.database_url()).await;
        let mut command = solejob(&proxy.url);
        command.args(["serve", "--anonymous", "--listen", "127.0.0.1:0"]);
        let server = Server::start(command).await;
        let client = Client::new(&server.base);
        Behind {
            app,
            proxy,
            server,
            client,
        }
    }

    async fn jobs(&self) -> i64 {
        let sql = "select count(*) from jobs";
        sqlx::query_scalar(sql).fetch_one(self.app.sql()).await.unwrap()
    }

    /// The answer tells of what is stored: of the job, and of the window key if there is one.
    async fn assert_true(&self, answer: &Answer) {
        let job = self.app.get(&format!("/v1/jobs/{}", answer.job_id()), 200).await;
        assert_eq!(job.at("/dispatched_at"), answer.at("/dispatched_at"), "{}", answer.text);
        if let Some(key) = answer.at("/window/key").as_str() {
            let query = format!("/v1/keys?name={}&window_key={key}", answer.str("/name"));
            let holder = self.app.get(&query, 200).await;
            assert_eq!(holder.job_id(), answer.job_id());
            assert_eq!(holder.at("/expires_at"), answer.at("/window/expires_at"));
            assert_eq!(holder.at("/state"), "pending");
        }
    }

    pub(crate) async fn finish(mut self) {
        let log = self.server.log.text();
        assert!(!log.contains("panicked at"), "the server panicked:\n{log}");
        assert!(self.server.stop().await.success());
        self.app.finish().await;
    }
}

fn keys(number: usize) -> [Value; 4] {
    let (active, window) = (format!("a-{number}"), format!("w-{number}"));
    [
        // Nothing to recognise a second job by: here only the transaction itself can tell.
        json!({}),
        json!({"active_key": active}),
        json!({"window_key": window, "window": "1h"}),
        json!({"active_key": format!("b-{number}"), "window_key": format!("v-{number}"), "window": "1h"}),
    ]
}

#[tokio::test]
async fn a_commit_without_an_answer_makes_one_job() {
    let behind = Behind::start().await;
    let mut expected = 0;
    for (number, fault) in Fault::ALL.into_iter().cycle().take(12).enumerate() {
        for uniqueness in keys(number) {
            behind.proxy.plan([fault]);
            let body = json!({"name": "n", "payload": number, "uniqueness": uniqueness});
            let answer = behind.client.post("/v1/jobs", &body, 201).await;
            assert_eq!(answer.at("/disposition"), "created", "{fault:?}: {}", answer.text);
            behind.assert_true(&answer).await;
            expected += 1;
            assert_eq!(behind.proxy.met(), expected, "{fault:?} was not met");
            assert_eq!(
                behind.jobs().await,
                expected as i64,
                "{fault:?} made another number of jobs"
            );
        }
    }
    let metrics = behind.client.get("/metrics", 200).await.text;
    assert!(
        metrics.contains(&format!("solejob_commits_unknown_total {expected}")),
        "{metrics}"
    );
    behind.finish().await;
}

#[tokio::test]
async fn many_at_once_make_one_job_each() {
    let behind = Behind::start().await;
    const ROUNDS: usize = 6;
    const CALLS: usize = 60;
    for round in 0..ROUNDS {
        // Also the second attempt of a group meets a fault, and the third.
        behind.proxy.plan(Fault::ALL.into_iter().cycle().skip(round).take(9));
        let mut calls = JoinSet::new();
        for call in 0..CALLS {
            let client = behind.client.clone();
            let uniqueness = keys(round * CALLS + call)[call % 4].clone();
            let body = json!({"name": "n", "payload": call, "uniqueness": uniqueness});
            calls.spawn(async move { client.post("/v1/jobs", &body, 201).await });
        }
        for answer in calls.join_all().await {
            assert_eq!(answer.at("/disposition"), "created", "{}", answer.text);
            behind.assert_true(&answer).await;
        }
        assert_eq!(behind.jobs().await, ((round + 1) * CALLS) as i64);
    }
    assert!(
        behind.proxy.met() >= ROUNDS,
        "only {} faults were met",
        behind.proxy.met()
    );
    behind.finish().await;
}

/// The same keys at once, by way of both servers, one of which keeps losing its connection.
#[tokio::test]
async fn one_key_makes_one_job_whoever_loses_its_commit() {
    let behind = Behind::start().await;
    for round in 0..12 {
        behind.proxy.plan([Fault::ALL[round % 4]]);
        let body = json!({"name": "n", "uniqueness": keys(round)[1 + round % 3]});
        let mut calls = JoinSet::new();
        for call in 0..20 {
            let client = if call % 4 == 0 {
                behind.app.client(0)
            } else {
                &behind.client
            }
            .clone();
            let body = body.clone();
            calls.spawn(async move { client.post("/v1/jobs", &body, 200..=201).await });
        }
        let answers = calls.join_all().await;
        let created = answers.iter().filter(|answer| answer.status == 201).count();
        assert_eq!(created, 1);
        assert!(answers.iter().all(|answer| answer.job_id() == answers[0].job_id()));
    }
    assert_eq!(behind.jobs().await, 12);
    behind.finish().await;
}

#[tokio::test]
async fn a_batch_is_stored_once_and_whole() {
    let behind = Behind::start().await;
    for (number, fault) in Fault::ALL.into_iter().enumerate() {
        behind.proxy.plan([fault]);
        let item = |item: usize| json!({"name": "n", "payload": item % 4, "uniqueness": keys(number)[item % 4]});
        let batch = json!({"jobs": (0..40).map(item).collect::<Vec<_>>()});
        let answer = behind.client.post("/v1/jobs/batch", &batch, 200).await;
        // Keyed items come ten times, unkeyed ones ten times each by themselves.
        assert_eq!(answer.at("/created"), 13, "{fault:?}: {}", answer.text);
        assert_eq!(behind.jobs().await, 13 * (number as i64 + 1), "{fault:?}");
    }
    assert_eq!(behind.proxy.met(), 4);
    behind.finish().await;
}

#[tokio::test]
async fn a_key_that_is_only_linked_is_linked_once() {
    let behind = Behind::start().await;
    let job = behind
        .app
        .post(
            "/v1/jobs",
            &json!({"name": "n", "uniqueness": {"active_key": "a"}}),
            201,
        )
        .await;
    for (number, fault) in Fault::ALL.into_iter().cycle().take(8).enumerate() {
        behind.proxy.plan([fault]);
        let uniqueness = json!({"active_key": "a", "window_key": format!("w-{number}"), "window": "1h"});
        let body = json!({"name": "n", "uniqueness": uniqueness});
        let answer = behind.client.post("/v1/jobs", &body, 200).await;
        assert_eq!(answer.job_id(), job.job_id());
        assert_eq!(answer.at("/window/linked"), true, "{fault:?}: {}", answer.text);
        behind.assert_true(&answer).await;
        assert_eq!(behind.proxy.met(), number + 1, "{fault:?} was not met");
        let again = behind.client.post("/v1/jobs", &body, 200).await;
        assert_eq!(again.at("/duplicate_match"), "both");
        assert_eq!(again.at("/window/expires_at"), answer.at("/window/expires_at"));
    }
    // A key whose window is over is taken over: by an update, and not by an insert.
    for fault in Fault::ALL {
        behind.app.expire_window("n", "w-0").await;
        behind.proxy.plan([fault]);
        let uniqueness = json!({"active_key": "a", "window_key": "w-0", "window": "2h"});
        let body = json!({"name": "n", "uniqueness": uniqueness});
        let answer = behind.client.post("/v1/jobs", &body, 200).await;
        assert_eq!(answer.at("/duplicate_match"), "active", "{fault:?}: {}", answer.text);
        behind.assert_true(&answer).await;
    }
    assert_eq!(behind.jobs().await, 1);
    behind.finish().await;
}

/// Nothing is written, so nothing can be in doubt.
#[tokio::test]
async fn a_reuse_is_answered_though_its_commit_is_lost() {
    let behind = Behind::start().await;
    let body = json!({"name": "n", "uniqueness": keys(0)[3]});
    let job = behind.client.post("/v1/jobs", &body, 201).await;
    for fault in Fault::ALL {
        behind.proxy.plan([fault]);
        let answer = behind.client.post("/v1/jobs", &body, 200).await;
        assert_eq!(answer.job_id(), job.job_id());
        assert_eq!(answer.at("/duplicate_match"), "both");
    }
    assert_eq!(behind.jobs().await, 1);
    behind.finish().await;
}

/// Cancelling, deleting and resetting once more would not give the same answer, so the server does not.
#[tokio::test]
async fn what_cannot_be_repeated_is_said_to_be_unknown() {
    let behind = Behind::start().await;
    for (number, fault) in Fault::ALL.into_iter().enumerate() {
        let body = json!({"name": "n", "uniqueness": keys(number)[3]});
        let job = behind.app.post("/v1/jobs", &body, 201).await.job_id().to_owned();
        let (path, cancel) = (format!("/v1/jobs/{job}"), format!("/v1/jobs/{job}/cancel"));
        let reset = json!({"name": "n", "window_key": format!("v-{number}")});
        let unknown = |answer: &Answer| {
            answer.assert_problem(503, &["store_unavailable"]);
            assert_eq!(answer.at("/outcome"), "unknown", "{fault:?}: {}", answer.text);
            assert!(answer.header("retry-after").is_some());
        };
        behind.proxy.plan([fault]);
        unknown(&behind.client.post("/v1/keys/reset", &reset, 503).await);
        behind.proxy.plan([fault]);
        unknown(&behind.client.post_nothing(&cancel, 503).await);
        if fault == Fault::Swallow {
            assert_eq!(
                behind.app.get(&path, 200).await.at("/state"),
                "cancelled",
                "it was done"
            );
        }
        if fault == Fault::CutBefore {
            assert_eq!(
                behind.app.get(&path, 200).await.at("/state"),
                "pending",
                "it was not done"
            );
        }
        behind.client.post_nothing(&cancel, 200).await;
        behind.proxy.plan([fault]);
        unknown(&behind.client.delete(&path, 503).await);
        behind.client.delete(&path, [200, 404]).await;
        assert_eq!(behind.proxy.met(), (number + 1) * 3);
    }
    behind.finish().await;
}

/// Every operation that needs the database, with a body that would be right.
fn operations(job: &str) -> [(Method, String, Option<Value>); 8] {
    let dispatch = json!({"name": "n", "uniqueness": {"window_key": "gone", "window": "1h"}});
    let reset = json!({"name": "n", "window_key": "gone"});
    [
        (Method::POST, "/v1/jobs".into(), Some(dispatch.clone())),
        (
            Method::POST,
            "/v1/jobs/batch".into(),
            Some(json!({"jobs": [dispatch.clone()]})),
        ),
        (Method::POST, "/v1/jobs/preview".into(), Some(dispatch)),
        (Method::GET, "/v1/jobs".into(), None),
        (Method::GET, format!("/v1/jobs/{job}"), None),
        (Method::POST, format!("/v1/jobs/{job}/cancel"), Some(json!({}))),
        (Method::GET, "/v1/keys?name=n&window_key=gone".into(), None),
        (Method::POST, "/v1/keys/reset".into(), Some(reset)),
    ]
}

#[tokio::test]
async fn a_database_that_is_gone_is_said_to_be_gone() {
    let behind = Behind::start().await;
    let job = behind.client.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    behind.proxy.go_away().await;
    // Once a server has noticed, it sends nothing to anybody who might have heard it.
    behind.client.get("/readyz", 503).await;
    let mut calls = JoinSet::new();
    for (method, path, body) in operations(job.job_id()) {
        let client = behind.client.clone();
        calls.spawn(async move {
            match (method, body) {
                (Method::GET, _) => client.get(&path, 503).await,
                (_, Some(body)) => client.post(&path, &body, 503).await,
                (method, None) => panic!("{method} {path} without a body"),
            }
        });
    }
    for answer in calls.join_all().await {
        answer.assert_problem(503, &["store_unavailable"]);
        assert_eq!(answer.at("/outcome"), "none", "{}", answer.text);
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert!(answer.took < GIVEN_UP, "it took {:?}", answer.took);
    }
    behind.client.get("/healthz", 200).await;
    assert_eq!(behind.jobs().await, 1, "nothing was done");

    behind.proxy.come_back();
    let body = json!({"name": "n", "uniqueness": {"window_key": "gone", "window": "1h"}});
    behind.client.post("/v1/jobs", &body, 201).await;
    for path in ["/v1/jobs", "/readyz"] {
        behind.client.get(path, 200).await;
    }
    behind.finish().await;
}

/// A restart of PostgreSQL leaves a server with connections that are dead, and no client notices.
#[tokio::test]
async fn dead_connections_are_replaced_before_they_are_used() {
    let behind = Behind::start().await;
    for round in 0..3 {
        let mut calls = JoinSet::new();
        for _ in 0..30 {
            let client = behind.client.clone();
            calls.spawn(async move { client.get("/v1/jobs", 200).await });
        }
        calls.join_all().await;
        let job = behind.client.post("/v1/jobs", &json!({"name": "n"}), 201).await;
        behind.proxy.restart().await;
        for _ in 0..12 {
            behind.client.get(&format!("/v1/jobs/{}", job.job_id()), 200).await;
        }
        let client = &behind.client;
        client
            .post_nothing(&format!("/v1/jobs/{}/cancel", job.job_id()), 200)
            .await;
        client.post("/v1/jobs", &json!({"name": "n"}), 201).await;
        assert_eq!(behind.jobs().await, 2 * (round + 1));
    }
    behind.finish().await;
}

#[tokio::test]
async fn a_database_that_goes_during_a_commit_leaves_it_unknown() {
    for (fault, stored) in [(Fault::Swallow, true), (Fault::CutBefore, false)] {
        let behind = Behind::start().await;
        behind.proxy.plan_last(fault);
        let body = json!({"name": "n", "uniqueness": keys(0)[3]});
        let began = Instant::now();
        let answer = behind.client.post("/v1/jobs", &body, 503).await;
        answer.assert_problem(503, &["store_unavailable"]);
        assert_eq!(answer.at("/outcome"), "unknown", "{fault:?}: {}", answer.text);
        assert!(answer.header("retry-after").is_some());
        assert!(began.elapsed() < GIVEN_UP, "it took {:?}", answer.took);
        assert_eq!(behind.jobs().await, i64::from(stored), "{fault:?}");

        // What the answer advises: the same request again, which has a window key.
        behind.proxy.come_back();
        let again = behind.client.post("/v1/jobs", &body, 200..=201).await;
        assert_eq!(again.status, if stored { 200 } else { 201 }, "{}", again.text);
        behind.assert_true(&again).await;
        assert_eq!(behind.jobs().await, 1);
        behind.finish().await;
    }
}
