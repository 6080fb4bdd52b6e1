//! Listening sockets: opened once, by whoever starts the house, and shared out to the workers.
//!
//! Each worker gets its own socket on the same TCP address (SO_REUSEPORT), so that the kernel
//! spreads connections and no lock is shared. A unix socket has no such thing, and a service
//! manager may hand over a single one: then workers share it. Sockets that the process was started
//! with ([`OpenedSocket`]) are used before anything is bound.

mod bind;
mod change;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use socket2::SockRef;

use super::left_behind::SocketFileId;
use super::listener::{Listener, OpenedSocket};
use super::port_sharing;
pub use super::port_sharing::PortSharer;
use crate::config::{Config, Listen};
pub use bind::{bind_alone, bind_first};
use bind::{bind_tcp, bind_unix};
pub(crate) use change::Moves;

/// Connections the kernel holds for us before they are accepted, at most.
pub(crate) const BACKLOG: i32 = 4096;

/// One worker's copy of a listening socket.
#[derive(Debug)]
pub(crate) struct Entrance {
    /// Which line of `listen` it is of.
    pub(crate) line: u64,
    pub(crate) listener: Listener,
    /// Whether TLS is spoken there.
    pub(crate) secure: bool,
    /// Whether a service manager has the socket too: nothing about it may be changed.
    pub(crate) lent: bool,
}

impl Entrance {
    pub(crate) fn try_clone(&self) -> io::Result<Entrance> {
        Ok(Entrance {
            line: self.line,
            listener: self.listener.try_clone()?,
            secure: self.secure,
            lent: self.lent,
        })
    }
}

/// All sockets of one line of `listen`.
#[derive(Debug)]
pub(crate) struct Bound {
    /// Tells it from all others of this process.
    line: u64,
    /// As the configuration says it.
    pub(crate) wanted: Listen,
    /// Where it is, with the real port.
    place: Listen,
    /// Whether TLS is spoken there.
    secure: bool,
    /// Whether a service manager keeps it too, and goes on listening when we are gone.
    pub(crate) lent: bool,
    /// Of a unix socket: the file that stands for it.
    file: Option<SocketFileId>,
    /// One or more.
    sockets: Vec<Listener>,
}

/// Every listening socket of the house. The workers have copies of their own: a socket is closed
/// when both have let go of it.
#[derive(Debug)]
pub struct Listeners {
    workers: usize,
    /// Whether addresses are shared with other processes.
    joins: bool,
    bound: Mutex<Vec<Bound>>,
}

impl Bound {
    /// Binds once for each worker. Port 0 takes a free port, the same for all.
    fn open(wanted: &Listen, workers: usize) -> io::Result<Bound> {
        let mut bound = Bound {
            line: next_line(),
            wanted: wanted.clone(),
            place: wanted.clone(),
            secure: false,
            lent: false,
            file: None,
            sockets: Vec::new(),
        };
        match wanted {
            Listen::Tcp(_) => {
                for _ in 0..workers {
                    bound.add_tcp()?;
                }
            }
            Listen::Unix(path) => {
                bound.sockets.push(Listener::Unix(bind_unix(path)?));
                bound.file = SocketFileId::of(path).ok();
            }
        }
        Ok(bound)
    }

    /// What is left of `given` keeps what this line does not name.
    fn inherit(
        wanted: &Listen,
        workers: usize,
        given: &mut Vec<OpenedSocket>,
    ) -> io::Result<Option<Bound>> {
        let Some(first) = given.iter().find(|one| one.is_for(wanted)) else {
            return Ok(None);
        };
        let (place, lent) = (first.socket.place()?, first.lent);
        // Lines that are written alike (`:0`, twice) are in different places.
        let (mine, others): (Vec<OpenedSocket>, Vec<OpenedSocket>) = std::mem::take(given)
            .into_iter()
            .partition(|one| one.socket.place().is_ok_and(|other| other == place));
        *given = others;
        let file = match &place {
            Listen::Unix(path) => SocketFileId::of(path).ok(),
            Listen::Tcp(_) => None,
        };
        let mut bound = Bound {
            line: next_line(),
            wanted: wanted.clone(),
            place,
            secure: false,
            lent,
            file,
            sockets: mine.into_iter().map(|one| one.socket).collect(),
        };
        // More workers than sockets: more sockets, where the first ones allow it. Where not, they
        // are shared.
        while bound.sockets.len() < workers && bound.is_spread() && bound.add_tcp().is_ok() {}
        Ok(Some(bound))
    }

    /// As people write it: `http://127.0.0.1:8080`, `unix:/run/proxy.sock`.
    fn name(&self) -> String {
        match (&self.place, self.secure) {
            (Listen::Tcp(address), false) => format!("http://{address}"),
            (Listen::Tcp(address), true) => format!("https://{address}"),
            (Listen::Unix(path), false) => format!("unix:{}", path.display()),
            (Listen::Unix(path), true) => format!("unix:{} (TLS)", path.display()),
        }
    }

    fn is_spread(&self) -> bool {
        let Some(Listener::Tcp(socket)) = self.sockets.first() else {
            return false;
        };
        !self.lent && SockRef::from(socket).reuse_port().unwrap_or(false)
    }

    fn add_tcp(&mut self) -> io::Result<()> {
        if let Listen::Tcp(address) = self.place {
            let listener = bind_tcp(address, true)?;
            self.place = Listen::Tcp(listener.local_addr()?);
            self.sockets.push(Listener::Tcp(listener));
        }
        Ok(())
    }

    /// Copies for one of `workers`: together they have every socket, since connections wait at
    /// each of them, and every worker has one.
    fn of_worker(&self, worker: usize, workers: usize) -> io::Result<Vec<Entrance>> {
        let count = self.sockets.len();
        let own = self.sockets.iter().enumerate().filter(|(index, _)| {
            index % workers == worker || (count <= worker && *index == worker % count)
        });
        let entrance = |listener| Entrance {
            line: self.line,
            listener,
            secure: self.secure,
            lent: self.lent,
        };
        own.map(|(_, socket)| socket.try_clone().map(entrance))
            .collect()
    }
}

/// A socket of another process at an address where none of these sockets is; nothing for a unix
/// socket, which has one process at most.
pub fn neighbour_at(wanted: &Listen, own: &[OpenedSocket]) -> Option<PortSharer> {
    let &Listen::Tcp(address) = wanted else {
        return None;
    };
    let own: Vec<&Listener> = own.iter().map(|one| &one.socket).collect();
    port_sharing::find_at(address, &own)
}

/// Says which address an error is about.
fn named(wanted: &Listen, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot listen on {wanted}: {error}"))
}

fn next_line() -> u64 {
    static LINES: AtomicU64 = AtomicU64::new(0);
    LINES.fetch_add(1, Ordering::Relaxed)
}

/// The addresses that a configuration names.
#[derive(Clone, Copy, Debug)]
pub struct ListenLines<'c> {
    /// `listen` at the top.
    pub plain: &'c [Listen],
    /// `listen` of `[tls]`.
    pub secure: &'c [Listen],
}

impl<'c> ListenLines<'c> {
    pub fn of(config: &'c Config) -> ListenLines<'c> {
        ListenLines {
            plain: &config.listen,
            secure: config.tls.as_ref().map_or(&[], |tls| &tls.listen),
        }
    }

    /// All of them, the plain ones first.
    pub fn all(self) -> impl Iterator<Item = &'c Listen> {
        self.with_tls().map(|(line, _)| line)
    }

    /// Each with whether TLS is spoken there.
    fn with_tls(self) -> impl Iterator<Item = (&'c Listen, bool)> {
        let plain = self.plain.iter().map(|line| (line, false));
        plain.chain(self.secure.iter().map(|line| (line, true)))
    }
}

impl Listeners {
    /// Opens every line: with a socket of `given`, which is taken out of it, or by binding.
    ///
    /// # Errors
    /// The first address that cannot be bound, named in the error.
    pub fn open(
        lines: ListenLines<'_>,
        workers: usize,
        given: &mut Vec<OpenedSocket>,
    ) -> io::Result<Listeners> {
        let mut bound = Vec::new();
        for (wanted, secure) in lines.with_tls() {
            let named = |error| named(wanted, &error);
            let inherited = Bound::inherit(wanted, workers, given).map_err(named)?;
            let opened = match inherited {
                Some(inherited) => inherited,
                None => Bound::open(wanted, workers).map_err(named)?,
            };
            bound.push(Bound { secure, ..opened });
        }
        Ok(Listeners {
            workers,
            joins: false,
            bound: Mutex::new(bound),
        })
    }

    /// The TCP addresses that are bound, with real port numbers.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let tcp = |bound: &Bound| match bound.place {
            Listen::Tcp(address) => Some(address),
            Listen::Unix(_) => None,
        };
        self.bound().iter().filter_map(tcp).collect()
    }

    /// All that is bound, as people write it: `http://127.0.0.1:8080`, `unix:/run/proxy.sock`.
    pub fn places(&self) -> Vec<String> {
        let bound = self.bound();
        let tcp = |one: &&Bound| matches!(one.place, Listen::Tcp(_));
        let (first, then): (Vec<&Bound>, Vec<&Bound>) = bound.iter().partition(tcp);
        first.into_iter().chain(then).map(Bound::name).collect()
    }

    /// A copy of each worker's sockets.
    pub(crate) fn sets(&self) -> io::Result<Vec<Vec<Entrance>>> {
        let bound = self.bound();
        let set = |worker| {
            let parts = bound.iter().map(|one| one.of_worker(worker, self.workers));
            parts.flat_map(flatten).collect()
        };
        (0..self.workers).map(set).collect()
    }

    /// Does something with every line's sockets.
    pub(crate) fn each<E>(
        &self,
        mut act: impl FnMut(&Bound, &[Listener]) -> Result<(), E>,
    ) -> Result<(), E> {
        let bound = self.bound();
        bound.iter().try_for_each(|one| act(one, &one.sockets))
    }

    /// Whether other processes listen on the same TCP ports, each with sockets of its own
    /// (SO_REUSEPORT).
    pub fn shares_ports(&self) -> bool {
        let bound = self.bound();
        let own = bound.iter().filter(|one| !one.lent);
        let sockets: Vec<&Listener> = own.flat_map(|one| &one.sockets).collect();
        port_sharing::find(&sockets).is_some()
    }

    /// The same sockets; whether later ones may be bound where other processes listen.
    pub fn joining(self, joins: bool) -> Listeners {
        Listeners { joins, ..self }
    }

    /// Whether something has to be done for connections that are in between as ours are closed and
    /// others go to the neighbours.
    pub fn yield_with_care(&self) -> bool {
        self.shares_ports() && !port_sharing::inherit_what_waits()
    }

    /// Lets go of all of them, so that the workers' copies are the last.
    pub fn close(&self) {
        self.bound().clear();
    }

    fn bound(&self) -> MutexGuard<'_, Vec<Bound>> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sockets of one line, or why there are none.
fn flatten(part: io::Result<Vec<Entrance>>) -> Vec<io::Result<Entrance>> {
    match part {
        Ok(sockets) => sockets.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(lines: &[Listen]) -> ListenLines<'_> {
        ListenLines {
            plain: lines,
            secure: &[],
        }
    }

    fn any() -> Listen {
        Listen::Tcp("127.0.0.1:0".parse().unwrap())
    }

    fn given(listeners: &Listeners) -> Vec<OpenedSocket> {
        let mut given = Vec::new();
        let collected = listeners.each(|bound, sockets| {
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
            let sets = second.sets().unwrap();
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
        let sets = second.sets().unwrap();
        assert!(sets.iter().all(|set| set.len() == 1));
        let mut sockets = 0;
        let counted = second.each(|_, all| {
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
