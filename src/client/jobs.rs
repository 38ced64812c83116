//! Dispatching jobs and looking after them.

use std::time::Duration;

use hyper::Method;

use crate::client::{Call, Client, Document, Error, Repeat, escaped};

/// A path with a query.
fn query(path: &str, members: &[(String, String)]) -> String {
    let members: Vec<String> = members
        .iter()
        .map(|(name, value)| format!("{}={}", escaped(name), escaped(value)))
        .collect();
    format!("{path}?{}", members.join("&"))
}

fn of_job(job: &str, action: &str) -> String {
    format!("/v1/jobs/{}{action}", escaped(job))
}

impl Client {
    /// Asks for a job. With `wait` the answer is held until the job has finished or the time is over.
    pub async fn dispatch(&self, body: &str, wait: Option<Duration>, repeat: Repeat) -> Result<Document, Error> {
        let call = Call::new(Method::POST, "/v1/jobs", repeat);
        self.call(call.body(body).prefer_wait(wait)).await
    }

    /// What a dispatch would do.
    pub async fn preview(&self, body: &str) -> Result<Document, Error> {
        self.call(Call::new(Method::POST, "/v1/jobs/preview", Repeat::Safe).body(body))
            .await
    }

    pub async fn batch(&self, body: String, repeat: Repeat) -> Result<Document, Error> {
        self.call(Call::new(Method::POST, "/v1/jobs/batch", repeat).body(body))
            .await
    }

    pub async fn jobs(&self, filter: &[(String, String)]) -> Result<Document, Error> {
        self.call(Call::new(Method::GET, query("/v1/jobs", filter), Repeat::Safe))
            .await
    }

    /// A job; with `wait` only once it has finished, or when the time is over.
    pub async fn job(&self, job: &str, wait: Option<Duration>) -> Result<Document, Error> {
        let call = Call::new(Method::GET, of_job(job, ""), Repeat::Safe);
        self.call(call.prefer_wait(wait)).await
    }

    pub async fn cancel(&self, job: &str, force: bool) -> Result<Document, Error> {
        let body = serde_json::json!({ "force": force }).to_string();
        self.call(Call::new(Method::POST, of_job(job, "/cancel"), Repeat::Safe).body(body))
            .await
    }

    /// Makes a finished job pending again. Done twice it could give a job that failed again another start.
    pub async fn retry(&self, job: &str) -> Result<Document, Error> {
        let call = Call::new(Method::POST, of_job(job, "/retry"), Repeat::IfNothingDone);
        self.call(call.body("{}")).await
    }

    /// Deletes a finished job. A repeat would be told that there is no such job.
    pub async fn delete(&self, job: &str) -> Result<Document, Error> {
        self.call(Call::new(Method::DELETE, of_job(job, ""), Repeat::IfNothingDone))
            .await
    }

    /// Who holds a key.
    pub async fn key(&self, key: &[(String, String)]) -> Result<Document, Error> {
        self.call(Call::new(Method::GET, query("/v1/keys", key), Repeat::Safe))
            .await
    }

    /// Frees a window key. A repeat could free it from a job that came in between.
    pub async fn reset_key(&self, body: String) -> Result<Document, Error> {
        let call = Call::new(Method::POST, "/v1/keys/reset", Repeat::IfNothingDone);
        self.call(call.body(body)).await
    }

    pub async fn queues(&self) -> Result<Document, Error> {
        self.call(Call::new(Method::GET, "/v1/queues", Repeat::Safe)).await
    }

    pub async fn pause(&self, queue: &str) -> Result<Document, Error> {
        self.switch(queue, "pause").await
    }

    pub async fn resume(&self, queue: &str) -> Result<Document, Error> {
        self.switch(queue, "resume").await
    }

    async fn switch(&self, queue: &str, action: &str) -> Result<Document, Error> {
        let path = format!("/v1/queues/{}/{action}", escaped(queue));
        self.call(Call::new(Method::POST, path, Repeat::Safe).body("{}")).await
    }
}
