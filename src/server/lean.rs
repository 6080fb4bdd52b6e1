//! HTTP/1.1 as nearly all clients speak it nearly always, without hyper: requests that have no
//! content and ask for nothing special, each in a head that came whole.
//!
//! ```text
//! head      a head that is plain: what it says       pure
//! answer    the answer as bytes, framed              pure
//! date      its date
//! ```
//!
//! Everything else is hyper's: the connection is handed over with every byte of it, as if nobody
//! had looked, until it has been idle for a while. The socket below is the same, with its deadlines
//! and its checks, and so is every byte of an answer but for where chunks begin.
//!
//! It must never answer what it does not understand, nor end an answer that was cut.

mod answer;
mod date;
mod head;
#[cfg(test)]
mod likeness;

use std::future::{Future as _, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{CONNECTION, HeaderValue};
use http::{Method, Request, Response};
use http_body::Body as _;
use tokio::io::{AsyncReadExt as _, AsyncWrite as _};

use super::connection::Client;
use super::drain::Drain;
use super::phase::{Phase, Stage};
use super::socket::Socket;
use crate::body::RequestBody;
use crate::clock::Sweep;
use crate::proxy::body::Body;
use crate::wire::outflow::{MAX_PIECES, Outflow};
use crate::wire::{PrefixedStream, Stream};
use answer::{Asked, Framing, Length};
use head::Bounds;

/// Bytes that are read at once.
const READ_BYTES: usize = 8 << 10;
/// Where less room than this is left, new room is made.
const MIN_READ_BYTES: usize = 4 << 10;
/// Requests that are served one after the other while other connections wait.
const IN_A_ROW: usize = 16;
/// Bytes of an answer that are written before others have their turn: a tenth of a millisecond.
const TURN_BYTES: usize = 256 << 10;

/// How it ended.
pub(super) enum End {
    /// With the connection.
    Closed,
    /// The connection has been idle for a while.
    Idle(Stream),
    /// What comes next is for hyper; nothing of it was taken.
    Odd(Socket),
}

/// What comes next on a connection.
enum Next {
    Request(Asked),
    Odd,
    Idle,
    /// Nothing: either side ends it.
    Nothing,
    Broken,
}

/// An answer is not to be continued, and its connection not to be used.
struct Cut;

impl From<io::Error> for Cut {
    fn from(_: io::Error) -> Cut {
        Cut
    }
}

/// See the file's head.
struct Speaker<'c> {
    socket: Socket,
    phase: &'c Phase,
    drain: &'c Drain,
    sweep: &'c Sweep,
    /// Room to read into.
    read: BytesMut,
    /// What was read and belongs to nobody yet, unless that is all in `read`.
    ahead: Bytes,
    outflow: Outflow,
    /// The request that is served, or room for the next one: a large thing, which stays in place.
    request: Request<RequestBody>,
    /// Its answer, likewise.
    answer: Response<Body>,
    bounds: Bounds,
    /// Requests since it last waited for one.
    in_a_row: usize,
    /// The answer's content ended before its end.
    is_cut: bool,
}

/// Serves until either side ends the connection, it is idle, or something comes that is not plain;
/// by what is configured as this begins, except for each request itself.
pub(super) async fn speak(opened: PrefixedStream, client: &Client, phase: &Arc<Phase>) -> End {
    let mut speaker = Speaker::new(opened, client, phase);
    loop {
        let answered = match poll_fn(|context| speaker.poll_next(context)).await {
            Next::Request(asked) => {
                let handled = {
                    let Speaker {
                        request,
                        answer,
                        socket,
                        ..
                    } = &mut speaker;
                    let mut handling = pin!(client.handle((request, answer), None));
                    poll_fn(|context| match handling.as_mut().poll(context) {
                        Poll::Ready(()) => Poll::Ready(Ok(())),
                        // So a client's end is seen.
                        Poll::Pending => match Pin::new(&mut *socket).poll_flush(context) {
                            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                            _ => Poll::Pending,
                        },
                    })
                    .await
                };
                if handled.is_err() {
                    return End::Closed;
                }
                speaker.answer(asked).await
            }
            Next::Odd => return End::Odd(speaker.give_back()),
            Next::Idle => return End::Idle(speaker.socket.into_stream()),
            Next::Nothing => return speaker.close().await,
            Next::Broken => return End::Closed,
        };
        let Ok(may_follow) = answered else {
            return End::Closed;
        };
        if !may_follow {
            return speaker.close().await;
        }
        speaker.in_a_row += 1;
        if speaker.in_a_row >= IN_A_ROW {
            speaker.in_a_row = 0;
            tokio::task::yield_now().await;
        }
    }
}

impl Speaker<'_> {
    fn new<'c>(opened: PrefixedStream, client: &'c Client, phase: &'c Arc<Phase>) -> Speaker<'c> {
        let now = client.worker.serving.load();
        let settings = &now.settings;
        Speaker {
            socket: Socket::new(opened, Arc::clone(phase), settings).unlinted(),
            phase,
            drain: &client.worker.drain,
            sweep: &client.worker.sweep,
            read: BytesMut::new(),
            ahead: Bytes::new(),
            outflow: Outflow::default(),
            request: Request::default(),
            answer: Response::new(Body::empty()),
            bounds: Bounds {
                lines: settings.max_headers,
                bytes: settings.max_header_bytes,
            },
            in_a_row: 0,
            is_cut: false,
        }
    }

    /// The connection as it was before anything was read that is not answered.
    fn give_back(mut self) -> Socket {
        self.socket.unread(self.ahead);
        self.socket
    }

    fn socket_flushed(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    /// Ends it in order.
    async fn close(mut self) -> End {
        // A client that does not take even that is gone.
        let _ = poll_fn(|context| Pin::new(&mut self.socket).poll_shutdown(context)).await;
        End::Closed
    }

    /// Waits for the next head.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        if self.ahead.is_empty() {
            // As a rule nobody holds what was read before: its memory is still in the caches.
            if !self.read.try_reclaim(READ_BYTES) && self.read.capacity() < MIN_READ_BYTES {
                self.read.reserve(READ_BYTES);
            }
            let reading = pin!(self.socket.read_buf(&mut self.read));
            match reading.poll(context) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Next::Nothing),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Next::Broken),
                Poll::Pending if self.phase.stage() == Stage::Parked => {
                    return Poll::Ready(Next::Idle);
                }
                // What has come is served: only who has asked for nothing is closed.
                Poll::Pending if self.drain.is_closing() => return Poll::Ready(Next::Nothing),
                Poll::Pending => {
                    self.in_a_row = 0;
                    return Poll::Pending;
                }
            }
        }
        if self.ahead.is_empty() {
            self.ahead = self.read.split().freeze();
        }
        Poll::Ready(self.take().map_or(Next::Odd, Next::Request))
    }

    /// The request at the front of what was read, if it is plain.
    fn take(&mut self) -> Option<Asked> {
        let Some(head) = head::read(&self.ahead, &mut self.request, self.bounds) else {
            head::blank(&mut self.request);
            return None;
        };
        self.ahead.advance(head.length);
        if self.ahead.is_empty() {
            // Its memory is to be had again once the request is gone.
            self.ahead = Bytes::new();
        }
        self.phase.begin_request(false);
        Some(Asked {
            is_head: self.request.method() == Method::HEAD,
            may_follow: head.may_follow,
        })
    }

    /// Writes the answer. Tells whether another may follow.
    async fn answer(&mut self, asked: Asked) -> Result<bool, Cut> {
        let answer = &mut self.answer;
        if self.drain.is_draining() {
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(CONNECTION, close);
        }
        let told = (Length::of(answer.body()), self.sweep.elapsed());
        self.outflow.clear();
        let begun = answer::put_head(&mut self.outflow.flat, answer, told, asked);
        let (mut framing, may_follow) = begun.map_err(|_| Cut)?;
        // Its room is for the next request, and what its lines are parts of is free.
        std::mem::swap(self.request.headers_mut(), answer.headers_mut());
        head::blank(&mut self.request);
        answer::blank(answer);
        let mut left = true;
        poll_fn(|context| self.poll_content(&mut left, &mut framing, context)).await?;
        Ok(may_follow && !self.is_cut)
    }

    /// Writes what waits and, if anything is `left` to come of the answer's content, that. What
    /// comes as fast as it leaves is stopped now and then, or everybody else would wait for it.
    fn poll_content(
        &mut self,
        left: &mut bool,
        framing: &mut Framing,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Cut>> {
        let mut turn = 0;
        loop {
            let waits = self.fill(left, framing, context)?.is_pending();
            while !self.outflow.is_empty() {
                turn += ready!(self.poll_write(context))?;
            }
            self.outflow.clear();
            if waits || !*left {
                let flushed = self.socket_flushed(context)?;
                return if waits {
                    Poll::Pending
                } else {
                    flushed.map(Ok)
                };
            }
            if turn >= TURN_BYTES {
                // Until those have had their turn who were ready before, or have become so.
                let _ = pin!(tokio::task::yield_now()).poll(context);
                return Poll::Pending;
            }
        }
    }

    /// Puts what comes of the content behind what waits, up to a bound. Pending if nothing more
    /// has come.
    fn fill(
        &mut self,
        left: &mut bool,
        framing: &mut Framing,
        context: &mut Context<'_>,
    ) -> Result<Poll<()>, Cut> {
        while *left && self.outflow.has_room() {
            let content = self.answer.body_mut();
            let mut ended = framing.has_ended() || content.is_end_stream();
            if !ended {
                match Pin::new(&mut *content).poll_frame(context) {
                    Poll::Pending => return Ok(Poll::Pending),
                    Poll::Ready(Some(Err(_))) => {
                        self.cut(left);
                        break;
                    }
                    Poll::Ready(None) => ended = true,
                    Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                        Ok(data) => {
                            framing.put(&mut self.outflow, data);
                            ended = framing.has_ended() || content.is_end_stream();
                        }
                        // Trailers, for which a plain request has not asked.
                        Err(_) => ended = true,
                    },
                }
            }
            if ended && framing.end(&mut self.outflow).is_err() {
                self.cut(left);
            } else if ended {
                // What waits for its end is told now.
                *content = Body::empty();
                *left = false;
                self.phase.end_response();
            }
        }
        Ok(Poll::Ready(()))
    }

    /// The content has ended before its end. The client gets what came of it, and then the end of
    /// the connection: without a word of an answer it would send its request again.
    #[cold]
    fn cut(&mut self, left: &mut bool) {
        *self.answer.body_mut() = Body::empty();
        *left = false;
        self.is_cut = true;
    }

    /// Writes what waits, once; so many bytes of it.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let socket = Pin::new(&mut self.socket);
        let written = match self.outflow.one() {
            Some(one) => socket.poll_write(context, one),
            None => {
                let mut slices = [IoSlice::new(&[]); MAX_PIECES];
                let count = self.outflow.slices(&mut slices);
                socket.poll_write_vectored(context, &slices[..count])
            }
        };
        match ready!(written)? {
            0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            count => {
                self.outflow.advance(count);
                Poll::Ready(Ok(count))
            }
        }
    }
}
