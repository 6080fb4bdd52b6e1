//! `if (..)`: what a condition requires of a request, in terms that routes have.

use super::client_certificates::{ServerCertificates, Shown};
use super::scope::{BlockScope, LocationPath};
use super::syntax::Directive;
use crate::draft::HeaderDraft;
use crate::patterns;
use crate::route::Regex;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Always,
    Never,
    /// Its method is one of these, or none of them if it is negated.
    Methods {
        list: Vec<String>,
        negated: bool,
    },
    Headers(Vec<HeaderTest>),
    /// The expression matches its host, or does not if it is negated.
    Host {
        regex: Regex,
        /// The only host that the expression matches.
        name: Option<String>,
        negated: bool,
    },
    /// The expression matches its path.
    Path(String),
    Any(Vec<Condition>),
    File,
    /// It shows no certificate.
    NoCertificate,
    /// No route can test it, for this reason.
    Untranslatable(String),
}

impl Condition {
    /// Returns the hosts that it names one by one.
    pub(super) fn named_hosts(&self) -> Vec<String> {
        match self {
            Condition::Host { name, .. } => name.iter().cloned().collect(),
            Condition::Any(list) => list.iter().flat_map(Condition::named_hosts).collect(),
            _ => Vec::new(),
        }
    }
}

/// Tests that a request has such a header, or that it has not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeaderTest {
    pub(super) header: HeaderDraft,
    pub(super) is_present: bool,
}

#[derive(Clone, Copy)]
pub(super) struct ConditionScope<'a> {
    pub(super) scope: &'a BlockScope<'a>,
    pub(super) path: &'a LocationPath<'a>,
    pub(super) tls: ServerTls,
}

#[derive(Clone, Copy)]
pub(super) struct ServerTls {
    /// Whether all requests use TLS; `None` if only some do.
    pub(super) secure: Option<bool>,
    pub(super) certificates: ServerCertificates,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Comparison<'t> {
    operand: Operand<'t>,
    negated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand<'t> {
    /// The variable is neither empty nor 0.
    True,
    Text(&'t str),
    Regex {
        regex: &'t str,
        any_case: bool,
    },
}

pub(super) fn parse_condition(one: &Directive, around: ConditionScope<'_>) -> Condition {
    let mut words: Vec<&str> = one.args.iter().map(String::as_str).collect();
    if let Some(first) = words.first_mut() {
        *first = first.strip_prefix('(').unwrap_or(first);
    }
    if let Some(last) = words.last_mut() {
        *last = last.strip_suffix(')').unwrap_or(last);
    }
    if words.len() > 1 && words.last() == Some(&"") && one.args.last().is_some_and(|a| a == ")") {
        words.pop();
    }
    if words.first() == Some(&"") {
        words.remove(0);
    }
    let (name, negated, operand) = match words[..] {
        [name] => (name, false, Operand::True),
        [name, "="] => (name, false, Operand::Text("")),
        [name, "!="] => (name, true, Operand::Text("")),
        [test, _] if test.trim_start_matches('!').starts_with('-') => return Condition::File,
        [name, operator, value] => {
            let any_case = operator.ends_with('*');
            let regex = value;
            let operand = match operator {
                "=" | "!=" => Operand::Text(value),
                "~" | "~*" | "!~" | "!~*" => Operand::Regex { regex, any_case },
                _ => return untranslatable("no such condition is known"),
            };
            (name, operator.starts_with('!'), operand)
        }
        _ => return untranslatable("no such condition is known"),
    };
    match name.strip_prefix('$') {
        Some(name) => variable_condition(name, Comparison { operand, negated }, around),
        None => untranslatable("only a single variable can be looked at"),
    }
}

fn untranslatable(why: impl Into<String>) -> Condition {
    Condition::Untranslatable(why.into())
}

fn variable_condition(
    name: &str,
    comparison: Comparison<'_>,
    around: ConditionScope<'_>,
) -> Condition {
    if matches!(comparison.operand, Operand::Text(text) if text.contains('$')) {
        return untranslatable("a route compares with fixed values only");
    }
    let secure = |yes, no| around.tls.secure.map(|is| if is { yes } else { no });
    match name {
        "request_method" => method_condition(comparison),
        "host" | "http_host" => host_condition(comparison),
        "server_name" => known_condition(Some(around.scope.server_name()), comparison),
        "scheme" => known_condition(secure("https", "http"), comparison),
        "https" => known_condition(secure("on", ""), comparison),
        "ssl_client_verify" => match around.tls.certificates.shown {
            Shown::Unknown => known_condition(None, comparison),
            Shown::Optional => certificate_condition(comparison),
            Shown::Always => known_condition(Some("SUCCESS"), comparison),
        },
        "uri" | "document_uri" => path_condition(comparison, around.path),
        "invalid_referer" => untranslatable("`valid_referers` has nothing like it here"),
        _ => {
            if let Some(condition) = assigned_condition(name, comparison, around) {
                return condition;
            }
            if let Some(map) = around.scope.map(name).filter(|map| map.name == "map") {
                return mapped_condition(map, comparison, around);
            }
            match name.split_once('_') {
                Some(("http", header)) => header_condition(&header.replace('_', "-"), comparison),
                Some(("cookie", cookie)) => cookie_condition(cookie, comparison),
                Some(("arg", parameter)) => {
                    header_condition(&format!("query:{parameter}"), comparison)
                }
                _ => untranslatable(format!("no route can ask for ${name}")),
            }
        }
    }
}

/// Evaluates a comparison with a value that is the same for all requests; `None` is a value that is
/// not.
fn known_condition(value: Option<&str>, comparison: Comparison<'_>) -> Condition {
    let Some(value) = value else {
        return untranslatable(
            "it is different from request to request, and routes do not know it",
        );
    };
    let equal = match comparison.operand {
        Operand::True => !matches!(value, "" | "0"),
        Operand::Text(text) => value == text,
        Operand::Regex { regex, any_case } => match patterns::translate_regex(regex, any_case) {
            Ok(regex) => regex.is_in(value.as_bytes()),
            Err(why) => return untranslatable(why),
        },
    };
    always_if(equal != comparison.negated)
}

/// Compares `$ssl_client_verify`. No handshake succeeds with a certificate that is not verified, so
/// it is SUCCESS or NONE.
fn certificate_condition(comparison: Comparison<'_>) -> Condition {
    let holds = |value| known_condition(Some(value), comparison);
    match (holds("SUCCESS"), holds("NONE")) {
        (Condition::Never, Condition::Always) => Condition::NoCertificate,
        (Condition::Always, Condition::Never) => {
            untranslatable("no route is only for clients with a certificate")
        }
        (same, _) => same,
    }
}

fn always_if(holds: bool) -> Condition {
    match holds {
        true => Condition::Always,
        false => Condition::Never,
    }
}

/// Methods of which an expression may match a part.
const METHODS: &str = "GET HEAD POST PUT DELETE OPTIONS PATCH TRACE PROPFIND PROPPATCH MKCOL COPY \
                       MOVE LOCK UNLOCK";

fn method_condition(comparison: Comparison<'_>) -> Condition {
    let mut list = match comparison.operand {
        Operand::True => return Condition::Always,
        Operand::Text(text) => vec![text.to_owned()],
        Operand::Regex { regex, any_case } => {
            let regex = match patterns::translate_regex(regex, any_case) {
                Ok(regex) => regex,
                Err(why) => return untranslatable(why),
            };
            let Some(mut list) = patterns::matched_texts(regex.as_str()) else {
                return untranslatable("not a list of methods");
            };
            if regex.as_str().contains("(?i") {
                // nginx refuses methods in lower case.
                list.retain(|text| !text.contains(|c: char| c.is_ascii_lowercase()));
            }
            let mut known: Vec<&str> = METHODS.split_whitespace().collect();
            known.retain(|one| regex.is_in(one.as_bytes()) && !list.iter().any(|it| it == one));
            list.extend(known.into_iter().map(str::to_owned));
            list
        }
    };
    let plain = |c: char| c.is_ascii_uppercase() || c == '-';
    let is_method = |one: &String| !one.is_empty() && one.chars().all(plain);
    if list.is_empty() || !list.iter().all(is_method) {
        return untranslatable("not a list of methods");
    }
    // The proxy refuses CONNECT by itself, and no route may name it.
    list.retain(|one| one != "CONNECT");
    let negated = comparison.negated;
    match list.is_empty() {
        true => always_if(negated),
        false => Condition::Methods { list, negated },
    }
}

fn host_condition(comparison: Comparison<'_>) -> Condition {
    let (regex, name) = match comparison.operand {
        Operand::True => return Condition::Always,
        Operand::Regex { regex, .. } => (regex.to_owned(), None),
        Operand::Text(text) => {
            let name = text.to_ascii_lowercase();
            (format!("^{}$", patterns::escape_regex(&name)), Some(name))
        }
    };
    match patterns::translate_regex(&regex, true) {
        Ok(regex) => Condition::Host {
            regex,
            name,
            negated: comparison.negated,
        },
        Err(why) => untranslatable(why),
    }
}

/// Returns the condition for the paths that a location has.
fn path_condition(comparison: Comparison<'_>, of: &LocationPath<'_>) -> Condition {
    let Some(prefix) = of.path else {
        return untranslatable("a route has one expression, and its location has one already");
    };
    let regex = match comparison.operand {
        Operand::Text(text) if !comparison.negated => {
            Ok(format!("^{}$", patterns::escape_regex(text)))
        }
        Operand::Regex { regex, any_case } if !comparison.negated => {
            patterns::widen_regex(regex, any_case)
        }
        _ => Err("a route's path cannot be one that is not found".to_owned()),
    };
    match regex {
        Ok(regex) if of.is_exact || prefix == "/" => Condition::Path(regex),
        Ok(regex) => match patterns::confine_regex(&regex, prefix) {
            Ok(Some(confined)) => Condition::Path(confined.text),
            Ok(None) => Condition::Never,
            Err(why) => untranslatable(why),
        },
        Err(why) => untranslatable(why),
    }
}

struct TestedHeader<'h>(&'h str);

impl TestedHeader<'_> {
    fn test(&self, value: Option<String>, is_present: bool) -> HeaderTest {
        let name = self.0.to_owned();
        let header = HeaderDraft { name, value };
        HeaderTest { header, is_present }
    }

    /// The header has such a value, or has not if this is negated.
    fn has(&self, value: String, negated: bool) -> Condition {
        Condition::Headers(vec![self.test(Some(value), !negated)])
    }

    fn has_or_is_missing(&self, value: String) -> Condition {
        Condition::Headers(vec![self.test(Some(value), true), self.test(None, false)])
    }
}

fn header_condition(name: &str, comparison: Comparison<'_>) -> Condition {
    let is_query = name.starts_with("query:");
    if !is_query && http::HeaderName::from_bytes(name.as_bytes()).is_err() {
        return untranslatable("not a header's name");
    }
    let header = TestedHeader(name);
    let exactly = |text: &str| match text.starts_with("regex:") {
        true => format!("regex:^{}$", patterns::escape_regex(text)),
        false => text.to_owned(),
    };
    match (comparison.operand, comparison.negated) {
        (Operand::True, _) => header.has("regex:[^0]|0.".to_owned(), false),
        (Operand::Text(""), false) => header.has_or_is_missing(String::new()),
        (Operand::Text(""), true) => header.has("regex:.".to_owned(), false),
        (Operand::Text(text), negated) => header.has(exactly(text), negated),
        (Operand::Regex { regex, any_case }, false) => {
            let wider = match patterns::widen_regex(regex, any_case) {
                Ok(wider) => wider,
                Err(why) => return untranslatable(why),
            };
            let parsed = patterns::translate_regex(&wider, false);
            let value = format!("regex:{wider}");
            match wider.as_str() {
                "^$" | "(?i)^$" => header.has_or_is_missing(String::new()),
                _ if parsed.is_ok_and(|regex| regex.is_in(b"")) => header.has_or_is_missing(value),
                _ => header.has(value, false),
            }
        }
        (Operand::Regex { regex, any_case }, true) => {
            match patterns::translate_regex(regex, any_case) {
                Ok(regex) if regex.is_in(b"") => {
                    untranslatable("a route cannot ask that a header is missing")
                }
                Ok(regex) => header.has(format!("regex:{}", regex.as_str()), true),
                Err(why) => untranslatable(why),
            }
        }
    }
}

fn cookie_condition(name: &str, comparison: Comparison<'_>) -> Condition {
    let name = patterns::escape_regex(name);
    let has = |rest: &str, negated: bool| {
        let value = format!("regex:(?:^|;\\s*){name}={rest}");
        TestedHeader("cookie").has(value, negated)
    };
    match (comparison.operand, comparison.negated) {
        (Operand::True, _) => has("(?:[^;0]|0[^;])", false),
        (Operand::Text(""), negated) => has("[^;]", !negated),
        (Operand::Text(text), negated) => {
            has(&format!("{}(?:;|$)", patterns::escape_regex(text)), negated)
        }
        (Operand::Regex { .. }, _) => untranslatable("a route does not search in a cookie's value"),
    }
}

/// Returns the condition of a variable that `set` assigns: the condition of the `if` in the same
/// block that assigns a matching value. `None` if the block does not assign the variable.
fn assigned_condition(
    name: &str,
    comparison: Comparison<'_>,
    around: ConditionScope<'_>,
) -> Option<Condition> {
    let sets = |one: &&Directive| one.name == "set" && one.arg(0).strip_prefix('$') == Some(name);
    let own: Vec<&Directive> = around.scope.block().inner().iter().filter(sets).collect();
    let ifs = around
        .scope
        .block()
        .inner()
        .iter()
        .filter(|one| one.name == "if");
    let in_ifs: Vec<(&Directive, &Directive)> = ifs
        .flat_map(|one| one.inner().iter().filter(sets).map(move |set| (one, set)))
        .collect();
    if own.is_empty() && in_ifs.is_empty() {
        return None;
    }
    let several = untranslatable("it is set in several steps");
    let mut all = own
        .iter()
        .copied()
        .chain(in_ifs.iter().map(|(_, set)| *set));
    if all.any(|set| set.arg(1).contains('$')) || own.len() > 1 {
        return Some(several);
    }
    let matches = |value: &str| known_condition(Some(value), comparison);
    let default = matches(own.first().map_or("", |set| set.arg(1)));
    if default != Condition::Never {
        return Some(several);
    }
    let mut any = Vec::new();
    for (one, set) in in_ifs {
        // Another value may undo an earlier assignment.
        if matches(set.arg(1)) != Condition::Always {
            return Some(several);
        }
        any.push(parse_condition(one, around));
    }
    Some(Condition::Any(any))
}

/// Returns the condition of a variable of `map`, as one expression for its source:
/// `map $http_user_agent $bad { default 0; ~*wget 1; }`.
fn mapped_condition(
    map: &Directive,
    comparison: Comparison<'_>,
    around: ConditionScope<'_>,
) -> Condition {
    let source = map.map_source();
    let is_plain = map.inner().iter().all(|line| {
        !matches!(line.name.as_str(), "include" | "hostnames" | "volatile") && line.args.len() == 1
    });
    let lines: Vec<_> = map.map_lines().collect();
    let is_fixed = lines.iter().all(|line| !line.arg(0).contains('$'));
    if !is_plain || !is_fixed || source.is_empty() || around.scope.map(source).is_some() {
        let line = map.line();
        return untranslatable(format!("{line} is made of what routes cannot ask"));
    }
    let matches = |value: &str| known_condition(Some(value), comparison) == Condition::Always;
    let default = matches(map.map_default());
    let differs = |value: &str| matches(value) != default;
    let differing: Vec<_> = lines.iter().filter(|line| differs(line.arg(0))).collect();
    if differing.is_empty() {
        return always_if(default);
    }
    // A line with the default's result may be an exception of the lines below it.
    if differing.len() < lines.len() {
        return untranslatable(format!("{} has exceptions", map.line()));
    }
    let regex_of = |pattern: &str| match (pattern.strip_prefix("~*"), pattern.strip_prefix('~')) {
        (Some(regex), _) => format!("(?i:{regex})"),
        (_, Some(regex)) => format!("(?:{regex})"),
        _ => {
            format!(
                "(?i:^{}$)",
                patterns::escape_regex(pattern.trim_start_matches('\\'))
            )
        }
    };
    let regexes: Vec<String> = lines.iter().map(|line| regex_of(&line.name)).collect();
    let operand = Operand::Regex {
        regex: &regexes.join("|"),
        any_case: false,
    };
    let negated = default;
    variable_condition(source, Comparison { operand, negated }, around)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_of_methods_is_a_list() {
        for (regex, any_case, expected) in [
            ("^(GET|HEAD)$", false, "GET HEAD"),
            ("^P(OST|UT|ATCH)$", false, "POST PUT PATCH"),
            ("^(?:PURGE|BAN)$", false, "PURGE BAN"),
            ("^(get|post)$", true, "GET POST"),
            ("(?i:^GET$)|(?i:^PUT$)", false, "GET PUT"),
            ("PUT|DELETE", false, "PUT DELETE"),
            ("^P", false, "P POST PUT PATCH PROPFIND PROPPATCH"),
            ("^P.*", false, ""),
            ("^[A-Z]+$", false, ""),
            ("^(get|post)$", false, ""),
            ("^$", false, ""),
        ] {
            let operand = Operand::Regex { regex, any_case };
            let negated = false;
            let found = match method_condition(Comparison { operand, negated }) {
                Condition::Methods { list, .. } => list.join(" "),
                _ => String::new(),
            };
            assert_eq!(found, expected, "{regex}");
        }
    }
}
