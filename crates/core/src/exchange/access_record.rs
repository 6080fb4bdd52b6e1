//! The facts of a request for its line in the access log, its metrics and its spans.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};
use smallvec::SmallVec;

use super::grpc::{Call, is_grpc};
use super::named_lines::NamedLines;
use super::request_id::RequestId;
use super::shadow::ShadowChecks;
use super::traced::Trace;
use crate::clock;
use crate::limit::{Decided, DeniedKey, KeyHash, Retry};
use crate::route::template::{LimitResult, SentResponse};
use crate::telemetry::access::{Buffer, LoggedUsage, Outcome, UpstreamFailure};
use crate::telemetry::door::Door;
use crate::telemetry::metrics::method_of;
use crate::telemetry::spans::AttemptLog;
use crate::telemetry::watched::DeniedRequest;

/// The status in the access log of a request without a response, as nginx has it.
pub const CLIENT_LEFT: u16 = 499;

/// The facts of one request. Nothing is formatted before the request ends.
#[derive(Debug)]
pub struct AccessRecord {
    /// `None` if neither a line nor a span needs it.
    pub(super) head: Option<RecordedHead>,
    pub(super) log: Buffer,
    pub(super) show_keys: bool,
    /// When the head was complete.
    pub began: Instant,
    /// The number of the request on its connection, from 1 on.
    pub(super) connection_requests: u32,
    /// A place in `METHODS`.
    pub method: u8,
    pub client: IpAddr,
    pub route: Option<Arc<str>>,
    /// `usize::MAX` without a route.
    pub route_number: usize,
    pub outcome: Outcome,
    pub status: u16,
    pub reason: Option<&'static str>,
    pub failure: Option<Box<UpstreamFailure>>,
    /// Where a proxy asked for this decision; `None` for a request that came here.
    pub door: Option<Door>,
    /// The tokens of a request to a model server.
    pub usage: Option<Box<LoggedUsage>>,
    pub request_id: Option<RequestId>,
    /// Whether the client speaks gRPC, which needs HTTP/2.
    pub grpc: bool,
    /// Set when a gRPC call has the head of its response.
    pub call: Option<Box<Call>>,
    pub(super) denied_by: SmallVec<[(Arc<str>, Option<DeniedKey>); 1]>,
    pub shadow: Option<Box<ShadowChecks>>,
    /// `None` if the route has no logs of its own.
    pub(super) named: Option<Box<NamedLines>>,
    /// `None` if requests are not traced.
    pub trace: Option<Box<Trace>>,
    /// Whether the access log gets a line.
    pub(super) to_write: bool,
    /// Bytes of the response's body.
    pub(super) bytes: u64,
    /// The announced length of the response's body, bytes.
    pub(super) expected: Option<u64>,
    /// Whether the upstream's response ended too early.
    pub(super) is_truncated: bool,
    /// How long a limit held the request.
    pub delayed: Duration,
    /// What the limits decided that are not in shadow mode; `None` if none was asked.
    pub(super) limit_status: Option<LimitResult>,
}

#[derive(Debug)]
pub(super) struct RecordedHead {
    /// The arrival, microseconds since the Unix epoch.
    pub(super) unix_us: u64,
    pub(super) method: Method,
    pub(super) uri: Uri,
    /// `Host`, if the line has it; the authority of `uri` wins.
    host: Option<HeaderValue>,
    pub(super) version: Version,
}

impl RecordedHead {
    fn from_request<B>(request: &Request<B>, began: Instant, log: &Buffer) -> RecordedHead {
        let host = request.headers().get(HOST);
        RecordedHead {
            unix_us: clock::unix_us_at(began),
            method: request.method().clone(),
            uri: request.uri().clone(),
            host: host.filter(|_| log.has_hosts()).cloned(),
            version: request.version(),
        }
    }

    /// The host that the client asked for, as it was sent.
    pub(super) fn host(&self) -> Option<&str> {
        match self.uri.authority() {
            Some(authority) => Some(authority.as_str()),
            None => self.host.as_ref()?.to_str().ok(),
        }
    }
}

impl AccessRecord {
    pub fn begin<B>(
        request: &Request<B>,
        client: IpAddr,
        log: &Buffer,
        show_keys: bool,
    ) -> AccessRecord {
        let began = clock::now();
        AccessRecord {
            head: (!log.is_off()).then(|| RecordedHead::from_request(request, began, log)),
            log: log.clone(),
            show_keys,
            began,
            connection_requests: 0,
            method: method_of(request.method()),
            client,
            route: None,
            route_number: usize::MAX,
            outcome: Outcome::Unlimited,
            status: 0,
            reason: None,
            failure: None,
            door: None,
            usage: None,
            request_id: None,
            grpc: request.version() == Version::HTTP_2 && is_grpc(request.headers()),
            call: None,
            denied_by: SmallVec::new(),
            shadow: None,
            named: None,
            trace: None,
            to_write: false,
            bytes: 0,
            expected: None,
            is_truncated: false,
            delayed: Duration::ZERO,
            limit_status: None,
        }
    }

    /// The rest of `timeout`, which runs from the end of the head. `None` without a timeout.
    pub fn time_left(&self, timeout: Option<Duration>) -> Option<Duration> {
        let past = || clock::now().saturating_duration_since(self.began);
        timeout.map(|timeout| timeout.saturating_sub(past()))
    }

    #[cold]
    pub(super) fn set_trace<B>(&mut self, trace: Box<Trace>, request: &Request<B>) {
        if trace.is_recorded() && self.head.is_none() {
            self.head = Some(RecordedHead::from_request(request, self.began, &self.log));
        }
        self.trace = Some(trace);
    }

    /// Decides by the outcome whether the access log gets a line. Call it once.
    pub fn choose_line(&mut self) {
        self.to_write = self.log.wants(self.outcome);
    }

    /// Whether the record must live until the response or its tunnel ends.
    pub fn is_wanted(&self) -> bool {
        let traced = self.trace.as_ref();
        let recorded = traced.is_some_and(|trace| trace.is_recorded());
        let has_checks = self.shadow.is_some() || self.call.is_some();
        self.to_write || has_checks || recorded || self.named.is_some()
    }

    /// Notes that the request was admitted, and whether a limit decided that.
    pub fn note_admission(&mut self, limited: bool) {
        (self.outcome, self.limit_status) = match limited {
            true => (Outcome::Allowed, Some(LimitResult::Passed)),
            false => (Outcome::Unlimited, None),
        };
    }

    /// Notes that a limit held the request, which passes now.
    pub fn note_delay(&mut self, waited: Duration) {
        self.delayed = waited;
        self.limit_status = Some(LimitResult::Delayed);
    }

    /// What the limits decided, with those in shadow mode whose decisions have come by now.
    pub(super) fn limit_status(&mut self) -> Option<LimitResult> {
        let of_shadow = self.shadow.as_mut().and_then(|one| one.limit_status());
        self.limit_status.max(of_shadow)
    }

    /// Notes the limits that denied the request, and its keys.
    pub fn note_denial(&mut self, decided: Decided<'_>) {
        for result in decided.results() {
            if result.verdict.retry != Retry::Now {
                let check = result.check;
                let plain = check.asker.as_ref().and_then(|asker| asker.key.as_ref());
                self.note_denier(&check.limit.name, check.tag, plain);
            }
        }
    }

    /// The request, for operators who watch denials.
    pub(super) fn denied_request<'r>(
        &'r self,
        method: &'r Method,
        uri: &'r Uri,
    ) -> DeniedRequest<'r> {
        DeniedRequest {
            client: self.client,
            method,
            path: uri.path(),
            route: self.route.as_deref().unwrap_or_default(),
            door: self.door,
            id: self.request_id.as_ref().map_or("", RequestId::as_str),
        }
    }

    /// Notes a limit or a block that denied the request. `plain` is the key in the clear.
    pub fn note_denier(&mut self, name: &Arc<str>, tag: KeyHash, plain: Option<&Arc<str>>) {
        if self.head.is_some() {
            let key = self.show_keys.then(|| match plain {
                Some(plain) => DeniedKey::Plain(Arc::clone(plain)),
                None => DeniedKey::Hash(tag),
            });
            self.denied_by.push((Arc::clone(name), key));
        }
    }

    /// Whether the access log gets a line if the response ends too early.
    pub fn logs_truncation(&self) -> bool {
        self.head.is_some() && !self.log.is_off()
    }

    /// Notes the announced length of the response's body, bytes.
    pub fn expect_bytes(&mut self, expected: Option<u64>) {
        self.expected = expected;
    }

    /// Notes that the response ended too early, and the server that is at fault. The access log
    /// always gets a line then.
    #[cold]
    pub fn note_truncated(&mut self, reason: &'static str, failure: Option<UpstreamFailure>) {
        self.is_truncated = true;
        self.reason = Some(reason);
        self.failure = failure.map(Box::new);
        self.to_write = self.logs_truncation();
    }

    /// Notes that the client left before the head of the response.
    #[cold]
    pub fn note_client_left(&mut self) {
        self.status = CLIENT_LEFT;
        self.reason = Some("client_left");
        self.choose_line();
    }

    /// Notes that the proxy could not finish the request, because of a bug.
    #[cold]
    pub fn note_panic(&mut self) {
        self.status = 500;
        self.reason = Some("panic");
        self.choose_line();
    }

    pub fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Chooses the log of the attempts to send the request. `kept` is one that others need.
    pub fn keep_attempts(&mut self, kept: Option<Arc<AttemptLog>>) -> Option<Arc<AttemptLog>> {
        match &mut self.named {
            Some(named) => named.keep_attempts(kept),
            None => kept,
        }
    }

    pub fn note_headers(&mut self, headers: &HeaderMap) {
        if let Some(named) = &mut self.named {
            named.note_headers(headers);
        }
    }

    /// Adds bytes that the client was sent, with heads and chunk framing.
    pub fn add_sent(&mut self, bytes: usize) {
        if let Some(named) = &mut self.named {
            named.add_sent(bytes);
        }
    }

    /// Writes the lines in the logs of the route. Later calls do nothing.
    pub(super) fn write_named(&mut self) {
        if let Some(named) = self.named.take() {
            let sent = SentResponse {
                status: self.status,
                bytes: self.bytes,
                body_bytes: self.bytes,
                limit_status: self.limit_status(),
            };
            named.write(&self.log, self.began, sent);
        }
    }
}
