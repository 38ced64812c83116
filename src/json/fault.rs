//! Says what is wrong with a text. All of it runs after the walk has stopped, so that a good text pays nothing for it.

use super::pointer;
use super::scan::{Frame, Scanner, Trouble};

/// A pointer longer than this is cut back to an enclosing value.
const POINTER_BYTES: usize = 256;
/// So much of the input is shown at most.
const ECHO_CHARS: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Not the grammar of JSON.
    Syntax,
    /// Not UTF-8.
    Encoding,
    /// Half of a surrogate pair: no Unicode text.
    Surrogate,
    /// Nested deeper than allowed.
    Depth,
    /// An object key given twice.
    DuplicateKey,
}

/// What is wrong with a text, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Fault {
    pub kind: FaultKind,
    /// In bytes, from 0.
    pub offset: usize,
    /// RFC 6901 pointer of the value or member at fault; of a value around it, where its own would pass 256 bytes.
    pub pointer: String,
    /// One sentence for a person.
    pub detail: String,
}

/// What the scanner ran into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// The text ends too early.
    End,
    Value,
    Key,
    Colon,
    CommaOrBrace,
    CommaOrBracket,
    TrailingComma,
    Behind,
    Control,
    Escape,
    LeadingZero,
    Digit,
    Encoding,
    Surrogate,
    Depth,
    Duplicate,
}

#[cold]
pub(super) fn build(scanner: &Scanner<'_>, trouble: Trouble) -> Fault {
    let Trouble {
        problem,
        offset,
        tokens,
    } = trouble;
    let text = scanner.text;
    let kind = match problem {
        Problem::Encoding => FaultKind::Encoding,
        Problem::Surrogate => FaultKind::Surrogate,
        Problem::Depth => FaultKind::Depth,
        Problem::Duplicate => FaultKind::DuplicateKey,
        Problem::End
        | Problem::Value
        | Problem::Key
        | Problem::Colon
        | Problem::CommaOrBrace
        | Problem::CommaOrBracket
        | Problem::TrailingComma
        | Problem::Behind
        | Problem::Control
        | Problem::Escape
        | Problem::LeadingZero
        | Problem::Digit => FaultKind::Syntax,
    };
    let frames = scanner.frames.get(..tokens).unwrap_or_default();
    let (line, column) = position(text, offset);
    let place = format!("at byte {offset} (line {line}, column {column})");
    let found = found(text, offset);
    let detail = match problem {
        Problem::End if text.trim_ascii().is_empty() => {
            "the text is empty where a JSON value is required: send one, such as {}".to_owned()
        }
        Problem::End => format!("the JSON text ends too early {place}: send the rest of it"),
        Problem::Value => match hint(text, offset) {
            Some(hint) => format!("a JSON value is expected {place}, found {found}: {hint}"),
            None => format!("a JSON value is expected {place}, found {found}: put a value there or drop what is there"),
        },
        Problem::Key => {
            format!("an object key in double quotes is expected {place}, found {found}: write it as \"key\": value")
        }
        Problem::Colon => format!("\":\" is expected after an object key {place}, found {found}: write \"key\": value"),
        Problem::CommaOrBrace => {
            format!("\",\" or \"}}\" is expected after an object's member {place}, found {found}: put one there")
        }
        Problem::CommaOrBracket => {
            format!("\",\" or \"]\" is expected after an array's element {place}, found {found}: put one there")
        }
        Problem::TrailingComma => {
            format!("a comma has nothing behind it but {found} {place}: drop the comma")
        }
        Problem::Behind => {
            format!("something stands behind the JSON value {place}, found {found}: send one value and nothing else")
        }
        Problem::Control => {
            format!("a string holds the control character {found} as it is {place}: write it as an escape such as \\n")
        }
        Problem::Escape => {
            format!(
                "a string holds an escape that JSON does not have {place}, {found}: for a backslash itself write \\\\"
            )
        }
        Problem::LeadingZero => format!("the number {found} {place} begins with a needless zero: drop it"),
        Problem::Digit => format!("a number lacks a digit {place}, found {found}: write it as in -12.5e3"),
        Problem::Encoding => {
            format!("the text is not UTF-8 {place}: encode it as UTF-8 (bytes that are no text fit in as base64)")
        }
        Problem::Surrogate => format!(
            "the escape {found} {place} is half of a surrogate pair: write both halves, high then low, or the character itself"
        ),
        Problem::Depth => {
            format!(
                "the value {place} is nested deeper than {} levels: flatten the document",
                scanner.max_depth
            )
        }
        Problem::Duplicate => {
            let key = match frames.last() {
                Some(Frame::Object { key }) => echo(key.decode().chars()),
                _ => found,
            };
            format!("the key {key} is given twice in one object, again {place}: keep one of the two")
        }
    };
    Fault {
        kind,
        offset,
        pointer: pointer_of(frames),
        detail,
    }
}

/// The pointer that the frames make, or that of the nearest enclosing value that is short enough: true, if less exact.
fn pointer_of(frames: &[Frame<'_>]) -> String {
    let mut whole = String::new();
    for frame in frames {
        let before = whole.len();
        match frame {
            Frame::Array { index } => pointer::push(&mut whole, &index.to_string()),
            Frame::Object { key } => pointer::push(&mut whole, &key.decode()),
        }
        if whole.len() > POINTER_BYTES {
            whole.truncate(before);
            break;
        }
    }
    whole
}

/// Line and column, in characters, both from 1.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
}

/// What stands at the offset, quoted: a word, an escape, or one character.
fn found(text: &str, offset: usize) -> String {
    let rest = text.get(offset..).unwrap_or_default();
    let word = |c: &char| c.is_alphanumeric() || matches!(c, '_' | '+' | '-' | '.' | '$');
    if rest.is_empty() {
        "the end".to_owned()
    } else if rest.starts_with("\\u") {
        echo(
            rest.chars()
                .take(6)
                .take_while(|c| *c == '\\' || c.is_ascii_alphanumeric()),
        )
    } else if rest.starts_with('\\') {
        echo(rest.chars().take(2))
    } else if rest.starts_with(|c| word(&c)) {
        echo(rest.chars().take_while(word))
    } else {
        echo(rest.chars().take(1))
    }
}

/// Quotes what people see, not what could change how they see it: control and other invisible characters are escaped.
fn echo(mut chars: impl Iterator<Item = char>) -> String {
    let mut quoted = String::from("\"");
    for c in chars.by_ref().take(ECHO_CHARS) {
        match c {
            // Backslashes and quotes are shown as the sender wrote them.
            '\\' | '\'' | '"' => quoted.push(c),
            _ => quoted.extend(c.escape_debug()),
        }
    }
    if chars.next().is_some() {
        quoted.push('…');
    }
    quoted.push('"');
    quoted
}

/// What people write who mean another language than JSON.
fn hint(text: &str, offset: usize) -> Option<&'static str> {
    let rest = text.get(offset..).unwrap_or_default();
    let word: String = rest.chars().take_while(char::is_ascii_alphabetic).take(10).collect();
    let hint = match rest.chars().next()? {
        '\u{feff}' => "drop the byte order mark",
        '\'' | '`' | '“' | '”' => "strings stand in plain double quotes",
        '/' | '#' => "JSON has no comments",
        '.' => "a number needs a digit before the point",
        '+' => "a number has no plus sign",
        ',' => "drop the comma",
        _ => match word.to_ascii_lowercase().as_str() {
            "nan" | "infinity" | "inf" => "JSON has no such number, send null or a string",
            "null" | "none" | "nil" | "undefined" => "write null",
            "true" => "write true",
            "false" => "write false",
            _ if word.is_empty() => return None,
            _ => "strings stand in double quotes",
        },
    };
    Some(hint)
}
