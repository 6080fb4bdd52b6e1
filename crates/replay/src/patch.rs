//! The suggested rates as a patch of the configuration file, which `git apply` takes. Only numbers
//! of rates change. All other bytes of the file stay.

use similar::TextDiff;

use super::engine::Engine;
use super::plan::WindowRow;
use super::report::{Report, Suggested};
use crate::config::RatePlace;
use crate::limit::Role;

/// Unchanged lines around a change.
const CONTEXT_LINES: usize = 3;

#[derive(Debug)]
pub struct RatePatch {
    /// The file with the suggested rates.
    pub text: String,
    /// A unified diff; empty if no rate changes.
    pub diff: String,
    /// How many rates change.
    pub changed: usize,
    /// Sentences about rates that should change, and that the patch leaves.
    pub notes: Vec<String>,
}

struct Edit<'c> {
    place: &'c RatePlace,
    text: String,
}

impl RatePatch {
    /// Patches the file of the engine's configuration. `name` is its path for the one who applies
    /// the patch.
    pub fn new(engine: &Engine, report: &Report, name: &str) -> RatePatch {
        let sources = &engine.config.sources;
        let mut edits = Vec::new();
        let mut notes = Vec::new();
        for (row, limit) in engine.plan.rows.iter().zip(&report.limits) {
            let Some(suggested) = &limit.suggested else {
                continue;
            };
            let Some(place) = sources
                .rates
                .iter()
                .find(|place| is_place_of(place, engine, row))
            else {
                continue;
            };
            if suggested.units == limit.units.own {
                continue;
            }
            if row.role == Role::Candidate && is_also_the_rate(engine, report, row, suggested) {
                notes.push(format!(
                    "the patch leaves the candidate of `{}`: {} is the suggestion for the rate too",
                    engine.plan.limits[row.limit].limit.name, suggested.rate
                ));
                continue;
            }
            match respelled(&sources.text[place.span.clone()], suggested) {
                Some(text) => edits.push(Edit { place, text }),
                None => notes.push(format!(
                    "the patch leaves `{}`: its rate comes from a variable; suggested is {}",
                    limit.name, suggested.rate
                )),
            }
        }
        let text = edited(&sources.text, &mut edits);
        RatePatch {
            diff: unified_diff(&sources.text, &text, name),
            text,
            changed: edits.len(),
            notes,
        }
    }
}

/// Whether the limit's own rate gets the same suggestion: then a candidate would try nothing.
fn is_also_the_rate(
    engine: &Engine,
    report: &Report,
    candidate: &WindowRow,
    suggested: &Suggested,
) -> bool {
    let mut rows = engine.plan.rows.iter().zip(&report.limits);
    rows.any(|(row, limit)| {
        let is_rate = row.limit == candidate.limit && row.role != Role::Candidate;
        let other = limit.suggested.as_ref();
        is_rate && other.is_some_and(|other| other.rate == suggested.rate)
    })
}

fn is_place_of(place: &RatePlace, engine: &Engine, row: &WindowRow) -> bool {
    let limit = &engine.plan.limits[row.limit].limit;
    *limit.name == *place.limit
        && row.tier == place.tier
        && (row.role == Role::Candidate) == place.is_candidate
        && row.window.rule == place.rule
}

/// The suggested rate in the spelling of the file. `None` if a variable is in it.
fn respelled(written: &str, suggested: &Suggested) -> Option<String> {
    if written.contains('$') {
        return None;
    }
    let is_text = written.starts_with(['"', '\'']);
    let digits = written.find(|c: char| c.is_ascii_digit());
    match digits {
        // An escape may contain digits.
        Some(start) if is_text && !written.contains('\\') => {
            let (before, number) = written.split_at(start);
            let after = number.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_');
            Some(format!("{before}{}{after}", suggested.units))
        }
        _ if is_text => Some(format!("\"{}\"", suggested.rate)),
        _ => Some(suggested.units.to_string()),
    }
}

fn edited(text: &str, edits: &mut [Edit<'_>]) -> String {
    let mut text = text.to_owned();
    edits.sort_by_key(|edit| std::cmp::Reverse(edit.place.span.start));
    for edit in edits {
        text.replace_range(edit.place.span.clone(), &edit.text);
    }
    text
}

/// A diff without git's own header: `git apply` then takes its paths from the current folder.
fn unified_diff(old: &str, new: &str, name: &str) -> String {
    // A tab ends a name with spaces.
    let end = match name.contains(' ') {
        true => "\t",
        false => "",
    };
    TextDiff::from_lines(old, new)
        .unified_diff()
        .context_radius(CONTEXT_LINES)
        .header(&format!("a/{name}{end}"), &format!("b/{name}{end}"))
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_keeps_the_spelling_of_the_file() {
        let suggested = Suggested {
            units: 38,
            rate: "38/min".to_owned(),
            clients_hit: 0,
        };
        for (written, expected) in [
            ("\"10/min\"", Some("\"38/min\"")),
            ("'1_000 / 60 s'", Some("'38 / 60 s'")),
            ("\" 7/1min \"", Some("\" 38/1min \"")),
            ("\"\"\"\n5/min\"\"\"", Some("\"\"\"\n38/min\"\"\"")),
            ("\"\\u0031/min\"", Some("\"38/min\"")),
            ("1_000", Some("38")),
            ("0x10", Some("38")),
            ("\"${RATE:-5/min}\"", None),
        ] {
            assert_eq!(
                respelled(written, &suggested).as_deref(),
                expected,
                "{written}"
            );
        }
    }

    #[test]
    fn line_ends_and_the_end_of_the_file_stay() {
        let old = "a = 1\r\nb = 2\r\nc = 3";
        let diff = unified_diff(old, &old.replace('3', "4"), "my proxy.toml");
        let expected = "--- a/my proxy.toml\t\n+++ b/my proxy.toml\t\n@@ -1,3 +1,3 @@\n \
                        a = 1\r\n b = 2\r\n-c = 3\n\\ No newline at end of file\n+c = 4\n\
                        \\ No newline at end of file\n";
        assert_eq!(diff, expected);
        assert_eq!(unified_diff(old, old, "proxy.toml"), "");
    }
}
