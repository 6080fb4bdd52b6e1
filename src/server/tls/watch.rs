//! Certificates that are renewed while we serve: their files are looked at, by content, and what
//! is whole and right is used from the next handshake on.
//!
//! Content and not the time of a change, so that renamed-over files, swapped symlinks and mounted
//! secrets are all the same. A certificate and its key are written one after the other: what has
//! changed is judged only once it has stood still from one look to the next.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::Tls;
use crate::certificate::Certificate;
use crate::config::{IdentityFiles, PemFile, TlsSettings, pem};
use crate::server::{Lifecycle, Shutdown};
use tidegate_core::failpoint;

/// From one look to the next.
const EVERY: Duration = Duration::from_secs(1);
/// Bytes of a file, at most.
const MAX_BYTES: u64 = 4 << 20;

/// Files that belong together, and what was seen of them.
struct Watched {
    paths: Vec<PathBuf>,
    used: Vec<Vec<u8>>,
    /// What they held when they were last looked at, if that was something else.
    seen: Option<Look>,
    /// What has been refused already: said once.
    refused: Option<Look>,
}

/// What files held, or that one of them cannot be read.
type Look = Result<Vec<Vec<u8>>, String>;

impl Watched {
    fn new(files: &[&PemFile]) -> Watched {
        Watched {
            paths: files.iter().map(|file| file.path.clone()).collect(),
            used: files.iter().map(|file| file.content.clone()).collect(),
            seen: None,
            refused: None,
        }
    }

    fn is_of(&self, files: &[&PemFile]) -> bool {
        let same = |(path, file): (&PathBuf, &&PemFile)| *path == file.path;
        self.paths.len() == files.len() && self.paths.iter().zip(files).all(same)
    }

    /// What is new and stands still.
    fn look(&mut self) -> Option<Look> {
        let now: io::Result<Vec<_>> = self.paths.iter().map(|path| read(path)).collect();
        let now = now.map_err(|error| error.to_string());
        if now.as_ref() == Ok(&self.used) {
            (self.seen, self.refused) = (None, None);
            return None;
        }
        let still = self.seen.as_ref() == Some(&now);
        self.seen = Some(now.clone());
        (still && self.refused.as_ref() != Some(&now)).then_some(now)
    }
}

/// Like the configuration, without the last newline.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?
        .take(MAX_BYTES)
        .read_to_end(&mut bytes)?;
    for end in [b'\n', b'\r'] {
        bytes.pop_if(|last| *last == end);
    }
    Ok(bytes)
}

/// Looks until the house ends.
pub(in crate::server) async fn watch(tls: Arc<Tls>, mut shutdown: Shutdown) {
    failpoint!("server.certificates");
    let mut all: Vec<Watched> = Vec::new();
    loop {
        tokio::select! {
            _ = shutdown.wait_for(|lifecycle| *lifecycle != Lifecycle::Serve) => return,
            () = tokio::time::sleep(EVERY) => tls.look(&mut all),
        }
    }
}

impl Tls {
    /// One look at every file.
    fn look(&self, all: &mut Vec<Watched>) {
        let settings = self.settings().clone();
        let mut sets: Vec<Vec<&PemFile>> = settings
            .certificates
            .iter()
            .map(|one| vec![&one.cert, &one.key])
            .collect();
        sets.extend(settings.clients.as_ref().map(|clients| vec![&clients.ca]));
        // The settings may have been replaced since.
        let known: Vec<Watched> = std::mem::take(all);
        let mut known: Vec<Option<Watched>> = known.into_iter().map(Some).collect();
        for files in sets {
            let old = known
                .iter_mut()
                .find(|one| one.as_ref().is_some_and(|one| one.is_of(&files)));
            let mut watched = old
                .and_then(Option::take)
                .unwrap_or_else(|| Watched::new(&files));
            watched.used = files.iter().map(|file| file.content.clone()).collect();
            all.push(watched);
        }
        for (index, watched) in all.iter_mut().enumerate() {
            let Some(found) = watched.look() else {
                continue;
            };
            let names: Vec<_> = watched
                .paths
                .iter()
                .map(|p| p.display().to_string())
                .collect();
            let names = names.join(", ");
            let used = found.clone().and_then(|found| self.take(index, found));
            match used {
                Ok(what) => tracing::info!("tls: {what} from {names}"),
                Err(why) => {
                    tracing::error!("tls: {names}: {why}; what was in use is kept");
                    watched.refused = Some(found);
                }
            }
        }
    }

    /// Uses what the files at `index` hold now: a certificate and its key, or the authorities of
    /// clients behind the last of those.
    fn take(&self, index: usize, found: Vec<Vec<u8>>) -> Result<String, String> {
        let mut settings = self.settings().clone();
        let what = match settings.certificates.get_mut(index) {
            Some(files) => renew_identity(files, found)?,
            None => renew_authorities(&mut settings, found)?,
        };
        self.renew(&settings).map_err(|error| error.to_string())?;
        Ok(what)
    }
}

fn renew_identity(files: &mut IdentityFiles, found: Vec<Vec<u8>>) -> Result<String, String> {
    let Ok([cert, key]) = <[Vec<u8>; 2]>::try_from(found) else {
        return Err("two files belong together".to_owned());
    };
    let identity = pem::identity(&cert, &key).map_err(|(part, why)| format!("{part}: {why}"))?;
    let read = identity.end_entity_cert().ok();
    let read = read.and_then(|der| Certificate::read(der));
    let hosts = read.map(|read| read.hosts().join(", "));
    (files.cert.content, files.key.content) = (cert, key);
    Ok(format!(
        "a new certificate for {}",
        hosts.unwrap_or_default()
    ))
}

fn renew_authorities(settings: &mut TlsSettings, found: Vec<Vec<u8>>) -> Result<String, String> {
    let (Some(clients), Some(ca)) = (&mut settings.clients, found.into_iter().next()) else {
        return Err("no longer in use".to_owned());
    };
    pem::authorities(&ca)?;
    clients.ca.content = ca;
    Ok("new authorities for clients".to_owned())
}
