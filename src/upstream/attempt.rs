//! Sending a request: once, and again where that is safe and worth it.
//!
//! What was not sent at all may go to another server whatever it is. What may have been seen goes
//! only if its method and the lack of a body make doing it twice the same as doing it once; of
//! such a request its connection keeps the head.

use std::sync::Arc;

use http::header::HOST;
use http::{Request, Response};
use http_body::Body as _;
use smallvec::SmallVec;

use super::connection::Connection;
use super::error::{Failure, UpstreamError};
use super::grpc::{self, Pending};
use super::health::Trouble;
use super::permit::ServerPermit;
use super::pool::Upstream;
use super::retry::{Ended, is_repeatable, is_worth};
use super::server::Server;
use super::{Outgoing, accept, frame};
use crate::body::RequestBody;
use crate::clock::Alarm;
use crate::config::Retries;
use crate::trace::TRACEPARENT;
use crate::upstream::body::UpstreamBody;
use tidegate_core::exchange::headers::PrerenderedHeaders;
use tidegate_core::telemetry::attempt_log::AttemptLog;

/// An attempt that did not end well.
struct Missed {
    /// How, if another one may follow that.
    ended: Option<Ended>,
    /// What the client gets if none does: this content with the head that was put in its place.
    outcome: Result<UpstreamBody, UpstreamError>,
    /// The request, if nothing of it was sent or it can be sent again.
    request: Option<Request<RequestBody>>,
    server: Arc<Server>,
    /// Whether the connection had served before: that it ended need not be the server's fault.
    was_pooled: bool,
}

/// Where sending stands when it takes more than one exchange on a connection that stood.
#[expect(clippy::large_enum_variant, reason = "it goes into a box as it is")]
enum Next {
    /// Nothing was sent yet, and there is a place for it.
    Attempt(ServerPermit, Request<RequestBody>),
    /// It was tried.
    Missed(Box<Missed>),
}

/// What all attempts of a request have in common.
#[derive(Clone, Copy)]
struct Terms<'a> {
    affinity: Option<u64>,
    is_repeatable: bool,
    /// Whether it asks for a tunnel.
    asks_upgrade: bool,
    /// HTTP/1.0 clients may leave it out; our HTTP/1.1 may not.
    names_host: bool,
    /// Whether the answer has a status of gRPC.
    is_grpc: bool,
    /// Rings when the whole has taken too long.
    whole: Option<&'a Alarm>,
    /// Where attempts are noted, if anywhere.
    tries: Option<&'a AttemptLog>,
}

impl Upstream {
    /// Sends a request and waits for the head of its answer, which is put into `answer`. `whole`
    /// rings when that has taken too long; whoever polls this drops it then.
    ///
    /// What every request needs is here: an exchange on a connection that stands. All else is
    /// boxed, since it is rare, and each connection of a client keeps room for this future.
    // Not an `async fn`: that would keep the request twice.
    pub(super) fn send<'a, B: Send>(
        upstream: Option<&'a Upstream>,
        outgoing: Outgoing<'a>,
        answer: &'a mut Response<B>,
        whole: Option<&'a Alarm>,
    ) -> impl Future<Output = Result<UpstreamBody, UpstreamError>> + Send + 'a {
        let (request, affinity) = (outgoing.request, outgoing.affinity);
        let within = outgoing.within.filter(|_| whole.is_none());
        let (beside, tries) = (outgoing.beside, outgoing.tries);
        let (asks_upgrade, names_host) = (outgoing.asks_upgrade, outgoing.names_host);
        let is_grpc = outgoing.is_grpc;
        async move {
            let this = upstream.ok_or(UpstreamError::NoServer)?;
            if let Some(within) = within {
                let outgoing = Outgoing {
                    request,
                    beside,
                    asks_upgrade,
                    names_host,
                    affinity,
                    within: None,
                    is_grpc,
                    tries,
                };
                return Box::pin(this.send_within(outgoing, answer, within)).await;
            }
            frame(request);
            this.count_request();
            let permit = match this.permit(affinity) {
                Err(UpstreamError::TooManyConnections) if this.settings().queue > 0 => {
                    Box::pin(this.wait_for_permit(affinity)).await?
                }
                permit => permit?,
            };
            let terms = Terms {
                affinity,
                is_repeatable: may_repeat(request, &this.settings().retries),
                asks_upgrade,
                names_host,
                is_grpc,
                whole,
                tries: tries.as_deref(),
            };
            prepare(request, &permit, terms);
            let next = match permit.pooled(asks_upgrade) {
                None => Next::Attempt(permit, taken(request, beside.as_ref())),
                Some(mut connection) => {
                    let blame = Blame::of(this, &permit, request, whole);
                    let with = (beside.as_ref(), terms.is_repeatable, asks_upgrade);
                    let exchanged = connection.exchange(request, answer, with).await;
                    std::mem::forget(blame);
                    let answered = match exchanged {
                        Ok(()) => this.take(answer, (connection, permit), terms),
                        Err(Failure::Sent(error)) => {
                            Err(this.miss_sent(error, (connection, permit, true), terms))
                        }
                        Err(Failure::Unsent(_)) => {
                            let request = taken(request, beside.as_ref());
                            let next = Next::Attempt(permit, request);
                            return Box::pin(this.go_on(next, answer, terms)).await;
                        }
                    };
                    match answered {
                        Ok(body) => return Ok(body),
                        Err(missed) => Next::Missed(missed),
                    }
                }
            };
            Box::pin(this.go_on(next, answer, terms)).await
        }
    }

    /// Further attempts, as many as are allowed.
    async fn go_on<B>(
        &self,
        next: Next,
        answer: &mut Response<B>,
        terms: Terms<'_>,
    ) -> Result<UpstreamBody, UpstreamError> {
        let mut missed = match next {
            Next::Missed(missed) => missed,
            Next::Attempt(permit, request) => {
                match self.attempt((permit, request), answer, terms).await {
                    Ok(body) => return Ok(body),
                    Err(missed) => missed,
                }
            }
        };
        let rules = &self.settings().retries;
        let mut tried: SmallVec<[Arc<Server>; 4]> = SmallVec::new();
        for _ in 0..rules.attempts {
            let Some(ended) = missed.ended else { break };
            if !is_worth(&rules.on, ended, terms.is_repeatable) {
                break;
            }
            let request = missed.request.take();
            tried.push(Arc::clone(&missed.server));
            let permit = self.seat_elsewhere(&tried, terms.affinity, missed.was_pooled);
            let (Some(request), Some(permit)) = (request, permit) else {
                break;
            };
            if !self.may_retry() {
                break;
            }
            self.cells().retries[ended.number()].add(1);
            match self.attempt((permit, request), answer, terms).await {
                Ok(body) => return Ok(body),
                Err(next) => missed = next,
            }
        }
        missed.outcome
    }

    /// One attempt, at one server, which is judged by how it went.
    async fn attempt<B>(
        &self,
        (permit, mut request): (ServerPermit, Request<RequestBody>),
        answer: &mut Response<B>,
        terms: Terms<'_>,
    ) -> Result<UpstreamBody, Box<Missed>> {
        prepare(&mut request, &permit, terms);
        let asks_upgrade = terms.asks_upgrade;
        let with = (None, terms.is_repeatable, asks_upgrade);
        if let Some(mut connection) = permit.pooled(asks_upgrade) {
            let blame = Blame::of(self, &permit, &request, terms.whole);
            let exchanged = connection.exchange(&mut request, answer, with).await;
            std::mem::forget(blame);
            match exchanged {
                Ok(()) => return self.take(answer, (connection, permit), terms),
                Err(Failure::Sent(error)) => {
                    return Err(self.miss_sent(error, (connection, permit, true), terms));
                }
                Err(Failure::Unsent(_)) => {}
            }
        }
        let mut connection = match permit.connect(asks_upgrade).await {
            Ok(connection) => connection,
            Err(error) => {
                let mut missed = self.miss(error, &permit, false, terms);
                missed.request = Some(request);
                return Err(missed);
            }
        };
        let blame = Blame::of(self, &permit, &request, terms.whole);
        let exchanged = connection.exchange(&mut request, answer, with).await;
        std::mem::forget(blame);
        match exchanged {
            Ok(()) => self.take(answer, (connection, permit), terms),
            Err(Failure::Sent(error)) => {
                Err(self.miss_sent(error, (connection, permit, false), terms))
            }
            Err(Failure::Unsent(error)) => {
                let mut missed = self.miss(error, &permit, false, terms);
                (missed.ended, missed.request) = (Some(Ended::Unsent), Some(request));
                Err(missed)
            }
        }
    }

    /// An answer's head has come.
    fn take<B>(
        &self,
        answer: &Response<B>,
        (mut connection, mut permit): (Connection, ServerPermit),
        terms: Terms<'_>,
    ) -> Result<UpstreamBody, Box<Missed>> {
        let status = answer.status();
        permit.answered();
        if let Some(tries) = terms.tries {
            tries.end(Ok(status.as_u16()));
        }
        self.cells().codes.count(status.as_u16());
        permit.server().cells.requests.add(1);
        let judged_by = match terms.is_grpc {
            false => Some(status),
            true => grpc::judged_by(answer, self.cells()),
        };
        match judged_by {
            Some(status) => permit.judge(status, || self.servers_and_out()),
            None => permit.began(),
        }
        let settings = self.settings();
        let again = terms.is_repeatable && settings.retries.on.status.contains(status);
        let again = again.then(|| (Arc::clone(permit.server()), connection.take_retry_copy()));
        let mut body = accept(status, (connection, permit));
        if judged_by.is_none() {
            let servers = self.choice().servers.len();
            body.judge_at_end(Pending::new(self.cells(), servers));
        }
        match again {
            None => Ok(body),
            Some((server, request)) => Err(Box::new(Missed {
                ended: Some(Ended::Answered(status)),
                outcome: Ok(body),
                request,
                server,
                was_pooled: false,
            })),
        }
    }

    /// The same for a request that the server may have seen.
    #[cold]
    fn miss_sent(
        &self,
        error: UpstreamError,
        (mut connection, permit, was_pooled): (Connection, ServerPermit, bool),
        terms: Terms<'_>,
    ) -> Box<Missed> {
        let mut missed = self.miss(error, &permit, was_pooled, terms);
        if terms.is_repeatable {
            missed.request = connection.take_retry_copy();
        }
        missed
    }

    /// Nothing usable has come; the server is judged by that.
    fn miss(
        &self,
        error: UpstreamError,
        permit: &ServerPermit,
        was_pooled: bool,
        terms: Terms<'_>,
    ) -> Box<Missed> {
        if let Some(tries) = terms.tries {
            tries.end(Err(error.label()));
        }
        self.cells().failures.add(1);
        permit.server().cells.requests.add(1);
        permit.server().cells.failures.add(1);
        let (ended, trouble) = match &error {
            UpstreamError::Unreachable(_)
            | UpstreamError::ConnectTimedOut
            | UpstreamError::Tls(_)
            | UpstreamError::NoHttp2(_) => (Some(Ended::Unsent), Some(Trouble::Unreachable)),
            // To another server there may be a port.
            UpstreamError::OutOfSockets(_) => (Some(Ended::Unsent), None),
            UpstreamError::TimedOut => (Some(Ended::TimedOut), Some(Trouble::Failed)),
            // Servers close what is idle, perhaps just as we use it.
            UpstreamError::Closed(_) if was_pooled => (Some(Ended::Closed), None),
            UpstreamError::Closed(_) => (Some(Ended::Closed), Some(Trouble::Failed)),
            UpstreamError::TlsEnded(_) | UpstreamError::Garbage(_) | UpstreamError::Head(_) => {
                (None, Some(Trouble::Failed))
            }
            UpstreamError::Request(_)
            | UpstreamError::NoServer
            | UpstreamError::NoneLeft(_)
            | UpstreamError::TooManyConnections
            | UpstreamError::QueuedTooLong => (None, None),
        };
        if trouble.is_some() {
            permit.server().vital.note_failure();
        }
        if let Some(trouble) = trouble
            && self.failed(permit, trouble)
        {
            // Retries may keep it from every client, and so from their lines in the log.
            permit.server().vital.watch.explain(&error.in_full());
        }
        Box::new(Missed {
            ended,
            outcome: Err(error),
            request: None,
            server: Arc::clone(permit.server()),
            was_pooled,
        })
    }
}

/// A request that may be sent more than once belongs to its attempts, and has all its lines in its
/// map.
fn taken(
    request: &mut Request<RequestBody>,
    beside: Option<&PrerenderedHeaders>,
) -> Request<RequestBody> {
    let mut request = std::mem::take(request);
    if let Some(beside) = beside {
        beside.join(request.headers_mut());
    }
    request
}

/// Whether a request that its server may have seen could be sent again.
fn may_repeat(request: &Request<RequestBody>, rules: &Retries) -> bool {
    let on = &rules.on;
    rules.attempts > 0
        && (on.closed || on.timeout || !on.status.is_empty())
        && is_repeatable(request.method(), !request.body().is_end_stream())
}

/// Names the server in the request, if that is left to us.
fn prepare(request: &mut Request<RequestBody>, permit: &ServerPermit, terms: Terms<'_>) {
    if permit.renames_host() || !terms.names_host {
        request.headers_mut().insert(HOST, permit.host().clone());
    }
    if let Some(tries) = terms.tries {
        let parent = tries.begin(&permit.server().place);
        request.headers_mut().insert(TRACEPARENT, parent.value());
    }
}

/// Dropped when the time for the whole has run out, it says that this server did not answer. One
/// that did is forgotten before.
struct Blame<'a>(&'a Upstream, &'a ServerPermit, &'a Alarm);

impl<'a> Blame<'a> {
    fn of(
        upstream: &'a Upstream,
        permit: &'a ServerPermit,
        request: &Request<RequestBody>,
        whole: Option<&'a Alarm>,
    ) -> Option<Blame<'a>> {
        // While there is a body to send, it may be the client who is slow.
        let whole = whole.filter(|_| request.body().is_end_stream());
        whole.map(|whole| Blame(upstream, permit, whole))
    }
}

impl Drop for Blame<'_> {
    fn drop(&mut self) {
        let Blame(upstream, permit, whole) = self;
        // Else the client has left.
        if whole.has_rung() {
            permit.server().vital.note_failure();
            upstream.failed(permit, Trouble::Failed);
        }
    }
}
