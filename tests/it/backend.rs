//! Upstreams on real sockets that speak HTTP/2, and TLS: each request and its stream are in the
//! hands of the test.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

use crate::topologies::certificates::Certificates;

/// One request of one stream.
pub struct Call {
    pub request: Request<RecvStream>,
    pub respond: SendResponse<Bytes>,
}

impl Call {
    /// Reads the request's body: its content and its trailers.
    pub async fn read(&mut self) -> (Vec<u8>, Option<HeaderMap>) {
        let body = self.request.body_mut();
        let mut content = Vec::new();
        while let Some(Ok(data)) = body.data().await {
            let _ = body.flow_control().release_capacity(data.len());
            content.extend_from_slice(&data);
        }
        (content, body.trailers().await.ok().flatten())
    }

    /// Answers with a head, and whatever is sent after it.
    pub fn head(&mut self, response: Response<()>) -> Option<SendStream<Bytes>> {
        self.respond.send_response(response, false).ok()
    }

    /// Answers 200 with `text`.
    pub fn say(&mut self, text: &str) {
        if let Some(mut stream) = self.head(Response::new(())) {
            let _ = stream.send_data(Bytes::copy_from_slice(text.as_bytes()), true);
        }
    }

    /// Waits until the proxy gives the stream up; its reason.
    pub async fn reset(&mut self) -> Option<h2::Reason> {
        std::future::poll_fn(|context| self.respond.poll_reset(context))
            .await
            .ok()
    }
}

/// Sends all of `data` as the other side takes it; false if it will not.
pub async fn send_all(stream: &mut SendStream<Bytes>, mut data: Bytes) -> bool {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = std::future::poll_fn(|context| stream.poll_capacity(context)).await;
        let Some(Ok(room)) = room else {
            return false;
        };
        let piece = data.split_to(room.min(data.len()));
        if stream.send_data(piece, false).is_err() {
            return false;
        }
    }
    true
}

/// What a connection does besides answering.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manners {
    /// Streams it takes at once; `None` says nothing of it.
    pub streams: Option<u32>,
    /// Requests of a connection after which it says goodbye.
    pub goodbye_after: Option<usize>,
    /// Bytes of a request's body it takes ahead of being read.
    pub window: Option<u32>,
}

/// A server with a runtime of its own.
pub struct Backend {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<Request<()>>>>,
    _runtime: Runtime,
}

impl Backend {
    /// HTTP/2 without TLS.
    pub fn h2c<F>(manners: Manners, answer: impl Fn(Call) -> F + Send + Sync + 'static) -> Backend
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::start(None, manners, answer)
    }

    /// HTTP/2 or HTTP/1.1 over TLS, as `protocols` are chosen from. What comes as HTTP/1.1 is
    /// answered `http/1.1`, and closed.
    pub fn https<F>(
        secure: Arc<ServerConfig>,
        answer: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> Backend
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::start(Some(TlsAcceptor::from(secure)), Manners::default(), answer)
    }

    fn start<F>(
        secure: Option<TlsAcceptor>,
        manners: Manners,
        answer: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> Backend
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let backend = Backend {
            address: listener.local_addr().unwrap(),
            connections: Arc::default(),
            open: Arc::default(),
            seen: Arc::default(),
            _runtime: runtime,
        };
        let (connections, open) = (backend.connections.clone(), backend.open.clone());
        let seen = backend.seen.clone();
        let answer = Arc::new(answer);
        backend._runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (secure, answer) = (secure.clone(), answer.clone());
                let (open, seen, connections) = (open.clone(), seen.clone(), connections.clone());
                tokio::spawn(async move {
                    let _ = stream.set_nodelay(true);
                    // At its start the proxy looks whether somebody is there, and says nothing.
                    if !matches!(stream.peek(&mut [0]).await, Ok(1)) {
                        return;
                    }
                    connections.fetch_add(1, Ordering::Relaxed);
                    open.fetch_add(1, Ordering::Relaxed);
                    match secure {
                        None => serve(stream, manners, answer, seen).await,
                        Some(secure) => {
                            if let Ok(stream) = secure.accept(stream).await {
                                if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                                    serve(stream, manners, answer, seen).await;
                                } else {
                                    serve_http1(stream).await;
                                }
                            }
                        }
                    }
                    open.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        backend
    }

    /// Connections since its start.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Connections that stand.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// The heads of all requests.
    pub fn seen(&self) -> Vec<Request<()>> {
        self.seen.lock().unwrap().clone()
    }

    pub fn h2c_url(&self) -> String {
        format!("h2c://{}", self.address)
    }

    /// As `localhost`, which certificates are made out to.
    pub fn https_url(&self) -> String {
        format!("https://localhost:{}", self.address.port())
    }
}

async fn serve<T, F>(
    stream: T,
    manners: Manners,
    answer: Arc<impl Fn(Call) -> F + Send + Sync + 'static>,
    seen: Arc<Mutex<Vec<Request<()>>>>,
) where
    T: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = ()> + Send + 'static,
{
    let mut builder = Builder::new();
    if let Some(streams) = manners.streams {
        builder.max_concurrent_streams(streams);
    }
    if let Some(window) = manners.window {
        builder.initial_window_size(window);
    }
    let Ok(mut accepting) = builder.handshake::<_, Bytes>(stream).await else {
        return;
    };
    let mut number = 0;
    while let Some(Ok((request, respond))) = accepting.accept().await {
        number += 1;
        let mut head = Request::new(());
        *head.method_mut() = request.method().clone();
        *head.uri_mut() = request.uri().clone();
        *head.headers_mut() = request.headers().clone();
        seen.lock().unwrap().push(head);
        tokio::spawn(answer(Call { request, respond }));
        if manners.goodbye_after == Some(number) {
            accepting.graceful_shutdown();
        }
    }
}

/// Answers requests without a body: who asks for an upgrade gets a tunnel that says back what it
/// hears.
async fn serve_http1<T: AsyncRead + AsyncWrite + Unpin>(mut stream: T) {
    let mut head = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let Ok(read @ 1..) = stream.read(&mut chunk).await else {
            return;
        };
        head.extend_from_slice(&chunk[..read]);
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        let text = String::from_utf8_lossy(&head).to_lowercase();
        head.clear();
        if text.contains("upgrade: websocket") {
            let agreed = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                          Upgrade: websocket\r\n\r\n";
            let _ = stream.write_all(agreed.as_bytes()).await;
            while let Ok(read @ 1..) = stream.read(&mut chunk).await {
                let _ = stream.write_all(&chunk[..read]).await;
            }
            return;
        }
        let answer = if text.starts_with("get /cut ") {
            "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\npart of"
        } else {
            "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhttp/1.1"
        };
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.flush().await;
        if text.starts_with("get /cut ") {
            // Gone without a word, as from a machine whose plug was pulled.
            tokio::time::sleep(Duration::from_millis(50)).await;
            return;
        }
    }
}

/// A server's side of TLS with the certificate of this name, which offers `protocols`; `clients`
/// says whether it wants a certificate of the authority's.
pub fn secure(
    certificates: &Certificates,
    name: &str,
    protocols: &[&[u8]],
    clients: bool,
) -> Arc<ServerConfig> {
    let read = |file: String| std::fs::read(certificates.path(&file)).unwrap();
    let all = |pem: &[u8]| -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(pem)
            .collect::<Result<_, _>>()
            .unwrap()
    };
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = if clients {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(all(&read("ca.pem".to_owned())));
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .unwrap();
        builder.with_client_cert_verifier(verifier)
    } else {
        builder.with_no_client_auth()
    };
    let key = PrivateKeyDer::from_pem_slice(&read(format!("{name}.key"))).unwrap();
    let mut config = builder
        .with_single_cert(all(&read(format!("{name}.pem"))), key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Arc::new(config)
}
