//! `${x}` in cases: saved values, and texts repeated.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::Value;

pub(super) type Names = HashMap<String, Value>;

static WHOLE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\$\{(\w+)\}$").expect("a valid expression"));
static NAME: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\$\{(\w+)\}").expect("a valid expression"));
static REPEATED: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\$\{([^{}:]+):(\d+)\}").expect("a valid expression"));

/// A copy of the node with everything filled in. A string that is one name keeps the value's type; an
/// unknown name is left as it stands.
pub(super) fn fill(node: &Value, names: &Names) -> Value {
    match node {
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| (fill_text(name, names), fill(value, names)))
            .collect(),
        Value::Array(items) => items.iter().map(|item| fill(item, names)).collect(),
        Value::String(text) => match WHOLE.captures(text).and_then(|found| names.get(&found[1])) {
            Some(value) => value.clone(),
            None => Value::String(fill_text(text, names)),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) => node.clone(),
    }
}

fn fill_text(text: &str, names: &Names) -> String {
    if !text.contains("${") {
        return text.to_owned();
    }
    let text = REPEATED.replace_all(text, |found: &Captures<'_>| {
        found[1].repeat(found[2].parse().expect("a number of times that fits"))
    });
    let named = NAME.replace_all(&text, |found: &Captures<'_>| match names.get(&found[1]) {
        Some(Value::String(value)) => value.clone(),
        Some(value) => value.to_string(),
        None => found[0].to_owned(),
    });
    named.into_owned()
}

mod tests {
    use serde_json::json;

    use super::{Names, fill};

    #[test]
    fn names_and_repetitions_are_filled_in() {
        let names = Names::from([("n".to_owned(), json!(7)), ("s".to_owned(), json!("x"))]);
        let cases = [
            (json!("${n}"), json!(7)),
            (json!("a${n}b${s}"), json!("a7bx")),
            (json!("${unknown}"), json!("${unknown}")),
            (json!("<${ab:3}>"), json!("<ababab>")),
            (json!("${[:2}${€:2}"), json!("[[€€")),
            (
                json!({"k-${s}": ["${s}", 1, null, true]}),
                json!({"k-x": ["x", 1, null, true]}),
            ),
        ];
        for (before, after) in cases {
            assert_eq!(fill(&before, &names), after, "{before}");
        }
    }
}
