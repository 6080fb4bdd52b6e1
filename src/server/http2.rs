//! HTTP/2 on a client's connection: many requests at once, each as if it had come by itself.
//!
//! hyper and h2 speak the protocol. The files here hold what they leave open to a limit: frames
//! that move nothing (`frames`, `socket`), malformed heads (`field_block`), streams whose client
//! takes nothing (`stream`), and connections without any. A request is charged when its head has
//! come, whatever becomes of its stream.

mod cut;
mod field_block;
mod frames;
mod huffman;
mod socket;
mod stream;

use std::convert::Infallible;
use std::error::Error as _;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::client_connection::ClientConnection;
use crate::clock::{Alarm, Sweep};
use crate::config::ServerSettings;
use crate::telemetry::metrics::Unanswered;
use crate::wire::PrefixedStream;
use frames::Allowance;
use socket::{Bounds, Socket};
use stream::Streams;

/// Bytes of a request's body that a client may send ahead of its reader, on one stream and on all.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Bytes of a response that wait for the client, on one stream.
const SEND_BUFFER: usize = 64 << 10;
/// Streams that may break the protocol before their connection does.
const BROKEN_STREAMS: usize = 128;
/// How long an idle connection that was told to end may take for it.
const FAREWELL: Duration = Duration::from_secs(2);

/// What the socket, the streams and the end of one connection tell each other.
#[derive(Debug)]
struct Flow {
    allowance: Allowance,
    /// Streams that have a request and not all of its response.
    open: AtomicUsize,
    /// Requests whose client has left, and which are still worked on; bounded by `max_streams`.
    left: AtomicUsize,
    max_streams: usize,
    /// For a connection without any.
    idle: Arc<Alarm>,
    idle_timeout: Duration,
    body_timeout: Duration,
    sweep: Sweep,
}

impl Flow {
    fn spend(&self, cost: i64) -> bool {
        self.allowance.spend(cost, self.sweep.ticks())
    }

    fn begin_stream(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.idle.disarm();
    }

    fn end_stream(&self) {
        if self.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.idle.arm(self.idle_timeout);
        }
    }

    fn is_idle(&self) -> bool {
        self.open.load(Ordering::Relaxed) == 0
    }
}

fn builder(settings: &ServerSettings, streams: Streams) -> Builder<Streams> {
    let mut http = Builder::new(streams);
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

/// Serves a client that speaks HTTP/2, whose first bytes may have been read, until either side
/// ends it. `idle` is the connection's alarm.
pub(super) fn serve(
    opened: PrefixedStream,
    client: Arc<ClientConnection>,
    idle: Arc<Alarm>,
) -> impl Future<Output = ()> + Send {
    let worker = Arc::clone(&client.worker);
    let began = worker.serving.load();
    let settings = &began.settings;
    let sweep = worker.sweep.clone();
    idle.arm(settings.idle_timeout);
    let flow = Arc::new(Flow {
        allowance: Allowance::new(sweep.ticks()),
        open: AtomicUsize::new(0),
        left: AtomicUsize::new(0),
        max_streams: usize::try_from(settings.max_streams).unwrap_or(usize::MAX),
        idle,
        idle_timeout: settings.idle_timeout,
        body_timeout: settings.body_timeout,
        sweep: sweep.clone(),
    });
    let bounds = Bounds {
        header_timeout: settings.header_timeout,
        body_timeout: settings.body_timeout,
        max_head_bytes: settings.max_header_bytes,
    };
    let socket = Socket::new(opened, Arc::clone(&flow), sweep.alarm(), bounds);
    let streams = Streams::default();
    let http = builder(settings, streams.clone());
    drop(began);
    let of_streams = Arc::clone(&flow);
    let service = service_fn(move |request: Request<Incoming>| {
        let (client, flow) = (Arc::clone(&client), Arc::clone(&of_streams));
        let open = streams.open(flow);
        stream::answer(request, client, open).map(Ok::<_, Infallible>)
    });
    let mut serving = Box::pin(http.serve_connection(TokioIo::new(socket), service));
    let mut told = false;
    async move {
        // A connection that broke is no news: its requests, if there were any, have their log
        // lines.
        let ended = poll_fn(|context| {
            let rung = flow.idle.poll(context).is_ready() && flow.is_idle();
            if rung && told {
                return Poll::Ready(Ok(()));
            }
            if !told && (rung || worker.drain.is_draining()) {
                told = true;
                if rung {
                    flow.idle.arm(FAREWELL);
                }
                serving.as_mut().graceful_shutdown();
            }
            serving.as_mut().poll(context)
        })
        .await;
        if ended.is_err_and(|error| is_unreadable(&error)) {
            let now = worker.serving.load();
            now.proxy.meter().unanswered(Unanswered::Unreadable);
        }
    }
}

/// Whether a connection was ended by us because what came on it is no HTTP/2. Streams that are
/// refused alone, and whoever sends too much, are not told of here.
fn is_unreadable(error: &hyper::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref());
    cause.is_some_and(|cause: &h2::Error| {
        let is_ours = cause.is_go_away() && cause.is_library();
        is_ours && cause.reason() != Some(h2::Reason::ENHANCE_YOUR_CALM)
    })
}
