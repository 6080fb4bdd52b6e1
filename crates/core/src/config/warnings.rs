//! What a file may say and probably does not mean. Runs only on what compiled.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::budget::Budget;
use super::compile::Compiled;
use super::diagnostic::{Code, Diagnostic, Span};
use super::inventable;
use super::reader::{At, Reader};
use super::{Listen, ServerAddress};
use crate::certificate::Validity;
use crate::limit::key::Part;
use crate::limit::{Algorithm, Limit, OnError, Rate, Rule};
use crate::route::Route;

/// A log of so many units takes megabytes for each key: 8 bytes a unit.
const LARGE_LOG: u64 = 1_000_000;

/// Reports every doubt.
pub(super) fn find(reader: &Reader<'_>, compiled: &Compiled<'_>) {
    trusts_everyone(reader, compiled);
    let uses = Uses::of(compiled);
    for (index, budget) in compiled.names.budgets.iter().enumerate() {
        client_chosen_key(reader, budget);
        large_log(reader, budget);
        idle_rates(reader, budget);
        never_denies(reader, compiled, &uses, index);
        open_login(reader, budget, &uses.by_budget[index]);
        exempts_everyone(reader, budget);
    }
    nobody_believed(reader, compiled);
    inventable::find(reader, compiled, &uses.index);
    own_upstream(reader, compiled);
    unused(reader, compiled);
    untimely(reader, compiled);
}

/// Which routes use which limits.
struct Uses<'c> {
    /// For each budget, by index.
    by_budget: Vec<Vec<&'c Route>>,
    /// The budget of a limit.
    index: HashMap<*const Limit, usize>,
}

impl<'c> Uses<'c> {
    fn of(compiled: &'c Compiled<'_>) -> Uses<'c> {
        let budgets = &compiled.names.budgets;
        let with_limit = budgets.iter().enumerate().filter_map(|(index, budget)| {
            budget
                .limit
                .as_ref()
                .map(|limit| (Arc::as_ptr(limit), index))
        });
        let index: HashMap<_, _> = with_limit.collect();
        let mut by_budget = vec![Vec::new(); budgets.len()];
        for route in compiled.config.routes.iter() {
            for limit in &route.limits {
                if let Some(index) = index.get(&Arc::as_ptr(limit)) {
                    by_budget[*index].push(route);
                }
            }
        }
        Uses { by_budget, index }
    }
}

fn trusts_everyone(reader: &Reader<'_>, compiled: &Compiled<'_>) {
    if compiled
        .config
        .client_ip
        .trusted
        .iter()
        .any(|net| net.prefix_len() == 0)
    {
        let message = "`trusted_proxies` trusts the whole internet";
        let diagnostic = Diagnostic::new(Code::TrustsEveryone, message)
            .at(
                &compiled.trusted_span,
                "anybody may say which address a request comes from",
            )
            .help("name the proxies in front of this one, or leave it out");
        reader.report(diagnostic);
    }
}

fn client_chosen_key(reader: &Reader<'_>, budget: &Budget) {
    let Some(part) = budget.key.all().find(|part| part.is_chosen_by_client()) else {
        return;
    };
    // A rate in place takes the default limit's key: that limit has the warning.
    if budget.name.span == budget.rate_span {
        return;
    }
    let message = format!(
        "clients choose what `limit.{}` counts them by",
        budget.name.value
    );
    let diagnostic = Diagnostic::new(Code::ClientChosenKey, message)
        .at(
            &budget.key_span,
            format!("`{part}` is whatever the client writes there"),
        )
        .help("use `key = \"ip\"`, and name your proxies in `trusted_proxies`");
    reader.report(diagnostic);
}

fn large_log(reader: &Reader<'_>, budget: &Budget) {
    let Some(limit) = &budget.limit else { return };
    let entries = |rule: &Rule| match rule.algorithm {
        Algorithm::Log => rule.units.min(rule.window_us / rule.precision_us),
        Algorithm::Counter | Algorithm::Slots => 0,
    };
    let largest = budget.rules.iter().max_by_key(|rule| entries(&rule.value));
    let Some(rule) = largest.filter(|rule| entries(&rule.value) >= LARGE_LOG) else {
        return;
    };
    let size = entries(&rule.value) * 8 / 1_000_000;
    let message = format!(
        "`limit.{}` remembers every request of its window",
        limit.name
    );
    let diagnostic = Diagnostic::new(Code::LargeLog, message)
        .at(&rule.span, format!("up to {size} MB for each key"))
        .help("without `algorithm` and `precision` a key takes 8 KB, and units count 0.1 % longer");
    reader.report(diagnostic);
}

/// Whether `tight` denies before `loose` ever can: as many of its windows as cover the other's hold
/// fewer units. Only the log keeps its promise exactly enough to say so; a coarse one counts a unit
/// for longer than its window.
fn covers(tight: &Rule, loose: &Rule) -> bool {
    let longest_us = loose.window_us + loose.precision_us - 1;
    let windows = longest_us.div_ceil(tight.window_us);
    let most = windows.checked_mul(tight.units);
    let logs = [tight, loose].map(|rule| rule.algorithm) == [Algorithm::Log; 2];
    logs && most.is_some_and(|most| most <= loose.units)
}

/// The same for limits.
fn is_tighter(tight: &Limit, loose: &Limit) -> bool {
    let plain = |limit: &Limit| limit.tiers.is_empty() && !limit.shadow;
    plain(tight)
        && plain(loose)
        && tight.key == loose.key
        && tight.missing == loose.missing
        && tight.exempt == loose.exempt
        && tight.cost >= loose.cost
        && tight.each == loose.each
        && (loose.windows.iter())
            .all(|loose| (tight.windows.iter()).any(|tight| covers(&tight.rule, &loose.rule)))
}

/// Rates of a limit beside which another of them always denies first.
fn idle_rates(reader: &Reader<'_>, budget: &Budget) {
    let Some(limit) = &budget.limit else { return };
    let tiers = limit.tiers.iter().map(|tier| tier.windows.len());
    let mut rules = budget.rules.as_slice();
    for count in std::iter::once(limit.windows.len()).chain(tiers) {
        let (together, others) = rules.split_at(count);
        rules = others;
        for (at, loose) in together.iter().enumerate() {
            let first = |(other, tight): &(usize, &At<Rule>)| {
                *other != at && covers(&tight.value, &loose.value)
            };
            let Some((_, tight)) = together.iter().enumerate().find(first) else {
                continue;
            };
            let rate = Rate {
                units: loose.value.units,
                window_us: loose.value.window_us,
            };
            let message = format!("`{rate}` of `limit.{}` can never deny", limit.name);
            let diagnostic = Diagnostic::new(Code::NeverDenies, message)
                .at(&loose.span, "")
                .at(&tight.span, "this rate always denies first");
            reader.report(diagnostic);
        }
    }
}

/// A network of everybody in `exempt`.
fn exempts_everyone(reader: &Reader<'_>, budget: &Budget) {
    let Some(limit) = &budget.limit else { return };
    if limit.exempt.nets.iter().all(|net| net.prefix_len() > 0) {
        return;
    }
    let message = format!("`limit.{}` exempts everybody", limit.name);
    let diagnostic = Diagnostic::new(Code::SparesEveryone, message)
        .at(&budget.name.span, "it limits nobody")
        .help("name the networks that it should leave alone: `exempt = [\"10.0.0.0/8\"]`");
    reader.report(diagnostic);
}

/// A header that says the tier is believed from trusted proxies only.
fn nobody_believed(reader: &Reader<'_>, compiled: &Compiled<'_>) {
    let Some(tiers) = &compiled.config.tier else {
        return;
    };
    let Some(parts) = &tiers.from else {
        return;
    };
    let header = parts.0.iter().find(|part| matches!(part, Part::Header(_)));
    if let Some(header) = header.filter(|_| compiled.config.client_ip.trusted.is_empty()) {
        let message = format!("nobody is believed who says a tier in `{header}`");
        let diagnostic = Diagnostic::new(Code::NobodyBelieved, message)
            .at(&compiled.tier_span, "believed from trusted proxies only")
            .help("name them in `trusted_proxies`, or use `jwt:CLAIM` or `keys_file`");
        reader.report(diagnostic);
    }
}

/// A limit that, on every route that uses it, stands beside one and the same tighter limit.
fn never_denies(reader: &Reader<'_>, compiled: &Compiled<'_>, uses: &Uses<'_>, index: usize) {
    let budget = &compiled.names.budgets[index];
    let (Some(limit), Some(first)) = (&budget.limit, uses.by_budget[index].first()) else {
        return;
    };
    let beside = |other: &Arc<Limit>| {
        let has = |route: &&Route| route.limits.iter().any(|one| Arc::ptr_eq(one, other));
        uses.by_budget[index].iter().all(has)
    };
    let tighter = first.limits.iter().find_map(|other| {
        let at = uses.index.get(&Arc::as_ptr(other)).copied()?;
        // Of two equal limits only the later one is superfluous.
        let is_reason = at != index && (at < index || !is_tighter(limit, other));
        (is_reason && is_tighter(other, limit) && beside(other)).then_some(at)
    });
    if let Some(other) = tighter.map(|at| &compiled.names.budgets[at]) {
        let message = format!("`limit.{}` can never deny", limit.name);
        let label = format!("`limit.{}` always denies first", other.name.value);
        let diagnostic = Diagnostic::new(Code::NeverDenies, message)
            .at(&budget.rate_span, "")
            .at(&other.rate_span, label)
            .note("both count by the same key, on the same routes");
        reader.report(diagnostic);
    }
}

fn open_login(reader: &Reader<'_>, budget: &Budget, routes: &[&Route]) {
    const WORDS: [&str; 8] = [
        "login", "signin", "sign-in", "log-in", "password", "token", "otp", "auth",
    ];
    let Some(limit) = budget
        .limit
        .as_ref()
        .filter(|limit| limit.on_error == OnError::Allow)
    else {
        return;
    };
    let like = |text: &str| {
        let text = text.to_ascii_lowercase();
        WORDS.iter().any(|word| text.contains(word))
    };
    let named_so = budget.used && like(&limit.name);
    if !named_so && !routes.iter().any(|route| like(&route.name)) {
        return;
    }
    let message = format!(
        "`limit.{}` guards a login, and not while the store is away",
        limit.name
    );
    let span = budget
        .on_error
        .as_ref()
        .map_or(&budget.name.span, |word| &word.span);
    let diagnostic = Diagnostic::new(Code::OpenLogin, message)
        .at(span, "an outage lets every guess pass")
        .help("use `on_error = \"local\"` or `\"deny\"`");
    reader.report(diagnostic);
}

fn own_upstream(reader: &Reader<'_>, compiled: &Compiled<'_>) {
    for target in &compiled.names.targets {
        for (server, span) in target.settings.servers.iter().zip(&target.server_spans) {
            let mut listens = compiled.config.listen.iter().zip(&compiled.listen_spans);
            if let Some((_, here)) = listens.find(|(listen, _)| is_same(listen, &server.address)) {
                report_own(reader, span, here);
            }
        }
    }
}

fn report_own(reader: &Reader<'_>, server: &Span, listen: &Span) {
    let mut diagnostic = Diagnostic::new(Code::OwnUpstream, "an upstream is this proxy itself")
        .at(server, "requests would go round in a circle")
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

/// A certificate that clients will not accept today.
fn untimely(reader: &Reader<'_>, compiled: &Compiled<'_>) {
    for one in &compiled.untimely {
        let (state, help) = match one.value {
            Validity::Early => ("is not valid yet", "look at this machine's clock"),
            _ => (
                "has expired",
                "renew it: it is read again as soon as its file changes",
            ),
        };
        let diagnostic = Diagnostic::new(Code::Untimely, format!("a certificate {state}"))
            .at(&one.span, "clients will refuse it")
            .help(help);
        reader.report(diagnostic);
    }
}

fn unused(reader: &Reader<'_>, compiled: &Compiled<'_>) {
    for budget in compiled.names.budgets.iter().filter(|budget| !budget.used) {
        let message = format!("no route uses `limit.{}`", budget.name.value);
        let diagnostic = Diagnostic::new(Code::UnusedLimit, message)
            .at(&budget.name.span, "it limits nothing")
            .help(format!(
                "add it to a route: `limits = [\"{}\"]`",
                budget.name.value
            ));
        reader.report(diagnostic);
    }
    for target in compiled.names.targets.iter().filter(|target| !target.used) {
        let message = format!("no route uses `upstream.{}`", target.settings.name);
        let diagnostic = Diagnostic::new(Code::UnusedUpstream, message)
            .at(&target.span, "nothing is sent there")
            .help(format!(
                "add it to a route: `upstream = \"{}\"`",
                target.settings.name
            ));
        reader.report(diagnostic);
    }
}
