//! The limits and upstreams that routes refer to: those with sections of their own, and those that
//! a route writes in place.

use std::collections::HashMap;
use std::sync::Arc;

use super::advice;
use super::diagnostic::{Code, Diagnostic, TextSpan};
use super::habits::nearest;
use super::limits::{Concurrent, RawLimit};
use super::reader::{ConfigReader, Located};
use super::upstream::DefinedUpstream;
use super::{Balance, UpstreamSettings, address};
use crate::limit::key::{Alternatives, Part};
use crate::limit::{Algorithm, Key, Limit, Missing, OnError, Rate, Rule, Tier, Window};
use crate::path::Case;
use crate::route;

/// The name of the route that the top-level `upstream` makes, and of the limit for routes that name
/// none.
pub(super) const DEFAULT: &str = "default";

/// A limit and its places in the file.
pub(super) struct DefinedLimit {
    pub(super) name: Located<String>,
    /// `None` if it is unlimited for all clients.
    pub(super) limit: Option<Arc<Limit>>,
    /// The place of its `rate` or `concurrent`.
    pub(super) rate_span: TextSpan,
    /// Every rule that is enforced for some client, those of the limit's own windows first.
    pub(super) rules: Vec<Located<Rule>>,
    pub(super) key: Located<Key>,
    pub(super) missing: Missing,
    pub(super) on_error: Option<Located<OnError>>,
    pub(super) is_used: bool,
}

/// Settings of other sections that hold where a limit or a route does not set its own.
#[derive(Clone, Copy)]
pub(super) struct Inherited {
    pub(super) on_error: OnError,
    /// Bytes of a request's body; `None` for no bound.
    pub(super) max_body: Option<u64>,
    /// Whether paths ignore letter case, if the file says it.
    pub(super) case: Option<Case>,
}

/// The limits and upstreams of a file.
pub(super) struct Definitions<'r> {
    pub(super) reader: &'r ConfigReader<'r>,
    pub(super) inherited: Inherited,
    pub(super) limits: Vec<DefinedLimit>,
    pub(super) upstreams: Vec<DefinedUpstream>,
    /// The numbers of routes for which the file does not mention letter case, with the places of
    /// their paths.
    pub(super) without_case: Vec<Located<usize>>,
    /// Whether some route has no limits and does not say so by `limits = []`.
    pub(super) has_unlimited_route: bool,
    /// How many limits have a number: those of `unlimited` have none.
    numbered: usize,
    /// How many limits have a section. The others are rates in place, which have no name in the
    /// file.
    sections: usize,
    limits_by_name: HashMap<String, usize>,
    upstreams_by_name: HashMap<String, usize>,
}

impl<'r> Definitions<'r> {
    /// The definitions of a file with these sections `[limit.NAME]` and `[upstream.NAME]`.
    pub(super) fn new(
        reader: &'r ConfigReader<'r>,
        inherited: Inherited,
        limits: Vec<RawLimit>,
        upstreams: Vec<DefinedUpstream>,
    ) -> Definitions<'r> {
        let mut definitions = Definitions {
            reader,
            inherited,
            limits: Vec::new(),
            upstreams: Vec::new(),
            without_case: Vec::new(),
            has_unlimited_route: false,
            numbered: 0,
            sections: limits.len(),
            limits_by_name: HashMap::new(),
            upstreams_by_name: HashMap::new(),
        };
        for limit in limits {
            definitions.add_limit(limit);
        }
        for upstream in upstreams {
            definitions.add_upstream(upstream);
        }
        definitions
    }

    /// Checks a limit and adds it; returns its index.
    pub(super) fn add_limit(&mut self, raw: RawLimit) -> usize {
        let index = self.limits.len();
        self.limits_by_name.insert(raw.name.value.clone(), index);
        let mut defined = define_limit(self.reader, raw, self.inherited.on_error);
        if let Some(limit) = &mut defined.limit {
            Arc::make_mut(limit).number = self.numbered;
            self.numbered += 1;
        }
        self.limits.push(defined);
        index
    }

    /// The index of the limit whose section has this name.
    pub(super) fn limit_named(&self, name: &str) -> Option<usize> {
        let index = self.limits_by_name.get(name).copied();
        index.filter(|index| *index < self.sections)
    }

    /// Whether there is a limit for routes that name none.
    pub(super) fn has_default_limit(&self) -> bool {
        self.limit_named(DEFAULT).is_some()
    }

    /// Whether any limit has this name, with a section or without.
    pub(super) fn is_limit(&self, name: &str) -> bool {
        self.limits_by_name.contains_key(name)
    }

    /// Limits with sections.
    pub(super) fn limits_with_sections(&self) -> &[DefinedLimit] {
        &self.limits[..self.sections]
    }

    /// The key that chooses among the servers of a route's upstream, if a key does.
    pub(super) fn balance_key(&self, target: &route::Target) -> Option<Key> {
        let route::Target::Upstream(upstream) = target else {
            return None;
        };
        match &self.upstreams.get(*upstream)?.settings.balance {
            Balance::Hash(key) => Some(key.clone()),
            Balance::P2c | Balance::RoundRobin => None,
        }
    }

    fn add_upstream(&mut self, upstream: DefinedUpstream) -> usize {
        let index = self.upstreams.len();
        let name = upstream.settings.name.to_string();
        self.upstreams_by_name.insert(name, index);
        self.upstreams.push(upstream);
        index
    }

    /// The index of the upstream that `upstream = TEXT` refers to: by its name, or by a server's
    /// URL.
    pub(super) fn find_upstream(&mut self, text: &Located<String>) -> Option<usize> {
        let named = self.upstreams_by_name.get(&text.value).copied();
        let index = match named {
            Some(index) => index,
            None if address::is_server(&text.value) => self.upstream_in_place(text)?,
            None => {
                self.report_unknown_upstream(text);
                return None;
            }
        };
        self.upstreams[index].is_used = true;
        Some(index)
    }

    /// The upstream of one server that a route names by its URL.
    fn upstream_in_place(&mut self, text: &Located<String>) -> Option<usize> {
        let server = match address::server(&text.value) {
            Ok(server) => server.within(|path| self.reader.surroundings.path(path)),
            Err(error) => {
                let diagnostic = Diagnostic::new(Code::BadUrl, "`upstream` is not a server's URL")
                    .at_error(&text.span, &error);
                let help = diagnostic.help.clone();
                let help = help.or_else(|| advice::for_text(Code::BadUrl, &text.value));
                self.reader.report(diagnostic.maybe_help(help));
                return None;
            }
        };
        let name = address::server_name(&server);
        let known = self.upstreams_by_name.get(&name).copied();
        Some(known.unwrap_or_else(|| {
            self.add_upstream(DefinedUpstream {
                settings: UpstreamSettings::new(&name, vec![server.into()]),
                span: text.span.clone(),
                server_spans: vec![text.span.clone()],
                is_used: true,
            })
        }))
    }

    fn report_unknown_upstream(&self, text: &Located<String>) {
        if self.reader.is_misnamed("upstream", &text.value) {
            return;
        }
        let names = self.upstreams.iter().map(|one| &*one.settings.name);
        let help = match nearest(&text.value, names) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("define it: `[upstream.{}]`, or write a URL", text.value),
        };
        Diagnostic::new(
            Code::UnknownUpstream,
            format!("no upstream is called `{}`", text.value),
        )
        .at(&text.span, "")
        .help(help)
        .report_to(self.reader);
    }
}

/// Checks a limit and compiles it.
fn define_limit(reader: &ConfigReader<'_>, raw: RawLimit, on_error: OnError) -> DefinedLimit {
    let compile = |rates: &[Located<Rate>]| -> Vec<Located<Rule>> {
        let rules = rates.iter().map(|rate| compile_rule(reader, &raw, rate));
        rules.collect()
    };
    let mut rules = compile(&raw.rates.value);
    rules.extend(raw.concurrent.iter().map(concurrent_rule));
    let own = bare_rules(&rules);
    let mut tiers = Vec::new();
    for tier in &raw.tiers {
        let tier_rules = compile(&tier.rates);
        tiers.push(Tier {
            name: tier.name.value.as_str().into(),
            windows: Window::all(&raw.name.value, &bare_rules(&tier_rules)),
        });
        rules.extend(tier_rules);
    }
    let candidate = compile(raw.candidate.as_slice());
    check_cost(reader, &raw, &rules);
    let key = match raw.key {
        Some(key) => key,
        None => Located::new(by_address(), &raw.name.span),
    };
    let limit = Limit {
        tiers,
        candidate: (candidate.iter())
            .map(|rule| Arc::new(Window::candidate(&raw.name.value, rule.value)))
            .collect(),
        shadow: raw.shadow,
        missing: raw.missing,
        on_error: raw.on_error.as_ref().map_or(on_error, |word| word.value),
        cost: raw.cost,
        each: raw.each,
        exempt: raw.exempt,
        lease_us: raw.lease.map_or(0, |lease| lease.value),
        slot: raw.slot.map(Arc::from),
        ..Limit::new(&raw.name.value, &own, key.value.clone())
    };
    let has_rules = !rules.is_empty() || !limit.candidate.is_empty();
    DefinedLimit {
        rate_span: match raw.concurrent {
            Some(concurrent) => concurrent.span,
            None => raw.rates.span,
        },
        name: raw.name,
        limit: has_rules.then(|| Arc::new(limit)),
        rules,
        key,
        missing: raw.missing,
        on_error: raw.on_error,
        is_used: false,
    }
}

/// The default key of limits and routes.
fn by_address() -> Key {
    Key {
        parts: vec![Alternatives(vec![Part::Ip])],
    }
}

fn bare_rules(rules: &[Located<Rule>]) -> Vec<Rule> {
    rules.iter().map(|rule| rule.value).collect()
}

fn concurrent_rule(concurrent: &Located<Concurrent>) -> Located<Rule> {
    let rule = Rule {
        algorithm: Algorithm::Slots,
        units: concurrent.value.units,
        window_us: concurrent.value.hold_us,
        precision_us: 1,
    };
    Located::new(rule, &concurrent.span)
}

/// The rule that the store enforces for a rate. Without `algorithm` and `precision` the size of the
/// rate decides. With `algorithm = "log"` alone the rule is exact.
fn compile_rule(reader: &ConfigReader<'_>, raw: &RawLimit, rate: &Located<Rate>) -> Located<Rule> {
    let algorithm = raw.algorithm.as_ref().map(|word| word.value);
    let precision = raw.precision.as_ref().map(|length| length.value);
    let rule = match (algorithm, precision) {
        (None, None) => Rule::by_size(rate.value),
        (Some(Algorithm::Counter), _) => Rule {
            algorithm: Algorithm::Counter,
            ..Rule::log(rate.value, 1)
        },
        (_, precision) => Rule::log(rate.value, precision.unwrap_or(1)),
    };
    let rule = Located::new(rule, &rate.span);
    check_exactness(reader, raw, &rule);
    rule
}

/// The counter compares products in doubles: they must stay exact (`docs/limits.md`).
fn check_exactness(reader: &ConfigReader<'_>, raw: &RawLimit, rule: &Located<Rule>) {
    const EXACT: u64 = 1 << 53;
    let Rule {
        units, window_us, ..
    } = rule.value;
    let product = units.checked_mul(window_us);
    let product = product.and_then(|half| half.checked_mul(2));
    let is_counter = rule.value.algorithm == Algorithm::Counter;
    if !is_counter || product.is_some_and(|product| product < EXACT) {
        return;
    }
    let message = "too many units over too long a window for `algorithm = \"counter\"`";
    let most = (EXACT - 1) / 2 / window_us;
    let mut diagnostic = Diagnostic::new(Code::LimitTooLarge, message)
        .at(&rule.span, format!("at most {most} in this window"))
        .help("use a shorter window, or `algorithm = \"log\"`");
    if let Some(word) = &raw.algorithm {
        diagnostic = diagnostic.at(&word.span, "");
    }
    reader.report(diagnostic);
}

fn check_cost(reader: &ConfigReader<'_>, raw: &RawLimit, rules: &[Located<Rule>]) {
    let cost = raw.cost;
    for rule in rules.iter().filter(|rule| cost > rule.value.units) {
        let message = format!("`limit.{}` can never allow a request", raw.name.value);
        let label = format!("each request costs {cost} here");
        Diagnostic::new(Code::CostAboveLimit, message)
            .help("lower the `cost`, or raise the `rate`")
            .at(&rule.span, label)
            .report_to(reader);
    }
}
