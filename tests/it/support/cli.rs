//! The commands that call a server, run as a user runs them.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::document;
use super::server::{Log, solejob};
use super::wait::eventually_within;

/// A user of the command line: which server they call, and as whom.
#[derive(Clone)]
pub(crate) struct Cli {
    env: Vec<(String, String)>,
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Standard output as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        document::parse(&self.stdout).unwrap_or_else(|error| panic!("no JSON: {error}: {self:?}"))
    }
}

impl Cli {
    pub(crate) fn new(url: &str) -> Self {
        Cli { env: Vec::new() }.env("SOLEJOB_URL", url)
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    fn command(&self, args: &[&str]) -> Command {
        // These commands know no database.
        let mut command = solejob("postgres://nowhere.invalid");
        command
            .args(args)
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command, which has to end with this exit code.
    pub(crate) async fn run(&self, args: &[&str], code: i32) -> Ran {
        self.run_with(args, "", code).await
    }

    /// Runs a command with this standard input.
    pub(crate) async fn run_with(&self, args: &[&str], stdin: impl Into<Vec<u8>>, code: i32) -> Ran {
        let (mut command, stdin) = (self.command(args), stdin.into());
        command.stdin(Stdio::piped());
        let output = tokio::task::spawn_blocking(move || {
            let mut child = command.spawn()?;
            let mut pipe = child.stdin.take().expect("stdin is a pipe");
            // A command that reads nothing may be gone already.
            let feeding = std::thread::spawn(move || drop(pipe.write_all(&stdin)));
            let output = child.wait_with_output();
            feeding.join().expect("the thread ends");
            output
        });
        let output = output
            .await
            .expect("the thread ends")
            .expect("the built binary can be run");
        let text = |bytes| String::from_utf8(bytes).expect("it writes UTF-8");
        let ran = Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        };
        assert_eq!(ran.code, code, "`solejob {}`: {ran:?}", args.join(" "));
        ran
    }

    /// Starts a worker that runs a shell script for each job.
    pub(crate) fn worker(&self, args: &[&str], script: &str) -> Worker {
        let mut command = self.command(&["work"]);
        command
            .args(args)
            .args(["--", "sh", "-c", script])
            .stdout(Stdio::null());
        let mut child = command.spawn().expect("the built binary can be run");
        let log = Log::follow(child.stderr.take().expect("stderr is a pipe"));
        Worker { child, log }
    }
}

/// `solejob work`, running.
pub(crate) struct Worker {
    child: Child,
    /// What it and its commands write to stderr.
    pub(crate) log: Log,
}

impl Worker {
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the worker runs");
    }

    /// Kills it outright.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) async fn ended(&mut self) -> ExitStatus {
        eventually_within(Duration::from_secs(30), "the worker to end", async || {
            match self.child.try_wait() {
                Ok(Some(status)) => Ok(status),
                Ok(None) => Err("it still runs".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
    }

    /// SIGTERM, and an orderly end.
    pub(crate) async fn stop(&mut self) {
        self.signal(Signal::TERM);
        let status = self.ended().await;
        assert!(
            status.success(),
            "the worker ended with {status}:\n{}",
            self.log.tail(40)
        );
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the last lines of the worker:\n{}", self.log.tail(40));
        }
        self.kill();
    }
}

/// A directory for a test's files.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{:016x}", rand::random::<u64>()));
        std::fs::create_dir_all(&path).expect("a directory for files of tests");
        Scratch(path)
    }

    /// The path of a file in it.
    pub(crate) fn path(&self, name: &str) -> String {
        let path = self.0.join(name);
        path.to_str().expect("the path is UTF-8").to_owned()
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        std::fs::write(self.path(name), text).expect("the directory can be written to");
        self.path(name)
    }

    /// What is in a file; nothing if there is none.
    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
