//! What goes wrong around a request: upstreams that are down, silent, or break off; clients that
//! leave; a process that is told to stop, or has no descriptors left.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::admin::Looked;
use crate::house::{Client, PATIENCE, Tidegate, Upstream};
use crate::probe::{Probe, eventually};
use crate::support::free_port;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const WIDE: &str = "[limit.default]\nrate = \"1_000_000/day\"\nkey = \"global\"\n";

fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// A proxy whose upstream `api` has these settings.
fn before(api: &str, more: &str) -> Tidegate {
    let route = "[[route]]\npath = \"/*\"\nupstream = \"api\"";
    Tidegate::start(&format!("[upstream.api]\n{api}\n{more}\n{route}\n{WIDE}"))
}

#[test]
fn an_upstream_that_refuses_is_told_at_once() {
    let proxy = before(
        &format!("servers = [\"http://127.0.0.1:{}\"]", free_port()),
        "",
    );
    for _ in 0..3 {
        let began = Instant::now();
        let answer = proxy.get("/");
        answer.assert_problem(502);
        assert!(began.elapsed() < Duration::from_secs(5));
        assert!(
            !answer.text().contains("127.0.0.1"),
            "inner details: {}",
            answer.text()
        );
    }
    // An upload towards it is refused as well, and not swallowed for ever.
    let mut client = proxy.connect();
    client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 50000000\r\n\r\n");
    client.pour(&[b'x'; 65536], 8 << 20);
    assert_eq!(client.answer().status, 502);
}

#[test]
fn an_upstream_that_never_answers_is_given_up_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let closed = Arc::new(AtomicUsize::new(0));
    let count = closed.clone();
    std::thread::spawn(move || {
        for mut stream in silent.incoming().map_while(Result::ok) {
            let count = count.clone();
            std::thread::spawn(move || {
                let mut request = [0; 1024];
                let mut read = 0;
                while let Ok(more @ 1..) = stream.read(&mut request) {
                    read += more;
                }
                // Looking whether the upstream is up is no request.
                count.fetch_add(usize::from(read > 0), Ordering::SeqCst);
            });
        }
    });
    let proxy = before(
        &format!("servers = [\"http://{address}\"]\ntimeout = \"300ms\""),
        "",
    );
    let began = Instant::now();
    for _ in 0..3 {
        proxy.get("/").assert_problem(504);
    }
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    eventually("its connections are closed", || {
        closed.load(Ordering::SeqCst) == 3
    });
}

#[test]
fn a_backlog_that_is_full_is_given_up_in_time() {
    // A listener that never accepts: the kernel takes a few connections, then none.
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let api = format!(
        "servers = [\"http://{address}\"]\ntimeout = \"300ms\"\nconnect_timeout = \"300ms\""
    );
    let proxy = before(&api, "");
    let began = Instant::now();
    let answer = proxy.get("/");
    assert!(matches!(answer.status, 502 | 504), "{answer:?}");
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_body_that_breaks_off_is_never_complete() {
    for framing in ["Content-Length: 100000", "Transfer-Encoding: chunked"] {
        for resets in [false, true] {
            let (arrived, breaks) = channel::<()>();
            let breaks = Mutex::new(breaks);
            let upstream = Upstream::start(move |_, stream| {
                let head = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n3e8\r\n");
                let _ = stream.write_all(head.as_bytes());
                let _ = stream.write_all(&[b'x'; 500]);
                // A reset takes back what nobody has read yet.
                let _ = breaks.lock().unwrap().recv_timeout(PATIENCE);
                if resets {
                    reset(stream);
                }
                false
            });
            let proxy = Tidegate::start(&format!("upstream = \"{}\"\n{WIDE}", upstream.url()));
            let mut client = proxy.connect();
            client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\nGET / HTTP/1.1\r\nHost: test\r\n\r\n");
            assert!(client.head().unwrap().starts_with("HTTP/1.1 200"));
            let mut rest = Vec::new();
            while rest.len() < 500 {
                rest.extend(client.some().into_bytes());
            }
            arrived.send(()).unwrap();
            rest.extend(client.rest());
            assert!(
                rest.len() < 1000,
                "{framing}: more came than was sent: {}",
                rest.len()
            );
            assert!(!rest.ends_with(b"0\r\n\r\n"), "{framing}: looks complete");
            assert_eq!(
                upstream.seen().len(),
                1,
                "nothing is sent twice, or after a broken answer"
            );
        }
    }
}

/// Has the connection end with RST.
fn reset(stream: &TcpStream) {
    socket2::SockRef::from(stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
}

#[test]
fn a_body_that_stands_still_is_given_up_in_time() {
    let upstream = Upstream::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
        let mut end = [0];
        let _ = stream.read(&mut end);
        false
    });
    let proxy = before(
        &format!(
            "servers = [\"{}\"]\nbody_timeout = \"300ms\"",
            upstream.url()
        ),
        "",
    );
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    client.head();
    assert_eq!(client.rest(), b"abc");
}

#[test]
fn a_pooled_connection_that_has_closed_meanwhile_is_not_used() {
    let closing = Arc::new(Mutex::new(()));
    let held = Arc::clone(&closing);
    let upstream = Upstream::start(move |_, stream| {
        let _until_closed = held.lock().unwrap();
        let _ = stream.write_all(OK);
        let _ = stream.shutdown(Shutdown::Both);
        false
    });
    let probe = Probe::before(upstream, "[server]\nworkers = 1");
    for method in ["GET", "POST"] {
        for _ in 0..10 {
            let head = format!("{method} /row HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n");
            let observed = probe.observe(|proxy| {
                // The last answer can be here before the connection is closed behind it.
                drop(closing.lock().unwrap());
                proxy.connect().ask(&head).status
            });
            assert_eq!(
                (observed.client, observed.seen.len(), observed.charged),
                (200, 1, 1)
            );
        }
    }
}

#[test]
fn a_pooled_connection_that_closes_as_it_is_used_sends_nothing_twice() {
    // Closes a moment after each answer: sooner, later or just as the next request is sent.
    let turns = Arc::new(AtomicUsize::new(0));
    let upstream = Upstream::start(move |_, stream| {
        let _ = stream.write_all(OK);
        let turn = turns.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_micros(turn as u64 % 20 * 50));
        if turn.is_multiple_of(3) {
            reset(stream);
        }
        false
    });
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[server]\nworkers = 1\n{WIDE}",
        upstream.url()
    ));
    let mut client = proxy.connect();
    let (mut served, mut failed) = (0, 0);
    for turn in 0..600 {
        let known = upstream.seen().len();
        let head = format!("POST /{turn} HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\nab");
        let answer = client.ask(head);
        match answer.status {
            200 => served += 1,
            502 => failed += 1,
            other => panic!("{other}"),
        }
        let mut seen = upstream.seen();
        let seen: Vec<_> = seen.drain(known..).collect();
        assert!(seen.len() <= 1, "sent twice: {seen:#?}");
        assert!(answer.status != 200 || seen.len() == 1);
        std::thread::sleep(Duration::from_micros(turn as u64 % 7 * 100));
    }
    // What may have been sent already is not sent again: some fail, and the others are served.
    assert!(served > 0, "{failed} failed, {served} were served");
}

#[test]
fn half_of_the_servers_down_is_nothing_a_client_sees() {
    let (one, other) = (Upstream::ok(), Upstream::ok());
    let api = format!(
        "servers = [\"{}\", \"http://127.0.0.1:{}\", \"{}\", \"http://127.0.0.1:{}\"]",
        one.url(),
        free_port(),
        other.url(),
        free_port()
    );
    let proxy = before(&api, "");
    for turn in 0..60 {
        let head = "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n\r\nabc";
        let answer = proxy.connect().ask(head);
        assert_eq!(answer.status, 200, "request {turn}: {answer:?}");
        let left = answer.header("x-ratelimit-remaining").unwrap();
        assert_eq!(
            left,
            (999_999 - turn).to_string(),
            "what is tried again is charged once"
        );
    }
    assert_eq!(one.seen().len() + other.seen().len(), 60);
    assert!(
        one.seen().len() > 5 && other.seen().len() > 5,
        "both take their part"
    );
}

#[test]
fn a_server_that_returns_is_used_again() {
    let port = free_port();
    let proxy = before(&format!("servers = [\"http://127.0.0.1:{port}\"]"), "");
    proxy.get("/").assert_problem(502);
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(OK);
        }
    });
    eventually("it is used again", || proxy.get("/").status == 200);
}

#[test]
fn a_client_that_leaves_ends_the_work_upstream() {
    let (asked, left) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let (count, noted) = (asked.clone(), left.clone());
    let upstream = Upstream::start(move |seen, stream| {
        if seen.is_for("/quick") {
            return stream.write_all(OK).is_ok();
        }
        if seen.is_for("/streaming") {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc");
        }
        count.fetch_add(1, Ordering::SeqCst);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let gone = !matches!(stream.read(&mut [0; 16]), Ok(1..));
        noted.store(gone, Ordering::SeqCst);
        false
    });
    let proxy = Tidegate::start(&format!("upstream = \"{}\"\n{WIDE}", upstream.url()));
    // Also with the beginning of a next request waiting, which keeps hyper from looking.
    const WAITING: &str = "GET /x HTTP/1.1\r\nHo";
    for (turn, (target, resets, waiting)) in [
        ("/slow", false, ""),
        ("/slow", true, ""),
        ("/slow", false, WAITING),
        ("/slow", true, WAITING),
        ("/streaming", false, ""),
        ("/streaming", true, ""),
        ("/streaming", false, WAITING),
    ]
    .into_iter()
    .enumerate()
    {
        left.store(false, Ordering::SeqCst);
        let mut client = proxy.connect();
        client.send(format!(
            "GET {target} HTTP/1.1\r\nHost: test\r\n\r\n{waiting}"
        ));
        eventually("the upstream works", || {
            asked.load(Ordering::SeqCst) == turn + 1
        });
        let began = Instant::now();
        if resets {
            reset(&client.stream);
        }
        drop(client);
        eventually("the upstream is let go", || left.load(Ordering::SeqCst));
        assert!(
            began.elapsed() < Duration::from_secs(6),
            "{target}: {:?}",
            began.elapsed()
        );
    }
    assert_eq!(proxy.get("/quick").status, 200);
}

#[test]
fn sigterm_lets_requests_under_way_finish() {
    let (drains, slow) = channel::<()>();
    let slow = Mutex::new(slow);
    let upstream = Upstream::start(move |seen, stream| {
        if seen.is_for("/slow") {
            let _ = slow.lock().unwrap().recv_timeout(PATIENCE);
        }
        stream.write_all(OK).is_ok()
    });
    let mut proxy = Tidegate::start(&format!("upstream = \"{}\"\n{WIDE}", upstream.url()));
    let mut idle = proxy.connect();
    assert_eq!(idle.ask("GET / HTTP/1.1\r\nHost: test\r\n\r\n").status, 200);
    let mut slow = proxy.connect();
    slow.send("GET /slow HTTP/1.1\r\nHost: test\r\n\r\n");
    eventually("it is under way", || upstream.seen().len() == 2);
    let began = Instant::now();
    proxy.signal("TERM");
    assert!(idle.is_closed(), "idle connections are closed at once");
    eventually("nobody is let in", || {
        TcpStream::connect(proxy.address).is_err()
    });
    drains.send(()).unwrap();
    let answer = slow.answer();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("connection").as_deref(), Some("close"));
    assert!(proxy.wait().success());
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "it waited for more than the request"
    );
}

#[test]
fn sigterm_does_not_wait_for_ever() {
    let upstream = Upstream::start(|_, stream| {
        let _ = stream.read(&mut [0; 16]);
        false
    });
    let mut proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[server]\ndrain_timeout = \"400ms\"\n{WIDE}",
        upstream.url()
    ));
    let mut stuck = proxy.connect();
    stuck.send("GET /stuck HTTP/1.1\r\nHost: test\r\n\r\n");
    let mut half = proxy.connect();
    half.send("GET /half HTTP/1.1\r\nHo");
    eventually("it is under way", || upstream.seen().len() == 1);
    proxy.signal("TERM");
    proxy.wait();
    assert!(
        stuck
            .try_answer(false)
            .is_none_or(|answer| answer.status >= 500)
    );
}

#[test]
fn a_process_out_of_descriptors_serves_on() {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start_with_descriptors(
        64,
        &format!(
            "upstream = \"{}\"\n[server]\nidle_timeout = \"60s\"\n{WIDE}",
            upstream.url()
        ),
    );
    let mut served = proxy.connect();
    assert_eq!(
        served.ask("GET / HTTP/1.1\r\nHost: test\r\n\r\n").status,
        200
    );
    let mut flood: Vec<Client> = (0..150).map(|_| proxy.connect()).collect();
    pause(300);
    let cpu = cpu_ticks(proxy.pid());
    pause(1000);
    let spent = cpu_ticks(proxy.pid()) - cpu;
    assert!(spent < 50, "it spins: {spent} ticks in a second");
    // Who is connected is served, from the pooled connection.
    assert_eq!(
        served.ask("GET / HTTP/1.1\r\nHost: test\r\n\r\n").status,
        200
    );
    flood.drain(..).for_each(drop);
    // Those that waited in the backlog are gone too; once the proxy has seen that, whoever comes is
    // served.
    eventually("a new client is served", || {
        let mut new = proxy.connect();
        new.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        // Until then the proxy may close it.
        new.try_answer(false)
            .is_some_and(|answer| answer.status == 200)
    });
}

/// Clock ticks (10 ms) of CPU that a process has used.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<u64> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .filter_map(|x| x.parse().ok())
        .collect();
    // After the state's letter: utime and stime are the 11th and 12th numbers.
    fields[10] + fields[11]
}

#[test]
fn a_full_disk_under_the_logs_stops_nobody() {
    const ASKED: usize = 200;
    let upstream = Upstream::ok();
    let looked = Looked::start(&format!(
        "upstream = \"{}\"\n[log]\naccess = \"/dev/full\"\ndecisions = \"/dev/full\"\n\
         sample_allowed = 1.0\n{WIDE}",
        upstream.url()
    ));
    let mut client = looked.tidegate.connect();
    for _ in 0..ASKED {
        let answer = client.ask("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(answer.status, 200);
    }
    // Not one of their lines is forgotten.
    for log in ["access", "decisions"] {
        let lost = format!("tidegate_log_dropped_total{{log=\"{log}\"}} {ASKED}\n");
        eventually(&lost, || looked.get("/metrics").text().contains(&lost));
    }
}

#[test]
fn requests_share_a_pooled_connection_and_refusals_are_logged() {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[server]\nworkers = 1\n[limit.default]\nrate = \"20/day\"\n",
        upstream.url()
    ));
    for _ in 0..20 {
        assert_eq!(proxy.get("/").status, 200);
    }
    // One for the requests, and one of the look at the start.
    assert!(
        upstream.connections() <= 2,
        "{} connections",
        upstream.connections()
    );
    proxy.get("/told?secret").assert_problem(429);
    eventually("the denial is logged", || proxy.stdout().contains("/told"));
    assert!(!proxy.stdout().contains("secret"), "{}", proxy.stdout());
}
