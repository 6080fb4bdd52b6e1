//! Paths as they are read, one by one and by properties.

use proptest::prelude::*;

use super::*;

fn canonical(raw: &str) -> String {
    CanonicalPath::parse(raw).unwrap().as_str().to_owned()
}

fn refused(raw: &str) -> Malformed {
    CanonicalPath::parse(raw).unwrap_err()
}

#[test]
fn ordinary_paths_are_borrowed() {
    for raw in [
        "/",
        "/login",
        "/a/b.c/d-e_f~g",
        "/@me/x:y",
        "/.well-known/x",
        "/caf%C3%A9",
    ] {
        let path = CanonicalPath::parse(raw).unwrap();
        assert_eq!(path.as_str(), raw);
        assert!(is_as_sent(&path), "{raw}");
        assert!(path.is_plain(), "{raw}");
    }
}

#[test]
fn every_spelling_of_a_path_is_one_path() {
    for raw in [
        "/login/",
        "//login",
        "/login//",
        "/./login",
        "/login/.",
        "/%6cogin",
        "/%6Cog%69n",
        "/login;x=1",
        "/;x/login",
        "/login;",
        "/a/../login",
        "/%2e/login",
        "/a/%2e%2E/login",
        "/%2flogin",
        "/%5Clogin",
        "/\\login",
        "/login%2f",
        "/.//login/./",
        "/login.",
        "/login..",
        "/login%20",
        "/login /",
        "/login%20.%2e",
        "/login%2e;x",
        "/login%3bx=1",
        "/login.%3Bx.",
        "/%3bx/login",
        "/login/...",
        "/login/%20",
        "/login%2f%2f..%2e",
    ] {
        assert_eq!(canonical(raw), "/login", "{raw}");
    }
    assert_eq!(canonical("/a!b/c@d"), canonical("/a%21b/c%40d"));
    assert_eq!(canonical("/caf\u{e9}"), canonical("/caf%c3%a9"));
    assert_eq!(canonical("/{x}"), "/%7Bx%7D");
    assert_eq!(canonical("/a/b/.."), "/a");
    assert_eq!(canonical("/a/.."), "/");
    assert_eq!(canonical("/..x/x..y"), "/..x/x..y");
}

#[test]
fn case_is_kept() {
    assert_eq!(canonical("/Login/"), "/Login");
}

#[test]
fn ambiguous_paths_are_refused() {
    for (raw, error) in [
        ("", RELATIVE),
        ("login", RELATIVE),
        ("*", RELATIVE),
        ("/%", ESCAPE),
        ("/%2", ESCAPE),
        ("/%zz", ESCAPE),
        ("/%u002f", ESCAPE),
        ("/%+2f", ESCAPE),
        ("/a%00", CONTROL),
        ("/a%0d%0A", CONTROL),
        ("/a%7f", CONTROL),
        ("/a\tb", CONTROL),
        ("/a%252fb", DOUBLE_ESCAPE),
        ("/a%25252Fb", DOUBLE_ESCAPE),
        ("/%252e%252e/b", DOUBLE_ESCAPE),
        ("/a%255cb", DOUBLE_ESCAPE),
        ("/a%25%32%66b", DOUBLE_ESCAPE),
        ("/a%2500", DOUBLE_ESCAPE),
        ("/a%c0%afb", OVERLONG),
        ("/%C0%AE%C0%AE/", OVERLONG),
        ("/%e0%80%af", OVERLONG),
        ("/%f0%80%80%af", OVERLONG),
        ("/a/..%2fb", HIDDEN_DOTS),
        ("/a%2f../b", HIDDEN_DOTS),
        ("/a%2f.%2fb", HIDDEN_DOTS),
        ("/a%5c..%5cb", HIDDEN_DOTS),
        ("/a/..;/b", HIDDEN_DOTS),
        ("/a/.;x/b", HIDDEN_DOTS),
        ("/..", ABOVE_ROOT),
        ("/a/../../b", ABOVE_ROOT),
        ("/%2e%2e/b", ABOVE_ROOT),
        ("/a%2fb/../c", TOO_MANY_READINGS),
        ("/a/.../../b", TOO_MANY_READINGS),
        ("/a/..%3b/b", HIDDEN_DOTS),
        ("/a/.%3bx/b", HIDDEN_DOTS),
        ("/a/..%20/b", HIDDEN_DOTS),
        ("/a/. ./b", HIDDEN_DOTS),
        ("/a/%20.%2e/b", HIDDEN_DOTS),
    ] {
        assert_eq!(refused(raw), error, "{raw}");
    }
}

#[test]
fn other_escapes_and_odd_bytes_stay_escaped() {
    assert_eq!(canonical("/50%25"), "/50%25");
    assert_eq!(canonical("/a%2520b"), "/a%2520b");
    assert_eq!(canonical("/%ff%fe"), "/%FF%FE");
    assert_eq!(canonical("/%20.a"), "/%20.a");
    assert_eq!(canonical("/a%20b%3fc%23"), "/a%20b%3Fc%23");
}

#[test]
fn the_readings_of_other_upstreams_are_kept_where_they_differ() {
    for (raw, others) in [
        ("/a/../b", &["/a/../b"][..]),
        ("/a%2fb;x/./c/", &["/a\\b/c"]),
        ("//a/./b;c/", &[]),
        ("/a./b", &["/a./b"]),
        ("/a%20", &["/a%20"]),
        ("/a%3bb", &["/a%3Bb"]),
        ("/a.;x.", &["/a."]),
        ("/a%2fb.", &["/a\\b", "/a/b.", "/a\\b."]),
        ("/a%3bb.", &["/a%3Bb", "/a%3Bb."]),
        ("/a/../b.", &["/a/../b", "/b.", "/a/../b."]),
        (
            "/a.%2fb.%3bc.",
            &[
                "/a.\\b",
                "/a/b.%3Bc",
                "/a.\\b.%3Bc",
                "/a./b.",
                "/a.\\b.",
                "/a./b.%3Bc.",
                "/a.\\b.%3Bc.",
            ],
        ),
    ] {
        let path = CanonicalPath::parse(raw).unwrap();
        let mut found: Vec<&str> = path.others().collect();
        let mut expected = others.to_vec();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{raw}");
    }
}

#[test]
fn a_path_without_case_is_folded_in_all_readings() {
    let path = CanonicalPath::parse("/A/../Login%3BX/%C3%84")
        .unwrap()
        .with_folded();
    let folded = path.in_case(Case::Insensitive);
    assert_eq!(path.as_str(), "/Login/%C3%84");
    assert_eq!(folded.as_str(), "/login/%C3%A4");
    assert_eq!(path.in_case(Case::Sensitive), &path);
    let pairs: Vec<_> = path.others().zip(folded.others()).collect();
    assert_eq!(pairs.len(), 3);
    for (exact, folded) in pairs {
        assert_eq!(fold(exact), folded);
    }
    let lower = CanonicalPath::parse("/login%20").unwrap().with_folded();
    assert_eq!(lower.in_case(Case::Insensitive), &lower);
}

/// One spelling of `path` out of many, chosen by `choices`.
fn respell(path: &str, choices: &[u8]) -> String {
    let mut choices = choices.iter().copied().cycle();
    let mut choose = move || choices.next().unwrap_or(0);
    let mut raw = String::new();
    for c in path.chars() {
        match (c, choose() % 14) {
            ('/', 0) => raw.push_str("//"),
            ('/', 1) => raw.push_str("/./"),
            ('/', 2) => raw.push_str("/%2E/"),
            ('/', 3) => raw.push_str("/zz/../"),
            ('/', 4) => raw.push_str("/zz/.%2e/"),
            ('/', 5) if !raw.is_empty() => raw.push_str("%2f"),
            ('/', 6) if !raw.is_empty() => raw.push('\\'),
            ('/', 7) if !raw.is_empty() => raw.push_str(";p=1/"),
            ('/', 8) if !raw.is_empty() => raw.push_str("/..;/"),
            ('/', _) => raw.push('/'),
            (c, 0..=3) => raw.push_str(&format!("%{:02x}", c as u32)),
            (c, 4 | 5) => raw.push_str(&format!("%{:02X}", c as u32)),
            (c, _) => raw.push(c),
        }
    }
    if choose() % 3 == 0 {
        raw.push('/');
    }
    raw
}

proptest! {
    #[test]
    fn canonical_paths_stay_as_they_are(
        raw in "/([a-c./;%\\\\]|%2[0-9a-fA-F]|%5[cC]|é|%[0-9A-F]{2}){0,16}"
    ) {
        if let Ok(path) = CanonicalPath::parse(&raw) {
            let again = CanonicalPath::parse(path.as_str()).unwrap();
            prop_assert_eq!(again.as_str(), path.as_str());
            prop_assert!(is_as_sent(&again));
            prop_assert!(again.is_plain());
        }
    }

    #[test]
    fn no_spelling_makes_another_path(
        path in "(/[a-z@!~]{1,4}){1,5}",
        choices in prop::collection::vec(any::<u8>(), 1..40),
    ) {
        let raw = respell(&path, &choices);
        if let Ok(found) = CanonicalPath::parse(&raw) {
            prop_assert_eq!(found.as_str(), path, "{}", raw);
        }
    }

    #[test]
    fn nothing_panics(raw in "\\PC{0,40}") {
        let _ = CanonicalPath::parse(&raw);
    }
}

/// Whether the client sent exactly this spelling.
fn is_as_sent(path: &CanonicalPath<'_>) -> bool {
    matches!(path.resolved, Cow::Borrowed(_))
}
