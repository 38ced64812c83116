//! The members that a dispatch and a job type have in common, each read from its text and held to its bounds.

use serde::{Deserialize, Serialize};

use crate::duration::{self, Millis};
use crate::job::{Backoff, FinalState, FinalStates, Retry};
use crate::uniqueness::decide::OnMismatch;
use crate::uniqueness::window::{InvalidWindow, Window};

pub const NAME_BYTES_MAX: usize = 128;
pub const DAY: u64 = 24 * 3_600_000;
pub const TEN_YEARS: Millis = Millis(3_650 * DAY);
pub const RETENTION_DEFAULT: Millis = Millis(7 * DAY);
pub const QUEUE_DEFAULT: &str = "default";

/// Which kind of error a member is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidKind {
    Request,
    Key,
    Window,
    Duration,
    PayloadTooLarge,
    /// The parent is no job of this application, or does not fit the scope.
    Scope,
    /// An expression that does not compile, or may not.
    Selector,
    /// A declared key is null.
    KeyRequired,
    /// The expression of a declared key ended in an error.
    SelectorFailed,
    /// Two spellings of one key, or of its window, that are not equal.
    KeyMismatch,
}

/// What is wrong with a dispatch or a job type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invalid {
    pub kind: InvalidKind,
    /// JSON pointer to the member, from the dispatch or the type; empty where no member is at fault.
    pub pointer: String,
    pub detail: String,
}

impl Invalid {
    pub fn new(kind: InvalidKind, pointer: impl Into<String>, detail: impl Into<String>) -> Invalid {
        Invalid {
            kind,
            pointer: pointer.into(),
            detail: detail.into(),
        }
    }

    pub fn request(pointer: impl Into<String>, detail: impl Into<String>) -> Invalid {
        Invalid::new(InvalidKind::Request, pointer, detail)
    }
}

/// Retry settings as they were given. What is left out is left to whoever comes next.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct RetryRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<bool>,
}

const NAME_RULE: &str = "1 to 128 of A-Z a-z 0-9 . _ : -";

/// Whether `name` can be the name of a job or of a queue.
pub fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_name_byte)
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-')
}

pub fn check_name(pointer: &str, name: &str) -> Result<(), Invalid> {
    if is_name(name) {
        Ok(())
    } else {
        Err(Invalid::request(pointer, format!("a name or queue is {NAME_RULE}")))
    }
}

pub fn priority_of(priority: i64) -> Result<i16, Invalid> {
    let detail = "a priority is a whole number from -32768 to 32767";
    priority.try_into().map_err(|_| Invalid::request("/priority", detail))
}

/// A duration between two bounds.
pub fn duration_of(pointer: &str, text: &str, least: Millis, most: Millis) -> Result<Millis, Invalid> {
    let invalid = |detail: String| Invalid::new(InvalidKind::Duration, pointer, detail);
    let duration = duration::parse(text).map_err(|error| invalid(error.to_string()))?;
    if (least..=most).contains(&duration) {
        Ok(duration)
    } else {
        Err(invalid(format!(
            "{duration} is out of range: this duration is from {least} to {most}"
        )))
    }
}

pub fn timeout_of(text: &str) -> Result<Millis, Invalid> {
    duration_of("/timeout", text, Millis(1), Millis(30 * DAY))
}

pub fn retention_of(text: &str) -> Result<Millis, Invalid> {
    duration_of("/retention", text, Millis(0), TEN_YEARS)
}

pub fn window_of(pointer: &str, text: &str) -> Result<Window, Invalid> {
    let invalid = |error: InvalidWindow| Invalid::new(InvalidKind::Window, pointer, error.to_string());
    Window::parse(text).map_err(invalid)
}

pub fn on_mismatch_of(pointer: &str, text: &str) -> Result<OnMismatch, Invalid> {
    match text {
        "conflict" => Ok(OnMismatch::Conflict),
        "reuse" => Ok(OnMismatch::Reuse),
        _ => Err(Invalid::request(pointer, "on_mismatch is \"conflict\" or \"reuse\"")),
    }
}

pub fn release_on_of(pointer: &str, names: &[String]) -> Result<FinalStates, Invalid> {
    let mut states = FinalStates::NONE;
    for (index, name) in names.iter().enumerate() {
        let Some(state) = FinalState::ALL.into_iter().find(|state| state.as_str() == name) else {
            let detail = "release_on lists final states: \"succeeded\", \"failed\", \"cancelled\"";
            return Err(Invalid::request(format!("{pointer}/{index}"), detail));
        };
        states.insert(state);
    }
    Ok(states)
}

/// Retry settings with what was left out taken from `default`.
pub fn retry_of(retry: &RetryRequest, default: Retry) -> Result<Retry, Invalid> {
    let RetryRequest {
        max_attempts,
        backoff,
        initial,
        factor,
        max,
        jitter,
    } = retry;
    let week = Millis(7 * DAY);
    let wait = |pointer: &str, text: &Option<String>, default: Millis| match text {
        None => Ok(default),
        Some(text) => duration_of(pointer, text, Millis(0), week),
    };
    Ok(Retry {
        max_attempts: match max_attempts {
            None => default.max_attempts,
            Some(attempts @ 1..=1_000) => *attempts as i32,
            Some(_) => {
                let detail = "max_attempts is a whole number from 1 to 1000";
                return Err(Invalid::request("/retry/max_attempts", detail));
            }
        },
        backoff: match backoff.as_deref() {
            None => default.backoff,
            Some("fixed") => Backoff::Fixed,
            Some("exponential") => Backoff::Exponential,
            Some(_) => {
                let detail = "backoff is \"fixed\" or \"exponential\"";
                return Err(Invalid::request("/retry/backoff", detail));
            }
        },
        initial: wait("/retry/initial", initial, default.initial)?,
        factor: match factor {
            None => default.factor,
            Some(factor) if (1.0..=100.0).contains(factor) => *factor,
            Some(_) => return Err(Invalid::request("/retry/factor", "factor is a number from 1 to 100")),
        },
        max: wait("/retry/max", max, default.max)?,
        jitter: jitter.unwrap_or(default.jitter),
    })
}
