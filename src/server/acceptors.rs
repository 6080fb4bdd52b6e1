//! Accepts the clients of one worker: one task for each listening socket. When a socket is closed,
//! connections that wait at it are still accepted.
//!
//! A task accepts a client before it takes a permit of `max_connections`, so a silent socket holds
//! no permit. While all permits are taken, each task has at most one client that waits for one.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;

use super::drain::OpenConnection;
use super::listen::{ListenerKind, WorkerSocket};
use super::listener::{BACKLOG, accept, accepted_tcp, accepted_unix};
use super::worker::Worker;
use super::worker_set::HandedOff;
use super::{Lifecycle, connection, port_sharing};
use crate::telemetry::panics::{contained, lock, spawn_enduring};
use crate::wire::{Accepted, Stream};
use tidegate_core::failpoint;

/// How long a task waits after a failed `accept`, for instance without a free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Acceptors {
    worker: Arc<Worker>,
    all: Vec<Acceptor>,
}

struct Acceptor {
    /// A copy of the socket. It accepts the connections that wait at the end.
    socket: WorkerSocket,
    waiting: Arc<WaitingClient>,
    task: JoinHandle<()>,
}

/// A client that was accepted, and waits for a permit.
type WaitingClient = Mutex<Option<Accepted>>;

impl Acceptor {
    async fn stop(&mut self, worker: &Arc<Worker>) {
        self.task.abort();
        // The result is the cancellation.
        let _ = (&mut self.task).await;
        if let Some(accepted) = lock(&self.waiting).take() {
            // No other process can accept it any more: it is served without a permit.
            spawn_connection(worker, accepted, self.socket.kind, worker.drain.open(None));
        }
        accept_waiting(&self.socket, worker);
    }
}

impl Acceptors {
    pub(super) fn open(worker: &Arc<Worker>, sockets: Vec<WorkerSocket>) -> io::Result<Acceptors> {
        let mut acceptors = Acceptors {
            worker: Arc::clone(worker),
            all: Vec::new(),
        };
        for socket in sockets {
            acceptors.add(socket)?;
        }
        Ok(acceptors)
    }

    pub(super) fn add(&mut self, socket: WorkerSocket) -> io::Result<()> {
        let (worker, kind) = (Arc::clone(&self.worker), socket.kind);
        let copy = socket.listener.try_clone()?;
        let listener = Arc::new(match socket.is_unix {
            true => AsyncListener::Unix(UnixListener::from_std(copy.into())?),
            false => AsyncListener::Tcp(TcpListener::from_std(copy.into())?),
        });
        let waiting: Arc<WaitingClient> = Arc::default();
        let of_task = Arc::clone(&waiting);
        let task = spawn_enduring(move || {
            let (listener, waiting) = (Arc::clone(&listener), Arc::clone(&of_task));
            accept_all(listener, waiting, Arc::clone(&worker), kind)
        });
        self.all.push(Acceptor {
            socket,
            waiting,
            task,
        });
        Ok(())
    }

    /// Closes the sockets of these lines of `listen`. Connections that wait there are served.
    pub(super) async fn close(&mut self, lines: &[u64]) {
        let is_closed = |one: &mut Acceptor| lines.contains(&one.socket.line);
        for mut closed in self.all.extract_if(.., is_closed).collect::<Vec<_>>() {
            closed.stop(&self.worker).await;
        }
    }

    pub(super) async fn end(mut self, lifecycle: Lifecycle) {
        let worker = &self.worker;
        worker.drain.begin(&worker.sweep, lifecycle);
        if lifecycle == (Lifecycle::Stop { yields: true }) {
            for one in self.all.iter().filter(|one| !one.socket.lent) {
                // Where this is not allowed, a few connections are lost.
                let _ = port_sharing::refuse_handshakes(&one.socket.listener);
            }
            tokio::time::sleep(port_sharing::HANDSHAKES).await;
        }
        // After an upgrade too: the new process may not use some of the sockets.
        for one in &mut self.all {
            one.stop(worker).await;
        }
    }
}

enum AsyncListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl AsyncListener {
    async fn accept(&self) -> io::Result<Accepted> {
        Ok(match self {
            AsyncListener::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                accepted_tcp(stream, peer)
            }
            AsyncListener::Unix(listener) => accepted_unix(listener.accept().await?.0),
        })
    }
}

async fn accept_all(
    listener: Arc<AsyncListener>,
    waiting: Arc<WaitingClient>,
    worker: Arc<Worker>,
    kind: ListenerKind,
) {
    loop {
        match listener.accept().await {
            Ok(accepted) => {
                let connections = Arc::clone(&worker.connections);
                *lock(&waiting) = Some(accepted);
                let Ok(permit) = connections.acquire_owned().await else {
                    return;
                };
                let Some(accepted) = lock(&waiting).take() else {
                    continue;
                };
                let open = worker.drain.open(permit);
                failpoint!("server.accept");
                place(&worker, accepted, kind, open);
            }
            // The client has left before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves a client, or hands it off to a worker with clearly fewer connections.
fn place(worker: &Arc<Worker>, accepted: Accepted, kind: ListenerKind, mut open: OpenConnection) {
    let ip = accepted.ip;
    let is_tcp = matches!(accepted.stream, Stream::Tcp(_));
    // A proxy that asks may have any number of connections.
    let is_bounded = is_tcp && kind != ListenerKind::Decide;
    if is_bounded && !worker.permit(&mut open, ip) {
        return;
    }
    let other = worker.position.least_loaded();
    let (stream, other) = match (accepted.stream, other) {
        (Stream::Tcp(stream), Some(other)) => (stream, other),
        (stream, _) => return spawn_connection(worker, Accepted { stream, ip }, kind, open),
    };
    // A stream that cannot leave this runtime has failed.
    let Ok(stream) = stream.into_std() else {
        return;
    };
    let handed = HandedOff {
        stream,
        ip,
        kind,
        open,
    };
    if let Err(returned) = worker.position.hand_off(handed, &other) {
        serve_handed_off(worker, returned);
    }
}

fn spawn_connection(
    worker: &Arc<Worker>,
    accepted: Accepted,
    kind: ListenerKind,
    open: OpenConnection,
) {
    let worker = Arc::clone(worker);
    tokio::spawn(connection::serve(accepted, kind, worker, open));
}

fn serve_handed_off(worker: &Arc<Worker>, handed: HandedOff) {
    if let Ok(stream) = TcpStream::from_std(handed.stream) {
        let accepted = Accepted {
            stream: Stream::Tcp(stream),
            ip: handed.ip,
        };
        spawn_connection(worker, accepted, handed.kind, handed.open);
    }
}

/// Serves the clients that other workers hand off to this one, as long as this worker lives.
pub(super) async fn receive(mut handed_off: UnboundedReceiver<HandedOff>, worker: Arc<Worker>) {
    while let Some(handed) = handed_off.recv().await {
        contained(async { serve_handed_off(&worker, handed) }).await;
    }
}

fn accept_waiting(socket: &WorkerSocket, worker: &Arc<Worker>) {
    for _ in 0..BACKLOG {
        let Ok(accepted) = accept(&socket.listener) else {
            return;
        };
        // The socket is closed after this: a client that has no permit would be reset.
        let permit = Arc::clone(&worker.connections).try_acquire_owned().ok();
        spawn_connection(worker, accepted, socket.kind, worker.drain.open(permit));
    }
}
