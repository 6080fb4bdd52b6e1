//! `[error_page.NAME]`: pages in place of error responses.

use http::uri::PathAndQuery;
use http::{HeaderValue, StatusCode};

use super::*;
use crate::route::template::BodyTemplate;
use crate::route::{
    ErrorPage, PageBody, PageServer, PageSource, PageStatus, Redirect, RespondBody, StatusSet,
};

/// Bytes of a page, at most.
const MAX_PAGE: usize = 1 << 20;
/// The settings of which a page has one.
const SOURCES: [&str; 4] = ["file", "body", "redirect", "upstream"];
/// The word of `answer` for the status of the server that has the page.
const OF_SERVER: &str = "upstream";
/// Media types by the endings of files.
const MEDIA_TYPES: [(&str, &str); 6] = [
    ("html", "text/html; charset=utf-8"),
    ("htm", "text/html; charset=utf-8"),
    ("json", "application/json"),
    ("xml", "application/xml"),
    ("svg", "image/svg+xml"),
    ("txt", "text/plain; charset=utf-8"),
];
const PLAIN: &str = "text/plain; charset=utf-8";

/// `[error_page.NAME]` before the upstreams are known.
pub(super) struct DefinedPage {
    name: Located<String>,
    statuses: StatusSet,
    replaces_upstream: bool,
    status: PageStatus,
    source: DefinedSource,
}

enum DefinedSource {
    Ready(PageSource),
    Upstream {
        name: Located<String>,
        target: Option<PathAndQuery>,
    },
}

/// The pages of a file, with their names.
#[derive(Default)]
pub(super) struct DefinedPages {
    pub(super) names: Vec<Located<String>>,
    pub(super) pages: Vec<Arc<ErrorPage>>,
}

pub(super) fn read_all(top: &mut Section<'_>) -> Vec<DefinedPage> {
    if !top.reader.surroundings.forwards {
        return Vec::new();
    }
    let sections = top.named("error_page").into_iter();
    let defined = sections.filter_map(|(name, section)| {
        section.check_name(&name, "error_page");
        read(name, section)
    });
    let defined = defined.collect();
    // A file without such a section declares the settings all the same.
    declare(&mut Section::absent(top.reader, "error_page.NAME", 0..0));
    defined
}

fn declare(section: &mut Section<'_>) {
    statuses(section);
    section.optional_boolean("upstream_errors");
    answer(section);
    source(section);
}

fn read(name: Located<String>, mut section: Section<'_>) -> Option<DefinedPage> {
    section.require("status", "status = [\"502\", \"503\", \"504\"]");
    let statuses = statuses(&mut section);
    let replaces_upstream = section.optional_boolean("upstream_errors").unwrap_or(false);
    let status = answer(&mut section);
    check_sources(&section);
    let source = source(&mut section);
    check_answer(&section, status, source.as_ref());
    section.finish();
    Some(DefinedPage {
        name,
        statuses: statuses?,
        replaces_upstream,
        status,
        source: source?,
    })
}

fn statuses(section: &mut Section<'_>) -> Option<StatusSet> {
    section.one_or_more_statuses("status", |text| match text.starts_with(['4', '5']) {
        true => Ok(()),
        false => Err("write an error: a status from 400 to 599, `4xx` or `5xx`"),
    })
}

/// Reads `answer = 200`, or `answer = "upstream"`.
fn answer(section: &mut Section<'_>) -> PageStatus {
    section.declare("answer", || ValueKind::IntegerOrText);
    let value = section.peek("answer");
    if value.is_some_and(|value| value.get_ref().is_str()) {
        let form = TextForm::new(Code::BadHttp, "a status");
        let word = section.parse("answer", form, |text| match text {
            OF_SERVER => Ok(()),
            _ => Err("write a status, or `\"upstream\"` for that of the page's server"),
        });
        if word.is_some() && !section.has("upstream") {
            contradiction("`answer = \"upstream\"` needs `upstream`")
                .at(&section.value_span("answer"), "no server has the page")
                .report_to(section.reader);
        }
        return PageStatus::OfServer;
    }
    let status = section.optional_integer("answer", 200..=599);
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    status.map_or(PageStatus::Same, PageStatus::Fixed)
}

/// Reports a page without a source, or with several, and settings that its source does not have.
fn check_sources(section: &Section<'_>) {
    let given: Vec<&str> = SOURCES.into_iter().filter(|key| section.has(key)).collect();
    match given[..] {
        [] => Diagnostic::new(Code::MissingKey, "an error page has no source")
            .at(&section.span, "")
            .help("write for example `file = \"/etc/tidegate/50x.html\"`")
            .report_to(section.reader),
        [_] => {}
        [first, second, ..] => contradiction("an error page has one source")
            .at(&section.key_span(second), "")
            .at(&section.key_span(first), "")
            .report_to(section.reader),
    }
    for (key, sources) in [
        ("content_type", &["file", "body"][..]),
        ("variables", &["file", "body"]),
        ("path", &["upstream"]),
    ] {
        if section.has(key) && !sources.iter().any(|source| section.has(source)) {
            contradiction(format!("`{key}` has no effect here"))
                .at(&section.key_span(key), "")
                .help(format!("it is for `{}`", sources.join("` and `")))
                .report_to(section.reader);
        }
    }
}

/// Reports a status that cannot carry the page.
fn check_answer(section: &Section<'_>, status: PageStatus, source: Option<&DefinedSource>) {
    let (PageStatus::Fixed(status), Some(source)) = (status, source) else {
        return;
    };
    let has_no_body = matches!(status.as_u16(), 204 | 205 | 304);
    let why = match source {
        DefinedSource::Ready(PageSource::Redirect(_)) => {
            let redirects = route::REDIRECT_STATUSES.contains(&status.as_u16());
            (!redirects).then_some("a redirect has 301, 302, 303, 307 or 308")
        }
        DefinedSource::Ready(PageSource::Body(body)) if body.text.is_empty() => None,
        _ => has_no_body.then_some("a response with this status has no body"),
    };
    if let Some(why) = why {
        contradiction("`answer` does not fit the page")
            .at(&section.value_span("answer"), why)
            .report_to(section.reader);
    }
}

fn source(section: &mut Section<'_>) -> Option<DefinedSource> {
    let media_form = TextForm::new(Code::BadHttp, "a media type");
    let media_type = section.parse("content_type", media_form, route::media_type);
    let has_variables = section.optional_boolean("variables").unwrap_or(false);
    let file = page_file(section, has_variables);
    let body = page_body(section, has_variables);
    let place_form = TextForm::new(Code::BadTemplate, "a place to send clients to");
    let redirect = section.parse("redirect", place_form, place);
    let target_form = TextForm::new(Code::BadPattern, "a path");
    let target = section.parse("path", target_form, target);
    if let Some(name) = section.located_text("upstream") {
        return Some(DefinedSource::Upstream { name, target });
    }
    let source = match file.or(body) {
        Some(PageBody { text, content_type }) => {
            let content_type = media_type.unwrap_or(content_type);
            let text = text.of_type(&content_type);
            PageSource::Body(PageBody { text, content_type })
        }
        None => PageSource::Redirect(redirect?),
    };
    Some(DefinedSource::Ready(source))
}

fn page_body(section: &mut Section<'_>, has_variables: bool) -> Option<PageBody> {
    let text = match has_variables {
        true => {
            let form = TextForm::new(Code::BadTemplate, "a page with variables");
            let page = section.parse("body", form, BodyTemplate::parse)?;
            section.check_for_all_routes("body", page.template());
            RespondBody::Made(page)
        }
        false => RespondBody::Fixed(section.text("body")?.into()),
    };
    if matches!(&text, RespondBody::Fixed(bytes) if bytes.len() > MAX_PAGE) {
        section.out_of_range("body", "1 MiB at most");
    }
    let content_type = HeaderValue::from_static(PLAIN);
    Some(PageBody { text, content_type })
}

fn file_text(section: &Section<'_>, bytes: &[u8]) -> Option<BodyTemplate> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned());
    let report = |why| {
        Diagnostic::new(Code::BadTemplate, "the file is not a page with variables")
            .at(&section.value_span("file"), "")
            .help(why)
            .report_to(section.reader);
    };
    let parsed = text.and_then(|text| BodyTemplate::parse(text).map_err(|why| why.to_string()));
    let page = parsed.map_err(report).ok()?;
    section.check_for_all_routes("file", page.template());
    Some(page)
}

fn page_file(section: &mut Section<'_>, has_variables: bool) -> Option<PageBody> {
    let path = section.text("file")?;
    let bytes = section.bytes_file("file", &path, MAX_PAGE)?;
    let text = match has_variables {
        true => RespondBody::Made(file_text(section, &bytes)?),
        false => RespondBody::Fixed(bytes.into()),
    };
    let ending = path.rsplit_once('.').map_or("", |(_, ending)| ending);
    let known = MEDIA_TYPES
        .iter()
        .find(|(known, _)| ending.eq_ignore_ascii_case(known));
    Some(PageBody {
        text,
        content_type: HeaderValue::from_static(known.map_or(PLAIN, |(_, media_type)| media_type)),
    })
}

/// A fixed place: there is no path to take variables from.
fn place(text: &str) -> Result<HeaderValue, String> {
    const FIXED: &str = "write a path or a URL without variables";
    let redirect = Redirect::new(text, StatusCode::FOUND).map_err(|error| error.to_string())?;
    match redirect.to().is_constant() {
        true => HeaderValue::from_str(text).map_err(|_| FIXED.to_owned()),
        false => Err(FIXED.to_owned()),
    }
}

fn target(text: &str) -> Result<PathAndQuery, &'static str> {
    const WANTED: &str = "write a path without variables, for example `/errors/50x.html`";
    let is_path = text.starts_with('/') && !text.contains(['#', '{', '}']);
    text.parse().ok().filter(|_| is_path).ok_or(WANTED)
}

/// Joins the pages with the upstreams of the file.
pub(super) fn compile(
    defined: Vec<DefinedPage>,
    mut find_upstream: impl FnMut(&Located<String>) -> Option<usize>,
) -> DefinedPages {
    let mut compiled = DefinedPages::default();
    for page in defined {
        let source = match page.source {
            DefinedSource::Ready(source) => source,
            DefinedSource::Upstream { name, target } => {
                let Some(upstream) = find_upstream(&name) else {
                    continue;
                };
                PageSource::Upstream(PageServer { upstream, target })
            }
        };
        compiled.names.push(page.name);
        compiled.pages.push(Arc::new(ErrorPage {
            statuses: page.statuses,
            replaces_upstream: page.replaces_upstream,
            source,
            status: page.status,
        }));
    }
    compiled
}

impl DefinedPages {
    /// The pages that a route names; all if it names none.
    pub(super) fn of_route(
        &self,
        reader: &ConfigReader<'_>,
        names: Option<&[Located<String>]>,
    ) -> Vec<Arc<ErrorPage>> {
        let Some(names) = names else {
            return self.pages.clone();
        };
        let mut pages = Vec::new();
        for name in names {
            let mut known = self.names.iter().zip(&self.pages);
            match known.find(|(known, _)| known.value == name.value) {
                Some((_, page)) => pages.push(Arc::clone(page)),
                None => self.report_unknown(reader, name),
            }
        }
        pages
    }

    fn report_unknown(&self, reader: &ConfigReader<'_>, name: &Located<String>) {
        let names = self.names.iter().map(|known| known.value.as_str());
        let otherwise = format!("define it: `[error_page.{}]`", name.value);
        name.unknown(Code::UnknownErrorPage, "error page")
            .help(did_you_mean(&name.value, names, otherwise))
            .report_to(reader);
    }
}
