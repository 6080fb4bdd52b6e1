//! The token of an admin whose configuration names no token file.
//!
//! It is made at the first start and kept beside the control socket, in a file that only this user
//! can read. It stays the same after a restart, so that an open dashboard goes on.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::config::Control;
use crate::server::socket_file::{control_paths, make_private};

/// The most bytes that are read of a token file.
const MAX_FILE: u64 = 256;
/// Characters of a token.
const LENGTH: usize = 43;

/// The files that may hold the token of the proxy with this configuration file, the likeliest
/// first.
pub fn places(file: &Path, control: &Control) -> Vec<PathBuf> {
    let sockets = control_paths(file, control);
    let beside = |socket: PathBuf| socket.with_extension("token");
    sockets.into_iter().map(beside).collect()
}

/// The token of the proxy with this configuration file, if this user may read it.
pub fn find(file: &Path, control: &Control) -> Option<Vec<u8>> {
    places(file, control).iter().find_map(|path| read(path))
}

/// The same; makes a token if there is none.
///
/// # Errors
/// The token cannot be written to any of the places.
pub fn keep(file: &Path, control: &Control) -> io::Result<Vec<u8>> {
    let places = places(file, control);
    if let Some(token) = places.iter().find_map(|path| read(path)) {
        return Ok(token);
    }
    let mut failed = io::Error::other("there is no place for it");
    for path in &places {
        match make(path, *control == Control::Derived) {
            Ok(token) => return Ok(token),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn make(path: &Path, own_directory: bool) -> io::Result<Vec<u8>> {
    if own_directory {
        make_private(path.parent().unwrap_or(Path::new("/")))?;
    }
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    let token = URL_SAFE_NO_PAD.encode(bytes);
    // Written to another file and then renamed, so that a reader never finds a part of it.
    let beside = path.with_extension(format!("token.{}", std::process::id()));
    let _ = fs::remove_file(&beside);
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)?;
    let written = file.write_all(token.as_bytes());
    written
        .and_then(|()| fs::rename(&beside, path))
        .inspect_err(|_| {
            let _ = fs::remove_file(&beside);
        })?;
    Ok(token.into_bytes())
}

/// The token in a file that belongs to this user and that no other user can read.
fn read(path: &Path) -> Option<Vec<u8>> {
    let mut options = OpenOptions::new();
    let file = options.read(true).open(path).ok()?;
    let found = file.metadata().ok()?;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    let root = rustix::process::geteuid().is_root();
    if !found.is_file() || !(own || root) || found.mode() & 0o077 != 0 {
        return None;
    }
    let mut token = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut token).ok()?;
    (token.len() == LENGTH).then_some(token)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_is_made_once_and_for_this_user_alone() {
        let directory = tempfile::tempdir().unwrap();
        let control = Control::At(directory.path().join("control.sock"));
        let file = Path::new("proxy.toml");
        assert_eq!(find(file, &control), None);
        let token = keep(file, &control).unwrap();
        assert_eq!(token.len(), LENGTH);
        assert_eq!(keep(file, &control).unwrap(), token);
        assert_eq!(find(file, &control), Some(token.clone()));
        let place = directory.path().join("control.token");
        assert_eq!(fs::metadata(&place).unwrap().mode() & 0o777, 0o600);
        // A token that other users can read is not used.
        fs::set_permissions(&place, Permissions::from_mode(0o644)).unwrap();
        assert_ne!(keep(file, &control).unwrap(), token);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
