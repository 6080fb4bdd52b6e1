//! A report for scripts. The shape is documented in `docs/replay.md` and only ever grows.
//!
//! Pure.

use serde_json::{Value, json};

use super::rates::Rates;
use super::report::{LimitReport, Report};

/// The version of the shape.
const VERSION: u32 = 1;

/// The whole report.
pub fn value(report: &Report) -> Value {
    let logs = report.logs.iter().map(|log| {
        json!({
            "name": log.name,
            "format": log.format.map(|format| format.word()),
            "lines": log.lines,
            "unread": log.unread.iter().sum::<u64>(),
            "error": log.error.as_ref().map(ToString::to_string),
        })
    });
    let seconds = |us: u64| us as f64 / 1e6;
    let outside = report.outside.iter();
    let outside = outside.map(|(kind, count)| (kind.name().to_owned(), json!(count)));
    json!({
        "version": VERSION,
        "logs": logs.collect::<Vec<_>>(),
        "lines": report.lines,
        "requests": report.requests,
        "from": report.times.map(|(first, _)| seconds(first)),
        "to": report.times.map(|(_, last)| seconds(last)),
        "denied": rates(&report.denied),
        "outside": outside.collect::<serde_json::Map<_, _>>(),
        "unread": unread(report),
        "limits": report.limits.iter().map(limit).collect::<Vec<_>>(),
        "timeline": {
            "start": report.steps.0,
            "step": report.steps.1,
            "requests": report.requests_over_time,
            "denied": report.denied_over_time,
        },
        "notes": report.notes,
    })
}

fn rates<T: Clone + Into<Value>>(rates: &Rates<T>) -> Value {
    let value = |one: &T| -> Value { one.clone().into() };
    json!({
        "half": value(&rates.half),
        "own": value(&rates.own),
        "twice": value(&rates.twice),
    })
}

fn unread(report: &Report) -> Value {
    let kinds = report.unread.iter().map(|(fault, count)| {
        let examples = report.logs.iter().flat_map(|log| {
            let of_kind = log.examples.iter().filter(|one| one.fault == *fault);
            of_kind.map(|one| json!({ "log": log.name, "line": one.line, "text": one.text }))
        });
        json!({
            "reason": fault.sentence(),
            "lines": count,
            "examples": examples.collect::<Vec<_>>(),
        })
    });
    json!({ "lines": report.unread_lines(), "kinds": kinds.collect::<Vec<_>>() })
}

fn limit(limit: &LimitReport) -> Value {
    let clients = limit.worst.iter().map(|client| {
        json!({
            "key": client.key,
            "requests": client.asked,
            "denied": client.denied,
            "peak": client.need,
        })
    });
    let minutes = limit.minutes.iter();
    let minutes = minutes.map(|minute| json!({ "at": minute.at_s, "denied": minute.count }));
    let suggested = limit.suggested.as_ref();
    json!({
        "name": limit.name,
        "tier": limit.tier,
        "mode": limit.role.word(),
        "key": limit.key,
        "rate": limit.rate.own,
        "rates": rates(&limit.rate),
        "units": rates(&limit.units),
        "per": limit.per,
        "requests": limit.asked,
        "denied": rates(&limit.denied),
        "clients": limit.clients,
        "clients_hit": rates(&limit.hit),
        "worst_clients": clients.collect::<Vec<_>>(),
        "worst_minutes": minutes.collect::<Vec<_>>(),
        "peaks": limit.needs,
        "suggested": suggested.map(|one| json!({
            "units": one.units,
            "rate": one.rate,
            "clients_hit": one.denied,
        })),
        "over_time": limit.over_time,
    })
}
