//! Who is asking: the walk from the peer to the client, told.

use std::net::IpAddr;

use http::HeaderMap;

use super::story::{ClientStory, HopStory};
use crate::client::{ClientIp, Hop};

/// The walk, and what follows of it.
pub(super) fn tell(settings: &ClientIp, peer: IpAddr, headers: &HeaderMap) -> ClientStory {
    let walk = settings.walk(peer, headers);
    let trusted = settings.trusts(peer);
    let header = settings.header.as_str();
    let said = headers.contains_key(&settings.header);
    let why = match (trusted, said) {
        (false, true) if settings.trusted.is_empty() => format!(
            "{peer} is the client: nobody is in `trusted_proxies`, so its {header} is not believed"
        ),
        (false, true) => format!(
            "{peer} is the client: it is none of `trusted_proxies`, so its {header} is not believed"
        ),
        (false, false) => format!("{peer} sends it, and is the client"),
        (true, false) => format!("{peer} is a trusted proxy that says nothing in {header}"),
        (true, true) => format!("{peer} is a trusted proxy; its {header}, from the right:"),
    };
    ClientStory {
        peer: peer.to_canonical().to_string(),
        trusted,
        header: header.to_owned(),
        hops: walk.hops.iter().map(hop).collect(),
        address: walk.client.to_string(),
        counted_as: group(settings, walk.client),
        why,
    }
}

fn hop(hop: &Hop) -> HopStory {
    let note = match (hop.address, hop.trusted) {
        (None, _) => "no address: what is left of it is not believed",
        (Some(_), true) => "a trusted proxy: on to the next",
        (Some(_), false) => "no trusted proxy: this is the client",
    };
    HopStory {
        said: hop.said.clone(),
        address: hop.address.map(|address| address.to_string()),
        trusted: hop.trusted,
        note: note.to_owned(),
    }
}

/// `192.0.2.7`, or `2001:db8:1:2::/64`.
fn group(settings: &ClientIp, client: IpAddr) -> String {
    let first = settings.group(client);
    match first {
        IpAddr::V4(_) if settings.ipv4_prefix >= 32 => first.to_string(),
        IpAddr::V4(_) => format!("{first}/{}", settings.ipv4_prefix),
        IpAddr::V6(_) if settings.ipv6_prefix >= 128 => first.to_string(),
        IpAddr::V6(_) => format!("{first}/{}", settings.ipv6_prefix),
    }
}
