//! Job types over several servers, and from a file.

mod selectors;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::json;
use solejob::job_types::definition::{ActiveDefinition, Definition, JobType};
use solejob::job_types::selector::Input;
use solejob::uniqueness::locks::GATE;
use tokio::task::JoinSet;

use crate::support::{App, Options, Session, solejob};

const ROUNDS: u64 = 200;

/// Dispatches and changes race; no dispatch that began after a change was answered is decided by what was before.
#[tokio::test]
async fn a_change_holds_on_every_server_once_it_is_answered() {
    let app = App::with(Options::default().servers(2)).await;
    let declare = |round: u64| json!({"unique_while_active": {"key": format!("'v{round}'")}});
    app.put("/v1/job-types/raced", &declare(0), 201).await;
    let (begun, answered, done) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicU64::new(0)),
    );
    let mut callers = JoinSet::new();
    for number in 0..4 {
        let client = app.client(number % 2).clone();
        let (begun, answered, done) = (begun.clone(), answered.clone(), done.clone());
        callers.spawn(async move {
            let mut calls = 0_u64;
            while done.load(Ordering::SeqCst) == 0 {
                let least = answered.load(Ordering::SeqCst);
                let receipt = client.post("/v1/jobs", &json!({"name": "raced"}), 200..=201).await;
                let most = begun.load(Ordering::SeqCst);
                let key = receipt.str("/active_key");
                let version: u64 = key.strip_prefix('v').unwrap().parse().unwrap();
                assert!((least..=most).contains(&version), "{key}, between v{least} and v{most}");
                calls += 1;
            }
            calls
        });
    }
    for round in 1..=ROUNDS {
        let (first, second) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        begun.store(round, Ordering::SeqCst);
        app.client(first).put("/v1/job-types/raced", &declare(round), 200).await;
        answered.store(round, Ordering::SeqCst);
        // The other one, at once. The old type would refuse this.
        let name = format!("changed-{}", round % 7);
        let path = format!("/v1/job-types/{name}");
        let body = json!({"unique_while_active": {"key": format!("payload.k{round}")}});
        app.client(first).put(&path, &body, 200..=201).await;
        let member = format!("k{round}");
        let body = json!({"name": name, "payload": {member: format!("a{round}")}});
        let receipt = app.client(second).post("/v1/jobs", &body, 201).await;
        assert_eq!(receipt.at("/active_key"), &json!(format!("a{round}")));
        let body = json!({"name": name, "payload": {}});
        app.client(second)
            .post("/v1/jobs", &body, 422)
            .await
            .assert_problem(422, &["key_selector_failed"]);
        let refused = app.client(second).post("/v1/jobs/preview", &body, 422).await;
        refused.assert_problem(422, &["key_selector_failed"]);
        if round % 5 == 0 {
            app.client(first).delete(&path, 200).await;
            app.client(second).post("/v1/jobs", &body, 201).await;
        }
    }
    done.store(1, Ordering::SeqCst);
    let calls: u64 = callers.join_all().await.into_iter().sum();
    let again = app.counter("solejob_dispatch_retries_total").await;
    println!("{calls} dispatches raced with {ROUNDS} changes; {again} groups were prepared again");
    app.finish().await;
}

/// A server that knows nothing of the type yet has prepared the dispatch, and the transaction finds out.
#[tokio::test]
async fn what_is_invalid_by_a_new_type_is_refused_whoever_prepared_it() {
    let app = App::with(Options::default().servers(2)).await;
    for round in 0..20 {
        let name = format!("n{round}");
        let body = json!({"unique_within_window": {"key": "payload.k", "window": "1h"}});
        app.client(0).put(&format!("/v1/job-types/{name}"), &body, 201).await;
        let good = json!({"name": name, "payload": {"k": "a"}});
        let jobs = json!({"jobs": [good, {"name": "other"}, {"name": name}, {"name": name, "payload": {"k": null}}]});
        let refused = app.client(1).post("/v1/jobs/batch", &jobs, 422).await;
        refused.assert_problem(422, &["key_selector_failed"]);
        let errors = refused.at("/errors").as_array().unwrap();
        let errors: Vec<_> = errors.iter().map(|error| (&error["index"], &error["code"])).collect();
        let (failed, required) = (json!("key_selector_failed"), json!("uniqueness_required"));
        assert_eq!(errors, [(&json!(2), &failed), (&json!(3), &required)]);
        let receipt = app.client(1).post("/v1/jobs", &good, 201).await;
        assert_eq!(receipt.at("/window/key"), "a");
    }
    app.finish().await;
}

/// A change waits for the gate, and so does a dispatch. Whoever waited in vain leaves no connection behind on which the
/// next one fails.
#[tokio::test]
async fn a_gate_that_is_held_too_long_spoils_no_connection() {
    let app = App::start().await;
    let mut session = Session::open(&app).await;
    session.run(&format!("select pg_advisory_lock({GATE})")).await;
    let mut calls = JoinSet::new();
    for number in 0..6 {
        let client = app.client(0).clone();
        calls.spawn(async move {
            let body = json!({"queue": "q"});
            match number % 2 {
                0 => client.put("/v1/job-types/n", &body, 503).await,
                _ => client.post("/v1/jobs", &json!({"name": "n"}), 503).await,
            }
        });
    }
    for answer in calls.join_all().await {
        assert_eq!(answer.at("/outcome"), "none", "{}", answer.text);
    }
    session.run(&format!("select pg_advisory_unlock({GATE})")).await;
    for _ in 0..10 {
        app.put("/v1/job-types/n", &json!({"queue": "q"}), 200..=201).await;
        app.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    }
    app.finish().await;
}

#[tokio::test]
async fn types_belong_to_an_application() {
    let token = "bootstrap-0123456789abcdef";
    let app = App::with(Options::default().bootstrap_token(token)).await;
    let (ours, theirs) = (
        app.with_token(&app.token("shop", "prod", &["admin"]).await),
        app.with_token(&app.token("shop", "test", &["admin"]).await),
    );
    let body = json!({"unique_while_active": {"key": "payload.k"}});
    ours.put("/v1/job-types/n", &body, 201).await;
    theirs.get("/v1/job-types/n", 404).await;
    theirs.delete("/v1/job-types/n", 404).await;
    assert_eq!(theirs.get("/v1/job-types", 200).await.at("/job_types"), &json!([]));
    theirs.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    ours.post("/v1/jobs", &json!({"name": "n"}), 422).await;
    let listed = ours.get("/v1/job-types", 200).await;
    assert_eq!(listed.at("/job_types/0/name"), "n");
    app.finish().await;
}

/// A file for a test, gone with it.
struct File(std::path::PathBuf);

impl File {
    fn new(text: &str) -> File {
        let name = format!("solejob-types-{:016x}.toml", rand::random::<u64>());
        let file = File(std::env::temp_dir().join(name));
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        let head = "application = \"default\"\nenvironment = \"dev\"\n";
        std::fs::write(&self.0, format!("{head}{text}")).unwrap();
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[tokio::test]
async fn a_file_declares_types_at_each_start() {
    let file = File::new("[job_types.n]\nqueue = \"first\"\n[job_types.n.unique_while_active]\nkey = \"payload.k\"\n");
    let options = Options::default().arg("--job-types").arg(file.path());
    let mut app = App::with(options).await;
    let body = json!({"name": "n", "payload": {"k": "a"}});
    let receipt = app.post("/v1/jobs", &body, 201).await;
    assert_eq!(receipt.at("/active_key"), "a");
    app.post("/v1/jobs", &json!({"name": "n"}), 422).await;
    // What an operator declares holds until the next start.
    app.put("/v1/job-types/n", &json!({"queue": "second"}), 200).await;
    app.put("/v1/job-types/m", &json!({"queue": "other"}), 201).await;
    let updated = app.get("/v1/job-types/m", 200).await.str("/updated_at").to_owned();
    app.post("/v1/jobs", &json!({"name": "n"}), 201).await;
    app.replace_server(0).await;
    assert_eq!(app.get("/v1/job-types/n", 200).await.at("/queue"), "first");
    // A changed file is taken over; what it does not name stays.
    file.write("[job_types.n]\nqueue = \"third\"\n");
    app.replace_server(0).await;
    let kind = app.get("/v1/job-types/n", 200).await;
    assert_eq!(
        (kind.at("/queue"), kind.at("/unique_while_active")),
        (&json!("third"), &json!(null))
    );
    assert_eq!(app.get("/v1/job-types/m", 200).await.str("/updated_at"), updated);
    app.finish().await;
}

/// As large as that of a dispatch.
#[tokio::test]
async fn a_large_payload_can_be_evaluated() {
    let app = App::start().await;
    let declared = json!({"unique_while_active": {"key": "payload.k"}});
    app.put("/v1/job-types/n", &declared, 201).await;
    let body = |bytes: usize| json!({"payload": {"k": "x", "rest": "y".repeat(bytes)}});
    let keys = app.post("/v1/job-types/n/evaluate", &body(1_000_000), 200).await;
    assert_eq!(keys.at("/active_key"), "x");
    let refused = app.post("/v1/job-types/n/evaluate", &body(2_000_000), 413).await;
    refused.assert_problem(413, &["payload_too_large"]);
    app.finish().await;
}

#[tokio::test]
async fn a_bad_file_stops_the_start() {
    let app = App::start().await;
    let file = File::new("\n[job_types.n]\nqueue = \"no name\"\n");
    for (path, said) in [
        (file.path(), "line 5: n/queue: "),
        ("/nowhere/types.toml", "cannot be read"),
    ] {
        let mut command = solejob(app.database_url());
        command.args(["serve", "--anonymous", "--listen", "127.0.0.1:0", "--job-types", path]);
        let output = tokio::task::spawn_blocking(move || command.output());
        let output = output.await.unwrap().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{text}");
        assert!(text.contains(path) && text.contains(said), "{text}");
    }
    app.get("/v1/job-types/n", 404).await;
    app.finish().await;
}

/// To be looked at, not asserted: a busy machine makes any bound wrong.
#[test]
fn the_cost_of_a_selector_beside_a_walk_over_the_payload() {
    let definition = Definition {
        unique_while_active: Some(ActiveDefinition {
            key: "'tenant:' + string(payload.tenant_id)".into(),
        }),
        ..Definition::default()
    };
    let kind = JobType::compile("n", &definition).unwrap();
    for items in [0, 1_000, 20_000] {
        let items = vec![r#"{"sku": "0123456789", "count": 2}"#; items].join(",");
        for payload in [
            format!(r#"{{"tenant_id": 7, "items": [{items}]}}"#),
            format!(r#"{{"items": [{items}], "tenant_id": 7}}"#),
        ] {
            let input = Input {
                payload: &payload,
                metadata: &[],
                name: "n",
                queue: "default",
            };
            let began = Instant::now();
            for _ in 0..20 {
                assert_eq!(kind.keys(&input).unwrap().active.unwrap().as_str(), "tenant:7");
            }
            let evaluated = Instant::now();
            for _ in 0..20 {
                solejob::json::check(payload.as_bytes(), 128).unwrap();
            }
            println!(
                "{} bytes, member {}: {:?} an evaluation, {:?} a check of the text",
                payload.len(),
                if payload.starts_with("{\"t") { "first" } else { "last" },
                (evaluated - began) / 20,
                evaluated.elapsed() / 20
            );
        }
    }
}
