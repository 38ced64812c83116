//! Everything about a dispatch that can be right or wrong by itself, before any key is looked up.

use chrono::{DateTime, Timelike as _};
use uuid::Uuid;

use crate::dispatch::window::{Parents, WindowRequest, key_of};
use crate::duration::{self, Millis};
use crate::job::{Backoff, FinalState, FinalStates, Instant, JobId, NewJob, Parent, Policy, Retry, Start};
use crate::json::pointer;
use crate::uniqueness::decide::{Ask, AskedKey, AskedWindow, OnMismatch};
use crate::uniqueness::fingerprint::{Asked, AskedStart, Fingerprint};
use crate::uniqueness::key::{Key, KeyText};

pub const NAME_BYTES_MAX: usize = 128;
pub const METADATA_MEMBERS_MAX: usize = 64;
pub const METADATA_KEY_BYTES_MAX: usize = 128;
pub const METADATA_VALUE_BYTES_MAX: usize = 1_024;
pub const RESOURCE_KEYS_MAX: usize = 16;
const DAY: u64 = 24 * 3_600_000;
const TEN_YEARS: Millis = Millis(3_650 * DAY);
const RETENTION_DEFAULT: Millis = Millis(7 * DAY);
const QUEUE_DEFAULT: &str = "default";

/// A dispatch as it was posted: every member has its JSON type and nothing more is known of it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub name: String,
    /// JSON text that has passed [`crate::json::check`].
    pub payload: Option<Box<str>>,
    pub queue: Option<String>,
    pub priority: Option<i64>,
    pub delay: Option<String>,
    pub run_at: Option<String>,
    pub active_key: Option<String>,
    pub window: WindowRequest,
    pub on_mismatch: Option<String>,
    pub release_on: Option<Vec<String>>,
    pub resource_keys: Vec<String>,
    pub metadata: Vec<(String, String)>,
    pub parent: Option<(String, Option<i64>)>,
    pub retry: RetryRequest,
    pub timeout: Option<String>,
    pub retention: Option<String>,
}

/// The retry settings of a [`Request`].
#[derive(Clone, Debug, Default)]
pub struct RetryRequest {
    pub max_attempts: Option<i64>,
    pub backoff: Option<String>,
    pub initial: Option<String>,
    pub factor: Option<f64>,
    pub max: Option<String>,
    pub jitter: Option<bool>,
}

/// A dispatch that may be decided.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub ask: Ask,
    pub job: NewJob,
    /// Its parent is not there: it may be answered with a job that is, and creates none.
    pub orphan: bool,
}

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
    /// Two spellings of one key differ.
    KeyMismatch,
}

/// What is wrong with a dispatch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invalid {
    pub kind: InvalidKind,
    /// JSON pointer to the member, from the dispatch.
    pub pointer: String,
    pub detail: String,
}

impl Invalid {
    pub(super) fn new(kind: InvalidKind, pointer: impl Into<String>, detail: impl Into<String>) -> Invalid {
        Invalid {
            kind,
            pointer: pointer.into(),
            detail: detail.into(),
        }
    }
}

fn request(pointer: &str, detail: impl Into<String>) -> Invalid {
    Invalid::new(InvalidKind::Request, pointer, detail)
}

/// What a dispatch is prepared with.
#[derive(Clone, Debug)]
pub struct Surroundings<'a> {
    pub payload_bytes_max: usize,
    /// Bounds how far ahead a dispatch may start.
    pub now: Instant,
    pub parents: &'a Parents,
}

/// Prepares one dispatch.
pub fn prepare(request: Request, surroundings: &Surroundings<'_>) -> Result<Prepared, Invalid> {
    let Surroundings {
        payload_bytes_max,
        now,
        parents,
    } = *surroundings;
    let Request {
        name,
        payload,
        queue,
        priority,
        delay,
        run_at,
        active_key,
        window,
        on_mismatch,
        release_on,
        resource_keys,
        metadata,
        parent,
        retry,
        timeout,
        retention,
    } = request;
    check_name("/name", &name)?;
    if let Some(queue) = &queue {
        check_name("/queue", queue)?;
    }
    let priority = priority.map(priority_of).transpose()?;
    let start = start_of(delay, run_at, now)?;
    if let Some(payload) = payload.as_deref().filter(|payload| payload.len() > payload_bytes_max) {
        let detail = format!(
            "the payload has {} bytes and may have {payload_bytes_max}: store it elsewhere and send a reference",
            payload.len()
        );
        return Err(Invalid::new(InvalidKind::PayloadTooLarge, "/payload", detail));
    }
    check_resource_keys(&resource_keys)?;
    check_metadata(&metadata)?;
    let parent = parent.map(parent_of).transpose()?;
    let policy = Policy {
        retry: retry_of(retry)?,
        timeout: timeout
            .map(|text| duration_of("/timeout", &text, Millis(1), Millis(30 * DAY)))
            .transpose()?,
    };
    let retention = retention
        .map(|text| duration_of("/retention", &text, Millis(0), TEN_YEARS))
        .transpose()?;
    let active_text = active_key
        .map(|text| key_of("/uniqueness/active_key", &text))
        .transpose()?;
    let on_mismatch = on_mismatch_of(on_mismatch)?;
    let release_on = release_on.map(release_on_of).transpose()?;
    let window = window.asked(parent, parents)?.map(|wanted| {
        let key = AskedKey::new(Key::window(&name, wanted.scope, wanted.text));
        let asked = Asked {
            payload: payload.as_deref(),
            queue: queue.as_deref(),
            priority,
            start,
            active_key: active_text.as_ref().map(KeyText::as_str),
            resource_keys: &resource_keys,
            metadata: &metadata,
        };
        let fingerprint = Fingerprint::new(&key.key, &asked);
        AskedWindow {
            key,
            window: wanted.window,
            on_mismatch,
            release_on: release_on.unwrap_or(wanted.release_on),
            fingerprint,
        }
    });
    Ok(Prepared {
        ask: Ask {
            active: active_text.map(|text| AskedKey::new(Key::active(&name, text))),
            window,
            policy,
        },
        job: NewJob {
            name,
            queue: queue.unwrap_or_else(|| QUEUE_DEFAULT.into()),
            priority: priority.unwrap_or(0),
            payload: payload.unwrap_or_else(|| "null".into()),
            metadata,
            resource_keys: without_repeats(resource_keys),
            start: match start {
                None => Start::Now,
                Some(AskedStart::Delay(delay)) => Start::Delay(delay),
                Some(AskedStart::At(at)) => Start::At(at),
            },
            policy,
            retention: retention.unwrap_or(RETENTION_DEFAULT),
            parent,
        },
        orphan: parent.is_some_and(|parent| !parents.has(parent)),
    })
}

const NAME_RULE: &str = "1 to 128 of A-Z a-z 0-9 . _ : -";

/// Whether `name` can be the name of a job or of a queue.
pub fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_name_byte)
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-')
}

fn check_name(pointer: &str, name: &str) -> Result<(), Invalid> {
    if is_name(name) {
        Ok(())
    } else {
        Err(request(pointer, format!("a name or queue is {NAME_RULE}")))
    }
}

fn priority_of(priority: i64) -> Result<i16, Invalid> {
    priority
        .try_into()
        .map_err(|_| request("/priority", "a priority is a whole number from -32768 to 32767"))
}

fn start_of(delay: Option<String>, run_at: Option<String>, now: Instant) -> Result<Option<AskedStart>, Invalid> {
    match (delay, run_at) {
        (Some(_), Some(_)) => Err(request("/run_at", "give either run_at or delay, not both")),
        (Some(delay), None) => Ok(Some(AskedStart::Delay(duration_of(
            "/delay",
            &delay,
            Millis(0),
            TEN_YEARS,
        )?))),
        (None, Some(run_at)) => Ok(Some(AskedStart::At(run_at_of(&run_at, now)?))),
        (None, None) => Ok(None),
    }
}

/// An instant as RFC 3339 writes it, with an offset: a time without one is refused, not guessed.
pub fn instant_of(text: &str) -> Option<Instant> {
    // More digits than nanoseconds would be cut off in silence: two instants would become one.
    let digits = text
        .split_once('.')
        .map_or(0, |(_, rest)| rest.bytes().take_while(u8::is_ascii_digit).count());
    let instant = DateTime::parse_from_rfc3339(text).ok()?.to_utc();
    (digits <= 9).then_some(instant)
}

fn run_at_of(text: &str, now: Instant) -> Result<Instant, Invalid> {
    let Some(at) = instant_of(text) else {
        let detail =
            "run_at is an instant by RFC 3339 with an offset and at most nanoseconds, such as 2027-01-01T09:00:00Z";
        return Err(request("/run_at", detail));
    };
    if at > now + chrono::Duration::milliseconds(TEN_YEARS.0 as i64) {
        return Err(request("/run_at", "run_at is at most 10 years (3650 days) from now"));
    }
    // A leap second is the first of the next minute, here as in the database.
    Ok(at.with_nanosecond(at.nanosecond() % 1_000_000_000).map_or(at, |whole| {
        whole + chrono::Duration::seconds(i64::from(at.nanosecond() / 1_000_000_000))
    }))
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

fn on_mismatch_of(text: Option<String>) -> Result<OnMismatch, Invalid> {
    match text.as_deref() {
        None | Some("conflict") => Ok(OnMismatch::Conflict),
        Some("reuse") => Ok(OnMismatch::Reuse),
        Some(_) => Err(request(
            "/uniqueness/on_mismatch",
            "on_mismatch is \"conflict\" or \"reuse\"",
        )),
    }
}

fn release_on_of(names: Vec<String>) -> Result<FinalStates, Invalid> {
    let mut states = FinalStates::NONE;
    for (index, name) in names.into_iter().enumerate() {
        let Some(state) = FinalState::ALL.into_iter().find(|state| state.as_str() == name) else {
            let detail = "release_on lists final states: \"succeeded\", \"failed\", \"cancelled\"";
            return Err(request(&format!("/uniqueness/release_on/{index}"), detail));
        };
        states.insert(state);
    }
    Ok(states)
}

fn check_resource_keys(keys: &[String]) -> Result<(), Invalid> {
    if keys.len() > RESOURCE_KEYS_MAX {
        return Err(request(
            "/resource_keys",
            format!("at most {RESOURCE_KEYS_MAX} resource keys, not {}", keys.len()),
        ));
    }
    for (index, key) in keys.iter().enumerate() {
        let pointer = format!("/resource_keys/{index}");
        match key.split_once(':') {
            Some((scope, key)) if is_name(scope) => {
                key_of(&pointer, key)?;
            }
            _ => {
                let detail =
                    "a resource key is SCOPE:KEY, such as account:42, where a scope is 1 to 128 of A-Z a-z 0-9 . _ -";
                return Err(request(&pointer, detail));
            }
        }
    }
    Ok(())
}

/// A set, in the order in which its members were first named.
fn without_repeats(keys: Vec<String>) -> Vec<String> {
    let mut unique: Vec<String> = Vec::with_capacity(keys.len());
    for key in keys {
        if !unique.contains(&key) {
            unique.push(key);
        }
    }
    unique
}

fn check_metadata(members: &[(String, String)]) -> Result<(), Invalid> {
    if members.len() > METADATA_MEMBERS_MAX {
        let detail = format!(
            "metadata has at most {METADATA_MEMBERS_MAX} members, not {}",
            members.len()
        );
        return Err(request("/metadata", detail));
    }
    for (name, value) in members {
        let problem = if !(1..=METADATA_KEY_BYTES_MAX).contains(&name.len()) {
            "a metadata key has 1 to 128 bytes"
        } else if value.len() > METADATA_VALUE_BYTES_MAX {
            "a metadata value has at most 1024 bytes"
        } else if name.chars().chain(value.chars()).any(char::is_control) {
            "metadata holds no control characters"
        } else {
            continue;
        };
        let mut at = "/metadata".to_owned();
        pointer::push(&mut at, name);
        return Err(request(&at, problem));
    }
    Ok(())
}

/// A parent as it was posted.
pub fn parent_of((job_id, attempt): (String, Option<i64>)) -> Result<Parent, Invalid> {
    let job_id = job_id_of(&job_id).ok_or_else(|| request("/parent/job_id", "a job id is a UUID"))?;
    let attempt = match attempt.map(i32::try_from) {
        None => None,
        Some(Ok(attempt)) if attempt >= 1 => Some(attempt),
        Some(_) => return Err(request("/parent/attempt", "an attempt is a whole number from 1 on")),
    };
    Ok(Parent { job_id, attempt })
}

/// A job id in the one form in which it is given out: 36 characters with hyphens.
pub fn job_id_of(text: &str) -> Option<JobId> {
    (text.len() == 36).then(|| Uuid::try_parse(text).ok())?.map(JobId)
}

fn retry_of(retry: RetryRequest) -> Result<Retry, Invalid> {
    let RetryRequest {
        max_attempts,
        backoff,
        initial,
        factor,
        max,
        jitter,
    } = retry;
    let default = Retry::DEFAULT;
    let week = Millis(7 * DAY);
    Ok(Retry {
        max_attempts: match max_attempts {
            None => default.max_attempts,
            Some(attempts @ 1..=1_000) => attempts as i32,
            Some(_) => {
                return Err(request(
                    "/retry/max_attempts",
                    "max_attempts is a whole number from 1 to 1000",
                ));
            }
        },
        backoff: match backoff.as_deref() {
            None => default.backoff,
            Some("fixed") => Backoff::Fixed,
            Some("exponential") => Backoff::Exponential,
            Some(_) => return Err(request("/retry/backoff", "backoff is \"fixed\" or \"exponential\"")),
        },
        initial: match initial {
            None => default.initial,
            Some(text) => duration_of("/retry/initial", &text, Millis(0), week)?,
        },
        factor: match factor {
            None => default.factor,
            Some(factor) if (1.0..=100.0).contains(&factor) => factor,
            Some(_) => return Err(request("/retry/factor", "factor is a number from 1 to 100")),
        },
        max: match max {
            None => default.max,
            Some(text) => duration_of("/retry/max", &text, Millis(0), week)?,
        },
        jitter: jitter.unwrap_or(default.jitter),
    })
}

/// The parent that a dispatch names is not there.
pub fn unknown_parent() -> Invalid {
    Invalid::new(
        InvalidKind::Scope,
        "/parent/job_id",
        "the parent is no job of this application and environment",
    )
}
