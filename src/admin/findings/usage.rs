//! Findings about routes with `usage`: answers that say nothing, or that cannot be read, and
//! reserves that are too small.

use super::{ABOVE_ESTIMATE, ENCODED, FoundIssue, NO_USAGE};
use crate::proxy::Proxy;
use crate::server::introspection::Snapshot;
use crate::telemetry::metrics::cells::UsageSum;
use crate::telemetry::metrics::usage::{RATIO_BOUNDS, UsageOutcome};
use crate::usage::format::AnswerFormat;
use crate::usage::settings::UsageSettings;

/// Fewer answers of a route are no finding.
const LEAST_ANSWERS: u64 = 10;
/// The least share of answers that a finding is about, per cent.
const LEAST_SHARE: u64 = 5;
/// The reserve itself, in the unit of [`RATIO_BOUNDS`].
const WHOLE: u64 = 1_000_000;

/// What was counted of the answers of one route.
pub(super) struct RouteUsage<'r> {
    pub(super) route: &'r str,
    pub(super) settings: &'r UsageSettings,
    pub(super) sum: UsageSum,
}

/// A finding about one route, if there is one.
pub(super) struct UsageIssue {
    pub(super) id: &'static str,
    /// Grows with each answer that the finding is about.
    pub(super) found: Option<FoundIssue>,
}

/// The counts of all routes with `usage`.
pub(super) fn routes<'s>(snapshot: &Snapshot<'s>) -> Vec<RouteUsage<'s>> {
    let routes = snapshot.config.routes.iter();
    let routes = routes.filter_map(|route| {
        let settings = route.usage.as_deref()?;
        let mut sum = None;
        let meters = snapshot.proxies().map(Proxy::meter);
        let cells = meters.filter_map(|meter| meter.usage(route.number));
        cells.for_each(|cells| cells.add_to(&mut sum));
        Some(RouteUsage {
            route: &route.name,
            settings,
            sum: *sum?,
        })
    });
    routes.collect()
}

/// The worst route of each finding.
pub(super) fn issues(routes: &[RouteUsage<'_>]) -> [UsageIssue; 3] {
    let worst = |judge: fn(&RouteUsage<'_>) -> Option<FoundIssue>| {
        let found = routes.iter().filter_map(judge);
        found.max_by_key(|found| found.count)
    };
    [
        UsageIssue {
            id: NO_USAGE,
            found: worst(missing),
        },
        UsageIssue {
            id: ENCODED,
            found: worst(encoded),
        },
        UsageIssue {
            id: ABOVE_ESTIMATE,
            found: worst(above_estimate),
        },
    ]
}

impl RouteUsage<'_> {
    fn count(&self, outcome: UsageOutcome) -> u64 {
        self.sum.outcomes[outcome as usize]
    }

    /// The answers that came to their ends.
    fn answers(&self) -> u64 {
        use UsageOutcome::{Drained, Encoded, Exact, Missing};
        let outcomes = [Exact, Missing, Drained, Encoded];
        outcomes.map(|outcome| self.count(outcome)).iter().sum()
    }

    /// The share of answers with this outcome, per cent. `None` if it is small.
    fn share(&self, outcome: UsageOutcome) -> Option<u64> {
        let (count, answers) = (self.count(outcome), self.answers());
        let share = count * 100 / answers.max(1);
        (answers >= LEAST_ANSWERS && share >= LEAST_SHARE).then_some(share)
    }
}

fn missing(usage: &RouteUsage<'_>) -> Option<FoundIssue> {
    let share = usage.share(UsageOutcome::Missing)?;
    let (route, settings) = (usage.route, usage.settings);
    let name = &settings.name;
    let advice = match settings.format {
        Some(AnswerFormat::OpenAi) if !settings.asks => format!(
            "If they are streams, `ask = true` in `[usage.{name}]` asks the server for their \
             usage. Otherwise `missing` chooses what they cost"
        ),
        _ => format!(
            "Compare an answer with `[usage.{name}]`: `format` names where the tokens are. \
             `missing` chooses what such answers cost"
        ),
    };
    Some(FoundIssue {
        text: format!(
            "{share} % of the answers of route `{route}` do not say how many tokens they used. \
             {advice}"
        ),
        count: usage.count(UsageOutcome::Missing),
    })
}

fn encoded(usage: &RouteUsage<'_>) -> Option<FoundIssue> {
    let share = usage.share(UsageOutcome::Encoded)?;
    Some(FoundIssue {
        text: format!(
            "{share} % of the answers of route `{}` are compressed in a way that tidegate does \
             not read, so `missing` chooses what they cost. The server ignores `Accept-Encoding`: \
             switch its compression off, or to gzip",
            usage.route
        ),
        count: usage.count(UsageOutcome::Encoded),
    })
}

fn above_estimate(usage: &RouteUsage<'_>) -> Option<FoundIssue> {
    let ratios = &usage.sum.ratios;
    let answers: u64 = ratios.classes.iter().sum();
    let mean = ratios.sum_us / answers.max(1);
    if answers < LEAST_ANSWERS || mean <= WHOLE {
        return None;
    }
    let is_above = |class: &usize| RATIO_BOUNDS.get(*class).is_none_or(|bound| *bound > WHOLE);
    let above = (0..ratios.classes.len()).filter(is_above);
    Some(FoundIssue {
        text: format!(
            "the answers of route `{}` use {} % of their reserve on the average, so budgets can \
             be overdrawn. Lower `bytes_per_token` of `[usage.{}]`, or raise its `default_output`",
            usage.route,
            mean * 100 / WHOLE,
            usage.settings.name
        ),
        count: above.map(|class| ratios.classes[class]).sum(),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::config::load_text;

    fn settings(usage: &str) -> Arc<UsageSettings> {
        let file = format!(
            "upstream = \"http://127.0.0.1:1\"\n[limit.l]\nrate = \"9/s\"\n\
             [usage.chat]\nformat = \"openai\"\n{usage}\n\
             [[route]]\npath = \"/\"\nlimits = [\"l\"]\nusage = \"chat\"\n"
        );
        let Ok((config, _)) = load_text(Path::new("proxy.toml"), &file) else {
            panic!("{file}");
        };
        let mut usages = config.routes.iter().filter_map(|route| route.usage.clone());
        usages.next().unwrap()
    }

    fn found(settings: &UsageSettings, sum: UsageSum) -> Vec<(&'static str, String, u64)> {
        let route = RouteUsage {
            route: "/",
            settings,
            sum,
        };
        let issues = issues(&[route]).into_iter();
        issues
            .filter_map(|issue| {
                let found = issue.found?;
                Some((issue.id, found.text, found.count))
            })
            .collect()
    }

    fn outcomes(outcome: UsageOutcome, count: u64) -> UsageSum {
        let mut sum = UsageSum::default();
        sum.outcomes[UsageOutcome::Exact as usize] = 100 - count;
        sum.outcomes[outcome as usize] += count;
        sum
    }

    #[test]
    fn answers_without_usage_are_a_finding() {
        for (usage, advice) in [("", "ask = true"), ("ask = true", "`format`")] {
            let settings = settings(usage);
            let all = found(&settings, outcomes(UsageOutcome::Missing, 40));
            let [(NO_USAGE, text, 40)] = &all[..] else {
                panic!("{all:?}");
            };
            assert!(text.starts_with("40 % of the answers"), "{text}");
            assert!(
                text.contains(advice) && text.contains("`missing`"),
                "{text}"
            );
            assert_eq!(found(&settings, outcomes(UsageOutcome::Missing, 4)), []);
            // Clients that left say nothing of the server.
            assert_eq!(found(&settings, outcomes(UsageOutcome::Aborted, 99)), []);
        }
    }

    #[test]
    fn answers_that_cannot_be_read_are_a_finding() {
        let all = found(&settings(""), outcomes(UsageOutcome::Encoded, 100));
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].0, all[0].2), (ENCODED, 100));
    }

    #[test]
    fn reserves_that_are_too_small_are_a_finding() {
        let with = |mean: u64| {
            let mut sum = outcomes(UsageOutcome::Exact, 0);
            sum.ratios.sum_us = 20 * mean;
            sum.ratios.classes[0] = 15;
            sum.ratios.classes[13] = 3;
            sum.ratios.classes[14] = 2;
            sum
        };
        let settings = settings("");
        assert_eq!(found(&settings, with(WHOLE)), []);
        let all = found(&settings, with(1_304_000));
        let [(ABOVE_ESTIMATE, text, 5)] = &all[..] else {
            panic!("{all:?}");
        };
        assert!(
            text.contains("130 %") && text.contains("default_output"),
            "{text}"
        );
    }
}
