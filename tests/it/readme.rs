//! What the README promises a client that is denied, beside what the quick start's proxy sends.

use crate::house::{Tidegate, Upstream};

fn page(name: &str) -> String {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(root.join(name)).unwrap()
}

/// A value, unless it differs from run to run: a slow machine has waited for a part of it.
fn lasting(name: &str, value: &str) -> String {
    let passing = [
        "date",
        "x-ratelimit-reset",
        "retry-after",
        "ratelimit",
        "content-length",
    ];
    match passing.contains(&name) {
        true => String::new(),
        false => value.to_owned(),
    }
}

/// Header lines in their order.
fn lines(head: &str) -> Vec<(String, String)> {
    let lines = head
        .lines()
        .skip(1)
        .map(|line| line.split_once(": ").unwrap());
    lines
        .map(|(name, value)| (name.to_owned(), lasting(name, value)))
        .collect()
}

#[test]
fn a_denial_is_what_the_readme_shows() {
    let readme = page("README.md");
    let (_, shown) = readme.split_once("```\nHTTP/1.1 429").unwrap();
    let (shown, _) = shown.split_once("\n```").unwrap();
    let (head, body) = shown.split_once("\n\n").unwrap();

    let upstream = Upstream::ok();
    let quick = page("proxy.toml");
    let (_, limits) = quick.split_once("[limit.default]").unwrap();
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[limit.default]{limits}",
        upstream.url()
    ));
    for _ in 0..10 {
        assert_eq!(proxy.get("/").status, 200);
    }
    let denied = proxy.get("/");
    assert_eq!(denied.status, 429);
    assert_eq!(lines(&denied.head), lines(head));

    let read = |text: &str| {
        let body: serde_json::Value = serde_json::from_str(text).unwrap();
        let members: Vec<String> = body.as_object().unwrap().keys().cloned().collect();
        let lasting =
            ["type", "title", "status", "violated-policies"].map(|name| body[name].clone());
        (members, lasting)
    };
    assert_eq!(read(&denied.text()), read(body));
}
