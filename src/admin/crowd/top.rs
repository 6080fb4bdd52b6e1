//! Who asks most, in fixed memory: the Space-Saving sketch (Metwally, Agrawal, El Abbadi 2005).
//!
//! It has room for `k` clients. One that is not there takes the place of the least, whose count it
//! begins with as its error. After `n` requests every client with more than `n/k` of them is there,
//! and of each that is there: `count - error <= true <= count`. Two of them, five minutes each, so
//! that what was long ago is forgotten; what both say adds up, and so do their bounds.
//!
//! Pure: the time is an argument.

use std::collections::HashMap;

/// Clients that there is room for.
const ROOM: usize = 128;
/// How long one of the two is filled, seconds.
const STRETCH: u64 = 300;

/// One of the busiest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Client {
    /// The hash of its key.
    pub(crate) tag: u128,
    /// Its requests, at most.
    pub(crate) requests: u64,
    /// By how many that may be too many.
    pub(crate) error: u64,
    /// How many of them were denied, at least.
    pub(crate) denied: u64,
}

/// One sketch.
#[derive(Debug, Default)]
struct Sketch {
    places: HashMap<u128, usize>,
    clients: Vec<Client>,
    requests: u64,
}

impl Sketch {
    fn see(&mut self, tag: u128, denied: bool) {
        self.requests += 1;
        let place = match self.places.get(&tag) {
            Some(place) => *place,
            None => self.take_place(tag),
        };
        let client = &mut self.clients[place];
        client.requests += 1;
        client.denied += u64::from(denied);
    }

    fn take_place(&mut self, tag: u128) -> usize {
        let place = if self.clients.len() < ROOM {
            self.clients.push(Client::default());
            self.clients.len() - 1
        } else {
            let all = self.clients.iter().enumerate();
            let least = all.min_by_key(|(_, client)| client.requests);
            let place = least.map_or(0, |(place, _)| place);
            self.places.remove(&self.clients[place].tag);
            place
        };
        let before = self.clients[place];
        self.places.insert(tag, place);
        self.clients[place] = Client {
            tag,
            requests: before.requests,
            error: before.requests,
            denied: 0,
        };
        place
    }
}

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct Top {
    now: Sketch,
    before: Sketch,
    stretch: u64,
}

impl Top {
    /// One more request.
    pub(super) fn see(&mut self, tag: u128, denied: bool, now: u64) {
        let stretch = now / STRETCH;
        if stretch != self.stretch {
            let full = std::mem::take(&mut self.now);
            self.before = match stretch == self.stretch + 1 {
                true => full,
                false => Sketch::default(),
            };
            self.stretch = stretch;
        }
        self.now.see(tag, denied);
    }

    /// The busiest of the last five to ten minutes, and how many requests there were of all.
    pub(super) fn clients(&self, now: u64) -> (Vec<Client>, u64) {
        let ago = (now / STRETCH).saturating_sub(self.stretch);
        let sketches = match ago {
            0 => &[&self.now, &self.before][..],
            1 => &[&self.now],
            _ => &[],
        };
        let mut all: HashMap<u128, Client> = HashMap::new();
        for client in sketches.iter().flat_map(|sketch| &sketch.clients) {
            let sum = all.entry(client.tag).or_insert(Client {
                tag: client.tag,
                ..Client::default()
            });
            sum.requests += client.requests;
            sum.error += client.error;
            sum.denied += client.denied;
        }
        let mut clients: Vec<Client> = all.into_values().collect();
        clients.sort_by_key(|client| (std::cmp::Reverse(client.requests), client.tag));
        (clients, sketches.iter().map(|sketch| sketch.requests).sum())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn its_bounds_hold_for_any_crowd(
            tags in proptest::collection::vec((0u32..2000, 0u32..4), 1..4000),
        ) {
            let mut top = Top::default();
            let mut truth: HashMap<u128, (u64, u64)> = HashMap::new();
            for (wide, narrow) in &tags {
                // A few clients with much, many with little.
                let tag = u128::from(if *narrow == 0 { *wide } else { *narrow });
                let denied = wide % 5 == 0;
                top.see(tag, denied, 1000);
                let counts = truth.entry(tag).or_default();
                counts.0 += 1;
                counts.1 += u64::from(denied);
            }
            let (clients, all) = top.clients(1000);
            prop_assert_eq!(all, tags.len() as u64);
            prop_assert!(clients.len() <= ROOM);
            for client in &clients {
                let (requests, denied) = truth[&client.tag];
                prop_assert!(client.requests >= requests);
                prop_assert!(client.requests - client.error <= requests);
                prop_assert!(client.denied <= denied);
                prop_assert!(client.error <= all / ROOM as u64);
            }
            for (tag, (requests, _)) in truth {
                let found = clients.iter().any(|client| client.tag == tag);
                prop_assert!(found || requests <= all / ROOM as u64);
            }
        }
    }

    #[test]
    fn whoever_comes_takes_no_place_from_the_client_whose_tag_is_zero() {
        let mut top = Top::default();
        for tag in [0, 7, 0] {
            top.see(tag, false, 1000);
        }
        // What stands twice adds up as it is read, until one of the two is forgotten.
        let clients = &top.now.clients;
        assert_eq!((clients.len(), clients[0].requests), (2, 2));
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut top = Top::default();
        top.see(1, false, 1000);
        top.see(2, false, 1000 + STRETCH);
        assert_eq!(top.clients(1000 + STRETCH).0.len(), 2);
        assert_eq!(top.clients(1000 + 2 * STRETCH).0.len(), 1);
        assert_eq!(top.clients(1000 + 3 * STRETCH), (Vec::new(), 0));
        top.see(3, true, 1000 + 9 * STRETCH);
        let (clients, all) = top.clients(1000 + 9 * STRETCH);
        assert_eq!((clients.len(), clients[0].denied, all), (1, 1, 1));
    }
}
