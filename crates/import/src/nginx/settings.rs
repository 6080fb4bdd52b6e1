//! What holds for all of `http`: bounds and times of clients, trusted proxies, the status of
//! denials.

use super::scope::Scope;
use super::syntax::Directive;
use super::values;
use crate::draft::Draft;
use crate::print::text;

/// nginx's own bound of a request's body.
const USUAL_BODY: u64 = 1 << 20;

/// Reads what stands in `http` itself.
pub(super) fn http(scope: &Scope<'_>, draft: &mut Draft) {
    for (theirs, ours, least, most) in [
        ("client_header_timeout", "header_timeout", 1, 86_400_000),
        ("keepalive_timeout", "idle_timeout", 1, 86_400_000),
        ("client_body_timeout", "body_timeout", 1, 86_400_000),
    ] {
        let Some(one) = scope.last(theirs) else {
            continue;
        };
        match values::time_ms(one.arg(0)).filter(|ms| (least..=most).contains(ms)) {
            Some(ms) => draft.server.push((ours.to_owned(), values::time_text(ms))),
            None => draft
                .notes
                .lost(&one.place, &one.line(), "not such a time here"),
        }
    }
    if let Some(one) = scope.last("large_client_header_buffers") {
        let count = one.arg(0).parse::<u64>().ok();
        let all = count
            .zip(values::size(one.arg(1)))
            .map(|(count, size)| count * size);
        match all.filter(|size| (4096..=1 << 20).contains(size)) {
            Some(size) => {
                let setting = ("max_header_bytes".to_owned(), values::size_text(size));
                draft.server.push(setting);
            }
            None => draft
                .notes
                .lost(&one.place, &one.line(), "4 KiB to 1 MiB are possible"),
        }
    }
    if let Some(one) = scope.last("max_headers") {
        match one
            .arg(0)
            .parse::<u64>()
            .ok()
            .filter(|most| (1..=1000).contains(most))
        {
            Some(most) => draft
                .server
                .push(("max_headers".to_owned(), most.to_string())),
            None => draft
                .notes
                .lost(&one.place, &one.line(), "1 to 1000 are possible"),
        }
    }
    if let Some(one) = scope.last("worker_shutdown_timeout") {
        match values::time_ms(one.arg(0)).filter(|ms| (1..=86_400_000).contains(ms)) {
            Some(ms) => {
                let setting = ("drain_timeout".to_owned(), values::time_text(ms));
                draft.server.push(setting);
            }
            None => draft
                .notes
                .lost(&one.place, &one.line(), "not such a time here"),
        }
    }
    let body = body_bytes(scope, draft).unwrap_or(USUAL_BODY);
    draft.server.push(("max_body".to_owned(), body_text(body)));
    real_ip(scope, draft);
}

/// `client_max_body_size` where one holds.
pub(super) fn body_bytes(scope: &Scope<'_>, draft: &mut Draft) -> Option<u64> {
    let one = scope.last("client_max_body_size")?;
    let size = values::size(one.arg(0));
    if size.is_none() {
        draft.notes.lost(&one.place, &one.line(), "not a size");
    }
    size
}

/// Nothing is no bound.
pub(super) fn body_text(bytes: u64) -> String {
    match bytes {
        0 => text("unlimited"),
        bytes => values::size_text(bytes),
    }
}

/// nginx's own header with the client's address, where none is named.
pub(super) fn usual_real_ip(main: &[Directive], draft: &mut Draft) {
    if !draft.trusted.is_empty() && !names_header(main) && draft.client_ip_header.is_none() {
        draft.client_ip_header = Some("x-real-ip".to_owned());
    }
}

fn names_header(list: &[Directive]) -> bool {
    list.iter()
        .any(|one| one.name == "real_ip_header" || names_header(one.inner()))
}

/// Whom to believe of whom a request comes from.
pub(super) fn real_ip(scope: &Scope<'_>, draft: &mut Draft) {
    for one in scope
        .own()
        .iter()
        .filter(|one| one.name == "set_real_ip_from")
    {
        let net = one.arg(0);
        let reads = net.parse::<ipnet::IpNet>().is_ok() || net.parse::<std::net::IpAddr>().is_ok();
        match reads {
            true => draft.trusted.push(net.to_owned()),
            false => {
                let why = "only addresses and networks can be trusted";
                draft.notes.lost(&one.place, &one.line(), why);
            }
        }
    }
    let Some(one) = scope.here("real_ip_header") else {
        return;
    };
    match one.arg(0).to_ascii_lowercase().as_str() {
        "x-forwarded-for" => {
            if !scope.is_on("real_ip_recursive") {
                let why = "tidegate passes over trusted addresses from the right, as with \
                           `real_ip_recursive on`";
                draft.notes.differs(&one.place, &one.line(), why);
            }
        }
        "proxy_protocol" => {}
        other => match &draft.client_ip_header {
            Some(known) if known != other => {
                let why = format!("there is one header for all, `{known}`");
                draft.notes.lost(&one.place, &one.line(), why);
            }
            _ => draft.client_ip_header = Some(other.to_owned()),
        },
    }
}
