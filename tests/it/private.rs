//! What must stay private: a proxy with a secret in every place that can hold one, taken through
//! allowing, denying, failing and being misconfigured, and then everything that it wrote, told or
//! stored is searched for each of them.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::house::{Client, Tidegate, Upstream};
use crate::support::{RedisServer, free_port, mortal};

/// Each of them once, and nowhere else on the machine.
const HEADER: &str = "hdrQ7xK-secret-of-a-header";
const QUERY: &str = "qryQ7xK-secret-of-a-query";
const COOKIE: &str = "ckiQ7xK-secret-of-a-cookie";
const BEARER: &str = "brrQ7xK-secret-of-a-bearer";
const TIERED: &str = "trdQ7xK-secret-with-a-tier";
const EXEMPT: &str = "exmQ7xK-secret-left-out";
const BYPASS: &str = "bypQ7xK-secret-that-passes";
const SIGNING: &str = "sgnQ7xK-secret-that-signs-tokens-of-all-clients";
const SUBJECT: &str = "subQ7xK-subject-of-a-token";
const ADMIN: &str = "admQ7xK-token-of-the-admin";
const REDIS: &str = "rdsQ7xK-password-of-redis";
const HASH: &str = "hshQ7xK-secret-that-keys-are-hashed-with";
const PASSWORD: &str = "autQ7xK-password-of-basic-auth";

/// What was found where.
#[derive(Default)]
struct Search {
    secrets: Vec<(String, Vec<u8>)>,
    found: Vec<String>,
    looked_at: usize,
}

impl Search {
    fn new(token: &str, key: &str) -> Search {
        let mut search = Search::default();
        for secret in [
            HEADER, QUERY, COOKIE, BEARER, TIERED, EXEMPT, BYPASS, SIGNING, SUBJECT, ADMIN, REDIS,
            HASH, PASSWORD,
        ] {
            search.secret(secret, secret.as_bytes());
            // As far as it does not depend on what stands before it, in base64 too.
            let coded = base64::engine::general_purpose::STANDARD.encode(secret);
            search.secret(secret, &coded.as_bytes()[..coded.len() - 4]);
        }
        let signature = token.rsplit('.').next().unwrap();
        search.secret("signature of a token", signature.as_bytes());
        let lines = key.lines().filter(|line| !line.starts_with("--"));
        for line in lines.filter(|line| line.len() > 20) {
            search.secret("private key", line.as_bytes());
        }
        search
    }

    fn secret(&mut self, name: &str, bytes: &[u8]) {
        self.secrets.push((name.to_owned(), bytes.to_owned()));
    }

    fn look(&mut self, place: &str, bytes: &[u8]) {
        self.looked_at += bytes.len();
        for (name, secret) in &self.secrets {
            if let Some(at) = bytes.windows(secret.len()).position(|part| part == secret) {
                let around =
                    &bytes[at.saturating_sub(60)..(at + secret.len() + 20).min(bytes.len())];
                let around = String::from_utf8_lossy(around).into_owned();
                self.found.push(format!("{place} has `{name}`: {around}"));
            }
        }
    }

    fn output(&mut self, place: &str, output: &Output) {
        self.look(place, &output.stdout);
        self.look(place, &output.stderr);
    }
}

/// A token of `SUBJECT`, signed with `SIGNING`.
fn token() -> String {
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let head = part(r#"{"alg":"HS256","typ":"JWT"}"#);
    let signed = format!("{head}.{}", part(&format!(r#"{{"sub":"{SUBJECT}"}}"#)));
    let key = hmac::Key::new(hmac::HMAC_SHA256, SIGNING.as_bytes());
    let signature = hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
}

/// Everything that Redis is asked, from now on.
fn monitor(port: u16) -> Arc<Mutex<Vec<u8>>> {
    let mut client = Client::to(([127, 0, 0, 1], port).into());
    client.send(format!("AUTH {REDIS}\r\nMONITOR\r\n"));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let mut stream = client.stream;
    stream.set_read_timeout(None).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 65536];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            log.lock().unwrap().extend(&buffer[..count]);
        }
    });
    let patience = Instant::now() + Duration::from_secs(20);
    // `+OK` for each of the two.
    while seen.lock().unwrap().len() < 10 {
        assert!(Instant::now() < patience, "MONITOR does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    seen
}

fn config(upstream: &str, redis: u16) -> String {
    format!(
        r#"
        admin = "127.0.0.1:0"
        admin_token_file = "admin-token"
        [store]
        url = "redis://127.0.0.1:{redis}"
        timeout = "5s"
        password_file = "redis-password"
        hash_key_file = "hash-key"
        [tls]
        listen = "127.0.0.1:0"
        [[tls.certificates]]
        cert = "tls.pem"
        key  = "tls.key"
        [api_key]
        from = ["header:x-api-key", "query:key", "cookie:key", "bearer"]
        unknown = "trust"
        [auth.jwt]
        secret_file = "signing"
        [tier]
        keys_file = "tiers"
        [limit.key]
        rate   = "3/day"
        key    = "api_key or ip"
        tiers  = {{ pro = "4/day" }}
        exempt = ["{EXEMPT}"]
        [limit.subject]
        rate = "2/day"
        key  = "jwt:sub"
        [limit.header]
        rate   = "1/day"
        key    = "header:x-api-key"
        shadow = true
        [upstream.app]
        servers = ["{upstream}"]
        [upstream.dead]
        servers = ["http://127.0.0.1:{dead}"]
        [[route]]
        path     = "/*"
        upstream = "app"
        limits   = ["key", "header"]
        [[route]]
        path     = "/subject"
        upstream = "app"
        limits   = ["subject"]
        [[route]]
        path     = "/dead/*"
        upstream = "dead"
        limits   = []
        [[bypass]]
        header     = "x-internal"
        value_file = "bypass"
        [log]
        sample_allowed = 1.0
        decisions      = "decisions.jsonl"
        [server]
        control = "control.sock"
        "#,
        dead = free_port()
    )
}

/// Every way in which a client carries a secret.
fn ways(token: &str) -> Vec<(&'static str, String)> {
    let basic = base64::engine::general_purpose::STANDARD.encode(format!("jo:{PASSWORD}"));
    vec![
        ("/a", format!("X-Api-Key: {HEADER}\r\n")),
        ("/b?x=1&key=qryQ7xK-secret-of-a-query", String::new()),
        ("/c", format!("Cookie: a=b; key={COOKIE}\r\n")),
        ("/d", format!("Authorization: Bearer {BEARER}\r\n")),
        ("/e", format!("X-Api-Key: {TIERED}\r\n")),
        ("/f", format!("X-Api-Key: {EXEMPT}\r\n")),
        ("/g", format!("X-Internal: {BYPASS}\r\n")),
        ("/subject", format!("Authorization: Bearer {token}\r\n")),
        ("/h", format!("Authorization: Basic {basic}\r\n")),
    ]
}

fn ask(proxy: &Tidegate, token: &str, times: usize, search: &mut Search) -> Vec<u16> {
    let mut statuses = Vec::new();
    for (path, headers) in ways(token) {
        for _ in 0..times {
            let answer = proxy.get_with(path, &headers);
            search.look("an answer's head", answer.head.as_bytes());
            search.look("an answer's body", &answer.body);
            statuses.push(answer.status);
        }
        let dead = proxy.get_with(&format!("/dead{path}"), &headers);
        // One of them is blocked in the end.
        assert!(matches!(dead.status, 429 | 502 | 503 | 504), "{dead:?}");
        search.look("an error's head", dead.head.as_bytes());
        search.look("an error's body", &dead.body);
    }
    // Requests that are no good, with secrets in them.
    for bad in [
        format!("GET /?key={QUERY} HTTP/1.1\r\nHost: a b\r\nX-Api-Key: {HEADER}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: a\r\nX-Api-Key : {HEADER}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: a\r\nX-Api-Key: {HEADER}\r\nX-Api-Key: {TIERED}\r\n\r\n"),
        format!("GET /{QUERY}%zz HTTP/1.1\r\nHost: a\r\n\r\n").replace(QUERY, "x"),
    ] {
        let mut client = proxy.connect();
        client.send(bad);
        let answer = client.answer();
        assert_eq!(answer.status, 400, "{answer:?}");
        search.look("a refusal", answer.head.as_bytes());
        search.look("a refusal", &answer.body);
    }
    statuses
}

fn command(folder: &Path, words: &[&str]) -> Output {
    let mut command = mortal(env!("CARGO_BIN_EXE_tidegate"));
    command.env_clear().current_dir(folder).args(words);
    command.output().unwrap()
}

/// Looks at the diagnostics until one has this in it.
fn diagnostics_until(proxy: &Tidegate, part: &str, search: &mut Search) -> String {
    let patience = Instant::now() + Duration::from_secs(20);
    loop {
        let lines = proxy.said();
        for line in &lines {
            search.look("the diagnostics", line.as_bytes());
        }
        if let Some(line) = lines.into_iter().find(|line| line.contains(part)) {
            return line;
        }
        assert!(Instant::now() < patience, "never said {part}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The admin, with and without its token.
fn operators(admin: std::net::SocketAddr, search: &mut Search) {
    let bearer = format!("Authorization: Bearer {ADMIN}\r\n");
    for lines in ["", &bearer] {
        for path in [
            "/",
            "/metrics",
            "/healthz",
            "/readyz",
            "/openapi.json",
            "/api/v1/status",
            "/api/v1/config",
            "/api/v1/limits",
            "/api/v1/clients/127.0.0.1",
            "/api/v1/limits/header/promotions",
            "/api/v1/upstreams",
            "/api/v1/traffic",
            "/api/v1/denials",
            "/api/v1/reloads",
            "/api/v1/nothing",
        ] {
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n{lines}\r\n");
            let mut client = Client::to(admin);
            client.send(request);
            let seen = client.rest();
            assert!(seen.starts_with(b"HTTP/1.1 "), "{path}");
            search.look(&format!("the admin's {path}"), &seen);
        }
    }
}

/// A file with mistakes beside its secrets: what is said of it.
fn misconfigured(folder: &Path, good: &str, search: &mut Search) {
    for (number, mistake) in [
        format!("[store]\nurl = \"redis://:{REDIS}@127.0.0.1:port\"\n"),
        format!("[store]\nurl = \"redis://:{REDIS}@127.0.0.1:1\"\npassword_file = \"x\"\n"),
        format!("[store]\npassword = \"{REDIS}\"\n"),
        format!("[[bypass]]\nheader = 7\nvalue = \"{BYPASS}\"\n"),
        format!("[limit.a]\nrate = \"1/s\"\nexempt = [\"{EXEMPT}\", 7]\n"),
        format!("admin_token = \"{ADMIN}\"\n"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("bad-{number}.toml");
        let text = format!("upstream = \"http://127.0.0.1:1\"\n{mistake}");
        fs::write(folder.join(&name), text).unwrap();
        for format in ["human", "json", "github"] {
            let words = ["check", "-c", &name, "--format", format];
            let output = command(folder, &words);
            assert_ne!(output.status.code(), Some(0), "{mistake}");
            search.output(&format!("check --format {format} of `{mistake}`"), &output);
        }
        let output = command(folder, &["config", "-c", &name]);
        search.output(&format!("config of `{mistake}`"), &output);
    }
    // And the running proxy, which is told to read such a one.
    let broken = good.replace("[store]", "[store]\nprefxi = \"a\"");
    fs::write(folder.join("proxy.toml"), broken).unwrap();
    let output = command(folder, &["reload"]);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    search.output("reload", &output);
    fs::write(folder.join("proxy.toml"), good).unwrap();
}

#[test]
fn no_secret_is_written_told_or_stored() {
    let mut redis = RedisServer::start_with(&["--requirepass", REDIS, "--rdbcompression", "no"]);
    let asked = monitor(redis.port());
    let upstream = Upstream::ok();
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    let key = made.signing_key.serialize_pem();
    for (name, text) in [
        ("admin-token", ADMIN),
        ("redis-password", REDIS),
        ("hash-key", HASH),
        ("tls.pem", &made.cert.pem()),
        ("tls.key", &key),
        ("signing", SIGNING),
        ("tiers", &format!("{TIERED} pro\n")),
        ("bypass", BYPASS),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let token = token();
    let mut search = Search::new(&token, &key);
    let text = config(&upstream.url(), redis.port());
    let env = [("RUST_LOG", "debug")];
    let mut proxy = Tidegate::start_in(folder, &text, &env);
    let line = diagnostics_until(&proxy, "dashboard  http://", &mut search);
    let admin = line.split('/').nth(2).unwrap().parse().unwrap();
    let path = proxy.directory.path().to_owned();

    let statuses = ask(&proxy, &token, 5, &mut search);
    let count = |status| statuses.iter().filter(|one| **one == status).count();
    assert!(count(200) >= 20 && count(429) >= 10, "{statuses:?}");
    operators(admin, &mut search);
    let good = fs::read_to_string(path.join("proxy.toml")).unwrap();
    misconfigured(&path, &good, &mut search);
    let at = admin.to_string();
    for words in [
        &["config"][..],
        &["config", "--json"],
        &["check"],
        &["check", "--online"],
        &["limits", "ls", "--audit"],
        &[
            "limits",
            "block",
            &format!("api_key={HEADER}"),
            "--for",
            "1h",
        ],
        &["limits", "ls", "--audit"],
        &["status", "--admin", &at],
        &["config", "--diff", "--admin", &at],
        &["explain", "GET", "/", "-H", &format!("x-api-key: {HEADER}")],
        &[
            "explain",
            "GET",
            "/subject",
            "-H",
            &format!("authorization: Bearer {token}"),
        ],
    ] {
        let shown = words.join(" ");
        let output = command(&path, words);
        let place = format!("tidegate {}", &shown[..shown.len().min(30)]);
        // Who asks what would become of a request is told what it is counted by: they sent it.
        let told = String::from_utf8_lossy(&output.stdout).replace(SUBJECT, "");
        search.look(&place, told.as_bytes());
        search.look(&place, &output.stderr);
    }

    // What Redis holds, as it would write it to disk.
    let url = format!("redis://:{REDIS}@127.0.0.1:{}/", redis.port());
    let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    let keys: usize = redis::cmd("DBSIZE").query(&mut connection).unwrap();
    assert!(keys >= 5, "{keys}");
    redis::cmd("SAVE").query::<()>(&mut connection).unwrap();
    let stored = fs::read(redis.directory().join("dump.rdb")).unwrap();
    search.look("Redis's keys", &stored);

    // Without Redis, and with the wrong password.
    redis.kill();
    ask(&proxy, &token, 1, &mut search);
    diagnostics_until(&proxy, "store", &mut search);
    search.look("what Redis was asked", &asked.lock().unwrap());
    proxy.signal("TERM");
    proxy.wait();
    for line in proxy.said() {
        search.look("the diagnostics", line.as_bytes());
    }
    search.look("the access log", proxy.stdout().as_bytes());
    let decisions = fs::read(path.join("decisions.jsonl")).unwrap();
    assert!(decisions.len() > 1000, "the decision log is empty");
    search.look("the decision log", &decisions);

    assert!(search.looked_at > 100_000, "{}", search.looked_at);
    assert!(search.found.is_empty(), "{}", search.found.join("\n"));
}
