//! A route's `timeout`.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use super::before;
use crate::house::Upstream;
use crate::probe::eventually;

const SOON: Duration = Duration::from_secs(10);

#[test]
fn an_answer_that_does_not_begin_in_time_is_504() {
    let silent = Upstream::start(|_, stream| {
        let _ = stream.read(&mut [0; 1]);
        false
    });
    let servers = [silent.url(), Upstream::ok().url()];
    let api = "balance = \"round-robin\"\neject = { failures = 3 }";
    let proxy = before(&servers, api, "timeout = \"200ms\"");
    let began = Instant::now();
    eventually("the silent one is asked", || {
        let answer = proxy.get("/");
        if answer.status == 504 {
            answer.assert_problem(504);
        }
        answer.status == 504
    });
    assert!(began.elapsed() < SOON);
    // It is to blame for that, as if its own timeout had run out.
    eventually("it is left alone", || {
        proxy.get("/");
        proxy
            .said()
            .iter()
            .any(|line| line.contains("gets no requests"))
    });
}

#[test]
fn an_answer_that_does_not_end_in_time_is_cut_and_never_looks_complete() {
    let endless = Upstream::start(|_, stream| {
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let mut sent = stream.write_all(head.as_bytes()).is_ok();
        while sent {
            std::thread::sleep(Duration::from_millis(20));
            sent = stream.write_all(b"2\r\nok\r\n").is_ok();
        }
        false
    });
    let proxy = before(&[endless.url()], "", "timeout = \"1s\"");
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    assert!(client.head().unwrap().starts_with("HTTP/1.1 200"));
    let began = Instant::now();
    let rest = client.rest();
    assert!(began.elapsed() < SOON);
    assert!(rest.len() > 10 && !rest.ends_with(b"0\r\n\r\n"));
}

#[test]
fn tunnels_are_not_bounded() {
    let echo = Upstream::start(|_, stream| {
        let head = "HTTP/1.1 101 Switching\r\nupgrade: echo\r\nconnection: upgrade\r\n\r\n";
        let _ = stream.write_all(head.as_bytes());
        let mut bytes = [0; 64];
        while let Ok(length @ 1..) = stream.read(&mut bytes) {
            let _ = stream.write_all(&bytes[..length]);
        }
        false
    });
    let proxy = before(&[echo.url()], "", "timeout = \"700ms\"");
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n");
    assert!(client.head().unwrap().starts_with("HTTP/1.1 101"));
    std::thread::sleep(Duration::from_secs(1));
    client.send("still here");
    let mut heard = [0; 10];
    client.stream.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"still here");
}

#[test]
fn a_client_that_sends_no_more_of_its_body_is_the_one_that_is_late() {
    let waiting = Upstream::ok();
    let eject = "eject = { failures = 1, for = \"1h\" }";
    let proxy = before(&[waiting.url()], eject, "timeout = \"200ms\"");
    for _ in 0..3 {
        let mut client = proxy.connect();
        let answer = client.ask("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 9\r\n\r\nabc");
        answer.assert_problem(408);
    }
    assert_eq!(proxy.get("/").status, 200);
    assert!(
        !proxy
            .said()
            .iter()
            .any(|line| line.contains("gets no requests"))
    );
}
