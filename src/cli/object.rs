//! A JSON object as its members in their order, each value to the letter.

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

pub(super) struct Object(pub(super) Vec<(String, Box<RawValue>)>);

impl Object {
    pub(super) fn get(&self, name: &str) -> Option<&RawValue> {
        let member = self.0.iter().find(|(known, _)| known == name);
        member.map(|(_, value)| &**value)
    }

    /// Whether the member is there and not null, which means the same as left out.
    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value.get() != "null")
    }

    /// Puts the member in the place of one that is there, or at the end.
    pub(super) fn set(&mut self, name: &str, value: Box<RawValue>) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name.into(), value)),
        }
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Object, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Object;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Object(members))
            }
        }

        deserializer.deserialize_map(Members)
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}
