//! The canonical form of a number: the exact decimal that its text stands for.
//!
//! No conversion to a binary number, and nothing is ever expanded: `1e999999999` costs its eleven bytes, and an exponent
//! that fits no machine integer is added to digit by digit.

/// Exponents of so many digits are computed with machine integers.
const SHORT: usize = 18;

/// Appends `d[-]DIGITSe[-]EXPONENT;`, the number being DIGITS × 10^EXPONENT: DIGITS without zeros at either end,
/// EXPONENT without leading zeros; zero is `d0e0;`, whatever its sign and exponent.
///
/// Expects a number in the grammar of JSON. Of any other text it makes something, and does not panic.
pub(super) fn write(raw: &str, out: &mut Vec<u8>) {
    let bytes = raw.as_bytes();
    let (negative, bytes) = match bytes {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, bytes),
    };
    // What most numbers are: short integers that are their own digits.
    if let [.., b'1'..=b'9'] = bytes
        && bytes.len() <= 20
        && bytes.iter().all(u8::is_ascii_digit)
    {
        out.extend_from_slice(if negative { b"d-" } else { b"d" });
        out.extend_from_slice(bytes);
        out.extend_from_slice(b"e0;");
        return;
    }
    let (mantissa, exponent) = split(bytes, |byte| matches!(byte, b'e' | b'E'));
    let (whole, fraction) = split(mantissa, |byte| byte == b'.');

    let whole = trim_start(whole);
    let fraction = trim_end(fraction);
    // The digits are `head` and `tail`; `shift` is what the point's place adds to the exponent.
    let (head, tail, shift) = if fraction.is_empty() {
        let digits = trim_end(whole);
        (digits, fraction, signed(whole.len() - digits.len()))
    } else if whole.is_empty() {
        (whole, trim_start(fraction), -signed(fraction.len()))
    } else {
        (whole, fraction, -signed(fraction.len()))
    };
    if head.is_empty() && tail.is_empty() {
        out.extend_from_slice(b"d0e0;");
        return;
    }
    out.push(b'd');
    if negative {
        out.push(b'-');
    }
    out.extend_from_slice(head);
    out.extend_from_slice(tail);
    out.push(b'e');
    write_exponent(exponent, shift, out);
    out.push(b';');
}

/// Appends the sum of an exponent as it is written (without the `e`; empty counts as 0) and `shift`.
fn write_exponent(exponent: &[u8], shift: i64, out: &mut Vec<u8>) {
    let (negative, digits) = match exponent {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, exponent),
    };
    let digits = trim_start(digits);
    if digits.len() <= SHORT {
        let size = digits.iter().fold(0, |value: i64, digit| {
            value * 10 + i64::from(digit.wrapping_sub(b'0') % 10)
        });
        let sum = (if negative { -size } else { size }).saturating_add(shift);
        if sum < 0 {
            out.push(b'-');
        }
        write_integer(sum.unsigned_abs(), out);
        return;
    }
    // At least 10^18, far more than `shift`, which no text is long enough to match: the sign stays.
    if negative {
        out.push(b'-');
    }
    let start = out.len();
    out.extend_from_slice(digits);
    if negative == (shift < 0) {
        add(out, start, shift.unsigned_abs());
    } else {
        subtract(out, start, shift.unsigned_abs());
    }
}

/// Adds to the decimal digits that begin at `start`.
fn add(out: &mut Vec<u8>, start: usize, mut carry: u64) {
    for digit in out.iter_mut().skip(start).rev() {
        if carry == 0 {
            return;
        }
        // Never more than 9 + 9: the carry of a column goes into the next one.
        let sum = u64::from(digit.wrapping_sub(b'0') % 10) + carry % 10;
        carry = carry / 10 + sum / 10;
        *digit = ascii(sum % 10);
    }
    while carry > 0 {
        out.insert(start, ascii(carry % 10));
        carry /= 10;
    }
}

/// Subtracts from the decimal digits that begin at `start`, which stand for no less, and drops the zeros this leaves in
/// front.
fn subtract(out: &mut Vec<u8>, start: usize, mut borrow: u64) {
    for digit in out.iter_mut().skip(start).rev() {
        if borrow == 0 {
            break;
        }
        let (have, take) = (u64::from(digit.wrapping_sub(b'0') % 10), borrow % 10);
        borrow /= 10;
        if have < take {
            borrow += 1;
        }
        *digit = ascii((have + 10 - take) % 10);
    }
    let zeros = out.iter().skip(start).take_while(|&&digit| digit == b'0').count();
    out.drain(start..start + zeros);
}

/// Appends an integer in decimal: `write!` without its detour, since this runs for every number and string.
pub(super) fn write_integer(mut value: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    for place in digits.iter_mut().rev() {
        *place = ascii(value % 10);
        value /= 10;
        start -= 1;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

fn ascii(digit: u64) -> u8 {
    // Callers pass a remainder of ten.
    b'0' + (digit % 10) as u8
}

fn signed(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

/// What stands before and behind the first byte that matches; all of it and nothing if none does.
fn split(bytes: &[u8], matches: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    match bytes.iter().position(|&byte| matches(byte)) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[]),
    }
}

fn trim_start(digits: &[u8]) -> &[u8] {
    let zeros = digits.iter().take_while(|&&digit| digit == b'0').count();
    &digits[zeros..]
}

fn trim_end(digits: &[u8]) -> &[u8] {
    let zeros = digits.iter().rev().take_while(|&&digit| digit == b'0').count();
    &digits[..digits.len() - zeros]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(raw: &str) -> String {
        let mut out = Vec::new();
        write(raw, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn equal_decimals_share_one_form() {
        let table: &[(&str, &[&str])] = &[
            (
                "d0e0;",
                &[
                    "0",
                    "-0",
                    "0.0",
                    "-0.000",
                    "0e5",
                    "0E+5",
                    "0.0e-999999999999999999999",
                    "-0e99999999999999999999",
                ],
            ),
            (
                "d1e0;",
                &[
                    "1",
                    "1.0",
                    "1e0",
                    "1E-0",
                    "10e-1",
                    "100e-2",
                    "0.1e1",
                    "0.001e+0003",
                    "1.000e00",
                ],
            ),
            ("d-1e0;", &["-1", "-1.0", "-10e-1", "-0.1E1"]),
            ("d1e2;", &["100", "1e2", "1.0e2", "10e1", "1000E-1", "0.0001e6"]),
            ("d125e-1;", &["12.5", "12.50", "125e-1", "1.25e1", "0.125e2", "1250e-2"]),
            (
                "d9007199254740993e0;",
                &["9007199254740993", "9007199254740993.0", "900719925474099.3e1"],
            ),
            ("d9007199254740992e0;", &["9007199254740992"]),
            (
                "d123456789012345678901234567891e0;",
                &["123456789012345678901234567891", "1.23456789012345678901234567891e29"],
            ),
            (
                "d1000000000000000055511151231257827e-34;",
                &["0.1000000000000000055511151231257827"],
            ),
            ("d1e-1;", &["0.1", "1e-1"]),
            (
                "d1e999999999;",
                &[
                    "1e999999999",
                    "1E+999999999",
                    "10e999999998",
                    "0.1e1000000000",
                    "1e0000000000999999999",
                ],
            ),
            ("d1e999999998;", &["1e999999998"]),
        ];
        for (expected, spellings) in table {
            for spelling in *spellings {
                assert_eq!(canonical(spelling), *expected, "{spelling}");
            }
        }
    }

    #[test]
    fn exponents_of_any_length_are_exact() {
        let table = [
            ("1e999999999999999999", "d1e999999999999999999;"),
            ("10e999999999999999999", "d1e1000000000000000000;"),
            ("1e1000000000000000000", "d1e1000000000000000000;"),
            ("0.1e1000000000000000000", "d1e999999999999999999;"),
            ("10e9999999999999999999999", "d1e10000000000000000000000;"),
            ("0.1e10000000000000000000000", "d1e9999999999999999999999;"),
            ("10e-1000000000000000000", "d1e-999999999999999999;"),
            ("0.01e-999999999999999999", "d1e-1000000000000000001;"),
            ("0.01e-9999999999999999999999", "d1e-10000000000000000000001;"),
            ("1.0e-0000000000000000000000000000000000000000002", "d1e-2;"),
            ("-1200e18446744073709551616", "d-12e18446744073709551618;"),
            ("-1.2e-18446744073709551616", "d-12e-18446744073709551617;"),
        ];
        for (spelling, expected) in table {
            assert_eq!(canonical(spelling), expected, "{spelling}");
        }
        let nines = "9".repeat(100_000);
        assert_eq!(
            canonical(&format!("10e{nines}")),
            format!("d1e1{};", "0".repeat(100_000))
        );
        assert_eq!(
            canonical(&format!("0.1e1{}", "0".repeat(100_000))),
            format!("d1e{nines};")
        );
        assert_eq!(canonical(&format!("1{}e-100000", "0".repeat(100_000))), "d1e0;");
    }

    #[test]
    fn integers_are_written_in_decimal() {
        for value in [0, 1, 9, 10, 99, 100, 12_345, u64::MAX] {
            let mut out = Vec::new();
            write_integer(value, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), value.to_string());
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(raw in "[-+.eE0-9a\u{e9}]{0,40}") {
            write(&raw, &mut Vec::new());
        }

        /// Against integer arithmetic: i × 10^k is the same number however many zeros are written out.
        #[test]
        fn shifting_the_point_changes_nothing(digits in 1_i64.., k in 0_usize..30, exponent in proptest::num::i64::ANY) {
            let plain = canonical(&format!("{digits}e{exponent}"));
            let long = canonical(&format!("{digits}{}e{}", "0".repeat(k), i128::from(exponent) - k as i128));
            proptest::prop_assert_eq!(&plain, &long);
            let other = canonical(&format!("{digits}e{}", i128::from(exponent) + 1));
            proptest::prop_assert_ne!(&plain, &other);
        }
    }
}
