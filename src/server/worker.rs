//! One worker: a runtime on one thread, its own listeners, pools and store connection, and the
//! connections that the kernel gave to it.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use http::header::{CONNECTION, EXPECT, HeaderValue};
use http::{Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::drain::{Drain, Open};
use super::listen::Listener;
use super::socket::{Phase, Socket};
use super::{House, Shutdown};
use crate::clock::Sweep;
use crate::config::{Config, ServerSettings};
use crate::proxy::body::Body;
use crate::proxy::flaw::Flaw;
use crate::proxy::upgrade::Tunnel;
use crate::proxy::{Downstream, Proxy};
use crate::upstream::body::RequestBody;
use crate::wire::Stream;

/// How long `accept` rests when the machine has no file descriptor or memory for a connection.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// Header lines that hyper reads at most unless it is told otherwise.
const HYPER_HEADERS: usize = 100;
/// How often a worker hands its log lines over.
const FLUSH_EVERY: Duration = Duration::from_millis(200);

/// What every connection of a worker needs.
struct Worker {
    proxy: Proxy,
    settings: ServerSettings,
    http: http1::Builder,
    sweep: Sweep,
    drain: Arc<Drain>,
    connections: Arc<Semaphore>,
}

/// Serves on this thread until `shutdown`, then drains.
pub(super) fn run(
    config: Config,
    sockets: Vec<Listener>,
    house: &House,
    shutdown: Shutdown,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(config, sockets, house, shutdown))
}

async fn serve(
    config: Config,
    sockets: Vec<Listener>,
    house: &House,
    mut shutdown: Shutdown,
) -> io::Result<()> {
    let sweep = Sweep::new();
    tokio::spawn(sweep.clone().run());
    let log = house.access.buffer();
    let settings = config.server.clone();
    let (store, local) = house.counts.open();
    let ending = store.clone();
    // Who listens only now need not begin with decisions of its own.
    store.settled().await;
    let worker = Arc::new(Worker {
        proxy: Proxy::new(config, (store, local), &sweep, &log),
        http: http_builder(&settings),
        settings,
        sweep,
        drain: Arc::default(),
        connections: Arc::clone(&house.connections),
    });
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(FLUSH_EVERY).await;
            log.flush();
        }
    });
    let mut accepting = tokio::task::JoinSet::new();
    for socket in sockets {
        match socket {
            Listener::Tcp(socket) => {
                accepting.spawn(accept_tcp(
                    TcpListener::from_std(socket)?,
                    Arc::clone(&worker),
                ));
            }
            Listener::Unix(socket) => {
                accepting.spawn(accept_unix(
                    UnixListener::from_std(socket)?,
                    Arc::clone(&worker),
                ));
            }
        }
    }
    // A dropped sender means the same as a stop.
    let _ = shutdown.wait_for(|stop| *stop).await;
    accepting.shutdown().await;
    let cut = worker
        .drain
        .finish(&worker.sweep, worker.settings.drain_timeout)
        .await;
    ending.told().await;
    if cut > 0 {
        tracing::warn!(connections = cut, "cut at the drain deadline");
    }
    Ok(())
}

fn http_builder(settings: &ServerSettings) -> http1::Builder {
    let mut http = http1::Builder::new();
    // Twice our own bound: the service answers what is over it.
    http.max_buf_size((settings.max_header_bytes * 2).max(16 << 10))
        .header_read_timeout(None);
    if settings.max_headers != HYPER_HEADERS {
        // Said at all, it costs two allocations for each request where it is above hyper's own.
        http.max_headers(settings.max_headers);
    }
    http
}

async fn accept_tcp(listener: TcpListener, worker: Arc<Worker>) {
    loop {
        let permit = Arc::clone(&worker.connections).acquire_owned().await;
        let (Ok(permit), accepted) = (permit, listener.accept().await) else {
            return;
        };
        match accepted {
            Ok((stream, address)) => {
                // Without it an answer in two writes waits for the client's delayed ACK.
                let _ = stream.set_nodelay(true);
                let ip = address.ip().to_canonical();
                tokio::spawn(connection(
                    Stream::Tcp(stream),
                    ip,
                    Arc::clone(&worker),
                    permit,
                ));
            }
            Err(error) => rest(&error).await,
        }
    }
}

async fn accept_unix(listener: UnixListener, worker: Arc<Worker>) {
    loop {
        let permit = Arc::clone(&worker.connections).acquire_owned().await;
        let (Ok(permit), accepted) = (permit, listener.accept().await) else {
            return;
        };
        match accepted {
            Ok((stream, _)) => {
                // Whoever can open the socket is on this machine.
                let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
                tokio::spawn(connection(
                    Stream::Unix(stream),
                    ip,
                    Arc::clone(&worker),
                    permit,
                ));
            }
            Err(error) => rest(&error).await,
        }
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

/// What lives as long as a client's connection, or the tunnel it became.
struct Held {
    downstream: Downstream,
    phase: Arc<Phase>,
    worker: Arc<Worker>,
    _permit: OwnedSemaphorePermit,
    _open: Open,
}

async fn connection(stream: Stream, ip: IpAddr, worker: Arc<Worker>, permit: OwnedSemaphorePermit) {
    let phase = Phase::new(worker.sweep.alarm(), &worker.settings);
    let socket = Socket::new(stream, Arc::clone(&phase), &worker.settings);
    let held = Arc::new(Held {
        downstream: worker.proxy.downstream(ip),
        phase,
        _permit: permit,
        _open: worker.drain.open(),
        worker: Arc::clone(&worker),
    });
    let service = service_fn(move |request: Request<Incoming>| {
        let held = Arc::clone(&held);
        // Here and not as the future is first polled: hyper looks for the client's end of stream
        // before that, which must not end a request that is under way.
        let flaw = held.phase.begin_request(!request.body().is_end_stream());
        async move { Ok::<_, Infallible>(answer(request, held, flaw).await) }
    });
    let serving = worker
        .http
        .serve_connection(TokioIo::new(socket), service)
        .with_upgrades();
    let mut serving = pin!(serving);
    let mut told = false;
    // A connection that broke is no news: its request, if there was one, has its own log line.
    let _ = poll_fn(|context| {
        if !told && worker.drain.is_draining() {
            told = true;
            serving.as_mut().graceful_shutdown();
        }
        serving.as_mut().poll(context)
    })
    .await;
}

/// One request: the proxy's sentence, and what surrounds it on this connection. A panic ends this
/// request with 500, not the process.
async fn answer(
    request: Request<Incoming>,
    held: Arc<Held>,
    flaw: Option<Flaw>,
) -> Response<Answer> {
    let body = held.phase.body.clone();
    let awaits_continue = request.headers().contains_key(EXPECT);
    let mut request = request.map(|incoming| RequestBody::new(incoming, body));
    if awaits_continue {
        request.body_mut().await_continue();
    }
    let discardable = request.body().is_discardable();
    let handling = held.worker.proxy.handle(request, &held.downstream, flaw);
    let mut response = AssertUnwindSafe(handling)
        .catch_unwind()
        .await
        .unwrap_or_else(|_| crate::proxy::reject::panicked().map(Body::made));
    if !discardable && !held.phase.body.has_ended() && response.body().is_made_here() {
        // The rest of the request will not be read, so nothing after it can be.
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(tunnel) = response.extensions_mut().remove::<Tunnel>() {
        held.phase.begin_tunnel();
        let held = Arc::clone(&held);
        tokio::spawn(async move {
            tunnel.run().await;
            drop(held);
        });
    }
    response.map(|body| Answer {
        body,
        phase: Arc::clone(&held.phase),
    })
}

/// A response's body that tells its connection when it has been taken to its end.
struct Answer {
    body: Body,
    phase: Arc<Phase>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.phase.end_response();
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = <Body as http_body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
