//! The description of the API: made from the routes, without a state and without a database.

use std::sync::LazyLock;

use utoipa::OpenApi;
use utoipa::openapi::path::{Operation, Parameter};
use utoipa::openapi::request_body::RequestBody;
use utoipa::openapi::schema::{SchemaType, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{PathItem, RefOr, Required, Schema};

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
    components.security_schemes.insert("token".into(), RefOr::T(token));
    for operation in operations(&mut document) {
        if let Some(RefOr::T(body)) = &mut operation.request_body {
            say_whether_it_may_be_left_out(body);
        }
        for parameter in operation.parameters.iter_mut().flatten() {
            if let RefOr::T(Parameter {
                schema: Some(RefOr::T(schema)),
                ..
            }) = parameter
            {
                say_that_it_is_never_null(schema);
            }
        }
    }
    document
}

fn operations(document: &mut utoipa::openapi::OpenApi) -> impl Iterator<Item = &mut Operation> {
    document.paths.paths.values_mut().flat_map(|path| {
        let PathItem {
            get, put, post, delete, ..
        } = path;
        [get, put, post, delete].into_iter().flatten()
    })
}

/// utoipa describes an optional body as one that may be `null`. Ours may be left out, and `null` is no object.
fn say_whether_it_may_be_left_out(body: &mut RequestBody) {
    let mut optional = false;
    for content in body.content.values_mut() {
        if let RefOr::T(content) = content
            && let Some(RefOr::T(Schema::OneOf(choices))) = &content.schema
            && let Some(reference @ RefOr::Ref(_)) = choices.items.iter().find(|item| matches!(item, RefOr::Ref(_)))
        {
            content.schema = Some(reference.clone());
            optional = true;
        }
    }
    body.required = Some(if optional { Required::False } else { Required::True });
}

/// A parameter that is left out is not there; there is no way to send `null`.
fn say_that_it_is_never_null(schema: &mut Schema) {
    if let Schema::Object(object) = schema
        && let SchemaType::Array(types) = &object.schema_type
        && let [one] = *types.iter().filter(|kind| **kind != Type::Null).collect::<Vec<_>>()
    {
        object.schema_type = SchemaType::Type(one.clone());
    }
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
