//! Two workers, and few clients that stay: who has whom.

use std::collections::HashMap;
use std::fs;
use std::time::Instant;

use crate::house::{Client, PATIENCE, Tidegate};

const GET: &str = "GET /a HTTP/1.1\r\nHost: test\r\n\r\n";

/// How many descriptors each epoll instance of a process watches.
fn watched(pid: u32) -> HashMap<String, usize> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let epolls = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        let link = fs::read_link(&path).ok()?;
        let name = path.file_name()?.to_str()?.to_owned();
        link.to_str()?.contains("eventpoll").then_some(name)
    });
    let count = |name: &str| {
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{name}")).unwrap_or_default();
        info.lines().filter(|line| line.starts_with("tfd:")).count()
    };
    epolls.map(|name| (name.clone(), count(&name))).collect()
}

#[test]
fn few_clients_are_spread_evenly() {
    let proxy = Tidegate::start(
        "[server]\nworkers = 2\n[[route]]\npath = \"/*\"\n\
         respond = { status = 200, body = \"here\" }\nlimits = []\n",
    );
    for count in [2, 4, 16] {
        // Who has just gone may be counted for a moment longer.
        let even = (0..10).filter(|_| is_even(&proxy, count)).count();
        assert!(even >= 8, "{count}: {even} of 10");
    }
}

/// Whether so many clients come to as many on both workers: as many as each watches less when they
/// have gone.
fn is_even(proxy: &Tidegate, count: usize) -> bool {
    let mut clients: Vec<Client> = (0..count).map(|_| proxy.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.ask(GET).text(), "here");
    }
    let with = watched(proxy.pid());
    drop(clients);
    let all = |watched: &HashMap<String, usize>| watched.values().sum::<usize>();
    let until = Instant::now() + PATIENCE;
    let without = loop {
        let now = watched(proxy.pid());
        if all(&now) + count <= all(&with) {
            break now;
        }
        assert!(Instant::now() < until, "they do not go");
        std::thread::yield_now();
    };
    let less = |(name, watched): (&String, &usize)| watched.saturating_sub(without[name]);
    with.iter()
        .map(less)
        .filter(|&clients| clients == count / 2)
        .count()
        == 2
}
