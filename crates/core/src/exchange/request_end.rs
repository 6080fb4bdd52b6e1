//! The end of a request: its line in the access log, and its spans.
//!
//! A span has the facts of the access log. It has no query and no header value of a client. Of a
//! key it has the beginning of the hash.

use std::sync::Arc;

use http::Version;

use super::access_record::{AccessRecord, RecordedHead};
use super::changes::protocol_text;
use super::request_id::RequestId;
use super::shadow::ShadowChecks;
use super::traced::{Attributes, Recorded, Trace};
use crate::clock;
use crate::telemetry::access::{AccessEntry, MissingBytes, TRUNCATED};
use crate::telemetry::metrics::{GrpcStatus, METHODS};
use crate::telemetry::spans::{RecordedAttempt, SpanKind, SpanValue, TraceSpan};
use crate::telemetry::watched::truncate_path;
use crate::trace::Begun;

impl AccessRecord {
    /// Counts the shadow decisions, writes the lines of the logs, and makes the spans.
    /// Call it once.
    pub fn write(&mut self) {
        self.write_named();
        let trace = self.trace.take();
        let mut would_deny = Vec::new();
        let mut shadow_spans = Vec::new();
        if let Some(mut shadow) = self.shadow.take() {
            would_deny = self.count_shadow(&mut shadow);
            if let Some(trace) = trace.as_ref().filter(|trace| trace.is_recorded()) {
                shadow_spans = shadow.spans(trace, self.show_keys);
            }
        }
        if let Some(head) = self.head.as_ref().filter(|_| self.to_write) {
            self.write_entry(head, &would_deny, trace.as_deref());
        }
        if let Some(Trace {
            begun,
            recorded: Some(recorded),
        }) = trace.map(|trace| *trace)
        {
            self.push_spans(&begun, &recorded, shadow_spans);
        }
    }

    /// Returns the limits that would deny the request.
    fn count_shadow(&self, shadow: &mut ShadowChecks) -> Vec<Arc<str>> {
        let would_deny = shadow.count_decisions(self.log.shadow());
        if let Some(head) = self.head.as_ref().filter(|_| !would_deny.is_empty()) {
            shadow.note_denials(self.denied_request(&head.method, &head.uri));
        }
        would_deny
    }

    fn write_entry(&self, head: &RecordedHead, would_deny: &[Arc<str>], trace: Option<&Trace>) {
        self.log.record(&AccessEntry {
            unix_us: head.unix_us,
            duration: clock::now().saturating_duration_since(self.began),
            client: self.client,
            method: &head.method,
            host: head.host(),
            path: head.uri.path(),
            protocol: protocol_text(head.version),
            status: self.status,
            bytes: self.bytes,
            truncated: self.is_truncated.then_some(MissingBytes {
                expected: self.expected,
            }),
            route: self.route.as_deref(),
            door: self.door,
            outcome: self.outcome,
            denied_by: &self.denied_by,
            would_deny,
            reason: self.reason,
            delayed: self.delayed,
            failure: self.failure.as_deref(),
            grpc_status: self.grpc_status(),
            usage: self.usage.as_deref(),
            request_id: self.request_id.as_ref().map(RequestId::as_str),
            trace_id: trace.map(Trace::id),
        });
    }

    fn grpc_status(&self) -> Option<GrpcStatus> {
        self.call.as_ref().and_then(|call| call.status())
    }

    fn push_spans(&self, begun: &Begun, recorded: &Recorded, shadow_spans: Vec<TraceSpan>) {
        let mut spans = Vec::with_capacity(4);
        spans.push(self.server_span(begun, recorded));
        spans.extend(recorded.decision_span(begun, self.show_keys));
        spans.extend(shadow_spans);
        let attempts = recorded.attempts.as_ref().map(|attempts| attempts.take());
        for (number, attempt) in attempts.into_iter().flatten().enumerate() {
            spans.push(self.attempt_span(begun, recorded, number, attempt));
        }
        recorded.queue.push(spans, recorded.bounds);
    }

    fn server_span(&self, begun: &Begun, recorded: &Recorded) -> TraceSpan {
        let method = method_name(self.method);
        let outcome = match self.is_truncated {
            true => TRUNCATED,
            false => self.outcome.word(),
        };
        let status = self.status;
        let mut attributes: Attributes = vec![
            ("http.request.method", method.into()),
            ("url.scheme", recorded.scheme.into()),
            ("http.response.status_code", u64::from(status).into()),
            ("client.address", self.client.to_string().into()),
            (
                "network.protocol.version",
                version_text(recorded.version).into(),
            ),
            ("http.response.body.size", self.bytes.into()),
            ("tidegate.outcome", outcome.into()),
        ];
        let mut add = |name, value: Option<SpanValue>| {
            attributes.extend(value.map(|value| (name, value)));
        };
        let head = self.head.as_ref();
        add(
            "url.path",
            head.map(|head| truncate_path(head.uri.path()).into()),
        );
        add("http.route", recorded.route.clone().map(SpanValue::from));
        add("tidegate.route", self.route.as_ref().map(SpanValue::from));
        add("tidegate.door", self.door.map(|door| door.word().into()));
        let id = self.request_id.as_ref();
        add(
            "tidegate.request_id",
            id.map(|id| id.as_str().to_owned().into()),
        );
        let grpc = self.grpc_status();
        add("rpc.system", grpc.map(|_| "grpc".into()));
        let code = grpc.and_then(GrpcStatus::code);
        add(
            "rpc.grpc.status_code",
            code.map(|code| u64::from(code).into()),
        );
        add("tidegate.reason", self.reason.map(SpanValue::from));
        let delayed_ms = u64::try_from(self.delayed.as_millis()).unwrap_or(u64::MAX);
        let is_delayed = !self.delayed.is_zero();
        add("tidegate.delayed_ms", is_delayed.then(|| delayed_ms.into()));
        let failed = status >= 500 || self.is_truncated || grpc.is_some_and(GrpcStatus::is_failure);
        let error = || match (self.reason, grpc) {
            (Some(reason), _) => reason.into(),
            (None, Some(grpc)) if status < 500 => grpc.to_string().into(),
            (None, _) => status.to_string().into(),
        };
        add("error.type", failed.then(error));
        TraceSpan {
            own: begun.own,
            parent: begun.parent,
            link: begun.left,
            kind: SpanKind::Server,
            name: match &recorded.route {
                Some(route) => format!("{method} {route}"),
                None => method.to_owned(),
            },
            start_us: recorded.began_us,
            end_us: recorded.time_us(clock::now()),
            attributes,
            failed,
        }
    }

    fn attempt_span(
        &self,
        begun: &Begun,
        recorded: &Recorded,
        number: usize,
        attempt: RecordedAttempt,
    ) -> TraceSpan {
        let method = method_name(self.method);
        let mut attributes: Attributes = vec![
            ("http.request.method", method.into()),
            ("server.address", attempt.address.into()),
        ];
        let mut add = |name, value: Option<SpanValue>| {
            attributes.extend(value.map(|value| (name, value)));
        };
        add(
            "server.port",
            attempt.port.map(|port| u64::from(port).into()),
        );
        let resent = (number > 0).then_some(number as u64);
        add("http.request.resend_count", resent.map(SpanValue::from));
        add(
            "http.response.status_code",
            attempt.status.map(|status| u64::from(status).into()),
        );
        let error: Option<SpanValue> = match (attempt.error, attempt.status) {
            (Some(error), _) => Some(error.into()),
            (None, Some(status @ 400..)) => Some(status.to_string().into()),
            (None, Some(_)) => None,
            // The client has left.
            (None, None) => Some(self.reason.unwrap_or("cancelled").into()),
        };
        let failed = error.is_some();
        add("error.type", error);
        TraceSpan {
            own: begun.own.with(attempt.span),
            parent: Some(begun.own.span),
            link: None,
            kind: SpanKind::Client,
            name: method.to_owned(),
            start_us: recorded.time_us(attempt.began),
            end_us: recorded.time_us(attempt.ended.unwrap_or_else(clock::now)),
            attributes,
            failed,
        }
    }
}

fn method_name(method: u8) -> &'static str {
    match METHODS.get(usize::from(method)) {
        Some(&name) if name != "other" => name,
        _ => "_OTHER",
    }
}

fn version_text(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}
