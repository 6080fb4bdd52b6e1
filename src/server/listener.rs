//! One listening socket: TCP or unix, bound by this process or given to it.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use socket2::{Domain, Socket};
use tokio::net::{TcpStream, UnixStream};

use crate::config::Listen;
use crate::wire::{Accepted, Stream};

/// One listening socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP, of one worker alone or shared.
    Tcp(std::net::TcpListener),
    /// A unix socket, shared by the workers.
    Unix(std::os::unix::net::UnixListener),
}

/// A socket that listens before `listen` is looked at: inherited, or bound with other options.
#[derive(Debug)]
pub struct OpenedSocket {
    /// The line of `listen` that it was bound for, or where it is.
    pub(crate) name: String,
    /// Whether a service manager has it too.
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

    /// A socket that listens already, ready for a worker.
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

    /// The next connection that waits, if there is one; to be called on a runtime.
    pub(crate) fn accept(&self) -> io::Result<Accepted> {
        Ok(match self {
            Listener::Tcp(socket) => {
                let (stream, address) = socket.accept()?;
                stream.set_nonblocking(true)?;
                // Without it an answer in two writes waits for the client's delayed ACK.
                let _ = stream.set_nodelay(true);
                let ip = address.ip().to_canonical();
                let stream = Stream::Tcp(TcpStream::from_std(stream)?);
                Accepted { stream, ip }
            }
            Listener::Unix(socket) => {
                let (stream, _) = socket.accept()?;
                stream.set_nonblocking(true)?;
                // Whoever can open the socket is on this machine.
                let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
                let stream = Stream::Unix(UnixStream::from_std(stream)?);
                Accepted { stream, ip }
            }
        })
    }

    /// Where it listens; a unix socket without a path cannot be named.
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
    /// Whether a service manager has it too, and goes on listening when we are gone.
    pub fn is_lent(&self) -> bool {
        self.lent
    }

    /// Whether it is what a line of `listen` asks for.
    pub(crate) fn is_for(&self, wanted: &Listen) -> bool {
        if self.name == wanted.to_string() {
            return true;
        }
        match (self.socket.place(), wanted) {
            (Ok(Listen::Tcp(place)), Listen::Tcp(wanted)) => {
                // On a machine without IPv6 every address is every IPv4 address.
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
