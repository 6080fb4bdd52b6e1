//! Who waits for whom over HTTP/2: clients that go away, answers that come early, readers and
//! servers that are slow or silent.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::Reason;
use http::Response;

use super::{LIMIT, ask_at_once, echo, polite, proxy};
use crate::backend::{Backend, Call, send_all};
use crate::house::{Client, Tidegate, Upstream};
use crate::pace::Pace;
use crate::probe::eventually;

#[test]
fn a_client_that_goes_away_resets_its_stream_and_no_other() {
    let resets = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = resets.clone();
    let backend = Backend::h2c(polite(), move |mut call: Call| {
        let seen = seen.clone();
        async move {
            let path = call.request.uri().path().to_owned();
            if path == "/body" {
                let mut stream = call.head(Response::new(())).unwrap();
                let reason = std::future::poll_fn(|context| stream.poll_reset(context)).await;
                let reason = reason.ok();
                seen.lock().unwrap().push((path, reason));
            } else if path == "/other" {
                tokio::time::sleep(Duration::from_millis(500)).await;
                call.say("still here");
            } else {
                let reason = call.reset().await;
                seen.lock().unwrap().push((path, reason));
            }
        }
    });
    let proxy = proxy(&backend, "");
    let mut other = proxy.connect();
    other.send("GET /other HTTP/1.1\r\nHost: test\r\n\r\n");
    for (request, path) in [
        ("GET /head HTTP/1.1\r\nHost: test\r\n\r\n", "/head"),
        ("GET /body HTTP/1.1\r\nHost: test\r\n\r\n", "/body"),
        (
            "POST /upload HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\nhalf",
            "/upload",
        ),
    ] {
        let before = backend.seen().len();
        let mut client = proxy.connect();
        client.send(request);
        eventually("the server sees it", || backend.seen().len() > before);
        if path == "/body" {
            assert!(client.head().is_some());
        }
        drop(client);
        eventually(path, || {
            resets.lock().unwrap().iter().any(|(seen, _)| seen == path)
        });
    }
    for (path, reason) in resets.lock().unwrap().iter() {
        assert_eq!(*reason, Some(Reason::CANCEL), "{path}");
    }
    assert_eq!(other.answer().text(), "still here");
    assert_eq!(backend.connections(), 1);
}

#[test]
fn an_answer_may_come_before_the_request_has_ended() {
    let backend = Backend::h2c(polite(), |mut call: Call| async move {
        call.say("enough");
        // What still comes is read, as a server does that wants its connection to live.
        let _ = call.read().await;
    });
    let proxy = proxy(&backend, "");
    let mut client = proxy.connect();
    client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\nhalf");
    assert_eq!(client.answer().text(), "enough");
    let refuses = Backend::h2c(polite(), |mut call: Call| async move {
        call.say("too much");
        // After it, and not in place of it.
        tokio::time::sleep(Duration::from_millis(100)).await;
        call.respond.send_reset(Reason::NO_ERROR);
    });
    let proxy = super::proxy(&refuses, "");
    let mut client = proxy.connect();
    client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 10000000\r\n\r\n");
    client.send(vec![b'x'; 1 << 20]);
    assert_eq!(client.answer().text(), "too much");
}

#[test]
fn a_client_waits_to_be_asked_for_its_body() {
    let backend = Backend::h2c(polite(), echo);
    let proxy = proxy(&backend, "");
    let mut client = proxy.connect();
    client
        .send("POST / HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    let asked = client.head().unwrap();
    assert!(asked.starts_with("HTTP/1.1 100"), "{asked}");
    client.send("hello");
    assert_eq!(client.answer().text(), "hello");
    assert!(!backend.seen()[0].headers().contains_key("expect"));
}

#[test]
fn slow_readers_hold_what_fits_a_window_and_stop_nobody() {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let backend = Backend::h2c(polite(), move |mut call: Call| {
        let count = count.clone();
        async move {
            if call.request.uri().path() == "/quick" {
                return call.say("quick");
            }
            let mut stream = call.head(Response::new(())).unwrap();
            let piece = Bytes::from(vec![b'x'; 16 << 10]);
            while send_all(&mut stream, piece.clone()).await {
                count.fetch_add(piece.len(), Ordering::Relaxed);
            }
        }
    });
    let proxy = proxy(&backend, "");
    let mut slow: Vec<Client> = (0..40).map(|_| proxy.connect()).collect();
    for client in &mut slow {
        client.send("GET /endless HTTP/1.1\r\nHost: test\r\n\r\n");
    }
    for client in &mut slow {
        assert!(client.head().is_some());
    }
    let mut last = 0;
    eventually("nobody reads, and the server stops sending", || {
        std::thread::sleep(Duration::from_millis(300));
        let now = sent.load(Ordering::Relaxed);
        std::mem::replace(&mut last, now) == now
    });
    // The kernel's buffers towards the client are not ours: some megabytes for each.
    let each = last / slow.len();
    assert!(each < 8 << 20, "{each} bytes for each slow reader");
    let (start, pace) = (Instant::now(), Pace::begin());
    assert_eq!(proxy.get("/quick").text(), "quick");
    assert!(start.elapsed() < Duration::from_secs(2) + pace.grants());
    assert_eq!(backend.connections(), 1);
    let mut read = vec![0; 1 << 20];
    slow[0].stream.read_exact(&mut read).unwrap();
}

#[test]
fn a_server_that_does_not_read_stops_the_client() {
    let backend = Backend::h2c(polite(), |mut call: Call| async move {
        tokio::time::sleep(Duration::from_secs(3)).await;
        call.say("late");
    });
    let proxy = proxy(&backend, "");
    let mut client = proxy.connect();
    client
        .stream
        .set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 90000000\r\n\r\n");
    let (piece, mut taken) = (vec![b'x'; 64 << 10], 0_usize);
    while taken < 64 << 20 {
        match std::io::Write::write(&mut client.stream, &piece) {
            Ok(count) => taken += count,
            Err(_) => break,
        }
    }
    assert!(taken < 16 << 20, "{taken} bytes went nowhere");
}

#[test]
fn who_does_not_speak_http_2_is_found_out_before_a_request_is_sent() {
    let plain = Upstream::ok();
    let url = plain.url().replace("http://", "h2c://");
    let config = |url: &str| {
        format!(
            "[log]\naccess = \"stdout\"\n{LIMIT}[[route]]\npath = \"/*\"\nupstream = \"api\"\n\
             [upstream.api]\nservers = [\"{url}\"]\nconnect_timeout = \"1s\"\n"
        )
    };
    let proxy = Tidegate::start(&config(&url));
    proxy.get("/").assert_problem(502);
    eventually("its reason is logged", || {
        proxy.stdout().contains("upstream_no_http2")
    });
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("h2c://{}", silent.local_addr().unwrap());
    let proxy = Tidegate::start(&config(&url));
    let (start, pace) = (Instant::now(), Pace::begin());
    let answers = ask_at_once(&proxy, 10, 1, "GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    for answer in answers {
        answer.assert_problem(504);
    }
    assert!(
        start.elapsed() < Duration::from_secs(5) + pace.grants(),
        "they failed together"
    );
}

#[test]
fn a_silent_stream_times_out_and_a_silent_connection_is_left() {
    let backend = Backend::h2c(polite(), |mut call: Call| async move {
        match call.request.uri().path() {
            "/never" => std::future::pending().await,
            "/stalls" => {
                let _stream = call.head(Response::new(()));
                std::future::pending().await
            }
            _ => call.say("ok"),
        }
    });
    let proxy = proxy(&backend, "timeout = \"1s\"\nbody_timeout = \"1s\"");
    proxy.get("/never").assert_problem(504);
    assert_eq!(proxy.get("/").text(), "ok");
    assert_eq!(backend.connections(), 2, "the first was silent");
    let mut client = proxy.connect();
    client.send("GET /stalls HTTP/1.1\r\nHost: test\r\n\r\n");
    let text = String::from_utf8(client.rest()).unwrap();
    assert!(
        text.starts_with("HTTP/1.1 200") && !text.ends_with("0\r\n\r\n"),
        "{text}"
    );
    assert_eq!(proxy.get("/").text(), "ok");
    assert_eq!(backend.connections(), 2);
}

#[test]
fn unused_connections_are_closed_in_time() {
    let backend = Backend::h2c(polite(), echo);
    let proxy = proxy(&backend, "idle_timeout = \"2s\"");
    assert_eq!(proxy.get("/").status, 200);
    assert_eq!(backend.open(), 1);
    eventually("it is closed", || backend.open() == 0);
    assert_eq!(proxy.get("/").status, 200);
    assert_eq!(backend.connections(), 2);
}

#[test]
fn garbage_over_http_2_is_no_answer() {
    let backend = Backend::h2c(polite(), |mut call: Call| async move {
        let length = match call.request.uri().path() {
            "/short" => "9",
            _ => "2",
        };
        let response = Response::builder()
            .header("content-length", length)
            .body(());
        if let Some(mut stream) = call.head(response.unwrap()) {
            let _ = stream.send_data(Bytes::from("four"), true);
        }
    });
    let proxy = proxy(&backend, "");
    for path in ["/short", "/long"] {
        let mut client = proxy.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n"));
        let text = String::from_utf8_lossy(&client.rest()).into_owned();
        let whole = text.contains("content-length: 4") || text.ends_with("0\r\n\r\n");
        assert!(!whole, "{text}");
    }
}
