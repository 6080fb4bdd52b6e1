//! The actions of locations: they send requests to an upstream, answer them or redirect them. Other
//! actions close the route.

use http::StatusCode;

use super::directives;
use super::scope::{BlockScope, LocationPath};
use super::syntax::Directive;
use super::upstreams::ProxyPass;
use super::variables;
use crate::draft::{Draft, RouteAction, TargetDraft};
use crate::patterns;
use crate::route::Redirect;
use crate::route::template::BodyTemplate;

/// Directives that serve files, or speak to servers in another protocol than HTTP.
const UNSUPPORTED: [&str; 11] = [
    "fastcgi_pass",
    "uwsgi_pass",
    "scgi_pass",
    "memcached_pass",
    "root",
    "alias",
    "try_files",
    "content_by_lua_block",
    "stub_status",
    "autoindex",
    "dav_methods",
];

/// For which request a location answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswersTo {
    Client,
    /// A request that nginx makes for an error page. The upstream has answered before.
    ErrorPage,
}

pub(super) fn find_action(
    scope: &BlockScope<'_>,
    path: &LocationPath<'_>,
    draft: &mut Draft,
) -> RouteAction {
    match scope.first("internal") {
        Some(_) => TargetDraft::respond(404).into(),
        None => find_inner_action(scope, path, AnswersTo::Client, draft),
    }
}

/// The same for requests that nginx makes itself.
pub(super) fn find_inner_action(
    scope: &BlockScope<'_>,
    path: &LocationPath<'_>,
    answers_to: AnswersTo,
    draft: &mut Draft,
) -> RouteAction {
    // nginx answers and rewrites before it checks access, and before it limits.
    if let Some(one) = scope.first("return") {
        return translate_return(one, scope, answers_to).into();
    }
    let mut path = *path;
    for one in scope.named("rewrite") {
        match translate_rewrite(one, &path) {
            Ok(Some(target)) => return target.into(),
            Ok(None) => path.new_beginning = Some(one.arg(1).trim_end_matches("$1")),
            Err(why) => return one.close(&why).into(),
        }
    }
    if let Some(denial) = directives::guard_of_route(scope) {
        return denial.into();
    }
    if let Some(pass) = ProxyPass::find(scope) {
        return pass.translate(&path, draft);
    }
    if let Some(fallback) = find_fallback(scope) {
        let why = "the proxy looks for no files: every request goes on to the named location";
        fallback.one.differs(why);
        if !directives::have_same_addresses(scope, &fallback.scope) {
            let why = "the named location admits other addresses; the route is closed";
            return fallback.one.close(why).into();
        }
        return find_action(&fallback.scope, &path, draft);
    }
    let is_unsupported = |one: &&Directive| UNSUPPORTED.contains(&one.name.as_str());
    match scope.block().inner().iter().find(is_unsupported) {
        Some(one) => {
            let why = "tidegate serves no files, and speaks HTTP only with its upstreams";
            one.close(why).into()
        }
        None => TargetDraft::respond(404).into(),
    }
}

pub(super) struct FileFallback<'d> {
    one: &'d Directive,
    pub(super) scope: BlockScope<'d>,
}

/// Finds the location of `try_files $uri @app;`, unless that location has a `try_files` itself.
pub(super) fn find_fallback<'d>(scope: &BlockScope<'d>) -> Option<FileFallback<'d>> {
    let one = scope.first("try_files")?;
    let name = one.args.last().filter(|name| name.starts_with('@'))?;
    let scope = scope.enter_named(name)?;
    let ends = scope.first("try_files").is_none();
    ends.then_some(FileFallback { one, scope })
}

/// Translates `return 301 https://$host$request_uri;`.
pub(super) fn translate_return(
    one: &Directive,
    scope: &BlockScope<'_>,
    answers_to: AnswersTo,
) -> TargetDraft {
    let (status, rest) = match one.arg(0).parse::<u16>() {
        Ok(status) => (status, one.args.get(1)),
        Err(_) => (302, one.args.first()),
    };
    let is_redirect = matches!(status, 301 | 302 | 303 | 307 | 308);
    match rest {
        Some(to) if is_redirect => {
            returned_redirect(to, status, scope).unwrap_or_else(|why| one.close(&why))
        }
        // No response, as with tidegate.
        _ if status == 444 => TargetDraft::respond(444),
        _ if !(200..=599).contains(&status) => {
            one.lost("no such status");
            TargetDraft::respond(404)
        }
        body => {
            let body = body.filter(|_| !matches!(status, 204 | 205 | 304));
            let content_type = scope.last_arg("default_type").map(str::to_owned);
            let has_variables = body.is_some_and(|text| !variables::is_constant(text));
            let body = match body.filter(|_| has_variables) {
                Some(text) => match returned_template(text, scope, answers_to) {
                    Ok(template) => Some(template),
                    Err(why) => return one.close(&why),
                },
                None => body.cloned(),
            };
            TargetDraft::Respond {
                status,
                content_type: content_type.filter(|kind| body.is_some() && kind.contains('/')),
                body,
                has_variables,
            }
        }
    }
}

fn returned_template(
    text: &str,
    scope: &BlockScope<'_>,
    answers_to: AnswersTo,
) -> Result<String, String> {
    let template = variables::translate_value(text, scope)?;
    match BodyTemplate::parse(&template) {
        Ok(body) if answers_to == AnswersTo::Client && body.template().is_late() => {
            Err("no upstream answers here".to_owned())
        }
        Ok(_) => Ok(template),
        Err(why) => Err(why.to_string()),
    }
}

fn returned_redirect(to: &str, status: u16, scope: &BlockScope<'_>) -> Result<TargetDraft, String> {
    // This name is in the file, so no client can choose it.
    let name = scope.last_arg("server_name").unwrap_or_default();
    let mut to = to.to_owned();
    for (theirs, ours) in [
        ("$server_name", name),
        ("${server_name}", name),
        ("$is_args$args", "?$args"),
        ("$uri?$args", "$request_uri"),
    ] {
        to = to.replace(theirs, ours);
    }
    let to = variables::translate_value(&to, scope)?;
    let regex = scope.location_regex().filter(|_| to.contains("{path:"));
    if regex.is_some_and(|regex| may_lead_back(&to, regex, scope)) {
        return Err(LEADS_BACK.to_owned());
    }
    match can_redirect(&to, status) {
        true => Ok(TargetDraft::Redirect { to, status }),
        false => Err(format!(
            "`{to}` is no place that a route may send clients to"
        )),
    }
}

const LEADS_BACK: &str = "a slash at a path's end makes no difference to an expression, so the \
                          redirect could lead to itself";

/// Whether a redirect may lead to another path that the expression of its route matches.
fn may_lead_back(to: &str, regex: &str, scope: &BlockScope<'_>) -> bool {
    let (host, path) = match to.split_once("://") {
        Some((_, rest)) => rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len())),
        None => ("", to),
    };
    let names = scope.inherited("server_name");
    let is_own = host.is_empty() || host.contains('{') || names.iter().any(|one| one.has_arg(host));
    let fixed = path.split(['{', '?']).next().unwrap_or_default();
    let beginning = patterns::regex_beginning(regex);
    let beginning = beginning.trim_end_matches('/');
    is_own && (fixed.starts_with(beginning) || beginning.starts_with(fixed))
}

fn can_redirect(to: &str, status: u16) -> bool {
    let code = StatusCode::from_u16(status).unwrap_or(StatusCode::FOUND);
    Redirect::new(to, code).is_ok()
}

/// Translates the two kinds that routes have: a redirect of all requests, and another beginning of
/// the path, which is `None`.
fn translate_rewrite(
    one: &Directive,
    path: &LocationPath<'_>,
) -> Result<Option<TargetDraft>, String> {
    let (from, to, flag) = (one.arg(0), one.arg(1), one.arg(2));
    let status = redirect_status(one);
    let matches_all = matches!(
        from,
        "^" | "^/(.*)$" | "^/(.*)" | "^(.*)$" | "^(.*)" | ".*" | "^.*$"
    );
    if let (Some(status), true) = (status, matches_all) {
        let whole = if from.starts_with("^/") { "/$1" } else { "$1" };
        let to = to.trim_end_matches('?').replace(whole, "$request_uri");
        let mut to = variables::translate_template(&to)?;
        if !one.arg(1).ends_with('?') && !to.contains("{uri}") {
            add_query(&mut to);
        }
        return match can_redirect(&to, status) {
            true => Ok(Some(TargetDraft::Redirect { to, status })),
            false => Err("not a place that a route may send clients to".to_owned()),
        };
    }
    let own = path.path.unwrap_or_default().trim_end_matches('/');
    let rests = ["/(.*)$", "/(.*)", "/?(.*)$", "(/.*)$"];
    let takes_rest = rests.iter().any(|rest| format!("^{own}{rest}") == from);
    let group_has_slash = from.ends_with("(/.*)$");
    let begins_anew = to.strip_suffix("$1").is_some_and(|beginning| {
        let is_path = beginning.starts_with('/') && !beginning.contains(['$', '?']);
        let is_whole = beginning.ends_with('/') != group_has_slash;
        matches!(beginning, "" | "/") || is_path && is_whole
    });
    match takes_rest && begins_anew && flag == "break" && !own.is_empty() && !path.is_exact {
        true => Ok(None),
        false => Err("no route can say this rewrite".to_owned()),
    }
}

/// Returns the status with which a `rewrite` redirects; `None` if it does not.
fn redirect_status(one: &Directive) -> Option<u16> {
    let to = one.arg(1);
    match one.arg(2) {
        "permanent" => Some(301),
        "redirect" => Some(302),
        _ if to.starts_with("http://") || to.starts_with("https://") => Some(302),
        _ => None,
    }
}

/// Adds the query of the request to a place.
fn add_query(to: &mut String) {
    let mark = if to.contains('?') { '&' } else { '?' };
    to.push(mark);
    to.push_str("{query}");
}

/// Translates `rewrite ^/old/(.*)$ /new/$1 permanent` of a server. A route with the same expression
/// redirects.
fn redirect_paths(one: &Directive, scope: &BlockScope<'_>) -> Option<AnsweredPath> {
    let status = redirect_status(one)?;
    let regex = patterns::translate_regex(one.arg(0), false).ok()?;
    let place = one.arg(1).trim_end_matches('?');
    let mut to = variables::translate_place(place, one.arg(0), scope).ok()?;
    if !one.arg(1).ends_with('?') && !to.contains("{uri}") {
        add_query(&mut to);
    }
    let is_possible = can_redirect(&to, status) && !may_lead_back(&to, one.arg(0), scope);
    is_possible.then(|| AnsweredPath {
        path: format!("regex:{}", regex.as_str()),
        target: TargetDraft::Redirect { to, status },
    })
}

/// Returns the target of a `rewrite` that redirects; `None` if it does not.
pub(super) fn redirecting_rewrite(one: &Directive) -> Option<TargetDraft> {
    redirect_status(one)?;
    translate_rewrite(one, &LocationPath::default()).unwrap_or_else(|why| Some(one.closed(&why)))
}

#[derive(Default)]
pub(super) struct ServerRewrites {
    /// The server answers all requests before it looks for a location.
    pub(super) answers_all: bool,
    pub(super) answered: Vec<AnsweredPath>,
}

/// Requests that a server redirects, or that are closed.
pub(super) struct AnsweredPath {
    pub(super) path: String,
    pub(super) target: TargetDraft,
}

/// Reads the rewrites of a server. A rewritten path would lead to another location, which no route
/// can do.
pub(super) fn read_server_rewrites(scope: &BlockScope<'_>) -> ServerRewrites {
    let mut found = ServerRewrites::default();
    for one in scope.named("rewrite") {
        let Err(why) = translate_rewrite(one, &LocationPath::default()) else {
            found.answers_all = true;
            return found;
        };
        if let Some(answered) = redirect_paths(one, scope) {
            found.answered.push(answered);
            continue;
        }
        let from = one.arg(0);
        let is_of_some_paths = from
            .strip_prefix("^/")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_alphanumeric()));
        let goes_on = redirecting_rewrite(one).is_none();
        match patterns::widen_regex(from, false) {
            Ok(regex) if is_of_some_paths || goes_on => {
                one.lost(format!("{why}; requests that it is for are closed"));
                found.answered.push(AnsweredPath {
                    path: format!("regex:{regex}"),
                    target: one.closed(&why),
                });
            }
            _ => one.lost(why),
        }
    }
    found.answers_all = scope.first("return").is_some();
    found
}
