//! How a command gets its job, and what its end means.

use serde_json::{Value, json};

use super::{assert_at, dispatch, error, in_state, job};
use crate::support::{App, Options, Scratch};

#[tokio::test]
async fn payloads_and_results_stay_to_the_letter() {
    let app = App::start().await;
    let mut worker = app.cli().worker(&["--concurrency", "4"], "cat");
    for payload in [
        "9007199254740993",
        "1.0",
        "1e400",
        "-0",
        r#"{"b": 1, "a" : [ 9007199254740993.000 ],"nul":"\u0000","é":"\u00e9 /\/"}"#,
        r#""text""#,
        "null",
        "[]",
    ] {
        let id = dispatch(&app, payload).await;
        let done = in_state(&app, &id, "succeeded").await;
        assert!(
            done.text.contains(&format!(r#""result":{payload}"#)),
            "wanted {payload} in {}",
            done.text
        );
    }
    let large = format!("\"{}\"", "x".repeat(1_000_000));
    let id = dispatch(&app, &large).await;
    assert!(
        in_state(&app, &id, "succeeded")
            .await
            .text
            .contains(&format!(r#""result":{large}"#))
    );
    worker.stop().await;
    app.finish().await;
}

#[tokio::test]
async fn what_is_no_json_is_a_string_and_nothing_is_null() {
    let app = App::start().await;
    // The payload is a shell script.
    let mut worker = app.cli().worker(&[], "eval \"$(cat | tr -d '\"')\"");
    for (script, result) in [
        ("echo two; echo lines", json!("two\nlines")),
        ("echo 42", json!(42)),
        ("echo it writes much >&2", Value::Null),
        ("printf hello", json!("hello")),
    ] {
        let id = dispatch(&app, &json!(script).to_string()).await;
        let done = in_state(&app, &id, "succeeded").await;
        assert_at(&done, "/result", result);
        assert_at(&done, "/attempt", 1);
    }
    worker.stop().await;
    app.finish().await;
}

#[tokio::test]
async fn a_command_knows_its_job_and_can_dispatch_others() {
    let secret = "sole_0123456789abcdef0123456789abcdef";
    let app = App::with(Options::default().bootstrap_token(secret)).await;
    let script = r#"
        test -z "$SOLEJOB_LEASE_TOKEN" || exit 9
        "$BINARY" dispatch child --queue other >&2 || exit 8
        printf '{"id":"%s","name":"%s","queue":"%s","attempt":%s,"of":%s,"metadata":%s}' "$SOLEJOB_JOB_ID" \
            "$SOLEJOB_JOB_NAME" "$SOLEJOB_QUEUE" "$SOLEJOB_ATTEMPT" "$SOLEJOB_MAX_ATTEMPTS" "$SOLEJOB_METADATA""#;
    let cli = app
        .cli()
        .env("SOLEJOB_TOKEN", secret)
        .env("BINARY", env!("CARGO_BIN_EXE_solejob"));
    let mut worker = cli.worker(
        &["--queue", "q1", "--queue", "q2", "--name", "knows", "--worker", "me"],
        script,
    );
    let client = app.with_token(secret);
    let other = json!({"name": "not-this-one", "queue": "q2"});
    let other = client.post("/v1/jobs", &other, 201).await.job_id().to_owned();
    let body = json!({"name": "knows", "queue": "q2", "metadata": {"a": "1 \" $x"}, "retry": {"max_attempts": 3}});
    let id = client.post("/v1/jobs", &body, 201).await.job_id().to_owned();
    let done = cli
        .run(&["jobs", "wait", &id, "--timeout", "20s", "--json"], 0)
        .await
        .json();
    let wanted = json!({"id": id, "name": "knows", "queue": "q2", "attempt": 1, "of": 3, "metadata": {"a": "1 \" $x"}});
    assert_eq!(done["result"], wanted);
    assert_eq!(done["attempts"][0]["worker"], "me");
    let child = client.get("/v1/jobs?name=child", 200).await;
    assert_at(&child, "/jobs/0/parent", json!({"job_id": id, "attempt": 1}));
    assert_at(
        &client.get(&format!("/v1/jobs/{other}"), 200).await,
        "/state",
        "pending",
    );
    worker.stop().await;
    assert!(!worker.log.text().contains(secret));
    app.finish().await;
}

#[tokio::test]
async fn failures_say_why_and_are_retried_unless_that_is_no_use() {
    let app = App::start().await;
    let script = r#"
        case $(cat) in
            1) echo noise; echo starting >&2; echo ' it is broken' >&2; test "$SOLEJOB_ATTEMPT" = 3 || exit 3;;
            2) echo no use >&2; exit 100;;
            3) kill -SEGV $$;;
            4) yes | head -c 1048577;;
            5) yes 'much said' | head -c 100000 >&2; echo last words >&2; exit 1;;
        esac"#;
    let mut worker = app.cli().worker(&["--concurrency", "5"], script);
    let dispatch = async |payload: u8, max_attempts: u8| {
        let retry = json!({"initial": "0s", "max_attempts": max_attempts});
        let body = json!({"name": "job", "payload": payload, "retry": retry});
        app.post("/v1/jobs", &body, 201).await.job_id().to_owned()
    };
    let (third_time, no_use, signal) = (dispatch(1, 5).await, dispatch(2, 5).await, dispatch(3, 2).await);
    let (too_large, talkative) = (dispatch(4, 5).await, dispatch(5, 1).await);
    let done = in_state(&app, &third_time, "succeeded").await;
    assert_at(&done, "/attempt", 3);
    let failed = error("starting\n it is broken", "exit", &json!({"status": 3}));
    assert_at(&done, "/attempts/0/error", failed.clone());
    assert_at(&done, "/attempts/1/error", failed);
    let done = in_state(&app, &no_use, "failed").await;
    assert_at(&done, "/attempt", 1);
    assert_at(&done, "/error", error("no use", "exit", &json!({"status": 100})));
    let done = in_state(&app, &signal, "failed").await;
    assert_at(&done, "/attempt", 2);
    assert_at(
        &done,
        "/error",
        error("the command was killed by signal 11", "exit", &json!({"signal": 11})),
    );
    let done = in_state(&app, &too_large, "failed").await;
    assert_at(&done, "/attempt", 1);
    assert_at(&done, "/error/type", "result_too_large");
    let done = in_state(&app, &talkative, "failed").await;
    let message = done.str("/error/message");
    assert!(
        message.ends_with("much said\nlast words") && message.len() < 9_000,
        "{message}"
    );
    worker.stop().await;
    app.finish().await;
}

#[tokio::test]
async fn a_command_may_leave_its_payload_unread_and_something_in_the_background() {
    let (app, files) = (App::start().await, Scratch::new());
    let script = format!("sleep 30 & echo $! > '{}'; echo done", files.path("pid"));
    let mut worker = app.cli().worker(&[], &script);
    let id = dispatch(&app, &format!("\"{}\"", "x".repeat(500_000))).await;
    let done = in_state(&app, &id, "succeeded").await;
    assert_at(&done, "/result", "done");
    worker.stop().await;
    // It is no part of the job any more: it was left alone.
    let left = std::process::Command::new("kill")
        .arg(files.read("pid").trim())
        .status()
        .unwrap();
    assert!(left.success());
    app.finish().await;
}

#[tokio::test]
async fn a_worker_that_cannot_work_says_so() {
    let app = App::start().await;
    let id = dispatch(&app, "1").await;
    let ran = app.cli().run(&["work", "--", "/nowhere/to/be/found"], 2).await;
    assert!(ran.stderr.contains("/nowhere/to/be/found"), "{ran:?}");
    let kept = job(&app, &id).await;
    assert_at(&kept, "/state", "pending");
    assert_at(&kept, "/attempt", 0);
    app.cli().run(&["work", "--queue", "no queue", "--", "true"], 2).await;
    app.cli().run(&["work", "--lease", "1ms", "--", "true"], 2).await;
    app.cli().run(&["work"], 2).await;
    app.finish().await;

    let secret = "sole_0123456789abcdef0123456789abcdef";
    let app = App::with(Options::default().bootstrap_token(secret)).await;
    app.cli().run(&["work", "--", "true"], 6).await;
    let reader = app.token("default", "prod", &["read"]).await;
    app.cli()
        .env("SOLEJOB_TOKEN", &reader)
        .run(&["work", "--", "true"], 6)
        .await;
    app.finish().await;
}
