//! Reading what is imported: files of bounded size, standard input, and the `include`s of nginx.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use super::ImportError;

/// Bytes of one file, at most.
const MAX_FILE: u64 = 4 << 20;
/// Files that a pattern may stand for, at most.
const MAX_MATCHES: usize = 1000;

/// The text at `path`, `-` for standard input.
pub(super) fn text(path: &Path) -> Result<String, ImportError> {
    let read = match path == Path::new("-") {
        true => bounded(io::stdin().lock()),
        false => File::open(path).and_then(bounded),
    };
    let unreadable =
        |why: String| ImportError::Unreadable(format!("cannot read `{}`: {why}", path.display()));
    let bytes = read.map_err(|error| unreadable(error.to_string()))?;
    // A comment in an old encoding is no reason to stop.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn bounded(file: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MAX_FILE {
        true => Err(io::Error::other(format!("longer than {MAX_FILE} bytes"))),
        false => Ok(bytes),
    }
}

/// Whether there is such a file here.
pub(super) fn is_there(path: &str) -> bool {
    File::open(path).is_ok_and(|file| file.metadata().is_ok_and(|meta| meta.is_file()))
}

/// The files that an `include` names, in order: `conf.d/*.conf`. A name without `*`, `?` and `[` is
/// returned whether it is there or not.
pub(super) fn matching(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    let whole = folder.join(pattern);
    let mut found = vec![PathBuf::new()];
    for part in whole.components() {
        let text = part.as_os_str().to_string_lossy().into_owned();
        let is_pattern = matches!(part, Component::Normal(_)) && text.contains(['*', '?', '[']);
        found = match is_pattern {
            false => found.iter().map(|path| path.join(&text)).collect(),
            true => found.iter().flat_map(|path| within(path, &text)).collect(),
        };
        found.truncate(MAX_MATCHES);
    }
    found
}

fn within(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    let folder = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let hidden = |name: &String| name.starts_with('.') && !pattern.starts_with('.');
    let fits = |name: &String| !hidden(name) && fits(pattern.as_bytes(), name.as_bytes());
    let mut names: Vec<String> = names.filter(fits).collect();
    names.sort();
    names.into_iter().map(|name| folder.join(name)).collect()
}

/// Whether a name is one that a shell's pattern stands for. Takes time by the product of both
/// lengths at most: of several `*` only the last one is tried again.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        let step = one(&pattern[p..], name[n]);
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, n));
            p += 1;
        } else if let Some(length) = step {
            p += length;
            n += 1;
        } else if let Some((at, from)) = star {
            p = at + 1;
            n = from + 1;
            star = Some((at, n));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// How much of the pattern stands for this byte: `?`, `[a-z]`, `[!a]` or the byte itself.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern.first()? {
        b'?' => Some(1),
        b'[' => {
            let end = pattern.iter().skip(2).position(|one| *one == b']')? + 2;
            let set = &pattern[1..end];
            let (not, set) = match set.first() {
                Some(b'!' | b'^') => (true, &set[1..]),
                _ => (false, set),
            };
            let mut is_in = false;
            let mut at = 0;
            while at < set.len() {
                let ranged = set.get(at + 1) == Some(&b'-') && at + 2 < set.len();
                let last = if ranged { set[at + 2] } else { set[at] };
                is_in |= (set[at]..=last).contains(&byte);
                at += if ranged { 3 } else { 1 };
            }
            (is_in != not).then_some(end + 1)
        }
        b'*' => None,
        literal => (*literal == byte).then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_a_shell() {
        for (pattern, name, expected) in [
            ("*.conf", "a.conf", true),
            ("*.conf", "a.conf.bak", false),
            ("*", "anything", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b", false),
            ("site-?.conf", "site-1.conf", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]x]", "x", true),
            ("[a", "a", false),
            ("", "", true),
        ] {
            let found = fits(pattern.as_bytes(), name.as_bytes());
            assert_eq!(found, expected, "{pattern} {name}");
        }
        let many = "*a".repeat(200);
        assert!(!fits(many.as_bytes(), "a".repeat(150).as_bytes()));
    }

    #[test]
    fn an_include_finds_its_files_in_order() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.conf", "a.conf", ".hidden.conf", "c.txt"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let found = matching(folder.path(), "*.conf");
        let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(names, ["a.conf", "b.conf"]);
        assert_eq!(matching(folder.path(), "none.conf").len(), 1);
        assert!(matching(folder.path(), "nowhere/*.conf").is_empty());
    }
}
