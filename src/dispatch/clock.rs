//! What the database's clock says about now, without asking it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time;

use chrono::DateTime;

use crate::job::Instant;

/// The database's clock, carried on by a monotonic timer since it was last read. Good enough to bound how
/// far ahead a start time may lie; it decides nothing else.
#[derive(Debug)]
pub struct DatabaseClock {
    epoch: time::Instant,
    /// Microseconds from this server's epoch to the database's.
    offset: AtomicI64,
}

impl DatabaseClock {
    pub fn new(now: Instant) -> DatabaseClock {
        let clock = DatabaseClock {
            epoch: time::Instant::now(),
            offset: AtomicI64::new(0),
        };
        clock.set(now);
        clock
    }

    /// The clock was read just now.
    pub fn set(&self, now: Instant) {
        self.offset
            .store(now.timestamp_micros() - self.elapsed(), Ordering::Relaxed);
    }

    pub fn now(&self) -> Instant {
        let micros = self.offset.load(Ordering::Relaxed) + self.elapsed();
        DateTime::from_timestamp_micros(micros).unwrap_or_default()
    }

    fn elapsed(&self) -> i64 {
        self.epoch.elapsed().as_micros() as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_from_what_was_read() {
        let read = DateTime::from_timestamp_micros(4_000_000_000_000_000).unwrap();
        let clock = DatabaseClock::new(read);
        let (first, second) = (clock.now(), clock.now());
        assert!(read <= first && first <= second && second < read + chrono::Duration::hours(1));
    }
}
