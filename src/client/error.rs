//! What can go wrong with a request, and how an answer is told from a problem.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use hyper::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER};
use hyper::http::response::Parts;
use serde::Deserialize;

use crate::client::Document;

/// Why there is no answer that could be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server refused, and said why.
    #[error(transparent)]
    Problem(Box<Problem>),
    /// No connection: nothing was done.
    #[error("no server answers at {url}: {reason}")]
    Unreachable { url: String, reason: String },
    /// The connection or the time ended before the answer: it may have been done.
    #[error("the answer was lost, and what was asked for may have been done: {0}")]
    Lost(String),
    /// Something answered that is no Solejob server, or one that cannot be understood.
    #[error("this does not look like a Solejob server: {0}")]
    Strange(String),
    /// Nothing was sent.
    #[error("{0}")]
    Settings(String),
}

/// A problem (RFC 9457) as a server sent it.
#[derive(Clone, Debug)]
pub struct Problem {
    pub status: u16,
    pub code: String,
    pub detail: String,
    pub pointer: Option<String>,
    /// The item of a batch that failed it.
    pub index: Option<usize>,
    /// The invalid items of a batch.
    pub errors: Vec<ItemProblem>,
    /// Whether the server says that nothing was done.
    pub nothing_done: bool,
    pub retry_after: Option<Duration>,
    /// The problem to the letter.
    pub text: String,
}

/// What is wrong with one item of a batch.
#[derive(Clone, Deserialize, Debug)]
pub struct ItemProblem {
    pub index: usize,
    pub code: String,
    pub detail: String,
    pub pointer: Option<String>,
}

impl StdError for Problem {}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem {
            code, detail, pointer, ..
        } = self;
        write!(f, "{}: {}", printable(code), printable(detail))?;
        match pointer {
            Some(pointer) => write!(f, " (at {})", printable(pointer)),
            None => Ok(()),
        }
    }
}

impl Error {
    /// The code of the server's problem, if it is one.
    pub fn code(&self) -> Option<&str> {
        match self {
            Error::Problem(problem) => Some(&problem.code),
            Error::Unreachable { .. } | Error::Lost(_) | Error::Strange(_) | Error::Settings(_) => None,
        }
    }

    /// Whether what was asked for may have been done all the same.
    pub fn may_be_done(&self) -> bool {
        match self {
            Error::Problem(problem) => problem.status >= 500 && !problem.nothing_done,
            Error::Lost(_) => true,
            Error::Unreachable { .. } | Error::Strange(_) | Error::Settings(_) => false,
        }
    }

    /// Whether the server is away, and not the request at fault.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Error::Problem(problem) => matches!(problem.status, 429 | 502..=504),
            Error::Unreachable { .. } | Error::Lost(_) => true,
            Error::Strange(_) | Error::Settings(_) => false,
        }
    }
}

/// A text that cannot play with a terminal.
pub fn printable(text: &str) -> String {
    let escape = |c: char| -> String {
        match c.is_control() {
            true => c.escape_default().to_string(),
            false => c.into(),
        }
    };
    text.chars().map(escape).collect()
}

/// An error with what caused it, in one line.
pub(super) fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let inner = error.to_string();
        // Some libraries repeat their cause in their own text.
        if !text.contains(&inner) {
            text = format!("{text}: {inner}");
        }
        source = error.source();
    }
    text
}

#[derive(Deserialize)]
struct ProblemText {
    code: String,
    #[serde(default)]
    detail: String,
    pointer: Option<String>,
    index: Option<usize>,
    #[serde(default)]
    errors: Vec<ItemProblem>,
    outcome: Option<String>,
}

/// Reads an answer: a document, or the error that it is.
pub(super) fn read(head: &Parts, body: &[u8]) -> Result<Document, Error> {
    let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
    let status = head.status;
    if status.is_redirection() {
        let target = header(LOCATION).unwrap_or("another place");
        return Err(Error::Strange(format!(
            "it sends on to {target}; give the server's own URL"
        )));
    }
    let is_json = header(CONTENT_TYPE).is_some_and(|kind| {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("application/json") || kind.eq_ignore_ascii_case("application/problem+json")
    });
    let text = std::str::from_utf8(body).ok();
    if status.is_success() {
        return match text {
            Some(text) if is_json => Ok(Document(text.into())),
            _ => Err(Error::Strange(format!("it answered {status}, but no JSON"))),
        };
    }
    let retry_after = header(RETRY_AFTER).and_then(|seconds| seconds.trim().parse().ok());
    let retry_after = retry_after.map(Duration::from_secs);
    let problem = text
        .filter(|_| is_json)
        .and_then(|text| serde_json::from_str(text).ok());
    let problem = match (problem, text) {
        (Some(problem), Some(text)) => {
            let ProblemText {
                code,
                detail,
                pointer,
                index,
                errors,
                outcome,
            } = problem;
            Problem {
                status: status.as_u16(),
                code,
                detail,
                pointer,
                index,
                errors,
                nothing_done: outcome.as_deref() == Some("none"),
                retry_after,
                text: text.into(),
            }
        }
        // A balancer on the way, most likely.
        _ if matches!(status.as_u16(), 429 | 502..=504) => {
            let detail = "something on the way to the server answered in its place";
            Problem {
                status: status.as_u16(),
                code: format!("http_{}", status.as_u16()),
                detail: detail.into(),
                pointer: None,
                index: None,
                errors: Vec::new(),
                nothing_done: status.as_u16() == 429,
                retry_after,
                text: serde_json::json!({"status": status.as_u16(), "detail": detail}).to_string(),
            }
        }
        _ => return Err(Error::Strange(format!("it answered {status}, and not with a problem"))),
    };
    Err(Error::Problem(Box::new(problem)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, kind: &str, body: &str) -> Result<Document, Error> {
        let response = hyper::Response::builder().status(status).header(CONTENT_TYPE, kind);
        let response = response.header(RETRY_AFTER, "7").body(()).unwrap();
        read(&response.into_parts().0, body.as_bytes())
    }

    #[test]
    fn answers_come_to_the_letter() {
        let text = r#"{"payload": 9007199254740993, "e": 1e400}"#;
        assert_eq!(answer(200, "application/json; charset=utf-8", text).unwrap().0, text);
    }

    #[test]
    fn problems_are_read_and_other_answers_refused() {
        let text = r#"{"type":"/errors/x","code":"uniqueness_conflict","detail":"a\u001b[31m","index":3,"new":[1]}"#;
        let Err(Error::Problem(problem)) = answer(409, "application/problem+json", text) else {
            panic!("a problem");
        };
        assert_eq!(
            (problem.status, problem.index, problem.text.as_str()),
            (409, Some(3), text)
        );
        assert_eq!(problem.to_string(), "uniqueness_conflict: a\\u{1b}[31m");
        let Err(Error::Problem(problem)) = answer(503, "text/html", "<h1>Bad</h1>") else {
            panic!("a problem");
        };
        assert_eq!(
            (problem.nothing_done, problem.retry_after),
            (false, Some(Duration::from_secs(7)))
        );
        assert!(matches!(answer(404, "text/html", "<h1>"), Err(Error::Strange(_))));
        assert!(matches!(answer(200, "text/html", "<h1>"), Err(Error::Strange(_))));
        assert!(matches!(answer(302, "application/json", "{}"), Err(Error::Strange(_))));
    }
}
