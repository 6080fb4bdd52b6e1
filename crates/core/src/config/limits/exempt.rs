//! `exempt` and `exempt_file` of a limit.

use ipnet::IpNet;

use super::listed::spelled;
use crate::client::ClientIp;
use crate::config::files::without_comment;
use crate::config::*;
use crate::limit::Exempt;
use crate::limit::key::{Given, Key, Part};
use crate::path::Case;

const MAX_EXEMPT: usize = 100_000;

pub(super) fn read(section: &mut Section<'_>, key: &Key, client_ip: &ClientIp) -> Exempt {
    let form = TextForm::new(Code::BadAddress, "a network or a client's key");
    let mut clients = ExemptClients::new(key, client_ip);
    section.parse_list("exempt", form, |text| clients.add(text));
    if let Some(path) = section.text("exempt_file") {
        section.for_each_line("exempt_file", &path, |line| {
            clients.add(without_comment(line))
        });
    }
    if clients.count > MAX_EXEMPT {
        section.out_of_range("exempt", &format!("at most {MAX_EXEMPT}"));
    }
    clients.finish()
}

/// The entries read so far.
struct ExemptClients<'k> {
    /// The parts of the key whose values they can be.
    parts: Vec<&'k Part>,
    client_ip: &'k ClientIp,
    nets: Vec<IpNet>,
    keys: Vec<Given>,
    count: usize,
}

impl<'k> ExemptClients<'k> {
    fn new(key: &'k Key, client_ip: &'k ClientIp) -> ExemptClients<'k> {
        let mut parts: Vec<&Part> = key.exempting_parts().collect();
        if parts.is_empty() {
            parts.push(&Part::ApiKey);
        }
        ExemptClients {
            parts,
            client_ip,
            nets: Vec::new(),
            keys: Vec::new(),
            count: 0,
        }
    }

    /// Reads a network or a key. A text that looks like an address and is none is a mistake, not a
    /// key.
    fn add(&mut self, text: &str) -> Result<(), String> {
        let text = text.trim();
        self.count += 1;
        match address::network(text) {
            Ok(net) => self.nets.push(net),
            Err(_) if text.is_empty() => return Err("empty".to_owned()),
            Err(_) if text.starts_with('/') && self.parts.contains(&&Part::Path) => {
                self.add_key(text)?;
            }
            Err(why) if text.eq_ignore_ascii_case("localhost") => return Err(why),
            Err(why) if looks_like_address(text) => {
                // It may be a key all the same: the message does not repeat it.
                let why = why.split("; ").next().unwrap_or_default();
                return Err(format!("{why}; write for example `10.0.0.0/8`"));
            }
            Err(_) => self.add_key(text)?,
        }
        Ok(())
    }

    /// Adds a value in the spelling of each part that can have it.
    fn add_key(&mut self, text: &str) -> Result<(), String> {
        let mut why = None;
        let before = self.keys.len();
        for part in &self.parts {
            match spelled(part, text, self.client_ip) {
                Ok(given) => self.keys.push(given),
                Err(error) => why = Some(error),
            }
        }
        match why.filter(|_| self.keys.len() == before) {
            Some(error) => Err(error.to_string()),
            None => Ok(()),
        }
    }

    fn finish(self) -> Exempt {
        let folded = self.keys.iter().cloned();
        let folded: Vec<Given> = folded.map(|key| key.in_case(Case::Insensitive)).collect();
        Exempt {
            nets: self.nets.into_iter().collect(),
            keys: self.keys.iter().map(Given::value).collect(),
            folded_keys: folded.iter().map(Given::value).collect(),
        }
    }
}

/// Whether a text can only be meant as an address or a network. As a key it would name each client
/// that sends this word.
pub fn looks_like_address(text: &str) -> bool {
    let digits = |c: char| c.is_ascii_hexdigit() || ".:/".contains(c);
    let is_number = text.chars().all(digits) && text.contains(['.', ':', '/']);
    is_number || text.eq_ignore_ascii_case("localhost")
}
