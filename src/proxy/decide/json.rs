//! The rate limit service without gRPC: the messages in protobuf's JSON ("ProtoJSON Format").
//!
//! A field has the spelling of the `.proto` file or lowerCamelCase. A number may be a text. `null`
//! is the default. Unknown fields are refused.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::grpc::{self, CallCode, RpcError};
use super::messages::{
    DescriptorMessage, EntryMessage, HeaderMessage, LimitMessage, LimitOverride, RateLimitRequest,
    RateLimitResponse, RateUnit, StatusMessage,
};
use super::{Caller, refuse};
use crate::body::RequestBody;
use crate::proxy::Proxy;
use crate::proxy::body::Body;
use crate::telemetry::metrics::{DecideCode, Door};

impl Proxy {
    pub(super) async fn answer_json(
        &self,
        asked: &mut Request<RequestBody>,
        response: &mut Response<Body>,
        caller: &Caller<'_>,
    ) {
        match self.answer_text(asked, caller).await {
            Ok(answer) => {
                let json = HeaderValue::from_static("application/json");
                response.headers_mut().insert(CONTENT_TYPE, json);
                if answer.is_over() {
                    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                }
                *response.body_mut() = Body::made(answer.to_json().to_string().into());
            }
            Err(Refused { status, why }) => {
                self.count_question(Door::Json, DecideCode::Error, caller);
                refuse(response, status, &format!("{why}\n"));
            }
        }
    }

    async fn answer_text(
        &self,
        asked: &mut Request<RequestBody>,
        caller: &Caller<'_>,
    ) -> Result<RateLimitResponse, Refused> {
        if asked.method() != Method::POST {
            return Err(Refused {
                status: StatusCode::METHOD_NOT_ALLOWED,
                why: "send the message with POST".to_owned(),
            });
        }
        let text = read(asked.body_mut(), caller.settings.max_message).await?;
        let message = RateLimitRequest::of_json(&text)?;
        Ok(self
            .answer_call(Door::Json, &message, asked, caller)
            .await?)
    }
}

struct Refused {
    status: StatusCode,
    why: String,
}

impl From<RpcError> for Refused {
    fn from(error: RpcError) -> Refused {
        Refused {
            status: match error.code {
                CallCode::DeadlineExceeded => StatusCode::REQUEST_TIMEOUT,
                CallCode::ResourceExhausted => StatusCode::PAYLOAD_TOO_LARGE,
                _ => StatusCode::BAD_REQUEST,
            },
            why: error.message.into_owned(),
        }
    }
}

async fn read(body: &mut RequestBody, most: usize) -> Result<Bytes, RpcError> {
    body.limit(most as u64);
    let read = body.collect().await;
    let read = read.map_err(|error| grpc::read_error(error, most))?;
    Ok(read.to_bytes())
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct CallJson {
    #[serde(deserialize_with = "or_default")]
    domain: String,
    #[serde(deserialize_with = "or_default")]
    descriptors: Vec<DescriptorJson>,
    #[serde(alias = "hitsAddend", deserialize_with = "number_or_default")]
    hits_addend: u32,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DescriptorJson {
    #[serde(deserialize_with = "or_default")]
    entries: Vec<EntryJson>,
    limit: Option<LimitJson>,
    #[serde(alias = "hitsAddend", deserialize_with = "optional_number")]
    hits_addend: Option<u64>,
    #[serde(alias = "isNegativeHits", deserialize_with = "or_default")]
    is_negative_hits: bool,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EntryJson {
    #[serde(deserialize_with = "or_default")]
    key: String,
    #[serde(deserialize_with = "or_default")]
    value: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LimitJson {
    #[serde(alias = "requestsPerUnit", deserialize_with = "number_or_default")]
    requests_per_unit: u32,
    #[serde(deserialize_with = "unit")]
    unit: i32,
}

fn or_default<'d, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'d>,
    T: Default + Deserialize<'d>,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

fn optional_number<'d, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'d>,
    T: TryFrom<u64>,
{
    let value = Value::deserialize(from)?;
    let number = match &value {
        Value::Null => return Ok(None),
        Value::String(text) => text.parse().ok(),
        value => whole(value),
    };
    let number = number.and_then(|number: u64| T::try_from(number).ok());
    let number = number.ok_or_else(|| D::Error::custom(format!("{value} is no such number")))?;
    Ok(Some(number))
}

/// A whole number. `1.0` is one too.
fn whole(value: &Value) -> Option<u64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let float = || {
        value
            .as_f64()
            .filter(|n| n.fract() == 0.0 && (0.0..EXACT).contains(n))
    };
    value
        .as_u64()
        .or_else(|| float().map(|number| number as u64))
}

fn number_or_default<'d, D: Deserializer<'d>>(from: D) -> Result<u32, D::Error> {
    Ok(optional_number(from)?.unwrap_or_default())
}

/// The name or the number of a unit.
fn unit<'d, D: Deserializer<'d>>(from: D) -> Result<i32, D::Error> {
    let value = Value::deserialize(from)?;
    let unit = match &value {
        Value::Null => Some(RateUnit::Unknown.into()),
        Value::String(name) => RateUnit::named(name).map(i32::from),
        value => whole(value).and_then(|number| i32::try_from(number).ok()),
    };
    unit.ok_or_else(|| D::Error::custom(format!("{value} is no unit")))
}

impl RateLimitRequest {
    pub(super) fn of_json(text: &[u8]) -> Result<RateLimitRequest, RpcError> {
        let read: Result<CallJson, _> = serde_json::from_slice(text);
        let read = read.map_err(|error| RpcError::invalid(error.to_string()))?;
        Ok(RateLimitRequest {
            domain: read.domain.into(),
            descriptors: read
                .descriptors
                .into_iter()
                .map(DescriptorJson::message)
                .collect(),
            hits_addend: read.hits_addend,
        })
    }
}

impl DescriptorJson {
    fn message(self) -> DescriptorMessage {
        let entry = |entry: EntryJson| EntryMessage {
            key: entry.key.into(),
            value: entry.value.into(),
        };
        let limit = |limit: LimitJson| LimitOverride {
            requests_per_unit: limit.requests_per_unit,
            unit: limit.unit,
        };
        DescriptorMessage {
            entries: self.entries.into_iter().map(entry).collect(),
            limit: self.limit.map(limit),
            hits_addend: self.hits_addend,
            is_negative_hits: self.is_negative_hits,
        }
    }
}

impl RateLimitResponse {
    fn to_json(&self) -> Value {
        let mut json = Map::new();
        json.insert("overallCode".to_owned(), self.overall_code().name().into());
        let statuses = self.statuses.iter().map(StatusMessage::to_json);
        json.insert("statuses".to_owned(), statuses.collect());
        if !self.response_headers_to_add.is_empty() {
            let headers = self
                .response_headers_to_add
                .iter()
                .map(HeaderMessage::to_json);
            json.insert("responseHeadersToAdd".to_owned(), headers.collect());
        }
        if !self.raw_body.is_empty() {
            let body = STANDARD.encode(&self.raw_body);
            json.insert("rawBody".to_owned(), body.into());
        }
        if let Some(metadata) = &self.dynamic_metadata {
            json.insert("dynamicMetadata".to_owned(), metadata.to_json());
        }
        Value::Object(json)
    }
}

impl StatusMessage {
    /// A number that is 0 is left out, as protobuf does.
    fn to_json(&self) -> Value {
        let mut json = Map::new();
        json.insert("code".to_owned(), self.code().name().into());
        if let Some(limit) = &self.current_limit {
            json.insert("currentLimit".to_owned(), limit.to_json());
        }
        if self.limit_remaining > 0 {
            json.insert("limitRemaining".to_owned(), self.limit_remaining.into());
        }
        if let Some(duration) = self.duration_until_reset {
            let text = format!("{}s", duration.seconds);
            json.insert("durationUntilReset".to_owned(), text.into());
        }
        Value::Object(json)
    }
}

impl LimitMessage {
    fn to_json(&self) -> Value {
        let mut json = json!({ "name": self.name, "requestsPerUnit": self.requests_per_unit });
        if self.unit() != RateUnit::Unknown {
            json["unit"] = self.unit().name().into();
        }
        json
    }
}

impl HeaderMessage {
    fn to_json(&self) -> Value {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        json!({ "key": text(&self.key), "value": text(&self.value) })
    }
}
