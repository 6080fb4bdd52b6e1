//! Two workers, and few clients that stay: who has whom.

use std::collections::{HashMap, HashSet};
use std::fs;

use crate::house::{Client, Tidegate};

const GET: &str = "GET /a HTTP/1.1\r\nHost: test\r\n\r\n";

/// The inodes of a process's connections that come in at `port`.
fn connections(pid: u32, port: u16) -> HashSet<String> {
    const ESTABLISHED: &str = "01";
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let rows = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let here = fields[1].ends_with(&format!(":{port:04X}"));
        (here && fields[3] == ESTABLISHED).then(|| fields[9].to_owned())
    });
    rows.collect()
}

/// How many clients at `port` each epoll instance of a process watches. One instance has a name
/// per descriptor of it: by name they count double, and evenly so.
fn watched(pid: u32, port: u16) -> Vec<usize> {
    let clients = connections(pid, port);
    let fds: HashMap<String, String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let link = fs::read_link(&path).ok()?;
            let name = path.file_name()?.to_str()?.to_owned();
            Some((name, link.to_str()?.to_owned()))
        })
        .collect();
    let is_client = |line: &str| {
        let fd = line.split_whitespace().nth(1)?;
        let inode = fds.get(fd)?.strip_prefix("socket:[")?.strip_suffix(']')?;
        clients.contains(inode).then_some(())
    };
    let epolls = fds.iter().filter(|(_, link)| link.contains("eventpoll"));
    let counts = epolls.map(|(name, _)| {
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{name}")).unwrap_or_default();
        let targets = info.lines().filter(|line| line.starts_with("tfd:"));
        targets.filter_map(is_client).count()
    });
    // The main thread's has none.
    counts.filter(|&count| count > 0).collect()
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
    // The first may come before the second worker serves, and stay where they came.
    let first = come(16);
    let more = come(16);
    let spread = watched(proxy.pid(), proxy.address.port());
    assert!(
        spread.len() >= 2 && spread.iter().all(|count| (14..=18).contains(count)),
        "{spread:?}"
    );
    drop((first, more));
}
