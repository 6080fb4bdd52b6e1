//! The messages of OTLP that are used here, from `opentelemetry/proto/trace/v1/trace.proto` and its
//! neighbours. Other fields keep their defaults.

use prost::{Message, Oneof};

use crate::telemetry::spans::{SpanKind, SpanValue, TraceSpan};
use tidegate_core::failpoint;

const SCHEMA: &str = "https://opentelemetry.io/schemas/1.37.0";
/// A flag of a span: `IS_REMOTE` is valid.
const HAS_IS_REMOTE: u32 = 0x100;
/// A flag of a span: its parent belongs to another process.
const IS_REMOTE: u32 = 0x200;

#[derive(Clone, PartialEq, Message)]
struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<ScopeSpans>,
    #[prost(string, tag = "3")]
    schema: String,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
    #[prost(string, tag = "3")]
    schema: String,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_ns: u64,
    #[prost(fixed64, tag = "8")]
    end_ns: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "13")]
    links: Vec<Link>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Link {
    #[prost(bytes = "vec", tag = "1")]
    trace: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    /// 2 is an error.
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "AnyValueKind", tags = "1, 3, 5")]
    kind: Option<AnyValueKind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum AnyValueKind {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
    #[prost(message, tag = "5")]
    Many(ArrayValue),
}

#[derive(Clone, PartialEq, Message)]
struct ArrayValue {
    #[prost(message, repeated, tag = "1")]
    values: Vec<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    partial: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    refused: i64,
}

pub(super) fn encode(spans: &[TraceSpan], service: &str) -> Vec<u8> {
    for span in spans {
        failpoint!("otlp.encode", span.name);
    }
    let version = env!("CARGO_PKG_VERSION");
    let attributes = [("service.name", service), ("service.version", version)];
    let attributes = attributes.map(|(name, text)| attribute(name, &text.to_owned().into()));
    let scope = ScopeSpans {
        scope: Some(Scope {
            name: "tidegate".to_owned(),
            version: version.to_owned(),
        }),
        spans: spans.iter().map(convert_span).collect(),
        schema: SCHEMA.to_owned(),
    };
    let resource = ResourceSpans {
        resource: Some(Resource {
            attributes: attributes.to_vec(),
        }),
        scopes: vec![scope],
        schema: SCHEMA.to_owned(),
    };
    let resources = vec![resource];
    ExportRequest { resources }.encode_to_vec()
}

/// The number of spans that the collector refused. A malformed response counts as none.
pub(super) fn refused_spans(response: &[u8]) -> u64 {
    let response = ExportResponse::decode(response).unwrap_or_default();
    let refused = response.partial.map_or(0, |partial| partial.refused);
    u64::try_from(refused).unwrap_or(0)
}

fn convert_span(span: &TraceSpan) -> Span {
    let is_remote = span.kind == SpanKind::Server && span.parent.is_some();
    let attributes = span.attributes.iter();
    Span {
        trace: span.own.trace.0.to_vec(),
        span: span.own.span.0.to_vec(),
        parent: span.parent.map_or_else(Vec::new, |span| span.0.to_vec()),
        name: span.name.clone(),
        kind: match span.kind {
            SpanKind::Internal => 1,
            SpanKind::Server => 2,
            SpanKind::Client => 3,
        },
        start_ns: span.start_us.saturating_mul(1000),
        end_ns: span.end_us.saturating_mul(1000),
        attributes: attributes
            .map(|(name, value)| attribute(name, value))
            .collect(),
        links: Vec::from_iter(span.link.as_ref().map(|to| Link {
            trace: to.trace.0.to_vec(),
            span: to.span.0.to_vec(),
        })),
        status: span.failed.then_some(Status { code: 2 }),
        flags: 1 | HAS_IS_REMOTE | if is_remote { IS_REMOTE } else { 0 },
    }
}

fn attribute(name: &str, value: &SpanValue) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(convert_value(value)),
    }
}

fn convert_value(value: &SpanValue) -> AnyValue {
    let kind = Some(match value {
        SpanValue::Text(text) => AnyValueKind::Text(text.clone().into_owned()),
        SpanValue::Name(name) => AnyValueKind::Text(name.to_string()),
        SpanValue::Number(number) => AnyValueKind::Number(*number),
        SpanValue::Many(values) => AnyValueKind::Many(ArrayValue {
            values: values.iter().map(convert_value).collect(),
        }),
    });
    AnyValue { kind }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_read_and_nonsense_is_nothing() {
        // partial_success { rejected_spans: 3, error_message: "no" }
        assert_eq!(refused_spans(b"\x0a\x06\x08\x03\x12\x02no"), 3);
        assert_eq!(refused_spans(b""), 0);
        assert_eq!(refused_spans(b"<html>"), 0);
    }
}
