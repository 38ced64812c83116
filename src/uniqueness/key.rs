//! Keys: what their text may be, and how a key is told from every other.

use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::job::JobId;

/// The longest key, in bytes of UTF-8.
pub const KEY_BYTES_MAX: usize = 512;

/// Which question a key answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dimension {
    /// Is one of these already queued or running?
    Active,
    /// Did I already ask for exactly this?
    Window,
}

impl Dimension {
    pub const fn as_str(self) -> &'static str {
        match self {
            Dimension::Active => "active",
            Dimension::Window => "window",
        }
    }
}

/// Within what a window key is held. An active key has no narrower scope than its job name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Scope {
    #[default]
    Global,
    /// This parent job, whatever attempt of it.
    Run(JobId),
    /// This attempt of this parent job.
    Attempt(JobId, i32),
}

impl Scope {
    pub const NAMES: [&str; 3] = ["global", "run", "attempt"];

    /// As it is stored and hashed: the name, and what it is held within.
    pub fn to_text(self) -> Box<str> {
        match self {
            Scope::Global => "global".into(),
            Scope::Run(job) => format!("run:{job}").into(),
            Scope::Attempt(job, attempt) => format!("attempt:{job}:{attempt}").into(),
        }
    }

    /// The name in a stored text.
    pub fn name_of(text: &str) -> &str {
        text.split(':').next().unwrap_or_default()
    }
}

/// The text of a key, which obeys the rules of keys.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct KeyText(Box<str>);

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidKey {
    #[error("a key is not empty: it has 1 to 512 bytes; leave the member out to ask for no key")]
    Empty,
    #[error(
        "a key has at most 512 bytes of UTF-8 and this one has {0}: shorten it, for instance to its SHA-256 in hex"
    )]
    TooLong(usize),
    #[error(
        "a key holds no control characters (Unicode category Cc) and this one holds U+{0:04X}: leave it out or encode it"
    )]
    Control(u32),
}

impl KeyText {
    /// Compared exactly from here on: nothing is trimmed, folded or normalised.
    pub fn parse(text: &str) -> Result<KeyText, InvalidKey> {
        if text.is_empty() {
            return Err(InvalidKey::Empty);
        }
        if text.len() > KEY_BYTES_MAX {
            return Err(InvalidKey::TooLong(text.len()));
        }
        match text.chars().find(|c| c.is_control()) {
            Some(control) => Err(InvalidKey::Control(control as u32)),
            None => Ok(KeyText(text.into())),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A key in full: two keys are one when each of these is the same.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    pub dimension: Dimension,
    /// The job name: the same text under two names never meets.
    pub name: Box<str>,
    pub scope: Box<str>,
    pub text: KeyText,
}

/// By which a key is found: 128 bits of a SHA-256. Who finds a row by it still compares the key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyDigest(pub [u8; 16]);

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl Key {
    pub fn active(name: &str, text: KeyText) -> Key {
        let scope = Scope::Global.to_text();
        Key {
            dimension: Dimension::Active,
            name: name.into(),
            scope,
            text,
        }
    }

    pub fn window(name: &str, scope: Scope, text: KeyText) -> Key {
        let scope = scope.to_text();
        Key {
            dimension: Dimension::Window,
            name: name.into(),
            scope,
            text,
        }
    }

    /// What is hashed: a version, then each part behind its length, so that no two keys give one text.
    /// Frozen: stored keys are found by it.
    fn pre_hash(&self) -> Vec<u8> {
        let parts = [self.dimension.as_str(), &self.name, &self.scope, self.text.as_str()];
        let mut text = Vec::with_capacity(32 + parts.iter().map(|part| part.len() + 4).sum::<usize>());
        text.extend_from_slice(b"solejob key 1\n");
        for part in parts {
            text.extend_from_slice(&(part.len() as u32).to_be_bytes());
            text.extend_from_slice(part.as_bytes());
        }
        text
    }

    pub fn digest(&self) -> KeyDigest {
        let hash: [u8; 32] = Sha256::digest(self.pre_hash()).into();
        let mut digest = [0; 16];
        digest.copy_from_slice(&hash[..16]);
        KeyDigest(digest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_text_of_a_key() {
        let long = |n: usize| "k".repeat(n);
        let cases = [
            ("a".into(), Ok(())),
            (long(512), Ok(())),
            (long(513), Err(InvalidKey::TooLong(513))),
            ("€".repeat(170), Ok(())),
            ("€".repeat(171), Err(InvalidKey::TooLong(513))),
            (String::new(), Err(InvalidKey::Empty)),
            (" a\u{a0}\u{200b}\u{2028}😀".into(), Ok(())),
            ("a\0b".into(), Err(InvalidKey::Control(0))),
            ("\t".into(), Err(InvalidKey::Control(9))),
            ("a\u{7f}".into(), Err(InvalidKey::Control(0x7f))),
            ("a\u{85}b".into(), Err(InvalidKey::Control(0x85))),
            ("\u{9f}".into(), Err(InvalidKey::Control(0x9f))),
        ];
        for (text, expected) in cases {
            assert_eq!(
                KeyText::parse(&text).map(|key| assert_eq!(key.as_str(), text)),
                expected,
                "{text:?}"
            );
        }
    }

    /// A compatibility promise: rows are found by these.
    #[test]
    fn golden_digests() {
        let text = || KeyText::parse("welcome:7").unwrap();
        let active = Key::active("place-order", text());
        let expected = b"solejob key 1\n\0\0\0\x06active\0\0\0\x0bplace-order\0\0\0\x06global\0\0\0\x09welcome:7";
        assert_eq!(active.pre_hash(), expected);
        assert_eq!(format!("{:?}", active.digest()), GOLDEN_ACTIVE);
        assert_eq!(
            format!("{:?}", Key::window("place-order", Scope::Global, text()).digest()),
            GOLDEN_WINDOW
        );
    }

    #[test]
    fn scopes_are_told_apart_and_named() {
        let job = JobId(uuid::Uuid::from_u128(7));
        let scopes = [
            Scope::Global,
            Scope::Run(job),
            Scope::Attempt(job, 1),
            Scope::Attempt(job, 2),
        ];
        let key = |scope| Key::window("n", scope, KeyText::parse("k").unwrap()).digest();
        let digests: std::collections::HashSet<_> = scopes.into_iter().map(key).collect();
        assert_eq!(digests.len(), scopes.len());
        let names = scopes.map(|scope| Scope::name_of(&scope.to_text()).to_owned());
        assert_eq!(names, ["global", "run", "attempt", "attempt"]);
    }

    const GOLDEN_ACTIVE: &str = "b7ca7c75dfed4b619d279ecf9f982cd1";
    const GOLDEN_WINDOW: &str = "2a79e37817e40d701e67a5981b6ac2d2";

    fn any_key() -> impl Strategy<Value = Key> {
        let part = || "[a-c\u{1}]{1,4}";
        (any::<bool>(), part(), part(), "[a-c]{1,4}").prop_map(|(active, name, scope, text)| Key {
            dimension: if active { Dimension::Active } else { Dimension::Window },
            name: name.into(),
            scope: scope.into(),
            text: KeyText::parse(&text).unwrap(),
        })
    }

    proptest! {
        #[test]
        fn two_keys_never_share_a_pre_hash_text(a in any_key(), b in any_key()) {
            prop_assert_eq!(a == b, a.pre_hash() == b.pre_hash());
            prop_assert_eq!(a == b, a.digest() == b.digest());
        }
    }
}
