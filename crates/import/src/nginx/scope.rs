//! The directives that apply at a place: a block's own, and those of the blocks around it.

use ipnet::IpNet;

use super::syntax::Directive;
use crate::patterns;

/// A block and the blocks around it.
#[derive(Clone, Debug)]
pub(super) struct BlockScope<'d> {
    /// The block that all servers share: `http`, or a whole file that is included in it.
    pub(super) http: &'d Directive,
    /// The innermost block first.
    pub(super) levels: Vec<&'d Directive>,
}

impl<'d> BlockScope<'d> {
    /// Returns the scope of a block in this scope.
    pub(super) fn enter(&self, block: &'d Directive) -> BlockScope<'d> {
        self.with_levels(block, &self.levels)
    }

    /// Returns the scope of a block in this scope, without the directives around the block.
    pub(super) fn enter_alone(&self, block: &'d Directive) -> BlockScope<'d> {
        self.with_levels(block, &[])
    }

    fn with_levels(&self, block: &'d Directive, around: &[&'d Directive]) -> BlockScope<'d> {
        BlockScope {
            http: self.http,
            levels: [&[block], around].concat(),
        }
    }

    /// Returns the scope of a named location (`@app`) in this block or one around it.
    pub(super) fn enter_named(&self, name: &str) -> Option<BlockScope<'d>> {
        self.levels.iter().enumerate().find_map(|(depth, level)| {
            let mut locations = level.named("location");
            let found = locations.find(|one| one.arg(0) == name)?;
            Some(self.with_levels(found, &self.levels[depth..]))
        })
    }

    /// Returns the scope of the server in this scope.
    pub(super) fn server(&self) -> Option<BlockScope<'d>> {
        let depth = self.levels.iter().position(|one| one.name == "server")?;
        Some(BlockScope {
            http: self.http,
            levels: self.levels[depth..].to_vec(),
        })
    }

    pub(super) fn block(&self) -> &'d Directive {
        self.levels[0]
    }

    pub(super) fn named(&self, name: &str) -> impl Iterator<Item = &'d Directive> {
        self.block().named(name)
    }

    pub(super) fn first(&self, name: &str) -> Option<&'d Directive> {
        self.block().first(name)
    }

    /// Returns all directives of this name at the innermost level that has any, as nginx inherits
    /// them.
    pub(super) fn inherited(&self, name: &str) -> Vec<&'d Directive> {
        self.inherited_any(&[name])
    }

    /// Does the same for several names that nginx inherits as one list.
    pub(super) fn inherited_any(&self, names: &[&str]) -> Vec<&'d Directive> {
        let is_named = |one: &&Directive| names.contains(&one.name.as_str());
        let levels = self.levels.iter();
        let mut lists = levels.map(|level| level.inner().iter().filter(is_named).collect());
        let found = lists.find(|found: &Vec<&Directive>| !found.is_empty());
        found.unwrap_or_default()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &'d Directive> {
        self.levels.iter().flat_map(|level| level.inner())
    }

    pub(super) fn last(&self, name: &str) -> Option<&'d Directive> {
        self.inherited(name).last().copied()
    }

    pub(super) fn last_arg(&self, name: &str) -> Option<&'d str> {
        self.last(name).map(|one| one.arg(0))
    }

    pub(super) fn is_on(&self, name: &str) -> bool {
        self.last_arg(name) == Some("on")
    }

    /// Whether connections begin with a PROXY header that does not name the client.
    pub(super) fn ignores_proxy_header(&self) -> bool {
        let server = self.server();
        let has_header = server.is_some_and(|server| {
            let mut listens = server.named("listen");
            listens.any(|one| one.has_arg("proxy_protocol"))
        });
        has_header && self.last_arg("real_ip_header") != Some("proxy_protocol")
    }

    /// Whether all requests to the server use TLS.
    pub(super) fn has_only_tls(&self) -> bool {
        self.server().is_some_and(|server| {
            let mut listens = server.named("listen").peekable();
            listens.peek().is_some() && listens.all(|one| one.has_arg("ssl"))
        })
    }

    /// Whether this is a server with TLS alone that asks clients for no certificates.
    pub(super) fn asks_for_no_certificate(&self) -> bool {
        let asks = self.last_arg("ssl_verify_client");
        self.has_only_tls() && matches!(asks, None | Some("off"))
    }

    /// Returns the first name of the server, which nginx calls `$server_name`.
    pub(super) fn server_name(&self) -> &'d str {
        let names = self.inherited("server_name");
        let name = names.first().map_or("", |one| one.arg(0));
        name.strip_prefix('.').unwrap_or(name)
    }

    /// Returns the text that `set` gives a variable here; `None` if a condition decides it.
    pub(super) fn constant(&self, name: &str) -> Option<&'d str> {
        let sets =
            |one: &&Directive| one.name == "set" && one.arg(0).strip_prefix('$') == Some(name);
        let conditions = self.all().filter(|one| one.name == "if");
        if conditions.flat_map(Directive::inner).any(|one| sets(&one)) {
            return None;
        }
        let mut levels = self.levels.iter();
        let one = levels.find_map(|level| level.inner().iter().rfind(sets))?;
        Some(one.arg(1))
    }

    /// Returns the expression of the innermost location, if it has one.
    pub(super) fn location_regex(&self) -> Option<&'d str> {
        let one = self.levels.iter().find(|level| level.name == "location")?;
        let is_regex = one.args.len() == 2 && one.arg(0).starts_with('~');
        is_regex.then(|| one.arg(1))
    }

    /// Returns the variable for a group of a regular expression: one of the location's, by name or
    /// number, or a named one of the server's names.
    pub(super) fn group(&self, name: &str) -> Option<String> {
        let is_number = name.parse::<usize>().is_ok();
        let has_regex = |level: &&Directive| level.args.iter().any(|arg| arg.contains('~'));
        let mut conditions = self.levels.iter().filter(|level| level.name == "if");
        // The numbers are those of the expression that was found last.
        if is_number && conditions.any(has_regex) {
            return None;
        }
        let regex = self.location_regex();
        if regex.is_some_and(|regex| patterns::has_group(regex, name)) {
            return Some(format!("{{path:{name}}}"));
        }
        let names = self.inherited("server_name");
        let mut names = names.iter().flat_map(|one| &one.args);
        let has_group = |host: &String| {
            let regex = host.strip_prefix('~');
            regex.is_some_and(|regex| patterns::has_group(regex, name))
        };
        (!is_number && names.any(has_group)).then(|| format!("{{host:{name}}}"))
    }

    /// Returns the `map` or `geo` that computes a variable.
    pub(super) fn map(&self, variable: &str) -> Option<&'d Directive> {
        let computes = |one: &&Directive| {
            let name = one.args.last().and_then(|name| name.strip_prefix('$'));
            one.is_map() && name == Some(variable)
        };
        self.http.inner().iter().rfind(computes)
    }

    /// Returns the zone of a `limit_req` or `limit_conn`. `kind` is `limit_req_zone` or
    /// `limit_conn_zone`.
    pub(super) fn zone(&self, kind: &str, name: &str) -> Option<&'d Directive> {
        let zones = self.http.named(kind);
        zones.filter(|one| one.zone() == Some(name)).last()
    }
}

impl Directive {
    /// Whether it computes a variable: `geo` from the client's address, `map` from a text.
    pub(super) fn is_map(&self) -> bool {
        match (self.name.as_str(), self.args.len()) {
            ("geo", 1) | ("map", 2) => true,
            ("geo", 2) => self.arg(0) == "$remote_addr",
            _ => false,
        }
    }

    /// Returns the name of the zone that it defines or uses.
    pub(super) fn zone(&self) -> Option<&str> {
        let zone = self.option("zone=")?;
        Some(zone.split(':').next().unwrap_or(zone))
    }

    /// Returns the name of the variable that a map is computed from. A `geo` may name none.
    pub(super) fn map_source(&self) -> &str {
        self.arg(0).strip_prefix('$').unwrap_or_default()
    }

    /// Returns the value of a map where no line matches.
    pub(super) fn map_default(&self) -> &str {
        let default = self.named("default").next();
        default.map_or("", |line| line.arg(0))
    }

    /// Returns the lines of a map: the name is the pattern, and the argument the value.
    pub(super) fn map_lines(&self) -> impl Iterator<Item = &Directive> {
        const OTHER: &str = "default include hostnames volatile ranges delete proxy";
        let is_line = |line: &&Directive| OTHER.split(' ').all(|other| other != line.name);
        self.inner().iter().filter(is_line)
    }

    /// Returns the networks of a `geo` with their values; `None` if a line has no network.
    pub(super) fn networks(&self) -> Option<Vec<(IpNet, &str)>> {
        let network = |line: &'_ Directive| -> Option<IpNet> {
            let net = line.name.parse::<IpNet>().ok();
            Some(
                net.or_else(|| Some(line.name.parse::<std::net::IpAddr>().ok()?.into()))?
                    .trunc(),
            )
        };
        self.map_lines()
            .map(|line| Some((network(line)?, line.arg(0))))
            .collect()
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LocationPath<'p> {
    /// The path that requests have, or begin with; `None` for regular expressions.
    pub(super) path: Option<&'p str>,
    pub(super) is_exact: bool,
    /// What a `rewrite` puts in place of the path.
    pub(super) new_beginning: Option<&'p str>,
}
