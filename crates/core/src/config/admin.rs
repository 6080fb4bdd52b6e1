//! `admin`, `admin_token_file` and `admin_hosts`: where operators look in, and who may.

use std::fmt;
use std::net::SocketAddr;

use super::Listen;
use super::address;
use super::diagnostic::{Code, Diagnostic};
use super::reader::{At, Reader};
use super::section::Section;
use super::values::TextForm;

/// Characters of a token, at least: fewer can be guessed.
const SHORTEST_TOKEN: usize = 16;

/// Where operators look in.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminSettings {
    /// Where it listens.
    pub address: SocketAddr,
    /// What whoever writes has to show, where a file says it; else one is made at the start.
    pub token: Option<Vec<u8>>,
    /// Names under which it may be asked, beside addresses and `localhost`.
    pub hosts: Vec<String>,
}

impl fmt::Debug for AdminSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminSettings")
            .field("address", &self.address)
            .field("token", &self.token.as_ref().map(|_| "***"))
            .field("hosts", &self.hosts)
            .finish()
    }
}

/// Reads the three keys at the top of a file.
pub(super) fn read(top: &mut Section<'_>) -> Option<At<AdminSettings>> {
    let address = address(top);
    let token_span = top.key_span("admin_token_file");
    let token = top.secret(None, "admin_token_file");
    let hosts_span = top.key_span("admin_hosts");
    let hosts = hosts(top);
    let Some(address) = address else {
        let named = [
            ("admin_token_file", token_span, token.is_some()),
            ("admin_hosts", hosts_span, !hosts.is_empty()),
        ];
        let is_absent = top.peek("admin").is_none();
        for (key, span, _) in named.iter().filter(|(.., said)| *said && is_absent) {
            let message = format!("`{key}` needs `admin`");
            let diagnostic = Diagnostic::new(Code::Contradiction, message);
            let help = "write for example `admin = \"127.0.0.1:9180\"` at the top";
            top.reader.report(diagnostic.at(span, "").help(help));
        }
        return None;
    };
    if let Some(short) = token
        .as_ref()
        .filter(|one| one.value.len() < SHORTEST_TOKEN)
    {
        let message = "the file of `admin_token_file` cannot be used";
        let diagnostic = Diagnostic::new(Code::SecretFile, message)
            .at(
                &short.span,
                "shorter than 16 bytes: such a token can be guessed",
            )
            .help("make one: `head -c 32 /dev/urandom | base64 > FILE`");
        top.reader.report(diagnostic);
    }
    if token.is_none()
        && !address.value.ip().is_loopback()
        && top.peek("admin_token_file").is_none()
    {
        let message = "`admin` is open to others, and has no token";
        let diagnostic = Diagnostic::new(Code::OpenAdmin, message)
            .at(&address.span, "other machines can reach this address")
            .help("name a file in `admin_token_file`, or write `admin = \"127.0.0.1:9180\"`");
        top.reader.report(diagnostic);
    }
    Some(At {
        value: AdminSettings {
            address: address.value,
            token: token.map(|token| token.value),
            hosts,
        },
        span: address.span,
    })
}

/// Reports an `admin` on the port of another line of `listen`: only one of them could be bound.
/// The same address twice is reported elsewhere.
pub(super) fn stands_apart(reader: &Reader<'_>, admin: &At<AdminSettings>, listen: &[At<Listen>]) {
    let own = admin.value.address;
    let meets = |line: &&At<Listen>| match line.value {
        Listen::Tcp(other) => {
            let (a, b) = (own.ip().to_canonical(), other.ip().to_canonical());
            let is_any = a.is_unspecified() || b.is_unspecified();
            own.port() == other.port() && own.port() != 0 && own != other && (a == b || is_any)
        }
        Listen::Unix(_) => false,
    };
    if let Some(line) = listen.iter().find(meets) {
        let message = "`admin` is on the port of `listen`";
        let diagnostic = Diagnostic::new(Code::Contradiction, message)
            .at(&admin.span, "only one of them can have the port");
        let diagnostic = match line.span.is_empty() {
            true => diagnostic,
            false => diagnostic.at(&line.span, "clients connect here"),
        };
        let help = "give it a port of its own: `admin = \"127.0.0.1:9180\"`";
        reader.report(diagnostic.help(help));
    }
}

fn address(top: &mut Section<'_>) -> Option<At<SocketAddr>> {
    let tcp = |text: &str| match address::listen(text)? {
        Listen::Tcp(address) => Ok(address),
        Listen::Unix(_) => Err("a socket is no place for a browser; write `127.0.0.1:9180`"),
    };
    top.parsed("admin", TextForm::LISTEN, tcp)
}

fn hosts(top: &mut Section<'_>) -> Vec<String> {
    let texts = top.texts("admin_hosts").map(|texts| texts.value);
    let name = |text: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        match !text.is_empty() && text.len() <= 253 && text.bytes().all(fits) {
            true => Ok(text.to_ascii_lowercase()),
            false => Err("not the name of a host; without a port: `proxy.internal`"),
        }
    };
    let kind = TextForm::new(Code::BadName, "the name of a host");
    let read = |text| top.understood("admin_hosts", text, kind, name);
    let names = texts.unwrap_or_default().into_iter().filter_map(read);
    names.map(|name| name.value).collect()
}
