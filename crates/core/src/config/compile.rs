//! Joins the sections of a file: limits are compiled, names become references, and rules that span
//! sections are checked. Reports all mistakes; the caller uses the [`Config`] only if there are
//! none.

use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::definitions::{Definitions, Inherited};
use super::diagnostic::{Code, Diagnostic, TextSpan};
use super::limits::{self, RawLimit, SectionsPresent};
use super::reader::{ConfigReader, Located, ValueKind, values};
use super::route::{self, RawRoute};
use super::section::Section;
use super::tls;
use super::upstream::{self, DefinedUpstream};
use super::{
    AcmeChallenge, Config, Listen, admin, api_key, auth, bypass, deny, routes, server, store,
    traces,
};
use crate::certificate::Validity;
use crate::path::Case;
use crate::route::RouteTable;

/// A whole file, each section read by itself.
pub(super) struct RawFile {
    /// Complete but for limits, upstreams and routes.
    config: Config,
    places: Places,
    listen: Vec<Located<Listen>>,
    tls_listen: Vec<Located<Listen>>,
    tls_redirect: Option<TextSpan>,
    /// The top-level `upstream`; the text is `None` if it could not be read.
    upstream: Option<Located<Option<String>>>,
    /// Whether letter case tells the paths of all routes apart, if the file says it.
    case: Option<Case>,
    limits: Vec<RawLimit>,
    routes: Vec<RawRoute>,
    upstreams: Vec<DefinedUpstream>,
}

/// Places in the file that findings about the whole configuration point to.
pub(super) struct Places {
    pub(super) admin: Option<TextSpan>,
    /// The places of `config.listen`.
    pub(super) listen: Vec<TextSpan>,
    pub(super) trusted_proxies: TextSpan,
    pub(super) tier: TextSpan,
    /// `unknown` of `[api_key]`, if the file has it.
    pub(super) unknown_keys: Option<TextSpan>,
    /// Certificates that are not valid now.
    pub(super) untimely: Vec<Located<Validity>>,
}

/// A configuration, with the places that warnings need.
pub(super) struct Compiled<'r> {
    pub(super) config: Config,
    pub(super) definitions: Definitions<'r>,
    pub(super) places: Places,
}

/// Reads every section by itself.
pub(super) fn read_sections<'r>(reader: &'r ConfigReader<'r>, table: &'r DeTable<'r>) -> RawFile {
    let mut top = Section::top(reader, table);
    if !reader.surroundings.forwards {
        top.refuse_proxy_settings();
    }
    let mut keys = api_key::read(top.section("api_key"));
    let mut present = SectionsPresent::of(&top);
    let tier = auth::read_tier(&mut top, present, &mut keys.known);
    present.tier |= tier.as_ref().is_some_and(|tier| tier.by_key);
    let listen = top.listen_addresses("listen");
    let admin = admin::read(&mut top);
    let upstream = top_upstream(&mut top);
    let (headers, request_id) = deny::read_headers(top.section("headers"));
    let jwt = auth::read(top.section("auth"));
    let server = server::read(&mut top);
    let tls = tls::read(&mut top, server.http2);
    let places = Places {
        admin: admin.as_ref().map(|admin| admin.span.clone()),
        listen: listen.iter().map(|one| one.span.clone()).collect(),
        trusted_proxies: top.key_span("trusted_proxies"),
        tier: top.key_span("tier"),
        unknown_keys: keys.unknown_span.clone(),
        untimely: tls.untimely,
    };
    let config = Config {
        listen: values(listen.clone()),
        tls: tls.settings.map(Arc::new),
        admin: admin.map(|admin| admin.value),
        store: store::read(top.section("store")),
        client_ip: server::read_client_ip(&mut top),
        api_key: keys.finish(jwt.is_some()),
        jwt,
        tier,
        limits: Vec::new(),
        routes: RouteTable::new(Vec::new()).expect("a table without routes has no conflicts"),
        bypass: (top.list("bypass").into_iter().filter_map(bypass::read)).collect(),
        upstreams: Vec::new(),
        headers,
        request_id,
        deny: deny::read(top.section("deny")),
        server,
        log: server::read_log(top.section("log")),
        tracing: traces::read(top.section("tracing")).map(Arc::new),
        sources: Arc::default(),
    };
    let limits = top.named("limit").into_iter();
    let upstreams = top.named("upstream").into_iter();
    let raw = RawFile {
        config,
        places,
        listen,
        tls_listen: tls.listen,
        tls_redirect: tls.redirect_span,
        upstream,
        case: top
            .optional_word("case", route::CASES)
            .map(|case| case.value),
        limits: limits
            .map(|(name, section)| limits::read(name, section, present))
            .collect(),
        routes: top.list("route").into_iter().map(route::read).collect(),
        upstreams: upstreams
            .map(|(name, section)| upstream::read(name, section, present))
            .collect(),
    };
    top.finish();
    raw
}

/// Reads `upstream` at the top: a URL, or the tables `[upstream.NAME]`, which are read elsewhere.
fn top_upstream(top: &mut Section<'_>) -> Option<Located<Option<String>>> {
    top.declare("upstream", || ValueKind::Text);
    let value = top.peek("upstream")?;
    let text = match value.get_ref() {
        DeValue::Table(_) => return None,
        DeValue::String(_) => top.text("upstream").map(|text| text.value),
        _ => {
            let wanted = "a URL, or tables with names: `[upstream.NAME]`";
            top.wrong_type("upstream", value, wanted);
            None
        }
    };
    Some(Located::new(text, &value.span()))
}

/// Checks the agreement of all sections. Returns `None` if there is no table of routes.
pub(super) fn compile<'r>(reader: &'r ConfigReader<'r>, mut raw: RawFile) -> Option<Compiled<'r>> {
    check_listen(reader, &raw);
    let inherited = Inherited {
        on_error: raw.config.store.on_error,
        max_body: raw.config.server.max_body,
        case: raw.case,
    };
    let mut definitions = Definitions::new(reader, inherited, raw.limits, raw.upstreams);
    raw.config.routes = routes::compile(&mut definitions, raw.routes, raw.upstream.as_ref())?;
    let limits = definitions.limits.iter();
    raw.config.limits = limits.filter_map(|one| one.limit.clone()).collect();
    let upstreams = definitions.upstreams.iter();
    raw.config.upstreams = upstreams.map(|one| one.settings.clone()).collect();
    Some(Compiled {
        config: raw.config,
        definitions,
        places: raw.places,
    })
}

fn check_listen(reader: &ConfigReader<'_>, raw: &RawFile) {
    let clients = [&raw.listen[..], &raw.tls_listen].concat();
    let mut all = clients.clone();
    if let (Some(admin), Some(span)) = (&raw.config.admin, &raw.places.admin) {
        all.push(Located::new(Listen::Tcp(admin.address), span));
        admin::check_port(reader, &Located::new(admin.address, span), &clients);
    }
    check_duplicate_addresses(reader, &all);
    let acme = raw.config.tls.as_ref().and_then(|tls| tls.acme.as_ref());
    let http = acme.is_some_and(|acme| acme.challenge == AcmeChallenge::Http01);
    if http && raw.listen.is_empty() {
        Diagnostic::new(Code::Contradiction, "`tls.acme` needs a plain listener")
            .help("write `listen = \":80\"`, or `challenge = \"tls-alpn-01\"` in `[tls.acme]`")
            .report_to(reader);
    }
    if let Some(span) = raw.tls_redirect.as_ref().filter(|_| raw.listen.is_empty()) {
        Diagnostic::new(Code::Contradiction, "`tls.redirect` needs a plain listener")
            .at(span, "with `listen = []` nobody comes without TLS")
            .help("write for example `listen = \":80\"` at the top")
            .report_to(reader);
    }
}

fn check_duplicate_addresses(reader: &ConfigReader<'_>, listen: &[Located<Listen>]) {
    for (i, one) in listen.iter().enumerate() {
        let is_any_port = matches!(&one.value, Listen::Tcp(address) if address.port() == 0);
        let is_same = |first: &&Located<Listen>| first.value == one.value && !is_any_port;
        if let Some(first) = listen[..i].iter().find(is_same) {
            let twice =
                Diagnostic::new(Code::Duplicate, "the same address twice").at(&one.span, "");
            reader.report(match first.span.is_empty() {
                true => twice.help("it is what `listen` at the top is where it is not said"),
                false => twice.at(&first.span, "first here"),
            });
        }
    }
}
