//! Two workers, and few clients that stay: who has whom.

use std::collections::HashMap;
use std::fs;

use crate::house::{Client, Tidegate};

const GET: &str = "GET /a HTTP/1.1\r\nHost: test\r\n\r\n";

/// How many descriptors each epoll instance of a process watches; one instance may have several
/// names.
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
    let come = |count: usize| -> Vec<Client> {
        let mut clients: Vec<Client> = (0..count).map(|_| proxy.connect()).collect();
        for client in &mut clients {
            assert_eq!(client.ask(GET).text(), "here");
        }
        clients
    };
    // Nobody leaves: who has just gone may be counted for a moment longer.
    let first = come(2);
    let before = watched(proxy.pid());
    let more = come(16);
    let now = watched(proxy.pid());
    let grown: Vec<usize> = now
        .iter()
        .map(|(name, watched)| watched.saturating_sub(before.get(name).copied().unwrap_or(0)))
        // What the start adds is not clients.
        .filter(|&grown| grown > 2)
        .collect();
    // One more or less: whoever asked whether the proxy is up was a client too.
    assert!(
        grown.len() >= 2 && grown.iter().all(|grown| (7..=9).contains(grown)),
        "{grown:?}"
    );
    drop((first, more));
}
