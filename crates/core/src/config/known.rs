//! Every setting there is, as `proxy.reference.toml` shows it: what is known of a file without
//! reading one. A test holds the reference complete.

use std::sync::LazyLock;

const REFERENCE: &str = include_str!("../../proxy.reference.toml");

/// One setting.
#[derive(Debug)]
pub(super) struct Known {
    /// Where it belongs, with `NAME` for a chosen name: `limit.NAME`; empty for the top.
    pub(super) section: String,
    /// Its name.
    pub(super) key: &'static str,
    /// Its default, or an example, as TOML.
    pub(super) value: &'static str,
    /// What it is, in a sentence or so.
    pub(super) about: String,
    /// Whether it is shown as it is without being said, and not as an example behind a `#`.
    pub(super) shown: bool,
}

/// Shown without a `#`, for the reference must be a whole file, and no defaults all the same.
const CHOSEN: [(&str, &str); 6] = [
    ("limit.NAME", "rate"),
    ("upstream.NAME.servers", "url"),
    ("route", "path"),
    ("route", "upstream"),
    ("route", "limits"),
    ("bypass", "path"),
];

impl Known {
    /// What holds where a file does not say it, as TOML.
    pub(super) fn default(&self) -> Option<&'static str> {
        let chosen = CHOSEN.contains(&(self.section.as_str(), self.key));
        (self.shown && !chosen).then_some(self.value)
    }

    /// Whether its section is nothing without it.
    pub(super) fn is_required(&self) -> bool {
        self.about == "required" || self.about.ends_with("; required")
    }
}

/// A section, as the lines above it describe it.
#[derive(Debug)]
pub(super) struct Part {
    /// As of its settings.
    pub(super) section: String,
    /// What it is for; empty where its name says so.
    pub(super) about: String,
}

static KNOWN: LazyLock<(Vec<Known>, Vec<Part>)> = LazyLock::new(read);

/// All of them, in the reference's order.
pub(super) fn all() -> &'static [Known] {
    &KNOWN.0
}

/// All sections but the top, in the same order.
pub(super) fn parts() -> &'static [Part] {
    &KNOWN.1
}

/// What is known of one.
pub(super) fn of(section: &str, key: &str) -> Option<&'static Known> {
    let mut all = all().iter();
    all.find(|known| known.key == key && known.section == section)
}

/// Sections that have a setting of this name, as a file writes them: `[limit.NAME]`, `[[route]]`.
pub(super) fn sections_with(key: &str) -> Vec<String> {
    let with = all().iter().filter(|known| known.key == key);
    with.map(|known| header(&known.section)).collect()
}

/// As a file writes it.
pub(super) fn header(section: &str) -> String {
    match section {
        "route" | "bypass" | "tls.certificates" | "upstream.NAME.servers" => {
            format!("[[{section}]]")
        }
        _ => format!("[{section}]"),
    }
}

fn read() -> (Vec<Known>, Vec<Part>) {
    let mut section = String::new();
    let mut found: Vec<Known> = Vec::new();
    let mut parts: Vec<Part> = Vec::new();
    // Lines of words right above a section.
    let mut above: Vec<&str> = Vec::new();
    for line in REFERENCE.lines() {
        let (line, shown) = match line.strip_prefix("# ") {
            Some(rest) => (rest, false),
            None => (line, true),
        };
        if line.starts_with('[') && line.ends_with(']') {
            section = pattern(line.trim_matches(['[', ']']));
            parts.push(Part {
                section: section.clone(),
                about: above.join(" "),
            });
            above.clear();
            continue;
        }
        if let Some((key, value, about)) = setting(line) {
            found.push(Known {
                section: section.clone(),
                key,
                value,
                about: about.to_owned(),
                shown,
            });
        } else if let (Some(more), Some(last)) = (continued(line), found.last_mut()) {
            last.about.push(' ');
            last.about.push_str(more);
        } else if shown {
            above.clear();
        } else {
            above.push(line);
        }
    }
    (found, parts)
}

/// `limit.per_client` is `limit.NAME`.
fn pattern(name: &str) -> String {
    match name.split_once('.') {
        Some((kind @ ("limit" | "upstream"), name)) => match name.split_once('.') {
            Some((_, inner)) => format!("{kind}.NAME.{inner}"),
            None => format!("{kind}.NAME"),
        },
        _ => name.to_owned(),
    }
}

/// `key = value   # about`
fn setting(line: &'static str) -> Option<(&'static str, &'static str, &'static str)> {
    let (key, rest) = line.split_once('=')?;
    let key = key.trim_end();
    let is_key = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if key.is_empty() || !key.bytes().all(is_key) {
        return None;
    }
    let mut quote = None;
    let comment = rest.char_indices().find(|(_, c)| {
        match (quote, *c) {
            (None, '"' | '\'') => quote = Some(*c),
            (Some(open), c) if c == open => quote = None,
            _ => {}
        }
        quote.is_none() && *c == '#'
    });
    let (value, about) = match comment {
        Some((at, _)) => (&rest[..at], rest[at + 1..].trim()),
        None => (rest, ""),
    };
    Some((key, value.trim(), about))
}

/// A comment that goes on where the one before it stood.
fn continued(line: &'static str) -> Option<&'static str> {
    let (space, text) = line.split_once("# ")?;
    (space.len() > 20 && space.trim().is_empty()).then(|| text.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_with_their_defaults() {
        let rate = of("limit.NAME", "rate").unwrap();
        assert_eq!(rate.value, "\"600/min\"");
        let hold = of("limit.NAME", "hold").unwrap();
        assert_eq!(hold.value, "\"15s\"");
        let listen = of("", "listen").unwrap();
        assert!(listen.about.contains("unix:PATH"), "{listen:?}");
        let on_error = of("store", "on_error").unwrap();
        assert!(
            on_error.about.ends_with("`deny` answers 503"),
            "{on_error:?}"
        );
        assert_eq!(sections_with("connect_timeout"), ["[upstream.NAME]"]);
        let client = &parts()[2];
        assert_eq!(client.section, "tls");
        assert!(
            client
                .about
                .starts_with("Where clients come over TLS. Files")
        );
        assert!(client.about.ends_with("changes."), "{client:?}");
    }
}
