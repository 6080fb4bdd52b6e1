//! Upstreams: they take a request and return the head of its response; the body streams behind it.
//!
//! [`Upstreams`] belongs to one worker. A request is sent again only if nothing of it was written,
//! or if it is idempotent. No wait is without a deadline. A connection with any irregularity is
//! never used again.
//!
//! ```text
//! attempt     one exchange, and others if that is safe          attempt, retry
//! permit      the choice of a server with room                  pool, server_set, balance, health
//! connection  an idle one, a stream on a shared one, a new one  connection, connect
//! exchange    send, and wait for the head                       connection, http1, http2
//! ```

mod attempt;
mod balance;
pub mod body;
mod connect;
mod connection;
mod deadline;
mod error;
mod health;
mod http1;
mod http2;
mod permit;
mod pool;
mod prober;
mod queue;
mod retry;
mod server;
mod server_health;
mod server_set;
mod whole_timeout;

use std::sync::Arc;
use std::time::Duration;

use http::header::{HOST, UPGRADE};
use http::{Request, Response};

use crate::body::RequestBody;
use crate::clock::Sweep;
use crate::config::UpstreamSettings;
use crate::telemetry::metrics::UpstreamSum;
use body::UpstreamBody;
pub use connect::{TolerantStream, try_connect};
pub use error::{Cause, HeadFault, SendFailure, UpstreamError};
pub use permit::ServerPermit;
use pool::Upstream;
pub use prober::run_health_checks;
pub use server::{MeasuredLatency, ServerReport, ServerStatus};
pub use server_health::Vitals;
pub use tidegate_core::exchange::headers::PrerenderedHeaders;
pub use tidegate_core::telemetry::spans::{AttemptLog, RecordedAttempt};

#[derive(Debug)]
pub struct Outgoing<'r> {
    /// In origin form. Sending takes parts of it away.
    pub request: &'r mut Request<RequestBody>,
    /// Header lines that are not in the request's map.
    pub prerendered: Option<PrerenderedHeaders>,
    /// Bounds the whole exchange, up to the last byte of the response.
    pub timeout: Option<Duration>,
    pub options: SendOptions,
}

/// Facts about a request that its head does not contain.
#[derive(Debug, Default)]
pub struct SendOptions {
    pub asks_upgrade: bool,
    /// Whether the request has a `Host` line; otherwise it gets that of its server.
    pub has_host: bool,
    /// With `balance = "hash"`, requests with the same number go to the same server.
    pub affinity: Option<u64>,
    /// Whether this is a gRPC call, whose response has a status of its own.
    pub is_grpc: bool,
    /// Records each attempt, if the request is traced or its response tells them.
    pub attempts: Option<Arc<AttemptLog>>,
}

impl<'r> From<&'r mut Request<RequestBody>> for Outgoing<'r> {
    fn from(request: &'r mut Request<RequestBody>) -> Outgoing<'r> {
        let options = SendOptions {
            asks_upgrade: request.headers().contains_key(UPGRADE),
            has_host: request.headers().contains_key(HOST),
            ..SendOptions::default()
        };
        Outgoing {
            request,
            prerendered: None,
            timeout: None,
            options,
        }
    }
}

#[derive(Debug)]
pub struct Upstreams(Vec<Arc<Upstream>>);

impl Upstreams {
    /// The upstreams of a configuration, in its order, without connections. `sweep` is the clock of
    /// their deadlines; `vitals` holds the health that all workers share.
    pub fn new(settings: &[UpstreamSettings], sweep: Sweep, vitals: &Vitals) -> Upstreams {
        Upstreams(Vec::new()).renewed(settings, &sweep, vitals)
    }

    /// The upstreams of another configuration. An upstream with a known name keeps the servers that
    /// have not changed, and their connections.
    pub fn renewed(
        &self,
        settings: &[UpstreamSettings],
        sweep: &Sweep,
        vitals: &Vitals,
    ) -> Upstreams {
        let upstream = |settings: &UpstreamSettings| {
            let mut known = self.0.iter();
            let old = known.find(|known| known.settings().name == settings.name);
            Upstream::new(old, settings, sweep.clone(), vitals)
        };
        Upstreams(settings.iter().map(upstream).collect())
    }

    /// Sends a request to a server of the upstream with this index, and waits for the head of the
    /// response, which goes into `response`. After an error `response` has no meaning. Dropping the
    /// future or the body cancels the request.
    // Not an `async fn`: that would reserve memory for the request twice.
    pub fn send<'a, B: Send>(
        &'a self,
        upstream: usize,
        outgoing: Outgoing<'a>,
        response: &'a mut Response<B>,
    ) -> impl Future<Output = Result<UpstreamBody, SendFailure>> + Send + 'a {
        let upstream = self.0.get(upstream).map(|upstream| &**upstream);
        Upstream::send(upstream, outgoing, response, None)
    }

    pub fn add_to(&self, upstream: usize, sum: &mut UpstreamSum) {
        if let Some(upstream) = self.0.get(upstream) {
            upstream.cells.add_to(sum);
        }
    }

    /// Whether a server of the upstream gets requests with this host.
    pub fn has_host(&self, upstream: usize, host: &str) -> bool {
        let servers = self.0.get(upstream).map(|one| one.current_servers());
        servers.is_some_and(|servers| servers.iter().any(|server| server.host == *host))
    }

    pub fn servers(&self, upstream: usize) -> Vec<ServerReport> {
        let upstream = self.0.get(upstream);
        let servers = upstream.map_or_else(Vec::new, |one| one.current_servers());
        servers.iter().map(|server| server.report()).collect()
    }
}
