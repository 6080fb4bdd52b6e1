//! One request on a connection that it shares with others.

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, SendStream};
use http::header::{CONNECTION, HOST, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body::{Body as _, Frame, SizeHint};
use tokio::runtime::Handle;

use super::upload::{Upload, pump};
use super::{Connection, Download};
use crate::body::RequestBody;
use crate::upstream::check_framing;
use crate::upstream::deadline::{Deadline, Task};
use crate::upstream::error::{Failure, HeadFault, UpstreamError};

/// One request's place on a connection, counted until it is dropped. Dropping it before its
/// response has ended resets the stream, which cancels the work upstream.
#[derive(Debug)]
pub(in crate::upstream) struct Stream {
    connection: Arc<Connection>,
    deadline: Arc<Deadline>,
    /// What names the server in a request that does not.
    host: HeaderValue,
    scheme: Scheme,
    upload: Task,
    /// The response's content, once its head has come.
    download: Option<Download>,
    /// The request once more, if it may have to be sent again.
    pub(in crate::upstream) retry_copy: Option<Request<RequestBody>>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.leave();
    }
}

impl Stream {
    pub(in crate::upstream) fn new(
        connection: Arc<Connection>,
        deadline: Arc<Deadline>,
        (scheme, host): (Scheme, HeaderValue),
    ) -> Stream {
        connection.enter();
        Stream {
            connection,
            deadline,
            host,
            scheme,
            upload: Task::none(),
            download: None,
            retry_copy: None,
        }
    }

    pub(in crate::upstream) fn deadline(&self) -> &Arc<Deadline> {
        &self.deadline
    }

    /// Sends the request and waits for the head of its response. The request is whole again if the
    /// server has not looked at it.
    pub(in crate::upstream) async fn exchange(
        &mut self,
        request: &mut Request<RequestBody>,
    ) -> Result<Response<()>, Failure> {
        let (parts, mut body) = std::mem::take(request).into_parts();
        let ends = body.is_end_stream();
        let (response, stream) = match self.begin(&parts, ends).await {
            Ok(begun) => begun,
            Err(error) => {
                // Nothing was sent, and nothing will be on this connection.
                self.connection.retire();
                *request = Request::from_parts(parts, body);
                return Err(Failure::Unsent(UpstreamError::of_http2(error)));
            }
        };
        self.deadline.await_head();
        let mut upload = None;
        if !ends {
            let deadline = Arc::clone(&self.deadline);
            let sending = Upload::new(std::mem::take(&mut body), deadline);
            self.upload = Task::of(&tokio::spawn(pump(stream, Arc::clone(&sending))));
            upload = Some(sending);
        }
        match self.answer(response).await {
            Some(Ok(response)) => {
                if let Some(upload) = upload {
                    upload.forget();
                }
                self.accept(response)
            }
            Some(Err(error)) => {
                let (failure, body) = self.refused(error, upload.as_deref());
                if let Some(body) = body {
                    *request = Request::from_parts(parts, body);
                }
                Err(failure)
            }
            None => Err(Failure::Sent(UpstreamError::TimedOut)),
        }
    }

    /// Opens a stream with the request's head.
    async fn begin(
        &self,
        parts: &Parts,
        ends: bool,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        // A sender of its own has no other stream to wait for: it is ready, or has failed.
        let mut sender = self.connection.sender.clone();
        poll_fn(|context| sender.poll_ready(context)).await?;
        sender.send_request(self.head(parts), ends)
    }

    /// The head of a response, or nothing in time. A connection on which nothing at all came
    /// while that time passed is not trusted with new requests.
    async fn answer(
        &self,
        mut response: ResponseFuture,
    ) -> Option<Result<Response<h2::RecvStream>, h2::Error>> {
        let before = self.connection.heard.load(Ordering::Relaxed);
        let answered = poll_fn(|context| {
            if let Poll::Ready(answered) = Pin::new(&mut response).poll(context) {
                return Poll::Ready(Some(answered));
            }
            self.deadline.poll(context).map(|()| None)
        })
        .await;
        self.deadline.end_head();
        if answered.is_some() {
            self.connection.hear();
        } else if self.connection.heard.load(Ordering::Relaxed) == before {
            self.connection.retire();
        }
        answered
    }

    fn accept(&mut self, response: Response<h2::RecvStream>) -> Result<Response<()>, Failure> {
        let fault = match response.status() {
            StatusCode::SWITCHING_PROTOCOLS => Some(HeadFault::UnaskedUpgrade),
            _ => check_framing(response.headers()).err(),
        };
        if let Some(fault) = fault {
            return Err(Failure::Sent(UpstreamError::Head(fault)));
        }
        let (parts, stream) = response.into_parts();
        let connection = Arc::clone(&self.connection);
        self.download = Some(Download::new(stream, connection, &parts.headers));
        Ok(Response::from_parts(parts, ()))
    }

    /// The next piece of the response's content.
    pub(in crate::upstream) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        match &mut self.download {
            Some(download) => download
                .poll_frame(context)
                .map_err(UpstreamError::of_http2),
            None => Poll::Ready(None),
        }
    }

    pub(in crate::upstream) fn is_end_stream(&self) -> bool {
        let download = self.download.as_ref();
        download.is_none_or(|download| download.is_end_stream())
    }

    pub(in crate::upstream) fn size_hint(&self) -> SizeHint {
        let download = self.download.as_ref();
        download.map_or(SizeHint::with_exact(0), |download| download.size_hint())
    }

    /// What it means that there is no response: a stream that the server refused, or began after
    /// saying goodbye, it has not looked at.
    /// Then the request's body comes back.
    fn refused(&self, error: h2::Error, upload: Option<&Upload>) -> (Failure, Option<RequestBody>) {
        if let Some(flaw) = upload.and_then(Upload::flaw) {
            return (Failure::Sent(UpstreamError::Request(flaw)), None);
        }
        let goodbye = error.is_go_away() && error.is_remote();
        let refused =
            error.is_reset() && error.is_remote() && error.reason() == Some(Reason::REFUSED_STREAM);
        if goodbye {
            self.connection.retire();
        }
        // What answers in another protocol has not looked at a request of this one.
        let is_foreign = error.is_library() && !self.connection.is_greeted();
        let body = match upload {
            None => Some(RequestBody::empty()),
            Some(upload) => upload.take_back(),
        };
        if is_foreign {
            self.connection.retire();
        }
        let error = match is_foreign {
            true => UpstreamError::NoHttp2(error),
            false if self.connection.is_silent() => UpstreamError::ConnectTimedOut,
            false => UpstreamError::of_http2(error),
        };
        match body {
            Some(body) if is_foreign => (Failure::Unsent(error), Some(body)),
            Some(body) if goodbye || refused => (Failure::Unsent(error), Some(body)),
            _ => (Failure::Sent(error), None),
        }
    }

    /// The request's head as HTTP/2 has it: without what HTTP/1.1 says of its connection, and with
    /// the host in the target.
    fn head(&self, parts: &Parts) -> Request<()> {
        let mut headers = parts.headers.clone();
        let host = headers.remove(HOST);
        for name in [CONNECTION, TRANSFER_ENCODING, UPGRADE] {
            headers.remove(name);
        }
        let authority = |host: &HeaderValue| Authority::try_from(host.as_bytes()).ok();
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(self.scheme.clone());
        uri.authority = host.as_ref().and_then(authority).or(authority(&self.host));
        uri.path_and_query = Some(
            parts
                .uri
                .path_and_query()
                .cloned()
                .unwrap_or(PathAndQuery::from_static("/")),
        );
        let mut request = Request::new(());
        *request.method_mut() = parts.method.clone();
        *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = headers;
        request
    }

    /// The response has been read to its end. A request that has not may still be read by the
    /// server: it gets the rest for as long as `most`.
    pub(in crate::upstream) fn end(mut self, most: Duration) {
        if let Some(upload) = self.upload.take_unfinished()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move {
                tokio::time::sleep(most).await;
                upload.abort();
            });
        }
    }
}
