//! The store over each of its topologies, started for real: one server over TCP, TLS or a socket,
//! with the least rights; a master behind sentinels; Valkey.

pub mod certificates;
mod failover;
pub mod sentinels;
mod valkey;

use std::time::{Duration, Instant};

use crate::house::{Tidegate, Upstream};
use crate::probe::{eventually, statuses};
use crate::support::{RedisServer, free_port};
use certificates::Certificates;

/// A proxy that lets nobody pass while its store is away. `store` follows `[store]`.
fn strict(upstream: &Upstream, store: &str) -> Tidegate {
    Tidegate::start(&format!(
        "upstream = \"{}\"\n[limit.default]\nrate = \"3/day\"\nkey = \"header:x-key\"\n\
         [limit.coarse]\nrate = \"1_000/day\"\nalgorithm = \"counter\"\n\
         [[route]]\npath = \"/*\"\nlimits = [\"default\", \"coarse\"]\n\
         [log]\naccess = \"off\"\n[store]\non_error = \"deny\"\ntimeout = \"5s\"\n{store}",
        upstream.url()
    ))
}

/// Three pass and the fourth does not: the store decides.
fn assert_decides(proxy: &Tidegate, key: &str) {
    let ask = |_| proxy.get_with("/", &format!("X-Key: {key}\r\n"));
    let answers: Vec<_> = (0..4).map(ask).collect();
    assert_eq!(statuses(&answers), [200, 200, 200, 429], "{key}");
}

/// A server with TLS beside its plain port, which is for the test's own looks.
struct TlsServer {
    redis: RedisServer,
    port: u16,
    certificates: Certificates,
}

impl TlsServer {
    fn start(certificate: &str, clients: &str) -> TlsServer {
        let (certificates, port) = (Certificates::new(), free_port());
        let mut words = certificates.server(certificate, port);
        words.extend(["--tls-auth-clients".to_owned(), clients.to_owned()]);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        TlsServer {
            redis: RedisServer::start_with(&words),
            port,
            certificates,
        }
    }

    /// Settings that trust this authority.
    fn trusting(&self, ca: &str, more: &str) -> String {
        let ca = self.certificates.path(&format!("{ca}.pem"));
        format!(
            "url = \"rediss://localhost:{}\"\n[store.tls]\nca = \"{}\"\n{more}",
            self.port,
            ca.display()
        )
    }

    /// Changes the certificate of the running server.
    fn show(&self, certificate: &str) {
        let path = |end: &str| self.certificates.path(&format!("{certificate}.{end}"));
        let mut set = redis::cmd("CONFIG");
        set.arg("SET")
            .arg("tls-cert-file")
            .arg(path("pem").to_str());
        set.arg("tls-key-file").arg(path("key").to_str());
        set.exec(&mut self.redis.connect()).unwrap();
    }
}

#[test]
fn one_server_over_tcp_and_over_a_socket() {
    let (redis, upstream) = (RedisServer::start(), Upstream::ok());
    let tcp = format!("url = \"redis://127.0.0.1:{}/2\"\n", redis.port());
    let socket = format!("url = \"redis+unix://{}?db=2\"\n", redis.socket().display());
    let (tcp, socket) = (strict(&upstream, &tcp), strict(&upstream, &socket));
    assert_decides(&tcp, "tcp");
    assert_decides(&socket, "socket");
    // One count for both ways in.
    assert_eq!(socket.get_with("/", "X-Key: tcp\r\n").status, 429);
}

#[test]
fn tls_with_the_least_rights_of_a_user() {
    let (server, upstream) = (TlsServer::start("good", "no"), Upstream::ok());
    let rule = rule("tidegate");
    assert_eq!(server.redis.run(&rule), redis::Value::Okay, "{rule}");
    let password = server.certificates.path("password");
    std::fs::write(&password, "SECRET\n").unwrap();
    let login = format!(
        "fleet = \"auto\"\nusername = \"tidegate\"\npassword_file = \"{}\"\n",
        password.display()
    );
    let settings = format!("{login}{}", server.trusting("ca", ""));
    let proxy = strict(&upstream, &settings);
    assert_decides(&proxy, "least");
    // Also what only happens when something is wrong: a key of ours that is none.
    assert_eq!(proxy.get_with("/", "X-Key: half\r\n").status, 200);
    for name in keys(&server.redis, "tidegate:{*") {
        server.redis.run(&format!("DEL {name}"));
        server.redis.run(&format!("RPUSH {name} x"));
    }
    assert_decides(&proxy, "half");
    server.redis.run("DEL tidegate:hash-key");
    server.redis.run("RPUSH tidegate:hash-key x");
    eventually("the hash key is a key again", || {
        proxy.get_with("/", "X-Key: other\r\n");
        keys(&server.redis, "tidegate:hash-key").len() == 1
            && server.redis.run("STRLEN tidegate:hash-key") == redis::Value::Int(32)
    });
    let denied = server.redis.run("ACL LOG");
    assert_eq!(denied, redis::Value::Array(Vec::new()), "{denied:?}");
}

/// The command that makes a user, as it stands in `docs/store.md`.
pub fn rule(user: &str) -> String {
    let page = include_str!("../../docs/store.md");
    let begin = format!("ACL SETUSER {user} ");
    let mut lines = page.lines().filter(|line| line.starts_with(&begin));
    let rule = lines.next().expect("the rule is documented").to_owned();
    assert_eq!(lines.next(), None, "two rules for {user}");
    rule
}

fn keys(redis: &RedisServer, pattern: &str) -> Vec<String> {
    let mut command = redis::cmd("KEYS");
    command.arg(pattern).query(&mut redis.connect()).unwrap()
}

#[test]
fn a_certificate_that_is_wrong_is_an_outage_that_says_so() {
    let upstream = Upstream::ok();
    for (certificate, ca, said) in [
        ("good", "stranger", "signed by an unknown authority"),
        ("other", "ca", "made out to another name"),
        ("expired", "ca", "has expired"),
    ] {
        let server = TlsServer::start(certificate, "no");
        let proxy = strict(&upstream, &server.trusting(ca, ""));
        // Twice: in the line about the store, and when the outage begins.
        for part in ["store      localhost", "redis: "] {
            let line = proxy.wait_for_line(part);
            assert!(line.contains(said), "{line}");
        }
        let answers: Vec<_> = (0..5).map(|_| proxy.get("/")).collect();
        assert_eq!(statuses(&answers), [503; 5], "{certificate} {ca}");
    }
    assert!(upstream.seen().is_empty());
}

#[test]
fn a_renewed_certificate_ends_the_outage() {
    let (server, upstream) = (TlsServer::start("expired", "no"), Upstream::ok());
    let proxy = strict(&upstream, &server.trusting("ca", ""));
    proxy.wait_for_line("has expired");
    assert_eq!(proxy.get("/").status, 503);
    server.show("good");
    let renewed = Instant::now();
    eventually("it is trusted", || {
        proxy.get_with("/", "X-Key: renewed\r\n").status == 200
    });
    assert!(renewed.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_name_of_its_own_is_what_the_certificate_is_held_against() {
    let (server, upstream) = (TlsServer::start("other", "no"), Upstream::ok());
    let settings = server.trusting("ca", "name = \"other.test\"\n");
    assert_decides(&strict(&upstream, &settings), "named");
}

#[test]
fn a_server_that_asks_for_a_certificate_gets_ours() {
    let (server, upstream) = (TlsServer::start("good", "yes"), Upstream::ok());
    let path = |name: &str| server.certificates.path(name).display().to_string();
    let ours = format!(
        "cert = \"{}\"\nkey = \"{}\"\n",
        path("client.pem"),
        path("client.key")
    );
    assert_decides(&strict(&upstream, &server.trusting("ca", &ours)), "known");
    let unknown = strict(&upstream, &server.trusting("ca", ""));
    let line = unknown.wait_for_line("redis: ");
    assert!(line.contains("may want a certificate"), "{line}");
    assert_eq!(unknown.get("/").status, 503);
}

#[test]
fn tls_is_never_left_out() {
    // Neither side makes do with less than it was told.
    let (server, upstream) = (TlsServer::start("good", "no"), Upstream::ok());
    let plain_port = server
        .trusting("ca", "")
        .replace(&server.port.to_string(), &server.redis.port().to_string());
    let proxy = strict(&upstream, &plain_port);
    let line = proxy.wait_for_line("redis: ");
    assert!(line.contains("limits follow on_error"), "{line}");
    assert_eq!(proxy.get("/").status, 503);
    let untold = format!("url = \"redis://localhost:{}\"\n", server.port);
    assert_eq!(strict(&upstream, &untold).get("/").status, 503);
}
