//! A batch is the same as its items one after another: random histories of both, against the model.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use serde_json::{Value, json};

use super::model::{Item, Model, Outcome, State};
use crate::support::{Answer, App};

#[derive(Clone, Debug)]
enum Step {
    Dispatch(Item),
    Batch {
        items: Vec<Item>,
        continue_on_conflict: bool,
    },
    Cancel(prop::sample::Index),
    Delete(prop::sample::Index),
    Expire {
        name: u8,
        key: u8,
    },
    Reset {
        name: u8,
        key: u8,
    },
}

fn item() -> impl Strategy<Value = Item> {
    let keys = (0..2u8, prop::option::of(0..3u8), prop::option::weighted(0.7, 0..3u8));
    let request = (
        prop::option::weighted(0.2, 0..2u8),
        prop::option::weighted(0.1, Just(0u8)),
    );
    let policy = prop::option::weighted(0.2, prop_oneof![Just(3u32), Just(10)]);
    let rules = (prop::bool::weighted(0.2), prop::bool::weighted(0.3));
    (keys, request, policy, rules).prop_map(|(keys, request, max_attempts, rules)| Item {
        name: keys.0,
        active: keys.1,
        window: keys.2,
        payload: request.0,
        priority: request.1,
        max_attempts,
        reuse_on_mismatch: rules.0,
        release_on_cancelled: rules.1,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let batch = (prop::collection::vec(item(), 1..8), any::<bool>());
    prop_oneof![
        4 => item().prop_map(Step::Dispatch),
        6 => batch.prop_map(|(items, continue_on_conflict)| Step::Batch { items, continue_on_conflict }),
        2 => any::<prop::sample::Index>().prop_map(Step::Cancel),
        1 => any::<prop::sample::Index>().prop_map(Step::Delete),
        1 => (0..2u8, 0..3u8).prop_map(|(name, key)| Step::Expire { name, key }),
        1 => (0..2u8, 0..3u8).prop_map(|(name, key)| Step::Reset { name, key }),
    ]
}

/// More cases than these few with PROPTEST_CASES.
#[test]
fn a_batch_is_its_items_one_after_another() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let app = runtime.block_on(App::start());
    let cases = Config::default()
        .cases
        .min(if std::env::var_os("PROPTEST_CASES").is_some() {
            u32::MAX
        } else {
            64
        });
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    });
    let outcome = runner.run(&prop::collection::vec(step(), 1..16), |steps| {
        runtime.block_on(history(&app, &steps))
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    runtime.block_on(app.finish());
}

/// What the model's numbers are called on the server.
struct Ids {
    run: u32,
    jobs: HashMap<usize, String>,
}

impl Ids {
    fn name(&self, name: u8) -> String {
        format!("run-{}-{name}", self.run)
    }

    fn job(&self, job: usize) -> Value {
        self.jobs.get(&job).map_or(Value::Null, |id| json!(id))
    }

    /// The item as a request. What is not set is left out.
    fn body(&self, item: &Item) -> Value {
        let mut uniqueness = json!({});
        if let Some(key) = item.active {
            uniqueness["active_key"] = json!(format!("a{key}"));
        }
        if let Some(key) = item.window {
            uniqueness["window_key"] = json!(format!("w{key}"));
            uniqueness["window"] = json!("1h");
            uniqueness["release_on"] = if item.release_on_cancelled {
                json!(["cancelled"])
            } else {
                json!([])
            };
            uniqueness["on_mismatch"] = json!(if item.reuse_on_mismatch { "reuse" } else { "conflict" });
        }
        let mut body = json!({"name": self.name(item.name), "uniqueness": uniqueness});
        if let Some(payload) = item.payload {
            body["payload"] = json!({"n": payload});
        }
        if let Some(priority) = item.priority {
            body["priority"] = json!(priority);
        }
        if let Some(attempts) = item.max_attempts {
            body["retry"] = json!({"max_attempts": attempts});
        }
        body
    }
}

async fn history(app: &App, steps: &[Step]) -> Result<(), TestCaseError> {
    static RUN: AtomicU32 = AtomicU32::new(0);
    let mut ids = Ids {
        run: RUN.fetch_add(1, Ordering::Relaxed),
        jobs: HashMap::new(),
    };
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Dispatch(item) => {
                let outcome = model.dispatch(item);
                let answer = app.post("/v1/jobs", &ids.body(item), [200, 201, 409]).await;
                check_dispatch(&mut ids, &model, &outcome, &answer)?;
            }
            Step::Batch {
                items,
                continue_on_conflict,
            } => {
                let stored = model.jobs.len();
                let outcomes = model.batch(items, *continue_on_conflict);
                let bodies = items.iter().map(|item| ids.body(item)).collect::<Vec<_>>();
                let body = json!({"jobs": bodies, "continue_on_conflict": continue_on_conflict});
                let answer = app.post("/v1/jobs/batch", &body, [200, 409]).await;
                if !continue_on_conflict && outcomes.iter().any(Outcome::is_conflict) {
                    check_failed_batch(&ids, stored, &outcomes, &answer)?;
                } else {
                    check_batch(&mut ids, &model, &outcomes, &answer)?;
                }
            }
            Step::Cancel(_) | Step::Delete(_) if model.jobs.is_empty() => {}
            Step::Cancel(which) => {
                let job = which.index(model.jobs.len());
                let status = match model.jobs[job].state {
                    State::Pending | State::Cancelled => 200,
                    State::Deleted => 404,
                };
                app.post(&format!("/v1/jobs/{}/cancel", ids.jobs[&job]), &json!({}), status)
                    .await;
                model.cancel(job);
            }
            Step::Delete(which) => {
                let job = which.index(model.jobs.len());
                let status = match model.jobs[job].state {
                    State::Pending => [409, 409],
                    State::Cancelled => [200, 204],
                    State::Deleted => [404, 404],
                };
                app.delete(&format!("/v1/jobs/{}", ids.jobs[&job]), status).await;
                if model.jobs[job].state == State::Cancelled {
                    model.jobs[job].state = State::Deleted;
                }
            }
            Step::Expire { name, key } => {
                if model.windows.remove(&(*name, *key)).is_some() {
                    app.expire_window(&ids.name(*name), &format!("w{key}")).await;
                }
            }
            Step::Reset { name, key } => {
                let held = model.windows.remove(&(*name, *key));
                let body = json!({"name": ids.name(*name), "window_key": format!("w{key}")});
                let answer = app.post("/v1/keys/reset", &body, 200).await;
                prop_assert_eq!(answer.at("/released"), &json!(held.is_some()));
                prop_assert_eq!(
                    answer.at("/job_id"),
                    &held.map_or(Value::Null, |held| ids.job(held.job))
                );
            }
        }
    }
    check_keys(app, &ids, &model).await
}

fn check_dispatch(ids: &mut Ids, model: &Model, outcome: &Outcome, answer: &Answer) -> Result<(), TestCaseError> {
    let body = answer.at("");
    if outcome.is_conflict() {
        prop_assert_eq!(answer.status, 409, "{:?}: {}", outcome, body);
        return check_problem(ids, usize::MAX, &[], outcome, body);
    }
    let status = if matches!(outcome, Outcome::Created { .. }) {
        201
    } else {
        200
    };
    prop_assert_eq!(answer.status, status, "{:?}: {}", outcome, body);
    check_receipt(ids, model, outcome, body)
}

fn check_batch(ids: &mut Ids, model: &Model, outcomes: &[Outcome], answer: &Answer) -> Result<(), TestCaseError> {
    prop_assert_eq!(answer.status, 200, "{:?}: {}", outcomes, answer.text);
    prop_assert_eq!(answer.at("/results").as_array().map(Vec::len), Some(outcomes.len()));
    for (index, outcome) in outcomes.iter().enumerate() {
        let result = answer.at(&format!("/results/{index}"));
        prop_assert_eq!(&result["index"], &json!(index));
        if outcome.is_conflict() {
            prop_assert!(
                result.get("receipt").is_none_or(Value::is_null),
                "{:?}: {}",
                outcome,
                result
            );
            check_problem(ids, usize::MAX, &[], outcome, &result["error"])?;
        } else {
            prop_assert!(
                result.get("error").is_none_or(Value::is_null),
                "{:?}: {}",
                outcome,
                result
            );
            check_receipt(ids, model, outcome, &result["receipt"])?;
        }
    }
    let count = |kind: fn(&Outcome) -> bool| json!(outcomes.iter().filter(|outcome| kind(outcome)).count());
    prop_assert_eq!(
        answer.at("/created"),
        &count(|outcome| matches!(outcome, Outcome::Created { .. }))
    );
    prop_assert_eq!(
        answer.at("/reused"),
        &count(|outcome| matches!(outcome, Outcome::Reused { .. }))
    );
    prop_assert_eq!(answer.at("/conflicts"), &count(Outcome::is_conflict));
    Ok(())
}

/// The problem of the first conflict, which may name jobs only if they were stored before the batch.
fn check_failed_batch(ids: &Ids, stored: usize, outcomes: &[Outcome], answer: &Answer) -> Result<(), TestCaseError> {
    let (conflict, before) = outcomes.split_last().expect("a conflict");
    prop_assert_eq!(answer.status, 409, "{:?}: {}", outcomes, answer.text);
    prop_assert_eq!(answer.at("/index"), &json!(before.len()), "{}", answer.text);
    check_problem(ids, stored, before, conflict, answer.at(""))
}

fn check_receipt(ids: &mut Ids, model: &Model, outcome: &Outcome, got: &Value) -> Result<(), TestCaseError> {
    if let Outcome::Created { job } = outcome {
        let id = got["job_id"].as_str().expect("a receipt names its job").to_owned();
        prop_assert!(!ids.jobs.values().any(|known| *known == id), "{} is not new", id);
        ids.jobs.insert(*job, id);
    }
    let none = Vec::new();
    let (job, matched, differs, drift, linked) = match outcome {
        Outcome::Created { job } => (job, Value::Null, &none, false, false),
        Outcome::Reused {
            job,
            matched,
            differs,
            drift,
            linked,
        } => (job, json!(matched), differs, *drift, *linked),
        Outcome::Conflict { .. } | Outcome::Composition { .. } => unreachable!("conflicts have no receipt"),
    };
    let disposition = if matched.is_null() { "created" } else { "reused" };
    prop_assert_eq!(&got["disposition"], disposition, "{:?}: {}", outcome, got);
    prop_assert_eq!(&got["duplicate_match"], &matched, "{:?}: {}", outcome, got);
    prop_assert_eq!(&got["job_id"], &ids.job(*job), "{:?}: {}", outcome, got);
    prop_assert_eq!(&got["policy_drift"], &json!(drift), "{:?}: {}", outcome, got);
    let drift = if drift {
        json!(["retry.max_attempts"])
    } else {
        json!([])
    };
    prop_assert_eq!(&got["drift"], &drift, "{:?}: {}", outcome, got);
    if differs.is_empty() {
        prop_assert!(
            got.get("request_mismatch").is_none_or(|mismatch| mismatch != true),
            "{:?}: {}",
            outcome,
            got
        );
    } else {
        prop_assert_eq!(&got["request_mismatch"], &json!(true), "{:?}: {}", outcome, got);
        prop_assert_eq!(sorted(&got["differs"]), differs.clone(), "{:?}: {}", outcome, got);
    }
    if !got["window"].is_null() {
        prop_assert_eq!(&got["window"]["linked"], &json!(linked), "{:?}: {}", outcome, got);
    }
    let stored = &model.jobs[*job];
    prop_assert_eq!(
        &got["active_key"],
        &stored.active.map_or(Value::Null, |key| json!(format!("a{key}")))
    );
    // The model is a batch ahead, but no item changes the state of a job.
    let state = match stored.state {
        State::Pending => json!("pending"),
        State::Cancelled => json!("cancelled"),
        State::Deleted => Value::Null,
    };
    prop_assert_eq!(&got["state"], &state, "{:?}: {}", outcome, got);
    prop_assert_eq!(
        &got["job_available"],
        &json!(stored.state != State::Deleted),
        "{:?}: {}",
        outcome,
        got
    );
    Ok(())
}

fn check_problem(
    ids: &Ids,
    stored: usize,
    before: &[Outcome],
    outcome: &Outcome,
    got: &Value,
) -> Result<(), TestCaseError> {
    let (code, named) = match outcome {
        Outcome::Conflict { job, differs } => {
            prop_assert_eq!(sorted(&got["differs"]), differs.clone(), "{:?}: {}", outcome, got);
            ("uniqueness_conflict", vec![("conflicting", *job)])
        }
        Outcome::Composition { window, active } => (
            "uniqueness_composition_conflict",
            vec![("window", *window), ("active", *active)],
        ),
        Outcome::Created { .. } | Outcome::Reused { .. } => unreachable!("no problem"),
    };
    prop_assert_eq!(&got["code"], code, "{:?}: {}", outcome, got);
    prop_assert_eq!(&got["status"], &json!(409));
    for (role, job) in named {
        let (id, index) = (&got[format!("{role}_job_id")], &got[format!("{role}_index")]);
        if job < stored {
            prop_assert_eq!(id, &ids.job(job), "{:?}: {}", outcome, got);
            prop_assert!(index.is_null(), "{:?}: {}", outcome, got);
        } else {
            let creator = before.iter().position(|earlier| *earlier == Outcome::Created { job });
            prop_assert!(id.is_null(), "a job that was not stored is named: {}", got);
            prop_assert_eq!(index, &json!(creator), "{:?}: {}", outcome, got);
        }
    }
    Ok(())
}

/// At the end every key is held by whom the model says.
async fn check_keys(app: &App, ids: &Ids, model: &Model) -> Result<(), TestCaseError> {
    for name in 0..2 {
        for key in 0..3 {
            let window = model.windows.get(&(name, key)).map(|held| held.job);
            for (kind, holder) in [("active", model.holder(name, key)), ("window", window)] {
                let initial = &kind[..1];
                let path = format!("/v1/keys?name={}&{kind}_key={initial}{key}", ids.name(name));
                let answer = app.get(&path, 200).await;
                prop_assert_eq!(
                    answer.at("/held"),
                    &json!(holder.is_some()),
                    "{}: {}",
                    path,
                    answer.text
                );
                let job = holder.map_or(Value::Null, |job| ids.job(job));
                prop_assert_eq!(answer.at("/job_id"), &job, "{}: {}", path, answer.text);
            }
        }
    }
    Ok(())
}

fn sorted(list: &Value) -> Vec<&str> {
    let mut texts: Vec<_> = list
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    texts.sort_unstable();
    texts
}
