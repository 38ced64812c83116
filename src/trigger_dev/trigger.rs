//! `tasks.trigger` and `idempotencyKeys.reset`.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::dispatch::prepare::Request;
use crate::http::auth::{Admin, Dispatch};
use crate::http::dispatch::{only, unit};
use crate::http::extract::{SINGLE, SMALL};
use crate::http::object::object;
use crate::http::problem::Code;
use crate::http::{App, JsonBody};
use crate::job::AppId;
use crate::settings::is_name;
use crate::store::Reset;
use crate::trigger_dev::options::Options;
use crate::trigger_dev::payload;
use crate::trigger_dev::refusal::{Caller, Json, Refusal, RequestKey, Segment, invalid};
use crate::uniqueness::decide::AskedKey;
use crate::uniqueness::key::{Key, KeyText, Scope};
use crate::uniqueness::receipt::Receipt;

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct TriggerBody {
    #[serde(default)]
    payload: Option<Box<RawValue>>,
    context: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "object")]
    options: Option<Options>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Triggered {
    id: String,
    is_cached: bool,
}

/// Starts a run, or gives back the one that the key leads to.
pub(super) async fn trigger(
    State(app): State<App>,
    Caller(by): Caller<Dispatch>,
    Segment(task): Segment,
    RequestKey(key): RequestKey,
    Json(body): Json<TriggerBody, SINGLE>,
) -> Result<Response, Refusal> {
    let TriggerBody {
        payload,
        context,
        options,
    } = body;
    let request = request(
        task,
        payload.as_deref(),
        context.as_deref(),
        options.unwrap_or_default(),
        key.clone(),
    )?;
    let receipt = dispatched(&app, by.app, request).await?;
    let answer = Triggered {
        is_cached: receipt.matched.is_some() && !found_by(&receipt, key.as_deref()),
        id: receipt.job_id.to_string(),
    };
    Ok(JsonBody(answer).into_response())
}

/// The dispatch that a trigger, or an item of a batch, asks for.
pub(super) fn request(
    task: String,
    payload: Option<&RawValue>,
    context: Option<&RawValue>,
    options: Options,
    otherwise: Option<String>,
) -> Result<Request, Refusal> {
    if !is_name(&task) {
        let detail = "a task's identifier is 1 to 128 of A-Z a-z 0-9 . _ : -";
        return Err(Refusal::at("/task", detail));
    }
    if context.is_some() {
        return Err(Refusal::at(
            "/context",
            "the member context is not supported: send it in the payload",
        ));
    }
    let payload = payload::read(payload, options.payload_type.as_deref())?;
    options.request(task, payload, otherwise)
}

/// Decides one dispatch.
pub(super) async fn dispatched(app: &App, id: AppId, request: Request) -> Result<Receipt, Refusal> {
    let unit = unit(app, id, vec![request], false).await?.map_err(invalid)?;
    Ok(only(app.dispatcher.dispatch(unit).await?)?)
}

/// Whether it is the same request that has found the run which its first try started.
pub(super) fn found_by(receipt: &Receipt, key: Option<&str>) -> bool {
    let window = receipt.window.as_ref();
    window.is_some_and(|window| key == Some(&*window.key) && !window.linked)
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ResetBody {
    task_identifier: String,
}

#[derive(Serialize)]
struct KeyBody {
    id: String,
}

/// Frees a key. One that nobody holds is not found.
pub(super) async fn reset(
    State(app): State<App>,
    Caller(by): Caller<Admin>,
    Segment(id): Segment,
    Json(ResetBody { task_identifier: task }): Json<ResetBody, SMALL>,
) -> Result<Response, Refusal> {
    if !is_name(&task) {
        let detail = "a task's identifier is 1 to 128 of A-Z a-z 0-9 . _ : -";
        return Err(Refusal::at("/taskIdentifier", detail));
    }
    let text = KeyText::parse(&id).map_err(|error| Refusal::new(Code::InvalidKey, error.to_string()))?;
    let key = AskedKey::new(Key::window(&task, Scope::Global, text));
    let store = app.store.clone();
    let reset = app.undisturbed(async move { store.reset(by.app, &key, None, rand::random()).await });
    match reset.await? {
        Reset(Some(_)) => Ok(JsonBody(KeyBody { id }).into_response()),
        Reset(None) => Err(Refusal::new(
            Code::NotFound,
            "no run of this task holds this idempotency key: it was reset, is over, or its run has failed",
        )),
    }
}
