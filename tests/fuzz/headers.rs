//! Writing headers: whatever a client sends, what goes on holds no line more than was meant, nothing
//! of its hop, and only what we know of who it is.

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE, VIA};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, Version};
use tidegate::client::ClientIp;
use tidegate::config::Config;
use tidegate::path::CanonicalPath;
use tidegate::proxy::headers::{Peer, Scheme, check_framing, to_downstream, to_upstream};
use tidegate::route::template::{Template, TemplateFacts};
use tidegate::route::{RouteQuery, host_of};

use crate::both;

const WORDS: &[&str] = &[
    "\n",
    "connection: ",
    "close",
    "keep-alive",
    "upgrade",
    ", ",
    "te",
    "x-a",
    "host: ",
    "h.example",
    "transfer-encoding: ",
    "chunked",
    "content-length: ",
    "3",
    "upgrade: ",
    "websocket",
    "h2c",
    "x-forwarded-for: ",
    "10.0.0.1",
    "192.0.2.1",
    "[2001:db8::1]:80",
    "forwarded: ",
    "for=",
    "\"",
    "x-forwarded-proto: ",
    "x-forwarded-host: ",
    "https",
    "x-real-ip: ",
    "via: ",
    "1.1 x",
    "te: ",
    "trailers",
    "expect: ",
    "100-continue",
    "cookie: ",
    "a=b",
    "; ",
    "x-a: ",
    "x_a: ",
    "keep-alive: ",
    "proxy-connection: ",
    "/",
    "//e.example",
    "?q=%0d%0a",
    "&",
    "%0d%0ax: y",
    "http://",
    "\r",
    "\0",
    "\u{e4}",
    ":",
    " ",
    ";",
    "x-forwarded-for",
    "authorization",
    "content-length",
    "\t",
];
/// Every variable that holds something of the client's.
const TEMPLATE: &str =
    "{host}|{path}|{rest}|{uri}|{query}|{query:q}|{cookie:a}|{header:x-a}|{method}";

struct Stage {
    config: Config,
    filled: Template,
    away: Template,
    client_ip: ClientIp,
}

#[test]
fn heads_are_written_as_they_are_meant() {
    let text = "upstream = \"http://127.0.0.1:1\"\n[[route]]\npath = \"/*\"\n";
    let (config, _) =
        tidegate::config::parse("routes", text, &|_| None).unwrap_or_else(|_| panic!());
    let stage = Stage {
        config,
        filled: Template::parse(TEMPLATE).unwrap(),
        away: Template::parse("/{rest}{path}?{query}").unwrap(),
        client_ip: ClientIp {
            trusted: vec!["10.0.0.0/8".parse().unwrap()],
            ..ClientIp::default()
        },
    };
    bolero::check!(name = "headers")
        .with_max_len(96)
        .for_each(|input: &[u8]| both(input, WORDS, |bytes| check(&stage, bytes)));
}

/// The target, then a header for each line.
fn request(text: &[u8]) -> Option<Request<()>> {
    let mut lines = text.split(|byte| *byte == b'\n');
    let target = std::str::from_utf8(lines.next()?).ok()?;
    let mut request = Request::new(());
    *request.uri_mut() = format!("/{target}").parse::<Uri>().ok()?;
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?;
        request.headers_mut().try_append(name, value).ok()?;
    }
    Some(request)
}

fn check(stage: &Stage, text: &[u8]) {
    let Some(sent) = request(text) else {
        return;
    };
    check_client(stage, sent.headers());
    check_templates(stage, &sent);
    for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
        for trusted in [false, true] {
            let mut request = sent.clone();
            *request.version_mut() = version;
            let host = request.headers_mut().entry(HOST);
            host.or_insert(HeaderValue::from_static("h"));
            if check_framing(&request).is_ok() {
                check_upstream(request, trusted);
            }
        }
    }
    let mut response = Response::new(());
    *response.headers_mut() = sent.headers().clone();
    to_downstream(&mut response);
    let headers = response.headers();
    let option = headers.contains_key(UPGRADE).then_some("upgrade");
    let options: Vec<&HeaderValue> = headers.get_all(CONNECTION).iter().collect();
    assert_eq!(options, Vec::from_iter(option), "{sent:?}");
}

fn check_upstream(mut request: Request<()>, trusted: bool) {
    let sent = request.headers().clone();
    let ip = "192.0.2.9".parse().unwrap();
    let peer = Peer::new(ip, trusted, Scheme::Http);
    let mut aside = request.clone();
    let Ok(turned) = to_upstream(&mut request, &peer, ip, false) else {
        return;
    };
    assert!(turned.prerendered.is_none());
    // What names the client may be worded beside the fields, and is the same.
    let turned = to_upstream(&mut aside, &peer, ip, true).unwrap();
    if let Some(prerendered) = turned.prerendered {
        prerendered.insert_into(aside.headers_mut());
    }
    assert_eq!(aside.headers(), request.headers(), "{sent:?}");
    let headers = request.headers();
    let lines = |name: &str| {
        let all = headers.get_all(name).iter();
        all.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect::<Vec<_>>()
    };
    for hop in ["keep-alive", "proxy-connection"] {
        assert!(lines(hop).is_empty(), "{hop}: {sent:?}");
    }
    let options = lines("connection");
    let is_ours = |it: &String| matches!(it.as_str(), "upgrade" | "te");
    assert!(
        options.len() <= 1 && options.iter().all(is_ours),
        "{sent:?} {headers:?}"
    );
    // The last hop is the peer, by every name.
    let of_clients = lines("x-forwarded-for");
    let last = of_clients.last().expect("the peer is named");
    assert!(
        last.rsplit(", ").next() == Some("192.0.2.9"),
        "{sent:?} {headers:?}"
    );
    assert!(
        trusted || of_clients == ["192.0.2.9"],
        "{sent:?} {headers:?}"
    );
    assert!(
        lines("via")
            .last()
            .is_some_and(|via| via.contains("tidegate-")),
        "{headers:?}"
    );
    assert_eq!(
        headers.get_all(VIA).iter().count(),
        sent.get_all(VIA).iter().count() + 1
    );
    // Chunks are the connection's; a length and a host are the request's, whoever names them.
    assert!(!headers.contains_key(TRANSFER_ENCODING), "{sent:?}");
    for name in [CONTENT_LENGTH, HOST] {
        assert_eq!(
            headers.contains_key(&name),
            sent.contains_key(&name),
            "{sent:?}"
        );
    }
}

/// Nobody is who no proxy of ours has seen.
fn check_client(stage: &Stage, headers: &HeaderMap) {
    let stranger = "203.0.113.5".parse().unwrap();
    assert_eq!(stage.client_ip.find(stranger, headers), stranger);
    let walk = stage.client_ip.walk("10.0.0.1".parse().unwrap(), headers);
    assert_eq!(
        walk.client,
        stage.client_ip.find("10.0.0.1".parse().unwrap(), headers)
    );
    if let Some((last, before)) = walk.hops.split_last() {
        assert!(before.iter().all(|hop| hop.trusted), "{headers:?}");
        assert!(
            last.address.is_none_or(|address| address == walk.client),
            "{headers:?}"
        );
    }
}

fn check_templates(stage: &Stage, request: &Request<()>) {
    let Ok(path) = CanonicalPath::parse(request.uri().path()) else {
        return;
    };
    let host = request
        .headers()
        .get(HOST)
        .and_then(|value| value.to_str().ok());
    let Ok(host) = host_of(host.unwrap_or("h")) else {
        return;
    };
    let ask = RouteQuery {
        host: &host,
        path: &path,
        method: request.method(),
        headers: request.headers(),
        query: None,
        port: 0,
    };
    let found = stage.config.routes.find(&ask);
    let Some(found) = found else {
        return;
    };
    let facts = TemplateFacts {
        client: "192.0.2.7".parse().unwrap(),
        peer: "10.0.0.1".parse().unwrap(),
        host: &host,
        path: &path,
        target: request.uri(),
        method: request.method(),
        headers: request.headers(),
        route: found.route,
        request_id: "id",
        scheme: "https",
        protocol: "HTTP/1.1",
        ports: Default::default(),
        relay: None,
        connection: None,
        tls: None,
        max_value: tidegate_core::route::template::max_value(0),
    };
    if let Ok(value) = stage.filled.fill(&facts) {
        assert!(
            HeaderValue::from_bytes(&value).is_ok(),
            "{request:?}: {value:?}"
        );
    }
    if let Ok(url) = stage.away.fill_url(&facts) {
        assert!(
            url.starts_with('/') && !url.starts_with("//"),
            "{request:?}: {url:?}"
        );
        assert!(url.bytes().all(|byte| byte.is_ascii_graphic()), "{url:?}");
    }
}
