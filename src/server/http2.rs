//! HTTP/2 with clients. hyper and h2 implement the protocol.
//!
//! This module adds the limits that they lack. `frames` and `socket` limit frames that do no work.
//! `field_block` limits the effect of malformed heads. `stream` has a deadline for clients that do
//! not read a response. A request is charged when its head has come.

mod field_block;
mod frames;
mod huffman;
mod socket;
mod stream;

use std::error::Error as _;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::worker::ClientConnection;
use crate::clock::{Alarm, Sweep};
use crate::config::ServerSettings;
use crate::wire::PrefixedStream;
use frames::Allowance;
use socket::{Http2Socket, SocketLimits};
use stream::StreamExecutor;
use tidegate_core::exchange::changes::CloseUnanswered;

/// The first bytes of an HTTP/2 connection.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of request content that a client may send before it is read, on one stream and on all.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Bytes of a response that wait for the client, on one stream.
const SEND_BUFFER: usize = 64 << 10;
/// Streams with protocol errors that a connection may have.
const BROKEN_STREAMS: usize = 128;
/// How long the graceful end of an idle connection may take.
const GRACEFUL_END: Duration = Duration::from_secs(2);

/// The state that the socket and the streams of one connection share.
#[derive(Debug)]
struct ConnectionFlow {
    allowance: Allowance,
    open: AtomicUsize,
    /// Requests whose client has left and whose work goes on; at most `max_streams`.
    abandoned: AtomicUsize,
    max_streams: usize,
    /// The client was asked to end the connection.
    is_ending: AtomicBool,
    /// A write waits until the client reads.
    is_stalled: AtomicBool,
    /// The deadline of a connection without streams.
    idle: Arc<Alarm>,
    idle_timeout: Duration,
    body_timeout: Duration,
    sweep: Sweep,
}

impl ConnectionFlow {
    fn spend(&self, cost: i64) -> bool {
        self.allowance.spend(cost, self.sweep.ticks())
    }

    /// Starts the deadline of a connection without streams. A client that has vanished answers
    /// nothing, also when it is asked to end the connection.
    fn begin_idle(&self) {
        self.idle.arm(match self.is_ending.load(Ordering::Relaxed) {
            true => GRACEFUL_END,
            false => self.idle_timeout,
        });
    }

    /// Ready if the connection had no stream for too long.
    fn poll_idle(&self, context: &mut Context<'_>) -> Poll<()> {
        ready!(self.idle.poll(context));
        if self.open.load(Ordering::Relaxed) > 0 {
            return Poll::Pending;
        }
        if self.is_stalled.load(Ordering::Relaxed) {
            // The client still reads its last response, which has a deadline of its own.
            self.begin_idle();
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Notes that the client is asked to end the connection.
    fn begin_end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
        if self.open.load(Ordering::Relaxed) == 0 {
            self.begin_idle();
        }
    }
}

fn builder(settings: &ServerSettings, executor: StreamExecutor) -> Builder<StreamExecutor> {
    let mut http = Builder::new(executor);
    let head_bytes = u32::try_from(settings.max_header_bytes).unwrap_or(u32::MAX);
    http.max_concurrent_streams(settings.max_streams)
        .max_header_list_size(head_bytes)
        .max_pending_accept_reset_streams(BROKEN_STREAMS)
        .max_local_error_reset_streams(BROKEN_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER);
    http
}

/// Serves a client until either side ends the connection. `idle` is the connection's alarm.
pub(super) fn serve(
    opened: PrefixedStream,
    client: Arc<ClientConnection>,
    idle: Arc<Alarm>,
) -> impl Future<Output = ()> + Send {
    let worker = Arc::clone(&client.worker);
    let config = worker.serving.load();
    let settings = &config.settings;
    let sweep = worker.sweep.clone();
    idle.arm(settings.idle_timeout);
    let alarm = sweep.alarm();
    let flow = Arc::new(ConnectionFlow {
        allowance: Allowance::new(sweep.ticks()),
        open: AtomicUsize::new(0),
        abandoned: AtomicUsize::new(0),
        max_streams: usize::try_from(settings.max_streams).unwrap_or(usize::MAX),
        is_ending: AtomicBool::new(false),
        is_stalled: AtomicBool::new(false),
        idle,
        idle_timeout: settings.idle_timeout,
        body_timeout: settings.body_timeout,
        sweep,
    });
    let limits = SocketLimits {
        header_timeout: settings.header_timeout,
        body_timeout: settings.body_timeout,
        max_head_bytes: settings.max_header_bytes,
    };
    let socket = Http2Socket::new(opened, Arc::clone(&flow), alarm, limits);
    let executor = StreamExecutor::default();
    let http = builder(settings, executor.clone());
    drop(config);
    let (shared_flow, used) = (Arc::clone(&flow), Arc::clone(&client));
    let service = service_fn(move |request: Request<Incoming>| {
        client.downstream.usage.count_request();
        let stream = executor.open_stream(Arc::clone(&shared_flow));
        let serving = stream::serve_request(request, Arc::clone(&client), stream);
        serving.map(|response| match response.extensions().get() {
            Some(CloseUnanswered) => Err(h2::Error::from(h2::Reason::CANCEL)),
            None => Ok(response),
        })
    });
    let mut serving = Box::pin(http.serve_connection(TokioIo::new(socket), service));
    async move {
        let ended = poll_fn(|context| {
            if worker.drain.is_cut() {
                return Poll::Ready(Ok(()));
            }
            let is_timed_out = flow.poll_idle(context).is_ready();
            let is_ending = flow.is_ending.load(Ordering::Relaxed);
            if is_timed_out && is_ending {
                return Poll::Ready(Ok(()));
            }
            let mut polled = match is_timed_out {
                true => Poll::Pending,
                false => serving.as_mut().poll(context),
            };
            // Its last request may have come with this poll.
            if polled.is_pending() && !is_ending && (is_timed_out || used.is_over()) {
                flow.begin_end();
                serving.as_mut().graceful_shutdown();
                polled = serving.as_mut().poll(context);
            }
            // Registers this task, because an alarm that has rung has forgotten it.
            let _ = flow.idle.poll(context);
            polled
        })
        .await;
        // Other errors need no report: the requests of the connection have their own log lines.
        if ended.is_err_and(|error| is_unreadable(&error)) {
            worker.count_unreadable();
        }
    }
}

/// Whether the proxy ended the connection because its bytes are not HTTP/2. Errors of single
/// streams and clients that send too much do not count.
fn is_unreadable(error: &hyper::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref());
    cause.is_some_and(|cause: &h2::Error| {
        let is_ours = cause.is_go_away() && cause.is_library();
        is_ours && cause.reason() != Some(h2::Reason::ENHANCE_YOUR_CALM)
    })
}
