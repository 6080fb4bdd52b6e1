//! New connections to one server, over TCP, TLS or a unix socket.
//!
//! Every attempt ends by its timeout.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};
use smallvec::SmallVec;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsStream;

use super::error::UpstreamError;
use crate::clock;
use crate::config::{ServerAddress, UpstreamSettings};
use crate::tls::{TlsClient, TlsTrouble};
use crate::wire::Stream;

/// After this time of silence the kernel probes whether the server is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// How many addresses of one name a connection attempt tries.
const MAX_ADDRESSES: usize = 8;
/// Protocol names of ALPN.
const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

#[derive(Clone, Debug)]
pub(super) enum Address {
    Known(Addresses),
    Name(String, u16),
    Unix(PathBuf),
}

/// The addresses of one server: one, or one of each family.
pub(super) type Addresses = SmallVec<[SocketAddr; 2]>;

impl Address {
    /// `found` holds the addresses from an earlier lookup, if there was one.
    pub(super) fn new(server: &ServerAddress, found: &Addresses) -> Address {
        if !found.is_empty() {
            return Address::Known(found.clone());
        }
        match server {
            ServerAddress::Unix(path) => Address::Unix(path.clone()),
            ServerAddress::Http(host, port)
            | ServerAddress::Https(host, port)
            | ServerAddress::H2c(host, port) => {
                let bare = host.trim_start_matches('[').trim_end_matches(']');
                match bare.parse::<IpAddr>() {
                    Ok(ip) => Address::Known([SocketAddr::new(ip, *port)].into_iter().collect()),
                    Err(_) => Address::Name(host.clone(), *port),
                }
            }
        }
    }

    pub(super) async fn connect(&self, within: Duration) -> Result<Stream, UpstreamError> {
        match timeout(within, self.connect_by(clock::now() + within)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) if error.kind() != io::ErrorKind::TimedOut => {
                Err(UpstreamError::unreachable(error))
            }
            Ok(Err(_)) | Err(_) => Err(UpstreamError::ConnectTimedOut),
        }
    }

    async fn connect_by(&self, deadline: Instant) -> io::Result<Stream> {
        match self {
            Address::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix),
            Address::Known(addresses) => connect_any(addresses, deadline).await,
            Address::Name(name, port) => {
                let found = lookup_host((name.as_str(), *port)).await?;
                let addresses: SmallVec<[SocketAddr; MAX_ADDRESSES]> =
                    found.take(MAX_ADDRESSES).collect();
                connect_any(&addresses, deadline).await
            }
        }
    }
}

/// Tries addresses in turn. Each gets an equal share of the time that is left, because an address
/// that drops packets must leave time for the others.
async fn connect_any(addresses: &[SocketAddr], deadline: Instant) -> io::Result<Stream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (tried, &address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(clock::now());
        let share = left / u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        match timeout(share, connect_tcp(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

async fn connect_tcp(address: SocketAddr) -> io::Result<Stream> {
    let stream = TcpStream::connect(address).await;
    let stream = stream.map_err(|error| match error.kind() {
        // Linux reports the same error for used-up ports and for a missing route, as to IPv6.
        io::ErrorKind::AddrNotAvailable if !has_route(address) => {
            io::Error::new(io::ErrorKind::HostUnreachable, error)
        }
        _ => error,
    })?;
    // A request in two writes would wait for the server's delayed ACK.
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    Ok(Stream::Tcp(stream))
}

/// Whether this machine has a source address for that destination. Sends nothing.
#[cold]
fn has_route(address: SocketAddr) -> bool {
    let any = match address {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    UdpSocket::bind((any, 0)).is_ok_and(|socket| socket.connect(address).is_ok())
}

/// Connects to a server once. Blocks for up to `within` per address: only the startup report and
/// offline commands may call it.
///
/// # Errors
/// Why the last address cannot be connected to.
pub fn try_connect(server: &ServerAddress, within: Duration) -> io::Result<()> {
    let connect_any = |addresses: &mut dyn Iterator<Item = SocketAddr>| {
        let mut result = Err(io::Error::other("the name has no address"));
        for address in addresses {
            result = std::net::TcpStream::connect_timeout(&address, within).map(drop);
            if result.is_ok() {
                break;
            }
        }
        result
    };
    match Address::new(server, &Addresses::new()) {
        Address::Unix(path) => std::os::unix::net::UnixStream::connect(path).map(drop),
        Address::Known(addresses) => connect_any(&mut addresses.into_iter()),
        Address::Name(name, port) => connect_any(&mut (name.as_str(), port).to_socket_addrs()?),
    }
}

/// The TLS settings of one upstream, one for each list of protocols that it offers.
#[derive(Debug)]
pub(super) struct UpstreamTls {
    configured: TlsClient,
    /// Offers HTTP/1.1 alone, as tunnels need it.
    http1: TlsClient,
}

impl UpstreamTls {
    /// Reads the certificates of an upstream that has `https` servers; `None` for others.
    pub(super) fn load(settings: &UpstreamSettings) -> Option<Result<UpstreamTls, TlsTrouble>> {
        let mut servers = settings.servers.iter();
        if !servers.any(|server| matches!(server.address, ServerAddress::Https(..))) {
            return None;
        }
        let protocols: &[&[u8]] = match settings.http2 {
            true => &[HTTP2, HTTP1],
            false => &[HTTP1],
        };
        let loaded = TlsClient::new(&settings.tls, protocols).map(|configured| UpstreamTls {
            http1: configured.offering(&[HTTP1]),
            configured,
        });
        if let Err(trouble) = &loaded {
            tracing::warn!(
                upstream = &*settings.name,
                %trouble,
                "upstream: its TLS settings cannot be used; requests to it fail"
            );
        }
        Some(loaded)
    }

    pub(super) async fn handshake(
        &self,
        stream: Stream,
        host: &str,
        only_http1: bool,
    ) -> Result<(Stream, bool), UpstreamError> {
        let tls = match only_http1 {
            true => &self.http1,
            false => &self.configured,
        };
        let secure = tls.over(stream, host).await.map_err(|error| {
            tracing::debug!(%error, host, "upstream: the TLS handshake failed");
            match TlsTrouble::within(&error) {
                Some(trouble) => UpstreamError::Tls(trouble),
                None => UpstreamError::unreachable(error),
            }
        })?;
        let is_http2 = secure.get_ref().1.alpn_protocol() == Some(HTTP2);
        let stream = Stream::Tls(Box::new(TlsStream::Client(secure)));
        Ok((stream, is_http2))
    }
}

/// A connection to a server that carries HTTP/2 or a tunnel.
///
/// Once the server has stopped reading, it discards writes instead of failing. The server may have
/// answered before, for example with 413, and h2 drops that answer after a failed write. The next
/// read reports the end of the connection anyway.
#[derive(Debug)]
pub struct TolerantStream {
    stream: Stream,
    /// Bytes that were read before, behind the head of a response.
    early: Bytes,
}

impl TolerantStream {
    pub(super) fn new(stream: Stream, early: Bytes) -> TolerantStream {
        TolerantStream { stream, early }
    }
}

fn discard_if_closed(written: Poll<io::Result<usize>>, length: usize) -> Poll<io::Result<usize>> {
    match written {
        Poll::Ready(Err(error)) if is_closed(&error) => Poll::Ready(Ok(length)),
        other => other,
    }
}

/// Whether a failed write means that the server does not read any more.
pub(super) fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionReset)
}

impl AsyncRead for TolerantStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let length = self.early.len().min(buffer.remaining());
        buffer.put_slice(&self.early[..length]);
        self.early.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TolerantStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        discard_if_closed(written, bytes.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = pieces.iter().map(|piece| piece.len()).sum();
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        discard_if_closed(written, length)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A TLS stream writes its buffered bytes here.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        discard_if_closed(flushed.map_ok(|()| 0), 0).map_ok(|_| ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(host: &str, port: u16) -> Address {
        Address::new(
            &ServerAddress::Http(host.to_owned(), port),
            &Addresses::new(),
        )
    }

    #[test]
    fn addresses_are_not_looked_up_and_names_are() {
        assert!(matches!(http("127.0.0.1", 80), Address::Known(_)));
        assert!(matches!(http("[::1]", 80), Address::Known(_)));
        assert!(matches!(http("::1", 80), Address::Known(_)));
        assert!(matches!(http("localhost", 80), Address::Name(..)));
    }
}
