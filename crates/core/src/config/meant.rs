//! What was probably meant by a key or a value that cannot be used as it stands: by its shape, and
//! by what other programs call it. Pure.

use toml::de::DeValue;

use super::known;
use super::slip::nearest;

/// What a key was meant to be that means nothing in a section. `None` if its name says all.
pub(super) fn key(section: &str, key: &str, value: &DeValue<'_>) -> Option<String> {
    if let Some(help) = letter_case(section, key) {
        return Some(help.to_owned());
    }
    if !section.is_empty() {
        return None;
    }
    let inner = first_table(value);
    if key == "limits" || key == "rate_limits" {
        let help = match (value, inner) {
            (DeValue::Table(_), name) => format!(
                "a limit has a section of its own, without `s`: `[limit.{}]`",
                name.unwrap_or("default")
            ),
            _ => {
                "`limits` is a setting of `[[route]]`; for all routes write `[limit.default]` with \
                  a `rate`"
                    .to_owned()
            }
        };
        return Some(help);
    }
    let near = misnamed(key, value)?;
    let written = match near {
        "limit" => format!("[limit.{}]", inner.unwrap_or("default")),
        "upstream" => format!("[upstream.{}]", inner.unwrap_or("api")),
        other => known::header(other),
    };
    Some(format!("did you mean `{written}`?"))
}

/// The section of the top that a table of an unknown name was meant to be.
pub(super) fn misnamed(key: &str, value: &DeValue<'_>) -> Option<&'static str> {
    let is_section = match value {
        DeValue::Table(_) => true,
        DeValue::Array(list) => list.iter().any(|one| one.get_ref().is_table()),
        _ => false,
    };
    if !is_section {
        return None;
    }
    if key == "rate_limits" {
        return Some("limit");
    }
    let sections = known::parts().iter().map(|part| part.section.as_str());
    let first = |section: &'static str| section.split('.').next().unwrap_or(section);
    nearest(key, sections.map(first))
}

fn letter_case(section: &str, key: &str) -> Option<&'static str> {
    let plain = key.to_lowercase().replace(['_', '-'], "");
    let words = [
        "casesensitive",
        "caseinsensitive",
        "ignorecase",
        "nocase",
        "casesensitiverouting",
    ];
    let fits = ["", "route"].contains(&section) && words.contains(&plain.as_str());
    fits.then_some("letter case in paths is `case = \"insensitive\"` or `case = \"sensitive\"`")
}

/// The name of the first table in a table.
fn first_table<'v>(value: &'v DeValue<'_>) -> Option<&'v str> {
    let tables = value.as_table()?.iter();
    let mut tables = tables.filter(|(_, value)| value.get_ref().is_table());
    tables.next().map(|(name, _)| name.get_ref().as_ref())
}

/// What a value of the wrong kind was meant to be.
pub(super) fn value(section: &str, key: &str, value: &DeValue<'_>) -> Option<String> {
    let help = match (section, key, value) {
        ("limit.NAME", "rate" | "candidate", DeValue::Integer(count)) => {
            format!("say in how long: `{key} = \"{count}/min\"` or `\"{count}/s\"`")
        }
        ("route", "limits", DeValue::Table(_)) => {
            "a limit with a `key` has a section, `[limit.login]`, and is named here: `limits = \
             [\"login\"]`"
                .to_owned()
        }
        ("", "trusted_proxies", DeValue::Boolean(_)) => {
            "name the proxies in front of this one: `trusted_proxies = [\"10.0.0.0/8\"]`".to_owned()
        }
        ("", "store", DeValue::String(_)) => {
            "write `[store]` and below it `url = \"redis://127.0.0.1:6379\"`".to_owned()
        }
        ("limit.NAME", "", DeValue::String(_)) => {
            "write the section and below it `rate = \"100/min\"`".to_owned()
        }
        (_, "case", DeValue::Boolean(_)) => {
            "write `case = \"insensitive\"` or `case = \"sensitive\"`".to_owned()
        }
        _ => return None,
    };
    Some(help)
}

/// What a word or a number says where `true` or `false` belongs.
pub(super) fn boolean(value: &DeValue<'_>) -> Option<bool> {
    let text = match value {
        DeValue::String(text) => text.trim().to_lowercase(),
        DeValue::Integer(number) => number.to_string(),
        _ => return None,
    };
    match text.as_str() {
        "true" | "yes" | "on" | "y" | "1" | "enabled" => Some(true),
        "false" | "no" | "off" | "n" | "0" | "disabled" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use toml::de::DeTable;

    use super::*;

    fn help(text: &str) -> Option<String> {
        let table = DeTable::parse(text).unwrap();
        let (name, found) = table.get_ref().iter().next().unwrap();
        key("", name.get_ref(), found.get_ref())
    }

    #[test]
    fn a_section_is_named_as_it_is_written() {
        for (text, expected) in [
            ("[limits.default]", "without `s`: `[limit.default]`"),
            ("[limits.login]", "without `s`: `[limit.login]`"),
            ("[limits]\nrate = 1", "without `s`: `[limit.default]`"),
            ("limits = [\"a\"]", "is a setting of `[[route]]`"),
            ("[[routes]]", "did you mean `[[route]]`?"),
            ("[upstreams.api]", "did you mean `[upstream.api]`?"),
            ("[bypasses]", "did you mean `[[bypass]]`?"),
            ("[stor]", "did you mean `[store]`?"),
            ("ignore_case = true", "`case = \"insensitive\"`"),
        ] {
            let help = help(text).unwrap_or_default();
            assert!(help.contains(expected), "{text}: {help}");
        }
        assert_eq!(help("upsteam = \"http://a\""), None);
        assert_eq!(help("[zzz]"), None);
    }

    #[test]
    fn words_for_true_and_false_are_understood() {
        let read = |text: &str| {
            let table = DeTable::parse(text).unwrap();
            let value = table
                .get_ref()
                .iter()
                .next()
                .map(|(_, value)| boolean(value.get_ref()));
            value.unwrap()
        };
        assert_eq!(read("a = \"yes\""), Some(true));
        assert_eq!(read("a = \" Off\""), Some(false));
        assert_eq!(read("a = 1"), Some(true));
        assert_eq!(read("a = 2"), None);
        assert_eq!(read("a = \"maybe\""), None);
    }
}
