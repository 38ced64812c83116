//! `GET /v1/keys` and `POST /v1/keys/reset`: keys by themselves.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::dispatch::exact_scope;
use crate::dispatch::prepare::{job_id_of, parent_of};
use crate::http::auth::{Admin, By, Read};
use crate::http::examples;
use crate::http::extract::{Query, SMALL, Wire, invalid_query};
use crate::http::object::object;
use crate::http::problem::{Code, Problem, answers};
use crate::http::wire::ParentBody;
use crate::http::{App, JsonBody};
use crate::settings::is_name;
use crate::store::Reset;
use crate::uniqueness::decide::AskedKey;
use crate::uniqueness::key::{Key, KeyText, Scope};

answers!(HolderProblems: InvalidRequest, InvalidKey, Unauthorized, Forbidden, IdempotencyScopeInvalid, Internal, StoreUnavailable);
answers!(ResetProblems: InvalidJson, InvalidRequest, InvalidKey, InvalidPayload, Unauthorized, Forbidden,
    PayloadTooLarge, UnsupportedMediaType, IdempotencyScopeInvalid, Internal, StoreUnavailable);

/// Which key: of a job name, an active key, a window key or an idempotency key.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it describes the query string, which is read member by member")]
pub struct KeyParams {
    /// The job name that the key belongs to.
    #[param(pattern = "^[A-Za-z0-9._:-]{1,128}$")]
    name: String,
    /// Give one of the three.
    #[param(min_length = 1, max_length = 512)]
    active_key: Option<String>,
    /// Give one of the three.
    #[param(min_length = 1, max_length = 512)]
    window_key: Option<String>,
    /// Give one of the three.
    #[param(min_length = 1, max_length = 512)]
    idempotency_key: Option<String>,
    /// The scope of a window key; `global` unless given.
    #[param(value_type = Option<crate::http::wire::ScopeBody>)]
    scope: Option<String>,
    /// Of the scopes `run` and `attempt`: the parent job.
    #[param(value_type = Option<Uuid>)]
    parent_job_id: Option<String>,
    /// Of the scope `attempt`: the parent's attempt.
    #[param(minimum = 1)]
    parent_attempt: Option<i64>,
}

/// Who holds a key.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = KeyHolder)]
pub struct KeyHolderBody {
    held: bool,
    /// The job that the key leads to.
    job_id: Option<Uuid>,
    /// The job's state; null when the key outlived the job.
    #[schema(value_type = Option<crate::http::wire::StateBody>)]
    state: Option<&'static str>,
    /// Since when it is held.
    since: Option<DateTime<Utc>>,
    /// The first instant at which a window key is free; null for an active key, which is held until its job ends.
    expires_at: Option<DateTime<Utc>>,
    #[schema(example = "global")]
    scope: Option<String>,
}

/// Say who holds a key
#[utoipa::path(
    get, path = "/v1/keys", operation_id = "getKey", tag = "keys", params(KeyParams),
    responses(
        (status = 200, description = "Who holds it, if anybody", body = KeyHolderBody, example = json!(examples::holder())),
        HolderProblems,
    )
)]
pub(super) async fn holder(State(app): State<App>, by: By<Read>, mut query: Query) -> Result<Response, Problem> {
    let name = query
        .take("name")?
        .ok_or_else(|| invalid_query("name", "is missing: a key belongs to a job name"))?;
    if !is_name(&name) {
        return Err(invalid_query("name", "is 1 to 128 of A-Z a-z 0-9 . _ : -"));
    }
    let text = |text: String| KeyText::parse(&text).map_err(|error| Problem::new(Code::InvalidKey, error.to_string()));
    let parent = match (query.take("parent_job_id")?, query.take("parent_attempt")?) {
        (None, None) => None,
        (None, Some(_)) => return Err(invalid_query("parent_attempt", "needs parent_job_id beside it")),
        (Some(job), attempt) => {
            let invalid = |_| invalid_query("parent_attempt", "is a whole number from 1 on");
            Some(parent_of((
                job,
                attempt.map(|text| text.parse()).transpose().map_err(invalid)?,
            ))?)
        }
    };
    let scope = exact_scope(query.take("scope")?.as_deref(), parent)?;
    let asked = [
        query.take("active_key")?,
        query.take("window_key")?,
        query.take("idempotency_key")?,
    ];
    let (key, scope) = match asked {
        [Some(key), None, None] => (Key::active(&name, text(key)?), Scope::Global),
        [None, Some(key), None] | [None, None, Some(key)] => (Key::window(&name, scope, text(key)?), scope),
        _ => {
            return Err(invalid_query(
                "active_key",
                "or window_key or idempotency_key: give one of the three",
            ));
        }
    };
    let scope = scope.to_text();
    query.end()?;
    let holder = app.store.holder(by.app, &AskedKey::new(key)).await?;
    Ok(JsonBody(KeyHolderBody {
        held: holder.is_some(),
        job_id: holder.as_ref().map(|holder| holder.job.0),
        state: holder
            .as_ref()
            .and_then(|holder| holder.state)
            .map(|state| state.as_str()),
        since: holder.as_ref().map(|holder| holder.since),
        expires_at: holder.as_ref().and_then(|holder| holder.expires_at),
        scope: holder.as_ref().map(|_| Scope::name_of(&scope).to_owned()),
    })
    .into_response())
}

/// A window key to free.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = KeyReset)]
pub struct ResetBody {
    /// The job name that the key belongs to.
    #[schema(example = "place-order", pattern = "^[A-Za-z0-9._:-]{1,128}$")]
    name: String,
    /// Give this or `idempotency_key`.
    #[schema(example = "req-1", min_length = 1, max_length = 512)]
    window_key: Option<String>,
    /// Give this or `window_key`.
    #[schema(min_length = 1, max_length = 512)]
    idempotency_key: Option<String>,
    /// `global` unless given; `run` needs a parent, `attempt` a parent and its attempt.
    #[schema(value_type = Option<crate::http::wire::ScopeBody>)]
    scope: Option<String>,
    #[serde(default, deserialize_with = "object")]
    parent: Option<ParentBody>,
    /// Frees the key only if this job holds it.
    #[schema(value_type = Option<Uuid>)]
    job_id: Option<String>,
}

/// Whether a key was freed.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = KeyRelease)]
pub struct ReleaseBody {
    released: bool,
    /// The job that held it. It is left as it is.
    job_id: Option<Uuid>,
}

/// Free a window key now
///
/// The next dispatch with this key creates a job. An active key is freed by cancelling its job.
#[utoipa::path(
    post, path = "/v1/keys/reset", operation_id = "resetKey", tag = "keys",
    request_body(content = ResetBody, example = json!({"name": "place-order", "window_key": "req-1"})),
    responses(
        (status = 200, description = "Whether it was held, and by which job", body = ReleaseBody,
            example = json!(examples::released())),
        ResetProblems,
    )
)]
pub(super) async fn reset(
    State(app): State<App>,
    by: By<Admin>,
    Wire(body): Wire<ResetBody, SMALL>,
) -> Result<Response, Problem> {
    let ResetBody {
        name,
        window_key,
        idempotency_key,
        scope,
        parent,
        job_id,
    } = body;
    let invalid = |pointer: &str, detail: &str| Problem::new(Code::InvalidRequest, detail).at(pointer);
    if !is_name(&name) {
        return Err(invalid("/name", "a name is 1 to 128 of A-Z a-z 0-9 . _ : -"));
    }
    let (pointer, key) = match (window_key, idempotency_key) {
        (Some(key), None) => ("/window_key", key),
        (None, Some(key)) => ("/idempotency_key", key),
        _ => return Err(invalid("/window_key", "give either window_key or idempotency_key")),
    };
    let key = KeyText::parse(&key);
    let key = key.map_err(|error| Problem::new(Code::InvalidKey, error.to_string()).at(pointer))?;
    let parent = parent.map(|parent| parent_of(parent.parts())).transpose()?;
    let scope = exact_scope(scope.as_deref(), parent)?;
    let key = AskedKey::new(Key::window(&name, scope, key));
    let job = match job_id.map(|id| job_id_of(&id)) {
        None => None,
        Some(Some(id)) => Some(id),
        Some(None) => return Err(invalid("/job_id", "a job id is a UUID")),
    };
    let store = app.store.clone();
    let Reset(released) = app
        .undisturbed(async move { store.reset(by.app, &key, job, rand::random()).await })
        .await?;
    Ok(JsonBody(ReleaseBody {
        released: released.is_some(),
        job_id: released.map(|id| id.0),
    })
    .into_response())
}
