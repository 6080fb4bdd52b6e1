//! What answers requests before a location does: `if (..) { return ..; }` and `limit_except`, as
//! routes beside the location's own that methods and headers tell apart.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::access;
use super::conditions::{self, Around, Asks, HeaderWanted};
use super::expressions;
use super::headers;
use super::passing::{self, At, Outcome};
use super::rewrites;
use super::scope::Scope;
use super::syntax::Directive;
use crate::draft::{Draft, Goal};
use crate::route::Regex;

/// Routes that one location may become, at most.
const MAX_VARIANTS: usize = 64;

/// An answer under a condition.
#[derive(Clone, Debug)]
pub(super) struct EarlyAnswer {
    pub(super) asks: Asks,
    pub(super) outcome: Outcome,
}

/// Which requests a route is for, besides its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    pub(super) methods: Vec<String>,
    pub(super) headers: Vec<HeaderWanted>,
    pub(super) outcome: Outcome,
}

/// Where a location is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct AskedAt<'a> {
    /// One of the methods that rules name; nothing for all others.
    pub(super) method: Option<&'a str>,
    pub(super) host: Option<&'a str>,
    /// Its only path; nothing where it has several.
    pub(super) path: Option<&'a str>,
}

/// The rules of a block, in their order.
pub(super) fn of(
    scope: &Scope<'_>,
    around: Around<'_>,
    at: &At<'_>,
    draft: &mut Draft,
) -> Vec<EarlyAnswer> {
    let around = Around {
        block: scope.own(),
        at: *at,
        ..around
    };
    let mut rules = Vec::new();
    for one in scope.own() {
        match one.name.as_str() {
            "return" => break,
            "if" => conditional(one, scope, around, &mut rules, draft),
            _ => {}
        }
    }
    // Methods are looked at after all that rewrites.
    for one in scope.own().iter().filter(|one| one.name == "limit_except") {
        rules.extend(excepted(one, draft));
    }
    rules
}

/// `if (..) { .. }`
fn conditional(
    one: &Directive,
    scope: &Scope<'_>,
    around: Around<'_>,
    rules: &mut Vec<EarlyAnswer>,
    draft: &mut Draft,
) {
    let inner = scope.within(one);
    let asks = conditions::asks(one, around);
    let Some(outcome) = consequence(&inner, around, &asks, draft) else {
        let sets = one
            .inner()
            .iter()
            .all(|one| matches!(one.name.as_str(), "set" | "break"));
        let why = match sets {
            true => "what it sets counts where an `if` that answers asks for it, and nowhere else",
            false => {
                "nothing depends on conditions but what is answered; routes have `methods` and \
                      `headers`"
            }
        };
        draft.notes.lost(&one.place, &one.line(), why);
        return;
    };
    let to_https = matches!(&outcome.goal, Goal::Redirect { to, .. } if to.starts_with("https://"));
    let asks_scheme = one
        .args
        .iter()
        .any(|arg| arg.contains("$scheme") || arg.contains("$https"));
    if to_https && asks_scheme && around.secure.is_none() {
        draft.redirect_to_https();
        return;
    }
    let refuses = outcome.goal.refuses();
    match asks {
        Asks::Any(list) => rules.extend(list.into_iter().map(|asks| EarlyAnswer {
            asks: told(asks, one, draft),
            outcome: outcome.clone(),
        })),
        Asks::File if !refuses || matches!(outcome.goal, Goal::Respond { status: 503, .. }) => {
            let why = "the proxy looks for no files; what this answers is not answered here";
            draft.notes.lost(&one.place, &one.line(), why);
        }
        asks => rules.push(EarlyAnswer {
            asks: told(asks, one, draft),
            outcome,
        }),
    }
}

/// Tells of a condition that cannot be asked.
fn told(asks: Asks, one: &Directive, draft: &mut Draft) -> Asks {
    let why = match asks {
        Asks::Unsaid(why) => why,
        Asks::File => "the proxy looks for no files".to_owned(),
        Asks::Any(_) => "it depends on several conditions at once".to_owned(),
        asks => return asks,
    };
    let told = format!("{why}; what it guarded is closed");
    draft.notes.lost(&one.place, &one.line(), told);
    Asks::Unsaid(format!("`{}`: {why}", one.line()))
}

/// What an `if` does instead of the location; nothing where that goes on.
fn consequence(
    inner: &Scope<'_>,
    around: Around<'_>,
    asks: &Asks,
    draft: &mut Draft,
) -> Option<Outcome> {
    let downwards = |draft: &mut Draft| {
        let mut found = headers::changes(inner, draft);
        found.retain(|(key, _)| key == "headers_down");
        found
    };
    if let Some(one) = inner.here("return") {
        let goal = passing::returned(one, inner, &mut draft.notes);
        let settings = match goal {
            Goal::Closed(_) => Vec::new(),
            _ => downwards(draft),
        };
        return Some(Outcome { goal, settings });
    }
    if let Some(one) = inner.here("rewrite") {
        return rewrites::redirected(one);
    }
    let passes = inner.here("proxy_pass").or(inner.here("grpc_pass"));
    if passes.is_some() && !matches!(asks, Asks::Unsaid(_) | Asks::File | Asks::Any(_)) {
        return Some(passing::outcome(around.http, inner, &around.at, draft));
    }
    let guard = access::guard_here(inner, &mut draft.notes)?;
    Some(guard.goal().into())
}

/// `limit_except GET { deny all; }`
fn excepted(one: &Directive, draft: &mut Draft) -> Option<EarlyAnswer> {
    let inner = Scope::new(one.inner());
    let goal = access::guard_here(&inner, &mut draft.notes)?.goal();
    let list: Vec<String> = one
        .args
        .iter()
        .map(|one| one.to_ascii_uppercase())
        .collect();
    let list = match list.iter().any(|one| one == "GET") {
        true => [list, vec!["HEAD".to_owned()]].concat(),
        false => list,
    };
    let asks = Asks::Methods { list, among: false };
    let outcome = goal.into();
    Some(EarlyAnswer { asks, outcome })
}

/// Hosts by name that rules tell apart.
pub(super) fn hosts(rules: &[EarlyAnswer]) -> impl Iterator<Item = &str> {
    rules.iter().filter_map(|rule| match &rule.asks {
        Asks::Host { name, .. } => name.as_deref(),
        _ => None,
    })
}

/// The routes that a location is at a seat: its rules before its own outcome.
pub(super) fn variants<'a>(
    rules: &'a [EarlyAnswer],
    own: &Outcome,
    seat: AskedAt<'a>,
) -> Vec<Variant> {
    let mut methods = BTreeSet::new();
    for rule in rules {
        if let Asks::Methods { list, .. } = &rule.asks {
            methods.extend(list.iter().map(String::as_str));
        }
    }
    if methods.contains("GET") {
        methods.insert("HEAD");
    }
    let closed = || {
        let why = "its conditions depend on each other in a way that routes cannot say";
        vec![(Vec::new(), Goal::Closed(why.to_owned()).into())]
    };
    let decided = |method| {
        let seat = AskedAt { method, ..seat };
        decide(rules, own, seat).unwrap_or_else(closed)
    };
    let others = decided(None);
    let mut groups: Vec<(Vec<String>, Decided)> = Vec::new();
    for method in &methods {
        let found = decided(Some(method));
        match groups.iter_mut().find(|(_, known)| *known == found) {
            Some((list, _)) => list.push((*method).to_owned()),
            None => groups.push((vec![(*method).to_owned()], found)),
        }
    }
    // A route for GET takes HEAD as well, unless another one names it.
    let takes_get = |list: &[String]| list.iter().any(|one| one == "GET");
    let keeps_get = groups
        .iter()
        .any(|(list, found)| takes_get(list) && *found != others);
    groups.retain(|(list, found)| {
        *found != others || keeps_get && list.iter().any(|one| one == "HEAD")
    });
    // Expressions are asked in their order.
    groups.sort_by_key(|(list, _)| takes_get(list));
    groups.push((Vec::new(), others));
    let all = groups.into_iter().flat_map(|(methods, found)| {
        found.into_iter().map(move |(headers, outcome)| Variant {
            methods: methods.clone(),
            headers,
            outcome,
        })
    });
    all.collect()
}

/// Routes of one method, by their headers.
type Decided = Vec<(Vec<HeaderWanted>, Outcome)>;

/// What becomes of a rule for some method at a seat.
enum Turn {
    No,
    Yes,
    /// Where this header is there.
    With(HeaderWanted),
    /// Where this header is not there.
    Without(HeaderWanted),
    Unsaid(String),
}

fn turns(asks: &Asks, seat: AskedAt<'_>) -> Vec<Turn> {
    let sure = |yes| vec![if yes { Turn::Yes } else { Turn::No }];
    match asks {
        Asks::Always => sure(true),
        Asks::Never => sure(false),
        Asks::Methods { list, among } => {
            let is_in = seat
                .method
                .is_some_and(|method| list.iter().any(|one| one == method));
            sure(is_in == *among)
        }
        Asks::Header(wanted) => vec![Turn::With(wanted.clone())],
        Asks::NoHeader(wanted) => vec![Turn::Without(wanted.clone())],
        Asks::Empty(name) => vec![
            Turn::With((name.clone(), Some(String::new()))),
            Turn::Without((name.clone(), None)),
        ],
        Asks::HeaderOrNone(wanted) => vec![
            Turn::With(wanted.clone()),
            Turn::Without((wanted.0.clone(), None)),
        ],
        Asks::Host { regex, name, is } => match seat.host {
            Some(host) if !host.starts_with("*.") => sure(regex.is_in(host.as_bytes()) == *is),
            // The one name has a route of its own.
            _ if name.is_some() => sure(!*is),
            _ => vec![Turn::Unsaid("only some hosts are meant".to_owned())],
        },
        Asks::Path(text) => {
            let regex = Regex::parse(text).ok().zip(seat.path);
            sure(regex.is_some_and(|(regex, path)| regex.is_in(path.as_bytes())))
        }
        Asks::Any(_) | Asks::File => vec![Turn::Unsaid("it cannot be asked".to_owned())],
        Asks::Unsaid(why) => vec![Turn::Unsaid(why.clone())],
    }
}

/// The routes for a method (none of those that rules name where it is nothing); nothing where
/// headers cannot tell them apart.
fn decide(rules: &[EarlyAnswer], own: &Outcome, seat: AskedAt<'_>) -> Option<Decided> {
    // Where all headers of a level are there, and no twin's is, its outcome holds.
    let mut levels: Decided = Vec::new();
    let mut twins: Vec<(HeaderWanted, Outcome)> = Vec::new();
    let mut needs: Vec<HeaderWanted> = Vec::new();
    let mut end = own.clone();
    'all: for rule in rules {
        for turn in turns(&rule.asks, seat) {
            match turn {
                Turn::No => {}
                Turn::Yes => {
                    end = rule.outcome.clone();
                    break 'all;
                }
                Turn::Unsaid(why) => {
                    end = Goal::Closed(why).into();
                    break 'all;
                }
                Turn::With(header) => twins.push((header, rule.outcome.clone())),
                Turn::Without(header) => {
                    levels.push((needs.clone(), rule.outcome.clone()));
                    match needs.iter().find(|(name, _)| *name == header.0) {
                        Some(same) if *same == header => {}
                        Some(_) => return None,
                        None => needs.push(header),
                    }
                }
            }
        }
    }
    levels.push((needs, end));
    let mut found: Decided = Vec::new();
    let mut put = |headers: Vec<HeaderWanted>, outcome: &Outcome| {
        if !found.iter().any(|(known, _)| *known == headers) {
            found.push((headers, outcome.clone()));
        }
    };
    for (needs, outcome) in &levels {
        for (at, (header, twin)) in twins.iter().enumerate() {
            let both = joined(needs, header)?;
            for (other, later) in &twins[at + 1..] {
                if later.goal.refuses() != twin.goal.refuses() {
                    put(joined(&both, other)?, twin);
                }
            }
            put(both, twin);
        }
        put(needs.clone(), outcome);
    }
    // Expressions are asked in their order, so what is more specific comes first.
    let exact = |(_, value): &HeaderWanted| match value {
        None => 0,
        Some(value) if value.starts_with("regex:") => 1,
        Some(_) => 2,
    };
    found.sort_by_key(|(headers, _)| {
        Reverse((headers.len(), headers.iter().map(exact).sum::<usize>()))
    });
    (found.len() <= MAX_VARIANTS).then_some(found)
}

/// Headers with one more; of one name the more exact value, which any value gives way to.
fn joined(headers: &[HeaderWanted], more: &HeaderWanted) -> Option<Vec<HeaderWanted>> {
    let mut all = headers.to_vec();
    match all.iter_mut().find(|(name, _)| *name == more.0) {
        None => all.push(more.clone()),
        Some((_, value @ None)) => value.clone_from(&more.1),
        Some((_, value)) if *value == more.1 => {}
        Some(_) => return None,
    }
    Some(all)
}

/// The expressions of rules whose condition is a path, which come before all locations. Below a
/// prefix they are looked for behind it, where no part of them can lie within it.
pub(super) fn by_path<'r>(
    rules: &'r [EarlyAnswer],
    prefix: Option<&'r str>,
) -> impl Iterator<Item = (String, &'r Outcome)> {
    let prefix = prefix.filter(|prefix| *prefix != "/" && !prefix.contains('.'));
    rules.iter().filter_map(move |rule| {
        let Asks::Path(text) = &rule.asks else {
            return None;
        };
        let (flag, rest) = match text.strip_prefix("(?i)") {
            Some(rest) => ("(?i)", rest),
            None => ("", text.as_str()),
        };
        let path = match prefix.filter(|_| rest.starts_with("\\.")) {
            Some(prefix) => format!("regex:{flag}^{}.*(?:{rest})", expressions::escape(prefix)),
            None => format!("regex:{text}"),
        };
        Some((path, &rule.outcome))
    })
}
