//! What a worker does, in few words.

use serde_json::{Value, json};

use super::{Answer, Call, Client};

/// A job that a worker has, with the right to it.
#[derive(Clone, Debug)]
pub(crate) struct Leased {
    pub(crate) id: String,
    pub(crate) token: String,
    pub(crate) attempt: i64,
    pub(crate) job: Value,
}

/// The jobs in the answer to a reserve.
pub(crate) fn leased(answer: &Answer) -> Vec<Leased> {
    let jobs = answer.at("/jobs").as_array().expect("a list of jobs");
    let one = |job: &Value| Leased {
        id: job["job_id"].as_str().expect("an id").to_owned(),
        token: job["lease"]["token"].as_str().expect("a token").to_owned(),
        attempt: job["attempt"].as_i64().expect("a number"),
        job: job.clone(),
    };
    jobs.iter().map(one).collect()
}

impl Client {
    pub(crate) async fn reserve(&self, wish: Value) -> Vec<Leased> {
        leased(&self.post("/v1/worker/reserve", &wish, 200).await)
    }

    /// A call with the job's token, whatever it is answered with.
    pub(crate) async fn work(&self, job: &Leased, call: &str, more: Value) -> Answer {
        let mut body = json!({"lease_token": job.token});
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        let path = format!("/v1/worker/{}/{call}", job.id);
        self.post(&path, &body, [200, 404, 409]).await
    }

    /// The same over a connection that may be cut by the end of the server; `None` then.
    pub(crate) async fn try_post(&self, path: &str, body: &Value) -> Option<Answer> {
        let answer = self.send(Call::json(path, body.to_string())).await.ok()?;
        (answer.status < 500).then_some(answer)
    }
}
