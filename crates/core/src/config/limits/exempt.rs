//! `exempt` and `exempt_file` of a limit.

use ipnet::IpNet;

use crate::config::files::without_comment;
use crate::config::*;
use crate::limit::Exempt;

const MAX_EXEMPT: usize = 100_000;

pub(super) fn read(section: &mut Section<'_>) -> Exempt {
    let form = TextForm::new(Code::BadAddress, "a network or a client's key");
    let mut clients = Vec::new();
    section.parse_list("exempt", form, |text| {
        exempt_client(text).map(|one| clients.push(one))
    });
    if let Some(path) = section.text("exempt_file") {
        section.for_each_line("exempt_file", &path, |line| {
            exempt_client(without_comment(line)).map(|one| clients.push(one))
        });
    }
    if clients.len() > MAX_EXEMPT {
        section.out_of_range("exempt", &format!("at most {MAX_EXEMPT}"));
    }
    let nets = clients.iter().filter_map(|client| match client {
        ExemptClient::Net(net) => Some(*net),
        ExemptClient::Key(_) => None,
    });
    let keys = clients.iter().filter_map(|client| match client {
        ExemptClient::Net(_) => None,
        ExemptClient::Key(hash) => Some(*hash),
    });
    let mut keys: Vec<_> = keys.collect();
    keys.sort_unstable();
    keys.dedup();
    Exempt {
        nets: nets.collect(),
        keys,
    }
}

enum ExemptClient {
    Net(IpNet),
    /// The BLAKE3 hash of a key.
    Key([u8; 32]),
}

/// Reads a network or a key. A text that looks like an address and is none is a mistake, not a key.
fn exempt_client(text: &str) -> Result<ExemptClient, String> {
    let text = text.trim();
    match address::network(text) {
        Ok(net) => Ok(ExemptClient::Net(net)),
        Err(_) if text.is_empty() => Err("empty".to_owned()),
        // As a key, it would exempt each client that sends this word.
        Err(why) if text.eq_ignore_ascii_case("localhost") => Err(why),
        Err(why) if looks_like_address(text) => {
            // It may be a key all the same: the message does not repeat it.
            let why = why.split("; ").next().unwrap_or_default();
            Err(format!("{why}; write for example `10.0.0.0/8`"))
        }
        Err(_) => Ok(ExemptClient::Key(*blake3::hash(text.as_bytes()).as_bytes())),
    }
}

fn looks_like_address(text: &str) -> bool {
    let digits = |c: char| c.is_ascii_hexdigit() || ".:/".contains(c);
    text.chars().all(digits) && text.contains(['.', ':', '/'])
}
