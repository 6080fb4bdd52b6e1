//! What changes in a head on its way through.
//!
//! Pure functions over a message's head. What an untrusted client says about itself is replaced by
//! what we know; a proxy that we trust is believed, and we append to what it says. This file must
//! never let a client remove a header that somebody between us and the upstream relies on.

mod check;
mod hop;
mod naming;
mod peer;
mod prefix;
mod prerendered;

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderValue, TE, UPGRADE, VIA};
use http::uri::{PathAndQuery, Uri};
use http::{Request, Response, StatusCode, Version};
use memchr::memmem;

pub use crate::request_head::Scheme;
pub use check::{RequestFault, check_coding, check_framing, prefer_target};
pub(super) use hop::are_twins;
use hop::{HopFields, has_option};
pub use naming::scheme;
use naming::{append, name_client, told};
pub use peer::Peer;
pub use prefix::{prepend, strip};
pub use prerendered::{PrerenderedHeaders, put_line};

/// Headers that [`to_upstream`] adds at most.
const ADDED: usize = 8;
/// How often a request may pass this process. A route to another of our own hosts is odd but
/// possible; what comes back more often is in a loop.
const MAX_PASSES: usize = 3;

/// This process in `Via`. The name is different in each, so that a chain of tidegates is no loop.
static PSEUDONYM: LazyLock<String> = LazyLock::new(|| {
    let random = RandomState::new().hash_one(std::process::id());
    format!("tidegate-{:08x}", random >> 32)
});
// Made once and never freed: counting references to them would be a line of memory that all workers
// write, twice for each request.
static VIA_1_0: LazyLock<HeaderValue> = LazyLock::new(|| via("1.0"));
static VIA_1_1: LazyLock<HeaderValue> = LazyLock::new(|| via("1.1"));
static VIA_2: LazyLock<HeaderValue> = LazyLock::new(|| via("2.0"));

fn via(version: &str) -> HeaderValue {
    HeaderValue::from_static(format!("{version} {}", *PSEUDONYM).leak())
}

fn via_of(version: Version) -> HeaderValue {
    match version {
        Version::HTTP_10 => VIA_1_0.clone(),
        Version::HTTP_2 => VIA_2.clone(),
        _ => VIA_1_1.clone(),
    }
}

/// How often this process stands in the request's `Via`.
fn passes(headers: &HeaderMap) -> usize {
    let ours = |line: &HeaderValue| memmem::find_iter(line.as_bytes(), PSEUDONYM.as_str()).count();
    headers.get_all(VIA).iter().map(ours).sum()
}

/// What a client's request became.
#[derive(Debug)]
pub struct Turned {
    /// Whether it asks for a tunnel that it may have.
    pub upgrade: bool,
    /// Whether it names the host it asks for.
    pub names_host: bool,
    /// Whether it spoke for others, which its peer may not.
    pub forged: bool,
    /// What names its client, where that is not among its fields.
    pub beside: Option<PrerenderedHeaders>,
}

/// Makes of a client's request the one that its upstream gets: in origin form and HTTP/1.1,
/// without what concerned the client's connection only, and with what we know of the client. That
/// is worded `beside` the fields if it may, and if nobody before us has begun to say it.
pub fn to_upstream<B>(
    request: &mut Request<B>,
    peer: &Peer,
    beside: bool,
) -> Result<Turned, RequestFault> {
    let version = std::mem::replace(request.version_mut(), Version::HTTP_11);
    to_origin_form(request);
    let headers = request.headers_mut();
    if version == Version::HTTP_2 {
        hop::join_cookies(headers);
    }
    let seen = HopFields::in_request(headers, peer.trusted);
    if seen.via && passes(headers) >= MAX_PASSES {
        return Err(RequestFault::Loop);
    }
    let upgrade = seen.upgrade && wants_upgrade(version, headers);
    if seen.upgrade && !upgrade {
        headers.remove(UPGRADE);
    }
    seen.remove(headers)?;
    if upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    } else if seen.te_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    let host = headers.get(HOST);
    let beside = host.filter(|_| beside && !peer.trusted && !seen.via);
    let beside =
        beside.map(|host| peer.lines(version, host, |said| told(version, peer, host, said)));
    if beside.is_none() {
        headers.reserve(ADDED);
        name_client(headers, peer);
        headers.append(VIA, via_of(version));
    }
    Ok(Turned {
        upgrade,
        names_host: seen.host,
        forged: seen.forged,
        beside,
    })
}

/// Makes of an upstream's response the one that the client gets.
pub fn to_downstream<B>(response: &mut Response<B>) {
    let version = std::mem::replace(response.version_mut(), Version::HTTP_11);
    let status = response.status();
    let headers = response.headers_mut();
    let seen = HopFields::in_response(headers, status);
    // A response whose options we cannot follow is passed on without the headers we know.
    let _ = seen.remove(headers);
    if status == StatusCode::SWITCHING_PROTOCOLS {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    if status == StatusCode::NO_CONTENT || status == StatusCode::SWITCHING_PROTOCOLS {
        headers.remove(CONTENT_LENGTH);
    }
    headers.append(VIA, via_of(version));
}

/// Has the client's connection closed after this response: what else came on it cannot be trusted
/// to be a request. Owed to whoever asked for an upgrade and was refused.
pub fn close_after<B>(response: &mut Response<B>) {
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
}

/// Whether a request with an `Upgrade` asks to leave HTTP for a protocol that may be tunnelled.
/// HTTP/2 may not: its requests would pass inside the tunnel, unseen and uncounted.
fn wants_upgrade(version: Version, headers: &HeaderMap) -> bool {
    version == Version::HTTP_11
        && has_option(headers, "upgrade")
        && !headers.get_all(UPGRADE).iter().any(|value| {
            value.to_str().map_or(true, |protocols| {
                protocols.split(',').map(str::trim).any(|protocol| {
                    let name = protocol.split('/').next().unwrap_or_default();
                    ["h2", "h2c", "http", "tls", ""]
                        .iter()
                        .any(|refused| name.eq_ignore_ascii_case(refused))
                })
            })
        })
}

/// An upstream is asked for a path, also when the client named the host in its target.
fn to_origin_form<B>(request: &mut Request<B>) {
    let Some(authority) = request.uri().authority() else {
        return;
    };
    if let Ok(host) = HeaderValue::try_from(authority.as_str()) {
        request.headers_mut().insert(HOST, host);
    }
    let root = PathAndQuery::from_static("/");
    let path = match request.uri().path_and_query() {
        Some(path) if path.as_str().starts_with('/') => path.clone(),
        // It prints the `/` that `http://host?query` leaves out.
        Some(query) => PathAndQuery::try_from(query.to_string()).unwrap_or(root),
        None => root,
    };
    *request.uri_mut() = Uri::from(path);
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    const CLIENT: &str = "192.0.2.7";

    fn request(lines: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().uri("/a?b");
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    /// What is sent of it: the same, whether what names the client is among the fields or not.
    fn sent(trusted: bool, lines: &[(&str, &str)]) -> HeaderMap {
        let peer = Peer::new(CLIENT.parse().unwrap(), trusted, Scheme::Http);
        let fields = |aside| {
            let mut request = request(lines);
            let turned = to_upstream(&mut request, &peer, aside).unwrap();
            if let Some(beside) = turned.beside {
                let before = request.headers().len();
                beside.insert_into(request.headers_mut());
                // Each of them only there.
                assert_eq!(request.headers().len(), before + 6);
            }
            request.headers().clone()
        };
        let all = fields(false);
        assert_eq!(fields(true), all);
        assert_eq!(fields(true), all);
        all
    }

    fn all<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
        headers
            .get_all(name)
            .iter()
            .map(|value| value.to_str().unwrap())
            .collect()
    }

    #[test]
    fn an_untrusted_client_is_named_by_us_alone() {
        let headers = sent(
            false,
            &[
                ("host", "a.example"),
                ("x-forwarded-for", "203.0.113.1"),
                ("x-forwarded-for", "203.0.113.2"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-host", "evil"),
                ("x-forwarded-port", "443"),
                ("x_forwarded_for", "203.0.113.3"),
                ("x_real_ip", "203.0.113.3"),
                ("x-real-ip", "203.0.113.3"),
                ("forwarded", "for=203.0.113.1"),
                ("x-forward", "kept"),
            ],
        );
        assert_eq!(all(&headers, "x-forwarded-for"), [CLIENT]);
        assert_eq!(all(&headers, "x-real-ip"), [CLIENT]);
        assert_eq!(all(&headers, "x-forwarded-proto"), ["http"]);
        assert_eq!(all(&headers, "x-forwarded-host"), ["a.example"]);
        assert_eq!(
            all(&headers, "forwarded"),
            ["for=192.0.2.7;host=a.example;proto=http"]
        );
        assert_eq!(all(&headers, "x-forward"), ["kept"]);
        for name in ["x-forwarded-port", "x_forwarded_for", "x_real_ip"] {
            assert!(!headers.contains_key(name), "{name}");
        }
    }

    #[test]
    fn a_trusted_proxy_is_believed_and_appended_to() {
        let headers = sent(
            true,
            &[
                ("host", "a"),
                ("x-forwarded-for", "203.0.113.1"),
                ("x-forwarded-for", "203.0.113.2"),
                ("x-forwarded-proto", "https"),
                ("forwarded", "for=203.0.113.1;proto=https"),
                ("x-real-ip", "203.0.113.1"),
            ],
        );
        assert_eq!(
            all(&headers, "x-forwarded-for"),
            ["203.0.113.1, 203.0.113.2, 192.0.2.7"]
        );
        assert_eq!(all(&headers, "x-forwarded-proto"), ["https"]);
        assert_eq!(all(&headers, "x-forwarded-host"), ["a"]);
        assert_eq!(all(&headers, "x-real-ip"), ["203.0.113.1"]);
        assert_eq!(
            all(&headers, "forwarded"),
            ["for=203.0.113.1;proto=https, for=192.0.2.7;host=a;proto=http"]
        );
    }

    #[test]
    fn what_concerns_one_connection_stays_on_it() {
        let headers = sent(
            false,
            &[
                ("host", "a"),
                ("connection", "close, X-Mine"),
                ("connection", "other"),
                ("x-mine", "1"),
                ("other", "1"),
                ("keep-alive", "5"),
                ("proxy-connection", "keep-alive"),
                ("proxy-authorization", "Basic eA=="),
                ("proxy", "http://evil"),
                ("transfer-encoding", "chunked"),
                ("te", "gzip"),
                ("expect", "100-continue"),
                ("upgrade", "websocket"),
                ("x-yours", "1"),
            ],
        );
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        let ours = [
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-proto",
            "x-real-ip",
        ];
        let mut want = vec!["forwarded", "host", "via", "x-yours"];
        want.extend(ours);
        want.sort_unstable();
        assert_eq!(left, want);
    }

    #[test]
    fn nobody_can_name_away_what_others_rely_on() {
        let named = "host, content-length, authorization, cookie, x-forwarded-for, via, forwarded, \
                     x-forwarded-client-cert, x-request-id, trailer";
        let lines = [
            ("connection", named),
            ("host", "a"),
            ("content-length", "3"),
            ("authorization", "Bearer x"),
            ("cookie", "a=b"),
            ("x-forwarded-for", "203.0.113.1"),
            ("x-forwarded-client-cert", "c"),
            ("x-request-id", "r"),
            ("trailer", "t"),
        ];
        let headers = sent(true, &lines);
        for (name, _) in &lines[1..] {
            assert!(headers.contains_key(*name), "{name}");
        }
    }

    #[test]
    fn options_are_bounded() {
        let many = vec!["x"; 40].join(",");
        let mut request = request(&[("host", "a"), ("connection", &many)]);
        let peer = Peer::new(CLIENT.parse().unwrap(), false, Scheme::Http);
        assert_eq!(
            to_upstream(&mut request, &peer, true).map(|_| ()),
            Err(RequestFault::ConnectionOptions)
        );
    }

    #[test]
    fn trailers_are_asked_for_on_behalf_of_clients_that_take_them() {
        let headers = sent(
            false,
            &[("host", "a"), ("te", "gzip, Trailers;q=1, trailers")],
        );
        assert_eq!(all(&headers, "te"), ["trailers"]);
        assert_eq!(all(&headers, "connection"), ["te"]);
    }

    #[test]
    fn an_upgrade_passes_on_unless_it_is_to_http_2() {
        let upgrade = |protocols| {
            [
                ("connection", "keep-alive, Upgrade"),
                ("upgrade", protocols),
            ]
        };
        for refused in ["h2c", "websocket, H2C", "HTTP/2.0", "TLS/1.0", ""] {
            assert!(
                !sent(false, &upgrade(refused)).contains_key("upgrade"),
                "{refused}"
            );
        }
        let unasked = sent(false, &[("upgrade", "websocket")]);
        assert!(!unasked.contains_key("upgrade"));
        let headers = sent(false, &upgrade("websocket"));
        assert_eq!(all(&headers, "upgrade"), ["websocket"]);
        assert_eq!(all(&headers, "connection"), ["upgrade"]);
    }

    #[test]
    fn an_upstream_is_asked_for_a_path() {
        for (target, want) in [
            ("http://a.example/x?y", "/x?y"),
            ("http://a.example", "/"),
            ("http://a.example?q", "/?q"),
        ] {
            let mut request = request(&[]);
            *request.uri_mut() = target.parse().unwrap();
            let peer = Peer::new(CLIENT.parse().unwrap(), false, Scheme::Http);
            to_upstream(&mut request, &peer, true).unwrap();
            assert_eq!(request.uri().to_string(), want);
            assert_eq!(request.headers()["host"], "a.example");
        }
    }

    #[test]
    fn a_request_in_a_loop_is_found_and_a_chain_of_proxies_is_none() {
        let peer = Peer::new(CLIENT.parse().unwrap(), false, Scheme::Http);
        let mut request = request(&[("host", "a"), ("via", "1.1 tidegate-0, 1.1 other")]);
        for _ in 0..MAX_PASSES {
            to_upstream(&mut request, &peer, true).unwrap();
        }
        let looped = to_upstream(&mut request, &peer, true);
        assert_eq!(looped.map(|_| ()), Err(RequestFault::Loop));
    }

    fn answered(status: u16, lines: &[(&str, &str)]) -> HeaderMap {
        let mut response = Response::builder().status(status);
        for (name, value) in lines {
            response = response.header(*name, *value);
        }
        let mut response = response.body(()).unwrap();
        to_downstream(&mut response);
        response.headers().clone()
    }

    #[test]
    fn a_response_loses_what_concerned_the_upstream_connection() {
        let headers = answered(
            200,
            &[
                ("connection", "close, x-hop"),
                ("x-hop", "1"),
                ("keep-alive", "timeout=5"),
                ("transfer-encoding", "chunked"),
                ("upgrade", "h2c"),
                ("proxy-authenticate", "Basic"),
                ("set-cookie", "a"),
                ("set-cookie", "b"),
                ("trailer", "x-sum"),
                ("server", "s"),
            ],
        );
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["server", "set-cookie", "trailer", "via"]);
        assert_eq!(all(&headers, "set-cookie"), ["a", "b"]);
    }

    #[test]
    fn an_agreed_upgrade_says_so_and_204_has_no_length() {
        let headers = answered(101, &[("connection", "Upgrade"), ("upgrade", "websocket")]);
        assert_eq!(all(&headers, "connection"), ["upgrade"]);
        assert_eq!(all(&headers, "upgrade"), ["websocket"]);
        assert!(!answered(204, &[("content-length", "0")]).contains_key("content-length"));
        assert!(answered(426, &[("upgrade", "websocket")]).contains_key("upgrade"));
        assert!(answered(304, &[("content-length", "9")]).contains_key("content-length"));
    }
}
