//! `[store] file`: calendar windows of the embedded store over the ends of real processes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::house::{Client, Tidegate, Upstream, program};
use crate::probe::eventually;
use crate::support::mortal;
use crate::upgrade::lineage::{Lineage, kill};

const UNITS: u64 = 1_000_000;
const SECOND: Duration = Duration::from_secs(1);

fn rules(upstream: &Upstream, file: &Path) -> String {
    format!(
        "upstream = \"{}\"\n[api_key]\nunknown = \"trust\"\n[store]\nfile = \"{}\"\n\
         [limit.default]\nrate = [\"{UNITS}/year\", \"1_000_000/s\"]\nkey = \"api_key or ip\"\n",
        upstream.url(),
        file.display()
    )
}

fn left(address: SocketAddr, headers: &str) -> u64 {
    let mut client = Client::to(address);
    let answer = client.ask(format!(
        "GET / HTTP/1.1\r\nHost: test\r\n{headers}Connection: close\r\n\r\n"
    ));
    assert_eq!(answer.status, 200, "{answer:?}");
    let policies = answer.header("ratelimit").unwrap();
    let year = policies.split(", ").find(|one| one.contains("/year"));
    let text = year.unwrap().split("r=").nth(1).unwrap();
    text.split(';').next().unwrap().parse().unwrap()
}

/// Clients that ask without a pause, on a connection for each request.
struct Askers {
    ends: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Vec<Instant>>>,
}

impl Askers {
    fn start(address: SocketAddr) -> Askers {
        let (ends, sent) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let thread = |_| {
            let (ends, sent) = (Arc::clone(&ends), Arc::clone(&sent));
            std::thread::spawn(move || {
                let mut answered = Vec::new();
                while !ends.load(Ordering::Relaxed) {
                    sent.fetch_add(1, Ordering::Relaxed);
                    if is_served(address) {
                        answered.push(Instant::now());
                    } else {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                answered
            })
        };
        let threads = (0..2).map(thread).collect();
        Askers {
            ends,
            sent,
            threads,
        }
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// When each answer came.
    fn end(self) -> Vec<Instant> {
        self.ends.store(true, Ordering::Relaxed);
        let threads = self.threads.into_iter();
        threads.flat_map(|one| one.join().unwrap()).collect()
    }
}

fn is_served(address: SocketAddr) -> bool {
    let mut answer = String::new();
    let asked = TcpStream::connect(address).and_then(|mut stream| {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
        stream.read_to_string(&mut answer)
    });
    asked.is_ok() && answer.starts_with("HTTP/1.1 200")
}

#[test]
fn a_process_that_is_killed_under_load_loses_a_second_at_most() {
    let (upstream, directory) = (Upstream::ok(), tempfile::tempdir().unwrap());
    let config = rules(&upstream, &directory.path().join("counts"));
    let mut proxy = Tidegate::start(&config);
    let askers = Askers::start(proxy.address);
    eventually("they are served for a while", || askers.sent() > 200);
    std::thread::sleep(2 * SECOND);
    let killed = Instant::now();
    proxy.signal("KILL");
    proxy.wait();
    let (sent, answered) = (askers.sent(), askers.end());
    let kept = UNITS - 1 - left(Tidegate::start(&config).address, "");
    let old = answered.iter().filter(|at| **at + SECOND < killed).count();
    println!(
        "{} answered, {old} of them a second before, {kept} kept",
        answered.len()
    );
    assert!(old > 0 && kept >= old as u64, "{old} before, {kept} kept");
    assert!(kept <= sent, "{sent} sent, {kept} kept");
}

#[test]
fn a_process_that_is_stopped_loses_nothing_and_clients_keep_their_hashes() {
    let (upstream, directory) = (Upstream::ok(), tempfile::tempdir().unwrap());
    let file = directory.path().join("counts");
    let config = rules(&upstream, &file);
    for round in 0..3_u64 {
        let mut proxy = Tidegate::start(&config);
        for used in 0..5 {
            let expected = UNITS - 1 - (round * 5 + used);
            assert_eq!(left(proxy.address, "X-Api-Key: one\r\n"), expected);
        }
        assert_eq!(left(proxy.address, "X-Api-Key: two\r\n"), UNITS - 1 - round);
        if round == 1 {
            proxy.signal("HUP");
            proxy.wait_for_line("reload: done");
        }
        proxy.signal("TERM");
        assert!(proxy.wait().success());
        let bytes = std::fs::read(&file).unwrap();
        assert!(
            !bytes
                .windows(3)
                .any(|part| part == b"one" || part == b"two")
        );
    }
}

#[test]
fn an_empty_file_of_counts_makes_a_warning_and_a_new_one_makes_none() {
    let (upstream, directory) = (Upstream::ok(), tempfile::tempdir().unwrap());
    let file = directory.path().join("counts");
    let config = rules(&upstream, &file);
    let mut proxy = Tidegate::start(&config);
    left(proxy.address, "");
    proxy.signal("TERM");
    assert!(proxy.wait().success());
    let said = proxy.said();
    assert!(!said.iter().any(|line| line.contains("WARN")), "{said:?}");
    std::fs::write(&file, "").unwrap();
    let proxy = Tidegate::start(&config);
    proxy.wait_for_line("the file of counts is empty: calendar windows count from zero");
    assert_eq!(left(proxy.address, ""), UNITS - 1);
}

#[test]
fn upgrades_and_reloads_lose_no_unit() {
    let (upstream, directory) = (Upstream::ok(), tempfile::tempdir().unwrap());
    let rules = rules(&upstream, &directory.path().join("counts"));
    let mut proxy = Lineage::start("\"127.0.0.1:0\"", &rules, "workers = 2");
    let address = proxy.address().unwrap();
    let askers = Askers::start(address);
    let mut old = Vec::new();
    for round in 1..3 {
        eventually("they are served", || askers.sent() > round * 100);
        old.push(proxy.upgrade());
        proxy.signal("HUP");
    }
    let before = askers.sent();
    eventually("the last one serves", || askers.sent() > before + 100);
    let (sent, answered) = (askers.sent, askers.ends);
    answered.store(true, Ordering::Relaxed);
    let answered: usize = askers
        .threads
        .into_iter()
        .map(|one| one.join().unwrap().len())
        .sum();
    assert_eq!(
        answered as u64,
        sent.load(Ordering::Relaxed),
        "{}",
        proxy.said()
    );
    for pid in old {
        proxy.wait_for_end(pid);
    }
    let mut looks = 0;
    eventually("it knows the units of all", || {
        looks += 1;
        UNITS - left(address, "") == answered as u64 + looks
    });
    let pid = proxy.pid();
    kill("TERM", pid);
    proxy.wait_for_end(pid);
    let kept = UNITS - left(Tidegate::start(&rules).address, "");
    assert_eq!(kept, answered as u64 + looks + 1);
}

#[test]
fn one_process_uses_a_file_until_it_drains() {
    let (upstream, directory) = (Upstream::ok(), tempfile::tempdir().unwrap());
    // On a busy machine a start takes longer than an idle connection may stay.
    let idle = "[server]\ndrain_idle = \"25s\"\n";
    let config = rules(&upstream, &directory.path().join("counts")) + idle;
    let mut first = Tidegate::start(&config);
    let other = tempfile::tempdir().unwrap();
    let text = format!("listen = \"127.0.0.1:0\"\n{config}");
    std::fs::write(other.path().join("proxy.toml"), text).unwrap();
    let refused = mortal(program())
        .args(["run", "-c", "proxy.toml"])
        .current_dir(other.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{said}");
    let holder = format!("process {} writes it", first.pid());
    assert!(
        said.contains("store.file (proxy.toml:6)") && said.contains(&holder),
        "{said}"
    );
    // A connection keeps the first one until its deadline.
    let mut open = first.connect();
    let ask = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";
    assert_eq!(open.ask(ask).status, 200);
    first.signal("TERM");
    first.wait_for_line("draining");
    let second = Tidegate::start(&config);
    assert_eq!(left(second.address, ""), UNITS - 2);
    assert_eq!(open.ask(ask).status, 200);
    drop(open);
    assert!(first.wait().success());
    eventually("the second knows that too", || {
        left(second.address, "") <= UNITS - 4
    });
}

#[test]
fn a_file_that_cannot_be_used_is_named_at_the_start() {
    let upstream = Upstream::ok();
    let cases = [
        ("/proc/none/counts", "No such file or directory"),
        (".", "it is a folder"),
        ("notes", "no file of counts"),
    ];
    for (file, reason) in cases {
        let directory = tempfile::tempdir().unwrap();
        let text = format!(
            "listen = \"127.0.0.1:0\"\n{}",
            rules(&upstream, Path::new(file))
        );
        std::fs::write(directory.path().join("proxy.toml"), &text).unwrap();
        std::fs::write(directory.path().join("notes"), &text).unwrap();
        let refused = mortal(program())
            .args(["run", "-c", "proxy.toml"])
            .current_dir(directory.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).to_lowercase();
        assert!(!refused.status.success(), "{said}");
        assert!(said.contains("store.file"), "{said}");
        assert!(said.contains("proxy.toml:6"), "{said}");
        assert!(said.contains(&reason.to_lowercase()), "{file}: {said}");
        let kept = std::fs::read_to_string(directory.path().join("notes")).unwrap();
        assert_eq!(kept, text);
    }
}

#[test]
fn a_full_disk_is_a_finding_and_counting_goes_on() {
    let upstream = Upstream::ok();
    let admin = crate::support::free_port();
    let config = format!(
        "admin = \"127.0.0.1:{admin}\"\n{}",
        rules(&upstream, Path::new("disk/counts"))
    );
    let proxy = Tidegate::start_on_small_disk("disk", &config);
    for client in 0..1_500 {
        let header = format!("X-Api-Key: client-{client}\r\n");
        assert_eq!(left(proxy.address, &header), UNITS - 1);
    }
    proxy.wait_for_line("the file of counts cannot be written");
    eventually("the finding is there", || {
        let mut client = Client::to(SocketAddr::from(([127, 0, 0, 1], admin)));
        let answer = client.ask("GET /api/v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        answer.text().contains("store-file")
    });
    assert_eq!(left(proxy.address, "X-Api-Key: client-7\r\n"), UNITS - 2);
}
