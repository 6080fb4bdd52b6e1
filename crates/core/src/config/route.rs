//! One `[[route]]` as it is written: which requests it takes, where they go and what they weigh.
//!
//! Every value is read and checked by itself; names are still names. `routes.rs` joins them.

mod answer;
mod change;
mod passing;
mod weight;

use std::time::Duration;

use http::{HeaderName, Method};
use toml::de::DeValue;

use super::advice;
use super::diagnostic::{Code, Diagnostic, Span};
use super::reader::At;
use super::section::Section;
use super::slip::nearest;
use super::values::{TextForm, header_name, some_time};
use crate::path::Case;
use crate::route::{CostSource, HeaderMatch, HostPattern, PathPattern, StatusSet, ValueMatch};
pub(super) use passing::RawPassing;

/// `[[route]]`
pub(super) struct RawRoute {
    pub(super) span: Span,
    pub(super) name: Option<At<String>>,
    pub(super) host: At<HostPattern>,
    /// As written, for the route's name.
    pub(super) host_text: Option<String>,
    /// Nothing if it could not be read.
    pub(super) path: Option<At<PathPattern>>,
    pub(super) path_text: String,
    pub(super) case: Option<Case>,
    pub(super) methods: Vec<Method>,
    pub(super) headers: Vec<HeaderMatch>,
    pub(super) upstream: Option<At<String>>,
    pub(super) limits: Option<At<Vec<At<String>>>>,
    pub(super) cost: At<CostSource>,
    pub(super) settle: Option<At<HeaderName>>,
    pub(super) refund: Option<At<StatusSet>>,
    pub(super) passing: RawPassing,
    pub(super) timeout: Option<Duration>,
}

/// Words of `case`, for a route and for a whole file.
pub(super) const CASES: &[(&str, Case)] = &[
    ("sensitive", Case::Sensitive),
    ("insensitive", Case::Insensitive),
];

/// `[[route]]`
pub(super) fn route(mut section: Section<'_>) -> RawRoute {
    let name = section.parsed(
        "name",
        TextForm::new(Code::BadName, "a route's name"),
        |text| {
            let fits =
                (1..=128).contains(&text.chars().count()) && !text.chars().any(char::is_control);
            if fits {
                Ok(text.to_owned())
            } else {
                Err("1 to 128 characters, no control characters")
            }
        },
    );
    let host_text = section.text("host");
    let host = host_text.clone().and_then(|text| {
        section.understood(
            "host",
            text,
            TextForm::new(Code::BadPattern, "a host"),
            HostPattern::parse,
        )
    });
    let path_text = section.text("path");
    let path = path_text
        .clone()
        .and_then(|text| path_pattern(&section, text));
    if section.peek("path").is_none() {
        section.missing("path", "path = \"/*\"");
    }
    let case = section.word("case", CASES);
    let methods = methods(&mut section);
    let headers = headers(section.section("headers"));
    let upstream = section.text("upstream");
    let limits = section.texts("limits");
    let cost = weight::cost(&mut section);
    let settle = section.parsed(
        "settle",
        TextForm::new(Code::BadKey, "a cost"),
        weight::settle,
    );
    let refund = weight::refund(&mut section);
    let passing = passing::passing(&mut section);
    let timeout = section.length("timeout", some_time());
    let span = section.span.clone();
    section.finish();
    let host = host.unwrap_or(At {
        value: HostPattern::Any,
        span: span.clone(),
    });
    let host_text = host_text.map(|text| text.value);
    let path_text = path_text.map(|text| text.value).unwrap_or_default();
    RawRoute {
        span,
        name,
        host,
        host_text,
        path,
        path_text,
        case,
        methods,
        headers,
        upstream,
        limits,
        cost,
        settle,
        refund,
        passing,
        timeout: timeout.map(|timeout| timeout.value),
    }
}

/// A path pattern, with what is wrong pointed at within it.
pub(super) fn path_pattern(section: &Section<'_>, text: At<String>) -> Option<At<PathPattern>> {
    match PathPattern::parse(&text.value) {
        Ok(value) => Some(At {
            value,
            span: text.span,
        }),
        Err(error) => {
            // Only a text without escapes and variables lies in the file as it was parsed.
            let at = text.span.start + 1 + error.at;
            let literal = section
                .reader
                .text
                .get(text.span.start + 1..text.span.end - 1);
            let exact = literal == Some(text.value.as_str()) && at < text.span.end - 1;
            let span = if exact {
                at..text.span.end - 1
            } else {
                text.span.clone()
            };
            let message = format!("`{}` is not a path pattern", section.full("path"));
            let diagnostic = Diagnostic::new(Code::BadPattern, message)
                .because(&span, &error)
                .maybe_help(advice::of(Code::BadPattern, &text.value));
            section.reader.report(diagnostic);
            None
        }
    }
}

fn methods(section: &mut Section<'_>) -> Vec<Method> {
    const COMMON: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    let mut methods = Vec::new();
    let Some(texts) = section.texts("methods") else {
        return methods;
    };
    if texts.value.is_empty() {
        section.out_of_range_at(
            "methods",
            &texts,
            "one or more; leave `methods` out for all",
        );
    }
    for text in texts.value {
        // Methods are case-sensitive: `get` is another method, which nobody means.
        let upper = text.value.to_ascii_uppercase();
        let span = text.span.clone();
        let kind = TextForm::new(Code::BadHttp, "a method");
        let method = section.understood("methods", text, kind, |text| {
            let fits = text == upper && text != "CONNECT";
            let method = Method::from_bytes(text.as_bytes()).ok().filter(|_| fits);
            method.ok_or_else(|| match nearest(&upper, COMMON) {
                Some(near) if text != "CONNECT" => {
                    format!("no such method; did you mean `{near}`?")
                }
                _ => "a method in upper case, and not `CONNECT`".to_owned(),
            })
        });
        let Some(method) = method else { continue };
        if methods.contains(&method.value) {
            let message = format!("`{}` is named twice", method.value);
            section
                .reader
                .report(Diagnostic::new(Code::Duplicate, message).at(&span, ""));
        }
        methods.push(method.value);
    }
    methods
}

/// `headers = { "x-version" = "2", authorization = true }`
fn headers(section: Section<'_>) -> Vec<HeaderMatch> {
    let mut matches: Vec<HeaderMatch> = Vec::new();
    for (key, value) in section.entries() {
        let name = key.value.clone();
        let kind = TextForm::HEADER_NAME;
        let Some(name) = section.understood(&name, key, kind, header_name) else {
            continue;
        };
        if matches.iter().any(|one| one.name == name.value) {
            let message = format!("`{}` is named twice", name.value);
            section
                .reader
                .report(Diagnostic::new(Code::Duplicate, message).at(&name.span, ""));
        }
        let wanted = match value.get_ref() {
            DeValue::Boolean(true) => ValueMatch::Any,
            DeValue::String(_) => {
                let kind = TextForm::new(Code::BadPattern, "a header's value");
                let text = section.filled(value);
                let wanted = text.and_then(|text| {
                    section.understood(name.value.as_str(), text, kind, |text| {
                        ValueMatch::parse(text.to_owned())
                    })
                });
                match wanted {
                    Some(wanted) => wanted.value,
                    None => continue,
                }
            }
            _ => {
                section.wrong_type(name.value.as_str(), value, "a value, or `true` for any");
                continue;
            }
        };
        matches.push(HeaderMatch {
            name: name.value,
            value: wanted,
        });
    }
    matches
}
