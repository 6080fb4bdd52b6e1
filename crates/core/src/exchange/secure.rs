//! Redirects to `https`, and HSTS.

use http::header::{HeaderValue, STRICT_TRANSPORT_SECURITY};
use http::{Request, Response};

use super::downstream::Downstream;
use super::headers::{RequestFault, check_framing};
use super::rejection::Rejection;
use crate::config::{ServerSettings, TlsSettings};
use crate::request_head::{HeadError, Scheme};
use crate::route::template::escape_target;

/// `redirect` and `hsts` of `[tls]`, and `https_port` of `[server]`.
#[derive(Debug, Default)]
pub(super) struct Secure {
    /// The port that clients of plain connections are sent to.
    redirect: Option<u16>,
    /// The value of `Strict-Transport-Security`.
    hsts: Option<HeaderValue>,
}

impl Secure {
    pub(super) fn new(tls: Option<&TlsSettings>, server: &ServerSettings) -> Secure {
        let Some(settings) = tls else {
            return Secure {
                redirect: server.https_port,
                hsts: None,
            };
        };
        let hsts = settings
            .hsts
            .map(|age| HeaderValue::try_from(format!("max-age={}", age.as_secs())));
        Secure {
            redirect: settings.redirect.or(server.https_port),
            hsts: hsts.and_then(Result::ok),
        }
    }

    /// Refuses or redirects a request without TLS, as the settings say.
    pub(super) fn check<B>(
        &self,
        request: &Request<B>,
        downstream: &Downstream,
    ) -> Result<(), Rejection> {
        if downstream.arrival.tls.is_some() {
            return Ok(());
        }
        if downstream.arrival.misplaced {
            return Err(Rejection::HeadError(HeadError::WithoutTls));
        }
        match self.redirect {
            // A redirect would loop if a trusted proxy in front has spoken TLS with the client.
            Some(port) if downstream.scheme(request.headers()) == Scheme::Http => {
                Err(redirect(request, port))
            }
            _ => Ok(()),
        }
    }

    /// Adds HSTS to a response over TLS, unless the upstream has sent it.
    pub(super) fn mark<B>(&self, response: &mut Response<B>, downstream: &Downstream) {
        if downstream.arrival.tls.is_some()
            && let Some(hsts) = &self.hsts
        {
            let headers = response.headers_mut();
            headers
                .entry(STRICT_TRANSPORT_SECURITY)
                .or_insert_with(|| hsts.clone());
        }
    }
}

/// A redirect to the same resource at `https`.
fn redirect<B>(request: &Request<B>, port: u16) -> Rejection {
    let host = match check_framing(request) {
        Ok(host) if !host.is_empty() => host,
        Ok(_) => return Rejection::Request(RequestFault::Host),
        Err(fault) => return Rejection::Request(fault),
    };
    let port = match port {
        443 => String::new(),
        port => format!(":{port}"),
    };
    let path = request.uri().path_and_query().map(|path| path.as_str());
    let path = path.filter(|path| path.starts_with('/')).unwrap_or("/");
    let path = escape_target(path);
    HeaderValue::try_from(format!("https://{host}{port}{path}"))
        .map_or(Rejection::Request(RequestFault::Target), Rejection::TlsOnly)
}
