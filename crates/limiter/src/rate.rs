//! How much may be used in how long.

use std::time::Duration;

use tidegate_core::limit;

/// Units in any window of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    units: u32,
    window: Duration,
}

impl Rate {
    /// `units` in any `window`. The window is in whole milliseconds, from 1 ms to 366 days.
    /// [`Limits::build`](crate::Limits::build) refuses any other.
    pub const fn new(units: u32, window: Duration) -> Rate {
        Rate { units, window }
    }

    /// `units` in any second.
    pub const fn per_second(units: u32) -> Rate {
        Rate::new(units, Duration::from_secs(1))
    }

    /// `units` in any minute.
    pub const fn per_minute(units: u32) -> Rate {
        Rate::new(units, Duration::from_secs(60))
    }

    /// `units` in any hour.
    pub const fn per_hour(units: u32) -> Rate {
        Rate::new(units, Duration::from_secs(3_600))
    }

    /// `units` in any 24 hours.
    pub const fn per_day(units: u32) -> Rate {
        Rate::new(units, Duration::from_secs(86_400))
    }

    /// The rate as the limiter counts it, or what is wrong with it.
    pub(crate) fn checked(self) -> Result<limit::Rate, &'static str> {
        let window_us = u64::try_from(self.window.as_micros()).unwrap_or(u64::MAX);
        if self.units == 0 {
            return Err("a rate of 0 units lets nothing pass");
        }
        if window_us % 1_000 != 0 {
            return Err("a window is in whole milliseconds");
        }
        if !(limit::rate::MIN_WINDOW_US..=limit::rate::MAX_WINDOW_US).contains(&window_us) {
            return Err("a window is from 1 ms to 366 days long");
        }
        Ok(limit::Rate {
            units: u64::from(self.units),
            window_us,
        })
    }
}
