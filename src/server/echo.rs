//! A small HTTP server that answers with what it was asked: the upstream of `tidegate demo`.
//!
//! It is here so that the first command a stranger runs needs nothing else. It must never be used
//! for anything but a look: it has no limits beyond hyper's.

use std::convert::Infallible;
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;

use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// How much of a request's body is read, bytes.
const BODY_BYTES: usize = 1 << 20;

/// Starts the echo server on a free loopback port, on a thread of its own that ends with the
/// process.
///
/// # Errors
/// No port or no thread could be had.
pub fn start() -> io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::Builder::new()
        .name("echo".to_owned())
        .spawn(move || {
            runtime.block_on(async move {
                if let Ok(listener) = TcpListener::from_std(listener) {
                    serve(listener).await;
                }
            });
        })?;
    Ok(address)
}

async fn serve(listener: TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(answer));
            // A client that went away is nobody's fault.
            let _ = connection.await;
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut text = format!("{} {}\n", request.method(), request.uri());
    for (name, value) in request.headers() {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{name}: {}",
            String::from_utf8_lossy(value.as_bytes())
        );
    }
    let body = Limited::new(request.into_body(), BODY_BYTES)
        .collect()
        .await;
    let bytes = body.map_or(0, |body| body.to_bytes().len());
    let _ = writeln!(
        text,
        "\n{bytes} bytes of body. This is tidegate's built-in echo upstream."
    );
    let mut response = Response::new(Full::from(text));
    response.headers_mut().insert(
        http::header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    Ok(response)
}
