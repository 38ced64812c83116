//! `solejob work`: runs a command for each job of a queue, so that a shell script is a worker.

mod attempt;
mod lease;
mod outcome;
mod process;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cli::Error;
use crate::cli::remote::{Remote, span};
use crate::client::{self, Reserve, Reserved};
use crate::duration::{self, Millis};
use attempt::{RELEASE_WITHIN, Setting};

/// How long the server holds a reservation open when there is no job.
const POLL: Millis = Millis(20_000);
/// Before a server that could not give out jobs is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// What a reservation that is under way when the worker stops has left to arrive.
const LAST_ANSWER: Duration = Duration::from_millis(500);

const DETAILS: &str = "\
The command runs once for each job. It gets
  - the payload on standard input, to the letter;
  - SOLEJOB_JOB_ID, SOLEJOB_JOB_NAME, SOLEJOB_QUEUE, SOLEJOB_ATTEMPT, SOLEJOB_MAX_ATTEMPTS and SOLEJOB_METADATA (JSON);
  - SOLEJOB_URL and SOLEJOB_TOKEN, so that it can dispatch jobs itself: `solejob dispatch` in it names the job as their parent.

How it ends is how the job ends:
  - status 0: succeeded. What it wrote to standard output is the result: as JSON if it is JSON, else as a string, null if
    it is empty. More than 1 MiB cannot be kept: the job fails, without a retry.
  - status 100, or what --no-retry-status says: failed, without a retry. (100 is how programs of mail systems have long
    said that trying again is no use; the shell and sysexits.h use it for nothing.)
  - any other status, or a signal: failed, and tried again as the job's retry settings say. The end of standard error, at
    most 8 KiB, is the error's message.

While it runs, heartbeats keep the lease. It is stopped (SIGTERM to its process group, and SIGKILL after the grace) when
the job is cancelled, or when the lease is lost: then another worker may already run the job. When the server is away, it
runs on until the lease is surely over.

SIGTERM, SIGINT or SIGHUP to the worker: it takes no more jobs, and leaves when the commands have ended. A second one: it
kills the commands and gives their jobs back. If the worker itself is killed outright, its commands run on without it,
and their jobs are tried again once their leases are over.

Exit codes: 0 stopped by a signal; 1 failed; 2 wrong usage, or the command cannot be run; 6 the token is missing, not
valid, or lacks the right `work`.";

#[derive(clap::Args)]
#[command(after_long_help = DETAILS, after_help = "How the command learns of its job, and the job of its end: --help")]
pub(crate) struct Work {
    #[command(flatten)]
    remote: Remote,
    /// A queue to take jobs from; may be given several times
    #[arg(
        long = "queue",
        env = "SOLEJOB_QUEUES",
        value_delimiter = ',',
        default_value = "default"
    )]
    queues: Vec<String>,
    /// Take only jobs of this name; may be given several times
    #[arg(long = "name")]
    names: Vec<String>,
    /// How many commands run at once
    #[arg(long, env = "SOLEJOB_CONCURRENCY", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    concurrency: u16,
    /// How long a job stays this worker's without a heartbeat: after a crash it takes so long until it is tried again
    #[arg(long, env = "SOLEJOB_LEASE", default_value = "30s", value_parser = duration::parse)]
    lease: Millis,
    /// What this worker is called in the history of a job [default: HOST:PID]
    #[arg(long, env = "SOLEJOB_WORKER")]
    worker: Option<String>,
    /// How long a command that has to stop has from SIGTERM to SIGKILL
    #[arg(long, env = "SOLEJOB_GRACE", default_value = "10s", value_parser = span)]
    grace: Duration,
    /// The exit status of a command that says: failed, and trying again is no use
    #[arg(long, value_name = "STATUS", default_value_t = 100, value_parser = clap::value_parser!(u8).range(1..))]
    no_retry_status: u8,
    /// The command, with its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

struct Worker {
    setting: Arc<Setting>,
    queues: Vec<String>,
    names: Vec<String>,
    name: String,
    concurrency: usize,
    /// Cancelled when no more jobs are to be taken.
    stop: CancellationToken,
    running: JoinSet<io::Result<()>>,
}

impl Work {
    pub(super) async fn run(self) -> Result<ExitCode, Error> {
        let client = self.remote.client()?;
        let Work {
            remote,
            queues,
            names,
            concurrency,
            lease,
            worker,
            grace,
            no_retry_status,
            command,
        } = self;
        let name = worker.unwrap_or_else(|| {
            let host = rustix::system::uname();
            format!("{}:{}", host.nodename().to_string_lossy(), std::process::id())
        });
        let (stop, kill) = signals()?;
        tracing::info!(
            worker = name,
            queues = queues.join(","),
            concurrency,
            "takes jobs from {}",
            remote.url
        );
        let worker = Worker {
            setting: Arc::new(Setting {
                client,
                command,
                url: remote.url,
                token: remote.token,
                lease,
                grace,
                no_retry_status,
                kill,
            }),
            queues,
            names,
            name,
            concurrency: concurrency.into(),
            stop,
            running: JoinSet::new(),
        };
        worker.run().await?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The first is cancelled by the first signal to stop, the second by the second.
fn signals() -> io::Result<(CancellationToken, CancellationToken)> {
    let (stop, kill) = (CancellationToken::new(), CancellationToken::new());
    let tokens = (stop.clone(), kill.clone());
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hang_up.recv() => {}
            }
            if stop.is_cancelled() {
                tracing::warn!("a second signal: kills the commands and gives their jobs back");
                kill.cancel();
            } else {
                tracing::info!("takes no more jobs, and leaves when its commands have ended");
                stop.cancel();
            }
        }
    });
    Ok(tokens)
}

impl Worker {
    async fn run(mut self) -> Result<(), Error> {
        let outcome = self.take_jobs().await;
        while let Some(ended) = self.running.join_next().await {
            let _told_already = self.check(ended);
        }
        outcome
    }

    /// Takes jobs and runs them, never more than there is room for, until it has to stop.
    async fn take_jobs(&mut self) -> Result<(), Error> {
        let mut reserve_id = fresh_id();
        let mut away = false;
        loop {
            while let Some(ended) = self.running.try_join_next() {
                self.check(ended)?;
            }
            let room = self.concurrency - self.running.len();
            if room == 0 {
                tokio::select! {
                    Some(ended) = self.running.join_next() => self.check(ended)?,
                    () = self.stop.cancelled() => return Ok(()),
                }
                continue;
            }
            let answer = {
                let asked = Reserve {
                    queues: &self.queues,
                    names: &self.names,
                    worker: &self.name,
                    max_jobs: room,
                    lease: self.setting.lease,
                    wait: POLL,
                    reserve_id: &reserve_id,
                };
                let reserving = self.setting.client.reserve(&asked);
                tokio::pin!(reserving);
                tokio::select! {
                    answer = &mut reserving => answer,
                    () = self.stop.cancelled() => {
                        // An answer that is on its way is waited for: its jobs would be nobody's for a whole lease.
                        if let Ok(Ok(jobs)) = tokio::time::timeout(LAST_ANSWER, reserving).await {
                            self.give_back(jobs).await;
                        }
                        return Ok(());
                    }
                }
            };
            match answer {
                Ok(jobs) => {
                    if away {
                        tracing::info!("the server is back");
                    }
                    away = false;
                    let received = Instant::now();
                    reserve_id = fresh_id();
                    for job in jobs {
                        self.running.spawn(attempt::run(self.setting.clone(), job, received));
                    }
                }
                Err(client::Error::Problem(problem))
                    if (400..500).contains(&problem.status) && problem.status != 429 =>
                {
                    return Err(client::Error::Problem(problem).into());
                }
                Err(error) => {
                    // The id stays: if the server has given out jobs, the repeat gets them.
                    tracing::warn!(%error, "the server gives out no jobs: trying again");
                    away = true;
                    tokio::select! {
                        () = tokio::time::sleep(ASK_AGAIN) => {}
                        () = self.stop.cancelled() => return Ok(()),
                    }
                }
            }
        }
    }

    fn check(&self, ended: Result<io::Result<()>, tokio::task::JoinError>) -> Result<(), Error> {
        match ended {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                let program = self
                    .setting
                    .command
                    .first()
                    .map(|program| program.display().to_string());
                Err(Error::Usage(format!("{}: {error}", program.unwrap_or_default())))
            }
            Err(error) => Err(Error::Io(io::Error::other(error))),
        }
    }

    async fn give_back(&self, jobs: Vec<Reserved>) {
        let mut releases = JoinSet::new();
        for job in jobs {
            let setting = self.setting.clone();
            releases.spawn(async move { attempt::release(&setting, &job).await });
        }
        let _in_time = tokio::time::timeout(RELEASE_WITHIN, releases.join_all()).await;
    }
}

fn fresh_id() -> String {
    uuid::Uuid::new_v4().to_string()
}
