//! What is remembered of a request for its line in the access log, while it is under way.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Method, Request, Uri, Version};
use smallvec::SmallVec;

use super::grpc::{Call, is_grpc};
use super::request_id::RequestId;
use super::shadow::ShadowChecks;
use super::traced::{RequestEnd, Trace};
use crate::clock;
use crate::limit::{Decided, DeniedKey, KeyHash, Retry};
use crate::telemetry::access::{AccessEntry, Buffer, MissingBytes, Outcome, TRUNCATED};
use crate::telemetry::metrics::method_of;
use crate::telemetry::watched::DeniedRequest;

/// A line to be. It is cheap to carry: nothing is formatted before it is known to be wanted.
#[derive(Debug)]
pub struct AccessRecord {
    /// Nothing where no line will be written.
    head: Option<RecordedHead>,
    log: Buffer,
    show_keys: bool,
    /// When its head was whole.
    pub began: Instant,
    /// Its method, as it is counted.
    pub method: u8,
    pub client: IpAddr,
    pub route: Option<Arc<str>>,
    /// Its route's number, beyond all of them for none.
    pub route_number: usize,
    pub outcome: Outcome,
    pub status: u16,
    pub reason: Option<&'static str>,
    pub request_id: Option<RequestId>,
    /// Whether its client speaks gRPC, which nobody does below HTTP/2.
    pub grpc: bool,
    /// The call, once a gRPC client has the head of its answer.
    pub call: Option<Box<Call>>,
    denied_by: SmallVec<[(Arc<str>, Option<DeniedKey>); 1]>,
    /// Limits on trial, until their decisions are wanted.
    pub shadow: Option<Box<ShadowChecks>>,
    /// Where it belongs, while requests are traced.
    pub trace: Option<Box<Trace>>,
    /// Whether it will be written.
    to_write: bool,
    bytes: u64,
    /// Bytes that its answer's body should have, where that is known.
    expected: Option<u64>,
    /// Whether the upstream's answer ended before its end.
    is_truncated: bool,
}

/// What a line says of its request's head.
#[derive(Debug)]
struct RecordedHead {
    /// When it came, microseconds since the Unix epoch.
    unix_us: u64,
    method: Method,
    uri: Uri,
}

impl RecordedHead {
    fn of<B>(request: &Request<B>, began: Instant) -> RecordedHead {
        RecordedHead {
            unix_us: clock::unix_us_at(began),
            method: request.method().clone(),
            uri: request.uri().clone(),
        }
    }
}

impl AccessRecord {
    /// Begins at a request's arrival.
    pub fn begin<B>(
        request: &Request<B>,
        client: IpAddr,
        log: &Buffer,
        show_keys: bool,
    ) -> AccessRecord {
        let began = clock::now();
        AccessRecord {
            head: (!log.is_off()).then(|| RecordedHead::of(request, began)),
            log: log.clone(),
            show_keys,
            began,
            method: method_of(request.method()),
            client,
            route: None,
            route_number: usize::MAX,
            outcome: Outcome::Unlimited,
            status: 0,
            reason: None,
            request_id: None,
            grpc: request.version() == Version::HTTP_2 && is_grpc(request.headers()),
            call: None,
            denied_by: SmallVec::new(),
            shadow: None,
            trace: None,
            to_write: false,
            bytes: 0,
            expected: None,
            is_truncated: false,
        }
    }

    /// The request belongs to a trace.
    #[cold]
    pub(super) fn belongs<B>(&mut self, trace: Box<Trace>, request: &Request<B>) {
        if trace.is_recorded() && self.head.is_none() {
            self.head = Some(RecordedHead::of(request, self.began));
        }
        self.trace = Some(trace);
    }

    /// Decides whether it will be written, by what has become of the request so far. Once.
    pub fn decide(&mut self) {
        self.to_write = self.log.wants(self.outcome);
    }

    /// Whether it is to be kept until the response has ended.
    pub fn is_wanted(&self) -> bool {
        let traced = self.trace.as_ref();
        let recorded = traced.is_some_and(|trace| trace.is_recorded());
        self.to_write || self.shadow.is_some() || self.call.is_some() || recorded
    }

    /// Notes that the request was let through, and whether a limit was asked.
    pub fn note_admission(&mut self, limited: bool) {
        self.outcome = if limited {
            Outcome::Allowed
        } else {
            Outcome::Unlimited
        };
    }

    /// Notes which limits denied, and whom.
    pub fn note_denial(&mut self, decided: Decided<'_>) {
        for result in decided.results() {
            if result.verdict.retry != Retry::Now {
                let check = result.check;
                let plain = check.asker.as_ref().and_then(|asker| asker.key.as_ref());
                self.note_denier(&check.limit.name, check.tag, plain);
            }
        }
    }

    /// The request as operators see it who watch denials.
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
            id: self.request_id.as_ref().map_or("", RequestId::as_str),
        }
    }

    /// Notes who denied, and whom: by the key as it is where it is known.
    pub fn note_denier(&mut self, name: &Arc<str>, tag: KeyHash, plain: Option<&Arc<str>>) {
        if self.head.is_some() {
            let key = self.show_keys.then(|| match plain {
                Some(plain) => DeniedKey::Plain(Arc::clone(plain)),
                None => DeniedKey::Hash(tag),
            });
            self.denied_by.push((Arc::clone(name), key));
        }
    }

    /// Whether it will be written should the answer end before its end.
    pub fn tells_truncation(&self) -> bool {
        self.head.is_some() && !self.log.is_off()
    }

    /// Notes how many bytes the answer's body has if it is whole.
    pub fn expect_bytes(&mut self, expected: Option<u64>) {
        self.expected = expected;
    }

    /// Notes that the answer ended before its end, and why. Such a line is always written.
    #[cold]
    pub fn note_truncated(&mut self, reason: &'static str) {
        self.is_truncated = true;
        self.reason = Some(reason);
        self.to_write = self.tells_truncation();
    }

    pub fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Looks at the shadow' decisions, and writes it.
    pub fn write(mut self) {
        let shadow = self.shadow.take();
        let trace = self.trace.take();
        let mut trials = Vec::new();
        let would_deny = shadow.map(|mut shadow| {
            let names = shadow.would_deny(self.log.shadow());
            if let Some(head) = self.head.as_ref().filter(|_| !names.is_empty()) {
                shadow.note_denials(self.denied_request(&head.method, &head.uri));
            }
            if let Some(trace) = trace.as_ref().filter(|trace| trace.is_recorded()) {
                trials = shadow.spans(trace, self.show_keys);
            }
            names
        });
        if let Some(head) = self.head.as_ref().filter(|_| self.to_write) {
            self.write_entry(head, would_deny.as_deref(), trace.as_deref());
        }
        if let Some(trace) = trace {
            trace.end(&self.end(), trials);
        }
    }

    fn end(&self) -> RequestEnd<'_> {
        RequestEnd {
            method: self.method,
            path: self.head.as_ref().map(|head| head.uri.path()),
            client: self.client,
            route: self.route.as_ref(),
            request_id: self.request_id.as_ref().map(RequestId::as_str),
            outcome: match self.is_truncated {
                true => TRUNCATED,
                false => self.outcome.word(),
            },
            status: self.status,
            grpc_status: self.call.as_ref().and_then(|call| call.status()),
            reason: self.reason,
            body_bytes: self.bytes,
            is_truncated: self.is_truncated,
            shows_keys: self.show_keys,
        }
    }

    fn write_entry(
        &self,
        head: &RecordedHead,
        would_deny: Option<&[Arc<str>]>,
        trace: Option<&Trace>,
    ) {
        self.log.record(&AccessEntry {
            unix_us: head.unix_us,
            duration: Duration::from_micros(clock::unix_us().saturating_sub(head.unix_us)),
            client: self.client,
            method: &head.method,
            path: head.uri.path(),
            status: self.status,
            bytes: self.bytes,
            truncated: self.is_truncated.then_some(MissingBytes {
                expected: self.expected,
            }),
            route: self.route.as_deref(),
            outcome: self.outcome,
            denied_by: &self.denied_by,
            would_deny: would_deny.unwrap_or_default(),
            reason: self.reason,
            grpc_status: self.call.as_ref().and_then(|call| call.status()),
            request_id: self.request_id.as_ref().map(RequestId::as_str),
            trace_id: trace.map(Trace::id),
        });
    }
}
