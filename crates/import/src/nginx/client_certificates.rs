//! `ssl_verify_client`: `[tls]` asks the clients of all servers in one way, and routes say which of
//! them serve only clients with a certificate.

use super::scope::BlockScope;
use super::syntax::Directive;
use crate::draft::TlsDraft;
use crate::values::quote;

/// The status of nginx for clients without a certificate.
const NGINX_STATUS: u16 = 400;

/// The certificates of the clients that a server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// It does not ask, or only some of its requests use TLS.
    Unknown,
    Optional,
    Always,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerCertificates {
    pub(super) shown: Shown,
    /// The answer of its routes to clients without a certificate, if the handshake lets them in.
    pub(super) status: Option<u16>,
}

/// What the servers of a file want of the certificates of clients.
pub(super) struct ClientAuthorities<'d> {
    /// Those that `[tls]` believes: of the first server that asks.
    believed: Option<&'d Directive>,
    crl: Option<&'d str>,
    /// Whether no handshake succeeds without a certificate.
    required: bool,
}

impl<'d> ClientAuthorities<'d> {
    /// Reads the scopes of all servers with TLS.
    pub(super) fn find<'s>(servers: impl Iterator<Item = &'s BlockScope<'d>> + Clone) -> Self
    where
        'd: 's,
    {
        let first = servers.clone().find(|scope| asked_for(scope).is_some());
        let mut found = ClientAuthorities {
            believed: first.and_then(asked_for),
            crl: first.and_then(|scope| scope.last_arg("ssl_crl")),
            required: false,
        };
        let mut servers = servers;
        let needs = |scope: &BlockScope<'_>| is_needed(scope) && found.are_those_of(scope);
        found.required = first.is_some() && servers.all(needs);
        found
    }

    pub(super) fn add_to(&self, tls: &mut TlsDraft) {
        let Some(believed) = self.believed else {
            return;
        };
        let word = ["optional", "required"][usize::from(self.required)];
        tls.entries.add_new("client_ca", quote(believed.arg(0)));
        tls.entries.add_new("client_auth", quote(word));
        if let Some(crl) = self.crl {
            tls.entries.add_new("client_crl", quote(crl));
        }
    }

    /// What the routes of a server know. `secure` is that of [`super::conditions::ServerTls`].
    pub(super) fn server_certificates(
        &self,
        scope: &BlockScope<'_>,
        secure: Option<bool>,
    ) -> ServerCertificates {
        let Some(one) = asked_for(scope).filter(|_| secure != Some(false)) else {
            return ServerCertificates {
                shown: Shown::Unknown,
                status: None,
            };
        };
        let is_needed = is_needed(scope);
        let status = (is_needed && !self.required).then_some(NGINX_STATUS);
        if secure.is_none() && status.is_some() {
            one.differs("requests without TLS show no certificate, so they are refused too");
        }
        // Requests without TLS show none.
        let shown = match is_needed && secure.is_some() {
            true => Shown::Always,
            false => Shown::Optional,
        };
        ServerCertificates { shown, status }
    }

    /// Returns why a server is closed whose authorities are others: clients of one server must not
    /// be taken for clients of the other.
    pub(super) fn closed(&self, scope: &BlockScope<'_>, secure: Option<bool>) -> Option<String> {
        let (one, believed) = (asked_for(scope)?, self.believed?);
        if secure == Some(false) || self.are_those_of(scope) {
            return None;
        }
        let why = format!(
            "[tls] believes the authorities and lists of one server, of line {}; this one is \
             closed",
            believed.place.line
        );
        one.lost(why.clone());
        Some(why)
    }

    fn are_those_of(&self, scope: &BlockScope<'_>) -> bool {
        let file = |one: Option<&Directive>| one.map(|one| one.arg(0).to_owned());
        file(asked_for(scope)) == file(self.believed) && scope.last_arg("ssl_crl") == self.crl
    }
}

/// The authorities of a server that asks for certificates.
fn asked_for<'d>(scope: &BlockScope<'d>) -> Option<&'d Directive> {
    let asks = !matches!(scope.last_arg("ssl_verify_client"), None | Some("off"));
    scope.last("ssl_client_certificate").filter(|_| asks)
}

/// Whether a server serves only clients with a certificate.
fn is_needed(scope: &BlockScope<'_>) -> bool {
    scope.is_on("ssl_verify_client") && asked_for(scope).is_some()
}
