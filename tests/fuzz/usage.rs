//! Answers of model servers and bodies of requests: any bytes, cut anywhere.

use std::sync::Arc;

use tidegate::usage::answer::{AnswerReader, EventScanning};
use tidegate::usage::format::{AnswerFormat, AnswerTable, JsonPaths, TextCount};
use tidegate::usage::framing::Framing;
use tidegate::usage::paths::MemberPath;
use tidegate::usage::request::{
    BodyMember, BodyMembers, BodyValue, MAX_VALUE, RequestReader, RequestTable, UsageMembers,
};
use tidegate::usage::tokens::{MAX_UNITS, ReportedTokens};

use crate::both;

const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "\\",
    "\\\"",
    "\\u0075",
    "\\ud83d",
    "\\ude00",
    "\n",
    "\r",
    "\n\n",
    "\r\n\r\n",
    "data: ",
    "data:",
    ": comment\n",
    "event: error\n",
    "[DONE]",
    "\u{feff}",
    "\"usage\":{",
    "\"message\":{",
    "\"response\":{",
    "\"prompt_tokens\":7",
    "\"completion_tokens\":1e2",
    "\"total_tokens\":12.0",
    "\"input_tokens\":0",
    "\"output_tokens\":3",
    "\"cache_read_input_tokens\":5",
    "\"prompt_eval_count\":4",
    "\"eval_count\":9",
    "\"usageMetadata\":{\"promptTokenCount\":4}",
    "\"inputTokens\":8",
    "\"error\":{}",
    "\"type\":\"error\"",
    "\"choices\":[{}]",
    "\"model\":\"m\"",
    "\"done\":false",
    "\"max_tokens\":64",
    "\"n\":2",
    "\"generationConfig\":{\"maxOutputTokens\":5}",
    "\"method\":\"tools/call\"",
    "\"params\":{\"name\":\"t\"}",
    "\"operationName\":\"A\"",
    "\"query\":\"query A{a}\"",
    "\"query\":\"",
    "query A",
    "{a(b:\\\"}\\\")}",
    "\"user\":{\"id\":",
    "true",
    "null",
    "-1.5e-2",
    "99999999999999999999",
    "\0\0\0\x20\0\0\0\0",
    "\u{20ac}",
];

#[test]
fn answers_and_bodies_are_read_alike_in_any_pieces() {
    bolero::check!(name = "usage")
        .with_max_len(192)
        .for_each(|input: &[u8]| {
            let sizes = input.get(..4).unwrap_or(&[1]);
            both(input, WORDS, |bytes| {
                check_answers(bytes, sizes);
                check_request(bytes, sizes);
            });
        });
}

/// The bytes in pieces of these sizes, over and over.
fn pieces<'b>(bytes: &'b [u8], sizes: &[u8]) -> Vec<&'b [u8]> {
    let (mut rest, mut sizes) = (bytes, sizes.iter().cycle());
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let size = usize::from(sizes.next().unwrap() % 64) + 1;
        let (piece, behind) = rest.split_at(size.min(rest.len()));
        pieces.push(piece);
        rest = behind;
    }
    pieces
}

#[derive(Debug, PartialEq)]
struct Reading {
    tokens: Option<ReportedTokens>,
    model: Option<String>,
    is_final: bool,
    is_error: bool,
    text_bytes: u64,
}

fn tables() -> Vec<Arc<AnswerTable>> {
    let texts = [TextCount::Ignored, TextCount::Counted];
    let formats = AnswerFormat::ALL.into_iter();
    let mut tables: Vec<AnswerTable> = formats
        .flat_map(|format| texts.map(|text| AnswerTable::new(format, text)))
        .collect();
    let path = |text| MemberPath::parse(text).ok();
    let paths = JsonPaths {
        input: path("usage.prompt_tokens"),
        total: path("eval_count"),
        model: path("user.id"),
        ..JsonPaths::default()
    };
    tables.extend(texts.map(|text| AnswerTable::of_paths(&paths, text)));
    tables.into_iter().map(Arc::new).collect()
}

fn check_answers(bytes: &[u8], sizes: &[u8]) {
    for table in tables() {
        for framing in [
            Framing::Document,
            Framing::Lines,
            Framing::Sse,
            Framing::EventStream,
        ] {
            let whole = read(&table, framing, EventScanning::All, &[bytes]);
            let tokens = whole.tokens.unwrap_or_default();
            assert!(tokens.input.unwrap_or(0) <= MAX_UNITS);
            assert!(tokens.output.unwrap_or(0) <= MAX_UNITS);
            for scanning in [EventScanning::All, EventScanning::Sparse] {
                let cut = read(&table, framing, scanning, &pieces(bytes, sizes));
                assert_eq!(cut, whole, "{framing:?} {scanning:?}");
            }
        }
    }
}

fn read(
    table: &Arc<AnswerTable>,
    framing: Framing,
    scanning: EventScanning,
    pieces: &[&[u8]],
) -> Reading {
    let mut reader = AnswerReader::with(table, framing, scanning);
    pieces.iter().for_each(|piece| reader.read(piece));
    reader.finish();
    Reading {
        tokens: reader.tokens(),
        model: reader.model().map(str::to_owned),
        is_final: reader.is_final(),
        is_error: reader.is_error(),
        text_bytes: reader.text_bytes(),
    }
}

fn check_request(bytes: &[u8], sizes: &[u8]) {
    let path = |text| BodyMember::Path(MemberPath::parse(text).unwrap());
    let members = vec![
        path("user.id"),
        path("model"),
        path("n"),
        BodyMember::McpMethod,
        BodyMember::McpTool,
        BodyMember::GraphqlOperation,
    ];
    let table = Arc::new(RequestTable::new(members, UsageMembers::OfAny));
    let mut reader = RequestReader::new(&table);
    reader.read(bytes);
    let whole = reader.finish();
    let mut reader = RequestReader::new(&table);
    let mut at_end = None;
    for piece in pieces(bytes, sizes) {
        reader.read(piece);
        if reader.is_done() {
            at_end.get_or_insert_with(|| reader.clone().finish());
        }
        assert_eq!(reader.is_done(), at_end.is_some());
    }
    assert_eq!(reader.finish(), whole);
    if let Some(at_end) = at_end {
        // Only bytes behind the text can still be told.
        let is_whole = whole.is_whole;
        assert_eq!(BodyMembers { is_whole, ..at_end }, whole);
    }
    assert!(whole.answers >= 1 && whole.maximum != Some(0));
    for value in &whole.values {
        assert!(!matches!(value, BodyValue::One(text) if text.len() > MAX_VALUE));
    }
    let json = serde_json::from_slice::<serde_json::Value>(bytes);
    let is_object = json.is_ok_and(|json| json.is_object() && depth(&json) <= 64);
    assert!(whole.is_whole || !is_object);
}

fn depth(json: &serde_json::Value) -> usize {
    match json {
        serde_json::Value::Array(values) => 1 + values.iter().map(depth).max().unwrap_or(0),
        serde_json::Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
