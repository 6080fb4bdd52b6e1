//! A new binary takes the place of the running one while requests, downloads and WebSockets are
//! under way, and nothing is lost; and when it cannot, nothing has changed.
//!
//! `TIDEGATE_TEST_UPGRADES=20` for as many in a row.

pub mod lineage;
mod load;
mod manager;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use lineage::{Lineage, has_ended, kill};
use load::{Habit, Load, Outcome, Place};

use crate::house::{Client, Seen, Upstream};
use crate::probe::eventually;
use crate::support::free_port;

const WIDE: &str = "[limit.default]\nrate = \"1_000_000/s\"\nkey = \"global\"\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const BIG: usize = 24 << 20;

fn upgrades() -> usize {
    let asked = std::env::var("TIDEGATE_TEST_UPGRADES");
    asked.map_or(3, |text| text.parse().unwrap())
}

/// Short answers, a big one under `/big`, and an echo for who asks for an upgrade.
fn upstream() -> Upstream {
    Upstream::start(|seen: &Seen, stream: &mut TcpStream| {
        if seen.header("upgrade").is_some() {
            let switch = b"HTTP/1.1 101 Switching Protocols\r\n\
                           Connection: upgrade\r\nUpgrade: websocket\r\n\r\n";
            let _ = stream.write_all(switch);
            let mut bytes = [0; 1024];
            while let Ok(read @ 1..) = stream.read(&mut bytes) {
                if stream.write_all(&bytes[..read]).is_err() {
                    break;
                }
            }
            return false;
        }
        if seen.is_for("/big") {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BIG}\r\n\r\n");
            let piece = vec![b'x'; 1 << 20];
            return stream.write_all(head.as_bytes()).is_ok()
                && (0..BIG / piece.len()).all(|_| stream.write_all(&piece).is_ok());
        }
        stream.write_all(OK).is_ok()
    })
}

fn settings(upstream: &Upstream) -> String {
    format!("upstream = \"{}\"\n{WIDE}", upstream.url())
}

/// Clients of every kind on the same proxy.
fn clients(places: &[Place]) -> Vec<(Place, Habit)> {
    let both = |place: &Place| {
        [Habit::KeepAlive, Habit::NewConnections].map(|habit| (place.clone(), habit))
    };
    let http1 = places.iter().flat_map(both).cycle().take(8);
    http1.chain([(places[0].clone(), Habit::Http2)]).collect()
}

/// A download whose answer has begun.
fn download(address: std::net::SocketAddr) -> Client {
    let mut client = Client::to(address);
    client.send("GET /big HTTP/1.1\r\nHost: test\r\n\r\n");
    let mut first = [0; 1];
    assert_eq!(client.stream.peek(&mut first).unwrap(), 1);
    client
}

/// A WebSocket, as far as a proxy can tell.
fn web_socket(address: std::net::SocketAddr) -> Client {
    let mut client = Client::to(address);
    let ask = "GET /ws HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(client.ask(ask).status, 101);
    client
}

fn echoes(socket: &mut Client) -> bool {
    let mut back = [0; 4];
    socket.stream.write_all(b"ping").is_ok()
        && socket.stream.read_exact(&mut back).is_ok()
        && &back == b"ping"
}

#[track_caller]
fn assert_nothing_lost(what: &str, outcome: &Outcome) {
    println!(
        "{what}: {} requests on {} connections, {} lost, {} not begun; slowest {:?}, {} over 0.5 s",
        outcome.requests,
        outcome.connections,
        outcome.failures.len(),
        outcome.again,
        outcome.slowest,
        outcome.slow
    );
    let failures = &outcome.failures;
    assert!(failures.is_empty(), "{}: {failures:#?}", failures.len());
}

#[test]
fn a_health_check_on_a_kept_connection_passes_in_an_upgrade_and_fails_at_a_stop() {
    let upstream = upstream();
    let decide = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let settings = format!("{}[decide]\nlisten = \"{decide}\"\n", settings(&upstream));
    let proxy = Lineage::start("\"127.0.0.1:0\"", &settings, "workers = 1");
    let mut kept = Client::to(decide);
    let check = |client: &mut Client| {
        let answer = client.ask("GET /healthcheck HTTP/1.1\r\nHost: test\r\n\r\n");
        let ends = answer.header("connection").as_deref() == Some("close");
        (answer.status, ends)
    };
    // A process may answer some more before it hears of its end.
    let last_check = |client: &mut Client| {
        let mut last = (0, false);
        eventually("the connection ends", || {
            last = check(client);
            last.1
        });
        last.0
    };
    assert_eq!(check(&mut kept), (200, false));
    proxy.upgrade();
    assert_eq!(last_check(&mut kept), 200);
    let mut kept = Client::to(decide);
    assert_eq!(check(&mut kept), (200, false));
    proxy.signal("TERM");
    assert_eq!(last_check(&mut kept), 500);
}

#[test]
fn upgrades_in_a_row_lose_nothing() {
    let upstream = upstream();
    let mut proxy = Lineage::start(
        "[\"127.0.0.1:0\", \"unix:proxy.sock\"]",
        &settings(&upstream),
        "workers = 2\nhandover_timeout = \"15s\"",
    );
    let address = proxy.address().unwrap();
    let socket = proxy.path("proxy.sock");
    let load = Load::start(&clients(&[Place::Tcp(address), Place::Unix(socket)]));
    let mut old = Vec::new();
    for _ in 0..upgrades() {
        let mut under_way = download(address);
        let mut tunnel = web_socket(address);
        old.push(proxy.upgrade());
        assert_eq!(proxy.address(), Some(address));
        assert!(echoes(&mut tunnel), "the tunnel goes on");
        let so_far = load.requests();
        eventually("the new one serves", || load.requests() > so_far + 200);
        let answer = under_way.answer();
        assert_eq!((answer.status, answer.body.len()), (200, BIG));
        assert!(echoes(&mut tunnel), "the tunnel goes on");
    }
    let outcome = load.end();
    assert_nothing_lost("upgrades", &outcome);
    for pid in old {
        proxy.wait_for_end(pid);
    }
    assert!(!has_ended(proxy.pid()));
}

#[test]
fn a_tunnel_gets_until_the_deadline_after_an_upgrade() {
    let upstream = upstream();
    let mut proxy = Lineage::start(
        "\"127.0.0.1:0\"",
        &settings(&upstream),
        "drain_timeout = \"20s\"\nhandover_timeout = \"3s\"",
    );
    let mut tunnel = web_socket(proxy.address().unwrap());
    let mut idle = Client::to(proxy.address().unwrap());
    let ask = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";
    assert_eq!(idle.ask(ask).status, 200);
    let old = proxy.upgrade();
    // The old process drains a moment after the new one serves.
    eventually("the old one ends idle connections", || {
        idle.ask(ask).header("connection").as_deref() == Some("close")
    });
    assert!(idle.is_closed());
    assert!(echoes(&mut tunnel));
    proxy.wait_for_end(old);
    assert!(!echoes(&mut tunnel));
}

#[test]
fn a_signal_stops_a_replaced_process_in_order() {
    let upstream = upstream();
    let mut proxy = Lineage::start(
        "\"127.0.0.1:0\"",
        &settings(&upstream),
        "handover_timeout = \"10min\"\ndrain_timeout = \"2s\"",
    );
    let mut tunnel = web_socket(proxy.address().unwrap());
    let old = proxy.upgrade();
    kill("TERM", old);
    eventually("it is told", || {
        proxy.said().contains("stopped by a signal")
    });
    assert!(echoes(&mut tunnel), "the tunnel goes on");
    proxy.wait_for_end(old);
    assert!(!has_ended(proxy.pid()));
}

#[test]
fn a_new_binary_that_fails_changes_nothing() {
    let upstream = upstream();
    let proxy = Lineage::start("\"127.0.0.1:0\"", &settings(&upstream), "workers = 2");
    let address = proxy.address().unwrap();
    let load = Load::start(&clients(&[Place::Tcp(address)]));
    let pid = proxy.pid();
    let file = proxy.path("proxy.toml");
    let good = std::fs::read_to_string(&file).unwrap();

    proxy.replace_binary(None);
    let why = proxy.fail_to_upgrade();
    assert!(
        why.contains("cannot start") && why.contains("No such file"),
        "{why}"
    );
    proxy.replace_binary(Some("not a program"));
    let why = proxy.fail_to_upgrade();
    assert!(why.contains("cannot start"), "{why}");
    proxy.replace_binary(Some("#!/bin/sh\nkill -SEGV $$\n"));
    let why = proxy.fail_to_upgrade();
    assert!(why.contains("signal: 11"), "{why}");
    proxy.replace_binary(Some("#!/bin/sh\nexit 3\n"));
    let why = proxy.fail_to_upgrade();
    assert!(why.contains("exit status: 3"), "{why}");
    proxy.replace_binary(Some(""));
    std::fs::write(&file, format!("{good}\nunknown = 1\n")).unwrap();
    let why = proxy.fail_to_upgrade();
    assert!(why.contains("exit status: 78"), "{why}");
    assert!(proxy.said().contains("unknown key `unknown`"));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let both = format!("[\"127.0.0.1:0\", \"{}\"]", taken.local_addr().unwrap());
    std::fs::write(&file, good.replacen("\"127.0.0.1:0\"", &both, 1)).unwrap();
    let why = proxy.fail_to_upgrade();
    assert!(why.contains("exit status: 1"), "{why}");
    let said = format!(
        "process {} listens on {}",
        std::process::id(),
        taken.local_addr().unwrap()
    );
    assert!(proxy.said().contains(&said), "{}", proxy.said());
    assert_eq!(proxy.pid(), pid);

    std::fs::write(&file, good).unwrap();
    proxy.upgrade();
    assert_nothing_lost("failed upgrades", &load.end());
}

#[test]
fn an_upgrade_listens_as_the_new_file_says() {
    let upstream = upstream();
    let proxy = Lineage::start(
        "[\"127.0.0.1:0\", \"unix:a.sock\"]",
        &settings(&upstream),
        "workers = 1",
    );
    let address = proxy.address().unwrap();
    let file = proxy.path("proxy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replacen("unix:a.sock", "unix:b.sock", 1);
    std::fs::write(&file, text.replacen("workers = 1", "workers = 3", 1)).unwrap();
    let connects = |name| UnixStream::connect(proxy.path(name)).is_ok();
    assert!(connects("a.sock") && !connects("b.sock"));
    proxy.upgrade();
    assert_eq!(proxy.address(), Some(address));
    assert!(connects("b.sock"));
    eventually("the other is closed", || !connects("a.sock"));
    let ask = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";
    assert_eq!(Client::to(address).ask(ask).status, 200);
}

#[test]
fn a_stop_in_the_middle_of_an_upgrade_ends_both() {
    let upstream = upstream();
    let mut proxy = Lineage::start("\"127.0.0.1:0\"", &settings(&upstream), "");
    let pid = proxy.pid();
    proxy.replace_binary(Some("#!/bin/sh\necho $$ > new\nexec sleep 60\n"));
    proxy.signal("USR2");
    let new = proxy.path("new");
    eventually("it starts", || {
        std::fs::read_to_string(&new).is_ok_and(|text| text.ends_with('\n'))
    });
    let new: u32 = std::fs::read_to_string(&new)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    proxy.signal("USR2");
    eventually("only one at a time", || {
        proxy.said().contains("one is under way")
    });
    kill("TERM", pid);
    proxy.wait_for_end(pid);
    eventually("the new one has ended too", || has_ended(new));
    assert!(!proxy.path("pid").exists());
}

#[test]
fn a_second_process_on_the_same_port_takes_over_without_a_loss() {
    let upstream = upstream();
    let listen = format!("\"127.0.0.1:{}\"", free_port());
    let start = |words: &[&str]| {
        let directory = tempfile::tempdir().unwrap();
        let text = settings(&upstream);
        let all = (&*listen, &*text, "workers = 2");
        Lineage::start_in(directory, all, &[], &mut |command| {
            command.args(words);
        })
    };
    let mut proxy = start(&[]);
    let knows = |proxy: &Lineage| proxy.said().contains("another process listens");
    assert!(!knows(&proxy), "{}", proxy.said());
    let load = Load::start(&clients(&[Place::Tcp(proxy.address().unwrap())]));
    for _ in 0..upgrades() {
        let next = start(&["--alongside"]);
        // A thread writes messages, so this one may come behind the address.
        eventually("it knows of the other process", || knows(&next));
        let pid = proxy.pid();
        kill("TERM", pid);
        proxy.wait_for_end(pid);
        proxy = next;
        let so_far = load.requests();
        eventually("the new one serves", || load.requests() > so_far + 200);
    }
    assert_nothing_lost("plain", &load.end());
}

#[test]
fn an_idle_connection_gets_one_more_answer_after_sigterm() {
    let upstream = upstream();
    let mut proxy = Lineage::start(
        "\"127.0.0.1:0\"",
        &settings(&upstream),
        "drain_idle = \"10s\"",
    );
    let pid = proxy.pid();
    let ask = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";
    let mut idle = Client::to(proxy.address().unwrap());
    assert_eq!(idle.ask(ask).header("connection"), None);
    let unused = Client::to(proxy.address().unwrap());
    kill("TERM", pid);
    let address = proxy.address().unwrap();
    eventually("nobody is let in", || TcpStream::connect(address).is_err());
    let last = idle.ask(ask);
    assert_eq!(last.status, 200);
    assert_eq!(last.header("connection").as_deref(), Some("close"));
    assert!(idle.is_closed());
    drop(unused);
    proxy.wait_for_end(pid);
}

#[test]
fn the_new_process_has_the_admin() {
    let port = free_port();
    let settings = format!("admin = \"127.0.0.1:{port}\"\n{}", settings(&upstream()));
    let lineage = Lineage::start("\"127.0.0.1:0\"", &settings, "");
    let ask = |path: &str| {
        let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        let mut client = Client::over(stream);
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        ));
        client.try_answer(false)
    };
    let pid = || {
        let text = ask("/api/v1/status")?.text();
        let status: serde_json::Value = serde_json::from_str(&text).ok()?;
        status["pid"].as_u64()
    };
    eventually("it answers", || pid() == Some(lineage.pid().into()));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ask_until_the_end = || {
            while !ended.load(Ordering::Relaxed) {
                let status = ask("/healthz").map(|answer| answer.status);
                assert_eq!(status, Some(200), "a connection was lost");
            }
        };
        for _ in 0..4 {
            scope.spawn(ask_until_the_end);
        }
        for _ in 0..upgrades() {
            lineage.upgrade();
            eventually("the new one answers", || {
                pid() == Some(lineage.pid().into())
            });
        }
        ended.store(true, Ordering::Relaxed);
    });
    eventually("the last one alone answers", || {
        (0..20).all(|_| pid() == Some(lineage.pid().into()))
    });
}
