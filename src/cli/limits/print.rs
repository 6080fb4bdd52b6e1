//! Reports of `tidegate limits`: tables for people, one line of JSON for scripts.
//!
//! Each report is a structure with the members of the JSON; the text is made from the same
//! structure.

use std::sync::Arc;

use serde::Serialize;

use crate::admin::operator_store::{KeyUsage, RecordReport, WindowUsage};
use crate::cli::display::{self, StyledSpan, render_lines, short_hash};
use crate::limit::{Limit, Tier, Window};
use crate::telemetry::stamp;

/// `3q2-7wAA (ip)`
pub(super) fn key_text(hash: &str, parts: &str) -> String {
    let hash = short_hash(hash);
    match parts {
        "" => hash,
        parts => format!("{hash} ({parts})"),
    }
}

/// `until 2026-11-20T22:37:06Z`, or `until removed`.
pub(super) fn until_text(until: Option<f64>) -> String {
    match until {
        None => "until removed".to_owned(),
        // Rounded up to a second at which the record no longer holds.
        Some(end) => format!("until {}", date(end + 0.999_999)),
    }
}

fn date(unix_seconds: f64) -> String {
    let text = timestamp(unix_seconds);
    format!("{}Z", text.get(..19).unwrap_or_default())
}

pub(super) fn timestamp(unix_seconds: f64) -> String {
    stamp::rfc3339(micros(unix_seconds))
}

fn micros(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}

fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let row = |cells: Vec<String>| cells.iter().map(StyledSpan::plain).collect();
    let lines = display::table(head, rows.into_iter().map(row).collect());
    render_lines(&lines, false)
}

#[derive(Serialize)]
pub(super) struct ListReport<'r> {
    limits: Vec<LimitEntry<'r>>,
    overrides: Vec<RecordEntry<'r>>,
    blocks: Vec<RecordEntry<'r>>,
    /// The last changes, if the user asks for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<Vec<RecordEntry<'r>>>,
}

#[derive(Serialize)]
struct LimitEntry<'r> {
    limit: &'r str,
    rates: Vec<String>,
    key: Vec<String>,
    tiers: Vec<TierEntry<'r>>,
    candidate: Vec<String>,
    mode: &'static str,
}

#[derive(Serialize)]
struct TierEntry<'r> {
    tier: &'r str,
    rates: Vec<String>,
}

/// An override, a block or a change.
#[derive(Serialize)]
pub(super) struct RecordEntry<'r> {
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<&'r str>,
    limit: Option<&'r str>,
    key: String,
    tag: &'r str,
    counts_by: &'r str,
    rate: Option<&'r str>,
    until: Option<String>,
    at: Option<String>,
    by: &'r str,
    note: &'r str,
    /// Of a ban: the limit whose denials began it.
    #[serde(skip_serializing_if = "Option::is_none")]
    ban: Option<&'r str>,
    #[serde(skip)]
    record: &'r RecordReport,
}

impl<'r> RecordEntry<'r> {
    fn new(record: &'r RecordReport) -> RecordEntry<'r> {
        RecordEntry {
            change: None,
            limit: record.limit.as_deref(),
            key: short_hash(&record.id),
            tag: &record.id,
            counts_by: &record.key,
            rate: record.rates.as_deref(),
            until: record.until.map(timestamp),
            at: (record.at > 0.0).then(|| timestamp(record.at)),
            by: &record.by,
            note: &record.reason,
            ban: record.ban.as_deref(),
            record,
        }
    }

    fn key_text(&self) -> String {
        key_text(self.tag, self.counts_by)
    }

    /// The last columns of a table of records.
    fn origin(&self) -> [String; 3] {
        let until = until_text(self.record.until);
        [until, self.by.to_owned(), self.note.to_owned()]
    }
}

fn rates(windows: &[Arc<Window>]) -> Vec<String> {
    let rates = windows.iter().map(|window| window.rate_and_zone());
    rates.collect()
}

impl<'r> ListReport<'r> {
    pub(super) fn new(
        limits: &'r [Arc<Limit>],
        overrides: &'r [RecordReport],
        changes: Option<&'r [RecordReport]>,
    ) -> ListReport<'r> {
        let tier = |tier: &'r Tier| TierEntry {
            tier: &tier.name,
            rates: rates(&tier.windows),
        };
        let limits = limits.iter().map(|limit| LimitEntry {
            limit: &limit.name,
            rates: rates(&limit.windows),
            key: limit.key.parts.iter().map(ToString::to_string).collect(),
            tiers: limit.tiers.iter().map(tier).collect(),
            candidate: rates(&limit.candidate),
            mode: if limit.shadow { "shadow" } else { "enforced" },
        });
        let records = overrides.iter().map(RecordEntry::new);
        let (overrides, blocks) = records.partition(|entry| entry.limit.is_some());
        let changes = changes.map(|changes| {
            let changes = changes.iter().map(|change| RecordEntry {
                change: Some(&change.what),
                ..RecordEntry::new(change)
            });
            changes.collect()
        });
        ListReport {
            limits: limits.collect(),
            overrides,
            blocks,
            changes,
        }
    }

    pub(super) fn text(&self) -> String {
        let mut rows = Vec::new();
        for limit in &self.limits {
            let mode = if limit.mode == "shadow" { "shadow" } else { "" };
            let [name, mode] = [limit.limit, mode].map(str::to_owned);
            rows.push(vec![
                name,
                limit.rates.join(", "),
                limit.key.join(", "),
                mode,
            ]);
            for tier in &limit.tiers {
                let rates = match tier.rates.is_empty() {
                    true => "unlimited".to_owned(),
                    false => tier.rates.join(", "),
                };
                rows.push(vec![format!("  tier {}", tier.tier), rates]);
            }
            if !limit.candidate.is_empty() {
                rows.push(vec!["  candidate".to_owned(), limit.candidate.join(", ")]);
            }
        }
        let mut text = table(&["LIMIT", "RATE", "KEY", ""], rows);
        let with_rate = |entry: &RecordEntry<'_>, none: &str| {
            let limit = entry.limit.unwrap_or(none).to_owned();
            let rate = entry.rate.unwrap_or(none).to_owned();
            vec![limit, entry.key_text(), rate]
        };
        let overrides = self.overrides.iter();
        let overrides = overrides.map(|one| [with_rate(one, ""), one.origin().to_vec()].concat());
        let blocks = self.blocks.iter();
        let blocks = blocks.map(|one| [vec![one.key_text()], one.origin().to_vec()].concat());
        if !self.overrides.is_empty() {
            let head = ["OVERRIDE", "KEY", "RATE", "", "BY", "NOTE"];
            text.push_str(&format!("\n{}", table(&head, overrides.collect())));
        }
        if !self.blocks.is_empty() {
            let head = ["BLOCK", "", "BY", "NOTE"];
            text.push_str(&format!("\n{}", table(&head, blocks.collect())));
        }
        if let Some(changes) = &self.changes {
            let rows = changes.iter().map(|change| {
                let at = date(change.record.at);
                let mut row = vec![at, change.change.unwrap_or_default().to_owned()];
                row.extend(with_rate(change, "-"));
                row.extend([change.by.to_owned(), change.note.to_owned()]);
                row
            });
            let head = ["AT", "CHANGE", "LIMIT", "KEY", "RATE", "BY", "NOTE"];
            text.push_str(&format!("\n{}", table(&head, rows.collect())));
        }
        text
    }
}

#[derive(Serialize)]
pub(super) struct KeyReport<'r> {
    limit: &'r str,
    key: String,
    tag: &'r str,
    windows: Vec<WindowEntry<'r>>,
    r#override: Option<RecordEntry<'r>>,
    block: Option<RecordEntry<'r>>,
    #[serde(skip)]
    parts: &'r str,
}

#[derive(Serialize)]
struct WindowEntry<'r> {
    policy: &'r str,
    of: Option<&'r str>,
    rate: &'r str,
    used: u64,
    remaining: u64,
    reset_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    resets_at: Option<&'r str>,
    retry: &'r str,
    retry_us: Option<u64>,
}

impl<'r> WindowEntry<'r> {
    fn new(usage: &'r WindowUsage) -> WindowEntry<'r> {
        WindowEntry {
            policy: &usage.policy,
            of: usage.of.as_deref(),
            rate: &usage.rate,
            used: usage.used,
            remaining: usage.remaining,
            reset_us: micros(usage.reset_seconds),
            resets_at: usage.resets_at.as_deref(),
            retry: &usage.retry,
            retry_us: usage.retry_seconds.map(micros),
        }
    }

    fn row(&self) -> Vec<String> {
        vec![
            match self.of {
                Some(of) => format!("{} ({of})", self.policy),
                None => self.policy.to_owned(),
            },
            self.rate.to_owned(),
            self.used.to_string(),
            self.remaining.to_string(),
            (self.resets_at).map_or_else(|| wait_text(self.reset_us), str::to_owned),
            match (self.retry, self.retry_us) {
                ("released", _) => "when one ends".to_owned(),
                (_, Some(us)) => wait_text(us),
                (retry, None) => retry.to_owned(),
            },
        ]
    }
}

impl<'r> KeyReport<'r> {
    pub(super) fn new(usage: &'r KeyUsage) -> KeyReport<'r> {
        KeyReport {
            limit: &usage.limit,
            key: short_hash(&usage.id),
            tag: &usage.id,
            windows: usage.windows.iter().map(WindowEntry::new).collect(),
            r#override: usage.r#override.as_ref().map(RecordEntry::new),
            block: usage.block.as_ref().map(RecordEntry::new),
            parts: &usage.key,
        }
    }

    pub(super) fn text(&self) -> String {
        let key = key_text(self.tag, self.parts);
        let mut text = format!("{}  key {key}\n\n", self.limit);
        if self.windows.is_empty() {
            text.push_str("no limit at all\n");
        } else {
            let head = ["POLICY", "RATE", "USED", "REMAINING", "RESET", "RETRY"];
            let rows = self.windows.iter().map(WindowEntry::row);
            text.push_str(&table(&head, rows.collect()));
        }
        for entry in self.r#override.iter().chain(&self.block) {
            let rates = entry
                .rate
                .map_or_else(String::new, |rates| format!(" {rates}"));
            let (record, [until, by, note]) = (entry.record, entry.origin());
            let at = date(record.at);
            text.push_str(&format!(
                "\n{}:{rates} {until}, by {by} at {at}\n",
                record.what
            ));
            if !note.is_empty() {
                text.push_str(&format!("  {note}\n"));
            }
        }
        text
    }
}

#[derive(Serialize)]
pub(super) struct ResetReport<'r> {
    pub(super) limit: &'r str,
    pub(super) tag: &'r str,
    pub(super) deleted: u64,
}

#[derive(Serialize)]
pub(super) struct ChangeReport<'r> {
    pub(super) limit: Option<&'r str>,
    pub(super) key: String,
    pub(super) tag: &'r str,
    pub(super) until: Option<String>,
}

/// `in 12.3 s`
fn wait_text(us: u64) -> String {
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
    fn a_report_is_one_line_of_json_in_the_order_of_its_members() {
        let report = ChangeReport {
            limit: None,
            key: "x\n\"".to_owned(),
            tag: "xy",
            until: None,
        };
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"limit":null,"key":"x\n\"","tag":"xy","until":null}"#
        );
    }

    #[test]
    fn seconds_are_rounded_to_microseconds() {
        assert_eq!(micros(1.000_001), 1_000_001);
    }

    #[test]
    fn waits_are_rounded_up() {
        assert_eq!(wait_text(0), "now");
        assert_eq!(wait_text(1), "in 0.1 s");
        assert_eq!(wait_text(12_300_001), "in 12.4 s");
        assert_eq!(wait_text(119_000_001), "in 2 min 0 s");
        assert_eq!(wait_text(86_400_000_000), "in 24 h 0 min");
        assert_eq!(until_text(None), "until removed");
        assert_eq!(until_text(Some(0.000_001)), "until 1970-01-01T00:00:01Z");
    }
}
