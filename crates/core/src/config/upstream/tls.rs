//! `tls` and `http2` of an upstream: how its `https` servers are spoken to.

use rustls::pki_types::ServerName;

use crate::config::client_tls::{self, ClientTls};
use crate::config::diagnostic::{Code, Diagnostic, Span};
use crate::config::section::Section;
use crate::config::{ServerAddress, UpstreamServer};

/// `tls = { ca, name, cert, key, verify }`
pub(super) fn read(upstream: &mut Section<'_>, servers: &[UpstreamServer]) -> ClientTls {
    let span = upstream.key_span("tls");
    let mut section = upstream.section("tls");
    let (mut tls, _) = client_tls::within(&mut section, "upstream-client");
    tls.unverified = !section.boolean("verify", true);
    let verify = section.key_span("verify");
    section.finish();
    if tls != ClientTls::default() && !any_https(servers) {
        unused(upstream, "tls", &span);
    }
    if tls.unverified {
        if let Some(needless) = needless(&tls) {
            let message = format!("`{needless}` is for verifying, and `verify` is off");
            let diagnostic = Diagnostic::new(Code::Contradiction, message)
                .at(&verify, "whatever certificate the server shows is taken")
                .help("leave one of the two out");
            upstream.reader.report(diagnostic);
        } else {
            let message = "the upstream's certificate is not verified";
            let diagnostic = Diagnostic::new(Code::UnverifiedTls, message)
                .at(&verify, "anybody on the way can pretend to be its servers")
                .help("name who signs it: `tls = { ca = \"/etc/tidegate/ca.pem\" }`");
            upstream.reader.report(diagnostic);
        }
    }
    nameless(upstream, servers, &tls);
    tls
}

/// `http2 = false` has HTTP/1.1 spoken over TLS.
pub(super) fn http2(upstream: &mut Section<'_>, servers: &[UpstreamServer]) -> bool {
    let http2 = upstream.boolean("http2", true);
    if !http2 && !any_https(servers) {
        let span = upstream.key_span("http2");
        unused(upstream, "http2", &span);
    }
    http2
}

fn any_https(servers: &[UpstreamServer]) -> bool {
    let https = |server: &UpstreamServer| matches!(server.address, ServerAddress::Https(..));
    // Without any server something else is wrong, and has been said.
    servers.is_empty() || servers.iter().any(https)
}

fn unused(upstream: &Section<'_>, key: &str, span: &Span) {
    let message = format!("`{}` is for `https` servers", upstream.full(key));
    let help = match key {
        "http2" => "HTTP/2 without TLS is spoken to `h2c://` servers, and only to them",
        _ => "write `https://` in `servers`",
    };
    let diagnostic = Diagnostic::new(Code::Contradiction, message)
        .at(span, "this upstream has none")
        .help(help);
    upstream.reader.report(diagnostic);
}

fn needless(tls: &ClientTls) -> Option<&'static str> {
    tls.ca.as_ref().map(|_| "ca")
}

/// Without a name of their own, certificates are made out to the hosts: those must be names.
fn nameless(upstream: &Section<'_>, servers: &[UpstreamServer], tls: &ClientTls) {
    let is_nameless = |server: &UpstreamServer| match &server.address {
        ServerAddress::Https(host, _) => ServerName::try_from(host.as_str()).is_err(),
        _ => false,
    };
    if tls.name.is_none() && servers.iter().any(is_nameless) {
        let diagnostic =
            Diagnostic::new(Code::BadUrl, "no certificate can be made out to the host")
                .at(&upstream.key_span("servers"), "not a name of the DNS")
                .help("say what the certificate says: `tls = { name = \"api.example\" }`");
        upstream.reader.report(diagnostic);
    }
}
