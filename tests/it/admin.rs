//! Admin: what operators see of a running proxy, and who may see it.

mod clients;
mod config;
mod findings;
mod live;
mod metrics;
mod overrides;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::house::{Answer, Client, PATIENCE, Tidegate, Upstream};
use crate::support::free_port;

/// A proxy whose admin listens on a port of its own.
pub struct Looked {
    pub tidegate: Tidegate,
    pub address: SocketAddr,
}

impl Looked {
    /// Starts it on `config`, which begins with what stands at the top of a file.
    pub fn start(config: &str) -> Looked {
        Looked::start_in(tempfile::tempdir().unwrap(), config)
    }

    pub fn start_in(directory: TempDir, config: &str) -> Looked {
        Looked::start_at(0, directory, config)
    }

    /// With a port that commands read in the file.
    pub fn start_on_a_known_port(config: &str) -> Looked {
        Looked::start_at(free_port(), tempfile::tempdir().unwrap(), config)
    }

    fn start_at(port: u16, directory: TempDir, config: &str) -> Looked {
        // Its socket and its token belong to this test alone.
        let runtime = directory.path().to_owned();
        let control = runtime.join("control.sock").display().to_string();
        let config =
            format!("admin = \"127.0.0.1:{port}\"\n{config}\n[server]\ncontrol = \"{control}\"\n");
        let tidegate = Tidegate::start_in(directory, &config, &[]);
        let line = tidegate.wait_for_line("dashboard  http://");
        let address = line.split('/').nth(2).unwrap().parse().unwrap();
        let looked = Looked { tidegate, address };
        looked.wait_until("it is ready", |looked| looked.get("/readyz").status == 200);
        looked
    }

    pub fn get(&self, path: &str) -> Answer {
        self.get_with(path, &format!("Host: {}\r\n", self.address))
    }

    /// With these header lines and no others, each ended by CRLF.
    pub fn get_with(&self, path: &str, lines: &str) -> Answer {
        let request = format!("GET {path} HTTP/1.1\r\n{lines}\r\n");
        Client::to(self.address).ask(request)
    }

    /// Sends a body with these header lines, each ended by CRLF.
    pub fn post_with(&self, path: &str, lines: &str, body: &str) -> Answer {
        let length = body.len();
        let lines = format!("Host: localhost\r\nContent-Length: {length}\r\n{lines}");
        Client::to(self.address).ask(format!("POST {path} HTTP/1.1\r\n{lines}\r\n{body}"))
    }

    /// Does something as whoever may.
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        let bearer = format!("Authorization: Bearer {}\r\n", self.token());
        let lines = format!("Content-Type: application/json\r\n{bearer}");
        self.post_with(path, &lines, &body.to_string())
    }

    pub fn json(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert_eq!(answer.header("content-type").unwrap(), "application/json");
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// What is shown by whoever changes anything.
    pub fn token(&self) -> String {
        let file = self
            .tidegate
            .directory
            .path()
            .canonicalize()
            .unwrap()
            .join("proxy.toml");
        let env_free = tidegate::config::Control::At(file.with_file_name("control.sock"));
        let token = tidegate::admin::gate::find_token(&file, &env_free).unwrap();
        String::from_utf8(token).unwrap()
    }

    pub fn wait_until(&self, what: &str, is_so: impl Fn(&Looked) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < until, "never so: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A limit and two routes in front of `backend`.
fn limited(backend: &Upstream) -> String {
    format!(
        r#"
        upstream = "{}"
        [limit.login]
        rate = "2/h"
        [limit.tried]
        rate = "1/h"
        shadow = true
        [[route]]
        name = "login"
        path = "/login"
        limits = ["login", "tried"]
        "#,
        backend.url()
    )
}

#[test]
fn what_it_is_and_what_it_did_is_told() {
    let backend = Upstream::ok();
    let looked = Looked::start(&limited(&backend));
    for status in [200, 200, 429] {
        assert_eq!(looked.tidegate.get("/login").status, status);
    }
    let status = looked.json("/api/v1/status");
    assert_eq!(status["pid"], looked.tidegate.pid());
    assert_eq!(status["store"]["kind"], "memory");
    assert_eq!(status["store"]["up"], true);
    assert_eq!(status["config"]["file"], "proxy.toml");
    assert_eq!(status["config"]["last_reload"], Value::Null);
    let limits = looked.json("/api/v1/limits");
    let login = &limits["limits"][0];
    assert_eq!(login["name"], "login");
    assert_eq!(login["rates"][0], "2/h");
    assert_eq!(
        (&login["key"], &login["routes"][0]),
        (&"ip".into(), &"login".into())
    );
    assert_eq!(login["totals"]["allowed"], 2);
    assert_eq!(login["totals"]["denied"], 1);
    assert_eq!(limits["limits"][1]["mode"], "shadow");
    assert_eq!(limits["limits"][1]["totals"]["shadow_denied"], 2);
    let upstreams = looked.json("/api/v1/upstreams");
    let server = &upstreams["upstreams"][0]["servers"][0];
    assert_eq!(server["server"], backend.url());
    assert_eq!(
        (&server["up"], &server["requests"]),
        (&true.into(), &2.into())
    );
    looked.wait_until("the history has them", |looked| {
        let traffic = looked.json("/api/v1/traffic");
        let samples = traffic["samples"].as_array().unwrap();
        assert_eq!(
            (samples.len(), &traffic["marks"][0]["kind"]),
            (180, &"start".into())
        );
        let sum = |key: &str| {
            samples
                .iter()
                .map(|one| one[key].as_u64().unwrap())
                .sum::<u64>()
        };
        (sum("requests"), sum("denied")) == (3, 1)
    });
}

#[test]
fn who_may_not_ask_is_told_so() {
    let backend = Upstream::ok();
    let looked = Looked::start(&limited(&backend));
    let asked = |path, lines| looked.get_with(path, lines).status;
    for path in ["/", "/healthz", "/metrics", "/api/v1/status"] {
        assert_eq!(asked(path, "Host: localhost\r\n"), 200, "{path}");
        assert_eq!(asked(path, "Host: evil.example\r\n"), 421, "{path}");
    }
    let elsewhere = "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n";
    assert_eq!(asked("/api/v1/status", elsewhere), 403);
    assert_eq!(asked("/api/v1/nothing", "Host: localhost\r\n"), 404);
    let page = looked.get("/");
    assert!(
        page.header("content-security-policy")
            .unwrap()
            .contains("default-src 'none'")
    );
    assert_eq!(page.header("x-frame-options").unwrap(), "DENY");
    assert_eq!(page.header("cache-control").unwrap(), "no-store");
    assert_eq!(page.header("access-control-allow-origin"), None);
    let post = format!(
        "POST /api/v1/status HTTP/1.1\r\nHost: {}\r\n",
        looked.address
    );
    let post = format!("{post}Content-Type: application/json\r\nContent-Length: 0\r\n\r\n");
    let refused = Client::to(looked.address).ask(post);
    assert_eq!(refused.status, 405);
    assert_eq!(
        refused.header("content-type").unwrap(),
        "application/problem+json"
    );
}

#[test]
fn it_is_ready_until_it_drains_and_there_until_the_end() {
    let backend = Upstream::ok();
    let mut looked = Looked::start(&limited(&backend));
    assert_eq!(looked.get("/healthz").text(), "ok\n");
    // A connection that is not idle holds the drain up.
    let mut client = looked.tidegate.connect();
    client.send("GET /login HTTP/1.1\r\nHost: test\r\n");
    let mut watching = Client::to(looked.address);
    looked.tidegate.signal("TERM");
    looked.wait_until("it drains", |_| {
        let asked = format!("GET /readyz HTTP/1.1\r\nHost: {}\r\n\r\n", looked.address);
        Client::to(looked.address).ask(asked).status == 503
    });
    let asked = "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert!(watching.ask(asked).text().contains("draining"));
    client.send("\r\n");
    assert_eq!(client.answer().status, 200);
    assert!(looked.tidegate.wait().success());
}

#[test]
fn a_reload_moves_it_and_is_told() {
    let backend = Upstream::ok();
    let looked = Looked::start(&limited(&backend));
    let directory = looked.tidegate.directory.path();
    let file = directory.join("proxy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let port = crate::support::free_port();
    let moved = text.replace(
        "admin = \"127.0.0.1:0\"",
        &format!("admin = \"127.0.0.1:{port}\""),
    );
    std::fs::write(&file, moved.replace("2/h", "3/h")).unwrap();
    looked.tidegate.signal("HUP");
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    looked.tidegate.wait_for_line("admin: listening");
    let looked = Looked { address, ..looked };
    looked.wait_until("the reload is told", |looked| {
        let last = &looked.json("/api/v1/status")["config"]["last_reload"];
        last["ok"] == true
            && last["changes"]
                .to_string()
                .contains("limit login: 2/h -> 3/h")
    });
    looked.wait_until("the reload is marked", |looked| {
        let marks = looked.json("/api/v1/traffic")["marks"].to_string();
        marks.contains("\"reload\"") && marks.contains("and 1 more")
    });
    // A file with a mistake changes nothing.
    std::fs::write(&file, "listen = 5").unwrap();
    looked.tidegate.signal("HUP");
    looked.wait_until("the failure is told", |looked| {
        looked.json("/api/v1/status")["config"]["last_reload"]["ok"] == false
    });
    assert!(
        looked
            .get("/metrics")
            .text()
            .contains("config_last_reload_successful 0\n")
    );
}
