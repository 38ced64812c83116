//! `runs.list`.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use chrono::DateTime;
use serde::Serialize;

use crate::dispatch::prepare::{instant_of, job_id_of};
use crate::duration;
use crate::http::auth::Read;
use crate::http::extract::{Query, invalid_query};
use crate::http::problem::{Code, Problem};
use crate::http::{App, JsonBody};
use crate::job::{Instant, State as JobState};
use crate::settings::is_name;
use crate::store::ListFilter;
use crate::trigger_dev::options::{BATCH_MEMBER, TAG_PREFIX, TAG_VALUE};
use crate::trigger_dev::refusal::{Caller, QueryMembers, Refusal};
use crate::trigger_dev::run::{EnvironmentBody, ListedBody, Status};

const LIMIT_DEFAULT: u32 = 25;
const LIMIT_MAX: u32 = 100;

/// Filters of Trigger.dev's that mean nothing here.
const REFUSED: &[&str] = &[
    "filter[version]",
    "filter[bulkAction]",
    "filter[schedule]",
    "filter[machine]",
    "filter[region]",
];

/// Statuses that no run has here: whoever looks for them alone finds nothing.
const NEVER: &[&str] = &[
    "PENDING_VERSION",
    "WAITING",
    "CRASHED",
    "SYSTEM_FAILURE",
    "EXPIRED",
    "TIMED_OUT",
];

#[derive(Serialize)]
struct Page {
    data: Vec<ListedBody>,
    pagination: Pagination,
}

#[derive(Serialize)]
struct Pagination {
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A page of runs, newest first.
pub(super) async fn list(
    State(app): State<App>,
    Caller(by): Caller<Read>,
    QueryMembers(mut query): QueryMembers,
) -> Result<Response, Refusal> {
    let limit = match query.take("page[size]")?.map(|text| text.parse()) {
        None => LIMIT_DEFAULT,
        Some(Ok(limit @ 1..=LIMIT_MAX)) => limit,
        Some(_) => return Err(invalid_query("page[size]", "is a whole number from 1 to 100").into()),
    };
    let cursor = query.take("page[after]")?;
    let not_given = || {
        Problem::new(
            Code::InvalidCursor,
            "page[after] is the pagination.next of an earlier page",
        )
    };
    let after = cursor.map(|text| job_id_of(&text).ok_or_else(not_given)).transpose()?;
    if query.take("page[before]")?.is_some() {
        return Err(invalid_query("page[before]", "is not supported: pages lead on, not back").into());
    }
    let now = app.dispatcher.clock().now();
    let filter = filter(&mut query, now)?;
    query.end()?;
    // One more than is shown says whether there is a next page.
    let mut jobs = match &filter {
        Some(filter) => app.store.list(by.app, filter, after, limit + 1).await?,
        None => Vec::new(),
    };
    let more = jobs.len() > limit as usize;
    jobs.truncate(limit as usize);
    let next = jobs.last().filter(|_| more).map(|job| job.id.to_string());
    let env = EnvironmentBody {
        id: by.caller.application.clone(),
        name: by.caller.environment.clone(),
    };
    let data = jobs.iter().map(|job| ListedBody::of(job, env.clone(), now));
    let data = data.collect::<Result<_, _>>()?;
    let pagination = Pagination { next };
    Ok(JsonBody(Page { data, pagination }).into_response())
}

/// Which jobs are asked for; `None` where it is known that there are none.
fn filter(query: &mut Query, now: Instant) -> Result<Option<ListFilter>, Problem> {
    for member in REFUSED {
        if query.take(member)?.is_some() {
            return Err(invalid_query(member, "is not supported: runs here have no such thing"));
        }
    }
    let is_test = match query.take("filter[isTest]")?.as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(invalid_query("filter[isTest]", "is true or false")),
    };
    let statuses = query.take("filter[status]")?;
    let statuses = statuses.map(|text| statuses_of(&text)).transpose()?;
    let names = names_of(query, "filter[taskIdentifier]")?;
    let queues = names_of(query, "filter[queue]")?;
    let mut metadata = Vec::new();
    if let Some(tag) = query.take("filter[tag]")? {
        if tag.contains(',') {
            return Err(invalid_query(
                "filter[tag]",
                "takes one tag: list the runs of each tag by itself",
            ));
        }
        metadata.push((
            plain("filter[tag]", format!("{TAG_PREFIX}{tag}"))?,
            TAG_VALUE.to_owned(),
        ));
    }
    if let Some(batch) = query.take("filter[batch]")? {
        metadata.push((BATCH_MEMBER.to_owned(), plain("filter[batch]", batch)?));
    }
    let (after, before) = created(query, now)?;
    if is_test || statuses.as_ref().is_some_and(|(states, _)| states.is_empty()) {
        return Ok(None);
    }
    let (states, delayed) = statuses.map_or((None, None), |(states, delayed)| (Some(states), delayed));
    Ok(Some(ListFilter {
        names,
        queues,
        states,
        delayed,
        active_key: None,
        metadata,
        dispatched_after: after,
        dispatched_before: before,
    }))
}

/// Without control characters, which the database does not take and no metadata holds.
fn plain(member: &str, text: String) -> Result<String, Problem> {
    match text.contains(char::is_control) {
        true => Err(invalid_query(member, "holds a control character, which no run's does")),
        false => Ok(text),
    }
}

fn names_of(query: &mut Query, member: &str) -> Result<Option<Vec<String>>, Problem> {
    let Some(text) = query.take(member)? else {
        return Ok(None);
    };
    let names: Vec<String> = text.split(',').map(Into::into).collect();
    match names.iter().all(|name| is_name(name)) {
        true => Ok(Some(names)),
        false => Err(invalid_query(
            member,
            "is a list, by commas, of 1 to 128 of A-Z a-z 0-9 . _ : -",
        )),
    }
}

/// The states of these statuses, and of pending jobs whether only those whose time is still to come, or has come.
fn statuses_of(text: &str) -> Result<(Vec<JobState>, Option<bool>), Problem> {
    const KNOWN: [(&str, Status); 7] = [
        ("DELAYED", Status::Delayed),
        ("QUEUED", Status::Queued),
        ("DEQUEUED", Status::Dequeued),
        ("EXECUTING", Status::Executing),
        ("COMPLETED", Status::Completed),
        ("FAILED", Status::Failed),
        ("CANCELED", Status::Canceled),
    ];
    let (mut states, mut delayed) = (Vec::new(), Vec::new());
    for name in text.split(',').filter(|name| !NEVER.contains(name)) {
        let known = KNOWN.iter().find(|(known, _)| *known == name);
        let (_, status) = known.ok_or_else(|| invalid_query("filter[status]", "is a list of statuses by commas"))?;
        let (of_status, only) = status.states();
        states.extend(of_status);
        delayed.extend(only);
    }
    // Of both kinds together, all.
    delayed.dedup();
    let delayed = match *delayed {
        [only] => Some(only),
        _ => None,
    };
    Ok((states, delayed))
}

/// When the runs were triggered: after the one and before the other, both left out.
fn created(query: &mut Query, now: Instant) -> Result<(Option<Instant>, Option<Instant>), Problem> {
    let mut instant = |member: &str| {
        let text = query.take(member)?;
        let problem = || invalid_query(member, "is milliseconds since 1970, or an instant by RFC 3339");
        text.map(|text| instant_in(&text).ok_or_else(problem)).transpose()
    };
    let (from, to) = (instant("filter[createdAt][from]")?, instant("filter[createdAt][to]")?);
    let period = match query.take("filter[createdAt][period]")? {
        None => None,
        Some(text) => {
            let invalid = |_| invalid_query("filter[createdAt][period]", "is a duration, such as 1d or 12h");
            let millis = duration::parse(&text).map_err(invalid)?.0;
            let back = chrono::Duration::milliseconds(i64::try_from(millis).unwrap_or(i64::MAX));
            Some(now.checked_sub_signed(back).filter(is_storable).unwrap_or_default())
        }
    };
    // The database counts microseconds.
    let one = chrono::Duration::microseconds(1);
    let from = from.max(period).map(|from| from - one);
    Ok((from, to.map(|to| to + one)))
}

fn instant_in(text: &str) -> Option<Instant> {
    let at = match text.parse() {
        Ok(millis) => DateTime::from_timestamp_millis(millis)?,
        Err(_) => instant_of(text)?,
    };
    Some(at).filter(is_storable)
}

/// Far from the ends of what PostgreSQL and this server can both hold.
fn is_storable(at: &Instant) -> bool {
    (1..253_402_300_799).contains(&at.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_states() {
        use JobState::{Cancelled, Pending, Reserved, Retrying};
        for (text, states, delayed) in [
            ("QUEUED", vec![Pending, Retrying], Some(false)),
            ("DELAYED", vec![Pending], Some(true)),
            ("DELAYED,QUEUED", vec![Pending, Pending, Retrying], None),
            ("DELAYED,CANCELED", vec![Pending, Cancelled], Some(true)),
            ("DEQUEUED,TIMED_OUT", vec![Reserved], None),
            ("EXPIRED,WAITING", vec![], None),
        ] {
            assert_eq!(statuses_of(text).unwrap(), (states, delayed), "{text}");
        }
        for wrong in ["", "queued", "QUEUED,", "DONE"] {
            assert!(statuses_of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn instants_are_milliseconds_or_texts() {
        let at = DateTime::from_timestamp_millis(1_800_000_000_123).unwrap();
        assert_eq!(instant_in("1800000000123"), Some(at));
        assert_eq!(instant_in("2027-01-15T08:00:00.123Z"), Some(at));
        for wrong in ["", "-1", "9e99", "99999999999999999", "2027-01-15", "yesterday"] {
            assert_eq!(instant_in(wrong), None, "{wrong}");
        }
    }
}
