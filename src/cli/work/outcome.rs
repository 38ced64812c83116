//! What a command that has ended means for its job. Pure.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use crate::client::Failure;
use crate::json::{self, MAX_DEPTH};

/// As much as a server keeps of a result.
pub(super) const RESULT_BYTES: usize = 1 << 20;
/// So much of the end of standard error becomes the message of a failure. Escaped it stays well below what a server keeps.
pub(super) const MESSAGE_BYTES: usize = 8 << 10;

/// What the server is told.
#[derive(Debug)]
pub(super) enum Report {
    Succeed(Box<RawValue>),
    Fail { error: Failure, retry: bool },
}

/// What a command wrote, as far as it is kept.
#[derive(Clone, Default)]
pub(super) struct Written {
    pub(super) bytes: Vec<u8>,
    /// Whether there was more than is kept.
    pub(super) cut: bool,
}

impl Written {
    /// Keeps the first `most` bytes.
    pub(super) fn keep_head(&mut self, chunk: &[u8], most: usize) {
        let room = most.saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
        self.cut |= chunk.len() > room;
    }

    /// Keeps the last `most` bytes.
    pub(super) fn keep_tail(&mut self, chunk: &[u8], most: usize) {
        let chunk = &chunk[chunk.len().saturating_sub(most)..];
        let excess = (self.bytes.len() + chunk.len()).saturating_sub(most);
        self.cut |= excess > 0;
        self.bytes.drain(..excess.min(self.bytes.len()));
        self.bytes.extend_from_slice(chunk);
    }
}

/// What to report of a command that ended by itself.
pub(super) fn report(status: ExitStatus, stdout: &Written, stderr: &Written, no_retry_status: u8) -> Report {
    let (details, said) = match (status.code(), status.signal()) {
        (Some(0), _) => return success(stdout),
        (Some(code), _) => (
            json!({ "status": code }),
            format!("the command exited with status {code}"),
        ),
        (None, signal) => {
            let signal = signal.unwrap_or_default();
            (
                json!({ "signal": signal }),
                format!("the command was killed by signal {signal}"),
            )
        }
    };
    let message = Some(tail(stderr)).filter(|tail| !tail.is_empty()).unwrap_or(said);
    let retry = status.code() != Some(no_retry_status.into());
    let error = Failure {
        message,
        kind: "exit",
        details,
    };
    Report::Fail { error, retry }
}

/// The result is what the command wrote: JSON to the letter, any other text as a string, null if there is none. As in a
/// shell, line ends at the end do not count.
fn success(stdout: &Written) -> Report {
    let result = match json::check(&stdout.bytes, MAX_DEPTH - 1) {
        // Whoever writes nothing says nothing.
        _ if stdout.bytes.trim_ascii().is_empty() => Some(RawValue::NULL.to_owned()),
        Ok(text) => RawValue::from_string(text.trim().into()).ok(),
        Err(_) => to_raw_value(String::from_utf8_lossy(&stdout.bytes).trim_end_matches(['\r', '\n'])).ok(),
    };
    match result {
        Some(result) if !stdout.cut && result.get().len() <= RESULT_BYTES => Report::Succeed(result),
        // Trying it again would do the work again, and most likely end the same.
        _ => Report::Fail {
            error: Failure {
                message: format!(
                    "the command exited with status 0, but what it wrote to standard output is more than the \
                     {RESULT_BYTES} bytes that a result may have"
                ),
                kind: "result_too_large",
                details: json!({ "status": 0 }),
            },
            retry: false,
        },
    }
}

/// The end of what was written, as text.
fn tail(stderr: &Written) -> String {
    // What was cut may have cut a character.
    let whole = stderr.bytes.iter().position(|byte| byte & 0xc0 != 0x80 || !stderr.cut);
    let text = String::from_utf8_lossy(&stderr.bytes[whole.unwrap_or_default()..]);
    let text = text.trim().replace('\0', "\u{fffd}");
    match stderr.cut && !text.is_empty() {
        true => format!("…{text}"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &[u8]) -> Written {
        Written {
            bytes: text.to_vec(),
            cut: false,
        }
    }

    fn result(stdout: &[u8]) -> String {
        match report(ExitStatus::from_raw(0), &written(stdout), &written(b"noise"), 100) {
            Report::Succeed(result) => result.get().to_owned(),
            Report::Fail { error, .. } => format!("failed: {}", error.kind),
        }
    }

    #[test]
    fn what_is_written_is_the_result() {
        let table: [(&[u8], &str); 12] = [
            (b"", "null"),
            (b"\n", "null"),
            (b"null\n", "null"),
            (b"42\n", "42"),
            (b"9007199254740993", "9007199254740993"),
            (
                b" {\"a\": 1.0,\n \"b\": \"\\u0000\"}\n",
                "{\"a\": 1.0,\n \"b\": \"\\u0000\"}",
            ),
            (b"\"text\"", "\"text\""),
            (b"hello\n", "\"hello\""),
            (b" two\nlines \n\n", "\" two\\nlines \""),
            (b"{\"a\":1,\"a\":2}", "\"{\\\"a\\\":1,\\\"a\\\":2}\""),
            (b"\xff", "\"\u{fffd}\""),
            (b"1 2", "\"1 2\""),
        ];
        for (stdout, wanted) in table {
            assert_eq!(result(stdout), wanted, "{:?}", String::from_utf8_lossy(stdout));
        }
        let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(result(deep(127).as_bytes()), deep(127));
        assert_eq!(result(deep(128).as_bytes()), format!("\"{}\"", deep(128)));
    }

    #[test]
    fn a_result_has_an_end() {
        assert!(result(&vec![b'7'; RESULT_BYTES]).starts_with("777"));
        assert_eq!(result(&vec![b'x'; RESULT_BYTES - 1]), "failed: result_too_large");
        let mut long = Written::default();
        long.keep_head(&vec![b'7'; RESULT_BYTES], RESULT_BYTES);
        assert!(!long.cut);
        long.keep_head(b"7", RESULT_BYTES);
        let report = report(ExitStatus::from_raw(0), &long, &Written::default(), 100);
        assert!(matches!(report, Report::Fail { retry: false, .. }), "{report:?}");
    }

    #[test]
    fn failures_say_why() {
        let of = |raw: i32, stderr: &Written| match report(ExitStatus::from_raw(raw), &written(b"x"), stderr, 100) {
            Report::Fail { error, retry } => (error.message, error.details.to_string(), retry),
            Report::Succeed(_) => panic!("a failure"),
        };
        let none = Written::default();
        let said = |text: &str| text.to_owned();
        assert_eq!(
            of(3 << 8, &none),
            (said("the command exited with status 3"), said("{\"status\":3}"), true)
        );
        assert_eq!(
            of(100 << 8, &written(b" no such order\n")),
            (said("no such order"), said("{\"status\":100}"), false)
        );
        assert_eq!(
            of(9, &none),
            (said("the command was killed by signal 9"), said("{\"signal\":9}"), true)
        );
        let mut long = Written::default();
        for _ in 0..MESSAGE_BYTES {
            long.keep_tail("é!\0".as_bytes(), MESSAGE_BYTES);
        }
        long.keep_tail(b"end\n", MESSAGE_BYTES);
        let (message, ..) = of(1 << 8, &long);
        assert!(
            message.starts_with('…') && message.ends_with("\u{fffd}end"),
            "{message}"
        );
        assert!(long.bytes.len() == MESSAGE_BYTES && !message.contains('\0'));
        long.keep_tail(&[b'x'; 3 * MESSAGE_BYTES], MESSAGE_BYTES);
        assert_eq!(long.bytes, [b'x'; MESSAGE_BYTES]);
    }
}
