//! The description of the API: up to date, complete, and true.

mod described;
mod docs;
mod problems;
mod requests;

use serde_json::{Value, json};

use self::described::Described;
use crate::support::{App, Client};

const REWRITE: &str = "cargo run -- openapi > openapi/openapi.json";

#[tokio::test]
async fn the_file_is_what_the_server_serves() {
    let app = App::start().await;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi/openapi.json");
    let file = std::fs::read_to_string(path).expect("openapi/openapi.json");
    let printed = app.command_output(&["openapi"]).await;
    assert!(
        file == printed,
        "openapi/openapi.json is not what the code describes; rewrite it:\n\n    {REWRITE}\n"
    );
    let served = app.get("/openapi.json", 200).await;
    assert!(
        served.text == printed,
        "/openapi.json is not what `solejob openapi` prints"
    );
    assert_eq!(served.header("content-type"), Some("application/json"));
    assert_eq!(served.at("/openapi"), "3.1.0");
    app.finish().await;
}

#[tokio::test]
async fn every_operation_is_described_in_full() {
    let app = App::start().await;
    let described = Described::by(&app).await;
    let tags = described.document.at("/tags").as_array().expect("tags").iter();
    let tags = tags.map(|tag| &tag["name"]).collect::<Vec<_>>();
    let mut ids = Vec::new();
    let mut faults = Vec::new();
    for operation in described.operations() {
        let (id, what) = (&operation.id, &operation.value);
        let mut demand = |fulfilled: bool, demand: &str| {
            if !fulfilled {
                faults.push(format!("{id}: {demand}"));
            }
        };
        demand(!ids.contains(id), "its operationId is unique");
        ids.push(id.clone());
        let summary = what["summary"].as_str().unwrap_or_default();
        demand(!summary.is_empty() && !summary.contains('\n'), "a summary of one line");
        let tag = &what["tags"];
        demand(
            tag.as_array()
                .is_some_and(|own| own.len() == 1 && tags.contains(&&own[0])),
            "one tag, which is explained",
        );
        if let Some(body) = what.get("requestBody") {
            let content = &body["content"]["application/json"];
            demand(has_example(content), "an example of its body");
            let schema = described.resolve(&content["schema"]);
            demand(schema["type"] == "object", "a body that is an object, and never null");
            let members = schema["required"].as_array().is_some_and(|members| !members.is_empty());
            demand(
                body["required"] == members,
                "a body that may be left out if and only if none of its members is required",
            );
        }
        for parameter in what["parameters"].as_array().into_iter().flatten() {
            let one = parameter["schema"]["type"].is_string() || parameter["schema"]["$ref"].is_string();
            demand(one, &format!("{} is of one type, and never null", parameter["name"]));
        }
        for (status, answer) in what["responses"].as_object().expect("responses") {
            let text = answer["description"].as_str().unwrap_or_default();
            demand(!text.is_empty(), &format!("a description of {status}"));
            for (kind, content) in answer["content"].as_object().into_iter().flatten() {
                let json = kind == "application/problem+json"
                    || kind == "application/json" && operation.path.starts_with("/v1/");
                demand(!json || has_example(content), &format!("an example of {status}"));
            }
        }
        let problems = operation.problems();
        let open = what["security"] == json!([{}]);
        let (path, body) = (operation.path.as_str(), what.get("requestBody").is_some());
        let all = [
            ("unauthorized", !open),
            ("forbidden", path.starts_with("/v1/")),
            ("internal", path.starts_with("/v1/")),
            ("store_unavailable", !open),
            ("job_not_found", path.contains("{job_id}")),
            ("invalid_json", body),
            ("unsupported_media_type", body),
        ];
        for (code, _) in all.into_iter().filter(|(_, wanted)| *wanted) {
            demand(
                problems.contains(&code.to_owned()),
                &format!("the problem {code} is declared"),
            );
        }
    }
    assert!(ids.len() >= 14, "operations are missing: {ids:?}");
    assert!(faults.is_empty(), "not described:\n{}", faults.join("\n"));
    app.finish().await;
}

/// Of two types with one name the document would show one, for both.
#[test]
fn no_two_types_share_a_name() {
    let name = regex::Regex::new(r"schema\((?:[^)]*, )?as = (\w+)").unwrap();
    let mut seen = std::collections::BTreeMap::new();
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/http")).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for found in name.captures_iter(&text) {
            let before = seen.insert(found[1].to_owned(), path.clone());
            assert_eq!(before, None, "{} is also named in {}", &found[1], path.display());
        }
    }
    assert!(seen.len() > 30, "{seen:?}");
}

/// A schema that allows no members but its own cannot be a part of a larger one.
#[tokio::test]
async fn no_closed_schema_is_part_of_another() {
    let app = App::start().await;
    let described = Described::by(&app).await;
    for (name, schema) in described.document.at("/components/schemas").as_object().unwrap() {
        for part in schema["allOf"].as_array().into_iter().flatten() {
            let part = described.resolve(part);
            assert_ne!(part["additionalProperties"], false, "{name} forbids what it has");
        }
    }
    app.finish().await;
}

fn has_example(content: &Value) -> bool {
    let several = content["examples"]
        .as_object()
        .is_some_and(|examples| !examples.is_empty());
    content.get("example").is_some() || several
}

/// Sends the described example of a request and compares the answer with the described one.
async fn sent(described: &Described, client: &Client, id: &str, path: &str, status: u16) -> String {
    let operation = described.operation(id);
    let example = operation.value["requestBody"]["content"]["application/json"].get("example");
    let answer = match (operation.method.as_str(), example) {
        ("GET", _) => client.get(path, status).await,
        ("DELETE", _) => client.delete(path, status).await,
        (_, Some(body)) => client.post(path, body, status).await,
        (_, None) => panic!("{id} has no example of a body"),
    };
    described.check(id, &answer);
    let shown = &operation.value["responses"][status.to_string()]["content"]["application/json"]["example"];
    let difference = described::difference(shown, answer.at(""));
    assert_eq!(
        difference, None,
        "{id}: the example of {status} is not like the answer: {}",
        answer.text
    );
    answer.at("/job_id").as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn the_examples_work() {
    let app = App::start().await;
    let described = Described::by(&app).await;
    let sent = async |id: &str, path: &str, status| sent(&described, &app, id, path, status).await;
    sent("preview", "/v1/jobs/preview", 200).await;
    let id = sent("dispatch", "/v1/jobs", 201).await;
    assert_eq!(sent("dispatch", "/v1/jobs", 200).await, id);
    sent("getKey", "/v1/keys?name=place-order&window_key=req-1", 200).await;
    sent("resetKey", "/v1/keys/reset", 200).await;
    sent("cancelJob", &format!("/v1/jobs/{id}/cancel"), 200).await;
    sent("deleteJob", &format!("/v1/jobs/{id}"), 200).await;
    sent("dispatchBatch", "/v1/jobs/batch", 200).await;

    let keys = json!({"active_key": "order:42", "window_key": "req-1", "window": "24h"});
    let full = json!({
        "name": "whole-order", "payload": {"order": 42}, "metadata": {"customer": "7"},
        "resource_keys": ["account:42"], "timeout": "5m", "uniqueness": keys,
    });
    let job = app.post("/v1/jobs", &full, 201).await;
    sent("listJobs", "/v1/jobs?limit=1", 200).await;
    sent("getJob", &format!("/v1/jobs/{}", job.job_id()), 200).await;
    for (id, path) in [("health", "/healthz"), ("ready", "/readyz")] {
        described.check(id, &app.get(path, 200).await);
    }
    app.finish().await;
}
