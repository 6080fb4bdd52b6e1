//! Names of servers that nginx ignores, because an earlier server of the address has them.

use std::collections::BTreeMap;

use super::ServerBlock;
use crate::files::SourceLine;
use crate::patterns;

/// A name at one address, which one server has.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NameAtAddress {
    address: String,
    host: String,
}

/// Removes names that earlier servers have at each address of a server, and servers without a name
/// that is left.
pub(super) fn remove_repeated_names(servers: &mut Vec<ServerBlock<'_>>) {
    let mut first_servers: BTreeMap<NameAtAddress, usize> = BTreeMap::new();
    let block_of = |server: &ServerBlock<'_>| server.scope.block().place.clone();
    let places: Vec<SourceLine> = servers.iter().map(block_of).collect();
    let mut index = 0;
    servers.retain_mut(|server| {
        let own = index;
        index += 1;
        let mut ignored = Vec::new();
        let ServerBlock { hosts, listens, .. } = server;
        hosts.retain(|host| {
            let exact = host.as_ref().filter(|host| is_compared(host));
            let Some(host) = exact else { return true };
            let firsts = listens.iter().map(|listen| {
                let (address, host) = (listen.address.clone(), host.clone());
                let name = NameAtAddress { address, host };
                *first_servers.entry(name).or_insert(own)
            });
            let firsts: Vec<usize> = firsts.collect();
            let is_ignored = !firsts.is_empty() && !firsts.contains(&own);
            if is_ignored {
                let line = places[firsts[0]].line;
                ignored.push(format!("nginx ignores {host}: line {line} has this name"));
            }
            !is_ignored
        });
        if let Some(named) = server.scope.first("server_name") {
            for why in &ignored {
                named.needless(why);
            }
        }
        // Without a name, a default server still has the requests for unknown hosts.
        let is_default = server.listens.iter().any(|listen| listen.is_default);
        let is_kept = ignored.is_empty() || !server.hosts.is_empty() || is_default;
        if !is_kept {
            let why = "nginx ignores it: earlier servers have all its names";
            server.scope.block().needless(why);
        }
        is_kept
    });
}

/// Whether nginx compares a name with others. It tries expressions in the order of the file.
fn is_compared(host: &str) -> bool {
    host == patterns::NO_HOST || !host.starts_with("regex:")
}
