//! `delay`: requests over the limit wait for their turn instead of being denied.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;

use crate::admin::Looked;
use crate::house::{Answer, Client, Tidegate, Upstream};
use crate::http2::client::{Http2, get, read, run};
use crate::pace::Pace;
use crate::probe::eventually;
use crate::support::RedisServer;

/// What a wait may be shorter than it was booked, because two clocks measure it.
const ROUNDING: Duration = Duration::from_millis(5);

/// An upstream that notes when each path was asked for.
struct Noted {
    upstream: Upstream,
    arrivals: Arc<Mutex<Vec<(String, Instant)>>>,
}

impl Noted {
    fn start() -> Noted {
        let arrivals = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&arrivals);
        let upstream = Upstream::start(move |request, stream| {
            let path = request.head.split(' ').nth(1).unwrap_or_default();
            noted
                .lock()
                .unwrap()
                .push((path.to_owned(), Instant::now()));
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            stream.write_all(answer).is_ok()
        });
        Noted { upstream, arrivals }
    }

    fn arrivals(&self) -> Vec<(String, Instant)> {
        self.arrivals.lock().unwrap().clone()
    }

    fn paths(&self) -> Vec<String> {
        self.arrivals().into_iter().map(|(path, _)| path).collect()
    }
}

/// A file with this limit; `more` follows it.
fn config(upstream: &Upstream, limit: &str, more: &str) -> String {
    format!(
        "upstream = \"{}\"\n[limit.default]\nkey = \"global\"\n{limit}\n{more}\n",
        upstream.url()
    )
}

fn in_redis(redis: &RedisServer) -> String {
    format!(
        "[store]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"2s\"\n",
        redis.port()
    )
}

/// A request under way.
struct Asked {
    began: Instant,
    answer: JoinHandle<(Answer, Instant)>,
}

impl Asked {
    fn of(address: SocketAddr, path: &str) -> Asked {
        let mut client = Client::to(address);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"));
        Asked {
            began: Instant::now(),
            answer: std::thread::spawn(move || (client.answer(), Instant::now())),
        }
    }

    /// The answer, and how long it took.
    fn end(self) -> (Answer, Duration) {
        let (answer, ended) = self.answer.join().unwrap();
        (answer, ended - self.began)
    }
}

/// Waits until so many requests have passed the store, over all these proxies.
fn booked(proxies: &[&Looked], count: u64) {
    let name = "tidegate_decisions_total{limit=\"default\",decision=\"allowed\",source=\"store\"} ";
    let of = |proxy: &&Looked| -> u64 {
        let text = proxy.get("/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |count| count.parse().unwrap())
    };
    eventually("it is booked", || {
        proxies.iter().map(of).sum::<u64>() >= count
    });
}

/// Long enough for a request to reach the store before the next one, nearly always.
fn next() {
    std::thread::sleep(Duration::from_millis(60));
}

#[test]
fn requests_pass_in_the_order_in_which_they_came_over_two_proxies() {
    let (noted, redis) = (Noted::start(), RedisServer::start());
    let limit = "rate = \"1/150ms\"\ndelay = \"1min\"";
    let text = config(&noted.upstream, limit, &in_redis(&redis));
    let proxies = [Looked::start(&text), Looked::start(&text)];
    let pace = Pace::begin();
    let asked: Vec<Asked> = (0..12)
        .map(|number| {
            let address = proxies[number % 2].tidegate.address;
            let asked = Asked::of(address, &format!("/{number}"));
            booked(&[&proxies[0], &proxies[1]], number as u64 + 1);
            asked
        })
        .collect();
    for one in asked {
        assert_eq!(one.end().0.status, 200);
    }
    let arrivals = noted.arrivals();
    let expected: Vec<String> = (0..12).map(|number| format!("/{number}")).collect();
    assert_eq!(noted.paths(), expected);
    let first = arrivals[0].1;
    for (number, (path, at)) in (0..).zip(&arrivals) {
        let due = Duration::from_millis(150) * number;
        let after = *at - first;
        assert!(after + pace.grants() >= due, "{path} after {after:?}");
        assert!(after <= due + pace.grants(), "{path} after {after:?}");
    }
    // The last one passed when all before it had, however busy the machine is.
    assert!(arrivals[11].1 - first + ROUNDING >= Duration::from_millis(150 * 10));
}

#[test]
fn the_embedded_store_books_as_redis_does() {
    let noted = Noted::start();
    let text = config(&noted.upstream, "rate = \"2/200ms\"\ndelay = \"5s\"", "");
    let proxy = Tidegate::start(&text);
    let pace = Pace::begin();
    let asked: Vec<Asked> = (0..6)
        .map(|number| Asked::of(proxy.address, &format!("/{number}")))
        .collect();
    let mut took: Vec<Duration> = asked
        .into_iter()
        .map(|one| {
            let (answer, took) = one.end();
            assert_eq!(answer.status, 200);
            took
        })
        .collect();
    took.sort_unstable();
    for (number, took) in (0_u32..).zip(&took) {
        let due = Duration::from_millis(200) * (number / 2);
        assert!(*took <= due + pace.grants(), "{number}: {took:?}");
        // Each took part of its time before the first one was counted, at most.
        assert!(*took + pace.grants() >= due, "{number}: {took:?}");
    }
}

#[test]
fn waiting_is_bounded_in_number_and_in_time() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let more = in_redis(&redis);
    let queue = "rate = \"1/2s\"\ndelay = \"1min\"\ndelay_queue = 3";
    let long = "rate = \"1/2s\"\ndelay = \"6s\"";
    for limit in [queue, long] {
        let name = format!("[limit.default]\nkey = \"global\"\n{limit}");
        redis.run("FLUSHALL");
        let text = config(&upstream, limit, &more);
        let proxy = Tidegate::start(&text);
        let asked: Vec<Asked> = (0..6)
            .map(|_| {
                next();
                Asked::of(proxy.address, "/")
            })
            .collect();
        let mut answers: Vec<Answer> = asked.into_iter().map(|one| one.end().0).collect();
        answers.sort_by_key(|answer| answer.status);
        let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
        assert_eq!(statuses, [200, 200, 200, 200, 429, 429], "{name}");
        let retry = answers[4].header("retry-after");
        assert_eq!(retry.as_deref(), Some("8"), "{name}");
        // When all have passed, there is space again.
        let (again, _) = Asked::of(proxy.address, "/").end();
        assert_eq!(again.status, 200, "{name}");
    }
}

#[test]
fn a_process_holds_no_more_than_it_may() {
    let upstream = Upstream::ok();
    let limit = "rate = \"1/300ms\"\ndelay = \"10s\"";
    let text = config(&upstream, limit, "[server]\nwaiting = 2\n");
    let proxy = Tidegate::start(&text);
    let asked: Vec<Asked> = (0..6).map(|_| Asked::of(proxy.address, "/")).collect();
    let statuses: Vec<u16> = asked.into_iter().map(|one| one.end().0.status).collect();
    let passed = statuses.iter().filter(|status| **status == 200).count();
    assert!((3..=4).contains(&passed), "{statuses:?}");
    assert!(statuses.contains(&429));
}

#[test]
fn who_leaves_gives_its_units_back_and_those_behind_keep_their_times() {
    let (noted, redis) = (Noted::start(), RedisServer::start());
    let limit = "rate = \"1/1500ms\"\ndelay = \"1min\"";
    let looked = Looked::start(&config(&noted.upstream, limit, &in_redis(&redis)));
    let proxy = &looked.tidegate;
    let pace = Pace::begin();
    let first = Asked::of(proxy.address, "/first");
    booked(&[&looked], 1);
    let mut leaver = proxy.connect();
    leaver.send("GET /leaves HTTP/1.1\r\nHost: test\r\n\r\n");
    booked(&[&looked], 2);
    let behind = Asked::of(proxy.address, "/behind");
    booked(&[&looked], 3);
    let mut last = proxy.connect();
    last.send("GET /last HTTP/1.1\r\nHost: test\r\n\r\n");
    booked(&[&looked], 4);
    drop((leaver, last));
    assert_eq!(first.end().0.status, 200);
    let (answer, took) = behind.end();
    assert_eq!(answer.status, 200);
    let due = Duration::from_millis(3000);
    assert!(took + pace.grants() >= due, "{took:?}");
    assert!(took <= due + pace.grants(), "{took:?}");
    // The last one's place is free again: else this waited for two windows.
    let (answer, took) = Asked::of(proxy.address, "/new").end();
    assert_eq!(answer.status, 200);
    assert!(
        took <= Duration::from_millis(1500) + pace.grants(),
        "{took:?}"
    );
    assert_eq!(noted.paths(), ["/first", "/behind", "/new"]);
}

#[test]
fn the_timeout_of_a_route_includes_the_wait() {
    let upstream = Upstream::start(|_, stream| {
        std::thread::sleep(Duration::from_millis(700));
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .is_ok()
    });
    let text = format!(
        "[limit.slow]\nkey = \"global\"\nrate = \"1/800ms\"\ndelay = \"1s\"\n\
         [upstream.app]\nservers = \"{}\"\n\
         [[route]]\npath = \"/*\"\nupstream = \"app\"\nlimits = [\"slow\"]\ntimeout = \"1200ms\"\n",
        upstream.url()
    );
    let proxy = Tidegate::start(&text);
    let pace = Pace::begin();
    let first = Asked::of(proxy.address, "/");
    next();
    let second = Asked::of(proxy.address, "/");
    next();
    let (third, took) = Asked::of(proxy.address, "/").end();
    assert_eq!(
        third.status, 429,
        "it would wait longer than its route allows"
    );
    assert!(took < pace.grants());
    assert_eq!(first.end().0.status, 200);
    let (late, took) = second.end();
    assert_eq!(late.status, 504, "0.8 s of its 1.2 s were over");
    assert!(
        took + Duration::from_millis(30) >= Duration::from_millis(1200),
        "{took:?}"
    );
    assert!(
        took <= Duration::from_millis(1200) + pace.grants(),
        "{took:?}"
    );
}

#[test]
fn a_drain_serves_those_whose_time_comes_and_refuses_the_others() {
    let upstream = Upstream::ok();
    let limit = "rate = \"1/2s\"\ndelay = \"1min\"";
    let more = "[server]\ndrain_timeout = \"2500ms\"\ndrain_idle = \"100ms\"\n";
    let proxy = Tidegate::start(&config(&upstream, limit, more));
    let asked: Vec<Asked> = (0..4)
        .map(|_| {
            next();
            Asked::of(proxy.address, "/")
        })
        .collect();
    next();
    let pace = Pace::begin();
    let stopped = Instant::now();
    proxy.signal("TERM");
    let mut answers: Vec<Answer> = asked.into_iter().map(|one| one.end().0).collect();
    answers.sort_by_key(|answer| answer.status);
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 200, 503, 503]);
    assert!(answers[3].text().contains("stops before the turn"));
    assert!(stopped.elapsed() < Duration::from_millis(2500) + pace.grants());
}

#[test]
fn a_held_stream_lets_its_siblings_run_and_its_body_wait() {
    let noted = Noted::start();
    let text = format!(
        "[limit.slow]\nkey = \"global\"\nrate = \"1/1s\"\ndelay = \"1min\"\n\
         [upstream.app]\nservers = \"{}\"\n\
         [[route]]\npath = \"/slow\"\nupstream = \"app\"\nlimits = [\"slow\"]\n\
         [[route]]\npath = \"/*\"\nupstream = \"app\"\nlimits = []\n",
        noted.upstream.url()
    );
    let proxy = Tidegate::start(&text);
    run(async {
        let client = Http2::to(proxy.address).await;
        assert_eq!(client.ask(get("/slow")).await.unwrap().status, 200);
        let post = Request::post("http://test/slow").body(()).unwrap();
        let (held, mut body) = client.begin(post).await;
        body.reserve_capacity(1 << 20);
        body.send_data(Bytes::from(vec![b'x'; 1 << 20]), true)
            .unwrap();
        let began = Instant::now();
        for number in 0..20 {
            let reply = client.ask(get(&format!("/free/{number}"))).await.unwrap();
            assert_eq!(reply.status, 200);
        }
        assert!(began.elapsed() < Duration::from_secs(1), "no sibling waits");
        let window = body.capacity();
        assert!(
            window < 1 << 20,
            "the proxy takes no more than a window of the body"
        );
        let reply = read(held).await.unwrap();
        assert_eq!(reply.status, 200);
        let waited = began.elapsed() + Duration::from_millis(60);
        assert!(waited >= Duration::from_secs(1), "{waited:?}");
        // A stream that is reset gives its place back at once.
        let (left, _) = client
            .begin(Request::post("http://test/slow").body(()).unwrap())
            .await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(left);
        tokio::time::sleep(Duration::from_millis(50)).await;
        let began = Instant::now();
        assert_eq!(client.ask(get("/slow")).await.unwrap().status, 200);
        assert!(began.elapsed() < Duration::from_millis(1900));
    });
    let posts = noted.paths().iter().filter(|path| *path == "/slow").count();
    assert_eq!(posts, 3);
}

#[test]
fn logs_metrics_and_headers_tell_of_the_wait() {
    let upstream = Upstream::ok();
    let limit = "rate = \"1/1s\"\ndelay = \"1min\"";
    let more = "[log]\nformat = \"json\"\naccess = \"stdout\"\nsample_allowed = 1.0\n";
    let looked = Looked::start(&config(&upstream, limit, more));
    let address = looked.tidegate.address;
    let metrics = || looked.get("/metrics").text();
    let waiting = "tidegate_waiting{limit=\"default\"}";
    assert!(metrics().contains(&format!("{waiting} 0\n")));
    let asked: Vec<Asked> = (0..4).map(|_| Asked::of(address, "/")).collect();
    eventually("three wait", || {
        metrics().contains(&format!("{waiting} 3\n"))
    });
    let states = looked.json("/api/v1/limits");
    assert_eq!(states["limits"][0]["waiting_clients"][0]["waiting"], 3);
    assert_eq!(states["limits"][0]["delay_seconds"], 60.0);
    assert_eq!(states["limits"][0]["delay_queue"], 100);
    for one in asked {
        let (answer, _) = one.end();
        assert_eq!(answer.status, 200);
        let reset: u64 = answer.header("x-ratelimit-reset").unwrap().parse().unwrap();
        assert!(reset > 1_700_000_000, "{reset}");
    }
    eventually("nothing waits", || {
        metrics().contains(&format!("{waiting} 0\n"))
    });
    let counted = "tidegate_delayed_seconds_count{limit=\"default\"} 3\n";
    assert!(metrics().contains(counted), "{}", metrics());
    eventually("all are logged", || {
        let lines = looked.tidegate.stdout();
        let delayed = lines
            .lines()
            .filter(|line| line.contains("\"delayed_ms\":"));
        delayed.count() == 3
    });
}

#[test]
fn a_limit_in_shadow_mode_holds_nothing_and_one_without_delay_denies_at_once() {
    let upstream = Upstream::ok();
    let text = format!(
        "[limit.tried]\nkey = \"global\"\nrate = \"1/h\"\ndelay = \"1min\"\nshadow = true\n\
         [limit.held]\nkey = \"global\"\nrate = \"1/10s\"\ndelay = \"1min\"\n\
         [limit.hard]\nkey = \"global\"\nrate = \"1/10s\"\n\
         [upstream.app]\nservers = \"{}\"\n\
         [[route]]\npath = \"/tried\"\nupstream = \"app\"\nlimits = [\"tried\"]\n\
         [[route]]\npath = \"/both\"\nupstream = \"app\"\nlimits = [\"held\", \"hard\"]\n",
        upstream.url()
    );
    let proxy = Tidegate::start(&text);
    let pace = Pace::begin();
    for _ in 0..5 {
        let (answer, took) = Asked::of(proxy.address, "/tried").end();
        assert_eq!(answer.status, 200);
        assert!(took < pace.grants(), "{took:?}");
    }
    assert_eq!(Asked::of(proxy.address, "/both").end().0.status, 200);
    let (denied, took) = Asked::of(proxy.address, "/both").end();
    assert_eq!(denied.status, 429);
    assert!(took < pace.grants(), "{took:?}");
}

#[test]
fn requests_are_held_while_redis_is_away_too() {
    let (noted, mut redis) = (Noted::start(), RedisServer::start());
    let limit = "rate = \"1/400ms\"\ndelay = \"1min\"\non_error = \"local\"";
    let store = in_redis(&redis);
    let proxy = Tidegate::start(&config(&noted.upstream, limit, &store));
    assert_eq!(proxy.get("/").status, 200);
    redis.kill();
    eventually("the store is away", || {
        proxy.get("/");
        proxy.said().iter().any(|line| line.contains("redis"))
    });
    let before = noted.arrivals().len();
    let asked: Vec<Asked> = (0..4).map(|_| Asked::of(proxy.address, "/")).collect();
    let statuses: Vec<u16> = asked.into_iter().map(|one| one.end().0.status).collect();
    assert_eq!(statuses, [200; 4]);
    let arrivals: Vec<Instant> = noted.arrivals()[before..].iter().map(|one| one.1).collect();
    let spread = arrivals[3] - arrivals[0];
    assert!(
        spread + Duration::from_millis(60) >= Duration::from_millis(1200),
        "{spread:?}"
    );
}
