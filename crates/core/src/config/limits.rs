//! Reads `[limit.NAME]`: each value, the rules between the values of one section, and the limit.

mod bans;
mod calendar;
mod exempt;
mod held_requests;
mod keys;
mod listed;
mod rates;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::section::{NAME_FORM, SectionsPresent, is_name};
use super::*;
use crate::limit::calendar::MAX_COUNT;
use crate::limit::key::Key;
use crate::limit::rate::{DayWord, MAX_UNITS, nearest_divisors};
use crate::limit::{
    Algorithm, BLOCK_POLICY, EnforcedShare, Limit, Missing, OnError, Rate, Rule, Tier, Window,
};
use crate::usage::settings::Quantity;

use calendar::LimitCalendar;
pub use exempt::looks_like_address;
pub(super) use keys::check_sections;
pub use listed::{SpellingError, spelled};
use rates::{own_rates, parse_rates};

const MAX_TIERS: usize = 256;

pub(super) const ON_ERROR: &[(&str, OnError)] = &[
    ("local", OnError::Local),
    ("allow", OnError::Allow),
    ("deny", OnError::Deny),
];

const MISSING: &[(&str, Missing)] = &[
    ("ip", Missing::Ip),
    ("deny", Missing::Deny),
    ("skip", Missing::Skip),
    ("shared", Missing::Shared),
];

const COUNTS: &[(&str, Quantity)] = &Quantity::WORDS;

const RATE: TextForm = TextForm::new(Code::BadRate, "a rate");

/// A limit and its places in the file.
pub(super) struct DefinedLimit {
    pub(super) name: Located<String>,
    /// `None` if it is unlimited for all clients, and refuses none.
    pub(super) limit: Option<Arc<Limit>>,
    /// The place of its `rate` or `concurrent`.
    pub(super) rate_span: TextSpan,
    /// Every rule that is enforced for some client: the limit's own, then those of each tier.
    pub(super) rules: Vec<Located<Rule>>,
    pub(super) candidate: Vec<Located<Rule>>,
    pub(super) key: Located<Key>,
    pub(super) missing: Missing,
    /// The place of `counts`, or of the limit's name.
    pub(super) counts_span: TextSpan,
    /// The place of `on_error`, or of the limit's name.
    pub(super) on_error_span: TextSpan,
    /// The place of `delay`, or of the limit's name.
    pub(super) delay_span: TextSpan,
    /// Whether the section has `calendar`.
    pub(super) has_calendar: bool,
    /// The place of `ban`, if the section has it.
    pub(super) ban_span: Option<TextSpan>,
    pub(super) is_used: bool,
}

pub(super) fn read(
    name: Located<String>,
    mut section: Section<'_>,
    present: SectionsPresent,
    on_error: OnError,
    client_ip: &ClientIp,
) -> DefinedLimit {
    check_name(&section, &name);
    if !section.has("concurrent") {
        section.require("rate", "rate = \"100/min\"");
    }
    let form = RuleForm::read(&mut section, present);
    section.declare("candidate", || ValueKind::Rate);
    let rates = own_rates(&mut section, form.calendar.day);
    let mut rules = form.rules(&section, &rates);
    rules.extend(concurrent(&mut section));
    let own = bare_rules(&rules);
    let calendar = &form.calendar.settings;
    let mut tiers = Vec::new();
    for tier in read_tiers(&mut section, present, form.calendar.day) {
        let tier_rules = form.rules(&section, &tier.rates);
        tiers.push(Tier {
            name: tier.name.as_str().into(),
            windows: Window::all(&name.value, &bare_rules(&tier_rules), calendar),
        });
        rules.extend(tier_rules);
    }
    let candidate = read_candidate(&mut section, &form);
    let lease_us = microseconds(&mut section, "lease", MS..=SECOND);
    let key = read_key(&mut section, present, &name, client_ip);
    let counts = section.word("counts", COUNTS);
    let limit = Limit {
        tiers,
        candidate: (candidate.iter())
            .map(|rule| Arc::new(Window::candidate(&name.value, rule.value, calendar)))
            .collect(),
        shadow: section.boolean("shadow"),
        enforce: enforce(&mut section),
        missing: section.word("missing", MISSING),
        on_error: (section.optional_word("on_error", ON_ERROR)).unwrap_or(on_error),
        cost: section.integer("cost", 1..=MAX_COUNT),
        each: counts == Quantity::Requests,
        counts,
        exempt: exempt::read(&mut section, &key.value, client_ip),
        status: read_status(&mut section),
        ban: bans::read(&mut section),
        lease_us: lease_us.unwrap_or(0),
        delay: held_requests::read(&mut section),
        slot: slot(&mut section),
        windows: Window::all(&name.value, &own, calendar),
        calendar: Arc::clone(calendar),
        day: form.calendar.day,
        ..Limit::new(&name.value, &[], key.value.clone())
    };
    check_rules(&section, &rules, &limit);
    check_counts(&section, counts, present);
    form.check(&section, rules.iter().chain(&candidate));
    let has_rules = !rules.is_empty() || !limit.candidate.is_empty();
    let is_needed = has_rules || refuses_requests(&limit, present);
    let defined = DefinedLimit {
        rate_span: rate_span(&section),
        name,
        missing: limit.missing,
        limit: is_needed.then(|| Arc::new(limit)),
        rules,
        candidate,
        key,
        counts_span: section.value_span("counts"),
        on_error_span: section.value_span("on_error"),
        delay_span: section.value_span("delay"),
        has_calendar: form.calendar.day == DayWord::Calendar,
        ban_span: section.has("ban").then(|| section.key_span("ban")),
        is_used: false,
    };
    section.finish();
    defined
}

fn check_name(section: &Section<'_>, name: &Located<String>) {
    section.check_name(name, "a limit");
    if name.value == BLOCK_POLICY {
        Diagnostic::new(Code::BadName, "not a name for a limit")
            .at(&name.span, "responses to blocked clients have this name")
            .help("for example `per_client`")
            .report_to(section.reader);
    }
}

fn read_key(
    section: &mut Section<'_>,
    present: SectionsPresent,
    name: &Located<String>,
    client_ip: &ClientIp,
) -> Located<Key> {
    let key = keys::read(section, present);
    let mut key = key.unwrap_or_else(|| Located::new(Key::ip(), &name.span));
    key.value.listed = listed::read(section, &key.value, client_ip);
    key
}

fn read_candidate(section: &mut Section<'_>, form: &RuleForm) -> Vec<Located<Rule>> {
    let day = form.calendar.day;
    let rate = section.parse("candidate", RATE, |text| Rate::parse_with(text, day));
    let rate = rate.map(|rate| section.located("candidate", rate));
    form.rules(section, rate.as_slice())
}

/// Whether a limit refuses requests by their keys, whatever its rates are.
fn refuses_requests(limit: &Limit, present: SectionsPresent) -> bool {
    let denies_unknown = present.denies_unknown_keys && limit.key.asks_api_key();
    !limit.shadow && (limit.missing == Missing::Deny || denies_unknown)
}

/// The place of its `rate` or `concurrent`.
fn rate_span(section: &Section<'_>) -> TextSpan {
    section.value_span(match section.has("concurrent") {
        true => "concurrent",
        false => "rate",
    })
}

fn slot(section: &mut Section<'_>) -> Option<Arc<str>> {
    let form = TextForm::new(Code::BadName, "a slot's name");
    section.parse("slot", form, |text| {
        is_name(text).then(|| text.into()).ok_or(NAME_FORM)
    })
}

fn bare_rules(rules: &[Located<Rule>]) -> Vec<Rule> {
    rules.iter().map(|rule| rule.value).collect()
}

/// The settings that say how a rate is enforced.
struct RuleForm {
    /// `None`: the size of the rate decides.
    algorithm: Option<Algorithm>,
    precision_us: Option<u64>,
    calendar: LimitCalendar,
}

impl RuleForm {
    fn read(section: &mut Section<'_>, present: SectionsPresent) -> RuleForm {
        let algorithms = [("log", Algorithm::Log), ("counter", Algorithm::Counter)];
        RuleForm {
            algorithm: section.optional_word("algorithm", &algorithms),
            precision_us: microseconds(section, "precision", MS..=366 * DAY),
            calendar: calendar::read(section, present),
        }
    }

    /// The rules that the store enforces for these rates. Without `algorithm` and `precision` the
    /// size of the rate decides. With `algorithm = "log"` alone the rule is exact.
    fn rules(&self, section: &Section<'_>, rates: &[Located<Rate>]) -> Vec<Located<Rule>> {
        let mut rules = Vec::new();
        for rate in rates {
            let rule = match (self.algorithm, self.precision_us) {
                _ if rate.value.calendar.is_some() => Rule::by_size(rate.value),
                (None, None) => Rule::by_size(rate.value),
                (Some(Algorithm::Counter), _) => Rule {
                    algorithm: Algorithm::Counter,
                    ..Rule::log(rate.value, 1)
                },
                (_, precision_us) => Rule::log(rate.value, precision_us.unwrap_or(1)),
            };
            let rule = Located::new(rule, &rate.span);
            check_exactness(section, &rule);
            rules.push(rule);
        }
        rules
    }

    /// Reports settings that do not go together with these rules.
    fn check<'l>(
        &self,
        section: &Section<'_>,
        rules: impl Iterator<Item = &'l Located<Rule>> + Clone,
    ) {
        calendar::check(section, self, rules.clone());
        check_algorithm(section, self.algorithm);
        check_precision(section, self.precision_us, rules);
    }
}

/// The counter compares products in doubles: they must stay exact (`docs/limits.md`).
fn check_exactness(section: &Section<'_>, rule: &Located<Rule>) {
    const EXACT: u64 = 1 << 53;
    let Rule {
        units, window_us, ..
    } = rule.value;
    let product = units.checked_mul(window_us);
    let product = product.and_then(|half| half.checked_mul(2));
    let is_counter = rule.value.algorithm == Algorithm::Counter;
    if !is_counter || product.is_some_and(|product| product < EXACT) {
        return;
    }
    let message = "too many units over too long a window for `algorithm = \"counter\"`";
    let most = (EXACT - 1) / 2 / window_us;
    Diagnostic::new(Code::LimitTooLarge, message)
        .at(&rule.span, format!("at most {most} in this window"))
        .at(&section.value_span("algorithm"), "")
        .help("use a shorter window, or `algorithm = \"log\"`")
        .report_to(section.reader);
}

/// Reports settings of a limit that do not go together with its rules.
fn check_rules(section: &Section<'_>, rules: &[Located<Rule>], limit: &Limit) {
    check_cost(section, rules, limit.cost);
    check_lease(section, limit.lease_us, rules);
    held_requests::check(section, rules, limit.counts);
}

fn check_cost(section: &Section<'_>, rules: &[Located<Rule>], cost: u64) {
    for rule in rules.iter().filter(|rule| cost > rule.value.units) {
        let message = format!("`{}` can never allow a request", section.name());
        let label = format!("each request costs {cost} here");
        Diagnostic::new(Code::CostAboveLimit, message)
            .help("lower the `cost`, or raise the `rate`")
            .at(&rule.span, label)
            .report_to(section.reader);
    }
}

fn microseconds(
    section: &mut Section<'_>,
    key: &'static str,
    range: RangeInclusive<Duration>,
) -> Option<u64> {
    let length = section.optional_duration(key, range)?;
    u64::try_from(length.as_micros()).ok()
}

struct RawTier {
    name: String,
    rates: Vec<Located<Rate>>,
}

fn read_tiers(section: &mut Section<'_>, present: SectionsPresent, day: DayWord) -> Vec<RawTier> {
    section.declare("tiers", || ValueKind::Map(Box::new(ValueKind::Rates)));
    let is_given = section.has("tiers");
    let span = section.key_span("tiers");
    let table = section.section("tiers");
    if is_given && !present.tier {
        contradiction(format!("`{}` needs `[tier]`", table.name()))
            .at(&span, "no setting gives the tier of a client")
            .help("write for example `[tier]` with `from = \"jwt:plan\"`")
            .report_to(section.reader);
    }
    let mut tiers = Vec::new();
    let entries = table.entries().into_iter();
    for (name, value) in entries.filter(|(name, value)| !rates::is_note(name, value)) {
        table.check_name(&name, "a tier");
        if let Some(texts) = table.texts_in(&name.value, value) {
            let rates = parse_rates(&table, &name.value, texts, day);
            let name = name.value;
            tiers.push(RawTier { name, rates });
        }
    }
    if tiers.len() > MAX_TIERS {
        section.out_of_range("tiers", &format!("at most {MAX_TIERS} tiers"));
    }
    tiers
}

fn read_status(section: &mut Section<'_>) -> Option<StatusCode> {
    let status: Option<u16> = section.optional_integer("status", 400..=599);
    status.and_then(|status| StatusCode::from_u16(status).ok())
}

/// Reads `concurrent`, and `hold`: after this time the store frees the slots of a proxy that died.
fn concurrent(section: &mut Section<'_>) -> Option<Located<Rule>> {
    check_concurrent(section);
    let units = section.optional_integer("concurrent", 1..=MAX_UNITS);
    let hold = section.duration("hold", SECOND..=3_600 * SECOND);
    if let Some(hold) = section.peek("hold").filter(|_| !section.has("concurrent")) {
        contradiction("`hold` is for limits with `concurrent`")
            .at(&hold.span(), "this limit has no `concurrent`")
            .report_to(section.reader);
    }
    let hold_us = u64::try_from(hold.as_micros()).unwrap_or(u64::MAX);
    Some(section.located("concurrent", Rule::slots(units?, hold_us)))
}

/// `concurrent` has no window: reports settings about windows beside it.
fn check_concurrent(section: &Section<'_>) {
    let Some(value) = section.peek("concurrent") else {
        return;
    };
    let windows = [
        "rate",
        "algorithm",
        "precision",
        "candidate",
        "calendar",
        "tiers",
        "lease",
    ];
    for key in windows {
        if section.peek(key).is_none() {
            continue;
        }
        contradiction(format!("`{}` has `concurrent` and `{key}`", section.name()))
            .at(&section.key_span(key), "is for requests over time")
            .at(&value.span(), "is for requests at one time")
            .help("make two limits of them: a route may have both")
            .report_to(section.reader);
    }
}

/// Reports a quantity that the file does not know, or that has nothing to do with the limit.
fn check_counts(section: &Section<'_>, counts: Quantity, present: SectionsPresent) {
    if counts == Quantity::Money && !present.prices {
        contradiction("`counts = \"money\"` needs `[prices]`")
            .at(
                &section.value_span("counts"),
                "no setting gives the price of a model",
            )
            .help("write for example `[prices]` with `\"*\" = { input = 5, output = 20 }`")
            .report_to(section.reader);
    }
    if counts.needs_usage() && section.has("concurrent") {
        contradiction(format!(
            "`{}` has `concurrent` and `counts`",
            section.name()
        ))
        .at(&section.value_span("counts"), "is for limits with a `rate`")
        .at(
            &section.value_span("concurrent"),
            "counts requests under way",
        )
        .help("make two limits of them: a route may have both")
        .report_to(section.reader);
    }
}

fn check_algorithm(section: &Section<'_>, algorithm: Option<Algorithm>) {
    if algorithm != Some(Algorithm::Counter) {
        return;
    }
    for key in ["precision", "lease"]
        .into_iter()
        .filter(|key| section.has(key))
    {
        contradiction(format!("`{key}` is for `algorithm = \"log\"`"))
            .at(&section.value_span(key), "")
            .at(&section.value_span("algorithm"), "a counter has none")
            .help(format!("leave out `{key}` or `algorithm`"))
            .report_to(section.reader);
    }
}

/// Whether a rule has a window that slides.
fn is_timed(rule: &&Located<Rule>) -> bool {
    !matches!(rule.value.algorithm, Algorithm::Slots | Algorithm::Calendar)
}

fn check_precision<'l>(
    section: &Section<'_>,
    precision_us: Option<u64>,
    rules: impl Iterator<Item = &'l Located<Rule>>,
) {
    let Some(precision_us) = precision_us else {
        return;
    };
    let is_odd = |rule: &&Located<Rule>| !rule.value.window_us.is_multiple_of(precision_us);
    let Some(rule) = rules.filter(is_timed).find(is_odd) else {
        return;
    };
    let (below, above) = nearest_divisors(rule.value.window_us, precision_us);
    let (low, high) = (length_text(below), length_text(above));
    let help = match below == above {
        true => format!("nearest is `\"{low}\"`"),
        false => format!("nearest are `\"{low}\"` and `\"{high}\"`"),
    };
    contradiction(format!(
        "`{}` must divide the window",
        section.full_key("precision")
    ))
    .at(&section.value_span("precision"), "")
    .at(&rule.span, "is no multiple of it")
    .help(help)
    .report_to(section.reader);
}

fn enforce(section: &mut Section<'_>) -> EnforcedShare {
    let form = TextForm::new(Code::BadRate, "a share of clients");
    section.declare("enforce", || ValueKind::Share);
    let share = section.parse("enforce", form, EnforcedShare::parse);
    if share.is_some() && section.boolean("shadow") {
        contradiction("`enforce` on a limit in shadow mode")
            .at(
                &section.key_span("enforce"),
                "`shadow = true` denies no client",
            )
            .help("remove `shadow`: clients outside the share are only counted")
            .report_to(section.reader);
    }
    share.unwrap_or(EnforcedShare::ALL)
}

fn length_text(us: u64) -> String {
    let rate = Rate::sliding(1, us);
    let text = rate.to_string();
    let unit = text.trim_start_matches("1/");
    if unit.starts_with(|first: char| first.is_ascii_digit()) {
        unit.to_owned()
    } else {
        format!("1{unit}")
    }
}

/// Units that are taken ahead count at the end of their lease: it must be well within the window.
fn check_lease(section: &Section<'_>, lease_us: u64, rules: &[Located<Rule>]) {
    let is_short = |rule: &&Located<Rule>| 2 * lease_us >= rule.value.window_us;
    if let Some(rule) = rules.iter().filter(is_timed).find(is_short) {
        contradiction(format!("`{}` is too long", section.full_key("lease")))
            .at(
                &section.value_span("lease"),
                "must be shorter than half the window",
            )
            .at(&rule.span, "")
            .report_to(section.reader);
    }
}
