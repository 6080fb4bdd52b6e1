//! What requests meet at a server, and how long it is gets no requests for that.

use std::io::{Read as _, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{answer, before, named, post, reset};
use crate::house::Upstream;
use crate::probe::eventually;
use crate::support::free_port;

/// An upstream that resets while it is told to.
fn broken(name: &'static str, broken: &Arc<AtomicBool>) -> Upstream {
    let broken = Arc::clone(broken);
    Upstream::start(move |_, stream| match broken.load(Ordering::Relaxed) {
        true => reset(stream),
        false => answer(stream, 200, name),
    })
}

#[test]
fn a_server_that_fails_is_left_alone_and_tried_by_one_request() {
    let is_broken = Arc::new(AtomicBool::new(true));
    let (bad, good) = (broken("bad", &is_broken), named("good"));
    let eject = "eject = { failures = 3, for = \"300ms\", max_for = \"300ms\" }";
    let proxy = before(&[bad.url(), good.url()], eject, "");
    let mut failed = 0;
    while failed < 3 {
        failed += usize::from(post(&proxy).status == 502);
    }
    let line = proxy.wait_for_line("gets no requests");
    assert!(line.contains("failed 3 times in a row"), "{line}");
    let known = bad.seen().len();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(2);
    let mut answers = Vec::new();
    while std::time::Instant::now() < until {
        answers.push(post(&proxy).status);
    }
    // At most one in each 300 ms.
    let tried = bad.seen().len() - known;
    assert!((1..=7).contains(&tried), "{tried} of {}", answers.len());
    assert_eq!(
        answers.iter().filter(|status| **status == 502).count(),
        tried
    );
    is_broken.store(false, Ordering::Relaxed);
    eventually("it is asked again", || post(&proxy).text() == "bad");
    proxy.wait_for_line("is back");
}

#[test]
fn a_failure_that_is_also_truncated_counts_once() {
    let bad = Upstream::start(|_, stream| {
        let head = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 9\r\n\r\ncut";
        let _ = stream.write_all(head.as_bytes());
        false
    });
    let good = named("good");
    let eject = "eject = { failures = 3, status = [\"5xx\"], for = \"1h\", max_for = \"1h\" }";
    let proxy = before(&[bad.url(), good.url()], eject, "");
    let fail = || {
        let known = bad.seen().len();
        while bad.seen().len() == known {
            let mut client = proxy.connect();
            client.send("GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
            client.rest();
        }
    };
    fail();
    fail();
    let is_ejected = |line: &String| line.contains("gets no requests");
    assert!(!proxy.said().iter().any(is_ejected), "{:?}", proxy.said());
    fail();
    proxy.wait_for_line("gets no requests");
}

#[test]
fn a_server_that_fails_now_and_then_is_ejected_within_a_time() {
    let count = AtomicUsize::new(0);
    let bad =
        Upstream::start(
            move |_, stream| match count.fetch_add(1, Ordering::Relaxed) % 3 == 2 {
                true => reset(stream),
                false => answer(stream, 200, "bad"),
            },
        );
    let good = named("good");
    // A pooled connection that ends is no failure.
    let eject = "connection_requests = 1\n\
                 eject = { failures = 3, within = \"1h\", for = \"1h\", max_for = \"1h\" }";
    let proxy = before(&[bad.url(), good.url()], eject, "");
    let mut failed = 0;
    while failed < 3 {
        failed += usize::from(post(&proxy).status == 502);
    }
    let line = proxy.wait_for_line("gets no requests");
    assert!(
        line.contains("failed 3 times within 3600s: gets no requests"),
        "{line}"
    );
    for _ in 0..20 {
        assert_eq!(post(&proxy).text(), "good");
    }
    assert_eq!(bad.seen().len(), 9);
}

#[test]
fn one_that_cannot_be_reached_costs_nobody_an_answer() {
    let (gone, good) = (format!("http://127.0.0.1:{}", free_port()), named("good"));
    let proxy = before(&[gone, good.url()], "", "");
    for _ in 0..50 {
        assert_eq!(post(&proxy).text(), "good");
    }
    let line = proxy.wait_for_line("gets no requests");
    assert!(
        line.contains("cannot be reached: gets no requests for 1s"),
        "{line}"
    );
    let line = proxy.wait_for_line("the last failed request to");
    assert!(line.contains("Connection refused"), "{line}");
}

#[test]
fn never_are_all_of_them_left_alone() {
    let is_broken = Arc::new(AtomicBool::new(true));
    let (one, two) = (broken("one", &is_broken), broken("two", &is_broken));
    let eject = "eject = { failures = 1, for = \"1h\", max_share = 100 }";
    let proxy = before(&[one.url(), two.url()], eject, "");
    for _ in 0..20 {
        assert_eq!(post(&proxy).status, 502);
    }
    let left = usize::from(one.seen().len() > 2) + usize::from(two.seen().len() > 2);
    assert_eq!(left, 1, "one is ejected, the other asked on");
    is_broken.store(false, Ordering::Relaxed);
    assert_eq!(post(&proxy).status, 200);
}

#[test]
fn statuses_count_where_the_file_says_so() {
    let bad = Upstream::start(|_, stream| answer(stream, 500, "bad"));
    let good = named("good");
    let plain = before(&[bad.url(), good.url()], "", "");
    for _ in 0..100 {
        plain.get("/");
    }
    assert!(
        plain
            .said()
            .iter()
            .all(|line| !line.contains("gets no requests"))
    );
    let eject = "eject = { failures = 2, for = \"1h\", status = [\"5xx\"] }";
    let strict = before(&[bad.url(), good.url()], eject, "");
    eventually("it is noticed", || {
        strict.get("/");
        strict
            .said()
            .iter()
            .any(|line| line.contains("gets no requests"))
    });
    for _ in 0..20 {
        assert_eq!(strict.get("/").text(), "good");
    }
}

#[test]
fn switched_off_nobody_is_left_alone() {
    let is_broken = Arc::new(AtomicBool::new(true));
    let (bad, good) = (broken("bad", &is_broken), named("good"));
    let api = "eject = false\nbalance = \"round-robin\"";
    let proxy = before(&[bad.url(), good.url()], api, "");
    let failed = (0..60).filter(|_| post(&proxy).status == 502).count();
    assert!(failed > 10, "{failed}");
}

/// A server that closes when the first bytes of a body have come.
fn impatient() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut bytes = Vec::new();
            let mut piece = [0; 1000];
            while !bytes.ends_with(b"abc") {
                match stream.read(&mut piece) {
                    Ok(count) if count > 0 => bytes.extend(&piece[..count]),
                    _ => break,
                }
            }
        }
    });
    url
}

#[test]
fn a_server_that_gives_up_a_client_without_its_body_is_not_to_blame() {
    let urls = [(); 2].map(|()| impatient());
    let eject = "eject = { failures = 1, for = \"1h\" }";
    let proxy = before(&urls, eject, "");
    for _ in 0..4 {
        let mut client = proxy.connect();
        let answer = client.ask("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 9\r\n\r\nabc");
        assert_eq!(answer.status, 502);
    }
    assert!(
        !proxy
            .said()
            .iter()
            .any(|line| line.contains("gets no requests"))
    );
}
