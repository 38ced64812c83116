//! `solejob jobs`: jobs that are there.

use std::process::ExitCode;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

use crate::cli::Error;
use crate::cli::object::Object;
use crate::cli::remote::{self, EXIT_CODES, JobRow, Output, Remote, Table, pair, print, span, tell};
use crate::client::{self, Client, Document, printable};

/// The server holds an answer no longer.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(60);
/// Between questions to a server that does not hold its answers.
const ASK_AGAIN: Duration = Duration::from_millis(500);

#[derive(clap::Subcommand)]
#[command(after_help = EXIT_CODES)]
pub(super) enum Jobs {
    /// List jobs, newest first
    #[command(after_help = EXIT_CODES)]
    List {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        filter: Box<Filter>,
    },
    /// Show a job
    #[command(after_help = EXIT_CODES)]
    Get {
        #[command(flatten)]
        target: Target,
    },
    /// Cancel jobs; one that a worker has is cancelled when the worker lets go
    #[command(after_help = EXIT_CODES)]
    Cancel {
        #[command(flatten)]
        target: Target,
        /// Cancel now, whatever the worker does
        #[arg(long)]
        force: bool,
    },
    /// Make finished jobs pending again
    #[command(after_help = EXIT_CODES)]
    Retry {
        #[command(flatten)]
        target: Target,
    },
    /// Delete finished jobs
    #[command(after_help = EXIT_CODES)]
    Delete {
        #[command(flatten)]
        target: Target,
    },
    /// Wait until jobs have finished, and show them: exits with 0 if all succeeded
    #[command(after_help = EXIT_CODES)]
    Wait {
        #[command(flatten)]
        target: Target,
        /// How long to wait in all [default: as long as it takes]
        #[arg(long, value_parser = span)]
        timeout: Option<Duration>,
    },
}

#[derive(clap::Args)]
pub(super) struct Target {
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    output: Output,
    /// The job's id; more than one may be given
    #[arg(required = true)]
    job_ids: Vec<String>,
}

#[derive(clap::Args)]
pub(super) struct Filter {
    /// Only jobs of this name
    #[arg(long)]
    name: Option<String>,
    /// Only jobs of this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only jobs in this state: pending, reserved, running, retrying, succeeded, failed or cancelled
    #[arg(long)]
    state: Option<String>,
    /// Only jobs with this active key
    #[arg(long)]
    active_key: Option<String>,
    /// Only jobs with this metadata; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,
    /// Only jobs dispatched later than this instant (RFC 3339)
    #[arg(long)]
    dispatched_after: Option<String>,
    /// Only jobs dispatched earlier than this instant (RFC 3339)
    #[arg(long)]
    dispatched_before: Option<String>,
    /// Jobs of a page: 1 to 200
    #[arg(long)]
    limit: Option<u32>,
    /// Where to go on: the cursor of the page before
    #[arg(long)]
    cursor: Option<String>,
    /// Show all pages; with --json one after another, each on a line of its own
    #[arg(long)]
    all: bool,
}

#[derive(Deserialize)]
struct Page {
    jobs: Vec<JobRow>,
    next_cursor: Option<String>,
}

impl Jobs {
    pub(super) async fn run(self) -> Result<ExitCode, Error> {
        match self {
            Jobs::List { remote, output, filter } => {
                list(&remote.client()?, &output, *filter).await?;
                Ok(ExitCode::SUCCESS)
            }
            Jobs::Get { target } => target.each(async |client, job| client.job(job, None).await, show).await,
            Jobs::Cancel { target, force } => {
                let cancelled = |document: &Document| {
                    let row: JobRow = document.read()?;
                    if row.cancel_requested && !row.has_finished() {
                        return print(&format!("{}: {}; its worker is asked to stop", row.job_id, row.state));
                    }
                    state(document)
                };
                target
                    .each(async |client, job| client.cancel(job, force).await, cancelled)
                    .await
            }
            Jobs::Retry { target } => target.each(async |client, job| client.retry(job).await, state).await,
            Jobs::Delete { target } => {
                let deleted = |document: &Document| {
                    #[derive(Deserialize)]
                    struct Deleted {
                        job_id: String,
                    }
                    let Deleted { job_id } = document.read()?;
                    print(&format!("{job_id}: deleted"))
                };
                target.each(async |client, job| client.delete(job).await, deleted).await
            }
            Jobs::Wait { target, timeout } => target.wait(timeout).await,
        }
    }
}

impl Target {
    /// Does it to each job. One that fails does not keep the others from their turn; its exit code is kept.
    async fn each(
        &self,
        act: impl AsyncFn(&Client, &str) -> Result<Document, client::Error>,
        human: impl Fn(&Document) -> Result<(), Error>,
    ) -> Result<ExitCode, Error> {
        let client = self.remote.client()?;
        let mut code = 0;
        for job in &self.job_ids {
            match self.output.show(act(&client, job).await, &human) {
                Ok(_) => {}
                Err(Error::Client(error)) => {
                    tell(&format!("solejob: {}: {error}", printable(job)));
                    code = if code == 0 { remote::exit_code(&error) } else { code };
                }
                Err(error) => return Err(error),
            }
        }
        Ok(code.into())
    }

    async fn wait(&self, timeout: Option<Duration>) -> Result<ExitCode, Error> {
        let client = self.remote.client()?;
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut code = 0;
        for job in &self.job_ids {
            let waited = wait_for(&client, job, deadline).await;
            let row = waited.as_ref().ok().map(Document::read::<JobRow>).transpose()?;
            match self.output.show(waited, show) {
                Ok(_) => code = code.max(row.map_or(0, |row| row.code())),
                Err(Error::Client(error)) => {
                    tell(&format!("solejob: {}: {error}", printable(job)));
                    code = code.max(remote::exit_code(&error));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(code.into())
    }
}

/// The job once it has finished, or as it is at the deadline.
async fn wait_for(client: &Client, job: &str, deadline: Option<Instant>) -> Result<Document, client::Error> {
    loop {
        let asked_at = Instant::now();
        let left = deadline.map_or(WAIT_MAX, |deadline| deadline.saturating_duration_since(asked_at));
        let wait = Duration::from_secs(left.min(WAIT_MAX).as_secs_f64().ceil() as u64);
        let document = client.job(job, Some(wait)).await?;
        let row: JobRow = document.read()?;
        if row.has_finished() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(document);
        }
        let next = (asked_at + ASK_AGAIN).min(deadline.unwrap_or(asked_at + ASK_AGAIN));
        tokio::time::sleep_until(next).await;
    }
}

async fn list(client: &Client, output: &Output, filter: Filter) -> Result<(), Error> {
    let Filter {
        name,
        queue,
        state,
        active_key,
        metadata,
        dispatched_after,
        dispatched_before,
        limit,
        cursor,
        all,
    } = filter;
    let mut query = Vec::new();
    let mut add = |name: &str, value: Option<String>| query.extend(value.map(|value| (name.to_owned(), value)));
    add("name", name);
    add("queue", queue);
    add("state", state);
    add("active_key", active_key);
    add("dispatched_after", dispatched_after);
    add("dispatched_before", dispatched_before);
    add("limit", limit.or(all.then_some(200)).map(|limit| limit.to_string()));
    add("cursor", cursor);
    query.extend(
        metadata
            .into_iter()
            .map(|(name, value)| (format!("metadata.{name}"), value)),
    );
    let mut table = Table::new(&["ID", "NAME", "QUEUE", "STATE", "PRIORITY", "ATTEMPT", "DISPATCHED"]);
    loop {
        let answer = client.jobs(&query).await;
        let next = match &answer {
            Ok(document) => document.read::<Page>()?.next_cursor,
            Err(_) => None,
        };
        output.show(answer, |document| {
            let Page { jobs, next_cursor } = document.read()?;
            let row = |job: JobRow| {
                let attempts = format!("{}/{}", job.attempt, job.max_attempts);
                let time = job.dispatched_at;
                vec![
                    job.job_id,
                    job.name,
                    job.queue,
                    job.state,
                    job.priority.to_string(),
                    attempts,
                    time,
                ]
            };
            let rows: Vec<_> = jobs.into_iter().map(row).collect();
            table.print(&rows)?;
            if let Some(cursor) = next_cursor.filter(|_| !all) {
                tell(&format!(
                    "there are more: go on with --cursor {cursor}, or show them with --all"
                ));
            }
            Ok(())
        })?;
        match next {
            Some(cursor) if all => {
                query.retain(|(name, _)| name != "cursor");
                query.push(("cursor".into(), cursor));
            }
            _ => return Ok(()),
        }
    }
}

fn state(document: &Document) -> Result<(), Error> {
    let row: JobRow = document.read()?;
    print(&format!("{}: {}", row.job_id, row.state))
}

/// The members of a job as lines, in the server's order. JSON in it stays to the letter.
fn show(document: &Document) -> Result<(), Error> {
    let members: Object = document.read()?;
    let width = members.0.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    for (name, value) in members.0 {
        let text = value.get();
        let text = match serde_json::from_str::<String>(text) {
            // A payload that is a string is JSON, too.
            Ok(text) if !matches!(name.as_str(), "payload" | "result") => text,
            _ => text.into(),
        };
        if !matches!(text.as_str(), "null" | "[]" | "{}") || matches!(name.as_str(), "payload" | "result") {
            print(&format!("{name:<width$}  {}", printable(&text)))?;
        }
    }
    Ok(())
}
