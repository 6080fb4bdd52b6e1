//! Handshakes that go wrong cost a connection for a bounded time, and nobody else anything.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustls::version::TLS13;

use super::WIDE;
use super::stage::{Stage, connect};
use crate::house::{Client, PATIENCE, Upstream};
use crate::probe::eventually;

fn impatient() -> Stage {
    let server = "[server]\nheader_timeout = \"1s\"\nidle_timeout = \"30s\"\n";
    Stage::start("", &format!("{WIDE}{server}"))
}

/// What the proxy says until it ends the connection, which it must.
fn last_words(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Ok(_) => said,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => said,
        Err(error) => panic!("still open: {error}"),
    }
}

#[test]
fn silence_is_heard_for_as_long_as_a_head_may_take() {
    let stage = impatient();
    let begun = Instant::now();
    assert!(last_words(TcpStream::connect(stage.secure).unwrap()).is_empty());
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(1), "{took:?}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    // The beginning of a record, and no more.
    let mut stream = TcpStream::connect(stage.secure).unwrap();
    stream.write_all(b"\x16\x03\x01\x02\x00\x01").unwrap();
    assert!(last_words(stream).is_empty());
    stage.curled("one.test", "/", &[]);
}

#[test]
fn garbage_is_answered_with_an_alert_at_most() {
    let stage = impatient();
    for garbage in [
        &b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09"[..],
        &b"\x16\x03\x01\xff\xff garbage that is no hello"[..],
        &b"\x16\x03\x01\x00\x05hello"[..],
        &b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10"[..],
        &[0xff; 4096][..],
    ] {
        let mut stream = TcpStream::connect(stage.secure).unwrap();
        let _ = stream.write_all(garbage);
        let said = last_words(stream);
        // An alert is a record of type 21.
        assert!(said.is_empty() || said[0] == 0x15, "{garbage:?}: {said:?}");
    }
    stage.curled("one.test", "/", &[]);
}

#[test]
fn an_alert_comes_before_the_end_of_a_client_that_still_sends() {
    let stage = impatient();
    let mut stream = TcpStream::connect(stage.secure).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A ClientHello of one byte.
    let hello = b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00";
    stream
        .write_all(&[&hello[..], &[0; 64 << 10]].concat())
        .unwrap();
    let mut said = Vec::new();
    // A reset of the connection would be an error.
    stream.read_to_end(&mut said).unwrap();
    assert_eq!(said.first(), Some(&0x15), "{said:?}");
}

#[test]
fn a_renegotiation_is_refused_at_once() {
    let stage = Stage::start("", WIDE);
    let begun = Instant::now();
    let mut openssl = Command::new("openssl")
        .args(["s_client", "-connect", &stage.secure.to_string()])
        .args(["-tls1_2", "-msg"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // OpenSSL begins a renegotiation. The pipe stays open, so that only an alert ends it.
    let mut input = openssl.stdin.take().unwrap();
    input.write_all(b"R\n").unwrap();
    let output = openssl.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("warning no_renegotiation"), "{said}");
    // An idle connection ends after 60 s.
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    drop(input);
}

#[test]
fn plain_http_is_told_where_it_is() {
    let stage = impatient();
    let mut client = Client::to(stage.secure);
    let answer = client.ask("GET /x HTTP/1.1\r\nHost: one.test\r\n\r\n");
    answer.assert_problem(400);
    assert!(answer.text().contains("https://"), "{}", answer.text());
    assert!(client.is_closed());
    // Also one that is not HTTP, though it begins like it.
    let mut client = Client::to(stage.secure);
    client.send("HELO one.test\r\n\r\n");
    assert_eq!(client.answer().status, 400);
    assert!(stage.upstream.seen().is_empty());
}

#[test]
fn handshakes_count_as_connections_and_are_given_back() {
    let server = "[server]\nheader_timeout = \"1s\"\nmax_connections = 6\nworkers = 1\n";
    let stage = Stage::start("", &format!("{WIDE}{server}"));
    let silent: Vec<_> = (0..6)
        .map(|_| TcpStream::connect(stage.secure).unwrap())
        .collect();
    // It waits until the silent ones are gone.
    stage.curled("one.test", "/", &[]);
    drop(silent);
}

#[test]
fn a_reader_that_takes_nothing_is_let_go() {
    let upstream = Upstream::start(|_, stream| {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n";
        let mut open = stream.write_all(head.as_bytes()).is_ok();
        while open {
            open = stream.write_all(&[b'x'; 1 << 16]).is_ok();
        }
        false
    });
    let server = "[server]\nbody_timeout = \"300ms\"\nmax_connections = 2\nworkers = 1\n";
    let stage = Stage::before(upstream, "", &format!("{WIDE}{server}"));
    let config = stage.client(&[&TLS13]);
    let mut reader = connect(&config, stage.secure, "one.test");
    reader
        .write_all(b"GET / HTTP/1.1\r\nHost: one.test\r\n\r\n")
        .unwrap();
    let mut some = [0; 1000];
    reader.read_exact(&mut some).unwrap();
    // The reader and the first client take both places.
    eventually("the slow reader is cut", || {
        let first = TcpStream::connect(stage.proxy.address).unwrap();
        let mut second = Client::to(stage.proxy.address);
        second
            .stream
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        second.send("GET / HTTP/1.0\r\n\r\n");
        let mut byte = [0];
        let served = second.stream.read(&mut byte).is_ok_and(|read| read == 1);
        drop(first);
        served
    });
}

#[test]
fn an_end_without_goodbye_ends_the_connection() {
    let stage = Stage::start(
        "",
        &format!("{WIDE}[server]\nmax_connections = 4\nworkers = 1\n"),
    );
    for _ in 0..10 {
        let config = stage.client(&[&TLS13]);
        let mut client = connect(&config, stage.secure, "one.test");
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: one.test\r\n\r\n")
            .unwrap();
        let mut some = [0; 12];
        client.read_exact(&mut some).unwrap();
        assert_eq!(&some, b"HTTP/1.1 200");
        // No close_notify: the socket is dropped as it is.
        drop(client.sock);
    }
}

/// The bytes of a next request hide the end of the connection.
#[test]
fn a_client_that_leaves_behind_a_next_request_ends_the_work_upstream() {
    let left = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&left);
    let upstream = Upstream::start(move |_, stream| {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let gone = matches!(stream.read(&mut [0; 16]), Ok(0));
        noted.store(gone, Ordering::SeqCst);
        false
    });
    let stage = Stage::before(upstream, "", WIDE);
    let mut client = connect(&stage.client(&[&TLS13]), stage.secure, "one.test");
    let request = b"GET / HTTP/1.1\r\nHost: one.test\r\n\r\n";
    client.write_all(request).unwrap();
    eventually("the upstream works", || !stage.upstream.seen().is_empty());
    client.write_all(request).unwrap();
    drop(client);
    eventually("the upstream is let go", || left.load(Ordering::SeqCst));
}
