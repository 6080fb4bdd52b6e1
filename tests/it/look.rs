//! The commands that look into a running proxy: `status`, `top`, `tap`.

mod terminal;

use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::admin::Looked;
use crate::house::{Tidegate, Upstream};
use crate::support::{RedisServer, free_port, mortal};

/// Runs a command beside a proxy, as its user would.
pub fn command(directory: &std::path::Path, words: &[&str]) -> Output {
    mortal(env!("CARGO_BIN_EXE_tidegate"))
        .args(words)
        .current_dir(directory)
        .env("XDG_RUNTIME_DIR", directory)
        .output()
        .unwrap()
}

fn beside(looked: &Looked, words: &[&str]) -> Output {
    let address = looked.address.to_string();
    let words = [words, &["--admin", &address]].concat();
    command(looked.tidegate.directory.path(), &words)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn limited(upstream: &Upstream, store: &str) -> String {
    format!(
        "upstream = \"{}\"\n{store}\n[limit.login]\nrate = \"2/h\"\n[[route]]\nname = \"login\"\n\
         path = \"/login\"\nlimits = [\"login\"]\n",
        upstream.url()
    )
}

#[test]
fn status_shows_how_the_proxy_is() {
    let upstream = Upstream::ok();
    let looked = Looked::start(&limited(&upstream, ""));
    for status in [200, 200, 429] {
        assert_eq!(looked.tidegate.get("/login").status, status);
    }
    let told = beside(&looked, &["status"]);
    let page = text(&told.stdout);
    assert_eq!(told.status.code(), Some(0), "{page}{}", text(&told.stderr));
    for part in [
        "ready\n".to_owned(),
        format!("listening    http://{}", looked.tidegate.address),
        "store        memory: counts live in this process only\n".to_owned(),
        // No terminal reads it: no token, and no colour.
        format!("dashboard    http://{}/\n", looked.address),
        "login  2/h   ip".to_owned(),
        upstream.url(),
    ] {
        assert!(page.contains(&part), "{part}\n--\n{page}");
    }
    assert!(!page.contains('\x1b'));
    let told = beside(&looked, &["status", "--json"]);
    let json: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(json["ready"], true);
    assert_eq!(json["limits"][0]["totals"]["denied"], 1);
    assert_eq!(json["status"]["pid"], looked.tidegate.pid());
}

#[test]
fn status_finds_the_admin_by_the_file_and_tells_of_the_store() {
    let (upstream, mut redis) = (Upstream::ok(), RedisServer::start());
    let port = free_port();
    let store = format!("[store]\nurl = \"redis://127.0.0.1:{}\"\n", redis.port());
    let config = format!("admin = \":{port}\"\nadmin_token_file = \"token\"\n")
        + &limited(&upstream, &store);
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("token"), "a-token-of-this-test\n").unwrap();
    let proxy = Tidegate::start_in(directory, &config, &[]);
    let directory = proxy.directory.path();
    let ready = || command(directory, &["status"]);
    crate::probe::eventually("ready", || ready().status.code() == Some(0));
    crate::probe::eventually("the store is up", || {
        text(&ready().stdout).contains("store        redis: up")
    });
    redis.kill();
    // Somebody has to ask the store for its being away to be noticed.
    crate::probe::eventually("away", || {
        let _ = proxy.get("/login");
        text(&ready().stdout).contains("store        redis: away for ")
    });
    assert_eq!(ready().status.code(), Some(0));
    // While the file is being edited, the proxy that runs can be looked at.
    let path = directory.join("proxy.toml");
    let broken = std::fs::read_to_string(&path).unwrap() + "\nlsten = [\n";
    std::fs::write(&path, broken).unwrap();
    assert_eq!(ready().status.code(), Some(0));
}

#[test]
fn where_no_proxy_answers_it_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let said = |words: &[&str]| {
        let told = command(directory.path(), words);
        assert!(told.stdout.is_empty());
        (told.status.code().unwrap(), text(&told.stderr))
    };
    let (code, trouble) = said(&["status"]);
    assert_eq!(code, 1, "{trouble}");
    assert!(
        trouble.starts_with("error: cannot read `proxy.toml`"),
        "{trouble}"
    );
    let file = directory.path().join("proxy.toml");
    std::fs::write(&file, "upstream = \"http://127.0.0.1:1\"\n").unwrap();
    for command in ["status", "top", "tap"] {
        let (code, trouble) = said(&[command]);
        assert_eq!(code, 1, "{trouble}");
        assert_eq!(
            trouble,
            "error: This command needs `admin`; proxy.toml has none\n\
             help: write `admin = \"127.0.0.1:9180\"` at its top and restart the proxy, or name \
              the address with `--admin`\n"
        );
    }
    let port = free_port();
    std::fs::write(&file, format!("admin = \"127.0.0.1:{port}\"\n")).unwrap();
    for command in ["status", "top", "tap"] {
        let (code, trouble) = said(&[command]);
        assert_eq!(code, 1, "{trouble}");
        assert_eq!(
            trouble,
            format!(
                "error: no proxy answers at http://127.0.0.1:{port}/: connection refused\n\
                 help: is it running? `admin` of proxy.toml says that it listens there; name \
                 another file with `-c`, or the address with `--admin`\n"
            )
        );
    }
    assert_eq!(said(&["status", "--admin", "nonsense"]).0, 2);
}

#[test]
fn top_prints_a_picture_where_there_is_no_terminal() {
    let upstream = Upstream::ok();
    let looked = Looked::start(&limited(&upstream, ""));
    for status in [200, 200, 429] {
        assert_eq!(looked.tidegate.get("/login").status, status);
    }
    let told = beside(&looked, &["top"]);
    let picture = text(&told.stdout);
    assert_eq!(told.status.code(), Some(0), "{}", text(&told.stderr));
    for part in [
        "ready",
        "requests  ",
        "login  2/h   ip",
        "CLIENT OF login",
        &upstream.url(),
    ] {
        assert!(picture.contains(part), "{part}\n--\n{picture}");
    }
    assert!(!picture.contains('\x1b') && !picture.contains("quit"));
    let told = beside(&looked, &["top", "--json", "--once"]);
    let json: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(json["limits"][0]["totals"]["denied"], 1);
}

#[test]
fn tap_shows_denials_as_they_happen_and_connects_again() {
    let upstream = Upstream::ok();
    let port = free_port();
    let config = format!("admin = \"127.0.0.1:{port}\"\n") + &limited(&upstream, "");
    let mut proxy = Tidegate::start(&config);
    let mut tap = mortal(env!("CARGO_BIN_EXE_tidegate"))
        .args(["tap", "--limit", "login", "-n", "2"])
        .current_dir(proxy.directory.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(tap.stderr.take().unwrap()).lines();
    let mut wait_for = |part: &str| {
        let line = said.find(|line| line.as_ref().is_ok_and(|line| line.contains(part)));
        line.unwrap().unwrap()
    };
    wait_for("following http://");
    let mut lost = mortal(env!("CARGO_BIN_EXE_tidegate"))
        .args(["tap", "--limit", "logn", "--route", "/nope"])
        .current_dir(proxy.directory.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let warned = BufReader::new(lost.stderr.take().unwrap()).lines();
    let warned: Vec<String> = warned.map(Result::unwrap).take(2).collect();
    lost.kill().unwrap();
    lost.wait().unwrap();
    assert_eq!(warned[0], "warning: the proxy has no limit `logn`");
    assert_eq!(warned[1], "warning: the proxy has no route `/nope`");
    let mut shown = BufReader::new(tap.stdout.take().unwrap()).lines();
    for status in [200, 200, 429] {
        assert_eq!(proxy.get("/login").status, status);
    }
    let line = shown.next().unwrap().unwrap();
    assert!(
        line.contains("  login  GET /login  127.0.0.0/24  key "),
        "{line}"
    );
    assert!(line.contains("retry in "), "{line}");
    proxy.signal("TERM");
    proxy.wait();
    wait_for("trying again in 0.25 s");
    let again = Tidegate::start(&config);
    wait_for("following again");
    for status in [200, 200, 429, 429] {
        assert_eq!(again.get("/login").status, status);
    }
    assert!(
        shown
            .next()
            .unwrap()
            .unwrap()
            .contains("  login  GET /login")
    );
    assert!(shown.next().is_none());
    assert!(tap.wait().unwrap().success());
}

#[test]
fn single_clients_of_the_embedded_store_are_dealt_with_through_the_admin() {
    let upstream = Upstream::ok();
    let directory = tempfile::tempdir().unwrap();
    // Keys are hashed with a secret that the proxy alone knows.
    let config = format!("admin = \"127.0.0.1:{}\"\n", free_port()) + &limited(&upstream, "");
    let runtime = directory.path().to_str().unwrap().to_owned();
    let proxy = Tidegate::start_in(directory, &config, &[("XDG_RUNTIME_DIR", &runtime)]);
    let limits = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        let told = command(proxy.directory.path(), &[&["limits"][..], &words].concat());
        let said = text(&told.stdout) + &text(&told.stderr);
        (told.status.code().unwrap(), said)
    };
    let ask = || proxy.get("/login").status;
    assert_eq!([ask(), ask(), ask()], [200, 200, 429]);
    let (code, said) = limits("show login 127.0.0.1");
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("POLICY  RATE  USED  REMAINING  RESET") && said.contains("  2/h   2     0  "),
        "{said}"
    );
    let (code, said) = limits("reset login 127.0.0.1");
    assert_eq!(code, 0, "{said}");
    assert!(
        said.starts_with("login: key ") && said.ends_with(" (ip) starts at zero within a second\n")
    );
    let tag = said.split(' ').nth(2).unwrap().to_owned();
    assert_eq!([ask(), ask(), ask()], [200, 200, 429]);
    let (code, said) = limits("override login 127.0.0.1 50/h --for 1h --note office");
    assert_eq!(code, 0, "{said}");
    assert!(said.contains(" (ip) has 50/h until 2"), "{said}");
    assert_eq!(ask(), 200);
    // The same table as with Redis.
    let (code, said) = limits("ls");
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("LIMIT  RATE  KEY\nlogin  2/h   ip\n"),
        "{said}"
    );
    assert!(
        said.contains("50/h  until 2") && said.contains("office"),
        "{said}"
    );
    // As `tap` and `top` show it.
    let (code, said) = limits(&format!("block tag={tag}"));
    assert_eq!(code, 0, "{said}");
    assert!(said.ends_with(" is blocked until removed\n"), "{said}");
    assert!(proxy.get("/login").text().contains("blocked"));
    for expected in [0, 1] {
        let (code, said) = limits(&format!("block tag={tag} --remove"));
        assert_eq!(code, expected, "{said}");
    }
    assert_eq!(ask(), 200);
    let (code, said) = limits("show login ip=127.0.0.1 --json");
    let shown: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &shown["windows"][0]["of"]), (0, &"override".into()));
    assert_eq!(shown["windows"][0]["used"], 4, "{said}");
    assert_eq!(shown["override"]["note"], "office");
    let (code, said) = limits("ls --audit --json");
    let listed: Value = serde_json::from_str(&said).unwrap();
    let changes = listed["changes"].as_array().unwrap().iter();
    let whats: Vec<&str> = changes.map(|one| one["change"].as_str().unwrap()).collect();
    assert_eq!(whats, ["block removed", "block", "override", "reset"]);
    assert_eq!(listed["limits"][0]["mode"], "enforced");
    assert_eq!(listed["changes"][3]["counts_by"], "ip");
    assert_eq!((code, &listed["changes"][3]["tag"]), (0, &shown["tag"]));
    // What makes no sense is told before anybody is asked.
    let (code, said) = limits("show login name");
    assert_eq!(code, 2);
    assert!(said.contains("help: write `ip=ADDRESS`"), "{said}");
}
