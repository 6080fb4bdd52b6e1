//! Under a service manager: sockets that it listens on, and what it is told.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::lineage::{Lineage, kill};
use super::load::{Habit, Load, Place};
use super::{assert_nothing_lost, clients, settings, upgrades, upstream};
use crate::house::{Client, PATIENCE};
use crate::probe::eventually;
use crate::support::free_port;

/// Passes standard input and output on as systemd does, from descriptor 3 on.
const PASS: [&str; 4] = [
    "sh",
    "-c",
    "exec 3<&0 4<&1 0</dev/null 1>/dev/null; \
     LISTEN_FDS=2 LISTEN_PID=$$ LISTEN_FDNAMES=web:local exec \"$@\"",
    "sh",
];

const ASK: &str = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";

#[test]
fn sockets_of_a_service_manager_outlive_every_process() {
    let upstream = upstream();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("proxy.sock");
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let unix = UnixListener::bind(&path).unwrap();
    let address = tcp.local_addr().unwrap();
    let listen = format!("[\"{address}\", \"unix:{}\"]", path.display());
    let settings = settings(&upstream);
    let pass = |command: &mut Command| {
        let sockets = (tcp.try_clone().unwrap(), unix.try_clone().unwrap());
        command
            .stdin(OwnedFd::from(sockets.0))
            .stdout(OwnedFd::from(sockets.1));
    };
    let start = |directory| {
        let file = (&*listen, &*settings, "workers = 3");
        Lineage::start_in(directory, file, &PASS, &mut |command| pass(command))
    };
    let mut waiting = Client::to(address);
    waiting.send(ASK);
    let mut proxy = start(directory);
    assert_eq!(waiting.answer().status, 200);
    assert_eq!(proxy.address(), Some(address));

    // Nobody would serve a socket that the new file does not name.
    let file = proxy.path("proxy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let one = format!("\"{address}\"");
    std::fs::write(&file, text.replacen(&listen, &one, 1)).unwrap();
    assert!(proxy.fail_to_upgrade().contains("exit status: 1"));
    std::fs::write(&file, text).unwrap();

    let load = Load::start(&clients(&[Place::Tcp(address), Place::Unix(path)]));
    for _ in 0..upgrades() {
        proxy.upgrade();
        let so_far = load.requests();
        eventually("the new one serves", || load.requests() > so_far + 100);
    }
    // A restart as systemd does it: connections wait until somebody is there again.
    let pid = proxy.pid();
    kill("TERM", pid);
    proxy.wait_for_end(pid);
    let next = start(tempfile::tempdir().unwrap());
    let so_far = load.requests();
    eventually("the new one serves", || load.requests() > so_far + 100);
    let outcome = load.end();
    drop(next);
    assert_nothing_lost("socket activation", &outcome);
}

#[test]
fn a_socket_that_no_line_names_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let unix = UnixListener::bind(directory.path().join("s")).unwrap();
    let text = "listen = \"127.0.0.1:0\"\nupstream = \"http://127.0.0.1:1\"\n";
    std::fs::write(directory.path().join("proxy.toml"), text).unwrap();
    let output = Command::new(PASS[0])
        .args(&PASS[1..])
        .arg(env!("CARGO_BIN_EXE_tidegate"))
        .args(["run", "-c", "proxy.toml"])
        .current_dir(directory.path())
        .stdin(OwnedFd::from(tcp.try_clone().unwrap()))
        .stdout(OwnedFd::from(unix))
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let place = tcp.local_addr().unwrap().to_string();
    assert!(said.contains(&place) && said.contains("web"), "{said}");
}

#[test]
fn the_real_systemd_socket_activate_starts_it_on_the_first_connection() {
    let upstream = upstream();
    let port = free_port();
    let place = format!("127.0.0.1:{port}");
    let by = ["systemd-socket-activate", "-l", &place];
    let client = {
        let place = place.clone();
        std::thread::spawn(move || {
            let until = std::time::Instant::now() + PATIENCE;
            while std::time::Instant::now() < until {
                if let Ok(stream) = std::net::TcpStream::connect(&place) {
                    let mut client = Client::to(stream.peer_addr().unwrap());
                    drop(stream);
                    return client.ask(ASK).status;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            0
        })
    };
    let listen = format!("\"{place}\"");
    let file = (&*listen, &*settings(&upstream), "");
    let proxy = Lineage::start_in(tempfile::tempdir().unwrap(), file, &by, &mut |_| {});
    assert_eq!(client.join().unwrap(), 200);
    drop(proxy);
}

/// What a service manager hears.
struct Ears(UnixDatagram);

impl Ears {
    fn next(&self) -> String {
        let mut bytes = [0; 4096];
        let heard = self.0.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..heard]).into_owned()
    }

    /// The next that is no sign of life.
    fn next_but_life(&self) -> String {
        loop {
            let heard = self.next();
            if heard != "WATCHDOG=1\n" {
                return heard;
            }
        }
    }
}

#[test]
fn a_service_manager_is_told_what_goes_on() {
    let upstream = upstream();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let ears = Ears(UnixDatagram::bind(&path).unwrap());
    ears.0.set_read_timeout(Some(PATIENCE)).unwrap();
    let file = ("\"127.0.0.1:0\"", &*settings(&upstream), "workers = 2");
    let mut proxy = Lineage::start_in(directory, file, &[], &mut |command| {
        command
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", "500000");
    });
    assert!(ears.next_but_life().starts_with("READY=1\n"));
    for _ in 0..3 {
        assert_eq!(ears.next(), "WATCHDOG=1\n");
    }
    let load = Load::start(&[(Place::Tcp(proxy.address().unwrap()), Habit::KeepAlive)]);
    let old = proxy.upgrade();
    assert_eq!(ears.next_but_life(), format!("MAINPID={}\n", proxy.pid()));
    assert!(ears.next_but_life().starts_with("READY=1\n"));
    proxy.wait_for_end(old);
    for _ in 0..3 {
        assert_eq!(ears.next(), "WATCHDOG=1\n");
    }
    load.end();
    let pid = proxy.pid();
    kill("TERM", pid);
    assert!(ears.next_but_life().starts_with("STOPPING=1\n"));
    proxy.wait_for_end(pid);
}

#[test]
fn the_watchdog_of_another_process_is_none_of_ours() {
    let upstream = upstream();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let ears = Ears(UnixDatagram::bind(&path).unwrap());
    ears.0.set_read_timeout(Some(PATIENCE)).unwrap();
    let file = ("\"127.0.0.1:0\"", &*settings(&upstream), "");
    let proxy = Lineage::start_in(directory, file, &[], &mut |command| {
        command
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", "20000")
            .env("WATCHDOG_PID", "1");
    });
    assert!(ears.next().starts_with("READY=1\n"));
    ears.0
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    assert!(ears.0.recv(&mut [0; 16]).is_err());
    drop(proxy);
}
