//! The share of clients for whom a limit denies. For all others it only counts, as in shadow mode.
//!
//! The keyed hash of a key decides. So all proxies agree, a client always sees the same, and a
//! higher share keeps those that were in a lower one.

use super::{KeyHash, Limit};

/// `enforce` of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnforcedShare {
    /// Hundredths of a percent; 1 to 10,000.
    share: u16,
}

const WHOLE: u16 = 10_000;

impl EnforcedShare {
    pub const ALL: EnforcedShare = EnforcedShare { share: WHOLE };

    /// Reads `10%` or `0.25%`.
    pub fn parse(text: &str) -> Result<EnforcedShare, &'static str> {
        const WANTED: &str = "write for example `10%` or `0.5%`, above 0 and at most 100";
        let number = text.strip_suffix('%').ok_or(WANTED)?.trim_end();
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !is_digits(whole) || !is_digits(part) || whole.len() > 3 || part.len() > 2 {
            return Err(WANTED);
        }
        let hundredths = match part.len() {
            1 => part.parse::<u16>().map(|tenths| tenths * 10),
            _ => part.parse(),
        };
        let whole: u16 = whole.parse().map_err(|_| WANTED)?;
        let share = whole * 100 + hundredths.map_err(|_| WANTED)?;
        match (1..=WHOLE).contains(&share) {
            true => Ok(EnforcedShare { share }),
            false => Err(WANTED),
        }
    }

    /// Whether the limit with this name denies the client with this key.
    pub fn has(self, limit: &str, key: KeyHash) -> bool {
        self == EnforcedShare::ALL || place(limit, key) % u64::from(WHOLE) < u64::from(self.share)
    }
}

impl Limit {
    /// Whether it denies the client with this key, and does not only count it.
    pub fn enforces(&self, tag: KeyHash) -> bool {
        !self.shadow && self.enforce.has(&self.name, tag)
    }

    /// Whether it only counts some clients, or has a candidate.
    pub fn may_be_tried(&self) -> bool {
        self.shadow || self.enforce != EnforcedShare::ALL || !self.candidate.is_empty()
    }
}

/// Where a key stands among all keys of a limit. Limits have different orders.
fn place(limit: &str, key: KeyHash) -> u64 {
    let KeyHash(bytes) = key;
    let mut place = u128::from_le_bytes(bytes) as u64;
    for byte in limit.bytes() {
        place = mix(place ^ u64::from(byte));
    }
    mix(place)
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(text: &str) -> EnforcedShare {
        EnforcedShare::parse(text).unwrap()
    }

    fn key(number: u128) -> KeyHash {
        KeyHash(number.to_le_bytes())
    }

    #[test]
    fn shares_are_read() {
        assert_eq!(share("100%"), EnforcedShare::ALL);
        assert_eq!(share("0.5%").share, 50);
        assert_eq!(share("12.25 %").share, 1225);
        for wrong in [
            "", "%", "10", "0%", "101%", "-1%", "1.%", ".5%", "1.234%", "a%", "1e1%",
        ] {
            assert!(EnforcedShare::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_share_has_that_many_keys_and_a_higher_one_keeps_them() {
        let count = |share: EnforcedShare| (0..10_000).filter(|n| share.has("a", key(*n))).count();
        let (tenth, half) = (share("10%"), share("50%"));
        assert!((900..1100).contains(&count(tenth)), "{}", count(tenth));
        assert!((4800..5200).contains(&count(half)), "{}", count(half));
        assert_eq!(count(EnforcedShare::ALL), 10_000);
        for number in 0..10_000 {
            let key = key(number);
            assert!(half.has("a", key) || !tenth.has("a", key));
        }
    }

    #[test]
    fn limits_choose_other_keys() {
        let half = share("50%");
        let both = (0..10_000).filter(|n| half.has("a", key(*n)) && half.has("b", key(*n)));
        assert!((2300..2700).contains(&both.count()));
    }
}
