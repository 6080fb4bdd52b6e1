//! The directives that apply at a place: a block's own, and those of the blocks around it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::syntax::Directive;
use crate::draft::Notes;

/// A block and the blocks around it.
#[derive(Clone, Debug)]
pub(super) struct BlockScope<'d> {
    pub(super) http: &'d HttpBlock<'d>,
    /// The innermost block first.
    pub(super) levels: Vec<&'d [Directive]>,
}

impl<'d> BlockScope<'d> {
    fn with_levels(&self, block: &'d Directive, around: &[&'d [Directive]]) -> BlockScope<'d> {
        let mut levels = vec![block.inner()];
        levels.extend(around);
        let http = self.http;
        BlockScope { http, levels }
    }

    /// Returns the scope of a block in this scope.
    pub(super) fn enter(&self, block: &'d Directive) -> BlockScope<'d> {
        self.with_levels(block, &self.levels)
    }

    /// Returns the scope of a block in this scope, without the directives around the block.
    pub(super) fn enter_alone(&self, block: &'d Directive) -> BlockScope<'d> {
        self.with_levels(block, &[])
    }

    /// Returns the scope of a named location (`@app`) in this block or one around it.
    pub(super) fn enter_named(&self, name: &str) -> Option<BlockScope<'d>> {
        self.levels.iter().enumerate().find_map(|(depth, level)| {
            let is_it = |one: &&Directive| one.name == "location" && one.arg(0) == name;
            Some(self.with_levels(level.iter().find(is_it)?, &self.levels[depth..]))
        })
    }

    /// Returns the directives of the block itself.
    pub(super) fn own(&self) -> &'d [Directive] {
        self.levels.first().copied().unwrap_or_default()
    }

    /// Returns the directives of this name in the block itself.
    pub(super) fn own_named(&self, name: &str) -> impl Iterator<Item = &'d Directive> {
        self.own().iter().filter(move |one| one.name == name)
    }

    /// Returns the first directive of this name in the block itself.
    pub(super) fn own_first(&self, name: &str) -> Option<&'d Directive> {
        self.own_named(name).next()
    }

    /// Returns all directives of this name at the innermost level that has any, as nginx inherits
    /// them.
    pub(super) fn inherited(&self, name: &str) -> Vec<&'d Directive> {
        self.inherited_any(&[name])
    }

    /// Does the same for several names that nginx inherits as one list.
    pub(super) fn inherited_any(&self, names: &[&str]) -> Vec<&'d Directive> {
        let at = |level: &&'d [Directive]| -> Vec<&'d Directive> {
            let named = |one: &&Directive| names.contains(&one.name.as_str());
            level.iter().filter(named).collect()
        };
        let mut levels = self.levels.iter().map(at);
        levels.find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// Returns every directive of the block and of the blocks around it.
    pub(super) fn all(&self) -> impl Iterator<Item = &'d Directive> {
        self.levels.iter().flat_map(|level| level.iter())
    }

    /// Returns the directive of this name that applies.
    pub(super) fn last(&self, name: &str) -> Option<&'d Directive> {
        self.inherited(name).last().copied()
    }

    /// Returns the first argument of the directive that applies.
    pub(super) fn last_arg(&self, name: &str) -> Option<&'d str> {
        self.last(name).map(|one| one.arg(0))
    }

    pub(super) fn is_on(&self, name: &str) -> bool {
        self.last_arg(name) == Some("on")
    }
}

/// The requests that a scope receives.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocationPath<'p> {
    /// The path that requests have, or begin with; `None` for regular expressions.
    pub(super) path: Option<&'p str>,
    /// Requests have exactly this path.
    pub(super) is_exact: bool,
    /// A `rewrite` removes the path.
    pub(super) is_stripped: bool,
}

impl<'p> LocationPath<'p> {
    pub(super) fn prefix(path: &'p str) -> LocationPath<'p> {
        LocationPath {
            path: Some(path),
            is_exact: false,
            is_stripped: false,
        }
    }

    pub(super) fn unknown() -> LocationPath<'p> {
        LocationPath {
            path: None,
            is_exact: false,
            is_stripped: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ZoneKind {
    Requests,
    Connections,
}

/// The kind and the name of a zone of `limit_req` or `limit_conn`.
pub(super) type ZoneId<'d> = (ZoneKind, &'d str);

/// The `http` block: what all servers share.
#[derive(Debug, Default)]
pub(super) struct HttpBlock<'d> {
    directives: &'d [Directive],
    pub(super) zones: BTreeMap<ZoneId<'d>, &'d Directive>,
    /// Kinds and names of zones that a location uses.
    pub(super) used_zones: RefCell<BTreeSet<(ZoneKind, String)>>,
    /// By the names of their variables.
    maps: BTreeMap<&'d str, VariableMap<'d>>,
    upstreams: BTreeMap<&'d str, &'d Directive>,
}

impl<'d> HttpBlock<'d> {
    pub(super) fn new(directives: &'d [Directive], notes: &mut Notes) -> HttpBlock<'d> {
        let mut http = HttpBlock {
            directives,
            ..HttpBlock::default()
        };
        for one in directives {
            match one.name.as_str() {
                "limit_req_zone" => http.add_zone(ZoneKind::Requests, one),
                "limit_conn_zone" => http.add_zone(ZoneKind::Connections, one),
                "map" | "geo" => http.add_map(one, notes),
                "upstream" => {
                    http.upstreams.insert(one.arg(0), one);
                }
                _ => {}
            }
        }
        http
    }

    fn add_zone(&mut self, kind: ZoneKind, one: &'d Directive) {
        if let Some(name) = one.option("zone=") {
            let name = name.split(':').next().unwrap_or(name);
            self.zones.insert((kind, name), one);
        }
    }

    fn add_map(&mut self, one: &'d Directive, notes: &mut Notes) {
        let map = match (one.name.as_str(), one.args.len()) {
            ("geo", 1) => VariableMap::Geo(one),
            ("geo", 2) if one.arg(0) == "$remote_addr" => VariableMap::Geo(one),
            ("map", 2) => VariableMap::Map(one),
            _ => return one.note_lost(notes, "only addresses of clients can be grouped"),
        };
        if let Some(name) = one.args.last().and_then(|name| name.strip_prefix('$')) {
            self.maps.insert(name, map);
        }
    }

    pub(super) fn map(&self, variable: &str) -> Option<VariableMap<'d>> {
        self.maps.get(variable).copied()
    }

    pub(super) fn upstream(&self, name: &str) -> Option<&'d Directive> {
        self.upstreams.get(name).copied()
    }

    /// Whether a directive is in `http` itself and not in a block of it.
    pub(super) fn is_own(&self, one: &Directive) -> bool {
        self.directives.iter().any(|own| std::ptr::eq(own, one))
    }
}

/// A variable that is computed from another value.
#[derive(Clone, Copy, Debug)]
pub(super) enum VariableMap<'d> {
    /// `geo`: computed from the client's address.
    Geo(&'d Directive),
    /// `map`: computed from a text.
    Map(&'d Directive),
}

/// A line of a `map` or `geo`.
#[derive(Clone, Copy, Debug)]
pub(super) struct MapLine<'d> {
    pub(super) pattern: &'d str,
    pub(super) value: &'d str,
}

impl<'d> VariableMap<'d> {
    pub(super) fn directive(self) -> &'d Directive {
        match self {
            VariableMap::Geo(one) | VariableMap::Map(one) => one,
        }
    }

    /// Returns the name of the variable that it is computed from. A `geo` may name none.
    pub(super) fn source(self) -> &'d str {
        let source = self.directive().arg(0);
        source.strip_prefix('$').unwrap_or_default()
    }

    /// Returns the value where no line matches.
    pub(super) fn default(self) -> &'d str {
        let lines = self.directive().inner();
        let default = lines.iter().find(|line| line.name == "default");
        default.map_or("", |line| line.arg(0))
    }

    pub(super) fn lines(self) -> impl Iterator<Item = MapLine<'d>> {
        let other = [
            "default",
            "include",
            "hostnames",
            "volatile",
            "ranges",
            "delete",
            "proxy",
        ];
        let lines = self.directive().inner().iter();
        let lines = lines.filter(move |line| !other.contains(&line.name.as_str()));
        lines.map(|line| MapLine {
            pattern: &line.name,
            value: line.arg(0),
        })
    }

    /// Returns the networks of a `geo` with their values; `None` if a line has no network.
    pub(super) fn networks(self) -> Option<Vec<(IpNet, &'d str)>> {
        let network = |line: MapLine<'d>| {
            let net = line.pattern.parse::<IpNet>().ok();
            let net =
                net.or_else(|| Some(line.pattern.parse::<std::net::IpAddr>().ok()?.into()))?;
            Some((net.trunc(), line.value))
        };
        self.lines().map(network).collect()
    }
}
