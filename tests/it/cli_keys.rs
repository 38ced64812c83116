//! Idempotency keys and parents on the command line.

use serde_json::json;

use crate::support::{Answer, App, Cli, Scratch};

/// A job that a command of its own may name as its parent; gives its id.
async fn parent(app: &App) -> String {
    let body = json!({"name": "parent"});
    app.post("/v1/jobs", &body, 201).await.job_id().to_owned()
}

/// What `solejob work` gives to the command of a job, as far as a dispatch reads it.
fn under(cli: &Cli, job: &str, attempt: &str) -> Cli {
    cli.clone().env("SOLEJOB_JOB_ID", job).env("SOLEJOB_ATTEMPT", attempt)
}

async fn dispatched(cli: &Cli, args: &[&str]) -> (String, String) {
    let args = [&["dispatch", "child", "--json"][..], args].concat();
    let receipt = cli.run(&args, 0).await.json();
    let text = |member: &str| receipt[member].as_str().unwrap_or_default().to_owned();
    (text("disposition"), text("job_id"))
}

async fn job(app: &App, id: &str) -> Answer {
    app.get(&format!("/v1/jobs/{id}"), 200).await
}

#[tokio::test]
async fn an_idempotency_key_makes_a_dispatch_safe_to_run_again() {
    let app = App::start().await;
    let cli = app.cli();
    let key = ["--idempotency-key", "req-1"];
    let (created, id) = dispatched(&cli, &key).await;
    assert_eq!(created, "created");
    assert_eq!(dispatched(&cli, &key).await, ("reused".into(), id.clone()));
    let with_ttl = [
        "--idempotency-key",
        "req-2",
        "--idempotency-key-ttl",
        "1h",
        "--scope",
        "global",
    ];
    let (_, short) = dispatched(&cli, &with_ttl).await;
    let (first, second) = (job(&app, &id).await, job(&app, &short).await);
    assert_eq!(first.at("/window_keys/0/scope"), "global");
    assert!(first.str("/window_keys/0/expires_at") > second.str("/window_keys/0/expires_at"));

    let other = ["--idempotency-key", "req-1", "--payload", "1"];
    let conflict = cli.run(&[&["dispatch", "child"][..], &other].concat(), 3).await;
    assert!(conflict.stderr.contains("uniqueness_conflict"), "{conflict:?}");
    let reuse = [&other[..], &["--on-mismatch", "reuse"]].concat();
    assert_eq!(dispatched(&cli, &reuse).await, ("reused".into(), id));

    for (wrong, said) in [
        (
            &["--idempotency-key", "k", "--window-key", "k", "--window", "1h"][..],
            "cannot be used with",
        ),
        (&["--idempotency-key-ttl", "1h"], "--idempotency-key"),
        (&["--scope", "run"], "--idempotency-key"),
        (&["--on-mismatch", "reuse"], "--window-key or --idempotency-key"),
        (&["--release-on", "failed"], "--window-key or --idempotency-key"),
        (
            &[
                "--idempotency-key",
                "k",
                "--release-on",
                "none",
                "--release-on",
                "failed",
            ],
            "stands alone",
        ),
        (
            &["--idempotency-key", "k", "--scope", "galaxy"],
            "idempotency_scope_invalid",
        ),
        (
            &["--idempotency-key", "k", "--idempotency-key-ttl", "soon"],
            "invalid_window",
        ),
        (&["--no-parent", "--parent-job", "x"], "cannot be used with"),
    ] {
        let refused = cli.run(&[&["dispatch", "child"][..], wrong].concat(), 2).await;
        assert!(refused.stderr.contains(said), "`{said}` is missing: {refused:?}");
    }
    app.finish().await;
}

#[tokio::test]
async fn a_failed_job_frees_its_idempotency_key_unless_it_says_none() {
    let app = App::start().await;
    let cli = app.cli();
    let one_try = ["--retry-max-attempts", "1"];
    let freed = [&["--idempotency-key", "freed"][..], &one_try].concat();
    let kept = [&["--idempotency-key", "kept", "--release-on", "none"][..], &one_try].concat();
    let (_, freed_job) = dispatched(&cli, &freed).await;
    let (_, kept_job) = dispatched(&cli, &kept).await;
    let mut worker = cli.worker(&["--queue", "default"], "exit 1");
    for id in [&freed_job, &kept_job] {
        cli.run(&["jobs", "wait", id, "--timeout", "20s"], 1).await;
    }
    worker.stop().await;
    assert_eq!(dispatched(&cli, &freed).await.0, "created");
    assert_eq!(dispatched(&cli, &kept).await, ("reused".into(), kept_job));
    app.finish().await;
}

#[tokio::test]
async fn a_dispatch_inside_of_a_command_has_its_job_as_parent() {
    let (app, files) = (App::start().await, Scratch::new());
    let cli = app.cli().env("BINARY", env!("CARGO_BIN_EXE_solejob"));
    // The first attempt dispatches and fails; the second dispatches the same again.
    let script = format!(
        r#"
        "$BINARY" dispatch child --queue other --idempotency-key one --json >> {0} || exit 100
        "$BINARY" dispatch child --queue other --idempotency-key each --scope attempt --json >> {0} || exit 100
        "$BINARY" dispatch child --queue other --idempotency-key all --scope global --json >> {0} || exit 100
        printf '%s\n' '{{"name":"child","queue":"other"}}' |
            "$BINARY" dispatch --from - --idempotency-key lines --json >> {0} || exit 100
        "$BINARY" dispatch child --queue other --no-parent --json >> {0} || exit 100
        test "$SOLEJOB_ATTEMPT" = 2"#,
        files.path("receipts")
    );
    let mut worker = cli.worker(&["--queue", "default"], &script);
    let parents = [
        json!({"name": "parent", "retry": {"initial": "0s"}}),
        json!({"name": "parent", "retry": {"initial": "0s"}}),
    ];
    let mut ids = Vec::new();
    for body in &parents {
        let id = app.post("/v1/jobs", body, 201).await.job_id().to_owned();
        cli.run(&["jobs", "wait", &id, "--timeout", "20s"], 0).await;
        ids.push(id);
    }
    worker.stop().await;
    let text = files.read("receipts");
    let seen: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seen: Vec<&serde_json::Value> = seen.iter().map(|line| line.get("receipt").unwrap_or(line)).collect();
    let dispositions: Vec<&str> = seen.iter().map(|line| line["disposition"].as_str().unwrap()).collect();
    let (made, found) = ("created", "reused");
    let wanted = [
        // The first parent: once for both attempts, for each attempt, once for all, once for the line, without a key.
        made, made, made, made, made, found, made, found, found, made,
        // The second one has its own of the first, second and fourth.
        made, made, found, made, made, found, made, found, found, made,
    ];
    assert_eq!(dispositions, wanted, "{text}");
    let scopes: Vec<_> = seen
        .iter()
        .map(|line| line["window"]["scope"].as_str().unwrap_or("-"))
        .collect();
    assert_eq!(scopes[..5], ["run", "attempt", "global", "run", "-"]);
    for (place, parent) in [
        (0, json!({"job_id": ids[0], "attempt": 1})),
        (6, json!({"job_id": ids[0], "attempt": 2})),
        (3, json!({"job_id": ids[0], "attempt": 1})),
        (4, json!(null)),
        (10, json!({"job_id": ids[1], "attempt": 1})),
    ] {
        let id = seen[place]["job_id"].as_str().unwrap();
        assert_eq!(job(&app, id).await.at("/parent"), &parent, "line {place} of {text}");
    }
    app.finish().await;
}

#[tokio::test]
async fn a_parent_that_is_named_comes_before_the_one_around() {
    let app = App::start().await;
    let (around, named) = (parent(&app).await, parent(&app).await);
    let cli = under(&app.cli(), &around, "1");
    let (_, id) = dispatched(&cli, &["--parent-job", &named]).await;
    assert_eq!(
        job(&app, &id).await.at("/parent"),
        &json!({"job_id": named, "attempt": null})
    );
    let lines = format!("{{\"name\":\"child\"}}\n{{\"name\":\"child\",\"parent\":{{\"job_id\":\"{named}\"}}}}\n");
    let ran = cli.run_with(&["dispatch", "--from", "-", "--json"], lines, 0).await;
    let of_lines: Vec<_> = ran
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .collect();
    for (line, parent) in of_lines.iter().zip([&around, &named]) {
        let child = job(&app, line["receipt"]["job_id"].as_str().unwrap()).await;
        assert_eq!(child.at("/parent/job_id"), parent.as_str(), "{line}");
    }
    app.finish().await;
}

#[tokio::test]
async fn a_parent_from_the_environment_that_is_not_there_is_explained() {
    let app = App::start().await;
    let gone = "01a22dc3-782d-7a93-8000-0163d1fa16a5";
    let cli = under(&app.cli(), gone, "1");
    let hint = "comes from SOLEJOB_JOB_ID; --no-parent";
    let refused = cli.run(&["dispatch", "child"], 2).await;
    assert!(
        refused.stderr.contains(hint) && refused.stderr.contains(gone),
        "{refused:?}"
    );
    let lines = "{\"name\":\"child\"}\n{\"name\":\"child\"}\n";
    let refused = cli.run_with(&["dispatch", "--from", "-"], lines, 2).await;
    assert_eq!(refused.stderr.matches(hint).count(), 1, "{refused:?}");
    cli.run(&["dispatch", "child", "--no-parent"], 0).await;
    let named = app.cli().run(&["dispatch", "child", "--parent-job", gone], 2).await;
    assert!(!named.stderr.contains("SOLEJOB_JOB_ID"), "it was named: {named:?}");
    let odd = under(&app.cli(), gone, "first").run(&["dispatch", "child"], 2).await;
    assert!(odd.stderr.contains("SOLEJOB_ATTEMPT is no number"), "{odd:?}");
    // A variable that is set to nothing means none.
    under(&app.cli(), "", "").run(&["dispatch", "child"], 0).await;
    app.finish().await;
}

#[tokio::test]
async fn a_file_with_an_idempotency_key_is_safe_to_send_again() {
    let app = App::start().await;
    let cli = app.cli();
    let mut lines: String = (0..2_500)
        .map(|n| format!("{{\"name\":\"import\",\"payload\":{n}}}\n"))
        .collect();
    lines.push_str("{\"name\":\"bad name\"}\n{\"name\":\"import\",\"payload\":1,\"idempotency_key\":\"own\"}\n");
    let args = ["dispatch", "--from", "-", "--idempotency-key", "import-7"];
    let first = cli.run_with(&args, lines.as_str(), 2).await;
    assert_eq!(
        first.stdout,
        "2502 lines: 2501 created, 0 reused, 0 conflicts, 1 invalid\n"
    );
    // The line that was invalid is mended; those behind it have kept their keys.
    let mended = lines.replace("bad name", "good");
    let again = cli.run_with(&args, mended, 0).await;
    assert_eq!(
        again.stdout,
        "2502 lines: 1 created, 2501 reused, 0 conflicts, 0 invalid\n"
    );
    let key = |key: &'static str| ["keys", "get", "--name", "import", "--idempotency-key", key];
    cli.run(&key("import-7/2500"), 0).await;
    cli.run(&key("own"), 0).await;
    cli.run(&key("import-7/2502"), 4).await;
    app.finish().await;
}

#[tokio::test]
async fn a_key_within_a_scope_is_looked_up_and_reset() {
    let app = App::start().await;
    let parent = parent(&app).await;
    let cli = under(&app.cli(), &parent, "1");
    let (_, id) = dispatched(&cli, &["--idempotency-key", "k"]).await;
    let key = ["--name", "child", "--idempotency-key", "k"];
    let of = |command: &'static str, more: &[&'static str]| [&["keys", command], &key[..], more].concat();
    cli.run(&of("get", &[]), 4).await;
    let held = cli.run(&of("get", &["--scope", "run"]), 0).await;
    assert!(held.stdout.contains(&id), "{held:?}");
    cli.run(&of("get", &["--scope", "attempt"]), 4).await;
    app.cli().run(&of("get", &["--scope", "run"]), 2).await;
    let untouched = cli.run(&of("reset", &[]), 0).await;
    assert_eq!(untouched.stdout, "nobody held it\n");
    let freed = cli.run(&of("reset", &["--scope", "run"]), 0).await;
    assert!(freed.stdout.contains(&id), "{freed:?}");
    let query = format!("/v1/keys?name=child&idempotency_key=k&scope=run&parent_job_id={parent}");
    assert_eq!(app.get(&query, 200).await.at("/held"), &json!(false));
    app.finish().await;
}
