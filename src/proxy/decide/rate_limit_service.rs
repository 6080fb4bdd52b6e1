//! Envoy's rate limit service: a call as a message, and its answer as a message.

use std::borrow::Cow;
use std::str;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use serde_json::{Map, Value};
use smallvec::SmallVec;

use super::Caller;
use super::grpc::{self, CallCode, RpcError};
use super::messages::{
    DescriptorMessage, DurationMessage, EntryMessage, HeaderMessage, LimitMessage, LimitOverride,
    OverallCode, RateLimitRequest, RateLimitResponse, RateUnit, StatusMessage, StructMessage,
    count_fields,
};
use crate::body::RequestBody;
use crate::config::MAX_ENTRIES;
use crate::limit::Rate;
use crate::proxy::body::Body;
use crate::proxy::{Exchange, Proxy};
use crate::telemetry::metrics::{DecideCode, Door};
use tidegate_core::exchange::rate_limit_call::{
    CallAnswer, CallDescriptor, DescriptorEntry, DescriptorStatus, Hits, RateLimitCall, StatusLimit,
};

impl Proxy {
    /// Answers a call over gRPC. A message that is too long is a denial: Envoy may let a request
    /// pass whose call has an error, and a client can make a message long.
    pub(super) async fn answer_rls(
        &self,
        asked: &mut Request<RequestBody>,
        caller: &Caller<'_>,
    ) -> Result<Response<Body>, RpcError> {
        let settings = caller.settings;
        let answered = match grpc::read_message(asked.body_mut(), settings.max_message).await {
            Ok(bytes) => match RateLimitRequest::read(bytes, settings.max_descriptors) {
                Ok(message) => self.answer_call(Door::Rls, &message, asked, caller).await,
                Err(error) => Err(error),
            },
            Err(error) if error.code == CallCode::ResourceExhausted => {
                self.count_question(Door::Rls, DecideCode::Error, caller);
                return Ok(grpc::answer(&RateLimitResponse::refusal()));
            }
            Err(error) => Err(error),
        };
        if answered.is_err() {
            self.count_question(Door::Rls, DecideCode::Error, caller);
        }
        Ok(grpc::answer(&answered?))
    }

    /// Decides a call, whatever the form of its message. Errors are not counted here.
    pub(super) async fn answer_call(
        &self,
        door: Door,
        message: &RateLimitRequest,
        asked: &mut Request<RequestBody>,
        caller: &Caller<'_>,
    ) -> Result<RateLimitResponse, RpcError> {
        let call = message.call(caller.timeout, caller.settings.max_descriptors)?;
        if caller.has_left() {
            let message = "the deadline has passed";
            return Err(RpcError::new(CallCode::DeadlineExceeded, message));
        }
        let peer = self.stages.described(caller.peer.arrival.clone());
        let mut response = Response::new(Bytes::new());
        let mut exchange = self.stages.begin(asked, &mut response, &peer);
        exchange.record.door = Some(door);
        let deciding = self.stages.decide_call(&mut exchange, &call, caller.since);
        let answer = deciding.await;
        let Exchange {
            response,
            mut record,
            ..
        } = exchange;
        record.status = response.status().as_u16();
        self.meter().count_outcome(record.outcome);
        record.choose_line();
        if record.is_wanted() {
            record.write();
        }
        let code = match answer.is_over {
            true => DecideCode::OverLimit,
            false => DecideCode::Ok,
        };
        self.count_question(door, code, caller);
        Ok(RateLimitResponse::new(call.domain, answer))
    }
}

impl RateLimitRequest {
    /// Decodes a call. Its fields are counted first, so that a short message takes no more memory
    /// than `max_descriptors` allows.
    pub(super) fn read(bytes: Bytes, max_descriptors: usize) -> Result<RateLimitRequest, RpcError> {
        let count = |path: &[u32]| count_fields(&bytes, path).ok_or_else(grpc::not_a_message);
        if count(&[2])? > max_descriptors {
            return Err(too_many_descriptors(max_descriptors));
        }
        if count(&[2, 1])? > max_descriptors * MAX_ENTRIES {
            return Err(too_many_entries());
        }
        let mut request: RateLimitRequest = grpc::decode(bytes)?;
        request.replace_odd_values();
        Ok(request)
    }

    /// Replaces what is not UTF-8 in the values of entries. Clients choose them, and must not make
    /// the call an error.
    pub(super) fn replace_odd_values(&mut self) {
        let descriptors = self.descriptors.iter_mut();
        for entry in descriptors.flat_map(|one| &mut one.entries) {
            if let Cow::Owned(text) = String::from_utf8_lossy(&entry.value) {
                entry.value = text.into();
            }
        }
    }

    /// Checks the message, and describes the call.
    pub(super) fn call(
        &self,
        timeout: Option<Duration>,
        max_descriptors: usize,
    ) -> Result<RateLimitCall<'_>, RpcError> {
        if self.domain.is_empty() {
            return Err(RpcError::invalid("the domain is empty"));
        }
        if self.descriptors.is_empty() {
            return Err(RpcError::invalid("there is no descriptor"));
        }
        if self.descriptors.len() > max_descriptors {
            return Err(too_many_descriptors(max_descriptors));
        }
        // 0 is the value of a field that is not sent.
        let hits = u64::from(self.hits_addend.max(1));
        let descriptors = self.descriptors.iter().map(|one| one.describe(hits));
        Ok(RateLimitCall {
            domain: text(&self.domain)?,
            descriptors: descriptors.collect::<Result<_, _>>()?,
            timeout,
        })
    }
}

fn too_many_descriptors(most: usize) -> RpcError {
    RpcError::invalid(format!("more than {most} descriptors"))
}

fn too_many_entries() -> RpcError {
    RpcError::invalid(format!("a descriptor has more than {MAX_ENTRIES} entries"))
}

fn text(bytes: &Bytes) -> Result<&str, RpcError> {
    str::from_utf8(bytes).map_err(|_| RpcError::invalid("a text is not UTF-8"))
}

impl DescriptorMessage {
    /// `hits` is for a descriptor without units of its own.
    fn describe(&self, hits: u64) -> Result<CallDescriptor<'_>, RpcError> {
        if self.entries.is_empty() {
            return Err(RpcError::invalid("a descriptor has no entry"));
        }
        if self.entries.len() > MAX_ENTRIES {
            return Err(too_many_entries());
        }
        let entries: Result<SmallVec<[_; 4]>, _> =
            self.entries.iter().map(EntryMessage::read).collect();
        let units = self.hits_addend.unwrap_or(hits);
        Ok(CallDescriptor {
            entries: entries?,
            hits: match self.is_negative_hits {
                true => Hits::Refund(units),
                false => Hits::Charge(units),
            },
            has_own_hits: self.hits_addend.is_some(),
            limit: self.limit.and_then(LimitOverride::rate),
        })
    }
}

impl EntryMessage {
    fn read(&self) -> Result<DescriptorEntry<'_>, RpcError> {
        if self.key.is_empty() {
            return Err(RpcError::invalid("an entry has no key"));
        }
        Ok(DescriptorEntry {
            key: text(&self.key)?,
            value: text(&self.value)?,
        })
    }
}

impl LimitOverride {
    /// `None` for an unknown unit.
    fn rate(self) -> Option<Rate> {
        Some(Rate::sliding(
            u64::from(self.requests_per_unit),
            self.unit().window_us()?,
        ))
    }
}

impl RateLimitResponse {
    pub(super) fn is_over(&self) -> bool {
        self.overall_code() == OverallCode::OverLimit
    }

    /// The answer to a call that is denied without a decision.
    fn refusal() -> RateLimitResponse {
        RateLimitResponse {
            overall_code: code(true),
            ..RateLimitResponse::default()
        }
    }

    /// The answer to a call of this domain.
    pub(super) fn new(domain: &str, answer: CallAnswer) -> RateLimitResponse {
        RateLimitResponse {
            overall_code: code(answer.is_over),
            statuses: answer
                .statuses
                .iter()
                .map(StatusMessage::from_status)
                .collect(),
            response_headers_to_add: headers(&answer.headers, answer.is_over),
            raw_body: answer.body,
            dynamic_metadata: answer
                .metadata
                .map(|tables| StructMessage::from_map(&metadata(domain, tables))),
        }
    }
}

fn code(is_over: bool) -> i32 {
    match is_over {
        true => OverallCode::OverLimit.into(),
        false => OverallCode::Ok.into(),
    }
}

fn metadata(domain: &str, tables: Map<String, Value>) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("domain".to_owned(), Value::from(domain));
    map.insert("metadata".to_owned(), Value::Object(tables));
    map
}

/// The headers for the client. Envoy would replace the type of the upstream's content by that of an
/// answer that allows.
fn headers(map: &HeaderMap, is_over: bool) -> Vec<HeaderMessage> {
    let lines = map.iter();
    let lines = lines.filter(|(name, _)| is_over || **name != CONTENT_TYPE);
    lines
        .map(|(name, value)| HeaderMessage::new(name, value))
        .collect()
}

impl HeaderMessage {
    pub(super) fn new(name: &HeaderName, value: &HeaderValue) -> HeaderMessage {
        HeaderMessage {
            key: Bytes::copy_from_slice(name.as_str().as_bytes()),
            value: Bytes::copy_from_slice(value.as_bytes()),
            raw_value: Bytes::new(),
        }
    }
}

impl StatusMessage {
    fn from_status(status: &DescriptorStatus) -> StatusMessage {
        let seconds = |seconds: u64| DurationMessage {
            seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        StatusMessage {
            code: code(status.is_over),
            current_limit: status.limit.as_ref().map(LimitMessage::from_limit),
            limit_remaining: status.remaining,
            duration_until_reset: status.reset_s.map(seconds),
        }
    }
}

impl LimitMessage {
    fn from_limit(limit: &StatusLimit) -> LimitMessage {
        LimitMessage {
            requests_per_unit: limit.units,
            unit: RateUnit::of_window(limit.window_us, limit.calendar).into(),
            name: limit.name.to_string(),
        }
    }
}
