//! The prefix that a route strips from a path, or puts before it.

use http::uri::{PathAndQuery, Uri};
use http::{HeaderName, Request};

use super::{Peer, RequestFault, append};
use crate::path::CanonicalPath;
use crate::route::Prefix;

const X_FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");

/// Strips `prefix` from a request in origin form. It refuses a request whose rest an upstream could
/// read as another path than the counted one.
pub fn strip<B>(
    request: &mut Request<B>,
    prefix: &Prefix,
    peer: &Peer,
) -> Result<(), RequestFault> {
    let uri = request.uri();
    let path = CanonicalPath::parse(uri.path()).map_err(|_| RequestFault::Target)?;
    let rest = prefix.strip(&path, uri.path());
    let rest = rest.ok_or(RequestFault::Target)?;
    let target = match uri.query() {
        Some(query) => format!("{rest}?{query}"),
        None => rest.into_owned(),
    };
    let target = PathAndQuery::try_from(target).map_err(|_| RequestFault::Target)?;
    *request.uri_mut() = Uri::from(target);
    let (headers, value) = (request.headers_mut(), prefix.header().clone());
    if peer.trusted {
        append(headers, X_FORWARDED_PREFIX, value);
    } else {
        headers.insert(X_FORWARDED_PREFIX, value);
    }
    Ok(())
}

/// Puts `prefix` before a path. `sent_slash` says whether the client's path ended in a slash.
pub fn prepend<B>(
    request: &mut Request<B>,
    prefix: &Prefix,
    sent_slash: bool,
) -> Result<(), RequestFault> {
    let uri = request.uri();
    let rest = match uri.path() {
        "/" if !sent_slash => "",
        rest if rest.starts_with('/') => rest,
        _ => return Err(RequestFault::Target),
    };
    let target = match uri.query() {
        Some(query) => format!("{}{rest}?{query}", prefix.as_str()),
        None => format!("{}{rest}", prefix.as_str()),
    };
    let target = PathAndQuery::try_from(target).map_err(|_| RequestFault::Target)?;
    *request.uri_mut() = Uri::from(target);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Scheme;
    use super::*;

    fn stripped(target: &str) -> Result<Request<()>, RequestFault> {
        let mut request = Request::builder().uri(target).body(()).unwrap();
        let peer = Peer::new("192.0.2.7".parse().unwrap(), false, Scheme::Http);
        strip(&mut request, &Prefix::parse("/api").unwrap(), &peer)?;
        Ok(request)
    }

    #[test]
    fn the_query_stays_and_the_upstream_is_told() {
        let request = stripped("/api/a/?b=%2f").unwrap();
        assert_eq!(request.uri(), "/a/?b=%2f");
        assert_eq!(request.headers()["x-forwarded-prefix"], "/api");
        assert_eq!(stripped("/api?").unwrap().uri(), "/?");
        assert_eq!(stripped("/api?/api").unwrap().uri(), "/?/api");
    }

    #[test]
    fn what_is_not_below_it_is_refused() {
        assert_eq!(stripped("/apis").unwrap_err(), RequestFault::Target);
    }

    #[test]
    fn a_prefix_is_replaced_by_another() {
        for (sent, expected) in [
            ("/api/a/?b=%2f", "/v1/a/?b=%2f"),
            ("/api", "/v1"),
            ("/api/", "/v1/"),
            ("/api?x", "/v1?x"),
            ("/api//a", "/v1/a"),
        ] {
            let mut request = stripped(sent).unwrap();
            let slash = sent.split('?').next().unwrap().ends_with('/');
            prepend(&mut request, &Prefix::parse("/v1").unwrap(), slash).unwrap();
            assert_eq!(request.uri(), expected, "{sent}");
        }
    }
}
