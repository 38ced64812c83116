//! Makes a new cluster. It appears under its name only when it is whole: a killed initdb leaves a directory
//! with another name, which the next start removes.

use std::path::Path;
use std::process::Stdio;

use super::SUPERUSER;
use super::error::{Error, failed};
use super::find::Installation;
use super::identity::Identity;

/// Begins the name of a cluster in the making.
const UNFINISHED: &str = "pg.tmp-";

/// Removes what killed starts left. Only with the lock of the data directory held.
///
/// It may fail while an initdb that outlived its parent still writes; with its directory gone it soon gives up,
/// and since every attempt has a name of its own, a leftover is in nobody's way.
pub(super) fn remove_unfinished(data_dir: &Path) -> Result<(), Error> {
    for entry in std::fs::read_dir(data_dir).map_err(failed("read", data_dir))?.flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
            let path = entry.path();
            match std::fs::remove_dir_all(&path) {
                Ok(()) => tracing::info!(path = %path.display(), "removed an unfinished cluster"),
                Err(error) => tracing::warn!(path = %path.display(), %error, "could not remove an unfinished cluster"),
            }
        }
    }
    Ok(())
}

pub(super) async fn create(
    data_dir: &Path,
    pg_data: &Path,
    installation: &Installation,
    identity: &Identity,
    durable: bool,
) -> Result<(), Error> {
    tracing::info!(data_dir = %data_dir.display(), version = installation.major, "making a PostgreSQL cluster");
    let unfinished = data_dir.join(format!("{UNFINISHED}{}", std::process::id()));
    let mut result = attempt(&unfinished, installation, identity, "C.UTF-8", durable).await?;
    if result.as_ref().is_err_and(|output| output.contains("locale")) {
        // Old glibc and some other systems have no C.UTF-8. The two differ in upper and lower case alone.
        result = attempt(&unfinished, installation, identity, "C", durable).await?;
    }
    if let Err(output) = result {
        let _ = std::fs::remove_dir_all(&unfinished);
        return Err(Error::InitDb {
            data_dir: data_dir.to_owned(),
            output,
        });
    }
    // initdb has written its files through to the disk; the name comes after them.
    std::fs::rename(&unfinished, pg_data).map_err(failed("rename a new cluster to", pg_data))?;
    std::fs::File::open(data_dir)
        .and_then(|directory| directory.sync_all())
        .map_err(failed("sync", data_dir))
}

/// The inner error is what initdb said.
async fn attempt(
    directory: &Path,
    installation: &Installation,
    identity: &Identity,
    locale: &str,
    durable: bool,
) -> Result<Result<(), String>, Error> {
    if directory.exists() {
        std::fs::remove_dir_all(directory).map_err(failed("remove", directory))?;
    }
    identity.create_private(directory)?;
    let program = installation.program("initdb");
    let mut command = identity.command(&program);
    command
        .arg("-D")
        .arg(directory)
        .args(["--username", SUPERUSER, "--encoding", "UTF8", "--locale", locale])
        // The socket lies in a directory that nobody else can enter; that is the authentication. TCP is off, and shut here too.
        .args(["--auth-local", "trust", "--auth-host", "reject"])
        .args(["--data-checksums", "--no-instructions"]);
    if !durable {
        command.arg("--no-sync");
    }
    let output = command
        .current_dir(directory)
        .process_group(0)
        .kill_on_drop(true)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .await
        .map_err(|error| identity.spawn_error(&program, error))?;
    if output.status.success() {
        return Ok(Ok(()));
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok(Err(if text.is_empty() {
        output.status.to_string()
    } else {
        text
    }))
}
