//! `tasks.batchTrigger` and `batch.trigger`: a batch is announced, and then its items are streamed.
//!
//! Nothing is stored of a batch by itself: its id says what the items need to know. Items without a key of their own get
//! one of the batch's, so that the stream can be sent again, as the SDK does.

use axum::body::{Body, Bytes};
use axum::extract::{Request as HttpRequest, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::dispatch::Failure;
use crate::dispatch::prepare::{Request, job_id_of};
use crate::http::Limits;
use crate::http::auth::Dispatch;
use crate::http::dispatch::unit;
use crate::http::extract::{self, SINGLE};
use crate::http::object::object;
use crate::http::problem::{Code, Problem};
use crate::http::{App, JsonBody};
use crate::job::JobId;
use crate::json::MAX_DEPTH;
use crate::settings::Invalid;
use crate::trigger_dev::options::{BATCH_MEMBER, Options};
use crate::trigger_dev::refusal::{Caller, Json, Refusal, Segment, invalid};
use crate::trigger_dev::trigger::{found_by, request};
use crate::uniqueness::decide::AskedKey;
use crate::uniqueness::holders::UnitOutcome;
use crate::uniqueness::key::{Key, KeyText, Scope};
use crate::uniqueness::receipt::Receipt;

/// What the ids of batches begin with.
pub(super) const PREFIX: &str = "batch_";

/// The first byte of an id says which form the rest has.
const ID_VERSION: u8 = 1;

/// What the items of a batch need to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Batch {
    run_count: u32,
    /// Random, or made of the batch's idempotency key: the same key is the same batch.
    nonce: Uuid,
    parent: Option<JobId>,
}

impl Batch {
    fn id(&self) -> String {
        let mut bytes = vec![ID_VERSION];
        bytes.extend(self.run_count.to_be_bytes());
        bytes.extend(self.nonce.as_bytes());
        bytes.extend(self.parent.iter().flat_map(|parent| *parent.0.as_bytes()));
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    fn read(id: &str) -> Option<Batch> {
        let bytes = URL_SAFE_NO_PAD.decode(id.strip_prefix(PREFIX)?).ok()?;
        let (&ID_VERSION, rest) = bytes.split_first()? else {
            return None;
        };
        let (run_count, rest) = rest.split_first_chunk()?;
        let (nonce, rest) = rest.split_first_chunk()?;
        let parent = match rest {
            [] => None,
            rest => Some(JobId(Uuid::from_slice(rest).ok()?)),
        };
        Some(Batch {
            run_count: u32::from_be_bytes(*run_count),
            nonce: Uuid::from_bytes(*nonce),
            parent,
        })
    }
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct CreateBody {
    run_count: u32,
    parent_run_id: Option<String>,
    resume_parent_on_completion: Option<bool>,
    idempotency_key: Option<String>,
    // Known from the items, and from the key.
    #[serde(rename = "taskIdentifiers")]
    _task_identifiers: Option<Box<RawValue>>,
    #[serde(rename = "idempotencyKeyOptions")]
    _idempotency_key_options: Option<Box<RawValue>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Created {
    id: String,
    run_count: u32,
    /// Each item is looked up by itself.
    is_cached: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<String>,
}

/// Announces a batch.
pub(super) async fn create(
    State(app): State<App>,
    Caller(_by): Caller<Dispatch>,
    Json(body): Json<CreateBody, SINGLE>,
) -> Result<Response, Refusal> {
    let CreateBody {
        run_count,
        parent_run_id,
        resume_parent_on_completion,
        idempotency_key,
        ..
    } = body;
    if run_count == 0 {
        return Err(Refusal::at("/runCount", "a batch has at least one item"));
    }
    let most = app.limits.batch_items;
    if run_count as usize > most {
        let detail = format!("a batch has at most {most} items and this one has {run_count}: send it in parts");
        return Err(Problem::new(Code::BatchTooLarge, detail).at("/runCount").into());
    }
    if resume_parent_on_completion == Some(true) {
        let detail = "the option resumeParentOnCompletion is not supported: this server runs no parent on";
        return Err(Refusal::at("/resumeParentOnCompletion", detail));
    }
    let parent = match parent_run_id.as_deref().map(job_id_of) {
        None => None,
        Some(Some(parent)) => Some(parent),
        Some(None) => return Err(Refusal::at("/parentRunId", "the id of a run here is a UUID")),
    };
    let nonce = match &idempotency_key {
        None => Uuid::new_v4(),
        Some(key) => {
            let text = KeyText::parse(key)
                .map_err(|error| Problem::new(Code::InvalidKey, error.to_string()).at("/idempotencyKey"))?;
            Uuid::from_bytes(AskedKey::new(Key::window(PREFIX, Scope::Global, text)).digest.0)
        }
    };
    let batch = Batch {
        run_count,
        nonce,
        parent,
    };
    let created = Created {
        id: batch.id(),
        run_count,
        is_cached: false,
        idempotency_key,
    };
    Ok(JsonBody(created).into_response())
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Item {
    index: usize,
    task: String,
    #[serde(default)]
    payload: Option<Box<RawValue>>,
    context: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "object")]
    options: Option<Options>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Streamed {
    id: String,
    items_accepted: usize,
    items_deduplicated: usize,
    sealed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    enqueued_count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected_count: Option<usize>,
}

/// The key of an item that has none of its own.
fn item_key(batch: &str, index: usize) -> String {
    format!("{batch}/{index}")
}

/// Whether a key was made for an item, and not by a client.
pub(super) fn is_item_key(key: &str) -> bool {
    key.starts_with(PREFIX) && key.contains('/')
}

/// Starts the runs of a batch: all of them, or none.
pub(super) async fn items(
    State(app): State<App>,
    Caller(by): Caller<Dispatch>,
    Segment(id): Segment,
    request: HttpRequest,
) -> Result<Response, Refusal> {
    let unknown = || {
        Refusal::new(
            Code::NotFound,
            "there is no such batch: POST /api/v3/batches gives its id",
        )
    };
    let batch = Batch::read(&id).ok_or_else(unknown)?;
    let expected = batch.run_count as usize;
    let bytes = read_body(request, &app.limits).await?;
    let items = read_items(&bytes, expected.min(app.limits.batch_items))?;
    drop(bytes);
    if items.len() < expected {
        // The client sends the whole stream again: until then there is nothing.
        let body = Streamed {
            id,
            items_accepted: 0,
            items_deduplicated: 0,
            sealed: false,
            enqueued_count: Some(0),
            expected_count: Some(expected),
        };
        return Ok(JsonBody(body).into_response());
    }
    let key = |index: usize| item_key(&id, index);
    let mut requests = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        requests.push(of_item(item, &id, batch.parent, key(index)).map_err(|error| Refusal::of_item(index, error))?);
    }
    let named = |faults: Vec<(usize, Invalid)>| {
        let first = faults.first().map_or(0, |(index, _)| *index);
        Refusal::of_item(first, invalid(faults))
    };
    let unit = unit(&app, by.app, requests, false).await?.map_err(named)?;
    let decided = app.dispatcher.dispatch(unit).await.map_err(|failure| match failure {
        Failure::Invalid(faults) => named(faults),
        failure => failure.into(),
    });
    let results = match decided? {
        UnitOutcome::Applied(results) => results,
        UnitOutcome::Refused { index, refusal } => {
            return Err(Refusal::of_item(index, Problem::refused(&refusal, false).into()));
        }
    };
    // Each receipt is whole: a batch that is not goes no further.
    let receipts: Vec<Receipt> = results.into_iter().filter_map(Result::ok).collect();
    let again =
        |(index, receipt): &(usize, &Receipt)| receipt.matched.is_some() && found_by(receipt, Some(&key(*index)));
    let deduplicated = receipts.iter().enumerate().filter(again).count();
    let all = receipts.len();
    let body = Streamed {
        id,
        items_accepted: all - deduplicated,
        items_deduplicated: deduplicated,
        sealed: true,
        enqueued_count: None,
        expected_count: None,
    };
    Ok(JsonBody(body).into_response())
}

fn of_item(item: Item, batch: &str, parent: Option<JobId>, key: String) -> Result<Request, Refusal> {
    let Item {
        index: _,
        task,
        payload,
        context,
        options,
    } = item;
    let options = options.unwrap_or_default();
    let mut request = request(task, payload.as_deref(), context.as_deref(), options, Some(key))?;
    request.parent = request.parent.or(parent.map(|parent| (parent.to_string(), None)));
    request.metadata.push((BATCH_MEMBER.into(), batch.into()));
    Ok(request)
}

async fn read_body(request: HttpRequest, limits: &Limits) -> Result<Bytes, Refusal> {
    if !is_ndjson(request.headers()) {
        return Err(Refusal::new(
            Code::UnsupportedMediaType,
            "send the items with the header Content-Type: application/x-ndjson",
        ));
    }
    let body: Body = request.into_body();
    Ok(extract::collect(body, limits.batch_bytes, Code::BatchTooLarge, limits.patience).await?)
}

fn is_ndjson(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return false;
    };
    let essence = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default();
    ["application/x-ndjson", "application/ndjson"]
        .iter()
        .any(|kind| essence.trim().eq_ignore_ascii_case(kind))
}

/// The items in the order of their indexes, from 0 on; the first ones only, where some are missing.
fn read_items(bytes: &[u8], expected: usize) -> Result<Vec<Item>, Refusal> {
    let mut items: Vec<Option<Item>> = Vec::new();
    items.resize_with(expected, || None);
    let lines = bytes.split(|byte| *byte == b'\n').enumerate();
    for (number, line) in lines.filter(|(_, line)| !line.iter().all(u8::is_ascii_whitespace)) {
        let in_line = |problem: Problem| {
            let detail = format!("line {}: {}", number + 1, problem.detail());
            let told = Problem::new(problem.code(), detail);
            match problem.pointer() {
                Some(pointer) => told.at(pointer),
                None => told,
            }
        };
        extract::check(line, MAX_DEPTH).map_err(in_line)?;
        let item: Item = extract::parse(line).map_err(in_line)?;
        let index = item.index;
        let Some(place) = items.get_mut(index) else {
            let detail = format!(
                "line {}: item {index} of a batch of {expected}: the first has the index 0",
                number + 1
            );
            return Err(Refusal::at("/index", detail));
        };
        if place.replace(item).is_some() {
            return Err(Refusal::at(
                "/index",
                format!("line {}: item {index} is there twice", number + 1),
            ));
        }
    }
    Ok(items.into_iter().map_while(|item| item).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_what_the_items_need_and_nothing_else_is_one() {
        let parent = Some(JobId(Uuid::from_u128(7)));
        for (run_count, parent) in [(1, None), (u32::MAX, parent)] {
            let batch = Batch {
                run_count,
                nonce: Uuid::from_u128(5),
                parent,
            };
            let id = batch.id();
            assert_eq!(Batch::read(&id), Some(batch));
            assert!(is_item_key(&item_key(&id, 3)));
            for wrong in [
                &id[..id.len() - 1],
                &id[1..],
                &format!("{id}AA"),
                &id.replace("batch_A", "batch_B"),
            ] {
                assert_eq!(Batch::read(wrong), None, "{wrong}");
            }
        }
        for wrong in ["", "batch_", "batch_!!", &format!("batch_{}", "A".repeat(10_000))] {
            assert_eq!(Batch::read(wrong), None);
        }
        assert!(!is_item_key("batch_x") && !is_item_key("import-7/1"));
    }

    #[test]
    fn items_are_taken_by_their_index_and_each_once() {
        let tasks = |text: &str, expected| -> Result<Vec<String>, Refusal> {
            Ok(read_items(text.as_bytes(), expected)?
                .into_iter()
                .map(|item| item.task)
                .collect())
        };
        let (first, second) = (r#"{"index":0,"task":"a"}"#, r#"{"index":1,"task":"b"}"#);
        assert_eq!(tasks(&format!("{second}\r\n\n{first}"), 2).unwrap(), ["a", "b"]);
        assert_eq!(tasks(second, 2).unwrap(), Vec::<String>::new());
        assert_eq!(tasks(first, 2).unwrap(), ["a"]);
        assert_eq!(tasks("", 2).unwrap(), Vec::<String>::new());
        for wrong in [
            format!("{first}\n{first}"),
            r#"{"index":2,"task":"a"}"#.into(),
            r#"{"index":-1,"task":"a"}"#.into(),
            r#"{"index":0}"#.into(),
            "[]".into(),
            "{".into(),
            format!("{first}{second}"),
        ] {
            assert!(tasks(&wrong, 2).is_err(), "{wrong}");
        }
    }
}
