//! Connecting to one server, over TCP or a unix socket. It must never outlast its time.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use smallvec::SmallVec;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::timeout;

use super::error::ConnectError;
use crate::clock;
use crate::config::ServerAddress;
use crate::wire::Stream;

/// Silence on a connection after which the kernel asks whether the server is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// Addresses of one name that are tried at most.
const MAX_ADDRESSES: usize = 8;

/// Where a server is.
#[derive(Clone, Debug)]
pub(super) enum Address {
    /// Known without asking anybody.
    Fixed(SocketAddr),
    /// Several, tried in turn.
    Several(Addresses),
    /// A name, looked up for each new connection.
    Name(String, u16),
    /// A unix socket.
    Unix(PathBuf),
}

/// The addresses of one server, tried in this order: one, or one of each family.
pub(super) type Addresses = SmallVec<[SocketAddr; 2]>;

impl Address {
    /// Of a server that was found at `addresses`; its own where there are none.
    pub(super) fn found(server: &ServerAddress, addresses: &Addresses) -> Address {
        match addresses.as_slice() {
            [] => Address::of(server),
            [one] => Address::Fixed(*one),
            several => Address::Several(several.into()),
        }
    }

    pub(super) fn of(server: &ServerAddress) -> Address {
        match server {
            ServerAddress::Unix(path) => Address::Unix(path.clone()),
            ServerAddress::Http(host, port)
            | ServerAddress::Https(host, port)
            | ServerAddress::H2c(host, port) => {
                let bare = host.trim_start_matches('[').trim_end_matches(']');
                match bare.parse::<IpAddr>() {
                    Ok(ip) => Address::Fixed(SocketAddr::new(ip, *port)),
                    Err(_) => Address::Name(host.clone(), *port),
                }
            }
        }
    }

    /// A connection, or why there is none, after `within` at the latest.
    pub(super) async fn connect(&self, within: Duration) -> Result<Stream, ConnectError> {
        let connecting = async {
            match self {
                Address::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix),
                Address::Fixed(address) => tcp(*address).await,
                Address::Several(addresses) => any_of(addresses, within).await,
                Address::Name(name, port) => any_at(name, *port, within).await,
            }
        };
        match timeout(within, connecting).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) if error.kind() == io::ErrorKind::TimedOut => {
                Err(ConnectError::TimedOut)
            }
            Ok(Err(error)) => Err(ConnectError::Failed(error)),
            Err(_) => Err(ConnectError::TimedOut),
        }
    }
}

async fn any_at(name: &str, port: u16, within: Duration) -> io::Result<Stream> {
    let start = clock::now();
    let addresses: SmallVec<[SocketAddr; MAX_ADDRESSES]> = lookup_host((name, port))
        .await?
        .take(MAX_ADDRESSES)
        .collect();
    any_of(&addresses, within.saturating_sub(clock::now() - start)).await
}

/// Tries addresses in turn. Each gets its share of what is left, so that one that swallows packets
/// leaves time for the others.
async fn any_of(addresses: &[SocketAddr], within: Duration) -> io::Result<Stream> {
    let start = clock::now();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (tried, &address) in addresses.iter().enumerate() {
        let left = within.saturating_sub(clock::now() - start);
        let share = left / u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        match timeout(share, tcp(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

async fn tcp(address: SocketAddr) -> io::Result<Stream> {
    let stream = TcpStream::connect(address).await;
    let stream = stream.map_err(|error| match error.kind() {
        // There are ports enough, and no way: IPv6 where the machine has none, for example.
        io::ErrorKind::AddrNotAvailable if !has_way(address) => {
            io::Error::new(io::ErrorKind::HostUnreachable, error)
        }
        _ => error,
    })?;
    // A request in two writes would wait for the server's delayed ACK.
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    Ok(Stream::Tcp(stream))
}

/// Whether this machine has an address from which that one could be reached. Sends nothing.
#[cold]
fn has_way(address: SocketAddr) -> bool {
    let any = match address {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    UdpSocket::bind((any, 0)).is_ok_and(|socket| socket.connect(address).is_ok())
}

/// Whether a server takes connections, found out within `within` for each of its addresses. It
/// blocks: for the lines at start only, never on the path of a request.
pub fn look(server: &ServerAddress, within: Duration) -> bool {
    let reaches = |address| std::net::TcpStream::connect_timeout(&address, within).is_ok();
    match Address::of(server) {
        Address::Unix(path) => std::os::unix::net::UnixStream::connect(path).is_ok(),
        Address::Fixed(address) => reaches(address),
        Address::Several(addresses) => addresses.into_iter().any(reaches),
        Address::Name(name, port) => (name.as_str(), port)
            .to_socket_addrs()
            .is_ok_and(|mut addresses| addresses.any(reaches)),
    }
}

/// A connection to a server, for HTTP/2 or a tunnel.
///
/// When the server has stopped reading, what we still write is thrown away here rather than
/// reported: it may have answered before (413 to an upload, say), and h2, told of a failed
/// write, would never look at that answer. Reading meets the end of the connection soon enough.
#[derive(Debug)]
pub(super) struct Patient(pub(super) Stream);

fn discarding(written: Poll<io::Result<usize>>, length: usize) -> Poll<io::Result<usize>> {
    match written {
        Poll::Ready(Err(error))
            if matches!(
                error.kind(),
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
            ) =>
        {
            Poll::Ready(Ok(length))
        }
        other => other,
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        discarding(Pin::new(&mut self.0).poll_write(cx, bytes), bytes.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = pieces.iter().map(|piece| piece.len()).sum();
        discarding(
            Pin::new(&mut self.0).poll_write_vectored(cx, pieces),
            length,
        )
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS writes here what it has kept.
        discarding(Pin::new(&mut self.0).poll_flush(cx).map_ok(|()| 0), 0).map_ok(|_| ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(host: &str, port: u16) -> Address {
        Address::of(&ServerAddress::Http(host.to_owned(), port))
    }

    #[test]
    fn addresses_are_not_looked_up_and_names_are() {
        assert!(matches!(http("127.0.0.1", 80), Address::Fixed(_)));
        assert!(matches!(http("[::1]", 80), Address::Fixed(_)));
        assert!(matches!(http("::1", 80), Address::Fixed(_)));
        assert!(matches!(http("localhost", 80), Address::Name(..)));
    }
}
