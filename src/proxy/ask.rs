//! `ask = true`: adds the question for usage to a stream's request, and takes the event that
//! answers it out of the stream.

use std::collections::VecDeque;

use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body as _, Frame};
use hyper::body::Bytes;

use super::ProxyExchange;
use crate::body::RequestBody;
use crate::route::Route;
use crate::upstream::UpstreamError;
use crate::usage::ask::{BodyEdit, UsageEventFilter, is_open};
use crate::usage::framing::Framing;
use crate::usage::request::BodyMembers;

/// Headers that bind a request to the bytes of its body.
const DIGESTS: [HeaderName; 3] = [
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("digest"),
];

/// Asks for usage where the route does and the request leaves it open. Returns whether it is asked
/// for.
pub(super) fn ask_for_usage(x: &mut ProxyExchange<'_>, route: &Route) -> bool {
    let asks = route.usage.as_ref().is_some_and(|usage| usage.asks);
    if !asks || x.admission.reserve.is_none() {
        return false;
    }
    let members = x.body.as_ref().map(|body| &body.facts.members);
    let Some(members) = members.filter(|members| is_open(members)) else {
        return false;
    };
    if DIGESTS
        .iter()
        .any(|name| x.request.headers().contains_key(name))
        || !edit(x.request.body_mut(), members)
    {
        return false;
    }
    let length = x.request.body().size_hint().exact();
    let headers = x.request.headers_mut();
    if let (Some(length), true) = (length, headers.contains_key(CONTENT_LENGTH)) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    // Nothing can be taken out of a compressed answer.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    true
}

/// Changes the part of the body that was read before the decision. Returns whether it has.
fn edit(body: &mut RequestBody, members: &BodyMembers) -> bool {
    let frames = body.take_back();
    let data = || frames.iter().filter_map(Frame::data_ref);
    let read = match (data().next(), data().nth(1)) {
        (Some(only), None) => only.clone(),
        _ => Bytes::from(data().flatten().copied().collect::<Vec<u8>>()),
    };
    let Some(BodyEdit { at, removed, added }) = BodyEdit::asking(members, &read) else {
        body.put_back(frames.into_iter());
        return false;
    };
    let parts = [
        read.slice(..at),
        Bytes::from_static(added.as_bytes()),
        read.slice(at + removed..),
    ];
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    let mut edited: VecDeque<Frame<Bytes>> = parts.map(Frame::data).collect();
    edited.extend(frames.into_iter().filter(Frame::is_trailers));
    body.put_back(edited.into_iter());
    true
}

/// The filter of an answer whose usage was asked for, if the answer is a stream that can be read.
pub(super) fn filter(headers: &mut HeaderMap) -> Option<Box<AskedStream>> {
    is_readable_stream(headers).then(|| {
        // The stream will have another length.
        headers.remove(CONTENT_LENGTH);
        Box::default()
    })
}

fn is_readable_stream(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (content_type, None) = (types.next(), types.next()) else {
        return false;
    };
    let content_type = content_type.and_then(|value| value.to_str().ok());
    let framing = content_type.and_then(Framing::of_content_type);
    let is_identity = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
    framing == Some(Framing::Sse) && encodings.all(is_identity)
}

/// A stream that was asked for its usage, without the event that has it.
#[derive(Debug, Default)]
pub(super) struct AskedStream {
    filter: UsageEventFilter,
    /// What passes next.
    frames: VecDeque<Result<Frame<Bytes>, UpstreamError>>,
    has_ended: bool,
}

/// The next frame of a stream.
#[derive(Debug)]
pub(super) enum AskedFrame {
    Frame(Result<Frame<Bytes>, UpstreamError>),
    End,
    /// It is not known yet.
    Later,
}

impl AskedStream {
    pub(super) fn next(&mut self) -> AskedFrame {
        match self.frames.pop_front() {
            Some(frame) => AskedFrame::Frame(frame),
            None if self.has_ended => AskedFrame::End,
            None => AskedFrame::Later,
        }
    }

    /// Whether nothing follows if the upstream's body has ended.
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty() && (self.has_ended || !self.filter.is_holding())
    }

    /// Takes what the upstream's body has next.
    pub(super) fn take(&mut self, polled: Option<Result<Frame<Bytes>, UpstreamError>>) {
        let (passed, last) = match polled {
            None => (self.filter.finish(), None),
            Some(Err(error)) => (self.filter.give_up(), Some(Err(error))),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    let passed = self.filter.read(&data);
                    return self.push(passed);
                }
                Err(trailers) => (self.filter.finish(), Some(Ok(trailers))),
            },
        };
        self.has_ended = last.is_none();
        self.push(passed);
        self.frames.extend(last);
    }

    fn push(&mut self, passed: Bytes) {
        if !passed.is_empty() {
            self.frames.push_back(Ok(Frame::data(passed)));
        }
    }
}
