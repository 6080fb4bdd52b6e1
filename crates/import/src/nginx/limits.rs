//! `limit_req` and `limit_conn` as limits.

use super::scope::BlockScope;
use super::syntax::Directive;
use super::variables;
use crate::draft::{self, Draft, LimitDraft};
use crate::files::SourceEntry;
use crate::limit::Rate;
use crate::values::{self, TomlEntries, quote};

/// The kinds of limits, whose other directives begin with these names.
const KINDS: [&str; 2] = ["limit_req", "limit_conn"];

/// Adds the limits that apply in a scope, and returns their names.
pub(super) fn add_limits(scope: &BlockScope<'_>, draft: &mut Draft) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for kind in KINDS {
        for one in scope.inherited(kind) {
            let name = match kind {
                "limit_req" => one.option("zone=").unwrap_or_default(),
                _ => one.arg(0),
            };
            let Some(zone) = scope.zone(&format!("{kind}_zone"), name) else {
                one.lost("there is no such zone");
                continue;
            };
            draft.used_zones.push(zone.source());
            let mut limit = match translate(zone, one, scope) {
                Ok(limit) => limit,
                Err(why) => {
                    one.lost(why);
                    continue;
                }
            };
            if scope.is_on(&format!("{kind}_dry_run")) {
                limit.entries.add("shadow", "true");
            }
            let own_name = draft::clean_name(&limit.name);
            let known = draft.limits.len();
            let name = draft.add_limit(limit);
            if draft.limits.len() > known && name != own_name {
                one.differs("counted apart from where the zone has another burst or rate");
            }
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

/// Notes which zones are not used, and which status denials have if nginx names none.
pub(super) fn note_zones(scope: &BlockScope<'_>, draft: &mut Draft) {
    for kind in KINDS {
        let kind = format!("{kind}_zone");
        for one in scope.http.named(&kind) {
            let zone = one.zone().and_then(|name| scope.zone(&kind, name));
            if !zone.is_some_and(|zone| std::ptr::eq(zone, one)) {
                continue;
            }
            if !draft.used_zones.contains(&one.source()) {
                one.needless("nothing uses this zone");
            } else if draft.deny_status.is_none() {
                let why = "denials are answered 429; nginx answers 503 where `limit_req_status` \
                           says nothing else";
                one.differs(why);
                draft.deny_status = Some(429);
            }
        }
    }
}

fn translate(
    zone: &Directive,
    one: &Directive,
    scope: &BlockScope<'_>,
) -> Result<LimitDraft, String> {
    let imported = variables::translate_key(zone.arg(0), scope)?;
    if let Some(why) = imported.differs {
        zone.differs(why);
    }
    let mut entries = TomlEntries::default();
    let name = match one.name.as_str() {
        "limit_req" => {
            entries.add("rate", quote(&read_rate(zone, one)?.to_string()));
            zone.zone().unwrap_or_default()
        }
        _ => {
            let count = one.arg(1).parse::<u64>().ok().filter(|count| *count > 0);
            entries.add("concurrent", count.ok_or("no number")?.to_string());
            one.arg(0)
        }
    };
    imported.key.add_to(&mut entries);
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
        entries,
    })
}

/// Returns the rate of a leaky bucket. It holds the burst and the request that just passes.
fn read_rate(zone: &Directive, one: &Directive) -> Result<Rate, String> {
    let text = zone.option("rate=").unwrap_or_default();
    let refill = values::parse_nginx_rate(text).ok_or_else(|| format!("`{text}` is no rate"))?;
    let burst = one.option("burst=").unwrap_or("0").parse::<u64>();
    let burst = burst.map_err(|_| "no such burst")?;
    let rate = refill.window(burst.saturating_add(1));
    let rate = rate.ok_or("no window is that long")?;
    if burst > 0 && !one.has_arg("nodelay") {
        let why = "requests of the burst are forwarded at once; nginx let them wait so that they \
                   were sent at the rate";
        one.differs(why);
    }
    if burst > 0 {
        let window = values::time_text(rate.window_us / 1000);
        let why = format!(
            "{rate}: as many at once and in the long run. But units come back {} after their use; \
             nginx returned one at a time",
            window.trim_matches('"')
        );
        one.differs(why);
    }
    Ok(rate)
}
