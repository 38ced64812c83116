//! Windows: for how long a window key is held, and when it is over.

use crate::duration::{self, Millis};
use crate::job::Instant;

/// The longest window: 3,650 days.
pub const WINDOW_MAX: Millis = Millis(3_650 * 24 * 3_600_000);

/// How long a window key is held from the dispatch that set it. It never slides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window(Millis);

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidWindow {
    #[error("{0}")]
    Duration(#[from] duration::ParseError),
    #[error("a window is longer than zero and at most 3650 days")]
    OutOfRange,
}

impl Window {
    pub fn parse(text: &str) -> Result<Window, InvalidWindow> {
        Window::of(duration::parse(text)?)
    }

    /// A window of this length.
    pub fn of(length: Millis) -> Result<Window, InvalidWindow> {
        match length {
            Millis(0) => Err(InvalidWindow::OutOfRange),
            window if window > WINDOW_MAX => Err(InvalidWindow::OutOfRange),
            window => Ok(Window(window)),
        }
    }

    pub fn millis(self) -> Millis {
        self.0
    }

    /// The first instant at which a key set at `since` is free again.
    pub fn end(self, since: Instant) -> Instant {
        since + chrono::Duration::milliseconds(self.0.0 as i64)
    }
}

/// The one rule of the edge: a key is held while now is before its end, and free from its end on.
pub fn is_over(expires_at: Instant, now: Instant) -> bool {
    now >= expires_at
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    #[test]
    fn the_bounds_of_a_window() {
        for (text, valid) in [
            ("1ms", true),
            ("3650d", true),
            ("315360000000ms", true),
            ("315360000001ms", false),
            ("3651d", false),
            ("0s", false),
            ("-1h", false),
            ("", false),
            ("9999999999999999999d", false),
            ("P1Y", false),
        ] {
            assert_eq!(Window::parse(text).is_ok(), valid, "{text}");
        }
    }

    #[test]
    fn the_edge_belongs_to_what_comes_after() {
        let since = DateTime::from_timestamp_micros(1_700_000_000_000_001).unwrap();
        let end = Window::parse("10s").unwrap().end(since);
        let micro = chrono::Duration::microseconds(1);
        assert_eq!(end - since, chrono::Duration::seconds(10));
        assert_eq!(
            [end - micro, end, end + micro].map(|now| is_over(end, now)),
            [false, true, true]
        );
    }
}
