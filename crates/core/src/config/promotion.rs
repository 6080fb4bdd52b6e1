//! The patch of a configuration file that enforces a limit in shadow mode, or a candidate rate.
//!
//! Pure: the text of a file in, a unified diff out. The diff has lines of that limit's table only,
//! and none that may have a key of a client.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

/// Lines around a change.
const CONTEXT: usize = 3;
/// Lines between the first and the last change that are compared with each other.
const MAX_COMPARED: usize = 100;
/// Settings whose lines may be context.
const OPEN_SETTINGS: [&str; 10] = [
    "rate",
    "candidate",
    "shadow",
    "key",
    "algorithm",
    "precision",
    "missing",
    "on_error",
    "cost",
    "counts",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotion {
    /// The limit denies, where it only counted before.
    Shadow,
    /// The candidate replaces the rate.
    Candidate,
}

impl Promotion {
    pub fn word(self) -> &'static str {
        match self {
            Promotion::Shadow => "shadow",
            Promotion::Candidate => "candidate",
        }
    }
}

/// The unified diff of `text`, the file of this name. `None` if the limit has no such setting, or
/// if its form is too unusual for a change by a program.
pub fn promotion(file: &str, text: &str, limit: &str, kind: Promotion) -> Option<String> {
    if text.contains('\r') {
        return None;
    }
    let edits = edits(text, limit, kind)?;
    let mut promoted = text.to_owned();
    for edit in edits.iter().rev() {
        promoted.replace_range(edit.place.clone(), &edit.with);
    }
    // A wrong patch is worse than none.
    DeTable::parse(&promoted).ok()?;
    let before: Vec<&str> = text.lines().collect();
    let after: Vec<&str> = promoted.lines().collect();
    unified_diff(file, &before, &after)
}

struct TextEdit {
    place: Range<usize>,
    with: String,
}

/// The edits of a promotion, in the order of the text.
fn edits(text: &str, limit: &str, kind: Promotion) -> Option<Vec<TextEdit>> {
    let document = DeTable::parse(text).ok()?;
    let limits = document.get_ref().get("limit")?.get_ref().as_table()?;
    let table = limits.get(limit)?.get_ref().as_table()?;
    let (key, value) = table.get_key_value(kind.word())?;
    let pair = key.span().start..value.span().end;
    let mut edits = vec![TextEdit {
        place: whole_setting(text, pair),
        with: String::new(),
    }];
    match (kind, value.get_ref()) {
        (Promotion::Shadow, DeValue::Boolean(true)) => {}
        (Promotion::Candidate, DeValue::String(_)) => edits.push(TextEdit {
            place: table.get("rate")?.span(),
            with: text.get(value.span())?.to_owned(),
        }),
        _ => return None,
    }
    edits.sort_by_key(|edit| edit.place.start);
    Some(edits)
}

/// The place of a setting with its line, or with its comma in an inline table.
fn whole_setting(text: &str, pair: Range<usize>) -> Range<usize> {
    let line_start = text[..pair.start].rfind('\n').map_or(0, |at| at + 1);
    let line_end = text[pair.end..].find('\n');
    let line_end = line_end.map_or(text.len(), |at| pair.end + at + 1);
    let (left, right) = (&text[line_start..pair.start], &text[pair.end..line_end]);
    let rest = right.trim();
    if !left.contains(['{', ',']) && (rest.is_empty() || rest.starts_with('#')) {
        return line_start..line_end;
    }
    if let Some(after) = right.trim_start().strip_prefix(',') {
        let blanks = after.len() - after.trim_start_matches(' ').len();
        let end = line_end - after.len() + blanks;
        let is_alone = left.trim().is_empty() && after.trim().is_empty();
        return match is_alone {
            true => line_start..line_end,
            false => pair.start..end,
        };
    }
    match left.trim_end().strip_suffix(',') {
        Some(before) => line_start + before.len()..pair.end,
        None => pair,
    }
}

/// One hunk with all changes. `None` if nothing differs, or if a line may have a key of a client.
fn unified_diff(file: &str, before: &[&str], after: &[&str]) -> Option<String> {
    let equal = |one: &(&&str, &&str)| one.0 == one.1;
    let same_above = before.iter().zip(after).take_while(equal).count();
    let (old, new) = (&before[same_above..], &after[same_above..]);
    let same_below = old
        .iter()
        .rev()
        .zip(new.iter().rev())
        .take_while(equal)
        .count();
    let (old, below) = old.split_at(old.len() - same_below);
    let new = &new[..new.len() - same_below];
    let changed = compare(old, new)?;
    if changed.is_empty() || changed.iter().any(|line| line.contains("exempt")) {
        return None;
    }
    let above = before[..same_above].iter().rev();
    let above: Vec<&str> = context(above.copied());
    let below: Vec<&str> = context(below.iter().copied().take_while(|line| !is_header(line)));
    let start = same_above - above.len() + 1;
    let [old_lines, new_lines] = [old, new].map(|lines| above.len() + lines.len() + below.len());
    // Without lines of its own, a side names the line before.
    let new_start = if new_lines == 0 { start - 1 } else { start };
    let places = format!("-{start},{old_lines} +{new_start},{new_lines}");
    let mut diff = format!("--- {file}\n+++ {file}\n@@ {places} @@\n");
    let unchanged = |line: &str| format!(" {line}\n");
    diff.extend(above.into_iter().rev().map(unchanged));
    diff.extend(changed);
    diff.extend(below.into_iter().map(unchanged));
    Some(diff)
}

/// The first lines that may be shown, up to the header of the table.
fn context<'t>(lines: impl Iterator<Item = &'t str>) -> Vec<&'t str> {
    let mut shown = Vec::new();
    for line in lines.take(CONTEXT) {
        let name = line.split('=').next().unwrap_or_default().trim();
        if !is_header(line) && !OPEN_SETTINGS.contains(&name) {
            break;
        }
        shown.push(line);
        if is_header(line) {
            break;
        }
    }
    shown
}

fn is_header(line: &str) -> bool {
    line.trim_start().starts_with('[')
}

/// The lines of a diff between two short texts, by their longest common subsequence.
fn compare(old: &[&str], new: &[&str]) -> Option<Vec<String>> {
    if old.len().max(new.len()) > MAX_COMPARED {
        return None;
    }
    // The length of the longest common subsequence from line `i` of the old text and line `j` of
    // the new one on.
    let mut common = vec![vec![0_usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = match old[i] == new[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut lines = Vec::new();
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            lines.push(format!(" {}\n", old[i]));
            (i, j) = (i + 1, j + 1);
        } else if i < old.len() && (j == new.len() || common[i + 1][j] >= common[i][j + 1]) {
            lines.push(format!("-{}\n", old[i]));
            i += 1;
        } else {
            lines.push(format!("+{}\n", new[j]));
            j += 1;
        }
    }
    Some(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
        [store]\nurl = \"redis://:secret@store\"\n\n\
        # Note.\n[limit.search]\nrate = \"100/min\"  # as before\nkey = \"ip\"\n\
        candidate = \"60/min\"\nshadow = true\nexempt = [\"partner-key\"]\n\n\
        [limit]\nlogin = { rate = \"5/min\", shadow = true, candidate = \"3/min\" }\n\
        dotted.rate = \"1/s\"\ndotted.shadow = true\n";

    fn patch(limit: &str, kind: Promotion) -> Option<String> {
        promotion("proxy.toml", FILE, limit, kind)
    }

    #[test]
    fn a_limit_in_shadow_mode_is_enforced() {
        let patch = patch("search", Promotion::Shadow).unwrap();
        let expected = "--- proxy.toml\n+++ proxy.toml\n@@ -6,4 +6,3 @@\n \
            rate = \"100/min\"  # as before\n key = \"ip\"\n candidate = \"60/min\"\n\
            -shadow = true\n";
        assert_eq!(patch, expected);
    }

    #[test]
    fn a_candidate_replaces_the_rate() {
        let patch = patch("search", Promotion::Candidate).unwrap();
        let expected = "--- proxy.toml\n+++ proxy.toml\n@@ -5,5 +5,4 @@\n [limit.search]\n\
            -rate = \"100/min\"  # as before\n+rate = \"60/min\"  # as before\n key = \"ip\"\n\
            -candidate = \"60/min\"\n shadow = true\n";
        assert_eq!(patch, expected);
    }

    #[test]
    fn other_forms_of_a_limit_are_promoted_too() {
        let inline = |kind| patch("login", kind).unwrap();
        let shadow = inline(Promotion::Shadow);
        let line = "+login = { rate = \"5/min\", candidate = \"3/min\" }\n";
        assert!(shadow.contains(line), "{shadow}");
        let candidate = inline(Promotion::Candidate);
        let line = "+login = { rate = \"3/min\", shadow = true }\n";
        assert!(candidate.contains(line), "{candidate}");
        let dotted = patch("dotted", Promotion::Shadow).unwrap();
        assert!(dotted.ends_with("\n-dotted.shadow = true\n"), "{dotted}");
    }

    #[test]
    fn no_patch_shows_a_secret_or_changes_nothing() {
        for limit in ["search", "login", "dotted"] {
            for kind in [Promotion::Shadow, Promotion::Candidate] {
                let patch = patch(limit, kind).unwrap_or_default();
                assert!(!patch.contains("secret") && !patch.contains("partner"));
            }
        }
        assert_eq!(patch("dotted", Promotion::Candidate), None);
        assert_eq!(patch("other", Promotion::Shadow), None);
        let inline = "limit = { a = { rate = \"1/s\", shadow = true, exempt = [\"k\"] } }\n";
        assert_eq!(promotion("f", inline, "a", Promotion::Shadow), None);
    }
}
