//! The admin's API, at a running proxy: whatever is asked, it answers with what it means to say, says
//! no secret, and lives.

use std::net::SocketAddr;

use crate::house::{Client, Tidegate};
use crate::spelled;

const TOKEN: &str = "0123456789abcdef-of-this-test";
const PLACES: &[&str] = &[
    "GET ",
    "POST ",
    "HEAD ",
    "PUT ",
    "OPTIONS ",
    "DELETE ",
    "/healthz",
    "/readyz",
    "/metrics",
    "/",
    "/openapi.json",
    "/api/v1/",
    "status",
    "traffic",
    "limits",
    "limits/default/clients",
    "limits/default/reset",
    "limits/default/override",
    "limits/default/block",
    "limits/%00/clients",
    "limits/%2e%2e/clients",
    "upstreams",
    "denials",
    "config",
    "reload",
    "explain",
    "overrides",
    "/../",
    "%",
    "%2f",
    "//",
    "?",
    "top=",
    "limit=",
    "&",
    "=",
    "-1",
    "99999999999999999999",
    "<script>",
];
const LINES: &[&str] = &[
    "Host: localhost\r\n",
    "Host: localhost\r\n",
    "Host: localhost\r\n",
    "Host: evil.example\r\n",
    "Authorization: Bearer 0123456789abcdef-of-this-test\r\n",
    "Authorization: Bearer 0123456789abcdef-of-this-test\r\n",
    "Authorization: Bearer wrong\r\n",
    "Content-Type: application/json\r\n",
    "Content-Type: application/json\r\n",
    "Content-Type: text/plain\r\n",
    "Origin: http://evil.example\r\n",
    "Sec-Fetch-Site: cross-site\r\n",
    "If-None-Match: *\r\n",
    "Accept: application/openmetrics-text\r\n",
    "X-A: b\r\n",
    "X A\r\n",
];
const BODIES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "{}",
    "\"key\"",
    "\"api_key:a\"",
    "\"ip\"",
    "\"127.0.0.1\"",
    "\"rate\"",
    "\"5/min\"",
    "\"for\"",
    "\"1h\"",
    "\"method\"",
    "\"GET\"",
    "\"path\"",
    "\"/\"",
    "\"headers\"",
    "\"url\"",
    "\"http://h/\"",
    "1",
    "-1",
    "1e400",
    "null",
    "true",
    "\\u0000",
    "\\ud800",
    "[[[[[[[[[[[[[[[[",
    "\u{20ac}",
];

#[test]
fn any_request_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("token"), TOKEN).unwrap();
    let config = "upstream = \"http://127.0.0.1:9\"\nadmin = \"127.0.0.1:0\"\n\
                  admin_token_file = \"token\"\n[limit.default]\nrate = \"5/min\"\nkey = \"ip\"\n\
                  [server]\nworkers = 1\ncontrol = \"control.sock\"\n";
    let proxy = Tidegate::start_in(directory, config, &[]);
    let line = proxy.wait_for_line("dashboard  http://");
    let address: SocketAddr = line.split('/').nth(2).unwrap().parse().unwrap();
    bolero::check!(name = "admin")
        .with_max_len(48)
        .for_each(|input: &[u8]| check(address, input));
    assert_eq!(
        ask(address, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").0,
        200
    );
    assert!(!proxy.said().iter().any(|line| line.contains("panic")));
}

/// A third of it each for the place, the lines and the body.
fn check(address: SocketAddr, input: &[u8]) {
    let third = input.len() / 3;
    let place = spelled(&input[..third], PLACES);
    let lines = spelled(&input[third..2 * third], LINES);
    let body = spelled(&input[2 * third..], BODIES);
    let length = format!(
        "Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let whole = [
        &place,
        b" HTTP/1.1\r\n".as_slice(),
        &lines,
        length.as_bytes(),
        &body,
    ]
    .concat();
    // What streams has no end.
    if String::from_utf8_lossy(&whole).contains("stream") {
        return;
    }
    for bytes in [input, &whole] {
        let (status, text) = ask(address, bytes);
        let told = String::from_utf8_lossy(bytes);
        assert!(
            status == 0 || (200..500).contains(&status) || status == 503,
            "{told}: {text}"
        );
        assert!(!text.contains(TOKEN), "{told}: {text}");
    }
}

/// The status and the whole answer; 0 where none is given.
fn ask(address: SocketAddr, bytes: &[u8]) -> (u16, String) {
    let mut client = Client::to(address);
    client.send(bytes);
    let _ = client.stream.shutdown(std::net::Shutdown::Write);
    let text = String::from_utf8_lossy(&client.rest()).into_owned();
    let status = text.get(9..12).and_then(|digits| digits.parse().ok());
    (status.unwrap_or(0), text)
}
