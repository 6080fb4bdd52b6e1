//! Windows: one rate of a limit, and where its counts are found.

mod wording;

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{Algorithm, KeyHash, Rate, Rule};
pub use wording::Wording;

/// The version of what is stored. Another version is another key: counts start anew.
const LAYOUT: u8 = 2;

/// One rate of a limit.
#[derive(Clone, Debug)]
pub struct Window {
    /// What clients read: the limit's name, or `NAME/WINDOW` where a limit has several rates.
    pub policy: Arc<str>,
    /// What the store enforces.
    pub rule: Rule,
    /// `NAME.FP`: what follows the tag in the store's key. FP is four characters over the layout
    /// version, algorithm and window, so that changing those starts anew while changing the rate
    /// or the precision keeps history.
    pub store_suffix: String,
    /// 16 bytes over `store_suffix`: mixed with a tag, the identity of one budget in memory.
    pub identity: u128,
    /// What clients are told of it.
    pub wording: Wording,
}

/// The rates of a class of clients.
#[derive(Clone, Debug)]
pub struct Tier {
    /// Its name.
    pub name: Arc<str>,
    /// What is enforced for its clients.
    pub windows: Vec<Arc<Window>>,
}

impl Window {
    /// The window of a limit with this one rule.
    pub fn new(limit: &str, rule: Rule) -> Window {
        let store_suffix = store_suffix(limit, rule);
        Window {
            policy: limit.into(),
            rule,
            identity: identity(&store_suffix),
            store_suffix,
            wording: Wording::of(limit, rule),
        }
    }

    /// The rate as a file has it.
    pub fn rate(&self) -> String {
        let Rule {
            units, window_us, ..
        } = self.rule;
        match self.rule.algorithm {
            Algorithm::Slots => format!("{units} at once"),
            Algorithm::Log | Algorithm::Counter => Rate { units, window_us }.to_string(),
        }
    }

    /// A copy that shares nothing with this one.
    pub fn own(&self) -> Window {
        Window {
            policy: Arc::from(&*self.policy),
            rule: self.rule,
            store_suffix: self.store_suffix.clone(),
            identity: self.identity,
            wording: Wording::of(&self.policy, self.rule),
        }
    }

    /// The identity in memory of one key's budget in the window with that suffix.
    pub fn budget(store_suffix: &str, tag: KeyHash) -> u128 {
        u128::from_le_bytes(tag.0) ^ identity(store_suffix)
    }

    /// The windows of a limit with these rules.
    pub fn all(limit: &str, rules: &[Rule]) -> Vec<Arc<Window>> {
        let window = |rule: &Rule| {
            let mut window = Window::new(limit, *rule);
            if rules.len() > 1 {
                let rate = Rate {
                    units: rule.units,
                    window_us: rule.window_us,
                };
                let text = rate.to_string();
                let (_, length) = text.split_once('/').unwrap_or_default();
                window.policy = format!("{limit}/{length}").into();
                window.wording = Wording::of(&window.policy, *rule);
            }
            Arc::new(window)
        };
        rules.iter().map(window).collect()
    }

    /// The window in which a candidate rule is counted beside what the limit enforces.
    pub fn candidate(limit: &str, rule: Rule) -> Window {
        // No limit's name has a `~`.
        Window::new(&format!("{limit}~candidate"), rule)
    }
}

/// `NAME.FP`, where FP is four characters over all that makes old counts unusable. The rate's units
/// and the precision are not among it: changing them keeps history.
fn store_suffix(name: &str, rule: Rule) -> String {
    let mut hasher = blake3::Hasher::new();
    let algorithm = match rule.algorithm {
        Algorithm::Log => 0,
        Algorithm::Counter => 1,
        Algorithm::Slots => 2,
    };
    hasher.update(&[LAYOUT, algorithm]);
    hasher.update(&rule.window_us.to_le_bytes());
    // Here stood the precision, which was 1 for all but coarse logs. Their names stay.
    hasher.update(&1_u64.to_le_bytes());
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
        let base = store_suffix("login", rule(Algorithm::Log, 5, 60_000_000));
        let same = store_suffix("login", rule(Algorithm::Log, 50, 60_000_000));
        assert_eq!(base, same);
        let coarse = Rule {
            precision_us: 60_000,
            ..rule(Algorithm::Log, 5000, 60_000_000)
        };
        assert_eq!(base, store_suffix("login", coarse));
        for other in [
            store_suffix("login", rule(Algorithm::Log, 5, 61_000_000)),
            store_suffix("login", rule(Algorithm::Counter, 5, 60_000_000)),
            store_suffix("other", rule(Algorithm::Log, 5, 60_000_000)),
        ] {
            assert_ne!(base, other);
        }
        let (name, print) = base.split_once('.').unwrap();
        assert_eq!((name, print.len()), ("login", 4));
    }

    #[test]
    fn the_suffix_never_changes_between_versions() {
        // Counts in Redis outlive this process: a change here forgets all of them.
        let suffix = store_suffix("login", rule(Algorithm::Log, 5, 60_000_000));
        assert_eq!(suffix, "login.tV3H");
    }

    #[test]
    fn each_of_several_rates_has_a_name_of_its_own() {
        let rules = [
            rule(Algorithm::Log, 10, 1_000_000),
            rule(Algorithm::Log, 1000, 3_600_000_000),
        ];
        let named = |rules| -> Vec<String> {
            let windows = Window::all("api", rules);
            windows.iter().map(|one| one.policy.to_string()).collect()
        };
        assert_eq!(named(&rules), ["api/s", "api/h"]);
        assert_eq!(named(&rules[..1]), ["api"]);
    }
}
