//! The steps of a black-box case, run against a server.

use std::time::{Duration, Instant};

use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::fill::{Names, fill};
use super::pattern::{matches, raw_texts, same};
use crate::support::{Answer, Call, Client, at};

/// A step's own members; anything else in a step is a mistake in the case.
const MEMBERS: &[&str] = &[
    "get",
    "post",
    "put",
    "delete",
    "patch",
    "json",
    "raw",
    "raw_hex",
    "headers",
    "expect",
    "save",
    "within_ms",
    "at_least_ms",
    "parallel",
    "step",
    "count",
    "same",
    "eventually_ms",
    "sleep_ms",
];

/// Runs one step; what it saves is put among the names.
pub(super) async fn run_step(client: &Client, step: &Value, names: &mut Names) -> Result<(), String> {
    let members = step.as_object().ok_or("a step is an object")?;
    if let Some(unknown) = members.keys().find(|name| !MEMBERS.contains(&name.as_str())) {
        return Err(format!("a step has no member {unknown}"));
    }
    if let Some(pause) = step["sleep_ms"].as_u64() {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        Ok(())
    } else if let Some(patience) = step["eventually_ms"].as_u64() {
        let deadline = Instant::now() + Duration::from_millis(patience);
        loop {
            match Box::pin(run_step(client, &step["step"], names)).await {
                Err(_) if Instant::now() <= deadline => tokio::time::sleep(Duration::from_millis(50)).await,
                outcome => return outcome,
            }
        }
    } else if members.contains_key("parallel") {
        parallel(client, step, names).await
    } else {
        request(client, step, names).await.map(drop)
    }
}

async fn parallel(client: &Client, step: &Value, names: &mut Names) -> Result<(), String> {
    let steps = match &step["parallel"] {
        Value::Array(steps) => steps.clone(),
        Value::Number(count) => {
            let count = count
                .as_u64()
                .and_then(|count| usize::try_from(count).ok())
                .ok_or("a count")?;
            vec![step["step"].clone(); count]
        }
        other => return Err(format!("parallel takes a list or a number, not {other}")),
    };
    let mut calls = JoinSet::new();
    for (index, step) in steps.into_iter().enumerate() {
        let (client, mut names) = (client.clone(), names.clone());
        names.insert("i".to_owned(), json!(index));
        calls.spawn(async move { (index, request(&client, &step, &mut names).await) });
    }
    let mut answers = calls.join_all().await;
    answers.sort_by_key(|(index, _)| *index);
    let bodies = answers.into_iter().map(|(_, answer)| answer.map(|answer| answer.body));
    let bodies = bodies.collect::<Result<Vec<_>, _>>()?;
    let look = |body: &Option<Value>, pointer: &str| body.as_ref().and_then(|body| at(body, pointer)).cloned();
    for test in fill(&step["count"], names).as_array().into_iter().flatten() {
        let (pointer, value) = (test["pointer"].as_str().ok_or("count needs a pointer")?, &test["value"]);
        let found = bodies
            .iter()
            .filter(|body| look(body, pointer).is_some_and(|got| same(&got, value)))
            .count();
        if test["is"].as_u64() != Some(found as u64) {
            return Err(format!(
                "{pointer} is {value} in {found} answers, wanted {}",
                test["is"]
            ));
        }
    }
    for pointer in step["same"].as_array().into_iter().flatten() {
        let pointer = pointer.as_str().ok_or("same takes pointers")?;
        let first = look(&bodies[0], pointer);
        if bodies.iter().any(|body| look(body, pointer) != first) {
            return Err(format!("{pointer} differs between the answers"));
        }
    }
    for (name, pointer) in step["save"].as_object().into_iter().flatten() {
        let pointer = pointer.as_str().ok_or("save takes pointers")?;
        let value = look(&bodies[0], pointer).ok_or_else(|| format!("nothing at {pointer} to save"))?;
        names.insert(name.clone(), value);
    }
    Ok(())
}

async fn request(client: &Client, step: &Value, names: &mut Names) -> Result<Answer, String> {
    let step = fill(step, names);
    let method = ["get", "post", "put", "delete", "patch"]
        .into_iter()
        .find(|method| step.get(method).is_some());
    let method = method.ok_or_else(|| format!("no such step: {step}"))?;
    let path = step[method].as_str().ok_or("a path is a text")?;
    let what = format!("{} {path}", method.to_uppercase());
    let call = Call {
        method: method
            .to_uppercase()
            .parse::<Method>()
            .map_err(|error| error.to_string())?,
        path: quoted(path),
        headers: headers(&step)?,
        body: body(&step)?,
    };
    let answer = client.send(call).await.map_err(|error| format!("{what}: {error}"))?;
    let shown = || answer.text.chars().take(600).collect::<String>();
    check(&answer, &step).map_err(|error| format!("{what}: {error}\n      answer {}: {}", answer.status, shown()))?;
    for (name, pointer) in step["save"].as_object().into_iter().flatten() {
        let pointer = pointer.as_str().ok_or("save takes pointers")?;
        let value = answer.body.as_ref().and_then(|body| at(body, pointer));
        let value = value.ok_or_else(|| format!("{what}: nothing at {pointer} to save in {}", shown()))?;
        names.insert(name.clone(), value.clone());
    }
    Ok(answer)
}

fn body(step: &Value) -> Result<Option<Vec<u8>>, String> {
    if let Some(body) = step.get("json") {
        return Ok(Some(body.to_string().into_bytes()));
    }
    if let Some(raw) = step.get("raw") {
        return Ok(Some(raw.as_str().ok_or("raw is a text")?.as_bytes().to_vec()));
    }
    let Some(hex) = step.get("raw_hex") else {
        return Ok(None);
    };
    let hex = hex
        .as_str()
        .ok_or("raw_hex is a text")?
        .split_whitespace()
        .collect::<String>();
    let pairs = (0..hex.len())
        .step_by(2)
        .map(|i| hex.get(i..i + 2).and_then(|p| u8::from_str_radix(p, 16).ok()));
    pairs
        .collect::<Option<Vec<_>>>()
        .map(Some)
        .ok_or_else(|| "raw_hex holds pairs of hex digits".to_owned())
}

fn headers(step: &Value) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    if ["json", "raw", "raw_hex"].iter().any(|kind| step.get(kind).is_some()) {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    for (name, value) in step["headers"].as_object().into_iter().flatten() {
        let name = name.parse::<HeaderName>().map_err(|error| error.to_string())?;
        match value {
            Value::Null => headers.remove(name),
            Value::String(text) => headers.insert(
                name,
                HeaderValue::from_bytes(text.as_bytes()).map_err(|error| error.to_string())?,
            ),
            other => return Err(format!("a header is a text, not {other}")),
        };
    }
    Ok(headers)
}

fn check(answer: &Answer, step: &Value) -> Result<(), String> {
    let want = &step["expect"];
    let status = match &want["status"] {
        Value::Null => (200..300).contains(&answer.status),
        Value::Array(choices) => choices.contains(&json!(answer.status)),
        one => *one == json!(answer.status),
    };
    if !status {
        return Err(format!("wanted status {}, got {}", want["status"], answer.status));
    }
    for (name, pattern) in want["headers"].as_object().into_iter().flatten() {
        let got = answer
            .headers
            .get(name)
            .map(|value| json!(String::from_utf8_lossy(value.as_bytes())));
        matches(got.as_ref(), pattern, &format!("header {name}"))?;
    }
    if let Some(pattern) = want.get("json") {
        matches(answer.body.as_ref(), pattern, "$")?;
        for raw in raw_texts(pattern) {
            if !answer.text.contains(raw) {
                return Err(format!("$: the answer does not hold {raw} to the letter"));
            }
        }
    }
    let took = answer.took.as_millis();
    match (step["within_ms"].as_u64(), step["at_least_ms"].as_u64()) {
        (Some(most), _) if took > u128::from(most) => Err(format!("took {took} ms, wanted at most {most}")),
        (_, Some(least)) if took < u128::from(least) => Err(format!("took {took} ms, wanted at least {least}")),
        _ => Ok(()),
    }
}

/// Percent-encodes what may not stand in a path, and leaves escapes alone.
fn quoted(path: &str) -> String {
    let mut quoted = String::new();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/?&=%:+,-._~!$'()*;@".contains(&byte) {
            quoted.push(char::from(byte));
        } else {
            quoted.push_str(&format!("%{byte:02X}"));
        }
    }
    quoted
}
