//! `if (..)`: what a condition asks of a request, in words that routes have.

use super::expressions;
use super::maps::Made;
use super::passing::At;
use super::syntax::Directive;
use super::{Http, values};
use crate::route::Regex;

/// A header's name and what its value must be, as `headers` of a route says it; `None` for any.
pub(super) type HeaderWanted = (String, Option<String>);

/// What must hold for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    Always,
    Never,
    /// Its method is among these, or is not.
    Methods {
        list: Vec<String>,
        among: bool,
    },
    /// It has such a header.
    Header(HeaderWanted),
    /// It has no such header.
    NoHeader(HeaderWanted),
    /// It has a header that is empty, or none.
    Empty(String),
    /// It has such a header, or none.
    HeaderOrNone(HeaderWanted),
    /// Its host is (or is not) found by this expression, which may stand for one name.
    Host {
        regex: Regex,
        name: Option<String>,
        is: bool,
    },
    /// The expression is found in its path.
    Path(String),
    /// Any of these holds.
    Any(Vec<Asks>),
    /// A file is there, or is not.
    File,
    /// No route can ask it.
    Unsaid(String),
}

/// What is known where a condition stands.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    pub(super) http: &'a Http<'a>,
    /// Directives of the block that the condition stands in.
    pub(super) block: &'a [Directive],
    pub(super) at: At<'a>,
    /// Whether all requests come over TLS; nothing where only some do.
    pub(super) secure: Option<bool>,
    /// Whether clients without a certificate are turned away.
    pub(super) verified: bool,
}

/// How a variable is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test<'t> {
    /// It is neither empty nor 0.
    Truth,
    Is(&'t str),
    IsNot(&'t str),
    Found {
        regex: &'t str,
        any_case: bool,
    },
    NotFound {
        regex: &'t str,
        any_case: bool,
    },
}

/// Reads the condition of an `if`.
pub(super) fn asks(one: &Directive, around: Around<'_>) -> Asks {
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
    let (name, test) = match words[..] {
        [name] => (name, Test::Truth),
        [name, "="] => (name, Test::Is("")),
        [name, "!="] => (name, Test::IsNot("")),
        [test, _] if test.trim_start_matches('!').starts_with('-') => return Asks::File,
        [name, op, value] => {
            let any_case = op.ends_with('*');
            let test = match op {
                "=" => Test::Is(value),
                "!=" => Test::IsNot(value),
                "~" | "~*" => Test::Found {
                    regex: value,
                    any_case,
                },
                "!~" | "!~*" => Test::NotFound {
                    regex: value,
                    any_case,
                },
                _ => return unsaid("no such condition is known"),
            };
            (name, test)
        }
        _ => return unsaid("no such condition is known"),
    };
    match name.strip_prefix('$') {
        Some(name) => variable(name, test, around),
        None => unsaid("only a single variable can be looked at"),
    }
}

fn unsaid(why: &str) -> Asks {
    Asks::Unsaid(why.to_owned())
}

fn variable(name: &str, test: Test<'_>, around: Around<'_>) -> Asks {
    if matches!(test, Test::Is(text) | Test::IsNot(text) if text.contains('$')) {
        return unsaid("a route compares with fixed values only");
    }
    match name {
        "request_method" => methods(test),
        "host" | "http_host" | "server_name" => host(test),
        "scheme" => known(
            around.secure.map(|is| if is { "https" } else { "http" }),
            test,
        ),
        "https" => known(around.secure.map(|is| if is { "on" } else { "" }), test),
        "ssl_client_verify" => known(around.verified.then_some("SUCCESS"), test),
        "uri" | "document_uri" => path(test),
        "invalid_referer" => unsaid("`valid_referers` has nothing like it here"),
        _ => {
            if let Some(asks) = assigned(name, test, around) {
                return asks;
            }
            if let Some(Made::Map(map)) = around.http.maps.get(name) {
                return mapped(map, test, around);
            }
            match (name.strip_prefix("http_"), name.strip_prefix("cookie_")) {
                (Some(header), _) => self::header(&header.replace('_', "-"), test),
                (_, Some(cookie)) => self::cookie(cookie, test),
                _ => Asks::Unsaid(format!("no route can ask for ${name}")),
            }
        }
    }
}

/// Of what is known here the answer is known too.
fn known(value: Option<&str>, test: Test<'_>) -> Asks {
    let Some(value) = value else {
        return unsaid("it is different from request to request, and routes do not know it");
    };
    let found = |regex: &str, any_case| {
        expressions::read(regex, any_case).map(|one| one.is_in(value.as_bytes()))
    };
    let holds = match test {
        Test::Truth => Ok(!matches!(value, "" | "0")),
        Test::Is(text) => Ok(value == text),
        Test::IsNot(text) => Ok(value != text),
        Test::Found { regex, any_case } => found(regex, any_case),
        Test::NotFound { regex, any_case } => found(regex, any_case).map(|found| !found),
    };
    match holds {
        Ok(true) => Asks::Always,
        Ok(false) => Asks::Never,
        Err(why) => Asks::Unsaid(why),
    }
}

fn methods(test: Test<'_>) -> Asks {
    let (text, among) = match test {
        Test::Truth => return Asks::Always,
        Test::Is(text) => (text, true),
        Test::IsNot(text) => (text, false),
        Test::Found { regex, .. } => (regex, true),
        Test::NotFound { regex, .. } => (regex, false),
    };
    let is_regex = matches!(test, Test::Found { .. } | Test::NotFound { .. });
    let plain = |c: char| c.is_ascii_uppercase() || c == '-';
    let text = match is_regex {
        true => text.replace(['^', '$', '(', ')'], "").replace("?:", ""),
        false => text.to_owned(),
    };
    let list: Vec<String> = text.split('|').map(str::to_owned).collect();
    if !list
        .iter()
        .all(|one| !one.is_empty() && one.chars().all(plain))
    {
        return unsaid("not a list of methods");
    }
    // The proxy refuses CONNECT by itself, and no route may name it.
    let list: Vec<String> = list.into_iter().filter(|one| one != "CONNECT").collect();
    match (list.is_empty(), among) {
        (true, true) => Asks::Never,
        (true, false) => Asks::Always,
        _ => Asks::Methods { list, among },
    }
}

fn host(test: Test<'_>) -> Asks {
    let exactly = |text: &str| {
        Ok(format!(
            "^{}$",
            expressions::escape(&text.to_ascii_lowercase())
        ))
    };
    let (text, is, any_case): (Result<String, String>, _, _) = match test {
        Test::Truth => return Asks::Always,
        Test::Is(text) => (exactly(text), true, true),
        Test::IsNot(text) => (exactly(text), false, true),
        Test::Found { regex, .. } => (Ok(regex.to_owned()), true, true),
        Test::NotFound { regex, .. } => (Ok(regex.to_owned()), false, true),
    };
    let name = match test {
        Test::Is(text) | Test::IsNot(text) => Some(text.to_ascii_lowercase()),
        _ => None,
    };
    match text.and_then(|text| expressions::read(&text, any_case)) {
        Ok(regex) => Asks::Host { regex, name, is },
        Err(why) => Asks::Unsaid(why),
    }
}

fn path(test: Test<'_>) -> Asks {
    match test {
        Test::Is(text) => Asks::Path(format!("^{}$", expressions::escape(text))),
        Test::Found { regex, any_case } => match expressions::widened(regex, any_case) {
            Ok(text) => Asks::Path(text),
            Err(why) => Asks::Unsaid(why),
        },
        _ => unsaid("a route's path cannot be one that is not found"),
    }
}

fn header(name: &str, test: Test<'_>) -> Asks {
    if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
        return unsaid("not a header's name");
    }
    let regex = |text: &str| format!("regex:{text}");
    let wanted = |value: String| (name.to_owned(), Some(value));
    let exactly = |text: &str| match text.starts_with("regex:") {
        true => wanted(regex(&format!("^{}$", expressions::escape(text)))),
        false => wanted(text.to_owned()),
    };
    match test {
        Test::Truth => Asks::Header(wanted(regex("[^0]|0."))),
        Test::Is("") => Asks::Empty(name.to_owned()),
        Test::IsNot("") => Asks::Header(wanted(regex("."))),
        Test::Is(text) => Asks::Header(exactly(text)),
        Test::IsNot(text) => Asks::NoHeader(exactly(text)),
        Test::Found {
            regex: text,
            any_case,
        } => {
            let read = expressions::widened(text, any_case);
            match read.and_then(|text| Ok((expressions::read(&text, false)?, text))) {
                Ok((_, text)) if matches!(text.as_str(), "^$" | "(?i)^$") => {
                    Asks::Empty(name.to_owned())
                }
                Ok((read, text)) if read.is_in(b"") => Asks::HeaderOrNone(wanted(regex(&text))),
                Ok((_, text)) => Asks::Header(wanted(regex(&text))),
                Err(why) => Asks::Unsaid(why),
            }
        }
        Test::NotFound {
            regex: text,
            any_case,
        } => match expressions::read(text, any_case) {
            Ok(read) if read.is_in(b"") => unsaid("a route cannot ask that a header is missing"),
            Ok(read) => Asks::NoHeader(wanted(regex(read.as_str()))),
            Err(why) => Asks::Unsaid(why),
        },
    }
}

fn cookie(name: &str, test: Test<'_>) -> Asks {
    let begin = format!("(?:^|;\\s*){}=", expressions::escape(name));
    let wanted = |rest: &str| ("cookie".to_owned(), Some(format!("regex:{begin}{rest}")));
    let exactly = |text: &str| wanted(&format!("{}(?:;|$)", expressions::escape(text)));
    match test {
        Test::Truth => Asks::Header(wanted("(?:[^;0]|0[^;])")),
        Test::Is("") => Asks::NoHeader(wanted("[^;]")),
        Test::IsNot("") => Asks::Header(wanted("[^;]")),
        Test::Is(text) => Asks::Header(exactly(text)),
        Test::IsNot(text) => Asks::NoHeader(exactly(text)),
        _ => unsaid("a route does not search in a cookie's value"),
    }
}

/// A variable of `set`: where an `if` of the same block sets it so that the test holds.
fn assigned(name: &str, test: Test<'_>, around: Around<'_>) -> Option<Asks> {
    let sets = |one: &&Directive| one.name == "set" && one.arg(0).strip_prefix('$') == Some(name);
    let own: Vec<&Directive> = around.block.iter().filter(sets).collect();
    let within = around.block.iter().filter(|one| one.name == "if");
    let within: Vec<(&Directive, &Directive)> = within
        .flat_map(|one| one.inner().iter().filter(sets).map(move |set| (one, set)))
        .collect();
    if own.is_empty() && within.is_empty() {
        return None;
    }
    let several = unsaid("it is set in several steps");
    let all = own
        .iter()
        .copied()
        .chain(within.iter().map(|(_, set)| *set));
    if all.into_iter().any(|set| set.arg(1).contains('$')) || own.len() > 1 {
        return Some(several);
    }
    let holds = |value: &str| known(Some(value), test);
    let usual = holds(own.first().map_or("", |set| set.arg(1)));
    if usual != Asks::Never {
        return Some(several);
    }
    let mut any = Vec::new();
    for (one, set) in within {
        match holds(set.arg(1)) {
            Asks::Always => any.push(asks(one, around)),
            // It may be set back to what it was.
            _ => return Some(several),
        }
    }
    Some(Asks::Any(any))
}

/// `map $http_user_agent $bad { default 0; ~*wget 1; }`: the lines under which the test holds.
fn mapped(map: &Directive, test: Test<'_>, around: Around<'_>) -> Asks {
    let made = Made::Map(map);
    let source = made.source().strip_prefix('$').unwrap_or_default();
    let is_plain = map.inner().iter().all(|line| {
        !matches!(line.name.as_str(), "include" | "hostnames" | "volatile") && line.args.len() == 1
    });
    let values: Vec<(&str, &str)> = made.lines().collect();
    let fixed = values
        .iter()
        .all(|(_, value)| values::pieces(value).len() <= 1 && !value.contains('$'));
    if !is_plain || !fixed || source.is_empty() || around.http.maps.get(source).is_some() {
        return Asks::Unsaid(format!("{} is made of what routes cannot ask", map.line()));
    }
    let holds = |value: &str| known(Some(value), test) == Asks::Always;
    let mut found = Vec::new();
    for (fits, value) in &values {
        if holds(value) == holds(made.default()) {
            // A line that says the same as all others may be an exception of those below it.
            if values
                .iter()
                .any(|(_, other)| holds(other) != holds(made.default()))
            {
                return Asks::Unsaid(format!("{} has exceptions", map.line()));
            }
            continue;
        }
        found.push(match (fits.strip_prefix("~*"), fits.strip_prefix('~')) {
            (Some(regex), _) => format!("(?i:{regex})"),
            (_, Some(regex)) => format!("(?:{regex})"),
            _ => format!(
                "(?i:^{}$)",
                expressions::escape(fits.trim_start_matches('\\'))
            ),
        });
    }
    let regex = found.join("|");
    match (found.is_empty(), holds(made.default())) {
        (true, true) => Asks::Always,
        (true, false) => Asks::Never,
        (false, false) => {
            let test = Test::Found {
                regex: &regex,
                any_case: false,
            };
            variable(source, test, around)
        }
        (false, true) => {
            let test = Test::NotFound {
                regex: &regex,
                any_case: false,
            };
            variable(source, test, around)
        }
    }
}
