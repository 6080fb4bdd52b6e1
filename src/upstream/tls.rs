//! TLS to one upstream's servers: what is offered to them, and which protocol they chose.

use tokio_rustls::TlsStream;

use super::error::ConnectError;
use crate::config::{ServerAddress, UpstreamServer, UpstreamSettings};
use crate::tls::{self, TlsTrouble};
use crate::wire::Stream;

const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// What connections to `https` servers are made with.
#[derive(Debug)]
pub(super) struct Tls(Result<Offers, TlsTrouble>);

#[derive(Debug)]
struct Offers {
    /// The server may choose HTTP/2.
    either: tls::TlsClient,
    /// It may not: for tunnels, or because the file says so.
    http1: tls::TlsClient,
}

impl Tls {
    /// For upstreams without such servers nothing is read and made.
    pub(super) fn of(settings: &UpstreamSettings) -> Option<Tls> {
        let https = |server: &UpstreamServer| matches!(server.address, ServerAddress::Https(..));
        if !settings.servers.iter().any(https) {
            return None;
        }
        let either: &[&[u8]] = match settings.http2 {
            true => &[HTTP2, HTTP1],
            false => &[HTTP1],
        };
        let offers = tls::TlsClient::new(&settings.tls, either).map(|either| Offers {
            http1: either.offering(&[HTTP1]),
            either,
        });
        if let Err(trouble) = &offers {
            tracing::warn!(upstream = &*settings.name, %trouble, "no TLS to this upstream");
        }
        Some(Tls(offers))
    }

    /// Shakes hands with `host`. Whether it speaks HTTP/2 from here on.
    pub(super) async fn over(
        &self,
        stream: Stream,
        host: &str,
        only_http1: bool,
    ) -> Result<(Stream, bool), ConnectError> {
        let offers = self
            .0
            .as_ref()
            .map_err(|trouble| ConnectError::Tls(*trouble))?;
        let offer = if only_http1 {
            &offers.http1
        } else {
            &offers.either
        };
        let secure = offer.over(stream, host).await.map_err(|error| {
            tracing::debug!(%error, host, "upstream: no TLS");
            match TlsTrouble::within(&error) {
                Some(trouble) => ConnectError::Tls(trouble),
                None => ConnectError::Failed(error),
            }
        })?;
        let http2 = secure.get_ref().1.alpn_protocol() == Some(HTTP2);
        let stream = Stream::Tls(Box::new(TlsStream::Client(secure)));
        Ok((stream, http2))
    }
}
