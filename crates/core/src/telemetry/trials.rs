//! Limits on trial: once a minute, what each of them would have denied had it been enforced.
//!
//! `limit search (shadow): would have denied 12 of 345`, and nothing where that is none. Bounded by
//! the limits of the configuration; requests without such limits never come here.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::clock;
use crate::limit::Role;

/// How often it is told.
const EVERY: Duration = Duration::from_secs(60);

/// What was seen since it was last told; all workers' together.
#[derive(Debug)]
pub struct Trials(Mutex<Seen>);

#[derive(Debug)]
struct Seen {
    limits: BTreeMap<(Arc<str>, Role), Figures>,
    since: Instant,
}

#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    denied: u64,
    decided: u64,
}

/// What is told of one limit.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    limit: Arc<str>,
    role: Role,
    denied: u64,
    decided: u64,
}

impl Default for Trials {
    fn default() -> Self {
        Trials(Mutex::new(Seen {
            limits: BTreeMap::new(),
            since: clock::now(),
        }))
    }
}

impl Trials {
    /// Notes one decision.
    pub fn note(&self, limit: &Arc<str>, role: Role, denied: bool) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let figures = seen.limits.entry((Arc::clone(limit), role)).or_default();
        figures.decided += 1;
        figures.denied += u64::from(denied);
    }

    /// Tells what was seen if it is time to.
    pub fn tell(&self, now: Instant) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = seen.take_due(now, EVERY);
        drop(seen);
        due.iter().for_each(|told| tracing::info!("{told}"));
    }
}

impl Drop for Trials {
    fn drop(&mut self) {
        let seen = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        let left = seen.take_due(clock::now(), Duration::ZERO);
        left.iter().for_each(|told| tracing::info!("{told}"));
    }
}

impl Seen {
    fn take_due(&mut self, now: Instant, every: Duration) -> Vec<Told> {
        if now.saturating_duration_since(self.since) < every {
            return Vec::new();
        }
        self.since = now;
        let seen = std::mem::take(&mut self.limits).into_iter();
        seen.filter(|(_, figures)| figures.denied > 0)
            .map(|((limit, role), figures)| Told {
                limit,
                role,
                denied: figures.denied,
                decided: figures.decided,
            })
            .collect()
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "limit {} ({}): would have denied {} of {}",
            self.limit,
            self.role.word(),
            self.denied,
            self.decided
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_a_minute_and_only_what_would_have_been_denied() {
        let trials = Trials::default();
        for request in 0..10 {
            trials.note(&"search".into(), Role::Shadow, request < 3);
            trials.note(&"search".into(), Role::Candidate, false);
        }
        let mut seen = trials.0.lock().unwrap();
        let start = seen.since;
        assert_eq!(seen.take_due(start + EVERY / 2, EVERY), []);
        let told = seen.take_due(start + EVERY, EVERY);
        let lines: Vec<String> = told.iter().map(ToString::to_string).collect();
        assert_eq!(lines, ["limit search (shadow): would have denied 3 of 10"]);
        assert_eq!(seen.take_due(start + EVERY * 2, EVERY), []);
    }
}
