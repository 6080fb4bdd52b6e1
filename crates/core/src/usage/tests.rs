//! Answers of model servers as their clients get them, and the same answers in other pieces.

mod ask;
mod estimates;
mod fixtures;
mod numbers;
mod random;
mod reference;
mod request_random;
mod requests;
mod rules;

use std::sync::Arc;

use super::answer::{AnswerReader, EventScanning};
use super::format::{AnswerFormat, AnswerTable, JsonPaths, TextCount};
use super::framing::Framing;
use super::paths::MemberPath;
use super::tokens::ReportedTokens;

/// Everything that a reader reports of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Reading {
    tokens: Option<ReportedTokens>,
    model: Option<String>,
    is_final: bool,
    is_error: bool,
    text_bytes: u64,
}

impl Reading {
    fn new(reader: &AnswerReader) -> Reading {
        Reading {
            tokens: reader.tokens(),
            model: reader.model().map(str::to_owned),
            is_final: reader.is_final(),
            is_error: reader.is_error(),
            text_bytes: reader.text_bytes(),
        }
    }
}

fn table(format: AnswerFormat) -> Arc<AnswerTable> {
    Arc::new(AnswerTable::new(format, TextCount::Ignored))
}

fn table_with_text(format: AnswerFormat) -> Arc<AnswerTable> {
    Arc::new(AnswerTable::new(format, TextCount::Counted))
}

fn custom_table(text: TextCount) -> Arc<AnswerTable> {
    let path = |text| MemberPath::parse(text).ok();
    let paths = JsonPaths {
        input: path("stats.tokens_in"),
        output: path("stats.tokens_out"),
        model: path("engine"),
        text: path("text"),
        total: None,
    };
    Arc::new(AnswerTable::of_paths(&paths, text))
}

/// Reads an answer that comes in these chunks.
fn read<'b>(
    table: &Arc<AnswerTable>,
    framing: Framing,
    scanning: EventScanning,
    chunks: impl IntoIterator<Item = &'b [u8]>,
) -> Reading {
    let mut reader = AnswerReader::with(table, framing, scanning);
    for chunk in chunks {
        reader.read(chunk);
    }
    reader.finish();
    Reading::new(&reader)
}

fn read_whole(table: &Arc<AnswerTable>, framing: Framing, answer: &str) -> Reading {
    read(table, framing, EventScanning::All, [answer.as_bytes()])
}
