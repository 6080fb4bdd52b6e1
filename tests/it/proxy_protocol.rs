//! The PROXY protocol at the running proxy: who is behind a connection, in the clear and before
//! anything else, and only from those who may say so.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::house::{PATIENCE, Tidegate, Upstream};

const GET: &str = "GET /a HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
const ONE: &[u8] = b"PROXY TCP4 192.0.2.9 198.51.100.1 5000 80\r\n";

fn two(command: u8, family: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap().to_be_bytes();
    [
        b"\r\n\r\n\0\r\nQUIT\n",
        &[command, family][..],
        &length,
        content,
    ]
    .concat()
}

fn proxy(upstream: &Upstream, mode: &str, trusted: &str) -> Tidegate {
    Tidegate::start(&format!(
        "proxy_protocol = \"{mode}\"\ntrusted_proxies = [\"{trusted}\"]\nupstream = \"{}\"\n\
         [server]\nheader_timeout = \"1s\"\n",
        upstream.url()
    ))
}

/// What the upstream was told of the client, or the status that it was refused with; nothing if
/// the connection was closed.
fn told(proxy: &Tidegate, upstream: &Upstream, bytes: &[u8]) -> Option<Result<String, u16>> {
    let known = upstream.seen().len();
    let mut client = proxy.connect();
    client.send(bytes);
    let answer = client.try_answer(false)?;
    if answer.status != 200 {
        return Some(Err(answer.status));
    }
    let seen = &upstream.seen()[known];
    Some(Ok(seen.header("x-forwarded-for").unwrap()))
}

fn before_get(header: &[u8]) -> Vec<u8> {
    [header, GET.as_bytes()].concat()
}

#[test]
fn a_trusted_peer_names_its_client() {
    let upstream = Upstream::ok();
    let six: Vec<u8> = [&[0x20, 1, 0x0d, 0xb8][..], &[0; 32]].concat();
    let four = [192, 0, 2, 8, 198, 51, 100, 1, 3, 232, 0, 80];
    let more = [&four[..], &[4, 0, 200], &[7; 200]].concat();
    let rows = [
        (ONE.to_vec(), "192.0.2.9"),
        (
            b"PROXY TCP6 2001:db8::7 ::1 1 2\r\n".to_vec(),
            "2001:db8::7",
        ),
        (
            b"PROXY TCP6 ::ffff:192.0.2.7 ::1 1 2\r\n".to_vec(),
            "192.0.2.7",
        ),
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
        (two(0x21, 0x11, &four), "192.0.2.8"),
        (two(0x21, 0x11, &more), "192.0.2.8"),
        (two(0x21, 0x21, &six), "2001:db8::"),
        (two(0x21, 0x31, &[0; 216]), "127.0.0.1"),
        (two(0x20, 0, &[]), "127.0.0.1"),
    ];
    for mode in ["required", "optional"] {
        let proxy = proxy(&upstream, mode, "127.0.0.1");
        for (header, client) in &rows {
            let told = told(&proxy, &upstream, &before_get(header));
            assert_eq!(told, Some(Ok((*client).to_owned())), "{mode} {header:?}");
        }
    }
}

#[test]
fn what_is_no_header_is_served_or_closed_as_configured() {
    let upstream = Upstream::ok();
    let required = proxy(&upstream, "required", "127.0.0.1");
    let optional = proxy(&upstream, "optional", "127.0.0.1");
    let own = || Some(Ok("127.0.0.1".to_owned()));
    assert_eq!(told(&required, &upstream, GET.as_bytes()), None);
    assert_eq!(told(&optional, &upstream, GET.as_bytes()), own());
    let put = "PUT /a HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(told(&optional, &upstream, put.as_bytes()), own());
    let rows: [Vec<u8>; 6] = [
        b"PROXY TCP4 nonsense\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.9 198.51.100.1 5000 80 \r\n".to_vec(),
        [b"PROXY UNKNOWN ".to_vec(), vec![b'x'; 500]].concat(),
        two(0x21, 0x11, &[0; 5]),
        two(0x21, 0x12, &[0; 12]),
        two(0x21, 0x11, &[0; 6000]),
    ];
    for header in rows {
        for proxy in [&required, &optional] {
            assert_eq!(
                told(proxy, &upstream, &before_get(&header)),
                None,
                "{header:?}"
            );
        }
    }
    for part in [&ONE[..10], &two(0x21, 0x11, &[0; 12])[..14], b"P", b""] {
        let mut client = required.connect();
        client.send(part);
        let began = std::time::Instant::now();
        assert!(client.is_closed(), "{part:?}");
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn a_header_may_come_byte_by_byte_and_before_http_2() {
    let upstream = Upstream::ok();
    let proxy = proxy(&upstream, "optional", "127.0.0.1");
    let mut client = proxy.connect();
    for byte in before_get(ONE).chunks(1) {
        client.send(byte);
    }
    assert_eq!(client.answer().status, 200);
    let seen = upstream.seen();
    assert_eq!(
        seen[0].header("x-forwarded-for").as_deref(),
        Some("192.0.2.9")
    );
    // A first letter that could have been of a header.
    let mut client = proxy.connect();
    for byte in "POST /a HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n"
        .as_bytes()
        .chunks(1)
    {
        client.send(byte);
    }
    assert_eq!(client.answer().status, 200);
    let output = std::process::Command::new("curl")
        .args(["--silent", "--max-time", "10", "--http2-prior-knowledge"])
        .args(["--haproxy-protocol", "-w", " %{http_version}"])
        .arg(format!("http://{}/a", proxy.address))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok 2");
}

#[test]
fn nobody_else_is_listened_to() {
    let upstream = Upstream::ok();
    let optional = proxy(&upstream, "optional", "10.0.0.0/8");
    let required = proxy(&upstream, "required", "10.0.0.0/8");
    assert_eq!(told(&optional, &upstream, &before_get(ONE)), Some(Err(400)));
    let own = Some(Ok("127.0.0.1".to_owned()));
    assert_eq!(told(&optional, &upstream, GET.as_bytes()), own);
    assert_eq!(told(&required, &upstream, &before_get(ONE)), None);
    assert_eq!(told(&required, &upstream, GET.as_bytes()), None);
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn limits_go_by_the_client_that_is_named() {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "proxy_protocol = \"required\"\ntrusted_proxies = [\"127.0.0.1\"]\nupstream = \"{}\"\n\
         [limit.default]\nrate = \"1/hour\"\n",
        upstream.url()
    ));
    let statuses = ["192.0.2.1", "192.0.2.1", "192.0.2.2"].map(|ip| {
        let header = format!("PROXY TCP4 {ip} 198.51.100.1 5000 80\r\n");
        proxy.connect().ask(before_get(header.as_bytes())).status
    });
    assert_eq!(statuses, [200, 429, 200]);
}

#[test]
fn a_unix_socket_may_have_it_too() {
    let upstream = Upstream::ok();
    let settings = format!(
        "proxy_protocol = \"required\"\ntrusted_proxies = [\"127.0.0.1\"]\nupstream = \"{}\"\n",
        upstream.url()
    );
    let directory = tempfile::tempdir().unwrap();
    let listen = "[\"127.0.0.1:0\", \"unix:proxy.sock\"]";
    let proxy = Tidegate::start_listening(directory, listen, &settings);
    let ask = |header: &[u8]| {
        let path = proxy.directory.path().join("proxy.sock");
        let mut stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        for part in [header, GET.as_bytes()] {
            // It may rightly have been closed.
            let _ = stream.write_all(part);
        }
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        said.starts_with(b"HTTP/1.1 200")
    };
    assert!(ask(ONE));
    assert!(!ask(b""));
    let seen = upstream.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(
        seen[0].header("x-forwarded-for").as_deref(),
        Some("192.0.2.9")
    );
}

#[test]
fn variables_tell_the_header_and_the_connection() {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "proxy_protocol = \"optional\"\ntrusted_proxies = [\"127.0.0.1\"]\nupstream = \"{}\"\n\
         [[route]]\npath = \"/*\"\n[route.headers_down]\n\
         x-header = \"{{proxy_header_ip}} {{proxy_header_port}}\"\n\
         x-server = \"{{proxy_header_server_ip}} {{proxy_header_server_port}}\"\n\
         x-connection = \"{{connection_ip}} {{connection_port}}\"\n",
        upstream.url()
    ));
    for (header, client, server) in [
        (ONE, "192.0.2.9 5000", "198.51.100.1 80"),
        (b"PROXY UNKNOWN\r\n", "", ""),
        (b"", "", ""),
    ] {
        let mut connection = proxy.connect();
        let port = connection.stream.local_addr().unwrap().port();
        connection.send(before_get(header));
        let answer = connection.answer();
        let of = |name: &str| answer.header(name).unwrap_or_default();
        assert_eq!(of("x-header"), client, "{header:?}");
        assert_eq!(of("x-server"), server, "{header:?}");
        assert_eq!(
            of("x-connection"),
            format!("127.0.0.1 {port}"),
            "{header:?}"
        );
    }
}
