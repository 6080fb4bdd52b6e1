//! Calendar windows: days, weeks, months and years of a time zone.

pub mod zone;

pub use zone::{
    AnchorDay, AnchorSource, Calendar, CalendarSettings, CalendarSpan, CalendarUnit, Zone,
};
