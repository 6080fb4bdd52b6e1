//! What is written of requests, and what never is.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::admin::Looked;
use crate::house::{Client, PATIENCE, Tidegate, Upstream};
use crate::look::command;
use crate::support::{RedisServer, free_port};

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
         [api_key]\nunknown = \"trust\"\n[limit.default]\nrate = \"1/h\"\nkey = \"api_key\"\n",
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
fn keys_are_plain_in_the_logs_where_that_is_asked_for_and_nowhere_else() {
    let redis = RedisServer::start();
    let upstream = Upstream::ok();
    let text = format!(
        "upstream = \"{}\"\nadmin = \"127.0.0.1:0\"\n\
         [store]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"5s\"\n\
         [log]\naccess = \"stdout\"\ndecisions = \"decisions.jsonl\"\nkeys = \"plain\"\n\
         [tracing]\nendpoint = \"http://127.0.0.1:9\"\nsample = 0.0\n\
         [api_key]\nunknown = \"trust\"\n[limit.default]\nrate = \"1/h\"\nkey = [\"api_key or ip\", \"path\"]\n",
        upstream.url(),
        redis.port()
    );
    let folder = tempfile::tempdir().unwrap();
    let mut proxy = Tidegate::start_in(folder, &text, &[("RUST_LOG", "debug")]);
    let dashboard = proxy.wait_for_line("dashboard  http://");
    let admin = dashboard.split('/').nth(2).unwrap().parse().unwrap();
    let key = "X-Api-Key: shown \"once\"\r\n";
    assert_eq!(proxy.get_with("/a/b", key).status, 200);
    assert_eq!(proxy.get_with("/a/b", key).status, 429);
    // Too long to be shown.
    let long = format!("X-Api-Key: {}\r\n", "long".repeat(200));
    assert_eq!(proxy.get_with("/c", &long).status, 200);
    assert_eq!(proxy.get_with("/c", &long).status, 429);
    let spelled = "api_key=shown%20%22once%22&path=%2Fa%2Fb";
    let mut client = Client::to(admin);
    let ask = |what: &str| format!("GET /api/v1/{what} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let standing = client.ask(ask(&format!("limits/default/keys/{spelled}")));
    assert!(standing.text().contains("\"used\":1"), "{standing:?}");
    for what in ["denials", "limits/default/clients", "limits", "status"] {
        let said = client.ask(ask(what)).text();
        assert!(!said.contains("shown"), "{what}: {said}");
    }
    let block = ["limits", "block", "ip=127.0.0.1"];
    assert!(command(proxy.directory.path(), &block).status.success());
    // One that is let through before the proxies know is in one log only.
    let passed = Cell::new(2);
    eventually(
        || {
            let answer = proxy.get_with("/d", key);
            passed.set(passed.get() + usize::from(answer.status == 200));
            answer.text()
        },
        |text| text.contains("blocked"),
    );
    proxy.signal("TERM");
    assert!(proxy.wait().success());
    let denied = |of: &str| format!("\"denied_by\":[{{\"limit\":{of}}}]");
    let log = proxy.stdout();
    for of in [
        format!("\"default\",\"key\":\"{spelled}\""),
        "\"block\",\"key\":\"ip=127.0.0.1\"".to_owned(),
    ] {
        assert!(log.contains(&denied(&of)), "{of}: {log}");
    }
    has_plain_keys_and_traces(&proxy, spelled, (&log, passed.get()));
    let said = proxy.said();
    assert!(!said.iter().any(|line| line.contains("shown")), "{said:?}");
}

/// What the decision log has of two requests that are shown, of two that are not, and of others.
fn has_plain_keys_and_traces(proxy: &Tidegate, spelled: &str, (log, passed): (&str, usize)) {
    let path = proxy.directory.path().join("decisions.jsonl");
    let decisions = std::fs::read_to_string(path).unwrap();
    let lines: Vec<serde_json::Value> = decisions
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let keys: Vec<_> = lines[..4]
        .iter()
        .map(|line| line["items"][0][1].as_str().unwrap())
        .collect();
    assert_eq!(keys[..2], [spelled, spelled]);
    assert!(keys[2].len() == 22 && keys[2] == keys[3], "{keys:?}");
    let mut traces: Vec<_> = lines
        .iter()
        .map(|line| line["trace_id"].as_str().unwrap())
        .collect();
    // The access log has those that were denied.
    let logged = traces.iter().filter(|id| log.contains(**id)).count();
    assert_eq!(logged, lines.len() - passed, "{decisions}");
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), lines.len(), "{decisions}");
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

#[test]
fn a_line_of_a_failed_server_names_it_and_the_error() {
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let proxy = Tidegate::start(&format!(
        "upstream = \"{nobody}\"\n[log]\naccess = \"stdout\"\nformat = \"json\"\n\
         [limit.default]\nrate = \"9/h\"\nkey = \"ip\"\n"
    ));
    let answer = proxy.get("/");
    assert_eq!(answer.status, 502);
    let told = answer.text();
    assert!(
        told.contains("the upstream server cannot be reached"),
        "{told}"
    );
    assert!(!told.contains(&nobody), "{told}");
    let log = eventually(|| proxy.stdout(), |text| text.contains('\n'));
    for part in [
        "\"reason\":\"upstream_unreachable\"".to_owned(),
        format!("\"server\":\"{nobody}\""),
        "\"error\":\"the upstream cannot be reached: Connection refused".to_owned(),
    ] {
        assert!(log.contains(&part), "no {part} in {log}");
    }
}

#[test]
fn an_attempt_that_the_timeout_of_its_route_ends_is_one_of_its_server() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", silent.local_addr().unwrap());
    let looked = Looked::start(&format!(
        "[log]\naccess = \"stdout\"\nformat = \"json\"\n\
         [upstream.api]\nservers = [\"{server}\"]\n\
         [[route]]\npath = \"/*\"\nupstream = \"api\"\nlimits = []\ntimeout = \"100ms\"\n"
    ));
    assert_eq!(looked.tidegate.get("/").status, 504);
    let log = eventually(|| looked.tidegate.stdout(), |text| text.contains('\n'));
    assert!(log.contains(&format!("\"server\":\"{server}\"")), "{log}");
    let text = looked.get("/metrics").text();
    let labels = format!("upstream=\"api\",server=\"{server}\"");
    for line in [
        "tidegate_upstream_requests_total{upstream=\"api\",code=\"none\"} 1".to_owned(),
        format!("tidegate_upstream_server_requests_total{{{labels}}} 1"),
        format!("tidegate_upstream_server_failures_total{{{labels}}} 1"),
    ] {
        assert!(text.lines().any(|one| one == line), "no {line} in {text}");
    }
}

#[test]
fn a_refused_request_is_logged_with_its_client_and_its_route() {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\ntrusted_proxies = [\"127.0.0.1\"]\n\
         [log]\naccess = \"stdout\"\nformat = \"json\"\n\
         [limit.user]\nrate = \"9/h\"\nkey = \"body:user\"\nmissing = \"skip\"\n\
         [limit.all]\nrate = \"99/h\"\nkey = \"ip\"\n\
         [[route]]\nname = \"reads\"\npath = \"/*\"\nlimits = [\"user\", \"all\"]\nbody_limit = 10\n\
         headers_down = {{ x-app = \"a\" }}\n",
        upstream.url()
    ));
    let mut client = proxy.connect();
    let head = "Host: test\r\nX-Forwarded-For: 203.0.113.9\r\n";
    let odd = client.ask(format!("GET /a%2f..%2fb HTTP/1.1\r\n{head}\r\n"));
    assert_eq!(odd.status, 400);
    let large = proxy.connect().ask(format!(
        "POST /a HTTP/1.1\r\n{head}Content-Length: 20\r\n\r\n{{\"user\":\"0123456789\"}}"
    ));
    assert_eq!(
        (large.status, large.header("x-app").as_deref()),
        (413, Some("a"))
    );
    let log = eventually(|| proxy.stdout(), |text| text.lines().count() == 2);
    for line in log.lines() {
        assert!(line.contains("\"client\":\"203.0.113.9\""), "{line}");
    }
    let large = log.lines().find(|line| line.contains("413")).unwrap();
    assert!(large.contains("\"route\":\"reads\""), "{large}");
}

#[test]
fn a_request_without_its_key_is_told_what_to_send() {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[log]\naccess = \"stdout\"\n\
         [limit.default]\nrate = \"9/h\"\nkey = \"header:x-account\"\nmissing = \"deny\"\n",
        upstream.url()
    ));
    let answer = proxy.get("/");
    assert_eq!(answer.status, 400);
    let told = answer.text();
    assert!(told.contains("Send the header `X-Account`"), "{told}");
    let log = eventually(|| proxy.stdout(), |text| text.contains('\n'));
    assert!(log.contains("\"reason\":\"missing_key\""), "{log}");
}

#[test]
fn a_head_that_is_too_slow_has_a_line() {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[server]\nheader_timeout = \"300ms\"\nidle_timeout = \"500ms\"\n\
         [log]\naccess = \"stdout\"\n",
        upstream.url()
    ));
    // Neither silence nor a blank line is a head.
    assert!(proxy.connect().is_closed());
    let mut blank = proxy.connect();
    blank.send("\r\n");
    assert_eq!(blank.answer().status, 408);
    let mut slow = proxy.connect();
    slow.send("GET / HTTP/1.1\r\nHo");
    assert_eq!(slow.answer().status, 408);
    let written = eventually(|| proxy.stdout(), |text| text.contains('\n'));
    assert_eq!(written.lines().count(), 1, "{written}");
    for part in [
        "\"client\":\"127.0.0.1\",\"method\":\"-\"",
        "\"path\":\"*\",\"status\":408,\"bytes\":0",
        "\"reason\":\"the head of the request did not arrive in time\"",
    ] {
        assert!(written.contains(part), "{part} is missing from {written}");
    }
}

#[test]
fn a_head_that_cannot_be_read_has_a_line() {
    let upstream = Upstream::ok();
    let url = upstream.url();
    let log = "[log]\naccess = \"stdout\"\n";
    let proxy = Tidegate::start(&format!("upstream = \"{url}\"\n{log}"));
    let broken = proxy.connect().ask("GET / HTTP/1.1\r\nX Y: 1\r\n\r\n");
    assert_eq!(broken.status, 400);
    let written = eventually(|| proxy.stdout(), |text| text.contains('\n'));
    let told = broken.text();
    let bytes = format!("\"path\":\"*\",\"status\":400,\"bytes\":{},", told.len());
    assert!(written.contains(&bytes), "{written}");
    let id = written.split("\"request_id\":\"").nth(1);
    let id = id.and_then(|rest| rest.split('"').next()).unwrap();
    assert!(told.contains(id), "{told} {written}");
    for part in [
        "\"client\":\"127.0.0.1\",\"method\":\"-\"",
        "\"reason\":\"the head of the request cannot be read\"",
    ] {
        assert!(written.contains(part), "{part} is missing from {written}");
    }
}
