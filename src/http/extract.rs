//! Own extractors: whatever a request gets wrong is answered with a problem that says what and where.

use std::borrow::Cow;

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::dispatch::prepare::job_id_of;
use crate::http::object::Object;
pub use crate::http::problem::job_not_found;
use crate::http::problem::{Code, Problem};
use crate::http::{App, Limits};
use crate::job::JobId;
use crate::json::{self, FaultKind, MAX_DEPTH};
use crate::settings::is_name;

/// Body bytes of a single dispatch beside its payload: its other members at their largest, escaped.
const SINGLE_BESIDE_PAYLOAD: usize = 512 << 10;

/// Bytes of a body that has no payload.
const SMALL_BODY: usize = 16 << 10;

/// A body that has passed [`json::check`], not yet understood.
#[derive(Debug)]
pub struct Checked<const KIND: u8>(pub Bytes);

pub const SINGLE: u8 = 0;
pub const BATCH: u8 = 1;
pub const SMALL: u8 = 2;
/// With room for a payload, which is optional like everything else.
pub const OPTIONAL: u8 = 3;

/// A body, understood. For the kinds [`SMALL`] and [`OPTIONAL`] it may be left out, and counts as `{}`.
#[derive(Debug)]
pub struct Wire<T, const KIND: u8>(pub T);

impl<T: DeserializeOwned, const KIND: u8> FromRequest<App> for Wire<T, KIND> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let bytes = read(request, KIND, &app.limits).await?;
        check(&bytes, MAX_DEPTH)?;
        Ok(Wire(parse(&bytes)?))
    }
}

impl FromRequest<App> for Checked<BATCH> {
    type Rejection = Problem;

    /// Faults of a single item are left to whoever takes the items apart.
    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        Ok(Checked(read(request, BATCH, &app.limits).await?))
    }
}

async fn read(request: Request, kind: u8, limits: &Limits) -> Result<Bytes, Problem> {
    let (limit, code) = match kind {
        SINGLE | OPTIONAL => (limits.payload_bytes + SINGLE_BESIDE_PAYLOAD, Code::PayloadTooLarge),
        BATCH => (limits.batch_bytes, Code::BatchTooLarge),
        _ => (SMALL_BODY, Code::PayloadTooLarge),
    };
    let declared = media_type(request.headers());
    if declared == MediaType::Other {
        return Err(unsupported());
    }
    let bytes = collect(request.into_body(), limit, code, limits.patience).await?;
    match (bytes.is_empty(), declared) {
        (true, _) if matches!(kind, SMALL | OPTIONAL) => Ok(Bytes::from_static(b"{}")),
        (false, MediaType::Missing) => Err(unsupported()),
        _ => Ok(bytes),
    }
}

/// Room for another dispatch. Who would be refused in the end is refused before a body is read and taken apart.
#[derive(Debug)]
pub struct Room;

impl FromRequestParts<App> for Room {
    type Rejection = Problem;

    async fn from_request_parts(_: &mut Parts, app: &App) -> Result<Self, Problem> {
        app.dispatcher.has_room()?;
        Ok(Room)
    }
}

#[derive(PartialEq, Eq)]
enum MediaType {
    Json,
    Missing,
    Other,
}

fn media_type(headers: &HeaderMap) -> MediaType {
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    let Some(value) = values.next() else {
        return MediaType::Missing;
    };
    let essence = value
        .to_str()
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    if values.next().is_none() && essence.eq_ignore_ascii_case("application/json") {
        MediaType::Json
    } else {
        MediaType::Other
    }
}

fn unsupported() -> Problem {
    Problem::new(
        Code::UnsupportedMediaType,
        "send the header Content-Type: application/json with the body",
    )
}

/// Reads a body of at most `limit` bytes. What is behind the limit is left to be drained.
pub async fn collect(mut body: Body, limit: usize, code: Code, patience: Duration) -> Result<Bytes, Problem> {
    let too_large = || {
        Problem::new(
            code,
            format!("the body has more than {limit} bytes, which is the limit here"),
        )
    };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let (mut parts, mut read): (Vec<Bytes>, usize) = (Vec::new(), 0);
    loop {
        let frame = std::future::poll_fn(|cx| std::pin::Pin::new(&mut body).poll_frame(cx));
        let stalled = |_| {
            let detail = format!("the body did not go on for {patience:?}: send it again");
            Problem::new(Code::InvalidJson, detail)
        };
        let Some(frame) = tokio::time::timeout(patience, frame).await.map_err(stalled)? else {
            break;
        };
        let broken = |_| {
            Problem::new(
                Code::InvalidJson,
                "the body ended before it was complete: send it again",
            )
        };
        let Ok(data) = frame.map_err(broken)?.into_data() else {
            continue;
        };
        read += data.len();
        if read > limit {
            return Err(too_large());
        }
        parts.push(data);
    }
    Ok(if parts.len() == 1 {
        parts.remove(0)
    } else {
        parts.concat().into()
    })
}

/// Checks a body as JSON, strictly.
pub fn check(bytes: &[u8], depth: usize) -> Result<&str, Problem> {
    json::check(bytes, depth).map_err(|fault| {
        let code = match fault.kind {
            FaultKind::Syntax | FaultKind::Encoding | FaultKind::Surrogate | FaultKind::Depth => Code::InvalidJson,
            FaultKind::DuplicateKey => Code::InvalidPayload,
        };
        let problem = Problem::new(code, fault.detail);
        if fault.pointer.is_empty() {
            problem
        } else {
            problem.at(fault.pointer)
        }
    })
}

/// Understands a text that has passed [`check`].
pub fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes)
        .or_else(|_| parse_and_point(bytes))
        .map(|Object(value)| value)
}

/// The same once more, slower, to say where it went wrong.
#[cold]
fn parse_and_point<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<Object<T>, Problem> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let text = error.inner().to_string();
        // serde's words, without the position: the pointer says it better.
        let detail = text.rsplit_once(" at line ").map_or(&*text, |(detail, _)| detail);
        let mut pointer = pointer_of(error.path());
        if let Some(field) = detail
            .strip_prefix("missing field `")
            .and_then(|rest| rest.strip_suffix('`'))
        {
            json::pointer::push(&mut pointer, field);
        }
        let problem = Problem::new(Code::InvalidRequest, shortened(detail));
        if pointer.is_empty() {
            problem
        } else {
            problem.at(shortened(&pointer))
        }
    })
}

fn pointer_of(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => json::pointer::push(&mut pointer, &index.to_string()),
            Segment::Map { key } => json::pointer::push(&mut pointer, key),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    pointer
}

/// What a client sent may be a part of it: at most so much comes back.
fn shortened(text: &str) -> String {
    const CHARS: usize = 300;
    match text.char_indices().nth(CHARS) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// The id of a job in a path. What is no id names no job.
#[derive(Debug)]
pub struct Id(pub JobId);

impl FromRequestParts<App> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let params = RawPathParams::from_request_parts(parts, app)
            .await
            .map_err(|_| job_not_found())?;
        let id = params
            .iter()
            .find(|(name, _)| *name == "job_id")
            .and_then(|(_, text)| job_id_of(text));
        id.map(Id).ok_or_else(job_not_found)
    }
}

/// A name in a path.
#[derive(Debug)]
pub struct PathName(pub String);

impl FromRequestParts<App> for PathName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let invalid = || {
            Problem::new(
                Code::InvalidRequest,
                "the name in the path is 1 to 128 of A-Z a-z 0-9 . _ : -",
            )
        };
        let params = RawPathParams::from_request_parts(parts, app)
            .await
            .map_err(|_| invalid())?;
        let name = params.iter().map(|(_, text)| text).find(|name| is_name(name));
        name.map(|name| PathName(name.to_owned())).ok_or_else(invalid)
    }
}

/// The members of a query string. Whoever reads them takes each; one that is left is unknown.
#[derive(Debug)]
pub struct Query(Vec<(String, String)>);

impl FromRequestParts<App> for Query {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        Query::parse(parts.uri.query().unwrap_or_default())
    }
}

impl Query {
    pub(super) fn parse(text: &str) -> Result<Query, Problem> {
        let decode = |part: &str| {
            let part: Cow<'_, str> = if part.contains('+') {
                part.replace('+', " ").into()
            } else {
                part.into()
            };
            let decoded = percent_decode_str(&part).decode_utf8().map(Cow::into_owned);
            decoded.map_err(|_| Problem::new(Code::InvalidRequest, "the query is not percent-encoded UTF-8"))
        };
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decode(name)?, decode(value)?))
        });
        Ok(Query(pairs.collect::<Result<_, Problem>>()?))
    }

    /// Takes the member called `name`, which may be given once.
    pub fn take(&mut self, name: &str) -> Result<Option<String>, Problem> {
        let Some(place) = self.0.iter().position(|(given, _)| given == name) else {
            return Ok(None);
        };
        let (_, value) = self.0.remove(place);
        if self.0.iter().any(|(given, _)| given == name) {
            return Err(invalid_query(name, "is given twice"));
        }
        Ok(Some(value))
    }

    /// Takes every member whose name begins with `prefix`, without it.
    pub fn take_all(&mut self, prefix: &str) -> Vec<(String, String)> {
        let (taken, left) = std::mem::take(&mut self.0)
            .into_iter()
            .partition(|(name, _)| name.starts_with(prefix));
        self.0 = left;
        let taken: Vec<(String, String)> = taken;
        taken
            .into_iter()
            .map(|(name, value)| (name[prefix.len()..].to_owned(), value))
            .collect()
    }

    /// Nothing may be left.
    pub fn end(self) -> Result<(), Problem> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(invalid_query(name, "is not known here: it would be ignored in silence")),
        }
    }
}

/// What is wrong with a member of a query string. It has no JSON pointer; the detail names it.
pub fn invalid_query(name: &str, problem: &str) -> Problem {
    let name: String = name.chars().filter(|c| !c.is_control()).collect();
    Problem::new(
        Code::InvalidRequest,
        format!("the query member {:?} {problem}", shortened(&name)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_decoded_strictly() {
        let mut query = Query::parse("a=b%20c&metadata.x=%C3%A9+&n").unwrap();
        assert_eq!(query.take("a").unwrap().as_deref(), Some("b c"));
        assert_eq!(query.take_all("metadata."), [("x".to_owned(), "é ".to_owned())]);
        assert_eq!(query.take("n").unwrap().as_deref(), Some(""));
        assert!(query.end().is_ok());
        assert!(Query::parse("a=%ff").is_err());
        assert!(Query::parse("a=1&a=2").unwrap().take("a").is_err());
        assert!(Query::parse("b=1").unwrap().end().is_err());
    }

    fn request(content_types: &[&[u8]], body: impl Into<Body>) -> Request {
        let mut request = Request::new(body.into());
        for value in content_types {
            let value = header::HeaderValue::from_bytes(value).unwrap();
            request.headers_mut().append(header::CONTENT_TYPE, value);
        }
        request
    }

    const LIMITS: Limits = Limits {
        payload_bytes: 100,
        batch_items: 10,
        batch_bytes: 1_000,
        patience: Duration::from_secs(30),
        connections: 1,
    };

    async fn code_of(request: Request, kind: u8) -> Option<Code> {
        read(request, kind, &LIMITS).await.err().map(|problem| problem.code())
    }

    #[tokio::test]
    async fn a_body_is_declared_as_json() {
        let json: [&[u8]; 4] = [
            b"application/json",
            b"Application/JSON",
            b"application/json; charset=utf-8",
            b"application/json;charset=\"utf-8\" ; x=y",
        ];
        for value in json {
            assert_eq!(code_of(request(&[value], "{}"), SINGLE).await, None, "{value:?}");
        }
        let other: [&[&[u8]]; 8] = [
            &[],
            &[b""],
            &[b"text/plain"],
            &[b"application/x-www-form-urlencoded"],
            &[b"application/jsonp"],
            &[b"application/problem+json"],
            &[b"application/json\xff"],
            &[b"application/json", b"application/json"],
        ];
        for values in other {
            for kind in [SINGLE, BATCH, SMALL] {
                let code = code_of(request(values, "{}"), kind).await;
                assert_eq!(code, Some(Code::UnsupportedMediaType), "{values:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_body_may_be_left_out_where_no_member_is_required() {
        let none: [&[&[u8]]; 2] = [&[], &[b"application/json"]];
        for values in none {
            assert_eq!(read(request(values, ""), SMALL, &LIMITS).await.unwrap(), "{}");
            // Elsewhere it is no JSON, which is said where it is understood.
            assert_eq!(read(request(values, ""), SINGLE, &LIMITS).await.unwrap(), "");
        }
        assert_eq!(check(b"", MAX_DEPTH).unwrap_err().code(), Code::InvalidJson);
        // What is declared as something else is something else, however short.
        assert_eq!(
            code_of(request(&[b"text/plain"], ""), SMALL).await,
            Some(Code::UnsupportedMediaType)
        );
    }

    #[tokio::test]
    async fn a_body_has_so_many_bytes_at_most() {
        for (kind, most, code) in [
            (SINGLE, 100 + SINGLE_BESIDE_PAYLOAD, Code::PayloadTooLarge),
            (OPTIONAL, 100 + SINGLE_BESIDE_PAYLOAD, Code::PayloadTooLarge),
            (BATCH, 1_000, Code::BatchTooLarge),
            (SMALL, SMALL_BODY, Code::PayloadTooLarge),
        ] {
            let json: &[u8] = b"application/json";
            assert_eq!(code_of(request(&[json], " ".repeat(most)), kind).await, None);
            assert_eq!(code_of(request(&[json], " ".repeat(most + 1)), kind).await, Some(code));
            let mut asking = request(&[json], " ".repeat(most + 1));
            let leave = header::HeaderValue::from_static("100-continue");
            asking.headers_mut().insert(header::EXPECT, leave);
            assert_eq!(code_of(asking, kind).await, Some(code));
        }
    }

    #[test]
    fn a_pointer_leads_to_the_member_at_fault() {
        #[derive(Deserialize, Debug)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "it is only read into")]
        struct Outer {
            name: String,
            inner: Option<Vec<Inner>>,
            #[serde(rename = "a/b~c")]
            odd: Option<bool>,
        }

        #[derive(Deserialize, Debug)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "it is only read into")]
        struct Inner {
            count: u8,
        }

        let pointer = |text: &str| {
            let body = parse::<Outer>(text.as_bytes()).unwrap_err().into_body();
            serde_json::to_value(body).unwrap()["pointer"].take()
        };
        for (text, expected) in [
            (r#"{"name": 1}"#, "/name"),
            (r#"{"name": null}"#, "/name"),
            ("{}", "/name"),
            (r#"{"name": "n", "other": 1}"#, "/other"),
            (r#"{"name": "n", "inner": {}}"#, "/inner"),
            (
                r#"{"name": "n", "inner": [{"count": 1}, {"count": 256}]}"#,
                "/inner/1/count",
            ),
            (r#"{"name": "n", "inner": [{"count": -1}]}"#, "/inner/0/count"),
            (r#"{"name": "n", "inner": [{}]}"#, "/inner/0/count"),
            (
                r#"{"name": "n", "inner": [{"count": 1, "x~/y": 1}]}"#,
                "/inner/0/x~0~1y",
            ),
            (r#"{"name": "n", "a/b~c": 1}"#, "/a~1b~0c"),
        ] {
            assert_eq!(pointer(text), expected, "{text}");
        }
        assert_eq!(pointer("[]"), serde_json::Value::Null, "the whole body");
    }

    #[test]
    fn faults_of_the_text_have_a_code_and_a_pointer() {
        let fault = |text: &[u8]| {
            let problem = check(text, MAX_DEPTH).unwrap_err();
            let code = problem.code();
            let body = serde_json::to_value(problem.into_body()).unwrap();
            (code, body["pointer"].as_str().unwrap_or_default().to_owned())
        };
        assert_eq!(fault(b"{").0, Code::InvalidJson);
        assert_eq!(fault(b"{\"a\": \"\xff\"}").0, Code::InvalidJson);
        assert_eq!(fault(br#"{"a": ["\ud800"]}"#).0, Code::InvalidJson);
        assert_eq!(fault("[".repeat(200).as_bytes()).0, Code::InvalidJson);
        assert_eq!(
            fault(br#"{"a": {"b": 1, "b": 2}}"#),
            (Code::InvalidPayload, "/a/b".into())
        );
        assert_eq!(fault(br#"{"a": 1, "\u0061": 2}"#), (Code::InvalidPayload, "/a".into()));
    }

    #[test]
    fn what_comes_back_of_a_client_is_short() {
        assert_eq!(shortened(&"é".repeat(300)), "é".repeat(300));
        assert_eq!(shortened(&"é".repeat(301)).chars().count(), 301);
    }
}
