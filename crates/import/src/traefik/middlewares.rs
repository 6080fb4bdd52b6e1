//! Middlewares: what they do to a router's requests, as limits and settings of its routes.

use super::tree::Item;
use super::{File, times, tls};
use crate::bucket::{self, Refill};
use crate::draft::{Budget, Goal, KeyDraft, LimitDraft, Setting};
use crate::print::text;
use crate::route::{Direction, HeaderChange};
use http::HeaderName;

/// Chains of chains, at most.
const MAX_DEPTH: usize = 8;

/// What all middlewares of a router come to.
#[derive(Clone, Debug, Default)]
pub(super) struct Effect {
    pub(super) limits: Vec<String>,
    pub(super) settings: Vec<Setting>,
    pub(super) strip: Vec<String>,
    /// Put before the path.
    pub(super) prefix: Option<String>,
    /// Of the upstream.
    pub(super) retries: Option<u64>,
    /// What happens in place of the service.
    pub(super) goal: Option<Goal>,
    /// Sends plain requests to https.
    pub(super) to_https: bool,
    up: Vec<String>,
    down: Vec<String>,
}

/// What guards access or chooses another path, and cannot be kept.
const CLOSING: [(&str, &str); 9] = [
    ("ipAllowList", "tidegate keeps no addresses out"),
    ("ipWhiteList", "tidegate keeps no addresses out"),
    ("basicAuth", "tidegate asks for no credentials"),
    ("digestAuth", "tidegate asks for no credentials"),
    ("forwardAuth", "tidegate asks nobody else"),
    ("stripPrefixRegex", "no route can say this path"),
    ("replacePath", "no route can say this path"),
    ("replacePathRegex", "no route can say this path"),
    ("redirectRegex", "no route can say this redirect"),
];

/// The effect of the middlewares of these names, in their order.
pub(super) fn effect(names: &[String], all: &Item, at: &Item, file: &mut File<'_>) -> Effect {
    let mut effect = Effect::default();
    let chain = Chain { all, at, depth: 0 };
    chain.add(names, &mut effect, file);
    for (key, list) in [("headers_up", &effect.up), ("headers_down", &effect.down)] {
        if !list.is_empty() {
            let value = format!("{{ {} }}", list.join(", "));
            effect.settings.push((key.to_owned(), value));
        }
    }
    effect
}

/// A list of middlewares by their names.
struct Chain<'f> {
    /// All that the file has.
    all: &'f Item,
    /// Where the list stands.
    at: &'f Item,
    /// Chains around it.
    depth: usize,
}

impl Chain<'_> {
    fn add(&self, names: &[String], effect: &mut Effect, file: &mut File<'_>) {
        for name in names {
            let plain = name.split('@').next().unwrap_or(name);
            let found = self.all.get(plain).filter(|_| self.depth < MAX_DEPTH);
            let Some(item) = found else {
                let why = "there is no such middleware in this file; the router is closed";
                file.lost(self.at, &format!("middleware {name}"), why);
                effect.goal = Some(Goal::Closed(format!("the middleware {name} is not here")));
                continue;
            };
            for (kind, options) in item.entries() {
                if kind.eq_ignore_ascii_case("chain") {
                    let inner = Chain {
                        all: self.all,
                        at: options,
                        depth: self.depth + 1,
                    };
                    inner.add(&options.texts_at("middlewares"), effect, file);
                } else {
                    one(plain, kind, options, effect, file);
                }
            }
        }
    }
}

fn one(name: &str, kind: &str, options: &Item, effect: &mut Effect, file: &mut File<'_>) {
    let what = format!("{name}.{kind}");
    let closing = CLOSING
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(kind));
    if let Some((_, why)) = closing {
        file.lost(options, &what, format!("{why}; its routers are closed"));
        effect.goal = Some(Goal::Closed(format!("`{what}`: {why}")));
        return;
    }
    match kind.to_ascii_lowercase().as_str() {
        "ratelimit" => effect.limits.extend(rate_limit(name, options, file)),
        "inflightreq" => effect.limits.extend(in_flight(name, options, file)),
        "stripprefix" => effect.strip.extend(options.texts_at("prefixes")),
        "addprefix" => {
            let prefix = options.text_at("prefix").unwrap_or_default();
            match (crate::route::Prefix::parse(prefix), &effect.prefix) {
                (Ok(_), None) => effect.prefix = Some(prefix.to_owned()),
                _ => {
                    let why = "no route can say this path";
                    file.lost(options, &what, format!("{why}; its routers are closed"));
                    effect.goal = Some(Goal::Closed(format!("`{what}`: {why}")));
                }
            }
        }
        "redirectscheme" => redirect_scheme(options, &what, effect, file),
        "headers" => headers(options, &what, effect, file),
        "retry" => {
            let attempts = options
                .text_at("attempts")
                .and_then(|text| text.parse::<u64>().ok());
            effect.retries = attempts.map(|attempts| attempts.saturating_sub(1).min(10));
        }
        "buffering" => {
            let most = options.text_at("maxRequestBodyBytes");
            let most = most
                .and_then(|text| text.parse::<u64>().ok())
                .filter(|most| *most > 0);
            if let Some(most) = most {
                let setting = ("body_limit".to_owned(), text(&format!("{most}B")));
                effect.settings.push(setting);
            }
            let others = [
                "maxRequestBodyBytes",
                "memRequestBodyBytes",
                "memResponseBodyBytes",
            ];
            file.others(options, &format!("{what}."), &others);
        }
        "contenttype" => file.needless(options, &what, "what upstreams say is passed on"),
        "circuitbreaker" => file.lost(options, &what, "`eject` of the upstream is like it"),
        "errors" | "passtlsclientcert" | "grpcweb" => {
            file.lost(options, &what, "tidegate has nothing like it");
        }
        "compress" => file.lost(options, &what, "tidegate does not compress"),
        _ => {
            let why = "it is not known what it does";
            file.lost(options, &what, format!("{why}; its routers are closed"));
            effect.goal = Some(Goal::Closed(format!("`{what}`: {why}")));
        }
    }
}

/// `average` in each `period`, and `burst` at once.
fn rate_limit(name: &str, options: &Item, file: &mut File<'_>) -> Option<String> {
    let what = format!("{name}.rateLimit");
    let known = ["average", "period", "burst", "sourceCriterion"];
    file.others(options, &format!("{what}."), &known);
    let number = |key: &str| {
        options
            .text_at(key)
            .and_then(|text| text.parse::<u64>().ok())
    };
    let average = number("average").unwrap_or(0);
    if average == 0 {
        file.needless(options, &what, "an average of 0 is no limit");
        return None;
    }
    let period = options.text_at("period").map_or(Some(1_000_000), times::us);
    let burst = number("burst").unwrap_or(1).max(1);
    let refill = period.map(|per_us| Refill {
        units: average,
        per_us,
    });
    let Some(rate) = refill.and_then(|refill| bucket::window(refill, burst)) else {
        file.lost(options, &what, "no window is that long");
        return None;
    };
    if burst > 1 {
        let why = format!(
            "{rate}: as many at once and as many in the long run; but units come back when the \
             window has passed, where Traefik gave one back at a time"
        );
        file.differs(options, &what, why);
    }
    let key = criterion(options, &what, "ip", file);
    let period = options.text_at("period").unwrap_or("1s");
    let place = file.place(options);
    Some(file.draft.limit(LimitDraft {
        name: name.to_owned(),
        was: format!("{what}: average {average}, period {period}, burst {burst}"),
        budget: Budget::Rate(rate),
        key,
        shadow: false,
        place,
    }))
}

fn in_flight(name: &str, options: &Item, file: &mut File<'_>) -> Option<String> {
    let what = format!("{name}.inFlightReq");
    file.others(options, &format!("{what}."), &["amount", "sourceCriterion"]);
    let amount = options
        .text_at("amount")
        .and_then(|text| text.parse::<u64>().ok());
    let Some(amount) = amount.filter(|amount| *amount > 0) else {
        file.lost(options, &what, "amount is no number of requests");
        return None;
    };
    let key = criterion(options, &what, "host", file);
    let place = file.place(options);
    Some(file.draft.limit(LimitDraft {
        name: name.to_owned(),
        was: format!("{what}: amount {amount}"),
        budget: Budget::Concurrent(amount),
        key,
        shadow: false,
        place,
    }))
}

/// Who is counted.
fn criterion(options: &Item, what: &str, usual: &str, file: &mut File<'_>) -> KeyDraft {
    let empty = Item::default();
    let source = options.get("sourceCriterion").unwrap_or(&empty);
    let known = ["ipStrategy", "requestHeaderName", "requestHost"];
    file.others(source, &format!("{what}.sourceCriterion."), &known);
    let key = |part: &str, missing| KeyDraft {
        parts: vec![part.to_owned()],
        missing,
        exempt: Vec::new(),
    };
    if let Some(name) = source.text_at("requestHeaderName") {
        // Who sends no such header is one client for Traefik.
        return key(
            &format!("header:{}", name.to_ascii_lowercase()),
            Some("shared"),
        );
    }
    if source.is_true("requestHost") {
        return key("host", None);
    }
    let Some(strategy) = source.get("ipStrategy") else {
        return key(usual, None);
    };
    let depth = strategy
        .text_at("depth")
        .and_then(|text| text.parse::<u64>().ok());
    if let Some(depth) = depth.filter(|depth| *depth > 0) {
        let why = format!(
            "`trusted_proxies` names the {depth} before this one, where Traefik counts them; until \
             then all their clients are one"
        );
        file.differs(strategy, &format!("{what}.ipStrategy.depth"), why);
    }
    file.draft.trusted.extend(strategy.texts_at("excludedIPs"));
    let known = ["depth", "excludedIPs", "ipv6Subnet"];
    file.others(strategy, &format!("{what}.ipStrategy."), &known);
    key("ip", None)
}

fn redirect_scheme(options: &Item, what: &str, effect: &mut Effect, file: &mut File<'_>) {
    if options.text_at("scheme") != Some("https") {
        file.lost(options, what, "only https is redirected to");
        effect.goal = Some(Goal::Closed(format!(
            "`{what}`: only https is redirected to"
        )));
        return;
    }
    effect.to_https = true;
    let port = options.text_at("port").filter(|port| *port != "443");
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    let status = if options.is_true("permanent") {
        301
    } else {
        302
    };
    effect.goal = effect.goal.take().or(Some(Goal::Redirect {
        to: format!("https://{{host}}{port}{{uri}}"),
        status,
    }));
}

fn headers(options: &Item, what: &str, effect: &mut Effect, file: &mut File<'_>) {
    for (key, direction) in [
        ("customRequestHeaders", Direction::Up),
        ("customResponseHeaders", Direction::Down),
    ] {
        for (name, value) in options.get(key).map(Item::entries).unwrap_or_default() {
            let header = HeaderName::from_bytes(name.as_bytes());
            let why = match &header {
                Ok(header) => HeaderChange::may_touch(header, direction).err(),
                Err(_) => Some("not a header's name"),
            };
            if let Some(why) = why {
                file.lost(value, &format!("{what}.{key}.{name}"), why);
                continue;
            }
            let name = name.to_ascii_lowercase();
            let change = match value.text().unwrap_or_default() {
                "" => format!("{} = false", text(&name)),
                value => {
                    let braced = value.replace('{', "{{").replace('}', "}}");
                    format!("{} = {}", text(&name), text(&braced))
                }
            };
            match direction {
                Direction::Up => effect.up.push(change),
                Direction::Down => effect.down.push(change),
            }
        }
    }
    for (key, header) in [
        ("frameDeny", "x-frame-options = \"DENY\""),
        ("contentTypeNosniff", "x-content-type-options = \"nosniff\""),
        ("browserXssFilter", "x-xss-protection = \"1; mode=block\""),
    ] {
        if options.is_true(key) {
            effect.down.push(header.to_owned());
        }
    }
    let sts = options
        .text_at("stsSeconds")
        .and_then(|text| text.parse::<u64>().ok());
    match sts.map(|seconds| seconds / 86_400) {
        Some(365) => tls::set(file, "hsts", "true".to_owned()),
        Some(days) if days > 0 => tls::set(file, "hsts", text(&format!("{days}d"))),
        _ => {}
    }
    let known = [
        "customRequestHeaders",
        "customResponseHeaders",
        "frameDeny",
        "contentTypeNosniff",
        "browserXssFilter",
        "stsSeconds",
    ];
    file.others(options, &format!("{what}."), &known);
}
