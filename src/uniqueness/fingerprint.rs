//! The fingerprint: a digest of what a dispatch asked for, kept with its window key, so that a retry is
//! told from another request.
//!
//! Each member that was given is digested by itself, so that a conflict can name what differs even after
//! the job is gone. A member that was left out is no part: leaving it out and a default are not the same,
//! and a changed default never turns a retry into a conflict.

use sha2::{Digest as _, Sha256};

use crate::duration::Millis;
use crate::job::Instant;
use crate::uniqueness::canonical;
use crate::uniqueness::key::Key;

/// The format of what is stored. One that is not this cannot be compared, and is never a conflict.
const VERSION: u8 = 1;

/// Bytes of each part's digest that are stored.
const PART_BYTES: usize = 16;

/// What a fingerprint tells apart, in the order in which it is stored. The order is frozen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    Payload,
    Queue,
    Priority,
    Start,
    ActiveKey,
    ResourceKeys,
    Metadata,
}

impl Part {
    pub const ALL: [Part; 7] = [
        Part::Payload,
        Part::Queue,
        Part::Priority,
        Part::Start,
        Part::ActiveKey,
        Part::ResourceKeys,
        Part::Metadata,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Part::Payload => "payload",
            Part::Queue => "queue",
            Part::Priority => "priority",
            Part::Start => "start",
            Part::ActiveKey => "active_key",
            Part::ResourceKeys => "resource_keys",
            Part::Metadata => "metadata",
        }
    }
}

/// A start time as it was asked for: a delay counts as the delay, not as the instant it leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AskedStart {
    Delay(Millis),
    /// With all the digits it was given, however the offset was written.
    At(Instant),
}

/// What a dispatch asked for. `None` is a member that was left out.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Asked<'a> {
    /// JSON text that has passed [`crate::json::check`]; `null` counts as left out.
    pub payload: Option<&'a str>,
    pub queue: Option<&'a str>,
    pub priority: Option<i16>,
    pub start: Option<AskedStart>,
    pub active_key: Option<&'a str>,
    /// A set: order and repetition do not count. Empty counts as left out.
    pub resource_keys: &'a [String],
    /// Names are given once. Empty counts as left out.
    pub metadata: &'a [(String, String)],
}

impl Asked<'_> {
    /// The text that is hashed for `part`: its name, then its value, typed or behind its length.
    fn pre_hash(&self, part: Part, text: &mut Vec<u8>) -> bool {
        let start = text.len();
        sized(text, part.as_str());
        let value = text.len();
        match part {
            Part::Payload => {
                if let Some(payload) = self.payload.filter(|payload| *payload != "null")
                    && canonical::write(payload, text).is_err()
                {
                    // No JSON text, against what is promised: a value by its spelling, equal to nothing else.
                    text.truncate(value);
                    text.push(b'?');
                    sized(text, payload);
                }
            }
            Part::Queue => self.queue.iter().for_each(|queue| sized(text, queue)),
            Part::Priority => self
                .priority
                .iter()
                .for_each(|priority| text.extend(priority.to_be_bytes())),
            Part::Start => match self.start {
                None => {}
                Some(AskedStart::Delay(Millis(millis))) => {
                    text.push(b'd');
                    text.extend(millis.to_be_bytes());
                }
                Some(AskedStart::At(at)) => {
                    text.push(b'@');
                    let nanos = i128::from(at.timestamp()) * 1_000_000_000 + i128::from(at.timestamp_subsec_nanos());
                    text.extend(nanos.to_be_bytes());
                }
            },
            Part::ActiveKey => self.active_key.iter().for_each(|key| sized(text, key)),
            Part::ResourceKeys => {
                let mut keys: Vec<&str> = self.resource_keys.iter().map(String::as_str).collect();
                keys.sort_unstable();
                keys.dedup();
                keys.into_iter().for_each(|key| sized(text, key));
            }
            Part::Metadata => {
                let mut members: Vec<&(String, String)> = self.metadata.iter().collect();
                members.sort_unstable();
                for (name, value) in members {
                    sized(text, name);
                    sized(text, value);
                }
            }
        }
        let given = text.len() > value;
        if !given {
            text.truncate(start);
        }
        given
    }
}

fn sized(text: &mut Vec<u8>, value: &str) {
    text.extend((value.len() as u64).to_be_bytes());
    text.extend(value.as_bytes());
}

/// The digest of a request: 32 bytes over all of it, and the head of each part's digest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fingerprint(Stored);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Stored {
    Current {
        whole: [u8; 32],
        parts: [Option<[u8; PART_BYTES]>; Part::ALL.len()],
    },
    /// Written in a format that this server does not read.
    Foreign(Box<[u8]>),
}

/// How two requests compare.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Comparison {
    Same,
    /// They differ in these parts.
    Differs(Vec<Part>),
}

impl Fingerprint {
    /// The fingerprint of a dispatch that asks for `window_key`.
    pub fn new(window_key: &Key, asked: &Asked<'_>) -> Fingerprint {
        let mut whole = Sha256::new();
        let mut text = Vec::with_capacity(256);
        text.extend_from_slice(b"solejob fingerprint ");
        text.push(VERSION);
        for identity in [&window_key.name, &window_key.scope, window_key.text.as_str()] {
            sized(&mut text, identity);
        }
        whole.update(&text);
        let mut parts = [None; Part::ALL.len()];
        for (part, head) in Part::ALL.into_iter().zip(&mut parts) {
            text.clear();
            if asked.pre_hash(part, &mut text) {
                let digest: [u8; 32] = Sha256::digest(&text).into();
                // The part's place makes the whole injective over digests of one length.
                whole.update([part as u8]);
                whole.update(digest);
                let mut kept = [0; PART_BYTES];
                kept.copy_from_slice(&digest[..PART_BYTES]);
                *head = Some(kept);
            }
        }
        Fingerprint(Stored::Current {
            whole: whole.finalize().into(),
            parts,
        })
    }

    /// Version, mask of the parts given, whole digest, head of each part given.
    pub fn to_bytes(&self) -> Vec<u8> {
        match &self.0 {
            Stored::Foreign(bytes) => bytes.to_vec(),
            Stored::Current { whole, parts } => {
                let mut bytes = Vec::with_capacity(34 + PART_BYTES * parts.len());
                let mask = parts
                    .iter()
                    .enumerate()
                    .map(|(i, part)| u8::from(part.is_some()) << i)
                    .sum::<u8>();
                bytes.extend([VERSION, mask]);
                bytes.extend(whole);
                parts.iter().flatten().for_each(|head| bytes.extend(head));
                bytes
            }
        }
    }

    pub fn from_bytes(bytes: &[u8]) -> Fingerprint {
        Fingerprint(Fingerprint::read(bytes).unwrap_or_else(|| Stored::Foreign(bytes.into())))
    }

    fn read(bytes: &[u8]) -> Option<Stored> {
        let (&[version, mask], rest) = bytes.split_first_chunk()?;
        if version != VERSION || mask >> Part::ALL.len() != 0 {
            return None;
        }
        let (whole, mut rest) = rest.split_first_chunk()?;
        let mut parts = [None; Part::ALL.len()];
        for (i, part) in parts.iter_mut().enumerate() {
            if mask >> i & 1 == 1 {
                let (head, behind) = rest.split_first_chunk()?;
                (*part, rest) = (Some(*head), behind);
            }
        }
        rest.is_empty().then_some(Stored::Current { whole: *whole, parts })
    }

    /// A format that cannot be read compares as the same: an upgrade must not turn retries into conflicts.
    pub fn compare(&self, other: &Fingerprint) -> Comparison {
        match (&self.0, &other.0) {
            (
                Stored::Current { whole, parts },
                Stored::Current {
                    whole: other_whole,
                    parts: other_parts,
                },
            ) => {
                if whole == other_whole {
                    return Comparison::Same;
                }
                let pairs = parts.iter().zip(other_parts).zip(Part::ALL);
                Comparison::Differs(pairs.filter_map(|((a, b), part)| (a != b).then_some(part)).collect())
            }
            (Stored::Foreign(_), _) | (_, Stored::Foreign(_)) => Comparison::Same,
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use proptest::prelude::*;

    use super::*;
    use crate::uniqueness::key::{KeyText, Scope};

    fn key() -> Key {
        Key::window("place-order", Scope::Global, KeyText::parse("req-1").unwrap())
    }

    fn fingerprint(asked: &Asked<'_>) -> Fingerprint {
        Fingerprint::new(&key(), asked)
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn at(text: &str) -> Option<AskedStart> {
        Some(AskedStart::At(DateTime::parse_from_rfc3339(text).unwrap().to_utc()))
    }

    /// A compatibility promise: window keys that are held today are compared with these tomorrow.
    #[test]
    fn golden_fingerprints() {
        assert_eq!(hex(&fingerprint(&Asked::default()).to_bytes()), GOLDEN_EMPTY);
        let metadata = [("customer".to_owned(), "7".to_owned())];
        let resource_keys = ["b:2".to_owned(), "a:1".to_owned()];
        let full = Asked {
            payload: Some(r#"{"order": 42, "lines": [1.50, "é", null, true]}"#),
            queue: Some("default"),
            priority: Some(-3),
            start: Some(AskedStart::Delay(Millis(300_000))),
            active_key: Some("welcome:7"),
            resource_keys: &resource_keys,
            metadata: &metadata,
        };
        assert_eq!(hex(&fingerprint(&full).to_bytes()), GOLDEN_FULL);
        let at = Asked {
            start: at("2027-01-01T09:00:00Z"),
            ..Asked::default()
        };
        assert_eq!(hex(&fingerprint(&at).to_bytes()), GOLDEN_AT);
    }

    const GOLDEN_EMPTY: &str = "0100387e38c3b9bbdc855a3a49fbde74ca7d8145c5330f0c6384feb40d1fdcd0b634";
    const GOLDEN_FULL: &str = "017f0022366bec8d0115aabf07b87d03dfa9f06610e0117fc3a1c4521f8d630effa68be56b8df596b3532e2d5635c0faff2456b37dbf6c810dac622fc48aaf636f4c16e584708514a8220a76c69daf6ed80ede8df5823cc1cfd6bf9b32d68508a82d7ec19921191856beb7950e7e17c2f9c88532bdc66e94745175fbfecd198701af59f03eeaa5a7b56008f631d7d48a946f";
    const GOLDEN_AT: &str =
        "0108445f83cb082de25ec1e2b73a4dd8dbc23f61d9daadad6de20017cb0d6e4fe99425aa6eadcfe0e9352727293e37fc6fe7";

    #[test]
    fn what_counts_as_the_same_request() {
        let two = ["b:2".to_owned(), "a:1".to_owned(), "b:2".to_owned()];
        let sorted = ["a:1".to_owned(), "b:2".to_owned()];
        let none = Asked::default();
        let same = [
            (
                Asked {
                    payload: Some("null"),
                    ..none.clone()
                },
                none.clone(),
            ),
            (
                Asked {
                    payload: Some("[1.0]"),
                    ..none.clone()
                },
                Asked {
                    payload: Some(" [ 1e0 ]"),
                    ..none.clone()
                },
            ),
            (
                Asked {
                    resource_keys: &two,
                    ..none.clone()
                },
                Asked {
                    resource_keys: &sorted,
                    ..none.clone()
                },
            ),
            (
                Asked {
                    start: at("2027-01-01T09:00:00Z"),
                    ..none.clone()
                },
                Asked {
                    start: at("2027-01-01T10:00:00.000+01:00"),
                    ..none.clone()
                },
            ),
        ];
        for (a, b) in same {
            assert_eq!(
                fingerprint(&a).compare(&fingerprint(&b)),
                Comparison::Same,
                "{a:?} {b:?}"
            );
        }
    }

    #[test]
    fn what_differs_is_named() {
        let none = Asked::default();
        let (keys, metadata) = (["a:1".to_owned()], [("a".to_owned(), "1".to_owned())]);
        let zero = Some(AskedStart::Delay(Millis(0)));
        let cases = [
            (
                Asked {
                    payload: Some("false"),
                    ..none.clone()
                },
                Part::Payload,
            ),
            (
                Asked {
                    queue: Some("default"),
                    ..none.clone()
                },
                Part::Queue,
            ),
            (
                Asked {
                    priority: Some(0),
                    ..none.clone()
                },
                Part::Priority,
            ),
            (
                Asked {
                    start: zero,
                    ..none.clone()
                },
                Part::Start,
            ),
            (
                Asked {
                    start: at("1970-01-01T00:00:00Z"),
                    ..none.clone()
                },
                Part::Start,
            ),
            (
                Asked {
                    active_key: Some("a"),
                    ..none.clone()
                },
                Part::ActiveKey,
            ),
            (
                Asked {
                    resource_keys: &keys,
                    ..none.clone()
                },
                Part::ResourceKeys,
            ),
            (
                Asked {
                    metadata: &metadata,
                    ..none.clone()
                },
                Part::Metadata,
            ),
        ];
        for (asked, part) in cases {
            let compared = fingerprint(&none).compare(&fingerprint(&asked));
            assert_eq!(compared, Comparison::Differs(vec![part]), "{asked:?}");
        }
    }

    #[test]
    fn a_format_of_another_version_is_kept_and_never_a_conflict() {
        let current = fingerprint(&Asked {
            priority: Some(1),
            ..Asked::default()
        });
        let mut bytes = current.to_bytes();
        for foreign in [
            vec![],
            vec![VERSION],
            vec![VERSION, 0x80],
            [&bytes[..], &[0]].concat(),
            {
                bytes[0] = VERSION + 1;
                bytes.clone()
            },
        ] {
            let foreign_read = Fingerprint::from_bytes(&foreign);
            assert_eq!(foreign_read.to_bytes(), foreign);
            assert_eq!(foreign_read.compare(&current), Comparison::Same);
        }
    }

    fn any_start() -> impl Strategy<Value = Option<AskedStart>> {
        prop_oneof![
            Just(None),
            (0_u64..4).prop_map(|ms| Some(AskedStart::Delay(Millis(ms)))),
            (0_i64..4).prop_map(|n| Some(AskedStart::At(DateTime::from_timestamp_nanos(n)))),
        ]
    }

    prop_compose! {
        fn any_asked()(
            payload in proptest::option::of("(0|1|\"[ab]{0,2}\"|\\[\\]|\\[1\\]|\\{\\})"),
            queue in proptest::option::of("[ab]{1,2}"),
            priority in proptest::option::of(-1_i16..2),
            start in any_start(),
            active_key in proptest::option::of("[ab]{1,2}"),
            resource_keys in proptest::collection::btree_set("[ab]:[ab]{1,2}", 0..3),
            metadata in proptest::collection::btree_map("[ab]{1,2}", "[ab]{0,2}", 0..3),
        ) -> OwnedAsked {
            OwnedAsked {
                payload, queue, priority, start, active_key,
                resource_keys: resource_keys.into_iter().collect(),
                metadata: metadata.into_iter().collect(),
            }
        }
    }

    #[derive(Clone, PartialEq, Debug)]
    struct OwnedAsked {
        payload: Option<String>,
        queue: Option<String>,
        priority: Option<i16>,
        start: Option<AskedStart>,
        active_key: Option<String>,
        resource_keys: Vec<String>,
        metadata: Vec<(String, String)>,
    }

    impl OwnedAsked {
        fn asked(&self) -> Asked<'_> {
            Asked {
                payload: self.payload.as_deref(),
                queue: self.queue.as_deref(),
                priority: self.priority,
                start: self.start,
                active_key: self.active_key.as_deref(),
                resource_keys: &self.resource_keys,
                metadata: &self.metadata,
            }
        }

        fn pre_hash(&self) -> Vec<u8> {
            let mut text = Vec::new();
            for part in Part::ALL {
                self.asked().pre_hash(part, &mut text);
            }
            text
        }
    }

    proptest! {
        #[test]
        fn no_two_requests_give_one_pre_hash_text(a in any_asked(), b in any_asked()) {
            prop_assert_eq!(a == b, a.pre_hash() == b.pre_hash());
            let same = fingerprint(&a.asked()).compare(&fingerprint(&b.asked())) == Comparison::Same;
            prop_assert_eq!(a == b, same);
        }

        #[test]
        fn what_is_stored_is_read_back(asked in any_asked()) {
            let fingerprint = fingerprint(&asked.asked());
            prop_assert_eq!(Fingerprint::from_bytes(&fingerprint.to_bytes()), fingerprint);
        }

        #[test]
        fn reading_never_panics(bytes: Vec<u8>) {
            prop_assert_eq!(Fingerprint::from_bytes(&bytes).to_bytes(), bytes);
        }
    }
}
