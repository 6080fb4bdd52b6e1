//! Sends a request: once, and again if that is safe and the rules want it.
//!
//! A request of which nothing was sent may go to another server. A request that a server may have
//! seen is sent again only if its method is idempotent and it has no body. The connection keeps a
//! copy of such a request.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING};
use http::{Request, Response, Version};
use http_body::Body as _;
use smallvec::SmallVec;

use super::body::{UpstreamBody, grpc_status};
use super::connection::{ExchangeOptions, ResponseLease, UpstreamConnection};
use super::error::{ExchangeError, SendFailure, UpstreamError};
use super::health::FailureKind;
use super::http2::Http2Connection;
use super::permit::ServerPermit;
use super::pool::Upstream;
use super::retry::{AttemptEnd, is_repeatable, wants_retry};
use super::server::Server;
use super::whole_timeout::{EndedByTimeout, WholeTimeout};
use super::{Outgoing, PrerenderedHeaders, SendOptions};
use crate::body::{BodyWatch, RequestBody};
use crate::config::Retries;
use crate::telemetry::metrics::GrpcStatus;
use crate::trace::TRACEPARENT;
use tidegate_core::exchange::grpc::is_grpc;

/// An attempt that failed, or whose response may be replaced by that of another attempt.
struct FailedAttempt {
    /// `None` if no other attempt may follow.
    end: Option<AttemptEnd>,
    outcome: Result<UpstreamBody, UpstreamError>,
    request: Option<Request<RequestBody>>,
    server: Arc<Server>,
    /// Whether the same server may get the request again. Its connection was an idle one, whose end
    /// need not be the server's fault, or a shared one that it was closing.
    may_be_same: bool,
    /// The connection whose server refused the request.
    refused_on: Option<Arc<Http2Connection>>,
}

#[derive(Clone, Copy)]
struct AttemptTerms<'a> {
    options: &'a SendOptions,
    is_repeatable: bool,
    whole: Option<&'a WholeTimeout<'a>>,
    /// The body of the request; `None` without one.
    body: Option<&'a BodyWatch>,
}

impl Upstream {
    /// Sends a request and waits for the head of the response, which goes into `response`. When
    /// the alarm of `whole` rings, the caller drops this future.
    ///
    /// An exchange on a pooled connection happens here. Everything else is rare and boxed, because
    /// each connection of a client reserves memory for this future.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn reserves memory for the arguments twice"
    )]
    pub(super) fn send<'a, B: Send>(
        upstream: Option<&'a Upstream>,
        outgoing: Outgoing<'a>,
        response: &'a mut Response<B>,
        whole: Option<&'a WholeTimeout<'a>>,
    ) -> impl Future<Output = Result<UpstreamBody, SendFailure>> + Send + 'a {
        async move {
            let this = upstream.ok_or(UpstreamError::NoServer)?;
            if let (Some(timeout), None) = (outgoing.timeout, whole) {
                return Box::pin(this.send_within(outgoing, response, timeout)).await;
            }
            let (request, options) = (&mut *outgoing.request, &outgoing.options);
            let prerendered = outgoing.prerendered.as_ref();
            set_framing(request);
            let body = request.body().watch();
            this.count_request();
            let permit = match this.permit(options.affinity) {
                Err(UpstreamError::TooManyConnections) if this.settings().queue > 0 => {
                    Box::pin(this.wait_for_permit(options.affinity)).await?
                }
                permit => permit?,
            };
            let terms = AttemptTerms {
                options,
                is_repeatable: may_repeat(request, &this.settings().retries),
                whole,
                body: body.as_ref(),
            };
            prepare(request, &permit, options);
            let Some(mut connection) = permit.pooled(options.asks_upgrade) else {
                let request = take_request(request, prerendered);
                return Box::pin(this.attempt_all(permit, request, response, terms)).await;
            };
            let is_to_blame = request.body().is_end_stream();
            let guard = EndedByTimeout::new(&permit, whole, is_to_blame);
            let exchange = connection.exchange(request, response, terms.exchange(prerendered));
            let exchanged = exchange.await;
            std::mem::forget(guard);
            if let Err(ExchangeError::Unsent(_)) = exchanged {
                let request = take_request(request, prerendered);
                return Box::pin(this.attempt_all(permit, request, response, terms)).await;
            }
            let is_refused = matches!(exchanged, Err(ExchangeError::Refused(_)));
            let lease = ResponseLease { connection, permit };
            match this.conclude(exchanged, lease, true, response, terms) {
                Ok(body) => Ok(body),
                Err(mut failed) => {
                    if is_refused {
                        failed.request = Some(take_request(request, prerendered));
                    }
                    Box::pin(this.retry(failed, response, terms)).await
                }
            }
        }
    }

    /// Bounds the time until the last byte of the response, or until it has become a tunnel.
    async fn send_within<B: Send>(
        &self,
        outgoing: Outgoing<'_>,
        response: &mut Response<B>,
        timeout: Duration,
    ) -> Result<UpstreamBody, SendFailure> {
        let whole = WholeTimeout {
            alarm: self.terms.sweep.alarm(),
            cells: &self.cells,
            attempts: outgoing.options.attempts.clone(),
            body: outgoing.request.body().watch(),
            ended: OnceLock::new(),
        };
        whole.alarm.arm(timeout);
        let sent = {
            let mut sending = pin!(Upstream::send(Some(self), outgoing, response, Some(&whole)));
            poll_fn(|context| match sending.as_mut().poll(context) {
                Poll::Ready(sent) => Poll::Ready(Some(sent)),
                Poll::Pending => whole.alarm.poll(context).map(|()| None),
            })
            .await
        };
        // The attempt has ended with its future, and has named its server.
        let mut body = sent.unwrap_or_else(|| {
            Err(SendFailure {
                error: whole.error(),
                server: whole.ended.get().cloned(),
            })
        })?;
        body.end_by(whole.alarm);
        Ok(body)
    }

    /// Makes attempts on new connections, after none was open or the open one was closed.
    async fn attempt_all<B>(
        &self,
        permit: ServerPermit,
        request: Request<RequestBody>,
        response: &mut Response<B>,
        terms: AttemptTerms<'_>,
    ) -> Result<UpstreamBody, SendFailure> {
        match self.attempt(permit, None, request, response, terms).await {
            Ok(body) => Ok(body),
            Err(failed) => self.retry(failed, response, terms).await,
        }
    }

    async fn retry<B>(
        &self,
        mut failed: Box<FailedAttempt>,
        response: &mut Response<B>,
        terms: AttemptTerms<'_>,
    ) -> Result<UpstreamBody, SendFailure> {
        let rules = &self.settings().retries;
        let mut tried: SmallVec<[Arc<Server>; 4]> = SmallVec::new();
        for _ in 0..rules.attempts {
            let Some(end) = failed.end else { break };
            if !wants_retry(&rules.on, end, terms.is_repeatable) {
                break;
            }
            let request = failed.request.take();
            // A server that refuses is asked on another connection, and only once.
            let may_be_same = match &failed.refused_on {
                Some(_) => !tried.iter().any(|one| Arc::ptr_eq(one, &failed.server)),
                None => failed.may_be_same || rules.same_server,
            };
            tried.push(Arc::clone(&failed.server));
            let permit = self.retry_permit(&tried, terms.options.affinity, may_be_same);
            let (Some(request), Some(mut permit)) = (request, permit) else {
                break;
            };
            if !self.take_retry() {
                break;
            }
            self.cells.retries[end.index()].add(1);
            permit.avoided = failed.refused_on.take();
            let pooled = permit.pooled(terms.options.asks_upgrade);
            let attempt = self.attempt(permit, pooled, request, response, terms);
            match attempt.await {
                Ok(body) => return Ok(body),
                Err(next) => failed = next,
            }
        }
        let FailedAttempt {
            outcome, server, ..
        } = *failed;
        outcome.map_err(|error| {
            // The client's own mistake is about no server.
            let is_servers = !matches!(error, UpstreamError::Request(_));
            let server = is_servers.then(|| server.place.to_string());
            SendFailure { error, server }
        })
    }

    /// Makes one attempt: on the `pooled` connection, or on another one if that is closed.
    async fn attempt<B>(
        &self,
        permit: ServerPermit,
        mut pooled: Option<UpstreamConnection>,
        mut request: Request<RequestBody>,
        response: &mut Response<B>,
        terms: AttemptTerms<'_>,
    ) -> Result<UpstreamBody, Box<FailedAttempt>> {
        let asks_upgrade = terms.options.asks_upgrade;
        prepare(&mut request, &permit, terms.options);
        loop {
            let was_pooled = pooled.is_some();
            let connected = match pooled.take() {
                Some(connection) => Ok(connection),
                None => {
                    let guard = EndedByTimeout::new(&permit, terms.whole, false);
                    let connected = permit.connect(asks_upgrade).await;
                    std::mem::forget(guard);
                    connected
                }
            };
            let mut connection = match connected {
                Ok(connection) => connection,
                Err(error) => {
                    let mut failed = self.fail(error, &permit, false, terms);
                    failed.request = Some(request);
                    return Err(failed);
                }
            };
            let is_to_blame = request.body().is_end_stream();
            let guard = EndedByTimeout::new(&permit, terms.whole, is_to_blame);
            let exchange = connection.exchange(&mut request, response, terms.exchange(None));
            let exchanged = exchange.await;
            std::mem::forget(guard);
            match exchanged {
                Err(ExchangeError::Unsent(_)) if was_pooled => {}
                Err(ExchangeError::Unsent(error)) => {
                    let is_closing = matches!(error, UpstreamError::Closed(_));
                    let mut failed = self.fail(error, &permit, false, terms);
                    (failed.end, failed.request) = (Some(AttemptEnd::Unsent), Some(request));
                    failed.may_be_same = is_closing && connection.shared().is_some();
                    return Err(failed);
                }
                exchanged => {
                    let is_refused = matches!(exchanged, Err(ExchangeError::Refused(_)));
                    let lease = ResponseLease { connection, permit };
                    let body = self.conclude(exchanged, lease, was_pooled, response, terms);
                    return body.map_err(|mut failed| {
                        failed.request = is_refused.then_some(request).or(failed.request.take());
                        failed
                    });
                }
            }
        }
    }

    /// After [`ExchangeError::Refused`] the caller has the request.
    fn conclude<B>(
        &self,
        exchanged: Result<(), ExchangeError>,
        mut lease: ResponseLease,
        was_pooled: bool,
        response: &Response<B>,
        terms: AttemptTerms<'_>,
    ) -> Result<UpstreamBody, Box<FailedAttempt>> {
        match exchanged {
            Ok(()) => self.accept(response, lease, terms),
            Err(ExchangeError::Refused(error)) => {
                let mut failed = self.fail(error, &lease.permit, false, terms);
                failed.end = Some(AttemptEnd::Unsent);
                failed.refused_on = lease.connection.shared().cloned();
                Err(failed)
            }
            Err(error) => {
                let mut failed = self.fail(error.into(), &lease.permit, was_pooled, terms);
                if terms.is_repeatable {
                    failed.request = lease.connection.take_retry_copy();
                }
                Err(failed)
            }
        }
    }

    /// Judges the server by the head of its response.
    fn accept<B>(
        &self,
        response: &Response<B>,
        lease: ResponseLease,
        terms: AttemptTerms<'_>,
    ) -> Result<UpstreamBody, Box<FailedAttempt>> {
        let ResponseLease {
            mut connection,
            mut permit,
        } = lease;
        let status = response.status();
        permit.note_head();
        permit.avoided = None;
        if let Some(attempts) = &terms.options.attempts {
            attempts.end(Ok(status.as_u16()));
        }
        self.cells.codes.count(status.as_u16());
        permit.server.cells.requests.add(1);
        let judged_by = match terms.options.is_grpc {
            false => Some(status),
            // The client alone cannot make an answer one of gRPC.
            true => grpc_status(response, &self.cells)
                .or_else(|| (!is_grpc(response.headers())).then_some(status)),
        };
        match judged_by {
            Some(status) => permit.judge(status),
            None if connection.is_end_stream() => permit.judge(GrpcStatus::Missing.as_http()),
            None => {}
        }
        let retries = &self.settings().retries;
        let wants_retry = terms.is_repeatable && retries.on.status.contains(status);
        let retry = wants_retry.then(|| (Arc::clone(&permit.server), connection.take_retry_copy()));
        let attempts = terms.options.attempts.as_ref();
        let mut body = UpstreamBody::new(ResponseLease { connection, permit }, status, attempts);
        if judged_by.is_none() {
            body.judge_at_end(&self.cells);
        }
        match retry {
            None => Ok(body),
            Some((server, request)) => Err(Box::new(FailedAttempt {
                end: Some(AttemptEnd::Answered(status)),
                outcome: Ok(body),
                request,
                server,
                may_be_same: false,
                refused_on: None,
            })),
        }
    }

    #[cold]
    fn fail(
        &self,
        error: UpstreamError,
        permit: &ServerPermit,
        was_pooled: bool,
        terms: AttemptTerms<'_>,
    ) -> Box<FailedAttempt> {
        if let Some(attempts) = &terms.options.attempts {
            attempts.end(Err(error.label()));
        }
        let server = &permit.server;
        // A server may give up a request whose client sends no more of its body.
        let is_clients = matches!(error, UpstreamError::Request(_)) || terms.is_client_late();
        server.count_unanswered(&self.cells, !is_clients);
        let (end, kind) = classify(&error, was_pooled);
        if let Some(kind) = kind.filter(|_| !is_clients) {
            server.health.note_failure();
            if permit.fail(kind) {
                // A retry may hide the error from the client, and so from the access log.
                server.health.log_failure(&error.in_full());
            }
        }
        Box::new(FailedAttempt {
            end,
            outcome: Err(error),
            request: None,
            server: Arc::clone(server),
            may_be_same: was_pooled,
            refused_on: None,
        })
    }
}

/// How an attempt with this error ended, and what that says about the server.
fn classify(error: &UpstreamError, was_pooled: bool) -> (Option<AttemptEnd>, Option<FailureKind>) {
    use FailureKind::{Failed, Unreachable};
    match error {
        UpstreamError::Unreachable(_)
        | UpstreamError::ConnectTimedOut
        | UpstreamError::Tls(_)
        | UpstreamError::NoHttp2(_) => (Some(AttemptEnd::Unsent), Some(Unreachable)),
        // A port to another server may be free.
        UpstreamError::OutOfSockets(_) => (Some(AttemptEnd::Unsent), None),
        UpstreamError::TimedOut => (Some(AttemptEnd::TimedOut), Some(Failed)),
        // Servers close idle connections, sometimes just when they are used.
        UpstreamError::Closed(_) if was_pooled => (Some(AttemptEnd::Closed), None),
        UpstreamError::Closed(_) => (Some(AttemptEnd::Closed), Some(Failed)),
        UpstreamError::TlsEnded(_) | UpstreamError::Garbage(_) | UpstreamError::Head(_) => {
            (None, Some(Failed))
        }
        UpstreamError::Request(_)
        | UpstreamError::NoServer
        | UpstreamError::NoneLeft(_)
        | UpstreamError::TooManyConnections
        | UpstreamError::QueuedTooLong => (None, None),
    }
}

impl<'a> AttemptTerms<'a> {
    /// Whether the proxy waits for the client's next piece.
    fn is_client_late(self) -> bool {
        self.body.is_some_and(BodyWatch::waits_for_client)
    }

    fn exchange(self, prerendered: Option<&'a PrerenderedHeaders>) -> ExchangeOptions<'a> {
        ExchangeOptions {
            prerendered,
            keeps_copy: self.is_repeatable,
            asks_upgrade: self.options.asks_upgrade,
        }
    }
}

/// Takes the request out of its place, with all header lines in its map, for several attempts.
fn take_request(
    request: &mut Request<RequestBody>,
    prerendered: Option<&PrerenderedHeaders>,
) -> Request<RequestBody> {
    let mut request = std::mem::take(request);
    if let Some(prerendered) = prerendered {
        prerendered.insert_into(request.headers_mut());
    }
    request
}

fn may_repeat(request: &Request<RequestBody>, rules: &Retries) -> bool {
    let on = &rules.on;
    rules.attempts > 0
        && (on.closed || on.timeout || !on.status.is_empty())
        && is_repeatable(request.method(), !request.body().is_end_stream())
}

/// Makes the request HTTP/1.1, with chunks if the length of its body is unknown.
fn set_framing(request: &mut Request<RequestBody>) {
    *request.version_mut() = Version::HTTP_11;
    if !request.body().is_end_stream() && request.body().size_hint().exact().is_none() {
        let headers = request.headers_mut();
        headers.remove(CONTENT_LENGTH);
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

fn prepare(request: &mut Request<RequestBody>, permit: &ServerPermit, options: &SendOptions) {
    if let Some(host) = permit.host_for(options.has_host) {
        request.headers_mut().insert(HOST, host.clone());
    }
    if let Some(attempts) = &options.attempts
        && let Some(parent) = attempts.begin(&permit.server.place)
    {
        request.headers_mut().insert(TRACEPARENT, parent.value());
    }
}
