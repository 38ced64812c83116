//! Every error that a client can meet: one table feeds its body, its status, its page and its OpenAPI entry.

use std::collections::BTreeMap;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::openapi::response::{Response as ResponseDoc, ResponseBuilder};
use utoipa::openapi::{ContentBuilder, Ref, RefOr};
use utoipa::{PartialSchema as _, ToSchema};
use uuid::Uuid;

use crate::dispatch::{Failure, Outcome};
use crate::life::Refused;
use crate::settings::{Invalid, InvalidKind};
use crate::store;
use crate::uniqueness::receipt::{JobRef, Refusal};
use crate::work;

macro_rules! problems {
    ($($code:ident = $text:literal, $status:literal, $title:literal;)*) => {
        /// What went wrong, as a program tells it.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Code { $($code),* }

        impl Code {
            pub const ALL: &'static [Code] = &[$(Code::$code),*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$code => $text),* }
            }

            pub const fn status(self) -> u16 {
                match self { $(Code::$code => $status),* }
            }

            pub const fn title(self) -> &'static str {
                match self { $(Code::$code => $title),* }
            }

            /// What it means and what to do, in Markdown: the page at `/errors/CODE`.
            pub const fn page(self) -> &'static str {
                match self { $(Code::$code => include_str!(concat!("../../docs/problems/", $text, ".md"))),* }
            }
        }
    };
}

problems! {
    InvalidJson = "invalid_json", 400, "The body is not valid JSON";
    InvalidRequest = "invalid_request", 400, "The request is not valid";
    InvalidKey = "invalid_key", 400, "The key is not valid";
    InvalidWindow = "invalid_window", 400, "The window is not valid";
    InvalidDuration = "invalid_duration", 400, "The duration is not valid";
    InvalidPayload = "invalid_payload", 400, "An object key is given twice";
    InvalidCursor = "invalid_cursor", 400, "The cursor is not valid";
    Unauthorized = "unauthorized", 401, "No valid token";
    Forbidden = "forbidden", 403, "The token lacks the right";
    JobNotFound = "job_not_found", 404, "No such job";
    JobTypeNotFound = "job_type_not_found", 404, "Nothing is declared for this name";
    ResourceScopeNotFound = "resource_scope_not_found", 404, "No such resource scope";
    NotFound = "not_found", 404, "No such path";
    MethodNotAllowed = "method_not_allowed", 405, "The path does not take this method";
    UniquenessConflict = "uniqueness_conflict", 409, "The window key belongs to a different request";
    UniquenessCompositionConflict = "uniqueness_composition_conflict", 409, "The two keys belong to two different jobs";
    ActiveKeyHeld = "active_key_held", 409, "Another live job has the active key";
    JobNotFinished = "job_not_finished", 409, "The job is not finished";
    JobFinished = "job_finished", 409, "The job is already finished";
    LeaseLost = "lease_lost", 409, "The lease is not the job's any more";
    PayloadTooLarge = "payload_too_large", 413, "The payload or body is too large";
    BatchTooLarge = "batch_too_large", 413, "The batch is too large";
    UnsupportedMediaType = "unsupported_media_type", 415, "The body is not declared as JSON";
    UniquenessRequired = "uniqueness_required", 422, "A declared key is null";
    UniquenessKeyMismatch = "uniqueness_key_mismatch", 422, "Two spellings of one key differ";
    KeySelectorFailed = "key_selector_failed", 422, "A declared key could not be made";
    InvalidSelector = "invalid_selector", 422, "The expression of a key is not valid";
    IdempotencyScopeInvalid = "idempotency_scope_invalid", 422, "The parent or scope is not valid";
    Internal = "internal", 500, "The server failed";
    Overloaded = "overloaded", 503, "The server is overloaded";
    StoreUnavailable = "store_unavailable", 503, "The database is not available";
    ShuttingDown = "shutting_down", 503, "The server is shutting down";
}

impl Code {
    pub fn from_text(text: &str) -> Option<Code> {
        Code::ALL.iter().copied().find(|code| code.as_str() == text)
    }
}

/// An error as RFC 9457 writes it.
#[derive(Clone, PartialEq, Serialize, ToSchema, Debug)]
#[schema(as = Problem)]
pub struct ProblemBody {
    /// Where the page about this error is.
    #[serde(rename = "type")]
    #[schema(example = "/errors/invalid_key")]
    kind: String,
    #[schema(example = "The key is not valid")]
    title: &'static str,
    #[schema(example = 400)]
    status: u16,
    /// What is wrong with this request, and what to do.
    detail: String,
    #[schema(example = "invalid_key")]
    code: &'static str,
    /// JSON pointer to the member at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "/uniqueness/active_key")]
    pointer: Option<String>,
    /// The item of the batch that failed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    /// The job that holds the window key; null if it is an item of the batch that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Uuid>)]
    conflicting_job_id: Option<Option<Uuid>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conflicting_index: Option<usize>,
    /// Which parts of the request differ from the one that set the window key.
    #[serde(skip_serializing_if = "Option::is_none")]
    differs: Option<Vec<&'static str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Uuid>)]
    window_job_id: Option<Option<Uuid>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Uuid>)]
    active_job_id: Option<Option<Uuid>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    active_index: Option<usize>,
    /// Every invalid item of a batch, at most 100 of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<Vec<ItemError>>,
    /// Of a 503: "none" if nothing was done, "unknown" if the dispatch may be stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "none")]
    outcome: Option<&'static str>,
}

/// What is wrong with one item of a batch.
#[derive(Clone, PartialEq, Serialize, ToSchema, Debug)]
pub struct ItemError {
    pub index: usize,
    pub code: &'static str,
    pub detail: String,
    /// JSON pointer to the member at fault, from the root of the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
}

/// An error on its way to a client.
#[derive(Debug)]
pub struct Problem {
    code: Code,
    body: Box<ProblemBody>,
    /// For the log, never for the client.
    cause: Option<String>,
    headers: Vec<(header::HeaderName, HeaderValue)>,
}

/// The internal cause of an answer, on its way to the one place that logs it.
#[derive(Clone, Debug)]
pub struct Cause(pub String);

impl Problem {
    pub fn new(code: Code, detail: impl Into<String>) -> Problem {
        let body = ProblemBody {
            kind: format!("/errors/{}", code.as_str()),
            title: code.title(),
            status: code.status(),
            detail: detail.into(),
            code: code.as_str(),
            pointer: None,
            index: None,
            conflicting_job_id: None,
            conflicting_index: None,
            differs: None,
            window_job_id: None,
            window_index: None,
            active_job_id: None,
            active_index: None,
            errors: None,
            outcome: None,
        };
        let mut problem = Problem {
            code,
            body: Box::new(body),
            cause: None,
            headers: Vec::new(),
        };
        if code.status() == 503 {
            problem.body.outcome = Some("none");
            problem
                .headers
                .push((header::RETRY_AFTER, HeaderValue::from_static("1")));
        }
        if code == Code::Unauthorized {
            problem
                .headers
                .push((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
        }
        problem
    }

    pub fn at(mut self, pointer: impl Into<String>) -> Problem {
        self.body.pointer = Some(pointer.into());
        self
    }

    pub fn because(mut self, cause: impl Into<String>) -> Problem {
        self.cause = Some(cause.into());
        self
    }

    /// With its pointer below that of a part of the request.
    pub fn below(mut self, pointer: &str) -> Problem {
        self.body.pointer = self
            .body
            .pointer
            .map(|at| format!("{pointer}{at}"))
            .or_else(|| Some(pointer.into()));
        self
    }

    pub fn with_index(mut self, index: usize) -> Problem {
        self.body.index = Some(index);
        self
    }

    pub fn code(&self) -> Code {
        self.code
    }

    /// What is wrong with this request, and what to do.
    pub fn detail(&self) -> &str {
        &self.body.detail
    }

    /// JSON pointer to the member at fault.
    pub fn pointer(&self) -> Option<&str> {
        self.body.pointer.as_deref()
    }

    /// The item of a batch that failed it.
    pub fn index(&self) -> Option<usize> {
        self.body.index
    }

    /// The problem of a batch: of its lowest invalid item, with all of them.
    pub fn of_items(code: Code, errors: Vec<ItemError>) -> Problem {
        let detail = format!(
            "{} of the batch's items invalid, and nothing was written: see errors",
            plural(errors.len())
        );
        let mut problem = Problem::new(code, detail);
        problem.body.errors = Some(errors);
        problem
    }

    /// As it stands in the results of a batch, or in an item's error.
    pub fn into_body(self) -> ProblemBody {
        *self.body
    }

    /// As one of a batch's invalid items.
    pub fn into_item(self, index: usize) -> ItemError {
        let ProblemBody {
            code, detail, pointer, ..
        } = *self.body;
        let pointer = pointer.map(|pointer| format!("/jobs/{index}{pointer}"));
        ItemError {
            index,
            code,
            detail,
            pointer,
        }
    }

    /// Why a dispatch was refused. `stored`: whether the items before it in its batch are.
    pub fn refused(refusal: &Refusal, stored: bool) -> Problem {
        let name = |job: &JobRef| match job.created_by_item {
            Some(index) if !stored => (Some(None), Some(index)),
            _ => (Some(Some(job.id.0)), None),
        };
        match refusal {
            Refusal::Conflict { job, differs } => {
                let differs: Vec<&str> = differs.iter().map(|part| part.as_str()).collect();
                let detail = format!(
                    "the window key is held by a request that differs in {}: use another key for another request, or \
                     set on_mismatch to \"reuse\"",
                    differs.join(", ")
                );
                let mut problem = Problem::new(Code::UniquenessConflict, detail);
                (problem.body.conflicting_job_id, problem.body.conflicting_index) = name(job);
                problem.body.differs = Some(differs);
                problem
            }
            Refusal::CompositionConflict { window, active } => {
                let detail = "the window key leads to one job and the active key to another: wait for the active one to \
                              end, or reset the window key";
                let mut problem = Problem::new(Code::UniquenessCompositionConflict, detail);
                (problem.body.window_job_id, problem.body.window_index) = name(window);
                (problem.body.active_job_id, problem.body.active_index) = name(active);
                problem
            }
        }
    }
}

fn plural(n: usize) -> String {
    if n == 1 { "1 item".into() } else { format!("{n} items") }
}

impl From<Invalid> for Problem {
    fn from(Invalid { kind, pointer, detail }: Invalid) -> Problem {
        let code = match kind {
            InvalidKind::Request => Code::InvalidRequest,
            InvalidKind::Key => Code::InvalidKey,
            InvalidKind::Window => Code::InvalidWindow,
            InvalidKind::Duration => Code::InvalidDuration,
            InvalidKind::PayloadTooLarge => Code::PayloadTooLarge,
            InvalidKind::Scope => Code::IdempotencyScopeInvalid,
            InvalidKind::KeyMismatch => Code::UniquenessKeyMismatch,
            InvalidKind::KeyRequired => Code::UniquenessRequired,
            InvalidKind::Selector => Code::InvalidSelector,
            InvalidKind::SelectorFailed => Code::KeySelectorFailed,
        };
        let problem = Problem::new(code, detail);
        if pointer.is_empty() {
            problem
        } else {
            problem.at(pointer)
        }
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Problem {
        match failure {
            Failure::Overloaded => Problem::new(
                Code::Overloaded,
                "more dispatches wait than this server takes: nothing was done; try again after the time in Retry-After",
            ),
            Failure::ShuttingDown => Problem::new(
                Code::ShuttingDown,
                "this server is shutting down: nothing was done; try again, it may be another one",
            ),
            Failure::Unavailable(Outcome::None, cause) => Problem::new(
                Code::StoreUnavailable,
                "the database could not be reached: nothing was done; try again after the time in Retry-After",
            )
            .because(&*cause),
            Failure::Unavailable(Outcome::Unknown, cause) => unknown(
                "the database went away while the dispatch was being stored: it may be there; send the same request \
                 again if it has a window key, else look for the job first",
            )
            .because(&*cause),
            Failure::Internal(cause) => internal().because(&*cause),
            Failure::Invalid(faults) => match faults.into_iter().next() {
                Some((_, invalid)) => invalid.into(),
                None => internal(),
            },
        }
    }
}

impl From<work::Failure> for Problem {
    fn from(failure: work::Failure) -> Problem {
        match failure {
            work::Failure::NotFound => job_not_found(),
            work::Failure::Refused(Refused::LeaseLost) => lease_lost(),
            work::Failure::Refused(Refused::Finished(state)) => {
                let detail = format!("the job has {} and can no longer be cancelled", state.as_str());
                Problem::new(Code::JobFinished, detail)
            }
            work::Failure::Overloaded => Problem::new(
                Code::Overloaded,
                "more calls wait than this server takes: nothing was done; try again after the time in Retry-After",
            ),
            work::Failure::ShuttingDown => Failure::ShuttingDown.into(),
            work::Failure::Unavailable(cause) => not_done().because(&*cause),
            work::Failure::Unknown(cause) => {
                let detail =
                    "the database went away: whether this was done is unknown; send it again, with the same token";
                unknown(detail).because(&*cause)
            }
            work::Failure::Internal(cause) => internal().because(&*cause),
        }
    }
}

impl From<store::Error> for Problem {
    fn from(error: store::Error) -> Problem {
        let problem = match (&error, error.class()) {
            (store::Error::Unanswered(_), _) => unknown(
                "the database went away: whether this was done is unknown; look, or send it again: that is safe",
            ),
            (_, store::Class::Refused) => internal(),
            (_, store::Class::Again | store::Class::LockTableFull | store::Class::Unavailable) => not_done(),
        };
        problem.because(error.to_string())
    }
}

pub fn job_not_found() -> Problem {
    Problem::new(
        Code::JobNotFound,
        "there is no such job in this application and environment, or not any more",
    )
}

pub fn lease_lost() -> Problem {
    Problem::new(
        Code::LeaseLost,
        "this token is not the job's current one, or its lease is over: nothing was changed; stop working on the job",
    )
}

fn not_done() -> Problem {
    Problem::new(
        Code::StoreUnavailable,
        "the database did not answer in time: nothing was done; try again after the time in Retry-After",
    )
}

/// A change is stored, and could not be read again for its answer.
pub fn unseen(error: store::Error) -> Problem {
    unknown("the change was made, and the database went away before it could be shown; send it again: that is safe")
        .because(error.to_string())
}

/// Whether a change is stored that the database was asked for is unknown.
fn unknown(detail: &str) -> Problem {
    let mut problem = Problem::new(Code::StoreUnavailable, detail);
    problem.body.outcome = Some("unknown");
    problem
}

/// A fault of ours.
pub fn internal() -> Problem {
    Problem::new(
        Code::Internal,
        "a fault of the server: its log has the cause under this answer's x-request-id",
    )
}

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Problem {
            code,
            body,
            cause,
            headers,
        } = self;
        let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Strings and numbers alone: it cannot fail.
        let text = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], text).into_response();
        response.headers_mut().extend(headers);
        if let Some(cause) = cause {
            response.extensions_mut().insert(Cause(cause));
        }
        response
    }
}

/// The OpenAPI entries of `codes`: one for each status, with an example for each code.
pub fn responses(codes: &[Code]) -> BTreeMap<String, RefOr<ResponseDoc>> {
    let mut by_status: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
    for code in codes {
        by_status.entry(code.status()).or_default().push(*code);
    }
    let document = |(status, codes): (u16, Vec<Code>)| {
        let lines = codes
            .iter()
            .map(|code| format!("`{}`: {}", code.as_str(), code.title()));
        let examples = codes.iter().map(|code| {
            let body = Problem::new(*code, "…").into_body();
            let example = utoipa::openapi::example::ExampleBuilder::new().summary(code.title());
            (code.as_str(), example.value(serde_json::to_value(body).ok()).build())
        });
        let content = ContentBuilder::new()
            .schema(Some(Ref::from_schema_name(ProblemBody::name())))
            .examples_from_iter(examples)
            .build();
        let response = ResponseBuilder::new()
            .description(lines.collect::<Vec<_>>().join("\n\n"))
            .content("application/problem+json", content)
            .build();
        (status.to_string(), RefOr::T(response))
    };
    by_status.into_iter().map(document).collect()
}

/// The schemas that [`responses`] refers to.
pub fn schemas() -> Vec<(String, RefOr<utoipa::openapi::Schema>)> {
    let mut schemas = vec![(ProblemBody::name().into_owned(), ProblemBody::schema())];
    ProblemBody::schemas(&mut schemas);
    schemas
}

/// Declares the problems of an operation, for its `responses(…)`.
macro_rules! answers {
    ($name:ident: $($code:ident),* $(,)?) => {
        pub(super) struct $name;

        impl utoipa::IntoResponses for $name {
            fn responses() -> std::collections::BTreeMap<
                String,
                utoipa::openapi::RefOr<utoipa::openapi::response::Response>,
            > {
                $crate::http::problem::responses(&[$($crate::http::problem::Code::$code),*])
            }
        }
    };
}
pub(super) use answers;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_speaks_of_its_code_and_status() {
        for code in Code::ALL {
            let mut lines = code.page().lines().filter(|line| !line.is_empty());
            assert_eq!(lines.next(), Some(&*format!("# {}", code.as_str())));
            assert_eq!(lines.next(), Some(&*format!("HTTP {}", code.status())), "{code:?}");
            assert!(code.page().contains(code.title()), "{code:?} does not show its title");
        }
    }

    #[test]
    fn codes_are_unique_and_found() {
        for code in Code::ALL {
            assert_eq!(Code::from_text(code.as_str()), Some(*code));
        }
    }

    #[test]
    fn an_unknown_outcome_is_said() {
        let body = Problem::from(Failure::Unavailable(Outcome::Unknown, "cut".into())).into_body();
        assert_eq!(body.outcome, Some("unknown"));
        assert_eq!(Problem::from(Failure::Overloaded).into_body().outcome, Some("none"));
    }

    #[test]
    fn a_conflict_never_names_a_job_that_is_not_stored() {
        let job = JobRef {
            id: crate::job::JobId(Uuid::nil()),
            created_by_item: Some(4),
        };
        let refusal = Refusal::Conflict { job, differs: vec![] };
        let (lost, kept) = (
            Problem::refused(&refusal, false).into_body(),
            Problem::refused(&refusal, true).into_body(),
        );
        assert_eq!((lost.conflicting_job_id, lost.conflicting_index), (Some(None), Some(4)));
        assert_eq!(
            (kept.conflicting_job_id, kept.conflicting_index),
            (Some(Some(Uuid::nil())), None)
        );
    }
}
