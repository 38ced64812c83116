//! The text of a token: a prefix that scanners for leaked secrets can know, an id, a secret, and check digits.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

const PREFIX: &str = "sole_";
const ID_DIGITS: usize = 8;
/// 32 bytes in base64url.
const SECRET_DIGITS: usize = 43;
const CHECK_DIGITS: usize = 6;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The id and the whole text of a token made from random bits.
pub fn of_random(id: [u8; 4], secret: [u8; 32]) -> (String, String) {
    let token_id = format!("{PREFIX}{:08x}", u32::from_be_bytes(id));
    let mut token = format!("{token_id}_{}", URL_SAFE_NO_PAD.encode(secret));
    let check = check_digits(&token);
    token.push_str(&check);
    (token_id, token)
}

/// Whether a text has the form of a token and wrong check digits: then it never was one. Tokens of the first form have
/// no check digits and are shorter; a bootstrap token is any text.
pub fn is_mistyped(text: &str) -> bool {
    let id_end = PREFIX.len() + ID_DIGITS;
    let check_at = id_end + 1 + SECRET_DIGITS;
    let formed = text.len() == check_at + CHECK_DIGITS
        && text.is_ascii()
        && text.starts_with(PREFIX)
        && text.as_bytes()[id_end] == b'_';
    formed && check_digits(&text[..check_at]) != text[check_at..]
}

/// The CRC-32 of a text, in base 62, the most significant digit first.
fn check_digits(text: &str) -> String {
    let mut rest = crc32(text.as_bytes());
    let mut digits = [b'0'; CHECK_DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit = BASE62[(rest % 62) as usize];
        rest /= 62;
    }
    digits.iter().map(|digit| char::from(*digit)).collect()
}

/// As in zlib and Ethernet. Bit by bit: it reads a few dozen bytes, once in five seconds for each token.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_zlib() {
        // The check value that catalogues of CRCs give for this one.
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn a_token_has_a_fixed_form() {
        let (id, token) = of_random([0xde, 0xad, 0xbe, 0xef], [0; 32]);
        assert_eq!(id, "sole_deadbeef");
        assert!(token.starts_with("sole_deadbeef_AAAA"), "{token}");
        assert_eq!(token.len(), 63);
        assert!(!is_mistyped(&token));
    }

    #[test]
    fn each_digit_that_is_wrong_is_seen() {
        let (_, token) = of_random([1, 2, 3, 4], [7; 32]);
        for at in "sole_".len()..token.len() {
            if at == "sole_00000000".len() {
                continue;
            }
            let mut wrong = token.clone().into_bytes();
            wrong[at] = if wrong[at] == b'x' { b'y' } else { b'x' };
            assert!(is_mistyped(&String::from_utf8(wrong).unwrap()), "digit {at} of {token}");
        }
    }

    #[test]
    fn what_has_another_form_is_left_to_the_database() {
        let (_, token) = of_random([1, 2, 3, 4], [7; 32]);
        let first_form = &token[..token.len() - CHECK_DIGITS];
        for text in [
            "",
            "bootstrap-0123456789abcdef",
            first_form,
            "sole_",
            &"é".repeat(32)[..62],
        ] {
            assert!(!is_mistyped(text), "{text}");
        }
    }
}
