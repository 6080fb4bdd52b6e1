//! Reading the files that settings name: secrets, certificates, lists.

use std::path::{Path, PathBuf};

use super::diagnostic::{Code, Diagnostic, Span};
use super::reader::At;
use super::section::Section;

/// Bytes of a secret's file, at most.
const MAX_SECRET: usize = 64 << 10;
/// Bytes of a file of certificates, at most: a system's bundle has a few hundred KiB.
const MAX_PEM: usize = 4 << 20;
/// Bytes of a file that lists things, at most.
const MAX_LIST: usize = 128 << 20;

impl Section<'_> {
    /// A secret: given by `key`, or in the file that `file_key` names, without its last newline.
    pub(super) fn secret(
        &mut self,
        key: Option<&'static str>,
        file_key: &'static str,
    ) -> Option<At<Vec<u8>>> {
        let given = key
            .and_then(|key| self.text(key))
            .map(|text| text.map(String::into_bytes));
        let Some(path) = self.text(file_key) else {
            return given;
        };
        if let (Some(key), Some(given)) = (key, &given) {
            let message = format!("`{}` has both `{key}` and `{file_key}`", self.name());
            let diagnostic = Diagnostic::new(Code::Contradiction, message)
                .at(&path.span, "")
                .at(&given.span, "")
                .help("keep the file: it leaves the secret out of this one");
            self.reader.report(diagnostic);
        }
        self.content(file_key, &path, MAX_SECRET)
    }

    /// What the file holds that `key` names: certificates or their keys.
    pub(super) fn file(&mut self, key: &'static str) -> Option<At<Vec<u8>>> {
        let path = self.text(key)?;
        self.content(key, &path, MAX_PEM)
    }

    /// The same of a path already at hand.
    pub(super) fn pem_of(&self, key: &str, path: &At<String>) -> Option<Vec<u8>> {
        self.content(key, path, MAX_PEM).map(|found| found.value)
    }

    /// Without its last newline.
    fn content(&self, key: &str, path: &At<String>, most: usize) -> Option<At<Vec<u8>>> {
        let bytes = self.bounded_file(&path.value, most).and_then(|mut bytes| {
            if bytes.ends_with(b"\n") {
                bytes.pop();
            }
            if bytes.ends_with(b"\r") {
                bytes.pop();
            }
            match bytes.is_empty() {
                true => Err("empty".to_owned()),
                false => Ok(bytes),
            }
        });
        let value = self.used_file(key, path, bytes)?;
        Some(At {
            value,
            span: path.span.clone(),
        })
    }

    /// The content of a file, unless it cannot be used.
    fn used_file<T>(&self, key: &str, path: &At<String>, content: Result<T, String>) -> Option<T> {
        content
            .inspect_err(|why| {
                let message = format!("the file of `{}` cannot be used", self.full(key));
                let diagnostic = Diagnostic::new(Code::SecretFile, message).at(&path.span, why);
                let astray =
                    why.starts_with("No such file") && Path::new(&path.value).is_relative();
                let help = "paths are relative to the folder of the file that names them";
                self.reader
                    .report(diagnostic.maybe_help(astray.then(|| help.to_owned())));
            })
            .ok()
    }

    /// Where a path of the file leads.
    pub(super) fn path(&self, written: impl AsRef<Path>) -> PathBuf {
        self.reader.surroundings.path(written)
    }

    /// A file's bytes, if it has no more than `most`.
    fn bounded_file(&self, path: &str, most: usize) -> Result<Vec<u8>, String> {
        // One more than it may have, so that the excess is noticed.
        let bytes = (self.reader.surroundings.read)(&self.path(path), most as u64 + 1)
            .map_err(|error| error.to_string())?;
        if bytes.len() > most {
            return Err(format!("longer than {most} bytes"));
        }
        Ok(bytes)
    }

    /// The text of a file that lists things, one on a line.
    pub(super) fn list_file(&self, key: &str, path: &At<String>) -> Option<String> {
        let text = self
            .bounded_file(&path.value, MAX_LIST)
            .and_then(|bytes| String::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned()));
        self.used_file(key, path, text)
    }

    /// A line of such a file that cannot be used. It may hold a secret: only its number is shown.
    pub(super) fn bad_line(&self, key: &str, path: &Span, line: usize, why: &str) {
        let message = format!("the file of `{}` cannot be used", self.full(key));
        let diagnostic = Diagnostic::new(Code::SecretFile, message);
        self.reader
            .report(diagnostic.because(path, &format!("line {line}: {why}")));
    }
}

/// The lines of a list that say something, with their numbers: `#` begins a comment.
pub(super) fn list_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().map(str::trim);
    let numbered = lines.enumerate().map(|(index, line)| (index + 1, line));
    numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}
