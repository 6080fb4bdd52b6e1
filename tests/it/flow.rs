//! Bodies and tunnels as they pass: each piece at once, at the pace of the slower side, and never
//! piled up in between.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, mpsc};
use std::thread;
use std::time::Duration;

use crate::house::{Client, PATIENCE, Tidegate, Upstream};
use crate::probe::eventually;

/// A body that no buffer on the way could hold.
const LARGE: usize = 256 << 20;
/// What both kernels' buffers and ours hold at most between two ends that stand still.
const ON_THE_WAY: usize = 48 << 20;
/// What the proxy's memory may grow by while a large body passes, with what the allocator has not
/// yet given back.
const FLAT_KIB: u64 = 8 << 10;
/// How long nothing must move before a side counts as standing still.
const STILL: Duration = Duration::from_millis(300);
const PIECE: usize = 64 << 10;

fn before(upstream: &Upstream) -> Tidegate {
    Tidegate::start(&format!(
        "upstream = \"{}\"\n[server]\nworkers = 1\nmax_body = \"unlimited\"\n",
        upstream.url()
    ))
}

fn resident_kib(proxy: &Tidegate) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let words = line.unwrap().split_whitespace().nth(1);
    words.unwrap().parse().unwrap()
}

/// A part of every large body here, whose bytes tell where they belong: what is lost or doubled
/// shows.
fn piece(from: usize, length: usize) -> &'static [u8] {
    const TURN: usize = 251;
    static PATTERN: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..TURN + PIECE).map(|at| (at % TURN) as u8).collect());
    &PATTERN[from % TURN..][..length]
}

/// Reads to the end and checks each byte, of which `first` have been read already.
fn read_through(stream: &mut TcpStream, first: &[u8], until: usize) {
    let mut come = 0;
    let mut check = |read: &[u8]| {
        for read in read.chunks(PIECE) {
            assert!(read == piece(come, read.len()), "wrong behind {come} bytes");
            come += read.len();
        }
        come
    };
    let mut checked = check(first);
    let mut chunk = vec![0; PIECE];
    while checked < until {
        let read = stream.read(&mut chunk).unwrap();
        assert!(read > 0, "ended after {checked} bytes");
        checked = check(&chunk[..read]);
    }
}

/// Waits until `count` has not moved for a while, and returns it.
fn stands_still(count: &AtomicUsize) -> usize {
    loop {
        let before = count.load(Ordering::Relaxed);
        thread::sleep(STILL);
        if before > 0 && count.load(Ordering::Relaxed) == before {
            return before;
        }
    }
}

#[test]
fn each_event_arrives_before_the_next_is_sent() {
    for framing in ["transfer-encoding: chunked\r\n", "connection: close\r\n"] {
        let chunked = framing.starts_with("transfer");
        let (arrived, next) = mpsc::channel::<()>();
        let next = std::sync::Mutex::new(next);
        let upstream = Upstream::start(move |_, stream| {
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{framing}\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            for event in 0..5 {
                let text = format!("data: {event}\n\n");
                let text = match chunked {
                    true => format!("{:x}\r\n{text}\r\n", text.len()),
                    false => text,
                };
                stream.write_all(text.as_bytes()).unwrap();
                // Held back, the event would never be confirmed.
                next.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            }
            if chunked {
                stream.write_all(b"0\r\n\r\n").unwrap();
            }
            chunked
        });
        let proxy = before(&upstream);
        let mut client = proxy.connect();
        client.send("GET /events HTTP/1.1\r\nhost: a\r\naccept: text/event-stream\r\n\r\n");
        client.head().unwrap();
        let mut text = String::new();
        for event in 0..5 {
            let wanted = format!("data: {event}\n\n");
            while !text.contains(&wanted) {
                text.push_str(&client.some());
            }
            arrived.send(()).unwrap();
        }
    }
}

#[test]
fn a_download_waits_for_its_reader_and_arrives_whole() {
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    let upstream = Upstream::start(move |_, stream| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LARGE}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        for from in (0..LARGE).step_by(PIECE) {
            stream.write_all(piece(from, PIECE)).unwrap();
            count.fetch_add(PIECE, Ordering::Relaxed);
        }
        true
    });
    let proxy = before(&upstream);
    let memory = resident_kib(&proxy);
    let mut client = proxy.connect();
    client.send("GET /large HTTP/1.1\r\nhost: a\r\n\r\n");
    client.head().unwrap();
    let sent = stands_still(&written);
    assert!(sent < ON_THE_WAY, "{sent} bytes taken for nobody");
    let rest = client.take_buffered();
    read_through(&mut client.stream, &rest, LARGE);
    let grown = resident_kib(&proxy).saturating_sub(memory);
    assert!(grown < FLAT_KIB, "{grown} KiB more");
}

#[test]
fn an_upload_waits_for_its_upstream_and_arrives_whole() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let reads = Arc::new(AtomicBool::new(false));
    let may_read = Arc::clone(&reads);
    let server = thread::spawn(move || {
        // The proxy looks once, at its start, whether anybody listens.
        let mut server = listener
            .incoming()
            .map(|stream| Client::over(stream.unwrap()))
            .find_map(|mut server| server.head().map(|_| server))
            .unwrap();
        eventually("the reader begins", || may_read.load(Ordering::Relaxed));
        let rest = server.take_buffered();
        read_through(&mut server.stream, &rest, LARGE);
        server.send("HTTP/1.1 204 No Content\r\n\r\n");
    });
    let proxy = Tidegate::start(&format!(
        "upstream = \"http://{address}\"\n[server]\nworkers = 1\nmax_body = \"unlimited\"\n"
    ));
    let memory = resident_kib(&proxy);
    let mut client = proxy.connect();
    client.send(format!(
        "POST /large HTTP/1.1\r\nhost: a\r\ncontent-length: {LARGE}\r\n\r\n"
    ));
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    let mut writes = client.stream.try_clone().unwrap();
    let writer = thread::spawn(move || {
        for from in (0..LARGE).step_by(PIECE) {
            writes.write_all(piece(from, PIECE)).unwrap();
            count.fetch_add(PIECE, Ordering::Relaxed);
        }
    });
    let sent = stands_still(&written);
    assert!(sent < ON_THE_WAY, "{sent} bytes taken for nobody");
    reads.store(true, Ordering::Relaxed);
    assert_eq!(client.answer().status, 204);
    writer.join().unwrap();
    server.join().unwrap();
    let grown = resident_kib(&proxy).saturating_sub(memory);
    assert!(grown < FLAT_KIB, "{grown} KiB more");
}

#[test]
fn an_answer_and_its_upload_do_not_wait_for_each_other() {
    const LENGTH: usize = 64 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        // The proxy looks once, at its start, whether anybody listens.
        let mut server = listener
            .incoming()
            .map(|stream| Client::over(stream.unwrap()))
            .find_map(|mut server| server.head().map(|_| server))
            .unwrap();
        let mut answers = server.stream.try_clone().unwrap();
        let answer = thread::spawn(move || {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LENGTH}\r\n\r\n");
            answers.write_all(head.as_bytes()).unwrap();
            for from in (0..LENGTH).step_by(PIECE) {
                answers.write_all(piece(from, PIECE)).unwrap();
            }
        });
        let rest = server.take_buffered();
        read_through(&mut server.stream, &rest, LENGTH);
        answer.join().unwrap();
    });
    let proxy = Tidegate::start(&format!(
        "upstream = \"http://{address}\"\n[server]\nworkers = 1\nmax_body = \"unlimited\"\n"
    ));
    let mut client = proxy.connect();
    client.send(format!(
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {LENGTH}\r\n\r\n"
    ));
    client.head().unwrap();
    // All of it, before any of the answer's content is read.
    for from in (0..LENGTH).step_by(PIECE) {
        client.stream.write_all(piece(from, PIECE)).unwrap();
    }
    let rest = client.take_buffered();
    read_through(&mut client.stream, &rest, LENGTH);
    server.join().unwrap();
}

/// An upstream that agrees to an upgrade and then does `tunnel`.
fn tunnel(then: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> (Upstream, Tidegate, Client) {
    let upstream = Upstream::start(move |_, stream| {
        let head =
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: raw\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        then(stream);
        false
    });
    let proxy = before(&upstream);
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: raw\r\n\r\n");
    assert!(client.head().unwrap().starts_with("HTTP/1.1 101"));
    (upstream, proxy, client)
}

#[test]
fn each_side_of_a_tunnel_may_end_by_itself() {
    let (_upstream, _proxy, mut client) = tunnel(|stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(&all).unwrap();
        stream.write_all(b", and out").unwrap();
    });
    client.send("in");
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.rest(), b"in, and out");
}

#[test]
fn a_tunnel_waits_for_its_reader() {
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    let (_upstream, proxy, mut client) = tunnel(move |stream| {
        for from in (0..LARGE).step_by(PIECE) {
            stream.write_all(piece(from, PIECE)).unwrap();
            count.fetch_add(PIECE, Ordering::Relaxed);
        }
    });
    let memory = resident_kib(&proxy);
    let sent = stands_still(&written);
    assert!(sent < ON_THE_WAY, "{sent} bytes taken for nobody");
    let rest = client.take_buffered();
    read_through(&mut client.stream, &rest, LARGE);
    let grown = resident_kib(&proxy).saturating_sub(memory);
    assert!(grown < FLAT_KIB, "{grown} KiB more");
}

/// Takes connections of HTTP/2, reads all that comes, and answers no request.
fn silent_http2() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("h2c://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // Empty SETTINGS.
            stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
            thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
        }
    });
    url
}

/// A decision waits for the body in the first case. In the second, the body is kept for another
/// attempt.
#[test]
fn content_that_comes_byte_by_byte_takes_little_memory() {
    const CLIENTS: usize = 40;
    const BYTES: usize = 300;
    let upstream = Upstream::ok();
    let by_body = "[limit.default]\nrate = \"9/s\"\nkey = \"body:user\"\nvalues = { \"body:user\" = [\"a\"] }\n";
    for (upstream, limit) in [(upstream.url(), by_body), (silent_http2(), "")] {
        let proxy = Tidegate::start(&format!("upstream = \"{upstream}\"\n{limit}"));
        let connect = |_| {
            let mut stream = TcpStream::connect(proxy.address).unwrap();
            stream.set_nodelay(true).unwrap();
            let head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 600000\r\n\r\n{";
            stream.write_all(head).unwrap();
            stream
        };
        let mut clients: Vec<TcpStream> = (0..CLIENTS).map(connect).collect();
        thread::sleep(STILL);
        let before = resident_kib(&proxy);
        for _ in 0..BYTES {
            for client in &mut clients {
                client.write_all(b" ").unwrap();
            }
            // So that the proxy reads each byte by itself.
            thread::sleep(Duration::from_millis(5));
        }
        let grown = resident_kib(&proxy).saturating_sub(before);
        assert!(grown < 2 * FLAT_KIB, "{grown} KiB for {upstream}");
    }
}
