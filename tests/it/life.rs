//! The life of a job against a table of legal transitions that was written down from the contract, not from the code.

use chrono::{DateTime, Duration, Utc};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use solejob::duration::Millis;
use solejob::job::{Backoff, Policy, Retry, State};
use solejob::life::{Attempt, Call, Lease, Life, Refused};
use uuid::Uuid;

#[derive(Clone, Copy, Debug)]
enum Token {
    Current,
    /// Of the attempt before.
    Before,
    Nonsense,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Reserve {
        lease: i64,
    },
    Start(Token),
    Heartbeat(Token, u64),
    Succeed(Token),
    Fail {
        token: Token,
        retry: bool,
        retry_in: Option<u64>,
    },
    Release(Token),
    Expire,
    Cancel {
        force: bool,
    },
    RunAgain,
    Pass(i64),
}

fn step() -> impl Strategy<Value = Step> {
    let token = || prop_oneof![5 => Just(Token::Current), 2 => Just(Token::Before), 1 => Just(Token::Nonsense)];
    prop_oneof![
        6 => (1_000..5_000_i64).prop_map(|lease| Step::Reserve { lease }),
        2 => token().prop_map(Step::Start),
        2 => (token(), 1_000..5_000_u64).prop_map(|(token, lease)| Step::Heartbeat(token, lease)),
        2 => token().prop_map(Step::Succeed),
        3 => (token(), prop::bool::weighted(0.8), prop::option::of(0..2_000_u64))
            .prop_map(|(token, retry, retry_in)| Step::Fail { token, retry, retry_in }),
        2 => token().prop_map(Step::Release),
        2 => Just(Step::Expire),
        1 => any::<bool>().prop_map(|force| Step::Cancel { force }),
        1 => Just(Step::RunAgain),
        4 => (1..4_000_i64).prop_map(Step::Pass),
    ]
}

fn fresh(now: DateTime<Utc>, max_attempts: i32, timeout: Option<u64>) -> Life {
    let retry = Retry {
        max_attempts,
        backoff: Backoff::Fixed,
        initial: Millis(500),
        jitter: false,
        ..Retry::DEFAULT
    };
    Life {
        state: State::Pending,
        attempt: 0,
        attempt_limit: max_attempts,
        policy: Policy {
            retry,
            timeout: timeout.map(Millis),
        },
        retention: Millis(1_000),
        run_at: now,
        lease: None,
        last: None,
        cancel_requested: false,
        result: None,
        error: None,
        finished_at: None,
    }
}

/// What the statement that gives jobs out does.
fn reserve(life: &mut Life, token: Uuid, now: DateTime<Utc>, lease: i64) {
    let timeout = life
        .policy
        .timeout
        .map(|Millis(millis)| Duration::milliseconds(millis as i64));
    life.state = State::Reserved;
    life.attempt += 1;
    life.lease = Some(Lease {
        token,
        expires_at: now + Duration::milliseconds(lease),
        ends_at: timeout.map(|timeout| now + timeout),
    });
    life.last = Some(Attempt {
        worker: None,
        reserved_at: now,
        started_at: None,
        finished_at: None,
        error: None,
        ended: None,
    });
}

/// The contract, as a table: what a call may lead to. `Err` is a refusal that changes nothing.
struct Facts {
    before: State,
    /// The call has the current token of a lease that is not over.
    right: bool,
    lease_over: bool,
    cancel_requested: bool,
    attempts_left: bool,
    /// No attempt was made since the dispatch, or since the retry by hand.
    first: bool,
    /// How the attempt of the token ended, if it has: by this kind of call.
    ended_by: Option<&'static str>,
}

fn table(facts: &Facts, step: Step) -> Result<State, Refused> {
    use State::{Cancelled, Failed, Pending, Reserved, Retrying, Running, Succeeded};
    let failed = |retry: bool| match (facts.cancel_requested, retry && facts.attempts_left) {
        (true, _) => Cancelled,
        (false, true) => Retrying,
        (false, false) => Failed,
    };
    let repeated = |kind| facts.ended_by == Some(kind);
    match (step, facts.right) {
        (Step::Start(_), true) => Ok(Running),
        (Step::Heartbeat(..), true) => Ok(facts.before),
        (Step::Succeed(_), true) => Ok(Succeeded),
        (Step::Fail { retry, .. }, true) => Ok(failed(retry)),
        (Step::Release(_), true) if facts.cancel_requested => Ok(Cancelled),
        (Step::Release(_), true) => Ok(if facts.first { Pending } else { Retrying }),
        (Step::Succeed(_), false) if repeated("succeed") => Ok(facts.before),
        (Step::Fail { .. }, false) if repeated("fail") => Ok(facts.before),
        (Step::Release(_), false) if repeated("release") => Ok(facts.before),
        (Step::Start(_) | Step::Heartbeat(..) | Step::Succeed(_) | Step::Fail { .. } | Step::Release(_), false) => {
            Err(Refused::LeaseLost)
        }
        (Step::Expire, _) => Ok(if facts.lease_over { failed(true) } else { facts.before }),
        (Step::Cancel { force }, _) => match (facts.before, force) {
            (Succeeded | Failed, _) => Err(Refused::Finished(facts.before)),
            (Reserved | Running, false) => Ok(facts.before),
            (Pending | Retrying | Reserved | Running | Cancelled, _) => Ok(Cancelled),
        },
        (Step::Reserve { .. } | Step::RunAgain | Step::Pass(_), _) => unreachable!("no call"),
    }
}

/// Lives one life; gives how many calls changed something, and how many were refused.
fn live(max_attempts: i32, timeout: Option<u64>, steps: &[Step]) -> (u32, u32) {
    let mut now = "2026-01-01T00:00:00Z".parse::<DateTime<Utc>>().expect("a time");
    let mut life = fresh(now, max_attempts, timeout);
    let (mut current, mut before) = (Uuid::nil(), Uuid::nil());
    // How the attempt of the current token ended, as long as the job's row shows it; attempts since the last start.
    let (mut ended_by, mut made, mut numbers) = (None, 0, 0);
    let (mut changed, mut refused) = (0, 0);
    for (number, &step) in steps.iter().enumerate() {
        let token_of = |token| match token {
            Token::Current => current,
            Token::Before => before,
            Token::Nonsense => Uuid::from_u128(u128::MAX),
        };
        let call = match step {
            Step::Pass(millis) => {
                now += Duration::milliseconds(millis);
                continue;
            }
            Step::Reserve { lease } => {
                if life.is_waiting() && life.run_at <= now {
                    (before, current) = (current, Uuid::from_u128(number as u128 + 1));
                    reserve(&mut life, current, now, lease);
                    (made, numbers, ended_by) = (made + 1, numbers + 1, None);
                    assert_eq!(life.attempt, numbers, "attempts are numbered without a gap");
                }
                continue;
            }
            Step::RunAgain => {
                if !life.state.is_live() {
                    let shown = life.last.is_some();
                    let past = life.run_again(now);
                    assert_eq!(past.is_some(), shown, "an attempt is lost, or made up");
                    assert_eq!((life.state, life.lease, life.finished_at), (State::Pending, None, None));
                    assert_eq!(life.attempt_limit, numbers + max_attempts);
                    (made, ended_by) = (0, None);
                }
                continue;
            }
            Step::Start(token) => Call::Start { token: token_of(token) },
            Step::Heartbeat(token, lease) => Call::Heartbeat {
                token: token_of(token),
                lease: Millis(lease),
            },
            Step::Succeed(token) => Call::Succeed {
                token: token_of(token),
                result: Some("1".into()),
            },
            Step::Fail { token, retry, retry_in } => Call::Fail {
                token: token_of(token),
                error: Some("{}".into()),
                retry,
                retry_in: retry_in.map(Millis),
            },
            Step::Release(token) => Call::Release { token: token_of(token) },
            Step::Expire => Call::Expire,
            Step::Cancel { force } => Call::Cancel { force },
        };
        let token = match step {
            Step::Start(token) | Step::Heartbeat(token, _) | Step::Succeed(token) | Step::Release(token) => Some(token),
            Step::Fail { token, .. } => Some(token),
            _ => None,
        };
        let mine = matches!(token, Some(Token::Current));
        let lease_over = life
            .lease
            .is_some_and(|lease| lease.expires_at <= now || lease.ends_at.is_some_and(|at| at <= now));
        let facts = Facts {
            before: life.state,
            right: mine && life.lease.is_some() && !lease_over,
            lease_over,
            cancel_requested: life.cancel_requested,
            attempts_left: made < max_attempts,
            first: made == 1,
            ended_by: ended_by.filter(|_| mine),
        };
        let was = life.clone();
        let got = life.call(&call, now, 0.5);
        match table(&facts, step) {
            Err(refusal) => {
                assert_eq!(got.as_ref().err(), Some(&refusal), "{step:?} on {was:?}");
                assert_eq!(life, was, "a refused call changed something");
                refused += 1;
            }
            Ok(after) => {
                let effect = got.unwrap_or_else(|refusal| panic!("{step:?} on {was:?}: {refusal:?}"));
                assert_eq!(life.state, after, "{step:?} on {was:?}");
                if effect.unchanged {
                    assert_eq!(life, was);
                } else {
                    changed += 1;
                }
                if was.lease.is_some() && life.lease.is_none() {
                    ended_by = match step {
                        Step::Succeed(_) => Some("succeed"),
                        Step::Fail { .. } => Some("fail"),
                        Step::Release(_) if after == State::Cancelled => Some("release"),
                        _ => None,
                    };
                    if matches!(step, Step::Release(_)) && after != State::Cancelled {
                        (made, numbers) = (made - 1, numbers - 1);
                        assert!(effect.past.is_some(), "a lease that was given back is forgotten");
                    }
                }
                if let (Step::Heartbeat(..), Some(old), Some(new)) = (step, was.lease, life.lease) {
                    assert!(new.expires_at >= old.expires_at, "a heartbeat shortened a lease");
                }
            }
        }
        assert_eq!(
            life.lease.is_some(),
            matches!(life.state, State::Reserved | State::Running),
            "{step:?}: {life:?}"
        );
        assert_eq!(life.finished_at.is_some(), !life.state.is_live(), "{step:?}: {life:?}");
        assert_eq!(life.attempt, numbers);
        assert!(
            life.state != State::Retrying || life.attempt < life.attempt_limit,
            "{life:?}"
        );
    }
    (changed, refused)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_calls_leaves_the_table(
        max_attempts in 1..4_i32,
        timeout in prop::option::of(500..6_000_u64),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        live(max_attempts, timeout, &steps);
    }
}

/// The property would be worth little if most calls were refused.
#[test]
fn the_sequences_reach_both_sides_of_the_table() {
    let mut runner = TestRunner::deterministic();
    let strategy = prop::collection::vec(step(), 40..60);
    let (mut changed, mut refused) = (0, 0);
    for _ in 0..200 {
        let steps = strategy.new_tree(&mut runner).expect("a value").current();
        let (c, r) = live(3, Some(4_000), &steps);
        (changed, refused) = (changed + c, refused + r);
    }
    assert!(
        changed > 500 && refused > 1_000,
        "{changed} changed something, {refused} were refused"
    );
}

/// The same over HTTP: random calls on few jobs, with right and stale tokens; the invariants hold at any time.
#[tokio::test]
async fn random_calls_over_http_keep_the_data_whole() {
    use rand::Rng;
    use serde_json::json;

    use crate::support::{App, Leased};

    let app = App::start().await;
    let mut ids = Vec::new();
    for number in 0..6 {
        let body = json!({"name": "n", "uniqueness": {"active_key": format!("k{number}")}, "timeout": "1500ms",
            "resource_keys": [format!("r:{}", number % 3)], "retry": {"max_attempts": 3, "initial": "50ms"}});
        ids.push(app.post("/v1/jobs", &body, 201).await.job_id().to_owned());
    }
    let mut jobs: Vec<Leased> = Vec::new();
    for number in 0..600 {
        let dice = rand::rng().random_range(0..12);
        let id = ids[rand::rng().random_range(0..ids.len())].clone();
        match dice {
            0..3 => jobs.extend(app.reserve(json!({"max_jobs": 2, "lease": "1s"})).await),
            3..9 if !jobs.is_empty() => {
                let job = jobs[rand::rng().random_range(0..jobs.len())].clone();
                let call = ["start", "heartbeat", "succeed", "fail", "release"][rand::rng().random_range(0..5)];
                let before = app.get(&format!("/v1/jobs/{}", job.id), 200).await;
                let answer = app.work(&job, call, json!({})).await;
                if answer.status == 409 && before.at("/state") != "reserved" && before.at("/state") != "running" {
                    let after = app.get(&format!("/v1/jobs/{}", job.id), 200).await;
                    assert_eq!(
                        before.at("/attempts"),
                        after.at("/attempts"),
                        "a refused {call} changed the job"
                    );
                }
            }
            9 => {
                let force = rand::rng().random_bool(0.5);
                app.post(&format!("/v1/jobs/{id}/cancel"), &json!({"force": force}), [200, 409])
                    .await;
            }
            10 => {
                app.post(&format!("/v1/jobs/{id}/retry"), &json!({}), [200, 409]).await;
            }
            _ => tokio::time::sleep(std::time::Duration::from_millis(30)).await,
        }
        if number % 50 == 0 {
            app.check().await;
        }
    }
    app.finish().await;
}
