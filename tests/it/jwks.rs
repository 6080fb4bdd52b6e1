//! `jwks_url`: keys that an issuer publishes, on a real server with TLS of its own authority.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::json;

use crate::admin::Looked;
use crate::backend::secure;
use crate::house::{Client, Tidegate, Upstream};
use crate::probe::eventually;
use crate::support::free_port;
use crate::topologies::certificates::Certificates;

/// A key of an issuer, with its `kid`.
struct IssuerKey {
    id: &'static str,
    pair: Ed25519KeyPair,
}

impl IssuerKey {
    fn new(id: &'static str) -> IssuerKey {
        let pair = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        IssuerKey {
            id,
            pair: Ed25519KeyPair::from_pkcs8(pair.as_ref()).unwrap(),
        }
    }

    fn public(&self) -> String {
        let x = URL_SAFE_NO_PAD.encode(self.pair.public_key().as_ref());
        let id = self.id;
        format!(r#"{{"kty":"OKP","crv":"Ed25519","kid":"{id}","use":"sig","x":"{x}"}}"#)
    }

    /// The header line with a token of this key.
    fn bearer(&self) -> String {
        self.bearer_as(self.id)
    }

    /// The same, as if the key had another `kid`.
    fn bearer_as(&self, id: &str) -> String {
        let parts = [
            format!(r#"{{"alg":"EdDSA","kid":"{id}"}}"#),
            r#"{"sub":"jo"}"#.to_owned(),
        ];
        let signed = parts.map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
        let signature = URL_SAFE_NO_PAD.encode(self.pair.sign(signed.as_bytes()));
        format!("Authorization: Bearer {signed}.{signature}\r\n")
    }
}

fn set(keys: &[&IssuerKey]) -> String {
    let keys: Vec<String> = keys.iter().map(|key| key.public()).collect();
    format!(r#"{{"keys":[{}]}}"#, keys.join(","))
}

/// What the server of the keys answers at `/keys`.
#[derive(Clone)]
struct Reply {
    status: u16,
    /// More header lines, each ended by CRLF.
    lines: String,
    body: String,
    after: Duration,
}

impl Reply {
    fn with(body: String) -> Reply {
        Reply {
            status: 200,
            lines: String::new(),
            body,
            after: Duration::ZERO,
        }
    }

    fn status(status: u16) -> Reply {
        Reply {
            status,
            ..Reply::with(String::new())
        }
    }

    fn redirect(to: &str) -> Reply {
        Reply {
            lines: format!("Location: {to}\r\n"),
            ..Reply::status(302)
        }
    }
}

struct ServerState {
    reply: Reply,
    /// The answer at `/moved`.
    moved: String,
    asked: Vec<String>,
}

/// A server of keys.
struct KeyServer {
    address: SocketAddr,
    state: Arc<Mutex<ServerState>>,
}

impl KeyServer {
    fn start(certificates: &Certificates, reply: Reply) -> KeyServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        KeyServer::on(listener, certificates, reply)
    }

    fn on(listener: TcpListener, certificates: &Certificates, reply: Reply) -> KeyServer {
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(ServerState {
            reply,
            moved: String::new(),
            asked: Vec::new(),
        }));
        let tls = secure(certificates, "good", &[b"http/1.1"], false);
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (tls, state) = (Arc::clone(&tls), Arc::clone(&shared));
                std::thread::spawn(move || answer(stream, tls, &state));
            }
        });
        KeyServer { address, state }
    }

    fn set(&self, reply: Reply) {
        self.state.lock().unwrap().reply = reply;
    }

    /// How often it was asked for keys.
    fn fetches(&self) -> usize {
        self.state.lock().unwrap().asked.len()
    }

    fn url(&self) -> String {
        format!("https://{}/keys", self.address)
    }
}

fn answer(stream: std::net::TcpStream, tls: Arc<ServerConfig>, state: &Mutex<ServerState>) {
    let Ok(connection) = ServerConnection::new(tls) else {
        return;
    };
    let mut stream = StreamOwned::new(connection, stream);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if !matches!(stream.read(&mut byte), Ok(1)) {
            return;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let reply = {
        let mut state = state.lock().unwrap();
        state.asked.push(head);
        match path.as_str() {
            "/keys" => state.reply.clone(),
            "/moved" => Reply::with(state.moved.clone()),
            _ => Reply::status(404),
        }
    };
    std::thread::sleep(reply.after);
    let Reply {
        status,
        lines,
        body,
        ..
    } = reply;
    let length = body.len();
    // The proxy may have given up.
    let _ = write!(
        stream,
        "HTTP/1.1 {status} X\r\n{lines}Content-Length: {length}\r\n\r\n{body}"
    );
    let _ = stream.flush();
}

/// A file whose requests are served if their tokens are believed, and answered with 401 otherwise.
fn file(upstream: &Upstream, url: &str, certificates: &Certificates, times: &str) -> String {
    let ca = certificates.path("ca.pem").display().to_string();
    format!(
        "upstream = \"{}\"\n[auth.jwt]\njwks_url = \"{url}\"\n{times}\n\
         tls = {{ ca = \"{ca}\" }}\n\
         [limit.default]\nrate = \"1_000_000/day\"\nkey = \"jwt:sub\"\nmissing = \"deny\"\n",
        upstream.url()
    )
}

fn status(proxy: &Tidegate, headers: &str) -> u16 {
    proxy.get_with("/", headers).status
}

#[test]
fn keys_are_fetched_and_follow_the_issuer() {
    let (certificates, upstream) = (Certificates::new(), Upstream::ok());
    let (old, new) = (IssuerKey::new("old"), IssuerKey::new("new"));
    let server = KeyServer::start(&certificates, Reply::with(set(&[&old])));
    let proxy = Tidegate::start(&file(&upstream, &server.url(), &certificates, ""));
    assert_eq!(status(&proxy, &old.bearer()), 200);
    assert_eq!(status(&proxy, ""), 401);
    assert_eq!(status(&proxy, &new.bearer_as("old")), 401, "another key");
    assert_eq!(server.fetches(), 1);
    // The first request with the new key waits for it.
    server.set(Reply::with(set(&[&new])));
    assert_eq!(status(&proxy, &new.bearer()), 200);
    assert_eq!(server.fetches(), 2);
    // A key that is no longer there is not believed, neither is a token that it had verified.
    for _ in 0..20 {
        assert_eq!(status(&proxy, &old.bearer()), 401);
    }
    assert_eq!(server.fetches(), 2, "no second fetch within half a minute");
    let asked = server.state.lock().unwrap().asked[0].to_lowercase();
    assert!(
        asked.contains(&format!("host: {}\r\n", server.address)),
        "{asked}"
    );
    assert!(asked.contains("user-agent: tidegate/"), "{asked}");
}

#[test]
fn a_refresh_forgets_keys_without_being_asked() {
    let (certificates, upstream) = (Certificates::new(), Upstream::ok());
    let (old, new) = (IssuerKey::new("old"), IssuerKey::new("new"));
    let server = KeyServer::start(&certificates, Reply::with(set(&[&old, &new])));
    let times = "refresh = \"200ms\"";
    let proxy = Tidegate::start(&file(&upstream, &server.url(), &certificates, times));
    assert_eq!(status(&proxy, &old.bearer()), 200);
    server.set(Reply::with(set(&[&new])));
    eventually("the withdrawn key is forgotten", || {
        status(&proxy, &old.bearer()) == 401
    });
    assert_eq!(status(&proxy, &new.bearer()), 200);
    // An issuer may withdraw all keys.
    server.set(Reply::with(set(&[])));
    eventually("all keys are forgotten", || {
        status(&proxy, &new.bearer()) == 401
    });
}

#[test]
fn a_thousand_invented_keys_cause_one_fetch() {
    let (certificates, upstream) = (Certificates::new(), Upstream::ok());
    let key = IssuerKey::new("a");
    let server = KeyServer::start(&certificates, Reply::with(set(&[&key])));
    let proxy = Tidegate::start(&file(&upstream, &server.url(), &certificates, ""));
    assert_eq!(status(&proxy, &key.bearer()), 200);
    let began = Instant::now();
    let mut client = proxy.connect();
    for number in 0..1000 {
        let line = key.bearer_as(&format!("invented-{number}"));
        let answer = client.ask(format!("GET / HTTP/1.1\r\nHost: test\r\n{line}\r\n"));
        assert_eq!(answer.status, 401);
    }
    let half_minutes = began.elapsed().as_secs() as usize / 30;
    assert!((2..=2 + half_minutes).contains(&server.fetches()));
    assert_eq!(status(&proxy, &key.bearer()), 200);
}

#[test]
fn old_keys_hold_for_a_while_and_the_admin_says_so() {
    let (certificates, upstream) = (Certificates::new(), Upstream::ok());
    let key = IssuerKey::new("a");
    let server = KeyServer::start(&certificates, Reply::with(set(&[&key])));
    let times = "refresh = \"200ms\"\nmax_stale = \"5s\"";
    let looked = Looked::start(&file(&upstream, &server.url(), &certificates, times));
    let proxy = &looked.tidegate;
    assert_eq!(status(proxy, &key.bearer()), 200);
    let metric = |name: &str| {
        let text = looked.get("/metrics").text();
        let mut lines = text.lines().map(str::to_owned);
        let line = lines
            .find(|line| line.starts_with(name))
            .unwrap_or_default();
        line.rsplit(' ')
            .next()
            .unwrap_or_default()
            .parse::<f64>()
            .ok()
    };
    assert!(metric("tidegate_jwks_age_seconds ").unwrap() < 5.0);
    assert_eq!(metric("tidegate_findings{id=\"jwks-stale\"}"), Some(0.0));
    server.set(Reply::status(500));
    let failing = Instant::now();
    eventually("a fetch has failed", || {
        metric("tidegate_jwks_fetches_total{outcome=\"failed\"}") > Some(0.0)
    });
    let held = status(proxy, &key.bearer());
    if failing.elapsed() < Duration::from_secs(4) {
        assert_eq!(held, 200, "the old keys hold");
    }
    eventually("it is found", || {
        metric("tidegate_findings{id=\"jwks-stale\"}") == Some(1.0)
    });
    let findings = looked.json("/api/v1/status")["findings"].clone();
    let text = findings[0]["text"].as_str().unwrap();
    assert!(text.contains("it answers with status 500"), "{text}");
    eventually("stale keys are not believed", || {
        status(proxy, &key.bearer()) == 401
    });
    assert!(failing.elapsed() >= Duration::from_secs(3));
    assert!(metric("tidegate_jwks_age_seconds ").unwrap() >= 5.0);
    server.set(Reply::with(set(&[&key])));
    eventually("they are believed again", || {
        status(proxy, &key.bearer()) == 200
    });
    eventually("the finding ends", || {
        metric("tidegate_findings{id=\"jwks-stale\"}") == Some(0.0)
    });
}

#[test]
fn answers_that_are_no_keys_are_refused() {
    let (certificates, upstream) = (Certificates::new(), Upstream::ok());
    let key = IssuerKey::new("a");
    let other = KeyServer::start(&certificates, Reply::with(set(&[&key])));
    let large = format!("{}{}", set(&[&key]), " ".repeat(256 << 10));
    let many = format!("{{\"keys\":[{}]}}", vec!["{}"; 101].join(","));
    for (reply, why) in [
        (Reply::with(large), "its answer has more than 262144 bytes"),
        (Reply::with(many), "more than 100 keys"),
        (Reply::with("<html>".to_owned()), "not a JSON Web Key Set"),
        (Reply::status(404), "it answers with status 404"),
        (
            Reply::redirect(&other.url()),
            "it redirects to another server",
        ),
        (Reply::redirect("/keys"), "more than 3 redirects"),
    ] {
        let server = KeyServer::start(&certificates, reply);
        let proxy = Tidegate::start(&file(&upstream, &server.url(), &certificates, ""));
        assert_eq!(status(&proxy, &key.bearer()), 401, "{why}");
        let line = proxy.wait_for_line("jwks:");
        assert!(line.contains(why), "{line}");
    }
    assert_eq!(other.fetches(), 0);
}

#[test]
fn a_redirect_within_the_server_is_followed() {
    let (certificates, upstream) = (Certificates::new(), Upstream::ok());
    let key = IssuerKey::new("a");
    for absolute in [false, true] {
        let server = KeyServer::start(&certificates, Reply::status(404));
        let to = match absolute {
            true => server.url().replace("/keys", "/moved"),
            false => "/moved".to_owned(),
        };
        server.set(Reply::redirect(&to));
        server.state.lock().unwrap().moved = set(&[&key]);
        let proxy = Tidegate::start(&file(&upstream, &server.url(), &certificates, ""));
        assert_eq!(status(&proxy, &key.bearer()), 200);
    }
}

#[test]
fn a_server_with_a_certificate_of_a_stranger_is_not_believed() {
    let (certificates, upstream) = (Certificates::new(), Upstream::ok());
    let key = IssuerKey::new("a");
    let server = KeyServer::start(&certificates, Reply::with(set(&[&key])));
    let text = file(&upstream, &server.url(), &certificates, "");
    let proxy = Tidegate::start(&text.replace("/ca.pem", "/stranger.pem"));
    assert_eq!(status(&proxy, &key.bearer()), 401);
    let line = proxy.wait_for_line("jwks:");
    assert!(line.contains("unknown authority"), "{line}");
    assert_eq!(server.fetches(), 0);
}

#[test]
fn a_server_that_is_away_at_the_start_is_asked_again() {
    let (certificates, upstream) = (Certificates::new(), Upstream::ok());
    let key = IssuerKey::new("a");
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let url = format!("https://{address}/keys");
    let proxy = Tidegate::start(&file(&upstream, &url, &certificates, ""));
    assert_eq!(status(&proxy, &key.bearer()), 401);
    let line = proxy.wait_for_line("jwks:");
    assert!(line.contains("no token is valid"), "{line}");
    let listener = TcpListener::bind(address).unwrap();
    let server = KeyServer::on(listener, &certificates, Reply::with(set(&[&key])));
    eventually("the keys are there", || {
        status(&proxy, &key.bearer()) == 200
    });
    assert!(server.fetches() >= 1);
}

#[test]
fn a_slow_server_delays_requests_with_tokens_by_a_second_at_most() {
    let (certificates, upstream) = (Certificates::new(), Upstream::ok());
    let key = IssuerKey::new("a");
    // The proxy gives up a fetch after 10 s and repeats it. A busy machine makes this reply later.
    let slow = Reply {
        after: Duration::from_secs(5),
        ..Reply::with(set(&[&key]))
    };
    let server = KeyServer::start(&certificates, slow);
    let proxy = Tidegate::start(&file(&upstream, &server.url(), &certificates, ""));
    let began = Instant::now();
    assert_eq!(status(&proxy, ""), 401);
    let without = began.elapsed();
    let began = Instant::now();
    let first = status(&proxy, &key.bearer());
    let waited = began.elapsed();
    assert_eq!(first, 401);
    assert!(waited >= Duration::from_millis(900), "{waited:?}");
    assert!(waited < Duration::from_secs(4), "{waited:?}");
    assert!(without < Duration::from_millis(900), "{without:?}");
    eventually("the keys are there", || {
        status(&proxy, &key.bearer()) == 200
    });
    assert_eq!(server.fetches(), 1);
}

#[test]
fn a_reload_keeps_the_keys_of_the_same_url() {
    let (certificates, upstream) = (Certificates::new(), Upstream::ok());
    let (key, other) = (IssuerKey::new("a"), IssuerKey::new("b"));
    let server = KeyServer::start(&certificates, Reply::with(set(&[&key])));
    let elsewhere = KeyServer::start(&certificates, Reply::with(set(&[&other])));
    let proxy = Tidegate::start(&file(&upstream, &server.url(), &certificates, ""));
    assert_eq!(status(&proxy, &key.bearer()), 200);
    server.set(Reply::status(500));
    let reload = |url: &str, times: &str| {
        let text = file(&upstream, url, &certificates, times);
        let text = format!("listen = \"{}\"\n{text}", proxy.address);
        std::fs::write(proxy.directory.path().join("proxy.toml"), text).unwrap();
        proxy.signal("HUP");
        proxy.wait_for_line("reload: done");
    };
    reload(&server.url(), "refresh = \"20min\"");
    assert_eq!(status(&proxy, &key.bearer()), 200);
    assert_eq!(server.fetches(), 1, "the keys stay");
    reload(&elsewhere.url(), "");
    assert_eq!(status(&proxy, &key.bearer()), 401, "another issuer");
    assert_eq!(status(&proxy, &other.bearer()), 200);
}

#[test]
fn an_explanation_names_the_key_and_the_age_of_the_keys() {
    let (certificates, upstream) = (Certificates::new(), Upstream::ok());
    let key = IssuerKey::new("summer");
    let server = KeyServer::start(&certificates, Reply::with(set(&[&key])));
    let looked = Looked::start(&file(&upstream, &server.url(), &certificates, ""));
    assert_eq!(status(&looked.tidegate, &key.bearer()), 200);
    let explain = |line: String| {
        let (name, value) = line.trim_end().split_once(": ").unwrap();
        let asked = json!({ "url": "/", "headers": [[name, value]] });
        let answer = looked.post("/api/v1/explain", &asked);
        let told: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        told["token"].clone()
    };
    let token = explain(key.bearer());
    assert_eq!(token["believed"], true);
    assert_eq!(token["key_id"], "summer");
    assert!(token["keys_age_seconds"].as_u64().unwrap() < 60);
    let token = explain(key.bearer_as("winter"));
    assert_eq!(token["believed"], false);
    assert!(token["why"].as_str().unwrap().contains("`kid`"), "{token}");
    // A command has no keys of its own.
    let line = key.bearer();
    let words = [
        "explain",
        "GET",
        "/",
        "-c",
        "proxy.toml",
        "-H",
        line.trim_end(),
    ];
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(words)
        .current_dir(looked.tidegate.directory.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Token     not believed: the keys"), "{text}");
}

#[test]
fn a_proxy_that_asks_for_a_decision_waits_too() {
    let (certificates, upstream) = (Certificates::new(), Upstream::ok());
    let (old, new) = (IssuerKey::new("old"), IssuerKey::new("new"));
    let server = KeyServer::start(&certificates, Reply::with(set(&[&old])));
    let text = file(&upstream, &server.url(), &certificates, "");
    let decide = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let proxy = Tidegate::start(&format!("{text}[decide]\nlisten = \"{decide}\"\n"));
    server.set(Reply::with(set(&[&new])));
    let mut client = Client::to(decide);
    let begin = Instant::now();
    let answer = client.ask(format!(
        "GET /auth HTTP/1.1\r\nHost: test\r\nX-Forwarded-Method: GET\r\nX-Forwarded-Host: test\r\n\
         X-Forwarded-Uri: /\r\nX-Forwarded-For: 192.0.2.7\r\n{}\r\n",
        new.bearer()
    ));
    // On a busy machine the keys may come too late.
    let has_waited = begin.elapsed() >= Duration::from_millis(400);
    assert!(answer.status == 200 || has_waited, "{}", answer.head);
    drop(proxy);
}
