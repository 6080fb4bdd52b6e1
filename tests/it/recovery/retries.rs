//! Requests that are sent again, and those that must not be.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::backend::Backend;
use super::{WIDE, answer, before, named, post, remaining, reset};
use crate::house::{Seen, Tidegate, Upstream};

/// Two servers: the first request of all is answered with a reset, whoever gets it.
fn one_reset() -> (Upstream, Upstream, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let server = |count: Arc<AtomicUsize>| {
        Upstream::start(
            move |_, stream| match count.fetch_add(1, Ordering::Relaxed) {
                0 => reset(stream),
                _ => answer(stream, 200, "answered"),
            },
        )
    };
    (
        server(Arc::clone(&count)),
        server(Arc::clone(&count)),
        count,
    )
}

/// What becomes of the first request, and how often it was sent.
#[track_caller]
fn first(request: &str, api: &str) -> (u16, usize) {
    let (one, two, count) = one_reset();
    let proxy = before(&[one.url(), two.url()], api, "");
    let answer = proxy.connect().ask(request);
    let sent = count.load(Ordering::Relaxed);
    // What it cost: one unit, however often it was sent.
    if answer.status == 200 {
        assert_eq!(remaining(&answer), 999_999);
    }
    assert_eq!(remaining(&proxy.get("/")), 999_998);
    (answer.status, sent)
}

#[test]
fn what_bears_repetition_is_sent_again_and_charged_once() {
    for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"] {
        let request = format!("{method} / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        let (one, two, count) = one_reset();
        let proxy = before(&[one.url(), two.url()], "", "");
        let mut client = proxy.connect();
        client.send(&request);
        let head = client.head().unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{method}: {head}");
        assert_eq!(count.load(Ordering::Relaxed), 2, "{method}");
        assert_eq!(remaining(&proxy.get("/")), 999_998, "{method}");
        let (one, two) = (one.seen().len(), two.seen().len());
        assert!(one > 0 && two > 0, "another server: {one}, {two}");
    }
}

#[test]
fn what_does_not_bear_repetition_is_sent_once() {
    for request in [
        "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n",
        "PATCH / HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\nhi",
        "PUT / HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\nhi",
    ] {
        assert_eq!(first(request, ""), (502, 1), "{request}");
    }
    let get = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";
    assert_eq!(first(get, "retries = 0"), (502, 1));
    assert_eq!(first(get, "retries = { on = [] }"), (502, 1));
    assert_eq!(first(get, "retries = 1"), (200, 2));
}

#[test]
fn a_single_server_gets_a_request_again_where_the_file_says_so() {
    let count = Arc::new(AtomicUsize::new(0));
    let server = || {
        let count = Arc::clone(&count);
        Upstream::start(
            move |_, stream| match count.fetch_add(1, Ordering::Relaxed) {
                0 | 1 => reset(stream),
                _ => answer(stream, 200, "ok"),
            },
        )
    };
    let asked = |settings: &str| {
        count.store(0, Ordering::Relaxed);
        let upstream = server();
        let proxy = before(&[upstream.url()], settings, "");
        (proxy.get("/").status, count.load(Ordering::Relaxed))
    };
    assert_eq!(asked("retries = { attempts = 2 }"), (502, 1));
    let same = |attempts| {
        asked(&format!(
            "retries = {{ attempts = {attempts}, same_server = true }}"
        ))
    };
    assert_eq!(same(1), (502, 2));
    assert_eq!(same(2), (200, 3));
}

#[test]
fn a_connection_that_closes_as_it_is_used_again_is_no_failure() {
    let count = AtomicUsize::new(0);
    // Each connection answers one request, takes another and closes.
    let upstream = Upstream::start(move |_, stream| {
        count.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) && answer(stream, 200, "ok")
    });
    let proxy = before(&[upstream.url()], "", "");
    for _ in 0..10 {
        assert_eq!(proxy.get("/").status, 200);
    }
    let is_post = |seen: &Seen| seen.head.starts_with("POST");
    assert_eq!(post(&proxy).status, 502);
    assert_eq!(upstream.seen().into_iter().filter(is_post).count(), 1);
    assert!(
        proxy
            .said()
            .iter()
            .all(|line| !line.contains("gets no requests"))
    );
}

#[test]
fn statuses_and_timeouts_are_retried_where_the_file_says_so() {
    let busy = Upstream::start(|_, stream| answer(stream, 503, "busy"));
    let good = named("good");
    let servers = [busy.url(), good.url()];
    let plain = before(&servers, "balance = \"round-robin\"", "");
    let busy_ones = (0..40).filter(|_| plain.get("/").status == 503).count();
    assert!(busy_ones > 5, "{busy_ones}");
    let proxy = before(&servers, "retries = { on = [\"503\"] }", "");
    for _ in 0..40 {
        assert_eq!(proxy.get("/").text(), "good");
    }
    // All of them busy: the answer is theirs.
    let alone = before(&[busy.url()], "retries = { on = [\"503\"] }", "");
    assert_eq!(alone.get("/").text(), "busy");

    let frozen = Backend::start("frozen");
    frozen.freeze();
    let api = "timeout = \"600ms\"\nretries = { on = [\"timeout\"] }\neject = false";
    let proxy = before(&[frozen.url(), good.url()], api, "");
    for _ in 0..8 {
        assert_eq!(proxy.get("/").text(), "good");
    }
}

#[test]
fn in_an_outage_retries_stay_within_their_budget() {
    let count = Arc::new(AtomicUsize::new(0));
    let server = || {
        let count = Arc::clone(&count);
        Upstream::start(move |_, stream| {
            count.fetch_add(1, Ordering::Relaxed);
            reset(stream)
        })
    };
    let (one, two) = (server(), server());
    let api = "eject = false\nretries = { attempts = 5, budget = 10 }";
    let proxy = before(&[one.url(), two.url()], api, "");
    let began = Instant::now();
    let mut client = proxy.connect();
    let requests = 2_000;
    for _ in 0..requests {
        let answer = client.ask("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(answer.status, 502);
    }
    // A tenth of them, and 10 in each second, those of the last 10 s at once.
    let floor = 10 * (10 + began.elapsed().as_secs() as usize + 1);
    let retries = count.load(Ordering::Relaxed) - requests;
    assert!(retries <= requests / 10 + floor, "{retries}");
    assert!(retries >= requests / 10, "{retries}");
}

#[test]
fn an_upload_to_a_dead_server_goes_to_another() {
    let (mut dead, good) = (Backend::start("dead"), named("good"));
    dead.kill();
    let config = format!(
        "[upstream.api]\nservers = [\"{}\", \"{}\"]\n{WIDE}\
         [[route]]\npath = \"/*\"\nupstream = \"api\"\n",
        dead.url(),
        good.url()
    );
    let proxy = Tidegate::start(&config);
    for _ in 0..20 {
        assert_eq!(post(&proxy).text(), "good");
    }
    assert_eq!(remaining(&proxy.get("/")), 1_000_000 - 21);
}
