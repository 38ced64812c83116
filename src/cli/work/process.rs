//! A command that runs for a job: fed, listened to, and stopped with everything that it has started.

use std::ffi::OsString;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio_util::task::AbortOnDropHandle;

use crate::cli::work::outcome::{MESSAGE_BYTES, RESULT_BYTES, Written};

/// How long something that a command has left behind may hold its output open.
const LAST_WORDS: Duration = Duration::from_secs(2);

pub(super) struct Process {
    child: Child,
    group: Option<Pid>,
    _feeding: AbortOnDropHandle<()>,
    stdout: Listener,
    stderr: Listener,
}

struct Listener {
    heard: Arc<Mutex<Written>>,
    task: AbortOnDropHandle<()>,
}

impl Process {
    /// Starts the command in a process group of its own, so that signals of the terminal do not reach it and ours reach
    /// all of it.
    pub(super) fn start(command: &[OsString], env: &[(&str, String)], payload: &str) -> io::Result<Process> {
        let (program, args) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut child = Command::new(program)
            .args(args)
            .envs(env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let (stdin, payload) = (child.stdin.take(), payload.to_owned());
        let feeding = tokio::spawn(async move {
            if let Some(mut stdin) = stdin {
                // A command that does not want all of its payload is free to close it.
                let _unread = stdin.write_all(payload.as_bytes()).await;
            }
        });
        let stdout = Listener::new(
            child.stdout.take(),
            |heard, chunk| heard.keep_head(chunk, RESULT_BYTES + 1),
            false,
        );
        let stderr = Listener::new(
            child.stderr.take(),
            |heard, chunk| heard.keep_tail(chunk, MESSAGE_BYTES),
            true,
        );
        Ok(Process {
            child,
            group,
            _feeding: AbortOnDropHandle::new(feeding),
            stdout,
            stderr,
        })
    }

    /// Sends a signal to the command and to what it has started in its group.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // It may have ended just now.
            let _gone = kill_process_group(group, signal);
        }
    }

    /// Waits until the command has ended. May be dropped and called again.
    pub(super) async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Standard output and the end of standard error of a command that has ended.
    pub(super) async fn written(self) -> (Written, Written) {
        let deadline = tokio::time::Instant::now() + LAST_WORDS;
        let mut heard = Vec::new();
        for Listener { heard: text, task } in [self.stdout, self.stderr] {
            // A process in the background may keep the pipe open for good. What it says now is not the command's.
            let _in_time = tokio::time::timeout_at(deadline, task).await;
            heard.push(text.lock().unwrap_or_else(PoisonError::into_inner).clone());
        }
        let stderr = heard.pop().unwrap_or_default();
        (heard.pop().unwrap_or_default(), stderr)
    }
}

impl Listener {
    fn new(
        source: Option<impl AsyncRead + Unpin + Send + 'static>,
        keep: impl Fn(&mut Written, &[u8]) + Send + 'static,
        pass_on: bool,
    ) -> Listener {
        let heard = Arc::new(Mutex::new(Written::default()));
        let sink = heard.clone();
        let task = tokio::spawn(async move {
            let Some(mut source) = source else { return };
            let mut buffer = vec![0; 16 << 10];
            while let Ok(count @ 1..) = source.read(&mut buffer).await {
                let chunk = &buffer[..count];
                keep(&mut sink.lock().unwrap_or_else(PoisonError::into_inner), chunk);
                if pass_on {
                    let _unheard = tokio::io::stderr().write_all(chunk).await;
                }
            }
        });
        Listener {
            heard,
            task: AbortOnDropHandle::new(task),
        }
    }
}
