//! One worker: a runtime on one thread, its own listeners, pools and store connection, and the
//! connections that the kernel gave to it.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use super::crew::Crew;
use super::drain::{Deadlines, Drain, Open};
use super::entrances::{self, Entrances};
use super::listen::Entrance;
use super::reload::Order;
use super::seats::Seats;
use super::serving::{Kept, Serving, flush};
use super::{Course, House, Shutdown};
use crate::clock::{self, Sweep};
use crate::config::{Config, ServerSettings};
use crate::telemetry::panics;

/// What every connection of a worker needs.
pub(super) struct Worker {
    pub(super) serving: Arc<ArcSwap<Serving>>,
    pub(super) sweep: Sweep,
    pub(super) drain: Arc<Drain>,
    pub(super) connections: Arc<Semaphore>,
    pub(super) seats: Arc<Seats>,
    /// All workers, and which of them this one is.
    pub(super) place: (Arc<Crew>, usize),
}

/// Serves on this thread until `shutdown`, then drains.
pub(super) fn run(
    config: Config,
    sockets: Vec<Entrance>,
    house: &House,
    told: (mpsc::Receiver<Order>, Shutdown),
    place: (Arc<Crew>, usize),
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(config, sockets, house, told, place))
}

async fn serve(
    config: Config,
    sockets: Vec<Entrance>,
    house: &House,
    (mut orders, mut shutdown): (mpsc::Receiver<Order>, Shutdown),
    place: (Arc<Crew>, usize),
) -> io::Result<()> {
    let index = place.1;
    let drain = place.0.drain(index);
    let sweep = Sweep::new();
    let sweeping = sweep.clone();
    endure(move || sweeping.clone().run());
    let mut kept = Kept::open(house).await;
    let first = kept.begin(config, (house, &sweep));
    let worker = Arc::new(Worker {
        serving: Arc::new(ArcSwap::from_pointee(first)),
        sweep,
        drain,
        connections: Arc::clone(&house.connections),
        seats: Arc::clone(&house.seats),
        place,
    });
    house.sight.add(&worker.serving);
    let mut entrances = Entrances::open(&worker, sockets)?;
    if let Some(guests) = worker.place.0.join(index) {
        tokio::spawn(entrances::receive(guests, Arc::clone(&worker)));
    }
    let pulse = Arc::clone(&house.pulse);
    let serving = Arc::clone(&worker.serving);
    endure(move || {
        let pulse = Arc::clone(&pulse);
        flush(Arc::clone(&serving), move || pulse.beat(index))
    });
    loop {
        tokio::select! {
            // A dropped sender means the same as a stop.
            _ = shutdown.wait_for(|course| *course != Course::Serve) => break,
            Some(order) = orders.recv() => worker.renew(order, &mut kept, &mut entrances).await,
        }
    }
    let course = *shutdown.borrow();
    entrances.end(course).await;
    let deadlines = deadlines(course, &worker.serving.load().settings);
    house.exports.note_end(clock::now() + deadlines.all);
    let cut = worker.drain.finish(&worker.sweep, deadlines).await;
    kept.store().told().await;
    if cut > 0 {
        tracing::warn!(connections = cut, "cut at the drain deadline");
    }
    Ok(())
}

/// Runs a part of this worker as long as the worker lives, until it ends by itself: a panic in it
/// is told, and it begins anew.
pub(super) fn endure<F>(part: impl Fn() -> F + Send + 'static) -> JoinHandle<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(panics::endure(part))
}

impl Worker {
    /// Finds a connection its place among those of its address, where that has so many at most.
    /// Whether there is one. A peer that speaks for others has as many as it likes.
    pub(super) fn seat(&self, open: &mut Open, ip: IpAddr) -> bool {
        let serving = self.serving.load();
        let Some(most) = serving.settings.max_connections_per_ip else {
            return true;
        };
        if serving.proxy.trusts(ip) {
            return true;
        }
        let seat = self.seats.take(ip, most);
        let has_one = seat.is_some();
        if !has_one {
            tracing::debug!(%ip, "as many connections as one address may have");
        }
        open.sit(seat);
        has_one
    }

    /// Serves by another configuration from the next request on.
    async fn renew(&self, order: Order, kept: &mut Kept, entrances: &mut Entrances) {
        failpoint!("server.worker_reload");
        let old = self.serving.load_full();
        let house = (&*order.house, &self.sweep);
        let next = kept.renew(&old, *order.config, house).await;
        self.serving.store(Arc::new(next));
        for entrance in order.opened {
            if let Err(error) = entrances.add(entrance) {
                tracing::error!(%error, "a worker cannot accept there");
            }
        }
        entrances.close(&order.closed).await;
        // Whoever ordered it may have gone.
        let _ = order.done.send(old);
    }
}

/// After a stop somebody waits for the end of this process, after an upgrade nobody does.
fn deadlines(course: Course, settings: &ServerSettings) -> Deadlines {
    match course {
        Course::HandOver => Deadlines {
            idle: settings.handover_timeout / 2,
            all: settings.handover_timeout,
        },
        _ => Deadlines {
            idle: settings.drain_idle,
            all: settings.drain_timeout,
        },
    }
}
