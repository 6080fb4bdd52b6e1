//! HTTP/1 with clients: one task reads heads and content, has each request served and writes its
//! answer.
//!
//! ```text
//! intake    what comes from the client: heads, and content into a pipe
//! socket    the stream below, with its deadlines
//! ```
//!
//! A request is read once the one before it is answered. It must never answer what it does not
//! understand, nor end an answer that was cut.

mod intake;
pub(super) mod socket;

use std::future::{Future as _, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::header::{CONNECTION, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::Body as _;
use tokio::io::AsyncWrite as _;

use super::client_connection::ClientConnection;
use super::phase::Phase;
use crate::body::RequestBody;
use crate::http1::head::{self, RequestFraming, Unreadable};
use crate::http1::write::{self, AnswerFraming, AnswerTerms, Length};
use crate::proxy::body::Body;
use crate::proxy::headers::{RequestFault, check_coding};
use crate::proxy::local_reply;
use crate::proxy::upgrade::Tunnel;
use crate::request_head::HeadError;
use crate::telemetry::metrics::Unanswered;
use crate::wire::outflow::{MAX_PIECES, Outflow};
use crate::wire::{PrefixedStream, Stream};
use intake::{Intake, Next};
use socket::Socket;

/// Requests that are served one after the other while other connections wait.
const IN_A_ROW: usize = 16;
/// Bytes of an answer that are written before others have their turn: a tenth of a millisecond.
const TURN_BYTES: usize = 256 << 10;

/// How serving a connection ended.
pub(super) enum End {
    /// With the connection.
    Closed,
    /// The connection has been idle for a while.
    Idle(Stream),
    /// It has become a tunnel.
    Tunnel(Box<Tunnel>, Box<Socket>),
}

/// An answer is not to be continued, and its connection not to be used.
struct Cut;

impl From<io::Error> for Cut {
    fn from(_: io::Error) -> Cut {
        Cut
    }
}

/// See the file's head.
struct Http1Server<'c> {
    intake: Intake<'c>,
    phase: &'c Phase,
    client: &'c ClientConnection,
    outflow: Outflow,
    /// The request that is served, or room for the next one: a large thing, which stays in place.
    request: Request<RequestBody>,
    /// Its answer, likewise.
    answer: Response<Body>,
    /// Trailers that the answer has announced to a client that takes them.
    trailers: Vec<HeaderName>,
    /// Requests since it last waited for one.
    in_a_row: usize,
    /// The answer's content ended before its end.
    is_cut: bool,
}

/// What follows an answer.
enum Then {
    Another,
    Close,
    Tunnel(Tunnel),
}

/// Serves until either side ends the connection or it is idle, by what is configured as this
/// begins, except for each request itself.
pub(super) async fn serve(
    opened: PrefixedStream,
    client: &ClientConnection,
    phase: &Arc<Phase>,
) -> End {
    let mut server = Http1Server::new(opened, client, phase);
    loop {
        let next = poll_fn(|context| {
            let Http1Server {
                intake, request, ..
            } = &mut server;
            let next = intake.poll_next(request, context);
            if next.is_pending() {
                server.in_a_row = 0;
            }
            next
        });
        let head = match next.await {
            Next::Request(head) => head,
            Next::Unreadable(unreadable) => return server.refuse(unreadable).await,
            Next::Idle => return End::Idle(server.intake.socket.into_stream()),
            Next::Nothing => return server.close().await,
            Next::Broken => return End::Closed,
        };
        match server.serve(head).await {
            Ok(Then::Another) => {}
            Ok(Then::Close) => return server.close().await,
            Ok(Then::Tunnel(tunnel)) => {
                let socket = server.intake.into_socket();
                return End::Tunnel(Box::new(tunnel), Box::new(socket));
            }
            Err(Cut) => return End::Closed,
        }
        server.in_a_row += 1;
        if server.in_a_row >= IN_A_ROW {
            server.in_a_row = 0;
            tokio::task::yield_now().await;
        }
    }
}

impl Http1Server<'_> {
    fn new<'c>(
        opened: PrefixedStream,
        client: &'c ClientConnection,
        phase: &'c Arc<Phase>,
    ) -> Http1Server<'c> {
        Http1Server {
            intake: Intake::new(opened, client, phase),
            phase,
            client,
            outflow: Outflow::default(),
            request: Request::default(),
            answer: Response::new(Body::empty()),
            trailers: Vec::new(),
            in_a_row: 0,
            is_cut: false,
        }
    }

    /// Has a request served and writes its answer.
    async fn serve(&mut self, head: RequestFraming) -> Result<Then, Cut> {
        let mut asked = AnswerTerms {
            is_head: self.request.method() == Method::HEAD,
            is_http10: self.request.version() == http::Version::HTTP_10,
            may_follow: head.may_follow,
        };
        // Behind it the client may have sent what belongs into a tunnel that it does not get.
        let is_connect = self.request.method() == Method::CONNECT;
        let takes_trailers = head.takes_trailers;
        let error = head.error;
        let body = self.intake.begin_content(head);
        let is_discardable = body.is_discardable();
        *self.request.body_mut() = body;
        self.handle(error).await?;
        *self.request.body_mut() = RequestBody::Empty;
        let answer = &mut self.answer;
        let tunnel = answer.extensions_mut().remove::<Tunnel>();
        // The rest of the request will not be read, so nothing after it can be.
        let unread = !is_discardable && self.phase.has_content() && answer.body().is_made_here();
        let last = self.client.worker.drain.is_draining()
            && answer.status() != StatusCode::SWITCHING_PROTOCOLS;
        if unread || last || is_connect {
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(CONNECTION, close);
        }
        asked.may_follow &= !self.intake.has_failed();
        if takes_trailers {
            self.trailers = write::announced_trailers(answer.headers());
        }
        let may_follow = self.write_answer(asked).await?;
        if let Some(tunnel) = tunnel {
            self.phase.begin_tunnel();
            return Ok(Then::Tunnel(tunnel));
        }
        if !may_follow {
            return Ok(Then::Close);
        }
        if self.phase.has_content() {
            poll_fn(|context| self.intake.poll_content(context)).await;
            if self.phase.has_content() {
                return Ok(Then::Close);
            }
        }
        Ok(Then::Another)
    }

    /// Has the path answer the request. Content is read meanwhile, and the client's end seen.
    async fn handle(&mut self, error: Option<HeadError>) -> Result<(), Cut> {
        let Http1Server {
            request,
            answer,
            intake,
            client,
            ..
        } = self;
        let mut handling = pin!(client.handle(request, answer, error));
        poll_fn(|context| match handling.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending => {
                intake.ask_for_content(context);
                let _ = intake.poll_content(context);
                match Pin::new(&mut intake.socket).poll_flush(context) {
                    Poll::Ready(Err(_)) => Poll::Ready(Err(Cut)),
                    _ => Poll::Pending,
                }
            }
        })
        .await
    }

    /// Writes the answer. Tells whether another may follow.
    async fn write_answer(&mut self, asked: AnswerTerms) -> Result<bool, Cut> {
        let answer = &mut self.answer;
        let length = Length::of(answer.body());
        let at = self.client.worker.sweep.elapsed();
        self.outflow.clear();
        self.outflow
            .flat
            .extend_from_slice(self.intake.take_unwritten());
        let begun = write::put_head(&mut self.outflow.flat, answer, length, at, asked);
        let begun = begun.map_err(|_| Cut)?;
        // Its room is for the next request, and what its lines are parts of is free.
        std::mem::swap(self.request.headers_mut(), answer.headers_mut());
        head::blank(&mut self.request);
        write::blank(answer);
        let (mut left, mut framing) = (true, begun.framing);
        poll_fn(|context| {
            if self.phase.has_content() {
                let _ = self.intake.poll_content(context);
            }
            self.poll_write_content(&mut left, &mut framing, context)
        })
        .await?;
        Ok(begun.may_follow && !self.is_cut)
    }

    /// Writes what waits and, if anything is `left` to come of the answer's content, that. What
    /// comes as fast as it leaves is stopped now and then, or everybody else would wait for it.
    fn poll_write_content(
        &mut self,
        left: &mut bool,
        framing: &mut AnswerFraming,
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
                let flushed = Pin::new(&mut self.intake.socket).poll_flush(context)?;
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
        framing: &mut AnswerFraming,
        context: &mut Context<'_>,
    ) -> Result<Poll<()>, Cut> {
        while *left && self.outflow.has_room() {
            let content = self.answer.body_mut();
            let mut trailers = None;
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
                        Err(frame) => {
                            trailers = frame.into_trailers().ok();
                            ended = true;
                        }
                    },
                }
            }
            if ended {
                let trailers = trailers.as_ref().map(|fields| (fields, &*self.trailers));
                if framing.end(&mut self.outflow, trailers).is_err() {
                    self.cut(left);
                    break;
                }
                // What waits for its end is told now.
                *content = Body::empty();
                *left = false;
                self.trailers.clear();
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
        let socket = Pin::new(&mut self.intake.socket);
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

    /// Tells the client that its head cannot be read, and ends the connection.
    async fn refuse(mut self, unreadable: Unreadable) -> End {
        let (status, has_unknown_coding) = match unreadable {
            Unreadable::Malformed => (400, false),
            Unreadable::Coding => (400, self.names_unknown_coding()),
            Unreadable::TooLarge => (431, false),
            Unreadable::TargetTooLong => (414, false),
        };
        let answer = local_reply::unreadable_head(status, has_unknown_coding);
        let now = self.client.worker.serving.load();
        now.proxy.meter().unanswered(Unanswered::Unreadable);
        drop(now);
        let socket = &mut self.intake.socket;
        socket.note_refused();
        // One attempt: it is small enough for an empty socket buffer.
        let written = poll_fn(|context| {
            Poll::Ready(
                Pin::new(&mut *socket)
                    .poll_write(context, &answer)
                    .is_ready(),
            )
        });
        written.await;
        self.close().await
    }

    /// Whether the head names a transfer coding that is none of ours, and nothing worse.
    fn names_unknown_coding(&self) -> bool {
        let headers = self.request.headers();
        let lines = headers.get_all(http::header::TRANSFER_ENCODING).iter();
        let judged = lines.fold(None, |before, line| {
            Some(check_coding(line.as_bytes(), before))
        });
        !headers.contains_key(http::header::CONTENT_LENGTH)
            && judged == Some(Err(RequestFault::UnknownCoding))
    }

    /// Ends it in order.
    async fn close(mut self) -> End {
        // A client that does not take even that is gone.
        let _ = poll_fn(|context| Pin::new(&mut self.intake.socket).poll_shutdown(context)).await;
        End::Closed
    }
}
