//! Detects changes of files: it compares metadata at each check, and content after a change.
//!
//! Paths are followed anew each time. So it notices a rename over the file, a symbolic link that is
//! swapped (as Kubernetes does), and a file on a network. A file that was just written is checked
//! once more before it is read, because it may still grow.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::config::NamedFile;

/// Checks after which a file is read although it still changes.
const MAX_WAITS: u32 = 10;

#[derive(Debug, Default)]
pub(super) struct Watcher {
    files: Vec<WatchedFile>,
    /// Checks since a change began; 0 without a change.
    waits: u32,
}

#[derive(Debug)]
struct WatchedFile {
    path: PathBuf,
    stamp: Option<FileStamp>,
    /// The digest of the content that was read; `None` if it could not be read, or is unknown.
    digest: Option<[u8; 32]>,
}

/// Metadata that changes with each change of a file: its identity, size, and times in seconds and
/// nanoseconds. All are 0 for a file that does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FileStamp {
    file: (u64, u64),
    size: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    fn of_path(path: &Path) -> FileStamp {
        let Ok(found) = fs::metadata(path) else {
            return FileStamp::default();
        };
        FileStamp {
            file: (found.dev(), found.ino()),
            size: found.len(),
            written: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }
}

impl Watcher {
    /// Watches files with unknown content. They count as changed after their first checks.
    pub(super) fn new(paths: &[PathBuf]) -> Watcher {
        let watched = |path: &PathBuf| WatchedFile {
            path: path.clone(),
            stamp: None,
            digest: None,
        };
        Watcher {
            files: paths.iter().map(watched).collect(),
            waits: 0,
        }
    }

    pub(super) fn has_paths(&self, paths: &[PathBuf]) -> bool {
        self.files.iter().map(|file| &file.path).eq(paths)
    }

    /// Watches the files of a configuration that was read: its `text`, if it could be read, and the
    /// files that it names.
    pub(super) fn watch(&mut self, path: &Path, text: Option<&str>, named: &[NamedFile]) {
        let text = text.map(|text| *blake3::hash(text.as_bytes()).as_bytes());
        let named = named.iter().map(|file| (&*file.path, file.digest));
        let watched = |(path, digest): (&Path, Option<[u8; 32]>)| WatchedFile {
            path: path.to_owned(),
            stamp: None,
            digest,
        };
        let all = std::iter::once((path, text)).chain(named);
        self.files = all.map(watched).collect();
        self.waits = 0;
    }

    /// Checks all files. Returns true once for each change, when the change has settled.
    pub(super) fn has_changed(&mut self) -> bool {
        let mut is_changing = false;
        for file in &mut self.files {
            let stamp = FileStamp::of_path(&file.path);
            is_changing |= file.stamp != Some(stamp);
            file.stamp = Some(stamp);
        }
        if is_changing && self.waits < MAX_WAITS {
            self.waits += 1;
            return false;
        }
        if std::mem::take(&mut self.waits) == 0 {
            return false;
        }
        let mut has_changed = false;
        for file in &mut self.files {
            let digest = digest(&file.path);
            has_changed |= file.digest != digest;
            file.digest = digest;
        }
        has_changed
    }
}

/// The digest of a file's content; `None` if it is no file or cannot be read.
fn digest(path: &Path) -> Option<[u8; 32]> {
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut File::open(path).ok()?, &mut hasher).ok()?;
    Some(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    fn looks(watcher: &mut Watcher, times: usize) -> Vec<bool> {
        (0..times).map(|_| watcher.has_changed()).collect()
    }
    #[test]
    fn a_change_is_seen_once_it_has_settled_and_only_once() {
        let directory = tempfile::tempdir().unwrap();

        let path = directory.path().join("proxy.toml");
        fs::write(&path, "one").unwrap();
        let mut watcher = Watcher::default();
        watcher.watch(&path, Some("one"), &[]);
        assert_eq!(looks(&mut watcher, 4), [false; 4]);
        fs::write(&path, "on").unwrap();
        assert!(!watcher.has_changed(), "it may still be written");
        fs::write(&path, "two").unwrap();
        assert!(!watcher.has_changed());
        assert!(watcher.has_changed());
        watcher.watch(&path, Some("two"), &[]);
        assert_eq!(looks(&mut watcher, 4), [false; 4]);
        // Written again with the same content.
        fs::write(&path, "two").unwrap();
        assert_eq!(looks(&mut watcher, 4), [false; 4]);
    }

    #[test]
    fn a_file_that_never_settles_is_read_at_last() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("proxy.toml");
        let mut watcher = Watcher::default();
        watcher.watch(&path, Some("one"), &[]);
        let mut looked = 0;
        loop {
            fs::write(&path, format!("text {looked}")).unwrap();
            looked += 1;
            if watcher.has_changed() {
                break;
            }
            assert!(looked < 100);
        }
        assert_eq!(looked, 11);
    }

    #[test]
    fn renames_links_and_named_files_are_seen() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("a"), "one").unwrap();
        fs::write(at("b"), "two").unwrap();
        std::os::unix::fs::symlink("a", at("link")).unwrap();
        let mut watcher = Watcher::default();
        watcher.watch(
            &at("link"),
            Some("one"),
            &[NamedFile {
                path: at("keys"),
                digest: None,
            }],
        );
        assert_eq!(looks(&mut watcher, 3), [false; 3]);
        std::os::unix::fs::symlink("b", at("new")).unwrap();
        fs::rename(at("new"), at("link")).unwrap();
        assert_eq!(looks(&mut watcher, 2), [false, true]);
        watcher.watch(
            &at("link"),
            Some("two"),
            &[NamedFile {
                path: at("keys"),
                digest: None,
            }],
        );
        assert_eq!(looks(&mut watcher, 3), [false; 3]);
        fs::write(at("keys"), "a key").unwrap();
        assert_eq!(looks(&mut watcher, 2), [false, true]);
    }
}
