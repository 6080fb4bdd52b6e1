//! One client's connection: the protocol spoken on it, what surrounds each of its requests, and its
//! end.

use std::sync::Arc;

use futures_util::future::Either;
use hyper::body::Bytes;

use super::client_connection::ClientConnection;
use super::drain::Open;
use super::http1::{self, End};
use super::http2;
use super::opening::{self, Version};
use super::parked;
use super::phase::Phase;
use super::worker::Worker;
use crate::config::ProxyProtocol;
use crate::proxy::Arrival;
use crate::wire::{PrefixedStream, Stream};
use tidegate_core::failpoint;

/// Serves the client at the other end of `stream`, who came as `arrival` says, until either side
/// ends it.
// Most connections are parked most of the time: what is not there meanwhile is in a box. And what
// is handed on is not kept a second time, as it would be by functions that are `async` themselves.
pub(super) fn serve(
    stream: Stream,
    arrival: Arrival,
    worker: Arc<Worker>,
    open: Open,
) -> impl Future<Output = ()> + Send {
    let opening = Box::pin(opening(stream, arrival, worker, open));
    async move {
        let Some(serving) = opening.await else {
            return;
        };
        serving.await;
    }
}

/// The beginning of a connection, until it is known who is at its other end and what is spoken.
/// Returns what serves it then; nothing if it has ended.
async fn opening(
    mut stream: Stream,
    mut arrival: Arrival,
    worker: Arc<Worker>,
    mut open: Open,
) -> Option<impl Future<Output = ()> + Send> {
    failpoint!("server.connection");
    let began = worker.serving.load_full();
    let phase = Phase::new(worker.sweep.alarm(), &began.settings);
    let tells_apart = began.settings.http2;
    let mut ahead = Vec::new();
    if arrival.tls.is_none() && began.settings.proxy_protocol != ProxyProtocol::Off {
        let asked = (&*began, &*worker.drain);
        let peer = arrival.ip;
        ahead = opening::announced(&mut stream, &mut arrival, asked, &phase.alarm).await?;
        if arrival.ip != peer && !worker.permit(&mut open, arrival.ip) {
            return None;
        }
    }
    drop(began);
    let (version, read) = match stream.agreed_http2() {
        Some(true) => (Version::Http2, Bytes::new()),
        None if tells_apart => {
            opening::told_apart(&mut stream, ahead, &phase, &worker.drain).await?
        }
        _ => (Version::Http1, ahead.into()),
    };
    let began = worker.serving.load();
    let client = ClientConnection {
        downstream: began.proxy.downstream(arrival),
        generation: began.generation,
        _open: open,
        worker: Arc::clone(&worker),
    };
    let first = PrefixedStream {
        stream,
        prefix: read,
    };
    Some(match version {
        Version::Http1 => {
            let client = Box::new(Http1Client { client, phase });
            Either::Left(serve_http1(first, client))
        }
        Version::Http2 => {
            let idle = Arc::clone(&phase.alarm);
            Either::Right(http2::serve(first, Arc::new(client), idle))
        }
    })
}

/// What an idle connection of HTTP/1 keeps beside its stream.
struct Http1Client {
    client: ClientConnection,
    phase: Arc<Phase>,
}

/// Serves HTTP/1. An idle connection keeps only what is here.
#[expect(
    clippy::manual_async_fn,
    reason = "an `async fn` keeps what it is given twice"
)]
fn serve_http1(
    mut opened: PrefixedStream,
    of: Box<Http1Client>,
) -> impl Future<Output = ()> + Send {
    async move {
        loop {
            if opened.prefix.is_empty() {
                let waiting = parked::wait(&mut opened.stream, &of.phase, &of.client.worker.drain);
                let Some(first) = waiting.await else {
                    return;
                };
                opened.prefix = first;
            }
            match Box::pin(http1::serve(opened, &of.client, &of.phase)).await {
                End::Closed => return,
                End::Idle(stream) => {
                    of.client.downstream.rest();
                    opened = PrefixedStream {
                        stream,
                        prefix: Bytes::new(),
                    };
                }
                End::Tunnel(tunnel, socket) => return Box::pin(tunnel.run(socket)).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<F>(_: impl FnOnce(Stream, Arrival, Arc<Worker>, Open) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn what_is_kept_of_a_parked_connection_is_little() {
        // The runtime adds 112 and rounds up to the next multiple of 128.
        assert!(bytes(serve) <= 272, "{}", bytes(serve));
    }
}
