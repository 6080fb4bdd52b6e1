//! `add_header Strict-Transport-Security`. `hsts` of `[tls]` is one setting for all servers.

use super::scope::BlockScope;
use super::syntax::Directive;
use crate::draft::Draft;

pub(super) fn is_hsts(one: &Directive) -> bool {
    one.arg(0).eq_ignore_ascii_case("strict-transport-security")
}

fn header_of<'d>(scope: &BlockScope<'d>) -> Option<&'d Directive> {
    let headers = scope.inherited("add_header");
    headers.into_iter().find(|one| is_hsts(one))
}

/// Takes the first header of the servers with TLS, and notes the servers that had another or none.
pub(super) fn read_header(servers: &[&BlockScope<'_>], draft: &mut Draft) {
    let mut headers = servers.iter().filter_map(|scope| header_of(scope));
    let Some(first) = headers.next() else {
        return;
    };
    let mut parts = first.arg(1).split(';');
    let age = parts.find_map(|part| part.trim().strip_prefix("max-age="));
    if !draft.tls.set_hsts(age.and_then(|age| age.parse().ok())) {
        first.lost("`hsts` of [tls] is whole days");
    } else if servers.iter().any(|scope| header_of(scope).is_none()) {
        first.differs("`hsts` of [tls] is for all servers, also for those without this header");
    }
    if first.arg(1).contains(';') {
        first.differs("`hsts` says how long, and nothing of subdomains and lists");
    }
    for other in headers.filter(|other| other.arg(1) != first.arg(1)) {
        let line = first.place.line;
        other.lost(format!(
            "`hsts` of [tls] is for all servers: that of line {line}"
        ));
    }
}

/// Notes a header of a location or of a plain server, unless a whole server with TLS has it too.
pub(super) fn note_other_header(one: &Directive, scope: &BlockScope<'_>) {
    let http = BlockScope {
        http: scope.http,
        levels: vec![scope.http],
    };
    let has_it = |server: &Directive| {
        let header = header_of(&http.enter(server));
        has_tls(server) && header.is_some_and(|header| header.arg(1) == one.arg(1))
    };
    if !http.named("server").any(has_it) {
        one.lost("only `hsts` of [tls] sends it, and for all servers: say it there");
    }
}

fn has_tls(server: &Directive) -> bool {
    let is_on = server.first("ssl").is_some_and(|one| one.arg(0) == "on");
    is_on || server.named("listen").any(|one| one.has_arg("ssl"))
}
