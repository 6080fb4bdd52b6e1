//! What `status` shows.
//!
//! Pure: what was seen goes in, lines come out.

use serde_json::Value;

use crate::cli::figures::{count, date, latency, span, sparkline};
use crate::cli::ink::{Line, Tone};
use crate::cli::seen::{Seen, list, text, texts};
use crate::cli::tables::{limits, servers};

/// Where what is told begins.
const COLUMN: usize = 13;

/// The whole page; `link` leads to the dashboard.
pub(super) fn page(seen: &Seen, link: &str) -> Vec<Line> {
    let mut lines = head(seen);
    lines.extend(config(seen));
    lines.push(store(seen));
    lines.push(traffic(seen));
    lines.push(said("dashboard", link));
    if !seen.servers.is_empty() {
        lines.push(Line::default());
        lines.extend(servers(&seen.servers, seen.now()));
    }
    if !seen.limits.is_empty() {
        lines.push(Line::default());
        lines.extend(limits(seen.limits.iter()));
    }
    lines.extend(findings(&seen.status["findings"]));
    lines
}

fn named(name: &str) -> Line {
    Line::default().and(Tone::Faint, name).to(COLUMN)
}

fn said(name: &str, text: impl AsRef<str>) -> Line {
    named(name).and(Tone::Plain, text)
}

fn ago(seen: &Seen, at: f64) -> String {
    format!("{} ago", span(seen.now() - at))
}

fn head(seen: &Seen) -> Vec<Line> {
    let status = &seen.status;
    let first = Line::default()
        .and(
            Tone::Strong,
            format!("tidegate {}", text(&status["version"])),
        )
        .to(COLUMN.max(16));
    let first = match seen.reasons.is_empty() {
        true => first.and(Tone::Good, "ready"),
        false => first.and(Tone::Bad, format!("not ready: {}", seen.reasons.join(", "))),
    };
    let mut lines = vec![first];
    if let Some(started) = status["started_at"].as_f64() {
        let up = span(seen.now() - started);
        let (pid, workers) = (&status["pid"], &status["workers"]);
        let text = format!(
            "{up}, since {} (pid {pid}, {workers} workers)",
            date(started)
        );
        lines.push(said("up", text));
    }
    let listen = texts(&status["listen"]);
    if !listen.is_empty() {
        let connections = status["connections"].as_u64().unwrap_or(0);
        let clients = match connections {
            1 => "1 connection".to_owned(),
            many => format!("{} connections", count(many)),
        };
        lines.push(said(
            "listening",
            format!("{} ({clients})", listen.join(", ")),
        ));
    }
    lines
}

fn config(seen: &Seen) -> Vec<Line> {
    let config = &seen.status["config"];
    let file = match config["file"].as_str() {
        Some(file) => file.to_owned(),
        None => "no file: from the command line".to_owned(),
    };
    let read = config["loaded_at"].as_f64().map_or_else(String::new, |at| {
        format!(", in force for {}", span(seen.now() - at))
    });
    let mut lines = vec![said("config", file + &read)];
    let last = &config["last_reload"];
    let Some(at) = last["at"].as_f64() else {
        return lines;
    };
    let ago = ago(seen, at);
    if last["ok"] == Value::Bool(true) {
        let changes = texts(&last["changes"]);
        let line = named("reload").and(Tone::Good, "fine");
        lines.push(match changes.is_empty() {
            true => line.and(Tone::Plain, format!(", {ago}; nothing was different")),
            false => line.and(Tone::Plain, format!(", {ago}")),
        });
        let changes = changes.iter().map(|change| said("", change));
        lines.extend(changes);
        let restarts = texts(&last["restarts"]);
        lines.extend(restarts.iter().map(|text| named("").and(Tone::Warn, text)));
    } else {
        let failed = format!(", {ago}; what was in force before still is");
        lines.push(
            named("reload")
                .and(Tone::Bad, "failed")
                .and(Tone::Plain, failed),
        );
        for error in texts(&last["errors"]) {
            lines.extend(error.lines().map(|line| said("", line)));
        }
    }
    lines
}

fn store(seen: &Seen) -> Line {
    let store = &seen.status["store"];
    let kind = text(&store["kind"]);
    let line = named("store").and(Tone::Plain, format!("{kind}: "));
    if kind == "memory" {
        return line.and(Tone::Plain, "counts live in this process only");
    }
    if store["up"] != Value::Bool(false) {
        let round_trip = store["round_trip_seconds"].as_f64();
        let round_trip = round_trip.map_or_else(String::new, |s| format!(", {}", latency(s)));
        return line.and(Tone::Good, "up").and(Tone::Plain, round_trip);
    }
    let since = store["since"].as_f64();
    let since = since.map_or_else(String::new, |at| format!(" for {}", span(seen.now() - at)));
    let does = match store["on_error"].as_str() {
        Some("allow") => "; meanwhile everything is allowed",
        Some("deny") => "; meanwhile everything is denied",
        _ => "; meanwhile this process counts by itself",
    };
    line.and(Tone::Warn, format!("away{since}"))
        .and(Tone::Plain, does)
}

fn traffic(seen: &Seen) -> Line {
    let traffic = &seen.traffic;
    let (requests, denials) = (traffic.requests_per_second, traffic.denials_per_second);
    let picture = sparkline(&traffic.requests, 30);
    let line = said("traffic", format!("{}/s, ", count(requests as u64)));
    let tone = if denials > 0.0 {
        Tone::Warn
    } else {
        Tone::Plain
    };
    let line = line.and(tone, format!("{} denied/s", count(denials as u64)));
    match picture.trim().is_empty() {
        true => line,
        false => line.and(Tone::Faint, format!("   {picture} requests, last 30 s")),
    }
}

fn findings(told: &Value) -> Vec<Line> {
    let mut lines = Vec::new();
    for finding in list(told) {
        lines.push(Line::default());
        let count = match finding["count"].as_u64() {
            Some(times) if times > 1 => format!(" ({} times)", count(times)),
            _ => String::new(),
        };
        let severity = finding["severity"].as_str().unwrap_or("warning");
        lines.push(
            Line::default()
                .and(Tone::Warn, severity)
                .and(Tone::Plain, format!(": {}{count}", text(&finding["text"]))),
        );
        if let Some(silence) = finding["silence"].as_str() {
            lines.push(Line::default().and(Tone::Faint, format!("to silence it: {silence}")));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::ink;

    const NOW: f64 = 1_795_000_000.0;

    fn seen(change: impl FnOnce(&mut Value)) -> Seen {
        let mut status = json!({
            "version": "0.1.0", "pid": 42, "workers": 4, "connections": 17,
            "started_at": NOW - 11_520.0, "now": NOW, "listen": ["http://0.0.0.0:8080"],
            "config": { "file": "proxy.toml", "loaded_at": NOW - 65.0, "last_reload":
                { "at": NOW - 65.0, "ok": true, "changes": ["limit login: 5/min is now 9/min"] } },
            "store": { "kind": "redis", "up": true, "degraded": false, "since": null,
                "round_trip_seconds": 0.00042, "on_error": "local" },
            "findings": [],
        });
        change(&mut status);
        let seconds: Vec<Value> = (0..60)
            .map(|at| json!({ "at": at, "requests": at * 10, "denied": 0 }))
            .collect();
        let limits = json!({ "limits": [
            { "name": "login", "rates": ["9/min"], "key": "ip", "mode": "enforced",
              "totals": { "denied": 12_345 }, "per_second": { "allowed": 3, "denied": 20 },
              "headroom": 0.02 },
            { "name": "tried", "rates": ["10/s", "1000/h"], "key": "api_key or ip",
              "mode": "shadow", "totals": { "shadow_denied": 7 },
              "per_second": { "allowed": 1234, "denied": 0 }, "headroom": null },
        ]});
        let upstreams = json!({ "upstreams": [{ "name": "api", "servers": [
            { "server": "http://10.0.0.1:3000", "up": true, "in_flight": 3, "idle": 12,
              "latency_seconds": 0.0123, "ejected_until": null, "requests": 99_000, "failures": 0 },
            { "server": "http://10.0.0.2:3000", "up": true, "in_flight": 0, "idle": 0,
              "latency_seconds": null, "ejected_until": NOW + 9.5, "requests": 8, "failures": 5 },
        ]}]});
        let traffic = json!({ "rates": { "requests": 1237, "denials": 20 }, "second": seconds });
        Seen::of(
            status,
            [json!({ "ready": true }), limits, upstreams, traffic],
        )
    }

    #[test]
    fn a_page_of_a_healthy_proxy() {
        let page = page(&seen(|_| {}), "http://127.0.0.1:9180/");
        assert_eq!(ink::text(&page, false), include_str!("page.txt"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let mut seen = seen(|status| {
            status["store"] = json!({ "kind": "redis", "up": false, "degraded": true,
                "since": NOW - 30.0, "on_error": "local" });
            status["config"]["last_reload"] = json!({ "at": NOW - 5.0, "ok": false,
                "errors": ["error[T101]: unknown key\n --> proxy.toml:1"] });
            status["findings"] = json!([{ "severity": "warning", "count": 3,
                "text": "forwarded headers from an untrusted peer",
                "silence": "add 10.0.0.0/8 to `trusted_proxies`" }]);
        });
        seen.reasons = vec!["draining".to_owned()];
        let text = ink::text(&page(&seen, "http://a/"), false);
        for part in [
            "tidegate 0.1.0  not ready: draining\n",
            "store        redis: away for 30 s; meanwhile this process counts by itself\n",
            "reload       failed, 5 s ago; what was in force before still is\n\
             \x20            error[T101]: unknown key\n",
            "\nwarning: forwarded headers from an untrusted peer (3 times)\n\
             to silence it: add 10.0.0.0/8 to `trusted_proxies`\n",
        ] {
            assert!(text.contains(part), "{part}\n--\n{text}");
        }
    }

    #[test]
    fn a_proxy_that_tells_nothing_has_a_page_too() {
        let none = || Value::Null;
        let seen = Seen::of(none(), [json!({ "ready": false }), none(), none(), none()]);
        let text = ink::text(&page(&seen, "http://a/"), false);
        assert!(text.contains("not ready: not ready"), "{text}");
    }
}
