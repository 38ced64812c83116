//! `solejob work`: shell scripts as workers.

mod ends;
mod leases;
mod many;

use std::fmt::Display;

use serde_json::{Value, json};

use crate::support::{Answer, App, Scratch, eventually};

/// Dispatches a job with this payload, to the letter; gives its id.
async fn dispatch(app: &App, payload: &str) -> String {
    let body = format!(r#"{{"name":"job","payload":{payload},"retry":{{"initial":"0s"}}}}"#);
    app.post_raw("/v1/jobs", body, 201).await.job_id().to_owned()
}

async fn job(app: &App, id: &str) -> Answer {
    app.get(&format!("/v1/jobs/{id}"), 200).await
}

/// The job, once it is in this state.
async fn in_state(app: &App, id: &str, state: &str) -> Answer {
    eventually(&format!("the job to be {state}"), async || {
        let job = job(app, id).await;
        match job.str("/state") == state {
            true => Ok(job),
            false => Err(job.text),
        }
    })
    .await
}

/// Waits until a script has written a file as wanted.
async fn written(files: &Scratch, name: &str, wanted: impl Fn(&str) -> bool) -> String {
    eventually(&format!("the file {name}"), async || {
        let text = files.read(name);
        match wanted(&text) {
            true => Ok(text),
            false => Err(format!("it holds `{text}`")),
        }
    })
    .await
}

fn assert_at(job: &Answer, pointer: &str, wanted: impl Into<Value> + Display) {
    assert_eq!(job.at(pointer), &wanted.into(), "{pointer} of {}", job.text);
}

fn error(message: &str, kind: &str, details: &Value) -> Value {
    json!({"message": message, "type": kind, "details": details})
}
