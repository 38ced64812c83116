//! The one place that knows the grammar of JSON: walks a text and tells a [`Sink`] what it meets.
//!
//! No recursion: open arrays and objects are frames on a stack of at most `max_depth`, which also says, when something
//! is wrong, where in the document that is.

use std::borrow::Cow;

use super::fault::Problem;

/// What a walk is for. The scanner calls only in an order that makes one well-formed value, until it stops at a fault.
pub(crate) trait Sink<'t> {
    fn null(&mut self) {}
    fn boolean(&mut self, _value: bool) {}
    /// A number as it is written.
    fn number(&mut self, _raw: &'t str) {}
    fn string(&mut self, _text: Text<'t>) {}
    fn open_array(&mut self) {}
    fn close_array(&mut self) {}
    fn open_object(&mut self) {}
    fn close_object(&mut self) {}
    /// The key of the next member; false stops the walk: this object has the key already.
    fn key(&mut self, key: Text<'t>) -> bool;
}

/// A string between its quotes, well-formed, not yet unescaped.
#[derive(Clone, Copy)]
pub(crate) struct Text<'t> {
    raw: &'t str,
    escaped: bool,
}

impl<'t> Text<'t> {
    /// The string itself, if nothing in it is escaped.
    pub(crate) fn plain(self) -> Option<&'t str> {
        (!self.escaped).then_some(self.raw)
    }

    pub(crate) fn decode(self) -> Cow<'t, str> {
        match self.plain() {
            Some(plain) => Cow::Borrowed(plain),
            None => {
                let mut decoded = String::with_capacity(self.raw.len());
                self.decode_into(&mut decoded);
                Cow::Owned(decoded)
            }
        }
    }

    /// Appends the unescaped string.
    pub(crate) fn decode_into(self, out: &mut String) {
        let bytes = self.raw.as_bytes();
        let mut at = 0;
        loop {
            let run = plain_run(bytes, at);
            out.push_str(&self.raw[at..run]);
            // Nothing but an escape or the end can follow: the scanner has seen to that.
            let Some(&code) = bytes.get(run + 1) else { return };
            at = run + 2;
            out.push(match code {
                b'b' => '\u{8}',
                b'f' => '\u{c}',
                b'n' => '\n',
                b'r' => '\r',
                b't' => '\t',
                b'u' => {
                    let unit = hex4(bytes, at).unwrap_or_default();
                    at += 4;
                    let code = if (0xd800..0xdc00).contains(&unit) {
                        let low = hex4(bytes, at + 2).unwrap_or_default();
                        at += 6;
                        0x10000 + ((u32::from(unit) & 0x3ff) << 10 | u32::from(low) & 0x3ff)
                    } else {
                        u32::from(unit)
                    };
                    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
                }
                // `"`, `\` and `/` stand for themselves.
                other => char::from(other),
            });
        }
    }
}

/// An open array or object, and where in it the walk is.
pub(super) enum Frame<'t> {
    Array { index: usize },
    Object { key: Text<'t> },
}

/// Why a walk stopped.
pub(crate) struct Trouble {
    pub(super) problem: Problem,
    pub(super) offset: usize,
    /// So many of the frames lead to the value at fault: all of them, or all but the innermost if that itself is meant.
    pub(super) tokens: usize,
}

pub(crate) struct Scanner<'t> {
    pub(super) text: &'t str,
    bytes: &'t [u8],
    at: usize,
    pub(super) frames: Vec<Frame<'t>>,
    pub(super) max_depth: usize,
}

impl<'t> Scanner<'t> {
    pub(crate) fn new(text: &'t str, max_depth: usize) -> Self {
        Self {
            text,
            bytes: text.as_bytes(),
            at: 0,
            frames: Vec::new(),
            max_depth,
        }
    }

    /// Walks the whole text.
    pub(crate) fn run<S: Sink<'t>>(&mut self, sink: &mut S) -> Result<(), Trouble> {
        self.white();
        'value: loop {
            match self.peek() {
                Some(b'"') => {
                    let text = self.string(self.frames.len())?;
                    sink.string(text);
                }
                Some(b'{') => {
                    self.open(Frame::Object {
                        key: Text {
                            raw: "",
                            escaped: false,
                        },
                    })?;
                    sink.open_object();
                    if self.peek() != Some(b'}') {
                        self.key(sink)?;
                        continue 'value;
                    }
                    self.close();
                    sink.close_object();
                }
                Some(b'[') => {
                    self.open(Frame::Array { index: 0 })?;
                    sink.open_array();
                    if self.peek() != Some(b']') {
                        continue 'value;
                    }
                    self.close();
                    sink.close_array();
                }
                Some(b'-' | b'0'..=b'9') => {
                    let raw = self.number()?;
                    sink.number(raw);
                }
                Some(b'n') if self.literal(b"null") => sink.null(),
                Some(b't') if self.literal(b"true") => sink.boolean(true),
                Some(b'f') if self.literal(b"false") => sink.boolean(false),
                Some(_) => return Err(self.trouble(Problem::Value)),
                None => return Err(self.trouble(Problem::End)),
            }
            // A value is complete. Close what ends with it, up to a comma that brings the next.
            loop {
                self.white();
                let next = self.peek();
                match self.frames.last_mut() {
                    None if next.is_none() => return Ok(()),
                    None => return Err(self.trouble(Problem::Behind)),
                    Some(Frame::Array { index }) => match next {
                        Some(b',') => {
                            *index += 1;
                            self.at += 1;
                            self.white();
                            if self.peek() == Some(b']') {
                                return Err(self.trouble_around(Problem::TrailingComma));
                            }
                            continue 'value;
                        }
                        Some(b']') => {
                            self.close();
                            sink.close_array();
                        }
                        Some(_) => return Err(self.trouble_around(Problem::CommaOrBracket)),
                        None => return Err(self.trouble_around(Problem::End)),
                    },
                    Some(Frame::Object { .. }) => match next {
                        Some(b',') => {
                            self.at += 1;
                            self.white();
                            if self.peek() == Some(b'}') {
                                return Err(self.trouble_around(Problem::TrailingComma));
                            }
                            self.key(sink)?;
                            continue 'value;
                        }
                        Some(b'}') => {
                            self.close();
                            sink.close_object();
                        }
                        Some(_) => return Err(self.trouble_around(Problem::CommaOrBrace)),
                        None => return Err(self.trouble_around(Problem::End)),
                    },
                }
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn white(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    fn open(&mut self, frame: Frame<'t>) -> Result<(), Trouble> {
        if self.frames.len() >= self.max_depth {
            return Err(self.trouble(Problem::Depth));
        }
        self.frames.push(frame);
        self.at += 1;
        self.white();
        Ok(())
    }

    fn close(&mut self) {
        self.frames.pop();
        self.at += 1;
    }

    /// A key, its colon and the white space behind it.
    fn key<S: Sink<'t>>(&mut self, sink: &mut S) -> Result<(), Trouble> {
        match self.peek() {
            Some(b'"') => {}
            Some(_) => return Err(self.trouble_around(Problem::Key)),
            None => return Err(self.trouble_around(Problem::End)),
        }
        let offset = self.at;
        let text = self.string(self.frames.len() - 1)?;
        if let Some(Frame::Object { key }) = self.frames.last_mut() {
            *key = text;
        }
        if !sink.key(text) {
            return Err(Trouble {
                problem: Problem::Duplicate,
                offset,
                tokens: self.frames.len(),
            });
        }
        self.white();
        match self.peek() {
            Some(b':') => {}
            Some(_) => return Err(self.trouble(Problem::Colon)),
            None => return Err(self.trouble(Problem::End)),
        }
        self.at += 1;
        self.white();
        Ok(())
    }

    fn literal(&mut self, word: &[u8]) -> bool {
        let found = self.bytes[self.at..].starts_with(word);
        if found {
            self.at += word.len();
        }
        found
    }

    fn string(&mut self, tokens: usize) -> Result<Text<'t>, Trouble> {
        let start = self.at + 1;
        let mut at = start;
        let mut escaped = false;
        loop {
            at = plain_run(self.bytes, at);
            match self.bytes.get(at) {
                Some(b'"') => {
                    self.at = at + 1;
                    return Ok(Text {
                        raw: &self.text[start..at],
                        escaped,
                    });
                }
                Some(b'\\') => {
                    escaped = true;
                    at = match self.escape(at) {
                        Ok(next) => next,
                        Err((problem, offset)) => {
                            return Err(Trouble {
                                problem,
                                offset,
                                tokens,
                            });
                        }
                    };
                }
                Some(_) => {
                    return Err(Trouble {
                        problem: Problem::Control,
                        offset: at,
                        tokens,
                    });
                }
                None => {
                    return Err(Trouble {
                        problem: Problem::End,
                        offset: at,
                        tokens,
                    });
                }
            }
        }
    }

    /// The offset behind the escape that begins at `at`.
    fn escape(&self, at: usize) -> Result<usize, (Problem, usize)> {
        match self.bytes.get(at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
            Some(b'u') => match hex4(self.bytes, at + 2) {
                Some(0xd800..=0xdbff) => {
                    let pair = self.bytes.get(at + 6..at + 8) == Some(b"\\u".as_slice())
                        && matches!(hex4(self.bytes, at + 8), Some(0xdc00..=0xdfff));
                    if pair {
                        Ok(at + 12)
                    } else {
                        Err((Problem::Surrogate, at))
                    }
                }
                Some(0xdc00..=0xdfff) => Err((Problem::Surrogate, at)),
                Some(_) => Ok(at + 6),
                None if self.bytes[at + 2..].iter().take(4).all(u8::is_ascii_hexdigit) => {
                    Err((Problem::End, self.bytes.len()))
                }
                None => Err((Problem::Escape, at)),
            },
            Some(_) => Err((Problem::Escape, at)),
            None => Err((Problem::End, at + 1)),
        }
    }

    fn number(&mut self) -> Result<&'t str, Trouble> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
            if let Some(b'0'..=b'9') = self.peek() {
                return Err(Trouble {
                    problem: Problem::LeadingZero,
                    offset: start,
                    tokens: self.frames.len(),
                });
            }
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(&self.text[start..self.at])
    }

    fn digits(&mut self) -> Result<(), Trouble> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        match self.peek() {
            _ if self.at > start => Ok(()),
            Some(_) => Err(self.trouble(Problem::Digit)),
            None => Err(self.trouble(Problem::End)),
        }
    }

    /// Something is wrong here with the value that begins or goes on here.
    fn trouble(&self, problem: Problem) -> Trouble {
        Trouble {
            problem,
            offset: self.at,
            tokens: self.frames.len(),
        }
    }

    /// Something is wrong here with the innermost open array or object.
    fn trouble_around(&self, problem: Problem) -> Trouble {
        Trouble {
            problem,
            offset: self.at,
            tokens: self.frames.len().saturating_sub(1),
        }
    }
}

/// The offset, from `at` on, of the first byte that ends a run of ordinary characters in a string: a quote, a backslash,
/// a control character, or the end. Eight bytes at a time; in each step the lowest marked byte is exact, because a borrow
/// only ever runs upwards.
fn plain_run(bytes: &[u8], mut at: usize) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    while let Some(chunk) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*chunk);
        let quote = word ^ (ONES * 0x22);
        let backslash = word ^ (ONES * 0x5c);
        let marked = (quote.wrapping_sub(ONES) & !quote
            | backslash.wrapping_sub(ONES) & !backslash
            | word.wrapping_sub(ONES * 0x20) & !word)
            & HIGH;
        if marked != 0 {
            return at + (marked.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while let Some(&byte) = bytes.get(at)
        && !matches!(byte, b'"' | b'\\' | 0..0x20)
    {
        at += 1;
    }
    at
}

/// Four hexadecimal digits.
fn hex4(bytes: &[u8], at: usize) -> Option<u16> {
    let digits = bytes.get(at..)?.first_chunk::<4>()?;
    digits.iter().try_fold(0, |value: u16, &digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            b'A'..=b'F' => digit - b'A' + 10,
            _ => return None,
        };
        Some(value << 4 | u16::from(digit))
    })
}
