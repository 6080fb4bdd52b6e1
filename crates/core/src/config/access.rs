//! `[access]`, and `access` of a route: networks whose clients are served or refused.

use ipnet::IpNet;

use super::files::without_comment;
use super::*;
use crate::client::networks::{AccessList, has_everyone};

/// Networks of one list, those of its file included.
const MAX_NETWORKS: usize = 100_000;

/// Reads the section. Without a setting all clients are served.
pub(super) fn read(mut section: Section<'_>) -> AccessList {
    let allowed = networks(&mut section, "allow", "allow_file");
    let denied = networks(&mut section, "deny", "deny_file");
    if allowed.is_some() && denied.as_deref().is_some_and(has_everyone) {
        section.reader.report_doubt(
            no_effect("`allow` changes nothing: `deny` refuses every client")
                .at(&section.key_span("allow"), "")
                .at(&section.key_span("deny"), "wins over `allow`")
                .help("leave `deny` out: with `allow` alone all others are refused"),
        );
    }
    section.finish();
    AccessList {
        allow: allowed.map(|nets| nets.into_iter().collect()),
        deny: denied.unwrap_or_default().into_iter().collect(),
    }
}

/// The networks of a setting and of its file; `None` without both. An empty `allow` list serves no
/// client, so that a file that lost its lines opens nothing.
fn networks(
    section: &mut Section<'_>,
    key: &'static str,
    file_key: &'static str,
) -> Option<Vec<IpNet>> {
    let mut nets = values(section.parse_list(key, TextForm::NETWORK, address::network));
    let mut is_set = section.has(key);
    if let Some(path) = section.text(file_key) {
        is_set = true;
        section.for_each_line(file_key, &path, |line| {
            address::network(without_comment(line)).map(|net| nets.push(net))
        });
    }
    if nets.len() > MAX_NETWORKS {
        section.out_of_range(key, &format!("at most {MAX_NETWORKS} networks"));
    }
    is_set.then_some(nets)
}
