//! Bodies that are no JSON, or JSON that a dispatch may not be.

use serde_json::json;

use super::{BOUND, assert_alive, assert_all_refused, bytes, with_payload};
use crate::support::{App, Call};

#[tokio::test]
async fn object_keys_given_twice_are_refused_at_any_depth() {
    let app = App::start().await;
    let bodies = bytes([
        r#"{"name":"x","name":"x"}"#,
        r#"{"name":"x","n\u0061me":"y"}"#,
        r#"{"name":"x","payload":1,"payload":1}"#,
        r#"{"name":"x","payload":{"a":1,"a":1}}"#,
        r#"{"name":"x","payload":{"a":1,"\u0061":2}}"#,
        r#"{"name":"x","payload":{"\u00e9":1,"é":2}}"#,
        r#"{"name":"x","payload":{"\ud83d\ude00":1,"😀":2}}"#,
        r#"{"name":"x","payload":[0,{"a":[{"b":{"c":1,"d":2,"c":3}}]}]}"#,
        r#"{"name":"x","payload":{"":1,"":2}}"#,
        r#"{"name":"x","metadata":{"a":"1","a":"1"}}"#,
        r#"{"name":"x","uniqueness":{"active_key":"a","active_key":"a"}}"#,
        r#"{"name":"x","uniqueness":{},"uniqueness":{}}"#,
        r#"{"name":"x","retry":{"factor":2,"factor":2}}"#,
        r#"{"name":"x","retry":null,"retry":null}"#,
    ]);
    assert_all_refused(&app, "/v1/jobs", 400, &["invalid_payload"], &bodies).await;
    assert_all_refused(&app, "/v1/jobs/preview", 400, &["invalid_payload"], &bodies).await;
    let batches = bytes([
        r#"{"jobs":[{"name":"x"}],"jobs":[{"name":"x"}]}"#,
        r#"{"jobs":[{"name":"x"},{"name":"x","name":"y"}]}"#,
        r#"{"jobs":[{"name":"x"},{"name":"x","payload":{"a":{"b":1,"b":1}}}]}"#,
        r#"{"jobs":[{"name":"x"}],"continue_on_conflict":true,"continue_on_conflict":true}"#,
    ]);
    assert_all_refused(&app, "/v1/jobs/batch", 400, &["invalid_payload"], &batches).await;
    let resets = bytes([r#"{"name":"x","window_key":"a","window_key":"b"}"#]);
    assert_all_refused(&app, "/v1/keys/reset", 400, &["invalid_payload"], &resets).await;
    // The same key in two objects is nothing unusual.
    app.post_raw("/v1/jobs", with_payload(r#"[{"a":1},{"a":1,"A":1,"a ":{"a":1}}]"#), 201)
        .await;
    assert_alive(&app).await;
    app.finish().await;
}

#[tokio::test]
async fn a_wide_object_with_one_key_twice_is_refused_in_bounded_time() {
    let app = App::start().await;
    // All keys share a long beginning, and the last is the first again.
    let members = (0..20_000).map(|n| format!(r#""aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{n}":0"#));
    let twice = members
        .chain([r#""aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa0":0"#.to_owned()])
        .collect::<Vec<_>>()
        .join(",");
    let bodies = [with_payload(&format!("{{{twice}}}"))];
    assert_all_refused(&app, "/v1/jobs", 400, &["invalid_payload"], &bodies).await;
    app.finish().await;
}

#[tokio::test]
async fn what_is_not_json_is_refused() {
    let app = App::start().await;
    let mut bodies = bytes([
        "",
        " ",
        "{",
        "}",
        "{}}",
        "nul",
        "nulll",
        r#"{"name":"x"} x"#,
        r#"{"name":"x"}{"name":"y"}"#,
        r#"{"name":"x",}"#,
        r#"{"name" "x"}"#,
        r#"{'name':'x'}"#,
        r#"{name:"x"}"#,
        r#"{"name":"x"/**/}"#,
        r#"{"name":"x"} // no"#,
    ]);
    for payload in [
        "NaN",
        "Infinity",
        "-Infinity",
        "-",
        "+1",
        "01",
        "1.",
        ".5",
        "1e",
        "1e+",
        "0x10",
        "1_000",
        "--1",
        "tru",
        "True",
        "[1,]",
        "[,1]",
        "[1 2]",
        r#"{"a"}"#,
        r#"{1:2}"#,
        r#""\x41""#,
        r#""\u12""#,
        r#""\u00g0""#,
        "\"a\nb\"",
        "\"a\tb\"",
        "\"a\0b\"",
        "\"",
        r#""\"#,
        "undefined",
        "",
    ] {
        bodies.push(with_payload(payload));
    }
    // Lone surrogates, in values and names, in any order.
    for text in [
        r"\ud800",
        r"\udc00",
        r"\ud800x",
        r"\ud800\ud800",
        r"\udc00\ud800",
        r"\ud800\u0041",
        r"a\uDBFF",
    ] {
        bodies.push(with_payload(&format!("\"{text}\"")));
        bodies.push(with_payload(&format!("{{\"{text}\":1}}")));
        bodies.push(format!(r#"{{"name":"{text}"}}"#).into_bytes());
        bodies.push(format!(r#"{{"name":"x","uniqueness":{{"active_key":"{text}"}}}}"#).into_bytes());
        bodies.push(format!(r#"{{"name":"x","metadata":{{"a":"{text}"}}}}"#).into_bytes());
    }
    // What is no UTF-8: a stray byte, an overlong form, a surrogate, too high a code point, half a character.
    for bad in [
        &b"\xff"[..],
        b"\x80",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe2\x82",
        b"\xf0\x9f\x98",
    ] {
        bodies.push([br#"{"name":"x","payload":""#, bad, br#""}"#].concat());
        bodies.push([br#"{"name":"x","payload":{""#, bad, br#"":1}}"#].concat());
        bodies.push([br#"{"name":""#, bad, br#""}"#].concat());
        bodies.push([&br#"{"name":"x"}"#[..], bad].concat());
    }
    // UTF-16 and UTF-32.
    bodies.push(r#"{"name":"x"}"#.encode_utf16().flat_map(u16::to_le_bytes).collect());
    bodies.push(r#"{"name":"x"}"#.chars().flat_map(|c| u32::from(c).to_be_bytes()).collect());
    assert_all_refused(&app, "/v1/jobs", 400, &["invalid_json"], &bodies).await;
    let batches = bytes([
        r#"{"jobs":[{"name":"x"},{"name":"\ud800"}]}"#,
        r#"{"jobs":[{"name":"x"}"#,
        "[",
        "",
    ]);
    assert_all_refused(&app, "/v1/jobs/batch", 400, &["invalid_json"], &batches).await;
    assert_alive(&app).await;
    app.finish().await;
}

#[tokio::test]
async fn json_of_the_wrong_shape_is_refused() {
    let app = App::start().await;
    let bodies = bytes([
        "null",
        "true",
        "0",
        "\"x\"",
        "[]",
        r#"[{"name":"x"}]"#,
        r#"["x",null,1]"#,
        "{}",
        "1e400",
    ]);
    assert_all_refused(&app, "/v1/jobs", 400, &["invalid_request"], &bodies).await;
    assert_all_refused(&app, "/v1/jobs/preview", 400, &["invalid_request"], &bodies).await;
    assert_all_refused(&app, "/v1/jobs/batch", 400, &["invalid_request"], &bodies).await;
    assert_all_refused(&app, "/v1/keys/reset", 400, &["invalid_request"], &bodies).await;
    let batches = bytes([
        r#"{"jobs":null}"#,
        r#"{"jobs":{}}"#,
        r#"{"jobs":"x"}"#,
        r#"{"jobs":[null]}"#,
        r#"{"jobs":[[]]}"#,
        r#"{"jobs":["x"]}"#,
        r#"{"jobs":[1e400]}"#,
        r#"{"jobs":[{"name":"x"}],"continue_on_conflict":1}"#,
        r#"{"jobs":[{"name":"x"}],"continue_on_conflict":"true"}"#,
        r#"{"jobs":[{"name":"x"}],"more":1}"#,
        r#"{"jobs":[["x",null]]}"#,
    ]);
    assert_all_refused(&app, "/v1/jobs/batch", 400, &["invalid_request"], &batches).await;
    // Our own objects as lists: a derive would take members in order.
    let lists = bytes([
        r#"{"name":"x","uniqueness":["a"]}"#,
        r#"{"name":"x","retry":[1]}"#,
        r#"{"name":"x","metadata":[]}"#,
        r#"{"name":"x","parent":["0193d6a0-0000-7000-8000-000000000000"]}"#,
        r#"{"name":["x"]}"#,
    ]);
    assert_all_refused(&app, "/v1/jobs", 400, &["invalid_request"], &lists).await;
    assert_alive(&app).await;
    app.finish().await;
}

#[tokio::test]
async fn control_characters_are_refused_outside_the_payload() {
    let app = App::start().await;
    for control in [
        r"\u0000", r"\u0001", r"\n", r"\u001f", r"\u007f", r"\u0080", r"\u0085", r"\u009f",
    ] {
        for text in [format!("{control}a"), format!("a{control}b"), format!("a{control}")] {
            let keys = [
                format!(r#"{{"name":"x","uniqueness":{{"active_key":"{text}"}}}}"#),
                format!(r#"{{"name":"x","uniqueness":{{"window_key":"{text}","window":"1h"}}}}"#),
            ];
            let keys = keys.map(String::into_bytes);
            assert_all_refused(&app, "/v1/jobs", 400, &["invalid_key"], &keys).await;
            let others = [
                format!(r#"{{"name":"{text}"}}"#),
                format!(r#"{{"name":"x","queue":"{text}"}}"#),
                format!(r#"{{"name":"x","metadata":{{"{text}":"v"}}}}"#),
                format!(r#"{{"name":"x","metadata":{{"k":"{text}"}}}}"#),
                format!(r#"{{"name":"x","{text}":1}}"#),
            ];
            let others = others.map(String::into_bytes);
            assert_all_refused(&app, "/v1/jobs", 400, &["invalid_request"], &others).await;
            let resources = [format!(r#"{{"name":"x","resource_keys":["s:{text}"]}}"#).into_bytes()];
            assert_all_refused(&app, "/v1/jobs", 400, &["invalid_key", "invalid_request"], &resources).await;
        }
    }
    // In a payload they are data.
    app.post_raw("/v1/jobs", with_payload(r#"{"a\u0000b":"\u0000\u001f\u0085"}"#), 201)
        .await;
    app.finish().await;
}

#[tokio::test]
async fn depth_has_a_bound() {
    let app = App::start().await;
    let nested = |depth: usize, open: &str, close: &str| format!("{}1{}", open.repeat(depth), close.repeat(depth));
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}"), (r#"[{"a":"#, "}]")] {
        let deep = [200, 1_000, 100_000].map(|depth| with_payload(&nested(depth, open, close)));
        assert_all_refused(&app, "/v1/jobs", 400, &["invalid_json"], &deep).await;
        let open_ended = [200, 100_000].map(|depth| with_payload(&open.repeat(depth)));
        assert_all_refused(&app, "/v1/jobs", 400, &["invalid_json"], &open_ended).await;
        let in_batch = [200, 100_000].map(|depth| {
            format!(
                r#"{{"jobs":[{{"name":"x","payload":{}}}]}}"#,
                nested(depth, open, close)
            )
            .into_bytes()
        });
        assert_all_refused(&app, "/v1/jobs/batch", 400, &["invalid_json"], &in_batch).await;
    }
    // A member that nobody knows is read as strictly as one that somebody does.
    let unknown = [format!(r#"{{"name":"x","unknown":{}}}"#, nested(1_000, "[", "]")).into_bytes()];
    assert_all_refused(&app, "/v1/jobs", 400, &["invalid_json"], &unknown).await;
    let closing = [with_payload(&"]".repeat(100_000))];
    assert_all_refused(&app, "/v1/jobs", 400, &["invalid_json"], &closing).await;
    let fine = with_payload(&nested(120, "[", "]"));
    app.post_raw("/v1/jobs", fine, 201).await;
    app.finish().await;
}

#[tokio::test]
async fn bodies_too_large_are_refused_and_the_largest_are_not() {
    let app = App::start().await;
    let large = format!("\"{}\"", "x".repeat(20 << 20));
    let bodies = [
        with_payload(&large),
        format!(r#"{{"name":{large}}}"#).into_bytes(),
        vec![b' '; 20 << 20],
    ];
    assert_all_refused(&app, "/v1/jobs", 413, &["payload_too_large"], &bodies).await;
    let batch = [format!(r#"{{"jobs":[{{"name":"x","payload":{large}}}]}}"#).into_bytes()];
    assert_all_refused(
        &app,
        "/v1/jobs/batch",
        413,
        &["batch_too_large", "payload_too_large"],
        &batch,
    )
    .await;
    // One byte more than 1 MiB, and 1 MiB.
    let more = [with_payload(&format!("\"{}\"", "x".repeat((1 << 20) - 1)))];
    assert_all_refused(&app, "/v1/jobs", 413, &["payload_too_large"], &more).await;
    let full = with_payload(&format!("\"{}\"", "x".repeat((1 << 20) - 2)));
    let job = app.post_raw("/v1/jobs", full, 201).await.job_id().to_owned();
    let answer = app.get(&format!("/v1/jobs/{job}"), 200).await;
    assert_eq!(answer.str("/payload").len(), (1 << 20) - 2);
    // Fifteen such payloads fit in a batch; the framework's own default of 2 MB does not stand in the way.
    let items = vec![json!({"name": "x", "payload": "y".repeat((1 << 20) - 2)}); 15];
    let answer = app.post("/v1/jobs/batch", &json!({"jobs": items}), 200).await;
    assert_eq!(answer.at("/created"), 15);
    assert!(answer.took < BOUND);
    app.finish().await;
}

/// Numbers cost what their text costs, not what they stand for.
#[tokio::test]
async fn huge_exponents_cost_nothing() {
    let app = App::start().await;
    for payload in [
        "1e999999999",
        "-1E-999999999",
        "1e99999999999999999999999",
        "0e999999999",
        "123e-131071",
    ] {
        let body =
            format!(r#"{{"name":"x","payload":[{payload}],"uniqueness":{{"window_key":"{payload}","window":"1h"}}}}"#);
        let first = app.send(Call::json("/v1/jobs", body.clone())).await.unwrap();
        assert_eq!(first.status, 201, "{}", first.text);
        let again = app.send(Call::json("/v1/jobs", body)).await.unwrap();
        assert_eq!((again.status, again.job_id()), (200, first.job_id()));
        assert!(first.took < BOUND && again.took < BOUND);
        let job = app.get(&format!("/v1/jobs/{}", first.job_id()), 200).await;
        assert!(
            job.text.contains(&format!("[{payload}]")),
            "{payload} came back as {}",
            job.text
        );
    }
    app.finish().await;
}
