use proptest::prelude::*;

use super::values::READ_BYTES_MAX;
use super::*;
use crate::uniqueness::canonical;

fn over<'a>(payload: &'a str) -> Input<'a> {
    Input {
        payload,
        metadata: &[],
        name: "place-order",
        queue: "default",
    }
}

fn evaluate(expression: &str, payload: &str) -> Result<String, NoKey> {
    let selector = Selector::compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
    selector.evaluate(&over(payload))
}

#[track_caller]
fn gives(expression: &str, payload: &str, key: &str) {
    assert_eq!(
        evaluate(expression, payload).as_deref(),
        Ok(key),
        "{expression} over {payload}"
    );
}

#[track_caller]
fn fails(expression: &str, payload: &str, why: &str) {
    match evaluate(expression, payload) {
        Err(NoKey::Failed(cause)) => {
            assert!(cause.contains(why), "{expression} over {payload}: {cause}");
            assert!(cause.chars().count() <= 260, "{expression}: {cause}");
        }
        other => panic!("{expression} over {payload}: {other:?}"),
    }
}

#[track_caller]
fn refused(expression: &str, why: &str) {
    match Selector::compile(expression) {
        Err(InvalidSelector(detail)) => assert!(detail.contains(why), "{expression:.80}: {detail}"),
        Ok(_) => panic!("{expression:.80} was not refused"),
    }
}

#[test]
fn strings_are_built() {
    gives("payload.k", r#"{"k": "a"}"#, "a");
    gives(
        "'tenant:' + string(payload.tenant_id)",
        r#"{"tenant_id": 7}"#,
        "tenant:7",
    );
    gives("payload['in']", r#"{"in": "a"}"#, "a");
    gives("payload.a.b[1].c", r#"{"a": {"b": [0, {"c": "x"}, 2]}}"#, "x");
    gives("payload[1]", r#"["a", "b"]"#, "b");
    gives("payload", r#""a\u00e9\n""#, "aé\n");
    gives("name + '/' + queue", "null", "place-order/default");
    gives("has(payload.a) ? payload.a : 'none'", "{}", "none");
    gives("has(payload.a) ? payload.a : 'none'", r#"{"a": "x"}"#, "x");
    gives(
        "has(payload.a) && has(payload.a.b) ? payload.a.b : 'none'",
        r#"{"a": {}}"#,
        "none",
    );
    gives("string(payload.a) + string(true)", r#"{"a": false}"#, "falsetrue");
    gives(
        "payload.a.startsWith('x') && !payload.a.endsWith('x') ? 'y' : 'n'",
        r#"{"a": "xy"}"#,
        "y",
    );
    gives(
        "payload.a.contains('b') || payload.a == 'c' ? 'y' : 'n'",
        r#"{"a": "abc"}"#,
        "y",
    );
    gives("payload.a in ['x', 'y'] ? 'y' : 'n'", r#"{"a": "y"}"#, "y");
    gives("payload[payload.which]", r#"{"which": "a", "a": "x"}"#, "x");
    gives("payload[name]", r#"{"place-order": "x"}"#, "x");
    gives("payload.list[payload.i + 1]", r#"{"list": ["a", "b"], "i": 0}"#, "b");
}

/// The cost of an expression must not grow with the payload.
#[test]
fn an_expression_reads_64_kib_at_most() {
    let long = "x".repeat(READ_BYTES_MAX);
    let many = vec!["null"; READ_BYTES_MAX / 16].join(",");
    let deep = format!("{}{}", "[".repeat(90), "]".repeat(90));
    let nested = vec![&*deep; 100].join(",");
    for large in [
        format!("\"{long}\""),
        format!("[{many}]"),
        format!("{{\"{long}\":1}}"),
        format!("[{nested}]"),
    ] {
        let payload = format!("{{\"small\": \"k\", \"large\": {large}}}");
        assert_eq!(
            evaluate("payload.small", &payload),
            Ok("k".to_owned()),
            "what is not read does not count"
        );
        for whole in [
            "payload.large == 1 ? 'y' : 'n'",
            "payload == 1 ? 'y' : 'n'",
            "string(size(payload.large))",
        ] {
            let failed = evaluate(whole, &payload);
            let Err(NoKey::Failed(why)) = &failed else {
                panic!("{whole}: {failed:?}")
            };
            assert!(why.contains("64 KiB"), "{why}");
        }
    }
    let fits = format!("{{\"a\": \"{}\"}}", "x".repeat(READ_BYTES_MAX - 100));
    assert_eq!(
        evaluate("string(size(payload.a))", &fits),
        Ok((READ_BYTES_MAX - 100).to_string())
    );
}

/// What is named as a whole is read as a whole.
#[test]
fn whole_values_can_be_read() {
    gives("string(size(payload.items))", r#"{"items": [1, [2], {"a": 3}]}"#, "3");
    gives("string(payload.items.size())", r#"{"items": []}"#, "0");
    gives("string(size(payload))", r#"{"a": 1, "b": {}}"#, "2");
    gives("payload == 1 ? 'one' : 'other'", "1.0", "one");
    gives("payload == null ? 'none' : 'some'", "null", "none");
    gives(
        "payload.a == payload.b ? 'same' : 'other'",
        r#"{"a": [1, {"x": 2.0}], "b": [1e0, {"x": 2}]}"#,
        "same",
    );
    gives("'a' in payload ? 'y' : 'n'", r#"{"a": 1}"#, "y");
    gives("payload.tags == ['a'] ? 'y' : 'n'", r#"{"tags": ["a"]}"#, "y");
}

#[test]
fn metadata_is_a_map_of_strings() {
    let metadata = [("customer".to_owned(), "7".to_owned())];
    let input = Input {
        metadata: &metadata,
        ..over("null")
    };
    let selector = Selector::compile("metadata.customer + string(size(metadata))").unwrap();
    assert_eq!(selector.evaluate(&input).as_deref(), Ok("71"));
    assert_eq!(selector.pointer(), "/metadata");
    let missing = selector.evaluate(&over("null"));
    assert!(matches!(missing, Err(NoKey::Failed(why)) if why.contains("customer")));
}

#[test]
fn null_and_errors_are_told_apart() {
    assert_eq!(evaluate("payload.k", r#"{"k": null}"#), Err(NoKey::Null));
    assert_eq!(evaluate("has(payload.k) ? payload.k : null", "{}"), Err(NoKey::Null));
    fails("payload.k", "{}", "no member \"k\"");
    fails("payload.k", "null", "");
    fails("payload.k", r#"{"k": 7}"#, "int");
    fails("payload.k", r#"{"k": [7]}"#, "list");
    fails("payload.a.b", r#"{"a": "x"}"#, "");
    fails("payload[2]", "[1]", "");
    fails("payload[-1]", "[1]", "");
    fails("'a' + payload.k", r#"{"k": 7}"#, "+ does not take (string, int)");
    fails(
        "string(payload.k)",
        r#"{"k": null}"#,
        "string does not take (null_type)",
    );
    fails("string(payload.a + 1)", r#"{"a": 9223372036854775807}"#, "64 bits");
    let long = format!(r#"{{"k": "{}"}}"#, "x".repeat(10_000));
    fails("payload.k < 1 ? 'a' : 'b'", &long, "");
    fails("payload[payload.k]", &long, "");
    fails("[payload.k][payload.k]", &long, "");
}

#[test]
fn numbers_are_exact_or_fail() {
    let key = "string(payload.n)";
    for (number, text) in [
        ("7", "7"),
        ("-7", "-7"),
        ("0", "0"),
        ("-0", "0"),
        ("-0.0", "0"),
        ("0e99999", "0"),
        ("1.0", "1"),
        ("1e0", "1"),
        ("10e-1", "1"),
        ("12e2", "1200"),
        ("9007199254740993", "9007199254740993"),
        ("9007199254740993.0", "9007199254740993"),
        ("9223372036854775807", "9223372036854775807"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("18446744073709551615", "18446744073709551615"),
        ("1844674407370955161.5e1", "18446744073709551615"),
        ("0.1", "0.1"),
        ("-1.50", "-1.5"),
        ("1e-7", "0.0000001"),
        ("0.30000000000000004", "0.30000000000000004"),
    ] {
        gives(key, &format!(r#"{{"n": {number}}}"#), text);
    }
    for number in [
        "18446744073709551616",
        "-9223372036854775809",
        "123456789012345678901234567890",
        "1e20",
        "1e400",
        "1e99999999999999999999",
        "0.1000000000000000055511151231257827",
        "0.30000000000000001",
        "1e-400",
        "9007199254740993.5",
        "1e-99999999999999999999",
    ] {
        fails(key, &format!(r#"{{"n": {number}}}"#), "/payload/n");
    }
    // What is not read does not fail.
    gives("payload.a", r#"{"n": 1e400, "a": "x", "m": [1e400]}"#, "x");
    gives("has(payload.n) ? 'y' : 'n'", r#"{"n": 1e400}"#, "y");
    gives("payload.l[1]", r#"{"l": [1e400, "x", 1e400]}"#, "x");
    fails("string(size(payload.l))", r#"{"l": [1, 1e400]}"#, "/payload/l/1");
    // No sum of fractions: it would round.
    fails(
        "string(payload.n + 1.5)",
        r#"{"n": 0.1}"#,
        "+ does not take (double, double)",
    );
    gives(
        "payload.n > 9007199254740992 ? 'y' : 'n'",
        r#"{"n": 9007199254740993}"#,
        "y",
    );
    gives("payload.n < 0.5 ? 'y' : 'n'", r#"{"n": 18446744073709551615}"#, "n");
}

#[test]
fn what_loops_or_is_unknown_is_refused() {
    refused("payload..k +", "line 1, column");
    refused("", "empty");
    refused("  ", "empty");
    refused("payload.l.map(x, x)[0]", "loop");
    refused("payload.l.exists(x, x == 1) ? 'a' : 'b'", "loop");
    refused("payload.l.filter(x, true)", "loop");
    refused("env.SECRET", "\"env\" is unknown");
    refused(".payload", "unknown");
    refused("nosuch(payload.k)", "\"nosuch\" is not allowed");
    refused("payload.k.matches('a')", "matches");
    refused("payload.?k", "");
    refused("optional.of(payload.k)", "");
    refused("type(payload.k) == int", "type");
    refused("payload.n * 2", "");
    refused("-payload.n", "not allowed");
    refused("{'a': payload.k}.a", "maps");
    refused("b'abc'", "bytes");
    refused("payload.n == 9007199254740994.0 ? 'a' : 'b'", "exact");
    refused("payload.a == 'x' &&\n  env.b ? 'a' : 'b'", "line 2, column 3");
    refused(&["'a'"; 33].join(" + "), "64 nodes");
    assert!(Selector::compile(&["'a'"; 32].join(" + ")).is_ok());
    refused(&"x".repeat(2_049), "2048 bytes");
    for deep in ["(", "[", "!", "-", "payload[", "a?b:", "f("] {
        refused(&deep.repeat(2_000 / deep.len()), "");
    }
    refused(
        &format!("{}payload.k{}", "(".repeat(1_000), ")".repeat(1_000)),
        "nests too deep",
    );
    refused(&"payload.a.".repeat(200), "");
}

/// On the stack of a test, which is that of a server's tasks.
#[test]
fn the_deepest_expression_can_be_evaluated() {
    let mut deep = "payload.k".to_owned();
    for _ in 0..30 {
        deep = format!("string({deep})");
    }
    gives(&deep, r#"{"k": "a"}"#, "a");
    gives(&format!("{}'a'", "false ? 'b' : ".repeat(20)), "null", "a");
    let nested = format!("{}\"x\"{}", "[".repeat(126), "]".repeat(126));
    gives(
        "payload == payload && string(size(payload)) == '1' ? 'y' : 'n'",
        &nested,
        "y",
    );
}

#[test]
fn only_what_is_named_is_read() {
    let reads = |expression: &str| Selector::compile(expression).unwrap().uses.payload;
    let named = reads("has(payload.a.b) ? payload.c[3]['d'] : payload.c[0]");
    assert!(!named.whole && !named.members["a"].whole && !named.members["a"].members["b"].whole);
    let c = &named.members["c"];
    assert!(!c.whole && c.elements[&0].whole && c.elements[&3].members["d"].whole);
    assert!(reads("payload[name]").whole);
    assert!(reads("payload.a[payload.i]").members["a"].whole);
    assert_eq!(reads("name"), Default::default());
}

fn number_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "-?(0|[1-9][0-9]{0,3})(\\.[0-9]{1,3})?([eE][-+]?[0-2]?[0-9])?",
        "-?(0|[1-9][0-9]{15,20})(\\.0)?",
        any::<i64>().prop_map(|n| n.to_string()),
        any::<u64>().prop_map(|n| n.to_string()),
        any::<f64>()
            .prop_filter("no number", |n| n.is_finite())
            .prop_map(|n| format!("{n:e}")),
    ]
}

/// Payloads with what is at the ends of its kind: numbers of any size, odd strings and names, deep nesting.
fn extreme_json() -> impl Strategy<Value = String> {
    let odd = "[a-c\u{0}\u{7f}\u{e9}\u{fffd}\u{1f600}\"\\\\/]{0,8}";
    let text = |text: String| serde_json::Value::from(text).to_string();
    let leaf = prop_oneof![
        2 => number_text(),
        1 => Just("1e99999999999999999999".to_owned()),
        1 => Just("-0.0".to_owned()),
        2 => odd.prop_map(text),
        1 => Just("null".to_owned()),
        1 => Just("false".to_owned()),
        1 => (1_usize..100).prop_map(|depth| format!("{}1{}", "[".repeat(depth), "]".repeat(depth))),
    ];
    leaf.prop_recursive(4, 32, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(|items| format!("[{}]", items.join(","))),
            prop::collection::btree_map(prop_oneof!["[abc]", odd], inner, 0..6).prop_map(move |members| {
                let member = |(key, value): (String, String)| format!("{}:{value}", text(key));
                format!("{{{}}}", members.into_iter().map(member).collect::<Vec<_>>().join(","))
            }),
        ]
    })
}

fn json_text() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        "[a-c\u{e9}]{0,3}".prop_map(|s| format!("\"{s}\"")),
        "[ab]{0,2}".prop_map(|s| format!("\"\\u00e9\\n{s}\"")),
        "-?[1-9]?[0-9](\\.[05])?",
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[ {} ]", items.join(" ,"))),
            prop::collection::btree_map("[abc]", inner, 0..4).prop_map(|members| {
                let members: Vec<String> = members
                    .iter()
                    .map(|(key, value)| format!("\"{key}\" : {value}"))
                    .collect();
                format!("{{{}}}", members.join(", "))
            }),
        ]
    })
}

fn expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        4 => "payload(\\.[abc]|\\[[012]\\]|\\['a'\\]){0,3}",
        1 => Just("name".to_owned()),
        1 => Just("metadata.a".to_owned()),
        1 => Just("'a'".to_owned()),
        1 => Just("1".to_owned()),
        1 => Just("2u".to_owned()),
        1 => Just("0.5".to_owned()),
        1 => Just("null".to_owned()),
    ];
    leaf.prop_recursive(4, 20, 3, |inner| {
        let two = (inner.clone(), inner.clone());
        prop_oneof![
            (two.clone(), "\\+|==|!=|<|<=|>|>=|&&|\\|\\||in").prop_map(|((a, b), op)| format!("({a} {op} {b})")),
            (two.clone(), inner.clone()).prop_map(|((a, b), c)| format!("({a} ? {b} : {c})")),
            (two.clone(), "startsWith|endsWith|contains").prop_map(|((a, b), f)| format!("({a}).{f}({b})")),
            (inner.clone(), "string|size|!").prop_map(|(a, f)| format!("{f}({a})")),
            two.prop_map(|(a, b)| format!("({a})[{b}]")),
            inner.clone().prop_map(|a| format!("has(({a}).b)")),
            prop::collection::vec(inner, 0..3).prop_map(|items| format!("[{}]", items.join(", "))),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_text_makes_the_compiler_panic(text in prop_oneof![
        "\\PC{0,60}",
        "[payload.name()\\[\\]{}'\"?:+!&|=<>0-9eu, -]{0,80}",
    ]) {
        let _refused = Selector::compile(&text).map(|selector| selector.evaluate(&over(r#"{"a": 1}"#)));
    }

    /// And what an expression gives does not depend on how much of the payload was left out.
    #[test]
    fn reading_less_changes_nothing(expression in expression(), payload in json_text()) {
        if let Ok(mut selector) = Selector::compile(&expression) {
            // The words of an error may differ: of what is not read itself, an `int` stands for every number.
            let evaluate = |selector: &Selector| selector.evaluate(&over(&payload)).map_err(|no| no == NoKey::Null);
            let less = evaluate(&selector);
            selector.uses.payload.whole = true;
            prop_assert_eq!(less, evaluate(&selector));
        }
    }

    #[test]
    fn two_numbers_never_give_one_key(a in number_text(), b in number_text()) {
        let selector = Selector::compile("string(payload.n)").unwrap();
        let key = |number: &str| selector.evaluate(&over(&format!("{{\"n\": {number}}}")));
        let exact = |number: &str| {
            let mut out = Vec::new();
            canonical::write(number, &mut out).unwrap();
            out
        };
        if let (Ok(first), Ok(second)) = (key(&a), key(&b)) {
            prop_assert_eq!(first == second, exact(&a) == exact(&b), "{} {}", a, b);
            // The key is the number itself.
            prop_assert_eq!(exact(&first), exact(&a));
        }
        let respelled = format!("{a}{}", if a.contains(['e', 'E']) { "" } else { "e0" });
        prop_assert_eq!(key(&a).is_ok(), key(&respelled).is_ok());
    }

    /// A panic would be caught and told as a failure: none is there to catch.
    #[test]
    fn no_payload_makes_an_evaluation_panic(expression in expression(), payload in extreme_json(), value in "\\PC{0,9}") {
        prop_assert!(crate::json::check(payload.as_bytes(), crate::json::MAX_DEPTH).is_ok(), "{}", payload);
        if let Ok(selector) = Selector::compile(&expression) {
            let metadata = [("a".to_owned(), value)];
            let input = Input { metadata: &metadata, ..over(&payload) };
            let evaluated = selector.evaluate(&input);
            prop_assert_ne!(&evaluated, &Err(NoKey::Failed(PANICKED.into())));
            // The same dispatch has the same key, whenever it is asked for.
            prop_assert_eq!(selector.evaluate(&input), evaluated);
        }
    }

    #[test]
    fn a_sum_is_exact_or_fails(a in any::<i64>(), b in prop_oneof![any::<i64>(), -9_i64..9]) {
        let sum = evaluate("string(payload.a + payload.b)", &format!("{{\"a\": {a}, \"b\": {b}.0}}"));
        match a.checked_add(b) {
            Some(exact) => prop_assert_eq!(sum, Ok(exact.to_string())),
            None => prop_assert!(matches!(sum, Err(NoKey::Failed(_))), "{:?}", sum),
        }
    }

    /// Wherever a number stands, and in whatever is compared: what is equal by value is equal, and nothing else.
    #[test]
    fn numbers_are_compared_as_what_they_are(a in number_text(), b in number_text()) {
        let payload = format!("{{\"a\": [{{\"n\": {a}}}], \"b\": [{{\"n\": {b}}}]}}");
        let exact = |number: &str| {
            let mut out = Vec::new();
            canonical::write(number, &mut out).unwrap();
            out
        };
        for expression in ["payload.a == payload.b", "payload.a[0].n == payload.b[0].n", "payload.b[0].n in [payload.a[0].n]"] {
            let answer = evaluate(&format!("{expression} ? 'same' : 'other'"), &payload);
            if let Ok(answer) = answer {
                prop_assert_eq!(answer == "same", exact(&a) == exact(&b), "{} over {}", expression, payload);
            }
        }
    }
}
