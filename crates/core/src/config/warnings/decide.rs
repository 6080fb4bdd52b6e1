//! Warnings about `[decide]`: callers that are believed too much, and settings without effect.

use ipnet::IpNet;

use crate::client::networks::has_everyone;
use crate::config::compile::Compiled;
use crate::config::*;
use crate::limit::Algorithm;
use crate::limit::key::Part;

/// Reports all warnings about `[decide]`.
pub(super) fn find(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    let Some(settings) = &compiled.config.decide else {
        return;
    };
    check_from(reader, compiled, settings);
    check_overrides(reader, compiled, settings);
    check_unseen_responses(reader, compiled);
}

fn check_from(reader: &ConfigReader<'_>, compiled: &Compiled<'_>, settings: &DecideSettings) {
    if has_everyone(&settings.from) {
        Diagnostic::new(
            Code::TrustsEveryone,
            "`from` of `[decide]` trusts the whole internet",
        )
        .at(
            &compiled.places.decide_from,
            "every machine may ask, and choose the client that is charged",
        )
        .help("name the networks of the proxies that ask")
        .report_to(reader);
    }
}

fn check_overrides(reader: &ConfigReader<'_>, compiled: &Compiled<'_>, settings: &DecideSettings) {
    if !settings.overrides {
        return;
    }
    if let Some(wide) = settings.from.iter().find(|one| !is_this_machine(one)) {
        Diagnostic::new(
            Code::CallersOwnLimits,
            "callers on other machines choose their own limits",
        )
        .at(
            &compiled.places.decide_overrides,
            "believes the limits that callers send",
        )
        .at(
            &compiled.places.decide_from,
            format!("`{wide}` is more than this machine"),
        )
        .help("leave out `overrides` if your proxies send no limits of their own")
        .report_to(reader);
    }
}

fn is_this_machine(network: &IpNet) -> bool {
    network.network().is_loopback() && network.broadcast().is_loopback()
}

/// Reports settings that need the response of a request or its body, in a file whose requests are
/// only decided.
fn check_unseen_responses(reader: &ConfigReader<'_>, compiled: &Compiled<'_>) {
    let definitions = &compiled.definitions;
    if !definitions.only_decides {
        return;
    }
    for setting in &definitions.unseen_responses {
        report_unseen(reader, setting.value, &setting.span);
    }
    for limit in definitions.limits.iter().filter(|limit| limit.is_used) {
        let mut rules = limit.rules.iter();
        if let Some(rule) = rules.find(|rule| rule.value.algorithm == Algorithm::Slots) {
            report_unseen(reader, "concurrent", &rule.span);
        }
        let key = &limit.key;
        if let Some(part) = key.value.all().find(|part| matches!(part, Part::Body(_))) {
            let message = format!("no request that is only decided has `{part}`");
            Diagnostic::new(Code::UnseenResponse, message)
                .at(&key.span, "`[decide]` sees no body")
                .help("count by another key, or let tidegate forward these requests")
                .report_to(reader);
        }
    }
}

fn report_unseen(reader: &ConfigReader<'_>, setting: &str, span: &TextSpan) {
    let message = match setting {
        "usage" => "`usage` charges its estimate for requests that are only decided, and corrects \
                    no charge"
            .to_owned(),
        setting => format!("`{setting}` does nothing for requests that are only decided"),
    };
    Diagnostic::new(Code::UnseenResponse, message)
        .at(span, "`[decide]` sees no response")
        .help("remove it, or let tidegate forward these requests")
        .report_to(reader);
}
