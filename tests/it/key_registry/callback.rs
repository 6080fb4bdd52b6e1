//! A service that knows the API keys, on a real socket.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustls::{ServerConnection, StreamOwned};

use super::{INVENTED, LIMIT, invented, passes, status};
use crate::admin::Looked;
use crate::backend::secure;
use crate::house::{Seen, Tidegate, Upstream};
use crate::probe::eventually;
use crate::support::free_port;
use crate::topologies::certificates::Certificates;

/// What the service says of each key that it knows.
type Clients = Arc<Mutex<HashMap<String, &'static str>>>;

struct Service {
    upstream: Upstream,
    clients: Clients,
    /// How long it takes for an answer, milliseconds.
    delay_ms: Arc<AtomicU64>,
    /// The status of every answer; 0 for the right one.
    broken: Arc<AtomicU64>,
}

impl Service {
    fn start(clients: &[(&str, &'static str)]) -> Service {
        let known = clients.iter().map(|(key, said)| ((*key).to_owned(), *said));
        let clients: Clients = Arc::new(Mutex::new(known.collect()));
        let (delay_ms, broken) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (known, delay, state) = (clients.clone(), delay_ms.clone(), broken.clone());
        let respond = move |seen: &Seen, stream: &mut TcpStream| {
            std::thread::sleep(Duration::from_millis(delay.load(Ordering::Relaxed)));
            let answer = match state.load(Ordering::Relaxed) {
                0 => known.lock().unwrap().get(&key_of(seen)).copied(),
                status => {
                    let head = format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n");
                    return stream.write_all(head.as_bytes()).is_ok();
                }
            };
            let answer = match answer {
                Some(body) => {
                    let length = body.len();
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}")
                }
                None => "HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n".to_owned(),
            };
            stream.write_all(answer.as_bytes()).is_ok()
        };
        Service {
            upstream: Upstream::start(respond),
            clients,
            delay_ms,
            broken,
        }
    }

    /// `[api_key]` with this service. `more` are further settings of the table.
    fn section(&self, more: &str) -> String {
        let url = self.upstream.url();
        format!(
            "[api_key]\nknown = {{ url = \"{url}/verify?from=proxy\", timeout = \"5s\"{more} }}\n"
        )
    }

    /// How often it was asked about this key.
    fn asked(&self, key: &str) -> usize {
        let seen = self.upstream.seen();
        seen.iter().filter(|seen| key_of(seen) == key).count()
    }
}

fn key_of(seen: &Seen) -> String {
    let value = seen.header("authorization").unwrap_or_default();
    value.strip_prefix("Bearer ").unwrap_or("none").to_owned()
}

fn guarded(upstream: &Upstream, rules: &str) -> Tidegate {
    Tidegate::start(&format!("upstream = \"{}\"\n{rules}", upstream.url()))
}

/// A request with each key, all at the same time.
fn pass_at_once(proxy: &Tidegate, keys: &[String]) {
    let clients: Vec<_> = keys.iter().map(|_| proxy.connect()).collect();
    std::thread::scope(|scope| {
        for (mut client, key) in clients.into_iter().zip(keys) {
            scope.spawn(move || {
                let head = format!("GET / HTTP/1.1\r\nHost: test\r\nX-Api-Key: {key}\r\n\r\n");
                assert_eq!(client.ask(head).status, 200, "{key}");
            });
        }
    });
}

#[test]
fn invented_keys_share_the_budget_of_their_address_and_few_are_asked_for() {
    let (upstream, service) = (Upstream::ok(), Service::start(&[("k1", "{}")]));
    let proxy = guarded(&upstream, &(service.section("") + LIMIT));
    let began = Instant::now();
    assert_eq!(invented(&proxy), 10);
    let seconds = began.elapsed().as_secs() as usize;
    let asked = service.upstream.seen().len();
    assert!((1..=10 * (seconds + 1)).contains(&asked), "{asked}");
    assert!(asked < INVENTED || seconds >= 5);
    // The address has used up its questions of this second, and its budget.
    eventually("k1 is asked for in the next second", || {
        status(&proxy, "k1") == 200
    });
    assert_eq!(passes(&proxy, "k1", 12), 9, "it has a budget of its own");
    assert_eq!(service.asked("k1"), 1, "the answer is cached");
    let seen = service.upstream.seen();
    let asked = seen.iter().find(|seen| key_of(seen) == "k1").unwrap();
    assert!(
        asked
            .head
            .starts_with("GET /verify?from=proxy HTTP/1.1\r\n")
    );
}

#[test]
fn an_answer_has_a_tier_and_holds_for_its_time() {
    let said = r#"{"name":"acme","tier":"pro","anchor":15}"#;
    let (upstream, service) = (Upstream::ok(), Service::start(&[("k1", said)]));
    let rules = format!(
        "{}unknown = \"deny\"\n[limit.default]\nrate = [\"10/h\", \"1000/month\"]\n\
         key = \"api_key or ip\"\ntiers = {{ pro = [\"15/h\", \"1000/month\"] }}\n\
         calendar = {{ anchor = \"keys\" }}\n[status]\npath = \"/left\"\n",
        service.section(", ttl = \"500ms\", ttl_unknown = \"100ms\"")
    );
    let proxy = guarded(&upstream, &rules);
    let left = proxy.get_with("/left", "X-Api-Key: k1\r\n");
    assert!(left.text().contains("-15T00:00:00"), "{}", left.text());
    assert_eq!(passes(&proxy, "k1", 20), 15);
    assert_eq!(status(&proxy, "k2"), 401);
    service.clients.lock().unwrap().insert("k2".to_owned(), "");
    eventually("the new key is known", || status(&proxy, "k2") == 200);
    service.clients.lock().unwrap().clear();
    eventually("the old key is not known", || status(&proxy, "k1") == 401);
}

#[test]
fn one_question_is_under_way_for_a_key() {
    let (upstream, service) = (Upstream::ok(), Service::start(&[("k1", "{}")]));
    service.delay_ms.store(200, Ordering::Relaxed);
    let rules =
        service.section("") + "[limit.default]\nrate = \"1000/h\"\nkey = \"api_key or ip\"\n";
    let proxy = guarded(&upstream, &rules);
    pass_at_once(&proxy, &vec!["k1".to_owned(); 100]);
    assert_eq!(service.asked("k1"), 1);
    // Known keys of one address wait for each other and are all known.
    service.delay_ms.store(20, Ordering::Relaxed);
    let keys: Vec<String> = (0..40).map(|number| format!("key-{number}")).collect();
    let all = keys.iter().map(|key| (key.clone(), "{}"));
    service.clients.lock().unwrap().extend(all);
    let proxy = guarded(
        &upstream,
        &rules.replace("[limit", "unknown = \"deny\"\n[limit"),
    );
    pass_at_once(&proxy, &keys);
}

#[test]
fn known_keys_stay_known_while_the_service_is_away() {
    let (upstream, service) = (
        Upstream::ok(),
        Service::start(&[("k1", "{\"name\":\"acme\"}")]),
    );
    let rules = service.section(", ttl = \"2s\"")
        + "[limit.default]\nrate = \"1000/h\"\nkey = \"api_key or ip\"\n";
    let looked = Looked::start(&format!(
        "upstream = \"{}\"\n{}",
        upstream.url(),
        rules.replace("[limit", "unknown = \"deny\"\n[limit")
    ));
    let proxy = &looked.tidegate;
    assert_eq!(status(proxy, "k1"), 200);
    assert_eq!(looked.json("/api/v1/status")["known_keys"]["keys"], 1);
    let question = |key: &str, live: bool| serde_json::json!({ "url": "/", "headers": [["x-api-key", key]], "live": live });
    for (key, live, expected) in [
        ("k1", true, "known as acme, says the callback"),
        ("made-up", true, "the callback does not say so"),
        ("k1", false, "--live asks the callback"),
    ] {
        let text = looked.post("/api/v1/explain", &question(key, live)).text();
        assert!(text.contains(expected), "{key} {live}: {text}");
    }
    service.broken.store(403, Ordering::Relaxed);
    for number in 0..5 {
        assert_eq!(status(proxy, &format!("made-up-{number}")), 401);
    }
    proxy.wait_for_line("answered neither 200 with a client, nor 401, nor 404");
    assert_eq!(looked.json("/api/v1/status")["known_keys"]["up"], true);
    service.broken.store(503, Ordering::Relaxed);
    for number in 0..5 {
        assert_eq!(status(proxy, &format!("new-{number}")), 401);
    }
    looked.wait_until("it is noticed", |looked| {
        let status = looked.json("/api/v1/status");
        let findings = status["findings"].as_array().unwrap();
        let mut ids = findings.iter().map(|one| one["id"].as_str());
        status["known_keys"]["up"] == false && ids.any(|id| id == Some("key-callback"))
    });
    let before = service.asked("k1");
    eventually("the answer has become too old", || {
        assert_eq!(status(proxy, "k1"), 200);
        service.asked("k1") > before
    });
    assert_eq!(status(proxy, "k1"), 200, "for ten times as long");
    let metrics = looked.get("/metrics").text();
    for sample in [
        "tidegate_key_callback_questions_total{outcome=\"known\"} 1\n",
        "tidegate_key_callback_refused_total{reason=\"busy\"} 0\n",
        "tidegate_key_callback_duration_seconds_count ",
    ] {
        assert!(metrics.contains(sample), "{sample} in {metrics}");
    }
    service.broken.store(0, Ordering::Relaxed);
    looked.wait_until("it is there again", |looked| {
        assert_eq!(status(&looked.tidegate, "k1"), 200);
        looked.json("/api/v1/status")["known_keys"]["up"] == true
    });
    // Too old an answer is none.
    service.broken.store(500, Ordering::Relaxed);
    let short = guarded(
        &upstream,
        &rules
            .replace("2s", "100ms")
            .replace("[limit", "unknown = \"deny\"\n[limit"),
    );
    service.broken.store(0, Ordering::Relaxed);
    assert_eq!(status(&short, "k1"), 200);
    service.broken.store(500, Ordering::Relaxed);
    eventually("the key is not known any more", || {
        status(&short, "k1") == 401
    });
}

#[test]
fn a_request_waits_no_longer_than_the_timeout() {
    let (upstream, service) = (Upstream::ok(), Service::start(&[("k1", "{}")]));
    service.delay_ms.store(20_000, Ordering::Relaxed);
    let section = service.section("").replace("5s", "300ms");
    let rules = format!(
        "{section}{LIMIT}[limit.open]\nrate = \"1000/h\"\n\
         [[route]]\npath = \"/open\"\nlimits = [\"open\"]\n"
    );
    let proxy = guarded(&upstream, &rules);
    let open = proxy.get_with("/open", "X-Api-Key: k1\r\n");
    assert_eq!(open.status, 200);
    assert_eq!(
        service.upstream.connections(),
        0,
        "no limit counts by the key"
    );
    let began = Instant::now();
    assert_eq!(status(&proxy, "k1"), 200, "as one of its address");
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(300), "{took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    let began = Instant::now();
    assert_eq!(status(&proxy, "k1"), 200);
    assert!(
        began.elapsed() < Duration::from_millis(300),
        "it rests a second"
    );
}

#[test]
fn other_proxies_and_their_clients_ask_as_well() {
    let (upstream, service) = (Upstream::ok(), Service::start(&[("k1", "{}")]));
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let rules = format!(
        "{}unknown = \"deny\"\n{LIMIT}[decide]\nlisten = \"{address}\"\n",
        service.section("")
    );
    let _proxy = guarded(&upstream, &rules);

    let mut asking = crate::house::Client::to(address);
    for (key, expected) in [("k1", 200), ("k2", 401)] {
        let answer = asking.ask(format!(
            "GET /auth HTTP/1.1\r\nHost: d\r\nX-Forwarded-Method: GET\r\nX-Forwarded-Uri: /\r\n\
             X-Forwarded-Host: a\r\nX-Forwarded-For: 192.0.2.7\r\nX-Api-Key: {key}\r\n\r\n"
        ));
        assert_eq!(answer.status, expected, "{key}: {}", answer.text());
        assert_eq!(service.asked(key), 1);
    }
}

/// A service with TLS, which knows every key. Its URL.
fn secure_service(certificates: &Certificates) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/verify", listener.local_addr().unwrap());
    let tls = secure(certificates, "good", &[b"http/1.1"], false);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let connection = ServerConnection::new(Arc::clone(&tls)).unwrap();
            std::thread::spawn(move || {
                let mut stream = StreamOwned::new(connection, stream);
                let mut head = [0; 4096];
                while matches!(stream.read(&mut head), Ok(1..)) {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
                }
            });
        }
    });
    url
}

#[test]
fn a_service_with_tls_is_asked_if_its_authority_is_named() {
    let (upstream, certificates) = (Upstream::ok(), Certificates::new());
    let ca = certificates.path("ca.pem").display().to_string();
    let rules = format!(
        "[api_key]\nunknown = \"deny\"\n\
         known = {{ url = \"{}\", timeout = \"5s\", tls = {{ ca = \"{ca}\" }} }}\n{LIMIT}",
        secure_service(&certificates)
    );
    let proxy = guarded(&upstream, &rules);
    assert_eq!([status(&proxy, "k1"), status(&proxy, "k2")], [200, 200]);

    let stranger = guarded(&upstream, &rules.replace("/ca.pem", "/stranger.pem"));
    assert_eq!(status(&stranger, "k1"), 401);
    let line = stranger.wait_for_line("the TLS handshake with the callback failed");
    assert!(line.contains("unknown authority"), "{line}");
    assert!(line.contains("`ca` in [api_key.known.tls]"), "{line}");

    let plain = rules.replace("https://", "http://");
    std::fs::write(proxy.directory.path().join("plain.toml"), &plain).unwrap();
    let words = ["check", "-c", "plain.toml"];
    let output = crate::look::command(proxy.directory.path(), &words);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.contains("`api_key.known.tls` is for a service with TLS"),
        "{said}"
    );
}
