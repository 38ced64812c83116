//! Everything about a dispatch that can be right or wrong by itself, before any key is looked up.

use std::sync::Arc;

use chrono::{DateTime, Timelike as _};
use uuid::Uuid;

use crate::dispatch::window::{Parents, WindowRequest, key_of};
use crate::duration::Millis;
use crate::job::{Instant, JobId, NewJob, Parent, Policy, Retry, Start};
use crate::job_types::definition::{DeclaredKeys, JobType};
use crate::job_types::registry::Snapshot;
use crate::job_types::selector::Input;
use crate::json::pointer;
use crate::settings::{self, Invalid, InvalidKind, QUEUE_DEFAULT, RETENTION_DEFAULT, RetryRequest, TEN_YEARS};
use crate::uniqueness::decide::{Ask, AskedKey, AskedWindow};
use crate::uniqueness::fingerprint::{Asked, AskedStart, Fingerprint};
use crate::uniqueness::key::{Key, KeyText};

pub const METADATA_MEMBERS_MAX: usize = 64;
pub const METADATA_KEY_BYTES_MAX: usize = 128;
pub const METADATA_VALUE_BYTES_MAX: usize = 1_024;
pub const RESOURCE_KEYS_MAX: usize = 16;

/// A dispatch as it was posted: every member has its JSON type and nothing more is known of it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub name: String,
    /// JSON text that has passed [`crate::json::check`].
    pub payload: Option<Arc<str>>,
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

/// A dispatch that may be decided.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub ask: Ask,
    pub job: NewJob,
    /// Its parent is not there: it may be answered with a job that is, and creates none.
    pub orphan: bool,
}

fn request(pointer: &str, detail: impl Into<String>) -> Invalid {
    Invalid::request(pointer, detail)
}

/// What a dispatch is prepared with.
#[derive(Clone, Debug)]
pub struct Surroundings<'a> {
    pub payload_bytes_max: usize,
    /// Bounds how far ahead a dispatch may start.
    pub now: Instant,
    pub parents: &'a Parents,
    /// The job types of its application.
    pub types: &'a Snapshot,
}

/// Prepares one dispatch. What it says itself comes before what its job type says, member by member.
pub fn prepare(request: &Request, surroundings: &Surroundings<'_>) -> Result<Prepared, Invalid> {
    let Surroundings {
        payload_bytes_max,
        now,
        parents,
        types,
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
    settings::check_name("/name", name)?;
    if let Some(queue) = queue {
        settings::check_name("/queue", queue)?;
    }
    let priority = priority.map(settings::priority_of).transpose()?;
    let start = start_of(delay.as_deref(), run_at.as_deref(), now)?;
    if let Some(payload) = payload.as_deref().filter(|payload| payload.len() > payload_bytes_max) {
        let detail = format!(
            "the payload has {} bytes and may have {payload_bytes_max}: store it elsewhere and send a reference",
            payload.len()
        );
        return Err(Invalid::new(InvalidKind::PayloadTooLarge, "/payload", detail));
    }
    check_resource_keys(resource_keys)?;
    check_metadata(metadata)?;
    let parent = parent.clone().map(parent_of).transpose()?;
    let kind = types.get(name)?;
    let policy = Policy {
        retry: settings::retry_of(retry, kind.map_or(Retry::DEFAULT, JobType::retry))?,
        timeout: match timeout {
            Some(text) => Some(settings::timeout_of(text)?),
            None => kind.and_then(JobType::timeout),
        },
    };
    let retention = match retention {
        Some(text) => Some(settings::retention_of(text)?),
        None => kind.and_then(JobType::retention),
    };
    let on_mismatch = on_mismatch.as_deref();
    let on_mismatch = on_mismatch.map(|text| settings::on_mismatch_of("/uniqueness/on_mismatch", text));
    let on_mismatch = on_mismatch.transpose()?;
    let release_on = release_on.as_deref();
    let release_on = release_on.map(|names| settings::release_on_of("/uniqueness/release_on", names));
    let release_on = release_on.transpose()?;
    let active_key = active_key.as_deref();
    let given = active_key
        .map(|text| key_of("/uniqueness/active_key", text))
        .transpose()?;
    let job_queue = queue.as_deref().or_else(|| kind?.queue()).unwrap_or(QUEUE_DEFAULT);
    let declared = match kind {
        None => DeclaredKeys::default(),
        Some(kind) => kind.keys(&Input {
            payload: payload.as_deref().unwrap_or("null"),
            metadata,
            name,
            queue: job_queue,
        })?,
    };
    let active_text = active_of(given, declared.active)?;
    let window = window.asked(parent, parents, declared.window)?.map(|wanted| {
        let key = AskedKey::new(Key::window(name, wanted.scope, wanted.text));
        // The keys as they are resolved, all else as it was asked for: a changed default is no other request.
        let asked = Asked {
            payload: payload.as_deref(),
            queue: queue.as_deref(),
            priority,
            start,
            active_key: active_text.as_ref().map(KeyText::as_str),
            resource_keys,
            metadata,
        };
        let fingerprint = Fingerprint::new(&key.key, &asked);
        AskedWindow {
            key,
            window: wanted.window,
            on_mismatch: on_mismatch.or(wanted.on_mismatch).unwrap_or_default(),
            release_on: release_on.unwrap_or(wanted.release_on),
            fingerprint,
        }
    });
    Ok(Prepared {
        ask: Ask {
            active: active_text.map(|text| AskedKey::new(Key::active(name, text))),
            window,
            policy,
        },
        job: NewJob {
            name: name.clone(),
            queue: job_queue.to_owned(),
            priority: priority.or_else(|| kind?.priority()).unwrap_or(0),
            payload: payload.clone().unwrap_or_else(|| "null".into()),
            metadata: metadata.clone(),
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

/// The active key: a declared one can be named as well, and not replaced.
fn active_of(given: Option<KeyText>, declared: Option<KeyText>) -> Result<Option<KeyText>, Invalid> {
    match (given, declared) {
        (Some(given), Some(declared)) if given != declared => {
            let detail = "this active_key is not the one that the job type declares: leave it out, or give the same";
            Err(Invalid::new(InvalidKind::KeyMismatch, "/uniqueness/active_key", detail))
        }
        (given, declared) => Ok(given.or(declared)),
    }
}

fn start_of(delay: Option<&str>, run_at: Option<&str>, now: Instant) -> Result<Option<AskedStart>, Invalid> {
    match (delay, run_at) {
        (Some(_), Some(_)) => Err(request("/run_at", "give either run_at or delay, not both")),
        (Some(delay), None) => Ok(Some(AskedStart::Delay(settings::duration_of(
            "/delay",
            delay,
            Millis(0),
            TEN_YEARS,
        )?))),
        (None, Some(run_at)) => Ok(Some(AskedStart::At(run_at_of(run_at, now)?))),
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
            Some((scope, key)) if settings::is_name(scope) => {
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
fn without_repeats(keys: &[String]) -> Vec<String> {
    let mut unique: Vec<String> = Vec::with_capacity(keys.len());
    for key in keys {
        if !unique.contains(key) {
            unique.push(key.clone());
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

/// The parent that a dispatch names is not there.
pub fn unknown_parent() -> Invalid {
    Invalid::new(
        InvalidKind::Scope,
        "/parent/job_id",
        "the parent is no job of this application and environment",
    )
}
