//! A collector: one connection to it, made anew when it has ended, and what its answers mean.
//!
//! OTLP/HTTP is a POST for each export, OTLP/gRPC one call of `Export`. An idle connection that
//! turns out to be closed is no failure.

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

/// Bytes of an answer that are read at most.
const MOST_ANSWER: usize = 64 << 10;
/// What is called in gRPC.
const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// Answers after which the same may be sent again.
const PASSING: [StatusCode; 4] = [
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::BAD_GATEWAY,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];
/// The same in gRPC: cancelled, deadline exceeded, resource exhausted, aborted, out of range,
/// unavailable, data loss.
const PASSING_CODES: [u16; 7] = [1, 4, 8, 10, 11, 14, 15];

/// See the file's head.
pub(super) struct Collector {
    pub(super) settings: Arc<TracingSettings>,
    tls: Option<Result<TlsClient, TlsTrouble>>,
    link: Option<Link>,
}

/// A connection, and the task that it lives by.
struct Link {
    sender: Sender,
    _task: JoinSet<()>,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// An export that was taken.
pub(super) struct Sent {
    /// Spans that were not.
    pub(super) refused: u64,
}

/// One that was not.
pub(super) struct Trouble {
    pub(super) why: String,
    /// Whether another attempt may go better,
    pub(super) may_pass: bool,
    /// and when, if the collector says so.
    pub(super) rest: Option<Duration>,
    /// Whether the connection had ended before there was an answer.
    is_lost: bool,
}

impl Trouble {
    fn lost(why: impl Display) -> Trouble {
        Trouble {
            why: why.to_string(),
            may_pass: true,
            rest: None,
            is_lost: true,
        }
    }

    fn refused(why: String, may_pass: bool) -> Trouble {
        Trouble {
            why,
            may_pass,
            rest: None,
            is_lost: false,
        }
    }

    pub(super) fn timed_out() -> Trouble {
        Trouble::refused("no answer within the timeout".to_owned(), true)
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
            link: None,
        }
    }

    /// Sends one export, within the timeout.
    pub(super) async fn send(&mut self, body: &[u8]) -> Result<Sent, Trouble> {
        let within = self.settings.timeout;
        let sent = match tokio::time::timeout(within, self.try_to_send(body)).await {
            Ok(sent) => sent,
            Err(_) => Err(Trouble::timed_out()),
        };
        if sent.is_err() {
            // Whatever was wrong with it.
            self.link = None;
        }
        sent
    }

    async fn try_to_send(&mut self, body: &[u8]) -> Result<Sent, Trouble> {
        if let Some(mut link) = self.link.take() {
            match self.exchange(&mut link, body).await {
                Err(trouble) if trouble.is_lost => {}
                other => {
                    self.link = Some(link);
                    return other;
                }
            }
        }
        let mut link = self.connect().await?;
        let sent = self.exchange(&mut link, body).await;
        self.link = Some(link);
        sent
    }

    async fn connect(&self) -> Result<Link, Trouble> {
        let to = &self.settings.endpoint;
        let stream = TcpStream::connect((to.host.as_str(), to.port)).await;
        let stream = stream.map_err(Trouble::lost)?;
        let _ = stream.set_nodelay(true);
        match &self.tls {
            None => self.open(stream).await,
            Some(Err(trouble)) => Err(Trouble::lost(trouble)),
            Some(Ok(tls)) => match tls.over(stream, &to.host).await {
                Ok(stream) => self.open(stream).await,
                Err(error) => Err(match TlsTrouble::within(&error) {
                    Some(trouble) => Trouble::lost(trouble),
                    None => Trouble::lost(error),
                }),
            },
        }
    }

    async fn open<S>(&self, stream: S) -> Result<Link, Trouble>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut task = JoinSet::new();
        let stream = TokioIo::new(stream);
        // What ends a connection is seen by whoever sends on it.
        let sender = match self.settings.protocol {
            OtlpProtocol::Http => {
                let opened = http1::handshake(stream).await;
                let (sender, connection) = opened.map_err(Trouble::lost)?;
                task.spawn(async move { drop(connection.await) });
                Sender::Http1(sender)
            }
            OtlpProtocol::Grpc => {
                let opened = http2::handshake(TokioExecutor::new(), stream).await;
                let (sender, connection) = opened.map_err(Trouble::lost)?;
                task.spawn(async move { drop(connection.await) });
                Sender::Http2(sender)
            }
        };
        Ok(Link {
            sender,
            _task: task,
        })
    }

    async fn exchange(&self, link: &mut Link, body: &[u8]) -> Result<Sent, Trouble> {
        let request = self.request(body)?;
        let answer = match &mut link.sender {
            Sender::Http1(sender) => {
                sender.ready().await.map_err(Trouble::lost)?;
                sender.send_request(request).await
            }
            Sender::Http2(sender) => {
                sender.ready().await.map_err(Trouble::lost)?;
                sender.send_request(request).await
            }
        };
        let answer = answer.map_err(Trouble::lost)?;
        read(answer, self.settings.protocol).await
    }

    fn request(&self, body: &[u8]) -> Result<Request<Full<Bytes>>, Trouble> {
        let (to, is_grpc) = (
            &self.settings.endpoint,
            self.settings.protocol == OtlpProtocol::Grpc,
        );
        let (target, media, body) = match is_grpc {
            true => (format!("{to}{EXPORT}"), "application/grpc", framed(body)),
            false => {
                let body = Bytes::copy_from_slice(body);
                (to.path.clone(), "application/x-protobuf", body)
            }
        };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        // The settings have been checked.
        *request.uri_mut() = target
            .parse()
            .map_err(|_| Trouble::refused("no URL".to_owned(), false))?;
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

/// A message of gRPC: not compressed, and so long.
fn framed(body: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(body.len() + 5);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(body.len()).unwrap_or(u32::MAX));
    framed.put_slice(body);
    framed.freeze()
}

/// What an answer means.
async fn read(answer: Response<Incoming>, protocol: OtlpProtocol) -> Result<Sent, Trouble> {
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, MOST_ANSWER).collect().await;
    if head.status != StatusCode::OK {
        let passes = PASSING.contains(&head.status);
        let trouble = Trouble::refused(format!("it answers {}", head.status), passes);
        return Err(Trouble {
            rest: seconds(&head.headers).filter(|_| passes),
            ..trouble
        });
    }
    let body = body.map_err(Trouble::lost)?;
    let trailers = body.trailers().cloned();
    let bytes = body.to_bytes();
    if protocol == OtlpProtocol::Http {
        return Ok(Sent {
            refused: messages::refused(&bytes),
        });
    }
    let code = trailers.as_ref().and_then(code).or(code(&head.headers));
    match code {
        Some(0) => Ok(Sent {
            refused: messages::refused(bytes.get(5..).unwrap_or_default()),
        }),
        Some(code) => {
            let passes = PASSING_CODES.contains(&code);
            Err(Trouble::refused(
                format!("it answers gRPC status {code}"),
                passes,
            ))
        }
        None => Err(Trouble::refused("it does not speak gRPC".to_owned(), false)),
    }
}

fn code(headers: &HeaderMap) -> Option<u16> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

fn seconds(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    text.parse().ok().map(Duration::from_secs)
}
