//! Objects are read from objects alone: serde's own reading of a struct takes an array of its members as well,
//! in the order in which they happen to be declared.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A struct that is written as an object.
#[derive(Debug)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }

        deserializer.deserialize_map(Members(PhantomData)).map(Object)
    }
}

/// For a member that is an object, or left out: `#[serde(default, deserialize_with = "object")]`.
pub fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Object<T>>::deserialize(deserializer)?.map(|Object(value)| value))
}

/// For a member that is a list of objects.
pub fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Ok(Vec::<Object<T>>::deserialize(deserializer)?
        .into_iter()
        .map(|Object(value)| value)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[serde(default, deserialize_with = "object")]
        inner: Option<Inner>,
    }

    #[derive(Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        a: Option<i32>,
    }

    #[test]
    fn an_array_is_no_object_at_any_depth() {
        let read =
            |text: &str| serde_json::from_str::<Object<Outer>>(text).map(|outer| outer.0.inner.and_then(|i| i.a));
        assert_eq!(read(r#"{"inner": {"a": 1}}"#).unwrap(), Some(1));
        assert_eq!(read(r#"{"inner": null}"#).unwrap(), None);
        assert_eq!(read("{}").unwrap(), None);
        for text in [
            "[]",
            "[null]",
            "[{}]",
            r#"{"inner": []}"#,
            r#"{"inner": [1]}"#,
            r#"{"inner": {"b": 1}}"#,
            "1",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
