//! Where the Unix socket of the cluster lies, and the URL that leads there.

use std::fmt::Write as _;
use std::fs::Permissions;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::SUPERUSER;
use super::error::{Error, failed};
use super::identity::Identity;

/// Part of the socket's name and nothing else: no port is opened.
pub(super) const PORT: u16 = 5432;

/// The longest path of a directory for the socket. The kernel takes 108 bytes (macOS: 104) for the whole path, and
/// PostgreSQL adds `/.s.PGSQL.5432` and a zero.
const DIRECTORY_BYTES_MAX: usize = 88;

#[derive(Debug)]
pub(super) struct Socket {
    directory: PathBuf,
    /// It lies outside of the data directory, where nobody would look for it and clean up.
    outside: bool,
}

impl Socket {
    /// Makes the directory, or takes over the one of an earlier run. Only with the lock of the data directory held and no
    /// postmaster alive.
    pub(super) fn prepare(data_dir: &Path, identity: &Identity) -> Result<Socket, Error> {
        let socket = Socket::place(data_dir, identity.uid, Path::new("/tmp"));
        if std::fs::symlink_metadata(&socket.directory).is_err() {
            identity.create_private(&socket.directory)?;
        }
        socket.check(identity)?;
        // PostgreSQL itself removes these only if the process in the lock file is gone, and a process id can be in use again.
        for name in [format!(".s.PGSQL.{PORT}"), format!(".s.PGSQL.{PORT}.lock")] {
            let path = socket.directory.join(name);
            if std::fs::symlink_metadata(&path).is_ok() {
                std::fs::remove_file(&path).map_err(failed("remove", &path))?;
            }
        }
        Ok(socket)
    }

    /// Inside the data directory if the path is short enough, and text: it becomes part of a URL.
    fn place(data_dir: &Path, uid: u32, fallback: &Path) -> Socket {
        let inside = data_dir.join("socket");
        if inside.as_os_str().len() <= DIRECTORY_BYTES_MAX && inside.to_str().is_some() {
            return Socket {
                directory: inside,
                outside: false,
            };
        }
        // Not a secret, only a name that is the same at the next start.
        let mut hasher = DefaultHasher::new();
        data_dir.hash(&mut hasher);
        Socket {
            directory: fallback.join(format!("solejob-{uid}-{:016x}", hasher.finish())),
            outside: true,
        }
    }

    /// Anybody can make a directory below /tmp, so one that was there already must be shown to be ours.
    fn check(&self, identity: &Identity) -> Result<(), Error> {
        let metadata = std::fs::symlink_metadata(&self.directory).map_err(failed("look at", &self.directory))?;
        let ours = metadata.uid() == identity.uid || metadata.uid() == rustix::process::geteuid().as_raw();
        if !metadata.is_dir() || !ours {
            return Err(Error::SocketDir {
                path: self.directory.clone(),
                user: identity.name.clone(),
            });
        }
        std::fs::set_permissions(&self.directory, Permissions::from_mode(0o700))
            .map_err(failed("change the mode of", &self.directory))?;
        identity.take_over(&self.directory)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.join(format!(".s.PGSQL.{PORT}"))
    }

    /// The value of `unix_socket_directories`, which is a list: quotes keep commas in the path from dividing it.
    pub(super) fn setting(&self) -> String {
        format!("\"{}\"", self.directory.to_string_lossy().replace('"', "\"\""))
    }

    /// Understood by sqlx, libpq and node-postgres alike. The host in front is a placeholder that the parameter overrides;
    /// port and sslmode are spelt out because PGPORT and PGSSLMODE of the environment would fill them in.
    pub(super) fn url(&self, database: &str) -> String {
        let directory = percent_encoded(&self.directory.to_string_lossy());
        let database = percent_encoded(database);
        format!("postgres://{SUPERUSER}@localhost:{PORT}/{database}?host={directory}&sslmode=disable")
    }

    pub(super) fn remove_outside(&self) {
        if self.outside {
            // Empty after a clean stop; otherwise the next start takes it over.
            let _ = std::fs::remove_dir(&self.directory);
        }
    }
}

fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() * 3);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_moves_the_socket_out_of_the_data_directory() {
        let fallback = Path::new("/tmp");
        let short = Socket::place(Path::new("/var/lib/solejob"), 7, fallback);
        assert_eq!(short.path(), Path::new("/var/lib/solejob/socket/.s.PGSQL.5432"));
        let long = Path::new("/home").join("d".repeat(90));
        let moved = Socket::place(&long, 7, fallback);
        assert!(moved.outside && moved.directory.starts_with("/tmp"));
        assert_eq!(moved.directory, Socket::place(&long, 7, fallback).directory);
        assert_ne!(moved.directory, Socket::place(&long.join("x"), 7, fallback).directory);
    }

    #[test]
    fn the_longest_place_still_fits_the_kernel() {
        let data_dir = PathBuf::from(format!("/{}", "d".repeat(DIRECTORY_BYTES_MAX - "//socket".len())));
        let socket = Socket::place(&data_dir, 7, Path::new("/tmp"));
        assert!(!socket.outside);
        assert!(socket.path().as_os_str().len() < 104);
    }

    #[test]
    fn strange_characters_survive_in_url_and_setting() {
        let socket = Socket::place(Path::new("/a b,\"c%ü"), 7, Path::new("/tmp"));
        let url = socket.url("my db");
        assert_eq!(
            url,
            "postgres://solejob@localhost:5432/my%20db?host=%2Fa%20b%2C%22c%25%C3%BC%2Fsocket&sslmode=disable"
        );
        assert_eq!(socket.setting(), "\"/a b,\"\"c%ü/socket\"");
    }
}
