//! Ways around a limit: no spelling of a path, a method, a key or an address reaches the upstream
//! uncounted.

use std::io::Write;
use std::time::Duration;

use crate::house::{Tidegate, Upstream};
use crate::probe::{Probe, eventually};

/// A budget of one for `/login`, and everything else free.
const LOGIN: &str = "[limit.login]\nrate = \"1/day\"\nkey = \"global\"\n\
    [[route]]\npath = \"/login\"\nlimits = [\"login\"]\n";
/// What makes a bypass worth having: other routes that nothing limits.
const OTHERS: &str = "[[route]]\npath = \"/*\"\nlimits = []\n";

pub fn guarded(upstream: &Upstream, rules: &str) -> Tidegate {
    Tidegate::start(&format!("upstream = \"{}\"\n{rules}", upstream.url()))
}

/// Spellings that some upstream somewhere takes for `/login`.
const SPELLINGS: [&[u8]; 44] = [
    b"/login",
    b"/login/",
    b"/login//",
    b"//login",
    b"///login",
    b"/./login",
    b"/././login",
    b"/login/.",
    b"/login/./",
    b"/x/../login",
    b"/x/y/../../login",
    b"/login/x/..",
    b"/%2e/login",
    b"/x/%2e%2e/login",
    b"/x/%2E%2e/login",
    b"/x/.%2e/login",
    b"/../login",
    b"/%2e%2e/login",
    b"/%6cogin",
    b"/%6Cogin",
    b"/lo%67in",
    b"/%6c%6f%67%69%6e",
    b"/%2flogin",
    b"/%2Flogin",
    b"/login%2f",
    b"/x%2f..%2flogin",
    b"/x/..%2flogin",
    b"/%5clogin",
    b"/\\login",
    b"/x\\..\\login",
    b"/x/..%5clogin",
    b"/%252flogin",
    b"/x/%252e%252e/login",
    b"/x/..%252flogin",
    b"/login;a=b",
    b"/login;",
    b"/;a=b/login",
    b"/x/..;/login",
    b"/login%00",
    b"/login%00.css",
    b"/x/%c0%ae%c0%ae/login",
    b"/login?a=b",
    b"/login?",
    b"/login#a",
];

#[test]
fn no_spelling_of_a_path_is_free() {
    for others in ["", OTHERS] {
        let upstream = Upstream::ok();
        let proxy = guarded(&upstream, &format!("{LOGIN}{others}"));
        assert_eq!(proxy.get("/login").status, 200);
        let odd: [&[u8]; 9] = [
            b"http://test/login",
            b"HTTP://test/login",
            b"http://TEST/login",
            b"http://test:80/login",
            b"http://test//login",
            b"http://test/x/../login",
            b"http://test/%6cogin",
            b"/login\0",
            b"/x\xff/../login",
        ];
        for target in SPELLINGS.iter().chain(&odd) {
            let name = String::from_utf8_lossy(target);
            let head: Vec<u8> = [b"GET ", *target, b" HTTP/1.1\r\nHost: test\r\n\r\n"].concat();
            let answer = proxy.connect().ask(head);
            let fine =
                matches!(answer.status, 400 | 429) || answer.status == 404 && others.is_empty();
            assert!(fine, "{name} is free: {answer:?}");
        }
        assert_eq!(upstream.seen().len(), 1, "{:#?}", upstream.seen());
    }
}

#[test]
fn a_spelling_that_passes_is_counted_with_the_others() {
    let upstream = Upstream::ok();
    let rules = format!("{}{OTHERS}", LOGIN.replace("1/day", "3/day"));
    let proxy = guarded(&upstream, &rules);
    for (target, left) in [
        ("//login", "2"),
        ("/%6cogin/", "1"),
        ("http://test/./login", "0"),
    ] {
        let answer = proxy.get(target);
        assert_eq!(
            answer.header("x-ratelimit-remaining").as_deref(),
            Some(left),
            "{answer:?}"
        );
        let seen = upstream.seen().pop().unwrap().head;
        let path = target.trim_start_matches("http://test");
        assert!(
            seen.starts_with(&format!("GET {path} ")),
            "the target is passed as sent: {seen}"
        );
    }
    assert_eq!(proxy.get("/login").status, 429);
}

#[test]
fn keys_made_of_paths_have_one_spelling() {
    let probe = Probe::start(
        "[limit.path]\nrate = \"1/day\"\nkey = \"path\"\n\
         [limit.id]\nrate = \"1/day\"\nkey = \"path:id\"\n\
         [[route]]\npath = \"/files/*\"\nlimits = [\"path\"]\n\
         [[route]]\npath = \"/users/{id}\"\nlimits = [\"id\"]\n[[route]]\npath = \"/meter\"\n",
    );
    for (first, others) in [
        (
            "/files/a",
            vec![
                "/files//a",
                "/files/a/",
                "/files/%61",
                "/files/b/../a",
                "/files/a;x",
            ],
        ),
        (
            "/users/jo",
            vec!["/users/j%6f", "/users//jo", "/users/jo/", "/users/jo;x=y"],
        ),
    ] {
        assert_eq!(probe.proxy.get(first).status, 200);
        for other in others {
            assert_eq!(probe.proxy.get(other).status, 429, "{other}");
        }
    }
    assert_eq!(
        probe.proxy.get("/files/A").status,
        200,
        "case tells files apart"
    );
}

#[test]
fn no_spelling_of_a_method_is_free() {
    let rules = format!(
        "{}{OTHERS}",
        LOGIN.replace("/login\"\n", "/login\"\nmethods = [\"POST\"]\n")
    );
    let upstream = Upstream::ok();
    let proxy = guarded(&upstream, &rules);
    let ask = |method: &str| {
        let head = format!("{method} /login HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n");
        proxy.connect().ask(head).status
    };
    assert_eq!(ask("POST"), 200);
    for method in ["POST", "post", "Post", "pOST"] {
        assert!(matches!(ask(method), 400 | 405 | 429), "{method} is free");
    }
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn head_counts_as_get() {
    let rules = format!(
        "{}{OTHERS}",
        LOGIN.replace("/login\"\n", "/login\"\nmethods = [\"GET\"]\n")
    );
    let upstream = Upstream::ok();
    let proxy = guarded(&upstream, &rules);
    let mut client = proxy.connect();
    client.send("HEAD /login HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(client.answer_to_head().status, 200);
    assert_eq!(proxy.get("/login").status, 429);
    client.send("HEAD /login HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!(client.answer_to_head().status, 429);
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn versions_and_connections_count_alike() {
    let upstream = Upstream::ok();
    let rules = "[limit.default]\nrate = \"4/day\"\nkey = \"ip\"\n";
    let proxy = guarded(&upstream, rules);
    let mut kept = proxy.connect();
    let new = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";
    let old = "GET / HTTP/1.0\r\nHost: test\r\n\r\n";
    assert_eq!(kept.ask(new).status, 200);
    assert_eq!(kept.ask(new).status, 200);
    assert_eq!(proxy.connect().ask(old).status, 200);
    assert_eq!(
        proxy
            .connect()
            .ask("GET / HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n\r\n")
            .status,
        200
    );
    for bytes in [new, old] {
        assert_eq!(proxy.connect().ask(bytes).status, 429);
    }
    assert_eq!(kept.ask(new).status, 429);
    assert_eq!(upstream.seen().len(), 4);
}

#[test]
fn what_fails_upstream_or_is_given_up_is_charged_once() {
    let upstream = Upstream::start(|seen, stream| match seen.head.split(' ').nth(1) {
        Some("/reset") => false,
        Some("/slow") => {
            std::thread::sleep(Duration::from_millis(400));
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                .is_ok()
        }
        Some("/fails") => stream
            .write_all(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")
            .is_ok(),
        _ => stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .is_ok(),
    });
    let probe = Probe::before(
        upstream,
        "[[route]]\npath = \"/dead\"\nupstream = \"http://127.0.0.1:1\"\n[[route]]\npath = \"/*\"\n",
    );
    for (target, status) in [("/dead", 502), ("/reset", 502), ("/fails", 503)] {
        let observed = probe.observe(|proxy| proxy.get(target).status);
        assert_eq!((observed.client, observed.charged), (status, 1), "{target}");
    }
    let aborted = probe.observe(|proxy| {
        let known = probe.upstream.seen().len();
        let mut client = proxy.connect();
        client.send("GET /slow HTTP/1.1\r\nHost: test\r\n\r\n");
        eventually("the upstream has it", || {
            probe.upstream.seen().len() > known
        });
    });
    assert_eq!((aborted.seen.len(), aborted.charged), (1, 1));
}

#[test]
fn a_preflight_is_free_and_leads_nowhere() {
    let upstream = Upstream::ok();
    let rules = format!("{}{OTHERS}", LOGIN);
    let proxy = guarded(&upstream, &rules);
    let preflight = "Origin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n";
    let ask = |method: &str, headers: &str| {
        let head = format!("{method} /login HTTP/1.1\r\nHost: test\r\n{headers}\r\n");
        proxy.connect().ask(head).status
    };
    for _ in 0..3 {
        assert_eq!(ask("OPTIONS", preflight), 200);
    }
    assert_eq!(ask("GET", preflight), 200, "only OPTIONS is a preflight");
    assert_eq!(ask("GET", preflight), 429);
    assert_eq!(ask("OPTIONS", "Origin: https://app.example\r\n"), 429);
    assert_eq!(ask("OPTIONS", ""), 429);
    assert_eq!(ask("OPTIONS", preflight), 200);
    assert_eq!(ask("options", preflight), 429);
    assert_eq!(
        ask(
            "GET",
            &format!("X-HTTP-Method-Override: OPTIONS\r\n{preflight}")
        ),
        429
    );
}

#[test]
fn no_preflight_reaches_an_upstream_by_another_method_or_opens_a_tunnel() {
    let upstream = Upstream::ok();
    let rules = "[limit.default]\nrate = \"1/day\"\nkey = \"global\"\n\
                 [[route]]\npath = \"/posted\"\nmethod_up = \"POST\"\n[[route]]\npath = \"/*\"\n";
    let preflight = "Origin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n";
    let upgrade = format!("{preflight}Connection: upgrade\r\nUpgrade: websocket\r\n");
    for (path, headers) in [("/posted", preflight), ("/", &upgrade)] {
        let proxy = guarded(&upstream, rules);
        let head = format!("OPTIONS {path} HTTP/1.1\r\nHost: test\r\n{headers}\r\n");
        let ask = || proxy.connect().ask(&head).status;
        assert_eq!((ask(), ask()), (200, 429), "{path}");
    }
}

#[test]
fn bypass_rules_let_pass_what_they_name_and_no_more() {
    let upstream = Upstream::ok();
    let proxy = guarded(
        &upstream,
        "trusted_proxies = [\"127.0.0.1\"]\n\
         [limit.default]\nrate = \"1/day\"\nkey = \"global\"\n\
         [[bypass]]\npath = \"/healthz\"\n[[bypass]]\npath = \"/open/*\"\n\
         [[bypass]]\nheader = \"x-probe\"\nvalue = \"secret\"\n\
         [[bypass]]\nip = [\"192.0.2.0/24\"]\npath = \"/internal\"\n\
         [[bypass]]\nkey = \"gold\"\n",
    );
    assert_eq!(proxy.get("/").status, 200);
    for (target, headers, passes) in [
        ("/", "", false),
        ("/healthz", "", true),
        ("/healthz/", "", true),
        ("/healthz/x", "", false),
        ("/healthz/../login", "", false),
        ("/login/..%2fhealthz", "", false),
        ("/open/x", "", true),
        ("/open/../login", "", false),
        ("/open/%2e%2e/login", "", false),
        ("/open/..%2flogin", "", false),
        ("/login%2f..%2fopen%2fx", "", false),
        ("/", "X-Probe: secret\r\n", true),
        ("/", "X-Probe: Secret\r\n", false),
        ("/", "X-Probe: secret2\r\n", false),
        ("/", "X-Probe: \r\n", false),
        ("/internal", "X-Forwarded-For: 192.0.2.9\r\n", true),
        (
            "/internal",
            "X-Forwarded-For: 192.0.2.9, 6.6.6.6\r\n",
            false,
        ),
        ("/internal", "", false),
        ("/", "X-Forwarded-For: 192.0.2.9\r\n", false),
        ("/", "X-Api-Key: gold\r\n", true),
        ("/", "X-Api-Key: silver\r\n", false),
    ] {
        let status = proxy.get_with(target, headers).status;
        let fine = if passes {
            status == 200
        } else {
            matches!(status, 400 | 429)
        };
        assert!(fine, "{target} {headers:?}: {status}");
    }
}

#[test]
fn costs_are_what_the_file_says_or_a_trusted_peer() {
    let rules = "[limit.ten]\nrate = \"10/day\"\nkey = \"global\"\n\
         [[route]]\npath = \"/five\"\nlimits = [\"ten\"]\ncost = 5\n\
         [[route]]\npath = \"/named\"\nlimits = [\"ten\"]\ncost = \"header:x-cost\"\n";
    let left = |answer: &crate::house::Answer| answer.header("x-ratelimit-remaining").unwrap();
    let upstream = Upstream::ok();
    let open = guarded(&upstream, rules);
    assert_eq!(left(&open.get("/five")), "5");
    for (cost, remaining) in [("0", "4"), ("9", "3"), ("-1", "2"), ("", "1"), ("x", "0")] {
        let answer = open.get_with("/named", &format!("X-Cost: {cost}\r\n"));
        assert_eq!(left(&answer), remaining, "an untrusted {cost:?} is 1");
    }
    let trusting = guarded(
        &upstream,
        &format!("trusted_proxies = [\"127.0.0.1\"]\n{rules}"),
    );
    for (cost, remaining) in [
        ("4", "6"),
        ("0", "6"),
        ("", "5"),
        ("nonsense", "4"),
        ("-3", "3"),
    ] {
        let answer = trusting.get_with("/named", &format!("X-Cost: {cost}\r\n"));
        assert_eq!(
            (answer.status, left(&answer).as_str()),
            (200, remaining),
            "{cost:?}"
        );
    }
    let wait = trusting.get_with("/named", "X-Cost: 9\r\n");
    assert!(
        wait.status == 429 && wait.header("retry-after").is_some(),
        "{wait:?}"
    );
    let never = trusting.get_with("/named", "X-Cost: 11\r\n");
    never.assert_problem(429);
    assert_eq!(never.header("retry-after"), None, "waiting does not help");
    for huge in [
        u64::MAX.to_string().as_str(),
        "18446744073709551616",
        "1e30",
        "10.5",
    ] {
        let answer = trusting.get_with("/named", &format!("X-Cost: {huge}\r\n"));
        answer.assert_problem(429);
        assert_eq!(
            answer.header("retry-after"),
            None,
            "{huge} is above the limit"
        );
    }
}
