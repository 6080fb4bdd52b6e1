//! HTTP/1 with clients. One task reads the heads and the content (`intake`), has each request
//! served, and writes its response. `socket` is the stream below, with its deadlines.
//!
//! The next request is read after the response to the one before. This code must never answer a
//! request that it does not understand, nor end a truncated response as if it were whole.

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

use super::worker::ClientConnection;
use crate::body::RequestBody;
use crate::http1::head::{self, RequestFraming, Unreadable};
use crate::http1::write::{self, ResponseFraming, ResponseTerms};
use crate::proxy::UnreadableHead;
use crate::proxy::body::Body;
use crate::proxy::decide;
use crate::proxy::headers::{RequestFault, check_coding};
use crate::proxy::upgrade::Tunnel;
use crate::request_head::HeadError;
use crate::wire::{MAX_PIECES, Outflow, PrefixedStream, Stream};
use intake::{Intake, IntakeEvent};
use socket::{Http1Socket, Phase};
use tidegate_core::exchange::changes::CloseUnanswered;

/// Requests of one connection that are served before other connections have their turn.
const IN_A_ROW: usize = 16;
/// Bytes of a response that are written before other connections have their turn: 0.1 ms of work.
const TURN_BYTES: usize = 256 << 10;

pub(super) enum Http1End {
    Closed,
    Idle(Stream),
    Tunnel(Box<Tunnel>, Box<Http1Socket>),
}

struct ConnectionLost;

impl From<io::Error> for ConnectionLost {
    fn from(_: io::Error) -> ConnectionLost {
        ConnectionLost
    }
}

struct Http1Server<'c> {
    intake: Intake<'c>,
    phase: &'c Phase,
    client: &'c ClientConnection,
    outflow: Outflow,
    /// The current request, or memory for the next one. It is large, so it is never moved.
    request: Request<RequestBody>,
    /// The response, which is never moved either.
    response: Response<Body>,
    /// How much of the response's content is left to write.
    framing: ResponseFraming,
    is_content_left: bool,
    is_truncated: bool,
    /// Trailers that the response has announced to a client that accepts them.
    trailers: Vec<HeaderName>,
    /// Requests since the task last waited for one.
    in_a_row: usize,
}

enum AfterResponse {
    NextRequest,
    Close,
    Tunnel(Tunnel),
}

/// Serves requests until either side ends the connection or it is idle. The settings of the
/// connection are those at its start; each request uses the current configuration.
pub(super) async fn serve(
    opened: PrefixedStream,
    client: &ClientConnection,
    phase: &Arc<Phase>,
) -> Http1End {
    let mut server = Http1Server {
        intake: Intake::new(opened, client, phase),
        phase,
        client,
        outflow: Outflow::default(),
        request: Request::default(),
        response: Response::new(Body::empty()),
        framing: ResponseFraming::Length(0),
        is_content_left: false,
        is_truncated: false,
        trailers: Vec::new(),
        in_a_row: 0,
    };
    loop {
        let event = poll_fn(|context| {
            let Http1Server {
                intake, request, ..
            } = &mut server;
            let event = intake.poll_next(request, context);
            if event.is_pending() {
                server.in_a_row = 0;
            }
            event
        });
        let framing = match event.await {
            IntakeEvent::Request(framing) => framing,
            IntakeEvent::Unreadable(unreadable) => return server.refuse(unreadable).await,
            IntakeEvent::Idle => return Http1End::Idle(server.intake.socket.stream),
            IntakeEvent::End => {
                if server.intake.has_late_head() {
                    client.note_unreadable(UnreadableHead::late());
                }
                return server.close().await;
            }
            IntakeEvent::Broken => return Http1End::Closed,
        };
        match server.serve_request(framing).await {
            Ok(AfterResponse::NextRequest) => {}
            Ok(AfterResponse::Close) => return server.close().await,
            Ok(AfterResponse::Tunnel(tunnel)) => {
                let socket = server.intake.into_socket();
                return Http1End::Tunnel(Box::new(tunnel), Box::new(socket));
            }
            Err(ConnectionLost) => return Http1End::Closed,
        }
        server.in_a_row += 1;
        if server.in_a_row >= IN_A_ROW {
            server.in_a_row = 0;
            tokio::task::yield_now().await;
        }
    }
}

impl Http1Server<'_> {
    async fn serve_request(
        &mut self,
        framing: RequestFraming,
    ) -> Result<AfterResponse, ConnectionLost> {
        let mut terms = ResponseTerms {
            is_head: self.request.method() == Method::HEAD,
            is_http10: self.request.version() == http::Version::HTTP_10,
            may_follow: framing.may_follow,
        };
        self.client.downstream.usage.count_request();
        let is_connect = self.request.method() == Method::CONNECT;
        let takes_trailers = framing.takes_trailers;
        let error = framing.error;
        let body = self.intake.begin_content(framing);
        let is_discardable = body.is_discardable();
        *self.request.body_mut() = body;
        self.handle(error).await?;
        *self.request.body_mut() = RequestBody::Empty;
        let response = &mut self.response;
        if response
            .extensions_mut()
            .remove::<CloseUnanswered>()
            .is_some()
        {
            return Err(ConnectionLost);
        }
        let tunnel = response.extensions_mut().remove::<Tunnel>();
        // The rest of the content will not be read, so the next request cannot be found.
        let is_unread =
            !is_discardable && self.phase.has_content() && response.body().is_made_here();
        let is_last = self.client.is_over() && response.status() != StatusCode::SWITCHING_PROTOCOLS;
        // After a CONNECT the client may have sent bytes for a tunnel that it does not get.
        if is_unread || is_last || is_connect {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        terms.may_follow &= !self.intake.has_failed();
        if takes_trailers || response.body().has_own_trailers() {
            self.trailers = write::announced_trailers(response.headers());
        }
        let may_follow = self.write_response(terms, tunnel.as_ref()).await?;
        if let Some(tunnel) = tunnel {
            self.phase.begin_tunnel();
            return Ok(AfterResponse::Tunnel(tunnel));
        }
        if may_follow && self.phase.has_content() {
            poll_fn(|context| self.intake.poll_content(context)).await;
        }
        Ok(match may_follow && !self.phase.has_content() {
            true => AfterResponse::NextRequest,
            false => AfterResponse::Close,
        })
    }

    /// Has the proxy answer the request. Meanwhile it reads content and notices if the client
    /// leaves.
    async fn handle(&mut self, error: Option<HeadError>) -> Result<(), ConnectionLost> {
        let Http1Server {
            request,
            response,
            intake,
            client,
            ..
        } = self;
        let mut handling = pin!(client.handle(request, response, error));
        poll_fn(|context| match handling.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending => {
                intake.poll_send_continue(context);
                let _ = intake.poll_content(context);
                match Pin::new(&mut intake.socket).poll_flush(context) {
                    Poll::Ready(Err(_)) => Poll::Ready(Err(ConnectionLost)),
                    _ => Poll::Pending,
                }
            }
        })
        .await
    }

    /// Writes the response, and tells it or its tunnel how many bytes it has.
    async fn write_response(
        &mut self,
        terms: ResponseTerms,
        tunnel: Option<&Tunnel>,
    ) -> Result<bool, ConnectionLost> {
        let response = &mut self.response;
        let length = write::length_of(response.body());
        let now = self.client.worker.sweep.elapsed();
        self.outflow.clear();
        self.outflow
            .flat
            .extend_from_slice(self.intake.take_unsent_continue());
        let start = write::put_head(&mut self.outflow.flat, response, length, now, terms);
        let start = start.map_err(|_| ConnectionLost)?;
        let head_bytes = self.outflow.flat.len();
        match tunnel {
            Some(tunnel) => tunnel.note_sent(head_bytes),
            None => response.body_mut().note_sent(head_bytes),
        }
        // The next request uses the memory of this response's header map, and the other way round.
        std::mem::swap(self.request.headers_mut(), response.headers_mut());
        head::reset(&mut self.request);
        write::reset(response);
        (self.is_content_left, self.framing) = (true, start.framing);
        poll_fn(|context| {
            if self.phase.has_content() {
                let _ = self.intake.poll_content(context);
            }
            self.poll_write_content(context)
        })
        .await?;
        Ok(start.may_follow && !self.is_truncated)
    }

    /// Writes all that waits, and the content that is left. Yields after [`TURN_BYTES`], so that a
    /// fast upstream and a fast client do not delay other connections.
    fn poll_write_content(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ConnectionLost>> {
        let mut turn = 0;
        loop {
            let is_waiting = self.fill_outflow(context)?.is_pending();
            while !self.outflow.is_empty() {
                turn += ready!(self.poll_write(context))?;
            }
            self.outflow.clear();
            if is_waiting || !self.is_content_left {
                let flushed = Pin::new(&mut self.intake.socket).poll_flush(context)?;
                return if is_waiting {
                    Poll::Pending
                } else {
                    flushed.map(Ok)
                };
            }
            if turn >= TURN_BYTES {
                // Wakes this task after all tasks that are ready by now.
                let _ = pin!(tokio::task::yield_now()).poll(context);
                return Poll::Pending;
            }
        }
    }

    /// Moves content from the body to the outflow, up to a bound. Pending if the body has no more.
    fn fill_outflow(&mut self, context: &mut Context<'_>) -> Result<Poll<()>, ConnectionLost> {
        while self.is_content_left && self.outflow.has_room() {
            let content = self.response.body_mut();
            let mut trailers = None;
            let mut has_ended = self.framing.has_ended() || content.is_end_stream();
            if !has_ended {
                match Pin::new(&mut *content).poll_frame(context) {
                    Poll::Pending => return Ok(Poll::Pending),
                    Poll::Ready(Some(Err(_))) => {
                        self.truncate();
                        break;
                    }
                    Poll::Ready(None) => has_ended = true,
                    Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                        Ok(data) => {
                            let before = self.outflow.put_bytes();
                            self.framing.put(&mut self.outflow, data);
                            content.note_sent(self.outflow.put_bytes() - before);
                            has_ended = self.framing.has_ended() || content.is_end_stream();
                        }
                        Err(frame) => {
                            trailers = frame.into_trailers().ok();
                            has_ended = true;
                        }
                    },
                }
            }
            if has_ended {
                let (trailers, before) = (trailers.as_ref(), self.outflow.put_bytes());
                let ended = self
                    .framing
                    .end(&mut self.outflow, trailers, &self.trailers);
                content.note_sent(self.outflow.put_bytes() - before);
                if ended.is_err() {
                    self.truncate();
                    break;
                }
                // The drop of the body reports the end of the response, before its last byte is
                // written.
                *content = Body::empty();
                self.is_content_left = false;
                self.trailers.clear();
                self.phase.end_response();
            }
        }
        Ok(Poll::Ready(()))
    }

    /// Ends a response whose content ended early. The client gets the head and the content so far,
    /// then the end of the connection. Without a byte of the response, it would send its request
    /// again.
    #[cold]
    fn truncate(&mut self) {
        *self.response.body_mut() = Body::empty();
        self.is_content_left = false;
        self.is_truncated = true;
    }

    /// Writes to the socket once. Returns the number of bytes.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let socket = Pin::new(&mut self.intake.socket);
        let written = match self.outflow.single_slice() {
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

    /// Tells the client that its head cannot be parsed, and closes the connection.
    async fn refuse(mut self, unreadable: Unreadable) -> Http1End {
        let head = match unreadable {
            Unreadable::Coding if self.names_unknown_coding() => {
                UnreadableHead::with_unknown_coding()
            }
            Unreadable::Coding | Unreadable::Malformed => UnreadableHead::malformed(),
            Unreadable::TooLong(error) => UnreadableHead::with_error(error),
        };
        let response = match self.client.is_decide_peer {
            true => decide::unreadable_head(),
            false => head.response(),
        };
        self.client.note_unreadable(head);
        let socket = &mut self.intake.socket;
        socket.refused = true;
        // One attempt is enough: the response fits into an empty socket buffer.
        poll_fn(|context| {
            let written = Pin::new(&mut *socket).poll_write(context, &response);
            Poll::Ready(written.is_ready())
        })
        .await;
        self.close().await
    }

    /// Whether an unknown transfer coding is the only fault of the head.
    fn names_unknown_coding(&self) -> bool {
        let headers = self.request.headers();
        let lines = headers.get_all(http::header::TRANSFER_ENCODING).iter();
        let checked = lines.fold(None, |before, line| {
            Some(check_coding(line.as_bytes(), before))
        });
        !headers.contains_key(http::header::CONTENT_LENGTH)
            && checked == Some(Err(RequestFault::UnknownCoding))
    }

    async fn close(mut self) -> Http1End {
        if self.is_truncated && self.framing == ResponseFraming::UntilEnd {
            // For a client of HTTP/1.0 an orderly end would be the end of the content.
            self.intake.socket.stream.end_as_cut();
            return Http1End::Closed;
        }
        // After an error the client is gone.
        let _ = poll_fn(|context| Pin::new(&mut self.intake.socket).poll_shutdown(context)).await;
        Http1End::Closed
    }
}
