//! A panic in the admin loses one request, or one reading of the counters, and no more.

#![cfg(debug_assertions)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::admin::Admin;
use crate::clock;
use crate::server::harness::{Harness, PATIENCE, exchange, panics_in, plain, run_alone};
use crate::telemetry::panics::{REST, panics};
use tidegate_core::failpoint::control::arm;

const TIMES: usize = 20;
const FILE: &str = "admin = \"127.0.0.1:0\"";

fn begin(harness: &Harness) -> Admin {
    let settings = harness
        .handles
        .introspection
        .inspect(|snapshot| snapshot.config.admin.clone());
    Admin::spawn(
        &settings.unwrap().unwrap(),
        None,
        harness.handles.clone(),
        &mut Vec::new(),
        false,
    )
    .unwrap()
}

fn ask(admin: &Admin, place: &str) -> String {
    let stream = TcpStream::connect(admin.address).unwrap();
    let request = plain(place).replace("Host: test", "Host: localhost");
    exchange(stream, &request)
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let began = clock::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(REST / 5);
    }
}

#[test]
fn a_panic_costs_a_request_or_a_look_and_nothing_else() {
    let name = "admin::panics::a_panic_costs_a_request_or_a_look_and_nothing_else";
    if let Some(output) = run_alone(name) {
        let lines = panics_in(&output);
        assert!(lines.iter().all(|line| line.contains("admin")), "{lines:?}");
        assert!(lines.len() >= TIMES + 5, "{lines:?}");
        return;
    }
    let harness = Harness::open(FILE);
    harness.is_well();
    let admin = begin(&harness);
    let is_well = || ask(&admin, "/healthz").starts_with("HTTP/1.1 200 ");
    let mut kept = TcpStream::connect(admin.address).unwrap();
    for _ in 0..TIMES {
        let _failure = arm("admin.request", 1);
        let answer = ask(&admin, "/healthz");
        assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
        assert!(answer.contains("problem+json"), "{answer}");
    }
    kept.write_all(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    kept.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200 "), "{answer}");

    let (began, before) = (clock::now(), panics());
    let failure = arm("admin.look", u32::MAX);
    harness.reload(&format!("{FILE} # again"));
    eventually("it looks again and again", || panics() >= before + 5);
    assert!(is_well());
    harness.is_well();
    drop(failure);
    harness.reload(FILE);
    let marked = || ask(&admin, "/api/v1/traffic").contains("\"reload\"");
    eventually("it looks as before", marked);
    // The counters are read ten times a second in one way, and once in another.
    let most = began.elapsed().as_millis() / REST.as_millis() + 10;
    assert!(u128::from(panics() - before) < most, "it never rests");
    // The admin still follows the configuration.
    harness.reload("");
    let gone = || TcpStream::connect(admin.address).is_err();
    eventually("nobody listens any more", gone);
    harness.close().unwrap();
    admin.end();
}
