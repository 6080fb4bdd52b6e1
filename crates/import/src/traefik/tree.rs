//! A configuration as a tree that knows its lines, whatever it was written in.

/// A value and where it stands.
#[derive(Clone, Debug, Default)]
pub(super) struct Item {
    /// From 1.
    pub(super) line: usize,
    pub(super) node: Node,
}

/// A value.
#[derive(Clone, Debug, Default)]
pub(super) enum Node {
    #[default]
    Nothing,
    Text(String),
    List(Vec<Item>),
    Table(Vec<(String, Item)>),
}

impl Item {
    /// What stands under a key, whatever the case of its letters, as in Traefik.
    pub(super) fn get(&self, key: &str) -> Option<&Item> {
        let mut entries = self.entries().iter();
        entries
            .find(|(known, _)| known.eq_ignore_ascii_case(key))
            .map(|(_, item)| item)
    }

    /// The same along several keys: `loadBalancer.servers`.
    pub(super) fn at(&self, path: &str) -> Option<&Item> {
        path.split('.').try_fold(self, |item, key| item.get(key))
    }

    /// Keys and values of a table.
    pub(super) fn entries(&self) -> &[(String, Item)] {
        match &self.node {
            Node::Table(entries) => entries,
            _ => &[],
        }
    }

    /// A text, a number or a word.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.node {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The text under a path.
    pub(super) fn text_at(&self, path: &str) -> Option<&str> {
        self.at(path).and_then(Item::text)
    }

    /// Whether the word under a path is `true`.
    pub(super) fn is_true(&self, path: &str) -> bool {
        self.text_at(path) == Some("true")
    }

    /// What is in a list.
    pub(super) fn list(&self) -> &[Item] {
        match &self.node {
            Node::List(items) => items,
            _ => &[],
        }
    }

    /// The texts of the list under a path.
    pub(super) fn texts_at(&self, path: &str) -> Vec<String> {
        let list = self.at(path).map(Item::list).unwrap_or_default();
        list.iter()
            .filter_map(Item::text)
            .map(str::to_owned)
            .collect()
    }
}
