//! Streams that were asked for their usage: what is added to a request, and taken out of an answer.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::ask::{BodyEdit, MAX_EVENT, UsageEventFilter, is_open};
use super::random::cut;
use super::requests::usage_of;

fn edited(body: &str) -> Option<String> {
    let members = usage_of(body);
    if !is_open(&members) {
        return None;
    }
    let BodyEdit { at, removed, added } = BodyEdit::asking(&members, body.as_bytes())?;
    Some(format!("{}{added}{}", &body[..at], &body[at + removed..]))
}

#[test]
fn a_stream_is_asked_once() {
    const ASKED: &str = r#"{"include_usage":true"#;
    for (body, expected) in [
        (
            r#"{"messages":[],"stream":true}"#,
            format!(r#"{{"stream_options":{ASKED}}},"messages":[],"stream":true}}"#),
        ),
        (
            "\u{feff} {\"prompt\":\"{\",\"stream\":true} ",
            format!("\u{feff} {{\"stream_options\":{ASKED}}},\"prompt\":\"{{\",\"stream\":true}} "),
        ),
        (
            r#"{"stream":true,"stream_options": null ,"messages":[{"a":null}]}"#,
            format!(r#"{{"stream":true,"stream_options": {ASKED}}} ,"messages":[{{"a":null}}]}}"#),
        ),
        (
            r#"{"messages":[],"stream":true,"stream_options":null}"#,
            format!(r#"{{"messages":[],"stream":true,"stream_options":{ASKED}}}}}"#),
        ),
        (
            r#"{"messages":[{"stream_options":{}}],"stream":true,"stream_options":{ }}"#,
            [
                r#"{"messages":[{"stream_options":{}}],"stream":true,"stream_options":"#,
                ASKED,
                " }}",
            ]
            .concat(),
        ),
        (
            r#"{"stream\u005foptions":{"x":1},"stream":true,"prompt":""}"#,
            [
                r#"{"stream\u005foptions":"#,
                ASKED,
                r#","x":1},"stream":true,"prompt":""}"#,
            ]
            .concat(),
        ),
    ] {
        assert_eq!(edited(body).as_deref(), Some(&*expected));
        assert_eq!(edited(&expected), None, "{expected}");
    }
}

#[test]
fn other_requests_stay_as_they_are() {
    for body in [
        r#"{"messages":[]}"#,
        r#"{"messages":[],"stream":false}"#,
        r#"{"messages":[],"stream":true,"stream_options":{"include_usage":false}}"#,
        r#"{"messages":[],"stream":true,"stream_options":{"include_usage":null}}"#,
        r#"{"messages":[],"stream":true,"stream_options":[]}"#,
        r#"{"messages":[],"stream":true,"stream_options":{},"stream_options":{}}"#,
        // The Responses API always says its usage, and refuses the member.
        r#"{"input":"x","stream":true}"#,
        r#"{"prompt":{"id":"p"},"stream":true}"#,
        r#"[{"messages":[],"stream":true}]"#,
        r#"{"messages":[],"stream":true"#,
        r#"{"messages":[],"stream":true}{}"#,
        "",
    ] {
        assert_eq!(edited(body), None, "{body}");
    }
}

const USAGE: &str = r#"{"id":"c","choices":[],"usage":{"prompt_tokens":3,"total_tokens":3}}"#;

/// Events that pass.
const OTHERS: [&str; 14] = [
    r#"{"id":"c","choices":[{"index":0,"delta":{"content":"\"choices\":[]"}}],"usage":null}"#,
    r#"{"choices":[{"delta":{}}],"usage":{"prompt_tokens":3}}"#,
    r#"{"choices":[],"usage":null,"prompt_filter_results":[]}"#,
    r#"{"choices":[]}"#,
    r#"{"usage":{"prompt_tokens":3}}"#,
    r#"{"a":{"choices":[],"usage":{}}}"#,
    r#"{"choices":[""],"usage":{}}"#,
    r#"{"choices":[],"usage":{}} x"#,
    r#"{"choices":[],"usage":{}"#,
    r#"[{"choices":[],"usage":{}}]"#,
    r#"{"choices":{},"usage":{}}"#,
    r#"{"choices":[],"usage":{},"usage":null}"#,
    "[DONE]",
    "",
];

/// Writes an event in one of the ways that the standard allows.
fn event(json: &str, style: u8, end: &str) -> String {
    let space = ["", " "][usize::from(style & 1)];
    let data = match json.find(',').filter(|_| style & 2 > 0) {
        Some(at) => format!(
            "data:{space}{}{end}data:{space}{}{end}",
            &json[..=at],
            &json[at + 1..]
        ),
        None => format!("data:{space}{json}{end}"),
    };
    match style / 4 % 4 {
        1 => format!("event: message{end}{data}{end}"),
        2 => format!("{data}id: 7{end}: comment{end}{end}"),
        3 => format!("{data}retry{end}{end}"),
        _ => format!("{data}{end}"),
    }
}

fn filtered<'b>(chunks: impl IntoIterator<Item = &'b [u8]>) -> String {
    let mut filter = UsageEventFilter::default();
    let mut passed = Vec::new();
    for chunk in chunks {
        passed.extend_from_slice(&filter.read(&Bytes::copy_from_slice(chunk)));
    }
    passed.extend_from_slice(&filter.finish());
    assert!(!filter.is_holding());
    String::from_utf8_lossy(&passed).into_owned()
}

/// Expects the same at every split.
fn check(stream: &str, expected: &str) {
    let bytes = stream.as_bytes();
    for at in 0..=bytes.len() {
        let (first, second) = bytes.split_at(at);
        assert_eq!(filtered([first, second]), expected, "at {at} of {stream}");
    }
    for size in 1..4 {
        assert_eq!(filtered(bytes.chunks(size)), expected, "by {size}");
    }
}

#[test]
fn the_usage_event_is_taken_out_at_every_split() {
    for end in ["\n", "\r", "\r\n"] {
        for style in 0..16 {
            let before = event(OTHERS[0], 1, end);
            let after = event("[DONE]", 1, end);
            let usage = event(USAGE, style, end);
            let others = format!("{before}{after}");
            check(&format!("{before}{usage}{after}"), &others);
            // Only one event was asked for.
            check(
                &format!("{before}{usage}{usage}{after}"),
                &format!("{before}{usage}{after}"),
            );
            check(
                &format!("\u{feff}: hello{end}{usage}"),
                &format!("\u{feff}: hello{end}"),
            );
            // The last blank line may be missing.
            check(usage.strip_suffix(end).unwrap_or_default(), "");
        }
        for other in OTHERS {
            let stream = format!("{end}{}{}", event(other, 1, end), event("[DONE]", 1, end));
            check(&stream, &stream);
            let open = stream.trim_end();
            check(open, open);
        }
    }
}

#[test]
fn an_event_is_held_only_while_it_may_be_the_one() {
    let mut filter = UsageEventFilter::default();
    let mut read = |text: &'static str| {
        let passed = filter.read(&Bytes::from_static(text.as_bytes()));
        (
            String::from_utf8_lossy(&passed).into_owned(),
            filter.is_holding(),
        )
    };
    for (text, passed, is_holding) in [
        (": ping\n\n", ": ping\n\n", false),
        (": pi", ": pi", false),
        ("ng\n", "ng\n", false),
        (
            "data: {\"id\":1,\"choices\":[{",
            "data: {\"id\":1,\"choices\":[{",
            false,
        ),
        ("\"x\":1}]}", "\"x\":1}]}", false),
        ("\n\ndata: {\"id\":", "\n\n", true),
        ("2,", "", true),
        ("\"usage\":null", "data: {\"id\":2,\"usage\":null", false),
        ("}\n\nda", "}\n\n", true),
        ("ta: [", "data: [", false),
        ("DONE]\n\n", "DONE]\n\n", false),
    ] {
        assert_eq!(read(text), (passed.to_owned(), is_holding), "{text}");
    }
}

#[test]
fn a_long_event_passes() {
    let event = |length: usize| {
        let rest = "data: \n\n".len() + USAGE.len() + ",\"x\":\"\"".len();
        let filling = "x".repeat(length - rest);
        format!("data: {{\"x\":\"{filling}\",{}\n\n", &USAGE[1..])
    };
    let short = event(MAX_EVENT);
    assert_eq!(short.len(), MAX_EVENT);
    let long = event(MAX_EVENT + 1);
    for size in [1, 100, 1 << 16, 1 << 20] {
        assert_eq!(filtered(short.as_bytes().chunks(size)), "");
        assert_eq!(filtered(long.as_bytes().chunks(size)), long);
    }
}

#[test]
fn a_broken_stream_keeps_its_bytes() {
    let mut filter = UsageEventFilter::default();
    let text = format!("data: {USAGE}\n");
    assert!(filter.read(&Bytes::from(text.clone())).is_empty());
    assert_eq!(filter.give_up(), text);
    assert!(!filter.is_holding());
}

proptest! {
    #[test]
    fn a_stream_loses_nothing_else(
        events in vec((0..=OTHERS.len(), any::<u8>(), 0..3_usize), 0..8),
        sizes in vec(1..120_usize, 1..6),
    ) {
        let (mut stream, mut expected, mut is_taken) = (String::new(), String::new(), false);
        for (index, style, end) in events {
            let end = ["\n", "\r", "\r\n"][end];
            let json = OTHERS.get(index).copied().unwrap_or(USAGE);
            let text = event(json, style, end);
            // A CR before an LF of another event would be one line end with it.
            let text = match stream.ends_with('\r') && text.starts_with('\n') {
                true => format!(" {text}"),
                false => text,
            };
            stream.push_str(&text);
            if json == USAGE && !is_taken {
                is_taken = true;
            } else {
                expected.push_str(&text);
            }
        }
        prop_assert_eq!(filtered(cut(stream.as_bytes(), &sizes)), expected);
    }
}
