//! The thread of one worker: its runtime, listening sockets, upstream pools, store connection, and
//! client connections.

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, oneshot};

use super::acceptors::{self, Acceptors};
use super::active_config::{ActiveConfig, CarriedOver, flush};
use super::drain::Deadlines;
use super::listen::WorkerSocket;
use super::worker::Worker;
use super::worker_set::Position;
use super::{Lifecycle, ServerState, Shutdown};
use crate::clock::{self, Sweep};
use crate::config::{Config, ServerSettings};
use crate::telemetry::panics::spawn_enduring;
use tidegate_core::failpoint;

pub(super) struct WorkerStart {
    pub(super) config: Config,
    pub(super) sockets: Vec<WorkerSocket>,
    pub(super) orders: mpsc::Receiver<ReloadOrder>,
    pub(super) shutdown: Shutdown,
    pub(super) position: Position,
}

/// Makes a worker serve by another configuration.
pub(super) struct ReloadOrder {
    pub(super) config: Box<Config>,
    pub(super) state: Arc<ServerState>,
    pub(super) opened: Vec<WorkerSocket>,
    /// Lines of `listen` whose sockets are closed.
    pub(super) closed: Arc<[u64]>,
    /// Gets the replaced configuration when the order is done.
    pub(super) done: oneshot::Sender<Arc<ActiveConfig>>,
}

/// Serves on this thread until `shutdown`, then drains.
pub(super) fn run(start: WorkerStart, state: &ServerState) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(start, state))
}

async fn serve(mut start: WorkerStart, state: &ServerState) -> io::Result<()> {
    let sweep = Sweep::new();
    let sweeping = sweep.clone();
    spawn_enduring(move || sweeping.clone().run());
    let mut carried = CarriedOver::open(state).await;
    let first = carried.activate(None, start.config, state, &sweep).await;
    let worker = Arc::new(Worker {
        serving: Arc::new(ArcSwap::from_pointee(first)),
        sweep,
        drain: start.position.drain(),
        connections: Arc::clone(&state.connections),
        per_ip: Arc::clone(&state.per_ip),
        position: start.position,
    });
    state.introspection.add_worker(&worker.serving);
    let mut acceptors = Acceptors::open(&worker, start.sockets)?;
    if let Some(handed_off) = worker.position.join() {
        tokio::spawn(acceptors::receive(handed_off, Arc::clone(&worker)));
    }
    let index = worker.position.index;
    let heartbeats = Arc::clone(&state.heartbeats);
    let serving = Arc::clone(&worker.serving);
    spawn_enduring(move || {
        let heartbeats = Arc::clone(&heartbeats);
        flush(Arc::clone(&serving), move || heartbeats.beat(index))
    });
    loop {
        tokio::select! {
            // A dropped sender means the same as a stop.
            _ = start.shutdown.wait_for(|lifecycle| *lifecycle != Lifecycle::Serve) => break,
            Some(order) = start.orders.recv() => {
                reload(&worker, order, &mut carried, &mut acceptors).await;
            }
        }
    }
    let lifecycle = *start.shutdown.borrow();
    acceptors.end(lifecycle).await;
    let deadlines = deadlines(lifecycle, &worker.serving.load().settings);
    state.exports.note_end(clock::now() + deadlines.all);
    let cut = worker.drain.finish(&worker.sweep, deadlines).await;
    carried.store().flush_slots().await;
    if cut > 0 {
        tracing::warn!("drain timeout reached: closed {cut} connections");
    }
    Ok(())
}

/// Carries out an order. The next request is served by the new configuration.
async fn reload(
    worker: &Worker,
    order: ReloadOrder,
    carried: &mut CarriedOver,
    acceptors: &mut Acceptors,
) {
    failpoint!("server.worker_reload");
    let old = worker.serving.load_full();
    let next = carried.activate(Some(&old), *order.config, &order.state, &worker.sweep);
    let next = next.await;
    worker.serving.store(Arc::new(next));
    for socket in order.opened {
        if let Err(error) = acceptors.add(socket) {
            tracing::error!(%error, "a worker cannot accept there");
        }
    }
    acceptors.close(&order.closed).await;
    // The reload thread may have ended.
    let _ = order.done.send(old);
}

/// After a stop, an operator waits for the end of the process. After an upgrade there is more time.
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
