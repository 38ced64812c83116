use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::json::check;

fn canonical(text: &str) -> Vec<u8> {
    assert_eq!(check(text.as_bytes(), MAX_DEPTH), Ok(text));
    let mut out = b"kept".to_vec();
    assert_eq!(write(text, &mut out), Ok(()));
    out.split_off(4)
}

/// Frozen: a change here changes the fingerprints that are stored.
#[test]
fn golden_vectors() {
    let table = [
        ("null", "n"),
        ("true", "t"),
        ("false", "f"),
        ("0", "d0e0;"),
        ("-0.0e7", "d0e0;"),
        ("42", "d42e0;"),
        ("-12.50", "d-125e-1;"),
        ("1e400", "d1e400;"),
        ("10e999999999999999999999", "d1e1000000000000000000000;"),
        (r#""""#, "s0:"),
        (r#""a\u0000\/é\ud83d\ude00\"""#, "s10:a\0/é😀\""),
        ("[]", "[]"),
        ("{}", "{}"),
        ("[[],{},null,\"n\"]", "[[]{}ns1:n]"),
        (
            r#" { "order" : 42, "lines": [ {"sku": "A-1", "n": 2.0} ], "\u00e9": null, "": -1, "Z": true } "#,
            "{s0:d-1e0;s1:Zts5:lines[{s1:nd2e0;s3:skus3:A-1}]s5:orderd42e0;s2:én}",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(String::from_utf8(canonical(text)).unwrap(), expected, "{text}");
    }
}

#[test]
fn different_values_differ() {
    let table = [
        "null",
        "false",
        "true",
        "0",
        "1",
        "10",
        "-1",
        "0.1",
        "9007199254740992",
        "9007199254740993",
        "1e999999998",
        "1e999999999",
        "1e-999999999",
        r#""""#,
        r#""0""#,
        r#""null""#,
        r#""n""#,
        r#""1e0""#,
        r#""d1e0;""#,
        r#"" ""#,
        r#""a""#,
        r#""A""#,
        // One letter for the eye, other code points: no normalization.
        r#""é""#,
        r#""e\u0301""#,
        "[]",
        "[[]]",
        "[[],[]]",
        "[null]",
        "[0]",
        r#"[""]"#,
        r#"["",""]"#,
        r#"["ab"]"#,
        r#"["a","b"]"#,
        r#"["b","a"]"#,
        r#"["as1:b"]"#,
        r#"["a",["b"]]"#,
        r#"[["a"],"b"]"#,
        "[1,2]",
        "[12]",
        "[1,[2]]",
        "{}",
        "[{}]",
        r#"{"a":null}"#,
        r#"{"a":{}}"#,
        r#"{"a":[]}"#,
        r#"{"":null}"#,
        r#"["a",null]"#,
        r#"{"a":null,"b":null}"#,
        r#"{"a":{"b":null}}"#,
        r#"{"a":"b"}"#,
        r#"{"b":"a"}"#,
        r#"{"a":1,"b":2}"#,
        r#"{"a":2,"b":1}"#,
        r#"[{"a":1},{"b":2}]"#,
    ];
    let mut seen = BTreeMap::new();
    for text in table {
        if let Some(other) = seen.insert(canonical(text), text) {
            panic!("{text} and {other} have one form");
        }
    }
}

#[test]
fn members_are_ordered_by_the_bytes_of_their_keys() {
    // Keys that share their first eight bytes, are padded alike, or would order otherwise by UTF-16 or when escaped.
    let keys = [
        "",
        "\\u0000",
        "\\u0000\\u0000",
        "a",
        "a\\u0000",
        "aaaaaaaa",
        "aaaaaaaa\\u0000",
        "aaaaaaaab",
        "aaaaaaab",
        "b",
        "\\uffff",
        "😀",
    ];
    let form = |keys: &[&str]| {
        let members: Vec<String> = keys.iter().map(|key| format!("\"{key}\":\"{key}0\"")).collect();
        canonical(&format!("{{{}}}", members.join(",")))
    };
    let sorted = form(&keys);
    let mut expected = String::from("{");
    for key in [
        "",
        "\0",
        "\0\0",
        "a",
        "a\0",
        "aaaaaaaa",
        "aaaaaaaa\0",
        "aaaaaaaab",
        "aaaaaaab",
        "b",
        "\u{ffff}",
        "😀",
    ] {
        expected += &format!("s{}:{key}s{}:{key}0", key.len(), key.len() + 1);
    }
    expected.push('}');
    assert_eq!(String::from_utf8(sorted.clone()).unwrap(), expected);
    let mut turned = keys;
    for _ in 0..keys.len() {
        turned.rotate_left(5);
        assert_eq!(form(&turned), sorted);
        turned.reverse();
        assert_eq!(form(&turned), sorted);
    }
}

#[test]
fn a_text_that_has_not_been_checked_is_an_error() {
    let deep = "[".repeat(MAX_DEPTH + 1) + &"]".repeat(MAX_DEPTH + 1);
    for text in [
        "",
        "x",
        "[1",
        "01",
        "1 2",
        "\"\\ud800\"",
        r#"{"a":1,"a":1}"#,
        r#"{"b":1,"a":1,"b":1}"#,
        &deep,
    ] {
        let mut out = b"kept".to_vec();
        assert_eq!(write(text, &mut out), Err(NotChecked), "{text}");
        assert_eq!(out, b"kept");
    }
}

/// A JSON value, independent of how it is spelled: two are equal if and only if they mean the same.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Null,
    Bool(bool),
    /// `digits` × 10^`exponent`; `digits` without zeros at either end, empty (and nothing else set) for zero.
    Number {
        negative: bool,
        digits: String,
        exponent: i128,
    },
    String(String),
    Array(Vec<Value>),
    Object(BTreeMap<String, Value>),
}

fn values() -> impl Strategy<Value = Value> {
    let exponent = prop_oneof![
        -3..4_i128,
        -3..4_i128,
        999_999_999_999_999_990..1_000_000_000_000_000_010_i128,
        -1_000_000_000_000_000_010..-999_999_999_999_999_990_i128,
        any::<i64>().prop_map(i128::from),
        Just(10_i128.pow(30)),
    ];
    let number = (any::<bool>(), "[1-9]|[1-9][0-9]{0,30}[1-9]", exponent).prop_map(|(negative, digits, exponent)| {
        Value::Number {
            negative,
            digits,
            exponent,
        }
    });
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        Just(Value::Number {
            negative: false,
            digits: String::new(),
            exponent: 0
        }),
        number,
        "[ab0-9:;nse\"\\\\/\u{0}\u{1f}é\u{301}\u{ffff}😀]{0,9}".prop_map(Value::String),
    ];
    leaf.prop_recursive(5, 30, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            prop::collection::btree_map("[abé\u{0}\"]{0,3}|aaaaaaaa[ab\u{0}]{0,2}", inner, 0..6)
                .prop_map(Value::Object),
        ]
    })
}

/// Spells values at random; the numbers it draws come from a seed, so that a failure can be had again.
struct Speller {
    seed: u64,
    text: String,
}

impl Speller {
    fn spell(value: &Value, seed: u64) -> String {
        let mut speller = Self {
            seed,
            text: String::new(),
        };
        speller.white();
        speller.value(value);
        speller.white();
        speller.text
    }

    fn below(&mut self, bound: usize) -> usize {
        // SplitMix64.
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    fn white(&mut self) {
        let white = ["", "", "", " ", "\n", "\r\n\t ", "    "][self.below(7)];
        self.text.push_str(white);
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.text.push_str("null"),
            Value::Bool(value) => self.text.push_str(if *value { "true" } else { "false" }),
            Value::Number {
                negative,
                digits,
                exponent,
            } => self.number(*negative, digits, *exponent),
            Value::String(string) => self.string(string),
            Value::Array(items) => {
                self.text.push('[');
                self.white();
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        self.text.push(',');
                        self.white();
                    }
                    self.value(item);
                    self.white();
                }
                self.text.push(']');
            }
            Value::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                for i in (1..members.len()).rev() {
                    let other = self.below(i + 1);
                    members.swap(i, other);
                }
                self.text.push('{');
                self.white();
                for (i, (key, value)) in members.into_iter().enumerate() {
                    if i > 0 {
                        self.text.push(',');
                        self.white();
                    }
                    self.string(key);
                    self.white();
                    self.text.push(':');
                    self.white();
                    self.value(value);
                    self.white();
                }
                self.text.push('}');
            }
        }
    }

    fn string(&mut self, string: &str) {
        self.text.push('"');
        for c in string.chars() {
            let must = matches!(c, '"' | '\\' | '\0'..='\u{1f}');
            if must && matches!(c, '"' | '\\') && self.below(2) == 0 || c == '/' && self.below(3) == 0 {
                self.text.extend(['\\', c]);
            } else if must || self.below(4) == 0 {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let escape = if self.below(2) == 0 {
                        format!("\\u{unit:04x}")
                    } else {
                        format!("\\u{unit:04X}")
                    };
                    self.text.push_str(&escape);
                }
            } else {
                self.text.push(c);
            }
        }
        self.text.push('"');
    }

    fn number(&mut self, negative: bool, digits: &str, mut exponent: i128) {
        if negative || digits.is_empty() && self.below(2) == 0 {
            self.text.push('-');
        }
        if digits.is_empty() {
            let zero = [
                "0",
                "0.0",
                "0e5",
                "0.00E-3",
                "0e-99999999999999999999",
                "0.0e+1000000000000000000000",
            ];
            let zero = zero[self.below(zero.len())];
            self.text.push_str(zero);
            return;
        }
        // Zeros behind, then a point somewhere (zeros before the digits, if it stands before them), then the exponent.
        let zeros = self.below(4);
        let mut digits = digits.to_owned() + &"0".repeat(zeros);
        exponent -= zeros as i128;
        if self.below(2) == 0 {
            let before = self.below(3);
            digits.insert_str(0, &"0".repeat(before + 1));
            let point = 1 + self.below(digits.len());
            exponent += (digits.len() - point) as i128;
            let (whole, fraction) = digits.split_at(point);
            let whole = whole.trim_start_matches('0');
            let whole = if whole.is_empty() { "0" } else { whole };
            digits = if fraction.is_empty() {
                whole.to_owned()
            } else {
                format!("{whole}.{fraction}")
            };
        }
        self.text.push_str(&digits);
        if exponent != 0 || self.below(3) == 0 {
            let e = ['e', 'E'][self.below(2)];
            self.text.push(e);
            if exponent < 0 || exponent == 0 && self.below(2) == 0 {
                self.text.push('-');
            } else if self.below(2) == 0 {
                self.text.push('+');
            }
            let zeros = self.below(3);
            self.text.push_str(&"0".repeat(zeros));
            self.text.push_str(&exponent.unsigned_abs().to_string());
        }
    }
}

/// Reads the canonical form back by its grammar, and checks that it is kept.
fn read(form: &mut &[u8]) -> Value {
    fn until<'f>(form: &mut &'f [u8], end: u8) -> &'f str {
        let at = form.iter().position(|&byte| byte == end).unwrap();
        let part = std::str::from_utf8(&form[..at]).unwrap();
        *form = &form[at + 1..];
        part
    }
    let first = form[0];
    *form = &form[1..];
    match first {
        b'n' => Value::Null,
        b't' => Value::Bool(true),
        b'f' => Value::Bool(false),
        b'd' => {
            let number = until(form, b';');
            let (digits, exponent) = number.split_once('e').unwrap();
            let exponent: i128 = exponent.parse().unwrap();
            let negative = digits.starts_with('-');
            let digits = digits.trim_start_matches('-');
            if number == "0e0" {
                return Value::Number {
                    negative,
                    digits: String::new(),
                    exponent,
                };
            }
            assert!(!digits.starts_with('0') && !digits.ends_with('0'), "{number}");
            assert!(number.ends_with(&format!("e{exponent}")), "{number}");
            Value::Number {
                negative,
                digits: digits.to_owned(),
                exponent,
            }
        }
        b's' => {
            let length: usize = until(form, b':').parse().unwrap();
            let (string, rest) = form.split_at(length);
            *form = rest;
            Value::String(String::from_utf8(string.to_vec()).unwrap())
        }
        b'[' => {
            let mut items = Vec::new();
            while form[0] != b']' {
                items.push(read(form));
            }
            *form = &form[1..];
            Value::Array(items)
        }
        b'{' => {
            let mut members = BTreeMap::new();
            while form[0] != b'}' {
                let Value::String(key) = read(form) else {
                    panic!("a key is a string")
                };
                assert!(members.last_key_value().is_none_or(|(last, _)| *last < key), "order");
                members.insert(key, read(form));
            }
            *form = &form[1..];
            Value::Object(members)
        }
        other => panic!("no value begins with {other}"),
    }
}

/// Changes something in a value, so that it is another.
fn change(value: &Value, speller: &mut Speller) -> Value {
    match value {
        Value::Array(items) if !items.is_empty() && speller.below(4) > 0 => {
            let mut items = items.clone();
            let at = speller.below(items.len());
            items[at] = change(&items[at], speller);
            Value::Array(items)
        }
        Value::Object(members) if !members.is_empty() && speller.below(4) > 0 => {
            let mut members = members.clone();
            let key = members.keys().nth(speller.below(members.len())).unwrap().clone();
            if speller.below(3) == 0 {
                members.remove(&key);
            } else {
                let changed = change(&members[&key], speller);
                members.insert(key, changed);
            }
            Value::Object(members)
        }
        Value::Number {
            negative,
            digits,
            exponent,
        } if !digits.is_empty() => match speller.below(4) {
            0 => Value::Number {
                negative: !negative,
                digits: digits.clone(),
                exponent: *exponent,
            },
            1 => Value::Number {
                negative: *negative,
                digits: format!("{digits}1"),
                exponent: *exponent,
            },
            2 => Value::String(Speller::spell(value, 0)),
            _ => Value::Number {
                negative: *negative,
                digits: digits.clone(),
                exponent: exponent + 1,
            },
        },
        Value::String(string) => Value::String(format!("{string}0")),
        Value::Array(items) => Value::Array([items.as_slice(), &[Value::Null]].concat()),
        Value::Object(members) => {
            let mut members = members.clone();
            members.insert("new".to_owned(), Value::Null);
            Value::Object(members)
        }
        Value::Null => Value::Bool(false),
        Value::Bool(value) => Value::Bool(!value),
        Value::Number { .. } => Value::Null,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever the spelling, the form is the same, and the value can be read back from it: so no two values share one.
    #[test]
    fn the_form_is_blind_to_spelling_and_to_nothing_else(value in values(), seeds in any::<[u64; 3]>()) {
        let form = canonical(&Speller::spell(&value, seeds[0]));
        prop_assert_eq!(&form, &canonical(&Speller::spell(&value, seeds[1])));
        let mut rest = form.as_slice();
        prop_assert_eq!(read(&mut rest), value.clone());
        prop_assert!(rest.is_empty());

        let other = change(&value, &mut Speller { seed: seeds[2], text: String::new() });
        prop_assert_ne!(&value, &other);
        prop_assert_ne!(form, canonical(&Speller::spell(&other, seeds[1])));
    }

    #[test]
    fn nothing_makes_it_panic(value in values(), seed in any::<u64>(), at in any::<prop::sample::Index>(), noise in "[\\[\\]{}\",:\\\\0-9eE.u \u{e9}]{0,3}", any in any::<String>()) {
        let text = Speller::spell(&value, seed);
        let at = text.floor_char_boundary(at.index(text.len()));
        for text in [&any, &text[..at], &format!("{}{noise}{}", &text[..at], &text[at..])] {
            let mut out = Vec::new();
            let written = write(text, &mut out).is_ok();
            prop_assert_eq!(written, check(text.as_bytes(), MAX_DEPTH).is_ok(), "{}", text);
            prop_assert_eq!(written, !out.is_empty());
        }
    }
}
