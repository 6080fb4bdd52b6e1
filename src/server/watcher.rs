//! Whether the configuration's files have changed: looked at by their paths a few times a second,
//! and compared by content.
//!
//! Paths are followed anew each time, so that a rename over the file, a symlink that is swapped
//! (as Kubernetes does) and a file on a network are all seen. What was just written is looked at
//! again before it is believed: a file that still grows is not read.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::NamedFile;

/// How often it is looked.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(400);
/// Looks after which a file is read although it still changes.
const MOST_WAITS: u32 = 10;

/// The files of one configuration as they were read.
#[derive(Debug, Default)]
pub(super) struct Watcher {
    files: Vec<Watched>,
    /// Looks since something began to change; 0 while nothing does.
    waits: u32,
}

#[derive(Debug)]
struct Watched {
    path: PathBuf,
    /// At the last look; `None` before the first.
    print: Option<Print>,
    /// Of what was read.
    digest: Option<[u8; 32]>,
}

/// What changes when a file does: which one it is, its size and its times, nanoseconds. All 0 for
/// one that is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Print {
    file: (u64, u64),
    size: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl Print {
    fn of(path: &Path) -> Print {
        let Ok(found) = fs::metadata(path) else {
            return Print::default();
        };
        Print {
            file: (found.dev(), found.ino()),
            size: found.len(),
            written: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }
}

impl Watcher {
    /// Knows what has been read: the configuration's text, if there was one, and other files.
    pub(super) fn read(&mut self, path: &Path, text: Option<&str>, files: &[NamedFile]) {
        let whole = Watched {
            path: path.to_owned(),
            print: None,
            digest: text.map(|text| *blake3::hash(text.as_bytes()).as_bytes()),
        };
        let others = files.iter().map(|file| Watched {
            path: file.path.clone(),
            print: None,
            digest: file.digest,
        });
        self.files = std::iter::once(whole).chain(others).collect();
        self.waits = 0;
    }

    /// Looks; whether there is something else to read by now.
    pub(super) fn look(&mut self) -> bool {
        let mut moves = false;
        for file in &mut self.files {
            let print = Print::of(&file.path);
            moves |= file.print != Some(print);
            file.print = Some(print);
        }
        if moves && self.waits < MOST_WAITS {
            self.waits += 1;
            return false;
        }
        if self.waits == 0 {
            return false;
        }
        self.waits = 0;
        self.files
            .iter()
            .any(|file| digest(&file.path) != file.digest)
    }
}

/// Over a file's content; `None` for what cannot be read, or is no file.
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
        (0..times).map(|_| watcher.look()).collect()
    }

    #[test]
    fn a_change_is_seen_once_it_has_settled_and_only_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("proxy.toml");
        fs::write(&path, "one").unwrap();
        let mut watcher = Watcher::default();
        watcher.read(&path, Some("one"), &[]);
        assert_eq!(looks(&mut watcher, 4), [false; 4]);
        fs::write(&path, "on").unwrap();
        assert!(!watcher.look(), "it may still be written");
        fs::write(&path, "two").unwrap();
        assert!(!watcher.look());
        assert!(watcher.look());
        watcher.read(&path, Some("two"), &[]);
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
        watcher.read(&path, Some("one"), &[]);
        let mut looked = 0;
        loop {
            fs::write(&path, format!("text {looked}")).unwrap();
            looked += 1;
            if watcher.look() {
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
        watcher.read(
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
        watcher.read(
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
