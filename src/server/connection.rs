//! One client's connection: how it opens, which protocol it speaks, and how it waits while idle.
//!
//! A balancer sends a PROXY header (version 1 or 2, as HAProxy specifies them) to tell the address
//! of the client. Only a header from a trusted peer is read. No byte after the header is taken from
//! the socket, because TLS may follow.
//!
//! A client of HTTP/2 without TLS begins with a preface, with which no request of HTTP/1 begins
//! (RFC 9113 section 3.4). Silence has the idle timeout, and a part of a preface has that of a
//! head.

use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::Either;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::drain::{Drain, OpenConnection};
use super::http1::socket::Phase;
use super::http1::{self, Http1End};
use super::http2::{self, PREFACE};
use super::listen::ListenerKind;
use super::tls::ServerTls;
use super::worker::{ActiveConfig, ClientConnection, Worker};
use crate::client::proxy_header::{ProxyHeader, RelayedAddresses, parse};
use crate::clock::{self, Alarm};
use crate::config::{ProxyProtocol, ServerSettings};
use crate::connection_use::ConnectionUse;
use crate::proxy::Arrival;
use crate::route::template::{Ports, Relay};
use crate::wire::{Accepted, PrefixedStream, Stream};
use tidegate_core::failpoint;

/// The first line of the preface of HTTP/2, which no client of HTTP/1 sends.
const PREFACE_LINE: &[u8] = b"PRI * HTTP/2.0\r\n";
/// Bytes of the read that ends an idle wait. Most heads fit.
const READ_BYTES: usize = 4096;
/// Bytes of one look for a PROXY header.
const PEEK_BYTES: usize = 512;

/// Serves a client, or a proxy that asks for decisions, until either side ends the connection.
// Most connections are idle most of the time, so what they do not need then is boxed. An `async fn`
// would keep its arguments a second time.
pub(super) fn serve(
    accepted: Accepted,
    kind: ListenerKind,
    worker: Arc<Worker>,
    open: OpenConnection,
) -> impl Future<Output = ()> + Send {
    let opening = Box::pin(open_connection(accepted, kind, worker, open));
    async move {
        let Some(serving) = opening.await else {
            return;
        };
        serving.await;
    }
}

/// Reads a PROXY header, shakes hands, and detects the version of HTTP. Returns the future that
/// serves the connection; `None` if the connection has ended.
async fn open_connection(
    accepted: Accepted,
    kind: ListenerKind,
    worker: Arc<Worker>,
    mut open: OpenConnection,
) -> Option<impl Future<Output = ()> + Send> {
    failpoint!("server.connection");
    let Accepted { mut stream, ip } = accepted;
    let ports = stream.ports();
    let config = worker.serving.load_full();
    let settings = &config.settings;
    let tls = match kind {
        ListenerKind::Plain => None,
        ListenerKind::Tls => config.tls.clone(),
        ListenerKind::Decide => config.decide_tls.clone(),
    };
    let alarm = worker.sweep.alarm();
    alarm.arm(match tls {
        Some(_) => settings.header_timeout,
        None => settings.idle_timeout,
    });
    let header = match kind {
        // A proxy that asks names each client in its questions.
        ListenerKind::Decide => ReceivedProxyHeader::default(),
        _ if settings.proxy_protocol == ProxyProtocol::Off => ReceivedProxyHeader::default(),
        ListenerKind::Plain | ListenerKind::Tls => {
            // In a box: else each connection had room for it until its first byte.
            let reading = read_proxy_header(&mut stream, ip, &config, &worker.drain, &alarm);
            Box::pin(reading).await?
        }
    };
    let relayed = header.relayed;
    let client_ip = relayed.map_or(ip, |relayed| relayed.client.ip());
    if client_ip != ip && !worker.permit(&mut open, client_ip) {
        return None;
    }
    let arrival = match tls {
        None => Arrival::plain(client_ip),
        // Bytes that could have been a PROXY header are not TLS.
        Some(_) if !header.ahead.is_empty() => return None,
        Some(tls) => {
            // In a box for the same reason.
            let shaking = shake_hands(&tls, stream, client_ip, settings, &worker.drain);
            let shaken = Box::pin(shaking).await?;
            stream = shaken.0;
            shaken.1
        }
    };
    let sender = SocketAddr::new(ip, ports.peer);
    let arrival = with_addresses(arrival, ports, sender, relayed);
    let phase = Phase::new(alarm, settings);
    // gRPC needs it. A client without TLS at an address with TLS is only refused.
    let is_http2_allowed = settings.http2 && !arrival.misplaced || kind == ListenerKind::Decide;
    drop(config);
    let (version, prefix) = match stream.agreed_http2() {
        Some(true) => (Version::Http2, Bytes::new()),
        None if is_http2_allowed => {
            detect_version(&mut stream, header.ahead, &phase, &worker.drain).await?
        }
        _ => (Version::Http1, header.ahead.into()),
    };
    let config = worker.serving.load();
    let usage = ConnectionUse::new(config.settings.connections, worker.sweep.elapsed());
    let downstream = config.proxy.downstream(arrival);
    let client = ClientConnection {
        downstream: downstream.on_connection(usage, clock::now()),
        generation: config.generation,
        is_decide_peer: kind == ListenerKind::Decide,
        _open: open,
        worker: Arc::clone(&worker),
    };
    let opened = PrefixedStream { stream, prefix };
    Some(serve_version(
        version,
        opened,
        Http1Client { client, phase },
    ))
}

fn serve_version(
    version: Version,
    opened: PrefixedStream,
    connection: Http1Client,
) -> impl Future<Output = ()> + Send {
    match version {
        Version::Http1 => Either::Left(serve_http1(opened, Box::new(connection))),
        Version::Http2 => {
            let idle = Arc::clone(&connection.phase.alarm);
            Either::Right(http2::serve(opened, Arc::new(connection.client), idle))
        }
    }
}

/// Adds the ports of the connection, and what its PROXY header tells.
fn with_addresses(
    arrival: Arrival,
    ports: Ports,
    sender: SocketAddr,
    relayed: Option<RelayedAddresses>,
) -> Arrival {
    Arrival {
        ports: Ports {
            peer: relayed.map_or(ports.peer, |relayed| relayed.client.port()),
            ..ports
        },
        relay: relayed.map(|RelayedAddresses { server, .. }| Box::new(Relay { server, sender })),
        ..arrival
    }
}

async fn shake_hands(
    tls: &ServerTls,
    stream: Stream,
    ip: IpAddr,
    settings: &ServerSettings,
    drain: &Drain,
) -> Option<(Stream, Arrival)> {
    let shaking = tokio::time::timeout(settings.header_timeout, tls.handshake(stream, ip));
    let shaken = tokio::select! {
        biased;
        shaken = shaking => shaken,
        () = drain.end_of_handshakes(settings.drain_idle) => return None,
    };
    match shaken {
        Ok(Ok(shaken)) => return Some(shaken),
        Ok(Err(error)) => tracing::debug!(%ip, %error, "the TLS handshake failed"),
        Err(_) => tracing::debug!(%ip, "the TLS handshake took too long"),
    }
    None
}

/// The data that an idle HTTP/1 connection keeps beside its stream.
struct Http1Client {
    client: ClientConnection,
    phase: Arc<Phase>,
}

// The allocator has places of 512 and 640 bytes. Headers of requests have those of 640, and leave
// holes between what stays: with 528 bytes here an idle connection took 0.8 KB more.
const _: () = assert!(size_of::<Http1Client>() <= 512);

impl Http1Client {
    /// Runs `serving` to its end; `None` if the worker cuts its connections before.
    async fn until_cut<T>(&self, mut serving: Pin<Box<impl Future<Output = T>>>) -> Option<T> {
        let drain = &self.client.worker.drain;
        let mut is_first = true;
        poll_fn(|context| match serving.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if drain.is_cut() => Poll::Ready(None),
            Poll::Pending => {
                // A drain wakes the tasks that alarms know, once as it begins and once to cut.
                if std::mem::take(&mut is_first) || drain.is_draining() {
                    let _ = self.phase.alarm.poll(context);
                }
                Poll::Pending
            }
        })
        .await
    }
}

/// Serves HTTP/1. An idle connection keeps only the arguments of this function.
#[expect(
    clippy::manual_async_fn,
    reason = "an `async fn` keeps what it is given twice"
)]
fn serve_http1(
    mut opened: PrefixedStream,
    connection: Box<Http1Client>,
) -> impl Future<Output = ()> + Send {
    async move {
        loop {
            if opened.prefix.is_empty() {
                let waiting = wait_for_request(
                    &mut opened.stream,
                    &connection.phase,
                    &connection.client.worker.drain,
                );
                let Some(first) = waiting.await else {
                    return;
                };
                opened.prefix = first;
            }
            let serving = Box::pin(http1::serve(opened, &connection.client, &connection.phase));
            match connection.until_cut(serving).await {
                None | Some(Http1End::Closed) => return,
                Some(Http1End::Idle(stream)) => {
                    connection.client.downstream.rest();
                    opened = PrefixedStream {
                        stream,
                        prefix: Bytes::new(),
                    };
                }
                Some(Http1End::Tunnel(tunnel, socket)) => {
                    connection.until_cut(Box::pin(tunnel.run(socket))).await;
                    return;
                }
            }
        }
    }
}

/// Waits for the first bytes of the next request. Returns `None` and closes the stream if the
/// client has closed it, the idle timeout has passed, or the server closes idle connections.
async fn wait_for_request(stream: &mut Stream, phase: &Phase, drain: &Drain) -> Option<Bytes> {
    let read = poll_fn(|context| {
        // TLS may have messages of its own to send.
        let _ = Pin::new(&mut *stream).poll_flush(context);
        match poll_bytes(stream, context, Bytes::copy_from_slice) {
            Poll::Ready(read) => Poll::Ready(read),
            Poll::Pending if drain.is_closing() => Poll::Ready(None),
            Poll::Pending => phase.alarm.poll(context).map(|()| None),
        }
    })
    .await;
    if read.is_some() {
        phase.begin_head();
    } else {
        phase.expect_room();
        poll_fn(|context| {
            match Pin::new(&mut *stream).poll_shutdown(context) {
                Poll::Ready(_) => Poll::Ready(()),
                // The alert that closes TLS has no room.
                Poll::Pending => phase.alarm.poll(context),
            }
        })
        .await;
    }
    read
}

/// Reads once, and has the bytes used. `None` at the end of the stream, and after an error.
fn poll_bytes<T>(
    stream: &mut Stream,
    context: &mut Context<'_>,
    used: impl FnOnce(&[u8]) -> T,
) -> Poll<Option<T>> {
    let mut scratch = [MaybeUninit::uninit(); READ_BYTES];
    let mut buf = ReadBuf::uninit(&mut scratch);
    let read = ready!(Pin::new(stream).poll_read(context, &mut buf));
    let has_bytes = read.is_ok() && !buf.filled().is_empty();
    Poll::Ready(has_bytes.then(|| used(buf.filled())))
}

/// The PROXY header of a connection, or its absence.
#[derive(Debug, Default)]
struct ReceivedProxyHeader {
    relayed: Option<RelayedAddresses>,
    /// Bytes that were read and are not a header.
    ahead: Vec<u8>,
}

/// Reads the PROXY header, if the configuration allows `peer` to send one. Returns `None` if the
/// connection must be closed: the header is required and absent, malformed, or late.
async fn read_proxy_header(
    stream: &mut Stream,
    peer: IpAddr,
    config: &ActiveConfig,
    drain: &Drain,
    alarm: &Alarm,
) -> Option<ReceivedProxyHeader> {
    let mode = config.settings.proxy_protocol;
    if !config.proxy.trusts(peer) {
        return (mode == ProxyProtocol::Optional).then(ReceivedProxyHeader::default);
    }
    let timeout = config.settings.header_timeout;
    if mode == ProxyProtocol::Required {
        alarm.arm(timeout);
    }
    let mut parsing = pin!(parse_proxy_header(stream, mode, alarm, timeout));
    let header = poll_fn(|context| match parsing.as_mut().poll(context) {
        Poll::Ready(header) => Poll::Ready(header),
        Poll::Pending if drain.is_closing() => Poll::Ready(None),
        Poll::Pending => alarm.poll(context).map(|()| None),
    })
    .await;
    if header.is_none() {
        tracing::debug!("a trusted peer sent no valid PROXY header");
    }
    header
}

/// Starts the deadline `timeout` at the first byte.
async fn parse_proxy_header(
    stream: &mut Stream,
    mode: ProxyProtocol,
    alarm: &Alarm,
    timeout: Duration,
) -> Option<ReceivedProxyHeader> {
    let mut bytes = Vec::new();
    loop {
        let known = bytes.len();
        let mut buf = [0; PEEK_BYTES];
        let length = stream.peek(&mut buf).await.ok();
        let length = length.filter(|length| *length > 0)?;
        if known == 0 {
            alarm.arm(timeout);
        }
        bytes.extend_from_slice(&buf[..length]);
        match parse(&bytes) {
            ProxyHeader::Header(header_length, relayed) => {
                let rest = &mut buf[..header_length - known];
                stream.read_exact(rest).await.ok()?;
                return Some(ReceivedProxyHeader {
                    relayed: relayed.map(|relayed| RelayedAddresses {
                        client: SocketAddr::new(
                            relayed.client.ip().to_canonical(),
                            relayed.client.port(),
                        ),
                        ..relayed
                    }),
                    ahead: Vec::new(),
                });
            }
            ProxyHeader::Part => {
                stream.read_exact(&mut buf[..length]).await.ok()?;
            }
            ProxyHeader::Other if mode == ProxyProtocol::Optional => {
                bytes.truncate(known);
                return Some(ReceivedProxyHeader {
                    relayed: None,
                    ahead: bytes,
                });
            }
            ProxyHeader::Other | ProxyHeader::Broken => return None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Http1,
    Http2,
}

/// The version of a connection that begins with `ahead`; `None` while both are possible.
fn version(ahead: &[u8]) -> Option<Version> {
    let common = ahead.len().min(PREFACE.len());
    let is_preface = ahead[..common] == PREFACE[..common];
    match is_preface {
        true if common < PREFACE.len() => None,
        true => Some(Version::Http2),
        // The HTTP/2 connection then ends with a protocol error.
        false if ahead.starts_with(PREFACE_LINE) => Some(Version::Http2),
        false => Some(Version::Http1),
    }
}

/// Reads from `stream` behind `ahead` until the version is known. Returns all bytes that were read;
/// `None` if the client has left or was silent for too long.
async fn detect_version(
    stream: &mut Stream,
    mut ahead: Vec<u8>,
    phase: &Phase,
    drain: &Drain,
) -> Option<(Version, Bytes)> {
    if !ahead.is_empty()
        && let Some(version) = version(&ahead)
    {
        return Some((version, ahead.into()));
    }
    poll_fn(|context| {
        loop {
            let is_first = ahead.is_empty();
            match poll_bytes(stream, context, |bytes| ahead.extend_from_slice(bytes)) {
                Poll::Ready(Some(())) => {
                    if is_first {
                        phase.begin_head();
                    }
                    if let Some(version) = version(&ahead) {
                        return Poll::Ready(Some(version));
                    }
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending if drain.is_closing() => return Poll::Ready(None),
                // HTTP/1 has a response for a head that does not come.
                Poll::Pending => {
                    let late = (!ahead.is_empty()).then_some(Version::Http1);
                    return phase.alarm.poll(context).map(|()| late);
                }
            }
        }
    })
    .await
    .map(|version| (version, ahead.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    fn bytes<F>(_: impl FnOnce(Accepted, ListenerKind, Arc<Worker>, OpenConnection) -> F) -> usize {
        size_of::<F>()
    }
    #[test]
    fn what_is_kept_of_a_parked_connection_is_little() {
        // The runtime adds 112 and rounds up to the next multiple of 128.
        assert!(bytes(serve) <= 272, "{}", bytes(serve));
    }
    #[test]
    fn the_preface_alone_is_http_2_and_any_part_of_it_undecided() {
        for length in 0..PREFACE.len() {
            assert_eq!(version(&PREFACE[..length]), None);
        }
        assert_eq!(version(PREFACE), Some(Version::Http2));
        assert_eq!(version(&[PREFACE, b"more"].concat()), Some(Version::Http2));
        let wrong = b"PRI * HTTP/2.0\r\n\r\nSM\r\nX";
        assert_eq!(version(wrong), Some(Version::Http2));
        for other in ["G", "POST / HTTP/1.1", "PRI * HTTP/2.1", "\r\n", "\x16\x03"] {
            assert_eq!(version(other.as_bytes()), Some(Version::Http1), "{other}");
        }
    }
}
