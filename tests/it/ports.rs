//! A machine without a port left for another connection to an upstream: it has a network of its
//! own, with eight.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::house::{PATIENCE, Tidegate};
use crate::probe::eventually;

/// Where the upstream listens, in a network of its own.
const PORT: u16 = 9000;
const PORTS: usize = 8;
const ASKED: usize = 20;
const NARROW: &str = "ip link set lo up && echo '30000 30007' > \
    /proc/sys/net/ipv4/ip_local_port_range";

/// What comes over the socket at which the proxy listens: a network ends before files do.
fn ask(path: &Path) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

fn is_good(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 200 ")
}

/// Whether this machine lets anybody have a network of his own.
fn may_narrow() -> bool {
    let words = ["--map-root-user", "--net", "sh", "-c", NARROW];
    let narrowed = Command::new("unshare").args(words).output();
    narrowed.is_ok_and(|output| output.status.success())
}

#[test]
fn without_a_port_some_are_refused_at_once_and_no_server_is_blamed() {
    if !may_narrow() {
        eprintln!("not tested: no network of its own");
        return;
    }
    let backend = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/recovery/backend.py");
    // It ends with the process that this script becomes, which begins once it listens: whoever is
    // asked before would be left alone for a while, and the log would say when it is back.
    let script = format!(
        "{NARROW} && {{ setpriv --pdeathsig KILL python3 '{backend}' {PORT} ok & \
         echo $! > backend.pid; \
         until grep -q ':{PORT:X} [0-9A-F:]* 0A' /proc/self/net/tcp; do sleep 0.05; done; \
         exec \"$0\" \"$@\"; }}"
    );
    let proxy = Tidegate::start_on_a_network(
        &script,
        "[\"127.0.0.1:8080\", \"unix:in.sock\"]",
        "[server]\nworkers = 1\n[upstream.api]\nservers = [\"http://127.0.0.1:9000\"]\n\
         [[route]]\npath = \"/*\"\nupstream = \"api\"\nlimits = []\n",
    );
    let place: PathBuf = proxy.directory.path().join("in.sock");
    let signal = |name: &str| {
        let file = proxy.directory.path().join("backend.pid");
        let pid = std::fs::read_to_string(file).unwrap();
        let sent = Command::new("kill").args(["-s", name, pid.trim()]).status();
        assert!(sent.unwrap().success());
    };
    eventually("the upstream is up", || is_good(&ask(&place)));
    proxy.said();

    // Whoever has a connection waits, and has a port.
    signal("STOP");
    let refused = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..ASKED)
        .map(|_| {
            let (place, refused) = (place.clone(), Arc::clone(&refused));
            std::thread::spawn(move || {
                let answer = ask(&place);
                refused.fetch_add(usize::from(!is_good(&answer)), Ordering::SeqCst);
                answer
            })
        })
        .collect();
    eventually(
        "all beyond the ports are refused, while others wait",
        || refused.load(Ordering::SeqCst) >= ASKED - PORTS,
    );
    signal("CONT");
    let answers: Vec<String> = clients.into_iter().map(|it| it.join().unwrap()).collect();
    let (good, bad): (Vec<&String>, Vec<&String>) = answers.iter().partition(|it| is_good(it));
    assert!((1..=PORTS).contains(&good.len()), "{answers:?}");
    for answer in bad {
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
        assert!(!answer.contains("127.0.0.1"), "{answer}");
    }
    eventually("the log says why", || {
        proxy.stdout().contains("\"reason\":\"out_of_sockets\"")
    });

    // Ports are back with whoever has been answered.
    for _ in 0..ASKED {
        let answer = ask(&place);
        assert!(is_good(&answer), "{answer}");
    }
    let said = proxy.said();
    assert!(
        said.iter().all(|line| !line.contains("127.0.0.1:9000")),
        "{said:?}"
    );
}
