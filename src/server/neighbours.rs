//! Other processes that listen on the same TCP ports (SO_REUSEPORT), and how to leave the ports to
//! them without a lost connection.
//!
//! The kernel gives each connection to one of the sockets of a port as its first packet arrives.
//! What a socket was given is reset when it is closed: what waits to be accepted, and what has not
//! ended its handshake. The first can be accepted before. For the second there is a time in which
//! the socket takes no first packets, so that handshakes end and none begins; whoever sends one
//! then sends it again after a second, and reaches the others. With `net.ipv4.tcp_migrate_req`
//! the kernel moves what waits to the other sockets, and none of this is needed.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use socket2::{SockFilter, SockRef};

use super::listen::Listener;

/// How long handshakes under way have: the slowest round trip that is waited for.
pub(crate) const HANDSHAKES: Duration = Duration::from_millis(250);

/// Where the kernel lists the sockets of this network namespace.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// How a listening socket is marked there.
const LISTENS: &str = "0A";

/// Whether any socket but these listens on one of their ports.
pub(crate) fn listen_too(own: &[&Listener]) -> bool {
    let port = |socket: &&Listener| match socket {
        Listener::Tcp(socket) => Some(socket.local_addr().ok()?.port()),
        Listener::Unix(_) => None,
    };
    let ports: Vec<u16> = own.iter().filter_map(port).collect();
    let inodes: Vec<u64> = own.iter().filter_map(|socket| inode(socket).ok()).collect();
    TABLES.into_iter().any(|table| {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        listening(&text).any(|(port, inode)| ports.contains(&port) && !inodes.contains(&inode))
    })
}

/// Whether the kernel moves what waits at a socket that is closed to the others of its port.
pub(crate) fn inherit_what_waits() -> bool {
    let setting = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_migrate_req");
    setting.is_ok_and(|text| text.trim() == "1")
}

/// Port and inode of every listening socket in a table.
fn listening(table: &str) -> impl Iterator<Item = (u16, u64)> + '_ {
    table.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (_, port) = words.get(1)?.rsplit_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let inode = words.get(9)?.parse().ok()?;
        (words[3] == LISTENS).then_some((port, inode))
    })
}

fn inode(socket: &Listener) -> io::Result<u64> {
    let copy = std::fs::File::from(socket.as_fd().try_clone_to_owned()?);
    Ok(copy.metadata()?.ino())
}

/// From now on this socket takes no new handshakes.
pub(crate) fn take_no_more(socket: impl AsFd) -> io::Result<()> {
    // The 14th byte of a TCP header has its flags: drop what is SYN and not ACK.
    const LOAD_FLAGS: SockFilter = SockFilter::new(0x30, 0, 0, 13);
    const AND_SYN_ACK: SockFilter = SockFilter::new(0x54, 0, 0, 0x12);
    const IF_SYN: SockFilter = SockFilter::new(0x15, 0, 1, 0x02);
    const DROP: SockFilter = SockFilter::new(0x06, 0, 0, 0);
    const KEEP: SockFilter = SockFilter::new(0x06, 0, 0, u32::MAX);
    SockRef::from(&socket).attach_filter(&[LOAD_FLAGS, AND_SYN_ACK, IF_SYN, DROP, KEEP])
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;
    use crate::config::Listen;
    use crate::server::listen::Listeners;

    #[test]
    fn the_kernel_s_table_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   \
            uid  timeout inode\n   \
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        \
            0 4711 1 0000000000000000 100 0 0 10 0\n   \
            1: 0100007F:1F91 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        \
            0 4712 1 0000000000000000 100 0 0 10 0\n";
        assert_eq!(listening(table).collect::<Vec<_>>(), [(8080, 4711)]);
    }

    #[test]
    fn a_neighbour_is_seen_and_gets_what_is_left_to_it() {
        let any = [Listen::Tcp("127.0.0.1:0".parse().unwrap())];
        let first = Listeners::open((&any, &[]), 2, &mut Vec::new()).unwrap();
        let neighbours = |listeners: &Listeners| {
            let sets = listeners.sets().unwrap();
            let all = sets.iter().flatten().map(|one| &one.listener);
            listen_too(&all.collect::<Vec<_>>())
        };
        assert!(!neighbours(&first));
        let address = first.addresses()[0];
        let second = Listeners::open((&[Listen::Tcp(address)], &[]), 1, &mut Vec::new()).unwrap();
        assert!(neighbours(&first) && neighbours(&second));
        let waiting = TcpStream::connect(address).unwrap();
        let closed = first.each(|_, sockets| sockets.iter().try_for_each(take_no_more));
        closed.unwrap();
        // Some of these begin at sockets that take no more.
        let others: Vec<_> = (0..8)
            .map(|_| std::thread::spawn(move || TcpStream::connect(address).unwrap()))
            .collect();
        std::thread::sleep(Duration::from_millis(100));
        first.close();
        let others: Vec<TcpStream> = others.into_iter().map(|one| one.join().unwrap()).collect();
        drop((waiting, others));
        assert!(!neighbours(&second));
    }
}
