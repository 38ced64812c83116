//! Around every request: an id, a count, what it leaves unread, and the one line that an error is logged with.

use std::collections::{BTreeMap, HashMap};
use std::sync::{PoisonError, RwLock};
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use metrics::{Counter, Histogram, counter, histogram};
use tracing::Instrument as _;
use uuid::Uuid;

use crate::http::drain::drain;
use crate::http::problem::Cause;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Gives the request an id, taken from the client or made, and says how it went.
pub async fn observe(request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = request
        .headers()
        .get(REQUEST_ID)
        .filter(|id| is_request_id(id))
        .cloned()
        .unwrap_or_else(|| {
            let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
            let text = Uuid::new_v4().hyphenated().encode_lower(&mut text);
            HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("-"))
        });
    let method = method_label(request.method());
    // The route and never the path: labels stay few, whatever is asked for.
    let path = request.extensions().get::<MatchedPath>().cloned();
    let route = path.as_ref().map_or("unmatched", MatchedPath::as_str);
    let request_id = id.to_str().unwrap_or_default();
    // A span costs more than all the rest here; who looks for where time goes asks for it.
    let span = tracing::debug_span!("http", request_id, method, route);
    let mut response = drain(request, next).instrument(span.clone()).await;

    let status = response.status();
    let seconds = began.elapsed().as_secs_f64();
    let cause = response.extensions_mut().remove::<Cause>();
    span.in_scope(|| {
        let status = status.as_u16();
        match &cause {
            Some(Cause(cause)) => {
                tracing::error!(request_id, method, route, status, seconds, cause, "request failed");
            }
            None if status >= 500 => tracing::warn!(request_id, method, route, status, seconds, "request not served"),
            None => tracing::debug!(status, seconds, "request served"),
        }
    });
    count(method, route, status_label(status.as_u16()), seconds);
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// What is counted of the requests of one route.
#[derive(Default)]
struct Counted {
    requests: HashMap<(&'static str, &'static str), Counter>,
    durations: HashMap<&'static str, Histogram>,
}

/// Finding a metric by its labels costs several allocations; each is found once, and kept. Routes, methods and statuses
/// are few.
fn count(method: &'static str, route: &str, status: &'static str, seconds: f64) {
    static KNOWN: RwLock<BTreeMap<String, Counted>> = RwLock::new(BTreeMap::new());
    let record = |counted: &Counted| {
        let found = counted
            .requests
            .get(&(method, status))
            .zip(counted.durations.get(method));
        found.map(|(requests, durations)| {
            requests.increment(1);
            durations.record(seconds);
        })
    };
    // A panic leaves nothing half done in there.
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
    if known.get(route).and_then(record).is_some() {
        return;
    }
    drop(known);
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    let counted = known.entry(route.to_owned()).or_default();
    let label = || route.to_owned();
    counted.requests.entry((method, status)).or_insert_with(
        || counter!("solejob_http_requests_total", "method" => method, "route" => label(), "status" => status),
    );
    counted
        .durations
        .entry(method)
        .or_insert_with(|| histogram!("solejob_http_request_duration_seconds", "method" => method, "route" => label()));
    record(counted);
}

/// Printable, and not long: it goes into the log as it is.
fn is_request_id(id: &HeaderValue) -> bool {
    let bytes = id.as_bytes();
    (1..=REQUEST_ID_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
}

fn method_label(method: &axum::http::Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "HEAD" => "HEAD",
        _ => "other",
    }
}

/// Without an allocation for each answer.
fn status_label(status: u16) -> &'static str {
    match status {
        200 => "200",
        201 => "201",
        204 => "204",
        303 => "303",
        400 => "400",
        401 => "401",
        403 => "403",
        404 => "404",
        405 => "405",
        409 => "409",
        413 => "413",
        415 => "415",
        422 => "422",
        500 => "500",
        503 => "503",
        _ => "other",
    }
}
