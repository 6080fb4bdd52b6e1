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
    let pace = Pace::begin();
    let bursts = [theirs, proxy.address];
    let [nginx, tidegate] = bursts.map(|at| std::thread::spawn(move || burst(at, "/", 22)));
    let [nginx, tidegate] = [nginx, tidegate].map(|one| one.join().unwrap());
    let [nginx_times, tidegate_times] = [&nginx, &tidegate].map(|served| times(served, 200));
    assert_eq!((nginx_times.len(), times(&nginx, 429).len()), (21, 1));
    assert_eq!((tidegate_times.len(), times(&tidegate, 429).len()), (21, 1));
    // On a machine that keeps nobody waiting, each request passes within 20 ms of nginx's.
    let within = match pace.is_steady(Duration::from_millis(40)) {
        true => Duration::from_millis(20),
        false => pace.grants(),
    };
    for (theirs, ours) in nginx_times.iter().zip(&tidegate_times) {
        assert!(
            theirs.abs_diff(*ours) <= within,
            "{nginx_times:?}\n{tidegate_times:?}"
        );
    }
    // As many wait and as many are refused where a part of the burst passes at once.
    let partly = bursts.map(|at| {
        let served = burst(at, "/partly", 16);
        let passed = times(&served, 200);
        let at_once = passed
            .iter()
            .filter(|took| **took < Duration::from_millis(150));
        (passed.len(), at_once.count())
    });
    assert_eq!(partly, [(13, 9), (13, 9)], "{text}");
}
