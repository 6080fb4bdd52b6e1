//! The engine beside the proxy's embedded store: random traces, equal denials.

mod bans;
mod calls;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use http::Method;
use proptest::prelude::*;

use super::*;
use crate::config;
use crate::limit::{Charge, Limit, LimitCheck as Asked};
use crate::meter::{Rates, SCALES};
use crate::route::RouteQuery;
use std::net::IpAddr;
use tidegate_core::clock::Micros;
use tidegate_core::path::CanonicalPath;
use tidegate_core::store::hash_key::KeyRing;
use tidegate_core::store::memory::Memory;

/// All that limits can say, with rates in fours of `k`.
fn text(k: u64) -> String {
    let rate = |fours: u64, per: &str| format!("\"{}/{per}\"", fours * k);
    format!(
        "upstream = \"http://127.0.0.1:9\"\ntrusted_proxies = \"10.0.0.0/8\"\n\
         [client_ip]\nipv4_prefix = 31\n\
         [api_key]\nfrom = [\"query:key\"]\nunknown = \"trust\"\n\
         [tier]\nfrom = \"header:x-plan\"\ndefault = \"free\"\n\
         [limit.both]\nrate = [{}, {}]\nkey = \"ip\"\n\
         [limit.user]\nrate = {}\nkey = \"header:x-user or ip\"\ntiers = {{ pro = {} }}\n\
         exempt = [\"192.0.2.3\", \"secret-key\"]\n\
         [limit.heavy]\nrate = {}\nkey = [\"ip\", \"path\"]\ncost = 3\n\
         [limit.rough]\nrate = {}\nalgorithm = \"counter\"\nkey = \"global\"\n\
         [limit.trial]\nrate = {}\nshadow = true\ncandidate = {}\nmissing = \"shared\"\n\
         key = \"header:x-user\"\n\
         [limit.each]\nrate = {}\nkey = \"ip\"\ncounts = \"requests\"\n\
         tiers = {{ free = \"unlimited\" }}\n\
         [[route]]\npath = \"/e\"\nlimits = [\"each\", \"rough\"]\ncost = 2\n\
         [[route]]\npath = \"/a\"\nlimits = [\"both\", \"user\"]\n\
         [[route]]\npath = \"/b/*\"\nlimits = [\"heavy\", \"user\", \"trial\"]\n\
         refund = [\"5xx\"]\n\
         [[route]]\npath = \"/c\"\nlimits = [\"rough\", \"trial\", \"both\"]\n\
         [[route]]\npath = \"/*\"\nlimits = []\n\
         [[bypass]]\npath = \"/c\"\nip = \"192.0.2.4\"\n",
        rate(1, "s"),
        rate(4, "10s"),
        rate(2, "5s"),
        rate(5, "5s"),
        rate(3, "2s"),
        rate(6, "3s"),
        rate(1, "4s"),
        rate(2, "4s"),
        rate(1, "2s"),
    )
}

fn config_of(text: &str) -> Config {
    match config::parse("test", text, &|_| None) {
        Ok((config, _)) => config,
        Err(found) => panic!("{}", config::render::human(&found, false)),
    }
}

/// One request: milliseconds since the one before, client, path, user, plan, status.
type Request = (u64, u8, u8, u8, bool, bool);

fn request() -> impl Strategy<Value = Request> {
    let gap = prop_oneof![6 => 0..50_u64, 3 => 0..900_u64, 1 => 0..9_000_u64];
    (
        gap,
        1..5_u8,
        0..PATHS.len() as u8,
        0..3_u8,
        any::<bool>(),
        prop::bool::weighted(0.2),
    )
}

const PATHS: [&str; 8] = [
    "/a",
    "/a?key=secret-key",
    "/b/1",
    "/b/x/../2",
    "/c?q",
    "/d",
    "/e",
    "/e?key=k",
];

fn entry(at_us: u64, request: Request) -> LogEntry<'static> {
    let (_, client, path, user, pro, fails) = request;
    let mut headers = crate::entry::Headers::new();
    headers.push(("X-Forwarded-For".into(), format!("192.0.2.{client}").into()));
    if user > 0 {
        headers.push(("x-user".into(), format!("u{user}").into()));
    }
    if pro {
        headers.push(("X-Plan".into(), "pro".into()));
    }
    LogEntry {
        at_us,
        dates: Dated::End,
        peer: "10.0.0.1".parse().unwrap(),
        client: None,
        method: "GET".into(),
        target: PATHS[usize::from(path)].into(),
        host: None,
        port: None,
        status: if fails { 503 } else { 200 },
        duration_us: Some(1000),
        headers,
        tokens: None,
    }
}

/// The proxy's way with the embedded store, at one rate.
struct Model {
    config: Config,
    memory: Memory,
    time: Arc<AtomicU64>,
    denied: u64,
    /// By window, and for candidates apart.
    by_row: BTreeMap<(String, u64, bool), u64>,
}

impl Model {
    fn new(text: &str) -> Model {
        let config = config_of(text);
        let time = Arc::new(AtomicU64::new(0));
        let keys = KeyRing::new(&config.store).unwrap();
        let clock = Micros::Manual(Arc::clone(&time));
        let memory = Memory::new(&config.store, keys, clock, None);
        Model {
            config,
            memory,
            time,
            denied: 0,
            by_row: BTreeMap::new(),
        }
    }

    #[expect(clippy::too_many_lines, reason = "it is the proxy's way written out")]
    fn take(&mut self, entry: &LogEntry<'_>) {
        self.time.store(entry.at_us, Ordering::Relaxed);
        let mut headers = HeaderMap::new();
        for (name, value) in &entry.headers {
            let name: http::HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        let target = TargetParts::split(&entry.target);
        let path = CanonicalPath::parse(target.path).unwrap();
        let client = self.config.client_ip.find(entry.peer, &headers);
        let ask = RouteQuery {
            host: "",
            path: &path,
            method: &Method::GET,
            headers: &headers,
            query: None,
            port: 0,
        };
        let found = self.config.routes.find(&ask).unwrap();
        let mut facts = Facts {
            ip: self.config.client_ip.group(client),
            api_key: &self.config.api_key,
            standing: None,
            registered: None,
            method: &Method::GET,
            host: "",
            path: &path,
            query: target.query,
            headers: &headers,
            route: &found.route.name,
            params: &found.params,
            claims: None,
            tier: None,
            certificate: None,
            extensions: None,
            body: None,
        };
        let tier = self.config.tier.as_ref().unwrap().tier_of(&facts, true);
        facts.tier = tier.as_deref();
        if self
            .config
            .bypass
            .iter()
            .any(|one| one.covers(&facts, client, found.route.case))
        {
            return;
        }
        let refunds = found
            .route
            .refund
            .contains(entry.status.try_into().unwrap());
        let cost = found.route.cost.units(&headers, true);
        let (mut charge, mut riders) = (Charge::new(), Vec::new());
        for limit in &found.route.limits {
            if limit.exempt.has(client, &limit.key, &facts) {
                continue;
            }
            let key = self.memory.hash_key();
            let Derived::Hash(tag) = limit.key.derive(&facts, limit.missing, &key.key) else {
                panic!("no tag");
            };
            let item = |window: &Arc<Window>| Asked {
                limit: Arc::clone(limit),
                window: Arc::clone(window),
                anchor: None,
                tag,
                cost: limit.units(cost),
                asker: None,
            };
            let windows = limit.windows_of(facts.tier).iter().map(item);
            match limit.shadow {
                true => riders.push(windows.collect()),
                false => charge.extend(windows),
            }
            if !limit.candidate.is_empty() {
                riders.push(limit.candidate.iter().map(item).collect());
            }
        }
        let counts = (&self.memory, &mut self.by_row);
        self.denied += u64::from(!decide(counts, &charge, refunds));
        for rider in &riders {
            decide((&self.memory, &mut self.by_row), rider, refunds);
        }
    }
}

fn decide(
    (memory, by_row): (&Memory, &mut BTreeMap<(String, u64, bool), u64>),
    charge: &Charge,
    refunds: bool,
) -> bool {
    let decision = memory.charge(charge);
    for (item, verdict) in charge.iter().zip(&decision.verdicts) {
        let rule = item.window.rule;
        let is_candidate = item
            .limit
            .candidate
            .iter()
            .any(|one| Arc::ptr_eq(one, &item.window));
        let row = (item.window.policy.to_string(), rule.units, is_candidate);
        *by_row.entry(row).or_default() += u64::from(verdict.retry.denies());
    }
    if refunds && decision.allowed {
        memory.refund(charge, &decision);
    }
    decision.allowed
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_denied_is_what_the_embedded_store_denies(
        trace in prop::collection::vec(request(), 1..300),
    ) {
        // Halves and doubles of what is a multiple of two are exact.
        let mut models = [1, 2, 4].map(|k| Model::new(&text(k)));
        let mut engine = Engine::new(config_of(&text(2)), "", 1_000_000);
        let mut at_us = 1_700_000_000_000_000;
        for request in trace {
            at_us += request.0 * 1000;
            let entry = entry(at_us, request);
            engine.take(&entry);
            for (rate, model) in SCALES.into_iter().zip(&mut models) {
                model.take(&entry);
                prop_assert_eq!(engine.counts.totals.denied[rate], model.denied, "{:?}", request);
            }
        }
        for (rate, model) in SCALES.into_iter().zip(&models) {
            for (row, seen) in engine.plan.rows.iter().zip(&engine.counts.rows) {
                let is_candidate = row.role == crate::limit::Role::Candidate;
                let name = (row.window.policy.to_string(), row.units[rate], is_candidate);
                let expected = model.by_row.get(&name).copied().unwrap_or(0);
                prop_assert_eq!(seen.denied[rate], expected, "{:?} {:?}", name, rate);
            }
        }
    }

    #[test]
    fn a_client_needs_the_smallest_limit_that_denies_it_nothing(
        trace in prop::collection::vec((0..2_000_u64, 1..4_u8), 1..120),
        algorithm in prop::sample::select(vec!["log", "counter"]),
        cost in 1..4_u64,
    ) {
        let text = |units: u64| format!(
            "upstream = \"http://127.0.0.1:9\"\n[limit.default]\nrate = \"{units}/5s\"\n\
             algorithm = \"{algorithm}\"\ncost = {cost}\n"
        );
        let mut engine = Engine::new(config_of(&text(5)), "", 1_000_000);
        let mut at_us = 1_700_000_000_000_000;
        let mut entries = Vec::new();
        for (gap, client) in trace {
            at_us += gap * 1000;
            let mut one = entry(at_us, (0, client, 0, 0, false, false));
            one.peer = IpAddr::from([192, 0, 2, client]);
            one.headers.clear();
            engine.take(&one);
            entries.push(one);
        }
        for known in &engine.counts.meters[0].keys {
            let octet = *known.name.last().unwrap();
            let denied = |units: u64| {
                let mut model = Plain::new(&text(units));
                let own = entries.iter().filter(|one| one.peer == IpAddr::from([192, 0, 2, octet]));
                own.filter(|one| !model.allows(one)).count()
            };
            prop_assert_eq!(denied(u64::from(known.need)), 0);
            if u64::from(known.need) > cost {
                prop_assert!(denied(u64::from(known.need) - 1) > 0, "{}", known.need);
            }
        }
    }
}

/// One limit by address.
struct Plain {
    limit: Arc<Limit>,
    memory: Memory,
    time: Arc<AtomicU64>,
}

impl Plain {
    fn new(text: &str) -> Plain {
        let model = Model::new(text);
        Plain {
            limit: Arc::clone(&model.config.limits[0]),
            memory: model.memory,
            time: model.time,
        }
    }

    fn allows(&mut self, entry: &LogEntry<'_>) -> bool {
        self.time.store(entry.at_us, Ordering::Relaxed);
        let item = Asked {
            limit: Arc::clone(&self.limit),
            window: Arc::clone(&self.limit.windows[0]),
            anchor: None,
            tag: crate::limit::KeyHash([1; 16]),
            cost: self.limit.cost,
            asker: None,
        };
        self.memory.charge(&[item].into_iter().collect()).allowed
    }
}

/// Replays lines of `seconds client path took_ms` through a configuration.
fn replayed(text: &str, lines: &[(u64, u8, &'static str, Option<u64>)], keys: usize) -> Engine {
    let mut engine = Engine::new(config_of(text), "", keys);
    for (at_s, client, path, took_ms) in lines {
        let mut one = entry(
            1_700_000_000_000_000 + at_s * 1_000_000,
            (0, 1, 0, 0, false, false),
        );
        one.peer = IpAddr::from([192, 0, 2, *client]);
        one.headers.clear();
        one.target = (*path).into();
        one.duration_us = took_ms.map(|ms| ms * 1000);
        engine.take(&one);
    }
    engine
}

const SLOTS: &str = "upstream = \"http://127.0.0.1:9\"\n[limit.default]\nconcurrent = 2\n";

#[test]
fn slots_are_held_for_as_long_as_requests_took() {
    let took = |at, ms| (at, 1, "/", Some(ms));
    let lines = [
        took(0, 10_000),
        took(1, 2_000),
        took(2, 1),
        took(3, 500),
        took(4, 20_000),
    ];
    let engine = replayed(SLOTS, &lines, 1000);
    assert_eq!(
        engine.counts.rows[0].denied,
        Rates {
            half: 4,
            own: 1,
            twice: 0
        }
    );
    let mut keys = engine.counts.meters[0].keys.iter();
    assert_eq!(keys.next().unwrap().need, 3);
    let engine = replayed(SLOTS, &[(0, 1, "/", None)], 1000);
    assert_eq!(
        (engine.counts.totals.untimed, engine.counts.rows[0].asked),
        (1, 0)
    );
}

#[test]
fn slots_are_released_after_other_keys_were_forgotten() {
    let mut lines: Vec<_> = (0..100)
        .map(|at| (u64::from(at), 10 + at, "/", Some(1)))
        .collect();
    let long = (50, 1, "/", Some(1_000_000));
    lines.splice(50..50, [long, long]);
    lines.extend([(200, 1, "/", Some(1)), (1_060, 1, "/", Some(1))]);
    let engine = replayed(SLOTS, &lines, 16);
    assert!(!engine.counts.rows[0].forgotten.is_empty());
    assert_eq!(engine.counts.rows[0].denied.own, 1);
}

#[test]
fn what_reaches_no_limit_is_told_apart() {
    let text = "[upstream.u]\nservers = [\"http://127.0.0.1:9\"]\n[limit.a]\nrate = \"1/s\"\n\
                [limit.key]\nrate = \"1/s\"\nkey = \"header:x\"\nmissing = \"deny\"\n\
                [limit.trial]\nrate = \"1/s\"\nkey = \"header:x\"\nmissing = \"deny\"\n\
                shadow = true\n\
                [[route]]\npath = \"/a\"\nupstream = \"u\"\nlimits = [\"trial\", \"a\"]\n\
                [[route]]\npath = \"/free\"\nupstream = \"u\"\nlimits = []\n\
                [[route]]\npath = \"/key\"\nupstream = \"u\"\nlimits = [\"a\", \"key\"]\n";
    let lines = [
        "/a",
        "/a",
        "/free",
        "/none",
        "/%zz",
        "/key",
        "http://h/a",
        "http://[/a",
    ];
    let lines: Vec<_> = lines.iter().map(|path| (0, 1, *path, None)).collect();
    let engine = replayed(text, &lines, 1000);
    let count = |kind| {
        engine
            .counts
            .totals
            .outside
            .get(&kind)
            .copied()
            .unwrap_or(0)
    };
    let kinds = [
        Outside::Unlimited,
        Outside::NoRoute,
        Outside::Refused,
        Outside::NoKey,
    ];
    assert_eq!(kinds.map(count), [1, 1, 2, 1]);
    // A request that is refused for want of a key is charged nowhere.
    assert_eq!(
        (engine.counts.rows[0].asked, engine.counts.totals.denied.own),
        (3, 2)
    );
}

#[test]
fn what_the_proxy_answers_before_its_limits_is_not_charged() {
    let text = "upstream = \"http://127.0.0.1:9\"\n[limit.default]\nrate = \"1/s\"\n\
                [status]\npath = \"/left\"\n[access]\ndeny = \"192.0.2.7\"\n\
                [[route]]\npath = \"/a\"\naccess = { deny = \"192.0.2.8\" }\n";
    let lines = [
        (7, "/"),
        (7, "/left"),
        (8, "/a"),
        (8, "/left"),
        (8, "/left/"),
        (8, "/"),
    ];
    let lines: Vec<_> = lines
        .iter()
        .map(|(client, path)| (0, *client, *path, None))
        .collect();
    let engine = replayed(text, &lines, 1000);
    let outside = &engine.counts.totals.outside;
    assert_eq!(
        (outside[&Outside::Refused], outside[&Outside::Unlimited]),
        (3, 2)
    );
    assert_eq!(engine.counts.rows[0].asked, 1);
}

#[test]
fn keys_are_bounded_and_what_is_forgotten_still_counts() {
    let text = "upstream = \"http://127.0.0.1:9\"\n[limit.default]\nrate = \"2/s\"\n";
    let lines: Vec<_> = (0..2000_u64)
        .map(|n| (n / 10, u8::try_from(n % 200).unwrap(), "/", None))
        .collect();
    let engine = replayed(text, &lines, 50);
    assert!(engine.counts.meters[0].keys.len() <= 50);
    let gone: u64 = engine.counts.rows[0].forgotten.values().sum();
    assert!(gone >= 200, "{gone}");
    assert_eq!(engine.counts.rows[0].asked, 2000);
}
