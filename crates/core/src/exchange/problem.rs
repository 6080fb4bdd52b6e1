//! The bodies of the proxy's own responses: problem details (RFC 9457), or a page or a text if the
//! client prefers that. Pure.

use std::borrow::Cow;

use http::header::{ACCEPT, HeaderMap, HeaderValue};

use crate::config::{BODY_WORDS, BodyKind};
use crate::telemetry::json;

/// The `type` of a denial (draft-ietf-httpapi-ratelimit-headers-10).
pub const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// The `type` of a denial because the client is banned.
pub const ABNORMAL_USAGE: &str =
    "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
/// The `type` of a refusal because the store is away.
pub const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
/// The `type` of all other responses (RFC 9457 section 4.2.1).
pub const BLANK: &str = "about:blank";

/// The content of a response.
#[derive(Debug)]
pub struct Problem<'a> {
    /// A URI.
    pub kind: &'static str,
    pub title: &'static str,
    pub status: u16,
    pub detail: Detail<'a>,
    /// Names of the limits that denied.
    pub violated: &'a [&'a str],
    /// Seconds after which the same request may pass.
    pub retry_after: Option<u64>,
    /// When the window of a calendar ends, as RFC 3339 in its zone.
    pub resets_at: Option<&'a str>,
    pub docs_url: Option<&'a str>,
    pub request_id: &'a str,
}

/// A sentence for people.
#[derive(Clone, Copy, Debug)]
pub enum Detail<'a> {
    Text(&'a str),
    /// What a limit allows, and the wait.
    Wait {
        allows: &'a str,
        /// The same text, escaped for JSON.
        allows_json: &'a str,
        seconds: u64,
    },
}

impl<'a> Detail<'a> {
    pub fn text(&self) -> Cow<'a, str> {
        match *self {
            Detail::Text(text) => Cow::Borrowed(text),
            Detail::Wait {
                allows, seconds, ..
            } => Cow::Owned(format!("{allows}; retry in {seconds} s")),
        }
    }
}

pub fn media_type(kind: BodyKind) -> HeaderValue {
    // Checked when this is compiled: at run time, a check of these bytes was 2 % of a denial.
    const JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
    const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
    const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
    match kind {
        BodyKind::Json => JSON,
        BodyKind::Html => HTML,
        BodyKind::Text => TEXT,
    }
}

/// The form that `Accept` prefers (RFC 9110 section 12.5.1); problem details by default.
pub fn preferred(headers: &HeaderMap) -> BodyKind {
    let mut lines = headers.get_all(ACCEPT).iter();
    // Nearly all clients except browsers.
    let (first, second) = (lines.next().map(HeaderValue::as_bytes), lines.next());
    if let (None | Some(b"*/*" | b"application/json"), None) = (first, second) {
        return BodyKind::Json;
    }
    let mut best = (BodyKind::Json, 0.0);
    for kind in [BodyKind::Json, BodyKind::Html, BodyKind::Text] {
        let quality = quality_of(kind, headers);
        if quality > best.1 {
            best = (kind, quality);
        }
    }
    best.0
}

/// The weight of a form's most specific range in `Accept`.
fn quality_of(kind: BodyKind, headers: &HeaderMap) -> f32 {
    let (exact, group): (&[&str], &str) = match kind {
        BodyKind::Json => (
            &["application/problem+json", "application/json"],
            "application/*",
        ),
        BodyKind::Html => (&["text/html"], "text/*"),
        BodyKind::Text => (&["text/plain"], "text/*"),
    };
    let mut best = (0, 0.0);
    let lines = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    for range in lines.flat_map(|line| line.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let specific = match name {
            name if exact.iter().any(|exact| name.eq_ignore_ascii_case(exact)) => 3,
            name if name.eq_ignore_ascii_case(group) => 2,
            "*/*" => 1,
            _ => 0,
        };
        let quality = parts
            .find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")))
            .map_or(1.0, |quality| quality.parse().unwrap_or(0.0));
        if specific > best.0 {
            best = (specific, quality);
        }
    }
    best.1
}

/// Writes `problem` in a form, by the operator's template if there is one. The buffer has space for
/// the values of headers behind the body.
pub fn render(problem: &Problem<'_>, kind: BodyKind, template: Option<&str>) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    let template = match (template, kind) {
        (Some(template), _) => template,
        (None, BodyKind::Json) => {
            put_json(&mut out, problem);
            return out;
        }
        (None, BodyKind::Html) => HTML,
        (None, BodyKind::Text) => TEXT,
    };
    out.extend_from_slice(fill(template, problem, kind).as_bytes());
    out
}

const HTML: &str = "<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>\
    <h1>{title}</h1><p>{detail}</p><p><small>{request_id}</small></p></html>\n";
const TEXT: &str = "{title}\n{detail}\n{request_id}\n";

fn put_json(out: &mut Vec<u8>, problem: &Problem<'_>) {
    // Kinds, titles and ids need no escapes.
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(problem.kind.as_bytes());
    out.extend_from_slice(b"\",\"title\":\"");
    out.extend_from_slice(problem.title.as_bytes());
    out.extend_from_slice(b"\",\"status\":");
    json::number(out, problem.status);
    out.extend_from_slice(b",\"detail\":\"");
    match problem.detail {
        Detail::Text(text) => json::escaped(out, text),
        Detail::Wait {
            allows_json,
            seconds,
            ..
        } => {
            out.extend_from_slice(allows_json.as_bytes());
            out.extend_from_slice(b"; retry in ");
            json::number(out, seconds);
            out.extend_from_slice(b" s");
        }
    }
    out.push(b'"');
    if !problem.violated.is_empty() {
        out.extend_from_slice(b",\"violated-policies\":[");
        for (index, name) in problem.violated.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            json::string(out, name);
        }
        out.push(b']');
    }
    if let Some(seconds) = problem.retry_after {
        out.extend_from_slice(b",\"retry_after\":");
        json::number(out, seconds);
    }
    if let Some(at) = problem.resets_at {
        out.extend_from_slice(b",\"resets_at\":");
        json::string(out, at);
    }
    if let Some(url) = problem.docs_url {
        out.extend_from_slice(b",\"docs\":");
        json::string(out, url);
    }
    out.extend_from_slice(b",\"request_id\":\"");
    out.extend_from_slice(problem.request_id.as_bytes());
    out.extend_from_slice(b"\"}\n");
}

/// Replaces the placeholders of a template with escaped values.
fn fill(template: &str, problem: &Problem<'_>, kind: BodyKind) -> String {
    let retry_after = problem
        .retry_after
        .map(|seconds| seconds.to_string())
        .unwrap_or_default();
    let limits = problem.violated.join(", ");
    let detail = problem.detail.text();
    let values = [
        problem.title,
        &detail,
        &limits,
        &retry_after,
        problem.request_id,
    ];
    let mut out = String::with_capacity(template.len() + 128);
    let mut rest = template;
    while let Some((before, tail)) = rest.split_once('{') {
        out.push_str(before);
        let found = BODY_WORDS.iter().zip(values).find_map(|(word, value)| {
            let after = tail.strip_prefix(word)?.strip_prefix('}')?;
            Some((value, after))
        });
        match found {
            Some((value, after)) => {
                push_escaped(&mut out, value, kind);
                rest = after;
            }
            None => {
                out.push('{');
                rest = tail;
            }
        }
    }
    out.push_str(rest);
    out
}

fn push_escaped(out: &mut String, value: &str, kind: BodyKind) {
    for c in value.chars() {
        match (kind, c) {
            (BodyKind::Html, '<') => out.push_str("&lt;"),
            (BodyKind::Html, '>') => out.push_str("&gt;"),
            (BodyKind::Html, '&') => out.push_str("&amp;"),
            (BodyKind::Html, '"') => out.push_str("&quot;"),
            (BodyKind::Json, '"' | '\\') => out.extend(['\\', c]),
            (_, c) => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(value: &'static str) -> BodyKind {
        preferred(&HeaderMap::from_iter([(
            ACCEPT,
            HeaderValue::from_static(value),
        )]))
    }

    #[test]
    fn the_form_follows_accept() {
        assert_eq!(preferred(&HeaderMap::new()), BodyKind::Json);
        assert_eq!(accept("*/*"), BodyKind::Json);
        assert_eq!(accept("application/json"), BodyKind::Json);
        let two = [(ACCEPT, "*/*"), (ACCEPT, "text/html")];
        let two = two.map(|(name, value)| (name, HeaderValue::from_static(value)));
        assert_eq!(preferred(&HeaderMap::from_iter(two)), BodyKind::Json);
        assert_eq!(accept("application/json, text/plain, */*"), BodyKind::Json);
        assert_eq!(
            accept("text/html,application/xhtml+xml,*/*;q=0.8"),
            BodyKind::Html
        );
        assert_eq!(accept("text/plain"), BodyKind::Text);
        assert_eq!(accept("text/html;q=0, */*"), BodyKind::Json);
        assert_eq!(accept("image/png"), BodyKind::Json);
    }

    fn problem() -> Problem<'static> {
        Problem {
            kind: QUOTA_EXCEEDED,
            title: "Quota Exceeded",
            status: 429,
            detail: Detail::Wait {
                allows: "\"login\" allows 5/min",
                allows_json: "\\\"login\\\" allows 5/min",
                seconds: 13,
            },
            violated: &["login"],
            retry_after: Some(13),
            resets_at: None,
            docs_url: None,
            request_id: "3f9a",
        }
    }

    fn text(problem: &Problem<'_>, kind: BodyKind, template: Option<&str>) -> String {
        String::from_utf8(render(problem, kind, template)).unwrap()
    }

    #[test]
    fn problem_details_are_json() {
        assert_eq!(
            text(&problem(), BodyKind::Json, None),
            "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
             \"title\":\"Quota Exceeded\",\"status\":429,\
             \"detail\":\"\\\"login\\\" allows 5/min; retry in 13 s\",\
             \"violated-policies\":[\"login\"],\"retry_after\":13,\"request_id\":\"3f9a\"}\n"
        );
    }

    #[test]
    fn a_calendar_window_says_when_it_ends() {
        let problem = Problem {
            resets_at: Some("2026-12-01T00:00:00+01:00"),
            ..problem()
        };
        let text = text(&problem, BodyKind::Json, None);
        let member = ",\"retry_after\":13,\"resets_at\":\"2026-12-01T00:00:00+01:00\",";
        assert!(text.contains(member), "{text}");
    }

    #[test]
    fn templates_are_filled_and_escaped_for_their_form() {
        let html = text(
            &problem(),
            BodyKind::Html,
            Some("<b>{detail}</b> {limit} {x}"),
        );
        assert_eq!(
            html,
            "<b>&quot;login&quot; allows 5/min; retry in 13 s</b> login {x}"
        );
        let plain = text(&problem(), BodyKind::Text, None);
        assert_eq!(
            plain,
            "Quota Exceeded\n\"login\" allows 5/min; retry in 13 s\n3f9a\n"
        );
    }
}
