//! TLS with clients: the handshake, and certificates that change while the server runs.
//!
//! All workers share one [`ServerTls`], so that a session of one worker can be resumed at another.
//! A change of a file never ends a connection.
//!
//! A [`Watcher`] checks the files of certificates. It waits until a certificate and its key have
//! both stopped changing. They are used only if they fit.

mod acme;
mod certificates;

use std::future::poll_fn;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{HandshakeKind, ProtocolVersion, ServerConfig};
use tokio::io::AsyncWriteExt;
use tokio_rustls::{TlsAcceptor, TlsStream};

use super::watcher::Watcher;
use super::{Lifecycle, Shutdown};
use crate::certificate::{Certificate, Validity};
use crate::clock;
use crate::config::{AcmeChallenge, IdentityFiles, TlsSettings, TlsVersion, pem};
use crate::proxy::{Arrival, Secured};
use crate::telemetry::panics::lock;
use crate::wire::Stream;
pub(super) use acme::acquire_certificates;
use certificates::{
    ACME_PROTOCOL, CertificateIndex, Certificates, Challenges, parse_identity, read_certificate,
};
use tidegate_core::failpoint;

const CHECK_EVERY: Duration = Duration::from_secs(1);
const MAX_FILE_BYTES: u64 = 4 << 20;
/// How long, and how many bytes, the socket is read after a handshake has failed.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 1 << 20;

pub(crate) struct ServerTls {
    acceptor: ArcSwap<ServerConfig>,
    certificates: Arc<Certificates>,
    state: Mutex<TlsState>,
    pub(super) challenges: Arc<Challenges>,
}

struct TlsState {
    settings: TlsSettings,
    acquired: Option<IdentityFiles>,
}

/// TLS after a reload. Clients see it after [`PreparedTls::commit`].
pub(super) enum PreparedTls<'t> {
    Off,
    New(Arc<ServerTls>),
    Renewed(&'t Arc<ServerTls>, Box<TlsRenewal<'t>>),
}

/// Other settings, ready to be used. Until then, nothing else changes the settings.
pub(super) struct TlsRenewal<'t> {
    state: MutexGuard<'t, TlsState>,
    settings: TlsSettings,
    index: CertificateIndex,
    /// `None` if the one in use stays.
    acceptor: Option<Arc<ServerConfig>>,
}

impl PreparedTls<'_> {
    pub(super) fn commit(self) -> Option<Arc<ServerTls>> {
        match self {
            PreparedTls::Off => None,
            PreparedTls::New(tls) => Some(tls),
            PreparedTls::Renewed(tls, renewal) => {
                renewal.commit(tls);
                Some(Arc::clone(tls))
            }
        }
    }
}

impl TlsRenewal<'_> {
    fn commit(mut self, tls: &ServerTls) {
        tls.certificates.replace(self.index);
        if let Some(acceptor) = self.acceptor {
            tls.acceptor.store(acceptor);
        }
        self.state.settings = self.settings;
    }
}

/// Closes the connection of a failed handshake. A close with unread bytes resets the connection,
/// and the reset can overtake the alert that says why.
async fn linger(mut stream: Stream) {
    let mut left = LINGER_BYTES;
    let closing = async {
        stream.shutdown().await?;
        poll_fn(|cx| stream.poll_discard(cx, &mut left)).await;
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(LINGER, closing).await;
}

/// The name of a version, as OpenSSL and nginx write it.
fn version_name(version: ProtocolVersion) -> &'static str {
    match version {
        ProtocolVersion::TLSv1_2 => "TLSv1.2",
        _ => "TLSv1.3",
    }
}

impl ServerTls {
    pub(super) fn new(settings: &TlsSettings) -> io::Result<ServerTls> {
        // A cached certificate that cannot be used is acquired again.
        let is_usable =
            |files: &IdentityFiles| parse_identity(&files.cert.content, &files.key.content).is_ok();
        let cached = settings.acme.as_ref().and_then(acme::read_cached);
        let acquired = cached.filter(is_usable);
        let challenges = Arc::new(Challenges::default());
        let index = load_index(settings, acquired.as_ref())?;
        let certificates = Arc::new(Certificates::new(index, Arc::clone(&challenges)));
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

    /// Prepares the same one with other settings, or another one if there was none.
    pub(super) fn prepare<'t>(
        known: Option<&'t Arc<ServerTls>>,
        settings: Option<&TlsSettings>,
    ) -> io::Result<PreparedTls<'t>> {
        Ok(match (known, settings) {
            (_, None) => PreparedTls::Off,
            (None, Some(settings)) => PreparedTls::New(Arc::new(ServerTls::new(settings)?)),
            (Some(known), Some(settings)) => {
                let renewal = known.prepare_in(lock(&known.state), settings)?;
                PreparedTls::Renewed(known, Box::new(renewal))
            }
        })
    }

    fn prepare_in<'t>(
        &self,
        state: MutexGuard<'t, TlsState>,
        settings: &TlsSettings,
    ) -> io::Result<TlsRenewal<'t>> {
        let used = &state.settings;
        let challenge = |one: &TlsSettings| one.acme.as_ref().map(|acme| acme.challenge);
        let is_same = settings.min_version == used.min_version
            && settings.http2 == used.http2
            && challenge(settings) == challenge(used)
            && settings.clients == used.clients;
        // A new acceptor forgets all sessions, because the trusted authorities may have changed.
        let acceptor = match is_same {
            true => None,
            false => Some(make_acceptor(settings, &self.certificates)?),
        };
        let acquired = state.acquired.as_ref().filter(|_| settings.acme.is_some());
        Ok(TlsRenewal {
            index: load_index(settings, acquired)?,
            acceptor,
            settings: settings.clone(),
            state,
        })
    }

    fn use_acquired(&self, files: IdentityFiles) -> io::Result<()> {
        let mut state = lock(&self.state);
        self.certificates
            .replace(load_index(&state.settings, Some(&files))?);
        state.acquired = Some(files);
        Ok(())
    }

    pub(super) async fn handshake(
        &self,
        stream: Stream,
        ip: IpAddr,
    ) -> io::Result<(Stream, Arrival)> {
        if is_plain_http(&stream).await? {
            return Ok((stream, Arrival::misplaced(ip)));
        }
        let acceptor = TlsAcceptor::from(self.acceptor.load_full());
        let stream = match acceptor.accept(stream).into_fallible().await {
            Ok(stream) => stream,
            Err((error, stream)) => {
                linger(stream).await;
                return Err(error);
            }
        };
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
        let secured = Secured {
            version: session.protocol_version().map_or("", version_name),
            cipher: (session.negotiated_cipher_suite())
                .and_then(|suite| suite.suite().as_str())
                .unwrap_or_default(),
            server_name: session.server_name().map(Box::from),
            is_resumed: session.handshake_kind() == Some(HandshakeKind::Resumed),
            certificate,
        };
        let stream = Stream::Tls(Box::new(TlsStream::Server(stream)));
        let arrival = Arrival {
            tls: Some(secured),
            ..Arrival::plain(ip)
        };
        Ok((stream, arrival))
    }

    /// Checks the files of all certificates once. `known` has the watchers of the last check.
    fn check_files(&self, known: &mut Vec<Watcher>) {
        let settings = lock(&self.state).settings.clone();
        let identities = settings.certificates.iter();
        let mut groups: Vec<Vec<PathBuf>> = identities
            .map(|one| vec![one.cert.path.clone(), one.key.path.clone()])
            .collect();
        let clients = settings.clients.iter();
        groups.extend(clients.map(|one| one.files().map(|file| file.path.clone()).collect()));
        let mut watched = Vec::with_capacity(groups.len());
        for (index, paths) in groups.into_iter().enumerate() {
            let mut watcher = match known.iter().position(|one| one.has_paths(&paths)) {
                Some(at) => known.swap_remove(at),
                None => Watcher::new(&paths),
            };
            if watcher.has_changed() {
                let names = paths.iter().map(|path| path.to_string_lossy());
                let names = names.collect::<Vec<_>>().join(", ");
                match self.read_files(index) {
                    Ok(None) => {}
                    Ok(Some(what)) => tracing::info!("tls: {what} from {names}"),
                    Err(why) => tracing::error!(
                        "tls: {names}: {why}; the proxy keeps the \
                     certificate in use"
                    ),
                }
            }
            watched.push(watcher);
        }
        *known = watched;
    }

    /// Reads the changed files of the certificate at `index`, or of the authorities of clients,
    /// which have the index after the last certificate. Uses them if they are valid and new, and
    /// returns a description then.
    fn read_files(&self, index: usize) -> io::Result<Option<String>> {
        // Held until the files are used, so that a reload meanwhile is not undone.
        let state = lock(&self.state);
        let mut settings = state.settings.clone();
        let files = match settings.certificates.get_mut(index) {
            Some(files) => vec![&mut files.cert, &mut files.key],
            None => {
                let clients = settings.clients.iter_mut();
                clients
                    .flat_map(|one| [&mut one.ca].into_iter().chain(&mut one.crl))
                    .collect()
            }
        };
        let mut is_new = false;
        for file in files {
            let content = read_pem(&file.path)?;
            is_new |= content != file.content;
            file.content = content;
        }
        if !is_new {
            return Ok(None);
        }
        self.prepare_in(state, &settings)?.commit(self);
        let Some(files) = settings.certificates.get(index) else {
            let what = "new authorities or revoked certificates for clients";
            return Ok(Some(what.to_owned()));
        };
        let identity = parse_identity(&files.cert.content, &files.key.content).ok();
        let hosts = identity.as_ref().and_then(read_certificate);
        let hosts = hosts.map(|one| one.hosts().join(", ")).unwrap_or_default();
        Ok(Some(format!("a new certificate for {hosts}")))
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
fn load_index(
    settings: &TlsSettings,
    acquired: Option<&IdentityFiles>,
) -> io::Result<CertificateIndex> {
    let files = settings.certificates.iter().chain(acquired);
    CertificateIndex::load(files, settings.refuses_unknown)
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
            let verifier = match &clients.crl {
                None => verifier,
                Some(file) => {
                    let lists = pem::revocation_lists(&file.content).map_err(io::Error::other)?;
                    verifier.with_crls(lists).enforce_revocation_expiration()
                }
            };
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
