//! Warnings about limits: those that deny nothing or too late, and those that a client gets around.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::usage::values_help;
use crate::config::compile::Compiled;
use crate::config::limits::DefinedLimit;
use crate::config::*;
use crate::limit::key::{Alternatives, Key, Part, UnknownKey};
use crate::limit::{Algorithm, Limit, Missing, OnError, Rate, Rule};
use crate::route::Route;

/// Units of a log that takes megabytes for each key: 8 bytes a unit.
const LARGE_LOG: u64 = 1_000_000;

/// The index of each limit among the definitions, by its address.
type LimitIndex = HashMap<*const Limit, usize>;

/// Reports all warnings about limits. Returns the indexes of those that were refused, because
/// clients can invent members of bodies that they count by.
pub(super) fn find(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) -> BTreeSet<usize> {
    let uses = Uses::new(compiled);
    for (index, defined) in compiled.definitions.limits.iter().enumerate() {
        check_client_chosen_key(reader, defined);
        check_large_log(reader, defined);
        check_redundant_rates(reader, defined);
        check_never_denies(reader, compiled, &uses, index);
        if !compiled.places.counts_here {
            check_open_login(reader, defined, &uses.by_limit[index]);
        }
        check_exempts_everyone(reader, defined);
    }
    check_known_keys(reader, compiled);
    check_inventable_keys(reader, compiled, &uses.index)
}

/// The routes of each limit.
struct Uses<'c> {
    /// By the limit's index among the definitions.
    by_limit: Vec<Vec<&'c Route>>,
    index: LimitIndex,
}

impl<'c> Uses<'c> {
    fn new(compiled: &'c Compiled<'_>) -> Uses<'c> {
        let limits = &compiled.definitions.limits;
        let indexed = limits.iter().enumerate().filter_map(|(index, defined)| {
            let limit = defined.limit.as_ref()?;
            Some((Arc::as_ptr(limit), index))
        });
        let index: HashMap<_, _> = indexed.collect();
        let mut by_limit = vec![Vec::new(); limits.len()];
        for route in compiled.config.routes.iter() {
            for limit in &route.limits {
                if let Some(index) = index.get(&Arc::as_ptr(limit)) {
                    by_limit[*index].push(route);
                }
            }
        }
        Uses { by_limit, index }
    }
}

fn check_client_chosen_key(reader: &ConfigReader<'_>, defined: &DefinedLimit) {
    let Some(part) = defined
        .key
        .value
        .all()
        .find(|part| part.is_chosen_by_client())
    else {
        return;
    };
    // A rate in place takes the default limit's key: that limit has the warning.
    if defined.name.span == defined.rate_span {
        return;
    }
    let message = format!(
        "clients choose what `limit.{}` counts them by",
        defined.name.value
    );
    Diagnostic::new(Code::ClientChosenKey, message)
        .at(
            &defined.key.span,
            format!("the client chooses the value of `{part}`"),
        )
        .help("use `key = \"ip\"`, and name your proxies in `trusted_proxies`")
        .report_to(reader);
}

fn check_large_log(reader: &ConfigReader<'_>, defined: &DefinedLimit) {
    let Some(limit) = &defined.limit else { return };
    let entries = |rule: &Rule| match rule.algorithm {
        Algorithm::Log => rule.units.min(rule.window_us / rule.precision_us),
        Algorithm::Counter | Algorithm::Slots | Algorithm::Calendar => 0,
    };
    let largest = defined.rules.iter().max_by_key(|rule| entries(&rule.value));
    let Some(rule) = largest.filter(|rule| entries(&rule.value) >= LARGE_LOG) else {
        return;
    };
    let size = entries(&rule.value) * 8 / 1_000_000;
    let message = format!("`limit.{}` stores every request of its window", limit.name);
    Diagnostic::new(Code::LargeLog, message)
        .at(&rule.span, format!("up to {size} MB for each key"))
        .help("without `algorithm` and `precision` a key takes 8 KB, and units count 0.1 % longer")
        .report_to(reader);
}

/// Whether `tight` always denies before `loose`: the windows of `tight` that cover one of `loose`
/// hold fewer units. Only exact logs allow this conclusion. A coarse log counts a unit for longer
/// than its window.
fn covers(tight: &Rule, loose: &Rule) -> bool {
    let longest_us = loose.window_us + loose.precision_us - 1;
    let windows = longest_us.div_ceil(tight.window_us);
    let most = windows.checked_mul(tight.units);
    let logs = [tight, loose].map(|rule| rule.algorithm) == [Algorithm::Log; 2];
    logs && most.is_some_and(|most| most <= loose.units)
}

/// Whether one limit always denies before the other.
fn is_tighter(tight: &Limit, loose: &Limit) -> bool {
    let plain = |limit: &Limit| limit.tiers.is_empty() && !limit.shadow;
    plain(tight)
        && plain(loose)
        && !loose.windows.is_empty()
        && tight.key == loose.key
        && tight.missing == loose.missing
        && tight.exempt == loose.exempt
        && tight.cost >= loose.cost
        && tight.counts == loose.counts
        && (loose.windows.iter())
            .all(|loose| (tight.windows.iter()).any(|tight| covers(&tight.rule, &loose.rule)))
}

/// Reports rates of a limit that can never deny: another of its rates always denies first.
fn check_redundant_rates(reader: &ConfigReader<'_>, defined: &DefinedLimit) {
    let Some(limit) = &defined.limit else { return };
    let tiers = limit.tiers.iter().map(|tier| tier.windows.len());
    let mut rules = defined.rules.as_slice();
    for count in std::iter::once(limit.windows.len()).chain(tiers) {
        let (together, others) = rules.split_at(count);
        rules = others;
        for (at, loose) in together.iter().enumerate() {
            let first = |(other, tight): &(usize, &Located<Rule>)| {
                *other != at && covers(&tight.value, &loose.value)
            };
            let Some((_, tight)) = together.iter().enumerate().find(first) else {
                continue;
            };
            let rate = Rate::from_rule(loose.value);
            let message = format!("`{rate}` of `limit.{}` can never deny", limit.name);
            Diagnostic::new(Code::NeverDenies, message)
                .at(&loose.span, "")
                .at(&tight.span, "this rate always denies first")
                .report_to(reader);
        }
    }
}

/// Reports `exempt` with a network of all addresses.
fn check_exempts_everyone(reader: &ConfigReader<'_>, defined: &DefinedLimit) {
    let Some(limit) = &defined.limit else { return };
    if limit.exempt.nets.iter().all(|net| net.prefix_len() > 0) {
        return;
    }
    Diagnostic::new(
        Code::SparesEveryone,
        format!("`limit.{}` exempts everybody", limit.name),
    )
    .at(&defined.name.span, "it limits nobody")
    .help("name the networks to exempt: `exempt = [\"10.0.0.0/8\"]`")
    .report_to(reader);
}

/// Reports a limit that can never deny: all its routes have the same tighter limit.
fn check_never_denies(
    reader: &ConfigReader<'_>,
    compiled: &Compiled<'_>,
    uses: &Uses<'_>,
    index: usize,
) {
    let defined = &compiled.definitions.limits[index];
    let (Some(limit), Some(first)) = (&defined.limit, uses.by_limit[index].first()) else {
        return;
    };
    let beside = |other: &Arc<Limit>| {
        let has = |route: &&Route| route.limits.iter().any(|one| Arc::ptr_eq(one, other));
        uses.by_limit[index].iter().all(has)
    };
    let tighter = first.limits.iter().find_map(|other| {
        let at = uses.index.get(&Arc::as_ptr(other)).copied()?;
        // Of two equal limits only the later one is superfluous.
        let is_reason = at != index && (at < index || !is_tighter(limit, other));
        (is_reason && is_tighter(other, limit) && beside(other)).then_some(at)
    });
    if let Some(other) = tighter.map(|at| &compiled.definitions.limits[at]) {
        let message = format!("`limit.{}` can never deny", limit.name);
        let label = format!("`limit.{}` always denies first", other.name.value);
        Diagnostic::new(Code::NeverDenies, message)
            .at(&defined.rate_span, "")
            .at(&other.rate_span, label)
            .note("both count by the same key, on the same routes")
            .report_to(reader);
    }
}

fn check_open_login(reader: &ConfigReader<'_>, defined: &DefinedLimit, routes: &[&Route]) {
    const WORDS: [&str; 8] = [
        "login", "signin", "sign-in", "log-in", "password", "token", "otp", "auth",
    ];
    let Some(limit) = defined
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
    let named_so = defined.is_used && like(&limit.name);
    if !named_so && !routes.iter().any(|route| like(&route.name)) {
        return;
    }
    let message = format!(
        "`limit.{}` does not protect a login while the store is away",
        limit.name
    );
    Diagnostic::new(Code::OpenLogin, message)
        .at(
            &defined.on_error_span,
            "during an outage every guess passes",
        )
        .help("use `on_error = \"local\"` or `\"deny\"`")
        .report_to(reader);
}

/// Reports routes whose limits all count by keys that a client can invent: a client that sends
/// another value with each request has a fresh budget each time. Returns the indexes of limits that
/// were refused.
fn check_inventable_keys(
    reader: &ConfigReader<'_>,
    compiled: &Compiled<'_>,
    index: &LimitIndex,
) -> BTreeSet<usize> {
    let mut reported = BTreeSet::new();
    let mut refused = BTreeSet::new();
    for route in compiled.config.routes.iter() {
        let found = inventable_limits(&compiled.config, route);
        let index_of = |limit: &Arc<Limit>| index.get(&Arc::as_ptr(limit)).copied();
        let indexes: Vec<usize> = found
            .iter()
            .filter_map(|(limit, _)| index_of(limit))
            .collect();
        // Routes with the same limits have the same fault.
        if indexes.is_empty() || !reported.insert(indexes.clone()) {
            continue;
        }
        let limits = indexes.iter().map(|at| &compiled.definitions.limits[*at]);
        let parts = found.iter().map(|(_, part)| *part);
        report_inventable(reader, compiled, route, limits.zip(parts).collect());
        if found.iter().any(|(_, part)| matches!(part, Part::Body(_))) {
            refused.extend(indexes);
        }
    }
    refused
}

/// Reports limits by API keys in a file where every key is unknown.
fn check_known_keys(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    if !compiled.config.keys_are_untold() {
        return;
    }
    let counts_by_key =
        |limit: &&DefinedLimit| limit.limit.is_some() && limit.key.value.asks_api_key();
    let mut limits = compiled.definitions.limits.iter();
    let Some(limit) = limits.find(counts_by_key) else {
        return;
    };
    let what = match compiled.config.api_key.unknown {
        UnknownKey::Deny => "every request with a key is refused",
        _ => "every key counts as no key: by the client's address, or by `missing`",
    };
    let message = match compiled.config.api_key.known.is_some() {
        true => "no API key is known: the file of known keys has none",
        false => "no API key is known: the file has no source of known keys",
    };
    Diagnostic::new(Code::UntoldKeys, message)
        .at(&limit.key.span, what)
        .help(
            "name the keys: `known = \"keys.txt\"` in `[api_key]`; or set `unknown = \"trust\"` \
             there, with a limit by `ip` beside; or count by `ip`, or by `jwt:CLAIM`",
        )
        .report_to(reader);
}

/// The route's limits whose key can be invented, with the part at fault; none if another of its
/// limits holds.
fn inventable_limits<'r>(config: &Config, route: &'r Route) -> Vec<(&'r Arc<Limit>, &'r Part)> {
    let mut found = Vec::new();
    for limit in route.limits.iter().filter(|limit| !limit.shadow) {
        match limit
            .key
            .parts
            .iter()
            .find_map(|part| inventable_part(config, &limit.key, part))
        {
            Some(part) => found.push((limit, part)),
            None if is_optional(limit) => {}
            None => return Vec::new(),
        }
    }
    // Such headers have a warning of their own.
    match found.iter().all(|(_, part)| part.is_chosen_by_client()) {
        true => Vec::new(),
        false => found,
    }
}

/// The alternative that a client can invent. Those before it can be left out: one that is present
/// in every request is always the last.
fn inventable_part<'k>(config: &Config, key: &Key, part: &'k Alternatives) -> Option<&'k Part> {
    let mut unlisted = part.0.iter().filter(|one| !key.lists(one));
    unlisted.find(|one| match one {
        Part::ApiKey => config.api_key.is_inventable(),
        // Trusted proxies may have set it.
        Part::Header(_) => config.client_ip.trusted.is_empty(),
        Part::Query(_) | Part::Cookie(_) | Part::PathParam(_) => true,
        Part::Ip | Part::Path | Part::Method | Part::Host | Part::Route => false,
        Part::Global | Part::Tier | Part::Jwt(_) | Part::Tls(_) => false,
        Part::Custom(_) | Part::Entry(_) => false,
        Part::Body(_) => true,
    })
}

/// Whether the limit does not count a request without its key.
fn is_optional(limit: &Limit) -> bool {
    let mut parts = limit.key.parts.iter();
    limit.missing == Missing::Skip && parts.any(|part| !part.0.iter().any(Part::is_always_present))
}

fn report_inventable(
    reader: &ConfigReader<'_>,
    compiled: &Compiled<'_>,
    route: &Route,
    limits: Vec<(&DefinedLimit, &Part)>,
) {
    let message = format!(
        "route `{}` has only limits by keys that clients can invent",
        route.name
    );
    let of_body = limits
        .iter()
        .find(|(_, part)| matches!(part, Part::Body(_)));
    let code = match of_body {
        Some(_) => Code::InventableValues,
        None => Code::InventableKey,
    };
    let mut diagnostic = Diagnostic::new(code, message);
    for (limit, part) in &limits {
        let label = format!("each new `{part}` has a budget of its own");
        diagnostic = diagnostic.at(&limit.key.span, label);
    }
    if limits.iter().any(|(_, part)| **part == Part::ApiKey)
        && let Some(span) = &compiled.places.unknown_keys
    {
        diagnostic = diagnostic.at(span, "unknown API keys are accepted");
    }
    let help = "add a limit by `ip` to the route; or count by a key that clients cannot invent: \
                `ip`, `jwt:CLAIM`, `tls:subject`, or `api_key` with `known = \"keys.txt\"`";
    diagnostic = match of_body {
        Some((_, part)) => diagnostic.help(format!(
            "{}, or add a limit by `ip` to the route",
            values_help(part)
        )),
        None => diagnostic.help(help),
    };
    let is_header = |(_, part): &(_, &Part)| matches!(part, Part::Header(_));
    if limits.iter().any(is_header) {
        let note = "if a proxy in front of this one sets the header, name it in `trusted_proxies`";
        diagnostic = diagnostic.note(note);
    }
    reader.report(diagnostic);
}
