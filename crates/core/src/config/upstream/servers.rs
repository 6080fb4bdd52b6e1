//! `servers`, `tls` and `http2` of an upstream: the addresses of its servers, and the encryption.

use std::fmt;

use toml::Spanned;
use toml::de::DeValue;

use crate::config::address::ServerAddress;
use crate::config::client_tls::{self, ClientTls};
use crate::config::diagnostic::{Code, Diagnostic};
use crate::config::reader::{Located, ValueKind};
use crate::config::section::Section;
use crate::config::values::TextForm;

/// Servers of one upstream, at most.
const MAX_SERVERS: usize = 256;
/// The largest weight of a server.
const MAX_WEIGHT: u64 = 1000;

/// One server of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamServer {
    pub address: ServerAddress,
    /// Its share of the requests, relative to the other servers; at least 1.
    pub weight: u32,
    /// Requests under way there at once, over all workers; `None` for no bound of its own.
    pub max_connections: Option<usize>,
}

impl From<ServerAddress> for UpstreamServer {
    fn from(address: ServerAddress) -> UpstreamServer {
        UpstreamServer {
            address,
            weight: 1,
            max_connections: None,
        }
    }
}

impl fmt::Display for UpstreamServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// Reads `servers`: a URL, a table, or a list of them.
pub(super) fn servers(section: &mut Section<'_>) -> Vec<Located<UpstreamServer>> {
    section.require("servers", "servers = [\"http://10.0.1.10:3000\"]");
    let Some(value) = section.take("servers", || ValueKind::TextsOrTables) else {
        return Vec::new();
    };
    let values: Vec<&Spanned<DeValue<'_>>> = match value.get_ref() {
        DeValue::Array(values) => values.iter().collect(),
        _ => vec![value],
    };
    if !(1..=MAX_SERVERS).contains(&values.len()) {
        let here = Located::new((), &value.span());
        section.out_of_range("servers", &here, &format!("1 to {MAX_SERVERS} servers"));
    }
    let mut servers: Vec<Located<UpstreamServer>> = Vec::new();
    for server in values
        .into_iter()
        .filter_map(|value| server(section, value))
    {
        let is_same =
            |first: &&Located<UpstreamServer>| first.value.address == server.value.address;
        if let Some(first) = servers.iter().find(is_same) {
            Diagnostic::new(Code::Duplicate, "the same server twice")
                .at(&server.span, "")
                .at(&first.span, "first here")
                .help("a server gets more of the requests by its `weight`")
                .report_to(section.reader);
        }
        servers.push(server);
    }
    servers
}

/// Reads a URL, or `{ url = "http://10.0.1.10:3000", weight = 3 }`.
fn server<'r>(
    section: &Section<'r>,
    value: &'r Spanned<DeValue<'r>>,
) -> Option<Located<UpstreamServer>> {
    const FORM: TextForm = TextForm::new(Code::BadUrl, "a server's URL");
    match value.get_ref() {
        DeValue::String(_) => {
            let text = section.interpolated(value)?;
            let address =
                section.parse_text("servers", text, FORM, |text| section.server_at(text))?;
            Some(address.map(UpstreamServer::from))
        }
        DeValue::Table(table) => {
            let mut section = section.inner("servers", Some(table), value.span());
            section.require("url", "url = \"http://10.0.1.10:3000\"");
            let url = section.text("url");
            let address = url.and_then(|text| {
                section.parse_text("url", text, FORM, |text| section.server_at(text))
            });
            let weight = section.integer("weight", 1..=MAX_WEIGHT);
            let most = section.optional_integer("max_connections", 1..=1 << 20);
            section.finish();
            Some(address?.map(|address| UpstreamServer {
                address,
                weight,
                max_connections: most.map(|most| most.value),
            }))
        }
        _ => {
            section.wrong_type("servers", value, "a URL, a table, or a list of them");
            None
        }
    }
}

/// Reads `tls = { ca, name, cert, key, verify }`.
pub(super) fn tls(upstream: &mut Section<'_>, servers: &[UpstreamServer]) -> ClientTls {
    let mut section = upstream.section("tls");
    let mut tls = client_tls::read_keys(&mut section, "upstream-client");
    tls.unverified = !section.boolean("verify");
    let verify = section.key_span("verify");
    section.finish();
    if tls != ClientTls::default() {
        check_https(upstream, "tls", servers, "write `https://` in `servers`");
    }
    if tls.unverified && tls.ca.is_some() {
        Diagnostic::new(
            Code::Contradiction,
            "`ca` is for verifying, and `verify` is off",
        )
        .at(&verify, "whatever certificate the server shows is taken")
        .help("leave one of the two out")
        .report_to(upstream.reader);
    } else if tls.unverified {
        Diagnostic::new(
            Code::UnverifiedTls,
            "the upstream's certificate is not verified",
        )
        .at(&verify, "anybody on the way can pretend to be its servers")
        .help("name who signs it: `tls = { ca = \"/etc/tidegate/ca.pem\" }`")
        .report_to(upstream.reader);
    }
    let hosts = servers.iter().filter_map(|server| match &server.address {
        ServerAddress::Https(host, _) => Some(host.as_str()),
        _ => None,
    });
    let name = "`tls = { name = \"api.example\" }`";
    tls.check_host_names(upstream, "servers", hosts, name);
    tls
}

/// Reads `http2`. Without it, `https` servers get HTTP/1.1.
pub(super) fn http2(upstream: &mut Section<'_>, servers: &[UpstreamServer]) -> bool {
    let http2 = upstream.boolean("http2");
    if !http2 {
        let help = "HTTP/2 without TLS is spoken to `h2c://` servers, and only to them";
        check_https(upstream, "http2", servers, help);
    }
    http2
}

/// Reports a setting for `https` servers in an upstream that has none.
fn check_https(upstream: &Section<'_>, key: &str, servers: &[UpstreamServer], help: &str) {
    let is_https = |server: &UpstreamServer| matches!(server.address, ServerAddress::Https(..));
    // An upstream without any server has been reported.
    if servers.is_empty() || servers.iter().any(is_https) {
        return;
    }
    let message = format!("`{}` is for `https` servers", upstream.full_key(key));
    Diagnostic::new(Code::Contradiction, message)
        .at(&upstream.key_span(key), "this upstream has none")
        .help(help)
        .report_to(upstream.reader);
}
