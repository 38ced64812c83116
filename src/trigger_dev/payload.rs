//! Payloads: the SDK sends most of them as text in a string, and a worker gets the JSON that the text means.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::http::extract;
use crate::http::problem::Code;
use crate::json::MAX_DEPTH;
use crate::trigger_dev::refusal::Refusal;

/// A value as superjson writes it.
#[derive(Deserialize)]
struct SuperJson<'a> {
    /// What JSON can say of the value; left out of nothing.
    #[serde(borrow)]
    json: Option<&'a RawValue>,
    /// Which parts were dates, sets and the like. Workers need not be JavaScript: they get what JSON can say.
    #[serde(borrow, rename = "meta")]
    _meta: Option<&'a RawValue>,
}

/// The payload that a job gets, to the letter of what was meant.
pub(super) fn read(payload: Option<&RawValue>, kind: Option<&str>) -> Result<Option<Arc<str>>, Refusal> {
    let Some(payload) = payload else {
        return Ok(None);
    };
    let string = || serde_json::from_str::<String>(payload.get()).ok();
    let needs_string =
        |kind: &str| Refusal::at("/payload", format!("a payload of the type {kind} is sent as a string"));
    match kind {
        None => Ok(Some(payload.get().into())),
        Some("text/plain") => match string() {
            Some(_) => Ok(Some(payload.get().into())),
            None => Err(needs_string("text/plain")),
        },
        Some("application/json") => match string() {
            Some(text) => Ok(Some(json(&text)?.into())),
            None => Ok(Some(payload.get().into())),
        },
        Some(kind @ "application/super+json") => {
            let text = string().ok_or_else(|| needs_string(kind))?;
            let SuperJson { json, _meta } = extract::parse(json(&text)?.as_bytes()).map_err(|_| {
                Refusal::at(
                    "/payload",
                    "superjson is an object with the member json, and perhaps meta",
                )
            })?;
            Ok(Some(json.map_or("null", RawValue::get).into()))
        }
        Some("application/store") => Err(too_large()),
        Some(_) => Err(Refusal::at(
            "/options/payloadType",
            "a payload is application/json, application/super+json or text/plain",
        )),
    }
}

/// The text of a string, if it is JSON by itself.
fn json(text: &str) -> Result<&str, Refusal> {
    let checked = extract::check(text.as_bytes(), MAX_DEPTH);
    Ok(checked.map_err(|problem| problem.below("/payload"))?.trim())
}

fn too_large() -> Refusal {
    Refusal::new(
        Code::PayloadTooLarge,
        "the SDK uploads payloads of 128 KiB and more to an object store, and this server has none: store it elsewhere \
         and send a reference, or dispatch it by POST /v1/jobs",
    )
}

/// Where the SDK asks for a place to upload a large payload to.
pub(super) async fn no_store() -> Refusal {
    too_large()
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;

    use super::*;

    fn given(payload: &str, kind: Option<&str>) -> Result<Option<String>, u16> {
        let payload = RawValue::from_string(payload.into()).unwrap();
        match read(Some(&payload), kind) {
            Ok(payload) => Ok(payload.map(|text| text.to_string())),
            Err(refusal) => Err(refusal.into_response().status().as_u16()),
        }
    }

    #[test]
    fn a_worker_gets_the_json_that_was_meant() {
        let (json, superjson) = (Some("application/json"), Some("application/super+json"));
        for (payload, kind, wanted) in [
            (r#"{"a":1.0}"#, None, r#"{"a":1.0}"#),
            (r#""{\"a\": 1}""#, None, r#""{\"a\": 1}""#),
            (r#"{"a":1.0}"#, json, r#"{"a":1.0}"#),
            (r#"" {\"a\": 9007199254740993} ""#, json, r#"{"a": 9007199254740993}"#),
            (r#""{\"json\":{\"n\":1e400}}""#, superjson, r#"{"n":1e400}"#),
            (
                r#""{\"json\":{\"at\":\"2027-01-01T00:00:00.000Z\"},\"meta\":{\"values\":{\"at\":[\"Date\"]}}}""#,
                superjson,
                r#"{"at":"2027-01-01T00:00:00.000Z"}"#,
            ),
            (r#""{\"json\":null}""#, superjson, "null"),
            (r#""{}""#, superjson, "null"),
            (r#""hello""#, Some("text/plain"), r#""hello""#),
        ] {
            assert_eq!(given(payload, kind), Ok(Some(wanted.into())), "{payload} {kind:?}");
        }
        assert!(matches!(read(None, superjson), Ok(None)));
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for (payload, kind, status) in [
            (r#""no JSON""#, "application/json", 400),
            (r#""{\"a\":1,\"a\":2}""#, "application/json", 400),
            (r#""[1]""#, "application/super+json", 400),
            (r#""{\"json\":1,\"more\":2}""#, "application/json", 200),
            (r#"{"json":1}"#, "application/super+json", 400),
            ("1", "text/plain", 400),
            (r#""x""#, "application/xml", 400),
            (r#""packets/x""#, "application/store", 413),
        ] {
            let got = given(payload, Some(kind)).map_or_else(|status| status, |_| 200);
            assert_eq!(got, status, "{payload} {kind}");
        }
        let deep = format!("\"{}\"", "[".repeat(200_000));
        assert_eq!(given(&deep, Some("application/super+json")), Err(400));
    }
}
