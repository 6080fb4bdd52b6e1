//! `tidegate status` and `tidegate health`: the state of the running proxy.

use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::DID_NOT_WORK;
use super::admin_client::{AdminArgs, AdminClient, AdminFailure};
use super::display::{StyledLine, Tone, count, date, latency, render_lines, sparkline};
use super::output::{CommandError, load, print, print_error, use_colour};
use super::proxy_snapshot::{ProxySnapshot, limit_table, server_table};
use crate::admin::findings::FindingReport;
use crate::admin::schema::Sometimes;
use crate::config::{self, Listen};
use crate::server::listen::ListenLines;

/// The column of the values, after their names.
const VALUE_COLUMN: usize = 13;

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// Print one line of JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// `tidegate status`. The exit code is 0 if the proxy is ready to serve.
pub(super) fn status(args: &StatusArgs) -> Result<u8, CommandError> {
    let client = AdminClient::new(&args.admin)?;
    let snapshot = client.wait(ProxySnapshot::fetch(&client))?;
    let out = std::io::stdout();
    if args.json {
        let mut json = snapshot.json;
        json["admin"] = Value::String(client.url());
        print(format!("{json}\n"))?;
    } else {
        // The token is shown on a terminal only: the output of a script may be stored in a file.
        let link = match client.token.as_ref().filter(|_| out.is_terminal()) {
            Some(token) => format!("{}#token={token}", client.url()),
            None => client.url(),
        };
        print(render_lines(&page(&snapshot, &link), use_colour(&out)))?;
    }
    Ok(match snapshot.reasons.is_empty() {
        true => 0,
        false => DID_NOT_WORK,
    })
}

/// The whole page; `link` leads to the dashboard.
fn page(snapshot: &ProxySnapshot, link: &str) -> Vec<StyledLine> {
    let mut lines = process_lines(snapshot);
    lines.extend(config_lines(snapshot));
    lines.push(store_line(snapshot));
    lines.push(traffic_line(snapshot));
    lines.push(named("dashboard").plain(link));
    if !snapshot.upstreams.is_empty() {
        lines.push(StyledLine::default());
        lines.extend(server_table(snapshot));
    }
    if !snapshot.limits.is_empty() {
        lines.push(StyledLine::default());
        lines.extend(limit_table(snapshot.limits.iter()));
    }
    lines.extend(finding_lines(&snapshot.status.findings));
    lines
}

fn named(name: &str) -> StyledLine {
    StyledLine::new(Tone::Faint, name).pad_to(VALUE_COLUMN)
}

fn process_lines(snapshot: &ProxySnapshot) -> Vec<StyledLine> {
    let status = &snapshot.status;
    let version = format!("tidegate {}", status.version);
    let first = StyledLine::new(Tone::Strong, version).pad_to(VALUE_COLUMN.max(16));
    let mut lines = vec![match snapshot.reasons.join(", ").as_str() {
        "" => first.with(Tone::Good, "ready"),
        reasons => first.with(Tone::Bad, format!("not ready: {reasons}")),
    }];
    if status.started_at > 0.0 {
        let (up, since) = (snapshot.since(status.started_at), date(status.started_at));
        let (pid, workers) = (status.pid, status.workers);
        lines.push(named("up").plain(format!(
            "{up}, since {since} (pid {pid}, {workers} workers)"
        )));
    }
    if !status.listen.is_empty() {
        let connections = match status.connections {
            1 => "1 connection".to_owned(),
            many => format!("{} connections", count(many as u64)),
        };
        let text = format!("{} ({connections})", status.listen.join(", "));
        lines.push(named("listening").plain(text));
    }
    lines
}

fn config_lines(snapshot: &ProxySnapshot) -> Vec<StyledLine> {
    let config = &snapshot.status.config;
    let file = config.file.as_deref();
    let file = file.unwrap_or("no file: from the command line");
    let read = match config.loaded_at {
        0.0 => String::new(),
        at => format!(", in force for {}", snapshot.since(at)),
    };
    let mut lines = vec![named("config").plain(format!("{file}{read}"))];
    let Some(last) = &config.last_reload else {
        return lines;
    };
    let ago = format!(", {} ago", snapshot.since(last.at));
    let texts = |texts: &Sometimes<Vec<String>>| texts.0.clone().unwrap_or_default();
    if last.ok {
        let changes = texts(&last.changes);
        let line = named("reload").with(Tone::Good, "fine").plain(ago);
        lines.push(match changes.is_empty() {
            true => line.plain("; nothing was different"),
            false => line,
        });
        lines.extend(changes.iter().map(|change| named("").plain(change)));
        let restarts = texts(&last.restarts);
        lines.extend(restarts.iter().map(|text| named("").with(Tone::Warn, text)));
    } else {
        let line = named("reload").with(Tone::Bad, "failed").plain(ago);
        lines.push(line.plain("; the configuration before it is still in force"));
        let errors = texts(&last.errors);
        let errors = errors.iter().flat_map(|error| error.lines());
        lines.extend(errors.map(|line| named("").plain(line)));
    }
    lines
}

fn store_line(snapshot: &ProxySnapshot) -> StyledLine {
    let store = &snapshot.status.store;
    let line = named("store").plain(format!("{}: ", store.kind));
    if store.kind == "memory" {
        return line.plain("counts live in this process only");
    }
    if !store.degraded {
        let round_trip = store.round_trip_seconds;
        let round_trip = round_trip.map_or_else(String::new, |s| format!(", {}", latency(s)));
        return line.with(Tone::Good, "up").plain(round_trip);
    }
    let since = store.since;
    let since = since.map_or_else(String::new, |at| format!(" for {}", snapshot.since(at)));
    line.with(Tone::Warn, format!("away{since}"))
        .plain(format!("; meanwhile {}", snapshot.without_store()))
}

fn traffic_line(snapshot: &ProxySnapshot) -> StyledLine {
    let rates = &snapshot.traffic.rates;
    let tone = match rates.denials {
        0 => Tone::Plain,
        _ => Tone::Warn,
    };
    let line = named("traffic")
        .plain(format!("{}/s, ", count(rates.requests)))
        .with(tone, format!("{} denied/s", count(rates.denials)));
    let [requests, _] = snapshot.seconds();
    let picture = sparkline(&requests, 30);
    match picture.trim().is_empty() {
        true => line,
        false => line.with(Tone::Faint, format!("   {picture} requests, last 30 s")),
    }
}

fn finding_lines(findings: &[FindingReport]) -> Vec<StyledLine> {
    let mut lines = Vec::new();
    for finding in findings {
        let times = match finding.count {
            0 | 1 => String::new(),
            times => format!(" ({} times)", count(times)),
        };
        let text = format!(": {}{times}", finding.text);
        let silence = format!("to silence it: {}", finding.silence);
        lines.push(StyledLine::default());
        lines.push(StyledLine::new(Tone::Warn, &finding.severity).plain(text));
        lines.push(StyledLine::new(Tone::Faint, silence));
    }
    lines
}

#[derive(Debug, Args)]
pub(super) struct HealthArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// Check whether the proxy is ready for requests (/readyz), not only alive (/healthz).
    #[arg(long)]
    ready: bool,
    /// The longest wait for a response, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = timeout_seconds)]
    timeout: u64,
}

fn timeout_seconds(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok().filter(|one| (1..=60).contains(one));
    seconds.ok_or_else(|| "1 to 60 seconds".to_owned())
}

/// `tidegate health`. Succeeds if the proxy is well.
pub(super) fn health(args: &HealthArgs) -> Result<u8, CommandError> {
    let timeout = Duration::from_secs(args.timeout);
    let has_admin = config::admin_of(&args.admin.config).is_ok_and(|place| place.address.is_some());
    if args.admin.admin.is_none() && !has_admin && !args.ready {
        connect_to_listener(&args.admin.config, timeout)?;
        return Ok(0);
    }
    let client = AdminClient::new(&args.admin)?;
    let path = if args.ready { "/readyz" } else { "/healthz" };
    client.wait(async {
        let response = tokio::time::timeout(timeout, client.open(path)).await;
        let late = || format!("no answer within {} s", args.timeout);
        let response = response.map_err(|_| AdminFailure::Unreachable(late()))?;
        response.map(|_| 0)
    })
}

/// Without an admin, only connects to the first listener. It sends no request: requests are
/// counted.
fn connect_to_listener(file: &Path, timeout: Duration) -> Result<(), CommandError> {
    let name = file.display();
    // A container's health check has the code 1 for every failure.
    let config = load(file).map_err(|error| error.with_code(DID_NOT_WORK))?;
    let connected = match ListenLines::new(&config).all().next() {
        None => return Err(CommandError::failed(format!("{name} listens nowhere"))),
        // A listener on all IPv6 addresses takes IPv4 too, and the machine may have no IPv6.
        Some(Listen::Tcp(address)) if address.ip().is_unspecified() => {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()));
            TcpStream::connect_timeout(&address, timeout).map(drop)
        }
        Some(Listen::Tcp(address)) => TcpStream::connect_timeout(address, timeout).map(drop),
        Some(Listen::Unix(path)) => UnixStream::connect(path).map(drop),
    };
    connected.map_err(|error| {
        print_error(
            "health was not checked: the file has no `admin`. The command only connected to \
             `listen`",
        );
        CommandError::failed(format!("cannot connect: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: f64 = 1_795_000_000.0;

    fn snapshot(change: impl FnOnce(&mut Value)) -> ProxySnapshot {
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
        ProxySnapshot::new(
            status,
            [json!({ "ready": true }), limits, upstreams, traffic],
        )
    }

    #[test]
    fn a_page_of_a_healthy_proxy() {
        let page = page(&snapshot(|_| {}), "http://127.0.0.1:9180/");
        assert_eq!(render_lines(&page, false), include_str!("status/page.txt"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let mut snapshot = snapshot(|status| {
            status["store"] = json!({ "kind": "redis", "up": false, "degraded": true,
                "since": NOW - 30.0, "on_error": "local" });
            status["config"]["last_reload"] = json!({ "at": NOW - 5.0, "ok": false,
                "errors": ["error[T101]: unknown key\n --> proxy.toml:1"] });
            status["findings"] = json!([{ "severity": "warning", "count": 3,
                "text": "forwarded headers from an untrusted peer",
                "silence": "add 10.0.0.0/8 to `trusted_proxies`" }]);
        });
        snapshot.reasons = vec!["draining".to_owned()];
        let away = |snapshot: &ProxySnapshot| render_lines(&[store_line(snapshot)], false);
        let alone = "store        redis: away for 30 s; meanwhile this process counts by itself\n";
        assert_eq!(away(&snapshot), alone);
        snapshot.limits[0].on_error = "deny".to_owned();
        let text = render_lines(&page(&snapshot, "http://a/"), false);
        for part in [
            "tidegate 0.1.0  not ready: draining\n",
            "store        redis: away for 30 s; meanwhile each limit follows its `on_error`\n",
            "reload       failed, 5 s ago; the configuration before it is still in force\n\
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
        let snapshot =
            ProxySnapshot::new(none(), [json!({ "ready": false }), none(), none(), none()]);
        let text = render_lines(&page(&snapshot, "http://a/"), false);
        assert!(text.contains("not ready: not ready"), "{text}");
    }
}
