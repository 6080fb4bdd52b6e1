//! Reads random bytes, well-formed messages and mutations of them: what is decoded has one meaning,
//! and nothing panics.

use bytes::Bytes;
use http::header::HOST;
use proptest::prelude::*;
use proptest::sample;
use prost::Message;
use serde_json::{Map, Value, json};

use super::forward_auth::AuthQuestion;
use super::messages::{
    AddressMessage, AttributesMessage, CheckRequest, DescriptorMessage, EntryMessage,
    HeaderMapMessage, HeaderMessage, HttpRequestMessage, LimitOverride, PeerMessage,
    RateLimitRequest, RateUnit, RequestMessage, SocketAddressMessage, count_fields,
};
use crate::config::MAX_ENTRIES;
use crate::limit::CalendarUnit;

const MOST: usize = 3;

/// Fields of both requests, and faults.
const FIELDS: [&[u8]; 32] = [
    b"\x0a\x04shop",
    b"\x0a\x00",
    b"\x0a\x02\xff\xfe",
    b"\x12\x08\x0a\x06\x0a\x01a\x12\x01b",
    b"\x12\x05\x0a\x03\x0a\x01a",
    b"\x12\x02\x0a\x00",
    b"\x12\x00",
    b"\x12\x7f",
    b"\x12\x0b\x0a\x03\x0a\x01a\x12\x04\x08\x05\x10\x07",
    b"\x12\x0c\x0a\x03\x0a\x01a\x1a\x03\x08\xac\x02\x20\x01",
    b"\x12\x03\x0b\x12\x0c",
    b"\x12\x02\x13\x14",
    b"\x13\x12\x00\x14",
    b"\x10\x01",
    b"\x15\x01\x02\x03\x04",
    b"\x18\x05",
    b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x18\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    b"\x92\x00\x00",
    b"\x00",
    b"\x1c",
    b"\xa0\x06\x01",
    b"\x0a\x31",
    b"\x0a\x0d\x0a\x0b\x0a\x09\x12\x07192.0.2",
    b"\x0a\x0f\x0a\x0d\x0a\x0b\x12\x09192.0.2.1",
    b"\x22\x0a\x12\x08\x12\x01G\x22\x01/*\x00",
    b"\x22\x0c\x12\x0a\x1a\x08\x0a\x03a-b\x12\x01c",
    b"\x22\x08\x12\x06\x6a\x04\x0a\x02\x0a\x00",
    b"\x22\x02\x12\x00",
    b"\x0a\x02\x0a\x00",
    b"a",
    b"\xff",
];

/// Words of the JSON form.
const WORDS: [&str; 32] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "{\"domain\":\"d\",\"descriptors\":[{\"entries\":[{\"key\":\"k\"}",
    "]}]}",
    "\"domain\":\"shop\"",
    "\"descriptors\":[",
    "{\"entries\":[",
    "{\"key\":\"a\",\"value\":\"b\"}",
    "{\"key\":\"\\u00fc\\ud83d\\ude00\"}",
    "{\"value\":null}",
    "\"key\":\"\\ud800\"",
    "\"hitsAddend\":",
    "\"hits_addend\":",
    "\"limit\":{\"unit\":\"DAY\",\"requestsPerUnit\":\"5\"}",
    "\"limit\":{\"unit\":7,\"requests_per_unit\":1.0}",
    "\"limit\":null",
    "\"isNegativeHits\":true",
    "\"is_negative_hits\":0",
    "\"-1\"",
    "18446744073709551615",
    "4294967296",
    "1e3",
    "-0.0",
    "null",
    "\"x\"",
    " ",
    "\0",
    "\u{20ac}",
];

/// Checks an input as it is, and as a list of numbers of pieces.
fn both<P: AsRef<[u8]>>(input: &[u8], pieces: &[P; 32], check: impl Fn(&[u8])) {
    check(input);
    let piece = |byte: &u8| pieces[usize::from(*byte) % pieces.len()].as_ref();
    check(&input.iter().map(piece).collect::<Vec<_>>().concat());
}

#[test]
fn a_calendar_window_has_its_unit() {
    const DAY_US: u64 = 86_400_000_000;
    let unit = RateUnit::of_window;
    assert_eq!(
        unit(31 * DAY_US, Some(CalendarUnit::Month)),
        RateUnit::Month
    );
    assert_eq!(unit(30 * DAY_US, None), RateUnit::Month);
    assert_eq!(unit(31 * DAY_US, None), RateUnit::Unknown);
    assert_eq!(unit(366 * DAY_US, Some(CalendarUnit::Year)), RateUnit::Year);
}

#[test]
fn any_bytes_are_a_rate_limit_request_or_none() {
    bolero::check!(name = "rate_limit_request")
        .with_max_len(64)
        .for_each(|input: &[u8]| both(input, &FIELDS, check_request));
}

#[test]
fn any_text_is_a_rate_limit_request_or_none() {
    bolero::check!(name = "rate_limit_json")
        .with_max_len(64)
        .for_each(|input: &[u8]| {
            both(input, &WORDS, |text| {
                if let Ok(message) = RateLimitRequest::of_json(text) {
                    check_meaning(&message);
                }
            });
        });
}

#[test]
fn any_bytes_are_a_check_request_or_none() {
    bolero::check!(name = "check_request")
        .with_max_len(64)
        .for_each(|input: &[u8]| both(input, &FIELDS, check_question));
}

fn check_request(bytes: &[u8]) {
    let decoded = RateLimitRequest::decode(bytes).ok();
    let read = RateLimitRequest::read(Bytes::copy_from_slice(bytes), MOST);
    let Some(message) = decoded else {
        assert!(read.is_err(), "{bytes:?}");
        return;
    };
    let entries = entries(&message);
    let descriptors = message.descriptors.len();
    assert_eq!(count_fields(bytes, &[2]), Some(descriptors), "{bytes:?}");
    assert_eq!(count_fields(bytes, &[2, 1]), Some(entries), "{bytes:?}");
    let fits = descriptors <= MOST && entries <= MOST * MAX_ENTRIES;
    let expected = fits.then(|| {
        let mut expected = message.clone();
        expected.replace_odd_values();
        expected
    });
    assert_eq!(read.ok(), expected, "{bytes:?}");
    check_meaning(&message);
}

fn entries(message: &RateLimitRequest) -> usize {
    let descriptors = message.descriptors.iter();
    descriptors.map(|one| one.entries.len()).sum()
}

/// Each form of a message has the same meaning, and its call has what the message has.
fn check_meaning(message: &RateLimitRequest) {
    let bytes = message.encode_to_vec();
    assert_eq!(RateLimitRequest::decode(&*bytes).as_ref(), Ok(message));
    for is_camel in [true, false] {
        let Some(json) = message.to_json(is_camel) else {
            break;
        };
        let read = RateLimitRequest::of_json(json.to_string().as_bytes());
        assert_eq!(read.as_ref(), Ok(message), "{json}");
    }
    if let Ok(call) = message.call(None, MOST) {
        assert!(!call.domain.is_empty() && call.descriptors.len() <= MOST);
        let entries_of_call = call.descriptors.iter().map(|one| one.entries.len());
        assert_eq!(entries_of_call.sum::<usize>(), entries(message));
        let mut keys = call.descriptors.iter().flat_map(|one| &one.entries);
        assert!(keys.all(|entry| !entry.key.is_empty()));
    }
}

fn check_question(bytes: &[u8]) {
    let Ok(message) = CheckRequest::decode(bytes) else {
        return;
    };
    let again = CheckRequest::decode(&*message.encode_to_vec());
    assert_eq!(again.as_ref(), Ok(&message), "{bytes:?}");
    if let Ok(question) = AuthQuestion::of_message(&message) {
        let request = question.request;
        assert!(request.uri().path().starts_with('/'), "{bytes:?}");
        assert_eq!(request.headers().get_all(HOST).iter().count(), 1);
    }
}

impl RateLimitRequest {
    /// The JSON form; `None` if a text is no UTF-8.
    fn to_json(&self, is_camel: bool) -> Option<Value> {
        let name = |snake: &str, camel: &str| match is_camel {
            true => camel.to_owned(),
            false => snake.to_owned(),
        };
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).ok();
        // Large numbers are texts in one of the spellings, as protobuf writes them.
        let number = |number: u64| match is_camel {
            true => Value::from(number.to_string()),
            false => Value::from(number),
        };
        let mut descriptors = Vec::new();
        for one in &self.descriptors {
            let mut entries = Vec::new();
            for entry in &one.entries {
                entries.push(json!({ "key": text(&entry.key)?, "value": text(&entry.value)? }));
            }
            let mut map = Map::new();
            map.insert("entries".to_owned(), entries.into());
            if let Some(limit) = one.limit {
                let units = name("requests_per_unit", "requestsPerUnit");
                let unit = match RateUnit::try_from(limit.unit) {
                    Ok(unit) if is_camel => unit.name().into(),
                    _ => Value::from(u32::try_from(limit.unit).ok()?),
                };
                let limit = json!({ units: limit.requests_per_unit, "unit": unit });
                map.insert("limit".to_owned(), limit);
            }
            if let Some(hits) = one.hits_addend {
                map.insert(name("hits_addend", "hitsAddend"), number(hits));
            }
            let negative = name("is_negative_hits", "isNegativeHits");
            map.insert(negative, one.is_negative_hits.into());
            descriptors.push(Value::Object(map));
        }
        Some(json!({
            "domain": text(&self.domain)?,
            "descriptors": descriptors,
            name("hits_addend", "hitsAddend"): number(self.hits_addend.into()),
        }))
    }
}

fn texts() -> impl Strategy<Value = Bytes> + Clone {
    prop_oneof![
        3 => "[a-z_=*]{0,8}".prop_map(Bytes::from),
        1 => "\\PC{0,6}".prop_map(Bytes::from),
    ]
}

fn requests() -> impl Strategy<Value = RateLimitRequest> {
    let entry = (texts(), texts()).prop_map(|(key, value)| EntryMessage { key, value });
    let limit = (any::<u32>(), 0..9_i32).prop_map(|(requests_per_unit, unit)| LimitOverride {
        requests_per_unit,
        unit,
    });
    let descriptor = (
        prop::collection::vec(entry, 0..5),
        prop::option::of(limit),
        prop::option::of(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()]),
        any::<bool>(),
    );
    let descriptor =
        descriptor.prop_map(
            |(entries, limit, hits_addend, is_negative_hits)| DescriptorMessage {
                entries,
                limit,
                hits_addend,
                is_negative_hits,
            },
        );
    let descriptors = prop::collection::vec(descriptor, 0..5);
    (texts(), descriptors, any::<u32>()).prop_map(|(domain, descriptors, hits_addend)| {
        RateLimitRequest {
            domain,
            descriptors,
            hits_addend,
        }
    })
}

fn questions() -> impl Strategy<Value = CheckRequest> {
    let name = sample::select(vec![
        "x-api-key",
        "cookie",
        "host",
        ":path",
        "X-A",
        "a b",
        "",
    ]);
    let header = (name, texts(), texts()).prop_map(|(key, value, raw_value)| HeaderMessage {
        key: Bytes::from_static(key.as_bytes()),
        value,
        raw_value,
    });
    let headers = prop::collection::vec(header, 0..4);
    let address = sample::select(vec![
        "192.0.2.1",
        "::ffff:192.0.2.1",
        "2001:db8::1",
        "x",
        "",
    ]);
    let method = sample::select(vec!["GET", "POST", "", "G T"]);
    let path = prop_oneof![Just("/a?b=c".to_owned()), "[/a-z?#%. ]{0,9}"];
    (
        headers.clone(),
        prop::option::of(headers),
        address,
        method,
        path,
    )
        .prop_map(|(headers, raw, address, method, path)| {
            let socket_address = SocketAddressMessage {
                address: Bytes::from_static(address.as_bytes()),
            };
            let address = AddressMessage {
                socket_address: Some(socket_address),
            };
            let http = HttpRequestMessage {
                method: Bytes::from_static(method.as_bytes()),
                headers,
                path: path.into(),
                host: Bytes::from_static(b"shop.test"),
                scheme: Bytes::from_static(b"https"),
                header_map: raw.map(|headers| HeaderMapMessage { headers }),
            };
            CheckRequest {
                attributes: Some(AttributesMessage {
                    source: Some(PeerMessage {
                        address: Some(address),
                    }),
                    request: Some(RequestMessage { http: Some(http) }),
                }),
            }
        })
}

/// Places, how many bytes end there, and what stands there instead.
fn changes() -> impl Strategy<Value = Vec<(sample::Index, usize, Vec<u8>)>> {
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..3),
        sample::select(FIELDS.to_vec()).prop_map(<[u8]>::to_vec),
    ];
    prop::collection::vec((any::<sample::Index>(), 0..3_usize, bytes), 1..4)
}

fn changed(mut bytes: Vec<u8>, changes: &[(sample::Index, usize, Vec<u8>)]) -> Vec<u8> {
    for (at, length, with) in changes {
        let at = at.index(bytes.len() + 1);
        let until = (at + length).min(bytes.len());
        bytes.splice(at..until, with.iter().copied());
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(400)
    })]

    #[test]
    fn requests_and_their_mutations_have_one_meaning(
        message in requests(),
        changes in changes(),
    ) {
        let bytes = message.encode_to_vec();
        check_request(&bytes);
        check_request(&changed(bytes, &changes));
    }

    #[test]
    fn questions_and_their_mutations_have_one_meaning(
        message in questions(),
        changes in changes(),
    ) {
        let bytes = message.encode_to_vec();
        check_question(&bytes);
        check_question(&changed(bytes, &changes));
    }
}
