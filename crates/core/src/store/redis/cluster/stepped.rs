//! The task of a cluster in steps, for simulations: queues, calls, nodes and the work of twice a
//! second, in the order of `task.rs` and `nodes.rs`. Slots stay at their nodes.

mod debts;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use debts::PayingDebt;
use tokio::sync::mpsc;

use super::ClusterView;
use super::task::SHARED_EVERY;
use super::topology::{NodeId, slot_of};
use crate::limit::LimitCheck;
use crate::store::StoreError;
use crate::store::gather::{Batch, Bundle, QueuedRequest};
use crate::store::guard::Breaker;
use crate::store::lease::WorkerCache;
use crate::store::recovery::Greeting;
use crate::store::redis::health::{ReplyOutput, ServerHealth};
use crate::store::redis::link::PROBE_TIMEOUT;
use crate::store::redis::slot_lease::SlotLease;
use crate::store::redis::stepped::{
    FromServer, HelloReply, Sent, SentGroup, ToServer, greeting_if_due,
};
use crate::store::redis::{RedisShared, TaskSetup};

/// Keys charged at once for what is owed.
const OWED_KEYS: usize = 2048;
/// A link has its node in the upper bits.
const NODE_SHIFT: u32 = 32;

enum NodeStage {
    Down,
    Connecting { deadline: Instant },
    Up,
}

struct SteppedNode {
    health: ServerHealth,
    link: u64,
    stage: NodeStage,
}

struct SteppedCall {
    number: u64,
    node: usize,
    /// When it was sent, and over which connection; `None` while it waits for one.
    sent: Option<(Instant, u64)>,
    batch: Batch,
    deadline: Instant,
    epoch: u64,
}

pub(crate) struct SteppedCluster {
    shared: Arc<RedisShared>,
    queue: mpsc::Receiver<QueuedRequest>,
    view: ClusterView,
    cache: WorkerCache,
    slots: SlotLease,
    nodes: Vec<SteppedNode>,
    queues: BTreeMap<u16, VecDeque<QueuedRequest>>,
    calls: BTreeMap<u16, SteppedCall>,
    paying: Vec<PayingDebt>,
    learn_at: Instant,
    learning: Option<Greeting>,
    is_learning: bool,
    outbox: Vec<Sent>,
    /// The number of the next call.
    next_call: u64,
}

/// The node of a link.
pub(crate) const fn node_of_link(link: u64) -> usize {
    (link >> NODE_SHIFT) as usize
}

/// The node of an item, of so many.
pub(crate) fn node_of(item: &LimitCheck, nodes: usize) -> usize {
    usize::from(slot_of(item)) % nodes
}

impl SteppedCluster {
    pub(in crate::store::redis) fn new(
        setup: TaskSetup,
        view: &ClusterView,
        nodes: usize,
        seed: u64,
    ) -> SteppedCluster {
        let now = setup.shared.clock.now();
        for slot in 0..16_384_u16 {
            let node = (usize::from(slot) % nodes) as NodeId;
            view.lock().map.assign(slot, node);
        }
        let node = |number: usize| {
            let mut health = ServerHealth::new(None, 0);
            health.breaker = Breaker::new(seed.rotate_left(number as u32));
            SteppedNode {
                health,
                link: (number as u64) << NODE_SHIFT,
                stage: NodeStage::Down,
            }
        };
        SteppedCluster {
            shared: setup.shared,
            queue: setup.queue,
            view: view.clone(),
            cache: setup.cache,
            slots: setup.slots,
            nodes: (0..nodes).map(node).collect(),
            queues: BTreeMap::new(),
            calls: BTreeMap::new(),
            paying: Vec::new(),
            learn_at: now,
            learning: None,
            is_learning: false,
            outbox: Vec::new(),
            next_call: 1,
        }
    }

    fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    pub(crate) fn shared(&self) -> &Arc<RedisShared> {
        &self.shared
    }

    pub(crate) fn links(&self) -> Vec<u64> {
        self.nodes.iter().map(|node| node.link).collect()
    }

    pub(crate) fn is_away(&self) -> bool {
        self.nodes.iter().any(|node| node.health.breaker.is_open())
    }

    pub(crate) fn is_connected(&self) -> bool {
        let up = |node: &SteppedNode| matches!(node.stage, NodeStage::Up);
        self.nodes.iter().all(up)
    }

    pub(crate) fn is_idle(&self) -> bool {
        let is_due = self
            .slots
            .next_due(self.now())
            .is_some_and(|due| due <= self.now());
        self.calls.is_empty() && !is_due
    }

    pub(crate) fn owes(&self) -> bool {
        !self.paying.is_empty() || self.shared.owes()
    }

    pub(crate) fn advance(&mut self) -> Vec<Sent> {
        let now = self.now();
        self.shared.recovery.alive(self.shared.clock.at_us(now));
        self.connect(now);
        self.expire(now);
        self.learn(now);
        self.note_paid();
        if self.slots.next_due(now).is_some_and(|due| due <= now) {
            let generation = self.shared.keys.generation();
            for report in self.slots.due_reports(now, generation) {
                self.enqueue(report);
            }
        }
        while let Ok(request) = self.queue.try_recv() {
            self.enqueue(request);
        }
        self.dispatch(now);
        std::mem::take(&mut self.outbox)
    }

    pub(crate) fn wake_at(&self) -> Instant {
        let mut at = match self.is_learning {
            true => self.learn_at + PROBE_TIMEOUT,
            false => self.learn_at,
        };
        at = self
            .slots
            .next_due(self.now())
            .map_or(at, |due| due.min(at));
        for node in &self.nodes {
            at = match node.stage {
                NodeStage::Down => at.min(node.health.breaker.probe_at().unwrap_or(at)),
                NodeStage::Connecting { deadline } => at.min(deadline),
                NodeStage::Up => at,
            };
        }
        let deadlines = self.calls.values().map(|call| call.deadline);
        deadlines.fold(at, Instant::min)
    }

    fn enqueue(&mut self, request: QueuedRequest) {
        self.queues
            .entry(request.slot)
            .or_default()
            .push_back(request);
    }

    fn connect(&mut self, now: Instant) {
        for number in 0..self.nodes.len() {
            let node = &mut self.nodes[number];
            match node.stage {
                NodeStage::Down if node.health.breaker.probe_at().is_none_or(|at| at <= now) => {
                    node.link += 1;
                    node.stage = NodeStage::Connecting {
                        deadline: now + PROBE_TIMEOUT,
                    };
                    self.outbox.push(Sent {
                        link: node.link,
                        call: 0,
                        message: ToServer::Hello(None),
                    });
                }
                NodeStage::Connecting { deadline } if now >= deadline => {
                    self.not_opened(number, StoreError::Timeout, now);
                }
                _ => {}
            }
        }
    }

    fn expire(&mut self, now: Instant) {
        let late = self.calls.extract_if(.., |_, call| call.deadline <= now);
        let late: Vec<(u16, SteppedCall)> = late.collect();
        for (_, call) in late {
            let sent = call.sent;
            self.fail(call.batch, StoreError::Timeout);
            if let Some((_, link)) = sent {
                self.node_failed(link, StoreError::Timeout, now);
            }
        }
    }

    fn fail(&self, batch: Batch, kind: StoreError) {
        match kind.maybe_charged() {
            true => self.slots.fail(batch.bundles, kind),
            false => self.slots.refuse(batch.bundles, kind),
        }
    }

    fn dispatch(&mut self, now: Instant) {
        let waiting = self.queues.iter().filter(|(_, queue)| !queue.is_empty());
        let slots: Vec<u16> = waiting.map(|(slot, _)| *slot).collect();
        for slot in slots {
            if self.calls.contains_key(&slot) {
                continue;
            }
            let batch = self.gather(slot, now);
            if batch.bundles.is_empty() {
                continue;
            }
            let node = usize::from(slot) % self.nodes.len();
            if self.nodes[node].health.breaker.is_open() {
                self.fail(batch, StoreError::Away);
                continue;
            }
            self.next_call += 1;
            let call = SteppedCall {
                number: self.next_call,
                node,
                sent: None,
                deadline: batch.deadline(now, self.shared.timeout),
                batch,
                epoch: self.shared.overrides.epoch(),
            };
            self.calls.insert(slot, call);
        }
        let parked = self.calls.iter().filter(|(_, call)| call.sent.is_none());
        let parked: Vec<u16> = parked.map(|(slot, _)| *slot).collect();
        for slot in parked {
            self.send(slot, now);
        }
    }

    fn gather(&mut self, slot: u16, now: Instant) -> Batch {
        let mut batch = Batch::default();
        let conditions = self.shared.send_conditions(now);
        let queue = self.queues.entry(slot).or_default();
        while let Some(request) = queue.pop_front() {
            if let Some(request) = batch.add_if_due(request, conditions) {
                queue.push_front(request);
                break;
            }
        }
        batch.ask_ahead(&self.cache, self.shared.clock.at_us(now));
        self.slots.add_held(&mut batch);
        batch
    }

    fn send(&mut self, slot: u16, now: Instant) {
        let store_us = self.shared.instant_at(now).store_us;
        let Some(call) = self.calls.get_mut(&slot) else {
            return;
        };
        let node = &self.nodes[call.node];
        if !matches!(node.stage, NodeStage::Up) {
            return;
        }
        call.sent = Some((now, node.link));
        let group = |bundle: &Bundle| SentGroup {
            operation: bundle.operation,
            charge: bundle.charge().clone(),
            extra: bundle.extra.to_vec(),
            store_us,
        };
        let groups = call.batch.bundles.iter().map(group).collect();
        let message = ToServer::Call(groups, self.slots.name());
        self.outbox.push(Sent {
            link: node.link,
            call: call.number,
            message,
        });
    }

    fn learn(&mut self, now: Instant) {
        if self.is_learning && now >= self.learn_at + PROBE_TIMEOUT {
            self.is_learning = false;
            self.learn_at = now;
        }
        if self.is_learning || now < self.learn_at {
            return;
        }
        // All that proxies share lies at the first node.
        self.learn_at = now + SHARED_EVERY / 10;
        if matches!(self.nodes[0].stage, NodeStage::Up) {
            self.is_learning = true;
            self.learning = greeting_if_due(&self.shared);
            self.learn_at = now;
            self.outbox.push(Sent {
                link: self.nodes[0].link,
                call: 0,
                message: ToServer::Hello(self.learning),
            });
        }
    }

    /// Takes what comes over a connection; false if nothing waits for it any more.
    pub(crate) fn receive(&mut self, link: u64, call: u64, message: FromServer) -> bool {
        let (now, number) = (self.now(), node_of_link(link));
        if self.nodes[number].link != link {
            return false;
        }
        match message {
            FromServer::Hello(HelloReply {
                beat, overrides, ..
            }) => {
                if matches!(self.nodes[number].stage, NodeStage::Connecting { .. }) {
                    self.opened(number, now);
                    return true;
                }
                if !std::mem::take(&mut self.is_learning) {
                    return false;
                }
                self.shared.learn_overrides(&overrides);
                if let (Some(greeting), Some(beat)) = (self.learning.take(), beat) {
                    self.shared.note_greeting(greeting, beat);
                }
                self.learned(now);
                true
            }
            FromServer::Reply(bytes) => {
                let mut calls = self.calls.iter();
                let slot = calls
                    .find(|(_, one)| one.number == call)
                    .map(|(slot, _)| *slot);
                let Some(call) = slot.and_then(|slot| self.calls.remove(&slot)) else {
                    return false;
                };
                self.called(number, call, &bytes, now);
                true
            }
        }
    }

    fn called(&mut self, number: usize, call: SteppedCall, bytes: &[u8], now: Instant) {
        let Some((sent, link)) = call.sent else {
            return;
        };
        let is_fresh = call.epoch == self.shared.overrides.epoch();
        let output = ReplyOutput {
            span: self.shared.span_since(sent),
            slots: &self.slots,
            cache: is_fresh.then_some(&self.cache),
            caches_denials: false,
            log: None,
        };
        let mut report = output.hand_out(call.batch, bytes);
        // The worlds with a cluster have no calendar windows.
        assert!(std::mem::take(&mut report.again).is_empty(), "asked again");
        let health = &mut self.nodes[number].health;
        let noted = health.note_reply(&report, &self.shared, &self.cache, now);
        if let Err(kind) = noted {
            self.node_failed(link, kind, now);
        }
    }

    fn opened(&mut self, number: usize, now: Instant) {
        let node = &mut self.nodes[number];
        node.stage = NodeStage::Up;
        node.health.breaker.connected();
        if node.health.trouble().is_some() {
            node.health.end_trouble(&self.shared, now);
        }
        self.pay_back(Some(number), now);
        self.cache.clear();
        self.slots.reconnected();
        self.view.lock().away.remove(&(number as NodeId));
    }

    fn learned(&mut self, now: Instant) {
        let is_returning = self.shared.recovery.is_on();
        self.learn_at = now + SHARED_EVERY / if is_returning { 5 } else { 1 };
        self.shared.journal.ripen(self.shared.instant_at(now));
        self.pay_back(None, now);
    }

    /// A connection has ended.
    pub(crate) fn broken(&mut self, link: u64, kind: StoreError) {
        let (now, number) = (self.now(), node_of_link(link));
        if self.nodes[number].link != link {
            return;
        }
        if let NodeStage::Connecting { .. } = self.nodes[number].stage {
            return self.not_opened(number, kind, now);
        }
        let is_its = |_: &u16, call: &mut SteppedCall| call.sent.is_some_and(|(_, of)| of == link);
        let lost: Vec<(u16, SteppedCall)> = self.calls.extract_if(.., is_its).collect();
        lost.into_iter()
            .for_each(|(_, call)| self.fail(call.batch, kind));
        self.node_failed(link, kind, now);
    }

    fn not_opened(&mut self, number: usize, kind: StoreError, now: Instant) {
        self.nodes[number].health.breaker.connect_failed(now);
        self.close(number, kind, now);
    }

    fn node_failed(&mut self, link: u64, kind: StoreError, now: Instant) {
        let number = node_of_link(link);
        let node = &mut self.nodes[number];
        if node.link != link || !matches!(node.stage, NodeStage::Up) {
            return;
        }
        node.health.breaker.call_failed(now);
        if node.health.breaker.is_open() {
            self.close(number, kind, now);
        } else if kind != StoreError::Timeout {
            node.link += 1;
            node.stage = NodeStage::Down;
        }
    }

    fn close(&mut self, number: usize, kind: StoreError, now: Instant) {
        let node = &mut self.nodes[number];
        node.link += 1;
        node.stage = NodeStage::Down;
        node.health.begin_trouble(kind, &self.shared, now);
        self.view.lock().away.insert(number as NodeId);
        // Calls over the old connection fail with it, and those that wait for one at once.
        let of_node = |_: &u16, call: &mut SteppedCall| call.node == number;
        let calls: Vec<(u16, SteppedCall)> = self.calls.extract_if(.., of_node).collect();
        for (_, call) in calls {
            let kind = match call.sent {
                Some(_) => StoreError::Lost,
                None => StoreError::Away,
            };
            self.fail(call.batch, kind);
        }
        if number == 0 {
            self.is_learning = false;
        }
    }
}
