//! What can go wrong with the private cluster, each with the way out in its text: most readers of these
//! lines have just cloned the repository.

use std::io;
use std::path::{Path, PathBuf};

use super::find::MINIMUM_MAJOR;

/// The three ways to a usable PostgreSQL; part of every message that says one is missing.
const WAYS_OUT: &str = "  Debian, Ubuntu:  sudo apt-get install postgresql
  Fedora, RHEL:    sudo dnf install postgresql-server
  macOS:           brew install postgresql@17
or set PG_BIN_DIR to the directory that holds `postgres` and `initdb`,
or set DATABASE_URL to a database that runs already.";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "no PostgreSQL found on this machine (version {MINIMUM_MAJOR} or newer is needed). Install it:\n{WAYS_OUT}"
    )]
    NotFound,

    #[error(
        "PostgreSQL {found} in {} is too old, version {MINIMUM_MAJOR} or newer is needed. Install a newer one beside it:\n{WAYS_OUT}",
        bin_dir.display()
    )]
    TooOld { found: u32, bin_dir: PathBuf },

    #[error("PG_BIN_DIR is {}, but {reason}. It must be the directory that holds `postgres` and `initdb`", bin_dir.display())]
    BinDir { bin_dir: PathBuf, reason: String },

    #[error(
        "the cluster in {} was made by PostgreSQL {needed}, and only {found} can be found. Install version {needed} \
         (Debian: sudo apt-get install postgresql-{needed}), or choose another directory with --data-dir",
        data_dir.display()
    )]
    OtherMajor {
        data_dir: PathBuf,
        needed: u32,
        found: String,
    },

    #[error(
        "another solejob uses the data directory {}{}. Stop it, or give this one a directory of its own with --data-dir",
        data_dir.display(),
        holder.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    InUse { data_dir: PathBuf, holder: Option<u32> },

    #[error("neither HOME nor XDG_DATA_HOME is set, so there is no default data directory: name one with --data-dir")]
    NoHome,

    #[error(
        "PostgreSQL refuses to run as root, so it is run as user {name}: {reason}. Create that user, or start solejob as an ordinary user"
    )]
    User { name: String, reason: String },

    #[error(
        "PostgreSQL refuses to run as root, so it is run as user {user}, who cannot reach {} ({} is closed to others). \
         Choose another directory with --data-dir, for example /var/lib/solejob",
        data_dir.display(),
        barrier.display()
    )]
    Unreachable {
        data_dir: PathBuf,
        barrier: PathBuf,
        user: String,
    },

    #[error("{} cannot be run as user {user}: {source}", program.display())]
    NotExecutable {
        program: PathBuf,
        user: String,
        source: io::Error,
    },

    #[error(
        "the cluster in {} belongs to user id {owner}, but PostgreSQL would run as {user}. \
         Start solejob as its owner, or choose another directory with --data-dir",
        data_dir.display()
    )]
    OtherOwner {
        data_dir: PathBuf,
        owner: u32,
        user: String,
    },

    #[error("{} is there but is no PostgreSQL cluster; move it away or choose another directory with --data-dir", path.display())]
    NotACluster { path: PathBuf },

    #[error(
        "the directory {} for PostgreSQL's socket is not a directory of {user} alone; remove it or choose a shorter --data-dir",
        path.display()
    )]
    SocketDir { path: PathBuf, user: String },

    #[error("initdb could not make a cluster in {}:\n{output}", data_dir.display())]
    InitDb { data_dir: PathBuf, output: String },

    #[error("PostgreSQL did not start ({status}); the end of {}:\n{tail}", log.display())]
    Start { status: String, log: PathBuf, tail: String },

    #[error("PostgreSQL was not ready after {seconds} seconds; the end of {}:\n{tail}", log.display())]
    Timeout { seconds: u64, log: PathBuf, tail: String },

    #[error("PostgreSQL stopped by itself ({status}); the end of {}:\n{tail}", log.display())]
    Died { status: String, log: PathBuf, tail: String },

    #[error(
        "a PostgreSQL left over from an earlier run (process {pid}) still holds {} and does not stop; end it by hand",
        data_dir.display()
    )]
    Orphan { pid: i32, data_dir: PathBuf },

    #[error("PostgreSQL (process {pid}) does not stop")]
    Stop { pid: i32 },

    #[error("database {name:?} could not be created: {reason}")]
    CreateDatabase { name: String, reason: String },

    #[error("there is no command to run")]
    NoCommand,

    #[error("stopped by a signal before PostgreSQL was ready")]
    Interrupted,

    #[error("could not {action} {}: {source}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

/// `result.map_err(failed("open", path))`: the one way an I/O error gets its sentence.
pub(super) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { action, path, source }
}
