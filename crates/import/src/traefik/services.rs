//! Services as upstreams.

use super::tree::Item;
use super::{File, times};
use crate::draft::{ServerDraft, Setting, UpstreamDraft};
use crate::files;
use crate::print::text;

/// Services of services, at most.
const MAX_DEPTH: usize = 4;

/// The upstream of a service, or why there is none. `http` has the services.
pub(super) fn upstream(
    name: &str,
    retries: Option<u64>,
    http: &Item,
    file: &mut File<'_>,
) -> Result<String, String> {
    let (servers, mut settings) = service(name, http, file, 0)?;
    if let Some(retries) = retries {
        settings.push(("retries".to_owned(), retries.to_string()));
    }
    let plain = name.split('@').next().unwrap_or(name);
    let item = http
        .get("services")
        .and_then(|services| services.get(plain));
    let place = file.place(item.unwrap_or(http));
    Ok(file.draft.upstream(UpstreamDraft {
        name: plain.to_owned(),
        servers,
        settings,
        place,
    }))
}

type Found = (Vec<ServerDraft>, Vec<Setting>);

fn service(name: &str, http: &Item, file: &mut File<'_>, depth: usize) -> Result<Found, String> {
    let plain = name.split('@').next().unwrap_or(name);
    let item = http
        .get("services")
        .and_then(|services| services.get(plain));
    // A service of Traefik itself is never one of the file's by the same name.
    let item = item.filter(|_| depth < MAX_DEPTH && !name.ends_with("@internal"));
    let Some(item) = item else {
        return Err(match name.ends_with("@internal") {
            true => "a service of Traefik itself; `admin` is for operators".to_owned(),
            false => "there is no such service in this file".to_owned(),
        });
    };
    for (kind, options) in item.entries() {
        let what = format!("services.{plain}.{kind}");
        match kind.to_ascii_lowercase().as_str() {
            "loadbalancer" => return balanced(&what, options, http, file),
            "weighted" => return weighted(&what, options, http, file, depth),
            "mirroring" | "failover" => {
                let why = "requests go to its first service only";
                file.lost(options, &what, why);
                let first = options.text_at("service").unwrap_or_default().to_owned();
                return service(&first, http, file, depth + 1);
            }
            _ => {}
        }
    }
    Err(format!("{plain} is no service that is known"))
}

fn balanced(what: &str, options: &Item, http: &Item, file: &mut File<'_>) -> Result<Found, String> {
    let known = [
        "servers",
        "passHostHeader",
        "healthCheck",
        "sticky",
        "serversTransport",
        "strategy",
        "responseForwarding",
    ];
    file.others(options, &format!("{what}."), &known);
    let mut servers: Vec<ServerDraft> = Vec::new();
    for one in options.get("servers").map(Item::list).unwrap_or_default() {
        let Some(url) = one.text_at("url") else {
            file.lost(one, &format!("{what}.servers"), "a server has a `url`");
            continue;
        };
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if !matches!(path, "" | "/") {
            file.lost(one, url, "an upstream has no path; requests keep theirs");
        }
        let weight = one.text_at("weight").and_then(|text| text.parse().ok());
        let url = format!("{scheme}://{host}");
        if !servers.iter().any(|known| known.url == url) {
            servers.push(ServerDraft {
                url,
                weight: weight.filter(|weight| (2..=1000).contains(weight)),
                max_connections: None,
            });
        }
    }
    if servers.is_empty() {
        return Err(format!("{what} has no servers"));
    }
    let mut settings = Vec::new();
    let is_p2c = options
        .text_at("strategy")
        .is_some_and(|word| word == "p2c");
    if servers.len() > 1 && !is_p2c {
        settings.push(("balance".to_owned(), text("round-robin")));
    }
    if options.text_at("passHostHeader") == Some("false") {
        settings.push(("host".to_owned(), text("rewrite")));
    }
    if let Some(sticky) = options.get("sticky") {
        let why = "cookies are not set; `balance = \"hash:cookie:NAME\"` keeps to one that your \
                   servers set";
        file.lost(sticky, &format!("{what}.sticky"), why);
    }
    if let Some(check) = options.get("healthCheck") {
        settings.extend(health(&format!("{what}.healthCheck"), check, file));
    }
    if let Some(name) = options.text_at("serversTransport") {
        let plain = name.split('@').next().unwrap_or(name);
        let transport = http.get("serversTransports").and_then(|all| all.get(plain));
        match transport {
            Some(transport) => settings.extend(transported(plain, transport, file)),
            None => file.lost(
                options,
                name,
                "there is no such serversTransport in this file",
            ),
        }
    }
    Ok((servers, settings))
}

fn health(what: &str, check: &Item, file: &mut File<'_>) -> Option<Setting> {
    let known = [
        "path",
        "interval",
        "timeout",
        "hostname",
        "unhealthyInterval",
        "followRedirects",
    ];
    file.others(check, &format!("{what}."), &known);
    let path = check.text_at("path")?;
    let mut said = vec![format!("path = {}", text(path))];
    for (theirs, ours) in [("interval", "every"), ("timeout", "timeout")] {
        if let Some(us) = check
            .text_at(theirs)
            .and_then(times::us)
            .filter(|us| *us >= 1000)
        {
            said.push(format!("{ours} = {}", times::text(us)));
        }
    }
    if let Some(host) = check.text_at("hostname") {
        said.push(format!("host = {}", text(host)));
    }
    Some(("health".to_owned(), format!("{{ {} }}", said.join(", "))))
}

fn transported(name: &str, transport: &Item, file: &mut File<'_>) -> Vec<Setting> {
    let what = format!("serversTransports.{name}.");
    let known = [
        "insecureSkipVerify",
        "serverName",
        "rootCAs",
        "forwardingTimeouts",
    ];
    file.others(transport, &what, &known);
    let mut settings = Vec::new();
    let mut said = Vec::new();
    if transport.is_true("insecureSkipVerify") {
        said.push("verify = false".to_owned());
    }
    if let Some(name) = transport.text_at("serverName") {
        said.push(format!("name = {}", text(name)));
    }
    match &transport.texts_at("rootCAs")[..] {
        [] => {}
        [ca] if files::is_there(ca) => said.push(format!("ca = {}", text(ca))),
        _ => {
            let why = "`tls = { ca = .. }` of the upstream is one file that can be read here";
            file.lost(transport, &format!("{what}rootCAs"), why);
        }
    }
    if !said.is_empty() {
        settings.push(("tls".to_owned(), format!("{{ {} }}", said.join(", "))));
    }
    for (theirs, ours) in [
        ("dialTimeout", "connect_timeout"),
        ("responseHeaderTimeout", "timeout"),
        ("idleConnTimeout", "idle_timeout"),
    ] {
        let time = transport.text_at(&format!("forwardingTimeouts.{theirs}"));
        let time = time.and_then(times::us);
        if let Some(us) = time.filter(|us| (1_000..=86_400_000_000).contains(us)) {
            settings.push((ours.to_owned(), times::text(us)));
        }
    }
    settings
}

/// Several services as one, where each has one server.
fn weighted(
    what: &str,
    options: &Item,
    http: &Item,
    file: &mut File<'_>,
    depth: usize,
) -> Result<Found, String> {
    let mut all: Vec<ServerDraft> = Vec::new();
    let mut settings: Option<Vec<Setting>> = None;
    for one in options.get("services").map(Item::list).unwrap_or_default() {
        let name = one.text_at("name").unwrap_or_default().to_owned();
        let weight = one
            .text_at("weight")
            .and_then(|text| text.parse::<u64>().ok());
        if weight == Some(0) {
            continue;
        }
        let (mut servers, own) = service(&name, http, file, depth + 1)?;
        let same = settings.as_ref().is_none_or(|known| *known == own);
        if servers.len() != 1 || !same {
            return Err(format!(
                "{what}: only services of one server each can be weighted"
            ));
        }
        settings = Some(own);
        for server in &mut servers {
            server.weight = weight.filter(|weight| (2..=1000).contains(weight));
        }
        all.extend(servers);
    }
    match all.is_empty() {
        true => Err(format!("{what} has no services")),
        false => Ok((all, settings.unwrap_or_default())),
    }
}
