//! Binding: alone, as the first of several, or beside others.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use super::{BACKLOG, Listen, named};
use crate::server::left_behind::{SocketState, socket_state};
use crate::server::listener::{Listener, OpenedSocket};

/// How often, and how many times, the lock of a unix socket's directory is tried: 1 s.
const LOCK_EVERY: Duration = Duration::from_millis(10);
const LOCK_TRIES: usize = 100;

/// A socket on an address that no other process shares, now or later: for all workers together. A
/// unix socket never has two processes, and none is bound here.
///
/// # Errors
/// It cannot be bound; [`io::ErrorKind::AddrInUse`] where somebody listens there.
pub fn bind_alone(wanted: &Listen) -> io::Result<Option<OpenedSocket>> {
    let &Listen::Tcp(address) = wanted else {
        return Ok(None);
    };
    let socket = bind_tcp(address, false).map_err(|error| named(wanted, &error))?;
    Ok(Some(given(wanted, socket)))
}

/// A socket on an address at which no other process listens now; more sockets may join it, of this
/// process or of another one. Of several processes that try at once one succeeds. Nothing is bound
/// for port 0, nor for a unix socket.
///
/// # Errors
/// It cannot be bound; [`io::ErrorKind::AddrInUse`] where another socket listens there.
pub fn bind_first(wanted: &Listen) -> io::Result<Option<OpenedSocket>> {
    let address = match wanted {
        Listen::Tcp(address) if address.port() != 0 => *address,
        _ => return Ok(None),
    };
    let socket = bind_tcp(address, false).map_err(|error| named(wanted, &error))?;
    // Only now: with the option set before, the kernel would let others in from the beginning.
    SockRef::from(&socket).set_reuse_port(true)?;
    Ok(Some(given(wanted, socket)))
}

fn given(wanted: &Listen, socket: TcpListener) -> OpenedSocket {
    OpenedSocket {
        name: wanted.to_string(),
        lent: false,
        socket: Listener::Tcp(socket),
    }
}

pub(super) fn bind_tcp(address: SocketAddr, shares: bool) -> io::Result<TcpListener> {
    let any_v6 = address.is_ipv6() && address.ip().is_unspecified();
    match bind_one(address, shares) {
        // A machine without IPv6: `:8080` then means every IPv4 address.
        Err(_) if any_v6 && !has_ipv6() => {
            let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
            bind_one(any, shares)
        }
        bound => bound,
    }
}

fn has_ipv6() -> bool {
    Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)).is_ok()
}

fn bind_one(address: SocketAddr, shares: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        // `[::]` takes IPv4 as well; a single IPv6 address has no IPv4 to take.
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shares)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Replaces a socket's file that no process serves any more, and no other.
pub(super) fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let _lock = lock_directory(path);
    match socket_state(path) {
        SocketState::Absent => {}
        SocketState::Stale => std::fs::remove_file(path)?,
        SocketState::Served(Some(pid)) => {
            let text = format!("process {pid} listens there");
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        SocketState::Served(None) => {
            let text = "another process listens there, or it is no socket";
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Of several processes that find the same stale file, one at a time replaces it. The lock ends
/// when this is dropped.
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
    // A process that keeps the lock for so long does something else with the directory.
    None
}
