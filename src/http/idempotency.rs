//! The header `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header): a quoted structured-field string, as
//! the draft has it, or the bare text, as most clients send it.

use axum::extract::FromRequestParts;
use axum::http::HeaderValue;
use axum::http::request::Parts;

use crate::dispatch::prepare::Request;
use crate::http::App;
use crate::http::problem::{Code, Problem};

/// The key of the header, if there is one. It obeys the rules of keys only once it is a dispatch's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IdempotencyKey(pub Option<String>);

impl FromRequestParts<App> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        let mut values = parts.headers.get_all("idempotency-key").iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(IdempotencyKey(None)),
            (Some(value), None) => Ok(IdempotencyKey(Some(read(value)?))),
            (Some(_), Some(_)) => {
                let detail = "send one header Idempotency-Key, not several: which of them counts would be a guess";
                Err(Problem::new(Code::InvalidRequest, detail))
            }
        }
    }
}

pub(super) fn read(value: &HeaderValue) -> Result<String, Problem> {
    let invalid = |detail: &str| Problem::new(Code::InvalidKey, detail);
    let text = std::str::from_utf8(value.as_bytes());
    let text = text
        .map_err(|_| invalid("the header Idempotency-Key is not UTF-8"))?
        .trim();
    match text.strip_prefix('"') {
        None => Ok(text.to_owned()),
        Some(quoted) => unquote(quoted).ok_or_else(|| {
            let detail =
                "a quoted Idempotency-Key ends with its second quote and escapes only \\\" and \\\\ (RFC 8941)";
            invalid(detail)
        }),
    }
}

/// What stands before the closing quote, behind which nothing may come.
fn unquote(quoted: &str) -> Option<String> {
    let mut key = String::new();
    let mut chars = quoted.chars();
    loop {
        match chars.next()? {
            '"' => return chars.next().is_none().then_some(key),
            '\\' => key.push(chars.next().filter(|c| matches!(c, '"' | '\\'))?),
            c => key.push(c),
        }
    }
}

impl IdempotencyKey {
    /// Gives the key to a single dispatch.
    pub fn give(self, request: &mut Request) -> Result<(), Problem> {
        let Some(key) = self.0 else { return Ok(()) };
        match &request.window.idempotency_key {
            Some(other) if *other != key => {
                let detail =
                    "the header Idempotency-Key and the body's idempotency_key differ: give one, or the same twice";
                Err(Problem::new(Code::UniquenessKeyMismatch, detail).at("/idempotency_key"))
            }
            _ => {
                request.window.idempotency_key = Some(key);
                Ok(())
            }
        }
    }

    /// Gives the item of a batch its own key, for want of another window key: the batch can then be sent again.
    pub fn give_item(&self, index: usize, request: &mut Request) {
        request.window.otherwise = self.0.as_ref().map(|key| format!("{key}/{index}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_and_quoted_keys_are_read() {
        let key = |text: &str| read(&HeaderValue::from_bytes(text.as_bytes()).unwrap()).ok();
        for (text, expected) in [
            ("h-1", Some("h-1")),
            ("\"h-1\"", Some("h-1")),
            (" \"a \\\"b\\\" \\\\\" ", Some("a \"b\" \\")),
            ("a\"b", Some("a\"b")),
            ("\"\"", Some("")),
            ("\"a", None),
            ("\"a\"b", None),
            ("\"a\\b\"", None),
            ("é", Some("é")),
        ] {
            assert_eq!(key(text).as_deref(), expected, "{text}");
        }
        assert!(read(&HeaderValue::from_bytes(b"\xff").unwrap()).is_err());
    }
}
