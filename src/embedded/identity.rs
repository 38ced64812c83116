//! Whom PostgreSQL runs as. It refuses to run as root, so under root it gets a user of its own; under anybody
//! else it runs as that user.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use super::error::{Error, failed};

/// The user that the packages of every distribution create.
const DEFAULT_USER: &str = "postgres";

#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) name: String,
    pub(super) uid: u32,
    gid: u32,
    /// We are root and must hand files and processes over.
    hand_over: bool,
}

impl Identity {
    /// `run_as` counts only under root: nobody else can change users.
    pub(super) async fn resolve(run_as: Option<&str>) -> Result<Identity, Error> {
        let uid = rustix::process::geteuid().as_raw();
        if uid != 0 {
            return Ok(Identity {
                name: format!("user id {uid}"),
                uid,
                gid: rustix::process::getegid().as_raw(),
                hand_over: false,
            });
        }
        let name = run_as.unwrap_or(DEFAULT_USER).to_owned();
        let (uid, gid) = (id("-u", &name).await?, id("-g", &name).await?);
        if uid == 0 {
            let reason = "that is root again".to_owned();
            return Err(Error::User { name, reason });
        }
        Ok(Identity {
            name,
            uid,
            gid,
            hand_over: true,
        })
    }

    /// A command that runs as this user, free of the settings that libpq and the server would read from our environment.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"PG") {
                command.env_remove(name);
            }
        }
        // English messages, and no failure over a locale that the terminal names but the machine lacks.
        command.env("LC_ALL", "C").stdin(Stdio::null());
        if self.hand_over {
            // std drops the supplementary groups of root itself when it changes the user.
            command.uid(self.uid).gid(self.gid);
        }
        command
    }

    pub(super) fn spawn_error(&self, program: &Path, source: io::Error) -> Error {
        if source.kind() == io::ErrorKind::PermissionDenied {
            return Error::NotExecutable {
                program: program.to_owned(),
                user: self.name.clone(),
                source,
            };
        }
        failed("run", program)(source)
    }

    /// Makes the directory and its missing parents. Under root others may pass through, for the user of PostgreSQL
    /// has to, whatever the umask says.
    pub(super) fn create_passage(&self, directory: &Path) -> Result<(), Error> {
        let mut missing: Vec<&Path> = directory.ancestors().take_while(|path| !path.exists()).collect();
        missing.reverse();
        let mode = if self.hand_over { 0o711 } else { 0o700 };
        for path in missing {
            match make(path, mode) {
                // Two first starts at once: the lock sorts them out, not this.
                Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
        }
        Ok(())
    }

    /// Makes a directory that only this user can enter (and root).
    pub(super) fn create_private(&self, directory: &Path) -> Result<(), Error> {
        make(directory, 0o700)?;
        self.take_over(directory)
    }

    pub(super) fn take_over(&self, path: &Path) -> Result<(), Error> {
        if self.hand_over {
            chown(path, Some(self.uid), Some(self.gid)).map_err(failed("change the owner of", path))?;
        }
        Ok(())
    }

    /// Enters the directory as the user, which takes access lists and the like into account too.
    pub(super) async fn check_reach(&self, directory: &Path) -> Result<(), Error> {
        if !self.hand_over {
            return Ok(());
        }
        let entered = self
            .command(Path::new("/bin/sh"))
            .args(["-c", "exit 0"])
            .current_dir(directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .await;
        match entered {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(Error::Unreachable {
                data_dir: directory.to_owned(),
                barrier: self.barrier(directory),
                user: self.name.clone(),
            }),
            Err(error) => Err(failed("enter", directory)(error)),
            Ok(_) => Ok(()),
        }
    }

    /// The topmost directory on the way that does not let the user pass, as far as the mode bits tell.
    fn barrier(&self, directory: &Path) -> PathBuf {
        let closed = |path: &Path| {
            let Ok(metadata) = path.metadata() else { return true };
            let bit = match (metadata.uid() == self.uid, metadata.gid() == self.gid) {
                (true, _) => 0o100,
                (false, true) => 0o010,
                (false, false) => 0o001,
            };
            metadata.mode() & bit == 0
        };
        let mut from_root: Vec<&Path> = directory.ancestors().collect();
        from_root.reverse();
        let found = from_root.into_iter().find(|path| closed(path));
        found.unwrap_or(directory).to_owned()
    }
}

fn make(directory: &Path, mode: u32) -> Result<(), Error> {
    std::fs::DirBuilder::new()
        .mode(mode)
        .create(directory)
        .and_then(|()| std::fs::set_permissions(directory, std::fs::Permissions::from_mode(mode)))
        .map_err(failed("create", directory))
}

/// `id` knows users from directories and networks too, unlike /etc/passwd.
async fn id(flag: &str, user: &str) -> Result<u32, Error> {
    let unknown = |reason: String| Error::User {
        name: user.to_owned(),
        reason,
    };
    let output = Command::new("id")
        .args([flag, "--", user])
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|error| unknown(format!("`id` does not run: {error}")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.trim().parse() {
        Ok(number) if output.status.success() => Ok(number),
        _ => Err(unknown("there is no such user".to_owned())),
    }
}
