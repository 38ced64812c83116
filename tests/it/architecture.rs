//! Who may import whom. The tables below are the law; `ARCHITECTURE.md` shows the first of them to
//! readers, and must show the same.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use self::source::{Use, uses};

/// Each room under `src/` and the rooms that it may use.
const ROOMS: &[(&str, &[&str])] = &[
    ("duration", &[]),
    ("json", &[]),
    ("job", &["duration"]),
    ("retry", &["duration", "job"]),
    ("life", &["duration", "job", "retry"]),
    ("uniqueness", &["duration", "json", "job"]),
    ("settings", &["duration", "job", "uniqueness"]),
    ("job_types", &["duration", "json", "job", "uniqueness", "settings"]),
    ("wakeups", &["job"]),
    ("mutants", &[]),
    (
        "store",
        &["duration", "job", "life", "uniqueness", "settings", "job_types"],
    ),
    (
        "dispatch",
        &[
            "duration",
            "json",
            "job",
            "uniqueness",
            "settings",
            "job_types",
            "wakeups",
            "store",
        ],
    ),
    ("work", &["duration", "job", "life", "wakeups", "store"]),
    ("maintenance", &["life", "wakeups", "store", "work"]),
    (
        "http",
        &[
            "duration",
            "json",
            "job",
            "life",
            "uniqueness",
            "settings",
            "job_types",
            "wakeups",
            "store",
            "dispatch",
            "work",
        ],
    ),
    (
        "trigger_dev",
        &[
            "duration",
            "json",
            "job",
            "life",
            "uniqueness",
            "settings",
            "store",
            "dispatch",
            "work",
            "http",
        ],
    ),
    ("client", &["duration", "json", "job"]),
    ("embedded", &[]),
    ("config", &["job_types", "store", "dispatch", "work", "http"]),
    ("telemetry", &[]),
    (
        "server",
        &[
            "wakeups",
            "store",
            "dispatch",
            "work",
            "maintenance",
            "http",
            "trigger_dev",
            "config",
        ],
    ),
    (
        "cli",
        &[
            "duration",
            "json",
            "job",
            "settings",
            "job_types",
            "store",
            "dispatch",
            "work",
            "http",
            "client",
            "embedded",
            "config",
            "telemetry",
            "server",
        ],
    ),
    // The binary.
    ("main", &["cli"]),
];

/// Things from outside that only some rooms may touch.
const OUTSIDE: &[(&str, &[&str])] = &[
    ("sqlx", &["store"]),
    ("futures_util", &["store"]),
    ("cel", &["job_types"]),
    ("toml", &["cli"]),
    ("axum", &["http", "trigger_dev", "server"]),
    ("tower", &["http", "server"]),
    ("tower_http", &["http", "server"]),
    ("utoipa", &["http", "server"]),
    ("utoipa_axum", &["http", "server"]),
    ("utoipa_swagger_ui", &["http", "server"]),
    ("pulldown_cmark", &["http"]),
    ("sha2", &["uniqueness", "store"]),
    ("http_body", &["http"]),
    ("clap", &["cli"]),
    ("hyper", &["client", "server"]),
    ("hyper_rustls", &["client"]),
    ("hyper_util", &["client", "server"]),
    ("http_body_util", &["client"]),
    ("rustls", &["client", "server"]),
    ("tokio_rustls", &["client", "server"]),
    ("indicatif", &["cli"]),
    // The environment is read in cli; embedded keeps what libpq would read of it from its children. Mutants are in no
    // build that is used.
    ("std::env", &["cli", "embedded", "mutants"]),
    ("rustix", &["embedded", "cli", "server"]),
    ("tracing_subscriber", &["telemetry"]),
    // What reaches out of the process, waits, or looks at a clock has no place in a pure room.
    ("tokio", IMPURE),
    ("tokio_util", IMPURE),
    ("tracing", IMPURE),
    ("metrics", IMPURE),
    ("moka", IMPURE),
    ("rand", IMPURE),
    ("getrandom", IMPURE),
    ("std::time::SystemTime", IMPURE),
    ("std::time::Instant", IMPURE),
    ("derive(Serialize)", SERIAL),
    ("derive(Deserialize)", SERIAL),
];
/// All but duration, json, job, retry, life, uniqueness, settings and job_types.
const IMPURE: &[&str] = &[
    "wakeups",
    "store",
    "dispatch",
    "work",
    "maintenance",
    "http",
    "trigger_dev",
    "client",
    "embedded",
    "config",
    "telemetry",
    "server",
    "cli",
    "main",
];
/// Wire types are no domain values: the pure core has none. The definition of a job type is a document, in one form
/// wherever it stands.
const SERIAL: &[&str] = &[
    "job",
    "settings",
    "job_types",
    "store",
    "dispatch",
    "http",
    "trigger_dev",
    "client",
    "config",
    "server",
    "cli",
];

/// Names under which everything ends up in the end.
const NO_NAMES: &[&str] = &["util", "utils", "helper", "helpers", "common", "misc", "shared"];
const LONGEST_FILE: usize = 600;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The modules above what a file holds: `src/http/jobs.rs` is `["http", "jobs"]`, `src/lib.rs` nothing.
fn module_path(file: &str) -> Vec<&str> {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    let mut parts = path.split('/').collect::<Vec<_>>();
    if matches!(parts.last(), Some(&"mod" | &"lib")) {
        parts.pop();
    }
    parts
}

fn allowed<'a>(table: &[(&str, &'a [&'a str])], name: &str) -> Option<&'a [&'a str]> {
    table
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, allowed)| *allowed)
}

/// Everything in a file that the tables forbid.
fn violations(file: &str, text: &str) -> Vec<String> {
    let modules = module_path(file);
    let Some(room) = modules.first() else {
        // lib.rs lists the rooms, and may link to them.
        return Vec::new();
    };
    let Some(may_use) = allowed(ROOMS, room) else {
        return vec![format!(
            "{file}: the room {room} is in no table of tests/it/architecture.rs"
        )];
    };
    let outside = OUTSIDE.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    let mut found = Vec::new();
    for (line, what) in uses(text, modules.len(), &outside) {
        let fault = match &what {
            Use::Room(other) if other == room || may_use.contains(&other.as_str()) => continue,
            Use::Room(other) if allowed(ROOMS, other).is_none() => format!("`crate::{other}` is no room"),
            Use::Room(other) => format!("{room} may not use {other}"),
            Use::Root => "name each room in a `use` of its own: `use crate::room::…`".to_owned(),
            Use::Outside(name) if allowed(OUTSIDE, name).is_some_and(|rooms| rooms.contains(room)) => continue,
            Use::Outside(name) => format!("{room} may not use {name}"),
        };
        found.push(format!("{file}:{line}: {fault}"));
    }
    found
}

#[test]
fn no_room_uses_what_it_may_not() {
    let src = root().join("src");
    let mut found = Vec::new();
    for file in rust_files(&src) {
        let name = file.strip_prefix(&src).unwrap().to_str().unwrap().to_owned();
        found.extend(violations(&name, &std::fs::read_to_string(&file).unwrap()));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_room_of_the_table_is_there() {
    let src = root().join("src");
    let rooms = ROOMS.iter().map(|(room, _)| *room);
    let missing = rooms.filter(|room| !src.join(room).is_dir() && !src.join(format!("{room}.rs")).is_file());
    assert_eq!(
        missing.collect::<Vec<_>>(),
        Vec::<&str>::new(),
        "rooms of the table that do not exist"
    );
}

#[test]
fn the_table_has_no_circles() {
    fn reaches(from: &str, to: &str) -> bool {
        let next = allowed(ROOMS, from).unwrap_or_default();
        next.contains(&to) || next.iter().any(|room| reaches(room, to))
    }
    for (room, may_use) in ROOMS {
        for other in *may_use {
            assert!(
                allowed(ROOMS, other).is_some(),
                "{room} may use {other}, which is no room"
            );
            assert!(!reaches(other, room), "{room} and {other} may use each other");
        }
    }
}

#[test]
fn no_file_is_too_long_or_named_after_nothing() {
    let mut found = Vec::new();
    for folder in ["src", "tests", "benches", "examples"] {
        let folder = root().join(folder);
        for file in if folder.is_dir() {
            rust_files(&folder)
        } else {
            Vec::new()
        } {
            let text = std::fs::read_to_string(&file).unwrap();
            found.extend(file_faults(file.strip_prefix(root()).unwrap().to_str().unwrap(), &text));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

fn file_faults(file: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let lines = text.lines().count();
    if lines > LONGEST_FILE {
        found.push(format!("{file} has {lines} lines, more than {LONGEST_FILE}"));
    }
    for name in module_path(file)
        .into_iter()
        .chain(source::modules(text).iter().map(String::as_str))
    {
        if NO_NAMES.contains(&name) {
            found.push(format!("{file}: `{name}` says nothing about what is in it"));
        }
    }
    found
}

/// The rows of the table whose head begins `| room | may use |`. A cell lists rooms, or says `nothing`,
/// `everything` or `everything but a, b`.
fn documented(markdown: &str) -> BTreeMap<String, BTreeSet<String>> {
    let cells = |line: &str| -> Vec<String> {
        let inner = line.trim().trim_matches('|');
        inner
            .split('|')
            .map(|cell| cell.replace('`', "").trim().to_lowercase())
            .collect()
    };
    let names = |list: &str| -> BTreeSet<String> {
        let names = list
            .split([',', ' '])
            .filter(|name| !name.is_empty() && *name != "and" && *name != "nothing");
        names.map(str::to_owned).collect()
    };
    let mut lines = markdown
        .lines()
        .skip_while(|line| !cells(line).starts_with(&["room".into(), "may use".into()]));
    lines.next();
    let rows = lines
        .skip(1)
        .take_while(|line| line.trim_start().starts_with('|'))
        .map(cells);
    let rows = rows.filter(|row| row.len() >= 2).collect::<Vec<_>>();
    let all = rows.iter().map(|row| row[0].clone()).collect::<BTreeSet<_>>();
    let resolved = rows.iter().map(|row| {
        let may_use = match row[1].strip_prefix("everything") {
            Some(but) => {
                let excepted = names(but.trim_start().trim_start_matches("but"));
                all.iter()
                    .filter(|room| **room != row[0] && !excepted.contains(*room))
                    .cloned()
                    .collect()
            }
            None => names(&row[1]),
        };
        (row[0].clone(), may_use)
    });
    resolved.collect()
}

#[test]
fn the_document_shows_the_same_table() {
    let markdown = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let shown = documented(&markdown);
    let law = ROOMS.iter().filter(|(room, _)| *room != "main");
    let law = law.map(|(room, may)| ((*room).to_owned(), may.iter().map(|name| (*name).to_owned()).collect()));
    assert_eq!(
        shown,
        law.collect(),
        "ARCHITECTURE.md (left) and tests/it/architecture.rs (right) differ"
    );
}

/// A law whose breach nobody notices is none.
mod self_test {
    use super::{documented, file_faults, violations};

    #[track_caller]
    fn refused(file: &str, text: &str) {
        assert!(!violations(file, text).is_empty(), "not refused in {file}: {text}");
    }

    #[track_caller]
    fn accepted(file: &str, text: &str) {
        assert_eq!(
            violations(file, text),
            Vec::<String>::new(),
            "refused in {file}: {text}"
        );
    }

    #[test]
    fn rooms_are_seen_however_they_are_named() {
        refused("uniqueness/decide.rs", "use crate::store::Store;");
        refused("uniqueness/decide.rs", "fn f() { crate::store::open() }");
        refused("uniqueness/decide.rs", "use crate :: store :: Store;");
        refused("uniqueness/decide.rs", "pub(in crate::store) fn f() {}");
        refused("uniqueness/decide.rs", "use super::super::store::Store;");
        refused("uniqueness/mod.rs", "use super::store::Store;");
        refused("duration.rs", "use super::job::Job;");
        refused("duration.rs", "mod tests { use super::super::job::Job; }");
        refused("store/mod.rs", "use crate::http;");
        refused("http/mod.rs", "use crate::embedded::Cluster;");
        refused("server.rs", "use crate::cli::run;");
        refused("main.rs", "fn main() { solejob::store::open() }");
        refused("cellar/mod.rs", "fn f() {}");
        refused("store/mod.rs", "use crate::cellar::Wine;");
        refused("store/mod.rs", "use crate::{job::Job, http};");
        refused("store/mod.rs", "use crate::*;");
        refused("store/mod.rs", "use super::{http::X};");
        accepted(
            "uniqueness/decide.rs",
            "use crate::job::JobId; use crate::uniqueness::key::Key; use super::key::Key;",
        );
        accepted("store/mod.rs", "use crate::job::{JobId, State};");
        accepted("uniqueness/mod.rs", "mod tests { use super::*; use super::key::Key; }");
        accepted("duration.rs", "mod tests { use super::{parse, print}; }");
        accepted("main.rs", "fn main() { solejob::cli::run() }");
        accepted("store/mod.rs", "macro_rules! m { () => { $crate::http::X } }");
        accepted("lib.rs", "pub mod http; pub use crate::http::X;");
    }

    #[test]
    fn what_is_from_outside_is_seen_however_it_is_named() {
        refused("http/jobs.rs", "use sqlx::PgPool;");
        refused("http/jobs.rs", "fn f(pool: &::sqlx::PgPool) {}");
        refused("http/jobs.rs", "use sqlx;");
        refused("http/jobs.rs", "use {sqlx::PgPool, std::fmt};");
        refused("http/jobs.rs", "#[derive(Debug, sqlx::FromRow)] struct X;");
        refused("server.rs", "use sqlx::PgPool;");
        refused("cli/mod.rs", "use sqlx::PgPool;");
        refused("dispatch/mod.rs", "use axum::Router;");
        refused("store/mod.rs", "use utoipa::ToSchema;");
        refused("dispatch/mod.rs", "use sha2::Sha256;");
        refused("config.rs", "use clap::Parser;");
        refused("config.rs", "let x = std::env::var_os(\"X\");");
        refused("config.rs", "use std::{env, fmt};");
        refused("config.rs", "use std::{fmt, env::var};");
        refused("config.rs", "use std::env;");
        refused("uniqueness/mod.rs", "use tokio::sync::Mutex;");
        refused("uniqueness/mod.rs", "tracing::info!(\"x\");");
        refused("uniqueness/mod.rs", "#[derive(Debug, Serialize)] struct X;");
        refused("uniqueness/mod.rs", "#[derive(serde::Deserialize)] struct X;");
        refused("job.rs", "use std::time::{Duration, SystemTime};");
        accepted("store/mod.rs", "use sqlx::PgPool; use sha2::Sha256;");
        accepted("cli/mod.rs", "use std::env; use clap::Parser;");
        accepted("config.rs", "const X: &str = env!(\"CARGO_PKG_VERSION\");");
        accepted("config.rs", "use std::fmt; struct X { env: u8 }");
        accepted("uniqueness/mod.rs", "use chrono::DateTime; use std::time::Duration;");
        accepted(
            "dispatch/mod.rs",
            "use crate::store::axum_like; let x = self.sqlx.clone();",
        );
    }

    #[test]
    fn comments_and_texts_are_no_code() {
        accepted(
            "duration.rs",
            "//! See [`crate::store`].\n// use sqlx::X;\n/* use crate::http; /* sqlx::X */ */ fn f() {}",
        );
        accepted(
            "duration.rs",
            r###"const X: &str = "use crate::http::Y;"; const Y: &str = r#"sqlx::X " crate::cli"#;"###,
        );
        accepted(
            "duration.rs",
            r#"const X: &[u8] = b"\"crate::http"; const C: char = '"'; use std::fmt;"#,
        );
        refused(
            "duration.rs",
            r#"const C: char = '"'; use crate::http::X; const D: char = '\''; fn f<'a>(x: &'a str) {}"#,
        );
        refused("duration.rs", "/* a */ use crate::http::X; // b");
        refused("duration.rs", "const X: &str = \"a\\\\\"; use crate::http::X;");
    }

    #[test]
    fn long_files_and_empty_names_are_seen() {
        assert!(!file_faults("src/store/utils.rs", "").is_empty());
        assert!(!file_faults("src/common/mod.rs", "").is_empty());
        assert!(!file_faults("src/store/mod.rs", "pub(crate) mod helpers { fn f() {} }").is_empty());
        assert!(!file_faults("src/store/mod.rs", &"\n".repeat(601)).is_empty());
        assert!(file_faults("src/store/mod.rs", &"// mod utils;\n".repeat(600)).is_empty());
    }

    #[test]
    fn the_table_in_the_document_is_read() {
        let markdown = "# A\n\n| other | table |\n| - | - |\n| x | y |\n\n| room | may use | why |\n| --- | --- | --- |\n\
                        | `a` | nothing | x |\n| `b` | `a` | y |\n| c | a, `b` | |\n| d | everything but `c` | |\n\nText | more |";
        let shown = documented(markdown);
        let names = |room: &str| shown[room].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(shown.len(), 4);
        assert_eq!(names("a"), Vec::<&str>::new());
        assert_eq!(names("b"), ["a"]);
        assert_eq!(names("c"), ["a", "b"]);
        assert_eq!(names("d"), ["a", "b"]);
        assert!(documented("no table").is_empty());
    }
}

#[test]
fn the_binary_holds_no_mutant() {
    let binary = std::fs::read(env!("CARGO_BIN_EXE_solejob")).unwrap();
    let holds = |text: &[u8]| binary.windows(text.len()).any(|window| window == text);
    assert!(holds(b"SOLEJOB_LISTEN"), "the names of variables can be found");
    assert_eq!(holds(b"SOLEJOB_MUTANT"), cfg!(feature = "mutants"));
}
