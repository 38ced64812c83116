//! JSON pointers (RFC 6901).

/// Appends `/TOKEN` to a pointer, with `~` and `/` in the token escaped as `~0` and `~1`.
pub fn push(pointer: &mut String, token: &str) {
    pointer.push('/');
    for part in token.split_inclusive(['~', '/']) {
        match part.as_bytes().last() {
            Some(b'~') => pointer.extend([part.trim_end_matches('~'), "~0"]),
            Some(b'/') => pointer.extend([part.trim_end_matches('/'), "~1"]),
            _ => pointer.push_str(part),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_escaped() {
        for (token, expected) in [
            ("a", "/a"),
            ("", "/"),
            ("~", "/~0"),
            ("/", "/~1"),
            ("~1", "/~01"),
            ("a/b~~c//", "/a~1b~0~0c~1~1"),
            ("ü", "/ü"),
        ] {
            let mut pointer = String::new();
            push(&mut pointer, token);
            assert_eq!(pointer, expected, "{token}");
        }
    }
}
