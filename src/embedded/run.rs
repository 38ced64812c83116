//! Runs a command with a private cluster beside it.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use super::error::{Error, failed};
use super::{Cluster, Settings};

/// Starts the cluster, runs the command with DATABASE_URL set to the database (made if need be), stops the cluster, and
/// gives back how the command ended.
///
/// SIGINT, SIGTERM and SIGHUP go on to the command, and the cluster stops after it.
pub async fn run_with(settings: &Settings, database: &str, command: &[OsString]) -> Result<ExitStatus, Error> {
    let (program, arguments) = command.split_first().ok_or(Error::NoCommand)?;
    // From here on a signal no longer ends this process, so nothing is left running.
    let mut signals = Signals::listen().map_err(failed("catch signals for", Path::new(program)))?;
    let cluster = tokio::select! {
        cluster = start(settings, database) => cluster?,
        _ = signals.next() => return Err(Error::Interrupted),
    };

    // At a terminal the command stays in the group in front, so that it can read from there, and Ctrl-C reaches it without us.
    // Elsewhere it leads a group of its own, so that a signal to us reaches it and all its children, once.
    let at_terminal = io::stdin().is_terminal();
    let mut command = Command::new(program);
    command.args(arguments).env("DATABASE_URL", cluster.url(database));
    if !at_terminal {
        command.process_group(0);
    }
    let ended = match command.spawn() {
        Ok(child) => wait(child, &cluster, &mut signals, at_terminal).await,
        Err(error) => Err(error),
    };
    let stopped = cluster.stop().await;
    let status = ended.map_err(failed("run", Path::new(program)))?;
    stopped?;
    Ok(status)
}

async fn start(settings: &Settings, database: &str) -> Result<Cluster, Error> {
    let cluster = Cluster::start(settings).await?;
    cluster.ensure_database(database).await?;
    Ok(cluster)
}

async fn wait(mut child: Child, cluster: &Cluster, signals: &mut Signals, at_terminal: bool) -> io::Result<ExitStatus> {
    let exited = cluster.exited();
    tokio::pin!(exited);
    let mut database_lost = false;
    loop {
        tokio::select! {
            status = child.wait() => return status,
            signal = signals.next() => forward(signal, &child, at_terminal),
            // The command meets its own errors now, and may still have something to say.
            error = &mut exited, if !database_lost => {
                tracing::error!(%error, "the command lost its database");
                database_lost = true;
            }
        }
    }
}

fn forward(signal: Signal, child: &Child, at_terminal: bool) {
    // None: it has ended, and its number may be somebody else's.
    let Some(pid) = child
        .id()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw)
    else {
        return;
    };
    let sent = if !at_terminal {
        kill_process_group(pid, signal)
    } else if signal == Signal::INT {
        return; // the terminal has sent it to the command too
    } else {
        kill_process(pid, signal)
    };
    if let Err(error) = sent {
        tracing::debug!(%error, "the command could not be signalled");
    }
}

struct Signals {
    interrupt: Stream,
    terminate: Stream,
    hang_up: Stream,
}

impl Signals {
    fn listen() -> io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.hang_up.recv() => Signal::HUP,
        }
    }
}
