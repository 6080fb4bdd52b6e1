//! A worker's task: a queue of requests for each slot, nodes that answer them, and a map between
//! them.
//!
//! One call is in flight for each slot. Requests that come meanwhile wait in the slot's queue, and
//! go with the next call. Calls to one node share its connection. A call that a node redirects has
//! not run, and goes to the other node within its deadline. A call without an answer is never sent
//! again.

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{mpsc, watch};
use tokio::time::{Sleep, sleep, sleep_until};

use super::ClusterView;
use super::node::{CallError, CallReply, ClusterCall, ClusterNode};
use super::topology::{NO_NODE, NodeId, Redirection, SlotRange};
use crate::clock;
use crate::config::RedisAddress;
use crate::limit::Charge;
use crate::store::gather::{Batch, QueuedRequest};
use crate::store::guard::PAUSE_MIN;
use crate::store::lease::WorkerCache;
use crate::store::redis::health::{ReplyOutput, ServerHealth};
use crate::store::redis::link::{PROBE_TIMEOUT, RedisLink};
use crate::store::redis::slot_lease::SlotLease;
use crate::store::redis::{QUEUE, RedisShared, TaskSetup};
use crate::store::{ServerTrouble, StoreError};

/// How often the nodes are asked for what all proxies share.
pub(super) const SHARED_EVERY: Duration = Duration::from_millis(500);
/// How often the map is read: when all is well, while a node is away, and after a slot was found at
/// another node.
pub(super) const MAP_EVERY: Duration = Duration::from_secs(30);
pub(super) const MAP_IN_TROUBLE: Duration = Duration::from_millis(250);
pub(super) const MAP_AFTER_MOVE: Duration = Duration::from_millis(100);
/// Redirections that a call follows, at most.
const MAX_HOPS: u8 = 8;
/// The pause before the second and each further redirection.
const HOP_PAUSE: Duration = Duration::from_millis(2);
/// A node that holds no slot is kept for so long after its last call.
pub(super) const NODE_IDLE: Duration = Duration::from_secs(10);

/// The requests for one slot.
#[derive(Debug, Default)]
struct SlotQueue {
    requests: VecDeque<QueuedRequest>,
    calls: u32,
}

/// One connection of a node: the number of the node, and that of its connection.
#[derive(Clone, Copy)]
pub(super) struct LinkId {
    pub(super) node: NodeId,
    pub(super) epoch: u32,
}

pub(super) enum ClusterEvent {
    Called(LinkId, ClusterCall, Result<CallReply, CallError>),
    Rested(NodeId, ClusterCall),
    Opened(NodeId, Result<RedisLink, StoreError>),
    Ended(LinkId),
    MapRead(Result<Vec<SlotRange>, StoreError>),
    Learned(Result<bool, StoreError>),
    /// Whether a node that has refused writes took one.
    TriedWrite(NodeId, bool),
    /// A debt was charged to a node, or was not.
    Paid(Option<Charge>),
}

pub(in crate::store::redis) struct ClusterTask {
    pub(super) shared: Arc<RedisShared>,
    queue: mpsc::Receiver<QueuedRequest>,
    pub(super) view: ClusterView,
    pub(super) cache: WorkerCache,
    pub(super) slots: SlotLease,
    pub(super) ready: watch::Sender<bool>,
    /// In trouble while no node is known. The first seed stands for all.
    pub(super) seeds: ServerHealth,
    queues: HashMap<u16, SlotQueue>,
    waiting: usize,
    /// Slots whose next call may begin.
    idle_slots: Vec<u16>,
    pub(super) nodes: HashMap<NodeId, ClusterNode>,
    next_node: NodeId,
    seed: u64,
    pub(super) work: FuturesUnordered<BoxFuture<'static, ClusterEvent>>,
    /// One timer for every wait of this task; calls have their own.
    sleep: Pin<Box<Sleep>>,
    pub(super) reading_map: bool,
    pub(super) map_read_at: Instant,
    pub(super) map_at: Instant,
    pub(super) learning: bool,
    pub(super) learn_at: Instant,
    /// The losses of the store's memory that this worker has heard of.
    pub(super) losses: u64,
}

impl ClusterTask {
    pub(in crate::store::redis) fn new(setup: TaskSetup, view: ClusterView) -> ClusterTask {
        let (now, losses) = (clock::now(), setup.shared.recovery.losses());
        ClusterTask {
            seeds: ServerHealth::new(setup.shared.access().seeds().first().cloned(), 0),
            seed: setup.shared.next_seed(),
            shared: setup.shared,
            queue: setup.queue,
            view,
            cache: setup.cache,
            slots: setup.slots,
            ready: setup.ready,
            queues: HashMap::new(),
            waiting: 0,
            idle_slots: Vec::new(),
            nodes: HashMap::new(),
            next_node: 0,
            work: FuturesUnordered::new(),
            sleep: Box::pin(sleep_until(now.into())),
            reading_map: false,
            map_read_at: now,
            map_at: now,
            learning: false,
            learn_at: now,
            losses,
        }
    }

    pub(in crate::store::redis) async fn run(mut self) {
        let gives_up = clock::now() + PROBE_TIMEOUT + SHARED_EVERY / 5;
        while AssertUnwindSafe(self.serve(gives_up))
            .catch_unwind()
            .await
            .is_err()
        {
            self.panicked(clock::now());
            sleep(PAUSE_MIN).await;
        }
        let now = clock::now();
        for node in self.nodes.values_mut() {
            node.health.end_trouble(&self.shared, now);
        }
        self.seeds.end_trouble(&self.shared, now);
    }

    /// A panic has taken every connection and every waiting request with it. Each connection is
    /// made again as after a failed one; until then its node is away.
    fn panicked(&mut self, now: Instant) {
        self.queues.clear();
        self.idle_slots.clear();
        self.waiting = 0;
        self.work.clear();
        (self.reading_map, self.map_at) = (false, now);
        (self.learning, self.learn_at) = (false, now);
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.calls = 0;
            }
            self.not_opened(id, StoreError::Lost, now);
        }
    }

    async fn serve(&mut self, gives_up: Instant) {
        // Set when the last handle is gone: until then, what it has left is sent.
        let mut ends_at: Option<Instant> = None;
        loop {
            let now = clock::now();
            self.tick(now);
            self.dispatch(now);
            if ends_at.is_some_and(|at| now >= at || self.queues.is_empty()) {
                return;
            }
            if now >= gives_up && !*self.ready.borrow() {
                self.ready.send_replace(true);
            }
            let wake_at = self.wake_at(gives_up);
            let wake_at = ends_at.map_or(wake_at, |at| at.min(wake_at));
            self.sleep.as_mut().reset(wake_at.into());
            tokio::select! {
                request = self.queue.recv(), if self.waiting < QUEUE && ends_at.is_none() => {
                    let Some(request) = request else {
                        ends_at = Some(clock::now() + self.shared.timeout);
                        continue;
                    };
                    self.enqueue(request);
                    while self.waiting < QUEUE && let Ok(request) = self.queue.try_recv() {
                        self.enqueue(request);
                    }
                }
                Some(event) = self.work.next() => self.handle(event),
                () = self.slots.woken() => {}
                () = &mut self.sleep => {}
            }
        }
    }

    pub(super) fn enqueue(&mut self, request: QueuedRequest) {
        let slot = request.slot;
        let queue = self.queues.entry(slot).or_default();
        queue.requests.push_back(request);
        self.waiting += 1;
        if queue.calls == 0 {
            self.idle_slots.push(slot);
        }
    }

    /// Sends the requests for slots that have no call in flight.
    fn dispatch(&mut self, now: Instant) {
        while let Some(slot) = self.idle_slots.pop() {
            let Some(queue) = self.queues.get(&slot).filter(|queue| queue.calls == 0) else {
                continue;
            };
            if queue.requests.is_empty() {
                self.queues.remove(&slot);
                continue;
            }
            let (owner, is_moving) = {
                let view = self.view.lock();
                (view.map.owner(slot), view.is_moving(slot, now))
            };
            let batch = self.gather(slot, now);
            let deadline = batch.deadline(now, self.shared.timeout);
            let batches = match is_moving {
                true => batch.split(),
                false => vec![batch],
            };
            for batch in batches {
                let call = ClusterCall {
                    slot,
                    batch,
                    deadline,
                    hops: 0,
                    asking: false,
                    is_repeated: false,
                    epoch: self.shared.overrides.epoch(),
                };
                self.begin(owner, call, now);
            }
            self.note_idle(slot);
        }
    }

    /// Everything that waits for a slot and is worth sending, up to a batch.
    fn gather(&mut self, slot: u16, now: Instant) -> Batch {
        let mut batch = Batch::default();
        let Some(queue) = self.queues.get_mut(&slot) else {
            return batch;
        };
        let conditions = self.shared.send_conditions(now);
        while let Some(request) = queue.requests.pop_front() {
            if let Some(request) = batch.add_if_due(request, conditions) {
                queue.requests.push_front(request);
                break;
            }
            self.waiting -= 1;
        }
        batch.ask_ahead(&self.cache, self.shared.clock.at_us(now));
        self.slots.add_held(&mut batch);
        batch
    }

    fn begin(&mut self, owner: Option<NodeId>, call: ClusterCall, now: Instant) {
        failpoint!("redis.call", self.shared.prefix);
        if call.batch.bundles.is_empty() {
            return;
        }
        self.queues.entry(call.slot).or_default().calls += 1;
        match owner {
            Some(owner) => self.route(owner, call, now),
            None => self.fail(call, StoreError::Away),
        }
    }

    /// Sends a call to a node, or keeps it until the node is connected.
    pub(super) fn route(&mut self, id: NodeId, call: ClusterCall, now: Instant) {
        if now >= call.deadline {
            return self.fail(call, StoreError::Timeout);
        }
        let Some(node) = self
            .nodes
            .get_mut(&id)
            .filter(|node| !node.health.breaker.is_open())
        else {
            return self.fail(call, StoreError::Away);
        };
        node.used_at = now;
        let Some(connection) = node.connection.clone() else {
            return node.parked.push(call);
        };
        node.calls += 1;
        let (shared, holder) = (Arc::clone(&self.shared), self.slots.name());
        let link = LinkId {
            node: id,
            epoch: node.epoch,
        };
        self.work.push(Box::pin(async move {
            let reply = call.send(&shared, connection, holder).await;
            ClusterEvent::Called(link, call, reply)
        }));
    }

    pub(super) fn fail(&mut self, call: ClusterCall, kind: StoreError) {
        self.fail_batch(call.batch, kind);
        self.finish(call.slot);
    }

    fn fail_batch(&self, batch: Batch, kind: StoreError) {
        if kind.maybe_charged() {
            self.slots.fail(batch.bundles, kind);
        } else {
            // Held slots are reported again, but not at once: the node may be away.
            self.slots.refuse(batch.bundles, kind);
        }
    }

    fn finish(&mut self, slot: u16) {
        if let Some(queue) = self.queues.get_mut(&slot) {
            queue.calls = queue.calls.saturating_sub(1);
        }
        self.note_idle(slot);
    }

    fn note_idle(&mut self, slot: u16) {
        let queue = self.queues.get(&slot);
        if queue.is_some_and(|queue| queue.calls == 0) {
            self.idle_slots.push(slot);
        }
    }

    fn handle(&mut self, event: ClusterEvent) {
        let now = clock::now();
        match event {
            ClusterEvent::Called(link, call, reply) => self.called(link, call, reply, now),
            ClusterEvent::Rested(id, call) => self.route(id, call, now),
            ClusterEvent::Opened(id, Ok(link)) => self.opened(id, link, now),
            ClusterEvent::Opened(id, Err(kind)) => self.not_opened(id, kind, now),
            ClusterEvent::Ended(link) => self.node_failed(link, StoreError::Lost, now),
            ClusterEvent::MapRead(map) => self.map_read(map, now),
            ClusterEvent::Learned(learned) => self.learned(learned, now),
            ClusterEvent::TriedWrite(id, wrote) => self.tried_write(id, wrote, now),
            ClusterEvent::Paid(None) => {}
            ClusterEvent::Paid(Some(unpaid)) => {
                let shared = &self.shared;
                shared.journal.add(&unpaid, shared.instant_at(now));
            }
        }
    }

    fn called(
        &mut self,
        link: LinkId,
        call: ClusterCall,
        reply: Result<CallReply, CallError>,
        now: Instant,
    ) {
        let slot = call.slot;
        if let Some(node) = self.nodes.get_mut(&link.node) {
            node.calls = node.calls.saturating_sub(1);
        }
        match reply {
            Ok(reply) => {
                let is_fresh = call.epoch == self.shared.overrides.epoch();
                let output = ReplyOutput {
                    span: reply.span,
                    slots: &self.slots,
                    cache: is_fresh.then_some(&self.cache),
                    caches_denials: false,
                    log: None,
                };
                let mut report = output.hand_out(call.batch, &reply.bytes);
                let again = std::mem::take(&mut report.again);
                self.finish(slot);
                self.replied(link, &report, now);
                if call.is_repeated {
                    self.slots.refuse(again, StoreError::ClockUnknown);
                } else if !again.is_empty() {
                    let repeated = ClusterCall {
                        batch: Batch::again(again),
                        is_repeated: true,
                        ..call
                    };
                    self.begin(Some(link.node), repeated, now);
                }
            }
            Err(CallError::Redirected(Redirection::Moved(address))) => {
                let id = self.node_at(&address, now);
                self.view.lock().map.assign(slot, id);
                self.read_map_soon(MAP_AFTER_MOVE);
                self.follow(id, call, false, now);
            }
            Err(CallError::Redirected(Redirection::Ask(address))) if !call.has_several_keys() => {
                let id = self.node_at(&address, now);
                self.view.lock().note_moving(slot, now);
                self.follow(id, call, true, now);
            }
            Err(CallError::Redirected(_)) => self.split(call, now),
            Err(CallError::SlotDown) => {
                self.read_map_soon(MAP_AFTER_MOVE);
                self.fail(call, StoreError::Server(ServerTrouble::Cluster));
            }
            Err(CallError::Failed(kind)) => {
                self.fail(call, kind);
                self.node_failed(link, kind, now);
            }
        }
    }

    fn follow(&mut self, id: NodeId, mut call: ClusterCall, asking: bool, now: Instant) {
        (call.hops, call.asking) = (call.hops + 1, asking);
        if call.hops > MAX_HOPS {
            self.fail(call, StoreError::Server(ServerTrouble::Cluster));
        } else if call.hops == 1 || asking {
            self.route(id, call, now);
        } else {
            // The nodes do not agree yet.
            self.work.push(Box::pin(async move {
                sleep(HOP_PAUSE).await;
                ClusterEvent::Rested(id, call)
            }));
        }
    }

    /// A call's keys lie on two nodes, and it has not run: each bundle is sent by itself. A request
    /// for several keys fails, and asks for them one by one.
    fn split(&mut self, call: ClusterCall, now: Instant) {
        let owner = {
            let mut view = self.view.lock();
            view.note_moving(call.slot, now);
            view.map.owner(call.slot)
        };
        if let (Some(owner), false) = (owner, call.has_several_keys()) {
            return self.follow(owner, call, false, now);
        }
        let (slot, deadline, hops, epoch) = (call.slot, call.deadline, call.hops, call.epoch);
        let is_repeated = call.is_repeated;
        for batch in call.batch.split() {
            if batch.bundles.iter().any(|bundle| bundle.charge().len() > 1) {
                let kind = StoreError::Server(ServerTrouble::TryAgain);
                self.fail_batch(batch, kind);
                continue;
            }
            let call = ClusterCall {
                slot,
                batch,
                deadline,
                hops,
                asking: false,
                is_repeated,
                epoch,
            };
            self.begin(owner, call, now);
        }
        self.finish(slot);
    }

    pub(super) fn node_at(&mut self, address: &RedisAddress, now: Instant) -> NodeId {
        let known = self.nodes.iter().find(|(_, node)| node.address == *address);
        if let Some((id, _)) = known {
            return *id;
        }
        while self.next_node == NO_NODE || self.nodes.contains_key(&self.next_node) {
            self.next_node = self.next_node.wrapping_add(1);
        }
        let id = self.next_node;
        let seed = self.seed.rotate_left(u32::from(id) % 64);
        self.nodes
            .insert(id, ClusterNode::new(address.clone(), seed, now));
        id
    }
}
