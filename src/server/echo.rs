//! A small HTTP server that answers with the request: the upstream of `tidegate demo`, and the
//! settings that put it in place.
//!
//! So a demo needs no other program. It must not be used for anything else, because it has no
//! limits beyond those of hyper.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::config::{AdminSettings, Config, LogTarget, ServerAddress, StoreKind};
use crate::telemetry::panics::spawn_thread;

/// Bytes that are read of a request's body, at most.
const BODY_BYTES: usize = 1 << 20;

/// What a demo changes in each configuration that it loads.
#[derive(Clone, Debug)]
pub struct DemoSettings {
    /// The echo server, in place of every server.
    pub upstream: SocketAddr,
    /// The address of the admin, unless the configuration names one.
    pub admin: SocketAddr,
    /// The access log, unless the configuration names a file or switches it off.
    pub access_log: Option<PathBuf>,
}

impl DemoSettings {
    pub fn apply(&self, config: &mut Config) {
        config.store.kind = StoreKind::Memory;
        for settings in &mut config.upstreams {
            let server = ServerAddress::Http(self.upstream.ip().to_string(), self.upstream.port());
            settings.servers = vec![server.into()];
        }
        config.admin.get_or_insert_with(|| AdminSettings {
            address: self.admin,
            token: None,
            hosts: Vec::new(),
            is_from_file: false,
        });
        let on_terminal = matches!(config.log.access, LogTarget::Stdout | LogTarget::Stderr);
        if let (Some(file), true) = (&self.access_log, on_terminal) {
            config.log.access = LogTarget::File(file.clone());
            // `tidegate replay` of the demo's log must know all requests.
            config.log.sample_allowed = 1.0;
        }
    }
}

/// Starts the echo server on a free loopback port, on a thread of its own.
///
/// # Errors
/// The port cannot be bound, or the thread cannot be started.
pub fn start() -> io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    spawn_thread("echo", async move || {
        if let Ok(listener) = TcpListener::from_std(listener) {
            serve(listener).await;
        }
    })?;
    Ok(address)
}

async fn serve(listener: TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(answer));
            // The client may have left.
            let _ = connection.await;
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut text = format!("{} {}\n", request.method(), request.uri());
    for (name, value) in request.headers() {
        let value = String::from_utf8_lossy(value.as_bytes());
        text += &format!("{name}: {value}\n");
    }
    let body = Limited::new(request.into_body(), BODY_BYTES).collect();
    let bytes = body.await.map_or(0, |body| body.to_bytes().len());
    let end = "bytes of body. This is tidegate's built-in echo upstream.";
    text += &format!("\n{bytes} {end}\n");
    let mut response = Response::new(Full::from(text));
    let media = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, media);
    Ok(response)
}
