//! An honest client of HTTP/2: the h2 library.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use http::{HeaderMap, Request};
use tokio::net::TcpStream;

use crate::house::PATIENCE;
use crate::support::on_a_worker;

/// Runs a test's body, for as long as anything may take.
pub fn run<F: Future>(body: F) -> F::Output {
    on_a_worker(async { tokio::time::timeout(PATIENCE, body).await.unwrap() })
}

/// A request for `path` of the host `test`.
pub fn get(path: &str) -> Request<()> {
    Request::get(format!("http://test{path}")).body(()).unwrap()
}

pub struct Http2(SendRequest<Bytes>);

/// A whole response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub trailers: Option<HeaderMap>,
}

impl Http2 {
    pub async fn to(address: SocketAddr) -> Http2 {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (send, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        Http2(send)
    }

    /// Whether another request may begin on this connection.
    pub async fn is_ready(&self) -> Result<(), h2::Error> {
        self.0.clone().ready().await.map(drop)
    }

    /// Sends a request without a body and reads its response.
    pub async fn ask(&self, request: Request<()>) -> Result<Reply, h2::Error> {
        let mut send = self.0.clone().ready().await?;
        let (response, _) = send.send_request(request, true)?;
        read(response).await
    }

    /// Sends the head of a request that has a body.
    pub async fn begin(&self, request: Request<()>) -> (ResponseFuture, SendStream<Bytes>) {
        let mut send = self.0.clone().ready().await.unwrap();
        send.send_request(request, false).unwrap()
    }
}

/// Reads a response to its end.
pub async fn read(response: ResponseFuture) -> Result<Reply, h2::Error> {
    let (head, mut incoming) = response.await?.into_parts();
    let mut body = BytesMut::new();
    while let Some(piece) = incoming.data().await {
        let piece = piece?;
        incoming.flow_control().release_capacity(piece.len())?;
        body.extend_from_slice(&piece);
    }
    Ok(Reply {
        status: head.status.as_u16(),
        headers: head.headers,
        body: body.freeze(),
        trailers: incoming.trailers().await?,
    })
}
