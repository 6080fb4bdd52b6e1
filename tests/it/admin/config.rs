//! `GET /api/v1/config` and `tidegate config`: what holds, and how a file differs from it.

use crate::admin::Looked;
use crate::house::Upstream;
use crate::look::command;

fn start(rate: &str) -> (Upstream, Looked) {
    let backend = Upstream::ok();
    let looked = Looked::start(&format!(
        "upstream = \"{}\"\nx-note = \"ours\"\n[limit.default]\nrate = \"{rate}\"\n\
         [[bypass]]\nheader = \"x-in\"\nvalue = \"hush-hush\"\n",
        backend.url()
    ));
    (backend, looked)
}

fn said(looked: &Looked, words: &[&str]) -> (Option<i32>, String) {
    let output = command(looked.tidegate.directory.path(), words);
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn what_holds_is_told_without_secrets() {
    let (_backend, looked) = start("5/s");
    let answer = looked.get("/api/v1/config");
    assert_eq!(answer.header("content-type").unwrap(), "application/toml");
    let whole = answer.text();
    for line in ["rate = \"5/s\"", "timeout = \"25ms\"", "value = \"***\""] {
        assert!(whole.contains(line), "{line}\n{whole}");
    }
    assert!(
        !whole.contains("hush") && !whole.contains("x-note"),
        "{whole}"
    );
    // The command says the same of the same file.
    let (code, own) = said(&looked, &["config"]);
    assert_eq!((code, own), (Some(0), whole.clone()));
    let json = format!("Host: {}\r\nAccept: application/json\r\n", looked.address);
    let json = looked.get_with("/api/v1/config", &json);
    let json: serde_json::Value = serde_json::from_slice(&json.body).unwrap();
    assert_eq!(json["limit"]["default"]["rate"], "5/s");
    let (_, own) = said(&looked, &["config", "--json"]);
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&own).unwrap(),
        json
    );
}

#[test]
fn a_file_is_held_against_what_runs() {
    let (_backend, looked) = start("5/s");
    let admin = looked.address.to_string();
    let diff = ["config", "--diff", "--admin", &admin];
    assert_eq!(
        said(&looked, &diff),
        (
            Some(0),
            "the proxy already runs with this file\n".to_owned()
        )
    );
    let file = looked.tidegate.directory.path().join("proxy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("5/s", "7/s")).unwrap();
    let changed = "limit default: 5/s -> 7/s\n";
    assert_eq!(said(&looked, &diff), (Some(1), changed.to_owned()));
    let (code, json) = said(&looked, &[&diff[..], &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, &json["same"]), (Some(1), &false.into()));
    assert_eq!(json["changes"][0], changed.trim_end());
    // That a secret is another one is told, and neither of the two.
    std::fs::write(&file, text.replace("hush-hush", "other")).unwrap();
    let token = looked.tidegate.directory.path().join("control.token");
    let token = token.to_str().unwrap();
    assert_eq!(
        said(&looked, &[&diff[..], &["--token-file", token]].concat()),
        (Some(1), "bypass[0].value: another secret\n".to_owned())
    );
    let marks = looked.post("/api/v1/config/secrets", &serde_json::json!({}));
    assert_eq!(marks.status, 200);
    assert!(marks.text().contains("bypass[0].value") && !marks.text().contains("hush"));
    // A proxy that cannot be asked, and a file that is wrong.
    let nobody = crate::support::free_port();
    let nobody = format!("127.0.0.1:{nobody}");
    let (code, text) = said(&looked, &["config", "--diff", "--admin", &nobody]);
    assert!(
        code == Some(2) && text.contains("no proxy answers"),
        "{text}"
    );
    std::fs::write(&file, "listen = 5").unwrap();
    let (code, text) = said(&looked, &diff);
    assert!(code == Some(78) && text.contains("T103"), "{text}");
}

#[test]
fn live_counts_of_the_proxys_own_memory_are_explained() {
    let (_backend, looked) = start("5/h");
    for _ in 0..2 {
        assert_eq!(looked.tidegate.get("/").status, 200);
    }
    let admin = looked.address.to_string();
    let words = [
        "explain",
        "GET",
        "/",
        "--ip",
        "127.0.0.1",
        "--live",
        "--admin",
        &admin,
    ];
    let (code, json) = said(&looked, &[&words[..], &["--json"]].concat());
    assert_eq!(code, Some(0), "{json}");
    let told: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(told["counts"]["live"], true, "{json}");
    assert_eq!(told["limits"][0]["rates"][0]["used"], 2, "{json}");
    let (code, text) = said(&looked, &words);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("2 used before"), "{text}");
    // One that is given as a URL has no other name.
    let upstream = text
        .lines()
        .find(|line| line.starts_with("Upstream"))
        .unwrap();
    assert_eq!(upstream.matches("http://").count(), 1, "{text}");
}

#[test]
fn a_setting_that_needs_a_restart_has_the_value_that_runs() {
    let (_backend, looked) = start("5/s");
    let file = looked.tidegate.directory.path().join("proxy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("5/s", "7/s") + "workers = 3\npid_file = \"pid\"\n";
    std::fs::write(&file, text).unwrap();
    let done = looked.post("/api/v1/reload", &serde_json::json!({}));
    assert!(
        done.text().contains("`pid_file` needs a restart"),
        "{}",
        done.text()
    );
    let running = looked.get("/api/v1/config").text();
    assert!(
        running.contains("rate = \"7/s\"") && running.contains("workers = 0\n"),
        "{running}"
    );
    assert!(!running.contains("pid_file"), "{running}");
    let admin = looked.address.to_string();
    let (code, text) = said(&looked, &["config", "--diff", "--admin", &admin]);
    assert_eq!(code, Some(1), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    let expected = [
        "server: pid_file pid, which was not set",
        "server: workers 0 -> 3",
        "Changing `server.workers` needs a restart",
        "Changing `server.pid_file` needs a restart",
    ];
    assert_eq!(lines, expected);
}
