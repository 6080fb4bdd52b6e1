//! Other processes that listen on the same TCP ports (SO_REUSEPORT), and how to leave the ports to
//! them without a lost connection.
//!
//! The kernel assigns a connection to a socket when its first packet arrives. When a socket closes,
//! the kernel resets its connections that wait to be accepted or have not finished their handshake.
//! The server accepts the first kind before it closes the socket. For the second kind, the socket
//! refuses first packets for a while ([`HANDSHAKES`]), so that handshakes end and none begins. A
//! client whose packet was refused sends it again after one second and reaches another socket. With
//! `net.ipv4.tcp_migrate_req` the kernel moves such connections itself.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use socket2::{SockFilter, SockRef, Socket};

pub(crate) const HANDSHAKES: Duration = Duration::from_millis(250);

/// The kernel's lists of the sockets in this network namespace.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// The state of a listening socket in these lists.
const LISTENS: &str = "0A";

/// A socket of another process that shares an address with this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortSharer {
    /// Its process, if this process may see it.
    pub pid: Option<u32>,
    pub address: SocketAddr,
}

/// Finds a socket, not one of `own`, at an address of one of `own`.
pub(crate) fn find(own: &[&Socket]) -> Option<PortSharer> {
    let mut addresses = own
        .iter()
        .filter_map(|one| one.local_addr().ok()?.as_socket());
    addresses.find_map(|address| find_at(address, own))
}

pub(crate) fn find_at(address: SocketAddr, own: &[&Socket]) -> Option<PortSharer> {
    let stats = own
        .iter()
        .filter_map(|socket| rustix::fs::fstat(socket).ok());
    let inodes: Vec<u64> = stats.map(|stat| stat.st_ino).collect();
    TABLES.into_iter().find_map(|table| {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        let mut all = listening(&text);
        let (address, inode) =
            all.find(|(place, inode)| overlap(*place, address) && !inodes.contains(inode))?;
        Some(PortSharer {
            pid: process_of(inode),
            address,
        })
    })
}

/// Whether a connection may be meant for either address.
pub(crate) fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let (a, b) = (one.ip().to_canonical(), other.ip().to_canonical());
    let every = |any: IpAddr, ip: IpAddr| any.is_unspecified() && (any.is_ipv6() || ip.is_ipv4());
    one.port() == other.port() && (a == b || every(a, b) || every(b, a))
}

fn process_of(inode: u64) -> Option<u32> {
    let link = format!("socket:[{inode}]");
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"));
        let mut descriptors = descriptors.into_iter().flatten().flatten();
        descriptors.any(|one| std::fs::read_link(one.path()).is_ok_and(|to| to == Path::new(&link)))
    })
}

impl fmt::Display for PortSharer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "process {pid} listens on {}", self.address),
            None => write!(f, "another process listens on {}", self.address),
        }
    }
}

/// Whether the kernel moves the connections of a closed socket to other sockets of the port.
pub(crate) fn migrates_connections() -> bool {
    let setting = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_migrate_req");
    setting.is_ok_and(|text| text.trim() == "1")
}

/// The address and the inode of each listening socket in a table.
fn listening(table: &str) -> impl Iterator<Item = (SocketAddr, u64)> + '_ {
    table.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (ip, port) = words.get(1)?.rsplit_once(':')?;
        let address = SocketAddr::new(parse_address(ip)?, u16::from_str_radix(port, 16).ok()?);
        let inode = words.get(9)?.parse().ok()?;
        (words[3] == LISTENS).then_some((address, inode))
    })
}

/// Parses an address in a table: words of 32 bits in the byte order of this machine.
fn parse_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = text.get(at..at + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    if text.len() == 8 {
        return Some(IpAddr::from(word(0)?));
    }
    let mut bytes = [0; 16];
    for (index, four) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *four = word(index * 8)?;
    }
    Some(IpAddr::from(bytes))
}

/// Makes a socket drop the first packet of each new handshake.
pub(crate) fn refuse_handshakes(socket: impl AsFd) -> io::Result<()> {
    // The flags are in the 14th byte of a TCP header. Drops packets with SYN and without ACK.
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
    use crate::server::listen::{ListenLines, Listeners};

    #[test]
    fn the_kernel_s_table_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   \
            uid  timeout inode\n   \
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        \
            0 4711 1 0000000000000000 100 0 0 10 0\n   \
            1: 0100007F:1F91 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        \
            0 4712 1 0000000000000000 100 0 0 10 0\n";
        let expected = ("127.0.0.1:8080".parse().unwrap(), 4711);
        assert_eq!(listening(table).collect::<Vec<_>>(), [expected]);
        let loopback = "00000000000000000000000001000000";
        assert_eq!(parse_address(loopback), Some("::1".parse().unwrap()));
        assert_eq!(parse_address("0100007"), None);
    }

    #[test]
    fn sockets_meet_where_a_connection_may_be_meant_for_either() {
        let meet = |one: &str, other: &str| overlap(one.parse().unwrap(), other.parse().unwrap());
        assert!(meet("127.0.0.1:80", "127.0.0.1:80"));
        assert!(meet("127.0.0.1:80", "0.0.0.0:80") && meet("[::]:80", "127.0.0.1:80"));
        assert!(meet("[::ffff:127.0.0.1]:80", "127.0.0.1:80"));
        assert!(!meet("127.0.0.1:80", "127.0.0.2:80") && !meet("127.0.0.1:80", "127.0.0.1:81"));
        assert!(!meet("0.0.0.0:80", "[::1]:80"));
    }

    #[test]
    fn the_process_of_a_socket_is_known() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let found = find_at(address, &[]).unwrap();
        assert_eq!(
            (found.pid, found.address),
            (Some(std::process::id()), address)
        );
        let own = Socket::from(socket);
        assert_eq!(find_at(address, &[&own]), None);
    }

    #[test]
    fn a_neighbour_is_seen_and_gets_what_is_left_to_it() {
        let any = [Listen::Tcp("127.0.0.1:0".parse().unwrap())];
        let open = |plain: &[Listen], workers| {
            let lines = ListenLines {
                plain,
                secure: &[],
                decide: &[],
            };
            Listeners::open(lines, workers, &mut Vec::new()).unwrap()
        };
        let first = open(&any, 2);
        let port_sharing = |listeners: &Listeners| {
            let sets = listeners.worker_sockets().unwrap();
            let all = sets.iter().flatten().map(|one| &one.listener);
            find(&all.collect::<Vec<_>>()).is_some()
        };
        assert!(!port_sharing(&first));
        let address = first.addresses()[0];
        let second = open(&[Listen::Tcp(address)], 1);
        assert!(port_sharing(&first) && port_sharing(&second));
        let waiting = TcpStream::connect(address).unwrap();
        let closed =
            first.for_each_line(|_, sockets| sockets.iter().try_for_each(refuse_handshakes));
        closed.unwrap();
        // Some of these begin at sockets that take no more.
        let others: Vec<_> = (0..8)
            .map(|_| std::thread::spawn(move || TcpStream::connect(address).unwrap()))
            .collect();
        std::thread::sleep(Duration::from_millis(100));
        first.close();
        let others: Vec<TcpStream> = others.into_iter().map(|one| one.join().unwrap()).collect();
        drop((waiting, others));
        assert!(!port_sharing(&second));
    }
}
