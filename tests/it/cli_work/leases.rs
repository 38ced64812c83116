//! Heartbeats, cancelling, lost leases, signals to the worker, and a server that is away.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, test_kill_process};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::{assert_at, dispatch, in_state, job, written};
use crate::support::{App, Cli, Scratch, eventually};

/// Says that it runs, and does so until it is told to stop; with a child of its own.
fn endless(files: &Scratch) -> String {
    let (pid, term) = (files.path("pid"), files.path("term"));
    format!("trap 'echo asked >> {term}; exit 0' TERM; sleep 60 & echo $! > {pid}; wait")
}

/// Waits until the child of [`endless`] is there, and gives its process id.
async fn child(files: &Scratch) -> Pid {
    let pid = written(files, "pid", |text| text.ends_with('\n')).await;
    Pid::from_raw(pid.trim().parse().unwrap()).unwrap()
}

async fn assert_gone(pid: Pid) {
    eventually("the command's child to end", async || {
        // A dead process stays until somebody asks for its end; nobody may do so here.
        let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        match test_kill_process(pid) {
            Ok(()) if !state.contains(") Z ") => Err("it still runs"),
            _ => Ok(()),
        }
    })
    .await;
}

#[tokio::test]
async fn heartbeats_keep_a_job_longer_than_its_lease() {
    let app = App::start().await;
    let mut worker = app.cli().worker(&["--lease", "1s"], "sleep 4; cat");
    let id = dispatch(&app, "7").await;
    let done = in_state(&app, &id, "succeeded").await;
    assert_at(&done, "/attempt", 1);
    assert_at(&done, "/result", 7);
    worker.stop().await;
    app.finish().await;
}

#[tokio::test]
async fn cancelling_a_job_stops_its_command() {
    let (app, files) = (App::start().await, Scratch::new());
    let mut worker = app.cli().worker(&["--lease", "1s"], &endless(&files));
    let id = dispatch(&app, "1").await;
    let pid = child(&files).await;
    let cancelled = app.cli().run(&["jobs", "cancel", &id], 0).await;
    assert!(cancelled.stdout.contains("asked to stop"), "{cancelled:?}");
    let done = in_state(&app, &id, "cancelled").await;
    assert_at(&done, "/attempt", 1);
    assert_at(&done, "/attempts/0/error/type", "cancelled");
    assert_eq!(files.read("term"), "asked\n");
    assert_gone(pid).await;
    worker.stop().await;
    app.finish().await;
}

#[tokio::test]
async fn a_command_that_does_not_listen_is_killed_after_the_grace() {
    let (app, files) = (App::start().await, Scratch::new());
    let script = format!(
        "trap '' TERM; sleep 60 & echo $! > {}; while true; do sleep 1; done",
        files.path("pid")
    );
    let mut worker = app.cli().worker(&["--lease", "1s", "--grace", "2s"], &script);
    let id = dispatch(&app, "1").await;
    let pid = child(&files).await;
    let began = Instant::now();
    app.cli().run(&["jobs", "cancel", &id], 0).await;
    let done = in_state(&app, &id, "cancelled").await;
    assert_at(&done, "/attempt", 1);
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    assert_gone(pid).await;
    worker.stop().await;
    app.finish().await;
}

#[tokio::test]
async fn a_lost_lease_stops_the_command_and_nothing_is_said_about_its_job() {
    let (app, files) = (App::start().await, Scratch::new());
    let mut worker = app.cli().worker(&["--lease", "1s"], &endless(&files));
    let id = dispatch(&app, "1").await;
    let pid = child(&files).await;
    app.cli().run(&["jobs", "cancel", "--force", &id], 0).await;
    let before = job(&app, &id).await.text;
    assert_gone(pid).await;
    assert_eq!(files.read("term"), "asked\n");
    // The worker goes on with the next.
    std::fs::remove_file(files.path("pid")).unwrap();
    let next = dispatch(&app, "2").await;
    child(&files).await;
    assert_eq!(job(&app, &id).await.text, before);
    app.cli().run(&["jobs", "cancel", "--force", &next], 0).await;
    worker.stop().await;
    app.finish().await;
}

#[tokio::test]
async fn an_attempt_that_runs_too_long_is_stopped() {
    let (app, files) = (App::start().await, Scratch::new());
    let mut worker = app.cli().worker(&["--lease", "60s"], &endless(&files));
    let body = json!({"name": "job", "timeout": "1s", "retry": {"max_attempts": 1}});
    let id = app.post("/v1/jobs", &body, 201).await.job_id().to_owned();
    let pid = child(&files).await;
    let done = in_state(&app, &id, "failed").await;
    assert_at(&done, "/error/type", "timeout");
    // Long before the next heartbeat would be due.
    assert_gone(pid).await;
    worker.stop().await;
    app.finish().await;
}

#[tokio::test]
async fn a_worker_that_is_told_to_stop_finishes_what_it_has() {
    let (app, files) = (App::start().await, Scratch::new());
    let script = format!("echo > {}; sleep 4; cat", files.path("runs"));
    let mut worker = app.cli().worker(&["--lease", "1s"], &script);
    let id = dispatch(&app, "1").await;
    written(&files, "runs", |text| !text.is_empty()).await;
    worker.signal(Signal::TERM);
    let next = dispatch(&app, "2").await;
    assert!(worker.ended().await.success());
    let done = job(&app, &id).await;
    assert_at(&done, "/state", "succeeded");
    assert_at(&done, "/attempt", 1);
    let left = job(&app, &next).await;
    assert_at(&left, "/state", "pending");
    assert_at(&left, "/attempt", 0);
    // One that waits for jobs leaves at once, and leaves nothing behind.
    let mut idle = app.cli().worker(&["--queue", "empty"], "cat");
    eventually("the worker to start", async || match idle.log.text() {
        text if text.contains("takes jobs") => Ok(()),
        text => Err(text),
    })
    .await;
    let began = Instant::now();
    idle.stop().await;
    assert!(began.elapsed() < Duration::from_secs(5));
    app.finish().await;
}

#[tokio::test]
async fn a_second_signal_kills_the_commands_and_gives_their_jobs_back() {
    let (app, files) = (App::start().await, Scratch::new());
    let mut worker = app.cli().worker(&["--grace", "60s"], &endless(&files));
    let id = dispatch(&app, "1").await;
    let pid = child(&files).await;
    worker.signal(Signal::INT);
    eventually("the worker to hear it", async || match worker.log.text() {
        text if text.contains("takes no more jobs") => Ok(()),
        text => Err(text),
    })
    .await;
    worker.signal(Signal::INT);
    assert!(worker.ended().await.success());
    assert_gone(pid).await;
    assert_eq!(files.read("term"), "", "there was no time to ask");
    let back = job(&app, &id).await;
    assert_at(&back, "/state", "pending");
    assert_at(&back, "/attempt", 0);
    app.finish().await;
}

#[tokio::test]
async fn the_job_of_a_killed_worker_is_run_by_another() {
    let (app, files) = (App::start().await, Scratch::new());
    let mut first = app
        .cli()
        .worker(&["--lease", "1s", "--worker", "first"], &endless(&files));
    let id = dispatch(&app, "[1]").await;
    let orphan = child(&files).await;
    first.kill();
    let mut second = app.cli().worker(&["--worker", "second"], "cat");
    let done = in_state(&app, &id, "succeeded").await;
    assert_at(&done, "/attempt", 2);
    assert_at(&done, "/attempts/0/worker", "first");
    assert_at(&done, "/attempts/0/error/type", "lease_expired");
    assert_at(&done, "/attempts/1/worker", "second");
    second.stop().await;
    let _ = rustix::process::kill_process(orphan, Signal::KILL);
    app.finish().await;
}

/// Stands between a worker and the server, and can cut the connection.
struct Gate {
    cli: Cli,
    open: watch::Sender<bool>,
}

impl Gate {
    async fn before(app: &App) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let cli = Cli::new(&format!("http://{}", listener.local_addr().unwrap()));
        let (open, is_open) = watch::channel(true);
        let server = app.address();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (server, mut is_open) = (server.clone(), is_open.clone());
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(server).await.unwrap();
                    tokio::select! {
                        // First: once it is shut, nothing of a new connection goes through.
                        biased;
                        _ = is_open.wait_for(|open| !open) => {}
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                    }
                });
            }
        });
        Gate { cli, open }
    }
}

#[tokio::test]
async fn a_command_runs_on_while_the_server_is_away() {
    let (app, files) = (App::start().await, Scratch::new());
    let gate = Gate::before(&app).await;
    let script = format!(
        "echo x >> {}; sleep 2; echo x >> {}; cat",
        files.path("began"),
        files.path("ended")
    );
    let mut worker = gate.cli.worker(&["--lease", "15s"], &script);
    let id = dispatch(&app, "[7]").await;
    written(&files, "began", |text| !text.is_empty()).await;
    gate.open.send(false).unwrap();
    written(&files, "ended", |text| !text.is_empty()).await;
    assert_at(&job(&app, &id).await, "/state", "running");
    tokio::time::sleep(Duration::from_secs(1)).await;
    gate.open.send(true).unwrap();
    let done = in_state(&app, &id, "succeeded").await;
    assert_at(&done, "/attempt", 1);
    assert_at(&done, "/result", json!([7]));
    assert_eq!(files.read("began"), "x\n");
    // And it takes jobs again.
    let next = dispatch(&app, "8").await;
    in_state(&app, &next, "succeeded").await;
    worker.stop().await;
    app.finish().await;
}

#[tokio::test]
async fn a_command_is_stopped_when_its_lease_is_surely_over() {
    let (app, files) = (App::start().await, Scratch::new());
    let gate = Gate::before(&app).await;
    let mut worker = gate.cli.worker(&["--lease", "2s"], &endless(&files));
    let id = dispatch(&app, "1").await;
    let pid = child(&files).await;
    gate.open.send(false).unwrap();
    // Only now is there another worker that could take it.
    assert_gone(pid).await;
    let over = in_state(&app, &id, "retrying").await;
    assert_at(&over, "/attempt", 1);
    assert_at(&over, "/attempts/0/error/type", "lease_expired");
    worker.stop().await;
    app.finish().await;
}
