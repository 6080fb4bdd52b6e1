//! Which of an upstream's servers gets the next request: a pure choice.
//!
//! Two servers are drawn at random and the one with fewer requests under way wins. That is nearly
//! as even as asking all of them, and unlike "the least busy of all" it does not send everybody
//! to the server that just came back. It must never wait, read a clock or change anything.

use std::time::Duration;

/// The first rest of a server that could not be reached; each further failure doubles it.
const FIRST_REST: Duration = Duration::from_secs(1);
/// Doublings at most: 16 s.
const MAX_DOUBLINGS: u32 = 4;

/// What is known of a server when a request is about to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// It could not be reached lately and is left in peace while there are others.
    Resting,
    /// It serves this many requests of ours.
    InFlight(usize),
}

/// The index of the server to use, or `None` if there are none. `random` is any number; `load`
/// tells of each server, and a resting one is chosen only when all of them rest.
pub(super) fn pick(servers: usize, random: u64, load: impl Fn(usize) -> Load) -> Option<usize> {
    if servers <= 1 {
        return (servers == 1).then_some(0);
    }
    let count = servers as u64;
    let first = (random % count) as usize;
    // A different one: an offset of 1 to count - 1 from the first.
    let offset = 1 + (random >> 32) % (count - 1);
    let second = (first + offset as usize) % servers;
    match (load(first), load(second)) {
        (Load::InFlight(one), Load::InFlight(other)) if other < one => Some(second),
        (Load::InFlight(_), _) => Some(first),
        (Load::Resting, Load::InFlight(_)) => Some(second),
        (Load::Resting, Load::Resting) => {
            let awake = (0..servers)
                .map(|step| (first + step) % servers)
                .find(|&server| load(server) != Load::Resting);
            Some(awake.unwrap_or(first))
        }
    }
}

/// How long a server rests after its `failures`-th failure in a row.
pub(super) fn rest(failures: u32) -> Duration {
    FIRST_REST * 2_u32.pow(failures.saturating_sub(1).min(MAX_DOUBLINGS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> impl Iterator<Item = u64> {
        (0..1000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
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
                3 => Load::InFlight(900),
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
                2 => Load::InFlight(10),
                _ => Load::InFlight(1),
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
    fn rests_double_up_to_a_bound() {
        assert_eq!(rest(1), Duration::from_secs(1));
        assert_eq!(rest(2), Duration::from_secs(2));
        assert_eq!(rest(u32::MAX), Duration::from_secs(16));
    }
}
