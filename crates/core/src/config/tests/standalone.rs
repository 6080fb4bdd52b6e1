//! Files that only limit, and what is said of those that would do more.

use super::super::{Config, parse_limits, render};
use super::env;

fn said(text: &str) -> String {
    let found = match parse_limits("limits.toml", text, &env) {
        Ok((_, warnings)) => warnings,
        Err(found) => found,
    };
    render::human(&found, false)
}

#[track_caller]
fn fine(text: &str) -> Config {
    assert_eq!(said(text), "");
    parse_limits("limits.toml", text, &env).unwrap().0
}

#[test]
fn whatever_no_route_names_has_the_default_limit() {
    let limits = fine(
        r#"
        [limit.default]
        rate = "100/min"
        [limit.login]
        rate = "5/min"
        [[route]]
        path = "/login"
        methods = ["POST"]
        limits = ["login"]
        "#,
    );
    let routes = limits.routes;
    let limited: Vec<(&str, &str)> = routes
        .iter()
        .map(|route| (&*route.name, &*route.limits[0].name))
        .collect();
    assert_eq!(limited, [("POST /login", "login"), ("default", "default")]);
}

#[test]
fn without_a_default_limit_the_rest_is_unlimited() {
    let limits = fine("[[route]]\npath = \"/login\"\nlimits = [\"5/min\"]\n");
    let routes = limits.routes;
    let counts: Vec<usize> = routes.iter().map(|route| route.limits.len()).collect();
    assert_eq!(counts, [1, 0]);
}

#[test]
fn a_route_that_takes_everything_leaves_no_rest() {
    let limits = fine("[[route]]\npath = \"/*\"\nlimits = [\"5/min\"]\n");
    assert_eq!(limits.routes.iter().count(), 1);
}

#[test]
fn what_a_proxy_needs_has_no_meaning_and_is_refused() {
    let text = r#"listen = ":8080"
[limit.default]
rate = "5/min"
[[route]]
path = "/a"
upstream = "http://127.0.0.1:3000"
[server]
workers = 2
[log]
decisions = "decisions.jsonl"
access = "off"
"#;
    let note = "note: the library only limits: the program around it listens, answers and logs\n";
    let said = said(text);
    for (key, line) in [
        ("listen", 1),
        ("route.upstream", 6),
        ("server", 7),
        ("log.access", 11),
    ] {
        let title = format!("error[T101]: `{key}` is a proxy's setting\n");
        let found = said.split_once(&title).map(|(_, rest)| rest);
        let at = found.and_then(|rest| rest.split_once(&format!("limits.toml:{line}:")));
        assert!(at.is_some_and(|(_, rest)| rest.contains(note)), "{said}");
    }
    assert_eq!(said.matches("error[").count(), 4, "{said}");
}

#[test]
fn upstreams_are_refused_however_they_are_written() {
    for upstream in [
        "upstream = \"http://127.0.0.1:3000\"",
        "[upstream.api]\nurl = \"http://127.0.0.1:3000\"",
    ] {
        let said = said(&format!("{upstream}\n[limit.default]\nrate = \"5/min\"\n"));
        assert!(said.contains("`upstream` is a proxy's setting"), "{said}");
    }
}

#[test]
fn a_file_that_only_limits_has_no_ports_and_no_timeouts() {
    let limit = "[limit.default]\nrate = \"5/min\"\n";
    for (text, key) in [
        (
            format!("proxy_protocol = \"off\"\n{limit}"),
            "proxy_protocol",
        ),
        (
            format!("{limit}[decide]\nlisten = \"127.0.0.1:81\"\n"),
            "decide",
        ),
        (
            format!("{limit}[[route]]\npath = \"/\"\nport = 80\n"),
            "route.port",
        ),
        (
            format!("{limit}[[route]]\npath = \"/\"\ntimeout = \"1s\"\n"),
            "route.timeout",
        ),
        (
            format!("{limit}[[descriptor]]\nmatch = {{ a = \"b\" }}\n"),
            "descriptor",
        ),
    ] {
        let said = said(&text);
        let expected = format!("error[T101]: `{key}` is a proxy's setting\n");
        assert!(said.contains(&expected), "{said}");
    }
}

#[test]
fn a_file_that_limits_nothing_is_refused() {
    let expected = "error[T104]: the file limits nothing\n";
    for text in [
        "",
        "[[route]]\npath = \"/a\"\n",
        "[limit.login]\nrate = \"5/min\"\n",
    ] {
        let said = said(text);
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn bodies_are_for_the_proxy() {
    let limit = "[limit.default]\nrate = \"5/min\"\n";
    for (text, expected) in [
        (
            format!("{limit}key = \"body:model\"\n"),
            "`body:model` is for the proxy",
        ),
        (
            format!("{limit}[usage.chat]\nformat = \"openai\"\n"),
            "`usage` is a proxy's setting",
        ),
        (
            format!("{limit}[prices]\n"),
            "`prices` is a proxy's setting",
        ),
        (
            format!("{limit}[[route]]\npath = \"/\"\nusage = \"openai\"\n"),
            "`route.usage` is a proxy's setting",
        ),
        (
            format!("{limit}[[route]]\npath = \"/\"\nsettle = \"response-json:cost\"\n"),
            "the library reads the head of an answer only",
        ),
    ] {
        let said = said(&text);
        assert!(said.contains(expected), "{said}");
        assert_eq!(said.matches("error[").count(), 1, "{said}");
    }
}
