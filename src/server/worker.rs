//! One worker: a runtime on one thread, its own listeners, pools and store connection, and the
//! connections that the kernel gave to it.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use super::acceptors::{self, Acceptors};
use super::active_config::{ActiveConfig, CarriedOver, flush};
use super::connections_per_ip::ConnectionsPerIp;
use super::drain::{Deadlines, Drain, Open};
use super::listen::Entrance;
use super::reload::Order;
use super::worker_set::WorkerSet;
use super::{Lifecycle, ServerState, Shutdown};
use crate::clock::{self, Sweep};
use crate::config::{Config, ServerSettings};
use crate::telemetry::panics;

/// What every connection of a worker needs.
pub(super) struct Worker {
    pub(super) serving: Arc<ArcSwap<ActiveConfig>>,
    pub(super) sweep: Sweep,
    pub(super) drain: Arc<Drain>,
    pub(super) connections: Arc<Semaphore>,
    pub(super) per_ip: Arc<ConnectionsPerIp>,
    /// All workers, and which of them this one is.
    pub(super) place: (Arc<WorkerSet>, usize),
}

/// Serves on this thread until `shutdown`, then drains.
pub(super) fn run(
    config: Config,
    sockets: Vec<Entrance>,
    state: &ServerState,
    told: (mpsc::Receiver<Order>, Shutdown),
    place: (Arc<WorkerSet>, usize),
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(config, sockets, state, told, place))
}

async fn serve(
    config: Config,
    sockets: Vec<Entrance>,
    state: &ServerState,
    (mut orders, mut shutdown): (mpsc::Receiver<Order>, Shutdown),
    place: (Arc<WorkerSet>, usize),
) -> io::Result<()> {
    let index = place.1;
    let drain = place.0.drain(index);
    let sweep = Sweep::new();
    let sweeping = sweep.clone();
    endure(move || sweeping.clone().run());
    let mut carried = CarriedOver::open(state).await;
    let first = carried.begin(config, (state, &sweep));
    let worker = Arc::new(Worker {
        serving: Arc::new(ArcSwap::from_pointee(first)),
        sweep,
        drain,
        connections: Arc::clone(&state.connections),
        per_ip: Arc::clone(&state.per_ip),
        place,
    });
    state.introspection.add(&worker.serving);
    let mut acceptors = Acceptors::open(&worker, sockets)?;
    if let Some(handed_off) = worker.place.0.join(index) {
        tokio::spawn(acceptors::receive(handed_off, Arc::clone(&worker)));
    }
    let heartbeats = Arc::clone(&state.heartbeats);
    let serving = Arc::clone(&worker.serving);
    endure(move || {
        let heartbeats = Arc::clone(&heartbeats);
        flush(Arc::clone(&serving), move || heartbeats.beat(index))
    });
    loop {
        tokio::select! {
            // A dropped sender means the same as a stop.
            _ = shutdown.wait_for(|lifecycle| *lifecycle != Lifecycle::Serve) => break,
            Some(order) = orders.recv() => worker.renew(order, &mut carried, &mut acceptors).await,
        }
    }
    let lifecycle = *shutdown.borrow();
    acceptors.end(lifecycle).await;
    let deadlines = deadlines(lifecycle, &worker.serving.load().settings);
    state.exports.note_end(clock::now() + deadlines.all);
    let cut = worker.drain.finish(&worker.sweep, deadlines).await;
    carried.store().told().await;
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
    pub(super) fn permit(&self, open: &mut Open, ip: IpAddr) -> bool {
        let serving = self.serving.load();
        let Some(most) = serving.settings.max_connections_per_ip else {
            return true;
        };
        if serving.proxy.trusts(ip) {
            return true;
        }
        let permit = self.per_ip.take(ip, most);
        let has_one = permit.is_some();
        if !has_one {
            tracing::debug!(%ip, "as many connections as one address may have");
        }
        open.hold_permit(permit);
        has_one
    }

    /// Serves by another configuration from the next request on.
    async fn renew(&self, order: Order, carried: &mut CarriedOver, acceptors: &mut Acceptors) {
        failpoint!("server.worker_reload");
        let old = self.serving.load_full();
        let state = (&*order.state, &self.sweep);
        let next = carried.renew(&old, *order.config, state).await;
        self.serving.store(Arc::new(next));
        for entrance in order.opened {
            if let Err(error) = acceptors.add(entrance) {
                tracing::error!(%error, "a worker cannot accept there");
            }
        }
        acceptors.close(&order.closed).await;
        // Whoever ordered it may have gone.
        let _ = order.done.send(old);
    }
}

/// After a stop somebody waits for the end of this process, after an upgrade nobody does.
fn deadlines(lifecycle: Lifecycle, settings: &ServerSettings) -> Deadlines {
    match lifecycle {
        Lifecycle::HandOver => Deadlines {
            idle: settings.handover_timeout / 2,
            all: settings.handover_timeout,
        },
        _ => Deadlines {
            idle: settings.drain_idle,
            all: settings.drain_timeout,
        },
    }
}
