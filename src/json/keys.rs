//! Finds object keys that are given twice.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

use super::scan::{Sink, Text};

/// Up to so many keys an object's keys are compared one by one: for the objects that people write, that is cheaper than
/// hashing. Beyond, a set takes over.
const ONE_BY_ONE: usize = 16;

/// A sink that only watches keys.
#[derive(Default)]
pub(super) struct Unique<'t> {
    /// The keys of all open objects; the innermost object's are last.
    keys: Vec<Cow<'t, str>>,
    open: Vec<Object>,
    /// The standard library's keyed hasher: nobody can choose keys whose hashes collide.
    hasher: RandomState,
}

struct Object {
    /// Where this object's keys begin in `keys`.
    start: usize,
    /// Hashes of its keys, once there are many: a third of the memory that a set of the keys themselves would take, and
    /// growing it does not read the keys again.
    many: Option<HashSet<u64, BuildHasherDefault<AsItIs>>>,
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
        let mine = self.keys.get(object.start..).unwrap_or_default();
        let maybe_twice = match &mut object.many {
            // An equal hash is looked into: it is an equal key, but for a chance that nobody can force.
            Some(many) => !many.insert(self.hasher.hash_one(&key)),
            None => true,
        };
        if maybe_twice && mine.contains(&key) {
            return false;
        }
        self.keys.push(key);
        if object.many.is_none() && self.keys.len() - object.start > ONE_BY_ONE {
            let mut many = HashSet::with_capacity_and_hasher(ONE_BY_ONE * 3, BuildHasherDefault::default());
            many.extend(self.keys.iter().skip(object.start).map(|key| self.hasher.hash_one(key)));
            object.many = Some(many);
        }
        true
    }
}

/// The hasher of hashes.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write(&mut self, bytes: &[u8]) {
        // Only `u64`s are hashed; anything else would still be right, if slow.
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
