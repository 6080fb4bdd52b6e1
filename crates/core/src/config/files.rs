//! Reads the files that settings name: secrets, certificates, lists.

use std::fmt;
use std::path::{Path, PathBuf};

use rustls::sign::CertifiedKey;

use super::diagnostic::{Code, Diagnostic, TextSpan};
use super::pem::{self, IdentityFiles, PemFile};
use super::reader::Located;
use super::section::Section;

/// Bytes of a secret's file, at most.
const MAX_SECRET: usize = 64 << 10;
/// Bytes of a file of certificates, at most: a system's bundle has a few hundred KiB.
const MAX_PEM: usize = 4 << 20;
/// Bytes of a file that lists things, at most.
const MAX_LIST: usize = 128 << 20;

/// The text of a configuration, and the files that the text names.
///
/// A reload compares it to report changes in the file's own words. The watcher takes the paths from
/// it. It has only digests of other files: they hold secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SourceFiles {
    /// The file as it was read; empty if there was no file.
    pub text: String,
    /// Every other file, in the order of reading.
    pub files: Vec<NamedFile>,
}

impl fmt::Debug for SourceFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URLs in it may hold passwords.
        f.debug_struct("SourceFiles").finish_non_exhaustive()
    }
}

/// A file that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// Its path in the configuration.
    pub path: PathBuf,
    /// The digest of its content; `None` if it could not be read.
    pub digest: Option<[u8; 32]>,
}

impl NamedFile {
    /// A file with this content, if it could be read.
    pub(super) fn new(path: &Path, content: Option<&[u8]>) -> NamedFile {
        NamedFile {
            path: path.to_owned(),
            digest: content.map(|bytes| *blake3::hash(bytes).as_bytes()),
        }
    }
}

/// A certificate with its key, read and checked.
pub(super) struct CheckedIdentity {
    pub(super) files: IdentityFiles,
    pub(super) certified: CertifiedKey,
    pub(super) cert_span: TextSpan,
}

impl Section<'_> {
    /// A secret: the value of `key`, or the file that `file_key` names without its last newline.
    pub(super) fn secret(
        &mut self,
        key: Option<&'static str>,
        file_key: &'static str,
    ) -> Option<Located<Vec<u8>>> {
        let given = key.and_then(|key| self.text(key));
        let given = given.map(|text| text.map(String::into_bytes));
        let Some(path) = self.text(file_key) else {
            return given;
        };
        if let (Some(key), Some(given)) = (key, &given) {
            let message = format!("`{}` has both `{key}` and `{file_key}`", self.name());
            Diagnostic::new(Code::Contradiction, message)
                .at(&path.span, "")
                .at(&given.span, "")
                .help("keep the file: it leaves the secret out of this one")
                .report_to(self.reader);
        }
        self.content(file_key, &path, MAX_SECRET)
    }

    /// A secret in a file, of at least this many bytes: a shorter one can be guessed.
    pub(super) fn long_secret(
        &mut self,
        file_key: &'static str,
        at_least: usize,
        what: &str,
    ) -> Option<Located<Vec<u8>>> {
        let secret = self.secret(None, file_key)?;
        if secret.value.len() < at_least {
            let why = format!(
                "shorter than {at_least} bytes: such a {what} can be guessed; \
                 make one: `head -c 32 /dev/urandom | base64 > FILE`"
            );
            self.unusable_file(file_key, &secret.span, &why);
        }
        Some(secret)
    }

    /// Certificates or a key, in the file that `key` names.
    pub(super) fn pem_file(&mut self, key: &'static str) -> Option<Located<PemFile>> {
        let path = self.text(key)?;
        let content = self.content(key, &path, MAX_PEM)?.value;
        Some(path.map(|path| PemFile {
            path: self.path(path),
            content,
        }))
    }

    /// The certificates of authorities, in the file that `key` names.
    pub(super) fn authorities(&mut self, key: &'static str) -> Option<Located<PemFile>> {
        let file = self.pem_file(key)?;
        match pem::authorities(&file.value.content) {
            Ok(_) => Some(file),
            Err(why) => {
                self.unusable_file(key, &file.span, why);
                None
            }
        }
    }

    /// The certificate and the key in the files that `cert` and `key` name. A lacking one is
    /// reported if both are required or the other is given. The examples are for `cert` and for
    /// `key`.
    pub(super) fn identity(
        &mut self,
        both_required: bool,
        [cert_example, key_example]: [&str; 2],
    ) -> Option<CheckedIdentity> {
        let cert = self.pem_file("cert");
        let key = self.pem_file("key");
        if both_required || key.is_some() {
            self.require("cert", cert_example);
        }
        if both_required || cert.is_some() {
            self.require("key", key_example);
        }
        let (cert, key) = cert.zip(key)?;
        match pem::identity(&cert.value.content, &key.value.content) {
            Ok(certified) => Some(CheckedIdentity {
                certified,
                cert_span: cert.span,
                files: IdentityFiles {
                    cert: cert.value,
                    key: key.value,
                },
            }),
            Err((part, why)) => {
                let file = if part == "cert" { &cert } else { &key };
                self.unusable_file(part, &file.span, why);
                None
            }
        }
    }

    /// A file without its last newline. An empty file is reported.
    fn content(
        &self,
        key: &str,
        path: &Located<String>,
        max_bytes: usize,
    ) -> Option<Located<Vec<u8>>> {
        let bytes = self.bounded_file(&path.value, max_bytes).and_then(|bytes| {
            let bytes = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
            let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
            match bytes.is_empty() {
                true => Err("empty".to_owned()),
                false => Ok(bytes.to_vec()),
            }
        });
        let bytes = self.usable(key, path, bytes)?;
        Some(Located::new(bytes, &path.span))
    }

    /// The content of a file. Reports why it cannot be used.
    fn usable<T>(
        &self,
        key: &str,
        path: &Located<String>,
        content: Result<T, String>,
    ) -> Option<T> {
        let report = |why: &String| {
            let is_relative = Path::new(&path.value).is_relative();
            let help = match why.starts_with("No such file") && is_relative {
                true => "; paths are relative to the folder of the file that names them",
                false => "",
            };
            self.unusable_file(key, &path.span, &format!("{why}{help}"));
        };
        content.inspect_err(report).ok()
    }

    /// Reports a file that cannot be used. The part of the reason after a `;` becomes the help.
    pub(super) fn unusable_file(&self, key: &str, span: &TextSpan, why: &str) {
        let message = format!("the file of `{}` cannot be used", self.full_key(key));
        Diagnostic::new(Code::SecretFile, message)
            .at_error(span, &why)
            .report_to(self.reader);
    }

    /// Reports a line that cannot be used. The line may hold a secret: only its number is shown.
    pub(super) fn unusable_line(&self, key: &str, path: &TextSpan, line: usize, why: &str) {
        self.unusable_file(key, path, &format!("line {line}: {why}"));
    }

    /// Resolves a path of the file.
    pub(super) fn path(&self, written: impl AsRef<Path>) -> PathBuf {
        self.reader.surroundings.path(written)
    }

    /// The path that `key` sets.
    pub(super) fn path_of(&mut self, key: &'static str) -> Option<PathBuf> {
        self.text(key).map(|path| self.path(path.value))
    }

    fn bounded_file(&self, path: &str, max_bytes: usize) -> Result<Vec<u8>, String> {
        // One byte more than allowed, so that a longer file is noticed.
        let bytes = (self.reader.surroundings.read)(&self.path(path), max_bytes as u64 + 1)
            .map_err(|error| error.to_string())?;
        match bytes.len() > max_bytes {
            true => Err(format!("longer than {max_bytes} bytes")),
            false => Ok(bytes),
        }
    }

    /// The text of a file that lists things, one on a line.
    pub(super) fn list_file(&self, key: &str, path: &Located<String>) -> Option<String> {
        let text = self
            .bounded_file(&path.value, MAX_LIST)
            .and_then(|bytes| String::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned()));
        self.usable(key, path, text)
    }
}

/// The lines of a list with their numbers, without empty lines and comments (`#`).
pub(super) fn list_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().map(str::trim);
    let numbered = lines.enumerate().map(|(index, line)| (index + 1, line));
    numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}
