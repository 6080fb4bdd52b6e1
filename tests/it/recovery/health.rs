//! Active checks.

use std::io::Read;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use super::backend::Backend;
use super::{answer, answer_on, before, named};
use crate::house::{Tidegate, Upstream};
use crate::probe::eventually;

const OFTEN: &str = "health = { path = \"/healthz\", every = \"50ms\", timeout = \"5s\" }";

/// An upstream that answers with its name, and checks with the status that it is given.
fn checked(name: &'static str, status: &Arc<AtomicU16>) -> Upstream {
    let status = Arc::clone(status);
    Upstream::start(move |seen, stream| {
        if seen.is_for("/healthz") {
            answer(stream, status.load(Ordering::Relaxed), "")
        } else {
            answer(stream, 200, name)
        }
    })
}

fn names(proxy: &Tidegate, count: usize) -> Vec<String> {
    (0..count).map(|_| proxy.get("/").text()).collect()
}

#[test]
fn a_server_whose_checks_fail_gets_no_requests_until_they_pass_again() {
    let status = Arc::new(AtomicU16::new(200));
    let (sick, well) = (checked("sick", &status), named("well"));
    let proxy = before(&[sick.url(), well.url()], OFTEN, "");
    eventually("both are asked", || proxy.get("/").text() == "sick");
    status.store(503, Ordering::Relaxed);
    let line = proxy.wait_for_line("is down");
    assert!(
        line.contains(&format!("upstream api: server {} is down", sick.url())),
        "{line}"
    );
    assert!(proxy.wait_for_line("last check").contains("status 503"));
    assert!(names(&proxy, 50).iter().all(|name| name == "well"));
    status.store(204, Ordering::Relaxed);
    proxy.wait_for_line("is up again");
    eventually("it is asked again", || proxy.get("/").text() == "sick");
}

#[test]
fn when_none_is_left_the_answer_says_when_to_come_back() {
    let status = Arc::new(AtomicU16::new(500));
    let only = checked("only", &status);
    let check = "health = { path = \"/healthz\", every = \"1200ms\", healthy = 2 }";
    let proxy = before(&[only.url()], check, "");
    proxy.wait_for_line("is down");
    let answer = proxy.get("/");
    answer.assert_problem(503);
    // Two checks, 1.2 s apart.
    assert_eq!(answer.header("retry-after").as_deref(), Some("3"));
    status.store(200, Ordering::Relaxed);
    eventually("it is asked again", || proxy.get("/").status == 200);
}

#[test]
fn a_check_is_a_request_as_the_file_says() {
    let upstream = Upstream::ok();
    let check = "health = { path = \"/up?a=b\", host = \"api.internal\", every = \"50ms\" }";
    let _proxy = before(&[upstream.url()], check, "");
    eventually("it is checked", || upstream.seen().len() > 2);
    let seen = upstream.seen().remove(0);
    assert!(
        seen.head.starts_with("GET /up?a=b HTTP/1.1\r\n"),
        "{seen:?}"
    );
    assert_eq!(seen.header("host").as_deref(), Some("api.internal"));
    assert_eq!(
        seen.header("user-agent").as_deref(),
        Some("tidegate-health")
    );
}

#[test]
fn a_frozen_server_is_found_out_and_a_thawed_one_comes_back() {
    let (frozen, well) = (Backend::start("frozen"), Backend::start("well"));
    let check = "health = { path = \"/\", every = \"50ms\", timeout = \"1s\" }";
    let proxy = before(&[frozen.url(), well.url()], check, "");
    eventually("both are asked", || proxy.get("/").text() == "frozen");
    frozen.freeze();
    proxy.wait_for_line("is down");
    assert!(
        proxy
            .wait_for_line("last check")
            .contains("no answer within 1s")
    );
    assert!(names(&proxy, 30).iter().all(|name| name == "well"));
    frozen.thaw();
    proxy.wait_for_line("is up again");
    eventually("both are asked", || proxy.get("/").text() == "frozen");
}

#[test]
fn a_server_that_is_not_there_at_the_start_is_found_out_by_the_first_check() {
    let (mut late, well) = (Backend::start("late"), named("well"));
    late.kill();
    let proxy = before(&[late.url(), well.url()], OFTEN, "");
    proxy.wait_for_line("is down");
    assert!(names(&proxy, 20).iter().all(|name| name == "well"));
    late.restart();
    eventually("it is asked", || proxy.get("/").text() == "late");
}

#[test]
fn unix_sockets_are_checked_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let proxy = before(&[format!("unix:{}", path.display())], OFTEN, "");
    let status = Arc::new(AtomicU16::new(500));
    let now = Arc::clone(&status);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = [0; 1024];
            // Nothing comes at the start, where it is looked whether anybody is there.
            let length = stream.read(&mut request).unwrap_or(0);
            let is_check = request[..length].starts_with(b"GET /healthz HTTP/1.1\r\n");
            let _ = is_check && answer_on(&mut stream, now.load(Ordering::Relaxed), "");
        }
    });
    for (code, change) in [(500, "is down"), (200, "is up again")] {
        status.store(code, Ordering::Relaxed);
        proxy.wait_for_line(change);
    }
}

#[test]
fn servers_that_speak_http_2_are_checked_in_it() {
    let status = Arc::new(AtomicU16::new(500));
    let behind = checked("behind", &status);
    let inner = before(&[behind.url()], "", "");
    let proxy = before(&[format!("h2c://{}", inner.address)], OFTEN, "");
    proxy.wait_for_line("is down");
    let asked = behind.seen().remove(0);
    assert!(
        asked.header("via").unwrap().starts_with("2.0 "),
        "{asked:?}"
    );
    status.store(200, Ordering::Relaxed);
    proxy.wait_for_line("is up again");
    assert_eq!(proxy.get("/").text(), "behind");
}

#[test]
fn a_reload_begins_and_ends_checks() {
    let status = Arc::new(AtomicU16::new(500));
    let only = checked("only", &status);
    let file = |api: &str| {
        format!(
            "[upstream.api]\nservers = [\"{}\"]\n{api}\n\
             [[route]]\npath = \"/*\"\nupstream = \"api\"\nlimits = []\n",
            only.url()
        )
    };
    let proxy = Tidegate::start(&file(""));
    assert_eq!(proxy.get("/").status, 200);
    let replace = |api: &str| {
        let path = proxy.directory.path().join("proxy.toml");
        let text = format!("listen = \"127.0.0.1:0\"\n{}", file(api));
        std::fs::write(path, text).unwrap();
        proxy.signal("HUP");
    };
    replace(OFTEN);
    eventually("it is found unwell", || proxy.get("/").status == 503);
    replace("");
    eventually("nobody asks how it is", || proxy.get("/").status == 200);
}
