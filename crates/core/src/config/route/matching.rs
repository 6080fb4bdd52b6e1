//! `methods`, `headers`, `query` and `require_client_certificate` of a route: what requests match.

use http::header::HOST;
use http::{Method, StatusCode};
use toml::Spanned;
use toml::de::DeValue;

use crate::config::*;
use crate::route::{HeaderMatch, QueryMatch, ValueMatch};

const COMMON_METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

pub(super) fn methods(section: &mut Section<'_>) -> Vec<Method> {
    let allowed = "one or more; leave `methods` out for all";
    let texts = section.counted_texts("methods", 1..=usize::MAX, allowed);
    let form = TextForm::new(Code::BadHttp, "a method");
    let mut methods = Vec::new();
    for method in section.parse_all("methods", texts, form, method) {
        report_uncommon(section, &method);
        if methods.contains(&method.value) {
            section.report_duplicate(format!("`{}` is named twice", method.value), &method.span);
        }
        methods.push(method.value);
    }
    methods
}

/// Reports a method that is one or two letters from a common one. No registered method is.
fn report_uncommon(section: &Section<'_>, method: &Located<Method>) {
    let text = method.value.as_str();
    let near = nearest(text, COMMON_METHODS).filter(|near| *near != text);
    if let Some(near) = near {
        let message = format!("`{text}` is not a common method");
        Diagnostic::new(Code::UncommonMethod, message)
            .at(&method.span, "other methods do not match the route")
            .help(format!("did you mean `{near}`?"))
            .report_to(section.reader);
    }
}

/// Methods are case-sensitive: `get` is another method, and surely a mistake.
fn method(text: &str) -> Result<Method, String> {
    let upper = text.to_ascii_uppercase();
    let fits = text == upper && text != "CONNECT";
    let method = Method::from_bytes(text.as_bytes()).ok().filter(|_| fits);
    method.ok_or_else(|| match nearest(&upper, COMMON_METHODS) {
        Some(near) if text != "CONNECT" => format!("no such method; did you mean `{near}`?"),
        _ => "a method in upper case, and not `CONNECT`".to_owned(),
    })
}

pub(super) fn headers(section: &mut Section<'_>) -> Vec<HeaderMatch> {
    section.declare("headers", || {
        ValueKind::Map(Box::new(ValueKind::BooleanOrText))
    });
    let section = section.section("headers");
    let mut matches: Vec<HeaderMatch> = Vec::new();
    for (key, value) in section.entries() {
        let written = key.value.clone();
        let name = section.parse_text(&written, key, TextForm::HEADER_NAME, header_name);
        let Some(name) = name else { continue };
        if name.value == HOST {
            let message = "a route cannot go by the header `host`";
            Diagnostic::new(Code::BadHttp, message)
                .at(&name.span, "requests of HTTP/2 do not have it")
                .help("write `host = \"example.com\"` in the route")
                .report_to(section.reader);
        }
        if matches.iter().any(|one| one.name == name.value) {
            section.report_duplicate(format!("`{}` is named twice", name.value), &name.span);
        }
        let wanted = value_match(&section, name.value.as_str(), value, "a header's value");
        matches.extend(wanted.map(|value| HeaderMatch {
            name: name.value,
            value,
        }));
    }
    matches
}

pub(super) fn parameters(section: &mut Section<'_>) -> Vec<QueryMatch> {
    section.declare("query", || {
        ValueKind::Map(Box::new(ValueKind::BooleanOrText))
    });
    let section = section.section("query");
    let entries = section.entries().into_iter();
    let matches = entries.filter_map(|(key, value)| {
        let value = value_match(&section, &key.value, value, "a parameter's value")?;
        let name = key.value.into_boxed_str();
        Some(QueryMatch { name, value })
    });
    matches.collect()
}

/// Reads the status for clients without a certificate. Whether clients `show` certificates is told
/// by another section.
pub(super) fn client_certificate(section: &mut Section<'_>, show: bool) -> Option<StatusCode> {
    const KEY: &str = "require_client_certificate";
    let value = section.take(KEY, || ValueKind::BooleanOrInteger)?;
    let status = match value.get_ref().as_bool() {
        Some(wanted) => wanted.then_some(StatusCode::FORBIDDEN),
        None if section.has_integer(KEY) => {
            let status = section.optional_integer::<u16>(KEY, 400..=499)?;
            StatusCode::from_u16(status).ok()
        }
        None => {
            section.wrong_type(KEY, value, "true, false or a status");
            None
        }
    };
    if status.is_some() && !show {
        let message = "a route wants certificates, and no client shows one";
        Diagnostic::new(Code::NoClientCertificates, message)
            .at(&value.span(), "every request is refused")
            .help("name the authorities: `client_ca = \"/etc/tidegate/clients.pem\"` in `[tls]`")
            .report_to(section.reader);
    }
    status
}

fn value_match(
    section: &Section<'_>,
    name: &str,
    value: &Spanned<DeValue<'_>>,
    what: &'static str,
) -> Option<ValueMatch> {
    match value.get_ref() {
        DeValue::Boolean(true) => Some(ValueMatch::Any),
        DeValue::String(_) => {
            let form = TextForm::new(Code::BadPattern, what);
            let text = section.interpolated(value)?;
            let wanted = |text: &str| ValueMatch::parse(text.to_owned());
            Some(section.parse_text(name, text, form, wanted)?.value)
        }
        _ => {
            section.wrong_type(name, value, "a value, or `true` for any");
            None
        }
    }
}
