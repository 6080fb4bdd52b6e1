//! Places where tests have the thread panic that exports spans, none of which is in a program that
//! is shipped; and what becomes of it: spans that are counted as failed, and another beginning.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::config::TracingSettings;
use crate::telemetry::spans::Span;

/// What a span or a service is called that nobody can export.
const TRAP: &str = "trap";
/// How often settings were a trap.
static SPRUNG: AtomicU32 = AtomicU32::new(0);

/// As a message is made of them.
pub(super) fn at_spans(spans: &[Span]) {
    assert!(
        spans.iter().all(|span| span.name != TRAP),
        "a trap in a span"
    );
}

/// As another collector is about to be used.
pub(super) fn at_settings(settings: &TracingSettings) {
    if settings.service == TRAP {
        SPRUNG.fetch_add(1, Ordering::Relaxed);
        panic!("a trap in the settings");
    }
}

mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::otlp::Exports;
    use crate::telemetry::spans::{Fates, Kind, Queue, Room};
    use crate::trace::{Context, SpanId, TraceId};
    use crate::{clock, config};

    const PATIENCE: Duration = Duration::from_secs(20);
    const ROOM: Room = Room {
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

    fn push(queue: &Queue, names: &[&str]) {
        let span = |name: &&str| Span {
            own: Context {
                trace: TraceId::made(),
                span: SpanId::made(),
                sampled: true,
            },
            parent: None,
            link: None,
            kind: Kind::Server,
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
        let wanted = Fates {
            exported,
            failed,
            ..Fates::default()
        };
        while exports.fates() != wanted {
            let is_late = began.elapsed() > PATIENCE;
            assert!(!is_late, "{:?}, not {wanted:?}", exports.fates());
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
        let (one, other) = (collector(), collector());
        let exports = Exports::default();
        let queue = exports.queue();
        exports.follow(Some(&settings(one, "one"))).unwrap();
        push(&queue, &["fine"]);
        eventually(&exports, 1, 0);
        let (mut exported, mut failed) = (1, 0);
        for _ in 0..5 {
            // The first batch is out before; what comes behind it has been taken too.
            push(&queue, &["fine", "fine", "fine", "trap", "fine"]);
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
        push(&queue, &["trap", "fine"]);
        ends(&exports);
        eventually(&exports, exported + 1, failed + 2);
    }

    #[test]
    fn settings_that_panic_stop_neither_the_next_nor_an_end() {
        let collector = collector();
        let exports = Exports::default();
        let queue = exports.queue();
        exports.follow(Some(&settings(collector, TRAP))).unwrap();
        push(&queue, &["fine"]);
        let began = clock::now();
        while SPRUNG.load(Ordering::Relaxed) < 3 {
            assert!(began.elapsed() < PATIENCE, "it does not begin anew");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(exports.fates(), Fates::default(), "it waits in its queue");
        exports.follow(Some(&settings(collector, "fine"))).unwrap();
        eventually(&exports, 1, 0);
        exports.follow(None).unwrap();
        exports.follow(Some(&settings(collector, TRAP))).unwrap();
        ends(&exports);
    }
}
