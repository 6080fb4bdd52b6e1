//! The trace of one request until it ends. A recorded request also has the times of its decision
//! and of its attempts.

use std::sync::Arc;
use std::time::Instant;

use http::header::HeaderMap;
use http::{Request, Version};

use super::admit::{Admission, Decider};
use super::downstream::Downstream;
use super::rejection::Rejection;
use crate::clock;
use crate::config::TracingSettings;
use crate::limit::{Charge, Decided, Decision, KeyHash, Role};
use crate::route::Route;
use crate::telemetry::spans::{AttemptLog, QueueBounds, SpanKind, SpanQueue, SpanValue, TraceSpan};
use crate::trace::{Begun, SamplingRules, SpanId, TRACEPARENT, TRACESTATE, TraceId, is_state_fit};

/// Characters of a key's hash, as in the access log.
const KEY_CHARACTERS: usize = 8;

/// The attributes of a span.
pub(super) type Attributes = Vec<(&'static str, SpanValue)>;

/// One worker's rules and queue.
#[derive(Debug)]
pub struct Tracer {
    rules: SamplingRules,
    bounds: QueueBounds,
    queue: Arc<SpanQueue>,
}

#[derive(Debug)]
pub struct Trace {
    pub(super) begun: Begun,
    pub(super) recorded: Option<Recorded>,
}

/// The facts of a request that is recorded.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) bounds: QueueBounds,
    pub(super) queue: Arc<SpanQueue>,
    began: Instant,
    pub(super) began_us: u64,
    pub(super) version: Version,
    pub(super) scheme: &'static str,
    /// The pattern of the route's path.
    pub(super) route: Option<String>,
    pub(super) decision: Option<RecordedDecision>,
    pub(super) attempts: Option<Arc<AttemptLog>>,
}

/// A decision on the enforced checks.
#[derive(Debug)]
pub(super) struct RecordedDecision {
    began: Instant,
    /// The checks; only those that were decided, once there is a decision.
    charge: Charge,
    ended: Option<Instant>,
    allowed: bool,
    /// `store`, `local`, or `none` if nothing decided.
    source: &'static str,
    decision: Option<Decision>,
    /// Why there is no decision.
    error: Option<&'static str>,
}

impl Tracer {
    pub fn new(settings: &TracingSettings, queue: Arc<SpanQueue>) -> Tracer {
        Tracer {
            rules: settings.rules,
            bounds: QueueBounds {
                most: settings.queue,
                batch: settings.batch,
            },
            queue,
        }
    }

    pub(super) fn begin<B>(&self, request: &Request<B>, downstream: &Downstream) -> Box<Trace> {
        let begun = self.rules.begin(request.headers(), downstream.trusted);
        let recorded = begun.own.sampled.then(|| Recorded {
            bounds: self.bounds,
            queue: Arc::clone(&self.queue),
            began: clock::now(),
            began_us: clock::unix_us(),
            version: request.version(),
            scheme: downstream.scheme(request.headers()).as_str(),
            route: None,
            decision: None,
            attempts: None,
        });
        Box::new(Trace { begun, recorded })
    }
}

impl Trace {
    pub fn id(&self) -> TraceId {
        self.begun.own.trace
    }

    pub fn is_recorded(&self) -> bool {
        self.recorded.is_some()
    }

    /// Notes the start of the decision.
    pub(super) fn start_decision(&mut self, route: &Route, charge: &Charge) {
        let Some(recorded) = &mut self.recorded else {
            return;
        };
        recorded.route = Some(route.path.to_string());
        if !charge.is_empty() {
            recorded.decision = Some(RecordedDecision {
                began: clock::now(),
                charge: charge.clone(),
                ended: None,
                allowed: false,
                source: "none",
                decision: None,
                error: None,
            });
        }
    }

    /// Notes the end of the decision.
    pub(super) fn end_decision(&mut self, admission: &Admission, outcome: &Result<(), Rejection>) {
        let recorded = self.recorded.as_mut();
        let Some(one) = recorded.and_then(|recorded| recorded.decision.as_mut()) else {
            return;
        };
        one.ended = Some(clock::now());
        one.allowed = outcome.is_ok();
        let (decided, is_local) = match outcome {
            Ok(()) => {
                let is_local = matches!(admission.decider, Some(Decider::Local));
                (admission.granted(), is_local)
            }
            Err(Rejection::Limited(denial)) => (Some(denial.decided()), denial.is_local),
            Err(_) => (None, false),
        };
        if let Some(decided) = decided {
            one.charge = decided.charge.clone();
            one.decision = Some(decided.decision.clone());
            one.source = if is_local { "local" } else { "store" };
        } else {
            one.error = match outcome {
                Ok(()) => Some("store_away"),
                Err(rejection) => rejection.reason(),
            };
        }
    }

    /// Writes the trace into a request to the upstream. Returns the log in which each attempt gets
    /// its own span, if the request is recorded.
    pub fn send(&mut self, headers: &mut HeaderMap) -> Option<Arc<AttemptLog>> {
        // The state belongs to the sender's trace, which may not be continued.
        if self.begun.parent.is_none() || !is_state_fit(headers) {
            headers.remove(TRACESTATE);
        }
        headers.insert(TRACEPARENT, self.begun.own.value());
        let recorded = self.recorded.as_mut()?;
        let attempts = recorded
            .attempts
            .insert(AttemptLog::new(Some(self.begun.own)));
        Some(Arc::clone(attempts))
    }

    /// A span for a shadow check, for which nothing waited.
    pub(super) fn shadow_span(&self, decided: Decided<'_>, show_keys: bool) -> Option<TraceSpan> {
        let recorded = self.recorded.as_ref()?;
        let Decided { charge, decision } = decided;
        let role = charge.first().map_or(Role::Shadow, |check| check.role());
        let verdict = match decision.allowed {
            true => "allowed",
            false => "shadow_denied",
        };
        let mut attributes = vec![
            ("tidegate.verdict", verdict.into()),
            ("tidegate.role", role.word().into()),
            ("tidegate.source", "store".into()),
        ];
        describe(&mut attributes, charge, Some(decision), show_keys);
        let ended = recorded.decision.as_ref().and_then(|one| one.ended);
        let at = ended.unwrap_or(recorded.began);
        let span = internal_span(&self.begun, "decide (on trial)", attributes);
        Some(recorded.timed(span, at, at))
    }
}

impl Recorded {
    /// A span for the decision.
    pub(super) fn decision_span(&self, begun: &Begun, show_keys: bool) -> Option<TraceSpan> {
        let one = self.decision.as_ref()?;
        let verdict = if one.allowed { "allowed" } else { "denied" };
        let mut attributes = vec![
            ("tidegate.verdict", verdict.into()),
            ("tidegate.source", one.source.into()),
        ];
        let decision = one.decision.as_ref();
        describe(&mut attributes, &one.charge, decision, show_keys);
        attributes.extend(one.error.map(|error| ("error.type", error.into())));
        let mut span = internal_span(begun, "decide", attributes);
        span.failed = one.error.is_some();
        Some(self.timed(span, one.began, one.ended?))
    }

    fn timed(&self, span: TraceSpan, start: Instant, end: Instant) -> TraceSpan {
        TraceSpan {
            start_us: self.time_us(start),
            end_us: self.time_us(end),
            ..span
        }
    }

    /// Microseconds since the Unix epoch.
    pub(super) fn time_us(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began).as_micros();
        self.began_us + u64::try_from(since).unwrap_or(u64::MAX)
    }
}

/// Adds the facts of a decision: lists of the same order, one entry for each window.
fn describe(
    attributes: &mut Attributes,
    charge: &Charge,
    decision: Option<&Decision>,
    show_keys: bool,
) {
    let mut add = |name, values: Vec<SpanValue>| attributes.push((name, SpanValue::Many(values)));
    let checks = || charge.iter();
    let policies = checks().map(|check| SpanValue::from(&check.window.policy));
    add("tidegate.limits", policies.collect());
    let costs = checks().map(|check| SpanValue::from(check.cost));
    add("tidegate.cost", costs.collect());
    if show_keys {
        let keys = checks().map(|check| short_hash(check.tag));
        add("tidegate.keys", keys.collect());
    }
    let Some(decision) = decision else { return };
    let remaining = decision.verdicts.iter().map(|one| one.remaining.into());
    add("tidegate.remaining", remaining.collect());
    if !decision.allowed {
        let denying = Decided { charge, decision }.denying();
        let policies = denying.map(|result| SpanValue::from(&result.check.window.policy));
        add("tidegate.denied_by", policies.collect());
    }
    attributes.push(("tidegate.decided_at_us", decision.at_us.into()));
}

fn short_hash(tag: KeyHash) -> SpanValue {
    let text = tag.text();
    let text = String::from_utf8_lossy(&text[..KEY_CHARACTERS]);
    text.into_owned().into()
}

/// A span of the proxy's own work, without times.
fn internal_span(begun: &Begun, name: &str, attributes: Attributes) -> TraceSpan {
    TraceSpan {
        own: begun.own.with(SpanId::made()),
        parent: Some(begun.own.span),
        link: None,
        kind: SpanKind::Internal,
        name: name.to_owned(),
        start_us: 0,
        end_us: 0,
        attributes,
        failed: false,
    }
}
