//! One listening socket: TCP or unix, bound here or inherited.

use std::fmt;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use tokio::net::{TcpStream, UnixStream};

use super::socket_file::{SocketState, socket_state};
use crate::config::Listen;
use crate::wire::{Accepted, Stream};

/// Connections that the kernel holds at one socket before they are accepted, at most.
pub(crate) const BACKLOG: i32 = 4096;
/// How often, and how many times, the lock of a unix socket's directory is tried: 1 s in all.
const LOCK_EVERY: Duration = Duration::from_millis(10);
const LOCK_TRIES: usize = 100;

/// One listening socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP, of one worker or shared.
    Tcp(TcpListener),
    /// A unix socket, which the workers share.
    Unix(UnixListener),
}

/// A socket that listens before the server opens `listen`: inherited, or bound by [`bind_alone`] or
/// [`bind_first`].
#[derive(Debug)]
pub struct OpenedSocket {
    /// The line of `listen` that it was bound for, or its address.
    pub(crate) name: String,
    /// Whether a service manager has the socket too.
    pub(crate) lent: bool,
    pub(crate) socket: Listener,
}

impl Listener {
    pub(crate) fn try_clone(&self) -> io::Result<Listener> {
        Ok(match self {
            Listener::Tcp(socket) => Listener::Tcp(socket.try_clone()?),
            Listener::Unix(socket) => Listener::Unix(socket.try_clone()?),
        })
    }

    /// Takes a descriptor of a socket that listens already.
    pub(crate) fn from_fd(fd: OwnedFd) -> io::Result<Listener> {
        let socket = Socket::from(fd);
        if !socket.is_listener()? {
            return Err(io::Error::other("a socket that does not listen"));
        }
        socket.set_nonblocking(true)?;
        Ok(if socket.domain()? == Domain::UNIX {
            Listener::Unix(socket.into())
        } else {
            Listener::Tcp(socket.into())
        })
    }

    /// Accepts a connection without blocking. Must be called on a runtime.
    pub(crate) fn accept(&self) -> io::Result<Accepted> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, peer) = acceptfrom_with(self, flags)?;
        if let Listener::Unix(_) = self {
            return Ok(Accepted {
                stream: Stream::Unix(UnixStream::from_std(socket.into())?),
                // A client of a unix socket is on this machine.
                ip: IpAddr::from(Ipv4Addr::LOCALHOST),
            });
        }
        let peer = SocketAddr::try_from(peer.ok_or(io::ErrorKind::NotConnected)?)?;
        let stream = TcpStream::from_std(socket.into())?;
        // With Nagle's algorithm the second write waits for the client's delayed ACK.
        let _ = stream.set_nodelay(true);
        Ok(Accepted {
            stream: Stream::Tcp(stream),
            ip: peer.ip().to_canonical(),
        })
    }

    /// The address. Fails for a unix socket without a path.
    pub(crate) fn place(&self) -> io::Result<Listen> {
        match self {
            Listener::Tcp(socket) => Ok(Listen::Tcp(socket.local_addr()?)),
            Listener::Unix(socket) => {
                let address = socket.local_addr()?;
                let path = address.as_pathname();
                path.map(|path| Listen::Unix(path.to_owned()))
                    .ok_or_else(|| io::Error::other("a unix socket without a path"))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(socket) => socket.as_fd(),
            Listener::Unix(socket) => socket.as_fd(),
        }
    }
}

impl OpenedSocket {
    fn new(wanted: &Listen, socket: TcpListener) -> OpenedSocket {
        OpenedSocket {
            name: wanted.to_string(),
            lent: false,
            socket: Listener::Tcp(socket),
        }
    }

    /// Whether a service manager has the socket too. It goes on listening after this process.
    pub fn is_lent(&self) -> bool {
        self.lent
    }

    /// Whether this is the socket for a line of `listen`.
    pub(crate) fn is_for(&self, wanted: &Listen) -> bool {
        if self.name == wanted.to_string() {
            return true;
        }
        match (self.socket.place(), wanted) {
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
        match self.socket.place() {
            Ok(place) => write!(f, "{place} ({})", self.name),
            Err(error) => write!(f, "{error} ({})", self.name),
        }
    }
}

/// Binds a socket that no other process can share, for all workers together. Returns `None` for a
/// unix socket, which never has two processes.
///
/// # Errors
/// It cannot be bound; [`io::ErrorKind::AddrInUse`] if another socket listens there.
pub fn bind_alone(wanted: &Listen) -> io::Result<Option<OpenedSocket>> {
    let &Listen::Tcp(address) = wanted else {
        return Ok(None);
    };
    let socket = bind_tcp(address, false).map_err(|error| name_address(wanted, &error))?;
    Ok(Some(OpenedSocket::new(wanted, socket)))
}

/// Binds a socket at an address where no other process listens, and lets later sockets join it. If
/// several processes try at once, one succeeds. Returns `None` for port 0 and for a unix socket.
///
/// # Errors
/// It cannot be bound; [`io::ErrorKind::AddrInUse`] if another socket listens there.
pub fn bind_first(wanted: &Listen) -> io::Result<Option<OpenedSocket>> {
    let address = match wanted {
        Listen::Tcp(address) if address.port() != 0 => *address,
        _ => return Ok(None),
    };
    let socket = bind_tcp(address, false).map_err(|error| name_address(wanted, &error))?;
    // If the option were set before, the kernel would accept other sockets at once.
    SockRef::from(&socket).set_reuse_port(true)?;
    Ok(Some(OpenedSocket::new(wanted, socket)))
}

/// Listens at an address, together with other sockets that share its port if this one does.
pub(crate) fn bind_tcp(address: SocketAddr, shares_port: bool) -> io::Result<TcpListener> {
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

fn bind_address(address: SocketAddr, shares_port: bool) -> io::Result<TcpListener> {
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
    Ok(socket.into())
}

/// Binds a unix socket. Replaces its file only if no process serves it any more.
pub(super) fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let _lock = lock_directory(path);
    let text = match socket_state(path) {
        SocketState::Absent => None,
        SocketState::Stale => {
            std::fs::remove_file(path)?;
            None
        }
        SocketState::Served(Some(pid)) => Some(format!("process {pid} listens there")),
        SocketState::Served(None) => {
            Some("another process listens there, or it is no socket".to_owned())
        }
    };
    if let Some(text) = text {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
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

/// Adds the address to an error.
pub(super) fn name_address(wanted: &Listen, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot listen on {wanted}: {error}"))
}
