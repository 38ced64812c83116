//! The running server process: starting it, waiting until it is ready, stopping it, and stopping one that an earlier
//! run left behind.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::error::{Error, failed};
use super::find::{Installation, leading_number};
use super::identity::Identity;
use super::socket::{PORT, Socket};

/// Covers a recovery after a crash: at the default `max_wal_size` of 1 GB it takes seconds on a disk of today.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// For a fast shutdown, which ends with a checkpoint.
const FAST_STOP_WITHIN: Duration = Duration::from_secs(60);

/// For an immediate one, which leaves the rest to the recovery of the next start.
const IMMEDIATE_STOP_WITHIN: Duration = Duration::from_secs(10);

/// What an earlier run left may need a while to go: backends of a killed postmaster end by themselves, but each finishes
/// its statement first, and until then a new server refuses to start.
const REMAINS_WITHIN: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(20);

/// Overridden by the settings that are given.
const DEFAULTS: &[(&str, &str)] = &[
    ("shared_buffers", "128MB"),
    // A group of dispatches takes an advisory lock for each of its keys.
    ("max_locks_per_transaction", "256"),
];

/// A crash of the machine may destroy the cluster. A crash of processes loses nothing, so commits stay synchronous.
const NOT_DURABLE: &[(&str, &str)] = &[("fsync", "off"), ("full_page_writes", "off")];

pub(super) struct Launch<'a> {
    pub(super) installation: &'a Installation,
    pub(super) identity: &'a Identity,
    pub(super) pg_data: &'a Path,
    pub(super) socket: &'a Socket,
    pub(super) options: &'a [(String, String)],
    pub(super) durable: bool,
}

/// A server that we started. Dropped while it runs, it is told to stop, and nobody waits for it.
#[derive(Debug)]
pub(super) struct Postmaster {
    pid: Pid,
    exit: watch::Receiver<Option<String>>,
    log: Log,
}

impl Postmaster {
    /// Starts the server and waits until it takes connections.
    pub(super) async fn start(launch: &Launch<'_>, log: &Log) -> Result<Postmaster, Error> {
        let give_up = Instant::now() + REMAINS_WITHIN;
        loop {
            clear_the_way(launch.pg_data).await?;
            let postmaster = Postmaster::spawn(launch, log)?;
            match postmaster.ready(launch.pg_data).await {
                Err(Error::Start { tail, .. }) if blocked_by_remains(&tail) && Instant::now() < give_up => {
                    tracing::debug!("waiting for the end of an earlier PostgreSQL");
                    sleep(POLL * 10).await;
                }
                Err(error) => return Err(error),
                Ok(()) => return Ok(postmaster),
            }
        }
    }

    fn spawn(launch: &Launch<'_>, log: &Log) -> Result<Postmaster, Error> {
        let output = log.open()?;
        let log = log.at_its_end()?;
        let copy = output.try_clone().map_err(failed("open", &log.path))?;
        let program = launch.installation.program("postgres");
        let mut command = launch.identity.command(&program);
        // This spelling is what `is_postmaster` looks for.
        command.arg("-D").arg(launch.pg_data);
        for (name, value) in settings(launch) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let mut child = command
            .current_dir(launch.pg_data)
            // Ctrl-C at the terminal goes to the whole group in front. PostgreSQL must outlive the server that uses it,
            // so it gets a group of its own and hears from us alone.
            .process_group(0)
            .stdout(output)
            .stderr(copy)
            .spawn()
            .map_err(|error| launch.identity.spawn_error(&program, error))?;
        let pid = child
            .id()
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| failed("run", &program)(io::Error::other("it has no process id")))?;
        let (announce, exit) = watch::channel(None);
        tokio::spawn(async move {
            let status = child.wait().await;
            announce.send_replace(Some(status.map_or_else(|error| error.to_string(), describe)));
        });
        Ok(Postmaster { pid, exit, log })
    }

    async fn ready(&self, pg_data: &Path) -> Result<(), Error> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            if let Some(status) = self.exit_status() {
                return Err(Error::Start {
                    status,
                    log: self.log.path.clone(),
                    tail: self.log.tail(),
                });
            }
            let running = PidFile::read(pg_data);
            if running.is_some_and(|file| file.pid == self.pid && file.ready) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::Timeout {
                    seconds: READY_WITHIN.as_secs(),
                    log: self.log.path.clone(),
                    tail: self.log.tail(),
                });
            }
            sleep(POLL).await;
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    fn exit_status(&self) -> Option<String> {
        self.exit.borrow().clone()
    }

    /// Resolves when the server ends, to the error that says so.
    pub(super) fn exited(&self) -> impl Future<Output = Error> + Send + 'static {
        let (mut exit, log) = (self.exit.clone(), self.log.clone());
        async move {
            let status = match exit.wait_for(Option::is_some).await {
                Ok(status) => status.clone().unwrap_or_default(),
                Err(_) => "it is not known how".to_owned(),
            };
            Error::Died {
                status,
                tail: log.tail(),
                log: log.path,
            }
        }
    }

    /// Disconnects everybody, writes a checkpoint, and waits for the end. An error tells that the server had ended before.
    pub(super) async fn stop(self) -> Result<(), Error> {
        if self.exit_status().is_some() {
            return Err(self.exited().await);
        }
        for (signal, patience) in [
            (Signal::INT, FAST_STOP_WITHIN),
            (Signal::QUIT, IMMEDIATE_STOP_WITHIN),
            (Signal::KILL, IMMEDIATE_STOP_WITHIN),
        ] {
            // It fails only if the server has just ended.
            let _ = kill_process(self.pid, signal);
            if timeout(patience, self.exited()).await.is_ok() {
                return Ok(());
            }
            tracing::warn!(pid = self.pid(), "PostgreSQL takes too long to stop");
        }
        Err(Error::Stop {
            pid: self.pid.as_raw_nonzero().get(),
        })
    }
}

impl Drop for Postmaster {
    fn drop(&mut self) {
        if self.exit_status().is_none() {
            let _ = kill_process(self.pid, Signal::INT);
        }
    }
}

fn describe(status: ExitStatus) -> String {
    status.to_string()
}

fn settings(launch: &Launch<'_>) -> Vec<(String, String)> {
    let fixed: &[(&str, &str)] = if launch.durable { &[] } else { NOT_DURABLE };
    let pairs = |list: &[(&str, &str)]| -> Vec<(String, String)> {
        list.iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    };
    let mut settings = pairs(DEFAULTS);
    settings.extend(pairs(fixed));
    settings.extend_from_slice(launch.options);
    // The last one counts: what follows holds the cluster together and is nobody's to change.
    settings.extend(pairs(&[
        ("listen_addresses", ""),
        ("port", &PORT.to_string()),
        ("unix_socket_directories", &launch.socket.setting()),
        ("unix_socket_permissions", "0700"),
        ("log_destination", "stderr"),
        ("logging_collector", "off"),
    ]));
    settings
}

/// Stops the server that a killed run left behind, and removes a pid file that would block the next one for nothing.
/// Only with the lock of the data directory held: whoever runs on it then is an orphan.
async fn clear_the_way(pg_data: &Path) -> Result<(), Error> {
    let path = pid_file(pg_data);
    if !path.exists() {
        return Ok(());
    }
    let Some(PidFile { pid, .. }) = PidFile::read(pg_data) else {
        // Empty or garbled after a crash of the machine, or just being written.
        sleep(POLL * 5).await;
        if path.exists() && PidFile::read(pg_data).is_none() {
            return remove(&path);
        }
        return Ok(());
    };
    if is_postmaster(pid, pg_data) {
        tracing::info!(%pid, "stopping the PostgreSQL of an earlier run");
        return stop_orphan(pid, pg_data).await;
    }
    if test_kill_process(pid).is_err() {
        return Ok(()); // PostgreSQL sees for itself that the process is gone.
    }
    // The number is in use again, soon the case in a container, where numbers start over. PostgreSQL would take the process for
    // a postmaster. Backends that may still run are not forgotten with the file: they are found by their shared memory.
    remove(&path)
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Whether the server gave up because of an earlier one: its shared memory is in use, or it was itself just starting when
/// we looked and has written its pid file since.
fn blocked_by_remains(log: &str) -> bool {
    log.contains("is still in use") || log.contains("postmaster.pid\" already exists")
}

async fn stop_orphan(pid: Pid, pg_data: &Path) -> Result<(), Error> {
    for (signal, patience) in [(Signal::INT, FAST_STOP_WITHIN), (Signal::QUIT, IMMEDIATE_STOP_WITHIN)] {
        let deadline = Instant::now() + patience;
        if let Err(error) = kill_process(pid, signal) {
            tracing::debug!(%pid, %error, "could not signal the PostgreSQL of an earlier run");
        }
        while Instant::now() < deadline {
            if !is_postmaster(pid, pg_data) {
                return Ok(());
            }
            sleep(POLL).await;
        }
    }
    Err(Error::Orphan {
        pid: pid.as_raw_nonzero().get(),
        data_dir: pg_data.to_owned(),
    })
}

/// Whether the process is a postmaster of this very directory, by its command line (which everybody may read, unlike
/// its working directory). A dead one that nobody has reaped has none.
fn is_postmaster(pid: Pid, pg_data: &Path) -> bool {
    let pid = pid.as_raw_nonzero();
    if let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) {
        let arguments: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let program = arguments
            .first()
            .and_then(|program| program.rsplit(|byte| *byte == b'/').next());
        let of_directory = arguments
            .windows(2)
            .any(|pair| pair == [b"-D", pg_data.as_os_str().as_bytes()]);
        return matches!(program, Some(b"postgres" | b"postmaster")) && of_directory;
    }
    if Path::new("/proc/self/cmdline").exists() {
        return false;
    }
    // macOS has no /proc.
    let listing = std::process::Command::new("ps")
        .args(["-o", "command=", "-p", &pid.to_string()])
        .output();
    listing.is_ok_and(|output| {
        let line = String::from_utf8_lossy(&output.stdout);
        line.contains("postgres") && line.contains(&format!("-D {}", pg_data.display()))
    })
}

fn pid_file(pg_data: &Path) -> PathBuf {
    pg_data.join("postmaster.pid")
}

struct PidFile {
    pid: Pid,
    ready: bool,
}

impl PidFile {
    fn read(pg_data: &Path) -> Option<PidFile> {
        PidFile::parse(&fs::read_to_string(pid_file(pg_data)).ok()?)
    }

    /// First line: the process. Eighth line: its state, the word that `pg_ctl` waits for too.
    fn parse(text: &str) -> Option<PidFile> {
        let mut lines = text.lines();
        let pid = leading_number(lines.next()?.trim())?;
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let ready = lines.nth(6).is_some_and(|state| state.trim() == "ready");
        Some(PidFile { pid, ready })
    }
}

/// The log file of the server, and where in it the present run begins.
#[derive(Debug, Clone)]
pub(super) struct Log {
    path: PathBuf,
    offset: u64,
}

impl Log {
    /// Beyond this size a start begins a new file and keeps one old one.
    const BYTES_MAX: u64 = 10 << 20;

    const TAIL_LINES: usize = 20;

    pub(super) fn prepare(path: PathBuf) -> Log {
        if path.metadata().is_ok_and(|metadata| metadata.len() > Log::BYTES_MAX)
            && let Err(error) = fs::rename(&path, path.with_extension("log.old"))
        {
            tracing::warn!(path = %path.display(), %error, "could not put the old log aside");
        }
        Log { path, offset: 0 }
    }

    fn open(&self) -> Result<fs::File, Error> {
        fs::OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.path)
            .map_err(failed("open", &self.path))
    }

    fn at_its_end(&self) -> Result<Log, Error> {
        let metadata = self.path.metadata().map_err(failed("look at", &self.path))?;
        Ok(Log {
            path: self.path.clone(),
            offset: metadata.len(),
        })
    }

    fn tail(&self) -> String {
        let bytes = fs::read(&self.path).unwrap_or_default();
        let start = usize::try_from(self.offset).unwrap_or(0).min(bytes.len());
        let text = String::from_utf8_lossy(&bytes[start..]);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(Log::TAIL_LINES)..].join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pid_file_tells_the_process_and_whether_it_is_ready() {
        let starting = "123\n/data/pg\n1700000000\n5432\n/data/socket\n\n  5432001 3\nstarting\n";
        let file = PidFile::parse(starting).unwrap();
        assert_eq!(file.pid.as_raw_nonzero().get(), 123);
        assert!(!file.ready);
        assert!(PidFile::parse(&starting.replace("starting", "ready   ")).unwrap().ready);
        for broken in ["", "\n", "x\n", "0\n", "99999999999\n"] {
            assert!(PidFile::parse(broken).is_none(), "{broken:?}");
        }
    }

    #[test]
    fn this_process_is_no_postmaster() {
        assert!(!is_postmaster(rustix::process::getpid(), Path::new("/data/pg")));
    }
}
