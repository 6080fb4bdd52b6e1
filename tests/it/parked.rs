//! Clients that have asked for nothing for a while: what keeps their connections is little, and
//! nobody can tell from outside.
//!
//! Nothing here fails where a connection was not parked in time: what is seen must be the same.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};
use rustls::version::{TLS12, TLS13};

use crate::house::{Client, PATIENCE, Tidegate, Upstream};
use crate::reload::Gate;
use crate::tls::stage::{Stage, connect};

/// Longer than a connection is kept as it is without a request.
const REST: Duration = Duration::from_millis(900);
const GET: &str = "GET /a HTTP/1.1\r\nHost: test\r\n\r\n";

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n")
}

/// An upstream that answers with the path that it was asked for.
fn echo() -> Upstream {
    Upstream::start(|seen, stream| {
        let path = seen.head.split(' ').nth(1).unwrap_or_default();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", path.len());
        stream.write_all([&head, path].concat().as_bytes()).is_ok()
    })
}

fn start(upstream: &Upstream, settings: &str) -> Tidegate {
    let url = upstream.url();
    Tidegate::start(&format!(
        "upstream = \"{url}\"\n[server]\nworkers = 1\n{settings}\n\
         [limit.default]\nrate = \"1_000_000/day\"\n"
    ))
}

impl Tidegate {
    /// Its resident memory, KiB.
    fn rss_kib(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let words = line.unwrap().split_whitespace().nth(1);
        words.unwrap().parse().unwrap()
    }

    /// The time that its threads have run, 10 ms each.
    fn jiffies(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let fields = stat.rsplit(')').next().unwrap().split_whitespace();
        fields
            .skip(11)
            .take(2)
            .map(|text| text.parse::<u64>().unwrap())
            .sum()
    }
}

/// As many descriptors as this process may have; how many clients that is enough for.
fn room_for(clients: usize) -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    clients.min(usize::try_from(most).unwrap_or(usize::MAX) / 2)
}

#[test]
fn thousands_of_idle_clients_cost_little_and_are_served() {
    let upstream = echo();
    let proxy = start(&upstream, "");
    let mut first = proxy.connect();
    for _ in 0..50 {
        assert_eq!(first.ask(GET).status, 200);
    }
    let before = proxy.rss_kib();
    let count = room_for(3000);
    let mut clients: Vec<Client> = (0..count).map(|_| proxy.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.ask(GET).status, 200);
    }
    // One that was served by hyper would have 20 KiB.
    let until = Instant::now() + PATIENCE;
    let most = 6 * count;
    while proxy.rss_kib() > before + most {
        let grown = proxy.rss_kib() - before;
        assert!(Instant::now() < until, "{grown} KiB for {count} clients");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Nothing comes, and nobody looks: a tick of the clock now and then.
    let ran = proxy.jiffies();
    std::thread::sleep(Duration::from_secs(1));
    let ran = proxy.jiffies() - ran;
    assert!(ran < 40, "{} ms of one second", ran * 10);
    for (index, client) in clients.iter_mut().enumerate() {
        let path = format!("/{index}");
        assert_eq!(client.ask(get(&path)).text(), path);
    }
    // And again without a rest.
    for (index, client) in clients.iter_mut().enumerate().rev() {
        let path = format!("/again/{index}");
        assert_eq!(client.ask(get(&path)).text(), path);
    }
}

#[test]
fn what_was_pipelined_survives_a_rest() {
    let proxy = start(&echo(), "");
    // What of the third request has come is read while the first one is under way.
    let all = [get("/one"), get("/two"), get("/three"), get("/four")].concat();
    let end_of_two = get("/one").len() + get("/two").len();
    for cut in [end_of_two, end_of_two + 1, end_of_two + 20, all.len() - 1] {
        let mut client = proxy.connect();
        client.send(GET);
        assert_eq!(client.answer().text(), "/a");
        std::thread::sleep(REST);
        client.send(&all[..cut]);
        let whole = if cut == all.len() - 1 { 3 } else { 2 };
        let paths = ["/one", "/two", "/three", "/four"];
        for path in &paths[..whole] {
            assert_eq!(client.answer().text(), *path, "cut at {cut}");
        }
        std::thread::sleep(REST);
        client.send(&all[cut..]);
        for path in &paths[whole..] {
            assert_eq!(client.answer().text(), *path, "cut at {cut}");
        }
    }
}

#[test]
fn a_head_has_its_time_from_its_first_byte() {
    let proxy = start(&echo(), "header_timeout = \"2s\"\nidle_timeout = \"1min\"");
    let mut fresh = proxy.connect();
    let mut parked = proxy.connect();
    let mut slow = proxy.connect();
    for client in [&mut parked, &mut slow] {
        assert_eq!(client.ask(GET).text(), "/a");
    }
    std::thread::sleep(REST);
    slow.send(&GET[..9]);
    std::thread::sleep(REST);
    slow.send(&GET[9..]);
    assert_eq!(slow.answer().text(), "/a");
    let began = Instant::now();
    for client in [&mut fresh, &mut parked] {
        client.send(&GET[..9]);
    }
    for client in [&mut fresh, &mut parked] {
        assert_eq!(client.answer().status, 408);
        assert!(client.is_closed());
    }
    assert!(began.elapsed() >= Duration::from_secs(2));
}

#[test]
fn the_idle_timeout_stays_what_it_is() {
    let idle = Duration::from_millis(1500);
    for settings in ["idle_timeout = \"1500ms\"", "idle_timeout = \"750ms\""] {
        let proxy = start(&echo(), settings);
        let idle = if settings.contains("750") {
            idle / 2
        } else {
            idle
        };
        let mut asked = proxy.connect();
        let began = Instant::now();
        let mut silent = proxy.connect();
        assert_eq!(asked.ask(GET).text(), "/a");
        assert!(silent.is_closed());
        assert!(asked.is_closed());
        assert!(began.elapsed() >= idle, "{:?}", began.elapsed());
    }
}

#[test]
fn a_client_that_has_ended_its_side_gets_its_answer() {
    let proxy = start(&echo(), "");
    let [mut says_more, mut goes] = [proxy.connect(), proxy.connect()];
    for client in [&mut says_more, &mut goes] {
        assert_eq!(client.ask(GET).text(), "/a");
    }
    std::thread::sleep(REST);
    says_more.send(GET);
    for client in [&says_more, &goes] {
        client.end_writing();
    }
    assert_eq!(says_more.answer().text(), "/a");
    assert!(says_more.is_closed());
    assert!(goes.is_closed());
}

#[test]
fn who_takes_his_time_with_an_answer_gets_all_of_it() {
    let upstream = Upstream::start(|seen, stream| {
        let path = seen.head.split(' ').nth(1).unwrap_or_default();
        let bytes: usize = path[1..].parse().unwrap();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
        stream.write_all(head.as_bytes()).is_ok() && stream.write_all(&vec![b'x'; bytes]).is_ok()
    });
    let proxy = start(&upstream, "");
    // Of some of them the last bytes wait for room when the upstream has ended.
    let sizes = (1..24).map(|eighths| eighths << 17);
    let ask = |bytes: usize| {
        let mut client = proxy.connect();
        client.send(get(&format!("/{bytes}")));
        (bytes, client)
    };
    let mut clients: Vec<(usize, Client)> = sizes.map(ask).collect();
    std::thread::sleep(REST * 2);
    for (bytes, client) in &mut clients {
        assert_eq!(client.answer().body.len(), *bytes);
    }
    std::thread::sleep(REST);
    for (_, client) in &mut clients {
        assert_eq!(client.ask(get("/3")).text(), "xxx");
    }
}

#[test]
fn a_drain_ends_what_is_parked() {
    let mut proxy = start(&echo(), "drain_idle = \"3s\"\ndrain_timeout = \"1min\"");
    let mut clients: Vec<Client> = (0..100).map(|_| proxy.connect()).collect();
    let silent = proxy.connect();
    for client in &mut clients {
        assert_eq!(client.ask(GET).text(), "/a");
    }
    std::thread::sleep(REST);
    let began = Instant::now();
    proxy.signal("TERM");
    while TcpStream::connect(proxy.address).is_ok() {
        assert!(began.elapsed() < PATIENCE);
    }
    // One more request may be on its way.
    let last = clients[0].ask(GET);
    assert_eq!(last.header("connection").as_deref(), Some("close"));
    assert!(clients.iter_mut().all(Client::is_closed));
    drop(silent);
    assert!(proxy.wait().success());
    assert!(began.elapsed() < Duration::from_secs(30));
}

#[test]
fn another_configuration_holds_for_what_is_parked() {
    let config = "upstream = \"$UPSTREAM\"\n[limit.default]\nrate = \"1_000/day\"\n";
    let gate = Gate::start(config);
    let mut client = gate.proxy.connect();
    assert_eq!(client.ask(GET).text(), "ok");
    std::thread::sleep(REST);
    let route = "[[route]]\npath = \"/a\"\nrespond = { status = 418 }\nlimits = []\n";
    gate.reload(&format!("{config}{route}"));
    assert_eq!(client.ask(GET).status, 418);
    std::thread::sleep(REST);
    gate.reload(config);
    assert_eq!(client.ask(GET).status, 200);
}

#[test]
fn who_is_behind_a_parked_connection_is_not_forgotten() {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "proxy_protocol = \"required\"\ntrusted_proxies = [\"127.0.0.1\"]\nupstream = \"{}\"\n",
        upstream.url()
    ));
    let mut client = proxy.connect();
    client.send("PROXY TCP4 192.0.2.9 198.51.100.1 5000 80\r\n");
    std::thread::sleep(REST);
    for _ in 0..3 {
        assert_eq!(client.ask(GET).status, 200);
        std::thread::sleep(REST);
    }
    for seen in upstream.seen() {
        let told = seen.header("x-forwarded-for");
        assert!(told.unwrap().contains("192.0.2.9"), "{seen:?}");
    }
}

#[test]
fn a_session_of_tls_is_parked_too() {
    let stage = Stage::before(
        echo(),
        "",
        "[server]\nidle_timeout = \"10s\"\n[limit.default]\nrate = \"1_000_000/day\"\n",
    );
    let mut clients = Vec::new();
    for version in [&TLS12, &TLS13] {
        let config = stage.client(&[version]);
        clients.extend((0..15).map(|_| connect(&config, stage.secure, "one.test")));
    }
    for round in 0..3 {
        for (index, client) in clients.iter_mut().enumerate() {
            let path = format!("/{round}/{index}");
            client.write_all(get(&path).as_bytes()).unwrap();
            let mut read = Vec::new();
            while !read.ends_with(path.as_bytes()) {
                let mut piece = [0; 1024];
                let length = client.read(&mut piece).unwrap();
                assert!(length > 0, "{}", String::from_utf8_lossy(&read));
                read.extend_from_slice(&piece[..length]);
            }
            assert!(read.starts_with(b"HTTP/1.1 200"));
        }
        std::thread::sleep(REST);
    }
    // And ended as TLS wants it: with a last word.
    for client in &mut clients {
        let end = client.read(&mut [0; 16]);
        let kind = end.as_ref().map_err(std::io::Error::kind);
        assert_ne!(kind, Err(ErrorKind::UnexpectedEof));
        assert_eq!(end.unwrap(), 0);
    }
}

#[test]
fn the_kernel_finds_clients_that_have_vanished() {
    let upstream = echo();
    let proxy = start(&upstream, "");
    let client = TcpStream::connect(proxy.address).unwrap();
    let hex = |port: u16| format!(":{port:04X}");
    let (ours, theirs) = (
        hex(proxy.address.port()),
        hex(client.local_addr().unwrap().port()),
    );
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let timer = table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields[1].ends_with(&ours) && fields[2].ends_with(&theirs);
        is_it.then(|| fields[5].to_owned())
    });
    let timer = timer.unwrap();
    // 2 is the timer of keepalive.
    assert!(timer.starts_with("02:"), "{timer}");
}
