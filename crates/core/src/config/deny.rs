//! `[deny]` and `[headers]`: what clients see of their limits.

use http::StatusCode;
use http::header::HeaderName;

use super::diagnostic::Code;
use super::reader::ValueKind;
use super::section::Section;
use super::values::{TextForm, header_name};
use crate::limit::headers::{HeaderSettings, ResetForm};
use crate::route::{Direction, HeaderChange};

/// `[deny]`
#[derive(Clone, Debug)]
pub struct DenySettings {
    /// The status of a denial.
    pub status: StatusCode,
    /// The page about the limits, sent as the problem's `docs` member and as a `Link`.
    pub docs_url: Option<String>,
    /// Body templates by media type, instead of the built-in ones. `{limit}`, `{retry_after}`
    /// and `{request_id}` are filled in.
    pub body: Vec<(BodyKind, String)>,
}

/// The media types of denials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// `application/problem+json`
    Json,
    /// `text/html`
    Html,
    /// `text/plain`
    Text,
}

pub(super) fn read(mut section: Section<'_>) -> DenySettings {
    let status = section.integer("status", 400..=599);
    let docs_url = section.parse("docs_url", TextForm::new(Code::BadUrl, "a URL"), docs_url);
    let mut templates = section.section("body");
    let kinds = [
        ("json", BodyKind::Json),
        ("html", BodyKind::Html),
        ("text", BodyKind::Text),
    ];
    let body = kinds.into_iter();
    let body = body.filter_map(|(key, kind)| Some((kind, templates.text(key)?.value)));
    let body = body.collect();
    templates.finish();
    section.finish();
    DenySettings {
        status: StatusCode::from_u16(status).unwrap_or(StatusCode::TOO_MANY_REQUESTS),
        docs_url: docs_url.map(|url| url.value),
        body,
    }
}

fn docs_url(text: &str) -> Result<String, &'static str> {
    let is_visible = |byte: u8| byte.is_ascii_graphic() && !b"<>\"".contains(&byte);
    let has_scheme = text.starts_with("https://") || text.starts_with("http://");
    match text.bytes().all(is_visible) && has_scheme && text.parse::<http::Uri>().is_ok() {
        true => Ok(text.to_owned()),
        false => Err("write for example `https://example.com/docs/limits`"),
    }
}

/// Reads `[headers]`. Also returns the name of the header for request ids.
pub(super) fn read_headers(mut section: Section<'_>) -> (HeaderSettings, Option<HeaderName>) {
    let forms = [("epoch", ResetForm::Epoch), ("delta", ResetForm::Delta)];
    let settings = HeaderSettings {
        x_ratelimit: section.boolean("x_ratelimit"),
        ietf: section.boolean("ietf"),
        reset: section.word("reset", &forms),
        cors_expose: section.boolean("cors_expose"),
        pass_upstream: section.boolean("pass_upstream"),
    };
    let request_id = request_id(&mut section);
    section.finish();
    (settings, request_id)
}

/// Reads `request_id`: a header's name, or `false`.
fn request_id(section: &mut Section<'_>) -> Option<HeaderName> {
    if !section.reader.surroundings.forwards {
        return None;
    }
    section.declare("request_id", || ValueKind::FalseOrText);
    let value = section.peek("request_id");
    if value.is_some_and(|value| value.get_ref().as_bool() == Some(false)) {
        return None;
    }
    let name = section.parse("request_id", TextForm::HEADER_NAME, |text| {
        let name = header_name(text)?;
        HeaderChange::may_touch(&name, Direction::Up)?;
        HeaderChange::may_touch(&name, Direction::Down).map(|()| name)
    });
    name.map(|name| name.value)
}
