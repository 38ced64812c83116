use std::collections::HashSet;
use std::fmt;

use proptest::prelude::*;
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::*;

fn fault(text: &str) -> Fault {
    match check(text.as_bytes(), MAX_DEPTH) {
        Ok(_) => panic!("{text:?} passed"),
        Err(fault) => fault,
    }
}

#[test]
fn what_passes() {
    let table = [
        "0",
        "-0",
        " \t\r\n null \n",
        "true",
        "false",
        "\"\"",
        "\"\u{7f}\u{2028}é😀\"",
        r#""\"\\\/\b\f\n\r\t\u0000\u00e9\ud83d\ude00\uD83D\uDE00""#,
        "[]",
        "[ ]",
        "{}",
        "{ }",
        "[1,-1,0.5,1e5,1E+5,1e-5,-0.0e00,10,1e400,1e99999999999999999999999999]",
        r#" { "a" : [ { } , [ ] ] , "" : { "a" : 1 } , "b" : "a" } "#,
        r#"[{"a":1},{"a":1}]"#,
        r#"{"a":1,"A":2,"á":3,"a\u0301":4,"a ":5}"#,
        r#"{"$serde_json::private::Number":"1"}"#,
    ];
    for text in table {
        assert_eq!(check(text.as_bytes(), MAX_DEPTH), Ok(text));
    }
}

#[test]
fn what_does_not_pass() {
    use FaultKind::{DuplicateKey, Surrogate, Syntax};
    let table = [
        ("", Syntax, 0, ""),
        (" \n", Syntax, 2, ""),
        ("\u{feff}{}", Syntax, 0, ""),
        ("{", Syntax, 1, ""),
        ("[", Syntax, 1, "/0"),
        ("]", Syntax, 0, ""),
        ("[1", Syntax, 2, ""),
        ("[1,", Syntax, 3, "/1"),
        ("[1,]", Syntax, 3, ""),
        ("[,1]", Syntax, 1, "/0"),
        ("[1 2]", Syntax, 3, ""),
        ("[1}", Syntax, 2, ""),
        (r#"{"a":1]"#, Syntax, 6, ""),
        (r#"{"a":1,}"#, Syntax, 7, ""),
        (r#"{"a":1,,"b":2}"#, Syntax, 7, ""),
        (r#"{"a" 1}"#, Syntax, 5, "/a"),
        (r#"{"a":}"#, Syntax, 5, "/a"),
        (r#"{"a":"#, Syntax, 5, "/a"),
        (r#"{"a""#, Syntax, 4, "/a"),
        (r#"{"a":{"b":[0,{"c":tru}]}}"#, Syntax, 18, "/a/b/1/c"),
        ("{a:1}", Syntax, 1, ""),
        ("{1:1}", Syntax, 1, ""),
        ("{'a':1}", Syntax, 1, ""),
        ("1 2", Syntax, 2, ""),
        ("{}{}", Syntax, 2, ""),
        ("null,", Syntax, 4, ""),
        ("nul", Syntax, 0, ""),
        ("nulL", Syntax, 0, ""),
        ("True", Syntax, 0, ""),
        ("nullnull", Syntax, 4, ""),
        ("NaN", Syntax, 0, ""),
        ("-Infinity", Syntax, 1, ""),
        ("01", Syntax, 0, ""),
        ("-01", Syntax, 0, ""),
        ("-", Syntax, 1, ""),
        ("+1", Syntax, 0, ""),
        (".5", Syntax, 0, ""),
        ("1.", Syntax, 2, ""),
        ("1.e1", Syntax, 2, ""),
        ("1e", Syntax, 2, ""),
        ("1e+", Syntax, 3, ""),
        ("0x10", Syntax, 1, ""),
        ("[1_000]", Syntax, 2, ""),
        ("\u{a0}1", Syntax, 0, ""),
        ("1\u{c}", Syntax, 1, ""),
        ("1\0", Syntax, 1, ""),
        ("/* */1", Syntax, 0, ""),
        ("\"", Syntax, 1, ""),
        ("\"abc", Syntax, 4, ""),
        ("\"a\nb\"", Syntax, 2, ""),
        ("\"12345678\u{1f}\"", Syntax, 9, ""),
        ("\"\0\"", Syntax, 1, ""),
        ("{\"a\tb\":1}", Syntax, 3, ""),
        (r#""\x""#, Syntax, 1, ""),
        (r#""\'""#, Syntax, 1, ""),
        (r#""\U0041""#, Syntax, 1, ""),
        (r#""\u00g0""#, Syntax, 1, ""),
        (r#""\u00""#, Syntax, 1, ""),
        (r#""\u+041""#, Syntax, 1, ""),
        (r#""\u00"#, Syntax, 5, ""),
        (r#""\"#, Syntax, 2, ""),
        (r#""\ud800""#, Surrogate, 1, ""),
        (r#""\udc00""#, Surrogate, 1, ""),
        (r#"["ok","\udc00\ud800"]"#, Surrogate, 7, "/1"),
        (r#""\ud800\u0041""#, Surrogate, 1, ""),
        (r#""\ud83d\ud83d\ude00""#, Surrogate, 1, ""),
        (r#""\ud800\n""#, Surrogate, 1, ""),
        (r#"{"x":{"\ud800":1}}"#, Surrogate, 7, "/x"),
        (r#"{"a":1,"a":1}"#, DuplicateKey, 7, "/a"),
        (r#"{"a":1,"\u0061":2}"#, DuplicateKey, 7, "/a"),
        (r#"{"\u00e9\n":1,"b":2,"é\u000A":2}"#, DuplicateKey, 20, "/é\n"),
        (r#"{"":1,"":2}"#, DuplicateKey, 6, "/"),
        (
            r#"[0,{"a/b~":{"c":[{"d":{"e":1},"d":2}]}}]"#,
            DuplicateKey,
            30,
            "/1/a~1b~0/c/0/d",
        ),
        // The first fault wins.
        (r#"{"a":1,"a":2,]"#, DuplicateKey, 7, "/a"),
        (r#"["\ud800","\x"]"#, Surrogate, 2, "/0"),
        (r#"["\x","\ud800"]"#, Syntax, 2, "/0"),
    ];
    for (text, kind, offset, pointer) in table {
        let fault = fault(text);
        assert_eq!(
            (fault.kind, fault.offset, fault.pointer.as_str()),
            (kind, offset, pointer),
            "{text:?}: {fault}"
        );
    }
}

#[test]
fn bad_utf8_is_found_where_it_is() {
    let table: [(&[u8], FaultKind, usize, &str); 8] = [
        (b"\xff", FaultKind::Encoding, 0, ""),
        (b"{\"a\":[1,\"\xe9\"]}", FaultKind::Encoding, 9, "/a/1"),
        (b"{\"a\":1}\xff", FaultKind::Encoding, 7, ""),
        // Overlong, a surrogate, beyond Unicode, cut off.
        (b"\"\xc0\xaf\"", FaultKind::Encoding, 1, ""),
        (b"\"\xed\xa0\x80\"", FaultKind::Encoding, 1, ""),
        (b"[\"\xf4\x90\x80\x80\"]", FaultKind::Encoding, 2, "/0"),
        (b"\"\xc3", FaultKind::Encoding, 1, ""),
        // The first fault wins.
        (b"[1,,\"\xff\"]", FaultKind::Syntax, 3, "/1"),
    ];
    for (bytes, kind, offset, pointer) in table {
        let fault = check(bytes, MAX_DEPTH).unwrap_err();
        assert_eq!(
            (fault.kind, fault.offset, fault.pointer.as_str()),
            (kind, offset, pointer),
            "{bytes:?}: {fault}"
        );
    }
}

#[test]
fn depth_is_counted_from_one() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    let objects = |depth: usize| "{\"a\":".repeat(depth - 1) + "{}" + &"}".repeat(depth - 1);
    assert!(check(b"1", 0).is_ok());
    assert_eq!(check(b"[]", 0).unwrap_err().kind, FaultKind::Depth);
    for depth in [1, 2, MAX_DEPTH] {
        for text in [nested(depth), objects(depth)] {
            assert!(check(text.as_bytes(), depth).is_ok());
            assert_eq!(check(text.as_bytes(), depth - 1).unwrap_err().kind, FaultKind::Depth);
        }
    }
    // Siblings do not add up.
    assert!(check(b"[[],[],{\"a\":[]}]", 3).is_ok());
    let deep = fault(&"[".repeat(16 << 20));
    assert_eq!((deep.kind, deep.offset), (FaultKind::Depth, MAX_DEPTH));
    assert_eq!(deep.pointer, "/0".repeat(MAX_DEPTH));
}

#[test]
fn any_number_of_keys_is_compared() {
    for count in [1, 2, 15, 16, 17, 18, 40, 1_000] {
        let members: Vec<String> = (0..count).map(|i| format!("\"k{i}\":{{\"k0\":0}}")).collect();
        let text = format!("{{{}}}", members.join(","));
        assert_eq!(check(text.as_bytes(), MAX_DEPTH), Ok(text.as_str()));
        for (twice, spelling) in [(0, "k0".to_owned()), (count - 1, format!("\\u006b{}", count - 1))] {
            let text = format!("{{{},\"{spelling}\":0}}", members.join(","));
            let fault = fault(&text);
            assert_eq!(
                (fault.kind, fault.pointer),
                (FaultKind::DuplicateKey, format!("/k{twice}")),
                "{count}"
            );
            assert_eq!(&text[fault.offset..], format!("\"{spelling}\":0}}"));
        }
    }
}

#[test]
fn pointers_are_capped_at_an_enclosing_value() {
    let key = "k".repeat(200);
    assert_eq!(
        fault(&format!(r#"{{"{key}":{{"{key}":x}}}}"#)).pointer,
        format!("/{key}")
    );
    assert_eq!(fault(&format!(r#"{{"a":{{"{key}{key}":x}}}}"#)).pointer, "/a");
    assert_eq!(fault(&format!(r#"{{"{}":x}}"#, "k".repeat(255))).pointer.len(), 256);
    assert_eq!(fault(&format!(r#"{{"{}":x}}"#, "/".repeat(128))).pointer, "");
}

#[test]
fn details_say_what_where_and_what_to_do() {
    let table = [
        (
            "",
            "the text is empty where a JSON value is required: send one, such as {}",
        ),
        (
            "[1",
            "the JSON text ends too early at byte 2 (line 1, column 3): send the rest of it",
        ),
        (
            "[\n é]",
            "a JSON value is expected at byte 3 (line 2, column 2), found \"é\": put a value there or drop what is there",
        ),
        (
            "\n\n[\"é\" é]",
            "\",\" or \"]\" is expected after an array's element at byte 8 (line 3, column 6), found \"é\": put one there",
        ),
        (
            "[None]",
            "a JSON value is expected at byte 1 (line 1, column 2), found \"None\": write null",
        ),
        (
            "['a']",
            "a JSON value is expected at byte 1 (line 1, column 2), found \"'\": strings stand in plain double quotes",
        ),
        (
            "\u{feff}1",
            "a JSON value is expected at byte 0 (line 1, column 1), found \"\\u{feff}\": drop the byte order mark",
        ),
        (
            "{a:1}",
            "an object key in double quotes is expected at byte 1 (line 1, column 2), found \"a\": write it as \"key\": value",
        ),
        (
            "\"\u{1b}\"",
            "a string holds the control character \"\\u{1b}\" as it is at byte 1 (line 1, column 2): write it as an escape such as \\n",
        ),
        (
            "\"\\x\"",
            "a string holds an escape that JSON does not have at byte 1 (line 1, column 2), \"\\x\": for a backslash itself write \\\\",
        ),
        (
            "007",
            "the number \"007\" at byte 0 (line 1, column 1) begins with a needless zero: drop it",
        ),
        (
            "[1,]",
            "a comma has nothing behind it but \"]\" at byte 3 (line 1, column 4): drop the comma",
        ),
        (
            "\"\\ud800\"",
            "the escape \"\\ud800\" at byte 1 (line 1, column 2) is half of a surrogate pair: write both halves, high then low, or the character itself",
        ),
        (
            "{\"a\\n\":1,\"a\\n\":2}",
            "the key \"a\\n\" is given twice in one object, again at byte 9 (line 1, column 10): keep one of the two",
        ),
    ];
    for (text, detail) in table {
        let fault = fault(text);
        assert_eq!(fault.detail, detail);
        assert_eq!(fault.to_string(), detail);
    }
    assert_eq!(
        check(b"[[[]]]", 2).unwrap_err().detail,
        "the value at byte 2 (line 1, column 3) is nested deeper than 2 levels: flatten the document"
    );
    for text in [
        "k".repeat(1_000),
        format!("{{\"{0}\":1,\"{0}\":1}}", "k".repeat(1_000)),
        format!("0{}", "7".repeat(99)),
    ] {
        let detail = fault(&text).detail;
        assert!(
            detail.contains('…') && !detail.contains(&"k".repeat(41)) && !detail.contains(&"7".repeat(41)),
            "{detail}"
        );
    }
}

/// A reading of JSON by serde_json that fails on duplicate keys: a second opinion.
struct Unrepeated;

impl<'de> Deserialize<'de> for Unrepeated {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Unrepeated;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }
            fn visit_unit<E>(self) -> Result<Unrepeated, E> {
                Ok(Unrepeated)
            }
            fn visit_bool<E>(self, _: bool) -> Result<Unrepeated, E> {
                Ok(Unrepeated)
            }
            fn visit_u64<E>(self, _: u64) -> Result<Unrepeated, E> {
                Ok(Unrepeated)
            }
            fn visit_i64<E>(self, _: i64) -> Result<Unrepeated, E> {
                Ok(Unrepeated)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Unrepeated, E> {
                Ok(Unrepeated)
            }
            fn visit_str<E>(self, _: &str) -> Result<Unrepeated, E> {
                Ok(Unrepeated)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Unrepeated, A::Error> {
                while seq.next_element::<Unrepeated>()?.is_some() {}
                Ok(Unrepeated)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unrepeated, A::Error> {
                let mut keys = HashSet::new();
                while let Some((key, _)) = map.next_entry::<String, Unrepeated>()? {
                    if !keys.insert(key) {
                        return Err(de::Error::custom("twice"));
                    }
                }
                Ok(Unrepeated)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// Pieces of which random texts are put together: enough of them are JSON, and enough nearly so.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"a\":",
        "\"\\u0061\":",
        "\"b\":",
        "\"a\"",
        "\"",
        "\\",
        "\\n",
        "\\u00e9",
        "\\ud83d",
        "\\ude00",
        "1",
        "0",
        "-",
        ".5",
        "e9",
        "E-2",
        "null",
        "true",
        "false",
        " ",
        "\n",
        "é",
        "\u{1}",
        "x",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

/// JSON with few different keys, so that many objects have one twice.
fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        "-?(0|[1-9][0-9]{0,3})(\\.[0-9]{1,3})?([eE][+-]?[0-9])?",
        "\"([ -!#-\\[\\]-~é😀]|\\\\[\"\\\\/bfnrt]|\\\\u00[0-9a-fA-F]{2}|\\\\ud83d\\\\ude0[0-9])*\"",
    ];
    let white = prop::sample::select(vec!["", "", " ", "\n\t"]);
    leaf.prop_recursive(4, 24, 5, move |inner| {
        let key = prop::sample::select(vec![
            "a", "b", "c", "d", "e", "\\u0061", "\\n", "\\u000a", "é", "\\u00E9",
        ]);
        let member = (key, white.clone(), inner.clone())
            .prop_map(|(key, white, value)| format!("\"{key}\"{white}:{white}{value}"));
        prop_oneof![
            prop::collection::vec(inner, 0..5).prop_map(|items| format!("[{}]", items.join(","))),
            (prop::collection::vec(member, 0..5), white.clone())
                .prop_map(|(members, white)| format!("{{{}{white}}}", members.join(", "))),
        ]
    })
}

/// What must hold whatever the bytes are.
fn agree(bytes: &[u8]) -> Result<(), TestCaseError> {
    let theirs = serde_json::from_slice::<Box<RawValue>>(bytes);
    match check(bytes, MAX_DEPTH) {
        Ok(text) => {
            prop_assert_eq!(text.as_bytes(), bytes);
            prop_assert!(theirs.is_ok(), "passed, but serde_json says {:?}", theirs);
        }
        Err(fault) => {
            if let FaultKind::Syntax | FaultKind::Encoding = fault.kind {
                prop_assert!(theirs.is_err(), "{fault}");
            }
            prop_assert!(fault.offset <= bytes.len());
            prop_assert!(fault.pointer.len() <= 256);
            prop_assert!(!fault.detail.contains(char::is_control));
            prop_assert!(fault.detail.chars().count() < 500);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn agrees_with_serde_json_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        agree(&bytes)?;
    }

    #[test]
    fn agrees_with_serde_json_on_pieces(text in pieces(), cut in any::<prop::sample::Index>(), byte in any::<u8>()) {
        agree(text.as_bytes())?;
        let mut bytes = text.into_bytes();
        if !bytes.is_empty() {
            let at = cut.index(bytes.len());
            bytes[at] = byte;
            agree(&bytes)?;
        }
    }

    #[test]
    fn a_cut_or_changed_document_is_judged_alike(text in json(), cut in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = text.into_bytes();
        let at = cut.index(bytes.len());
        agree(&bytes[..at])?;
        bytes[at] = byte;
        agree(&bytes)?;
    }

    #[test]
    fn duplicate_keys_and_nothing_else_are_refused(text in json()) {
        let repeated = serde_json::from_str::<Unrepeated>(&text).is_err();
        match check(text.as_bytes(), MAX_DEPTH) {
            Ok(_) => prop_assert!(!repeated, "{}", text),
            Err(fault) => {
                prop_assert_eq!(fault.kind, FaultKind::DuplicateKey, "{}", fault);
                prop_assert!(repeated, "{}", text);
                // The offset is that of a key, and the pointer leads to that member.
                let mut rest = serde_json::Deserializer::from_str(&text[fault.offset..]).into_iter::<String>();
                let mut member = String::new();
                pointer::push(&mut member, &rest.next().unwrap().unwrap());
                prop_assert!(fault.pointer.ends_with(&member), "{} at {} of {}", fault.pointer, fault.offset, text);
            }
        }
    }

    #[test]
    fn strings_are_unescaped_as_serde_json_does(text in "\"([ -!#-\\[\\]-~é😀]|\\\\[\"\\\\/bfnrt]|\\\\u[0-9a-cA-C][0-9a-fA-F]{3}|\\\\u[dD]8[0-9a-f]{2}\\\\ud[c-f]3[0-9a-f])*\"") {
        struct Keep(String);
        impl<'t> scan::Sink<'t> for Keep {
            fn string(&mut self, text: scan::Text<'t>) {
                self.0 = text.decode().into_owned();
            }
            fn key(&mut self, _: scan::Text<'t>) -> bool {
                true
            }
        }
        let mut kept = Keep(String::new());
        prop_assert!(scan::Scanner::new(&text, 1).run(&mut kept).is_ok());
        prop_assert_eq!(kept.0, serde_json::from_str::<String>(&text).unwrap());
    }
}
