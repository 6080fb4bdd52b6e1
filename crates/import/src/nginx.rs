//! nginx.conf: reads the `http` blocks, and of each server its addresses, names and certificates.

mod access_logs;
mod actions;
mod client_certificates;
mod conditions;
mod directives;
mod early_answers;
mod error_pages;
mod hsts;
mod limits;
mod locations;
mod precedence;
mod redirects;
mod repeated_names;
mod rewrites;
mod scope;
mod servers;
mod settings;
mod syntax;
mod upstreams;
mod variables;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use super::draft::{Draft, ProxyProtocolDraft};
use super::files::{ImportError, SourceEntry};
use super::patterns;
use super::values::quote;
use client_certificates::ClientAuthorities;
use conditions::ServerTls;
use locations::Site;
use scope::BlockScope;
use syntax::Directive;

/// Ports of one `listen`, at most.
const MAX_PORTS: u16 = 100;

pub(super) fn read(path: &Path) -> Result<Draft, ImportError> {
    let mut draft = Draft::default();
    let main = syntax::read_file(path, &draft.notes)?;
    directives::note_untranslated(&main);
    let mut blocks: Vec<Vec<&Directive>> =
        main.named("http").map(|http| vec![http, &main]).collect();
    if blocks.is_empty() {
        // A file of conf.d or sites-enabled has the directives of an `http` block.
        blocks.push(vec![&main]);
    }
    for levels in blocks {
        let http = levels[0];
        let scope = BlockScope { http, levels };
        let maps = |one: &&Directive| matches!(one.name.as_str(), "map" | "geo") && !one.is_map();
        for one in scope.http.inner().iter().filter(maps) {
            one.lost("only addresses of clients can be grouped");
        }
        settings::read_http(&scope, &mut draft);
        add_servers(&scope, &mut draft);
        limits::note_zones(&scope, &draft);
    }
    settings::add_default_real_ip(&main, &mut draft);
    if draft.routes.is_empty() {
        let why = "there is nothing to serve; one stands there to be changed";
        main.notes.lost(&main.place, "no server block", why);
    }
    Ok(draft)
}

struct ServerBlock<'d> {
    scope: BlockScope<'d>,
    /// `None` is every host.
    hosts: Vec<Option<String>>,
    listens: Vec<ListenAddress>,
}

/// `listen 443 ssl default_server;`
struct ListenAddress {
    address: String,
    ssl: bool,
    is_default: bool,
    /// The directive, if it expects the PROXY protocol.
    proxy_protocol: Option<SourceEntry>,
}

fn add_servers(scope: &BlockScope<'_>, draft: &mut Draft) {
    let blocks = scope.named("server").filter(|one| one.block.is_some());
    let mut servers: Vec<ServerBlock<'_>> =
        blocks.map(|one| read_server(one, scope, draft)).collect();
    repeated_names::remove_repeated_names(&mut servers);
    share_tls(&mut servers);
    add_listens(&servers, draft);
    let with_tls = servers.iter().filter(|one| one.is_secure() != Some(false));
    let authorities = ClientAuthorities::find(with_tls.map(|one| &one.scope));
    authorities.add_to(&mut draft.tls);
    let redirects = redirects::find_redirecting(&servers, draft);
    limits::read_deny_status(servers.iter().map(|one| &one.scope), draft);
    let kept: Vec<&ServerBlock<'_>> = (servers.iter().enumerate())
        .filter(|(index, _)| !redirects.contains(index))
        .map(|(_, one)| one)
        .collect();
    let groups = group_by_port(&kept);
    if groups.len() > 1 && need_ports(&groups) {
        for group in groups {
            let mut ports: Vec<Option<u16>> = group.iter().flat_map(|one| one.ports()).collect();
            ports.sort_unstable();
            ports.dedup();
            add_group(&group, &ports, &authorities, draft);
        }
    } else {
        add_group(&kept, &[None], &authorities, draft);
    }
}

/// Adds the routes of servers with the same ports. `ports` are those that the routes are for.
fn add_group(
    servers: &[&ServerBlock<'_>],
    ports: &[Option<u16>],
    authorities: &ClientAuthorities<'_>,
    draft: &mut Draft,
) {
    let default = find_default(servers);
    let has_wildcards = servers.iter().any(|one| one.has_wildcard());
    // Routes keep the file's order of expressions. nginx tries the longest `name.*` first.
    let mut ordered: Vec<(usize, &&ServerBlock<'_>)> = servers.iter().enumerate().collect();
    ordered.sort_by_key(|(_, one)| Reverse(one.longest_open_end()));
    for (index, one) in ordered {
        let mut hosts = one.hosts.clone();
        if Some(index) == default {
            hosts.retain(|host| host.as_deref() != Some(patterns::NO_HOST));
            // This server also gets the requests for unknown hosts, so its names need no routes of
            // their own. They do if a wildcard of another server or a condition tells them apart.
            if !has_wildcards && one.scope.first("if").is_none() {
                hosts.clear();
            }
            if !hosts.contains(&None) {
                hosts.push(None);
            }
        } else if hosts.contains(&None) {
            hosts.retain(Option::is_some);
            if hosts.is_empty() {
                let why = "another server has the requests for every name";
                one.scope.block().lost(why);
                continue;
            }
        }
        let closed = match ports {
            [None] => closed_as_internal(one, servers),
            _ => None,
        };
        let is_other = |(other, _): &(usize, &&ServerBlock<'_>)| *other != index;
        let others = servers.iter().enumerate().filter(is_other);
        let other_hosts = others.flat_map(|(_, other)| other.hosts.iter().flatten().cloned());
        let secure = one.is_secure();
        let others = || authorities.closed(&one.scope, secure);
        let mut site = Site {
            scope: &one.scope,
            hosts,
            other_hosts: other_hosts.collect(),
            mixed_hosts: BTreeSet::new(),
            ports: match ports {
                [None] => vec![None],
                _ => one.ports().collect(),
            },
            tls: ServerTls {
                secure,
                certificates: authorities.server_certificates(&one.scope, secure),
            },
            closed: closed.or_else(others),
        };
        site.add_routes(draft);
    }
}

/// Groups servers so that no two groups have a port in common.
fn group_by_port<'s, 'd>(servers: &[&'s ServerBlock<'d>]) -> Vec<Vec<&'s ServerBlock<'d>>> {
    let mut groups: Vec<Vec<&ServerBlock<'_>>> = Vec::new();
    for server in servers {
        let meets = |group: &Vec<&ServerBlock<'_>>| {
            let mut ports = group.iter().flat_map(|one| one.ports());
            ports.any(|port| server.ports().any(|own| own == port))
        };
        let (met, mut apart): (Vec<_>, Vec<_>) = groups.into_iter().partition(meets);
        let mut joined: Vec<&ServerBlock<'_>> = met.into_iter().flatten().collect();
        joined.push(server);
        apart.push(joined);
        groups = apart;
    }
    groups
}

/// Whether hosts do not tell the groups apart. Without need, routes have no ports: the operator may
/// listen on others.
fn need_ports(groups: &[Vec<&ServerBlock<'_>>]) -> bool {
    let all = || groups.iter().flatten();
    if all().any(|one| one.ports().any(|port| port.is_none())) {
        return false;
    }
    let some_internal = all().any(|one| one.is_internal());
    let meet = groups.iter().enumerate().any(|(index, group)| {
        let hosts = || group.iter().flat_map(|one| &one.hosts);
        let mut others = groups[index + 1..]
            .iter()
            .flatten()
            .flat_map(|one| &one.hosts);
        others.any(|other| hosts().any(|host| host == other))
    });
    meet || some_internal && !all().all(|one| one.is_internal())
}

/// Returns why a server is closed that only this machine can reach, beside servers that others can
/// reach. Routes do not depend on addresses, only on ports.
fn closed_as_internal(one: &ServerBlock<'_>, all: &[&ServerBlock<'_>]) -> Option<String> {
    if !one.is_internal() || all.iter().all(|one| one.is_internal()) {
        return None;
    }
    let address = one.listens.first().map_or("", |listen| &listen.address);
    let why = format!(
        "only this machine could reach it, at {address}: routes do not depend on the address that \
         a request came to, so it is closed"
    );
    one.scope.block().lost(why.clone());
    Some(why)
}

impl ServerBlock<'_> {
    /// Whether all requests use TLS; `None` if only some do.
    fn is_secure(&self) -> Option<bool> {
        let first = self.listens.first()?.ssl;
        let same = self.listens.iter().all(|listen| listen.ssl == first);
        same.then_some(first)
    }

    fn is_internal(&self) -> bool {
        self.listens.iter().all(|listen| {
            let address = listen.address.parse::<SocketAddr>();
            let is_loopback = address.is_ok_and(|address| address.ip().is_loopback());
            is_loopback || listen.address.starts_with("unix:")
        })
    }

    /// Its ports; `None` for a unix socket.
    fn ports(&self) -> impl Iterator<Item = Option<u16>> {
        let port_of = |listen: &ListenAddress| listen.address.rsplit_once(':')?.1.parse().ok();
        self.listens.iter().map(port_of)
    }

    /// The length of its longest name of the form `name.*`; 0 without one.
    fn longest_open_end(&self) -> usize {
        let names = self.scope.inherited("server_name").into_iter();
        let open = names
            .flat_map(|one| &one.args)
            .filter(|name| name.ends_with(".*"));
        open.map(String::len).max().unwrap_or(0)
    }

    fn has_wildcard(&self) -> bool {
        let mut hosts = self.hosts.iter().flatten();
        hosts.any(|host| patterns::is_open_host(host))
    }
}

/// Returns the index of the server that gets the requests for unknown hosts.
fn find_default(servers: &[&ServerBlock<'_>]) -> Option<usize> {
    let listens = |index: usize| servers[index].listens.iter();
    let all: Vec<usize> = (0..servers.len()).collect();
    let find = |is_it: &dyn Fn(&ListenAddress) -> bool| {
        all.iter().copied().find(|index| listens(*index).any(is_it))
    };
    let default = find(&|listen| listen.is_default)
        .or_else(|| find(&|listen| listen.address == ":443"))
        .or_else(|| find(&|listen| listen.address == ":80"))
        .or(all.first().copied())?;
    // nginx has a default server for each address.
    let other = all.iter().find(|index| {
        let shares =
            |listen: &ListenAddress| listens(default).any(|one| one.address == listen.address);
        !listens(**index).any(shares)
    });
    if let Some(other) = other {
        let why = format!(
            "serves requests for names of no other server, also those to the port of the server \
             in line {}: routes do not depend on ports",
            servers[*other].scope.block().place.line
        );
        servers[default].scope.block().differs(why);
    }
    Some(default)
}

fn read_server<'d>(
    one: &'d Directive,
    http: &BlockScope<'d>,
    draft: &mut Draft,
) -> ServerBlock<'d> {
    directives::note_untranslated(one);
    let scope = http.enter(one);
    settings::read_real_ip(&scope, draft);
    let mut hosts = Vec::new();
    for named in one.named("server_name") {
        for name in &named.args {
            match patterns::parse_hosts(name) {
                Ok(found) => hosts.extend(found),
                Err(why) => named.lost(why),
            }
        }
    }
    if hosts.is_empty() && one.first("server_name").is_none() {
        hosts.push(None);
    }
    let ssl = scope.first("ssl").is_some_and(|one| one.arg(0) == "on");
    let listens = one.named("listen").flat_map(|one| {
        let each = expand_ports(one.arg(0)).into_iter();
        each.filter_map(move |address| parse_listen(one, &address, ssl))
    });
    let mut listens: Vec<ListenAddress> = listens.collect();
    if listens.is_empty() {
        listens.push(ListenAddress {
            address: ":80".to_owned(),
            ssl,
            is_default: false,
            proxy_protocol: None,
        });
    }
    ServerBlock {
        scope,
        hosts,
        listens,
    }
}

/// Returns the addresses of `127.0.0.1:8080-8083`.
fn expand_ports(text: &str) -> Vec<String> {
    let start = text.rfind(':').map_or(0, |at| at + 1);
    let (host, ports) = text.split_at(start);
    let range = ports.split_once('-').and_then(|(first, last)| {
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        (last.checked_sub(first)? < MAX_PORTS).then_some(first..=last)
    });
    match range {
        Some(range) => range.map(|port| format!("{host}{port}")).collect(),
        None => vec![text.to_owned()],
    }
}

fn parse_listen(one: &Directive, text: &str, ssl: bool) -> Option<ListenAddress> {
    let has = |name: &str| one.args.iter().skip(1).any(|arg| arg == name);
    if has("quic") {
        one.lost("HTTP/3 is not spoken");
        return None;
    }
    let address = if text.starts_with("unix:") {
        text.to_owned()
    } else if let Ok(port) = text.parse::<u16>() {
        format!(":{port}")
    } else {
        let split = text.rsplit_once(':');
        let split =
            split.filter(|(host, port)| port.parse::<u16>().is_ok() && !host.ends_with(':'));
        let (host, port) = split.unwrap_or((text, "80"));
        match host {
            "*" | "[::]" | "0.0.0.0" => format!(":{port}"),
            "localhost" => format!("127.0.0.1:{port}"),
            host => format!("{host}:{port}"),
        }
    };
    if address.parse::<SocketAddr>().is_err() && !address.starts_with([':', 'u']) {
        one.lost("a name is no address to listen on");
        return None;
    }
    Some(ListenAddress {
        address,
        ssl: ssl || has("ssl"),
        is_default: has("default_server") || has("default"),
        proxy_protocol: has("proxy_protocol").then(|| one.source()),
    })
}

fn add_listens(servers: &[ServerBlock<'_>], draft: &mut Draft) {
    for server in servers {
        for listen in &server.listens {
            match listen.ssl {
                true => draft.tls.listen.push(listen.address.clone()),
                false => draft.listen.push(listen.address.clone()),
            }
        }
        if server.listens.iter().any(|listen| listen.ssl) {
            settings::read_tls(&server.scope, draft);
            read_rejection(server, servers, draft);
        }
    }
    let with_tls = servers
        .iter()
        .filter(|server| server.listens.iter().any(|one| one.ssl));
    let with_tls: Vec<&BlockScope<'_>> = with_tls.map(|server| &server.scope).collect();
    hsts::read_header(&with_tls, draft);
    let all = || servers.iter().flat_map(|server| &server.listens);
    let mut sources = all().filter_map(|listen| listen.proxy_protocol.clone());
    if draft.proxy_protocol.is_none()
        && let Some(source) = sources.next()
    {
        let mode = "required";
        draft.proxy_protocol = Some(ProxyProtocolDraft { mode, source });
    }
    if let Some(header) = &mut draft.proxy_protocol
        && all().any(|one| one.proxy_protocol.is_none())
    {
        header.mode = "optional";
    }
}

/// Reads `ssl_reject_handshake`, which is for unknown names only in the default server.
fn read_rejection(server: &ServerBlock<'_>, all: &[ServerBlock<'_>], draft: &mut Draft) {
    let rejection = server.scope.last("ssl_reject_handshake");
    let Some(one) = rejection.filter(|one| one.arg(0) == "on") else {
        return;
    };
    let is_default = |listen: &ListenAddress| {
        let mut listens = all.iter().flat_map(|other| &other.listens);
        let first = listens.find(|other| other.address == listen.address);
        listen.is_default || first.is_some_and(|first| std::ptr::eq(first, listen))
    };
    match server.listens.iter().any(is_default) {
        true => draft.tls.entries.add_new("unknown_name", quote("refuse")),
        false => one.lost("only unknown names can be refused, with the default server"),
    }
}

/// Uses TLS for all servers of an address where one server says `ssl`, as nginx does.
fn share_tls(servers: &mut [ServerBlock<'_>]) {
    let all = servers.iter().flat_map(|server| &server.listens);
    let secure: BTreeSet<String> = all
        .filter(|listen| listen.ssl)
        .map(|listen| listen.address.clone())
        .collect();
    for listen in servers.iter_mut().flat_map(|server| &mut server.listens) {
        listen.ssl |= secure.contains(&listen.address);
    }
}

#[cfg(test)]
mod tests;
