//! The limit checks of each descriptor of a call.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Exchange;
use super::admit::{Admission, CheckedClient};
use super::rate_limit_call::{CallDescriptor, DescriptorStatus, Hits, RateLimitCall};
use super::rejection::{Blocked, Rejection};
use super::stages::Stages;
use crate::config::LogKeys;
use crate::descriptor::DescriptorRule;
use crate::limit::key::{DescriptorEntry, DescriptorFacts, Key, Part};
use crate::limit::{Algorithm, Asker, Charge, KeyHash, Limit, Rate, Rule, Window};
use crate::store::overrides::{KeyBlock, OverrideSnapshot};
use crate::telemetry::metrics::decide::OTHER_DOMAIN;
use crate::trace::TraceId;

/// One descriptor of a call, and the checks that its rule asks for.
pub(super) struct CallPart<'r> {
    pub(super) rule: Option<&'r DescriptorRule>,
    pub(super) kind: PartKind,
    pub(super) hits: Hits,
    pub(super) has_own_hits: bool,
    pub(super) charge: Charge,
    pub(super) shadow: Vec<Charge>,
    /// The status of a descriptor that gave units back.
    pub(super) refunded: Option<DescriptorStatus>,
    pub(super) is_blocked: bool,
    /// Why an operator, or a rule with `block`, denies the whole call.
    pub(super) refused: Option<Rejection>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartKind {
    /// No rule takes the descriptor, or another descriptor replaces it.
    Unmatched,
    /// One decision with all others of this kind.
    Together,
    /// Decides by itself, and charges what it denies.
    Always,
    /// The same; it denies the call only together with all others of this kind.
    Quota,
    Refund,
}

/// One descriptor with what its keys are derived from.
struct DescriptorQuery<'c, 'm> {
    descriptor: &'c CallDescriptor<'m>,
    facts: DescriptorFacts<'c>,
    /// The client's address, not grouped.
    client: Option<IpAddr>,
    cost: u64,
    /// The trace of the call for the decision log.
    trace: Option<TraceId>,
}

impl Stages {
    pub(super) fn call_parts<'r, B, R>(
        &'r self,
        call: &RateLimitCall<'_>,
        overrides: Option<&OverrideSnapshot>,
        x: &mut Exchange<'_, B, R>,
    ) -> SmallVec<[CallPart<'r>; 4]> {
        let find = |one: &CallDescriptor<'_>| self.descriptors.find(call.domain, &one.entries);
        let rules: SmallVec<[_; 4]> = call.descriptors.iter().map(find).collect();
        let is_replaced = |rule: &DescriptorRule| {
            let mut others = rules.iter().flatten();
            others.any(|other| other.replaces.contains(&rule.name))
        };
        let first = rules.iter().flatten().next();
        x.record.route = first.map(|rule| Arc::clone(&rule.name));
        let mut parts = SmallVec::new();
        for (descriptor, rule) in call.descriptors.iter().zip(&rules) {
            let client = DescriptorFacts::address_entry(&descriptor.entries);
            let client = client.and_then(DescriptorFacts::address);
            if let Some(client) = client {
                x.record.client = client;
            }
            let described = DescriptorQuery {
                descriptor,
                facts: DescriptorFacts {
                    entries: &descriptor.entries,
                    ip: client.map(|client| self.router.client_ip.group(client)),
                },
                client,
                cost: descriptor.hits.charged(),
                trace: self.logged_trace(&x.record),
            };
            let mut part = match rule.filter(|rule| !is_replaced(rule)) {
                None if rule.is_none() => self.unmatched(call.domain, &described),
                None => CallPart::new(None, PartKind::Unmatched, descriptor.hits),
                Some(rule) => self.part(call.domain, rule, &described, overrides),
            };
            part.has_own_hits = descriptor.has_own_hits;
            if part.refused.is_some() {
                x.record.route = part.rule.map(|rule| Arc::clone(&rule.name));
            }
            parts.push(part);
        }
        parts
    }

    /// A descriptor that no rule takes. A limit that the caller brings holds all the same, if the
    /// domain is known.
    fn unmatched<'r>(&'r self, domain: &str, described: &DescriptorQuery<'_, '_>) -> CallPart<'r> {
        let hits = described.descriptor.hits;
        let mut part = CallPart::new(None, PartKind::Unmatched, hits);
        let domain_label = match self.descriptors.has_domain(domain) {
            true => domain,
            false => OTHER_DOMAIN,
        };
        self.limiter.meter.decide().count_unmatched(domain_label);
        self.note_ignored_limit(described);
        let rate = described.descriptor.limit.filter(|_| self.believes_limits);
        if let Some(rate) = rate.filter(|_| self.descriptors.has_domain(domain)) {
            part.kind = PartKind::new(None, hits);
            self.add_own_limit(&mut part, domain, rate, described);
        }
        part
    }

    fn part<'r>(
        &'r self,
        domain: &str,
        rule: &'r DescriptorRule,
        described: &DescriptorQuery<'_, '_>,
        overrides: Option<&OverrideSnapshot>,
    ) -> CallPart<'r> {
        let hits = described.descriptor.hits;
        let mut part = CallPart::new(Some(rule), PartKind::new(Some(rule), hits), hits);
        self.note_ignored_limit(described);
        let key = self.limiter.hash_key();
        if let (Some(overrides), Some(_)) = (overrides, described.facts.ip) {
            let tag = Key::ip().of_descriptor(&described.facts, &key.key);
            self.refuse_if_blocked(&mut part, overrides, tag, described);
        }
        if let Some(rate) = described.descriptor.limit.filter(|_| self.believes_limits) {
            self.add_own_limit(&mut part, domain, rate, described);
            return part;
        }
        if rule.is_block {
            let all = all_entries(&described.facts);
            let tag = all.of_descriptor(&described.facts, &key.key);
            part.refuse(tag, KeyBlock::default());
        }
        for limit in &rule.limits {
            // The configuration refuses a key that a descriptor of the rule does not have.
            let Some(tag) = limit.key.of_descriptor(&described.facts, &key.key) else {
                continue;
            };
            let mut windows = Cow::Borrowed(limit.windows_of(None));
            if let Some(overrides) = overrides {
                self.refuse_if_blocked(&mut part, overrides, Some(tag), described);
                let set = overrides.windows(limit, tag);
                windows = set.unwrap_or(windows);
            }
            if described.is_exempt(limit) {
                self.limiter.count_bypassed(std::slice::from_ref(limit));
                continue;
            }
            let asker = self.descriptor_asker(limit, described);
            part.add(limit, &windows, tag, described.cost, asker);
        }
        part
    }

    /// Denies the call if the key is blocked. A client that is exempt from the limit of a ban is
    /// spared.
    fn refuse_if_blocked(
        &self,
        part: &mut CallPart<'_>,
        overrides: &OverrideSnapshot,
        tag: Option<KeyHash>,
        described: &DescriptorQuery<'_, '_>,
    ) {
        let Some(block) = tag.and_then(|tag| overrides.block_of(tag)) else {
            return;
        };
        let limit = block.ban.as_deref().and_then(|name| self.banning(name));
        if !limit.is_some_and(|limit| described.is_exempt(limit)) {
            part.refuse(tag, block);
        }
    }

    fn note_ignored_limit(&self, described: &DescriptorQuery<'_, '_>) {
        if described.descriptor.limit.is_some() && !self.believes_limits {
            self.limiter.meter.decide().ignored_limits.add(1);
        }
    }

    /// Counts by a limit that the caller brings, for the domain and all entries.
    fn add_own_limit(
        &self,
        part: &mut CallPart<'_>,
        domain: &str,
        rate: Rate,
        described: &DescriptorQuery<'_, '_>,
    ) {
        let first = part.rule.and_then(|rule| rule.limits.first());
        let name = first.map_or("caller", |limit| &*limit.name);
        let rule = Rule::by_size(rate);
        let key = all_entries(&described.facts);
        let limit = Limit {
            number: first.map_or(usize::MAX, |limit| limit.number),
            windows: vec![Arc::new(Window::of_caller(name, domain, rule))],
            on_error: first.map_or(self.on_error, |limit| limit.on_error),
            refunds: true,
            ..Limit::new(name, &[], key.clone())
        };
        let secret = self.limiter.hash_key();
        if let Some(tag) = key.of_descriptor(&described.facts, &secret.key) {
            let limit = Arc::new(limit);
            part.add(&limit, &limit.windows, tag, described.cost, None);
        }
    }

    fn descriptor_asker(
        &self,
        limit: &Limit,
        described: &DescriptorQuery<'_, '_>,
    ) -> Option<Arc<Asker>> {
        let is_plain = self.log_keys == LogKeys::Plain;
        if !is_plain && described.trace.is_none() {
            return None;
        }
        let spelled = is_plain.then(|| limit.key.spell_descriptor(&described.facts));
        Some(Arc::new(Asker {
            key: spelled.flatten().map(Arc::from),
            trace: described.trace,
            tokens: None,
        }))
    }
}

/// A key of all entries of a descriptor.
fn all_entries(facts: &DescriptorFacts<'_>) -> Key {
    let part = |entry: &DescriptorEntry<'_>| Part::Entry(entry.key.to_owned());
    Key::all_of(facts.entries.iter().map(part))
}

impl DescriptorQuery<'_, '_> {
    fn is_exempt(&self, limit: &Limit) -> bool {
        limit
            .exempt
            .has_descriptor(self.client, &limit.key, &self.facts)
    }
}

impl PartKind {
    fn new(rule: Option<&DescriptorRule>, hits: Hits) -> PartKind {
        match (hits, rule) {
            (Hits::Refund(_), _) => PartKind::Refund,
            (_, Some(rule)) if rule.is_quota => PartKind::Quota,
            (_, Some(rule)) if rule.charges_always => PartKind::Always,
            _ => PartKind::Together,
        }
    }
}

impl<'r> CallPart<'r> {
    fn new(rule: Option<&'r DescriptorRule>, kind: PartKind, hits: Hits) -> CallPart<'r> {
        CallPart {
            rule,
            kind,
            hits,
            has_own_hits: false,
            charge: Charge::new(),
            shadow: Vec::new(),
            refunded: None,
            is_blocked: false,
            refused: None,
        }
    }

    fn add(
        &mut self,
        limit: &Arc<Limit>,
        windows: &[Arc<Window>],
        tag: KeyHash,
        cost: u64,
        asker: Option<Arc<Asker>>,
    ) {
        let mut admission = Admission::default();
        // A descriptor has no anchor: that of the limit counts.
        let client = CheckedClient { tag, anchor: None };
        admission.add(limit, windows, client, limit.units(cost), asker);
        let slots =
            |check: &crate::limit::LimitCheck| check.window.rule.algorithm == Algorithm::Slots;
        admission.charge.retain(|check| !slots(check));
        self.charge.append(&mut admission.charge);
        self.shadow.append(&mut admission.shadow);
    }

    fn refuse(&mut self, tag: Option<KeyHash>, block: KeyBlock) {
        if self.kind == PartKind::Refund {
            return;
        }
        self.is_blocked = true;
        let tag = tag.unwrap_or(KeyHash([0; 16]));
        let blocked = Blocked {
            tag,
            plain: None,
            left_us: block.left_us,
            ban: block.ban,
        };
        self.refused
            .get_or_insert(Rejection::Blocked(Box::new(blocked)));
    }
}
