//! Where the control socket of a configuration is, and the directory that is made for it.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::config::{self, Control};

/// Where the socket of a proxy of this file may be, the likeliest place first.
pub fn places(file: &Path, control: &Control) -> Vec<PathBuf> {
    match control {
        Control::Off => Vec::new(),
        Control::At(path) => vec![path.clone()],
        Control::Derived => {
            let name = name(file);
            directories().iter().map(|one| one.join(&name)).collect()
        }
    }
}

/// The same for every way to name the same file, also when what it links to is replaced.
fn name(file: &Path) -> String {
    let directory = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let directory = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    let whole = directory.join(file.file_name().unwrap_or_default());
    let hash = blake3::hash(whole.as_os_str().as_bytes()).to_hex();
    format!("{}.sock", &hash[..16])
}

fn directories() -> Vec<PathBuf> {
    let of_user = config::environment("XDG_RUNTIME_DIR").filter(|path| path.starts_with('/'));
    let of_user = of_user.map(|path| Path::new(&path).join("tidegate"));
    let user = rustix::process::geteuid().as_raw();
    let temporary = PathBuf::from(format!("/tmp/tidegate-{user}"));
    let all = [
        Some(PathBuf::from("/run/tidegate")),
        of_user,
        Some(temporary),
    ];
    all.into_iter().flatten().collect()
}

/// A directory in which nobody else can put or replace anything.
pub(crate) fn make_private(directory: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(directory)?;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    if found.is_dir() && own && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::other("a directory that is not this user's own"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_the_same_for_every_way_to_name_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().join("real");
        let link = directory.path().join("link");
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let one = name(&real.join("proxy.toml"));
        assert_eq!(one, name(&link.join("proxy.toml")));
        assert_eq!(one, name(&real.join("../real/./proxy.toml")));
        assert_ne!(one, name(&real.join("other.toml")));
        // What the file itself links to may be replaced.
        std::os::unix::fs::symlink("elsewhere", real.join("proxy.toml")).unwrap();
        assert_eq!(one, name(&real.join("proxy.toml")));
    }
}
