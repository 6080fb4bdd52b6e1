//! How many connections each address has, where that is bounded: one client must not take all the
//! places that there are.
//!
//! Counted where connections begin and end, and nowhere on the path of a request.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Leading bits of an IPv6 address that one client may own all of.
const IPV6_BITS: u32 = 64;

/// Those of one process; an address without a connection takes no place here.
#[derive(Debug, Default)]
pub(crate) struct ConnectionsPerIp(Mutex<HashMap<IpAddr, usize>>);

/// One connection's place among its address's; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    per_ip: Arc<ConnectionsPerIp>,
    whose: IpAddr,
}

impl ConnectionsPerIp {
    /// A place for one more connection of this address, of which it may have so many.
    pub(crate) fn take(
        self: &Arc<ConnectionsPerIp>,
        ip: IpAddr,
        most: usize,
    ) -> Option<ConnectionPermit> {
        let whose = owner(ip);
        let mut all = self.lock();
        let taken = all.entry(whose).or_default();
        if *taken >= most {
            return None;
        }
        *taken += 1;
        Some(ConnectionPermit {
            per_ip: Arc::clone(self),
            whose,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut all = self.per_ip.lock();
        if let Some(taken) = all.get_mut(&self.whose) {
            *taken -= 1;
            if *taken == 0 {
                all.remove(&self.whose);
            }
        }
    }
}

/// The address that stands for all that one client may own.
fn owner(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => {
            let bits = ip.to_bits() >> IPV6_BITS << IPV6_BITS;
            IpAddr::V6(Ipv6Addr::from_bits(bits))
        }
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_places_and_gives_them_back() {
        let per_ip = Arc::new(ConnectionsPerIp::default());
        let take = |ip: &str| per_ip.take(ip.parse().unwrap(), 2);
        let first = take("192.0.2.1");
        let _second = take("::ffff:192.0.2.1");
        assert!(first.is_some() && take("192.0.2.1").is_none());
        assert!(take("192.0.2.2").is_some(), "others have their own");
        drop(first);
        assert!(take("192.0.2.1").is_some());
        let _of_one_network = (take("2001:db8::1"), take("2001:db8::2:3"));
        let third = (take("2001:db8::9"), take("2001:db8:0:1::1"));
        assert!(third.0.is_none() && third.1.is_some());
        drop((_second, _of_one_network, third));
        assert!(per_ip.lock().is_empty());
    }
}
