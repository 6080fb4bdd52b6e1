//! `limit_req` and `limit_conn` as limits.

use super::scope::{BlockScope, HttpBlock, ZoneKind};
use super::syntax::Directive;
use super::variables;
use crate::draft::{self, Draft, LimitBudget, LimitDraft, Notes};
use crate::files::SourceEntry;
use crate::values;

/// Adds the limits that apply in a scope, and returns their names.
pub(super) fn add_limits(scope: &BlockScope<'_>, draft: &mut Draft) -> Vec<String> {
    let http = scope.http;
    let mut names: Vec<String> = Vec::new();
    for (directive, dry_run, kind) in [
        ("limit_req", "limit_req_dry_run", ZoneKind::Requests),
        ("limit_conn", "limit_conn_dry_run", ZoneKind::Connections),
    ] {
        for one in scope.inherited(directive) {
            let name = match kind {
                ZoneKind::Requests => one.option("zone=").unwrap_or_default(),
                ZoneKind::Connections => one.arg(0),
            };
            let Some(zone) = http.zones.get(&(kind, name)) else {
                one.note_lost(&mut draft.notes, "there is no such zone");
                continue;
            };
            http.used_zones.borrow_mut().insert((kind, name.to_owned()));
            let limit = LimitUse { http, zone, one }.translate(kind, &mut draft.notes);
            let limit = match limit {
                Ok(limit) => limit,
                Err(why) => {
                    one.note_lost(&mut draft.notes, why);
                    continue;
                }
            };
            let own_name = draft::clean_name(&limit.name);
            let known = draft.limits.len();
            let shadow = scope.is_on(dry_run);
            let name = draft.add_limit(LimitDraft { shadow, ..limit });
            if draft.limits.len() > known && name != own_name {
                let why = "counted apart from where the zone has another burst or rate";
                one.note_differs(&mut draft.notes, why);
            }
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

/// Notes which zones are not used, and which status denials have if nginx names none.
pub(super) fn note_zones(http: &HttpBlock<'_>, draft: &mut Draft) {
    let used = http.used_zones.borrow();
    for ((kind, name), one) in &http.zones {
        if !used.contains(&(*kind, (*name).to_owned())) {
            one.note_needless(&mut draft.notes, "nothing uses this zone");
        } else if draft.deny_status.is_none() {
            let why = "denials are answered 429; nginx answers 503 where `limit_req_status` says \
                       nothing else";
            one.note_differs(&mut draft.notes, why);
            draft.deny_status = Some(429);
        }
    }
}

/// A zone, and a directive that uses it.
struct LimitUse<'l> {
    http: &'l HttpBlock<'l>,
    zone: &'l Directive,
    one: &'l Directive,
}

impl LimitUse<'_> {
    fn translate(&self, kind: ZoneKind, notes: &mut Notes) -> Result<LimitDraft, String> {
        let (zone, one) = (self.zone, self.one);
        let imported = variables::translate_key(zone.arg(0), self.http)?;
        if let Some(why) = imported.differs {
            zone.note_differs(notes, why);
        }
        let (name, budget) = match kind {
            ZoneKind::Requests => (zone.option("zone=").unwrap_or_default(), self.rate(notes)?),
            ZoneKind::Connections => {
                let count = one.arg(1).parse().ok().filter(|count| *count > 0);
                (
                    one.arg(0),
                    LimitBudget::Concurrent(count.ok_or("no number")?),
                )
            }
        };
        // Places that differ only in delays share a limit.
        let is_delay = |arg: &str| arg == "nodelay" || arg.starts_with("delay=");
        let args = one.args.iter().map(String::as_str);
        let args: Vec<&str> = args.filter(|arg| !is_delay(arg)).collect();
        Ok(LimitDraft {
            name: name.split(':').next().unwrap_or(name).to_owned(),
            source: SourceEntry {
                place: one.place.clone(),
                text: format!("{}; {} {}", zone.line(), one.name, args.join(" ")),
            },
            budget,
            key: imported.key,
            shadow: false,
        })
    }

    /// Returns the rate of a leaky bucket. It holds the burst and the request that just passes.
    fn rate(&self, notes: &mut Notes) -> Result<LimitBudget, String> {
        let one = self.one;
        let text = self.zone.option("rate=").unwrap_or_default();
        let refill =
            values::parse_nginx_rate(text).ok_or_else(|| format!("`{text}` is no rate"))?;
        let burst = one.option("burst=").unwrap_or("0").parse::<u64>();
        let burst = burst.map_err(|_| "no such burst".to_owned())?;
        let rate = refill.window(burst.saturating_add(1));
        let rate = rate.ok_or_else(|| "no window is that long".to_owned())?;
        if burst > 0 && !one.has_arg("nodelay") {
            let why = "requests of the burst are forwarded at once; nginx let them wait so that \
                       they were sent at the rate";
            one.note_differs(notes, why);
        }
        if burst > 0 {
            let window = values::time_text(rate.window_us / 1000);
            let why = format!(
                "{rate}: as many at once and as many in the long run; but units come back {} after \
                 they were used, where nginx gave one back at a time",
                window.trim_matches('"')
            );
            one.note_differs(notes, why);
        }
        Ok(LimitBudget::Rate(rate))
    }
}
