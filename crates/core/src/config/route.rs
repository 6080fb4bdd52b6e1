//! One `[[route]]`: the requests that it takes, their target, their changes on the way, and their
//! cost.
//!
//! Every value is read and checked by itself; names are still names. `routes.rs` joins them.

mod forwarding;
mod matching;

pub(super) use forwarding::{REDIRECT_STATUSES, UPSTREAM_KEYS, media_type};

use http::HeaderName;

use super::definitions::Inherited;
use super::*;
use crate::limit::calendar::MAX_COUNT;
use crate::path::Case;
use crate::route::template::Template;
use crate::route::{
    Action, CostSource, Direction, HeaderChange, HeaderText, HostPattern, LocationBase, NO_ROUTE,
    PathPattern, Prefix, RespondBody, Route, Settle, StatusSet, Target,
};
use crate::usage::paths::MemberPath;

/// A cost is at most what a calendar window holds. Other limits hold less.
const MAX_COST: u64 = MAX_COUNT;
/// Bytes of a body that a route may read before the decision, at most.
pub const MAX_BODY_READ: usize = 1 << 20;
/// The upstream of routes in files that forward nothing, and of routes before theirs is found.
pub(super) const NO_UPSTREAM: usize = 0;

/// `[[route]]` and its places in the file.
pub(super) struct DefinedRoute {
    /// The route without number, name, target and limits.
    pub(super) route: Route,
    pub(super) span: TextSpan,
    /// The place of its path, or its own.
    pub(super) path_span: TextSpan,
    pub(super) has_path: bool,
    pub(super) path_text: String,
    /// The text of `host`, for the route's name.
    pub(super) host_text: String,
    /// Whether the file says if its paths ignore letter case.
    pub(super) says_case: bool,
    pub(super) name: Option<Located<String>>,
    pub(super) upstream: Option<Located<String>>,
    pub(super) usage: Option<Located<String>>,
    pub(super) limits: Option<Vec<Located<String>>>,
    pub(super) error_pages: Option<Vec<Located<String>>>,
    pub(super) access_logs: Option<Vec<Located<String>>>,
    pub(super) cost_span: TextSpan,
    pub(super) port_span: TextSpan,
    pub(super) headers_span: TextSpan,
    /// The place of `timeout`, or of the route's name.
    pub(super) timeout_span: TextSpan,
    /// The setting that gives units back, if it has one.
    pub(super) refunds: Option<Located<&'static str>>,
    /// Whether it answers in place of an upstream.
    pub(super) answers: bool,
    /// The answer in place of an upstream, if it could be read.
    pub(super) answer: Option<Target>,
}

pub(super) const CASES: &[(&str, Case)] = &[
    ("sensitive", Case::Sensitive),
    ("insensitive", Case::Insensitive),
];

pub(super) fn read(mut section: Section<'_>, inherited: Inherited) -> DefinedRoute {
    section.require("path", "path = \"/*\"");
    let route = settings(&mut section, inherited);
    section.finish();
    route
}

/// The catch-all route that the top-level `upstream` makes.
pub(super) fn default_route(
    mut section: Section<'_>,
    inherited: Inherited,
    name: String,
) -> DefinedRoute {
    let name = Located::new(name, &section.span);
    DefinedRoute {
        has_path: true,
        path_text: "/*".to_owned(),
        name: Some(name),
        ..settings(&mut section, inherited)
    }
}

fn settings(section: &mut Section<'_>, inherited: Inherited) -> DefinedRoute {
    let name_form = TextForm::new(Code::BadName, "a route's name");
    let cost_form = TextForm::new(Code::BadKey, "a cost");
    let text_of = |text: &Option<Located<String>>| {
        let text = text.as_ref().map(|text| text.value.clone());
        text.unwrap_or_default()
    };
    let host = section.located_text("host");
    let host_text = text_of(&host);
    let host =
        host.and_then(|text| section.parse_text("host", text, TextForm::HOST, HostPattern::parse));
    let path = section.located_text("path");
    let path_text = text_of(&path);
    let path = path.and_then(|text| path_pattern(section, text));
    let has_path = path.is_some();
    let case = section.optional_word("case", CASES).or(inherited.case);
    let every_path = || PathPattern::parse("/*").expect("`/*` is a pattern");
    let mut route = Route {
        host: host.map_or(HostPattern::Any, |host| host.value),
        case: case.unwrap_or_default(),
        methods: matching::methods(section),
        headers: matching::headers(section),
        query: matching::parameters(section),
        port: section.optional_integer("port", 1..=65_535),
        trailing_slash: section.optional_boolean("trailing_slash"),
        target: Target::Upstream(NO_UPSTREAM),
        cost: cost(section).unwrap_or(CostSource::Fixed(1)),
        settle: section.parse("settle", cost_form, settle),
        refund: refund(section).unwrap_or_default(),
        access: access::read(section.section("access")),
        require_client_certificate: matching::client_certificate(section, inherited.certificates),
        body_limit: inherited.max_body,
        timeout: section.optional_duration("timeout", UP_TO_A_DAY),
        body_read: section.size("body_read", 1 << 10..=MAX_BODY_READ as u64),
        ..Route::of_path("", path.unwrap_or_else(every_path))
    };
    check_place_of_settlement(section, route.settle.as_ref());
    let usage = (section.reader.surroundings.forwards)
        .then(|| section.located_text("usage"))
        .flatten();
    check_usage(section, &route);
    let answer = read_changes(section, &mut route, has_path);
    route.path = route.path.in_case(route.case);
    let refunds = match (&route.settle, &usage) {
        (Some(_), _) => Some("settle"),
        (None, Some(_)) => Some("usage"),
        (None, None) => (!route.refund.is_empty()).then_some("refund"),
    };
    DefinedRoute {
        span: section.span.clone(),
        path_span: match has_path {
            true => section.value_span("path"),
            false => section.span.clone(),
        },
        has_path,
        path_text,
        host_text,
        says_case: case.is_some(),
        name: (section.parse("name", name_form, route_name))
            .map(|name| section.located("name", name)),
        upstream: section.located_text("upstream"),
        usage,
        limits: section.texts("limits"),
        error_pages: names(section, "error_pages"),
        access_logs: names(section, "access_logs"),
        cost_span: section.value_span("cost"),
        port_span: section.value_span("port"),
        headers_span: section.value_span("headers"),
        timeout_span: section.value_span("timeout"),
        refunds: refunds.map(|key| section.located(key, key)),
        answers: section.has("respond") || section.has("redirect"),
        answer,
        route,
    }
}

fn route_name(text: &str) -> Result<String, &'static str> {
    if text == NO_ROUTE {
        return Err("metrics have this name for requests without a route");
    }
    let fits = (1..=128).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    fits.then(|| text.to_owned())
        .ok_or("1 to 128 characters, no control characters")
}

fn cost(section: &mut Section<'_>) -> Option<CostSource> {
    section.declare("cost", || ValueKind::IntegerOrText);
    let value = section.peek("cost");
    if !value.is_some_and(|value| value.get_ref().is_str()) {
        let number = section.optional_integer("cost", 0..=MAX_COST);
        return number.map(CostSource::Fixed);
    }
    let form = TextForm::new(Code::BadKey, "a cost");
    section.parse("cost", form, |text| -> Result<CostSource, String> {
        if let Some(path) = text.strip_prefix("body:") {
            let path = MemberPath::parse(path).map_err(|error| error.to_string())?;
            return Ok(CostSource::Body(path));
        }
        let name = text.strip_prefix("header:");
        let name = name.ok_or("write a number, or `\"header:x-cost\"`")?;
        Ok(CostSource::Header(header_name(name)?))
    })
}

fn settle(text: &str) -> Result<Settle, String> {
    const WANTED: &str = "the upstream sends the cost; write `\"response-header:x-cost\"`, \
                          `\"response-json:usage.cost\"` or `\"response-trailer:x-cost\"`";
    let (place, name) = text.split_once(':').ok_or(WANTED)?;
    match place {
        "response-header" => Ok(Settle::Header(header_name(name)?)),
        "response-trailer" => Ok(Settle::Trailer(header_name(name)?)),
        "response-json" => {
            let path = MemberPath::parse(name).map_err(|error| error.to_string())?;
            Ok(Settle::Json(path))
        }
        _ => Err(WANTED.to_owned()),
    }
}

/// Reports other settings of the cost beside `usage`. The default cost is none.
fn check_usage(section: &Section<'_>, route: &Route) {
    let is_given = |key: &&str| section.has("usage") && section.has(key);
    for key in ["cost", "settle"].into_iter().filter(is_given) {
        if key == "cost" && route.cost == CostSource::Fixed(1) {
            continue;
        }
        contradiction(format!("a route has `usage` or `{key}`, not both"))
            .at(&section.key_span(key), "")
            .at(
                &section.key_span("usage"),
                "the answer says what a request costs",
            )
            .help(format!(
                "leave out `{key}`; `cost` of a limit multiplies what it counts"
            ))
            .report_to(section.reader);
    }
}

/// Reports a cost after the head of an answer where only heads are read.
fn check_place_of_settlement(section: &Section<'_>, settle: Option<&Settle>) {
    let is_later = matches!(settle, Some(Settle::Json(_) | Settle::Trailer(_)));
    if is_later && !section.reader.surroundings.forwards {
        contradiction("the library reads the head of an answer only")
            .at(&section.value_span("settle"), "is for the proxy")
            .help("write `settle = \"response-header:x-cost\"`")
            .report_to(section.reader);
    }
}

fn refund(section: &mut Section<'_>) -> Option<StatusSet> {
    let allowed = "one or more; leave `refund` out for none";
    section.declare("refund", || ValueKind::WordsOrStatuses(Vec::new()));
    let texts = section.counted_texts("refund", 1..=usize::MAX, allowed)?;
    let mut set = StatusSet::default();
    section.parse_all("refund", Some(texts), TextForm::STATUS, |text| {
        set.add(text)
    });
    Some(set)
}

/// Parses a path pattern. Its finding points to the wrong part of the pattern.
pub(super) fn path_pattern(section: &Section<'_>, text: Located<String>) -> Option<PathPattern> {
    match PathPattern::parse(&text.value) {
        Ok(pattern) => Some(pattern),
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
                .maybe_help(habits::advice_for(Code::BadPattern, &text.value))
                .report_to(section.reader);
            None
        }
    }
}

/// Reads names of sections that only a proxy has.
fn names(section: &mut Section<'_>, key: &'static str) -> Option<Vec<Located<String>>> {
    let forwards = section.reader.surroundings.forwards;
    forwards.then(|| section.texts(key)).flatten()
}

/// Reads the changes on the way of requests and responses. Returns the answer in place of an
/// upstream, if it has one that could be read.
fn read_changes(section: &mut Section<'_>, route: &mut Route, has_path: bool) -> Option<Target> {
    if !section.reader.surroundings.forwards {
        return None;
    }
    let form = TextForm::new(Code::BadPattern, "a path's beginning");
    let path = has_path.then(|| route.path.clone());
    if let Some(prefix) = section.parse("strip_prefix", form, Prefix::parse) {
        let begin = prefix.clone().in_case(route.case);
        check_prefix(
            section,
            "strip_prefix",
            begin.as_str(),
            path.as_ref(),
            route.case,
        );
        route.strip_prefix = Some(prefix.in_case(route.case));
    }
    route.add_prefix = section.parse("add_prefix", form, Prefix::parse);
    route.replace_prefix = forwarding::replacement(section, route.case).map(Box::new);
    if let Some(replacement) = &route.replace_prefix {
        check_prefix(
            section,
            "replace_prefix",
            replacement.from(),
            path.as_ref().filter(|path| !path.is_regex()),
            route.case,
        );
    }
    route.body_limit = section
        .size_or_unlimited("body_limit")
        .unwrap_or(route.body_limit);
    route.bandwidth = forwarding::bandwidth(section);
    let up = forwarding::header_changes(section, "headers_up", Direction::Up);
    let mut down = forwarding::header_changes(section, "headers_down", Direction::Down);
    let success = forwarding::header_changes(section, "headers_success", Direction::Down);
    down.extend(success);
    route.expires = forwarding::expires(section);
    let trailers = forwarding::header_changes(section, "trailers_down", Direction::Trailer);
    route.method_up = forwarding::method(section);
    route.pass_headers = section.boolean("pass_headers");
    route.pass_body = section.boolean("pass_body");
    route.rewrite_down = forwarding::response_rewrites(section).map(Box::new);
    route.location_base = forwarding::location_base(section);
    let answer = forwarding::answer(section);
    check_answers_alone(section);
    let late: Vec<_> = down.iter().chain(&trailers).collect();
    check_templates(
        section,
        path.as_ref(),
        &route.host,
        &up,
        &late,
        answer.as_ref(),
    );
    let base = route.location_base.as_ref().map(LocationBase::text);
    for (key, text) in [
        ("method_up", route.method_up.as_ref()),
        ("location_base", base),
    ] {
        let Some(text) = text else { continue };
        let span = section.value_span(key);
        check_variables(section, path.as_ref(), &route.host, text, &span);
        check_is_early(section, text, &span);
    }
    check_settle(section, route.settle_header(), &down);
    route.headers_up = values(up);
    route.headers_down = values(down);
    route.trailers_down = values(trailers);
    answer
}

/// Reports settings for an upstream in a route that answers by itself.
fn check_answers_alone(section: &Section<'_>) {
    let mut answers = ["redirect", "respond"].into_iter();
    let Some(answer) = answers.find(|key| section.has(key)) else {
        return;
    };
    let keys = UPSTREAM_KEYS.into_iter();
    for key in keys.filter(|key| section.has(key)) {
        contradiction(format!("`{key}` has no effect here"))
            .at(&section.key_span(key), "")
            .at(&section.key_span(answer), "the route answers by itself")
            .report_to(section.reader);
    }
}

/// Reports variables that have no value where they stand.
fn check_templates(
    section: &Section<'_>,
    path: Option<&PathPattern>,
    host: &HostPattern,
    up: &[Located<HeaderChange>],
    down: &[&Located<HeaderChange>],
    answer: Option<&Target>,
) {
    let texts = up.iter().chain(down.iter().copied());
    for (index, change) in texts.enumerate() {
        if let Action::Set(HeaderText::Made(text)) | Action::Add(HeaderText::Made(text)) =
            &change.value.action
        {
            check_variables(section, path, host, text, &change.span);
            if index < up.len() {
                check_is_early(section, text, &change.span);
            }
        }
    }
    if let Some(Target::Redirect(redirect)) = answer {
        let span = section.key_span("redirect");
        check_variables(section, path, host, redirect.to(), &span);
        check_is_early(section, redirect.to(), &span);
    }
    if let Some(Target::Respond(respond)) = answer
        && let RespondBody::Made(body) = &respond.body
    {
        let span = section.key_span("respond");
        check_variables(section, path, host, body.template(), &span);
        check_is_early(section, body.template(), &span);
    }
}

/// Reports a change of the header by which the upstream settles the cost.
fn check_settle(
    section: &Section<'_>,
    settle: Option<&HeaderName>,
    headers_down: &[Located<HeaderChange>],
) {
    let same = headers_down
        .iter()
        .find(|change| Some(&change.value.name) == settle);
    if let Some(change) = same {
        contradiction(format!("`{}` never reaches the client", change.value.name))
            .at(&change.span, "is changed")
            .at(
                &section.value_span("settle"),
                "the proxy removes the header that settles the cost",
            )
            .report_to(section.reader);
    }
}

fn check_variables(
    section: &Section<'_>,
    path: Option<&PathPattern>,
    host: &HostPattern,
    text: &Template,
    span: &TextSpan,
) {
    let unknown_to_path = path.and_then(|path| text.unknown_to_path(path));
    let unknown_to_host = text.unknown_to_host(host);
    for (unknown, key) in [(unknown_to_path, "path"), (unknown_to_host, "host")] {
        let Some(unknown) = unknown else { continue };
        let message = format!("the {key} has nothing for `{{{unknown}}}`");
        let mut found = Diagnostic::new(Code::NoSuchParameter, message).at(span, "asked for here");
        if section.has(key) {
            found = found.at(&section.value_span(key), format!("{key}s of the route"));
        }
        found.report_to(section.reader);
    }
}

fn check_is_early(section: &Section<'_>, text: &Template, span: &TextSpan) {
    if text.is_late() {
        contradiction(
            "only `headers_down`, `headers_success` and `trailers_down` can tell what an \
             upstream has answered",
        )
        .at(span, "has no value yet")
        .report_to(section.reader);
    }
}

fn check_prefix(
    section: &Section<'_>,
    key: &'static str,
    begin: &str,
    path: Option<&PathPattern>,
    case: Case,
) {
    let whole = path.map(|path| path.clone().in_case(case));
    if !begin.is_empty() && whole.is_some_and(|whole| !whole.begins_with(begin)) {
        let help = format!("write for example `path = \"{begin}/*\"`");
        contradiction("not every path begins with this")
            .at(&section.value_span(key), "is taken off")
            .at(&section.value_span("path"), "paths of the route")
            .help(help)
            .report_to(section.reader);
    }
}
