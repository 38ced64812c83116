//! The window key of a dispatch, in either of its spellings: `window_key` with `window`, or `idempotency_key`.

use std::collections::HashMap;

use crate::dispatch::prepare::{Invalid, InvalidKind};
use crate::duration::Millis;
use crate::job::{FinalState, FinalStates, JobId, Parent};
use crate::uniqueness::key::{KeyText, Scope};
use crate::uniqueness::window::Window;

/// How long an idempotency key is held where nothing is said: 30 days.
pub const TTL_DEFAULT: Millis = Millis(30 * 24 * 3_600_000);

/// The members that ask for a window key, as they were posted.
#[derive(Clone, Debug, Default)]
pub struct WindowRequest {
    pub window_key: Option<String>,
    pub window: Option<String>,
    pub idempotency_key: Option<String>,
    pub ttl: Option<String>,
    pub scope: Option<String>,
}

/// A window key that is asked for.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Asked {
    pub(super) text: KeyText,
    pub(super) scope: Scope,
    pub(super) window: Window,
    /// What frees it early, unless the dispatch says otherwise.
    pub(super) release_on: FinalStates,
}

/// The parents that dispatches name, with the attempt that each is at. One that is not there is missing.
#[derive(Clone, Debug, Default)]
pub struct Parents(pub HashMap<JobId, i32>);

impl Parents {
    pub(super) fn has(&self, parent: Parent) -> bool {
        self.0.contains_key(&parent.job_id)
    }
}

fn invalid(pointer: &str, detail: impl Into<String>) -> Invalid {
    Invalid::new(InvalidKind::Window, pointer, detail)
}

impl WindowRequest {
    pub(super) fn asked(self, parent: Option<Parent>, parents: &Parents) -> Result<Option<Asked>, Invalid> {
        let WindowRequest {
            window_key,
            window,
            idempotency_key,
            ttl,
            scope,
        } = self;
        if let (Some(_), Some(_)) = (&idempotency_key, &window_key) {
            let detail = "an idempotency_key is a window key by another spelling: give one of the two";
            return Err(Invalid::new(InvalidKind::Request, "/idempotency_key", detail));
        }
        match idempotency_key {
            Some(key) => {
                if window.is_some() {
                    let detail = "an idempotency_key is held for its idempotency_key_ttl: give that, and no window";
                    return Err(Invalid::new(InvalidKind::Request, "/uniqueness/window", detail));
                }
                let text = key_of("/idempotency_key", &key)?;
                let window = match ttl {
                    None => Window::of(TTL_DEFAULT),
                    Some(ttl) => Window::parse(&ttl),
                };
                let window = window.map_err(|error| invalid("/idempotency_key_ttl", error.to_string()))?;
                let scope = scope_of(scope.as_deref(), parent, parents)?;
                Ok(Some(Asked {
                    text,
                    scope,
                    window,
                    release_on: FinalStates::of(FinalState::Failed),
                }))
            }
            None => {
                if let Some((pointer, _)) = [("/idempotency_key_ttl", &ttl), ("/idempotency_key_scope", &scope)]
                    .into_iter()
                    .find(|(_, text)| text.is_some())
                {
                    let detail = "this goes with an idempotency_key: by itself it makes nothing unique";
                    return Err(Invalid::new(InvalidKind::Request, pointer, detail));
                }
                plain(window_key, window)
            }
        }
    }
}

fn plain(key: Option<String>, window: Option<String>) -> Result<Option<Asked>, Invalid> {
    match (key, window) {
        (None, None) => Ok(None),
        (Some(key), Some(window)) => {
            let text = key_of("/uniqueness/window_key", &key)?;
            let window = Window::parse(&window).map_err(|error| invalid("/uniqueness/window", error.to_string()))?;
            Ok(Some(Asked {
                text,
                scope: Scope::Global,
                window,
                release_on: FinalStates::NONE,
            }))
        }
        (Some(key), None) => {
            key_of("/uniqueness/window_key", &key)?;
            let detail = "a window_key needs a window, such as \"24h\": there is no default";
            Err(invalid("/uniqueness/window", detail))
        }
        (None, Some(_)) => {
            let detail = "a window needs a window_key: by itself it makes nothing unique";
            Err(invalid("/uniqueness/window", detail))
        }
    }
}

pub(super) fn key_of(pointer: &str, text: &str) -> Result<KeyText, Invalid> {
    KeyText::parse(text).map_err(|error| Invalid::new(InvalidKind::Key, pointer, error.to_string()))
}

/// Within what the key is held. Without a parent there is nothing narrower than everything.
fn scope_of(name: Option<&str>, parent: Option<Parent>, parents: &Parents) -> Result<Scope, Invalid> {
    let invalid = |pointer: &str, detail: &str| Invalid::new(InvalidKind::Scope, pointer, detail);
    match (name, parent) {
        (Some("global"), _) | (None | Some("run" | "attempt"), None) => Ok(Scope::Global),
        (None | Some("run"), Some(parent)) => Ok(Scope::Run(parent.job_id)),
        (Some("attempt"), Some(Parent { job_id, attempt })) => {
            let attempt = attempt.or_else(|| parents.0.get(&job_id).copied());
            let gone = || {
                invalid(
                    "/parent/job_id",
                    "the parent is no job of this application and environment",
                )
            };
            Ok(Scope::Attempt(job_id, attempt.ok_or_else(gone)?))
        }
        (Some(_), _) => Err(invalid(
            "/idempotency_key_scope",
            "a scope is \"run\", \"attempt\" or \"global\"",
        )),
    }
}

/// The scope of a key that is looked up or reset: `global` unless given, and nothing is filled in.
pub fn exact_scope(name: Option<&str>, parent: Option<Parent>) -> Result<Scope, Invalid> {
    let invalid = |pointer: &str, detail: &str| Invalid::new(InvalidKind::Scope, pointer, detail);
    match (name, parent) {
        (None | Some("global"), _) => Ok(Scope::Global),
        (Some("run"), Some(Parent { job_id, .. })) => Ok(Scope::Run(job_id)),
        (
            Some("attempt"),
            Some(Parent {
                job_id,
                attempt: Some(attempt),
            }),
        ) => Ok(Scope::Attempt(job_id, attempt)),
        (Some("run"), None) => Err(invalid("/parent", "a key of the scope \"run\" needs its parent")),
        (Some("attempt"), _) => Err(invalid(
            "/parent",
            "a key of the scope \"attempt\" needs its parent and the parent's attempt",
        )),
        (Some(_), _) => Err(invalid("/scope", "a scope is \"run\", \"attempt\" or \"global\"")),
    }
}
