//! The formats of lines, and which lines are written.

use std::net::IpAddr;

use super::*;
use crate::limit::{DeniedKey, KeyHash};
use crate::telemetry::log_writer::tests::Faulty;
use crate::telemetry::metrics::usage::UsageOutcome;
use crate::usage::estimate::Estimate;
use crate::usage::tokens::TokenCounts;

/// Calls `write` with an entry.
fn with_entry(write: impl FnOnce(&AccessEntry<'_>)) {
    write(&AccessEntry {
        unix_us: 1_795_214_226_123_456,
        duration: Duration::from_micros(234),
        client: IpAddr::from([1, 2, 3, 4]),
        method: &http::Method::POST,
        host: Some("api.example:80"),
        path: "/login\"\n\u{e9}",
        protocol: "HTTP/2.0",
        status: 429,
        bytes: 7,
        truncated: None,
        route: Some("login"),
        door: None,
        outcome: Outcome::Denied,
        denied_by: &[("per_ip".into(), Some(DeniedKey::Hash(KeyHash([0xfb; 16]))))],
        would_deny: &["search".into()],
        reason: None,
        delayed: Duration::ZERO,
        failure: None,
        grpc_status: None,
        usage: None,
        request_id: None,
        trace_id: None,
    });
}

#[test]
fn each_format_keeps_a_request_on_one_line() {
    let line = |write: fn(&mut Vec<u8>, &AccessEntry<'_>)| {
        let mut out = Vec::new();
        with_entry(|entry| write(&mut out, entry));
        String::from_utf8(out).unwrap()
    };
    assert_eq!(
        line(text),
        "22:37:06.123 POST /login%22%0A%C3%A9 429 0.2ms 1.2.3.4 denied by per_ip (key -_v7-_v7) \
         would deny search\n"
    );
    assert_eq!(
        line(combined),
        "1.2.3.4 - - [20/Nov/2026:22:37:06 +0000] \"POST /login%22%0A%C3%A9 HTTP/2.0\" 429 7 \
         \"-\" \"-\"\n"
    );
    assert_eq!(
        line(json_line),
        "{\"time\":\"2026-11-20T22:37:06.123Z\",\"client\":\"1.2.3.4\",\"method\":\"POST\",\
         \"host\":\"api.example:80\",\"path\":\"/login\\\"\\n\u{e9}\",\"status\":429,\"bytes\":7,\
         \"duration_us\":234,\"route\":\"login\",\
         \"outcome\":\"denied\",\"denied_by\":[{\"limit\":\"per_ip\",\
         \"key\":\"-_v7-_v7\"}],\"would_deny\":[\"search\"]}\n"
    );
}

#[test]
fn a_call_of_a_model_server_has_its_tokens() {
    let estimate = Estimate {
        tokens: TokenCounts {
            input: 30,
            output: 1000,
            ..TokenCounts::default()
        },
        names_maximum: true,
    };
    let denied = LoggedUsage {
        model: "gpt-5".into(),
        requested_model: None,
        estimate,
        reserved: 1030,
        charged: TokenCounts::default(),
        outcome: None,
    };
    let exact = LoggedUsage {
        model: "gpt-5-2026".into(),
        requested_model: Some("gpt-5".into()),
        charged: TokenCounts {
            input: 22,
            output: 178,
            ..TokenCounts::default()
        },
        outcome: Some(UsageOutcome::Exact),
        ..denied.clone()
    };
    let line = |usage: &LoggedUsage, write: fn(&mut Vec<u8>, &AccessEntry<'_>)| {
        let mut out = Vec::new();
        with_entry(|entry| {
            let usage = Some(usage);
            write(&mut out, &AccessEntry { usage, ..*entry });
        });
        String::from_utf8(out).unwrap()
    };
    assert!(line(&denied, text).ends_with(" tokens 0+0 of 1030 denied\n"));
    let reserve = "\"reserved\":1030,\"reserved_input\":30,\"named_maximum\":true";
    let expected = format!(
        "\"usage\":{{\"model\":\"gpt-5\",\"input\":0,\"cached\":0,\"cache_write\":0,\
         \"output\":0,{reserve},\"charged\":0,\"outcome\":\"denied\"}}}}\n"
    );
    let found = line(&denied, json_line);
    assert!(found.ends_with(&expected), "{found}");
    let expected = format!(
        "\"usage\":{{\"model\":\"gpt-5-2026\",\"requested_model\":\"gpt-5\",\"input\":22,\
         \"cached\":0,\"cache_write\":0,\"output\":178,{reserve},\"charged\":200,\
         \"outcome\":\"exact\"}}}}\n"
    );
    let found = line(&exact, json_line);
    assert!(found.ends_with(&expected), "{found}");
}

#[test]
fn a_failure_keeps_the_spaces_of_its_sentence() {
    let failure = UpstreamFailure {
        server: "http://10.0.0.1:80".to_owned(),
        error: "cannot connect:\nrefused\u{e9}".to_owned(),
    };
    let mut out = Vec::new();
    with_entry(|entry| {
        let failure = Some(&failure);
        text(&mut out, &AccessEntry { failure, ..*entry });
    });
    let line = String::from_utf8(out).unwrap();
    let expected = " (http://10.0.0.1:80: cannot connect:?refused?) would deny search\n";
    assert!(line.ends_with(expected), "{line}");
}

#[test]
fn a_tenth_of_what_is_allowed_is_a_tenth() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let target = LogTarget::File(file.path().to_owned());
    let settings = AccessLogSettings {
        target,
        sample_allowed: 0.1,
        ..AccessLog::off().settings
    };
    let log = Arc::new(AccessLog::open(settings).unwrap()).buffer();
    let logged = (0..1000).filter(|_| log.wants(Outcome::Allowed)).count();
    assert_eq!(logged, 100);
    assert!(log.wants(Outcome::Denied));
}

#[test]
fn lines_that_are_not_written_count_as_dropped() {
    let mut log = LogOutput::default();
    let file = Faulty::with_room(1000);
    log.write_to(Box::new(file.clone())).unwrap();
    for text in ["one\n", "trap\n", "two\n"] {
        log.send(text.as_bytes().to_vec());
    }
    let dropped = Arc::clone(&log.dropped);
    drop(log);
    assert_eq!(file.text(), "one\ntwo\n");
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}

#[test]
fn buffered_lines_are_written_when_the_log_ends() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let target = LogTarget::File(file.path().to_owned());
    let named = tempfile::NamedTempFile::new().unwrap();
    let settings = AccessLogSettings {
        target,
        named: vec![LogTarget::File(named.path().to_owned())],
        ..AccessLog::off().settings
    };
    let log = Arc::new(AccessLog::open(settings.clone()).unwrap());
    assert!(log.is_still(&settings));
    let buffer = log.buffer();
    with_entry(|entry| buffer.record(entry));
    buffer.record_named(0, b"a line");
    buffer.record_named(1, b"of no log");
    std::fs::remove_file(named.path()).unwrap();
    assert!(!log.is_still(&settings));
    std::fs::write(named.path(), "").unwrap();
    assert!(!log.is_still(&settings));
    drop((buffer, log));
    assert_eq!(count(&std::fs::read(file.path()).unwrap()), 1);
}

#[test]
fn shadow_decisions_are_logged_once_a_minute_if_any_was_a_denial() {
    let summary = ShadowSummary::default();
    for request in 0..10 {
        summary.note(&"search".into(), Role::Shadow, request < 3);
        summary.note(&"search".into(), Role::Candidate, false);
    }
    let mut period = summary.0.lock().unwrap();
    let start = period.began;
    let mut due = |at| period.take_due(at, SHADOW_PERIOD);
    assert!(due(start + SHADOW_PERIOD / 2).is_empty());
    let lines = due(start + SHADOW_PERIOD);
    assert_eq!(lines, ["limit search (shadow): would have denied 3 of 10"]);
    assert!(due(start + SHADOW_PERIOD * 2).is_empty());
}
