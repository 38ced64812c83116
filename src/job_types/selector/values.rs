//! From JSON text to the values of an expression: only what it reads, and numbers exactly or not at all.

use std::collections::HashMap;

use cel::common::types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt};
use cel::common::value::Val;

use super::walk::Reads;
use crate::json::scan::{Scanner, Sink, Text};
use crate::json::{MAX_DEPTH, pointer};
use crate::uniqueness::canonical;

pub(super) type Boxed<'t> = Box<dyn Val + 't>;

/// An expression reads so much at most: its cost must not grow with the payload, and a key is short.
pub(super) const READ_BYTES_MAX: usize = 64 << 10;
/// What a value counts beside its text.
const VALUE_BYTES: usize = 16;
/// So much of a number is shown at most.
const ECHO_CHARS: usize = 40;
/// So much of the way to a number is shown at most.
const POINTER_CHARS: usize = 60;

/// Reads what `reads` names of a JSON text that has passed [`crate::json::check`].
///
/// One walk over the text, which ends early once every member of the outermost object has been seen that is
/// named. What is passed over is not converted: its cost is that of finding its end.
pub(super) fn read<'t>(text: &'t str, reads: &Reads) -> Result<Boxed<'t>, String> {
    let mut reader = Reader {
        open: Vec::new(),
        passed: 0,
        next: Want::of(reads),
        root: None,
        inexact: None,
        left: READ_BYTES_MAX,
        complete: false,
    };
    let walked = Scanner::new(text, MAX_DEPTH).run(&mut reader);
    if let Some(inexact) = reader.inexact {
        return Err(inexact);
    }
    if reader.left == 0 {
        return Err(format!(
            "the members of the payload that the expression reads have more than {} KiB: name smaller ones",
            READ_BYTES_MAX >> 10
        ));
    }
    if reader.complete {
        reader.close_container();
    } else if walked.is_err() {
        return Err("the payload is no JSON".into());
    }
    reader.root.ok_or_else(|| "the payload is no JSON".into())
}

/// What is wanted of the value that comes.
#[derive(Clone, Copy)]
enum Want<'r> {
    Nothing,
    /// Its kind, and what is named in it.
    Parts(&'r Reads),
    Whole,
}

impl<'r> Want<'r> {
    fn of(reads: &'r Reads) -> Want<'r> {
        if reads.whole { Want::Whole } else { Want::Parts(reads) }
    }

    fn member(self, name: &str) -> Want<'r> {
        match self {
            Want::Parts(reads) => reads.members.get(name).map_or(Want::Nothing, Want::of),
            other => other,
        }
    }

    fn element(self, index: usize) -> Want<'r> {
        match self {
            Want::Parts(reads) => reads.elements.get(&index).map_or(Want::Nothing, Want::of),
            other => other,
        }
    }
}

struct Reader<'t, 'r> {
    open: Vec<Open<'t, 'r>>,
    /// How many containers are open in a value that is passed over.
    passed: usize,
    next: Want<'r>,
    root: Option<Boxed<'t>>,
    /// A number that cannot be had exactly, and where.
    inexact: Option<String>,
    /// How much may still be read; nothing is when it is used up.
    left: usize,
    /// All that is named has been read, and the walk was stopped.
    complete: bool,
}

/// A container that is being read.
struct Open<'t, 'r> {
    want: Want<'r>,
    items: Items<'t>,
}

enum Items<'t> {
    List(Vec<Boxed<'t>>, usize),
    Map(HashMap<CelMapKey<'t>, Boxed<'t>>, Option<CelString<'t>>),
}

impl<'t> Reader<'t, '_> {
    /// Whether there is room for one more value with so much text.
    fn takes(&mut self, bytes: usize) -> bool {
        self.left = self.left.saturating_sub(VALUE_BYTES + bytes);
        self.left > 0
    }

    /// Whether the value that comes is passed over.
    fn passes(&mut self) -> bool {
        if self.passed > 0 {
            return true;
        }
        if let Some(Open {
            want,
            items: Items::List(_, index),
        }) = self.open.last()
        {
            self.next = want.element(*index);
            // Placeholders keep the places of what is read behind them.
            if let (Want::Nothing, Want::Parts(reads)) = (self.next, want)
                && reads.elements.last_key_value().is_some_and(|(last, _)| index < last)
            {
                self.add(Box::new(CelNull));
                return true;
            }
        }
        let passes = matches!(self.next, Want::Nothing);
        if passes {
            self.step();
        }
        passes
    }

    /// A value is complete, or passed over.
    fn step(&mut self) {
        match self.open.last_mut().map(|open| &mut open.items) {
            Some(Items::List(_, index)) => *index += 1,
            Some(Items::Map(_, key)) => *key = None,
            None => {}
        }
    }

    fn add(&mut self, value: Boxed<'t>) {
        match self.open.last_mut().map(|open| &mut open.items) {
            Some(Items::List(items, _)) => items.push(value),
            Some(Items::Map(members, key)) => {
                if let Some(key) = key.take() {
                    members.insert(CelMapKey::String(key), value);
                }
            }
            None => self.root = Some(value),
        }
        self.step();
    }

    fn scalar(&mut self, value: impl FnOnce(&mut Self) -> Boxed<'t>) {
        if self.passes() {
            return;
        }
        if self.takes(0) {
            let value = value(self);
            self.add(value);
        } else {
            self.step();
        }
    }

    fn open_container(&mut self, items: Items<'t>) {
        if self.passed > 0 {
            self.passed += 1;
            return;
        }
        // Asked before it is stepped over: the place of a container that is passed over counts as well.
        if self.passes() {
            self.passed = 1;
            return;
        }
        if !self.takes(0) {
            self.step();
            self.passed = 1;
            return;
        }
        self.open.push(Open { want: self.next, items });
    }

    fn close_container(&mut self) {
        if self.passed > 0 {
            self.passed -= 1;
            return;
        }
        match self.open.pop().map(|open| open.items) {
            Some(Items::List(items, _)) => self.add(Box::new(CelList::from(items))),
            Some(Items::Map(members, _)) => self.add(Box::new(CelMap::from(members))),
            None => {}
        }
    }

    /// The way to the value that comes.
    fn place(&self) -> String {
        let mut at = "/payload".to_owned();
        for open in &self.open {
            match &open.items {
                Items::List(_, index) => pointer::push(&mut at, &index.to_string()),
                Items::Map(_, Some(key)) => pointer::push(&mut at, key.inner()),
                Items::Map(_, None) => {}
            }
            if at.len() > POINTER_CHARS {
                break;
            }
        }
        cut(&at, POINTER_CHARS)
    }
}

impl<'t> Sink<'t> for Reader<'t, '_> {
    fn null(&mut self) {
        self.scalar(|_| Box::new(CelNull));
    }

    fn boolean(&mut self, value: bool) {
        self.scalar(|_| Box::new(CelBool::from(value)));
    }

    fn number(&mut self, raw: &'t str) {
        self.scalar(|reader| {
            // Of a number that is not itself read, only its kind counts.
            if !matches!(reader.next, Want::Whole) {
                return Box::new(CelInt::from(0));
            }
            if !reader.takes(raw.len()) {
                return Box::new(CelNull);
            }
            number(raw).unwrap_or_else(|why| {
                let (number, place) = (cut(raw, ECHO_CHARS), reader.place());
                reader
                    .inexact
                    .get_or_insert_with(|| format!("the number {number} at {place} {why}"));
                Box::new(CelNull)
            })
        });
    }

    fn string(&mut self, text: Text<'t>) {
        self.scalar(|reader| {
            if !matches!(reader.next, Want::Whole) {
                return Box::new(CelString::from(""));
            }
            let text = text.decode();
            if reader.takes(text.len()) {
                Box::new(CelString::from(text))
            } else {
                Box::new(CelNull)
            }
        });
    }

    fn open_array(&mut self) {
        self.open_container(Items::List(Vec::new(), 0));
    }

    fn close_array(&mut self) {
        self.close_container();
    }

    fn open_object(&mut self) {
        self.open_container(Items::Map(HashMap::new(), None));
    }

    fn close_object(&mut self) {
        self.close_container();
    }

    fn key(&mut self, key: Text<'t>) -> bool {
        if self.passed > 0 {
            return true;
        }
        let outermost = self.open.len() == 1;
        let Some(Open {
            want,
            items: Items::Map(members, next),
        }) = self.open.last_mut()
        else {
            return true;
        };
        if let (true, Want::Parts(reads)) = (outermost, &want)
            && members.len() == reads.members.len()
        {
            self.complete = true;
            return false;
        }
        let key = key.decode();
        self.next = want.member(&key);
        let bytes = key.len();
        *next = Some(CelString::from(key));
        matches!(self.next, Want::Nothing) || self.takes(bytes)
    }
}

/// A number as an expression sees it: whole numbers as `int`, beyond that as `uint`, however they are written; a
/// fraction as `double` if that is this number and no other. Equal numbers become one value, different ones two.
fn number<'t>(raw: &str) -> Result<Boxed<'t>, &'static str> {
    const WHOLE: &str =
        "is an integer outside of 64 bits, which an expression cannot have exactly: send it as a string";
    const FRACTION: &str = "is not the shortest form of a double, so that an expression cannot have it exactly: send \
                            it as a string";
    if let Ok(whole) = raw.parse::<i64>() {
        return Ok(Box::new(CelInt::from(whole)));
    }
    let canonical = decimal(raw);
    // `d[-]DIGITSe[-]EXPONENT;`
    let (digits, exponent) = canonical
        .strip_prefix('d')
        .and_then(|rest| rest.strip_suffix(';'))
        .and_then(|rest| rest.split_once('e'))
        .ok_or(WHOLE)?;
    if !exponent.starts_with('-') {
        // No integer of 64 bits has more than 20 digits; none of the zeros is written out beyond that.
        let zeros: usize = exponent.parse().ok().filter(|zeros| *zeros <= 20).ok_or(WHOLE)?;
        let whole = format!("{digits}{}", "0".repeat(zeros));
        let signed = whole
            .parse::<i64>()
            .map(|whole| Box::new(CelInt::from(whole)) as Boxed<'t>);
        let unsigned = || {
            whole
                .parse::<u64>()
                .map(|whole| Box::new(CelUInt::from(whole)) as Boxed<'t>)
        };
        return signed.or_else(|_| unsigned()).map_err(|_| WHOLE);
    }
    let double: f64 = raw.parse().map_err(|_| FRACTION)?;
    // `{:e}` writes the shortest digits that lead back to this double.
    if double.is_finite() && decimal(&format!("{double:e}")) == canonical {
        Ok(Box::new(CelDouble::from(double)))
    } else {
        Err(FRACTION)
    }
}

/// The exact decimal that a number stands for.
fn decimal(raw: &str) -> String {
    let mut out = Vec::new();
    // A text that is no number stays empty, which is no decimal.
    let _no_number = canonical::write(raw, &mut out);
    String::from_utf8(out).unwrap_or_default()
}

pub(super) fn cut(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
