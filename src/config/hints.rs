//! Notes about a file that is right: what it does not do although its author may believe so. They
//! are no warnings, since the file may well be meant like that.

use http::{HeaderMap, HeaderValue, Method};

use super::compile::Compiled;
use super::diagnostic::{Code, Diagnostic};
use crate::limit::key::Part;
use crate::route::{HostPattern, Route, RouteQuery, ValueMatch};

/// Words in the paths of routes that people guess secrets on.
const SECRET_WORDS: [&str; 17] = [
    "admin", "auth", "code", "login", "logon", "mfa", "otp", "password", "passwd", "register",
    "reset", "session", "signin", "sign-in", "signup", "token", "verify",
];

/// Routes that one note names, at most.
const SHOWN: usize = 3;

/// All notes.
pub(super) fn find(compiled: &Compiled<'_>) -> Vec<Diagnostic> {
    let notes = [nothing_limited(compiled), letter_case(compiled)];
    notes.into_iter().flatten().collect()
}

/// A file without a single limit, unless its routes say `limits = []`.
fn nothing_limited(compiled: &Compiled<'_>) -> Option<Diagnostic> {
    let names = &compiled.names;
    if !names.budgets.is_empty() || !names.unlimited_unsaid {
        return None;
    }
    let note = Diagnostic::new(Code::NothingLimited, "nothing is limited")
        .help("write `[limit.default]` with `rate = \"100/min\"`: it holds for every route")
        .note("without a limit tidegate passes every request on");
    Some(note)
}

/// Routes of a login and the like whose limits another letter case in the path gets around.
fn letter_case(compiled: &Compiled<'_>) -> Option<Diagnostic> {
    let mut note: Option<Diagnostic> = None;
    for one in compiled.names.caseless.iter() {
        let routes = &compiled.config.routes;
        let Some(route) = routes.iter().nth(one.value) else {
            continue;
        };
        let Some((sample, other)) = escape(compiled, route) else {
            continue;
        };
        let label = format!("`{sample}` goes to route `{}`", other.name);
        note = Some(match note {
            None => Diagnostic::new(
                Code::LetterCase,
                "another letter case in a path gets around its limits",
            )
            .at(&one.span, label)
            .help(
                "if an upstream ignores letter case (IIS, ASP.NET, Express), write `case = \
                 \"insensitive\"` at the top; if none does, `case = \"sensitive\"`",
            ),
            Some(note) if note.labels.len() < SHOWN => note.at(&one.span, label),
            Some(note) => note,
        });
    }
    note
}

/// A path that differs from a route's by letter case, and the route with other limits that
/// takes it.
fn escape<'c>(compiled: &'c Compiled<'_>, route: &Route) -> Option<(String, &'c Route)> {
    if route.limits.is_empty() {
        return None;
    }
    let sample = route.path.sample(|literal| {
        let lower = literal.to_ascii_lowercase();
        let secret = SECRET_WORDS.iter().any(|word| lower.contains(word));
        secret
            .then(|| literal.to_ascii_uppercase())
            .filter(|upper| *upper != literal)
    })?;
    let host = match &route.host {
        HostPattern::Any => String::new(),
        HostPattern::Exact(host) => host.to_string(),
        HostPattern::Below(host) => format!("x.{host}"),
    };
    let mut headers = HeaderMap::new();
    for wanted in &route.headers {
        let value = match &wanted.value {
            ValueMatch::Exactly(value) => value,
            ValueMatch::Any | ValueMatch::Regex(_) => "x",
        };
        headers.append(&wanted.name, HeaderValue::from_str(value).ok()?);
    }
    let routes = &compiled.config.routes;
    let path = routes.read_path(&sample).ok()?;
    let found = routes.find(&RouteQuery {
        host: &host,
        path: &path,
        method: route.methods.first().unwrap_or(&Method::GET),
        headers: &headers,
    });
    let other = found?.route;
    let same = route.limits.iter().all(|limit| {
        let by_path = |part: &Part| matches!(part, Part::Path | Part::PathParam(_) | Part::Route);
        other.limits.iter().any(|one| one.name == limit.name) && !limit.key.all().any(by_path)
    });
    (!same).then(|| (sample.clone(), other))
}
