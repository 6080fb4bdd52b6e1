//! One answer of each kind that servers send, cut at every place.

use super::*;

struct Fixture {
    name: &'static str,
    table: Arc<AnswerTable>,
    with_text: Arc<AnswerTable>,
    framing: Framing,
    answer: Vec<u8>,
    expected: Reading,
}

/// The counts of an answer: input, cached, written to a cache, output.
type Four = [u64; 4];

fn tokens(counts: Four) -> Option<ReportedTokens> {
    Some(ReportedTokens {
        input: Some(counts[0]),
        cached: counts[1],
        cache_write: counts[2],
        output: Some(counts[3]),
    })
}

macro_rules! fixture {
    ($format:ident, $framing:ident, $file:literal, $model:expr, $text:literal, $tokens:expr) => {
        Fixture {
            name: $file,
            table: table(AnswerFormat::$format),
            with_text: table_with_text(AnswerFormat::$format),
            framing: Framing::$framing,
            answer: include_bytes!(concat!("answers/", $file)).to_vec(),
            expected: Reading {
                tokens: $tokens,
                model: $model.map(str::to_owned),
                is_final: true,
                is_error: false,
                text_bytes: $text,
            },
        }
    };
}

fn unfinished(mut fixture: Fixture) -> Fixture {
    fixture.expected.is_final = false;
    fixture.expected.is_error = true;
    fixture
}

fn openai() -> Vec<Fixture> {
    let mini = Some("gpt-5-mini-2025-08-07");
    vec![
        fixture!(
            OpenAi,
            Sse,
            "openai_chat.sse",
            mini,
            46,
            tokens([1117, 1024, 0, 46])
        ),
        fixture!(
            OpenAi,
            Document,
            "openai_chat.json",
            Some("gpt-5-2025-08-07"),
            99,
            tokens([82, 0, 0, 17])
        ),
        fixture!(
            OpenAi,
            Sse,
            "openai_completions.sse",
            Some("gpt-3.5-turbo-instruct"),
            16,
            tokens([5, 0, 0, 4])
        ),
    ]
}

fn openai_others() -> Vec<Fixture> {
    vec![
        fixture!(
            OpenAi,
            Document,
            "openai_embeddings.json",
            Some("text-embedding-3-small"),
            0,
            tokens([8, 0, 0, 0])
        ),
        fixture!(
            OpenAi,
            Sse,
            "openai_responses.sse",
            Some("gpt-5-2025-08-07"),
            24,
            tokens([36, 16, 0, 87])
        ),
        fixture!(
            OpenAi,
            Document,
            "openai_responses.json",
            Some("gpt-5-nano-2025-08-07"),
            10,
            tokens([20, 0, 0, 130])
        ),
    ]
}

fn openai_compatible() -> Vec<Fixture> {
    vec![
        fixture!(
            OpenAi,
            Sse,
            "azure_chat.sse",
            Some("gpt-4o-2024-11-20"),
            2,
            tokens([9, 0, 0, 2])
        ),
        fixture!(
            OpenAi,
            Sse,
            "vllm_continuous.sse",
            Some("Qwen/Qwen3-8B"),
            7,
            tokens([11, 0, 0, 3])
        ),
        unfinished(fixture!(
            OpenAi,
            Sse,
            "vllm_error.sse",
            Some("Qwen/Qwen3-8B"),
            1,
            None
        )),
        fixture!(
            OpenAi,
            Sse,
            "total_only.sse",
            Some("tiny"),
            1,
            tokens([0, 0, 0, 21])
        ),
    ]
}

fn anthropic() -> Vec<Fixture> {
    vec![
        fixture!(
            Anthropic,
            Sse,
            "anthropic.sse",
            Some("claude-sonnet-4-5-20250929"),
            45,
            tokens([2670, 2048, 150, 89])
        ),
        fixture!(
            Anthropic,
            Document,
            "anthropic.json",
            Some("claude-opus-4-5"),
            5,
            tokens([5010, 5000, 0, 31])
        ),
        fixture!(
            Anthropic,
            Sse,
            "anthropic_zeros.sse",
            Some("kimi-k2"),
            2,
            tokens([321, 0, 0, 7])
        ),
        unfinished(fixture!(
            Anthropic,
            Sse,
            "anthropic_error.sse",
            Some("claude-haiku-4-5"),
            2,
            None
        )),
    ]
}

fn gemini() -> Vec<Fixture> {
    let blocked = Some("gemini-2.5-flash");
    vec![
        fixture!(
            Gemini,
            Sse,
            "gemini.sse",
            Some("gemini-2.5-pro"),
            47,
            tokens([108, 4, 0, 1073])
        ),
        fixture!(
            Gemini,
            Document,
            "gemini_array.json",
            Some("gemini-2.0-flash"),
            3,
            tokens([5, 0, 0, 9])
        ),
        fixture!(
            Gemini,
            Document,
            "gemini_blocked.json",
            blocked,
            0,
            tokens([19, 0, 0, 0])
        ),
    ]
}

fn ollama() -> Vec<Fixture> {
    let llama = Some("llama3.2");
    let without_input = Some(ReportedTokens {
        output: Some(5),
        ..ReportedTokens::default()
    });
    vec![
        fixture!(
            Ollama,
            Lines,
            "ollama_chat.ndjson",
            llama,
            19,
            tokens([26, 0, 0, 282])
        ),
        fixture!(
            Ollama,
            Lines,
            "ollama_cached.ndjson",
            Some("qwen3:8b"),
            2,
            without_input
        ),
        fixture!(
            Ollama,
            Document,
            "ollama_embed.json",
            Some("all-minilm"),
            0,
            tokens([8, 0, 0, 0])
        ),
    ]
}

fn bedrock() -> Vec<Fixture> {
    vec![
        fixture!(
            Bedrock,
            Document,
            "bedrock.json",
            None::<&str>,
            5,
            tokens([964, 900, 50, 61])
        ),
        Fixture {
            name: "bedrock messages",
            table: table(AnswerFormat::Bedrock),
            with_text: table_with_text(AnswerFormat::Bedrock),
            framing: Framing::EventStream,
            answer: converse_stream(),
            expected: Reading {
                tokens: tokens([130, 0, 10, 9]),
                is_final: true,
                text_bytes: 5,
                ..Reading::default()
            },
        },
        Fixture {
            name: "bedrock invoke messages",
            table: table(AnswerFormat::Bedrock),
            with_text: table_with_text(AnswerFormat::Bedrock),
            framing: Framing::EventStream,
            answer: invoke_stream(),
            expected: Reading {
                tokens: tokens([2060, 2048, 0, 9]),
                is_final: true,
                text_bytes: 6,
                ..Reading::default()
            },
        },
    ]
}

fn configured() -> Fixture {
    let counts = tokens([3, 0, 0, 3]);
    let mut custom = fixture!(Ollama, Lines, "custom.ndjson", Some("x1"), 3, counts);
    custom.table = custom_table(TextCount::Ignored);
    custom.with_text = custom_table(TextCount::Counted);
    custom
}

fn all() -> impl Iterator<Item = Fixture> {
    let openai = [openai(), openai_others(), openai_compatible()];
    let others = [anthropic(), gemini(), ollama(), bedrock()];
    let all = openai.into_iter().chain(others).flatten();
    all.chain([configured()])
}

/// One message of an event stream. Nobody checks its checksums.
pub(super) fn message(kind: &str, name: &str, payload: &str) -> Vec<u8> {
    let mut headers = Vec::new();
    for (header, value) in [
        (kind, name),
        (":content-type", "application/json"),
        (":message-type", "event"),
    ] {
        headers.push(header.len() as u8);
        headers.extend_from_slice(header.as_bytes());
        headers.push(7);
        headers.extend_from_slice(&(value.len() as u16).to_be_bytes());
        headers.extend_from_slice(value.as_bytes());
    }
    let length = 16 + headers.len() + payload.len();
    let mut message = (length as u32).to_be_bytes().to_vec();
    message.extend_from_slice(&(headers.len() as u32).to_be_bytes());
    message.extend_from_slice(b"{\"\n:");
    message.extend_from_slice(&headers);
    message.extend_from_slice(payload.as_bytes());
    message.extend_from_slice(b"\"}\r\n");
    message
}

fn converse_stream() -> Vec<u8> {
    let event = |name, payload| message(":event-type", name, payload);
    [
        event("messageStart", r#"{"p":"abcd","role":"assistant"}"#),
        event(
            "contentBlockDelta",
            r#"{"contentBlockIndex":0,"delta":{"text":"Hello"},"p":"abcdefgh"}"#,
        ),
        event("contentBlockStop", r#"{"contentBlockIndex":0,"p":"ab"}"#),
        event("messageStop", r#"{"p":"abc","stopReason":"end_turn"}"#),
        event(
            "metadata",
            r#"{"metrics":{"latencyMs":372},"p":"a","usage":{"cacheWriteInputTokens":10,
                "inputTokens":120,"outputTokens":9,"totalTokens":139}}"#,
        ),
    ]
    .concat()
}

/// An event of a model as `InvokeModel` streams it.
pub(super) fn chunk(event: &str) -> Vec<u8> {
    use base64::prelude::{BASE64_STANDARD, Engine};
    let bytes = BASE64_STANDARD.encode(event);
    let payload = format!("{{\"bytes\":\"{bytes}\",\"p\":\"abcdefghi\"}}");
    message(":event-type", "chunk", &payload)
}

fn invoke_stream() -> Vec<u8> {
    [
        chunk(r#"{"type":"message_start","message":{"usage":{"input_tokens":1}}}"#),
        chunk(r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"Hello\n"}}"#),
        chunk(r#"{"type":"content_block_delta","bytes":"e30=","delta":{"stop":{}}}"#),
        chunk(r#"{"type":"message_delta","usage":{"output_tokens":9}}"#),
        chunk(
            r#"{"type":"message_stop","amazon-bedrock-invocationMetrics":{"inputTokenCount":12,
                "outputTokenCount":9,"invocationLatency":802,"firstByteLatency":375,
                "cacheReadInputTokenCount":2048,"cacheWriteInputTokenCount":0}}"#,
        ),
    ]
    .concat()
}

#[test]
fn every_fixture_is_read_right() {
    for fixture in all() {
        let whole = [fixture.answer.as_slice()];
        let reading = read(
            &fixture.with_text,
            fixture.framing,
            EventScanning::Sparse,
            whole,
        );
        assert_eq!(reading, fixture.expected, "{}", fixture.name);
    }
}

/// The same answer with this end of lines.
fn with_line_end(fixture: &Fixture, line_end: &str) -> Vec<u8> {
    match fixture.framing {
        Framing::EventStream => fixture.answer.clone(),
        _ => {
            let text = std::str::from_utf8(&fixture.answer).unwrap();
            text.replace('\n', line_end).into_bytes()
        }
    }
}

#[test]
fn every_split_of_every_fixture_is_read_alike() {
    for fixture in all() {
        let line_ends: &[&str] = match fixture.framing {
            Framing::Sse => &["\n", "\r", "\r\n"],
            _ => &["\n", "\r\n"],
        };
        let without_text = Reading {
            text_bytes: 0,
            ..fixture.expected.clone()
        };
        for line_end in line_ends {
            let answer = with_line_end(&fixture, line_end);
            for at in 0..=answer.len() {
                let (first, second) = answer.split_at(at);
                for scanning in [EventScanning::Sparse, EventScanning::All] {
                    let reading = read(&fixture.table, fixture.framing, scanning, [first, second]);
                    assert_eq!(reading, without_text, "{} at {at}", fixture.name);
                }
                let scanning = EventScanning::All;
                let reading = read(
                    &fixture.with_text,
                    fixture.framing,
                    scanning,
                    [first, second],
                );
                assert_eq!(reading, fixture.expected, "{} at {at}", fixture.name);
            }
            for size in 1..=7 {
                let chunks = answer.chunks(size);
                let reading = read(
                    &fixture.table,
                    fixture.framing,
                    EventScanning::Sparse,
                    chunks,
                );
                assert_eq!(reading, without_text, "{} by {size}", fixture.name);
            }
        }
    }
}

/// The last event may lack its blank line, and even the end of its line.
#[test]
fn the_end_of_an_answer_ends_its_last_event() {
    for fixture in all() {
        if !matches!(fixture.framing, Framing::Sse | Framing::Lines) {
            continue;
        }
        let text = std::str::from_utf8(&fixture.answer).unwrap();
        let trimmed = text.trim_end_matches('\n').as_bytes();
        let with_mark = [b"\xef\xbb\xbf".as_slice(), trimmed].concat();
        for answer in [trimmed, with_mark.as_slice()] {
            for size in [1, 2, 3, answer.len()] {
                let chunks = answer.chunks(size);
                let reading = read(
                    &fixture.with_text,
                    fixture.framing,
                    EventScanning::Sparse,
                    chunks,
                );
                assert_eq!(reading, fixture.expected, "{} by {size}", fixture.name);
            }
        }
    }
}

/// What an answer has told by then is known at each of its bytes: a cut answer never tells more
/// than the whole one, and nothing is final that could still change.
#[test]
fn a_cut_answer_reports_nothing_too_early() {
    for fixture in all() {
        let mut reader = AnswerReader::new(&fixture.table, fixture.framing);
        for byte in &fixture.answer {
            reader.read(&[*byte]);
            if reader.is_final() && fixture.name != "vllm_continuous.sse" {
                assert_eq!(reader.tokens(), fixture.expected.tokens, "{}", fixture.name);
            }
        }
    }
}
