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

    /// The clients of worker `index`.
    pub(super) fn drain(&self, index: usize) -> Arc<Drain> {
        Arc::clone(&self.0[index].drain)
    }

    /// Worker `index` serves from now on: whom others send to it.
    pub(super) fn join(&self, index: usize) -> Option<UnboundedReceiver<HandedOff>> {
        let slot = &self.0[index];
        let received = slot.received.lock();
        let received = received.unwrap_or_else(PoisonError::into_inner).take();
        slot.serves.store(true, Ordering::Relaxed);
        received
    }

    /// Who has clearly fewer clients than worker `index`, which has just been given another one.
    pub(super) fn least_loaded(&self, index: usize) -> Option<usize> {
        let own = self.0[index].drain.count();
        let others = self.0.iter().enumerate();
        let others = others.filter(|(_, slot)| slot.serves.load(Ordering::Relaxed));
        let (least, whose) = others
            .map(|(whose, slot)| (slot.drain.count(), whose))
            .min()?;
        (own > least + 1 + least / SLACK).then_some(whose)
    }

    /// Sends a client of worker `from` to worker `to`. He comes back if that one is ending.
    pub(super) fn hand_off(
        &self,
        mut handed: HandedOff,
        (from, to): (usize, usize),
    ) -> Result<(), HandedOff> {
        let other = &self.0[to];
        handed.open.move_to(&other.drain);
        // Looked at after the move: who begins to drain from now on waits for him.
        let sent = match other.drain.is_draining() {
            true => Err(handed),
            false => other.handed_off.send(handed).map_err(|unsent| unsent.0),
        };
        sent.map_err(|mut handed| {
            handed.open.move_to(&self.0[from].drain);
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
        let workers = WorkerSet::new(count);
        let _receivers: Vec<_> = (0..count).map(|index| workers.join(index)).collect();
        let permits = Arc::new(Semaphore::new(clients));
        let mut kept = Vec::new();
        for _ in 0..clients {
            let permit = Arc::clone(&permits).try_acquire_owned().unwrap();
            let mut open = workers.0[0].drain.open(permit);
            if let Some(to) = workers.least_loaded(0) {
                open.move_to(&workers.0[to].drain);
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
