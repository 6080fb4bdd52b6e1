//! YAML as a tree. Aliases are copied, and their size is bounded.

use std::collections::BTreeMap;

use granit_parser::{Event, Parser, Span};

use super::tree::{Item, Node};

/// Values in a file, copies of aliases included, at most.
const MAX_ITEMS: usize = 100_000;

type Events<'t> = Parser<'t, granit_parser::StrInput<'t>>;

/// Reads a text; otherwise the line and what is wrong there. Of several documents the first counts.
pub(super) fn read(text: &str) -> Result<Item, (usize, String)> {
    let mut reader = Reader {
        events: Parser::new_from_str(text),
        anchors: BTreeMap::new(),
        left: MAX_ITEMS,
    };
    loop {
        let (event, span) = reader.next()?;
        match event {
            Event::StreamStart | Event::DocumentStart(..) => {}
            Event::StreamEnd | Event::DocumentEnd => return Ok(Item::default()),
            event => return reader.item(event, span),
        }
    }
}

struct Reader<'t> {
    events: Events<'t>,
    /// What aliases stand for, and how many values that is.
    anchors: BTreeMap<usize, (Item, usize)>,
    left: usize,
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Span), (usize, String)> {
        match self.events.next() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => Err((error.marker().line(), error.info().to_owned())),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn spend(&mut self, line: usize, count: usize) -> Result<(), (usize, String)> {
        let left = self.left.checked_sub(count);
        self.left = left.ok_or((line, "too many values".to_owned()))?;
        Ok(())
    }

    /// The value that begins with this event. How deep it is, is bounded by the parser.
    fn item(&mut self, event: Event<'t>, span: Span) -> Result<Item, (usize, String)> {
        let line = span.start.line();
        self.spend(line, 1)?;
        let before = self.left;
        let (node, anchor) = match event {
            Event::Scalar(text, style, anchor, _) => {
                let plain = style == granit_parser::ScalarStyle::Plain;
                let node = match &*text {
                    "" | "~" | "null" if plain => Node::Nothing,
                    text => Node::Text(text.to_owned()),
                };
                (node, anchor)
            }
            Event::SequenceStart(_, anchor, _) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd | Event::StreamEnd, _) => break,
                        (event, span) => items.push(self.item(event, span)?),
                    }
                }
                (Node::List(items), anchor)
            }
            Event::MappingStart(_, anchor, _) => (self.table()?, anchor),
            Event::Alias(anchor) => {
                let (item, count) = self.anchors.get(&anchor).cloned().unwrap_or_default();
                self.spend(line, count)?;
                return Ok(item);
            }
            _ => return Err((line, "a value is missing".to_owned())),
        };
        let item = Item { line, node };
        if anchor > 0 {
            let count = before - self.left;
            self.anchors.insert(anchor, (item.clone(), count));
        }
        Ok(item)
    }

    fn table(&mut self) -> Result<Node, (usize, String)> {
        let mut entries: Vec<(String, Item)> = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::MappingEnd | Event::StreamEnd) {
                return Ok(Node::Table(entries));
            }
            let line = span.start.line();
            let key = self.item(event, span)?;
            let (event, span) = self.next()?;
            let mut value = self.item(event, span)?;
            // A table stands where its key does.
            if !matches!(value.node, Node::Text(_)) {
                value.line = line;
            }
            match (key.text(), &value.node) {
                // Merged: what is there already stays.
                (Some("<<"), Node::Table(merged)) => {
                    for (key, item) in merged {
                        if !entries.iter().any(|(known, _)| known == key) {
                            entries.push((key.clone(), item.clone()));
                        }
                    }
                }
                (Some(key), _) if entries.iter().any(|(known, _)| known == key) => {
                    return Err((line, format!("`{key}` stands there twice")));
                }
                (Some(key), _) => entries.push((key.to_owned(), value)),
                (None, _) => return Err((line, "a key is no text".to_owned())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_knows_its_lines() {
        let text = "# c\na:\n  b: [1, \"2\"]\n  c: &x {d: true}\ne: *x\nf: ~\n";
        let root = read(text).unwrap();
        assert_eq!(root.texts_at("a.b"), ["1", "2"]);
        assert_eq!(root.at("a.b").map(|item| item.line), Some(3));
        assert!(root.is_true("e.d") && root.is_true("A.C.d"));
        assert!(root.text_at("f").is_none());
        assert_eq!(read("a: 1\na: 2\n").unwrap_err().0, 2);
        assert!(read("a: [1\n").is_err());
        assert!(read("").unwrap().entries().is_empty());
    }

    #[test]
    fn aliases_of_aliases_are_bounded() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let before = level - 1;
            let ten = vec![format!("*a{before}"); 10].join(", ");
            text.push_str(&format!("a{level}: &a{level} [{ten}]\n"));
        }
        assert_eq!(read(&text).unwrap_err().1, "too many values");
        let deep = "[".repeat(100_000);
        assert!(read(&deep).is_err());
    }
}
