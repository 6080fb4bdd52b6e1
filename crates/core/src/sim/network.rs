//! The ways between the proxies and the store of a simulated world, and what the store answers.

use super::events::{Answer, Event, Health};
use super::plan::{Fault, MS};
use super::server::{Called, Manner};
use super::world::World;
use crate::store::StoreError;
use crate::store::batch::Operation;
use crate::store::redis::stepped::{FromServer, SentGroup, ToServer};

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

    pub(super) fn send(&mut self, proxy: usize, link: u64, message: ToServer) {
        if self.now_us < self.proxies[proxy].cut_off_until_us {
            return;
        }
        let mut there_us = self.way_us();
        self.note_sent(proxy, &message);
        if self.dice.below(10_000) < self.plan.lost {
            self.loses_alone(proxy);
            match self.dice.below(3) {
                0 => there_us += self.dice.below(60 * MS),
                1 => return,
                _ => {
                    let kind = StoreError::Lost;
                    return self.at(there_us, Event::Broken { proxy, link, kind });
                }
            }
        }
        self.at(
            there_us,
            Event::Arrive {
                proxy,
                link,
                message,
            },
        );
    }

    pub(super) fn arrive(&mut self, proxy: usize, link: u64, message: ToServer) {
        match self.health {
            Health::Down => {
                let kind = StoreError::Refused;
                self.at(100, Event::Broken { proxy, link, kind });
            }
            Health::Frozen => self.frozen.push((proxy, link, message)),
            Health::Well | Health::Refusing => self.serve(proxy, link, &message),
        }
    }

    /// The store does what has waited in its sockets.
    pub(super) fn thaw(&mut self) {
        for (proxy, link, message) in std::mem::take(&mut self.frozen) {
            self.serve(proxy, link, &message);
        }
    }

    /// The store answers a message.
    fn serve(&mut self, proxy: usize, link: u64, message: &ToServer) {
        let is_fooled = self.proxies[proxy].known_began_us() != Some(self.store.began_us);
        let (message, effects) = match message {
            ToServer::Hello(greeting) => {
                let beat = greeting.and_then(|greeting| self.greet(proxy, greeting));
                let overrides = self.store.orders.read(self.store_us());
                (FromServer::Hello(beat, overrides), Vec::new())
            }
            ToServer::Call(groups, holder) => {
                let called = self.call(groups, *holder);
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
            message,
            effects,
            is_fooled,
            at_us: self.now_us,
        };
        self.at(
            back_us,
            Event::Return {
                proxy,
                link,
                answer,
            },
        );
    }

    fn call(&mut self, groups: &[SentGroup], holder: u64) -> Called {
        let (store_us, fault) = (self.store_us(), self.plan.fault);
        let manner = Manner {
            refuses: self.health == Health::Refusing,
            wait_percent: match fault {
                Some(Fault::ShortWaits) => 90,
                Some(Fault::LongWaits) => 120,
                _ => 100,
            },
        };
        let is_debt = groups
            .iter()
            .all(|group| group.operation == Operation::Settle);
        if fault == Some(Fault::DebtsDropped) && is_debt {
            let mut unheard = self.store.clone();
            let called = unheard.call(groups, holder, store_us, manner);
            return Called {
                effects: Vec::new(),
                ..called
            };
        }
        let mut called = self.store.call(groups, holder, store_us, manner);
        let repeats = |group: &&SentGroup| match fault {
            Some(Fault::RefundsTwice) => group.operation == Operation::GiveBack,
            Some(Fault::CallsTwice) => matches!(group.operation, Operation::Charge(_)),
            _ => false,
        };
        let mut repeated: Vec<SentGroup> = groups.iter().filter(repeats).cloned().collect();
        if fault == Some(Fault::RefundsTwice) {
            // One that names its charge finds nothing more to give back.
            (repeated.iter_mut()).for_each(|group| group.operation = Operation::GiveBackOldest);
        }
        if !repeated.is_empty() {
            let again = self.store.call(&repeated, holder, store_us, manner);
            called.effects.extend(again.effects);
        }
        called
    }
}
