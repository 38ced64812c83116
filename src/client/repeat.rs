//! Whether a failed request is sent again, and after which pause. Pure.

use std::time::Duration;

use crate::client::Error;

/// When a request may be sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repeat {
    /// After any failure that a repeat can mend: doing it twice is as doing it once.
    Safe,
    /// Only when it is sure that nothing was done.
    IfNothingDone,
}

/// The pause before the second try, at most; it doubles with each.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(5);
/// A fault of the server rarely goes away by itself.
const ROUNDS_AFTER_FAULT: u32 = 2;

/// The pause before the next try after `round` earlier ones; `None` ends it. `random` spreads clients that failed
/// together.
pub(super) fn pause(error: &Error, repeat: Repeat, round: u32, random: u32) -> Option<Duration> {
    let wanted = match error {
        Error::Unreachable { .. } => Duration::ZERO,
        Error::Lost(_) if repeat == Repeat::Safe => Duration::ZERO,
        Error::Problem(problem) => match problem.status {
            429 | 502..=504 if problem.nothing_done || repeat == Repeat::Safe => {
                problem.retry_after.unwrap_or_default()
            }
            500 if repeat == Repeat::Safe && round < ROUNDS_AFTER_FAULT => Duration::ZERO,
            _ => return None,
        },
        Error::Lost(_) | Error::Strange(_) | Error::Settings(_) => return None,
    };
    let most = FIRST.saturating_mul(1 << round.min(10)).min(LONGEST);
    // Between a half and all of it. What the server asked for is never cut short.
    let spread = most.mul_f64(0.5 + f64::from(random) / f64::from(u32::MAX) / 2.0);
    Some(if wanted.is_zero() {
        spread
    } else {
        wanted + spread.min(wanted)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Problem;
    use Repeat::{IfNothingDone, Safe};

    fn problem(status: u16, nothing_done: bool) -> Error {
        Error::Problem(Box::new(Problem {
            status,
            code: "x".into(),
            detail: String::new(),
            pointer: None,
            index: None,
            errors: Vec::new(),
            nothing_done,
            retry_after: Some(Duration::from_secs(3)),
            text: String::new(),
        }))
    }

    #[test]
    fn nothing_is_done_twice() {
        let unreachable = Error::Unreachable {
            url: String::new(),
            reason: String::new(),
        };
        let table = [
            (unreachable, true, true),
            (Error::Lost(String::new()), true, false),
            (problem(503, true), true, true),
            (problem(503, false), true, false),
            (problem(429, true), true, true),
            (problem(504, false), true, false),
            (problem(500, false), true, false),
            (problem(409, false), false, false),
            (problem(400, false), false, false),
            (Error::Strange(String::new()), false, false),
            (Error::Settings(String::new()), false, false),
        ];
        for (error, safe, unsafe_) in table {
            assert_eq!(pause(&error, Safe, 0, 0).is_some(), safe, "{error:?}");
            assert_eq!(pause(&error, IfNothingDone, 0, 0).is_some(), unsafe_, "{error:?}");
        }
        assert_eq!(pause(&problem(500, false), Safe, ROUNDS_AFTER_FAULT, 0), None);
    }

    #[test]
    fn pauses_grow_and_spread_and_honour_the_server() {
        let lost = Error::Lost(String::new());
        let range = |round| [0, u32::MAX].map(|random| pause(&lost, Safe, round, random).unwrap().as_millis());
        assert_eq!(range(0), [100, 200]);
        assert_eq!(range(2), [400, 800]);
        assert_eq!(range(40), [2_500, 5_000]);
        let asked = [0, u32::MAX].map(|random| pause(&problem(503, true), Safe, 9, random).unwrap().as_millis());
        assert_eq!(asked, [5_500, 6_000]);
    }
}
