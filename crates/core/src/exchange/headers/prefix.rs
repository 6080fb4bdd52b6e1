//! The prefix that a route strips from a path, or puts before it.

use http::header::{HeaderMap, SET_COOKIE};
use http::uri::{PathAndQuery, Uri};
use http::{HeaderName, Request};

use super::{Peer, RequestFault, append};
use crate::path::CanonicalPath;
use crate::route::{Prefix, Replacement, rewrite_cookie, rewrite_lines, rewrite_places};

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
    let rest = rest.into_owned();
    set_path(request, &rest)?;
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
    let path = format!("{}{rest}", prefix.as_str());
    set_path(request, &path)
}

/// Gives a path the beginning that its route says.
pub fn replace<B>(request: &mut Request<B>, replacement: &Replacement) -> Result<(), RequestFault> {
    let sent = request.uri().path();
    let path = CanonicalPath::parse(sent).map_err(|_| RequestFault::Target)?;
    let path = replacement.apply(&path, sent).ok_or(RequestFault::Target)?;
    set_path(request, &path)
}

/// Sets the path. The query stays.
fn set_path<B>(request: &mut Request<B>, path: &str) -> Result<(), RequestFault> {
    let target = match request.uri().query() {
        Some(query) => PathAndQuery::try_from(format!("{path}?{query}")),
        None => PathAndQuery::try_from(path),
    };
    *request.uri_mut() = Uri::from(target.map_err(|_| RequestFault::Target)?);
    Ok(())
}

/// Gives the paths in `Location` and in cookies of an answer the client's beginning back. An
/// absolute URL counts if its host is that of the client or of the upstream (`is_upstream`).
pub fn restore(
    headers: &mut HeaderMap,
    replacement: &Replacement,
    client_host: &str,
    is_upstream: impl Fn(&str) -> bool,
) -> bool {
    if replacement.cookies {
        let path = |path: &[u8]| Some(replacement.undo(str::from_utf8(path).ok()?)?.into_bytes());
        rewrite_lines(headers, &SET_COOKIE, |line| {
            rewrite_cookie(line, "path", path)
        });
    }
    replacement.location
        && rewrite_places(headers, |location| {
            restore_location(replacement, location, client_host, &is_upstream)
        })
}

fn restore_location(
    replacement: &Replacement,
    location: &[u8],
    client_host: &str,
    is_upstream: impl FnOnce(&str) -> bool,
) -> Option<Vec<u8>> {
    let text = str::from_utf8(location).ok()?;
    let (origin, path) = match text.split_once("://") {
        Some((_, rest)) => {
            let path = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            text.split_at(text.len() - rest.len() + path)
        }
        None => ("", text),
    };
    let host = origin.split_once("://").map_or("", |(_, host)| host);
    let is_of_client = host == client_host || origin.is_empty();
    let restored = match is_of_client || is_upstream(host) {
        true if !path.starts_with('/') && !origin.is_empty() => {
            replacement.undo(&format!("/{path}"))
        }
        true => replacement.undo(path),
        false => None,
    };
    let kept = if is_of_client { origin } else { "" };
    Some(format!("{kept}{}", restored?).into_bytes())
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
