//! The effect of middlewares on a router's requests, as limits and settings of its routes.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Router, TraefikFile, local_name};
use crate::draft::{LimitDraft, TargetDraft};
use crate::files::SourceEntry;
use crate::patterns;
use crate::route::{Direction, Prefix};
use crate::tree::TreeItem;
use crate::values::{self, KeyDraft, Refill, TomlEntries, TomlEntry};
use crate::values::{inline_table, quote, quote_one_or_list};

/// Chains of chains, at most.
const MAX_DEPTH: usize = 8;

#[derive(Clone, Debug, Default)]
pub(super) struct MiddlewareEffect {
    pub(super) limits: Vec<String>,
    pub(super) entries: TomlEntries,
    pub(super) strip: Vec<String>,
    pub(super) prefix: Option<String>,
    pub(super) retries: Option<u64>,
    pub(super) target: Option<TargetDraft>,
    pub(super) redirects_to_https: bool,
    headers_up: Vec<String>,
    headers_down: Vec<String>,
}

/// Middlewares that guard access or choose another path, and that tidegate has not.
const CLOSING: [(&str, &str); 7] = [
    ("basicAuth", "tidegate asks for no credentials"),
    ("digestAuth", "tidegate asks for no credentials"),
    ("forwardAuth", "tidegate asks no other service"),
    ("stripPrefixRegex", "no route can say this path"),
    ("replacePath", "no route can say this path"),
    ("replacePathRegex", "no route can say this path"),
    ("redirectRegex", "no route can say this redirect"),
];

pub(super) fn read_middlewares(
    names: &[String],
    router: &Router<'_>,
    file: &mut TraefikFile<'_>,
) -> MiddlewareEffect {
    let mut reader = MiddlewareReader {
        router: &router.what,
        file,
        effect: MiddlewareEffect::default(),
    };
    reader.read_list(names, router.item, 0);
    let mut effect = reader.effect;
    effect.entries.add_table("headers_up", &effect.headers_up);
    let (entries, down) = (&mut effect.entries, &effect.headers_down);
    entries.add_table("headers_down", down);
    effect
}

struct MiddlewareReader<'r, 'd> {
    /// `router NAME`. Each router has counts of its own.
    router: &'r str,
    file: &'r mut TraefikFile<'d>,
    effect: MiddlewareEffect,
}

impl MiddlewareReader<'_, '_> {
    /// Reads the middlewares of a router or a chain, which is `item`.
    fn read_list(&mut self, names: &[String], item: &TreeItem, depth: usize) {
        for name in names {
            let found = self.file.find("middlewares", name);
            let Some(found) = found.filter(|_| depth < MAX_DEPTH) else {
                let why = "there is no such middleware in this file; the router is closed";
                item.lost(&format!("middleware {name}"), why);
                let why = format!("the middleware {name} is not here");
                self.effect.target = Some(TargetDraft::Closed(why));
                continue;
            };
            for (kind, options) in found.entries() {
                match kind.eq_ignore_ascii_case("chain") {
                    true => {
                        let names = options.texts_at("middlewares");
                        self.read_list(&names, options, depth + 1);
                    }
                    false => self.read_one(local_name(name), kind, options),
                }
            }
        }
    }

    fn read_one(&mut self, name: &str, kind: &str, options: &TreeItem) {
        let what = format!("{name}.{kind}");
        let mut closing = CLOSING.iter();
        if let Some((_, why)) = closing.find(|(known, _)| known.eq_ignore_ascii_case(kind)) {
            return self.close(&what, options, why);
        }
        match kind.to_ascii_lowercase().as_str() {
            "ratelimit" => self.add_rate_limit(name, options),
            "inflightreq" => self.add_in_flight_limit(name, options),
            "ipallowlist" | "ipwhitelist" => match self.read_allow_list(&what, options) {
                Ok(access) => self.effect.entries.add("access", access),
                Err(why) => self.close(&what, options, why),
            },
            "stripprefix" if !self.effect.strip.is_empty() => {
                self.close(&what, options, "a route takes one prefix off");
            }
            "stripprefix" => self.effect.strip = options.texts_at("prefixes"),
            "addprefix" => {
                let prefix = options.text_at("prefix").unwrap_or_default();
                match (Prefix::parse(prefix), &self.effect.prefix) {
                    (Ok(_), None) => self.effect.prefix = Some(prefix.to_owned()),
                    _ => self.close(&what, options, "no route can say this path"),
                }
            }
            "redirectscheme" => self.read_redirect_scheme(&what, options),
            "headers" => self.read_headers(&what, options),
            "retry" => {
                let attempts = options.number_at("attempts");
                let retries = attempts.map(|attempts| attempts.saturating_sub(1).min(10));
                self.effect.retries = retries;
            }
            "buffering" => {
                let most = options.number_at("maxRequestBodyBytes");
                if let Some(most) = most.filter(|most| *most > 0) {
                    let size = quote(&format!("{most}B"));
                    self.effect.entries.add("body_limit", size);
                }
                let known = "maxRequestBodyBytes memRequestBodyBytes memResponseBodyBytes";
                options.note_unknown(&format!("{what}."), known);
            }
            "contenttype" => {
                options.needless(&what, "the Content-Type of upstreams passes unchanged")
            }
            "circuitbreaker" => options.lost(&what, "`eject` of the upstream is like it"),
            "errors" | "passtlsclientcert" | "grpcweb" => {
                options.lost(&what, "tidegate has nothing like it");
            }
            "compress" => options.lost(&what, "tidegate does not compress"),
            _ => self.close(&what, options, "it is not known what it does"),
        }
    }

    /// Translates a list of addresses to `access`. The error says why its routers are closed.
    fn read_allow_list(&mut self, what: &str, options: &TreeItem) -> Result<String, &'static str> {
        let known = "sourceRange ipStrategy rejectStatusCode";
        options.note_unknown(&format!("{what}."), known);
        let ranges = options.texts_at("sourceRange");
        let is_network =
            |text: &String| text.parse::<IpNet>().is_ok() || text.parse::<IpAddr>().is_ok();
        if ranges.is_empty() || !ranges.iter().all(is_network) {
            return Err("its sourceRange cannot be read");
        }
        if self.effect.entries.has("access") {
            return Err("a route has one list of addresses");
        }
        match options.get("ipStrategy") {
            Some(strategy) if strategy.number_at("depth").is_some_and(|depth| depth > 0) => {
                return Err("`depth` counts proxies, and `trusted_proxies` needs their addresses");
            }
            Some(strategy) => self.read_ip_strategy(what, strategy),
            None => {
                let why = "Traefik asks for the address of the connection; here it is the client's \
                           behind `trusted_proxies`";
                options.differs(what, why);
            }
        }
        let status = options.text_at("rejectStatusCode");
        if status.is_some_and(|status| status != "403") {
            options.lost(&format!("{what}.rejectStatusCode"), "`access` answers 403");
        }
        let allow = format!("allow = {}", quote_one_or_list(&ranges));
        Ok(inline_table(&[allow]))
    }

    fn close(&mut self, what: &str, options: &TreeItem, why: &str) {
        options.lost(what, format!("{why}; its routers are closed"));
        self.effect.target = Some(TargetDraft::Closed(format!("`{what}`: {why}")));
    }

    /// Translates `average` in each `period`, and `burst` at once.
    fn add_rate_limit(&mut self, name: &str, options: &TreeItem) {
        let what = format!("{name}.rateLimit");
        let known = "average period burst sourceCriterion";
        options.note_unknown(&format!("{what}."), known);
        let units = options.number_at("average").unwrap_or(0);
        if units == 0 {
            return options.needless(&what, "an average of 0 is no limit");
        }
        let period = options.text_at("period").unwrap_or("1s");
        let burst = options.number_at("burst").unwrap_or(1).max(1);
        let refill = values::parse_go_us(period).map(|per_us| Refill { units, per_us });
        let Some(rate) = refill.and_then(|refill| refill.window(burst)) else {
            return options.lost(&what, "no window is that long");
        };
        if burst > 1 {
            let why = format!(
                "{rate}: as many at once and in the long run. But units come back when the window \
                 has passed; Traefik returned one at a time"
            );
            options.differs(&what, why);
        }
        let router = &self.router;
        let text = format!("{what} of {router}: average {units}, period {period}, burst {burst}");
        let key = self.read_key(&what, options, "ip");
        let source = options.entry(text);
        let budget = TomlEntry::new("rate", quote(&rate.to_string()));
        self.add_limit(name, source, budget, &key);
    }

    fn add_in_flight_limit(&mut self, name: &str, options: &TreeItem) {
        let what = format!("{name}.inFlightReq");
        options.note_unknown(&format!("{what}."), "amount sourceCriterion");
        let amount = options.number_at("amount").filter(|amount| *amount > 0);
        let Some(amount) = amount else {
            return options.lost(&what, "amount is no number of requests");
        };
        let source = options.entry(format!("{what} of {}: amount {amount}", self.router));
        let key = self.read_key(&what, options, "host");
        let budget = TomlEntry::new("concurrent", amount.to_string());
        self.add_limit(name, source, budget, &key);
    }

    fn add_limit(&mut self, name: &str, source: SourceEntry, budget: TomlEntry, key: &KeyDraft) {
        let mut entries = TomlEntries { list: vec![budget] };
        key.add_to(&mut entries);
        let name = name.to_owned();
        let limit = LimitDraft {
            name,
            source,
            entries,
        };
        self.effect.limits.push(self.file.draft.add_limit(limit));
    }

    /// Reads `sourceCriterion`, the key of a limit.
    fn read_key(&mut self, what: &str, options: &TreeItem, default: &str) -> KeyDraft {
        let Some(source) = options.get("sourceCriterion") else {
            return KeyDraft::of_part(default);
        };
        let known = "ipStrategy requestHeaderName requestHost";
        let path = format!("{what}.sourceCriterion.");
        source.note_unknown(&path, known);
        if let Some(name) = source.text_at("requestHeaderName") {
            // For Traefik, all requests without the header are one client.
            let mut key = KeyDraft::of_part(&format!("header:{}", name.to_ascii_lowercase()));
            key.missing = Some("shared");
            return key;
        }
        if source.is_true("requestHost") {
            return KeyDraft::of_part("host");
        }
        let Some(strategy) = source.get("ipStrategy") else {
            return KeyDraft::of_part(default);
        };
        self.read_ip_strategy(what, strategy);
        KeyDraft::of_part("ip")
    }

    fn read_ip_strategy(&mut self, what: &str, strategy: &TreeItem) {
        let depth = strategy.number_at("depth");
        if let Some(depth) = depth.filter(|depth| *depth > 0) {
            let why = format!(
                "`trusted_proxies` names the {depth} before this one, where Traefik counts them; \
                 until then all their clients are one"
            );
            let path = format!("{what}.ipStrategy.depth");
            strategy.differs(&path, why);
        }
        let excluded = strategy.texts_at("excludedIPs");
        self.file.draft.trusted.extend(excluded);
        let known = "depth excludedIPs ipv6Subnet";
        let path = format!("{what}.ipStrategy.");
        strategy.note_unknown(&path, known);
    }

    fn read_redirect_scheme(&mut self, what: &str, options: &TreeItem) {
        if options.text_at("scheme") != Some("https") {
            let why = "only https is redirected to";
            options.lost(what, why);
            self.effect.target = Some(TargetDraft::Closed(format!("`{what}`: {why}")));
            return;
        }
        self.effect.redirects_to_https = true;
        let port = options.text_at("port").filter(|port| *port != "443");
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let is_permanent = options.is_true("permanent");
        self.effect.target.get_or_insert(TargetDraft::Redirect {
            to: format!("https://{{host}}{port}{{uri}}"),
            status: if is_permanent { 301 } else { 302 },
        });
    }

    fn read_headers(&mut self, what: &str, options: &TreeItem) {
        let MiddlewareEffect {
            headers_up,
            headers_down,
            ..
        } = &mut self.effect;
        for (key, direction, changes) in [
            ("customRequestHeaders", Direction::Up, headers_up),
            ("customResponseHeaders", Direction::Down, headers_down),
        ] {
            for (name, value) in options.entries_at(key) {
                let name = match patterns::parse_changed_header(name, direction) {
                    Ok(name) => quote(&name),
                    Err(why) => {
                        let what = format!("{what}.{key}.{name}");
                        value.lost(&what, why);
                        continue;
                    }
                };
                changes.push(match value.text().unwrap_or_default() {
                    "" => format!("{name} = false"),
                    value => {
                        let braced = value.replace('{', "{{").replace('}', "}}");
                        format!("{name} = {}", quote(&braced))
                    }
                });
            }
        }
        for (key, header) in [
            ("frameDeny", "x-frame-options = \"DENY\""),
            ("contentTypeNosniff", "x-content-type-options = \"nosniff\""),
            ("browserXssFilter", "x-xss-protection = \"1; mode=block\""),
        ] {
            if options.is_true(key) {
                self.effect.headers_down.push(header.to_owned());
            }
        }
        let seconds = options.number_at("stsSeconds");
        self.file.draft.tls.set_hsts(seconds);
        let known = "customRequestHeaders customResponseHeaders frameDeny contentTypeNosniff \
                     browserXssFilter stsSeconds";
        options.note_unknown(&format!("{what}."), known);
    }
}
