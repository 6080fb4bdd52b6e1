//! Reads the files of envoyproxy/ratelimit, and refuses what that service refuses.
//!
//! It must read each value as the service does, or refuse it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::values::{self, EntryValues};
use crate::draft::Notes;
use crate::files::{self, ImportError, SourceFault, SourceLine};
use crate::tree::{self, SourceFile, TreeItem, TreeNode};

/// Keys that the service knows, wherever they stand.
const KEYS: [&str; 16] = [
    "domain",
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "shadow_mode",
    "quota_mode",
    "name",
    "replaces",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
const ROOT_KEYS: &str = "domain descriptors";
const DESCRIPTOR_KEYS: &str = "key value rate_limit descriptors shadow_mode quota_mode \
                               detailed_metric value_to_metric share_threshold metadata";
const RATE_LIMIT_KEYS: &str = "requests_per_unit unit unlimited name replaces";
/// Units, and the windows that they are in a rate.
const UNITS: [(&str, &str); 7] = [
    ("second", "s"),
    ("minute", "min"),
    ("hour", "h"),
    ("day", "d"),
    ("week", "7d"),
    ("month", "30d"),
    ("year", "365d"),
];

/// One file.
#[derive(Debug)]
pub(super) struct SourceDomain {
    pub(super) name: String,
    pub(super) place: SourceLine,
    pub(super) descriptors: Vec<SourceDescriptor>,
}

/// An entry of a descriptor, and what may follow it.
#[derive(Debug)]
pub(super) struct SourceDescriptor {
    pub(super) place: SourceLine,
    pub(super) key: String,
    pub(super) values: EntryValues,
    /// Whether all values of a pattern share one count.
    pub(super) is_shared: bool,
    pub(super) rate_limit: Option<SourceRateLimit>,
    pub(super) descriptors: Vec<SourceDescriptor>,
}

#[derive(Debug)]
pub(super) struct SourceRateLimit {
    pub(super) name: Option<String>,
    pub(super) budget: SourceBudget,
    pub(super) replaces: Vec<String>,
    pub(super) is_shadow: bool,
    pub(super) is_quota: bool,
    /// A table of TOML.
    pub(super) metadata: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum SourceBudget {
    /// As `proxy.toml` writes it: `5/min`.
    Rate(String),
    Block,
    Unlimited,
}

/// Reads all files, and reports the faults of all.
pub(super) fn read(paths: &[PathBuf], notes: &Notes) -> Result<Vec<SourceDomain>, ImportError> {
    let mut reader = Reader {
        notes: notes.clone(),
        faults: Vec::new(),
    };
    let mut domains: Vec<SourceDomain> = Vec::new();
    for path in paths {
        let text = files::read_text(path)?;
        let source = SourceFile {
            name: path.display().to_string().into(),
            notes: notes.clone(),
        };
        let root = match tree::read_yaml(&text, &source) {
            Ok(root) => root,
            Err(ImportError::Syntax(faults)) => {
                reader.faults.extend(faults);
                continue;
            }
            Err(other) => return Err(other),
        };
        let before = reader.faults.len();
        let domain = reader.domain(&root, &source);
        reader.faults[before..].sort_by_key(|fault| fault.place.line);
        let Some(domain) = domain else { continue };
        if let Some(first) = domains.iter().find(|one| one.name == domain.name) {
            let (name, first) = (&domain.name, &first.place);
            let what = format!(
                "domain `{name}` is in {first} already; write both into one file, also if \
                 MERGE_DOMAIN_CONFIG is set"
            );
            reader.fault_at(domain.place.clone(), what);
        }
        domains.push(domain);
    }
    match reader.faults.is_empty() {
        true => Ok(domains),
        false => Err(ImportError::Syntax(reader.faults)),
    }
}

struct Reader {
    notes: Notes,
    faults: Vec<SourceFault>,
}

impl Reader {
    fn fault_at(&mut self, place: SourceLine, what: impl Into<String>) {
        let what = what.into();
        self.faults.push(SourceFault { place, what });
    }

    fn fault(&mut self, item: &TreeItem, what: impl Into<String>) {
        self.fault_at(item.place(), what);
    }

    fn domain(&mut self, root: &TreeItem, source: &SourceFile) -> Option<SourceDomain> {
        let first_line = SourceLine {
            file: source.name.clone(),
            line: root.line.max(1),
        };
        if !matches!(root.node, TreeNode::Table(_) | TreeNode::Null) {
            self.fault_at(
                first_line,
                "the file is no table with `domain` and `descriptors`",
            );
            return None;
        }
        self.check_keys(root);
        note_misplaced(root, ROOT_KEYS);
        let name = self.text(root, "domain");
        let descriptors = self.descriptors(root);
        let Some(name) = name else {
            self.fault_at(first_line, "`domain` is missing or empty");
            return None;
        };
        Some(SourceDomain {
            name,
            place: entry(root, "domain").map_or(first_line, TreeItem::place),
            descriptors,
        })
    }

    /// Refuses what the service refuses before it looks at the meaning: unknown keys at any place,
    /// lists of texts, and fractions.
    fn check_keys(&mut self, table: &TreeItem) {
        for (key, item) in table.entries() {
            if !KEYS.contains(&key.as_str()) {
                self.fault(item, format!("unknown key `{key}`"));
            } else if key != "metadata" {
                self.check_value(key, item);
            }
        }
    }

    fn check_value(&mut self, key: &str, item: &TreeItem) {
        match &item.node {
            TreeNode::Null => {}
            TreeNode::Text(text) if item.is_plain && values::is_wide_number(text) => {
                let what = format!(
                    "`{key}: {text}`: the service refuses such a number; write the text in quotes"
                );
                self.fault(item, what);
            }
            TreeNode::Text(_) => {}
            TreeNode::Table(_) => self.check_keys(item),
            TreeNode::List(items) => {
                for one in items {
                    match &one.node {
                        TreeNode::Table(_) => self.check_keys(one),
                        _ => self.fault(one, format!("`{key}` must be a list of tables")),
                    }
                }
            }
        }
    }

    fn descriptors(&mut self, parent: &TreeItem) -> Vec<SourceDescriptor> {
        let mut seen = BTreeMap::new();
        let mut found = Vec::new();
        for item in self.tables(parent, "descriptors") {
            found.extend(self.descriptor(item, &mut seen));
        }
        found
    }

    /// Reads a descriptor, or notes that tidegate has nothing like it. `seen` has the lines of the
    /// descriptors beside it.
    fn descriptor(
        &mut self,
        item: &TreeItem,
        seen: &mut BTreeMap<String, usize>,
    ) -> Option<SourceDescriptor> {
        note_misplaced(item, DESCRIPTOR_KEYS);
        for metric in ["detailed_metric", "value_to_metric"] {
            if self.boolean(item, metric) {
                let why = "no value of a client becomes a label of a metric";
                let place = entry(item, metric).unwrap_or(item).place();
                self.notes.lost(&place, metric, why);
            }
        }
        let key = self.text(item, "key");
        let value = self.text(item, "value");
        let is_shared = self.boolean(item, "share_threshold");
        let rate_limit = self.rate_limit(item);
        let descriptors = self.descriptors(item);
        let Some(key) = key else {
            self.fault(item, "a descriptor has no `key`");
            return None;
        };
        // The service knows a descriptor by this text.
        let joined = match &value {
            Some(value) => format!("{key}_{value}"),
            None => key.clone(),
        };
        if is_shared && !joined.contains('*') {
            self.fault(item, "`share_threshold` needs a `value` with `*`");
        }
        if let Some(line) = seen.insert(joined.clone(), item.line) {
            let what = format!("descriptor `{joined}` is in line {line} already");
            self.fault(item, what);
        }
        let values = EntryValues::parse(value);
        let why = match &values {
            _ if key.contains('*') => "a key here has no pattern; write a rule for each key",
            EntryValues::Pattern(_) if key.contains('=') => "a key with `=` has no pattern here",
            _ => {
                return Some(SourceDescriptor {
                    place: item.place(),
                    key,
                    values,
                    is_shared,
                    rate_limit,
                    descriptors,
                });
            }
        };
        self.notes.lost(
            &item.place(),
            &joined,
            format!("{why}. The rules below it are left out"),
        );
        None
    }

    fn rate_limit(&mut self, descriptor: &TreeItem) -> Option<SourceRateLimit> {
        let is_shadow = self.boolean(descriptor, "shadow_mode");
        let is_quota = self.boolean(descriptor, "quota_mode");
        let metadata = self.metadata(descriptor);
        let item = match entry(descriptor, "rate_limit") {
            None => {
                for key in ["shadow_mode", "quota_mode", "metadata"] {
                    if let Some(item) = entry(descriptor, key) {
                        let why = "there is no `rate_limit` beside it, so it does nothing";
                        item.needless(key, why);
                    }
                }
                return None;
            }
            Some(item) => item,
        };
        if !matches!(item.node, TreeNode::Table(_)) {
            self.fault(item, "`rate_limit` must be a table");
            return None;
        }
        note_misplaced(item, RATE_LIMIT_KEYS);
        let name = self.text(item, "name");
        let replaces = self.replaces(item, name.as_deref());
        let budget = self.budget(item)?;
        let is_limited = budget != SourceBudget::Unlimited;
        Some(SourceRateLimit {
            name,
            budget,
            replaces,
            is_shadow: is_shadow && is_limited,
            is_quota: is_quota && is_limited,
            metadata: metadata.filter(|_| is_limited),
        })
    }

    fn replaces(&mut self, rate_limit: &TreeItem, own: Option<&str>) -> Vec<String> {
        let mut found = Vec::new();
        for item in self.tables(rate_limit, "replaces") {
            note_misplaced(item, "name");
            match self.text(item, "name") {
                None => self.fault(item, "`replaces` has an entry without `name`"),
                Some(name) if own == Some(name.as_str()) => {
                    self.fault(item, format!("`{name}` replaces itself"));
                }
                Some(name) => found.push(name),
            }
        }
        found
    }

    fn budget(&mut self, rate_limit: &TreeItem) -> Option<SourceBudget> {
        let is_unlimited = self.boolean(rate_limit, "unlimited");
        let unit = self.text(rate_limit, "unit").unwrap_or_default();
        let count = self.count(rate_limit, "requests_per_unit");
        let place = entry(rate_limit, "unit").unwrap_or(rate_limit);
        let known = UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(&unit));
        match (known, is_unlimited) {
            (Some(_), true) => {
                self.fault(place, "`unlimited` with a `unit`");
                None
            }
            (None, true) => Some(SourceBudget::Unlimited),
            (None, false) => {
                let names = UNITS.map(|(name, _)| name).join(", ");
                let what = match unit.as_str() {
                    "" => format!("`unit` is missing: {names}"),
                    unit => format!("`{unit}` is no unit: {names}"),
                };
                self.fault(place, what);
                None
            }
            (Some(_), false) if count? == 0 => Some(SourceBudget::Block),
            (Some((_, window)), false) => Some(SourceBudget::Rate(format!("{}/{window}", count?))),
        }
    }

    /// The entries of a list of tables. `check_keys` has refused others.
    fn tables<'t>(&mut self, parent: &'t TreeItem, key: &str) -> Vec<&'t TreeItem> {
        let Some(item) = entry(parent, key) else {
            return Vec::new();
        };
        if !matches!(item.node, TreeNode::List(_)) {
            self.fault(item, format!("`{key}` must be a list"));
        }
        let tables = item.list().iter();
        let is_table = |one: &&TreeItem| matches!(one.node, TreeNode::Table(_));
        tables.filter(is_table).collect()
    }

    /// A text that is not empty. A number and a boolean are the text as it is written.
    fn text(&mut self, parent: &TreeItem, key: &str) -> Option<String> {
        let item = entry(parent, key)?;
        match item.text() {
            Some(text) => Some(text.to_owned()).filter(|text| !text.is_empty()),
            None => {
                self.fault(item, format!("`{key}` must be a text"));
                None
            }
        }
    }

    fn boolean(&mut self, parent: &TreeItem, key: &str) -> bool {
        let Some(item) = entry(parent, key) else {
            return false;
        };
        let word = item
            .text()
            .filter(|_| item.is_plain)
            .and_then(values::parse_boolean);
        if word.is_none() {
            self.fault(item, format!("`{key}` must be `true` or `false`"));
        }
        word.unwrap_or(false)
    }

    /// A count of 32 bits, 0 if there is none. `None` if it is wrong.
    fn count(&mut self, parent: &TreeItem, key: &str) -> Option<u32> {
        let Some(item) = entry(parent, key) else {
            return Some(0);
        };
        let number = item
            .text()
            .filter(|_| item.is_plain)
            .and_then(values::parse_integer);
        let count = number.and_then(|number| u32::try_from(number).ok());
        if count.is_none() {
            self.fault(
                item,
                format!("`{key}` must be a number from 0 to {}", u32::MAX),
            );
        }
        count
    }

    fn metadata(&mut self, descriptor: &TreeItem) -> Option<String> {
        let item = entry(descriptor, "metadata")?;
        match &item.node {
            TreeNode::Table(entries) if entries.is_empty() => None,
            TreeNode::Table(_) => values::as_toml(item),
            _ => {
                self.fault(item, "`metadata` must be a table");
                None
            }
        }
    }
}

/// The value of a key that is set, with the case of its letters.
fn entry<'t>(table: &'t TreeItem, key: &str) -> Option<&'t TreeItem> {
    let mut entries = table.entries().iter();
    let (_, item) = entries.find(|(known, _)| known == key)?;
    Some(item).filter(|item| !matches!(item.node, TreeNode::Null))
}

/// Notes known keys at a place where the service does not read them.
fn note_misplaced(table: &TreeItem, read: &str) {
    for (key, item) in table.entries() {
        let is_read = read.split_whitespace().any(|known| known == key);
        if !is_read && KEYS.contains(&key.as_str()) {
            item.needless(key, "the service does not read it at this place");
        }
    }
}
