//! Checks of readable heads. Pure. A head that two readers could understand differently must never
//! pass.

use std::borrow::Cow;

use http::header::{AUTHORIZATION, CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version};
use smallvec::SmallVec;

use crate::route::host_of;

/// Why a readable head is refused. The client is at fault, except for a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFault {
    /// `CONNECT` has another meaning at a gateway, and `TRACE` would reveal added headers.
    Method,
    /// A target that is neither a path nor an `http` URL (nor `*` with `OPTIONS`).
    Target,
    /// `Host` is missing, repeated or malformed.
    Host,
    /// `Host` and `:authority` differ.
    TwoHosts,
    /// It is malformed, or does not end in one `chunked`.
    TransferEncoding,
    /// More than one line, of which readers could choose different ones.
    Authorization,
    /// A transfer coding other than `chunked` (RFC 9112 section 6.1).
    UnknownCoding,
    /// A Content-Length without a number.
    Length,
    /// An expectation other than `100-continue`.
    Expect,
    /// `Connection` has too many options.
    ConnectionOptions,
    /// The upstream sends requests back to this proxy.
    Loop,
}

impl RequestFault {
    /// The status for the client, and a sentence.
    pub(crate) fn message(self) -> (StatusCode, &'static str) {
        const BAD: StatusCode = StatusCode::BAD_REQUEST;
        match self {
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, "this method is not served"),
            Self::Target => (BAD, "the request target has a form that is not served"),
            Self::Host => (BAD, "the Host header is missing, repeated or malformed"),
            Self::TwoHosts => (BAD, "the Host header and the request target differ"),
            Self::TransferEncoding => (BAD, "the Transfer-Encoding header is malformed"),
            Self::UnknownCoding => (
                StatusCode::NOT_IMPLEMENTED,
                "only the transfer coding chunked is understood",
            ),
            Self::Length => (BAD, "the Content-Length header is malformed"),
            Self::Authorization => (BAD, "the request has more than one Authorization header"),
            Self::Expect => (
                StatusCode::EXPECTATION_FAILED,
                "the only expectation understood is 100-continue",
            ),
            Self::ConnectionOptions => (BAD, "the Connection header has too many options"),
            Self::Loop => (
                StatusCode::LOOP_DETECTED,
                "the request came back to this proxy: requests go in a loop",
            ),
        }
    }
}

/// Checks the head, and returns its host as [`host_of`] spells it. The host is empty if HTTP/1.0
/// names none.
pub fn check_framing<B>(request: &Request<B>) -> Result<Cow<'_, str>, RequestFault> {
    match *request.method() {
        Method::CONNECT if !is_host_and_port(request.uri()) => return Err(RequestFault::Target),
        Method::CONNECT | Method::TRACE => return Err(RequestFault::Method),
        _ => {}
    }
    let mut host = None;
    let mut authorized = false;
    let mut coding = None;
    for (name, value) in request.headers() {
        match *name {
            HOST if host.is_some() => return Err(RequestFault::Host),
            HOST => host = Some(value.to_str().map_err(|_| RequestFault::Host)?),
            TRANSFER_ENCODING => coding = Some(check_coding(value.as_bytes(), coding)),
            CONTENT_LENGTH if value.is_empty() => return Err(RequestFault::Length),
            AUTHORIZATION if authorized => return Err(RequestFault::Authorization),
            AUTHORIZATION => authorized = true,
            EXPECT if !value.as_bytes().eq_ignore_ascii_case(b"100-continue") => {
                return Err(RequestFault::Expect);
            }
            _ => {}
        }
    }
    coding.unwrap_or(Ok(()))?;
    let target = target_authority(request.method(), request.uri())?;
    match (host, target) {
        (Some(host), None) => host_of(host).map_err(|_| RequestFault::Host),
        (Some(host), Some(target)) if request.version() >= Version::HTTP_2 => {
            same_host(host, target, request.uri())
        }
        // The target wins (RFC 9112 section 3.2.2), but `Host` must be a host.
        (Some(host), Some(target)) => match host_of(host) {
            Ok(_) => host_of(target).map_err(|_| RequestFault::Target),
            Err(_) => Err(RequestFault::Host),
        },
        // HTTP/2 has the target's authority instead.
        (None, Some(target)) if request.version() >= Version::HTTP_2 => {
            host_of(target).map_err(|_| RequestFault::Target)
        }
        (None, _) if request.version() != Version::HTTP_10 => Err(RequestFault::Host),
        (None, Some(target)) => host_of(target).map_err(|_| RequestFault::Target),
        (None, None) => Ok(Cow::Borrowed("")),
    }
}

/// Copies the host of an absolute target into `Host`: over HTTP/1 the target wins (RFC 9112 section
/// 3.2.2). A malformed `Host` stays, so that the head is refused for it.
pub fn prefer_target<B>(request: &mut Request<B>) {
    if request.uri().authority().is_some() && request.version() < Version::HTTP_2 {
        replace_host(request);
    }
}

#[cold]
fn replace_host<B>(request: &mut Request<B>) {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = hosts.next().and_then(|host| host.to_str().ok());
    let is_host = host.is_some_and(|host| host_of(host).is_ok());
    if !is_host || hosts.next().is_some() {
        return;
    }
    let authority = request.uri().authority().map(|target| target.as_str());
    if let Some(Ok(host)) = authority.map(HeaderValue::try_from) {
        request.headers_mut().insert(HOST, host);
    }
}

/// Checks a line of Transfer-Encoding. `before` is the result of the lines before it.
pub fn check_coding(
    line: &[u8],
    before: Option<Result<(), RequestFault>>,
) -> Result<(), RequestFault> {
    let mut checked = before;
    for coding in line.split(|&byte| byte == b',') {
        let name = coding.trim_ascii();
        let is_chunked = name.eq_ignore_ascii_case(b"chunked");
        checked = Some(match checked {
            // Malformed, or chunked is not the last one.
            Some(Ok(()) | Err(RequestFault::TransferEncoding)) => {
                Err(RequestFault::TransferEncoding)
            }
            None if is_chunked => Ok(()),
            _ if is_chunked || is_coding(name) => Err(RequestFault::UnknownCoding),
            _ => Err(RequestFault::TransferEncoding),
        });
    }
    checked.unwrap_or(Err(RequestFault::TransferEncoding))
}

/// Whether this is a transfer coding, which may have parameters.
fn is_coding(text: &[u8]) -> bool {
    let name = text.split(|&byte| byte == b';').next().unwrap_or_default();
    let name = name.trim_ascii();
    let has_parameters = name.len() < text.len();
    let is_token = !name.is_empty() && name.iter().all(|&byte| is_token_byte(byte));
    // `chunked` has no parameters.
    is_token && !(has_parameters && name.eq_ignore_ascii_case(b"chunked"))
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The authority in a target of absolute form; `None` for the usual form.
fn target_authority<'r>(method: &Method, uri: &'r Uri) -> Result<Option<&'r str>, RequestFault> {
    match (uri.scheme_str(), uri.authority()) {
        (None, None) if uri.path().starts_with('/') => Ok(None),
        (None, None) if uri.path() == "*" && method == Method::OPTIONS => Ok(None),
        (Some("http" | "https"), Some(authority)) => Ok(Some(authority.as_str())),
        _ => Err(RequestFault::Target),
    }
}

/// Whether this is the only form that the target of CONNECT may have (RFC 9112 section 3.2.3).
fn is_host_and_port(uri: &Uri) -> bool {
    let has_port = |target: &Authority| target.port_u16().is_some();
    uri.scheme().is_none()
        && uri.path_and_query().is_none()
        && uri.authority().is_some_and(has_port)
}

fn same_host<'r>(host: &'r str, target: &str, uri: &Uri) -> Result<Cow<'r, str>, RequestFault> {
    let host_name = host_of(host).map_err(|_| RequestFault::Host)?;
    let target_name = host_of(target).map_err(|_| RequestFault::Target)?;
    let usual = if uri.scheme_str() == Some("https") {
        "443"
    } else {
        "80"
    };
    if host_name == target_name && port(host, usual) == port(target, usual) {
        Ok(host_name)
    } else {
        Err(RequestFault::TwoHosts)
    }
}

/// The port of an authority that [`host_of`] accepts.
fn port<'a>(authority: &'a str, usual: &'a str) -> &'a str {
    match authority.rsplit_once(':') {
        Some((_, port)) if !port.is_empty() && !port.ends_with(']') => port,
        _ => usual,
    }
}

/// Removes headers whose names have `_` where ours may have `-`. Many servers take both for one
/// header, and could choose the client's value.
pub(crate) fn remove_odd_names(headers: &mut HeaderMap, is_removed: impl Fn(&HeaderName) -> bool) {
    let is_odd = |name: &&HeaderName| name.as_str().contains('_') && is_removed(name);
    let odd: SmallVec<[HeaderName; 4]> = headers.keys().filter(is_odd).cloned().collect();
    for name in odd {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(target: &str, lines: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().uri(target);
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    fn fault(target: &str, lines: &[(&str, &str)]) -> Option<RequestFault> {
        check_framing(&request(target, lines)).err()
    }

    #[test]
    fn the_host_comes_back_in_one_spelling() {
        let request = request("/a", &[("host", "API.Example.com:8080")]);
        assert_eq!(check_framing(&request).unwrap(), "api.example.com");
    }

    #[test]
    fn a_host_is_there_once_and_is_a_host() {
        assert_eq!(fault("/a", &[]), Some(RequestFault::Host));
        assert_eq!(
            fault("/a", &[("host", "a"), ("host", "a")]),
            Some(RequestFault::Host)
        );
        for bad in [
            "", "a b", "a/b", "user@a", "a:b:c", "a,b", "[::1", "a:99999",
        ] {
            assert_eq!(
                fault("/a", &[("host", bad)]),
                Some(RequestFault::Host),
                "{bad}"
            );
        }
    }

    #[test]
    fn http_1_0_may_leave_the_host_out() {
        let mut request = request("/a", &[]);
        *request.version_mut() = Version::HTTP_10;
        assert_eq!(check_framing(&request).unwrap(), "");
        *request.uri_mut() = Uri::from_static("http://Named/a");
        assert_eq!(check_framing(&request).unwrap(), "named");
    }

    #[test]
    fn the_host_of_a_target_wins() {
        let request = request("http://B.example:81/x", &[("host", "a.example:80")]);
        assert_eq!(check_framing(&request).unwrap(), "b.example");
        assert_eq!(
            fault("http://b.example/x", &[("host", "a b")]),
            Some(RequestFault::Host)
        );
    }

    #[test]
    fn an_authority_and_a_host_must_name_the_same() {
        let lines: &[(&str, &str)] = &[("host", "a.example:80")];
        let fault = |target, lines| {
            let mut request = request(target, lines);
            *request.version_mut() = Version::HTTP_2;
            check_framing(&request).err()
        };
        assert_eq!(fault("http://a.example/x", lines), None);
        assert_eq!(fault("http://A.EXAMPLE:80/x", lines), None);
        assert_eq!(
            fault("http://a.example:81/x", lines),
            Some(RequestFault::TwoHosts)
        );
        assert_eq!(
            fault("http://b.example/x", lines),
            Some(RequestFault::TwoHosts)
        );
        assert_eq!(
            fault("http://u@a.example/x", lines),
            Some(RequestFault::Target)
        );
        assert_eq!(
            fault("https://a.example/x", lines),
            Some(RequestFault::TwoHosts)
        );
        assert_eq!(fault("http://[::1]/x", &[("host", "[0:0::1]")]), None);
    }

    #[test]
    fn targets_that_are_no_paths_are_refused() {
        assert_eq!(
            fault("a.example:80", &[("host", "a.example")]),
            Some(RequestFault::Target)
        );
        assert_eq!(
            fault("ftp://a/x", &[("host", "a")]),
            Some(RequestFault::Target)
        );
        assert_eq!(fault("*", &[("host", "a")]), Some(RequestFault::Target));
        let mut request = request("*", &[("host", "a")]);
        *request.method_mut() = Method::OPTIONS;
        assert!(check_framing(&request).is_ok());
    }

    #[test]
    fn methods_that_mean_something_else_at_a_gateway_are_refused() {
        for (method, target, fault) in [
            (Method::CONNECT, "a:80", RequestFault::Method),
            (Method::CONNECT, "a", RequestFault::Target),
            (Method::CONNECT, "/a", RequestFault::Target),
            (Method::CONNECT, "http://a:80/", RequestFault::Target),
            (Method::TRACE, "/a", RequestFault::Method),
        ] {
            let mut request = request(target, &[("host", "a")]);
            *request.method_mut() = method;
            assert_eq!(check_framing(&request), Err(fault), "{target}");
        }
    }

    #[test]
    fn the_only_coding_is_chunked_and_only_once() {
        let with = |values: &[&'static str]| {
            let mut lines = vec![("host", "a")];
            lines.extend(values.iter().map(|&value| ("transfer-encoding", value)));
            fault("/", &lines)
        };
        assert_eq!(with(&["Chunked"]), None);
        for bad in [
            &["chunked, chunked"][..],
            &["chunked", "chunked"],
            &["chunked, gzip"],
            &["chunked", "gzip"],
            &["chunked;a=b"],
            &["gzip,"],
            &["gzip", ""],
            &["\"chunked\""],
            &[""],
        ] {
            assert_eq!(with(bad), Some(RequestFault::TransferEncoding), "{bad:?}");
        }
        for unknown in [
            &["gzip"][..],
            &["identity"],
            &["gzip, chunked"],
            &["gzip;q=1", "Chunked"],
        ] {
            let fault = with(unknown).unwrap();
            assert_eq!(
                fault.message().0,
                StatusCode::NOT_IMPLEMENTED,
                "{unknown:?}"
            );
        }
        assert_eq!(
            fault("/", &[("host", "a"), ("content-length", "")]),
            Some(RequestFault::Length)
        );
    }

    #[test]
    fn the_only_expectation_is_100_continue() {
        assert_eq!(
            fault("/", &[("host", "a"), ("expect", "100-Continue")]),
            None
        );
        let unknown = fault("/", &[("host", "a"), ("expect", "a-miracle")]).unwrap();
        assert_eq!(unknown.message().0, StatusCode::EXPECTATION_FAILED);
    }
}
