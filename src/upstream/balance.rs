//! Chooses the server for the next request. Pure: it never waits or reads a clock.
//!
//! By default it draws two servers at random, and the one with less work wins. The load is nearly
//! as even as with "the least busy of all". A server that just came back does not get all requests.

/// Latencies below this count as equal, microseconds, because noise dominates them.
const FAST_US: u64 = 1000;
/// A server is slower than another if its latency is more than this many times as long. Smaller
/// differences show in the number of requests under way.
const SLOWER_TIMES: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    Down,
    /// It failed lately and gets no requests while others are ready.
    Resting,
    Full,
    Ready(Work),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// Requests of this worker under way.
    pub(super) in_flight: u64,
    /// The latency of its responses, microseconds; 0 while it is unknown.
    pub(super) latency_us: u64,
    /// Its share of the requests, relative to the other servers.
    pub(super) weight: u64,
}

impl Load {
    fn is_askable(self) -> bool {
        matches!(self, Load::Ready(_) | Load::Resting)
    }

    /// Its share in draws by weight.
    fn share(self) -> u64 {
        match self {
            Load::Ready(work) => work.weight,
            Load::Resting | Load::Full | Load::Down => 0,
        }
    }
}

/// Picks the index of a server, as if all weights were equal; `None` if no server may get requests.
/// `random` is any number, and `load` returns the load of a server. A resting server is picked only
/// if none is ready.
pub(super) fn pick(servers: usize, random: u64, load: impl Fn(usize) -> Load) -> Option<usize> {
    if servers <= 1 {
        return (servers == 1 && load(0).is_askable()).then_some(0);
    }
    let count = servers as u64;
    let first = (random % count) as usize;
    // An offset of 1 to count - 1, so that the second server differs from the first.
    let offset = 1 + (random >> 32) % (count - 1);
    let second = (first + offset as usize) % servers;
    match (load(first), load(second)) {
        (Load::Ready(one), Load::Ready(other)) if other.has_less_than(&one) => Some(second),
        (Load::Ready(_), _) => Some(first),
        (_, Load::Ready(_)) => Some(second),
        _ => first_usable(servers, first, load),
    }
}

/// Picks by weight: two servers are drawn by their weights. The first gets the request, unless the
/// second would have less work even with it. With little work, the requests are shared by weight.
/// With much work, the requests under way are shared by weight.
pub(super) fn pick_weighted(
    servers: usize,
    random: u64,
    load: impl Fn(usize) -> Load,
) -> Option<usize> {
    let draw = |random: u64, total: u64, without: Option<usize>| {
        // The upper half of the product is evenly distributed below `total`.
        let mut at = ((u128::from(random << 32) * u128::from(total)) >> 64) as u64;
        (0..servers).find(|&server| {
            let share = load(server).share();
            let is_here = Some(server) != without && at < share;
            if !is_here && Some(server) != without {
                at -= share;
            }
            is_here
        })
    };
    let total = (0..servers).map(|server| load(server).share()).sum();
    let Some(first) = draw(random, total, None) else {
        return first_usable(servers, random as usize % servers.max(1), load);
    };
    let rest = total - load(first).share();
    let second = draw(random >> 32, rest, Some(first));
    match second.map(|second| (second, load(first), load(second))) {
        Some((second, Load::Ready(one), Load::Ready(other))) if other.gains_from(&one) => {
            Some(second)
        }
        _ => Some(first),
    }
}

/// Picks in turn and by weight, without bursts for heavy servers. Every server gains its weight,
/// and the richest pays for all.
pub(super) fn pick_in_turn(gained: &mut [i64], load: impl Fn(usize) -> Load) -> Option<usize> {
    let mut total = 0;
    let mut richest: Option<usize> = None;
    for server in 0..gained.len() {
        let share = i64::try_from(load(server).share()).unwrap_or(i64::MAX);
        if share == 0 {
            continue;
        }
        total += share;
        gained[server] += share;
        if richest.is_none_or(|richest| gained[server] > gained[richest]) {
            richest = Some(server);
        }
    }
    let Some(richest) = richest else {
        return first_usable(gained.len(), 0, load);
    };
    gained[richest] -= total;
    Some(richest)
}

/// Picks the server that `affinity` belongs to, or its next choice if that one rests. `servers` has
/// the number and the weight of each server.
///
/// Every server draws a lot from both numbers, and the best lot wins. A new or removed server moves
/// only the affinities that it wins or had won. The order of the list has no effect.
pub(super) fn pick_by_hash(
    affinity: u64,
    servers: impl Iterator<Item = (u64, u32)>,
    load: impl Fn(usize) -> Load,
) -> Option<usize> {
    let mut best: Option<(bool, f64, usize)> = None;
    for (server, (number, weight)) in servers.enumerate() {
        let load = load(server);
        if !load.is_askable() {
            continue;
        }
        let lot = mix(affinity ^ number) >> 11;
        // In the open interval (0, 1). The logarithm makes the share proportional to the weight.
        let lot = (lot as f64 + 0.5) / (1_u64 << 53) as f64;
        let bid = (load != Load::Resting, lot.ln() / f64::from(weight));
        if best.is_none_or(|(was_ready, most, _)| bid > (was_ready, most)) {
            best = Some((bid.0, bid.1, server));
        }
    }
    best.map(|(_, _, server)| server)
}

/// The first ready server from `first` on, or else the first one that rests.
fn first_usable(servers: usize, first: usize, load: impl Fn(usize) -> Load) -> Option<usize> {
    let mut around = (0..servers).map(|step| (first + step) % servers);
    let ready = around.clone().find(|&server| load(server).share() > 0);
    ready.or_else(|| around.find(|&server| load(server).is_askable()))
}

/// Mixes the bits: each bit of the result depends on every bit of `number`.
pub(super) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

impl Work {
    /// Whether one more request would be answered sooner here than at `other`.
    fn has_less_than(&self, other: &Work) -> bool {
        let (own, others) = self.times(other);
        own * (self.in_flight + 1) < others * (other.in_flight + 1)
    }

    /// Whether this server with the request has less work for its weight than `other` without it.
    fn gains_from(&self, other: &Work) -> bool {
        let (own, others) = self.times(other);
        let with = u128::from(own) * u128::from((self.in_flight + 1) * other.weight);
        with < u128::from(others) * u128::from(other.in_flight * self.weight)
    }

    /// Both latencies, or twice 1 if they do not differ enough.
    fn times(&self, other: &Work) -> (u64, u64) {
        let (own, others) = (self.latency_us.max(FAST_US), other.latency_us.max(FAST_US));
        let (least, most) = (own.min(others), own.max(others));
        let unknown = self.latency_us == 0 || other.latency_us == 0;
        if unknown || most <= least * SLOWER_TIMES {
            return (1, 1);
        }
        (own, others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> impl Iterator<Item = u64> {
        (0..1000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn work(in_flight: u64, weight: u64) -> Load {
        Load::Ready(Work {
            in_flight,
            latency_us: 0,
            weight,
        })
    }

    fn busy(in_flight: u64) -> Load {
        work(in_flight, 100)
    }

    #[test]
    fn one_server_is_always_picked_and_none_never() {
        assert_eq!(pick(0, 7, |_| Load::Resting), None);
        assert_eq!(pick(1, 7, |_| Load::Resting), Some(0));
    }

    #[test]
    fn a_resting_server_is_passed_over_while_another_is_awake() {
        for random in numbers() {
            let picked = pick(5, random, |server| match server {
                3 => busy(900),
                _ => Load::Resting,
            });
            assert_eq!(picked, Some(3));
        }
    }

    #[test]
    fn when_all_rest_one_is_tried_all_the_same() {
        for random in numbers() {
            assert!(pick(3, random, |_| Load::Resting).is_some_and(|server| server < 3));
        }
    }

    #[test]
    fn the_busiest_server_is_picked_never_and_idle_ones_evenly() {
        let mut times = [0; 4];
        for random in numbers() {
            let picked = pick(4, random, |server| match server {
                2 => busy(10),
                _ => busy(1),
            });
            times[picked.unwrap()] += 1;
        }
        assert_eq!(times[2], 0);
        assert!(
            times.iter().enumerate().all(|(i, &n)| i == 2 || n > 200),
            "{times:?}"
        );
    }

    #[test]
    fn one_that_is_down_is_picked_never() {
        for random in numbers() {
            let picked = pick(3, random, |server| match server {
                1 => Load::Resting,
                _ => Load::Down,
            });
            assert_eq!(picked, Some(1));
            assert_eq!(pick(3, random, |_| Load::Down), None);
        }
        assert_eq!(pick(1, 7, |_| Load::Down), None);
    }

    /// The number of times that each server is picked, of 10,000.
    fn times<const N: usize>(mut pick: impl FnMut(u64) -> Option<usize>) -> [usize; N] {
        let mut times = [0; N];
        for number in 0..10_000 {
            times[pick(mix(number)).unwrap()] += 1;
        }
        times
    }

    fn is_near(times: usize, percent: usize) -> bool {
        (percent * 100).abs_diff(times) < 250
    }

    #[test]
    fn one_that_is_full_is_picked_never() {
        for random in numbers() {
            let load = |server| if server == 1 { busy(9) } else { Load::Full };
            assert_eq!(pick(3, random, load), Some(1));
            assert_eq!(pick_weighted(3, random, load), Some(1));
            let servers = [(1, 1), (2, 1), (3, 1)].into_iter();
            assert_eq!(pick_by_hash(random, servers, load), Some(1));
            assert_eq!(pick(3, random, |_| Load::Full), None);
        }
        assert_eq!(pick(1, 7, |_| Load::Full), None);
    }

    #[test]
    fn with_little_to_do_shares_are_those_of_the_weights() {
        let weights = [300, 100, 100];
        let got = times::<3>(|random| pick_weighted(3, random, |server| work(0, weights[server])));
        assert!(is_near(got[0], 60) && is_near(got[1], 20), "{got:?}");
    }

    #[test]
    fn with_much_to_do_what_is_under_way_is_shared_by_the_weights() {
        let mut under_way = [0; 3];
        let weights = [300, 100, 100];
        for number in 0..500 {
            let load = |server: usize| work(under_way[server], weights[server]);
            under_way[pick_weighted(3, mix(number), load).unwrap()] += 1;
        }
        assert!((295..=305).contains(&under_way[0]), "{under_way:?}");
    }

    #[test]
    fn a_slow_server_gets_less_and_a_little_slower_is_not_slow() {
        let with = |latency_us: u64| {
            times::<2>(|random| {
                pick(2, random, |server| {
                    Load::Ready(Work {
                        in_flight: 1,
                        latency_us: [5_000, latency_us][server],
                        weight: 100,
                    })
                })
            })
        };
        assert!(is_near(with(9_000)[1], 50));
        assert_eq!(with(11_000)[1], 0);
        assert!(is_near(with(0)[1], 50));
    }

    #[test]
    fn turns_are_taken_by_weight_and_not_in_a_row() {
        let mut gained = [0; 3];
        let weights = [5, 1, 1];
        let mut turns =
            (0..7).map(|_| pick_in_turn(&mut gained, |server| work(0, weights[server])));
        let turns: Option<Vec<usize>> = turns.by_ref().collect();
        assert_eq!(turns.unwrap(), [0, 0, 1, 0, 2, 0, 0]);
        let mut gained = [0; 3];
        let mut turn = || {
            let load = |server| if server == 1 { Load::Resting } else { busy(0) };
            pick_in_turn(&mut gained, load).unwrap()
        };
        assert_eq!([turn(), turn(), turn(), turn()], [0, 2, 0, 2]);
        assert_eq!(pick_in_turn(&mut [0; 2], |_| Load::Resting), Some(0));
        assert_eq!(pick_in_turn(&mut [], |_| Load::Resting), None);
    }

    /// The server of each of 10,000 affinities, among servers with these numbers and weights.
    fn owners(servers: &[(u64, u32)]) -> Vec<u64> {
        let owner = |affinity| {
            pick_by_hash(mix(affinity), servers.iter().copied(), |_| busy(0))
                .map(|at| servers[at].0)
        };
        (0..10_000)
            .map(|affinity| owner(affinity).unwrap())
            .collect()
    }

    #[test]
    fn a_server_that_comes_or_goes_moves_only_its_share() {
        let four = [(11, 1), (12, 1), (13, 1), (14, 1)];
        let (before, after) = (owners(&four), owners(&four[..3]));
        for (before, after) in before.iter().zip(&after) {
            assert!(before == after || *before == 14);
        }
        let moved = before.iter().filter(|&&owner| owner == 14).count();
        assert!(is_near(moved, 25), "{moved}");
        let turned = owners(&[four[2], four[0], four[3], four[1]]);
        assert_eq!(turned, before);
    }

    #[test]
    fn a_heavier_server_owns_more() {
        let owners = owners(&[(21, 3), (22, 1)]);
        let heavy = owners.iter().filter(|&&owner| owner == 21).count();
        assert!(is_near(heavy, 75), "{heavy}");
    }

    #[test]
    fn what_belongs_to_a_resting_server_goes_to_others_evenly() {
        let servers = [(31, 1), (32, 1), (33, 1)];
        let load = |server| if server == 0 { Load::Resting } else { busy(0) };
        let got = times::<3>(|random| pick_by_hash(random, servers.into_iter(), load));
        assert!(got[0] == 0 && is_near(got[1], 50), "{got:?}");
        let all_rest =
            times::<3>(|random| pick_by_hash(random, servers.into_iter(), |_| Load::Resting));
        assert!(is_near(all_rest[0], 33), "{all_rest:?}");
        let one_left = |server| {
            if server == 1 {
                Load::Resting
            } else {
                Load::Down
            }
        };
        assert_eq!(pick_by_hash(7, servers.into_iter(), one_left), Some(1));
        assert_eq!(pick_weighted(3, 7, one_left), Some(1));
        assert_eq!(pick_in_turn(&mut [0; 3], one_left), Some(1));
        assert_eq!(pick_by_hash(7, servers.into_iter(), |_| Load::Down), None);
    }
}
