//! Each kind of setting, on a proxy that runs: for connections that are open and for new ones.

use std::io::{Read as _, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use super::{Gate, assert_said};
use crate::house::{Client, Seen, Tidegate, Upstream};
use crate::probe::eventually;
use crate::support::{RedisServer, free_port};

const SECOND_TOKEN: &str = "another-token-of-32-characters-x";
const ASK: &str = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";

#[test]
fn whom_to_trust_holds_for_open_connections_too() {
    let gate = Gate::start("upstream = \"$UPSTREAM\"");
    let ask = "GET / HTTP/1.1\r\nHost: test\r\nX-Forwarded-For: 192.0.2.7\r\n\r\n";
    let mut client = gate.proxy.connect();
    let forwarded = |client: &mut Client| {
        client.ask(ask);
        let seen = gate.upstream.seen();
        seen.last().and_then(|seen| seen.header("x-forwarded-for"))
    };
    assert_eq!(forwarded(&mut client).as_deref(), Some("127.0.0.1"));
    gate.reload("trusted_proxies = [\"127.0.0.1\"]\nupstream = \"$UPSTREAM\"");
    assert_eq!(
        forwarded(&mut client).as_deref(),
        Some("192.0.2.7, 127.0.0.1")
    );
    gate.reload("upstream = \"$UPSTREAM\"");
    assert_eq!(forwarded(&mut client).as_deref(), Some("127.0.0.1"));
}

#[test]
fn a_response_under_way_ends_as_it_began() {
    let (go, wait) = channel();
    let wait = Arc::new(Mutex::new(wait));
    let upstream = Upstream::start(move |seen: &Seen, stream: &mut TcpStream| {
        if !seen.is_for("/slow") {
            return stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                .is_ok();
        }
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\none")
            .unwrap();
        wait.lock().unwrap().recv().unwrap();
        stream.write_all(b"two").is_ok()
    });
    let gate = Gate::before(
        upstream,
        "[upstream.api]\nservers = [\"$UPSTREAM\"]\n[[route]]\n\
         path = \"/slow\"\nupstream = \"api\"\nlimits = []\n",
    );
    let mut client = gate.proxy.connect();
    client.send("GET /slow HTTP/1.1\r\nHost: test\r\n\r\n");
    assert!(client.head().is_some());
    // Neither its route nor its upstream are there any more.
    gate.reload("[[route]]\npath = \"/other\"\nupstream = \"http://127.0.0.1:1\"\nlimits = []\n");
    assert_eq!(gate.proxy.get("/slow").status, 404);
    go.send(()).unwrap();
    let mut body = [0; 6];
    std::io::Read::read_exact(&mut client.stream, &mut body[3..]).unwrap();
    assert_eq!(&body[3..], b"two");
}

#[test]
fn connections_to_upstreams_that_stay_are_kept() {
    let config = "[upstream.api]\nservers = [\"$UPSTREAM\"]\n[server]\nworkers = 1\n\
                  [[route]]\npath = \"/*\"\nupstream = \"api\"\nlimits = []\n";
    let gate = Gate::start(config);
    let mut client = gate.proxy.connect();
    assert_eq!(client.ask(ASK).status, 200);
    let before = gate.upstream.connections();
    for turn in 0..10 {
        assert_eq!(client.ask(ASK).status, 200);
        gate.reload(&format!("{config}[limit.turn{turn}]\nrate = \"1/s\"\n"));
    }
    assert_eq!(gate.upstream.connections(), before);
}

#[test]
fn a_log_that_was_moved_away_is_begun_anew() {
    let config = "upstream = \"$UPSTREAM\"\n[log]\naccess = \"access.log\"\nformat = \"combined\"\n\
                  sample_allowed = 1.0\n";
    let gate = Gate::start(config);
    let at = |name: &str| gate.proxy.directory.path().join(name);
    let lines = |name: &str| std::fs::read_to_string(at(name)).unwrap_or_default();
    gate.proxy.get("/first");
    eventually("it is written", || lines("access.log").contains("/first"));
    std::fs::rename(at("access.log"), at("access.log.1")).unwrap();
    gate.hang_up();
    gate.proxy.get("/second");
    eventually("it is written to the new one", || {
        lines("access.log").contains("/second")
    });
    assert!(!lines("access.log.1").contains("/second"));
    // And somewhere else, in another form.
    gate.reload(
        &config
            .replace("access.log", "other.log")
            .replace("combined", "json"),
    );
    gate.proxy.get("/third");
    eventually("it is written there", || {
        lines("other.log").contains("\"path\":\"/third\"")
    });
    gate.reload(&config.replace("\"access.log\"", "\"off\""));
    gate.proxy.get("/fourth");
    gate.reload(config);
    gate.proxy.get("/fifth");
    eventually("it is written again", || {
        lines("access.log").contains("/fifth")
    });
    assert!(!lines("access.log").contains("/fourth"));
}

#[test]
fn how_many_clients_there_may_be() {
    let config = |most| {
        format!(
            "upstream = \"$UPSTREAM\"\n[server]\nworkers = 1\n\
                                 max_connections = {most}\n"
        )
    };
    let gate = Gate::start(&config(2));
    let mut held: Vec<Client> = (0..2).map(|_| gate.proxy.connect()).collect();
    for client in &mut held {
        assert_eq!(client.ask(ASK).status, 200);
    }
    let mut third = gate.proxy.connect();
    third.send(ASK);
    gate.reload(&config(3));
    assert_eq!(third.answer().status, 200, "there is room for it now");
    gate.reload(&config(1));
    held.push(third);
    for client in &mut held {
        assert_eq!(client.ask(ASK).status, 200, "none is closed for it");
    }
    let mut late = gate.proxy.connect();
    late.send(ASK);
    held.truncate(1);
    held.clear();
    assert_eq!(late.answer().status, 200);
}

#[test]
fn a_storm_of_signals_ends_with_the_last_file() {
    let gate = Gate::start("upstream = \"$UPSTREAM\"\n[limit.default]\nrate = \"5/min\"\n");
    for rate in 6..=200 {
        gate.write(&format!(
            "upstream = \"$UPSTREAM\"\n[limit.default]\nrate = \"{rate}/min\"\n"
        ));
        gate.proxy.signal("HUP");
    }
    let limit = || gate.proxy.get("/").header("x-ratelimit-limit");
    eventually("the last one", || limit().as_deref() == Some("200"));
}

#[test]
fn counts_in_redis_and_what_is_known_of_them() {
    let redis = RedisServer::start();
    let config = |rate: &str, more: &str| {
        format!(
            "upstream = \"$UPSTREAM\"\n[store]\nurl = \"redis://127.0.0.1:{}\"\n{more}\n\
             timeout = \"5s\"\n[limit.default]\nrate = \"{rate}\"\nkey = \"global\"\n",
            redis.port()
        )
    };
    let gate = Gate::start(&config("3/h", ""));
    let status = || gate.proxy.get("/").status;
    assert_eq!(
        [status(), status(), status(), status(), status()],
        [200, 200, 200, 429, 429]
    );
    // What is known to be denied is asked again.
    gate.reload(&config("5/h", ""));
    assert_eq!([status(), status(), status()], [200, 200, 429]);
    gate.reload(&config("4/h", ""));
    assert_eq!(status(), 429);
    // Another connection to the same counts, and other counts.
    let said = gate.reload(&config("6/h", "fleet = 2"));
    assert_said(&said, "store: fleet 2, which was not set");
    assert_eq!([status(), status()], [200, 429]);
    gate.reload(&config("6/h", "prefix = \"other:\""));
    assert_eq!(status(), 200);
    gate.reload(&config("6/h", ""));
    assert_eq!(status(), 429);
}

#[test]
fn from_counts_in_this_process_to_redis_and_back() {
    let redis = RedisServer::start();
    let config = |url: String| {
        format!(
            "upstream = \"$UPSTREAM\"\n[store]\nurl = \"{url}\"\ntimeout = \"5s\"\n\
             [limit.default]\nrate = \"2/h\"\nkey = \"global\"\n"
        )
    };
    let gate = Gate::start(&config("memory:".to_owned()));
    let status = || gate.proxy.get("/").status;
    assert_eq!([status(), status(), status()], [200, 200, 429]);
    let said = gate.reload(&config(format!("redis://127.0.0.1:{}", redis.port())));
    assert_said(&said, "store: counts are now those of the new store");
    assert_eq!([status(), status(), status()], [200, 200, 429]);
    gate.reload(&config("memory:".to_owned()));
    assert_eq!(status(), 200);
}

#[test]
fn a_refused_reload_changes_no_health_check() {
    let text = |path: &str| {
        format!(
            "[log]\ndecisions = \"logs/d.jsonl\"\n[upstream.u]\nservers = [\"$UPSTREAM\"]\n\
             health = {{ path = \"{path}\", every = \"50ms\", unhealthy = 1, healthy = 1 }}\n\
             [[route]]\npath = \"/*\"\nupstream = \"u\"\nlimits = []\n"
        )
    };
    let upstream = Upstream::start(|seen: &Seen, stream: &mut TcpStream| {
        let status = if seen.is_for("/down") {
            "500 No"
        } else {
            "200 OK"
        };
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(head.as_bytes()).is_ok()
    });
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("logs")).unwrap();
    let first = text("/up").replace("$UPSTREAM", &upstream.url());
    let proxy = Tidegate::start_in(folder, &first, &[]);
    let gate = Gate { proxy, upstream };
    // By then the decision log is open.
    assert_eq!(gate.proxy.get("/").status, 200);
    let folder = gate.proxy.directory.path().to_owned();
    std::fs::rename(folder.join("logs"), folder.join("moved")).unwrap();
    let said = gate.reload(&text("/down"));
    assert_said(&said, "nothing was changed");
    assert_eq!(gate.proxy.get("/").status, 200);
    let asked = gate.upstream.seen().len();
    eventually("more checks", || gate.upstream.seen().len() > asked + 3);
    let seen = gate.upstream.seen();
    assert!(!seen.iter().any(|one| one.is_for("/down")));
}

#[test]
fn the_admin_moves_to_all_addresses_of_its_port_with_another_token() {
    let folder = tempfile::tempdir().unwrap();
    for (file, token) in [
        ("one", "a-first-token-of-32-characters-x"),
        ("two", SECOND_TOKEN),
    ] {
        std::fs::write(folder.path().join(file), token).unwrap();
    }
    let port = free_port();
    let text = |ip: &str, file: &str| {
        format!(
            "admin = \"{ip}:{port}\"\nadmin_token_file = \"{file}\"\n\
             upstream = \"http://127.0.0.1:9\"\n"
        )
    };
    let proxy = Tidegate::start_in(folder, &text("127.0.0.1", "one"), &[]);
    proxy.wait_for_line("dashboard  http://");
    let upstream = Upstream::ok();
    let gate = Gate { proxy, upstream };
    gate.write(&text("0.0.0.0", "two"));
    gate.proxy.signal("HUP");
    gate.proxy.wait_for_line("admin: listening");
    let admin = SocketAddr::from(([127, 0, 0, 1], port));
    // Nothing, if the connection was waiting at the old socket.
    let status = |token: &str| {
        let body = "{\"key\":\"ip=192.0.2.1\"}";
        let head = format!(
            "POST /api/v1/block HTTP/1.1\r\nHost: {admin}\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(admin).unwrap();
        let mut answer = [0; 12];
        let asked = stream.write_all(head.as_bytes());
        let read = asked.and_then(|()| stream.read_exact(&mut answer));
        read.map_or_else(
            |_| String::new(),
            |()| String::from_utf8_lossy(&answer).into_owned(),
        )
    };
    eventually("the new token", || status(SECOND_TOKEN) == "HTTP/1.1 200");
    assert_eq!(status("a-first-token-of-32-characters-x"), "HTTP/1.1 401");
}
