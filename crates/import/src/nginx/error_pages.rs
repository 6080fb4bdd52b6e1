//! Translates `error_page`. The page of another location is what that location answers with.

use std::path::Path;

use super::actions::{self, AnswersTo};
use super::directives::{self, AddressRules};
use super::limits;
use super::precedence::{LocationKind, parse_location};
use super::scope::{BlockScope, LocationPath};
use super::syntax::Directive;
use super::upstreams::ProxyPass;
use crate::draft::{Draft, TargetDraft};
use crate::values::{TomlEntries, quote, quote_list};

/// Adds the pages that hold in a scope. Returns their names.
pub(super) fn add_pages(scope: &BlockScope<'_>, draft: &mut Draft) -> Vec<String> {
    let pages = scope.inherited("error_page").into_iter();
    let intercepts = ["proxy_intercept_errors", "grpc_intercept_errors"];
    let intercepts = intercepts.into_iter().any(|name| scope.is_on(name));
    let mut names = Vec::new();
    for one in pages {
        match translate(one, scope, intercepts, draft) {
            Ok(entries) => names.push(one.add_section(&mut draft.error_pages, "page", entries)),
            Err(why) => one.lost(why),
        }
    }
    names
}

/// The status of the response, as `error_page` writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageAnswer {
    Same,
    /// `=200`
    Fixed(u16),
    /// `=`
    OfPage,
}

fn translate(
    one: &Directive,
    scope: &BlockScope<'_>,
    intercepts: bool,
    draft: &mut Draft,
) -> Result<TomlEntries, String> {
    let (place, codes) = one.args.split_last().ok_or("it names no page")?;
    let mut status = PageAnswer::Same;
    let mut errors = Vec::new();
    for code in codes {
        match (code.strip_prefix('='), code.parse::<u16>()) {
            (Some(""), _) => status = PageAnswer::OfPage,
            (Some(fixed), _) => {
                status = PageAnswer::Fixed(fixed.parse().map_err(|_| "no such status")?);
            }
            (None, Ok(400..=599)) => errors.push(code.clone()),
            (None, _) => return Err("only errors from 400 on have pages".to_owned()),
        }
    }
    if place.contains('$') {
        return Err("the place of a page has no variables".to_owned());
    }
    let mut entries = TomlEntries::default();
    entries.add("status", quote_list(&errors));
    if place.starts_with("http://") || place.starts_with("https://") {
        entries.add("redirect", quote(place));
        if let PageAnswer::Fixed(status @ (301 | 302 | 303 | 307 | 308)) = status {
            entries.add("answer", status.to_string());
        }
    } else {
        add_source(&mut entries, one, scope, status, draft)?;
    }
    if intercepts {
        entries.add("upstream_errors", "true");
    }
    Ok(entries)
}

/// How a page of a named location differs.
const NAMED_PAGE: &str = "the server gets GET, without the body and the headers of the client, and \
                          no limit counts it";

/// Adds what the location of a page answers with.
fn add_source(
    entries: &mut TomlEntries,
    one: &Directive,
    scope: &BlockScope<'_>,
    status: PageAnswer,
    draft: &mut Draft,
) -> Result<(), String> {
    let place = one.args.last().map_or("", String::as_str);
    let found = find_source(scope, place).ok_or("no location has this page")?;
    let ErrorPageTarget { scope: inner, path } = found;
    check_guards(one, scope, &inner)?;
    let location = LocationPath {
        path: path.as_deref(),
        ..LocationPath::default()
    };
    if let Some(file) = page_file(&inner, place) {
        entries.add("file", quote(&file));
        if let PageAnswer::Fixed(status) = status {
            entries.add("answer", status.to_string());
        }
        return Ok(());
    }
    let action = actions::find_inner_action(&inner, &location, AnswersTo::ErrorPage, draft);
    let mut answer = match status {
        PageAnswer::Fixed(status) => Some(status.to_string()),
        PageAnswer::Same | PageAnswer::OfPage => None,
    };
    match action.target {
        TargetDraft::Respond {
            status: own,
            body,
            has_variables,
            content_type,
        } => {
            // An error that a page answers with is not changed by the page's own directive.
            if status == PageAnswer::OfPage
                || status == PageAnswer::Same && own >= 400 && body.is_none()
            {
                answer = Some(own.to_string());
            }
            entries.add("body", quote(&body.unwrap_or_default()));
            if has_variables {
                entries.add("variables", "true");
            }
            if let Some(content_type) = content_type {
                entries.add("content_type", quote(&content_type));
            }
        }
        TargetDraft::Redirect { to, status: own } if !to.contains('{') => {
            entries.add("redirect", quote(&to));
            answer = Some(own.to_string());
        }
        TargetDraft::Upstream(name) => {
            if status == PageAnswer::OfPage {
                answer = Some(quote("upstream"));
            }
            entries.add("upstream", quote(&name));
            match &path {
                Some(path) => {
                    let pass = ProxyPass::find(&inner);
                    let pass = pass.ok_or("the location does not ask by itself")?;
                    entries.add("path", quote(&pass.asked_path(path, place)?));
                }
                None => one.differs(NAMED_PAGE),
            }
        }
        TargetDraft::Redirect { .. } => {
            return Err("a page redirects to a fixed place only".to_owned());
        }
        TargetDraft::Closed(why) => return Err(why),
    }
    if let Some(answer) = answer {
        entries.add("answer", answer);
    }
    Ok(())
}

/// Errors that nginx may find before it checks addresses.
const EARLY_ERRORS: [&str; 4] = ["400", "403", "413", "414"];

/// Fails with a reason if nginx checks a request again in the location that a page is asked for in.
/// Here a page is asked for without these checks.
fn check_guards(
    one: &Directive,
    scope: &BlockScope<'_>,
    inner: &BlockScope<'_>,
) -> Result<(), String> {
    let fallback = actions::find_fallback(inner);
    let fallback = fallback.as_ref().map(|fallback| &fallback.scope);
    let asks = |scope: &&BlockScope<'_>| {
        scope.first("return").is_none() && ProxyPass::find(scope).is_some()
    };
    let is_early = answers_early(one, scope);
    for asked in [Some(inner), fallback].into_iter().flatten().filter(asks) {
        let has_condition = |name: &&&str| asked.first(name).is_some();
        if let Some(name) = ["if", "limit_except"].iter().find(has_condition) {
            return Err(format!(
                "a page is asked for without the `{name}` of its location"
            ));
        }
        let has_lists = matches!(directives::address_rules(asked), AddressRules::Lists(_));
        if has_lists && (is_early || !directives::have_same_addresses(asked, scope)) {
            let why = "a page is asked for without the `allow` and `deny` of its location";
            return Err(why.to_owned());
        }
        // nginx counts a request once, where it first comes to limits of a kind.
        let counts = |kind: &&&str| {
            let is_counted = !is_early && !scope.inherited(kind).is_empty();
            !is_counted && !asked.inherited(kind).is_empty()
        };
        if let Some(kind) = limits::KINDS.iter().find(counts) {
            return Err(format!(
                "a page is asked for without the `{kind}` of its location"
            ));
        }
    }
    Ok(())
}

/// Whether one of the errors of a page comes before nginx checks addresses and counts requests.
fn answers_early(page: &Directive, scope: &BlockScope<'_>) -> bool {
    let returns = |block: &Directive| {
        let mut answers = block.named("return");
        answers.any(|answer| page.has_arg(answer.arg(0)))
    };
    EARLY_ERRORS.iter().any(|error| page.has_arg(error))
        || scope
            .levels
            .iter()
            .any(|level| returns(level) || level.named("if").any(returns))
}

/// The file of a page in a location that serves files, if it is on this machine.
fn page_file(scope: &BlockScope<'_>, place: &str) -> Option<String> {
    let handles = ["return", "proxy_pass", "grpc_pass", "alias", "rewrite"];
    if !place.starts_with('/') || handles.iter().any(|name| scope.first(name).is_some()) {
        return None;
    }
    let root = scope
        .last_arg("root")
        .filter(|root| root.starts_with('/'))?;
    let file = format!("{}{place}", root.trim_end_matches('/'));
    Path::new(&file).is_file().then_some(file)
}

/// The location that a page comes from.
struct ErrorPageTarget<'d> {
    scope: BlockScope<'d>,
    /// `None` if it has a name in place of a path.
    path: Option<String>,
}

/// Finds the location of a page, by its name or by the page's path.
fn find_source<'d>(scope: &BlockScope<'d>, place: &str) -> Option<ErrorPageTarget<'d>> {
    if place.starts_with('@') {
        let scope = scope.enter_named(place)?;
        return Some(ErrorPageTarget { scope, path: None });
    }
    find_location(scope, place.split('?').next().unwrap_or(place))
}

/// The location of a path in the server around a scope: an exact one, or the longest prefix.
fn find_location<'d>(scope: &BlockScope<'d>, path: &str) -> Option<ErrorPageTarget<'d>> {
    let server = scope.server()?;
    let mut best: Option<(&'d Directive, &'d str)> = None;
    for one in server.block().named("location") {
        let Some((kind, own)) = parse_location(one) else {
            continue;
        };
        let fits = match kind {
            LocationKind::Exact => own == path,
            kind => kind.is_prefix() && path.starts_with(own),
        };
        if fits && best.is_none_or(|(_, best)| own.len() >= best.len()) {
            best = Some((one, own));
            if kind == LocationKind::Exact {
                break;
            }
        }
    }
    let (one, own) = best?;
    Some(ErrorPageTarget {
        scope: server.enter(one),
        path: Some(own.to_owned()),
    })
}
