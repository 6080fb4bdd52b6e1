//! What a reload changes, in words: `limit search: 100/min -> 50/min`.
//!
//! Pure: two configurations in, lines out, in the words of the file itself, so that a setting that
//! is added tomorrow is told without a line of code here. Secrets are in files, of which only that
//! they changed is known; a password in a URL is hidden.

use std::collections::{BTreeMap, BTreeSet};

use super::written::{Table, Value, tree};
use super::{Config, StoreKind, StoreSettings};
use crate::limit::{Limit, Window};

/// Lines that are told of one reload; the rest is a number.
const MOST_LINES: usize = 100;
/// Characters of a value that are shown.
const MOST_SHOWN: usize = 120;

/// Lists whose order means something: they are shown whole.
const ORDERED: [&str; 3] = ["key", "rate", "from"];

/// What is different in `new`, a line for each thing. Nothing if the files say the same.
pub fn changes(old: &Config, new: &Config) -> Vec<String> {
    let (before, after) = (tree(&old.written.text), tree(&new.written.text));
    let mut lines = between(&before, &after);
    begun_anew(old, new, &mut lines);
    if moved(&old.store, &new.store) {
        lines.push("store: counts are those of another place now".to_owned());
    }
    files(old, new, &mut lines);
    if lines.len() > MOST_LINES {
        let more = lines.len() - MOST_LINES;
        lines.truncate(MOST_LINES);
        lines.push(format!("and {more} more"));
    }
    lines
}

/// What is different between what two files say.
pub(super) fn between(before: &Table, after: &Table) -> Vec<String> {
    let mut lines = Vec::new();
    for name in keys(before, after) {
        let change = SettingChange::of(name, before, after);
        let is_section = is_table(change.before) || is_table(change.after);
        match name {
            // Notes that people leave in their files.
            _ if name.starts_with("x-") => {}
            "limit" => sections("limit", change, &mut lines),
            "upstream" if is_section => sections("upstream", change, &mut lines),
            "route" => routes(change, &mut lines),
            "bypass" => members("bypass", &change.lists(), &mut lines),
            _ if is_section => settings(name, &change.tables(), &mut lines),
            _ => setting("", name, change, &mut lines),
        }
    }
    lines
}

/// One value in both files, as far as they have it.
#[derive(Clone, Copy)]
struct SettingChange<'v> {
    before: Option<&'v Value>,
    after: Option<&'v Value>,
}

/// The same with both values made of one kind.
struct BeforeAfter<T> {
    before: T,
    after: T,
}

impl<'v> SettingChange<'v> {
    fn of(key: &str, before: &'v Table, after: &'v Table) -> SettingChange<'v> {
        SettingChange {
            before: before.get(key),
            after: after.get(key),
        }
    }

    fn tables(self) -> BeforeAfter<Table> {
        BeforeAfter {
            before: inner(self.before),
            after: inner(self.after),
        }
    }

    fn lists(self) -> BeforeAfter<Vec<Value>> {
        BeforeAfter {
            before: list(self.before),
            after: list(self.after),
        }
    }
}

/// What of it has no effect until the process is started again, a line for each.
pub fn restarts(old: &Config, new: &Config) -> Vec<String> {
    let mut lines = Vec::new();
    let (was, is) = (old.server.workers, new.server.workers);
    if was != is {
        lines.push(format!(
            "Changing `workers` to {is} needs a restart; still running {was}"
        ));
    }
    if old.server.control != new.server.control {
        lines.push("Changing `control` needs a restart; the socket stays where it is".to_owned());
    }
    if old.server.pid_file != new.server.pid_file {
        lines.push("Changing `pid_file` needs a restart".to_owned());
    }
    if old.admin.is_none() && new.admin.is_some() {
        lines.push("Adding the first `admin` needs a restart".to_owned());
    }
    if old.log.decisions != new.log.decisions {
        lines.push(
            "Changing `decisions` of `[log]` needs a restart; still writing to the old file"
                .to_owned(),
        );
    }
    lines
}

impl Config {
    /// Keeps the old value of each setting that needs a restart.
    pub fn keep_until_restart(&mut self, running: &Config) {
        self.server.workers = running.server.workers;
        self.server.control.clone_from(&running.server.control);
        self.server.pid_file.clone_from(&running.server.pid_file);
        self.log.decisions.clone_from(&running.log.decisions);
        if running.admin.is_none() {
            self.admin = None;
        }
    }
}

/// Every key of both, in order.
fn keys<'t>(before: &'t Table, after: &'t Table) -> BTreeSet<&'t str> {
    before
        .keys()
        .chain(after.keys())
        .map(String::as_str)
        .collect()
}

fn is_table(value: Option<&Value>) -> bool {
    matches!(value, Some(Value::Table(_)))
}

fn inner(value: Option<&Value>) -> Table {
    match value {
        Some(Value::Table(table)) => table.clone(),
        _ => Table::new(),
    }
}

/// One value is a list of one.
fn list(value: Option<&Value>) -> Vec<Value> {
    match value {
        Some(Value::List(values)) => values.clone(),
        Some(one) => vec![one.clone()],
        None => Vec::new(),
    }
}

/// `[limit.NAME]` and the like: by their names.
fn sections(what: &str, change: SettingChange<'_>, lines: &mut Vec<String>) {
    // `upstream` may have been a URL before, or become one.
    for (value, word) in [(change.before, "removed"), (change.after, "added")] {
        if let Some(one @ Value::Word(_)) = value {
            lines.push(format!("{what} {} {word}", brief(one)));
        }
    }
    let BeforeAfter { before, after } = change.tables();
    for name in keys(&before, &after) {
        let called = format!("{what} {name}");
        let change = SettingChange::of(name, &before, &after);
        match (change.before, change.after) {
            (Some(_), None) => lines.push(format!("{called} removed")),
            (None, Some(new)) => lines.push(format!("{called} added: {}", brief(new))),
            _ => settings(&called, &change.tables(), lines),
        }
    }
}

/// `[[route]]`: by their names, or by what they match.
fn routes(change: SettingChange<'_>, lines: &mut Vec<String>) {
    let (mut before, mut after) = (by_name(change.before), by_name(change.after));
    let names: BTreeSet<String> = before.keys().chain(after.keys()).cloned().collect();
    for name in names {
        match (before.remove(&name), after.remove(&name)) {
            (Some(_), None) => lines.push(format!("route removed: {name}")),
            (None, Some(new)) => {
                let new = brief(&Value::Table(new));
                lines.push(format!("route added: {name}: {new}"));
            }
            (Some(before), Some(after)) => {
                settings(
                    &format!("route {name}"),
                    &BeforeAfter { before, after },
                    lines,
                );
            }
            (None, None) => {}
        }
    }
}

/// Routes by what they are called; equal ones are numbered.
fn by_name(value: Option<&Value>) -> BTreeMap<String, Table> {
    let mut named = BTreeMap::new();
    for route in list(value) {
        let Value::Table(route) = route else { continue };
        let word = |key: &str| route.get(key).map(brief);
        let derived = || {
            let methods = word("methods").map(|methods| format!("{methods} "));
            let host = word("host").unwrap_or_default();
            let path = word("path").unwrap_or_else(|| "/*".to_owned());
            format!("{}{host}{path}", methods.unwrap_or_default())
        };
        let name = word("name").unwrap_or_else(derived);
        let taken = |number: usize| named.contains_key(&numbered(&name, number));
        let number = (1..).find(|number| !taken(*number)).unwrap_or_default();
        named.insert(numbered(&name, number), route);
    }
    named
}

fn numbered(name: &str, number: usize) -> String {
    match number {
        1 => name.to_owned(),
        number => format!("{name} #{number}"),
    }
}

/// The settings of one section.
fn settings(
    called: &str,
    BeforeAfter { before, after }: &BeforeAfter<Table>,
    lines: &mut Vec<String>,
) {
    for key in keys(before, after) {
        setting(called, key, SettingChange::of(key, before, after), lines);
    }
}

/// One setting: `KEY OLD -> NEW`, where the rate of a limit goes without saying.
fn setting(called: &str, key: &str, change: SettingChange<'_>, lines: &mut Vec<String>) {
    let SettingChange { before, after } = change;
    if before == after {
        return;
    }
    if (is_table(before) || before.is_none()) && (is_table(after) || after.is_none()) {
        let called = match called {
            "" => key.to_owned(),
            called => format!("{called}: {key}"),
        };
        return settings(&called, &change.tables(), lines);
    }
    let ordered = ORDERED.contains(&key);
    let many = |value| matches!(value, Some(&Value::List(_)));
    if !ordered && (many(before) || many(after)) {
        let lists = change.lists();
        if lists.before.len() != 1 || lists.after.len() != 1 {
            let what = match called {
                "" => key.to_owned(),
                called => format!("{called}: {}", singular(key)),
            };
            return members(&what, &lists, lines);
        }
    }
    let lead = match (called, key) {
        ("", key) => format!("{key}:"),
        (called, "rate") if called.starts_with("limit ") => format!("{called}:"),
        (called, key) => format!("{called}: {key}"),
    };
    lines.push(match (before, after) {
        (Some(before), Some(after)) => match (brief(before), brief(after)) {
            // Only what is hidden is different.
            (before, after) if before == after => format!("{lead} changed"),
            (before, after) => format!("{lead} {before} -> {after}"),
        },
        (None, Some(after)) => format!("{lead} {}, which was not set", brief(after)),
        (Some(before), None) => format!("{lead} {} is no longer set", brief(before)),
        (None, None) => return,
    });
}

fn singular(key: &str) -> &str {
    match key {
        "servers" => "server",
        "limits" => "limit",
        "methods" => "method",
        key => key,
    }
}

/// What has gone from a list, and what has come.
fn members(
    what: &str,
    BeforeAfter { before, after }: &BeforeAfter<Vec<Value>>,
    lines: &mut Vec<String>,
) {
    if before == after {
        return;
    }
    let lacks = |these: &[Value], one: &Value| !these.contains(one);
    let gone: Vec<&Value> = before.iter().filter(|one| lacks(after, one)).collect();
    let come: Vec<&Value> = after.iter().filter(|one| lacks(before, one)).collect();
    if gone.is_empty() && come.is_empty() {
        lines.push(format!("{what}: another order"));
    }
    for one in &gone {
        match come.iter().find(|other| same_server(one, other)) {
            Some(other) => lines.push(format!("{what} {} -> {}", brief(one), brief(other))),
            None => lines.push(format!("{what} {} removed", brief(one))),
        }
    }
    let is_new = |one: &&&Value| !gone.iter().any(|other| same_server(one, other));
    for one in come.iter().filter(is_new) {
        lines.push(format!("{what} {} added", brief(one)));
    }
}

/// Whether both are the same server, told apart by its URL, with other settings.
fn same_server(one: &Value, other: &Value) -> bool {
    let url = |value: &Value| match value {
        Value::Table(table) => table.get("url").cloned(),
        word => Some(word.clone()),
    };
    url(one).is_some() && url(one) == url(other)
}

/// A value on one line and not too long.
fn brief(value: &Value) -> String {
    let whole = written(value);
    if whole.chars().count() <= MOST_SHOWN {
        return whole;
    }
    let start: String = whole.chars().take(MOST_SHOWN).collect();
    format!("{start}..")
}

fn written(value: &Value) -> String {
    let join = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Word(text) => shown(text),
        Value::List(values) => join(values.iter().map(written).collect()),
        Value::Table(table) => {
            let pair = |(key, value): (&String, &Value)| match value {
                Value::Table(_) => format!("{key} {{ {} }}", written(value)),
                value => format!("{key} {}", written(value)),
            };
            join(table.iter().map(pair).collect())
        }
    }
}

/// A text as it may stand in a log: on one line, the password of a URL hidden.
pub(super) fn shown(text: &str) -> String {
    let hidden = match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 <= at => {
            format!("{}***{}", &text[..scheme + 3], &text[at..])
        }
        _ => text.to_owned(),
    };
    let line = |c: char| if c.is_control() { ' ' } else { c };
    hidden.chars().map(line).collect()
}

/// Whether counts are kept somewhere else, or under other names.
fn moved(old: &StoreSettings, new: &StoreSettings) -> bool {
    let place = |store: &StoreSettings| match &store.kind {
        StoreKind::Memory => None,
        StoreKind::Redis(redis) => Some((redis.topology.clone(), redis.database)),
    };
    let names = |store: &StoreSettings| (store.prefix.clone(), store.hash_key);
    let in_process = place(old).is_none() && place(new).is_none();
    let renamed = if in_process {
        old.hash_key != new.hash_key
    } else {
        names(old) != names(new)
    };
    place(old) != place(new) || renamed
}

/// Limits whose counts are not those of before: told, since it is a second helping.
fn begun_anew(old: &Config, new: &Config, lines: &mut Vec<String>) {
    let by_name: BTreeMap<&str, &Limit> =
        old.limits.iter().map(|one| (&*one.name, &**one)).collect();
    for limit in &new.limits {
        let Some(before) = by_name.get(&*limit.name) else {
            continue;
        };
        let known: BTreeSet<&str> = windows(before).map(|one| &*one.store_suffix).collect();
        let is_new = |one: &Window| !known.contains(&*one.store_suffix);
        let why = if before.key != limit.key {
            "its key is another"
        } else if windows(limit).any(is_new) {
            "a window of another length or kind"
        } else {
            continue;
        };
        lines.push(format!(
            "limit {}: its counts begin anew: {why}",
            limit.name
        ));
    }
}

fn windows(limit: &Limit) -> impl Iterator<Item = &Window> {
    let tiers = limit.tiers.iter().flat_map(|tier| &tier.windows);
    limit.windows.iter().chain(tiers).map(|window| &**window)
}

/// Files that are named and have another content.
fn files(old: &Config, new: &Config, lines: &mut Vec<String>) {
    let before: BTreeMap<_, _> = old
        .written
        .files
        .iter()
        .map(|file| (&file.path, &file.digest))
        .collect();
    let mut told = BTreeSet::new();
    for file in &new.written.files {
        let changed = before
            .get(&file.path)
            .is_some_and(|old| **old != file.digest);
        if changed && told.insert(&file.path) {
            lines.push(format!("file {}: other content", file.path.display()));
        }
    }
}
