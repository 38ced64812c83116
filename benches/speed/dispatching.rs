//! Loads of dispatches. Each answer is checked.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use hyper::Method;

use crate::load::{Connection, Failed, Sample, Span, Tally, measure};

/// As in `insert.sql`.
const PAYLOAD: &str = r#"{"order": 4711, "lines": [{"article": "4-229-07", "count": 3}, {"article": "4-311-12", "count": 1}], "customer": "7", "address": "Solegatan 12, 111 22 Stockholm", "note": "leave at the door if nobody is home"}"#;

/// A dispatch with an active key and a window key.
fn job(active: &str, window: &str) -> String {
    format!(
        r#"{{"name":"place-order","queue":"default","payload":{PAYLOAD},"metadata":{{"customer":"7"}},"uniqueness":{{"active_key":"{active}","window_key":"{window}","window":"1d"}}}}"#
    )
}

/// What a caller asks for next, and the status and the disposition that it must get.
#[derive(Clone, Copy)]
pub enum Keys {
    /// Never the same again.
    Unique,
    /// One active key that a job holds.
    HotActive,
    /// One window key, of a job that has finished.
    HotWindow,
    /// Every other one is the one that a connection asked for just before.
    Half,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

pub fn unique() -> String {
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    // Spread over the key space as keys are, and not in a row.
    let spread = next.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    job(&format!("order:{spread}"), &format!("request:{spread}"))
}

const CREATED: (u16, &str) = (201, r#""disposition":"created""#);
const REUSED: (u16, &str) = (200, r#""disposition":"reused""#);

async fn dispatch(connection: &mut Connection, body: String, (status, disposition): (u16, &str)) -> Result<(), Failed> {
    let answer = connection.post("/v1/jobs", body, status).await?;
    let answer = std::str::from_utf8(&answer)?;
    if answer.contains(disposition) {
        Ok(())
    } else {
        Err(format!("not {disposition}: {answer}").into())
    }
}

/// Singles, on this many connections to each of the servers.
pub async fn singles(
    servers: &[(SocketAddr, u32)],
    connections: usize,
    keys: Keys,
    span: Span,
) -> Result<Sample, Failed> {
    let hot = match keys {
        Keys::HotActive => job("order:hot", ""),
        _ => job("", "request:hot"),
    };
    let hot = hot
        .replace(r#""active_key":"","#, "")
        .replace(r#","window_key":"","window":"1d""#, "");
    if matches!(keys, Keys::HotActive | Keys::HotWindow) {
        let mut first = Connection::open(servers[0].0).await?;
        dispatch(&mut first, hot.clone(), CREATED).await?;
        if let Keys::HotWindow = keys {
            let wish = r#"{"queues":["default"],"max_jobs":1}"#;
            let reserved: serde_json::Value =
                serde_json::from_slice(&first.post("/v1/worker/reserve", wish.into(), 200).await?)?;
            let job = &reserved["jobs"][0];
            let path = format!(
                "/v1/worker/{}/succeed",
                job["job_id"].as_str().ok_or("no job to finish")?
            );
            let end = serde_json::json!({"lease_token": job["lease"]["token"]});
            first.post(&path, end.to_string(), 200).await?;
        }
    }
    let tally = Arc::new(Tally::default());
    let mut callers = Vec::new();
    for (address, _) in servers {
        for _ in 0..connections {
            let (mut connection, tally, hot) = (Connection::open(*address).await?, Arc::clone(&tally), hot.clone());
            callers.push(async move {
                let mut before = None;
                while !tally.over() {
                    let (body, expected) = match (keys, before.take()) {
                        (Keys::Unique, _) => (unique(), CREATED),
                        (Keys::HotActive | Keys::HotWindow, _) => (hot.clone(), REUSED),
                        (Keys::Half, Some(again)) => (again, REUSED),
                        (Keys::Half, None) => {
                            let new = unique();
                            before = Some(new.clone());
                            (new, CREATED)
                        }
                    };
                    let began = Instant::now();
                    dispatch(&mut connection, body, expected).await?;
                    tally.note(began, 1);
                }
                Ok(())
            });
        }
    }
    let pids: Vec<u32> = servers.iter().map(|(_, pid)| *pid).collect();
    measure(span, &pids, tally, callers).await
}

/// Batches, counted in dispatches.
pub async fn batches(
    (address, pid): (SocketAddr, u32),
    connections: usize,
    items: usize,
    span: Span,
) -> Result<Sample, Failed> {
    let tally = Arc::new(Tally::default());
    let mut callers = Vec::new();
    for _ in 0..connections {
        let (mut connection, tally) = (Connection::open(address).await?, Arc::clone(&tally));
        callers.push(async move {
            while !tally.over() {
                let jobs: Vec<String> = (0..items).map(|_| unique()).collect();
                let body = format!(r#"{{"jobs":[{}]}}"#, jobs.join(","));
                let began = Instant::now();
                let answer = connection.post("/v1/jobs/batch", body, 200).await?;
                let created = std::str::from_utf8(&answer)?.matches(CREATED.1).count();
                if created != items {
                    return Err(format!("{created} of {items} jobs were created").into());
                }
                tally.note(began, items);
            }
            Ok(())
        });
    }
    measure(span, &[pid], tally, callers).await
}

/// The same requests, refused for their last member before anything is asked of the database: what HTTP costs.
pub async fn refused((address, pid): (SocketAddr, u32), connections: usize, span: Span) -> Result<Sample, Failed> {
    let tally = Arc::new(Tally::default());
    let mut callers = Vec::new();
    let body = job("order:hot", "request:hot").replace(r#""window":"1d""#, r#""window":"1 day""#);
    for _ in 0..connections {
        let (mut connection, tally, body) = (Connection::open(address).await?, Arc::clone(&tally), body.clone());
        callers.push(async move {
            while !tally.over() {
                let began = Instant::now();
                let (status, answer) = connection.request(Method::POST, "/v1/jobs", body.clone()).await?;
                if status.as_u16() != 400 && status.as_u16() != 422 {
                    return Err(format!("{status}: {}", String::from_utf8_lossy(&answer)).into());
                }
                tally.note(began, 1);
            }
            Ok(())
        });
    }
    measure(span, &[pid], tally, callers).await
}
