//! The banned clients in `top`, with the limit of each ban and its end. Pure.

use crate::admin::operator_store::RecordReport;
use crate::cli::display::{StyledLine, Tone, short_hash, span};

/// Banned clients that are shown.
const SHOWN: usize = 4;

/// The bans among the records of the store, those that end first in front.
pub(super) fn of_records(records: Vec<RecordReport>) -> Vec<RecordReport> {
    let mut bans: Vec<RecordReport> = records;
    bans.retain(|one| one.ban.is_some());
    bans.sort_by(|one, other| {
        one.until
            .unwrap_or(0.0)
            .total_cmp(&other.until.unwrap_or(0.0))
    });
    bans
}

/// `now` is the time of the proxy.
pub(super) fn lines(bans: &[RecordReport], now: f64) -> Vec<StyledLine> {
    let mut lines = Vec::new();
    for ban in bans.iter().take(SHOWN) {
        let head = match lines.is_empty() {
            true => "banned",
            false => "",
        };
        let key = match &*ban.key {
            "" => short_hash(&ban.id),
            parts => format!("{} ({parts})", short_hash(&ban.id)),
        };
        let limit = ban.ban.as_deref().unwrap_or_default();
        let left = span((ban.until.unwrap_or(now) - now).max(0.0));
        let text = format!("{key} by {limit} for {left}");
        lines.push(StyledLine::new(Tone::Faint, format!("{head:<10}")).with(Tone::Bad, text));
    }
    if bans.len() > SHOWN {
        let more = format!("{:<10}and {} more", "", bans.len() - SHOWN);
        lines.push(StyledLine::new(Tone::Faint, more));
    }
    if !lines.is_empty() {
        lines.push(StyledLine::default());
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::display::render_lines;

    #[test]
    fn who_is_banned_is_shown_with_the_end() {
        let record = |number: u64, ban: Option<&str>| {
            let id = format!("{number}Fc46O0KAAAAAAAAAAAAAA");
            let until = 1000.0 + 600.0 * number as f64;
            let record = json!({ "what": "block", "id": id, "until": until, "at": 900.0,
                "by": "x", "key": "ip", "reason": "", "ban": ban });
            serde_json::from_value::<RecordReport>(record).unwrap()
        };
        let records = [6, 2, 3, 4, 5, 1].map(|number| record(number, Some("login")));
        let records: Vec<_> = records.into_iter().chain([record(7, None)]).collect();
        let bans = of_records(records);
        assert_eq!(bans.len(), 6);
        let text = render_lines(&lines(&bans, 1000.0), false);
        let mut rows = text.lines();
        assert_eq!(
            rows.next(),
            Some("banned    1Fc46O0K (ip) by login for 10 min")
        );
        assert_eq!(rows.nth(3), Some("          and 2 more"));
        assert!(lines(&[], 1000.0).is_empty());
    }
}
