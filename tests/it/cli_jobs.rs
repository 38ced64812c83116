//! `solejob jobs`, `queues` and `keys`.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::App;

const NOBODY: &str = "0193a5c4-9f3e-7c11-8000-4a1f6c7d2e90";

#[tokio::test]
async fn jobs_are_listed_by_what_they_are() {
    let app = App::start().await;
    let items: Vec<_> = (0..250)
        .map(|n| json!({"name": format!("n{}", n % 2), "queue": "bulk", "metadata": {"part": format!("{}", n % 5)}}))
        .collect();
    app.post("/v1/jobs/batch", &json!({"jobs": items}), 200).await;
    let cli = app.cli();
    let lines = async |args: &[&str]| {
        let ran = cli.run(&[&["jobs", "list"], args].concat(), 0).await;
        (ran.stdout.lines().count() - 1, ran.stderr)
    };
    assert_eq!(lines(&["--all"]).await, (250, String::new()));
    assert_eq!(lines(&["--all", "--name", "n1"]).await.0, 125);
    assert_eq!(lines(&["--all", "--name", "n1", "--metadata", "part=3"]).await.0, 25);
    assert_eq!(lines(&["--queue", "other"]).await.0, 0);
    assert_eq!(lines(&["--state", "succeeded"]).await.0, 0);
    assert_eq!(lines(&["--dispatched-before", "2020-01-01T00:00:00+01:00"]).await.0, 0);
    let (shown, said) = lines(&["--limit", "10"]).await;
    assert!(shown == 10 && said.contains("--cursor "), "{said}");
    let page = cli.run(&["jobs", "list", "--limit", "10", "--json"], 0).await;
    assert_eq!(
        page.stdout.trim_end(),
        app.get("/v1/jobs?limit=10", 200).await.text,
        "to the letter"
    );
    let cursor = page.json()["next_cursor"].as_str().unwrap().to_owned();
    let next = cli
        .run(&["jobs", "list", "--limit", "200", "--cursor", &cursor, "--json"], 0)
        .await;
    assert_eq!(next.json()["jobs"].as_array().unwrap().len(), 200);
    let pages = cli.run(&["jobs", "list", "--all", "--json"], 0).await;
    assert_eq!(pages.stdout.lines().count(), 2, "a page a line");
    cli.run(&["jobs", "list", "--state", "done"], 2).await;
    cli.run(&["jobs", "list", "--cursor", "rubbish"], 2).await;
    app.finish().await;
}

#[tokio::test]
async fn a_job_is_shown_cancelled_retried_and_deleted() {
    let app = App::start().await;
    let cli = app.cli();
    let job = app
        .post("/v1/jobs", &json!({"name": "a", "payload": "text"}), 201)
        .await;
    let id = job.job_id();
    let shown = cli.run(&["jobs", "get", id], 0).await;
    assert!(
        shown.stdout.contains("pending") && shown.stdout.contains("\"text\""),
        "{shown:?}"
    );
    cli.run(&["jobs", "delete", id], 3).await;
    cli.run(&["jobs", "retry", id], 3).await;
    let cancelled = cli.run(&["jobs", "cancel", id, "--json"], 0).await;
    assert_eq!(cancelled.json()["state"], "cancelled");
    cli.run(&["jobs", "cancel", "--force", id], 0).await;
    let again = cli.run(&["jobs", "retry", id], 0).await;
    assert_eq!(again.stdout, format!("{id}: pending\n"));
    // Each of many is tried; the first failure gives the exit code.
    let many = cli.run(&["jobs", "cancel", NOBODY, id], 4).await;
    assert!(
        many.stdout.contains("cancelled") && many.stderr.contains("job_not_found"),
        "{many:?}"
    );
    let deleted = cli.run(&["jobs", "delete", id], 0).await;
    assert_eq!(deleted.stdout, format!("{id}: deleted\n"));
    cli.run(&["jobs", "get", id], 4).await;
    cli.run(&["jobs", "get", "../../healthz"], 4).await;
    app.finish().await;
}

#[tokio::test]
async fn jobs_are_waited_for() {
    let app = App::start().await;
    let job = app.post("/v1/jobs", &json!({"name": "a"}), 201).await;
    let id = job.job_id().to_owned();
    let began = Instant::now();
    let ran = app
        .cli()
        .run(&["jobs", "wait", &id, "--timeout", "1s", "--json"], 7)
        .await;
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(ran.json()["state"], "pending");
    let cli = app.cli();
    let waiting = tokio::spawn({
        let id = id.clone();
        async move { cli.run(&["jobs", "wait", &id], 1).await }
    });
    app.cli().run(&["jobs", "cancel", &id], 0).await;
    assert!(waiting.await.unwrap().stdout.contains("cancelled"));
    app.cli().run(&["jobs", "wait", NOBODY], 4).await;
    let still = app.cli().run(&["dispatch", "slow", "--wait", "1s"], 7).await;
    assert!(
        still.stdout.contains("created") && still.stdout.contains("\npending"),
        "{still:?}"
    );
    app.finish().await;
}

#[tokio::test]
async fn queues_are_shown_paused_and_resumed() {
    let app = App::start().await;
    let cli = app.cli();
    cli.run(&["dispatch", "a", "--queue", "slow"], 0).await;
    cli.run(&["queues", "pause", "slow"], 0).await;
    let shown = cli.run(&["queues"], 0).await;
    let row = shown
        .stdout
        .lines()
        .find(|line| line.starts_with("slow"))
        .unwrap_or_else(|| panic!("{shown:?}"));
    assert!(row.contains("paused"), "{shown:?}");
    cli.run(&["queues", "resume", "slow"], 0).await;
    let shown = cli.run(&["queues", "--json"], 0).await.json();
    assert_eq!(shown["queues"][0]["paused"], false);
    assert_eq!(shown["queues"][0]["counts"]["pending"], 1);
    app.finish().await;
}

#[tokio::test]
async fn keys_are_looked_up_and_reset() {
    let app = App::start().await;
    let cli = app.cli();
    let job = cli
        .run(
            &[
                "dispatch",
                "a",
                "--active-key",
                "k",
                "--window-key",
                "w",
                "--window",
                "1h",
                "--json",
            ],
            0,
        )
        .await
        .json();
    let id = job["job_id"].as_str().unwrap();
    for key in [["--active-key", "k"], ["--window-key", "w"]] {
        let held = cli
            .run(&[&["keys", "get", "--name", "a", "--json"][..], &key].concat(), 0)
            .await;
        assert_eq!(held.json()["job_id"], id);
    }
    cli.run(&["keys", "get", "--name", "a", "--active-key", "other"], 4)
        .await;
    cli.run(&["keys", "get", "--name", "a"], 2).await;
    let reset = ["keys", "reset", "--name", "a", "--window-key", "w"];
    let other = cli
        .run(&[&reset[..], &["--job-id", NOBODY, "--json"]].concat(), 0)
        .await;
    assert_eq!(other.json()["released"], false);
    let freed = cli.run(&reset, 0).await;
    assert!(freed.stdout.contains(id), "{freed:?}");
    let nothing = cli.run(&reset, 0).await;
    assert_eq!(nothing.stdout, "nobody held it\n");
    cli.run(&["keys", "get", "--name", "a", "--window-key", "w"], 4).await;
    app.finish().await;
}
