//! Jobs that are there: read, listed, cancelled, deleted.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::dispatch::prepare::instant_of;
use crate::http::auth::{Admin, By, Read, ReadOne};
use crate::http::examples;
use crate::http::extract::{Id, Query, SMALL, Wire, invalid_query, job_not_found};
use crate::http::prefer::PreferWait;
use crate::http::problem::{Code, Problem, answers};
use crate::http::wire::JobBody;
use crate::http::{App, JsonBody};
use crate::job::{AppId, Instant, JobId};
use crate::life::Call;
use crate::settings::is_name;
use crate::store::{Again, Deleted, ListFilter};
use crate::uniqueness::key::KeyText;
use crate::wakeups::News;

const LIMIT_DEFAULT: u32 = 50;
const LIMIT_MAX: u32 = 200;

answers!(GetProblems: Unauthorized, Forbidden, JobNotFound, Internal, StoreUnavailable);
answers!(ListProblems: InvalidRequest, InvalidKey, InvalidCursor, Unauthorized, Forbidden, Internal, StoreUnavailable);
answers!(CancelProblems: InvalidJson, InvalidRequest, InvalidPayload, Unauthorized, Forbidden, JobNotFound, JobFinished,
    PayloadTooLarge, UnsupportedMediaType, Internal, Overloaded, StoreUnavailable,
    ShuttingDown);
answers!(RetryProblems: InvalidJson, InvalidRequest, InvalidPayload, Unauthorized, Forbidden, JobNotFound,
    ActiveKeyHeld, JobNotFinished, PayloadTooLarge, UnsupportedMediaType, Internal, StoreUnavailable);
answers!(DeleteProblems: Unauthorized, Forbidden, JobNotFound, JobNotFinished, Internal, StoreUnavailable);

/// Get a job
#[utoipa::path(
    get, path = "/v1/jobs/{job_id}", operation_id = "getJob", tag = "jobs",
    params(("job_id" = Uuid, Path, description = "The job's id")),
    responses((status = 200, description = "The job", body = JobBody, example = json!(examples::job())), GetProblems)
)]
pub(super) async fn get(
    State(app): State<App>,
    by: By<ReadOne>,
    prefer: PreferWait,
    Id(id): Id,
) -> Result<Response, Problem> {
    if !by.fully && !app.store.leased_by(by.app, id, by.caller.token_id.as_deref()).await? {
        let detail =
            "this needs a token with the right \"read\" (or \"admin\"), or the token that the job was leased with";
        return Err(Problem::new(Code::Forbidden, detail));
    }
    if let PreferWait(Some(wait)) = prefer {
        app.finished(by.app, id, wait).await?;
    }
    Ok(prefer.applied(job(&app, by.app, id).await?))
}

async fn job(app: &App, id: AppId, job: JobId) -> Result<Response, Problem> {
    let full = app.store.job(id, job).await?.ok_or_else(job_not_found)?;
    Ok(JsonBody(JobBody::whole(full)?).into_response())
}

/// Which jobs to show: those that pass every filter given.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it describes the query string, which is read member by member")]
pub struct ListParams {
    #[param(pattern = "^[A-Za-z0-9._:-]{1,128}$")]
    name: Option<String>,
    #[param(pattern = "^[A-Za-z0-9._:-]{1,128}$")]
    queue: Option<String>,
    #[param(value_type = Option<crate::http::wire::StateBody>)]
    state: Option<String>,
    #[param(min_length = 1, max_length = 512)]
    active_key: Option<String>,
    /// A metadata member that the jobs have: `metadata.customer=7`. May be given for several members.
    #[param(rename = "metadata.KEY")]
    metadata: Option<String>,
    /// Dispatched later than this instant.
    #[param(value_type = Option<chrono::DateTime<chrono::Utc>>)]
    dispatched_after: Option<String>,
    /// Dispatched earlier than this instant.
    #[param(value_type = Option<chrono::DateTime<chrono::Utc>>)]
    dispatched_before: Option<String>,
    /// How many jobs a page has at most.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// Where to go on: the `next_cursor` of the page before.
    cursor: Option<String>,
}

/// A page of jobs.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = JobList)]
pub struct JobListBody {
    /// Newest first, without `window_keys` and `attempts`.
    jobs: Vec<JobBody>,
    /// Where the next page begins; null on the last.
    next_cursor: Option<String>,
}

/// List jobs
///
/// Newest first. Give the same filters with the cursor of the page before to go on.
#[utoipa::path(
    get, path = "/v1/jobs", operation_id = "listJobs", tag = "jobs", params(ListParams),
    responses(
        (status = 200, description = "A page of jobs", body = JobListBody,
            headers(("Link" = String, description = "The next page, with rel=\"next\", if there is one")), example = json!(examples::list())),
        ListProblems,
    )
)]
pub(super) async fn list(State(app): State<App>, by: By<Read>, mut query: Query) -> Result<Response, Problem> {
    let cursor = query.take("cursor")?.map(|text| read_cursor(&text)).transpose()?;
    let limit = match query.take("limit")?.map(|text| text.parse()) {
        None => LIMIT_DEFAULT,
        Some(Ok(limit @ 1..=LIMIT_MAX)) => limit,
        Some(_) => return Err(invalid_query("limit", "is a whole number from 1 to 200")),
    };
    let filter = filter(&mut query)?;
    query.end()?;
    // One more than is shown says whether there is a next page.
    let mut jobs = app.store.list(by.app, &filter, cursor, limit + 1).await?;
    let more = jobs.len() > limit as usize;
    jobs.truncate(limit as usize);
    let next = jobs.last().filter(|_| more).map(|job| write_cursor(job.id));
    let link = next
        .as_ref()
        .map(|cursor| format!("<{}>; rel=\"next\"", next_page(&filter, limit, cursor)));
    let jobs = jobs.into_iter().map(JobBody::listed).collect::<Result<_, _>>()?;
    let body = JsonBody(JobListBody {
        jobs,
        next_cursor: next,
    });
    Ok(match link {
        Some(link) => ([(header::LINK, link)], body).into_response(),
        None => body.into_response(),
    })
}

fn filter(query: &mut Query) -> Result<ListFilter, Problem> {
    let mut name_of = |member: &str| match query.take(member)? {
        Some(name) if !is_name(&name) => Err(invalid_query(member, "is 1 to 128 of A-Z a-z 0-9 . _ : -")),
        name => Ok(name),
    };
    let (name, queue) = (name_of("name")?, name_of("queue")?);
    let unknown_state = |_| {
        invalid_query(
            "state",
            "is one of pending, reserved, running, retrying, succeeded, failed, cancelled",
        )
    };
    let state = query
        .take("state")?
        .map(|state| state.parse().map_err(unknown_state))
        .transpose()?;
    let active_key = query.take("active_key")?;
    if let Some(key) = &active_key {
        KeyText::parse(key).map_err(|error| Problem::new(Code::InvalidKey, error.to_string()))?;
    }
    let metadata = query.take_all("metadata.");
    if let Some((name, _)) = metadata
        .iter()
        .find(|(name, value)| (name.clone() + value).contains(char::is_control))
    {
        return Err(invalid_query(
            &format!("metadata.{name}"),
            "holds a control character, which no metadata does",
        ));
    }
    let mut instant = |member: &str| {
        let text = query.take(member)?;
        let problem = || {
            invalid_query(
                member,
                "is an instant by RFC 3339 with an offset, such as 2027-01-01T09:00:00Z",
            )
        };
        text.map(|text| instant_of(&text).filter(is_storable).ok_or_else(problem))
            .transpose()
    };
    let (dispatched_after, dispatched_before) = (instant("dispatched_after")?, instant("dispatched_before")?);
    // The database counts microseconds: earlier than a fraction of one is earlier than the next.
    let dispatched_before = dispatched_before.map(|at| match at.timestamp_subsec_nanos() % 1_000 {
        0 => at,
        nanos => at + chrono::Duration::nanoseconds(i64::from(1_000 - nanos)),
    });
    Ok(ListFilter {
        names: name.map(|name| vec![name]),
        queues: queue.map(|queue| vec![queue]),
        states: state.map(|state| vec![state]),
        delayed: None,
        active_key,
        metadata,
        dispatched_after,
        dispatched_before,
    })
}

/// Far from the ends of what PostgreSQL and this server can both hold.
fn is_storable(at: &Instant) -> bool {
    (0..253_402_300_800).contains(&at.timestamp())
}

/// The path of the next page, with the filters it was asked for with.
fn next_page(filter: &ListFilter, limit: u32, cursor: &str) -> String {
    // This list takes one of each.
    let ListFilter {
        names,
        queues,
        states,
        delayed: _,
        active_key,
        metadata,
        dispatched_after,
        dispatched_before,
    } = filter;
    let mut page = format!("/v1/jobs?limit={limit}&cursor={cursor}");
    let mut add = |member: &str, value: Option<&str>| {
        if let Some(value) = value {
            let (member, value) = [member, value]
                .map(|text| utf8_percent_encode(text, NON_ALPHANUMERIC))
                .into();
            page.push_str(&format!("&{member}={value}"));
        }
    };
    names.iter().flatten().for_each(|name| add("name", Some(name)));
    queues.iter().flatten().for_each(|queue| add("queue", Some(queue)));
    states
        .iter()
        .flatten()
        .for_each(|state| add("state", Some(state.as_str())));
    add("active_key", active_key.as_deref());
    for (name, value) in metadata {
        add(&format!("metadata.{name}"), Some(value));
    }
    add(
        "dispatched_after",
        dispatched_after.map(|at| at.to_rfc3339()).as_deref(),
    );
    add(
        "dispatched_before",
        dispatched_before.map(|at| at.to_rfc3339()).as_deref(),
    );
    page
}

/// The first byte says which form the rest has.
const CURSOR_VERSION: u8 = 1;

/// A cursor is the id of the last job shown.
pub(super) fn write_cursor(last: JobId) -> String {
    let mut bytes = vec![CURSOR_VERSION];
    bytes.extend(last.0.as_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(super) fn read_cursor(text: &str) -> Result<JobId, Problem> {
    let invalid = || {
        Problem::new(
            Code::InvalidCursor,
            "a cursor is the next_cursor of an earlier page, as it was given",
        )
    };
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid())?;
    match bytes.split_first() {
        Some((&CURSOR_VERSION, id)) => Ok(JobId(Uuid::from_slice(id).map_err(|_| invalid())?)),
        _ => Err(invalid()),
    }
}

/// How to cancel.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = Cancel)]
pub struct CancelBody {
    /// Whether a job that a worker has is cancelled now, and not when the worker lets go.
    force: Option<bool>,
}

/// Cancel a job
///
/// A job that nobody works on is cancelled now, and its active key is free. One that is cancelled already is
/// answered as it is.
#[utoipa::path(
    post, path = "/v1/jobs/{job_id}/cancel", operation_id = "cancelJob", tag = "jobs",
    params(("job_id" = Uuid, Path, description = "The job's id")),
    request_body(content = Option<CancelBody>, example = json!({"force": false})),
    responses(
        (status = 200, description = "The job as it is now", body = JobBody, example = json!(examples::cancelled())),
        CancelProblems,
    )
)]
pub(super) async fn cancel(
    State(app): State<App>,
    by: By<Admin>,
    Id(id): Id,
    Wire(CancelBody { force }): Wire<CancelBody, SMALL>,
) -> Result<Response, Problem> {
    let cancel = Call::Cancel {
        force: force.unwrap_or(false),
    };
    let full = app.calls.call_and_show(by.app, id, cancel).await?;
    Ok(JsonBody(JobBody::whole(full)?).into_response())
}

/// Nothing is asked.
#[derive(Deserialize, ToSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schema(as = RunAgain)]
pub struct RunAgainBody {}

/// Run a finished job again
///
/// With its id and history, and as many attempts more as its retry settings give. It claims its active key again;
/// window keys that its end released stay released.
#[utoipa::path(
    post, path = "/v1/jobs/{job_id}/retry", operation_id = "retryJob", tag = "jobs",
    params(("job_id" = Uuid, Path, description = "The job's id")),
    request_body(content = Option<RunAgainBody>, example = json!({})),
    responses((status = 200, description = "The job as it is now", body = JobBody, example = json!(examples::job())), RetryProblems)
)]
pub(super) async fn retry(
    State(app): State<App>,
    by: By<Admin>,
    Id(id): Id,
    Wire(RunAgainBody {}): Wire<RunAgainBody, SMALL>,
) -> Result<Response, Problem> {
    let store = app.store.clone();
    let again = app.undisturbed(async move { store.run_again(by.app, id, rand::random()).await });
    match again.await? {
        Again::Done { queue, job } => {
            app.wakeups.tell([News::Queue(by.app, queue)]);
            Ok(JsonBody(JobBody::whole(*job)?).into_response())
        }
        Again::NotFound => Err(job_not_found()),
        Again::Live(state) => {
            let detail = format!("the job is {}: only a finished job can run again", state.as_str());
            Err(Problem::new(Code::JobNotFinished, detail))
        }
        Again::ActiveKeyHeld => {
            let detail = "another live job has this job's active key: wait for it to end, or cancel it, and retry then";
            Err(Problem::new(Code::ActiveKeyHeld, detail))
        }
    }
}

/// What was deleted.
#[derive(Serialize, ToSchema, Debug)]
#[schema(as = Deleted)]
pub struct DeletedBody {
    job_id: Uuid,
    deleted: bool,
}

/// Delete a finished job
///
/// Its window keys stay, and answer for it until they are over.
#[utoipa::path(
    delete, path = "/v1/jobs/{job_id}", operation_id = "deleteJob", tag = "jobs",
    params(("job_id" = Uuid, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The job is deleted", body = DeletedBody, example = json!(examples::deleted())),
        DeleteProblems,
    )
)]
pub(super) async fn delete(State(app): State<App>, by: By<Admin>, Id(id): Id) -> Result<Response, Problem> {
    let store = app.store.clone();
    match app.undisturbed(async move { store.delete(by.app, id).await }).await? {
        Deleted::Done => Ok(JsonBody(DeletedBody {
            job_id: id.0,
            deleted: true,
        })
        .into_response()),
        Deleted::NotFound => Err(job_not_found()),
        Deleted::Live(state) => {
            let detail = format!(
                "the job is {}: cancel it first, or wait until it has finished",
                state.as_str()
            );
            Err(Problem::new(Code::JobNotFinished, detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_as_they_are_written_and_nothing_else_is() {
        let id = JobId(Uuid::from_u128(7 << 100));
        assert_eq!(read_cursor(&write_cursor(id)).unwrap(), id);
        for text in [
            "",
            "AA",
            "!!",
            "AgAAAAAAAAAAAAAAAAAAAAA",
            "AQAAAAAAAAAAAAAAAAAAAAAA",
            &"A".repeat(10_000),
        ] {
            assert_eq!(read_cursor(text).unwrap_err().code(), Code::InvalidCursor, "{text}");
        }
    }
}
