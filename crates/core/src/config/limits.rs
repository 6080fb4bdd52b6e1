//! Reads `[limit.NAME]`: each value, and the rules between the values of one section.
//! `definitions.rs` compiles the limit.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::address;
use super::diagnostic::{Code, Diagnostic};
use super::files::list_lines;
use super::reader::{Located, ValueKind};
use super::section::{NAME_FORM, Section, is_name};
use super::values::{DAY, MS, SECOND, TextForm};
use crate::limit::key::{Alternatives, Key, MAX_CHOICES, Part};
use crate::limit::rate::nearest_divisors;
use crate::limit::rate::{MAX_UNITS, RateText};
use crate::limit::{Algorithm, Exempt, Missing, OnError, Rate};

/// Rates of one limit, at most: the store checks each for every request.
const MAX_RATES: usize = 8;
/// Tiers of one limit, at most.
const MAX_TIERS: usize = 256;
/// Networks and keys that one limit exempts, at most.
const MAX_EXEMPT: usize = 100_000;

/// The words of `on_error`.
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

const RATE: TextForm = TextForm::new(Code::BadRate, "a rate");

/// `[limit.NAME]`
pub(super) struct RawLimit {
    pub(super) name: Located<String>,
    /// Empty for `unlimited`, and for rates that could not be read.
    pub(super) rates: Located<Vec<Located<Rate>>>,
    pub(super) tiers: Vec<RawTier>,
    pub(super) candidate: Option<Located<Rate>>,
    pub(super) concurrent: Option<Located<Concurrent>>,
    /// `None`: the size of the rate decides.
    pub(super) algorithm: Option<Located<Algorithm>>,
    /// Microseconds.
    pub(super) precision: Option<Located<u64>>,
    /// Microseconds.
    pub(super) lease: Option<Located<u64>>,
    pub(super) slot: Option<String>,
    pub(super) shadow: bool,
    pub(super) exempt: Exempt,
    pub(super) key: Option<Located<Key>>,
    pub(super) missing: Missing,
    pub(super) on_error: Option<Located<OnError>>,
    pub(super) cost: u64,
    pub(super) each: bool,
}

/// `NAME = RATES` of `tiers`.
pub(super) struct RawTier {
    pub(super) name: Located<String>,
    pub(super) rates: Vec<Located<Rate>>,
}

/// `concurrent` and `hold`
pub(super) struct Concurrent {
    pub(super) units: u64,
    pub(super) hold_us: u64,
}

/// The optional sections that a limit may need, and whether the file has them.
#[derive(Clone, Copy, Default)]
pub(super) struct SectionsPresent {
    pub(super) tier: bool,
    pub(super) jwt: bool,
    /// `client_ca` of `[tls]`: clients show certificates.
    pub(super) client_ca: bool,
}

impl SectionsPresent {
    pub(super) fn of(top: &Section<'_>) -> SectionsPresent {
        let has = |table: &str, key: &str| {
            let table = top.peek(table).and_then(|value| value.get_ref().as_table());
            table.is_some_and(|table| table.contains_key(key))
        };
        SectionsPresent {
            tier: top.has("tier"),
            jwt: has("auth", "jwt"),
            client_ca: has("tls", "client_ca"),
        }
    }
}

impl RawLimit {
    /// All rates that are enforced for some client.
    fn enforced(&self) -> impl Iterator<Item = &Located<Rate>> {
        let tiers = self.tiers.iter().flat_map(|tier| &tier.rates);
        self.rates.value.iter().chain(tiers)
    }
}

pub(super) fn read(
    name: Located<String>,
    mut section: Section<'_>,
    present: SectionsPresent,
) -> RawLimit {
    section.check_name(&name, "a limit");
    if !section.has("concurrent") {
        section.require("rate", "rate = \"100/min\"");
    }
    let raw = settings(name, &mut section, present);
    check_concurrent(&section);
    check_algorithm(&section, &raw);
    check_precision(&section, &raw);
    check_lease(&section, &raw);
    section.finish();
    raw
}

/// The settings of a limit, each by itself.
pub(super) fn settings(
    name: Located<String>,
    section: &mut Section<'_>,
    present: SectionsPresent,
) -> RawLimit {
    let algorithms = [("log", Algorithm::Log), ("counter", Algorithm::Counter)];
    let slot_name = |text: &str| match is_name(text) {
        true => Ok(text.to_owned()),
        false => Err(NAME_FORM),
    };
    let slot_form = TextForm::new(Code::BadName, "a slot's name");
    let rates = section.texts("rate");
    RawLimit {
        name,
        rates: match rates {
            Some(texts) => {
                let span = texts.span.clone();
                Located::new(parse_rates(section, "rate", texts), &span)
            }
            None => Located::new(Vec::new(), &section.span),
        },
        tiers: tiers(section, present),
        candidate: section.parse("candidate", RATE, Rate::parse),
        concurrent: concurrent(section),
        algorithm: section.optional_word("algorithm", &algorithms),
        precision: microseconds(section, "precision", MS..=366 * DAY),
        lease: microseconds(section, "lease", MS..=SECOND),
        slot: (section.parse("slot", slot_form, slot_name)).map(|slot| slot.value),
        shadow: section.boolean("shadow"),
        exempt: exempt(section),
        key: key(section, present),
        missing: section.word("missing", MISSING),
        on_error: section.optional_word("on_error", ON_ERROR),
        cost: section.integer("cost", 1..=MAX_UNITS),
        each: section.word("counts", &[("costs", false), ("requests", true)]),
    }
}

fn microseconds(
    section: &mut Section<'_>,
    key: &'static str,
    range: RangeInclusive<Duration>,
) -> Option<Located<u64>> {
    let length = section.optional_duration(key, range)?;
    Some(length.map(|length| u64::try_from(length.as_micros()).unwrap_or(u64::MAX)))
}

/// Reads one rate, or several over windows of different lengths; `unlimited` is none.
fn parse_rates(
    section: &Section<'_>,
    key: &str,
    texts: Located<Vec<Located<String>>>,
) -> Vec<Located<Rate>> {
    let count = texts.value.len();
    if !(1..=MAX_RATES).contains(&count) {
        section.out_of_range(key, &texts, &format!("1 to {MAX_RATES} rates"));
    }
    let mut rates: Vec<Located<Rate>> = Vec::new();
    for read in section.parse_all(key, Some(texts), RATE, RateText::parse) {
        let rate = match read.value {
            RateText::Limited(rate) => Located::new(rate, &read.span),
            RateText::Unlimited if count == 1 => continue,
            RateText::Unlimited => {
                Diagnostic::new(Code::Contradiction, "`unlimited` beside another rate")
                    .at(&read.span, "says nothing")
                    .help("leave it out")
                    .report_to(section.reader);
                continue;
            }
        };
        let is_same = |first: &&Located<Rate>| first.value.window_us == rate.value.window_us;
        if let Some(first) = rates.iter().find(is_same) {
            Diagnostic::new(Code::Duplicate, "two rates over the same window")
                .at(&rate.span, "")
                .at(&first.span, "first here")
                .help("keep the smaller one")
                .report_to(section.reader);
        }
        rates.push(rate);
    }
    rates
}

/// Reads `tiers = { pro = "200/s", free = ["10/s", "1000/h"], internal = "unlimited" }`.
fn tiers(section: &mut Section<'_>, present: SectionsPresent) -> Vec<RawTier> {
    section.declare("tiers", || ValueKind::Map(Box::new(ValueKind::Texts)));
    let is_given = section.has("tiers");
    let span = section.key_span("tiers");
    let table = section.section("tiers");
    if is_given && !present.tier {
        let message = format!("`{}` needs `[tier]`", table.name());
        Diagnostic::new(Code::Contradiction, message)
            .at(&span, "nothing says which tier a client has")
            .help("write for example `[tier]` with `from = \"jwt:plan\"`")
            .report_to(section.reader);
    }
    let mut tiers = Vec::new();
    let entries = table.entries().into_iter();
    for (name, value) in entries.filter(|(name, _)| !name.value.starts_with("x-")) {
        table.check_name(&name, "a tier");
        if let Some(texts) = table.texts_in(&name.value, value) {
            let rates = parse_rates(&table, &name.value, texts);
            tiers.push(RawTier { name, rates });
        }
    }
    if tiers.len() > MAX_TIERS {
        let allowed = format!("at most {MAX_TIERS} tiers");
        section.out_of_range("tiers", &Located::new((), &span), &allowed);
    }
    tiers
}

/// Reads `concurrent`, and `hold`: after this time the store frees the slots of a proxy that died.
fn concurrent(section: &mut Section<'_>) -> Option<Located<Concurrent>> {
    let units = section.optional_integer("concurrent", 1..=MAX_UNITS);
    let hold = section.duration("hold", SECOND..=3_600 * SECOND);
    if let Some(hold) = section.peek("hold").filter(|_| !section.has("concurrent")) {
        Diagnostic::new(
            Code::Contradiction,
            "`hold` is for limits with `concurrent`",
        )
        .at(&hold.span(), "this limit holds nothing")
        .report_to(section.reader);
    }
    let hold_us = u64::try_from(hold.as_micros()).unwrap_or(u64::MAX);
    units.map(|units| units.map(|units| Concurrent { units, hold_us }))
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
        "tiers",
        "lease",
    ];
    for key in windows {
        if section.peek(key).is_none() {
            continue;
        }
        let message = format!("`{}` has `concurrent` and `{key}`", section.name());
        Diagnostic::new(Code::Contradiction, message)
            .at(&section.key_span(key), "is for requests over time")
            .at(&value.span(), "is for requests at one time")
            .help("make two limits of them: a route may have both")
            .report_to(section.reader);
    }
}

/// Reports settings that only a log has.
fn check_algorithm(section: &Section<'_>, raw: &RawLimit) {
    let Some(counter) = (raw.algorithm.as_ref()).filter(|word| word.value == Algorithm::Counter)
    else {
        return;
    };
    for (key, given) in [("precision", &raw.precision), ("lease", &raw.lease)] {
        if let Some(given) = given {
            Diagnostic::new(
                Code::Contradiction,
                format!("`{key}` is for `algorithm = \"log\"`"),
            )
            .at(&given.span, "")
            .at(&counter.span, "a counter has none")
            .help(format!("leave out `{key}` or `algorithm`"))
            .report_to(section.reader);
        }
    }
}

/// Reports a window that is no multiple of the precision.
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
            format!("nearest is `\"{}\"`", length_text(below))
        } else {
            let (below, above) = (length_text(below), length_text(above));
            format!("nearest are `\"{below}\"` and `\"{above}\"`")
        };
        let message = format!("`{}` must divide the window", section.full_key("precision"));
        Diagnostic::new(Code::Contradiction, message)
            .at(&precision.span, "")
            .at(&rate.span, "is no multiple of it")
            .help(help)
            .report_to(section.reader);
        return;
    }
}

/// Microseconds as a length of time in a file.
fn length_text(us: u64) -> String {
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

/// Units that are taken ahead count at the end of their lease: it must be well within the window.
fn check_lease(section: &Section<'_>, raw: &RawLimit) {
    let Some(lease) = &raw.lease else { return };
    let short = |rate: &&Located<Rate>| 2 * lease.value >= rate.value.window_us;
    if let Some(rate) = raw.enforced().find(short) {
        let message = format!("`{}` is too long", section.full_key("lease"));
        Diagnostic::new(Code::Contradiction, message)
            .at(&lease.span, "must be shorter than half the window")
            .at(&rate.span, "")
            .report_to(section.reader);
    }
}

/// Reads `exempt` and `exempt_file`: addresses and networks, and clients' keys.
fn exempt(section: &mut Section<'_>) -> Exempt {
    let form = TextForm::new(Code::BadAddress, "a network or a client's key");
    let mut exempt = Exempt::default();
    section.parse_list("exempt", form, |text| add_exempt(&mut exempt, text));
    if let Some(path) = section.text("exempt_file")
        && let Some(text) = section.list_file("exempt_file", &path)
    {
        let mut wrong = 0;
        for (number, line) in list_lines(&text) {
            if wrong == super::api_key::MAX_REPORTED {
                break;
            }
            if let Err(why) = add_exempt(&mut exempt, line) {
                wrong += 1;
                section.unusable_line("exempt_file", &path.span, number, &why);
            }
        }
    }
    exempt.keys.sort_unstable();
    exempt.keys.dedup();
    if exempt.nets.len() + exempt.keys.len() > MAX_EXEMPT {
        let here = Located::new((), &section.span);
        section.out_of_range("exempt", &here, &format!("at most {MAX_EXEMPT}"));
    }
    exempt
}

/// Adds a network or a key. A text that looks like an address and is none is a mistake, not a key.
fn add_exempt(exempt: &mut Exempt, text: &str) -> Result<(), String> {
    let text = text.trim();
    match address::network(text) {
        Ok(net) => exempt.nets.push(net),
        Err(_) if text.is_empty() => return Err("empty".to_owned()),
        Err(why) if looks_like_address(text) => {
            // It may be a key all the same: the message does not repeat it.
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

/// Reads `key`: one part, or a list of parts that are taken together.
fn key(section: &mut Section<'_>, present: SectionsPresent) -> Option<Located<Key>> {
    let allowed = format!("1 to {MAX_CHOICES} parts");
    let texts = section.counted_texts("key", 1..=MAX_CHOICES, &allowed)?;
    let span = texts.span.clone();
    let form = TextForm::new(Code::BadKey, "a key");
    let mut parts: Vec<Alternatives> = Vec::new();
    for part in section.parse_all("key", Some(texts), form, Key::parse_part) {
        if parts.contains(&part.value) {
            Diagnostic::new(Code::Duplicate, "the same part twice in one key")
                .at(&part.span, "changes nothing")
                .report_to(section.reader);
        }
        check_sections(section, &part, present);
        parts.push(part.value);
    }
    (!parts.is_empty()).then(|| Located::new(Key { parts }, &span))
}

/// Reports parts of a key that need another section.
pub(super) fn check_sections(
    section: &Section<'_>,
    parts: &Located<Alternatives>,
    present: SectionsPresent,
) {
    for part in &parts.value.0 {
        let (needed, why, example) = match part {
            Part::Jwt(_) if !present.jwt => (
                "[auth.jwt]",
                "a token that nobody verifies says what its bearer likes",
                "jwks_file = \"/etc/tidegate/jwks.json\"",
            ),
            Part::Tier if !present.tier => (
                "[tier]",
                "nothing says which tier a client has",
                "from = \"jwt:plan\"",
            ),
            Part::Tls(_) if !present.client_ca => (
                "[tls]",
                "clients show no certificates",
                "client_ca = \"/etc/tidegate/clients.pem\"",
            ),
            _ => continue,
        };
        Diagnostic::new(Code::Contradiction, format!("`{part}` needs `{needed}`"))
            .at(&parts.span, why)
            .help(format!("write for example `{needed}` with `{example}`"))
            .report_to(section.reader);
    }
}
