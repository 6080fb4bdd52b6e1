//! Files that the proxy writes: none of them may be a file that it reads.

use std::path::Path;

use super::diagnostic::contradiction;
use super::files::NamedFile;
use super::*;

/// A file that the proxy writes.
#[derive(Debug)]
pub struct WrittenFile<'c> {
    pub setting: String,
    pub path: &'c Path,
    pub write: WriteKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    /// Lines are added at the end.
    Append,
    /// Another file takes its place.
    Replace,
    /// Counts: records are added, and now and then another file takes its place.
    Counts,
}

/// The files that the settings name and the proxy writes.
pub fn written_files(config: &Config) -> Vec<WrittenFile<'_>> {
    let control = match &config.server.control {
        Control::At(path) => Some(path),
        _ => None,
    };
    let others = [
        (
            "log.decisions",
            config.log.decisions.as_ref(),
            WriteKind::Append,
        ),
        (
            "server.pid_file",
            config.server.pid_file.as_ref(),
            WriteKind::Replace,
        ),
        ("server.control", control, WriteKind::Replace),
        ("store.file", config.store.file.as_ref(), WriteKind::Counts),
    ];
    let others = others.into_iter().filter_map(|(setting, path, write)| {
        Some(WrittenFile {
            setting: setting.to_owned(),
            path: path?,
            write,
        })
    });
    let named = config.access_logs.iter();
    let named = named.filter_map(|log| of_log(format!("access_log.{}.to", log.name), &log.target));
    let access = of_log("log.access".to_owned(), &config.log.access);
    access.into_iter().chain(named).chain(others).collect()
}

fn of_log(setting: String, target: &LogTarget) -> Option<WrittenFile<'_>> {
    match target {
        LogTarget::File(path) => Some(WrittenFile {
            setting,
            path,
            write: WriteKind::Append,
        }),
        _ => None,
    }
}

/// An error for each file that the proxy would write over. `read` are the files that it reads
/// beside `own`, its configuration.
pub(super) fn check_written(config: &Config, own: &Path, read: &[NamedFile]) -> Vec<Diagnostic> {
    let written = written_files(config);
    let mut found = Vec::new();
    for (place, file) in written.iter().enumerate() {
        let (setting, path) = (&file.setting, file.path.display());
        let is_read = file.path == own || read.iter().any(|one| one.path == file.path);
        // Two logs may add lines to one file.
        let collides = |other: &&WrittenFile<'_>| {
            let both_append = [file.write, other.write] == [WriteKind::Append; 2];
            other.path == file.path && !both_append
        };
        let message = if is_read {
            format!("`{setting}` would write over {path}, which the proxy reads")
        } else if let Some(other) = written[..place].iter().find(collides) {
            let first = &other.setting;
            format!("`{first}` and `{setting}` would write over each other")
        } else {
            continue;
        };
        found.push(contradiction(message).help("name another file"));
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::config::parse;

    #[test]
    fn no_file_is_written_over() {
        let refused = |text: &str| {
            let text = format!("upstream = \"http://127.0.0.1:9\"\n{text}");
            let found = parse("proxy.toml", &text, &|_| None).map(drop);
            found
                .err()
                .map(|found| found.to_string())
                .unwrap_or_default()
        };
        for text in [
            "[server]\npid_file = \"proxy.toml\"\n",
            "[log]\naccess = \"proxy.toml\"\n",
        ] {
            assert!(refused(text).contains("which the proxy reads"), "{text}");
        }
        let twice = "[log]\naccess = \"a\"\n[server]\npid_file = \"a\"\n";
        assert!(refused(twice).contains("`log.access` and `server.pid_file`"));
        let apart = "[log]\naccess = \"a\"\ndecisions = \"b\"\n[server]\npid_file = \"c\"\n";
        assert_eq!(refused(apart), "");
    }
}
