//! `rewrite`: redirects, prefixes that are taken off, and what cannot be said of paths.

use http::StatusCode;

use super::expressions;
use super::outcome::{At, Outcome};
use super::scope::Scope;
use super::syntax::Directive;
use super::values;
use crate::draft::{Draft, Goal};
use crate::route::Redirect;

/// What a `rewrite` comes to.
pub(super) enum Rewritten {
    To(Goal),
    /// The location's own path is taken off.
    Stripped,
}

/// The two kinds that routes can say: a redirect of everything, and a prefix that is taken off.
pub(super) fn rewritten(one: &Directive, path: &At<'_>) -> Result<Rewritten, String> {
    let (from, to, flag) = (one.arg(0), one.arg(1), one.arg(2));
    let status = match flag {
        "permanent" => Some(301),
        "redirect" => Some(302),
        _ if to.starts_with("http://") || to.starts_with("https://") => Some(302),
        _ => None,
    };
    let takes_all = matches!(
        from,
        "^" | "^/(.*)$" | "^/(.*)" | "^(.*)$" | "^(.*)" | ".*" | "^.*$"
    );
    if let (Some(status), true) = (status, takes_all) {
        let slash = from.starts_with("^/");
        let whole = if slash { "/$1" } else { "$1" };
        let to = to.trim_end_matches('?').replace(whole, "$request_uri");
        let code = StatusCode::from_u16(status).unwrap_or(StatusCode::FOUND);
        let ours = values::template(&to).map_err(|name| format!("there is no {name} here"))?;
        return match Redirect::new(&ours, code) {
            Ok(_) => Ok(Rewritten::To(Goal::Redirect { to: ours, status })),
            Err(_) => Err("not a place that a route may send clients to".to_owned()),
        };
    }
    let own = path
        .path
        .map(|path| path.trim_end_matches('/'))
        .unwrap_or_default();
    let ours = ["/(.*)$", "/(.*)", "/?(.*)$", "(/.*)$"].map(|rest| format!("^{own}{rest}"));
    let strips = ours.iter().any(|one| one == from) && matches!(to, "/$1" | "$1");
    match strips && flag == "break" && !own.is_empty() && !path.is_exact {
        true => Ok(Rewritten::Stripped),
        false => Err("no route can say this rewrite".to_owned()),
    }
}

/// What a redirecting `rewrite` comes to, whoever it is for; nothing where it does not redirect.
pub(super) fn redirected(one: &Directive) -> Option<Outcome> {
    let to = one.arg(1);
    let absolute = to.starts_with("http://") || to.starts_with("https://");
    if !absolute && !matches!(one.arg(2), "permanent" | "redirect") {
        return None;
    }
    let whole = At {
        path: None,
        is_exact: false,
        is_stripped: false,
    };
    Some(match rewritten(one, &whole) {
        Ok(Rewritten::To(goal)) => goal.into(),
        Ok(Rewritten::Stripped) => return None,
        Err(why) => Goal::Closed(format!("`{}`: {why}", one.line())).into(),
    })
}

/// What the rewrites of a whole server come to.
#[derive(Default)]
pub(super) struct ServerRewrites {
    /// All requests are answered before any location is looked for.
    pub(super) answers_all: bool,
    /// Expressions of paths whose requests are closed, and why.
    pub(super) closed: Vec<(String, String)>,
}

/// Looks at the rewrites of a server. What they do to a path cannot be kept: requests with such a
/// path would reach another location than the one that was meant.
pub(super) fn server_rewrites(scope: &Scope<'_>, draft: &mut Draft) -> ServerRewrites {
    let whole = At {
        path: None,
        is_exact: false,
        is_stripped: false,
    };
    let mut found = ServerRewrites::default();
    for one in scope.own().iter().filter(|one| one.name == "rewrite") {
        let why = match rewritten(one, &whole) {
            Ok(_) => {
                found.answers_all = true;
                return found;
            }
            Err(why) => why,
        };
        let is_of_some = one
            .arg(0)
            .strip_prefix("^/")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_alphanumeric()));
        let goes_on = redirected(one).is_none();
        match expressions::widened(one.arg(0), false) {
            Ok(text) if is_of_some || goes_on => {
                let told = format!("{why}; requests that it is for are closed");
                draft.notes.lost(&one.place, &one.line(), told);
                let told = format!("`{}`: {why}", one.line());
                found.closed.push((format!("regex:{text}"), told));
            }
            _ => draft.notes.lost(&one.place, &one.line(), why),
        }
    }
    found.answers_all = scope.here("return").is_some();
    found
}
