//! What the server says of itself: health, metrics, its description, the pages of its errors.

use axum::extract::{RawPathParams, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use metrics_exporter_prometheus::PrometheusHandle;
use pulldown_cmark::{Options, Parser, html};
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::auth::{Any, By};
use crate::http::problem::{Code, Problem, answers};
use crate::http::{App, JsonBody};

answers!(ReadyProblems: StoreUnavailable, ShuttingDown);
answers!(PageProblems: NotFound);
answers!(MetricsProblems: Unauthorized, StoreUnavailable);

/// That the server is well.
#[derive(Serialize, ToSchema, Debug)]
pub struct Health {
    #[schema(value_type = String, example = "ok")]
    status: &'static str,
    /// The server's version.
    #[schema(value_type = String, example = "0.1.0")]
    version: &'static str,
}

const OK: Health = Health {
    status: "ok",
    version: env!("CARGO_PKG_VERSION"),
};

/// Whether the process is alive
///
/// Looks at nothing else: a database that is away is no reason to restart a server.
#[utoipa::path(get, path = "/healthz", operation_id = "health", tag = "server", security(()),
    responses((status = 200, description = "It is", body = Health)))]
pub(super) async fn healthz() -> Response {
    JsonBody(OK).into_response()
}

/// Whether the server can take work
///
/// The database answers, has this server's schema, and the server is not shutting down.
#[utoipa::path(get, path = "/readyz", operation_id = "ready", tag = "server", security(()),
    responses((status = 200, description = "It can", body = Health), ReadyProblems))]
pub(super) async fn readyz(State(app): State<App>) -> Result<Response, Problem> {
    if app.draining.is_cancelled() {
        return Err(Problem::new(Code::ShuttingDown, "this server is shutting down"));
    }
    app.store.ready().await.map_err(|error| {
        let detail = "the database does not answer, or has another schema than this server needs: the log says which";
        Problem::new(Code::StoreUnavailable, detail).because(error.to_string())
    })?;
    Ok(JsonBody(OK).into_response())
}

/// Metrics, as Prometheus reads them
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", tag = "server",
    responses((status = 200, description = "Prometheus text format", body = String, content_type = "text/plain"),
        MetricsProblems))]
pub(super) async fn metrics(State(app): State<App>, _: By<Any>) -> Response {
    rendered(&app.metrics)
}

/// The same, on a listener of its own.
pub(super) async fn open_metrics(State(metrics): State<PrometheusHandle>) -> Response {
    rendered(&metrics)
}

fn rendered(metrics: &PrometheusHandle) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render()).into_response()
}

/// What an error means, and what to do about it
#[utoipa::path(get, path = "/errors/{code}", operation_id = "errorPage", tag = "server", security(()),
    params(("code" = String, Path, description = "The error's code")),
    responses((status = 200, description = "A page for people", body = String, content_type = "text/html"), PageProblems))]
pub(super) async fn error_page(params: RawPathParams) -> Result<Response, Problem> {
    let code = params
        .iter()
        .find_map(|(_, text)| Code::from_text(text))
        .ok_or_else(not_found)?;
    let mut body = String::new();
    html::push_html(&mut body, Parser::new_ext(code.page(), Options::ENABLE_TABLES));
    let page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{} · Solejob</title><style>body{{font:1rem/1.5 system-ui,sans-serif;\
         max-width:48rem;margin:2rem auto;padding:0 1rem}}pre{{background:#f4f4f4;padding:1rem;overflow:auto}}\
         td,th{{border:1px solid #ccc;padding:.25rem .5rem}}table{{border-collapse:collapse}}</style>{body}",
        code.as_str()
    );
    Ok(([(header::CONTENT_TYPE, "text/html; charset=utf-8")], page).into_response())
}

/// This description, as OpenAPI 3.1
#[utoipa::path(get, path = "/openapi.json", operation_id = "openapi", tag = "server", security(()),
    responses((status = 200, description = "The document", body = Object, content_type = "application/json")))]
pub(super) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], super::openapi::text()).into_response()
}

/// No route has this path.
pub(super) async fn fallback() -> Problem {
    not_found()
}

/// The route has other methods.
pub(super) async fn method_not_allowed() -> Response {
    let detail = "this path does not take this method: the header Allow names those it takes";
    (
        StatusCode::METHOD_NOT_ALLOWED,
        Problem::new(Code::MethodNotAllowed, detail),
    )
        .into_response()
}

fn not_found() -> Problem {
    Problem::new(Code::NotFound, "there is nothing at this path: /docs has every route")
}
