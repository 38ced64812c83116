//! Many jobs at once.

use std::collections::BTreeMap;

use serde_json::json;

use super::{in_state, job};
use crate::support::{App, Scratch, eventually};

async fn dispatch_many(app: &App, count: usize) -> Vec<String> {
    let items: Vec<_> = (0..count).map(|n| json!({"name": "job", "payload": n})).collect();
    let answer = app.post("/v1/jobs/batch", &json!({"jobs": items}), 200).await;
    (0..count)
        .map(|n| answer.str(&format!("/results/{n}/receipt/job_id")).to_owned())
        .collect()
}

#[tokio::test]
async fn no_more_commands_run_at_once_than_allowed() {
    let (app, files) = (App::start().await, Scratch::new());
    let log = files.path("log");
    // Short lines are appended whole.
    let script = format!("echo + >> {log}; sleep 0.3; echo - >> {log}");
    let ids = dispatch_many(&app, 12).await;
    let mut worker = app.cli().worker(&["--concurrency", "3"], &script);
    eventually("a command to run", async || match files.read("log").is_empty() {
        true => Err("none runs"),
        false => Ok(()),
    })
    .await;
    // What it cannot run yet it has not taken.
    let taken = app.get("/v1/queues", 200).await;
    let taken = ["reserved", "running"].map(|state| taken.at(&format!("/queues/0/counts/{state}")).as_u64().unwrap());
    assert!(taken.iter().sum::<u64>() <= 3, "{taken:?}");
    for id in &ids {
        in_state(&app, id, "succeeded").await;
    }
    let (mut now, mut most) = (0, 0);
    for line in files.read("log").lines() {
        now += if line == "+" { 1 } else { -1 };
        most = most.max(now);
    }
    assert_eq!((now, most), (0, 3));
    worker.stop().await;
    app.finish().await;
}

#[tokio::test]
async fn two_hundred_jobs_of_four_workers_are_each_run_once() {
    let (app, files) = (App::start().await, Scratch::new());
    let script = format!(
        "echo \"$SOLEJOB_JOB_ID $SOLEJOB_ATTEMPT\" >> {}; cat",
        files.path("log")
    );
    let mut workers = (0..4)
        .map(|_| app.cli().worker(&["--concurrency", "3"], &script))
        .collect::<Vec<_>>();
    let ids = dispatch_many(&app, 200).await;
    eventually("all jobs to finish", async || {
        let queues = app.get("/v1/queues", 200).await;
        match queues.at("/queues/0/counts/succeeded").as_u64() {
            Some(200) => Ok(()),
            _ => Err(queues.text),
        }
    })
    .await;
    let mut runs: BTreeMap<String, usize> = BTreeMap::new();
    for line in files.read("log").lines() {
        *runs.entry(line.to_owned()).or_default() += 1;
    }
    let wanted = ids.iter().map(|id| (format!("{id} 1"), 1)).collect();
    assert_eq!(runs, wanted);
    for (n, id) in ids.iter().enumerate() {
        let job = job(&app, id).await;
        assert_eq!(
            (job.at("/result"), job.at("/attempt")),
            (&json!(n), &json!(1)),
            "{}",
            job.text
        );
    }
    for worker in &mut workers {
        worker.stop().await;
    }
    app.finish().await;
}
