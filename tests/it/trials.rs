//! Limits on trial: shadow limits and candidates are counted and reported, and deny nothing.

use std::io::Read as _;
use std::time::{Duration, Instant};

use crate::admin::Looked;
use crate::house::{PATIENCE, Tidegate, Upstream};
use crate::pace::Pace;
use crate::probe::eventually;
use crate::support::RedisServer;

const LIMITS: &str = "\
    [limit.search]\nkey = \"global\"\nrate = \"2/h\"\nshadow = true\n\
    [limit.api]\nkey = \"global\"\nrate = \"6/h\"\ncandidate = \"3/h\"\n\
    [[route]]\npath = \"/*\"\nlimits = [\"search\", \"api\"]\n";

fn proxy(limits: &str, redis: Option<&RedisServer>) -> (Upstream, Tidegate) {
    let upstream = Upstream::ok();
    let store = redis.map_or("memory:".to_owned(), |redis| {
        format!("redis://127.0.0.1:{}", redis.port())
    });
    let timeout = if redis.is_some() {
        "timeout = \"5s\"\n"
    } else {
        ""
    };
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[store]\nurl = \"{store}\"\n{timeout}\
         [log]\naccess = \"stdout\"\nsample_allowed = 1.0\ndecisions = \"decisions.jsonl\"\n\
         {limits}",
        upstream.url()
    ));
    (upstream, proxy)
}

fn lines(read: impl Fn() -> String, count: usize) -> Vec<String> {
    let until = Instant::now() + PATIENCE;
    loop {
        let text = read();
        if text.lines().count() >= count {
            return text.lines().map(str::to_owned).collect();
        }
        assert!(Instant::now() < until, "only: {text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn with_each_store(body: impl Fn(Option<&RedisServer>)) {
    body(None);
    body(Some(&RedisServer::start()));
}

#[test]
fn a_limit_on_trial_denies_nothing_and_says_what_it_would_have() {
    with_each_store(|redis| {
        let (_upstream, mut proxy) = proxy(LIMITS, redis);
        let mut client = proxy.connect();
        for request in 1..=8 {
            let answer = client.ask("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
            // Only the enforced limit denies, and only of it are clients told.
            assert_eq!(answer.status, if request <= 6 { 200 } else { 429 });
            let policy = answer.header("ratelimit-policy").unwrap();
            assert_eq!(policy, "\"api\";q=6;w=3600");
            assert!(!answer.text().contains("search"), "{}", answer.text());
        }
        let log = lines(|| proxy.stdout(), 8);
        for (request, line) in (1..).zip(&log) {
            let expected = match request {
                1..=2 => None,
                3 => Some("\"would_deny\":[\"search\"]"),
                _ => Some("\"would_deny\":[\"search\",\"api~candidate\"]"),
            };
            match expected {
                Some(part) => assert!(line.contains(part), "{request}: {line}"),
                None => assert!(!line.contains("would_deny"), "{request}: {line}"),
            }
        }
        let path = proxy.directory.path().join("decisions.jsonl");
        let decisions = lines(|| std::fs::read_to_string(&path).unwrap(), 24);
        let count = |parts: &[&str]| {
            let all = |line: &&String| parts.iter().all(|part| line.contains(part));
            decisions.iter().filter(all).count()
        };
        let (shadow, candidate) = ("\"role\":\"shadow\"", "\"role\":\"candidate\"");
        assert_eq!((count(&[shadow]), count(&[candidate])), (8, 8));
        assert_eq!(count(&[shadow, "\"allowed\":true"]), 2);
        assert_eq!(count(&[candidate, "\"allowed\":true"]), 3);
        assert_eq!(count(&["\"allowed\":true"]), 2 + 3 + 6);
        proxy.signal("TERM");
        proxy.wait();
        let told = proxy.said().join("\n");
        for line in [
            "limit search (shadow): would have denied 6 of 8",
            "limit api (candidate): would have denied 5 of 8",
        ] {
            assert!(told.contains(line), "{line}: {told}");
        }
    });
}

#[test]
fn a_trial_of_slots_holds_them_and_lets_go() {
    with_each_store(|redis| {
        let limits = "[limit.jobs]\nkey = \"global\"\nconcurrent = 1\nshadow = true\n\
                      [[route]]\npath = \"/*\"\nlimits = [\"jobs\"]\n";
        let (_upstream, proxy) = proxy(limits, redis);
        for _ in 0..20 {
            let answer = proxy.get("/");
            assert_eq!(answer.status, 200);
            assert_eq!(answer.header("ratelimit-policy"), None);
            if let Some(redis) = redis {
                let until = Instant::now() + PATIENCE;
                while redis.run("KEYS *jobs*") != redis::Value::Array(Vec::new()) {
                    assert!(Instant::now() < until, "never let go of");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        let log = lines(|| proxy.stdout(), 20);
        if redis.is_some() {
            assert!(!log.join("\n").contains("would_deny"), "{log:?}");
        }
    });
}

#[test]
fn without_the_store_trials_are_not_decided_and_nothing_waits_for_them() {
    let limits = "[limit.search]\nkey = \"global\"\nrate = \"1/h\"\nshadow = true\n\
                  [[route]]\npath = \"/*\"\nlimits = [\"search\"]\n";
    let mut redis = RedisServer::start();
    let (_upstream, proxy) = proxy(limits, Some(&redis));
    redis.kill();
    let (begun, pace) = (Instant::now(), Pace::begin());
    for _ in 0..10 {
        assert_eq!(proxy.get("/").status, 200);
    }
    let most = Duration::from_secs(4) + pace.grants();
    assert!(begun.elapsed() < most, "it waited");
    let log = lines(|| proxy.stdout(), 10);
    assert!(!log.join("\n").contains("would_deny"), "{log:?}");
}

#[test]
fn a_limit_on_trial_refuses_no_request_without_a_key() {
    const TRIAL: &str = "[limit.account]\nkey = \"header:x-account\"\nmissing = \"deny\"\n\
         rate = \"1/h\"\nshadow = true\n\
         [limit.api]\nkey = \"global\"\nrate = \"9/h\"\n\
         [[route]]\npath = \"/*\"\nlimits = [\"account\", \"api\"]\n";
    with_each_store(|redis| {
        let (_upstream, proxy) = proxy(TRIAL, redis);
        for headers in ["", "X-Account: a\r\nX-Account: b\r\n"] {
            assert_eq!(proxy.get_with("/", headers).status, 200, "{headers}");
        }
    });
}

#[test]
fn a_limit_on_trial_reports_requests_whose_clients_leave() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let looked = Looked::start(&format!(
        "upstream = \"http://{}\"\n\
         [limit.search]\nkey = \"global\"\nrate = \"1/h\"\nshadow = true\n\
         [[route]]\npath = \"/*\"\nlimits = [\"search\"]\n",
        silent.local_addr().unwrap()
    ));
    let mut under_way = Vec::new();
    for _ in 0..2 {
        let mut client = looked.tidegate.connect();
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        // Until the upstream has the request: at its start the proxy tries a connection.
        under_way.push(loop {
            let (mut upstream, _) = silent.accept().unwrap();
            if upstream.read(&mut [0]).unwrap() > 0 {
                break upstream;
            }
        });
    }
    let counted = |verdict: &str| {
        let text = looked.get("/metrics").text();
        let mut lines = text.lines();
        lines.any(|line| {
            line.starts_with("tidegate_decisions_total{limit=\"search\"")
                && line.contains(&format!("\"{verdict}\""))
                && line.ends_with(" 1")
        })
    };
    eventually("both are counted", || {
        counted("allowed") && counted("shadow_denied")
    });
}
