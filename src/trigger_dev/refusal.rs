//! Errors in the shape that the SDK understands, and extractors that reject with them.

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::dispatch::Failure;
use crate::http::App;
use crate::http::auth::{By, Right};
use crate::http::extract::{self, Query, Wire, job_not_found};
use crate::http::problem::{Code, Problem};
use crate::job::JobId;
use crate::settings::Invalid;
use crate::store;
use crate::work;

/// Whether the SDK may send a request again. Without it, it sends again whatever was refused with 409.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Where a member of a dispatch comes from in a request of the SDK.
const PLACES: &[(&str, &str)] = &[
    ("/delay", "/options/delay"),
    ("/run_at", "/options/delay"),
    ("/priority", "/options/priority"),
    ("/queue", "/options/queue/name"),
    ("/idempotency_key_ttl", "/options/idempotencyKeyTTL"),
    ("/idempotency_key", "/options/idempotencyKey"),
    ("/retry/max_attempts", "/options/maxAttempts"),
    ("/timeout", "/options/maxDuration"),
    ("/metadata", "/options/metadata"),
    ("/parent/job_id", "/options/parentRunId"),
];

/// Why a request was refused.
#[derive(Debug)]
pub(super) struct Refusal(Problem);

/// The body that `ApiError` of the SDK reads: its message is `error`, and its `code` and `param` are these.
#[derive(Serialize)]
struct ErrorBody<'a> {
    error: &'a str,
    code: &'a str,
    /// JSON pointer to the member at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    param: Option<&'a str>,
}

impl Refusal {
    pub(super) fn new(code: Code, detail: impl Into<String>) -> Refusal {
        Refusal(Problem::new(code, detail))
    }

    /// Something about the member at `pointer`.
    pub(super) fn at(pointer: &str, detail: impl Into<String>) -> Refusal {
        Refusal(Problem::new(Code::InvalidRequest, detail).at(pointer))
    }

    /// The fault of an item of a batch.
    pub(super) fn of_item(index: usize, refusal: Refusal) -> Refusal {
        let Refusal(problem) = refusal;
        let item = Problem::new(problem.code(), format!("item {index}: {}", problem.detail()));
        Refusal(match problem.pointer() {
            Some(pointer) => item.at(pointer),
            None => item,
        })
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Refusal {
        Refusal(problem)
    }
}

impl From<Invalid> for Refusal {
    fn from(Invalid { kind, pointer, detail }: Invalid) -> Refusal {
        let place = PLACES.iter().find_map(|(ours, theirs)| {
            let rest = pointer.strip_prefix(ours)?;
            (rest.is_empty() || rest.starts_with('/')).then(|| format!("{theirs}{rest}"))
        });
        let pointer = place.unwrap_or(pointer);
        Refusal(Invalid { kind, pointer, detail }.into())
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        match failure {
            Failure::Invalid(faults) => invalid(faults),
            failure => Refusal(failure.into()),
        }
    }
}

impl From<work::Failure> for Refusal {
    fn from(failure: work::Failure) -> Refusal {
        Refusal(failure.into())
    }
}

impl From<store::Error> for Refusal {
    fn from(error: store::Error) -> Refusal {
        Refusal(error.into())
    }
}

/// What is wrong with a dispatch, or with the lowest item of a batch.
pub(super) fn invalid(faults: Vec<(usize, Invalid)>) -> Refusal {
    match faults.into_iter().next() {
        Some((_, invalid)) => invalid.into(),
        None => Refusal(crate::http::problem::internal()),
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Refusal(problem) = self;
        let body = ErrorBody {
            error: problem.detail(),
            code: problem.code().as_str(),
            param: problem.pointer(),
        };
        // Strings alone: it cannot fail.
        let text = serde_json::to_vec(&body).unwrap_or_default();
        // Status, headers and the cause for the log stay those of the problem.
        let (mut parts, _) = problem.into_response().into_parts();
        let json = HeaderValue::from_static("application/json");
        parts.headers.insert(header::CONTENT_TYPE, json);
        if parts.status.is_client_error() {
            parts.headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        Response::from_parts(parts, Body::from(text))
    }
}

/// A path of Trigger.dev's that is not here.
pub(super) async fn unknown() -> Refusal {
    Refusal::new(
        Code::NotFound,
        "this server has no such part of Trigger.dev's API: it takes triggers and batches of them, resets of idempotency \
         keys, and retrieves, lists, cancels and replays runs",
    )
}

pub(super) async fn method_not_allowed() -> Refusal {
    Refusal::new(Code::MethodNotAllowed, "this path does not take this method")
}

/// A caller that has the right `R`.
#[derive(Debug)]
pub(super) struct Caller<R>(pub(super) By<R>);

impl<R: Right> FromRequestParts<App> for Caller<R> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        Ok(Caller(By::from_request_parts(parts, app).await?))
    }
}

/// A body in JSON.
#[derive(Debug)]
pub(super) struct Json<T, const KIND: u8>(pub(super) T);

impl<T: DeserializeOwned, const KIND: u8> FromRequest<App> for Json<T, KIND> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refusal> {
        let Wire(body) = Wire::<T, KIND>::from_request(request, app).await?;
        Ok(Json(body))
    }
}

/// The members of the query string.
#[derive(Debug)]
pub(super) struct QueryMembers(pub(super) Query);

impl FromRequestParts<App> for QueryMembers {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        Ok(QueryMembers(Query::from_request_parts(parts, app).await?))
    }
}

/// The id of a run in the path. What is no id names no run.
#[derive(Debug)]
pub(super) struct RunId(pub(super) JobId);

impl FromRequestParts<App> for RunId {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let extract::Id(id) = extract::Id::from_request_parts(parts, app).await?;
        Ok(RunId(id))
    }
}

/// The one part of the path that is not fixed, decoded.
#[derive(Debug)]
pub(super) struct Segment(pub(super) String);

impl FromRequestParts<App> for Segment {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let not_utf8 = |_| Refusal::new(Code::InvalidRequest, "the path is not percent-encoded UTF-8");
        let params = RawPathParams::from_request_parts(parts, app).await.map_err(not_utf8)?;
        let first = params.iter().next().map(|(_, text)| text.to_owned());
        Ok(Segment(first.unwrap_or_default()))
    }
}

/// What the SDK gives to each request and keeps while it sends it again: by it the first try is found.
#[derive(Debug)]
pub(super) struct RequestKey(pub(super) Option<String>);

/// What the keys of requests begin with. Keys of the SDK's own are hexadecimal digests.
pub(super) const REQUEST_KEY_PREFIX: &str = "trigger-request/";

const REQUEST_KEY_BYTES_MAX: usize = 128;

impl FromRequestParts<App> for RequestKey {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Refusal> {
        let value = parts.headers.get("x-trigger-request-idempotency-key");
        let text = value.and_then(|value| value.to_str().ok());
        let text = text.filter(|text| {
            (1..=REQUEST_KEY_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
        });
        Ok(RequestKey(text.map(|text| format!("{REQUEST_KEY_PREFIX}{text}"))))
    }
}

pub(super) fn run_not_found() -> Refusal {
    Refusal(job_not_found())
}
