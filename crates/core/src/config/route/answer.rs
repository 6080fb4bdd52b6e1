//! `respond` and `redirect`: what a route answers by itself.

use http::{HeaderValue, StatusCode};
use toml::de::DeValue;

use super::super::diagnostic::{Code, Diagnostic};
use super::super::reader::At;
use super::super::section::Section;
use super::super::values::TextForm;
use crate::route::{Redirect, Respond, Target};

/// Bytes of an answer's body, at most.
const MAX_BODY: usize = 1 << 20;

/// The answer in place of an upstream, if there is one.
pub(super) fn answer(section: &mut Section<'_>) -> Option<At<Option<Target>>> {
    let both = section.peek("respond").is_some() && section.peek("redirect").is_some();
    if both {
        let diagnostic = Diagnostic::new(Code::Contradiction, "a route gives one answer")
            .at(&section.key_span("redirect"), "")
            .at(&section.key_span("respond"), "");
        section.reader.report(diagnostic);
    }
    let respond = respond(section);
    redirect(section).or(respond)
}

/// `respond = { status = 404, body = "gone", content_type = "text/plain" }`
fn respond(outer: &mut Section<'_>) -> Option<At<Option<Target>>> {
    let is_there = outer.peek("respond").is_some();
    let mut section = outer.section("respond");
    let status = section.integer("status", 200..=599);
    let body = section.text("body");
    let kind = TextForm::new(Code::BadHttp, "a media type");
    let given = section.parsed("content_type", kind, |text| {
        let is_type = text.contains('/') && !text.contains(['{', '}']);
        let value = HeaderValue::from_str(text).ok().filter(|_| is_type);
        value.ok_or("write for example `text/plain; charset=utf-8`")
    });
    let bodiless = |status: &At<u64>| matches!(status.value, 204 | 205 | 304);
    if let (Some(status), Some(body)) = (status.as_ref().filter(|one| bodiless(one)), &body) {
        let message = format!("an answer of status {} has no body", status.value);
        let diagnostic = Diagnostic::new(Code::Contradiction, message)
            .at(&body.span, "")
            .at(&status.span, "");
        section.reader.report(diagnostic);
    }
    if let Some(body) = body.as_ref().filter(|body| body.value.len() > MAX_BODY) {
        section.out_of_range_at("body", body, "1 MiB at most");
    }
    let span = section.span.clone();
    section.finish();
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    let content_type = match given {
        Some(given) => Some(given.value),
        None => body.as_ref().map(|_| plain),
    };
    let status = status.map_or(Ok(200), |status| u16::try_from(status.value));
    let target = Respond {
        status: status
            .ok()
            .and_then(|status| StatusCode::from_u16(status).ok())
            .unwrap_or(StatusCode::OK),
        body: body.map(|body| body.value).unwrap_or_default().into(),
        content_type,
    };
    is_there.then(|| At {
        value: Some(Target::Respond(Box::new(target))),
        span,
    })
}

/// `redirect = "https://{host}{uri}"`, or `{ to = "..", status = 308 }`.
fn redirect(outer: &mut Section<'_>) -> Option<At<Option<Target>>> {
    const STATUSES: [u64; 5] = [301, 302, 303, 307, 308];
    const KIND: TextForm = TextForm::new(Code::BadTemplate, "a place to send clients to");
    let written = outer.peek("redirect").map(|value| value.get_ref());
    let is_text = written.is_some_and(DeValue::is_str);
    let span = outer.key_span("redirect");
    let target = |to: At<Redirect>| Target::Redirect(Box::new(to.value));
    if is_text {
        let to = outer.parsed("redirect", KIND, |text| {
            Redirect::new(text, StatusCode::FOUND)
        });
        let value = to.map(target);
        return Some(At { value, span });
    }
    let mut section = outer.section("redirect");
    let status = section.integer("status", 301..=308);
    if let Some(odd) = status.as_ref().filter(|one| !STATUSES.contains(&one.value)) {
        section.out_of_range_at("status", odd, "301, 302, 303, 307, 308");
    }
    let status = status.and_then(|one| u16::try_from(one.value).ok());
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    let status = status.unwrap_or(StatusCode::FOUND);
    let to = section.parsed("to", KIND, |text| Redirect::new(text, status));
    if section.peek("to").is_none() && written.is_some_and(DeValue::is_table) {
        section.missing("to", "to = \"https://{host}{uri}\"");
    }
    section.finish();
    let value = to.map(target);
    written.map(|_| At { value, span })
}
