//! Calls of the rate limit service over gRPC that a client makes odd. Envoy may let a request pass
//! whose call has an error.

use bytes::Bytes;
use http::Request;

use super::{Decider, RULES};
use crate::http2::client::{Http2, read, run};

const METHOD: &str = "http://test/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const OK: u8 = 1;
const OVER_LIMIT: u8 = 2;

/// A field of a message, of less than 16 KiB.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap();
    let head = [
        (number << 3) | 2,
        (length & 0x7f) as u8 | 0x80,
        (length >> 7) as u8,
    ];
    [&head, content].concat()
}

/// A message with one descriptor, in its frame.
fn call(user: &[u8]) -> Vec<u8> {
    let entry = [field(1, b"user"), field(2, user)].concat();
    let descriptor = field(1, &entry);
    let message = [field(1, b"shop"), field(2, &descriptor)].concat();
    let length = u32::try_from(message.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], &message].concat()
}

/// The overall code of the answer; `None` if the call has an error.
async fn ask(client: &Http2, frame: Vec<u8>) -> Option<u8> {
    let request = Request::post(METHOD).header("content-type", "application/grpc");
    let (response, mut body) = client.begin(request.body(()).unwrap()).await;
    body.send_data(Bytes::from(frame), true).unwrap();
    let answer = read(response).await.unwrap();
    answer.body.get(6).copied()
}

#[test]
fn a_value_that_is_not_utf_8_has_a_budget() {
    let decider = Decider::start(RULES);
    run(async {
        let client = Http2::to(decider.address).await;
        for _ in 0..9 {
            assert_eq!(ask(&client, call(b"\xff")).await, Some(OK));
        }
        // All such values share it.
        assert_eq!(ask(&client, call(b"\xfe")).await, Some(OVER_LIMIT));
    });
}

#[test]
fn a_message_that_is_too_long_is_denied() {
    let decider = Decider::start_with("max_message = \"1KiB\"", RULES);
    run(async {
        let client = Http2::to(decider.address).await;
        assert_eq!(ask(&client, call(&[b'x'; 100])).await, Some(OK));
        assert_eq!(ask(&client, call(&[b'x'; 2000])).await, Some(OVER_LIMIT));
    });
}
