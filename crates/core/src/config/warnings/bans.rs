//! Warnings about bans that hit clients who did nothing wrong.

use crate::config::compile::Compiled;
use crate::config::limits::DefinedLimit;
use crate::config::*;
use crate::limit::key::{Alternatives, Key, Part};
use crate::limit::{Ban, Missing};

pub(super) fn find(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    for defined in &compiled.definitions.limits {
        let Some(limit) = &defined.limit else {
            continue;
        };
        if let (Some(ban), Some(span)) = (&limit.ban, &defined.ban_span) {
            check_shared_key(reader, defined, span);
            check_address(reader, defined, ban, span);
        }
    }
}

/// Reports a ban of a key that many clients have in common.
fn check_shared_key(reader: &ConfigReader<'_>, defined: &DefinedLimit, span: &TextSpan) {
    let key = &defined.key;
    let is_own = |part: &Alternatives| part.0.iter().all(|one| !is_shared(one));
    let shares_missing = defined.missing == Missing::Shared && !is_always_there(&key.value);
    if key.value.parts.iter().any(is_own) && !shares_missing {
        return;
    }
    let part = key.value.all().find(|part| is_shared(part));
    let label = match part {
        Some(part) => format!("many clients have the same `{part}`"),
        None => "all clients without the key are one".to_owned(),
    };
    let message = format!(
        "a ban by `limit.{}` hits clients that did nothing",
        defined.name.value
    );
    Diagnostic::new(Code::SharedBan, message)
        .at(span, "bans the key of the limit")
        .at(&key.span, label)
        .help("count by what one client has: `key = \"ip\"` or `\"api_key\"`")
        .report_to(reader);
}

/// Whether many clients have the same value of this part.
fn is_shared(part: &Part) -> bool {
    match part {
        Part::Global | Part::Path | Part::PathParam(_) | Part::Method => true,
        Part::Host | Part::Route | Part::Tier | Part::Body(_) => true,
        Part::Ip | Part::ApiKey | Part::Header(_) | Part::Query(_) | Part::Cookie(_) => false,
        Part::Jwt(_) | Part::Tls(_) | Part::Custom(_) | Part::Entry(_) => false,
    }
}

fn is_always_there(key: &Key) -> bool {
    let mut parts = key.parts.iter();
    parts.all(|part| part.0.iter().any(Part::is_always_present))
}

/// Reports a ban of an address by so few denials that the clients of one network reach it together.
fn check_address(reader: &ConfigReader<'_>, defined: &DefinedLimit, ban: &Ban, span: &TextSpan) {
    let is_private = |part: &Part| !is_shared(part) && *part != Part::Ip;
    let has_address = defined.key.value.all().any(|part| *part == Part::Ip);
    if !has_address || defined.key.value.all().any(is_private) {
        return;
    }
    let Some(rule) = defined.rules.iter().min_by_key(|rule| rule.value.units) else {
        return;
    };
    if ban.after >= rule.value.units {
        return;
    }
    let message = format!(
        "`limit.{}` bans an address after fewer denials than its rate allows requests",
        defined.name.value
    );
    Diagnostic::new(Code::HastyBan, message)
        .at(span, format!("{} denials", ban.after))
        .at(&rule.span, format!("{} requests", rule.value.units))
        .help("raise `after`, or count by `api_key` or `jwt:CLAIM`")
        .note("many clients can have one address: an office, or a mobile network behind NAT")
        .report_to(reader);
}
