//! Servers that are given by name: where they are is looked up again from time to time, and each
//! address of a name is a server of its own.
//!
//! The last good answer is kept: a name that cannot be looked up, or has no address, changes
//! nothing. Before the first answer the name is looked up for each connection, so that nobody
//! waits for it at the start.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tokio::net::lookup_host;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use super::choice::Choice;
use super::connect::Addresses;
use super::server::Server;
use super::terms::UpstreamTerms;
use super::vitals::Vitals;
use super::watch::Ward;
use crate::config::{ServerAddress, UpstreamServer};

/// Addresses of one name, at most.
const MAX_ADDRESSES: usize = 64;
/// The machine's resolver may try for so long.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// What servers are made from.
#[derive(Debug)]
pub(super) struct Makings {
    pub(super) terms: Arc<UpstreamTerms>,
    pub(super) ward: Arc<Ward>,
    pub(super) vitals: Vitals,
}

/// The servers of one upstream, of which some have names.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) choice: ArcSwap<Choice>,
    makings: Makings,
}

impl Makings {
    /// The servers of these settings at these addresses: nothing where they are not known, or need
    /// not be. Those of `old` that are still there stay, or give way to what takes their place.
    pub(super) fn servers(
        &self,
        found: &[(&UpstreamServer, Addresses)],
        old: &[Arc<Server>],
    ) -> Vec<Arc<Server>> {
        let make = |(origin, addresses): &(&UpstreamServer, Addresses)| {
            let siblings = found.iter().filter(|(other, _)| other == origin).count();
            let place = match addresses.first() {
                Some(address) if siblings > 1 => origin.address.at(*address),
                _ => origin.address.clone(),
            };
            let vital = self.vitals.of(&self.ward, &place);
            let before = old.iter().find(|old| Arc::ptr_eq(&old.vital, &vital));
            if let Some(before) = before.filter(|before| before.is_at(addresses)) {
                if Arc::ptr_eq(&before.terms, &self.terms) {
                    return Arc::clone(before);
                }
                let server = Arc::new(Server::new(origin, (place, addresses), &self.terms, vital));
                let with_connections = self.terms.takes_connections_of(&before.terms);
                before.give_way(&server, with_connections);
                return server;
            }
            // A name that has not been looked up before was asked all the same.
            let was_asked = |old: &Arc<Server>| {
                old.origin == origin.address && !old.is_looked_up() && siblings > 1
            };
            if before.is_none() && !old.is_empty() && !old.iter().any(was_asked) {
                vital.watch.begin_slowly();
            }
            Arc::new(Server::new(origin, (place, addresses), &self.terms, vital))
        };
        found.iter().map(make).collect()
    }
}

impl Named {
    /// The servers in `choice`, looked up as long as somebody has them.
    pub(super) fn new(choice: Choice, makings: Makings) -> Arc<Named> {
        let named = Arc::new(Named {
            choice: ArcSwap::from_pointee(choice),
            makings,
        });
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(look_up(Arc::downgrade(&named)));
        }
        named
    }

    /// What has been looked up: names that could not be are not in it.
    fn note(&self, found: &HashMap<ServerAddress, Vec<Addresses>>) {
        let settings = &self.makings.terms.settings;
        let old = self.choice.load_full();
        let mut wanted = Vec::new();
        for server in &settings.servers {
            match found.get(&server.address) {
                Some(places) => {
                    wanted.extend(places.iter().map(|addresses| (server, addresses.clone())));
                }
                None => wanted.extend(places_in(&old.servers, server)),
            }
        }
        let servers = self.makings.servers(&wanted, &old.servers);
        let same = |(one, other): (&Arc<Server>, &Arc<Server>)| Arc::ptr_eq(one, other);
        if servers.len() == old.servers.len() && servers.iter().zip(&old.servers).all(same) {
            return;
        }
        self.tell(&old.servers, &servers);
        self.makings.ward.count_servers(servers.len());
        let choice = Choice::new(servers, settings, old.seed());
        self.choice.store(Arc::new(choice));
    }

    /// Says in the log where a name is now; one worker's word is enough.
    fn tell(&self, old: &[Arc<Server>], new: &[Arc<Server>]) {
        for server in new.iter().filter(|server| server.is_looked_up()) {
            if !old.iter().any(|old| Arc::ptr_eq(old, server)) {
                let upstream = &self.makings.terms.settings.name;
                tracing::debug!(
                    "upstream {upstream}: {} is at {}",
                    server.origin,
                    server.place
                );
            }
        }
    }
}

/// Where a server of the settings is, as far as `known` servers tell.
pub(super) fn places_in<'s>(
    known: &[Arc<Server>],
    server: &'s UpstreamServer,
) -> Vec<(&'s UpstreamServer, Addresses)> {
    let same = known.iter().filter(|one| one.origin == server.address);
    let places: Vec<_> = same.map(|one| (server, one.addresses())).collect();
    if places.is_empty() {
        return vec![(server, Addresses::new())];
    }
    places
}

/// Looks the names up, again and again.
async fn look_up(named: Weak<Named>) {
    loop {
        let Some(now) = named.upgrade() else { return };
        let settings = now.makings.terms.settings.clone();
        drop(now);
        let mut found = HashMap::new();
        for server in &settings.servers {
            let Some((name, port)) = server.address.name() else {
                continue;
            };
            if let Ok(Ok(addresses)) = timeout(LOOKUP_TIMEOUT, lookup_host((name, port))).await {
                let places = places(addresses.take(MAX_ADDRESSES));
                if !places.is_empty() {
                    found.insert(server.address.clone(), places);
                }
            }
        }
        let Some(now) = named.upgrade() else { return };
        now.note(&found);
        drop(now);
        sleep(settings.dns_every).await;
    }
}

/// The servers that have these addresses. An address of one family and one of the other are taken
/// to be the same server: that is how names with both are used, `localhost` among them. In any
/// order the answer is the same, but for which family is tried first.
fn places(addresses: impl Iterator<Item = SocketAddr>) -> Vec<Addresses> {
    let mut all: SmallVec<[SocketAddr; 8]> = addresses.collect();
    let Some(first) = all.first().copied() else {
        return Vec::new();
    };
    all.sort_unstable();
    all.dedup();
    let (mut front, mut back): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|address| address.is_ipv4() == first.is_ipv4());
    let count = front.len().max(back.len());
    front.reverse();
    back.reverse();
    let place = |_| front.pop().into_iter().chain(back.pop()).collect();
    (0..count).map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Sweep;
    use crate::config::UpstreamSettings;
    use crate::upstream::pool::Upstream;

    fn ip(text: &str) -> SocketAddr {
        format!("{text}:80").parse().unwrap()
    }

    fn at(texts: &[&str]) -> Vec<Vec<SocketAddr>> {
        let places = places(texts.iter().map(|text| ip(text)));
        places.into_iter().map(|place| place.to_vec()).collect()
    }

    #[test]
    fn addresses_of_two_families_are_one_server() {
        assert_eq!(at(&[]), Vec::<Vec<SocketAddr>>::new());
        assert_eq!(
            at(&["[::1]", "127.0.0.1"]),
            [[ip("[::1]"), ip("127.0.0.1")]]
        );
        assert_eq!(
            at(&["127.0.0.1", "[::1]"]),
            [[ip("127.0.0.1"), ip("[::1]")]]
        );
        let three = [
            vec![ip("10.0.0.1")],
            vec![ip("10.0.0.2")],
            vec![ip("10.0.0.3")],
        ];
        assert_eq!(at(&["10.0.0.3", "10.0.0.1", "10.0.0.2", "10.0.0.1"]), three);
        let uneven = [vec![ip("10.0.0.1"), ip("[::1]")], vec![ip("10.0.0.2")]];
        assert_eq!(at(&["10.0.0.2", "[::1]", "10.0.0.1"]), uneven);
    }

    /// An upstream with a server `app.test` and one without a name.
    struct Upstreams(Arc<Named>, Upstream);

    impl Upstreams {
        fn new(slow_start: bool) -> Upstreams {
            let name = ServerAddress::Http("app.test".into(), 80);
            let fixed = ServerAddress::Http("10.9.9.9".into(), 80);
            let mut settings = UpstreamSettings::new("app", vec![name.into(), fixed.into()]);
            settings.slow_start = slow_start.then_some(Duration::from_secs(3600));
            let upstream = Upstream::new(&settings, Sweep::new(), &Vitals::default());
            Upstreams(Arc::clone(upstream.named().unwrap()), upstream)
        }

        fn note(&self, texts: &[&str]) -> Vec<Arc<Server>> {
            let name = ServerAddress::Http("app.test".into(), 80);
            let places = places(texts.iter().map(|text| ip(text)));
            self.0.note(&HashMap::from([(name, places)]));
            self.servers()
        }

        fn servers(&self) -> Vec<Arc<Server>> {
            self.1.choice().servers.clone()
        }

        fn places(&self) -> Vec<String> {
            let place = |server: &Arc<Server>| server.place.to_string();
            self.servers().iter().map(place).collect()
        }
    }

    #[test]
    fn each_address_is_a_server_and_those_that_stay_are_the_same() {
        let upstreams = Upstreams::new(false);
        assert_eq!(
            upstreams.places(),
            ["http://app.test:80", "http://10.9.9.9:80"]
        );
        let two = upstreams.note(&["10.0.0.1", "10.0.0.2"]);
        let want = [
            "http://10.0.0.1:80",
            "http://10.0.0.2:80",
            "http://10.9.9.9:80",
        ];
        assert_eq!(upstreams.places(), want);
        // In another order: nothing has changed.
        let again = upstreams.note(&["10.0.0.2", "10.0.0.1"]);
        assert!(
            two.iter()
                .zip(&again)
                .all(|(one, other)| Arc::ptr_eq(one, other))
        );
        let other = upstreams.note(&["10.0.0.3", "10.0.0.2"]);
        assert!(Arc::ptr_eq(&two[1], &other[0]) && Arc::ptr_eq(&two[2], &other[2]));
        assert_eq!(upstreams.places()[1], "http://10.0.0.3:80");
        // Every one is asked for the name.
        assert!(other[..2].iter().all(|server| server.host == "app.test"));
    }

    #[test]
    fn the_last_good_answer_is_kept() {
        let upstreams = Upstreams::new(false);
        let before = upstreams.note(&["10.0.0.1", "10.0.0.2"]);
        upstreams.0.note(&HashMap::new());
        let after = upstreams.servers();
        assert!(
            before
                .iter()
                .zip(&after)
                .all(|(one, other)| Arc::ptr_eq(one, other))
        );
    }

    #[test]
    fn one_that_moves_keeps_what_is_known_of_it_but_not_its_place() {
        let upstreams = Upstreams::new(false);
        let first = upstreams.servers();
        let second = upstreams.note(&["10.0.0.1"]);
        let third = upstreams.note(&["10.0.0.2"]);
        assert!(Arc::ptr_eq(&first[0].vital, &third[0].vital));
        assert!(!Arc::ptr_eq(&second[0], &third[0]));
        assert!(third[0].is_at(&[ip("10.0.0.2")]));
    }

    #[test]
    fn only_addresses_that_come_later_start_slowly() {
        let upstreams = Upstreams::new(true);
        let warmth = |server: &Arc<Server>| server.vital.watch.warmth(Duration::from_secs(3600));
        let servers = upstreams.note(&["10.0.0.1", "10.0.0.2"]);
        assert!(servers.iter().all(|server| warmth(server) == 100));
        let servers = upstreams.note(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        assert_eq!(
            servers.iter().map(warmth).collect::<Vec<_>>(),
            [100, 100, 10, 100]
        );
    }
}
