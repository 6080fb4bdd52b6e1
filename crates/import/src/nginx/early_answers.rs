//! `if (..) { return ..; }` and `limit_except`, which answer before a location does. They become
//! routes beside the location's own route, with other methods and headers.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::actions;
use super::conditions::{self, Condition, ConditionScope, HeaderTest};
use super::directives;
use super::scope::BlockScope;
use super::settings;
use super::syntax::Directive;
use crate::draft::{Draft, HeaderDraft, Notes, RouteAction, TargetDraft};
use crate::patterns;
use crate::route::Regex;

/// Routes that one location may become, at most.
const MAX_VARIANTS: usize = 64;

/// An action under a condition.
#[derive(Clone, Debug)]
pub(super) struct EarlyAnswer {
    pub(super) condition: Condition,
    pub(super) action: RouteAction,
}

/// One of the routes of a location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RouteVariant {
    pub(super) methods: Vec<String>,
    pub(super) headers: Vec<HeaderDraft>,
    pub(super) action: RouteAction,
}

impl RouteVariant {
    /// Makes a variant for all methods.
    fn new(headers: Vec<HeaderDraft>, action: &RouteAction) -> RouteVariant {
        RouteVariant {
            methods: Vec::new(),
            headers,
            action: action.clone(),
        }
    }
}

/// The requests that variants are for.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestClass<'a> {
    /// `None` is all methods that no condition names.
    pub(super) method: Option<&'a str>,
    pub(super) host: Option<&'a str>,
    /// The only path of the requests; `None` if they have several.
    pub(super) path: Option<&'a str>,
}

/// Returns the early answers of a block in their order.
pub(super) fn read_answers(around: ConditionScope<'_>, draft: &mut Draft) -> Vec<EarlyAnswer> {
    let scope = around.scope;
    let mut answers = Vec::new();
    let before_return = scope.own().iter().take_while(|one| one.name != "return");
    for one in before_return.filter(|one| one.name == "if") {
        answers.extend(translate_if(one, around, draft));
    }
    // nginx checks methods after all rewrites.
    for one in scope.own_named("limit_except") {
        answers.extend(translate_limit_except(one, scope, &mut draft.notes));
    }
    answers
}

fn translate_if(
    one: &Directive,
    around: ConditionScope<'_>,
    draft: &mut Draft,
) -> Vec<EarlyAnswer> {
    let condition = conditions::parse_condition(one, around);
    let Some(action) = conditional_action(one, around, &condition, draft) else {
        let only_sets = one
            .inner()
            .iter()
            .all(|one| matches!(one.name.as_str(), "set" | "break"));
        let why = match only_sets {
            true => "what it sets counts where an `if` that answers asks for it, and nowhere else",
            false => {
                "nothing depends on conditions but what is answered; routes have `methods` and \
                      `headers`"
            }
        };
        one.note_lost(&mut draft.notes, why);
        return Vec::new();
    };
    let target = &action.target;
    let to_https = matches!(target, TargetDraft::Redirect { to, .. } if to.starts_with("https://"));
    let mut args = one.args.iter();
    let tests_scheme = args.any(|arg| arg.contains("$scheme") || arg.contains("$https"));
    if to_https && tests_scheme && around.tls.secure.is_none() {
        draft.redirect_to_https();
        return Vec::new();
    }
    let is_maintenance = matches!(target, TargetDraft::Respond { status: 503, .. });
    let notes = &mut draft.notes;
    let conditions = match condition {
        Condition::Any(list) => list,
        Condition::File if !target.denies() || is_maintenance => {
            let why = "the proxy looks for no files; what this answers is not answered here";
            one.note_lost(notes, why);
            return Vec::new();
        }
        condition => vec![condition],
    };
    let answers = conditions.into_iter().map(|condition| EarlyAnswer {
        condition: note_untranslatable(condition, one, notes),
        action: action.clone(),
    });
    answers.collect()
}

/// Notes a condition that no route can test.
fn note_untranslatable(condition: Condition, one: &Directive, notes: &mut Notes) -> Condition {
    let why = match condition {
        Condition::Untranslatable(why) => why,
        Condition::File => "the proxy looks for no files".to_owned(),
        Condition::Any(_) => "it depends on several conditions at once".to_owned(),
        condition => return condition,
    };
    one.note_lost(notes, format!("{why}; what it guarded is closed"));
    Condition::Untranslatable(format!("`{}`: {why}", one.line()))
}

/// Returns the action of an `if` in place of the location's; `None` if the location goes on.
fn conditional_action(
    one: &Directive,
    around: ConditionScope<'_>,
    condition: &Condition,
    draft: &mut Draft,
) -> Option<RouteAction> {
    let inner = &around.scope.enter(one);
    if let Some(answer) = inner.own_first("return") {
        let target = actions::translate_return(answer, inner, &mut draft.notes);
        let mut action = RouteAction::from(target);
        if !matches!(action.target, TargetDraft::Closed(_)) {
            action.entries = settings::header_changes(inner, draft);
            let is_down = |key: &str| key == "headers_down";
            action.entries.list.retain(|entry| is_down(&entry.key));
        }
        return Some(action);
    }
    if let Some(rewrite) = inner.own_first("rewrite") {
        return actions::redirecting_rewrite(rewrite).map(RouteAction::from);
    }
    let is_testable = !matches!(
        condition,
        Condition::Untranslatable(_) | Condition::File | Condition::Any(_)
    );
    let passes = ["proxy_pass", "grpc_pass"];
    if is_testable && passes.iter().any(|name| inner.own_first(name).is_some()) {
        return Some(actions::find_action(inner, around.path, draft));
    }
    let alone = around.scope.enter_alone(one);
    directives::find_guard(&alone, &mut draft.notes).map(RouteAction::from)
}

/// Translates `limit_except GET { deny all; }`.
fn translate_limit_except(
    one: &Directive,
    scope: &BlockScope<'_>,
    notes: &mut Notes,
) -> Option<EarlyAnswer> {
    let action = directives::find_guard(&scope.enter_alone(one), notes)?.into();
    let mut list: Vec<String> = one
        .args
        .iter()
        .map(|arg| arg.to_ascii_uppercase())
        .collect();
    if list.iter().any(|method| method == "GET") {
        list.push("HEAD".to_owned());
    }
    let negated = true;
    let condition = Condition::Methods { list, negated };
    Some(EarlyAnswer { condition, action })
}

/// Returns the hosts that conditions name.
pub(super) fn tested_hosts(answers: &[EarlyAnswer]) -> impl Iterator<Item = &str> {
    answers.iter().filter_map(|answer| match &answer.condition {
        Condition::Host { name, .. } => name.as_deref(),
        _ => None,
    })
}

/// Returns the routes of a location: its early answers before its own action.
pub(super) fn variants<'a>(
    answers: &'a [EarlyAnswer],
    own: &RouteAction,
    class: RequestClass<'a>,
) -> Vec<RouteVariant> {
    let mut methods = BTreeSet::new();
    for answer in answers {
        if let Condition::Methods { list, .. } = &answer.condition {
            methods.extend(list.iter().map(String::as_str));
        }
    }
    if methods.contains("GET") {
        methods.insert("HEAD");
    }
    let decide = |method| {
        let class = RequestClass { method, ..class };
        decide_by_headers(answers, own, class).unwrap_or_else(|| {
            let why = "its conditions depend on each other in a way that routes cannot say";
            let closed = TargetDraft::Closed(why.to_owned());
            vec![RouteVariant::new(Vec::new(), &closed.into())]
        })
    };
    let others = decide(None);
    let mut groups: Vec<MethodGroup> = Vec::new();
    for method in methods {
        let variants = decide(Some(method));
        let method = method.to_owned();
        match groups.iter_mut().find(|known| known.variants == variants) {
            Some(group) => group.methods.push(method),
            None => groups.push(MethodGroup {
                methods: vec![method],
                variants,
            }),
        }
    }
    // A route for GET also matches HEAD, unless another route names HEAD.
    let keeps_get = groups
        .iter()
        .any(|group| group.has("GET") && group.variants != others);
    groups.retain(|group| group.variants != others || keeps_get && group.has("HEAD"));
    // Routes with expressions are tried in their order.
    groups.sort_by_key(|group| group.has("GET"));
    groups.push(MethodGroup {
        methods: Vec::new(),
        variants: others,
    });
    let all = groups
        .into_iter()
        .flat_map(|MethodGroup { methods, variants }| {
            variants.into_iter().map(move |variant| RouteVariant {
                methods: methods.clone(),
                ..variant
            })
        });
    all.collect()
}

/// Methods with the same variants.
struct MethodGroup {
    methods: Vec<String>,
    variants: Vec<RouteVariant>,
}

impl MethodGroup {
    fn has(&self, method: &str) -> bool {
        self.methods.iter().any(|one| one == method)
    }
}

/// The result of a condition for a class of requests.
enum Evaluation<'c> {
    Known(bool),
    /// One of these tests must hold.
    DependsOn(&'c [HeaderTest]),
    Unknown(String),
}

fn evaluate<'c>(condition: &'c Condition, class: RequestClass<'_>) -> Evaluation<'c> {
    Evaluation::Known(match condition {
        Condition::Always => true,
        Condition::Never => false,
        Condition::Methods { list, negated } => {
            let method = class.method;
            let is_in = method.is_some_and(|method| list.iter().any(|one| one == method));
            is_in != *negated
        }
        Condition::Headers(tests) => return Evaluation::DependsOn(tests),
        Condition::Host {
            regex,
            name,
            negated,
        } => match class.host {
            Some(host) if !host.starts_with("*.") => regex.is_in(host.as_bytes()) != *negated,
            // The one name has a route of its own.
            _ if name.is_some() => *negated,
            _ => return Evaluation::Unknown("only some hosts are meant".to_owned()),
        },
        Condition::Path(text) => {
            let regex = Regex::parse(text).ok().zip(class.path);
            regex.is_some_and(|(regex, path)| regex.is_in(path.as_bytes()))
        }
        Condition::Any(_) | Condition::File => {
            return Evaluation::Unknown("it cannot be asked".to_owned());
        }
        Condition::Untranslatable(why) => return Evaluation::Unknown(why.clone()),
    })
}

/// Returns the variants for a class of requests; `None` if headers cannot tell them apart.
fn decide_by_headers(
    answers: &[EarlyAnswer],
    own: &RouteAction,
    class: RequestClass<'_>,
) -> Option<Vec<RouteVariant>> {
    // The action of a level holds if all of its headers are there, and no header of `present` is.
    let mut levels: Vec<RouteVariant> = Vec::new();
    let mut present: Vec<(&HeaderDraft, &RouteAction)> = Vec::new();
    let mut headers: Vec<HeaderDraft> = Vec::new();
    let mut last = own.clone();
    for EarlyAnswer { condition, action } in answers {
        match evaluate(condition, class) {
            Evaluation::Known(false) => {}
            Evaluation::Known(true) => {
                last = action.clone();
                break;
            }
            Evaluation::Unknown(why) => {
                last = TargetDraft::Closed(why).into();
                break;
            }
            Evaluation::DependsOn(tests) => {
                for HeaderTest { header, is_present } in tests {
                    if *is_present {
                        present.push((header, action));
                        continue;
                    }
                    levels.push(RouteVariant::new(headers.clone(), action));
                    match headers.iter().find(|one| one.name == header.name) {
                        Some(same) if same == header => {}
                        Some(_) => return None,
                        None => headers.push(header.clone()),
                    }
                }
            }
        }
    }
    levels.push(RouteVariant::new(headers, &last));
    let mut found: Vec<RouteVariant> = Vec::new();
    let mut add = |headers: Vec<HeaderDraft>, action: &RouteAction| {
        if !found.iter().any(|known| known.headers == headers) {
            found.push(RouteVariant::new(headers, action));
        }
    };
    for level in &levels {
        for (index, (header, action)) in present.iter().enumerate() {
            let both = with_header(&level.headers, header)?;
            for (other, later) in &present[index + 1..] {
                if later.target.denies() != action.target.denies() {
                    add(with_header(&both, other)?, action);
                }
            }
            add(both, action);
        }
        add(level.headers.clone(), &level.action);
    }
    // Routes with expressions are tried in their order, so the more specific comes first.
    let precision = |header: &HeaderDraft| match &header.value {
        None => 0,
        Some(value) if value.starts_with("regex:") => 1,
        Some(_) => 2,
    };
    found.sort_by_key(|variant| {
        let precision: usize = variant.headers.iter().map(precision).sum();
        Reverse((variant.headers.len(), precision))
    });
    (found.len() <= MAX_VARIANTS).then_some(found)
}

/// Adds a header to a list. A value replaces "any value"; `None` if two values exclude each other.
fn with_header(headers: &[HeaderDraft], more: &HeaderDraft) -> Option<Vec<HeaderDraft>> {
    let mut all = headers.to_vec();
    match all.iter_mut().find(|one| one.name == more.name) {
        None => all.push(more.clone()),
        Some(one) if one.value.is_none() => one.value.clone_from(&more.value),
        Some(one) if one.value == more.value => {}
        Some(_) => return None,
    }
    Some(all)
}

/// Returns the early answers whose condition is a path, with the paths of their routes. These come
/// before all locations. Below a prefix, an expression that begins with a dot is matched behind the
/// prefix, because no part of it can be in the prefix.
pub(super) fn answers_by_path<'r>(
    answers: &'r [EarlyAnswer],
    prefix: Option<&'r str>,
) -> impl Iterator<Item = (String, &'r RouteAction)> {
    let prefix = prefix.filter(|prefix| *prefix != "/" && !prefix.contains('.'));
    answers.iter().filter_map(move |answer| {
        let Condition::Path(text) = &answer.condition else {
            return None;
        };
        let (flag, rest) = match text.strip_prefix("(?i)") {
            Some(rest) => ("(?i)", rest),
            None => ("", text.as_str()),
        };
        let path = match prefix.filter(|_| rest.starts_with("\\.")) {
            Some(prefix) => format!(
                "regex:{flag}^{}.*(?:{rest})",
                patterns::escape_regex(prefix)
            ),
            None => format!("regex:{text}"),
        };
        Some((path, &answer.action))
    })
}
