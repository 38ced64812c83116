//! `solejob dispatch --from`: the lines of a file, in batches. Bounded memory, however long the file is.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::cli::Error;
use crate::cli::dispatch::{self, Keys};
use crate::cli::lines::{self, LINE_BYTES, Lines};
use crate::cli::object::Object;
use crate::cli::parent::Parent;
use crate::cli::remote::{self, CONFLICT, USAGE, print};
use crate::client::{self, Client, Document, Repeat, printable};
use crate::json;

/// A batch is closed when it has this many bytes: well within what a server takes by default.
const BATCH_BYTES: usize = 4 << 20;
/// Faults beyond these are counted, not told one by one.
const TOLD_MAX: u64 = 100;

pub(super) struct Import {
    pub(super) client: Client,
    pub(super) json: bool,
    pub(super) continue_on_conflict: bool,
    /// Which keys lines get that have none.
    pub(super) keys: Option<Keys>,
    /// The parent that lines get which name none.
    pub(super) parent: Option<Parent>,
    pub(super) batch_size: usize,
}

struct Line {
    number: u64,
    text: String,
    repeat: Repeat,
}

#[derive(Default)]
struct Summary {
    lines: u64,
    created: u64,
    reused: u64,
    conflicts: u64,
    invalid: u64,
}

#[derive(Deserialize)]
struct Results<'a> {
    #[serde(borrow)]
    results: Vec<ItemResult<'a>>,
    created: u64,
    reused: u64,
}

#[derive(Deserialize)]
struct ItemResult<'a> {
    index: usize,
    #[serde(borrow)]
    receipt: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Serialize, Deserialize)]
struct Fault {
    code: String,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pointer: Option<String>,
}

/// Why the rest of the file is not sent.
enum Stop {
    Conflict,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

struct Run {
    import: Import,
    summary: Summary,
    bar: ProgressBar,
    told: u64,
    parent_explained: bool,
    /// With `--json`: what becomes of the lines of this batch, in order.
    results: BTreeMap<u64, String>,
}

impl Import {
    pub(super) async fn run(self, from: &Path) -> Result<ExitCode, Error> {
        let (lines, length) = if from.as_os_str() == "-" {
            (Lines::of(io::stdin()), None)
        } else {
            let unreadable = |error| Error::Usage(format!("{}: {error}", from.display()));
            let file = File::open(from).map_err(unreadable)?;
            let metadata = file.metadata().map_err(unreadable)?;
            (Lines::of(file), metadata.is_file().then_some(metadata.len()))
        };
        let mut run = Run {
            import: self,
            summary: Summary::default(),
            bar: progress(length),
            told: 0,
            parent_explained: false,
            results: BTreeMap::new(),
        };
        let outcome = run.all(lines).await;
        run.bar.finish_and_clear();
        run.end(outcome)
    }
}

fn progress(length: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match length {
        Some(length) => (ProgressBar::new(length), "{bar:30} {percent:>3}%  {msg}  {eta} left"),
        None => (ProgressBar::new_spinner(), "{spinner}  {msg}"),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr());
    // The templates are ours: they are well-formed.
    bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}

impl Run {
    async fn all(&mut self, mut lines: Lines) -> Result<(), Stop> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let mut text = Vec::new();
        loop {
            let read = lines.next(&mut text).await.map_err(Error::from)?;
            let ended = read == lines::Line::End;
            self.summary.lines += u64::from(!ended);
            match read {
                lines::Line::End => {}
                lines::Line::TooLong => {
                    let detail = format!("the line is longer than {LINE_BYTES} bytes");
                    self.invalid(self.summary.lines, fault("payload_too_large", detail))?;
                }
                lines::Line::Whole => {
                    if let Some(line) = self.line(&text)? {
                        bytes += line.text.len() + 1;
                        batch.push(line);
                    }
                }
            }
            if ended || batch.len() >= self.import.batch_size || bytes >= BATCH_BYTES {
                let sent = self.send(std::mem::take(&mut batch)).await;
                for (_, result) in std::mem::take(&mut self.results) {
                    print(&result)?;
                }
                sent?;
                bytes = 0;
                let Summary {
                    created,
                    reused,
                    conflicts,
                    invalid,
                    ..
                } = self.summary;
                self.bar.set_position(lines.taken);
                self.bar.set_message(format!(
                    "{created} created, {reused} reused, {conflicts} conflicts, {invalid} invalid"
                ));
            }
            if ended {
                return Ok(());
            }
        }
    }

    /// A line as it is sent; none if it is blank or no JSON, which would not stay within its place in a batch.
    fn line(&mut self, bytes: &[u8]) -> Result<Option<Line>, Error> {
        let number = self.summary.lines;
        let bytes = bytes
            .strip_prefix(b"\xef\xbb\xbf")
            .filter(|_| number == 1)
            .unwrap_or(bytes);
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(None);
        }
        let text = match json::check(bytes, json::MAX_DEPTH) {
            Ok(text) => text.trim(),
            Err(error) => {
                let mut fault = fault("invalid_json", error.to_string());
                fault.pointer = Some(error.pointer).filter(|pointer| !pointer.is_empty());
                self.invalid(number, fault)?;
                return Ok(None);
            }
        };
        // What is no object is sent as it is: the server says best what is wrong with it.
        let Ok(mut object) = serde_json::from_str::<Object>(text) else {
            return Ok(Some(Line {
                number,
                text: text.into(),
                repeat: Repeat::Safe,
            }));
        };
        let Import { keys, parent, .. } = &self.import;
        let repeat = give_key(&mut object, number, keys.as_ref())?;
        if let Some(parent) = parent
            && !object.has("parent")
        {
            object.set("parent", to_raw_value(parent).map_err(unwritable)?);
        }
        let text = if keys.is_some() || parent.is_some() {
            serde_json::to_string(&object).map_err(unwritable)?
        } else {
            text.into()
        };
        Ok(Some(Line { number, text, repeat }))
    }

    /// Sends lines until each is stored or told to be at fault.
    async fn send(&mut self, lines: Vec<Line>) -> Result<(), Stop> {
        let mut parts = VecDeque::from([lines]);
        while let Some(mut lines) = parts.pop_front() {
            if lines.is_empty() {
                continue;
            }
            let problem = match self.post(&lines).await {
                Ok(document) => {
                    self.stored(&lines, &document)?;
                    continue;
                }
                Err(client::Error::Problem(problem)) => problem,
                Err(error) => return Err(self.lost(&lines, error)),
            };
            if !problem.errors.is_empty() {
                // Nothing was stored. The others go again without the lines that are named.
                let mut named = BTreeMap::new();
                for error in &problem.errors {
                    let here = format!("/jobs/{}", error.index);
                    let pointer = error.pointer.as_deref().unwrap_or_default();
                    let pointer = pointer.strip_prefix(&here).unwrap_or(pointer).to_owned();
                    let fault = Fault {
                        code: error.code.clone(),
                        detail: error.detail.clone(),
                        pointer: Some(pointer).filter(|pointer| !pointer.is_empty()),
                    };
                    named.insert(error.index, fault);
                }
                let parent = self.import.parent.as_ref().filter(|_| !self.parent_explained);
                if let Some(hint) = named.values().find_map(|fault| parent?.explain(&fault.code)) {
                    self.parent_explained = true;
                    self.bar.suspend(|| remote::tell(&hint));
                }
                let before = lines.len();
                let mut kept = Vec::new();
                for (index, line) in lines.into_iter().enumerate() {
                    match named.remove(&index) {
                        Some(fault) => self.invalid(line.number, fault)?,
                        None => kept.push(line),
                    }
                }
                if kept.len() == before {
                    return Err(Stop::Failed(client::Error::Problem(problem).into()));
                }
                parts.push_front(kept);
            } else if problem.status == 413 && lines.len() > 1 {
                let rest = lines.split_off(lines.len() / 2);
                self.import.batch_size = self.import.batch_size.min(lines.len());
                parts.push_front(rest);
                parts.push_front(lines);
            } else if problem.status == 413 {
                self.invalid(lines[0].number, fault(&problem.code, problem.detail))?;
            } else if let (409, Some(line)) = (problem.status, problem.index.and_then(|index| lines.get(index))) {
                self.conflict(line.number, &problem.text, &problem.to_string());
                remote::tell(&format!(
                    "stopped: nothing of lines {} to {} is stored; with --continue-on-conflict the others would be",
                    lines[0].number,
                    lines[lines.len() - 1].number
                ));
                return Err(Stop::Conflict);
            } else {
                return Err(self.lost(&lines, client::Error::Problem(problem)));
            }
        }
        Ok(())
    }

    async fn post(&self, lines: &[Line]) -> Result<Document, client::Error> {
        let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        let body = format!(
            "{{\"jobs\":[{}],\"continue_on_conflict\":{}}}",
            texts.join(","),
            self.import.continue_on_conflict
        );
        let safe = lines.iter().all(|line| line.repeat == Repeat::Safe);
        let repeat = if safe { Repeat::Safe } else { Repeat::IfNothingDone };
        self.import.client.batch(body, repeat).await
    }

    fn stored(&mut self, lines: &[Line], document: &Document) -> Result<(), Stop> {
        let Results {
            results,
            created,
            reused,
        } = document.read().map_err(Error::from)?;
        self.summary.created += created;
        self.summary.reused += reused;
        for ItemResult { index, receipt, error } in results {
            let Some(line) = lines.get(index) else { continue };
            if let Some(error) = error {
                let told: Result<Fault, _> = serde_json::from_str(error.get());
                let told = told.map_or_else(|_| error.get().into(), |fault| fault.to_string());
                self.conflict(line.number, error.get(), &told);
            } else if let Some(receipt) = receipt
                && self.import.json
            {
                let result = format!("{{\"line\":{},\"receipt\":{}}}", line.number, receipt.get());
                self.results.insert(line.number, result);
            }
        }
        Ok(())
    }

    fn conflict(&mut self, number: u64, text: &str, told: &str) {
        self.summary.conflicts += 1;
        self.tell(number, told);
        if self.import.json {
            self.results
                .insert(number, format!("{{\"line\":{number},\"error\":{text}}}"));
        }
    }

    fn invalid(&mut self, number: u64, fault: Fault) -> Result<(), Error> {
        self.summary.invalid += 1;
        self.tell(number, &fault.to_string());
        if self.import.json {
            let text = serde_json::to_string(&fault).map_err(unwritable)?;
            self.results
                .insert(number, format!("{{\"line\":{number},\"error\":{text}}}"));
        }
        Ok(())
    }

    fn tell(&mut self, number: u64, what: &str) {
        self.told += 1;
        if self.told <= TOLD_MAX {
            self.bar.suspend(|| remote::tell(&format!("line {number}: {what}")));
        } else if self.told == TOLD_MAX + 1 {
            let more = "more lines are at fault: they are counted, and --json names them all";
            self.bar.suspend(|| remote::tell(more));
        }
    }

    fn lost(&self, lines: &[Line], error: client::Error) -> Stop {
        let (first, last) = (lines[0].number, lines[lines.len() - 1].number);
        let what = if error.may_be_done() {
            "may be stored or not, all or none"
        } else {
            "are not stored"
        };
        self.bar
            .suspend(|| remote::tell(&format!("stopped: lines {first} to {last} {what}")));
        Stop::Failed(error.into())
    }

    fn end(self, outcome: Result<(), Stop>) -> Result<ExitCode, Error> {
        let Summary {
            lines,
            created,
            reused,
            conflicts,
            invalid,
        } = self.summary;
        let plural = if lines == 1 { "" } else { "s" };
        let summary = format!(
            "{lines} line{plural}: {created} created, {reused} reused, {conflicts} conflicts, {invalid} invalid"
        );
        if self.import.json {
            remote::tell(&summary);
        } else {
            print(&summary)?;
        }
        match outcome {
            Err(Stop::Failed(error)) => Err(error),
            Err(Stop::Conflict) => Ok(CONFLICT.into()),
            Ok(()) if invalid > 0 => Ok(USAGE.into()),
            Ok(()) if conflicts > 0 => Ok(CONFLICT.into()),
            Ok(()) => Ok(ExitCode::SUCCESS),
        }
    }
}

fn fault(code: &str, detail: impl Into<String>) -> Fault {
    Fault {
        code: code.into(),
        detail: detail.into(),
        pointer: None,
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, printable(&self.detail))?;
        match &self.pointer {
            Some(pointer) => write!(f, " (at {})", printable(pointer)),
            None => Ok(()),
        }
    }
}

fn unwritable(error: serde_json::Error) -> Error {
    Error::Io(error.into())
}

/// Gives a dispatch a key, unless it has one in either spelling, and says if it is safe to send twice.
fn give_key(dispatch: &mut Object, number: u64, keys: Option<&Keys>) -> Result<Repeat, Error> {
    let uniqueness = dispatch
        .get("uniqueness")
        .map(RawValue::get)
        .filter(|text| *text != "null");
    let Ok(mut uniqueness) = serde_json::from_str::<Object>(uniqueness.unwrap_or("{}")) else {
        // It will be refused.
        return Ok(Repeat::Safe);
    };
    let has_key = uniqueness.has("window_key") || uniqueness.has("idempotency_key") || dispatch.has("idempotency_key");
    let set = |object: &mut Object, name: &str, value: &str, replace: bool| {
        if replace || !object.has(name) {
            object.set(name, to_raw_value(value).map_err(unwritable)?);
        }
        Ok::<_, Error>(())
    };
    match keys.filter(|_| !has_key) {
        None => {}
        Some(Keys::Window { prefix, window }) => {
            set(&mut uniqueness, "window_key", &format!("{prefix}/{number}"), true)?;
            set(&mut uniqueness, "window", window, false)?;
            dispatch.set("uniqueness", to_raw_value(&uniqueness).map_err(unwritable)?);
        }
        Some(Keys::Idempotency { prefix, ttl, scope }) => {
            set(dispatch, "idempotency_key", &format!("{prefix}/{number}"), true)?;
            if let Some(ttl) = ttl {
                set(dispatch, "idempotency_key_ttl", ttl, false)?;
            }
            if let Some(scope) = scope {
                set(dispatch, "idempotency_key_scope", scope, false)?;
            }
        }
    }
    let text = |object: &Object, name: &str| -> Option<String> { serde_json::from_str(object.get(name)?.get()).ok() };
    let released = |unless_given| match uniqueness.has("release_on") {
        true => uniqueness.get("release_on").is_some_and(|list| list.get() != "[]"),
        false => unless_given,
    };
    Ok(match dispatch.has("idempotency_key") {
        true => dispatch::repeat_by_idempotency_key(text(dispatch, "idempotency_key_ttl").as_deref(), released(true)),
        false => dispatch::repeat(
            uniqueness.has("window_key"),
            text(&uniqueness, "window").as_deref(),
            released(false),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of line 1.
    fn given(text: &str, keys: &Keys) -> (String, Repeat) {
        let mut object: Object = serde_json::from_str(text).unwrap();
        let repeat = give_key(&mut object, 1, Some(keys)).unwrap();
        (serde_json::to_string(&object).unwrap(), repeat)
    }

    #[test]
    fn keys_are_given_to_those_without() {
        let keys = Keys::Window {
            prefix: "k".into(),
            window: "7d".into(),
        };
        let key = r#""window_key":"k/1","window":"7d""#;
        let table = [
            (
                r#"{"name":"a","payload":1.0}"#,
                format!(r#"{{"name":"a","payload":1.0,"uniqueness":{{{key}}}}}"#),
                true,
            ),
            (r#"{"uniqueness":null}"#, format!(r#"{{"uniqueness":{{{key}}}}}"#), true),
            (
                r#"{"uniqueness":{"active_key":"x"}}"#,
                format!(r#"{{"uniqueness":{{"active_key":"x",{key}}}}}"#),
                true,
            ),
            (
                r#"{"uniqueness":{"window_key":null}}"#,
                format!(r#"{{"uniqueness":{{{key}}}}}"#),
                true,
            ),
            (
                r#"{"uniqueness":{"window_key":"own","window":"1h"}}"#,
                r#"{"uniqueness":{"window_key":"own","window":"1h"}}"#.into(),
                true,
            ),
            (
                r#"{"uniqueness":{"window_key":"own","window":"1h","release_on":["failed"]}}"#,
                r#"{"uniqueness":{"window_key":"own","window":"1h","release_on":["failed"]}}"#.into(),
                false,
            ),
            (
                r#"{"idempotency_key":"own"}"#,
                r#"{"idempotency_key":"own"}"#.into(),
                false,
            ),
        ];
        for (text, wanted, safe) in table {
            let repeat = if safe { Repeat::Safe } else { Repeat::IfNothingDone };
            assert_eq!(given(text, &keys), (wanted, repeat), "{text}");
        }
    }

    #[test]
    fn idempotency_keys_are_given_to_those_without() {
        let keys = |ttl: Option<&str>, scope: Option<&str>| Keys::Idempotency {
            prefix: "k".into(),
            ttl: ttl.map(Into::into),
            scope: scope.map(Into::into),
        };
        let table = [
            (keys(None, None), "{}", r#"{"idempotency_key":"k/1"}"#, false),
            (
                keys(Some("1h"), Some("run")),
                r#"{"idempotency_key":null,"idempotency_key_scope":"global"}"#,
                r#"{"idempotency_key":"k/1","idempotency_key_scope":"global","idempotency_key_ttl":"1h"}"#,
                false,
            ),
            (
                keys(None, None),
                r#"{"uniqueness":{"release_on":[]}}"#,
                r#"{"uniqueness":{"release_on":[]},"idempotency_key":"k/1"}"#,
                true,
            ),
            (
                keys(Some("1s"), None),
                r#"{"uniqueness":{"release_on":[]}}"#,
                r#"{"uniqueness":{"release_on":[]},"idempotency_key":"k/1","idempotency_key_ttl":"1s"}"#,
                false,
            ),
            (
                keys(None, Some("run")),
                r#"{"uniqueness":{"window_key":"own","window":"1h"}}"#,
                r#"{"uniqueness":{"window_key":"own","window":"1h"}}"#,
                true,
            ),
        ];
        for (keys, text, wanted, safe) in table {
            let repeat = if safe { Repeat::Safe } else { Repeat::IfNothingDone };
            assert_eq!(given(text, &keys), (wanted.to_owned(), repeat), "{text}");
        }
    }
}
