//! Acquires a certificate by ACME (RFC 8555): one for all names, renewed after two thirds of its
//! lifetime.
//!
//! The account and the certificate are cached in a folder, so that a restart needs no authority.
//! After a failure the next attempt comes later and later; until then the old certificate stays in
//! use.

use std::error::Error as _;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, Identifier, NewAccount,
    NewOrder, Order, OrderStatus, RetryPolicy,
};

use super::ServerTls;
use super::certificates::{parse_identity, read_certificate};
use crate::clock;
use crate::config::{AcmeChallenge, AcmeSettings, IdentityFiles, PemFile, pem};
use crate::server::{Lifecycle, Shutdown};
use crate::telemetry::panics::lock;
use tidegate_core::failpoint;

const PATIENCE: Duration = Duration::from_secs(300);
/// How long the authority may take to check the names, and to sign.
const RETRIES: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(120));
/// The pause after the first failure. It doubles with each further failure.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(6 * 3600);
/// How often the clock and the settings are checked.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Why there is no certificate, as a text for the log.
struct AcmeError(String);

impl From<instant_acme::Error> for AcmeError {
    /// The text has all causes, because that of a failed connection is the last one.
    fn from(error: instant_acme::Error) -> AcmeError {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            let inner_text = inner.to_string();
            if !text.contains(&inner_text) {
                text = format!("{text}: {inner_text}");
            }
            cause = inner.source();
        }
        AcmeError(text)
    }
}

fn unusable(why: &str) -> AcmeError {
    AcmeError(format!("the response of the authority: {why}"))
}

/// The folder of the cache cannot be used.
fn unusable_cache(error: io::Error) -> AcmeError {
    AcmeError(format!("`tls.acme.cache`: {error}"))
}

pub(in crate::server) async fn acquire_certificates(tls: Arc<ServerTls>, mut shutdown: Shutdown) {
    failpoint!("server.acme");
    let work = async {
        let mut pause = FIRST_PAUSE;
        loop {
            let settings = lock(&tls.state).settings.acme.clone();
            let Some(settings) = settings.filter(|settings| tls.is_due(settings)) else {
                tokio::time::sleep(CHECK_EVERY).await;
                continue;
            };
            match tls.acquire(&settings).await {
                Ok(()) => pause = FIRST_PAUSE,
                Err(AcmeError(error)) => {
                    let names = settings.domains.join(", ");
                    tracing::error!(
                        "tls: no certificate for {names}: {error}; next attempt in {pause:?}"
                    );
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    };
    tokio::select! {
        _ = shutdown.wait_for(|lifecycle| *lifecycle != Lifecycle::Serve) => {}
        () = work => {}
    }
}

impl ServerTls {
    /// Whether there is no certificate for the names, or less than a third of its lifetime is left.
    fn is_due(&self, settings: &AcmeSettings) -> bool {
        let Some(files) = lock(&self.state).acquired.clone() else {
            return true;
        };
        let identity = parse_identity(&files.cert.content, &files.key.content).ok();
        let Some(certificate) = identity.as_ref().and_then(read_certificate) else {
            return true;
        };
        let hosts = certificate.hosts();
        let not_after_s = certificate.not_after_s;
        let lifetime_s = not_after_s.saturating_sub(certificate.not_before_s);
        let due_s = not_after_s.saturating_sub(lifetime_s / 3);
        clock::unix_us() / 1_000_000 >= due_s
            || !settings.domains.iter().all(|domain| hosts.contains(domain))
    }

    async fn acquire(&self, settings: &AcmeSettings) -> Result<(), AcmeError> {
        let ordering = tokio::time::timeout(PATIENCE, self.order(settings));
        let ordered = ordering
            .await
            .unwrap_or_else(|_| Err(AcmeError("it took too long".to_owned())));
        self.challenges.clear();
        let files = cache_certificate(settings, &ordered?).map_err(unusable_cache)?;
        let identity = pem::identity(&files.cert.content, &files.key.content);
        identity.map_err(|(_, why)| unusable(why))?;
        self.use_acquired(files)
            .map_err(|_| unusable("it cannot be shown"))?;
        let (names, directory) = (settings.domains.join(", "), &settings.directory);
        tracing::info!("tls: a new certificate for {names} from {directory}");
        Ok(())
    }

    /// Orders a certificate. Returns its key and its chain as PEM.
    async fn order(&self, settings: &AcmeSettings) -> Result<String, AcmeError> {
        let names = settings.domains.iter().cloned();
        let names: Vec<Identifier> = names.map(Identifier::Dns).collect();
        let names = NewOrder::new(&names);
        let begun = account(settings).await?.new_order(&names).await;
        let mut order = match begun {
            Err(error) if is_unknown_account(&error) => {
                tracing::warn!("tls: the authority does not know the account: making a new one");
                forget_account(settings).map_err(unusable_cache)?;
                account(settings).await?.new_order(&names).await?
            }
            begun => begun?,
        };
        self.prove(&mut order, settings.challenge).await?;
        if order.poll_ready(&RETRIES).await? != OrderStatus::Ready {
            return Err(AcmeError(find_problems(&mut order).await));
        }
        let key = order.finalize().await?;
        let chain = order.poll_certificate(&RETRIES).await?;
        Ok(format!("{key}{chain}"))
    }

    /// Offers a proof for each name, and has the authority check it.
    async fn prove(&self, order: &mut Order, challenge: AcmeChallenge) -> Result<(), AcmeError> {
        let kind = match challenge {
            AcmeChallenge::Http01 => ChallengeType::Http01,
            AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
        };
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            let Some(mut offered) = authorization.challenge(kind.clone()) else {
                let text = "the authority does not offer the challenge of `tls.acme.challenge`";
                return Err(AcmeError(text.to_owned()));
            };
            let proof = offered.key_authorization();
            match challenge {
                AcmeChallenge::Http01 => {
                    self.challenges.add_answer(&offered.token, proof.as_str());
                }
                AcmeChallenge::TlsAlpn01 => {
                    let name = offered.identifier().to_string();
                    self.challenges
                        .add_certificate(&name, proof.digest().as_ref())
                        .map_err(unusable)?;
                }
            }
            offered.set_ready().await?;
        }
        Ok(())
    }
}

async fn account(settings: &AcmeSettings) -> Result<Account, AcmeError> {
    let builder = match &settings.ca {
        Some(ca) => Account::builder_with_root(ca)?,
        None => Account::builder()?,
    };
    if let Some(known) = read_account(settings).map_err(unusable_cache)? {
        return Ok(builder.from_credentials(known).await?);
    }
    let contact: Vec<&str> = settings.contact.iter().map(String::as_str).collect();
    let new = NewAccount {
        contact: &contact,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let directory = settings.directory.clone();
    let (account, credentials) = builder.create(&new, directory, None).await?;
    let credentials = serde_json::to_vec(&credentials).map_err(io::Error::other);
    credentials
        .and_then(|text| write_private(&account_path(settings), &text))
        .map_err(unusable_cache)?;
    Ok(account)
}

/// Whether the authority no longer has the account of the cache (RFC 8555 section 6.7).
fn is_unknown_account(error: &instant_acme::Error) -> bool {
    let instant_acme::Error::Api(problem) = error else {
        return false;
    };
    problem.r#type.as_deref() == Some("urn:ietf:params:acme:error:accountDoesNotExist")
}

fn forget_account(settings: &AcmeSettings) -> io::Result<()> {
    std::fs::remove_file(account_path(settings))
}

/// The reasons of the authority for names whose proof it did not accept.
async fn find_problems(order: &mut Order) -> String {
    let mut found = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let name = authorization.identifier().to_string();
        let Ok(state) = authorization.refresh().await else {
            continue;
        };
        for challenge in &state.challenges {
            if let Some(problem) = &challenge.error {
                found.push(format!("{name}: {problem}"));
            }
        }
    }
    match found.is_empty() {
        true => "the authority did not confirm that the names belong to this machine".to_owned(),
        false => found.join("; "),
    }
}

pub(super) fn read_cached(settings: &AcmeSettings) -> Option<IdentityFiles> {
    let content = std::fs::read(certificate_path(settings)).ok()?;
    Some(identity_files(settings, content))
}

fn cache_certificate(settings: &AcmeSettings, pem: &str) -> io::Result<IdentityFiles> {
    write_private(&certificate_path(settings), pem.as_bytes())?;
    Ok(identity_files(settings, pem.as_bytes().to_vec()))
}

fn read_account(settings: &AcmeSettings) -> io::Result<Option<AccountCredentials>> {
    match std::fs::read(account_path(settings)) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The certificate and its key are in one file, so that they are replaced together.
fn identity_files(settings: &AcmeSettings, content: Vec<u8>) -> IdentityFiles {
    let path = certificate_path(settings);
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

/// Each authority has a file for its account.
fn account_path(settings: &AcmeSettings) -> PathBuf {
    let hash = blake3::hash(settings.directory.as_bytes()).to_hex();
    settings.cache.join(format!("account-{}.json", &hash[..16]))
}

/// Replaces a file as a whole. Only this user can read it.
fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let new = path.with_extension("new");
    // A file that a crash left behind may have other permissions.
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
    use super::*;
    use crate::config::AcmeChallenge;
    use std::os::unix::fs::PermissionsExt;
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
        assert!(read_cached(&settings).is_none() && read_account(&settings).unwrap().is_none());
        for text in ["one", "two"] {
            cache_certificate(&settings, text).unwrap();
            assert_eq!(
                read_cached(&settings).unwrap().cert.content,
                text.as_bytes()
            );
        }
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&settings.cache), 0o700);
        assert_eq!(mode(&certificate_path(&settings)), 0o600);
        std::fs::write(account_path(&settings), "no JSON").unwrap();
        assert!(read_account(&settings).is_err());
    }
}
