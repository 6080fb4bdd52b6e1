//! Tests that a panic ends only the request, connection or task in which it happens.

#![cfg(debug_assertions)]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use http::Request;

use super::control;
use super::harness::{Harness, PATIENCE, on_a_runtime, panics_in, plain, run_alone};
use super::socket_file::control_paths;
use crate::config::Control;
use crate::{clock, telemetry};
use tidegate_core::failpoint::control::{Failure, arm};

/// A request that hyper serves.
fn with_body(path: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab"
    )
}

/// The statuses of two requests on one connection; 0 means that the stream was reset.
async fn over_http2(stream: TcpStream) -> Vec<u16> {
    stream.set_nonblocking(true).unwrap();
    let stream = tokio::net::TcpStream::from_std(stream).unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(connection);
    let mut statuses = Vec::new();
    for _ in 0..2 {
        let mut sender = sender.clone().ready().await.unwrap();
        let request = Request::get("http://test/").body(()).unwrap();
        let (response, _) = sender.send_request(request, true).unwrap();
        let status = async {
            let response = response.await.ok()?;
            let status = response.status().as_u16();
            let mut body = response.into_body();
            while let Some(data) = body.data().await {
                data.ok()?;
            }
            Some(status)
        };
        statuses.push(status.await.unwrap_or(0));
    }
    driver.abort();
    statuses
}

const TIMES: usize = 20;

#[test]
fn a_panic_ends_its_request_and_nothing_else() {
    if let Some(output) = run_alone("server::panics::a_panic_ends_its_request_and_nothing_else") {
        let panics = panics_in(&output);
        assert_eq!(panics.len(), 3 * TIMES + 2 * TIMES + 1, "{panics:?}");
        assert!(panics[0].contains("worker-0") && panics[0].contains("failpoint.rs"));
        return;
    }
    let harness = Harness::open("");
    harness.is_well();
    let local = Ipv4Addr::LOCALHOST;
    let mut other = harness.connect_from(local);
    for _ in 0..TIMES {
        for request in [plain("/"), with_body("/")] {
            let _failure = arm("server.handled", 1);
            let answer = harness.send(local, &request);
            assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
            assert!(answer.contains("problem+json"), "{answer}");
        }
        // The head may be sent. The content must not look complete.
        for request in [plain("/"), with_body("/")] {
            let _failure = arm("proxy.body", 1);
            let answer = harness.send(local, &request);
            assert!(!answer.ends_with("ok"), "{answer}");
        }
        let _failure = arm("server.handled", 1);
        let stream = harness.connect_from(local);
        assert_eq!(on_a_runtime(over_http2(stream)), [500, 200]);
    }
    let stream = harness.connect_from(local);
    let failure = arm("proxy.body", 1);
    let statuses = on_a_runtime(over_http2(stream));
    assert_eq!(statuses, [0, 200], "only the stream is lost");
    drop(failure);
    assert_eq!(harness.counted(), 3 * TIMES as u64);
    assert_eq!(telemetry::panics::panics(), 5 * TIMES as u64 + 1);
    other.write_all(plain("/").as_bytes()).unwrap();
    let mut answer = String::new();
    other.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    harness.close().unwrap();
}

#[test]
fn a_panic_ends_its_connection_and_nothing_else() {
    if let Some(output) = run_alone("server::panics::a_panic_ends_its_connection_and_nothing_else")
    {
        assert_eq!(panics_in(&output).len(), 2 * TIMES);
        return;
    }
    let harness = Harness::open("");
    for _ in 0..TIMES {
        for name in ["server.connection", "server.accept"] {
            let _failure = arm(name, 1);
            assert_eq!(harness.send(Ipv4Addr::LOCALHOST, &plain("/")), "");
        }
    }
    harness.is_well();
    assert_eq!(harness.counted(), 0);
    harness.close().unwrap();
}

#[test]
fn what_goes_on_beside_the_workers_begins_anew() {
    let name = "server::panics::what_goes_on_beside_the_workers_begins_anew";
    if let Some(output) = run_alone(name) {
        assert_eq!(panics_in(&output).len(), 4 * 5);
        return;
    }
    let reloads = arm("server.reload", 5);
    let others = ["server.control", "server.certificates", "server.acme"].map(|name| arm(name, 5));
    let folder = tempfile::tempdir().unwrap();
    let file = tls_in(folder.path());
    let harness = Harness::open(&file);
    for more in (0..5).rev() {
        // The requester gets an answer, and the reload is lost.
        harness.reload(&file);
        assert_eq!(reloads.left(), more);
    }
    let began = clock::now();
    while others.iter().map(Failure::left).sum::<u32>() > 0 {
        assert!(began.elapsed() < PATIENCE, "{others:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    let socket = &control_paths(&harness.file, &Control::Derived);
    let answered = || {
        let mut all = socket.iter().filter_map(|place| command(place).ok());
        all.find(|answer| !answer.is_empty())
    };
    let answer = loop {
        assert!(began.elapsed() < PATIENCE, "no control socket");
        if let Some(answer) = answered() {
            break answer;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(answer.contains("\"ok\":true"), "{answer}");
    harness.is_well();
    harness.close().unwrap();
}

/// Writes a self-signed certificate. Returns the lines of a configuration that uses it.
fn tls_in(folder: &Path) -> String {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
    let (pem, key) = (folder.join("a.pem"), folder.join("a.key"));
    std::fs::write(&pem, cert.pem()).unwrap();
    std::fs::write(&key, signing_key.serialize_pem()).unwrap();
    let (pem, key) = (pem.display(), key.display());
    format!(
        "tls = {{ listen = \"127.0.0.1:0\", \
         certificates = {{ cert = \"{pem}\", key = \"{key}\" }} }}"
    )
}

/// The answer to `tidegate reload`.
fn command(socket: &Path) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let version = control::VERSION;
    writeln!(stream, "{{\"version\":{version},\"command\":\"reload\"}}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn a_worker_that_is_lost_ends_the_house() {
    if let Some(output) = run_alone("server::panics::a_worker_that_is_lost_ends_the_house") {
        assert_eq!(panics_in(&output).len(), 1);
        return;
    }
    let harness = Harness::open("");
    harness.is_well();
    let _failure = arm("server.worker_reload", 1);
    harness.reload("");
    on_a_runtime(harness.handles.heartbeats.wait_for_lost_worker());
    assert_eq!(
        harness.close().unwrap_err().to_string(),
        "worker 0: a panic"
    );
}
