//! Job types: keys and defaults that are declared for a job name once.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::dispatch::Parents;
use crate::dispatch::prepare::{Request, Surroundings, prepare};
use crate::http::auth::{Admin, By, Read};
use crate::http::examples;
use crate::http::extract::{OPTIONAL, PathName, SMALL, Wire};
use crate::http::object::object;
use crate::http::problem::{self, Code, Problem, answers};
use crate::http::wire::{FinalStateBody, Members, OnMismatchBody, RetryBody};
use crate::http::{App, JsonBody};
use crate::job::AppId;
use crate::job_types::definition::{ActiveDefinition, Definition, JobType, WindowDefinition};
use crate::job_types::registry::Snapshot;
use crate::store::StoredType;

answers!(ListProblems: Unauthorized, Forbidden, Internal, StoreUnavailable);
answers!(GetProblems: InvalidRequest, Unauthorized, Forbidden, JobTypeNotFound, Internal, StoreUnavailable);
answers!(PutProblems: InvalidJson, InvalidRequest, InvalidWindow, InvalidDuration, InvalidPayload, Unauthorized,
    Forbidden, PayloadTooLarge, UnsupportedMediaType, InvalidSelector, Internal, StoreUnavailable);
answers!(EvaluateProblems: InvalidJson, InvalidRequest, InvalidKey, InvalidPayload, Unauthorized, Forbidden,
    JobTypeNotFound, PayloadTooLarge, UnsupportedMediaType, UniquenessRequired, KeySelectorFailed, Internal,
    StoreUnavailable);

/// What is declared for a job name, as a request or a file says it.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = JobTypeSettings)]
pub struct JobTypeBody {
    /// Every dispatch has an active key, made by this expression in CEL.
    #[serde(default, deserialize_with = "object")]
    unique_while_active: Option<ActiveBody>,
    /// Every dispatch has a window key, made by this expression in CEL.
    #[serde(default, deserialize_with = "object")]
    unique_within_window: Option<WindowBody>,
    /// The queue of a dispatch that names none.
    #[schema(example = "reports", pattern = "^[A-Za-z0-9._:-]{1,128}$")]
    queue: Option<String>,
    #[schema(minimum = -32768, maximum = 32767)]
    priority: Option<i64>,
    /// Member by member: what a dispatch leaves out is taken from here.
    #[serde(default, deserialize_with = "object")]
    retry: Option<RetryBody>,
    #[schema(example = "10m")]
    timeout: Option<String>,
    #[schema(example = "30d")]
    retention: Option<String>,
}

#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = UniqueWhileActive)]
pub struct ActiveBody {
    /// CEL over `payload`, `metadata`, `name` and `queue`, which gives a string. At most 2048 bytes and 64 nodes.
    #[schema(example = "'tenant:' + string(payload.tenant_id)")]
    key: String,
}

#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = UniqueWithinWindow)]
pub struct WindowBody {
    /// CEL over `payload`, `metadata`, `name` and `queue`, which gives a string. At most 2048 bytes and 64 nodes.
    #[schema(example = "payload.request_id")]
    key: String,
    /// How long the key is held: a duration from 1ms to 3650 days.
    #[schema(example = "24h")]
    window: String,
    #[schema(value_type = Option<OnMismatchBody>)]
    on_mismatch: Option<String>,
    #[schema(value_type = Option<Vec<FinalStateBody>>)]
    release_on: Option<Vec<String>>,
}

impl From<JobTypeBody> for Definition {
    fn from(body: JobTypeBody) -> Definition {
        let JobTypeBody {
            unique_while_active,
            unique_within_window,
            queue,
            priority,
            retry,
            timeout,
            retention,
        } = body;
        let window = |WindowBody {
                          key,
                          window,
                          on_mismatch,
                          release_on,
                      }| WindowDefinition {
            key,
            window,
            on_mismatch,
            release_on,
        };
        Definition {
            unique_while_active: unique_while_active.map(|ActiveBody { key }| ActiveDefinition { key }),
            unique_within_window: unique_within_window.map(window),
            queue,
            priority,
            retry: retry.map(Into::into),
            timeout,
            retention,
        }
    }
}

/// What is declared for a job name.
#[derive(Serialize, Debug)]
pub struct JobTypeView {
    name: String,
    #[serde(flatten)]
    definition: Definition,
    updated_at: DateTime<Utc>,
}

/// What is declared for a job name: the settings that were given, and no others.
///
/// For the document alone. Settings that are sent have no other members than theirs, so a description by them would
/// forbid the name beside them.
#[derive(ToSchema)]
#[schema(as = JobType)]
#[expect(dead_code, reason = "it describes a JobTypeView")]
pub struct JobTypeDescribed {
    #[schema(example = "place-order")]
    name: String,
    unique_while_active: Option<ActiveBody>,
    unique_within_window: Option<WindowBody>,
    #[schema(example = "reports")]
    queue: Option<String>,
    priority: Option<i64>,
    retry: Option<RetryBody>,
    #[schema(example = "10m")]
    timeout: Option<String>,
    #[schema(example = "30d")]
    retention: Option<String>,
    updated_at: DateTime<Utc>,
}

impl From<StoredType> for JobTypeView {
    fn from(
        StoredType {
            name,
            definition,
            updated_at,
        }: StoredType,
    ) -> JobTypeView {
        JobTypeView {
            name,
            definition,
            updated_at,
        }
    }
}

#[derive(Serialize, ToSchema, Debug)]
#[schema(as = JobTypeList)]
pub struct ListBody {
    #[schema(value_type = Vec<JobTypeDescribed>)]
    job_types: Vec<JobTypeView>,
}

#[derive(Serialize, ToSchema, Debug)]
#[schema(as = DeletedJobType)]
pub struct DeletedBody {
    #[schema(example = "place-order")]
    name: String,
    deleted: bool,
}

/// The part of a dispatch that keys are made of.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = Evaluation)]
pub struct EvaluationBody {
    #[serde(default)]
    #[schema(value_type = serde_json::Value)]
    payload: Option<Box<RawValue>>,
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    metadata: Option<Members>,
    #[schema(pattern = "^[A-Za-z0-9._:-]{1,128}$")]
    queue: Option<String>,
}

/// The keys that such a dispatch would have.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = EvaluatedKeys)]
pub struct EvaluatedBody {
    #[schema(example = "tenant:7")]
    active_key: Option<String>,
    #[schema(example = "req-1")]
    window_key: Option<String>,
}

/// List job types
#[utoipa::path(
    get, path = "/v1/job-types", operation_id = "listJobTypes", tag = "job types",
    responses((status = 200, description = "All of the application's, by name", body = ListBody,
        example = json!({"job_types": [examples::job_type()]})), ListProblems)
)]
pub(super) async fn list(State(app): State<App>, by: By<Read>) -> Result<Response, Problem> {
    let (_, types) = app.store.job_types(by.app).await?;
    let job_types = types.into_iter().map(Into::into).collect();
    Ok(JsonBody(ListBody { job_types }).into_response())
}

/// Get a job type
#[utoipa::path(
    get, path = "/v1/job-types/{name}", operation_id = "getJobType", tag = "job types",
    params(("name" = String, Path, pattern = "^[A-Za-z0-9._:-]{1,128}$", description = "The job name")),
    responses((status = 200, description = "As it was declared", body = JobTypeDescribed,
        example = json!(examples::job_type())), GetProblems)
)]
pub(super) async fn get(State(app): State<App>, by: By<Read>, PathName(name): PathName) -> Result<Response, Problem> {
    let found = app.store.job_type(by.app, &name).await?.ok_or_else(not_found)?;
    Ok(JsonBody(JobTypeView::from(found)).into_response())
}

/// Declare a job type
///
/// In place of what was declared for the name. Once this is answered, every dispatch on every server is decided by it;
/// jobs that are there stay as they are.
#[utoipa::path(
    put, path = "/v1/job-types/{name}", operation_id = "putJobType", tag = "job types",
    params(("name" = String, Path, pattern = "^[A-Za-z0-9._:-]{1,128}$", description = "The job name: 1 to 128 of `A-Z a-z 0-9 . _ : -`")),
    request_body(content = Option<JobTypeBody>, example = json!({
        "unique_while_active": {"key": "'tenant:' + string(payload.tenant_id)"},
        "unique_within_window": {"key": "payload.request_id", "window": "24h"}, "queue": "reports", "timeout": "10m"
    })),
    responses(
        (status = 200, description = "The type is changed", body = JobTypeDescribed, example = json!(examples::job_type())),
        (status = 201, description = "The name has a type now", body = JobTypeDescribed, example = json!(examples::job_type())),
        PutProblems,
    )
)]
pub(super) async fn put(
    State(app): State<App>,
    by: By<Admin>,
    PathName(name): PathName,
    Wire(body): Wire<JobTypeBody, SMALL>,
) -> Result<Response, Problem> {
    let definition = Definition::from(body);
    JobType::compile(&name, &definition)?;
    let declared = {
        let (store, id, types) = (app.store.clone(), by.app, [(name.clone(), definition)]);
        app.undisturbed(async move { store.declare(id, &types).await }).await?
    };
    look_again(&app, by.app).await;
    let found = app.store.job_type(by.app, &name).await.map_err(problem::unseen)?;
    // Whoever deletes it in this moment comes after it.
    let found = found.ok_or_else(not_found)?;
    let status = if declared.created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((status, JsonBody(JobTypeView::from(found))).into_response())
}

/// Delete a job type
///
/// Nothing is declared for the name any more. Jobs that are there keep their keys.
#[utoipa::path(
    delete, path = "/v1/job-types/{name}", operation_id = "deleteJobType", tag = "job types",
    params(("name" = String, Path, pattern = "^[A-Za-z0-9._:-]{1,128}$", description = "The job name")),
    responses((status = 200, description = "It is deleted", body = DeletedBody,
        example = json!({"name": "place-order", "deleted": true})), GetProblems)
)]
pub(super) async fn delete(
    State(app): State<App>,
    by: By<Admin>,
    PathName(name): PathName,
) -> Result<Response, Problem> {
    let deleted = {
        let (store, id, name) = (app.store.clone(), by.app, name.clone());
        app.undisturbed(async move { store.delete_job_type(id, &name).await })
            .await?
    };
    if !deleted {
        return Err(not_found());
    }
    look_again(&app, by.app).await;
    Ok(JsonBody(DeletedBody { name, deleted }).into_response())
}

/// Evaluate the keys of a job type
///
/// Answers which keys a dispatch with this payload would have, or what it would be refused for.
#[utoipa::path(
    post, path = "/v1/job-types/{name}/evaluate", operation_id = "evaluateJobType", tag = "job types",
    params(("name" = String, Path, pattern = "^[A-Za-z0-9._:-]{1,128}$", description = "The job name")),
    request_body(content = Option<EvaluationBody>, example = json!({"payload": {"tenant_id": 7, "request_id": "req-1"}})),
    responses((status = 200, description = "The keys; null where none is declared", body = EvaluatedBody,
        example = json!({"active_key": "tenant:7", "window_key": "req-1"})), EvaluateProblems)
)]
pub(super) async fn evaluate(
    State(app): State<App>,
    by: By<Read>,
    PathName(name): PathName,
    Wire(body): Wire<EvaluationBody, OPTIONAL>,
) -> Result<Response, Problem> {
    let EvaluationBody {
        payload,
        metadata,
        queue,
    } = body;
    let stored = app.store.job_type(by.app, &name).await?.ok_or_else(not_found)?;
    let kind = JobType::compile(&name, &stored.definition).map(Arc::new);
    let request = Request {
        name: name.clone(),
        payload: payload.map(|text| Box::<str>::from(text).into()),
        metadata: metadata.map(Members::into_pairs).unwrap_or_default(),
        queue,
        ..Request::default()
    };
    let prepared = prepare(
        &request,
        &Surroundings {
            payload_bytes_max: app.limits.payload_bytes,
            now: app.dispatcher.clock().now(),
            parents: &Parents::default(),
            types: &Snapshot::new(0, [(name.into_boxed_str(), kind)]),
        },
    )?;
    let ask = prepared.ask;
    Ok(JsonBody(EvaluatedBody {
        active_key: ask.active.map(|key| key.key.text.as_str().into()),
        window_key: ask.window.map(|window| window.key.key.text.as_str().into()),
    })
    .into_response())
}

/// Spares the next dispatch here from finding out about a change by itself. If it fails, that dispatch does.
async fn look_again(app: &App, id: AppId) {
    if let Err(error) = app.types.refresh(id).await {
        tracing::debug!(%error, "job types could not be loaded after a change");
    }
}

fn not_found() -> Problem {
    Problem::new(Code::JobTypeNotFound, "nothing is declared for this job name")
}
