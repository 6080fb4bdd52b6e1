//! Joins the sections of a file: limits are compiled, names become references, and rules that span
//! sections are checked. Reports all mistakes; the caller uses the [`Config`] only if there are
//! none.

use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::definitions::{Definitions, Inherited};
use super::section::SectionsPresent;
use super::*;
use crate::descriptor::DescriptorTable;
use crate::route::RouteTable;

/// A configuration, with the places that warnings need.
pub(super) struct Compiled<'r> {
    pub(super) config: Config,
    pub(super) definitions: Definitions<'r>,
    pub(super) places: Places,
    pub(super) ledger: Option<billing::DefinedLedger>,
}

fn inherited(top: &mut Section<'_>, config: &Config, present: SectionsPresent) -> Inherited {
    Inherited {
        on_error: config.store.on_error,
        max_body: config.server.max_body,
        case: top.optional_word("case", route::CASES),
        certificates: present.client_ca,
    }
}

/// Reads every section, and checks the agreement of all. Returns `None` if there is no table of
/// routes.
pub(super) fn compile<'r>(
    reader: &'r ConfigReader<'r>,
    table: &'r DeTable<'r>,
) -> Option<Compiled<'r>> {
    let mut top = Section::top(reader, table);
    let mut places = Places::default();
    let mut present = SectionsPresent::new(&top);
    let mut config = read_sections(&mut top, &mut present, &mut places);
    check_listen(reader, &config, &places);
    let only_decides = config.decide.is_some() && config.listen.is_empty() && config.tls.is_none();
    let upstream = top_upstream(&mut top);
    let inherited = inherited(&mut top, &config, present);
    let limits = top.named("limit").into_iter();
    let limits = limits
        .map(|(name, section)| {
            let (on_error, client_ip) = (inherited.on_error, &config.client_ip);
            limits::read(name, section, present, on_error, client_ip)
        })
        .collect();
    let upstreams = top.named("upstream").into_iter();
    let upstreams = upstreams
        .map(|(name, section)| upstream::read(name, section, present))
        .collect();
    let error_pages = error_page::read_all(&mut top);
    let access_logs = access_log::read_all(&mut top);
    let routes = top.list("route").into_iter();
    let routes: Vec<_> = routes
        .map(|section| route::read(section, inherited))
        .collect();
    let descriptors = descriptor::read_all(&mut top);
    let prices = Arc::new(usage::read_prices(&mut top));
    let usages = usage::read_all(&mut top, &prices);
    let status = status_path::read(&mut top);
    let ledger = billing::read(&mut top);
    if let Some(ledger) = &ledger {
        billing::check(reader, &config, ledger);
    }
    check_descriptors(reader, &config, &descriptors);
    top.finish();
    let mut definitions = Definitions::new(reader, inherited, limits, upstreams);
    (definitions.usages, definitions.prices) = (usages, prices);
    (definitions.only_decides, definitions.access_logs) = (only_decides, access_logs);
    definitions.bills_tokens = ledger.as_ref().is_some_and(billing::counts_tokens);
    definitions.has_descriptors = !descriptors.is_empty();
    definitions.error_pages =
        error_page::compile(error_pages, |name| definitions.find_upstream(name));
    let chosen = descriptor::choose_all(&mut definitions, &descriptors);
    let routes = routes::compile(&mut definitions, routes, upstream.as_ref());
    let descriptors = descriptor::compile(&definitions, descriptors, &chosen);
    (config.routes, config.descriptors) = (routes?, descriptors?);
    config.status =
        status.map(|status| Arc::new(status_path::compile(&definitions, status, &config.routes)));
    if config.decide.is_some() {
        let number = config.routes.iter().count();
        config.unrouted = Some(Box::new(routes::unrouted(&mut definitions, number)));
    }
    let limits = definitions.limits.iter();
    config.limits = limits.filter_map(|one| one.limit.clone()).collect();
    let upstreams = definitions.upstreams.iter();
    config.upstreams = upstreams.map(|one| one.settings.clone()).collect();
    config
        .error_pages
        .clone_from(&definitions.error_pages.pages);
    config.access_logs.clone_from(&definitions.access_logs.0);
    Arc::make_mut(&mut config.sources).rates = definitions.rate_places();
    config.ledger = ledger
        .as_ref()
        .map(|ledger| Arc::new(ledger.settings.clone()));
    Some(Compiled {
        config,
        definitions,
        places,
        ledger,
    })
}

/// Reads all sections but those of limits, upstreams and routes.
fn read_sections(
    top: &mut Section<'_>,
    present: &mut SectionsPresent,
    places: &mut Places,
) -> Config {
    let mut keys = api_key::read(top.section("api_key"));
    let tier = auth::read_tier(top, *present, &mut keys.known);
    present.tier |= tier.as_ref().is_some_and(|tier| tier.by_key);
    present.denies_unknown_keys = keys.denies_unknown();
    places.listen = top.listen_addresses("listen");
    let admin = server::read_admin(top);
    places.admin = admin.as_ref().map(|admin| admin.span.clone());
    places.trusted_proxies = top.key_span("trusted_proxies");
    places.tier = top.key_span("tier");
    places.auth = top.key_span("auth");
    places.unknown_keys.clone_from(&keys.unknown_span);
    let (headers, request_id) = deny::read_headers(top.section("headers"));
    let auth = auth::read(top.section("auth"));
    let (jwt, jwks) = auth.map(|auth| (auth.rules, auth.jwks)).unzip();
    let server = server::read(top, places);
    let mut store = store::read(top.section("store"), places);
    store.known_keys = keys.are_in_redis(top.reader, &store.kind);
    Config {
        listen: values(places.listen.clone()),
        tls: tls::read(top, server.http2, places).map(Arc::new),
        decide: decide::read(top, places).map(Arc::new),
        unrouted: None,
        status: None,
        ledger: None,
        admin: admin.map(|admin| admin.value),
        store,
        client_ip: server::read_client_ip(top, places),
        access: access::read(top.section("access")),
        key_callback: keys.callback.take().map(Arc::new),
        api_key: keys.finish(jwt.is_some()),
        jwt,
        jwks: jwks.flatten().map(Arc::new),
        tier,
        limits: Vec::new(),
        routes: RouteTable::new(Vec::new()).expect("a table without routes has no conflicts"),
        descriptors: DescriptorTable::default(),
        bypass: (top.list("bypass").into_iter().filter_map(deny::read_bypass)).collect(),
        upstreams: Vec::new(),
        error_pages: Vec::new(),
        access_logs: Vec::new(),
        headers,
        request_id,
        deny: deny::read(top.section("deny")),
        server,
        log: server::read_log(top.section("log")),
        tracing: traces::read(top.section("tracing")).map(Arc::new),
        sources: Arc::default(),
    }
}

/// Reads `upstream` at the top: a URL, or the tables `[upstream.NAME]`, which are read elsewhere.
fn top_upstream(top: &mut Section<'_>) -> Option<Located<Option<String>>> {
    top.declare("upstream", || ValueKind::Text);
    let value = top.peek("upstream")?;
    let text = match value.get_ref() {
        DeValue::Table(_) => return None,
        DeValue::String(_) => top.text("upstream"),
        _ => {
            let wanted = "a URL, or tables with names: `[upstream.NAME]`";
            top.wrong_type("upstream", value, wanted);
            None
        }
    };
    Some(Located::new(text, &value.span()))
}

fn check_listen(reader: &ConfigReader<'_>, config: &Config, places: &Places) {
    let clients = [&places.listen[..], &places.tls_listen].concat();
    let mut all = [&clients[..], &places.decide_listen].concat();
    if let (Some(admin), Some(span)) = (&config.admin, &places.admin) {
        all.push(Located::new(Listen::Tcp(admin.address), span));
        server::check_admin_port(reader, &Located::new(admin.address, span), &clients);
    }
    check_duplicate_addresses(reader, &all);
    let acme = config.tls.as_ref().and_then(|tls| tls.acme.as_ref());
    let http = acme.is_some_and(|acme| acme.challenge == AcmeChallenge::Http01);
    if http && config.listen.is_empty() {
        contradiction("`tls.acme` needs a plain listener")
            .help("write `listen = \":80\"`, or `challenge = \"tls-alpn-01\"` in `[tls.acme]`")
            .report_to(reader);
    }
    if let Some(span) = places
        .tls_redirect
        .as_ref()
        .filter(|_| config.listen.is_empty())
    {
        contradiction("`tls.redirect` needs a plain listener")
            .at(span, "with `listen = []` no client connects without TLS")
            .help("write for example `listen = \":80\"` at the top")
            .report_to(reader);
    }
}

/// Reports descriptors that no proxy can send.
fn check_descriptors(
    reader: &ConfigReader<'_>,
    config: &Config,
    descriptors: &[descriptor::DefinedDescriptor],
) {
    if let (None, Some(first)) = (&config.decide, descriptors.first()) {
        contradiction("`[[descriptor]]` without `[decide]`")
            .at(first.span(), "no proxy can send a descriptor")
            .help("write `[decide]` with `listen = \"127.0.0.1:8081\"`")
            .report_to(reader);
    }
}

fn check_duplicate_addresses(reader: &ConfigReader<'_>, listen: &[Located<Listen>]) {
    for (i, one) in listen.iter().enumerate() {
        let is_any_port = matches!(&one.value, Listen::Tcp(address) if address.port() == 0);
        let is_same = |first: &&Located<Listen>| first.value == one.value && !is_any_port;
        if let Some(first) = listen[..i].iter().find(is_same) {
            let twice = duplicate("the same address twice").at(&one.span, "");
            reader.report(match first.span.is_empty() {
                true => twice.help("`:8080` is already the default of the top-level `listen`"),
                false => twice.at(&first.span, "first here"),
            });
        }
    }
}
