//! Reads from a client: one head after the other, and the content after each head. Content goes
//! into a pipe when the reader of the pipe asks for it.

use std::future::Future as _;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http::Request;
use tokio::io::{AsyncReadExt as _, AsyncWrite as _};

use super::socket::{Http1Socket, Phase, Stage};
use crate::body::{BodyError, DISCARD_BYTES, Demand, PipeWriter, RequestBody, Rest, pipe};
use crate::http1::content::{Content, ContentRead};
use crate::http1::head::{self, HeadBounds, RequestFraming, Unreadable};
use crate::request_head::HeadError;
use crate::server::drain::Drain;
use crate::server::worker::ClientConnection;
use crate::wire::PrefixedStream;

const READ_BYTES: usize = 8 << 10;
/// A buffer with less free capacity than this is replaced.
const MIN_READ_BYTES: usize = 4 << 10;
/// Bytes of one read of long content.
const MAX_READ_BYTES: usize = 64 << 10;
/// A head of at most this size gets a whole response even if it exceeds the configured size.
const MIN_HEAD_BYTES: usize = 16 << 10;
/// A piece of content keeps at most so many times its own bytes.
const MAX_WASTE: usize = 4;
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

pub(super) enum IntakeEvent {
    Request(RequestFraming),
    Unreadable(Unreadable),
    Idle,
    /// The client has ended its side, or the server closes idle connections.
    End,
    Broken,
}

pub(super) struct Intake<'c> {
    pub(super) socket: Http1Socket,
    phase: &'c Phase,
    drain: &'c Drain,
    /// The read buffer. If `is_partial`, it holds the beginning of a head.
    read: BytesMut,
    is_partial: bool,
    ahead: Bytes,
    /// Bytes of blank lines before the next head, and whether one of them ended with LF alone.
    blank_bytes: usize,
    has_bare_lf: bool,
    bounds: HeadBounds,
    upload: Option<IncomingContent>,
}

struct IncomingContent {
    content: Content,
    pipe: PipeWriter,
    unsent_continue: &'static [u8],
    is_requested: bool,
    discard_left: u64,
    /// The reader asks for no more content, so no deadline of the client runs.
    is_resting: bool,
    has_failed: bool,
}

impl<'c> Intake<'c> {
    pub(super) fn new(
        opened: PrefixedStream,
        client: &'c ClientConnection,
        phase: &'c Arc<Phase>,
    ) -> Intake<'c> {
        let now = client.worker.serving.load();
        Intake {
            socket: Http1Socket::new(opened, Arc::clone(phase)),
            phase,
            drain: &client.worker.drain,
            read: BytesMut::new(),
            is_partial: false,
            ahead: Bytes::new(),
            blank_bytes: 0,
            has_bare_lf: false,
            bounds: HeadBounds {
                lines: now.settings.max_headers,
                bytes: now.settings.max_header_bytes,
            },
            upload: None,
        }
    }

    /// Returns the socket, and gives unused bytes back to it.
    pub(super) fn into_socket(mut self) -> Http1Socket {
        self.socket.unread(self.ahead);
        self.socket
    }

    pub(super) fn poll_next<B>(
        &mut self,
        request: &mut Request<B>,
        context: &mut Context<'_>,
    ) -> Poll<IntakeEvent> {
        self.upload = None;
        loop {
            if !self.ahead.is_empty() {
                match self.take_head(request) {
                    Ok(Some(head)) => return Poll::Ready(IntakeEvent::Request(head)),
                    Ok(None) => {}
                    Err(unreadable) => return Poll::Ready(IntakeEvent::Unreadable(unreadable)),
                }
            }
            if let Some(event) = ready!(self.poll_read_head(context)) {
                return Poll::Ready(event);
            }
            if !self.is_partial || self.is_whole() {
                self.ahead = self.read.split().freeze();
            }
        }
    }

    /// Whether a head came too slowly. Blank lines alone are none.
    pub(super) fn has_late_head(&self) -> bool {
        self.socket.is_late && !self.read.is_empty()
    }

    /// Whether a head that came in parts is whole now, or has a fault.
    fn is_whole(&mut self) -> bool {
        // `take_head` finds the fault.
        self.is_too_long(self.read.len()) || head::is_whole(&self.read, self.bounds).unwrap_or(true)
    }

    /// Whether so many bytes of an incomplete head are refused without a response of their own.
    fn is_too_long(&self, head_bytes: usize) -> bool {
        head_bytes + self.blank_bytes >= (2 * self.bounds.bytes).max(MIN_HEAD_BYTES)
    }

    /// Reads more bytes of a head. `Ready(None)` if some came.
    fn poll_read_head(&mut self, context: &mut Context<'_>) -> Poll<Option<IntakeEvent>> {
        // Usually the last request is gone, and its buffer is free again and still in the caches.
        let room = self.read.capacity() - self.read.len();
        if !self.read.try_reclaim(READ_BYTES) && room < MIN_READ_BYTES {
            self.read.reserve(READ_BYTES);
        }
        let reading = pin!(self.socket.read_buf(&mut self.read));
        Poll::Ready(match reading.poll(context) {
            Poll::Ready(Ok(0)) => Some(IntakeEvent::End),
            Poll::Ready(Ok(_)) => None,
            Poll::Ready(Err(_)) => Some(IntakeEvent::Broken),
            Poll::Pending if self.phase.stage() == Stage::Parked => Some(IntakeEvent::Idle),
            // A request that has begun is still served.
            Poll::Pending if self.drain.is_closing() && !self.is_partial => Some(IntakeEvent::End),
            Poll::Pending => return Poll::Pending,
        })
    }

    /// Parses the head at the front of `ahead`. Returns `None` while it is incomplete.
    fn take_head<B>(
        &mut self,
        request: &mut Request<B>,
    ) -> Result<Option<RequestFraming>, Unreadable> {
        self.skip_blank_lines();
        let Some(mut head) = head::read(&self.ahead, request, self.bounds)? else {
            request.headers_mut().clear();
            return self.keep_partial().map(|()| None);
        };
        self.ahead.advance(head.length);
        if self.ahead.is_empty() {
            // Releases the buffer, which can be used again after the request.
            self.ahead = Bytes::new();
        }
        if head.error.is_none() && self.blank_bytes + head.length > self.bounds.bytes {
            head.error = Some(HeadError::TooLarge);
        }
        if std::mem::take(&mut self.has_bare_lf) {
            head.error = Some(HeadError::BareLf);
        }
        (self.blank_bytes, self.is_partial) = (0, false);
        self.phase.begin_request(!head.content.has_ended());
        Ok(Some(head))
    }

    /// Blank lines before a request line are skipped (RFC 9112 section 2.2).
    fn skip_blank_lines(&mut self) {
        loop {
            let length = match &*self.ahead {
                [b'\r', b'\n', ..] => 2,
                [b'\n', ..] => 1,
                _ => return,
            };
            self.has_bare_lf |= length == 1;
            self.blank_bytes += length;
            self.ahead.advance(length);
        }
    }

    /// Moves the beginning of a head to the read buffer, so that the rest is read behind it.
    #[cold]
    fn keep_partial(&mut self) -> Result<(), Unreadable> {
        let length = self.ahead.len();
        if self.is_too_long(length) {
            let error = head::exceeded(&self.ahead, self.bounds);
            return Err(Unreadable::TooLong(error));
        }
        let ahead = std::mem::take(&mut self.ahead);
        let mut read = BytesMut::with_capacity((2 * length).max(READ_BYTES));
        read.extend_from_slice(&ahead);
        self.read = read;
        self.is_partial = true;
        if self.phase.stage() != Stage::Head {
            self.phase.begin_head();
        }
        Ok(())
    }

    /// Returns the body of the request. Content that came with the head is in it already, so that
    /// both leave in one write. The rest is read into it later.
    pub(super) fn begin_content(&mut self, head: RequestFraming) -> RequestBody {
        let length = match &head.content {
            Content::Nothing => return RequestBody::Empty,
            content => content.known_left(),
        };
        let (writer, reader) = pipe(length);
        let mut body = RequestBody::piped(reader);
        if head.expects_continue {
            body.await_continue();
        }
        let mut content = head.content;
        if !head.expects_continue
            && matches!(content, Content::Length(_))
            && let Ok(ContentRead::Data(data)) = content.take(&mut self.ahead)
        {
            writer.put(data, content.has_ended());
            if content.has_ended() {
                self.phase.end_content();
            }
        }
        self.upload = Some(IncomingContent {
            content,
            pipe: writer,
            unsent_continue: if head.expects_continue { CONTINUE } else { b"" },
            is_requested: !head.expects_continue,
            discard_left: DISCARD_BYTES,
            is_resting: false,
            has_failed: false,
        });
        body
    }

    pub(super) fn has_failed(&self) -> bool {
        let upload = self.upload.as_ref();
        upload.is_some_and(|upload| upload.has_failed)
    }

    pub(super) fn poll_send_continue(&mut self, context: &mut Context<'_>) {
        let Some(upload) = &mut self.upload else {
            return;
        };
        if upload.unsent_continue.is_empty()
            || upload.pipe.poll_demand(context) != Poll::Ready(Demand::Piece)
        {
            return;
        }
        upload.is_requested = true;
        while !upload.unsent_continue.is_empty() {
            match Pin::new(&mut self.socket).poll_write(context, upload.unsent_continue) {
                Poll::Ready(Ok(count)) if count > 0 => {
                    upload.unsent_continue = &upload.unsent_continue[count..]
                }
                _ => return,
            }
        }
    }

    /// Returns the rest of a `100 Continue` that was written in part.
    pub(super) fn take_unsent_continue(&mut self) -> &'static [u8] {
        let Some(upload) = &mut self.upload else {
            return b"";
        };
        let left = std::mem::take(&mut upload.unsent_continue);
        match left.len() < CONTINUE.len() {
            true => left,
            false => b"",
        }
    }

    /// Reads content while the reader asks for it. Ready when no more is to be read.
    pub(super) fn poll_content(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(upload) = self.upload.as_mut().filter(|_| self.phase.has_content()) else {
                return Poll::Ready(());
            };
            if upload.has_failed {
                return Poll::Ready(());
            }
            let demand = upload.pipe.poll_demand(context);
            if demand.is_pending() {
                upload.is_resting = true;
                return Poll::Pending;
            }
            let rest = match demand {
                Poll::Ready(Demand::Gone(rest)) => Some(rest),
                _ => None,
            };
            if rest == Some(Rest::Unread) || rest.is_some() && !upload.is_requested {
                return Poll::Ready(());
            }
            if std::mem::take(&mut upload.is_resting) {
                self.socket.expect_content();
            }
            match upload.content.take(&mut self.ahead) {
                Ok(ContentRead::NeedsMore) => {
                    ready!(self.poll_read_content(context));
                    continue;
                }
                Ok(ContentRead::Data(data)) if rest.is_some() => {
                    let left = upload.discard_left.checked_sub(data.len() as u64);
                    let Some(left) = left else {
                        return Poll::Ready(());
                    };
                    upload.discard_left = left;
                }
                Ok(ContentRead::Data(data)) => {
                    upload.pipe.put(data, upload.content.has_ended());
                }
                Ok(ContentRead::Trailers(trailers)) => upload.pipe.end(Some(trailers)),
                Ok(ContentRead::Ended) => upload.pipe.end(None),
                Err(_) => upload.fail(BodyError::Broken),
            }
            if upload.content.has_ended() {
                self.phase.end_content();
            }
        }
    }

    /// Takes what was read. A small part of the buffer is copied, because the piece may be kept for
    /// long, and would keep the whole buffer.
    fn take_content(&mut self) -> Bytes {
        if self.read.len() >= self.read.capacity() / MAX_WASTE {
            return self.read.split().freeze();
        }
        let piece = Bytes::copy_from_slice(&self.read);
        self.read.clear();
        piece
    }

    fn poll_read_content(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(upload) = &mut self.upload else {
            return Poll::Ready(());
        };
        let wanted = upload.content.known_left().map_or(READ_BYTES, |left| {
            // A read that does not fill the buffer tells that the socket is empty.
            usize::try_from(left.saturating_add(1)).unwrap_or(MAX_READ_BYTES)
        });
        let wanted = wanted.clamp(MIN_READ_BYTES, MAX_READ_BYTES);
        if !self.read.try_reclaim(wanted) {
            self.read.reserve(wanted);
        }
        let reading = pin!(self.socket.read_buf(&mut self.read));
        match ready!(reading.poll(context)) {
            Ok(0) => upload.fail(BodyError::Broken),
            Ok(_) => {
                let more = self.take_content();
                self.ahead = match self.ahead.is_empty() {
                    true => more,
                    // Trailers that come in parts.
                    false => [&*self.ahead, &*more].concat().into(),
                };
            }
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                upload.fail(BodyError::TimedOut);
            }
            Err(_) => upload.fail(BodyError::Broken),
        }
        Poll::Ready(())
    }
}

impl IncomingContent {
    fn fail(&mut self, error: BodyError) {
        self.has_failed = true;
        self.pipe.fail(error);
    }
}
