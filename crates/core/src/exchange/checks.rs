//! The limit checks of a request: the route's limits, exemptions, and the overrides and blocks of
//! operators.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use super::admit::{Admission, CheckedClient};
use super::rejection::{Blocked, KeyFault, Rejection};
use super::reserve::UsageReserve;
use super::router::affinity;
use super::stages::{LeastChecks, LimitQuery, Stages};
use crate::config::LogKeys;
use crate::limit::key::{Derived, Facts, HashSecret, Part};
use crate::limit::{Asker, BLOCK_POLICY, KeyHash, Limit, Window};
use crate::store::overrides::{KeyBlock, OverrideSnapshot};

#[cold]
fn lacks_key(limit: &Limit, facts: &Facts<'_>) -> Rejection {
    Rejection::MissingKey(Box::new(KeyFault {
        limit: limit.name.clone(),
        advice: limit.key.missing_advice(facts),
        token: limit.key.lacking_token(facts),
    }))
}

#[cold]
fn has_several_keys(limit: &Limit, facts: &Facts<'_>) -> Rejection {
    Rejection::AmbiguousKey(Box::new(KeyFault {
        limit: limit.name.clone(),
        advice: limit.key.several_advice(facts),
        token: None,
    }))
}

impl Stages {
    /// Adds the checks of the route's limits to `admission`.
    pub(super) fn add_checks(
        &self,
        query: &LimitQuery<'_, '_, '_>,
        admission: &mut Admission,
    ) -> Result<(), Rejection> {
        let LimitQuery {
            head, found, facts, ..
        } = *query;
        let limiter = &self.limiter;
        let key = limiter.hash_key();
        admission.generation = key.generation;
        admission.affinity = affinity(found.route, facts);
        let limits = &found.route.limits;
        let is_preflight = found.route.is_preflight(head.method, head.headers);
        let free = limits.is_empty() || is_preflight;
        let is_bypassed = (free && query.overrides.is_none())
            || self
                .router
                .bypass_of(facts, head.client, found.route.case)
                .is_some();
        if let Some(overrides) = query.overrides.filter(|_| !is_bypassed) {
            self.refuse_blocked(overrides, query, &key.key)?;
        }
        if free || is_bypassed {
            limiter.count_bypassed(limits);
            return Ok(());
        }
        let cost = &found.route.cost;
        let cost = match cost.body_units(facts.body) {
            Some(units) => units,
            None => cost.units(head.headers, head.is_trusted),
        };
        for limit in limits {
            let exempt = limit.exempt.has(head.client, &limit.key, facts);
            match limit.key.derive(facts, limit.missing, &key.key) {
                Derived::Hash(tag) => {
                    let windows = self.windows_of(limit, query, tag)?;
                    if exempt {
                        limiter.count_bypassed(std::slice::from_ref(limit));
                    } else {
                        let asker = self.asker(limit, query);
                        let Some(units) = units_of(limit, &windows, cost, query.reserve) else {
                            if !limit.shadow {
                                return Err(Rejection::Unpriced(limit.name.clone()));
                            }
                            limiter.count_bypassed(std::slice::from_ref(limit));
                            continue;
                        };
                        let anchor = limit.anchor_of(facts);
                        let client = CheckedClient { tag, anchor };
                        admission.add(limit, &windows, client, units, asker);
                    }
                }
                Derived::Skip => {}
                // A limit in shadow mode refuses no request.
                _ if exempt || limit.shadow => {
                    limiter.count_bypassed(std::slice::from_ref(limit));
                }
                Derived::Denied => return Err(lacks_key(limit, facts)),
                Derived::Ambiguous => return Err(has_several_keys(limit, facts)),
                Derived::Unknown => return Err(Rejection::UnknownKey(limit.name.clone())),
            }
        }
        if let Some(reserve) = query.reserve.filter(|_| self.logs_decisions) {
            admission.note_tokens(reserve);
        }
        Ok(())
    }

    /// The windows of a key, which its tier or an override chooses. A blocked key is refused, also
    /// that of an exempt client.
    #[inline]
    fn windows_of<'q>(
        &self,
        limit: &'q Limit,
        query: &LimitQuery<'q, '_, '_>,
        tag: KeyHash,
    ) -> Result<Cow<'q, [Arc<Window>]>, Rejection> {
        let facts = query.facts;
        if let Some(overrides) = query.overrides {
            let block = overrides.block_of(tag);
            let spell = || limit.key.spell(facts, limit.missing);
            self.refuse_key(query, tag, block, spell)?;
            if let Some(windows) = overrides.windows(limit, tag) {
                return Ok(windows);
            }
        }
        Ok(Cow::Borrowed(limit.windows_of(facts.tier)))
    }

    /// Adds the checks that need no body, each for the smallest cost.
    pub(super) fn add_least_checks(
        &self,
        query: &LimitQuery<'_, '_, '_>,
        admission: &mut Admission,
    ) -> Result<LeastChecks, Rejection> {
        let LimitQuery {
            head, found, facts, ..
        } = *query;
        let key = self.limiter.hash_key();
        admission.generation = key.generation;
        let case = found.route.case;
        let is_free = found.route.is_preflight(head.method, head.headers);
        if is_free || self.router.bypass_of(facts, head.client, case).is_some() {
            return Ok(LeastChecks::NeedBody);
        }
        if let Some(overrides) = query.overrides {
            self.refuse_blocked(overrides, query, &key.key)?;
        }
        for limit in &found.route.limits {
            if limit.key.asks_body() || !is_known(limit, query) {
                // A trial counts every request with its own cost, also one that is denied.
                if limit.may_be_tried() {
                    return Ok(LeastChecks::NeedBody);
                }
                if limit.key.asks_body() {
                    continue;
                }
            }
            let is_exempt = limit.exempt.has(head.client, &limit.key, facts);
            match limit.key.derive(facts, limit.missing, &key.key) {
                Derived::Hash(tag) => {
                    let windows = self.windows_of(limit, query, tag)?;
                    if !is_exempt {
                        let units = least_units(limit, &windows, query);
                        let anchor = limit.anchor_of(facts);
                        let client = CheckedClient { tag, anchor };
                        admission.add(limit, &windows, client, units, self.asker(limit, query));
                    }
                }
                Derived::Skip => {}
                _ if is_exempt || limit.shadow => {}
                Derived::Denied => return Err(lacks_key(limit, facts)),
                Derived::Ambiguous => return Err(has_several_keys(limit, facts)),
                Derived::Unknown => return Err(Rejection::UnknownKey(limit.name.clone())),
            }
        }
        Ok(LeastChecks::Complete)
    }

    /// What logs may say of the client: its key in the clear if `[log] keys` is `plain`, and its
    /// trace if decisions are logged.
    #[inline]
    pub(super) fn asker(
        &self,
        limit: &Limit,
        query: &LimitQuery<'_, '_, '_>,
    ) -> Option<Arc<Asker>> {
        let is_plain = self.log_keys == LogKeys::Plain;
        if !is_plain && query.trace.is_none() {
            return None;
        }
        let spelled = is_plain.then(|| limit.key.spell(query.facts, limit.missing));
        Some(Arc::new(Asker {
            key: spelled.flatten().map(Arc::from),
            trace: query.trace,
            tokens: None,
        }))
    }

    /// Refuses a client whose address or API key is blocked, whatever its limits count by.
    pub(super) fn refuse_blocked(
        &self,
        overrides: &OverrideSnapshot,
        query: &LimitQuery<'_, '_, '_>,
        secret: &HashSecret,
    ) -> Result<(), Rejection> {
        if !overrides.has_blocks() {
            return Ok(());
        }
        let facts = query.facts;
        let ip = facts.ip_tag(secret);
        let block = overrides.block_of(ip);
        self.refuse_key(query, ip, block, || Part::Ip.spell(facts))?;
        // A blocked key stays blocked after its removal from the list of known keys.
        let mut refused = Ok(());
        let is_clear = facts.each_api_key(secret, |tag| {
            if refused.is_ok() {
                let block = overrides.block_of(tag);
                refused = self.refuse_key(query, tag, block, || Part::ApiKey.spell(facts));
            }
        });
        refused?;
        // A blocked key could hide behind another one.
        match is_clear {
            true => Ok(()),
            false => Err(Rejection::AmbiguousKey(Box::new(KeyFault {
                limit: BLOCK_POLICY.into(),
                advice: "The request has several API keys. Send one.".to_owned(),
                token: None,
            }))),
        }
    }

    /// Refuses a blocked key. `spell` writes the key in the clear, for logs that show it.
    fn refuse_key(
        &self,
        query: &LimitQuery<'_, '_, '_>,
        tag: KeyHash,
        block: Option<KeyBlock>,
        spell: impl FnOnce() -> Option<String>,
    ) -> Result<(), Rejection> {
        let client = query.head.client;
        let Some(block) = block.filter(|block| !self.is_spared(block, client, query.facts)) else {
            return Ok(());
        };
        let is_plain = self.log_keys == LogKeys::Plain;
        let plain = is_plain.then(spell).flatten();
        Err(Rejection::Blocked(Box::new(Blocked {
            tag,
            plain: plain.map(Arc::from),
            left_us: block.left_us,
            ban: block.ban,
        })))
    }

    /// Whether a client is exempt from the limit whose ban this is. A block of an operator spares
    /// nobody.
    pub(super) fn is_spared(&self, block: &KeyBlock, client: IpAddr, facts: &Facts<'_>) -> bool {
        let limit = block.ban.as_deref().and_then(|name| self.banning(name));
        limit.is_some_and(|limit| limit.exempt.has(client, &limit.key, facts))
    }

    /// The limit with this name and with `ban`.
    pub(super) fn banning(&self, name: &str) -> Option<&Limit> {
        let mut limits = self.banning_limits.iter();
        limits.find(|limit| *limit.name == *name).map(Arc::as_ref)
    }
}

/// Whether the cost of a request in this limit is known without its body.
fn is_known(limit: &Limit, query: &LimitQuery<'_, '_, '_>) -> bool {
    match query.reserve {
        Some(_) => !limit.counts_usage(),
        None => limit.each || !query.found.route.cost.asks_body(),
    }
}

/// `None` if the model of the request has no price.
fn units_of(
    limit: &Limit,
    windows: &[Arc<Window>],
    cost: u64,
    reserve: Option<&UsageReserve>,
) -> Option<u64> {
    match reserve {
        None => Some(limit.units(cost)),
        Some(reserve) => reserve.units(limit, windows),
    }
}

/// The fewest units that a request can cost.
fn least_units(limit: &Limit, windows: &[Arc<Window>], query: &LimitQuery<'_, '_, '_>) -> u64 {
    let cost = &query.found.route.cost;
    match query.reserve {
        Some(reserve) => reserve.least_units(limit, windows),
        // A client may name any cost, also none.
        None if cost.asks_body() => limit.units(0),
        None => limit.units(cost.units(query.head.headers, query.head.is_trusted)),
    }
}
