//! `[limit.NAME]` as it is written: each value by itself, and what the values of one section say
//! to each other. `budget.rs` makes the limit of it.

use std::time::Duration;

use toml::de::DeValue;

use super::address;
use super::diagnostic::{Code, Diagnostic, Span};
use super::files::list_lines;
use super::reader::At;
use super::section::{NAME_FORM, Section, is_name};
use super::settings::{COUNTS, MISSING, ON_ERROR};
use super::values::TextForm;
use crate::limit::key::{Alternatives, Key, MAX_CHOICES, Part};
use crate::limit::rate::nearest_divisors;
use crate::limit::rate::{MAX_UNITS, RateText};
use crate::limit::{Algorithm, Exempt, Missing, OnError, Rate};

/// Rates of one limit, at most: each is asked for every request.
const MAX_RATES: usize = 8;
/// Tiers of one limit, at most.
const MAX_TIERS: usize = 256;
/// Networks and keys that one limit exempts, at most.
const MAX_EXEMPT: usize = 100_000;
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// `[limit.NAME]`
pub(super) struct RawLimit {
    pub(super) name: At<String>,
    /// None for `unlimited`, and where they could not be read: that breaks no other rule.
    pub(super) rates: At<Vec<At<Rate>>>,
    pub(super) tiers: Vec<RawTier>,
    pub(super) candidate: Option<At<Rate>>,
    pub(super) concurrent: Option<At<Concurrent>>,
    /// Else by the rate's size.
    pub(super) algorithm: Option<At<Algorithm>>,
    /// Microseconds.
    pub(super) precision: Option<At<u64>>,
    /// Microseconds.
    pub(super) lease: Option<At<u64>>,
    pub(super) slot: Option<String>,
    pub(super) shadow: bool,
    pub(super) exempt: Exempt,
    pub(super) key: Option<At<Key>>,
    pub(super) missing: Missing,
    pub(super) on_error: Option<At<OnError>>,
    pub(super) cost: u64,
    pub(super) each: bool,
}

/// `NAME = RATES` of `tiers`.
pub(super) struct RawTier {
    pub(super) name: At<String>,
    pub(super) rates: Vec<At<Rate>>,
}

/// `concurrent` and `hold`
pub(super) struct Concurrent {
    pub(super) units: u64,
    pub(super) hold_us: u64,
}

/// Which sections that a limit may need the file has.
#[derive(Clone, Copy)]
pub(super) struct Known {
    pub(super) tier: bool,
    pub(super) jwt: bool,
    /// Whether clients show certificates.
    pub(super) client_ca: bool,
}

impl RawLimit {
    /// A limit that is only a rate; `unlimited` has none.
    pub(super) fn of_rate(name: At<String>, rate: Option<Rate>) -> RawLimit {
        let here = |value| At {
            value,
            span: name.span.clone(),
        };
        RawLimit {
            rates: At {
                value: rate.into_iter().map(here).collect(),
                span: name.span.clone(),
            },
            tiers: Vec::new(),
            candidate: None,
            concurrent: None,
            algorithm: None,
            precision: None,
            lease: None,
            slot: None,
            shadow: false,
            exempt: Exempt::default(),
            key: None,
            missing: Missing::Ip,
            on_error: None,
            cost: 1,
            each: false,
            name,
        }
    }

    /// Everything that is enforced for someone.
    fn enforced(&self) -> impl Iterator<Item = &At<Rate>> {
        let tiers = self.tiers.iter().flat_map(|tier| &tier.rates);
        self.rates.value.iter().chain(tiers)
    }
}

/// `[limit.NAME]`
pub(super) fn limit(name: At<String>, mut section: Section<'_>, known: Known) -> RawLimit {
    const ALGORITHMS: &[(&str, Algorithm)] =
        &[("log", Algorithm::Log), ("counter", Algorithm::Counter)];
    section.check_name(&name, "a limit");
    if section.peek("rate").is_none() && section.peek("concurrent").is_none() {
        section.missing("rate", "rate = \"100/min\"");
    }
    let rates = section.texts("rate");
    let slot = section.parsed(
        "slot",
        TextForm::new(Code::BadName, "a slot's name"),
        slot_name,
    );
    let raw = RawLimit {
        rates: At {
            span: rates
                .as_ref()
                .map_or(section.span.clone(), |texts| texts.span.clone()),
            value: rates.map_or_else(Vec::new, |texts| understood_rates(&section, "rate", texts)),
        },
        tiers: tiers(&mut section, known),
        candidate: section.parsed(
            "candidate",
            TextForm::new(Code::BadRate, "a rate"),
            Rate::parse,
        ),
        concurrent: concurrent(&mut section),
        algorithm: section.word_at("algorithm", ALGORITHMS),
        precision: microseconds(&mut section, "precision", MS..=366 * 86_400 * SECOND),
        lease: microseconds(&mut section, "lease", MS..=SECOND),
        slot: slot.map(|slot| slot.value),
        shadow: section.boolean("shadow", false),
        exempt: exempt(&mut section),
        key: key(&mut section, known),
        missing: section.word("missing", MISSING).unwrap_or(Missing::Ip),
        on_error: section.word_at("on_error", ON_ERROR),
        cost: section
            .integer("cost", 1..=MAX_UNITS)
            .map_or(1, |cost| cost.value),
        each: section.word("counts", COUNTS).unwrap_or(false),
        name,
    };
    check_concurrent(&section);
    check_algorithm(&section, &raw);
    check_precision(&section, &raw);
    check_lease(&section, &raw);
    section.finish();
    raw
}

fn microseconds(
    section: &mut Section<'_>,
    key: &'static str,
    range: std::ops::RangeInclusive<Duration>,
) -> Option<At<u64>> {
    let length = section.length(key, range)?;
    Some(length.map(|length| u64::try_from(length.as_micros()).unwrap_or(u64::MAX)))
}

fn slot_name(text: &str) -> Result<String, &'static str> {
    match is_name(text) {
        true => Ok(text.to_owned()),
        false => Err(NAME_FORM),
    }
}

/// One rate, or several over windows of different lengths; `unlimited` is none.
fn understood_rates(section: &Section<'_>, key: &str, texts: At<Vec<At<String>>>) -> Vec<At<Rate>> {
    let count = texts.value.len();
    if !(1..=MAX_RATES).contains(&count) {
        section.out_of_range_at(key, &texts, &format!("1 to {MAX_RATES} rates"));
    }
    let mut rates: Vec<At<Rate>> = Vec::new();
    for text in texts.value {
        let kind = TextForm::new(Code::BadRate, "a rate");
        let Some(read) = section.understood(key, text, kind, RateText::parse) else {
            continue;
        };
        let rate = match read.value {
            RateText::Limited(rate) => rate,
            RateText::Unlimited if count == 1 => continue,
            RateText::Unlimited => {
                let message = "`unlimited` beside another rate";
                let diagnostic = Diagnostic::new(Code::Contradiction, message)
                    .at(&read.span, "says nothing")
                    .help("leave it out");
                section.reader.report(diagnostic);
                continue;
            }
        };
        let same = |first: &&At<Rate>| first.value.window_us == rate.window_us;
        if let Some(first) = rates.iter().find(same) {
            let diagnostic = Diagnostic::new(Code::Duplicate, "two rates over the same window")
                .at(&read.span, "")
                .at(&first.span, "first here")
                .help("keep the smaller one");
            section.reader.report(diagnostic);
        }
        rates.push(At {
            value: rate,
            span: read.span,
        });
    }
    rates
}

/// `tiers = { pro = "200/s", free = ["10/s", "1000/h"], internal = "unlimited" }`
fn tiers(section: &mut Section<'_>, known: Known) -> Vec<RawTier> {
    let given = section.peek("tiers").is_some();
    let span = section.key_span("tiers");
    let table = section.section("tiers");
    if given && !known.tier {
        let message = format!("`{}` needs `[tier]`", table.name());
        let diagnostic = Diagnostic::new(Code::Contradiction, message)
            .at(&span, "nothing says which tier a client has")
            .help("write for example `[tier]` with `from = \"jwt:plan\"`");
        section.reader.report(diagnostic);
    }
    let mut tiers = Vec::new();
    for (name, value) in table.entries() {
        if name.value.starts_with("x-") {
            continue;
        }
        table.check_name(&name, "a tier");
        let Some(texts) = table.texts_of(&name.value, value) else {
            continue;
        };
        let rates = understood_rates(&table, &name.value, texts);
        tiers.push(RawTier { name, rates });
    }
    if tiers.len() > MAX_TIERS {
        let at = At { value: (), span };
        section.out_of_range_at("tiers", &at, &format!("at most {MAX_TIERS} tiers"));
    }
    tiers
}

/// `concurrent = 50`, and `hold`: how long a proxy that died keeps what it held.
fn concurrent(section: &mut Section<'_>) -> Option<At<Concurrent>> {
    let units = section.integer("concurrent", 1..=MAX_UNITS);
    let hold = microseconds(section, "hold", SECOND..=3_600 * SECOND);
    if let Some(hold) = hold
        .as_ref()
        .filter(|_| section.peek("concurrent").is_none())
    {
        let message = "`hold` is for limits with `concurrent`";
        let diagnostic = Diagnostic::new(Code::Contradiction, message)
            .at(&hold.span, "this limit holds nothing");
        section.reader.report(diagnostic);
    }
    let hold_us = hold.map_or(15_000_000, |hold| hold.value);
    units.map(|units| units.map(|units| Concurrent { units, hold_us }))
}

/// A number of requests at once has no window: what is about windows cannot stand with it.
fn check_concurrent(section: &Section<'_>) {
    let Some(value) = section.peek("concurrent") else {
        return;
    };
    let windows = [
        "rate",
        "algorithm",
        "precision",
        "candidate",
        "tiers",
        "lease",
    ];
    for key in windows {
        if section.peek(key).is_none() {
            continue;
        }
        let message = format!("`{}` has `concurrent` and `{key}`", section.name());
        let diagnostic = Diagnostic::new(Code::Contradiction, message)
            .at(&section.key_span(key), "is for requests over time")
            .at(&value.span(), "is for requests at one time")
            .help("make two limits of them: a route may have both");
        section.reader.report(diagnostic);
    }
}

/// What only a log has.
fn check_algorithm(section: &Section<'_>, raw: &RawLimit) {
    let Some(counter) = (raw.algorithm.as_ref()).filter(|word| word.value == Algorithm::Counter)
    else {
        return;
    };
    for (key, given) in [("precision", &raw.precision), ("lease", &raw.lease)] {
        if let Some(given) = given {
            let message = format!("`{key}` is for `algorithm = \"log\"`");
            let diagnostic = Diagnostic::new(Code::Contradiction, message)
                .at(&given.span, "")
                .at(&counter.span, "a counter has none")
                .help(format!("leave out `{key}` or `algorithm`"));
            section.reader.report(diagnostic);
        }
    }
}

/// Every window must be whole pieces of the precision.
fn check_precision(section: &Section<'_>, raw: &RawLimit) {
    let Some(precision) = &raw.precision else {
        return;
    };
    for rate in raw.enforced().chain(&raw.candidate) {
        let window_us = rate.value.window_us;
        if window_us.is_multiple_of(precision.value) {
            continue;
        }
        let (below, above) = nearest_divisors(window_us, precision.value);
        let help = if below == above {
            format!("nearest is `\"{}\"`", length(below))
        } else {
            let (below, above) = (length(below), length(above));
            format!("nearest are `\"{below}\"` and `\"{above}\"`")
        };
        let message = format!("`{}` must divide the window", section.full("precision"));
        let diagnostic = Diagnostic::new(Code::Contradiction, message)
            .at(&precision.span, "")
            .at(&rate.span, "is no multiple of it")
            .help(help);
        section.reader.report(diagnostic);
        return;
    }
}

/// Microseconds as a file says them.
fn length(us: u64) -> String {
    let rate = Rate {
        units: 1,
        window_us: us,
    };
    let text = rate.to_string();
    let unit = text.trim_start_matches("1/");
    if unit.starts_with(|first: char| first.is_ascii_digit()) {
        unit.to_owned()
    } else {
        format!("1{unit}")
    }
}

/// Units that are taken ahead count at their lease's end: it must lie well within the window.
fn check_lease(section: &Section<'_>, raw: &RawLimit) {
    let Some(lease) = &raw.lease else { return };
    let short = |rate: &&At<Rate>| 2 * lease.value >= rate.value.window_us;
    if let Some(rate) = raw.enforced().find(short) {
        let message = format!("`{}` is too long", section.full("lease"));
        let diagnostic = Diagnostic::new(Code::Contradiction, message)
            .at(&lease.span, "must be shorter than half the window")
            .at(&rate.span, "");
        section.reader.report(diagnostic);
    }
}

/// `exempt` and `exempt_file`: addresses and networks, and clients' keys.
fn exempt(section: &mut Section<'_>) -> Exempt {
    let mut exempt = Exempt::default();
    let texts = section.texts("exempt");
    for text in texts.map(|texts| texts.value).unwrap_or_default() {
        let kind = TextForm::new(Code::BadAddress, "a network or a client's key");
        section.understood("exempt", text, kind, |text| add_exempt(&mut exempt, text));
    }
    if let Some(path) = section.text("exempt_file")
        && let Some(text) = section.list_file("exempt_file", &path)
    {
        let mut wrong = 0;
        for (number, line) in list_lines(&text) {
            if wrong == super::api_key::MAX_TOLD {
                break;
            }
            if let Err(why) = add_exempt(&mut exempt, line) {
                wrong += 1;
                section.bad_line("exempt_file", &path.span, number, &why);
            }
        }
    }
    exempt.keys.sort_unstable();
    exempt.keys.dedup();
    if exempt.nets.len() + exempt.keys.len() > MAX_EXEMPT {
        let at = At {
            value: (),
            span: section.span.clone(),
        };
        section.out_of_range_at("exempt", &at, &format!("at most {MAX_EXEMPT}"));
    }
    exempt
}

/// What cannot be read as an address and looks like one is a slip, not a key.
fn add_exempt(exempt: &mut Exempt, text: &str) -> Result<(), String> {
    let text = text.trim();
    match address::network(text) {
        Ok(net) => exempt.nets.push(net),
        Err(_) if text.is_empty() => return Err("empty".to_owned()),
        Err(why) if looks_like_address(text) => {
            // It may be a key all the same: nothing of it is repeated.
            let why = why.split("; ").next().unwrap_or_default();
            return Err(format!("{why}; write for example `10.0.0.0/8`"));
        }
        Err(_) => exempt.keys.push(*blake3::hash(text.as_bytes()).as_bytes()),
    }
    Ok(())
}

fn looks_like_address(text: &str) -> bool {
    let digits = |c: char| c.is_ascii_hexdigit() || ".:/".contains(c);
    text.chars().all(digits) && text.contains(['.', ':', '/'])
}

/// `key`: one part, or a list of parts that are taken together.
fn key(section: &mut Section<'_>, known: Known) -> Option<At<Key>> {
    let texts = section.texts("key")?;
    if texts.value.is_empty() || texts.value.len() > MAX_CHOICES {
        section.out_of_range_at("key", &texts, &format!("1 to {MAX_CHOICES} parts"));
    }
    let mut parts: Vec<Alternatives> = Vec::new();
    for text in texts.value {
        let kind = TextForm::new(Code::BadKey, "a key");
        let Some(part) = section.understood("key", text, kind, Key::parse_part) else {
            continue;
        };
        if parts.contains(&part.value) {
            let diagnostic = Diagnostic::new(Code::Duplicate, "the same part twice in one key")
                .at(&part.span, "changes nothing");
            section.reader.report(diagnostic);
        }
        check_known(section, &part.value, &part.span, known);
        parts.push(part.value);
    }
    (!parts.is_empty()).then_some(At {
        value: Key { parts },
        span: texts.span,
    })
}

/// Parts that another section makes possible.
pub(super) fn check_known(section: &Section<'_>, parts: &Alternatives, span: &Span, known: Known) {
    for part in &parts.0 {
        let (needed, why, example) = match part {
            Part::Jwt(_) if !known.jwt => (
                "[auth.jwt]",
                "a token that nobody verifies says what its bearer likes",
                "jwks_file = \"/etc/tidegate/jwks.json\"",
            ),
            Part::Tier if !known.tier => (
                "[tier]",
                "nothing says which tier a client has",
                "from = \"jwt:plan\"",
            ),
            Part::Tls(_) if !known.client_ca => (
                "[tls]",
                "clients show no certificates",
                "client_ca = \"/etc/tidegate/clients.pem\"",
            ),
            _ => continue,
        };
        let diagnostic = Diagnostic::new(Code::Contradiction, format!("`{part}` needs `{needed}`"))
            .at(span, why)
            .help(format!("write for example `{needed}` with `{example}`"));
        section.reader.report(diagnostic);
    }
}

/// Which sections the file has.
pub(super) fn known(top: &Section<'_>) -> Known {
    let table = |key| match top.peek(key).map(toml::Spanned::get_ref) {
        Some(DeValue::Table(table)) => Some(table),
        _ => None,
    };
    Known {
        tier: top.peek("tier").is_some(),
        jwt: table("auth").is_some_and(|auth| auth.get("jwt").is_some()),
        client_ca: table("tls").is_some_and(|tls| tls.get("client_ca").is_some()),
    }
}
