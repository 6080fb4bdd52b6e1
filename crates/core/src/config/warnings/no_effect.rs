//! Warnings and notes about settings that change nothing, as the rest of the file stands.

use http::HeaderName;

use crate::config::compile::Compiled;
use crate::config::*;
use crate::limit::key::{Alternatives, ApiKeySource, Key, Part, UnknownKey};
use crate::route::{CostSource, ErrorPage, Route};

pub(super) fn find(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    check_https_port(reader, compiled);
    check_client_ip(reader, compiled);
    check_ports(reader, compiled);
    check_removed_headers(reader, compiled);
    check_cost_headers(reader, compiled);
    check_unknown_keys(reader, compiled);
    check_tokens(reader, compiled);
    check_costs(reader, compiled);
    check_usages(reader, compiled);
    check_bans(reader, compiled);
    check_pages(reader, compiled);
}

/// Reports error pages whose statuses an earlier page has, in all routes.
fn check_pages(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    let defined = &compiled.definitions.error_pages;
    for (number, page) in defined.pages.iter().enumerate() {
        // A page with variables is not for all responses.
        let covers = |first: &Arc<ErrorPage>| {
            let replaces_all = first.replaces_upstream || !page.replaces_upstream;
            replaces_all && first.made_text().is_none() && first.statuses.covers(&page.statuses)
        };
        let mut earlier = defined.pages.iter().zip(&defined.names).take(number);
        let Some((first, name)) = earlier.find(|(first, _)| covers(first)) else {
            continue;
        };
        let has = |route: &Route, page| route.error_pages.iter().any(|own| Arc::ptr_eq(own, page));
        let mut routes = compiled.config.routes.iter();
        if !routes.any(|route| has(route, page) && !has(route, first)) {
            let covered = &defined.names[number];
            no_effect(format!(
                "`error_page.{}` replaces no response",
                covered.value
            ))
            .at(&covered.span, "")
            .at(&name.span, "has its statuses, and comes first")
            .help("give it other statuses, or name it alone in `error_pages` of a route")
            .report_to(reader);
        }
    }
}

/// Reports costs of routes without a limit that counts.
fn check_costs(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    let routes = &compiled.config.routes;
    let routes = routes.iter().zip(&compiled.definitions.route_places);
    for (route, at) in routes.filter(|(route, _)| route.limits.is_empty()) {
        if route.usage.is_none() && route.cost != CostSource::Fixed(1) {
            no_effect("`cost` changes nothing")
                .at(&at.cost, "the route has no limit that counts")
                .help("leave it out, or name a limit: `limits = [\"100/min\"]`")
                .report_to(reader);
        }
    }
}

/// Reports sections `[usage.NAME]` that no route names.
fn check_usages(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    let places = &compiled.definitions.route_places;
    let used = |number: usize| {
        let mut named = places.iter().filter_map(|at| at.usage.as_ref());
        named.any(|usage| usage.value == number)
    };
    for (number, usage) in compiled.definitions.usages.iter().enumerate() {
        if let Some(span) = usage.name_span.as_ref().filter(|_| !used(number)) {
            no_effect(format!("no route uses `usage.{}`", usage.name))
                .at(span, "no response is read for its usage")
                .help(format!("add it to a route: `usage = \"{}\"`", usage.name))
                .report_to(reader);
        }
    }
}

/// Reports bans by limits that deny no request.
fn check_bans(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    for defined in &compiled.definitions.limits {
        if let (None, Some(span)) = (&defined.limit, &defined.ban_span) {
            no_effect(format!("`limit.{}` bans no client", defined.name.value))
                .at(span, "")
                .at(&defined.rate_span, "denies no request")
                .help("write a rate, or leave `ban` out")
                .report_to(reader);
        }
    }
}

/// Reports `unknown = "deny"` where no limit counts by API keys: then no request is refused.
fn check_unknown_keys(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    let Compiled { config, places, .. } = compiled;
    let Some(span) = &places.unknown_keys else {
        return;
    };
    let mut limits = config.limits.iter().filter(|limit| !limit.shadow);
    let denies = config.api_key.unknown == UnknownKey::Deny;
    if !denies || limits.any(|limit| limit.key.asks_api_key()) {
        return;
    }
    no_effect("no request is refused because its API key is unknown")
        .at(span, "only limits by `api_key` refuse unknown keys")
        .help("write `key = \"api_key\"` in a limit, or leave `unknown` out")
        .report_to(reader);
}

/// Reports `[auth.jwt]` where nothing depends on tokens: then a request without one passes.
fn check_tokens(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    let Compiled { config, places, .. } = compiled;
    if config.jwt.is_none() {
        return;
    }
    let tier = config.tier.as_ref();
    let billed_by = config.ledger.as_ref().map(|ledger| &ledger.by.0);
    let is_claim = |part: &Part| matches!(part, Part::Jwt(_));
    let balanced = |upstream: &UpstreamSettings| match &upstream.balance {
        Balance::Hash(key) => key.all().any(is_claim),
        _ => false,
    };
    // A verified token is a known API key.
    let mut limits = config.limits.iter();
    let is_asked = limits.any(|limit| limit.asks_claims() || limit.asks_api_key())
        || tier.is_some_and(|tier| tier.by_key || tier.asks_claims())
        || billed_by.is_some_and(|part| is_claim(part) || *part == Part::ApiKey)
        || config.upstreams.iter().any(balanced);
    if !is_asked {
        no_effect("no limit and no tier asks for tokens")
            .at(
                &places.auth,
                "requests pass with any token, and without one",
            )
            .help("count by `jwt:CLAIM`, or leave `[auth.jwt]` out")
            .report_to(reader);
    }
}

fn check_https_port(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    let Compiled { config, places, .. } = compiled;
    let Some(span) = &places.https_port else {
        return;
    };
    if let Some(redirect) = &places.tls_redirect {
        no_effect("`https_port` changes nothing")
            .at(span, "")
            .at(redirect, "redirects to its own port")
            .help("leave `https_port` out")
            .report_to(reader);
    } else if config.tls.is_none() && config.client_ip.trusted.is_empty() {
        Diagnostic::new(
            Code::EndlessRedirect,
            "every request is redirected, and none is served",
        )
        .at(
            span,
            "the proxy has no `[tls]`, and trusts no proxy that has",
        )
        .help("name the proxies that speak TLS with clients in `trusted_proxies`, or write `[tls]`")
        .report_to(reader);
    }
}

/// Reports a header that names clients, where no proxy may name them.
fn check_client_ip(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    let Compiled { config, places, .. } = compiled;
    let unused = config.client_ip.trusted.is_empty();
    if let Some(span) = places.client_ip_header.as_ref().filter(|_| unused) {
        no_effect("`client_ip.header` changes nothing")
            .at(span, "read from trusted proxies only")
            .help("name the proxies that send it in `trusted_proxies`")
            .report_to(reader);
    }
}

/// Reports routes for a port that the proxy does not listen on.
fn check_ports(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    let Compiled { config, places, .. } = compiled;
    let listens = places.listen.iter().chain(&places.tls_listen);
    let ports: Vec<u16> = listens.filter_map(|one| one.value.port()).collect();
    // Port 0 is any port, and another proxy may ask for any of its own.
    if ports.contains(&0) || config.decide.is_some() {
        return;
    }
    let routes = config.routes.iter().zip(&compiled.definitions.route_places);
    for (route, at) in routes {
        let Some(port) = route.port.filter(|port| !ports.contains(port)) else {
            continue;
        };
        let listed: Vec<String> = ports.iter().map(|port| format!("`{port}`")).collect();
        no_effect(format!("route `{}` gets no request", route.name))
            .at(
                &at.port,
                format!("the proxy does not listen on port {port}"),
            )
            .help(match listed.is_empty() {
                true => "leave `port` out: the proxy listens on no port".to_owned(),
                false => format!("write one of its ports: {}", listed.join(", ")),
            })
            .report_to(reader);
    }
}

/// Reports what goes by a header that `underscores_in_headers = false` removes.
fn check_removed_headers(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    let Compiled {
        config,
        definitions,
        places,
        ..
    } = compiled;
    let Some(setting) = &places.no_underscores else {
        return;
    };
    let report = |name: &HeaderName, span: &TextSpan| {
        let mut found = no_effect(format!("no request has the header `{name}`"));
        if span != setting {
            found = found.at(span, "goes by this header");
        }
        found
            .at(setting, "removes headers with `_` in their names")
            .help(format!(
                "write `{}`, if clients send that",
                name.as_str().replace('_', "-")
            ))
            .report_to(reader);
    };
    let odd = |name: &&HeaderName| name.as_str().contains('_');
    for defined in &definitions.limits {
        // A rate in place takes the default limit's key: that limit has the warning.
        let is_in_place = defined.name.span == defined.rate_span;
        if let Some(name) = headers_of(&defined.key.value)
            .find(odd)
            .filter(|_| !is_in_place)
        {
            report(name, &defined.key.span);
        }
    }
    for (route, at) in config.routes.iter().zip(&definitions.route_places) {
        if let Some(name) = route.headers.iter().map(|one| &one.name).find(odd) {
            report(name, &at.headers);
        }
        if let CostSource::Header(name) = &route.cost
            && odd(&name)
        {
            report(name, &at.cost);
        }
    }
    let api_keys = config
        .api_key
        .from
        .0
        .iter()
        .filter_map(|source| match source {
            ApiKeySource::Header(name) => Some(name),
            _ => None,
        });
    let tier = config.tier.as_ref().and_then(|tier| tier.from.as_ref());
    let bypass = config.bypass.iter().filter_map(|rule| rule.header.as_ref());
    let balance = config
        .upstreams
        .iter()
        .filter_map(|upstream| match &upstream.balance {
            Balance::Hash(key) => Some(key),
            _ => None,
        });
    let others = api_keys
        .chain(tier.into_iter().flat_map(headers_among))
        .chain(bypass.map(|(name, _)| name))
        .chain(balance.flat_map(headers_of));
    others.filter(odd).for_each(|name| report(name, setting));
}

fn headers_of(key: &Key) -> impl Iterator<Item = &HeaderName> {
    key.parts.iter().flat_map(headers_among)
}

fn headers_among(parts: &Alternatives) -> impl Iterator<Item = &HeaderName> {
    parts.0.iter().filter_map(|part| match part {
        Part::Header(name) => Some(name),
        _ => None,
    })
}

/// Reports a cost in a header without trusted proxies: only they may set it.
fn check_cost_headers(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    let config = &compiled.config;
    let routes = config.routes.iter().zip(&compiled.definitions.route_places);
    for (route, at) in routes.filter(|_| config.client_ip.trusted.is_empty()) {
        if let CostSource::Header(name) = &route.cost {
            let message = format!("the proxy ignores the cost in `header:{name}`");
            Diagnostic::new(Code::NobodyBelieved, message)
                .at(&at.cost, "accepted from trusted proxies only")
                .help("name the proxies that send it in `trusted_proxies`")
                .report_to(reader);
        }
    }
}

/// A limit on trial that has more to it than denials.
pub(super) fn shadow(compiled: &Compiled<'_>) -> Option<Diagnostic> {
    let mut limits = compiled.definitions.limits.iter();
    limits.find_map(|defined| {
        let limit = defined.limit.as_ref().filter(|limit| limit.shadow)?;
        let (span, label) = match (&defined.ban_span, limit.delay) {
            (Some(span), _) => (span, "bans no client"),
            (None, Some(_)) => (&defined.delay_span, "holds no request"),
            (None, None) => return None,
        };
        let message = format!("`limit.{}` is on trial: `shadow = true`", limit.name);
        let note = Diagnostic::new(Code::Waiting, message)
            .at(span, label)
            .help("remove `shadow` when the trial is over");
        Some(note)
    })
}

/// A slot without a cluster.
pub(super) fn slot(compiled: &Compiled<'_>) -> Option<Diagnostic> {
    let store = &compiled.config.store.kind;
    let is_cluster =
        |redis: &RedisSettings| matches!(redis.topology, RedisTopology::Cluster { .. });
    if matches!(store, StoreKind::Redis(redis) if is_cluster(redis)) {
        return None;
    }
    let mut limits = compiled.definitions.limits.iter();
    let defined =
        limits.find(|one| one.limit.as_ref().is_some_and(|limit| limit.slot.is_some()))?;
    let message = format!(
        "`slot` of `limit.{}` changes nothing here",
        defined.name.value
    );
    let note = Diagnostic::new(Code::Waiting, message)
        .at(&defined.name.span, "the store is no Redis Cluster")
        .help("leave `slot` out, or use `redis+cluster://` in `url`");
    Some(note)
}
