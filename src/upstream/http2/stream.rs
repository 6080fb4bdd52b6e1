//! One request and its response on a shared connection.
//!
//! The server may send a window of content, and more only while the content is read. A stream that
//! is reset before its end is an error, whatever the reason says.

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, Version};
use http_body::{Body as _, Frame, SizeHint};

use super::Http2Connection;
use super::upload::{Http2Upload, begin_upload};
use crate::body::RequestBody;
use crate::trace::TRACEPARENT;
use crate::upstream::deadline::{AbortOnDrop, Deadline};
use crate::upstream::error::{ExchangeError, HeadFault, UpstreamError};

/// Headers whose values usually differ in each request. They are sent as literals that are never
/// indexed (RFC 7541 section 6.2.3). In the table they would push the other headers out.
const UNIQUE: [HeaderName; 2] = [HeaderName::from_static("x-request-id"), TRACEPARENT];

/// A stream for one request. Dropped before the response has ended, it resets the stream, which
/// cancels the work upstream.
#[derive(Debug)]
pub(in crate::upstream) struct Http2Stream {
    pub(in crate::upstream) connection: Arc<Http2Connection>,
    pub(in crate::upstream) deadline: Arc<Deadline>,
    scheme: Scheme,
    /// The authority of a request without a `Host` line.
    host: HeaderValue,
    upload: AbortOnDrop,
    content: Option<Http2Content>,
    /// A copy of the request, if it may have to be sent again.
    pub(in crate::upstream) retry_copy: Option<Request<RequestBody>>,
}

#[derive(Debug)]
struct Http2Content {
    stream: RecvStream,
    /// Bytes to come, if the head has a length.
    left: Option<u64>,
    data_ended: bool,
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        // The alarm is armed while the server's time to answer runs, and not while the client has
        // yet to send.
        if self.content.is_none() && self.deadline.alarm.left().is_some() {
            self.connection.note_given_up();
        }
        self.connection.leave();
    }
}

impl Http2Stream {
    pub(in crate::upstream) fn new(
        connection: Arc<Http2Connection>,
        deadline: Arc<Deadline>,
        scheme: Scheme,
        host: HeaderValue,
    ) -> Http2Stream {
        connection.enter();
        Http2Stream {
            connection,
            deadline,
            scheme,
            host,
            upload: AbortOnDrop::default(),
            content: None,
            retry_copy: None,
        }
    }

    pub(in crate::upstream) fn keep_copy(&mut self, request: &Request<RequestBody>) {
        let mut copy = Request::new(RequestBody::empty());
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.headers_mut() = request.headers().clone();
        self.retry_copy = Some(copy);
    }

    /// Sends the request and waits for the head of the response. After [`ExchangeError::Unsent`]
    /// and [`ExchangeError::Refused`] the request is complete again.
    pub(in crate::upstream) async fn exchange(
        &mut self,
        request: &mut Request<RequestBody>,
    ) -> Result<Response<()>, ExchangeError> {
        let (parts, mut body) = std::mem::take(request).into_parts();
        let ends = body.is_end_stream();
        let (response, stream) = match self.send_head(&parts, ends).await {
            Ok(sent) => sent,
            Err(error) => {
                // Nothing was sent, and this connection will send nothing more.
                self.connection.retire();
                *request = Request::from_parts(parts, body);
                return Err(ExchangeError::Unsent(UpstreamError::from_http2(error)));
            }
        };
        self.connection.note_sent();
        self.deadline.begin_head();
        let mut upload = None;
        if !ends {
            let deadline = Arc::clone(&self.deadline);
            let sending = Http2Upload::new(std::mem::take(&mut body), deadline);
            self.upload = begin_upload(stream, Arc::clone(&sending)).await;
            upload = Some(sending);
        }
        match self.wait_for_head(response).await {
            Some(Ok(response)) => {
                if let Some(upload) = upload {
                    upload.drop_copy();
                }
                self.accept(response)
            }
            Some(Err(error)) => {
                let (failure, body) = self.classify(error, upload.as_deref());
                if let Some(body) = body {
                    *request = Request::from_parts(parts, body);
                }
                Err(failure)
            }
            None => Err(ExchangeError::Sent(UpstreamError::TimedOut)),
        }
    }

    async fn send_head(
        &self,
        parts: &Parts,
        ends: bool,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        // A fresh clone has no pending stream, so it is ready or has failed.
        let mut sender = self.connection.sender.clone();
        poll_fn(|context| sender.poll_ready(context)).await?;
        sender.send_request(self.convert_head(parts), ends)
    }

    /// The head of the response; `None` after the timeout. A connection that received nothing at
    /// all in that time is retired.
    async fn wait_for_head(
        &self,
        mut response: ResponseFuture,
    ) -> Option<Result<Response<RecvStream>, h2::Error>> {
        let before = self.connection.received.load(Ordering::Relaxed);
        let head = poll_fn(|context| {
            if let Poll::Ready(head) = Pin::new(&mut response).poll(context) {
                return Poll::Ready(Some(head));
            }
            self.deadline.alarm.poll(context).map(|()| None)
        })
        .await;
        self.deadline.end_head();
        match &head {
            Some(Ok(_)) => self.connection.note_received(),
            Some(Err(error)) if error.is_remote() => self.connection.note_received(),
            // This side broke off.
            Some(Err(_)) => {}
            None if self.connection.received.load(Ordering::Relaxed) == before => {
                self.connection.retire();
            }
            None => {}
        }
        head
    }

    fn accept(&mut self, response: Response<RecvStream>) -> Result<Response<()>, ExchangeError> {
        let checked = match response.status() {
            StatusCode::SWITCHING_PROTOCOLS => Err(HeadFault::UnaskedUpgrade),
            _ => check_framing(response.headers()),
        };
        checked.map_err(|fault| ExchangeError::Sent(UpstreamError::Head(fault)))?;
        let (parts, stream) = response.into_parts();
        let length = parts.headers.get(CONTENT_LENGTH);
        // The length of a 304 is that of another response (RFC 9113 section 8.1.1). The library
        // takes it for this one's if the stream ends in a frame of its own.
        let has_content = !matches!(parts.status.as_u16(), 204 | 304);
        self.content = has_content.then(|| Http2Content {
            stream,
            left: length.and_then(|length| length.to_str().ok()?.parse().ok()),
            data_ended: false,
        });
        Ok(Response::from_parts(parts, ()))
    }

    /// Classifies the error of a stream without a response. The server has not looked at a request
    /// that it refused, or that it received after GOAWAY; then the body comes back.
    fn classify(
        &self,
        error: h2::Error,
        upload: Option<&Http2Upload>,
    ) -> (ExchangeError, Option<RequestBody>) {
        if let Some(error) = upload.and_then(Http2Upload::error) {
            return (ExchangeError::Sent(UpstreamError::Request(error)), None);
        }
        let is_goodbye = error.is_go_away() && error.is_remote();
        let is_refused =
            error.is_reset() && error.is_remote() && error.reason() == Some(Reason::REFUSED_STREAM);
        // A server of another protocol cannot have understood the request.
        let is_foreign = error.is_library() && !self.connection.has_settings();
        if is_goodbye || is_foreign {
            self.connection.retire();
        }
        let body = match upload {
            None => Some(RequestBody::empty()),
            Some(upload) => upload.take_back(),
        };
        let error = match is_foreign {
            true => UpstreamError::NoHttp2(error),
            false if self.connection.is_silent() => UpstreamError::ConnectTimedOut,
            false => UpstreamError::from_http2(error),
        };
        match body {
            Some(body) if is_foreign || is_goodbye => (ExchangeError::Unsent(error), Some(body)),
            Some(body) if is_refused => (ExchangeError::Refused(error), Some(body)),
            _ => (ExchangeError::Sent(error), None),
        }
    }

    /// Converts the head of the request from HTTP/1.1: drops the lines about the connection and
    /// moves the host into the target.
    fn convert_head(&self, parts: &Parts) -> Request<()> {
        let mut headers = parts.headers.clone();
        let host = headers.remove(HOST);
        for name in [CONNECTION, TRANSFER_ENCODING, UPGRADE] {
            headers.remove(name);
        }
        for name in UNIQUE {
            if let Some(value) = headers.get_mut(name) {
                value.set_sensitive(true);
            }
        }
        let authority = |host: &HeaderValue| Authority::try_from(host.as_bytes()).ok();
        let path = parts.uri.path_and_query().cloned();
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(self.scheme.clone());
        uri.authority = host.as_ref().and_then(authority).or(authority(&self.host));
        uri.path_and_query = Some(path.unwrap_or(PathAndQuery::from_static("/")));
        let mut request = Request::new(());
        *request.method_mut() = parts.method.clone();
        *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = headers;
        request
    }

    pub(in crate::upstream) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        let Some(content) = &mut self.content else {
            return Poll::Ready(None);
        };
        if !content.data_ended {
            let data = ready!(content.stream.poll_data(context)).transpose();
            if let Some(data) = data.map_err(UpstreamError::from_http2)? {
                self.connection.note_received();
                // Fails only on a stream that is over.
                let _ = content.stream.flow_control().release_capacity(data.len());
                let left = content.left;
                content.left = left.map(|left| left.saturating_sub(data.len() as u64));
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            content.data_ended = true;
        }
        let trailers = ready!(content.stream.poll_trailers(context)).transpose();
        self.connection.note_received();
        let frame = trailers.map(|trailers| trailers.map(Frame::trailers));
        Poll::Ready(frame.map(|frame| frame.map_err(UpstreamError::from_http2)))
    }

    pub(in crate::upstream) fn is_end_stream(&self) -> bool {
        let content = self.content.as_ref();
        content.is_none_or(|content| content.stream.is_end_stream())
    }

    pub(in crate::upstream) fn size_hint(&self) -> SizeHint {
        let left = self.content.as_ref().map(|content| content.left);
        match left {
            Some(left) if !self.is_end_stream() => {
                left.map_or_else(SizeHint::default, SizeHint::with_exact)
            }
            _ => SizeHint::with_exact(0),
        }
    }

    /// Ends a response that was read to its end. The server may still read the request, and gets
    /// the rest of it for `grace`.
    pub(in crate::upstream) fn end(mut self, grace: Duration) {
        self.upload.abort_after(grace);
    }
}

/// Rejects a head that two readers could frame differently.
fn check_framing(headers: &HeaderMap) -> Result<(), HeadFault> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let coding = codings.next();
    if let Some(coding) = coding
        && (codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return Err(HeadFault::TransferEncoding);
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(length) = lengths.next() else {
        return Ok(());
    };
    let digits = length.as_bytes();
    if coding.is_some() {
        return Err(HeadFault::TwoFramings);
    }
    if lengths.next().is_some() || digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(HeadFault::ContentLength);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lines: &[(&'static str, &'static str)]) -> Result<(), HeadFault> {
        let mut headers = HeaderMap::new();
        for &(name, value) in lines {
            headers.append(name, HeaderValue::from_static(value));
        }
        check_framing(&headers)
    }

    #[test]
    fn one_framing_is_accepted() {
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[("content-length", "0")]), Ok(()));
        assert_eq!(check(&[("content-length", "10")]), Ok(()));
        assert_eq!(check(&[("transfer-encoding", "Chunked")]), Ok(()));
    }

    #[test]
    fn several_framings_are_refused_even_when_they_agree() {
        for value in ["5, 5", "+5", "", "0x5", "5 "] {
            assert_eq!(
                check(&[("content-length", value)]),
                Err(HeadFault::ContentLength)
            );
        }
        let twice = [("content-length", "5"), ("content-length", "5")];
        assert_eq!(check(&twice), Err(HeadFault::ContentLength));
        let both = [("content-length", "5"), ("transfer-encoding", "chunked")];
        assert_eq!(check(&both), Err(HeadFault::TwoFramings));
    }

    #[test]
    fn codings_other_than_chunked_are_refused() {
        for value in [
            "gzip, chunked",
            "chunked, chunked",
            "identity",
            "",
            "xchunked",
        ] {
            assert_eq!(
                check(&[("transfer-encoding", value)]),
                Err(HeadFault::TransferEncoding)
            );
        }
        let twice = [
            ("transfer-encoding", "chunked"),
            ("transfer-encoding", "chunked"),
        ];
        assert_eq!(check(&twice), Err(HeadFault::TransferEncoding));
    }
}
