//! Operators' connections: HTTP/1.1, as many as are allowed, and no longer for a head or a body
//! than is allowed.

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::{AdminState, answer};

/// Connections at once; those beyond are closed unanswered.
const MOST: usize = 64;
/// For a request's head to come, and between two of them.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a request's head.
const MOST_HEAD: usize = 16 << 10;

/// See the file's head.
#[derive(Debug)]
pub(super) struct Connections(Arc<Semaphore>);

impl Default for Connections {
    fn default() -> Connections {
        Connections(Arc::new(Semaphore::new(MOST)))
    }
}

impl Connections {
    /// Serves whoever is at the other end of `stream`, beside all others.
    pub(super) fn serve(&self, stream: TcpStream, state: &Arc<AdminState>) {
        let Ok(permit) = Arc::clone(&self.0).try_acquire_owned() else {
            return;
        };
        let _ = stream.set_nodelay(true);
        let state = Arc::clone(state);
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let state = Arc::clone(&state);
                async move { Ok::<_, Infallible>(answer::answer(&state, request).await) }
            });
            speak(stream, service, HEAD_TIMEOUT).await;
            drop(permit);
        });
    }
}

/// Answers what comes on `stream`, each head of which has so long to come.
async fn speak<S, B>(stream: TcpStream, service: S, head_timeout: Duration)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_buf_size(MOST_HEAD)
        // Whoever says all at once, and that it was all, is answered. No answer is without an end.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    // Whoever asked may go at any time.
    let _ = serving.await;
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Empty;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// More than it should ever take.
    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn who_has_said_all_is_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        let head = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
        client.write_all(head).await.unwrap();
        client.shutdown().await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let service = service_fn(|_| async {
            tokio::task::yield_now().await;
            let nothing: Empty<Bytes> = Empty::new();
            Ok::<_, Infallible>(Response::new(nothing))
        });
        let serving = tokio::spawn(speak(stream, service, PATIENCE));
        let mut said = String::new();
        client.read_to_string(&mut said).await.unwrap();
        assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn a_head_that_does_not_come_in_time_ends_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        for begun in ["", "GET /healthz HTTP/1.1\r\nHost: local"] {
            let mut client = TcpStream::connect(address).await.unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let service = service_fn(|_| async {
                let nothing: Empty<Bytes> = Empty::new();
                Ok::<_, Infallible>(Response::new(nothing))
            });
            let serving = tokio::spawn(speak(stream, service, Duration::from_millis(500)));
            // Whoever has been answered has as long for the next one.
            client
                .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .await
                .unwrap();
            client.write_all(begun.as_bytes()).await.unwrap();
            let mut said = String::new();
            let ended = client.read_to_string(&mut said);
            tokio::time::timeout(PATIENCE, ended)
                .await
                .unwrap()
                .unwrap();
            assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
            tokio::time::timeout(PATIENCE, serving)
                .await
                .unwrap()
                .unwrap();
        }
    }
}
