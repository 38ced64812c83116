//! Answers as the description shows them. A test compares their members with those of real answers.

use serde_json::{Value, json};

const JOB_ID: &str = "0193a5c4-9f3e-7c11-8000-4a1f6c7d2e90";

/// The receipt of a dispatch that created a job.
pub(super) fn created() -> Value {
    json!({
        "job_id": JOB_ID,
        "name": "place-order",
        "disposition": "created",
        "duplicate_match": null,
        "policy_drift": false,
        "drift": [],
        "state": "pending",
        "job_available": true,
        "dispatched_at": "2027-01-01T09:00:00.123456Z",
        "decided_at": "2027-01-01T09:00:00.123456Z",
        "active_key": "order:42",
        "window": {"key": "req-1", "scope": "global", "expires_at": "2027-01-02T09:00:00.123456Z", "linked": false}
    })
}

/// The receipt of the same dispatch, sent again while the job runs.
pub(super) fn reused() -> Value {
    let mut receipt = created();
    receipt["disposition"] = "reused".into();
    receipt["duplicate_match"] = "both".into();
    receipt["state"] = "running".into();
    receipt["decided_at"] = "2027-01-01T09:00:07.654321Z".into();
    receipt
}

/// Of two items with one active key the second is the first.
pub(super) fn batch() -> Value {
    let receipt = |mut receipt: Value| {
        receipt["window"] = Value::Null;
        receipt
    };
    let (first, mut second) = (receipt(created()), receipt(reused()));
    second["duplicate_match"] = "active".into();
    second["state"] = "pending".into();
    second["decided_at"] = second["dispatched_at"].clone();
    json!({
        "results": [{"index": 0, "receipt": first}, {"index": 1, "receipt": second}],
        "created": 1,
        "reused": 1,
        "conflicts": 0
    })
}

/// What a preview says of a dispatch that would create a job.
pub(super) fn preview() -> Value {
    let mut preview = created();
    preview["job_id"] = Value::Null;
    preview["window"] = Value::Null;
    preview["resolved"] = json!({
        "active_key": "order:42",
        "window_key": null,
        "queue": "default",
        "priority": 0,
        "retry": retry(),
        "timeout": null,
        "retention": "7d"
    });
    preview
}

/// What is declared for a job name.
pub(super) fn job_type() -> Value {
    json!({
        "name": "place-order",
        "unique_while_active": {"key": "'tenant:' + string(payload.tenant_id)"},
        "unique_within_window": {"key": "payload.request_id", "window": "24h"},
        "queue": "reports",
        "timeout": "10m",
        "updated_at": "2027-01-01T09:00:00.123456Z"
    })
}

/// A job that waits for a worker.
pub(super) fn job() -> Value {
    json!({
        "job_id": JOB_ID,
        "name": "place-order",
        "queue": "default",
        "priority": 0,
        "state": "pending",
        "payload": {"order": 42},
        "metadata": {"customer": "7"},
        "resource_keys": ["account:42"],
        "active_key": "order:42",
        "window_keys": [{"key": "req-1", "scope": "global", "expires_at": "2027-01-02T09:00:00.123456Z"}],
        "parent": null,
        "dispatched_at": "2027-01-01T09:00:00.123456Z",
        "run_at": "2027-01-01T09:00:00.123456Z",
        "started_at": null,
        "finished_at": null,
        "attempt": 0,
        "max_attempts": 10,
        "retry": retry(),
        "timeout": "5m",
        "retention": "7d",
        "cancel_requested": false,
        "attempts": [],
        "result": null,
        "error": null
    })
}

/// The same job, cancelled.
pub(super) fn cancelled() -> Value {
    let mut job = job();
    job["state"] = "cancelled".into();
    job["finished_at"] = "2027-01-01T09:00:07.654321Z".into();
    job["cancel_requested"] = true.into();
    job
}

/// A page that is not the last.
pub(super) fn list() -> Value {
    let mut job = job();
    if let Some(members) = job.as_object_mut() {
        members.remove("window_keys");
        members.remove("attempts");
    }
    json!({"jobs": [job], "next_cursor": "AQGTpcSfPnwRgABKH2x9LpA"})
}

pub(super) fn deleted() -> Value {
    json!({"job_id": JOB_ID, "deleted": true})
}

/// A window key that a job holds.
pub(super) fn holder() -> Value {
    json!({
        "held": true,
        "job_id": JOB_ID,
        "state": "pending",
        "since": "2027-01-01T09:00:00.123456Z",
        "expires_at": "2027-01-02T09:00:00.123456Z",
        "scope": "global"
    })
}

pub(super) fn released() -> Value {
    json!({"released": true, "job_id": JOB_ID})
}

fn retry() -> Value {
    json!({"max_attempts": 10, "backoff": "exponential", "initial": "1s", "factor": 2, "max": "1h", "jitter": true})
}

/// A job that a worker has just got.
pub(super) fn reservation() -> Value {
    let mut job = job();
    job["state"] = "reserved".into();
    job["attempt"] = 1.into();
    job["attempts"] = json!([{
        "attempt": 1,
        "worker": "host-1",
        "reserved_at": "2027-01-01T09:00:01.123456Z",
        "started_at": null,
        "finished_at": null,
        "error": null
    }]);
    job["lease"] =
        json!({"token": "0b2f1f0e-5b7e-4a57-9d3a-6f0b4f6f3d11", "expires_at": "2027-01-01T09:00:31.123456Z"});
    json!({"jobs": [job]})
}
