//! The workers of one process: whether each of them is alive, and which has few connections.
//!
//! The kernel spreads connections over the sockets of the workers by a hash. This is even for many
//! connections only: of four connections, all reach one of two workers in every eighth case. So a
//! worker that has too many hands a new connection off, once and before it reads a byte.

use std::net::{IpAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, watch};

use super::drain::{Drain, OpenConnection};
use super::listen::ListenerKind;
use crate::telemetry::panics::lock;

/// A worker hands off if it has more connections than another by one in `SLACK`. A hand-off costs
/// as much as a request.
const SLACK: usize = 16;
const ENDED: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct WorkerSet(Vec<WorkerSlot>);

#[derive(Debug)]
struct WorkerSlot {
    drain: Arc<Drain>,
    /// Bounded by `max_connections`.
    handed_off: UnboundedSender<HandedOff>,
    /// Taken by the worker when it begins to serve.
    received: Mutex<Option<UnboundedReceiver<HandedOff>>>,
    /// Before a worker serves, no connection is handed off to it.
    serves: AtomicBool,
}

/// A connection on its way to another worker, which counts it already.
#[derive(Debug)]
pub(super) struct HandedOff {
    pub(super) stream: TcpStream,
    pub(super) ip: IpAddr,
    pub(super) kind: ListenerKind,
    pub(super) open: OpenConnection,
}

impl WorkerSet {
    pub(super) fn new(workers: usize) -> WorkerSet {
        let slot = |_| {
            let (handed_off, received) = unbounded_channel();
            WorkerSlot {
                drain: Arc::default(),
                handed_off,
                received: Mutex::new(Some(received)),
                serves: AtomicBool::new(false),
            }
        };
        WorkerSet((0..workers).map(slot).collect())
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Position {
    set: Arc<WorkerSet>,
    pub(super) index: usize,
}

impl Position {
    pub(super) fn new(set: &Arc<WorkerSet>, index: usize) -> Position {
        Position {
            set: Arc::clone(set),
            index,
        }
    }

    fn slot(&self) -> &WorkerSlot {
        &self.set.0[self.index]
    }

    pub(super) fn drain(&self) -> Arc<Drain> {
        Arc::clone(&self.slot().drain)
    }

    /// Lets other workers hand connections off to this one. They arrive at the receiver, which only
    /// the first call returns.
    pub(super) fn join(&self) -> Option<UnboundedReceiver<HandedOff>> {
        let slot = self.slot();
        let received = lock(&slot.received).take();
        slot.serves.store(true, Ordering::Relaxed);
        received
    }

    /// The worker to which this one should hand off its newest connection, if there is one.
    pub(super) fn least_loaded(&self) -> Option<Position> {
        let own = self.slot().drain.count();
        let others = self.set.0.iter().enumerate();
        let others = others.filter(|(_, slot)| slot.serves.load(Ordering::Relaxed));
        let (least, index) = others
            .map(|(index, slot)| (slot.drain.count(), index))
            .min()?;
        (own > least + 1 + least / SLACK).then(|| Position::new(&self.set, index))
    }

    pub(super) fn hand_off(&self, mut handed: HandedOff, to: &Position) -> Result<(), HandedOff> {
        let other = to.slot();
        handed.open.move_to(&other.drain);
        // Checked after the move: a drain that begins from now on waits for the connection.
        let sent = match other.drain.is_draining() {
            true => Err(handed),
            false => other.handed_off.send(handed).map_err(|unsent| unsent.0),
        };
        sent.map_err(|mut handed| {
            handed.open.move_to(&self.slot().drain);
            handed
        })
    }
}

/// Signs of life: each worker beats a few times a second while it accepts connections.
#[derive(Debug)]
pub struct Heartbeats {
    beats: Vec<AtomicU64>,
    /// The number of workers that have served.
    serving: watch::Sender<usize>,
    lost: Notify,
}

impl Heartbeats {
    pub fn new(workers: usize) -> Heartbeats {
        Heartbeats {
            beats: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            serving: watch::Sender::new(0),
            lost: Notify::new(),
        }
    }

    pub(crate) fn beat(&self, worker: usize) {
        if self.beats[worker].fetch_add(1, Ordering::Relaxed) == 0 {
            self.serving.send_modify(|workers| *workers += 1);
        }
    }

    /// Notes that a worker has ended because it was told to.
    pub(crate) fn end(&self, worker: usize) {
        self.beats[worker].store(ENDED, Ordering::Relaxed);
    }

    /// Notes that a worker has ended unexpectedly.
    pub(crate) fn lose(&self, worker: usize) {
        self.end(worker);
        self.lost.notify_one();
    }

    /// Returns once a worker has ended unexpectedly; only one caller is woken. The clients of that
    /// worker are lost, and clients at its sockets would wait for ever.
    pub async fn wait_for_lost_worker(&self) {
        self.lost.notified().await;
    }

    pub fn serves(&self) -> bool {
        let serves = |beats: &AtomicU64| beats.load(Ordering::Relaxed) > 0;
        self.beats.iter().all(serves)
    }

    /// Returns once all workers serve.
    pub async fn all_serve(&self) {
        let workers = self.beats.len();
        let mut serving = self.serving.subscribe();
        // The sender lives as long as `self`.
        let _ = serving.wait_for(|serving| *serving == workers).await;
    }

    /// Whether every worker has beaten since the last call with this `memory`.
    pub fn all_beat_since(&self, memory: &mut Vec<u64>) -> bool {
        let beats = self.beats.iter();
        let now: Vec<u64> = beats.map(|beats| beats.load(Ordering::Relaxed)).collect();
        let before = std::mem::replace(memory, now);
        let has_moved =
            |(index, now): (usize, &u64)| *now == ENDED || before.get(index) != Some(now);
        memory.iter().enumerate().all(has_moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Semaphore;

    /// The numbers of connections of the workers after all clients have reached the first one.
    fn spread(count: usize, clients: usize) -> Vec<usize> {
        let workers = Arc::new(WorkerSet::new(count));
        let positions = (0..count).map(|index| Position::new(&workers, index));
        let positions: Vec<_> = positions.collect();
        let _receivers: Vec<_> = positions.iter().map(Position::join).collect();
        let permits = Arc::new(Semaphore::new(clients));
        let mut kept = Vec::new();
        for _ in 0..clients {
            let permit = Arc::clone(&permits).try_acquire_owned().unwrap();
            let mut open = workers.0[0].drain.open(permit);
            if let Some(to) = positions[0].least_loaded() {
                open.move_to(&to.drain());
            }
            kept.push(open);
        }
        workers.0.iter().map(|slot| slot.drain.count()).collect()
    }

    #[test]
    fn few_are_spread_to_the_last_one_and_many_nearly() {
        assert_eq!(spread(1, 5), [5]);
        assert_eq!(spread(2, 4), [2, 2]);
        assert_eq!(spread(4, 16), [4, 4, 4, 4]);
        let many = spread(2, 1000);
        assert!(many[0] - many[1] <= 1 + many[1] / SLACK, "{many:?}");
    }

    #[test]
    fn a_worker_that_stands_still_is_seen() {
        let heartbeats = Heartbeats::new(2);
        let mut memory = Vec::new();
        heartbeats.beat(0);
        heartbeats.beat(1);
        assert!(heartbeats.all_beat_since(&mut memory));
        heartbeats.beat(0);
        assert!(!heartbeats.all_beat_since(&mut memory));
        heartbeats.beat(0);
        heartbeats.end(1);
        assert!(heartbeats.all_beat_since(&mut memory));
        heartbeats.beat(0);
        assert!(heartbeats.all_beat_since(&mut memory));
    }
}
