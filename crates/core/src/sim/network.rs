//! The ways between the proxies and the store of a simulated world, and what the store answers.

use super::events::{Answer, Event, Health};
use super::plan::{Fault, MS};
use super::server::{Called, Manner};
use super::world::World;
use crate::store::StoreError;
use crate::store::batch::Operation;
use crate::store::redis::stepped::{
    FromServer, HelloReply, Sent, SentGroup, ToServer, node_of_link,
};

impl World {
    /// How long a message is under way.
    pub(super) fn way_us(&mut self) -> u64 {
        100 + self.dice.below(self.plan.way_us)
    }

    fn note_sent(&mut self, number: usize, message: &ToServer) {
        match message {
            ToServer::Hello(Some(greeting)) if self.proxies[number].recovery().is_on() => {
                let owes = if greeting.is_clear {
                    "nothing"
                } else {
                    "something"
                };
                self.note(None, || format!("proxy {number} greets, and owes {owes}"));
            }
            ToServer::Hello(_) => {}
            ToServer::Call(groups, _) => {
                for group in groups {
                    for item in &group.charge {
                        let (operation, cost) = (group.operation, item.cost);
                        self.note(Some(item.id()), || {
                            format!("proxy {number} sends {operation:?} of {cost}")
                        });
                    }
                }
            }
        }
    }

    pub(super) fn send(&mut self, proxy: usize, sent: Sent) {
        if self.now_us < self.proxies[proxy].cut_off_until_us {
            return;
        }
        let mut there_us = self.way_us();
        self.note_sent(proxy, &sent.message);
        if self.dice.below(10_000) < self.plan.lost {
            self.loses_alone(proxy);
            match self.dice.below(3) {
                0 => there_us += self.dice.below(60 * MS),
                1 => return,
                _ => return self.break_link(proxy, sent.link, StoreError::Lost),
            }
        }
        self.at(there_us, Event::Arrive { proxy, sent });
    }

    /// A process hears soon that a connection has ended.
    pub(super) fn break_link(&mut self, proxy: usize, link: u64, kind: StoreError) {
        let in_us = self.way_us();
        self.at(in_us, Event::Broken { proxy, link, kind });
    }

    pub(super) fn arrive(&mut self, proxy: usize, sent: Sent) {
        let node = node_of_link(sent.link);
        match self.nodes[node].health {
            Health::Down => self.break_link(proxy, sent.link, StoreError::Refused),
            Health::Frozen => self.nodes[node].frozen.push((proxy, sent)),
            Health::Well | Health::Refusing => self.serve(proxy, sent),
        }
    }

    /// A server does what has waited in its sockets.
    pub(super) fn thaw(&mut self, node: usize) {
        for (proxy, sent) in std::mem::take(&mut self.nodes[node].frozen) {
            self.serve(proxy, sent);
        }
    }

    /// A server answers a message.
    fn serve(&mut self, proxy: usize, sent: Sent) {
        let (node, store_us) = (node_of_link(sent.link), self.store_us());
        // Its memory is the one that heartbeats ask for.
        let began_us = self.nodes[0].store.began_us;
        let is_fooled = self.proxies[proxy].known_began_us() != Some(began_us);
        let (message, effects) = match &sent.message {
            ToServer::Hello(greeting) => {
                let beat = greeting.and_then(|greeting| self.greet(proxy, greeting));
                let overrides = self.nodes[0].store.orders.read(store_us);
                let reply = HelloReply {
                    beat,
                    overrides,
                    takes_writes: self.nodes[node].health != Health::Refusing,
                };
                (FromServer::Hello(reply), Vec::new())
            }
            ToServer::Call(groups, holder) => {
                let called = self.call(node, groups, *holder);
                (FromServer::Reply(called.bytes), called.effects)
            }
        };
        self.note_effects(proxy, &effects);
        let mut back_us = self.way_us();
        if self.dice.below(10_000) < self.plan.lost {
            self.loses_alone(proxy);
            back_us += self.dice.below(60 * MS);
        }
        let answer = Answer {
            link: sent.link,
            call: sent.call,
            message,
            effects,
            is_fooled,
            at_us: self.now_us,
        };
        self.at(back_us, Event::Return { proxy, answer });
    }

    fn call(&mut self, node: usize, groups: &[SentGroup], holder: u64) -> Called {
        let (store_us, fault) = (self.store_us(), self.plan.fault);
        let manner = Manner {
            refuses: self.nodes[node].health == Health::Refusing,
            wait_percent: match fault {
                Some(Fault::ShortWaits) => 90,
                Some(Fault::LongWaits) => 120,
                _ => 100,
            },
        };
        let store = &mut self.nodes[node].store;
        let is_debt = groups
            .iter()
            .all(|group| group.operation == Operation::Settle);
        if fault == Some(Fault::DebtsDropped) && is_debt {
            let mut unheard = store.clone();
            let called = unheard.call(groups, holder, store_us, manner);
            return Called {
                effects: Vec::new(),
                ..called
            };
        }
        let mut called = store.call(groups, holder, store_us, manner);
        let repeats = |group: &&SentGroup| match fault {
            Some(Fault::RefundsTwice) => group.operation == Operation::Refund,
            Some(Fault::CallsTwice) => matches!(group.operation, Operation::Charge(_)),
            _ => false,
        };
        let mut repeated: Vec<SentGroup> = groups.iter().filter(repeats).cloned().collect();
        if fault == Some(Fault::RefundsTwice) {
            // One that names its charge finds nothing more to give back.
            (repeated.iter_mut()).for_each(|group| group.operation = Operation::RefundOldest);
        }
        if !repeated.is_empty() {
            let again = store.call(&repeated, holder, store_us, manner);
            called.effects.extend(again.effects);
        }
        called
    }
}
