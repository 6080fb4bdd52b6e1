//! Files that the proxy is to write: whether it could, found without making any of them.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rustix::fs::{Access, access};

use crate::config::diagnostic::{Code, Diagnostic};
use crate::config::{Config, Control, LogTarget};

/// A mistake for each setting whose file this user could not write.
pub(super) fn find(config: &Config) -> Vec<Diagnostic> {
    let log = &config.log;
    let access_log = match &log.access {
        LogTarget::File(path) => Some(path.as_path()),
        _ => None,
    };
    let control = match &config.server.control {
        Control::At(path) => Some(path.as_path()),
        _ => None,
    };
    let appended = [
        ("log.access", access_log),
        ("log.decisions", log.decisions.as_deref()),
    ];
    let replaced = [
        ("server.pid_file", config.server.pid_file.as_deref()),
        ("server.control", control),
    ];
    let appended = appended.into_iter().filter_map(|(setting, path)| {
        let path = path?;
        Some((setting, path, append(path)?))
    });
    let replaced = replaced.into_iter().filter_map(|(setting, path)| {
        let path = path?;
        Some((setting, path, replace(path)?))
    });
    let mistake = |(setting, path, why): (&str, &Path, String)| {
        let message = format!("`{setting}`: cannot write {}: {why}", path.display());
        Diagnostic::new(Code::SecretFile, message)
            .help("name a file that the proxy's user may write, in a folder that is there")
    };
    appended.chain(replaced).map(mistake).collect()
}

/// Why lines cannot be appended to a file.
fn append(path: &Path) -> Option<String> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Some("it is a folder".to_owned()),
        Ok(_) => access(path, Access::WRITE_OK)
            .err()
            .map(|error| error.to_string()),
        Err(error) if error.kind() == ErrorKind::NotFound => within_folder(path),
        Err(error) => Some(error.to_string()),
    }
}

/// Why a file cannot be put in another one's place.
fn replace(path: &Path) -> Option<String> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Some("it is a folder".to_owned()),
        _ => within_folder(path),
    }
}

fn within_folder(path: &Path) -> Option<String> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let rights = Access::WRITE_OK | Access::EXEC_OK;
    let error = access(folder, rights).err()?;
    Some(format!("{}: {error}", folder.display()))
}
