//! Reads the rates of an override, for the limit that it changes.

use super::record::{MAX_RULES, is_sound};
use crate::limit::rate::{MAX_UNITS, Rate, RateText};
use crate::limit::{Algorithm, Limit, Rule};

/// Why rates cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesError {
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub help: Option<String>,
}

impl RulesError {
    fn new(message: impl Into<String>) -> RulesError {
        RulesError {
            message: message.into(),
            help: None,
        }
    }

    fn help(mut self, help: impl Into<String>) -> RulesError {
        self.help = Some(help.into());
        self
    }
}

/// What an override puts in the place of a limit's rates; nothing for no limit at all.
pub fn rules(text: &str, limit: &Limit) -> Result<Vec<Rule>, RulesError> {
    if text.trim() == "unlimited" {
        return Ok(Vec::new());
    }
    let mut rules: Vec<Rule> = Vec::new();
    for rate in text.split(',') {
        let rule = rule(rate.trim(), limit)?;
        if rules.iter().any(|one| one.window_us == rule.window_us) {
            return Err(RulesError::new(format!(
                "`{text}` has two rates over the same window"
            )));
        }
        rules.push(rule);
    }
    if rules.len() > MAX_RULES {
        return Err(RulesError::new(format!(
            "an override has at most {MAX_RULES} rates"
        )));
    }
    if let Some(tight) = rules.iter().find(|rule| rule.units < limit.cost) {
        let message = format!(
            "each request costs {} in `{}`: {} would never let one pass",
            limit.cost, limit.name, tight.units
        );
        return Err(RulesError::new(message).help("to keep a client out, use `limits block`"));
    }
    Ok(rules)
}

fn rule(text: &str, limit: &Limit) -> Result<Rule, RulesError> {
    let slots = limit.windows.iter().map(|window| window.rule);
    let mut slots = slots.filter(|rule| rule.algorithm == Algorithm::Slots);
    if let Some(like) = slots.next() {
        // Lists show such a rate as `20 at once`, and it can be pasted.
        let number = text.strip_suffix(" at once").unwrap_or(text);
        let units = number.replace('_', "").parse().ok();
        let units = units.filter(|units| (1..=MAX_UNITS).contains(units));
        let units = units.ok_or_else(|| {
            let message = format!("`{text}` is not a number of requests under way");
            RulesError::new(message).help(format!(
                "`{}` is a cap on requests at once: write for example `20`, or `unlimited`",
                limit.name
            ))
        })?;
        return Ok(Rule { units, ..like });
    }
    let rate = match RateText::parse(text) {
        Ok(RateText::Limited(rate)) => rate,
        Ok(RateText::Unlimited) => {
            return Err(RulesError::new("`unlimited` stands alone"));
        }
        Err(error) => {
            let message = format!("`{text}` is not a rate: {error}");
            return Err(
                RulesError::new(message).help("write for example `100/min`, `30/10s`, `unlimited`")
            );
        }
    };
    let rule = like(limit, rate);
    if !is_sound(&rule) {
        let message = format!("{rate} is too much for `{}`, a counter", limit.name);
        return Err(RulesError::new(message).help("use a shorter window"));
    }
    Ok(rule)
}

/// The rule that the limit would have at this rate: with a window of its own, its counts go on.
fn like(limit: &Limit, rate: Rate) -> Rule {
    let mut windows = limit.windows.iter().map(|window| window.rule);
    let first = windows.clone().next();
    let same = windows.find(|rule| rule.window_us == rate.window_us);
    let (algorithm, precision_us) = match same.or(first) {
        Some(like) if rate.window_us.is_multiple_of(like.precision_us) => {
            (like.algorithm, like.precision_us)
        }
        Some(like) => (like.algorithm, 1),
        None => (Algorithm::Log, 1),
    };
    Rule {
        algorithm,
        units: rate.units,
        window_us: rate.window_us,
        precision_us,
    }
}
