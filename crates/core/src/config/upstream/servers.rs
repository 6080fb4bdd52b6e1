//! `servers` of an upstream: URLs, or tables that say more about a server than where it is.

use std::fmt;

use toml::Spanned;
use toml::de::DeValue;

use super::super::address::{self, ServerAddress};
use super::super::diagnostic::{Code, Diagnostic};
use super::super::reader::At;
use super::super::section::Section;
use super::super::values::TextForm;

/// Servers of one upstream, at most.
const MAX_SERVERS: usize = 256;
/// The largest weight of a server.
const MAX_WEIGHT: u64 = 1000;

/// One server of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamServer {
    /// Where it is.
    pub address: ServerAddress,
    /// Its part of the requests, next to the other servers'; at least 1.
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

/// `servers`: one, or a list.
pub(super) fn servers(section: &mut Section<'_>) -> Vec<At<UpstreamServer>> {
    let Some(value) = section.take("servers") else {
        section.missing("servers", "servers = [\"http://10.0.1.10:3000\"]");
        return Vec::new();
    };
    let values: Vec<&Spanned<DeValue<'_>>> = match value.get_ref() {
        DeValue::Array(values) => values.iter().collect(),
        _ => vec![value],
    };
    if !(1..=MAX_SERVERS).contains(&values.len()) {
        let here = At {
            value: (),
            span: value.span(),
        };
        section.out_of_range_at("servers", &here, &format!("1 to {MAX_SERVERS} servers"));
    }
    let mut servers: Vec<At<UpstreamServer>> = Vec::new();
    for server in values.iter().filter_map(|value| server(section, value)) {
        let same = |first: &&At<UpstreamServer>| first.value.address == server.value.address;
        if let Some(first) = servers.iter().find(same) {
            let diagnostic = Diagnostic::new(Code::Duplicate, "the same server twice")
                .at(&server.span, "")
                .at(&first.span, "first here")
                .help("a server gets more of the requests by its `weight`");
            section.reader.report(diagnostic);
        }
        servers.push(server);
    }
    servers
}

/// A URL, or `{ url = "http://10.0.1.10:3000", weight = 3 }`.
fn server<'r>(
    section: &Section<'r>,
    value: &'r Spanned<DeValue<'r>>,
) -> Option<At<UpstreamServer>> {
    let kind = TextForm::new(Code::BadUrl, "a server's URL");
    match value.get_ref() {
        DeValue::String(_) => {
            let text = section.filled(value)?;
            let address =
                section.understood("servers", text, kind, |text| section.server_at(text))?;
            Some(address.map(UpstreamServer::from))
        }
        DeValue::Table(table) => {
            let mut section = section.inner("servers", Some(table), value.span());
            if section.peek("url").is_none() {
                section.missing("url", "url = \"http://10.0.1.10:3000\"");
            }
            let surroundings = section.reader.surroundings;
            let address = section.parsed("url", kind, |text| {
                address::server(text).map(|server| server.within(|path| surroundings.path(path)))
            });
            let weight = section.integer("weight", 1..=MAX_WEIGHT);
            let most = section.integer("max_connections", 1..=1 << 20);
            section.finish();
            let weight = weight.and_then(|weight| u32::try_from(weight.value).ok());
            Some(address?.map(|address| UpstreamServer {
                weight: weight.unwrap_or(1),
                max_connections: most.and_then(|most| usize::try_from(most.value).ok()),
                ..UpstreamServer::from(address)
            }))
        }
        _ => {
            section.wrong_type("servers", value, "a URL, a table, or a list of them");
            None
        }
    }
}
