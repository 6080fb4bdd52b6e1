//! Values: those that an entry of a descriptor may have, and those of YAML 1.1, which the service
//! reads. YAML 1.1 has more numbers and booleans than YAML 1.2.

use crate::tree::{TreeItem, TreeNode};
use crate::values::{inline_table, quote_literal};

/// Values of an entry, the most specific kind first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EntryValues {
    Exact(String),
    /// A text with `*`, each of which stands for any text, also for none.
    Pattern(String),
    Any,
}

impl EntryValues {
    pub(super) fn parse(value: Option<String>) -> EntryValues {
        match value {
            None => EntryValues::Any,
            Some(text) if text.contains('*') => EntryValues::Pattern(text),
            Some(text) => EntryValues::Exact(text),
        }
    }

    /// The rank of a rule with these values in `proxy.toml`. Higher is more specific.
    pub(super) fn rank(&self) -> usize {
        match self {
            EntryValues::Exact(_) => usize::MAX,
            EntryValues::Pattern(text) => text.chars().filter(|c| *c != '*').count() + 1,
            EntryValues::Any => 0,
        }
    }

    /// Whether these are all values of `other`, and perhaps more.
    pub(super) fn contain(&self, other: &EntryValues) -> bool {
        match (self, other) {
            (EntryValues::Any, _) => true,
            (EntryValues::Exact(one), EntryValues::Exact(other)) => one == other,
            _ if self.begins_otherwise(other) => false,
            // Only a star takes a star: the star of `other` may be a text that is in no pattern.
            _ => fit(&self.tokens(), &other.tokens(), Stars::OfFirst),
        }
    }

    /// Whether both have a value in common.
    pub(super) fn meet(&self, other: &EntryValues) -> bool {
        match (self, other) {
            (EntryValues::Any, _) | (_, EntryValues::Any) => true,
            (EntryValues::Exact(one), EntryValues::Exact(other)) => one == other,
            _ if self.begins_otherwise(other) => false,
            _ => fit(&self.tokens(), &other.tokens(), Stars::OfBoth),
        }
    }

    /// Whether both differ before the first star. Most patterns do, and this is quick.
    fn begins_otherwise(&self, other: &EntryValues) -> bool {
        let mut pairs = self.letters().chars().zip(other.letters().chars());
        let differing = pairs.find(|(one, two)| one != two || *one == '*');
        differing.is_some_and(|(one, two)| one != '*' && two != '*')
    }

    fn letters(&self) -> &str {
        match self {
            EntryValues::Exact(text) | EntryValues::Pattern(text) => text,
            EntryValues::Any => "*",
        }
    }

    /// Each character, and `None` for a star.
    fn tokens(&self) -> Vec<Option<char>> {
        let letters = self.letters().chars();
        letters.map(|c| Some(c).filter(|c| *c != '*')).collect()
    }
}

/// Which stars stand for any text. The others are like letters that no text has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stars {
    OfFirst,
    OfBoth,
}

/// Whether one text fits both. It takes time in proportion to the product of their lengths.
fn fit(first: &[Option<char>], second: &[Option<char>], stars: Stars) -> bool {
    let (rows, columns) = (first.len(), second.len());
    // Whether the rest of the first from `row` fits the rest of the second from `column`.
    let mut rests = vec![vec![false; columns + 1]; rows + 1];
    for row in (0..=rows).rev() {
        for column in (0..=columns).rev() {
            rests[row][column] = match (first.get(row), second.get(column)) {
                (None, None) => true,
                (Some(None), _) => {
                    rests[row + 1][column] || column < columns && rests[row][column + 1]
                }
                (_, Some(None)) if stars == Stars::OfBoth => {
                    rests[row][column + 1] || row < rows && rests[row + 1][column]
                }
                (Some(one), Some(two)) => one == two && rests[row + 1][column + 1],
                _ => false,
            };
        }
    }
    rests[0][0]
}

/// Writes a value of metadata as TOML.
pub(super) fn as_toml(item: &TreeItem) -> Option<String> {
    Some(match &item.node {
        TreeNode::Null => {
            item.lost("metadata", "TOML has no null; the key is left out");
            return None;
        }
        TreeNode::Text(text) if !item.is_plain => quote_literal(text),
        TreeNode::Text(text) => match (parse_boolean(text), parse_integer(text)) {
            (Some(word), _) => word.to_string(),
            (_, Some(number)) if i64::try_from(number).is_ok() => number.to_string(),
            _ if is_wide_number(text) => {
                let number = text.replace('_', "").parse::<f64>();
                match number.ok().filter(|number| number.is_finite()) {
                    Some(number) => format!("{number:?}"),
                    None => quote_literal(text),
                }
            }
            _ => quote_literal(text),
        },
        TreeNode::List(items) => {
            let values: Vec<String> = items.iter().filter_map(as_toml).collect();
            format!("[{}]", values.join(", "))
        }
        TreeNode::Table(entries) => {
            let fields = entries.iter().filter_map(|(key, item)| {
                let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
                let key = match !key.is_empty() && key.chars().all(is_bare) {
                    true => key.clone(),
                    false => quote_literal(key),
                };
                Some(format!("{key} = {}", as_toml(item)?))
            });
            inline_table(&fields.collect::<Vec<_>>())
        }
    })
}

/// Reads a boolean of YAML 1.1.
pub(super) fn parse_boolean(text: &str) -> Option<bool> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Some(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Some(false)
        }
        _ => None,
    }
}

/// Reads an integer of YAML 1.1: `1_000`, `0x1f`, `010` for 8.
pub(super) fn parse_integer(text: &str) -> Option<i128> {
    let digits = text.replace('_', "");
    if text.starts_with('_') {
        return None;
    }
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, digits.strip_prefix('+').unwrap_or(&digits)),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    let is_plain = digits.chars().all(|c| c.is_digit(radix));
    let number = i128::from_str_radix(digits, radix)
        .ok()
        .filter(|_| is_plain)?;
    Some(sign * number)
}

/// Whether a plain text is a number of YAML 1.1 and no integer of 64 bits.
pub(super) fn is_wide_number(text: &str) -> bool {
    let digits = text.replace('_', "");
    if text.starts_with('_') {
        return false;
    }
    let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(&digits);
    let is_named = matches!(
        unsigned,
        ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN"
    );
    let shape = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
    let is_number = digits.chars().all(shape) && digits.parse::<f64>().is_ok();
    match parse_integer(text) {
        Some(number) => i64::try_from(number).is_err(),
        None => is_named || is_number,
    }
}
