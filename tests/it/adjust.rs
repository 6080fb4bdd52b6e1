//! What a request cost in the end: refunds by status and settlements by a response's header, once
//! and never twice, also where a process dies in between.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::house::{Answer, PATIENCE, Tidegate, Upstream};
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

#[test]
fn a_client_that_goes_before_the_answer_has_paid_once() {
    with_each_store(|redis| {
        let costly = Costly::start();
        let proxy = costly.proxy("rate = \"10/h\"", SETTLE, redis);
        let mut client = proxy.connect();
        client.send("GET /wait/200/7 HTTP/1.1\r\nHost: test\r\n\r\n");
        wait_for("it", || costly.upstream.seen().len() == 1);
        drop(client);
        wait_for("the end", || costly.gone.load(Ordering::Relaxed));
        costly.open.store(true, Ordering::Relaxed);
        assert_eq!(remaining(&proxy.get("/200")), 8);
    });
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
