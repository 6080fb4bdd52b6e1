//! Warnings about a file that compiled and probably does not do what its author meant, and notes
//! about effects that the author may not expect.

mod bans;
mod decide;
mod ignored;
mod limits;
mod no_effect;
mod quotas;
mod usage;

use std::net::IpAddr;

use http::{HeaderMap, HeaderValue, Method};

use super::compile::Compiled;
use super::*;
use crate::certificate::Validity;
use crate::client::networks::has_everyone;
use crate::limit::key::Part;
use crate::route::{HostPattern, Route, RouteQuery, ValueMatch};

/// Words in the paths of routes that are targets of guessed secrets.
const SECRET_WORDS: [&str; 17] = [
    "admin", "auth", "code", "login", "logon", "mfa", "otp", "password", "passwd", "register",
    "reset", "session", "signin", "sign-in", "signup", "token", "verify",
];

/// Routes that one note names, at most.
const SHOWN: usize = 3;

pub(super) fn find(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    reader.report_doubts();
    check_trusted_proxies(reader, compiled);
    let refused = limits::find(reader, compiled);
    usage::find(reader, compiled, &refused);
    quotas::find(reader, compiled);
    bans::find(reader, compiled);
    if let Some(ledger) = &compiled.ledger {
        billing::warn(reader, &compiled.config, ledger);
    }
    decide::find(reader, compiled);
    no_effect::find(reader, compiled);
    ignored::find(reader, compiled);
    check_tier_header(reader, compiled);
    check_own_upstream(reader, compiled);
    check_unused(reader, compiled);
    check_certificates(reader, compiled);
}

/// All notes. They are no warnings: the author may mean these effects.
pub(super) fn notes(compiled: &Compiled<'_>) -> Vec<Diagnostic> {
    let notes = [
        nothing_limited(compiled),
        letter_case(compiled),
        quotas::sliding_day(compiled),
        quotas::common_return(compiled),
        no_effect::shadow(compiled),
        no_effect::slot(compiled),
    ];
    notes.into_iter().flatten().collect()
}

fn check_trusted_proxies(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    if has_everyone(&compiled.config.client_ip.trusted) {
        Diagnostic::new(
            Code::TrustsEveryone,
            "`trusted_proxies` trusts the whole internet",
        )
        .at(
            &compiled.places.trusted_proxies,
            "every client could then choose the address that it counts as",
        )
        .help("name the proxies in front of this one, or leave it out")
        .report_to(reader);
    }
}

/// Reports a tier in a header without trusted proxies: only they may set it.
fn check_tier_header(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    let Some(tiers) = &compiled.config.tier else {
        return;
    };
    let Some(parts) = &tiers.from else {
        return;
    };
    let header = parts.0.iter().find(|part| matches!(part, Part::Header(_)));
    if let Some(header) = header.filter(|_| compiled.config.client_ip.trusted.is_empty()) {
        let message = format!("the proxy ignores the tier in `{header}`");
        Diagnostic::new(Code::NobodyBelieved, message)
            .at(&compiled.places.tier, "accepted from trusted proxies only")
            .help(
                "name the proxies that send it in `trusted_proxies`, or use `jwt:CLAIM` or \
             `keys_file`",
            )
            .report_to(reader);
    }
}

fn check_own_upstream(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    for upstream in &compiled.definitions.upstreams {
        for (server, span) in upstream.settings.servers.iter().zip(&upstream.server_spans) {
            let mut listens = compiled.places.listen.iter();
            if let Some(here) = listens.find(|listen| is_same(&listen.value, &server.address)) {
                report_own(reader, span, &here.span);
            }
        }
    }
}

fn report_own(reader: &ConfigReader<'_>, server: &TextSpan, listen: &TextSpan) {
    let mut diagnostic = Diagnostic::new(Code::OwnUpstream, "an upstream is this proxy itself")
        .at(server, "every request would come back in a loop")
        .help("give the upstream another port");
    if !listen.is_empty() {
        diagnostic = diagnostic.at(listen, "the proxy listens here");
    }
    reader.report(diagnostic);
}

fn is_same(listen: &Listen, server: &ServerAddress) -> bool {
    match (listen, server) {
        (Listen::Unix(listen), ServerAddress::Unix(server)) => listen == server,
        (Listen::Tcp(listen), server) => {
            let Some((host, port)) = server.host_and_port() else {
                return false;
            };
            let ip: Option<IpAddr> = match host {
                "localhost" => Some(std::net::Ipv4Addr::LOCALHOST.into()),
                host => host.parse().ok(),
            };
            let on_this_machine = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified();
            listen.port() == port
                && ip.is_some_and(|ip| {
                    ip == listen.ip()
                        || (on_this_machine(ip)
                            && (listen.ip().is_unspecified()
                                || (host == "localhost" && listen.ip().is_loopback())))
                })
        }
        (Listen::Unix(_), _) => false,
    }
}

/// Reports certificates that clients refuse today.
fn check_certificates(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    for one in &compiled.places.untimely {
        let (state, help) = match one.value {
            Validity::Early => ("is not valid yet", "check the clock of this machine"),
            _ => (
                "has expired",
                "renew it; the proxy reads the file again as soon as it changes",
            ),
        };
        Diagnostic::new(Code::Untimely, format!("a certificate {state}"))
            .at(&one.span, "clients will refuse it")
            .help(help)
            .report_to(reader);
    }
}

fn check_unused(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    for defined in compiled
        .definitions
        .limits
        .iter()
        .filter(|limit| !limit.is_used)
    {
        Diagnostic::new(
            Code::UnusedLimit,
            format!("no route uses `limit.{}`", defined.name.value),
        )
        .at(&defined.name.span, "it limits nothing")
        .help(format!(
            "add it to a route: `limits = [\"{}\"]`",
            defined.name.value
        ))
        .report_to(reader);
    }
    for upstream in compiled
        .definitions
        .upstreams
        .iter()
        .filter(|one| !one.is_used)
    {
        let message = format!("no route uses `upstream.{}`", upstream.settings.name);
        Diagnostic::new(Code::UnusedUpstream, message)
            .at(&upstream.span, "nothing is sent there")
            .help(format!(
                "add it to a route: `upstream = \"{}\"`",
                upstream.settings.name
            ))
            .report_to(reader);
    }
}

/// The note about a file without any limit, unless all its routes have `limits = []`.
fn nothing_limited(compiled: &Compiled<'_>) -> Option<Diagnostic> {
    let definitions = &compiled.definitions;
    if !definitions.limits.is_empty() || !definitions.has_unlimited_route {
        return None;
    }
    let note = Diagnostic::new(Code::NothingLimited, "nothing is limited")
        .help("write `[limit.default]` with `rate = \"100/min\"`: it holds for every route")
        .note("without a limit tidegate forwards every request");
    Some(note)
}

/// The note about routes of a login and the like, if another letter case in the path gets around
/// their limits.
fn letter_case(compiled: &Compiled<'_>) -> Option<Diagnostic> {
    let mut note: Option<Diagnostic> = None;
    for one in &compiled.definitions.without_case {
        let routes = &compiled.config.routes;
        let Some(route) = routes.iter().nth(one.value) else {
            continue;
        };
        let Some((sample, other)) = escape(compiled, route) else {
            continue;
        };
        let label = format!("`{sample}` goes to route `{}`", other.name);
        note = Some(match note {
            None => Diagnostic::new(
                Code::LetterCase,
                "another letter case in a path gets around its limits",
            )
            .at(&one.span, label)
            .help(
                "if an upstream ignores letter case (IIS, ASP.NET, Express), write `case = \
                 \"insensitive\"` at the top; if none does, `case = \"sensitive\"`",
            ),
            Some(note) if note.labels.len() < SHOWN => note.at(&one.span, label),
            Some(note) => note,
        });
    }
    note
}

/// A path that differs from a route's by letter case, and the route with other limits that
/// takes it.
fn escape<'c>(compiled: &'c Compiled<'_>, route: &Route) -> Option<(String, &'c Route)> {
    if route.limits.is_empty() || !route.query.is_empty() {
        return None;
    }
    let sample = route.path.sample(|literal| {
        let lower = literal.to_ascii_lowercase();
        let secret = SECRET_WORDS.iter().any(|word| lower.contains(word));
        secret
            .then(|| literal.to_ascii_uppercase())
            .filter(|upper| *upper != literal)
    })?;
    let host = match &route.host {
        HostPattern::Any => String::new(),
        HostPattern::Exact(host) => host.to_string(),
        HostPattern::Below(host) => format!("x.{host}"),
        HostPattern::Regex(_) => return None,
    };
    let mut headers = HeaderMap::new();
    for wanted in &route.headers {
        let value = match &wanted.value {
            ValueMatch::Exactly(value) => value,
            ValueMatch::Any | ValueMatch::Regex(_) => "x",
        };
        headers.append(&wanted.name, HeaderValue::from_str(value).ok()?);
    }
    let routes = &compiled.config.routes;
    let end = if route.trailing_slash == Some(true) {
        "/"
    } else {
        ""
    };
    let spelled = format!("{sample}{end}");
    let path = routes.read_path(&spelled).ok()?;
    let found = routes.find(&RouteQuery {
        host: &host,
        path: &path,
        method: route.methods.first().unwrap_or(&Method::GET),
        headers: &headers,
        query: None,
        port: route.port.unwrap_or(0),
    });
    let other = found?.route;
    let same = route.limits.iter().all(|limit| {
        let by_path = |part: &Part| matches!(part, Part::Path | Part::PathParam(_) | Part::Route);
        other.limits.iter().any(|one| one.name == limit.name) && !limit.key.all().any(by_path)
    });
    (!same).then(|| (sample.clone(), other))
}
