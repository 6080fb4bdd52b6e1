//! The `server` lines of an `upstream`.

use super::syntax::Directive;
use crate::draft::ServerDraft;
use crate::values::{self, inline_table, quote_list};

/// nginx's own `fail_timeout`.
const FAIL_TIMEOUT_MS: u64 = 10_000;
/// The longest time within which failures count.
const HOUR_MS: u64 = 3_600_000;

/// Reads `server 10.0.0.1:8080 weight=3;`.
pub(super) fn read_server(one: &Directive, scheme: &str) -> Option<ServerDraft> {
    let mut server = ServerDraft {
        url: server_url(one.arg(0), scheme),
        ..ServerDraft::default()
    };
    for word in one.args.iter().skip(1) {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match key {
            "weight" => {
                let weight = value.parse().ok();
                server.weight = weight.filter(|weight| (2..=1000).contains(weight));
            }
            "max_conns" => server.max_connections = value.parse().ok().filter(|most| *most > 0),
            "max_fails" | "fail_timeout" | "resolve" => {}
            "down" => {
                one.needless("it is down");
                return None;
            }
            "backup" => server.is_backup = true,
            "slow_start" => {
                one.notes
                    .lost(&one.place, word, "`slow_start` of the upstream says it")
            }
            _ => one
                .notes
                .lost(&one.place, word, "tidegate has nothing like it"),
        }
    }
    Some(server)
}

/// Translates `max_fails=3 fail_timeout=30s` to `eject`. `fail_timeout` is the time within which
/// failures count, and the time without requests.
pub(super) fn ejection(server: &Directive, statuses: &[String]) -> Option<String> {
    let fails = server.option("max_fails=");
    if fails == Some("0") {
        return Some("false".to_owned());
    }
    let fails = fails.and_then(|fails| fails.parse::<u64>().ok());
    // A status is a failure here only if the list names it, and one failure is enough for nginx.
    let fails = fails.or((!statuses.is_empty()).then_some(1));
    let time = server
        .option("fail_timeout=")
        .and_then(values::parse_nginx_ms)
        .filter(|ms| *ms > 0);
    let mut fields = Vec::new();
    fields.extend(fails.map(|fails| format!("failures = {fails}")));
    if fails.is_some_and(|fails| fails > 1) {
        let within = values::time_text(time.unwrap_or(FAIL_TIMEOUT_MS).min(HOUR_MS));
        fields.push(format!("within = {within}"));
    }
    if let Some(ms) = time {
        fields.push(format!("for = {}", values::time_text(ms)));
        let longest = values::time_text(ms.max(60_000));
        fields.push(format!("max_for = {longest}"));
    }
    if !statuses.is_empty() {
        fields.push(format!("status = {}", quote_list(statuses)));
    }
    (!fields.is_empty()).then(|| inline_table(&fields))
}

pub(super) fn server_url(address: &str, scheme: &str) -> String {
    match address.strip_prefix("unix:") {
        Some(path) => format!("unix:{}", path.trim_end_matches(':')),
        None => format!("{scheme}://{address}"),
    }
}
