//! A template's value for one request: as a header's value, or as a URL.

use std::fmt::Write as _;

use http::HeaderMap;
use http::header::COOKIE;

use super::{MAX_VALUE, Piece, Template, TemplateFacts, Variable};

/// The value would have more bytes than [`MAX_VALUE`]. The client is at fault, with what it sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Where in a URL a part stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before its query.
    Path,
    Query,
}

impl Template {
    /// Its value for a header: what was sent stands there as it was sent. It is empty if all its
    /// variables are, and it has no text of its own.
    pub fn fill(&self, facts: &TemplateFacts<'_>) -> Result<Vec<u8>, TooLong> {
        let mut value = Vec::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => value.extend_from_slice(text.as_bytes()),
                Piece::Variable(variable) => variable.write(&mut value, facts),
            }
            if value.len() > MAX_VALUE {
                return Err(TooLong);
            }
        }
        Ok(value)
    }

    /// Its value as a URL or a path: what was sent is escaped for the place where it stands.
    pub fn fill_url(&self, facts: &TemplateFacts<'_>) -> Result<String, TooLong> {
        let mut url = String::new();
        let mut place = Place::Path;
        let mut value = Vec::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => {
                    url.push_str(text);
                    if text.contains(['?', '#']) {
                        place = Place::Query;
                    }
                }
                Piece::Variable(variable) => {
                    value.clear();
                    variable.write(&mut value, facts);
                    variable.escape(&mut url, &value, place);
                }
            }
            if url.len() > MAX_VALUE {
                return Err(TooLong);
            }
        }
        // There was no query to stand behind it.
        if url.ends_with('?') {
            url.pop();
        }
        // To browsers `//name` is another host.
        let slashes = url.bytes().take_while(|byte| *byte == b'/').count();
        if slashes > 1 {
            url.drain(..slashes - 1);
        }
        Ok(url)
    }
}

impl Variable {
    fn write(&self, out: &mut Vec<u8>, facts: &TemplateFacts<'_>) {
        match self {
            Self::ClientIp => push(out, &facts.client.to_canonical().to_string()),
            Self::PeerIp => push(out, &facts.peer.to_canonical().to_string()),
            Self::Host => push(out, facts.host),
            Self::Path => push_path(out, facts),
            Self::Rest => {
                let rest = facts.route.path.rest_of(facts.path.as_str());
                push(out, rest);
                if !rest.is_empty() && facts.target.path().ends_with('/') {
                    out.push(b'/');
                }
            }
            Self::Uri => {
                push_path(out, facts);
                if let Some(query) = facts.target.query() {
                    out.push(b'?');
                    push(out, query);
                }
            }
            Self::Query => push(out, facts.target.query().unwrap_or_default()),
            Self::Method => push(out, facts.method.as_str()),
            // Names are the operator's, and may be of any script.
            Self::Route => push(out, &facts.route.name),
            Self::RequestId => push(out, facts.request_id),
            Self::Scheme => push(out, facts.scheme),
            Self::TlsSubject => push(out, facts.tls_subject.unwrap_or_default()),
            Self::Header(name) => {
                // HTTP/2 may have cookies come in several lines.
                let between = if *name == COOKIE { "; " } else { ", " };
                for (index, line) in facts.headers.get_all(name).iter().enumerate() {
                    push(out, if index == 0 { "" } else { between });
                    out.extend_from_slice(line.as_bytes());
                }
            }
            Self::QueryValue(name) => {
                let query = facts.target.query().unwrap_or_default().as_bytes();
                out.extend_from_slice(named(query.split(|byte| *byte == b'&'), name));
            }
            Self::Cookie(name) => out.extend_from_slice(cookie(facts.headers, name)),
            Self::PathParam(name) => {
                push(out, facts.route.path.param_of(name, facts.path.as_str()));
            }
        }
    }

    /// Writes what it stands for into a URL, so that it stays one part of it.
    fn escape(&self, url: &mut String, value: &[u8], place: Place) {
        // What is a piece of URL already has its escapes; elsewhere a `%` is a character.
        let (keep, escaped): (fn(u8) -> bool, bool) = match (self, place) {
            (Self::Host, Place::Path) => (is_of_host, false),
            (Self::Path | Self::Rest | Self::Uri | Self::PathParam(_), Place::Path) => {
                (is_of_url, true)
            }
            (Self::Query, Place::Query) => (is_of_url, true),
            (Self::Path | Self::Rest | Self::Uri, Place::Query) => (is_of_argument, false),
            (Self::QueryValue(_) | Self::Query, _) => (is_unreserved, true),
            _ => (is_unreserved, false),
        };
        let is_form = matches!(self, Self::QueryValue(_));
        let mut left = value;
        while let Some((&byte, rest)) = left.split_first() {
            let is_escape = matches!(
                rest,
                [high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit()
            );
            match byte {
                b'%' if escaped && is_escape => url.push('%'),
                // In a form a plus is a space.
                b'+' if is_form => url.push_str("%20"),
                byte if keep(byte) => url.push(char::from(byte)),
                byte => {
                    let _ = write!(url, "%{byte:02X}");
                }
            }
            left = rest;
        }
    }
}

fn push(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

fn push_path(out: &mut Vec<u8>, facts: &TemplateFacts<'_>) {
    let path = facts.path.as_str();
    push(out, path);
    if path != "/" && facts.target.path().ends_with('/') {
        out.push(b'/');
    }
}

/// The first value of this name in `name=value` pairs.
fn named<'r>(mut pairs: impl Iterator<Item = &'r [u8]>, name: &str) -> &'r [u8] {
    let value = pairs.find_map(|pair| {
        let rest = pair.trim_ascii().strip_prefix(name.as_bytes())?;
        rest.strip_prefix(b"=")
    });
    value.unwrap_or_default()
}

fn cookie<'r>(headers: &'r HeaderMap, name: &str) -> &'r [u8] {
    let lines = headers.get_all(COOKIE).iter();
    let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    named(pairs, name)
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn is_of_host(byte: u8) -> bool {
    is_unreserved(byte) || b"[]:".contains(&byte)
}

fn is_of_argument(byte: u8) -> bool {
    is_unreserved(byte) || byte == b'/'
}

/// What a path or a query may hold as it is.
fn is_of_url(byte: u8) -> bool {
    is_unreserved(byte) || b"/?:@!$&'()*+,;=[]".contains(&byte)
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue, Request};
    use proptest::prelude::*;

    use super::*;
    use crate::path::{CanonicalPath, Case};
    use crate::route::{CostSource, HostPattern, PathPattern, Redirect, Route, StatusSet, Target};

    /// A route of this path.
    fn route(path: &str) -> Route {
        Route {
            number: 0,
            name: "the route".into(),
            host: HostPattern::Any,
            path: PathPattern::parse(path).unwrap(),
            case: Case::Sensitive,
            methods: Vec::new(),
            headers: Vec::new(),
            target: Target::Upstream(0),
            affinity: None,
            limits: Vec::new(),
            cost: CostSource::Fixed(1),
            settle: None,
            refund: StatusSet::default(),
            timeout: None,
            strip_prefix: None,
            add_prefix: None,
            body_limit: None,
            headers_up: Vec::new(),
            headers_down: Vec::new(),
        }
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
            tls_subject: Some("CN=x"),
        })
    }

    fn filled(text: &str) -> String {
        let headers: &[(&str, &[u8])] = &[
            ("x-a", b"1"),
            ("x-a", b"2, 3"),
            ("cookie", b"b=5; a=\"6\""),
            ("cookie", b"a=7"),
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
    fn every_variable_has_its_value() {
        for (text, value) in [
            ("{client_ip} {peer_ip}", "192.0.2.1 10.0.0.1"),
            (
                "{scheme}://{host}{uri}",
                "https://a.example/u/9/x/y/?q=%0d%0a&p=1&p=2",
            ),
            ("{method} {path}", "GET /u/9/x/y/"),
            ("{rest}|{path:id}", "x/y/|9"),
            (
                "{query:q}|{query:p}|{query:x}|{query}",
                "%0d%0a|1||q=%0d%0a&p=1&p=2",
            ),
            ("{header:cookie}", "b=5; a=\"6\"; a=7"),
            ("{header:x-a}|{header:x-b}", "1, 2, 3|"),
            ("{cookie:a}|{cookie:b}", "\"6\"|5"),
            ("{route} {request_id} {tls_subject}", "the route 4f CN=x"),
            ("{{{host}}}", "{a.example}"),
        ] {
            assert_eq!(filled(text), value, "{text}");
        }
    }

    #[test]
    fn a_value_has_its_bound() {
        let fits = |length: usize| {
            let value = vec![b'a'; length];
            let template = Template::parse("{header:x-a}").unwrap();
            facts("/*", "/", &[("x-a", &value)], |facts| {
                template.fill(facts).is_ok()
            })
        };
        assert!(fits(MAX_VALUE));
        assert!(!fits(MAX_VALUE + 1));
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
            ("/{rest}", "/%2fevil.example/", "/evil.example/"),
            ("/{path}", "/evil.example", "/evil.example"),
            ("/new/{rest}?{query}", "/a?b=1&c=2", "/new/a?b=1&c=2"),
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
}
