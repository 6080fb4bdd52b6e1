//! Settings of a route that change requests and responses on their way, or answer in place of an
//! upstream.

use http::{HeaderValue, StatusCode};
use toml::Spanned;
use toml::de::DeValue;

use crate::config::diagnostic::{Code, Diagnostic};
use crate::config::reader::{Located, ValueKind};
use crate::config::section::Section;
use crate::config::values::{TextForm, header_name};
use crate::route::{
    Action, Direction, HeaderChange, HeaderText, Prefix, Redirect, Respond, Target,
};

/// Changes of one kind of head, at most.
const MAX_CHANGES: usize = 64;

/// Bytes of an answer's body, at most.
const MAX_BODY: usize = 1 << 20;
const STATUSES: [u16; 5] = [301, 302, 303, 307, 308];

/// The changes of a route, or its own answer.
#[derive(Default)]
pub(crate) struct RawForwarding {
    pub(crate) strip_prefix: Option<Located<Prefix>>,
    pub(crate) add_prefix: Option<Located<Prefix>>,
    /// `None` is the server's bound; `Some(None)` is no bound.
    pub(crate) body_limit: Option<Option<u64>>,
    pub(crate) headers_up: Vec<Located<HeaderChange>>,
    pub(crate) headers_down: Vec<Located<HeaderChange>>,
    /// The answer in place of an upstream. The value is `None` if it could not be read.
    pub(crate) answer: Option<Located<Option<Target>>>,
}

/// Settings that only a proxy has.
const PROXY_KEYS: [&str; 7] = [
    "strip_prefix",
    "add_prefix",
    "body_limit",
    "headers_up",
    "headers_down",
    "respond",
    "redirect",
];
/// Settings of requests to an upstream.
const UPSTREAM_KEYS: [&str; 6] = [
    "upstream",
    "strip_prefix",
    "add_prefix",
    "body_limit",
    "headers_up",
    "timeout",
];

pub(super) fn read(section: &mut Section<'_>) -> RawForwarding {
    if !section.reader.surroundings.forwards {
        for key in PROXY_KEYS {
            if section.take(key, || ValueKind::Table).is_some() {
                section.refuse_proxy_setting(key);
            }
        }
        return RawForwarding::default();
    }
    let form = TextForm::new(Code::BadPattern, "a path's beginning");
    let forwarding = RawForwarding {
        strip_prefix: section.parse("strip_prefix", form, Prefix::parse),
        add_prefix: section.parse("add_prefix", form, Prefix::parse),
        body_limit: section.size_or_unlimited("body_limit"),
        headers_up: header_changes(section, "headers_up", Direction::Up),
        headers_down: header_changes(section, "headers_down", Direction::Down),
        answer: answer(section),
    };
    if let Some(answer) = &forwarding.answer {
        for key in UPSTREAM_KEYS.into_iter().filter(|key| section.has(key)) {
            Diagnostic::new(Code::Contradiction, format!("`{key}` means nothing here"))
                .at(&section.key_span(key), "")
                .at(&answer.span, "the route answers by itself")
                .report_to(section.reader);
        }
    }
    forwarding
}

/// Parses a value with its variables.
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
fn actions(section: &Section<'_>, key: &str, value: &Spanned<DeValue<'_>>) -> Vec<Action> {
    let adds = key.starts_with('+');
    match value.get_ref() {
        DeValue::Boolean(false) if !adds => vec![Action::Remove],
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
            let wanted = "a value, `false` to remove it, or with `+` a list of values";
            section.wrong_type(key, value, wanted);
            Vec::new()
        }
    }
}

/// Reads `{ "x-a" = "set", "+x-b" = "added", "x-c" = false }`, in the file's order.
fn header_changes(
    section: &mut Section<'_>,
    key: &'static str,
    direction: Direction,
) -> Vec<Located<HeaderChange>> {
    section.declare(key, || ValueKind::Map(Box::new(ValueKind::BooleanOrText)));
    let section = section.section(key);
    let mut changes: Vec<Located<HeaderChange>> = Vec::new();
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
        let actions = actions(&section, &written, value);
        let Some(action) = actions.first() else {
            continue;
        };
        let adds = matches!(action, Action::Add(_));
        let is_same = |one: &&Located<HeaderChange>| {
            one.value.name == name.value && matches!(one.value.action, Action::Add(_)) == adds
        };
        if let Some(first) = changes.iter().find(is_same) {
            Diagnostic::new(Code::Duplicate, format!("`{written}` twice"))
                .at(&name.span, "")
                .at(&first.span, "first here")
                .report_to(section.reader);
        }
        for action in actions {
            let change = |name| HeaderChange { name, action };
            changes.push(name.clone().map(change));
        }
    }
    if changes.len() > MAX_CHANGES {
        let message = format!("`{}` has more than {MAX_CHANGES} headers", section.name());
        Diagnostic::new(Code::OutOfRange, message)
            .at(&section.span, "")
            .report_to(section.reader);
    }
    changes
}

/// Reads the answer in place of an upstream, if there is one.
fn answer(section: &mut Section<'_>) -> Option<Located<Option<Target>>> {
    if section.has("respond") && section.has("redirect") {
        Diagnostic::new(Code::Contradiction, "a route gives one answer")
            .at(&section.key_span("redirect"), "")
            .at(&section.key_span("respond"), "")
            .report_to(section.reader);
    }
    let respond = respond(section);
    redirect(section).or(respond)
}

/// Reads `respond = { status = 404, body = "gone", content_type = "text/plain" }`.
fn respond(outer: &mut Section<'_>) -> Option<Located<Option<Target>>> {
    let is_given = outer.has("respond");
    let mut section = outer.section("respond");
    let status = section.optional_integer("status", 200..=599);
    let body = section.text("body");
    let form = TextForm::new(Code::BadHttp, "a media type");
    let content_type = section.parse("content_type", form, media_type);
    let is_bodiless = |status: &&Located<u16>| matches!(status.value, 204 | 205 | 304);
    if let (Some(status), Some(body)) = (status.as_ref().filter(is_bodiless), &body) {
        let message = format!("an answer of status {} has no body", status.value);
        Diagnostic::new(Code::Contradiction, message)
            .at(&body.span, "")
            .at(&status.span, "")
            .report_to(section.reader);
    }
    if let Some(body) = body.as_ref().filter(|body| body.value.len() > MAX_BODY) {
        section.out_of_range("body", body, "1 MiB at most");
    }
    let span = section.span.clone();
    section.finish();
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    let plain = body.as_ref().map(|_| plain);
    let target = Respond {
        status: status_code(status).unwrap_or(StatusCode::OK),
        body: body.map(|body| body.value).unwrap_or_default().into(),
        content_type: content_type.map(|given| given.value).or(plain),
    };
    is_given.then(|| Located::new(Some(Target::Respond(Box::new(target))), &span))
}

fn media_type(text: &str) -> Result<HeaderValue, &'static str> {
    let is_type = text.contains('/') && !text.contains(['{', '}']);
    let value = HeaderValue::from_str(text).ok().filter(|_| is_type);
    value.ok_or("write for example `text/plain; charset=utf-8`")
}

fn status_code(status: Option<Located<u16>>) -> Option<StatusCode> {
    StatusCode::from_u16(status?.value).ok()
}

/// Reads `redirect = "https://{host}{uri}"`, or `{ to = "..", status = 308 }`.
fn redirect(outer: &mut Section<'_>) -> Option<Located<Option<Target>>> {
    const FORM: TextForm = TextForm::new(Code::BadTemplate, "a place to send clients to");
    outer.declare("redirect", || ValueKind::TextOrTable);
    let written = outer.peek("redirect").map(|value| value.get_ref());
    let span = outer.key_span("redirect");
    let to = if written.is_some_and(DeValue::is_str) {
        outer.parse("redirect", FORM, |text| {
            Redirect::new(text, StatusCode::FOUND)
        })
    } else {
        let mut section = outer.section("redirect");
        let status = section.optional_integer("status", 301..=308);
        if let Some(odd) = status.as_ref().filter(|one| !STATUSES.contains(&one.value)) {
            section.out_of_range("status", odd, "301, 302, 303, 307, 308");
        }
        let status = status_code(status).unwrap_or(StatusCode::FOUND);
        let to = section.parse("to", FORM, |text| Redirect::new(text, status));
        if written.is_some_and(DeValue::is_table) {
            section.require("to", "to = \"https://{host}{uri}\"");
        }
        section.finish();
        to
    };
    let target = to.map(|to| Target::Redirect(Box::new(to.value)));
    written.map(|_| Located::new(target, &span))
}
