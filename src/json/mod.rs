//! Strict reading of JSON text: what serde_json lets pass and a dispatch must not hold.
//!
//! serde_json takes the last of two equal keys, and a `RawValue` keeps lone surrogates and any depth. A dispatch read
//! like that could mean one thing here and another to the worker, or lose its uniqueness without a word. So every body
//! passes [`check`] once, before anything else looks at it.

mod fault;
mod keys;
pub mod pointer;
pub(crate) mod scan;

#[cfg(test)]
mod tests;

pub use fault::{Fault, FaultKind};

use fault::Problem;
use scan::Scanner;

/// How deep a request body may nest: `[]` has depth 1.
pub const MAX_DEPTH: usize = 128;

/// Checks a whole text in one pass and gives it back as a string.
///
/// What passes is exactly one RFC 8259 value, in valid UTF-8, nested at most `max_depth` deep, without lone surrogate
/// escapes, without an object key given twice at any depth (keys are compared after unescaping). Numbers may have any
/// length and any exponent; nothing is converted. The first fault in the text wins.
///
/// Linear time, whatever is sent; memory for the keys of the objects that are open, and `max_depth` frames.
pub fn check(bytes: &[u8], max_depth: usize) -> Result<&str, Fault> {
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            let mut scanner = Scanner::new(text, max_depth);
            match scanner.run(&mut keys::Unique::default()) {
                Ok(()) => Ok(text),
                Err(trouble) => Err(fault::build(&scanner, trouble)),
            }
        }
        Err(error) => Err(bad_encoding(bytes, error.valid_up_to(), max_depth)),
    }
}

/// The text is UTF-8 only up to `end`. A fault of another kind may stand before that; else the scanner has walked up to
/// the bad byte and knows in which value it lies.
#[cold]
fn bad_encoding(bytes: &[u8], end: usize, max_depth: usize) -> Fault {
    let good = bytes
        .get(..end)
        .and_then(|prefix| std::str::from_utf8(prefix).ok())
        .unwrap_or_default();
    let mut scanner = Scanner::new(good, max_depth);
    match scanner.run(&mut keys::Unique::default()) {
        Err(trouble) if trouble.offset < end => fault::build(&scanner, trouble),
        Err(trouble) => fault::build(
            &scanner,
            scan::Trouble {
                problem: Problem::Encoding,
                ..trouble
            },
        ),
        Ok(()) => fault::build(
            &scanner,
            scan::Trouble {
                problem: Problem::Encoding,
                offset: end,
                tokens: 0,
            },
        ),
    }
}
