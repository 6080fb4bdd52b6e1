//! `[headers] ietf`: both forms of the IETF's headers, read as the structured fields that they are.

use crate::house::{Answer, Client, Tidegate, Upstream};
use crate::support::free_port;

/// One element of a list: a string and its parameters. A parameter without a value is true.
type Element = (String, Vec<(String, Option<u64>)>);

/// Parses a list of strings with parameters (RFC 9651, section 4.2.1), as far as these headers may
/// use it: values are integers or true.
fn structured(text: &str) -> Vec<Element> {
    let mut rest = text;
    let mut list = Vec::new();
    loop {
        rest = rest.strip_prefix('"').expect("a string begins");
        let end = rest.find('"').expect("a string ends");
        let (name, after) = rest.split_at(end);
        assert!(!name.contains('\\') && name.bytes().all(|byte| (0x20..0x7f).contains(&byte)));
        rest = &after[1..];
        let mut params: Vec<(String, Option<u64>)> = Vec::new();
        while let Some(after) = rest.strip_prefix(';') {
            let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-.*".contains(c);
            let end = after.find(|c| !fits(c)).unwrap_or(after.len());
            let (key, after) = after.split_at(end);
            assert!(
                key.starts_with(|c: char| c.is_ascii_lowercase() || c == '*'),
                "{text}"
            );
            assert!(params.iter().all(|(known, _)| known != key), "{text}");
            let (value, after) = match after.strip_prefix('=') {
                None => (None, after),
                Some(after) if after.starts_with('"') => {
                    let end = after[1..].find('"').unwrap();
                    (None, &after[end + 2..])
                }
                Some(after) => {
                    let end = after.find(|c: char| !c.is_ascii_digit());
                    let (digits, after) = after.split_at(end.unwrap_or(after.len()));
                    assert!((1..=15).contains(&digits.len()), "{text}");
                    (Some(digits.parse().unwrap()), after)
                }
            };
            params.push((key.to_owned(), value));
            rest = after;
        }
        list.push((name.to_owned(), params));
        match rest.strip_prefix(", ") {
            Some(next) => rest = next,
            None => break,
        }
    }
    assert_eq!(rest, "", "{text}");
    list
}

fn keys(element: &Element) -> Vec<&str> {
    element.1.iter().map(|(key, _)| key.as_str()).collect()
}

fn param(element: &Element, key: &str) -> u64 {
    let found = element.1.iter().find(|(name, _)| name == key);
    found.unwrap().1.unwrap()
}

/// Its list in this header.
#[track_caller]
fn list(answer: &Answer, name: &str) -> Vec<Element> {
    structured(
        &answer
            .header(name)
            .unwrap_or_else(|| panic!("no {name}: {}", answer.head)),
    )
}

const LIMITS: &str = r#"
    [limit.user]
    rate = ["2/day", "100/month"]
    key  = ["api_key", "method"]
    [limit.all]
    rate = "1000/h"
    key  = "global"
    [limit.busy]
    concurrent = 9
    [api_key]
    unknown = "trust"
"#;

fn file(ietf: &str, upstream: &Upstream, more: &str) -> String {
    format!(
        "[headers]\nietf = {ietf}\n{LIMITS}{more}\n[upstream.app]\nservers = \"{}\"\n\
         [[route]]\npath = \"/moved\"\nredirect = {{ to = \"https://test/\", status = 308 }}\n\
         limits = [\"all\"]\n\
         [[route]]\npath = \"/*\"\nupstream = \"app\"\nlimits = [\"user\", \"all\", \"busy\"]\n",
        upstream.url()
    )
}

const KEY: &str = "X-Api-Key: one\r\n";

#[test]
fn the_next_form_is_told_by_answers_and_denials() {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&file("\"next\"", &upstream, ""));
    let first = proxy.get_with("/", KEY);
    assert_eq!(first.status, 200);
    proxy.get_with("/", KEY);
    let denied = proxy.get_with("/", KEY);
    assert_eq!(denied.status, 429);
    let names = ["user/d", "user/month", "all", "busy"];
    for (answer, left) in [(&first, 1), (&denied, 0)] {
        let policies = list(answer, "ratelimit-policy");
        let states = list(answer, "ratelimit");
        let partitions = list(answer, "ratelimit-partition");
        let named = |list: &[Element]| list.iter().map(|one| one.0.clone()).collect::<Vec<_>>();
        assert_eq!(named(&policies), names);
        assert_eq!(named(&partitions), names);
        let user = states.iter().find(|one| one.0 == "user/d").unwrap();
        assert_eq!(keys(user), ["a", "w", "c"]);
        assert_eq!((param(user, "a"), param(user, "c")), (left, 1));
        assert!(param(user, "w") > 86_000);
        assert_eq!(keys(&policies[0]), ["q", "w"]);
        assert_eq!(keys(&policies[3]), ["q", "qu"]);
        assert_eq!(keys(&partitions[0]), ["client_id", "method"]);
        assert_eq!(keys(&partitions[1]), ["client_id", "method"]);
        assert_eq!(keys(&partitions[2]), [""; 0]);
        assert_eq!(keys(&partitions[3]), ["tidegate-ip"]);
    }
}

#[test]
fn a_redirect_has_them_in_the_form_of_draft_10_alone() {
    let upstream = Upstream::ok();
    for (ietf, has) in [
        ("true", true),
        ("\"10\"", true),
        ("\"next\"", false),
        ("false", false),
    ] {
        let proxy = Tidegate::start(&file(ietf, &upstream, ""));
        let moved = proxy.get("/moved");
        assert_eq!(moved.status, 308);
        assert!(moved.header("x-ratelimit-limit").is_some());
        for name in ["ratelimit", "ratelimit-policy"] {
            assert_eq!(moved.header(name).is_some(), has, "{ietf}: {name}");
        }
        assert_eq!(moved.header("ratelimit-partition"), None);
    }
}

#[test]
fn draft_10_is_what_true_means() {
    let upstream = Upstream::ok();
    let answers = ["true", "\"10\""].map(|ietf| {
        let proxy = Tidegate::start(&file(ietf, &upstream, ""));
        let answer = proxy.get_with("/", KEY);
        assert_eq!(answer.header("ratelimit-partition"), None);
        let states = list(&answer, "ratelimit");
        assert_eq!(keys(&states[0]), ["r", "t"]);
        answer.header("ratelimit-policy")
    });
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn status_requests_decisions_and_scripts_have_the_same_form() {
    let upstream = Upstream::ok();
    let decide = format!("127.0.0.1:{}", free_port());
    let more = format!("[status]\npath = \"/rate_limit\"\n[decide]\nlisten = \"{decide}\"\n");
    let proxy = Tidegate::start(&file("\"next\"", &upstream, &more));
    let look = proxy.get_with("/rate_limit", KEY);
    assert_eq!(look.status, 200);
    let states = list(&look, "ratelimit");
    assert!(states.iter().all(|one| param(one, "c") == 0), "{states:?}");
    assert!(look.header("ratelimit-partition").is_some());
    let mut client = Client::to(decide.parse().unwrap());
    let decided = client.ask(format!(
        "GET /auth HTTP/1.1\r\nHost: test\r\nX-Forwarded-Method: GET\r\nX-Forwarded-Host: test\r\n\
         X-Forwarded-Uri: /\r\nX-Forwarded-For: 192.0.2.7\r\n{KEY}\r\n"
    ));
    assert_eq!(decided.status, 200, "{}", decided.head);
    assert_eq!(keys(&list(&decided, "ratelimit")[0]), ["a", "w", "c"]);
    let script = format!("{KEY}Origin: https://app.test\r\n");
    proxy.get_with("/", &script);
    let denied = proxy.get_with("/", &script);
    assert_eq!(denied.status, 429);
    let exposed = denied.header("access-control-expose-headers").unwrap();
    assert!(exposed.contains("RateLimit-Partition"), "{exposed}");
}
