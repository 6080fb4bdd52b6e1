//! Advice for keys and texts as other programs write them.

use super::*;

fn help(text: &str) -> Option<String> {
    let table = DeTable::parse(text).unwrap();
    let (name, found) = table.get_ref().iter().next().unwrap();
    key_help("", name.get_ref(), found.get_ref())
}

#[test]
fn a_section_is_named_as_it_is_written() {
    for (text, expected) in [
        ("[limits.default]", "without `s`: `[limit.default]`"),
        ("[limits.login]", "without `s`: `[limit.login]`"),
        ("[limits]\nrate = 1", "without `s`: `[limit.default]`"),
        ("limits = [\"a\"]", "is a setting of `[[route]]`"),
        ("[[routes]]", "did you mean `[[route]]`?"),
        ("[upstreams.api]", "did you mean `[upstream.api]`?"),
        ("[bypasses]", "did you mean `[[bypass]]`?"),
        ("[stor]", "did you mean `[store]`?"),
        ("ignore_case = true", "`case = \"insensitive\"`"),
    ] {
        let help = help(text).unwrap_or_default();
        assert!(help.contains(expected), "{text}: {help}");
    }
    assert_eq!(help("upsteam = \"http://a\""), None);
    assert_eq!(help("[zzz]"), None);
}

#[test]
fn words_for_true_and_false_are_understood() {
    let read = |text: &str| {
        let table = DeTable::parse(text).unwrap();
        let value = table
            .get_ref()
            .iter()
            .next()
            .map(|(_, value)| intended_boolean(value.get_ref()));
        value.unwrap()
    };
    assert_eq!(read("a = \"yes\""), Some(true));
    assert_eq!(read("a = \" Off\""), Some(false));
    assert_eq!(read("a = 1"), Some(true));
    assert_eq!(read("a = 2"), None);
    assert_eq!(read("a = \"maybe\""), None);
}

#[test]
fn rates_in_other_ways_of_writing() {
    for (text, expected) in [
        ("100 per minute", Some("write `100/min`")),
        ("100r/s", Some("write `100/s`")),
        ("100 requests/hour", Some("write `100/h`")),
        ("10,000/day", Some("write `10000/d`")),
        ("10k/day", Some("write `10000/d`")),
        ("0.5/s", Some("write `1/2s`")),
        ("1000 per month", Some("write `1000/month`")),
        ("100/m", Some("write `100/min`")),
        ("min/100", Some("write `100/min`")),
        ("100", Some("add the window: `100/min` or `100/s`")),
        (
            "10/s, 9/h",
            Some("write several rates as a list: `[\"10/s\", \"9/h\"]`"),
        ),
        ("-5/min", None),
        ("fast", None),
        ("", None),
    ] {
        assert_eq!(rate(text).as_deref(), expected, "{text}");
    }
}

#[test]
fn keys_in_other_ways_of_writing() {
    for (text, expected) in [
        ("header: x-user", "did you mean `header:x-user`?"),
        ("header :x-user", "did you mean `header:x-user`?"),
        ("header x-user", "did you mean `header:x-user`?"),
        ("header=x-user", "did you mean `header:x-user`?"),
        ("query: user or ip", "did you mean `query:user or ip`?"),
        (
            "api_key or header: x-user",
            "did you mean `api_key or header:x-user`?",
        ),
        (
            "ip and path",
            "write parts that are counted together as a list: `[\"ip\", \"path\"]`",
        ),
    ] {
        assert_eq!(key(text).as_deref(), Some(expected), "{text}");
    }
    assert_eq!(key("header: X Api"), None);
    assert_eq!(key("header:"), None);
}

#[test]
fn patterns_in_other_ways_of_writing() {
    for (text, expected) in [
        ("login", Some("write `/login`")),
        ("/api/**", Some("write `/api/*`")),
        ("/api/*/users", Some("write `/api/{name}/users`")),
        ("example.com:80", Some("leave the port out: `example.com`")),
        (
            "https://example.com",
            Some("leave the scheme out: `example.com`"),
        ),
        ("/a/{b", Some("write `/a/{b}`")),
        ("/a/b}/c", Some("write `/a/{b}/c`")),
        ("/a/:b", Some("write `/a/{b}`")),
        ("/a/<int:b>", Some("write `/a/{b}`")),
        ("/a/[b]", Some("write `/a/{b}`")),
        ("/login.", Some("write `/login`")),
        ("/a%3Bb/c", Some("write `/a/c`")),
    ] {
        assert_eq!(pattern(text).as_deref(), expected, "{text}");
    }
}
