//! The world of a simulation: its events in the order of time, and the ways between its processes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::check::{Books, Violation};
use super::events::{Event, Figures, Health, Scheduled, TraceLine};
use super::mishaps::{COUNTED_US, LONGEST_STOP_US};
use super::plan::{Dice, Fault, MS, Mishap, Outage, Plan};
use super::proxy::{Ended, Proxy, config};
use super::server::Contents;
use crate::config::Config;
use crate::limit::LimitCheck;
use crate::store::redis::stepped::{Sent, node_of};

/// How long after a fault counts may still be wrong, beside two windows.
const SETTLES_US: u64 = 3_000 * MS;
/// Proxies begin to serve when the first attempt to connect has ended, or after this.
const READY_US: u64 = 500 * MS;

/// One server of the store, and its replica.
#[derive(Clone)]
pub(super) struct StoreNode {
    pub(super) health: Health,
    pub(super) store: Contents,
    pub(super) replica: Contents,
    pub(super) behind: Contents,
    /// What waits in the sockets of a frozen server, and whose it is.
    pub(super) frozen: Vec<(usize, Sent)>,
}

impl StoreNode {
    pub(super) fn new(now_us: u64) -> StoreNode {
        let store = Contents::new(now_us);
        StoreNode {
            health: Health::Well,
            replica: store.clone(),
            behind: store.clone(),
            store,
            frozen: Vec::new(),
        }
    }
}

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) dice: Dice,
    pub(super) now_us: u64,
    number: u64,
    events: BinaryHeap<Reverse<Scheduled>>,
    pub(super) configs: [Config; 2],
    pub(super) is_reloaded: bool,
    pub(super) proxies: Vec<Proxy>,
    pub(super) nodes: Vec<StoreNode>,
    pub(super) books: Books,
    pub(super) clients: Vec<super::requests::Client>,
    pub(super) requests: u64,
    /// The last ban of each key, as the store began it.
    pub(super) bans: BTreeMap<u8, super::told::BegunBan>,
    /// Denials that proxies counted for bans, and that the store was told of.
    pub(super) denials: u64,
    pub(super) denials_told: u64,
    /// When a process last ended.
    pub(super) last_end_us: u64,
    /// When the override was set.
    pub(super) ordered_us: Option<u64>,
    /// Until then a fault may keep proxies from what the store says.
    pub(super) faulty_until_us: u64,
    /// Until then counts may differ from what was admitted.
    pub(super) unclean_until_us: u64,
    /// The store answers now to a proxy that could not know that it was emptied.
    pub(super) is_fooled: bool,
    pub(super) figures: Figures,
    pub(super) violation: Option<Violation>,
    pub(super) trace: Option<Vec<TraceLine>>,
}

impl World {
    pub(super) fn new(plan: Plan, is_traced: bool) -> World {
        let node = StoreNode::new(plan.epoch_us);
        let mut world = World {
            dice: Dice::new(plan.seed ^ 0x5EED),
            configs: [config(&plan, false), config(&plan, true)],
            now_us: 0,
            number: 0,
            events: BinaryHeap::new(),
            is_reloaded: false,
            proxies: Vec::new(),
            nodes: vec![node; plan.nodes],
            books: Books::default(),
            clients: Vec::new(),
            requests: 0,
            bans: BTreeMap::new(),
            denials: 0,
            denials_told: 0,
            ordered_us: None,
            faulty_until_us: 0,
            last_end_us: 0,
            unclean_until_us: 0,
            is_fooled: false,
            figures: Figures::default(),
            violation: None,
            trace: is_traced.then(Vec::new),
            plan,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        for place in 0..self.plan.clocks.len() {
            let in_us = self.dice.below(99) * MS;
            self.at(in_us, Event::Boot { place });
        }
        self.begin_clients();
        self.at(self.plan.lag_us, Event::Replicate);
        if self.plan.outage != Outage::Calm {
            self.at(self.plan.away_at_us, Event::GoAway);
        }
        self.plan_mishap();
        if let Some(order) = self.plan.order {
            self.at(order.at_us, Event::Order);
        }
        if let Some(reload) = self.plan.reload {
            for proxy in 0..self.plan.clocks.len() {
                let in_us = reload.at_us + self.dice.below(50 * MS);
                self.at(in_us, Event::Reload { proxy });
            }
        }
    }

    pub(super) fn at(&mut self, in_us: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse(Scheduled {
            at_us: self.now_us + in_us,
            number: self.number,
            event,
        }));
    }

    pub(super) fn note(&mut self, budget: Option<u128>, text: impl FnOnce() -> String) {
        let at_us = self.now_us;
        if let Some(trace) = &mut self.trace {
            trace.push(TraceLine {
                at_us,
                budget,
                text: text(),
            });
        }
    }

    pub(super) fn violate(&mut self, budget: Option<u128>, what: String) {
        self.note(budget, || format!("VIOLATED: {what}"));
        let at_us = self.now_us;
        let violation = Violation {
            what,
            budget,
            at_us,
        };
        self.violation.get_or_insert(violation);
    }

    pub(super) fn store_us(&self) -> u64 {
        self.plan.epoch_us + self.now_us
    }

    /// From now on counts may differ from what was admitted, until all of it has expired.
    pub(super) fn soil(&mut self) {
        self.soil_counts();
        self.faulty_until_us = self.unclean_until_us;
    }

    /// The same, and proxies hear what the store says.
    pub(super) fn soil_counts(&mut self) {
        let until_us = self.now_us + 2 * self.plan.longest_window_us() + SETTLES_US;
        self.unclean_until_us = self.unclean_until_us.max(until_us);
    }

    pub(super) fn node_of(&self, item: &LimitCheck) -> usize {
        match self.nodes.len() {
            1 => 0,
            many => node_of(item, many),
        }
    }

    /// Units of a budget that the store counts now.
    pub(super) fn used(&self, item: &LimitCheck) -> u64 {
        let node = &self.nodes[self.node_of(item)];
        node.store.used(item, self.store_us())
    }

    pub(super) fn victim(&mut self) -> &mut StoreNode {
        &mut self.nodes[self.plan.victim]
    }

    pub(super) fn is_well(&self) -> bool {
        self.nodes.iter().all(|node| node.health == Health::Well)
    }

    /// When the world ends: clients have stopped, and everything has expired.
    fn tail_us(&self) -> u64 {
        let stopped_us = match self.plan.mishap {
            Mishap::Stopped => self.plan.back_at_us() + LONGEST_STOP_US + 1_000 * MS,
            _ => 0,
        };
        let last_us = self.plan.end_us().max(stopped_us);
        last_us + self.plan.longest_window_us() + SETTLES_US + COUNTED_US
    }

    pub(super) fn run(&mut self) -> Result<Figures, Violation> {
        let end_us = self.tail_us();
        while let Some(Reverse(next)) = self.events.pop() {
            if next.at_us > end_us {
                break;
            }
            self.now_us = next.at_us;
            self.take_place(next.event);
            if let Some(violation) = self.violation.take() {
                return Err(violation);
            }
        }
        self.check_end();
        if let Some(violation) = self.violation.take() {
            return Err(violation);
        }
        let has_lost = self.plan.outage.loses();
        self.figures.conceded = self.books.conceded();
        self.figures.fullest = self.books.check(has_lost)?;
        Ok(self.figures)
    }

    /// The proxy whose own doing an event is. It does nothing while it is stopped.
    fn doer(event: &Event) -> Option<usize> {
        match event {
            Event::Ready { proxy }
            | Event::Wake { proxy }
            | Event::Return { proxy, .. }
            | Event::Broken { proxy, .. }
            | Event::Leave { proxy, .. }
            | Event::Pass { proxy, .. }
            | Event::End { proxy, .. }
            | Event::Moved { proxy }
            | Event::Reload { proxy }
            | Event::Tell { proxy }
            | Event::BansBegin { proxy, .. }
            | Event::Drain { proxy } => Some(*proxy),
            _ => None,
        }
    }

    fn take_place(&mut self, event: Event) {
        if let Some(doer) = World::doer(&event) {
            let Some(proxy) = self.proxies.get(doer).filter(|proxy| !proxy.is_dead) else {
                return self.lose(event);
            };
            if self.now_us < proxy.stopped_until_us {
                return self.at(proxy.stopped_until_us - self.now_us, event);
            }
            proxy.act_at(self.now_us);
        }
        match event {
            Event::Boot { place } => self.boot(place),
            Event::Ready { proxy } => self.proxies[proxy].serves = true,
            Event::Wake { proxy } => {
                // A process that was stopped wakes later than it wanted to.
                let wake_at_us = self.proxies[proxy].wake_at_us;
                if wake_at_us.is_some_and(|at_us| at_us <= self.now_us) {
                    self.proxies[proxy].wake_at_us = None;
                    self.drive(proxy);
                }
            }
            Event::Arrive { proxy, sent } => self.arrive(proxy, sent),
            Event::Return { proxy, answer } => self.answered(proxy, answer),
            Event::Broken { proxy, link, kind } => {
                self.proxies[proxy].store.task.broken(link, kind);
                self.drive(proxy);
            }
            Event::Ask { client } => self.send_request(client),
            Event::Leave { proxy, id } => self.leave(proxy, id),
            Event::Pass { proxy, id } => self.pass(proxy, id),
            Event::End { proxy, id } => self.end(proxy, id),
            Event::Stall { until_us } => self.stall(until_us),
            Event::CutOff { proxy } => self.cut_off(proxy),
            Event::GoAway => self.go_away(),
            Event::ComeBack => self.come_back(),
            Event::Mishap => self.mishap(),
            Event::Replicate => self.replicate(),
            Event::Moved { proxy } => {
                self.proxies[proxy].store.task.move_away();
                self.drive(proxy);
            }
            Event::Reload { proxy } => self.reload(proxy),
            Event::Drain { proxy } => self.drain(proxy),
            Event::LookBack => self.look_back(),
            Event::Tell { proxy } => self.send_denials(proxy),
            Event::Told { proxy, denials } => self.count_sent_denials(proxy, denials),
            Event::BansBegin {
                proxy,
                denials,
                store_us,
                answer,
            } => self.proxies[proxy].end_denials(denials, store_us, answer),
            Event::Order => self.order(),
            Event::Allow => self.allow(),
        }
    }

    /// What would befall a process that has ended.
    fn lose(&mut self, event: Event) {
        if let Event::Return { answer, .. } = event {
            for effect in answer.effects {
                self.lose_effect(effect);
            }
        }
    }

    fn boot(&mut self, place: usize) {
        let number = self.proxies.len();
        let clock = self.plan.clocks[place % self.plan.clocks.len()];
        let config = &self.configs[usize::from(self.is_reloaded)];
        let proxy = Proxy::new(
            number,
            clock,
            config,
            self.now_us,
            self.store_us(),
            self.plan.nodes,
        );
        self.proxies.push(proxy);
        self.note(None, || format!("proxy {number} starts"));
        self.at(READY_US, Event::Ready { proxy: number });
        self.drive(number);
    }

    /// Lets a process do all that it can do now.
    pub(super) fn drive(&mut self, number: usize) {
        loop {
            let fault = self.plan.fault;
            let proxy = &mut self.proxies[number];
            proxy.act_at(self.now_us);
            let keeps = |id: u64| fault == Some(Fault::AnswersKept) && id % 50 == 49;
            // A request is in the queue once it was polled.
            let mut ended: Vec<Ended> = proxy.take_ended(keeps);
            let sent = proxy.store.task.advance();
            ended.extend(proxy.take_ended(keeps));
            self.note_whereabouts(number);
            let is_done = sent.is_empty() && ended.is_empty();
            for message in sent {
                self.send(number, message);
            }
            for ended in ended {
                self.decided(number, ended);
            }
            if is_done {
                break;
            }
        }
        let wake_us = self.proxies[number].next_wake_us(self.now_us);
        if self.proxies[number]
            .wake_at_us
            .is_none_or(|at_us| wake_us < at_us || at_us <= self.now_us)
        {
            self.proxies[number].wake_at_us = Some(wake_us);
            self.at(wake_us - self.now_us, Event::Wake { proxy: number });
        }
    }

    /// Notes whether a process has the store, and that it serves.
    fn note_whereabouts(&mut self, number: usize) {
        let proxy = &mut self.proxies[number];
        let is_away = proxy.store.task.is_away();
        if std::mem::replace(&mut proxy.is_away, is_away) != is_away {
            proxy.lost_at_us = self.now_us;
            self.note(None, || {
                format!(
                    "proxy {number} {} the store",
                    if is_away { "loses" } else { "has" }
                )
            });
        }
        let proxy = &mut self.proxies[number];
        if proxy.store.task.is_connected() {
            // A store that refuses writes counts no proxy.
            proxy.is_new &= proxy.known_began_us().is_none();
            proxy.serves = true;
        }
    }
}
