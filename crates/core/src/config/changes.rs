//! The changes of a reload, as log lines: `limit search: 100/min -> 50/min`.
//!
//! Pure: two configurations in, lines out. The lines use the words of the file itself, so that a
//! new setting needs no code here. Of a file with secrets the lines say only that it changed.
//! Passwords in URLs are hidden, and so are texts that are secrets by their place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::reference::document_as_json;
use super::routes::unique_name;
use super::secrets::{HIDDEN, for_each_secret, may_have_parameters, secret_parameters};
use super::{Config, StoreKind, StoreSettings};
use crate::limit::{Limit, Window};

/// Lines about one reload, at most. The last line counts the rest.
const MAX_LINES: usize = 100;
/// Characters of a value in a line, at most.
const MAX_VALUE_CHARS: usize = 120;
/// Begins a text that is compared and never shown.
const SECRET: char = '\u{1}';

/// Lists whose order has a meaning: they are shown whole.
const ORDERED: [&str; 3] = ["key", "rate", "from"];

pub fn changes(old: &Config, new: &Config) -> Vec<String> {
    let [before, after] = [old, new].map(|config| {
        let mut document = document_as_json(&config.sources.text);
        for_each_secret(&mut document, &mut |text| text.insert(0, SECRET));
        document
    });
    let mut lines = between(&before, &after);
    report_lost_counts(old, new, &mut lines);
    report_other_keys(old, new, &mut lines);
    report_changed_files(old, new, &mut lines);
    if lines.len() > MAX_LINES {
        let more = lines.len() - MAX_LINES;
        lines.truncate(MAX_LINES);
        lines.push(format!("and {more} more"));
    }
    lines
}

pub(super) fn between(before: &Value, after: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    let both = ValueChange::new(Some(before), Some(after));
    for (name, change) in both.members() {
        let is_section = is_table(change.before) || is_table(change.after);
        match name {
            // Notes.
            _ if name.starts_with("x-") => {}
            "limit" => compare_sections("limit", change, &mut lines),
            "upstream" if is_section => compare_sections("upstream", change, &mut lines),
            "route" => compare_routes(change, &mut lines),
            "bypass" | "descriptor" => compare_lists(name, change, &mut lines),
            _ if is_section => compare_settings(name, change, &mut lines),
            _ => compare_setting("", name, change, &mut lines),
        }
    }
    lines
}

#[derive(Clone, Copy)]
struct ValueChange<'v> {
    before: Option<&'v Value>,
    after: Option<&'v Value>,
}

impl<'v> ValueChange<'v> {
    fn new(before: Option<&'v Value>, after: Option<&'v Value>) -> ValueChange<'v> {
        ValueChange { before, after }
    }

    /// The values of both tables by their keys, in order.
    fn members(self) -> BTreeMap<&'v str, ValueChange<'v>> {
        let tables = [self.before, self.after].map(|value| value.and_then(Value::as_object));
        let keys = tables.into_iter().flatten().flat_map(Map::keys);
        let member = |key: &'v String| {
            let [before, after] = tables.map(|table| table.and_then(|table| table.get(key)));
            (key.as_str(), ValueChange::new(before, after))
        };
        keys.map(member).collect()
    }
}

/// The settings that need a restart, as far as they change, a line for each.
pub fn restarts(old: &Config, new: &Config) -> Vec<String> {
    let mut lines = Vec::new();
    let (was, is) = (old.server.workers, new.server.workers);
    if was != is {
        lines.push(format!(
            "Changing `workers` to {is} needs a restart; still running {was}"
        ));
    }
    let others = [
        (
            old.server.control != new.server.control,
            "Changing `control` needs a restart; the socket stays where it is",
        ),
        (
            old.server.pid_file != new.server.pid_file,
            "Changing `pid_file` needs a restart",
        ),
        (
            old.admin.is_none() && new.admin.is_some(),
            "Adding the first `admin` needs a restart",
        ),
        (
            uses_other_file(&old.store, &new.store),
            "Changing `file` of `[store]` needs a restart",
        ),
        (
            old.store.file.is_some() && old.store.hash_key != new.store.hash_key,
            "Changing `hash_key_file` needs a restart while `[store]` has a `file`",
        ),
        (
            old.log.decisions != new.log.decisions,
            "Changing `decisions` of `[log]` needs a restart; still writing to the old file",
        ),
    ];
    let changed = others.iter().filter(|(is_changed, _)| *is_changed);
    lines.extend(changed.map(|(_, line)| (*line).to_owned()));
    lines
}

/// Whether the file of counts is another, or is not in use because the counts were in Redis.
fn uses_other_file(old: &StoreSettings, new: &StoreSettings) -> bool {
    let file = |store: &StoreSettings| match &store.kind {
        StoreKind::Memory => store.file.clone(),
        StoreKind::Redis(_) => None,
    };
    file(new) != file(old)
}

impl Config {
    /// Keeps the old value of each setting that needs a restart.
    pub fn keep_until_restart(&mut self, running: &Config) {
        self.server.workers = running.server.workers;
        self.server.control.clone_from(&running.server.control);
        self.server.pid_file.clone_from(&running.server.pid_file);
        self.log.decisions.clone_from(&running.log.decisions);
        self.store.file.clone_from(&running.store.file);
        if running.store.file.is_some() {
            self.store.hash_key.clone_from(&running.store.hash_key);
        }
        if running.admin.is_none() {
            self.admin = None;
        }
        let (sources, before) = (Arc::make_mut(&mut self.sources), &running.sources);
        let start = before.start.clone();
        sources.start = Some(start.unwrap_or_else(|| before.text.as_str().into()));
    }
}

fn is_table(value: Option<&Value>) -> bool {
    value.is_some_and(Value::is_object)
}

/// A value as a list: a single value is a list of one.
fn as_list(value: Option<&Value>) -> &[Value] {
    match value {
        Some(Value::Array(values)) => values,
        Some(one) => std::slice::from_ref(one),
        None => &[],
    }
}

fn compare_sections(what: &str, change: ValueChange<'_>, lines: &mut Vec<String>) {
    // `upstream` may be a URL in one of the files.
    for (value, word) in [(change.before, "removed"), (change.after, "added")] {
        if let Some(url @ Value::String(_)) = value {
            lines.push(format!("{what} {} {word}", short_text(url)));
        }
    }
    for (name, change) in change.members() {
        let title = format!("{what} {name}");
        match (change.before, change.after) {
            (Some(_), None) => lines.push(format!("{title} removed")),
            (None, Some(new)) => lines.push(format!("{title} added: {}", short_text(new))),
            _ => compare_settings(&title, change, lines),
        }
    }
}

fn compare_routes(change: ValueChange<'_>, lines: &mut Vec<String>) {
    let [before, after] = [change.before, change.after].map(routes_by_name);
    let both = ValueChange::new(Some(&before), Some(&after));
    for (name, change) in both.members() {
        match (change.before, change.after) {
            (Some(_), None) => lines.push(format!("route removed: {name}")),
            (None, Some(new)) => lines.push(format!("route added: {name}: {}", short_text(new))),
            _ => compare_settings(&format!("route {name}"), change, lines),
        }
    }
}

/// Routes by their names, or by methods, host and path. Equal names are numbered.
fn routes_by_name(value: Option<&Value>) -> Value {
    let mut named = Map::new();
    for route in as_list(value).iter().filter(|route| route.is_object()) {
        let word = |key: &str| route.get(key).map(short_text);
        let derived = || {
            let methods = word("methods").map(|methods| format!("{methods} "));
            let host = word("host").unwrap_or_default();
            let path = word("path").unwrap_or_else(|| "/*".to_owned());
            format!("{}{host}{path}", methods.unwrap_or_default())
        };
        let name = unique_name(word("name").unwrap_or_else(derived), |name| {
            named.contains_key(name)
        });
        named.insert(name, route.clone());
    }
    Value::Object(named)
}

fn compare_settings(title: &str, change: ValueChange<'_>, lines: &mut Vec<String>) {
    for (key, change) in change.members() {
        compare_setting(title, key, change, lines);
    }
}

/// Compares one setting: `KEY OLD -> NEW`. The line about the rate of a limit leaves out the key.
fn compare_setting(title: &str, key: &str, change: ValueChange<'_>, lines: &mut Vec<String>) {
    let ValueChange { before, after } = change;
    if before == after {
        return;
    }
    let may_be_table = |value: Option<&Value>| value.is_none_or(Value::is_object);
    if may_be_table(before) && may_be_table(after) {
        let title = match title {
            "" => key.to_owned(),
            title => format!("{title}: {key}"),
        };
        return compare_settings(&title, change, lines);
    }
    let is_list = |value: Option<&Value>| value.is_some_and(Value::is_array);
    let is_single = |value: Option<&Value>| as_list(value).len() == 1;
    let has_list = is_list(before) || is_list(after);
    if has_list && !ORDERED.contains(&key) && !(is_single(before) && is_single(after)) {
        let what = match title {
            "" => key.to_owned(),
            title => format!("{title}: {}", singular(key)),
        };
        return compare_lists(&what, change, lines);
    }
    let lead = match (title, key) {
        ("", key) => format!("{key}:"),
        (title, "rate") if title.starts_with("limit ") => format!("{title}:"),
        (title, key) => format!("{title}: {key}"),
    };
    lines.push(match (before.map(short_text), after.map(short_text)) {
        // The difference is hidden.
        (Some(before), Some(after)) if before == after => format!("{lead} changed"),
        (Some(before), Some(after)) => format!("{lead} {before} -> {after}"),
        (None, Some(after)) => format!("{lead} {after}, which was not set"),
        (Some(before), None) => format!("{lead} {before} is no longer set"),
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

fn compare_lists(what: &str, change: ValueChange<'_>, lines: &mut Vec<String>) {
    let (before, after) = (as_list(change.before), as_list(change.after));
    if before == after {
        return;
    }
    let removed: Vec<&Value> = before.iter().filter(|one| !after.contains(one)).collect();
    let added: Vec<&Value> = after.iter().filter(|one| !before.contains(one)).collect();
    if removed.is_empty() && added.is_empty() {
        lines.push(format!("{what}: another order"));
    }
    for one in &removed {
        let one_text = short_text(one);
        match added.iter().find(|other| is_same_server(one, other)) {
            Some(other) => lines.push(format!("{what} {one_text} -> {}", short_text(other))),
            None => lines.push(format!("{what} {one_text} removed")),
        }
    }
    let is_new = |one: &&&Value| !removed.iter().any(|other| is_same_server(one, other));
    for one in added.iter().filter(is_new) {
        lines.push(format!("{what} {} added", short_text(one)));
    }
}

/// Whether both are the same server, by its URL, with other settings.
fn is_same_server(one: &Value, other: &Value) -> bool {
    let url = |value: &Value| match value {
        Value::Object(table) => table.get("url").cloned(),
        url => Some(url.clone()),
    };
    url(one).is_some() && url(one) == url(other)
}

fn short_text(value: &Value) -> String {
    let whole = one_line(value);
    if whole.chars().count() <= MAX_VALUE_CHARS {
        return whole;
    }
    let start: String = whole.chars().take(MAX_VALUE_CHARS).collect();
    format!("{start}..")
}

fn one_line(value: &Value) -> String {
    let parts: Vec<String> = match value {
        Value::String(text) if text.starts_with(SECRET) => return HIDDEN.to_owned(),
        Value::String(text) => return without_url_secrets(text),
        Value::Array(values) => values.iter().map(one_line).collect(),
        Value::Object(table) => {
            let pair = |(key, value): (&String, &Value)| match value {
                Value::Object(_) => format!("{key} {{ {} }}", one_line(value)),
                value => format!("{key} {}", one_line(value)),
            };
            table.iter().map(pair).collect()
        }
        other => return other.to_string(),
    };
    parts.join(", ")
}

/// A text as a log may show it: on one line, with the password and the secret parameters of a URL
/// or a path hidden.
pub(super) fn without_url_secrets(text: &str) -> String {
    let scheme = text.find("://").map(|at| at + "://".len());
    let user = scheme.and_then(|begin| Some(begin..text.rfind('@').filter(|at| begin <= *at)?));
    let mut hidden = text[user.as_ref().map_or(0, |user| user.end)..].to_owned();
    if may_have_parameters(text) {
        for secret in secret_parameters(&hidden).into_iter().rev() {
            hidden.replace_range(secret, HIDDEN);
        }
    }
    if let Some(user) = user {
        hidden.insert_str(0, &format!("{}{HIDDEN}", &text[..user.start]));
    }
    let line = |c: char| if c.is_control() { ' ' } else { c };
    hidden.chars().map(line).collect()
}

/// Reports limits that lose their counts: their clients get a fresh budget.
fn report_lost_counts(old: &Config, new: &Config, lines: &mut Vec<String>) {
    let by_name: BTreeMap<&str, &Limit> =
        old.limits.iter().map(|one| (&*one.name, &**one)).collect();
    for limit in &new.limits {
        let Some(before) = by_name.get(&*limit.name) else {
            continue;
        };
        let known: BTreeSet<&str> = windows(before).map(|one| &*one.store_suffix).collect();
        let is_new = |one: &Window| !known.contains(&*one.store_suffix);
        let reason = if before.key.parts != limit.key.parts {
            "its key is another"
        } else if before.slot != limit.slot {
            "its `slot` is another"
        } else if windows(limit).any(is_new) {
            "a window of another length or kind"
        } else {
            continue;
        };
        let name = &limit.name;
        lines.push(format!("limit {name}: counts start at zero: {reason}"));
    }
}

/// Reports settings that give clients other keys, and another store: what is kept by the old keys
/// no longer applies.
fn report_other_keys(old: &Config, new: &Config, lines: &mut Vec<String>) {
    if old.store.hash_key != new.store.hash_key {
        let line =
            "store: the hash key is another: counts start at zero, and blocks and overrides end";
        lines.push(line.to_owned());
        return;
    }
    if !new.store.has_counts_of(&old.store) {
        lines.push("store: counts are now those of the new store".to_owned());
    }
    let prefixes = |config: &Config| {
        let client_ip = &config.client_ip;
        (client_ip.ipv4_prefix, client_ip.ipv6_prefix)
    };
    if prefixes(old) != prefixes(new) {
        let line = "client_ip: addresses are grouped otherwise: counts by address start at zero, \
                    and blocks and overrides of addresses end";
        lines.push(line.to_owned());
    }
}

fn windows(limit: &Limit) -> impl Iterator<Item = &Window> {
    let tiers = limit.tiers.iter().flat_map(|tier| &tier.windows);
    limit.windows.iter().chain(tiers).map(|window| &**window)
}

fn report_changed_files(old: &Config, new: &Config, lines: &mut Vec<String>) {
    let files = old.sources.files.iter();
    let before: BTreeMap<_, _> = files.map(|file| (&file.path, &file.digest)).collect();
    let mut reported = BTreeSet::new();
    for file in &new.sources.files {
        let old = before.get(&file.path);
        let is_changed = old.is_some_and(|old| **old != file.digest);
        if is_changed && reported.insert(&file.path) {
            lines.push(format!("file {}: content changed", file.path.display()));
        }
    }
}
