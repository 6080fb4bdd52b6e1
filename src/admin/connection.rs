//! Operators' connections: HTTP/1.1, as many as are allowed, and no longer for a head or a body
//! than is allowed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::{Desk, answer};

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
    pub(super) fn serve(&self, stream: TcpStream, desk: &Arc<Desk>) {
        let Ok(permit) = Arc::clone(&self.0).try_acquire_owned() else {
            return;
        };
        let _ = stream.set_nodelay(true);
        let desk = Arc::clone(desk);
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let desk = Arc::clone(&desk);
                async move { Ok::<_, Infallible>(answer::answer(&desk, request).await) }
            });
            let serving = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(MOST_HEAD)
                .serve_connection(TokioIo::new(stream), service);
            // Whoever asked may go at any time.
            let _ = serving.await;
            drop(permit);
        });
    }
}
