//! Warnings about settings that other settings make pointless, and about routes without requests.

use crate::config::compile::Compiled;
use crate::config::limits::DefinedLimit;
use crate::config::*;
use crate::limit::key::Part;
use crate::limit::{EnforcedShare, Limit, Missing};
use crate::route::Route;

pub(super) fn find(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    for defined in &compiled.definitions.limits {
        // A rate in place takes the default limit's key: that limit has the warning.
        let is_in_place = defined.name.span == defined.rate_span;
        if let Some(limit) = defined.limit.as_ref().filter(|_| !is_in_place) {
            check_limit(reader, defined, limit);
        }
    }
    if compiled.places.counts_here {
        check_outages(reader, compiled);
    }
    check_waiting(reader, compiled);
    let routes = compiled.config.routes.iter();
    for (route, at) in routes.zip(&compiled.definitions.route_places) {
        check_path(reader, route, &at.path);
    }
}

fn check_limit(reader: &ConfigReader<'_>, defined: &DefinedLimit, limit: &Limit) {
    let (name, key) = (&limit.name, &defined.key);
    let mut parts = key.value.parts.iter();
    if limit.missing != Missing::Ip && parts.all(|part| part.0.iter().any(Part::is_always_present))
    {
        no_effect(format!("`missing` of `limit.{name}` changes nothing"))
            .at(&key.span, "every request has this key")
            .help("leave `missing` out, or count by a key that a request may lack")
            .report_to(reader);
    }
    let is_global = key.value.all().all(|part| *part == Part::Global);
    if limit.enforce != EnforcedShare::ALL && is_global {
        no_effect(format!(
            "`enforce` of `limit.{name}` holds for all requests or for none"
        ))
        .at(
            &key.span,
            "all requests have one key, and a share is one of keys",
        )
        .help("count by a key of clients, or leave `enforce` out")
        .report_to(reader);
    }
}

/// Reports `on_error` of limits whose counts are in this process, where no outage is.
fn check_outages(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    let common = compiled.config.store.on_error;
    for defined in &compiled.definitions.limits {
        let limit = defined.limit.as_ref();
        if limit.is_some_and(|limit| limit.on_error != common) {
            let name = &defined.name.value;
            no_effect(format!("`on_error` of `limit.{name}` changes nothing"))
                .at(&defined.on_error_span, store::IN_PROCESS)
                .help(store::COUNT_IN_REDIS)
                .report_to(reader);
        }
    }
}

/// Reports a bound of held requests, if no limit holds any.
fn check_waiting(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    let Some(span) = &compiled.places.waiting else {
        return;
    };
    let mut limits = compiled.config.limits.iter();
    if !limits.any(|limit| limit.delay.is_some()) {
        no_effect("`server.waiting` changes nothing")
            .at(span, "no limit has `delay`, so no request waits")
            .help("leave it out, or write `delay` in a limit")
            .report_to(reader);
    }
}

/// Reports paths that no request has.
fn check_path(reader: &ConfigReader<'_>, route: &Route, span: &TextSpan) {
    let text = route.path.to_string();
    let doubt = match text.strip_prefix("regex:") {
        Some(expression) => doubt_about(expression),
        None if text == "/" && route.trailing_slash == Some(false) => Some(PathDoubt {
            why: "always ends with a slash",
            help: "leave `trailing_slash` out",
        }),
        None => None,
    };
    if let Some(doubt) = doubt {
        no_effect(format!("route `{}` probably gets no request", route.name))
            .at(span, doubt.why)
            .help(doubt.help)
            .report_to(reader);
    }
}

struct PathDoubt {
    why: &'static str,
    help: &'static str,
}

/// Why an expression is found in no usual path.
fn doubt_about(expression: &str) -> Option<PathDoubt> {
    let expression = expression.strip_prefix("(?i)").unwrap_or(expression);
    if expression.contains('|') {
        return None;
    }
    let bytes = expression.as_bytes();
    let is_optional = |at: usize| bytes.get(at).is_some_and(|byte| b"?*{".contains(byte));
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    if bytes.first() == Some(&b'^') && bytes.get(1).is_some_and(is_word) && !is_optional(2) {
        return Some(PathDoubt {
            why: "a path begins with `/`",
            help: "write a slash behind the `^`",
        });
    }
    if expression.contains(['[', '(']) {
        return None;
    }
    let is_escape = |at: &usize| {
        let digits = bytes.get(at + 1..at + 3);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    let mut percents = expression.match_indices('%').map(|(at, _)| at);
    if percents.any(|at| is_escape(&at) && !is_optional(at + 3)) {
        return Some(PathDoubt {
            why: "sees the path without escapes",
            help: "write the character for which the escape stands",
        });
    }
    let mut marks = expression.match_indices("\\?").map(|(at, _)| at);
    marks.any(|at| !is_optional(at + 2)).then_some(PathDoubt {
        why: "sees the path without the query",
        help: "write the parameters in `query` of the route",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_without_paths_are_doubted() {
        for text in [
            "^login$",
            "(?i)^api/",
            "^a+",
            "/a%20b",
            "/%2Egit",
            r"/a\?b=1",
        ] {
            assert!(doubt_about(text).is_some(), "{text}");
        }
        for text in [
            "^/login$",
            "login",
            "^l?/a",
            "^a|^/b",
            r"^\.",
            r"^/a(\?.*)?$",
            r"^/a\??$",
            "[%20]",
            "/100%$",
            "^.*/a",
        ] {
            assert!(doubt_about(text).is_none(), "{text}");
        }
    }
}
