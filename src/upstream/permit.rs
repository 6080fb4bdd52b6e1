//! One request's permit to use a server.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Instant;

use http::{HeaderValue, StatusCode};

use super::connection::Connection;
use super::deadline::Deadline;
use super::error::UpstreamError;
use super::health::{Sent, Trouble};
use super::http1::Http1;
use super::server::Server;
use crate::clock;
use crate::config::{Ejection, HostHeader, UpstreamSettings};
use crate::wire::Stream;

/// One request's place at a server, counted until it is dropped.
#[derive(Debug)]
pub struct ServerPermit {
    server: Arc<Server>,
    sent: Sent,
    /// Whether it counts among what the server may have under way.
    is_bounded: bool,
    /// When it was taken, if the time until its answer is to be known.
    since: Option<Instant>,
}

impl ServerPermit {
    /// Takes a place for a request that is `sent` there for this reason; `None` if it has as many
    /// as it may.
    pub(super) fn take(server: &Arc<Server>, sent: Sent) -> Option<ServerPermit> {
        if server.cap.is_some_and(|most| !server.vital.enter(most)) {
            return None;
        }
        let mut permit = ServerPermit::beside(server, sent);
        permit.is_bounded = server.cap.is_some();
        Some(permit)
    }

    /// A place for what is no client's request, which the server's bound is not for.
    pub(super) fn beside(server: &Arc<Server>, sent: Sent) -> ServerPermit {
        server.terms.in_use.fetch_add(1, Ordering::Relaxed);
        server.in_flight.fetch_add(1, Ordering::Relaxed);
        ServerPermit {
            server: Arc::clone(server),
            sent,
            is_bounded: false,
            since: None,
        }
    }

    /// Has it measured how long the answer takes.
    pub(super) fn measure(&mut self) {
        self.since = Some(clock::now());
    }

    /// The head of an answer has come, whatever it says.
    pub(super) fn answered(&mut self) {
        if let Some(since) = self.since.take() {
            let (took, now) = (clock::now() - since, self.server.terms.sweep.elapsed());
            self.server.latency.observe(took, now);
        }
    }

    /// Where it is.
    pub(super) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// The request that has it was answered as it should be.
    pub(super) fn succeeded(&self) {
        self.server.vital.watch.succeeded(self.sent);
    }

    /// It met `trouble`: whether the server is left alone for that. `count` says how many servers
    /// there are, and how many not in order.
    pub(super) fn failed(
        &self,
        trouble: Trouble,
        rules: &Ejection,
        count: impl FnOnce() -> (usize, usize),
    ) -> bool {
        let watch = &self.server.vital.watch;
        watch.failed((trouble, self.sent), rules, count)
    }

    /// The answer to the request that has it came to its end.
    pub(super) fn completed(&self) {
        self.server.vital.watch.completed();
        self.server.vital.note_completed();
    }

    /// The answer ended before its end, of which `error` says why. It is the server's fault unless
    /// the client broke off its own request.
    #[cold]
    pub(super) fn truncated(&self, error: &UpstreamError) {
        if matches!(error, UpstreamError::Request(_)) {
            return;
        }
        self.server.cells.truncated.add(1);
        self.server.cells.failures.add(1);
        self.server.vital.note_truncated();
        let watch = &self.server.vital.watch;
        if let Some(rules) = &self.settings().eject
            && watch.truncated(self.sent, rules)
        {
            watch.explain(&error.in_full());
        }
    }

    /// The server answered with this status, or with one of gRPC that means the same. `count` is as
    /// for `failed`.
    pub(super) fn judge(&self, status: StatusCode, count: impl FnOnce() -> (usize, usize)) {
        let server = &self.server;
        let rules = self.settings().eject.as_ref();
        let rules = rules.filter(|eject| eject.status.contains(status));
        if rules.is_some() || status.is_server_error() {
            server.cells.failures.add(1);
            server.vital.note_failure();
        } else {
            server.vital.note_success();
        }
        match rules {
            Some(rules) => _ = self.failed(Trouble::Failed, rules, count),
            None => self.succeeded(),
        }
    }

    /// How many servers of the upstream are not in order.
    pub(super) fn servers_out(&self) -> usize {
        self.server.vital.watch.servers_out()
    }

    /// The head of an answer came whose status is still to come. A server that was asked for a
    /// trial is back by that: the call may take hours.
    pub(super) fn began(&self) {
        if self.sent != Sent::InOrder {
            self.succeeded();
        }
    }

    pub(super) fn settings(&self) -> &UpstreamSettings {
        &self.server.terms.settings
    }

    /// Whether every request is for the server's host, whatever it came with.
    pub(super) fn renames_host(&self) -> bool {
        self.settings().host != HostHeader::Pass
    }

    /// What stands in `Host` then, or for a request that came without one.
    pub(super) fn host(&self) -> &HeaderValue {
        &self.server.host
    }

    /// The idle connection that was used last, if one is left; or a place on one that is shared.
    pub(super) fn pooled(&self, asks_upgrade: bool) -> Option<Connection> {
        let mut idle = self.server.idle();
        while let Some(mut connection) = idle.pop() {
            if connection.is_usable() {
                return Some(Connection::Http1(connection));
            }
        }
        let shared = self.server.shared.as_ref()?;
        drop(idle);
        self.place(shared, asks_upgrade)
    }

    /// A new connection to this server, or a place on one that came to stand meanwhile.
    pub(super) async fn connect(&self, asks_upgrade: bool) -> Result<Connection, UpstreamError> {
        let (server, settings) = (&self.server, self.settings());
        // A stream that was reset as soon as it had begun ends here, before it costs a connection.
        step_aside().await;
        if let Some(shared) = &server.shared {
            return self.join(shared, asks_upgrade).await;
        }
        let connected = server.address.connect(settings.connect_timeout).await;
        Ok(self.alone(connected?))
    }

    /// A connection of HTTP/1.1.
    pub(super) fn alone(&self, stream: Stream) -> Connection {
        Connection::Http1(Http1::new(stream, self.deadline()))
    }

    /// For the head of a response, and for each piece of its body.
    pub(super) fn deadline(&self) -> Deadline {
        let settings = self.settings();
        let waits = (settings.timeout, settings.body_timeout);
        Deadline::new(self.server.terms.sweep.alarm(), waits)
    }

    /// Keeps a connection to this server for the next request.
    pub(super) fn keep(&self, connection: Box<Http1>) {
        self.server.keep(connection);
    }
}

impl Drop for ServerPermit {
    fn drop(&mut self) {
        if let Some(since) = self.since.take() {
            let (waited, now) = (clock::now() - since, self.server.terms.sweep.elapsed());
            self.server.latency.observe_at_least(waited, now);
        }
        self.server.terms.in_use.fetch_sub(1, Ordering::Relaxed);
        self.server.in_flight.fetch_sub(1, Ordering::Relaxed);
        if self.is_bounded {
            self.server.vital.leave();
        }
        if let Some(queue) = &self.server.terms.queue {
            queue.free();
        }
    }
}

/// Lets other tasks run once.
async fn step_aside() {
    let mut stepped = false;
    poll_fn(|context| {
        if std::mem::replace(&mut stepped, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
