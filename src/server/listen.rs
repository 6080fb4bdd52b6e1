//! Listening sockets: bound once, by whoever starts the house, and shared out to the workers.
//!
//! Each worker gets its own socket on the same TCP address (SO_REUSEPORT), so that the kernel
//! spreads connections and no lock is shared. A unix socket has no such thing: workers share one.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::config::Listen;

/// Connections the kernel holds for us before they are accepted, at most.
const BACKLOG: i32 = 4096;

/// One listening socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP, of one worker alone.
    Tcp(std::net::TcpListener),
    /// A unix socket, shared by the workers.
    Unix(std::os::unix::net::UnixListener),
}

/// Every listening socket of the house: one set for each worker.
#[derive(Debug)]
pub struct Listeners {
    sets: Vec<Vec<Listener>>,
    addresses: Vec<SocketAddr>,
    paths: Vec<PathBuf>,
}

impl Listeners {
    /// Binds every address once for each worker. Port 0 takes a free port, the same for all.
    ///
    /// # Errors
    /// The first address that cannot be bound, named in the error.
    pub fn bind(listen: &[Listen], workers: usize) -> io::Result<Listeners> {
        let mut sets: Vec<Vec<Listener>> = (0..workers).map(|_| Vec::new()).collect();
        let (mut addresses, mut paths) = (Vec::new(), Vec::new());
        for listen in listen {
            let named = |error: io::Error| {
                io::Error::new(
                    error.kind(),
                    format!("cannot listen on {}: {error}", name(listen)),
                )
            };
            match listen {
                Listen::Tcp(wanted) => {
                    let mut address = *wanted;
                    for set in &mut sets {
                        let listener = bind_tcp(address).map_err(named)?;
                        address = listener.local_addr().map_err(named)?;
                        set.push(Listener::Tcp(listener));
                    }
                    addresses.push(address);
                }
                Listen::Unix(path) => {
                    let listener = bind_unix(path).map_err(named)?;
                    for set in &mut sets {
                        set.push(Listener::Unix(listener.try_clone().map_err(named)?));
                    }
                    paths.push(path.clone());
                }
            }
        }
        Ok(Listeners {
            sets,
            addresses,
            paths,
        })
    }

    /// The TCP addresses that are bound, with real port numbers.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The unix sockets that are bound.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    pub(crate) fn into_sets(self) -> Vec<Vec<Listener>> {
        self.sets
    }
}

fn name(listen: &Listen) -> String {
    match listen {
        Listen::Tcp(address) => address.to_string(),
        Listen::Unix(path) => format!("unix:{}", path.display()),
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let any_v6 = address.is_ipv6() && address.ip().is_unspecified();
    match bind_one(address) {
        // A machine without IPv6: `:8080` then means every IPv4 address.
        Err(_) if any_v6 && !has_ipv6() => {
            bind_one(SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())))
        }
        bound => bound,
    }
}

fn has_ipv6() -> bool {
    Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)).is_ok()
}

fn bind_one(address: SocketAddr) -> io::Result<std::net::TcpListener> {
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
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Takes over a socket file that nobody listens on any more.
fn bind_unix(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let stale = std::fs::metadata(path).is_ok_and(|file| file.file_type().is_socket())
        && std::os::unix::net::UnixStream::connect(path).is_err();
    if stale {
        std::fs::remove_file(path)?;
    }
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
