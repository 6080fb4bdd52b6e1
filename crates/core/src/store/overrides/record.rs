//! One override, block or reset as it is written in Redis, and the rates that operators write.
//!
//! A record is words in lines: operators can read them with `redis-cli`, and later versions can add
//! lines. `lua/overrides.lua` is the only writer.
//!
//! Text in, records out. A record is refused if the script cannot decide by its rule.

use std::fmt;

use crate::limit::calendar::MAX_COUNT as MAX_CALENDAR_UNITS;
use crate::limit::rate::{MAX_UNITS, MAX_WINDOW_US, MIN_WINDOW_US, RateText};
use crate::limit::{Algorithm, KeyHash, Limit, Rate, Rule};
use crate::store::bans::abbreviate;
use crate::telemetry::stamp;

/// The script that makes a change.
pub const SCRIPT: &str = include_str!("../../../lua/overrides.lua");
/// Overrides and blocks at once, at most.
pub const MAX_RECORDS: usize = 100_000;
/// The same if the next one is a ban: operators can always block somebody.
pub const MAX_WITH_BANS: usize = 90_000;
/// What stands before the name of a limit in [`RecordTerms::by`] of its bans.
const BY_BAN: &str = "ban:";
/// The last changes that the store keeps.
pub const MAX_CHANGES: usize = 1000;
/// Rates of one override, at most.
const MAX_RULES: usize = 8;
/// Windows of one reset, at most: more than a limit with all its tiers can have.
const MAX_SUFFIXES: usize = 4096;
/// Characters of each text in a record.
const MAX_NOTE: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// Another rate for one key of a limit.
    Override(String, KeyHash),
    Block(KeyHash),
    /// A key of a limit whose counts are deleted.
    Reset(String, KeyHash),
}

impl Subject {
    pub fn parse(field: &str) -> Option<Subject> {
        let (kind, rest) = field.split_once(':')?;
        let of_limit = || {
            let (limit, tag) = rest.rsplit_once(':')?;
            Some((limit.to_owned(), KeyHash::parse(tag)?))
        };
        match kind {
            "o" => of_limit().map(|(limit, tag)| Subject::Override(limit, tag)),
            "b" => KeyHash::parse(rest).map(Subject::Block),
            "r" => of_limit().map(|(limit, tag)| Subject::Reset(limit, tag)),
            _ => None,
        }
    }

    pub fn limit(&self) -> Option<&str> {
        match self {
            Subject::Override(limit, _) | Subject::Reset(limit, _) => Some(limit),
            Subject::Block(_) => None,
        }
    }

    pub fn tag(&self) -> KeyHash {
        match self {
            Subject::Override(_, tag) | Subject::Block(tag) | Subject::Reset(_, tag) => *tag,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Override(limit, tag) => write!(f, "o:{limit}:{tag}"),
            Subject::Block(tag) => write!(f, "b:{tag}"),
            Subject::Reset(limit, tag) => write!(f, "r:{limit}:{tag}"),
        }
    }
}

/// Whether a change sets or removes an override.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangeKind {
    /// It holds from now on. A reset is always `Set`.
    #[default]
    Set,
    Remove,
}

/// The terms that an operator has set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordTerms {
    /// The number of the change; 0 in a record in force.
    pub version: u64,
    pub kind: ChangeKind,
    /// When it ends, by the store's clock, microseconds since the Unix epoch; 0 if it must be
    /// removed.
    pub until_us: u64,
    pub at_us: u64,
    /// The user and host of the operator.
    pub by: String,
    /// The parts of the key, without their values: `ip`, or `api_key, path`.
    pub key: String,
    /// Of an override: the rates.
    pub rules: Vec<Rule>,
    /// Of an override: no limit at all.
    pub unlimited: bool,
    /// Of a reset: the names of the limit's windows in the store.
    pub suffixes: Vec<String>,
    /// The reason, as the operator wrote it.
    pub note: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub subject: Subject,
    pub terms: RecordTerms,
}

impl Record {
    pub fn of_field(field: &str, value: &str) -> Option<Record> {
        Record::checked(Subject::parse(field)?, RecordTerms::parse(value)?)
    }

    pub fn of_change(text: &str) -> Option<Record> {
        let field = text.lines().find_map(|line| line.strip_prefix("field "))?;
        Record::checked(Subject::parse(field)?, RecordTerms::parse(text)?)
    }

    /// Refuses an override without rates: it would be taken for no limit at all.
    fn checked(subject: Subject, terms: RecordTerms) -> Option<Record> {
        let says_rates = terms.unlimited == terms.rules.is_empty();
        let needs_rates = matches!(subject, Subject::Override(..)) && terms.kind == ChangeKind::Set;
        (says_rates || !needs_rates).then_some(Record { subject, terms })
    }

    /// The change in one or two words.
    pub fn what(&self) -> &'static str {
        match (&self.subject, self.terms.kind) {
            (Subject::Override(..), ChangeKind::Set) => "override",
            (Subject::Override(..), ChangeKind::Remove) => "override removed",
            (Subject::Block(_), ChangeKind::Set) => "block",
            (Subject::Block(_), ChangeKind::Remove) => "block removed",
            (Subject::Reset(..), _) => "reset",
        }
    }

    pub(in crate::store) fn log_change(&self) {
        let terms = &self.terms;
        tracing::info!(
            limit = self.subject.limit(),
            key = abbreviate(self.subject.tag()),
            rate = terms.rates(),
            until = terms.until(),
            by = terms.by,
            note = (!terms.note.is_empty()).then_some(&terms.note),
            "overrides: {}",
            self.what()
        );
    }

    /// The limit whose ban this block is; `None` if an operator made it.
    pub fn ban(&self) -> Option<&str> {
        let limit = self.terms.by.strip_prefix(BY_BAN);
        limit.filter(|_| matches!(self.subject, Subject::Block(_)))
    }

    /// Whether it has ended at `now_us` of the store's clock.
    pub fn is_over(&self, now_us: u64) -> bool {
        self.terms.until_us > 0 && self.terms.until_us <= now_us
    }
}

impl RecordTerms {
    /// Those of a ban by this limit. The store adds its times.
    pub fn of_ban(limit: &Limit) -> RecordTerms {
        let parts = limit.key.parts.iter();
        let parts: Vec<String> = parts.map(|part| part.to_string()).collect();
        RecordTerms {
            by: format!("{BY_BAN}{}", limit.name),
            key: parts.join(", "),
            ..RecordTerms::default()
        }
    }

    /// The rates as they are written in a configuration; `None` if there are none.
    pub fn rates(&self) -> Option<String> {
        if self.unlimited {
            return Some("unlimited".to_owned());
        }
        let rates: Vec<String> = self.rules.iter().map(rate_text).collect();
        (!rates.is_empty()).then(|| rates.join(", "))
    }

    /// When it ends, as a date; nothing if it must be removed.
    pub fn until(&self) -> Option<String> {
        (self.until_us > 0).then(|| stamp::rfc3339(self.until_us))
    }

    /// Reads lines. Unknown ones are from a later version, and skipped.
    fn parse(text: &str) -> Option<RecordTerms> {
        let mut terms = RecordTerms::default();
        for line in text.lines() {
            let (name, value) = line.split_once(' ').unwrap_or((line, ""));
            match name {
                "version" => terms.version = value.parse().ok()?,
                "deed" if value == "remove" => terms.kind = ChangeKind::Remove,
                "until" => terms.until_us = value.parse().ok()?,
                "at" => terms.at_us = value.parse().ok()?,
                "by" => terms.by = clean(value),
                "key" => terms.key = clean(value),
                "rule" if terms.rules.len() < MAX_RULES => terms.rules.push(parse_rule(value)?),
                "rule" => return None,
                "unlimited" => terms.unlimited = true,
                "suffix" if terms.suffixes.len() < MAX_SUFFIXES => {
                    terms.suffixes.push(clean(value));
                }
                "note" => terms.note = clean(value),
                _ => {}
            }
        }
        Some(terms)
    }

    /// The lines that a change sends; the script adds the others.
    pub fn lines(&self) -> String {
        let mut text = format!("by {}\nkey {}\n", clean(&self.by), clean(&self.key));
        for rule in &self.rules {
            let algorithm = ALGORITHMS.iter().find(|(of, _)| *of == rule.algorithm);
            let word = algorithm.map_or("", |(_, word)| *word);
            let (units, window_us, precision_us) = (rule.units, rule.window_us, rule.precision_us);
            text.push_str(&format!("rule {word} {units} {window_us} {precision_us}\n"));
        }
        if self.unlimited {
            text.push_str("unlimited\n");
        }
        for suffix in &self.suffixes {
            text.push_str(&format!("suffix {}\n", clean(suffix)));
        }
        if !self.note.is_empty() {
            text.push_str(&format!("note {}\n", clean(&self.note)));
        }
        text
    }
}

/// A rule as it is written in a configuration: `100/min`, or `20 at once`.
pub fn rate_text(rule: &Rule) -> String {
    match rule.algorithm {
        Algorithm::Slots => format!("{} at once", rule.units),
        _ => Rate::from_rule(*rule).to_string(),
    }
}

/// The algorithms, as records name them.
const ALGORITHMS: [(Algorithm, &str); 4] = [
    (Algorithm::Log, "log"),
    (Algorithm::Counter, "counter"),
    (Algorithm::Slots, "slots"),
    (Algorithm::Calendar, "calendar"),
];

/// One line without control characters, of at most `MAX_NOTE` characters.
pub fn clean(text: &str) -> String {
    let plain = text
        .trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c });
    plain.take(MAX_NOTE).collect()
}

fn parse_rule(text: &str) -> Option<Rule> {
    let mut words = text.split(' ');
    let word = words.next()?;
    let (algorithm, _) = *ALGORITHMS.iter().find(|(_, known)| *known == word)?;
    let mut number = || words.next()?.parse().ok();
    let rule = Rule {
        algorithm,
        units: number()?,
        window_us: number()?,
        precision_us: number()?,
    };
    is_sound(&rule).then_some(rule)
}

/// Whether the script decides by this rule exactly.
fn is_sound(rule: &Rule) -> bool {
    if rule.algorithm == Algorithm::Calendar {
        let is_whole = rule.calendar_unit().is_some() && rule.precision_us == 1;
        return is_whole && (1..=MAX_CALENDAR_UNITS).contains(&rule.units);
    }
    // The counter compares products in doubles.
    let product = u128::from(rule.units) * u128::from(rule.window_us) * 2;
    (1..=MAX_UNITS).contains(&rule.units)
        && (MIN_WINDOW_US..=MAX_WINDOW_US).contains(&rule.window_us)
        && rule.precision_us >= 1
        && rule.window_us.is_multiple_of(rule.precision_us)
        && (rule.algorithm != Algorithm::Counter || product < 1 << 53)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesError {
    pub message: String,
    pub help: Option<String>,
}

impl RulesError {
    fn new(message: impl Into<String>) -> RulesError {
        RulesError {
            message: message.into(),
            help: None,
        }
    }

    fn help(self, help: impl Into<String>) -> RulesError {
        let help = Some(help.into());
        RulesError { help, ..self }
    }
}

/// The rules that an override sets in place of a limit's; none means no limit.
pub fn rules(text: &str, limit: &Limit) -> Result<Vec<Rule>, RulesError> {
    if text.trim() == "unlimited" {
        return Ok(Vec::new());
    }
    let mut rules: Vec<Rule> = Vec::new();
    for rate in text.split(',') {
        let rule = rule_of_rate(rate.trim(), limit)?;
        if rules.iter().any(|one| {
            one.window_us == rule.window_us && one.calendar_unit() == rule.calendar_unit()
        }) {
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
        return Err(RulesError::new(message).help(
            "to deny every request of a client, use `limits \
         block`",
        ));
    }
    Ok(rules)
}

fn rule_of_rate(text: &str, limit: &Limit) -> Result<Rule, RulesError> {
    let slots = limit.windows.iter().map(|window| window.rule);
    let mut slots = slots.filter(|rule| rule.algorithm == Algorithm::Slots);
    if let Some(like) = slots.next() {
        // Lists show such a rate as `20 at once`, and operators paste it.
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
    let rate = match RateText::parse_with(text, limit.day) {
        Ok(RateText::Limited(rate)) => rate,
        Ok(RateText::Unlimited) => return Err(RulesError::new("`unlimited` stands alone")),
        Err(error) => {
            let message = format!("`{text}` is not a rate: {error}");
            return Err(
                RulesError::new(message).help("write for example `100/min`, `30/10s`, `unlimited`")
            );
        }
    };
    let rule = rule_like(limit, rate);
    if !is_sound(&rule) {
        let message = format!("{rate} is too much for `{}`, a counter", limit.name);
        return Err(RulesError::new(message).help("use a shorter window"));
    }
    Ok(rule)
}

/// The rule that the limit would have at this rate. At the same window, its counts go on.
fn rule_like(limit: &Limit, rate: Rate) -> Rule {
    if rate.calendar.is_some() {
        return Rule::by_size(rate);
    }
    let windows = limit.windows.iter().map(|window| window.rule);
    let mut windows = windows.filter(|rule| rule.algorithm != Algorithm::Calendar);
    let first = windows.clone().next();
    let same = windows.find(|rule| rule.window_us == rate.window_us);
    let (algorithm, precision_us) = match same.or(first) {
        Some(like) if rate.window_us.is_multiple_of(like.precision_us) => {
            (like.algorithm, like.precision_us)
        }
        Some(like) => (like.algorithm, 1),
        None => return Rule::by_size(rate),
    };
    Rule {
        algorithm,
        units: rate.units,
        window_us: rate.window_us,
        precision_us,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: &str = "AQEBAQEBAQEBAQEBAQEBAQ";

    fn terms() -> RecordTerms {
        let rule = |algorithm, units| Rule {
            algorithm,
            units,
            window_us: 60_000_000,
            precision_us: 1,
        };
        RecordTerms {
            by: "ann@client".to_owned(),
            key: "ip".to_owned(),
            rules: vec![rule(Algorithm::Log, 5), rule(Algorithm::Counter, 9)],
            note: "paid\nfor it".to_owned(),
            ..RecordTerms::default()
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let text = format!("until 70\nat 60\nlater x\n{}", terms().lines());
        let record = Record::of_field(&format!("o:login:{TAG}"), &text).unwrap();
        let expected = RecordTerms {
            until_us: 70,
            at_us: 60,
            note: "paid for it".to_owned(),
            ..terms()
        };
        assert_eq!(record.terms, expected);
        let subject = Subject::Override("login".to_owned(), KeyHash([1; 16]));
        assert_eq!(record.subject, subject);
        assert!(record.is_over(70) && !record.is_over(69));
        for text in [format!("b:{TAG}"), format!("r:a:b:{TAG}")] {
            assert_eq!(Subject::parse(&text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_reset_names_every_window_of_a_limit_with_many_tiers() {
        let suffixes = (0..2080).map(|number| format!("login.{number}"));
        let terms = RecordTerms {
            suffixes: suffixes.collect(),
            ..RecordTerms::default()
        };
        let text = format!("field r:login:{TAG}\n{}", terms.lines());
        assert_eq!(Record::of_change(&text).unwrap().terms, terms);
    }

    #[test]
    fn a_change_tells_its_version_and_its_way() {
        let text = format!("version 12\ndeed remove\nfield b:{TAG}\nuntil 0\nat 5\nby x\n");
        let record = Record::of_change(&text).unwrap();
        assert_eq!((record.terms.version, record.what()), (12, "block removed"));
        assert!(!record.is_over(u64::MAX));
    }

    #[test]
    fn what_cannot_be_relied_on_is_no_record() {
        let field = format!("o:login:{TAG}");
        assert!(Record::of_field(&field, "until 0\nat 0\nunlimited\n").is_some());
        for text in [
            "until 0\nat 0\n",
            "until x\nunlimited\n",
            "rule log 5 60000000\n",
            "rule log 0 60000000 1\n",
            "rule log 5 60000000 7\n",
            "rule log 5 60000000 0\n",
            "rule log 4294967296 60000000 1\n",
            "rule log 5 1 1\n",
            "rule counter 4294967295 86400000000 1\n",
            "rule zset 5 60000000 1\n",
            "rule log 5 60000000 1\nunlimited\n",
        ] {
            assert_eq!(Record::of_field(&field, text), None, "{text}");
        }
        for field in ["o:login", "b:short", "x:AQEBAQEBAQEBAQEBAQEBAQ", ""] {
            assert_eq!(Record::of_field(field, "unlimited\n"), None, "{field}");
        }
    }
}
