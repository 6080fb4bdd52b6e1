//! References to variables, in texts.

use super::*;

fn env(name: &str) -> Option<String> {
    match name {
        "HOST" => Some("redis.local".into()),
        "EMPTY" => Some(String::new()),
        "NESTED" => Some("${HOST}".into()),
        _ => None,
    }
}

#[track_caller]
fn check(text: &str, expected: &str) {
    assert_eq!(interpolate(text, &env).unwrap(), expected, "{text}");
}

#[test]
fn references_are_filled_in() {
    check("plain", "plain");
    check("redis://${HOST}:6379", "redis://redis.local:6379");
    check("${HOST}${HOST}", "redis.localredis.local");
    check("${NONE:-memory:}", "memory:");
    check("${EMPTY:-memory:}", "memory:");
    check("${EMPTY}", "");
    check("${HOST:-memory:}", "redis.local");
    check("${NONE:-}", "");
}

#[test]
fn dollars_stay_dollars() {
    check("$$", "$");
    check("$${HOST}", "${HOST}");
    check("5$ and $HOME", "5$ and $HOME");
    check("${NESTED}", "${HOST}");
}

#[test]
fn all_that_is_wrong_is_named() {
    let found = interpolate("${NONE} ${HOST} ${A-B} ${open", &env).unwrap_err();
    let written: Vec<_> = found.iter().map(|one| one.written.as_str()).collect();
    assert_eq!(written, ["${NONE}", "${A-B}", "${open"]);
    let why: Vec<_> = found.into_iter().map(|one| one.error).collect();
    assert_eq!(why, [UNSET, BAD_NAME, UNCLOSED]);
}

#[test]
fn an_escape_is_no_reference() {
    assert_eq!(first_variable("$${HOME}"), None);
    assert_eq!(first_variable("$$$$ $$${HOME:-x}"), Some("HOME"));
    assert_eq!(first_variable("a$b ${C}"), Some("C"));
}

#[test]
fn a_text_that_is_escaped_is_filled_in_as_it_was() {
    for text in ["", "$", "$$", "${X}", "$$${", "a$b", "$5 $$ ${"] {
        let escaped = without_variables(text);
        let again = interpolate(&escaped, &|_| None).unwrap();
        assert_eq!(again, text, "{escaped}");
    }
    assert_eq!(without_variables("^/a$"), "^/a$");
}
