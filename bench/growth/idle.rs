//! What a connection takes that has had its answer and waits: plain, over TLS, and of HTTP/2.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::Setting;
use super::client;
use super::proxy::Proxy;
use crate::support::free_port;
use crate::{page, process, upstream};

/// Those of the first step are there when counting begins: what the first connections make the
/// process keep is no connection's.
const STEPS: (usize, usize) = (500, 5000);
/// Until connections are parked, and what they let go of is back with the system.
const SETTLE: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Tls,
    Http2,
    Http2OverTls,
}

const KINDS: [(Kind, &str); 4] = [
    (Kind::Plain, "HTTP/1.1"),
    (Kind::Tls, "HTTP/1.1 over TLS"),
    (Kind::Http2, "HTTP/2"),
    (Kind::Http2OverTls, "HTTP/2 over TLS"),
];

pub fn measure(setting: &Setting) -> String {
    let (backend, _upstream) = upstream::start(&setting.stage, setting.cores.1);
    let rows: Vec<_> = KINDS
        .iter()
        .map(|(kind, name)| vec![(*name).to_owned(), bytes(setting, backend, *kind)])
        .collect();
    page::table(&["an idle connection", "bytes"], &rows)
}

fn bytes(setting: &Setting, backend: SocketAddr, kind: Kind) -> String {
    let folder = setting.stage.folder("certificate");
    let roots = certificate(&folder);
    let secure = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let proxy = Proxy::start(
        setting,
        &format!(
            "upstream = \"http://{backend}\"\n\
             [server]\nworkers = 1\nmax_connections = 30000\nidle_timeout = \"300s\"\n\
             [tls]\nlisten = \"{secure}\"\n\
             [[tls.certificates]]\ncert = \"{folder}/cert.pem\"\nkey = \"{folder}/key.pem\"\n\
             [[route]]\npath = \"/*\"\nlimits = [\"100000/s\"]\n",
            folder = folder.display(),
        ),
    );
    let address = match kind {
        Kind::Plain | Kind::Http2 => proxy.address,
        Kind::Tls | Kind::Http2OverTls => secure,
    };
    let (few, many) = setting.or_quick(STEPS, (50, 250));
    let pids = proxy.server.pids();
    let grown = client::on_thread(setting.cores.1, move || async move {
        let connector = connector(roots, kind);
        let mut open = Vec::new();
        for _ in 0..few {
            open.push(served(address, kind, &connector).await);
        }
        tokio::time::sleep(SETTLE).await;
        let before = process::memory(&pids).rss_kib;
        for _ in few..many {
            open.push(served(address, kind, &connector).await);
        }
        tokio::time::sleep(SETTLE).await;
        process::memory(&pids).rss_kib.saturating_sub(before)
    });
    format!("{:.0}", grown as f64 * 1024.0 / (many - few) as f64)
}

/// What keeps a connection open as long as it is kept.
#[expect(dead_code, reason = "they are held, not used")]
enum Open {
    Plain(tokio::net::TcpStream),
    Tls(Box<tokio_rustls::client::TlsStream<tokio::net::TcpStream>>),
    Http2(hyper::client::conn::http2::SendRequest<Empty<Bytes>>),
}

/// A connection that has had one answer.
async fn served(address: SocketAddr, kind: Kind, connector: &TlsConnector) -> Open {
    let stream = client::connect(address, 1).await.pop().unwrap();
    if matches!(kind, Kind::Plain) {
        return Open::Plain(asked(stream).await);
    }
    if matches!(kind, Kind::Http2) {
        return Open::Http2(asked_http2(stream).await);
    }
    let name = ServerName::try_from("bench.test").unwrap();
    let stream = connector.connect(name, stream).await.unwrap();
    match kind {
        Kind::Http2OverTls => Open::Http2(asked_http2(stream).await),
        _ => Open::Tls(Box::new(asked(stream).await)),
    }
}

async fn asked<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> S {
    let request = b"GET / HTTP/1.1\r\nHost: bench.test\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = [0; 2048];
    let read = stream.read(&mut answer).await.unwrap();
    assert!(answer[..read].starts_with(b"HTTP/1.1 200 "));
    stream
}

async fn asked_http2<S>(stream: S) -> hyper::client::conn::http2::SendRequest<Empty<Bytes>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(stream);
    let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await;
    let (mut sender, connection) = shaken.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get("http://bench.test/");
    let request = request.body(Empty::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let _ = response.into_body().collect().await;
    sender
}

fn connector(roots: RootCertStore, kind: Kind) -> TlsConnector {
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    if kind == Kind::Http2OverTls {
        config.alpn_protocols = vec![b"h2".to_vec()];
    }
    TlsConnector::from(Arc::new(config))
}

/// Writes a certificate for `bench.test` and its key there; who vouches for it.
fn certificate(folder: &Path) -> RootCertStore {
    let made = rcgen::generate_simple_self_signed(["bench.test".to_owned()]).unwrap();
    std::fs::write(folder.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    roots
}
