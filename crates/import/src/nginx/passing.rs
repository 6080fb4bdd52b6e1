//! What a location does with a request: passes it on, answers it, or something that cannot be said.

use super::Http;
use super::access;
pub(super) use super::outcome::{At, Outcome, respond};
use super::rewrites::{Rewritten, rewritten};
use super::scope::Scope;
use super::syntax::Directive;
use super::upstreams;
use super::values;
use crate::draft::{Draft, Goal, ServerDraft, Setting, UpstreamDraft};
use crate::notes::Notes;
use crate::print::text;
use crate::route::Redirect;
use http::StatusCode;

/// Directives that serve files or speak what upstreams do not.
const OTHERS: [&str; 11] = [
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

/// The outcome of a scope whose requests begin with `path` (`None` for one path only).
pub(super) fn outcome(
    http: &Http<'_>,
    scope: &Scope<'_>,
    path: &At<'_>,
    draft: &mut Draft,
) -> Outcome {
    if scope.here("internal").is_some() {
        return respond(404).into();
    }
    // nginx answers and rewrites before it looks who comes, and before it limits.
    if let Some(one) = scope.here("return") {
        return returned(one, scope, &mut draft.notes).into();
    }
    let mut path = *path;
    for one in scope.own().iter().filter(|one| one.name == "rewrite") {
        match rewritten(one, &path) {
            Ok(Rewritten::To(goal)) => {
                if !matches!(&goal, Goal::Redirect { to, .. } if to.contains("{uri}")) {
                    let why = "the query is not taken along";
                    draft.notes.differs(&one.place, &one.line(), why);
                }
                return goal.into();
            }
            Ok(Rewritten::Stripped) => path.is_stripped = true,
            Err(why) => {
                draft.notes.lost(&one.place, &one.line(), why.clone());
                return Goal::Closed(format!("`{}`: {why}", one.line())).into();
            }
        }
    }
    match access::guard(scope, &mut draft.notes) {
        Some(access::Guard::Nobody) => return respond(403).into(),
        Some(access::Guard::Some(why)) => return Goal::Closed(why).into(),
        None => {}
    }
    for (pass, prefix, plain, secure) in [
        ("proxy_pass", "proxy", "http", "https"),
        ("grpc_pass", "grpc", "h2c", "https"),
    ] {
        if let Some(one) = scope.here(pass) {
            let version = scope.last("proxy_http_version").map(|one| one.arg(0));
            let speaks_2 = prefix == "proxy" && matches!(version, Some("2" | "2.0"));
            let to = Pass {
                one,
                prefix,
                plain: if speaks_2 { "h2c" } else { plain },
                secure,
            };
            return to.outcome(http, scope, &path, draft);
        }
    }
    if let Some(fallback) = fallback(scope) {
        let one = scope.here("try_files").unwrap_or(fallback.one);
        let why = "the proxy looks for no files: every request goes on to the named location";
        draft.notes.differs(&one.place, &one.line(), why);
        return outcome(http, &fallback.scope, &path, draft);
    }
    let other = scope
        .own()
        .iter()
        .find(|one| OTHERS.contains(&one.name.as_str()));
    match other {
        Some(one) => {
            let why = "tidegate serves no files, and speaks HTTP only with its upstreams";
            draft.notes.lost(&one.place, &one.line(), why);
            Goal::Closed(format!("`{}`: {why}", one.line())).into()
        }
        None => respond(404).into(),
    }
}

/// The location that a `try_files` ends in.
pub(super) struct Fallback<'d> {
    one: &'d Directive,
    pub(super) scope: Scope<'d>,
}

/// `try_files $uri @app;`, unless the location named has one itself.
pub(super) fn fallback<'d>(scope: &Scope<'d>) -> Option<Fallback<'d>> {
    let one = scope.here("try_files")?;
    let name = one.args.last().filter(|name| name.starts_with('@'))?;
    let named = scope.named(name)?;
    let ends = named.here("try_files").is_none();
    ends.then_some(Fallback { one, scope: named })
}

/// `return 301 https://$host$request_uri;`
pub(super) fn returned(one: &Directive, scope: &Scope<'_>, notes: &mut Notes) -> Goal {
    let (status, rest) = match one.arg(0).parse::<u16>() {
        Ok(status) => (status, one.args.get(1)),
        Err(_) => (302, one.args.first()),
    };
    let is_redirect = matches!(status, 301 | 302 | 303 | 307 | 308);
    match rest {
        Some(to) if is_redirect => match redirect(to, status, scope) {
            Ok(goal) => goal,
            Err(why) => {
                notes.lost(&one.place, &one.line(), why.clone());
                Goal::Closed(format!("`{}`: {why}", one.line()))
            }
        },
        _ if status == 444 => {
            let why = "connections are not cut without an answer; it is 403";
            notes.differs(&one.place, &one.line(), why);
            respond(403)
        }
        Some(body) if body.contains('$') => {
            let why = "an answer's body has no variables";
            notes.lost(&one.place, &one.line(), why);
            Goal::Closed(format!("`{}`: {why}", one.line()))
        }
        _ if !(200..=599).contains(&status) => {
            notes.lost(&one.place, &one.line(), "no such status");
            respond(404)
        }
        body => {
            let kind = scope.last("default_type").map(|one| one.arg(0).to_owned());
            Goal::Respond {
                status,
                content_type: kind.filter(|kind| body.is_some() && kind.contains('/')),
                body: body.filter(|_| !matches!(status, 204 | 205 | 304)).cloned(),
            }
        }
    }
}

fn redirect(to: &str, status: u16, scope: &Scope<'_>) -> Result<Goal, String> {
    // The name is known here, and no client can choose it.
    let name = scope.last("server_name").map_or("", |one| one.arg(0));
    let mut to = to.to_owned();
    for (theirs, ours) in [
        ("$server_name", name),
        ("${server_name}", name),
        ("$scheme://", "https://"),
        ("$is_args$args", "?$args"),
        ("$uri?$args", "$request_uri"),
    ] {
        to = to.replace(theirs, ours);
    }
    let to = values::template(&to).map_err(|name| format!("there is no {name} here"))?;
    let code = StatusCode::from_u16(status).unwrap_or(StatusCode::FOUND);
    match Redirect::new(&to, code) {
        Ok(_) => Ok(Goal::Redirect { to, status }),
        Err(_) => Err(format!(
            "`{to}` is no place that a route may send clients to"
        )),
    }
}

/// `proxy_pass` or `grpc_pass`
struct Pass<'p> {
    one: &'p Directive,
    /// Of the directives that belong to it.
    prefix: &'p str,
    plain: &'p str,
    secure: &'p str,
}

impl Pass<'_> {
    fn outcome(
        &self,
        http: &Http<'_>,
        scope: &Scope<'_>,
        path: &At<'_>,
        draft: &mut Draft,
    ) -> Outcome {
        let target = self.target();
        let settings = target.as_ref().map_err(Clone::clone);
        let settings = settings.and_then(|to| stripped(to.uri, path, &mut draft.notes, self.one));
        match (target, settings) {
            (Ok(to), Ok(settings)) => Outcome {
                goal: Goal::Upstream(self.upstream(&to, http, scope, draft)),
                settings,
            },
            (Err(why), _) | (_, Err(why)) => {
                draft
                    .notes
                    .lost(&self.one.place, &self.one.line(), why.clone());
                Goal::Closed(format!("`{}`: {why}", self.one.line())).into()
            }
        }
    }

    /// Where to, as it is written.
    fn target(&self) -> Result<To<'_>, String> {
        let whole = self.one.arg(0);
        let (scheme, rest) = match whole.split_once("://") {
            Some(("http" | "grpc", rest)) => (self.plain, rest),
            Some(("https" | "grpcs", rest)) => (self.secure, rest),
            None if self.prefix == "grpc" => (self.plain, whole),
            _ => return Err("not a URL that can be used".to_owned()),
        };
        let (host, uri) = match rest.strip_prefix("unix:") {
            Some(socket) => {
                let end = socket.find(':').map_or(rest.len(), |at| at + "unix:".len());
                (&rest[..end], rest.get(end + 1..).unwrap_or_default())
            }
            None => rest.split_at(rest.find(['/', '$', '?']).unwrap_or(rest.len())),
        };
        if host.is_empty() || host.contains('$') {
            return Err("where requests go depends on a variable".to_owned());
        }
        let uri = match uri {
            "" | "$request_uri" | "$uri$is_args$args" => None,
            uri if uri.contains('$') => {
                return Err("the path that is asked for depends on a variable".to_owned());
            }
            uri => Some(uri),
        };
        Ok(To { scheme, host, uri })
    }

    fn upstream(
        &self,
        to: &To<'_>,
        http: &Http<'_>,
        scope: &Scope<'_>,
        draft: &mut Draft,
    ) -> String {
        let group = http.groups.get(to.host);
        let (servers, mut settings) = match group {
            Some(block) => upstreams::group(block, to.scheme, &http.maps, &mut draft.notes),
            None => {
                let url = upstreams::url(to.host, to.scheme);
                let server = ServerDraft {
                    url,
                    ..ServerDraft::default()
                };
                (vec![server], Vec::new())
            }
        };
        if servers.len() == 1 {
            settings.retain(|(key, _)| key != "balance");
        }
        settings.extend(self.host(to, group.is_some(), scope));
        settings.extend(upstreams::settings(scope, self.prefix, draft));
        if to.scheme == "https" {
            let named = group.is_some().then_some(to.host);
            settings.extend(upstreams::tls(scope, self.prefix, named, draft));
            if !scope.is_on(&format!("{}_ssl_verify", self.prefix)) {
                let why = "tidegate verifies certificates, nginx did not: `tls = { ca = .. }` \
                           of the upstream says whom to trust";
                draft.notes.differs(&self.one.place, &self.one.line(), why);
            }
        }
        let name = to.host.strip_prefix("unix:").unwrap_or(to.host);
        draft.upstream(UpstreamDraft {
            name: name.trim_start_matches('/').to_owned(),
            servers,
            settings,
            place: self.one.place.clone(),
        })
    }

    /// Which host the server is asked for: the one in `proxy_pass` unless a header says it.
    fn host(&self, to: &To<'_>, is_group: bool, scope: &Scope<'_>) -> Option<Setting> {
        let sets = scope.all(&format!("{}_set_header", self.prefix));
        let set = sets
            .iter()
            .find(|one| one.arg(0).eq_ignore_ascii_case("host"));
        let value = match set.map(|one| one.arg(1)) {
            Some("$host" | "$http_host" | "$host:$server_port") => return None,
            Some("$proxy_host" | "") | None => match to.host {
                unix if unix.starts_with("unix:") => "localhost",
                name if is_group => name,
                _ => "rewrite",
            },
            Some("$server_name") => scope
                .last("server_name")
                .map_or("rewrite", |one| one.arg(0)),
            Some(value) if value.contains('$') => "rewrite",
            Some(value) => value,
        };
        // A group's name need not be one that a host may have.
        let fits = crate::route::host_of(value).is_ok();
        Some((
            "host".to_owned(),
            text(if fits { value } else { "rewrite" }),
        ))
    }
}

/// `http://backend/path`
#[derive(Debug)]
struct To<'p> {
    scheme: &'p str,
    host: &'p str,
    uri: Option<&'p str>,
}

/// What is taken off a path, and put there: nginx puts the URI of `proxy_pass` where the location's
/// path was.
fn stripped(
    uri: Option<&str>,
    at: &At<'_>,
    notes: &mut Notes,
    one: &Directive,
) -> Result<Vec<Setting>, String> {
    let setting = |name: &str, path: &str| {
        let path = path.trim_end_matches('/');
        let value = (!path.is_empty()).then(|| text(path))?;
        Some((name.to_owned(), value))
    };
    let strip = |path: &str| setting("strip_prefix", path);
    let Some(uri) = uri else {
        let path = at.path.filter(|_| at.is_stripped);
        return Ok(path.and_then(strip).into_iter().collect());
    };
    let path = at
        .path
        .ok_or("the path of a regular expression cannot be replaced")?;
    if uri == path && !at.is_stripped {
        return Ok(Vec::new());
    }
    let (ends, ours) = (path.ends_with('/'), uri.ends_with('/'));
    let parts = ends && !ours && !at.is_exact;
    if parts
        || at.is_stripped
        || uri.contains(['?', '#'])
        || crate::route::Prefix::parse(uri).is_err() && uri != "/"
    {
        return Err(format!(
            "`{path}` cannot be replaced by `{uri}`: routes replace whole segments of a path"
        ));
    }
    if !ends && ours && !(at.is_exact && uri == "/") {
        let why = match at.is_exact {
            true => "the path that is asked for has no slash at its end",
            false => "the rest of the path begins with one slash, not with two",
        };
        notes.differs(&one.place, &one.line(), why);
    }
    Ok(strip(path)
        .into_iter()
        .chain(setting("add_prefix", uri))
        .collect())
}
