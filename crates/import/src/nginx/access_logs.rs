//! Translates `access_log` and `log_format`.

use super::scope::BlockScope;
use super::syntax::Directive;
use super::variables;
use crate::draft::Draft;
use crate::route::template::LineTemplate;
use crate::values::{TomlEntries, quote};

/// The form of nginx's logs without a `log_format`.
const COMBINED: &str = "{client_ip} - - [{common_time}] \"{method} {uri} {protocol}\" {status} \
                        {body_bytes_sent} \"{header:referer}\" \"{header:user-agent}\"";

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
    let has_option = |name| one.option(name).is_some();
    if has_option("if=") {
        return Err("a log has all requests of its routes".to_owned());
    }
    if has_option("gzip") {
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
    Ok(entries)
}

/// Translates the `log_format` of a log.
fn translate_format(one: &Directive, name: &str, scope: &BlockScope<'_>) -> Result<String, String> {
    let is_named = |format: &&Directive| format.arg(0) == name;
    let format = scope.http.named("log_format").filter(is_named).last();
    let format = format.ok_or_else(|| format!("there is no log_format {name}"))?;
    let escape = format.option("escape=");
    let text = format.args[1..].iter();
    let text = text.filter(|arg| !arg.starts_with("escape="));
    let line = variables::translate_line(&text.map(String::as_str).collect::<String>(), scope)?;
    LineTemplate::parse(&line).map_err(|error| error.to_string())?;
    if (escape == Some("json")) != line.starts_with("{{") || escape == Some("none") {
        one.differs("a form that begins with a brace has JSON's escapes, others have `\\x0A`");
    }
    Ok(line)
}
