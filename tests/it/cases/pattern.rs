//! Patterns of the black-box cases: what an answer must look like.

use regex::Regex;
use serde_json::Value;

/// Checks a value (or its absence) against a pattern; the error says where and why.
pub(super) fn matches(got: Option<&Value>, want: &Value, at: &str) -> Result<(), String> {
    let shown = || got.map_or("nothing".to_owned(), short);
    match want {
        Value::Object(members) => {
            let mut tests = members.iter().filter(|(name, _)| name.starts_with('$')).peekable();
            if tests.peek().is_some() {
                return tests.try_for_each(|(name, argument)| {
                    if test(got, name, argument, at)? {
                        Ok(())
                    } else {
                        Err(format!("{at}: wanted {name} {argument}, got {}", shown()))
                    }
                });
            }
            let Some(Value::Object(got)) = got else {
                return Err(format!("{at}: wanted an object, got {}", shown()));
            };
            members
                .iter()
                .try_for_each(|(name, want)| matches(got.get(name), want, &format!("{at}.{name}")))
        }
        Value::Array(wanted) => match got {
            Some(Value::Array(items)) if items.len() == wanted.len() => {
                let mut pairs = items.iter().zip(wanted).enumerate();
                pairs.try_for_each(|(index, (got, want))| matches(Some(got), want, &format!("{at}[{index}]")))
            }
            _ => Err(format!("{at}: wanted a list of {}, got {}", wanted.len(), shown())),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => match got {
            Some(got) if same(got, want) => Ok(()),
            _ => Err(format!("{at}: wanted {want}, got {}", shown())),
        },
    }
}

/// Values are the same when they are equal, numbers by their value.
pub(super) fn same(got: &Value, want: &Value) -> bool {
    match (got, want) {
        (Value::Number(got), Value::Number(want)) => got == want || got.as_f64() == want.as_f64(),
        (Value::Array(got), Value::Array(want)) => {
            got.len() == want.len() && got.iter().zip(want).all(|(got, want)| same(got, want))
        }
        (Value::Object(got), Value::Object(want)) => {
            got.len() == want.len()
                && got
                    .iter()
                    .all(|(name, got)| want.get(name).is_some_and(|want| same(got, want)))
        }
        _ => got == want,
    }
}

/// Every `$raw` text in a pattern, which the answer must hold to the letter.
pub(super) fn raw_texts(pattern: &Value) -> Vec<&str> {
    match pattern {
        Value::Object(members) => {
            let own = members.get("$raw").and_then(Value::as_str);
            own.into_iter().chain(members.values().flat_map(raw_texts)).collect()
        }
        Value::Array(items) => items.iter().flat_map(raw_texts).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

fn test(got: Option<&Value>, name: &str, argument: &Value, at: &str) -> Result<bool, String> {
    let bad = || format!("{at}: {name} cannot take {argument}");
    Ok(match name {
        "$absent" => got.is_none() == argument.as_bool().ok_or_else(bad)?,
        "$any" => got.is_some(),
        "$not" => matches(got, argument, at).is_err(),
        "$in" => {
            let choices = argument.as_array().ok_or_else(bad)?;
            choices.iter().any(|choice| got.is_some_and(|got| same(got, choice)))
        }
        "$re" => {
            let expression = Regex::new(argument.as_str().ok_or_else(bad)?).map_err(|error| error.to_string())?;
            got.and_then(Value::as_str).is_some_and(|got| expression.is_match(got))
        }
        "$len" => {
            let length = match got {
                Some(Value::Array(items)) => items.len(),
                Some(Value::String(text)) => text.chars().count(),
                Some(Value::Object(members)) => members.len(),
                _ => return Ok(false),
            };
            argument.as_u64().ok_or_else(bad)? == length as u64
        }
        "$type" => {
            let kind = match got {
                None => "nothing",
                Some(Value::Null) => "null",
                Some(Value::Bool(_)) => "boolean",
                Some(Value::Number(_)) => "number",
                Some(Value::String(_)) => "string",
                Some(Value::Array(_)) => "array",
                Some(Value::Object(_)) => "object",
            };
            argument.as_str().ok_or_else(bad)? == kind
        }
        // Looked for in the answer's text, by whoever has it.
        "$raw" => true,
        _ => return Err(format!("{at}: there is no test {name}")),
    })
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(200).collect()
}

mod tests {
    use serde_json::{Value, json};

    use super::{matches, raw_texts};

    /// For each kind of pattern: what it takes, and what it does not.
    #[test]
    fn each_pattern_takes_what_it_should_and_nothing_else() {
        let taken = [
            (json!({"a": 1, "b": 2}), json!({"a": 1})),
            (json!([1, {"a": "x"}]), json!([1.0, {"a": "x"}])),
            (json!(null), json!(null)),
            (json!({"a": null}), json!({"a": {"$any": true}, "b": {"$absent": true}})),
            (json!(1), json!({"$not": 2})),
            (json!({}), json!({"a": {"$not": 2}})),
            (json!("b"), json!({"$in": ["a", "b"]})),
            (json!("abc"), json!({"$re": "^a.c$"})),
            (json!([1, 2]), json!({"$len": 2})),
            (json!("é€"), json!({"$len": 2})),
            (json!({"a": 1}), json!({"$len": 1})),
            (json!(1.5), json!({"$type": "number"})),
            (json!(null), json!({"$type": "null"})),
            (json!({}), json!({"$type": "object"})),
            (json!([]), json!({"$type": "array"})),
            (json!(true), json!({"$type": "boolean"})),
            (json!("x"), json!({"$type": "string", "$re": "x"})),
        ];
        for (got, want) in taken {
            assert_eq!(matches(Some(&got), &want, "$"), Ok(()), "{want} should take {got}");
        }
        let refused = [
            (json!({"a": 1}), json!({"a": 2})),
            (json!({"a": 1}), json!({"b": null})),
            (json!([1]), json!({"0": 1})),
            (json!([1, 2]), json!([1])),
            (json!([1, 2]), json!([1, 3])),
            (json!({}), json!([])),
            (json!(1), json!(true)),
            (json!(1), json!("1")),
            (json!(0), json!(false)),
            (json!(0), json!(null)),
            (
                json!(9_007_199_254_740_993_u64),
                json!(9_007_199_254_740_993_u64.to_string()),
            ),
            (json!({"a": 1}), json!({"b": {"$any": true}})),
            (json!({"a": null}), json!({"a": {"$absent": true}})),
            (json!({}), json!({"a": {"$absent": false}})),
            (json!(2), json!({"$not": 2})),
            (json!("c"), json!({"$in": ["a", "b"]})),
            (json!("xabc"), json!({"$re": "^a"})),
            (json!(1), json!({"$re": "1"})),
            (json!([1]), json!({"$len": 2})),
            (json!(2), json!({"$len": 2})),
            (json!(true), json!({"$type": "number"})),
            (json!("x"), json!({"$type": "string", "$re": "y"})),
            (json!(1), json!({"$in": 1})),
            (json!(1), json!({"$unknown": 1})),
        ];
        for (got, want) in refused {
            assert!(matches(Some(&got), &want, "$").is_err(), "{want} should not take {got}");
        }
        assert!(
            matches(None, &Value::Null, "$").is_err(),
            "an absent member is not null"
        );
    }

    #[test]
    fn an_error_says_where() {
        let error = matches(Some(&json!({"a": [{"b": 1}]})), &json!({"a": [{"b": 2}]}), "$").unwrap_err();
        assert_eq!(error, "$.a[0].b: wanted 2, got 1");
    }

    #[test]
    fn raw_texts_are_found_at_any_depth() {
        let pattern = json!({"a": {"$raw": "1.0"}, "b": [{"c": {"$raw": "1e400"}}]});
        assert_eq!(raw_texts(&pattern), ["1.0", "1e400"]);
    }
}
