//! `limit_req` without `nodelay`: nginx beside the import of its file, with one burst to each.

use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use super::{Nginx, run};
use crate::house::{Client, Tidegate, Upstream};
use crate::pace::Pace;
use crate::support::free_port;

/// One request of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Served {
    took: Duration,
    status: u16,
}

/// So many requests at once, each on a connection of its own; in the order of their times.
fn burst(address: SocketAddr, path: &'static str, count: usize) -> Vec<Served> {
    let begin = Arc::new(Barrier::new(count));
    let ask = |_| {
        let begin = Arc::clone(&begin);
        std::thread::spawn(move || {
            let mut client = Client::to(address);
            begin.wait();
            let began = Instant::now();
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n\r\n"));
            let status = client.answer().status;
            Served {
                took: began.elapsed(),
                status,
            }
        })
    };
    let asked: Vec<_> = (0..count).map(ask).collect();
    let served = asked.into_iter().map(|one| one.join().unwrap());
    let mut served: Vec<Served> = served.collect();
    served.sort_unstable();
    served
}

fn times(served: &[Served], status: u16) -> Vec<Duration> {
    let of_status = served.iter().filter(|one| one.status == status);
    of_status.map(|one| one.took).collect()
}

/// How often bursts are tried on a machine that delays threads.
const TRIES: usize = 5;

/// A burst to nginx and one to tidegate, at the same time.
struct Bursts {
    nginx: Vec<Served>,
    tidegate: Vec<Served>,
    /// Whether the machine delayed no thread meanwhile. A late request finds more room.
    is_steady: bool,
}

impl Bursts {
    /// The last of a few tries, or the first steady one.
    fn send(at: [SocketAddr; 2], path: &'static str, count: usize) -> Bursts {
        let mut tries = 1;
        loop {
            let pace = Pace::begin();
            let both = at.map(|at| std::thread::spawn(move || burst(at, path, count)));
            let [nginx, tidegate] = both.map(|one| one.join().unwrap());
            let is_steady = pace.is_steady(Duration::from_millis(40));
            if is_steady || tries == TRIES {
                return Bursts {
                    nginx,
                    tidegate,
                    is_steady,
                };
            }
            tries += 1;
            // The longest time that a burst is remembered.
            std::thread::sleep(Duration::from_secs(3));
        }
    }

    /// Both let so many pass, or one more of a burst that was late.
    fn assert_passed(&self, count: usize) {
        for served in [&self.nginx, &self.tidegate] {
            let passed = times(served, 200).len();
            let is_late = !self.is_steady && passed == count + 1;
            assert!(passed == count || is_late, "{passed} of {served:?}");
            assert_eq!(passed + times(served, 429).len(), served.len());
        }
    }
}

#[test]
fn nginx_and_what_it_became_make_the_same_burst_wait() {
    let upstream = Upstream::ok();
    let (port, ours) = (free_port(), free_port());
    let http = |port: u16| {
        format!(
            "limit_req_zone $binary_remote_addr zone=steady:1m rate=10r/s;\n\
             limit_req_zone $binary_remote_addr zone=partly:1m rate=5r/s;\n\
             limit_req_status 429;\n\
             server {{\n  listen 127.0.0.1:{port};\n\
             location / {{ limit_req zone=steady burst=20; proxy_pass {url}; }}\n\
             location /partly {{ limit_req zone=partly burst=12 delay=8; proxy_pass {url}; }}\n\
             }}\n",
            url = upstream.url()
        )
    };
    let theirs = SocketAddr::from(([127, 0, 0, 1], port));
    let _nginx = Nginx::start(&http(port), theirs);
    let source = tempfile::tempdir().unwrap();
    fs::write(source.path().join("site.conf"), http(ours)).unwrap();
    let output = run(source.path(), &["import", "nginx", "site.conf"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let steady = "rate        = \"1/100ms\"\ndelay       = \"2s\"\ndelay_queue = 20\n";
    assert!(text.contains(steady), "{text}");
    let proxy = Tidegate::start(&text.replace(&format!("listen = [\"127.0.0.1:{ours}\"]\n"), ""));
    let at = [theirs, proxy.address];
    let steady = Bursts::send(at, "/", 22);
    steady.assert_passed(21);
    // Each request passes within 20 ms of nginx's, and a steady machine delays it by 40 ms at most.
    let within = Duration::from_millis(if steady.is_steady { 60 } else { 1_000 });
    let both = [&steady.nginx, &steady.tidegate].map(|served| times(served, 200));
    for (theirs, ours) in both[0].iter().zip(&both[1]) {
        assert!(theirs.abs_diff(*ours) <= within, "{both:?}");
    }
    // As many wait and as many are refused where a part of the burst passes at once.
    let partly = Bursts::send(at, "/partly", 16);
    partly.assert_passed(13);
    for served in [&partly.nginx, &partly.tidegate] {
        let passed = times(served, 200).into_iter();
        let at_once = passed.filter(|took| *took < Duration::from_millis(150));
        assert!(at_once.count() == 9 || !partly.is_steady, "{served:?}");
    }
}
