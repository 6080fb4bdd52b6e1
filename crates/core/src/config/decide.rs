//! `[decide]`: the addresses at which other proxies ask for decisions, and which of them may ask.

use ipnet::IpNet;

use super::*;

/// `[decide]`
#[derive(Clone, Debug, PartialEq)]
pub struct DecideSettings {
    pub listen: Vec<Listen>,
    pub from: Vec<IpNet>,
}

impl DecideSettings {
    /// Whether the peer at this address may ask. A unix socket has the address of this machine.
    pub fn may_ask(&self, ip: IpAddr) -> bool {
        self.from.iter().any(|network| network.contains(&ip))
    }
}

/// The addresses of this machine.
const THIS_MACHINE: [&str; 2] = ["127.0.0.0/8", "::1/128"];

/// Reads `[decide]`. Returns `None` if the file does not have it.
pub(super) fn read(top: &mut Section<'_>, places: &mut Places) -> Option<DecideSettings> {
    let is_given = top.has("decide");
    let mut section = top.section("decide");
    if is_given {
        section.require("listen", "listen = \"127.0.0.1:8081\"");
    }
    let texts = section.texts("listen");
    let listen = section.read_listen("listen", texts);
    let from = section.parse_list("from", TextForm::NETWORK, address::network);
    check_from(&section, &listen);
    let this_machine = THIS_MACHINE.iter().filter_map(|text| text.parse().ok());
    let settings = DecideSettings {
        listen: values(listen.clone()),
        from: match section.has("from") {
            true => values(from),
            false => this_machine.collect(),
        },
    };
    section.finish();
    places.decide_listen = listen;
    is_given.then_some(settings)
}

/// Reports an address that other machines reach, if the file does not say which of them may ask.
fn check_from(section: &Section<'_>, listen: &[Located<Listen>]) {
    let is_public = |one: &&Located<Listen>| match one.value {
        Listen::Tcp(address) => !address.ip().is_loopback(),
        Listen::Unix(_) => false,
    };
    let Some(public) = listen.iter().find(is_public) else {
        return;
    };
    if !section.has("from") {
        contradiction("`[decide]` has no `from`")
            .at(&public.span, "other machines reach this address")
            .help("write the networks of the proxies that ask: `from = [\"10.0.0.0/8\"]`")
            .report_to(section.reader);
    }
}
