//! Denials of a client that sends the same request again and again: each has an id of its own, true
//! numbers, a line in the log, and ends as soon as the limit allows the request.

use std::collections::HashSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::admin::Looked;
use crate::house::{Client, Tidegate, Upstream};
use crate::reload::Gate;
use crate::support::RedisServer;

/// Denials that are compared with the first one.
const MORE: usize = 5;

const HEAD: &str = "GET /a?b=c HTTP/1.1\r\nHost: test\r\nX-User: jo\r\n\r\n";

fn file(settings: &str, limit: &str) -> String {
    format!("{settings}\n[[route]]\npath = \"/*\"\nupstream = \"$UPSTREAM\"\n{limit}\n")
}

/// One limit for each user.
fn limit(rate: &str) -> String {
    format!("limits = [\"users\"]\n[limit.users]\nrate = \"{rate}\"\nkey = \"header:x-user\"")
}

/// A whole answer, without what differs each time: digits of times, of ids, and the date.
fn masked(client: &mut Client) -> String {
    let answer = client.answer();
    let text = format!("{}\n{}", answer.head, answer.text());
    let ids = ["\"request_id\":\"", "<small>"];
    let parts = ids.iter().find_map(|before| text.split_once(before));
    let (before, id) = parts.unwrap_or((&text, ""));
    let text = format!("{before}{}", id.get(16..).unwrap_or_default());
    let known = |line: &&str| !line.starts_with("date: ") && !line.starts_with("x-request-id: ");
    let lines: Vec<&str> = text.lines().filter(known).collect();
    let mut masked = lines.join("\n");
    masked.retain(|letter| !letter.is_ascii_digit());
    masked
}

/// Uses a limit up, and asserts that every further answer is the first denial's.
fn assert_alike(proxy: &Tidegate, head: &str, allowed: usize) -> String {
    let mut client = proxy.connect();
    for _ in 0..allowed {
        client.send(head);
        assert!(masked(&mut client).contains(" OK\n"));
    }
    client.send(head);
    let first = masked(&mut client);
    assert!(!first.contains(" OK\n"), "{first}");
    for _ in 0..MORE {
        client.send(head);
        assert_eq!(masked(&mut client), first);
    }
    // At once, and in pieces.
    client.send(head.repeat(MORE));
    (0..MORE).for_each(|_| assert_eq!(masked(&mut client), first));
    client.send(&head[..20]);
    client.send(&head[20..]);
    assert_eq!(masked(&mut client), first);
    first
}

#[test]
fn every_denial_is_as_the_first_one_whatever_is_told() {
    let two = "limits = [\"users\", \"all\"]\n[limit.users]\nrate = \"2/day\"\n\
               key = \"header:x-user\"\n[limit.all]\nrate = [\"5/day\", \"9/2days\"]\nkey = \"global\"";
    let page = "GET / HTTP/1.1\r\nHost: test\r\nX-User: jo\r\nAccept: text/html\r\n\r\n";
    let last = "GET / HTTP/1.1\r\nHost: test\r\nX-User: jo\r\nConnection: keep-alive\r\n\r\n";
    let rows = [
        ("", limit("2/day"), HEAD, 2),
        ("", two.to_owned(), HEAD, 2),
        ("", limit("1/day"), page, 1),
        ("", limit("1/day"), last, 1),
        (
            "[headers]\nietf = false\nreset = \"delta\"",
            limit("1/day"),
            HEAD,
            1,
        ),
        (
            "[headers]\nx_ratelimit = false\nrequest_id = \"x-request-id\"",
            limit("1/day"),
            HEAD,
            1,
        ),
        (
            "[deny]\nstatus = 503\ndocs_url = \"https://test/limits\"\n\
             body.json = '{\"own\": \"{limit} {retry_after}\"}'",
            limit("1/day"),
            HEAD,
            1,
        ),
    ];
    let upstream = Upstream::ok();
    for (settings, limit, head, allowed) in rows {
        let text = file(settings, &limit).replace("$UPSTREAM", &upstream.url());
        let first = assert_alike(&Tidegate::start(&text), head, allowed);
        assert!(first.contains("content-length: \n"), "{first}");
    }
}

/// Whole seconds of what is left of `window` a while after its beginning, rounded up.
fn left(window: Duration, passed: Duration) -> u64 {
    window
        .saturating_sub(passed)
        .as_micros()
        .div_ceil(1_000_000) as u64
}

#[test]
fn what_is_said_again_is_true_now_and_has_an_id_of_its_own() {
    const WINDOW: Duration = Duration::from_secs(4);
    let upstream = Upstream::ok();
    let named = "[headers]\nrequest_id = \"x-request-id\"";
    let text = file(named, &limit("1/4s")).replace("$UPSTREAM", &upstream.url());
    let proxy = Tidegate::start(&text);
    let mut client = proxy.connect();
    let mut ask = || {
        let at = (Instant::now(), SystemTime::now());
        client.send(HEAD);
        (at, client.answer(), Instant::now(), SystemTime::now())
    };
    let ((asked, _), _, passed, _) = ask();
    let (mut ids, mut waits) = (HashSet::new(), HashSet::new());
    // Beyond the middle of the third second, so that three waits are seen: 4, 3 and 2 s.
    while passed.elapsed() < WINDOW * 5 / 8 {
        let ((at, at_wall), answer, now, now_wall) = ask();
        assert_eq!(answer.status, 429);
        let told = |name: &str| answer.header(name).unwrap();
        let wait: u64 = told("retry-after").parse().unwrap();
        let (least, most) = (left(WINDOW, now - asked), left(WINDOW, at - passed));
        assert!((least..=most).contains(&wait), "{least}, {wait}, {most}");
        waits.insert(wait);
        let reset = at_wall + (WINDOW - (at - asked));
        let reset = reset.duration_since(UNIX_EPOCH).unwrap().as_secs();
        let resets: u64 = told("x-ratelimit-reset").parse().unwrap();
        assert!(resets.abs_diff(reset + 1) <= 1, "{resets}, {reset}");
        assert_eq!(told("ratelimit"), format!("\"users\";r=0;t={wait}"));
        let date = httpdate::parse_http_date(&told("date")).unwrap();
        let since = at_wall - Duration::from_millis(1_200);
        assert!((since..=now_wall).contains(&date), "{date:?}");
        let id = told("x-request-id");
        let text = format!(
            "retry in {wait} s\",\"violated-policies\":[\"users\"],\
             \"retry_after\":{wait},\"request_id\":\"{id}\"}}\n"
        );
        assert!(answer.text().ends_with(&text), "{}", answer.text());
        assert!(ids.insert(id), "a second time");
    }
    assert!(
        waits.len() >= 3 && ids.len() > 50,
        "{waits:?}, {}",
        ids.len()
    );
}

#[test]
fn each_is_logged_and_counted_as_the_first_one() {
    let upstream = Upstream::ok();
    let log = "[log]\naccess = \"stdout\"\nformat = \"json\"";
    let text = file(log, &limit("1/day")).replace("$UPSTREAM", &upstream.url());
    let mut looked = Looked::start(&text.replace("[[route]]", "[[route]]\nname = \"one\""));
    assert_alike(&looked.tidegate, HEAD, 1);
    let metrics = looked.get("/metrics").text();
    let denials = MORE * 2 + 2;
    for name in [
        "tidegate_http_requests_total{route=\"one\",method=\"GET\",code=\"429\"}",
        "tidegate_decisions_total{limit=\"users\",decision=\"denied\",source=\"store\"}",
    ] {
        assert!(
            metrics.contains(&format!("{name} {denials}\n")),
            "{metrics}"
        );
    }
    let proxy = &mut looked.tidegate;
    proxy.signal("TERM");
    proxy.wait();
    let said = proxy.stdout();
    let mut lines: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("denied"))
        .collect();
    assert_eq!(lines.len(), denials, "{said}");
    let keys = |line: &str| {
        let fields: serde_json::Map<_, _> = serde_json::from_str(line).unwrap();
        let varies = ["time", "duration_us", "duration_ms", "request_id"];
        let told = fields
            .into_iter()
            .filter(|(name, _)| !varies.contains(&name.as_str()));
        told.collect::<Vec<_>>()
    };
    let first = keys(lines.remove(0));
    assert!(lines.into_iter().all(|line| keys(line) == first), "{said}");
}

#[test]
fn what_may_pass_passes_at_once() {
    const WINDOW: Duration = Duration::from_millis(300);
    let upstream = Upstream::ok();
    let text = file("", &limit("2/300ms")).replace("$UPSTREAM", &upstream.url());
    let proxy = Tidegate::start(&text);
    let mut client = proxy.connect();
    let mut asked = 0;
    // Between when they were asked and answered, they passed.
    let mut passed = Vec::<(Instant, Instant)>::new();
    while passed.len() < 8 {
        let at = Instant::now();
        client.send(HEAD);
        let status = client.answer().status;
        asked += 1;
        let now = Instant::now();
        if let [.., last_but_one, _] = passed[..] {
            // However slow the machine is: never before 300 ms are over, and always after.
            assert!(status != 200 || now >= last_but_one.0 + WINDOW, "too soon");
            assert!(status == 200 || at <= last_but_one.1 + WINDOW, "too late");
        }
        if status == 200 {
            passed.push((at, now));
        }
    }
    assert!(asked > 50, "{asked}");
    assert_eq!(upstream.seen().len(), passed.len());
}

#[test]
fn another_configuration_means_something_else() {
    let gate = Gate::start(&file("", &limit("1/day")));
    let mut client = gate.proxy.connect();
    let mut ask = || {
        client.send(HEAD);
        client.answer().status
    };
    assert_eq!([(); 5].map(|()| ask()), [200, 429, 429, 429, 429]);
    gate.reload(&file("", &limit("3/day")));
    assert_eq!([(); 4].map(|()| ask()), [200, 200, 429, 429]);
    gate.reload(&file("", "limits = []"));
    assert_eq!([(); 2].map(|()| ask()), [200, 200]);
}

#[test]
fn heads_of_others_are_others() {
    let upstream = Upstream::ok();
    let text = file("trusted_proxies = [\"127.0.0.1\"]", &limit("1/day"))
        .replace("header:x-user", "ip")
        .replace("$UPSTREAM", &upstream.url());
    let proxy = Tidegate::start(&text);
    let head = |ip: &str| format!("GET / HTTP/1.1\r\nHost: test\r\nX-Forwarded-For: {ip}\r\n\r\n");
    let mut client = proxy.connect();
    let mut ask = |ip: &str| {
        client.send(head(ip));
        client.answer().status
    };
    assert_eq!([(); 4].map(|()| ask("192.0.2.1")), [200, 429, 429, 429]);
    assert_eq!([(); 4].map(|()| ask("192.0.2.2")), [200, 429, 429, 429]);
    assert_eq!(["192.0.2.1", "192.0.2.2"].map(ask), [429, 429]);
}

#[test]
fn denials_that_redis_made_are_known_and_forgotten_with_it() {
    let redis = RedisServer::start();
    let store = format!("[store]\nurl = \"redis://127.0.0.1:{}\"", redis.port());
    let gate = Gate::start(&file(&store, &limit("1/day")));
    assert_alike(&gate.proxy, HEAD, 1);
    let mut client = gate.proxy.connect();
    let mut ask = || {
        client.send(HEAD);
        client.answer().status
    };
    assert_eq!([(); 4].map(|()| ask()), [429; 4]);
    gate.reload(&file(&store, &limit("2/day")));
    assert_eq!([(); 3].map(|()| ask()), [200, 429, 429]);
}

#[test]
fn a_limit_has_a_status_of_its_own() {
    let upstream = Upstream::ok();
    let looked = Looked::start(&format!(
        "upstream = \"{}\"\n[deny]\nstatus = 420\n\
         [limit.busy]\nrate = \"1/h\"\nstatus = 503\n[limit.plain]\nrate = \"1/h\"\n\
         [[route]]\npath = \"/busy\"\nlimits = [\"busy\"]\n\
         [[route]]\npath = \"/plain\"\nlimits = [\"plain\"]\n",
        upstream.url()
    ));
    for (path, status) in [("/busy", 503), ("/plain", 420)] {
        assert_eq!(looked.tidegate.get(path).status, 200);
        let denied = looked.tidegate.get(path);
        assert_eq!(denied.status, status);
        let text = format!("\"status\":{status}");
        assert!(denied.text().contains(&text), "{}", denied.text());
        assert!(denied.header("retry-after").is_some());
    }
    let limits = looked.json("/api/v1/limits");
    assert_eq!(limits["limits"][0]["status"], 503);
    assert!(limits["limits"][1]["status"].is_null());
}

#[test]
fn only_a_call_of_grpc_is_denied_as_one() {
    let gate = Gate::start("upstream = \"$UPSTREAM\"\n[limit.default]\nrate = \"1/h\"\n");
    assert_eq!(gate.proxy.get("/").status, 200);
    for content_type in ["application/grpc", "application/grpcfoo"] {
        let line = format!("Content-Type: {content_type}\r\n");
        let denied = gate.proxy.get_with("/", &line);
        assert_eq!(denied.status, 429, "HTTP/1.1 has no calls of gRPC");
        assert!(denied.header("grpc-status").is_none());
    }
}

#[test]
fn a_denial_has_the_permissions_and_all_lines_of_its_route() {
    let gate = Gate::start(
        "[limit.default]\nrate = \"1/h\"\n[[route]]\npath = \"/*\"\nupstream = \"$UPSTREAM\"\n\
         limits = [\"default\"]\n[route.headers_down]\n\
         access-control-allow-origin = \"https://app.test\"\n\"+x-b\" = [\"1\", \"2\"]\n",
    );
    assert_eq!(gate.proxy.get("/").status, 200);
    let denied = gate.proxy.get_with("/", "Origin: https://evil.test\r\n");
    assert_eq!(denied.status, 429);
    let origin = denied.header("access-control-allow-origin");
    assert_eq!(origin.as_deref(), Some("https://app.test"));
    let lines = denied.head.lines().filter(|line| line.starts_with("x-b: "));
    assert_eq!(lines.count(), 2, "{}", denied.head);
}
