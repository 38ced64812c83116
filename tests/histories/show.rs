//! A failure, in as few lines as show it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::plan::Ask;
use crate::record::{Call, History, Micros, NEVER, Op, Outcome, Record};
use crate::search::{NODES_MAX, explain};
use crate::steps::{Part, Step};

/// How long a failure is made shorter.
const PATIENCE: Duration = Duration::from_secs(15);

/// The least of a history that still has no order, and why.
pub(crate) fn unexplained(history: &History, parts: Vec<Part>, gave_up: bool) -> String {
    let (parts, shown) = shorten(parts);
    let mut text = String::new();
    let mut names = Names::default();
    let begin = history.records.first().map_or(0, |record| record.called);
    let is_shown = |record: &Record| {
        let mut own = parts
            .iter()
            .zip(&shown)
            .filter(|(part, _)| part.record == Some(record.number));
        own.any(|(_, shown)| *shown)
    };
    let about: Vec<String> = history
        .records
        .iter()
        .filter(|record| is_shown(record))
        .flat_map(mentioned)
        .collect();
    let last = history
        .records
        .iter()
        .filter(|record| is_shown(record))
        .map(|record| record.called)
        .max();
    for record in &history.records {
        // What is said not to have been done has no part in any order, and may be what is wrong.
        let denied = matches!(record.outcome, Outcome::Nothing(_)) && Some(record.called) <= last;
        let denied = denied && mentioned(record).iter().any(|id| about.contains(id));
        if is_shown(record) || denied {
            let _ = writeln!(text, "  {}", names.line(record, begin));
        }
    }
    for (part, _) in parts
        .iter()
        .zip(&shown)
        .filter(|(part, shown)| **shown && part.record.is_none())
    {
        let _ = writeln!(text, "  at the end: {}", names.put(&format!("{:?}", part.step)));
    }
    if let Err(stuck) = explain(&parts, NODES_MAX) {
        let more = if gave_up && stuck.gave_up {
            ", as far as it was looked for"
        } else {
            ""
        };
        let done = stuck.done.len();
        let _ = writeln!(
            text,
            "  no order of these is possible{more}. The longest has {done} of {}, then there is:",
            parts.len()
        );
        for job in &stuck.state.jobs {
            let _ = writeln!(text, "    {}", names.put(&format!("{job:?}")));
        }
        for (slot, window) in stuck.state.windows.iter().enumerate() {
            if let Some(window) = window {
                let _ = writeln!(text, "    window {slot}: {}", names.put(&format!("{window:?}")));
            }
        }
        let _ = writeln!(text, "  and these do not fit:");
        for part in (0..parts.len()).filter(|part| shown[*part] && !stuck.done.contains(part)) {
            let part = &parts[part];
            let number = part.record.map_or("end".into(), |number| format!("#{number}"));
            let _ = writeln!(text, "    {number} {}", names.put(&format!("{:?}", part.step)));
        }
    }
    let _ = writeln!(text, "  {}", names.legend());
    text
}

/// All of a history.
pub(crate) fn whole(history: &History) -> String {
    let mut names = Names::default();
    let begin = history.records.first().map_or(0, |record| record.called);
    let lines: Vec<String> = history.records.iter().map(|record| names.line(record, begin)).collect();
    format!("group {}\n{}\n{}\n\n", history.group, lines.join("\n"), names.legend())
}

/// A history that is plainly wrong: everything about the jobs of the request that shows it.
pub(crate) fn plainly_wrong(history: &History, number: u32, why: &str) -> String {
    let mut names = Names::default();
    let begin = history.records.first().map_or(0, |record| record.called);
    let mut text = String::new();
    let wrong = history.records.iter().find(|record| record.number == number);
    let about = |record: &Record| {
        let Some(wrong) = wrong else { return true };
        let theirs = mentioned(record);
        record.number == number || mentioned(wrong).iter().any(|id| theirs.contains(id))
    };
    for record in history.records.iter().filter(|record| about(record)) {
        let _ = writeln!(text, "  {}", names.line(record, begin));
    }
    let _ = writeln!(text, "  #{number}: {}", names.put(why));
    let _ = writeln!(text, "  {}", names.legend());
    text
}

fn mentioned(record: &Record) -> Vec<String> {
    ids(&format!("{:?} {:?}", record.op, record.outcome)).collect()
}

fn ids(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| !c.is_ascii_hexdigit() && c != '-');
    words
        .filter(|word| word.len() == 36 && word.parse::<Uuid>().is_ok())
        .map(str::to_owned)
}

/// The shortest beginning that has no order, less what plays no part in it. What is left over stays, as something that
/// may have happened or not; it is not shown.
fn shorten(parts: Vec<Part>) -> (Vec<Part>, Vec<bool>) {
    let mut ends: Vec<Micros> = parts.iter().map(|part| part.returned).collect();
    ends.sort_unstable();
    ends.dedup();
    let give_up = Instant::now() + PATIENCE;
    let fails = |end: Micros| Instant::now() >= give_up || has_no_order(&until(&parts, end));
    // From the front: a beginning that has no order is soon found out, and the whole may take for ever.
    let end = ends.into_iter().find(|end| fails(*end)).unwrap_or(NEVER);
    // Without patience for that it is shown as a whole.
    let end = if Instant::now() < give_up { end } else { NEVER };
    let mut parts = until(&parts, end);
    let mut shown = vec![true; parts.len()];
    let give_up = Instant::now() + PATIENCE;
    for place in (0..parts.len()).rev() {
        if parts[place].optional {
            shown[place] = parts[place].record.is_some();
            continue;
        }
        let kept = parts[place].clone();
        (parts[place].optional, parts[place].returned) = (true, NEVER);
        if Instant::now() < give_up && has_no_order(&parts) {
            shown[place] = false;
        } else {
            parts[place] = kept;
        }
    }
    // What may have happened and had no effect is only shown if it is needed to be true.
    for place in 0..parts.len() {
        shown[place] &= !parts[place].optional || !matches!(parts[place].step, Step::Call(..));
    }
    (parts, shown)
}

/// Whether this is certain, and soon.
fn has_no_order(parts: &[Part]) -> bool {
    explain(parts, NODES_MAX / 20).is_err_and(|stuck| !stuck.gave_up)
}

/// The history as it was known at an instant: what was not answered by then may have happened.
fn until(parts: &[Part], end: Micros) -> Vec<Part> {
    let mut places = BTreeMap::new();
    let mut kept: Vec<Part> = Vec::new();
    for (place, part) in parts.iter().enumerate() {
        if part.called <= end {
            let mut part = part.clone();
            if part.returned > end {
                part.optional = true;
                part.returned = NEVER;
            }
            part.after = part.after.and_then(|before| places.get(&before).copied());
            places.insert(place, kept.len());
            kept.push(part);
        }
    }
    kept
}

/// Short names in place of ids.
#[derive(Default)]
struct Names(Vec<String>);

impl Names {
    fn put(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for id in ids(&text).collect::<Vec<_>>() {
            let place = self.0.iter().position(|known| *known == id).unwrap_or_else(|| {
                self.0.push(id.clone());
                self.0.len() - 1
            });
            text = text.replace(&id, &format!("·{}", place + 1));
        }
        text
    }

    fn legend(&self) -> String {
        let all = self
            .0
            .iter()
            .enumerate()
            .map(|(place, id)| format!("·{} {id}", place + 1));
        all.collect::<Vec<_>>().join(", ")
    }

    fn line(&mut self, record: &Record, begin: Micros) -> String {
        let millis = |at: Micros| {
            if at == NEVER {
                "   …   ".to_owned()
            } else {
                format!("{:7.1}", (at - begin) as f64 / 1_000.0)
            }
        };
        let Record {
            number,
            client,
            server,
            op,
            called,
            returned,
            outcome,
        } = record;
        let op = match op {
            Op::Dispatch(ask) => format!("dispatch {}", asked(ask)),
            Op::Preview(ask) => format!("preview {}", asked(ask)),
            Op::Batch { items, go_on } => {
                let items: Vec<String> = items.iter().map(asked).collect();
                format!("batch ({}){}", items.join("; "), if *go_on { " go on" } else { "" })
            }
            Op::Call { job, token, call } => match call {
                Call::Heartbeat { lease_ms } => format!("heartbeat {job} by {token} for {lease_ms} ms"),
                _ => format!("{} {job} by {token}", record.op.kind()),
            },
            other => format!("{other:?}"),
        };
        let outcome = match outcome {
            Outcome::Answered { status, body } => {
                let mut body = body.clone();
                if let Some(members) = body.as_object_mut() {
                    for noise in [
                        "type", "title", "detail", "attempts", "retry", "name", "queue", "metadata",
                    ] {
                        members.remove(noise);
                    }
                }
                let text = body.to_string();
                let end = text.char_indices().nth(700).map_or(text.len(), |(end, _)| end);
                format!("{status} {}", &text[..end])
            }
            Outcome::Nothing(said) => format!("nothing done: {said}"),
            Outcome::Unknown(said) => format!("unknown: {said}"),
        };
        let (from, to) = (millis(*called), millis(*returned));
        self.put(&format!(
            "{from} to {to} ms  client {client}, server {server}  #{number} {op}\n        → {outcome}"
        ))
    }
}

fn asked(ask: &Ask) -> String {
    let mut text = format!("m{}", ask.marker);
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = write!(text, " {name} {value}");
        }
    };
    add("active", ask.active.map(|key| format!("a{key}")));
    add(
        "window",
        ask.slot.map(|slot| {
            format!(
                "{} of {} ms",
                crate::dump::WINDOW_KEYS[usize::from(slot)],
                ask.window_ms()
            )
        }),
    );
    add("payload", (ask.payload != 0).then(|| ask.payload.to_string()));
    add("delay", ask.delay_ms.map(|millis| millis.to_string()));
    add(
        "release on",
        (ask.release_on != 0).then(|| format!("{:03b}", ask.release_on)),
    );
    add("reuse", ask.reuse_on_mismatch.then(String::new));
    text
}
