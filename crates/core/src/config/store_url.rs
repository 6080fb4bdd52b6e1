//! A store's URL, `[store] url`: which kind of store, which servers, and as whom.
//!
//! Pure: text in, parts out. An error never repeats a URL, which may carry a password; what it says
//! after a `;` is what to write instead.

use super::StoreKind;
use super::address::{Wrong, host_and_port, socket_path};
use super::redis::{RedisAddress, RedisSettings, RedisTopology, Sentinels};

/// More than any set of sentinels or list of seeds needs.
const MAX_HOSTS: usize = 64;

/// Reads `memory:`, `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`, `redis+unix:///PATH`,
/// `redis+sentinel://[USER:PASSWORD@]HOST[:PORT],../MASTER[/DATABASE]` or
/// `redis+cluster://[USER:PASSWORD@]HOST[:PORT],..`; `rediss` is the same over TLS.
pub(super) fn store(text: &str) -> Result<StoreKind, Wrong> {
    if text == "memory:" {
        return Ok(StoreKind::Memory);
    }
    if let Some(path) = text
        .strip_prefix("redis+unix:")
        .or_else(|| text.strip_prefix("unix:"))
    {
        return redis_socket(path.strip_prefix("//").unwrap_or(path)).map(StoreKind::Redis);
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err("not a store's URL; write `memory:` or `redis://HOST:6379`");
    };
    let (family, kind) = match scheme.split_once('+') {
        Some((family, kind)) => (family, kind),
        None => (scheme, "single"),
    };
    let tls = match family {
        "redis" | "valkey" => None,
        "rediss" | "valkeys" => Some(Box::default()),
        _ => return Err(NO_SUCH_STORE),
    };
    let settings = match kind {
        "single" => single(rest),
        "sentinel" => sentinel(rest),
        "cluster" => cluster(rest),
        _ => Err(NO_SUCH_STORE),
    };
    settings.map(|settings| StoreKind::Redis(RedisSettings { tls, ..settings }))
}

const NO_SUCH_STORE: Wrong = "no such store; write `memory:`, `redis://HOST:6379`, \
    `rediss://HOST:6379`, `redis+unix:///PATH` or `redis+sentinel://HOST:26379/MASTER`";

/// Joins the URLs of one store, which differ in their hosts alone.
pub(super) fn joined(first: StoreKind, next: StoreKind) -> Result<StoreKind, Wrong> {
    const OTHER: Wrong = "says something else than the first URL; only the host may differ";
    let (StoreKind::Redis(mut all), StoreKind::Redis(mut more)) = (first, next) else {
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
    let added = std::mem::take(others);
    let kept = std::mem::take(hosts);
    if all != more {
        return Err(OTHER);
    }
    let hosts = kept.into_iter().chain(added).collect();
    match &mut all.topology {
        RedisTopology::Sentinel(sentinels) => sentinels.addresses = hosts,
        RedisTopology::Cluster { seeds } => *seeds = hosts,
        RedisTopology::Single(_) => {}
    }
    Ok(StoreKind::Redis(all))
}

fn redis_socket(text: &str) -> Result<RedisSettings, Wrong> {
    let (path, database) = match text.split_once("?db=") {
        Some((path, number)) => (path, database(number)?),
        None => (text, 0),
    };
    let address = RedisAddress::Unix(socket_path(path)?);
    Ok(RedisSettings {
        topology: RedisTopology::Single(address),
        database,
        username: None,
        password: None,
        tls: None,
    })
}

fn single(rest: &str) -> Result<RedisSettings, Wrong> {
    let Parts {
        username,
        password,
        hosts,
        path,
    } = parts(rest)?;
    let (host, port) = host_and_port(hosts, 6379)?;
    Ok(RedisSettings {
        topology: RedisTopology::Single(RedisAddress::Tcp(host, port)),
        database: database(path)?,
        username,
        password,
        tls: None,
    })
}

fn sentinel(rest: &str) -> Result<RedisSettings, Wrong> {
    let Parts {
        username,
        password,
        hosts,
        path,
    } = parts(rest)?;
    let (master, number) = path.split_once('/').unwrap_or((path, ""));
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if master.is_empty() {
        return Err("the master's name is missing; write `redis+sentinel://HOST:26379/MASTER`");
    }
    if !master.bytes().all(fits) {
        return Err("a master's name has letters, digits, `.`, `_` and `-`");
    }
    let sentinels = Sentinels {
        addresses: addresses(hosts, 26379)?,
        master: master.to_owned(),
        username: None,
        password: None,
    };
    Ok(RedisSettings {
        topology: RedisTopology::Sentinel(sentinels),
        database: database(number)?,
        username,
        password,
        tls: None,
    })
}

fn cluster(rest: &str) -> Result<RedisSettings, Wrong> {
    let Parts {
        username,
        password,
        hosts,
        path,
    } = parts(rest)?;
    if !matches!(path, "" | "0") {
        return Err("a cluster has one database, 0; leave the number out");
    }
    Ok(RedisSettings {
        topology: RedisTopology::Cluster {
            seeds: addresses(hosts, 6379)?,
        },
        database: 0,
        username,
        password,
        tls: None,
    })
}

/// What follows `://`.
struct Parts<'t> {
    username: Option<String>,
    password: Option<String>,
    hosts: &'t str,
    /// Without its first slash.
    path: &'t str,
}

fn parts(rest: &str) -> Result<Parts<'_>, Wrong> {
    if rest.contains(['?', '#']) {
        return Err("a store's URL has no `?` and no `#`; \
                    in a password write `%3F` and `%23`, or use `password_file`");
    }
    // The last `@`: a password may hold others, and slashes.
    let (user, rest) = match rest.rsplit_once('@') {
        Some((user, rest)) => (Some(user), rest),
        None => (None, rest),
    };
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (username, password) = match user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
        Some((name, password)) => (decoded(name)?, decoded(password)?),
        None => (None, None),
    };
    if username.is_some() && password.is_none() {
        return Err(
            "a user without a password; write `redis://USER:PASSWORD@HOST`, \
                    or `username` and `password_file`",
        );
    }
    Ok(Parts {
        username,
        password,
        hosts,
        path,
    })
}

fn addresses(hosts: &str, port: u16) -> Result<Vec<RedisAddress>, Wrong> {
    let mut addresses = Vec::new();
    for host in hosts.split(',') {
        let (host, port) = host_and_port(host, port)?;
        addresses.push(RedisAddress::Tcp(host, port));
    }
    if addresses.len() > MAX_HOSTS {
        return Err("more than 64 hosts; a few are enough");
    }
    Ok(addresses)
}

fn database(text: &str) -> Result<i64, Wrong> {
    if text.is_empty() {
        return Ok(0);
    }
    let number: Option<u32> = text.parse().ok().filter(|number| *number < 1 << 16);
    number
        .map(i64::from)
        .ok_or("the database is a number from 0 to 65535")
}

/// Percent-decoded; nothing for an empty text.
fn decoded(text: &str) -> Result<Option<String>, Wrong> {
    const WRONG: Wrong = "`%` in a user or password must begin an escape; write `%25`";
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
        match store(text) {
            Ok(StoreKind::Redis(settings)) => settings,
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
        assert!(matches!(store("memory:"), Ok(StoreKind::Memory)));
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
        let join = |first: &str, next: &str| joined(store(first).unwrap(), store(next).unwrap());
        assert!(
            join("redis+sentinel://h1/m/1", "redis+sentinel://h2/m/1")
                == store("redis+sentinel://h1,h2/m/1")
        );
        assert!(
            join("rediss+cluster://h1", "rediss+cluster://h2:1")
                == store("rediss+cluster://h1,h2:1")
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
            assert!(store(wrong).is_err(), "{wrong}");
        }
    }
}
