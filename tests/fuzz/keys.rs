//! Whose budget a request is counted against: one value has one identity however it is carried, and
//! two values have two.

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tidegate::limit::Missing;
use tidegate::limit::key::{ApiKeySources, ApiKeys, Derived, Facts, HashSecret, Key, Part};
use tidegate::path::CanonicalPath;

use crate::{both, both_texts};

const SECRET: HashSecret = HashSecret::from_bytes([7; 32]);
const WORDS: &[&str] = &[
    "x-api-key: ",
    "X-A: ",
    "x-b: ",
    "authorization: ",
    "Bearer ",
    "bearer  ",
    "Basic ",
    "cookie: ",
    "k=",
    "s=",
    "; ",
    "\"",
    "\n",
    "&",
    "=",
    "%",
    "%41",
    "%0",
    "+",
    " ",
    "\t",
    ",",
    "a",
    "b",
    "A",
    "key",
    "{",
    "}",
    ":",
    "\u{e4}",
    "::ffff:1.2.3.4",
];
const KEYS: &[&[&str]] = &[
    &["api_key"],
    &["header:x-a"],
    &["query:k"],
    &["cookie:k"],
    &["header:x-a", "query:k"],
    &["api_key or header:x-b or cookie:s or ip"],
    &["path", "method", "host", "global"],
];
const MISSING: [Missing; 4] = [Missing::Ip, Missing::Deny, Missing::Skip, Missing::Shared];

fn derive(key: &[&str], missing: Missing, query: &str, headers: &HeaderMap) -> Derived {
    let sources = ["header:x-api-key", "bearer", "query:k", "cookie:k"];
    let facts = Facts {
        ip: "192.0.2.7".parse().unwrap(),
        api_key: &ApiKeys::trusting(ApiKeySources::parse(sources).unwrap()),
        standing: None,
        registered: None,
        method: &Method::GET,
        host: "h.example",
        path: &CanonicalPath::parse("/a/b").unwrap(),
        query: Some(query),
        headers,
        route: "r",
        params: &[],
        claims: None,
        tier: None,
        certificate: None,
        extensions: None,
        body: None,
    };
    let key = Key::parse(key.iter().copied()).unwrap();
    key.derive(&facts, missing, &SECRET)
}

/// The query, then a header for each line.
fn request(text: &[u8]) -> (String, Vec<(HeaderName, HeaderValue)>) {
    let mut lines = text.split(|byte| *byte == b'\n');
    let query = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let header = |line: &[u8]| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?;
        Some((name, value))
    };
    (query, lines.filter_map(header).collect())
}

#[test]
fn a_key_has_one_identity_however_it_is_carried() {
    bolero::check!(name = "keys")
        .with_max_len(96)
        .for_each(|input: &[u8]| {
            both(input, WORDS, check_request);
            both_texts(input, WORDS, check_value);
            both_texts(
                input,
                &["ip", "api_key", " or ", "header:", "path:", "x", ":"],
                |text| {
                    if let Ok(part) = Part::parse(text) {
                        assert_eq!(Part::parse(&part.to_string()), Ok(part), "{text:?}");
                    }
                    let _ = Key::parse(text.split(',')).map(|key| key.all().count());
                },
            );
        });
}

fn check_request(text: &[u8]) {
    let (query, lines) = request(text);
    let plain: HeaderMap = lines.iter().cloned().collect();
    // Every line twice, in the other order.
    let mut copied = HeaderMap::new();
    let cookies = |line: &&(HeaderName, HeaderValue)| line.0 == http::header::COOKIE;
    for (name, value) in lines
        .iter()
        .rev()
        .chain(lines.iter().filter(|line| !cookies(line)))
    {
        copied.append(name, value.clone());
    }
    for key in KEYS {
        for missing in MISSING {
            let derived = derive(key, missing, &query, &plain);
            assert_eq!(
                derived,
                derive(key, missing, &query, &copied),
                "{key:?} {lines:?}"
            );
            let same = derive(key, missing, &format!("&{query}&{query}"), &plain);
            assert_eq!(derived, same, "{key:?} {query:?}");
        }
    }
}

fn check_value(value: &str) {
    let none = HeaderMap::new();
    let by_query = |query: &str| derive(&["query:k"], Missing::Deny, query, &none);
    let escaped: String = value.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let sparing = value.bytes().map(|byte| match byte {
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        b' ' => "+".to_owned(),
        byte => format!("%{byte:02X}"),
    });
    let sparing: String = sparing.collect();
    let one = by_query(&format!("k={escaped}"));
    assert_eq!(one, by_query(&format!("a=b&k={sparing}&c")), "{value:?}");
    if !value.trim().is_empty() {
        assert!(matches!(one, Derived::Hash(_)), "{value:?}: {one:?}");
        assert_ne!(one, by_query(&format!("k={escaped}x")), "{value:?}");
    }
    // Parts never run into each other, wherever the border is.
    let Ok(whole) = HeaderValue::from_str(value.trim()) else {
        return;
    };
    let mut seen = Vec::new();
    for at in 1..whole.len() {
        let halves = [&whole.as_bytes()[..at], &whole.as_bytes()[at..]];
        if halves.iter().any(|half| half.trim_ascii() != *half) {
            continue;
        }
        let names = [
            HeaderName::from_static("x-a"),
            HeaderName::from_static("x-b"),
        ];
        let halves = halves.map(|half| HeaderValue::from_bytes(half).unwrap());
        let headers = names.into_iter().zip(halves).collect();
        let derived = derive(&["header:x-a", "header:x-b"], Missing::Deny, "", &headers);
        assert!(!seen.contains(&derived), "{value:?} at {at}");
        seen.push(derived);
    }
}
