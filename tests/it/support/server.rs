//! A server process: started with a free port, watched through its log, stopped by SIGTERM.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::oneshot;

use super::wait::eventually_within;

/// How long a start may take: a debug build on a busy machine.
const STARTUP: Duration = Duration::from_secs(60);
const ANNOUNCEMENT: &str = "solejob listening on ";

/// The binary under test, with an environment that holds nothing of the caller's.
pub(crate) fn solejob(database_url: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_solejob"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SOLEJOB_") {
            command.env_remove(name);
        }
    }
    command.env("DATABASE_URL", database_url).stdin(Stdio::null());
    command
}

/// Everything a process wrote to stderr so far.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<String>>);

impl Log {
    pub(super) fn follow(mut source: impl Read + Send + 'static) -> Self {
        let log = Log::default();
        let sink = log.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok(count @ 1..) = source.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..count]);
                sink.0.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
            }
        });
        log
    }

    pub(crate) fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn tail(&self, lines: usize) -> String {
        let text = self.text();
        let all = text.lines().collect::<Vec<_>>();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) base: String,
    pub(crate) log: Log,
    stopping: bool,
}

impl Server {
    /// Starts the command and waits until it says that it serves.
    pub(crate) async fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the built binary can be run");
        let log = Log::follow(child.stderr.take().expect("stderr is a pipe"));
        let stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        let (announce, announced) = oneshot::channel();
        std::thread::spawn(move || {
            let mut lines = stdout.lines().map_while(Result::ok);
            let _ = announce.send(lines.next());
            // Read on, so that the process never meets a full pipe.
            lines.for_each(drop);
        });
        let mut server = Server {
            child,
            base: String::new(),
            log,
            stopping: false,
        };
        match tokio::time::timeout(STARTUP, announced).await {
            Ok(Ok(Some(line))) => match line.strip_prefix(ANNOUNCEMENT) {
                Some(base) => server.base = base.trim().to_owned(),
                None => panic!("the server's first line on stdout is `{line}`, wanted `{ANNOUNCEMENT}…`"),
            },
            Ok(_) => panic!("the server ended before it served:\n{}", server.log.tail(40)),
            Err(_) => panic!("the server did not serve within {STARTUP:?}:\n{}", server.log.tail(40)),
        }
        server
    }

    /// Ends the server as an operator would, and waits for it.
    pub(crate) async fn stop(&mut self) -> ExitStatus {
        self.ask_to_stop();
        eventually_within(
            Duration::from_secs(30),
            "the server to end after SIGTERM",
            async || match self.child.try_wait() {
                Ok(Some(status)) => Ok(status),
                Ok(None) => Err("it still runs".to_owned()),
                Err(error) => Err(error.to_string()),
            },
        )
        .await
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) fn ask_to_stop(&mut self) {
        // A second signal would mean haste, and the number of a process that has ended may be another's.
        if !std::mem::replace(&mut self.stopping, true) && matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
