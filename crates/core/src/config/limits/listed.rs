//! Reads `values` of a limit: for parts of its key, the values that count by themselves. And brings
//! a written value to the one spelling that requests count by.

use std::fmt;
use std::net::IpAddr;

use crate::client::ClientIp;
use crate::config::*;
use crate::limit::key::{Given, Key, ListedValues, OTHER, Part};
use crate::path::{CanonicalPath, Malformed};
use crate::route::host_of;

/// Values of one part, at most.
const MAX_VALUES: usize = 1_000;

/// Reads `{ "mcp:tool" = ["search", "fetch"] }`. Each name is a part of the key.
pub(super) fn read(
    section: &mut Section<'_>,
    key: &Key,
    client_ip: &ClientIp,
) -> Vec<ListedValues> {
    section.declare("values", || ValueKind::Map(Box::new(ValueKind::Texts)));
    let table = section.section("values");
    let mut listed: Vec<ListedValues> = Vec::new();
    for (name, value) in table.entries() {
        if name.value.starts_with("x-") {
            continue;
        }
        let text = name.value.clone();
        let form = TextForm::new(Code::BadKey, "a part of a key");
        let part = table.parse_text(&text, name, form, Part::parse);
        let Some(part) = part.filter(|part| is_of_key(&table, key, part)) else {
            continue;
        };
        let Some(texts) = table.texts_in(&text, value) else {
            continue;
        };
        if !(1..=MAX_VALUES).contains(&texts.len()) {
            table.out_of_range(&text, &format!("1 to {MAX_VALUES} values"));
        }
        check_values(&table, &texts);
        let form = TextForm::new(Code::BadKey, "a value of this part");
        let given = |text: &str| given(&part.value, text, client_ip);
        let given = table.parse_all(&text, Some(texts), form, given);
        listed.push(ListedValues::of_given(part.value.clone(), &values(given)));
    }
    listed
}

/// Reports a part that the limit does not count by.
fn is_of_key(table: &Section<'_>, key: &Key, part: &Located<Part>) -> bool {
    if key.all().any(|one| *one == part.value) {
        return true;
    }
    let parts: Vec<String> = key.all().map(Part::to_string).collect();
    let otherwise = format!("its key has {}", quoted(&parts));
    let help = did_you_mean(
        &part.value.to_string(),
        parts.iter().map(String::as_str),
        otherwise,
    );
    contradiction(format!(
        "`{}` is for parts of the limit's `key`",
        table.name()
    ))
    .at(&part.span, "the key has no such part")
    .help(help)
    .report_to(table.reader);
    false
}

fn quoted(words: &[String]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    quoted.join(", ")
}

/// Reports values that are named twice, and the one that stands for all others.
fn check_values(table: &Section<'_>, texts: &[Located<String>]) {
    for (at, text) in texts.iter().enumerate() {
        let mut earlier = texts[..at].iter();
        if let Some(first) = earlier.find(|one| one.value == text.value) {
            duplicate(format!("`{}` is named twice", text.value))
                .at(&text.span, "")
                .at(&first.span, "first here")
                .report_to(table.reader);
        }
        if text.value == OTHER {
            contradiction(format!(
                "`{OTHER}` stands for all values that are not listed"
            ))
            .at(&text.span, "would share its budget with these")
            .help("leave it out")
            .report_to(table.reader);
        }
    }
}

fn given(part: &Part, text: &str, client_ip: &ClientIp) -> Result<Given, String> {
    if *part == Part::Global {
        return Err("`global` has no values".to_owned());
    }
    spelled(part, text, client_ip).map_err(|error| error.to_string())
}

/// Why no request can carry a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpellingError {
    NotAnAddress,
    NotAPath(Malformed),
    NotAHost(Malformed),
    Empty,
}

impl fmt::Display for SpellingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAnAddress => f.write_str("not an address"),
            Self::NotAPath(why) | Self::NotAHost(why) => why.fmt(f),
            Self::Empty => f.write_str("empty"),
        }
    }
}

/// Brings a value of this part to the spelling that is hashed. Paths keep their letter case: see
/// [`Given::in_case`].
pub fn spelled(part: &Part, text: &str, client_ip: &ClientIp) -> Result<Given, SpellingError> {
    let text = text.trim();
    let of_text = |text: &str| Given::text(part.clone(), text);
    let given = match part {
        Part::Ip => {
            let ip: IpAddr = text.parse().map_err(|_| SpellingError::NotAnAddress)?;
            Given::ip(client_ip.group(ip))
        }
        Part::Path => of_text(canonical(text)?.as_str()),
        Part::PathParam(_) => {
            let path = format!("/{text}");
            let path = canonical(&path)?;
            of_text(path.as_str().trim_start_matches('/'))
        }
        Part::Host => of_text(&host_of(text).map_err(SpellingError::NotAHost)?),
        _ => of_text(text),
    };
    match given.is_empty() {
        true => Err(SpellingError::Empty),
        false => Ok(given),
    }
}

fn canonical(path: &str) -> Result<CanonicalPath<'_>, SpellingError> {
    CanonicalPath::parse(path).map_err(SpellingError::NotAPath)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::Case;

    fn value(part: &str, text: &str) -> Result<Vec<u8>, SpellingError> {
        let client_ip = ClientIp {
            ipv4_prefix: 24,
            ..ClientIp::default()
        };
        let given = spelled(&Part::parse(part).unwrap(), text, &client_ip)?;
        Ok(given.in_case(Case::Insensitive).value().to_vec())
    }

    #[test]
    fn values_are_spelled_as_requests_count_by_them() {
        for (part, text, expected) in [
            ("ip", "203.0.113.5", &[203, 0, 113, 0][..]),
            ("ip", "::ffff:203.0.113.5", &[203, 0, 113, 0]),
            ("host", "Example.COM:8080", b"example.com"),
            ("path", "/P/a/../C%7e", b"/p/c~"),
            ("path:id", "Ab%63 d", b"abc%20d"),
            ("query:q", "a b", b"a+b"),
            ("cookie:c", "a%20b", b"a+b"),
            ("method", "head", b"GET"),
            ("header:x-user", " Ann ", b"Ann"),
        ] {
            let found = value(part, text).unwrap();
            assert_eq!(found, expected, "{part} {text}");
        }
        let error = |part, text| value(part, text).unwrap_err();
        assert_eq!(error("ip", "192.0.2.0/24"), SpellingError::NotAnAddress);
        assert!(matches!(
            error("path", "partner"),
            SpellingError::NotAPath(_)
        ));
        assert_eq!(error("path:id", " "), SpellingError::Empty);
    }
}
