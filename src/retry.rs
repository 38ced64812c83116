//! When a failed attempt is tried again. Pure, and total at any attempt number.

use crate::duration::Millis;
use crate::job::{Backoff, Retry};

/// The wait after the failure of attempt number `attempt` (from 1). `spread` is a number from 0 up to, but not
/// including, 1: with jitter the wait lies between half of it and all of it.
pub fn wait(retry: &Retry, attempt: i32, spread: f64) -> Millis {
    let max = retry.max.0 as f64;
    let grown = match retry.backoff {
        Backoff::Fixed => retry.initial.0 as f64,
        // At a large attempt number this is infinite, which the cap ends; 0 × infinity is no number, which it does not.
        Backoff::Exponential if retry.initial == Millis(0) => 0.0,
        Backoff::Exponential => retry.initial.0 as f64 * retry.factor.powi(attempt.max(1) - 1),
    };
    let capped = grown.min(max);
    Millis(if retry.jitter {
        capped * (0.5 + spread / 2.0)
    } else {
        capped
    } as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn retry(backoff: Backoff, jitter: bool) -> Retry {
        Retry {
            backoff,
            jitter,
            ..Retry::DEFAULT
        }
    }

    #[test]
    fn the_wait_grows_by_the_factor_up_to_the_most() {
        let exponential = retry(Backoff::Exponential, false);
        for (attempt, expected) in [
            (1, 1_000),
            (2, 2_000),
            (3, 4_000),
            (12, 2_048_000),
            (13, 3_600_000),
            (1_000, 3_600_000),
            (i32::MAX, 3_600_000),
        ] {
            assert_eq!(wait(&exponential, attempt, 0.0), Millis(expected), "{attempt}");
        }
        assert_eq!(wait(&retry(Backoff::Fixed, false), i32::MAX, 0.0), Millis(1_000));
        let at_once = Retry {
            initial: Millis(0),
            ..exponential
        };
        assert_eq!(wait(&at_once, i32::MAX, 0.0), Millis(0));
    }

    #[test]
    fn jitter_spreads_over_the_upper_half() {
        let jittered = retry(Backoff::Fixed, true);
        assert_eq!(
            [0.0, 0.5, 0.999].map(|spread| wait(&jittered, 1, spread).0),
            [500, 750, 999]
        );
    }

    proptest! {
        #[test]
        fn a_wait_is_never_longer_than_the_most(
            attempt: i32, initial in 0_u64..700_000_000, max in 0_u64..700_000_000, factor in 1.0..100.0_f64,
            exponential: bool, jitter: bool, spread in 0.0..1.0_f64,
        ) {
            let backoff = if exponential { Backoff::Exponential } else { Backoff::Fixed };
            let retry = Retry { max_attempts: 1, backoff, initial: Millis(initial), factor, max: Millis(max), jitter };
            prop_assert!(wait(&retry, attempt, spread) <= Millis(max));
        }
    }
}
