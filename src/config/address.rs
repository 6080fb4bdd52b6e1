//! Where things are: addresses to listen on, networks, upstream and store URLs.
//!
//! Pure: text in, parts out. An error never repeats a URL, which may carry a password; what it says
//! after a `;` is what to write instead.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;

use super::{Listen, RedisAddress, RedisSettings, ServerAddress, StoreKind};
use crate::route::host_of;

/// What is wrong with an address: a label, and after a `;` the help.
type Wrong = &'static str;

/// Reads `:8080`, `127.0.0.1:8080`, `[::]:8080` or `unix:/run/proxy.sock`.
pub(super) fn listen(text: &str) -> Result<Listen, Wrong> {
    if let Some(path) = text.strip_prefix("unix:") {
        return socket_path(path).map(Listen::Unix);
    }
    if let Some(port) = text.strip_prefix(':') {
        let port = port
            .parse()
            .map_err(|_| "a port is a number from 0 to 65535")?;
        return Ok(Listen::Tcp(SocketAddr::new(
            IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            port,
        )));
    }
    if let Ok(address) = text.parse() {
        return Ok(Listen::Tcp(address));
    }
    Err(if text.parse::<u16>().is_ok() {
        "this is a port only; put a colon before it: `:8080`"
    } else if text.parse::<IpAddr>().is_ok() {
        "the port is missing; write for example `127.0.0.1:8080` or `[::1]:8080`"
    } else if text.contains("://") {
        "this is a URL; write an address and a port: `127.0.0.1:8080`"
    } else if text.starts_with("localhost") {
        "a name is not an address; write `127.0.0.1:8080`"
    } else {
        "neither an address with a port nor a socket; \
         write `:8080`, `127.0.0.1:8080`, `[::1]:8080` or `unix:/run/proxy.sock`"
    })
}

/// Reads `10.0.0.0/8`, or one address.
pub(super) fn network(text: &str) -> Result<IpNet, Wrong> {
    if let Ok(net) = text.parse::<IpNet>() {
        return Ok(net.trunc());
    }
    text.parse::<IpAddr>()
        .map(IpNet::from)
        .map_err(|_| "neither an address nor a network; write for example `10.0.0.0/8`")
}

/// Whether a text can only be meant as a server's address: upstreams' names have no `:` and no `/`.
pub(super) fn is_server(text: &str) -> bool {
    text.contains([':', '/'])
}

/// Reads `http://10.0.1.10:3000` or `unix:/run/app.sock`.
pub(super) fn server(text: &str) -> Result<ServerAddress, Wrong> {
    if let Some(path) = text.strip_prefix("unix:") {
        return socket_path(path).map(ServerAddress::Unix);
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err("the scheme is missing; write for example `http://127.0.0.1:3000`");
    };
    match scheme {
        "http" => {}
        "https" => return Err("https to upstreams is not supported yet; use `http://`"),
        "h2c" | "h2" => return Err("HTTP/2 to upstreams is not supported yet; use `http://`"),
        _ => return Err("no such scheme; write `http://HOST:PORT` or `unix:PATH`"),
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    if !matches!(rest, "" | "/") {
        return Err("an upstream is a server without a path; requests keep their own path");
    }
    if authority.contains('@') {
        return Err("an upstream's URL carries no user");
    }
    let (host, port) = host_and_port(authority, 80)?;
    Ok(ServerAddress::Http(host, port))
}

/// How an upstream that is given as a URL is called: its address in one spelling.
pub(super) fn server_name(server: &ServerAddress) -> String {
    match server {
        ServerAddress::Http(host, 80) => format!("http://{}", bracketed(host)),
        ServerAddress::Http(host, port) => format!("http://{}:{port}", bracketed(host)),
        ServerAddress::Unix(path) => format!("unix:{}", path.display()),
    }
}

fn bracketed(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

/// Reads `memory:`, `redis://[user:password@]host[:port][/database]` or `redis+unix:///path`.
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
    match scheme {
        "redis" | "valkey" => redis(rest).map(StoreKind::Redis),
        "rediss" | "valkeys" => Err("Redis over TLS is not supported yet; use `redis://`"),
        "redis+sentinel" => Err("Sentinel is not supported yet; use `redis://`"),
        "redis+cluster" => Err("Redis Cluster is not supported yet; use `redis://`"),
        _ => Err("no such store; write `memory:`, `redis://HOST:6379` or `redis+unix:///PATH`"),
    }
}

fn redis_socket(text: &str) -> Result<RedisSettings, Wrong> {
    let (path, database) = match text.split_once("?db=") {
        Some((path, number)) => (path, database(number)?),
        None => (text, 0),
    };
    let address = RedisAddress::Unix(socket_path(path)?);
    Ok(RedisSettings {
        address,
        database,
        username: None,
        password: None,
    })
}

fn redis(rest: &str) -> Result<RedisSettings, Wrong> {
    if rest.contains(['?', '#']) {
        return Err("a store's URL has no `?` and no `#`; \
                    in a password write `%3F` and `%23`, or use `password_file`");
    }
    let (rest, number) = match rest.rfind('/') {
        // A slash in the password, before the last `@`, is not the database's.
        Some(at) if !rest[at..].contains('@') => (&rest[..at], &rest[at + 1..]),
        _ => (rest, ""),
    };
    let (user, authority) = match rest.rsplit_once('@') {
        Some((user, authority)) => (Some(user), authority),
        None => (None, rest),
    };
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
    let (host, port) = host_and_port(authority, 6379)?;
    let database = if number.is_empty() {
        0
    } else {
        database(number)?
    };
    Ok(RedisSettings {
        address: RedisAddress::Tcp(host, port),
        database,
        username,
        password,
    })
}

fn database(text: &str) -> Result<i64, Wrong> {
    let number: Option<u32> = text.parse().ok().filter(|number| *number < 1 << 16);
    number
        .map(i64::from)
        .ok_or("the database is a number from 0 to 65535")
}

/// Host in lower case and without brackets, and port.
fn host_and_port(authority: &str, default: u16) -> Result<(String, u16), Wrong> {
    if authority.is_empty() {
        return Err("the host is missing");
    }
    let after_brackets = authority.rfind(']').map_or(0, |at| at + 1);
    let port = match authority[after_brackets..].rsplit_once(':') {
        None => default,
        Some((_, text)) => text
            .parse()
            .ok()
            .filter(|port| *port > 0)
            .ok_or("a port is a number from 1 to 65535")?,
    };
    let host = host_of(authority).map_err(|_| "not a host name or address")?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Ok((host.to_owned(), port))
}

fn socket_path(path: &str) -> Result<PathBuf, Wrong> {
    // What the kernel's sockaddr_un holds.
    const MAX_PATH: usize = 107;
    match path.len() {
        0 => Err("the socket's path is missing; write for example `unix:/run/app.sock`"),
        1..=MAX_PATH if !path.contains('\0') => Ok(PathBuf::from(path)),
        _ => Err("a socket's path has at most 107 bytes"),
    }
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

    fn tcp(text: &str) -> Listen {
        Listen::Tcp(text.parse().unwrap())
    }

    #[test]
    fn listen_addresses_are_read() {
        assert_eq!(listen(":8080"), Ok(tcp("[::]:8080")));
        assert_eq!(listen("[::]:8080"), Ok(tcp("[::]:8080")));
        assert_eq!(listen("0.0.0.0:80"), Ok(tcp("0.0.0.0:80")));
        assert_eq!(listen("127.0.0.1:0"), Ok(tcp("127.0.0.1:0")));
        assert_eq!(
            listen("unix:/run/p.sock"),
            Ok(Listen::Unix("/run/p.sock".into()))
        );
        for wrong in [
            "8080",
            "localhost:8080",
            ":99999",
            "::1",
            "http://:8080",
            "unix:",
            "",
        ] {
            assert!(listen(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn networks_are_read() {
        assert_eq!(network("10.1.2.3/8").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(network("10.1.2.3").unwrap().to_string(), "10.1.2.3/32");
        assert_eq!(network("::1").unwrap().to_string(), "::1/128");
        assert!(network("10.0.0.0/33").is_err());
        assert!(network("example.com").is_err());
    }

    #[test]
    fn servers_are_read() {
        let http = |host: &str, port| Ok(ServerAddress::Http(host.to_owned(), port));
        assert_eq!(server("http://127.0.0.1:3000"), http("127.0.0.1", 3000));
        assert_eq!(server("http://App.Local/"), http("app.local", 80));
        assert_eq!(server("http://[::1]:3000"), http("::1", 3000));
        assert_eq!(server("http://[::1]"), http("::1", 80));
        assert_eq!(
            server("unix:/run/a.sock"),
            Ok(ServerAddress::Unix("/run/a.sock".into()))
        );
        for wrong in [
            "localhost:3000",
            "https://a",
            "http://",
            "http://a/b",
            "http://a?b",
            "http://u@a",
            "http://a:0",
            "http://a:b",
            "http://a b",
            "ftp://a",
        ] {
            assert!(server(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn stores_are_read() {
        let redis = |text| match store(text) {
            Ok(StoreKind::Redis(settings)) => settings,
            _ => panic!("{text}"),
        };
        assert!(matches!(store("memory:"), Ok(StoreKind::Memory)));
        let plain = redis("redis://localhost");
        assert_eq!(plain.address, RedisAddress::Tcp("localhost".into(), 6379));
        assert_eq!(
            (plain.database, plain.username, plain.password),
            (0, None, None)
        );
        let full = redis("redis://app:s%40:/crt@[::1]:7000/3");
        assert_eq!(full.address, RedisAddress::Tcp("::1".into(), 7000));
        assert_eq!(full.database, 3);
        assert_eq!(full.username.as_deref(), Some("app"));
        assert_eq!(full.password.as_deref(), Some("s@:/crt"));
        assert_eq!(redis("redis://:pw@h/").password.as_deref(), Some("pw"));
        let socket = redis("redis+unix:///run/redis.sock?db=2");
        assert_eq!(socket.address, RedisAddress::Unix("/run/redis.sock".into()));
        assert_eq!(socket.database, 2);
        assert_eq!(
            redis("unix:/run/r").address,
            RedisAddress::Unix("/run/r".into())
        );
    }

    #[test]
    fn stores_of_later_versions_say_so() {
        for later in ["rediss://h", "redis+sentinel://h/m", "redis+cluster://h"] {
            assert!(
                store(later).is_err_and(|why| why.contains("not supported yet")),
                "{later}"
            );
        }
        for wrong in [
            "redis",
            "redis://",
            "redis://h/x",
            "redis://u@h",
            "redis://h:p",
            "mem:",
        ] {
            assert!(store(wrong).is_err(), "{wrong}");
        }
    }
}
