//! `map` and `geo`: variables that are made of others, as far as keys of limits need them.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::syntax::Directive;
use crate::notes::Notes;

/// Every one, by its variable.
#[derive(Debug, Default)]
pub(super) struct Maps<'d> {
    by_name: BTreeMap<&'d str, Made<'d>>,
}

/// What a variable is made of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Made<'d> {
    /// `geo`: by the client's address.
    Geo(&'d Directive),
    /// `map`: by a text.
    Map(&'d Directive),
}

impl<'d> Maps<'d> {
    pub(super) fn of(http: &'d [Directive], notes: &mut Notes) -> Maps<'d> {
        let mut maps = Maps::default();
        for one in http {
            let name = one.args.last().and_then(|name| name.strip_prefix('$'));
            let made = match (one.name.as_str(), one.args.len()) {
                ("geo", 1) => Made::Geo(one),
                ("geo", 2) if one.arg(0) == "$remote_addr" => Made::Geo(one),
                ("map", 2) => Made::Map(one),
                ("geo" | "map", _) => {
                    notes.lost(
                        &one.place,
                        &one.line(),
                        "only addresses of clients can be grouped",
                    );
                    continue;
                }
                _ => continue,
            };
            if let Some(name) = name {
                maps.by_name.insert(name, made);
            }
        }
        maps
    }

    pub(super) fn get(&self, name: &str) -> Option<Made<'d>> {
        self.by_name.get(name).copied()
    }
}

impl<'d> Made<'d> {
    pub(super) fn directive(self) -> &'d Directive {
        match self {
            Made::Geo(one) | Made::Map(one) => one,
        }
    }

    /// What it is made of: `$limit`; of an address nothing is said.
    pub(super) fn source(self) -> &'d str {
        self.directive().arg(0)
    }

    /// What it is where no line fits.
    pub(super) fn default(self) -> &'d str {
        let lines = self.directive().inner();
        let default = lines.iter().find(|line| line.name == "default");
        default.map_or("", |line| line.arg(0))
    }

    /// Its lines: what fits, and what it is then.
    pub(super) fn lines(self) -> impl Iterator<Item = (&'d str, &'d str)> {
        let lines = self.directive().inner().iter();
        let is_line = |line: &&Directive| {
            !matches!(
                line.name.as_str(),
                "default" | "include" | "hostnames" | "volatile" | "ranges" | "delete" | "proxy"
            )
        };
        lines
            .filter(is_line)
            .map(|line| (line.name.as_str(), line.arg(0)))
    }

    /// The networks of a `geo` and their values; `None` where one is none.
    pub(super) fn networks(self) -> Option<Vec<(IpNet, &'d str)>> {
        let network = |(text, value): (&str, &'d str)| {
            let net = text.parse::<IpNet>().ok();
            let net = net.or_else(|| text.parse::<std::net::IpAddr>().ok().map(IpNet::from))?;
            Some((net.trunc(), value))
        };
        self.lines().map(network).collect()
    }
}
