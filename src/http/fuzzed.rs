//! What is fuzzed, and what has to hold of it. Each function takes any bytes at all; it panics if something is wrong, and
//! nothing else it calls may. `fuzz/` calls them with what a fuzzer makes up, and the test below with what is kept of that.

use std::sync::Arc;

use axum::http::HeaderValue;
use chrono::{DateTime, Utc};
use serde_json::value::RawValue;

use crate::dispatch::Parents;
use crate::dispatch::prepare::{Prepared, Request, Surroundings, job_id_of, prepare};
use crate::duration::{self, Millis};
use crate::http::extract::{Query, check, parse};
use crate::http::idempotency;
use crate::http::job_types::JobTypeBody;
use crate::http::jobs;
use crate::http::problem::Problem;
use crate::http::wire::DispatchBody;
use crate::job_types::definition::{Definition, JobType};
use crate::job_types::registry::Snapshot;
use crate::job_types::selector::{Input, Selector};
use crate::json::{self, FaultKind, MAX_DEPTH};
use crate::settings::Invalid;
use crate::uniqueness::canonical;
use crate::uniqueness::key::{Key, KeyText, Scope};

/// One thing to be fuzzed.
pub type Target = fn(&[u8]);

/// All of them, by the names of their directories in `fuzz/corpus`.
pub const TARGETS: &[(&str, Target)] = &[
    ("cursor", cursor),
    ("dispatch", dispatch),
    ("duration", duration),
    ("json", json),
    ("key", key),
    ("query", query),
    ("selector", selector),
];

/// The strict reader refuses no more and no less than it says, and what it lets pass has a canonical form.
pub fn json(bytes: &[u8]) {
    let checked = json::check(bytes, MAX_DEPTH);
    let Ok(text) = std::str::from_utf8(bytes) else {
        assert!(checked.is_err(), "this is no UTF-8 and passed");
        return;
    };
    // serde_json knows neither depth, duplicates nor lone surrogates here, but it knows the grammar.
    let grammar = serde_json::from_str::<&RawValue>(text).is_ok();
    match &checked {
        Ok(_) => assert!(grammar, "this is no JSON and passed"),
        Err(fault) => {
            assert!(!fault.detail.is_empty());
            assert!(fault.pointer.is_empty() || fault.pointer.starts_with('/'));
            match fault.kind {
                FaultKind::Syntax => assert!(!grammar, "this is JSON and did not pass: {fault:?}"),
                FaultKind::Encoding => panic!("this is UTF-8: {fault:?}"),
                FaultKind::Surrogate | FaultKind::Depth | FaultKind::DuplicateKey => {}
            }
        }
    }
    let form = canonical_form(text);
    assert_eq!(form.is_some(), checked.is_ok(), "the two readers differ");
    if form.is_some() {
        assert_eq!(form, canonical_form(&format!(" \r\n\t{text}\n ")), "white space counts");
        // In a list, so that what ends where is seen.
        let (one, two) = (
            canonical_form(&format!("[{text}]")),
            canonical_form(&format!("[{text},{text}]")),
        );
        assert!(one.is_none() || one != two, "one is two");
    }
}

fn canonical_form(text: &str) -> Option<Vec<u8>> {
    let mut form = b"before".to_vec();
    let written = canonical::write(text, &mut form);
    assert!(written.is_ok() || form == b"before", "a failure left something behind");
    written.is_ok().then_some(form)
}

/// The body of a dispatch is refused with a problem that says where, or prepared, twice alike.
pub fn dispatch(bytes: &[u8]) {
    let read = check(bytes, MAX_DEPTH).and_then(|_| parse::<DispatchBody>(bytes));
    let request = match read {
        Ok(body) => Request::from(body),
        Err(problem) => return refused(&problem),
    };
    match (prepared(&request), prepared(&request)) {
        (Ok(one), Ok(two)) => {
            assert_eq!(
                format!("{:?}", one.ask),
                format!("{:?}", two.ask),
                "prepared twice, it differs"
            );
            assert!(one.job.payload.len() <= PAYLOAD_BYTES);
            // A payload is stored to the letter.
            assert_eq!(Some(&*one.job.payload), request.payload.as_deref().or(Some("null")));
        }
        (Err(one), Err(two)) => {
            assert_eq!(one, two);
            refused(&one.into());
        }
        (one, two) => panic!("once {one:?}, then {two:?}"),
    }
}

const PAYLOAD_BYTES: usize = 1 << 20;

fn prepared(request: &Request) -> Result<Prepared, Invalid> {
    prepare(
        request,
        &Surroundings {
            payload_bytes_max: PAYLOAD_BYTES,
            now: DateTime::<Utc>::UNIX_EPOCH,
            parents: &Parents::default(),
            types: &Snapshot::default(),
        },
    )
}

/// A client's mistake, never ours.
fn refused(problem: &Problem) {
    let status = problem.code().status();
    assert!((400..500).contains(&status), "{status}: {}", problem.detail());
    assert!(!problem.detail().is_empty());
    let pointer = problem.pointer().unwrap_or("/");
    assert!(pointer.starts_with('/'), "{pointer}");
}

/// A text is a key by its length and characters alone, and two dimensions or scopes make two keys of it.
pub fn key(bytes: &[u8]) {
    if let Ok(header) = HeaderValue::from_bytes(bytes) {
        match idempotency::read(&header) {
            Ok(text) => quoted(&text),
            Err(problem) => refused(&problem),
        }
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let fits = (1..=512).contains(&text.len()) && !text.chars().any(char::is_control);
    let key = KeyText::parse(text);
    assert_eq!(key.is_ok(), fits, "{key:?}");
    if let Ok(key) = key {
        assert_eq!(key.as_str(), text);
        let keys = [
            Key::active("n", key.clone()),
            Key::window("n", Scope::Global, key.clone()),
            Key::active("m", key),
        ];
        let digests = keys.map(|key| key.digest());
        assert!(digests[0] != digests[1] && digests[0] != digests[2] && digests[1] != digests[2]);
    }
}

/// What is read from a header is read again when it is quoted as the standard has it.
fn quoted(text: &str) {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    if let Ok(header) = HeaderValue::from_str(&format!("\"{escaped}\"")) {
        assert!(
            matches!(idempotency::read(&header), Ok(again) if again == text),
            "{text:?}"
        );
    }
}

/// What is read as a duration is printed so that it is read as the same.
pub fn duration(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match duration::parse(text) {
        Ok(Millis(millis)) => {
            let printed = Millis(millis).to_string();
            assert_eq!(
                duration::parse(&printed),
                Ok(Millis(millis)),
                "{text} is printed as {printed}"
            );
        }
        Err(error) => assert!(error.to_string().len() < 1_000, "{error}"),
    }
}

/// What is read as a cursor or as an id is written so that it is read as the same.
pub fn cursor(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match jobs::read_cursor(text) {
        Ok(id) => assert_eq!(jobs::write_cursor(id), text, "two cursors for one place"),
        Err(problem) => refused(&problem),
    }
    if let Some(id) = job_id_of(text) {
        assert_eq!(job_id_of(&id.0.to_string()), Some(id));
    }
}

/// A query string is taken apart, each member once, or refused.
pub fn query(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut query = match Query::parse(text) {
        Ok(query) => query,
        Err(problem) => return refused(&problem),
    };
    for name in ["name", "limit", "cursor"] {
        if let Err(problem) = query.take(name) {
            return refused(&problem);
        }
    }
    let metadata = query.take_all("metadata.");
    assert!(metadata.len() <= text.len());
    if let Err(problem) = query.end() {
        refused(&problem);
    }
}

/// An expression, and behind a NUL a payload: it compiles or not, and gives a key or not.
pub fn selector(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (expression, payload) = text
        .split_once('\0')
        .unwrap_or((text, "{\"a\": {\"b\": [1, 2.5, \"c\", null]}}"));
    if let Ok(selector) = Selector::compile(expression) {
        assert_eq!(selector.text(), expression);
        if json::check(payload.as_bytes(), MAX_DEPTH).is_ok() {
            let metadata = [("k".to_owned(), "v".to_owned())];
            let input = Input {
                payload,
                metadata: &metadata,
                name: "n",
                queue: "q",
            };
            let (one, two) = (selector.evaluate(&input), selector.evaluate(&input));
            assert_eq!(one, two, "evaluated twice, it differs");
        }
    }
    // The same text as what an application declares.
    if let Ok(body) = check(bytes, MAX_DEPTH).and_then(|_| parse::<JobTypeBody>(bytes)) {
        match JobType::compile("n", &Definition::from(body)).map(Arc::new) {
            Ok(kind) => drop(Snapshot::new(1, [("n".into(), Ok(kind))])),
            Err(invalid) => refused(&invalid.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    fn files(directory: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    #[test]
    fn what_fuzzing_has_kept_still_holds() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
        for (name, target) in TARGETS {
            let kept = files(&corpus.join(name));
            assert!(kept.len() >= 5, "{name} has hardly any corpus: {kept:?}");
            for file in kept {
                let bytes = std::fs::read(&file).unwrap();
                if let Err(panic) = std::panic::catch_unwind(|| target(&bytes)) {
                    eprintln!("in {}", file.display());
                    std::panic::resume_unwind(panic);
                }
            }
        }
        let names: Vec<_> = files(&corpus)
            .iter()
            .map(|path| path.file_name().unwrap().to_owned())
            .collect();
        assert_eq!(names, TARGETS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }

    #[test]
    fn every_body_and_text_of_the_cases_is_taken() {
        fn walk(value: &serde_json::Value, visit: &mut impl FnMut(&[u8])) {
            match value {
                serde_json::Value::String(text) => visit(text.as_bytes()),
                serde_json::Value::Array(items) => items.iter().for_each(|item| walk(item, visit)),
                serde_json::Value::Object(members) => {
                    visit(value.to_string().as_bytes());
                    members.values().for_each(|value| walk(value, visit));
                }
                _ => {}
            }
        }
        let mut seen = 0;
        for file in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")) {
            let cases = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
            walk(&cases, &mut |bytes| {
                seen += 1;
                // Compiling an expression takes a thread, and few of these texts are any.
                for (_, target) in TARGETS.iter().filter(|(name, _)| *name != "selector") {
                    target(bytes);
                }
            });
        }
        assert!(seen > 1_000, "{seen}");
    }
}
