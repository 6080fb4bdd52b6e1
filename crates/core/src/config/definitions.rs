//! The limits, upstreams and usages that routes refer to: those with sections of their own, and
//! those that a route writes in place.

use std::collections::HashMap;
use std::sync::Arc;

use super::access_log::DefinedLogs;
use super::error_page::DefinedPages;
use super::limits::DefinedLimit;
use super::upstream::DefinedUpstream;
use super::usage::DefinedUsage;
use super::*;
use crate::limit::{Key, OnError, Rule};
use crate::path::Case;
use crate::route;
use crate::usage::settings::PriceTable;

/// The name of the route that the top-level `upstream` makes, and of the limit for routes that name
/// none.
pub(super) const DEFAULT: &str = "default";

/// Settings of other sections that hold where a limit or a route does not set its own.
#[derive(Clone, Copy)]
pub(super) struct Inherited {
    pub(super) on_error: OnError,
    /// Bytes of a request's body; `None` for no bound.
    pub(super) max_body: Option<u64>,
    /// Whether paths ignore letter case, if the file says it.
    pub(super) case: Option<Case>,
    /// Whether clients show certificates.
    pub(super) certificates: bool,
}

/// Places of one route that warnings point to.
pub(super) struct RoutePlaces {
    pub(super) path: TextSpan,
    /// The place of `cost`.
    pub(super) cost: TextSpan,
    /// The place of `port`.
    pub(super) port: TextSpan,
    /// The place of `headers`.
    pub(super) headers: TextSpan,
    /// The index of its usage.
    pub(super) usage: Option<Located<usize>>,
}

pub(super) struct Definitions<'r> {
    pub(super) reader: &'r ConfigReader<'r>,
    pub(super) inherited: Inherited,
    pub(super) limits: Vec<DefinedLimit>,
    pub(super) upstreams: Vec<DefinedUpstream>,
    pub(super) usages: Vec<DefinedUsage>,
    pub(super) prices: Arc<PriceTable>,
    pub(super) error_pages: DefinedPages,
    pub(super) access_logs: DefinedLogs,
    /// By the numbers of routes.
    pub(super) route_places: Vec<RoutePlaces>,
    /// The numbers of routes for which the file does not mention letter case, with the places of
    /// their paths.
    pub(super) without_case: Vec<Located<usize>>,
    /// Whether some route has no limits and does not say so by `limits = []`.
    pub(super) has_unlimited_route: bool,
    /// Whether the file serves no clients, only proxies that ask for decisions.
    pub(super) only_decides: bool,
    /// Whether a ledger has the tokens or the money of requests.
    pub(super) bills_tokens: bool,
    /// The settings of routes that need the response, in a file that only decides.
    pub(super) unseen_responses: Vec<Located<&'static str>>,
    /// Whether the file has rules for descriptors.
    pub(super) has_descriptors: bool,
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
        limits: Vec<DefinedLimit>,
        upstreams: Vec<DefinedUpstream>,
    ) -> Definitions<'r> {
        let mut definitions = Definitions {
            reader,
            inherited,
            limits: Vec::new(),
            upstreams: Vec::new(),
            usages: Vec::new(),
            prices: Arc::default(),
            error_pages: DefinedPages::default(),
            access_logs: DefinedLogs::default(),
            route_places: Vec::new(),
            without_case: Vec::new(),
            has_unlimited_route: false,
            only_decides: false,
            bills_tokens: false,
            unseen_responses: Vec::new(),
            has_descriptors: false,
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

    pub(super) fn add_limit(&mut self, mut defined: DefinedLimit) -> usize {
        let index = self.limits.len();
        self.limits_by_name
            .insert(defined.name.value.clone(), index);
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

    /// The places of all rates and of `concurrent`.
    pub(super) fn rate_places(&self) -> Vec<RatePlace> {
        let mut places = Vec::new();
        for defined in &self.limits {
            let Some(limit) = &defined.limit else {
                continue;
            };
            let own = (None, limit.windows.len());
            let tiers = limit.tiers.iter();
            let tiers = tiers.map(|tier| (Some(&tier.name), tier.windows.len()));
            let counts = std::iter::once(own).chain(tiers);
            let tiers = counts.flat_map(|(tier, count)| std::iter::repeat_n(tier, count));
            let mut add = |tier: Option<&Arc<str>>, is_candidate, rule: &Located<Rule>| {
                places.push(RatePlace {
                    limit: Arc::clone(&limit.name),
                    tier: tier.cloned(),
                    is_candidate,
                    rule: rule.value,
                    span: rule.span.clone(),
                });
            };
            for (rule, tier) in defined.rules.iter().zip(tiers) {
                add(tier, false, rule);
            }
            for rule in &defined.candidate {
                add(None, true, rule);
            }
        }
        places
    }

    /// Whether there is a limit for routes that name none.
    pub(super) fn has_default_limit(&self) -> bool {
        self.limit_named(DEFAULT).is_some()
    }

    /// Whether any limit has this name, with a section or without.
    pub(super) fn is_limit(&self, name: &str) -> bool {
        self.limits_by_name.contains_key(name)
    }

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
                let help = help.or_else(|| habits::advice_for(Code::BadUrl, &text.value));
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
        let otherwise = format!("define it: `[upstream.{}]`, or write a URL", text.value);
        text.unknown(Code::UnknownUpstream, "upstream")
            .help(did_you_mean(&text.value, names, otherwise))
            .report_to(self.reader);
    }
}
