//! `solejob keys`: who holds a key, and freeing it.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use crate::cli::Error;
use crate::cli::parent::{Parent, ParentArgs};
use crate::cli::remote::{EXIT_CODES, NOT_FOUND, Output, Remote, print};
use crate::client::Document;

#[derive(clap::Subcommand)]
#[command(after_help = EXIT_CODES)]
pub(super) enum Keys {
    /// Say who holds a key: exits with 4 if nobody does
    #[command(after_help = EXIT_CODES)]
    Get {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        output: Output,
        /// The job name that the key belongs to
        #[arg(long)]
        name: String,
        #[command(flatten)]
        key: Key,
        #[command(flatten)]
        scope: ScopeArgs,
    },
    /// Free a window key or idempotency key now, so that the next dispatch with it creates a job
    #[command(after_help = EXIT_CODES)]
    Reset {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        output: Output,
        /// The job name that the key belongs to
        #[arg(long)]
        name: String,
        #[command(flatten)]
        key: WindowKey,
        #[command(flatten)]
        scope: ScopeArgs,
        /// Free it only if this job holds it
        #[arg(long)]
        job_id: Option<String>,
    },
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct Key {
    /// An active key
    #[arg(long)]
    active_key: Option<String>,
    /// A window key
    #[arg(long)]
    window_key: Option<String>,
    /// An idempotency key: a window key by another spelling
    #[arg(long)]
    idempotency_key: Option<String>,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct WindowKey {
    /// The window key
    #[arg(long)]
    window_key: Option<String>,
    /// The idempotency key: a window key by another spelling
    #[arg(long)]
    idempotency_key: Option<String>,
}

#[derive(clap::Args)]
pub(super) struct ScopeArgs {
    /// Within what the key is held: run (needs a parent), attempt (needs a parent and its attempt) or global
    #[arg(long, value_name = "SCOPE", default_value = "global")]
    scope: String,
    #[command(flatten)]
    parent: ParentArgs,
}

impl ScopeArgs {
    /// The scope, and the parent that it lies within.
    fn read(self) -> Result<(String, Option<Parent>), Error> {
        let ScopeArgs { scope, parent } = self;
        let parent = if scope == "global" { None } else { parent.parent()? };
        Ok((scope, parent))
    }
}

#[derive(Deserialize)]
struct Holder {
    held: bool,
    job_id: Option<String>,
    state: Option<String>,
    since: Option<String>,
    expires_at: Option<String>,
}

#[derive(Deserialize)]
struct Release {
    released: bool,
    job_id: Option<String>,
}

#[derive(Serialize)]
struct Reset {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    window_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<String>,
    scope: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<Parent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<String>,
}

impl Keys {
    pub(super) async fn run(self) -> Result<ExitCode, Error> {
        match self {
            Keys::Get {
                remote,
                output,
                name,
                key:
                    Key {
                        active_key,
                        window_key,
                        idempotency_key,
                    },
                scope,
            } => {
                let (scope, parent) = scope.read()?;
                let mut query = vec![("name".to_owned(), name)];
                if scope != "global" {
                    query.push(("scope".into(), scope));
                }
                if let Some(parent) = parent {
                    query.push(("parent_job_id".into(), parent.job_id().into()));
                    query.extend(parent.attempt().map(|n| ("parent_attempt".into(), n.to_string())));
                }
                query.extend(idempotency_key.map(|key| ("idempotency_key".into(), key)));
                query.extend(active_key.map(|key| ("active_key".into(), key)));
                query.extend(window_key.map(|key| ("window_key".into(), key)));
                let answer = remote.client()?.key(&query).await;
                let holder = answer.as_ref().ok().map(Document::read::<Holder>).transpose()?;
                output.show(answer, holder_line)?;
                Ok(match holder {
                    Some(Holder { held: false, .. }) => NOT_FOUND.into(),
                    _ => ExitCode::SUCCESS,
                })
            }
            Keys::Reset {
                remote,
                output,
                name,
                key: WindowKey {
                    window_key,
                    idempotency_key,
                },
                scope,
                job_id,
            } => {
                let (scope, parent) = scope.read()?;
                let body = Reset {
                    name,
                    window_key,
                    idempotency_key,
                    scope,
                    parent,
                    job_id,
                };
                let body = serde_json::to_string(&body).map_err(|error| Error::Usage(error.to_string()))?;
                let answer = remote.client()?.reset_key(body).await;
                output.show(answer, |document| {
                    let Release { released, job_id } = document.read()?;
                    match job_id.filter(|_| released) {
                        Some(job) => print(&format!("freed; it led to job {job}")),
                        None => print("nobody held it"),
                    }
                })?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

fn holder_line(document: &Document) -> Result<(), Error> {
    let Holder {
        held,
        job_id,
        state,
        since,
        expires_at,
    } = document.read()?;
    if !held {
        return print("nobody holds it");
    }
    let job = job_id.unwrap_or_default();
    let state = state.unwrap_or("no longer stored".into());
    let since = since.unwrap_or_default();
    let until = expires_at.map_or("while the job is live".into(), |at| format!("until {at}"));
    print(&format!("held by job {job} ({state}), since {since}, {until}"))
}
