//! `admin`, `admin_token_file` and `admin_hosts`: the listener for operators.

use std::net::SocketAddr;

use super::address;
use super::diagnostic::{Code, Diagnostic};
use super::reader::{ConfigReader, Located, values};
use super::section::Section;
use super::values::TextForm;
use super::{Listen, Secret};

/// Bytes of a token, at least: a shorter one can be guessed.
const SHORTEST_TOKEN: usize = 16;

/// The listener for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminSettings {
    /// Its address.
    pub address: SocketAddr,
    /// The token of a file, for requests that change something; otherwise one is made at the start.
    pub token: Option<Secret<Vec<u8>>>,
    /// The names that a request's `Host` may have, beside addresses and `localhost`.
    pub hosts: Vec<String>,
}

/// Reads the three keys at the top of a file.
pub(super) fn read(top: &mut Section<'_>) -> Option<Located<AdminSettings>> {
    let address = top.parse("admin", TextForm::LISTEN, tcp_address);
    let token = top.long_secret("admin_token_file", SHORTEST_TOKEN, "token");
    let host_form = TextForm::new(Code::BadName, "the name of a host");
    let hosts = values(top.parse_list("admin_hosts", host_form, host_name));
    let Some(address) = address else {
        let named = [
            ("admin_token_file", token.is_some()),
            ("admin_hosts", !hosts.is_empty()),
        ];
        let is_absent = !top.has("admin");
        for (key, _) in named.iter().filter(|(_, is_set)| *is_set && is_absent) {
            Diagnostic::new(Code::Contradiction, format!("`{key}` needs `admin`"))
                .at(&top.key_span(key), "")
                .help("write for example `admin = \"127.0.0.1:9180\"` at the top")
                .report_to(top.reader);
        }
        return None;
    };
    if !address.value.ip().is_loopback() && !top.has("admin_token_file") {
        Diagnostic::new(
            Code::OpenAdmin,
            "`admin` is open to others, and has no token",
        )
        .at(&address.span, "other machines can reach this address")
        .help("name a file in `admin_token_file`, or write `admin = \"127.0.0.1:9180\"`")
        .report_to(top.reader);
    }
    Some(address.map(|address| AdminSettings {
        address,
        token: token.map(|token| Secret(token.value)),
        hosts,
    }))
}

/// Reports an `admin` on the port of another line of `listen`: only one of them could be bound.
/// The same address twice is reported elsewhere.
pub(super) fn check_port(
    reader: &ConfigReader<'_>,
    admin: &Located<SocketAddr>,
    listen: &[Located<Listen>],
) {
    let own = admin.value;
    let has_same_port = |line: &&Located<Listen>| match line.value {
        Listen::Tcp(other) => {
            let (a, b) = (own.ip().to_canonical(), other.ip().to_canonical());
            let is_any = a.is_unspecified() || b.is_unspecified();
            own.port() == other.port() && own.port() != 0 && own != other && (a == b || is_any)
        }
        Listen::Unix(_) => false,
    };
    if let Some(line) = listen.iter().find(has_same_port) {
        let message = "`admin` is on the port of `listen`";
        let mut diagnostic = Diagnostic::new(Code::Contradiction, message)
            .at(&admin.span, "only one of them can have the port")
            .help("give it a port of its own: `admin = \"127.0.0.1:9180\"`");
        if !line.span.is_empty() {
            diagnostic = diagnostic.at(&line.span, "clients connect here");
        }
        reader.report(diagnostic);
    }
}

fn tcp_address(text: &str) -> Result<SocketAddr, &'static str> {
    match address::listen(text)? {
        Listen::Tcp(address) => Ok(address),
        Listen::Unix(_) => Err("a socket is no place for a browser; write `127.0.0.1:9180`"),
    }
}

fn host_name(text: &str) -> Result<String, &'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    match !text.is_empty() && text.len() <= 253 && text.bytes().all(fits) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("not the name of a host; without a port: `proxy.internal`"),
    }
}
