//! Explains which client and which route a request matches, and why no other route.

use std::net::IpAddr;

use http::{HeaderMap, Method, Request};

use super::explanation::{
    ClientExplanation, HopExplanation, NearRoute, PathExplanation, RouteExplanation,
};
use super::secret::{Secrets, header_text};
use crate::client::{ClientIp, Hop};
use crate::config::{Bypass, Config};
use crate::path::CanonicalPath;
use crate::proxy::headers::check_framing;
use crate::route::{
    HeaderMatch, Miss, Near, Precedence, Route, RouteMatch, RouteQuery, Target, ValueMatch,
};

pub(super) fn explain_client(
    settings: &ClientIp,
    peer: IpAddr,
    headers: &HeaderMap,
) -> ClientExplanation {
    let walk = settings.walk(peer, headers);
    let trusted = settings.trusts(peer);
    let header = settings.header.as_str();
    let why = match (trusted, headers.contains_key(&settings.header)) {
        (false, true) if settings.trusted.is_empty() => {
            format!("{peer} is the client: `trusted_proxies` is empty, so its {header} is ignored")
        }
        (false, true) => format!(
            "{peer} is the client: it is not in `trusted_proxies`, so its {header} is ignored"
        ),
        (false, false) => format!("{peer} sends it, and is the client"),
        (true, false) => format!("{peer} is a trusted proxy that sends no {header}"),
        (true, true) => format!("{peer} is a trusted proxy; its {header}, from the right:"),
    };
    ClientExplanation {
        peer: peer.to_canonical().to_string(),
        trusted,
        header: header.to_owned(),
        hops: walk.hops.iter().map(explain_hop).collect(),
        address: walk.client.to_string(),
        counted_as: counted_as(settings, walk.client),
        why,
    }
}

fn explain_hop(hop: &Hop) -> HopExplanation {
    let note = match (hop.address, hop.trusted) {
        (None, _) => "no address: everything left of it is ignored",
        (Some(_), true) => "a trusted proxy: on to the next",
        (Some(_), false) => "no trusted proxy: this is the client",
    };
    HopExplanation {
        said: hop.said.clone(),
        address: hop.address.map(|address| address.to_string()),
        trusted: hop.trusted,
        note: note.to_owned(),
    }
}

/// `192.0.2.7`, or `2001:db8:1:2::/64`.
fn counted_as(settings: &ClientIp, client: IpAddr) -> String {
    let first = settings.group(client);
    let (prefix, whole) = match first {
        IpAddr::V4(_) => (settings.ipv4_prefix, 32),
        IpAddr::V6(_) => (settings.ipv6_prefix, 128),
    };
    match prefix < whole {
        true => format!("{first}/{prefix}"),
        false => first.to_string(),
    }
}

pub(super) fn explain_path(sent: &str) -> PathExplanation {
    let mut explained = PathExplanation {
        sent: sent.to_owned(),
        canonical: None,
        also_read_as: Vec::new(),
        refused: None,
    };
    match CanonicalPath::parse(sent) {
        Ok(path) => {
            explained.canonical = Some(path.as_str().to_owned());
            explained.also_read_as = path.others().map(str::to_owned).collect();
        }
        Err(error) => explained.refused = Some(error.to_string()),
    }
    explained
}

fn explain_route(config: &Config, found: &RouteMatch<'_, '_>) -> RouteExplanation {
    let route = found.route;
    let params = found.params.iter();
    RouteExplanation {
        name: route.name.to_string(),
        host: route.host.to_string(),
        path: route.path.to_string(),
        methods: route.methods.iter().map(Method::to_string).collect(),
        params: params
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        to: match &route.target {
            Target::Upstream(index) => match config.upstreams.get(*index) {
                Some(upstream) => format!("upstream {}", upstream.name),
                // The file serves no clients (`[decide]`).
                None => "no upstream".to_owned(),
            },
            Target::Respond(answer) => format!("respond {}", answer.status.as_u16()),
            Target::Redirect(answer) => format!("redirect {}", answer.status.as_u16()),
        },
    }
}

/// The route of a request, and routes that almost match, `most` of them.
pub(super) fn explain_routes<B>(
    config: &Config,
    request: &Request<B>,
    port: u16,
    secrets: &Secrets,
    most: usize,
) -> (Option<RouteExplanation>, Vec<NearRoute>) {
    let (Ok(host), Ok(path)) = (
        check_framing(request),
        config.routes.read_path(request.uri().path()),
    ) else {
        return (None, Vec::new());
    };
    let query = RouteQuery {
        host: &host,
        path: &path,
        method: request.method(),
        headers: request.headers(),
        query: request.uri().query(),
        port,
    };
    let found = config.routes.find(&query);
    let explained = found.as_ref().map(|found| explain_route(config, found));
    let found = found.map(|found| found.route);
    let near = config.routes.near(&query, most);
    let near = near.iter().map(|near| NearRoute {
        route: near.route.name.to_string(),
        why: why_not(near, &query, found, secrets),
    });
    (explained, near.collect())
}

fn why_not(
    near: &Near<'_>,
    query: &RouteQuery<'_>,
    found: Option<&Route>,
    secrets: &Secrets,
) -> String {
    let reasons = near.misses.iter();
    let reasons: Vec<String> = reasons
        .map(|miss| reason(miss, near.route, query, found, secrets))
        .collect();
    reasons.join("; ")
}

fn reason(
    miss: &Miss<'_>,
    route: &Route,
    query: &RouteQuery<'_>,
    found: Option<&Route>,
    secrets: &Secrets,
) -> String {
    match miss {
        Miss::Host => match query.host {
            "" => format!("it is for host {}", route.host),
            host => format!("it is for host {}, not {host}", route.host),
        },
        Miss::Path(at) => path_reason(*at, route, query),
        Miss::Method => {
            let methods: Vec<&str> = route.methods.iter().map(Method::as_str).collect();
            format!("it takes {}, not {}", methods.join(", "), query.method)
        }
        Miss::Port => {
            let port = route.port.map(|port| port.to_string());
            format!("it is for port {}", port.unwrap_or_default())
        }
        Miss::TrailingSlash => match route.trailing_slash {
            Some(true) => "it is for paths with a slash at their end".to_owned(),
            _ => "it is for paths without a slash at their end".to_owned(),
        },
        Miss::NoHeader(wanted) => format!("it needs the header {}", wanted_header(wanted, secrets)),
        Miss::HeaderValue(wanted) => {
            let text = header_text(query.headers.get(&wanted.name));
            format!(
                "it needs {}, and the request has {}",
                wanted_header(wanted, secrets),
                secrets.mask_header(wanted.name.as_str(), &text)
            )
        }
        Miss::Query(wanted) => {
            let mask = |value: &str| secrets.mask_query(&wanted.name, value);
            let wanted = wanted_text(&wanted.name, " = ", &wanted.value, mask);
            format!("it needs the query parameter {wanted}")
        }
        Miss::LessSpecific(by) => {
            let found = found.map(|route| &*route.name).unwrap_or_default();
            let by = match by {
                Precedence::Host => "names the host more exactly",
                Precedence::Path => "has the more specific path",
                Precedence::Method => "names the method",
                Precedence::Port => "names the port",
                Precedence::TrailingSlash => "has `trailing_slash`",
                Precedence::MoreFields => "asks for more headers or parameters",
                Precedence::ExactFields => "asks for more exact headers or parameters",
                Precedence::Alphabet => {
                    "asks for headers or parameters that come first in the alphabet"
                }
            };
            format!("it fits too, but {found} {by}")
        }
    }
}

fn path_reason(at: usize, route: &Route, query: &RouteQuery<'_>) -> String {
    let path = query.path.in_case(route.case).as_str();
    let mut segments = path.split('/').filter(|segment| !segment.is_empty());
    match segments.nth(at) {
        Some(segment) => format!("its path {} differs at /{segment}", route.path),
        None => format!("its path {} is longer", route.path),
    }
}

/// `x-version: 2`, or `x-version` for any value.
fn wanted_header(wanted: &HeaderMatch, secrets: &Secrets) -> String {
    let name = wanted.name.as_str();
    let mask = |value: &str| secrets.mask_header(name, value);
    wanted_text(name, ": ", &wanted.value, mask)
}

fn wanted_text(
    name: &str,
    separator: &str,
    value: &ValueMatch,
    mask: impl Fn(&str) -> String,
) -> String {
    match value {
        ValueMatch::Exactly(value) => format!("{name}{separator}{}", mask(value)),
        ValueMatch::Regex(regex) => format!("{name}{separator}regex:{}", mask(regex.as_str())),
        ValueMatch::Any => name.to_owned(),
    }
}

/// The conditions of a bypass rule, without its secrets.
pub(super) fn bypass_conditions(bypass: &Bypass) -> String {
    let mut all = Vec::new();
    if !bypass.ip.is_empty() {
        let nets: Vec<String> = bypass.ip.iter().map(ToString::to_string).collect();
        all.push(format!("ip in {}", nets.join(", ")));
    }
    all.extend(bypass.path.as_ref().map(|path| format!("path {path}")));
    let header = bypass.header.as_ref();
    all.extend(header.map(|(name, _)| format!("header {name} with the right value")));
    all.extend(bypass.key.as_ref().map(|_| "its API key".to_owned()));
    all.join(", ")
}
