//! The way to Redis: its servers, the login, TLS, and the URL that names them.
//!
//! Pure: text in, parts out. An error never repeats a URL, which may carry a password. The part of
//! an error after a `;` is its help.

use std::fmt;
use std::path::PathBuf;

use super::address::{host_and_port, socket_path};
use super::{ClientTls, Secret};

/// Hosts of a URL, at most: sentinels or seeds of a cluster.
const MAX_HOSTS: usize = 64;

/// The way to Redis. `Debug` and error texts never show a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSettings {
    pub topology: RedisTopology,
    pub database: i64,
    pub username: Option<String>,
    pub password: Option<Secret<String>>,
    /// TLS to every server, sentinels too; `None` for plain connections.
    pub tls: Option<Box<ClientTls>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisTopology {
    Single(RedisAddress),
    /// The master that sentinels name.
    Sentinel(SentinelSettings),
    /// A cluster's nodes, by slot.
    Cluster {
        /// The nodes that are asked for the others; at least one, all `Tcp`.
        seeds: Vec<RedisAddress>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentinelSettings {
    /// At least one, all `Tcp`.
    pub addresses: Vec<RedisAddress>,
    pub master: String,
    pub username: Option<String>,
    pub password: Option<Secret<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RedisAddress {
    /// Host name or address (IPv6 without brackets), and port.
    Tcp(String, u16),
    Unix(PathBuf),
}

impl RedisTopology {
    pub fn addresses(&self) -> &[RedisAddress] {
        match self {
            RedisTopology::Single(address) => std::slice::from_ref(address),
            RedisTopology::Sentinel(sentinels) => &sentinels.addresses,
            RedisTopology::Cluster { seeds } => seeds,
        }
    }
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RedisAddress::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            RedisAddress::Tcp(host, port) => write!(f, "{host}:{port}"),
            RedisAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl fmt::Display for RedisTopology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self
            .addresses()
            .iter()
            .map(RedisAddress::to_string)
            .collect();
        let all = all.join(",");
        match self {
            RedisTopology::Single(_) => f.write_str(&all),
            RedisTopology::Sentinel(one) => write!(f, "sentinel {all}/{}", one.master),
            RedisTopology::Cluster { .. } => write!(f, "cluster {all}"),
        }
    }
}

const NO_SUCH_STORE: &str = "no such store; write `memory:`, `redis://HOST:6379`, \
    `rediss://HOST:6379`, `redis+unix:///PATH` or `redis+sentinel://HOST:26379/MASTER`";

/// Parses `memory:`, which is `None`, `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`,
/// `redis+unix:///PATH`, `redis+sentinel://[USER:PASSWORD@]HOST[:PORT],../MASTER[/DATABASE]` or
/// `redis+cluster://[USER:PASSWORD@]HOST[:PORT],..`; `rediss` is the same over TLS.
pub(super) fn parse_url(text: &str) -> Result<Option<RedisSettings>, &'static str> {
    if text == "memory:" {
        return Ok(None);
    }
    let socket = text.strip_prefix("redis+unix:");
    if let Some(path) = socket.or_else(|| text.strip_prefix("unix:")) {
        return parse_socket(path.strip_prefix("//").unwrap_or(path)).map(Some);
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err("not a store's URL; write `memory:` or `redis://HOST:6379`");
    };
    let (family, kind) = scheme.split_once('+').unwrap_or((scheme, "single"));
    let tls = match family {
        "redis" | "valkey" => None,
        "rediss" | "valkeys" => Some(Box::default()),
        _ => return Err(NO_SUCH_STORE),
    };
    let parts = UrlParts::split(rest)?;
    let (topology, database) = match kind {
        "single" => {
            let (host, port) = host_and_port(parts.hosts, 6379)?;
            let address = RedisAddress::Tcp(host, port);
            (RedisTopology::Single(address), parts.path)
        }
        "sentinel" => {
            let (master, database) = parts.path.split_once('/').unwrap_or((parts.path, ""));
            (
                RedisTopology::Sentinel(sentinels(&parts, master)?),
                database,
            )
        }
        "cluster" if matches!(parts.path, "" | "0") => {
            let seeds = parse_hosts(parts.hosts, 6379)?;
            (RedisTopology::Cluster { seeds }, "")
        }
        "cluster" => return Err("a cluster has one database, 0; leave the number out"),
        _ => return Err(NO_SUCH_STORE),
    };
    Ok(Some(RedisSettings {
        topology,
        database: parse_database(database)?,
        username: parts.username,
        password: parts.password,
        tls,
    }))
}

/// Joins the URLs of one store. Only their hosts may differ.
pub(super) fn join(
    first: Option<RedisSettings>,
    next: Option<RedisSettings>,
) -> Result<Option<RedisSettings>, &'static str> {
    let (Some(mut all), Some(mut more)) = (first, next) else {
        return Err("the embedded store has one URL; give the Redis store's alone");
    };
    let hosts = match (&mut all.topology, &mut more.topology) {
        (RedisTopology::Sentinel(all), RedisTopology::Sentinel(more)) => {
            Some((&mut all.addresses, &mut more.addresses))
        }
        (RedisTopology::Cluster { seeds }, RedisTopology::Cluster { seeds: more }) => {
            Some((seeds, more))
        }
        _ => None,
    };
    let Some((hosts, others)) = hosts else {
        return Err("one server has one URL; several are for \
                    `redis+sentinel://` and `redis+cluster://`");
    };
    let added = std::mem::replace(others, hosts.clone());
    if all != more {
        return Err("differs from the first URL; only the host may differ");
    }
    match &mut all.topology {
        RedisTopology::Sentinel(sentinels) => sentinels.addresses.extend(added),
        RedisTopology::Cluster { seeds } => seeds.extend(added),
        RedisTopology::Single(_) => {}
    }
    Ok(Some(all))
}

fn parse_socket(text: &str) -> Result<RedisSettings, &'static str> {
    let (path, database) = text.split_once("?db=").unwrap_or((text, ""));
    let address = RedisAddress::Unix(socket_path(path)?);
    Ok(RedisSettings {
        topology: RedisTopology::Single(address),
        database: parse_database(database)?,
        username: None,
        password: None,
        tls: None,
    })
}

fn sentinels(parts: &UrlParts<'_>, master: &str) -> Result<SentinelSettings, &'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if master.is_empty() {
        return Err("the master's name is missing; write `redis+sentinel://HOST:26379/MASTER`");
    }
    if !master.bytes().all(fits) {
        return Err("a master's name has letters, digits, `.`, `_` and `-`");
    }
    Ok(SentinelSettings {
        addresses: parse_hosts(parts.hosts, 26379)?,
        master: master.to_owned(),
        username: None,
        password: None,
    })
}

/// The parts of a URL after `://`.
struct UrlParts<'t> {
    username: Option<String>,
    password: Option<Secret<String>>,
    hosts: &'t str,
    /// Without its first slash.
    path: &'t str,
}

impl UrlParts<'_> {
    fn split(rest: &str) -> Result<UrlParts<'_>, &'static str> {
        if rest.contains(['?', '#']) {
            return Err("a store's URL has no `?` and no `#`; \
                        in a password write `%3F` and `%23`, or use `password_file`");
        }
        // The last `@`: a password may hold others, and slashes.
        let (user, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (name, password) = user.split_once(':').unwrap_or((user, ""));
        let (username, password) = (
            percent_decoded(name)?,
            percent_decoded(password)?.map(Secret),
        );
        if username.is_some() && password.is_none() {
            return Err(
                "a user without a password; write `redis://USER:PASSWORD@HOST`, \
                        or `username` and `password_file`",
            );
        }
        Ok(UrlParts {
            username,
            password,
            hosts,
            path,
        })
    }
}

fn parse_hosts(hosts: &str, port: u16) -> Result<Vec<RedisAddress>, &'static str> {
    let mut addresses = Vec::new();
    for host in hosts.split(',') {
        let (host, port) = host_and_port(host, port)?;
        addresses.push(RedisAddress::Tcp(host, port));
    }
    match addresses.len() > MAX_HOSTS {
        true => Err("more than 64 hosts; a few are enough"),
        false => Ok(addresses),
    }
}

/// An empty text is database 0.
fn parse_database(text: &str) -> Result<i64, &'static str> {
    if text.is_empty() {
        return Ok(0);
    }
    let number = text.parse::<u16>().map(i64::from);
    number.map_err(|_| "the database is a number from 0 to 65535")
}

/// `None` for an empty text.
fn percent_decoded(text: &str) -> Result<Option<String>, &'static str> {
    const WRONG: &str = "`%` in a user or password must begin an escape; write `%25`";
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(rest.next()), digit(rest.next())) else {
            return Err(WRONG);
        };
        bytes.push(u8::try_from(high * 16 + low).map_err(|_| WRONG)?);
    }
    let text = String::from_utf8(bytes).map_err(|_| "a user or password that is not UTF-8")?;
    Ok((!text.is_empty()).then_some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn redis(text: &str) -> RedisSettings {
        match parse_url(text) {
            Ok(Some(settings)) => settings,
            _ => panic!("{text}"),
        }
    }

    fn at(host: &str, port: u16) -> RedisAddress {
        RedisAddress::Tcp(host.to_owned(), port)
    }

    fn one(address: RedisAddress) -> RedisTopology {
        RedisTopology::Single(address)
    }

    #[test]
    fn single_servers_are_read() {
        assert!(matches!(parse_url("memory:"), Ok(None)));
        let plain = redis("redis://localhost");
        assert_eq!(plain.topology, one(at("localhost", 6379)));
        assert_eq!(
            (plain.database, plain.username, plain.password, plain.tls),
            (0, None, None, None)
        );
        let full = redis("redis://app:s%40:/crt@[::1]:7000/3");
        assert_eq!(full.topology, one(at("::1", 7000)));
        assert_eq!(full.database, 3);
        assert_eq!(full.username.as_deref(), Some("app"));
        assert_eq!(full.password.as_deref(), Some("s@:/crt"));
        assert_eq!(redis("redis://:pw@h/").password.as_deref(), Some("pw"));
        assert!(redis("rediss://h").tls.is_some());
        assert_eq!(redis("valkeys://h"), redis("rediss://h"));
    }

    #[test]
    fn sockets_are_read() {
        let socket = redis("redis+unix:///run/redis.sock?db=2");
        assert_eq!(
            socket.topology,
            one(RedisAddress::Unix("/run/redis.sock".into()))
        );
        assert_eq!(socket.database, 2);
        assert_eq!(
            redis("unix:/run/r").topology,
            one(RedisAddress::Unix("/run/r".into()))
        );
    }

    #[test]
    fn sentinels_are_read() {
        let three = redis("redis+sentinel://app:a,b@h1,H2:5000,[::1]:26380/my-master/2");
        let RedisTopology::Sentinel(sentinels) = &three.topology else {
            panic!("{three:?}")
        };
        assert_eq!(
            sentinels.addresses,
            [at("h1", 26379), at("h2", 5000), at("::1", 26380)]
        );
        assert_eq!(sentinels.master, "my-master");
        assert_eq!((three.database, three.tls), (2, None));
        assert_eq!(three.password.as_deref(), Some("a,b"));
        assert!(redis("rediss+sentinel://h/m").tls.is_some());
    }

    #[test]
    fn clusters_are_read() {
        let cluster = redis("redis+cluster://:pw@h1:7000,h2");
        let seeds = vec![at("h1", 7000), at("h2", 6379)];
        assert_eq!(cluster.topology, RedisTopology::Cluster { seeds });
        assert_eq!(cluster.password.as_deref(), Some("pw"));
    }

    #[test]
    fn urls_of_one_store_are_joined() {
        let join = |first: &str, next: &str| {
            super::join(parse_url(first).unwrap(), parse_url(next).unwrap())
        };
        assert!(
            join("redis+sentinel://h1/m/1", "redis+sentinel://h2/m/1")
                == parse_url("redis+sentinel://h1,h2/m/1")
        );
        assert!(
            join("rediss+cluster://h1", "rediss+cluster://h2:1")
                == parse_url("rediss+cluster://h1,h2:1")
        );
        for (first, next) in [
            ("redis+sentinel://h1/m", "redis+sentinel://h2/n"),
            ("redis+sentinel://h1/m", "rediss+sentinel://h2/m"),
            ("redis+sentinel://h1/m", "redis+cluster://h2"),
            ("redis+cluster://h1", "redis+cluster://:pw@h2"),
            ("redis://h1", "redis://h2"),
            ("memory:", "redis+cluster://h2"),
        ] {
            assert!(join(first, next).is_err(), "{first} {next}");
        }
    }

    #[test]
    fn what_is_no_store_is_refused() {
        for wrong in [
            "redis",
            "redis://",
            "redis://h/x",
            "redis://u@h",
            "redis://h:p",
            "redis://h1,h2",
            "redis+sentinel://h",
            "redis+sentinel://h/",
            "redis+sentinel://h/m/x",
            "redis+sentinel://h,,i/m",
            "redis+sentinel:///m",
            "redis+sentinel://h/m m",
            "redis+cluster://",
            "redis+cluster://h/1",
            "redis+cloud://h",
            "rediss+unix:///run/r",
            "mem:",
        ] {
            assert!(parse_url(wrong).is_err(), "{wrong}");
        }
    }
}
