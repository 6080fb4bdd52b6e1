//! Windows: one rate of a limit, the name of its counts in the store, and its texts for clients.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderValue;

use super::headers::seconds_up;
use super::{Algorithm, AnchorDay, Calendar, CalendarSettings, CalendarUnit, KeyHash, Rate, Rule};

/// The version of the stored counts. Another version is another key: counts start anew.
const LAYOUT: u8 = 2;

/// One rate of a limit.
#[derive(Clone, Debug)]
pub struct Window {
    /// The name that clients read: `LIMIT`, or `LIMIT/WINDOW` where a limit has several rates.
    pub policy: Arc<str>,
    pub rule: Rule,
    /// `NAME.FP`: it follows the tag in the store's key. FP is four characters over the layout
    /// version, algorithm and window, and the zone, time and weekday of a calendar window. If one
    /// of these changes, counts start anew. If only the rate or the precision changes, counts stay.
    pub store_suffix: String,
    /// 16 bytes over `store_suffix`. Mixed with a tag, they identify one budget in memory.
    pub identity: u128,
    /// When its windows begin and end, for [`Algorithm::Calendar`].
    pub calendar: Option<Arc<Calendar>>,
    pub texts: WindowTexts,
}

/// The texts that clients get of a window, made once and not for each request. Each worker has its
/// own copy, since handing out a value counts a reference to it.
#[derive(Clone, Debug)]
pub struct WindowTexts {
    /// The units: `5`.
    pub units: HeaderValue,
    /// The element of `RateLimit-Policy`: `"login";q=5;w=60`. Without `w` for a calendar window,
    /// whose length changes.
    pub policy: HeaderValue,
    /// For people: `"login" allows 5/min`.
    pub allows: Box<str>,
    /// `allows` as the inside of a JSON string.
    pub allows_json: Box<str>,
}

#[derive(Clone, Debug)]
pub struct Tier {
    pub name: Arc<str>,
    pub windows: Vec<Arc<Window>>,
}

impl Window {
    /// A calendar window of a default calendar, or any other window.
    pub fn new(limit: &str, rule: Rule) -> Window {
        Window::with_calendar(limit, rule, &Arc::default())
    }

    pub fn with_calendar(limit: &str, rule: Rule, settings: &Arc<CalendarSettings>) -> Window {
        let unit = rule.calendar_unit();
        let calendar = unit.map(|unit| Arc::new(Calendar::new(unit, Arc::clone(settings))));
        let store_suffix = store_suffix(limit, rule, calendar.as_deref());
        Window {
            policy: limit.into(),
            rule,
            identity: identity(&store_suffix),
            store_suffix,
            calendar,
            texts: WindowTexts::new(limit, rule),
        }
    }

    /// A rate that a caller brings for descriptors of this domain. Its counts are apart from those
    /// of the limit.
    pub fn of_caller(limit: &str, domain: &str, rule: Rule) -> Window {
        let hash = blake3::hash(domain.as_bytes()).to_hex();
        let apart = Window::new(&format!("{limit}~{}", &hash[..16]), rule);
        Window {
            policy: limit.into(),
            texts: WindowTexts::new(limit, rule),
            ..apart
        }
    }

    /// The rate as the configuration writes it.
    pub fn rate(&self) -> String {
        match self.rule.algorithm {
            Algorithm::Slots => format!("{} at once", self.rule.units),
            Algorithm::Log | Algorithm::Counter | Algorithm::Calendar => {
                Rate::from_rule(self.rule).to_string()
            }
        }
    }

    /// Copies the window for another worker, without shared memory.
    pub fn deep_copy(&self) -> Window {
        Window {
            policy: Arc::from(&*self.policy),
            store_suffix: self.store_suffix.clone(),
            calendar: self.calendar.as_ref().map(|one| Arc::new(one.deep_copy())),
            texts: WindowTexts::new(&self.policy, self.rule),
            ..*self
        }
    }

    /// The identity in memory of one key's budget in the window with that suffix.
    pub fn budget(store_suffix: &str, tag: KeyHash) -> u128 {
        u128::from_le_bytes(tag.0) ^ identity(store_suffix)
    }

    /// The windows of a limit with these rules and this calendar.
    pub fn all(limit: &str, rules: &[Rule], calendar: &Arc<CalendarSettings>) -> Vec<Arc<Window>> {
        let window = |rule: &Rule| {
            let mut window = Window::with_calendar(limit, *rule, calendar);
            if rules.len() > 1 {
                let length = Rate::from_rule(*rule).window_text();
                window.policy = format!("{limit}/{length}").into();
                window.texts = WindowTexts::new(&window.policy, *rule);
            }
            Arc::new(window)
        };
        rules.iter().map(window).collect()
    }

    /// The window in which a candidate rule is counted beside the enforced rule.
    pub fn candidate(limit: &str, rule: Rule, calendar: &Arc<CalendarSettings>) -> Window {
        // No limit's name has a `~`.
        Window::with_calendar(&format!("{limit}~candidate"), rule, calendar)
    }

    /// The rate, and the zone of a calendar window: `1000000/month in Europe/Berlin`.
    pub fn rate_and_zone(&self) -> String {
        match &self.calendar {
            Some(calendar) => format!("{}/{}", self.rule.units, calendar.name()),
            None => self.rate(),
        }
    }

    /// Whether the ends of the window depend on the anchor.
    pub fn asks_anchor(&self) -> bool {
        let unit = self.rule.calendar_unit();
        matches!(unit, Some(CalendarUnit::Month | CalendarUnit::Year))
    }

    /// When a calendar window ends, as RFC 3339 in its zone. `left_us` is the time until then as
    /// the store counts it, `unix_us` the time now.
    pub fn resets_at(
        &self,
        anchor: Option<AnchorDay>,
        unix_us: u64,
        left_us: u64,
    ) -> Option<String> {
        let calendar = self.calendar.as_ref()?;
        let span = calendar.span_ending(anchor, unix_us, unix_us.saturating_add(left_us));
        Some(calendar.text(span.end_us))
    }
}

impl WindowTexts {
    fn new(policy: &str, rule: Rule) -> WindowTexts {
        let units = rule.units;
        let (element, allows) = match rule.algorithm {
            Algorithm::Slots => (
                format!("\"{policy}\";q={units};qu=\"concurrent-requests\""),
                format!("\"{policy}\" allows {units} requests at once"),
            ),
            Algorithm::Calendar => (
                format!("\"{policy}\";q={units}"),
                format!("\"{policy}\" allows {}", Rate::from_rule(rule)),
            ),
            Algorithm::Log | Algorithm::Counter => (
                format!("\"{policy}\";q={units};w={}", seconds_up(rule.window_us)),
                format!("\"{policy}\" allows {}", Rate::from_rule(rule)),
            ),
        };
        // A policy's name is of `[a-z0-9_/~-]`: nothing in it needs an escape.
        let unnamed = HeaderValue::from_static("unnamed");
        WindowTexts {
            units: HeaderValue::from(units),
            policy: HeaderValue::try_from(element).unwrap_or(unnamed),
            allows_json: allows.replace('"', "\\\"").into(),
            allows: allows.into(),
        }
    }
}

/// `NAME.FP`, where FP is a hash over everything that makes old counts unusable.
fn store_suffix(name: &str, rule: Rule, calendar: Option<&Calendar>) -> String {
    let mut hasher = blake3::Hasher::new();
    let algorithm = match rule.algorithm {
        Algorithm::Log => 0,
        Algorithm::Counter => 1,
        Algorithm::Slots => 2,
        Algorithm::Calendar => 3,
    };
    hasher.update(&[LAYOUT, algorithm]);
    // Each lease of slots says when it ends, so a changed `hold` needs no other key.
    let window_us = match rule.algorithm {
        Algorithm::Slots => 0,
        _ => rule.window_us,
    };
    hasher.update(&window_us.to_le_bytes());
    // Older versions hashed the precision here, which was 1 for all but coarse logs.
    hasher.update(&1_u64.to_le_bytes());
    if let Some(calendar) = calendar {
        hasher.update(calendar.identity().as_bytes());
    }
    let mut bytes = [0; 3];
    hasher.finalize_xof().fill(&mut bytes);
    format!("{name}.{}", URL_SAFE_NO_PAD.encode(bytes))
}

fn identity(store_suffix: &str) -> u128 {
    let mut bytes = [0; 16];
    blake3::Hasher::new()
        .update(store_suffix.as_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    u128::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(algorithm: Algorithm, units: u64, window_us: u64) -> Rule {
        Rule {
            algorithm,
            units,
            window_us,
            precision_us: 1,
        }
    }

    #[test]
    fn the_suffix_depends_on_all_but_the_rate_and_the_precision() {
        let base = store_suffix("login", rule(Algorithm::Log, 5, 60_000_000), None);
        let same = store_suffix("login", rule(Algorithm::Log, 50, 60_000_000), None);
        assert_eq!(base, same);
        let coarse = Rule {
            precision_us: 60_000,
            ..rule(Algorithm::Log, 5000, 60_000_000)
        };
        assert_eq!(base, store_suffix("login", coarse, None));
        for other in [
            store_suffix("login", rule(Algorithm::Log, 5, 61_000_000), None),
            store_suffix("login", rule(Algorithm::Counter, 5, 60_000_000), None),
            store_suffix("other", rule(Algorithm::Log, 5, 60_000_000), None),
        ] {
            assert_ne!(base, other);
        }
        let (name, print) = base.split_once('.').unwrap();
        assert_eq!((name, print.len()), ("login", 4));
    }

    #[test]
    fn the_suffix_never_changes_between_versions() {
        // Counts in Redis outlive this process: a change here forgets all of them.
        let suffix = store_suffix("login", rule(Algorithm::Log, 5, 60_000_000), None);
        assert_eq!(suffix, "login.tV3H");
    }

    #[test]
    fn each_of_several_rates_has_a_name_of_its_own() {
        let rules = [
            rule(Algorithm::Log, 10, 1_000_000),
            rule(Algorithm::Log, 1000, 3_600_000_000),
        ];
        let named = |rules| -> Vec<String> {
            let windows = Window::all("api", rules, &Arc::default());
            windows.iter().map(|one| one.policy.to_string()).collect()
        };
        assert_eq!(named(&rules), ["api/s", "api/h"]);
        assert_eq!(named(&rules[..1]), ["api"]);
    }
}
