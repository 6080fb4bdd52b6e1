//! Where one worker's clients come in: its listening sockets, a task that accepts at each, and how
//! they are closed without losing who waits there.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;

use super::drain::Open;
use super::listen::{BACKLOG, Entrance};
use super::listener::Listener;
use super::tls::Tls;
use super::worker::Worker;
use super::worker_set::HandedOff;
use super::{Lifecycle, connection, opening, port_sharing};
use crate::proxy::Arrival;
use crate::telemetry::panics::{contained, spawn_enduring};
use crate::wire::{Accepted, Stream};
use tidegate_core::failpoint;

/// How long `accept` rests when the machine has no file descriptor or memory for a connection.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// All of one worker.
pub(super) struct Acceptors {
    worker: Arc<Worker>,
    all: Vec<Attended>,
}

/// A socket, and who accepts there.
struct Attended {
    /// A copy of the socket, for what waits there at the end.
    entrance: Entrance,
    accepting: JoinHandle<()>,
}

impl Attended {
    async fn leave(&mut self) {
        self.accepting.abort();
        // Cancelled, as it was told to be.
        let _ = (&mut self.accepting).await;
    }
}

impl Acceptors {
    pub(super) fn open(worker: &Arc<Worker>, acceptors: Vec<Entrance>) -> io::Result<Acceptors> {
        let mut all = Acceptors {
            worker: Arc::clone(worker),
            all: Vec::new(),
        };
        for entrance in acceptors {
            all.add(entrance)?;
        }
        Ok(all)
    }

    /// Accepts there too.
    pub(super) fn add(&mut self, entrance: Entrance) -> io::Result<()> {
        let (worker, secure) = (Arc::clone(&self.worker), entrance.secure);
        let accepting = match entrance.try_clone()?.listener {
            Listener::Tcp(socket) => {
                let socket = Arc::new(TcpListener::from_std(socket)?);
                spawn_enduring(move || accept_tcp(Arc::clone(&socket), Arc::clone(&worker), secure))
            }
            Listener::Unix(socket) => {
                let socket = Arc::new(UnixListener::from_std(socket)?);
                spawn_enduring(move || {
                    accept_unix(Arc::clone(&socket), Arc::clone(&worker), secure)
                })
            }
        };
        self.all.push(Attended {
            entrance,
            accepting,
        });
        Ok(())
    }

    /// Closes the sockets of these lines of `listen`; who waits there is served.
    pub(super) async fn close(&mut self, lines: &[u64]) {
        let goes = |one: &mut Attended| lines.contains(&one.entrance.line);
        for mut gone in self.all.extract_if(.., goes).collect::<Vec<_>>() {
            gone.leave().await;
            accept_waiting(&gone.entrance, &self.worker);
        }
    }

    /// Accepts no more.
    pub(super) async fn end(mut self, lifecycle: Lifecycle) {
        let worker = &self.worker;
        worker.drain.begin(&worker.sweep);
        if lifecycle == (Lifecycle::Stop { yields: true }) {
            for one in self.all.iter().filter(|one| !one.entrance.lent) {
                // Where it is not allowed, a few connections are lost, as with any other server.
                let _ = port_sharing::take_no_more(&one.entrance.listener);
            }
            tokio::time::sleep(port_sharing::HANDSHAKES).await;
        }
        for one in &mut self.all {
            one.leave().await;
        }
        // After an upgrade too: the new process may have no use for some of them.
        let all = self.all.iter();
        all.for_each(|one| accept_waiting(&one.entrance, &self.worker));
    }
}

/// Begins a connection that was accepted, where TLS is spoken if `secure`.
fn greet(worker: &Arc<Worker>, accepted: Accepted, secure: bool, open: Open) {
    let own = Arc::clone(worker);
    match secure.then(|| worker.serving.load().tls.clone()).flatten() {
        None => {
            let arrival = Arrival::plain(accepted.ip);
            tokio::spawn(connection::serve(accepted.stream, arrival, own, open));
        }
        Some(tls) => {
            tokio::spawn(serve_tls(accepted, tls, own, open));
        }
    }
}

/// Everything of a connection where TLS is spoken.
// Not `async` itself, and what comes first is boxed: so nothing of it is left where the connection
// is parked.
fn serve_tls(
    accepted: Accepted,
    tls: Arc<Tls>,
    worker: Arc<Worker>,
    open: Open,
) -> impl Future<Output = ()> + Send {
    let beginning = Box::pin(begin_tls(accepted, tls, worker, open));
    async move {
        let Some(serving) = beginning.await else {
            return;
        };
        serving.await;
    }
}

/// What comes before the first byte inside, and what serves the connection then. Nothing if it ends
/// there.
async fn begin_tls(
    Accepted { stream, ip }: Accepted,
    tls: Arc<Tls>,
    worker: Arc<Worker>,
    mut open: Open,
) -> Option<impl Future<Output = ()> + Send> {
    let (stream, from) = opening::before_tls(stream, ip, &worker).await?;
    let patience = worker.serving.load().settings.header_timeout;
    let shaking = tokio::time::timeout(patience, tls.handshake(stream, from));
    let (stream, arrival) = match shaking.await {
        Ok(Ok(begun)) => begun,
        Ok(Err(error)) => {
            tracing::debug!(ip = %from, %error, "no TLS");
            return None;
        }
        Err(_) => {
            tracing::debug!(ip = %from, "no TLS: the handshake took too long");
            return None;
        }
    };
    if arrival.ip != ip && !worker.permit(&mut open, arrival.ip) {
        return None;
    }
    Some(connection::serve(stream, arrival, worker, open))
}

async fn accept_tcp(listener: Arc<TcpListener>, worker: Arc<Worker>, secure: bool) {
    loop {
        let permit = Arc::clone(&worker.connections).acquire_owned().await;
        let (Ok(permit), accepted) = (permit, listener.accept().await) else {
            return;
        };
        match accepted {
            Ok((stream, address)) => {
                // Without it an answer in two writes waits for the client's delayed ACK.
                let _ = stream.set_nodelay(true);
                let (mut open, ip) = (worker.drain.open(permit), address.ip().to_canonical());
                failpoint!("server.accept");
                if worker.permit(&mut open, ip) {
                    place(&worker, AcceptedTcp { stream, ip }, secure, open);
                }
            }
            Err(error) => rest(&error).await,
        }
    }
}

/// A client of a TCP listener, which may go to another worker.
struct AcceptedTcp {
    stream: TcpStream,
    ip: IpAddr,
}

/// Greets a client, or has a worker do it that has clearly fewer.
fn place(worker: &Arc<Worker>, accepted: AcceptedTcp, secure: bool, open: Open) {
    let AcceptedTcp { stream, ip } = accepted;
    let Some(other) = worker.position.least_loaded() else {
        let stream = Stream::Tcp(stream);
        return greet(worker, Accepted { stream, ip }, secure, open);
    };
    // One that cannot be taken from this worker has failed already.
    let Ok(stream) = stream.into_std() else {
        return;
    };
    let handed = HandedOff {
        stream,
        ip,
        secure,
        open,
    };
    if let Err(stays) = worker.position.hand_off(handed, &other) {
        welcome(worker, stays);
    }
}

fn welcome(worker: &Arc<Worker>, handed: HandedOff) {
    if let Ok(stream) = TcpStream::from_std(handed.stream) {
        let accepted = Accepted {
            stream: Stream::Tcp(stream),
            ip: handed.ip,
        };
        greet(worker, accepted, handed.secure, handed.open);
    }
}

/// Greets whom other workers pass on, as long as this one lives.
pub(super) async fn receive(mut handed_off: UnboundedReceiver<HandedOff>, worker: Arc<Worker>) {
    while let Some(handed) = handed_off.recv().await {
        contained(async { welcome(&worker, handed) }).await;
    }
}

async fn accept_unix(listener: Arc<UnixListener>, worker: Arc<Worker>, secure: bool) {
    loop {
        let permit = Arc::clone(&worker.connections).acquire_owned().await;
        let (Ok(permit), accepted) = (permit, listener.accept().await) else {
            return;
        };
        match accepted {
            Ok((stream, _)) => {
                // Whoever can open the socket is on this machine.
                let accepted = Accepted {
                    stream: Stream::Unix(stream),
                    ip: IpAddr::from(Ipv4Addr::LOCALHOST),
                };
                greet(&worker, accepted, secure, worker.drain.open(permit));
            }
            Err(error) => rest(&error).await,
        }
    }
}

/// Accepts what waits at a socket that is about to be closed.
fn accept_waiting(entrance: &Entrance, worker: &Arc<Worker>) {
    for _ in 0..BACKLOG {
        let Ok(permit) = Arc::clone(&worker.connections).try_acquire_owned() else {
            return;
        };
        let Ok(accepted) = entrance.listener.accept() else {
            return;
        };
        greet(worker, accepted, entrance.secure, worker.drain.open(permit));
    }
}

/// A connection that failed before it was accepted is its own affair; a machine that is out of
/// descriptors is given time to find some.
async fn rest(error: &io::Error) {
    match error.kind() {
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset => {}
        _ => {
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(ACCEPT_REST).await;
        }
    }
}
