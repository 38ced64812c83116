//! Just enough of Rust's grammar to see what a file names: its words, without comments and texts.

/// Something that a file names.
#[derive(Debug, PartialEq)]
pub(super) enum Use {
    /// `crate::room`, or as many `super` as lead there.
    Room(String),
    /// `crate::{` or `crate::*`, which hide the rooms they name.
    Root,
    /// A crate or a path of the standard library.
    Outside(String),
}

type Token = (usize, String);

/// The words and signs of a file with their lines; `::` is one sign. Comments, texts and characters are
/// left out, so that nothing in them counts.
fn tokens(text: &str) -> Vec<Token> {
    let bytes = text.as_bytes();
    let (mut tokens, mut line, mut at) = (Vec::new(), 1, 0);
    while at < bytes.len() {
        let rest = &text[at..];
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(length) = text_literal(rest) {
            length
        } else if let Some(length) = character(rest) {
            length
        } else if bytes[at].is_ascii_alphabetic() || bytes[at] == b'_' {
            let word = rest
                .find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(rest.len());
            tokens.push((line, rest[..word].to_owned()));
            word
        } else if rest.starts_with("::") {
            tokens.push((line, "::".to_owned()));
            2
        } else {
            let sign = rest.chars().next().expect("not at the end");
            if !sign.is_whitespace() {
                tokens.push((line, sign.to_string()));
            }
            sign.len_utf8()
        };
        line += rest[..length].matches('\n').count();
        at += length;
    }
    tokens
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if here.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// The length of the text literal that begins here, if one does: `"…"`, `b"…"`, `c"…"`, `r#"…"#`.
fn text_literal(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "r", "b", "c", ""].into_iter().find(|prefix| {
        rest.strip_prefix(prefix).is_some_and(|rest| {
            let hashes = if prefix.ends_with('r') {
                rest.trim_start_matches('#')
            } else {
                rest
            };
            hashes.starts_with('"')
        })
    })?;
    let body = &rest[prefix.len()..];
    if prefix.ends_with('r') {
        let hashes = body.find('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let inner = body[hashes + 1..].find(&end).unwrap_or(body.len() - hashes - 1);
        return Some((prefix.len() + hashes + 1 + inner + end.len()).min(rest.len()));
    }
    let mut escaped = false;
    for (at, byte) in body.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(prefix.len() + at + 1),
            _ => {}
        }
    }
    Some(rest.len())
}

/// The length of the character literal that begins here, if one does; a lifetime is none.
fn character(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix('\'')?;
    if let Some(escape) = body.strip_prefix('\\') {
        let after = escape.chars().next()?.len_utf8();
        return escape[after..].find('\'').map(|end| 2 + after + end + 1);
    }
    let length = body.chars().next()?.len_utf8();
    body[length..].starts_with('\'').then_some(length + 2)
}

/// Everything of interest that a file names, with its line. `depth` is the number of modules that the
/// file lies in.
pub(super) fn uses(text: &str, depth: usize, outside: &[&str]) -> Vec<(usize, Use)> {
    let tokens = tokens(text);
    let word = |at: usize| tokens.get(at).map_or("", |(_, token)| token.as_str());
    let mut found = Vec::new();
    // For each open brace: does it open a module?
    let mut braces = Vec::new();
    for (at, (line, token)) in tokens.iter().enumerate() {
        let before = if at == 0 { "" } else { word(at - 1) };
        match token.as_str() {
            "{" => braces.push(at >= 2 && word(at - 2) == "mod"),
            "}" => drop(braces.pop()),
            "crate" | "solejob" if before != "$" && before != "::" && word(at + 1) == "::" => {
                found.push((*line, root_use(word(at + 2))));
            }
            "super" if before != "::" => {
                let mut supers = 1;
                while word(at + 2 * supers - 1) == "::" && word(at + 2 * supers) == "super" {
                    supers += 1;
                }
                let module = depth + braces.iter().filter(|opens_module| **opens_module).count();
                if supers >= module && word(at + 2 * supers - 1) == "::" {
                    found.push((*line, root_use(word(at + 2 * supers))));
                }
            }
            "derive" if word(at + 1) == "(" => {
                let inside = (at + 2..).map(word).take_while(|token| !matches!(*token, ")" | ""));
                let inside = inside.map(|token| format!("derive({token})"));
                let named = inside.filter(|name| outside.contains(&name.as_str()));
                found.extend(named.map(|name| (*line, Use::Outside(name))));
            }
            first => {
                let rooted = before == "::" && (at < 2 || !is_word(word(at - 2)) && word(at - 2) != ">");
                let imported = matches!(before, "use" | "crate") || word(at + 1) == "::";
                if (before != "::" || rooted) && before != "." && imported {
                    let names = outside.iter().filter(|name| name.split("::").next() == Some(first));
                    let named = names.filter(|name| names_path(&word, at, &name.split("::").collect::<Vec<_>>()));
                    found.extend(named.map(|name| (*line, Use::Outside((*name).to_owned()))));
                }
            }
        }
    }
    found
}

fn root_use(next: &str) -> Use {
    if is_word(next) {
        Use::Room(next.to_owned())
    } else {
        Use::Root
    }
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Does the path that begins here lead to (or through) these segments, be it through braces?
fn names_path<'a>(word: &impl Fn(usize) -> &'a str, at: usize, segments: &[&str]) -> bool {
    let Some((first, rest)) = segments.split_first() else {
        return true;
    };
    if word(at) != *first {
        return false;
    }
    if rest.is_empty() {
        return true;
    }
    if word(at + 1) != "::" {
        return false;
    }
    if word(at + 2) != "{" {
        return names_path(word, at + 2, rest);
    }
    // Each item of this pair of braces, not of those within.
    let (mut depth, mut position, mut begins) = (1, at + 3, true);
    while depth > 0 && !word(position).is_empty() {
        if begins && depth == 1 && names_path(word, position, rest) {
            return true;
        }
        match word(position) {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        begins = word(position) == ",";
        position += 1;
    }
    false
}

/// The names of the modules that a file declares.
pub(super) fn modules(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let pairs = tokens
        .windows(2)
        .filter(|pair| pair[0].1 == "mod" && is_word(&pair[1].1));
    pairs.map(|pair| pair[1].1.clone()).collect()
}
