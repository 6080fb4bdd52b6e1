//! What comes from a client: heads one after the other, and the content behind each, which goes
//! into a pipe as it is asked for.

use std::future::Future as _;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http::Request;
use tokio::io::{AsyncReadExt as _, AsyncWrite as _};

use super::socket::Socket;
use crate::body::{BodyError, DISCARD_BYTES, Demand, PipeWriter, RequestBody, Rest, pipe};
use crate::http1::content::{Content, Piece, Taken};
use crate::http1::head::{self, HeadBounds, RequestFraming, Unreadable};
use crate::request_head::HeadError;
use crate::server::client_connection::ClientConnection;
use crate::server::drain::Drain;
use crate::server::phase::{Phase, Stage};
use crate::wire::PrefixedStream;

/// Bytes that are read at once.
const READ_BYTES: usize = 8 << 10;
/// Where less room than this is left, new room is made.
const MIN_READ_BYTES: usize = 4 << 10;
/// Bytes of long content that are read at once.
const MAX_READ_BYTES: usize = 64 << 10;
/// Bytes of a head that is answered, not only refused, at least.
const MIN_HEAD_BYTES: usize = 16 << 10;
/// What asks a client for its content.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What comes next on a connection.
pub(super) enum Next {
    Request(RequestFraming),
    Unreadable(Unreadable),
    Idle,
    /// Nothing: either side ends it.
    Nothing,
    Broken,
}

/// See the file's head.
pub(super) struct Intake<'c> {
    pub(super) socket: Socket,
    phase: &'c Phase,
    drain: &'c Drain,
    /// Room to read into; where `is_partial`, it has the beginning of a head.
    read: BytesMut,
    is_partial: bool,
    /// What was read and belongs to nobody yet.
    ahead: Bytes,
    /// Blank lines before the next head: their bytes, and whether one ended in LF alone.
    blank_bytes: usize,
    has_bare_lf: bool,
    bounds: HeadBounds,
    content: Option<IncomingContent>,
}

/// The content of the request that is served.
struct IncomingContent {
    content: Content,
    pipe: PipeWriter,
    /// Of the words that ask for it, what is to be written.
    unasked: &'static [u8],
    is_asked_for: bool,
    /// Bytes that are still read and thrown away.
    discard_left: u64,
    /// Nobody asked for more, so the client is not waited for.
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
            socket: Socket::new(opened, Arc::clone(phase)),
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
            content: None,
        }
    }

    /// The socket, with what was read of it and not used.
    pub(super) fn into_socket(mut self) -> Socket {
        self.socket.unread(self.ahead);
        self.socket
    }

    /// Waits for the next head, and reads it into `request`.
    pub(super) fn poll_next<B>(
        &mut self,
        request: &mut Request<B>,
        context: &mut Context<'_>,
    ) -> Poll<Next> {
        self.content = None;
        loop {
            if !self.ahead.is_empty() {
                match self.take(request) {
                    Ok(Some(head)) => return Poll::Ready(Next::Request(head)),
                    Ok(None) => {}
                    Err(unreadable) => return Poll::Ready(Next::Unreadable(unreadable)),
                }
            }
            if let Some(next) = ready!(self.poll_read_head(context)) {
                return Poll::Ready(next);
            }
            match self.is_partial && !self.is_whole() {
                true => {}
                false => self.ahead = self.read.split().freeze(),
            }
        }
    }

    /// Whether the bytes that were read of a head are worth another look.
    fn is_whole(&mut self) -> bool {
        if self.read.len() + self.blank_bytes >= (2 * self.bounds.bytes).max(MIN_HEAD_BYTES) {
            return true;
        }
        // What cannot be read is found where it is taken.
        head::is_whole(&self.read, self.bounds).unwrap_or(true)
    }

    /// Reads more. Ready with what that means where it is no more bytes.
    fn poll_read_head(&mut self, context: &mut Context<'_>) -> Poll<Option<Next>> {
        // As a rule nobody holds what was read before: its memory is still in the caches.
        let room = self.read.capacity() - self.read.len();
        if !self.read.try_reclaim(READ_BYTES) && room < MIN_READ_BYTES {
            self.read.reserve(READ_BYTES);
        }
        let reading = pin!(self.socket.read_buf(&mut self.read));
        Poll::Ready(match reading.poll(context) {
            Poll::Ready(Ok(0)) => Some(Next::Nothing),
            Poll::Ready(Ok(_)) => None,
            Poll::Ready(Err(_)) => Some(Next::Broken),
            Poll::Pending if self.phase.stage() == Stage::Parked => Some(Next::Idle),
            // What has come is served: only who has asked for nothing is closed.
            Poll::Pending if self.drain.is_closing() && !self.is_partial => Some(Next::Nothing),
            Poll::Pending => return Poll::Pending,
        })
    }

    /// Takes the head at the front of what was read; nothing if its end has not come.
    fn take<B>(&mut self, request: &mut Request<B>) -> Result<Option<RequestFraming>, Unreadable> {
        self.skip_blank_lines();
        let Some(mut head) = head::read(&self.ahead, request, self.bounds)? else {
            request.headers_mut().clear();
            return self.keep_partial().map(|()| None);
        };
        self.ahead.advance(head.length);
        if self.ahead.is_empty() {
            // Its memory is to be had again once the request is gone.
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

    /// Keeps the beginning of a head where the rest can be read behind it.
    #[cold]
    fn keep_partial(&mut self) -> Result<(), Unreadable> {
        let length = self.ahead.len();
        if length + self.blank_bytes >= (2 * self.bounds.bytes).max(MIN_HEAD_BYTES) {
            return Err(Unreadable::TooLarge);
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

    /// The content behind a head, as it will come.
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
        self.content = Some(IncomingContent {
            content: head.content,
            pipe: writer,
            unasked: if head.expects_continue { CONTINUE } else { b"" },
            is_asked_for: !head.expects_continue,
            discard_left: DISCARD_BYTES,
            is_resting: false,
            has_failed: false,
        });
        body
    }

    /// Whether the content has not reached its end, and will not.
    pub(super) fn has_failed(&self) -> bool {
        self.content
            .as_ref()
            .is_some_and(|upload| upload.has_failed)
    }

    /// Asks the client for its content, if somebody wants it.
    pub(super) fn ask_for_content(&mut self, context: &mut Context<'_>) {
        let Some(upload) = &mut self.content else {
            return;
        };
        if upload.unasked.is_empty()
            || upload.pipe.poll_demand(context) != Poll::Ready(Demand::Piece)
        {
            return;
        }
        upload.is_asked_for = true;
        while !upload.unasked.is_empty() {
            match Pin::new(&mut self.socket).poll_write(context, upload.unasked) {
                Poll::Ready(Ok(count)) if count > 0 => upload.unasked = &upload.unasked[count..],
                _ => return,
            }
        }
    }

    /// What was begun to be written of the words that ask for content.
    pub(super) fn take_unwritten(&mut self) -> &'static [u8] {
        let Some(upload) = &mut self.content else {
            return b"";
        };
        let left = std::mem::take(&mut upload.unasked);
        match left.len() < CONTINUE.len() {
            true => left,
            false => b"",
        }
    }

    /// Reads content as somebody takes it. Ready when nothing more is to be read of it.
    pub(super) fn poll_content(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(upload) = self.content.as_mut().filter(|_| self.phase.has_content()) else {
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
            if rest == Some(Rest::Unread) || rest.is_some() && !upload.is_asked_for {
                return Poll::Ready(());
            }
            if std::mem::take(&mut upload.is_resting) {
                self.socket.expect_content();
            }
            match upload.content.take(&mut self.ahead) {
                Ok(Taken::Piece(piece)) => {
                    if !self.pass_on(piece, rest.is_some()) {
                        return Poll::Ready(());
                    }
                }
                Ok(Taken::Ended) => {
                    upload.pipe.end(None);
                    self.phase.end_content();
                }
                Ok(Taken::NeedsMore) => ready!(self.poll_read_content(context)),
                Err(_) => self.fail(BodyError::Broken),
            }
        }
    }

    /// Passes a piece on, or throws it away. Returns whether more may be read.
    fn pass_on(&mut self, piece: Piece, is_discarded: bool) -> bool {
        let Some(upload) = &mut self.content else {
            return false;
        };
        let has_ended = upload.content.has_ended();
        match piece {
            Piece::Data(data) if is_discarded => {
                let left = upload.discard_left.checked_sub(data.len() as u64);
                let Some(left) = left else {
                    return false;
                };
                upload.discard_left = left;
            }
            Piece::Data(data) => upload.pipe.put(data, has_ended),
            Piece::Trailers(trailers) => upload.pipe.end(Some(trailers)),
        }
        if has_ended {
            self.phase.end_content();
        }
        true
    }

    fn poll_read_content(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let known = self
            .content
            .as_ref()
            .and_then(|upload| upload.content.known_left());
        let known = known.map_or(READ_BYTES, |left| {
            usize::try_from(left).unwrap_or(MAX_READ_BYTES)
        });
        let room = known.clamp(MIN_READ_BYTES, MAX_READ_BYTES);
        if !self.read.try_reclaim(room) {
            self.read.reserve(room);
        }
        let reading = pin!(self.socket.read_buf(&mut self.read));
        match ready!(reading.poll(context)) {
            Ok(0) => self.fail(BodyError::Broken),
            Ok(_) => {
                let more = self.read.split().freeze();
                self.ahead = match self.ahead.is_empty() {
                    true => more,
                    // Trailers that come in parts.
                    false => [&*self.ahead, &*more].concat().into(),
                };
            }
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                self.fail(BodyError::TimedOut);
            }
            Err(_) => self.fail(BodyError::Broken),
        }
        Poll::Ready(())
    }

    fn fail(&mut self, error: BodyError) {
        if let Some(upload) = &mut self.content {
            upload.has_failed = true;
            upload.pipe.fail(error);
        }
    }
}
