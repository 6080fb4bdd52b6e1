//! Every format by its lines, and what is no line.

use proptest::prelude::*;

use super::*;
use crate::json::HeaderFrom;

/// What a line says, in one line of its own.
fn said(entry: &LogEntry<'_>, format: LineFormat) -> String {
    let mut text = format!("{} {} {}", format.word(), entry.at_us, entry.peer);
    if let Some(client) = entry.client {
        text.push_str(&format!(" for {client}"));
    }
    text.push_str(&format!(
        " {} {} {}",
        entry.method, entry.target, entry.status
    ));
    if let Some(host) = &entry.host {
        text.push_str(&format!(" host={host}"));
    }
    if let Some(us) = entry.duration_us {
        text.push_str(&format!(" took={us}"));
    }
    for (name, value) in &entry.headers {
        text.push_str(&format!(" {name}={value}"));
    }
    text
}

fn read_with(reader: &mut LineReader, line: &[u8]) -> String {
    match reader.read(line) {
        Ok((entry, format)) => said(&entry, format),
        Err(fault) => format!("{fault:?}"),
    }
}

fn reading(format: Option<LineFormat>, headers: Vec<HeaderFrom>) -> LineReader {
    let mapping = MemberMapping {
        headers,
        ..MemberMapping::default()
    };
    LineReader::new(&LogOptions { format, mapping })
}

#[track_caller]
fn check(line: &str, expected: &str) {
    let found = read_with(
        &mut LineReader::new(&LogOptions::default()),
        line.as_bytes(),
    );
    assert_eq!(found, expected, "{line}");
}

/// `20/Nov/2026:22:37:06 +0000`
const AT: &str = "1795214226000000";

#[test]
fn the_common_format() {
    let date = "[20/Nov/2026:23:37:06 +0100]";
    for (line, expected) in [
        (
            r#"192.0.2.7 - - DATE "GET /a?b=1 HTTP/1.1" 200 12"#,
            "192.0.2.7 GET /a?b=1 200",
        ),
        (
            r#"192.0.2.7 - ann DATE "GET / HTTP/2.0" 304 -"#,
            "192.0.2.7 GET / 304",
        ),
        (
            r#"192.0.2.7 - a [b] c DATE "HEAD / HTTP/1.0" 200 0"#,
            "192.0.2.7 HEAD / 200",
        ),
        (
            r#"2001:db8::7 - - DATE "GET / HTTP/1.1" 200 1"#,
            "2001:db8::7 GET / 200",
        ),
        (
            r#"::ffff:192.0.2.7 - - DATE "GET / HTTP/1.1" 200 1"#,
            "::ffff:192.0.2.7 GET / 200",
        ),
        (
            r#"192.0.2.7:4711 - - DATE "GET / HTTP/1.1" 200 1"#,
            "192.0.2.7 GET / 200",
        ),
        (
            "192.0.2.7 - - DATE \"GET /\u{e9} HTTP/1.1\" 2000 12",
            "192.0.2.7 GET /\u{e9} 2000",
        ),
        (
            r#"192.0.2.7 - - DATE "GET /a b HTTP/1.1" 400 1"#,
            "192.0.2.7 GET /a b 400",
        ),
        (
            r#"192.0.2.7 - - DATE "GET /old" 200 1"#,
            "192.0.2.7 GET /old 200",
        ),
        (
            r#"192.0.2.7 - - DATE "GET /\"q\"\x22\x5c HTTP/1.1" 200 1"#,
            r#"192.0.2.7 GET /"q""\ 200"#,
        ),
        (
            r#"192.0.2.7 - - DATE "GET http://h/a HTTP/1.1" 200 1"#,
            "192.0.2.7 GET http://h/a 200",
        ),
        (
            r#"192.0.2.7 - - DATE "OPTIONS * HTTP/1.1" 200 1"#,
            "192.0.2.7 OPTIONS * 200",
        ),
        (
            r#"h.example:443 192.0.2.7 - - DATE "GET / HTTP/1.1" 200 1"#,
            "192.0.2.7 GET / 200 host=h.example:443",
        ),
    ] {
        let line = line.replace("DATE", date);
        let (peer, rest) = expected.split_once(' ').unwrap();
        check(&line, &format!("common {AT} {peer} {rest}"));
    }
}

#[test]
fn the_combined_format_and_what_is_hung_onto_it() {
    let head = r#"192.0.2.7 - - [20/Nov/2026:22:37:06 +0000] "GET / HTTP/1.1" 200 12"#;
    for (tail, expected) in [
        (r#""-" "-""#, ""),
        (r#""-" "curl/8""#, " user-agent=curl/8"),
        (
            r#""https://h/" "curl/8 \"x\"""#,
            r#" referer=https://h/ user-agent=curl/8 "x""#,
        ),
        (
            r#""-" "curl/8" "203.0.113.9, 10.0.0.1""#,
            " user-agent=curl/8 x-forwarded-for=203.0.113.9, 10.0.0.1",
        ),
        (r#""-" "-" "-" 0.123 0.120 ."#, " took=123000"),
        (r#""-" "-" rt=1.5 uct="0.000" "#, " took=1500000"),
        (r#""-" "-" "0.25""#, " took=250000"),
        (
            r#""-" "-" 77 "web@docker" "http://10.0.0.5:80" 12ms"#,
            " took=12000",
        ),
        (r#""-" "unended"#, ""),
    ] {
        let line = format!("{head} {tail}");
        check(
            &line,
            &format!("combined {AT} 192.0.2.7 GET / 200{expected}"),
        );
    }
}

#[test]
fn json_by_its_customary_names() {
    for (line, expected) in [
        (
            r#"{"time_iso8601":"2026-11-20T23:37:06+01:00","remote_addr":"192.0.2.7",
            "request":"GET /a?b=1 HTTP/1.1","status":"200","request_time":"0.250",
            "http_host":"h.example","http_x_api_key":"k\"1","http_referer":"-","bytes":5}"#,
            "json AT 192.0.2.7 GET /a?b=1 200 host=h.example took=250000 x-api-key=k\"1",
        ),
        (
            r#"{"msec":1795214226.000,"remote_addr":"2001:db8::7","request_method":"GET",
            "uri":"/index.php","request_uri":"/a","status":404,"server_name":"h"}"#,
            "json AT 2001:db8::7 GET /a 404 host=h",
        ),
        (
            r#"{"@timestamp":"2026-11-20T22:37:06Z","ip":"192.0.2.7","method":"GET","path":"/a",
            "query_string":"b=1","headers":{"X-Api-Key":"k","Cookie":["a=1","b=2"]}}"#,
            "json AT 192.0.2.7 GET /a?b=1 0 X-Api-Key=k Cookie=a=1 Cookie=b=2",
        ),
        (
            r#"{"ClientHost":"192.0.2.7","DownstreamStatus":200,"Duration":1500000,
            "RequestHost":"h","RequestMethod":"GET","RequestPath":"/a",
            "StartUTC":"2026-11-20T22:37:06Z","request_X-Api-Key":"k","level":"info"}"#,
            "json AT 192.0.2.7 GET /a 200 host=h took=1500 X-Api-Key=k",
        ),
        (
            r#"{"level":"info","ts":1795214226.0,"logger":"http.log.access","msg":"handled request",
            "request":{"remote_ip":"10.0.0.1","remote_port":"1","client_ip":"192.0.2.7",
            "proto":"HTTP/2.0","method":"GET","host":"h.example","uri":"/a?b=1",
            "headers":{"X-Api-Key":["k"],"Authorization":["REDACTED"]},"tls":{"resumed":false}},
            "bytes_read":0,"user_id":"","duration":0.001,"size":12,"status":200,
            "resp_headers":{"Server":["Caddy"]}}"#,
            "caddy AT 10.0.0.1 for 192.0.2.7 GET /a?b=1 200 host=h.example took=1000 X-Api-Key=k",
        ),
        (
            r#"{"time":"2026-11-20T22:37:06.000Z","client":"192.0.2.7","method":"GET","path":"/a",
            "status":429,"bytes":7,"duration_us":234,"route":"login","outcome":"denied",
            "denied_by":[{"limit":"per_ip","key":"-_v7-_v7"}]}"#,
            "tidegate-json AT 192.0.2.7 GET /a 429 took=234",
        ),
    ] {
        check(&line.replace('\n', " "), &expected.replace("AT", AT));
    }
}

#[test]
fn a_member_may_be_named_as_a_header() {
    let from = [("x-api-key", "consumer"), ("x-user", "request.user")].map(|(header, member)| {
        HeaderFrom {
            header: header.to_owned(),
            member: member.to_owned(),
        }
    });
    let mut reader = reading(None, from.to_vec());
    let line = r#"{"ts":1795214226,"consumer":"c1","request":{"remote_ip":"192.0.2.7",
        "method":"GET","uri":"/","user":"u1"}}"#;
    let found = read_with(&mut reader, line.as_bytes());
    let expected = "192.0.2.7 GET / 0 x-api-key=c1 x-user=u1";
    assert_eq!(found, format!("caddy {AT} {expected}"));
}

#[test]
fn our_own_lines_for_people_count_their_days() {
    let mut reader = LineReader::new(&LogOptions::default());
    let day = 86_400_000_000_u64;
    let mut check = |line: &str, at_us: u64, rest: &str| {
        let found = read_with(&mut reader, line.as_bytes());
        assert_eq!(found, format!("tidegate-text {at_us} {rest}"), "{line}");
    };
    check(
        "23:59:59.500 POST /login 429 0.2ms 192.0.2.7 denied by login (key -_v7-_v7)",
        day - 500_000,
        "192.0.2.7 POST /login 429 took=200",
    );
    check(
        "23:59:59.000 GET / 200 1.0ms 192.0.2.7 allowed",
        day - 1_000_000,
        "192.0.2.7 GET / 200 took=1000",
    );
    check(
        "00:00:01.000 GET / 200 1.0ms 2001:db8::7 unlimited",
        day + 1_000_000,
        "2001:db8::7 GET / 200 took=1000",
    );
}

#[test]
fn what_is_no_request_says_why() {
    let date = "[20/Nov/2026:22:37:06 +0000]";
    for (line, fault) in [
        ("", "Form"),
        ("hello", "Form"),
        (r#"192.0.2.7 - - DATE"#, "Form"),
        (r#"192.0.2.7 - - DATE "GET / HTTP/1.1"#, "Form"),
        (
            r#"192.0.2.7 - - [yesterday] "GET / HTTP/1.1" 200 1"#,
            "Time",
        ),
        (
            r#"192.0.2.7 - - [20/Nov/2026] "GET / HTTP/1.1" 200 1"#,
            "Time",
        ),
        (
            r#"piweba.example - - DATE "GET / HTTP/1.1" 200 1"#,
            "Client",
        ),
        (r#"999.0.2.7 - - DATE "GET / HTTP/1.1" 200 1"#, "Client"),
        (r#"192.0.2.7 - - DATE "-" 408 0 "-" "-""#, "Request"),
        (r#"192.0.2.7 - - DATE "" 400 0"#, "Request"),
        (
            r#"192.0.2.7 - - DATE "\x16\x03\x01\x02\x00\x01 \xFC" 400 157 "-" "-""#,
            "Request",
        ),
        (r#"192.0.2.7 - - DATE "GET HTTP/1.1" 400 0"#, "Request"),
        ("{}", "Form"),
        (r#"{"a":1}"#, "Form"),
        (
            r#"{"time":"x","remote_addr":"192.0.2.7","request":"GET / HTTP/1.1"}"#,
            "Time",
        ),
        (r#"{"ts":1795214226,"request":"GET / HTTP/1.1"}"#, "Client"),
        (r#"{"ts":1795214226,"remote_addr":"192.0.2.7"}"#, "Request"),
        (
            r#"{"ts":1795214226,"remote_addr":"192.0.2.7","request":"-"}"#,
            "Request",
        ),
        (
            r#"{"ts":1795214226,"remote_addr":"192.0.2.7","request":"GET / "#,
            "Form",
        ),
        ("22:37:06.123 GET /", "Client"),
    ] {
        check(&line.replace("DATE", date), fault);
    }
    let long = vec![b'x'; MAX_LINE];
    assert_eq!(
        read_with(&mut LineReader::new(&LogOptions::default()), &long),
        "Long"
    );
    let bytes = b"192.0.2.7 - - [20/Nov/2026:22:37:06 +0000] \"GET /\xff HTTP/1.1\" 200 1";
    assert_eq!(
        read_with(&mut LineReader::new(&LogOptions::default()), bytes),
        "Text"
    );
}

#[test]
fn a_second_line_of_one_second_says_what_it_says_alone() {
    let first = b"192.0.2.1 - - [20/Nov/2026:22:37:06 +0000] \"GET / HTTP/1.1\" 200 1";
    for line in [
        r#"192.0.2.7 - - [20/Nov/2026:22:37:06 +0000] "GET /a HTTP/1.1" 200 1 "-" "a" 0.1"#,
        r#"192.0.2.7 - - [20/Nov/2026:22:37:06 +0000]  "POST  /a\x22 b  HTTP/2.0" 4o4 1"#,
        r#"192.0.2.7 - - [20/Nov/2026:22:37:06 +0000x] "GET /a" 1000 1"#,
        r#"192.0.2.7 - - [20/Nov/2026:22:37:06 +0000"#,
        r#"192.0.2.7 - u [20/Nov/2026:22:37:06 +0000] "GET  HTTP/1.1" 200"#,
        r#"192.0.2.007 - - [20/Nov/2026:22:37:06 +0000] "HEAD HTTP/1.0" 200"#,
        r#"192.0.2.7 - - [20/Nov/2026:22:37:07 +0000] "HEAD /a HTTP/1.0" 99"#,
    ] {
        let alone = read_with(
            &mut LineReader::new(&LogOptions::default()),
            line.as_bytes(),
        );
        let mut reader = LineReader::new(&LogOptions::default());
        read_with(&mut reader, first);
        assert_eq!(read_with(&mut reader, line.as_bytes()), alone, "{line}");
    }
}

#[test]
fn a_format_can_be_forced() {
    let line = r#"{"ts":1795214226,"remote_addr":"192.0.2.7","request":"GET / HTTP/1.1"}"#;
    let mut reader = reading(Some(LineFormat::Common), Vec::new());
    assert_eq!(read_with(&mut reader, line.as_bytes()), "Form");
}

#[test]
fn a_byte_order_mark_is_skipped() {
    let line = r#"{"ts":1795214226,"remote_addr":"192.0.2.7","request":"GET / HTTP/1.1"}"#;
    let read = |line: &str| {
        let mut reader = LineReader::new(&LogOptions::default());
        read_with(&mut reader, line.as_bytes())
    };
    assert_ne!(read(line), "Form");
    assert_eq!(read(&format!("\u{feff}{line}")), read(line));
}

#[test]
fn a_pipe_is_read_from_its_beginning() {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    const LINES: u64 = 20_000;
    let (reader, mut writer) = io::pipe().unwrap();
    std::thread::spawn(move || {
        let line = b"192.0.2.7 - - [20/Nov/2026:22:37:06 +0000] \"GET / HTTP/1.1\" 200 1\n";
        (0..LINES).for_each(|_| writer.write_all(line).unwrap());
    });
    // A shell names `<(zcat access.log.gz)` in this way.
    let path = PathBuf::from(format!("/dev/fd/{}", reader.as_raw_fd()));
    let mut logs = Logs::open(&[path], &LogOptions::default()).unwrap();
    drop(reader);
    let mut lines = 0;
    logs.each(|_| lines += 1);
    assert_eq!((lines, logs.summaries[0].lines), (LINES, LINES));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_bytes_panic(line in prop::collection::vec(any::<u8>(), 0..200)) {
        let forced = [
            None,
            Some(LineFormat::Common),
            Some(LineFormat::Json),
            Some(LineFormat::OwnText),
        ];
        for forced in forced {
            let _ = reading(forced, Vec::new()).read(&line);
        }
    }

    #[test]
    fn no_broken_line_panics(
        whole in prop::sample::select(vec![
            r#"192.0.2.7 - - [20/Nov/2026:22:37:06 +0000] "GET /\x22 HTTP/1.1" 200 1 "-" "a" 0.1"#,
            r#"{"ts":1795214226,"request":{"remote_ip":"192.0.2.7","method":"GET","uri":"/",
                "headers":{"A":["\u00e9\ud83c\udf0a"]}}}"#,
            "22:37:06.123 POST /login 429 0.2ms 1.2.3.4 denied by login",
        ]),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        end in any::<prop::sample::Index>(),
    ) {
        let mut line = whole.as_bytes().to_vec();
        for (at, byte) in edits {
            let at = at.index(line.len());
            line[at] = byte;
        }
        line.truncate(end.index(whole.len()) + 1);
        let _ = LineReader::new(&LogOptions::default()).read(&line);
    }
}
