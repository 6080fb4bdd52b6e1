//! All listening sockets of the server, and the share of each worker in them.
//!
//! Each worker has its own socket for each TCP address (SO_REUSEPORT). The kernel spreads
//! connections over these sockets, and no lock is shared. Workers share a unix socket, and a socket
//! of a service manager that passes only one. Inherited sockets ([`OpenedSocket`]) are used before
//! others are bound. A reload binds new addresses before it closes old ones, and does not touch the
//! rest.

use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use socket2::Socket;

use super::listener::{OpenedSocket, bind_tcp, bind_unix, place};
pub use super::listener::{bind_alone, bind_first};
use super::port_sharing;
pub use super::port_sharing::PortSharer;
use super::socket_file::SocketFileId;
use crate::config::{Config, Listen, SettingError};
use crate::telemetry::panics::lock;

/// The copy of a listening socket that one worker has.
#[derive(Debug)]
pub(crate) struct WorkerSocket {
    /// The id of its line of `listen`.
    pub(crate) line: u64,
    pub(crate) listener: Socket,
    pub(crate) is_unix: bool,
    pub(crate) kind: ListenerKind,
    /// Whether a service manager has the socket too. Its options must not be changed then.
    pub(crate) lent: bool,
}

#[derive(Debug)]
pub(crate) struct BoundLine {
    /// Unique in this process.
    id: u64,
    pub(crate) wanted: Listen,
    place: Listen,
    kind: ListenerKind,
    /// Whether a service manager has the socket too, and listens after this process.
    pub(crate) lent: bool,
    file: Option<SocketFileId>,
    /// One or more.
    sockets: Vec<Socket>,
}

/// All listening sockets of the server. Workers have copies, so a socket closes when both this and
/// the workers have dropped it.
#[derive(Debug)]
pub struct Listeners {
    workers: usize,
    /// Whether a reload may bind an address where another process listens.
    pub joins: bool,
    lines: Mutex<Vec<BoundLine>>,
    /// A copy of the admin's socket, for the next process.
    pub(super) admin: Mutex<Option<OpenedSocket>>,
}

#[derive(Debug)]
pub(crate) struct ListenChange {
    lines: Vec<BoundLine>,
    pub(crate) opened: Vec<Vec<WorkerSocket>>,
    pub(crate) closed: Vec<u64>,
}

impl BoundLine {
    /// Opens a line: with its sockets among `inherited`, which are removed there, or with one new
    /// socket for each worker. Port 0 takes a free port, the same for all workers.
    fn open(
        wanted: &Listen,
        kind: ListenerKind,
        workers: usize,
        inherited: &mut Vec<OpenedSocket>,
    ) -> io::Result<BoundLine> {
        static LINES: AtomicU64 = AtomicU64::new(0);
        let mut line = BoundLine {
            id: LINES.fetch_add(1, Ordering::Relaxed),
            wanted: wanted.clone(),
            place: wanted.clone(),
            kind,
            lent: false,
            file: None,
            sockets: Vec::new(),
        };
        line.inherit(inherited)?;
        match wanted {
            // Inherited sockets that allow no more sockets are shared by the workers.
            _ if !line.sockets.is_empty() => {
                while line.sockets.len() < workers && line.is_spread() && line.add_tcp().is_ok() {}
            }
            Listen::Tcp(_) => {
                for _ in 0..workers {
                    line.add_tcp()?;
                }
            }
            Listen::Unix(path) => line.sockets.push(bind_unix(path)?),
        }
        if let Listen::Unix(path) = &line.place {
            line.file = SocketFileId::of_path(path).ok();
        }
        Ok(line)
    }

    /// Takes the sockets of this line out of `inherited`.
    fn inherit(&mut self, inherited: &mut Vec<OpenedSocket>) -> io::Result<()> {
        let Some(first) = inherited.iter().find(|one| one.is_for(&self.wanted)) else {
            return Ok(());
        };
        // Two lines with equal text (`:0`) have different places.
        let place_of_first = place(&first.socket)?;
        self.lent = first.lent;
        let is_here =
            |one: &mut OpenedSocket| place(&one.socket).is_ok_and(|other| other == place_of_first);
        let sockets = inherited.extract_if(.., is_here).map(|one| one.socket);
        self.sockets = sockets.collect();
        self.place = place_of_first;
        Ok(())
    }

    /// The name in logs: `http://127.0.0.1:8080`, `unix:/run/proxy.sock`.
    fn name(&self) -> String {
        match (&self.place, self.kind) {
            (Listen::Tcp(address), ListenerKind::Plain) => format!("http://{address}"),
            (Listen::Tcp(address), ListenerKind::Tls) => format!("https://{address}"),
            (Listen::Tcp(address), ListenerKind::Decide) => format!("decide on {address}"),
            (Listen::Unix(path), ListenerKind::Plain) => format!("unix:{}", path.display()),
            (Listen::Unix(path), ListenerKind::Tls) => format!("unix:{} (TLS)", path.display()),
            (Listen::Unix(path), ListenerKind::Decide) => {
                format!("decide on unix:{}", path.display())
            }
        }
    }

    fn is_spread(&self) -> bool {
        let is_tcp = matches!(self.place, Listen::Tcp(_));
        let shares_port = |socket: &Socket| socket.reuse_port().unwrap_or(false);
        is_tcp && !self.lent && self.sockets.first().is_some_and(shares_port)
    }

    fn add_tcp(&mut self) -> io::Result<()> {
        if let Listen::Tcp(address) = self.place {
            let listener = bind_tcp(address, true)?;
            self.place = place(&listener)?;
            self.sockets.push(listener);
        }
        Ok(())
    }

    /// Copies the sockets of one worker. Each socket has a worker, because connections wait at each
    /// socket, and each worker has a socket.
    fn copy_for(
        &self,
        worker: usize,
        workers: usize,
        copies: &mut Vec<WorkerSocket>,
    ) -> io::Result<()> {
        let count = self.sockets.len();
        for (index, socket) in self.sockets.iter().enumerate() {
            if index % workers == worker || (count <= worker && index == worker % count) {
                copies.push(WorkerSocket {
                    line: self.id,
                    listener: socket.try_clone()?,
                    is_unix: matches!(self.place, Listen::Unix(_)),
                    kind: self.kind,
                    lent: self.lent,
                });
            }
        }
        Ok(())
    }

    /// Removes the file of a unix socket, unless another process has replaced it.
    fn remove_file(&self) {
        if let Listen::Unix(path) = &self.place
            && self.file.is_some()
            && SocketFileId::of_path(path).ok() == self.file
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn copy_for_workers(lines: &[BoundLine], workers: usize) -> io::Result<Vec<Vec<WorkerSocket>>> {
    let mut all = Vec::with_capacity(workers);
    for worker in 0..workers {
        let mut copies = Vec::new();
        for line in lines {
            line.copy_for(worker, workers, &mut copies)?;
        }
        all.push(copies);
    }
    Ok(all)
}

/// Finds a socket of another process at an address. `own` are the sockets of this process. Returns
/// `None` for a unix socket, which has one process at most.
pub fn neighbour_at(wanted: &Listen, own: &[OpenedSocket]) -> Option<PortSharer> {
    let &Listen::Tcp(address) = wanted else {
        return None;
    };
    let own: Vec<&Socket> = own.iter().map(|one| &one.socket).collect();
    port_sharing::find_at(address, &own)
}

/// What a listening socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenerKind {
    /// Clients without TLS.
    Plain,
    /// Clients with TLS.
    Tls,
    /// Proxies that ask for decisions (`[decide]`).
    Decide,
}

#[derive(Clone, Copy, Debug)]
pub struct ListenLines<'c> {
    pub plain: &'c [Listen],
    pub secure: &'c [Listen],
    pub decide: &'c [Listen],
}

impl<'c> ListenLines<'c> {
    pub fn new(config: &'c Config) -> ListenLines<'c> {
        ListenLines {
            plain: &config.listen,
            secure: config.tls.as_ref().map_or(&[], |tls| &tls.listen),
            decide: config.decide.as_ref().map_or(&[], |decide| &decide.listen),
        }
    }

    /// All addresses, those without TLS first.
    pub fn all(self) -> impl Iterator<Item = &'c Listen> {
        self.with_kinds().map(|(line, _)| line)
    }

    /// Names the address and the setting of a line in an error about it.
    pub fn name_error(self, line: &Listen, error: &io::Error) -> io::Error {
        let setting = match self.with_kinds().find(|(one, _)| *one == line) {
            Some((_, ListenerKind::Tls)) => "tls.listen",
            Some((_, ListenerKind::Decide)) => "decide.listen",
            Some((_, ListenerKind::Plain)) | None => "listen",
        };
        SettingError::address(setting, line, error)
    }

    fn with_kinds(self) -> impl Iterator<Item = (&'c Listen, ListenerKind)> {
        let of = |lines: &'c [Listen], kind| lines.iter().map(move |line| (line, kind));
        of(self.plain, ListenerKind::Plain)
            .chain(of(self.secure, ListenerKind::Tls))
            .chain(of(self.decide, ListenerKind::Decide))
    }
}

impl Listeners {
    /// Opens every line with its sockets among `inherited`, which are removed there, or with new
    /// ones.
    ///
    /// # Errors
    /// The first address that cannot be bound. The error names it.
    pub fn open(
        lines: ListenLines<'_>,
        workers: usize,
        inherited: &mut Vec<OpenedSocket>,
    ) -> io::Result<Listeners> {
        let mut opened = Vec::new();
        for (wanted, kind) in lines.with_kinds() {
            let line = BoundLine::open(wanted, kind, workers, inherited);
            opened.push(line.map_err(|error| lines.name_error(wanted, &error))?);
        }
        Ok(Listeners {
            workers,
            joins: false,
            lines: Mutex::new(opened),
            admin: Mutex::default(),
        })
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        let tcp = |line: &BoundLine| match line.place {
            Listen::Tcp(address) => Some(address),
            Listen::Unix(_) => None,
        };
        lock(&self.lines).iter().filter_map(tcp).collect()
    }

    /// The first TCP address without TLS.
    pub fn plain_address(&self) -> Option<SocketAddr> {
        let lines = lock(&self.lines);
        lines.iter().find_map(|line| match line.place {
            Listen::Tcp(address) if line.kind == ListenerKind::Plain => Some(address),
            _ => None,
        })
    }

    /// All addresses by their names, TCP first: `http://127.0.0.1:8080`, `unix:/run/proxy.sock`.
    pub fn places(&self) -> Vec<String> {
        let lines = lock(&self.lines);
        let is_tcp = |line: &&BoundLine| matches!(line.place, Listen::Tcp(_));
        let (tcp, unix): (Vec<&BoundLine>, Vec<&BoundLine>) = lines.iter().partition(is_tcp);
        tcp.into_iter().chain(unix).map(BoundLine::name).collect()
    }

    pub(crate) fn worker_sockets(&self) -> io::Result<Vec<Vec<WorkerSocket>>> {
        copy_for_workers(&lock(&self.lines), self.workers)
    }

    pub(crate) fn for_each_line<E>(
        &self,
        mut act: impl FnMut(&BoundLine, &[Socket]) -> Result<(), E>,
    ) -> Result<(), E> {
        let lines = lock(&self.lines);
        lines.iter().try_for_each(|line| act(line, &line.sockets))
    }

    pub(crate) fn set_admin(&self, socket: Option<OpenedSocket>) {
        *lock(&self.admin) = socket;
    }

    /// Whether other processes have sockets of their own on the same TCP ports (SO_REUSEPORT).
    pub fn shares_ports(&self) -> bool {
        let lines = lock(&self.lines);
        let own = lines.iter().filter(|line| !line.lent);
        let sockets: Vec<&Socket> = own.flat_map(|line| &line.sockets).collect();
        port_sharing::find(&sockets).is_some()
    }

    /// Whether a plain close of the sockets loses connections. This is so if other processes share
    /// the ports and the kernel does not move waiting connections to them.
    pub fn yield_with_care(&self) -> bool {
        self.shares_ports() && !port_sharing::migrates_connections()
    }

    /// Drops all sockets, so that the copies of the workers are the last ones.
    pub fn close(&self) {
        lock(&self.lines).clear();
        self.set_admin(None);
    }

    /// Binds the addresses that are not bound yet.
    ///
    /// # Errors
    /// The first address that cannot be bound. The error names it, and nothing has changed.
    pub(crate) fn prepare(&self, all: ListenLines<'_>) -> io::Result<ListenChange> {
        let lines = lock(&self.lines);
        let mut left: Vec<&BoundLine> = lines.iter().collect();
        let mut new_lines = Vec::new();
        for (wanted, kind) in all.with_kinds() {
            let is_bound = |line: &&BoundLine| line.wanted == *wanted && line.kind == kind;
            if let Some(place) = left.iter().position(is_bound) {
                left.remove(place);
                continue;
            }
            if let (false, Listen::Tcp(address)) = (self.joins, wanted) {
                let own: Vec<&Socket> = lines.iter().flat_map(|line| &line.sockets).collect();
                if let Some(other) = port_sharing::find_at(*address, &own) {
                    let why = io::Error::new(io::ErrorKind::AddrInUse, other.to_string());
                    return Err(all.name_error(wanted, &why));
                }
            }
            let line = BoundLine::open(wanted, kind, self.workers, &mut Vec::new());
            new_lines.push(line.map_err(|error| all.name_error(wanted, &error))?);
        }
        Ok(ListenChange {
            opened: copy_for_workers(&new_lines, self.workers)?,
            lines: new_lines,
            closed: left.iter().map(|line| line.id).collect(),
        })
    }

    /// Applies a prepared change to these listeners. The workers apply it to their copies.
    pub(crate) fn commit(&self, change: &mut ListenChange) {
        let mut lines = lock(&self.lines);
        for line in change.lines.drain(..) {
            tracing::info!(place = %line.name(), "reload: listening");
            lines.push(line);
        }
        let is_closed = |line: &mut BoundLine| change.closed.contains(&line.id);
        let closed: Vec<BoundLine> = lines.extract_if(.., is_closed).collect();
        for line in closed {
            if line.lent {
                tracing::warn!(place = %line.name(), "the service manager goes on listening");
            } else if !lines.iter().any(|other| other.place == line.place) {
                line.remove_file();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    fn plain(lines: &[Listen]) -> ListenLines<'_> {
        ListenLines {
            plain: lines,
            secure: &[],
            decide: &[],
        }
    }
    fn any() -> Listen {
        Listen::Tcp("127.0.0.1:0".parse().unwrap())
    }
    fn given(listeners: &Listeners) -> Vec<OpenedSocket> {
        let mut given = Vec::new();

        let collected = listeners.for_each_line(|bound, sockets| {
            for socket in sockets {
                given.push(OpenedSocket {
                    name: bound.wanted.to_string(),
                    lent: bound.lent,
                    socket: socket.try_clone()?,
                });
            }
            io::Result::Ok(())
        });
        collected.unwrap();
        given
    }

    #[test]
    fn every_worker_gets_a_socket_and_every_socket_a_worker() {
        for (before, after) in [(3, 3), (1, 4), (5, 2), (4, 1)] {
            let first = Listeners::open(plain(&[any()]), before, &mut Vec::new()).unwrap();
            let mut given = given(&first);
            let second = Listeners::open(plain(&[any()]), after, &mut given).unwrap();
            assert!(given.is_empty());
            assert_eq!(first.addresses(), second.addresses());
            let sets = second.worker_sockets().unwrap();
            assert_eq!(sets.len(), after);
            assert!(sets.iter().all(|set| !set.is_empty()));
            let sockets: usize = sets.iter().map(Vec::len).sum();
            assert_eq!(sockets, before.max(after), "{before} to {after}");
        }
    }

    #[test]
    fn a_lent_socket_is_shared_and_not_joined_by_others() {
        let first = Listeners::open(plain(&[any()]), 1, &mut Vec::new()).unwrap();
        let mut given = given(&first);
        given[0].lent = true;
        let second = Listeners::open(plain(&[any()]), 3, &mut given).unwrap();
        let sets = second.worker_sockets().unwrap();
        assert!(sets.iter().all(|set| set.len() == 1));
        let mut sockets = 0;
        let counted = second.for_each_line(|_, all| {
            sockets += all.len();
            Ok::<_, ()>(())
        });
        assert!(counted.is_ok());
        assert_eq!(sockets, 1);
    }

    #[test]
    fn lines_that_are_written_alike_keep_their_places() {
        let both = [any(), any()];
        let first = Listeners::open(plain(&both), 2, &mut Vec::new()).unwrap();
        let mut given = given(&first);
        let lines = ListenLines {
            plain: &both[..1],
            secure: &both[1..],
            decide: &[],
        };
        let second = Listeners::open(lines, 3, &mut given).unwrap();
        assert_eq!(first.addresses(), second.addresses());
        assert!(given.is_empty());
    }

    #[test]
    fn what_no_line_names_is_left() {
        let first = Listeners::open(plain(&[any(), any()]), 1, &mut Vec::new()).unwrap();
        let mut given = given(&first);
        given[1].name = "127.0.0.1:1".to_owned();
        let second = Listeners::open(plain(&[any()]), 1, &mut given).unwrap();
        assert_eq!(second.addresses(), first.addresses()[..1]);
        assert_eq!(given.len(), 1);
    }
}
