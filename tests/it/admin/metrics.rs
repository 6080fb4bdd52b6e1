//! `/metrics`: every series from the start, the right numbers, and a form that real parsers read.

use super::{Looked, limited};
use crate::house::Upstream;
use crate::support::RedisServer;

/// The value of a sample, by all that stands before it.
fn sample(text: &str, name: &str) -> Option<f64> {
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line?.parse().ok()
}

#[test]
fn every_series_is_there_from_the_start_and_counts() {
    let backend = Upstream::ok();
    let looked = Looked::start(&limited(&backend));
    let read = || looked.get("/metrics").text();
    let series = [
        "tidegate_http_requests_total{route=\"login\",method=\"GET\",code=\"200\"}",
        "tidegate_http_requests_total{route=\"login\",method=\"GET\",code=\"429\"}",
        "tidegate_http_request_duration_seconds_count{route=\"login\"}",
        "tidegate_decisions_total{limit=\"login\",decision=\"allowed\",source=\"store\"}",
        "tidegate_decisions_total{limit=\"login\",decision=\"denied\",source=\"store\"}",
        "tidegate_decisions_total{limit=\"tried\",decision=\"shadow_denied\",source=\"store\"}",
    ];
    let text = read();
    for name in series {
        assert_eq!(sample(&text, name), Some(0.0), "{name}");
    }
    for _ in 0..5 {
        looked.tidegate.get("/login");
    }
    let text = read();
    let counted = series.map(|name| sample(&text, name).unwrap());
    assert_eq!(counted, [2.0, 3.0, 5.0, 2.0, 3.0, 4.0]);
    assert_eq!(
        sample(&text, "tidegate_store_up{store=\"memory\"}"),
        Some(1.0)
    );
    assert_eq!(sample(&text, "tidegate_degraded"), Some(0.0));
    assert!(sample(&text, "process_resident_memory_bytes").unwrap() > 1e6);
    // Whoever asks with a method or for a path that nobody knows makes no series.
    let lines = text.lines().count();
    for number in 0..20 {
        let mut client = looked.tidegate.connect();
        client.ask(format!(
            "ODD{number} /{number} HTTP/1.1\r\nHost: test\r\n\r\n"
        ));
    }
    let grown = read().lines().count() - lines;
    assert!(grown <= 2, "{grown} more lines");
}

/// `local` means that the store is away, which concerns no request that asks no store.
#[test]
fn a_bypass_does_not_look_like_an_outage() {
    let backend = Upstream::ok();
    let exempt = "[limit.login]\nexempt = [\"127.0.0.1\"]";
    let looked = Looked::start(&limited(&backend).replace("[limit.login]", exempt));
    looked.tidegate.get("/login");
    let text = looked.get("/metrics").text();
    let name = "tidegate_decisions_total{limit=\"login\",decision=\"bypassed\",source=\"store\"}";
    assert_eq!(sample(&text, name), Some(1.0), "{text}");
    assert!(!text.contains("source=\"local\""), "{text}");
}

/// Denials that a worker knows to hold still are told apart from those that the store was asked.
#[test]
fn who_decided_is_told() {
    let (backend, redis) = (Upstream::ok(), RedisServer::start());
    let store = format!(
        "url = \"redis://127.0.0.1:{}\"\ntimeout = \"2s\"",
        redis.port()
    );
    let looked = Looked::start(&format!("{}\n[store]\n{store}\n", limited(&backend)));
    let count = |decision: &str, source: &str| {
        let name = format!(
            "tidegate_decisions_total{{limit=\"login\",decision=\"{decision}\",source=\"{source}\"}}"
        );
        sample(&looked.get("/metrics").text(), &name)
    };
    assert_eq!(count("denied", "cache"), Some(0.0));
    assert_eq!(count("allowed", "lease"), Some(0.0));
    // One connection has one worker.
    let mut client = looked.tidegate.connect();
    for expected in [200, 200, 429, 429, 429] {
        let answer = client.ask("GET /login HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(answer.status, expected);
    }
    assert_eq!(count("allowed", "store"), Some(2.0));
    assert_eq!(
        (count("denied", "store"), count("denied", "cache")),
        (Some(1.0), Some(2.0))
    );
}

#[test]
fn an_upload_that_its_client_breaks_off_is_no_failure_of_the_server() {
    // It never answers.
    let backend = Upstream::start(|_, _| {
        std::thread::park_timeout(crate::house::PATIENCE);
        false
    });
    let looked = Looked::start(&limited(&backend));
    let upload = "POST /login HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n";
    assert_eq!(looked.tidegate.connect().ask(upload).status, 400);
    let server = &looked.json("/api/v1/upstreams")["upstreams"][0]["servers"][0];
    assert_eq!(server["failures"], 0, "{server}");
}

#[test]
fn requests_without_an_answer_are_counted() {
    // It never answers.
    let backend = Upstream::start(|_, _| {
        std::thread::park_timeout(crate::house::PATIENCE);
        false
    });
    let looked = Looked::start(&limited(&backend));
    let count = |looked: &Looked, reason: &str| {
        let name = format!("tidegate_http_requests_unanswered_total{{reason=\"{reason}\"}}");
        sample(&looked.get("/metrics").text(), &name)
    };
    for reason in ["unreadable", "client_left", "panic"] {
        assert_eq!(count(&looked, reason), Some(0.0), "{reason}");
    }
    let mut client = looked.tidegate.connect();
    assert_eq!(client.ask("GET /\x01 HTTP/1.1\r\n\r\n").status, 400);
    looked.wait_until("it is counted", |looked| {
        count(looked, "unreadable") == Some(1.0)
    });
    let mut client = looked.tidegate.connect();
    client.send("GET /login HTTP/1.1\r\nHost: test\r\n\r\n");
    looked.wait_until("it is there", |_| backend.connections() > 0);
    drop(client);
    looked.wait_until("it has left", |looked| {
        count(looked, "client_left") == Some(1.0)
    });
    assert_eq!(count(&looked, "panic"), Some(0.0));
}

#[test]
fn both_forms_are_offered() {
    let backend = Upstream::ok();
    let looked = Looked::start(&limited(&backend));
    let asked = |accept: &str| {
        let lines = format!("Host: localhost\r\nAccept: {accept}\r\n");
        looked.get_with("/metrics", &lines)
    };
    let open = asked("application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
    assert!(
        open.header("content-type")
            .unwrap()
            .starts_with("application/openmetrics-text")
    );
    assert!(open.text().ends_with("# EOF\n"));
    let plain = asked("text/plain");
    assert!(
        plain
            .header("content-type")
            .unwrap()
            .starts_with("text/plain; version=0.0.4")
    );
    assert!(!plain.text().contains("# EOF"));
}
