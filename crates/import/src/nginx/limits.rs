//! `limit_req` and `limit_conn` as limits.

use super::scope::BlockScope;
use super::syntax::Directive;
use super::variables;
use crate::draft::{self, Draft, LimitDraft};
use crate::files::SourceEntry;
use crate::limit::Rate;
use crate::values::{self, Refill, TomlEntries, quote};

/// The kinds of limits, whose other directives begin with these names.
pub(super) const KINDS: [&str; 2] = ["limit_req", "limit_conn"];

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
            let status = scope.last(&format!("{kind}_status"));
            let status = status.and_then(|status| status.arg(0).parse::<u16>().ok());
            if let Some(status @ 400..=599) = status.filter(|_| draft.has_own_statuses) {
                limit.entries.add("status", status.to_string());
            }
            let own_name = draft::clean_name(&limit.name);
            let known = draft.limits.len();
            let name = draft.add_limit(limit);
            if draft.limits.len() > known && name != own_name {
                one.differs(
                    "counted apart from where the zone has another burst, delay, rate or status",
                );
            }
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

/// Notes which zones are not used.
pub(super) fn note_zones(scope: &BlockScope<'_>, draft: &Draft) {
    for kind in KINDS {
        let kind = format!("{kind}_zone");
        for one in scope.http.named(&kind) {
            let zone = one.zone().and_then(|name| scope.zone(&kind, name));
            if !zone.is_some_and(|zone| std::ptr::eq(zone, one)) {
                continue;
            }
            if !draft.used_zones.contains(&one.source()) {
                one.needless("nothing uses this zone");
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
    // Servers with the same first name count together.
    let server = scope.server_name();
    let is_other = |one: &Directive| scope.enter_alone(one).server_name() != server;
    let counts_apart = imported.is_of_server && scope.http.named("server").any(is_other);
    let mut entries = TomlEntries::default();
    let name = match one.name.as_str() {
        "limit_req" => {
            read_bucket(zone, one)?.add_to(&mut entries);
            zone.zone().unwrap_or_default()
        }
        _ => {
            let count = one.arg(1).parse::<u64>().ok().filter(|count| *count > 0);
            entries.add("concurrent", count.ok_or("no number")?.to_string());
            one.arg(0)
        }
    };
    imported.key.add_to(&mut entries);
    let args: Vec<&str> = one.args.iter().map(String::as_str).collect();
    let mut name = name.split(':').next().unwrap_or(name).to_owned();
    let mut text = format!("{}; {} {}", zone.line(), one.name, args.join(" "));
    if counts_apart {
        name = format!("{name}-{server}");
        text = format!("{text}; server_name {server}");
    }
    let place = one.place.clone();
    Ok(LimitDraft {
        name,
        source: SourceEntry { place, text },
        entries,
    })
}

/// A leaky bucket as a rate, and how it holds requests.
struct Bucket {
    rate: Rate,
    hold: Option<BucketHold>,
}

struct BucketHold {
    delay_ms: u64,
    queue: u64,
}

impl Bucket {
    fn add_to(&self, entries: &mut TomlEntries) {
        entries.add("rate", quote(&self.rate.to_string()));
        if let Some(hold) = &self.hold {
            entries.add("delay", values::time_text(hold.delay_ms));
            entries.add("delay_queue", hold.queue.to_string());
        }
    }
}

/// The longest wait and the longest queue of a limit.
const MAX_DELAY_MS: u64 = 30 * 60 * 1000;
const MAX_QUEUE: u64 = 100_000;
/// A window may be longer than exact by one part in so many, because it has whole milliseconds.
const EXACTNESS: u64 = 33;
/// Requests of one window, at most, where one request alone has no whole milliseconds.
const MOST_TOGETHER: u64 = 100;

/// Reads a leaky bucket. Without `nodelay` it holds the requests beyond `delay`, and denies those
/// beyond `burst`.
fn read_bucket(zone: &Directive, one: &Directive) -> Result<Bucket, String> {
    let text = zone.option("rate=").unwrap_or_default();
    let refill = values::parse_nginx_rate(text).ok_or_else(|| format!("`{text}` is no rate"))?;
    let number = |name: &str| one.option(name).unwrap_or("0").parse::<u64>();
    let burst = number("burst=").map_err(|_| "no such burst")?;
    let at_once = number("delay=").map_err(|_| "no such delay")?;
    if one.has_arg("nodelay") || burst <= at_once {
        return forwarded_at_once(refill, burst, one);
    }
    let together = match at_once {
        0 => steady_units(refill).ok_or("no window is that short")?,
        _ => at_once.saturating_add(1),
    };
    let rate = refill.window(together).ok_or("no window is that long")?;
    let window_ms = rate.window_us / 1000;
    let held = burst - at_once;
    let delay_ms = held.div_ceil(together).saturating_mul(window_ms);
    if delay_ms > MAX_DELAY_MS || held > MAX_QUEUE {
        one.differs("at most 100000 requests wait, and none longer than 30 min; others are denied");
    }
    if at_once > 0 {
        let why = format!(
            "{together} requests pass at once, and those that wait go {together} at a time; nginx \
             sent them one by one"
        );
        one.differs(why);
    }
    Ok(Bucket {
        rate,
        hold: Some(BucketHold {
            delay_ms: delay_ms.min(MAX_DELAY_MS),
            queue: held.min(MAX_QUEUE),
        }),
    })
}

/// How many requests a window must have for its length to be whole milliseconds, nearly.
fn steady_units(refill: Refill) -> Option<u64> {
    (1..=MOST_TOGETHER).find(|units| {
        let exact = u128::from(units * refill.per_us);
        refill.window(*units).is_some_and(|rate| {
            let rounded = u128::from(rate.window_us) * u128::from(refill.units);
            (rounded - exact) * u128::from(EXACTNESS) <= exact
        })
    })
}

/// A bucket that holds no requests: the burst and the request that just passes are one window.
fn forwarded_at_once(refill: Refill, burst: u64, one: &Directive) -> Result<Bucket, String> {
    let rate = refill.window(burst.saturating_add(1));
    let rate = rate.ok_or("no window is that long")?;
    if burst > 0 {
        let window = values::time_text(rate.window_us / 1000);
        let why = format!(
            "{rate}: as many at once and in the long run. But units come back {} after their use; \
             nginx returned one at a time",
            window.trim_matches('"')
        );
        one.differs(why);
    }
    Ok(Bucket { rate, hold: None })
}

/// The status of denials without `limit_req_status` or `limit_conn_status`.
const NGINX_STATUS: u16 = 503;

/// Adds the statuses of the limits of a scope and of the locations in it.
fn add_statuses(scope: &BlockScope<'_>, statuses: &mut Vec<u16>) {
    for kind in KINDS {
        if scope.last(kind).is_none() {
            continue;
        }
        let one = scope.last(&format!("{kind}_status"));
        let status = one.map_or(Ok(NGINX_STATUS), |one| one.arg(0).parse::<u16>());
        match (status, one) {
            (Ok(status @ 400..=599), _) => statuses.push(status),
            (_, Some(one)) => one.lost("400 to 599 are possible"),
            (_, None) => {}
        }
    }
    for one in scope.named("location") {
        add_statuses(&scope.enter(one), statuses);
    }
}

/// Reads the status of denials: one for all, or else each limit has its own.
pub(super) fn read_deny_status<'s, 'd: 's>(
    servers: impl Iterator<Item = &'s BlockScope<'d>>,
    draft: &mut Draft,
) {
    let mut statuses: Vec<u16> = Vec::new();
    for scope in servers {
        add_statuses(scope, &mut statuses);
    }
    draft.deny_status = statuses.first().copied();
    draft.has_own_statuses = statuses
        .iter()
        .any(|status| Some(*status) != draft.deny_status);
    if draft.has_own_statuses {
        draft.deny_status = Some(NGINX_STATUS);
    }
}
