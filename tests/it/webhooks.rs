//! The main job on real input: GitHub's example deliveries, as a receiver of webhooks would dispatch
//! them. `scripts/test-webhooks` fetches them and runs this.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::support::{Answer, App, Call};

#[derive(Deserialize)]
struct Event {
    name: String,
    examples: Vec<Box<RawValue>>,
}

/// One delivery: what a receiver knows of it.
struct Delivery {
    /// One job name for each edition of the product and event.
    job: String,
    id: String,
    payload: Box<RawValue>,
}

impl Delivery {
    fn body(&self, payload: &str) -> String {
        let (job, id) = (json!(self.job), json!(self.id));
        format!(r#"{{"name":{job},"uniqueness":{{"window_key":{id},"window":"7d"}},"payload":{payload}}}"#)
    }

    /// The same delivery with one more member.
    fn changed(&self) -> String {
        let members = self
            .payload
            .get()
            .trim_start()
            .strip_prefix('{')
            .expect("a payload of GitHub's is an object");
        let comma = if members.trim_start().starts_with('}') { "" } else { "," };
        format!(r#"{{"changed_by_the_test":true{comma}{members}"#)
    }
}

/// Every example of every edition in the unpacked package.
fn deliveries() -> Vec<Delivery> {
    let package = std::env::var_os("WEBHOOK_EXAMPLES").map(PathBuf::from);
    let package = package.expect("WEBHOOK_EXAMPLES names the unpacked package: run scripts/test-webhooks");
    let mut found = Vec::new();
    for edition in std::fs::read_dir(&package).expect("the unpacked package") {
        let edition = edition.expect("a readable folder").path();
        let index = edition.join("index.json");
        if !index.is_file() {
            continue;
        }
        let edition = edition
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name in ASCII")
            .to_owned();
        let text = std::fs::read_to_string(index).expect("the examples");
        let events = serde_json::from_str::<Vec<Event>>(&text).expect("a list of events");
        for event in events {
            for (index, payload) in event.examples.into_iter().enumerate() {
                let (job, id) = (format!("{edition}:{}", event.name), format!("{}-{index}", event.name));
                found.push(Delivery { job, id, payload });
            }
        }
    }
    found
}

async fn dispatch(app: &App, body: String) -> Answer {
    app.send(Call::json("/v1/jobs", body)).await.expect("an answer")
}

/// The text of the payload in an answer, as it stands there.
fn payload_text(job: &Answer) -> String {
    #[derive(Deserialize)]
    struct Job<'a> {
        #[serde(borrow)]
        payload: &'a RawValue,
    }
    serde_json::from_str::<Job>(&job.text)
        .expect("a job")
        .payload
        .get()
        .to_owned()
}

#[tokio::test]
#[ignore = "needs the npm package @octokit/webhooks-examples: run scripts/test-webhooks"]
async fn webhooks_are_dispatched_once() {
    let deliveries = deliveries();
    assert!(
        deliveries.len() > 500,
        "only {} example payloads: this is not the whole package",
        deliveries.len()
    );
    let app = App::start().await;
    let mut jobs = Vec::new();
    for delivery in &deliveries {
        let answer = dispatch(&app, delivery.body(delivery.payload.get())).await;
        assert_eq!(
            (answer.status, answer.str("/disposition")),
            (201, "created"),
            "{}: {}",
            delivery.id,
            answer.text
        );
        jobs.push(answer.job_id().to_owned());
    }
    for (delivery, job) in deliveries.iter().zip(&jobs) {
        let again = dispatch(&app, delivery.body(delivery.payload.get())).await;
        assert_eq!(
            (again.status, again.str("/disposition")),
            (200, "reused"),
            "{}: {}",
            delivery.id,
            again.text
        );
        assert_eq!(
            (again.str("/duplicate_match"), again.job_id()),
            ("window", job.as_str())
        );

        let changed = dispatch(&app, delivery.body(&delivery.changed())).await;
        changed.assert_problem(409, &["uniqueness_conflict"]);
        assert_eq!(changed.at("/conflicting_job_id"), &json!(job));
        assert_eq!(changed.at("/differs"), &json!(["payload"]));

        let stored = app.get(&format!("/v1/jobs/{job}"), 200).await;
        assert_eq!(
            payload_text(&stored),
            delivery.payload.get(),
            "{}: not to the letter",
            delivery.id
        );
    }
    let count: i64 = sqlx::query_scalar("select count(*) from jobs")
        .fetch_one(app.sql())
        .await
        .unwrap();
    assert_eq!(count, deliveries.len() as i64);
    let size = deliveries
        .iter()
        .map(|delivery| delivery.payload.get().len())
        .sum::<usize>()
        / 1024;
    println!(
        "{count} example payloads ({size} KiB): each created once, reused when sent again, refused when changed, \
         given back to the letter"
    );
    app.finish().await;
}
