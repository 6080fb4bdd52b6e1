//! The trace of one request, while it is under way: where it belongs, and if it is recorded what
//! was decided and tried, made spans of when it has ended.
//!
//! Off, it costs one look at nothing. A span says what the access log says: no query, no header of
//! a client, and of a key the beginning of its hash.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use http::header::HeaderMap;
use http::{Request, Version};

use super::admission::{Admission, Decider};
use super::downstream::Downstream;
use super::headers;
use super::rejection::Rejection;
use crate::clock;
use crate::config::TracingSettings;
use crate::limit::{Charge, Decision, KeyHash, Role};
use crate::route::Route;
use crate::telemetry::attempt_log::{AttemptLog, RecordedAttempt};
use crate::telemetry::metrics::{GrpcStatus, METHODS};
use crate::telemetry::spans::{QueueBounds, SpanKind, SpanQueue, SpanValue, TraceSpan};
use crate::telemetry::watched::truncate_path;
use crate::trace::{Begun, SamplingRules, SpanId, TRACEPARENT, TRACESTATE, TraceId, is_state_fit};

/// As many characters of a key's hash as the log has.
const KEY_CHARACTERS: usize = 8;

/// What one worker traces by.
#[derive(Debug)]
pub struct Tracer {
    rules: SamplingRules,
    room: QueueBounds,
    queue: Arc<SpanQueue>,
}

/// See the file's head.
#[derive(Debug)]
pub struct Trace {
    begun: Begun,
    recorded: Option<Recorded>,
}

/// What is kept of a request that is recorded.
#[derive(Debug)]
struct Recorded {
    room: QueueBounds,
    queue: Arc<SpanQueue>,
    began: Instant,
    began_us: u64,
    version: Version,
    scheme: &'static str,
    /// The pattern of its route's path.
    route: Option<String>,
    /// What was enforced, while it is being decided.
    asked: Option<(Instant, Charge)>,
    decided: Option<(Instant, Judged)>,
    tries: Option<Arc<AttemptLog>>,
}

/// A request that has ended, as its spans tell of it.
#[derive(Clone, Copy, Debug)]
pub struct RequestEnd<'r> {
    /// A place in [`METHODS`].
    pub(super) method: u8,
    /// Without the query.
    pub(super) path: Option<&'r str>,
    pub(super) client: IpAddr,
    /// The route's name.
    pub(super) route: Option<&'r Arc<str>>,
    pub(super) request_id: Option<&'r str>,
    /// As the access log calls it.
    pub(super) outcome: &'static str,
    pub(super) status: u16,
    pub(super) grpc_status: Option<GrpcStatus>,
    pub(super) reason: Option<&'static str>,
    pub(super) body_bytes: u64,
    pub(super) is_truncated: bool,
    /// Whether hashes of keys are shown.
    pub(super) shows_keys: bool,
}

/// What came of a decision.
#[derive(Debug)]
struct Judged {
    allowed: bool,
    source: &'static str,
    /// Of what was asked here; nothing where nobody decided.
    decision: Option<(Charge, Decision)>,
    /// Why the store did not.
    error: Option<&'static str>,
}

impl Tracer {
    pub fn new(settings: &TracingSettings, queue: Arc<SpanQueue>) -> Tracer {
        Tracer {
            rules: settings.rules,
            room: QueueBounds {
                most: settings.queue,
                batch: settings.batch,
            },
            queue,
        }
    }

    /// Begins at a request's arrival.
    pub(super) fn begin<B>(&self, request: &Request<B>, downstream: &Downstream) -> Box<Trace> {
        let begun = self.rules.begin(request.headers(), downstream.trusted);
        let recorded = begun.own.sampled.then(|| Recorded {
            room: self.room,
            queue: Arc::clone(&self.queue),
            began: clock::now(),
            began_us: clock::unix_us(),
            version: request.version(),
            scheme: headers::scheme(request.headers(), downstream.peer()),
            route: None,
            asked: None,
            decided: None,
            tries: None,
        });
        Box::new(Trace { begun, recorded })
    }
}

impl Trace {
    /// Which one it is.
    pub fn id(&self) -> TraceId {
        self.begun.own.trace
    }

    /// Whether spans will be made of it.
    pub fn is_recorded(&self) -> bool {
        self.recorded.is_some()
    }

    /// Its limits are asked now.
    pub(super) fn note_asked(&mut self, route: &Route, charge: &Charge) {
        let Some(recorded) = &mut self.recorded else {
            return;
        };
        recorded.route = Some(route.path.to_string());
        if !charge.is_empty() {
            recorded.asked = Some((clock::now(), charge.clone()));
        }
    }

    /// They have been.
    pub(super) fn note_decided(&mut self, admission: &Admission, outcome: &Result<(), Rejection>) {
        let Some(recorded) = self.recorded.as_mut().filter(|one| one.asked.is_some()) else {
            return;
        };
        let judged = match outcome {
            Ok(()) => match admission.granted() {
                Some(granted) => Judged {
                    allowed: true,
                    source: match granted.by {
                        Decider::Store { .. } => "store",
                        Decider::Local => "local",
                    },
                    decision: Some((
                        granted.decided.charge.clone(),
                        granted.decided.decision.clone(),
                    )),
                    error: None,
                },
                None => Judged {
                    allowed: true,
                    source: "none",
                    decision: None,
                    error: Some("store_away"),
                },
            },
            Err(Rejection::Limited(denial)) => Judged {
                allowed: false,
                source: if denial.alone { "local" } else { "store" },
                decision: Some((denial.charge.clone(), denial.decision.clone())),
                error: None,
            },
            Err(other) => Judged {
                allowed: false,
                source: "none",
                decision: None,
                error: other.reason(),
            },
        };
        recorded.decided = Some((clock::now(), judged));
    }

    /// Names it to the upstream: in the head now, or by each attempt in its own name.
    pub fn send(&mut self, headers: &mut HeaderMap) -> Option<Arc<AttemptLog>> {
        // What belongs to a trace that is not continued says nothing of ours.
        if self.begun.parent.is_none() || !is_state_fit(headers) {
            headers.remove(TRACESTATE);
        }
        headers.insert(TRACEPARENT, self.begun.own.value());
        let recorded = self.recorded.as_mut()?;
        let tries = recorded.tries.insert(AttemptLog::new(self.begun.own));
        Some(Arc::clone(tries))
    }

    /// The request has ended: spans are made of it and of the limits on trial.
    pub(super) fn end(self: Box<Self>, request: &RequestEnd<'_>, trials: Vec<TraceSpan>) {
        let begun = self.begun;
        let Some(recorded) = self.recorded else {
            return;
        };
        let end_us = recorded.time(clock::now());
        let mut spans = Vec::with_capacity(4);
        spans.push(recorded.server(&begun, request, end_us));
        spans.extend(recorded.decision(&begun, request));
        spans.extend(trials);
        if let Some(tries) = &recorded.tries {
            for (number, one) in tries.take().into_iter().enumerate() {
                spans.push(recorded.attempt(&begun, request, number, one));
            }
        }
        recorded.queue.push(spans, recorded.room);
    }

    /// A span for a limit on trial, which nothing waited for.
    pub(super) fn on_trial(
        &self,
        charge: &Charge,
        decision: &Decision,
        show: bool,
    ) -> Option<TraceSpan> {
        let recorded = self.recorded.as_ref()?;
        let role = charge.first().map_or(Role::Shadow, |item| item.role());
        let verdict = if decision.allowed {
            "allowed"
        } else {
            "shadow_denied"
        };
        let mut attributes = vec![
            ("tidegate.verdict", verdict.into()),
            ("tidegate.role", role.word().into()),
            ("tidegate.source", "store".into()),
        ];
        describe(&mut attributes, charge, Some(decision), show);
        let at = recorded
            .decided
            .as_ref()
            .map_or(recorded.began, |(at, _)| *at);
        let at_us = recorded.time(at);
        let times = SpanTimes {
            start_us: at_us,
            end_us: at_us,
        };
        Some(inner(&self.begun, "decide (on trial)", times, attributes))
    }
}

impl Recorded {
    fn server(&self, begun: &Begun, request: &RequestEnd<'_>, end_us: u64) -> TraceSpan {
        let method = method_of(request);
        let mut attributes: Vec<(&'static str, SpanValue)> = vec![
            ("http.request.method", method.into()),
            ("url.scheme", self.scheme.into()),
            (
                "http.response.status_code",
                u64::from(request.status).into(),
            ),
            ("client.address", request.client.to_string().into()),
            ("network.protocol.version", version_of(self.version).into()),
            ("http.response.body.size", request.body_bytes.into()),
            ("tidegate.outcome", request.outcome.into()),
        ];
        if let Some(path) = request.path {
            attributes.push(("url.path", truncate_path(path).into()));
        }
        if let Some(route) = &self.route {
            attributes.push(("http.route", route.clone().into()));
        }
        if let Some(route) = request.route {
            attributes.push(("tidegate.route", route.into()));
        }
        if let Some(id) = request.request_id {
            attributes.push(("tidegate.request_id", id.to_owned().into()));
        }
        let grpc = request.grpc_status;
        attributes.extend(grpc_attributes(grpc));
        let failed = request.status >= 500
            || request.is_truncated
            || grpc.is_some_and(GrpcStatus::is_failure);
        if let Some(reason) = request.reason {
            attributes.push(("tidegate.reason", reason.into()));
        }
        if failed {
            let status = || match grpc {
                Some(status) if request.status < 500 => status.to_string().into(),
                _ => request.status.to_string().into(),
            };
            let kind = request.reason.map_or_else(status, SpanValue::from);
            attributes.push(("error.type", kind));
        }
        TraceSpan {
            own: begun.own,
            parent: begun.parent,
            link: begun.left,
            kind: SpanKind::Server,
            name: match &self.route {
                Some(route) => format!("{method} {route}"),
                None => method.to_owned(),
            },
            start_us: self.began_us,
            end_us,
            attributes,
            failed,
        }
    }

    fn decision(&self, begun: &Begun, request: &RequestEnd<'_>) -> Option<TraceSpan> {
        let (since, charge) = self.asked.as_ref()?;
        let (until, judged) = self.decided.as_ref()?;
        let verdict = if judged.allowed { "allowed" } else { "denied" };
        let mut attributes = vec![
            ("tidegate.verdict", verdict.into()),
            ("tidegate.source", judged.source.into()),
        ];
        let (charge, decision) = match &judged.decision {
            Some((charge, decision)) => (charge, Some(decision)),
            None => (charge, None),
        };
        describe(&mut attributes, charge, decision, request.shows_keys);
        attributes.extend(judged.error.map(|error| ("error.type", error.into())));
        let times = SpanTimes {
            start_us: self.time(*since),
            end_us: self.time(*until),
        };
        let mut span = inner(begun, "decide", times, attributes);
        span.failed = judged.error.is_some();
        Some(span)
    }

    fn attempt(
        &self,
        begun: &Begun,
        request: &RequestEnd<'_>,
        number: usize,
        one: RecordedAttempt,
    ) -> TraceSpan {
        let method = method_of(request);
        let mut attributes: Vec<(&'static str, SpanValue)> = vec![
            ("http.request.method", method.into()),
            ("server.address", one.address.into()),
        ];
        attributes.extend(one.port.map(|port| ("server.port", u64::from(port).into())));
        if number > 0 {
            attributes.push(("http.request.resend_count", (number as u64).into()));
        }
        if let Some(status) = one.status {
            attributes.push(("http.response.status_code", u64::from(status).into()));
        }
        let error = match (one.error, one.status) {
            (Some(error), _) => Some(error.into()),
            (None, Some(status @ 400..)) => Some(status.to_string().into()),
            (None, Some(_)) => None,
            // Nobody waits for it any more.
            (None, None) => Some(request.reason.unwrap_or("cancelled").into()),
        };
        let failed = error.is_some();
        attributes.extend(error.map(|error: SpanValue| ("error.type", error)));
        TraceSpan {
            own: begun.own.with(one.span),
            parent: Some(begun.own.span),
            link: None,
            kind: SpanKind::Client,
            name: method.to_owned(),
            start_us: self.time(one.began),
            end_us: self.time(one.ended.unwrap_or_else(clock::now)),
            attributes,
            failed,
        }
    }

    fn time(&self, at: Instant) -> u64 {
        self.began_us + micros(self.began, at)
    }
}

/// How a call of gRPC ended, as OpenTelemetry names it.
fn grpc_attributes(status: Option<GrpcStatus>) -> Vec<(&'static str, SpanValue)> {
    let Some(status) = status else {
        return Vec::new();
    };
    let system = ("rpc.system", "grpc".into());
    let code = status.code().map(u64::from);
    let code = code.map(|code| ("rpc.grpc.status_code", code.into()));
    [system].into_iter().chain(code).collect()
}

/// What a decision was about: lists of the same order, one entry for each window.
fn describe(
    attributes: &mut Vec<(&'static str, SpanValue)>,
    charge: &Charge,
    decision: Option<&Decision>,
    show: bool,
) {
    let names = charge
        .iter()
        .map(|item| SpanValue::from(&item.window.policy));
    attributes.push(("tidegate.limits", SpanValue::Many(names.collect())));
    let costs = charge.iter().map(|item| SpanValue::from(item.cost));
    attributes.push(("tidegate.cost", SpanValue::Many(costs.collect())));
    if show {
        let keys = charge.iter().map(|item| key(item.tag));
        attributes.push(("tidegate.keys", SpanValue::Many(keys.collect())));
    }
    let Some(decision) = decision else { return };
    attributes.push(("tidegate.decided_at_us", decision.at_us.into()));
    let verdicts = decision.verdicts.iter();
    let left = verdicts.clone().map(|one| SpanValue::from(one.remaining));
    attributes.push(("tidegate.remaining", SpanValue::Many(left.collect())));
    if !decision.allowed {
        let denying = charge
            .iter()
            .zip(verdicts)
            .filter(|(_, one)| one.retry.denies());
        let names = denying.map(|(item, _)| SpanValue::from(&item.window.policy));
        attributes.push(("tidegate.denied_by", SpanValue::Many(names.collect())));
    }
}

fn key(tag: KeyHash) -> SpanValue {
    let text = tag.text();
    String::from_utf8_lossy(&text[..KEY_CHARACTERS])
        .into_owned()
        .into()
}

/// Microseconds since the Unix epoch.
struct SpanTimes {
    start_us: u64,
    end_us: u64,
}

fn inner(
    begun: &Begun,
    name: &str,
    times: SpanTimes,
    attributes: Vec<(&'static str, SpanValue)>,
) -> TraceSpan {
    TraceSpan {
        own: begun.own.with(SpanId::made()),
        parent: Some(begun.own.span),
        link: None,
        kind: SpanKind::Internal,
        name: name.to_owned(),
        start_us: times.start_us,
        end_us: times.end_us,
        attributes,
        failed: false,
    }
}

fn micros(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_micros()).unwrap_or(u64::MAX)
}

/// Methods that nobody knows are one.
fn method_of(request: &RequestEnd<'_>) -> &'static str {
    let known = METHODS.get(usize::from(request.method));
    known
        .filter(|name| **name != "other")
        .copied()
        .unwrap_or("_OTHER")
}

fn version_of(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}
