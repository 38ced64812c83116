//! `Prefer: wait`: whoever waits hears the end of a job, at whichever server they wait and it ends.

use reqwest::Method;
use reqwest::header::{HeaderMap, HeaderValue};
use serde_json::{Value, json};

use crate::support::{Answer, App, Call, Client, Options, eventually};

/// Sends with `Prefer: wait=50`.
async fn wait_for(client: Client, path: String, body: Option<String>) -> Answer {
    let mut call = Call::json(&path, body.clone().unwrap_or_default());
    if body.is_none() {
        (call.method, call.body, call.headers) = (Method::GET, None, HeaderMap::new());
    }
    call.headers.insert("prefer", HeaderValue::from_static("wait=50"));
    client.send(call).await.expect("an answer")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_hears_the_end_at_every_server() {
    let app = App::with(Options::default().servers(2)).await;
    let dispatch = |key: &str| json!({"name": "n", "uniqueness": {"active_key": key}}).to_string();
    for (finisher, key) in [(0, "a"), (1, "b")] {
        // Created at one server and reused at the other, and asked for at both.
        let created = tokio::spawn(wait_for(app.client(0).clone(), "/v1/jobs".into(), Some(dispatch(key))));
        let job = app.reserve(json!({"wait": "20s", "lease": "60s"})).await.remove(0);
        let path = format!("/v1/jobs/{}", job.id);
        let reused = tokio::spawn(wait_for(app.client(1).clone(), "/v1/jobs".into(), Some(dispatch(key))));
        let asked = [0, 1].map(|server| tokio::spawn(wait_for(app.client(server).clone(), path.clone(), None)));

        // Until it ends nobody is answered: all of them are seen to wait before.
        for server in [0, 1] {
            eventually("all to wait", async || {
                let metrics = app.client(server).get("/metrics", 200).await.text;
                let waiting = metrics
                    .lines()
                    .find_map(|line| line.strip_prefix("solejob_jobs_awaited "));
                match waiting {
                    Some("2") => Ok(()),
                    other => Err(format!("{other:?} wait at server {server}")),
                }
            })
            .await;
        }
        assert!(!created.is_finished() && !reused.is_finished() && asked.iter().all(|asked| !asked.is_finished()));
        app.client(finisher)
            .work(&job, "succeed", json!({"result": {"done": key}}))
            .await;

        let (created, reused) = (created.await.unwrap(), reused.await.unwrap());
        assert_eq!((created.status, created.str("/disposition")), (201, "created"));
        assert_eq!((reused.status, reused.str("/disposition")), (200, "reused"));
        let mut ends: Vec<(Option<String>, Value)> = Vec::new();
        for answer in [&created, &reused] {
            ends.push((
                answer.header("preference-applied").map(Into::into),
                answer.at("/job").clone(),
            ));
        }
        for answer in asked {
            let answer = answer.await.unwrap();
            ends.push((
                answer.header("preference-applied").map(Into::into),
                answer.body.clone().unwrap_or_default(),
            ));
        }
        for (applied, end) in ends {
            assert_eq!(applied.as_deref(), Some("wait=50"));
            assert_eq!(
                (&end["state"], &end["result"]),
                (&json!("succeeded"), &json!({"done": key})),
                "{end}"
            );
        }
    }
    app.finish().await;
}
