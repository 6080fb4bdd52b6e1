//! Servers that send all plain requests to https, as `redirect` of `[tls]` does for all servers.

use super::ServerBlock;
use super::syntax::Directive;
use crate::draft::Draft;

/// Returns the indices of servers that redirect all requests to https. `redirect` of `[tls]` does
/// the same for all servers.
pub(super) fn find_redirecting(servers: &[ServerBlock<'_>], draft: &mut Draft) -> Vec<usize> {
    if draft.tls.listen.is_empty() {
        return Vec::new();
    }
    let with_tls = servers.iter().filter(|one| one.is_secure() != Some(false));
    let tls_hosts: Vec<&str> = with_tls
        .flat_map(|one| one.hosts.iter().flatten())
        .map(String::as_str)
        .collect();
    let mut found = Vec::new();
    // The first servers that have no plain address, and that have one.
    let (mut tls_only, mut plain) = (None, None);
    for (index, server) in servers.iter().enumerate() {
        let secure = server.is_secure();
        let names = RedirectNames::new(server, &tls_hosts);
        let list = server.scope.block().inner();
        if secure == Some(false) && names.redirect_all(list, None, 0) {
            names.note_other_places(list);
            found.push(index);
        } else if secure == Some(true) {
            tls_only = tls_only.or(Some(server));
        } else {
            plain = plain.or(Some(server));
        }
    }
    if let Some(server) = tls_only {
        draft.tls.only = Some(server.scope.block().source());
    }
    if !found.is_empty() {
        draft.redirect_to_https();
        if let Some(server) = plain {
            let why = "`redirect` of [tls] is for all plain requests: those to this server are \
                       sent to https as well";
            server.scope.block().lost(why);
        }
    }
    found
}

/// The names that a server may redirect to, if `redirect` of `[tls]` shall do the same.
struct RedirectNames<'s> {
    /// `$server_name`
    first: &'s str,
    /// The only name of the server.
    only: Option<&'s str>,
    /// Names at which all its hosts are served with TLS, though it sends all to one of them.
    others: Vec<&'s str>,
}

impl<'s> RedirectNames<'s> {
    fn new(server: &'s ServerBlock<'_>, tls_hosts: &[&'s str]) -> RedirectNames<'s> {
        let mut hosts = server.hosts.iter().flatten();
        let are_with_tls = hosts.all(|host| tls_hosts.contains(&host.as_str()));
        let only = match &server.hosts[..] {
            [Some(host)] => Some(host.as_str()),
            _ => None,
        };
        RedirectNames {
            first: server.scope.server_name(),
            only,
            others: if are_with_tls {
                tls_hosts.to_vec()
            } else {
                Vec::new()
            },
        }
    }

    /// Whether a block redirects to https and serves nothing else. The proxy itself serves
    /// `/.well-known/acme-challenge/`. `asked` is the host that an `if` around the block asks for.
    fn redirect_all(&self, list: &[Directive], asked: Option<&str>, depth: usize) -> bool {
        let mut redirects = false;
        for one in list {
            let asked = asked_host(one).or(asked);
            match one.name.as_str() {
                "return" | "rewrite" if self.keeps_place(one, asked) => redirects = true,
                "return" if matches!(one.arg(0), "403" | "404" | "444") => {}
                "if" | "location"
                    if depth < 2 && self.redirect_all(one.inner(), asked, depth + 1) =>
                {
                    redirects = true;
                }
                "location" if one.args.iter().any(|arg| arg.contains(".well-known")) => {}
                // The root of a server may be for such a location.
                "root" if depth == 0 => {}
                "return" | "rewrite" | "if" | "location" | "proxy_pass" | "grpc_pass" | "root" => {
                    return false;
                }
                _ => {}
            }
        }
        redirects
    }

    /// Whether a directive redirects to https, to a host that clients asked for and their path.
    fn keeps_place(&self, one: &Directive, asked: Option<&str>) -> bool {
        let Some(host) = redirected_host(one) else {
            return false;
        };
        let name = if host == "$server_name" {
            self.first
        } else {
            &host
        };
        let is_same = matches!(name, "$host" | "$http_host")
            || [self.only, asked]
                .into_iter()
                .flatten()
                .any(|one| one == name);
        is_same || self.others.contains(&name)
    }

    /// Notes redirects to one of several names.
    fn note_other_places(&self, list: &[Directive]) {
        for one in list {
            if one.name == "location" {
                self.note_other_places(one.inner());
            }
            let no_others = RedirectNames {
                others: Vec::new(),
                ..*self
            };
            if redirected_host(one).is_some() && !no_others.keeps_place(one, None) {
                one.differs("`redirect` of [tls] keeps the host that a client asked for");
            }
        }
    }
}

/// Returns the host that `if ($host = name)` asks for.
fn asked_host(one: &Directive) -> Option<&str> {
    let words: Vec<&str> = one.args.iter().map(String::as_str).collect();
    match words[..] {
        ["($host" | "($http_host", "=", name] if one.name == "if" => name.strip_suffix(')'),
        ["($host" | "($http_host", "=", name, ")"] if one.name == "if" => Some(name),
        _ => None,
    }
}

/// Returns the host that a `return` or a `rewrite` of all paths sends clients to, with https.
/// `None` if they get another path there.
fn redirected_host(one: &Directive) -> Option<String> {
    let target = match one.name.as_str() {
        "return" if one.args.len() == 1 => one.arg(0),
        "return" if matches!(one.arg(0), "301" | "302" | "303" | "307" | "308") => one.arg(1),
        "rewrite" => one.arg(1),
        _ => return None,
    };
    let target = target.replace("${", "$").replace('}', "");
    let place = target.strip_prefix("https://")?;
    let rests: &[&str] = match (one.name.as_str(), one.arg(0)) {
        ("return", _) => &["$request_uri", "$uri", "$uri$is_args$args", "$uri?$args"],
        (_, "^/(.*)$" | "^/(.*)") => &["/$1", "$request_uri?", "$request_uri"],
        (_, "^(.*)$" | "^(.*)") => &["$1", "$request_uri?", "$request_uri"],
        (_, "^" | ".*" | "^.*$") => &["$request_uri?", "$request_uri", "$uri"],
        _ => return None,
    };
    let mut hosts = rests.iter().filter_map(|rest| place.strip_suffix(rest));
    let host = hosts.next()?;
    let host = host.strip_suffix(":443").unwrap_or(host);
    let is_variable = matches!(host, "$host" | "$http_host" | "$server_name");
    (is_variable || !host.contains(['$', '/'])).then(|| host.to_owned())
}
