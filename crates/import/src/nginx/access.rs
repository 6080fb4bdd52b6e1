//! Who may come at all: what guards a location closes its route, since tidegate asks nobody for
//! passwords and keeps no addresses out.

use std::collections::BTreeSet;

use super::fates;
use super::outcome::respond;
use super::scope::Scope;
use super::syntax::Directive;
use crate::draft::Goal;
use crate::notes::Notes;

/// Who may come.
#[derive(Debug)]
pub(super) enum Guard {
    Nobody,
    /// Only some: why the route is closed.
    Some(String),
}

impl Guard {
    /// What a guarded route answers.
    pub(super) fn goal(self) -> Goal {
        match self {
            Guard::Nobody => respond(403),
            Guard::Some(why) => Goal::Closed(why),
        }
    }
}

/// Beginnings of directives that decide who may come, or run programs that may.
const GUARDING: [&str; 9] = [
    "auth_",
    "access_by_",
    "rewrite_by_lua",
    "server_rewrite_by_lua",
    "js_access",
    "secure_link",
    "perl_access",
    "testcookie",
    "oidc_",
];
/// Directives that turn a web application firewall on.
const FIREWALLS: [&str; 4] = [
    "modsecurity",
    "SecRulesEnabled",
    "app_protect_enable",
    "wallarm_mode",
];
/// Words in the name of a directive that this program does not know, and that may guard.
const SUSPECT: [&str; 17] = [
    "auth", "access", "deny", "allow", "block", "guard", "secure", "acl", "token", "jwt", "oidc",
    "ldap", "captcha", "firewall", "forbid", "ban_", "password",
];
/// Settings of guards, which guard nothing by themselves.
const SETTINGS: [&str; 6] = ["_file", "_set", "_timeout", "_md5", "_secret", "_shm_size"];
/// Files of packages that guard nothing.
const HARMLESS: [&str; 9] = [
    "mime.types",
    "fastcgi_params",
    "fastcgi.conf",
    "proxy_params",
    "uwsgi_params",
    "scgi_params",
    "proxy.conf",
    "options-ssl-nginx.conf",
    "ssl-params.conf",
];

/// What guards a scope; nothing where everybody may come.
pub(super) fn guard(scope: &Scope<'_>, notes: &mut Notes) -> Option<Guard> {
    let mut guard = named(scope, notes);
    for one in scope.every().filter(|one| one.name == "include") {
        let file = one.arg(0).rsplit('/').next().unwrap_or_default();
        if !HARMLESS.contains(&file) {
            let why = "the file cannot be read here, and it may guard something; what it is for is \
                       closed";
            notes.lost(&one.place, &one.line(), why);
            guard = guard.or_else(|| Some(Guard::Some(format!("`{}`: {why}", one.line()))));
        }
    }
    let verify = scope
        .last("ssl_verify_client")
        .filter(|one| one.arg(0) == "on");
    if let Some(one) = verify.filter(|_| scope.last("ssl_client_certificate").is_none()) {
        let why = "no `ssl_client_certificate` says which certificates are believed; it is closed";
        notes.lost(&one.place, &one.line(), why);
        guard = guard.or_else(|| Some(Guard::Some(format!("`{}`: {why}", one.line()))));
    }
    guard.or_else(|| addresses(scope, notes))
}

/// What guards a block by what stands in itself.
pub(super) fn guard_here(scope: &Scope<'_>, notes: &mut Notes) -> Option<Guard> {
    guard(&Scope::new(scope.own()), notes)
}

/// Guards by their name.
fn named(scope: &Scope<'_>, notes: &mut Notes) -> Option<Guard> {
    let names: BTreeSet<&str> = scope.every().map(|one| one.name.as_str()).collect();
    let mut guard = None;
    for name in names.into_iter().filter(|name| guards(name)) {
        let Some(one) = scope.last(name).filter(|one| one.arg(0) != "off") else {
            continue;
        };
        let why = if FIREWALLS.contains(&name) {
            "tidegate has no web application firewall; the route is closed"
        } else {
            "tidegate asks for no credentials and runs no programs; the route is closed"
        };
        notes.lost(&one.place, &one.line(), why);
        guard = Some(Guard::Some(format!("`{}`: {why}", one.line())));
    }
    guard
}

fn guards(name: &str) -> bool {
    let sets = name != "auth_request" && SETTINGS.iter().any(|end| name.ends_with(end));
    let known = GUARDING.iter().any(|begin| name.starts_with(begin))
        && !(sets && name.starts_with("auth_"));
    let suspect = || !fates::is_known(name) && SUSPECT.iter().any(|word| name.contains(word));
    known && name != "auth_http" || FIREWALLS.contains(&name) || !sets && suspect()
}

/// `allow` and `deny`, which are one list.
fn addresses(scope: &Scope<'_>, notes: &mut Notes) -> Option<Guard> {
    let mut rules = scope.all_of(&["allow", "deny"]);
    let is_all = |one: &&Directive| one.arg(0) == "all";
    // What follows a rule for all is never asked.
    if let Some(end) = rules.iter().position(is_all) {
        rules.truncate(end + 1);
    }
    match &rules[..] {
        [] => return None,
        [only] if is_all(only) => return (only.name == "deny").then_some(Guard::Nobody),
        _ => {}
    }
    if rules.iter().all(|one| one.name == "allow") {
        return None;
    }
    if rules.iter().all(|one| one.name == "deny") && rules.iter().any(is_all) {
        return Some(Guard::Nobody);
    }
    let mut guard = None;
    for one in rules
        .into_iter()
        .filter(|one| !is_all(one) || one.name == "deny")
    {
        let why = "tidegate keeps no addresses out; the route is closed";
        notes.lost(&one.place, &one.line(), why);
        guard = guard.or_else(|| Some(Guard::Some(format!("`{}`: {why}", one.line()))));
    }
    guard
}
