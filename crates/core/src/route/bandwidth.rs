//! The speed of the responses of a route.

use std::time::Duration;

use crate::limit::rate::parse_size;

/// Bytes of a response's body per second, from its first byte or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// Bytes per second, at least 1.
    rate: u64,
    /// Bytes that are sent at full speed before.
    after: u64,
}

impl Bandwidth {
    /// `None` for a rate of 0.
    pub fn new(rate: u64, after: u64) -> Option<Bandwidth> {
        (rate > 0).then_some(Bandwidth { rate, after })
    }

    /// Reads `1MiB/s`.
    pub fn parse(text: &str) -> Result<Bandwidth, &'static str> {
        let size = text.trim().strip_suffix("/s").map(parse_size);
        let rate = size.and_then(Result::ok);
        rate.and_then(|rate| Bandwidth::new(rate, 0))
            .ok_or("write bytes per second, such as `1MiB/s`")
    }

    pub fn sent_before(self, after: u64) -> Bandwidth {
        Bandwidth { after, ..self }
    }

    /// Bytes that may be sent in this time from the beginning.
    pub fn bytes_in(self, time: Duration) -> u64 {
        let bytes = u128::from(self.rate) * time.as_micros() / 1_000_000;
        u64::try_from(bytes)
            .unwrap_or(u64::MAX)
            .saturating_add(self.after)
    }

    /// The time after which so many bytes may have been sent.
    pub fn time_of(self, bytes: u64) -> Duration {
        let bytes = u128::from(bytes.saturating_sub(self.after));
        let micros = (bytes * 1_000_000).div_ceil(u128::from(self.rate));
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_times_fit_together() {
        let bandwidth = Bandwidth::parse("2KiB/s").unwrap().sent_before(100);
        assert_eq!(bandwidth.bytes_in(Duration::from_millis(500)), 1_124);
        assert_eq!(bandwidth.time_of(1_124), Duration::from_millis(500));
        assert_eq!(bandwidth.time_of(100), Duration::ZERO);
        for text in ["2KiB", "0/s", "KiB/s", "1MiB/min", "unlimited"] {
            assert!(Bandwidth::parse(text).is_err(), "{text}");
        }
    }
}
