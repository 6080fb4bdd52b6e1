//! Joins what the sections say: limits become budgets, names become references, and rules that
//! span sections are checked. Reports everything; makes a [`Config`] only if nothing is wrong.

use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderName;

use super::advice;
use super::budget::{self, Budget};
use super::diagnostic::{Code, Diagnostic, Span};
use super::limits::RawLimit;
use super::route::RawRoute;
use super::section::{At, Reader, nearest};
use super::tls_keys::RawTls;
use super::upstream::RawUpstream;
use super::{
    AcmeChallenge, AdminSettings, Balance, Bypass, Config, DenySettings, Listen, LogSettings,
    ServerSettings, StoreSettings, TlsSettings, TracingSettings, UpstreamSettings, address, admin,
    routes,
};
use crate::certificate::Validity;
use crate::client::ClientIp;
use crate::limit::OnError;
use crate::limit::headers::HeaderSettings;
use crate::limit::key::jwt::JwtRules;
use crate::limit::key::{ApiKeys, Key};
use crate::limit::tier::Tiers;
use crate::path::Case;
use crate::route;

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

/// An upstream and where it came from.
pub(super) struct Target {
    pub(super) settings: UpstreamSettings,
    pub(super) span: Span,
    /// Where each of its servers is named.
    pub(super) server_spans: Vec<Span>,
    pub(super) used: bool,
}

/// The tables that routes refer to.
pub(super) struct Names<'r> {
    pub(super) reader: &'r Reader<'r>,
    pub(super) budgets: Vec<Budget>,
    pub(super) targets: Vec<Target>,
    pub(super) on_error: OnError,
    /// Bytes of a request's body where its route does not say it.
    pub(super) max_body: Option<u64>,
    /// What the file says of letter case in all paths.
    pub(super) case: Option<Case>,
    /// Routes of whose letter case the file says nothing, by number, with their paths' places.
    pub(super) caseless: Vec<At<usize>>,
    /// Whether some route does not say that it has no limits, and has none.
    pub(super) unlimited_unsaid: bool,
    /// How many budgets are limits: rates of `unlimited` are not.
    limits: usize,
    /// How many budgets have a section; the others are rates in place, which nobody can refer to.
    sections: usize,
    limit_index: HashMap<String, usize>,
    target_index: HashMap<String, usize>,
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
    let mut names = Names::new(reader, &raw);
    for limit in raw.limits {
        names.add_limit(limit);
    }
    names.sections = names.budgets.len();
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

impl<'r> Names<'r> {
    fn new(reader: &'r Reader<'r>, raw: &RawFile) -> Names<'r> {
        Names {
            reader,
            budgets: Vec::new(),
            targets: Vec::new(),
            on_error: raw.store.on_error,
            max_body: raw.server.max_body,
            case: raw.case,
            caseless: Vec::new(),
            unlimited_unsaid: false,
            limits: 0,
            sections: 0,
            limit_index: HashMap::new(),
            target_index: HashMap::new(),
        }
    }
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

impl Names<'_> {
    /// Checks a limit by itself and adds it; returns its index.
    pub(super) fn add_limit(&mut self, raw: RawLimit) -> usize {
        let index = self.budgets.len();
        self.limit_index.insert(raw.name.value.clone(), index);
        let mut budget = budget::budget(self.reader, raw, self.on_error);
        if let Some(limit) = &mut budget.limit {
            Arc::make_mut(limit).number = self.limits;
            self.limits += 1;
        }
        self.budgets.push(budget);
        index
    }

    /// The limit whose section has this name.
    pub(super) fn limit_named(&self, name: &str) -> Option<usize> {
        self.limit_index
            .get(name)
            .copied()
            .filter(|index| *index < self.sections)
    }

    /// Whether routes that name no limits have one.
    pub(super) fn has_default(&self) -> bool {
        self.limit_named(routes::DEFAULT).is_some()
    }

    /// Whether any limit has this name.
    pub(super) fn is_limit(&self, name: &str) -> bool {
        self.limit_index.contains_key(name)
    }

    /// The key by which the servers of a route's upstream are chosen, if they are.
    pub(super) fn affinity(&self, target: &route::Target) -> Option<Key> {
        let route::Target::Upstream(upstream) = target else {
            return None;
        };
        match &self.targets.get(*upstream)?.settings.balance {
            Balance::Hash(key) => Some(key.clone()),
            Balance::P2c | Balance::RoundRobin => None,
        }
    }

    /// Limits that have sections.
    pub(super) fn limits(&self) -> &[Budget] {
        &self.budgets[..self.sections]
    }

    fn add_upstream(&mut self, raw: RawUpstream) -> usize {
        let name = raw.settings.name.to_string();
        self.target_index.insert(name, self.targets.len());
        self.targets.push(Target {
            settings: raw.settings,
            span: raw.span,
            server_spans: raw.server_spans,
            used: false,
        });
        self.targets.len() - 1
    }

    /// What `upstream = TEXT` refers to: a name, or a server's URL in place.
    pub(super) fn target(&mut self, text: &At<String>) -> Option<usize> {
        if let Some(index) = self.target_index.get(&text.value).copied() {
            self.targets[index].used = true;
            return Some(index);
        }
        if !address::is_server(&text.value) {
            self.unknown_upstream(text);
            return None;
        }
        let server = match address::server(&text.value) {
            Ok(server) => server.within(|path| self.reader.surroundings.path(path)),
            Err(error) => {
                let diagnostic = Diagnostic::new(Code::BadUrl, "`upstream` is not a server's URL");
                let diagnostic = diagnostic.because(&text.span, &error);
                let help = diagnostic.help.clone();
                let help = help.or_else(|| advice::of(Code::BadUrl, &text.value));
                self.reader.report(diagnostic.maybe_help(help));
                return None;
            }
        };
        let name = address::server_name(&server);
        let index = match self.target_index.get(&name).copied() {
            Some(index) => index,
            None => self.add_upstream(RawUpstream {
                settings: UpstreamSettings::new(&name, vec![server.into()]),
                span: text.span.clone(),
                server_spans: vec![text.span.clone()],
            }),
        };
        self.targets[index].used = true;
        Some(index)
    }

    fn unknown_upstream(&self, text: &At<String>) {
        if self.reader.is_misnamed("upstream", &text.value) {
            return;
        }
        let known = || self.targets.iter().map(|target| &*target.settings.name);
        let help = match nearest(&text.value, known()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("define it: `[upstream.{}]`, or write a URL", text.value),
        };
        let message = format!("no upstream is called `{}`", text.value);
        let diagnostic = Diagnostic::new(Code::UnknownUpstream, message)
            .at(&text.span, "")
            .help(help);
        self.reader.report(diagnostic);
    }
}
