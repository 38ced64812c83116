//! The decision: what becomes of one dispatch, given who holds its keys. Total, and without effects.

use crate::job::{FinalStates, Instant, JobId, Policy, State};
use crate::uniqueness::fingerprint::{Comparison, Fingerprint, Part};
use crate::uniqueness::key::{Key, KeyDigest};
use crate::uniqueness::window::{self, Window};

/// A key that a dispatch asks for, with the digest by which it is found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AskedKey {
    pub key: Key,
    pub digest: KeyDigest,
}

impl AskedKey {
    pub fn new(key: Key) -> AskedKey {
        AskedKey {
            digest: key.digest(),
            key,
        }
    }
}

/// What to do when a window key is held by another request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnMismatch {
    #[default]
    Conflict,
    Reuse,
}

/// The window key of a dispatch, and what the dispatch says of it.
#[derive(Clone, PartialEq, Debug)]
pub struct AskedWindow {
    pub key: AskedKey,
    pub window: Window,
    pub on_mismatch: OnMismatch,
    pub release_on: FinalStates,
    pub fingerprint: Fingerprint,
}

/// What a dispatch asks of uniqueness.
#[derive(Clone, PartialEq, Debug)]
pub struct Ask {
    pub active: Option<AskedKey>,
    pub window: Option<AskedWindow>,
    pub policy: Policy,
}

/// The job behind a key.
#[derive(Clone, PartialEq, Debug)]
pub struct HeldJob {
    pub id: JobId,
    /// The item of the batch being decided that created it: until the batch is stored, the job does not exist.
    pub created_by_item: Option<usize>,
    pub dispatched_at: Instant,
    pub active_key: Option<Box<str>>,
    /// `None` when the key outlived the job.
    pub now: Option<JobNow>,
}

/// What a stored job looks like to a decision.
#[derive(Clone, PartialEq, Debug)]
pub struct JobNow {
    pub state: State,
    pub policy: Policy,
}

/// Who holds a window key, over or not.
#[derive(Clone, PartialEq, Debug)]
pub struct WindowHolder {
    pub job: HeldJob,
    pub since: Instant,
    pub expires_at: Instant,
    pub fingerprint: Fingerprint,
}

/// Which of the keys led to the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Match {
    Active,
    Window,
    Both,
}

/// What becomes of a dispatch.
#[derive(Clone, PartialEq, Debug)]
pub enum Decision<'h> {
    /// Create the job and claim every key that was asked for.
    Create,
    /// Give back the job that is there.
    Reuse {
        job: &'h HeldJob,
        matched: Match,
        /// The window that answered; `None` when the window key asked for, if any, is to be linked to the job.
        window: Option<&'h WindowHolder>,
        /// Where the request differs although it is reused (`on_mismatch: reuse`).
        mismatch: Option<Vec<Part>>,
        drift: Vec<&'static str>,
    },
    Conflict {
        job: &'h HeldJob,
        differs: Vec<Part>,
    },
    CompositionConflict {
        window: &'h HeldJob,
        active: &'h HeldJob,
    },
}

/// Decides one dispatch at the instant `now`, read after its keys were locked.
///
/// `window` and `active` are what the keys asked for hold; `active` is a live job.
pub fn decide<'h>(
    ask: &Ask,
    window: Option<&'h WindowHolder>,
    active: Option<&'h HeldJob>,
    now: Instant,
) -> Decision<'h> {
    let held = window.filter(|holder| !window::is_over(holder.expires_at, now));
    match (&ask.window, held, active) {
        (Some(asked), Some(holder), active) => {
            let mismatch = match mutant!(
                "fingerprint_ignored": Comparison::Same, else asked.fingerprint.compare(&holder.fingerprint)
            ) {
                Comparison::Same => None,
                Comparison::Differs(differs) if asked.on_mismatch == OnMismatch::Conflict => {
                    return Decision::Conflict {
                        job: &holder.job,
                        differs,
                    };
                }
                Comparison::Differs(differs) => Some(differs),
            };
            let matched = match active {
                None => Match::Window,
                Some(job) if job.id == holder.job.id => Match::Both,
                Some(job) => {
                    return Decision::CompositionConflict {
                        window: &holder.job,
                        active: job,
                    };
                }
            };
            Decision::Reuse {
                job: &holder.job,
                matched,
                window: Some(holder),
                mismatch,
                drift: drift(&holder.job, &ask.policy),
            }
        }
        (_, _, Some(job)) => Decision::Reuse {
            job,
            matched: Match::Active,
            window: None,
            mismatch: None,
            drift: drift(job, &ask.policy),
        },
        (_, _, None) => Decision::Create,
    }
}

/// A job that is gone has no policy left to differ from.
fn drift(job: &HeldJob, asked: &Policy) -> Vec<&'static str> {
    job.now.as_ref().map(|job| job.policy.drift(asked)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use uuid::Uuid;

    use super::*;
    use crate::job::Retry;
    use crate::uniqueness::fingerprint::Asked;
    use crate::uniqueness::key::{KeyText, Scope};

    const POLICY: Policy = Policy {
        retry: Retry::DEFAULT,
        timeout: None,
    };

    fn at(second: i64) -> Instant {
        DateTime::from_timestamp(second, 0).unwrap()
    }

    fn fingerprint(priority: i16) -> Fingerprint {
        let key = Key::window("n", Scope::Global, KeyText::parse("w").unwrap());
        Fingerprint::new(
            &key,
            &Asked {
                priority: Some(priority),
                ..Asked::default()
            },
        )
    }

    fn ask(active: bool, window: Option<(i16, OnMismatch)>) -> Ask {
        let text = || KeyText::parse("w").unwrap();
        Ask {
            active: active.then(|| AskedKey::new(Key::active("n", text()))),
            window: window.map(|(priority, on_mismatch)| AskedWindow {
                key: AskedKey::new(Key::window("n", Scope::Global, text())),
                window: Window::parse("10s").unwrap(),
                on_mismatch,
                release_on: FinalStates::NONE,
                fingerprint: fingerprint(priority),
            }),
            policy: POLICY,
        }
    }

    fn job(id: u128) -> HeldJob {
        HeldJob {
            id: JobId(Uuid::from_u128(id)),
            created_by_item: None,
            dispatched_at: at(0),
            active_key: None,
            now: Some(JobNow {
                state: State::Pending,
                policy: POLICY,
            }),
        }
    }

    fn window(id: u128, priority: i16, expires: i64) -> WindowHolder {
        WindowHolder {
            job: job(id),
            since: at(0),
            expires_at: at(expires),
            fingerprint: fingerprint(priority),
        }
    }

    /// Every row of the rule: window held by (job, request), active key held by, on_mismatch → outcome.
    #[test]
    fn the_table_of_decisions() {
        use OnMismatch::{Conflict, Reuse};
        let create = "create".to_owned();
        let cases: Vec<(Ask, Option<WindowHolder>, Option<HeldJob>, String)> = vec![
            (ask(false, None), None, None, create.clone()),
            (ask(true, Some((1, Conflict))), None, None, create.clone()),
            (ask(true, None), None, Some(job(1)), "reuse 1 Active".into()),
            (
                ask(true, Some((1, Conflict))),
                None,
                Some(job(1)),
                "reuse 1 Active".into(),
            ),
            (
                ask(true, Some((1, Conflict))),
                Some(window(2, 1, 10)),
                None,
                "reuse 2 Window".into(),
            ),
            (
                ask(true, Some((1, Conflict))),
                Some(window(2, 1, 10)),
                Some(job(2)),
                "reuse 2 Both".into(),
            ),
            (
                ask(true, Some((1, Conflict))),
                Some(window(2, 1, 10)),
                Some(job(1)),
                "composition 2 1".into(),
            ),
            (
                ask(true, Some((1, Conflict))),
                Some(window(2, 7, 10)),
                None,
                "conflict 2 [Priority]".into(),
            ),
            (
                ask(true, Some((1, Conflict))),
                Some(window(2, 7, 10)),
                Some(job(1)),
                "conflict 2 [Priority]".into(),
            ),
            (
                ask(true, Some((1, Reuse))),
                Some(window(2, 7, 10)),
                None,
                "reuse 2 Window [Priority]".into(),
            ),
            (
                ask(true, Some((1, Reuse))),
                Some(window(2, 7, 10)),
                Some(job(2)),
                "reuse 2 Both [Priority]".into(),
            ),
            (
                ask(true, Some((1, Reuse))),
                Some(window(2, 7, 10)),
                Some(job(1)),
                "composition 2 1".into(),
            ),
            // Over: forgotten, whatever it held.
            (
                ask(true, Some((1, Conflict))),
                Some(window(2, 7, 5)),
                None,
                create.clone(),
            ),
            (
                ask(true, Some((1, Conflict))),
                Some(window(2, 1, 5)),
                Some(job(1)),
                "reuse 1 Active".into(),
            ),
            (
                ask(false, Some((1, Conflict))),
                Some(window(2, 1, 6)),
                None,
                "reuse 2 Window".into(),
            ),
        ];
        for (ask, window, active, expected) in cases {
            let outcome = match decide(&ask, window.as_ref(), active.as_ref(), at(5)) {
                Decision::Create => "create".into(),
                Decision::Reuse {
                    job, matched, mismatch, ..
                } => {
                    let mismatch = mismatch.map(|parts| format!(" {parts:?}")).unwrap_or_default();
                    format!("reuse {} {matched:?}{mismatch}", job.id.0.as_u128())
                }
                Decision::Conflict { job, differs } => format!("conflict {} {differs:?}", job.id.0.as_u128()),
                Decision::CompositionConflict { window, active } => {
                    format!("composition {} {}", window.id.0.as_u128(), active.id.0.as_u128())
                }
            };
            assert_eq!(outcome, expected, "{ask:?} {window:?} {active:?}");
        }
    }

    #[test]
    fn drift_is_told_and_a_job_that_is_gone_has_none() {
        let mut ask = ask(false, Some((1, OnMismatch::Conflict)));
        ask.policy.retry.max_attempts = 3;
        let mut holder = window(2, 1, 10);
        let drift_of = |holder: &WindowHolder| match decide(&ask, Some(holder), None, at(5)) {
            Decision::Reuse { drift, .. } => drift,
            other => panic!("{other:?}"),
        };
        assert_eq!(drift_of(&holder), ["retry.max_attempts"]);
        holder.job.now = None;
        assert_eq!(drift_of(&holder), Vec::<&str>::new());
    }
}
