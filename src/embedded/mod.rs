//! A private PostgreSQL cluster for `dev` and for tests: finds an installed PostgreSQL, makes a cluster in a directory
//! of ours, and runs it for as long as we run. It never touches a cluster of the system.
//!
//! It knows processes and files, and nothing of what the database is used for.
//!
//! ```text
//! data_dir/
//!   lock            held by the running solejob, from before the first look until the end
//!   pg/             the cluster; appears whole or not at all
//!   pg.tmp-*        a cluster in the making
//!   socket/         where it listens, for the owner alone (elsewhere if this path is too long for a socket)
//!   postgres.log
//! ```
//!
//! The server is a child in a process group of its own. If we are killed it goes on; the next start on this directory
//! gains the lock, stops it and starts afresh.

mod error;
mod find;
mod identity;
mod initdb;
mod postmaster;
mod run;
mod socket;
mod wire;

use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

pub use error::Error;
pub use find::MINIMUM_MAJOR;
pub use run::run_with;

use error::failed;
use identity::Identity;
use postmaster::{Launch, Log, Postmaster};
use socket::Socket;
use wire::{Connection, WireError, quoted_identifier, quoted_literal};

/// The database role that everything runs as. Being able to enter the socket's directory is its password.
const SUPERUSER: &str = "solejob";

#[derive(Debug, Clone)]
pub struct Settings {
    pub data_dir: PathBuf,
    /// The only place to look for PostgreSQL (PG_BIN_DIR).
    pub bin_dir: Option<PathBuf>,
    /// Where to look besides the usual places (PATH).
    pub search_path: Option<OsString>,
    /// Under root: the system user that PostgreSQL runs as; `postgres` if not given. Nobody else can choose.
    pub run_as: Option<String>,
    /// More settings for the server, as in `postgresql.conf`.
    pub options: Vec<(String, String)>,
    /// False only for tests: a crash of the machine may then destroy the cluster.
    pub durable: bool,
}

impl Settings {
    pub fn new(data_dir: impl Into<PathBuf>) -> Settings {
        Settings {
            data_dir: data_dir.into(),
            bin_dir: None,
            search_path: None,
            run_as: None,
            options: Vec::new(),
            durable: true,
        }
    }
}

/// Where the data goes unless somebody says otherwise: a place of the system for root, of the user for a user.
pub fn default_data_dir(xdg_data_home: Option<&OsStr>, home: Option<&OsStr>) -> Result<PathBuf, Error> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/solejob"));
    }
    // The XDG specification: a relative path is to be ignored.
    let absolute = |path: Option<&OsStr>| path.map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(xdg_data_home)
        .or_else(|| absolute(home).map(|home| home.join(".local/share")))
        .map(|data| data.join("solejob"))
        .ok_or(Error::NoHome)
}

/// A running cluster. End it with [`Cluster::stop`]; one that is dropped instead is told to stop, and nobody waits for it.
#[derive(Debug)]
pub struct Cluster {
    data_dir: PathBuf,
    socket: Socket,
    // Fields are dropped in this order: the server hears of the end before the lock goes.
    postmaster: Postmaster,
    _lock: File,
}

impl Cluster {
    /// Starts the cluster in the data directory, and makes it first if there is none.
    ///
    /// Dropping the future half way is safe: what was started is told to stop.
    pub async fn start(settings: &Settings) -> Result<Cluster, Error> {
        let installations = find::installations(settings.bin_dir.as_deref(), settings.search_path.as_deref()).await?;
        let identity = Identity::resolve(settings.run_as.as_deref()).await?;
        identity
            .create_passage(&std::path::absolute(&settings.data_dir).map_err(failed("find", &settings.data_dir))?)?;
        // One spelling for lock, socket and command line, whatever links lead here.
        let data_dir = settings
            .data_dir
            .canonicalize()
            .map_err(failed("find", &settings.data_dir))?;
        identity.check_reach(&data_dir).await?;
        let lock = lock(&data_dir)?;

        initdb::remove_unfinished(&data_dir)?;
        let pg_data = data_dir.join("pg");
        let major = cluster_major(&pg_data, &identity)?;
        let installation = find::choose(&installations, major, &data_dir)?;
        if major.is_none() {
            initdb::create(&data_dir, &pg_data, &installation, &identity, settings.durable).await?;
        }
        let socket = Socket::prepare(&data_dir, &identity)?;
        let launch = Launch {
            installation: &installation,
            identity: &identity,
            pg_data: &pg_data,
            socket: &socket,
            options: &settings.options,
            durable: settings.durable,
        };
        let postmaster = Postmaster::start(&launch, &Log::prepare(data_dir.join("postgres.log"))).await?;
        tracing::info!(
            data_dir = %data_dir.display(), version = installation.major, pid = postmaster.pid(), "PostgreSQL is running"
        );
        Ok(Cluster {
            data_dir,
            socket,
            postmaster,
            _lock: lock,
        })
    }

    /// The data directory, without links and relative parts.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The address of a database in this cluster, whether or not it exists.
    pub fn url(&self, database: &str) -> String {
        self.socket.url(database)
    }

    /// Makes the database unless it is there.
    pub async fn ensure_database(&self, name: &str) -> Result<(), Error> {
        if name.is_empty() || name.contains('\0') {
            return Err(Error::CreateDatabase {
                name: name.to_owned(),
                reason: "it is no name for a database".to_owned(),
            });
        }
        self.try_ensure_database(name)
            .await
            .map_err(|error| Error::CreateDatabase {
                name: name.to_owned(),
                reason: error.to_string(),
            })
    }

    async fn try_ensure_database(&self, name: &str) -> Result<(), WireError> {
        let mut connection = Connection::open(&self.socket.path(), SUPERUSER, "postgres").await?;
        let look_up = format!("SELECT FROM pg_database WHERE datname = {}", quoted_literal(name));
        if connection.query(&look_up).await? == 0 {
            // template0: nobody can be connected to it, which would make the copy fail.
            let create = format!("CREATE DATABASE {} TEMPLATE template0", quoted_identifier(name));
            match connection.query(&create).await {
                Err(error) if !error.is_duplicate_database() => return Err(error),
                _ => {}
            }
        }
        connection.close().await;
        Ok(())
    }

    /// Resolves when PostgreSQL ends without being told to, to the error that says so.
    pub fn exited(&self) -> impl Future<Output = Error> + Send + 'static {
        self.postmaster.exited()
    }

    /// Disconnects everybody, stops PostgreSQL and waits for its end. An error means that it had ended before, or will not.
    pub async fn stop(self) -> Result<(), Error> {
        self.postmaster.stop().await?;
        self.socket.remove_outside();
        Ok(())
    }
}

/// The lock ends with this process, however it ends; PostgreSQL does not inherit it.
fn lock(data_dir: &Path) -> Result<File, Error> {
    let path = data_dir.join("lock");
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(&path).map_err(failed("open", &path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            return Err(Error::InUse {
                data_dir: data_dir.to_owned(),
                holder: holder.trim().parse().ok(),
            });
        }
        Err(TryLockError::Error(error)) => return Err(failed("lock", &path)(error)),
    }
    // For the message above, and for whoever looks.
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(failed("write", &path))?;
    Ok(file)
}

/// The major that made the cluster; none if there is no cluster yet.
fn cluster_major(pg_data: &Path, identity: &Identity) -> Result<Option<u32>, Error> {
    let metadata = match std::fs::symlink_metadata(pg_data) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        found => found.map_err(failed("look at", pg_data))?,
    };
    if metadata.uid() != identity.uid {
        return Err(Error::OtherOwner {
            data_dir: pg_data.to_owned(),
            owner: metadata.uid(),
            user: identity.name.clone(),
        });
    }
    let version = std::fs::read_to_string(pg_data.join("PG_VERSION")).ok();
    match version.as_deref().and_then(find::leading_number) {
        Some(major) => Ok(Some(major)),
        None => Err(Error::NotACluster {
            path: pg_data.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_directory_follows_the_user() {
        let dir = |xdg: Option<&str>, home: Option<&str>| default_data_dir(xdg.map(OsStr::new), home.map(OsStr::new));
        if rustix::process::geteuid().is_root() {
            assert_eq!(dir(Some("/x"), Some("/h")).unwrap(), Path::new("/var/lib/solejob"));
            return;
        }
        assert_eq!(dir(Some("/x"), Some("/h")).unwrap(), Path::new("/x/solejob"));
        assert_eq!(
            dir(Some("x"), Some("/h")).unwrap(),
            Path::new("/h/.local/share/solejob")
        );
        assert!(matches!(dir(None, None), Err(Error::NoHome)));
    }
}
