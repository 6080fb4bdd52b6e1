//! How many clients use how much of a limit: a sample of them in fixed memory.
//!
//! Hashes of keys are as good as random numbers. So the clients whose hash is below a bar are a
//! fair sample of all, and always the same ones: what they do is followed exactly, and stands for
//! the others in the proportion of the bar to all hashes. The bar sinks when the room is full, and
//! rises again when it is nearly empty.
//!
//! Pure: the time is an argument.

use std::collections::BTreeMap;

/// Clients that are followed.
const ROOM: usize = 512;

/// One client of the sample.
#[derive(Clone, Copy, Debug)]
struct Followed {
    used: f32,
    at: u64,
    /// When it was denied last, if it was.
    denied_at: Option<u64>,
}

/// See the file's head.
#[derive(Debug)]
pub(super) struct Spread {
    /// How long a client counts after its last request, seconds.
    lasts: u64,
    /// Hashes up to this one are in the sample.
    bar: u64,
    /// When those that had gone were last taken out.
    tidied: u64,
    followed: BTreeMap<u64, Followed>,
}

/// How many clients there are, by what they had used of the limit at their last request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) clients: u64,
    /// Up to a quarter, up to a half, up to three quarters, more.
    pub(crate) quarters: [u64; 4],
    /// How many of them were denied in that time.
    pub(crate) denied: u64,
}

impl Spread {
    pub(super) fn new(lasts: u64) -> Spread {
        Spread {
            lasts,
            bar: u64::MAX,
            tidied: 0,
            followed: BTreeMap::new(),
        }
    }

    /// The client of this hash made a request, and has used so much by now.
    pub(super) fn see(&mut self, hash: u64, used: f32, denied: bool, now: u64) {
        if now >= self.tidied + self.lasts {
            self.tidy(now);
        }
        if hash > self.bar {
            return;
        }
        let before = self.followed.get(&hash);
        let denied_at = before.and_then(|before| before.denied_at);
        // Of several rates of a limit, told one after the other, the fullest counts.
        let used = match before {
            Some(before) if before.at == now => used.max(before.used),
            _ => used,
        };
        let followed = Followed {
            used,
            at: now,
            denied_at: if denied { Some(now) } else { denied_at },
        };
        self.followed.insert(hash, followed);
        if self.followed.len() > ROOM {
            self.make_room(now);
        }
    }

    /// Takes out who has gone. A crowd that went away makes room for hashes that were left out.
    fn tidy(&mut self, now: u64) {
        let lasts = self.lasts;
        self.followed.retain(|_, one| one.at + lasts >= now);
        if self.followed.len() < ROOM / 8 {
            self.bar = self.bar.saturating_mul(2);
        }
        self.tidied = now;
    }

    fn make_room(&mut self, now: u64) {
        let lasts = self.lasts;
        self.followed.retain(|_, one| one.at + lasts >= now);
        while self.followed.len() > ROOM {
            self.bar /= 2;
            // All above the bar are gone, or the room would hold only some of them.
            let above = self.bar.saturating_add(1);
            drop(self.followed.split_off(&above));
        }
    }

    /// How many there are of each kind.
    pub(super) fn shares(&self, now: u64) -> Shares {
        let scale = u64::MAX as f64 / self.bar as f64;
        let (mut clients, mut quarters, mut denied) = (0, [0; 4], 0);
        let is_here = |at: u64| at + self.lasts >= now;
        for one in self.followed.values().filter(|one| is_here(one.at)) {
            clients += 1;
            let quarter = ((one.used * 4.0).ceil() as usize).clamp(1, 4) - 1;
            quarters[quarter] += 1;
            denied += u64::from(one.denied_at.is_some_and(is_here));
        }
        let scaled = |count: u64| (count as f64 * scale).round() as u64;
        Shares {
            clients: scaled(clients),
            quarters: quarters.map(scaled),
            denied: scaled(denied),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As evenly spread as hashes are.
    fn hash(number: u64) -> u64 {
        let mut mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    #[test]
    fn few_clients_are_counted_exactly() {
        let mut spread = Spread::new(60);
        for number in 0..100 {
            let used = number as f32 / 100.0;
            spread.see(hash(number), used, number % 10 == 0, 1000);
        }
        let shares = spread.shares(1000);
        assert_eq!((shares.clients, shares.denied), (100, 10));
        assert_eq!(shares.quarters, [26, 25, 25, 24]);
        assert_eq!(spread.shares(1061), Shares::default());
    }

    #[test]
    fn many_are_estimated_in_fixed_memory() {
        for many in [5_000, 100_000] {
            let mut spread = Spread::new(60);
            for number in 0..many {
                let used = if number % 4 == 0 { 0.9 } else { 0.1 };
                spread.see(hash(number), used, false, 1000);
                assert!(spread.followed.len() <= ROOM);
            }
            let shares = spread.shares(1000);
            let off = shares.clients.abs_diff(many) as f64 / many as f64;
            assert!(off < 0.2, "{shares:?}");
            let high = shares.quarters[3] as f64 / shares.clients as f64;
            assert!((high - 0.25).abs() < 0.08, "{shares:?}");
        }
    }

    #[test]
    fn the_sample_grows_again_after_a_crowd() {
        let mut spread = Spread::new(60);
        (0..50_000).for_each(|number| spread.see(hash(number), 0.5, false, 1000));
        let low = spread.bar;
        for second in 0..20 {
            (0..2000).for_each(|number| {
                let number = 1_000_000 + second * 2000 + number;
                spread.see(hash(number), 0.5, false, 2000 + second * 100);
            });
        }
        assert!(spread.bar > low);
        let clients = spread.shares(3900).clients;
        assert!((1400..2600).contains(&clients), "{clients}");
    }
}
