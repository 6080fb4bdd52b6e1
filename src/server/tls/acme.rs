//! Certificates that the proxy gets for itself (RFC 8555): one for all names, renewed when two
//! thirds of its time have passed.
//!
//! What is got is kept in a folder, so that a restart asks nobody. An authority that is away, or
//! that refuses, costs nothing as long as a certificate lasts: it is asked again, ever more rarely.

mod cache;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Identifier, NewAccount, NewOrder, Order,
    OrderStatus, RetryPolicy,
};

use super::Tls;
use crate::certificate::Certificate;
use crate::clock;
use crate::config::{AcmeChallenge, AcmeSettings, pem};
use crate::server::{Lifecycle, Shutdown};
use tidegate_core::failpoint;

pub(super) use cache::stored;

/// One certificate, from the first word to the last.
const PATIENCE: Duration = Duration::from_secs(300);
/// For the authority to look, and to sign.
const RETRIES: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(120));
/// After the first failure; twice as long after each one more.
const FIRST_REST: Duration = Duration::from_secs(10);
const LONGEST_REST: Duration = Duration::from_secs(6 * 3600);
/// A clock that is set, or settings that change, are noticed so soon.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why there is no new certificate.
#[derive(Debug)]
enum AcmeError {
    /// What the library or the authority says.
    Protocol(instant_acme::Error),
    /// A name was not proved to be ours, and why.
    Unproved(String),
    /// The authority does not offer the challenge that is configured.
    NoSuchChallenge,
    /// The folder.
    Cache(io::Error),
    /// What came is no certificate for the key.
    Unusable(&'static str),
    /// It took too long.
    TimedOut,
}

impl fmt::Display for AcmeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcmeError::Protocol(error) => error.fmt(f),
            AcmeError::Unproved(why) => f.write_str(why),
            AcmeError::NoSuchChallenge => {
                f.write_str("the authority does not offer `tls.acme.challenge`")
            }
            AcmeError::Cache(error) => write!(f, "`tls.acme.cache`: {error}"),
            AcmeError::Unusable(why) => write!(f, "what the authority sent: {why}"),
            AcmeError::TimedOut => f.write_str("it took too long"),
        }
    }
}

impl std::error::Error for AcmeError {}

impl From<instant_acme::Error> for AcmeError {
    fn from(error: instant_acme::Error) -> Self {
        AcmeError::Protocol(error)
    }
}

/// Sees to the certificate until the house ends.
pub(in crate::server) async fn acme(tls: Arc<Tls>, mut shutdown: Shutdown) {
    failpoint!("server.acme");
    let work = async {
        let mut rest = FIRST_REST;
        loop {
            let settings = tls.settings().acme.clone();
            let Some(settings) = settings.filter(|settings| tls.is_due(settings)) else {
                tokio::time::sleep(LOOK_EVERY).await;
                continue;
            };
            match tls.obtain(&settings).await {
                Ok(()) => rest = FIRST_REST,
                Err(error) => {
                    let names = settings.domains.join(", ");
                    tracing::error!("tls: no certificate for {names}: {error}; again in {rest:?}");
                    tokio::time::sleep(rest).await;
                    rest = (rest * 2).min(LONGEST_REST);
                }
            }
        }
    };
    tokio::select! {
        _ = shutdown.wait_for(|lifecycle| *lifecycle != Lifecycle::Serve) => {}
        () = work => {}
    }
}

impl Tls {
    /// Whether a certificate must be had: there is none for these names, or a third of its time is
    /// left.
    fn is_due(&self, settings: &AcmeSettings) -> bool {
        let Some(files) = self.acquired() else {
            return true;
        };
        let identity = pem::identity(&files.cert.content, &files.key.content).ok();
        let der = identity.as_ref().and_then(|one| one.end_entity_cert().ok());
        let Some(read) = der.and_then(|der| Certificate::read(der)) else {
            return true;
        };
        let hosts = read.hosts();
        let lifetime_s = read.not_after_s.saturating_sub(read.not_before_s);
        let due_s = read.not_after_s.saturating_sub(lifetime_s / 3);
        clock::unix_us() / 1_000_000 >= due_s
            || !settings.domains.iter().all(|domain| hosts.contains(domain))
    }

    /// Gets a certificate, keeps it and shows it.
    async fn obtain(&self, settings: &AcmeSettings) -> Result<(), AcmeError> {
        let ordering = tokio::time::timeout(PATIENCE, self.order(settings));
        let ordered = ordering.await.unwrap_or(Err(AcmeError::TimedOut));
        self.challenges.clear();
        let files = cache::keep(settings, &ordered?).map_err(AcmeError::Cache)?;
        let identity = pem::identity(&files.cert.content, &files.key.content);
        identity.map_err(|(_, why)| AcmeError::Unusable(why))?;
        self.acquire(files)
            .map_err(|_| AcmeError::Unusable("it cannot be shown"))?;
        let names = settings.domains.join(", ");
        tracing::info!(
            "tls: a new certificate for {names} from {}",
            settings.directory
        );
        Ok(())
    }

    /// The key and the chain, PEM.
    async fn order(&self, settings: &AcmeSettings) -> Result<String, AcmeError> {
        let account = account(settings).await?;
        let names: Vec<Identifier> = settings
            .domains
            .iter()
            .map(|domain| Identifier::Dns(domain.clone()))
            .collect();
        let mut order = account.new_order(&NewOrder::new(&names)).await?;
        self.prove(&mut order, settings.challenge).await?;
        if order.poll_ready(&RETRIES).await? != OrderStatus::Ready {
            return Err(AcmeError::Unproved(why(&mut order).await));
        }
        let key = order.finalize().await?;
        let chain = order.poll_certificate(&RETRIES).await?;
        Ok(format!("{key}{chain}"))
    }

    /// Has the authority look at each name.
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
            let mut offered = authorization
                .challenge(kind.clone())
                .ok_or(AcmeError::NoSuchChallenge)?;
            let proof = offered.key_authorization();
            match challenge {
                AcmeChallenge::Http01 => {
                    self.challenges.answer(&offered.token, proof.as_str());
                }
                AcmeChallenge::TlsAlpn01 => {
                    let name = offered.identifier().to_string();
                    self.challenges
                        .show(&name, proof.digest().as_ref())
                        .map_err(AcmeError::Unusable)?;
                }
            }
            offered.set_ready().await?;
        }
        Ok(())
    }
}

/// The account that is kept, or a new one.
async fn account(settings: &AcmeSettings) -> Result<Account, AcmeError> {
    let builder = match &settings.ca {
        Some(ca) => Account::builder_with_root(ca)?,
        None => Account::builder()?,
    };
    if let Some(known) = cache::account(settings).map_err(AcmeError::Cache)? {
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
    cache::keep_account(settings, &credentials).map_err(AcmeError::Cache)?;
    Ok(account)
}

/// What the authority says of the names that it did not believe.
async fn why(order: &mut Order) -> String {
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
        true => "the names were not proved to be ours".to_owned(),
        false => found.join("; "),
    }
}
