//! gRPC with the proxies that ask: one message each way, in a frame, and the status in trailers.
//!
//! A message is a byte for compression, its length in four bytes, and itself. An error is a
//! response without content, with the status in its only header block.

use std::borrow::Cow;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body_util::BodyExt;
use prost::Message;

use crate::body::{BodyError, RequestBody};
use crate::proxy::body::Body;
use tidegate_core::exchange::grpc::percent_encode;

/// Bytes before a message.
const PREFIX: usize = 5;
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The statuses of calls that this server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallCode {
    Ok = 0,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Unavailable = 14,
}

/// Why a call has no answer. The caller is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RpcError {
    pub(super) code: CallCode,
    pub(super) message: Cow<'static, str>,
}

impl RpcError {
    pub(super) fn new(code: CallCode, message: impl Into<Cow<'static, str>>) -> RpcError {
        RpcError {
            code,
            message: message.into(),
        }
    }

    pub(super) fn invalid(message: impl Into<Cow<'static, str>>) -> RpcError {
        RpcError::new(CallCode::InvalidArgument, message)
    }

    /// A response of headers alone.
    pub(super) fn response(&self) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.headers_mut() = self.trailers();
        response.headers_mut().insert(CONTENT_TYPE, content_type());
        response
    }

    pub(super) fn trailers(&self) -> HeaderMap {
        let mut trailers = trailers(self.code);
        if let Ok(message) = HeaderValue::try_from(percent_encode(&self.message)) {
            trailers.insert(MESSAGE, message);
        }
        trailers
    }
}

/// The response to a call that succeeded.
pub(super) fn answer(message: &impl Message) -> Response<Body> {
    let mut response = stream(message);
    let body = std::mem::replace(response.body_mut(), Body::empty());
    *response.body_mut() = body.with_trailers(trailers(CallCode::Ok));
    response
}

/// The head and the first message of a response that goes on.
pub(super) fn stream(message: &impl Message) -> Response<Body> {
    let mut response = Response::new(Body::made(frame(message)));
    response.headers_mut().insert(CONTENT_TYPE, content_type());
    response
}

fn content_type() -> HeaderValue {
    HeaderValue::from_static("application/grpc")
}

fn trailers(code: CallCode) -> HeaderMap {
    HeaderMap::from_iter([(STATUS, HeaderValue::from(code as u16))])
}

/// A message with its prefix.
pub(super) fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut out = BytesMut::with_capacity(PREFIX + length);
    out.put_u8(0);
    // Answers are much shorter than 4 GiB.
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // The buffer grows as it must.
    let _ = message.encode(&mut out);
    out.freeze()
}

/// Decodes a message. Its strings are parts of `bytes`.
pub(super) fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, RpcError> {
    M::decode(bytes).map_err(|_| not_a_message())
}

pub(super) fn not_a_message() -> RpcError {
    RpcError::invalid("these bytes are not the message of this call")
}

/// Whether this type is that of gRPC, which other types such as gRPC-Web begin with.
pub(super) fn is_grpc_type(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = content_type.and_then(|text| text.strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

/// How long the caller waits; `None` if it does not say, or not as gRPC does.
pub(super) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(TIMEOUT)?.to_str().ok()?;
    let unit_at = text.len().checked_sub(1)?;
    let (digits, unit) = text.split_at_checked(unit_at)?;
    let is_number = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    let count: u64 = digits.parse().ok().filter(|_| is_number)?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// Reads the only message of a call, of at most `most` bytes. Its prefix tells a longer one, which
/// is refused.
pub(super) async fn read_message(body: &mut RequestBody, most: usize) -> Result<Bytes, RpcError> {
    body.limit((PREFIX + most) as u64);
    let mut reader = MessageReader::new(most);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| read_error(error, most))?;
        if let Ok(data) = frame.into_data() {
            reader.push(data)?;
        }
    }
    reader.finish()
}

/// Why a message of at most `most` bytes was not read.
pub(super) fn read_error(error: BodyError, most: usize) -> RpcError {
    match error {
        BodyError::TooLarge => too_long(most),
        BodyError::TimedOut => RpcError::new(
            CallCode::DeadlineExceeded,
            "the message did not come in time",
        ),
        BodyError::Broken => cut_off(),
    }
}

fn too_long(most: usize) -> RpcError {
    let message = format!("the message is longer than {most} bytes");
    RpcError::new(CallCode::ResourceExhausted, message)
}

fn cut_off() -> RpcError {
    RpcError::invalid("the message ends too early")
}

/// Joins the pieces of a message. One piece, which is the usual number, is not copied.
struct MessageReader {
    most: usize,
    first: Bytes,
    /// All pieces, if there is more than one.
    joined: BytesMut,
}

impl MessageReader {
    fn new(most: usize) -> MessageReader {
        MessageReader {
            most,
            first: Bytes::new(),
            joined: BytesMut::new(),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self.joined.is_empty() {
            true => &self.first,
            false => &self.joined,
        }
    }

    fn push(&mut self, piece: Bytes) -> Result<(), RpcError> {
        if self.first.is_empty() {
            self.first = piece;
        } else {
            if self.joined.is_empty() {
                self.joined.extend_from_slice(&self.first);
            }
            self.joined.extend_from_slice(&piece);
        }
        match self.length()? {
            Some(length) if self.bytes().len() > PREFIX + length => {
                Err(RpcError::invalid("this call has one message"))
            }
            _ => Ok(()),
        }
    }

    /// The length of the message without its prefix; `None` before the prefix has come.
    fn length(&self) -> Result<Option<usize>, RpcError> {
        let Some((&[flag, length @ ..], _)) = self.bytes().split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        if flag != 0 {
            let message = "compressed messages are not accepted";
            return Err(RpcError::new(CallCode::Unimplemented, message));
        }
        match usize::try_from(u32::from_be_bytes(length)) {
            Ok(length) if length <= self.most => Ok(Some(length)),
            _ => Err(too_long(self.most)),
        }
    }

    fn finish(self) -> Result<Bytes, RpcError> {
        match self.length()? {
            Some(length) if self.bytes().len() == PREFIX + length => {}
            _ => return Err(cut_off()),
        }
        let mut all = match self.joined.is_empty() {
            true => self.first,
            false => self.joined.freeze(),
        };
        Ok(all.split_off(PREFIX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pieces: &[&[u8]], most: usize) -> Result<Bytes, CallCode> {
        let mut reader = MessageReader::new(most);
        for piece in pieces {
            let piece = Bytes::copy_from_slice(piece);
            reader.push(piece).map_err(|error| error.code)?;
        }
        reader.finish().map_err(|error| error.code)
    }

    #[test]
    fn a_message_is_read_from_pieces() {
        let whole = b"\0\0\0\0\x03abc";
        assert_eq!(read(&[whole], 3).unwrap(), "abc");
        for cut in 0..=whole.len() {
            let (one, two) = whole.split_at(cut);
            assert_eq!(read(&[one, two], 3).unwrap(), "abc", "{cut}");
        }
        assert_eq!(read(&[b"\0\0\0\0\0"], 3).unwrap(), "");
    }

    #[test]
    fn other_frames_are_refused() {
        assert_eq!(read(&[b"\x01\0\0\0\0"], 9), Err(CallCode::Unimplemented));
        assert_eq!(
            read(&[b"\0\0\0\0\x04"], 3),
            Err(CallCode::ResourceExhausted)
        );
        assert_eq!(
            read(&[b"\0\xff\xff\xff\xff"], 3),
            Err(CallCode::ResourceExhausted)
        );
        for wrong in [
            &b""[..],
            b"\0\0\0",
            b"\0\0\0\0\x03ab",
            b"\0\0\0\0\x01ab",
            b"\0\0\0\0\0\0\0\0\0\0",
        ] {
            assert_eq!(
                read(&[wrong], 9),
                Err(CallCode::InvalidArgument),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn a_timeout_has_up_to_eight_digits_and_a_unit() {
        let read = |text: &'static str| {
            timeout(&HeaderMap::from_iter([(
                TIMEOUT,
                HeaderValue::from_static(text),
            )]))
        };
        for (text, expected) in [
            ("1H", Duration::from_secs(3600)),
            ("2M", Duration::from_secs(120)),
            ("3S", Duration::from_secs(3)),
            ("20m", Duration::from_millis(20)),
            ("99999999u", Duration::from_micros(99_999_999)),
            ("0n", Duration::ZERO),
            ("99999999H", Duration::from_secs(99_999_999 * 3600)),
        ] {
            assert_eq!(read(text), Some(expected), "{text}");
        }
        for wrong in [
            "",
            "m",
            "1",
            "123456789m",
            "-1m",
            "+1m",
            "1.5S",
            "1s",
            "1 m",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert_eq!(timeout(&HeaderMap::new()), None);
    }

    #[test]
    fn a_message_of_an_error_is_encoded() {
        let error = RpcError::invalid("100% \u{fc}ber");
        let response = error.response();
        assert_eq!(response.headers()["grpc-status"], "3");
        assert_eq!(response.headers()["grpc-message"], "100%25 %C3%BCber");
        assert_eq!(response.headers()[CONTENT_TYPE], "application/grpc");
    }

    #[test]
    fn grpc_is_told_from_grpc_web() {
        let is = |text: &'static str| {
            is_grpc_type(&HeaderMap::from_iter([(
                CONTENT_TYPE,
                HeaderValue::from_static(text),
            )]))
        };
        assert!(is("application/grpc") && is("application/grpc+proto"));
        assert!(is("application/grpc; charset=utf-8"));
        assert!(!is("application/grpc-web") && !is("application/json"));
        assert!(!is_grpc_type(&HeaderMap::new()));
    }

    proptest! {
        #[test]
        fn any_pieces_are_read_or_refused(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 0..6),
        ) {
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            if let Ok(message) = read(&pieces, 16) {
                let all = pieces.concat();
                prop_assert_eq!(&all[PREFIX..], &message[..]);
            }
        }
    }
}
