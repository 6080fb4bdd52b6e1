//! Ollama: a line for each piece of text, and the counts in the last one.
//!
//! A count that is 0 is left out. The input has been left out for cached prompts too.

use super::AnswerRole::{Error, Model, Text, Unfinished};
use super::TokenField::{Cached, Input, Output};
use super::{AnswerLayout, AnswerRow, Tops, count, row};

pub(super) const LAYOUT: AnswerLayout = AnswerLayout {
    rows: ROWS,
    needle: "_count\"",
    tops: Tops::One,
    is_cache_apart: false,
    omits_zero_output: true,
    total_has_more_output: false,
    ends_with_counts: true,
};

const ROWS: &[AnswerRow] = &[
    count("prompt_eval_count", Input),
    count("prompt_eval_cached_count", Cached),
    count("eval_count", Output),
    row("model", Model),
    row("done", Unfinished),
    row("error", Error),
    row("response", Text),
    row("thinking", Text),
    row("message.content", Text),
    row("message.thinking", Text),
    row("message.tool_calls[].function.name", Text),
];
