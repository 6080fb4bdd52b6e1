//! `[deny]` and `[headers]`: what clients see of their limits. `[[bypass]]`: requests that are
//! never charged.

use std::net::IpAddr;

use http::{HeaderName, StatusCode};
use ipnet::IpNet;
use toml::de::DeValue;

use super::route::path_pattern;
use super::*;
use crate::limit::headers::{HeaderSettings, IetfForm, ResetForm};
use crate::limit::jitter::Jitter;
use crate::limit::key::{Facts, same_secret};
use crate::path::Case;
use crate::route::{Direction, HeaderChange, PathPattern};

/// `[deny]`
#[derive(Clone, Debug)]
pub struct DenySettings {
    pub status: StatusCode,
    pub docs_url: Option<String>,
    pub body: Vec<(BodyKind, String)>,
    /// What is added to `Retry-After`.
    pub jitter: Option<Jitter>,
}

/// The words in braces that a template of a body may have.
pub const BODY_WORDS: [&str; 5] = ["title", "detail", "limit", "retry_after", "request_id"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// `application/problem+json`
    Json,
    Html,
    Text,
}

pub(super) fn read(mut section: Section<'_>) -> DenySettings {
    let status = section.integer("status", 400..=599);
    let docs_url = section.parse("docs_url", TextForm::new(Code::BadUrl, "a URL"), docs_url);
    let jitter_form = TextForm::new(Code::BadRate, "a share or a time");
    section.declare("jitter", || ValueKind::ShareOrDuration);
    let jitter = section.parse("jitter", jitter_form, Jitter::parse);
    let mut templates = section.section("body");
    let kinds = [
        ("json", BodyKind::Json),
        ("html", BodyKind::Html),
        ("text", BodyKind::Text),
    ];
    let body = kinds.into_iter();
    let body = body.filter_map(|(key, kind)| Some((kind, body_template(&mut templates, key)?)));
    let body = body.collect();
    templates.finish();
    section.finish();
    DenySettings {
        status: StatusCode::from_u16(status).unwrap_or(StatusCode::TOO_MANY_REQUESTS),
        docs_url,
        body,
        jitter,
    }
}

/// Reads a template. Reports words in braces that no value replaces.
fn body_template(section: &mut Section<'_>, key: &'static str) -> Option<String> {
    let text = section.text(key)?;
    let in_braces = text.split('{').skip(1).filter_map(|rest| {
        let (word, _) = rest.split_once('}')?;
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
        (!word.is_empty() && word.bytes().all(is_word)).then_some(word)
    });
    let mut unknown = in_braces.filter(|word| !BODY_WORDS.contains(word));
    if let Some(word) = unknown.next() {
        let known = BODY_WORDS.map(|word| format!("`{{{word}}}`")).join(", ");
        section.reader.report_doubt(
            no_effect(format!("`{{{word}}}` stays as it is"))
                .at(&section.value_span(key), "has no value for it")
                .help(format!("these are replaced: {known}")),
        );
    }
    Some(text)
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
        ietf: ietf(&mut section),
        reset: section.word("reset", &forms),
        cors_expose: section.boolean("cors_expose"),
        pass_upstream: section.boolean("pass_upstream"),
    };
    if let Some(reset) = section.changed("reset").filter(|_| !settings.x_ratelimit) {
        section.reader.report_doubt(
            no_effect("`headers.reset` changes nothing")
                .at(&reset, "is the form of `X-RateLimit-Reset`")
                .at(&section.key_span("x_ratelimit"), "no response has it")
                .help("leave it out, or write `x_ratelimit = true`"),
        );
    }
    let request_id = request_id(&mut section);
    section.finish();
    (settings, request_id)
}

/// Reads `ietf`: true, false, or the form of the headers.
fn ietf(section: &mut Section<'_>) -> Option<IetfForm> {
    const FORMS: [(&str, IetfForm); 2] = [("10", IetfForm::Draft10), ("next", IetfForm::Next)];
    const WANTED: &str = "true, false, `\"10\"` or `\"next\"`";
    section.declare("ietf", || {
        ValueKind::BooleanOrWord(FORMS.map(|(word, _)| word).to_vec())
    });
    let Some(value) = section.peek("ietf") else {
        let is_sent = section.default_text("ietf") == "true";
        return is_sent.then_some(IetfForm::Draft10);
    };
    let meant = habits::intended_boolean(value.get_ref());
    match value.get_ref() {
        DeValue::Boolean(is_sent) => is_sent.then_some(IetfForm::Draft10),
        DeValue::String(_) if meant.is_none() => section.optional_word("ietf", &FORMS),
        DeValue::Integer(_) if meant.is_none() => {
            section.wrong_type("ietf", value, WANTED);
            let help = "write the draft in quotes: `ietf = \"10\"`".to_owned();
            section.reader.set_help(&value.span(), help);
            None
        }
        _ => {
            section.wrong_type("ietf", value, WANTED);
            None
        }
    }
}

fn request_id(section: &mut Section<'_>) -> Option<HeaderName> {
    if !section.reader.surroundings.forwards {
        return None;
    }
    section.declare("request_id", || ValueKind::FalseOrText);
    let value = section.peek("request_id");
    if value.is_some_and(|value| value.get_ref().as_bool() == Some(false)) {
        return None;
    }
    section.parse("request_id", TextForm::HEADER_NAME, |text| {
        let name = header_name(text)?;
        HeaderChange::may_touch(&name, Direction::Up)?;
        HeaderChange::may_touch(&name, Direction::Down).map(|()| name)
    })
}

/// Reports a rule that no limit is left beside.
fn check_covers_everyone(section: &Section<'_>, bypass: &Bypass) {
    let Bypass {
        ip,
        path,
        header: None,
        key: None,
        ..
    } = bypass
    else {
        return;
    };
    let every_ip = ip.is_empty() || ip.iter().any(|net| net.prefix_len() == 0);
    let every_path = path.as_ref().is_none_or(|path| path.to_string() == "/*");
    if every_ip && every_path && (path.is_some() || !ip.is_empty()) {
        Diagnostic::new(Code::SparesEveryone, "`bypass` covers every request")
            .at(&section.span, "no limit counts anything")
            .help("name the networks or paths to spare: `ip = \"10.0.0.0/8\"`")
            .report_to(section.reader);
    }
}

/// A rule for requests that are forwarded without a charge. It has at least one condition, and all
/// its conditions must hold.
#[derive(Clone, Debug)]
pub struct Bypass {
    pub ip: Vec<IpNet>,
    pub path: Option<PathPattern>,
    /// The same for requests of routes that ignore letter case.
    pub folded_path: Option<PathPattern>,
    /// A header with exactly this value (compared in constant time).
    pub header: Option<(HeaderName, Secret<Vec<u8>>)>,
    /// An API key with exactly this value (compared in constant time).
    pub key: Option<Secret<Vec<u8>>>,
}

impl Bypass {
    /// Whether every condition holds for a request. `client` is its full address, and `case` is
    /// that of its route.
    pub fn covers(&self, facts: &Facts<'_>, client: IpAddr, case: Case) -> bool {
        let header = || {
            self.header.as_ref().is_none_or(|(name, secret)| {
                let value = facts.headers.get(name);
                value.is_some_and(|value| same_secret(value.as_bytes(), secret))
            })
        };
        let key = || {
            let secret = self.key.as_ref();
            secret.is_none_or(|secret| facts.carries_api_key(secret))
        };
        let path = || {
            let pattern = match case {
                Case::Sensitive => &self.path,
                Case::Insensitive => &self.folded_path,
            };
            let pattern = pattern.as_ref();
            pattern.is_none_or(|pattern| pattern.matches(facts.path))
        };
        let ip = self.ip.is_empty() || self.ip.iter().any(|net| net.contains(&client));
        ip && path() && header() && key()
    }
}

/// Reads `[[bypass]]`. Returns `None` if no condition could be read.
pub(super) fn read_bypass(mut section: Section<'_>) -> Option<Bypass> {
    let texts = section.counted_texts("ip", 1..=usize::MAX, "one or more; leave `ip` out for any");
    let ip = section.parse_all("ip", texts, TextForm::NETWORK, address::network);
    let path = section.located_text("path");
    let path = path.and_then(|text| path_pattern(&section, text));
    let name = section.parse("header", TextForm::HEADER_NAME, header_name);
    let value = section.secret(Some("value"), "value_file");
    let key = section.secret(Some("key"), "key_file");
    if section.has("value") || section.has("value_file") {
        section.require("header", "header = \"x-bypass\"");
    } else if section.has("header") {
        section.missing("value_file", "value_file = \"/run/secrets/bypass\"");
    }
    let conditions = ["ip", "path", "header", "key", "key_file"];
    if !conditions.iter().any(|key| section.has(key)) {
        section.missing("ip", "ip = \"10.0.0.0/8\"");
    }
    let secrets = [&value, &key].into_iter().flatten();
    for _ in secrets.filter(|secret| secret.is_empty()) {
        contradiction("with an empty secret every request passes")
            .at(&section.span, "")
            .report_to(section.reader);
    }
    let header = name.zip(value);
    let bypass = Bypass {
        ip: values(ip),
        folded_path: path.clone().map(|path| path.in_case(Case::Insensitive)),
        path,
        header: header.map(|(name, value)| (name, Secret(value))),
        key: key.map(Secret),
    };
    check_covers_everyone(&section, &bypass);
    section.finish();
    let has_condition = !bypass.ip.is_empty()
        || bypass.path.is_some()
        || bypass.header.is_some()
        || bypass.key.is_some();
    has_condition.then_some(bypass)
}
