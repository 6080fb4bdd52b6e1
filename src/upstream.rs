//! Upstreams: they take a request and return the head of its response; the body streams behind it.
//!
//! [`Upstreams`] belongs to one worker. A request is sent again only if nothing of it was written,
//! or if it is idempotent. No wait is without a deadline. A connection with any irregularity is
//! never used again.
//!
//! ```text
//! attempt     one exchange, and others if that is safe          attempt, retry
//! permit      the choice of a server with room                  pool, server_set, balance, health
//! connection  an idle one, a stream on a shared one, a new one  checkout, server, connect
//! exchange    send, and wait for the head                       connection, http1, http2
//! ```

mod attempt;
mod balance;
pub mod body;
mod checkout;
mod connect;
mod connection;
mod deadline;
mod dns;
mod error;
mod health;
mod http1;
mod http2;
mod latency;
mod outgoing;
mod permit;
mod pool;
mod prober;
mod queue;
mod retry;
mod server;
mod server_health;
mod server_set;

use std::sync::Arc;

use http::Response;

use crate::clock::Sweep;
use crate::config::UpstreamSettings;
use crate::telemetry::metrics::UpstreamSum;
use body::UpstreamBody;
pub use connect::{TolerantStream, accepts_connections};
pub use error::{HeadFault, Http1Fault, ProtocolError, UpstreamError};
pub use latency::MeasuredLatency;
pub use outgoing::{AttemptLog, Outgoing, PrerenderedHeaders, RecordedAttempt, SendOptions};
pub use permit::ServerPermit;
use pool::Upstream;
pub use prober::run_health_checks;
pub use server::{ServerReport, ServerStatus};
pub use server_health::Vitals;

/// All upstreams of one worker, with their connections.
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
    ) -> impl Future<Output = Result<UpstreamBody, UpstreamError>> + Send + 'a {
        let upstream = self.0.get(upstream).map(|upstream| &**upstream);
        Upstream::send(upstream, outgoing, response, None)
    }

    /// Adds the counters of the upstream with this index to `sum`.
    pub fn add_to(&self, upstream: usize, sum: &mut UpstreamSum) {
        if let Some(upstream) = self.0.get(upstream) {
            upstream.cells.add_to(sum);
        }
    }

    /// Reports the current servers of the upstream with this index.
    pub fn servers(&self, upstream: usize) -> Vec<ServerReport> {
        let upstream = self.0.get(upstream);
        let servers = upstream.map_or_else(Vec::new, |one| one.current_servers());
        servers.iter().map(|server| server.report()).collect()
    }
}
