//! What `tidegate limits` prints: tables for people, one line of JSON for scripts.

use super::json::Json;
use crate::key_selector::{SelectedKey, WindowStatus};
use crate::limit::{KeyHash, Limit, Retry, Window};
use crate::store::overrides::{OverrideList, Record, rate_text};
use crate::telemetry::stamp;

/// As many characters of a hash as logs show.
const SHORT: usize = 8;

/// Everything `show` tells.
pub(super) struct Shown<'s> {
    pub(super) limit: &'s Limit,
    pub(super) whom: &'s SelectedKey,
    pub(super) rows: Vec<WindowStatus>,
    pub(super) said: &'s OverrideList,
}

pub(super) fn short(tag: KeyHash) -> String {
    tag.to_string().chars().take(SHORT).collect()
}

/// `3q2-7wAA (ip)`
pub(super) fn named(tag: KeyHash, parts: &str) -> String {
    match parts {
        "" => short(tag),
        parts => format!("{} ({parts})", short(tag)),
    }
}

/// `until 2026-11-20T22:37:06Z`, or `until removed`.
pub(super) fn until(until_us: u64) -> String {
    match until_us {
        0 => "until removed".to_owned(),
        // Rounded up: at that second it has ended.
        end => format!("until {}", date(end.saturating_add(999_999))),
    }
}

fn date(unix_us: u64) -> String {
    let text = stamp::rfc3339(unix_us);
    format!("{}Z", text.get(..19).unwrap_or_default())
}

/// Columns as wide as they need to be.
fn table(rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let width = cell.chars().count();
            match widths.get_mut(column) {
                Some(widest) => *widest = width.max(*widest),
                None => widths.push(width),
            }
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

fn rates<'w>(windows: impl Iterator<Item = &'w Window>) -> String {
    let rates: Vec<String> = windows.map(|window| rate_text(&window.rule)).collect();
    rates.join(", ")
}

fn key_of(limit: &Limit) -> String {
    let parts: Vec<String> = limit.key.parts.iter().map(ToString::to_string).collect();
    parts.join(", ")
}

/// The limits, what is said of whom, and the last changes if they are asked for.
pub(super) fn list<'l>(
    limits: impl Iterator<Item = &'l Limit>,
    said: &OverrideList,
    changes: Option<&[Record]>,
) -> String {
    let mut rows = vec![row(&["LIMIT", "RATE", "KEY"])];
    for limit in limits {
        let own = rates(limit.windows.iter().map(AsRef::as_ref));
        let mark = if limit.shadow { " (shadow)" } else { "" };
        rows.push(vec![format!("{}{mark}", limit.name), own, key_of(limit)]);
        for tier in &limit.tiers {
            let rates = rates(tier.windows.iter().map(AsRef::as_ref));
            rows.push(vec![format!("  tier {}", tier.name), rates]);
        }
        if !limit.candidate.is_empty() {
            let rates = rates(limit.candidate.iter().map(AsRef::as_ref));
            rows.push(vec!["  candidate".to_owned(), rates]);
        }
    }
    let mut text = table(&rows);
    let mut overrides = vec![row(&["OVERRIDE", "KEY", "RATE", "", "BY", "NOTE"])];
    let mut blocks = vec![row(&["BLOCK", "", "BY", "NOTE"])];
    for record in &said.records {
        let terms = &record.terms;
        let key = named(record.subject.tag(), &terms.key);
        let tail = [until(terms.until_us), terms.by.clone(), terms.note.clone()];
        match record.subject.limit() {
            Some(limit) => {
                let rate = terms.rates().unwrap_or_default();
                overrides.push([vec![limit.to_owned(), key, rate], tail.to_vec()].concat());
            }
            None => blocks.push([vec![key], tail.to_vec()].concat()),
        }
    }
    for rows in [overrides, blocks] {
        if rows.len() > 1 {
            text.push('\n');
            text.push_str(&table(&rows));
        }
    }
    if let Some(changes) = changes {
        text.push('\n');
        text.push_str(&table(&audit(changes)));
    }
    text
}

fn audit(changes: &[Record]) -> Vec<Vec<String>> {
    let mut rows = vec![row(&["AT", "CHANGE", "LIMIT", "KEY", "RATE", "BY", "NOTE"])];
    rows.extend(changes.iter().map(|change| {
        let terms = &change.terms;
        vec![
            date(terms.at_us),
            change.what().to_owned(),
            change.subject.limit().unwrap_or("-").to_owned(),
            named(change.subject.tag(), &terms.key),
            terms.rates().unwrap_or_else(|| "-".to_owned()),
            terms.by.clone(),
            terms.note.clone(),
        ]
    }));
    rows
}

/// The same as JSON.
pub(super) fn list_json<'l>(
    limits: impl Iterator<Item = &'l Limit>,
    said: &OverrideList,
    changes: Option<&[Record]>,
) -> Json {
    let rates = |windows: &[std::sync::Arc<Window>]| {
        let rate = |window: &std::sync::Arc<Window>| Json::Text(rate_text(&window.rule));
        Json::List(windows.iter().map(rate).collect())
    };
    let limit = |limit: &Limit| {
        let tier = |tier: &crate::limit::Tier| {
            Json::Object(vec![
                ("tier", Json::text(&tier.name)),
                ("rates", rates(&tier.windows)),
            ])
        };
        let part = |part: &crate::limit::key::Alternatives| Json::Text(part.to_string());
        Json::Object(vec![
            ("limit", Json::text(&limit.name)),
            ("rates", rates(&limit.windows)),
            (
                "key",
                Json::List(limit.key.parts.iter().map(part).collect()),
            ),
            ("tiers", Json::List(limit.tiers.iter().map(tier).collect())),
            ("candidate", rates(&limit.candidate)),
        ])
    };
    let of = |blocks: bool| {
        let records = said.records.iter();
        let chosen = records.filter(|one| one.subject.limit().is_none() == blocks);
        Json::List(chosen.map(record).collect())
    };
    let mut members = vec![
        ("limits", Json::List(limits.map(limit).collect())),
        ("overrides", of(false)),
        ("blocks", of(true)),
    ];
    if let Some(changes) = changes {
        let changes = changes.iter().map(|change| {
            let Json::Object(mut members) = record(change) else {
                return Json::Null;
            };
            members.insert(0, ("change", Json::text(change.what())));
            Json::Object(members)
        });
        members.push(("changes", Json::List(changes.collect())));
    }
    Json::Object(members)
}

/// An override, a block or a change.
pub(super) fn record(record: &Record) -> Json {
    let terms = &record.terms;
    let date = |us: u64| (us > 0).then(|| stamp::rfc3339(us));
    Json::Object(vec![
        ("limit", record.subject.limit().map(str::to_owned).into()),
        ("key", Json::text(&short(record.subject.tag()))),
        ("tag", Json::Text(record.subject.tag().to_string())),
        ("counts_by", Json::text(&terms.key)),
        ("rate", terms.rates().into()),
        ("until", date(terms.until_us).into()),
        ("at", date(terms.at_us).into()),
        ("by", Json::text(&terms.by)),
        ("note", Json::text(&terms.note)),
    ])
}

impl Shown<'_> {
    /// What is said of this key: of this limit, or a block.
    fn records(&self) -> impl Iterator<Item = &Record> {
        let records = self.said.records.iter();
        records.filter(|one| {
            let of_it = one
                .subject
                .limit()
                .is_none_or(|name| *name == *self.limit.name);
            of_it && one.subject.tag() == self.whom.tag
        })
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{}  key {}\n\n",
            self.limit.name,
            named(self.whom.tag, &self.whom.parts)
        );
        let mut rows = vec![row(&[
            "POLICY",
            "RATE",
            "USED",
            "REMAINING",
            "RESET",
            "RETRY",
        ])];
        for one in &self.rows {
            let policy = match &one.of {
                Some(of) => format!("{} ({of})", one.policy),
                None => one.policy.clone(),
            };
            rows.push(vec![
                policy,
                one.rate.clone(),
                one.used.to_string(),
                one.remaining.to_string(),
                wait(one.reset_us),
                match one.retry {
                    Retry::Now | Retry::Unasked => "now".to_owned(),
                    Retry::After(us) => wait(us),
                    Retry::Never => "never".to_owned(),
                    Retry::Released => "when one ends".to_owned(),
                },
            ]);
        }
        if rows.len() > 1 {
            text.push_str(&table(&rows));
        } else {
            text.push_str("no limit at all\n");
        }
        for record in self.records() {
            let terms = &record.terms;
            let rates = terms
                .rates()
                .map_or_else(String::new, |rates| format!(" {rates}"));
            text.push_str(&format!(
                "\n{}:{rates} {}, by {} at {}\n",
                record.what(),
                until(terms.until_us),
                terms.by,
                date(terms.at_us)
            ));
            if !terms.note.is_empty() {
                text.push_str(&format!("  {}\n", terms.note));
            }
        }
        text
    }

    pub(super) fn json(&self) -> Json {
        let window = |one: &WindowStatus| {
            let (retry, retry_us) = match one.retry {
                Retry::Now | Retry::Unasked => ("now", Some(0)),
                Retry::After(us) => ("after", Some(us)),
                Retry::Never => ("never", None),
                Retry::Released => ("released", None),
            };
            Json::Object(vec![
                ("policy", Json::text(&one.policy)),
                ("of", one.of.clone().into()),
                ("rate", Json::text(&one.rate)),
                ("used", Json::Number(one.used)),
                ("remaining", Json::Number(one.remaining)),
                ("reset_us", Json::Number(one.reset_us)),
                ("retry", Json::text(retry)),
                ("retry_us", retry_us.into()),
            ])
        };
        let said = |blocks: bool| {
            let mut records = self.records();
            let found = records.find(|one| one.subject.limit().is_none() == blocks);
            found.map_or(Json::Null, record)
        };
        Json::Object(vec![
            ("limit", Json::text(&self.limit.name)),
            ("key", Json::text(&short(self.whom.tag))),
            ("tag", Json::Text(self.whom.tag.to_string())),
            (
                "windows",
                Json::List(self.rows.iter().map(window).collect()),
            ),
            ("override", said(false)),
            ("block", said(true)),
        ])
    }
}

/// `in 12.3 s`
fn wait(us: u64) -> String {
    match us {
        0 => "now".to_owned(),
        us if us < 100_000_000 => format!("in {:.1} s", us.div_ceil(100_000) as f64 / 10.0),
        us => {
            let seconds = us.div_ceil(1_000_000);
            let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
            match hours {
                0 => format!("in {minutes} min {} s", seconds % 60),
                hours => format!("in {hours} h {minutes} min"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_need_to_be() {
        let rows = [
            row(&["A", "LONG", ""]),
            row(&["bcd", "e"]),
            row(&["", "", "x"]),
        ];
        assert_eq!(table(&rows), "A    LONG\nbcd  e\n           x\n");
    }

    #[test]
    fn waits_are_rounded_up() {
        assert_eq!(wait(0), "now");
        assert_eq!(wait(1), "in 0.1 s");
        assert_eq!(wait(12_300_001), "in 12.4 s");
        assert_eq!(wait(119_000_001), "in 2 min 0 s");
        assert_eq!(wait(86_400_000_000), "in 24 h 0 min");
        assert_eq!(until(0), "until removed");
        assert_eq!(until(1), "until 1970-01-01T00:00:01Z");
    }
}
