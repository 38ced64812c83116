//! `solejob dispatch`: one job, and the lines of a file.

use std::fmt::Write;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{App, Options, Scratch};

#[tokio::test]
async fn a_dispatch_prints_its_receipt_and_exits_as_documented() {
    let app = App::start().await;
    let cli = app.cli();
    let created = cli.run(&["dispatch", "welcome", "--active-key", "u:7"], 0).await;
    assert!(created.stdout.starts_with("created "), "{created:?}");
    let reused = cli
        .run(&["dispatch", "welcome", "--active-key", "u:7", "--json"], 0)
        .await;
    assert_eq!(reused.json()["duplicate_match"], "active");
    assert!(created.stdout.contains(reused.json()["job_id"].as_str().unwrap()));
    assert_eq!(reused.stdout.lines().count(), 1, "to the letter: {reused:?}");

    let key = ["--window-key", "req-1", "--window", "7d"];
    let with_key = |payload: &'static str| [&["dispatch", "welcome", "--payload", payload][..], &key].concat();
    cli.run(&with_key("1"), 0).await;
    cli.run(&with_key("1.0"), 0).await;
    let conflict = cli.run(&with_key("2"), 3).await;
    assert!(conflict.stderr.contains("uniqueness_conflict"), "{conflict:?}");
    let conflict = cli.run(&[&with_key("2")[..], &["--json"]].concat(), 3).await;
    assert_eq!(conflict.json()["differs"], json!(["payload"]));

    let preview = cli.run(&["dispatch", "other", "--preview"], 0).await;
    assert!(preview.stdout.starts_with("would be created other"), "{preview:?}");
    let listed = cli.run(&["jobs", "list", "--name", "other", "--json"], 0).await;
    assert_eq!(listed.json()["jobs"], json!([]));

    for wrong in [
        &["dispatch"][..],
        &["dispatch", "no name"],
        &["dispatch", "x", "--payload", "{"],
        &["dispatch", "x", "--payload", "{\"a\":1,\"a\":2}"],
        &["dispatch", "x", "--window-key", "k"],
        &["dispatch", "x", "--window-key", "k", "--window", "1 month"],
        &["dispatch", "x", "--delay", "1h", "--run-at", "2027-01-01T00:00:00Z"],
        &["dispatch", "x", "--wait", "2m"],
        &["dispatch", "x", "--from", "-"],
        &["dispatch", "--from", "/nowhere/at/all"],
    ] {
        cli.run(wrong, 2).await;
    }
    app.finish().await;
}

#[tokio::test]
async fn every_flag_reaches_the_job() {
    let (app, files) = (App::start().await, Scratch::new());
    let cli = app.cli();
    let parent = cli.run(&["dispatch", "parent", "--json"], 0).await.json();
    let parent = parent["job_id"].as_str().unwrap();
    let payload = r#"{"n": 9007199254740993, "z": [1.0, 1e400], "nul": "\u0000", "s": " x "}"#;
    let file = files.write("payload.json", format!("\n {payload}\n"));
    let args = [
        "dispatch",
        "all-of-it",
        "--payload-file",
        &file,
        "--queue",
        "q:1",
        "--priority",
        "-7",
        "--delay",
        "5m",
        "--active-key",
        "a k",
        "--window-key",
        "-w",
        "--window",
        "36h",
        "--on-mismatch",
        "reuse",
        "--release-on",
        "failed",
        "--release-on",
        "cancelled",
        "--resource-key",
        "account:42",
        "--resource-key",
        "db:1",
        "--metadata",
        "customer=7=8",
        "--metadata",
        "note=",
        "--parent-job",
        parent,
        "--parent-attempt",
        "1",
        "--timeout",
        "90s",
        "--retention",
        "1w",
        "--retry-max-attempts",
        "4",
        "--retry-backoff",
        "fixed",
        "--retry-initial",
        "3s",
        "--retry-factor",
        "1.5",
        "--retry-max",
        "1h",
        "--retry-jitter",
        "false",
        "--json",
    ];
    let args = args.map(|arg| if arg == "--window-key" { "--window-key=-w" } else { arg });
    let args = args.iter().filter(|arg| **arg != "-w").copied().collect::<Vec<_>>();
    let receipt = cli.run(&args, 0).await.json();
    let id = receipt["job_id"].as_str().unwrap();
    let shown = cli.run(&["jobs", "get", id, "--json"], 0).await;
    assert!(
        shown.stdout.contains(&format!("\"payload\":{payload}")),
        "to the letter: {shown:?}"
    );
    let job = app.get(&format!("/v1/jobs/{id}"), 200).await;
    for (pointer, wanted) in [
        ("/queue", json!("q:1")),
        ("/priority", json!(-7)),
        ("/active_key", json!("a k")),
        ("/window_keys/0/key", json!("-w")),
        ("/resource_keys", json!(["account:42", "db:1"])),
        ("/metadata", json!({"customer": "7=8", "note": ""})),
        ("/parent", json!({"job_id": parent, "attempt": 1})),
        ("/timeout", json!("1m30s")),
        ("/retention", json!("7d")),
        (
            "/retry",
            json!({"max_attempts": 4, "backoff": "fixed", "initial": "3s", "factor": 1.5, "max": "1h", "jitter": false}),
        ),
    ] {
        assert_eq!(job.at(pointer), &wanted, "{pointer}");
    }
    let piped = cli
        .run_with(&["dispatch", "piped", "--payload", "-", "--json"], "[1.0]\n", 0)
        .await
        .json();
    let piped = cli
        .run(&["jobs", "get", piped["job_id"].as_str().unwrap(), "--json"], 0)
        .await;
    assert!(piped.stdout.contains("\"payload\":[1.0]"), "{piped:?}");
    app.finish().await;
}

#[tokio::test]
async fn ten_thousand_lines_are_safe_to_send_again() {
    let (app, files) = (App::start().await, Scratch::new());
    let mut lines = String::new();
    for n in 0..10_000 {
        writeln!(
            lines,
            "{{\"name\": \"import\", \"payload\": {{\"n\": {n}.0}}, \"queue\": \"q{}\"}}",
            n % 7
        )
        .unwrap();
    }
    let file = files.write("jobs.ndjson", lines);
    let args = [
        "dispatch",
        "--from",
        &file,
        "--window-key-prefix",
        "import-7",
        "--window",
        "7d",
    ];
    let first = app.cli().run(&args, 0).await;
    assert_eq!(
        first.stdout,
        "10000 lines: 10000 created, 0 reused, 0 conflicts, 0 invalid\n"
    );
    let again = app.cli().run(&args, 0).await;
    assert_eq!(
        again.stdout,
        "10000 lines: 0 created, 10000 reused, 0 conflicts, 0 invalid\n"
    );
    let keys = app
        .cli()
        .run(
            &["keys", "get", "--name", "import", "--window-key", "import-7/10000"],
            0,
        )
        .await;
    assert!(keys.stdout.starts_with("held by job"), "{keys:?}");
    app.finish().await;
}

const MIXED: &str = concat!(
    "{\"name\":\"good\"}\n",
    "\r\n",
    "no JSON\n",
    "{\"name\":\"bad name\"}\n",
    "{\"name\":\"good\"}, {\"name\":\"smuggled\"}\n",
    "{\"name\":\"good\",\"uniqueness\":{\"activekey\":\"x\"}}\n",
    "{\"name\":\"good\",\"payload\":{\"a\":1,\"a\":2}}\n",
    "{\"name\":\"good\",\"payload\":1,\"uniqueness\":{\"window_key\":\"own\",\"window\":\"1h\"}}\n",
    "{\"name\":\"good\"}",
);

#[tokio::test]
async fn invalid_lines_are_named_and_the_others_stored() {
    let app = App::start().await;
    let ran = app.cli().run_with(&["dispatch", "--from", "-"], MIXED, 2).await;
    assert_eq!(ran.stdout, "9 lines: 3 created, 0 reused, 0 conflicts, 5 invalid\n");
    for said in [
        "line 3: invalid_json",
        "line 4: invalid_request: ",
        "line 5: invalid_json",
        "line 6: invalid_request: ",
        "(at /uniqueness/activekey)",
        "line 7: invalid_",
    ] {
        assert!(ran.stderr.contains(said), "`{said}` is missing: {ran:?}");
    }
    let listed = app.get("/v1/jobs?name=smuggled", 200).await;
    assert_eq!(listed.at("/jobs"), &json!([]));

    // A line's own key conflicts now; with --json each line has its result, in order.
    let other = MIXED.replace("\"payload\":1", "\"payload\":2");
    let stopped = app
        .cli()
        .run_with(&["dispatch", "--from", "-"], other.as_str(), 3)
        .await;
    assert!(stopped.stderr.contains("line 8: uniqueness_conflict"), "{stopped:?}");
    assert!(
        stopped.stdout.contains("0 created, 0 reused, 1 conflicts"),
        "{stopped:?}"
    );
    let args = ["dispatch", "--from", "-", "--continue-on-conflict", "--json"];
    let ran = app.cli().run_with(&args, other, 2).await;
    let mut seen = Vec::new();
    for line in ran.stdout.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        seen.push((
            line["line"].as_u64().unwrap(),
            line["error"]["code"].as_str().map(str::to_owned),
        ));
    }
    assert_eq!(
        seen.iter().map(|(line, _)| *line).collect::<Vec<_>>(),
        [1, 3, 4, 5, 6, 7, 8, 9]
    );
    assert_eq!(seen[6].1.as_deref(), Some("uniqueness_conflict"));
    assert!(seen[0].1.is_none() && seen[7].1.is_none(), "{seen:?}");
    assert!(
        ran.stderr
            .ends_with("9 lines: 2 created, 0 reused, 1 conflicts, 5 invalid\n"),
        "{ran:?}"
    );
    app.finish().await;
}

#[tokio::test]
async fn an_import_that_stops_does_not_wait_for_its_input() {
    let app = App::start().await;
    let line = |n: u8| {
        let keys = json!({"window_key": "k", "window": "1h"});
        json!({"name": "a", "payload": n, "uniqueness": keys}).to_string()
    };
    let began = Instant::now();
    // The pipe stays open for longer than the import may take.
    let script = r#"
        "$BINARY" dispatch --from - --batch-size 2 < <(printf '%s\n' "$1" "$2"; exec sleep 30 2>/dev/null)
        echo "it exited with $?""#;
    let mut command = std::process::Command::new("bash");
    command.args(["-c", script, "bash", &line(1), &line(2)]);
    command.env("BINARY", env!("CARGO_BIN_EXE_solejob"));
    command.env("SOLEJOB_URL", format!("http://{}", app.address()));
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.ends_with("it exited with 3\n"), "{said}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    app.finish().await;
}

#[tokio::test]
async fn more_faults_than_an_answer_names_are_all_found() {
    let app = App::start().await;
    let mut lines = "{\"name\":\"bad name\"}\n".repeat(350);
    lines.push_str("{\"name\":\"good\"}\n");
    let ran = app.cli().run_with(&["dispatch", "--from", "-"], lines, 2).await;
    assert_eq!(ran.stdout, "351 lines: 1 created, 0 reused, 0 conflicts, 350 invalid\n");
    app.finish().await;
}

#[tokio::test]
async fn batches_fit_what_the_server_takes() {
    let options = Options::default().arg("--batch-items=100").arg("--batch-bytes=65536");
    let app = App::with(options).await;
    let line = |n: usize| format!("{{\"name\":\"import\",\"payload\":\"{}\"}}\n", "x".repeat(n * 7));
    let mut lines = (0..300).map(line).collect::<String>();
    lines.push_str(&line(20_000));
    let ran = app.cli().run_with(&["dispatch", "--from", "-"], lines, 2).await;
    assert_eq!(ran.stdout, "301 lines: 300 created, 0 reused, 0 conflicts, 1 invalid\n");
    assert!(ran.stderr.contains("line 301: batch_too_large"), "{ran:?}");
    app.finish().await;
}

#[tokio::test]
async fn tokens_are_sent_and_never_shown() {
    let secret = "sole_0123456789abcdef0123456789abcdef";
    let app = App::with(Options::default().bootstrap_token(secret)).await;
    let cli = app.cli().env("SOLEJOB_TOKEN", secret);
    cli.run(&["dispatch", "welcome"], 0).await;
    let wrong = "sole_fedcba9876543210fedcba9876543210";
    let refused = app
        .cli()
        .run(&["jobs", "list", "--token", wrong, "--log", "trace"], 6)
        .await;
    assert!(
        refused.stderr.contains("unauthorized") && !refused.stderr.contains(wrong),
        "{refused:?}"
    );
    app.cli().run(&["jobs", "list"], 6).await;
    app.cli().env("SOLEJOB_TOKEN", "").run(&["jobs", "list"], 6).await;
    for command in ["work", "dispatch", "jobs list", "queues", "keys get"] {
        let args = command.split(' ').chain(["--help"]).collect::<Vec<_>>();
        let help = cli.run(&args, 0).await;
        assert!(
            help.stdout.contains("SOLEJOB_TOKEN") && !help.stdout.contains(secret),
            "{help:?}"
        );
        assert!(help.stdout.contains("Exit codes"), "{help:?}");
    }
    let reader = app.token("default", "prod", &["read"]).await;
    let reader = app.cli().env("SOLEJOB_TOKEN", &reader);
    reader.run(&["jobs", "list"], 0).await;
    let refused = reader.run(&["dispatch", "welcome"], 6).await;
    assert!(refused.stderr.contains("forbidden"), "{refused:?}");
    app.finish().await;
}
