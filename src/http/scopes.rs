//! Resource scopes: how many jobs with one resource key may be leased at once.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::auth::{Admin, By, Read};
use crate::http::extract::{PathName, SMALL, Wire};
use crate::http::problem::{self, Code, Problem, answers};
use crate::http::{App, JsonBody};
use crate::store::ScopeView;
use crate::wakeups::News;

/// More would not be a limit.
const CAPACITY_MAX: i64 = 1_000_000;

/// Without a capacity of its own, one at a time.
const CAPACITY_DEFAULT: i32 = 1;

answers!(ListProblems: Unauthorized, Forbidden, Internal, StoreUnavailable);
answers!(GetProblems: InvalidRequest, Unauthorized, Forbidden, ResourceScopeNotFound, Internal, StoreUnavailable);
answers!(PutProblems: InvalidJson, InvalidRequest, InvalidPayload, Unauthorized, Forbidden, PayloadTooLarge,
    UnsupportedMediaType, Internal, StoreUnavailable);

/// Every scope that has a capacity of its own, or is in use.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = ResourceScopeList)]
pub struct ScopeListBody {
    resource_scopes: Vec<ScopeBody>,
}

/// A resource scope.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = ResourceScope)]
pub struct ScopeBody {
    #[schema(example = "account")]
    scope: String,
    /// How many jobs with one resource key of this scope may be reserved or running at once.
    capacity: i32,
    /// How many are, by key; the 1,000 keys with the most.
    in_use: BTreeMap<String, i64>,
}

impl From<ScopeView> for ScopeBody {
    fn from(
        ScopeView {
            scope,
            capacity,
            in_use,
        }: ScopeView,
    ) -> ScopeBody {
        ScopeBody {
            scope,
            capacity: capacity.unwrap_or(CAPACITY_DEFAULT),
            in_use,
        }
    }
}

/// A capacity to set.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = ResourceScopeSettings)]
pub struct ScopeSettingsBody {
    #[schema(minimum = 1, maximum = 1000000, example = 3)]
    capacity: i64,
}

/// List resource scopes
#[utoipa::path(
    get, path = "/v1/resource-scopes", operation_id = "listResourceScopes", tag = "resource scopes",
    responses((status = 200, description = "Those with a capacity of their own, or in use", body = ScopeListBody,
        example = json!({"resource_scopes": [{"scope": "account", "capacity": 3, "in_use": {"42": 2}}]})),
        ListProblems)
)]
pub(super) async fn list(State(app): State<App>, by: By<Read>) -> Result<Response, Problem> {
    let scopes = app.store.scopes(by.app, None).await?;
    Ok(JsonBody(ScopeListBody {
        resource_scopes: scopes.into_iter().map(Into::into).collect(),
    })
    .into_response())
}

/// Get a resource scope
#[utoipa::path(
    get, path = "/v1/resource-scopes/{scope}", operation_id = "getResourceScope", tag = "resource scopes",
    params(("scope" = String, Path, pattern = "^[A-Za-z0-9._:-]{1,128}$", description = "The scope's name")),
    responses((status = 200, description = "The scope", body = ScopeBody,
        example = json!({"scope": "account", "capacity": 3, "in_use": {"42": 2}})), GetProblems)
)]
pub(super) async fn get(State(app): State<App>, by: By<Read>, PathName(scope): PathName) -> Result<Response, Problem> {
    let found = app
        .store
        .scopes(by.app, Some(&scope))
        .await?
        .pop()
        .ok_or_else(not_found)?;
    Ok(JsonBody(ScopeBody::from(found)).into_response())
}

/// Set the capacity of a resource scope
///
/// It counts from now on. A lower one takes no job from its worker: the number comes down as jobs end.
#[utoipa::path(
    put, path = "/v1/resource-scopes/{scope}", operation_id = "putResourceScope", tag = "resource scopes",
    params(("scope" = String, Path, pattern = "^[A-Za-z0-9._-]{1,128}$", description = "The scope's name: 1 to 128 of `A-Z a-z 0-9 . _ -`")),
    request_body(content = ScopeSettingsBody, example = json!({"capacity": 3})),
    responses(
        (status = 200, description = "The capacity is changed", body = ScopeBody,
            example = json!({"scope": "account", "capacity": 3, "in_use": {"42": 2}})),
        (status = 201, description = "The scope has a capacity of its own now", body = ScopeBody,
            example = json!({"scope": "account", "capacity": 3, "in_use": {}})),
        PutProblems,
    )
)]
pub(super) async fn put(
    State(app): State<App>,
    by: By<Admin>,
    PathName(scope): PathName,
    Wire(ScopeSettingsBody { capacity }): Wire<ScopeSettingsBody, SMALL>,
) -> Result<Response, Problem> {
    let invalid = |detail| Problem::new(Code::InvalidRequest, detail);
    if scope.contains(':') {
        return Err(invalid(
            "a resource scope holds no colon: it is what stands before the first colon of a resource key",
        ));
    }
    if !(1..=CAPACITY_MAX).contains(&capacity) {
        return Err(invalid("a capacity is a whole number from 1 to 1000000").at("/capacity"));
    }
    let created = app.store.set_scope(by.app, &scope, capacity as i32).await?;
    // There may be room now. Should this fail, a sweep comes round.
    if let Ok(queues) = app.store.unblock_missed().await {
        app.wakeups
            .tell(queues.into_iter().map(|(app, queue)| News::Queue(app, queue)));
    }
    let found = app.store.scopes(by.app, Some(&scope)).await.map_err(problem::unseen)?;
    let found = found.into_iter().next().ok_or_else(not_found)?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, JsonBody(ScopeBody::from(found))).into_response())
}

/// Forget the capacity of a resource scope
///
/// It is 1 again.
#[utoipa::path(
    delete, path = "/v1/resource-scopes/{scope}", operation_id = "deleteResourceScope", tag = "resource scopes",
    params(("scope" = String, Path, pattern = "^[A-Za-z0-9._:-]{1,128}$", description = "The scope's name")),
    responses((status = 200, description = "The scope as it is now", body = ScopeBody,
        example = json!({"scope": "account", "capacity": 1, "in_use": {"42": 1}})), GetProblems)
)]
pub(super) async fn delete(
    State(app): State<App>,
    by: By<Admin>,
    PathName(scope): PathName,
) -> Result<Response, Problem> {
    if !app.store.delete_scope(by.app, &scope).await? {
        return Err(not_found());
    }
    let found = app.store.scopes(by.app, Some(&scope)).await.map_err(problem::unseen)?;
    let left = found.into_iter().next().unwrap_or(ScopeView {
        scope,
        capacity: None,
        in_use: BTreeMap::new(),
    });
    Ok(JsonBody(ScopeBody::from(left)).into_response())
}

fn not_found() -> Problem {
    Problem::new(
        Code::ResourceScopeNotFound,
        "this resource scope has no capacity of its own: it is 1",
    )
}
