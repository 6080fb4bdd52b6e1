//! The changes of heads between client and upstream.
//!
//! Pure. The proxy replaces what an untrusted client says about itself. It appends to what a
//! trusted proxy says. A client must never be able to remove a header that another proxy relies on.

mod check;
mod forwarded;
mod hop;
mod prefix;

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::LazyLock;

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderValue, TE, UPGRADE, VIA};
use http::uri::{PathAndQuery, Uri};
use http::{Request, Response, StatusCode, Version};
use memchr::memmem;

pub use crate::request_head::Scheme;
pub(super) use crate::request_head::are_twins;
pub(crate) use check::remove_odd_names;
pub use check::{RequestFault, check_coding, check_framing, prefer_target};
pub use forwarded::{Peer, PrerenderedHeaders, X_FORWARDED_PROTO, named_scheme, put_line};
use forwarded::{append, name_client};
pub use hop::keep_forwarding;
use hop::{HopFields, has_option, may_tunnel};
pub use prefix::{prepend, replace, restore, strip};

/// Headers that [`to_upstream`] adds, at most.
const ADDED: usize = 8;
/// How often a request may pass this process, because a route may lead to another of its hosts. A
/// request that comes more often is in a loop.
const MAX_PASSES: usize = 3;

/// This process in `Via`. Each process has another name, so that a chain of tidegates is no loop.
static PSEUDONYM: LazyLock<String> = LazyLock::new(|| {
    let random = RandomState::new().hash_one(std::process::id());
    format!("tidegate-{:08x}", random >> 32)
});
// Static, because all workers would write the reference count of a shared value.
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

fn passes(headers: &HeaderMap) -> usize {
    let ours = |line: &HeaderValue| memmem::find_iter(line.as_bytes(), PSEUDONYM.as_str()).count();
    headers.get_all(VIA).iter().map(ours).sum()
}

/// The facts about a request that was made ready for its upstream.
#[derive(Debug)]
pub struct UpstreamRequest {
    /// Whether it asks for a tunnel, and may have one.
    pub asks_upgrade: bool,
    pub has_host: bool,
    /// Whether an untrusted peer had named another client.
    pub is_forwarding_untrusted: bool,
    /// The headers that name the client, if they are not in the map.
    pub prerendered: Option<PrerenderedHeaders>,
}

/// Makes a client's request ready for its upstream: origin form, HTTP/1.1, no headers of the
/// client's connection, and headers that name the client, which `peer` is or speaks for. With
/// `may_prerender` the latter stay out of the map if no other proxy has written them.
pub fn to_upstream<B>(
    request: &mut Request<B>,
    peer: &Peer,
    client: IpAddr,
    may_prerender: bool,
) -> Result<UpstreamRequest, RequestFault> {
    let version = std::mem::replace(request.version_mut(), Version::HTTP_11);
    to_origin_form(request);
    let headers = request.headers_mut();
    if version == Version::HTTP_2 {
        hop::join_cookies(headers);
    }
    let seen = HopFields::in_request(headers, peer);
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
        ask_for_trailers(headers);
    }
    let host = headers.get(HOST);
    let host = host.filter(|_| may_prerender && !peer.trusted && !seen.via);
    let prerendered = host.map(|host| peer.lines(version, host));
    if prerendered.is_none() {
        headers.reserve(ADDED);
        name_client(headers, peer, client);
        headers.append(VIA, via_of(version));
    }
    Ok(UpstreamRequest {
        asks_upgrade: upgrade,
        has_host: seen.host,
        is_forwarding_untrusted: seen.forged,
        prerendered,
    })
}

/// Says that trailers are read (RFC 9110 section 6.5.1): servers may leave them out otherwise.
pub fn ask_for_trailers(headers: &mut HeaderMap) {
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers.insert(CONNECTION, HeaderValue::from_static("te"));
}

/// Makes an upstream's response ready for the client.
pub fn to_downstream<B>(response: &mut Response<B>) {
    let version = std::mem::replace(response.version_mut(), Version::HTTP_11);
    let status = response.status();
    let headers = response.headers_mut();
    let seen = HopFields::in_response(headers, status);
    // With too many options, only the known headers of the connection are removed.
    let _ = seen.remove(headers);
    // RFC 9110 section 7.8: an `Upgrade` is named in `Connection`.
    if status == StatusCode::SWITCHING_PROTOCOLS || seen.upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    if status == StatusCode::NO_CONTENT || status == StatusCode::SWITCHING_PROTOCOLS {
        headers.remove(CONTENT_LENGTH);
    }
    headers.append(VIA, via_of(version));
}

/// Closes the client's connection after a refused upgrade: its next bytes may not be a request.
pub fn close_after<B>(response: &mut Response<B>) {
    response
        .headers_mut()
        .append(CONNECTION, HeaderValue::from_static("close"));
}

/// Whether a request with an `Upgrade` asks for a protocol that may be tunnelled. HTTP/2 may not,
/// because its requests would not be counted.
fn wants_upgrade(version: Version, headers: &HeaderMap) -> bool {
    version == Version::HTTP_11
        && has_option(headers, "upgrade")
        && headers.get_all(UPGRADE).iter().all(may_tunnel)
}

/// Moves the host of an absolute target into `Host`.
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

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn peer(trusted: bool) -> Peer {
        Peer::new(ip(CLIENT), trusted, Scheme::Http)
    }

    fn sent(trusted: bool, lines: &[(&str, &str)]) -> HeaderMap {
        sent_by(&peer(trusted), CLIENT, lines)
    }

    /// What is sent of it: the same, whether what names the client is among the fields or not.
    fn sent_by(peer: &Peer, client: &str, lines: &[(&str, &str)]) -> HeaderMap {
        let fields = |aside| {
            let mut request = request(lines);
            let turned = to_upstream(&mut request, peer, ip(client), aside).unwrap();
            if let Some(prerendered) = turned.prerendered {
                let before = request.headers().len();
                prerendered.insert_into(request.headers_mut());
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

    /// Forged by the client: all but the members at the right of the header that names clients.
    const FORGED: [(&str, &str); 8] = [
        ("host", "a"),
        ("x-forwarded-for", "6.6.6.6"),
        ("x-forwarded-for", "203.0.113.1"),
        ("forwarded", "for=6.6.6.6, for=203.0.113.1;proto=https"),
        ("cf-connecting-ip", "203.0.113.1"),
        ("cf_connecting_ip", "6.6.6.6"),
        ("x-real-ip", "6.6.6.6"),
        ("x_real_ip", "6.6.6.6"),
    ];

    #[test]
    fn a_trusted_proxy_is_believed_only_in_the_header_that_names_clients() {
        let own = "for=203.0.113.1;host=a;proto=http";
        let appended = "for=6.6.6.6, for=203.0.113.1;proto=https, for=192.0.2.7;host=a;proto=http";
        let (chain, list) = ("203.0.113.1, 192.0.2.7", "6.6.6.6, 203.0.113.1, 192.0.2.7");
        for (header, list, forwarded) in [
            ("x-forwarded-for", list, own),
            ("forwarded", chain, appended),
            ("cf-connecting-ip", chain, own),
            ("x-real-ip", chain, own),
        ] {
            let peer = peer(true).naming_clients_by(&HeaderName::from_static(header));
            let headers = sent_by(&peer, "203.0.113.1", &FORGED);
            assert_eq!(all(&headers, "x-real-ip"), ["203.0.113.1"], "{header}");
            assert_eq!(all(&headers, "x-forwarded-for"), [list], "{header}");
            assert_eq!(all(&headers, "forwarded"), [forwarded], "{header}");
            assert_eq!(all(&headers, "x-forwarded-host"), ["a"], "{header}");
            assert!(!headers.contains_key("x_real_ip"), "{header}");
            let twin = headers.contains_key("cf_connecting_ip");
            assert_eq!(twin, header != "cf-connecting-ip");
        }
    }

    #[test]
    fn a_trusted_proxy_names_the_scheme() {
        let lines = [("host", "a"), ("x-forwarded-proto", "https")];
        let headers = sent_by(&peer(true), "2001:db8::1", &lines);
        assert_eq!(all(&headers, "x-forwarded-proto"), ["https"]);
        let forwarded = "for=\"[2001:db8::1]\";host=a;proto=https";
        assert_eq!(all(&headers, "forwarded"), [forwarded]);
    }

    #[test]
    fn an_untrusted_client_has_no_header_that_names_clients() {
        let header = HeaderName::from_static("cf-connecting-ip");
        let headers = sent_by(&peer(false).naming_clients_by(&header), CLIENT, &FORGED);
        assert!(!headers.contains_key("cf-connecting-ip"));
        assert!(!headers.contains_key("cf_connecting_ip"));
        assert!(sent(false, &FORGED).contains_key("cf-connecting-ip"));
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
        let peer = peer(false);
        assert_eq!(
            to_upstream(&mut request, &peer, ip(CLIENT), true).map(|_| ()),
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
            let peer = peer(false);
            to_upstream(&mut request, &peer, ip(CLIENT), true).unwrap();
            assert_eq!(request.uri().to_string(), want);
            assert_eq!(request.headers()["host"], "a.example");
        }
    }

    #[test]
    fn a_request_in_a_loop_is_found_and_a_chain_of_proxies_is_none() {
        let peer = peer(false);
        let mut request = request(&[("host", "a"), ("via", "1.1 tidegate-0, 1.1 other")]);
        for _ in 0..MAX_PASSES {
            to_upstream(&mut request, &peer, ip(CLIENT), true).unwrap();
        }
        let looped = to_upstream(&mut request, &peer, ip(CLIENT), true);
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
        for (protocol, stays) in [("websocket", true), ("h2,h2c", false)] {
            let headers = answered(200, &[("connection", "Upgrade"), ("upgrade", protocol)]);
            assert_eq!(headers.contains_key("upgrade"), stays, "{protocol}");
            assert_eq!(headers.contains_key("connection"), stays, "{protocol}");
        }
        assert!(answered(426, &[("upgrade", "websocket")]).contains_key("upgrade"));
        assert!(answered(304, &[("content-length", "9")]).contains_key("content-length"));
    }
}
