//! Changes of paths and headers on their way, and answers in place of an upstream.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONNECTION;
use http::{HeaderValue, Method, StatusCode};
use toml::Spanned;
use toml::de::DeValue;

use crate::config::*;
use crate::path::Case;
use crate::route::template::{BodyTemplate, Template};
use crate::route::{
    Action, Bandwidth, CookieFlags, Direction, Expires, ExpiryStart, HeaderChange, HeaderText,
    LocationBase, Redirect, Replacement, Respond, RespondBody, ResponseRewrites, Target,
    TextRewrite, method_of,
};

/// Changes of one kind of head, at most.
const MAX_CHANGES: usize = 64;
/// Bytes of an answer's body, at most.
const MAX_BODY: usize = 1 << 20;
pub(in crate::config) const REDIRECT_STATUSES: [u16; 5] = [301, 302, 303, 307, 308];

/// Settings that need an upstream.
pub(in crate::config) const UPSTREAM_KEYS: [&str; 14] = [
    "upstream",
    "strip_prefix",
    "add_prefix",
    "replace_prefix",
    "body_limit",
    "bandwidth",
    "bandwidth_after",
    "method_up",
    "pass_headers",
    "pass_body",
    "headers_up",
    "rewrite_down",
    "timeout",
    "usage",
];

fn header_text(
    section: &Section<'_>,
    key: &str,
    value: &Spanned<DeValue<'_>>,
) -> Option<HeaderText> {
    let text = section.interpolated(value)?;
    let form = TextForm::new(Code::BadTemplate, "a header's value");
    let text = section.parse_text(key, text, form, HeaderText::parse)?;
    Some(text.value)
}

/// Reads the actions of one header. A key that begins with `+` adds values.
fn actions(
    section: &Section<'_>,
    key: &str,
    value: &Spanned<DeValue<'_>>,
    direction: Direction,
) -> Vec<Action> {
    let adds = key.starts_with('+');
    match value.get_ref() {
        DeValue::Boolean(false) if !adds && direction != Direction::Trailer => vec![Action::Remove],
        DeValue::String(_) => {
            let text = header_text(section, key, value);
            let action = if adds { Action::Add } else { Action::Set };
            text.map(action).into_iter().collect()
        }
        DeValue::Array(list) if adds && !list.is_empty() => {
            let texts = list.iter().filter_map(|one| header_text(section, key, one));
            texts.map(Action::Add).collect()
        }
        _ => {
            let wanted = match direction {
                Direction::Trailer => "a value, or with `+` a list of values",
                _ => "a value, `false` to remove it, or with `+` a list of values",
            };
            section.wrong_type(key, value, wanted);
            Vec::new()
        }
    }
}

/// Reads `{ "x-a" = "set", "+x-b" = "added", "x-c" = false }`, in the file's order.
pub(super) fn header_changes(
    section: &mut Section<'_>,
    key: &'static str,
    direction: Direction,
) -> Vec<Located<HeaderChange>> {
    let only_success = key == "headers_success";
    section.declare(key, || ValueKind::Map(Box::new(ValueKind::FalseOrTexts)));
    let section = section.section(key);
    let mut found: Vec<Located<HeaderChange>> = Vec::new();
    for (key, value) in section.entries() {
        let written = key.value.clone();
        let name = written.strip_prefix('+').unwrap_or(&written);
        let name = Located::new(name.to_owned(), &key.span);
        let form = TextForm::HEADER_NAME;
        let Some(name) = section.parse_text(&written, name, form, header_name) else {
            continue;
        };
        if let Err(why) = HeaderChange::may_touch(&name.value, direction) {
            Diagnostic::new(
                Code::BadHttp,
                format!("`{}` cannot be changed here", name.value),
            )
            .at_error(&name.span, &why)
            .report_to(section.reader);
            continue;
        }
        let actions = actions(&section, &written, value, direction);
        let Some(action) = actions.first() else {
            continue;
        };
        let adds = matches!(action, Action::Add(_));
        if name.value == CONNECTION && !may_close(action) {
            Diagnostic::new(Code::BadHttp, "`connection` can only be `close`")
                .at(&name.span, "")
                .help("write `connection = \"close\"`, or leave it out")
                .report_to(section.reader);
            continue;
        }
        let is_same = |one: &&Located<HeaderChange>| {
            one.value.name == name.value && matches!(one.value.action, Action::Add(_)) == adds
        };
        if let Some(first) = found.iter().find(is_same) {
            duplicate(format!("`{written}` twice"))
                .at(&name.span, "")
                .at(&first.span, "first here")
                .report_to(section.reader);
        }
        for action in actions {
            let change = |name| HeaderChange {
                name,
                action,
                only_success,
            };
            found.push(name.clone().map(change));
        }
    }
    if found.len() > MAX_CHANGES {
        let message = format!("`{}` has more than {MAX_CHANGES} headers", section.name());
        Diagnostic::new(Code::OutOfRange, message)
            .at(&section.span, "")
            .report_to(section.reader);
    }
    found
}

/// Whether a change of `Connection` may close the upstream's connection after the response.
fn may_close(action: &Action) -> bool {
    match action {
        Action::Set(HeaderText::Fixed(value)) => value == "close",
        Action::Set(HeaderText::Made(_)) => true,
        Action::Add(_) | Action::Remove => false,
    }
}

pub(super) fn answer(section: &mut Section<'_>) -> Option<Target> {
    if section.has("respond") && section.has("redirect") {
        contradiction("a route gives one answer")
            .at(&section.key_span("redirect"), "")
            .at(&section.key_span("respond"), "")
            .report_to(section.reader);
    }
    let respond = respond(section);
    redirect(section).or(respond)
}

fn respond(outer: &mut Section<'_>) -> Option<Target> {
    let is_given = outer.has("respond");
    let mut section = outer.section("respond");
    let status = section.optional_integer("status", 200..=599);
    let has_variables = section.optional_boolean("variables").unwrap_or(false);
    let body = match has_variables {
        true => {
            let form = TextForm::new(Code::BadTemplate, "a body with variables");
            let template = section.parse("body", form, BodyTemplate::parse);
            template.map(RespondBody::Made)
        }
        false => section
            .text("body")
            .map(|text| RespondBody::Fixed(text.into())),
    };
    let form = TextForm::new(Code::BadHttp, "a media type");
    let content_type = section.parse("content_type", form, media_type);
    if matches!(status, Some(204 | 205 | 304 | Respond::CLOSED)) && body.is_some() {
        let message = format!(
            "an answer of status {} has no body",
            status.unwrap_or_default()
        );
        contradiction(message)
            .at(&section.value_span("body"), "")
            .at(&section.value_span("status"), "")
            .report_to(section.reader);
    }
    if matches!(&body, Some(RespondBody::Fixed(bytes)) if bytes.len() > MAX_BODY) {
        section.out_of_range("body", "1 MiB at most");
    }
    section.finish();
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    let content_type = content_type.or(body.is_some().then_some(plain));
    let body = body.unwrap_or(RespondBody::Fixed(Bytes::new()));
    let target = Respond {
        status: status_code(status).unwrap_or(StatusCode::OK),
        body: match &content_type {
            Some(media_type) => body.of_type(media_type),
            None => body,
        },
        content_type,
    };
    is_given.then(|| Target::Respond(Box::new(target)))
}

pub(in crate::config) fn media_type(text: &str) -> Result<HeaderValue, &'static str> {
    let is_type = text.contains('/') && !text.contains(['{', '}']);
    let value = HeaderValue::from_str(text).ok().filter(|_| is_type);
    value.ok_or("write for example `text/plain; charset=utf-8`")
}

fn status_code(status: Option<u16>) -> Option<StatusCode> {
    StatusCode::from_u16(status?).ok()
}

/// Reads `redirect = "https://{host}{uri}"`, or `{ to = "..", status = 308 }`.
fn redirect(outer: &mut Section<'_>) -> Option<Target> {
    const FORM: TextForm = TextForm::new(Code::BadTemplate, "a place to send clients to");
    outer.declare("redirect", || ValueKind::TextOrTable);
    let written = outer.peek("redirect").map(|value| value.get_ref());
    let to = if written.is_some_and(DeValue::is_str) {
        outer.parse("redirect", FORM, |text| {
            Redirect::new(text, StatusCode::FOUND)
        })
    } else {
        let mut section = outer.section("redirect");
        let status = section.optional_integer("status", 301..=308);
        if status.is_some_and(|status| !REDIRECT_STATUSES.contains(&status)) {
            section.out_of_range("status", "301, 302, 303, 307, 308");
        }
        let status = status_code(status).unwrap_or(StatusCode::FOUND);
        let to = section.parse("to", FORM, |text| Redirect::new(text, status));
        if written.is_some_and(DeValue::is_table) {
            section.require("to", "to = \"https://{host}{uri}\"");
        }
        section.finish();
        to
    };
    to.map(|to| Target::Redirect(Box::new(to)))
}

/// Reads `bandwidth = "1MiB/s"` and `bandwidth_after = "10MiB"`.
pub(super) fn bandwidth(section: &mut Section<'_>) -> Option<Bandwidth> {
    const FORM: TextForm = TextForm::new(Code::BadQuantity, "bytes per second");
    section.declare("bandwidth", || ValueKind::Bandwidth);
    let bandwidth = section.parse("bandwidth", FORM, Bandwidth::parse);
    let after = section.optional_size("bandwidth_after");
    if after.is_some() && !section.has("bandwidth") {
        contradiction("`bandwidth_after` has no effect without `bandwidth`")
            .at(&section.key_span("bandwidth_after"), "")
            .report_to(section.reader);
    }
    Some(bandwidth?.sent_before(after.unwrap_or(0)))
}

/// Reads `expires = "1h"` and `expires_from = "modified"`.
pub(super) fn expires(section: &mut Section<'_>) -> Option<Expires> {
    const STARTS: &[(&str, ExpiryStart)] = &[
        ("response", ExpiryStart::Response),
        ("modified", ExpiryStart::Modified),
    ];
    const MOST: Duration = Duration::from_secs(10 * 365 * 86_400);
    let after = section.optional_duration("expires", Duration::ZERO..=MOST);
    let from = section.word("expires_from", STARTS);
    if from == ExpiryStart::Modified && !section.has("expires") {
        no_effect("`expires_from` changes nothing without `expires`")
            .at(&section.key_span("expires_from"), "")
            .help("say how long responses may be kept, for example `expires = \"1h\"`")
            .report_to(section.reader);
    }
    Some(Expires {
        after_s: i64::try_from(after?.as_secs()).ok()?,
        from,
    })
}

/// Reads `method_up = "POST"`.
pub(super) fn method(section: &mut Section<'_>) -> Option<Template> {
    let form = TextForm::new(Code::BadTemplate, "a method");
    section.parse("method_up", form, |text| -> Result<Template, String> {
        let template = Template::parse(text).map_err(|error| error.to_string())?;
        match template.fixed().map(method_of) {
            Some(Err(why)) => Err(why.to_string()),
            Some(Ok(Method::HEAD | Method::CONNECT | Method::TRACE)) => {
                Err("a method whose responses may have a body".to_owned())
            }
            _ => Ok(template),
        }
    })
}

/// Reads `location_base`.
pub(super) fn location_base(section: &mut Section<'_>) -> Option<LocationBase> {
    let form = TextForm::new(Code::BadTemplate, "what stands before a path");
    let base = section.parse("location_base", form, LocationBase::parse);
    let places = ["redirect", "rewrite_down", "replace_prefix"];
    if base.is_some() && !places.iter().any(|key| section.has(key)) {
        no_effect("`location_base` changes nothing")
            .at(
                &section.key_span("location_base"),
                "the route changes no `Location`",
            )
            .help("write it beside `redirect`, `rewrite_down` or `replace_prefix`")
            .report_to(section.reader);
    }
    base
}

/// Reads `rewrite_down`: tables of old and new texts, and of the flags of cookies.
pub(super) fn response_rewrites(outer: &mut Section<'_>) -> Option<ResponseRewrites> {
    let mut section = outer.section("rewrite_down");
    let rewrites = ResponseRewrites {
        locations: text_rewrites(&mut section, "location", TextRewrite::of_beginning),
        cookie_domains: text_rewrites(&mut section, "cookie_domain", TextRewrite::of_domain),
        cookie_paths: text_rewrites(&mut section, "cookie_path", TextRewrite::of_beginning),
        cookie_flags: cookie_flags(&mut section),
    };
    section.finish();
    (!rewrites.is_empty()).then_some(rewrites)
}

/// Reads `{ "http://10.0.1.10/" = "/" }`, in the file's order.
fn text_rewrites(
    outer: &mut Section<'_>,
    key: &'static str,
    new_rule: impl Fn(&str, &str) -> Result<TextRewrite, String>,
) -> Vec<TextRewrite> {
    outer.declare(key, || ValueKind::Map(Box::new(ValueKind::Text)));
    let section = outer.section(key);
    let form = TextForm::new(Code::BadTemplate, "a new text");
    let entries = section.entries().into_iter();
    let rewrites = entries.filter_map(|(from, value)| {
        if !value.get_ref().is_str() {
            section.wrong_type(&from.value, value, "a text");
            return None;
        }
        let to = section.interpolated(value)?;
        let rule = |to: &str| new_rule(&from.value, to);
        Some(section.parse_text(&from.value, to, form, rule)?.value)
    });
    rewrites.collect()
}

/// Reads `{ session = ["secure", "samesite=lax"] }`.
fn cookie_flags(outer: &mut Section<'_>) -> Vec<CookieFlags> {
    const KEY: &str = "cookie_flags";
    outer.declare(KEY, || ValueKind::Map(Box::new(ValueKind::Texts)));
    let section = outer.section(KEY);
    let form = TextForm::new(Code::BadTemplate, "flags of a cookie");
    let entries = section.entries().into_iter();
    let found = entries.filter_map(|(name, value)| {
        let words = section.texts_in(&name.value, value)?;
        let words: Vec<String> = words.into_iter().map(|word| word.value).collect();
        let rule = |name: &str| CookieFlags::parse(name, &words);
        let written = name.value.clone();
        Some(section.parse_text(&written, name, form, rule)?.value)
    });
    found.collect()
}

/// Reads `{ from = "/a/", to = "/b/", location = true, cookies = true }`.
pub(super) fn replacement(outer: &mut Section<'_>, case: Case) -> Option<Replacement> {
    const FORM: TextForm = TextForm::new(Code::BadPattern, "a path's beginning");
    let is_given = outer.has("replace_prefix");
    let value = outer.peek("replace_prefix");
    let is_table = value.is_some_and(|value| value.get_ref().is_table());
    let mut section = outer.section("replace_prefix");
    if is_table {
        section.require("from", "from = \"/a/\"");
        section.require("to", "to = \"/b/\"");
    }
    let beginning = |text: &str| Replacement::new(text, text, case).map(|_| text.to_owned());
    let from = section.parse("from", FORM, beginning);
    let to = section.parse("to", FORM, beginning);
    let location = section.optional_boolean("location").unwrap_or(false);
    let cookies = section.optional_boolean("cookies").unwrap_or(false);
    section.finish();
    for key in ["strip_prefix", "add_prefix"] {
        if is_given && outer.has(key) {
            contradiction(format!("a route has `replace_prefix` or `{key}`, not both"))
                .at(&outer.key_span(key), "")
                .at(
                    &outer.key_span("replace_prefix"),
                    "says the whole new beginning",
                )
                .report_to(outer.reader);
        }
    }
    let mut replacement = Replacement::new(&from?, &to?, case).ok()?;
    replacement.location = location;
    replacement.cookies = cookies;
    Some(replacement)
}
