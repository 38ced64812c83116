//! Everything at once on two servers and few keys: nothing deadlocks, nothing fails, and the data stays whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::Rng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::support::{App, Call, Client, Leased, Options, leased};

const LOAD: Duration = Duration::from_secs(15);
const CALLS: u64 = 1_000;
const CLIENTS: usize = 24;
const KEYS: u32 = 6;

#[derive(Default)]
struct Shared {
    ids: Mutex<Vec<String>>,
    jobs: Mutex<Vec<Leased>>,
    calls: AtomicU64,
}

fn pick(most: u32) -> u32 {
    rand::rng().random_range(0..most)
}

fn dispatch() -> Value {
    let ends = [
        json!([]),
        json!(["failed"]),
        json!(["succeeded", "cancelled"]),
        json!(["succeeded", "failed", "cancelled"]),
    ];
    let window = ["300ms", "2s", "1h"][pick(3) as usize];
    let mut uniqueness = json!({"active_key": format!("a{}", pick(KEYS))});
    if pick(4) > 0 {
        uniqueness["window_key"] = json!(format!("w{}", pick(4 * KEYS)));
        uniqueness["window"] = json!(window);
        uniqueness["release_on"] = ends[pick(4) as usize].clone();
    }
    if pick(5) == 0 {
        uniqueness.as_object_mut().expect("an object").remove("active_key");
    }
    json!({"name": "n", "queue": format!("q{}", pick(2)), "priority": pick(3), "uniqueness": uniqueness,
        "resource_keys": (0..pick(4)).map(|_| format!("r:{}", pick(8))).collect::<Vec<_>>(),
        "retention": (["0s", "1s", "1h"][pick(3) as usize]), "delay": (["0s", "200ms"][pick(2) as usize]),
        "retry": {"max_attempts": 1 + pick(3), "initial": "10ms"}})
}

impl Shared {
    async fn id(&self) -> String {
        let ids = self.ids.lock().await;
        ids.choose(&mut rand::rng())
            .cloned()
            .unwrap_or_else(|| "00000000-0000-7000-8000-000000000000".into())
    }

    async fn job(&self) -> Option<Leased> {
        let mut jobs = self.jobs.lock().await;
        if jobs.is_empty() {
            return None;
        }
        let place = rand::rng().random_range(0..jobs.len());
        // Now and then it is kept, and used again.
        if pick(4) == 0 {
            jobs.get(place).cloned()
        } else {
            Some(jobs.swap_remove(place))
        }
    }

    async fn step(&self, client: &Client) {
        let post = async |path: String, body: Value| {
            let answer = client
                .send(Call::json(&path, body.to_string()))
                .await
                .expect("an answer");
            assert!(answer.status < 500, "{path} {body}: {}: {}", answer.status, answer.text);
            self.calls.fetch_add(1, Ordering::Relaxed);
            answer
        };
        match pick(20) {
            0..5 => {
                let answer = post("/v1/jobs".into(), dispatch()).await;
                if answer.status == 201 {
                    let mut ids = self.ids.lock().await;
                    if ids.len() >= 60 {
                        ids.remove(0);
                    }
                    ids.push(answer.job_id().to_owned());
                }
            }
            5 => {
                let jobs: Vec<Value> = (0..20).map(|_| dispatch()).collect();
                post(
                    "/v1/jobs/batch".into(),
                    json!({"jobs": jobs, "continue_on_conflict": true}),
                )
                .await;
            }
            6..10 => {
                let queues = [json!(["q0"]), json!(["q1"]), json!(["q1", "q0"])][pick(3) as usize].clone();
                let mut wish = json!({"queues": queues, "max_jobs": 1 + pick(8), "lease": "1s"});
                if pick(3) == 0 {
                    wish["reserve_id"] = json!(format!("r{}", pick(6)));
                }
                let answer = post("/v1/worker/reserve".into(), wish).await;
                self.jobs.lock().await.extend(leased(&answer));
            }
            10..14 => {
                if let Some(job) = self.job().await {
                    let call = ["start", "heartbeat", "succeed", "succeed", "fail", "release"][pick(6) as usize];
                    post(
                        format!("/v1/worker/{}/{call}", job.id),
                        json!({"lease_token": job.token}),
                    )
                    .await;
                }
            }
            14 => {
                let mut jobs = Vec::new();
                for _ in 0..10 {
                    if let Some(job) = self.job().await {
                        let outcome = ["succeed", "fail", "release"][pick(3) as usize];
                        jobs.push(json!({"job_id": job.id, "lease_token": job.token, "outcome": outcome}));
                    }
                }
                if !jobs.is_empty() {
                    let answer = post("/v1/worker/finish".into(), json!({"jobs": jobs})).await;
                    assert!(
                        !answer.text.contains("\"internal\"") && !answer.text.contains("unavailable"),
                        "{}",
                        answer.text
                    );
                }
            }
            15 | 16 => {
                let body = json!({"force": pick(2) == 0});
                post(format!("/v1/jobs/{}/cancel", self.id().await), body).await;
            }
            17 => {
                post(format!("/v1/jobs/{}/retry", self.id().await), json!({})).await;
            }
            18 => {
                client
                    .delete(&format!("/v1/jobs/{}", self.id().await), [200, 404, 409])
                    .await;
            }
            _ => {
                let body = json!({"name": "n", "window_key": format!("w{}", pick(4 * KEYS))});
                post("/v1/keys/reset".into(), body).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_at_once_meets_no_deadlock() {
    let app = App::with(Options::default().servers(2)).await;
    app.put("/v1/resource-scopes/r", &json!({"capacity": 2}), 201).await;
    let shared = Arc::new(Shared::default());
    let until = Instant::now() + LOAD;
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (client, shared) = (app.client(number % 2).clone(), shared.clone());
        clients.spawn(async move {
            // A busy machine is given more time; it is the number of calls that matters.
            while Instant::now() < until || shared.calls.load(Ordering::Relaxed) < CALLS {
                shared.step(&client).await;
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.expect("no call fails");
    }
    // Sessions report what they counted when they are idle.
    let deadlocks: i64 =
        sqlx::query_scalar("select deadlocks from pg_stat_database where datname = current_database()")
            .fetch_one(app.sql())
            .await
            .unwrap();
    let calls = shared.calls.load(Ordering::Relaxed);
    let log = app.log();
    println!(
        "{calls} calls, {} dispatches and {} groups of calls decided anew",
        app.counter("solejob_dispatch_retries_total").await,
        app.counter("solejob_call_retries_total").await
    );
    assert!(
        !log.contains("deadlock detected"),
        "{}",
        log.lines().filter(|line| line.contains("deadlock")).collect::<String>()
    );
    assert_eq!(deadlocks, 0, "deadlocks were found and resolved");
    app.finish().await;
}
