//! Answers in the model's words.

use chrono::DateTime;
use serde_json::Value;
use uuid::Uuid;

use crate::record::Micros;
use crate::steps::Said;
use crate::words::{Phase, Receipt, View};

/// What a receipt says.
pub(crate) fn said(receipt: &Value) -> Result<Said, String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let texts = |value: &Value| {
        let list = value.as_array();
        list.map(|list| list.iter().filter_map(text).collect::<Vec<_>>())
    };
    let window = &receipt["window"];
    let phase = receipt["state"].as_str().and_then(Phase::of);
    if receipt["policy_drift"].as_bool() != Some(receipt["drift"] != Value::Array(Vec::new())) {
        return Err("policy_drift and drift do not agree".into());
    }
    let differs = texts(&receipt["differs"]);
    if receipt["request_mismatch"].as_bool().unwrap_or(false) != differs.is_some() {
        return Err("request_mismatch and differs do not agree".into());
    }
    let read = Receipt {
        job: uuid(&receipt["job_id"]).unwrap_or_default(),
        matched: text(&receipt["duplicate_match"]),
        phase,
        available: receipt["job_available"].as_bool().ok_or("no job_available")?,
        dispatched: micros(&receipt["dispatched_at"])?,
        active: receipt["active_key"].as_str().and_then(active_of),
        until: match window {
            Value::Null => None,
            window => Some(micros(&window["expires_at"])?),
        },
        linked: window["linked"].as_bool().unwrap_or(false),
        drift: texts(&receipt["drift"]).unwrap_or_default(),
        differs,
    };
    match receipt["disposition"].as_str() {
        Some("created") if read.matched.is_none() => Ok(Said::Created(read)),
        Some("reused") if read.linked => Ok(Said::Linked(read)),
        Some("reused") => Ok(Said::Reused(read)),
        _ => Err(format!("a receipt says {}", receipt["disposition"])),
    }
}

/// Why a dispatch was refused.
pub(crate) fn refusal(problem: &Value) -> Result<Said, String> {
    let differs = problem["differs"].as_array().into_iter().flatten();
    let differs = differs.filter_map(|part| part.as_str().map(str::to_owned)).collect();
    match problem["code"].as_str() {
        Some("uniqueness_conflict") => Ok(Said::Conflict(uuid(&problem["conflicting_job_id"]).ok(), differs)),
        Some("uniqueness_composition_conflict") => {
            let (window, active) = (uuid(&problem["window_job_id"]), uuid(&problem["active_job_id"]));
            // A batch that failed names no job of its own.
            Ok(match (window, active) {
                (Ok(window), Ok(active)) => Said::Composition(window, active),
                _ => Said::Conflict(None, differs),
            })
        }
        _ => Err(format!("a dispatch was answered {}", problem["code"])),
    }
}

/// A job as an answer shows it.
pub(crate) fn view(body: &Value) -> Result<View, String> {
    Ok(View {
        phase: body["state"]
            .as_str()
            .and_then(Phase::of)
            .ok_or("a job without state")?,
        attempt: body["attempt"].as_i64().ok_or("a job without attempt")? as i32,
        cancel: body["cancel_requested"].as_bool().ok_or("no cancel_requested")?,
        active: body["active_key"].as_str().and_then(active_of),
        payload: body["payload"]["p"].as_u64().map(|payload| payload as u8),
    })
}

/// Which of the active keys of a group this is.
pub(crate) fn active_of(text: &str) -> Option<u8> {
    text.strip_prefix('a')?.parse().ok()
}

pub(crate) fn uuid(value: &Value) -> Result<Uuid, String> {
    let text = value.as_str().ok_or_else(|| format!("{value} is no id"))?;
    text.parse().map_err(|_| format!("{text} is no id"))
}

pub(crate) fn micros(value: &Value) -> Result<Micros, String> {
    let text = value.as_str().ok_or_else(|| format!("{value} is no instant"))?;
    let instant = DateTime::parse_from_rfc3339(text).map_err(|_| format!("{text} is no instant"))?;
    Ok(instant.timestamp_micros())
}
