//! Reads the files of envoyproxy/ratelimit, one for each domain. Each descriptor with a rate limit
//! becomes a `[[descriptor]]`.

mod holes;
mod source;
#[cfg(test)]
mod tests;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::draft::{DescriptorDraft, Draft, Grade, Notes};
use crate::files::{self, ImportError, SourceEntry, SourceFault, SourceLine};
use crate::values::{TomlEntries, inline_table, quote, quote_list, quote_one_or_list};
use holes::{DescriptorPath, Hole, RuleEntry};
use source::{SourceBudget, SourceDomain, SourceRateLimit};
use values::EntryValues;

/// Entries of one descriptor in a call, at most.
const MAX_ENTRIES: usize = 16;
/// Rules of one `proxy.toml`, at most.
const MAX_RULES: usize = 50_000;
/// Parts of a key, at most.
const MAX_KEY_PARTS: usize = 8;
/// Characters of a rule's name, at most, without the number that makes it unique.
const MAX_NAME: usize = 190;

/// A `[[descriptor]]` before its name is known.
struct ImportedRule<'d> {
    domain: &'d SourceDomain,
    place: SourceLine,
    entries: Vec<RuleEntry>,
    /// The descriptors of the entries, the last of them with a rate limit. Empty for a hole.
    path: DescriptorPath<'d>,
    /// What a hole is for.
    comment: String,
    name: Option<String>,
}

impl ImportedRule<'_> {
    fn rate_limit(&self) -> Option<&SourceRateLimit> {
        self.path.last()?.rate_limit.as_ref()
    }
}

pub(super) fn read(paths: &[PathBuf]) -> Result<Draft, ImportError> {
    let notes = Notes::default();
    let paths: Vec<PathBuf> = paths.iter().flat_map(|path| files_of(path)).collect();
    let first_line = SourceLine {
        file: paths
            .first()
            .map_or_else(String::new, |path| path.display().to_string())
            .into(),
        line: 1,
    };
    let mut domains = source::read(&paths, &notes)?;
    for domain in &mut domains {
        holes::remove_unreached(&mut domain.descriptors, &notes);
        holes::note_patterns(&domain.descriptors, &notes);
    }
    let mut rules: Vec<ImportedRule<'_>> = Vec::new();
    for domain in &domains {
        add_rules(domain, &mut rules, &notes);
    }
    remove_ties(&mut rules, &notes);
    check_count(rules.len(), &first_line, &notes)?;
    note_differences(&domains, &rules, &first_line, &notes);
    let names = name_rules(&mut rules, &notes);
    let mut draft = Draft::default();
    draft.decide.add("listen", quote("127.0.0.1:8081"));
    draft.decide.add("overrides", "true");
    draft.descriptors = rules
        .iter()
        .map(|rule| rule.write(&names, &notes))
        .collect();
    draft.notes = notes;
    Ok(draft)
}

/// Refuses files that `check` would refuse as a whole.
fn check_count(count: usize, place: &SourceLine, notes: &Notes) -> Result<(), ImportError> {
    let fault = |place: &SourceLine, what: String| SourceFault {
        place: place.clone(),
        what,
    };
    let mut faults = Vec::new();
    if count > MAX_RULES {
        faults.push(fault(
            place,
            format!("more than {MAX_RULES} rules, which is too many"),
        ));
    }
    if count == 0 {
        let what = "no descriptor has a `rate_limit` that can be kept";
        faults.push(fault(place, what.to_owned()));
        let notes = notes.sorted().into_iter();
        let lost = notes.filter(|note| note.grade == Grade::Lost);
        faults.extend(lost.map(|note| fault(&note.place, format!("{}: {}", note.what, note.why))));
    }
    match faults.is_empty() {
        true => Ok(()),
        false => Err(ImportError::Syntax(faults)),
    }
}

/// Returns the YAML files of a folder, or the file itself.
fn files_of(path: &Path) -> Vec<PathBuf> {
    if !path.is_dir() {
        return vec![path.to_owned()];
    }
    let endings = ["*.yaml", "*.yml"];
    let mut found: Vec<PathBuf> = endings
        .iter()
        .flat_map(|ending| files::find_in_folder(path, ending))
        .collect();
    found.sort();
    match found.is_empty() {
        // Reading it says why it is no file.
        true => vec![path.to_owned()],
        false => found,
    }
}

/// Adds the rules of a domain, and its holes behind them.
fn add_rules<'d>(domain: &'d SourceDomain, rules: &mut Vec<ImportedRule<'d>>, notes: &Notes) {
    let mut paths = Vec::new();
    holes::find_rules(&domain.descriptors, &[], &mut paths);
    paths.retain(|path| {
        let is_possible = path.len() <= MAX_ENTRIES;
        if let Some(last) = path.last().filter(|_| !is_possible) {
            let why = format!("a descriptor has at most {MAX_ENTRIES} entries here");
            notes.lost(&last.place, &holes::describe(&holes::entries_of(path)), why);
        }
        is_possible
    });
    let found = holes::find_holes(&domain.descriptors, &paths, MAX_RULES);
    for path in paths {
        let Some(last) = path.last() else { continue };
        rules.push(ImportedRule {
            domain,
            place: last.place.clone(),
            entries: holes::entries_of(&path),
            path,
            comment: String::new(),
            name: None,
        });
    }
    for hole in found {
        note_hole(&hole, notes);
        rules.push(ImportedRule {
            domain,
            place: hole.place,
            entries: hole.entries,
            path: Vec::new(),
            comment: format!("keeps line {} from counting these", hole.escaped_line),
            name: None,
        });
    }
}

fn note_hole(hole: &Hole, notes: &Notes) {
    let line = hole.escaped_line;
    let cause = match hole.is_at_end {
        true => "it has no `rate_limit`, so the service does not limit it".to_owned(),
        false => {
            format!("the service finds no limit behind it, and does not go back to line {line}")
        }
    };
    let why = format!(
        "{cause}. A rule with `limits = []` keeps it so. Remove the rule if line {line} should \
         count here"
    );
    notes.add(
        Grade::Differs,
        &hole.place,
        &holes::describe(&hole.entries),
        why,
    );
}

/// Removes the later one of two rules that `check` cannot tell apart: patterns with as many letters
/// that take some of the same values.
fn remove_ties(rules: &mut Vec<ImportedRule<'_>>, notes: &Notes) {
    let mut groups: BTreeMap<(String, Vec<RuleEntry>), Vec<usize>> = BTreeMap::new();
    let mut removed = BTreeSet::new();
    for (index, rule) in rules.iter().enumerate() {
        let ranked = rule.entries.iter().map(|entry| match &entry.values {
            EntryValues::Pattern(_) => RuleEntry {
                key: entry.key.clone(),
                values: EntryValues::Pattern(entry.values.rank().to_string()),
            },
            _ => entry.clone(),
        });
        let group = groups
            .entry((rule.domain.name.clone(), ranked.collect()))
            .or_default();
        let meets = |other: &&usize| {
            let pairs = rule.entries.iter().zip(&rules[**other].entries);
            pairs
                .into_iter()
                .all(|(one, other)| one.values.meet(&other.values))
        };
        if let Some(other) = group.iter().find(meets) {
            let why = format!(
                "line {} takes some of the same calls, and its patterns have as many letters. \
                 Change one of them, so that no call fits both",
                rules[*other].place.line
            );
            notes.lost(&rule.place, &holes::describe(&rule.entries), why);
            removed.insert(index);
        } else {
            group.push(index);
        }
    }
    let mut index = 0..;
    rules.retain(|_| index.next().is_none_or(|index| !removed.contains(&index)));
}

/// Notes what differs whatever the files say.
fn note_differences(
    domains: &[SourceDomain],
    rules: &[ImportedRule<'_>],
    place: &SourceLine,
    notes: &Notes,
) {
    let differs = |what: &str, why: &str| notes.add(Grade::Differs, place, what, why);
    differs(
        "[decide] listen",
        "the service answered every address. This answers only this machine until you change \
         `listen` and `from`",
    );
    differs(
        "[decide] overrides",
        "the service believed limits that callers send with a descriptor, so `overrides` is true. \
         Remove it if your callers send none",
    );
    differs(
        "windows",
        "the service counted in windows that begin at full minutes, hours and so on. Here they \
         slide: no interval of that length has more than the limit",
    );
    differs(
        "denials",
        "a denied call charged its other descriptors too. Here it charges nothing",
    );
    let entries = || rules.iter().flat_map(|rule| &rule.entries);
    if entries().any(|entry| matches!(entry.values, EntryValues::Pattern(_))) {
        differs(
            "patterns",
            "the service tried them in the order of the file. Here the one with the most letters \
             is first. Where this makes a difference, a line below says so",
        );
    }
    let has_joint = |entry: &RuleEntry| match &entry.values {
        EntryValues::Exact(value) | EntryValues::Pattern(value) => {
            entry.key.contains('_') || value.contains('_')
        }
        EntryValues::Any => entry.key.contains('_'),
    };
    if entries().any(has_joint) || domains.len() > 1 {
        differs(
            "keys and values",
            "the service joined them with `_`: key `a_b` with value `c` was key `a` with value \
             `b_c`. Here these are two",
        );
    }
}

/// The names of rules in a domain, by the names that they had there.
type RuleNames = BTreeMap<(String, String), Vec<String>>;

/// Gives each rule with a name a name of its own.
fn name_rules(rules: &mut [ImportedRule<'_>], notes: &Notes) -> RuleNames {
    let mut names = RuleNames::new();
    let mut taken = BTreeSet::new();
    for rule in rules {
        let Some(old) = rule.rate_limit().and_then(|limit| limit.name.clone()) else {
            continue;
        };
        let clean = |c: char| if c.is_control() { ' ' } else { c };
        let base: String = old.chars().take(MAX_NAME).map(clean).collect();
        let numbered = (2..).map(|number| format!("{base}-{number}"));
        let mut all = std::iter::once(base.clone()).chain(numbered);
        let name = all.find(|name| !taken.contains(name)).unwrap_or_default();
        if name != old {
            let why = match base == old {
                true => "another rule has the name",
                false => "a name has at most 200 characters, and no control characters",
            };
            let why = format!("the rule is `{name}` here: {why}");
            notes.add(Grade::Differs, &rule.place, &format!("name {old}"), why);
        }
        taken.insert(name.clone());
        let domain = rule.domain.name.clone();
        names.entry((domain, old)).or_default().push(name.clone());
        rule.name = Some(name);
    }
    names
}

impl ImportedRule<'_> {
    fn write(&self, names: &RuleNames, notes: &Notes) -> DescriptorDraft {
        let mut toml = TomlEntries::default();
        if let Some(name) = &self.name {
            toml.add("name", quote(name));
        }
        toml.add("domain", quote(&self.domain.name));
        let entries: Vec<String> = self.entries.iter().map(entry_text).collect();
        toml.add("entries", format!("[{}]", entries.join(", ")));
        match self.rate_limit() {
            Some(limit) => self.write_limit(limit, names, notes, &mut toml),
            None => toml.add("limits", "[]"),
        }
        DescriptorDraft {
            source: SourceEntry {
                place: self.place.clone(),
                text: self.comment.clone(),
            },
            entries: toml,
        }
    }

    fn write_limit(
        &self,
        limit: &SourceRateLimit,
        names: &RuleNames,
        notes: &Notes,
        toml: &mut TomlEntries,
    ) {
        match &limit.budget {
            SourceBudget::Rate(rate) => {
                toml.add("limits", quote_list(std::slice::from_ref(rate)));
                if let Some(parts) = self.key_parts(notes) {
                    toml.add("key", quote_one_or_list(&parts));
                }
                if limit.is_shadow {
                    toml.add("shadow", "true");
                }
            }
            SourceBudget::Block if limit.is_shadow => {
                let why = "0 requests in shadow mode deny none. The rule is unlimited here, and \
                           counts nothing";
                self.note(Grade::Differs, "shadow_mode", why, notes);
                toml.add("limits", "[]");
            }
            SourceBudget::Block => toml.add("block", "true"),
            SourceBudget::Unlimited => toml.add("limits", "[]"),
        }
        let replaced = self.replaced(limit, names, notes);
        if !replaced.is_empty() {
            toml.add("replaces", quote_list(&replaced));
        }
        if limit.is_quota {
            toml.add("quota", "true");
        }
        if let Some(metadata) = &limit.metadata {
            toml.add("metadata", metadata);
        }
    }

    fn note(&self, grade: Grade, what: &str, why: impl Into<String>, notes: &Notes) {
        let what = format!("{what} of {}", holes::describe(&self.entries));
        notes.add(grade, &self.place, &what, why);
    }

    fn replaced(&self, limit: &SourceRateLimit, names: &RuleNames, notes: &Notes) -> Vec<String> {
        let mut found = Vec::new();
        for old in &limit.replaces {
            let known = names.get(&(self.domain.name.clone(), old.clone()));
            if known.is_none() {
                let what = format!("replaces {old}");
                let why = "no rule of this domain has the name, so it replaced nothing";
                self.note(Grade::Needless, &what, why, notes);
            }
            for name in known.into_iter().flatten() {
                if !found.contains(name) {
                    found.push(name.clone());
                }
            }
        }
        found
    }

    /// The key of the rule's rate, if it is not all entries that are not exact.
    fn key_parts(&self, notes: &Notes) -> Option<Vec<String>> {
        let mut parts = Vec::new();
        let mut is_default = true;
        for (index, step) in self.path.iter().enumerate() {
            if matches!(step.values, EntryValues::Exact(_)) {
                continue;
            }
            // A key finds an entry by its name, and takes the first.
            let is_second = self.path[..index].iter().any(|one| one.key == step.key);
            is_default &= !step.is_shared && !is_second;
            match (step.is_shared, is_second) {
                (true, _) => {}
                (false, false) => parts.push(format!("entry:{}", step.key)),
                (false, true) => {
                    let what = format!("the second `{}`", step.key);
                    let why = "a key takes the first entry of a name, so all values of this one \
                               share a count";
                    self.note(Grade::Lost, &what, why, notes);
                }
            }
        }
        if is_default {
            return None;
        }
        let is_name = |part: &String| !part.contains(char::is_whitespace);
        if parts.len() > MAX_KEY_PARTS || !parts.iter().all(is_name) {
            let why = "a key has at most 8 parts, and no names with spaces, so each value has a \
                       count of its own";
            self.note(Grade::Lost, "share_threshold", why, notes);
            return None;
        }
        if parts.is_empty() {
            parts.push("global".to_owned());
        }
        Some(parts)
    }
}

/// Writes an entry of a rule as TOML.
fn entry_text(entry: &RuleEntry) -> String {
    let key = &entry.key;
    match &entry.values {
        EntryValues::Exact(value) if key.contains('=') => {
            let (key, value) = (quote(key), quote(value));
            inline_table(&[format!("key = {key}"), format!("value = {value}")])
        }
        EntryValues::Any if key.contains('=') => inline_table(&[format!("key = {}", quote(key))]),
        EntryValues::Exact(value) | EntryValues::Pattern(value) => quote(&format!("{key}={value}")),
        EntryValues::Any => quote(key),
    }
}
