//! A file of another program as a tree with line numbers, read from YAML or TOML.
//!
//! An alias of YAML is copied where it is used, so the number of values is bounded.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use granit_parser::{Event, Parser, ScalarStyle, Span, StrInput};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::draft::{Grade, Notes};
use crate::files::{ImportError, SourceEntry, SourceLine};
use crate::patterns;

/// Values in a YAML file with the copies of its aliases, at most.
const MAX_ITEMS: usize = 500_000;

/// A value and its line, from 1.
#[derive(Clone, Debug, Default)]
pub(super) struct TreeItem {
    pub(super) line: usize,
    pub(super) node: TreeNode,
    /// Whether a text of YAML has no quotes, so that it may be a number or a boolean.
    pub(super) is_plain: bool,
    source: SourceFile,
}

/// The file of a value.
#[derive(Clone, Debug, Default)]
pub(super) struct SourceFile {
    pub(super) name: Rc<str>,
    pub(super) notes: Notes,
}

impl SourceFile {
    pub(super) fn named(path: &Path) -> SourceFile {
        SourceFile {
            name: path.display().to_string().into(),
            notes: Notes::default(),
        }
    }

    /// Notes that the file has no routes. `input` tells what it must be.
    pub(super) fn note_missing(&self, what: &str, input: &str) {
        let why = format!(
            "there is nothing to serve, so the result has a route to change. The input must {input}"
        );
        let file = Rc::clone(&self.name);
        self.notes.lost(&SourceLine { file, line: 1 }, what, why);
    }

    fn item(&self, line: usize, node: TreeNode) -> TreeItem {
        TreeItem {
            line,
            node,
            is_plain: false,
            source: self.clone(),
        }
    }

    fn fault<T>(&self, line: usize, what: &str) -> Result<T, ImportError> {
        Err(self.item(line, TreeNode::Null).place().fault(what))
    }
}

#[derive(Clone, Debug, Default)]
pub(super) enum TreeNode {
    #[default]
    Null,
    Text(String),
    List(Vec<TreeItem>),
    Table(Vec<(String, TreeItem)>),
}

impl TreeItem {
    /// Makes a value of the same line.
    pub(super) fn beside(&self, node: TreeNode) -> TreeItem {
        self.source.item(self.line, node)
    }

    pub(super) fn text_beside(&self, text: &str) -> TreeItem {
        self.beside(TreeNode::Text(text.to_owned()))
    }

    /// Returns the value of a key. Like Traefik, it ignores the case of letters.
    pub(super) fn get(&self, key: &str) -> Option<&TreeItem> {
        let mut entries = self.entries().iter();
        entries
            .find(|(known, _)| known.eq_ignore_ascii_case(key))
            .map(|(_, item)| item)
    }

    /// Follows several keys: `loadBalancer.servers`.
    pub(super) fn at(&self, path: &str) -> Option<&TreeItem> {
        path.split('.').try_fold(self, |item, key| item.get(key))
    }

    pub(super) fn entries(&self) -> &[(String, TreeItem)] {
        match &self.node {
            TreeNode::Table(entries) => entries,
            _ => &[],
        }
    }

    pub(super) fn entries_at(&self, path: &str) -> &[(String, TreeItem)] {
        self.at(path).map(TreeItem::entries).unwrap_or_default()
    }

    pub(super) fn list(&self) -> &[TreeItem] {
        match &self.node {
            TreeNode::List(items) => items,
            _ => &[],
        }
    }

    pub(super) fn list_at(&self, path: &str) -> &[TreeItem] {
        self.at(path).map(TreeItem::list).unwrap_or_default()
    }

    pub(super) fn text(&self) -> Option<&str> {
        match &self.node {
            TreeNode::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn text_at(&self, path: &str) -> Option<&str> {
        self.at(path).and_then(TreeItem::text)
    }

    pub(super) fn texts_at(&self, path: &str) -> Vec<String> {
        let texts = self.list_at(path).iter().filter_map(TreeItem::text);
        texts.map(str::to_owned).collect()
    }

    fn size(&self) -> usize {
        let inner = self.list().iter();
        inner
            .chain(self.entries().iter().map(|(_, item)| item))
            .map(|one| 1 + one.size())
            .sum()
    }

    pub(super) fn number_at(&self, path: &str) -> Option<u64> {
        self.text_at(path)?.parse().ok()
    }

    pub(super) fn is_true(&self, path: &str) -> bool {
        self.text_at(path) == Some("true")
    }
}

impl TreeItem {
    pub(super) fn place(&self) -> SourceLine {
        SourceLine {
            file: self.source.name.clone(),
            line: self.line,
        }
    }

    pub(super) fn entry(&self, text: String) -> SourceEntry {
        let place = self.place();
        SourceEntry { place, text }
    }

    /// The hosts of a route; `None` for every host. A host that no route can have is left out.
    pub(super) fn hosts(&self, what: &str, hosts: &[String]) -> Vec<Option<String>> {
        if hosts.is_empty() {
            return vec![None];
        }
        let mut found = Vec::new();
        for host in hosts {
            let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            let with_port = host.rsplit_once(':');
            let with_port = with_port.filter(|(name, port)| !name.contains(':') && is_number(port));
            let name = with_port.map_or(host.as_str(), |(name, port)| {
                let why = format!("the route takes every port, not only {port}");
                self.differs(&format!("{what}: {host}"), why);
                name
            });
            match patterns::gateway_hosts(name) {
                Ok(names) => found.extend(names),
                Err(_) => {
                    let why = "no route can have this host; it is left out";
                    self.lost(&format!("{what}: {host}"), why);
                }
            }
        }
        found
    }

    pub(super) fn lost(&self, what: &str, why: impl Into<String>) {
        self.source.notes.lost(&self.place(), what, why);
    }

    pub(super) fn differs(&self, what: &str, why: impl Into<String>) {
        self.source.notes.differs(&self.place(), what, why);
    }

    pub(super) fn needless(&self, what: &str, why: impl Into<String>) {
        self.source
            .notes
            .add(Grade::Needless, &self.place(), what, why);
    }

    /// Notes the keys of a table that are not in `known`, a list of words. `path` is the path of
    /// the table, with its last dot.
    pub(super) fn note_unknown(&self, path: &str, known: &str) {
        for (key, item) in self.entries() {
            let mut known = known.split_whitespace();
            if !known.any(|known| known.eq_ignore_ascii_case(key)) {
                item.lost(&format!("{path}{key}"), "tidegate has nothing like it");
            }
        }
    }
}

pub(super) fn read_toml(text: &str, source: &SourceFile) -> Result<TreeItem, ImportError> {
    let line_of = |byte: usize| 1 + text.bytes().take(byte).filter(|one| *one == b'\n').count();
    let item = |byte: usize, node| source.item(line_of(byte), node);
    match DeTable::parse(text) {
        Ok(table) => Ok(item(0, toml_table(table.get_ref(), &item))),
        Err(why) => {
            let start = why.span().map_or(0, |span| span.start);
            source.fault(line_of(start), why.message())
        }
    }
}

fn toml_table(table: &DeTable<'_>, item: &dyn Fn(usize, TreeNode) -> TreeItem) -> TreeNode {
    let entries = table.iter();
    let entries = entries.map(|(key, value)| (key.get_ref().to_string(), toml_item(value, item)));
    TreeNode::Table(entries.collect())
}

fn toml_item(value: &Spanned<DeValue<'_>>, item: &dyn Fn(usize, TreeNode) -> TreeItem) -> TreeItem {
    let node = match value.get_ref() {
        DeValue::Table(table) => toml_table(table, item),
        DeValue::Array(items) => {
            TreeNode::List(items.iter().map(|one| toml_item(one, item)).collect())
        }
        DeValue::String(text) => TreeNode::Text(text.to_string()),
        DeValue::Integer(number) => TreeNode::Text(number.to_string()),
        DeValue::Float(number) => TreeNode::Text(number.to_string()),
        DeValue::Boolean(word) => TreeNode::Text(word.to_string()),
        DeValue::Datetime(time) => TreeNode::Text(time.to_string()),
    };
    item(value.span().start, node)
}

/// Reads the first document of a YAML text.
pub(super) fn read_yaml(text: &str, source: &SourceFile) -> Result<TreeItem, ImportError> {
    let documents = read_documents(text, source, 1)?;
    Ok(documents.into_iter().next().unwrap_or_default())
}

/// Reads the documents of a YAML text, at most `most`.
pub(super) fn read_documents(
    text: &str,
    source: &SourceFile,
    most: usize,
) -> Result<Vec<TreeItem>, ImportError> {
    let mut reader = YamlReader {
        parser: Parser::new_from_str(text),
        source,
        anchors: BTreeMap::new(),
        items_left: MAX_ITEMS,
    };
    let mut documents = Vec::new();
    while documents.len() < most {
        let (event, span) = reader.next()?;
        match event {
            Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
            Event::StreamEnd => break,
            event => documents.push(reader.item(event, span)?),
        }
    }
    Ok(documents)
}

struct YamlReader<'t> {
    parser: Parser<'t, StrInput<'t>>,
    source: &'t SourceFile,
    anchors: BTreeMap<usize, TreeItem>,
    items_left: usize,
}

impl<'t> YamlReader<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Span), ImportError> {
        match self.parser.next() {
            Some(Ok(next)) => Ok(next),
            Some(Err(why)) => self.source.fault(why.marker().line(), &why.info()),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn count_items(&mut self, line: usize, count: usize) -> Result<(), ImportError> {
        let Some(left) = self.items_left.checked_sub(count) else {
            return self.source.fault(line, "too many values");
        };
        self.items_left = left;
        Ok(())
    }

    /// Reads the value that begins with this event. The parser bounds the depth of values.
    fn item(&mut self, event: Event<'t>, span: Span) -> Result<TreeItem, ImportError> {
        let line = span.start.line();
        self.count_items(line, 1)?;
        let is_plain = matches!(&event, Event::Scalar(_, ScalarStyle::Plain, ..));
        let (node, anchor) = match event {
            Event::Scalar(text, style, anchor, _) => match &*text {
                "" | "~" | "null" if style == ScalarStyle::Plain => (TreeNode::Null, anchor),
                text => (TreeNode::Text(text.to_owned()), anchor),
            },
            Event::SequenceStart(_, anchor, _) => (self.list()?, anchor),
            Event::MappingStart(_, anchor, _) => (self.table()?, anchor),
            Event::Alias(anchor) => {
                let size = self.anchors.get(&anchor).map_or(0, TreeItem::size);
                self.count_items(line, size)?;
                return Ok(self.anchors.get(&anchor).cloned().unwrap_or_default());
            }
            _ => return self.source.fault(line, "a value is missing"),
        };
        let mut item = self.source.item(line, node);
        item.is_plain = is_plain;
        if anchor > 0 {
            self.anchors.insert(anchor, item.clone());
        }
        Ok(item)
    }

    fn list(&mut self) -> Result<TreeNode, ImportError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd | Event::StreamEnd, _) => return Ok(TreeNode::List(items)),
                (event, span) => items.push(self.item(event, span)?),
            }
        }
    }

    fn table(&mut self) -> Result<TreeNode, ImportError> {
        let mut entries: Vec<(String, TreeItem)> = Vec::new();
        let mut merged = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::MappingEnd | Event::StreamEnd) {
                break;
            }
            let line = span.start.line();
            let key = self.item(event, span)?;
            let (event, span) = self.next()?;
            let mut value = self.item(event, span)?;
            // The line of a table or list is the line of its key.
            if !matches!(value.node, TreeNode::Text(_)) {
                value.line = line;
            }
            let Some(text) = key.text() else {
                return self.source.fault(line, "a key is no text");
            };
            match (text, &value.node) {
                ("<<", TreeNode::Table(_)) if key.is_plain => merged.push(value),
                ("<<", TreeNode::List(tables)) if key.is_plain => merged.extend(tables.clone()),
                _ if has_key(&entries, text) => {
                    let what = format!("`{text}` stands there twice");
                    return self.source.fault(line, &what);
                }
                _ => entries.push((text.to_owned(), value)),
            }
        }
        // A merged key does not replace one of the table, or of an earlier merged table.
        for (key, value) in merged.iter().flat_map(TreeItem::entries) {
            if !has_key(&entries, key) {
                entries.push((key.clone(), value.clone()));
            }
        }
        Ok(TreeNode::Table(entries))
    }
}

fn has_key(entries: &[(String, TreeItem)], key: &str) -> bool {
    entries.iter().any(|(known, _)| known == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<TreeItem, String> {
        read_yaml(text, &SourceFile::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_tree_knows_its_lines() {
        let root = read("# c\na:\n  b: [1, \"2\"]\n  c: &x {d: true}\ne: *x\nf: ~\n").unwrap();
        assert_eq!(root.texts_at("a.b"), ["1", "2"]);
        assert_eq!(root.at("a.b").map(|item| item.line), Some(3));
        assert!(root.is_true("e.d") && root.is_true("A.C.d"));
        assert!(root.text_at("f").is_none());
        assert_eq!(
            read("a: 1\na: 2\n").unwrap_err(),
            ":2: `a` stands there twice"
        );
        assert!(read("a: [1\n").is_err());
        assert!(read("").unwrap().entries().is_empty());
        let root = read("a: 1\nb: \"1\"\nc: |\n  1\n").unwrap();
        let plain = root.entries().iter().map(|(_, item)| item.is_plain);
        assert_eq!(plain.collect::<Vec<_>>(), [true, false, false]);
    }

    #[test]
    fn a_merged_key_replaces_none() {
        let bases = "x: &x {a: x, b: x, c: x}\ny: &y {b: y, d: y}\n";
        for merge in ["<<: [*y, *x]\n  a: own", "a: own\n  <<: [*y, *x]"] {
            let root = read(&format!("{bases}z:\n  {merge}\n")).unwrap();
            let texts = ["z.a", "z.b", "z.c", "z.d"].map(|path| root.text_at(path).unwrap());
            assert_eq!(texts, ["own", "y", "x", "y"], "{merge}");
        }
    }

    #[test]
    fn aliases_of_aliases_are_bounded() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let before = level - 1;
            let ten = vec![format!("*a{before}"); 10].join(", ");
            text.push_str(&format!("a{level}: &a{level} [{ten}]\n"));
        }
        assert!(read(&text).unwrap_err().ends_with("too many values"));
        let deep = "[".repeat(100_000);
        assert!(read(&deep).is_err());
    }
}
