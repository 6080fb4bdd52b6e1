//! What is written of requests, and what never is.

use std::time::{Duration, Instant};

use crate::house::{PATIENCE, Tidegate, Upstream};

/// Waits until `found` says that the log holds what the test looks for.
fn eventually(read: impl Fn() -> String, found: impl Fn(&str) -> bool) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let text = read();
        if found(&text) {
            return text;
        }
        assert!(Instant::now() < until, "the log holds only: {text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn every_denial_has_a_line_and_no_line_has_a_key() {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[log]\naccess = \"stdout\"\n\
         [limit.default]\nrate = \"1/h\"\nkey = \"api_key\"\n",
        upstream.url()
    ));
    let key = "X-Api-Key: tell-nobody\r\n";
    assert_eq!(proxy.get_with("/a?token=secret", key).status, 200);
    assert_eq!(proxy.get_with("/a?token=secret", key).status, 429);
    assert_eq!(proxy.get_with("/b", key).status, 429);
    let log = eventually(|| proxy.stdout(), |text| text.lines().count() >= 2);
    assert_eq!(
        log.lines().count(),
        2,
        "what is allowed is not logged unless asked: {log}"
    );
    // Each worker hands its lines over on its own.
    let first = log
        .lines()
        .find(|line| line.contains("\"path\":\"/a\""))
        .unwrap();
    assert!(first.starts_with("{\"time\":\"20"), "{first}");
    for part in [
        "\"status\":429",
        "\"outcome\":\"denied\"",
        "\"denied_by\":[{\"limit\":\"default\",\"key\":\"",
        "\"request_id\":\"",
    ] {
        assert!(first.contains(part), "{part} is missing from {first}");
    }
    assert!(
        !log.contains("tell-nobody") && !log.contains("secret"),
        "{log}"
    );
}

#[test]
fn what_is_allowed_is_logged_when_asked_in_the_format_asked() {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[log]\naccess = \"access.log\"\nformat = \"combined\"\n\
         sample_allowed = 1.0\n",
        upstream.url()
    ));
    assert_eq!(proxy.get("/seen").status, 200);
    let path = proxy.directory.path().join("access.log");
    let read = || std::fs::read_to_string(&path).unwrap_or_default();
    let log = eventually(read, |text| text.ends_with('\n'));
    assert!(log.starts_with("127.0.0.1 - - ["), "{log}");
    assert!(log.contains("\"GET /seen HTTP/1.1\" 200 2 "), "{log}");
}

#[test]
fn lines_that_wait_are_written_before_the_end() {
    let upstream = Upstream::ok();
    let mut proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[log]\naccess = \"stdout\"\nsample_allowed = 1.0\n\
         decisions = \"decisions.jsonl\"\n[limit.default]\nrate = \"100/s\"\n",
        upstream.url()
    ));
    for _ in 0..5 {
        assert_eq!(proxy.get("/").status, 200);
    }
    proxy.signal("TERM");
    assert!(proxy.wait().success());
    assert_eq!(proxy.stdout().lines().count(), 5);
    let decisions = proxy.directory.path().join("decisions.jsonl");
    assert_eq!(
        std::fs::read_to_string(decisions).unwrap().lines().count(),
        5
    );
}
