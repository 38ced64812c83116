//! What is promised in `docs/guarantees.md` names tests, and they are there.

use std::collections::BTreeSet;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &Path, all: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// Every function that is marked as a test.
fn tests() -> BTreeSet<String> {
    let mut all = String::new();
    sources(&root().join("tests"), &mut all);
    sources(&root().join("src"), &mut all);
    let mut names = BTreeSet::new();
    let mut marked = false;
    for line in all.lines().map(str::trim) {
        marked |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let name = line.trim_start_matches("async ").strip_prefix("fn ");
        if let Some((name, _)) = name.filter(|_| marked).and_then(|rest| rest.split_once('(')) {
            names.insert(name.to_owned());
            marked = false;
        }
    }
    names
}

/// What stands in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// A name of ours: words with lines between them.
fn is_name(text: &str) -> bool {
    text.matches('_').count() >= 2
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Settings of PostgreSQL, which look like names.
const SETTINGS: [&str; 4] = [
    "synchronous_standby_names",
    "max_locks_per_transaction",
    "full_page_writes",
    "tcp_user_timeout",
];

#[test]
fn every_guarantee_names_tests_that_are_there() {
    let (page, tests) = (
        std::fs::read_to_string(root().join("docs/guarantees.md")).unwrap(),
        tests(),
    );
    let mut source = String::new();
    sources(&root().join("src"), &mut source);
    let mut missing = Vec::new();
    for name in quoted(&page) {
        let is_there = if name.ends_with(".json") {
            root().join("tests/cases").join(name).is_file()
        } else if root().join(format!("docs/problems/{name}.md")).is_file() {
            true
        } else {
            !is_name(name)
                || SETTINGS.contains(&name)
                || tests.contains(name)
                || source.contains(&format!("\"{name}\":"))
        };
        if !is_there {
            missing.push(name);
        }
    }
    assert_eq!(
        missing,
        Vec::<&str>::new(),
        "named in docs/guarantees.md, and nowhere else"
    );
    let promises = page
        .split("## Promises")
        .nth(1)
        .and_then(|rest| rest.split("\n## ").next())
        .unwrap();
    for row in promises.lines().filter(|line| line.starts_with("| ")).skip(2) {
        assert!(
            quoted(row).any(|name| tests.contains(name)),
            "a promise without a test: {row}"
        );
    }
}

#[test]
fn every_mutant_is_spoken_of() {
    let page = std::fs::read_to_string(root().join("docs/guarantees.md")).unwrap();
    let mut source = String::new();
    sources(&root().join("src"), &mut source);
    let names = source
        .split("mutant!(")
        .skip(1)
        .filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
    let names: Vec<&str> = names.collect();
    assert!(names.len() >= 12, "{names:?}");
    let ledger = std::fs::read_to_string(root().join("docs/fault-runs.md")).unwrap();
    let missing = names
        .iter()
        .filter(|name| !page.contains(**name) && !ledger.contains(**name));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&&str>::new());
}
