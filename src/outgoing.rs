//! Requests that the proxy sends for itself: a GET of a small document over HTTP/1.1, each on a
//! connection of its own.
//!
//! A certificate is always verified. A redirect is followed within the same server only: another
//! server has not been named by the operator.

use std::fmt;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::config::{ClientTls, Endpoint};
use crate::tls::{TlsClient, TlsTrouble};

/// Redirects of one request, at most.
const MAX_REDIRECTS: usize = 3;

/// The bounds of one request, redirects included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingBounds {
    pub(crate) within: Duration,
    /// Bytes of the body, at most.
    pub(crate) most_bytes: usize,
}

/// A client for one server.
pub(crate) struct OutgoingClient {
    endpoint: Endpoint,
    /// `None` for a server without TLS.
    tls: Option<Result<TlsClient, TlsTrouble>>,
}

/// The response to one request.
#[derive(Debug)]
pub(crate) struct OutgoingResponse {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

/// Why there is no response, as a text for operators. It has nothing of the response.
#[derive(Debug)]
pub(crate) struct OutgoingError(pub(crate) String);

impl fmt::Display for OutgoingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OutgoingError {}

fn failed(why: impl fmt::Display) -> OutgoingError {
    OutgoingError(why.to_string())
}

impl OutgoingClient {
    /// Reads the authorities to trust. The server is that of `endpoint`.
    pub(crate) fn new(endpoint: &Endpoint, tls: &ClientTls) -> OutgoingClient {
        let tls = endpoint
            .secure
            .then(|| TlsClient::new(tls, &[b"http/1.1".as_slice()]));
        OutgoingClient {
            endpoint: endpoint.clone(),
            tls,
        }
    }

    /// Gets the document at the path of the endpoint. `accept` is the media type that is asked for,
    /// `more` are further headers.
    ///
    /// # Errors
    /// The server cannot be reached, is another one, is too slow, or answers too much.
    pub(crate) async fn get(
        &self,
        accept: HeaderValue,
        more: &[(HeaderName, HeaderValue)],
        bounds: OutgoingBounds,
    ) -> Result<OutgoingResponse, OutgoingError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept);
        let agent = concat!("tidegate/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        let host = HeaderValue::try_from(self.host()).map_err(failed)?;
        headers.insert(HOST, host);
        headers.extend(more.iter().cloned());
        let getting = timeout(bounds.within, self.follow(&headers, bounds.most_bytes));
        getting.await.unwrap_or_else(|_| {
            let within = bounds.within;
            Err(failed(format_args!("no answer within {within:?}")))
        })
    }

    /// The value of `Host`: the port is left out where it is the usual one.
    fn host(&self) -> String {
        let authority = self.endpoint.authority();
        let usual = if self.endpoint.secure { ":443" } else { ":80" };
        match authority.strip_suffix(usual) {
            Some(host) => host.to_owned(),
            None => authority,
        }
    }

    /// Asks, and follows redirects.
    async fn follow(
        &self,
        headers: &HeaderMap,
        most_bytes: usize,
    ) -> Result<OutgoingResponse, OutgoingError> {
        let mut path = self.endpoint.path.clone();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = Request::new(Empty::<Bytes>::new());
            *request.uri_mut() = path.parse().map_err(failed)?;
            request.headers_mut().clone_from(headers);
            let response = self.send_once(request, most_bytes).await?;
            match response {
                Asked::Response(response) => return Ok(response),
                Asked::Redirect(location) => path = self.path_of(&location)?,
            }
        }
        Err(failed(format_args!("more than {MAX_REDIRECTS} redirects")))
    }

    /// The path of a redirect that stays with this server.
    fn path_of(&self, location: &HeaderValue) -> Result<String, OutgoingError> {
        let unusable = || failed("it redirects to something that is no URL");
        let text = location.to_str().map_err(|_| unusable())?;
        let uri: Uri = text.parse().map_err(|_| unusable())?;
        let path = uri.path_and_query().ok_or_else(unusable)?.to_string();
        let Some(scheme) = uri.scheme_str() else {
            // `//b.example/k` names another server (RFC 3986, section 4.2).
            let is_path = path.starts_with('/') && !path.starts_with("//");
            return is_path.then_some(path).ok_or_else(unusable);
        };
        let (own, usual) = match self.endpoint.secure {
            true => ("https", 443),
            false => ("http", 80),
        };
        let host = uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_here = scheme == own
            && host.eq_ignore_ascii_case(&self.endpoint.host)
            && uri.port_u16().unwrap_or(usual) == self.endpoint.port;
        match is_here {
            true => Ok(path),
            false => Err(failed("it redirects to another server")),
        }
    }

    async fn send_once(
        &self,
        request: Request<Empty<Bytes>>,
        most_bytes: usize,
    ) -> Result<Asked, OutgoingError> {
        let to = &self.endpoint;
        let stream = TcpStream::connect((to.host.as_str(), to.port)).await;
        let stream = stream.map_err(failed)?;
        match &self.tls {
            None => exchange(stream, request, most_bytes).await,
            Some(Err(trouble)) => Err(failed(trouble)),
            Some(Ok(tls)) => {
                let stream = tls.over(stream, &to.host).await.map_err(tls_failed)?;
                exchange(stream, request, most_bytes).await
            }
        }
    }
}

fn tls_failed(error: io::Error) -> OutgoingError {
    match TlsTrouble::within(&error) {
        Some(trouble) => failed(trouble),
        None => failed(error),
    }
}

enum Asked {
    Response(OutgoingResponse),
    Redirect(HeaderValue),
}

/// Sends one request on a new connection, and closes it after the response.
async fn exchange<S>(
    stream: S,
    request: Request<Empty<Bytes>>,
    most_bytes: usize,
) -> Result<Asked, OutgoingError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    // The end of this function aborts the task. The sender reports errors of the connection.
    let mut driver = JoinSet::new();
    driver.spawn(async move { drop(connection.await) });
    let response = sender.send_request(request).await.map_err(failed)?;
    let (head, body) = response.into_parts();
    if head.status.is_redirection()
        && head.status != StatusCode::NOT_MODIFIED
        && let Some(location) = head.headers.get(LOCATION)
    {
        return Ok(Asked::Redirect(location.clone()));
    }
    let body = Limited::new(body, most_bytes).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => failed(format_args!("its answer has more than {most_bytes} bytes")),
        false => failed(error),
    })?;
    Ok(Asked::Response(OutgoingResponse {
        status: head.status,
        body: body.to_bytes(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(secure: bool, host: &str, port: u16) -> OutgoingClient {
        OutgoingClient {
            endpoint: Endpoint {
                secure,
                host: host.to_owned(),
                port,
                path: "/keys".to_owned(),
            },
            tls: None,
        }
    }

    #[test]
    fn the_usual_port_is_not_in_the_host() {
        assert_eq!(client(true, "a.example", 443).host(), "a.example");
        assert_eq!(client(false, "a.example", 443).host(), "a.example:443");
        assert_eq!(client(false, "::1", 80).host(), "[::1]");
    }

    #[test]
    fn a_redirect_stays_with_its_server() {
        let at = |client: &OutgoingClient, location: &'static str| {
            client.path_of(&HeaderValue::from_static(location)).ok()
        };
        let some = |path: &str| Some(path.to_owned());
        let secure = client(true, "a.example", 443);
        assert_eq!(at(&secure, "/k?v=1"), some("/k?v=1"));
        assert_eq!(at(&secure, "https://A.example/k"), some("/k"));
        assert_eq!(at(&secure, "https://a.example:443/k"), some("/k"));
        for other in [
            "http://a.example/k",
            "https://a.example:444/k",
            "https://b.example/k",
            "https://a.example.b.example/k",
            "//b.example/k",
            "k",
            "",
        ] {
            assert_eq!(at(&secure, other), None, "{other}");
        }
        let local = client(false, "::1", 81);
        assert_eq!(at(&local, "http://[::1]:81/k"), some("/k"));
        assert_eq!(at(&local, "http://[::1]/k"), None);
    }
}
