//! The sections that refer to each other, as they are written: bypasses. Limits are in
//! `limits.rs`, routes in `route.rs`, upstreams in `upstream.rs`.
//!
//! Every value is read and checked by itself; names are still names. `compile.rs` joins them.

use super::diagnostic::{Code, Diagnostic};
use super::route::path_pattern;
use super::section::{At, Section};
use super::settings::header_name;
use super::{Bypass, address};
use crate::limit::key::{Alternatives, Key, Part};
use crate::path::Case;

/// Names are what clients, operators, metrics and the command line say.
pub(super) fn check_name(section: &Section<'_>, name: &At<String>, what: &str) {
    let fits =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    if (1..=64).contains(&name.value.len()) && name.value.bytes().all(fits) {
        return;
    }
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    let better: String = name
        .value
        .to_ascii_lowercase()
        .chars()
        .map(plain)
        .take(64)
        .collect();
    let mut diagnostic = Diagnostic::new(Code::BadName, format!("not a name for {what}"))
        .at(&name.span, "1 to 64 of `a-z`, `0-9`, `_` and `-`");
    if !better.is_empty() {
        diagnostic = diagnostic.help(format!("for example `{better}`"));
    }
    section.reader.report(diagnostic);
}

/// Limits' and routes' default key.
pub(super) fn by_address() -> Key {
    Key {
        parts: vec![Alternatives(vec![Part::Ip])],
    }
}

/// `[[bypass]]`; nothing if it has no condition that could be read.
pub(super) fn bypass(mut section: Section<'_>) -> Option<Bypass> {
    let mut ip = Vec::new();
    let texts = section.texts("ip");
    if let Some(texts) = texts.as_ref().filter(|texts| texts.value.is_empty()) {
        section.out_of_range_at("ip", texts, "one or more; leave `ip` out for any");
    }
    for text in texts.map(|texts| texts.value).unwrap_or_default() {
        let kind = (Code::BadAddress, "an address or a network");
        let net = section.understood("ip", text, kind, address::network);
        ip.extend(net.map(|net| net.value));
    }
    let path = section
        .text("path")
        .and_then(|text| path_pattern(&section, text));
    let name = section.parsed("header", (Code::BadHttp, "a header's name"), header_name);
    let value = section.secret(Some("value"), "value_file");
    let key = section.secret(Some("key"), "key_file").map(|key| key.value);
    let has_value = section.peek("value").is_some() || section.peek("value_file").is_some();
    if section.peek("header").is_some() && !has_value {
        section.missing("value_file", "value_file = \"/run/secrets/bypass\"");
    }
    if section.peek("header").is_none() && has_value {
        section.missing("header", "header = \"x-bypass\"");
    }
    let conditions = ["ip", "path", "header", "key", "key_file"];
    if !conditions.iter().any(|key| section.peek(key).is_some()) {
        section.missing("ip", "ip = \"10.0.0.0/8\"");
    }
    for secret in [value.as_ref().map(|value| &value.value), key.as_ref()]
        .into_iter()
        .flatten()
    {
        if secret.is_empty() {
            let message = "an empty secret lets everybody pass";
            let diagnostic = Diagnostic::new(Code::Contradiction, message).at(&section.span, "");
            section.reader.report(diagnostic);
        }
    }
    section.finish();
    let header = name
        .zip(value)
        .map(|(name, value)| (name.value, value.value));
    let path = path.map(|path| path.value);
    let folded = path.clone().map(|path| path.in_case(Case::Insensitive));
    let bypass = Bypass {
        ip,
        path,
        folded_path: folded,
        header,
        key,
    };
    let any = !bypass.ip.is_empty()
        || bypass.path.is_some()
        || bypass.header.is_some()
        || bypass.key.is_some();
    any.then_some(bypass)
}
