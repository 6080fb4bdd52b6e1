//! What stands behind the proxies: echoes of gRPC and of tunnelled bytes, and bodies of any length.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

/// Bytes in one piece of a body that is made here.
const PIECE: usize = 64 << 10;

/// Where it listens.
pub struct Backend {
    pub plain: SocketAddr,
    pub h2: SocketAddr,
}

/// Starts both listeners on the current runtime.
pub async fn start() -> Backend {
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let h2 = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let found = Backend {
        plain: plain.local_addr().unwrap(),
        h2: h2.local_addr().unwrap(),
    };
    tokio::spawn(async move {
        loop {
            let (stream, _) = plain.accept().await.unwrap();
            let _ = stream.set_nodelay(true);
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(answer))
                .with_upgrades();
            tokio::spawn(connection);
        }
    });
    tokio::spawn(async move {
        loop {
            let (stream, _) = h2.accept().await.unwrap();
            let _ = stream.set_nodelay(true);
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .max_concurrent_streams(1000)
                .serve_connection(TokioIo::new(stream), service_fn(call));
            tokio::spawn(connection);
        }
    });
    found
}

/// A gRPC call whose answer is what it was asked, message by message.
async fn call(request: Request<Incoming>) -> Result<Response<Answer>, Infallible> {
    let mut response = Response::new(Answer::Echo(request.into_body(), false));
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, grpc);
    Ok(response)
}

/// `/bytes/N` sends N bytes; an upload is counted; an upgrade
/// is an echo.
async fn answer(mut request: Request<Incoming>) -> Result<Response<Answer>, Infallible> {
    if request.headers().contains_key(header::UPGRADE) {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let (mut reads, mut writes) = tokio::io::split(TokioIo::new(upgrade.await.unwrap()));
            let _ = tokio::io::copy(&mut reads, &mut writes).await;
        });
        let mut response = Response::new(Answer::Bytes(0));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        return Ok(response);
    }
    let path = request.uri().path().to_owned();
    if let Some(length) = path.strip_prefix("/bytes/") {
        return Ok(Response::new(Answer::Bytes(length.parse().unwrap())));
    }
    let mut counted = 0;
    let mut body = request.into_body();
    while let Some(Ok(frame)) = body.frame().await {
        counted += frame.data_ref().map_or(0, Bytes::len) as u64;
    }
    let mut response = Response::new(Answer::Bytes(2));
    let counted = HeaderValue::from(counted);
    response.headers_mut().insert("x-counted", counted);
    Ok(response)
}

/// A response's body.
pub enum Answer {
    /// So many bytes are left.
    Bytes(u64),
    /// What comes, and whether the trailers have been sent.
    Echo(Incoming, bool),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        static ZEROS: [u8; PIECE] = [0; PIECE];
        match &mut *self {
            Answer::Bytes(0) | Answer::Echo(_, true) => Poll::Ready(None),
            Answer::Bytes(left) => {
                let piece = (*left).min(PIECE as u64);
                *left -= piece;
                let bytes = Bytes::from_static(&ZEROS[..piece as usize]);
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Answer::Echo(incoming, ended) => match Pin::new(incoming).poll_frame(context) {
                Poll::Ready(None) => {
                    *ended = true;
                    let mut trailers = HeaderMap::new();
                    trailers.insert("grpc-status", HeaderValue::from_static("0"));
                    Poll::Ready(Some(Ok(Frame::trailers(trailers))))
                }
                other => other,
            },
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Bytes(left) => SizeHint::with_exact(*left),
            Answer::Echo(..) => SizeHint::default(),
        }
    }
}
