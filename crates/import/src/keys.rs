//! The key of a limit before it is text.

use super::values::{TomlEntries, quote, quote_list, quote_one_or_list};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyDraft {
    pub(super) parts: Vec<String>,
    /// `skip` or `shared`.
    pub(super) missing: Option<&'static str>,
    /// Networks that the limit does not count.
    pub(super) exempt: Vec<String>,
    /// Parts whose other values count as one.
    pub(super) listed: Vec<ListedDraft>,
}

/// A part of a key, and the values that count by themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedDraft {
    pub(super) part: String,
    pub(super) values: Vec<String>,
}

impl KeyDraft {
    pub(super) fn of_part(part: &str) -> KeyDraft {
        KeyDraft {
            parts: vec![part.to_owned()],
            ..KeyDraft::default()
        }
    }

    pub(super) fn add_to(&self, entries: &mut TomlEntries) {
        entries.add("key", quote_one_or_list(&self.parts));
        if let Some(word) = self.missing {
            entries.add("missing", quote(word));
        }
        if !self.exempt.is_empty() {
            entries.add("exempt", quote_list(&self.exempt));
        }
        let listed = self.listed.iter();
        let fields =
            listed.map(|one| format!("{} = {}", quote(&one.part), quote_list(&one.values)));
        entries.add_table("values", &fields.collect::<Vec<_>>());
    }
}
