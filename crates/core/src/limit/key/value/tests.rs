//! Values of keys in all their spellings.

use http::HeaderValue;
use proptest::prelude::*;

use super::*;

fn text(carried: Carried<'_>) -> Option<String> {
    match carried {
        Carried::Nothing => None,
        Carried::One(value) => Some(String::from_utf8(value.as_bytes().to_vec()).unwrap()),
        Carried::Several => Some("several".to_owned()),
        Carried::Unknown => Some("unknown".to_owned()),
    }
}

fn headers(name: &'static str, lines: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(name, HeaderValue::from_bytes(line.as_bytes()).unwrap());
    }
    headers
}

fn in_query(given: &str, name: &str) -> Option<String> {
    text(query(Some(given), name))
}

#[test]
fn query_parameters_are_decoded_in_name_and_value() {
    assert_eq!(in_query("a=1&k=v", "k").as_deref(), Some("v"));
    assert_eq!(
        in_query("%61pi%5Fkey=%76%3d", "api_key").as_deref(),
        Some("v=")
    );
    assert_eq!(in_query("k=a+b", "k"), in_query("k=a%20b", "k"));
    assert_eq!(in_query("k=a%2bb", "k"), in_query("k=a+b", "k"));
    assert_eq!(in_query("k=%zz%4", "k").as_deref(), Some("%zz%4"));
    assert_eq!(in_query("K=v&kk=v&k", "k"), None);
    assert_eq!(in_query("k=&k", "k"), None);
    assert_eq!(in_query("k=a=b", "k").as_deref(), Some("a=b"));
    assert_eq!(text(query(None, "k")), None);
}

#[test]
fn a_second_copy_cannot_hide_the_first() {
    assert_eq!(in_query("k=a&k=b", "k").as_deref(), Some("several"));
    assert_eq!(in_query("k=a&%6b=b", "k").as_deref(), Some("several"));
    assert_eq!(in_query("k=a&%6b=%61&k=", "k").as_deref(), Some("a"));
}

#[test]
fn a_semicolon_cannot_hide_a_value_from_either_reading() {
    for (given, expected) in [
        // Splitting at `;` finds a value that splitting at `&` does not.
        ("a=1;k=v", Some("several")),
        ("k=v;x", Some("several")),
        ("k=v;k=w", Some("several")),
        ("k=v&a=1;k=w", Some("several")),
        ("k=;v", Some("several")),
        ("k;=v", None),
        ("a;k=v&k=v", Some("v")),
        ("k=v;", Some("several")),
        // Both find the same.
        ("a=1;b=2&k=v", Some("v")),
        ("a=1;b=2", None),
        ("a;k", None),
        // An escaped one is a part of the value to both.
        ("k=v%3Bx", Some("v;x")),
        ("a=1%3Bk=v", None),
    ] {
        assert_eq!(in_query(given, "k").as_deref(), expected, "{given}");
    }
}

#[test]
fn header_values_keep_their_case_and_lose_their_spaces() {
    let name = HeaderName::from_static("x-user");
    let value = |lines: &[&str]| text(header(&headers("x-user", lines), &name));
    assert_eq!(value(&[" Ab \t"]).as_deref(), Some("Ab"));
    assert_eq!(value(&["a, b"]).as_deref(), Some("a, b"));
    assert_eq!(value(&["a", "b"]).as_deref(), Some("several"));
    assert_eq!(value(&["a", "", " a"]).as_deref(), Some("a"));
    assert_eq!(value(&["", " "]), None);
}

#[test]
fn a_header_is_the_same_with_underscores_in_its_name() {
    let name = HeaderName::from_static("x-api-key");
    let value = |lines: &[(&'static str, &'static str)]| {
        let lines = lines.iter();
        let headers: HeaderMap = lines
            .map(|(name, value)| {
                let value = HeaderValue::from_static(value);
                (HeaderName::from_static(name), value)
            })
            .collect();
        [header(&headers, &name), listed(&headers, &name)].map(text)
    };
    let both = |text: &str| [Some(text.to_owned()), Some(text.to_owned())];
    assert_eq!(value(&[("x_api_key", "a")]), both("a"));
    assert_eq!(value(&[("x-api-key", "a"), ("x_api-key", "a")]), both("a"));
    let two = [("x-api-key", "a"), ("x_api_key", "b")];
    assert_eq!(value(&two), both("several"));
    assert_eq!(value(&[("x.api-key", "a"), ("x_api", "a")]), [None, None]);
}

#[test]
fn a_list_of_api_keys_is_several_keys() {
    let name = HeaderName::from_static("x-api-key");
    let value = |lines: &[&str]| text(listed(&headers("x-api-key", lines), &name));
    assert_eq!(value(&["a,b"]).as_deref(), Some("several"));
    assert_eq!(value(&["a", "b"]).as_deref(), Some("several"));
    assert_eq!(value(&["a , a,", "a"]).as_deref(), Some("a"));
    assert_eq!(value(&[" , "]), None);
    let token = |lines: &[&str]| text(bearer(&headers("authorization", lines)));
    assert_eq!(token(&["Bearer a, Bearer b"]).as_deref(), Some("several"));
}

#[test]
fn bearer_is_read_whatever_its_case_and_spaces() {
    let value = |lines: &[&str]| text(bearer(&headers("authorization", lines)));
    for line in ["Bearer t", "bearer   t", " BEARER\tt "] {
        assert_eq!(value(&[line]).as_deref(), Some("t"), "{line}");
    }
    for line in ["Basic dDp0", "Bearer", "Bearer ", "Bearert", ""] {
        assert_eq!(value(&[line]), None, "{line}");
    }
    assert_eq!(value(&["Basic dDp0", "Bearer t"]).as_deref(), Some("t"));
    assert_eq!(value(&["Bearer u", "Bearer t"]).as_deref(), Some("several"));
}

#[test]
fn cookies_are_read_over_all_lines() {
    let value = |lines: &[&str]| text(cookie(&headers("cookie", lines), "s"));
    assert_eq!(value(&["a=b; s=v; c=d"]).as_deref(), Some("v"));
    assert_eq!(value(&["a=b", "c=d;s = v "]).as_deref(), Some("v"));
    assert_eq!(value(&["s=\"v\""]).as_deref(), Some("v"));
    assert_eq!(value(&["s=%76"]).as_deref(), Some("v"));
    assert_eq!(value(&["s=a", "s=b"]).as_deref(), Some("several"));
    assert_eq!(value(&["S=v; ss=v; s", "s="]), None);
}

#[test]
fn methods_have_one_spelling() {
    assert_eq!(
        method(&"get".parse().unwrap()),
        PartValue::Made(SmallVec::from_slice(b"GET"))
    );
    assert_eq!(method(&Method::GET), PartValue::Sent(b"GET"));
    assert_eq!(method(&Method::HEAD), PartValue::Sent(b"GET"));
    assert_eq!(method(&"hEad".parse().unwrap()), PartValue::Sent(b"GET"));
    assert_eq!(method(&Method::POST), PartValue::Sent(b"POST"));
}

#[test]
fn only_what_has_to_be_decoded_is_copied() {
    assert!(matches!(
        query(Some("k=a+b-c"), "k"),
        Carried::One(PartValue::Sent(_))
    ));
    assert!(matches!(
        query(Some("k=a%20b"), "k"),
        Carried::One(PartValue::Made(_))
    ));
}

proptest! {
    #[test]
    fn every_spelling_of_a_query_value_is_one_value(
        value in "[a-z0-9+ ]{1,12}",
        escapes in prop::collection::vec(0_u8..3, 12),
    ) {
        let mut spelled = String::from("k=");
        for (byte, escape) in value.bytes().zip(escapes) {
            match (byte, escape) {
                (byte, 0) => spelled.push_str(&format!("%{byte:02x}")),
                (byte, 1) => spelled.push_str(&format!("%{byte:02X}")),
                (b' ', _) => spelled.push('+'),
                (byte, _) => spelled.push(char::from(byte)),
            }
        }
        let expected = value.replace(' ', "+");
        prop_assert_eq!(in_query(&spelled, "k"), Some(expected));
    }
}
