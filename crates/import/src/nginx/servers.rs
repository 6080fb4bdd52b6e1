//! `server` blocks: where they listen, for which names, and with which certificates.

use super::Http;
use super::conditions::Around;
use super::fates;
use super::locations::{self, Site};
use super::passing::At;
use super::scope::Scope;
use super::syntax::Directive;
use crate::draft::{Draft, ProxyProtocol};
use crate::patterns;
use crate::print::text;

struct Server<'d> {
    one: &'d Directive,
    scope: Scope<'d>,
    hosts: Vec<Option<String>>,
    listens: Vec<Listen>,
}

/// `listen 443 ssl default_server;`
struct Listen {
    at: String,
    ssl: bool,
    is_default: bool,
    proxy_protocol: Option<ProxyProtocol>,
}

/// Every server of a scope.
pub(super) fn all(http: &Http<'_>, scope: &Scope<'_>, draft: &mut Draft) {
    let blocks = scope
        .own()
        .iter()
        .filter(|one| one.name == "server" && one.block.is_some());
    let servers: Vec<Server<'_>> = blocks.map(|one| server(one, scope, draft)).collect();
    listen(&servers, draft);
    let redirects = redirecting(&servers, draft);
    statuses(&servers, draft);
    let first = default(&servers, &redirects, draft);
    let is_wild =
        |host: &Option<String>| host.as_deref().is_some_and(|host| host.starts_with("*."));
    let wild = servers.iter().any(|one| one.hosts.iter().any(is_wild));
    for (index, one) in servers.iter().enumerate() {
        if redirects.contains(&index) {
            continue;
        }
        let mut hosts = one.hosts.clone();
        if Some(index) == first {
            // Who asks for another name gets the first server; its own names need no routes, unless
            // another server has some below a name, or conditions tell them apart.
            if !wild && !one.scope.own().iter().any(|one| one.name == "if") {
                hosts.clear();
            }
            if !hosts.contains(&None) {
                hosts.push(None);
            }
        } else if hosts.contains(&None) {
            hosts.retain(Option::is_some);
            if hosts.is_empty() {
                let why = "another server has the requests for every name: routes do not depend \
                           on the port that a request came to";
                draft.notes.lost(&one.one.place, "server", why);
                continue;
            }
        }
        let secure = one.listens.iter().filter(|listen| listen.ssl).count();
        let site = Site {
            one: one.one,
            scope: &one.scope,
            hosts: &hosts,
            around: Around {
                http,
                block: &[],
                at: At {
                    path: Some("/"),
                    is_exact: false,
                    is_stripped: false,
                },
                secure: match secure {
                    0 => Some(false),
                    all if all == one.listens.len() => Some(true),
                    _ => None,
                },
                verified: one.verifies(),
            },
            closed: inner(one, &servers, draft),
        };
        locations::routes(&site, draft);
    }
}

/// Why a server is closed that only this machine could reach: routes do not depend on addresses.
fn inner(one: &Server<'_>, all: &[Server<'_>], draft: &mut Draft) -> Option<String> {
    let is_inner = |server: &Server<'_>| server.listens.iter().all(Listen::is_inner);
    if !is_inner(one) || all.iter().all(is_inner) {
        return None;
    }
    let at = one.listens.first().map_or("", |listen| listen.at.as_str());
    let why = format!(
        "only this machine could reach it, at {at}: routes do not depend on the address that a \
         request came to, so it is closed"
    );
    draft.notes.lost(&one.one.place, "server", why.clone());
    Some(why)
}

impl Server<'_> {
    /// Whether clients without a certificate are turned away, here as there.
    fn verifies(&self) -> bool {
        let on = |name: &str| self.scope.last(name).is_some_and(|one| one.arg(0) == "on");
        on("ssl_verify_client") && self.scope.last("ssl_client_certificate").is_some()
    }
}

impl Listen {
    /// Whether only this machine can come here.
    fn is_inner(&self) -> bool {
        let address = self.at.parse::<std::net::SocketAddr>();
        self.at.starts_with("unix:") || address.is_ok_and(|at| at.ip().is_loopback())
    }
}

/// The server that has the requests for names that nobody has.
fn default(servers: &[Server<'_>], redirects: &[usize], draft: &mut Draft) -> Option<usize> {
    let serving = |at: &usize| !redirects.contains(at);
    let all: Vec<usize> = (0..servers.len()).filter(serving).collect();
    let listens = |at: usize| servers[at].listens.iter();
    let has = |port: &str| {
        let on = |at: &&usize| listens(**at).any(|listen| listen.at == port);
        all.iter().find(on)
    };
    let said = all
        .iter()
        .find(|at| listens(**at).any(|listen| listen.is_default));
    let first = said
        .or(has(":443"))
        .or(has(":80"))
        .or(all.first())
        .copied()?;
    // nginx has one for each address.
    let other = all.iter().find(|at| {
        let shares = |listen: &Listen| listens(first).any(|one| one.at == listen.at);
        !listens(**at).any(shares)
    });
    if let Some(other) = other {
        let why = format!(
            "has the requests for names that nobody has, also those to the port of the server in \
             line {}: routes do not depend on ports",
            servers[*other].one.place.line
        );
        draft
            .notes
            .differs(&servers[first].one.place, "server", why);
    }
    Some(first)
}

fn server<'d>(one: &'d Directive, http: &Scope<'d>, draft: &mut Draft) -> Server<'d> {
    fates::tell(one.inner(), fates::Context::Server, &mut draft.notes);
    let scope = http.within(one);
    super::settings::real_ip(&scope, draft);
    let mut hosts = Vec::new();
    for named in one.inner().iter().filter(|one| one.name == "server_name") {
        for name in &named.args {
            match patterns::hosts(name) {
                Ok(found) => hosts.extend(found),
                Err(why) => draft.notes.lost(&named.place, &named.line(), why),
            }
        }
    }
    let has_names = one.inner().iter().any(|one| one.name == "server_name");
    if hosts.is_empty() && !has_names {
        hosts.push(None);
    }
    let ssl = scope.here("ssl").is_some_and(|one| one.arg(0) == "on");
    let words = one.inner().iter().filter(|one| one.name == "listen");
    let mut listens: Vec<Listen> = Vec::new();
    for one in words {
        listens.extend(listening(one, ssl, draft));
    }
    if listens.is_empty() {
        listens.push(Listen {
            at: ":80".to_owned(),
            ssl,
            is_default: false,
            proxy_protocol: None,
        });
    }
    Server {
        one,
        scope,
        hosts,
        listens,
    }
}

fn listening(one: &Directive, ssl: bool, draft: &mut Draft) -> Option<Listen> {
    let word = |name: &str| one.args.iter().skip(1).any(|arg| arg == name);
    if word("quic") {
        draft
            .notes
            .lost(&one.place, &one.line(), "HTTP/3 is not spoken");
        return None;
    }
    let address = one.arg(0);
    let at = if address.starts_with("unix:") {
        address.to_owned()
    } else if let Ok(port) = address.parse::<u16>() {
        format!(":{port}")
    } else {
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() && !host.ends_with(':') => {
                (host, port)
            }
            _ => (address, "80"),
        };
        match host {
            "*" | "[::]" | "0.0.0.0" => format!(":{port}"),
            "localhost" => format!("127.0.0.1:{port}"),
            host => format!("{host}:{port}"),
        }
    };
    if at.parse::<std::net::SocketAddr>().is_err() && !at.starts_with([':', 'u']) {
        draft
            .notes
            .lost(&one.place, &one.line(), "a name is no address to listen on");
        return None;
    }
    Some(Listen {
        at,
        ssl: ssl || word("ssl"),
        is_default: word("default_server") || word("default"),
        proxy_protocol: word("proxy_protocol").then(|| ProxyProtocol {
            mode: "required",
            place: one.place.clone(),
            was: one.line(),
        }),
    })
}

/// Where the proxy listens, plain and with TLS, and what for.
fn listen(servers: &[Server<'_>], draft: &mut Draft) {
    for server in servers {
        for listen in &server.listens {
            match listen.ssl {
                true => draft.tls.listen.push(listen.at.clone()),
                false => draft.listen.push(listen.at.clone()),
            }
            if draft.proxy_protocol.is_none() {
                draft.proxy_protocol.clone_from(&listen.proxy_protocol);
            }
        }
        if server.listens.iter().any(|listen| listen.ssl) {
            certificates(server, draft);
        }
    }
    let mut all = servers.iter().flat_map(|server| &server.listens);
    if let Some(header) = &mut draft.proxy_protocol
        && all.any(|one| one.proxy_protocol.is_none())
    {
        header.mode = "optional";
    }
    // A plain address in one server and TLS on it in another.
    let tls = draft.tls.listen.clone();
    draft.listen.retain(|one| !tls.contains(one));
}

fn certificates(server: &Server<'_>, draft: &mut Draft) {
    let scope = &server.scope;
    let keys = scope.all("ssl_certificate_key");
    for (cert, key) in scope.all("ssl_certificate").into_iter().zip(keys) {
        let pair = (
            cert.arg(0).to_owned(),
            key.arg(0).to_owned(),
            cert.place.clone(),
        );
        draft.tls.certificates.push(pair);
    }
    let set = |draft: &mut Draft, key: &str, value: String| {
        if !draft.tls.settings.iter().any(|(known, _)| known == key) {
            draft.tls.settings.push((key.to_owned(), value));
        }
    };
    if let Some(one) = scope.last("ssl_protocols") {
        let has = |name: &str| one.args.iter().any(|arg| arg == name);
        if has("TLSv1") || has("TLSv1.1") {
            draft.notes.differs(
                &one.place,
                &one.line(),
                "TLS 1.2 is the oldest that is spoken",
            );
        } else if !has("TLSv1.2") {
            set(draft, "min_version", text("1.3"));
        }
    }
    let verify = scope
        .last("ssl_verify_client")
        .map_or("off", |one| one.arg(0));
    if let (Some(ca), true) = (scope.last("ssl_client_certificate"), verify != "off") {
        set(draft, "client_ca", text(ca.arg(0)));
        let word = if verify == "on" {
            "required"
        } else {
            "optional"
        };
        set(draft, "client_auth", text(word));
    }
    let hsts = scope
        .all("add_header")
        .into_iter()
        .find(|one| one.arg(0).eq_ignore_ascii_case("strict-transport-security"));
    if let Some(one) = hsts {
        let age = one
            .arg(1)
            .split(';')
            .find_map(|part| part.trim().strip_prefix("max-age="));
        let days = age
            .and_then(|age| age.parse::<u64>().ok())
            .map(|age| age / 86_400);
        match days.filter(|days| *days > 0) {
            Some(365) => set(draft, "hsts", "true".to_owned()),
            Some(days) => set(draft, "hsts", text(&format!("{days}d"))),
            None => draft
                .notes
                .lost(&one.place, &one.line(), "`hsts` of [tls] is whole days"),
        }
        if one.arg(1).contains(';') {
            let why = "`hsts` says how long, and nothing of subdomains and lists";
            draft.notes.differs(&one.place, &one.line(), why);
        }
    }
}

/// Servers that send everybody to https, by index: `redirect` of `[tls]` does the same, for all.
fn redirecting(servers: &[Server<'_>], draft: &mut Draft) -> Vec<usize> {
    if draft.tls.listen.is_empty() {
        return Vec::new();
    }
    let is_one = |server: &Server<'_>| {
        server.listens.iter().all(|listen| !listen.ssl) && sends_to_https(server.one.inner(), 0)
    };
    let found: Vec<usize> = (0..servers.len())
        .filter(|at| is_one(&servers[*at]))
        .collect();
    if !found.is_empty() {
        draft.redirect_to_https();
    }
    let others = servers.iter().enumerate();
    let mut others = others
        .filter(|(at, _)| !found.contains(at))
        .map(|(_, one)| one);
    let only = |one: &Server<'_>| one.listens.iter().all(|listen| listen.ssl);
    if let Some(one) = others.clone().find(|one| only(one)) {
        draft.tls.only = Some((one.one.place.clone(), "server".to_owned()));
    }
    if let Some(one) = others.find(|one| !only(one)).filter(|_| !found.is_empty()) {
        let why = "`redirect` of [tls] is for all plain requests: those to this server are sent to \
                   https as well";
        draft.notes.lost(&one.one.place, "server", why);
    }
    found
}

/// Whether a block sends clients to https and serves nothing else. Where certificates are proved
/// (`/.well-known/acme-challenge/`), the proxy answers by itself.
fn sends_to_https(list: &[Directive], depth: usize) -> bool {
    let to = |one: &Directive| {
        let word = if one.name == "rewrite" {
            one.arg(1)
        } else {
            one.args.last().map_or("", String::as_str)
        };
        word.starts_with("https://") || word.starts_with("https:$")
    };
    let mut sends = false;
    for one in list {
        match one.name.as_str() {
            "return" if to(one) => sends = true,
            "return" if matches!(one.arg(0), "403" | "404" | "444") => {}
            "rewrite" if to(one) => sends = true,
            "if" | "location" if depth < 2 && sends_to_https(one.inner(), depth + 1) => {
                sends = true;
            }
            "location" if one.args.iter().any(|arg| arg.contains(".well-known")) => {}
            "return" | "rewrite" | "if" | "location" | "proxy_pass" | "grpc_pass" | "root"
                if depth > 0 || one.name != "root" =>
            {
                return false;
            }
            _ => {}
        }
    }
    sends
}

/// Which status denials have: one for all.
fn statuses(servers: &[Server<'_>], draft: &mut Draft) {
    let mut all: Vec<&Directive> = Vec::new();
    for server in servers {
        all.extend(server.scope.last("limit_req_status"));
        let locations = server
            .scope
            .own()
            .iter()
            .filter(|one| one.name == "location");
        all.extend(locations.filter_map(|one| server.scope.within(one).last("limit_req_status")));
    }
    let mut first: Option<&Directive> = None;
    for one in all {
        let status = one.arg(0).parse::<u16>().ok();
        match (first, status.filter(|status| (400..=599).contains(status))) {
            (_, None) => draft
                .notes
                .lost(&one.place, &one.line(), "400 to 599 are possible"),
            (None, Some(status)) => {
                first = Some(one);
                draft.deny_status = Some(status);
            }
            (Some(known), Some(_)) if known.arg(0) == one.arg(0) => {}
            (Some(_), Some(_)) => {
                draft
                    .notes
                    .lost(&one.place, &one.line(), "denials have one status");
            }
        }
    }
}
