//! Reads the files that settings name: secrets, certificates, lists.

use std::fmt;
use std::path::{Path, PathBuf};

use rustls::sign::CertifiedKey;

use super::pem::{self, IdentityFiles, PemFile};
use super::*;
use crate::limit::Rule;

/// Bytes of a secret's file, at most.
const MAX_SECRET: usize = 64 << 10;
/// Bytes of a file of certificates, at most: a system's bundle has a few hundred KiB.
const MAX_PEM: usize = 4 << 20;
/// Bytes of a file that lists things, at most.
const MAX_LIST: usize = 128 << 20;
/// Wrong lines of one list that are reported, at most.
const MAX_REPORTED: usize = 5;

/// The text of a configuration, and the files that the text names.
///
/// A reload compares it to report changes in the file's own words. The watcher takes the paths from
/// it. It has only digests of other files: they hold secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SourceFiles {
    /// The file as it was read; empty if there was no file.
    pub text: String,
    /// The file as the process read it at its start, if it has read another one since.
    pub start: Option<Arc<str>>,
    /// Every other file, in the order of reading.
    pub files: Vec<NamedFile>,
    pub rates: Vec<RatePlace>,
}

/// The place of a rate, or of `concurrent`, in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RatePlace {
    pub limit: Arc<str>,
    pub tier: Option<Arc<str>>,
    pub is_candidate: bool,
    pub rule: Rule,
    pub span: TextSpan,
}

impl fmt::Debug for SourceFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URLs in it may hold passwords.
        f.debug_struct("SourceFiles").finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
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
    ) -> Option<Vec<u8>> {
        let given = key.and_then(|key| self.text(key));
        let Some(path) = self.text(file_key) else {
            return given.map(String::into_bytes);
        };
        if let Some(key) = key.filter(|_| given.is_some()) {
            contradiction(format!(
                "`{}` has both `{key}` and `{file_key}`",
                self.name()
            ))
            .at(&self.value_span(file_key), "")
            .at(&self.value_span(key), "")
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
    ) -> Option<Vec<u8>> {
        let secret = self.secret(None, file_key)?;
        if secret.len() < at_least {
            let why = format!(
                "shorter than {at_least} bytes: such a {what} can be guessed; \
                 make one: `head -c 32 /dev/urandom | base64 > FILE`"
            );
            self.unusable_file(file_key, &why);
        }
        Some(secret)
    }

    fn pem_file(&mut self, key: &'static str) -> Option<PemFile> {
        let path = self.text(key)?;
        let content = self.content(key, &path, MAX_PEM)?;
        let path = self.path(path);
        Some(PemFile { path, content })
    }

    pub(super) fn authorities(&mut self, key: &'static str) -> Option<PemFile> {
        self.checked_pem(key, |pem| pem::authorities(pem).map(drop))
    }

    pub(super) fn revocation_lists(&mut self, key: &'static str) -> Option<PemFile> {
        self.checked_pem(key, |pem| pem::revocation_lists(pem).map(drop))
    }

    fn checked_pem(
        &mut self,
        key: &'static str,
        check: impl FnOnce(&[u8]) -> Result<(), pem::PemError>,
    ) -> Option<PemFile> {
        let file = self.pem_file(key)?;
        match check(&file.content) {
            Ok(()) => Some(file),
            Err(why) => {
                self.unusable_file(key, why);
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
        match pem::identity(&cert.content, &key.content) {
            Ok(certified) => Some(CheckedIdentity {
                certified,
                cert_span: self.value_span("cert"),
                files: IdentityFiles { cert, key },
            }),
            Err((part, why)) => {
                self.unusable_file(part, why);
                None
            }
        }
    }

    /// A file without its last newline. An empty file is reported.
    fn content(&self, key: &str, path: &str, max_bytes: usize) -> Option<Vec<u8>> {
        let bytes = self.bounded_file(path, max_bytes).and_then(|bytes| {
            let bytes = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
            let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
            match bytes.is_empty() {
                true => Err("empty".to_owned()),
                false => Ok(bytes.to_vec()),
            }
        });
        self.usable(key, path, bytes)
    }

    fn usable<T>(&self, key: &str, path: &str, content: Result<T, String>) -> Option<T> {
        let report = |why: &String| {
            let help = match why.as_str() {
                why if why.starts_with("Permission denied") => {
                    "; let the user of the proxy read it"
                }
                why if why.starts_with("No such file") && Path::new(path).is_relative() => {
                    "; paths are relative to the folder of the file that names them"
                }
                _ => "",
            };
            self.unusable_file(key, &format!("{why}{help}"));
        };
        content.inspect_err(report).ok()
    }

    /// Reports a file that cannot be used. The part of the reason after a `;` becomes the help.
    pub(super) fn unusable_file(&self, key: &str, why: &str) {
        let message = format!("the file of `{}` cannot be used", self.full_key(key));
        Diagnostic::new(Code::SecretFile, message)
            .at_error(&self.value_span(key), &why)
            .report_to(self.reader);
    }

    /// Reads a list of the file that `key` names, line by line, until a line cannot be used
    /// [`MAX_REPORTED`] times. A line may hold a secret: reports show only its number.
    pub(super) fn for_each_line<E: fmt::Display>(
        &self,
        key: &str,
        path: &str,
        mut read: impl FnMut(&str) -> Result<(), E>,
    ) {
        let text = self.list_file(key, path).unwrap_or_default();
        let lines = text.strip_prefix('\u{feff}').unwrap_or(&text).lines();
        let lines = lines.map(str::trim).enumerate();
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let wrong = lines.filter_map(|(index, line)| Some((index + 1, read(line).err()?)));
        for (number, why) in wrong.take(MAX_REPORTED) {
            self.unusable_file(key, &format!("line {number}: {why}"));
        }
    }

    pub(super) fn path(&self, written: impl AsRef<Path>) -> PathBuf {
        self.reader.surroundings.path(written)
    }

    pub(super) fn path_of(&mut self, key: &'static str) -> Option<PathBuf> {
        self.text(key).map(|path| self.path(path))
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

    /// Reads the file that `key` names, at most `max_bytes` of it.
    pub(super) fn bytes_file(&self, key: &str, path: &str, max_bytes: usize) -> Option<Vec<u8>> {
        self.usable(key, path, self.bounded_file(path, max_bytes))
    }

    pub(super) fn list_file(&self, key: &str, path: &str) -> Option<String> {
        let bytes = self.bounded_file(path, MAX_LIST);
        let text =
            bytes.and_then(|bytes| String::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned()));
        self.usable(key, path, text)
    }
}

/// A line of a list without the comment at its end, which begins with a word that begins with `#`.
pub(super) fn without_comment(line: &str) -> &str {
    let mut marks = line.match_indices('#').map(|(at, _)| at);
    let comment = marks.find(|at| line[..*at].ends_with(char::is_whitespace));
    line[..comment.unwrap_or(line.len())].trim()
}
