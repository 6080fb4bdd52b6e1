//! The intended setting behind a key or a value that cannot be used as it stands. It is guessed
//! from the spelling, from the kind of the value, and from the settings of other programs. Pure.

use toml::de::DeValue;

use super::reference;

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

/// A key of another program, and the setting of ours that does the same.
struct Habit {
    section: &'static str,
    /// Separated by spaces.
    keys: &'static str,
    advice: &'static str,
}

const fn habit(section: &'static str, keys: &'static str, advice: &'static str) -> Habit {
    Habit {
        section,
        keys,
        advice,
    }
}

const UPSTREAM: &str = "where requests go is `upstream = \"http://127.0.0.1:3000\"`";

const HABITS: &[Habit] = &[
    habit(
        "limit.NAME",
        "burst nodelay delay",
        "a rate lets its whole count through at once; to bound a burst, add a rate with a short \
         window: `rate = [\"100/min\", \"10/s\"]`",
    ),
    habit(
        "limit.NAME",
        "average period requests_per_unit unit requests per window count limit interval duration \
         max seconds per_second requests_per_second requests_per_minute rps rpm",
        "a rate is one text, with its window: `rate = \"100/min\"`",
    ),
    habit(
        "limit.NAME",
        "by keys limit_by group_by source per_ip",
        "what requests are counted by is `key`, for example `key = \"ip\"`",
    ),
    habit(
        "limit.NAME",
        "dry_run dryrun log_only report_only monitor",
        "count without denying by `shadow = true`",
    ),
    habit(
        "limit.NAME",
        "fail_open failure_mode failure_mode_deny",
        "what an outage means is `on_error = \"local\"`, `\"allow\"` or `\"deny\"`",
    ),
    habit(
        "limit.NAME",
        "whitelist allowlist skip except",
        "whom a limit leaves alone is `exempt = [\"10.0.0.0/8\"]`",
    ),
    habit(
        "route",
        "rate key",
        "limits have a `rate` and a `key`; a route names them, or a rate in place: `limits = \
         [\"100/min\"]`",
    ),
    habit("route", "limit", "did you mean `limits`?"),
    habit(
        "route",
        "rewrite strip path_prefix",
        "did you mean `strip_prefix`, or `add_prefix`?",
    ),
    habit(
        "route",
        "proxy_pass target backend service to url",
        UPSTREAM,
    ),
    habit(
        "route",
        "status return body",
        "an answer without upstream is `respond = { status = 404, body = \"gone\" }`",
    ),
    habit("route", "method", "did you mean `methods`?"),
    habit(
        "upstream.NAME",
        "url urls server target targets hosts address",
        "did you mean `servers`?",
    ),
    habit(
        "upstream.NAME",
        "lb load_balancing policy strategy",
        "did you mean `balance`?",
    ),
    habit(
        "upstream.NAME",
        "health_check healthcheck check",
        "did you mean `health`?",
    ),
    habit(
        "",
        "redis",
        "where counts live is `[store]`: `url = \"redis://HOST:6379\"`",
    ),
    habit(
        "",
        "port bind address addr",
        "did you mean `listen = \":8080\"`?",
    ),
    habit("", "backend backends target proxy_pass to", UPSTREAM),
    habit(
        "",
        "rate rate_limit ratelimit key",
        "a limit is a section: `[limit.default]` with `rate` and `key`",
    ),
    habit(
        "",
        "cert certificate certificates ssl",
        "TLS has a section: `[tls]` with `listen` and `certificates`",
    ),
    habit(
        "",
        "otel opentelemetry otlp telemetry trace traces",
        "traces have a section: `[tracing]` with `endpoint = \"http://127.0.0.1:4318\"`",
    ),
    habit(
        "tracing",
        "url exporter collector address",
        "did you mean `endpoint`?",
    ),
    habit(
        "tracing",
        "sampling ratio rate sampler sample_rate",
        "did you mean `sample`? It is a share: `sample = 0.01`",
    ),
    habit(
        "tracing",
        "headers token authorization",
        "headers may be secrets: `headers_file = \"/run/secrets/otlp-headers\"`",
    ),
    habit("tracing", "interval", "did you mean `every`?"),
    habit(
        "",
        "workers threads",
        "it is a setting of `[server]`: `workers = 4`",
    ),
    habit(
        "store",
        "host port address addr redis",
        "where Redis is is one URL: `url = \"redis://HOST:6379\"`",
    ),
    habit(
        "store",
        "password pass",
        "a password stands in the URL, `redis://:${PASSWORD}@HOST`, or in `password_file`",
    ),
];

/// The advice for a key that a section does not have.
pub(super) fn key_help(section: &str, key: &str, value: &DeValue<'_>) -> Option<String> {
    let is_it = |habit: &&Habit| {
        habit.section == section && habit.keys.split(' ').any(|other| other == key)
    };
    if let Some(habit) = HABITS.iter().find(is_it) {
        return Some(habit.advice.to_owned());
    }
    letter_case_help(section, key).or_else(|| section_help(section, key, value))
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

/// The name of the first table in a table.
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
                "say in how long: `{key} = \"{count}/min\"` or `\"{count}/s\"`"
            ));
        }
        ("route", "limits", DeValue::Table(_)) => {
            "a limit with a `key` has a section, `[limit.login]`, and is named here: `limits = \
             [\"login\"]`"
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

#[cfg(test)]
mod tests {
    use toml::de::DeTable;

    use super::*;

    fn help(text: &str) -> Option<String> {
        let table = DeTable::parse(text).unwrap();
        let (name, found) = table.get_ref().iter().next().unwrap();
        key_help("", name.get_ref(), found.get_ref())
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
                .map(|(_, value)| intended_boolean(value.get_ref()));
            value.unwrap()
        };
        assert_eq!(read("a = \"yes\""), Some(true));
        assert_eq!(read("a = \" Off\""), Some(false));
        assert_eq!(read("a = 1"), Some(true));
        assert_eq!(read("a = 2"), None);
        assert_eq!(read("a = \"maybe\""), None);
    }
}
