//! The store of one process in steps, for simulations: its handle, the counts that stand in for it,
//! and the task of its one worker. The simulation carries the messages and moves the clock.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

pub(crate) use super::cluster::stepped::{SteppedCluster, node_of, node_of_link};
pub(crate) use super::overrides::stepped::{OverrideFields, TakenDenials, ToldBan};
pub(crate) use super::task::stepped::SteppedTask;
use super::{Redis, RedisShared, ServersView};
use crate::clock::{Micros, MonotonicClock};
use crate::config::{RedisSettings, StoreSettings};
use crate::limit::Charge;
use crate::store::batch::Operation;
use crate::store::hash_key::KeyRing;
use crate::store::memory::Memory;
use crate::store::recovery::{Greeting, Heartbeat, ProcessName};
use crate::store::{Backing, StoreError};

/// What a task sends over its connection.
#[derive(Clone, Debug)]
pub(crate) enum ToServer {
    /// A new connection, or the work of twice a second. The greeting is left out if it is not due.
    Hello(Option<Greeting>),
    /// Groups of one call, and the holder of slots.
    Call(Vec<SentGroup>, u64),
}

#[derive(Clone, Debug)]
pub(crate) struct SentGroup {
    pub(crate) operation: Operation,
    pub(crate) charge: Charge,
    pub(crate) extra: Vec<u64>,
    /// The store's clock as the sender knows it: calendar windows are sent by it.
    pub(crate) store_us: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum FromServer {
    Hello(HelloReply),
    Reply(Vec<u8>),
}

#[derive(Clone, Debug)]
pub(crate) struct HelloReply {
    pub(crate) beat: Option<Heartbeat>,
    pub(crate) overrides: Arc<OverrideFields>,
    pub(crate) takes_writes: bool,
}

/// A message on its way to the store.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    /// The number of the connection.
    pub(crate) link: u64,
    /// The number of the call on it.
    pub(crate) call: u64,
    pub(crate) message: ToServer,
}

/// The task of a worker.
pub(crate) enum StoreTask {
    Server(Box<SteppedTask>),
    Cluster(Box<SteppedCluster>),
}

/// What one process has of the store.
pub(crate) struct SteppedStore {
    pub(crate) backing: Backing,
    pub(crate) local: Arc<Memory>,
    pub(crate) redis: Redis,
    pub(crate) task: StoreTask,
}

/// A process, as a simulation makes it.
pub(crate) struct ProcessSetup<'s> {
    pub(crate) clock: MonotonicClock,
    pub(crate) name: ProcessName,
    pub(crate) settings: &'s StoreSettings,
    pub(crate) server: &'s RedisSettings,
    /// That of the breakers.
    pub(crate) seed: u64,
    /// Masters of a cluster.
    pub(crate) nodes: usize,
}

impl SteppedStore {
    pub(crate) fn new(process: ProcessSetup<'_>) -> SteppedStore {
        let ProcessSetup {
            clock,
            name,
            settings,
            server,
            seed,
            nodes,
        } = process;
        let keys = || KeyRing::new(settings).unwrap();
        let shared = RedisShared::with_clock(clock, name, settings, server, keys(), None);
        let shared = Arc::new(shared.unwrap());
        let local = Memory::new(settings, keys(), Micros::Monotonic(clock), None);
        let local = Arc::new(local.stand_in(shared.recovery()));
        let backing = Backing::Redis(Arc::clone(&shared));
        backing.forgets_in(&local);
        let (redis, setup) = Redis::new(shared);
        let task = match &redis.servers {
            ServersView::Server(is_open) => {
                let task = SteppedTask::new(setup, Arc::clone(is_open), seed);
                StoreTask::Server(Box::new(task))
            }
            ServersView::Cluster(view) => {
                let task = SteppedCluster::new(setup, view, nodes, seed);
                StoreTask::Cluster(Box::new(task))
            }
        };
        SteppedStore {
            backing,
            local,
            redis,
            task,
        }
    }
}

/// Calls the method of either task.
macro_rules! either {
    ($task:expr, $one:ident => $call:expr) => {
        match $task {
            StoreTask::Server($one) => $call,
            StoreTask::Cluster($one) => $call,
        }
    };
}

impl StoreTask {
    pub(crate) fn shared(&self) -> &Arc<RedisShared> {
        either!(self, task => task.shared())
    }

    /// Whether it stays away from some server.
    pub(crate) fn is_away(&self) -> bool {
        either!(self, task => task.is_away())
    }

    pub(crate) fn is_connected(&self) -> bool {
        either!(self, task => task.is_connected())
    }

    /// Whether it has nothing to send.
    pub(crate) fn is_idle(&self) -> bool {
        either!(self, task => task.is_idle())
    }

    pub(crate) fn owes(&self) -> bool {
        either!(self, task => task.owes())
    }

    /// Goes as far as it can. Returns what is to be sent.
    pub(crate) fn advance(&mut self) -> Vec<Sent> {
        either!(self, task => task.advance())
    }

    /// When it must advance again, although nothing has come.
    pub(crate) fn wake_at(&self) -> Instant {
        either!(self, task => task.wake_at())
    }

    pub(crate) fn broken(&mut self, link: u64, kind: StoreError) {
        either!(self, task => task.broken(link, kind));
    }

    /// Takes what comes over a connection; false if nothing waits for it any more.
    pub(crate) fn receive(&mut self, link: u64, call: u64, message: FromServer) -> bool {
        match self {
            StoreTask::Server(task) => task.receive(link, message),
            StoreTask::Cluster(task) => task.receive(link, call, message),
        }
    }

    /// The connection to each server.
    pub(crate) fn links(&self) -> Vec<u64> {
        match self {
            StoreTask::Server(task) => vec![task.link],
            StoreTask::Cluster(task) => task.links(),
        }
    }

    /// Sentinels name another master.
    pub(crate) fn move_away(&mut self) {
        if let StoreTask::Server(task) = self {
            task.has_moved = true;
        }
    }
}

/// What `maintenance::beat` sends, if it is time.
pub(super) fn greeting_if_due(shared: &RedisShared) -> Option<Greeting> {
    let now_us = shared.clock.now_us();
    if now_us < shared.beat_at_us.load(Ordering::Relaxed) {
        return None;
    }
    let next_us = now_us + shared.recovery.beat_every_us();
    shared.beat_at_us.store(next_us, Ordering::Relaxed);
    Some((shared.recovery).greeting(shared.is_troubled(), shared.owes()))
}
