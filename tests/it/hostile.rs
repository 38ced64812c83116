//! Input that means harm, or was made by a broken client: each is answered as a problem, nothing is
//! stored, and the server goes on.

mod patience;
mod text;
mod wire;

use std::time::Duration;

use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use serde_json::{Value, json};

use crate::support::{App, Call};

/// No single refusal may take longer, on the slowest machine.
const BOUND: Duration = Duration::from_secs(20);

async fn stored_jobs(app: &App) -> i64 {
    sqlx::query_scalar("select count(*) from jobs")
        .fetch_one(app.sql())
        .await
        .expect("a count")
}

/// Posts each body and expects it to be refused with this status and one of these codes.
async fn assert_all_refused(app: &App, path: &str, status: u16, codes: &[&str], bodies: &[Vec<u8>]) {
    for body in bodies {
        let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
        let answer = app.send(Call::json(path, body.clone())).await;
        let answer = answer.unwrap_or_else(|error| panic!("{shown}: {error}"));
        assert!(
            answer.status == status && codes.contains(&answer.at("/code").as_str().unwrap_or_default()),
            "{shown}\n  wanted {status} {codes:?}, got {}: {}",
            answer.status,
            answer.text.chars().take(400).collect::<String>()
        );
        answer.assert_problem(status, codes);
        assert!(answer.took < BOUND, "{shown}: took {:?}", answer.took);
    }
    assert_eq!(stored_jobs(app).await, 0, "something refused was stored");
}

/// The server answers as ever.
async fn assert_alive(app: &App) {
    app.get("/readyz", 200).await;
    app.post("/v1/jobs", &json!({"name": "alive"}), 201).await;
}

fn bytes<const N: usize>(texts: [&str; N]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// A dispatch whose payload is this text.
fn with_payload(payload: &str) -> Vec<u8> {
    format!(r#"{{"name":"x","payload":{payload}}}"#).into_bytes()
}

#[tokio::test]
async fn numbers_that_no_type_holds_are_refused() {
    let app = App::start().await;
    let wide = [
        "1e131071",
        "1e400",
        "-1e400",
        "1e-400",
        "9223372036854775808",
        "18446744073709551616",
        "0.5",
    ];
    let mut bodies = Vec::new();
    for number in wide.into_iter().chain(["32768", "-32769", "true", "\"5\"", "[]", "{}"]) {
        bodies.push(format!(r#"{{"name":"x","priority":{number}}}"#));
    }
    for number in wide.into_iter().chain(["0", "1001", "-1", "true", "\"5\"", "[]", "{}"]) {
        bodies.push(format!(r#"{{"name":"x","retry":{{"max_attempts":{number}}}}}"#));
    }
    for number in [
        "1e131071", "1e400", "-1e400", "1e-400", "0.5", "0", "-2", "101", "true", "\"2\"", "[2]",
    ] {
        bodies.push(format!(r#"{{"name":"x","retry":{{"factor":{number}}}}}"#));
    }
    for number in ["1e131071", "1.5", "0", "-1", "\"1\""] {
        let parent = format!(r#"{{"job_id":"0193d6a0-0000-7000-8000-000000000000","attempt":{number}}}"#);
        bodies.push(format!(r#"{{"name":"x","parent":{parent}}}"#));
    }
    let bodies = bodies.into_iter().map(String::into_bytes).collect::<Vec<_>>();
    assert_all_refused(&app, "/v1/jobs", 400, &["invalid_request"], &bodies).await;
    let durations =
        ["1e131071", "5", "-1", "true", "[]"].map(|d| format!(r#"{{"name":"x","delay":{d}}}"#).into_bytes());
    assert_all_refused(
        &app,
        "/v1/jobs",
        400,
        &["invalid_request", "invalid_duration"],
        &durations,
    )
    .await;
    assert_alive(&app).await;
    app.finish().await;
}

#[tokio::test]
async fn names_that_the_json_library_keeps_for_itself_are_ordinary() {
    let app = App::start().await;
    for private in ["$serde_json::private::RawValue", "$serde_json::private::Number"] {
        for value in [r#""1""#, "1", r#""{\"name\":\"y\"}""#, "null", "[]"] {
            let payload = format!(r#"{{ "{private}": {value}, "a": [{{"{private}":{value}}}] }}"#);
            let body = [
                with_payload(&payload),
                with_payload(&format!(r#"{{"{private}":{value}}}"#)),
            ];
            for body in body {
                let job = app.post_raw("/v1/jobs", body.clone(), 201).await.job_id().to_owned();
                let text = app.get(&format!("/v1/jobs/{job}"), 200).await.text;
                let sent = String::from_utf8(body).unwrap();
                let sent = &sent[sent.find("\"payload\":").unwrap() + 10..sent.len() - 1];
                assert!(text.contains(sent), "{sent} came back as {text}");
            }
        }
        let metadata = json!({"name": "x", "metadata": {private: "v"}});
        let job = app.post("/v1/jobs", &metadata, 201).await.job_id().to_owned();
        let job = app.get(&format!("/v1/jobs/{job}"), 200).await;
        assert_eq!(job.at("/metadata"), &json!({private: "v"}));
    }
    sqlx::raw_sql("delete from job_keys; delete from jobs; delete from queue_counts")
        .execute(app.sql())
        .await
        .unwrap();
    let private = "$serde_json::private::RawValue";
    let bodies = bytes([
        r#"{"$serde_json::private::RawValue":"{\"name\":\"x\"}"}"#,
        r#"{"name":{"$serde_json::private::RawValue":"\"x\""}}"#,
        r#"{"name":"x","uniqueness":{"$serde_json::private::RawValue":"{}"}}"#,
        r#"{"name":"x","$serde_json::private::RawValue":"1"}"#,
        r#"{"name":"x","priority":{"$serde_json::private::Number":"1"}}"#,
    ]);
    assert_all_refused(&app, "/v1/jobs", 400, &["invalid_request"], &bodies).await;
    let batches = [
        json!({private: "{\"jobs\":[{\"name\":\"x\"}]}"}),
        json!({"jobs": {private: "[{\"name\":\"x\"}]"}}),
        json!({"jobs": [{private: "{\"name\":\"x\"}"}]}),
    ];
    let batches = batches.map(|batch| batch.to_string().into_bytes());
    assert_all_refused(&app, "/v1/jobs/batch", 400, &["invalid_request"], &batches).await;
    assert_alive(&app).await;
    app.finish().await;
}

#[tokio::test]
async fn bodies_of_another_kind_are_refused() {
    let app = App::start().await;
    let body = br#"{"name":"x"}"#.to_vec();
    let send = async |kind: Option<&str>| {
        let mut headers = HeaderMap::new();
        if let Some(kind) = kind {
            headers.insert(CONTENT_TYPE, HeaderValue::from_str(kind).unwrap());
        }
        let call = Call {
            method: Method::POST,
            path: "/v1/jobs".to_owned(),
            headers,
            body: Some(body.clone()),
        };
        app.send(call).await.unwrap()
    };
    for kind in [
        None,
        Some(""),
        Some("text/plain"),
        Some("text/json"),
        Some("application/jsonx"),
        Some("json"),
        Some("application/x-www-form-urlencoded"),
        Some("multipart/form-data; boundary=x"),
    ] {
        send(kind).await.assert_problem(415, &["unsupported_media_type"]);
    }
    assert_eq!(stored_jobs(&app).await, 0);
    for kind in [
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/json;charset=\"UTF-8\"",
    ] {
        assert_eq!(send(Some(kind)).await.status, 201, "{kind}");
    }
    app.finish().await;
}

#[tokio::test]
async fn queries_and_paths_that_mean_harm_are_no_fault_of_ours() {
    let app = App::start().await;
    let invalid = [
        "/v1/jobs?limit=0",
        "/v1/jobs?limit=201",
        "/v1/jobs?limit=-1",
        "/v1/jobs?limit=abc",
        "/v1/jobs?limit=1e2",
        "/v1/jobs?limit=99999999999999999999",
        "/v1/jobs?limit=",
        "/v1/jobs?state=nothing",
        "/v1/jobs?dispatched_after=yesterday",
        "/v1/jobs?dispatched_before=2026-01-01",
        "/v1/jobs?dispatched_before=9999999999",
        "/v1/jobs?limit=1&limit=2",
        "/v1/keys",
        "/v1/keys?name=x",
        "/v1/keys?active_key=x",
        "/v1/keys?name=x&active_key=a&window_key=b",
    ];
    for path in invalid {
        app.get(path, 400).await.assert_problem(400, &["invalid_request"]);
    }
    for cursor in ["x", "AAAA", "%FF", "%00", "'", "eyJhIjoxfQ==", "..", &"A".repeat(5000)] {
        let answer = app.get(&format!("/v1/jobs?cursor={cursor}"), 400).await;
        answer.assert_problem(400, &["invalid_cursor", "invalid_request"]);
    }
    for key in ["", "%00", "a%0Ab", "%C2%85", "%7F"] {
        let answer = app.get(&format!("/v1/keys?name=x&active_key={key}"), 400).await;
        answer.assert_problem(400, &["invalid_key", "invalid_request"]);
    }
    let never_a_fault = [
        "/v1/jobs?name=%00",
        "/v1/jobs?name=%FF",
        "/v1/jobs?queue=%00",
        "/v1/jobs?active_key=%00",
        "/v1/jobs?active_key=%ED%A0%80",
        "/v1/jobs?metadata.=x",
        "/v1/jobs?metadata.a=%00",
        "/v1/jobs?metadata.%00=a",
        "/v1/jobs?metadata.a=%FF",
        "/v1/jobs?%FF=%FF",
        "/v1/jobs?name='--",
        "/v1/jobs?&&&=",
        "/v1/jobs?metadata=x",
        "/v1/jobs?dispatched_after=9999-12-31T23:59:59Z",
        "/v1/jobs?dispatched_after=0000-01-01T00:00:00Z",
        "/v1/keys?name=%FF&active_key=x",
        "/v1/keys?name=x&active_key=%FF",
        "/v1/keys?name=x&active_key=a&active_key=b",
        "/v1/jobs/%00",
        "/v1/jobs/%FF",
        "/v1/jobs/%2e%2e",
        "/v1/jobs/..%2f..",
        "/v1/jobs/",
        "//v1/jobs",
        "/v1//jobs",
        "/errors/%00",
        "/errors/..%2f..%2fetc%2fpasswd",
        "/errors/nothing",
        "/%00",
        "/v1/jobs/0193d6a0",
        "/v1/jobs/00000000000000000000000000000000",
        "/v1/jobs/{00000000-0000-0000-0000-000000000000}",
    ];
    for path in never_a_fault {
        let answer = app.get(path, 200..=499).await;
        if answer.status >= 400 {
            let code = answer.str("/code").to_owned();
            answer.assert_problem(answer.status, &[&code]);
        }
        assert!(!answer.text.contains("root:"), "{path} gave a file away");
    }
    for (method, path) in [
        ("PATCH", "/v1/jobs"),
        ("PUT", "/v1/jobs/batch"),
        ("DELETE", "/v1/keys"),
        ("GET", "/v1/keys/reset"),
    ] {
        let method = method.parse::<Method>().unwrap();
        let call = Call {
            method,
            path: path.to_owned(),
            headers: HeaderMap::new(),
            body: None,
        };
        app.send(call)
            .await
            .unwrap()
            .assert_problem(405, &["method_not_allowed"]);
    }
    assert_alive(&app).await;
    app.finish().await;
}

#[tokio::test]
async fn ids_of_requests_are_kept_harmless() {
    let app = App::start().await;
    let ask = async |id: &[u8]| {
        let mut call = Call::json("/v1/jobs", br#"{"name":"x"}"#.to_vec());
        call.headers
            .insert("x-request-id", HeaderValue::from_bytes(id).unwrap());
        let answer = app.send(call).await.unwrap();
        assert_eq!(answer.status, 201, "{}", answer.text);
        answer.headers.get("x-request-id").expect("an id").as_bytes().to_vec()
    };
    assert_eq!(
        ask(b"0af7651916cd43dd8448eb211c80319c").await,
        b"0af7651916cd43dd8448eb211c80319c"
    );
    for id in [&b"\xff\xfe"[..], "é".as_bytes(), b"", &[b'x'; 8000], b"a\tb"] {
        let answered = ask(id).await;
        assert!(answered.len() <= 300 && answered.iter().all(u8::is_ascii_graphic) && !answered.is_empty());
    }
    app.finish().await;
}

#[tokio::test]
async fn instants_that_no_calendar_holds_are_refused() {
    let app = App::start().await;
    let instants = [
        "9999-12-31T23:59:59Z",
        "+10000-01-01T00:00:00Z",
        "2030-02-30T00:00:00Z",
        "2030-13-01T00:00:00Z",
        "2030-01-01T25:00:00Z",
        "2030-01-01T00:00:00",
        "2030-01-01",
        "infinity",
        "-infinity",
        "now",
        "",
        "1893456000",
        "2030-01-01T00:00:00+25:00",
        "2030-01-01T00:00:00Europe/Berlin",
        "294277-01-01T00:00:00Z",
    ];
    let bodies = instants.map(|at| json!({"name": "x", "run_at": at}).to_string().into_bytes());
    assert_all_refused(&app, "/v1/jobs", 400, &["invalid_request"], &bodies).await;
    let numbers = [json!(1_893_456_000), json!([]), json!({}), json!(true)];
    let bodies = numbers.map(|at: Value| json!({"name": "x", "run_at": at}).to_string().into_bytes());
    assert_all_refused(&app, "/v1/jobs", 400, &["invalid_request"], &bodies).await;
    // The past means now.
    for past in [
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00Z",
        "1969-12-31T23:59:59.999999999Z",
    ] {
        app.post("/v1/jobs", &json!({"name": "x", "run_at": past}), 201).await;
    }
    assert_alive(&app).await;
    app.finish().await;
}
