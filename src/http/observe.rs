//! Around every request: an id, a span, a count, and the one line that an error is logged with.

use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use metrics::{counter, histogram};
use tracing::Instrument as _;
use uuid::Uuid;

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
            let id = HeaderValue::from_str(&Uuid::new_v4().to_string());
            id.unwrap_or_else(|_| HeaderValue::from_static("-"))
        });
    let method = method_label(request.method());
    // The route and never the path: labels stay few, whatever is asked for.
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("unmatched".into(), |path| path.as_str().to_owned());
    let text = id.to_str().unwrap_or_default().to_owned();
    let span = tracing::info_span!("http", request_id = %text, method, route);
    let mut response = next.run(request).instrument(span.clone()).await;

    let status = response.status();
    let seconds = began.elapsed().as_secs_f64();
    let cause = response.extensions_mut().remove::<Cause>();
    span.in_scope(|| match &cause {
        Some(Cause(cause)) => tracing::error!(status = status.as_u16(), seconds, cause, "request failed"),
        None if status.is_server_error() => tracing::warn!(status = status.as_u16(), seconds, "request not served"),
        None => tracing::debug!(status = status.as_u16(), seconds, "request served"),
    });
    let code = status_label(status.as_u16());
    counter!("solejob_http_requests_total", "method" => method, "route" => route.clone(), "status" => code)
        .increment(1);
    histogram!("solejob_http_request_duration_seconds", "method" => method, "route" => route).record(seconds);
    response.headers_mut().insert(REQUEST_ID, id);
    response
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
