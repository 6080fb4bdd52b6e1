//! Who may come at all: what guards a location closes its route, since tidegate asks nobody for
//! passwords and keeps no addresses out.

use super::scope::Scope;
use crate::import::notes::Notes;

/// Who may come.
#[derive(Debug)]
pub(super) enum Guard {
    Nobody,
    /// Only some: why the route is closed.
    Some(String),
}

/// What guards a scope; nothing where everybody may come.
pub(super) fn guard(scope: &Scope<'_>, notes: &mut Notes) -> Option<Guard> {
    let mut guard = None;
    for name in [
        "auth_basic",
        "auth_request",
        "auth_jwt",
        "access_by_lua_block",
    ] {
        let Some(one) = scope.last(name).filter(|one| one.arg(0) != "off") else {
            continue;
        };
        let why = "tidegate asks for no credentials; the route is closed";
        notes.lost(&one.place, &one.line(), why);
        guard = Some(Guard::Some(format!("`{}`: {why}", one.line())));
    }
    // `allow` and `deny` are one list.
    let mut rules = scope.all("allow");
    rules.extend(scope.all("deny"));
    rules.retain(|one| !(one.name == "allow" && one.arg(0) == "all"));
    let denies_all = |one: &&super::syntax::Directive| one.name == "deny" && one.arg(0) == "all";
    if !rules.is_empty() && rules.iter().all(denies_all) {
        return guard.or(Some(Guard::Nobody));
    }
    for one in rules {
        let why = "tidegate keeps no addresses out; the route is closed";
        notes.lost(&one.place, &one.line(), why);
        guard = guard.or_else(|| Some(Guard::Some(format!("`{}`: {why}", one.line()))));
    }
    guard
}
