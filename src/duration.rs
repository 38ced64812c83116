//! Durations as clients write them: one parser and one printer for the whole server.
//!
//! Two spellings: numbers with units (`1500ms`, `90s`, `1h30m`, `7d`, `1w`) and ISO 8601 (`PT24H`, `P1DT2H`). All
//! arithmetic is on integers: a duration is whole milliseconds or an error, never rounded and never wrapped.

use std::fmt;
use std::str::FromStr;

/// Longer texts are refused unread: the longest that is of any use has 27 bytes.
const MAX_BYTES: usize = 64;

/// Milliseconds of the units, longest first.
const UNITS: [(&str, u64); 6] = [
    ("w", 604_800_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];
const ISO_DATE_UNITS: [(&str, u64); 2] = [("W", 604_800_000), ("D", 86_400_000)];
const ISO_TIME_UNITS: [(&str, u64); 3] = [("H", 3_600_000), ("M", 60_000), ("S", 1_000)];

/// No unit is divisible by 2^k or 5^k for a k beyond this, so no fraction with more digits is whole milliseconds.
const FRACTION_DIGITS: usize = 10;

/// A duration in whole milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

/// Days down to milliseconds, without the units that are zero; `0s` for nothing. [`parse`] reads it back.
impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.0;
        // Weeks are read but not written: days are as clear, and one spelling less to compare.
        for (unit, millis) in &UNITS[1..] {
            if rest >= *millis {
                write!(f, "{}{unit}", rest / millis)?;
                rest %= millis;
            }
        }
        Ok(())
    }
}

impl FromStr for Millis {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        parse(text)
    }
}

/// What is wrong with a duration; displays as one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("the duration is empty: write one such as {EXAMPLES}")]
    Empty,
    #[error("the duration is longer than {MAX_BYTES} bytes: write one such as {EXAMPLES}")]
    TooLong,
    #[error("a duration has no sign: write one such as {EXAMPLES}")]
    Sign,
    #[error("a duration has no white space in it: write one such as {EXAMPLES}")]
    WhiteSpace,
    #[error("a number is missing before \"{0}\": write a duration such as {EXAMPLES}")]
    MissingNumber(String),
    #[error("the number {0} has no unit: write a duration such as {EXAMPLES}, with units of ms, s, m, h, d or w")]
    MissingUnit(String),
    #[error("\"{0}\" is not a unit of time: use ms, s, m, h, d or w, as in {EXAMPLES}")]
    UnknownUnit(String),
    #[error("\"{0}\" is not an ISO 8601 duration in upper case: write one such as \"PT24H\", \"P1DT2H\" or \"PT1.5S\"")]
    NotIso(String),
    #[error(
        "months and years are refused because their length varies: count in days or weeks, as in \"30d\", \"4w\" or \"P30D\""
    )]
    Calendar,
    #[error("the unit \"{0}\" is repeated or out of order: each unit stands once, the longest first, as in \"1h30m\"")]
    Order(String),
    #[error("in ISO 8601 only the last number may have a fraction: write \"PT1H30M\" or \"PT1.5H\"")]
    FractionNotLast,
    #[error("the duration is not whole milliseconds: the shortest is \"1ms\"")]
    Fraction,
    #[error("the duration is too long to count in milliseconds")]
    Overflow,
}

const EXAMPLES: &str = "\"1500ms\", \"90s\", \"1h30m\" or \"PT24H\"";

/// Reads a duration.
pub fn parse(text: &str) -> Result<Millis, ParseError> {
    if text.is_empty() {
        return Err(ParseError::Empty);
    }
    if text.len() > MAX_BYTES {
        return Err(ParseError::TooLong);
    }
    match text.strip_prefix('P') {
        Some(rest) => iso(rest, text),
        None => simple(text),
    }
    .map_err(|error| explain(text, error))
}

/// `1h30m`: numbers with units.
fn simple(text: &str) -> Result<Millis, ParseError> {
    let mut sum = Sum::default();
    let mut units = UNITS.as_slice();
    let mut rest = text;
    while !rest.is_empty() {
        let number = Number::take(&mut rest, false)?;
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (name, behind) = rest.split_at(end);
        if name.is_empty() {
            return Err(ParseError::MissingUnit(number.text.to_owned()));
        }
        if !UNITS.iter().any(|(unit, _)| *unit == name) {
            return Err(ParseError::UnknownUnit(name.to_owned()));
        }
        sum.add(number, name, &mut units)?;
        rest = behind;
    }
    Ok(sum.0)
}

/// `P1DT2H`, without its `P`.
fn iso(text: &str, whole: &str) -> Result<Millis, ParseError> {
    let not_iso = || ParseError::NotIso(whole.to_owned());
    let (date, time) = match text.split_once('T') {
        Some((_, "")) => return Err(not_iso()),
        Some((date, time)) => (date, time),
        None => (text, ""),
    };
    if date.is_empty() && time.is_empty() {
        return Err(not_iso());
    }
    let mut sum = Sum::default();
    let mut fraction_seen = false;
    for (mut rest, all) in [(date, ISO_DATE_UNITS.as_slice()), (time, ISO_TIME_UNITS.as_slice())] {
        let mut units = all;
        while !rest.is_empty() {
            let number = Number::take(&mut rest, true)?;
            if fraction_seen {
                return Err(ParseError::FractionNotLast);
            }
            fraction_seen = !number.fraction.is_empty();
            let mut chars = rest.chars();
            let name = match chars.next() {
                None => return Err(ParseError::MissingUnit(number.text.to_owned())),
                // In the date part these are years and months.
                Some('Y') => return Err(ParseError::Calendar),
                Some('M') if all.len() == ISO_DATE_UNITS.len() => return Err(ParseError::Calendar),
                Some(c) => &rest[..c.len_utf8()],
            };
            if !all.iter().any(|(unit, _)| *unit == name) {
                return Err(not_iso());
            }
            sum.add(number, name, &mut units)?;
            rest = chars.as_str();
        }
    }
    Ok(sum.0)
}

/// A decimal number as it is written.
struct Number<'t> {
    text: &'t str,
    whole: &'t str,
    fraction: &'t str,
}

impl<'t> Number<'t> {
    /// Takes a number from the front of `rest`. ISO 8601 also writes the point as a comma.
    fn take(rest: &mut &'t str, comma: bool) -> Result<Self, ParseError> {
        let missing = |at: &str| match at.chars().next() {
            Some('+' | '-') => ParseError::Sign,
            _ => ParseError::MissingNumber(at.to_owned()),
        };
        let (whole, behind) = digits(rest);
        if whole.is_empty() {
            return Err(missing(rest));
        }
        let point = behind
            .strip_prefix('.')
            .or_else(|| if comma { behind.strip_prefix(',') } else { None });
        let (fraction, behind) = match point {
            None => ("", behind),
            Some(after) => match digits(after) {
                ("", _) => return Err(missing(behind)),
                found => found,
            },
        };
        let text = &rest[..rest.len() - behind.len()];
        *rest = behind;
        Ok(Self { text, whole, fraction })
    }

    /// Exactly so many milliseconds, or an error.
    fn times(&self, unit: u64) -> Result<u64, ParseError> {
        let whole: u64 = self.whole.parse().map_err(|_| ParseError::Overflow)?;
        let whole = whole.checked_mul(unit).ok_or(ParseError::Overflow)?;
        let fraction = self.fraction.trim_end_matches('0');
        if fraction.is_empty() {
            return Ok(whole);
        }
        if fraction.len() > FRACTION_DIGITS {
            return Err(ParseError::Fraction);
        }
        let parts: u64 = fraction.parse().map_err(|_| ParseError::Fraction)?;
        let scale = fraction.bytes().fold(1_u128, |scale, _| scale * 10);
        let product = u128::from(parts) * u128::from(unit);
        if product % scale != 0 {
            return Err(ParseError::Fraction);
        }
        let part = u64::try_from(product / scale).map_err(|_| ParseError::Overflow)?;
        whole.checked_add(part).ok_or(ParseError::Overflow)
    }
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

#[derive(Default)]
struct Sum(Millis);

impl Sum {
    /// Adds a number of a unit, which must be among the units left; only shorter ones are left after it.
    fn add(&mut self, number: Number<'_>, name: &str, units: &mut &[(&str, u64)]) -> Result<(), ParseError> {
        let Some(at) = units.iter().position(|(unit, _)| *unit == name) else {
            return Err(ParseError::Order(name.to_owned()));
        };
        let millis = number.times(units[at].1)?;
        *units = &units[at + 1..];
        self.0.0 = self.0.0.checked_add(millis).ok_or(ParseError::Overflow)?;
        Ok(())
    }
}

/// Finds a better word for what went wrong: the first character that cannot be read is not always the mistake.
#[cold]
fn explain(text: &str, error: ParseError) -> ParseError {
    use ParseError as E;
    if let E::Calendar | E::Order(_) | E::FractionNotLast | E::Fraction | E::Overflow = error {
        return error;
    }
    let calendar = |word: &str| {
        matches!(
            word.to_ascii_lowercase().as_str(),
            "mo" | "mos" | "mon" | "mons" | "month" | "months" | "y" | "yr" | "yrs" | "year" | "years"
        )
    };
    if text.split(|c: char| !c.is_ascii_alphabetic()).any(calendar) {
        return E::Calendar;
    }
    if text.chars().any(char::is_whitespace) {
        return E::WhiteSpace;
    }
    if text.starts_with('p') || (text.starts_with('P') && !matches!(error, E::Sign)) {
        return E::NotIso(shown(text));
    }
    match error {
        E::MissingNumber(word) => E::MissingNumber(shown(&word)),
        E::UnknownUnit(word) => E::UnknownUnit(shown(&word)),
        E::NotIso(word) => E::NotIso(shown(&word)),
        other => other,
    }
}

/// As much of the input as helps, with nothing invisible in it.
fn shown(text: &str) -> String {
    text.chars().take(20).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spellings_and_what_they_mean() {
        let table = [
            ("0s", 0, "0s"),
            ("0ms", 0, "0s"),
            ("PT0S", 0, "0s"),
            ("1ms", 1, "1ms"),
            ("1500ms", 1_500, "1s500ms"),
            ("1.5s", 1_500, "1s500ms"),
            ("1.500000000000000000s", 1_500, "1s500ms"),
            ("0.001s", 1, "1ms"),
            ("60s", 60_000, "1m"),
            ("5m", 300_000, "5m"),
            ("1m30s", 90_000, "1m30s"),
            ("1m500ms", 60_500, "1m500ms"),
            ("1h30m", 5_400_000, "1h30m"),
            ("1.5h30m", 7_200_000, "2h"),
            ("007s", 7_000, "7s"),
            ("24h", 86_400_000, "1d"),
            ("7d", 604_800_000, "7d"),
            ("1w", 604_800_000, "7d"),
            ("1w2d3h4m5s6ms", 788_645_006, "9d3h4m5s6ms"),
            ("0.0009765625w", 590_625, "9m50s625ms"),
            ("PT24H", 86_400_000, "1d"),
            ("P1DT2H", 93_600_000, "1d2h"),
            ("P2W", 1_209_600_000, "14d"),
            ("P1W1D", 691_200_000, "8d"),
            ("PT1M", 60_000, "1m"),
            ("PT1.5S", 1_500, "1s500ms"),
            ("PT1,5S", 1_500, "1s500ms"),
            ("PT0.5H", 1_800_000, "30m"),
            ("P1DT12H30M5S", 131_405_000, "1d12h30m5s"),
            ("18446744073709551615ms", u64::MAX, "213503982334d14h25m51s615ms"),
        ];
        for (text, millis, printed) in table {
            assert_eq!(parse(text), Ok(Millis(millis)), "{text}");
            assert_eq!(Millis(millis).to_string(), printed, "{text}");
        }
    }

    #[test]
    fn mistakes_and_what_is_said_about_them() {
        use ParseError as E;
        let (number, bare) = (
            |s: &str| E::MissingNumber(s.to_owned()),
            |s: &str| E::MissingUnit(s.to_owned()),
        );
        let (unknown, not_iso) = (
            |s: &str| E::UnknownUnit(s.to_owned()),
            |s: &str| E::NotIso(s.to_owned()),
        );
        let order = |s: &str| E::Order(s.to_owned());
        let long = "1".repeat(MAX_BYTES) + "s";
        let table = [
            ("", E::Empty),
            (&long, E::TooLong),
            ("-1h", E::Sign),
            ("+1h", E::Sign),
            ("1h-30m", unknown("h-")),
            ("-PT1H", E::Sign),
            ("PT-1H", E::Sign),
            ("P-1D", E::Sign),
            (" 1h", E::WhiteSpace),
            ("1h ", E::WhiteSpace),
            ("1 h", E::WhiteSpace),
            ("1h 30m", E::WhiteSpace),
            ("\n", E::WhiteSpace),
            ("1\u{a0}h", E::WhiteSpace),
            ("PT1H ", E::WhiteSpace),
            ("10", bare("10")),
            ("1h30", bare("30")),
            ("1.5", bare("1.5")),
            ("h", number("h")),
            (".5s", number(".5s")),
            ("1.s", number(".s")),
            ("ms", number("ms")),
            ("\u{661}h", number("\u{661}h")),
            ("1\u{ff11}h", unknown("\u{ff11}h")),
            ("abc", number("abc")),
            ("1x", unknown("x")),
            ("1H", unknown("H")),
            ("5M", unknown("M")),
            ("1us", unknown("us")),
            ("1min", unknown("min")),
            ("1,5s", unknown(",")),
            ("1e3s", unknown("e")),
            ("0x10s", unknown("x")),
            ("1\u{0}s", unknown("\\0s")),
            ("1mo", E::Calendar),
            ("1month", E::Calendar),
            ("1 month", E::Calendar),
            ("2 Months", E::Calendar),
            ("1y", E::Calendar),
            ("1year6d", E::Calendar),
            ("P1Y", E::Calendar),
            ("P1M", E::Calendar),
            ("P0M", E::Calendar),
            ("P1Y2M3DT4H", E::Calendar),
            ("P1YT1H", E::Calendar),
            ("30m1h", order("h")),
            ("1h1h", order("h")),
            ("1ms1s", order("s")),
            ("PT1M1H", order("H")),
            ("PT1S1S", order("S")),
            ("P1D1W", order("W")),
            ("0.5ms", E::Fraction),
            ("0.0001s", E::Fraction),
            ("0.00000000001w", E::Fraction),
            ("1.33333s", E::Fraction),
            ("PT0.0005S", E::Fraction),
            ("PT1.5H30M", E::FractionNotLast),
            ("P0.5DT1H", E::FractionNotLast),
            ("18446744073709551616ms", E::Overflow),
            ("18446744073709551615ms1ms", order("ms")),
            ("18446744073709551s616ms", E::Overflow),
            ("18446744073709551.616s", E::Overflow),
            ("30500568905w", E::Overflow),
            ("99999999999999999999999999999999d", E::Overflow),
            ("P", not_iso("P")),
            ("PT", not_iso("PT")),
            ("P1DT", not_iso("P1DT")),
            ("P1", not_iso("P1")),
            ("P1H", not_iso("P1H")),
            ("PT1D", not_iso("PT1D")),
            ("PT1h", not_iso("PT1h")),
            ("pt1h", not_iso("pt1h")),
            ("P1DT2HT3M", not_iso("P1DT2HT3M")),
            ("PT1H30", not_iso("PT1H30")),
        ];
        for (text, error) in table {
            assert_eq!(parse(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn messages_help() {
        let message = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(
            message("10"),
            r#"the number 10 has no unit: write a duration such as "1500ms", "90s", "1h30m" or "PT24H", with units of ms, s, m, h, d or w"#
        );
        assert!(message("P1M").contains("because their length varies"));
        assert!(message(&format!("1{}", "é".repeat(30))).len() < 150);
    }

    /// A second reading of the grammar, by splitting instead of consuming, on wide integers.
    fn oracle(text: &str) -> Option<u128> {
        let mut total = 0;
        let mut last = u64::MAX;
        for part in regex::Regex::new("[0-9]+[a-z]+").unwrap().find_iter(text) {
            let letters = part.as_str().trim_start_matches(|c: char| c.is_ascii_digit());
            let unit = UNITS.iter().find(|(name, _)| *name == letters)?.1;
            let count: u128 = part.as_str().trim_end_matches(letters).parse().ok()?;
            if unit >= last {
                return None;
            }
            last = unit;
            total += count * u128::from(unit);
        }
        (total <= u128::from(u64::MAX)).then_some(total)
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(millis in prop_oneof![any::<u64>(), 0..10_000_000_000_u64, 0..100_000_u64]) {
            prop_assert_eq!(parse(&Millis(millis).to_string()), Ok(Millis(millis)));
        }

        #[test]
        fn sums_are_exact(text in "([0-9]{1,19}(ms|[smhdw])){1,3}") {
            prop_assert_eq!(parse(&text).ok().map(|millis| u128::from(millis.0)), oracle(&text));
        }

        #[test]
        fn fractions_of_a_second_are_exact(seconds in 0..1_000_000_u64, digits in "[0-9]{1,5}") {
            let wanted = format!("{digits:0<5}").parse::<u64>().unwrap();
            let parsed = parse(&format!("{seconds}.{digits}s"));
            if wanted % 100 == 0 {
                prop_assert_eq!(parsed, Ok(Millis(seconds * 1_000 + wanted / 100)));
            } else {
                prop_assert_eq!(parsed, Err(ParseError::Fraction));
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in prop_oneof![any::<String>(), "[PT0-9.,WDHMSwdhms+ -]{0,20}"]) {
            if let Ok(millis) = parse(&text) {
                prop_assert_eq!(parse(&millis.to_string()), Ok(millis));
            }
        }
    }
}
