//! Joins what the sections say: limits become budgets, names become references, and rules that
//! span sections are checked. Reports everything; makes a [`Config`] only if nothing is wrong.

use std::sync::Arc;

use http::HeaderName;

use super::diagnostic::{Code, Diagnostic, Span};
use super::limits::RawLimit;
use super::names::Names;
use super::reader::{At, Reader};
use super::route::RawRoute;
use super::tls_keys::RawTls;
use super::upstream::RawUpstream;
use super::{
    AcmeChallenge, AdminSettings, Bypass, Config, DenySettings, Listen, LogSettings,
    ServerSettings, StoreSettings, TlsSettings, TracingSettings, admin, routes,
};
use crate::certificate::Validity;
use crate::client::ClientIp;
use crate::limit::headers::HeaderSettings;
use crate::limit::key::ApiKeys;
use crate::limit::key::jwt::JwtRules;
use crate::limit::tier::Tiers;
use crate::path::Case;

/// A whole file, each section read by itself.
pub(super) struct RawFile {
    pub(super) listen: Vec<At<Listen>>,
    pub(super) tls: Option<RawTls>,
    pub(super) admin: Option<At<AdminSettings>>,
    pub(super) store: StoreSettings,
    pub(super) client_ip: ClientIp,
    pub(super) trusted_span: Span,
    pub(super) api_key: ApiKeys,
    /// Where it is said what unknown keys are, if it is.
    pub(super) unknown_span: Option<Span>,
    /// The one at the top; its text is nothing if it could not be read.
    pub(super) upstream: Option<At<Option<String>>>,
    /// Whether letter case tells the paths of all routes apart, if the file says it.
    pub(super) case: Option<Case>,
    pub(super) jwt: Option<JwtRules>,
    pub(super) tier: Option<Tiers>,
    pub(super) tier_span: Span,
    pub(super) limits: Vec<RawLimit>,
    pub(super) routes: Vec<RawRoute>,
    pub(super) bypass: Vec<Bypass>,
    pub(super) upstreams: Vec<RawUpstream>,
    pub(super) headers: HeaderSettings,
    pub(super) request_id: Option<HeaderName>,
    pub(super) deny: DenySettings,
    pub(super) server: ServerSettings,
    pub(super) log: LogSettings,
    pub(super) tracing: Option<TracingSettings>,
}

/// A configuration, with what the warnings need to know of its file.
pub(super) struct Compiled<'r> {
    pub(super) config: Config,
    pub(super) names: Names<'r>,
    pub(super) listen_spans: Vec<Span>,
    pub(super) trusted_span: Span,
    pub(super) tier_span: Span,
    pub(super) unknown_span: Option<Span>,
    pub(super) untimely: Vec<At<Validity>>,
}

/// Everything that sections have to agree on. Nothing if a table of routes could not be made;
/// other mistakes are reported, and the caller throws the result away.
pub(super) fn compile<'r>(reader: &'r Reader<'r>, raw: RawFile) -> Option<Compiled<'r>> {
    check_listen(reader, &raw);
    let mut names = Names::new(reader, raw.store.on_error, raw.server.max_body, raw.case);
    for limit in raw.limits {
        names.add_limit(limit);
    }
    names.end_sections();
    for upstream in raw.upstreams {
        names.add_upstream(upstream);
    }
    let routes = routes::compile(&mut names, raw.routes, raw.upstream.as_ref())?;
    let (tls, untimely) = serving_tls(raw.tls, raw.server.http2);
    let config = Config {
        listen: raw
            .listen
            .iter()
            .map(|listen| listen.value.clone())
            .collect(),
        tls,
        admin: raw.admin.map(|admin| admin.value),
        store: raw.store,
        client_ip: raw.client_ip,
        api_key: raw.api_key,
        jwt: raw.jwt,
        tier: raw.tier,
        limits: names
            .budgets
            .iter()
            .filter_map(|budget| budget.limit.clone())
            .collect(),
        routes,
        bypass: raw.bypass,
        upstreams: names
            .targets
            .iter()
            .map(|target| target.settings.clone())
            .collect(),
        headers: raw.headers,
        request_id: raw.request_id,
        deny: raw.deny,
        server: raw.server,
        log: raw.log,
        tracing: raw.tracing.map(Arc::new),
        written: Arc::default(),
    };
    let listen_spans = raw.listen.into_iter().map(|listen| listen.span).collect();
    Some(Compiled {
        config,
        names,
        listen_spans,
        trusted_span: raw.trusted_span,
        tier_span: raw.tier_span,
        unknown_span: raw.unknown_span,
        untimely,
    })
}

/// The listeners' TLS, and certificates that clients refuse today.
fn serving_tls(raw: Option<RawTls>, http2: bool) -> (Option<Arc<TlsSettings>>, Vec<At<Validity>>) {
    raw.map_or((None, Vec::new()), |tls| {
        let settings = TlsSettings {
            http2,
            ..tls.settings
        };
        (Some(Arc::new(settings)), tls.untimely)
    })
}

fn check_listen(reader: &Reader<'_>, raw: &RawFile) {
    let secure = raw.tls.as_ref().map_or(&[][..], |tls| &tls.listen);
    let admin = raw.admin.as_ref().map(|admin| At {
        value: Listen::Tcp(admin.value.address),
        span: admin.span.clone(),
    });
    check_same(reader, &[&raw.listen, secure, admin.as_slice()].concat());
    if let Some(admin) = &raw.admin {
        admin::stands_apart(reader, admin, &[&raw.listen, secure].concat());
    }
    let acme = raw.tls.as_ref().and_then(|tls| tls.settings.acme.as_ref());
    let http = acme.is_some_and(|acme| acme.challenge == AcmeChallenge::Http01);
    if http && raw.listen.is_empty() {
        let message = "`tls.acme` needs a plain listener";
        let diagnostic = Diagnostic::new(Code::Contradiction, message)
            .help("write `listen = \":80\"`, or `challenge = \"tls-alpn-01\"` in `[tls.acme]`");
        reader.report(diagnostic);
    }
    let redirect = raw.tls.as_ref().and_then(|tls| tls.redirect_span.as_ref());
    if let Some(span) = redirect.filter(|_| raw.listen.is_empty()) {
        let message = "`tls.redirect` needs a plain listener";
        let diagnostic = Diagnostic::new(Code::Contradiction, message)
            .at(span, "with `listen = []` nobody comes without TLS")
            .help("write for example `listen = \":80\"` at the top");
        reader.report(diagnostic);
    }
}

fn check_same(reader: &Reader<'_>, listen: &[At<Listen>]) {
    for (i, one) in listen.iter().enumerate() {
        let any_port = matches!(&one.value, Listen::Tcp(address) if address.port() == 0);
        let first = listen[..i]
            .iter()
            .find(|first| first.value == one.value && !any_port);
        if let Some(first) = first {
            let twice =
                Diagnostic::new(Code::Duplicate, "the same address twice").at(&one.span, "");
            let diagnostic = if first.span.is_empty() {
                twice.help("it is what `listen` at the top is where it is not said")
            } else {
                twice.at(&first.span, "first here")
            };
            reader.report(diagnostic);
        }
    }
}
