//! The workers of one process as those who accept see them: how many clients each has, and where
//! one goes who came to a worker that has more than its share.
//!
//! The kernel spreads connections over the workers' sockets by a hash. That is even for many; of
//! four connections all come to one of two workers in every eighth case. Whoever is passed on is
//! passed on once, before a byte of it was read.

use std::net::{IpAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::drain::{Drain, Open};

/// A worker may have more clients than another by one in so many before it passes any on: passing
/// on costs as much as a request.
const SLACK: usize = 16;

/// See the file's head.
#[derive(Debug)]
pub(crate) struct WorkerSet(Vec<WorkerSlot>);

/// One worker.
#[derive(Debug)]
struct WorkerSlot {
    drain: Arc<Drain>,
    /// As many may wait there as there may be connections.
    handed_off: UnboundedSender<HandedOff>,
    /// Taken once it serves: before that nobody is sent there.
    received: Mutex<Option<UnboundedReceiver<HandedOff>>>,
    serves: AtomicBool,
}

/// A client on his way to another worker, which has him among its own already.
#[derive(Debug)]
pub(super) struct HandedOff {
    pub(super) stream: TcpStream,
    pub(super) ip: IpAddr,
    pub(super) secure: bool,
    pub(super) open: Open,
}

impl WorkerSet {
    /// Of so many workers.
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

/// One worker's place in the set.
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

    /// From now on other workers may hand connections to this one. They arrive at the receiver,
    /// which only the first call returns.
    pub(super) fn join(&self) -> Option<UnboundedReceiver<HandedOff>> {
        let slot = self.slot();
        let received = slot.received.lock();
        let received = received.unwrap_or_else(PoisonError::into_inner).take();
        slot.serves.store(true, Ordering::Relaxed);
        received
    }

    /// The position of the worker that has clearly fewer connections than this one, which has just
    /// been given another one.
    pub(super) fn least_loaded(&self) -> Option<Position> {
        let own = self.slot().drain.count();
        let others = self.set.0.iter().enumerate();
        let others = others.filter(|(_, slot)| slot.serves.load(Ordering::Relaxed));
        let (least, index) = others
            .map(|(index, slot)| (slot.drain.count(), index))
            .min()?;
        (own > least + 1 + least / SLACK).then(|| Position::new(&self.set, index))
    }

    /// Sends a connection of this worker to another one. It comes back if that one is draining.
    pub(super) fn hand_off(&self, mut handed: HandedOff, to: &Position) -> Result<(), HandedOff> {
        let other = to.slot();
        handed.open.move_to(&other.drain);
        // Looked at after the move: a drain that begins from now on waits for the connection.
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

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    /// What `clients` have become, who all come to the first of so many workers.
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
}
