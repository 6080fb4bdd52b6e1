//! Requests under way at once: a slot is held from the decision until the response, or the tunnel
//! it became, has ended, however it ends.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::house::{Client, PATIENCE, Tidegate, Upstream};
use crate::http2::client::{self as http2, Http2};
use crate::support::{Chance, RedisServer};

/// An upstream that answers `/wait` only when it is told to, and everything else at once.
struct Gate {
    upstream: Upstream,
    open: Arc<AtomicBool>,
}

impl Gate {
    fn start() -> Gate {
        let open = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&open);
        let upstream = Upstream::start(move |request, stream| {
            let path = request.head.split(' ').nth(1).unwrap_or_default();
            if path.starts_with("/wait") {
                wait_for("the gate", || seen.load(Ordering::Relaxed));
            }
            if path.starts_with("/half") {
                let head = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nok";
                let begun = stream.write_all(head.as_bytes()).is_ok();
                wait_for("the gate", || seen.load(Ordering::Relaxed));
                return begun && stream.write_all(b"ok").is_ok();
            }
            if path.starts_with("/broken") {
                return false;
            }
            if path.starts_with("/chat") {
                let agreed = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                              Upgrade: websocket\r\n\r\n";
                return stream.write_all(agreed.as_bytes()).is_ok() && echo(stream);
            }
            let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            stream.write_all(ok.as_bytes()).is_ok()
        });
        Gate { upstream, open }
    }

    fn open(&self) {
        self.open.store(true, Ordering::Relaxed);
    }

    /// A proxy in front of it with `concurrent` requests at once, on `redis` or by itself.
    fn proxy(&self, limit: &str, redis: Option<&RedisServer>) -> Tidegate {
        Tidegate::start(&self.config(limit, redis))
    }

    fn config(&self, limit: &str, redis: Option<&RedisServer>) -> String {
        let store = redis.map_or("memory:".to_owned(), |redis| {
            format!("redis://127.0.0.1:{}", redis.port())
        });
        // The deadline is generous: these tests are about counts, and the machine may be busy.
        let timeout = if redis.is_some() {
            "timeout = \"5s\"\n"
        } else {
            ""
        };
        format!(
            "upstream = \"{}\"\n[server]\nworkers = 2\n[store]\nurl = \"{store}\"\n{timeout}\
             [limit.jobs]\nkey = \"global\"\n{limit}\n\
             [[route]]\npath = \"/*\"\nlimits = [\"jobs\"]\n",
            self.upstream.url()
        )
    }
}

/// Says back what it hears until the other side ends.
fn echo(stream: &mut TcpStream) -> bool {
    let Ok(mut from) = stream.try_clone() else {
        return false;
    };
    let _ = std::io::copy(&mut from, stream);
    false
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "{what}: never");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends a request whose answer is not waited for.
fn begin(proxy: &Tidegate, path: &str) -> Client {
    let mut client = proxy.connect();
    client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"));
    client
}

/// Waits until a request passes.
fn wait_until_passes(proxy: &Tidegate) {
    wait_for("a free slot", || proxy.get("/").status == 200);
}

#[test]
fn fifty_at_once_over_two_proxies_and_not_one_more() {
    let (redis, gate) = (RedisServer::start(), Gate::start());
    let limit = "concurrent = 50";
    let proxies = [
        gate.proxy(limit, Some(&redis)),
        gate.proxy(limit, Some(&redis)),
    ];
    let (passed, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for which in 0..120 {
            let mut client = begin(&proxies[which % 2], "/wait");
            let (passed, refused) = (&passed, &refused);
            scope.spawn(move || {
                let count = match client.answer().status {
                    200 => passed,
                    _ => refused,
                };
                count.fetch_add(1, Ordering::SeqCst);
            });
        }
        wait_for("all decided", || {
            refused.load(Ordering::SeqCst) + gate.upstream.seen().len() >= 120
        });
        assert_eq!(gate.upstream.seen().len(), 50);
        let denied = proxies[0].get("/");
        assert_eq!(denied.status, 429);
        assert_eq!(denied.header("retry-after").as_deref(), Some("1"));
        assert_eq!(
            denied.header("ratelimit-policy").as_deref(),
            Some("\"jobs\";q=50;qu=\"concurrent-requests\"")
        );
        assert_eq!(denied.header("ratelimit").as_deref(), Some("\"jobs\";r=0"));
        gate.open();
    });
    assert_eq!((passed.into_inner(), refused.into_inner()), (50, 70));
    // Every slot has come back.
    wait_for("all of them", || {
        let keys = redis.run("KEYS *jobs*");
        keys == redis::Value::Array(Vec::new())
    });
    wait_until_passes(&proxies[1]);
}

/// What ends a request early gives its slot back: here there is only one.
fn comes_back(redis: Option<&RedisServer>, end: impl Fn(&Gate, &Tidegate)) {
    let gate = Gate::start();
    let proxy = gate.proxy("concurrent = 1", redis);
    end(&gate, &proxy);
    wait_until_passes(&proxy);
    // The next proxy on this Redis begins with nothing held.
    wait_for("nothing held", || {
        redis.is_none_or(|redis| redis.run("KEYS *jobs*") == redis::Value::Array(Vec::new()))
    });
}

#[test]
fn a_slot_comes_back_however_the_request_ends() {
    let redis = RedisServer::start();
    for redis in [None, Some(&redis)] {
        // The client goes before the answer, and in the middle of it.
        for path in ["/wait", "/half"] {
            comes_back(redis, |gate, proxy| {
                let client = begin(proxy, path);
                wait_for("the request", || !gate.upstream.seen().is_empty());
                assert_eq!(proxy.get("/").status, 429, "{path}");
                drop(client);
            });
        }
        comes_back(redis, |_, proxy| {
            assert_eq!(proxy.get("/broken").status, 502);
        });
        comes_back(redis, |_, proxy| {
            let mut client = proxy.connect();
            client.send("HEAD / HTTP/1.1\r\nHost: test\r\n\r\n");
            assert_eq!(client.answer_to_head().status, 200);
        });
    }
}

#[test]
fn a_websocket_holds_its_slot_until_it_is_closed() {
    let redis = RedisServer::start();
    for redis in [None, Some(&redis)] {
        comes_back(redis, |_, proxy| {
            let mut client = proxy.connect();
            let agreed = client.ask(
                "GET /chat HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\n\
                 Upgrade: websocket\r\n\r\n",
            );
            assert_eq!(agreed.status, 101);
            assert_eq!(proxy.get("/").status, 429);
            client.send("still here");
            // Longer than a release takes to arrive.
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(proxy.get("/").status, 429);
        });
    }
}

#[test]
fn a_killed_proxy_s_slots_come_back_after_its_lease_and_no_sooner() {
    let (redis, gate) = (RedisServer::start(), Gate::start());
    let limit = "concurrent = 3\nhold = \"2s\"";
    let mut killed = gate.proxy(limit, Some(&redis));
    let other = gate.proxy(limit, Some(&redis));
    let clients: Vec<Client> = (0..3).map(|_| begin(&killed, "/wait")).collect();
    wait_for("three", || gate.upstream.seen().len() == 3);
    // Longer than a lease: what is held is renewed.
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(other.get("/").status, 429);
    killed.signal("KILL");
    killed.wait();
    let begun = Instant::now();
    assert_eq!(other.get("/").status, 429);
    wait_until_passes(&other);
    let took = begun.elapsed();
    assert!(took > Duration::from_millis(500), "after {took:?}");
    drop(clients);
}

#[test]
fn slots_of_connections_that_a_stop_cuts_are_free_at_once() {
    let (redis, gate) = (RedisServer::start(), Gate::start());
    // A slot that is not given back is free after a minute.
    let limit = "concurrent = 5\nhold = \"1min\"";
    let config = gate.config(limit, Some(&redis));
    let stops = config.replace("workers = 2", "workers = 2\ndrain_timeout = \"500ms\"");
    let mut stopped = Tidegate::start(&stops);
    let mut chat = stopped.connect();
    let agreed = chat.ask(
        "GET /chat HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    );
    assert_eq!(agreed.status, 101);
    let clients = [begin(&stopped, "/wait"), begin(&stopped, "/half"), chat];
    let address = stopped.address;
    let streams = std::thread::spawn(move || {
        http2::run(async {
            let connection = Http2::to(address).await;
            let asked = ["/wait", "/half"].map(|path| connection.ask(http2::get(path)));
            let [wait, half] = asked;
            let replies = tokio::join!(wait, half);
            (replies.0.is_err(), replies.1.is_err())
        })
    });
    wait_for("five", || gate.upstream.seen().len() == 5);
    let other = Tidegate::start(&config);
    assert_eq!(other.get("/").status, 429);
    stopped.signal("TERM");
    assert!(stopped.wait().success());
    // The first answer may come from the other's cache of denials.
    wait_until_passes(&other);
    assert_eq!(streams.join().unwrap(), (true, true), "both were cut");
    drop(clients);
}

#[test]
fn counts_stay_exact_while_hundreds_come_and_go() {
    let redis = RedisServer::start();
    let (under_way, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, peak) = (Arc::clone(&under_way), Arc::clone(&most));
    let chance = Mutex::new(Chance(7));
    let upstream = Upstream::start(move |_, stream| {
        let level = now.fetch_add(1, Ordering::SeqCst) + 1;
        peak.fetch_max(level, Ordering::SeqCst);
        let pause = chance.lock().unwrap().below(3_000);
        std::thread::sleep(Duration::from_micros(pause));
        // Before the answer: the proxy lets go of the slot after it.
        now.fetch_sub(1, Ordering::SeqCst);
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        stream.write_all(ok.as_bytes()).is_ok()
    });
    let gate = Gate {
        upstream,
        open: Arc::default(),
    };
    let proxies = [
        gate.proxy("concurrent = 8", Some(&redis)),
        gate.proxy("concurrent = 8", Some(&redis)),
    ];
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..16)
            .map(|which| {
                let mut client = proxies[which % 2].connect();
                scope.spawn(move || {
                    let ask = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";
                    (0..40)
                        .map(|_| client.ask(ask).status)
                        .collect::<Vec<u16>>()
                })
            })
            .collect();
        clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect()
    });
    let passed = statuses.iter().filter(|status| **status == 200).count();
    assert!(statuses.iter().all(|status| matches!(status, 200 | 429)));
    assert!(passed > 100, "{passed} of {}", statuses.len());
    assert!(most.load(Ordering::SeqCst) <= 8, "{most:?}");
    wait_for("all of them", || {
        redis.run("KEYS *jobs*") == redis::Value::Array(Vec::new())
    });
}

#[test]
fn without_the_store_a_proxy_counts_by_itself_and_tells_the_store_later() {
    let (mut redis, gate) = (RedisServer::start(), Gate::start());
    let config = gate.config("concurrent = 4", Some(&redis));
    // Here waiting for the store is part of what is tested.
    let config = config.replace("timeout = \"5s\"", "timeout = \"50ms\"");
    let (proxy, other) = (Tidegate::start(&config), Tidegate::start(&config));
    // Who has answered knows the key that names of clients are hashed with.
    for proxy in [&proxy, &other] {
        assert_eq!(proxy.get("/").status, 200);
    }
    let mut clients = vec![begin(&proxy, "/wait")];
    wait_for("one", || gate.upstream.seen().len() == 3);
    redis.kill();
    wait_for("the outage", || {
        proxy.said().iter().any(|line| line.contains("on_error")) || {
            proxy.get("/");
            false
        }
    });
    clients.extend((0..6).map(|_| begin(&proxy, "/wait")));
    let waiting = |seen: &Gate| {
        let seen = seen.upstream.seen();
        seen.iter().filter(|one| one.head.contains("/wait")).count()
    };
    wait_for("four", || waiting(&gate) == 4);
    assert_eq!(proxy.get("/").status, 429);
    redis.restart();
    // Four are under way there, so the other proxy has none left as soon as it asks again.
    wait_for("the store", || other.get("/").status == 429);
    gate.open();
    wait_until_passes(&other);
    let statuses = clients.iter_mut().map(|client| client.answer().status);
    assert_eq!(statuses.filter(|status| *status == 200).count(), 4);
}

#[test]
fn an_emptied_redis_hears_again_which_slots_are_held() {
    let (gate, redis) = (Gate::start(), RedisServer::start());
    let limit = "concurrent = 1\nhold = \"1h\"";
    let (holder, other) = (
        gate.proxy(limit, Some(&redis)),
        gate.proxy(limit, Some(&redis)),
    );
    let mut waiting = holder.connect();
    waiting.send("GET /wait HTTP/1.1\r\nHost: test\r\n\r\n");
    // Before that, the other proxy would have the slot.
    wait_for("the request", || gate.upstream.seen().len() == 1);
    wait_for("the slot", || other.get("/").status == 429);
    redis.run("FLUSHALL");
    wait_for("the slot after the loss", || other.get("/").status == 429);
    gate.open();
    assert_eq!(waiting.answer().status, 200);
    wait_for("the free slot", || other.get("/").status == 200);
}
