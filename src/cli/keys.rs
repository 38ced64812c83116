//! `solejob keys`: who holds a key, and freeing it.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use crate::cli::Error;
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
    },
    /// Free a window key now, so that the next dispatch with it creates a job
    #[command(after_help = EXIT_CODES)]
    Reset {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        output: Output,
        /// The job name that the key belongs to
        #[arg(long)]
        name: String,
        /// The window key
        #[arg(long)]
        window_key: String,
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
    window_key: String,
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
                key: Key { active_key, window_key },
            } => {
                let mut query = vec![("name".to_owned(), name)];
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
                window_key,
                job_id,
            } => {
                let body = Reset {
                    name,
                    window_key,
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
