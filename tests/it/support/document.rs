//! Reading JSON answers. serde_json refuses `1e400`, which a payload may hold, so numbers beyond a
//! double are read as the largest one; whoever needs the letters looks at the answer's text.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

pub(crate) fn parse(text: &str) -> Result<Value, serde_json::Error> {
    let text = serde_json::from_str::<&RawValue>(text)?.get();
    match text.as_bytes().first() {
        Some(b'{') => {
            let members: BTreeMap<String, &RawValue> = serde_json::from_str(text)?;
            let members = members.into_iter().map(|(name, raw)| Ok((name, parse(raw.get())?)));
            members.collect::<Result<Map<_, _>, _>>().map(Value::Object)
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text)?;
            items
                .into_iter()
                .map(|raw| parse(raw.get()))
                .collect::<Result<_, _>>()
                .map(Value::Array)
        }
        Some(b'-' | b'0'..=b'9') => Ok(serde_json::from_str(text).unwrap_or_else(|_| {
            let largest = if text.starts_with('-') { f64::MIN } else { f64::MAX };
            Value::from(largest)
        })),
        _ => serde_json::from_str(text),
    }
}

/// The value at a JSON pointer. Beyond RFC 6901, a negative index counts from the end.
pub(crate) fn at<'a>(document: &'a Value, pointer: &str) -> Option<&'a Value> {
    pointer.split('/').skip(1).try_fold(document, |node, part| {
        let part = part.replace("~1", "/").replace("~0", "~");
        match node {
            Value::Object(members) => members.get(&part),
            Value::Array(items) => {
                let index: isize = part.parse().ok()?;
                let index = if index < 0 {
                    items.len().checked_add_signed(index)?
                } else {
                    index.unsigned_abs()
                };
                items.get(index)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        }
    })
}

mod tests {
    use serde_json::json;

    use super::{at, parse};

    #[test]
    fn numbers_beyond_a_double_are_read() {
        let document = parse(r#" {"a": [1e400, -1E+999999999, 9007199254740993, 1.5], "b\u0041": null} "#).unwrap();
        assert_eq!(
            document,
            json!({"a": [f64::MAX, f64::MIN, 9_007_199_254_740_993_u64, 1.5], "bA": null})
        );
        assert!(parse("{").is_err());
        assert!(parse("").is_err());
        assert!(parse("1 2").is_err());
    }

    #[test]
    fn names_that_serde_json_treats_specially_are_names() {
        let document = parse(r#"{"$serde_json::private::RawValue": "1"}"#).unwrap();
        assert_eq!(document, json!({"$serde_json::private::RawValue": "1"}));
    }

    #[test]
    fn pointers_lead_to_values() {
        let document = json!({"a/b": [{"~": 1}, 2], "": 3});
        assert_eq!(at(&document, "/a~1b/0/~0"), Some(&json!(1)));
        assert_eq!(at(&document, "/a~1b/-1"), Some(&json!(2)));
        assert_eq!(at(&document, "/"), Some(&json!(3)));
        assert_eq!(at(&document, ""), Some(&document));
        assert_eq!(at(&document, "/a~1b/2"), None);
        assert_eq!(at(&document, "/a~1b/-3"), None);
        assert_eq!(at(&document, "/x"), None);
    }
}
