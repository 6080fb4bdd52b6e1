//! Reads the files that are imported, and says why an import fails. The size of a file is bounded.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use crate::patterns;
use crate::route::Regex;

/// Bytes of one file, at most.
const MAX_FILE: u64 = 4 << 20;
/// Files that one pattern finds, at most.
const MAX_MATCHES: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceLine {
    /// The file's name, as the user or an `include` gives it.
    pub file: Rc<str>,
    /// From 1.
    pub line: usize,
}

impl SourceLine {
    pub(super) fn fault(&self, what: &str) -> ImportError {
        ImportError::Syntax(vec![SourceFault {
            place: self.clone(),
            what: what.to_owned(),
        }])
    }
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// The source of a part of the draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourceEntry {
    pub(super) place: SourceLine,
    pub(super) text: String,
}

impl fmt::Display for SourceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text.as_str() {
            "" => write!(f, "{}", self.place),
            text => write!(f, "{}: {text}", self.place),
        }
    }
}

/// A mistake in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFault {
    pub place: SourceLine,
    pub what: String,
}

impl fmt::Display for SourceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// Why there is no result.
#[derive(Debug)]
pub enum ImportError {
    /// A file cannot be read.
    Unreadable(String),
    /// The program that the files are for refuses them.
    Syntax(Vec<SourceFault>),
    /// `tidegate check` refuses the result. This is a bug of the import.
    Refused(String),
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImportError::Unreadable(what) => f.write_str(what),
            ImportError::Syntax(faults) => {
                let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
                f.write_str(&lines.join("\n"))
            }
            ImportError::Refused(why) => write!(
                f,
                "`tidegate check` refuses the result, which is a bug of `tidegate import`; please \
                 report it\n{why}"
            ),
        }
    }
}

impl std::error::Error for ImportError {}

/// Reads a file; `-` is standard input. Bytes that are not UTF-8 are replaced: a comment in an old
/// encoding is no reason to stop.
pub(super) fn read_text(path: &Path) -> Result<String, ImportError> {
    let read = match path == Path::new("-") {
        true => read_bounded(io::stdin().lock()),
        false => File::open(path).and_then(read_bounded),
    };
    match read {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) => Err(ImportError::Unreadable(format!(
            "cannot read `{}`: {error}",
            path.display()
        ))),
    }
}

fn read_bounded(file: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MAX_FILE {
        true => Err(io::Error::other(format!("longer than {MAX_FILE} bytes"))),
        false => Ok(bytes),
    }
}

pub(super) fn is_readable(path: &str) -> bool {
    File::open(path).is_ok_and(|file| file.metadata().is_ok_and(|meta| meta.is_file()))
}

/// Returns the files of an `include` in order: `conf.d/*.conf`. A name without `*`, `?` and `[` is
/// returned even if there is no such file.
pub(super) fn find_included(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    let whole = folder.join(pattern);
    let mut found = vec![PathBuf::new()];
    for part in whole.components() {
        let text = part.as_os_str().to_string_lossy().into_owned();
        found = match is_pattern(&part) {
            false => found.iter().map(|path| path.join(&text)).collect(),
            true => found
                .iter()
                .flat_map(|path| find_in_folder(path, &text))
                .collect(),
        };
        found.truncate(MAX_MATCHES);
    }
    found
}

fn is_pattern(part: &Component<'_>) -> bool {
    let text = part.as_os_str().to_string_lossy();
    matches!(part, Component::Normal(_)) && text.contains(['*', '?', '['])
}

/// Whether the folder in front of an `include`'s first pattern cannot be read here. Then the
/// files that the pattern finds where nginx runs are unknown.
pub(super) fn lacks_folder(folder: &Path, pattern: &str) -> bool {
    let whole = folder.join(pattern);
    let before = whole.components().take_while(|part| !is_pattern(part));
    let before: PathBuf = before.collect();
    match before.as_os_str().is_empty() {
        true => false,
        false => fs::read_dir(before).is_err(),
    }
}

/// Returns the files of a folder whose names fit a shell pattern, in order.
pub(super) fn find_in_folder(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    let folder = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let Some(regex) = glob_regex(pattern) else {
        return Vec::new();
    };
    let hidden = |name: &String| name.starts_with('.') && !pattern.starts_with('.');
    let matches = |name: &String| !hidden(name) && regex.is_in(name.as_bytes());
    let mut names: Vec<String> = names.filter(matches).collect();
    names.sort();
    names.into_iter().map(|name| folder.join(name)).collect()
}

/// Returns a shell pattern as an expression; `None` if it matches nothing.
fn glob_regex(pattern: &str) -> Option<Regex> {
    let mut regex = "(?s)^".to_owned();
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '*' => regex.push_str(".*"),
            '?' => regex.push('.'),
            '[' => {
                let end = rest.char_indices().skip(1).find(|(_, c)| *c == ']')?.0;
                let (negated, set) = match rest[..end].strip_prefix(['!', '^']) {
                    Some(set) => ("^", set),
                    None => ("", &rest[..end]),
                };
                regex.push_str(&format!("[{negated}"));
                for c in set.chars() {
                    regex.extend("\\[]^&~".contains(c).then_some('\\'));
                    regex.push(c);
                }
                regex.push(']');
                rest = &rest[end + 1..];
            }
            c => regex.push_str(&patterns::escape_regex(c.encode_utf8(&mut [0; 4]))),
        }
    }
    regex.push('$');
    Regex::parse(&regex).ok()
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
            let found = glob_regex(pattern).is_some_and(|regex| regex.is_in(name.as_bytes()));
            assert_eq!(found, expected, "{pattern} {name}");
        }
        let many = "*a".repeat(200);
        assert!(!glob_regex(&many).unwrap().is_in("a".repeat(150).as_bytes()));
    }

    #[test]
    fn an_include_finds_its_files_in_order() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.conf", "a.conf", ".hidden.conf", "c.txt"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let found = find_included(folder.path(), "*.conf");
        let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(names, ["a.conf", "b.conf"]);
        assert_eq!(find_included(folder.path(), "none.conf").len(), 1);
        assert!(find_included(folder.path(), "nowhere/*.conf").is_empty());
        assert!(lacks_folder(folder.path(), "nowhere/*.conf"));
        assert!(!lacks_folder(folder.path(), "*.none"));
    }
}
