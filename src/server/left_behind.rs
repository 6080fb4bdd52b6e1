//! Files that processes leave: which file something is, and whether a socket's file still belongs
//! to a process that serves it. Only files that this process made, or that no process serves, are
//! ever removed.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use socket2::{Domain, SockAddr, Socket, Type};

/// Tells a file from every other, also from one that was given the same number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketFileId {
    device: u64,
    inode: u64,
    /// When a socket's file was made, seconds and nanoseconds. Nothing for other files, which are
    /// written to.
    made: Option<(i64, i64)>,
}

/// How a socket's file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketState {
    /// There is no such file.
    Absent,
    /// No process listens there any more.
    Stale,
    /// A process listens there, with this id where that can be known.
    Served(Option<u32>),
}

impl SocketFileId {
    pub(crate) fn of(path: &Path) -> io::Result<SocketFileId> {
        fs::symlink_metadata(path).map(|file| SocketFileId::from(&file))
    }

    pub(crate) fn of_file(file: &File) -> io::Result<SocketFileId> {
        file.metadata().map(|file| SocketFileId::from(&file))
    }
}

impl From<&Metadata> for SocketFileId {
    fn from(file: &Metadata) -> SocketFileId {
        let made = is_socket(file).then(|| (file.mtime(), file.mtime_nsec()));
        SocketFileId {
            device: file.dev(),
            inode: file.ino(),
            made,
        }
    }
}

pub(crate) fn is_socket(file: &Metadata) -> bool {
    file.file_type().is_socket()
}

/// Looks whether a process serves a socket's file. It never waits, also where that process does
/// not accept; a file that may not be opened, or is no socket, counts as served.
pub(crate) fn socket_state(path: &Path) -> SocketState {
    let connect = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        let connected = socket.connect(&SockAddr::unix(path)?);
        connected.map(|()| socket)
    };
    match connect() {
        Ok(socket) => {
            let peer = rustix::net::sockopt::socket_peercred(&socket);
            let pid = peer.ok().and_then(|peer| {
                let pid = peer.pid.as_raw_nonzero().get();
                u32::try_from(pid).ok()
            });
            SocketState::Served(pid)
        }
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => SocketState::Absent,
            io::ErrorKind::ConnectionRefused => {
                let file = fs::symlink_metadata(path);
                match file.is_ok_and(|file| is_socket(&file)) {
                    true => SocketState::Stale,
                    false => SocketState::Served(None),
                }
            }
            _ => SocketState::Served(None),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_socket_is_served_as_long_as_its_process_listens() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        assert_eq!(socket_state(&path), SocketState::Absent);
        let listener = UnixListener::bind(&path).unwrap();
        let own = SocketState::Served(Some(std::process::id()));
        assert_eq!(socket_state(&path), own);
        drop(listener);
        assert_eq!(socket_state(&path), SocketState::Stale);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a file").unwrap();
        assert_eq!(socket_state(&path), SocketState::Served(None));
    }

    #[test]
    fn a_process_that_does_not_accept_serves_too() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        socket.listen(0).unwrap();
        let _waiting: Vec<SocketState> = (0..4).map(|_| socket_state(&path)).collect();
        let kept: Vec<Socket> = (0..4)
            .map(|_| {
                let one = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
                one.set_nonblocking(true).unwrap();
                let _ = one.connect(&SockAddr::unix(&path).unwrap());
                one
            })
            .collect();
        assert!(matches!(socket_state(&path), SocketState::Served(_)));
        drop(kept);
    }
}
