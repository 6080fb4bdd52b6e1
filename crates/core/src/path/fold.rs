//! Letter case folded out of a canonical path, for upstreams that ignore it.
//!
//! Upstreams differ: some fold ASCII only, ASP.NET and IIS fold Unicode in upper case, Java
//! compares in both cases. Two letters are one here if any of them takes them for one. Folding
//! too much makes two paths share a limit; folding too little lets a client escape one.

use std::borrow::Cow;

use super::{push_byte, unescape};

/// A canonical path, or a part of one, without letter case. Escapes of UTF-8 are folded as the
/// characters that they stand for; bytes that are no UTF-8 stay as they are.
pub fn fold(text: &str) -> Cow<'_, str> {
    if text.contains('%') {
        return Cow::Owned(fold_escaped(text));
    }
    match text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(text.to_ascii_lowercase()),
        false => Cow::Borrowed(text),
    }
}

fn fold_escaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut folded = String::with_capacity(text.len());
    let mut left = text.bytes();
    while let Some(byte) = left.next() {
        let mut rest = left.clone();
        match byte {
            b'%' => match unescape(rest.next(), rest.next()) {
                Ok(escaped) => {
                    left = rest;
                    bytes.push(escaped);
                }
                Err(_) => bytes.push(byte),
            },
            // These separate names. An escaped `/` or `\` has become a `\` already.
            b'/' | b'\\' => {
                push_folded(&mut folded, &bytes);
                bytes.clear();
                folded.push(char::from(byte));
            }
            _ => bytes.push(byte),
        }
    }
    push_folded(&mut folded, &bytes);
    folded
}

fn push_folded(text: &mut String, bytes: &[u8]) {
    let mut utf8 = [0; 4];
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars().flat_map(fold_char) {
            for byte in c.encode_utf8(&mut utf8).bytes() {
                push_byte(text, byte);
            }
        }
        for byte in chunk.invalid() {
            push_byte(text, *byte);
        }
    }
}

/// Folds a character by lower, upper and again lower case. Only the dotted capital I has a lower
/// case that depends on the language.
fn fold_char(c: char) -> impl Iterator<Item = char> {
    let c = if c == '\u{130}' { 'i' } else { c };
    let upper = c.to_lowercase().flat_map(char::to_uppercase);
    upper.flat_map(char::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_and_unicode_are_folded_and_all_else_stays() {
        for (text, folded) in [
            ("/login", "/login"),
            ("/LogIn/X", "/login/x"),
            ("/%C3%84b/c", "/%C3%A4b/c"),
            ("/%C3%A4b/c", "/%C3%A4b/c"),
            ("/a%20B%3BC", "/a%20b%3Bc"),
            ("/%E4%FF", "/%E4%FF"),
            ("/%D0%90%d0%b0", "/%D0%B0%D0%B0"),
        ] {
            assert_eq!(fold(text), folded, "{text}");
        }
    }

    #[test]
    fn letters_that_some_upstream_takes_for_one_are_one() {
        // The Kelvin sign, the long s, and the two Turkish ones.
        for alias in ["/to%E2%84%AAen", "/TOKEN"] {
            assert_eq!(fold(alias), "/token");
        }
        assert_eq!(fold("/pa%C5%BFsword"), "/password");
        assert_eq!(fold("/log%C4%B1n"), "/login");
        assert_eq!(fold("/LOG%C4%B0N"), "/login");
    }

    #[test]
    fn whatever_a_character_folds_to_is_folded() {
        for c in '\0'..=char::MAX {
            let once: String = fold_char(c).collect();
            let twice: String = once.chars().flat_map(fold_char).collect();
            assert_eq!(once, twice, "{c:?}");
            for other in c.to_lowercase().chain(c.to_uppercase()) {
                let other: String = fold_char(other).collect();
                assert!(
                    once.contains(&other) || c == '\u{130}',
                    "{c:?}: {once} {other}"
                );
            }
            let separates = |text: &str| text.contains(['/', '\\', '.', ';', '%']);
            assert!(!separates(&once) || separates(&c.to_string()), "{c:?}");
        }
    }
}
