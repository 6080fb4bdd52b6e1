//! Explains what would become of a request, and why, before anyone sends it.
//!
//! It runs the stages of a real request (`proxy/dry_run.rs`) and reports what they find. Nothing is
//! counted, sent or logged. It must never show a secret: see `secret.rs`.

pub mod call;
mod explanation;
mod limits;
mod matching;
mod secret;
pub mod text;
mod token;
mod usage;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request, Uri};
use serde::Serialize;

use crate::clock;
use crate::config::{Config, UpstreamServer};
use crate::limit::Decision;
pub use crate::proxy::dry_run::LiveCounts;
use crate::proxy::dry_run::{DryRun, DryRunOutcome, DryRunResult, ExplainedBlock, RequestView};
use crate::proxy::{Arrival, Secured};
use crate::route::Target;
use crate::route::template::Ports;
use crate::telemetry::stamp;
pub use explanation::Explanation;
use explanation::{
    ClientResponse, CountsSource, ExplainedRequest, ExplainedVerdict, LimitExplanation,
    UpstreamExplanation,
};
use secret::{Secrets, header_text};

const MAX_NEAR_ROUTES: usize = 5;

/// The sender if the user names none: an address for documentation, which belongs to no host.
pub const EXAMPLE_PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RequestDescription {
    pub method: String,
    /// `http://HOST[:PORT]/PATH`, the same with `https`, or a path.
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub ip: IpAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}

/// Why a request cannot be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// No client could send it; says why.
    Invalid(String),
    /// This machine failed; the description is right.
    Machine(String),
}

impl RequestError {
    pub fn bad_header(text: &str) -> RequestError {
        RequestError::Invalid(format!("`{text}` is no header; write `name: value`"))
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestError::Invalid(why) | RequestError::Machine(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for RequestError {}

impl RequestDescription {
    fn request(&self) -> Result<Request<Bytes>, RequestError> {
        let method = Method::from_bytes(self.method.as_bytes()).map_err(|_| {
            RequestError::Invalid(format!("`{}` is no method; write `GET`", self.method))
        })?;
        let (host, target) = self.split_url()?;
        let target: Uri = target
            .parse()
            .map_err(|_| self.bad_url("it has a character that must be escaped as %XX"))?;
        let body = self.body.clone().unwrap_or_default();
        let mut request = Request::new(Bytes::from(body));
        *request.method_mut() = method;
        *request.uri_mut() = target;
        let headers = request.headers_mut();
        for (name, value) in &self.headers {
            let bad = || RequestError::bad_header(&format!("{name}: {value}"));
            let name = HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| bad())?;
            let value = HeaderValue::from_str(value.trim()).map_err(|_| bad())?;
            headers.append(name, value);
        }
        if !headers.contains_key(HOST) {
            let host = HeaderValue::from_str(host)
                .map_err(|_| self.bad_url("its host has an odd character"))?;
            headers.insert(HOST, host);
        }
        if let Some(body) = &self.body
            && !headers.contains_key(CONTENT_LENGTH)
            && !headers.contains_key(TRANSFER_ENCODING)
        {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        Ok(request)
    }

    /// The connection: over TLS if the URL says so and the proxy has a TLS listener.
    fn arrival(&self, config: &Config) -> Arrival {
        let secure = config.tls.is_some() && self.url.starts_with("https://");
        Arrival {
            tls: secure.then(Secured::default),
            ports: Ports {
                peer: 0,
                local: self.port(config, secure),
            },
            ..Arrival::plain(self.ip)
        }
    }

    /// The port of the URL, or else the first one that the proxy listens on, with TLS or without.
    fn port(&self, config: &Config, secure: bool) -> u16 {
        let host = self.split_url().map_or("", |(host, _)| host);
        let written = host
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok());
        let tls = config.tls.as_ref().filter(|_| secure);
        let listens = tls.map_or(&config.listen, |tls| &tls.listen);
        let first = || listens.iter().find_map(|listen| listen.port());
        written.or_else(first).unwrap_or(0)
    }

    fn split_url(&self) -> Result<(&str, String), RequestError> {
        let url = self.url.split('#').next().unwrap_or_default();
        if url.starts_with('/') || url == "*" {
            return Ok(("localhost", url.to_owned()));
        }
        let rest = match url.split_once("://") {
            Some(("http" | "https", rest)) => rest,
            Some(_) => return Err(self.bad_url("it begins with http:// or https://")),
            None => url,
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (host, target) = rest.split_at(end);
        if host.is_empty() {
            return Err(self.bad_url("the host is missing"));
        }
        let slash = if target.starts_with('/') { "" } else { "/" };
        Ok((host, format!("{slash}{target}")))
    }

    fn bad_url(&self, why: &str) -> RequestError {
        RequestError::Invalid(format!("`{}` is no URL: {why}", self.url))
    }
}

/// The API keys that a request carries, and that no file lists.
///
/// # Errors
/// No client could send this request.
pub(crate) fn carried_keys(
    config: &Config,
    description: &RequestDescription,
) -> Result<Vec<Vec<u8>>, RequestError> {
    let request = description.request()?;
    let (headers, query) = (request.headers(), request.uri().query());
    let mut keys = Vec::new();
    let api_key = &config.api_key;
    api_key.each_unlisted(headers, query, |_, key| keys.push(key.to_vec()));
    Ok(keys)
}

/// Explains a request: with `live` counts, or for a client without earlier requests.
///
/// # Errors
/// No client could send this request, or there are no random numbers.
pub fn explain(
    config: &Config,
    description: &RequestDescription,
    live: Option<LiveCounts<'_>>,
) -> Result<Explanation, RequestError> {
    let request = description.request()?;
    let arrival = description.arrival(config);
    let secrets = Secrets::new(config);
    let has_secret = live.is_some() || config.store.hash_key.is_some();
    let dry_run = DryRun::new(config, live.as_ref().map(|live| live.hash_key))
        .map_err(|error| RequestError::Machine(error.to_string()))?
        .knowing(live.as_ref().and_then(|live| live.known_keys.clone()));
    let from = live.as_ref().map(|live| live.from.clone());
    let explained = ExplainedRequest {
        method: request.method().to_string(),
        target: secrets.mask_target(request.uri()),
        host: header_text(request.headers().get(HOST)),
        headers: secrets.mask_headers(request.headers()),
        peer: arrival.ip.to_string(),
        tls: arrival.tls.is_some(),
    };
    let mut path = matching::explain_path(request.uri().path());
    let client = matching::explain_client(&config.client_ip, arrival.ip, request.headers());
    let port = arrival.ports.local;
    let (route, near) = matching::explain_routes(config, &request, port, &secrets, MAX_NEAR_ROUTES);
    let visible = limits::Visible {
        secrets: &secrets,
        address: &client.counted_as,
        hash: has_secret,
        live: live.is_some(),
    };
    let (mut limits, mut spared) = (Vec::new(), None);
    let (mut usage, mut token) = (None, None);
    let observe = |view: &RequestView<'_, '_, '_>| {
        path.canonical = Some(view.facts.path.as_str().to_owned());
        limits = limits::explain_limits(view, visible);
        spared = why_spared(view, config);
        token = token::explain_token(config, view.facts, clock::unix_us() / 1_000_000);
        usage = view
            .reserve
            .map(|reserve| usage::explain_usage(reserve, view.body));
    };
    let result = dry_run.run(request, arrival, live, observe);
    let route = route.filter(|_| result.is_routed);
    limits::add_counts(&mut limits, &result);
    let near = match result.outcome {
        DryRunOutcome::Status => Vec::new(),
        _ => near,
    };
    let upstream_name = route.as_ref().map_or("", |route| &*route.to);
    Ok(Explanation {
        request: explained,
        verdict: verdict(&result, &limits, spared.as_deref()),
        client,
        token,
        path,
        upstream: upstream(config, upstream_name, &result, &secrets),
        route,
        near,
        spared,
        usage,
        limits,
        client_sees: client_response(&result, &secrets),
        counts: CountsSource {
            live: from.is_some() && result.trouble.is_none(),
            from,
            trouble: result.trouble,
        },
    })
}

/// Why nothing is charged; none if something is.
fn why_spared(view: &RequestView<'_, '_, '_>, config: &Config) -> Option<String> {
    if let Some(rule) = view.bypass {
        let conditions = config.bypass.get(rule).map(matching::bypass_conditions);
        return Some(format!(
            "bypass rule {} of the file holds ({}): nothing is charged",
            rule + 1,
            conditions.unwrap_or_default()
        ));
    }
    if view.preflight {
        return Some("it is a browser's preflight, which is never charged".to_owned());
    }
    let has_limits = !view.found.route.limits.is_empty();
    (!has_limits).then(|| "the route has no limits".to_owned())
}

fn verdict(
    result: &DryRunResult,
    limits: &[LimitExplanation],
    spared: Option<&str>,
) -> ExplainedVerdict {
    let denying = limits.iter().filter(|limit| limit.denies());
    let denied_by: Vec<String> = denying.map(|limit| limit.name.clone()).collect();
    let is_limited = limits.iter().any(|limit| limit.state == "enforced");
    let allowed = spared.unwrap_or(match is_limited {
        true => "every limit allows it",
        false => "no limit is asked",
    });
    let wait_us = result.decision.as_ref().map_or(0, Decision::wait_us);
    let allowed = match wait_us {
        0 => allowed.to_owned(),
        us => format!(
            "after a wait of {:.3} s, if not too many wait",
            us as f64 / 1e6
        ),
    };
    let by_route = || format!("by the route itself; {allowed}");
    let (outcome, why) = match &result.outcome {
        DryRunOutcome::Forwarded { upgrade: false } => ("forwarded", allowed.clone()),
        DryRunOutcome::Forwarded { upgrade: true } => (
            "forwarded",
            format!("it becomes a tunnel if the upstream agrees; {allowed}"),
        ),
        DryRunOutcome::Answered => ("answered", by_route()),
        DryRunOutcome::Status => (
            "answered",
            "with what is left of the client's limits (`[status]`); nothing is charged".to_owned(),
        ),
        DryRunOutcome::Redirected => ("redirected", by_route()),
        DryRunOutcome::Denied => ("denied", format!("by {}", denied_by.join(" and "))),
        DryRunOutcome::Blocked(block) => ("blocked", blocked(block)),
        DryRunOutcome::Refused(word, sentence) => ("refused", format!("{word}: {sentence}")),
    };
    ExplainedVerdict {
        outcome: outcome.to_owned(),
        status: own_status(result),
        why,
        denied_by,
    }
}

/// Who blocked a client, and until when.
fn blocked(block: &ExplainedBlock) -> String {
    let key = limits::short_hash(block.tag);
    let until = block.left_us.map(|left_us| {
        let until_us = clock::unix_us().saturating_add(left_us);
        format!(" until {}", stamp::rfc3339(until_us))
    });
    let until = until.unwrap_or_default();
    match &block.ban {
        Some(limit) => format!("`limit.{limit}` banned the client{until} (key {key})"),
        None => format!("an operator blocked the client{until} (key {key})"),
    }
}

fn own_status(result: &DryRunResult) -> Option<u16> {
    match result.outcome {
        DryRunOutcome::Forwarded { .. } => None,
        _ => Some(result.response.status().as_u16()),
    }
}

/// The request to the upstream, if it is forwarded. `route_to` is the target of the route.
fn upstream(
    config: &Config,
    route_to: &str,
    result: &DryRunResult,
    secrets: &Secrets,
) -> Option<UpstreamExplanation> {
    let sent = result.sent.as_ref()?;
    let mut targets = config
        .routes
        .iter()
        .filter_map(|route| match &route.target {
            Target::Upstream(index) => config.upstreams.get(*index),
            Target::Respond(_) | Target::Redirect(_) => None,
        });
    let named = targets.find(|upstream| route_to == format!("upstream {}", upstream.name));
    let servers = named.map(|upstream| upstream.servers.iter().map(server_text));
    Some(UpstreamExplanation {
        name: named
            .map_or(route_to, |upstream| &*upstream.name)
            .to_owned(),
        servers: servers.into_iter().flatten().collect(),
        method: sent.method().to_string(),
        target: secrets.mask_target(sent.uri()),
        headers: secrets.mask_headers(sent.headers()),
        upgrade: matches!(result.outcome, DryRunOutcome::Forwarded { upgrade: true }),
    })
}

fn server_text(server: &UpstreamServer) -> String {
    match server.backup {
        true => format!("{server} (backup)"),
        false => server.to_string(),
    }
}

fn client_response(result: &DryRunResult, secrets: &Secrets) -> ClientResponse {
    ClientResponse {
        status: own_status(result),
        headers: secrets.mask_headers(result.response.headers()),
        body: String::from_utf8_lossy(result.response.body()).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, url: &str) -> Result<String, RequestError> {
        let description = RequestDescription {
            method: method.to_owned(),
            url: url.to_owned(),
            headers: vec![("X-A".to_owned(), " 1 ".to_owned())],
            ip: EXAMPLE_PEER,
            body: None,
        };
        let request = description.request()?;
        let host = request.headers()[HOST].to_str().unwrap();
        Ok(format!("{} {host} {}", request.method(), request.uri()))
    }

    #[test]
    fn urls_are_read_as_a_client_would_send_them() {
        assert_eq!(
            request("GET", "http://a.example:81/x?y#z").unwrap(),
            "GET a.example:81 /x?y"
        );
        assert_eq!(
            request("GET", "https://a.example").unwrap(),
            "GET a.example /"
        );
        assert_eq!(request("GET", "a.example?x").unwrap(), "GET a.example /?x");
        assert_eq!(
            request("POST", "/a/../b").unwrap(),
            "POST localhost /a/../b"
        );
    }

    #[test]
    fn what_no_client_could_send_is_no_question() {
        for (method, url) in [("G T", "/"), ("GET", "ftp://a/"), ("GET", "http:///x")] {
            assert!(request(method, url).is_err(), "{method} {url}");
        }
        let error = request("GET", "/a b").unwrap_err().to_string();
        assert!(error.contains("%XX"), "{error}");
    }
}
