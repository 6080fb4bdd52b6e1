//! The files of unix sockets: their identity, whether a process serves them, and where the control
//! socket is. Only files of this process, or files that no process serves, are ever removed.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::config::{self, Control};

/// Identifies a file. A later file with the same inode differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketFileId {
    device: u64,
    inode: u64,
    /// The creation of a socket's file, seconds and nanoseconds; `None` for other files, whose
    /// times change with each write.
    created: Option<(i64, i64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketState {
    Absent,
    /// No process listens there any more.
    Stale,
    /// A process listens there, with this id if it is known.
    Served(Option<u32>),
}

impl SocketFileId {
    pub(crate) fn of_path(path: &Path) -> io::Result<SocketFileId> {
        fs::symlink_metadata(path).map(|file| SocketFileId::from(&file))
    }

    pub(crate) fn of_file(file: &File) -> io::Result<SocketFileId> {
        file.metadata().map(|file| SocketFileId::from(&file))
    }
}

impl From<&Metadata> for SocketFileId {
    fn from(file: &Metadata) -> SocketFileId {
        let created = is_socket(file).then(|| (file.mtime(), file.mtime_nsec()));
        SocketFileId {
            device: file.dev(),
            inode: file.ino(),
            created,
        }
    }
}

pub(crate) fn is_socket(file: &Metadata) -> bool {
    file.file_type().is_socket()
}

/// Finds out whether a process serves a socket's file. It never blocks, even if that process does
/// not accept. A file that cannot be opened, or is no socket, counts as served.
pub(crate) fn socket_state(path: &Path) -> SocketState {
    let connect = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        let connected = socket.connect(&SockAddr::unix(path)?);
        connected.map(|()| socket)
    };
    match connect() {
        Ok(socket) => {
            let peer = rustix::net::sockopt::socket_peercred(&socket).ok();
            let pid = peer.map(|peer| peer.pid.as_raw_nonzero().get());
            SocketState::Served(pid.and_then(|pid| u32::try_from(pid).ok()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => SocketState::Absent,
        Err(error)
            if error.kind() == io::ErrorKind::ConnectionRefused
                && fs::symlink_metadata(path).is_ok_and(|file| is_socket(&file)) =>
        {
            SocketState::Stale
        }
        Err(_) => SocketState::Served(None),
    }
}

/// The paths where the control socket for the configuration `file` may be, the best first.
pub fn control_paths(file: &Path, control: &Control) -> Vec<PathBuf> {
    match control {
        Control::Off => Vec::new(),
        Control::At(path) => vec![path.clone()],
        Control::Derived => {
            let name = control_name(file);
            let directories = control_directories().into_iter();
            directories.map(|one| one.join(&name)).collect()
        }
    }
}

/// A name of the control socket that is the same for every path to the same file. It does not
/// follow a symbolic link at `file` itself, because such a link may be replaced.
fn control_name(file: &Path) -> String {
    let directory = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let directory = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    let whole = directory.join(file.file_name().unwrap_or_default());
    let hash = blake3::hash(whole.as_os_str().as_bytes()).to_hex();
    format!("{}.sock", &hash[..16])
}

fn control_directories() -> Vec<PathBuf> {
    let of_user = config::environment("XDG_RUNTIME_DIR").filter(|path| path.starts_with('/'));
    let of_user = of_user.map(|path| Path::new(&path).join("tidegate"));
    let user = rustix::process::geteuid().as_raw();
    let mut all = vec![PathBuf::from("/run/tidegate")];
    all.extend(of_user);
    let shared = PathBuf::from(format!("/tmp/tidegate-{user}"));
    // Another user may have created it, with an admin token of their own in it.
    if is_private(&shared).unwrap_or(true) {
        all.push(shared);
    }
    all
}

/// Whether only this user can create or replace files in `directory`.
fn is_private(directory: &Path) -> io::Result<bool> {
    let found = fs::symlink_metadata(directory)?;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    Ok(found.is_dir() && own && found.mode() & 0o022 == 0)
}

/// Creates a directory in which only this user can create or replace files.
///
/// # Errors
/// It cannot be created, or others can write to the existing one.
pub(crate) fn make_private(directory: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    match is_private(directory)? {
        true => Ok(()),
        false => Err(io::Error::other("a directory that is not this user's own")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixListener;

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
    fn a_private_directory_is_this_user_s_and_no_link() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("own");
        assert!(is_private(&own).is_err());
        make_private(&own).unwrap();
        assert!(is_private(&own).unwrap());
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&own, &link).unwrap();
        assert!(!is_private(&link).unwrap());
        fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(!is_private(&own).unwrap());
        let roots = is_private(Path::new("/")).unwrap();
        assert_eq!(roots, rustix::process::geteuid().is_root());
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

    #[test]
    fn the_place_is_the_same_for_every_way_to_name_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().join("real");
        let link = directory.path().join("link");
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let one = control_name(&real.join("proxy.toml"));
        assert_eq!(one, control_name(&link.join("proxy.toml")));
        assert_eq!(one, control_name(&real.join("../real/./proxy.toml")));
        assert_ne!(one, control_name(&real.join("other.toml")));
        // A link at the file itself may be replaced.
        std::os::unix::fs::symlink("elsewhere", real.join("proxy.toml")).unwrap();
        assert_eq!(one, control_name(&real.join("proxy.toml")));
    }
}
