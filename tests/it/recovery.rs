//! Servers that fail and come back: killed, frozen, resetting, slow, flapping; and what their
//! clients notice of it.

pub mod backend;
mod ejection;
mod health;
mod outage;
mod retries;
mod whole;

use std::io::Write;
use std::net::TcpStream;

use socket2::SockRef;

use crate::house::{Answer, Tidegate, Upstream};

const WIDE: &str = "[limit.default]\nrate = \"1_000_000/day\"\nkey = \"global\"\n";

/// A proxy before these servers, with these lines in `[upstream.api]` and on its route.
fn before(servers: &[String], api: &str, route: &str) -> Tidegate {
    Tidegate::start(&format!(
        "[server]\nworkers = 1\n[upstream.api]\nservers = {servers:?}\n{api}\n\
         [[route]]\npath = \"/*\"\nupstream = \"api\"\n{route}\n{WIDE}"
    ))
}

/// An upstream that answers with its name.
fn named(name: &'static str) -> Upstream {
    Upstream::start(move |_, stream| answer(stream, 200, name))
}

/// Answers with a status and a text.
fn answer(stream: &mut TcpStream, status: u16, text: &str) -> bool {
    answer_on(stream, status, text)
}

fn answer_on(stream: &mut impl Write, status: u16, text: &str) -> bool {
    let length = text.len();
    let head = format!("HTTP/1.1 {status} Said\r\ncontent-length: {length}\r\n\r\n{text}");
    stream.write_all(head.as_bytes()).is_ok()
}

/// Closes without an answer, by a reset.
fn reset(stream: &TcpStream) -> bool {
    let _ = SockRef::from(stream).set_linger(Some(std::time::Duration::ZERO));
    false
}

/// One `POST`, which may not be sent twice.
fn post(proxy: &Tidegate) -> Answer {
    let mut client = proxy.connect();
    client.ask("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\nhi")
}

fn remaining(answer: &Answer) -> u64 {
    let remaining = answer.header("x-ratelimit-remaining").unwrap();
    remaining.parse().unwrap()
}
