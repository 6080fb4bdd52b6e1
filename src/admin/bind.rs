//! The listening socket.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections the kernel holds before they are accepted, at most.
const BACKLOG: i32 = 128;

/// Listens at `address`. The next process may do so before this one has ended; anybody else is an
/// error, unless this process `replaces` one.
pub(super) fn bind(address: SocketAddr, replaces: bool) -> io::Result<TcpListener> {
    let named = |error: io::Error| {
        let text = format!("admin: cannot listen on {address}: {error}");
        io::Error::new(error.kind(), text)
    };
    if !replaces && address.port() != 0 {
        // Without the option that lets the next process in, nobody else may be there.
        open(address, false).map_err(named)?;
    }
    open(address, true).map_err(named)
}

fn open(address: SocketAddr, shares: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    if shares {
        socket.set_reuse_port(true)?;
    }
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_somebody_has_is_had_by_a_successor_only() {
        let first = bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let address = first.local_addr().unwrap();
        let error = bind(address, false).unwrap_err().to_string();
        assert!(error.contains(&address.to_string()), "{error}");
        bind(address, true).unwrap();
    }
}
