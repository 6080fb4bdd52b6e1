//! One listening socket: TCP or unix, bound here or inherited.

use std::fmt;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};
use tokio::net::{TcpStream, UnixStream};

use super::socket_file::{SocketState, socket_state};
use crate::config::Listen;
use crate::wire::{Accepted, Stream};

/// Connections that the kernel holds at one socket before they are accepted, at most.
pub(crate) const BACKLOG: i32 = 4096;
/// After this time of silence the kernel asks whether a client is still there. Without an answer
/// to all probes the connection ends: after two minutes.
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;
/// How often, and how many times, the lock of a unix socket's directory is tried: 1 s in all.
const LOCK_EVERY: Duration = Duration::from_millis(10);
const LOCK_TRIES: usize = 100;

/// A socket that listens before the server opens `listen`: inherited, or bound by [`bind_alone`] or
/// [`bind_first`].
#[derive(Debug)]
pub struct OpenedSocket {
    /// The line of `listen` that it was bound for, or its address.
    pub(crate) name: String,
    /// Whether a service manager has the socket too, and listens after this process.
    pub(crate) lent: bool,
    pub(crate) socket: Socket,
}

/// Checks that an inherited socket listens, and makes it non-blocking.
pub(super) fn check_inherited(socket: Socket) -> io::Result<Socket> {
    if !socket.is_listener()? {
        let text = "a socket that does not listen (`Accept=yes` in the unit?)";
        return Err(io::Error::other(text));
    }
    socket.set_nonblocking(true)?;
    keep_alive(&socket);
    Ok(socket)
}

/// Has the kernel find clients that have vanished: a tunnel has no other bound for silence. The
/// accepted sockets inherit it. A unix socket needs none.
fn keep_alive(listener: &Socket) {
    let keepalive = TcpKeepalive::new();
    let keepalive = keepalive
        .with_time(KEEPALIVE_TIME)
        .with_interval(KEEPALIVE_INTERVAL);
    let _ = listener.set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_PROBES));
}

/// Accepts a connection without blocking. Must be called on a runtime.
pub(super) fn accept(listener: &Socket) -> io::Result<Accepted> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (socket, peer) = acceptfrom_with(listener, flags)?;
    let Ok(peer) = SocketAddr::try_from(peer.ok_or(io::ErrorKind::NotConnected)?) else {
        return Ok(accepted_unix(UnixStream::from_std(socket.into())?));
    };
    Ok(accepted_tcp(TcpStream::from_std(socket.into())?, peer))
}

pub(super) fn accepted_tcp(stream: TcpStream, peer: SocketAddr) -> Accepted {
    // With Nagle's algorithm the second write waits for the client's delayed ACK.
    let _ = stream.set_nodelay(true);
    Accepted {
        stream: Stream::Tcp(stream),
        ip: peer.ip().to_canonical(),
    }
}

/// A client of a unix socket is on this machine.
pub(super) fn accepted_unix(stream: UnixStream) -> Accepted {
    Accepted {
        stream: Stream::Unix(stream),
        ip: IpAddr::from(Ipv4Addr::LOCALHOST),
    }
}

/// The address of a socket. Fails for a unix socket without a path.
pub(super) fn place(listener: &Socket) -> io::Result<Listen> {
    let address = listener.local_addr()?;
    if let Some(address) = address.as_socket() {
        return Ok(Listen::Tcp(address));
    }
    match address.as_pathname() {
        Some(path) => Ok(Listen::Unix(path.to_owned())),
        None => Err(io::Error::other("a unix socket without a path")),
    }
}

impl OpenedSocket {
    pub(crate) fn new(wanted: &Listen, socket: Socket) -> OpenedSocket {
        OpenedSocket {
            name: wanted.to_string(),
            lent: false,
            socket,
        }
    }

    pub(crate) fn is_for(&self, wanted: &Listen) -> bool {
        if self.name == wanted.to_string() {
            return true;
        }
        match (place(&self.socket), wanted) {
            (Ok(Listen::Tcp(place)), Listen::Tcp(wanted)) => {
                // On a machine without IPv6, `[::]` is bound as `0.0.0.0`.
                let both_any = place.ip().is_unspecified() && wanted.ip().is_unspecified();
                let any = both_any && wanted.is_ipv6() && place.port() == wanted.port();
                place == *wanted || any
            }
            (Ok(place), wanted) => place == *wanted,
            (Err(_), _) => false,
        }
    }
}

impl fmt::Display for OpenedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match place(&self.socket) {
            Ok(place) => write!(f, "{place} ({})", self.name),
            Err(error) => write!(f, "{error} ({})", self.name),
        }
    }
}

/// Binds a socket that no other process can share, for all workers together. Returns `None` for a
/// unix socket, which never has two processes.
///
/// # Errors
/// It cannot be bound; [`io::ErrorKind::AddrInUse`] if another socket listens there. The error does
/// not name the address.
pub fn bind_alone(wanted: &Listen) -> io::Result<Option<OpenedSocket>> {
    let &Listen::Tcp(address) = wanted else {
        return Ok(None);
    };
    let socket = bind_tcp(address, false)?;
    Ok(Some(OpenedSocket::new(wanted, socket)))
}

/// Binds a socket at an address where no other process listens, and lets later sockets join it. If
/// several processes try at once, one succeeds. Returns `None` for port 0 and for a unix socket.
///
/// # Errors
/// It cannot be bound; [`io::ErrorKind::AddrInUse`] if another socket listens there. The error does
/// not name the address.
pub fn bind_first(wanted: &Listen) -> io::Result<Option<OpenedSocket>> {
    let address = match wanted {
        Listen::Tcp(address) if address.port() != 0 => *address,
        _ => return Ok(None),
    };
    let socket = bind_tcp(address, false)?;
    // If the option were set before, the kernel would accept other sockets at once.
    socket.set_reuse_port(true)?;
    Ok(Some(OpenedSocket::new(wanted, socket)))
}

pub(crate) fn bind_tcp(address: SocketAddr, shares_port: bool) -> io::Result<Socket> {
    let is_any_v6 = address.is_ipv6() && address.ip().is_unspecified();
    match bind_address(address, shares_port) {
        // On a machine without IPv6, `:8080` means every IPv4 address.
        Err(_) if is_any_v6 && !has_ipv6() => {
            let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
            bind_address(any, shares_port)
        }
        bound => bound,
    }
}

fn has_ipv6() -> bool {
    Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)).is_ok()
}

fn bind_address(address: SocketAddr, shares_port: bool) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // Only `[::]` accepts IPv4 as well.
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shares_port)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    keep_alive(&socket);
    Ok(socket)
}

/// Binds a unix socket. Replaces its file only if no process serves it any more.
pub(super) fn bind_unix(path: &Path) -> io::Result<Socket> {
    let _lock = lock_directory(path);
    match socket_state(path) {
        SocketState::Absent => {}
        SocketState::Stale => std::fs::remove_file(path)?,
        SocketState::Served(None) if path.is_dir() || path.is_file() => {
            let text = "what is there is no socket";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        SocketState::Served(pid) => {
            let text = match pid {
                Some(pid) => format!("process {pid} listens there"),
                None => "another process listens there".to_owned(),
            };
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener.into())
}

/// Locks the directory of a socket, so that one process at a time replaces a stale file. The lock
/// ends when the file is dropped.
fn lock_directory(path: &Path) -> Option<File> {
    let directory = match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    };
    let file = File::open(directory).ok()?;
    for _ in 0..LOCK_TRIES {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOCK_EVERY),
            locked => return locked.ok().map(|()| file),
        }
    }
    // A process that holds the lock for so long uses the directory for something else.
    None
}
