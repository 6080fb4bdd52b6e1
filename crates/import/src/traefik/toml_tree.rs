//! TOML as a tree.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::tree::{Item, Node};

/// Reads a text; otherwise the line and what is wrong there.
pub(super) fn read(text: &str) -> Result<Item, (usize, String)> {
    let lines = Lines { text };
    match DeTable::parse(text) {
        Ok(table) => Ok(Item {
            line: 1,
            node: lines.table(table.get_ref()),
        }),
        Err(error) => {
            let at = error.span().map_or(0, |span| span.start);
            Err((lines.at(at), error.message().to_owned()))
        }
    }
}

struct Lines<'t> {
    text: &'t str,
}

impl Lines<'_> {
    fn at(&self, byte: usize) -> usize {
        let before = self.text.as_bytes().get(..byte).unwrap_or_default();
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    fn table(&self, table: &DeTable<'_>) -> Node {
        let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
            let key: &std::borrow::Cow<'_, str> = key.get_ref();
            (key.to_string(), self.item(value))
        };
        Node::Table(table.iter().map(entry).collect())
    }

    fn item(&self, value: &Spanned<DeValue<'_>>) -> Item {
        let node = match value.get_ref() {
            DeValue::Table(table) => self.table(table),
            DeValue::Array(items) => Node::List(items.iter().map(|one| self.item(one)).collect()),
            DeValue::String(text) => Node::Text(text.to_string()),
            DeValue::Integer(number) => Node::Text(number.to_string()),
            DeValue::Float(number) => Node::Text(number.to_string()),
            DeValue::Boolean(word) => Node::Text(word.to_string()),
            DeValue::Datetime(time) => Node::Text(time.to_string()),
        };
        Item {
            line: self.at(value.span().start),
            node,
        }
    }
}
