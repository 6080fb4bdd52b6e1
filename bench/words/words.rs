//! The words, each with what it is said of.

use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use tidegate::clock::Micros;
use tidegate::config::{BodyKind, Fleet, LogFormat, LogTarget, Secret, StoreKind, StoreSettings};
use tidegate::limit::headers::{HeaderSettings, IetfForm, RateLimitStatus, ResetForm, write};
use tidegate::limit::key::{ApiKeySources, ApiKeys, Facts, HashSecret};
use tidegate::limit::{
    Algorithm, Charge, Decided, Decision, Key, KeyHash, Limit, LimitCheck, Missing, OnError, Rule,
};
use tidegate::path::CanonicalPath;
use tidegate::proxy::headers::{Peer, Scheme, check_framing, to_downstream, to_upstream};
use tidegate::proxy::problem::{Detail, Problem, QUOTA_EXCEEDED, render};
use tidegate::route::{PathPattern, Route, RouteQuery, RouteTable, host_of};
use tidegate::store::hash_key::KeyRing;
use tidegate::store::memory::Memory;
use tidegate::telemetry::access::{AccessEntry, AccessLog, AccessLogSettings, Outcome};

/// One of them; `say` does it once.
pub(super) struct Word {
    pub(super) name: &'static str,
    pub(super) say: Box<dyn FnMut()>,
}

fn word(name: &'static str, say: impl FnMut() + 'static) -> Word {
    let say = Box::new(say);
    Word { name, say }
}

/// Says each so many times, and as many times again to be counted.
pub(super) fn say_all(times: usize) {
    for mut word in all(2 * times) {
        said(&mut word, times);
        said_under_count(&mut word, times);
    }
}

pub(super) fn said(word: &mut Word, times: usize) {
    for _ in 0..times {
        (word.say)();
    }
}

/// The one function whose instructions are counted; `counts` names it to valgrind.
#[inline(never)]
fn said_under_count(word: &mut Word, times: usize) {
    said(word, times);
}

/// All words, ready to be said so many times.
pub(super) fn all(times: usize) -> Vec<Word> {
    let mut words = vec![
        word("path", || {
            let _ = black_box(CanonicalPath::parse(black_box("/api/v1/items/17")));
        }),
        word("host", || {
            let _ = black_box(host_of(black_box("shop.example:8080")));
        }),
        framing(),
    ];
    words.extend([
        route("route, one of 10", 10),
        route("route, one of 10,000", 10_000),
    ]);
    words.extend([
        key("key by address", "ip"),
        key("key by header", "header:x-user"),
        key("key by API key", "api_key"),
    ]);
    words.extend([
        decision("decision, log", Algorithm::Log, 1_000_000_000),
        decision("decision, counter", Algorithm::Counter, 1_000_000_000),
        decision("decision, denied", Algorithm::Log, 1),
    ]);
    words.extend([
        limit_headers("headers of one limit", 1),
        limit_headers("headers of two limits", 2),
        head_up(times),
        head_down(times),
        denial_body(),
        log_line(),
    ]);
    words
}

fn head() -> HeaderMap {
    let lines = [
        ("host", "shop.example"),
        (
            "user-agent",
            "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101",
        ),
        ("accept", "*/*"),
        ("accept-encoding", "gzip, br"),
        ("x-user", "4711"),
        ("x-api-key", "0123456789abcdef"),
        ("connection", "keep-alive"),
        ("cookie", "session=0123456789abcdef"),
    ];
    let line = |(name, value)| {
        let name = HeaderName::from_static(name);
        (name, HeaderValue::from_static(value))
    };
    lines.map(line).into_iter().collect()
}

fn request() -> Request<()> {
    let mut request = Request::get("/api/v1/items/17?page=2").body(()).unwrap();
    *request.headers_mut() = head();
    request
}

fn framing() -> Word {
    let request = request();
    word("framing and host of a head", move || {
        let _ = black_box(check_framing(black_box(&request)));
    })
}

fn route(name: &'static str, count: usize) -> Word {
    let route = |index: usize| Route {
        number: index,
        ..Route::of_path(
            &format!("route {index}"),
            PathPattern::parse(&format!("/api/v1/things{index}/{{id}}")).unwrap(),
        )
    };
    let table = RouteTable::new((0..count).map(route).collect()).unwrap();
    let headers = head();
    word(name, move || {
        let path = CanonicalPath::parse("/api/v1/things7/17").unwrap();
        let ask = RouteQuery {
            host: "shop.example",
            path: &path,
            method: &Method::GET,
            headers: &headers,
            query: None,
            port: 0,
        };
        assert!(black_box(table.find(black_box(&ask))).is_some());
    })
}

fn key(name: &'static str, part: &str) -> Word {
    let key = Key::parse([part]).unwrap();
    let (headers, sources) = (head(), ApiKeys::trusting(ApiKeySources::default()));
    let secret = HashSecret::from_bytes([7; 32]);
    word(name, move || {
        let facts = Facts {
            ip: IpAddr::from([192, 0, 2, 7]),
            api_key: &sources,
            standing: None,
            registered: None,
            method: &Method::GET,
            host: "shop.example",
            path: &CanonicalPath::parse("/").unwrap(),
            query: Some("page=2"),
            headers: &headers,
            route: "route",
            params: &[],
            claims: None,
            tier: None,
            certificate: None,
            extensions: None,
            body: None,
        };
        black_box(key.derive(black_box(&facts), Missing::Ip, &secret));
    })
}

fn charge(algorithm: Algorithm, units: u64, limits: u8) -> Charge {
    let item = |number: u8| {
        let rule = Rule {
            algorithm,
            units,
            window_us: 60_000_000,
            precision_us: if algorithm == Algorithm::Log {
                60_000
            } else {
                1
            },
        };
        let name = format!("limit_{number}");
        let limit = Limit::new(&name, &[rule], Key::parse(["ip"]).unwrap());
        LimitCheck {
            window: Arc::clone(&limit.windows[0]),
            limit: Arc::new(limit),
            tag: KeyHash([number; 16]),
            anchor: None,
            cost: 1,
            asker: None,
        }
    };
    (0..limits).map(item).collect()
}

fn memory() -> Memory {
    let settings = StoreSettings {
        kind: StoreKind::Memory,
        prefix: String::new(),
        timeout: Duration::from_millis(25),
        on_error: OnError::Local,
        fleet: Fleet::Fixed(1),
        hash_key: Some(Secret([7; 32])),
        file: None,
        known_keys: false,
        max_keys: 1000,
        max_memory: 1 << 20,
    };
    let time = Arc::new(1_700_000_000_000_000.into());
    let keys = KeyRing::new(&settings).unwrap();
    Memory::new(&settings, keys, Micros::Manual(time), None)
}

fn decision(name: &'static str, algorithm: Algorithm, units: u64) -> Word {
    let (memory, charge) = (memory(), charge(algorithm, units, 1));
    word(name, move || {
        black_box(memory.charge(black_box(&charge)));
    })
}

fn limit_headers(name: &'static str, limits: u8) -> Word {
    let charge = charge(Algorithm::Log, 1000, limits);
    let memory = memory();
    (0..500).for_each(|_| drop(memory.charge(&charge)));
    let decision: Decision = memory.charge(&charge);
    let settings = HeaderSettings {
        x_ratelimit: true,
        ietf: Some(IetfForm::Draft10),
        reset: ResetForm::Epoch,
        cors_expose: true,
        pass_upstream: false,
    };
    // With room, as the heads of responses have when they have been through the proxy before.
    let mut headers = HeaderMap::with_capacity(24);
    word(name, move || {
        headers.clear();
        let decided = Decided {
            charge: &charge,
            decision: black_box(&decision),
        };
        let unix_us = black_box(1_700_000_000_000_000);
        let status = RateLimitStatus::new(decided, settings.reset, unix_us);
        write(&mut headers, settings, &charge, &status);
    })
}

/// Heads can be rewritten once: as many are made as will be asked for.
fn head_up(times: usize) -> Word {
    let address = IpAddr::from([192, 0, 2, 7]);
    let peer = Peer::new(address, false, Scheme::Http);
    let made = |_| {
        let mut request = request();
        request.headers_mut().reserve(8);
        request
    };
    let mut requests: Vec<Request<()>> = (0..times).map(made).collect();
    let mut next = 0;
    word("head, client to upstream", move || {
        to_upstream(&mut requests[next], &peer, address, true).unwrap();
        next += 1;
    })
}

fn head_down(times: usize) -> Word {
    let made = |_| {
        let mut response = Response::new(());
        let lines = [
            ("content-type", "application/json"),
            ("content-length", "17"),
            ("date", "Sun, 22 Nov 2026 12:00:00 GMT"),
            ("connection", "keep-alive"),
            ("keep-alive", "timeout=5"),
            ("etag", "\"0123456789\""),
        ];
        for (name, value) in lines {
            let value = HeaderValue::from_static(value);
            response.headers_mut().insert(name, value);
        }
        response.headers_mut().reserve(8);
        response
    };
    let mut responses: Vec<Response<()>> = (0..times).map(made).collect();
    let mut next = 0;
    word("head, upstream to client", move || {
        to_downstream(&mut responses[next]);
        next += 1;
    })
}

fn denial_body() -> Word {
    let problem = Problem {
        kind: QUOTA_EXCEEDED,
        title: "Quota Exceeded",
        status: 429,
        detail: Detail::Wait {
            allows: "\"per_client\" allows 600/min",
            allows_json: "\\\"per_client\\\" allows 600/min",
            seconds: 13,
        },
        violated: &["per_client"],
        retry_after: Some(13),
        resets_at: None,
        docs_url: None,
        request_id: "0123456789abcdef",
    };
    word("body of a denial", move || {
        black_box::<Vec<u8>>(render(black_box(&problem), BodyKind::Json, None));
    })
}

fn log_line() -> Word {
    let target = LogTarget::File("/dev/null".into());
    let settings = AccessLogSettings {
        target,
        format: LogFormat::Json,
        sample_allowed: 1.0,
        named: Vec::new(),
    };
    let log = AccessLog::open(settings).unwrap();
    let buffer = Arc::new(log).buffer();
    word("line of the access log", move || {
        buffer.record(black_box(&AccessEntry {
            unix_us: 1_795_214_226_123_456,
            duration: Duration::from_micros(234),
            delayed: Duration::ZERO,
            client: IpAddr::from([192, 0, 2, 7]),
            method: &Method::GET,
            host: Some("api.example"),
            path: "/api/v1/items/17",
            protocol: "HTTP/1.1",
            status: 200,
            bytes: 1234,
            truncated: None,
            route: Some("items"),
            door: None,
            outcome: Outcome::Allowed,
            denied_by: &[],
            would_deny: &[],
            reason: None,
            failure: None,
            grpc_status: None,
            usage: None,
            request_id: None,
            trace_id: None,
        }));
    })
}
