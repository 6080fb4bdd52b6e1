//! Upstreams behind TLS: whom the proxy takes for the upstream, what it shows of itself, and what
//! becomes of a request when there is no TLS.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use tokio_rustls::rustls::{HandshakeKind, ServerConnection, StreamOwned};

use crate::admin::Looked;
use crate::backend::{Backend, Call, secure};
use crate::house::{Answer, Tidegate};
use crate::pace::Pace;
use crate::probe::eventually;
use crate::topologies::certificates::Certificates;

const BOTH: &[&[u8]] = &[b"h2", b"http/1.1"];
const LIMIT: &str = "[limit.default]\nrate = \"1_000_000/day\"\nkey = \"global\"\n";

async fn greet(mut call: Call) {
    call.say("h2");
}

/// A proxy in front of `url`; `$NAME` in `tls` is the path of a file.
fn proxy(url: &str, certificates: &Certificates, more: &str) -> Tidegate {
    let mut more = more.to_owned();
    for name in ["ca.pem", "stranger.pem", "client.pem", "client.key"] {
        let path = format!("\"{}\"", certificates.path(name).display());
        more = more.replace(&format!("${name}"), &path);
    }
    Tidegate::start(&format!(
        "[log]\naccess = \"stdout\"\n{LIMIT}[[route]]\npath = \"/*\"\nupstream = \"api\"\n\
         [upstream.api]\nservers = [\"{url}\"]\n{more}\n"
    ))
}

#[track_caller]
fn said(answer: &Answer, text: &str) {
    assert_eq!((answer.status, answer.text().as_str()), (200, text));
}

#[test]
fn the_server_chooses_the_protocol() {
    let certificates = Certificates::new();
    for (offered, http2, want) in [
        (BOTH, "", "h2"),
        (&BOTH[..1], "", "h2"),
        (&BOTH[1..], "", "http/1.1"),
        (&[][..], "", "http/1.1"),
        (BOTH, "http2 = false\n", "http/1.1"),
    ] {
        let backend = Backend::https(secure(&certificates, "good", offered, false), greet);
        let more = format!("{http2}tls = {{ ca = $ca.pem }}");
        let proxy = proxy(&backend.https_url(), &certificates, &more);
        let mut client = proxy.connect();
        for _ in 0..3 {
            said(&client.ask("GET /x HTTP/1.1\r\nHost: a.test\r\n\r\n"), want);
        }
        // Kept; a name may be looked up anew meanwhile, and its servers are then other ones.
        assert!(backend.connections() < 3, "{want}");
        for request in backend.seen() {
            assert_eq!(request.uri(), "https://a.test/x");
        }
    }
}

#[test]
fn an_upgrade_goes_over_http_1_although_the_server_prefers_http_2() {
    let certificates = Certificates::new();
    let backend = Backend::https(secure(&certificates, "good", BOTH, false), greet);
    let proxy = proxy(
        &backend.https_url(),
        &certificates,
        "tls = { ca = $ca.pem }",
    );
    said(&proxy.get("/"), "h2");
    let mut client = proxy.connect();
    let agreed = client.ask(
        "GET /chat HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    );
    assert_eq!(agreed.status, 101);
    client.send("over TLS");
    client.end_writing();
    assert_eq!(client.rest(), b"over TLS");
    said(&proxy.get("/"), "h2");
}

#[test]
fn whoever_is_not_the_upstream_gets_no_request() {
    let certificates = Certificates::new();
    for (shown, tls, label) in [
        (
            "good",
            "tls = { ca = $stranger.pem }",
            "upstream_tls_unknown_ca",
        ),
        ("good", "", "upstream_tls_unknown_ca"),
        ("other", "tls = { ca = $ca.pem }", "upstream_tls_other_name"),
        ("expired", "tls = { ca = $ca.pem }", "upstream_tls_expired"),
        (
            "good",
            "tls = { ca = $ca.pem, name = \"another.test\" }",
            "upstream_tls_other_name",
        ),
    ] {
        let backend = Backend::https(secure(&certificates, shown, BOTH, false), greet);
        let proxy = proxy(&backend.https_url(), &certificates, tls);
        proxy.get("/").assert_problem(502);
        assert!(backend.seen().is_empty());
        logged(&proxy, label);
    }
}

#[track_caller]
fn logged(proxy: &Tidegate, label: &str) {
    eventually(label, || proxy.stdout().contains(label));
}

#[test]
fn the_name_of_a_certificate_may_be_said_and_verifying_be_left() {
    let certificates = Certificates::new();
    for (shown, tls) in [
        ("other", "tls = { ca = $ca.pem, name = \"other.test\" }"),
        ("expired", "tls = { verify = false }"),
        ("other", "tls = { verify = false }"),
    ] {
        let backend = Backend::https(secure(&certificates, shown, BOTH, false), greet);
        let proxy = proxy(&backend.https_url(), &certificates, tls);
        said(&proxy.get("/"), "h2");
    }
    let backend = Backend::https(secure(&certificates, "good", BOTH, false), greet);
    let by_address = format!("https://{}", backend.address);
    let proxy = proxy(&by_address, &certificates, "tls = { ca = $ca.pem }");
    said(&proxy.get("/"), "h2");
}

#[test]
fn a_server_that_wants_a_certificate_gets_ours() {
    let certificates = Certificates::new();
    for offered in [BOTH, &BOTH[1..]] {
        let backend = Backend::https(secure(&certificates, "good", offered, true), greet);
        let shown = "tls = { ca = $ca.pem, cert = $client.pem, key = $client.key }";
        let with = proxy(&backend.https_url(), &certificates, shown);
        assert_eq!(with.get("/").status, 200);
        let without = proxy(
            &backend.https_url(),
            &certificates,
            "tls = { ca = $ca.pem }",
        );
        without.get("/").assert_problem(502);
        logged(&without, "upstream_tls_refused");
    }
}

/// An upstream behind TLS that tells in each response whether the session of an earlier connection was
/// resumed, and then closes the connection. Its thread ends with the listener's process.
fn telling_resumption(certificates: &Certificates) -> String {
    let offers = secure(certificates, "good", &BOTH[1..], false);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let session = ServerConnection::new(offers.clone()).unwrap();
            let mut secured = StreamOwned::new(session, stream);
            let mut head = [0; 4096];
            if secured.read(&mut head).is_ok_and(|read| read > 0) {
                let kind = secured.conn.handshake_kind();
                let word = match kind == Some(HandshakeKind::Resumed) {
                    true => "resumed",
                    false => "whole",
                };
                let length = word.len();
                let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length";
                let _ = write!(secured, "{head}: {length}\r\n\r\n{word}");
                secured.conn.send_close_notify();
                let _ = secured.flush();
            }
        }
    });
    format!("https://localhost:{port}")
}

#[test]
fn sessions_are_resumed_unless_the_file_says_otherwise() {
    let certificates = Certificates::new();
    let url = telling_resumption(&certificates);
    for (more, second) in [("", "resumed"), (", resume = false", "whole")] {
        let tls = format!("tls = {{ ca = $ca.pem{more} }}\n[server]\nworkers = 1");
        let proxy = proxy(&url, &certificates, &tls);
        said(&proxy.get("/"), "whole");
        said(&proxy.get("/"), second);
    }
}

#[test]
fn a_server_without_tls_is_502_in_time() {
    let certificates = Certificates::new();
    let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", plain.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in plain.incoming().map_while(Result::ok) {
            let mut bytes = [0; 4096];
            if matches!(stream.read(&mut bytes), Ok(1..)) {
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            }
        }
    });
    let spoken_to = proxy(&url, &certificates, "tls = { ca = $ca.pem }");
    spoken_to.get("/").assert_problem(502);
    logged(&spoken_to, "upstream_tls_plain");
    // One that takes the connection and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", silent.local_addr().unwrap());
    let more = "connect_timeout = \"300ms\"\ntls = { ca = $ca.pem }";
    let waiting = proxy(&url, &certificates, more);
    let (start, pace) = (std::time::Instant::now(), Pace::begin());
    waiting.get("/").assert_problem(504);
    assert!(start.elapsed() < Duration::from_secs(3) + pace.grants());
}

#[test]
fn an_answer_that_was_cut_off_is_never_complete() {
    let certificates = Certificates::new();
    let backend = Backend::https(secure(&certificates, "good", &BOTH[1..], false), greet);
    let proxy = proxy(
        &backend.https_url(),
        &certificates,
        "tls = { ca = $ca.pem }",
    );
    let mut client = proxy.connect();
    client.send("GET /cut HTTP/1.1\r\nHost: test\r\n\r\n");
    let text = String::from_utf8(client.rest()).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert!(!text.ends_with("0\r\n\r\n"), "{text}");
}

/// An upstream behind TLS that sends `answer` to each request, and ends the connection without
/// close_notify. Its thread ends with the listener's process.
fn cutting(certificates: &Certificates, answer: &'static str) -> String {
    let offers = secure(certificates, "good", &BOTH[1..], false);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let session = ServerConnection::new(offers.clone()).unwrap();
            let mut secured = StreamOwned::new(session, stream);
            let mut head = [0; 4096];
            if secured.read(&mut head).is_ok_and(|read| read > 0) {
                let _ = secured.write_all(answer.as_bytes());
                let _ = secured.flush();
            }
        }
    });
    format!("https://localhost:{port}")
}

#[test]
fn an_answer_that_ends_without_close_notify_is_truncated_unless_its_length_came() {
    let certificates = Certificates::new();
    let whole = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
    let short = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc";
    let open = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc";
    for (answer, truncated) in [(whole, 0), (short, 1), (open, 1)] {
        let url = cutting(&certificates, answer);
        let looked = Looked::start(&format!(
            "[log]\naccess = \"stdout\"\n[[route]]\npath = \"/*\"\nupstream = \"api\"\nlimits = []\n\
             [upstream.api]\nservers = [\"{url}\"]\ntls = {{ ca = \"{}\" }}\n",
            certificates.path("ca.pem").display()
        ));
        let mut client = looked.tidegate.connect();
        client.send("GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        let text = String::from_utf8(client.rest()).unwrap();
        assert!(text.starts_with("HTTP/1.1 200"), "{answer:?}: {text}");
        assert!(text.contains("abc"), "{answer:?}: {text}");
        let is_complete = text.ends_with("0\r\n\r\n") || text.contains("ength: 3\r\n");
        assert_eq!(is_complete, truncated == 0, "{answer:?}: {text}");
        let labels = format!("upstream=\"api\",server=\"{url}\"");
        let sample = format!("tidegate_upstream_truncated_total{{{labels}}} {truncated}\n");
        eventually(&format!("{answer:?}: {sample} is counted"), || {
            looked.get("/metrics").text().contains(&sample)
        });
    }
}
