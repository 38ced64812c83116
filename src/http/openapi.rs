//! The description of the API: made from the routes, without a state and without a database.

use std::sync::LazyLock;

use utoipa::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Solejob",
        description = "Takes job dispatches and never creates the same job twice. Errors are \
            `application/problem+json` (RFC 9457); the `type` of each is a page that says what to do.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    security(("token" = [])),
    tags(
        (name = "dispatch", description = "Asking for jobs"),
        (name = "jobs", description = "Jobs that are there"),
        (name = "job types", description = "What is declared for a job name once"),
        (name = "keys", description = "Keys that make jobs unique"),
        (name = "workers", description = "Running jobs"),
        (name = "queues", description = "Queues of jobs"),
        (name = "resource scopes", description = "How many jobs may touch one thing at once"),
        (name = "server", description = "The server itself"),
    )
)]
struct Base;

/// The document.
pub fn document() -> utoipa::openapi::OpenApi {
    let (_, mut document) = super::routes().split_for_parts();
    let components = document.components.get_or_insert_default();
    for (name, schema) in super::problem::schemas() {
        components.schemas.insert(name, schema);
    }
    let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    components
        .security_schemes
        .insert("token".into(), utoipa::openapi::RefOr::T(token));
    document
}

/// What every route is added to.
pub(super) fn base() -> utoipa::openapi::OpenApi {
    Base::openapi()
}

/// The document as it is served, and as it stands in `openapi/openapi.json`.
pub fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let mut text = document().to_pretty_json().unwrap_or_default();
        text.push('\n');
        text
    });
    &TEXT
}
