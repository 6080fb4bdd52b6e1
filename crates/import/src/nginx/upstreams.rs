//! `upstream` blocks, and the settings with which a location goes to one.

use std::collections::BTreeMap;

use super::keys;
use super::maps::Maps;
use super::scope::Scope;
use super::syntax::Directive;
use super::values;
use crate::draft::{Draft, ServerDraft, Setting};
use crate::files;
use crate::notes::Notes;
use crate::print::{text, texts};

/// The `upstream` blocks, by name.
#[derive(Debug, Default)]
pub(super) struct Groups<'d> {
    by_name: BTreeMap<&'d str, &'d Directive>,
}

impl<'d> Groups<'d> {
    pub(super) fn of(http: &'d [Directive]) -> Groups<'d> {
        let groups = http.iter().filter(|one| one.name == "upstream");
        Groups {
            by_name: groups.map(|one| (one.arg(0), one)).collect(),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&'d Directive> {
        self.by_name.get(name).copied()
    }
}

/// The servers of a block, and how requests are spread over them.
pub(super) fn group(
    block: &Directive,
    scheme: &str,
    maps: &Maps<'_>,
    notes: &mut Notes,
) -> (Vec<ServerDraft>, Vec<Setting>) {
    let mut servers = Vec::new();
    let mut settings = vec![("balance".to_owned(), text("round-robin"))];
    let mut set = |key: &str, value: String| {
        settings.retain(|(known, _): &Setting| known != key);
        settings.push((key.to_owned(), value));
    };
    for one in block.inner() {
        match one.name.as_str() {
            "server" => {
                let Some(found) = server(one, scheme, notes) else {
                    continue;
                };
                match servers
                    .iter()
                    .any(|known: &ServerDraft| known.url == found.url)
                {
                    true => notes.lost(&one.place, &one.line(), "the same server twice"),
                    false => servers.push(found),
                }
                if let Some(eject) = ejection(one) {
                    set("eject", eject);
                }
            }
            "least_conn" | "least_time" | "random" => set("balance", text("p2c")),
            "ip_hash" => set("balance", text("hash:ip")),
            "hash" => match keys::key(one.arg(0), maps) {
                Ok((key, _)) if key.parts.len() == 1 => {
                    set("balance", text(&format!("hash:{}", key.parts[0])));
                }
                _ => notes.lost(&one.place, &one.line(), "no such key to balance by"),
            },
            "keepalive" => match one.arg(0).parse::<u64>().ok().filter(|count| *count > 0) {
                Some(count) => set("max_idle", count.to_string()),
                None => notes.lost(&one.place, &one.line(), "no such number"),
            },
            "keepalive_timeout" => {
                if let Some(ms) = values::time_ms(one.arg(0)).filter(|ms| *ms > 0) {
                    set("idle_timeout", values::time_text(ms));
                }
            }
            "zone" | "keepalive_requests" | "keepalive_time" => {
                notes.needless(
                    &one.place,
                    &one.line(),
                    "connections are kept by themselves",
                );
            }
            _ => notes.lost(&one.place, &one.line(), "tidegate has nothing like it"),
        }
    }
    (servers, settings)
}

/// `server 10.0.0.1:8080 weight=3;`
fn server(one: &Directive, scheme: &str, notes: &mut Notes) -> Option<ServerDraft> {
    let mut server = ServerDraft {
        url: url(one.arg(0), scheme),
        ..ServerDraft::default()
    };
    for word in one.args.iter().skip(1) {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match key {
            "weight" => {
                server.weight = value
                    .parse()
                    .ok()
                    .filter(|weight| (2..=1000).contains(weight));
            }
            "max_conns" => server.max_connections = value.parse().ok().filter(|most| *most > 0),
            "max_fails" | "fail_timeout" | "resolve" => {}
            "down" => {
                notes.needless(&one.place, &one.line(), "it is down");
                return None;
            }
            "backup" => {
                let why = "there are no servers in reserve; it is left out";
                notes.lost(&one.place, &one.line(), why);
                return None;
            }
            "slow_start" => notes.lost(&one.place, word, "`slow_start` of the upstream says it"),
            _ => notes.lost(&one.place, word, "tidegate has nothing like it"),
        }
    }
    Some(server)
}

/// `max_fails=3 fail_timeout=30s` of the first server that says it.
fn ejection(one: &Directive) -> Option<String> {
    let said = |name: &str| one.args.iter().find_map(|arg| arg.strip_prefix(name));
    let (fails, time) = (said("max_fails="), said("fail_timeout="));
    if fails == Some("0") {
        return Some("false".to_owned());
    }
    let fails = fails.and_then(|fails| fails.parse::<u64>().ok());
    let time = time.and_then(values::time_ms).filter(|ms| *ms > 0);
    let mut said = Vec::new();
    said.extend(fails.map(|fails| format!("failures = {fails}")));
    if let Some(ms) = time {
        said.push(format!("for = {}", values::time_text(ms)));
        said.push(format!("max_for = {}", values::time_text(ms.max(60_000))));
    }
    (!said.is_empty()).then(|| format!("{{ {} }}", said.join(", ")))
}

/// An address of nginx as a URL.
pub(super) fn url(address: &str, scheme: &str) -> String {
    match address.strip_prefix("unix:") {
        Some(path) => format!("unix:{}", path.trim_end_matches(':')),
        None => format!("{scheme}://{address}"),
    }
}

/// What `proxy_...` says of times, retries and TLS.
pub(super) fn settings(scope: &Scope<'_>, prefix: &str, draft: &mut Draft) -> Vec<Setting> {
    let mut found: Vec<Setting> = Vec::new();
    let name = |rest: &str| format!("{prefix}_{rest}");
    for (theirs, ours) in [
        ("connect_timeout", &["connect_timeout"][..]),
        ("read_timeout", &["timeout", "body_timeout"]),
    ] {
        let Some(one) = scope.last(&name(theirs)) else {
            continue;
        };
        let time = values::time_ms(one.arg(0)).filter(|ms| (1..=86_400_000).contains(ms));
        match time {
            Some(ms) => {
                let setting = |key: &&str| ((*key).to_owned(), values::time_text(ms));
                found.extend(ours.iter().map(setting));
            }
            None => draft
                .notes
                .lost(&one.place, &one.line(), "a day is the longest time"),
        }
    }
    found.extend(retries(scope, prefix, draft));
    found
}

/// `proxy_next_upstream error timeout http_502;`
fn retries(scope: &Scope<'_>, prefix: &str, draft: &mut Draft) -> Option<Setting> {
    let one = scope.last(&format!("{prefix}_next_upstream"))?;
    if one.arg(0) == "off" {
        return Some(("retries".to_owned(), "0".to_owned()));
    }
    let mut on = Vec::new();
    for word in &one.args {
        match word.as_str() {
            "error" | "invalid_header" => on.push("closed".to_owned()),
            "timeout" => on.push("timeout".to_owned()),
            status if status.starts_with("http_5") => on.push(status[5..].to_owned()),
            _ => draft
                .notes
                .lost(&one.place, word, "no reason to send a request again"),
        }
    }
    on.dedup();
    let tries = scope.last(&format!("{prefix}_next_upstream_tries"));
    let tries = tries.and_then(|one| one.arg(0).parse::<u64>().ok());
    let mut said = Vec::new();
    if let Some(tries) = tries.filter(|tries| (1..=11).contains(tries)) {
        said.push(format!("attempts = {}", tries - 1));
    }
    said.push(format!("on = {}", texts(&on)));
    Some(("retries".to_owned(), format!("{{ {} }}", said.join(", "))))
}

/// What is verified of a server that is spoken to over TLS.
pub(super) fn tls(
    scope: &Scope<'_>,
    prefix: &str,
    named: Option<&str>,
    draft: &mut Draft,
) -> Option<Setting> {
    let mut said = Vec::new();
    let name = |rest: &str| format!("{prefix}_ssl_{rest}");
    let sni = scope
        .last(&name("name"))
        .map(|one| one.arg(0))
        .filter(|one| !one.contains('$'));
    if let Some(sni) = sni.or(named) {
        said.push(format!("name = {}", text(sni)));
    }
    if let Some(one) = scope.last(&name("trusted_certificate")) {
        match files::is_there(one.arg(0)) {
            true => said.push(format!("ca = {}", text(one.arg(0)))),
            false => {
                let why = "no such file here; `tls = { ca = .. }` of the upstream names it";
                draft.notes.lost(&one.place, &one.line(), why);
            }
        }
    }
    let pair = (
        scope.last(&name("certificate")),
        scope.last(&name("certificate_key")),
    );
    match pair {
        (Some(cert), Some(key)) if files::is_there(cert.arg(0)) && files::is_there(key.arg(0)) => {
            said.push(format!("cert = {}", text(cert.arg(0))));
            said.push(format!("key = {}", text(key.arg(0))));
        }
        (cert, key) => {
            for one in cert
                .into_iter()
                .chain(key)
                .filter(|one| !one.arg(0).is_empty())
            {
                let why = "no such pair of files here; `tls = { cert = .., key = .. }` of the \
                           upstream names it";
                draft.notes.lost(&one.place, &one.line(), why);
            }
        }
    }
    (!said.is_empty()).then(|| ("tls".to_owned(), format!("{{ {} }}", said.join(", "))))
}
