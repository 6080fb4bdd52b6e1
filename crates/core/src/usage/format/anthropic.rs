//! Anthropic's Messages, and the servers that speak so.
//!
//! `message_start` has the input and a first count of the output, and `message_delta` has the last
//! counts. Both count from the beginning, so later numbers replace earlier ones. Compatible servers
//! send 0 as the input of `message_delta`, though they know better: that 0 says nothing.

use super::AnswerRole::{Error, ErrorWord, Model, PositiveCount, Text, Unfinished};
use super::TokenField::{CacheWrite, Cached, Input, Output};
use super::{AnswerLayout, AnswerRow, Tops, count, row};

pub(super) const LAYOUT: AnswerLayout = AnswerLayout {
    rows: ROWS,
    needle: "_tokens\"",
    tops: Tops::One,
    is_cache_apart: true,
    omits_zero_output: false,
    total_has_more_output: false,
    ends_with_counts: true,
};

const ROWS: &[AnswerRow] = &[
    row("usage.input_tokens", PositiveCount(Input)),
    row("usage.cache_read_input_tokens", PositiveCount(Cached)),
    row(
        "usage.cache_creation_input_tokens",
        PositiveCount(CacheWrite),
    ),
    count("usage.output_tokens", Output),
    row("message.usage.input_tokens", PositiveCount(Input)),
    row(
        "message.usage.cache_read_input_tokens",
        PositiveCount(Cached),
    ),
    row(
        "message.usage.cache_creation_input_tokens",
        PositiveCount(CacheWrite),
    ),
    count("message.usage.output_tokens", Output),
    row("model", Model),
    row("message.model", Model),
    row("message", Unfinished),
    row("error", Error),
    row("type", ErrorWord),
    // Streamed.
    row("delta.text", Text),
    row("delta.thinking", Text),
    row("delta.partial_json", Text),
    // Whole.
    row("content[].text", Text),
    row("content[].thinking", Text),
];
