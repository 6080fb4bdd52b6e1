//! `tidegate import`: a corpus of configurations with exactly what they become, and nginx itself
//! beside the proxy that it became.
//!
//! `tests/fixtures/import/nginx/NAME` beside `NAME.out.toml`, and the same for other programs;
//! `TIDEGATE_ACCEPT=1 cargo test --test it -- import` writes what comes out now.

mod closed;
mod gateways;
mod guards;
mod waits;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Output};
use std::time::{Duration, Instant};

use tidegate::import::{ImportError, SourceProgram};

use crate::house::{Client, Tidegate, Upstream};
use crate::support::{Chance, free_port, mortal};

fn run(folder: &Path, words: &[&str]) -> Output {
    let mut command = mortal(env!("CARGO_BIN_EXE_tidegate"));
    command.env_clear().current_dir(folder).args(words);
    command.output().unwrap()
}

fn folder(program: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/import");
    fixtures.join(program)
}

fn corpus(program: &str) -> Vec<String> {
    let entries = fs::read_dir(folder(program)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let made = |name: &String| name.ends_with(".out.toml") || !name.contains('.');
    let mut names: Vec<String> = names.filter(|name| !made(name)).collect();
    names.sort();
    names
}

#[test]
fn every_configuration_becomes_its_text_which_check_takes() {
    let mut wrong = String::new();
    for program in [
        "nginx",
        "traefik",
        "envoy-ratelimit",
        "kong",
        "apisix",
        "envoy-ai",
        "tyk",
    ] {
        let names = corpus(program);
        assert!(names.len() >= 4, "{names:?}");
        for name in names {
            let output = run(&folder(program), &["import", program, &name]);
            let code = output.status.code().unwrap();
            let mut out = String::from_utf8(output.stdout).unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            if code == 0 {
                let written = tempfile::tempdir().unwrap();
                fs::write(written.path().join("proxy.toml"), &out).unwrap();
                let checked = run(written.path(), &["check"]);
                assert!(checked.status.success(), "{name}: {checked:?}");
            } else {
                out = format!("{said}exit {code}\n");
            }
            let path = folder(program).join(format!("{name}.out.toml"));
            if std::env::var_os("TIDEGATE_ACCEPT").is_some() {
                fs::write(&path, &out).unwrap();
                continue;
            }
            let expected = fs::read_to_string(&path).unwrap_or_default();
            if out != expected {
                wrong.push_str(&format!("-- {name}, expected:\n{expected}-- is:\n{out}\n"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn what_is_lost_is_said_and_may_be_an_error() {
    let folder = folder("nginx");
    let output = run(&folder, &["import", "nginx", "classic.conf", "--strict"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("not kept: classic.conf:70: fastcgi_pass "),
        "{said}"
    );
    assert!(said.ends_with("the whole list is at the head of the file\n"));
    let output = run(&folder, &["import", "nginx", "nowhere.conf"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        run(&folder, &["import", "apache", "x"]).status.code(),
        Some(2)
    );
}

#[test]
fn an_import_is_written_where_nothing_is() {
    let written = tempfile::tempdir().unwrap();
    let source = folder("nginx").join("classic.conf");
    let words = [
        "import",
        "nginx",
        source.to_str().unwrap(),
        "-o",
        "proxy.toml",
    ];
    assert!(run(written.path(), &words).status.success());
    assert_eq!(run(written.path(), &words).status.code(), Some(2));
    let forced = [&words[..], &["--force"]].concat();
    assert!(run(written.path(), &forced).status.success());
    assert!(run(written.path(), &["check"]).status.success());
}

#[test]
fn standard_input_is_read_too() {
    let mut command = mortal("sh");
    let bin = env!("CARGO_BIN_EXE_tidegate");
    let conf = "server { listen 81; location / { proxy_pass http://127.0.0.1:1; } }";
    command.args(["-c", &format!("echo '{conf}' | {bin} import nginx -")]);
    let output = command.output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(
        out.contains("listen = [\":81\"]") && out.contains("# -:1: location /"),
        "{out}"
    );
}

#[test]
fn each_domain_of_a_rate_limit_service_is_a_file() {
    let source = folder("envoy-ratelimit");
    let written = tempfile::tempdir().unwrap();
    let output = written.path().join("proxy.toml");
    let output = output.to_str().unwrap();
    let words = ["import", "envoy-ratelimit"];
    let files = ["shop.yml", "tenants.yml"];
    let made = run(&source, &[&words[..], &files, &["-o", output]].concat());
    assert_eq!(made.status.code(), Some(0), "{made:?}");
    let error = String::from_utf8(made.stderr).unwrap();
    assert!(
        error.contains("differs:  tenants.yml:12: tenant=acme, user: "),
        "{error}"
    );
    let checked = run(written.path(), &["check"]);
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    let text = fs::read_to_string(output).unwrap();
    for line in ["domain  = \"shop\"", "domain  = \"tenants\"", "listen = []"] {
        assert!(text.contains(&format!("\n{line}\n")), "{line}\n{text}");
    }
    let strict = run(&source, &[&words[..], &files, &["--strict"]].concat());
    assert_eq!(strict.status.code(), Some(1), "{strict:?}");
    let twice = run(&source, &[&words[..], &["shop.yml", "shop.yml"]].concat());
    assert_eq!(twice.status.code(), Some(78), "{twice:?}");
    let many = run(
        &folder("traefik"),
        &["import", "traefik", "dynamic.yml", "labels.yml"],
    );
    assert_eq!(many.status.code(), Some(2), "{many:?}");
}

/// Blocks and included files count as one depth, so that a file which includes itself within many
/// blocks is refused before the stack is used up.
#[test]
fn a_file_that_includes_itself_in_deep_blocks_is_refused() {
    const BLOCKS: usize = 31;
    let folder = tempfile::tempdir().unwrap();
    let (open, close) = ("location / {\n".repeat(BLOCKS), "}\n".repeat(BLOCKS));
    let conf = format!("{open}include *.conf;\n{close}");
    fs::write(folder.path().join("nginx.conf"), conf).unwrap();
    let mut command = mortal("sh");
    let bin = env!("CARGO_BIN_EXE_tidegate");
    let script = format!("ulimit -s 2048; exec {bin} import nginx nginx.conf");
    command.current_dir(folder.path()).args(["-c", &script]);
    let output = command.output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{error}");
    assert!(error.contains("blocks are nested too deep"), "{error}");
}

#[test]
fn certificates_that_are_here_are_used() {
    let written = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    let path = |name: &str| written.path().join(name).display().to_string();
    fs::write(path("a.pem"), made.cert.pem()).unwrap();
    fs::write(path("a.key"), made.signing_key.serialize_pem()).unwrap();
    let conf = format!(
        "server {{ listen 80; return 301 https://$host$request_uri; }}\n\
         server {{ listen 443 ssl; server_name a.example; ssl_certificate {};\n\
         ssl_certificate_key {}; location / {{ proxy_pass http://127.0.0.1:1; }} }}\n",
        path("a.pem"),
        path("a.key")
    );
    fs::write(path("nginx.conf"), conf).unwrap();
    let output = run(
        written.path(),
        &["import", "nginx", "nginx.conf", "--strict"],
    );
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{out}");
    assert!(
        out.contains("\n[tls]\nlisten   = [\":443\"]\nredirect = true\n"),
        "{out}"
    );
}

/// nginx with this in its `http`, killed when it is dropped.
struct Nginx {
    child: Child,
    _folder: tempfile::TempDir,
}

impl Nginx {
    fn start(http: &str, address: SocketAddr) -> Nginx {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary = temporary.map(|one| format!("{one}_temp_path {};", path(one)));
        let conf = format!(
            "daemon off; master_process off; pid {}; error_log {};\nevents {{}}\n\
             http {{ access_log off; {}\n{http} }}\n",
            path("pid"),
            path("error.log"),
            temporary.join(" ")
        );
        fs::write(path("nginx.conf"), conf).unwrap();
        let mut command = mortal("nginx");
        command.args(["-c", &path("nginx.conf"), "-e", &path("error.log")]);
        let child = command.spawn().expect("nginx is installed");
        let patience = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(address).is_err() {
            assert!(Instant::now() < patience, "nginx does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        Nginx {
            child,
            _folder: folder,
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How many of so many requests at once are let through, by path and key.
fn admitted(address: SocketAddr, path: &str, key: Option<&str>, count: usize) -> usize {
    let mut client = Client::to(address);
    let key = key.map_or(String::new(), |key| format!("X-Api-Key: {key}\r\n"));
    let request = format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n{key}\r\n");
    let mut passed = 0;
    for _ in 0..count {
        client.send(request.as_bytes());
        let answer = client.answer();
        assert!(matches!(answer.status, 200 | 429), "{path}: {answer:?}");
        passed += usize::from(answer.status == 200);
    }
    passed
}

#[test]
fn nginx_and_what_it_became_let_the_same_burst_through() {
    let upstream = Upstream::ok();
    let (port, ours) = (free_port(), free_port());
    let http = |port: u16| {
        format!(
            "limit_req_zone $binary_remote_addr zone=ip:1m rate=2r/m;\n\
             limit_req_zone $http_x_api_key zone=key:1m rate=1r/m;\n\
             limit_req_status 429;\n\
             server {{\n  listen 127.0.0.1:{port};\n\
             location / {{ limit_req zone=ip burst=6 nodelay; proxy_pass {url}; }}\n\
             location /key/ {{ limit_req zone=key burst=3 nodelay; proxy_pass {url}; }}\n\
             location = /one {{ limit_req zone=ip; proxy_pass {url}; }}\n\
             location /trial/ {{ limit_req zone=ip; limit_req_dry_run on; proxy_pass {url}; }}\n\
             }}\n",
            url = upstream.url()
        )
    };
    let theirs = SocketAddr::from(([127, 0, 0, 1], port));
    let _nginx = Nginx::start(&http(port), theirs);
    let source = tempfile::tempdir().unwrap();
    fs::write(source.path().join("site.conf"), http(ours)).unwrap();
    let output = run(source.path(), &["import", "nginx", "site.conf"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    // The tests' proxies say themselves where they listen.
    let proxy = Tidegate::start(&text.replace(&format!("listen = [\"127.0.0.1:{ours}\"]\n"), ""));
    for (path, key, count, passed) in [
        ("/", None, 20, 7),
        ("/key/", Some("a"), 20, 4),
        ("/key/", Some("b"), 20, 4),
        // Whoever has no key is not counted.
        ("/key/", None, 20, 20),
        ("/trial/", None, 20, 20),
    ] {
        let both = [theirs, proxy.address].map(|at| admitted(at, path, key, count));
        assert_eq!(both, [passed, passed], "{path} {key:?}\n{text}");
    }
    // In nginx the zone's burst was used on another path already; here each burst counts for itself.
    assert_eq!(admitted(proxy.address, "/one", None, 5), 1);
    assert_eq!(admitted(theirs, "/one", None, 5), 0);
}

/// A text in which words of others stand, some are missing, and some stand twice.
fn shaken(text: &str, words: &[&str], chance: &mut Chance) -> String {
    let mut parts: Vec<&str> = text
        .split_inclusive([' ', '\n', ';', '{', '}', '"', '`'])
        .collect();
    for _ in 0..1 + chance.below(6) {
        let at = chance.below(parts.len() as u64) as usize;
        match chance.below(4) {
            0 => drop(parts.remove(at)),
            1 => parts.insert(at, parts[chance.below(parts.len() as u64) as usize]),
            2 => parts.insert(at, chance.pick(words)),
            _ => parts[at] = chance.pick(words),
        }
        if parts.is_empty() {
            break;
        }
    }
    parts.concat()
}

#[test]
fn whatever_is_read_what_is_written_can_be_used() {
    let hostile = [
        "${HOME}",
        "\"",
        "\\",
        "{",
        "}",
        ";",
        "/{a}/",
        "/a//b",
        "/*",
        "*",
        "\u{7f}",
        "ä",
        "-1",
        "0",
        "99999999999999999999",
        "1000000000000",
        "unix:",
        "[::1]:99999",
        "$",
        "$$",
        "''",
        "http://",
        "http://a b/",
        "https://[::1",
        "h2c://x",
        "..",
        "/..",
        "~",
        "=",
        "301",
        "{{x}}",
    ];
    let mut chance = Chance(7);
    let folder = tempfile::tempdir().unwrap();
    let mut written = 0;
    for (program, from) in [
        ("nginx", SourceProgram::Nginx),
        ("traefik", SourceProgram::Traefik),
        ("envoy-ratelimit", SourceProgram::EnvoyRatelimit),
        ("kong", SourceProgram::Kong),
        ("apisix", SourceProgram::Apisix),
        ("envoy-ai", SourceProgram::EnvoyAi),
    ] {
        for name in corpus(program) {
            let text = fs::read_to_string(self::folder(program).join(&name)).unwrap();
            let own: Vec<&str> = text.split_whitespace().collect();
            let words = [&hostile[..], &own].concat();
            let path = folder.path().join(&name);
            for round in 0..40 {
                let text = shaken(&text, &words, &mut chance);
                fs::write(&path, &text).unwrap();
                match tidegate::import::import(from, std::slice::from_ref(&path)) {
                    Ok(_) => written += 1,
                    Err(ImportError::Syntax(_)) => {}
                    Err(error) => panic!("{name}, round {round}: {error}\n{text}"),
                }
            }
        }
    }
    assert!(written > 100, "{written}");
}
