//! `limit_req` and `limit_conn`: zones with what they allow, as limits.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::Http;
use super::keys;
use super::scope::Scope;
use super::syntax::Directive;
use super::values;
use crate::bucket;
use crate::draft::{Budget, Draft, LimitDraft};
use crate::notes::Notes;

/// Zones, by kind and name.
#[derive(Debug, Default)]
pub(super) struct Zones<'d> {
    by_name: BTreeMap<(Kind, &'d str), &'d Directive>,
    used: RefCell<BTreeSet<(Kind, String)>>,
}

/// What a zone counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Req,
    Conn,
}

impl<'d> Zones<'d> {
    pub(super) fn of(http: &'d [Directive]) -> Zones<'d> {
        let mut zones = Zones::default();
        for one in http {
            let kind = match one.name.as_str() {
                "limit_req_zone" => Kind::Req,
                "limit_conn_zone" => Kind::Conn,
                _ => continue,
            };
            if let Some(name) = option(one, "zone=") {
                let name = name.split(':').next().unwrap_or(name);
                zones.by_name.insert((kind, name), one);
            }
        }
        zones
    }

    /// What is to be said of them at the end.
    pub(super) fn rest(&self, draft: &mut Draft) {
        for ((kind, name), one) in &self.by_name {
            if !self.used.borrow().contains(&(*kind, (*name).to_owned())) {
                let why = "nothing uses this zone";
                draft.notes.needless(&one.place, &one.line(), why);
            } else if draft.deny_status.is_none() {
                let why = "denials are answered 429; nginx answers 503 where `limit_req_status` \
                           says nothing else";
                draft.notes.differs(&one.place, &one.line(), why);
                draft.deny_status = Some(429);
            }
        }
    }
}

/// `burst=20` of a directive.
fn option<'d>(one: &'d Directive, name: &str) -> Option<&'d str> {
    one.args.iter().find_map(|arg| arg.strip_prefix(name))
}

/// The limits that hold in a scope, by name; those that are new are added.
pub(super) fn of(http: &Http<'_>, scope: &Scope<'_>, draft: &mut Draft) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (directive, dry, kind) in [
        ("limit_req", "limit_req_dry_run", Kind::Req),
        ("limit_conn", "limit_conn_dry_run", Kind::Conn),
    ] {
        for one in scope.all(directive) {
            let name = match kind {
                Kind::Req => option(one, "zone=").unwrap_or_default(),
                Kind::Conn => one.arg(0),
            };
            let Some(zone) = http.zones.by_name.get(&(kind, name)) else {
                draft
                    .notes
                    .lost(&one.place, &one.line(), "there is no such zone");
                continue;
            };
            let used = (kind, name.to_owned());
            http.zones.used.borrow_mut().insert(used);
            match limit(http, zone, one, kind, &mut draft.notes) {
                Ok(limit) => {
                    let shadow = scope.is_on(dry);
                    let wanted = limit.name.clone();
                    let before = draft.limits.len();
                    let name = draft.limit(LimitDraft { shadow, ..limit });
                    let is_again = draft.limits.len() > before && draft.has_limit_like(&wanted);
                    if is_again {
                        let why = "counted apart from where the zone has another burst or rate";
                        draft.notes.differs(&one.place, &one.line(), why);
                    }
                    if !names.contains(&name) {
                        names.push(name);
                    }
                }
                Err(why) => draft.notes.lost(&one.place, &one.line(), why),
            }
        }
    }
    names
}

fn limit(
    http: &Http<'_>,
    zone: &Directive,
    one: &Directive,
    kind: Kind,
    notes: &mut Notes,
) -> Result<LimitDraft, String> {
    let (key, differs) = keys::key(zone.arg(0), &http.maps)?;
    if let Some(why) = differs {
        notes.differs(&zone.place, &zone.line(), why);
    }
    let budget = match kind {
        Kind::Req => rate(zone, one, notes)?,
        Kind::Conn => Budget::Concurrent(
            one.arg(1)
                .parse()
                .ok()
                .filter(|count| *count > 0)
                .ok_or("no number")?,
        ),
    };
    let name = match kind {
        Kind::Req => option(zone, "zone=").unwrap_or_default(),
        Kind::Conn => one.arg(0),
    };
    // What differs from place to place and is the same for us.
    let said = one
        .args
        .iter()
        .filter(|arg| *arg != "nodelay" && !arg.starts_with("delay="));
    let said: Vec<&str> = said.map(String::as_str).collect();
    Ok(LimitDraft {
        name: name.split(':').next().unwrap_or(name).to_owned(),
        was: format!("{}; {} {}", zone.line(), one.name, said.join(" ")),
        budget,
        key,
        shadow: false,
        place: one.place.clone(),
    })
}

/// A leaky bucket's capacity is its burst and the request that it lets pass.
fn rate(zone: &Directive, one: &Directive, notes: &mut Notes) -> Result<Budget, String> {
    let text = option(zone, "rate=").unwrap_or_default();
    let refill = values::rate(text).ok_or_else(|| format!("`{text}` is no rate"))?;
    let burst = match option(one, "burst=") {
        Some(burst) => burst
            .parse::<u64>()
            .map_err(|_| "no such burst".to_owned())?,
        None => 0,
    };
    let rate = bucket::window(refill, burst.saturating_add(1));
    let rate = rate.ok_or_else(|| "no window is that long".to_owned())?;
    let delays = burst > 0 && !one.args.iter().any(|arg| arg == "nodelay");
    if delays {
        let why = "requests of the burst are forwarded at once; nginx let them wait so that they \
                   were sent at the rate";
        notes.differs(&one.place, &one.line(), why);
    }
    if burst > 0 {
        let why = format!(
            "{rate}: as many at once and as many in the long run; but units come back {} after \
             they were used, where nginx gave one back at a time",
            window_text(rate.window_us)
        );
        notes.differs(&one.place, &one.line(), why);
    }
    Ok(Budget::Rate(rate))
}

fn window_text(us: u64) -> String {
    values::time_text(us / 1000).trim_matches('"').to_owned()
}
