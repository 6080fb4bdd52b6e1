//! A denial by one limit that is known to last: nothing is left, nothing becomes free before its
//! wait ends, so until then every question like it has the same answer but for the time that has
//! passed. Whoever asks keeps it, and the counts are not looked at meanwhile.
//!
//! It ends early where a count changes in another way than by admissions and expiries (units given
//! back or charged on top, a key forgotten): the store's epoch is another then.

use smallvec::smallvec;

use crate::limit::{Decision, Retry, Verdict};

/// See the file's head. Times are microseconds of the asker's clock, but for `at_us`.
#[derive(Clone, Copy, Debug)]
pub struct Lasting {
    epoch: u64,
    from_us: u64,
    until_us: u64,
    /// The store's clock at `from_us`.
    at_us: u64,
    used: u64,
    next_us: u64,
    reset_us: u64,
}

impl Lasting {
    /// What was said at `from_us`, when the store's clock showed `at_us` and its epoch was this, if
    /// it holds until `until_us`.
    pub(super) fn new(
        verdict: &Verdict,
        (from_us, until_us): (u64, u64),
        (at_us, epoch): (u64, u64),
    ) -> Option<Lasting> {
        verdict.lasts().then_some(Lasting {
            epoch,
            from_us,
            until_us,
            at_us,
            used: verdict.used,
            next_us: verdict.next_us,
            reset_us: verdict.reset_us,
        })
    }

    /// The denial of the same question now, if it still holds.
    pub(super) fn decision(&self, epoch: u64, now_us: u64) -> Option<Decision> {
        let holds = epoch == self.epoch && (self.from_us..self.until_us).contains(&now_us);
        holds.then(|| {
            let passed = now_us - self.from_us;
            let verdict = Verdict {
                used: self.used,
                remaining: 0,
                retry: Retry::After(self.next_us),
                reset_us: self.reset_us,
                next_us: self.next_us,
                stamp: 0,
            };
            Decision {
                allowed: false,
                at_us: self.at_us + passed,
                verdicts: smallvec![verdict.later(passed)],
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::deny_cache::tests::chance;
    use super::*;
    use crate::limit::decide::Count;
    use crate::limit::{Algorithm, Rule};

    /// Whoever else asks meanwhile, every number is what the count itself would say.
    #[test]
    fn what_lasts_is_what_the_count_says() {
        let mut told = 0;
        for seed in 1..=600_u64 {
            let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let (algorithm, precision_us) = match seed % 4 {
                0 => (Algorithm::Counter, 1),
                1 => (Algorithm::Log, 1),
                2 => (Algorithm::Log, 10_000),
                _ => (Algorithm::Log, 250_000),
            };
            let rule = Rule {
                algorithm,
                units: 1 + chance(&mut random, 12),
                window_us: 1_000_000,
                precision_us,
            };
            let (mut count, mut last) = (Count::new(algorithm), None::<(u64, Lasting)>);
            let mut now_us = 1_700_000_000_000_000;
            for _ in 0..400 {
                now_us += [0, 1, 900, 30_000, 200_000][chance(&mut random, 5) as usize];
                let cost = 1 + chance(&mut random, 3);
                let look = count.look(&rule, cost, now_us);
                let allowed = look.retry == Retry::Now;
                let verdict = count.settle(&rule, cost, &look, allowed);
                let known = last.filter(|(of, _)| *of == cost);
                if let Some(known) = known.and_then(|(_, last)| last.decision(0, now_us)) {
                    assert!(!allowed, "seed {seed} at {now_us}");
                    let said = Verdict {
                        stamp: 0,
                        ..verdict
                    };
                    assert_eq!(known.verdicts[0], said, "seed {seed} at {now_us}");
                    assert_eq!(known.at_us, now_us);
                    told += 1;
                }
                if let Retry::After(us) = verdict.retry {
                    let span = (now_us, now_us + us);
                    let lasting = Lasting::new(&verdict, span, (now_us, 0));
                    last = lasting.map(|lasting| (cost, lasting)).or(last);
                }
            }
        }
        assert!(told > 5_000, "{told}");
    }

    #[test]
    fn another_epoch_ends_it() {
        let verdict = Verdict {
            used: 3,
            remaining: 0,
            retry: Retry::After(500),
            reset_us: 900,
            next_us: 500,
            stamp: 7,
        };
        let lasting = Lasting::new(&verdict, (1_000, 1_500), (9_000, 4)).unwrap();
        let told = lasting.decision(4, 1_499).unwrap();
        assert_eq!((told.allowed, told.at_us), (false, 9_499));
        assert_eq!(told.verdicts[0].retry, Retry::After(1));
        assert_eq!(told.verdicts[0].reset_us, 401);
        for (epoch, now_us) in [(5, 1_200), (4, 999), (4, 1_500)] {
            assert!(lasting.decision(epoch, now_us).is_none());
        }
        let left = Verdict {
            remaining: 1,
            ..verdict
        };
        assert!(Lasting::new(&left, (1_000, 1_500), (9_000, 4)).is_none());
    }
}
