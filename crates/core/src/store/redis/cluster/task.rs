//! A worker's task: lanes of what is asked of each slot, nodes that answer it, and a map between
//! them.
//!
//! One call is in flight for each slot; what is asked of it meanwhile waits in its lane and goes
//! with the next. Calls to one node share its connection. A call that a node sends elsewhere has
//! not run and follows, within its deadline; one that was not answered is never sent again.

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{mpsc, watch};
use tokio::time::{Sleep, sleep, sleep_until};

use super::super::reply;
use super::Placed;
use super::call::{self, Call, Failure, Replied};
use super::map::{Elsewhere, NodeId, Range};
use super::node::Node;
use super::view::View;
use crate::clock;
use crate::config::RedisAddress;
use crate::limit::Charge;
use crate::store::gather::Batch;
use crate::store::guard::PAUSE_MIN;
use crate::store::known::Known;
use crate::store::redis::link::{Link, PROBE_TIMEOUT};
use crate::store::redis::slot_lease::SlotLease;
use crate::store::redis::{QUEUE, Shared};
use crate::store::waiting::Waiting;
use crate::store::{ServerTrouble, StoreError};

/// Items in one call: blocks the server for about 0.3 ms at most.
const MAX_BATCH: usize = 64;
/// How often the hash key is put back should it have gone, and read.
pub(super) const ASSERT_EVERY: Duration = Duration::from_millis(500);
/// How often the map is drawn anew: when all is well, while a node is away, and after a slot was
/// found elsewhere.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(30);
pub(super) const LOOK_IN_TROUBLE: Duration = Duration::from_millis(250);
pub(super) const LOOK_AFTER_MOVE: Duration = Duration::from_millis(100);
/// How often a call follows redirections, and how long it rests from the second on.
const MAX_HOPS: u8 = 8;
const REST: Duration = Duration::from_millis(2);
/// A node that holds no slot is kept for so long after its last call.
pub(super) const IDLE: Duration = Duration::from_secs(10);

/// What is asked of one slot.
#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<Waiting>,
    calls: u32,
}

pub(super) enum Event {
    Called(NodeId, u32, Call, Replied),
    Rested(NodeId, Call),
    Opened(NodeId, Result<Link, StoreError>),
    Ended(NodeId, u32),
    Looked(Result<Vec<Range>, StoreError>),
    Learned(Result<bool, StoreError>),
    /// What was admitted without a node is charged to it, or is not.
    Paid(Option<Charge>),
}

pub(super) struct Task {
    pub(super) shared: Arc<Shared>,
    queue: mpsc::Receiver<Placed>,
    pub(super) view: View,
    pub(super) known: Known,
    pub(super) holder: SlotLease,
    pub(super) settle: watch::Sender<bool>,
    /// No node was ever found; the first seed stands for all.
    pub(super) lost: bool,
    lanes: HashMap<u16, Lane>,
    /// Requests in the lanes.
    waiting: usize,
    /// Slots whose lanes may go on.
    ready: Vec<u16>,
    pub(super) nodes: HashMap<NodeId, Node>,
    next_node: NodeId,
    seed: u64,
    pub(super) work: FuturesUnordered<BoxFuture<'static, Event>>,
    /// One timer for every wait of this task; calls have their own.
    sleep: Pin<Box<Sleep>>,
    pub(super) looking: bool,
    pub(super) looked_at: Instant,
    pub(super) look_at: Instant,
    pub(super) learning: bool,
    pub(super) learn_at: Instant,
}

impl Task {
    pub(super) fn new(
        shared: Arc<Shared>,
        queue: mpsc::Receiver<Placed>,
        (view, known, holder): (View, Known, SlotLease),
        settle: watch::Sender<bool>,
    ) -> Task {
        let number = u64::from(shared.spawned.fetch_add(1, Ordering::Relaxed));
        // Pauses must differ between proxies too, which all count their workers from 0.
        let seed = clock::unix_us().rotate_left(20) ^ u64::from(std::process::id()) << 8 ^ number;
        let now = clock::now();
        Task {
            shared,
            queue,
            view,
            known,
            holder,
            settle,
            lost: false,
            lanes: HashMap::new(),
            waiting: 0,
            ready: Vec::new(),
            nodes: HashMap::new(),
            next_node: 0,
            seed,
            work: FuturesUnordered::new(),
            sleep: Box::pin(sleep_until(now.into())),
            looking: false,
            looked_at: now,
            look_at: now,
            learning: false,
            learn_at: now,
        }
    }

    /// Runs until every handle is gone.
    pub(super) async fn run(mut self) {
        let gives_up = clock::now() + PROBE_TIMEOUT + ASSERT_EVERY / 5;
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
            node.end_trouble(&self.shared, now);
        }
        if let Some(seed) = self.shared.access.seeds().first().filter(|_| self.lost) {
            self.shared.trouble_ends(Some(seed), now);
        }
    }

    /// A panic has taken every connection with it, and whoever waited. Each is made anew as after
    /// one that could not be; until then its node is away.
    fn panicked(&mut self, now: Instant) {
        self.lanes.clear();
        self.ready.clear();
        self.waiting = 0;
        self.work.clear();
        (self.looking, self.look_at) = (false, now);
        (self.learning, self.learn_at) = (false, now);
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.calls = 0;
            }
            self.not_opened(id, StoreError::Lost, now);
        }
    }

    async fn serve(&mut self, gives_up: Instant) {
        loop {
            let now = clock::now();
            self.tick(now);
            self.dispatch(now);
            if now >= gives_up && !*self.settle.borrow() {
                self.settle.send_replace(true);
            }
            let wake_at = self.wake_at(gives_up);
            self.sleep.as_mut().reset(wake_at.into());
            tokio::select! {
                placed = self.queue.recv(), if self.waiting < QUEUE => {
                    let Some(placed) = placed else { return };
                    self.take(placed);
                    while self.waiting < QUEUE && let Ok(placed) = self.queue.try_recv() {
                        self.take(placed);
                    }
                }
                Some(event) = self.work.next() => self.happened(event),
                () = self.holder.is_woken() => {}
                () = &mut self.sleep => {}
            }
        }
    }

    pub(super) fn take(&mut self, placed: Placed) {
        let lane = self.lanes.entry(placed.slot).or_default();
        lane.waiting.push_back(placed.waiting);
        self.waiting += 1;
        if lane.calls == 0 {
            self.ready.push(placed.slot);
        }
    }

    /// Sends what waits in lanes that have no call in flight.
    fn dispatch(&mut self, now: Instant) {
        while let Some(slot) = self.ready.pop() {
            let Some(lane) = self.lanes.get(&slot).filter(|lane| lane.calls == 0) else {
                continue;
            };
            if lane.waiting.is_empty() {
                self.lanes.remove(&slot);
                continue;
            }
            let (owner, apart) = {
                let view = self.view.lock();
                (view.map.owner(slot), view.is_apart(slot, now))
            };
            let batch = self.gather(slot, now);
            let timeout = self.shared.timeout;
            // What is only told waits as if it were new.
            let deadline = (batch.oldest.unwrap_or(now) + timeout).max(now + timeout / 4);
            let batches = if apart { batch.apart() } else { vec![batch] };
            for batch in batches {
                let call = Call {
                    slot,
                    batch,
                    deadline,
                    hops: 0,
                    asking: false,
                    epoch: self.shared.overrides.epoch(),
                };
                self.begin(owner, call, now);
            }
            self.ready_if_idle(slot);
        }
    }

    /// What waits for a slot, up to a batch; what is too late or was given up is left out.
    fn gather(&mut self, slot: u16, now: Instant) -> Batch {
        let mut batch = Batch::default();
        let Some(lane) = self.lanes.get_mut(&slot) else {
            return batch;
        };
        let redis = &self.shared;
        let generation = redis.keys.generation();
        while let Some(waiting) = lane.waiting.pop_front() {
            self.waiting -= 1;
            if waiting.is_given_up() {
                continue;
            }
            if waiting.generation != generation {
                waiting.fail(StoreError::Away);
            } else if now >= waiting.arrived + redis.timeout && waiting.is_open() {
                waiting.fail(StoreError::Timeout);
            } else if let Some(waiting) = batch.add(waiting, MAX_BATCH) {
                lane.waiting.push_front(waiting);
                self.waiting += 1;
                break;
            }
        }
        batch.ask_ahead(&self.known, redis.clock.at_us(now));
        self.holder.fill(&mut batch);
        batch
    }

    /// A new call.
    fn begin(&mut self, owner: Option<NodeId>, call: Call, now: Instant) {
        failpoint!("redis.call", self.shared.prefix);
        if call.batch.bundles.is_empty() {
            return;
        }
        self.lanes.entry(call.slot).or_default().calls += 1;
        match owner {
            Some(owner) => self.route(owner, call, now),
            None => self.fail(call, StoreError::Away),
        }
    }

    /// Sends a call to a node, or keeps it until the node is connected.
    pub(super) fn route(&mut self, id: NodeId, call: Call, now: Instant) {
        if now >= call.deadline {
            return self.fail(call, StoreError::Timeout);
        }
        let Some(node) = self.nodes.get_mut(&id).filter(|node| !node.guard.is_open()) else {
            return self.fail(call, StoreError::Away);
        };
        node.used_at = now;
        let Some(connection) = node.connection().cloned() else {
            return node.parked.push(call);
        };
        node.calls += 1;
        let (shared, to) = (Arc::clone(&self.shared), (connection, node.address.clone()));
        let (epoch, holder) = (node.epoch, self.holder.name());
        self.work.push(Box::pin(async move {
            let replied = call::send(&shared, to, (&call, holder)).await;
            Event::Called(id, epoch, call, replied)
        }));
    }

    pub(super) fn fail(&mut self, call: Call, kind: StoreError) {
        call::fail(call.batch, kind, &self.holder);
        self.finish(call.slot);
    }

    /// A call of this slot has ended.
    fn finish(&mut self, slot: u16) {
        if let Some(lane) = self.lanes.get_mut(&slot) {
            lane.calls = lane.calls.saturating_sub(1);
        }
        self.ready_if_idle(slot);
    }

    fn ready_if_idle(&mut self, slot: u16) {
        if self.lanes.get(&slot).is_some_and(|lane| lane.calls == 0) {
            self.ready.push(slot);
        }
    }

    fn happened(&mut self, event: Event) {
        let now = clock::now();
        match event {
            Event::Called(id, epoch, call, replied) => self.called((id, epoch), call, replied, now),
            Event::Rested(id, call) => self.route(id, call, now),
            Event::Opened(id, Ok(link)) => self.opened(id, link, now),
            Event::Opened(id, Err(kind)) => self.not_opened(id, kind, now),
            Event::Ended(id, epoch) => self.node_failed((id, epoch), StoreError::Lost, now),
            Event::Looked(found) => self.looked(found, now),
            Event::Learned(learned) => self.learned(learned, now),
            Event::Paid(None) => {}
            Event::Paid(Some(unpaid)) => {
                let redis = &self.shared;
                redis.journal.add(&unpaid, redis.clock.at_us(now));
            }
        }
    }

    fn called(&mut self, node: (NodeId, u32), call: Call, replied: Replied, now: Instant) {
        let slot = call.slot;
        if let Some(node) = self.nodes.get_mut(&node.0) {
            node.calls = node.calls.saturating_sub(1);
        }
        match replied {
            Ok((bytes, span)) => {
                // What an operator changed meanwhile may not be in it.
                let fresh = call.epoch == self.shared.overrides.epoch();
                let (known, reply) = (&self.known, (&bytes[..], span));
                // Denials are noted, and decisions logged, where the request is put together.
                let told = reply::hand_out(
                    call.batch,
                    reply,
                    &self.holder,
                    |bundle, outcome| {
                        if fresh {
                            reply::keep_what_is_ahead(bundle, outcome, span, known);
                        }
                    },
                    |_, _| {},
                );
                self.finish(slot);
                self.replied(node, &told, now);
            }
            Err(Failure::Elsewhere(Elsewhere::Moved(address))) => {
                let id = self.node_at(&address, now);
                self.view.lock().map.assign(slot, id);
                self.look_soon(LOOK_AFTER_MOVE);
                self.follow(id, call, false, now);
            }
            Err(Failure::Elsewhere(Elsewhere::Ask(address))) if !call.has_several_keys() => {
                let id = self.node_at(&address, now);
                self.view.lock().set_apart(slot, now);
                self.follow(id, call, true, now);
            }
            Err(Failure::Elsewhere(_)) => self.split(call, now),
            Err(Failure::SlotDown) => {
                self.look_soon(LOOK_AFTER_MOVE);
                self.fail(call, StoreError::Server(ServerTrouble::Cluster));
            }
            Err(Failure::Failed(kind)) => {
                self.fail(call, kind);
                self.node_failed(node, kind, now);
            }
        }
    }

    /// A call that has not run goes to another node.
    fn follow(&mut self, id: NodeId, mut call: Call, asking: bool, now: Instant) {
        (call.hops, call.asking) = (call.hops + 1, asking);
        if call.hops > MAX_HOPS {
            self.fail(call, StoreError::Server(ServerTrouble::Cluster));
        } else if call.hops == 1 || asking {
            self.route(id, call, now);
        } else {
            // The nodes do not agree yet.
            self.work.push(Box::pin(async move {
                sleep(REST).await;
                Event::Rested(id, call)
            }));
        }
    }

    /// A call's keys lie on two nodes, and it has not run: each goes by itself. Who asked for
    /// several together is told, and asks for them one by one.
    fn split(&mut self, call: Call, now: Instant) {
        let owner = {
            let mut view = self.view.lock();
            view.set_apart(call.slot, now);
            view.map.owner(call.slot)
        };
        if let (Some(owner), false) = (owner, call.has_several_keys()) {
            return self.follow(owner, call, false, now);
        }
        let (slot, deadline, hops, epoch) = (call.slot, call.deadline, call.hops, call.epoch);
        for batch in call.batch.apart() {
            if batch.bundles.iter().any(|bundle| bundle.charge().len() > 1) {
                call::fail(
                    batch,
                    StoreError::Server(ServerTrouble::TryAgain),
                    &self.holder,
                );
                continue;
            }
            let call = Call {
                slot,
                batch,
                deadline,
                hops,
                asking: false,
                epoch,
            };
            self.begin(owner, call, now);
        }
        self.finish(slot);
    }

    /// The node at an address, known or new.
    pub(super) fn node_at(&mut self, address: &RedisAddress, now: Instant) -> NodeId {
        let known = self.nodes.iter().find(|(_, node)| node.address == *address);
        if let Some((id, _)) = known {
            return *id;
        }
        // The last number means nobody.
        while self.next_node == NodeId::MAX || self.nodes.contains_key(&self.next_node) {
            self.next_node = self.next_node.wrapping_add(1);
        }
        let id = self.next_node;
        let seed = self.seed.rotate_left(u32::from(id) % 64);
        self.nodes.insert(id, Node::new(address.clone(), seed, now));
        id
    }
}
