//! `solejob queues`: what waits where, and stopping it.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::Deserialize;

use crate::cli::Error;
use crate::cli::remote::{EXIT_CODES, Output, Remote, Table, print};
use crate::client::Document;

#[derive(clap::Args)]
#[command(after_help = EXIT_CODES, args_conflicts_with_subcommands = true)]
pub(super) struct Queues {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    output: Output,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Give out no jobs of a queue; dispatches to it go on
    #[command(after_help = EXIT_CODES)]
    Pause(Switch),
    /// Give out its jobs again
    #[command(after_help = EXIT_CODES)]
    Resume(Switch),
}

#[derive(clap::Args)]
struct Switch {
    /// The queue's name
    queue: String,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    output: Output,
}

#[derive(Deserialize)]
struct List {
    queues: Vec<Queue>,
}

#[derive(Deserialize)]
struct Queue {
    queue: String,
    paused: bool,
    counts: BTreeMap<String, u64>,
    oldest_pending_seconds: Option<f64>,
}

const STATES: [&str; 7] = [
    "pending",
    "reserved",
    "running",
    "retrying",
    "succeeded",
    "failed",
    "cancelled",
];

impl Queues {
    pub(super) async fn run(self) -> Result<ExitCode, Error> {
        match self.action {
            None => {
                let answer = self.remote.client()?.queues().await;
                self.output.show(answer, show)?;
            }
            Some(Action::Pause(Switch { queue, remote, output })) => {
                let answer = remote.client()?.pause(&queue).await;
                output.show(answer, |_| print(&format!("{queue}: paused")))?;
            }
            Some(Action::Resume(Switch { queue, remote, output })) => {
                let answer = remote.client()?.resume(&queue).await;
                output.show(answer, |_| print(&format!("{queue}: gives out jobs")))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn show(document: &Document) -> Result<(), Error> {
    let List { queues } = document.read()?;
    let mut head = vec!["QUEUE".to_owned(), "PAUSED".into(), "OLDEST".into()];
    head.extend(STATES.map(str::to_uppercase));
    let row = |queue: Queue| {
        let oldest = queue
            .oldest_pending_seconds
            .map_or("-".into(), |seconds| format!("{seconds:.0}s"));
        let paused = if queue.paused { "paused" } else { "-" };
        let mut row = vec![queue.queue, paused.into(), oldest];
        row.extend(STATES.map(|state| queue.counts.get(state).copied().unwrap_or_default().to_string()));
        row
    };
    let rows: Vec<_> = queues.into_iter().map(row).collect();
    Table::new(&head.iter().map(String::as_str).collect::<Vec<_>>()).print(&rows)
}
