//! The file of job types that a server is started with.
//!
//! ```toml
//! application = "default"
//! environment = "prod"
//!
//! [job_types.place-order]
//! unique_while_active = { key = "string(payload.order)" }
//! queue = "orders"
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::JobTypes;
use crate::http::job_types::JobTypeBody;
use crate::job_types::definition::{Definition, JobType};
use crate::settings::is_name;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    application: Spanned<String>,
    environment: Spanned<String>,
    #[serde(default)]
    job_types: BTreeMap<String, JobTypeBody>,
}

/// What is wrong with a file, and where.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    #[error("line {line}: {reason}")]
    At { line: usize, reason: String },
}

/// Reads and checks the file at `path`.
pub(super) fn read(path: &str) -> Result<JobTypes, Fault> {
    parse(&std::fs::read_to_string(Path::new(path))?)
}

/// The line in which a place of a text lies.
pub(super) fn line_of(text: &str, place: usize) -> usize {
    text.get(..place).unwrap_or(text).matches('\n').count() + 1
}

fn parse(text: &str) -> Result<JobTypes, Fault> {
    let at = |place: usize, reason: String| Fault::At {
        line: line_of(text, place),
        reason,
    };
    let file: File = toml::from_str(text).map_err(|error| {
        let place = error.span().map_or(0, |span| span.start);
        at(place, error.message().to_owned())
    })?;
    for name in [&file.application, &file.environment] {
        if !is_name(name.get_ref()) {
            let reason = "an application or environment is 1 to 128 of A-Z a-z 0-9 . _ : -".to_owned();
            return Err(at(name.span().start, reason));
        }
    }
    let mut types = Vec::with_capacity(file.job_types.len());
    for (name, body) in file.job_types {
        let definition = Definition::from(body);
        JobType::compile(&name, &definition).map_err(|invalid| {
            let place = place_of(text, &name, &invalid.pointer);
            at(place, format!("{name}{}: {}", invalid.pointer, invalid.detail))
        })?;
        types.push((name, definition));
    }
    Ok(JobTypes {
        application: file.application.into_inner(),
        environment: file.environment.into_inner(),
        types,
    })
}

/// Where the member of a type stands, or whatever of the way to it there is.
fn place_of(text: &str, name: &str, pointer: &str) -> usize {
    let Ok(document) = DeTable::parse(text) else { return 0 };
    let steps = ["job_types", name].into_iter().chain(pointer.split('/').skip(1));
    let (mut place, mut value) = (0, Some(DeValue::Table(document.into_inner())));
    for step in steps {
        let found = match value {
            Some(DeValue::Table(mut table)) => {
                let key = table.keys().find(|key| key.get_ref() == step).cloned();
                key.and_then(|key| Some((key.span().start, table.remove(&key)?.into_inner())))
            }
            Some(DeValue::Array(items)) => {
                let item = step.parse().ok().and_then(|index| items.into_iter().nth(index));
                item.map(|item| (item.span().start, item.into_inner()))
            }
            _ => None,
        };
        let Some((start, inner)) = found else { return place };
        (place, value) = (start, Some(inner));
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "application = \"default\"\nenvironment = \"prod\"\n";

    #[test]
    fn a_file_of_types() {
        let text = format!(
            "{HEAD}[job_types.\"a.b\"]\nqueue = \"q\"\nretry = {{ max_attempts = 3, factor = 2 }}\n\
             [job_types.c.unique_within_window]\nkey = \"payload.k\"\nwindow = \"24h\"\nrelease_on = [\"failed\"]\n"
        );
        let JobTypes {
            application,
            environment,
            types,
        } = parse(&text).unwrap();
        assert_eq!((&*application, &*environment), ("default", "prod"));
        let names: Vec<&str> = types.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a.b", "c"]);
        assert_eq!(types[0].1.retry.as_ref().unwrap().factor, Some(2.0));
        assert_eq!(types[1].1.unique_within_window.as_ref().unwrap().window, "24h");
        assert_eq!(parse(HEAD).unwrap().types.len(), 0);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, line, reason) in [
            ("application = 1", 1, "string"),
            ("application = \"a\"\n", 1, "environment"),
            ("application = \"a\"\nenvironment = \"no name\"", 2, "1 to 128"),
            ("application = \"a\"\nenvironment = \"b\"\nother = 1", 3, "other"),
            (
                "application = \"a\"\nenvironment = \"b\"\n\n[job_types.n]\nqeue = \"q\"",
                5,
                "qeue",
            ),
            (
                "application = \"a\"\nenvironment = \"b\"\n[job_types.n]\npriority = 1\nqueue = \"no name\"",
                5,
                "/queue",
            ),
            (
                "application = \"a\"\nenvironment = \"b\"\n[job_types.\"no name\"]\npriority = 1",
                3,
                "1 to 128",
            ),
            (
                "application = \"a\"\nenvironment = \"b\"\n[job_types.n]\n[job_types.n.unique_while_active]\nkey = \"env.X\"",
                5,
                "\"env\" is unknown",
            ),
            (
                "application = \"a\"\nenvironment = \"b\"\n[job_types.n.unique_within_window]\nkey = \"name\"\n\
                 window = \"1h\"\nrelease_on = [\n \"failed\",\n \"lost\"\n]",
                8,
                "final states",
            ),
            (
                "application = \"a\"\nenvironment = \"b\"\n[job_types.n]\nunique_while_active = [\"name\"]",
                4,
                "object",
            ),
            ("application = ", 1, ""),
        ] {
            match parse(text) {
                Err(Fault::At { line: at, reason: why }) => {
                    assert_eq!(at, line, "{text}: {why}");
                    assert!(why.contains(reason), "{text}: {why}");
                }
                other => panic!("{text}: {:?}", other.map(|file| file.types.len())),
            }
        }
    }
}
