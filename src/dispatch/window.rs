//! The window key of a dispatch, in either of its spellings: `window_key` with `window`, or `idempotency_key`.

use std::collections::HashMap;

use crate::duration::Millis;
use crate::job::{FinalState, FinalStates, JobId, Parent};
use crate::job_types::definition::WindowKey;
use crate::settings::{self, Invalid, InvalidKind};
use crate::uniqueness::decide::OnMismatch;
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
    /// The idempotency key of an item that has no window key of its own, neither given nor declared.
    pub otherwise: Option<String>,
}

/// A window key that is asked for.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Asked {
    pub(super) text: KeyText,
    pub(super) scope: Scope,
    pub(super) window: Window,
    /// What its job type says of a request that differs.
    pub(super) on_mismatch: Option<OnMismatch>,
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

fn mismatch(pointer: &str, what: &str) -> Invalid {
    let detail = format!("this {what} is not the one that the job type declares: leave it out, or give the same");
    Invalid::new(InvalidKind::KeyMismatch, pointer, detail)
}

impl WindowRequest {
    /// The window key that is asked for, given or declared: if both, they must be one.
    pub(super) fn asked(
        &self,
        parent: Option<Parent>,
        parents: &Parents,
        declared: Option<WindowKey>,
    ) -> Result<Option<Asked>, Invalid> {
        if let (Some(_), Some(_)) = (&self.idempotency_key, &self.window_key) {
            let detail = "an idempotency_key is a window key by another spelling: give one of the two";
            return Err(Invalid::request("/idempotency_key", detail));
        }
        let given_or_made = match (&self.idempotency_key, &self.window_key, &declared) {
            (None, None, None) => self.otherwise.as_deref(),
            (given, _, _) => given.as_deref(),
        };
        if let Some(key) = given_or_made {
            return self.idempotent(key, parent, parents, declared).map(Some);
        }
        if let Some((pointer, _)) = [
            ("/idempotency_key_ttl", &self.ttl),
            ("/idempotency_key_scope", &self.scope),
        ]
        .into_iter()
        .find(|(_, text)| text.is_some())
        {
            let detail = "this goes with an idempotency_key: by itself it makes nothing unique";
            return Err(Invalid::request(pointer, detail));
        }
        match self.plain(declared.as_ref())? {
            Some(given) => Ok(Some(given)),
            None => Ok(declared.map(|declared| Asked {
                text: declared.text,
                scope: Scope::Global,
                window: declared.window,
                on_mismatch: declared.on_mismatch,
                release_on: declared.release_on.unwrap_or(FinalStates::NONE),
            })),
        }
    }

    /// The spelling `idempotency_key`. It takes from a declared key what it does not say itself.
    fn idempotent(
        &self,
        key: &str,
        parent: Option<Parent>,
        parents: &Parents,
        declared: Option<WindowKey>,
    ) -> Result<Asked, Invalid> {
        if self.window.is_some() {
            let detail = "an idempotency_key is held for its idempotency_key_ttl: give that, and no window";
            return Err(Invalid::request("/uniqueness/window", detail));
        }
        let text = key_of("/idempotency_key", key)?;
        let ttl = self.ttl.as_deref();
        let ttl = ttl
            .map(|ttl| settings::window_of("/idempotency_key_ttl", ttl))
            .transpose()?;
        let scope = match (&self.scope, &declared) {
            // A declared key is held within nothing narrower than everything.
            (None, Some(_)) => Scope::Global,
            (scope, _) => scope_of(scope.as_deref(), parent, parents)?,
        };
        let failed = FinalStates::of(FinalState::Failed);
        let Some(declared) = declared else {
            let default =
                || Window::of(TTL_DEFAULT).map_err(|error| invalid("/idempotency_key_ttl", error.to_string()));
            return Ok(Asked {
                text,
                scope,
                window: ttl.map_or_else(default, Ok)?,
                on_mismatch: None,
                release_on: failed,
            });
        };
        if text != declared.text {
            return Err(mismatch("/idempotency_key", "idempotency_key"));
        }
        if ttl.is_some_and(|ttl| ttl != declared.window) {
            return Err(mismatch("/idempotency_key_ttl", "idempotency_key_ttl"));
        }
        if scope != Scope::Global {
            return Err(mismatch("/idempotency_key_scope", "scope"));
        }
        Ok(Asked {
            text,
            scope,
            window: declared.window,
            on_mismatch: declared.on_mismatch,
            release_on: declared.release_on.unwrap_or(failed),
        })
    }

    /// The spelling `window_key` with `window`.
    fn plain(&self, declared: Option<&WindowKey>) -> Result<Option<Asked>, Invalid> {
        match (&self.window_key, &self.window) {
            (None, None) => Ok(None),
            (Some(key), Some(window)) => {
                let text = key_of("/uniqueness/window_key", key)?;
                let window = settings::window_of("/uniqueness/window", window)?;
                if declared.is_some_and(|declared| declared.text != text) {
                    return Err(mismatch("/uniqueness/window_key", "window_key"));
                }
                if declared.is_some_and(|declared| declared.window != window) {
                    return Err(mismatch("/uniqueness/window", "window"));
                }
                Ok(Some(Asked {
                    text,
                    scope: Scope::Global,
                    window,
                    on_mismatch: declared.and_then(|declared| declared.on_mismatch),
                    release_on: declared
                        .and_then(|declared| declared.release_on)
                        .unwrap_or(FinalStates::NONE),
                }))
            }
            (Some(key), None) => {
                key_of("/uniqueness/window_key", key)?;
                let detail = "a window_key needs a window, such as \"24h\": there is no default";
                Err(invalid("/uniqueness/window", detail))
            }
            (None, Some(_)) => {
                let detail = "a window needs a window_key: by itself it makes nothing unique";
                Err(invalid("/uniqueness/window", detail))
            }
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
