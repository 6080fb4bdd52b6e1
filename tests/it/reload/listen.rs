//! Addresses that come and go while the others serve.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Gate, assert_said};
use crate::house::{Client, Upstream};
use crate::probe::eventually;
use crate::support::free_port;
use crate::tls::stage::Authority;

const ASK: &str = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// A proxy that may be told to listen elsewhere too.
struct Doors(Gate);

impl Doors {
    fn start() -> Doors {
        Doors(Gate::start(
            "upstream = \"$UPSTREAM\"\n[server]\nworkers = 2\n",
        ))
    }

    /// Listens at its first address and at `others`.
    fn listen(&self, others: &[String]) -> Vec<String> {
        let first = ["127.0.0.1:0".to_owned()];
        let all: Vec<String> = first
            .iter()
            .chain(others)
            .map(|one| format!("{one:?}"))
            .collect();
        self.0.write_whole(&format!(
            "listen = [{}]\nupstream = \"$UPSTREAM\"\n[server]\nworkers = 2\n",
            all.join(", ")
        ));
        self.0.hang_up()
    }
}

#[test]
fn an_address_is_added_and_taken_away() {
    let doors = Doors::start();
    let mut first = doors.0.proxy.connect();
    assert_eq!(first.ask(ASK).status, 200);
    let port = free_port();
    let said = doors.listen(&[format!("127.0.0.1:{port}")]);
    assert_said(&said, &format!("127.0.0.1:{port} added"));
    let mut second = Client::to(at(port));
    assert_eq!(second.ask(ASK).status, 200);
    // More than one worker accepts there.
    for _ in 0..20 {
        assert_eq!(Client::to(at(port)).ask(ASK).status, 200);
    }
    let said = doors.listen(&[]);
    assert_said(&said, &format!("127.0.0.1:{port} removed"));
    assert!(TcpStream::connect(at(port)).is_err());
    // Connections outlive the address they came in by.
    assert_eq!(second.ask(ASK).status, 200);
    assert_eq!(first.ask(ASK).status, 200);
    assert_eq!(doors.0.proxy.get("/").status, 200);
}

#[test]
fn an_address_that_is_taken_changes_nothing() {
    let doors = Doors::start();
    let (other, port) = (TcpListener::bind("127.0.0.1:0").unwrap(), free_port());
    let taken = other.local_addr().unwrap();
    let said = doors.listen(&[format!("127.0.0.1:{port}"), taken.to_string()]);
    assert_said(&said, "nothing was changed");
    assert_said(&said, &format!("cannot listen on {taken}"));
    assert!(
        TcpStream::connect(at(port)).is_err(),
        "the other is closed again"
    );
    assert_eq!(doors.0.proxy.get("/").status, 200);
    drop(other);
    doors.listen(&[format!("127.0.0.1:{port}"), taken.to_string()]);
    assert_eq!(Client::to(taken).ask(ASK).status, 200);
}

#[test]
fn unix_sockets_too() {
    let doors = Doors::start();
    let path = doors.0.proxy.directory.path().join("door.sock");
    let line = format!("unix:{}", path.display());
    for _ in 0..3 {
        doors.listen(std::slice::from_ref(&line));
        let mut stream = UnixStream::connect(&path).unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("HTTP/1.1 200"), "{said}");
        doors.listen(&[]);
        assert!(!path.exists());
    }
}

#[test]
fn nobody_who_comes_by_another_address_notices() {
    let doors = Doors::start();
    let (proxy, port) = (doors.0.proxy.address, free_port());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut answered = 0;
                    while !stop.load(Ordering::Relaxed) {
                        assert_eq!(Client::to(proxy).ask(ASK).status, 200);
                        answered += 1;
                    }
                    answered
                })
            })
            .collect();
        for _ in 0..20 {
            doors.listen(&[format!("127.0.0.1:{port}")]);
            assert_eq!(Client::to(at(port)).ask(ASK).status, 200);
            doors.listen(&[]);
        }
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            assert!(client.join().unwrap() > 0);
        }
    });
}

#[test]
fn the_last_address_may_be_another() {
    let upstream = Upstream::ok();
    let gate = Gate::before(upstream, "upstream = \"$UPSTREAM\"");
    let (mut kept, port) = (gate.proxy.connect(), free_port());
    assert_eq!(kept.ask(ASK).status, 200);
    gate.write_whole(&format!(
        "listen = \"127.0.0.1:{port}\"\nupstream = \"$UPSTREAM\"\n"
    ));
    gate.hang_up();
    eventually("the first one is closed", || {
        TcpStream::connect(gate.proxy.address).is_err()
    });
    assert_eq!(Client::to(at(port)).ask(ASK).status, 200);
    assert_eq!(kept.ask(ASK).status, 200);
}

#[test]
fn tls_begins_and_ends_with_a_reload() {
    let doors = Doors::start();
    let (folder, port) = (doors.0.proxy.directory.path().to_owned(), free_port());
    let authority = Authority::new(&folder, "ca");
    authority.write(&folder, "one", &["127.0.0.1"], 2999);
    let curl = || {
        let url = format!("https://127.0.0.1:{port}/");
        let curl = Command::new("curl")
            .args(["-sS", "--max-time", "10", "--cacert", "ca.pem", &url])
            .current_dir(&folder)
            .output();
        String::from_utf8(curl.unwrap().stdout).unwrap()
    };
    let text = "listen = \"127.0.0.1:0\"\nupstream = \"$UPSTREAM\"\n[server]\nworkers = 2\n";
    for _ in 0..2 {
        doors.0.write_whole(&format!(
            "{text}[tls]\nlisten = \"127.0.0.1:{port}\"\n\
             certificates = [{{ cert = \"one.pem\", key = \"one.key\" }}]\n"
        ));
        doors.0.hang_up();
        assert_eq!(curl(), "ok");
        doors.0.write_whole(text);
        doors.0.hang_up();
        assert_eq!(curl(), "");
        assert_eq!(doors.0.proxy.get("/").status, 200);
    }
}
