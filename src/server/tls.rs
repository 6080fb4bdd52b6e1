//! TLS with clients: the handshake, and certificates that change while the server runs.
//!
//! All workers share one [`ServerTls`], so that a session of one worker can be resumed at another.
//! A change of a file never ends a connection.
//!
//! A [`Watcher`] checks the files of certificates. It waits until a certificate and its key have
//! both stopped changing. They are used only if they fit.

mod acme;
mod certificates;

use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring::{Ticketer, default_provider};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use tokio_rustls::{TlsAcceptor, TlsStream};

use super::watcher::Watcher;
use super::{Lifecycle, Shutdown};
use crate::certificate::{Certificate, Validity};
use crate::clock;
use crate::config::{AcmeChallenge, IdentityFiles, PemFile, TlsSettings, TlsVersion, pem};
use crate::proxy::{Arrival, Secured};
use crate::wire::Stream;
pub(super) use acme::acquire_certificates;
use certificates::{ACME_PROTOCOL, Certificates, Challenges, parse_identity, read_certificate};
use tidegate_core::failpoint;

/// How often the files of certificates are checked.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Bytes that are read of a file, at most.
const MAX_FILE_BYTES: u64 = 4 << 20;

pub(crate) struct ServerTls {
    acceptor: ArcSwap<ServerConfig>,
    certificates: Arc<Certificates>,
    state: Mutex<TlsState>,
    pub(super) challenges: Arc<Challenges>,
}

struct TlsState {
    settings: TlsSettings,
    /// The certificate that ACME has acquired.
    acquired: Option<IdentityFiles>,
}

impl ServerTls {
    pub(super) fn new(settings: &TlsSettings) -> io::Result<ServerTls> {
        // A cached certificate that cannot be used is acquired again.
        let is_usable =
            |files: &IdentityFiles| parse_identity(&files.cert.content, &files.key.content).is_ok();
        let cached = settings.acme.as_ref().and_then(acme::read_cached);
        let acquired = cached.filter(is_usable);
        let challenges = Arc::new(Challenges::default());
        let all = join_files(settings, acquired.as_ref());
        let certificates = Arc::new(Certificates::new(&all, Arc::clone(&challenges))?);
        Ok(ServerTls {
            acceptor: ArcSwap::new(make_acceptor(settings, &certificates)?),
            certificates,
            state: Mutex::new(TlsState {
                settings: settings.clone(),
                acquired,
            }),
            challenges,
        })
    }

    /// Uses other settings for new connections. On an error nothing changes.
    pub(super) fn renew(&self, settings: &TlsSettings) -> io::Result<()> {
        let mut state = self.state();
        let used = &state.settings;
        let challenge = |one: &TlsSettings| one.acme.as_ref().map(|acme| acme.challenge);
        let is_same = settings.min_version == used.min_version
            && settings.http2 == used.http2
            && challenge(settings) == challenge(used)
            && settings.clients.as_ref().map(|one| (&one.ca, one.required))
                == used.clients.as_ref().map(|one| (&one.ca, one.required));
        // A new acceptor forgets all sessions, because the trusted authorities may have changed.
        let acceptor = match is_same {
            true => None,
            false => Some(make_acceptor(settings, &self.certificates)?),
        };
        let acquired = state.acquired.as_ref().filter(|_| settings.acme.is_some());
        self.certificates.replace(&join_files(settings, acquired))?;
        if let Some(acceptor) = acceptor {
            self.acceptor.store(acceptor);
        }
        state.settings = settings.clone();
        Ok(())
    }

    /// Uses a certificate that was acquired by ACME.
    fn use_acquired(&self, files: IdentityFiles) -> io::Result<()> {
        let mut state = self.state();
        let all = join_files(&state.settings, Some(&files));
        self.certificates.replace(&all)?;
        state.acquired = Some(files);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, TlsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn handshake(
        &self,
        stream: Stream,
        ip: IpAddr,
    ) -> io::Result<(Stream, Arrival)> {
        if is_plain_http(&stream).await? {
            return Ok((stream, Arrival::misplaced(ip)));
        }
        let stream = TlsAcceptor::from(self.acceptor.load_full())
            .accept(stream)
            .await?;
        let session = stream.get_ref().1;
        if session.alpn_protocol() == Some(ACME_PROTOCOL) {
            return Err(io::Error::other("an authority has looked at a challenge"));
        }
        let der = session.peer_certificates().and_then(|chain| chain.first());
        let certificate = der.and_then(|der| Certificate::read(der)).map(Arc::new);
        let now_s = clock::unix_us() / 1_000_000;
        // A session can be resumed for hours after its certificate has expired.
        let is_expired = |one: &Arc<Certificate>| one.validity(now_s) == Validity::Expired;
        if certificate.as_ref().is_some_and(is_expired) {
            return Err(io::Error::other("the client's certificate has expired"));
        }
        let stream = Stream::Tls(Box::new(TlsStream::Server(stream)));
        let arrival = Arrival {
            tls: Some(Secured { certificate }),
            ..Arrival::plain(ip)
        };
        Ok((stream, arrival))
    }

    /// Checks the files of all certificates once. `known` has the watchers of the last check.
    fn check_files(&self, known: &mut Vec<Watcher>) {
        let settings = self.state().settings.clone();
        let identities = settings.certificates.iter();
        let mut groups: Vec<Vec<&PemFile>> =
            identities.map(|one| vec![&one.cert, &one.key]).collect();
        groups.extend(settings.clients.as_ref().map(|clients| vec![&clients.ca]));
        let mut watched = Vec::with_capacity(groups.len());
        for (index, files) in groups.into_iter().enumerate() {
            let paths: Vec<PathBuf> = files.iter().map(|file| file.path.clone()).collect();
            let mut watcher = match known.iter().position(|one| one.has_paths(&paths)) {
                Some(at) => known.swap_remove(at),
                None => Watcher::new(&paths),
            };
            if watcher.has_changed() {
                self.read_files(index, &files);
            }
            watched.push(watcher);
        }
        *known = watched;
    }

    /// Reads changed files, and uses them if they are valid and new.
    fn read_files(&self, index: usize, files: &[&PemFile]) {
        let content: io::Result<Vec<Vec<u8>>> =
            files.iter().map(|file| read_pem(&file.path)).collect();
        let used = match content {
            Ok(content) if files.iter().map(|file| &file.content).eq(&content) => return,
            Ok(content) => self.use_files(index, content),
            Err(error) => Err(error.to_string()),
        };
        let names = files.iter().map(|file| file.path.display().to_string());
        let names: Vec<String> = names.collect();
        let names = names.join(", ");
        match used {
            Ok(what) => tracing::info!("tls: {what} from {names}"),
            Err(why) => tracing::error!("tls: {names}: {why}; what was in use is kept"),
        }
    }

    /// Uses new content for the certificate at `index`, or for the authorities of clients, which
    /// have the index after the last certificate. Returns a description.
    fn use_files(&self, index: usize, content: Vec<Vec<u8>>) -> Result<String, String> {
        let mut settings = self.state().settings.clone();
        let what = match settings.certificates.get_mut(index) {
            Some(files) => renew_identity(files, content)?,
            None => renew_authorities(&mut settings, content)?,
        };
        self.renew(&settings).map_err(|error| error.to_string())?;
        Ok(what)
    }
}

/// Uses changed files of certificates until the server ends.
pub(super) async fn watch_files(tls: Arc<ServerTls>, mut shutdown: Shutdown) {
    failpoint!("server.certificates");
    let mut known = Vec::new();
    loop {
        tokio::select! {
            _ = shutdown.wait_for(|lifecycle| *lifecycle != Lifecycle::Serve) => return,
            () = tokio::time::sleep(CHECK_EVERY) => tls.check_files(&mut known),
        }
    }
}

/// Reads a file as the configuration does: without the last newline.
fn read_pem(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?
        .take(MAX_FILE_BYTES)
        .read_to_end(&mut bytes)?;
    for end in [b'\n', b'\r'] {
        bytes.pop_if(|last| *last == end);
    }
    Ok(bytes)
}

fn renew_identity(files: &mut IdentityFiles, content: Vec<Vec<u8>>) -> Result<String, String> {
    let Ok([cert, key]) = <[Vec<u8>; 2]>::try_from(content) else {
        return Err("two files belong together".to_owned());
    };
    let identity = parse_identity(&cert, &key)?;
    let hosts = read_certificate(&identity).map(|one| one.hosts().join(", "));
    (files.cert.content, files.key.content) = (cert, key);
    let hosts = hosts.unwrap_or_default();
    Ok(format!("a new certificate for {hosts}"))
}

fn renew_authorities(settings: &mut TlsSettings, content: Vec<Vec<u8>>) -> Result<String, String> {
    let (Some(clients), Some(ca)) = (&mut settings.clients, content.into_iter().next()) else {
        return Err("no longer in use".to_owned());
    };
    pem::authorities(&ca)?;
    clients.ca.content = ca;
    Ok("new authorities for clients".to_owned())
}

/// Whether the client sends HTTP without TLS. A TLS record begins with a control character.
async fn is_plain_http(stream: &Stream) -> io::Result<bool> {
    let Stream::Tcp(stream) = stream else {
        return Ok(false);
    };
    let mut first = [0];
    match stream.peek(&mut first).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(first[0].is_ascii_alphabetic()),
    }
}

/// The configured certificates, then the acquired one.
fn join_files(settings: &TlsSettings, acquired: Option<&IdentityFiles>) -> Vec<IdentityFiles> {
    let configured = settings.certificates.iter();
    configured.chain(acquired).cloned().collect()
}

fn make_acceptor(
    settings: &TlsSettings,
    certificates: &Arc<Certificates>,
) -> io::Result<Arc<ServerConfig>> {
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
    let mut config = builder.with_cert_resolver(Arc::clone(certificates) as _);
    let acme = settings.acme.as_ref();
    let is_challenged = acme.is_some_and(|acme| acme.challenge == AcmeChallenge::TlsAlpn01);
    let http2 = settings.http2.then_some(&b"h2"[..]);
    let protocols = http2.into_iter().chain([&b"http/1.1"[..]]);
    let protocols = protocols.chain(is_challenged.then_some(ACME_PROTOCOL));
    config.alpn_protocols = protocols.map(<[u8]>::to_vec).collect();
    config.ticketer = Ticketer::new().map_err(io::Error::other)?;
    Ok(Arc::new(config))
}
