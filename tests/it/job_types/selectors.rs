//! How long a selector takes, however it is written and whatever it is given.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use solejob::job_types::selector::{Input, Selector};

/// Far more than the worst of these takes without optimisation on a busy machine, and far less than anything would that
/// grows faster than the payload or doubles with each node.
const BOUND: Duration = Duration::from_secs(10);

/// About what an expression reads at most: beyond that it fails, and time does not grow.
const PAYLOAD_BYTES: usize = 60 << 10;

/// An expression of as many nodes as there may be, each of which has to do with the whole of what it reads.
fn heavy(over: &str, shape: u8) -> Selector {
    let many = |part: String, with: &str, end: &str| {
        let of = |n: usize| Selector::compile(&format!("{}{end}", vec![&*part; n].join(with))).ok();
        let compiled = (1..).map_while(of).last();
        compiled.expect("a small one is allowed")
    };
    match shape {
        // Whole values are compared, once for each node.
        0 => many(format!("{over} == {over}"), " && ", " ? 'same' : 'other'"),
        1 => many(format!("{over} in [{over}, {over}]"), " && ", " ? 'y' : 'n'"),
        // A string that grows with each node.
        2 => many(format!("string({over})"), " + ", ""),
        3 => many(format!("string(size({over}))"), " + ", ""),
        4 => many(format!("{over}.contains({over} + 'x')"), " || ", " ? 'y' : 'n'"),
        _ => many(format!("({over} < {over} ? {over} : string({over}))"), " + ", ""),
    }
}

/// A payload that is large in one way: long, wide, deep, or full of numbers that are costly to be exact about.
fn large(part: &str, shape: u8) -> String {
    let count = PAYLOAD_BYTES / (part.len() + 14);
    let items = || vec![part; count].join(",");
    let members = || {
        (0..count)
            .map(|n| format!("\"k{n}\":{part}"))
            .collect::<Vec<_>>()
            .join(",")
    };
    match shape {
        0 => format!("[{}]", items()),
        1 => format!("{{\"a\":[{}]}}", items()),
        2 => format!("{{\"a\":{{{}}}}}", members()),
        _ => format!("{{\"a\":\"{}\"}}", "ab".repeat(PAYLOAD_BYTES / 2 - 10)),
    }
}

fn part() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(format!("\"{}\"", "a".repeat(50))),
        Just("0.30000000000000004".to_owned()),
        Just("18446744073709551615".to_owned()),
        Just("{\"a\":{\"a\":[1,2,3]},\"b\":null}".to_owned()),
        (1_usize..100).prop_map(|depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth))),
        (1_usize..4_000).prop_map(|digits| format!("0.{}1e{digits}", "0".repeat(digits))),
    ]
}

#[test]
fn the_heaviest_expressions_over_large_payloads_end_in_time() {
    let over = prop_oneof![
        Just("payload"),
        Just("payload.a"),
        Just("payload.a[0]"),
        Just("payload[name]")
    ];
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        ..Config::with_cases(32)
    });
    let cases = (over, 0_u8..6, part(), 0_u8..4);
    let run = runner.run(&cases, |(over, expression, part, payload)| {
        let (selector, payload) = (heavy(over, expression), large(&part, payload));
        let input = Input {
            payload: &payload,
            metadata: &[],
            name: "a",
            queue: "default",
        };
        let began = Instant::now();
        let key = selector.evaluate(&input);
        let took = began.elapsed();
        let key: String = format!("{key:?}").chars().take(80).collect();
        prop_assert!(took < BOUND, "{} took {took:?} for {key}", selector.text());
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
}
