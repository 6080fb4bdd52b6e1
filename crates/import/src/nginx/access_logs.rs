//! Translates `access_log` and `log_format`.

use http::StatusCode;

use super::scope::BlockScope;
use super::syntax::Directive;
use super::variables;
use crate::draft::Draft;
use crate::patterns;
use crate::route::Regex;
use crate::route::template::LineTemplate;
use crate::values::{TomlEntries, quote, quote_list};

/// The form of nginx's logs without a `log_format`.
const COMBINED: &str = "{client_ip} - {basic_user} [{common_time}] \
                        \"{method} {uri} {protocol}\" {status} {body_bytes_sent} \
                        \"{header:referer}\" \"{header:user-agent}\"";

/// Adds the logs that hold in a scope. Returns their names.
pub(super) fn add_logs(scope: &BlockScope<'_>, draft: &mut Draft) -> Vec<String> {
    let mut names = Vec::new();
    for one in scope.inherited("access_log") {
        if one.arg(0) == "off" {
            continue;
        }
        match translate(one, scope) {
            Ok(entries) => names.push(one.add_section(&mut draft.access_logs, "requests", entries)),
            Err(why) => one.lost(why),
        }
    }
    names
}

fn translate(one: &Directive, scope: &BlockScope<'_>) -> Result<TomlEntries, String> {
    let to = one.arg(0);
    if to.contains('$') || to.starts_with("syslog:") {
        return Err("a log is a file, or `stdout` or `stderr`".to_owned());
    }
    if one.option("gzip").is_some() {
        one.differs("logs are not compressed");
    }
    let line = match one.arg(1) {
        "" | "combined" => COMBINED.to_owned(),
        option if option.contains('=') => COMBINED.to_owned(),
        format => translate_format(one, format, scope)?,
    };
    if !to.starts_with("/dev/") {
        one.differs("the proxy's user must be allowed to write the file");
    }
    let mut entries = TomlEntries::default();
    entries.add(
        "to",
        quote(match to {
            "/dev/stdout" => "stdout",
            "/dev/stderr" => "stderr",
            file => file,
        }),
    );
    entries.add("format", quote(&line));
    if let Some(condition) = one.option("if=") {
        add_condition(one, condition, scope, &mut entries)?;
    }
    Ok(entries)
}

/// Translates `if=$loggable`.
fn add_condition(
    one: &Directive,
    condition: &str,
    scope: &BlockScope<'_>,
    entries: &mut TomlEntries,
) -> Result<(), String> {
    let map = condition
        .strip_prefix('$')
        .and_then(|name| scope.map(name))
        .filter(|map| map.name == "map");
    match map {
        Some(map) if map.map_source() == "status" => {
            let values = StatusValues::read(map)?;
            let mut statuses = values.listed();
            let all = statuses.len();
            statuses.retain(|status| is_usual(status) || values.names(status));
            if statuses.is_empty() {
                return Err("it is true for no registered status".to_owned());
            }
            if statuses.len() < all {
                one.differs("of classes that are not whole, only registered statuses are listed");
            }
            entries.add("status", quote_list(&statuses));
        }
        Some(map) => return Err(format!("{} is not of $status", map.line())),
        None => {
            let text = variables::translate_line(condition, scope)?;
            LineTemplate::parse_condition(&text).map_err(|error| error.to_string())?;
            entries.add("if", quote(&text));
        }
    }
    Ok(())
}

/// Whether a word is a class, a registered status, or that of a client that left.
fn is_usual(word: &str) -> bool {
    let status = word.parse::<StatusCode>();
    word.ends_with("xx")
        || word == "499"
        || status.is_ok_and(|status| status.canonical_reason().is_some())
}

/// The values of a map of `$status`.
struct StatusValues<'d> {
    lines: Vec<MappedStatus<'d>>,
    default: &'d str,
}

struct MappedStatus<'d> {
    pattern: StatusPattern<'d>,
    value: &'d str,
}

enum StatusPattern<'d> {
    Text(&'d str),
    Regex(Regex),
}

impl<'d> StatusValues<'d> {
    fn read(map: &'d Directive) -> Result<StatusValues<'d>, String> {
        let lines = map.map_lines().map(|line| {
            let regex = line.name.strip_prefix('~');
            let pattern = match regex {
                Some(regex) => {
                    let regex = regex.trim_start_matches('*');
                    StatusPattern::Regex(patterns::translate_regex(regex, false)?)
                }
                None => StatusPattern::Text(&line.name),
            };
            let value = line.arg(0);
            Ok(MappedStatus { pattern, value })
        });
        Ok(StatusValues {
            lines: lines.collect::<Result<_, String>>()?,
            default: map.map_default(),
        })
    }

    /// Returns the classes and statuses that have a value that is true.
    fn listed(&self) -> Vec<String> {
        let mut listed = Vec::new();
        for class in 1..=5 {
            let taken: Vec<u16> = (class * 100..class * 100 + 100)
                .filter(|status| self.is_true(*status))
                .collect();
            match taken.len() {
                100 => listed.push(format!("{class}xx")),
                _ => listed.extend(taken.iter().map(u16::to_string)),
            }
        }
        listed
    }

    /// Whether a line of the map is for this status alone.
    fn names(&self, status: &str) -> bool {
        let mut lines = self.lines.iter();
        lines.any(|line| matches!(line.pattern, StatusPattern::Text(text) if text == status))
    }

    /// Whether the value of a status is neither empty nor `0`. Texts come before expressions.
    fn is_true(&self, status: u16) -> bool {
        let status = status.to_string();
        let is_text = |line: &&MappedStatus<'_>| match &line.pattern {
            StatusPattern::Text(text) => *text == status,
            StatusPattern::Regex(_) => false,
        };
        let is_found = |line: &&MappedStatus<'_>| match &line.pattern {
            StatusPattern::Text(_) => false,
            StatusPattern::Regex(regex) => regex.is_in(status.as_bytes()),
        };
        let mut lines = self.lines.iter();
        let line = lines
            .find(is_text)
            .or_else(|| self.lines.iter().find(is_found));
        !matches!(line.map_or(self.default, |line| line.value), "" | "0")
    }
}

/// Translates the `log_format` of a log.
fn translate_format(one: &Directive, name: &str, scope: &BlockScope<'_>) -> Result<String, String> {
    let is_named = |format: &&Directive| format.arg(0) == name;
    let format = scope.http.named("log_format").filter(is_named).last();
    let format = format.ok_or_else(|| format!("there is no log_format {name}"))?;
    let escape = format.option("escape=");
    let text = format.args[1..].iter();
    let text = text.filter(|arg| !arg.starts_with("escape="));
    let text: String = text.map(String::as_str).collect();
    variables::note_differences(&text, one);
    let line = variables::translate_line(&text, scope)?;
    LineTemplate::parse(&line).map_err(|error| error.to_string())?;
    if (escape == Some("json")) != line.starts_with("{{") || escape == Some("none") {
        one.differs("a form that begins with a brace has JSON's escapes, others have `\\x0A`");
    }
    Ok(line)
}
