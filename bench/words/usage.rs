//! Answers of model servers and bodies of requests, 16 KiB at a time.

use std::hint::black_box;
use std::sync::Arc;

use tidegate::usage::answer::{AnswerReader, EventScanning};
use tidegate::usage::format::{AnswerFormat, AnswerTable, TextCount};
use tidegate::usage::framing::Framing;
use tidegate::usage::request::{BodyMember, RequestReader, RequestTable};

use super::{Word, word};

/// Bytes of a chunk.
const CHUNK: usize = 16 << 10;

pub(super) fn all() -> Vec<Word> {
    let (openai, anthropic) = (AnswerFormat::OpenAi, AnswerFormat::Anthropic);
    vec![
        chunk(
            "events without usage, openai",
            openai,
            EventScanning::Sparse,
        ),
        chunk(
            "events without usage, anthropic",
            anthropic,
            EventScanning::Sparse,
        ),
        chunk("the same, all scanned, openai", openai, EventScanning::All),
        chunk(
            "the same, all scanned, anthropic",
            anthropic,
            EventScanning::All,
        ),
        one_event(),
        document(),
        request(),
    ]
}

/// The events of an answer in which one token after the other comes.
fn events(format: AnswerFormat) -> Vec<u8> {
    let mut events = Vec::new();
    for number in 0.. {
        let text = match number % 16 {
            0 => format!("word{number}\\n\\n"),
            _ => format!(" word{number}"),
        };
        let event = match format {
            AnswerFormat::OpenAi => format!(
                "data: {{\"id\":\"chatcmpl-CXnK2vQ8s2l1\",\"object\":\"chat.completion.chunk\",\
                 \"created\":1764086400,\"model\":\"gpt-5-mini-2025-08-07\",\
                 \"service_tier\":\"default\",\"system_fingerprint\":null,\"choices\":[{{\
                 \"index\":0,\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":null}}],\
                 \"usage\":null,\"obfuscation\":\"aB3xQ\"}}\n\n"
            ),
            _ => format!(
                "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\
                 \"delta\":{{\"type\":\"text_delta\",\"text\":\"{text}\"}}}}\n\n"
            ),
        };
        events.extend_from_slice(event.as_bytes());
        if events.len() >= CHUNK {
            break;
        }
    }
    events.truncate(CHUNK);
    events
}

/// A reader in the middle of an answer.
fn reader(format: AnswerFormat, scanning: EventScanning) -> AnswerReader {
    let table = Arc::new(AnswerTable::new(format, TextCount::Ignored));
    let mut reader = AnswerReader::with(&table, Framing::Sse, scanning);
    reader.read(
        b"data: {\"model\":\"m\",\"message\":{\"usage\":{\"input_tokens\":9}},\"usage\":null}\n\n",
    );
    reader
}

/// Each time it reads the same chunk, which an event's second half follows.
fn chunk(name: &'static str, format: AnswerFormat, scanning: EventScanning) -> Word {
    let (events, begun) = (events(format), reader(format, scanning));
    word(name, move || {
        let mut reader = begun.clone();
        reader.read(black_box(&events));
        black_box(&reader);
    })
}

/// One event, as most of them come.
fn one_event() -> Word {
    let begun = reader(AnswerFormat::OpenAi, EventScanning::Sparse);
    let events = events(AnswerFormat::OpenAi);
    let mut ends = events.windows(2).enumerate();
    let end = ends.find(|(_, pair)| *pair == b"\n\n").unwrap().0 + 2;
    word("one event without usage", move || {
        let mut reader = begun.clone();
        reader.read(black_box(&events[..end]));
        black_box(&reader);
    })
}

/// A whole answer with a long text.
fn document() -> Word {
    let text = "All of it is one long text, with a \\\"quote\\\" here and there.\\n".repeat(250);
    let mut answer = format!(
        "{{\"id\":\"chatcmpl-1\",\"model\":\"gpt-5\",\"choices\":[{{\"index\":0,\"message\":{{\
         \"role\":\"assistant\",\"content\":\"{text}"
    );
    answer.truncate(CHUNK - 200);
    answer.push_str(
        "\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":7,\
         \"total_tokens\":12}}",
    );
    let table = Arc::new(AnswerTable::new(AnswerFormat::OpenAi, TextCount::Ignored));
    word("a whole answer", move || {
        let mut reader = AnswerReader::new(&table, Framing::Document);
        reader.read(black_box(answer.as_bytes()));
        assert!(reader.is_final());
    })
}

/// A request with a long prompt.
fn request() -> Word {
    let text = "All of it is one long text, with a \\\"quote\\\" here and there.\\n".repeat(250);
    let mut body =
        format!("{{\"model\":\"gpt-5\",\"messages\":[{{\"role\":\"user\",\"content\":\"{text}");
    body.truncate(CHUNK - 200);
    body.push_str("\"}],\"max_tokens\":64,\"stream\":true}");
    let table = Arc::new(RequestTable::new(vec![BodyMember::McpTool], true));
    word("the body of a request", move || {
        let mut reader = RequestReader::new(&table);
        reader.read(black_box(body.as_bytes()));
        assert!(reader.is_done());
    })
}
