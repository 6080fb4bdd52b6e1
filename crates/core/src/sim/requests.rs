//! The clients of a simulated world: what they ask, and what becomes of it.

use std::sync::Arc;

use super::check::Budget;
use super::events::{Answer, Event};
use super::plan::{Fault, Kind, MS, PlannedClient, SECOND};
use super::proxy::{Ended, KnownUse, PendingRequest, Running, tag_of};
use super::server::Effect;
use super::world::World;
use crate::exchange::rejection::Rejection;
use crate::limit::{Charge, LimitCheck};
use crate::store::batch::Operation;

/// When clients begin.
const BEGIN_US: u64 = 1_500 * MS;
/// The store's timeout, its part for a call of older requests, and the time to go on.
const LATE_US: u64 = 25 * MS + 25 * MS / 4 + 2 * MS;

/// A client as it stands.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) planned: PlannedClient,
    /// Since when a patient client waits for what it was told.
    pub(super) waits_since_us: Option<u64>,
}

impl World {
    pub(super) fn begin_clients(&mut self) {
        for client in 0..self.plan.clients.len() {
            let planned = self.plan.clients[client].clone();
            self.open_budgets(&planned);
            let in_us = BEGIN_US + self.dice.below(planned.every_us.max(500 * MS));
            self.clients.push(Client {
                planned,
                waits_since_us: None,
            });
            self.at(in_us, Event::Ask { client });
        }
    }

    /// The proxy that the load balancer gives a client.
    fn proxy_of(&mut self, client: usize) -> Option<usize> {
        let proxies = self.proxies.iter().enumerate();
        let serving = proxies.filter(|(_, one)| one.serves && !one.is_dead && !one.is_draining);
        let serving: Vec<usize> = serving.map(|(number, _)| number).collect();
        let planned = self.clients[client].planned.proxy;
        let place = planned.unwrap_or_else(|| self.dice.below(64) as usize);
        (!serving.is_empty()).then(|| serving[place % serving.len()])
    }

    pub(super) fn send_request(&mut self, client: usize) {
        if self.now_us > self.plan.end_us() {
            return;
        }
        let planned = self.clients[client].planned.clone();
        if !planned.is_patient {
            let in_us = 1 + self.dice.below(2 * planned.every_us);
            self.at(in_us, Event::Ask { client });
        }
        let number = self.proxy_of(client);
        let Some(number) = number.filter(|number| self.proxies[*number].is_up(self.now_us)) else {
            // The proxy is stopped, or there is none: the client comes again.
            if planned.is_patient {
                self.clients[client].waits_since_us = None;
                self.at(50 * MS, Event::Ask { client });
            }
            return;
        };
        self.requests += 1;
        self.figures.requests += 1;
        let id = self.requests;
        self.proxies[number].act_at(self.now_us);
        let block = self.proxies[number].begin_decision(PendingRequest {
            id,
            client,
            since_us: self.now_us,
            limits: &planned.limits,
            key: planned.key,
            cost: planned.cost,
        });
        if let Some(block) = block {
            let key = tag_of(planned.key, planned.limits[0]).0[0];
            return self.blocked(key, block.left_us);
        }
        if planned.leaves > 0 && self.dice.percent(planned.leaves) {
            let in_us = self.dice.below(3 * MS);
            self.at(in_us, Event::Leave { proxy: number, id });
        }
        self.drive(number);
    }

    /// The client of a request goes before it is answered, or while it is held.
    pub(super) fn leave(&mut self, number: usize, id: u64) {
        let proxy = &mut self.proxies[number];
        let place = proxy.pending.iter().position(|pending| pending.id == id);
        if let Some(place) = place {
            let pending = proxy.pending.remove(place);
            self.note_unanswered(pending.client);
            // The store may have charged it, and counts it until it expires.
            self.soil();
        } else if proxy
            .running
            .get(&id)
            .is_some_and(|running| running.is_held)
            && let Some(mut running) = proxy.running.remove(&id)
        {
            running.limiter.give_booking_back(&mut running.admission);
            self.figures.given_up += 1;
        }
        self.drive(number);
    }

    /// The store may have charged a request that gets no answer.
    pub(super) fn note_unanswered(&mut self, client: usize) {
        let planned = &self.clients[client].planned;
        for budget in self.books.budgets.values_mut() {
            let is_asked = planned.limits.contains(&budget.limit);
            if is_asked && budget.item.tag == tag_of(planned.key, budget.limit) {
                budget.left += planned.cost;
            }
        }
        self.figures.given_up += 1;
    }

    pub(super) fn decided(&mut self, number: usize, ended: Ended) {
        let took_us = self.now_us - ended.since_us;
        if took_us > LATE_US && self.now_us >= self.proxies[number].stopped_until_us + SECOND {
            self.violate(None, format!("a request was answered after {took_us} us"));
        }
        self.check_ban(number, &ended);
        match &ended.result {
            Ok(()) => self.admitted(number, ended),
            Err(Rejection::Limited(denial)) => {
                self.figures.denied += 1;
                self.denied(number, ended.client, denial);
                self.count_denials(number, denial);
            }
            Err(_) => {
                self.figures.given_up += 1;
                self.go_on(ended.client, 50 * MS);
            }
        }
    }

    pub(super) fn go_on(&mut self, client: usize, in_us: u64) {
        self.clients[client].waits_since_us = None;
        if self.clients[client].planned.is_patient {
            self.at(in_us, Event::Ask { client });
        }
    }

    fn admitted(&mut self, number: usize, ended: Ended) {
        let Ended {
            id,
            client,
            admission,
            ..
        } = ended;
        let wait_us = admission.wait_us();
        let is_local = admission.is_local();
        self.enter_books(number, &admission.charge, is_local);
        let every_us = self.clients[client].planned.every_us;
        let next_us = 1 + self.dice.below(2 * every_us);
        self.go_on(client, wait_us + next_us);
        let limiter = Arc::clone(&self.proxies[number].limiter);
        let running = Running {
            client,
            admission,
            limiter,
            is_held: wait_us > 0,
            passed_at_us: 0,
        };
        self.proxies[number].running.insert(id, running);
        if wait_us == 0 {
            return self.pass(number, id);
        }
        self.at(wait_us, Event::Pass { proxy: number, id });
        if self.dice.percent(self.clients[client].planned.leaves) {
            let in_us = self.dice.below(wait_us);
            self.at(in_us, Event::Leave { proxy: number, id });
        }
    }

    fn enter_books(&mut self, number: usize, charge: &Charge, is_local: bool) {
        let is_conceded = is_local && {
            let proxy = &self.proxies[number];
            proxy.is_new || proxy.is_alone && self.is_well()
        };
        let is_conceded = is_conceded || !is_local && self.joined_too_early(number);
        self.figures.alone += u64::from(is_local);
        for check in charge {
            let id = check.id();
            self.check_order(check);
            let believes = self.is_fooled && !is_local && !self.proxies[number].recovery().is_on();
            let fooled = if believes {
                self.fooled_units(number, id, check.cost)
            } else {
                0
            };
            let Some(budget) = self.books.budgets.get_mut(&id) else {
                continue;
            };
            match is_local {
                true => budget.alone += check.cost,
                false => budget.by_store += check.cost,
            }
            budget.excused += fooled;
            if is_conceded {
                budget.excused += check.cost;
            }
            self.note(Some(id), || {
                format!(
                    "proxy {number} admits {} of {}{}{}",
                    check.cost,
                    check.limit.name,
                    if is_local { " alone" } else { "" },
                    if is_conceded || fooled > 0 {
                        ", conceded"
                    } else {
                        ""
                    },
                )
            });
        }
    }

    /// A known fault: held requests around an outage. The share may hold a request for longer than
    /// the store has stamped it. Debts of held requests are charged with the time of the payment.
    fn concede_held(&mut self, charge: &Charge) {
        for check in charge {
            if let Some(budget) = self.books.budgets.get_mut(&check.id()) {
                budget.excused += check.cost;
            }
        }
    }

    /// A known fault: a process that starts while others keep to their shares knows of no outage.
    /// It trusts a store that does not have their units. Once it knows, no share is left for it.
    fn joined_too_early(&self, number: usize) -> bool {
        let others = self.proxies.iter().filter(|other| !other.is_dead);
        self.proxies[number].began_us >= self.plan.away_at_us
            && !self.plan.is_strict
            && others.into_iter().any(|other| other.recovery().is_on())
    }

    /// Opens the books of a client's budgets.
    fn open_budgets(&mut self, planned: &PlannedClient) {
        for number in &planned.limits {
            let limit = &self.configs[0].limits[*number];
            let item = LimitCheck {
                window: Arc::clone(&limit.windows[0]),
                limit: Arc::clone(limit),
                tag: tag_of(planned.key, *number),
                anchor: None,
                cost: 1,
                asker: None,
            };
            let budget = self.books.budgets.entry(item.id());
            let day_ends_us = self.plan.day_ends_us;
            budget.or_insert_with(|| Budget::new(item, *number, day_ends_us));
        }
    }

    /// Units that a proxy may admit too much, since it cannot know that the store was emptied.
    fn fooled_units(&mut self, number: usize, id: u128, cost: u64) -> u64 {
        let Some(budget) = self.books.budgets.get(&id) else {
            return 0;
        };
        let rule = budget.item.window.rule;
        let own = budget.admitted_by(number, budget.counts_from(self.now_us));
        let proxy = &mut self.proxies[number];
        let share = proxy.recovery().fleet().share(rule).units;
        match proxy.fooled.insert(id) {
            true => cost + share.saturating_sub(own + cost),
            false => cost,
        }
    }

    /// An admitted request goes on to its server.
    pub(super) fn pass(&mut self, number: usize, id: u64) {
        let proxy = &mut self.proxies[number];
        let Some(running) = proxy.running.get_mut(&id) else {
            return;
        };
        running.is_held = false;
        let client = running.client;
        let decision = &running.admission.decision;
        let at_us = match running.admission.is_local() {
            true => self.now_us,
            false => {
                let wait_us = running.admission.wait_us();
                // What was leased is spent now.
                let stamp_us = decision.at_us.saturating_sub(self.plan.epoch_us) + wait_us;
                stamp_us.min(self.now_us)
            }
        };
        running.passed_at_us = at_us;
        let charge = running.admission.charge.clone();
        let held_us = running.admission.wait_us();
        self.figures.admitted += 1;
        let earlier_us = running.earlier_us();
        for (index, check) in charge.iter().enumerate() {
            if held_us > 0 {
                self.note(Some(check.id()), || {
                    format!("proxy {number} lets one pass, for {at_us} us, held for {held_us}")
                });
            }
            let Some(budget) = self.books.budgets.get_mut(&check.id()) else {
                continue;
            };
            let earlier_us = earlier_us.get(index).copied().unwrap_or_default();
            budget.admit(number, at_us - earlier_us, check.cost);
            budget.in_use += check.cost;
        }
        if held_us > 0 && self.now_us < self.unclean_until_us && !self.plan.is_strict {
            self.concede_held(&charge);
        }
        self.check_slots(&charge);
        let takes_us = self.clients[client].planned.takes_us;
        let in_us = 1 + self.dice.below(2 * takes_us);
        self.at(in_us, Event::End { proxy: number, id });
    }

    /// While all is well, no more requests are under way than a limit allows.
    fn check_slots(&mut self, charge: &Charge) {
        if self.now_us < self.unclean_until_us {
            return;
        }
        for check in charge {
            let budget = &self.books.budgets[&check.id()];
            let most = budget.units_within(0, self.now_us);
            if budget.is_slots() && budget.in_use > most {
                let (name, held) = (budget.name(), budget.in_use);
                let what = format!("{name} has {held} requests under way, and {most} are allowed");
                self.violate(Some(check.id()), what);
            }
        }
    }

    pub(super) fn end(&mut self, number: usize, id: u64) {
        let Some(running) = self.proxies[number].running.remove(&id) else {
            return;
        };
        let Running {
            client,
            mut admission,
            limiter,
            passed_at_us,
            ..
        } = running;
        for check in &admission.charge {
            if let Some(budget) = self.books.budgets.get_mut(&check.id()) {
                budget.in_use -= check.cost;
            }
        }
        let planned = &self.clients[client].planned;
        let main = self.plan.limits[planned.limits[0]].kind;
        let refunds = planned.refunds;
        // All limits of the request give back, so all must be of the kind.
        if main == Kind::Refunds && planned.limits.len() == 1 && self.dice.percent(refunds) {
            self.refund(number, passed_at_us, &admission.charge);
            limiter.give_booking_back(&mut admission);
        }
        if self.plan.fault == Some(Fault::SlotsKept) && id.is_multiple_of(7) {
            std::mem::forget(admission.slots.take());
        }
        drop(admission);
        self.drive(number);
    }

    /// A request whose units come back has passed for nothing.
    fn refund(&mut self, number: usize, passed_at_us: u64, charge: &Charge) {
        for check in charge {
            let id = check.id();
            self.note(Some(id), || {
                format!("proxy {number} gives {} back", check.cost)
            });
            if let Some(budget) = self.books.budgets.get_mut(&id) {
                budget.refund(number, passed_at_us, check.cost);
            }
        }
    }

    pub(super) fn note_effects(&mut self, number: usize, effects: &[Effect]) {
        let is_cluster = self.nodes.len() > 1;
        for effect in effects {
            let Some(budget) = self.books.budgets.get_mut(&effect.budget) else {
                continue;
            };
            match effect.operation {
                Operation::Charge(_) | Operation::Book(_) => budget.charged += effect.units,
                Operation::Settle => budget.settled += effect.units,
                Operation::Refund if is_cluster => budget.refunded += effect.units,
                _ => {}
            }
            self.note(Some(effect.budget), || {
                format!(
                    "the store: {:?} of {} for proxy {number}, {} are used",
                    effect.operation, effect.units, effect.used
                )
            });
        }
    }

    pub(super) fn answered(&mut self, number: usize, answer: Answer) {
        let Answer {
            link,
            call,
            message,
            effects,
            is_fooled,
            at_us,
        } = answer;
        let is_cut_off = self.now_us < self.proxies[number].cut_off_until_us;
        let task = &mut self.proxies[number].store.task;
        let is_taken = !is_cut_off && task.receive(link, call, message);
        // A proxy decides alone until it charges the store again, not only until it greets it.
        if is_taken && !effects.is_empty() {
            self.proxies[number].is_alone = false;
        }
        // While shares hold, the store may not know of all units.
        let is_noted = !self.proxies[number].recovery().is_on();
        for effect in effects {
            if !is_taken {
                self.lose_effect(effect);
            } else if is_noted {
                let known = KnownUse {
                    used: effect.used,
                    at_us,
                };
                self.proxies[number].known.insert(effect.budget, known);
            }
        }
        if !is_taken {
            self.soil();
        }
        self.is_fooled = is_fooled && is_taken;
        self.drive(number);
        self.is_fooled = false;
    }

    /// What the store did for an answer that nothing has taken.
    pub(super) fn lose_effect(&mut self, effect: Effect) {
        let Some(budget) = self.books.budgets.get_mut(&effect.budget) else {
            return;
        };
        match effect.operation {
            Operation::Charge(_) | Operation::Book(_) => budget.charged_lost += effect.units,
            Operation::Settle => budget.settled_lost += effect.units,
            _ => {}
        }
    }
}
