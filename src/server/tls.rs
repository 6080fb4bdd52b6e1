//! TLS with clients: the handshake, under a deadline, and what may change while we serve.
//!
//! One for all workers, so that a session begun with one of them is resumed by another. What a
//! connection was begun with stays its own; nothing here ever ends one because a file changed.

mod acme;
pub(super) mod certificates;
mod challenges;
mod watch;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring::{Ticketer, default_provider};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use tokio_rustls::{TlsAcceptor, TlsStream};

use crate::certificate::{Certificate, Validity};
use crate::clock;
use crate::config::{AcmeChallenge, IdentityFiles, TlsSettings, TlsVersion, pem};
use crate::proxy::{Arrival, Secured};
use crate::wire::Stream;
pub(super) use acme::acme;
use certificates::Certificates;
use challenges::Challenges;
pub(super) use watch::watch;

/// See the file's head.
pub(crate) struct Tls {
    acceptor: ArcSwap<ServerConfig>,
    certificates: Arc<Certificates>,
    /// What is in use.
    settings: Mutex<TlsSettings>,
    /// What we got for ourselves.
    acquired: Mutex<Option<IdentityFiles>>,
    /// What proves that names are ours.
    pub(super) challenges: Arc<Challenges>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    pub(super) fn new(settings: &TlsSettings) -> io::Result<Tls> {
        let acquired = settings.acme.as_ref().and_then(acme::stored);
        // One that cannot be used any more is got anew.
        let usable =
            |files: &IdentityFiles| pem::identity(&files.cert.content, &files.key.content).is_ok();
        let acquired = acquired.filter(usable);
        let challenges = Arc::new(Challenges::default());
        let all = with(&settings.certificates, acquired.as_ref());
        let certificates = Arc::new(Certificates::new(&all, Arc::clone(&challenges))?);
        Ok(Tls {
            acceptor: ArcSwap::new(acceptor(settings, &certificates)?),
            certificates,
            settings: Mutex::new(settings.clone()),
            acquired: Mutex::new(acquired),
            challenges,
        })
    }

    /// Serves new connections by other settings; with wrong ones nothing changes.
    pub(super) fn renew(&self, settings: &TlsSettings) -> io::Result<()> {
        let mut used = self.settings();
        let way = |one: &TlsSettings| one.acme.as_ref().map(|acme| acme.challenge);
        let same = settings.min_version == used.min_version
            && settings.http2 == used.http2
            && way(settings) == way(&used)
            && settings.clients.as_ref().map(|one| (&one.ca, one.required))
                == used.clients.as_ref().map(|one| (&one.ca, one.required));
        // Another acceptor forgets its sessions: whom we believe may have changed since.
        let acceptor = match same {
            true => None,
            false => Some(acceptor(settings, &self.certificates)?),
        };
        let acquired = self.acquired().filter(|_| settings.acme.is_some());
        self.certificates
            .replace(&with(&settings.certificates, acquired.as_ref()))?;
        if let Some(acceptor) = acceptor {
            self.acceptor.store(acceptor);
        }
        *used = settings.clone();
        Ok(())
    }

    /// Shows what was got for ourselves.
    fn acquire(&self, files: IdentityFiles) -> io::Result<()> {
        let all = with(&self.settings().certificates, Some(&files));
        self.certificates.replace(&all)?;
        *self.acquired.lock().unwrap_or_else(PoisonError::into_inner) = Some(files);
        Ok(())
    }

    fn acquired(&self) -> Option<IdentityFiles> {
        let acquired = self.acquired.lock().unwrap_or_else(PoisonError::into_inner);
        acquired.clone()
    }

    fn settings(&self) -> MutexGuard<'_, TlsSettings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn handshake(
        &self,
        stream: Stream,
        ip: IpAddr,
    ) -> io::Result<(Stream, Arrival)> {
        if is_plain(&stream).await? {
            return Ok((stream, Arrival::misplaced(ip)));
        }
        let stream = TlsAcceptor::from(self.acceptor.load_full())
            .accept(stream)
            .await?;
        if stream.get_ref().1.alpn_protocol() == Some(challenges::PROTOCOL) {
            return Err(io::Error::other("an authority has looked at a challenge"));
        }
        let shown = stream.get_ref().1.peer_certificates();
        let shown = shown.and_then(|chain| chain.first());
        let certificate = shown.and_then(|der| Certificate::read(der)).map(Arc::new);
        let now_s = clock::unix_us() / 1_000_000;
        // A session may be resumed for hours after its certificate has ended.
        let ended = |one: &Arc<Certificate>| one.validity(now_s) == Validity::Expired;
        if certificate.as_ref().is_some_and(ended) {
            return Err(io::Error::other("the client's certificate has expired"));
        }
        let stream = Stream::Tls(Box::new(TlsStream::Server(stream)));
        let arrival = Arrival {
            tls: Some(Secured { certificate }),
            ..Arrival::plain(ip)
        };
        Ok((stream, arrival))
    }
}

/// Whether the client begins as HTTP does: a TLS record begins with a control character.
async fn is_plain(stream: &Stream) -> io::Result<bool> {
    let Stream::Tcp(stream) = stream else {
        return Ok(false);
    };
    let mut first = [0];
    match stream.peek(&mut first).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(first[0].is_ascii_alphabetic()),
    }
}

/// The file's, and behind them the one that we got for ourselves.
fn with(files: &[IdentityFiles], acquired: Option<&IdentityFiles>) -> Vec<IdentityFiles> {
    files.iter().chain(acquired).cloned().collect()
}

fn acceptor(settings: &TlsSettings, shown: &Arc<Certificates>) -> io::Result<Arc<ServerConfig>> {
    let provider = Arc::new(default_provider());
    let versions: &[_] = match settings.min_version {
        TlsVersion::V1_2 => &[&TLS13, &TLS12],
        TlsVersion::V1_3 => &[&TLS13],
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(io::Error::other)?;
    let builder = match &settings.clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let roots = pem::authorities(&clients.ca.content).map_err(io::Error::other)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = match clients.required {
                true => verifier,
                false => verifier.allow_unauthenticated(),
            };
            builder.with_client_cert_verifier(verifier.build().map_err(io::Error::other)?)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::clone(shown) as _);
    let acme = settings.acme.as_ref();
    let looks = acme.is_some_and(|acme| acme.challenge == AcmeChallenge::TlsAlpn01);
    let http2 = settings.http2.then_some(&b"h2"[..]);
    let protocols = http2.into_iter().chain([&b"http/1.1"[..]]);
    let protocols = protocols.chain(looks.then_some(challenges::PROTOCOL));
    config.alpn_protocols = protocols.map(<[u8]>::to_vec).collect();
    config.ticketer = Ticketer::new().map_err(io::Error::other)?;
    Ok(Arc::new(config))
}
