//! Addresses to listen on, networks, and upstreams' URLs.
//!
//! Pure: text in, parts out. The part of an error after a `;` is its help.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;

use super::*;
use crate::route::host_of;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerAddress {
    /// Plain HTTP/1.1 over TCP: host name or address (lower case, IPv6 without brackets), and port.
    Http(String, u16),
    /// HTTP/2 or HTTP/1.1 over TLS, as the server prefers: the same.
    Https(String, u16),
    /// Plain HTTP/2 over TCP, known to be spoken: the same.
    H2c(String, u16),
    /// Plain HTTP/1.1 over a unix socket.
    Unix(PathBuf),
}

impl ServerAddress {
    /// The scheme of its URL.
    pub fn scheme(&self) -> &'static str {
        match self {
            ServerAddress::Http(..) => "http",
            ServerAddress::Https(..) => "https",
            ServerAddress::H2c(..) => "h2c",
            ServerAddress::Unix(_) => "unix",
        }
    }

    /// Its host and port, if the host is a name and not an address.
    pub fn name(&self) -> Option<(&str, u16)> {
        self.host_and_port()
            .filter(|(host, _)| host.parse::<IpAddr>().is_err())
    }

    /// The same server at one of its addresses.
    pub fn at(&self, address: SocketAddr) -> ServerAddress {
        let (host, port) = (address.ip().to_string(), address.port());
        match self {
            ServerAddress::Http(..) => ServerAddress::Http(host, port),
            ServerAddress::Https(..) => ServerAddress::Https(host, port),
            ServerAddress::H2c(..) => ServerAddress::H2c(host, port),
            ServerAddress::Unix(path) => ServerAddress::Unix(path.clone()),
        }
    }

    /// Its host and port; a unix socket has none.
    pub fn host_and_port(&self) -> Option<(&str, u16)> {
        match self {
            ServerAddress::Http(host, port)
            | ServerAddress::Https(host, port)
            | ServerAddress::H2c(host, port) => Some((host, *port)),
            ServerAddress::Unix(_) => None,
        }
    }

    /// The same server; `place` resolves the path of a socket.
    pub(super) fn within(self, place: impl FnOnce(PathBuf) -> PathBuf) -> ServerAddress {
        match self {
            ServerAddress::Unix(path) => ServerAddress::Unix(place(path)),
            other => other,
        }
    }

    /// The value of `Host` for a request that came without one. It leaves out the scheme's port.
    pub fn authority(&self) -> String {
        let Some((host, port)) = self.host_and_port() else {
            return "localhost".to_owned();
        };
        let usual = match self {
            ServerAddress::Https(..) => 443,
            _ => 80,
        };
        match port == usual {
            true => bracketed(host).into_owned(),
            false => format!("{}:{port}", bracketed(host)),
        }
    }
}

/// A host as it stands in a URL: an IPv6 address in brackets.
fn bracketed(host: &str) -> Cow<'_, str> {
    match host.contains(':') {
        true => Cow::Owned(format!("[{host}]")),
        false => Cow::Borrowed(host),
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.scheme();
        match self {
            ServerAddress::Unix(path) => write!(f, "{scheme}:{}", path.display()),
            ServerAddress::Http(host, port)
            | ServerAddress::Https(host, port)
            | ServerAddress::H2c(host, port) => {
                write!(f, "{scheme}://{}:{port}", bracketed(host))
            }
        }
    }
}

/// Reads `:8080`, `127.0.0.1:8080`, `[::]:8080` or `unix:/run/proxy.sock`.
pub(super) fn listen(text: &str) -> Result<Listen, &'static str> {
    if let Some(path) = text.strip_prefix("unix:") {
        return socket_path(path).map(Listen::Unix);
    }
    if let Some(port) = text.strip_prefix(':') {
        let port = port
            .parse()
            .map_err(|_| "a port is a number from 0 to 65535")?;
        return Ok(Listen::Tcp((Ipv6Addr::UNSPECIFIED, port).into()));
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
pub(super) fn network(text: &str) -> Result<IpNet, String> {
    let net = match text.parse::<IpNet>() {
        Ok(net) => net.trunc(),
        Err(_) => (text.parse::<IpAddr>().map(IpNet::from)).map_err(|_| not_a_network(text))?,
    };
    Ok(unmapped(net))
}

/// The IPv4 network of `::ffff:10.0.0.0/104`: addresses of clients have this form here.
fn unmapped(net: IpNet) -> IpNet {
    let mapped = match net {
        IpNet::V6(net) => net
            .addr()
            .to_ipv4_mapped()
            .zip(net.prefix_len().checked_sub(96)),
        IpNet::V4(_) => None,
    };
    let v4 = mapped.and_then(|(address, bits)| IpNet::new(address.into(), bits).ok());
    v4.unwrap_or(net)
}

/// The reason why a text is no network, and the network that it most likely means.
fn not_a_network(text: &str) -> String {
    if let Some((address, prefix)) = text.split_once('/')
        && let Ok(address) = address.parse::<IpAddr>()
    {
        let most = if address.is_ipv4() { 32 } else { 128 };
        if prefix.parse::<u32>().is_ok_and(|bits| bits > most) {
            let network = if address.is_ipv4() { 24 } else { 64 };
            return format!(
                "a prefix of this kind of address has at most {most} bits; write for example \
                 `{address}/{network}`, or `{address}` for one address"
            );
        }
        let mask = prefix.parse::<IpAddr>();
        if let Some(net) = mask
            .ok()
            .and_then(|mask| IpNet::with_netmask(address, mask).ok())
        {
            return format!(
                "the mask is written as a number of bits; write `{}`",
                net.trunc()
            );
        }
    }
    if text == "localhost" {
        return "a name is no address; write `127.0.0.1`, and `::1` for IPv6".to_owned();
    }
    // `10.*`, `10.1.x.x`, `10.1`, `10.1/16`: the first bytes of an IPv4 address.
    let (first, prefix) = text.split_once('/').unwrap_or((text, ""));
    let bytes: Vec<&str> = first.split('.').collect();
    let known: Vec<&str> = bytes
        .iter()
        .copied()
        .take_while(|byte| byte.parse::<u8>().is_ok())
        .collect();
    let others = &bytes[known.len()..];
    let open = |byte: &&str| matches!(*byte, "*" | "x" | "");
    if (1..4).contains(&known.len()) && bytes.len() <= 4 && others.iter().all(open) {
        let zeros = ".0".repeat(4 - known.len());
        let bits = prefix.parse().ok().filter(|bits: &usize| *bits <= 32);
        return format!(
            "an IPv4 network has four numbers and a prefix; write `{}{zeros}/{}`",
            known.join("."),
            bits.unwrap_or(known.len() * 8)
        );
    }
    "neither an address nor a network; write for example `10.0.0.0/8`".to_owned()
}

/// Whether a text can only be a server's address: names of upstreams have no `:` and no `/`.
pub(super) fn is_server(text: &str) -> bool {
    text.contains([':', '/'])
}

/// Reads `http://10.0.1.10:3000` or `unix:/run/app.sock`.
pub(super) fn server(text: &str) -> Result<ServerAddress, &'static str> {
    if let Some(path) = text.strip_prefix("unix:") {
        return socket_path(path).map(ServerAddress::Unix);
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err("the scheme is missing; write for example `http://127.0.0.1:3000`");
    };
    match scheme {
        "http" | "https" | "h2c" => {}
        "h2" | "grpcs" => return Err("no such scheme; HTTP/2 over TLS is `https://`"),
        "grpc" => return Err("no such scheme; gRPC without TLS is `h2c://`"),
        _ => {
            return Err(
                "no such scheme; write `http://HOST:PORT`, `https://HOST`, `h2c://HOST:PORT` or \
                 `unix:PATH`",
            );
        }
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    if !matches!(rest, "" | "/") {
        return Err("an upstream is a server without a path; requests keep their own path");
    }
    if authority.contains('@') {
        return Err("an upstream's URL carries no user");
    }
    let default = if scheme == "https" { 443 } else { 80 };
    let (host, port) = host_and_port(authority, default)?;
    Ok(match scheme {
        "https" => ServerAddress::Https(host, port),
        "h2c" => ServerAddress::H2c(host, port),
        _ => ServerAddress::Http(host, port),
    })
}

/// The name of an upstream that is given as a URL: its address in one spelling.
pub(super) fn server_name(server: &ServerAddress) -> String {
    match server {
        ServerAddress::Unix(path) => format!("unix:{}", path.display()),
        other => format!("{}://{}", other.scheme(), other.authority()),
    }
}

/// Host in lower case and without brackets, and port.
pub(super) fn host_and_port(authority: &str, default: u16) -> Result<(String, u16), &'static str> {
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

impl Section<'_> {
    /// The addresses to listen on. Without addresses the proxy must have `[tls]`.
    pub(super) fn listen_addresses(&mut self, key: &'static str) -> Vec<Located<Listen>> {
        let default = self.default_text(key).to_owned();
        let texts = self
            .texts(key)
            .unwrap_or_else(|| vec![Located::new(default, &self.span)]);
        if texts.is_empty() && !self.has("tls") && !self.has("decide") {
            self.out_of_range(key, "one or more addresses");
        }
        self.read_listen(key, Some(texts))
    }

    /// Parses addresses to listen on. The path of a socket starts from the file's folder.
    pub(super) fn read_listen(
        &self,
        key: &str,
        texts: Option<Vec<Located<String>>>,
    ) -> Vec<Located<Listen>> {
        let read = |text: &str| {
            Ok::<_, &'static str>(match listen(text)? {
                Listen::Unix(path) => Listen::Unix(fitting_path(self.path(path))?),
                tcp => tcp,
            })
        };
        self.parse_all(key, texts, TextForm::LISTEN, read)
    }

    /// Parses a server. The path of a socket starts from the file's folder.
    pub(super) fn server_at(&self, text: &str) -> Result<ServerAddress, &'static str> {
        match server(text)?.within(|path| self.path(path)) {
            ServerAddress::Unix(path) => fitting_path(path).map(ServerAddress::Unix),
            other => Ok(other),
        }
    }
}

/// What the kernel's sockaddr_un holds.
const MAX_PATH: usize = 107;

/// Refuses a path of a socket that is too long with the folder of the file.
fn fitting_path(path: PathBuf) -> Result<PathBuf, &'static str> {
    match path.as_os_str().len() <= MAX_PATH {
        true => Ok(path),
        false => Err("with the folder of the file, a socket's path has at most 107 bytes"),
    }
}

pub(super) fn socket_path(path: &str) -> Result<PathBuf, &'static str> {
    match path.len() {
        0 => Err("the socket's path is missing; write for example `unix:/run/app.sock`"),
        1..=MAX_PATH if !path.contains('\0') => Ok(PathBuf::from(path)),
        _ => Err("a socket's path has at most 107 bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_a_short_path_with_its_folder() {
        let short = PathBuf::from("a".repeat(MAX_PATH));
        assert_eq!(fitting_path(short.clone()), Ok(short.clone()));
        let long = fitting_path(short.join("b")).unwrap_err();
        assert!(long.contains("107 bytes"), "{long}");
    }

    fn tcp(text: &str) -> Listen {
        Listen::Tcp(text.parse().unwrap())
    }

    #[test]
    fn networks_in_the_form_of_ipv6_mean_those_of_ipv4() {
        for (text, meant) in [
            ("::ffff:192.0.2.1", "192.0.2.1/32"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("::/0", "::/0"),
        ] {
            assert_eq!(network(text), Ok(meant.parse().unwrap()), "{text}");
        }
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
        for (text, help) in [
            (
                "10.0.0.0/33",
                "at most 32 bits; write for example `10.0.0.0/24`",
            ),
            ("::1/129", "at most 128 bits; write for example `::1/64`"),
            ("10.0.0.7/255.0.0.0", "write `10.0.0.0/8`"),
            ("10.*", "write `10.0.0.0/8`"),
            ("10.1.x.x", "write `10.1.0.0/16`"),
            ("10.1.2/24", "write `10.1.2.0/24`"),
            ("10.0.0/8", "write `10.0.0.0/8`"),
            ("localhost", "write `127.0.0.1`"),
            ("10.0.0.1-10.0.0.9", "write for example `10.0.0.0/8`"),
            ("1234", "write for example `10.0.0.0/8`"),
        ] {
            let error = network(text).unwrap_err();
            assert!(error.contains(help), "{text}: {error}");
        }
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
            server("https://App.Local"),
            Ok(ServerAddress::Https("app.local".to_owned(), 443))
        );
        assert_eq!(
            server("h2c://[::1]:50051"),
            Ok(ServerAddress::H2c("::1".to_owned(), 50051))
        );
        assert_eq!(
            server("unix:/run/a.sock"),
            Ok(ServerAddress::Unix("/run/a.sock".into()))
        );
        for wrong in [
            "localhost:3000",
            "h2://a",
            "grpc://a",
            "https://a/b",
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
}
