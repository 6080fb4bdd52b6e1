//! Errors about a setting that was right to read, and that this machine cannot carry out: an
//! address in use, a folder that does not exist.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::Path;

use toml::de::DeTable;

use super::diagnostic::TextSpan;
use super::{Listen, SourceFiles};

/// Ports below this one need a privilege.
const FIRST_FREE_PORT: u16 = 1024;

#[derive(Debug)]
pub struct SettingError {
    /// Its full key: `log.access`.
    setting: &'static str,
    reason: String,
    /// What to do, as a sentence; may be empty.
    help: String,
}

impl SettingError {
    pub fn address(setting: &'static str, wanted: &Listen, error: &io::Error) -> io::Error {
        let text = SettingError {
            setting,
            reason: format!("cannot listen on {wanted}: {error}"),
            help: address_help(wanted, error.kind()),
        };
        io::Error::new(error.kind(), text)
    }

    /// `act` is a verb: `open`, `write`.
    pub fn file(setting: &'static str, act: &str, path: &Path, error: &io::Error) -> io::Error {
        let text = SettingError {
            setting,
            reason: format!("cannot {act} {}: {error}", path.display()),
            help: file_help(path, error.kind()),
        };
        io::Error::new(error.kind(), text)
    }

    /// Adds where the setting is, if the error is about one: `log.access (proxy.toml:7)`.
    pub fn locate(error: io::Error, file: Option<&Path>, sources: &SourceFiles) -> io::Error {
        let about = error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<SettingError>());
        let (Some(SettingError { setting, .. }), Some(file)) = (about, file) else {
            return error;
        };
        let rest = error.to_string();
        let rest = rest.strip_prefix(setting).unwrap_or_default();
        let text = format!("{}{rest}", place_of(setting, file, sources));
        io::Error::new(error.kind(), text)
    }
}

/// A setting and its line: `log.access (proxy.toml:7)`.
pub fn place_of(setting: &str, file: &Path, sources: &SourceFiles) -> String {
    let span = span_of(setting, sources);
    let before = span.and_then(|span| sources.text.get(..span.start));
    let line = before.map(|before| before.matches('\n').count() + 1);
    let line = line.map_or(String::new(), |line| format!(":{line}"));
    format!("{setting} ({}{line})", file.display())
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.reason)?;
        match self.help.as_str() {
            "" => Ok(()),
            help => write!(f, ". {help}"),
        }
    }
}

impl std::error::Error for SettingError {}

fn address_help(wanted: &Listen, kind: ErrorKind) -> String {
    match (wanted, kind) {
        (_, ErrorKind::AddrInUse) => "End the other process, or name another address".to_owned(),
        (Listen::Tcp(address), ErrorKind::PermissionDenied) if address.port() < FIRST_FREE_PORT => {
            format!(
                "A port below {FIRST_FREE_PORT} needs CAP_NET_BIND_SERVICE \
                 (`AmbientCapabilities=CAP_NET_BIND_SERVICE` in a unit); or name a higher port"
            )
        }
        (Listen::Tcp(_), ErrorKind::AddrNotAvailable) => {
            "`ip address` lists the addresses of this machine; `:PORT` means all of them".to_owned()
        }
        (Listen::Unix(path), kind) => file_help(path, kind),
        _ => String::new(),
    }
}

fn file_help(path: &Path, kind: ErrorKind) -> String {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    match kind {
        ErrorKind::NotFound => format!("Create the folder {}", folder.display()),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => format!(
            "Let the user of the proxy write in {}, or name another path",
            folder.display()
        ),
        ErrorKind::AlreadyExists => "Remove it, or name another path".to_owned(),
        ErrorKind::IsADirectory => "It is a folder: name a file".to_owned(),
        _ => String::new(),
    }
}

/// The value of a setting in the file. Mistakes elsewhere in the file do not matter.
pub fn span_of(setting: &str, sources: &SourceFiles) -> Option<TextSpan> {
    let (document, _) = DeTable::parse_recoverable(&sources.text);
    let mut table = document.get_ref();
    let (tables, key) = setting.rsplit_once('.').unwrap_or(("", setting));
    for name in tables.split('.').filter(|name| !name.is_empty()) {
        table = table.get(name)?.get_ref().as_table()?;
    }
    Some(table.get(key)?.span())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn located(error: io::Error) -> String {
        let sources = SourceFiles {
            text: "listen = \":80\"\n\n[log]\nformat = \"json\"\naccess = \"logs/a\"\n".to_owned(),
            ..SourceFiles::default()
        };
        SettingError::locate(error, Some(Path::new("p.toml")), &sources).to_string()
    }

    #[test]
    fn an_error_names_setting_line_reason_and_remedy() {
        let missing = io::Error::from(ErrorKind::NotFound);
        let error = SettingError::file("log.access", "open", Path::new("logs/a"), &missing);
        assert_eq!(
            located(error),
            "log.access (p.toml:5): cannot open logs/a: entity not found. Create the folder logs"
        );
        let denied = io::Error::from(ErrorKind::PermissionDenied);
        let listen = Listen::Tcp("0.0.0.0:80".parse().unwrap());
        let text = located(SettingError::address("listen", &listen, &denied));
        let begin = "listen (p.toml:1): cannot listen on 0.0.0.0:80: permission denied. A port";
        assert!(text.starts_with(begin), "{text}");
        // A default has no line.
        let error = SettingError::file("server.control", "open", Path::new("/x"), &missing);
        assert!(located(error).starts_with("server.control (p.toml): "));
        assert_eq!(located(io::Error::other("else")), "else");
    }
}
