//! `proxy_pass` and `grpc_pass`: the upstream that a location sends requests to, and its settings.

use super::rewrites;
use super::scope::{BlockScope, LocationPath};
use super::servers::{ejection, read_server, server_url};
use super::settings::{connection_requests, parse_timeout};
use super::syntax::Directive;
use super::variables;
use crate::draft::{Draft, RouteAction, ServerDraft, TargetDraft, UpstreamDraft};
use crate::files;
use crate::path::Case;
use crate::route::template::Template;
use crate::route::{Replacement, host_of};
use crate::values::{self, TomlEntries, TomlEntry, quote, quote_list};

pub(super) struct ProxyPass<'p> {
    scope: &'p BlockScope<'p>,
    one: &'p Directive,
    /// The URL, with the variables that have one value.
    url: String,
    /// The prefix of the directives that belong to it.
    prefix: &'static str,
    plain_scheme: &'static str,
}

/// `http://backend/path`
#[derive(Debug)]
struct PassUrl<'p> {
    scheme: &'p str,
    host: &'p str,
    path: Option<&'p str>,
}

/// The beginnings of paths, of the client and of the upstream.
#[derive(Default)]
struct AnswerPaths<'p> {
    from: Option<&'p str>,
    to: &'p str,
}

impl AnswerPaths<'_> {
    /// Whether a `proxy_redirect` or `proxy_cookie_path` gives answers the client's beginning back.
    fn are_in(&self, one: &Directive) -> bool {
        let puts_back = |from| one.arg(0).ends_with(self.to) && one.arg(1).ends_with(from);
        one.arg(0) == "default" || self.from.is_some_and(puts_back)
    }
}

impl<'p> ProxyPass<'p> {
    pub(super) fn find(scope: &'p BlockScope<'p>) -> Option<ProxyPass<'p>> {
        let speaks_http2 = matches!(scope.last_arg("proxy_http_version"), Some("2" | "2.0"));
        let proxy_scheme = if speaks_http2 { "h2c" } else { "http" };
        let pass = |name, prefix, plain_scheme| {
            let one = scope.first(name)?;
            Some(ProxyPass {
                scope,
                one,
                url: variables::expand_constants(one.arg(0), scope),
                prefix,
                plain_scheme,
            })
        };
        pass("proxy_pass", "proxy", proxy_scheme).or_else(|| pass("grpc_pass", "grpc", "h2c"))
    }

    pub(super) fn translate(&self, path: &LocationPath<'_>, draft: &mut Draft) -> RouteAction {
        self.try_translate(path, draft)
            .unwrap_or_else(|why| self.one.close(&why).into())
    }

    fn try_translate(
        &self,
        path: &LocationPath<'_>,
        draft: &mut Draft,
    ) -> Result<RouteAction, String> {
        let url = self.parse_url()?;
        let mut entries = self.replace_path(&url, path)?;
        if let Some(one) = self.last("method") {
            entries.add("method_up", quote(&self.method(one)?));
        }
        for part in ["headers", "body"] {
            if self.last_arg(&format!("pass_request_{part}")) == Some("off") {
                entries.add(&format!("pass_{part}"), "false");
            }
        }
        let name = match self.group_of(&url) {
            Some(block) if block.inner().iter().all(|one| !is_up(one)) => {
                let why = "no server of the upstream is up: the route answers 502, as nginx does";
                self.one.differs(why);
                return Ok(TargetDraft::respond(502).into());
            }
            group => self.add_upstream(&url, group, draft),
        };
        let target = TargetDraft::Upstream(name);
        Ok(RouteAction {
            entries,
            ..RouteAction::from(target)
        })
    }

    fn method(&self, one: &Directive) -> Result<String, String> {
        let method = variables::translate_value(one.arg(0), self.scope)?;
        match Template::parse(&method) {
            Ok(template) if template.is_late() => Err("no upstream has answered yet".to_owned()),
            _ if method == "HEAD" => Err("responses to HEAD have no body".to_owned()),
            _ => Ok(method),
        }
    }

    /// Returns the path that it asks for in place of `asked`, in a location with this path.
    pub(super) fn asked_path(&self, path: &str, asked: &str) -> Result<String, String> {
        Ok(match (self.parse_url()?.path, asked.strip_prefix(path)) {
            (Some(new_path), Some(rest)) => format!("{new_path}{rest}"),
            _ => asked.to_owned(),
        })
    }

    fn parse_url(&self) -> Result<PassUrl<'_>, String> {
        let whole = self.url.as_str();
        let (scheme, rest) = match whole.split_once("://") {
            Some(("http" | "grpc", rest)) => (self.plain_scheme, rest),
            Some(("https" | "grpcs", rest)) => ("https", rest),
            None if self.prefix == "grpc" => (self.plain_scheme, whole),
            _ => return Err("not a URL that can be used".to_owned()),
        };
        let (host, path) = match rest.strip_prefix("unix:") {
            Some(socket) => {
                let end = socket.find(':').map_or(rest.len(), |at| at + "unix:".len());
                (&rest[..end], rest.get(end + 1..).unwrap_or_default())
            }
            None => rest.split_at(rest.find(['/', '$', '?']).unwrap_or(rest.len())),
        };
        if host.is_empty() || host.contains('$') {
            return Err("where requests go depends on a variable".to_owned());
        }
        let path = match path {
            "" | "${request_uri}" | "${uri}${is_args}${args}" => None,
            "${uri}" | "${document_uri}" => {
                self.one.differs("requests keep their query");
                None
            }
            path if path.contains('$') => {
                return Err("the path that is asked for depends on a variable".to_owned());
            }
            path => Some(path),
        };
        Ok(PassUrl { scheme, host, path })
    }

    /// Returns the settings that replace the location's path by the path of the URL, as nginx does.
    fn replace_path(
        &self,
        url: &PassUrl<'_>,
        location: &LocationPath<'_>,
    ) -> Result<TomlEntries, String> {
        let mut entries = TomlEntries::default();
        // After a `rewrite`, nginx does not look at the path of the URL.
        let is_new = |path: &&str| location.new_beginning.is_none() && location.path != Some(path);
        let Some(new_path) = url.path.filter(is_new) else {
            if let Some((path, beginning)) = location.path.zip(location.new_beginning) {
                rewrites::add_new_beginning(&mut entries, path, beginning)?;
            }
            let to = url.path.and(location.path).unwrap_or("/");
            let default = self.default_redirect(url, to);
            let rules = rewrites::read_rewrites(self.scope, default.as_deref(), |_| false);
            entries.add_table("rewrite_down", &rules);
            return Ok(entries);
        };
        let path = location
            .path
            .ok_or("the path of a regular expression cannot be replaced")?;
        if Replacement::new(path, new_path, Case::Sensitive).is_err() {
            return Err(format!("`{path}` cannot be replaced by `{new_path}`"));
        }
        if !location.is_exact && !path.ends_with('/') && new_path.ends_with('/') {
            (self.one).differs("the rest of the path begins with one slash, not with two");
        }
        let mut fields = vec![
            format!("from = {}", quote(path)),
            format!("to = {}", quote(new_path)),
        ];
        let changes = AnswerPaths {
            from: Some(path),
            to: new_path,
        };
        let redirects = self.scope.inherited("proxy_redirect");
        if redirects.is_empty() || redirects.iter().any(|one| changes.are_in(one)) {
            fields.push("location = true".to_owned());
        }
        let cookies = self.scope.inherited("proxy_cookie_path");
        if cookies.iter().any(|one| changes.are_in(one)) {
            fields.push("cookies = true".to_owned());
        }
        entries.add_table("replace_prefix", &fields);
        let rules = rewrites::read_rewrites(self.scope, None, |one| changes.are_in(one));
        entries.add_table("rewrite_down", &rules);
        Ok(entries)
    }

    /// Returns the rule of `proxy_redirect default` if `proxy_pass` leaves paths as they are.
    fn default_redirect(&self, url: &PassUrl<'_>, to: &str) -> Option<String> {
        // An upstream that gets the client's host names no other host.
        self.sent_host(url, false)?;
        let is_named = self.prefix == "proxy"
            && variables::is_constant(self.one.arg(0))
            && !url.host.starts_with("unix:");
        let from = format!("{}{}", self.url, url.path.map_or("/", |_| ""));
        is_named.then(|| format!("{} = {}", quote(&from), quote(to)))
    }

    /// The `upstream` that a URL names.
    fn group_of(&self, url: &PassUrl<'_>) -> Option<&'p Directive> {
        let groups = self.scope.http.named("upstream");
        groups.filter(|one| one.arg(0) == url.host).last()
    }

    fn add_upstream(
        &self,
        url: &PassUrl<'_>,
        group: Option<&'p Directive>,
        draft: &mut Draft,
    ) -> String {
        let socket = url.host.strip_prefix("unix:").unwrap_or(url.host);
        let mut repeated = None;
        let mut upstream = UpstreamDraft {
            name: socket.trim_start_matches('/').to_owned(),
            servers: Vec::new(),
            entries: TomlEntries::default(),
            place: self.one.place.clone(),
        };
        match group {
            Some(block) => repeated = self.read_group(block, url.scheme, &mut upstream),
            None => upstream.servers.push(ServerDraft {
                url: server_url(url.host, url.scheme),
                ..ServerDraft::default()
            }),
        }
        let entries = &mut upstream.entries;
        if upstream.servers.len() == 1 {
            entries.list.retain(|entry| entry.key != "balance");
        }
        if let Some(host) = self.sent_host(url, group.is_some()) {
            entries.add("host", quote(&host));
        }
        self.add_timeouts(entries);
        self.add_retries(repeated, entries);
        if url.scheme == "https" {
            let name = group.is_some().then_some(url.host);
            self.add_tls(name, entries);
            if self.last_arg("ssl_verify") != Some("on") {
                let why = "tidegate verifies certificates, nginx did not: `tls = { ca = .. }` of \
                           the upstream names the authority to trust";
                self.one.differs(why);
            }
        }
        draft.add_upstream(upstream)
    }

    /// Returns the host that the upstream gets; `None` for the client's. nginx sends the host of
    /// `proxy_pass` unless a header sets another.
    fn sent_host(&self, url: &PassUrl<'_>, is_group: bool) -> Option<String> {
        let sets = self.scope.inherited(&format!("{}_set_header", self.prefix));
        let is_host = |one: &&&Directive| one.arg(0).eq_ignore_ascii_case("host");
        let set = sets.iter().find(is_host);
        let value = set.map(|one| variables::expand_constants(one.arg(1), self.scope));
        let value = match (set, value.as_deref()) {
            (_, Some("${host}" | "${http_host}" | "${host}:${server_port}")) => return None,
            (Some(one), Some(value)) if value.contains('$') && value != "${proxy_host}" => {
                one.lost("no such host can be sent: it is that of the upstream's URL");
                "rewrite"
            }
            (_, Some("${proxy_host}" | "") | None) => match url.host {
                unix if unix.starts_with("unix:") => "localhost",
                name if is_group => name,
                _ => "rewrite",
            },
            (_, Some(value)) => value,
        };
        // The name of a group need not be a valid host.
        let is_valid = host_of(value).is_ok();
        Some(if is_valid { value } else { "rewrite" }.to_owned())
    }

    /// Returns the directive that applies: `connect_timeout` is `proxy_connect_timeout`.
    fn last(&self, name: &str) -> Option<&'p Directive> {
        self.scope.last(&format!("{}_{name}", self.prefix))
    }

    fn last_arg(&self, name: &str) -> Option<&'p str> {
        self.last(name).map(|one| one.arg(0))
    }

    fn add_timeouts(&self, entries: &mut TomlEntries) {
        for (theirs, ours) in [
            ("connect_timeout", &["connect_timeout"][..]),
            ("read_timeout", &["timeout", "body_timeout"]),
        ] {
            let Some(one) = self.last(theirs) else {
                continue;
            };
            match parse_timeout(one.arg(0)) {
                Some(ms) => ours
                    .iter()
                    .for_each(|key| entries.add(key, values::time_text(ms))),
                None => one.lost("a day is the longest time"),
            }
        }
    }

    /// Translates `proxy_next_upstream error timeout http_502;`. `repeated` is what `read_group`
    /// returns: nginx tries a server once for each of its lines.
    fn add_retries(&self, repeated: Option<usize>, entries: &mut TomlEntries) {
        let mut causes = Vec::new();
        match self.last("next_upstream") {
            Some(one) if one.arg(0) == "off" => {
                entries.add("retries", "0");
                return;
            }
            Some(one) => {
                for word in &one.args {
                    match word.as_str() {
                        "error" | "invalid_header" => causes.push("closed".to_owned()),
                        "timeout" => causes.push("timeout".to_owned()),
                        status if is_status_cause(status) => causes.push(status[5..].to_owned()),
                        _ => one
                            .notes
                            .lost(&one.place, word, "no reason to send a request again"),
                    }
                }
            }
            // nginx's default.
            None if repeated.is_some() => causes = vec!["closed".to_owned(), "timeout".to_owned()],
            None => return,
        }
        causes.dedup();
        let tries = self.last_arg("next_upstream_tries");
        let tries = tries.and_then(|tries| tries.parse::<u64>().ok());
        let tries = tries.or(repeated.map(|lines| lines.min(11) as u64));
        let tries = tries.filter(|tries| (1..=11).contains(tries));
        let mut fields = Vec::new();
        fields.extend(tries.map(|tries| format!("attempts = {}", tries - 1)));
        if repeated.is_some() {
            fields.push("same_server = true".to_owned());
        }
        fields.push(format!("on = {}", quote_list(&causes)));
        entries.add_table("retries", &fields);
    }

    /// Returns the statuses that nginx counts as failures of a server.
    fn failure_statuses(&self) -> Vec<String> {
        let args = self.last("next_upstream").map_or(&[][..], |one| &one.args);
        let statuses = args.iter().filter(|word| is_status_cause(word));
        let statuses = statuses.map(|word| word[5..].to_owned());
        statuses
            .filter(|status| !matches!(status.as_str(), "403" | "404"))
            .collect()
    }

    /// Adds the name, the authority and the client certificate for TLS to the upstream.
    fn add_tls(&self, group: Option<&str>, entries: &mut TomlEntries) {
        let mut fields = Vec::new();
        let mut add = |key: &str, value: &str| fields.push(format!("{key} = {}", quote(value)));
        let name = self.last_arg("ssl_name");
        if let Some(name) = name.filter(|name| !name.contains('$')).or(group) {
            // nginx leaves the port out as well.
            add("name", name.split(':').next().unwrap_or(name));
        }
        for (theirs, ours) in [("ssl_trusted_certificate", "ca"), ("ssl_crl", "crl")] {
            match self.last(theirs) {
                Some(one) if files::is_readable(one.arg(0)) => add(ours, one.arg(0)),
                Some(one) => one.lost(format!(
                    "no such file here; `tls = {{ {ours} = .. }}` of the upstream names it"
                )),
                None => {}
            }
        }
        let cert = self.last("ssl_certificate");
        let key = self.last("ssl_certificate_key");
        let is_readable =
            |one: Option<&Directive>| one.is_some_and(|one| files::is_readable(one.arg(0)));
        let are_usable = is_readable(cert) && is_readable(key);
        for (name, one) in [("cert", cert), ("key", key)] {
            match one {
                Some(one) if are_usable => add(name, one.arg(0)),
                Some(one) if !one.arg(0).is_empty() => {
                    let why = "no such pair of files here; `tls = { cert = .., key = .. }` of the \
                               upstream names it";
                    one.lost(why);
                }
                _ => {}
            }
        }
        for (theirs, ours) in [("ssl_server_name", "sni"), ("ssl_session_reuse", "resume")] {
            if self.last_arg(theirs) == Some("off") {
                fields.push(format!("{ours} = false"));
            }
        }
        entries.add_table("tls", &fields);
    }

    /// Reads an `upstream`. Returns the number of its lines of servers if one server is repeated.
    fn read_group(
        &self,
        block: &Directive,
        scheme: &str,
        upstream: &mut UpstreamDraft,
    ) -> Option<usize> {
        let (mut lines, mut is_repeated) = (0, false);
        let UpstreamDraft {
            servers, entries, ..
        } = upstream;
        entries.add("balance", quote("round-robin"));
        for one in block.inner() {
            match one.name.as_str() {
                "server" => {
                    let Some(server) = read_server(one, scheme) else {
                        continue;
                    };
                    lines += 1;
                    match servers.iter_mut().find(|known| known.url == server.url) {
                        Some(known) => {
                            let both = known.weight.unwrap_or(1) + server.weight.unwrap_or(1);
                            known.weight = Some(both.min(1000));
                            is_repeated = true;
                            one.differs("the same server twice: it is one with both weights");
                        }
                        None => servers.push(server),
                    }
                    if let Some(eject) = ejection(one, &self.failure_statuses()) {
                        let eject = TomlEntry::new("eject", eject);
                        if !entries.has(&eject.key) {
                            entries.list.push(eject);
                        } else if !entries.list.contains(&eject) {
                            one.differs("one `eject` is for all servers: that of the first");
                        }
                    }
                }
                "least_conn" | "least_time" | "random" => entries.replace("balance", quote("p2c")),
                "ip_hash" => entries.replace("balance", quote("hash:ip")),
                "hash" => {
                    let key = variables::translate_key(one.arg(0), self.scope)
                        .map(|found| found.key.parts);
                    match key.as_deref() {
                        Ok([part]) => entries.replace("balance", quote(&format!("hash:{part}"))),
                        _ => one.lost("no such key to balance by"),
                    }
                }
                "keepalive" => match one.arg(0).parse::<u64>().ok().filter(|count| *count > 0) {
                    Some(count) => entries.replace("max_idle", count.to_string()),
                    None => one.lost("no such number"),
                },
                "keepalive_timeout" => {
                    if let Some(ms) = values::parse_nginx_ms(one.arg(0)).filter(|ms| *ms > 0) {
                        entries.replace("idle_timeout", values::time_text(ms));
                    }
                }
                "keepalive_requests" => match connection_requests(one) {
                    Some(requests) => entries.replace("connection_requests", requests.to_string()),
                    None => one.lost("no such number"),
                },
                "keepalive_time" => match parse_timeout(one.arg(0)) {
                    Some(ms) => entries.replace("connection_age", values::time_text(ms)),
                    None => one.lost("a day is the longest time"),
                },
                "zone" => one.needless("all workers share what they know of servers"),
                _ => one.lost("tidegate has nothing like it"),
            }
        }
        // nginx asks the backups then; a server that is down never comes back by itself.
        if servers.iter().all(|server| server.is_backup) {
            servers
                .iter_mut()
                .for_each(|server| server.is_backup = false);
        }
        is_repeated.then_some(lines)
    }
}

/// Whether this is a server of an `upstream` that is asked.
fn is_up(one: &Directive) -> bool {
    one.name == "server" && one.args.iter().skip(1).all(|word| word != "down")
}

/// Whether a word of `proxy_next_upstream` is a status: `http_502`.
fn is_status_cause(word: &str) -> bool {
    let status = word.strip_prefix("http_").unwrap_or_default();
    status.len() == 3 && status.bytes().all(|byte| byte.is_ascii_digit())
}
