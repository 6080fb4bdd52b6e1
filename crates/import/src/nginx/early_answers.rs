//! `if (..) { return ..; }` and `limit_except`, which answer before a location does. They become
//! routes beside the location's own route, with other methods and headers.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::actions::{self, AnswersTo};
use super::conditions::{self, Condition, ConditionScope, HeaderTest};
use super::directives;
use super::scope::BlockScope;
use super::settings;
use super::syntax::Directive;
use crate::draft::{Draft, HeaderDraft, RouteAction, TargetDraft};
use crate::patterns;
use crate::route::Regex;

/// Routes that one location may become, at most.
const MAX_VARIANTS: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct EarlyAnswer {
    pub(super) condition: Condition,
    pub(super) action: RouteAction,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RouteVariant {
    pub(super) methods: Vec<String>,
    pub(super) headers: Vec<HeaderDraft>,
    pub(super) action: RouteAction,
}

impl RouteVariant {
    fn new(headers: Vec<HeaderDraft>, action: &RouteAction) -> RouteVariant {
        RouteVariant {
            methods: Vec::new(),
            headers,
            action: action.clone(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RequestClass<'a> {
    /// `None` is all methods that no condition names.
    pub(super) method: Option<&'a str>,
    pub(super) host: Option<&'a str>,
    /// Names without routes of their own, though requests for them may be in this class.
    pub(super) mixed_hosts: &'a BTreeSet<String>,
    /// The only path of the requests; `None` if they have several.
    pub(super) path: Option<&'a str>,
}

pub(super) fn read_answers(around: ConditionScope<'_>, draft: &mut Draft) -> Vec<EarlyAnswer> {
    let scope = around.scope;
    let mut answers = Vec::new();
    let before_return = scope
        .block()
        .inner()
        .iter()
        .take_while(|one| one.name != "return");
    let mut selecting = Vec::new();
    for one in before_return.filter(|one| one.name == "if") {
        let found = translate_if(one, around, draft);
        match one.first("return").or(one.first("rewrite")) {
            Some(_) => answers.extend(found),
            None => selecting.push(found),
        }
    }
    // nginx goes on behind an `if` that only selects an upstream. The last one that holds counts.
    if scope.first("return").is_none() {
        answers.extend(selecting.into_iter().rev().flatten());
    }
    // nginx checks methods after all rewrites.
    for one in scope.named("limit_except") {
        answers.extend(translate_limit_except(one, scope));
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
        let sets = |one: &Directive| matches!(one.name.as_str(), "set" | "break");
        one.lost(match one.inner().iter().all(sets) {
            true => "its variable has an effect only in the condition of an `if` that answers",
            false => {
                "a condition can only select a response here; routes have `methods` and \
                 `headers`"
            }
        });
        return Vec::new();
    };
    let target = &action.target;
    let to_https = matches!(target, TargetDraft::Redirect { to, .. } if to.starts_with("https://"));
    let line = one.line();
    let tests_scheme = line.contains("$scheme") || line.contains("$https");
    if to_https && tests_scheme && around.tls.secure.is_none() {
        draft.redirect_to_https();
        if around.scope.block().name == "location" {
            let why = "`redirect` of [tls] is for all plain requests: those of other locations and \
                       servers are sent to https as well";
            one.differs(why);
        }
        return Vec::new();
    }
    let is_maintenance = matches!(target, TargetDraft::Respond { status: 503, .. });
    let conditions = match condition {
        Condition::Any(list) => list,
        Condition::File if !target.denies() || is_maintenance => {
            one.lost("the proxy looks for no files; what this answers is not answered here");
            return Vec::new();
        }
        condition => vec![condition],
    };
    let refusal = refusal_status(&action.target);
    let answers = conditions.into_iter().map(|condition| {
        let condition = match condition {
            Condition::NoCertificate if refusal.is_none() => Condition::Untranslatable(
                "without a certificate, a route answers with a status from 400 to 499".to_owned(),
            ),
            condition => condition,
        };
        EarlyAnswer {
            condition: note_untranslatable(condition, one),
            action: action.clone(),
        }
    });
    answers.collect()
}

/// The status that refuses a client without a certificate.
fn refusal_status(target: &TargetDraft) -> Option<u16> {
    match target {
        TargetDraft::Respond { status: 444, .. } => None,
        TargetDraft::Respond { status, .. } => {
            Some(*status).filter(|one| *one < 500 && *one >= 400)
        }
        _ => None,
    }
}

/// Takes the answers to clients without a certificate out of a list. Returns their status.
pub(super) fn take_refusal(answers: &mut Vec<EarlyAnswer>) -> Option<u16> {
    let is_one = |one: &EarlyAnswer| one.condition == Condition::NoCertificate;
    let first = answers.iter().find(|one| is_one(one));
    let status = first.and_then(|one| refusal_status(&one.action.target));
    answers.retain(|one| !is_one(one));
    status
}

fn note_untranslatable(condition: Condition, one: &Directive) -> Condition {
    let why = match condition {
        Condition::Untranslatable(why) => why,
        Condition::File => "the proxy looks for no files".to_owned(),
        Condition::Any(_) => "it depends on several conditions at once".to_owned(),
        condition => return condition,
    };
    one.lost(format!("{why}; what it guarded is closed"));
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
    let mut action = inner_action(one, inner, around, condition, draft)?;
    if !matches!(action.target, TargetDraft::Closed(_)) {
        action.headers = Some(settings::header_changes(inner, draft));
    }
    Some(action)
}

fn inner_action(
    one: &Directive,
    inner: &BlockScope<'_>,
    around: ConditionScope<'_>,
    condition: &Condition,
    draft: &mut Draft,
) -> Option<RouteAction> {
    if let Some(answer) = inner.first("return") {
        return Some(actions::translate_return(answer, inner, AnswersTo::Client).into());
    }
    if let Some(rewrite) = inner.first("rewrite") {
        return actions::redirecting_rewrite(rewrite).map(RouteAction::from);
    }
    let is_testable = !matches!(
        condition,
        Condition::Untranslatable(_) | Condition::File | Condition::Any(_)
    );
    let pass = one.first("proxy_pass").or(one.first("grpc_pass"));
    if is_testable && pass.is_some() {
        return Some(actions::find_action(inner, around.path, draft));
    }
    let alone = around.scope.enter_alone(one);
    directives::find_guard(&alone).map(RouteAction::from)
}

/// Translates `limit_except GET { deny all; }`.
fn translate_limit_except(one: &Directive, scope: &BlockScope<'_>) -> Option<EarlyAnswer> {
    let action = directives::find_guard(&scope.enter_alone(one))?.into();
    let args = one.args.iter();
    let mut list: Vec<String> = args.map(|arg| arg.to_ascii_uppercase()).collect();
    if list.iter().any(|method| method == "GET") {
        list.push("HEAD".to_owned());
    }
    let negated = true;
    let condition = Condition::Methods { list, negated };
    Some(EarlyAnswer { condition, action })
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
    // Methods with the same variants are one group.
    let mut groups: Vec<(Vec<String>, Vec<RouteVariant>)> = Vec::new();
    for method in methods {
        let variants = decide(Some(method));
        match groups.iter_mut().find(|(_, known)| *known == variants) {
            Some((methods, _)) => methods.push(method.to_owned()),
            None => groups.push((vec![method.to_owned()], variants)),
        }
    }
    let has = |methods: &[String], method: &str| methods.iter().any(|one| one == method);
    // A route for GET also matches HEAD, unless another route names HEAD.
    let mut others_than = groups.iter().filter(|(_, variants)| *variants != others);
    let keeps_get = others_than.any(|(methods, _)| has(methods, "GET"));
    groups.retain(|(methods, variants)| *variants != others || keeps_get && has(methods, "HEAD"));
    // Routes with expressions are tried in their order.
    groups.sort_by_key(|(methods, _)| has(methods, "GET"));
    groups.push((Vec::new(), others));
    let all = groups.into_iter().flat_map(|(methods, variants)| {
        let with_methods = move |variant| RouteVariant {
            methods: methods.clone(),
            ..variant
        };
        variants.into_iter().map(with_methods)
    });
    all.collect()
}

/// Whether a condition holds for a class of requests. Fails with a reason if that is not known.
fn evaluate(condition: &Condition, class: RequestClass<'_>) -> Result<bool, String> {
    Ok(match condition {
        Condition::Always => true,
        Condition::Never => false,
        Condition::Methods { list, negated } => {
            let method = class.method;
            let is_in = method.is_some_and(|method| list.iter().any(|one| one == method));
            is_in != *negated
        }
        Condition::Host {
            regex,
            name,
            negated,
        } => match class.host {
            Some(patterns::NO_HOST) => regex.is_in(b"") != *negated,
            Some(host) if !patterns::is_open_host(host) => regex.is_in(host.as_bytes()) != *negated,
            // The one name has routes of its own, or is another server's.
            _ if name
                .as_ref()
                .is_some_and(|name| !class.mixed_hosts.contains(name)) =>
            {
                *negated
            }
            _ => return Err("only some hosts are meant".to_owned()),
        },
        Condition::Path(text) => {
            let regex = Regex::parse(text).ok().zip(class.path);
            regex.is_some_and(|(regex, path)| regex.is_in(path.as_bytes()))
        }
        Condition::Headers(_) | Condition::Any(_) | Condition::File | Condition::NoCertificate => {
            return Err("it cannot be asked".to_owned());
        }
        Condition::Untranslatable(why) => return Err(why.clone()),
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
        let Condition::Headers(tests) = condition else {
            match evaluate(condition, class) {
                Ok(false) => continue,
                Ok(true) => last = action.clone(),
                Err(why) => last = TargetDraft::Closed(why).into(),
            }
            break;
        };
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

#[cfg(test)]
mod tests {
    use super::super::tests::import_http;

    #[test]
    fn an_upstream_of_an_if_does_not_come_before_later_guards() {
        let import = |behind: &str| {
            import_http(&format!(
                "server {{ location / {{ if ($http_x_a = 1) {{ proxy_pass http://10.0.0.1; }}\n\
                 {behind} proxy_pass http://10.0.0.3; }} }}"
            ))
        };
        let imported = import("if ($http_x_b = 1) { return 403; }");
        let mut routes = imported.text.split("[[route]]");
        let has_both = |one: &&str| one.contains("x-a") && one.contains("x-b");
        let both = routes.find(has_both).unwrap_or_default();
        assert!(both.contains("status = 403"), "{}", imported.text);
        let imported = import("return 403;");
        imported.assert_has_not("\nupstream ");
    }
    #[test]
    fn denials_keep_the_headers_of_always() {
        let imported = import_http(
            "server { listen 80; add_header X-Always yes always; add_header X-Ok yes;\n\
             location /deny { deny all; proxy_pass http://10.0.0.1; }\n\
             location = /login { limit_except POST { deny all; } proxy_pass http://10.0.0.1; }\n\
             location = /50x.html { internal; proxy_pass http://10.0.0.1; } }",
        );
        let denials: Vec<_> = (imported.text.split("[[route]]"))
            .filter(|route| route.contains("respond"))
            .collect();
        assert!(denials.len() >= 3, "{}", imported.text);
        for denial in denials {
            let always = "headers_down = { \"+x-always\" = \"yes\" }";
            assert!(denial.contains(always), "{denial}");
            assert!(!denial.contains("x-ok"), "{denial}");
        }
    }
}
