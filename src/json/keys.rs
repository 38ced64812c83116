//! Finds object keys that are given twice.

use std::borrow::Cow;
use std::collections::HashSet;

use super::scan::{Sink, Text};

/// Up to so many keys an object's keys are compared one by one: for the objects that people write, that is cheaper than
/// hashing. Beyond, a set with the standard library's keyed hasher takes over, so that nobody can choose keys that make
/// the check quadratic.
const ONE_BY_ONE: usize = 16;

/// A sink that only watches keys.
#[derive(Default)]
pub(super) struct Unique<'t> {
    /// The keys of all open objects that are still compared one by one; the innermost object's are last.
    keys: Vec<Cow<'t, str>>,
    open: Vec<Object<'t>>,
}

struct Object<'t> {
    /// Where this object's keys begin in `keys`.
    start: usize,
    many: Option<HashSet<Cow<'t, str>>>,
}

impl<'t> Sink<'t> for Unique<'t> {
    fn open_object(&mut self) {
        self.open.push(Object {
            start: self.keys.len(),
            many: None,
        });
    }

    fn close_object(&mut self) {
        if let Some(object) = self.open.pop() {
            self.keys.truncate(object.start);
        }
    }

    fn key(&mut self, key: Text<'t>) -> bool {
        let Some(object) = self.open.last_mut() else {
            return true;
        };
        // Unescaped once, so that comparing costs no more than the bytes of the key.
        let key = key.decode();
        if let Some(many) = &mut object.many {
            return many.insert(key);
        }
        let mine = self.keys.get(object.start..).unwrap_or_default();
        if mine.contains(&key) {
            return false;
        }
        if mine.len() < ONE_BY_ONE {
            self.keys.push(key);
        } else {
            let mut many: HashSet<Cow<'t, str>> = HashSet::with_capacity(ONE_BY_ONE * 4);
            many.extend(self.keys.drain(object.start..));
            many.insert(key);
            object.many = Some(many);
        }
        true
    }
}
