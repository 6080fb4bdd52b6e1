//! The admin's listening socket and its connections: HTTP/1.1, bounded in number, in the time for a
//! head, and in the size of a head.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Sleep, sleep};

use super::answer::answer;
use super::state::{AdminState, check_store};
use crate::config::{Listen, SettingError};
use crate::server::listener::{OpenedSocket, bind_tcp};
use crate::server::port_sharing;
use crate::server::{Lifecycle, Shutdown};
use tidegate_core::failpoint;

/// Open connections. Further ones are closed without an answer.
const MAX_CONNECTIONS: u32 = 64;
/// How long a head may take to arrive, and how long a connection may be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may read nothing of an answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest head of a request, bytes.
const MAX_HEAD: usize = 16 << 10;
/// How long open connections may last at the end of a process that another one replaces.
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the listener rests after an error, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listens at `address`. The socket lets the next process listen there too. It is an error if
/// another process listens there already, unless this process `replaces` one.
pub(super) fn bind(address: SocketAddr, replaces: bool) -> io::Result<std::net::TcpListener> {
    let named = |error: io::Error| SettingError::address("admin", &Listen::Tcp(address), &error);
    if !replaces && address.port() != 0 {
        // A socket that shares its port with no other can be bound only if the address is free.
        bind_tcp(address, false).map_err(named)?;
    }
    bind_tcp(address, true).map(Into::into).map_err(named)
}

/// Listens at `address` while `old` is open. Both may be for the same port, as those of
/// `127.0.0.1` and of all addresses are.
fn rebind(address: SocketAddr, old: Option<&TcpListener>) -> io::Result<std::net::TcpListener> {
    let Some(old) = old.filter(|old| {
        let own = old.local_addr();
        own.is_ok_and(|own| port_sharing::overlap(own, address))
    }) else {
        return bind(address, false);
    };
    match port_sharing::find_at(address, &[&SockRef::from(old)]) {
        None => bind(address, true),
        Some(other) => {
            let error = io::Error::new(io::ErrorKind::AddrInUse, other.to_string());
            Err(SettingError::address(
                "admin",
                &Listen::Tcp(address),
                &error,
            ))
        }
    }
}

/// Takes the socket for `address` out of `inherited`, which the process before this one sent, or
/// binds one ([`bind`]).
pub(super) fn open(
    address: SocketAddr,
    inherited: &mut Vec<OpenedSocket>,
    replaces: bool,
) -> io::Result<std::net::TcpListener> {
    let wanted = Listen::Tcp(address);
    match inherited.iter().position(|one| one.is_for(&wanted)) {
        Some(index) => Ok(inherited.swap_remove(index).socket.into()),
        None => bind(address, replaces),
    }
}

/// Accepts connections of operators, and follows the address in the configuration.
pub(super) struct AdminListener {
    /// `None` after another process took the address, and while the configuration has none.
    listener: Option<TcpListener>,
    connections: Arc<Semaphore>,
    changes: watch::Receiver<u64>,
    shutdown: Shutdown,
}

impl AdminListener {
    pub(super) fn new(listener: std::net::TcpListener, state: &AdminState) -> AdminListener {
        let address = state.policy.load().address;
        AdminListener {
            listener: listen(listener, address, state)
                .inspect_err(|error| tracing::error!(%error, "admin: cannot listen"))
                .ok(),
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS as usize)),
            changes: state.server.introspection.changes(),
            shutdown: state.server.shutdown.clone(),
        }
    }

    /// After an upgrade, the clients of open connections cannot know that this process ends.
    pub(super) async fn end(self) {
        if *self.shutdown.borrow() == Lifecycle::HandOver {
            let all = self.connections.acquire_many(MAX_CONNECTIONS);
            let _ = tokio::time::timeout(END_TIMEOUT, all).await;
        }
    }

    /// Never returns.
    pub(super) async fn run(&mut self, state: &Arc<AdminState>) {
        let AdminListener {
            listener, shutdown, ..
        } = self;
        if state.server.predecessor.is_some() {
            // Until then, the process before this one answers.
            state.server.heartbeats.all_serve().await;
        }
        loop {
            tokio::select! {
                biased;
                // The next process has the socket.
                Ok(_) = shutdown.wait_for(|lifecycle| *lifecycle == Lifecycle::HandOver),
                    if listener.is_some() => *listener = None,
                Ok(()) = self.changes.changed() => {
                    failpoint!("admin.look");
                    follow_configuration(listener, state);
                    check_store(state);
                }
                stream = accept(listener.as_ref()) => serve(stream, &self.connections, state),
            }
        }
    }
}

/// Makes a socket ready to accept, and keeps a copy for an upgrade.
fn listen(
    listener: std::net::TcpListener,
    address: SocketAddr,
    state: &AdminState,
) -> io::Result<TcpListener> {
    let copy = OpenedSocket::new(&Listen::Tcp(address), listener.try_clone()?.into());
    state.server.listeners.set_admin(Some(copy));
    TcpListener::from_std(listener)
}

/// The next connection. Waits for ever if there is no listener.
async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Takes over another address, other names and another token from the configuration.
fn follow_configuration(listener: &mut Option<TcpListener>, state: &AdminState) {
    let settings = state.inspect(|snapshot| snapshot.config.admin.clone());
    let Ok(settings) = settings else { return };
    let Some(settings) = settings else {
        if listener.take().is_some() {
            state.server.listeners.set_admin(None);
            tracing::info!("reload: admin: closed");
        }
        return;
    };
    let mut policy = state.policy_of(&settings);
    let moves = policy.address != state.policy.load().address;
    let serves = *state.server.shutdown.borrow() == Lifecycle::Serve;
    if moves || (listener.is_none() && serves) {
        let address = settings.address;
        let bound = rebind(address, listener.as_ref());
        match bound.and_then(|bound| listen(bound, address, state)) {
            Ok(bound) => {
                tracing::info!(%address, "reload: admin: listening");
                *listener = Some(bound);
            }
            Err(error) => {
                tracing::error!(
                    %address,
                    %error,
                    "reload: admin: cannot listen on the new address; still on the old one"
                );
                policy.address = state.policy.load().address;
            }
        }
    }
    state.policy.store(Arc::new(policy));
}

fn serve(stream: TcpStream, connections: &Arc<Semaphore>, state: &Arc<AdminState>) {
    let Ok(permit) = Arc::clone(connections).try_acquire_owned() else {
        return;
    };
    let _ = stream.set_nodelay(true);
    let state = Arc::clone(state);
    tokio::spawn(async move {
        let service = service_fn(move |request| {
            let state = Arc::clone(&state);
            async move { Ok::<_, Infallible>(answer(&state, request).await) }
        });
        serve_http(stream, service, HEAD_TIMEOUT).await;
        drop(permit);
    });
}

async fn serve_http<S, B>(stream: TcpStream, service: S, head_timeout: Duration)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let stream = AdminStream::new(stream, WRITE_TIMEOUT);
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_buf_size(MAX_HEAD)
        // A client that closes its sending side after the request still gets the answer.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    // Clients may leave at any time.
    let _ = serving.await;
}

/// The socket of a connection. It fails if the client takes nothing of an answer for a while.
/// Otherwise clients that stopped reading would hold their places for ever.
struct AdminStream {
    stream: TcpStream,
    write_timeout: Duration,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl AdminStream {
    fn new(stream: TcpStream, write_timeout: Duration) -> AdminStream {
        AdminStream {
            stream,
            write_timeout,
            stalled: None,
        }
    }

    fn bound(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let timeout = self.write_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for AdminStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for AdminStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.bound(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Empty;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Longer than any step of a test takes.
    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_client_that_closed_its_sending_side_is_answered() {
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
        let serving = tokio::spawn(serve_http(stream, service, PATIENCE));
        let mut received = String::new();
        client.read_to_string(&mut received).await.unwrap();
        assert!(received.starts_with("HTTP/1.1 200 OK\r\n"), "{received}");
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
            let serving = tokio::spawn(serve_http(stream, service, Duration::from_millis(500)));
            // The time for the second head begins after the first answer.
            client
                .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .await
                .unwrap();
            client.write_all(begun.as_bytes()).await.unwrap();
            let mut received = String::new();
            let ended = client.read_to_string(&mut received);
            tokio::time::timeout(PATIENCE, ended)
                .await
                .unwrap()
                .unwrap();
            assert!(received.starts_with("HTTP/1.1 200 OK\r\n"), "{received}");
            tokio::time::timeout(PATIENCE, serving)
                .await
                .unwrap()
                .unwrap();
        }
    }

    #[test]
    fn only_a_successor_can_bind_an_address_in_use() {
        let first = bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let address = first.local_addr().unwrap();
        let error = bind(address, false).unwrap_err().to_string();
        assert!(error.contains(&address.to_string()), "{error}");
        bind(address, true).unwrap();
    }

    #[tokio::test]
    async fn a_client_that_stops_reading_is_left() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = AdminStream::new(stream, Duration::from_millis(300));
        let text = vec![0; 1 << 20];
        let writing = tokio::spawn(async move {
            loop {
                if let Err(error) = stream.write_all(&text).await {
                    return error.kind();
                }
            }
        });
        // A slow client is served for as long as it reads.
        let mut room = vec![0; 1 << 20];
        for _ in 0..10 {
            sleep(Duration::from_millis(100)).await;
            client.read_exact(&mut room).await.unwrap();
        }
        let ended = tokio::time::timeout(PATIENCE, writing).await;
        assert_eq!(ended.unwrap().unwrap(), io::ErrorKind::TimedOut);
    }
}
