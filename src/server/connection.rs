//! One client's connection: how it opens, which protocol it speaks, and how it waits while idle.

use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::Either;
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::drain::{Drain, OpenConnection};
use super::http1::{self, Http1End};
use super::http2;
use super::opening::{self, Version};
use super::phase::Phase;
use super::tls::ServerTls;
use super::worker::{ClientConnection, Worker};
use crate::proxy::Arrival;
use crate::wire::{Accepted, PrefixedStream, Stream};
use tidegate_core::failpoint;

/// Bytes of the read that ends an idle wait. Most heads fit.
const READ_BYTES: usize = 4096;

/// Serves a client until either side ends the connection. The connection begins with TLS if
/// `is_tls`.
// Most connections are idle most of the time, so what they do not need then is boxed. An `async fn`
// would keep its arguments a second time.
pub(super) fn serve(
    accepted: Accepted,
    is_tls: bool,
    worker: Arc<Worker>,
    open: OpenConnection,
) -> impl Future<Output = ()> + Send {
    let opening = Box::pin(open_connection(accepted, is_tls, worker, open));
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
    is_tls: bool,
    worker: Arc<Worker>,
    mut open: OpenConnection,
) -> Option<impl Future<Output = ()> + Send> {
    failpoint!("server.connection");
    let Accepted { mut stream, ip } = accepted;
    let config = worker.serving.load_full();
    let settings = &config.settings;
    let tls = config.tls.clone().filter(|_| is_tls);
    let alarm = worker.sweep.alarm();
    alarm.arm(match tls {
        Some(_) => settings.header_timeout,
        None => settings.idle_timeout,
    });
    let reading = opening::read_proxy_header(&mut stream, ip, &config, &worker.drain, &alarm);
    let header = reading.await?;
    let client_ip = header.ip.unwrap_or(ip);
    if client_ip != ip && !worker.permit(&mut open, client_ip) {
        return None;
    }
    let arrival = match tls {
        None => Arrival::plain(client_ip),
        // Bytes that could have been a PROXY header are not TLS.
        Some(_) if !header.ahead.is_empty() => return None,
        Some(tls) => {
            let shaken = shake_hands(&tls, stream, client_ip, settings.header_timeout).await?;
            stream = shaken.0;
            shaken.1
        }
    };
    let phase = Phase::new(alarm, settings);
    let is_http2_allowed = settings.http2;
    drop(config);
    let (version, prefix) = match stream.agreed_http2() {
        Some(true) => (Version::Http2, Bytes::new()),
        None if is_http2_allowed => {
            opening::detect_version(&mut stream, header.ahead, &phase, &worker.drain).await?
        }
        _ => (Version::Http1, header.ahead.into()),
    };
    let config = worker.serving.load();
    let client = ClientConnection {
        downstream: config.proxy.downstream(arrival),
        generation: config.generation,
        _open: open,
        worker: Arc::clone(&worker),
    };
    let opened = PrefixedStream { stream, prefix };
    Some(match version {
        Version::Http1 => {
            let client = Box::new(Http1Client { client, phase });
            Either::Left(serve_http1(opened, client))
        }
        Version::Http2 => {
            let idle = Arc::clone(&phase.alarm);
            Either::Right(http2::serve(opened, Arc::new(client), idle))
        }
    })
}

async fn shake_hands(
    tls: &ServerTls,
    stream: Stream,
    ip: IpAddr,
    timeout: Duration,
) -> Option<(Stream, Arrival)> {
    match tokio::time::timeout(timeout, tls.handshake(stream, ip)).await {
        Ok(Ok(shaken)) => return Some(shaken),
        Ok(Err(error)) => tracing::debug!(%ip, %error, "no TLS"),
        Err(_) => tracing::debug!(%ip, "no TLS: the handshake took too long"),
    }
    None
}

/// The data that an idle HTTP/1 connection keeps beside its stream.
struct Http1Client {
    client: ClientConnection,
    phase: Arc<Phase>,
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
            match Box::pin(http1::serve(opened, &connection.client, &connection.phase)).await {
                Http1End::Closed => return,
                Http1End::Idle(stream) => {
                    connection.client.downstream.rest();
                    opened = PrefixedStream {
                        stream,
                        prefix: Bytes::new(),
                    };
                }
                Http1End::Tunnel(tunnel, socket) => return Box::pin(tunnel.run(socket)).await,
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
        let mut scratch = [MaybeUninit::uninit(); READ_BYTES];
        let mut buf = ReadBuf::uninit(&mut scratch);
        match Pin::new(&mut *stream).poll_read(context, &mut buf) {
            Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                Poll::Ready(Some(Bytes::copy_from_slice(buf.filled())))
            }
            Poll::Ready(_) => Poll::Ready(None),
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

#[cfg(test)]
mod tests {
    use super::*;
    fn bytes<F>(_: impl FnOnce(Accepted, bool, Arc<Worker>, OpenConnection) -> F) -> usize {
        size_of::<F>()
    }
    #[test]
    fn what_is_kept_of_a_parked_connection_is_little() {
        // The runtime adds 112 and rounds up to the next multiple of 128.
        assert!(bytes(serve) <= 272, "{}", bytes(serve));
    }
}
