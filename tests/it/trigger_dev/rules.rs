//! What the adapter does, request by request.

use serde_json::json;

use super::{assert_refused, batch, item, items, jobs, trigger, trigger_keyed};
use crate::support::{App, Call, Gate, Options};

#[tokio::test]
async fn a_trigger_that_is_sent_again_finds_its_run() {
    let app = App::start().await;
    let body = json!({"payload": {"n": 1}});
    let first = trigger_keyed(&app, "t", &body, "5d5a7a3e-1").await;
    let again = trigger_keyed(&app, "t", &body, "5d5a7a3e-1").await;
    assert_eq!((first.status, again.status), (200, 200));
    assert_eq!(first.str("/id"), again.str("/id"));
    assert_eq!(
        (first.at("/isCached"), again.at("/isCached")),
        (&json!(false), &json!(false))
    );
    let other = trigger_keyed(&app, "t", &body, "5d5a7a3e-2").await;
    assert_ne!(first.str("/id"), other.str("/id"));
    // Without the header, and with one that is no key, each is a run of its own.
    trigger(&app, "t", &body, 200).await;
    trigger(&app, "t", &body, 200).await;
    trigger_keyed(&app, "t", &body, &"x".repeat(200)).await;
    assert_eq!(jobs(&app).await, 5);
    app.finish().await;
}

#[tokio::test]
async fn sixteen_triggers_with_one_key_on_two_servers_make_one_run() {
    let app = App::with(Options::default().servers(2)).await;
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..16 {
        let client = app.client(n % 2).clone();
        calls.spawn(async move {
            let body = json!({"payload": n, "options": {"idempotencyKey": "one"}});
            let answer = trigger(&client, "t", &body, 200).await;
            (answer.str("/id").to_owned(), answer.at("/isCached").as_bool().unwrap())
        });
    }
    let answers = calls.join_all().await;
    assert!(answers.iter().all(|(id, _)| *id == answers[0].0), "{answers:?}");
    assert_eq!(answers.iter().filter(|(_, cached)| !cached).count(), 1, "{answers:?}");
    app.finish().await;
}

#[tokio::test]
async fn a_batch_is_stored_whole_or_not_at_all() {
    let app = App::start().await;
    let id = batch(&app, &json!({"runCount": 3, "taskIdentifiers": ["t"]})).await;
    // Some of it: nothing is stored, and the client is told to send it again.
    let part = items(&app, &id, &[item(0, 1), item(1, 2)]).await;
    assert_eq!(part.at("/sealed"), &json!(false), "{}", part.text);
    assert_eq!(
        (part.at("/enqueuedCount"), part.at("/expectedCount")),
        (&json!(0), &json!(3))
    );
    assert_eq!(jobs(&app).await, 0);
    // One that is wrong.
    let bad = json!({"index": 2, "task": "t", "options": {"queue": {"name": "no queue"}}});
    let refused = items(&app, &id, &[item(0, 1), item(1, 2), bad]).await;
    assert_refused(&refused, 400, "invalid_request");
    assert_eq!(refused.str("/param"), "/options/queue/name");
    assert!(refused.str("/error").starts_with("item 2: "), "{}", refused.text);
    assert_eq!(jobs(&app).await, 0);
    // All of it, in any order; and once more.
    let all = [item(2, 3), item(0, 1), item(1, 2)];
    let stored = items(&app, &id, &all).await;
    assert_eq!(
        stored.text,
        format!(r#"{{"id":"{id}","itemsAccepted":3,"itemsDeduplicated":0,"sealed":true}}"#)
    );
    let again = items(&app, &id, &all).await;
    assert_eq!(
        (again.at("/itemsAccepted"), again.at("/itemsDeduplicated")),
        (&json!(0), &json!(3))
    );
    let listed = app.get(&format!("/api/v1/runs?filter%5Bbatch%5D={id}"), 200).await;
    assert_eq!(listed.at("/data").as_array().unwrap().len(), 3);
    assert_eq!(jobs(&app).await, 3);
    let newest = app.get(&format!("/v1/jobs/{}", listed.str("/data/0/id")), 200).await;
    assert_eq!(newest.at("/payload"), &json!(3), "items are dispatched in their order");
    app.finish().await;
}

#[tokio::test]
async fn a_batch_of_a_run_has_it_as_parent() {
    let app = App::start().await;
    let parent = trigger(&app, "parent", &json!({}), 200).await.str("/id").to_owned();
    let id = batch(
        &app,
        &json!({"runCount": 1, "parentRunId": parent, "idempotencyKey": "k"}),
    )
    .await;
    assert_eq!(items(&app, &id, &[item(0, 1)]).await.status, 200);
    let listed = app.get(&format!("/api/v1/runs?filter%5Bbatch%5D={id}"), 200).await;
    let run = app
        .get(&format!("/api/v3/runs/{}", listed.str("/data/0/id")), 200)
        .await;
    assert_eq!(
        (run.str("/relatedRuns/parent/id"), run.at("/depth")),
        (parent.as_str(), &json!(1))
    );
    let gone = "01a22dc3-782d-7a93-8000-0163d1fa16a5";
    let orphan = batch(&app, &json!({"runCount": 1, "parentRunId": gone})).await;
    assert_refused(
        &items(&app, &orphan, &[item(0, 1)]).await,
        422,
        "idempotency_scope_invalid",
    );
    for (body, code) in [
        (json!({"runCount": 1, "parentRunId": "run_1"}), "invalid_request"),
        (
            json!({"runCount": 1, "resumeParentOnCompletion": true}),
            "invalid_request",
        ),
        (json!({"runCount": 0}), "invalid_request"),
        (json!({"runCount": 1, "idempotencyKey": ""}), "invalid_key"),
        (json!({"runCount": 1, "more": 1}), "invalid_request"),
    ] {
        assert_refused(&app.post("/api/v3/batches", &body, 400).await, 400, code);
    }
    assert_refused(
        &app.post("/api/v3/batches", &json!({"runCount": 1001}), 413).await,
        413,
        "batch_too_large",
    );
    app.finish().await;
}

#[tokio::test]
async fn what_a_task_declares_holds_for_its_triggers() {
    let app = App::start().await;
    let declared = json!({
        "unique_within_window": {"key": "payload.order", "window": "24h"},
        "queue": "orders", "timeout": "5m"
    });
    app.put("/v1/job-types/order", &declared, 201..=201).await;
    let body = |order: &str| json!({"payload": {"order": order}});
    let first = trigger(&app, "order", &body("o-1"), 200).await;
    let run = app.get(&format!("/v1/jobs/{}", first.str("/id")), 200).await;
    assert_eq!((run.str("/queue"), run.str("/timeout")), ("orders", "5m"));
    let again = trigger_keyed(&app, "order", &body("o-1"), "request-2").await;
    assert_eq!(
        (again.str("/id"), again.at("/isCached")),
        (first.str("/id"), &json!(true))
    );
    // Whatever else the payload says: it is the key that counts.
    let other = json!({"payload": {"order": "o-1", "note": "other"}});
    assert_eq!(trigger(&app, "order", &other, 200).await.str("/id"), first.str("/id"));
    assert_refused(
        &trigger(&app, "order", &json!({}), 422).await,
        422,
        "key_selector_failed",
    );
    let own = json!({"payload": {"order": "o-1"}, "options": {"idempotencyKey": "own"}});
    assert_refused(&trigger(&app, "order", &own, 422).await, 422, "uniqueness_key_mismatch");
    // A replay would be the same run: it is refused, and not answered with it.
    let replay = format!("/api/v1/runs/{}/replay", first.str("/id"));
    assert_refused(&app.post_nothing(&replay, 409).await, 409, "uniqueness_conflict");
    app.post(
        "/api/v1/idempotencyKeys/o-1/reset",
        &json!({"taskIdentifier": "order"}),
        200,
    )
    .await;
    let replayed = app.post_nothing(&replay, 200).await;
    assert_ne!(replayed.str("/id"), first.str("/id"));

    app.put(
        "/v1/job-types/index",
        &json!({"unique_while_active": {"key": "payload.doc"}}),
        201,
    )
    .await;
    let live = trigger(&app, "index", &json!({"payload": {"doc": "d"}}), 200).await;
    let same = trigger(&app, "index", &json!({"payload": {"doc": "d"}}), 200).await;
    assert_eq!((same.str("/id"), same.at("/isCached")), (live.str("/id"), &json!(true)));
    let replay = format!("/api/v1/runs/{}/replay", live.str("/id"));
    assert_refused(&app.post_nothing(&replay, 409).await, 409, "active_key_held");
    let changed = app.post(&replay, &json!({"payload": {"doc": "e"}}), 200).await;
    assert_ne!(changed.str("/id"), live.str("/id"));
    app.finish().await;
}

#[tokio::test]
async fn rights_are_those_of_the_same_calls_elsewhere() {
    let secret = "sole_0123456789abcdef0123456789abcdef";
    let app = App::with(Options::default().bootstrap_token(secret)).await;
    let admin = app.with_token(secret);
    let run = trigger(&admin, "t", &json!({"options": {"idempotencyKey": "k"}}), 200).await;
    let run = run.str("/id").to_owned();
    let id = batch(&admin, &json!({"runCount": 1})).await;
    let calls = [
        ("POST", "/api/v1/tasks/t/trigger".to_owned(), "{}", &["dispatch"][..]),
        (
            "POST",
            "/api/v3/batches".to_owned(),
            r#"{"runCount": 1}"#,
            &["dispatch"],
        ),
        ("GET", format!("/api/v3/runs/{run}"), "", &["read"]),
        ("GET", "/api/v1/runs".to_owned(), "", &["read"]),
        (
            "POST",
            format!("/api/v1/runs/{run}/replay"),
            "{}",
            &["dispatch", "read"],
        ),
        ("POST", format!("/api/v2/runs/{run}/cancel"), "", &["admin"]),
        (
            "POST",
            "/api/v1/idempotencyKeys/k/reset".to_owned(),
            r#"{"taskIdentifier": "t"}"#,
            &["admin"],
        ),
    ];
    for (method, path, body, rights) in calls {
        let send = async |token: Option<&str>| {
            let client = token.map_or_else(|| app.client(0).clone(), |token| app.with_token(token));
            let mut call = Call::json(&path, body);
            call.method = method.parse().unwrap();
            client.send(call).await.unwrap()
        };
        assert_refused(&send(None).await, 401, "unauthorized");
        assert_refused(&send(Some("sole_nobody")).await, 401, "unauthorized");
        for right in ["dispatch", "read", "work"].iter().filter(|right| rights != [**right]) {
            let token = app.token("default", "prod", &[right]).await;
            assert_refused(&send(Some(&token)).await, 403, "forbidden");
        }
        let foreign = app.token("other", "prod", &["admin"]).await;
        if path.contains(&run) {
            assert_refused(&send(Some(&foreign)).await, 404, "job_not_found");
        }
        let token = app.token("default", "prod", rights).await;
        assert_eq!(send(Some(&token)).await.status, 200, "{method} {path} with {rights:?}");
    }
    let reader = app.with_token(&app.token("default", "prod", &["read"]).await);
    assert_refused(&items(&reader, &id, &[item(0, 1)]).await, 403, "forbidden");
    app.finish().await;
}

#[tokio::test]
async fn what_is_not_there_is_said_in_the_sdks_shape() {
    let app = App::start().await;
    for path in ["/api/v1/schedules", "/api/v1/whoami", "/api/x", "/api/v3/runs/a/b"] {
        assert_refused(&app.get(path, 404).await, 404, "not_found");
    }
    assert_refused(&app.get("/api/v3/batches", 405).await, 405, "method_not_allowed");
    let upload = app.put("/api/v2/packets/a/b.json", &json!({}), 413).await;
    assert_refused(&upload, 413, "payload_too_large");
    let reset = app
        .post(
            "/api/v1/idempotencyKeys/nobody/reset",
            &json!({"taskIdentifier": "t"}),
            404,
        )
        .await;
    assert_refused(&reset, 404, "not_found");
    // Elsewhere it stays as it was.
    app.get("/nowhere", 404).await.assert_problem(404, &["not_found"]);
    app.finish().await;
}

#[tokio::test]
async fn numbers_and_texts_reach_the_worker_to_the_letter() {
    let app = App::start().await;
    let payload = r#"{"n":9007199254740993,"z":[1.0,1e400],"s":" \u0000 "}"#;
    let text = serde_json::to_string(&format!(r#"{{"json":{payload}}}"#)).unwrap();
    let raw = app
        .post_raw("/api/v1/tasks/t/trigger", format!(r#"{{"payload":{payload}}}"#), 200)
        .await;
    let body = format!(r#"{{"payload":{text},"options":{{"payloadType":"application/super+json"}}}}"#);
    let superjson = app.post_raw("/api/v1/tasks/t/trigger", body, 200).await;
    for triggered in [raw, superjson] {
        let run = app.get(&format!("/api/v3/runs/{}", triggered.str("/id")), 200).await;
        assert!(run.text.contains(&format!("\"payload\":{payload}")), "{}", run.text);
    }
    let large = json!({"payload": "x".repeat(2 << 20)});
    assert_refused(&trigger(&app, "t", &large, 413).await, 413, "payload_too_large");
    app.finish().await;
}

#[tokio::test]
async fn a_cancelled_run_keeps_its_key_and_a_deleted_one_answers_for_it() {
    let app = App::start().await;
    let body = json!({"options": {"idempotencyKey": "k", "tags": "a"}});
    let run = trigger(&app, "t", &body, 200).await.str("/id").to_owned();
    app.post_nothing(&format!("/api/v2/runs/{run}/cancel"), 200).await;
    let again = trigger(&app, "t", &body, 200).await;
    assert_eq!((again.str("/id"), again.at("/isCached")), (run.as_str(), &json!(true)));
    app.delete(&format!("/v1/jobs/{run}"), 200).await;
    let gone = trigger(&app, "t", &body, 200).await;
    assert_eq!((gone.str("/id"), gone.at("/isCached")), (run.as_str(), &json!(true)));
    assert_refused(
        &app.get(&format!("/api/v3/runs/{run}"), 404).await,
        404,
        "job_not_found",
    );
    app.finish().await;
}

#[tokio::test]
async fn metadata_and_tags_are_kept_apart() {
    let app = App::start().await;
    let options = json!({"metadata": {"customer": "7"}, "tags": ["vip", "eu", "vip"], "machine": "micro"});
    let run = trigger(&app, "t", &json!({"options": options}), 200)
        .await
        .str("/id")
        .to_owned();
    let shown = app.get(&format!("/api/v3/runs/{run}"), 200).await;
    assert_eq!(
        (shown.at("/tags"), shown.at("/metadata")),
        (&json!(["eu", "vip"]), &json!({"customer": "7"}))
    );
    let found = app.get("/v1/jobs?metadata.tag:vip=true", 200).await;
    assert_eq!(found.str("/jobs/0/job_id"), run);
    for name in ["tag:x", "trigger.batch", "trigger.other"] {
        let refused = trigger(&app, "t", &json!({"options": {"metadata": {name: "x"}}}), 400).await;
        assert_refused(&refused, 400, "invalid_request");
        assert_eq!(refused.str("/param"), format!("/options/metadata/{name}"));
    }
    app.finish().await;
}

#[tokio::test]
async fn what_the_server_cannot_take_now_may_be_sent_again() {
    let app = App::with(Options::default().arg("--queue-units=1").arg("--groups-in-flight=1")).await;
    let gate = Gate::close(&app).await;
    let client = app.client(0).clone();
    let first = tokio::spawn(async move { trigger(&client, "t", &json!({}), 200).await });
    gate.more_waiting_than(0).await;
    // One of these waits for its turn; the others are turned away at once.
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let client = app.client(0).clone();
        calls.spawn(async move { trigger(&client, "t", &json!({}), [200, 503]).await });
    }
    for _ in 0..4 {
        let refused = calls.join_next().await.unwrap().unwrap();
        assert_refused(&refused, 503, "overloaded");
        assert_eq!(refused.header("x-should-retry"), None, "it is the SDK's to decide");
        assert_eq!(refused.header("retry-after"), Some("1"));
    }
    gate.open().await;
    assert_eq!(calls.join_next().await.unwrap().unwrap().status, 200);
    first.await.unwrap();
    assert_eq!(jobs(&app).await, 2);
    app.finish().await;
}
