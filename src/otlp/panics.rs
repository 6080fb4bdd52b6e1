//! A panic of the exporting thread loses the spans it had taken, which are counted as failed.

#![cfg(debug_assertions)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::Exports;
use crate::config::TracingSettings;
use crate::telemetry::spans::{QueueBounds, SpanCounts, SpanKind, SpanQueue, TraceSpan};
use crate::trace::{SpanId, TraceContext, TraceId};
use crate::{clock, config};
use tidegate_core::failpoint::control::arm_for;

/// The name of a span or a service that cannot be exported.
const FAILS: &str = "fails";
const PATIENCE: Duration = Duration::from_secs(20);
const ROOM: QueueBounds = QueueBounds {
    most: 100,
    batch: 2,
};

/// A collector that takes everything, on as many connections as come.
fn collector() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || take_all(stream.unwrap()));
        }
    });
    address
}

fn take_all(mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
        }
        reader.read_exact(&mut vec![0; length]).unwrap();
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(answer).unwrap();
    }
}

fn settings(collector: SocketAddr, service: &str) -> Arc<TracingSettings> {
    let file = format!(
        "upstream = \"http://127.0.0.1:9\"\n[tracing]\nendpoint = \"http://{collector}\"\n\
         service = \"{service}\"\nbatch = 2\nevery = \"10ms\"\n"
    );
    let (config, _) = config::parse("proxy.toml", &file, &|_| None).unwrap();
    config.tracing.unwrap()
}

fn push(queue: &SpanQueue, names: &[&str]) {
    let span = |name: &&str| TraceSpan {
        own: TraceContext {
            trace: TraceId::made(),
            span: SpanId::made(),
            sampled: true,
        },
        parent: None,
        link: None,
        kind: SpanKind::Server,
        name: (*name).to_owned(),
        start_us: 1,
        end_us: 2,
        attributes: Vec::new(),
        failed: false,
    };
    queue.push(names.iter().map(span).collect(), ROOM);
}

/// Waits until so many were exported, and so many have failed.
fn eventually(exports: &Exports, exported: u64, failed: u64) {
    let began = clock::now();
    let wanted = SpanCounts {
        exported,
        failed,
        ..SpanCounts::default()
    };
    while exports.span_counts() != wanted {
        let is_late = began.elapsed() > PATIENCE;
        assert!(!is_late, "{:?}, not {wanted:?}", exports.span_counts());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn ends(exports: &Exports) {
    let began = clock::now();
    exports.finish();
    assert!(began.elapsed() < PATIENCE / 2, "it waits");
}

#[test]
fn a_panic_costs_spans_that_are_counted_and_the_next_are_exported() {
    let _failure = arm_for("otlp.encode", FAILS, u32::MAX);
    let (one, other) = (collector(), collector());
    let exports = Exports::default();
    let queue = exports.queue();
    exports.follow(Some(&settings(one, "one"))).unwrap();
    push(&queue, &["fine"]);
    eventually(&exports, 1, 0);
    let (mut exported, mut failed) = (1, 0);
    for _ in 0..5 {
        // The first batch is out before; what comes behind it has been taken too.
        push(&queue, &["fine", "fine", "fine", FAILS, "fine"]);
        (exported, failed) = (exported + 2, failed + 3);
        eventually(&exports, exported, failed);
        push(&queue, &["fine"]);
        exported += 1;
        eventually(&exports, exported, failed);
    }
    exports.follow(Some(&settings(other, "other"))).unwrap();
    push(&queue, &["fine"]);
    eventually(&exports, exported + 1, failed);
    // No worker is there: the end is soon, and the last ones are known too.
    push(&queue, &[FAILS, "fine"]);
    ends(&exports);
    eventually(&exports, exported + 1, failed + 2);
}

#[test]
fn settings_that_panic_stop_neither_the_next_nor_an_end() {
    let collector = collector();
    let exports = Exports::default();
    let queue = exports.queue();
    let failure = arm_for("otlp.collector", FAILS, u32::MAX);
    exports.follow(Some(&settings(collector, FAILS))).unwrap();
    push(&queue, &["fine"]);
    let began = clock::now();
    while failure.fired() < 3 {
        assert!(began.elapsed() < PATIENCE, "it does not begin anew");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(
        exports.span_counts(),
        SpanCounts::default(),
        "it waits in its queue"
    );
    exports.follow(Some(&settings(collector, "fine"))).unwrap();
    eventually(&exports, 1, 0);
    exports.follow(None).unwrap();
    exports.follow(Some(&settings(collector, FAILS))).unwrap();
    ends(&exports);
}
