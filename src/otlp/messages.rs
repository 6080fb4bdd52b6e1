//! The messages of OTLP that are spoken here: what `opentelemetry/proto/trace/v1/trace.proto` and
//! its neighbours say, as far as it is used. Fields that are not here are at their defaults.

use prost::{Message, Oneof};

use crate::telemetry::spans::{self, Kind};

/// The conventions that attributes are named by.
const SCHEMA: &str = "https://opentelemetry.io/schemas/1.37.0";
/// In a span's flags: whether its parent is another process's is said,
const SAYS_REMOTE: u32 = 0x100;
/// and that it is.
const IS_REMOTE: u32 = 0x200;

#[derive(Clone, PartialEq, Message)]
struct Request {
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
    #[prost(oneof = "One", tags = "1, 3, 5")]
    one: Option<One>,
}

#[derive(Clone, PartialEq, Oneof)]
enum One {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
    #[prost(message, tag = "5")]
    Many(Many),
}

#[derive(Clone, PartialEq, Message)]
struct Many {
    #[prost(message, repeated, tag = "1")]
    values: Vec<AnyValue>,
}

/// What a collector answers.
#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(message, optional, tag = "1")]
    partial: Option<Partial>,
}

#[derive(Clone, PartialEq, Message)]
struct Partial {
    #[prost(int64, tag = "1")]
    refused: i64,
}

/// The request that exports these spans of `service`.
pub(super) fn encode(spans: &[spans::Span], service: &str) -> Vec<u8> {
    for span in spans {
        failpoint!("otlp.encode", span.name);
    }
    let version = env!("CARGO_PKG_VERSION");
    let resource = [("service.name", service), ("service.version", version)];
    let resource = resource.map(|(name, text)| attribute(name, &text.to_owned().into()));
    let scope = ScopeSpans {
        scope: Some(Scope {
            name: "tidegate".to_owned(),
            version: version.to_owned(),
        }),
        spans: spans.iter().map(span).collect(),
        schema: SCHEMA.to_owned(),
    };
    let spans = ResourceSpans {
        resource: Some(Resource {
            attributes: resource.to_vec(),
        }),
        scopes: vec![scope],
        schema: SCHEMA.to_owned(),
    };
    let request = Request {
        resources: vec![spans],
    };
    request.encode_to_vec()
}

/// How many spans a collector's answer says that it did not take. What cannot be read says nothing.
pub(super) fn refused(answer: &[u8]) -> u64 {
    let answer = Response::decode(answer).unwrap_or_default();
    let refused = answer.partial.map_or(0, |partial| partial.refused);
    u64::try_from(refused).unwrap_or(0)
}

fn span(span: &spans::Span) -> Span {
    let remote = span.kind == Kind::Server && span.parent.is_some();
    let attributes = span.attributes.iter();
    Span {
        trace: span.own.trace.0.to_vec(),
        span: span.own.span.0.to_vec(),
        parent: span.parent.map_or_else(Vec::new, |span| span.0.to_vec()),
        name: span.name.clone(),
        kind: match span.kind {
            Kind::Internal => 1,
            Kind::Server => 2,
            Kind::Client => 3,
        },
        start_ns: span.start_us.saturating_mul(1000),
        end_ns: span.end_us.saturating_mul(1000),
        attributes: attributes
            .map(|(name, value)| attribute(name, value))
            .collect(),
        links: span.link.iter().map(link).collect(),
        status: span.failed.then_some(Status { code: 2 }),
        flags: 1 | SAYS_REMOTE | if remote { IS_REMOTE } else { 0 },
    }
}

fn link(to: &crate::trace::TraceContext) -> Link {
    Link {
        trace: to.trace.0.to_vec(),
        span: to.span.0.to_vec(),
    }
}

fn attribute(name: &str, value: &spans::Value) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(any(value)),
    }
}

fn any(value: &spans::Value) -> AnyValue {
    let one = match value {
        spans::Value::Text(text) => One::Text(text.clone().into_owned()),
        spans::Value::Name(name) => One::Text(name.to_string()),
        spans::Value::Number(number) => One::Number(*number),
        spans::Value::Many(values) => One::Many(Many {
            values: values.iter().map(any).collect(),
        }),
    };
    AnyValue { one: Some(one) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_read_and_nonsense_is_nothing() {
        // partial_success { rejected_spans: 3, error_message: "no" }
        assert_eq!(refused(b"\x0a\x06\x08\x03\x12\x02no"), 3);
        assert_eq!(refused(b""), 0);
        assert_eq!(refused(b"<html>"), 0);
    }
}
