//! The description as a judge of answers: status, media type, code and members must be as it says.

use serde_json::{Map, Value};

use crate::support::{Answer, Client};

pub(super) struct Described {
    pub(super) document: Answer,
}

pub(super) struct Operation {
    pub(super) id: String,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) value: Value,
}

impl Operation {
    /// The codes of every problem that is declared: the names of the examples.
    pub(super) fn problems(&self) -> Vec<String> {
        let responses = self.value["responses"].as_object().expect("responses");
        let examples = responses
            .values()
            .filter_map(|answer| answer["content"]["application/problem+json"]["examples"].as_object());
        examples.flat_map(Map::keys).cloned().collect()
    }
}

impl Described {
    pub(super) async fn by(client: &Client) -> Self {
        Described {
            document: client.get("/openapi.json", 200).await,
        }
    }

    pub(super) fn operations(&self) -> Vec<Operation> {
        let paths = self.document.at("/paths").as_object().expect("paths");
        let operations = paths.iter().flat_map(|(path, methods)| {
            let methods = methods.as_object().expect("methods");
            methods.iter().map(|(method, value)| Operation {
                id: value["operationId"].as_str().expect("an operationId").to_owned(),
                method: method.to_uppercase(),
                path: path.clone(),
                value: value.clone(),
            })
        });
        operations.collect()
    }

    pub(super) fn operation(&self, id: &str) -> Operation {
        let operation = self.operations().into_iter().find(|operation| operation.id == id);
        operation.unwrap_or_else(|| panic!("no operation is called {id}"))
    }

    /// Fails unless the description says that `operation` may answer so.
    pub(super) fn check(&self, id: &str, answer: &Answer) {
        if let Err(fault) = self.judge(&self.operation(id), answer) {
            panic!("{id} answers {}, and {fault}: {}", answer.status, answer.text);
        }
    }

    pub(super) fn judge(&self, operation: &Operation, answer: &Answer) -> Result<(), String> {
        let Some(declared) = operation.value["responses"].get(answer.status.to_string()) else {
            return Err("that status is not declared".into());
        };
        let kind = answer.header("content-type").unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default();
        let Some(content) = declared["content"].get(kind) else {
            return Err(format!("{kind} is not declared"));
        };
        if let Some(code) = answer.at("/code").as_str()
            && content["examples"].get(code).is_none()
        {
            return Err(format!("the problem {code} is not declared"));
        }
        for name in declared["headers"].as_object().into_iter().flat_map(Map::keys) {
            let optional = name == "Link";
            if !optional && answer.header(name).is_none() {
                return Err(format!("the declared header {name} is missing"));
            }
        }
        if kind.ends_with("json") {
            self.conforms(&content["schema"], answer.at(""), "")
        } else {
            Ok(())
        }
    }

    pub(super) fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            Some(reference) => self.document.at(reference.trim_start_matches('#')),
            None => schema,
        }
    }

    /// What our schemas use of JSON Schema; an object may only have members that are described.
    fn conforms(&self, schema: &Value, value: &Value, place: &str) -> Result<(), String> {
        let schema = self.resolve(schema);
        let fault = |what: String| Err(format!("{place}: {what}"));
        if let Some(choices) = schema["oneOf"].as_array() {
            let fitting = choices
                .iter()
                .filter(|choice| self.conforms(choice, value, place).is_ok())
                .count();
            return match fitting {
                1 => Ok(()),
                _ => fault(format!("{value} fits {fitting} of its choices")),
            };
        }
        let types = match &schema["type"] {
            Value::String(one) => vec![one.as_str()],
            Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
            _ if schema["allOf"].is_array() => vec!["object"],
            // Any JSON.
            _ => return Ok(()),
        };
        if !types.iter().any(|name| is_a(name, value)) {
            return fault(format!("{value} is not of type {types:?}"));
        }
        if let Some(values) = schema["enum"].as_array()
            && !values.contains(value)
        {
            return fault(format!("{value} is none of {values:?}"));
        }
        match value {
            Value::Array(items) => items
                .iter()
                .enumerate()
                .try_for_each(|(index, item)| self.conforms(&schema["items"], item, &format!("{place}/{index}"))),
            Value::Object(members) => {
                let (mut properties, mut required, mut open) = (Map::new(), Vec::new(), None);
                self.gather(schema, &mut properties, &mut required, &mut open);
                if let Some(missing) = required.iter().find(|name| !members.contains_key(*name)) {
                    return fault(format!("{missing} is missing"));
                }
                if properties.is_empty() && open.is_none() {
                    // An object of any kind.
                    return Ok(());
                }
                members.iter().try_for_each(|(name, value)| {
                    let place = format!("{place}/{name}");
                    match properties.get(name).or(open.as_ref()) {
                        Some(schema) => self.conforms(schema, value, &place),
                        None => Err(format!("{place} is not described")),
                    }
                })
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    /// The members of an object, also of one that is put together from several.
    fn gather(
        &self,
        schema: &Value,
        properties: &mut Map<String, Value>,
        required: &mut Vec<String>,
        open: &mut Option<Value>,
    ) {
        let schema = self.resolve(schema);
        for part in schema["allOf"].as_array().into_iter().flatten() {
            self.gather(part, properties, required, open);
        }
        properties.extend(schema["properties"].as_object().cloned().unwrap_or_default());
        let names = schema["required"].as_array().into_iter().flatten();
        required.extend(names.filter_map(Value::as_str).map(str::to_owned));
        if schema["additionalProperties"].is_object() {
            *open = Some(schema["additionalProperties"].clone());
        }
    }
}

fn is_a(name: &str, value: &Value) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

/// Where two documents do not have the same members. What is empty in one of them may be anything.
pub(super) fn difference(left: &Value, right: &Value) -> Option<String> {
    fn walk(left: &Value, right: &Value, place: &str) -> Option<String> {
        match (left, right) {
            (Value::Object(left), Value::Object(right)) if !left.is_empty() && !right.is_empty() => {
                left.keys().chain(right.keys()).find_map(|name| {
                    let place = format!("{place}/{name}");
                    match (left.get(name), right.get(name)) {
                        (Some(left), Some(right)) => walk(left, right, &place),
                        _ => Some(place),
                    }
                })
            }
            (Value::Array(left), Value::Array(right)) => walk(left.first()?, right.first()?, &format!("{place}/0")),
            _ => None,
        }
    }
    walk(left, right, "")
}

/// A judge that lets everything pass would be none.
mod tests {
    use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
    use serde_json::{Value, json};

    use super::{Described, difference};
    use crate::support::Answer;

    fn answer(status: u16, kind: &'static str, body: &Value) -> Answer {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
        Answer::new(status, headers, body.to_string().as_bytes(), std::time::Duration::ZERO)
    }

    #[test]
    fn what_is_not_described_is_seen() {
        let thing = json!({
            "type": "object", "required": ["a"],
            "properties": {
                "a": {"type": "integer"}, "b": {"type": ["string", "null"]},
                "c": {"oneOf": [{"type": "null"}, {"$ref": "#/components/schemas/Kind"}]},
                "d": {"type": "array", "items": {"type": "boolean"}},
                "e": {"type": "object", "additionalProperties": {"type": "string"}},
                "f": {}
            }
        });
        let document = json!({
            "paths": {"/": {"get": {"operationId": "x", "responses": {
                "200": {"content": {"application/json": {"schema": {"allOf": [{"$ref": "#/components/schemas/Thing"}]}}}},
                "400": {"content": {"application/problem+json": {"examples": {"known": {}}, "schema": {}}}}
            }}}},
            "components": {"schemas": {"Thing": thing, "Kind": {"type": "string", "enum": ["k"]}}}
        });
        let described = Described {
            document: answer(200, "application/json", &document),
        };
        let operation = described.operation("x");
        let judge = |status, kind, body: Value| described.judge(&operation, &answer(status, kind, &body));
        let ok = json!({"a": 1, "b": null, "c": "k", "d": [true], "e": {"x": "y"}, "f": [1]});
        assert_eq!(judge(200, "application/json", ok.clone()), Ok(()));
        assert_eq!(judge(200, "application/json; charset=utf-8", json!({"a": 1})), Ok(()));
        assert_eq!(judge(400, "application/problem+json", json!({"code": "known"})), Ok(()));
        assert!(judge(201, "application/json", ok.clone()).is_err());
        assert!(judge(200, "text/html", ok.clone()).is_err());
        assert!(judge(400, "application/problem+json", json!({"code": "other"})).is_err());
        for (name, wrong) in [
            ("a", json!("1")),
            ("a", json!(1.5)),
            ("b", json!(1)),
            ("c", json!("l")),
            ("d", json!([1])),
            ("e", json!({"x": 1})),
            ("g", json!(1)),
        ] {
            let mut body = ok.clone();
            body[name] = wrong;
            assert!(judge(200, "application/json", body.clone()).is_err(), "{body}");
        }
        assert!(judge(200, "application/json", json!({"b": "x"})).is_err());
    }

    #[test]
    fn members_that_differ_are_found_wherever_they_are() {
        let document = json!({"a": [{"b": null}, {"c": 1}], "d": {"e": []}});
        let at = |other: Value| difference(&document, &other);
        assert_eq!(at(document.clone()), None);
        assert_eq!(at(json!({"a": [{"b": 7}], "d": {}})), None);
        assert_eq!(at(json!({"a": [{"b": 7, "x": 1}], "d": {}})), Some("/a/0/x".into()));
        assert_eq!(at(json!({"a": null, "d": {"f": []}})), Some("/d/e".into()));
        assert_eq!(at(json!({"a": []})), Some("/d".into()));
    }
}
