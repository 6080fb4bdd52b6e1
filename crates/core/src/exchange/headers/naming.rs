//! Who the client is, in the words of the headers that upstreams look for it in.

use http::Version;
use http::header::{Entry, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, VIA};

use super::{Peer, Scheme, via_of};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// How the client came to whoever received its request first: a trusted proxy says it.
pub fn scheme(headers: &HeaderMap, peer: &Peer) -> &'static str {
    let said = headers.get(X_FORWARDED_PROTO).filter(|_| peer.trusted);
    match said.map(|said| said.as_bytes().to_ascii_lowercase()) {
        Some(said) if said == b"https" => Scheme::Https.as_str(),
        Some(said) if said == b"http" => Scheme::Http.as_str(),
        _ => peer.scheme.as_str(),
    }
}

/// Says who the client is: instead of what it says itself, or after what a trusted proxy says.
pub(super) fn name_client(headers: &mut HeaderMap, peer: &Peer) {
    let host = headers.get(HOST).cloned();
    let forwarded = peer.forwarded(host.as_ref());
    if !peer.trusted {
        return replace_names(headers, peer, host, forwarded);
    }
    let proto = HeaderValue::from_static(peer.scheme.as_str());
    append(headers, X_FORWARDED_FOR, peer.address.clone());
    append(headers, FORWARDED, forwarded);
    headers.entry(X_FORWARDED_PROTO).or_insert(proto);
    if let Some(host) = host {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
}

/// Names a client that may not name others.
fn replace_names(
    headers: &mut HeaderMap,
    peer: &Peer,
    host: Option<HeaderValue>,
    forwarded: HeaderValue,
) {
    headers.insert(X_REAL_IP, peer.address.clone());
    headers.insert(X_FORWARDED_FOR, peer.address.clone());
    headers.insert(FORWARDED, forwarded);
    let proto = HeaderValue::from_static(peer.scheme.as_str());
    headers.insert(X_FORWARDED_PROTO, proto);
    match host {
        Some(host) => headers.insert(X_FORWARDED_HOST, host),
        None => headers.remove(X_FORWARDED_HOST),
    };
}

/// The same by itself, for a request of this version that came straight from its client.
pub(super) fn told(
    version: Version,
    peer: &Peer,
    host: &HeaderValue,
    forwarded: &HeaderValue,
) -> HeaderMap {
    let mut headers = HeaderMap::new();
    replace_names(&mut headers, peer, Some(host.clone()), forwarded.clone());
    headers.insert(VIA, via_of(version));
    headers
}

/// Appends to a list, in one line: not every reader looks for a second.
pub(super) fn append(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    match headers.entry(name) {
        Entry::Vacant(entry) => {
            entry.insert(value);
        }
        Entry::Occupied(mut entry) => {
            let mut line = Vec::new();
            for known in entry.iter() {
                line.extend_from_slice(known.as_bytes());
                line.extend_from_slice(b", ");
            }
            line.extend_from_slice(value.as_bytes());
            // Valid values, joined by valid characters, are a valid value.
            entry.insert(HeaderValue::try_from(line).unwrap_or(value));
        }
    }
}
