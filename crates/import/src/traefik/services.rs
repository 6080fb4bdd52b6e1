//! Services as upstreams.

use super::entry_points::parse_timeout;
use super::{TraefikFile, local_name};
use crate::draft::{ServerDraft, UpstreamDraft};
use crate::files;
use crate::tree::TreeItem;
use crate::values::{self, TomlEntries, quote};

/// Services of services, at most.
const MAX_DEPTH: usize = 4;

/// The servers of a service, and the settings of their upstream.
#[derive(Default)]
struct ServiceParts {
    servers: Vec<ServerDraft>,
    entries: TomlEntries,
}

pub(super) fn add_upstream(
    name: &str,
    retries: Option<u64>,
    file: &mut TraefikFile<'_>,
) -> Result<String, String> {
    let mut parts = file.read_service(name, 0)?;
    if let Some(retries) = retries {
        parts.entries.add("retries", retries.to_string());
    }
    let item = file.find("services", name);
    let place = item.unwrap_or(file.http).place();
    Ok(file.draft.add_upstream(UpstreamDraft {
        name: local_name(name).to_owned(),
        servers: parts.servers,
        entries: parts.entries,
        place,
    }))
}

impl TraefikFile<'_> {
    fn read_service(&mut self, name: &str, depth: usize) -> Result<ServiceParts, String> {
        // A service of Traefik itself is never one of the file with the same name.
        if name.ends_with("@internal") {
            return Err("a service of Traefik itself; `admin` is for operators".to_owned());
        }
        let item = self.find("services", name);
        let name = local_name(name);
        let Some(item) = item.filter(|_| depth < MAX_DEPTH) else {
            return Err("there is no such service in this file".to_owned());
        };
        for (kind, options) in item.entries() {
            let what = format!("services.{name}.{kind}");
            match kind.to_ascii_lowercase().as_str() {
                "loadbalancer" => return self.read_load_balancer(&what, options),
                "weighted" => return self.read_weighted(&what, options, depth),
                "mirroring" | "failover" => {
                    options.lost(&what, "requests go to its first service only");
                    let first = options.text_at("service").unwrap_or_default();
                    return self.read_service(first, depth + 1);
                }
                _ => {}
            }
        }
        Err(format!("{name} is no service that is known"))
    }

    fn read_load_balancer(
        &mut self,
        what: &str,
        options: &TreeItem,
    ) -> Result<ServiceParts, String> {
        let known = "servers passHostHeader healthCheck sticky serversTransport strategy \
                     responseForwarding";
        options.note_unknown(&format!("{what}."), known);
        let servers = self.read_servers(what, options);
        if servers.is_empty() {
            return Err(format!("{what} has no servers"));
        }
        let mut entries = TomlEntries::default();
        if servers.len() > 1 && options.text_at("strategy") != Some("p2c") {
            entries.add("balance", quote("round-robin"));
        }
        if options.text_at("passHostHeader") == Some("false") {
            entries.add("host", quote("rewrite"));
        }
        if let Some(sticky) = options.get("sticky") {
            let why = "cookies are not set; `balance = \"hash:cookie:NAME\"` keeps to one that \
                       your servers set";
            sticky.lost(&format!("{what}.sticky"), why);
        }
        if let Some(check) = options.get("healthCheck") {
            self.read_health_check(&format!("{what}.healthCheck."), check, &mut entries);
        }
        if let Some(name) = options.text_at("serversTransport") {
            match self.find("serversTransports", name) {
                Some(transport) => {
                    self.read_transport(local_name(name), transport, &mut entries);
                }
                None => {
                    let why = "there is no such serversTransport in this file";
                    options.lost(name, why);
                }
            }
        }
        Ok(ServiceParts { servers, entries })
    }

    fn read_servers(&mut self, what: &str, options: &TreeItem) -> Vec<ServerDraft> {
        let mut servers: Vec<ServerDraft> = Vec::new();
        for one in options.list_at("servers") {
            let Some(url) = one.text_at("url") else {
                let what = format!("{what}.servers");
                one.lost(&what, "a server has a `url`");
                continue;
            };
            let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            if !matches!(path, "" | "/") {
                one.lost(url, "an upstream has no path; requests keep theirs");
            }
            let url = format!("{scheme}://{host}");
            if !servers.iter().any(|known| known.url == url) {
                servers.push(ServerDraft {
                    url,
                    weight: one.number_at("weight"),
                    ..ServerDraft::default()
                });
            }
        }
        servers
    }

    fn read_health_check(&mut self, what: &str, check: &TreeItem, entries: &mut TomlEntries) {
        let known = "path interval timeout hostname unhealthyInterval followRedirects";
        check.note_unknown(what, known);
        let Some(path) = check.text_at("path") else {
            return;
        };
        let mut fields = vec![format!("path = {}", quote(path))];
        for (theirs, ours) in [("interval", "every"), ("timeout", "timeout")] {
            let time = check.text_at(theirs).and_then(values::parse_go_us);
            if let Some(us) = time.filter(|us| *us >= 1000) {
                fields.push(format!("{ours} = {}", values::time_text(us / 1000)));
            }
        }
        let host = check.text_at("hostname");
        fields.extend(host.map(|host| format!("host = {}", quote(host))));
        entries.add_table("health", &fields);
    }

    fn read_transport(&mut self, name: &str, transport: &TreeItem, entries: &mut TomlEntries) {
        let what = format!("serversTransports.{name}.");
        let known = "insecureSkipVerify serverName rootCAs forwardingTimeouts";
        transport.note_unknown(&what, known);
        let mut fields = Vec::new();
        if transport.is_true("insecureSkipVerify") {
            fields.push("verify = false".to_owned());
        }
        let name = transport.text_at("serverName");
        fields.extend(name.map(|name| format!("name = {}", quote(name))));
        match &transport.texts_at("rootCAs")[..] {
            [] => {}
            [ca] if files::is_readable(ca) => fields.push(format!("ca = {}", quote(ca))),
            _ => {
                let why = "`tls = { ca = .. }` of the upstream is one file that can be read here";
                transport.lost(&format!("{what}rootCAs"), why);
            }
        }
        entries.add_table("tls", &fields);
        for (theirs, ours) in [
            ("dialTimeout", "connect_timeout"),
            ("responseHeaderTimeout", "timeout"),
            ("idleConnTimeout", "idle_timeout"),
        ] {
            let time = transport.text_at(&format!("forwardingTimeouts.{theirs}"));
            if let Some(value) = time.and_then(parse_timeout) {
                entries.add(ours, value);
            }
        }
    }

    /// Joins several services, if each has one server.
    fn read_weighted(
        &mut self,
        what: &str,
        options: &TreeItem,
        depth: usize,
    ) -> Result<ServiceParts, String> {
        let mut all: Option<ServiceParts> = None;
        let mut unused = Vec::new();
        for one in options.list_at("services") {
            let name = one.text_at("name").unwrap_or_default();
            let weight = one.number_at("weight");
            let mut parts = self.read_service(name, depth + 1)?;
            if weight == Some(0) {
                for mut server in parts.servers {
                    server.weight = weight;
                    unused.push(server);
                }
                continue;
            }
            let same = all.as_ref().is_none_or(|all| all.entries == parts.entries);
            let ([server], true) = (&mut parts.servers[..], same) else {
                return Err(format!(
                    "{what}: only services of one server each can be weighted"
                ));
            };
            server.weight = weight;
            match &mut all {
                Some(all) => all.servers.append(&mut parts.servers),
                None => all = Some(parts),
            }
        }
        match all {
            None if unused.is_empty() => Err(format!("{what} has no services")),
            all => {
                let mut parts = all.unwrap_or_default();
                parts.servers.append(&mut unused);
                Ok(parts)
            }
        }
    }
}
