//! Hop-by-hop headers, which are removed before the next hop. `Connection` must never remove a
//! header that another proxy has set.

use http::StatusCode;
use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST, HeaderMap, HeaderName,
    HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE, VIA,
};
use smallvec::SmallVec;

use super::RequestFault;
use super::forwarded::{Peer, is_forged};

/// Options of `Connection`, each of which costs a lookup.
const MAX_CONNECTION_OPTIONS: usize = 32;

/// The findings of one scan of a head.
#[derive(Default)]
pub(super) struct HopFields {
    connection: bool,
    pub(super) host: bool,
    pub(super) upgrade: bool,
    pub(super) via: bool,
    pub(super) te_trailers: bool,
    /// Whether an untrusted sender names another client.
    pub(super) forged: bool,
    /// The headers to remove; nearly always none.
    names: SmallVec<[HeaderName; 4]>,
}

impl HopFields {
    /// Scans a request of this peer.
    pub(super) fn in_request(headers: &HeaderMap, peer: &Peer) -> HopFields {
        let mut seen = HopFields::default();
        for (name, value) in headers {
            match *name {
                CONNECTION => seen.connection = true,
                TE => {
                    seen.te_trailers |= asks_trailers(value);
                    seen.names.push(TE);
                }
                HOST => seen.host = true,
                VIA => seen.via = true,
                UPGRADE => seen.upgrade = true,
                FORWARDED if !peer.trusted => {
                    seen.forged = true;
                    seen.names.push(FORWARDED);
                }
                TRANSFER_ENCODING | EXPECT | PROXY_AUTHORIZATION => seen.names.push(name.clone()),
                _ => {
                    if is_connection_only(name) {
                        seen.names.push(name.clone());
                    } else if peer.may_forge(name) {
                        seen.forged |= !peer.trusted;
                        seen.names.push(name.clone());
                    }
                }
            }
        }
        seen
    }

    pub(super) fn in_response(headers: &HeaderMap, status: StatusCode) -> HopFields {
        // 426 and 101 name a protocol in `Upgrade`.
        let upgrades = matches!(
            status,
            StatusCode::SWITCHING_PROTOCOLS | StatusCode::UPGRADE_REQUIRED
        );
        let mut seen = HopFields::default();
        for (name, value) in headers {
            match *name {
                CONNECTION => seen.connection = true,
                // Servers may offer a protocol in any response.
                UPGRADE if upgrades || may_tunnel(value) => seen.upgrade = true,
                UPGRADE | TE | TRANSFER_ENCODING | PROXY_AUTHENTICATE => {
                    seen.names.push(name.clone());
                }
                _ if is_connection_only(name) => seen.names.push(name.clone()),
                _ => {}
            }
        }
        seen
    }

    /// Removes the found headers, and those that `Connection` names.
    pub(super) fn remove(&self, headers: &mut HeaderMap) -> Result<(), RequestFault> {
        if self.connection {
            let mut named = SmallVec::<[HeaderName; 4]>::new();
            for (index, option) in options(headers).enumerate() {
                if index == MAX_CONNECTION_OPTIONS {
                    return Err(RequestFault::ConnectionOptions);
                }
                match HeaderName::from_bytes(option.as_bytes()) {
                    Ok(name) if is_removable(&name) => named.push(name),
                    _ => {}
                }
            }
            headers.remove(CONNECTION);
            for name in named {
                headers.remove(name);
            }
        }
        for name in &self.names {
            headers.remove(name);
        }
        Ok(())
    }
}

/// Joins cookies in one line, as HTTP/1.1 requires (RFC 9113 section 8.2.3).
pub(super) fn join_cookies(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(COOKIE).iter();
    let (Some(first), Some(second)) = (lines.next(), lines.next()) else {
        return;
    };
    let mut joined = first.as_bytes().to_vec();
    for line in std::iter::once(second).chain(lines) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(line.as_bytes());
    }
    // Valid values, joined by valid characters, are a valid value.
    if let Ok(joined) = HeaderValue::try_from(joined) {
        headers.insert(COOKIE, joined);
    }
}

/// Whether the protocols of an `Upgrade` may be tunnelled. HTTP may not, because its requests would
/// not be counted.
pub(super) fn may_tunnel(protocols: &HeaderValue) -> bool {
    let may = |protocol: &str| {
        let name = protocol.trim().split('/').next().unwrap_or_default();
        let refused = ["h2", "h2c", "http", "tls", ""];
        !refused.iter().any(|one| name.eq_ignore_ascii_case(one))
    };
    protocols.to_str().is_ok_and(|all| all.split(',').all(may))
}

/// Removes the client's headers. Those that frame the request, name its client or its host, or tell
/// the proxies that it passed stay.
pub fn keep_forwarding(headers: &mut HeaderMap) {
    let stays = |name: &HeaderName| {
        matches!(
            *name,
            HOST | CONTENT_LENGTH | TRANSFER_ENCODING | FORWARDED | VIA
        ) || is_forged(name)
    };
    let kept = headers.iter().filter(|(name, _)| stays(name));
    *headers = kept
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
}

fn asks_trailers(te: &HeaderValue) -> bool {
    te.to_str().is_ok_and(|codings| {
        codings
            .split(',')
            .any(|coding| coding.trim().eq_ignore_ascii_case("trailers"))
    })
}

/// Headers of one connection without a constant in `http`; and `Proxy`, which CGI programs would
/// take for a setting.
fn is_connection_only(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "keep-alive" | "proxy-connection" | "http2-settings" | "proxy"
    )
}

/// Whether `Connection` may remove this header. Headers that frame a message or name a client stay.
fn is_removable(name: &HeaderName) -> bool {
    use http::header as h;
    let stays = matches!(
        *name,
        h::HOST
            | h::CONTENT_LENGTH
            | h::CONTENT_TYPE
            | h::CONTENT_ENCODING
            | h::CONTENT_RANGE
            | h::TRANSFER_ENCODING
            | h::TRAILER
            | h::UPGRADE
            | h::TE
            | h::AUTHORIZATION
            | h::COOKIE
            | h::SET_COOKIE
            | h::WWW_AUTHENTICATE
            | h::CACHE_CONTROL
            | h::VARY
            | h::DATE
            | h::LOCATION
            | h::ORIGIN
            | h::FORWARDED
            | h::VIA
    );
    !stays && !is_forged(name) && !name.as_str().starts_with("x-request-")
}

fn options(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|option| !option.is_empty())
}

pub(super) fn has_option(headers: &HeaderMap, wanted: &str) -> bool {
    options(headers).any(|option| option.eq_ignore_ascii_case(wanted))
}
