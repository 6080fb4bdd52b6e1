//! The connection to a collector, and the meaning of its responses.
//!
//! An export is a POST in OTLP/HTTP, and a call of `Export` in OTLP/gRPC. An idle connection that
//! turns out to be closed is replaced, and is no failure.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER, TE, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::messages;
use crate::config::{OtlpProtocol, TracingSettings};
use crate::tls::{TlsClient, TlsTrouble};
use tidegate_core::failpoint;

const MAX_RESPONSE_BYTES: usize = 64 << 10;
const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// After these statuses the same export may be sent again.
const TEMPORARY: [StatusCode; 4] = [
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::BAD_GATEWAY,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];
/// The same in gRPC: cancelled, deadline exceeded, resource exhausted, aborted, out of range,
/// unavailable, data loss.
const TEMPORARY_CODES: [u16; 7] = [1, 4, 8, 10, 11, 14, 15];

pub(super) struct Collector {
    pub(super) settings: Arc<TracingSettings>,
    tls: Option<Result<TlsClient, TlsTrouble>>,
    connection: Option<CollectorConnection>,
}

struct CollectorConnection {
    sender: ExportSender,
    _driver: JoinSet<()>,
}

enum ExportSender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

pub(super) struct ExportError {
    pub(super) reason: String,
    pub(super) is_temporary: bool,
    /// The time until another attempt, if the collector names one.
    pub(super) retry_after: Option<Duration>,
    /// Whether the connection failed before a response came.
    is_disconnect: bool,
}

impl ExportError {
    fn disconnected(reason: impl Display) -> ExportError {
        ExportError {
            is_disconnect: true,
            ..ExportError::refused(reason.to_string(), true)
        }
    }

    fn refused(reason: String, is_temporary: bool) -> ExportError {
        ExportError {
            reason,
            is_temporary,
            retry_after: None,
            is_disconnect: false,
        }
    }

    pub(super) fn timed_out() -> ExportError {
        ExportError::refused("no answer within the timeout".to_owned(), true)
    }
}

impl Collector {
    pub(super) fn new(settings: Arc<TracingSettings>) -> Collector {
        failpoint!("otlp.collector", settings.service);
        let protocol: &[u8] = match settings.protocol {
            OtlpProtocol::Http => b"http/1.1",
            OtlpProtocol::Grpc => b"h2",
        };
        let secure = settings.endpoint.secure;
        let tls = secure.then(|| TlsClient::new(&settings.tls, &[protocol]));
        Collector {
            settings,
            tls,
            connection: None,
        }
    }

    /// Sends one export within the timeout, and returns the number of spans that the collector
    /// refused. After an error the connection is dropped.
    pub(super) async fn send(&mut self, body: &[u8]) -> Result<u64, ExportError> {
        let connection = self.connection.take();
        let exported = self.export(connection, body);
        let (connection, refused) = tokio::time::timeout(self.settings.timeout, exported)
            .await
            .unwrap_or_else(|_| Err(ExportError::timed_out()))?;
        self.connection = Some(connection);
        Ok(refused)
    }

    async fn export(
        &self,
        connection: Option<CollectorConnection>,
        body: &[u8],
    ) -> Result<(CollectorConnection, u64), ExportError> {
        if let Some(mut connection) = connection {
            match self.exchange(&mut connection, body).await {
                Err(error) if error.is_disconnect => {}
                exchanged => return exchanged.map(|refused| (connection, refused)),
            }
        }
        let mut connection = self.connect().await?;
        let refused = self.exchange(&mut connection, body).await?;
        Ok((connection, refused))
    }

    async fn connect(&self) -> Result<CollectorConnection, ExportError> {
        let to = &self.settings.endpoint;
        let stream = TcpStream::connect((to.host.as_str(), to.port)).await;
        let stream = stream.map_err(ExportError::disconnected)?;
        let _ = stream.set_nodelay(true);
        match &self.tls {
            None => self.handshake(stream).await,
            Some(Err(trouble)) => Err(ExportError::disconnected(trouble)),
            Some(Ok(tls)) => match tls.over(stream, &to.host).await {
                Ok(stream) => self.handshake(stream).await,
                Err(error) => Err(match TlsTrouble::within(&error) {
                    Some(trouble) => ExportError::disconnected(trouble),
                    None => ExportError::disconnected(error),
                }),
            },
        }
    }

    async fn handshake<S>(&self, stream: S) -> Result<CollectorConnection, ExportError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut driver = JoinSet::new();
        let stream = TokioIo::new(stream);
        // The sender reports errors of the connection, so its task ignores them.
        let sender = match self.settings.protocol {
            OtlpProtocol::Http => {
                let opened = http1::handshake(stream).await;
                let (sender, connection) = opened.map_err(ExportError::disconnected)?;
                driver.spawn(async move { drop(connection.await) });
                ExportSender::Http1(sender)
            }
            OtlpProtocol::Grpc => {
                let opened = http2::handshake(TokioExecutor::new(), stream).await;
                let (sender, connection) = opened.map_err(ExportError::disconnected)?;
                driver.spawn(async move { drop(connection.await) });
                ExportSender::Http2(sender)
            }
        };
        Ok(CollectorConnection {
            sender,
            _driver: driver,
        })
    }

    async fn exchange(
        &self,
        connection: &mut CollectorConnection,
        body: &[u8],
    ) -> Result<u64, ExportError> {
        let request = self.request(body)?;
        let response = match &mut connection.sender {
            ExportSender::Http1(sender) => {
                sender.ready().await.map_err(ExportError::disconnected)?;
                sender.send_request(request).await
            }
            ExportSender::Http2(sender) => {
                sender.ready().await.map_err(ExportError::disconnected)?;
                sender.send_request(request).await
            }
        };
        let response = response.map_err(ExportError::disconnected)?;
        read_response(response, self.settings.protocol).await
    }

    fn request(&self, body: &[u8]) -> Result<Request<Full<Bytes>>, ExportError> {
        let to = &self.settings.endpoint;
        let is_grpc = self.settings.protocol == OtlpProtocol::Grpc;
        let (target, media, body) = match is_grpc {
            true => (
                format!("{to}{EXPORT}"),
                "application/grpc",
                grpc_message(body),
            ),
            false => {
                let body = Bytes::copy_from_slice(body);
                (to.path.clone(), "application/x-protobuf", body)
            }
        };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        // The configuration has checked the URL.
        *request.uri_mut() = target
            .parse()
            .map_err(|_| ExportError::refused("no URL".to_owned(), false))?;
        let headers = request.headers_mut();
        headers.extend(self.settings.headers.iter().cloned());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
        let agent = concat!("tidegate/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        if is_grpc {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        } else if let Ok(host) = HeaderValue::try_from(to.authority()) {
            headers.insert(HOST, host);
        }
        Ok(request)
    }
}

/// Frames a message for gRPC: a zero for "not compressed", and the length.
fn grpc_message(body: &[u8]) -> Bytes {
    let mut message = BytesMut::with_capacity(body.len() + 5);
    message.put_u8(0);
    message.put_u32(u32::try_from(body.len()).unwrap_or(u32::MAX));
    message.put_slice(body);
    message.freeze()
}

/// The number of refused spans that a response reports, or its error.
async fn read_response(
    response: Response<Incoming>,
    protocol: OtlpProtocol,
) -> Result<u64, ExportError> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
    if !head.status.is_success() {
        let is_temporary = TEMPORARY.contains(&head.status);
        let reason = format!("it answers {}", head.status);
        return Err(ExportError {
            retry_after: retry_after(&head.headers).filter(|_| is_temporary),
            ..ExportError::refused(reason, is_temporary)
        });
    }
    let body = body.map_err(ExportError::disconnected)?;
    let trailers = body.trailers().cloned();
    let bytes = body.to_bytes();
    if protocol == OtlpProtocol::Http {
        return Ok(messages::refused_spans(&bytes));
    }
    let status = trailers.as_ref().and_then(grpc_status);
    match status.or(grpc_status(&head.headers)) {
        Some(0) => Ok(messages::refused_spans(bytes.get(5..).unwrap_or_default())),
        Some(status) => {
            let reason = format!("it answers gRPC status {status}");
            let is_temporary = TEMPORARY_CODES.contains(&status);
            Err(ExportError::refused(reason, is_temporary))
        }
        None => Err(ExportError::refused(
            "it does not speak gRPC".to_owned(),
            false,
        )),
    }
}

fn grpc_status(headers: &HeaderMap) -> Option<u16> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    text.parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::config;

    /// The result of an export that is answered with this status.
    async fn sent(status: &'static str) -> Result<u64, ExportError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await;
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let file = format!(
            "upstream = \"http://127.0.0.1:9\"\n[tracing]\nendpoint = \"http://{address}\"\n"
        );
        let (config, _) = config::parse("proxy.toml", &file, &|_| None).unwrap();
        let mut collector = Collector::new(config.tracing.unwrap());
        collector.send(b"").await
    }

    #[tokio::test]
    async fn each_status_of_success_is_one() {
        for status in ["200 OK", "202 Accepted"] {
            assert!(matches!(sent(status).await, Ok(0)), "{status}");
        }
        for (status, is_temporary) in [("400 Bad Request", false), ("503 Away", true)] {
            let error = sent(status).await.unwrap_err();
            assert_eq!(error.is_temporary, is_temporary, "{status}");
        }
    }
}
