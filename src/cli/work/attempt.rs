//! One job in the hands of the worker, from its start to the report of its end.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cli::parent;
use crate::cli::work::lease::{Heart, is_lost};
use crate::cli::work::outcome::{self, Report};
use crate::cli::work::process::Process;
use crate::client::{Client, Document, Error, Failure, Reserved};
use crate::duration::Millis;

/// How long a job may take to be given back when the worker is in a hurry.
pub(super) const RELEASE_WITHIN: Duration = Duration::from_secs(5);

const CANCELLED: &str = "cancelled";

/// What all attempts of a worker share.
pub(super) struct Setting {
    pub(super) client: Client,
    pub(super) command: Vec<OsString>,
    pub(super) url: String,
    pub(super) token: Option<String>,
    pub(super) lease: Millis,
    /// Between SIGTERM and SIGKILL.
    pub(super) grace: Duration,
    pub(super) no_retry_status: u8,
    /// Cancelled when commands are to be killed and their jobs given back.
    pub(super) kill: CancellationToken,
}

/// Why a command was stopped; a later reason wins over an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stopped {
    Cancelled,
    Killed,
    Lost,
}

enum End {
    Succeed(Box<serde_json::value::RawValue>),
    Fail {
        error: Failure,
        retry: bool,
    },
    Release,
    /// The job is no longer ours: nothing is said about it.
    Silence,
}

/// Runs the command for the job. An error is one of the command itself, which no job can run.
pub(super) async fn run(setting: Arc<Setting>, job: Reserved, received: Instant) -> io::Result<()> {
    let job = Arc::new(job);
    // The server counted from an earlier instant.
    let until = received + Duration::from_millis(setting.lease.0);
    let started = tokio::select! {
        started = tokio::time::timeout_at(until, setting.client.start(&job, until)) => started,
        () = setting.kill.cancelled() => return release(&setting, &job).await,
    };
    let error = match started {
        Ok(Ok(known)) if known.cancel_requested => {
            end(&setting, &job, None, until, cancelled()).await;
            return Ok(());
        }
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("the server did not answer".into()),
    };
    if let Some(error) = error {
        tracing::warn!(
            job = job.job_id,
            error,
            "the job was not started, and the command is not run"
        );
        return Ok(());
    }
    tracing::info!(job = job.job_id, name = job.name, attempt = job.attempt, "runs");
    let mut heart = Heart::start(setting.client.clone(), job.clone(), setting.lease, until);
    let process = Process::start(&setting.command, &environment(&setting, &job), job.payload.get());
    let outcome = match process {
        Ok(process) => conduct(&setting, process, &mut heart).await,
        Err(error) if error.kind() == io::ErrorKind::ArgumentListTooLong => unstartable(&error, false),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            release(&setting, &job).await?;
            return Err(error);
        }
        Err(error) => unstartable(&error, true),
    };
    end(&setting, &job, Some(&heart), until, outcome).await;
    Ok(())
}

/// Waits for the command, and stops it where it has to be.
async fn conduct(setting: &Setting, mut process: Process, heart: &mut Heart) -> End {
    let mut stopped = None;
    let mut kill_at = None;
    let mut hurried = false;
    let status = loop {
        let killing = async {
            match kill_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            status = process.ended() => break status,
            known = heart.news() => {
                let reason = match (known.lost, known.cancel_requested) {
                    (true, _) => Stopped::Lost,
                    (false, true) => Stopped::Cancelled,
                    (false, false) => continue,
                };
                if stopped.is_none() {
                    process.signal(Signal::TERM);
                    kill_at = Some(Instant::now() + setting.grace);
                }
                stopped = stopped.max(Some(reason));
            }
            () = setting.kill.cancelled(), if !hurried => {
                hurried = true;
                process.signal(Signal::KILL);
                stopped = stopped.max(Some(Stopped::Killed));
            }
            () = killing => {
                process.signal(Signal::KILL);
                kill_at = None;
            }
        }
    };
    if stopped.is_some() {
        // What the command has started may have outlived it.
        process.signal(Signal::KILL);
    }
    let (stdout, stderr) = process.written().await;
    match (stopped, status) {
        (Some(Stopped::Lost), _) => End::Silence,
        (Some(Stopped::Killed), _) => End::Release,
        (Some(Stopped::Cancelled), _) => cancelled(),
        (None, Ok(status)) => match outcome::report(status, &stdout, &stderr, setting.no_retry_status) {
            Report::Succeed(result) => End::Succeed(result),
            Report::Fail { error, retry } => End::Fail { error, retry },
        },
        (None, Err(error)) => unstartable(&error, true),
    }
}

fn cancelled() -> End {
    let error = Failure {
        message: "the job was cancelled, and the command was stopped".into(),
        kind: CANCELLED,
        details: serde_json::Value::Null,
    };
    End::Fail { error, retry: false }
}

fn unstartable(error: &io::Error, retry: bool) -> End {
    let error = Failure {
        message: format!("the command could not be run: {error}"),
        kind: "exec",
        details: serde_json::Value::Null,
    };
    End::Fail { error, retry }
}

fn environment(setting: &Setting, job: &Reserved) -> Vec<(&'static str, String)> {
    let mut variables = vec![
        ("SOLEJOB_URL", setting.url.clone()),
        (parent::JOB_ID, job.job_id.clone()),
        ("SOLEJOB_JOB_NAME", job.name.clone()),
        ("SOLEJOB_QUEUE", job.queue.clone()),
        (parent::ATTEMPT, job.attempt.to_string()),
        ("SOLEJOB_MAX_ATTEMPTS", job.max_attempts.to_string()),
        ("SOLEJOB_METADATA", job.metadata.get().to_owned()),
    ];
    variables.extend(setting.token.clone().map(|token| ("SOLEJOB_TOKEN", token)));
    variables
}

/// Gives the job back without having run it to its end.
pub(super) async fn release(setting: &Setting, job: &Reserved) -> io::Result<()> {
    let until = Instant::now() + RELEASE_WITHIN;
    match tokio::time::timeout_at(until, setting.client.release(job, until)).await {
        Ok(Ok(_)) => tracing::info!(job = job.job_id, "given back"),
        Ok(Err(error)) => tracing::warn!(job = job.job_id, %error, "not given back: its lease has to run out"),
        Err(_) => tracing::warn!(job = job.job_id, "not given back in time: its lease has to run out"),
    }
    Ok(())
}

/// Tells the server how the attempt ended, for as long as it could still count.
async fn end(setting: &Setting, job: &Reserved, heart: Option<&Heart>, until: Instant, mut end: End) {
    let until = || heart.map_or(until, |heart| heart.known().until);
    let hurried = async {
        setting.kill.cancelled().await;
        tokio::time::sleep(RELEASE_WITHIN).await;
    };
    tokio::pin!(hurried);
    loop {
        let attempt = tell(setting, job, &end, until());
        let told = tokio::select! {
            told = tokio::time::timeout_at(until(), attempt) => told,
            () = &mut hurried => {
                tracing::warn!(job = job.job_id, "its end was not reported in time: its lease has to run out");
                return;
            }
        };
        match told {
            Ok(Ok(())) => return,
            Ok(Err(error)) if is_lost(&error) => {
                tracing::warn!(job = job.job_id, "the lease was lost before the end could be reported");
                return;
            }
            Ok(Err(error)) if error.is_unavailable() && Instant::now() < until() => {
                tracing::warn!(job = job.job_id, %error, "the end is not reported yet");
                // Not at once: a server in trouble is not helped by that.
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Err(_) | Ok(Err(Error::Unreachable { .. } | Error::Lost(_))) if Instant::now() >= until() => {
                tracing::warn!(job = job.job_id, "the lease is over before the end could be reported");
                return;
            }
            Err(_) => {}
            Ok(Err(error)) => {
                tracing::warn!(job = job.job_id, %error, "the server refuses the report");
                end = match end {
                    End::Succeed(_) => End::Fail {
                        error: Failure {
                            message: format!(
                                "the command exited with status 0, but the server refused the result: {error}"
                            ),
                            kind: "result_refused",
                            details: serde_json::json!({ "status": 0 }),
                        },
                        retry: false,
                    },
                    End::Fail { .. } => End::Release,
                    End::Release | End::Silence => return,
                };
            }
        }
    }
}

async fn tell(setting: &Setting, job: &Reserved, end: &End, until: Instant) -> Result<(), Error> {
    let client = &setting.client;
    let answer: Result<Document, Error> = match end {
        End::Succeed(result) => client.succeed(job, result, until).await,
        End::Fail { error, retry } => client.fail(job, error, *retry, until).await,
        End::Release => client.release(job, until).await,
        End::Silence => return Ok(()),
    };
    let answer = answer?;
    #[derive(serde::Deserialize)]
    struct State {
        state: String,
    }
    let state = answer
        .read::<State>()
        .map_or_else(|_| "told".into(), |State { state }| state);
    match end {
        End::Fail { error, .. } if error.kind != CANCELLED => {
            tracing::warn!(job = job.job_id, state, error = error.message, "failed")
        }
        _ => tracing::info!(job = job.job_id, state, "ended"),
    }
    Ok(())
}
