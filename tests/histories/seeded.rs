//! Histories written by hand: true ones that must be explained, and the same with a lie in them.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::dump::{Stored, StoredJob, StoredWindow};
use crate::parts::Bounds;
use crate::plan::Ask;
use crate::record::{Call, History, NEVER, Op, Outcome, Record};
use crate::round::check_one;
use crate::words::{Phase, View};

/// Milliseconds of a history, on the database's clock.
fn at(millis: i64) -> i64 {
    1_800_000_000_000_000 + millis * 1_000
}

fn text(millis: i64) -> String {
    chrono::DateTime::from_timestamp_micros(at(millis))
        .unwrap()
        .to_rfc3339()
}

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number << 64 | 7 << 100)
}

fn ask(marker: u32, active: Option<u8>, slot: Option<u8>) -> Ask {
    Ask {
        marker,
        active,
        slot,
        payload: 0,
        delay_ms: None,
        reuse_on_mismatch: false,
        release_on: 0,
        max_attempts: 2,
        timeout_ms: None,
        short_window: false,
        short_retention: false,
    }
}

/// A receipt of a job that was dispatched at `made`, decided at `decided`.
fn receipt(job: Uuid, ask: &Ask, matched: Option<&str>, made: i64, decided: i64, state: &str) -> Value {
    let until = |from: i64| text(from + ask.window_ms());
    json!({
        "job_id": job, "disposition": if matched.is_none() { "created" } else { "reused" }, "duplicate_match": matched,
        "policy_drift": false, "drift": [], "state": state, "job_available": true, "dispatched_at": text(made),
        "decided_at": text(decided), "active_key": ask.active.map(|key| format!("a{key}")),
        "window": ask.slot.map(|_| json!({"expires_at": until(made), "linked": false})),
    })
}

#[derive(Default)]
struct Story {
    records: Vec<Record>,
    stored: Stored,
}

impl Story {
    fn add(&mut self, from: i64, to: i64, op: Op, outcome: Outcome) -> &mut Self {
        let unknown = matches!(outcome, Outcome::Unknown(_));
        self.records.push(Record {
            number: self.records.len() as u32 + 1,
            client: 0,
            server: 0,
            op,
            called: at(from),
            returned: if unknown { NEVER } else { at(to) },
            outcome,
        });
        self
    }

    fn says(&mut self, from: i64, to: i64, op: Op, status: u16, body: Value) -> &mut Self {
        self.add(from, to, op, Outcome::Answered { status, body })
    }

    fn stored(&mut self, job: Uuid, ask: &Ask, made: i64, phase: Phase, attempt: i32) -> &mut Self {
        let view = View {
            phase,
            attempt,
            cancel: false,
            active: ask.active,
            payload: None,
        };
        self.stored.jobs.push(StoredJob {
            id: job,
            marker: i64::from(ask.marker),
            dispatched: at(made),
            view: Some(view),
        });
        self
    }

    fn verdict(&self) -> Result<usize, String> {
        let history = History {
            group: 0,
            records: self.records.clone(),
        };
        let last = self.records.iter().map(|record| record.called).max().unwrap_or(0);
        let bounds = Bounds {
            slack: 0,
            end: last + 1_000_000,
        };
        check_one(&history, &self.stored, bounds)
    }

    fn is_true(&self) {
        self.verdict().unwrap_or_else(|failure| panic!("{failure}"));
    }

    fn is_a_lie(&self, because: &str) {
        let failure = self.verdict().expect_err("a lie was believed");
        assert!(failure.contains(because), "{failure}");
    }
}

fn created(story: &mut Story, job: Uuid, ask: &Ask, from: i64, to: i64) {
    let decided = (from + to) / 2;
    let body = receipt(job, ask, None, decided, decided, "pending");
    story.says(from, to, Op::Dispatch(ask.clone()), 201, body);
}

const NO_ORDER: &str = "no order of these is possible";

#[test]
fn two_dispatches_of_one_active_key_make_one_job() {
    let (first, second) = (ask(8, Some(0), None), ask(16, Some(0), None));
    let mut story = Story::default();
    created(&mut story, id(1), &first, 0, 10);
    story.stored(id(1), &first, 5, Phase::Pending, 0);
    let reused = receipt(id(1), &second, Some("active"), 5, 8, "pending");
    story.says(2, 12, Op::Dispatch(second.clone()), 200, reused);
    story.is_true();

    let mut twice = Story::default();
    created(&mut twice, id(1), &first, 0, 10);
    created(&mut twice, id(2), &second, 2, 12);
    twice
        .stored(id(1), &first, 5, Phase::Pending, 0)
        .stored(id(2), &second, 7, Phase::Pending, 0);
    twice.is_a_lie(NO_ORDER);
}

#[test]
fn a_receipt_without_its_job_is_a_lie_and_so_is_a_job_that_nobody_asked_for() {
    let first = ask(8, None, None);
    let mut ghost = Story::default();
    created(&mut ghost, id(1), &first, 0, 10);
    ghost.is_a_lie("is stored of it");

    let mut denied = Story::default();
    denied.add(
        0,
        10,
        Op::Dispatch(first.clone()),
        Outcome::Nothing("store_unavailable".into()),
    );
    denied.is_true();
    denied.stored(id(1), &first, 5, Phase::Pending, 0);
    denied.is_a_lie("but something is stored");

    let mut twice = Story::default();
    twice.add(0, 10, Op::Dispatch(first.clone()), Outcome::Unknown("cut".into()));
    twice.stored(id(1), &first, 5, Phase::Pending, 0);
    twice.is_true();
    twice.stored(id(2), &first, 6, Phase::Pending, 0);
    twice.is_a_lie("one dispatch made two jobs");
}

#[test]
fn a_decision_is_made_while_it_is_asked_for() {
    let first = ask(8, None, None);
    let mut story = Story::default();
    let body = receipt(id(1), &first, None, 3_600_005, 3_600_005, "pending");
    story.says(0, 10, Op::Dispatch(first.clone()), 201, body);
    story.stored(id(1), &first, 3_600_005, Phase::Pending, 0);
    story.is_a_lie("outside of its call");
}

#[test]
fn a_window_answers_for_its_job_until_it_is_over() {
    let (first, second) = (ask(8, None, Some(0)), ask(16, None, Some(0)));
    let end = first.window_ms() + 5;
    let story = |decided: i64, again: bool| {
        let mut story = Story::default();
        created(&mut story, id(1), &first, 0, 10);
        story.stored(id(1), &first, 5, Phase::Pending, 0);
        if again {
            created(&mut story, id(2), &second, decided - 1, decided + 1);
            story.stored(id(2), &second, decided, Phase::Pending, 0);
        } else {
            let mut body = receipt(id(1), &first, Some("window"), 5, decided, "pending");
            body["window"]["expires_at"] = json!(text(end));
            story.says(decided - 1, decided + 1, Op::Dispatch(second.clone()), 200, body);
        }
        let (job, until) = if again {
            (id(2), decided + second.window_ms())
        } else {
            (id(1), end)
        };
        story.stored.windows[0] = Some(StoredWindow { job, until: at(until) });
        story
    };
    story(end - 1, false).is_true();
    story(end, false).is_a_lie(NO_ORDER);
    story(end, true).is_true();
    story(end - 1, true).is_a_lie(NO_ORDER);
    let mut dropped = story(50_000, false);
    dropped.stored.windows[0] = None;
    dropped.is_a_lie(NO_ORDER);
}

#[test]
fn another_request_with_the_same_window_key_is_a_conflict() {
    let first = ask(8, None, Some(0));
    let second = Ask {
        payload: 1,
        ..ask(16, None, Some(0))
    };
    let story = |status: u16, body: Value| {
        let mut story = Story::default();
        created(&mut story, id(1), &first, 0, 10);
        story.stored(id(1), &first, 5, Phase::Pending, 0);
        let until = at(5 + first.window_ms());
        story.stored.windows[0] = Some(StoredWindow { job: id(1), until });
        story.says(20, 30, Op::Dispatch(second.clone()), status, body);
        story
    };
    let conflict = json!({"code": "uniqueness_conflict", "conflicting_job_id": id(1), "differs": ["payload"]});
    story(409, conflict.clone()).is_true();
    let mut other = conflict;
    other["differs"] = json!(["start"]);
    story(409, other).is_a_lie(NO_ORDER);
    let mut reused = receipt(id(1), &first, Some("window"), 5, 25, "pending");
    reused["window"]["expires_at"] = json!(text(5 + first.window_ms()));
    story(200, reused).is_a_lie(NO_ORDER);
}

/// A job that was given out at 20 for a second, and what came of it.
fn leased(story: &mut Story, job: Uuid, token: Uuid, attempt: i64) {
    let reserve = Op::Reserve {
        max: 1,
        lease_ms: 1_000,
        reserve_id: None,
    };
    let lease = json!({"token": token, "expires_at": text(1_020)});
    let jobs = json!([{"job_id": job, "attempt": attempt, "lease": lease}]);
    story.says(20, 20, reserve, 200, json!({"jobs": jobs}));
}

fn job_body(state: &str, attempt: i64) -> Value {
    json!({"state": state, "attempt": attempt, "cancel_requested": false, "active_key": "a0", "payload": {"p": 0}})
}

#[test]
fn a_lease_is_ended_by_its_own_token_while_it_lasts() {
    let first = ask(8, Some(0), None);
    let token = Uuid::from_u128(99);
    let story = |from: i64, token: Uuid| {
        let mut story = Story::default();
        created(&mut story, id(1), &first, 0, 10);
        leased(&mut story, id(1), Uuid::from_u128(99), 1);
        let (job, call) = (id(1), Call::Succeed);
        story.says(
            from,
            from + 5,
            Op::Call { job, token, call },
            200,
            job_body("succeeded", 1),
        );
        story.stored(id(1), &first, 5, Phase::Succeeded, 1);
        story
    };
    story(500, token).is_true();
    story(1_016, token).is_true();
    story(1_021, token).is_a_lie(NO_ORDER);
    story(500, Uuid::from_u128(98)).is_a_lie(NO_ORDER);

    // What was accepted is there at the end.
    let mut lost = story(500, token);
    lost.stored.jobs.clear();
    lost.stored(id(1), &first, 5, Phase::Reserved, 1);
    lost.is_a_lie(NO_ORDER);

    // An answer that nobody heard: it was done, or not.
    for (phase, is_so) in [
        (Phase::Succeeded, true),
        (Phase::Retrying, true),
        (Phase::Cancelled, false),
    ] {
        let mut story = Story::default();
        created(&mut story, id(1), &first, 0, 10);
        leased(&mut story, id(1), token, 1);
        let (job, call) = (id(1), Call::Succeed);
        story.add(500, 505, Op::Call { job, token, call }, Outcome::Unknown("cut".into()));
        story.stored(id(1), &first, 5, phase, 1);
        if is_so {
            story.is_true()
        } else {
            story.is_a_lie(NO_ORDER)
        }
    }
}

#[test]
fn a_key_is_held_while_its_job_is_tried_again() {
    let (first, second) = (ask(8, Some(0), None), ask(16, Some(0), None));
    let token = Uuid::from_u128(99);
    let mut story = Story::default();
    created(&mut story, id(1), &first, 0, 10);
    leased(&mut story, id(1), token, 1);
    let call = Call::Fail {
        retry: true,
        retry_in_ms: Some(60_000),
    };
    story.says(
        30,
        35,
        Op::Call {
            job: id(1),
            token,
            call,
        },
        200,
        job_body("retrying", 1),
    );
    story.stored(id(1), &first, 5, Phase::Retrying, 1);
    let mut freed = Story {
        records: story.records.clone(),
        stored: story.stored.clone(),
    };
    let reused = receipt(id(1), &second, Some("active"), 5, 45, "retrying");
    story.says(40, 50, Op::Dispatch(second.clone()), 200, reused);
    story.is_true();
    created(&mut freed, id(2), &second, 40, 50);
    freed.stored(id(2), &second, 45, Phase::Pending, 0);
    freed.is_a_lie(NO_ORDER);
}

#[test]
fn an_answer_is_never_older_than_its_question() {
    let first = ask(8, Some(0), None);
    let read = |body: Value| {
        let mut story = Story::default();
        created(&mut story, id(1), &first, 0, 10);
        story.stored(id(1), &first, 5, Phase::Pending, 0);
        story.says(20, 30, Op::ReadActive { key: 0 }, 200, body);
        story
    };
    read(json!({"job_id": id(1)})).is_true();
    read(json!({"job_id": null})).is_a_lie(NO_ORDER);
}

#[test]
fn a_call_that_would_have_nothing_to_do_now_may_have_something_to_do_later() {
    let first = ask(8, Some(0), None);
    let mut story = Story::default();
    created(&mut story, id(1), &first, 0, 10);
    let cancelled = |attempt: i64| {
        let mut body = job_body("cancelled", attempt);
        body["cancel_requested"] = json!(true);
        body
    };
    let cancel = Op::Cancel {
        job: id(1),
        force: false,
    };
    story.says(20, 30, cancel.clone(), 200, cancelled(0));
    story.says(40, 60, Op::Retry { job: id(1) }, 200, job_body("pending", 0));
    // At once with the retry: before it the job is cancelled as it is, and would be pending for good.
    story.says(41, 61, cancel, 200, cancelled(0));
    let view = View {
        phase: Phase::Cancelled,
        attempt: 0,
        cancel: true,
        active: Some(0),
        payload: None,
    };
    story.stored(id(1), &first, 5, Phase::Cancelled, 0);
    story.stored.jobs[0].view = Some(view);
    story.is_true();
}

/// Found by seed 10261396475587361989: a call that had not been carried out was taken for a late one, and before that was
/// given up, what was found of all other jobs at the end had been tried in every order.
#[test]
fn a_wrong_guess_is_given_up_soon_however_many_jobs_there_are() {
    let mut story = Story::default();
    for number in 1..=40 {
        let job = id(u128::from(number));
        let ask = Ask {
            short_retention: true,
            ..ask(number * 8, None, None)
        };
        let from = i64::from(number) * 20;
        created(&mut story, job, &ask, from, from + 4);
        let mut body = job_body("cancelled", 0);
        (body["cancel_requested"], body["active_key"]) = (json!(true), Value::Null);
        story.says(from + 6, from + 8, Op::Cancel { job, force: false }, 200, body);
        if number == 1 {
            let retry = Op::Retry { job };
            story.add(
                from + 9,
                from + 9,
                retry,
                Outcome::Unknown("the answer was lost".into()),
            );
        }
        story.stored(job, &ask, from + 2, Phase::Cancelled, 0);
    }
    for job in &mut story.stored.jobs {
        job.view = None;
    }
    let nodes = story.verdict().unwrap_or_else(|failure| panic!("{failure}"));
    assert!(nodes < 10_000, "{nodes} nodes");
}
