//! Whose request it is, and why not another's, told.

use http::{HeaderMap, Method, Request};

use super::story::{NearRoute, RouteStory};
use crate::config::{Bypass, Config};
use crate::proxy::dry_run::RequestView;
use crate::proxy::headers::check_framing;
use crate::route::{Miss, Near, Precedence, Route, RouteQuery, Target, ValueMatch};

/// The route that was found.
pub(super) fn tell(config: &Config, view: &RequestView<'_, '_, '_>) -> RouteStory {
    let route = view.found.route;
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    RouteStory {
        name: route.name.to_string(),
        host: route.host.to_string(),
        path: route.path.to_string(),
        methods: route.methods.iter().map(Method::to_string).collect(),
        params: view.found.params.iter().map(owned).collect(),
        to: match &route.target {
            Target::Upstream(index) => {
                let upstream = config.upstreams.get(*index);
                let name = upstream.map(|upstream| &*upstream.name);
                format!("upstream {}", name.unwrap_or_default())
            }
            Target::Respond(answer) => format!("respond {}", answer.status.as_u16()),
            Target::Redirect(answer) => format!("redirect {}", answer.status.as_u16()),
        },
    }
}

/// Routes that might have been meant.
pub(super) fn near(config: &Config, request: &Request<()>, most: usize) -> Vec<NearRoute> {
    let (Ok(host), Ok(path)) = (
        check_framing(request),
        config.routes.read_path(request.uri().path()),
    ) else {
        return Vec::new();
    };
    let ask = RouteQuery {
        host: &host,
        path: &path,
        method: request.method(),
        headers: request.headers(),
    };
    let found = config.routes.find(&ask).map(|found| found.route);
    let near = config.routes.near(&ask, most);
    let told = near.iter().map(|near| NearRoute {
        route: near.route.name.to_string(),
        why: why(near, &ask, found),
    });
    told.collect()
}

fn why(near: &Near<'_>, ask: &RouteQuery<'_>, found: Option<&Route>) -> String {
    let reasons = near
        .misses
        .iter()
        .map(|miss| reason(miss, near.route, ask, found));
    let reasons: Vec<String> = reasons.collect();
    reasons.join("; ")
}

fn reason(miss: &Miss<'_>, route: &Route, ask: &RouteQuery<'_>, found: Option<&Route>) -> String {
    match miss {
        Miss::Host => match ask.host {
            "" => format!("it is for host {}", route.host),
            host => format!("it is for host {}, not {host}", route.host),
        },
        Miss::Path(at) => path_reason(*at, route, ask),
        Miss::Method => {
            let methods: Vec<&str> = route.methods.iter().map(Method::as_str).collect();
            format!("it takes {}, not {}", methods.join(", "), ask.method)
        }
        Miss::NoHeader(name) => {
            format!("it needs the header {}", wanted(route, name.as_str()))
        }
        Miss::HeaderValue(name) => format!(
            "it needs {}, and the request has {}",
            wanted(route, name.as_str()),
            given(ask.headers, name.as_str())
        ),
        Miss::LessSpecific(by) => {
            let found = found.map(|route| &*route.name).unwrap_or_default();
            let by = match by {
                Precedence::Host => "names the host more exactly",
                Precedence::Path => "has the more specific path",
                Precedence::Method => "names the method",
                Precedence::Headers => "asks for more headers",
            };
            format!("it fits too, but {found} {by}")
        }
    }
}

fn path_reason(at: usize, route: &Route, ask: &RouteQuery<'_>) -> String {
    let given: Vec<&str> = ask
        .path
        .in_case(route.case)
        .as_str()
        .split('/')
        .filter(|one| !one.is_empty())
        .collect();
    match given.get(at) {
        Some(segment) => format!("its path {} differs at /{segment}", route.path),
        None => format!("its path {} is longer", route.path),
    }
}

/// `x-version: 2`, or `x-version`.
fn wanted(route: &Route, name: &str) -> String {
    let own = route.headers.iter().find(|one| one.name.as_str() == name);
    match own.map(|one| &one.value) {
        Some(ValueMatch::Exactly(value)) => format!("{name}: {value}"),
        Some(ValueMatch::Regex(regex)) => format!("{name}: regex:{}", regex.as_str()),
        Some(ValueMatch::Any) | None => name.to_owned(),
    }
}

fn given(headers: &HeaderMap, name: &str) -> String {
    super::secret::header_text(headers.get(name))
}

/// What a bypass rule asks for, without its secrets.
pub(super) fn conditions(bypass: &Bypass) -> String {
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
