//! Reads `values` of a limit: for parts of its key, the values that count by themselves.

use std::net::IpAddr;

use crate::config::*;
use crate::limit::key::{Given, Key, ListedValues, OTHER, Part};

/// Values of one part, at most.
const MAX_VALUES: usize = 1_000;

/// Reads `{ "mcp:tool" = ["search", "fetch"] }`. Each name is a part of the key.
pub(super) fn read(section: &mut Section<'_>, key: &Key) -> Vec<ListedValues> {
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
        let given = |text: &str| given(&part.value, text);
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

fn given(part: &Part, text: &str) -> Result<Given, &'static str> {
    let given = match part {
        Part::Ip => {
            let ip: IpAddr = (text.trim().parse()).map_err(|_| "not an address")?;
            Given::ip(ip.to_canonical())
        }
        Part::Global => return Err("`global` has no values"),
        part => Given::text(part.clone(), text),
    };
    match given.is_empty() {
        true => Err("empty"),
        false => Ok(given),
    }
}
