//! What befalls the store and the proxies of a simulated world, and what `docs/outages.md` concedes
//! of it.

use super::check::Budget;
use super::events::{Event, Health};
use super::plan::{Fault, Kind, MS, Mishap, Outage};
use super::world::{StoreNode, World};
use crate::store::StoreError;
use crate::store::recovery::{Greeting, Heartbeat};

/// A proxy uses a store that is back within this, if it is stopped by nothing.
const SOON_US: u64 = 1_200 * MS;
/// The last proxies learn of a new master within this.
const MOVE_US: u64 = 300 * MS;
/// How long the store counts a proxy that says nothing.
pub(super) const COUNTED_US: u64 = 5_000 * MS;
/// How long a proxy is stopped, at most.
pub(super) const LONGEST_STOP_US: u64 = 8_200 * MS;
/// A process that drains ends after this, whatever it does.
const DRAIN_US: u64 = 8_000 * MS;

impl World {
    pub(super) fn plan_mishap(&mut self) {
        let (away_at_us, away_for_us) = (self.plan.away_at_us, self.plan.away_for_us);
        match self.plan.mishap {
            Mishap::None => {}
            Mishap::Stalled | Mishap::CutOff => {
                let at_us = away_at_us - 300 * MS - self.dice.below(2_000 * MS);
                let for_us = 20 * MS + self.dice.below(200) * MS;
                let proxy = self.dice.below(self.plan.clocks.len() as u64) as usize;
                let event = match self.plan.mishap {
                    Mishap::CutOff => Event::CutOff { proxy },
                    _ => Event::Stall {
                        until_us: at_us + for_us,
                    },
                };
                self.at(at_us, event);
            }
            Mishap::Killed | Mishap::Restarted | Mishap::Stopped | Mishap::Upgraded => {
                let at_us = away_at_us + self.dice.below(away_for_us + 1_000 * MS);
                self.at(at_us, Event::Mishap);
            }
        }
    }

    pub(super) fn greet(&mut self, number: usize, greeting: Greeting) -> Option<Heartbeat> {
        if self.nodes[0].health == Health::Refusing {
            return None;
        }
        let store_us = self.store_us();
        let name = self.proxies[number].name;
        let mut beat = self.nodes[0].store.greet(name, greeting, store_us);
        match self.plan.fault {
            Some(Fault::SharesIgnored) => (beat.size, beat.place) = (1, 0),
            Some(Fault::AllAreClear) => beat.clear.clone_from(&beat.names),
            _ => {}
        }
        Some(beat)
    }

    /// The store does not answer for a moment.
    pub(super) fn stall(&mut self, until_us: u64) {
        self.soil();
        self.concede_unknown();
        self.victim().health = Health::Frozen;
        self.note(None, || "the store answers nothing for a moment".to_owned());
        self.at(until_us - self.now_us, Event::ComeBack);
    }

    pub(super) fn cut_off(&mut self, proxy: usize) {
        self.soil();
        self.note(None, || format!("proxy {proxy} is cut off from the store"));
        let for_us = 20 * MS + self.dice.below(200) * MS;
        self.proxies[proxy].cut_off_until_us = self.now_us + for_us;
        self.loses_alone(proxy);
    }

    /// A proxy loses the store, and others have it.
    pub(super) fn loses_alone(&mut self, number: usize) {
        self.soil();
        self.proxies[number].is_alone = true;
        self.concede_unknown_to(number);
    }

    pub(super) fn go_away(&mut self) {
        let outage = self.plan.outage;
        self.note(None, || format!("the store: {outage:?}"));
        self.concede_unknown();
        match outage {
            Outage::Frozen => self.victim().health = Health::Frozen,
            Outage::Refusing => self.victim().health = Health::Refusing,
            Outage::Calm | Outage::Flushed | Outage::Handover => {}
            Outage::KilledAndKeeps | Outage::KilledAndEmpty | Outage::Failover => {
                self.victim().health = Health::Down;
                self.break_connections();
            }
        }
        (self.unclean_until_us, self.faulty_until_us) = (u64::MAX, u64::MAX);
        self.at(self.plan.away_for_us, Event::ComeBack);
    }

    fn break_connections(&mut self) {
        for proxy in 0..self.proxies.len() {
            if !self.proxies[proxy].is_dead {
                let link = self.proxies[proxy].store.task.links()[self.plan.victim];
                self.break_link(proxy, link, StoreError::Lost);
            }
        }
    }

    /// A proxy that the store has not answered since others asked knows too little of them, and may
    /// admit its part of that.
    fn concede_unknown(&mut self) {
        for number in 0..self.proxies.len() {
            if !self.proxies[number].is_dead {
                self.concede_unknown_to(number);
            }
        }
    }

    /// The proxy has its part of what others used since. It also has its own units that have
    /// expired since, and that others have used.
    fn concede_unknown_to(&mut self, number: usize) {
        let now_us = self.now_us;
        let many = self.proxies.iter().filter(|proxy| !proxy.is_dead).count() as u64;
        let used = |budget: &Budget| self.used(&budget.item);
        let used: Vec<u64> = self.books.budgets.values().map(used).collect();
        for ((id, budget), used) in self.books.budgets.iter_mut().zip(used) {
            let known = self.proxies[number]
                .known
                .get(id)
                .copied()
                .unwrap_or_default();
            let unknown = used.saturating_sub(known.used);
            let at_us = known.at_us;
            let expired =
                budget.own_units(number, at_us, at_us) - budget.own_units(number, at_us, now_us);
            let since_us = at_us.max(budget.counts_from(now_us));
            let of_others = budget.admitted_by_others(number, since_us);
            budget.excused += unknown.max(of_others).div_ceil(many) + expired.min(of_others);
        }
    }

    /// Units of a process that the store may have lost, and that it charges again no more.
    fn concede_units_of(&mut self, number: usize) {
        let since_us = match self.plan.outage {
            Outage::KilledAndEmpty | Outage::Flushed => 0,
            Outage::Failover | Outage::Handover => {
                self.plan.away_at_us.saturating_sub(2 * self.plan.lag_us)
            }
            _ => return,
        };
        let now_us = self.now_us;
        for budget in self.books.budgets.values_mut() {
            let since_us = since_us.max(budget.counts_from(now_us));
            budget.excused += budget.admitted_by(number, since_us);
        }
    }

    pub(super) fn come_back(&mut self) {
        let victim = self.plan.victim;
        let was = std::mem::replace(&mut self.victim().health, Health::Well);
        if self.now_us < self.plan.away_at_us {
            self.note(None, || "the store answers again".to_owned());
            return self.thaw(victim);
        }
        let store_us = self.store_us();
        match self.plan.outage {
            Outage::KilledAndEmpty | Outage::Flushed => *self.victim() = StoreNode::new(store_us),
            Outage::Failover => {
                self.concede_lost(Budget::is_daily);
                self.take_over();
            }
            Outage::Handover => {
                self.concede_lost(|_| true);
                self.take_over();
            }
            _ => {}
        }
        for number in 0..self.proxies.len() {
            if self.proxies[number].is_dead {
                self.concede_units_of(number);
            } else if self.plan.outage == Outage::Handover {
                let in_us = self.dice.below(MOVE_US);
                self.at(in_us, Event::Moved { proxy: number });
            }
        }
        self.note(None, || "the store is back".to_owned());
        if was == Health::Frozen {
            self.thaw(victim);
        }
        (self.unclean_until_us, self.faulty_until_us) = (0, 0);
        self.soil();
        self.at(SOON_US, Event::LookBack);
    }

    fn take_over(&mut self) {
        let node = self.victim();
        node.store = node.replica.clone();
    }

    /// Proxies that do not see that the new master lacks units may admit as many again.
    fn concede_lost(&mut self, concerns: impl Fn(&Budget) -> bool) {
        let store_us = self.store_us();
        let node = &self.nodes[self.plan.victim];
        let budgets = self.books.budgets.values_mut();
        for budget in budgets.filter(|budget| concerns(budget)) {
            let used = node.store.used(&budget.item, store_us);
            budget.excused += used.saturating_sub(node.replica.used(&budget.item, store_us));
        }
    }

    /// Each replica is one to two steps behind its master.
    pub(super) fn replicate(&mut self) {
        for node in self
            .nodes
            .iter_mut()
            .filter(|node| node.health != Health::Down)
        {
            node.replica = std::mem::replace(&mut node.behind, node.store.clone());
        }
        self.at(self.plan.lag_us, Event::Replicate);
    }

    pub(super) fn mishap(&mut self) {
        let up = self.proxies.iter().enumerate();
        let up = up.filter(|(_, proxy)| !proxy.is_dead && !proxy.is_draining);
        let up: Vec<usize> = up.map(|(number, _)| number).collect();
        if up.is_empty() {
            return;
        }
        let victim = self.dice.pick(&up);
        let mishap = self.plan.mishap;
        self.note(None, || format!("proxy {victim}: {mishap:?}"));
        self.soil();
        match mishap {
            Mishap::Stopped => {
                let for_us = self.dice.between(200 * MS, LONGEST_STOP_US);
                self.proxies[victim].stopped_until_us = self.now_us + for_us;
                let until_us = self.unclean_until_us.saturating_add(for_us);
                self.unclean_until_us = self.unclean_until_us.max(until_us);
            }
            Mishap::Upgraded => {
                self.at(1, Event::Boot { place: victim });
                let in_us = 100 * MS + self.dice.below(400 * MS);
                self.at(in_us, Event::Drain { proxy: victim });
            }
            Mishap::Killed | Mishap::Restarted => {
                self.kill(victim);
                if mishap == Mishap::Restarted {
                    let in_us = 300 * MS + self.dice.below(3_000 * MS);
                    self.at(in_us, Event::Boot { place: victim });
                }
            }
            Mishap::None | Mishap::Stalled | Mishap::CutOff => {}
        }
    }

    fn kill(&mut self, victim: usize) {
        if self.now_us >= self.plan.back_at_us() {
            self.concede_units_of(victim);
        }
        self.last_end_us = self.now_us;
        let proxy = &mut self.proxies[victim];
        proxy.is_dead = true;
        let running = std::mem::take(&mut proxy.running);
        let given_up: Vec<usize> = proxy.pending.iter().map(|pending| pending.client).collect();
        proxy.pending.clear();
        for running in running.into_values().filter(|running| !running.is_held) {
            for check in &running.admission.charge {
                if let Some(budget) = self.books.budgets.get_mut(&check.id()) {
                    budget.in_use -= check.cost;
                }
            }
        }
        for client in given_up {
            self.note_unanswered(client);
            self.go_on(client, 50 * MS);
        }
    }

    /// A process that was replaced takes no more requests, and ends when it has none.
    pub(super) fn drain(&mut self, number: usize) {
        let (now_us, began_us) = (self.now_us, self.proxies[number].drains_since_us);
        let since_us = began_us.unwrap_or(now_us);
        self.proxies[number].drains_since_us = Some(since_us);
        self.proxies[number].is_draining = true;
        let proxy = &self.proxies[number];
        let is_idle = proxy.pending.is_empty() && proxy.running.is_empty();
        // Slots that it freed are reported by its next call.
        let is_over = is_idle && began_us.is_some() && proxy.store.task.is_idle();
        if is_over || now_us > since_us + DRAIN_US {
            self.note(None, || format!("proxy {number} ends"));
            return self.kill(number);
        }
        self.at(50 * MS, Event::Drain { proxy: number });
    }

    pub(super) fn reload(&mut self, number: usize) {
        self.is_reloaded = true;
        self.proxies[number].reload(&self.configs[1]);
        self.note(None, || format!("proxy {number} has another configuration"));
        self.allow();
        self.soil();
    }

    /// Every proxy uses a store that is back.
    pub(super) fn look_back(&mut self) {
        if self.plan.lost > 0 {
            return;
        }
        for number in 0..self.proxies.len() {
            let proxy = &self.proxies[number];
            let was_stopped = self.now_us < proxy.stopped_until_us + SOON_US;
            if !proxy.is_dead && !was_stopped && proxy.store.task.is_away() {
                let what = format!("proxy {number} does not use the store that is back");
                return self.violate(None, what);
            }
        }
    }

    /// What must hold when all has come to rest.
    pub(super) fn check_end(&mut self) {
        let up = self.proxies.iter().filter(|proxy| proxy.is_up(self.now_us));
        let many = up.count() as u32;
        // Units of a process that ended may count for a whole day.
        let has_daily = self
            .plan
            .limits
            .iter()
            .any(|limit| limit.kind == Kind::Daily);
        let waits_long = has_daily && self.last_end_us > 0;
        let is_settled =
            self.plan.fault.is_none() && self.now_us > self.last_end_us + COUNTED_US + 1_000 * MS;
        let holds_us = self.plan.longest_window_us() + 1_000 * MS;
        let mut wrong = Vec::new();
        for (number, proxy) in self.proxies.iter().enumerate() {
            if !proxy.is_up(self.now_us) || proxy.is_draining {
                continue;
            }
            proxy.act_at(self.now_us);
            let size = proxy.recovery().fleet().size();
            for (is_wrong, what) in [
                (!proxy.pending.is_empty(), "has unanswered requests"),
                (proxy.store.task.is_away(), "is without the store"),
                (proxy.store.task.owes(), "owes units"),
                (
                    proxy.recovery().is_on()
                        && !waits_long
                        && self.now_us > proxy.lost_at_us + holds_us,
                    "keeps to its share",
                ),
                (
                    size != many && is_settled && !waits_long,
                    "counts another number of proxies",
                ),
            ] {
                if is_wrong {
                    wrong.push((None, format!("at the end proxy {number} {what}")));
                }
            }
        }
        let was_stopped = self.plan.mishap == Mishap::Stopped;
        let begin_us = self.plan.end_us() - self.plan.longest_window_us();
        for (id, budget) in &self.books.budgets {
            let used = self.used(&budget.item);
            if used > 0 && !budget.is_daily() {
                let what = format!("at the end {used} units of {} count", budget.name());
                wrong.push((Some(*id), what));
            }
            let is_asked = budget.limit == 0 && budget.item.tag.0[0] == 0;
            let is_asked = is_asked && budget.denied_at_us >= begin_us;
            if is_asked && !was_stopped && budget.admitted_since(begin_us) == 0 {
                let what = format!("nothing of {} is admitted any more", budget.name());
                wrong.push((Some(*id), what));
            }
        }
        if let Some((budget, what)) = wrong.into_iter().next() {
            self.violate(budget, what);
        }
    }
}
