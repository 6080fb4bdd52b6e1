//! What clients and operators of a simulated world are told: waits, bans and overrides.

use std::sync::Arc;

use super::events::Event;
use super::plan::{Fault, MS, SECOND};
use super::proxy::{Ended, tag_of};
use super::world::World;
use crate::exchange::rejection::Denial;
use crate::limit::{Algorithm, Charge, KeyHash, LimitCheck, Retry, Rule};
use crate::store::redis::stepped::TakenDenials;

/// How long denials are added up before they are told.
const TELL_US: u64 = 40 * MS;
/// A change of overrides holds at every proxy after this.
const LEARNED_US: u64 = 1_200 * MS;

/// A ban as the store began it.
#[derive(Clone, Copy, Debug)]
pub(super) struct BegunBan {
    since_us: u64,
    until_us: u64,
}

impl World {
    pub(super) fn denied(&mut self, number: usize, client: usize, denial: &Denial) {
        let mut told_us = 0;
        let mut is_known = true;
        for (check, verdict) in denial.charge.iter().zip(&denial.decision.verdicts) {
            match verdict.retry {
                Retry::After(us) => told_us = told_us.max(us),
                Retry::Never | Retry::Released => is_known = false,
                Retry::Now | Retry::Booked(_) | Retry::Unasked => {}
            }
            let id = check.id();
            if let Some(budget) = self.books.budgets.get_mut(&id) {
                if denial.is_local {
                    budget.refused += check.cost;
                }
                if !matches!(verdict.retry, Retry::Now | Retry::Unasked) {
                    budget.denied_at_us = self.now_us;
                }
            }
            self.note(Some(id), || {
                format!(
                    "proxy {number} denies {}: {:?}",
                    check.limit.name, verdict.retry
                )
            });
        }
        let is_clean = self.now_us >= self.unclean_until_us;
        let waited_in_vain = self.clients[client].waits_since_us;
        if let Some(since_us) = waited_in_vain
            && since_us >= self.unclean_until_us
            && is_clean
        {
            let id = denial.charge.first().map(LimitCheck::id);
            let what = format!("a client that waited since {since_us} us was denied again");
            return self.violate(id, what);
        }
        if is_clean && is_known && !denial.is_local {
            self.check_wait(&denial.charge, told_us);
        }
        if self.clients[client].planned.is_patient {
            let is_told = is_known && told_us > 0;
            self.clients[client].waits_since_us = is_told.then_some(self.now_us);
            self.at(
                told_us.max(50 * MS * u64::from(!is_told)),
                Event::Ask { client },
            );
        }
    }

    /// No client is told to wait for longer than it must, but for the time that the answer takes.
    fn check_wait(&mut self, charge: &Charge, told_us: u64) {
        if charge.iter().any(|check| check.limit.refunds) {
            return;
        }
        // Other nodes may give units back that they had counted.
        if self.nodes.len() > 1 {
            return;
        }
        // The store lacks units that it lost. A proxy that remembers a denial by them is right
        // until the day ends.
        let is_daily = |check: &LimitCheck| check.window.rule.algorithm == Algorithm::Calendar;
        if self.plan.outage.loses() && charge.iter().any(is_daily) {
            return;
        }
        let true_us = self.nodes[0].store.wait_us(charge, self.store_us());
        // Clocks differ by a thousandth at most; a cached denial ages from when its answer came.
        let slack_us = 3 * (self.plan.way_us + 200) + told_us / 500 + MS;
        self.figures.waits_checked += 1;
        if told_us > true_us + slack_us {
            let id = charge.first().map(LimitCheck::id);
            let what = format!("a client is told to wait for {told_us} us, and {true_us} will do");
            self.violate(id, what);
        }
    }

    /// Counts a denial by limits that ban, and has it told soon.
    pub(super) fn count_denials(&mut self, number: usize, denial: &Denial) {
        let checks = denial.charge.iter().zip(&denial.decision.verdicts);
        let mut denying = checks.filter(|(_, verdict)| verdict.retry.denies());
        if !denying.any(|(check, _)| check.limit.ban.is_some()) {
            return;
        }
        self.denials += 1;
        if !std::mem::replace(&mut self.proxies[number].is_to_tell, true) {
            self.at(TELL_US, Event::Tell { proxy: number });
        }
    }

    pub(super) fn send_denials(&mut self, number: usize) {
        self.proxies[number].is_to_tell = false;
        let proxy = &self.proxies[number];
        let denials = proxy.store.task.shared().take_denials();
        let is_cut_off = self.now_us < proxy.cut_off_until_us || !proxy.store.task.is_connected();
        if is_cut_off {
            let store_us = self.store_us();
            return self.proxies[number].end_denials(denials, store_us, None);
        }
        let in_us = self.way_us();
        let proxy = number;
        self.at(in_us, Event::Told { proxy, denials });
    }

    /// The store counts denials, and begins bans.
    pub(super) fn count_sent_denials(&mut self, proxy: usize, denials: TakenDenials) {
        let store_us = self.store_us();
        let mut answer = None;
        if self.is_well() {
            let told: u64 = denials.keys().iter().map(|(_, _, count)| count).sum();
            self.denials_told += told;
            let before = self.nodes[0].store.orders.clone();
            let (version, begun) = self.nodes[0].store.orders.count(&denials, store_us);
            for ((limit, tag, _), ban) in denials.keys().into_iter().zip(&begun) {
                let Some(ban) = ban else { continue };
                let until_us = self.now_us + (ban.until_us - store_us);
                let since_us = self.now_us;
                self.note(None, || format!("{} bans key {}", limit.name, tag.0[0]));
                let known = self.bans.get(&tag.0[0]);
                if known.is_none_or(|known| known.until_us <= self.now_us) {
                    let ban = BegunBan { since_us, until_us };
                    self.bans.insert(tag.0[0], ban);
                }
            }
            answer = Some((version, begun));
            if self.plan.fault == Some(Fault::BansForgotten) {
                answer = Some((version, vec![None; denials.keys().len()]));
                self.nodes[0].store.orders.forget_bans(&before);
            }
        }
        let in_us = self.way_us();
        self.at(
            in_us,
            Event::BansBegin {
                proxy,
                denials,
                store_us,
                answer,
            },
        );
        if self.denials_told > self.denials {
            let (told, counted) = (self.denials_told, self.denials);
            self.violate(None, format!("{told} denials are told, of {counted}"));
        }
    }

    /// A request of a blocked key is refused.
    pub(super) fn blocked(&mut self, key: u8, left_us: Option<u64>) {
        self.figures.denied += 1;
        let Some(ban) = self.bans.get(&key).copied() else {
            return;
        };
        // A proxy without the store begins bans of its own.
        if self.now_us < self.unclean_until_us || self.now_us > ban.until_us {
            return;
        }
        let true_us = ban.until_us.saturating_sub(self.now_us);
        let slack_us = 3 * (self.plan.way_us + 200) + true_us / 500 + MS;
        let told_us = left_us.unwrap_or(u64::MAX);
        if told_us > true_us + slack_us {
            let what = format!("key {key} is told to be banned for {told_us} us, not {true_us}");
            self.violate(None, what);
        }
    }

    /// No proxy serves a key that was banned a while ago.
    pub(super) fn check_ban(&mut self, number: usize, ended: &Ended) {
        let planned = &self.clients[ended.client].planned;
        let key = tag_of(planned.key, planned.limits[0]).0[0];
        let Some(ban) = self.bans.get(&key) else {
            return;
        };
        let is_known = ban.since_us + LEARNED_US < ended.since_us;
        let holds = ended.since_us + 100 * MS < ban.until_us;
        let was_clean = ban.since_us >= self.unclean_until_us;
        if is_known && holds && was_clean && self.now_us >= self.unclean_until_us {
            self.violate(
                None,
                format!("proxy {number} serves key {key}, which is banned"),
            );
        }
    }

    /// An operator gives a key of the first limit another rate for a while.
    pub(super) fn order(&mut self) {
        let Some(order) = self.plan.order.filter(|_| self.is_well()) else {
            return;
        };
        let limit = Arc::clone(&self.configs[0].limits[0]);
        let rule = Rule {
            units: order.units,
            ..limit.windows[0].rule
        };
        let store_us = self.store_us();
        let until_us = store_us + order.for_us;
        self.nodes[0]
            .store
            .orders
            .set(&limit, KeyHash([0; 16]), rule, store_us, until_us);
        self.ordered_us = Some(self.now_us);
        self.note(None, || {
            format!("an operator gives key 0 {} units", order.units)
        });
        self.soil_counts();
        self.allow();
        self.at(order.for_us + LEARNED_US, Event::Allow);
    }

    /// Every proxy uses an override that was set a while ago.
    pub(super) fn check_order(&mut self, check: &LimitCheck) {
        let (Some(order), Some(ordered_us)) = (self.plan.order, self.ordered_us) else {
            return;
        };
        let is_meant =
            check.tag == KeyHash([0; 16]) && *check.limit.name == *self.plan.limits[0].name;
        let holds = self.now_us > ordered_us + LEARNED_US
            && self.now_us + SECOND < ordered_us + order.for_us;
        let is_well = self.now_us >= self.faulty_until_us;
        if is_meant && holds && is_well && check.window.rule.units != order.units {
            let units = check.window.rule.units;
            self.violate(
                Some(check.id()),
                format!("{units} units in place of an override"),
            );
        }
    }

    /// Notes the most units that some proxy may allow from now on.
    pub(super) fn allow(&mut self) {
        let live = self.proxies.iter().filter(|proxy| !proxy.is_dead);
        let units = live.map(|proxy| proxy.limits[0].windows[0].rule.units);
        let units = units.max().unwrap_or_default();
        let order = self.plan.order.zip(self.ordered_us);
        let order = order.filter(|(order, at_us)| self.now_us < at_us + order.for_us + LEARNED_US);
        let more = order.map_or(0, |(order, _)| order.units);
        let now_us = self.now_us;
        let budgets = self.books.budgets.values_mut();
        for budget in budgets.filter(|budget| budget.limit == 0) {
            let is_meant = budget.item.tag.0[0] == 0;
            budget.allow(now_us, if is_meant { units.max(more) } else { units });
        }
    }
}
