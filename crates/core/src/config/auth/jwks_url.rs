//! `jwks_url` of `[auth.jwt]`: the server of the issuer's keys.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::config::tls;
use crate::config::*;
use crate::limit::key::jwt::{FetchedKeys, JwtKeys};

/// The settings that mean nothing without a URL.
const WITH_URL: [&str; 3] = ["refresh", "max_stale", "tls"];

/// `jwks_url`, with the keys that were fetched.
#[derive(Clone, Debug)]
pub struct JwksSettings {
    pub endpoint: Endpoint,
    /// The time between two fetches.
    pub refresh: Duration,
    /// How long keys are believed while they cannot be fetched.
    pub max_stale: Duration,
    pub tls: ClientTls,
    pub keys: Arc<FetchedKeys>,
}

impl JwksSettings {
    pub(super) fn keys(&self) -> JwtKeys {
        JwtKeys::Fetched {
            keys: Arc::clone(&self.keys),
            max_stale_s: self.max_stale.as_secs(),
        }
    }

    /// Whether a fetch with these settings does the same.
    pub fn is_same(&self, other: &JwksSettings) -> bool {
        self.endpoint == other.endpoint
            && (self.refresh, self.max_stale) == (other.refresh, other.max_stale)
            && self.tls == other.tls
            && Arc::ptr_eq(&self.keys, &other.keys)
    }
}

impl Config {
    /// Keeps the keys that the running configuration has fetched from the same URL.
    pub fn keep_fetched_keys(&mut self, running: &Config) {
        let (Some(new), Some(old)) = (&mut self.jwks, &running.jwks) else {
            return;
        };
        if new.endpoint != old.endpoint {
            return;
        }
        let new = Arc::make_mut(new);
        new.keys = Arc::clone(&old.keys);
        if let Some(jwt) = &mut self.jwt {
            jwt.keys = new.keys();
        }
    }
}

pub(super) fn read(section: &mut Section<'_>) -> Option<JwksSettings> {
    let form = TextForm::new(Code::BadUrl, "the URL of keys");
    let endpoint = section.parse("jwks_url", form, parse_url);
    let refresh = section.duration_in_minutes("refresh", 100 * MS..=7 * DAY);
    let max_stale = section.duration("max_stale", SECOND..=365 * DAY);
    let (tls, tls_span) = tls::read_client(section, "jwks-client");
    if !section.has("jwks_url") {
        let mut useless = WITH_URL.into_iter().filter(|key| section.has(key));
        if let Some(key) = useless.find(|key| *key != "tls" || tls_span.is_some()) {
            contradiction(format!("`{}` is for `jwks_url`", section.full_key(key)))
                .at(&section.key_span(key), "nothing is fetched")
                .help("write `jwks_url = \"https://..\"`, or leave it out")
                .report_to(section.reader);
        }
        return None;
    }
    let endpoint = endpoint?;
    check_secure(section, &endpoint, tls_span);
    if max_stale < refresh {
        contradiction("`max_stale` is shorter than `refresh`")
            .at(
                &section.value_span("max_stale"),
                "between two fetches no token would be believed",
            )
            .at(&section.value_span("refresh"), "")
            .help("make it several times as long, such as `max_stale = \"24h\"`")
            .report_to(section.reader);
    }
    Some(JwksSettings {
        endpoint,
        refresh,
        max_stale,
        tls,
        keys: Arc::default(),
    })
}

/// Reports keys that others could replace on their way.
fn check_secure(section: &Section<'_>, endpoint: &Endpoint, tls: Option<TextSpan>) {
    if endpoint.secure {
        return;
    }
    if !is_this_machine(&endpoint.host) {
        let label = "anyone on the way could send keys of their own, and sign tokens with them";
        Diagnostic::new(Code::PlainKeys, "`jwks_url` fetches keys without TLS")
            .at(&section.value_span("jwks_url"), label)
            .help("write `https://`; only a server on this machine may do without")
            .report_to(section.reader);
    } else if let Some(span) = tls {
        contradiction("`auth.jwt.tls` is for a server with TLS")
            .at(&span, "the URL is one without")
            .help("write `jwks_url = \"https://..\"`")
            .report_to(section.reader);
    }
}

fn is_this_machine(host: &str) -> bool {
    let is_loopback = |ip: IpAddr| ip.to_canonical().is_loopback();
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_loopback)
}

/// Parses `https://login.example.com/.well-known/jwks.json`. The query is a part of the path.
fn parse_url(text: &str) -> Result<Endpoint, &'static str> {
    const EXAMPLE: &str = "no such URL; write for example `https://login.example.com/jwks.json`";
    let (scheme, rest) = text.split_once("://").ok_or(EXAMPLE)?;
    let secure = match scheme.to_ascii_lowercase().as_str() {
        "https" => true,
        "http" => false,
        _ => return Err(EXAMPLE),
    };
    let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(at);
    if authority.contains('@') {
        return Err("a URL of keys has no user: the keys are public");
    }
    if path.contains('#') {
        return Err("a server never sees what follows `#`; leave it out");
    }
    let path = match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("/{path}"),
    };
    let is_path = path.parse::<http::uri::PathAndQuery>().is_ok();
    is_path.then_some(()).ok_or("not a path")?;
    let (host, port) = address::host_and_port(authority, if secure { 443 } else { 80 })?;
    Ok(Endpoint {
        secure,
        host,
        port,
        path,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_of_keys_has_the_usual_port() {
        let read = |text| {
            let endpoint = parse_url(text).unwrap();
            (endpoint.to_string(), endpoint.path)
        };
        for (text, place, path) in [
            ("https://a.example/keys", "https://a.example:443", "/keys"),
            ("HTTPS://a.example", "https://a.example:443", "/"),
            ("https://a.example?v=1", "https://a.example:443", "/?v=1"),
            ("http://127.0.0.1:81/k?a=b", "http://127.0.0.1:81", "/k?a=b"),
            ("http://[::1]/", "http://[::1]:80", "/"),
        ] {
            assert_eq!(read(text), (place.to_owned(), path.to_owned()), "{text}");
        }
        for wrong in [
            "a.example/keys",
            "ftp://a.example/",
            "https://user@a.example/",
            "https://a.example/#keys",
            "https://a.example/a b",
            "https://",
        ] {
            assert!(parse_url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_this_machine_may_do_without_tls() {
        for here in ["localhost", "127.0.0.1", "127.1.2.3", "::1", "LocalHost"] {
            assert!(is_this_machine(here), "{here}");
        }
        for other in ["a.example", "10.0.0.1", "0.0.0.0", "localhost.example"] {
            assert!(!is_this_machine(other), "{other}");
        }
    }
}
