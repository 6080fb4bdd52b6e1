//! What a request cost in the end: refunds by status and settlements by a response's header, once
//! and never twice, also where a process dies in between.

use std::io::{Read as _, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::house::{Answer, PATIENCE, Tidegate, Upstream};
use crate::http2::raw::{PING, REQUEST, RST_STREAM, Raw, frame};
use crate::support::{Chance, RedisServer};

/// Answers `/STATUS/COST` with that status, and that cost unless it is `-`; `/cut` with nothing,
/// and `/wait...` when it is told to.
struct Costly {
    upstream: Upstream,
    open: Arc<AtomicBool>,
    /// The proxy has given a `/wait` up.
    gone: Arc<AtomicBool>,
}

impl Costly {
    fn start() -> Costly {
        let open = Arc::new(AtomicBool::new(false));
        let gone = Arc::new(AtomicBool::new(false));
        let (gate, left) = (Arc::clone(&open), Arc::clone(&gone));
        let upstream = Upstream::start(move |request, stream| {
            let path = request
                .head
                .split(' ')
                .nth(1)
                .unwrap_or_default()
                .to_owned();
            let mut parts = path.split('/').skip(1);
            let mut status = parts.next().unwrap_or_default();
            if status == "cut" {
                return false;
            }
            if status == "wait" {
                stream.set_nonblocking(true).unwrap();
                wait_for("the gate", || {
                    let is_gone = matches!(stream.peek(&mut [0]), Ok(0));
                    left.fetch_or(is_gone, Ordering::Relaxed);
                    gate.load(Ordering::Relaxed)
                });
                stream.set_nonblocking(false).unwrap();
                status = parts.next().unwrap_or_default();
            }
            let cost = match parts.next() {
                None | Some("-") => String::new(),
                Some(cost) => format!("X-Cost: {cost}\r\n"),
            };
            let answer = format!("HTTP/1.1 {status} X\r\n{cost}Content-Length: 2\r\n\r\nok");
            stream.write_all(answer.as_bytes()).is_ok()
        });
        Costly {
            upstream,
            open,
            gone,
        }
    }

    /// A proxy in front of it, of one worker: what is told the store arrives in order.
    fn proxy(&self, limit: &str, route: &str, redis: Option<&RedisServer>) -> Tidegate {
        let store = redis.map_or("memory:".to_owned(), |redis| {
            format!("redis://127.0.0.1:{}", redis.port())
        });
        let timeout = if redis.is_some() {
            "timeout = \"5s\"\n"
        } else {
            ""
        };
        let limits = match route.contains("limits") {
            true => "",
            false => "limits = [\"l\"]\n",
        };
        Tidegate::start(&format!(
            "upstream = \"{}\"\n[server]\nworkers = 1\n[store]\nurl = \"{store}\"\n{timeout}\
             [limit.l]\nkey = \"global\"\n{limit}\n\
             [[route]]\npath = \"/*\"\n{limits}{route}\n",
            self.upstream.url()
        ))
    }
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "{what}: never");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn remaining(answer: &Answer) -> u64 {
    let text = answer.header("x-ratelimit-remaining").expect("a limit");
    text.parse().unwrap()
}

/// Runs the body without Redis and with one.
fn with_each_store(body: impl Fn(Option<&RedisServer>)) {
    body(None);
    body(Some(&RedisServer::start()));
}

const SETTLE: &str = "settle = \"response-header:x-cost\"";

#[test]
fn only_failed_logins_count() {
    with_each_store(|redis| {
        let costly = Costly::start();
        for algorithm in ["log", "counter"] {
            let limit = format!("rate = \"3/h\"\nalgorithm = \"{algorithm}\"");
            let proxy = costly.proxy(&limit, "refund = [\"2xx\"]", redis);
            for _ in 0..10 {
                let answer = proxy.get("/200");
                assert_eq!((answer.status, remaining(&answer)), (200, 2));
            }
            for left in [2, 1] {
                let answer = proxy.get("/401");
                assert_eq!((answer.status, remaining(&answer)), (401, left));
                assert_eq!(proxy.get("/200").status, 200);
            }
            assert_eq!(proxy.get("/401").status, 401);
            assert_eq!(proxy.get("/200").status, 429, "{algorithm}");
        }
    });
}

#[test]
fn failures_of_the_upstream_and_our_own_answers_for_it_are_given_back() {
    with_each_store(|redis| {
        let costly = Costly::start();
        let proxy = costly.proxy("rate = \"3/h\"", "cost = 2\nrefund = [\"5xx\"]", redis);
        for path in ["/500", "/503", "/cut", "/cut"] {
            assert!(proxy.get(path).status >= 500);
        }
        let answer = proxy.get("/404");
        assert_eq!((answer.status, remaining(&answer)), (404, 1));
        assert_eq!(proxy.get("/500").status, 429);
    });
}

#[test]
fn a_response_says_what_its_request_cost() {
    with_each_store(|redis| {
        let costly = Costly::start();
        let limit = "rate = \"100/h\"\ncost = 2";
        let proxy = costly.proxy(limit, &format!("cost = 3\n{SETTLE}"), redis);
        // Six units each; then what it says, twice.
        let mut spent = 0;
        for (cost, units) in [
            ("3", 6),
            ("5", 10),
            ("1", 2),
            ("0", 0),
            ("-", 6),
            ("many", 6),
            ("-1", 6),
            ("20", 40),
            ("3", 6),
        ] {
            let answer = proxy.get(&format!("/200/{cost}"));
            assert_eq!(
                (answer.status, remaining(&answer)),
                (200, 94 - spent),
                "{cost}"
            );
            assert_eq!(answer.header("x-cost"), None, "no client sees it");
            spent += units;
        }
    });
}

#[test]
fn a_limit_of_requests_stands_beside_one_of_what_they_cost() {
    with_each_store(|redis| {
        let costly = Costly::start();
        let each = "[limit.each]\nrate = \"3/h\"\ncounts = \"requests\"";
        let limits = format!("rate = \"1000/h\"\n{each}\nkey = \"global\"");
        let route = format!("limits = [\"l\", \"each\"]\ncost = 100\n{SETTLE}");
        let proxy = costly.proxy(&limits, &route, redis);
        for (left, one) in [(900, 2), (850, 1), (800, 0)] {
            let answer = proxy.get("/200/50");
            assert_eq!(answer.status, 200);
            let told = answer.header("ratelimit").unwrap();
            assert!(told.contains(&format!("\"l\";r={left};")), "{told}");
            assert!(told.contains(&format!("\"each\";r={one};")), "{told}");
        }
        let denied = proxy.get("/200/50");
        assert_eq!(denied.status, 429);
        assert!(denied.text().contains("[\"each\"]"), "{}", denied.text());
    });
}

#[test]
fn a_settlement_beyond_the_limit_denies_with_an_honest_retry() {
    with_each_store(|redis| {
        let costly = Costly::start();
        let proxy = costly.proxy("rate = \"5/4s\"", SETTLE, redis);
        assert_eq!(proxy.get("/200/12").status, 200);
        let denied = proxy.get("/200/1");
        assert_eq!(denied.status, 429);
        assert_eq!(remaining(&denied), 0);
        let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=4).contains(&wait), "{wait}");
        std::thread::sleep(Duration::from_secs(wait));
        assert_eq!(proxy.get("/200/1").status, 200, "it was told to come now");
    });
}

#[test]
fn units_above_the_limit_free_nothing_when_they_expire() {
    with_each_store(|redis| {
        for algorithm in ["log", "counter"] {
            let costly = Costly::start();
            let limit = format!("rate = \"5/4s\"\nalgorithm = \"{algorithm}\"");
            let proxy = costly.proxy(&limit, SETTLE, redis);
            assert_eq!(proxy.get("/200/2").status, 200);
            std::thread::sleep(Duration::from_secs(2));
            assert_eq!(proxy.get("/200/11").status, 200);
            let denied = proxy.get("/200/1");
            assert_eq!(denied.status, 429);
            let wait = denied.header("retry-after").unwrap();
            let told = denied.header("ratelimit").unwrap();
            assert_eq!(told, format!("\"l\";r=0;t={wait}"), "{algorithm}");
        }
    });
}

#[test]
fn a_proxy_that_dies_between_charge_and_settlement_has_charged_once() {
    let (redis, costly) = (RedisServer::start(), Costly::start());
    let route = &format!("{SETTLE}\nrefund = [\"5xx\"]");
    let mut killed = costly.proxy("rate = \"10/h\"", route, Some(&redis));
    let other = costly.proxy("rate = \"10/h\"", route, Some(&redis));
    let mut clients: Vec<_> = ["/wait/200/7", "/wait/500", "/wait/200/0"]
        .into_iter()
        .map(|path| {
            let mut client = killed.connect();
            client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"));
            client
        })
        .collect();
    wait_for("three", || costly.upstream.seen().len() == 3);
    killed.signal("KILL");
    killed.wait();
    costly.open.store(true, Ordering::Relaxed);
    for client in &mut clients {
        assert!(client.try_answer(false).is_none());
    }
    assert_eq!(remaining(&other.get("/200")), 6);
    assert_eq!(remaining(&other.get("/200")), 5);
}

/// How a client leaves before its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    Closes,
    Resets,
    /// An HTTP/2 client ends only the request's stream.
    ResetsTheStream,
}

/// Asks for `/wait/200/7`, and leaves once the upstream has the request.
fn leave_early(proxy: &Tidegate, costly: &Costly, http2: bool, how: Leaves) {
    let asked = || wait_for("it", || costly.upstream.seen().len() == 1);
    let stream = if http2 {
        let mut raw = Raw::to(proxy.address, &[]);
        let mut lines = REQUEST;
        let path = lines.iter_mut().find(|(name, _)| *name == ":path");
        path.unwrap().1 = "/wait/200/7";
        assert!(raw.ask(1, &lines));
        asked();
        if how == Leaves::ResetsTheStream {
            assert!(raw.send(&frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes())));
            wait_for("the reset is read", || {
                raw.send(&frame(PING, 0, 0, &[0; 8])) && raw.until(&[PING]).is_some()
            });
        }
        raw.stream
    } else {
        let mut stream = TcpStream::connect(proxy.address).unwrap();
        stream
            .write_all(b"GET /wait/200/7 HTTP/1.1\r\nHost: test\r\n\r\n")
            .unwrap();
        asked();
        stream
    };
    if how == Leaves::Resets {
        let none = Some(Duration::ZERO);
        socket2::SockRef::from(&stream).set_linger(none).unwrap();
    }
    drop(stream);
}

const WAYS: [(bool, Leaves); 5] = [
    (false, Leaves::Closes),
    (false, Leaves::Resets),
    (true, Leaves::Closes),
    (true, Leaves::Resets),
    (true, Leaves::ResetsTheStream),
];

#[test]
fn a_client_that_leaves_is_settled_by_an_answer_that_comes_within_a_second() {
    for (http2, how) in WAYS {
        let costly = Costly::start();
        let proxy = costly.proxy("rate = \"100/h\"", SETTLE, None);
        leave_early(&proxy, &costly, http2, how);
        costly.open.store(true, Ordering::Relaxed);
        let mut left = 0;
        wait_for("the settlement", || {
            // This one gives back what it took.
            left = remaining(&proxy.get("/200/0"));
            left <= 92
        });
        assert_eq!(left, 92, "HTTP/2: {http2}, {how:?}");
    }
}

#[test]
fn a_client_that_leaves_before_a_late_answer_has_paid_the_first_charge() {
    let route = &format!("{SETTLE}\nrefund = [\"5xx\", \"4xx\"]");
    for (http2, how) in WAYS {
        let costly = Costly::start();
        let proxy = costly.proxy("rate = \"10/h\"", route, None);
        leave_early(&proxy, &costly, http2, how);
        wait_for("the end", || costly.gone.load(Ordering::Relaxed));
        costly.open.store(true, Ordering::Relaxed);
        assert_eq!(remaining(&proxy.get("/200")), 8, "HTTP/2: {http2}, {how:?}");
    }
    let redis = RedisServer::start();
    let costly = Costly::start();
    let proxy = costly.proxy("rate = \"10/h\"", route, Some(&redis));
    leave_early(&proxy, &costly, false, Leaves::Resets);
    wait_for("the end", || costly.gone.load(Ordering::Relaxed));
    costly.open.store(true, Ordering::Relaxed);
    assert_eq!(remaining(&proxy.get("/200")), 8);
}

#[test]
fn a_client_that_leaves_in_its_upload_gets_nothing_back() {
    let costly = Costly::start();
    let route = &format!("{SETTLE}\nrefund = [\"4xx\", \"5xx\"]");
    let proxy = costly.proxy("rate = \"10/h\"", route, None);
    for reset in [false, true] {
        let mut stream = TcpStream::connect(proxy.address).unwrap();
        stream
            .write_all(b"POST /200 HTTP/1.1\r\nHost: test\r\nContent-Length: 9\r\n\r\nabc")
            .unwrap();
        // The upload has begun once the upstream's connection is there.
        wait_for("the upload", || {
            costly.upstream.connections() > usize::from(reset)
        });
        if reset {
            let none = Some(Duration::ZERO);
            socket2::SockRef::from(&stream).set_linger(none).unwrap();
            drop(stream);
        } else {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        }
    }
    let left = remaining(&proxy.get("/200"));
    assert_eq!(left, 7, "both paid the first charge");
}

#[test]
fn each_refund_is_made_once() {
    with_each_store(|redis| {
        let costly = Costly::start();
        let proxy = costly.proxy("rate = \"1000/h\"", "refund = [\"5xx\"]", redis);
        let mut paid = 0;
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..8)
                .map(|which| {
                    let mut client = proxy.connect();
                    let mut chance = Chance(which);
                    scope.spawn(move || {
                        (0..30)
                            .filter(|_| {
                                let status = chance.pick(&["200", "503", "500"]);
                                let ask = format!("GET /{status} HTTP/1.1\r\nHost: test\r\n\r\n");
                                assert_eq!(client.ask(ask).status.to_string(), status);
                                status == "200"
                            })
                            .count() as u64
                    })
                })
                .collect();
            paid = clients.into_iter().map(|one| one.join().unwrap()).sum();
        });
        assert_eq!(remaining(&proxy.get("/200")), 1000 - paid - 1);
    });
}

#[test]
fn what_is_given_back_is_there_for_who_was_denied_all_the_time() {
    with_each_store(|redis| {
        let costly = Costly::start();
        let proxy = costly.proxy("rate = \"1/h\"", "refund = [\"5xx\"]", redis);
        let mut first = proxy.connect();
        first.send("GET /wait/500 HTTP/1.1\r\nHost: test\r\n\r\n");
        wait_for("it", || costly.upstream.seen().len() == 1);
        let mut other = proxy.connect();
        let mut ask = || other.ask("GET /200 HTTP/1.1\r\nHost: test\r\n\r\n").status;
        assert_eq!([(); 8].map(|()| ask()), [429; 8]);
        costly.open.store(true, Ordering::Relaxed);
        assert_eq!(first.answer().status, 500);
        wait_for("the refund", || ask() == 200);
        assert_eq!([(); 8].map(|()| ask()), [429; 8]);
    });
}

#[test]
fn without_the_store_adjustments_are_made_here() {
    let (mut redis, costly) = (RedisServer::start(), Costly::start());
    let route = &format!("{SETTLE}\nrefund = [\"401\"]");
    let proxy = costly.proxy("rate = \"10/h\"", route, Some(&redis));
    assert_eq!(remaining(&proxy.get("/200/4")), 9);
    for _ in 0..3 {
        assert_eq!(proxy.get("/401").status, 401);
    }
    redis.kill();
    // What was counted here meanwhile was adjusted too.
    let mut answer = proxy.get("/401");
    assert_eq!(remaining(&answer), 5);
    answer = proxy.get("/200/4");
    assert_eq!(remaining(&answer), 5);
    answer = proxy.get("/200");
    assert_eq!(remaining(&answer), 1);
    assert_eq!(proxy.get("/401").status, 401);
    assert_eq!(proxy.get("/200").status, 200);
    assert_eq!(proxy.get("/200").status, 429);
    redis.restart();
}

#[test]
fn an_upstream_is_asked_for_what_settles() {
    let costly = Costly::start();
    let seen = |settle: &str| {
        let proxy = costly.proxy("rate = \"9/h\"", settle, None);
        let before = costly.upstream.seen().len();
        let answer = proxy.get_with("/200", "Accept-Encoding: br, gzip\r\n");
        assert_eq!(answer.status, 200);
        costly.upstream.seen().remove(before)
    };
    let json = seen("settle = \"response-json:cost\"");
    let codings = json.header("accept-encoding").unwrap();
    assert!(!codings.contains("br"), "{codings}");
    let trailer = seen("settle = \"response-trailer:x-cost\"");
    assert_eq!(trailer.header("te").as_deref(), Some("trailers"));
    let header = seen(SETTLE);
    assert_eq!(header.header("te"), None);
    let codings = header.header("accept-encoding").unwrap();
    assert_eq!(codings, "br, gzip");
}

#[test]
fn units_that_are_given_back_in_an_outage_are_not_owed() {
    let (redis, upstream) = (RedisServer::start(), Upstream::ok());
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[store]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"10s\"\n\
         [limit.login]\nrate = [\"5/min\", \"8/day\"]\n\
         [[route]]\npath = \"/*\"\nlimits = [\"login\"]\nrefund = [\"2xx\"]\n\
         [server]\nworkers = 1\n",
        upstream.url(),
        redis.port()
    ));
    let ask_all = || assert_eq!([(); 10].map(|()| proxy.get("/").status), [200; 10]);
    ask_all();
    redis.run("CONFIG SET maxmemory 1mb");
    ask_all();
    redis.run("CONFIG SET maxmemory 0");
    ask_all();
}
