//! Values of templates for requests.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Request};
use proptest::prelude::*;

use super::*;
use crate::path::CanonicalPath;
use crate::route::{PathPattern, Redirect, Route};

/// A route of this path.
fn route(path: &str) -> Route {
    Route::of_path("the route", PathPattern::parse(path).unwrap())
}

/// What `look` makes of a request for `target` with these headers, at a route of `path`.
fn facts<T>(
    path: &str,
    target: &str,
    headers: &[(&str, &[u8])],
    look: impl FnOnce(&TemplateFacts<'_>) -> T,
) -> T {
    let mut request = Request::builder().uri(target);
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        request = request.header(name, HeaderValue::from_bytes(value).unwrap());
    }
    let request = request.body(()).unwrap();
    look(&TemplateFacts {
        client: "::ffff:192.0.2.1".parse().unwrap(),
        peer: "10.0.0.1".parse().unwrap(),
        host: "a.example",
        path: &CanonicalPath::parse(request.uri().path()).unwrap(),
        target: request.uri(),
        method: request.method(),
        headers: request.headers(),
        route: &route(path),
        request_id: "4f",
        scheme: "https",
        protocol: "HTTP/1.1",
        ports: Ports {
            peer: 40_000,
            local: 0,
        },
        relay: None,
        connection: Some(ConnectionFacts {
            requests: 7,
            age: Duration::from_secs(1),
        }),
        tls: Some(TlsFacts {
            version: "TLSv1.3",
            server_name: "a.example",
            ..TlsFacts::default()
        }),
        max_value: max_value(32 << 10),
    })
}

fn filled(text: &str) -> String {
    let headers: &[(&str, &[u8])] = &[
        ("x-a", b"1"),
        ("x-a", b"2, 3"),
        ("cookie", b"b=5; a=\"6\""),
        ("cookie", b"a=7"),
        ("host", b"a.example:8443"),
    ];
    let template = Template::parse(text).unwrap();
    facts(
        "/u/{id}/*",
        "/u//9/x/y/?q=%0d%0a&p=1&p=2",
        headers,
        |facts| String::from_utf8(template.fill(facts).unwrap()).unwrap(),
    )
}

#[test]
fn a_connection_tells_its_requests_and_its_age() {
    assert_eq!(filled("{connection_requests}"), "7");
    let template = Template::parse("{connection_requests} {connection_age}").unwrap();
    facts("/", "/", &[], |facts| {
        let time = || ResponseTime {
            took: Duration::from_millis(204),
            unix: Duration::ZERO,
        };
        let filled = |facts: &TemplateFacts<'_>| {
            let text = template.fill_late(facts).unwrap();
            let sent = SentResponse::default();
            text.fill(facts.headers, sent, time, |_| String::new())
        };
        assert_eq!(filled(facts), b"7 1.204");
        let described = TemplateFacts {
            connection: None,
            ..*facts
        };
        assert_eq!(filled(&described), b" ");
    });
}

#[test]
fn every_variable_has_its_value() {
    for (text, value) in [
        ("{client_ip} {peer_ip}", "192.0.2.1 10.0.0.1"),
        (
            "{scheme}://{host}{uri}",
            "https://a.example/u/9/x/y/?q=%0d%0a&p=1&p=2",
        ),
        ("{host}{is_request_port}{request_port}", "a.example:8443"),
        ("{method} {path}", "GET /u/9/x/y/"),
        ("{rest}|{path:id}", "x/y/|9"),
        (
            "{query:q}|{query:p}|{query:x}|{query}",
            "%0d%0a|1||q=%0d%0a&p=1&p=2",
        ),
        ("{header:cookie}", "b=5; a=\"6\"; a=7"),
        ("{header:x-a}|{header:x-b}", "1, 2, 3|"),
        ("{cookie:a}|{cookie:b}", "\"6\"|5"),
        (
            "{route} {request_id} {tls_version} {tls_verified}{tls_subject}",
            "the route 4f TLSv1.3 NONE",
        ),
        ("{{{host}}}", "{a.example}"),
    ] {
        assert_eq!(filled(text), value, "{text}");
    }
}

#[test]
fn a_dot_or_a_space_at_the_end_of_a_segment_stays() {
    for (text, value) in [
        ("{path}", "/u/J.R./x%20/"),
        ("{uri}", "/u/J.R./x%20/?q=."),
        ("{rest}|{path:id}", "x%20/|J.R."),
    ] {
        let template = Template::parse(text).unwrap();
        let filled = facts("/u/{id}/*", "/u/./J.R./x%20/?q=.", &[], |facts| {
            template.fill(facts).unwrap()
        });
        assert_eq!(filled, value.as_bytes(), "{text}");
    }
}

#[test]
fn parameters_of_a_segment_stay_in_a_path() {
    for (text, target, value) in [
        ("{uri}", "/u/9;v=1/x;w/?q", "/u/9;v=1/x;w/?q"),
        ("{uri}", "/u/9;v=1//x", "/u/9/x"),
        ("{uri}", "/u/9;v=1/%78", "/u/9/x"),
        ("{uri}", "/u/9/x;/./", "/u/9/x/"),
        ("{rest}", "/u/9;v=1/x;w/?q", "x;w/"),
        ("{rest}", "/u/9/x;w/y;z", "x;w/y;z"),
        ("{rest}", "/u/9;v=1/%78;w", "x"),
    ] {
        let template = Template::parse(text).unwrap();
        let filled = facts("/u/{id}/*", target, &[], |facts| {
            template.fill(facts).unwrap()
        });
        assert_eq!(String::from_utf8(filled).unwrap(), value, "{text} {target}");
    }
}

#[test]
fn a_group_of_a_path_is_found_as_routes_find_it() {
    for (path, target, value) in [
        ("regex:^/(?P<x>a b)/", "/a%20b", "a%20b"),
        ("regex:^/(?P<x>[^/]+)/", "/a%22%e9", "a%22%E9"),
        ("regex:^/(?P<x>.+)$", "/b/c:d", "b/c:d"),
    ] {
        let template = Template::parse("{path:x}").unwrap();
        let filled = facts(path, target, &[], |facts| template.fill(facts).unwrap());
        assert_eq!(String::from_utf8(filled).unwrap(), value, "{target}");
    }
}

#[test]
fn a_value_has_its_bound() {
    let fits = |length: usize, max_head_bytes: usize| {
        let value = vec![b'a'; length];
        let template = Template::parse("{header:x-a}").unwrap();
        let body = BodyTemplate::parse("{header:x-a}").unwrap();
        facts("/*", "/", &[("x-a", &value)], |facts| {
            let facts = TemplateFacts {
                max_value: max_value(max_head_bytes),
                ..*facts
            };
            let fits = template.fill(&facts).is_ok();
            assert_eq!(template.fill_url(&facts).is_ok(), fits);
            assert_eq!(template.fill_late(&facts).is_ok(), fits);
            assert_eq!(body.fill(&facts).is_ok(), fits);
            fits
        })
    };
    // Short heads do not make values shorter, and long ones make them longer.
    for (max_head_bytes, most) in [
        (8 << 10, MAX_VALUE),
        (32 << 10, MAX_VALUE),
        (128 << 10, 32 << 10),
    ] {
        assert!(fits(most, max_head_bytes));
        assert!(!fits(most + 1, max_head_bytes));
    }
}

fn url(to: &str, path: &str, target: &str) -> String {
    let to = Redirect::new(to, http::StatusCode::FOUND).unwrap();
    let headers: &[(&str, &[u8])] = &[("x-a", b"//b.example/?&%2f\xff")];
    facts(path, target, headers, |facts| {
        to.location(facts).unwrap().to_str().unwrap().to_owned()
    })
}

#[test]
fn a_part_of_a_url_stays_one() {
    for (to, target, place) in [
        (
            "https://{host}{uri}",
            "/a/?b=1&c",
            "https://a.example/a/?b=1&c",
        ),
        ("https://x.example{path}", "/a", "https://x.example/a"),
        ("{uri}", "//evil.example/%2e%2e", "/"),
        ("{path}", "//evil.example", "/evil.example"),
        ("/{rest}", "/%2fevil.example/", "/%2Fevil.example/"),
        (
            "https://x.example{uri}",
            "/a%2fb?c",
            "https://x.example/a%2Fb?c",
        ),
        ("{path}", "/a%2F", "/a%2F"),
        ("{path}", "/a%2Fb%5Cc", "/a/b/c"),
        ("/{path}", "/evil.example", "/evil.example"),
        ("/new/{rest}?{query}", "/a?b=1&c=2", "/new/a?b=1&c=2"),
        ("/new?c=d&{query}", "/a?b=1", "/new?c=d&b=1"),
        ("/new?c=d&{query}", "/a", "/new?c=d"),
        (
            "/login?next={uri}",
            "/a/b?c=1&d=2",
            "/login?next=/a/b%3Fc%3D1%26d%3D2",
        ),
        ("/login?next={path}", "/a%20b&c", "/login?next=/a%2520b%26c"),
        ("/{query:to}", "/?to=/b.example", "/%2Fb.example"),
        ("/x?a={query:to}", "/?to=1%262+3&z", "/x?a=1%262%203"),
        ("/{header:x-a}", "/", "/%2F%2Fb.example%2F%3F%26%252f%FF"),
    ] {
        assert_eq!(url(to, "/*", target), place, "{to} {target}");
    }
}

proptest! {
    /// Wherever a client is sent, it is to the host that the operator meant.
    #[test]
    fn no_request_chooses_the_host(
        target in "/([a-z./;:@%\\\\]|%2[ef]|%5c|//){0,12}(\\?[a-z=&/:@\\\\]{0,8})?",
        value in "[ -~]{0,12}",
    ) {
        let headers: &[(&str, &[u8])] = &[("x-a", value.as_bytes())];
        for to in ["{path}", "{uri}", "/{rest}{path}", "/{header:x-a}", "/{query:a}{uri}"] {
            let to = Redirect::new(to, http::StatusCode::FOUND).unwrap();
            let is_possible = target.parse::<http::Uri>().is_ok_and(|uri| {
                CanonicalPath::parse(uri.path()).is_ok()
            });
            if !is_possible {
                continue;
            }
            facts("/*", &target, headers, |facts| {
                let place = to.location(facts).unwrap();
                let place = place.to_str().unwrap();
                assert!(place.starts_with('/') && !place.starts_with("//"), "{place}");
                assert!(place.bytes().all(|byte| byte.is_ascii_graphic()), "{place}");
                assert!(!place.contains('\\'), "{place}");
            });
        }
    }
}
