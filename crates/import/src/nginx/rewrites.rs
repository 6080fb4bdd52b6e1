//! `proxy_redirect` and `proxy_cookie_domain`, `_path` and `_flags`: what a route rewrites in
//! responses.

use super::scope::BlockScope;
use super::syntax::Directive;
use super::variables::{self, ValuePart};
use crate::draft::TargetDraft;
use crate::path::Case;
use crate::route::{CookieFlags, LocationBase, Replacement, TextRewrite};
use crate::values::{TomlEntries, inline_table, quote, quote_list};

type ReadRule = fn(&str, &str) -> Result<TextRewrite, String>;

/// Returns the fields of `rewrite_down`. `default` is the rule of `proxy_redirect default`.
/// `is_put_back` says which directives `replace_prefix` has done already.
pub(super) fn read_rewrites(
    scope: &BlockScope<'_>,
    default: Option<&str>,
    is_put_back: impl Fn(&Directive) -> bool,
) -> Vec<String> {
    let mut fields = Vec::new();
    let tables: [(&str, &str, ReadRule); 3] = [
        ("proxy_redirect", "location", TextRewrite::of_beginning),
        (
            "proxy_cookie_domain",
            "cookie_domain",
            TextRewrite::of_domain,
        ),
        (
            "proxy_cookie_path",
            "cookie_path",
            TextRewrite::of_beginning,
        ),
    ];
    for (name, key, read) in tables {
        let directives = scope.inherited(name);
        let default = default.filter(|_| key == "location").map(str::to_owned);
        let mut rules: Vec<String> = Vec::new();
        rules.extend(default.clone().filter(|_| directives.is_empty()));
        for one in directives {
            rules.extend(match one.args.len() {
                1 if one.arg(0) == "default" => default.clone(),
                2 if !is_put_back(one) => {
                    let rule = read_rule(one, scope, read);
                    rule.map_err(|why| one.lost(why)).ok()
                }
                _ => None,
            });
        }
        add_table(&mut fields, key, rules);
    }
    let flags = scope.inherited("proxy_cookie_flags").into_iter();
    let flags = flags.filter(|one| one.args.len() > 1).filter_map(|one| {
        let rule = read_flags(one, scope);
        rule.map_err(|why| one.lost(why)).ok()
    });
    add_table(&mut fields, "cookie_flags", flags.collect());
    fields
}

/// Adds what `rewrite ^/api/(.*)$ /v1/$1 break` does, in a location with this path.
pub(super) fn add_new_beginning(
    entries: &mut TomlEntries,
    path: &str,
    beginning: &str,
) -> Result<(), String> {
    let path = path.trim_end_matches('/');
    let (from, to) = (
        format!("{path}/"),
        format!("{}/", beginning.trim_end_matches('/')),
    );
    if to == "/" {
        entries.add("strip_prefix", quote(path));
        return Ok(());
    }
    Replacement::new(&from, &to, Case::Sensitive).map_err(str::to_owned)?;
    let fields = [
        format!("from = {}", quote(&from)),
        format!("to = {}", quote(&to)),
    ];
    entries.add_table("replace_prefix", &fields);
    Ok(())
}

/// Adds what nginx writes before the paths that it makes or rewrites itself.
pub(super) fn add_location_base(
    scope: &BlockScope<'_>,
    target: &TargetDraft,
    entries: &mut TomlEntries,
) {
    let makes_path = match target {
        TargetDraft::Redirect { to, .. } => !to.contains("://"),
        TargetDraft::Upstream(_) => entries.list.iter().any(|entry| match &*entry.key {
            "replace_prefix" => entry.value.contains("location = true"),
            // The rule that nginx has by itself leaves a path alone, which clients understand.
            "rewrite_down" if scope.last("proxy_redirect").is_none() => false,
            "rewrite_down" => entry.value.contains("location = "),
            _ => false,
        }),
        TargetDraft::Respond { .. } | TargetDraft::Closed(_) => false,
    };
    if !makes_path || scope.last_arg("absolute_redirect") == Some("off") {
        return;
    }
    let host = match scope.is_on("server_name_in_redirect") {
        true => scope.server_name(),
        false => "{host}",
    };
    let port = match scope.last_arg("port_in_redirect") {
        Some("off") => "",
        _ => "{port_part}",
    };
    let base = format!("{{scheme}}://{host}{port}");
    if LocationBase::parse(&base).is_ok() {
        entries.add("location_base", quote(&base));
    }
}

fn add_table(fields: &mut Vec<String>, key: &str, mut rules: Vec<String>) {
    let mut known: Vec<String> = Vec::new();
    // A table has each key once, and the first rule counts.
    rules.retain(|rule| {
        let old = rule.split(" = ").next().unwrap_or_default().to_owned();
        let is_new = !known.contains(&old);
        known.push(old);
        is_new
    });
    if !rules.is_empty() {
        fields.push(format!("{key} = {}", inline_table(&rules)));
    }
}

/// Returns `"OLD" = "NEW"`.
fn read_rule(one: &Directive, scope: &BlockScope<'_>, read: ReadRule) -> Result<String, String> {
    let from = old_text(one.arg(0), scope)?;
    let new = variables::expand_constants(one.arg(1), scope);
    // A place without scheme and host is on the same host.
    let own = [
        "${scheme}://${host}:${server_port}",
        "${scheme}://${http_host}",
        "${scheme}://${host}",
    ];
    let behind = own.iter().find_map(|own| new.strip_prefix(own));
    let new = behind.filter(|rest| rest.starts_with('/')).unwrap_or(&new);
    let mut to = String::new();
    for part in variables::split_variables(new) {
        match part {
            ValuePart::Text(text) if text.contains(['{', '}']) => {
                return Err("a new text has no braces".to_owned());
            }
            ValuePart::Text(text) => to.push_str(text),
            ValuePart::Variable(name) => to.push_str(&format!("{{{name}}}")),
        }
    }
    read(&from, &to)?;
    Ok(format!("{} = {}", quote(&from), quote(&to)))
}

/// Returns `NAME = ["secure"]`.
fn read_flags(one: &Directive, scope: &BlockScope<'_>) -> Result<String, String> {
    let name = old_text(one.arg(0), scope)?;
    let words: Vec<String> = one.args[1..]
        .iter()
        .map(|word| word.to_lowercase())
        .collect();
    CookieFlags::parse(&name, &words)?;
    Ok(format!("{} = {}", quote(&name), quote_list(&words)))
}

fn old_text(text: &str, scope: &BlockScope<'_>) -> Result<String, String> {
    if let Some(regex) = text.strip_prefix("~*") {
        return Ok(format!("regex:(?i){regex}"));
    }
    if let Some(regex) = text.strip_prefix('~') {
        return Ok(format!("regex:{regex}"));
    }
    let text = variables::expand_constants(text, scope);
    match variables::is_constant(&text) {
        true => Ok(text),
        false => Err("the old text depends on a variable".to_owned()),
    }
}
