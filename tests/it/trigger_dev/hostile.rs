//! Whatever is sent under `/api`, the answer is a 4xx in the SDK's shape or a success: never a fault of the server.

use reqwest::header::{HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::{METHODS, batch, item, ndjson};
use crate::support::{Answer, App, Call, Client};

/// An answer that a server in order gives.
#[track_caller]
fn assert_sane(answer: &Answer, what: &str) {
    assert!(answer.status < 500, "{what}: {} {}", answer.status, answer.text);
    if answer.status >= 400 {
        assert!(
            answer.at("/error").is_string() && answer.at("/code").is_string(),
            "{what}: {}",
            answer.text
        );
    }
}

/// Values that stand where something else is wanted.
fn odd_values() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1.5),
        json!(1e308),
        json!(9_007_199_254_740_993_u64),
        json!(u64::MAX),
        json!(""),
        json!("x"),
        json!("\u{0}"),
        json!("\u{1b}[31m"),
        json!("é".repeat(3_000)),
        json!("P99999999999999999Y"),
        json!("99999999999999999999d"),
        json!("275760-09-13T00:00:00.000Z"),
        json!("-271821-04-20T00:00:00.000Z"),
        json!([]),
        json!([[]]),
        json!({}),
        json!({"a": {"b": []}}),
        json!({"": ""}),
        json!({"\u{0}": "\u{0}"}),
        json!(["\u{0}", 1, null]),
    ]
}

const OPTIONS: &[&str] = &[
    "queue",
    "delay",
    "idempotencyKey",
    "idempotencyKeyTTL",
    "idempotencyKeyOptions",
    "maxAttempts",
    "maxDuration",
    "metadata",
    "metadataType",
    "payloadType",
    "payloadSize",
    "tags",
    "priority",
    "parentRunId",
    "resumeParentOnCompletion",
    "test",
    "gates",
    "concurrency",
    "concurrencyKey",
    "ttl",
    "debounce",
    "dependentAttempt",
    "parentAttempt",
    "dependentBatch",
    "parentBatch",
    "bulkActionId",
    "lockToVersion",
    "externalDeploymentId",
    "machine",
    "region",
    "unknownOption",
    "__proto__",
];

async fn send(client: &Client, call: Call, what: &str) -> Answer {
    let answer = client
        .send(call)
        .await
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_sane(&answer, what);
    answer
}

#[tokio::test]
async fn odd_values_of_every_option_are_taken_or_refused() {
    let app = App::start().await;
    let run = super::trigger(&app, "t", &json!({}), 200).await.str("/id").to_owned();
    let id = batch(&app, &json!({"runCount": 1})).await;
    let (mut taken, mut refused) = (0, 0);
    for option in OPTIONS {
        for value in odd_values() {
            let options = json!({*option: value});
            let what = format!("{option}: {value}");
            let bodies = [
                (
                    "/api/v1/tasks/t/trigger".to_owned(),
                    json!({"payload": "{\"a\":1}", "options": options}),
                ),
                (format!("/api/v1/runs/{run}/replay"), options.clone()),
                ("/api/v3/batches".to_owned(), json!({"runCount": 1, *option: value})),
            ];
            for (path, body) in bodies {
                let answer = send(&app, Call::json(&path, body.to_string()), &format!("{path} {what}")).await;
                *(if answer.status == 200 { &mut taken } else { &mut refused }) += 1;
            }
            let line = json!({"index": 0, "task": "t", "options": options}).to_string();
            send(&app, ndjson(&format!("/api/v3/batches/{id}/items"), line), &what).await;
        }
        let null = json!({"options": {*option: null}});
        let known = !matches!(*option, "unknownOption" | "__proto__");
        let answer = super::trigger(&app, "t", &null, [200, 400]).await;
        assert_eq!(
            answer.status == 200,
            known,
            "null means left out: {option}: {}",
            answer.text
        );
    }
    assert!(taken > 100 && refused > 1_000, "{taken} taken, {refused} refused");
    app.finish().await;
}

#[tokio::test]
async fn odd_bodies_are_taken_or_refused() {
    let app = App::start().await;
    let run = super::trigger(&app, "t", &json!({}), 200).await.str("/id").to_owned();
    let id = batch(&app, &json!({"runCount": 2})).await;
    let paths = [
        "/api/v1/tasks/t/trigger".to_owned(),
        "/api/v3/batches".to_owned(),
        format!("/api/v3/batches/{id}/items"),
        "/api/v3/batches/batch_AA/items".to_owned(),
        format!("/api/v2/runs/{run}/cancel"),
        format!("/api/v1/runs/{run}/replay"),
        "/api/v1/idempotencyKeys/k/reset".to_owned(),
        "/api/v1/idempotencyKeys/%00/reset".to_owned(),
        "/api/v2/packets/a".to_owned(),
    ];
    let mut bodies: Vec<Vec<u8>> = odd_values()
        .iter()
        .map(|value| value.to_string().into_bytes())
        .collect();
    for value in odd_values() {
        bodies.push(json!({"taskIdentifier": value}).to_string().into_bytes());
        bodies.push(json!({"runCount": value}).to_string().into_bytes());
        bodies.push(json!({"payload": value, "options": value}).to_string().into_bytes());
        bodies.push(
            json!({"index": value, "task": value, "payload": value})
                .to_string()
                .into_bytes(),
        );
        for kind in [
            "application/super+json",
            "application/json",
            "text/plain",
            "application/store",
        ] {
            bodies.push(
                json!({"payload": value, "options": {"payloadType": kind}})
                    .to_string()
                    .into_bytes(),
            );
        }
    }
    bodies.extend([
        Vec::new(),
        b"{".to_vec(),
        b"\xff\xfe".to_vec(),
        b"{\"payload\": 1, \"payload\": 2}".to_vec(),
        b"{\"payload\": \"\\ud800\"}".to_vec(),
        "[".repeat(100_000).into_bytes(),
        format!("{{\"payload\": {}1{}}}", "[".repeat(5_000), "]".repeat(5_000)).into_bytes(),
        "\n".repeat(100_000).into_bytes(),
        format!("{}\n", item(0, 1)).repeat(5_000).into_bytes(),
        vec![b' '; 3 << 20],
    ]);
    for path in &paths {
        for body in &bodies {
            let what = format!("{path} {:.80}", String::from_utf8_lossy(body));
            send(&app, Call::json(path, body.clone()), &what).await;
            if path.ends_with("/items") {
                send(&app, ndjson(path, body.clone()), &what).await;
            }
        }
    }
    app.finish().await;
}

#[tokio::test]
async fn odd_paths_queries_and_headers_are_taken_or_refused() {
    let app = App::start().await;
    let segments = [
        "%00",
        "%ff",
        "%2F",
        "..%2f..",
        "%F0%9F%98%80",
        "a%20b",
        &"x".repeat(5_000),
        "run_1",
        "-",
        "%",
    ];
    for segment in segments {
        for method in METHODS {
            for path in [
                format!("/api/v1/tasks/{segment}/trigger"),
                format!("/api/v3/batches/{segment}/items"),
                format!("/api/v1/idempotencyKeys/{segment}/reset"),
                format!("/api/v3/runs/{segment}"),
                format!("/api/v2/runs/{segment}/cancel"),
                format!("/api/v1/runs/{segment}/replay"),
                format!("/api/v2/packets/{segment}"),
                format!("/api/{segment}"),
            ] {
                let what = format!("{method} {path:.100}");
                let mut call = Call::json(&path, "{}");
                call.method = method.clone();
                send(&app, call, &what).await;
            }
        }
    }
    let members = [
        "filter[status]",
        "filter[taskIdentifier]",
        "filter[queue]",
        "filter[tag]",
        "filter[batch]",
        "filter[isTest]",
        "filter[version]",
        "filter[createdAt][from]",
        "filter[createdAt][to]",
        "filter[createdAt][period]",
        "page[size]",
        "page[after]",
        "page[before]",
        "more",
    ];
    let values = [
        "",
        "0",
        "-1",
        "1",
        "100",
        "%00",
        "%ff",
        "a,b",
        ",",
        "QUEUED,DELAYED",
        "true",
        "1d",
        "9999999999999999d",
        "x%00y",
        "9223372036854775807",
        "-9223372036854775808",
        "2027-01-01T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999999Z",
        "01a22dc3-782d-7a93-8000-0163d1fa16a5",
        "e%CC%81",
    ];
    for member in members {
        for value in values {
            let path = format!(
                "/api/v1/runs?{}={value}",
                member.replace('[', "%5B").replace(']', "%5D")
            );
            let mut call = Call::json(&path, "");
            call.method = reqwest::Method::GET;
            send(&app, call, &path).await;
        }
    }
    for value in [&b""[..], b"\xff", b"a b", &[b'k'; 4_000]] {
        let mut call = Call::json("/api/v1/tasks/t/trigger", "{}");
        let value = HeaderValue::from_bytes(value).unwrap();
        call.headers
            .insert(HeaderName::from_static("x-trigger-request-idempotency-key"), value);
        assert_eq!(send(&app, call, "a header").await.status, 200);
    }
    app.finish().await;
}
