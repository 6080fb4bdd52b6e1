//! The messages of Envoy's services, as far as they are read or written. Their fields have the
//! numbers of Envoy's API.
//!
//! A received string is a part of the buffer that was read, so that an entry takes no memory of its
//! own. A map has the form of a list on the wire, and is read as one.

use bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{Message, Oneof};
use serde_json::{Map, Value};

use crate::limit::CalendarUnit;

/// `envoy.service.ratelimit.v3.RateLimitRequest`
#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) domain: Bytes,
    #[prost(message, repeated, tag = "2")]
    pub(super) descriptors: Vec<DescriptorMessage>,
    #[prost(uint32, tag = "3")]
    pub(super) hits_addend: u32,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`
#[derive(Clone, PartialEq, Message)]
pub(super) struct DescriptorMessage {
    #[prost(message, repeated, tag = "1")]
    pub(super) entries: Vec<EntryMessage>,
    #[prost(message, optional, tag = "2")]
    pub(super) limit: Option<LimitOverride>,
    /// A `google.protobuf.UInt64Value`.
    #[prost(message, optional, tag = "3")]
    pub(super) hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    pub(super) is_negative_hits: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EntryMessage {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride`
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct LimitOverride {
    #[prost(uint32, tag = "1")]
    pub(super) requests_per_unit: u32,
    #[prost(enumeration = "RateUnit", tag = "2")]
    pub(super) unit: i32,
}

/// `envoy.type.v3.RateLimitUnit`, and `RateLimitResponse.RateLimit.Unit`, which has weeks too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
pub(super) enum RateUnit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

impl RateUnit {
    const ALL: [RateUnit; 8] = [
        RateUnit::Unknown,
        RateUnit::Second,
        RateUnit::Minute,
        RateUnit::Hour,
        RateUnit::Day,
        RateUnit::Week,
        RateUnit::Month,
        RateUnit::Year,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            RateUnit::Unknown => "UNKNOWN",
            RateUnit::Second => "SECOND",
            RateUnit::Minute => "MINUTE",
            RateUnit::Hour => "HOUR",
            RateUnit::Day => "DAY",
            RateUnit::Week => "WEEK",
            RateUnit::Month => "MONTH",
            RateUnit::Year => "YEAR",
        }
    }

    /// The window of this unit, microseconds.
    pub(super) fn window_us(self) -> Option<u64> {
        const HOUR_US: u64 = 3_600_000_000;
        Some(match self {
            RateUnit::Unknown => return None,
            RateUnit::Second => 1_000_000,
            RateUnit::Minute => 60_000_000,
            RateUnit::Hour => HOUR_US,
            RateUnit::Day => 24 * HOUR_US,
            RateUnit::Week => 7 * 24 * HOUR_US,
            RateUnit::Month => 30 * 24 * HOUR_US,
            RateUnit::Year => 365 * 24 * HOUR_US,
        })
    }

    pub(super) fn named(name: &str) -> Option<RateUnit> {
        let mut all = RateUnit::ALL.into_iter();
        all.find(|unit| unit.name() == name)
    }

    /// The unit of this window; `Unknown` if no unit has its length.
    pub(super) fn of_window(window_us: u64, calendar: Option<CalendarUnit>) -> RateUnit {
        if let Some(unit) = calendar {
            return match unit {
                CalendarUnit::Day => RateUnit::Day,
                CalendarUnit::Week => RateUnit::Week,
                CalendarUnit::Month => RateUnit::Month,
                CalendarUnit::Year => RateUnit::Year,
            };
        }
        let mut all = RateUnit::ALL.into_iter();
        let found = all.find(|unit| unit.window_us() == Some(window_us));
        found.unwrap_or(RateUnit::Unknown)
    }
}

/// `envoy.service.ratelimit.v3.RateLimitResponse`
#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitResponse {
    #[prost(enumeration = "OverallCode", tag = "1")]
    pub(super) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(super) statuses: Vec<StatusMessage>,
    #[prost(message, repeated, tag = "3")]
    pub(super) response_headers_to_add: Vec<HeaderMessage>,
    #[prost(bytes = "bytes", tag = "5")]
    pub(super) raw_body: Bytes,
    #[prost(message, optional, tag = "6")]
    pub(super) dynamic_metadata: Option<StructMessage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
pub(super) enum OverallCode {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

impl OverallCode {
    pub(super) fn name(self) -> &'static str {
        match self {
            OverallCode::Unknown => "UNKNOWN",
            OverallCode::Ok => "OK",
            OverallCode::OverLimit => "OVER_LIMIT",
        }
    }
}

/// `RateLimitResponse.DescriptorStatus`
#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusMessage {
    #[prost(enumeration = "OverallCode", tag = "1")]
    pub(super) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) current_limit: Option<LimitMessage>,
    #[prost(uint32, tag = "3")]
    pub(super) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(super) duration_until_reset: Option<DurationMessage>,
}

/// `RateLimitResponse.RateLimit`
#[derive(Clone, PartialEq, Message)]
pub(super) struct LimitMessage {
    #[prost(uint32, tag = "1")]
    pub(super) requests_per_unit: u32,
    #[prost(enumeration = "RateUnit", tag = "2")]
    pub(super) unit: i32,
    #[prost(string, tag = "3")]
    pub(super) name: String,
}

/// `google.protobuf.Duration`, in whole seconds.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct DurationMessage {
    #[prost(int64, tag = "1")]
    pub(super) seconds: i64,
}

/// `envoy.config.core.v3.HeaderValue`
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderMessage {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
    /// The value, if it is no UTF-8.
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) raw_value: Bytes,
}

impl HeaderMessage {
    pub(super) fn bytes(&self) -> &[u8] {
        match self.raw_value.is_empty() {
            true => &self.value,
            false => &self.raw_value,
        }
    }
}

/// `google.protobuf.Struct`
#[derive(Clone, PartialEq, Message)]
pub(super) struct StructMessage {
    #[prost(message, repeated, tag = "1")]
    pub(super) fields: Vec<FieldMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct FieldMessage {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<ValueMessage>,
}

/// `google.protobuf.Value`
#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueMessage {
    #[prost(oneof = "ValueOf", tags = "1, 2, 3, 4, 5, 6")]
    pub(super) of: Option<ValueOf>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum ValueOf {
    /// Always 0.
    #[prost(int32, tag = "1")]
    Null(i32),
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(bool, tag = "4")]
    Bool(bool),
    #[prost(message, tag = "5")]
    Struct(StructMessage),
    #[prost(message, tag = "6")]
    List(ListMessage),
}

/// `google.protobuf.ListValue`
#[derive(Clone, PartialEq, Message)]
pub(super) struct ListMessage {
    #[prost(message, repeated, tag = "1")]
    values: Vec<ValueMessage>,
}

impl StructMessage {
    pub(super) fn from_map(map: &Map<String, Value>) -> StructMessage {
        let field = |(key, value): (&String, &Value)| FieldMessage {
            key: key.clone(),
            value: Some(ValueMessage::from_json(value)),
        };
        StructMessage {
            fields: map.iter().map(field).collect(),
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let field = |field: &FieldMessage| {
            let value = field.value.as_ref();
            let value = value.map_or(Value::Null, ValueMessage::to_json);
            (field.key.clone(), value)
        };
        self.fields.iter().map(field).collect()
    }
}

impl ValueMessage {
    fn from_json(value: &Value) -> ValueMessage {
        let of = match value {
            Value::Null => ValueOf::Null(0),
            Value::Bool(is) => ValueOf::Bool(*is),
            Value::Number(number) => ValueOf::Number(number.as_f64().unwrap_or_default()),
            Value::String(text) => ValueOf::Text(text.clone()),
            Value::Object(map) => ValueOf::Struct(StructMessage::from_map(map)),
            Value::Array(values) => ValueOf::List(ListMessage {
                values: values.iter().map(ValueMessage::from_json).collect(),
            }),
        };
        ValueMessage { of: Some(of) }
    }

    fn to_json(&self) -> Value {
        match &self.of {
            None | Some(ValueOf::Null(_)) => Value::Null,
            Some(ValueOf::Bool(is)) => Value::Bool(*is),
            Some(ValueOf::Number(number)) => Value::from(*number),
            Some(ValueOf::Text(text)) => Value::String(text.clone()),
            Some(ValueOf::Struct(map)) => map.to_json(),
            Some(ValueOf::List(list)) => list.values.iter().map(ValueMessage::to_json).collect(),
        }
    }
}

/// `envoy.service.auth.v3.CheckRequest`
#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) attributes: Option<AttributesMessage>,
}

/// `envoy.service.auth.v3.AttributeContext`
#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributesMessage {
    #[prost(message, optional, tag = "1")]
    pub(super) source: Option<PeerMessage>,
    #[prost(message, optional, tag = "4")]
    pub(super) request: Option<RequestMessage>,
}

/// `AttributeContext.Peer`
#[derive(Clone, PartialEq, Message)]
pub(super) struct PeerMessage {
    #[prost(message, optional, tag = "1")]
    pub(super) address: Option<AddressMessage>,
}

/// `envoy.config.core.v3.Address`
#[derive(Clone, PartialEq, Message)]
pub(super) struct AddressMessage {
    #[prost(message, optional, tag = "1")]
    pub(super) socket_address: Option<SocketAddressMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SocketAddressMessage {
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) address: Bytes,
}

/// `AttributeContext.Request`
#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestMessage {
    #[prost(message, optional, tag = "2")]
    pub(super) http: Option<HttpRequestMessage>,
}

/// `AttributeContext.HttpRequest`
#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpRequestMessage {
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) method: Bytes,
    /// The lines of one header are joined.
    #[prost(message, repeated, tag = "3")]
    pub(super) headers: Vec<HeaderMessage>,
    #[prost(bytes = "bytes", tag = "4")]
    pub(super) path: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    pub(super) host: Bytes,
    #[prost(bytes = "bytes", tag = "6")]
    pub(super) scheme: Bytes,
    /// In place of `headers`, if Envoy has `encode_raw_headers`.
    #[prost(message, optional, tag = "13")]
    pub(super) header_map: Option<HeaderMapMessage>,
}

/// `envoy.config.core.v3.HeaderMap`
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderMapMessage {
    #[prost(message, repeated, tag = "1")]
    pub(super) headers: Vec<HeaderMessage>,
}

/// `envoy.service.auth.v3.CheckResponse`
#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<RpcStatusMessage>,
    #[prost(oneof = "HttpResponseMessage", tags = "2, 3")]
    pub(super) http_response: Option<HttpResponseMessage>,
}

/// `google.rpc.Status`
#[derive(Clone, PartialEq, Message)]
pub(super) struct RpcStatusMessage {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum HttpResponseMessage {
    #[prost(message, tag = "2")]
    Denied(DeniedMessage),
    #[prost(message, tag = "3")]
    Ok(OkMessage),
}

/// `envoy.service.auth.v3.DeniedHttpResponse`
#[derive(Clone, PartialEq, Message)]
pub(super) struct DeniedMessage {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<HttpStatusMessage>,
    #[prost(message, repeated, tag = "2")]
    pub(super) headers: Vec<HeaderOptionMessage>,
    /// UTF-8.
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) body: Bytes,
}

/// `envoy.type.v3.HttpStatus`
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct HttpStatusMessage {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
}

/// `envoy.service.auth.v3.OkHttpResponse`
#[derive(Clone, PartialEq, Message)]
pub(super) struct OkMessage {
    #[prost(message, repeated, tag = "6")]
    pub(super) response_headers_to_add: Vec<HeaderOptionMessage>,
}

/// `envoy.config.core.v3.HeaderValueOption`
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderOptionMessage {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<HeaderMessage>,
    /// A `google.protobuf.BoolValue`.
    #[prost(message, optional, tag = "2")]
    pub(super) append: Option<bool>,
    #[prost(enumeration = "AppendAction", tag = "3")]
    pub(super) append_action: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
pub(super) enum AppendAction {
    AppendIfExistsOrAdd = 0,
    OverwriteIfExistsOrAdd = 2,
}

/// Counts the fields at a path of field numbers, before anything is decoded: a field of two bytes
/// takes many more in memory. `None` if the bytes are no message.
pub(super) fn count_fields(mut bytes: &[u8], path: &[u32]) -> Option<usize> {
    let [field, inner @ ..] = path else {
        return Some(1);
    };
    let mut count = 0;
    while bytes.has_remaining() {
        let (number, wire_type) = decode_key(&mut bytes).ok()?;
        if number != *field || wire_type != WireType::LengthDelimited {
            skip_field(wire_type, number, &mut bytes, DecodeContext::default()).ok()?;
            continue;
        }
        let length = usize::try_from(decode_varint(&mut bytes).ok()?).ok()?;
        let (content, rest) = bytes.split_at_checked(length)?;
        count += count_fields(content, inner)?;
        bytes = rest;
    }
    Some(count)
}
