//! `ask = true`: a stream says its usage although its client has not asked, and the client sees none
//! of it.

use std::io::Write;
use std::time::Duration;

use crate::house::{Answer, Tidegate, Upstream};

const CHUNK: &str =
    "data: {\"id\":\"c\",\"choices\":[{\"delta\":{\"content\":\"hi\"}}],\"usage\":null}\n\n";
const USAGE: &str = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":3,\
                     \"completion_tokens\":4,\"total_tokens\":7}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// A model server that says its usage as OpenAI does. It announces lengths on `/length`.
fn model() -> Upstream {
    Upstream::start(|seen, stream| {
        let body = String::from_utf8_lossy(&seen.body).into_owned();
        let asks = body.contains("\"include_usage\":true");
        let usage = if asks { USAGE } else { "" };
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n";
        let text = format!("{CHUNK}{usage}{DONE}");
        if seen.is_for("/length") {
            let length = text.len();
            let answer = format!("{head}Content-Length: {length}\r\n\r\n{text}");
            return stream.write_all(answer.as_bytes()).is_ok();
        }
        let head = format!("{head}Transfer-Encoding: chunked\r\n\r\n");
        let mut is_sent = stream.write_all(head.as_bytes()).is_ok();
        // Ends of pieces are within events.
        for piece in text.as_bytes().chunks(50) {
            let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
            chunk.extend_from_slice(piece);
            chunk.extend_from_slice(b"\r\n");
            is_sent &= stream.write_all(&chunk).is_ok();
            std::thread::sleep(Duration::from_millis(2));
        }
        is_sent && stream.write_all(b"0\r\n\r\n").is_ok()
    })
}

fn proxy(model: &Upstream, usage: &str) -> Tidegate {
    Tidegate::start(&format!(
        "upstream = \"{}\"\n[server]\nworkers = 1\n[store]\nurl = \"memory:\"\n\
         [limit.tokens]\nrate = \"100_000/min\"\nkey = \"global\"\ncounts = \"tokens\"\n\
         [usage.chat]\nformat = \"openai\"\n{usage}\n[[route]]\npath = \"/*\"\n\
         limits = [\"tokens\"]\nusage = \"chat\"\n",
        model.url()
    ))
}

fn post(proxy: &Tidegate, path: &str, body: &str) -> Answer {
    let length = body.len();
    proxy.connect().ask(format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n\
         Accept-Encoding: gzip\r\nContent-Length: {length}\r\n\r\n{body}"
    ))
}

fn remaining(answer: &Answer) -> u64 {
    let header = answer.header("RateLimit").unwrap();
    let (_, behind) = header.split_once(";r=").unwrap();
    let digits = behind.split(';').next().unwrap();
    digits.parse().unwrap()
}

#[test]
fn a_stream_is_charged_exactly_and_its_client_sees_nothing_of_it() {
    let model = model();
    let proxy = proxy(&model, "ask = true");
    let body = r#"{"messages":[{"content":"{"}],"stream":true,"max_tokens":1000}"#;
    for path in ["/chat", "/length"] {
        let answer = post(&proxy, path, body);
        assert_eq!(answer.status, 200);
        assert_eq!(answer.text(), format!("{CHUNK}{DONE}"));
        assert_eq!(answer.header("content-length"), None);
    }
    let seen = model.seen();
    let asked = format!(
        "{{\"stream_options\":{{\"include_usage\":true}},{}",
        &body[1..]
    );
    for seen in &seen {
        assert_eq!(String::from_utf8_lossy(&seen.body), asked);
        assert_eq!(
            seen.header("content-length").unwrap(),
            asked.len().to_string()
        );
        assert_eq!(seen.header("accept-encoding").unwrap(), "identity");
    }
    // Both streams are charged what they said. The third holds its reserve.
    let third = body.len().div_ceil(3) as u64 + 1000;
    let answer = post(&proxy, "/chat", body);
    assert_eq!(remaining(&answer), 100_000 - 2 * 7 - third);
}

#[test]
fn a_chunked_body_stays_chunked() {
    let model = model();
    let proxy = proxy(&model, "ask = true");
    let answer = proxy.connect().ask(
        "POST /chat HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n\
         11\r\n{\"prompt\":\"x\",\"st\r\n2d\r\n\
         ream\":true, \"stream_options\" : null , \"n\":1}\n\r\n0\r\n\r\n",
    );
    assert_eq!(answer.text(), format!("{CHUNK}{DONE}"));
    let seen = &model.seen()[0];
    assert_eq!(
        String::from_utf8_lossy(&seen.body),
        "{\"prompt\":\"x\",\"stream\":true, \"stream_options\" : {\"include_usage\":true} , \
         \"n\":1}\n"
    );
    assert_eq!(seen.header("content-length"), None);
}

#[test]
fn what_a_client_says_of_usage_stays() {
    let model = model();
    let proxy = proxy(&model, "ask = true");
    let own = r#"{"messages":[],"stream":true,"stream_options":{"include_usage":true}}"#;
    let answer = post(&proxy, "/chat", own);
    assert_eq!(answer.text(), format!("{CHUNK}{USAGE}{DONE}"));
    for body in [
        r#"{"messages":[],"stream":true,"stream_options":{"include_usage":false}}"#,
        r#"{"messages":[],"stream":false}"#,
    ] {
        let answer = post(&proxy, "/chat", body);
        assert_eq!(answer.text(), format!("{CHUNK}{DONE}"));
        let seen = model.seen();
        let seen = seen.last().unwrap();
        assert_eq!(String::from_utf8_lossy(&seen.body), body);
        assert_eq!(seen.header("accept-encoding").unwrap(), "gzip");
    }
}

#[test]
fn nothing_is_added_without_the_setting() {
    let model = model();
    let proxy = proxy(&model, "");
    let body = r#"{"messages":[],"stream":true}"#;
    assert_eq!(post(&proxy, "/chat", body).text(), format!("{CHUNK}{DONE}"));
    assert_eq!(String::from_utf8_lossy(&model.seen()[0].body), body);
}
