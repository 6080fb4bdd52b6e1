//! Spellings that some upstreams take for one path and others do not: letter case, dots and spaces
//! at the end of a segment, and an escaped semicolon. And what else can be read in two ways: a
//! semicolon in a query, and `HEAD` beside `GET`.

use std::io::Write;
use std::process::Command;

use crate::bypass::guarded;
use crate::house::{Upstream, program};

/// A route of one request a day, and all else without a limit.
fn login(settings: &str) -> String {
    format!(
        "[limit.login]\nrate = \"1/day\"\nkey = \"global\"\n\
         [[route]]\npath = \"/login\"\nlimits = [\"login\"]\n{settings}\
         [[route]]\npath = \"/*\"\nlimits = []\n"
    )
}

const CASES: [&str; 10] = [
    "/Login",
    "/LOGIN",
    "/login",
    "/lOgIn/",
    "/%4cogin",
    "/LOGIN;x=1",
    "/x/../Login",
    "/log%C4%B1n",
    "/LOG%c4%b0N",
    "//LOGIN",
];

const ENDS: [&str; 9] = [
    "/login.",
    "/login..",
    "/login%2e",
    "/login%20",
    "/login%20.",
    "/login./",
    "/login%3Bx=1",
    "/login%3b",
    "/login.%3bx",
];

#[test]
fn no_letter_case_gets_around_a_limit_without_case() {
    let file = format!("case = \"insensitive\"\n{}", login(""));
    let upstream = Upstream::ok();
    // `case` stands before the tables, as `upstream` does.
    let whole = guarded(&upstream, &file);
    let alone = guarded(&upstream, &login("case = \"insensitive\"\n"));
    for proxy in [whole, alone] {
        let before = upstream.seen().len();
        assert_eq!(proxy.get("/LoGin?A=B").status, 200);
        for target in CASES {
            let status = proxy.get(target).status;
            assert!(matches!(status, 400 | 429), "{target}: {status}");
        }
        let seen = upstream.seen();
        assert_eq!(seen.len(), before + 1);
        let head = &seen[before].head;
        assert!(
            head.starts_with("GET /LoGin?A=B "),
            "spelled as it was sent: {head}"
        );
    }
}

#[test]
fn a_route_may_tell_letter_case_apart_in_a_file_that_does_not() {
    let rules = "case = \"insensitive\"\n[limit.a]\nrate = \"1/day\"\nkey = \"path\"\n\
        [[route]]\npath = \"/Files/{name}\"\ncase = \"sensitive\"\nlimits = [\"a\"]\n\
        [[route]]\npath = \"/Docs/{name}\"\nlimits = [\"a\"]\n";
    let upstream = Upstream::ok();
    let proxy = guarded(&upstream, rules);
    for path in ["/Files/a", "/Files/A", "/docs/a"] {
        assert_eq!(proxy.get(path).status, 200, "{path}");
    }
    for path in ["/DOCS/A", "/docs/A", "/Files/A"] {
        assert_eq!(proxy.get(path).status, 429, "{path}");
    }
}

#[test]
fn keys_prefixes_and_bypass_rules_see_one_path() {
    let rules = "case = \"insensitive\"\n[limit.id]\nrate = \"1/day\"\nkey = \"path:id\"\n\
        [[route]]\npath = \"/Api/users/{id}\"\nstrip_prefix = \"/API\"\nlimits = [\"id\"]\n\
        [[bypass]]\npath = \"/api/Users/Health\"\n";
    let upstream = Upstream::ok();
    let proxy = guarded(&upstream, rules);
    assert_eq!(proxy.get("/aPI/Users/Jo").status, 200);
    let seen = upstream.seen().pop().unwrap();
    assert!(seen.head.starts_with("GET /Users/Jo "), "{}", seen.head);
    assert_eq!(seen.header("x-forwarded-prefix").as_deref(), Some("/API"));
    assert_eq!(proxy.get("/api/users/jO").status, 429);
    assert_eq!(proxy.get("/api/users/%6aO").status, 429);
    for _ in 0..3 {
        assert_eq!(proxy.get("/API/users/HEALTH").status, 200);
    }
}

#[test]
fn letter_case_counts_where_nothing_is_said() {
    let upstream = Upstream::ok();
    let proxy = guarded(&upstream, &login(""));
    assert_eq!(proxy.get("/login").status, 200);
    assert_eq!(proxy.get("/login").status, 429);
    assert_eq!(proxy.get("/Login").status, 200);
}

#[test]
fn no_dot_space_or_semicolon_at_the_end_gets_around_a_limit() {
    let upstream = Upstream::ok();
    let proxy = guarded(&upstream, &login(""));
    assert_eq!(proxy.get("/login").status, 200);
    for target in ENDS {
        assert_eq!(proxy.get(target).status, 400, "{target}");
    }
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn where_all_readings_have_one_route_a_path_passes_as_it_was_sent() {
    let rules = "[limit.path]\nrate = \"3/day\"\nkey = \"path\"\n\
        [[route]]\npath = \"/files/*\"\nlimits = [\"path\"]\n\
        [[route]]\npath = \"/login\"\nlimits = []\n[[route]]\npath = \"/*\"\nlimits = []\n";
    let upstream = Upstream::ok();
    let proxy = guarded(&upstream, rules);
    for target in ["/files/report.", "/files/report%20", "/files/report%3Bv=2"] {
        assert_eq!(proxy.get(target).status, 200, "{target}");
        let head = upstream.seen().pop().unwrap().head;
        assert!(head.starts_with(&format!("GET {target} ")), "{head}");
    }
    // They are one path to a key.
    assert_eq!(proxy.get("/files/report").status, 429);
    for target in ["/other.", "/a%20b/c.", "/v1.2/x"] {
        assert_eq!(proxy.get(target).status, 200, "{target}");
    }
}

#[test]
fn explain_and_replay_fold_as_the_proxy_does() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("proxy.toml");
    let rules = login("").replace("limits = []", "limits = [\"other\"]");
    let text = format!(
        "case = \"insensitive\"\nupstream = \"http://127.0.0.1:9\"\n\
         [limit.other]\nrate = \"100/day\"\n{rules}"
    );
    std::fs::write(&file, text).unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(program());
        command.args(words).arg("-c").arg(&file).env_clear();
        let output = command.output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let told = run(&["explain", "GET", "http://h/LOGIN?a=1"]);
    assert!(told.contains("/LOGIN is read as /login"), "{told}");
    assert!(told.contains("login"), "{told}");
    let mut log = std::fs::File::create(folder.path().join("access.log")).unwrap();
    for target in ["/login", "/LOGIN", "/Login", "/other"] {
        writeln!(
            log,
            "192.0.2.7 - - [10/Oct/2025:13:55:36 +0000] \"GET {target} HTTP/1.1\" 200 2 \"-\" \"-\""
        )
        .unwrap();
    }
    let path = folder.path().join("access.log");
    let told = run(&["replay", path.to_str().unwrap(), "--json"]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["denied"]["own"], 2, "{told:#}");
}

#[test]
fn a_semicolon_in_a_query_shows_nobody_another_key() {
    let rules = "[api_key]\nfrom = [\"query:k\"]\n[limit.user]\nrate = \"1/day\"\n\
        key = \"query:user\"\n[limit.key]\nrate = \"1/day\"\nkey = \"api_key\"\n\
        [[route]]\npath = \"/user\"\nlimits = [\"user\"]\n\
        [[route]]\npath = \"/key\"\nlimits = [\"key\"]\n[[bypass]]\nkey = \"monitor\"\n";
    let upstream = Upstream::ok();
    let proxy = guarded(&upstream, rules);
    for target in [
        "/user?a=1;user=x",
        "/user?user=x;user=y",
        "/user?user=x;y",
        "/key?a=1;k=x",
        "/key?k=monitor;k=x",
        "/key?a=1;k=monitor",
        "/key?k=monitor;",
    ] {
        assert_eq!(proxy.get(target).status, 400, "{target}");
    }
    assert_eq!(proxy.get("/user?a=1;b=2&user=x").status, 200);
    assert_eq!(proxy.get("/user?user=x").status, 429);
    assert_eq!(proxy.get("/key?k=monitor").status, 200);
    assert_eq!(upstream.seen().len(), 2);
}

#[test]
fn head_and_get_are_one_method_to_a_key() {
    let rules = "[limit.default]\nrate = \"1/day\"\nkey = [\"ip\", \"method\"]\n";
    let upstream = Upstream::ok();
    let proxy = guarded(&upstream, rules);
    let ask = |method: &str| {
        let mut client = proxy.connect();
        let head = format!("{method} /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
        client.send(head);
        match method {
            "HEAD" => client.answer_to_head().status,
            _ => client.answer().status,
        }
    };
    assert_eq!(ask("HEAD"), 200);
    assert_eq!(ask("GET"), 429);
    assert_eq!(ask("HEAD"), 429);
    assert_eq!(ask("POST"), 200);
    assert_eq!(ask("POST"), 429);
    assert_eq!(ask("DELETE"), 200);
}
