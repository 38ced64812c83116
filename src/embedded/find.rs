//! Finds an installed PostgreSQL: which directories hold `postgres` and `initdb`, and of which version.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use super::error::Error;

/// The oldest version whose locking and snapshot behaviour was measured for the uniqueness rules, and the
/// oldest the tests run against. Older ones may work; nobody has looked.
pub const MINIMUM_MAJOR: u32 = 15;

/// Parents of versioned installations, with what stands before and after the version in the path.
const VERSIONED: &[(&str, &str, &str)] = &[
    ("/usr/lib/postgresql", "", "bin"),                          // Debian, Ubuntu
    ("/usr", "pgsql-", "bin"),                                   // packages of postgresql.org for Fedora and RHEL
    ("/opt/homebrew/opt", "postgresql@", "bin"),                 // Homebrew on Apple silicon
    ("/usr/local/opt", "postgresql@", "bin"),                    // Homebrew on Intel
    ("/home/linuxbrew/.linuxbrew/opt", "postgresql@", "bin"),    // Homebrew on Linux
    ("/Applications/Postgres.app/Contents/Versions", "", "bin"), // Postgres.app
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Installation {
    pub(super) major: u32,
    pub(super) bin_dir: PathBuf,
}

impl Installation {
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.bin_dir.join(name)
    }
}

/// All usable installations, newest first; never empty. `bin_dir` (PG_BIN_DIR), if given, is the only place looked at.
pub(super) async fn installations(
    bin_dir: Option<&Path>,
    search_path: Option<&OsStr>,
) -> Result<Vec<Installation>, Error> {
    if let Some(bin_dir) = bin_dir {
        let named = |reason| Error::BinDir {
            bin_dir: bin_dir.to_owned(),
            reason,
        };
        // Children run in other directories, so a relative name would change its meaning.
        let absolute = std::path::absolute(bin_dir).map_err(|error| named(error.to_string()))?;
        let only = probe(&absolute).await.map_err(named)?;
        return usable(vec![only]);
    }
    let mut found = Vec::new();
    for candidate in candidates(search_path) {
        match probe(&candidate).await {
            Ok(installation) => found.push(installation),
            Err(reason) => tracing::debug!(directory = %candidate.display(), reason, "not a PostgreSQL installation"),
        }
    }
    usable(found)
}

/// The installation for a cluster: of the same major if it exists already, else the newest.
pub(super) fn choose(
    installations: &[Installation],
    needed: Option<u32>,
    data_dir: &Path,
) -> Result<Installation, Error> {
    let chosen = match needed {
        None => installations.first(),
        Some(major) => installations.iter().find(|installation| installation.major == major),
    };
    chosen.cloned().ok_or_else(|| Error::OtherMajor {
        data_dir: data_dir.to_owned(),
        needed: needed.unwrap_or(MINIMUM_MAJOR),
        found: installations
            .iter()
            .map(|it| format!("{} in {}", it.major, it.bin_dir.display()))
            .collect::<Vec<_>>()
            .join(", "),
    })
}

fn usable(mut found: Vec<Installation>) -> Result<Vec<Installation>, Error> {
    // The sort is stable: of two with one version the first place looked at wins.
    found.sort_by_key(|installation| std::cmp::Reverse(installation.major));
    match found.first() {
        None => return Err(Error::NotFound),
        Some(newest) if newest.major < MINIMUM_MAJOR => {
            return Err(Error::TooOld {
                found: newest.major,
                bin_dir: newest.bin_dir.clone(),
            });
        }
        Some(_) => {}
    }
    found.retain(|installation| installation.major >= MINIMUM_MAJOR);
    Ok(found)
}

fn candidates(search_path: Option<&OsStr>) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for (parent, prefix, bin) in VERSIONED {
        let Ok(entries) = std::fs::read_dir(parent) else {
            continue;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let version = name.to_str().and_then(|name| name.strip_prefix(prefix));
            if version.is_some_and(|version| leading_number(version).is_some()) {
                directories.push(entry.path().join(bin));
            }
        }
    }
    let on_path = search_path.into_iter().flat_map(std::env::split_paths);
    directories.extend(on_path.filter(|directory| directory.is_absolute()));
    directories.retain(|directory| directory.join("postgres").exists());
    directories
}

/// Asks the binary itself: directory names are conventions, and on PATH there is none.
async fn probe(bin_dir: &Path) -> Result<Installation, String> {
    for program in ["postgres", "initdb"] {
        if !bin_dir.join(program).is_file() {
            return Err(format!("`{program}` is not in it"));
        }
    }
    let output = Command::new(bin_dir.join("postgres"))
        .arg("--version")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| format!("`postgres` in it does not run: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let major = version(&text)
        .ok_or_else(|| format!("`postgres --version` in it does not name a version: {:?}", text.trim()))?;
    Ok(Installation {
        major,
        bin_dir: bin_dir.to_owned(),
    })
}

/// The major in `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`, also of `18beta1` and `19devel`.
fn version(text: &str) -> Option<u32> {
    let (_, version) = text.split_once("(PostgreSQL)")?;
    leading_number(version.trim_start())
}

/// The number that a text begins with: a major from a version or from the file PG_VERSION.
pub(super) fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installation(major: u32, bin_dir: &str) -> Installation {
        Installation {
            major,
            bin_dir: bin_dir.into(),
        }
    }

    #[test]
    fn the_major_is_read_from_every_form_of_version() {
        for (text, major) in [
            ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n", Some(15)),
            ("postgres (PostgreSQL) 18beta1\n", Some(18)),
            ("postgres (PostgreSQL) 19devel\n", Some(19)),
            ("postgres (PostgreSQL) 9.6.24\n", Some(9)),
            ("postgres 15", None),
            ("", None),
        ] {
            assert_eq!(version(text), major, "{text:?}");
        }
    }

    #[test]
    fn the_newest_comes_first_and_old_ones_are_left_out() {
        let found = vec![
            installation(14, "/a"),
            installation(16, "/b"),
            installation(17, "/c"),
            installation(17, "/d"),
        ];
        let majors: Vec<_> = usable(found)
            .unwrap()
            .into_iter()
            .map(|it| (it.major, it.bin_dir))
            .collect();
        assert_eq!(majors, [(17, "/c".into()), (17, "/d".into()), (16, "/b".into())]);
    }

    #[test]
    fn without_any_the_message_says_what_to_install() {
        let text = usable(Vec::new()).unwrap_err().to_string();
        assert!(text.contains("sudo apt-get install postgresql"), "{text}");
        assert!(text.contains("DATABASE_URL"), "{text}");
    }

    #[test]
    fn an_existing_cluster_is_started_by_its_own_major() {
        let all = [installation(17, "/new"), installation(15, "/old")];
        let data_dir = Path::new("/data");
        assert_eq!(choose(&all, None, data_dir).unwrap().major, 17);
        assert_eq!(choose(&all, Some(15), data_dir).unwrap().major, 15);
        let text = choose(&all, Some(16), data_dir).unwrap_err().to_string();
        assert!(text.contains("postgresql-16") && text.contains("/data"), "{text}");
    }
}
