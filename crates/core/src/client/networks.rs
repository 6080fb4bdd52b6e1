//! Sets of networks, and the access lists made of them.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

/// Networks that do not overlap, ascending. A look takes logarithmic time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkSet(Arc<[IpNet]>);

impl NetworkSet {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `address` is canonical: IPv4 is not mapped into IPv6.
    pub fn contains(&self, address: IpAddr) -> bool {
        let after = self.0.partition_point(|net| net.network() <= address);
        let last = after.checked_sub(1).map(|place| self.0[place]);
        last.is_some_and(|net| net.contains(&address))
    }

    pub fn iter(&self) -> impl Iterator<Item = IpNet> {
        self.0.iter().copied()
    }
}

impl FromIterator<IpNet> for NetworkSet {
    fn from_iter<I: IntoIterator<Item = IpNet>>(nets: I) -> Self {
        let nets: Vec<IpNet> = nets.into_iter().collect();
        let mut disjoint = IpNet::aggregate(&nets);
        disjoint.sort_unstable_by_key(IpNet::network);
        NetworkSet(disjoint.into())
    }
}

/// Whether networks have all addresses of a version of IP together.
pub fn has_everyone(networks: &[IpNet]) -> bool {
    let joined = IpNet::aggregate(&networks.to_vec());
    joined.iter().any(|network| network.prefix_len() == 0)
}

/// `access`: the clients that are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessList {
    /// `None` serves all that are not denied.
    pub allow: Option<NetworkSet>,
    pub deny: NetworkSet,
}

impl AccessList {
    pub fn serves_all(&self) -> bool {
        self.allow.is_none() && self.deny.is_empty()
    }

    /// Whether a client is served. `deny` wins over `allow`.
    pub fn admits(&self, client: IpAddr) -> bool {
        !self.deny.contains(client) && self.allow.as_ref().is_none_or(|nets| nets.contains(client))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> NetworkSet {
        texts
            .iter()
            .map(|text| text.parse::<IpNet>().unwrap())
            .collect()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn overlapping_and_adjacent_networks_are_one() {
        let set = nets(&[
            "10.0.0.0/8",
            "10.1.0.0/16",
            "11.0.0.0/8",
            "::/0",
            "192.0.2.7/32",
        ]);
        let found: Vec<_> = set.iter().map(|net| net.to_string()).collect();
        assert_eq!(found, ["10.0.0.0/7", "192.0.2.7/32", "::/0"]);
    }

    #[test]
    fn a_set_has_exactly_the_addresses_of_its_networks() {
        let mut random = 1_u32;
        let mut next = || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            random
        };
        for _ in 0..200 {
            // Few bits, so that networks overlap.
            let mut net = || {
                let address = std::net::Ipv4Addr::from(next() & 0xff00_0000 | 0x00aa_0000);
                IpNet::new(address.into(), (4 + next() % 16) as u8).unwrap()
            };
            let all: Vec<IpNet> = (0..8).map(|_| net()).collect();
            let set: NetworkSet = all.iter().copied().collect();
            for first in 0..=255 {
                let address = IpAddr::from([first, 0xaa, 1, 2]);
                let is_in = all.iter().any(|net| net.contains(&address));
                assert_eq!(set.contains(address), is_in, "{address} {all:?}");
            }
        }
    }

    #[test]
    fn deny_wins_and_an_empty_list_serves_all() {
        assert!(AccessList::default().admits(ip("192.0.2.1")));
        let list = AccessList {
            allow: Some(nets(&["10.0.0.0/8", "2001:db8::/32"])),
            deny: nets(&["10.9.0.0/16"]),
        };
        assert!(list.admits(ip("10.1.2.3")) && list.admits(ip("2001:db8::1")));
        assert!(!list.admits(ip("10.9.2.3")) && !list.admits(ip("192.0.2.1")));
        assert!(!list.admits(ip("2001:db9::1")));
    }
}
