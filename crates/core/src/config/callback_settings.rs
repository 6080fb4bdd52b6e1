//! `known` of `[api_key]` as a table: the service that is asked about API keys.

use std::net::IpAddr;
use std::time::Duration;

use super::tls::{self, ClientTls};
use super::traces::Endpoint;
use super::*;

/// The service that knows the API keys, and how long its answers hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyCallbackSettings {
    /// Its path may have a query.
    pub endpoint: Endpoint,
    /// How long a key stays known after an answer.
    pub ttl: Duration,
    /// How long a key stays unknown after an answer.
    pub ttl_unknown: Duration,
    /// How long a request waits for an answer.
    pub timeout: Duration,
    pub tls: ClientTls,
}

/// Endings of names that no resolver of the internet knows.
const PRIVATE_ENDINGS: [&str; 8] = [
    ".local",
    ".localhost",
    ".internal",
    ".intranet",
    ".lan",
    ".home.arpa",
    ".svc",
    ".cluster.local",
];

/// Reads the table. Without it, declares its keys.
pub(super) fn read(outer: &Section<'_>) -> Option<KeyCallbackSettings> {
    let value = outer.peek("known").map(|value| value.get_ref());
    let table = value.and_then(|value| value.as_table());
    let mut section = outer.inner("known", table, outer.key_span("known"));
    let url = section.parse("url", TextForm::new(Code::BadUrl, "a service's URL"), parse);
    if table.is_some() {
        section.require("url", "url = \"http://127.0.0.1:9000/verify\"");
    }
    let (tls, tls_span) = tls::read_client(&mut section, "callback-client");
    let settings = KeyCallbackSettings {
        endpoint: url.clone().unwrap_or_default(),
        ttl: section.duration_in_minutes("ttl", UP_TO_A_DAY),
        ttl_unknown: section.duration_in_minutes("ttl_unknown", UP_TO_A_DAY),
        timeout: section.duration("timeout", MS..=10 * SECOND),
        tls,
    };
    if let Some(endpoint) = &url {
        check_endpoint(&section, endpoint, tls_span);
    }
    section.finish();
    url.map(|_| settings)
}

/// Refuses to send API keys without TLS over a network that others may read.
fn check_endpoint(section: &Section<'_>, endpoint: &Endpoint, tls: Option<TextSpan>) {
    if !endpoint.secure && !is_private(&endpoint.host) {
        let message = format!("API keys would go to `{}` without TLS", endpoint.host);
        Diagnostic::new(Code::PlainCallback, message)
            .at(&section.value_span("url"), "this host may be anywhere")
            .help("write `https://`, or name a private address or a host of your network")
            .report_to(section.reader);
    }
    if let Some(span) = tls.filter(|_| !endpoint.secure) {
        contradiction("`api_key.known.tls` is for a service with TLS")
            .at(&span, "the URL is one without")
            .help("write `url = \"https://..\"`")
            .report_to(section.reader);
    }
    if !section.reader.surroundings.forwards {
        Diagnostic::new(
            Code::Contradiction,
            "only the proxy asks a service about keys",
        )
        .at(&section.span, "the library cannot ask")
        .help("name a file of keys: `known = \"keys.txt\"`")
        .report_to(section.reader);
    }
}

/// Whether a host is of this machine or of a private network: an address of one, or a name that
/// the internet does not have.
fn is_private(host: &str) -> bool {
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        Ok(IpAddr::V6(ip)) => {
            ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local()
        }
        Err(_) => {
            let mut endings = PRIVATE_ENDINGS.iter();
            !name.contains('.') || endings.any(|ending| name.ends_with(ending))
        }
    }
}

/// Parses `http://127.0.0.1:9000/verify` or `https://keys.example.com/v1/verify?for=api`.
fn parse(text: &str) -> Result<Endpoint, &'static str> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err("the scheme is missing; write for example `http://127.0.0.1:9000/verify`");
    };
    let secure = match scheme {
        "http" => false,
        "https" => true,
        _ => return Err("no such scheme; write `http://` or `https://`"),
    };
    let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(at);
    if authority.contains('@') {
        return Err("it carries no user; the API key itself is sent in `Authorization`");
    }
    if path.contains('#') {
        return Err("a part behind `#` is never sent; leave it out");
    }
    let (host, port) = address::host_and_port(authority, if secure { 443 } else { 80 })?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    let path = format!("{slash}{path}");
    match path.parse::<http::uri::PathAndQuery>() {
        Ok(_) => Ok(Endpoint {
            secure,
            host,
            port,
            path,
        }),
        Err(_) => Err("not a path; other characters are escaped as %XX"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_the_usual_port_and_may_have_a_query() {
        let read = |text| {
            let endpoint = parse(text).unwrap();
            (endpoint.to_string(), endpoint.path)
        };
        let pair = |url: &str, path: &str| (url.to_owned(), path.to_owned());
        assert_eq!(read("http://a:9/v?x=1"), pair("http://a:9", "/v?x=1"));
        assert_eq!(
            read("https://a.example"),
            pair("https://a.example:443", "/")
        );
        assert_eq!(read("http://[::1]?x"), pair("http://[::1]:80", "/?x"));
        for wrong in ["a/b", "ftp://a", "http://u:p@a/", "http://a/#b", "http:///"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn hosts_of_private_networks_are_told_from_others() {
        for host in [
            "127.0.0.1",
            "10.1.2.3",
            "192.168.0.9",
            "::1",
            "fd00::7",
            "localhost",
            "keys",
            "keys.internal",
            "keys.shop.svc.cluster.local",
        ] {
            assert!(is_private(host), "{host}");
        }
        for host in [
            "192.0.2.7",
            "2001:db8::1",
            "keys.example.com",
            "local.example",
        ] {
            assert!(!is_private(host), "{host}");
        }
    }
}
