//! The worker's side: jobs are reserved, kept by heartbeats, and ended. All of it is safe to repeat: the lease token and
//! the reservation's id say which one is meant.

use std::fmt;
use std::time::Duration;

use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::client::{ANSWER_WITHIN, Call, Client, Document, Error, Repeat, escaped};
use crate::duration::Millis;

/// A report is given that long to be answered, however little time is left.
const REPORT_WITHIN_LEAST: Duration = Duration::from_secs(1);

/// What a worker asks for.
pub struct Reserve<'a> {
    pub queues: &'a [String],
    /// Only jobs of these names, if there are any.
    pub names: &'a [String],
    pub worker: &'a str,
    pub max_jobs: usize,
    pub lease: Millis,
    /// How long the server holds the answer when there is no job.
    pub wait: Millis,
    /// Makes the request safe to repeat: the same id gives the same jobs.
    pub reserve_id: &'a str,
}

/// A job that this worker may run.
#[derive(Deserialize, Debug)]
pub struct Reserved {
    pub job_id: String,
    pub name: String,
    pub queue: String,
    pub attempt: i64,
    pub max_attempts: i64,
    /// To the letter.
    pub payload: Box<RawValue>,
    pub metadata: Box<RawValue>,
    pub timeout: Option<String>,
    pub lease: Lease,
}

#[derive(Deserialize, Debug)]
pub struct Lease {
    pub token: LeaseToken,
}

/// The proof of a lease. It does not show itself.
#[derive(Clone, Serialize, Deserialize)]
pub struct LeaseToken(String);

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseToken")
    }
}

/// What a heartbeat is answered.
#[derive(Deserialize, Debug)]
pub struct Heartbeat {
    #[serde(default)]
    pub cancel_requested: bool,
}

/// Why an attempt failed.
#[derive(Clone, Serialize, Debug)]
pub struct Failure {
    pub message: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub details: serde_json::Value,
}

#[derive(Serialize)]
struct ReserveBody<'a> {
    queues: &'a [String],
    names: Option<&'a [String]>,
    worker: &'a str,
    max_jobs: usize,
    lease: String,
    wait: String,
    reserve_id: &'a str,
}

#[derive(Deserialize)]
struct ReservedBody {
    jobs: Vec<Reserved>,
}

impl Client {
    pub async fn reserve(&self, asked: &Reserve<'_>) -> Result<Vec<Reserved>, Error> {
        let Reserve {
            queues,
            names,
            worker,
            max_jobs,
            lease,
            wait,
            reserve_id,
        } = *asked;
        let body = ReserveBody {
            queues,
            names: (!names.is_empty()).then_some(names),
            worker,
            max_jobs,
            lease: lease.to_string(),
            wait: wait.to_string(),
            reserve_id,
        };
        let mut call = Call::new(Method::POST, "/v1/worker/reserve", Repeat::Safe).body(text(&body));
        call.wait = Duration::from_millis(wait.0);
        let ReservedBody { jobs } = self.call(call).await?.read()?;
        Ok(jobs)
    }

    /// Says that the work begins. Tried again until `until`, as everything about a lease is.
    pub async fn start(&self, job: &Reserved, until: Instant) -> Result<Heartbeat, Error> {
        #[derive(Serialize)]
        struct Body<'a> {
            lease_token: &'a LeaseToken,
        }
        let lease_token = &job.lease.token;
        self.report(job, "start", &Body { lease_token }, until).await?.read()
    }

    /// Keeps the lease for that much longer.
    pub async fn heartbeat(&self, job: &Reserved, lease: Millis, until: Instant) -> Result<Heartbeat, Error> {
        #[derive(Serialize)]
        struct Body<'a> {
            lease_token: &'a LeaseToken,
            lease: String,
        }
        let body = Body {
            lease_token: &job.lease.token,
            lease: lease.to_string(),
        };
        self.report(job, "heartbeat", &body, until).await?.read()
    }

    pub async fn succeed(&self, job: &Reserved, result: &RawValue, until: Instant) -> Result<Document, Error> {
        #[derive(Serialize)]
        struct Body<'a> {
            lease_token: &'a LeaseToken,
            result: &'a RawValue,
        }
        let lease_token = &job.lease.token;
        self.report(job, "succeed", &Body { lease_token, result }, until).await
    }

    /// With `retry: false` the job fails at once; else as its settings say.
    pub async fn fail(&self, job: &Reserved, error: &Failure, retry: bool, until: Instant) -> Result<Document, Error> {
        #[derive(Serialize)]
        struct Body<'a> {
            lease_token: &'a LeaseToken,
            error: &'a Failure,
            retry: bool,
        }
        let body = Body {
            lease_token: &job.lease.token,
            error,
            retry,
        };
        self.report(job, "fail", &body, until).await
    }

    /// Gives the job and the attempt back.
    pub async fn release(&self, job: &Reserved, until: Instant) -> Result<Document, Error> {
        #[derive(Serialize)]
        struct Body<'a> {
            lease_token: &'a LeaseToken,
        }
        let lease_token = &job.lease.token;
        self.report(job, "release", &Body { lease_token }, until).await
    }

    async fn report<B: Serialize>(
        &self,
        job: &Reserved,
        action: &str,
        body: &B,
        until: Instant,
    ) -> Result<Document, Error> {
        let path = format!("/v1/worker/{}/{action}", escaped(&job.job_id));
        let mut call = Call::new(Method::POST, path, Repeat::Safe)
            .body(text(body))
            .until(until);
        // A server that hangs must not take all the time that there is: another one may answer at once.
        let left = until.saturating_duration_since(Instant::now());
        call.answer_within = (left / 3).clamp(REPORT_WITHIN_LEAST, ANSWER_WITHIN);
        self.call(call).await
    }
}

/// These bodies hold texts, numbers and JSON that was read before: writing them cannot fail.
fn text<B: Serialize>(body: &B) -> String {
    serde_json::to_string(body).unwrap_or_default()
}
