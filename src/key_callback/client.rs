//! The connections to the service, and one request on them.
//!
//! An idle connection that turns out to be closed is replaced, and is no failure. A redirect is not
//! followed: nobody else may get the key.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HOST, HeaderMap, HeaderValue, USER_AGENT};
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tidegate_core::exchange::key_callback::{CallbackFailure, KeyAnswer, KeyQuestion};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout_at;

use super::answer::read_answer;
use crate::config::KeyCallbackSettings;
use crate::telemetry::panics::lock;
use crate::tls::{TlsClient, TlsTrouble};

/// Connections at once. Other questions wait for one of them.
const MAX_CONNECTIONS: usize = 64;
const MAX_RESPONSE_BYTES: usize = 64 << 10;

pub(super) struct CallbackClient {
    settings: Arc<KeyCallbackSettings>,
    /// `None` for a service without TLS.
    tls: Option<Result<TlsClient, TlsTrouble>>,
    /// The headers of every question; `None` if the host cannot be one.
    headers: Option<HeaderMap>,
    /// Whether a failure of TLS was logged.
    has_told: AtomicBool,
    /// Whether an answer that cannot be used was logged.
    has_told_unusable: AtomicBool,
    permits: Semaphore,
    idle: Mutex<Vec<ServiceConnection>>,
}

struct ServiceConnection {
    sender: http1::SendRequest<Empty<Bytes>>,
    /// The connection ends when this is dropped.
    _driver: JoinSet<()>,
}

impl CallbackClient {
    /// Reads the authorities to trust, if the service has TLS.
    pub(super) fn new(settings: &Arc<KeyCallbackSettings>) -> CallbackClient {
        let secure = settings.endpoint.secure;
        CallbackClient {
            settings: Arc::clone(settings),
            tls: secure.then(|| TlsClient::new(&settings.tls, &[b"http/1.1".as_slice()])),
            headers: headers(settings),
            has_told: AtomicBool::new(false),
            has_told_unusable: AtomicBool::new(false),
            permits: Semaphore::new(MAX_CONNECTIONS),
            idle: Mutex::default(),
        }
    }

    pub(super) fn follows(&self, settings: &Arc<KeyCallbackSettings>) -> bool {
        Arc::ptr_eq(&self.settings, settings)
    }

    pub(super) async fn ask_service(&self, question: &KeyQuestion) -> KeyAnswer {
        self.ask_until(question.key(), question.deadline()).await
    }

    /// Asks about one key.
    pub(super) async fn ask_until(&self, key: &[u8], deadline: Instant) -> KeyAnswer {
        let bearer = [b"Bearer ".as_slice(), key].concat();
        let Ok(mut bearer) = HeaderValue::from_bytes(&bearer) else {
            // No client can send it in a header, and the service neither.
            return KeyAnswer::Unknown;
        };
        bearer.set_sensitive(true);
        let asking = self.ask_with(&bearer);
        match timeout_at(deadline.into(), asking).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(failure)) => KeyAnswer::Failed(failure),
            Err(_) => KeyAnswer::Failed(CallbackFailure::Timeout),
        }
    }

    async fn ask_with(&self, bearer: &HeaderValue) -> Result<KeyAnswer, CallbackFailure> {
        let _permit = self.permits.acquire().await;
        let kept = lock(&self.idle).pop();
        if let Some(mut kept) = kept
            && let Ok(response) = self.send(&mut kept, bearer).await
        {
            return self.read(kept, response).await;
        }
        let mut fresh = self.connect().await?;
        let response = self.send(&mut fresh, bearer).await?;
        self.read(fresh, response).await
    }

    async fn connect(&self) -> Result<ServiceConnection, CallbackFailure> {
        let to = &self.settings.endpoint;
        let stream = TcpStream::connect((to.host.as_str(), to.port)).await;
        let stream = stream.map_err(|_| CallbackFailure::Unreachable)?;
        let _ = stream.set_nodelay(true);
        match &self.tls {
            None => handshake(stream).await,
            Some(Err(error)) => Err(self.untrusted(error)),
            Some(Ok(tls)) => match tls.over(stream, &to.host).await {
                Ok(stream) => handshake(stream).await,
                Err(error) => Err(self.untrusted(&error)),
            },
        }
    }

    /// Logs the first failure of TLS: it lasts until somebody changes a certificate.
    fn untrusted(&self, error: &(dyn Error + 'static)) -> CallbackFailure {
        let error =
            TlsTrouble::within(error).map_or_else(|| error.to_string(), |why| why.to_string());
        if !self.has_told.swap(true, Ordering::Relaxed) {
            let service = &self.settings.endpoint;
            tracing::warn!(
                callback = %service,
                error,
                "api keys: the TLS handshake with the callback failed; `ca` in \
                 [api_key.known.tls] names its authority"
            );
        }
        CallbackFailure::Untrusted
    }

    async fn send(
        &self,
        connection: &mut ServiceConnection,
        bearer: &HeaderValue,
    ) -> Result<Response<Incoming>, CallbackFailure> {
        let unusable = CallbackFailure::Unusable;
        let mut request = Request::new(Empty::new());
        // The configuration has checked the URL.
        *request.uri_mut() = self.settings.endpoint.path.parse().map_err(|_| unusable)?;
        let headers = self.headers.clone().ok_or(unusable)?;
        *request.headers_mut() = headers;
        request.headers_mut().insert(AUTHORIZATION, bearer.clone());
        let sender = &mut connection.sender;
        let unreachable = |_| CallbackFailure::Unreachable;
        sender.ready().await.map_err(unreachable)?;
        sender.send_request(request).await.map_err(unreachable)
    }

    /// Reads a response to its end, and keeps the connection.
    async fn read(
        &self,
        connection: ServiceConnection,
        response: Response<Incoming>,
    ) -> Result<KeyAnswer, CallbackFailure> {
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
        let body = body.map_err(|error| match error.is::<LengthLimitError>() {
            true => CallbackFailure::Unusable,
            false => CallbackFailure::Unreachable,
        });
        let body = body?.to_bytes();
        if !connection.sender.is_closed() {
            lock(&self.idle).push(connection);
        }
        let answer = read_answer(head.status, &body);
        let is_unusable = answer == KeyAnswer::Failed(CallbackFailure::Unusable);
        if is_unusable && !self.has_told_unusable.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                callback = %self.settings.endpoint,
                status = head.status.as_u16(),
                "api keys: the callback answered neither 200 with a client, nor 401, nor 404"
            );
        }
        Ok(answer)
    }
}

async fn handshake<S>(stream: S) -> Result<ServiceConnection, CallbackFailure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let opened = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = opened.map_err(|_| CallbackFailure::Unreachable)?;
    let mut driver = JoinSet::new();
    // The sender reports errors of the connection, so its task ignores them.
    driver.spawn(async move { drop(connection.await) });
    Ok(ServiceConnection {
        sender,
        _driver: driver,
    })
}

fn headers(settings: &KeyCallbackSettings) -> Option<HeaderMap> {
    let authority = settings.endpoint.authority();
    let usual = if settings.endpoint.secure {
        ":443"
    } else {
        ":80"
    };
    let host = authority.strip_suffix(usual).unwrap_or(&authority);
    let agent = concat!("tidegate/", env!("CARGO_PKG_VERSION"));
    let mut headers = HeaderMap::new();
    headers.insert(HOST, HeaderValue::try_from(host).ok()?);
    headers.insert(USER_AGENT, HeaderValue::from_static(agent));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    Some(headers)
}
