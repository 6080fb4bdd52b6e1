//! Another `listen` for a house that runs: new addresses are bound before anything is closed, and
//! those that stay are not touched.

use std::io;

use super::{Bound, Entrance, Listen, ListenLines, Listeners, flatten, named};
use crate::server::left_behind::SocketFileId;
use crate::server::listener::Listener;
use crate::server::port_sharing;

/// What a reload changes, bound and not yet used.
#[derive(Debug)]
pub(crate) struct Change {
    opened: Vec<Bound>,
    closed: Vec<u64>,
}

/// The same for the workers.
#[derive(Debug)]
pub(crate) struct Moves {
    /// What each worker accepts from too.
    pub(crate) opened: Vec<Vec<Entrance>>,
    /// Lines from which nobody accepts any more.
    pub(crate) closed: Vec<u64>,
}

impl Listeners {
    /// Binds what is not bound yet.
    ///
    /// # Errors
    /// The first address that cannot be bound, named in the error; nothing has changed then.
    pub(crate) fn prepare(&self, lines: ListenLines<'_>) -> io::Result<Change> {
        let bound = self.bound();
        let mut left: Vec<&Bound> = bound.iter().collect();
        let mut opened = Vec::new();
        for (wanted, secure) in lines.with_tls() {
            let is_it = |one: &&Bound| one.wanted == *wanted && one.secure == secure;
            if let Some(place) = left.iter().position(is_it) {
                left.remove(place);
                continue;
            }
            if let (false, Listen::Tcp(address)) = (self.joins, wanted) {
                let own: Vec<&Listener> = bound.iter().flat_map(|one| &one.sockets).collect();
                if let Some(other) = port_sharing::find_at(*address, &own) {
                    let why = io::Error::new(io::ErrorKind::AddrInUse, other.to_string());
                    return Err(named(wanted, &why));
                }
            }
            let new = Bound::open(wanted, self.workers).map_err(|error| named(wanted, &error))?;
            opened.push(Bound { secure, ..new });
        }
        Ok(Change {
            opened,
            closed: left.iter().map(|one| one.line).collect(),
        })
    }

    /// From now on these are the sockets of the house.
    pub(crate) fn commit(&self, change: Change) -> io::Result<Moves> {
        let set = |worker| {
            let parts = change.opened.iter();
            let parts = parts.map(|one| one.of_worker(worker, self.workers));
            parts.flat_map(flatten).collect()
        };
        let opened = (0..self.workers).map(set).collect::<io::Result<_>>()?;
        let mut bound = self.bound();
        for new in change.opened {
            tracing::info!(place = %new.name(), "reload: listening");
            bound.push(new);
        }
        let closes = |one: &mut Bound| change.closed.contains(&one.line);
        let gone: Vec<Bound> = bound.extract_if(.., closes).collect();
        for one in gone {
            if one.lent {
                tracing::warn!(place = %one.name(), "the service manager goes on listening");
                continue;
            }
            let stays = bound.iter().any(|other| other.place == one.place);
            if let (Listen::Unix(path), false) = (&one.place, stays) {
                // Another process may have put its own there since.
                if one.file.is_some() && SocketFileId::of(path).ok() == one.file {
                    let _ = std::fs::remove_file(path);
                }
            }
        }
        Ok(Moves {
            opened,
            closed: change.closed,
        })
    }
}
