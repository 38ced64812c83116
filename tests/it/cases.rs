//! The black-box cases of `tests/cases/*.json`, run over HTTP alone.
//!
//! A file holds a list of cases `{"name", "why", "steps"}`. A step is one of
//!
//! ```text
//! {"get"|"post"|"put"|"delete": PATH, "json": BODY | "raw": TEXT | "raw_hex": HEX, "headers": {…},
//!  "expect": {"status": 201 | [200, 201], "headers": {…}, "json": PATTERN},
//!  "save": {"name": "/json/pointer", …}, "within_ms": N, "at_least_ms": N}
//! {"parallel": [STEP, …]} or {"parallel": N, "step": STEP}, with
//!  "count": [{"pointer": "/disposition", "value": "created", "is": 1}, …], "same": ["/job_id", …]
//! {"eventually_ms": N, "step": STEP}
//! {"sleep_ms": N}
//! ```
//!
//! `${x}` is a saved value, `${run}` is new for each case, `${x:N}` is the text x N times. A pattern is
//! matched member by member, item by item, and may hold the tests `$any`, `$absent`, `$not`, `$in`,
//! `$re`, `$len`, `$type` and `$raw` (the answer holds this text to the letter).

mod fill;
mod pattern;
mod self_test;
mod steps;

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::fill::Names;
use self::steps::run_step;
use crate::support::{App, Client};

const AT_ONCE: usize = 8;

macro_rules! case_files {
    ($($test:ident: $file:literal, $count:literal;)*) => {
        $(
            #[tokio::test]
            async fn $test() {
                run_file($file, $count).await;
            }
        )*

        /// A case file that nobody runs would be worse than none.
        #[test]
        fn every_file_has_its_test() {
            let run = [$($file),*];
            for file in std::fs::read_dir(folder()).unwrap() {
                let name = file.unwrap().file_name().into_string().unwrap();
                let name = name.strip_suffix(".json").unwrap();
                assert!(run.contains(&name), "tests/cases/{name}.json has no test");
            }
        }
    };
}

// Each with the number of its cases that must run by now.
case_files! {
    active_keys: "active-keys", 11;
    batch_details: "batch-details", 17;
    batches: "batches", 10;
    both_keys: "both-keys", 9;
    bounds: "bounds", 54;
    cancel_and_delete: "cancel-and-delete", 7;
    fingerprint: "fingerprint", 17;
    http: "http", 20;
    idempotency_keys: "idempotency-keys", 18;
    job_life: "job-life", 21;
    job_type_details: "job-type-details", 18;
    job_types: "job-types", 14;
    key_look_up: "key-look-up", 16;
    key_rules: "key-rules", 15;
    lists: "lists", 7;
    optional_members: "optional-members", 12;
    pointers: "pointers", 33;
    prefer_wait: "prefer-wait", 2;
    preview: "preview", 8;
    release_by_work: "release-by-work", 6;
    release_on: "release-on", 8;
    resource_keys: "resource-keys", 4;
    resource_scopes: "resource-scopes", 12;
    retention: "retention", 2;
    retry_by_hand: "retry-by-hand", 6;
    window_details: "window-details", 18;
    window_keys: "window-keys", 37;
    worker_rules: "worker-rules", 17;
}

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

fn load(file: &str) -> Vec<Value> {
    let path = folder().join(format!("{file}.json"));
    let text = std::fs::read_to_string(&path).expect("the file of the cases");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

async fn run_file(file: &str, count: usize) {
    let cases = load(file);
    assert_eq!(
        cases.len(),
        count,
        "{file} has another number of cases to run than is written here"
    );
    let app = App::start().await;
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut runs = JoinSet::new();
    for case in cases {
        let (client, room) = (app.client(0).clone(), room.clone());
        runs.spawn(async move {
            let _turn = room.acquire_owned().await;
            (run_case(&client, &case).await, case)
        });
    }
    let mut failures = Vec::new();
    for (outcome, case) in runs.join_all().await {
        let Err(failure) = outcome else { continue };
        // A case that sleeps means instants: on a machine with too much to do they pass late. It gets a second
        // chance, alone; any other has failed.
        let again = if case.to_string().contains("\"sleep_ms\"") {
            run_case(app.client(0), &case).await
        } else {
            Err(failure)
        };
        failures.extend(again.err());
    }
    assert!(
        failures.is_empty(),
        "{} of {count} cases of {file} failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
    app.finish().await;
}

async fn run_case(client: &Client, case: &Value) -> Result<(), String> {
    let mut names = Names::from([("run".to_owned(), json!(format!("{:012x}", rand::random::<u64>() >> 16)))]);
    let name = case["name"].as_str().ok_or("a case has a name")?;
    let steps = case["steps"].as_array().filter(|steps| !steps.is_empty());
    for (number, step) in steps
        .ok_or_else(|| format!("{name}: a case has steps"))?
        .iter()
        .enumerate()
    {
        let outcome = run_step(client, step, &mut names).await;
        outcome.map_err(|error| format!("FAIL {name}\n   step {}: {error}", number + 1))?;
    }
    Ok(())
}
