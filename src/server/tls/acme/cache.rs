//! What is kept of an authority: the account, and the certificate with its key. Files that only
//! this user can read, replaced whole.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use instant_acme::AccountCredentials;

use crate::config::{AcmeSettings, IdentityFiles, PemFile};

/// The certificate that was kept, if it can be read.
pub(in crate::server::tls) fn stored(settings: &AcmeSettings) -> Option<IdentityFiles> {
    let path = certificate_path(settings);
    let content = std::fs::read(&path).ok()?;
    Some(identity(path, content))
}

pub(super) fn keep(settings: &AcmeSettings, pem: &str) -> io::Result<IdentityFiles> {
    let path = certificate_path(settings);
    write(&path, pem.as_bytes())?;
    Ok(identity(path, pem.as_bytes().to_vec()))
}

pub(super) fn account(settings: &AcmeSettings) -> io::Result<Option<AccountCredentials>> {
    match std::fs::read(account_path(settings)) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn keep_account(
    settings: &AcmeSettings,
    credentials: &AccountCredentials,
) -> io::Result<()> {
    write(&account_path(settings), &serde_json::to_vec(credentials)?)
}

/// Both in one file, so that they are replaced together.
fn identity(path: PathBuf, content: Vec<u8>) -> IdentityFiles {
    let file = PemFile { path, content };
    IdentityFiles {
        cert: file.clone(),
        key: file,
    }
}

fn certificate_path(settings: &AcmeSettings) -> PathBuf {
    let name = settings.domains.first().map_or("none", String::as_str);
    settings.cache.join(format!("{name}.pem"))
}

/// One for each authority.
fn account_path(settings: &AcmeSettings) -> PathBuf {
    let hash = blake3::hash(settings.directory.as_bytes()).to_hex();
    settings.cache.join(format!("account-{}.json", &hash[..16]))
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let new = path.with_extension("new");
    // One that a crash left behind may have other permissions.
    let _ = std::fs::remove_file(&new);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::config::AcmeChallenge;

    #[test]
    fn what_is_kept_is_for_this_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let settings = AcmeSettings {
            domains: vec!["a.test".to_owned()],
            contact: Vec::new(),
            directory: "https://ca.test/directory".to_owned(),
            cache: folder.path().join("deep/acme"),
            ca: None,
            challenge: AcmeChallenge::Http01,
        };
        assert!(stored(&settings).is_none() && account(&settings).unwrap().is_none());
        for text in ["one", "two"] {
            keep(&settings, text).unwrap();
            assert_eq!(stored(&settings).unwrap().cert.content, text.as_bytes());
        }
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&settings.cache), 0o700);
        assert_eq!(mode(&certificate_path(&settings)), 0o600);
        std::fs::write(account_path(&settings), "no JSON").unwrap();
        assert!(account(&settings).is_err());
    }
}
