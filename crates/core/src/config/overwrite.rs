//! Files that the proxy writes: none of them may be a file that it reads.

use std::path::Path;

use super::diagnostic::contradiction;
use super::files::NamedFile;
use super::*;

struct WrittenFile<'c> {
    setting: String,
    path: &'c Path,
    /// Its content is replaced, so no other setting may name the file.
    is_replaced: bool,
}

/// An error for each file that the proxy would write over. `read` are the files that it reads
/// beside `own`, its configuration.
pub(super) fn check_written(config: &Config, own: &Path, read: &[NamedFile]) -> Vec<Diagnostic> {
    let written = written_files(config);
    let mut found = Vec::new();
    for (place, file) in written.iter().enumerate() {
        let (setting, path) = (&file.setting, file.path.display());
        let is_read = file.path == own || read.iter().any(|one| one.path == file.path);
        let shares = |other: &&WrittenFile<'_>| {
            other.path == file.path && (other.is_replaced || file.is_replaced)
        };
        let message = if is_read {
            format!("`{setting}` would write over {path}, which the proxy reads")
        } else if let Some(other) = written[..place].iter().find(shares) {
            format!(
                "`{}` and `{setting}` would write over each other",
                other.setting
            )
        } else {
            continue;
        };
        found.push(contradiction(message).help("name another file"));
    }
    found
}

fn written_files(config: &Config) -> Vec<WrittenFile<'_>> {
    let written = |setting: &str, path, is_replaced| WrittenFile {
        setting: setting.to_owned(),
        path,
        is_replaced,
    };
    let mut files = Vec::new();
    if let LogTarget::File(path) = &config.log.access {
        files.push(written("log.access", path, false));
    }
    for log in &config.access_logs {
        if let LogTarget::File(path) = &log.target {
            files.push(written(&format!("access_log.{}.to", log.name), path, false));
        }
    }
    let others = [
        ("log.decisions", &config.log.decisions, false),
        ("server.pid_file", &config.server.pid_file, true),
        ("store.file", &config.store.file, true),
    ];
    for (setting, path, is_replaced) in others {
        files.extend(
            path.as_deref()
                .map(|path| written(setting, path, is_replaced)),
        );
    }
    files
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
