//! Clients: they carry out a plan over HTTP and write down what they asked and what they heard.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::answers::uuid;
use crate::clock::Clock;
use crate::dump::{WINDOW_KEYS, name_of};
use crate::intruder;
use crate::model::BACKOFF_MS;
use crate::plan::{Ask, Hearing, Intent, Planned};
use crate::record::{Call, History, NEVER, Op, Outcome, Record};
use crate::stage::{Door, Stage};

/// After this long a client takes its request for lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// The client that works off what is left.
pub(crate) const DRAIN: usize = 99;

#[derive(Default)]
struct Known {
    jobs: Vec<Uuid>,
    /// Every lease that was heard of, newest last, over or not.
    leases: Vec<(Uuid, Uuid)>,
}

/// Some keys and a queue that nobody else uses, and all that was done to them.
pub(crate) struct Group {
    pub(crate) number: u64,
    name: String,
    stage: Arc<Stage>,
    clock: Clock,
    /// The job within which some window keys are held.
    parent: Uuid,
    known: Mutex<Known>,
    next: AtomicU32,
    records: Mutex<Vec<Record>>,
}

impl Group {
    pub(crate) async fn open(stage: &Arc<Stage>, clock: Clock, number: u64) -> Arc<Group> {
        let parent = parent(stage, number).await;
        Arc::new(Group {
            number,
            name: name_of(number),
            stage: stage.clone(),
            clock,
            parent,
            known: Mutex::default(),
            next: AtomicU32::new(1),
            records: Mutex::default(),
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn history(&self) -> History {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner).clone();
        records.sort_by_key(|record| record.called);
        History {
            group: self.number,
            records,
        }
    }

    pub(crate) async fn follow(&self, client: usize, plan: &[Planned]) {
        for planned in plan {
            tokio::time::sleep(Duration::from_millis(planned.pause_ms)).await;
            let mut op = self.choose(&planned.intent, planned.pick);
            let mut hearing = planned.hearing;
            for attempt in 0..3 {
                let server = (planned.server + attempt) as usize % self.stage.count();
                let outcome = self.send(client, server, &mut op, hearing).await;
                if !planned.again || !matches!(outcome, Outcome::Unknown(_)) {
                    break;
                }
                hearing = Hearing::Whole;
            }
        }
    }

    /// What is meant, done to something that there is.
    fn choose(&self, intent: &Intent, pick: u64) -> Op {
        let known = self.known();
        // The newest ones, mostly: what happens to a job happens soon.
        let nearest = |length: usize| length.checked_sub(1).map(|last| last - (pick as usize % 4).min(last));
        let job = nearest(known.jobs.len()).map(|place| known.jobs[place]);
        // Any of them: the older ones have finished, more likely.
        let any = known.jobs.len().max(1);
        let finished = known.jobs.get((pick >> 8) as usize % any).copied();
        let lease = nearest(known.leases.len()).map(|place| known.leases[place]);
        let reserve = Op::Reserve {
            max: 2,
            lease_ms: 1_200,
            reserve_id: None,
        };
        let call = |call: Call| match lease {
            Some((job, token)) => Op::Call { job, token, call },
            None => reserve.clone(),
        };
        match intent {
            Intent::Dispatch(ask) => Op::Dispatch(ask.clone()),
            Intent::Preview(ask) => Op::Preview(ask.clone()),
            Intent::Batch { items, go_on } => Op::Batch {
                items: items.clone(),
                go_on: *go_on,
            },
            Intent::Reserve { max, lease_ms, with_id } => Op::Reserve {
                max: *max,
                lease_ms: i64::from(*lease_ms),
                reserve_id: with_id.then(|| format!("{}-{pick:x}", self.name)),
            },
            Intent::Start => call(Call::Start),
            Intent::Heartbeat { lease_ms } => call(Call::Heartbeat {
                lease_ms: i64::from(*lease_ms),
            }),
            Intent::Succeed => call(Call::Succeed),
            Intent::Fail { retry, retry_in_ms } => call(Call::Fail {
                retry: *retry,
                retry_in_ms: retry_in_ms.map(i64::from),
            }),
            Intent::Release => call(Call::Release),
            Intent::Finish { outcomes } => {
                let leases = known.leases.iter().rev().zip(outcomes);
                let calls: Vec<_> = leases
                    .map(|((job, token), outcome)| {
                        let call = match outcome {
                            0 => Call::Succeed,
                            1 => Call::Release,
                            _ => Call::Fail {
                                retry: true,
                                retry_in_ms: None,
                            },
                        };
                        (*job, *token, call)
                    })
                    .collect();
                if calls.is_empty() { reserve } else { Op::Finish(calls) }
            }
            Intent::Reset { slot, of_job } => Op::Reset {
                slot: *slot,
                job: job.filter(|_| *of_job),
            },
            Intent::ReadKey { slot, active } if *active => Op::ReadActive { key: slot % 2 },
            Intent::ReadKey { slot, .. } => Op::ReadWindow { slot: *slot },
            Intent::Cancel { .. } | Intent::Retry | Intent::Delete | Intent::ReadJob | Intent::Intrude => {
                let ends = matches!(intent, Intent::Retry | Intent::Delete | Intent::Intrude);
                let Some(job) = (if ends { finished } else { job }) else {
                    return reserve;
                };
                match intent {
                    Intent::Cancel { force } => Op::Cancel { job, force: *force },
                    Intent::Retry => Op::Retry { job },
                    Intent::Delete => Op::Delete { job },
                    Intent::Intrude if self.stage.is_intruded_upon() => Op::Intrude { job },
                    _ => Op::ReadJob { job },
                }
            }
        }
    }

    /// Carries out one request and writes it down.
    pub(crate) async fn send(&self, client: usize, server: usize, op: &mut Op, hearing: Hearing) -> Outcome {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // A repeated dispatch is the same request, and yet its jobs are told apart.
        let mark = |ask: &mut Ask, item: usize| ask.marker = number * 8 + item as u32;
        match op {
            Op::Dispatch(ask) | Op::Preview(ask) => mark(ask, 0),
            Op::Batch { items, .. } => items.iter_mut().enumerate().for_each(|(item, ask)| mark(ask, item)),
            _ => {}
        }
        let called = self.clock.now();
        let outcome = if let Op::Intrude { job } = op {
            match intruder::run_again(&self.stage.pool, *job).await {
                Some(outcome) => outcome,
                None => return Outcome::Nothing("there was nothing to write".into()),
            }
        } else {
            match self.stage.door(server) {
                Some(door) => self.ask(&door, op, number, hearing).await,
                None => return Outcome::Nothing("the server is not there".into()),
            }
        };
        let returned = self.clock.now();
        let outcome = match hearing {
            Hearing::Lost if matches!(outcome, Outcome::Answered { .. }) => {
                self.stage.count_lost_answer();
                Outcome::Unknown("the answer was lost".into())
            }
            _ => outcome,
        };
        self.learn(&outcome);
        let unknown = matches!(outcome, Outcome::Unknown(_));
        self.records
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Record {
                number,
                client,
                server,
                op: op.clone(),
                called,
                returned: if unknown { NEVER } else { returned },
                outcome: outcome.clone(),
            });
        outcome
    }

    async fn ask(&self, door: &Door, op: &Op, number: u32, hearing: Hearing) -> Outcome {
        let (method, path, body) = self.request(op, number);
        let mut request = door.http.request(method, format!("{}{path}", door.base));
        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body.to_string());
        }
        let answer = async {
            let answer = request.send().await?;
            let status = answer.status().as_u16();
            Ok::<_, reqwest::Error>((status, answer.bytes().await?))
        };
        let patience = match hearing {
            Hearing::HangUp { millis } => Duration::from_millis(millis),
            Hearing::Whole | Hearing::Lost => PATIENCE,
        };
        match tokio::time::timeout(patience, answer).await {
            Ok(Ok((status, bytes))) => heard(status, &bytes),
            Ok(Err(error)) if error.is_connect() => Outcome::Nothing("the connection was refused".into()),
            Ok(Err(error)) => Outcome::Unknown(error.to_string()),
            Err(_) => {
                if matches!(hearing, Hearing::HangUp { .. }) {
                    self.stage.count_hang_up();
                }
                Outcome::Unknown("the client hung up".into())
            }
        }
    }

    fn learn(&self, outcome: &Outcome) {
        let Outcome::Answered {
            status: 200..=299,
            body,
        } = outcome
        else {
            return;
        };
        let mut known = self.known();
        let leased = body["jobs"].as_array().into_iter().flatten();
        for job in leased {
            if let (Ok(id), Ok(token)) = (uuid(&job["job_id"]), uuid(&job["lease"]["token"])) {
                known.leases.push((id, token));
            }
        }
        let results = body["results"].as_array().into_iter().flatten();
        let receipts = results.map(|result| &result["receipt"]).chain([body]);
        for receipt in receipts {
            if receipt["disposition"] == "created"
                && let Ok(id) = uuid(&receipt["job_id"])
            {
                known.jobs.push(id);
            }
        }
    }

    fn request(&self, op: &Op, number: u32) -> (reqwest::Method, String, Option<Value>) {
        use reqwest::Method;
        let post = |path: &str, body: Value| (Method::POST, path.to_owned(), Some(body));
        match op {
            Op::Dispatch(ask) => post("/v1/jobs", self.dispatch(ask)),
            Op::Preview(ask) => post("/v1/jobs/preview", self.dispatch(ask)),
            Op::Batch { items, go_on } => {
                let jobs: Vec<Value> = items.iter().map(|ask| self.dispatch(ask)).collect();
                post("/v1/jobs/batch", json!({"jobs": jobs, "continue_on_conflict": go_on}))
            }
            Op::Reserve {
                max,
                lease_ms,
                reserve_id,
            } => {
                let worker = History::label(self.number, number);
                let lease = format!("{lease_ms}ms");
                let mut body = json!({"queues": [self.name], "max_jobs": max, "lease": lease, "worker": worker});
                if let Some(id) = reserve_id {
                    body["reserve_id"] = json!(id);
                }
                post("/v1/worker/reserve", body)
            }
            Op::Call { job, token, call } => {
                let (verb, mut body) = call_body(*call);
                body["lease_token"] = json!(token);
                post(&format!("/v1/worker/{job}/{verb}"), body)
            }
            Op::Finish(calls) => {
                let item = |(job, token, call): &(Uuid, Uuid, Call)| {
                    let (verb, mut body) = call_body(*call);
                    body["job_id"] = json!(job);
                    body["lease_token"] = json!(token);
                    body["outcome"] = json!(verb);
                    body
                };
                let jobs: Vec<Value> = calls.iter().map(item).collect();
                post("/v1/worker/finish", json!({"jobs": jobs}))
            }
            Op::Cancel { job, force } => post(&format!("/v1/jobs/{job}/cancel"), json!({"force": force})),
            Op::Retry { job } | Op::Intrude { job } => post(&format!("/v1/jobs/{job}/retry"), json!({})),
            Op::Reset { slot, job } => {
                let mut body = json!({"name": self.name});
                let (spelling, scope) = spelling(*slot);
                body[spelling] = json!(WINDOW_KEYS[usize::from(*slot)]);
                if let Some(scope) = scope {
                    body["scope"] = json!(scope);
                    body["parent"] = self.parent(*slot);
                }
                if let Some(job) = job {
                    body["job_id"] = json!(job);
                }
                post("/v1/keys/reset", body)
            }
            Op::Delete { job } => (Method::DELETE, format!("/v1/jobs/{job}"), None),
            Op::ReadJob { job } => (Method::GET, format!("/v1/jobs/{job}"), None),
            Op::ReadActive { key } => {
                let path = format!("/v1/keys?name={}&active_key=a{key}", self.name);
                (Method::GET, path, None)
            }
            Op::ReadWindow { slot } => {
                let (spelling, scope) = spelling(*slot);
                let key = WINDOW_KEYS[usize::from(*slot)];
                let mut path = format!("/v1/keys?name={}&{spelling}={key}", self.name);
                if let Some(scope) = scope {
                    path.push_str(&format!("&scope={scope}&parent_job_id={}", self.parent));
                    if scope == "attempt" {
                        path.push_str("&parent_attempt=1");
                    }
                }
                (Method::GET, path, None)
            }
        }
    }

    fn parent(&self, slot: u8) -> Value {
        if spelling(slot).1 == Some("attempt") {
            json!({"job_id": self.parent, "attempt": 1})
        } else {
            json!({"job_id": self.parent})
        }
    }

    fn dispatch(&self, ask: &Ask) -> Value {
        let mut uniqueness = json!({});
        if let Some(active) = ask.active {
            uniqueness["active_key"] = json!(format!("a{active}"));
        }
        let mut body = json!({
            "name": self.name, "queue": self.name, "payload": {"p": ask.payload},
            "retention": format!("{}ms", ask.retention_ms()),
            "retry": {"max_attempts": ask.max_attempts, "backoff": "fixed",
                "initial": format!("{BACKOFF_MS}ms"), "jitter": false},
        });
        if let Some(slot) = ask.slot {
            let (key, window) = (WINDOW_KEYS[usize::from(slot)], format!("{}ms", ask.window_ms()));
            match spelling(slot) {
                ("window_key", _) => {
                    uniqueness["window_key"] = json!(key);
                    uniqueness["window"] = json!(window);
                }
                (_, scope) => {
                    body["idempotency_key"] = json!(key);
                    body["idempotency_key_ttl"] = json!(window);
                    if let Some(scope) = scope {
                        body["idempotency_key_scope"] = json!(scope);
                        body["parent"] = self.parent(slot);
                    }
                }
            }
            let ends = [(1, "succeeded"), (2, "failed"), (4, "cancelled")];
            let ends = ends
                .iter()
                .filter(|(bit, _)| ask.release_on & bit != 0)
                .map(|(_, end)| *end);
            uniqueness["release_on"] = json!(ends.collect::<Vec<_>>());
            if ask.reuse_on_mismatch {
                uniqueness["on_mismatch"] = json!("reuse");
            }
        }
        if uniqueness != json!({}) {
            body["uniqueness"] = uniqueness;
        }
        if let Some(delay) = ask.delay_ms {
            body["delay"] = json!(format!("{delay}ms"));
        }
        if let Some(timeout) = ask.timeout_ms {
            body["timeout"] = json!(format!("{timeout}ms"));
        }
        body
    }

    /// Works off what is left, as a worker does that never fails. Whether nothing was left to do.
    pub(crate) async fn drain(&self) -> bool {
        let mut reserve = Op::Reserve {
            max: 10,
            lease_ms: 5_000,
            reserve_id: None,
        };
        let server = self.number as usize % self.stage.count();
        let outcome = self.send(DRAIN, server, &mut reserve, Hearing::Whole).await;
        let Outcome::Answered { status: 200, body } = outcome else {
            return false;
        };
        let jobs = body["jobs"].as_array().cloned().unwrap_or_default();
        for job in &jobs {
            if let (Ok(job), Ok(token)) = (uuid(&job["job_id"]), uuid(&job["lease"]["token"])) {
                let call = Call::Succeed;
                let mut succeed = Op::Call { job, token, call };
                self.send(DRAIN, server, &mut succeed, Hearing::Whole).await;
            }
        }
        jobs.is_empty()
    }
}

/// How a window key is written, and its scope.
fn spelling(slot: u8) -> (&'static str, Option<&'static str>) {
    match slot {
        0 => ("window_key", None),
        1 => ("idempotency_key", None),
        2 => ("idempotency_key", Some("run")),
        _ => ("idempotency_key", Some("attempt")),
    }
}

fn call_body(call: Call) -> (&'static str, Value) {
    match call {
        Call::Start => ("start", json!({})),
        Call::Heartbeat { lease_ms } => ("heartbeat", json!({"lease": format!("{lease_ms}ms")})),
        Call::Succeed => ("succeed", json!({})),
        Call::Fail { retry, retry_in_ms } => {
            let mut body = json!({"retry": retry});
            if let Some(millis) = retry_in_ms {
                body["retry_in"] = json!(format!("{millis}ms"));
            }
            ("fail", body)
        }
        Call::Release => ("release", json!({})),
    }
}

fn heard(status: u16, bytes: &[u8]) -> Outcome {
    let body: Value = serde_json::from_slice(bytes).unwrap_or(Value::Null);
    match (status, body["outcome"].as_str()) {
        (429 | 503, Some("none")) => Outcome::Nothing(body["code"].to_string()),
        (429 | 503, Some("unknown")) => Outcome::Unknown(body["code"].to_string()),
        _ => Outcome::Answered { status, body },
    }
}

/// A job for keys to be held within. It stays pending for good.
async fn parent(stage: &Stage, group: u64) -> Uuid {
    let body = json!({"name": "parents", "queue": "parents",
        "uniqueness": {"window_key": format!("g{group}"), "window": "1h"}});
    for attempt in 0.. {
        if let Some(door) = stage.door((group as usize + attempt) % stage.count()) {
            let request = door.http.post(format!("{}/v1/jobs", door.base));
            let request = request
                .header("content-type", "application/json")
                .body(body.to_string());
            if let Ok(answer) = request.send().await
                && let Ok(bytes) = answer.bytes().await
                && let Outcome::Answered {
                    status: 200 | 201,
                    body,
                } = heard(200, &bytes)
                && let Ok(id) = uuid(&body["job_id"])
            {
                return id;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    unreachable!("it is tried until it is there")
}
