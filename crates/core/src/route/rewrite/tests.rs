//! Stripped prefixes, and changes of headers.

use proptest::prelude::*;

use super::*;

fn stripped(prefix: &str, sent: &str) -> Option<String> {
    let path = CanonicalPath::parse(sent).unwrap();
    let prefix = Prefix::parse(prefix).unwrap();
    prefix.strip(&path, sent).map(Cow::into_owned)
}

#[test]
fn the_rest_is_sent_as_the_client_spelled_it() {
    for (sent, rest) in [
        ("/api/users", "/users"),
        ("/api/users/", "/users/"),
        ("/api", "/"),
        ("/api/", "/"),
        ("/api/a%2Fb", "/a%2Fb"),
        ("/api/a;v=1/b", "/a;v=1/b"),
        ("/api/x/../y", "/x/../y"),
        ("/api/%6c", "/%6c"),
        ("/api/a//b", "/a//b"),
    ] {
        assert_eq!(stripped("/api", sent).as_deref(), Some(rest), "{sent}");
    }
}

#[test]
fn where_the_spelling_means_something_else_the_counted_path_is_sent() {
    for (sent, rest) in [
        ("//api/users", "/users"),
        ("/%61pi/users/", "/users/"),
        ("/api;v=1/users", "/users"),
        ("/./api/users", "/users"),
        ("//api/J.R./x%3by", "/J.R./x%3By"),
        ("/api//evil.example/x", "/evil.example/x"),
        ("/api/%2fevil.example", "/evil.example"),
        ("/api\\evil.example", "/evil.example"),
        ("/api/../api/y", "/y"),
    ] {
        let path = CanonicalPath::parse(sent).unwrap();
        let prefix = Prefix::parse("/api").unwrap();
        match prefix.strip(&path, sent) {
            Some(found) => assert_eq!(found, rest, "{sent}"),
            None => assert!(!path.is_plain(), "{sent}"),
        }
    }
    assert_eq!(stripped("/api", "/apis/x"), None);
    assert_eq!(stripped("/api", "/x/../api/y"), None);
}

#[test]
fn a_prefix_without_case_keeps_the_spelling_of_the_rest() {
    let prefix = Prefix::parse("/Api/\u{c4}")
        .unwrap()
        .in_case(Case::Insensitive);
    let strip = |sent: &str| {
        let path = CanonicalPath::parse(sent).unwrap();
        prefix.strip(&path, sent).map(Cow::into_owned)
    };
    for (sent, rest) in [
        ("/API/%C3%84/Users/", "/Users/"),
        ("/api/%c3%a4/Users%2FX", "/Users%2FX"),
        ("/api/%C3%A4", "/"),
        ("/./aPi/%C3%A4/Users", "/Users"),
    ] {
        assert_eq!(strip(sent).as_deref(), Some(rest), "{sent}");
    }
    assert_eq!(strip("/api/%C3%A4s/x"), None);
    assert_eq!(strip("/api"), None);
    assert_eq!(prefix.header(), "/Api/%C3%84");
}

#[test]
fn a_prefix_is_some_plain_segments() {
    assert_eq!(Prefix::parse("/api/").unwrap().as_str(), "/api");
    assert_eq!(Prefix::parse("/a/b").unwrap().header(), "/a/b");
    for bad in ["", "api", "/", "/a/../b", "/a%2fb", "/{id}", "/a/*", "/a?b"] {
        assert!(Prefix::parse(bad).is_err(), "{bad}");
    }
}

proptest! {
    /// Prefix and rest together are what was counted, whatever was sent.
    #[test]
    fn nothing_else_is_reached(
        sent in "/(api|a%70i|api;x)?([a-c./;%\\\\]|%2[ef]|%5c|%2F){0,12}"
    ) {
        let prefix = Prefix::parse("/api").unwrap();
        if let Ok(path) = CanonicalPath::parse(&sent)
            && let Some(rest) = prefix.strip(&path, &sent)
        {
            prop_assert!(!rest.starts_with("//"), "{} {}", sent, rest);
            let read = CanonicalPath::parse(&rest).unwrap();
            let whole = |rest: &str| format!("/api{}", rest.trim_end_matches('/'));
            prop_assert_eq!(whole(read.as_str()), path.as_str());
            for other in read.others() {
                let other = whole(other);
                prop_assert!(path.readings().any(|text| text == other), "{} {}", sent, other);
            }
        }
    }
}

#[test]
fn what_frames_messages_is_out_of_reach() {
    let both = |name: &'static str| {
        let name = HeaderName::from_static(name);
        [Direction::Up, Direction::Down]
            .map(|direction| HeaderChange::may_touch(&name, direction).is_ok())
    };
    for name in [
        "content-length",
        "transfer-encoding",
        "trailer",
        "te",
        "upgrade",
        "keep-alive",
        "proxy-connection",
        "http2-settings",
        "expect",
    ] {
        assert_eq!(both(name), [false, false], "{name}");
    }
    assert_eq!(both("connection"), [true, false]);
    assert_eq!(both("host"), [false, true]);
    assert_eq!(both("via"), [false, true]);
    assert_eq!(both("x-forwarded-for"), [true, true]);
}
