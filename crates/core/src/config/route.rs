//! One `[[route]]`: the requests that it takes, their target, and their cost.
//!
//! Every value is read and checked by itself; names are still names. `routes.rs` joins them.

mod forwarding;

use std::time::Duration;

use http::{HeaderName, Method};
use toml::de::DeValue;

use super::advice;
use super::diagnostic::{Code, Diagnostic, TextSpan};
use super::habits::nearest;
use super::reader::{Located, ValueKind};
use super::section::Section;
use super::values::{TextForm, UP_TO_A_DAY, header_name};
use crate::path::Case;
use crate::route::{CostSource, HeaderMatch, HostPattern, PathPattern, StatusSet, ValueMatch};
pub(super) use forwarding::RawForwarding;

/// A cost is below 2^32, as the units of a limit are.
const MAX_COST: u64 = u32::MAX as u64;

/// `[[route]]`
#[derive(Default)]
pub(super) struct RawRoute {
    pub(super) span: TextSpan,
    pub(super) name: Option<Located<String>>,
    pub(super) host: Option<HostPattern>,
    /// The text of `host`, for the route's name.
    pub(super) host_text: String,
    /// `None` if it could not be read.
    pub(super) path: Option<Located<PathPattern>>,
    pub(super) path_text: String,
    pub(super) case: Option<Case>,
    pub(super) methods: Vec<Method>,
    pub(super) headers: Vec<HeaderMatch>,
    pub(super) upstream: Option<Located<String>>,
    pub(super) limits: Option<Located<Vec<Located<String>>>>,
    /// `None` is a cost of 1.
    pub(super) cost: Option<Located<CostSource>>,
    pub(super) settle: Option<Located<HeaderName>>,
    pub(super) refund: Option<Located<StatusSet>>,
    pub(super) forwarding: RawForwarding,
    pub(super) timeout: Option<Duration>,
}

impl RawRoute {
    /// The place of its path, or its own.
    pub(super) fn path_span(&self) -> TextSpan {
        let path = self.path.as_ref();
        path.map_or_else(|| self.span.clone(), |path| path.span.clone())
    }
}

/// The words of `case`, for a route and for a whole file.
pub(super) const CASES: &[(&str, Case)] = &[
    ("sensitive", Case::Sensitive),
    ("insensitive", Case::Insensitive),
];

pub(super) fn read(mut section: Section<'_>) -> RawRoute {
    let name_form = TextForm::new(Code::BadName, "a route's name");
    let host_form = TextForm::new(Code::BadPattern, "a host");
    let cost_form = TextForm::new(Code::BadKey, "a cost");
    let host = section.text("host");
    let path = section.text("path");
    section.require("path", "path = \"/*\"");
    let text_of = |text: &Option<Located<String>>| {
        let text = text.as_ref().map(|text| text.value.clone());
        text.unwrap_or_default()
    };
    let route = RawRoute {
        span: section.span.clone(),
        name: section.parse("name", name_form, route_name),
        host_text: text_of(&host),
        host: host.and_then(|text| {
            let host = section.parse_text("host", text, host_form, HostPattern::parse)?;
            Some(host.value)
        }),
        path_text: text_of(&path),
        path: path.and_then(|text| path_pattern(&section, text)),
        case: section.optional_word("case", CASES).map(|case| case.value),
        methods: methods(&mut section),
        headers: headers(&mut section),
        upstream: section.text("upstream"),
        limits: section.texts("limits"),
        cost: cost(&mut section),
        settle: section.parse("settle", cost_form, settle_header),
        refund: refund(&mut section),
        forwarding: forwarding::read(&mut section),
        timeout: (section.optional_duration("timeout", UP_TO_A_DAY)).map(|timeout| timeout.value),
    };
    section.finish();
    route
}

fn route_name(text: &str) -> Result<String, &'static str> {
    let fits = (1..=128).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    fits.then(|| text.to_owned())
        .ok_or("1 to 128 characters, no control characters")
}

/// Reads `cost`: a number, or `"header:x-cost"`.
fn cost(section: &mut Section<'_>) -> Option<Located<CostSource>> {
    section.declare("cost", || ValueKind::IntegerOrText);
    let value = section.peek("cost");
    if !value.is_some_and(|value| value.get_ref().is_str()) {
        let number = section.optional_integer("cost", 0..=MAX_COST);
        return number.map(|number| number.map(CostSource::Fixed));
    }
    let form = TextForm::new(Code::BadKey, "a cost");
    let header = section.parse("cost", form, |text| {
        let name = text.strip_prefix("header:");
        header_name(name.ok_or("write a number, or `\"header:x-cost\"`")?)
    });
    header.map(|name| name.map(CostSource::Header))
}

/// Parses `response-header:x-cost`.
fn settle_header(text: &str) -> Result<HeaderName, &'static str> {
    let name = text.strip_prefix("response-header:");
    header_name(name.ok_or("the upstream says it; write `\"response-header:x-cost\"`")?)
}

/// Reads `refund = ["5xx", "404"]`.
fn refund(section: &mut Section<'_>) -> Option<Located<StatusSet>> {
    let allowed = "one or more; leave `refund` out for none";
    let texts = section.counted_texts("refund", 1..=usize::MAX, allowed)?;
    let span = texts.span.clone();
    let mut set = StatusSet::default();
    section.parse_all("refund", Some(texts), TextForm::STATUS, |text| {
        set.add(text)
    });
    Some(Located::new(set, &span))
}

/// Parses a path pattern. Its finding points to the wrong part of the pattern.
pub(super) fn path_pattern(
    section: &Section<'_>,
    text: Located<String>,
) -> Option<Located<PathPattern>> {
    match PathPattern::parse(&text.value) {
        Ok(value) => Some(Located::new(value, &text.span)),
        Err(error) => {
            // A text with escapes or variables differs from its spelling in the file.
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
            let message = format!("`{}` is not a path pattern", section.full_key("path"));
            Diagnostic::new(Code::BadPattern, message)
                .at_error(&span, &error)
                .maybe_help(advice::for_text(Code::BadPattern, &text.value))
                .report_to(section.reader);
            None
        }
    }
}

fn methods(section: &mut Section<'_>) -> Vec<Method> {
    let allowed = "one or more; leave `methods` out for all";
    let texts = section.counted_texts("methods", 1..=usize::MAX, allowed);
    let form = TextForm::new(Code::BadHttp, "a method");
    let mut methods = Vec::new();
    for method in section.parse_all("methods", texts, form, method) {
        if methods.contains(&method.value) {
            section.report_duplicate(format!("`{}` is named twice", method.value), &method);
        }
        methods.push(method.value);
    }
    methods
}

/// Methods are case-sensitive: `get` is another method, and surely a mistake.
fn method(text: &str) -> Result<Method, String> {
    const COMMON: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    let upper = text.to_ascii_uppercase();
    let fits = text == upper && text != "CONNECT";
    let method = Method::from_bytes(text.as_bytes()).ok().filter(|_| fits);
    method.ok_or_else(|| match nearest(&upper, COMMON) {
        Some(near) if text != "CONNECT" => format!("no such method; did you mean `{near}`?"),
        _ => "a method in upper case, and not `CONNECT`".to_owned(),
    })
}

/// Reads `headers = { "x-version" = "2", authorization = true }`.
fn headers(section: &mut Section<'_>) -> Vec<HeaderMatch> {
    section.declare("headers", || {
        ValueKind::Map(Box::new(ValueKind::BooleanOrText))
    });
    let section = section.section("headers");
    let mut matches: Vec<HeaderMatch> = Vec::new();
    for (key, value) in section.entries() {
        let written = key.value.clone();
        let name = section.parse_text(&written, key, TextForm::HEADER_NAME, header_name);
        let Some(name) = name else { continue };
        if matches.iter().any(|one| one.name == name.value) {
            section.report_duplicate(format!("`{}` is named twice", name.value), &name);
        }
        let wanted = match value.get_ref() {
            DeValue::Boolean(true) => Some(ValueMatch::Any),
            DeValue::String(_) => {
                let form = TextForm::new(Code::BadPattern, "a header's value");
                let parse = |text: &str| ValueMatch::parse(text.to_owned());
                let text = section.interpolated(value);
                let wanted = text
                    .and_then(|text| section.parse_text(name.value.as_str(), text, form, parse));
                wanted.map(|wanted| wanted.value)
            }
            _ => {
                section.wrong_type(name.value.as_str(), value, "a value, or `true` for any");
                None
            }
        };
        matches.extend(wanted.map(|value| HeaderMatch {
            name: name.value,
            value,
        }));
    }
    matches
}
