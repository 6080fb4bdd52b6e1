//! The intended setting behind a key, a value or a text that cannot be used as it stands. It is
//! guessed from the spelling, from the kind of the value, and from the ways of other programs.
//! Pure.

#[cfg(test)]
mod tests;

use toml::de::{DeTable, DeValue};

use super::diagnostic::Code;
use super::reference;
use crate::limit::key::{ApiKeySource, Key};
use crate::limit::rate::{Rate, parse_duration};
use crate::route::{HostPattern, PathPattern};

/// The candidate that a misspelt word most likely means.
pub(super) fn nearest<'c>(
    text: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<&'c str> {
    let plain = |text: &str| text.to_lowercase().replace(['-', ' ', '.'], "_");
    let wanted = plain(text);
    let measured = candidates.into_iter().map(|candidate| {
        let distance = strsim::damerau_levenshtein(&wanted, &plain(candidate));
        (distance, candidate)
    });
    measured
        .filter(|(distance, candidate)| {
            let longest = candidate.chars().count().max(wanted.chars().count());
            *distance <= (longest / 3).max(1) && *distance < longest
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The help for an unknown word: the candidate that it most likely means, or else `otherwise`.
pub(super) fn did_you_mean<'c>(
    text: &str,
    candidates: impl IntoIterator<Item = &'c str>,
    otherwise: String,
) -> String {
    let near = nearest(text, candidates);
    near.map_or(otherwise, |near| format!("did you mean `{near}`?"))
}

/// What to write in place of keys of other programs.
const HABITS: &str = include_str!("habits.toml");

fn habit(section: &str, key: &str) -> Option<String> {
    let table = DeTable::parse(HABITS).ok()?;
    let habits = table.get_ref().get(section)?.get_ref().as_table()?;
    let mut habits = habits.iter();
    let (_, advice) = habits.find(|(keys, _)| keys.get_ref().split(' ').any(|one| one == key))?;
    advice.get_ref().as_str().map(str::to_owned)
}

pub(super) fn key_help(section: &str, key: &str, value: &DeValue<'_>) -> Option<String> {
    habit(section, key)
        .or_else(|| letter_case_help(section, key))
        .or_else(|| section_help(section, key, value))
}

/// The advice for a table at the top that is no section, such as `[limits.login]`.
fn section_help(section: &str, key: &str, value: &DeValue<'_>) -> Option<String> {
    if !section.is_empty() {
        return None;
    }
    let inner = first_table(value);
    if key == "limits" || key == "rate_limits" {
        return Some(match value {
            DeValue::Table(_) => format!(
                "a limit has a section of its own, without `s`: `[limit.{}]`",
                inner.unwrap_or("default")
            ),
            _ => {
                "`limits` is a setting of `[[route]]`; for all routes write `[limit.default]` with \
                  a `rate`"
                    .to_owned()
            }
        });
    }
    let written = match intended_section(key, value)? {
        "limit" => format!("[limit.{}]", inner.unwrap_or("default")),
        "upstream" => format!("[upstream.{}]", inner.unwrap_or("api")),
        other => reference::header(other),
    };
    Some(format!("did you mean `{written}`?"))
}

/// The section of the top that a table of an unknown name most likely means.
pub(super) fn intended_section(key: &str, value: &DeValue<'_>) -> Option<&'static str> {
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
    let sections = reference::sections().iter();
    let sections = sections.map(|section| section.name.as_str());
    let first = |section: &'static str| section.split('.').next().unwrap_or(section);
    nearest(key, sections.map(first))
}

fn letter_case_help(section: &str, key: &str) -> Option<String> {
    let plain = key.to_lowercase().replace(['_', '-'], "");
    let words = [
        "casesensitive",
        "caseinsensitive",
        "ignorecase",
        "nocase",
        "casesensitiverouting",
    ];
    let help = "letter case in paths is `case = \"insensitive\"` or `case = \"sensitive\"`";
    let fits = ["", "route"].contains(&section) && words.contains(&plain.as_str());
    fits.then(|| help.to_owned())
}

fn first_table<'v>(value: &'v DeValue<'_>) -> Option<&'v str> {
    let tables = value.as_table()?.iter();
    let mut tables = tables.filter(|(_, value)| value.get_ref().is_table());
    tables.next().map(|(name, _)| name.get_ref().as_ref())
}

/// The advice for a value of the wrong kind. The key is empty for a section that is a value.
pub(super) fn value_help(section: &str, key: &str, value: &DeValue<'_>) -> Option<String> {
    let help = match (section, key, value) {
        ("limit.NAME", "rate" | "candidate", DeValue::Integer(count)) => {
            return Some(format!(
                "add the window: `{key} = \"{count}/min\"` or `\"{count}/s\"`"
            ));
        }
        ("route", "limits", DeValue::Table(_)) => {
            "a limit with a `key` has a section, `[limit.login]`, and is named here: `limits = \
             [\"login\"]`"
        }
        ("" | "route", "upstream", DeValue::Array(_)) => {
            "several servers have a section: `[upstream.api]` with `servers = \
             [\"http://10.0.0.1:3000\", \"http://10.0.0.2:3000\"]`; a route names it: `upstream = \
             \"api\"`"
        }
        ("", "trusted_proxies", DeValue::Boolean(_)) => {
            "name the proxies in front of this one: `trusted_proxies = [\"10.0.0.0/8\"]`"
        }
        ("", "store", DeValue::String(_)) => {
            "write `[store]` and below it `url = \"redis://127.0.0.1:6379\"`"
        }
        ("limit.NAME", "", DeValue::String(_)) => {
            "write the section and below it `rate = \"100/min\"`"
        }
        (_, "case", DeValue::Boolean(_)) => {
            "write `case = \"insensitive\"` or `case = \"sensitive\"`"
        }
        _ => return None,
    };
    Some(help.to_owned())
}

/// The boolean that a word or a number most likely means.
pub(super) fn intended_boolean(value: &DeValue<'_>) -> Option<bool> {
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

/// The advice for a text whose finding has this code.
pub(super) fn advice_for(code: Code, text: &str) -> Option<String> {
    let text = text.trim();
    match code {
        Code::BadRate => rate(text),
        Code::BadQuantity => quantity(text),
        Code::BadKey => key(text),
        Code::BadAddress => address(text),
        Code::BadUrl => url(text),
        Code::BadPattern => pattern(text),
        Code::BadHttp => http(text),
        _ => None,
    }
}

/// `100 per minute`, `100r/s`, `10,000/day`, `0.5/s`, `1000 per month`, `10/s, 1000/h`, `100`.
fn rate(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    if parts.len() > 1 && parts.iter().all(|part| Rate::parse(part).is_ok()) {
        let list: Vec<String> = parts.iter().map(|part| format!("\"{part}\"")).collect();
        return Some(format!(
            "write several rates as a list: `[{}]`",
            list.join(", ")
        ));
    }
    let lower = text.to_lowercase();
    if let Some(count) = count_of(&lower).filter(|count| count.fract() == 0.0 && *count >= 1.0) {
        return Some(format!("add the window: `{count}/min` or `{count}/s`"));
    }
    let lower = [" per ", " every ", " each ", " a ", "/"]
        .into_iter()
        .find_map(|between| lower.split_once(between))?;
    let (count, window) = lower;
    let swapped = count_of(window).is_some();
    let (count, window) = if swapped {
        (window, count)
    } else {
        (count, window)
    };
    let count = count_of(count).filter(|count| *count > 0.0)?;
    // A longer window makes a fraction whole.
    let times = [1.0, 2.0, 4.0, 5.0, 10.0, 20.0, 50.0, 100.0];
    let times = times
        .into_iter()
        .find(|times| (count * times).fract() == 0.0)?;
    let window = match (window.trim(), times == 1.0) {
        ("mo", true) => "month".to_owned(),
        ("w", true) => "week".to_owned(),
        ("y", true) => "year".to_owned(),
        ("m", true) => "min".to_owned(),
        (window, true) => window.to_owned(),
        (window, false) => format!("{times}{window}"),
    };
    let rate = Rate::parse(&format!("{}/{window}", count * times)).ok()?;
    Some(format!("write `{rate}`"))
}

/// Reads a count in one of these spellings: `100`, `10k`, `10,000`, `100 requests`, `0.5`.
fn count_of(text: &str) -> Option<f64> {
    let text = text.trim();
    let words = [
        "requests", "request", "reqs", "req", "calls", "hits", "rq", "r",
    ];
    let bare = words.iter().find_map(|word| text.strip_suffix(word));
    let text: String = bare.unwrap_or(text).replace([',', '_', ' '], "");
    let (digits, times) = match text.strip_suffix('k') {
        Some(digits) => (digits, 1000.0),
        None => (text.as_str(), 1.0),
    };
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit())
        && digits
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = digits.parse().ok().filter(|_| is_number)?;
    Some(number * times)
}

/// `10` and `5m`.
fn quantity(text: &str) -> Option<String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(format!("write `{text}s` for seconds, or `{text}ms`"));
    }
    let minutes = format!("{text}in");
    let is_m = text.ends_with('m') && parse_duration(&minutes).is_ok();
    is_m.then(|| format!("write `{minutes}` or `{text}s`"))
}

/// `header: x-user`, `ip,path`, `ip and path`, `user`.
fn key(text: &str) -> Option<String> {
    let joined = with_plain_colons(text);
    if joined != text && (Key::parse_part(&joined).is_ok() || ApiKeySource::parse(&joined).is_ok())
    {
        return Some(format!("did you mean `{joined}`?"));
    }
    for between in [" and ", ",", "+", "&"] {
        if text.contains(between) {
            let parts = text
                .split(between)
                .map(|part| format!("\"{}\"", part.trim()));
            let parts: Vec<String> = parts.collect();
            let list = parts.join(", ");
            return Some(format!(
                "write parts that are counted together as a list: `[{list}]`"
            ));
        }
    }
    let all = "there are `ip`, `api_key`, `header:NAME`, `query:NAME`, `cookie:NAME`, `jwt:CLAIM`, \
               `tls:FIELD`, `body:PATH`, `mcp:method`, `mcp:tool`, `graphql:operation`, \
               `entry:NAME`, `path`, `path:PARAM`, `method`, `host`, `route`, `tier` and `global`";
    (!text.contains(':')).then(|| all.to_owned())
}

/// A key's text with one colon between each word and its name: `header: x-user`, `header x-user`
/// and `header=x-user` become `header:x-user`.
fn with_plain_colons(text: &str) -> String {
    let spaced = text.replace(['=', ':'], " : ");
    let mut joined = String::new();
    let mut open = false;
    for word in spaced.split_whitespace() {
        if word == ":" {
            open = true;
            continue;
        }
        let named = ["header", "query", "cookie", "jwt", "tls"];
        let last = joined.rsplit(' ').next().unwrap_or_default();
        let before = match open || (named.contains(&last) && word != "or") {
            true => ":",
            false if joined.is_empty() => "",
            false => " ",
        };
        joined.push_str(before);
        joined.push_str(word);
        open = false;
    }
    joined
}

/// `::1:8080`, `*:8080`.
fn address(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let is_port = port.parse::<u16>().is_ok();
    let is_v6 = host.parse::<std::net::Ipv6Addr>().is_ok();
    (is_port && is_v6).then(|| format!("an IPv6 address stands in brackets: `[{host}]:{port}`"))
}

/// `http://$HOST:3000`.
fn url(text: &str) -> Option<String> {
    if let Some((_, rest)) = text.split_once('$') {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let name = &rest[..end.unwrap_or(rest.len())];
        if !name.is_empty() {
            return Some(format!("write variables with braces: `${{{name}}}`"));
        }
    }
    if text.contains('@') {
        return Some("leave it out; `headers_up` of a route can set `authorization`".to_owned());
    }
    None
}

/// `login`, `/api/**`, `/users/:id`, `^/api/.*$`, `http://example.com/login`, `example.com:8080`.
fn pattern(text: &str) -> Option<String> {
    if text.starts_with("regex:") {
        return None;
    }
    if let Some(advice) = host(text) {
        return Some(advice);
    }
    let regular = text.starts_with('^') || text.ends_with('$') || text.contains(".*");
    if regular || text.contains(['(', '|', '\\']) {
        return Some(
            "write `/users/{id}` or `/files/*`; a path may also be `regex:^/users/`".to_owned(),
        );
    }
    let (path, query) = match text.split_once(['?', '#']) {
        Some((path, _)) => (path, true),
        None => (text, false),
    };
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let last = segments.len() - 1;
    let mended = segments
        .iter()
        .enumerate()
        .map(|(at, segment)| match *segment {
            "**" => "*".to_owned(),
            "*" if at < last => "{name}".to_owned(),
            segment => match parameter_name(segment) {
                Some(name) => format!("{{{name}}}"),
                None => without_suffix(segment),
            },
        });
    let mended: Vec<String> = mended.collect();
    let mended = format!("/{}", mended.join("/"));
    let good = mended != text && PathPattern::parse(&mended).is_ok();
    let hint = if query {
        " (a limit may count by `query:NAME`)"
    } else {
        ""
    };
    good.then(|| format!("write `{mended}`{hint}"))
}

/// `http://example.com/login`, `example.com:8080`.
pub(super) fn host(text: &str) -> Option<String> {
    if let Some((_, rest)) = text.split_once("://") {
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let host = host.split(':').next().unwrap_or_default();
        return Some(match path.is_empty() {
            true => format!("leave the scheme out: `{host}`"),
            false => {
                format!("host and path are two settings: `host = \"{host}\"`, `path = \"/{path}\"`")
            }
        });
    }
    let (host, port) = text.rsplit_once(':')?;
    let is_host = port.parse::<u16>().is_ok() && HostPattern::parse(host).is_ok();
    is_host.then(|| format!("leave the port out: `{host}`"))
}

/// The name of a parameter as other programs write it, or with one brace: `:id`, `<int:id>`,
/// `[id]`, `{id`.
fn parameter_name(segment: &str) -> Option<&str> {
    let within = |open: char, close: char| segment.strip_prefix(open)?.strip_suffix(close);
    let name = segment
        .strip_prefix(':')
        .or_else(|| within('<', '>'))
        .or_else(|| within('[', ']'))
        .or_else(|| segment.strip_prefix('{').filter(|rest| !rest.contains('}')))
        .or_else(|| segment.strip_suffix('}').filter(|rest| !rest.contains('{')))?;
    Some(name.rsplit(':').next().unwrap_or(name))
}

/// A segment without the end that matching ignores.
fn without_suffix(segment: &str) -> String {
    let name = segment.split(';').next().unwrap_or_default();
    let escaped = name.to_ascii_lowercase().find("%3b");
    let name = &name[..escaped.unwrap_or(name.len())];
    match name.trim_end_matches(['.', ' ']) {
        "" => segment.to_owned(),
        name => name.to_owned(),
    }
}

/// `GET,POST`, `x client`.
fn http(text: &str) -> Option<String> {
    let words: Vec<&str> = text
        .split([',', '|', ' '])
        .filter(|one| !one.is_empty())
        .collect();
    if words.len() > 1
        && words
            .iter()
            .all(|word| word.bytes().all(|byte| byte.is_ascii_uppercase()))
    {
        let list: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
        return Some(format!("write a list: `[{}]`", list.join(", ")));
    }
    let joined = words.join("-").to_lowercase();
    (words.len() > 1).then(|| format!("names of headers have no spaces: `{joined}`?"))
}
