//! The canonical form of a JSON value: one byte string for all the texts that mean the same, another for every other
//! value. Fingerprints are digests of it.
//!
//! ```text
//! value   = "n"                                      null
//!         / "t" / "f"                                true, false
//!         / "d" ["-"] digits "e" exponent ";"        the number digits × 10^exponent
//!         / string
//!         / "[" *value "]"
//!         / "{" *(string value) "}"                  members in ascending order of their keys' bytes, each key once
//! string  = "s" length ":" bytes                     UTF-8, unescaped; length: how many bytes, in decimal
//! ```
//!
//! `digits` begin and end with another digit than 0, `exponent` is a decimal integer (`-` in front if negative) without
//! leading zeros and never `-0`; zero is `d0e0;`, also where the text says `-0`. Strings are not normalized.
//!
//! Every value says by its first byte what it is and by itself where it ends, so values can be put one after another and
//! read back in one way only. Two different values therefore never have the same form.
//!
//! **This format is frozen.** Stored keys hold digests of it: whoever changes a byte of it makes honest retries look like
//! conflicts. A change needs a new fingerprint version, beside this one.

use std::cmp::Ordering;

use super::number;
use crate::json::MAX_DEPTH;
use crate::json::scan::{Scanner, Sink, Text};

/// The text has not passed `json::check` with at most its usual depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the text is not JSON that has passed json::check")]
pub struct NotChecked;

/// Appends the canonical form of a JSON text that has passed [`json::check`](crate::json::check), by itself or as a part
/// of a greater text, with a depth of at most [`MAX_DEPTH`].
///
/// Any other text is an error, and leaves `out` as it was.
pub fn write(text: &str, out: &mut Vec<u8>) -> Result<(), NotChecked> {
    let before = out.len();
    // A little more than the text, since a string says its length: growing would copy all of it.
    out.reserve(text.len() + text.len() / 8 + 64);
    let mut writer = Writer {
        out,
        // Room for what most payloads hold, so that they cost one allocation each.
        members: Vec::with_capacity(16),
        open: Vec::with_capacity(8),
        scratch: Vec::new(),
        unescaped: String::new(),
        duplicate: false,
    };
    let walked = Scanner::new(text, MAX_DEPTH).run(&mut writer);
    if walked.is_err() || writer.duplicate {
        out.truncate(before);
        return Err(NotChecked);
    }
    Ok(())
}

struct Writer<'o> {
    out: &'o mut Vec<u8>,
    /// The members of all open objects; the innermost object's are last.
    members: Vec<Member>,
    open: Vec<Object>,
    /// Where members are put in order. Each byte of the output passes through at most once per level around it.
    scratch: Vec<u8>,
    unescaped: String,
    duplicate: bool,
}

/// An object that is being written.
struct Object {
    /// Where its members begin in `members`.
    first: usize,
    sorted: bool,
}

/// Where a member stands in the output: offsets of its beginning, of the bytes of its key, and of its end (0 until that is
/// known).
struct Member {
    /// The first bytes of the key, which nearly always decide the order without a look at the key itself.
    prefix: u64,
    start: usize,
    key: usize,
    key_end: usize,
    end: usize,
}

impl Member {
    fn cmp(&self, other: &Self, out: &[u8]) -> Ordering {
        // Keys shorter than the prefix are padded with zeros, so an equal prefix decides nothing.
        self.prefix
            .cmp(&other.prefix)
            .then_with(|| out[self.key..self.key_end].cmp(&out[other.key..other.key_end]))
    }
}

impl Writer<'_> {
    fn write_string(&mut self, text: Text<'_>) {
        let plain = match text.plain() {
            Some(plain) => plain,
            None => {
                self.unescaped.clear();
                text.decode_into(&mut self.unescaped);
                &self.unescaped
            }
        };
        self.out.push(b's');
        number::write_integer(plain.len() as u64, self.out);
        self.out.push(b':');
        self.out.extend_from_slice(plain.as_bytes());
    }

    /// Puts the members from `first` on in order. They fill the output to its end.
    fn sort(&mut self, first: usize) {
        let out = &mut *self.out;
        let members = &mut self.members[first..];
        let Some(start) = members.first().map(|member| member.start) else {
            return;
        };
        members.sort_unstable_by(|a, b| a.cmp(b, out));
        self.duplicate |= members.windows(2).any(|pair| pair[0].cmp(&pair[1], out).is_eq());
        self.scratch.clear();
        for member in members {
            self.scratch.extend_from_slice(&out[member.start..member.end]);
        }
        out.truncate(start);
        out.extend_from_slice(&self.scratch);
    }
}

impl<'t> Sink<'t> for Writer<'_> {
    fn null(&mut self) {
        self.out.push(b'n');
    }

    fn boolean(&mut self, value: bool) {
        self.out.push(if value { b't' } else { b'f' });
    }

    fn number(&mut self, raw: &'t str) {
        number::write(raw, self.out);
    }

    fn string(&mut self, text: Text<'t>) {
        self.write_string(text);
    }

    fn open_array(&mut self) {
        self.out.push(b'[');
    }

    fn close_array(&mut self) {
        self.out.push(b']');
    }

    fn open_object(&mut self) {
        self.out.push(b'{');
        self.open.push(Object {
            first: self.members.len(),
            sorted: true,
        });
    }

    fn key(&mut self, key: Text<'t>) -> bool {
        let start = self.out.len();
        self.write_string(key);
        let key_end = self.out.len();
        let Some(object) = self.open.last_mut() else {
            return false;
        };
        // The key's bytes are the last of what was written; how many they are shows from the text.
        let length = key.plain().map_or(self.unescaped.len(), str::len);
        let key = key_end - length;
        let member = Member {
            prefix: prefix(&self.out[key..]),
            start,
            key,
            key_end,
            end: 0,
        };
        let previous = if self.members.len() > object.first {
            self.members.last_mut()
        } else {
            None
        };
        if let Some(previous) = previous {
            previous.end = start;
            match (*previous).cmp(&member, self.out) {
                Ordering::Less => {}
                Ordering::Equal => return false,
                Ordering::Greater => object.sorted = false,
            }
        }
        self.members.push(member);
        true
    }

    fn close_object(&mut self) {
        let Some(object) = self.open.pop() else { return };
        if !object.sorted {
            if let Some(last) = self.members.last_mut() {
                last.end = self.out.len();
            }
            self.sort(object.first);
        }
        self.members.truncate(object.first);
        self.out.push(b'}');
    }
}

/// The first eight bytes as a number that orders as they do; fewer are padded with zeros.
fn prefix(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => {
            let mut padded = [0; 8];
            padded[..key.len()].copy_from_slice(key);
            u64::from_be_bytes(padded)
        }
    }
}

#[cfg(test)]
mod tests;
