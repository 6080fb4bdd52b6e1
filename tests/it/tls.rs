//! TLS with clients: real ones on real sockets, in both versions; what they are shown, what they
//! must show, and what becomes of those who do it wrong.

mod acme;
mod faults;
mod renewal;
mod revoked;
pub mod stage;

use std::io::{Read, Write};
use std::process::Command;

use rustls::version::{TLS12, TLS13};

use crate::house::Upstream;
use stage::{Stage, connect};

const WIDE: &str = "[limit.default]\nrate = \"1_000_000/day\"\n";
const VERSIONS: [&[&str]; 2] = [&["--tls-max", "1.2"], &["--tlsv1.3"]];

#[test]
fn each_name_gets_its_certificate_in_both_versions() {
    let stage = Stage::start("", WIDE);
    for version in VERSIONS {
        for host in ["one.test", "two.test", "x.wild.test", "localhost"] {
            let answer = stage.curled(host, "/", version);
            assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer}");
        }
        // Who asks for another name is shown the first one, and may refuse it.
        let output = stage.curl("other.test", "/", version);
        assert_eq!(output.status.code(), Some(60), "{output:?}");
    }
    let said = stage.openssl("other.test", &[]);
    assert!(said.contains("subject=O = ca, CN = one"), "{said}");
    let said = stage.openssl("A.WILD.test", &[]);
    assert!(said.contains("subject=O = ca, CN = two"), "{said}");
    let unnamed = stage.openssl("", &[]);
    assert!(unnamed.contains("CN = one"), "{unnamed}");
    assert!(
        unnamed.contains("HTTP/1.1 200") || unnamed.contains("HTTP/1.0 200"),
        "{unnamed}"
    );
}

#[test]
fn the_protocol_inside_is_agreed_on() {
    let stage = Stage::start("", WIDE);
    let said = stage.openssl("one.test", &["-alpn", "http/1.1"]);
    assert!(said.contains("ALPN protocol: http/1.1"), "{said}");
    let said = stage.openssl("one.test", &["-alpn", "http/1.1,h2"]);
    assert!(said.contains("ALPN protocol: h2"), "{said}");
    for version in VERSIONS {
        let answer = stage.curled("one.test", "/", &[version, &["--http2"]].concat());
        assert!(answer.starts_with("HTTP/2 200"), "{answer}");
    }
    let seen = stage.upstream.seen().remove(0);
    assert_eq!(seen.header("x-forwarded-proto").as_deref(), Some("https"));
    let said = stage.openssl("one.test", &["-alpn", "smtp"]);
    assert!(said.contains("no application protocol"), "{said}");
}

#[test]
fn http2_is_not_offered_where_it_is_off() {
    let stage = Stage::start("", &format!("{WIDE}[server]\nhttp2 = false\n"));
    let said = stage.openssl("one.test", &["-alpn", "h2,http/1.1"]);
    assert!(said.contains("ALPN protocol: http/1.1"), "{said}");
}

#[test]
fn upstreams_are_told_that_the_client_came_over_tls() {
    let stage = Stage::start("", WIDE);
    stage.curled("one.test", "/a?b=c", &["-H", "x-forwarded-proto: gopher"]);
    let seen = stage.upstream.seen().remove(0);
    assert_eq!(seen.header("x-forwarded-proto").as_deref(), Some("https"));
    let forwarded = seen.header("forwarded").unwrap();
    assert!(forwarded.ends_with(";proto=https"), "{forwarded}");
    stage.proxy.get("/plain");
    let seen = stage.upstream.seen().remove(1);
    assert_eq!(seen.header("x-forwarded-proto").as_deref(), Some("http"));
}

#[test]
fn who_comes_without_is_sent_to_https_and_browsers_remember() {
    let stage = Stage::start(
        "redirect = true\nhsts = \"30d\"",
        &format!("[client_ip]\nheader = \"x-forwarded-for\"\n{WIDE}"),
    );
    let port = stage.secure.port();
    let answer = stage.proxy.get("/a/b?c=d");
    assert_eq!(answer.status, 308);
    let place = format!("https://test:{port}/a/b?c=d");
    assert_eq!(answer.header("location"), Some(place));
    assert_eq!(answer.header("strict-transport-security"), None);
    assert!(stage.upstream.seen().is_empty());
    // Whatever a client writes there, it stays a path of that host.
    let answer = stage.proxy.get("//evil.example/x");
    let place = format!("https://test:{port}//evil.example/x");
    assert_eq!(answer.header("location"), Some(place));
    let answer = stage.proxy.get("/x\"a\u{e4}?%2f");
    let place = format!("https://test:{port}/x%22a%C3%A4?%2f");
    assert_eq!(answer.header("location"), Some(place));
    let mut client = stage.proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: a b\r\n\r\n");
    assert_eq!(client.answer().status, 400);
    let answer = stage.curled("one.test", "/", &[]);
    assert!(
        answer.contains("strict-transport-security: max-age=2592000"),
        "{answer}"
    );
}

#[test]
fn behind_a_proxy_that_spoke_tls_nobody_is_sent_in_circles() {
    let upstream = Upstream::ok();
    let directory = tempfile::tempdir().unwrap();
    stage::Authority::new(directory.path(), "ca").write(
        directory.path(),
        "one",
        &["one.test"],
        2999,
    );
    let config = format!(
        "trusted_proxies = \"127.0.0.1\"\nupstream = \"{}\"\n[tls]\nlisten = \"127.0.0.1:0\"\n\
         certificates = {{ cert = \"one.pem\", key = \"one.key\" }}\nredirect = 443\n{WIDE}",
        upstream.url()
    );
    let proxy = crate::house::Tidegate::start_in(directory, &config, &[]);
    // Traefik writes `wss` for WebSockets.
    for proto in ["https", "wss"] {
        let answer = proxy.get_with("/", &format!("X-Forwarded-Proto: {proto}\r\n"));
        assert_eq!(answer.status, 200);
    }
    let answer = proxy.get_with("/", "X-Forwarded-Proto: http\r\n");
    assert_eq!(answer.status, 308);
    assert_eq!(answer.header("location").as_deref(), Some("https://test/"));
}

#[test]
fn an_old_version_can_be_refused() {
    let stage = Stage::start("min_version = \"1.3\"", WIDE);
    let output = stage.curl("one.test", "/", &["--tls-max", "1.2"]);
    assert_eq!(output.status.code(), Some(35), "{output:?}");
    stage.curled("one.test", "/", &["--tlsv1.3"]);
    let said = stage.openssl("one.test", &["-tls1_2"]);
    assert!(said.contains("alert protocol version"), "{said}");
}

#[test]
fn sessions_are_resumed_in_both_versions_whichever_worker_is_met() {
    let stage = Stage::start("", &format!("{WIDE}[server]\nworkers = 3\n"));
    for version in ["-tls1_2", "-tls1_3"] {
        let first = stage.openssl("one.test", &[version, "-sess_out", "session"]);
        assert!(first.contains("New, TLSv1"), "{first}");
        for _ in 0..5 {
            let again = stage.openssl("one.test", &[version, "-sess_in", "session"]);
            assert!(again.contains("Reused, TLSv1"), "{version}: {again}");
            assert!(again.contains("200 OK"), "{again}");
        }
    }
}

#[test]
fn bodies_pass_whole_both_ways() {
    let upstream = Upstream::start(|seen, stream| {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
            seen.body.len()
        );
        stream.write_all(head.as_bytes()).is_ok() && stream.write_all(&seen.body).is_ok()
    });
    let stage = Stage::before(upstream, "", WIDE);
    let body: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    for versions in [&[&TLS12], &[&TLS13]] {
        let config = stage.client(versions);
        let mut client = connect(&config, stage.secure, "one.test");
        for _ in 0..2 {
            let head = format!(
                "POST / HTTP/1.1\r\nHost: one.test\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            client.write_all(head.as_bytes()).unwrap();
            client.write_all(&body).unwrap();
            let mut answer = Vec::new();
            let end = loop {
                let mut chunk = [0; 1 << 14];
                let read = client.read(&mut chunk).unwrap();
                answer.extend_from_slice(&chunk[..read]);
                if let Some(at) = answer.windows(4).position(|four| four == b"\r\n\r\n") {
                    break at + 4;
                }
            };
            let have = answer.len() - end;
            let mut rest = vec![0; body.len() - have];
            client.read_exact(&mut rest).unwrap();
            assert!([&answer[end..], &rest].concat() == body);
        }
    }
}

#[test]
fn python_speaks_with_it_on_one_connection() {
    let stage = Stage::start("", WIDE);
    let script = "import http.client, ssl, sys\n\
        c = ssl.create_default_context(cafile='ca.pem')\n\
        h = http.client.HTTPSConnection('localhost', int(sys.argv[1]), context=c, timeout=10)\n\
        for i in range(20):\n\
        \x20   h.request('POST', '/', body=b'x' * i * 1000)\n\
        \x20   r = h.getresponse(); assert r.status == 200 and r.read() == b'ok'\n\
        print(h.sock.version())\n";
    let output = Command::new("python3")
        .args(["-c", script, &stage.secure.port().to_string()])
        .current_dir(stage.proxy.directory.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"TLSv1.3\n");
    assert_eq!(stage.upstream.seen().len(), 20);
}

const BY_SUBJECT: &str = "[limit.default]\nrate = \"3/day\"\nkey = \"tls:subject or ip\"\n";

#[test]
fn clients_are_who_their_certificates_say() {
    let stage = Stage::start("client_ca = \"ca.pem\"", BY_SUBJECT);
    let ask = |who: &str, version: &[&str]| {
        let (cert, key) = (format!("{who}.pem"), format!("{who}.key"));
        let more = [version, &["--cert", &cert, "--key", &key]].concat();
        stage.curled("one.test", "/", &more)
    };
    for left in (0..3).rev() {
        let answer = ask("ann", VERSIONS[left % 2]);
        assert!(
            answer.contains(&format!("x-ratelimit-remaining: {left}")),
            "{answer}"
        );
    }
    assert!(ask("ann", &[]).starts_with("HTTP/1.1 429"));
    assert!(ask("bob", &[]).contains("x-ratelimit-remaining: 2"));
    // A resumed session is the same client.
    let config = stage.client_as("bob", &stage.client(&[&TLS13]));
    for left in [1, 0] {
        let mut client = connect(&config, stage.secure, "one.test");
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: one.test\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(
            answer.contains(&format!("x-ratelimit-remaining: {left}")),
            "{answer}"
        );
        let resumed = client.conn.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
        assert_eq!(resumed, left == 0);
    }
}

#[test]
fn who_shows_no_good_certificate_is_turned_away() {
    let stage = Stage::start("client_ca = \"ca.pem\"", BY_SUBJECT);
    for version in VERSIONS {
        let output = stage.curl("one.test", "/", version);
        assert!(!output.status.success(), "{output:?}");
        for who in ["late", "eve"] {
            let (cert, key) = (format!("{who}.pem"), format!("{who}.key"));
            let more = [version, &["--cert", &cert, "--key", &key]].concat();
            let output = stage.curl("one.test", "/", &more);
            assert!(!output.status.success(), "{who}: {output:?}");
            assert!(output.stdout.is_empty(), "{who}: {output:?}");
        }
    }
    assert!(stage.upstream.seen().is_empty());
}

#[test]
fn where_certificates_are_optional_the_others_count_by_their_address() {
    let stage = Stage::start(
        "client_ca = \"ca.pem\"\nclient_auth = \"optional\"",
        BY_SUBJECT,
    );
    let shown = ["--cert", "ann.pem", "--key", "ann.key"];
    assert!(
        stage
            .curled("one.test", "/", &shown)
            .contains("x-ratelimit-remaining: 2")
    );
    assert!(
        stage
            .curled("one.test", "/", &[])
            .contains("x-ratelimit-remaining: 2")
    );
    assert!(
        stage
            .curled("one.test", "/", &[])
            .contains("x-ratelimit-remaining: 1")
    );
    // One that is wrong is not as good as none.
    let expired = ["--cert", "late.pem", "--key", "late.key"];
    assert!(!stage.curl("one.test", "/", &expired).status.success());
}

#[test]
fn a_route_may_want_a_certificate_that_others_do_not() {
    let stage = Stage::start(
        "client_ca = \"ca.pem\"\nclient_auth = \"optional\"",
        &format!(
            "{BY_SUBJECT}[[route]]\npath = \"/*\"\n\
             [[route]]\npath = \"/admin\"\nrequire_client_certificate = true\n\
             [[route]]\npath = \"/text\"\nrequire_client_certificate = 400\nrespond = {{}}\n\
             [[route]]\npath = \"/open\"\nrequire_client_certificate = false\n"
        ),
    );
    let shown = ["--cert", "ann.pem", "--key", "ann.key"];
    for (path, without, with) in [
        ("/admin", 403, 200),
        ("/admin/", 403, 200),
        ("/text", 400, 200),
        ("/open", 200, 429),
        ("/", 200, 429),
    ] {
        for (more, status) in [(&[][..], without), (&shown, with)] {
            let answer = stage.curled("one.test", path, more);
            let begin = format!("HTTP/1.1 {status} ");
            assert!(answer.starts_with(&begin), "{path} {more:?}: {answer}");
        }
    }
    // Plain requests show no certificate.
    let answer = stage.proxy.get("/admin");
    answer.assert_problem(403);
    assert!(answer.text().contains("verified certificate"), "{answer:?}");
}

#[test]
fn upstreams_and_clients_are_told_facts_of_the_connection() {
    let facts = "{tls_version}|{tls_cipher}|{tls_server_name}|{tls_resumed}|{tls_verified}|\
                 {tls_subject}|{tls_issuer}|{protocol}|{port}";
    let stage = Stage::start(
        "client_ca = \"ca.pem\"\nclient_auth = \"optional\"",
        &format!(
            "[[route]]\npath = \"/*\"\nheaders_up = {{ x-facts = \"{facts}\", \
             x-cert = \"{{tls_cert}}\", x-port = \"{{peer_port}}\" }}\n\
             headers_down = {{ x-said = \"{{upstream_addr}} {{upstream_status}}\" }}\n{WIDE}"
        ),
    );
    let with_ann = ["--tlsv1.3", "--cert", "ann.pem", "--key", "ann.key"];
    let answer = stage.curled("one.test", "/", &with_ann);
    let address = stage.upstream.url().replace("http://", "");
    assert!(
        answer.contains(&format!("x-said: {address} 200")),
        "{answer}"
    );
    let seen = stage.upstream.seen().remove(0);
    let port = stage.secure.port();
    let told = seen.header("x-facts").unwrap();
    let (session, certificate) = told.split_once("SUCCESS|").unwrap();
    assert!(session.starts_with("TLSv1.3|TLS_"), "{told}");
    assert!(session.ends_with("|one.test|.|"), "{told}");
    assert!(certificate.starts_with("CN=ann,O=ca|CN=ca|"), "{told}");
    assert!(
        certificate.ends_with(&format!("|HTTP/1.1|{port}")),
        "{told}"
    );
    let pem = std::fs::read_to_string(stage.proxy.directory.path().join("ann.pem")).unwrap();
    let escaped = seen.header("x-cert").unwrap();
    let read = (escaped.replace("%20", " ").replace("%0A", "\n"))
        .replace("%2B", "+")
        .replace("%2F", "/")
        .replace("%3D", "=");
    assert_eq!(read.trim(), pem.replace('\r', "").trim());
    assert!(seen.header("x-port").unwrap().parse::<u16>().is_ok());
    stage.curled("one.test", "/", &[]);
    let seen = stage.upstream.seen().remove(1);
    assert!(seen.header("x-facts").unwrap().contains("|NONE|||"));
    assert_eq!(seen.header("x-cert"), None);
    stage.proxy.get("/");
    let seen = stage.upstream.seen().remove(2);
    assert!(
        seen.header("x-facts")
            .unwrap()
            .starts_with("|||||||HTTP/1.1|")
    );
}
